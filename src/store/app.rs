//! What app closures see of the database: their own tables, never ours. Keeps the promise that a closure that fails, panics or
//! keeps a table open leaves no trace. Called by the operations of the engine through [`Write::app`](super::Write::app).

use super::error::StoreError;
use super::own::{AppTable, Own};
use super::schema::PREFIX;
use redb::{
    Key, MultimapTable, MultimapTableDefinition, ReadOnlyMultimapTable, ReadOnlyTable, ReadTransaction, Table,
    TableDefinition, TableError, Value, WriteTransaction,
};
use std::any::Any;
use std::time::Duration;

/// A closure that holds the writer for longer is named in an event: everybody else waits for it.
pub(super) const SLOW: Duration = Duration::from_secs(5);

/// The app's tables inside a round's transaction, and the queue's own rows beside them. One lifetime, so that what is built on
/// it has one too.
pub struct AppWrite<'x> {
    pub(super) txn: &'x WriteTransaction,
    pub(super) own: &'x mut (dyn Own + 'x),
}

impl<'x> AppWrite<'x> {
    /// Opens one of the app's tables, creating it if there is none; counts as a write.
    pub fn open_table<K: Key + 'static, V: Value + 'static>(
        &mut self,
        table: TableDefinition<'_, K, V>,
    ) -> Result<Table<'x, K, V>, StoreError> {
        let name = redb::TableHandle::name(&table).to_owned();
        refuse_ours(&name)?;
        let opened = self.txn.open_table(table)?;
        self.own.app_table(AppTable { name, is_open: table_is_open::<K, V> });
        Ok(opened)
    }
    /// Opens one of the app's multimap tables, creating it if there is none; counts as a write.
    pub fn open_multimap_table<K: Key + 'static, V: Key + 'static>(
        &mut self,
        table: MultimapTableDefinition<'_, K, V>,
    ) -> Result<MultimapTable<'x, K, V>, StoreError> {
        let name = redb::MultimapTableHandle::name(&table).to_owned();
        refuse_ours(&name)?;
        let opened = self.txn.open_multimap_table(table)?;
        self.own.app_table(AppTable { name, is_open: multimap_is_open::<K, V> });
        Ok(opened)
    }
    /// The queue's own rows in the same transaction, so that an enqueue inside the closure shares its fate.
    pub fn own(&mut self) -> &mut (dyn Own + 'x) {
        self.own
    }
}

/// The app's tables in a read transaction.
pub struct AppRead<'a> {
    pub(super) tx: &'a ReadTransaction,
}

impl AppRead<'_> {
    /// Opens one of the app's tables.
    pub fn open_table<K: Key + 'static, V: Value + 'static>(
        &self,
        table: TableDefinition<'_, K, V>,
    ) -> Result<ReadOnlyTable<K, V>, StoreError> {
        refuse_ours(redb::TableHandle::name(&table))?;
        Ok(self.tx.open_table(table)?)
    }
    /// Opens one of the app's multimap tables.
    pub fn open_multimap_table<K: Key + 'static, V: Key + 'static>(
        &self,
        table: MultimapTableDefinition<'_, K, V>,
    ) -> Result<ReadOnlyMultimapTable<K, V>, StoreError> {
        refuse_ours(redb::MultimapTableHandle::name(&table))?;
        Ok(self.tx.open_multimap_table(table)?)
    }
}

/// How an app closure ended.
#[derive(Debug)]
#[must_use]
pub enum AppRun<R> {
    /// It returned.
    Done {
        /// What it returned.
        value: R,
        /// It may have written: an app table was opened or the queue's own rows changed.
        wrote: bool,
    },
    /// It panicked, with this text; what it wrote is undone.
    Panicked(String),
    /// It kept this table open; what it wrote is undone.
    Leaked(String),
}

/// What a panic said. An odd payload is not dropped: its `Drop` could panic again, here, where nobody expects it.
pub(super) fn panic_text(panic: Box<dyn Any + Send>) -> String {
    let text = panic.downcast_ref::<&str>().map(|s| (*s).to_owned());
    match text.or_else(|| panic.downcast_ref::<String>().cloned()) {
        Some(text) => text,
        None => {
            std::mem::forget(panic);
            "no text".to_owned()
        }
    }
}

fn table_is_open<K: Key + 'static, V: Value + 'static>(tx: &WriteTransaction, name: &str) -> bool {
    matches!(tx.open_table(TableDefinition::<K, V>::new(name)), Err(TableError::TableAlreadyOpen(..)))
}

fn multimap_is_open<K: Key + 'static, V: Key + 'static>(tx: &WriteTransaction, name: &str) -> bool {
    matches!(tx.open_multimap_table(MultimapTableDefinition::<K, V>::new(name)), Err(TableError::TableAlreadyOpen(..)))
}

fn refuse_ours(name: &str) -> Result<(), StoreError> {
    if name.starts_with(PREFIX) { Err(StoreError::ReservedTable(name.to_owned())) } else { Ok(()) }
}
