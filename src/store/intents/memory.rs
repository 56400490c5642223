//! What is in memory of the index: the tail, a filter for every run, and how far each merge has come. Keeps the promise that all of
//! it says what the file says: a round's changes are taken over after its commit, and forgotten with it. Shared by the writer, who
//! alone changes it, and by readers.

use super::filter::Filter;
use super::living::Living;
use super::page::{self, Entry};
use super::tail::Tail;
use crate::model::id::KindId;
use crate::sync::RwLock;
use siphasher::sip::SipHasher13;
use std::collections::BTreeMap;
use std::hash::Hasher;
use std::ops::Range;

/// How big the parts of the index are. A file can be opened with others than it was written with, but for the bits of a hash.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// Entries of the tail before it becomes a run.
    pub tail: usize,
    /// So many runs of a class are merged into one.
    pub fan: usize,
    /// Entries of a page, at most as many as fit.
    pub page: usize,
    /// Bits of a hash that count.
    pub hash_bits: u32,
}

impl Default for Sizes {
    fn default() -> Self {
        Self { tail: 8_192, fan: 8, page: page::ROOM, hash_bits: u64::BITS }
    }
}

impl Sizes {
    /// Small enough for a test to see every sort of merge after a few dozen jobs.
    #[cfg(feature = "testkit")]
    pub fn tiny() -> Self {
        Self { tail: 8, fan: 2, page: 3, hash_bits: u64::BITS }
    }
    /// Runs of one class are about as long as each other: up to `fan` times the tail, `fan` times that, and so on.
    fn class(&self, entries: u64) -> u32 {
        let (tail, fan) = (self.tail.max(1) as u64, self.fan.max(2) as u64);
        (entries / tail).checked_ilog(fan).unwrap_or(0)
    }
}

/// The index in memory.
#[derive(Debug)]
pub(crate) struct Memory {
    key: [u8; 16],
    pub(super) sizes: Sizes,
    pub(super) state: RwLock<State>,
}

#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) tail: Tail,
    pub(super) runs: BTreeMap<u64, Run>,
    pub(super) merges: Vec<Merge>,
}

/// A run that has a card.
#[derive(Debug)]
pub(super) struct Run {
    /// The jobs that it may have entries of.
    pub(super) jobs: Range<u64>,
    /// How many entries it has, or will have at most.
    pub(super) entries: u64,
    /// None if it is not known what is on a page that cannot be read: then every question goes to its pages.
    pub(super) filter: Option<Filter>,
    /// A page cannot be read: it is never merged.
    pub(super) damaged: bool,
    /// No job of it has rows any more: its pages are being removed.
    pub(super) dead: bool,
}

impl Run {
    pub(super) fn may_have(&self, hash: u64) -> bool {
        self.filter.as_ref().is_none_or(|f| f.may_have(hash))
    }
}

/// Runs that become one.
#[derive(Debug)]
pub(super) struct Merge {
    class: u32,
    pub(super) inputs: Vec<u64>,
    pub(super) jobs: Range<u64>,
    pub(super) living: Living,
    pub(super) output: Option<Output>,
    /// How many entries it should have looked at by now.
    pub(super) owed: usize,
    /// A page cannot be read. What was merged stays merged, the rest stays where it is.
    pub(super) stuck: bool,
}

/// What a merge has written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Output {
    pub(super) run: u64,
    pub(super) last: Option<Entry>,
    pub(super) entries: u64,
}

/// What a round did to the index; taken over when it is committed.
#[derive(Debug, Default)]
pub(crate) struct Done {
    /// Entries in rows of `q/id-fresh` that are full.
    pub(super) full: usize,
    /// The tail became this run, or nothing of it lives; the next one takes over at this number.
    pub(super) emptied: Option<u64>,
    pub(super) runs: Vec<(u64, Run)>,
    /// By the place of the merge.
    pub(super) merges: Vec<(usize, After)>,
    pub(super) dead: Vec<u64>,
    pub(super) gone: Vec<u64>,
}

