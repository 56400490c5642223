//! One step of a merge: the lowest entries of several runs, in order, without those of jobs that have no rows any more. Keeps the
//! promise that every other entry comes out, whether the merge is done in one step or in thousands, over crashes and undone rounds.
//! Pure: pages are handed in by a function. Called by `work`.

use super::page::Entry;

/// A run and the first entry of one of its pages.
pub(super) type PageKey = (u64, u64, u64);

/// What one step takes from its inputs.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Step {
    /// What goes to the output.
    pub(super) kept: Vec<Entry>,
    /// How many were looked at.
    pub(super) seen: usize,
    /// The last one that was looked at.
    pub(super) last: Option<Entry>,
    /// Pages all of whose entries were looked at.
    pub(super) used: Vec<PageKey>,
    /// Nothing is left in the inputs.
    pub(super) ended: bool,
}

/// How far to go.
#[derive(Clone, Copy, Debug)]
pub(super) struct Budget {
    pub(super) keep: usize,
    pub(super) see: usize,
}

/// Reads pages: of this run, the one that this entry belongs to or would; or the one behind the page with this first entry.
#[derive(Clone, Copy, Debug)]
pub(super) enum Which {
    With(Entry),
    Behind(Entry),
}

struct Cursor {
    run: u64,
    page: Vec<Entry>,
    at: usize,
}

impl Cursor {
    fn peek(&self) -> Option<Entry> {
        self.page.get(self.at).copied()
    }
    fn key(&self) -> Option<PageKey> {
        self.page.first().map(|e| (self.run, e.hash, e.job))
    }
}

/// The entries after `from`, until the budget is spent.
pub(super) fn step<E>(
    inputs: &[u64],
    from: Option<Entry>,
    budget: Budget,
    lives: impl Fn(u64) -> bool,
    read: impl Fn(u64, Which) -> Result<Vec<Entry>, E>,
) -> Result<Step, E> {
    let mut step = Step::default();
    let mut cursors = Vec::with_capacity(inputs.len());
    for run in inputs {
        let page = read(*run, Which::With(from.unwrap_or(Entry { hash: 0, job: 0 })))?;
        let at = from.map_or(0, |f| page.partition_point(|e| *e <= f));
        let mut cursor = Cursor { run: *run, page, at };
        turn(&mut cursor, &mut step, &read)?;
        cursors.push(cursor);
    }
    while step.kept.len() < budget.keep && step.seen < budget.see {
        let lowest = cursors.iter_mut().filter_map(|c| c.peek().map(|e| (e, c))).min_by_key(|(e, _)| *e);
        let Some((entry, cursor)) = lowest else {
            step.ended = true;
            break;
        };
        cursor.at += 1;
        step.seen += 1;
        // An entry that two runs have is one.
        if step.last != Some(entry) && lives(entry.job) {
            step.kept.push(entry);
        }
        step.last = Some(entry);
        turn(cursor, &mut step, &read)?;
    }
    Ok(step)
}

/// Goes on to the next page if this one is used up.
fn turn<E>(cursor: &mut Cursor, step: &mut Step, read: &impl Fn(u64, Which) -> Result<Vec<Entry>, E>) -> Result<(), E> {
    while cursor.at >= cursor.page.len() {
        let (Some(key), Some(first)) = (cursor.key(), cursor.page.first().copied()) else { return Ok(()) };
        step.used.push(key);
        cursor.page = read(cursor.run, Which::Behind(first))?;
        cursor.at = 0;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::{BTreeMap, BTreeSet};

    type Pages = BTreeMap<PageKey, Vec<Entry>>;

    fn page(pages: &Pages, run: u64, which: Which) -> Result<Vec<Entry>, String> {
        let of = |e: Entry| (run, e.hash, e.job);
        let (first, last) = ((run, 0, 0), (run, u64::MAX, u64::MAX));
        let found = match which {
            Which::With(e) => pages.range(first..=of(e)).next_back().or_else(|| pages.range(first..=last).next()),
            Which::Behind(e) => pages.range(of(e)..=last).find(|(k, _)| **k > of(e)),
        };
        Ok(found.map(|(_, p)| p.clone()).unwrap_or_default())
    }

    /// Random runs with many equal hashes are merged in steps of random size; used pages go away after each step, some steps are
    /// undone and done again, and sometimes only the output knows how far it came. The output has every entry of a living job, in
    /// order, and nothing else; no page is left of the inputs.
    #[test]
    fn a_merge_in_steps_loses_nothing() {
        let mut rng = fastrand::Rng::with_seed(21);
        let mut merged = 0;
        for case in 0..200 {
            let mut pages = Pages::new();
            let mut all = BTreeSet::new();
            let inputs: Vec<u64> = (0..rng.u64(1..5)).collect();
            for run in &inputs {
                let hashes = rng.u64(1..40);
                let entries: BTreeSet<Entry> =
                    (0..rng.u64(..60)).map(|n| Entry { hash: rng.u64(..hashes), job: run * 1_000 + n }).collect();
                all.extend(entries.iter().copied());
                let sorted: Vec<Entry> = entries.into_iter().collect();
                for p in sorted.chunks(4) {
                    pages.insert((*run, p[0].hash, p[0].job), p.to_vec());
                }
            }
            let dead = rng.u64(2..6);
            let lives = |job: u64| !job.is_multiple_of(dead);
            let (mut out, mut from) = (Vec::new(), None);
            loop {
                let budget = Budget { keep: rng.usize(1..20), see: rng.usize(1..40) };
                let step = step(&inputs, from, budget, lives, |run, which| page(&pages, run, which)).unwrap();
                if rng.u8(..4) == 0 {
                    continue;
                }
                assert!(step.kept.len() <= budget.keep);
                step.used.iter().for_each(|k| assert!(pages.remove(k).is_some()));
                out.extend(step.kept);
                from = step.last.or(from);
                if rng.bool() {
                    from = out.last().copied();
                }
                if step.ended {
                    break;
                }
            }
            let expected: Vec<Entry> = all.into_iter().filter(|e| lives(e.job)).collect();
            assert_eq!(out, expected, "case {case}");
            assert!(pages.is_empty());
            merged += out.len();
        }
        assert!(merged > 5_000, "only {merged}");
        let bad: Result<Step, &str> = step(&[1], None, Budget { keep: 1, see: 1 }, |_| true, |_, _| Err("damaged"));
        assert_eq!(bad, Err("damaged"));
    }
}
