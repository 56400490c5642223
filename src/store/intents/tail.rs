//! The newest entries of the index, in memory, in the order of their jobs. Keeps the promise that a round which is undone leaves
//! nothing here, and that intents enqueued in one round see each other. Rows of `q/id-fresh` say the same on disk.

use super::page::Entry;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// Entries in the order of their jobs, and for each hash the way back through them.
#[derive(Debug, Default)]
pub(super) struct Tail {
    /// Entries of earlier jobs are in runs.
    from: u64,
    log: Vec<Entry>,
    /// For each entry: the one before it with the same hash.
    before: Vec<Option<usize>>,
    /// The last entry of each hash.
    newest: HashMap<u64, usize, BuildHasherDefault<Hashed>>,
    /// So many of them belong to rounds that are committed.
    durable: usize,
    /// The row of `q/id-fresh` that still has room begins with this entry.
    row: usize,
}

/// What is looked up is a keyed hash already.
#[derive(Clone, Copy, Debug, Default)]
struct Hashed(u64);

impl Hasher for Hashed {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.0 = self.0.rotate_left(8) ^ u64::from(*byte));
    }
    fn write_u64(&mut self, n: u64) {
        self.0 = n;
    }
}

impl Tail {
    /// An empty one that takes over at this number.
    pub(super) fn new(from: u64) -> Self {
        Self { from, ..Self::default() }
    }
    pub(super) fn from(&self) -> u64 {
        self.from
    }
    pub(super) fn push(&mut self, entry: Entry) {
        let at = self.log.len();
        self.log.push(entry);
        self.before.push(self.newest.insert(entry.hash, at));
    }
    /// The jobs with this hash, the newest first.
    pub(super) fn find(&self, hash: u64) -> impl Iterator<Item = u64> {
        let mut at = self.newest.get(&hash).copied();
        std::iter::from_fn(move || {
            let now = at?;
            at = self.before[now];
            Some(self.log[now].job)
        })
    }
    pub(super) fn len(&self) -> usize {
        self.log.len()
    }
    /// Entries of committed rounds, and those of the round that runs.
    pub(super) fn parts(&self) -> (&[Entry], &[Entry]) {
        self.log.split_at(self.durable)
    }
    /// Entries of the row that still has room, and of those that come after it.
    pub(super) fn unwritten(&self) -> &[Entry] {
        &self.log[self.row..]
    }
    /// The round that runs is committed; these many entries stand in rows that are full.
    pub(super) fn commit(&mut self, full: usize) {
        self.durable = self.log.len();
        self.row += full;
    }
    /// Everything is durable, and the next entry begins a new row.
    pub(super) fn settle(&mut self) {
        self.durable = self.log.len();
        self.row = self.durable;
    }
    /// The round that runs is undone.
    pub(super) fn undo(&mut self) {
        for at in (self.durable..self.log.len()).rev() {
            match self.before[at] {
                Some(before) => self.newest.insert(self.log[at].hash, before),
                None => self.newest.remove(&self.log[at].hash),
            };
        }
        self.log.truncate(self.durable);
        self.before.truncate(self.durable);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    /// Rounds with many jobs of few hashes are committed or undone at random: afterwards each hash has exactly its jobs, the newest
    /// first.
    #[test]
    fn an_undone_round_leaves_nothing_in_the_tail() {
        let mut rng = fastrand::Rng::with_seed(9);
        let (mut tail, mut model) = (Tail::new(1), BTreeMap::<u64, Vec<u64>>::new());
        let mut undone = 0;
        for round in 0..300 {
            let mut news = Vec::new();
            for n in 0..rng.u64(..6) {
                let entry = Entry { hash: rng.u64(..9), job: round * 10 + n };
                tail.push(entry);
                news.push(entry);
                assert_eq!(tail.find(entry.hash).next(), Some(entry.job));
            }
            assert_eq!(tail.parts().1, news);
            if rng.bool() {
                tail.commit(0);
                news.iter().for_each(|e| model.entry(e.hash).or_default().insert(0, e.job));
            } else {
                tail.undo();
                undone += news.len();
            }
            for hash in 0..9 {
                let found: Vec<u64> = tail.find(hash).collect();
                assert_eq!(found, model.get(&hash).cloned().unwrap_or_default(), "round {round}");
            }
        }
        assert!(undone > 200 && tail.len() > 200);
    }
}
