//! The only spawner of threads: claims in the writer's rounds, handlers on worker threads or tokio, one timer, recovery at open.
//!
//! Decisions are made in `rules`; what stands here moves them: from the store to a handler and back.

pub(crate) mod alerts;
#[cfg(feature = "tokio")]
pub(crate) mod bridge;
pub(crate) mod cards;
pub(crate) mod core;
pub(crate) mod dispatcher;
pub(crate) mod look;
pub(crate) mod oldest;
pub(crate) mod ops;
pub(crate) mod outbox;
mod publish;
pub(crate) mod recover;
pub(crate) mod relay;
pub(crate) mod relays;
pub(crate) mod report;
pub(crate) mod review;
pub(crate) mod tell;
pub(crate) mod timer;
pub(crate) mod wake;
pub(crate) mod worker;

pub(crate) mod idle;
pub(crate) mod snapshot;

use crate::handler::attempt::Claimed;
use crate::sync::channel::Receiver;
use crate::sync::thread::JoinHandle;
use std::sync::Arc;

/// Whether a panic ends the whole process in this build.
pub(crate) fn aborts_on_panic() -> bool {
    cfg!(panic = "abort")
}

/// The source of jitter; seeded in tests.
pub(crate) fn draws(seed: Option<u64>) -> Box<dyn FnMut() -> u64 + Send> {
    let mut rng = seed.map_or_else(fastrand::Rng::new, fastrand::Rng::with_seed);
    Box::new(move || rng.u64(..))
}

/// Starts the timer and the workers; those that were started are in `threads`, whatever is returned.
pub(crate) fn spawn(
    core: &Arc<core::Core>,
    told: Receiver<wake::Told>,
    jobs: &Receiver<Claimed>,
    abort: worker::Abort,
    workers: usize,
    threads: &mut Vec<JoinHandle<()>>,
) -> std::io::Result<()> {
    threads.push(timer::spawn(core.clone(), told, jobs.clone(), abort)?);
    for nth in 0..core.relays.len() {
        threads.push(relay::spawn(core.clone(), nth)?);
    }
    for n in 1..=workers {
        threads.push(worker::spawn(core.clone(), jobs.clone(), n)?);
    }
    Ok(())
}

/// Without the feature `tokio` there are no tasks.
#[cfg(not(feature = "tokio"))]
pub(crate) enum NoTasks {}

#[cfg(not(feature = "tokio"))]
impl NoTasks {
    pub(crate) fn run(&self, _: &Arc<core::Core>, _: Vec<Claimed>) {
        match *self {}
    }
    pub(crate) fn abort(&self, _: &Arc<core::Core>, _: crate::model::id::Token) {
        match *self {}
    }
    pub(crate) fn close(&self) {
        match *self {}
    }
}

#[cfg(not(feature = "tokio"))]
impl crate::handler::shared::Bridge for NoTasks {
    fn spawn(&self, _: crate::handler::effect::BoxFuture<()>) {
        match *self {}
    }
    fn spawn_abortable(&self, _: crate::handler::effect::BoxFuture<()>) -> Box<dyn FnOnce() + Send> {
        match *self {}
    }
    fn spawn_blocking(&self, _: Box<dyn FnOnce() + Send>) {
        match *self {}
    }
}
