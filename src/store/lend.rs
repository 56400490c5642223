//! The writer's transaction, lent to app code: what a closure does beside the queue's own rows, and what is left when it fails.
//! Keeps the promise that a closure which panics or keeps a table open spoils its own operation and nothing else. Called through
//! [`Write::app`] by the operations that carry app code.

use super::app::{AppRun, AppWrite, SLOW, panic_text};
use super::error::StoreError;
use super::own::{AppTable, Own};
use super::write::Write;
use crate::clock::Stopwatch;
use crate::model::id::{JobId, KindId};
use crate::model::job::{Intent, JobRecord, JobRow};
use crate::model::outbox::{OutboxRow, Remembered};
use crate::rules::Change;
use std::panic::{AssertUnwindSafe, catch_unwind};

impl Write<'_> {
    /// Runs app code. After `Panicked` or `Leaked` what the operation wrote is undone by the writer; nothing else has to be
    /// done about it. The transaction stays outside the catch: one that is dropped while unwinding would leak pages.
    pub fn app<R>(&mut self, name: &str, f: &mut dyn FnMut(AppWrite<'_>) -> R) -> AppRun<R> {
        let watch = Stopwatch::start();
        let written = self.touches();
        let txn = self.rows.tx;
        let ended = catch_unwind(AssertUnwindSafe(|| f(AppWrite { txn, own: self })));
        let wrote = self.touches() != written;
        if watch.elapsed() > SLOW {
            self.slow.push((name.to_owned(), watch.elapsed()));
        }
        let value = match ended {
            Ok(value) => value,
            Err(panic) => {
                self.spoiled = true;
                self.app_tables.clear();
                return AppRun::Panicked(panic_text(panic));
            }
        };
        // While the value lives: it may be what keeps the table open.
        let tx = self.rows.tx;
        match self.app_tables.drain(..).find(|t| (t.is_open)(tx, &t.name)) {
            None => AppRun::Done { value, wrote },
            Some(table) => {
                self.spoiled = true;
                AppRun::Leaked(table.name)
            }
        }
    }
}

impl Own for Write<'_> {
    fn kind(&mut self, name: &str) -> Result<Option<KindId>, StoreError> {
        (**self).kind(name)
    }
    fn add_kind(&mut self, name: &str) -> Result<KindId, StoreError> {
        Write::add_kind(self, name)
    }
    fn intent(&mut self, kind: KindId, key: &str) -> Result<Option<Intent>, StoreError> {
        (**self).intent(kind, key)
    }
    fn record(&mut self, id: JobId) -> Result<Option<JobRecord>, StoreError> {
        (**self).record(id)
    }
    fn next_id(&mut self) -> JobId {
        Write::next_id(self)
    }
    fn insert(&mut self, row: &JobRow, change: &Change) -> Result<(), StoreError> {
        Write::insert(self, row, change)
    }
    fn app_table(&mut self, table: AppTable) {
        self.touch();
        self.app_tables.push(table);
    }
    fn remembered(&mut self, topic: &str, id: &str) -> Result<Option<Remembered>, StoreError> {
        (**self).remembered(topic, id)
    }
    fn add_message(&mut self, row: &OutboxRow, digest: [u8; 16]) -> Result<u64, StoreError> {
        Write::add_message(self, row, digest)
    }
}
