//! Sets of jobs as bits: one row of a table stands for 64 neighbouring numbers, so that an index of jobs which move together costs a
//! row now and then instead of one each.
//!
//! Keeps the promise that an index follows its record in the same transaction: what a transaction changed is seen by its own reads
//! at once and written before its commit. Used by `read` and `write`.

use super::error::StoreError;
use redb::{Key, ReadableTable, Table, Value};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ops::RangeBounds;

/// The key of a row; its last part is the number of the word.
pub(super) trait WordKey: Key + Copy + Ord + for<'a> Value<SelfType<'a> = Self> + 'static {}

impl<K: Key + Copy + Ord + for<'a> Value<SelfType<'a> = Self> + 'static> WordKey for K {}

/// How many numbers one row stands for.
const WORD: u64 = 64;

/// The word that a number belongs to.
pub(super) fn word_of(id: u64) -> u64 {
    id / WORD
}

fn bit_of(id: u64) -> u64 {
    1 << (id % WORD)
}

/// The numbers of a word, in order.
pub(super) fn numbers(word: u64, mut bits: u64) -> impl Iterator<Item = u64> {
    std::iter::from_fn(move || {
        let lowest = (bits != 0).then(|| bits.trailing_zeros())?;
        bits &= bits - 1;
        Some(word * WORD + u64::from(lowest))
    })
}

/// A table of words, with those that one transaction has changed.
#[derive(Debug)]
pub(super) struct Bits<K> {
    /// Each as it is now and as it is in the table.
    words: Vec<(K, u64, u64)>,
    /// By key: its place in `words`.
    places: BTreeMap<K, usize>,
    /// The place that was looked up last: neighbours in time are neighbours here.
    last: usize,
}

impl<K> Default for Bits<K> {
    fn default() -> Self {
        Self { words: Vec::new(), places: BTreeMap::new(), last: 0 }
    }
}

impl<K: WordKey> Bits<K> {
    /// Puts a number into the set or takes it out; `false` if it was in it, or out of it, already.
    pub(super) fn put(
        &mut self,
        table: &impl ReadableTable<K, u64>,
        key: K,
        id: u64,
        member: bool,
    ) -> Result<bool, StoreError> {
        if self.words.get(self.last).is_none_or(|(k, ..)| *k != key) {
            self.last = match self.places.entry(key) {
                Entry::Occupied(o) => *o.get(),
                Entry::Vacant(v) => {
                    let stored = table.get(key)?.map_or(0, |w| w.value());
                    self.words.push((key, stored, stored));
                    *v.insert(self.words.len() - 1)
                }
            };
        }
        let (_, now, _) = &mut self.words[self.last];
        let before = *now;
        *now = if member { before | bit_of(id) } else { before & !bit_of(id) };
        Ok(*now != before)
    }
    /// The words of a range that are not empty, in order, until `each` says `false`.
    pub(super) fn scan(
        &self,
        table: &impl ReadableTable<K, u64>,
        range: impl RangeBounds<K> + Clone,
        mut each: impl FnMut(K, u64) -> bool,
    ) -> Result<(), StoreError> {
        let mut ours = self.places.range(range.clone()).map(|(k, place)| (*k, self.words[*place].1)).peekable();
        let mut tell = |key, bits| bits == 0 || each(key, bits);
        for row in table.range::<K>(range)? {
            let (key, stored) = row?;
            let key = key.value();
            while let Some((ours, bits)) = ours.next_if(|(k, _)| *k < key) {
                if !tell(ours, bits) {
                    return Ok(());
                }
            }
            let bits = ours.next_if(|(k, _)| *k == key).map_or(stored.value(), |(_, bits)| bits);
            if !tell(key, bits) {
                return Ok(());
            }
        }
        // The rest of ours has no row yet.
        let _ended = ours.all(|(key, bits)| tell(key, bits));
        Ok(())
    }
    /// How many numbers are in a range of words.
    pub(super) fn count(
        &self,
        table: &impl ReadableTable<K, u64>,
        range: impl RangeBounds<K> + Clone,
    ) -> Result<u64, StoreError> {
        let mut n = 0;
        self.scan(table, range, |_, bits| {
            n += u64::from(bits.count_ones());
            true
        })?;
        Ok(n)
    }
    /// Writes what was changed; an empty word has no row.
    pub(super) fn flush(&mut self, table: &mut Table<'_, K, u64>) -> Result<(), StoreError> {
        for place in self.places.values() {
            let (key, now, stored) = &mut self.words[*place];
            if now == stored {
                continue;
            }
            if *now == 0 {
                table.remove(*key)?;
            } else {
                table.insert(*key, *now)?;
            }
            *stored = *now;
        }
        Ok(())
    }
    /// Whether something is to be written.
    pub(super) fn is_dirty(&self) -> bool {
        self.words.iter().any(|(_, now, stored)| now != stored)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use redb::{ReadableTableMetadata, TableDefinition};
    use std::collections::BTreeSet;

    const TABLE: TableDefinition<'_, (u64, u64), u64> = TableDefinition::new("t");

    /// Numbers come and go at random over several transactions: every read, before and after the words are written, sees exactly
    /// the set, in order, from any place on; and nothing is left of an empty one.
    #[test]
    fn a_set_of_bits_is_a_set() {
        let db = redb::Builder::new().create_with_backend(redb::backends::InMemoryBackend::new()).unwrap();
        let mut rng = fastrand::Rng::with_seed(5);
        let mut model = BTreeSet::new();
        let mut read = 0;
        for round in 0..60 {
            let tx = db.begin_write().unwrap();
            let mut table = tx.open_table(TABLE).unwrap();
            let mut bits = Bits::default();
            for _ in 0..rng.usize(..40) {
                let (group, id) = (rng.u64(..3), rng.u64(1..400));
                // In the last rounds everything goes.
                let member = round < 40 && rng.bool();
                let changed = bits.put(&table, (group, word_of(id)), id, member).unwrap();
                assert_eq!(changed, if member { model.insert((group, id)) } else { model.remove(&(group, id)) });
            }
            if rng.bool() {
                bits.flush(&mut table).unwrap();
                assert!(!bits.is_dirty());
            }
            for from in [(0, 0), (1, 0), (1, 3), (2, 6)] {
                let mut seen = Vec::new();
                bits.scan(&table, from.., |(group, word), w| {
                    seen.extend(numbers(word, w).map(|id| (group, id)));
                    true
                })
                .unwrap();
                let expected: Vec<_> = model.range((from.0, from.1 * WORD)..).copied().collect();
                assert_eq!(seen, expected, "round {round} from {from:?}");
                assert_eq!(bits.count(&table, from..).unwrap(), expected.len() as u64);
                read += seen.len();
            }
            bits.flush(&mut table).unwrap();
            drop(table);
            tx.commit().unwrap();
        }
        assert!(read > 1_000, "only {read} numbers were read");
        let tx = db.begin_write().unwrap();
        let mut table = tx.open_table(TABLE).unwrap();
        let mut bits = Bits::default();
        for (group, id) in model {
            assert!(bits.put(&table, (group, word_of(id)), id, false).unwrap());
        }
        bits.flush(&mut table).unwrap();
        assert_eq!(table.len().unwrap(), 0);
    }
}
