//! Waiting for quiet: drain (nothing ready, nothing running) and the graceful stop.

use super::core::Core;
use crate::clock::Stopwatch;
use crate::error::Error;
use crate::handler::reply::{Answer, Reply, Waited, answer};
use crate::handler::shared::store_error;
use crate::model::attempt::AttemptEnd;
use crate::model::id::KindId;
use crate::model::time::Wall;
use crate::store::{Lane, Op, StoreError, Write};
use crate::sync::thread;
use std::sync::Arc;
use std::time::Duration;

/// What a shutdown found and did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Report {
    /// Handlers that ended within the time given.
    pub finished: usize,
    /// Claims that no handler had begun: given back.
    pub never_started: usize,
    /// Handlers that still ran when the time was over: fenced, their attempts given back. Interrupted is not failed.
    pub interrupted: usize,
    /// Publishers that had not returned when the time was over: what they were given is delivered again.
    pub publishing: usize,
}

/// Asks, within a round, whether anything can run or is running.
struct IdleOp {
    core: Arc<Core>,
    answer: Answer<Result<Quiet, StoreError>>,
    quiet: Quiet,
}

/// How quiet it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Quiet {
    /// A handler runs, or could be handed a job.
    Busy,
    /// Nothing runs, but a delayed or waiting job is due and will be ready in a moment.
    Due,
    /// Nothing happens until the clock goes on.
    Idle,
}

impl Op for IdleOp {
    fn run(&mut self, tx: &mut Write<'_>) -> Result<(), StoreError> {
        // One look: between two of them a due job could become ready, run, and be missed by both.
        let after_now = Wall(self.core.shared.now().wall.0.saturating_add(1));
        self.quiet = if tx.any_running()? || self.any_ready(tx)? {
            Quiet::Busy
        } else if tx.due(after_now, 1)?.is_empty() {
            Quiet::Idle
        } else {
            Quiet::Due
        };
        Ok(())
    }
    fn settle(self: Box<Self>, result: Result<(), StoreError>) {
        // A handler that goes on after its `finish` still runs, although its job is over.
        let working = self.core.attempts().iter().any(|a| a.finished() && !a.fenced());
        let working = working || self.core.relays.busy();
        let quiet = if working { Quiet::Busy } else { self.quiet };
        self.answer.send(result.map(|()| quiet));
    }
}

impl IdleOp {
    fn any_ready(&self, tx: &mut Write<'_>) -> Result<bool, StoreError> {
        let shared = &self.core.shared;
        if !shared.store.room().is_normal() {
            // Nothing is claimed before there is room: as if all of it were paused.
            return Ok(false);
        }
        let kinds: Vec<(KindId, String)> = tx.kinds()?;
        for (id, name) in kinds {
            let served = self.core.serves(&name) && !shared.paused(&name);
            if served && !tx.ready(id, 1)?.is_empty() {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// How quiet it is right now.
pub(crate) fn look(core: &Arc<Core>, at_most: Duration) -> Result<Quiet, Error> {
    let (tell, reply) = answer();
    let op = IdleOp { core: core.clone(), answer: tell, quiet: Quiet::Busy };
    match core.shared.submit(Lane::Enqueue, Box::new(op)) {
        Ok(()) => {}
        // So many enqueues wait that nobody needs to ask.
        Err(Error::Store(StoreError::Busy)) => return Ok(Quiet::Busy),
        Err(e) => return Err(e),
    }
    match reply.wait_at_most(at_most) {
        Waited::Told(told) => told.map_err(store_error),
        Waited::Gone => Err(store_error(StoreError::Closed)),
        // The store is busy healing, or with a closure of the app.
        Waited::Over => Ok(Quiet::Busy),
    }
}

/// A look takes a round of the writer.
const ONE_LOOK: Duration = Duration::from_millis(100);

/// Waits until nothing is ready or running.
pub(crate) fn drain(core: &Arc<Core>, at_most: Duration) -> Result<(), Error> {
    let watch = Stopwatch::start();
    loop {
        let seen = *core.ended_lock.lock();
        // Somebody who does not want to wait is told how it is all the same.
        if look(core, at_most.saturating_sub(watch.elapsed()).max(ONE_LOOK))? != Quiet::Busy {
            return Ok(());
        }
        let left = at_most.saturating_sub(watch.elapsed());
        if left.is_zero() {
            return Err(Error::NotIdle);
        }
        let mut ends = core.ended_lock.lock();
        // Something ended since the look: look again. Otherwise wait for an end, or look again in a while, because jobs may
        // also move without one (a letter, a pause).
        core.ended.wait_while_for(&mut ends, |n| *n == seen, left.min(Duration::from_millis(200)));
    }
}

/// Tells the running handlers to stop, waits for them, and gives back what is left.
pub(crate) fn stop(core: &Arc<Core>, at_most: Duration) -> Report {
    core.relays.stop();
    let running = core.attempts();
    for a in &running {
        a.cancel();
    }
    let claimed = core.in_flight();
    let watch = Stopwatch::start();
    loop {
        let mut ends = core.ended_lock.lock();
        let left = at_most.saturating_sub(watch.elapsed());
        if (core.quiet() && core.relays.calling() == 0) || left.is_zero() {
            break;
        }
        // Handlers that begin while we look are told too; the look is short because an end may slip in between.
        core.ended.wait_for(&mut ends, left.min(Duration::from_millis(20)));
        drop(ends);
        core.attempts().iter().for_each(|a| a.cancel());
    }
    let left = core.attempts();
    for a in &left {
        a.fence();
        core.submit_end(a, AttemptEnd::Interrupted);
    }
    Report {
        finished: running.len().saturating_sub(left.len()),
        never_started: claimed.saturating_sub(running.len()),
        interrupted: left.len(),
        publishing: core.relays.calling(),
    }
}

/// Runs something that blocks on a thread of its own, so that a task can await it.
pub(crate) fn aside<T: Send + 'static>(
    f: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Reply<Result<T, Error>> {
    let (tell, reply) = answer();
    #[expect(clippy::disallowed_methods, reason = "the engine owns the threads")]
    let spawned = thread::Builder::new().name("onceward-aside".into()).spawn(move || tell.send(f()));
    if let Err(e) = spawned {
        // Nothing was done, and the queue goes on: the caller hears why.
        let (tell, refused) = answer();
        tell.send(Err(Error::Store(e.into())));
        return refused;
    }
    reply
}