/// What a round did to a merge.
#[derive(Debug)]
pub(super) enum After {
    Surveyed {
        living: Living,
        owed: usize,
    },
    Moved {
        output: Output,
        owed: usize,
    },
    /// Its output takes the place of its inputs; without entries it is no run.
    Ended {
        output: Output,
    },
    Stuck,
}

impl Memory {
    /// One that knows nothing: right for every question, but slow, because all of them go to the file.
    pub(crate) fn new(key: [u8; 16], sizes: Sizes) -> Self {
        let sizes = Sizes { page: sizes.page.clamp(1, page::ROOM), ..sizes };
        let state = State { tail: Tail::new(u64::MAX), ..State::default() };
        Self { key, sizes, state: RwLock::new(state) }
    }
    /// Keyed, so that nobody who chooses keys can choose hashes; the same for ever in one file.
    pub(super) fn hash(&self, kind: KindId, key: &str) -> u64 {
        let mut hasher = SipHasher13::new_with_key(&self.key);
        hasher.write(&kind.0.to_be_bytes());
        hasher.write(key.as_bytes());
        hasher.finish() >> (u64::BITS - self.sizes.hash_bits.clamp(1, u64::BITS))
    }
    /// A new job of the round that runs.
    pub(crate) fn add(&self, kind: KindId, key: &str, job: u64) {
        let hash = self.hash(kind, key);
        self.state.write().tail.push(Entry { hash, job });
    }
    /// The round is undone.
    pub(crate) fn undo(&self) {
        self.state.write().tail.undo();
    }
    /// The round is committed.
    pub(crate) fn commit(&self, done: Done) {
        self.state.write().take_over(done, &self.sizes);
    }
    /// What was read anew from the file.
    pub(crate) fn replace(&self, other: Self) {
        *self.state.write() = other.state.into_inner();
    }
}

impl State {
    fn take_over(&mut self, done: Done, sizes: &Sizes) {
        let Done { full, emptied, runs, merges, dead, gone } = done;
        match emptied {
            Some(from) => self.tail = Tail::new(from),
            None => self.tail.commit(full),
        }
        self.runs.extend(runs);
        let mut over = Vec::new();
        for (at, after) in merges {
            let merge = &mut self.merges[at];
            match after {
                After::Surveyed { living, owed } => (merge.living, merge.owed) = (living, owed),
                After::Moved { output, owed } => (merge.output, merge.owed) = (Some(output), owed),
                After::Stuck => merge.stuck = true,
                After::Ended { output } => {
                    over.push(at);
                    merge.inputs.iter().for_each(|run| drop(self.runs.remove(run)));
                    if output.entries == 0 {
                        self.runs.remove(&output.run);
                    } else if let Some(run) = self.runs.get_mut(&output.run) {
                        run.entries = output.entries;
                    }
                }
            }
        }
        over.into_iter().rev().for_each(|at| drop(self.merges.remove(at)));
        for run in dead {
            if let Some(run) = self.runs.get_mut(&run) {
                run.dead = true;
            }
        }
        gone.iter().for_each(|run| drop(self.runs.remove(run)));
        self.plan(sizes);
    }
    /// Whether a merge that goes on has this run as input or output.
    pub(super) fn is_merged(&self, run: u64) -> bool {
        self.merges.iter().any(|m| !m.stuck && m.has(run))
    }
    /// Begins the merges that are due: one for each class at a time, the oldest runs first.
    pub(super) fn plan(&mut self, sizes: &Sizes) {
        let mut free: BTreeMap<u32, Vec<u64>> = BTreeMap::new();
        for (id, run) in &self.runs {
            let taken = self.merges.iter().any(|m| m.has(*id));
            if !taken && !run.dead && !run.damaged {
                free.entry(sizes.class(run.entries)).or_default().push(*id);
            }
        }
        for (class, mut inputs) in free {
            let busy = self.merges.iter().any(|m| m.class == class && !m.stuck);
            if !busy && inputs.len() >= sizes.fan {
                inputs.truncate(sizes.fan);
                let merge = Merge::new(class, inputs, &self.runs, None);
                self.merges.push(merge);
            }
        }
    }
    /// A merge that was found begun.
    pub(super) fn carry_on(&mut self, inputs: Vec<u64>, output: Output, sizes: &Sizes) {
        let entries = self.runs.get(&output.run).map_or(0, |r| r.entries);
        let class = sizes.class(entries).saturating_sub(1);
        let merge = Merge::new(class, inputs, &self.runs, Some(output));
        self.merges.push(merge);
    }
}

