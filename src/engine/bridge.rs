//! Async handlers, performers and probes on tokio: a runtime that the app gives, or one of our own. The only file that knows tokio.
//!
//! A handler whose task is dropped (its runtime is gone) was interrupted, not failed; a fenced one is aborted, and what it had
//! entered runs to its end beside it.

use super::core::{Core, Pooled};
use super::worker::{ended, may_start, panicked};
use crate::handler::async_cx::AsyncCx;
use crate::handler::attempt::{Attempt, Claimed};
use crate::handler::effect::{BoxFuture, Caught, panic_text};
use crate::handler::handlers::{Async as AsyncHandler, Handler, Payload};
use crate::handler::shared::{Bridge, Phase};
use crate::model::attempt::{AttemptEnd, Stop};
use crate::model::id::Token;
use crate::store::SlotNo;
use parking_lot::Mutex;
use std::collections::{HashMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};

pub(crate) use tokio::runtime::Handle;
use tokio::task::AbortHandle;

/// Tasks take so many jobs before they let others on their thread have a turn: the runtime may be the app's.
const AT_A_TIME: usize = 16;

/// Tokio, as the engine uses it.
pub(crate) struct Tokio {
    own: Mutex<Option<Runtime>>,
    line: Arc<Line>,
}

/// Claimed jobs on their way to tasks, and the tasks. A task goes on with the next job when it is done with one, so that jobs which
/// were claimed ahead wait here, and never more handlers are at work than were asked for.
struct Line {
    handle: Handle,
    owner: Arc<str>,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    waiting: VecDeque<Claimed>,
    /// By number; one that was aborted is not among them any more, even if it hangs.
    tasks: HashMap<u64, Place>,
    last: u64,
    /// Tasks that have taken nothing yet: each is good for one of those that wait.
    fresh: usize,
    /// Somebody is about to look whether there are tasks enough.
    starting: bool,
}

/// A task: whose handler it runs, or ran last, and how to stop it.
#[derive(Default)]
struct Place {
    token: Option<Token>,
    abort: Option<AbortHandle>,
}

impl Inner {
    /// A task ends.
    fn leave(&mut self, n: u64) {
        let fresh = self.tasks.remove(&n).is_some_and(|place| place.token.is_none());
        self.fresh -= usize::from(fresh);
    }
}

impl Tokio {
    /// On a runtime of the app's.
    pub(crate) fn given(handle: Handle) -> Arc<Self> {
        Self::new(handle, None)
    }
    /// On a runtime of our own.
    pub(crate) fn own(threads: usize) -> std::io::Result<Arc<Self>> {
        let rt = Builder::new_multi_thread()
            .worker_threads(threads.max(1))
            .thread_name("onceward-task")
            .enable_all()
            .build()?;
        Ok(Self::new(rt.handle().clone(), Some(rt)))
    }
    fn new(handle: Handle, own: Option<Runtime>) -> Arc<Self> {
        let line = Line { handle, owner: "task".into(), inner: Mutex::default() };
        Arc::new(Self { own: Mutex::new(own), line: Arc::new(line) })
    }
    /// Runs async handlers, each in a task, in this order.
    pub(crate) fn run(&self, core: &Arc<Core>, claimed: Vec<Claimed>) {
        self.line.inner.lock().waiting.extend(claimed);
        self.line.start(core);
    }
    /// Aborts the task of a fenced attempt; another one takes its place.
    pub(crate) fn abort(&self, core: &Arc<Core>, token: Token) {
        let task = {
            let mut inner = self.line.inner.lock();
            let n = inner.tasks.iter().find(|(_, place)| place.token == Some(token)).map(|(n, _)| *n);
            // Fenced, so it has a token: it is not among the fresh ones.
            n.and_then(|n| inner.tasks.remove(&n))
        };
        // Not with the lock held: where the runtime is gone the task is dropped at once, and takes itself out of the list.
        if let Some(task) = task {
            if let Some(abort) = task.abort {
                abort.abort();
            }
            self.line.start(core);
        }
    }
    /// Ends what still runs, and our own runtime, without waiting for what hangs in it.
    pub(crate) fn close(&self) {
        // Fenced by the shutdown: on a runtime of the app's they would go on for nothing. What waits was claimed and never started:
        // the next open finds that.
        let (waiting, tasks) = {
            let mut inner = self.line.inner.lock();
            inner.fresh = 0;
            (std::mem::take(&mut inner.waiting), std::mem::take(&mut inner.tasks))
        };
        drop(waiting);
        tasks.into_values().filter_map(|place| place.abort).for_each(|task| task.abort());
        if let Some(rt) = self.own.lock().take() {
            rt.shutdown_timeout(Duration::ZERO);
        }
    }
}

