//! What the fuzzing functions of `testkit` have to know of the file's layout: the keys of tables, and rows of a closed file that can be
//! damaged behind the database's own checksums. Nothing of it is used by a store.

use super::backend::Image;
use super::bits;
use super::error::StoreError;
use super::schema::{identity_key, split_identity_key};
use crate::model::id::KindId;
use redb::{Builder, Database, Key, ReadableDatabase, ReadableTable, ReadableTableMetadata, TableDefinition};

type Bytes = &'static [u8];

/// Runs `$do` with the name of every table whose values are records, packs or pages, each with the type of its keys.
macro_rules! each_table {
    ($name:ident: $key:ident => $do:expr) => {
        each_table!(@ $name $key $do;
            u64 = "q/job", u64 = "q/state", u64 = "q/output", u64 = "q/letter", u64 = "q/act", u64 = "q/id-fresh",
            u64 = "q/id-run", (u64, u64, u64) = "q/id-page", (u64, &'static str, &'static str) = "q/effect",
            (u64, &'static str) = "q/memo", (u64, u32) = "q/journal", (&'static str, u64) = "q/message",
            (&'static str, &'static str, u64) = "q/unsent", (&'static str, &'static str) = "q/sent", Bytes = "q/id")
    };
    (@ $name:ident $key:ident $do:expr; $($type:ty = $table:literal),*) => {$({
        type $key = $type;
        let $name = $table;
        $do
    })*};
}

fn open(image: &[u8]) -> Result<(Database, Image), StoreError> {
    let image = Image::of(image);
    Ok((Builder::new().set_cache_size(1 << 20).create_with_backend(image.clone())?, image))
}

/// Every stored value of a closed file.
pub fn values(file: &[u8]) -> Result<Vec<Vec<u8>>, StoreError> {
    let db = open(file)?.0;
    let tx = db.begin_read()?;
    let mut all = Vec::new();
    each_table!(name: K => {
        for row in tx.open_table(TableDefinition::<K, Bytes>::new(name))?.iter()? {
            all.push(row?.1.value().to_vec());
        }
    });
    Ok(all)
}

/// A closed file after `change` was made to its `nth` value, counted as in [`values`], with all checksums of the database right.
pub fn with_value_changed(file: &[u8], nth: usize, change: impl FnOnce(&mut Vec<u8>)) -> Result<Vec<u8>, StoreError> {
    let (db, image) = open(file)?;
    let tx = db.begin_write()?;
    let (mut place, mut change) = (Place(Some(nth)), Some(change));
    each_table!(name: K => {
        let mut table = tx.open_table(TableDefinition::<K, Bytes>::new(name))?;
        if let Some(nth) = place.within(table.len()?)
            && let (Some((key, mut value)), Some(change)) = (row(&table, nth)?, change.take())
        {
            change(&mut value);
            table.insert(<K as redb::Value>::from_bytes(&key), value.as_slice())?;
        }
    });
    tx.commit()?;
    db.close()?;
    Ok(image.bytes())
}

/// How many values are still to be passed by; none once the place was found.
struct Place(Option<usize>);

impl Place {
    /// Where it is, if it is in a table with so many rows.
    fn within(&mut self, rows: u64) -> Option<usize> {
        let (nth, rows) = (self.0?, usize::try_from(rows).unwrap_or(usize::MAX));
        self.0 = nth.checked_sub(rows);
        (nth < rows).then_some(nth)
    }
}

/// A key, as the database writes it, and a value.
type Row = (Vec<u8>, Vec<u8>);

fn row<K: Key + 'static>(table: &impl ReadableTable<K, Bytes>, nth: usize) -> Result<Option<Row>, StoreError> {
    let Some(row) = table.iter()?.nth(nth) else { return Ok(None) };
    let (key, value) = row?;
    Ok(Some((K::as_bytes(&key.value()).as_ref().to_vec(), value.value().to_vec())))
}

/// The keys of two intents: each comes back, and they stand in the table as kind and key do.
pub fn intent_keys(a: (KindId, &str), b: (KindId, &str)) {
    let [of_a, of_b] = [a, b].map(|(kind, key)| identity_key(kind, key));
    for ((kind, key), bytes) in [(a, &of_a), (b, &of_b)] {
        let read = split_identity_key(bytes);
        assert!(matches!(&read, Ok((k, text)) if *k == kind && text == key), "{kind:?} {key:?}: {read:?}");
    }
    assert_eq!(of_a.cmp(&of_b), a.cmp(&b), "{a:?} {b:?}");
}

/// A set of jobs as the bits of a word: each is a number of that word, once, in order.
pub fn words(job: u64, bits: u64) {
    let word = bits::word_of(job);
    let all: Vec<u64> = bits::numbers(word, bits).collect();
    assert_eq!(all.len(), bits.count_ones() as usize);
    assert!(
        all.is_sorted_by(|a, b| a < b) && all.iter().all(|n| bits::word_of(*n) == word),
        "{word} {bits:b}: {all:?}"
    );
    assert_eq!(bits::numbers(word, u64::MAX).filter(|n| *n == job).count(), 1);
}
