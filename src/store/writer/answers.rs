//! Answers after a commit. While more waits to be written they are given on a thread of their own, so that the next round begins
//! meanwhile; on a quiet store the writer gives them itself, which saves a caller the detour.
//!
//! Keeps the promise that answers come in the order of rounds, and that nothing runs before it is told what it rests on: only ends of
//! attempts and enqueues are told later. Used by the writer; its thread is started with the first burst.

use crate::store::error::StoreError;
use crate::store::op::{Tell, quietly};
use crate::store::shared::{Shared, Waiting};
use crate::sync::channel::Sender;
use crate::sync::thread::{self, JoinHandle};
use crate::sync::{Condvar, Mutex};
use std::sync::Arc;

/// A round with fewer requests is answered sooner than another thread wakes up.
const MANY: usize = 16;
/// So many rounds may wait for their answers before the writer waits for one of them.
const AHEAD: usize = 2;

/// What one round is to tell.
pub(super) struct Batch {
    /// Whom, in order.
    pub(super) ops: Vec<Waiting>,
    /// The engine, behind them.
    pub(super) then: Option<Tell>,
    /// What makes a thread known as one that answers: whoever asks the store from there would wait for itself.
    pub(super) mark: Option<fn()>,
}

impl Batch {
    /// Whether the next round may run before this one is told.
    fn may_wait(&self) -> bool {
        self.ops.iter().all(|waiting| waiting.op.as_ref().is_none_or(|op| op.may_be_told_later()))
    }
    /// How many requests are to be told.
    fn answers(&self) -> usize {
        self.ops.iter().filter_map(|waiting| waiting.op.as_ref()).map(|op| op.answers()).sum()
    }
    /// Whether a caller waits to be told.
    fn is_awaited(&self) -> bool {
        self.ops.iter().filter_map(|waiting| waiting.op.as_ref()).any(|op| op.is_awaited())
    }
    fn tell(self) {
        if let Some(mark) = self.mark {
            mark();
        }
        for mut waiting in self.ops {
            let error = waiting.failed.take();
            settle(waiting, error);
        }
        if let Some(then) = self.then {
            quietly(then);
        }
    }
}

/// Tells one request how it ended.
pub(super) fn settle(mut waiting: Waiting, error: Option<StoreError>) {
    if let Some(op) = waiting.op.take() {
        quietly(|| op.settle(error.map_or(Ok(()), Err)));
    }
}

/// Where answers go.
#[derive(Default)]
pub(super) struct Answers {
    running: Option<(Sender<Batch>, JoinHandle<()>)>,
    open: Arc<Open>,
}

/// Rounds that were handed over and are not answered yet.
#[derive(Default)]
struct Open {
    rounds: Mutex<usize>,
    fewer: Condvar,
}

impl Open {
    fn add(&self) {
        *self.rounds.lock() += 1;
    }
    fn remove(&self) {
        *self.rounds.lock() -= 1;
        self.fewer.notify_all();
    }
    fn any(&self) -> bool {
        *self.rounds.lock() > 0
    }
    fn none_left(&self) {
        let mut rounds = self.rounds.lock();
        while *rounds > 0 {
            self.fewer.wait(&mut rounds);
        }
    }
}

impl Answers {
    /// Answers a round, behind those before it. `busy`: the writer has more to do.
    pub(super) fn give(&mut self, shared: &Shared, batch: Batch, busy: bool) {
        if !batch.may_wait() {
            // Requests of the next round rest on what these are told.
            self.catch_up();
            return batch.tell();
        }
        // Whoever waits is told sooner by the writer, unless it has more to do.
        let apart = self.open.any() || ((busy || !batch.is_awaited()) && batch.answers() >= MANY);
        if !apart {
            return batch.tell();
        }
        let open = self.open.clone();
        let Some(to) = self.thread(shared) else { return batch.tell() };
        open.add();
        if let Err(unsent) = to.send(batch) {
            // Its thread is gone, which no panic of a caller's can bring about; all before it was answered then.
            open.remove();
            unsent.into_inner().tell();
        }
    }
    /// Returns when every round that was handed over has been told: whoever is told at once comes behind them.
    pub(super) fn catch_up(&self) {
        self.open.none_left();
    }
    /// Returns when everybody has been told, and ends the thread.
    pub(super) fn flush(&mut self) {
        if let Some((to, thread)) = self.running.take() {
            drop(to);
            // A panic of it has nobody left to answer.
            let _ended = thread.join();
        }
    }
    #[expect(clippy::disallowed_methods, reason = "the writer's second thread")]
    fn thread(&mut self, shared: &Shared) -> Option<&Sender<Batch>> {
        if self.running.is_none() {
            let (to, from) = crate::sync::channel::bounded::<Batch>(AHEAD);
            let open = self.open.clone();
            let answers = move || {
                for batch in from {
                    batch.tell();
                    open.remove();
                }
            };
            // Without a thread the writer answers itself.
            let thread = thread::Builder::new().name("onceward-answers".to_owned()).spawn(answers).ok()?;
            shared.answers_come_from(thread.thread().id());
            self.running = Some((to, thread));
        }
        self.running.as_ref().map(|(to, _)| to)
    }
}

impl Drop for Answers {
    fn drop(&mut self) {
        self.flush();
    }
}