impl Line {
    /// Sees to it that there are tasks for what waits. They are spawned by a task: each of them would wake a thread of the runtime if
    /// it came from outside. Nobody runs a handler in between, which may block its thread.
    fn start(self: &Arc<Self>, core: &Arc<Core>) {
        {
            let mut inner = self.inner.lock();
            if inner.starting || inner.waiting.is_empty() || inner.tasks.len() >= core.tasks.capacity {
                return;
            }
            inner.starting = true;
        }
        let mut start = Task::new(core, self, None);
        // Not with the lock held, here and below: where the runtime is gone the task is dropped at once.
        self.handle.spawn(async move { start.start() });
    }
    /// One task more, if there is work for it.
    fn another(&self, core: &Core) -> Option<u64> {
        let mut inner = self.inner.lock();
        if inner.tasks.len() >= core.tasks.capacity || inner.waiting.len() <= inner.fresh {
            return None;
        }
        inner.last += 1;
        inner.fresh += 1;
        let n = inner.last;
        inner.tasks.insert(n, Place::default());
        Some(n)
    }
    /// The next job for a task; it ends if there is none, or if it was aborted.
    fn next(&self, n: u64) -> Option<Claimed> {
        let mut inner = self.inner.lock();
        let Inner { waiting, tasks, fresh, .. } = &mut *inner;
        let place = tasks.get_mut(&n)?;
        let next = waiting.pop_front();
        match &next {
            Some(claimed) => {
                *fresh -= usize::from(place.token.is_none());
                place.token = Some(claimed.lease.token());
            }
            None => inner.leave(n),
        }
        next
    }
}

impl Drop for Tokio {
    fn drop(&mut self) {
        if let Some(rt) = self.own.lock().take() {
            rt.shutdown_background();
        }
    }
}

impl Bridge for Tokio {
    fn spawn(&self, f: BoxFuture<()>) {
        self.line.handle.spawn(f);
    }
    fn spawn_abortable(&self, f: BoxFuture<()>) -> Box<dyn FnOnce() + Send> {
        let task = self.line.handle.spawn(f).abort_handle();
        Box::new(move || task.abort())
    }
    fn spawn_blocking(&self, f: Box<dyn FnOnce() + Send>) {
        self.line.handle.spawn_blocking(f);
    }
}

/// A task that runs async handlers, one after the other, or starts such tasks; dropping it before its end says what happened.
struct Task {
    core: Arc<Core>,
    line: Arc<Line>,
    /// None: it only starts others.
    n: Option<u64>,
    running: Option<Arc<Attempt>>,
    slot: Option<SlotNo>,
    over: bool,
}

