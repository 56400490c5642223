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
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};

pub(crate) use tokio::runtime::Handle;
use tokio::task::AbortHandle;

/// The tasks of running handlers; `None` while one is being spawned.
type Tasks = Arc<Mutex<HashMap<Token, Option<AbortHandle>>>>;

/// Tokio, as the engine uses it.
pub(crate) struct Tokio {
    handle: Handle,
    own: Mutex<Option<Runtime>>,
    tasks: Tasks,
}

impl Tokio {
    /// On a runtime of the app's.
    pub(crate) fn given(handle: Handle) -> Arc<Self> {
        Arc::new(Self { handle, own: Mutex::new(None), tasks: Arc::default() })
    }
    /// On a runtime of our own.
    pub(crate) fn own(threads: usize) -> std::io::Result<Arc<Self>> {
        let rt = Builder::new_multi_thread()
            .worker_threads(threads.max(1))
            .thread_name("onceward-task")
            .enable_all()
            .build()?;
        Ok(Arc::new(Self { handle: rt.handle().clone(), own: Mutex::new(Some(rt)), tasks: Arc::default() }))
    }
    /// Runs an async handler in a task of its own.
    pub(crate) fn run(&self, core: &Arc<Core>, claimed: Claimed) {
        let token = claimed.lease.token();
        let state = State::Claimed(Box::new(claimed));
        let mut task = Task { core: core.clone(), token, state, tasks: self.tasks.clone() };
        self.tasks.lock().insert(token, None);
        let join = self.handle.spawn(async move { task.run().await });
        // It may be over already, and have taken itself out.
        if let Some(entry) = self.tasks.lock().get_mut(&token) {
            *entry = Some(join.abort_handle());
        }
    }
    /// Aborts the task of a fenced attempt.
    pub(crate) fn abort(&self, token: Token) {
        // Not with the lock held: where the runtime is gone the task is dropped at once, and takes itself out of the list.
        let task = self.tasks.lock().remove(&token);
        if let Some(task) = task.flatten() {
            task.abort();
        }
    }
    /// Ends what still runs, and our own runtime, without waiting for what hangs in it.
    pub(crate) fn close(&self) {
        // Fenced by the shutdown: on a runtime of the app's they would go on for nothing.
        let left: Vec<_> = self.tasks.lock().drain().filter_map(|(_, task)| task).collect();
        left.iter().for_each(AbortHandle::abort);
        if let Some(rt) = self.own.lock().take() {
            rt.shutdown_timeout(Duration::ZERO);
        }
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
        self.handle.spawn(f);
    }
    fn spawn_abortable(&self, f: BoxFuture<()>) -> Box<dyn FnOnce() + Send> {
        let task = self.handle.spawn(f).abort_handle();
        Box::new(move || task.abort())
    }
    fn spawn_blocking(&self, f: Box<dyn FnOnce() + Send>) {
        self.handle.spawn_blocking(f);
    }
}

enum State {
    Claimed(Box<Claimed>),
    Running(Arc<Attempt>, SlotNo),
    Over,
}

/// One async handler on its way; dropping it before its end says what happened.
struct Task {
    core: Arc<Core>,
    token: Token,
    state: State,
    tasks: Tasks,
}

impl Task {
    async fn run(&mut self) {
        let State::Claimed(claimed) = std::mem::replace(&mut self.state, State::Over) else { return };
        let core = self.core.clone();
        let Some((attempt, slot, handler, refusal)) = begin(&core, *claimed) else { return };
        self.state = State::Running(attempt.clone(), slot);
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
        self.state = State::Over;
        core.end(&attempt, slot, how);
    }
}

/// Before the handler is called: may it start at all, and is there anything it must not run past?
fn begin(core: &Arc<Core>, claimed: Claimed) -> Option<(Arc<Attempt>, SlotNo, AsyncHandler, Option<Stop>)> {
    let handler = match core.handlers.of(claimed.kind.name) {
        Some(Handler::Async(handler)) => Some(handler.clone()),
        Some(Handler::Blocking(_)) | None => None,
    };
    let (Some(held), Some(handler)) = (may_start(core, &claimed), handler) else {
        core.never_started(claimed, Pooled::Tasks);
        return None;
    };
    let refusal = crate::rules::lifecycle::may_run(&claimed.effects, &claimed.kind.rules);
    let (attempt, slot) = core.begin(claimed, Pooled::Tasks, "task".into());
    drop(held);
    Some((attempt, slot, handler, refusal))
}

impl Drop for Task {
    fn drop(&mut self) {
        self.tasks.lock().remove(&self.token);
        match std::mem::replace(&mut self.state, State::Over) {
            State::Over => {}
            State::Claimed(claimed) => {
                self.gate();
                self.core.never_started(*claimed, Pooled::Tasks);
            }
            State::Running(attempt, slot) => {
                if !attempt.fenced() {
                    self.gate();
                }
                self.core.end(&attempt, slot, AttemptEnd::Interrupted);
            }
        }
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