impl Merge {
    fn new(class: u32, inputs: Vec<u64>, runs: &BTreeMap<u64, Run>, output: Option<Output>) -> Self {
        let of = |run: &u64| runs.get(run).map(|r| r.jobs.clone());
        let jobs = inputs.iter().filter_map(of).reduce(|a, b| a.start.min(b.start)..a.end.max(b.end));
        let jobs = jobs.unwrap_or(0..0);
        let living = Living::of(&jobs);
        // A run of which a page cannot be read is not merged again before it is gone. Nor is it written on: if the damaged page is the
        // last one, nobody knows how far the merge had come, and what goes on from the page before would hide it.
        let unsound = |run: &u64| runs.get(run).is_none_or(|r| r.damaged);
        let stuck = inputs.iter().chain(output.as_ref().map(|o| &o.run)).any(unsound);
        Self { class, inputs, jobs, living, output, owed: 0, stuck }
    }
    /// Whether a run is one of its inputs, or its output.
    fn has(&self, run: u64) -> bool {
        self.inputs.contains(&run) || self.output.is_some_and(|o| o.run == run)
    }
    /// How many entries its output has at most.
    pub(super) fn entries(&self, runs: &BTreeMap<u64, Run>) -> u64 {
        self.inputs.iter().filter_map(|run| runs.get(run)).map(|r| r.entries).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Eight runs of a class are one of the next, also if each is a little longer than the tail.
    #[test]
    fn a_merged_run_is_of_the_next_class() {
        let sizes = Sizes { tail: 100, fan: 8, ..Sizes::default() };
        let classes = [0, 99, 100, 799, 800, 6_399, 6_400, 51_200].map(|n| sizes.class(n));
        assert_eq!(classes, [0, 0, 0, 0, 1, 1, 2, 3]);
    }

    /// A merge is found begun whose output has a damaged page, or one of its inputs: it is not carried on.
    #[test]
    fn a_merge_with_a_damaged_run_rests() {
        let run = |damaged| Run { jobs: 1..9, entries: 8, filter: None, damaged, dead: false };
        for damaged in 0..4 {
            let runs: BTreeMap<u64, Run> = (1..4).map(|id| (id, run(id == damaged))).collect();
            let output = Output { run: 3, last: None, entries: 4 };
            let merge = Merge::new(0, vec![1, 2], &runs, Some(output));
            assert_eq!(merge.stuck, damaged != 0, "run {damaged} is damaged");
        }
    }

    /// The hash is part of the format: the same key and intent give the same hash in every version and on every machine.
    #[test]
    fn the_hash_of_an_intent_stays_what_it_is() {
        let memory = Memory::new(*b"0123456789abcdef", Sizes::default());
        let hashes = [(1, "order-1"), (2, "order-1"), (1, "order-2"), (1, "")].map(|(k, s)| memory.hash(KindId(k), s));
        let expected = [0xfb13_a2cb_154e_c8f2, 0xd616_9e84_2073_80d8, 0x2644_8887_e5db_7eba, 0x726e_4023_ffce_628e];
        assert_eq!(hashes, expected);
        let few = Memory::new(*b"0123456789abcdef", Sizes { hash_bits: 4, ..Sizes::default() });
        assert_eq!(few.hash(KindId(1), "order-1"), hashes[0] >> 60);
    }
}
