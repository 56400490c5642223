//! What the dispatcher, the workers, the timer and the face share about work in progress.

use crate::handler::attempt::{Attempt, Claimed};
use crate::handler::ends::{End, EndOp, HearsEnds};
use crate::handler::handlers::{Handler, Handlers};
use crate::handler::shared::Shared;
use crate::model::attempt::{AttemptEnd, Stop};
use crate::model::id::{JobId, Token};
use crate::model::job::JobRow;
use crate::store::SlotNo;
use crate::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use crate::sync::{Condvar, Mutex};
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use super::wake::TimerHandle;

/// A place where handlers run: threads, or tasks of a runtime.
pub(crate) struct Pool {
    /// Handlers at a time.
    pub(crate) capacity: usize,
    /// Claims that have not ended: running, or on their way to a handler.
    pub(crate) in_flight: AtomicUsize,
    /// Bytes of the payloads that are on their way.
    pub(crate) bytes: AtomicUsize,
    /// What a handler takes on average, in microseconds; 0 while nothing is known.
    pub(crate) mean_us: AtomicU64,
    /// How many ended since somebody last counted.
    pub(crate) ended: AtomicUsize,
}

impl Pool {
    pub(crate) fn new(capacity: usize) -> Self {
        Self {
            capacity,
            in_flight: AtomicUsize::new(0),
            bytes: AtomicUsize::new(0),
            mean_us: AtomicU64::new(0),
            ended: AtomicUsize::new(0),
        }
    }
    /// A claim is on its way to a handler.
    pub(crate) fn take(&self, row: &JobRow) {
        self.in_flight.fetch_add(1, Ordering::AcqRel);
        self.bytes.fetch_add(row.payload.len(), Ordering::AcqRel);
    }
    /// It has arrived.
    fn arrived(&self, row: &JobRow) {
        self.bytes.fetch_sub(row.payload.len(), Ordering::AcqRel);
    }
}

/// Work in progress.
pub(crate) struct Core {
    pub(crate) shared: Arc<Shared>,
    pub(crate) handlers: Handlers,
    pub(crate) threads: Pool,
    pub(crate) tasks: Pool,
    /// Async kinds are not claimed any more: their runtime is gone.
    pub(crate) gated: AtomicBool,
    /// Ends that are on their way to the store: a shutdown waits for them.
    pub(crate) ending: AtomicUsize,
    /// In the order of their tokens: what becomes of several at once has one order.
    pub(crate) running: Mutex<BTreeMap<Token, Running>>,
    pub(crate) timer: TimerHandle,
    /// Signalled whenever nothing is in flight, and at every end.
    pub(crate) ended: Condvar,
    pub(crate) ended_lock: Mutex<u64>,
    pub(crate) boot: [u8; 16],
    pub(crate) nonce: u64,
    pub(crate) suspect_over: AtomicBool,
    /// Claimed jobs that were asked to stop: one on its way to a handler hears of it when it begins.
    pub(crate) cancels: Mutex<HashSet<JobId>>,
    /// Worker threads that were replaced and have not come back: nobody waits for them.
    pub(crate) stuck: AtomicUsize,
    /// Who delivers the outbox.
    pub(crate) relays: Arc<super::relays::Relays>,
    /// What somebody wants to be told about, if anybody does.
    pub(crate) alarms: Option<Arc<super::alerts::Alarms>>,
}

/// A handler at work.
pub(crate) struct Running {
    pub(crate) attempt: Arc<Attempt>,
    pub(crate) pooled: Pooled,
    pub(crate) suspect: bool,
}

/// Which pool a claim came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pooled {
    Threads,
    Tasks,
}

