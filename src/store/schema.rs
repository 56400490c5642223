//! The tables of the file and the one way to open them: on first use, then kept for the whole transaction.
//! Used by `read` and `write`. What every job has is packed, neighbours in time side by side (`pack`, `bits`); what only some have
//! is a row per fact.
#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "redb's and std's enums may grow: what is new is handled as the rest"
)]

use super::error::StoreError;
use redb::{
    Key, ReadTransaction, ReadableTable, ReadableTableMetadata, Table, TableDefinition, TableError, Value,
    WriteTransaction,
};
use std::cell::OnceCell;

/// The newest format this version reads and writes.
pub(super) const FORMAT: u32 = 3;
/// The oldest one that it reads: no release ever wrote formats 1 and 2, in which every job had rows, or a wide record, and an intent, of
/// its own.
pub(super) const OLDEST: u32 = 3;

/// Tables with this prefix are ours.
pub(super) const PREFIX: &str = "q/";

/// Names in the meta table that the store keeps for itself; the engine's settings live under [`SETTING`].
pub(super) const META_FORMAT: &str = "format";
pub(super) const META_INSTANCE: &str = "instance";
pub(super) const META_EPOCH: &str = "epoch";
pub(super) const META_LIVE: &str = "live";
pub(super) const META_HASH: &str = "hash";
/// Prefix of the engine's own settings.
pub(super) const SETTING: &str = "s/";

/// The setting that is left behind when an older copy of the file may have been put back; the engine removes it.
pub(super) const REWOUND: &str = "rewound";

/// A kind of transaction that tables can be opened in.
pub trait Source: sealed::Sealed {
    /// An open table.
    #[doc(hidden)]
    type Table<'t, K: Key + 'static, V: Value + 'static>: ReadableTable<K, V> + ReadableTableMetadata
    where
        Self: 't;
    #[doc(hidden)]
    fn open<'t, K: Key + 'static, V: Value + 'static>(
        &'t self,
        table: TableDefinition<'static, K, V>,
    ) -> Result<Self::Table<'t, K, V>, TableError>;
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for redb::ReadTransaction {}
    impl Sealed for redb::WriteTransaction {}
}

impl Source for ReadTransaction {
    type Table<'t, K: Key + 'static, V: Value + 'static> = redb::ReadOnlyTable<K, V>;
    fn open<'t, K: Key + 'static, V: Value + 'static>(
        &'t self,
        table: TableDefinition<'static, K, V>,
    ) -> Result<Self::Table<'t, K, V>, TableError> {
        self.open_table(table)
    }
}

impl Source for WriteTransaction {
    type Table<'t, K: Key + 'static, V: Value + 'static> = Table<'t, K, V>;
    fn open<'t, K: Key + 'static, V: Value + 'static>(
        &'t self,
        table: TableDefinition<'static, K, V>,
    ) -> Result<Self::Table<'t, K, V>, TableError> {
        self.open_table(table)
    }
}

/// A table that is opened when it is first needed: a round that only enqueues never touches the other twelve.
pub(super) struct Lazy<'t, S: Source + 't, K: Key + 'static, V: Value + 'static> {
    table: TableDefinition<'static, K, V>,
    open: OnceCell<S::Table<'t, K, V>>,
}

