//! A worker thread: takes a claimed job, calls its handler, and says how it ended. A panic fails that attempt, never the worker.

use super::core::{Core, Pooled, end_of};
use crate::handler::attempt::Claimed;
use crate::handler::cx::Cx;
use crate::handler::effect::panic_text;
use crate::handler::handlers::{Handler, Payload, Run};
use crate::handler::shared::{Pauses, Phase};
use crate::model::attempt::{AttemptEnd, PANICKED};
use crate::store::SlotNo;
use crate::sync::RwLockReadGuard;
use crate::sync::atomic::Ordering;
use crate::sync::channel::{Receiver, Sender, bounded};
use crate::sync::thread;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// Stops the task of a fenced async handler.
pub(crate) type Abort = Box<dyn Fn(crate::model::id::Token) + Send>;

/// The way to the workers. It holds more than may ever be in flight, so that the writer's thread never waits for a worker.
pub(crate) fn channel(workers: usize) -> (Sender<Claimed>, Receiver<Claimed>) {
    bounded(workers + MAX_AHEAD + 1_024)
}

/// At most this many claims on their way to handlers, beside those that handlers have.
pub(crate) const MAX_AHEAD: usize = 1_024;
/// While the payloads of what is on its way are larger than this together, nothing is claimed ahead: jobs of a MiB each would fill the
/// memory.
pub(crate) const MAX_AHEAD_BYTES: usize = 8 << 20;

/// Spawns worker number `n`.
pub(crate) fn spawn(core: Arc<Core>, jobs: Receiver<Claimed>, n: usize) -> std::io::Result<thread::JoinHandle<()>> {
    #[expect(clippy::disallowed_methods, reason = "the engine owns the threads")]
    thread::Builder::new().name(format!("onceward-worker-{n}")).spawn(move || {
        let owner: Arc<str> = format!("worker-{n}").into();
        let mut slot = None;
        loop {
            let next = jobs.try_recv().or_else(|_| {
                core.rest(&mut slot);
                jobs.recv()
            });
            if !next.is_ok_and(|claimed| run(&core, claimed, &owner, &mut slot, || jobs.is_empty())) {
                break;
            }
        }
        core.rest(&mut slot);
    })
}

/// Whether a claimed job may still be started: not while the queue stops, nor after its kind was paused, it was cancelled or its
/// deadline passed: it may have waited for a place since its claim. The pauses are held until it has begun, so that a pause is
/// acknowledged before or after that, never in between.
pub(crate) fn may_start<'a>(core: &'a Core, claimed: &Claimed) -> Option<RwLockReadGuard<'a, Pauses>> {
    let pauses = core.shared.pauses.read();
    let may = core.shared.phase() == Phase::Open && !core.shared.covered(&pauses, &claimed.stored_kind);
    let late = claimed.deadline.is_some_and(|deadline| core.shared.now().wall > deadline);
    let gone = late || core.cancels.lock().contains(&claimed.lease.job());
    (may && !gone).then_some(pauses)
}

/// Runs one claimed job; `false` if this thread was replaced meanwhile and should end.
fn run(
    core: &Arc<Core>,
    claimed: Claimed,
    owner: &Arc<str>,
    slot: &mut Option<SlotNo>,
    last: impl Fn() -> bool,
) -> bool {
    let Some(held) = may_start(core, &claimed) else {
        // No handler runs meanwhile, so none may be blamed for a death.
        core.rest(slot);
        core.never_started(claimed, Pooled::Threads);
        return true;
    };
    let Some(Handler::Blocking(handler)) = core.handlers.of(claimed.kind.name).cloned() else {
        core.rest(slot);
        core.never_started(claimed, Pooled::Threads);
        return true;
    };
    let refusal = crate::rules::lifecycle::may_run(&claimed.effects, &claimed.kind.rules);
    let (attempt, filled) = core.begin(claimed, Pooled::Threads, owner.clone(), slot.take());
    *slot = Some(filled);
    drop(held);
    if let Some(stop) = refusal {
        core.end(&attempt, AttemptEnd::Stopped(stop));
        return true;
    }
    let cx = Cx::new(attempt.clone());
    let row = &attempt.row;
    let payload = Payload { codec: row.codec, version: row.version, bytes: &row.payload };
    let called = catch_unwind(AssertUnwindSafe(|| handler(&cx, payload)));
    let how = match called {
        Ok(Run::Returned(outcome)) => ended(core, &attempt, outcome),
        Ok(Run::Unreadable(fail)) => AttemptEnd::Unreadable(fail.text(core.shared.limits.error_text)),
        Err(panic) => panicked(&attempt, panic_text(panic), core.shared.limits.error_text),
    };
    if last() {
        // Before its end is known: whoever is claimed to run alone is alone in the sidecar, too.
        core.rest(slot);
    }
    let ours = core.end(&attempt, how);
    if !ours {
        core.stuck.fetch_sub(1, Ordering::AcqRel);
    }
    ours
}

/// What the handler returned, classified; an error whose text or `Drop` panics is a panic of the handler.
pub(crate) fn ended(
    core: &Core,
    attempt: &crate::handler::attempt::Attempt,
    outcome: crate::handler::fail::Outcome,
) -> AttemptEnd {
    let stopping = core.shared.phase() != Phase::Open;
    match catch_unwind(AssertUnwindSafe(|| end_of(attempt, outcome, stopping))) {
        Ok(how) => how,
        Err(panic) => panicked(attempt, panic_text(panic), core.shared.limits.error_text),
    }
}

/// A panic fails the attempt, unless it was stopped or finished before.
pub(crate) fn panicked(attempt: &crate::handler::attempt::Attempt, text: String, limit: usize) -> AttemptEnd {
    match attempt.stopped() {
        Some(crate::model::attempt::Stop::Finished) => AttemptEnd::Success,
        Some(stop) => AttemptEnd::Stopped(stop),
        None => AttemptEnd::Panicked(crate::handler::fail::cut(text, limit.saturating_sub(PANICKED.len()))),
    }
}