impl Core {
    pub(crate) fn pool(&self, p: Pooled) -> &Pool {
        match p {
            Pooled::Threads => &self.threads,
            Pooled::Tasks => &self.tasks,
        }
    }
    /// Where the jobs of a kind run; `None` if it has no handler here.
    pub(crate) fn pooled(&self, kind: &str) -> Option<Pooled> {
        match self.handlers.of(kind)? {
            Handler::Async(_) => Some(Pooled::Tasks),
            Handler::Blocking(_) => Some(Pooled::Threads),
        }
    }
    /// Whether jobs stored under this name can run in this process at all.
    pub(crate) fn serves(&self, stored_name: &str) -> bool {
        let kind = self.shared.registry.kind(stored_name);
        kind.and_then(|k| self.pooled(k.name)).is_some_and(|p| match p {
            Pooled::Threads => self.threads.capacity > 0,
            Pooled::Tasks => !self.gated.load(Ordering::Acquire),
        })
    }
    pub(crate) fn in_flight(&self) -> usize {
        self.threads.in_flight.load(Ordering::Acquire) + self.tasks.in_flight.load(Ordering::Acquire)
    }
    /// Nothing is in flight, and every end has reached the store's queue.
    pub(crate) fn quiet(&self) -> bool {
        self.in_flight() == 0 && self.ending.load(Ordering::Acquire) == 0
    }
    /// A handler is about to be called: a slot in the sidecar is filled first, so that a death is known to be its company. `slot` is that
    /// of the handler which was called here before, if it was left as it is.
    pub(crate) fn begin(
        &self,
        c: Claimed,
        pooled: Pooled,
        owner: Arc<str>,
        slot: Option<SlotNo>,
    ) -> (Arc<Attempt>, SlotNo) {
        let suspect = c.suspect;
        self.pool(pooled).arrived(&c.row);
        let attempt = Attempt::new(self.shared.clone(), c, owner);
        let (job, token) = (attempt.lease.job(), attempt.lease.token());
        let run_file = self.shared.store.run_file();
        let slot = match slot {
            Some(slot) => run_file.refill(slot, job, token, self.boot, self.nonce),
            None => run_file.fill(job, token, self.boot, self.nonce),
        };
        self.running.lock().insert(token, Running { attempt: attempt.clone(), pooled, suspect });
        if self.cancels.lock().contains(&job) {
            attempt.cancel();
        }
        self.timer.watch_lease(attempt.lapses().0);
        (attempt, slot)
    }
    /// No handler is called here for now: its slot is free.
    pub(crate) fn rest(&self, slot: &mut Option<SlotNo>) {
        if let Some(slot) = slot.take() {
            self.shared.store.run_file().clear(slot);
        }
    }
    /// The handler returned, and what it ended as goes to the store. Nobody waits for that. `false` if it hung and was replaced
    /// meanwhile. Its slot says nothing any more once its end is durable; it is filled anew for the next handler, or cleared.
    pub(crate) fn end(self: &Arc<Self>, attempt: &Arc<Attempt>, how: AttemptEnd) -> bool {
        // Whoever fenced it has said, or will say, how it ended.
        let said = attempt.fenced() && matches!(how, AttemptEnd::Stopped(Stop::Fenced) | AttemptEnd::Interrupted);
        attempt.close();
        let known = self.running.lock().remove(&attempt.lease.token());
        // A hung handler that was replaced is not counted twice.
        let Some(known) = known else {
            if !said {
                self.late_end(attempt, how);
            }
            return false;
        };
        self.settle(&known, how, said);
        true
    }
    /// Ends a claim: the end is submitted first, then the place in the pool is free, so that the round that hears of the end
    /// can hand out the next claim. `said`: somebody else tells the store.
    pub(crate) fn settle(self: &Arc<Self>, known: &Running, how: AttemptEnd, said: bool) {
        if known.suspect {
            self.suspect_over.store(true, Ordering::Release);
        }
        self.cancels.lock().remove(&known.attempt.id());
        let pool = self.pool(known.pooled);
        let took = u64::try_from(known.attempt.watch.elapsed().as_micros()).unwrap_or(u64::MAX);
        let mean = pool.mean_us.load(Ordering::Relaxed);
        let mean = if mean == 0 { took } else { mean.saturating_mul(7).saturating_add(took) / 8 };
        pool.mean_us.store(mean.max(1), Ordering::Relaxed);
        pool.ended.fetch_add(1, Ordering::Relaxed);
        self.ending.fetch_add(1, Ordering::AcqRel);
        pool.in_flight.fetch_sub(1, Ordering::AcqRel);
        if said || known.attempt.finished() {
            self.signal();
            self.shared.store.poke();
        } else {
            self.submit_end(&known.attempt, how);
        }
        self.ending.fetch_sub(1, Ordering::AcqRel);
    }
    fn late_end(self: &Arc<Self>, attempt: &Arc<Attempt>, how: AttemptEnd) {
        // Its lease lapsed long ago; the rules refuse it, which is recorded nowhere and harms nobody.
        if !attempt.finished() {
            self.submit_end(attempt, how);
        }
    }
    pub(crate) fn submit_end(self: &Arc<Self>, attempt: &Arc<Attempt>, how: AttemptEnd) {
        let end = End {
            attempt: attempt.clone(),
            output: matches!(how, AttemptEnd::Success).then(|| attempt.output()).flatten(),
            how,
            seen: attempt.run(),
        };
        if EndOp::submit(end, self.clone()).is_err() {
            // The store is closed: the run row stays, and the next open gives the claim back.
            self.signal();
        }
    }
    /// A claim whose handler is never called: given back.
    pub(crate) fn never_started(self: &Arc<Self>, c: Claimed, pooled: Pooled) {
        let pool = self.pool(pooled);
        let suspect = c.suspect;
        let attempt = Attempt::new(self.shared.clone(), c, "".into());
        attempt.close();
        self.cancels.lock().remove(&attempt.id());
        if suspect {
            self.suspect_over.store(true, Ordering::Release);
        }
        self.ending.fetch_add(1, Ordering::AcqRel);
        pool.arrived(&attempt.row);
        pool.in_flight.fetch_sub(1, Ordering::AcqRel);
        self.submit_end(&attempt, AttemptEnd::NeverStarted);
        self.ending.fetch_sub(1, Ordering::AcqRel);
    }
    pub(crate) fn signal(&self) {
        *self.ended_lock.lock() += 1;
        self.ended.notify_all();
    }
    pub(crate) fn attempts(&self) -> Vec<Arc<Attempt>> {
        self.running.lock().values().map(|r| r.attempt.clone()).collect()
    }
}

