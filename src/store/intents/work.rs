//! What a round that brings jobs does for the index of intents, in its own transaction: it writes its entries, and carries on what is
//! going on. Keeps the promise that what a round does is bounded, and on average a few
//! entries for each of its own jobs. Called before every commit;
//! what it did counts for memory only after the commit.

use super::super::codec::{self, RunCard};
use super::super::error::StoreError;
use super::super::pack::STRIP;
use super::super::read::Rows;
use super::filter::Filter;
use super::living::Living;
use super::look::read_page;
use super::memory::{After, Done, Merge, Output, Run, State};
use super::merge::{self, Budget, PageKey, Step};
use super::page::{self, Entry};
use redb::{ReadableTable, WriteTransaction};
use std::collections::BTreeMap;

/// Entries that every merge looks at for each new job: more than one, so that it ends before the next one is due.
const PACE: usize = 2;
/// A merge waits until so many pages are worth turning to.
const PAGES: usize = 4;
/// The most pages that a round writes for one merge; a round of many thousand jobs leaves the rest to the next ones.
const MOST_PAGES: usize = 64;
/// Strips that one round surveys for a merge.
const STRIPS: usize = 2_048;

/// `last` is the highest number handed out; runs are numbered like everything else.
pub(crate) fn work(rows: &mut Rows<'_, WriteTransaction>, last: &mut u64) -> Result<Option<Done>, StoreError> {
    let memory = rows.memory;
    let state = memory.state.read();
    let arrived = state.tail.parts().1.len();
    if arrived == 0 {
        return Ok(None);
    }
    let mut round = Round { rows, page: memory.sizes.page, last, done: Done::default(), bits: BTreeMap::new() };
    if state.tail.len() >= memory.sizes.tail {
        round.empty_tail(&state)?;
    } else {
        round.write_fresh(&state)?;
    }
    for (at, merge) in state.merges.iter().enumerate().filter(|(_, m)| !m.stuck) {
        let after = round.carry_on(merge, &state, merge.owed + arrived * PACE)?;
        round.done.merges.push((at, after));
    }
    round.remove_dead(&state, arrived)?;
    let Round { done, bits, .. } = round;
    drop(state);
    // Before the commit: no filter may deny what a reader could already see.
    let mut state = memory.state.write();
    for (run, entries) in bits {
        if let Some(filter) = state.runs.get_mut(&run).and_then(|r| r.filter.as_mut()) {
            entries.iter().for_each(|e| filter.add(e.hash));
        }
    }
    Ok(Some(done))
}

struct Round<'r, 't> {
    rows: &'r mut Rows<'t, WriteTransaction>,
    page: usize,
    last: &'r mut u64,
    done: Done,
    /// For the filters of runs that are known already.
    bits: BTreeMap<u64, Vec<Entry>>,
}