impl Task {
    fn new(core: &Arc<Core>, line: &Arc<Line>, n: Option<u64>) -> Self {
        Self { core: core.clone(), line: line.clone(), n, running: None, slot: None, over: false }
    }
    /// Starts as many tasks as there are jobs that wait, and places.
    fn start(&mut self) {
        self.line.inner.lock().starting = false;
        while let Some(n) = self.line.another(&self.core) {
            let mut task = Self::new(&self.core, &self.line, Some(n));
            let join = self.line.handle.spawn(async move { task.run(n).await });
            // It may be over already, and have taken itself out.
            if let Some(place) = self.line.inner.lock().tasks.get_mut(&n) {
                place.abort = Some(join.abort_handle());
            }
        }
        self.over = true;
    }
    async fn run(&mut self, n: u64) {
        let mut run = 0;
        while let Some(claimed) = self.line.next(n) {
            self.work(claimed).await;
            run += 1;
            if run % AT_A_TIME == 0 {
                self.core.rest(&mut self.slot);
                tokio::task::yield_now().await;
            }
        }
        self.core.rest(&mut self.slot);
        self.over = true;
    }
    async fn work(&mut self, claimed: Claimed) {
        let core = self.core.clone();
        let slot = &mut self.slot;
        let Some((attempt, handler, refusal)) = begin(&core, claimed, self.line.owner.clone(), slot) else { return };
        self.running = Some(attempt.clone());
        let how = match refusal {
            Some(stop) => AttemptEnd::Stopped(stop),
            None => {
                let limit = core.shared.limits.error_text;
                let row = &attempt.row;
                let payload = Payload { codec: row.codec, version: row.version, bytes: &row.payload };
                let cx = AsyncCx::new(attempt.clone());
                match catch_unwind(AssertUnwindSafe(|| handler(cx, payload))) {
                    Ok(Ok(future)) => match Caught::new(future).await {
                        Ok(outcome) => ended(&core, &attempt, outcome),
                        Err(text) => panicked(&attempt, text, limit),
                    },
                    Ok(Err(fail)) => AttemptEnd::Unreadable(fail.text(limit)),
                    Err(panic) => panicked(&attempt, panic_text(panic), limit),
                }
            }
        };
        self.running = None;
        if self.line.inner.lock().waiting.is_empty() {
            // Before its end is known: whoever is claimed to run alone is alone in the sidecar, too.
            core.rest(&mut self.slot);
        }
        core.end(&attempt, how);
    }
}

/// Before the handler is called: may it start at all, and is there anything it must not run past?
fn begin(
    core: &Arc<Core>,
    claimed: Claimed,
    owner: Arc<str>,
    slot: &mut Option<SlotNo>,
) -> Option<(Arc<Attempt>, AsyncHandler, Option<Stop>)> {
    let handler = match core.handlers.of(claimed.kind.name) {
        Some(Handler::Async(handler)) => Some(handler.clone()),
        Some(Handler::Blocking(_)) | None => None,
    };
    let (Some(held), Some(handler)) = (may_start(core, &claimed), handler) else {
        // No handler runs meanwhile, so none may be blamed for a death.
        core.rest(slot);
        core.never_started(claimed, Pooled::Tasks);
        return None;
    };
    let refusal = crate::rules::lifecycle::may_run(&claimed.effects, &claimed.kind.rules);
    let (attempt, filled) = core.begin(claimed, Pooled::Tasks, owner, slot.take());
    *slot = Some(filled);
    drop(held);
    Some((attempt, handler, refusal))
}

impl Drop for Task {
    fn drop(&mut self) {
        if self.over {
            return;
        }
        let (aborted, left) = {
            let mut inner = self.line.inner.lock();
            let aborted = self.n.is_some_and(|n| !inner.tasks.contains_key(&n));
            self.n.into_iter().for_each(|n| inner.leave(n));
            inner.starting &= self.n.is_some();
            (aborted, if aborted { VecDeque::new() } else { std::mem::take(&mut inner.waiting) })
        };
        if !aborted && !self.running.as_ref().is_some_and(|attempt| attempt.fenced()) {
            self.gate();
        }
        self.core.rest(&mut self.slot);
        if let Some(attempt) = self.running.take() {
            self.core.end(&attempt, AttemptEnd::Interrupted);
        }
        // Nobody is left who would take these.
        left.into_iter().for_each(|claimed| self.core.never_started(claimed, Pooled::Tasks));
    }
}

impl Task {
    /// The runtime dropped a task: claiming more for it would only spin.
    fn gate(&self) {
        if self.core.shared.phase() == Phase::Open && !self.core.gated.swap(true, Ordering::AcqRel) {
            self.core.shared.report.warn(
                "the tokio runtime of the async handlers is gone: their attempts were given back, and no async job is claimed until the queue is opened again",
            );
        }
    }
}