impl HearsEnds for Core {
    fn over(&self, ends: &[(JobId, bool)]) {
        let mut cancels = self.cancels.lock();
        if !cancels.is_empty() {
            // Nobody has to hear any more that these were asked to stop.
            ends.iter().filter(|(_, accepted)| *accepted).for_each(|(job, _)| {
                cancels.remove(job);
            });
        }
        drop(cancels);
        self.signal();
    }
}

/// How the handler's return reads, given what the attempt went through.
pub(crate) fn end_of(attempt: &Attempt, returned: crate::handler::fail::Outcome, stopping: bool) -> AttemptEnd {
    match (attempt.stopped(), returned) {
        (Some(Stop::Finished), _) => AttemptEnd::Success,
        // Whatever the handler made of the error: nobody walks past an unknown.
        (Some(stop), _) => AttemptEnd::Stopped(stop),
        (None, Ok(())) => AttemptEnd::Success,
        (None, Err(fail)) => {
            let limit = attempt.shared.limits.error_text;
            match (fail.stopped(), fail.as_not_yet()) {
                (Some(Stop::Fenced | Stop::Interrupted), _) => AttemptEnd::Interrupted,
                (Some(stop), _) => AttemptEnd::Stopped(stop.clone()),
                (None, Some(wait)) => AttemptEnd::NotYet(fail.text(limit), wait),
                (None, None) if stopping && attempt.cancelled() => AttemptEnd::Interrupted,
                (None, None) => {
                    if let Some(misused) = fail.misused() {
                        let (kind, job) = (&attempt.stored_kind, attempt.id());
                        attempt.shared.report.warn(&format!("the handler of job {job} ({kind}) ended with {misused}"));
                    }
                    AttemptEnd::Failed(fail.failure(limit))
                }
            }
        }
    }
}