impl Round<'_, '_> {
    fn next_number(&mut self) -> u64 {
        *self.last += 1;
        *self.last
    }
    /// The entries of this round go to `q/id-fresh`, beside those of the rounds before while there is room in their row.
    fn write_fresh(&mut self, state: &State) -> Result<(), StoreError> {
        let table = self.rows.tables.fresh.write(self.rows.tx)?;
        let mut bytes = Vec::new();
        for row in state.tail.unwritten().chunks(self.page) {
            page::encode(row, &mut bytes);
            if let Some(first) = row.first() {
                table.insert(first.job, bytes.as_slice())?;
            }
            if row.len() == self.page {
                self.done.full += row.len();
            }
        }
        Ok(())
    }
    /// The tail becomes a run, without jobs that have no rows any more.
    fn empty_tail(&mut self, state: &State) -> Result<(), StoreError> {
        let (durable, new) = state.tail.parts();
        let end = self.last.saturating_add(1);
        let jobs = state.tail.from()..end;
        let mut living = Living::of(&jobs);
        self.survey(&mut living, usize::MAX)?;
        // Those of this round have no rows in the table yet.
        let kept = durable.iter().filter(|e| living.lives(e.job)).chain(new);
        let mut entries: Vec<Entry> = kept.copied().collect();
        entries.sort_unstable();
        if !entries.is_empty() {
            let id = self.next_number();
            let mut filter = Filter::new(entries.len() as u64);
            entries.iter().for_each(|e| filter.add(e.hash));
            self.write_pages(id, &entries)?;
            let first = entries.iter().map(|e| e.job).min().unwrap_or(jobs.start);
            let run = Run {
                jobs: first..end,
                entries: entries.len() as u64,
                filter: Some(filter),
                damaged: false,
                dead: false,
            };
            self.write_card(id, &run, Vec::new())?;
            self.done.runs.push((id, run));
        }
        self.rows.tables.fresh.write(self.rows.tx)?.retain_in::<u64, _>(.., |_, _| false)?;
        self.done.emptied = Some(self.last.saturating_add(1));
        self.find_dead(state)
    }
    fn write_pages(&mut self, run: u64, entries: &[Entry]) -> Result<(), StoreError> {
        let table = self.rows.tables.id_page.write(self.rows.tx)?;
        let mut bytes = Vec::new();
        for page in entries.chunks(self.page) {
            page::encode(page, &mut bytes);
            if let Some(first) = page.first() {
                table.insert((run, first.hash, first.job), bytes.as_slice())?;
            }
        }
        Ok(())
    }
    fn write_card(&mut self, id: u64, run: &Run, inputs: Vec<u64>) -> Result<(), StoreError> {
        let card = RunCard { first: run.jobs.start, end: run.jobs.end, entries: run.entries, inputs };
        let mut bytes = Vec::new();
        codec::encode(&card, &mut bytes)?;
        self.rows.tables.id_run.write(self.rows.tx)?.insert(id, bytes.as_slice())?;
        Ok(())
    }
    fn remove_card(&mut self, id: u64) -> Result<(), StoreError> {
        self.rows.tables.id_run.write(self.rows.tx)?.remove(id)?;
        Ok(())
    }
    /// Looks at the strips as they were before this round: what a round changes is written after this, and may be undone.
    fn survey(&self, living: &mut Living, at_most: usize) -> Result<(), StoreError> {
        let table = self.rows.tables.state.read(self.rows.tx)?;
        let mut found = 0;
        for row in table.range(living.left())?.take(at_most) {
            living.has(row?.0.value());
            found += 1;
        }
        if found < at_most {
            living.ends();
        }
        Ok(())
    }
    fn carry_on(&mut self, merge: &Merge, state: &State, owed: usize) -> Result<After, StoreError> {
        if !merge.living.is_known() {
            let mut living = merge.living.clone();
            self.survey(&mut living, STRIPS)?;
            return Ok(After::Surveyed { living, owed });
        }
        let output = match merge.output {
            Some(output) if owed < PAGES * self.page => return Ok(After::Moved { output, owed }),
            Some(output) => output,
            None => {
                let run = self.next_number();
                let most = merge.entries(&state.runs).min(merge.living.jobs());
                let filter = Some(Filter::new(most));
                let card = Run { jobs: merge.jobs.clone(), entries: most, filter, damaged: false, dead: false };
                self.write_card(run, &card, merge.inputs.clone())?;
                self.done.runs.push((run, card));
                return Ok(After::Moved { output: Output { run, last: None, entries: 0 }, owed });
            }
        };
        let pages = (owed / self.page).min(MOST_PAGES);
        let budget = Budget { keep: pages * self.page, see: pages * self.page * 2 };
        let table = self.rows.tables.id_page.read(self.rows.tx)?;
        let lives = |job: u64| merge.living.lives(job);
        match merge::step(&merge.inputs, output.last, budget, lives, |run, which| read_page(table, run, which)) {
            Ok(step) => self.move_entries(merge, output, step, owed),
            Err(StoreError::Corrupt { .. }) => Ok(After::Stuck),
            Err(e) => Err(e),
        }
    }
    fn move_entries(
        &mut self,
        merge: &Merge,
        mut output: Output,
        step: Step,
        owed: usize,
    ) -> Result<After, StoreError> {
        self.write_pages(output.run, &step.kept)?;
        let table = self.rows.tables.id_page.write(self.rows.tx)?;
        for key in step.used {
            table.remove(key)?;
        }
        output.last = step.last.or(output.last);
        output.entries += step.kept.len() as u64;
        self.bits.insert(output.run, step.kept);
        if !step.ended {
            return Ok(After::Moved { output, owed: owed.saturating_sub(step.seen) });
        }
        for input in &merge.inputs {
            self.remove_card(*input)?;
        }
        if output.entries == 0 {
            self.remove_card(output.run)?;
        } else {
            let run =
                Run { jobs: merge.jobs.clone(), entries: output.entries, filter: None, damaged: false, dead: false };
            self.write_card(output.run, &run, Vec::new())?;
        }
        Ok(After::Ended { output })
    }
    /// Runs below the oldest job that has rows.
    fn find_dead(&mut self, state: &State) -> Result<(), StoreError> {
        let oldest = self.rows.tables.state.read(self.rows.tx)?.first()?.map(|(k, _)| k.value());
        let living = oldest.map_or(u64::MAX, |strip| strip.saturating_mul(STRIP));
        // One that is just being filled has jobs without rows in the table; it is not known yet.
        let dead = state.runs.iter().filter(|(id, run)| !run.dead && run.jobs.end <= living && !state.is_merged(**id));
        self.done.dead.extend(dead.map(|(id, _)| *id));
        Ok(())
    }
    /// Removes a few pages of the first run that is dead.
    fn remove_dead(&mut self, state: &State, arrived: usize) -> Result<(), StoreError> {
        let Some((id, _)) = state.runs.iter().find(|(_, run)| run.dead) else { return Ok(()) };
        let pages = (arrived * PACE / self.page).clamp(PAGES, MOST_PAGES);
        let table = self.rows.tables.id_page.write(self.rows.tx)?;
        let all: (PageKey, PageKey) = ((*id, 0, 0), (*id, u64::MAX, u64::MAX));
        let keys: Vec<PageKey> =
            table.range(all.0..=all.1)?.take(pages).map(|row| row.map(|(k, _)| k.value())).collect::<Result<_, _>>()?;
        let last = keys.len() < pages;
        for key in keys {
            table.remove(key)?;
        }
        if last {
            self.remove_card(*id)?;
            self.done.gone.push(*id);
        }
        Ok(())
    }
}
