//! The part of the writer's own rows that an enqueue needs, as a trait object: so that a transaction closure of the app can enqueue
//! without naming the lifetimes of the round.

use super::error::StoreError;
use crate::model::id::{JobId, KindId};
use crate::model::job::{Intent, JobRecord, JobRow};
use crate::model::outbox::{OutboxRow, Remembered};
use crate::rules::Change;
use redb::WriteTransaction;

/// What an enqueue reads and writes in the round's transaction.
pub trait Own {
    /// The number of a kind, if it has one.
    fn kind(&mut self, name: &str) -> Result<Option<KindId>, StoreError>;
    /// The number of a kind, new or existing.
    fn add_kind(&mut self, name: &str) -> Result<KindId, StoreError>;
    /// What is known of an intent.
    fn intent(&mut self, kind: KindId, key: &str) -> Result<Option<Intent>, StoreError>;
    /// Where a job stands.
    fn record(&mut self, id: JobId) -> Result<Option<JobRecord>, StoreError>;
    /// The next number.
    fn next_id(&mut self) -> JobId;
    /// Writes a new job; from now on it is that of its intent.
    fn insert(&mut self, row: &JobRow, change: &Change) -> Result<(), StoreError>;
    /// An app table was opened for writing.
    fn app_table(&mut self, table: AppTable);
    /// The memory of a message's id.
    fn remembered(&mut self, topic: &str, id: &str) -> Result<Option<Remembered>, StoreError>;
    /// Writes a new message under the next number of its topic.
    fn add_message(&mut self, row: &OutboxRow, digest: [u8; 16]) -> Result<u64, StoreError>;
}

/// An app table that was opened, and how to see whether it still is: opening it a second time is refused.
pub struct AppTable {
    pub(super) name: String,
    pub(super) is_open: fn(&WriteTransaction, &str) -> bool,
}
