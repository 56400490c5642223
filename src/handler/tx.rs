//! What a transaction closure is given: app tables and follow-up jobs, in one redb transaction with the queue's own rows.

use super::enqueue::{self, Spec};
use super::job::Job;
use super::outbox::{self, Outgoing};
use super::shared::{Changed, Did, Shared};
use crate::error::Error;
use crate::model::job::Enqueued;
use crate::model::outbox::{Outboxed, TopicNews};
use crate::rules::admit::Start;
use crate::store::AppWrite;
use redb::{Key, MultimapTable, MultimapTableDefinition, Table, TableDefinition, Value};
use serde::Serialize;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// One transaction: what is written here is there with the job's progress, or not at all.
///
/// The closure may run again (a round that failed is repeated), so it must do nothing outside: no calls, no prints.
pub struct Tx<'t> {
    app: AppWrite<'t>,
    shared: Arc<Shared>,
    changes: Vec<Changed>,
    suppressed: Vec<&'static str>,
    /// The kind of the job whose handler this is; empty outside of one.
    from: String,
    /// The trace that whoever handed this transaction in is in.
    trace: Option<String>,
    outbox: Vec<TopicNews>,
}

impl<'t> Tx<'t> {
    pub(crate) fn new(app: AppWrite<'t>, shared: Arc<Shared>, from: &str, trace: Option<String>) -> Self {
        let from = from.to_owned();
        Self { app, shared, changes: Vec::new(), suppressed: Vec::new(), from, trace, outbox: Vec::new() }
    }
    pub(crate) fn into_parts(self) -> Did {
        Did { changes: self.changes, suppressed: self.suppressed, outbox: self.outbox }
    }

    /// Opens an app table for writing; it is created if it is new. Close it (drop it) before the closure returns.
    ///
    /// # Errors
    /// Names that begin with `q/` are the queue's own; a table that is open already or has other types is refused.
    pub fn open_table<K: Key + 'static, V: Value + 'static>(
        &mut self,
        definition: TableDefinition<'_, K, V>,
    ) -> Result<Table<'t, K, V>, Error> {
        Ok(self.app.open_table(definition)?)
    }
    /// Opens an app multimap table for writing; it is created if it is new.
    ///
    /// # Errors
    /// As for [`open_table`](Self::open_table).
    pub fn open_multimap_table<K: Key + 'static, V: Key + 'static>(
        &mut self,
        definition: MultimapTableDefinition<'_, K, V>,
    ) -> Result<MultimapTable<'t, K, V>, Error> {
        Ok(self.app.open_multimap_table(definition)?)
    }
    /// Enqueues a job in this transaction.
    ///
    /// # Errors
    /// A payload, key or name over its limit; nothing of the transaction is stored then, if the closure passes the error on.
    pub fn enqueue<J: Job>(&mut self, job: &J) -> Result<Enqueued, Error> {
        self.add(job, Start::Now)
    }
    /// Enqueues a job that starts at `due` or later.
    ///
    /// # Errors
    /// As for [`enqueue`](Self::enqueue).
    pub fn enqueue_at<J: Job>(&mut self, due: SystemTime, job: &J) -> Result<Enqueued, Error> {
        self.add(job, Start::At(crate::model::time::Wall::from_system(due)))
    }
    /// Enqueues a job that starts after `delay` or later.
    ///
    /// # Errors
    /// As for [`enqueue`](Self::enqueue).
    pub fn enqueue_after<J: Job>(&mut self, delay: Duration, job: &J) -> Result<Enqueued, Error> {
        self.add(job, Start::After(delay))
    }

    /// Owes the world a message: it is delivered after the commit, at least once, with this id for ever. An id that the topic
    /// knows changes nothing, and the caller is told so.
    ///
    /// For events. What must not happen twice at a receiver that cannot tell (a charge, a mail to a customer) is an
    /// [`Effect`](crate::Effect).
    ///
    /// # Errors
    /// A topic, id or body over its limit or empty, a body that serde cannot carry; nothing of the transaction is stored then, if
    /// the closure passes the error on.
    pub fn outbox<T: Serialize + ?Sized>(
        &mut self,
        topic: impl Into<String>,
        id: impl Into<String>,
        body: &T,
    ) -> Result<Outboxed, Error> {
        self.send(Outgoing::new(topic, id, body))
    }
    /// [`outbox`](Self::outbox) with an ordering key, a kind or headers.
    ///
    /// # Errors
    /// As there.
    pub fn send(&mut self, message: Outgoing) -> Result<Outboxed, Error> {
        let message = message.traced(self.trace.as_deref());
        let (answer, news) = outbox::send(self.app.own(), message, &self.from, &self.shared)?;
        self.outbox.push(news);
        Ok(answer)
    }

    fn add<J: Job>(&mut self, job: &J, start: Start) -> Result<Enqueued, Error> {
        let mut spec = Spec::of(job, start, &self.shared)?;
        let (answer, changed) = enqueue::admit(self.app.own(), &mut spec, &self.shared, self.shared.now())?;
        if !answer.is_new() {
            self.suppressed.push(J::KIND);
        }
        self.changes.extend(changed);
        Ok(answer)
    }
}