impl<'t, S: Source, K: Key + 'static, V: Value + 'static> Lazy<'t, S, K, V> {
    const fn new(table: TableDefinition<'static, K, V>) -> Self {
        Self { table, open: OnceCell::new() }
    }
    pub(super) fn read(&self, tx: &'t S) -> Result<&S::Table<'t, K, V>, StoreError> {
        if let Some(open) = self.open.get() {
            return Ok(open);
        }
        let opened = tx.open(self.table).map_err(ours)?;
        Ok(self.open.get_or_init(|| opened))
    }
    pub(super) fn write(&mut self, tx: &'t S) -> Result<&mut S::Table<'t, K, V>, StoreError> {
        self.read(tx)?;
        self.open.get_mut().ok_or_else(|| StoreError::Bug("a table that was just opened is not open".to_owned()))
    }
}

/// A table of ours that is missing or of another type is damage, not a mistake of the app.
fn ours(e: TableError) -> StoreError {
    match e {
        TableError::Storage(e) => e.into(),
        other => StoreError::damaged(other.to_string()),
    }
}

type Bytes = &'static [u8];

macro_rules! tables {
    ($($(#[$doc:meta])* $field:ident: $name:literal, $key:ty => $value:ty;)*) => {
        /// Every table of ours, opened on first use.
        pub(super) struct Tables<'t, S: Source + 't> {
            $($(#[$doc])* pub(super) $field: Lazy<'t, S, $key, $value>,)*
        }
        impl<S: Source> Tables<'_, S> {
            pub(super) fn new() -> Self {
                Self { $($field: Lazy::new(TableDefinition::new($name)),)* }
            }
        }
        /// Their names.
        const NAMES: &[&str] = &[$($name),*];
        impl<'t> Tables<'t, WriteTransaction> {
            /// Opens all of them, which creates them: a reader may count on every one.
            pub(super) fn create(&mut self, tx: &'t WriteTransaction) -> Result<(), StoreError> {
                $(self.$field.write(tx)?;)*
                Ok(())
            }
            /// Creates those that an older version of the same format did not have yet.
            pub(super) fn complete(&mut self, tx: &'t WriteTransaction) -> Result<bool, StoreError> {
                let found: Vec<String> = tx.list_tables()?.map(|t| redb::TableHandle::name(&t).to_owned()).collect();
                let missing = NAMES.iter().any(|name| !found.iter().any(|f| f == name));
                if missing {
                    self.create(tx)?;
                }
                Ok(missing)
            }
        }
    };
}

tables! {
    /// Our own settings.
    meta: "q/meta", &'static str => Bytes;
    /// Name of a kind -> its number.
    kind: "q/kind", &'static str => u32;
    /// First job of a pack -> what was asked, of all in it.
    job: "q/job", u64 => Bytes;
    /// Job / 64 -> where they stand, a pack.
    state: "q/state", u64 => Bytes;
    /// Kind, priority, job / 64 -> ready ones that never were anything else, as bits: their number is their ticket.
    ready: "q/ready", (u32, u8, u64) => u64;
    /// Kind, priority, ticket, job: ready ones that came back.
    again: "q/again", (u32, u8, u64, u64) => ();
    /// Due (ms), job: delayed and waiting ones.
    timer: "q/timer", (u64, u64) => ();
    /// Job / 64 -> running ones, as bits.
    run: "q/run", u64 => u64;
    /// Kind (4 bytes, big endian) and key -> memory of an intent whose job has no rows any more.
    id: "q/id", Bytes => Bytes;
    /// First job -> entries of the index of intents, by job: those that are in no run yet.
    fresh: "q/id-fresh", u64 => Bytes;
    /// Number of a run -> its card.
    id_run: "q/id-run", u64 => Bytes;
    /// Run, hash, job of the first entry -> entries of the run, by hash.
    id_page: "q/id-page", (u64, u64, u64) => Bytes;
    /// Job, name, part.
    effect: "q/effect", (u64, &'static str, &'static str) => Bytes;
    /// Job, name.
    memo: "q/memo", (u64, &'static str) => Bytes;
    /// Job, number from 0.
    journal: "q/journal", (u64, u32) => Bytes;
    /// Job -> what `finish` left behind.
    output: "q/output", u64 => Bytes;
    /// Job -> its letter.
    letter: "q/letter", u64 => Bytes;
    /// Job -> its revision: letters that nobody is known to have been told of.
    untold: "q/untold", u64 => u32;
    /// When (ms, in whole seconds), job / 64 -> ended ones whose rows may go, as bits.
    prune: "q/prune", (u64, u64) => u64;
    /// When (ms), kind and key: memories that may go.
    tomb: "q/tomb", (u64, Bytes) => ();
    /// Number -> what a person did; outlives the job's rows.
    act: "q/act", u64 => Bytes;
    /// Jobs that are compensated: one of their undo jobs is not over.
    undo: "q/undo", u64 => ();
    /// Pointer, number from 0: pieces of long values.
    chunk: "q/chunk", (u64, u32) => Bytes;
    /// Topic -> the highest number handed out in it.
    topic: "q/topic", &'static str => u64;
    /// Topic, number: a message as it was handed in.
    message: "q/message", (&'static str, u64) => Bytes;
    /// Topic, ordering key, number: messages on their way, and those that their key waits for.
    unsent: "q/unsent", (&'static str, &'static str, u64) => Bytes;
    /// Topic, number: stuck messages that nothing waits for.
    aside: "q/aside", (&'static str, u64) => Bytes;
    /// Topic, id of a message -> memory of it.
    sent: "q/sent", (&'static str, &'static str) => Bytes;
    /// When (ms), topic, id: messages and memories that may go.
    fade: "q/fade", (u64, &'static str, &'static str) => ();
}

/// The key of an intent.
pub(super) fn identity_key(kind: crate::model::id::KindId, key: &str) -> Vec<u8> {
    [&kind.0.to_be_bytes(), key.as_bytes()].concat()
}

/// Back from the key of an intent.
pub(super) fn split_identity_key(bytes: &[u8]) -> Result<(crate::model::id::KindId, String), StoreError> {
    let (kind, key) =
        bytes.split_first_chunk::<4>().ok_or_else(|| StoreError::corrupt("an intent's key is too short"))?;
    let key = std::str::from_utf8(key).map_err(|e| StoreError::corrupt(format!("an intent's key: {e}")))?;
    Ok((crate::model::id::KindId(u32::from_be_bytes(*kind)), key.to_owned()))
}
