//! What an async handler holds. Same words as [`Cx`](crate::Cx); every verb awaits. Dropping the handler's future only stops
//! waiting: a call that was entered runs to its end in a task of the engine's own and is recorded.

use super::attempt::Attempt;
use super::call::{Ask, call_async, call_blocking};
use super::cx::{Stored, both};
use super::effect::{BoxFuture, Effect, Performer, Prober};
use super::fail::{Fail, Outcome};
use super::flow::{self, Flow, Next};
use super::reply::answer;
use super::shared::Bridge;
use super::tx::Tx;
use crate::model::id::JobId;
use serde::Serialize;
use std::sync::Arc;

/// The context of one attempt, for async handlers. Clones speak of the same attempt; after its handler returned they are refused.
#[derive(Clone)]
pub struct AsyncCx {
    pub(crate) attempt: Arc<Attempt>,
}
both!(AsyncCx);

impl AsyncCx {
    #[cfg_attr(not(feature = "tokio"), expect(dead_code, reason = "only the bridge to a runtime calls async handlers"))]
    pub(crate) fn new(attempt: Arc<Attempt>) -> Self {
        Self { attempt }
    }

    /// See [`Cx::effect`](crate::Cx::effect).
    ///
    /// # Errors
    /// As there.
    pub async fn effect<E: Effect>(&self, request: E) -> Outcome<E::Result> {
        #[cfg(feature = "testkit")]
        if self.attempt.shared.naive {
            return super::naive::answered::<E>(match super::naive::call(&self.attempt, &request)? {
                super::effect::Begun::Answer(called) => called,
                super::effect::Begun::Future(future) => future.await,
            });
        }
        let flow = Flow::prepare(&self.attempt, &request)?;
        let waiting = flow.waiting();
        let outcome = self.follow::<E>(flow).await;
        waiting.over();
        outcome
    }

    async fn follow<E: Effect>(&self, mut flow: Flow) -> Outcome<E::Result> {
        loop {
            let told = flow.begin()?.await;
            match flow.began(told)? {
                Next::Return(stored, differs) => {
                    if let Some(text) = differs {
                        self.attempt.shared.report.warn(&text);
                    }
                    return flow.result::<E>(stored);
                }
                Next::Perform(call) => {
                    let (tell, reply) = answer();
                    match flow.performer()? {
                        Performer::Blocking(f) => {
                            self.bridge()?.spawn_blocking(Box::new(move || tell.send(call_blocking(call, &*f))))
                        }
                        Performer::Async(f) => {
                            let task: BoxFuture<()> = Box::pin(async move { tell.send(call_async(call, f).await) });
                            self.bridge()?.spawn(task);
                        }
                    }
                    let stored = flow.performed(reply.await)?;
                    return flow.result::<E>(stored);
                }
                Next::Probe(record, asking) => {
                    let ask = Arc::new(Ask::new(&self.attempt, record, asking));
                    let (tell, reply) = answer();
                    let asks = ask.clone();
                    match flow.prober()? {
                        Prober::Blocking(f) => {
                            self.bridge()?.spawn_blocking(Box::new(move || tell.send(asks.blocking(&*f))));
                        }
                        Prober::Async(f) => {
                            self.bridge()?.spawn(Box::pin(async move { tell.send(asks.future(f).await) }));
                        }
                    }
                    let told = match reply.await {
                        Some(told) => told?,
                        None => ask.lost()?.await,
                    };
                    if let Some(stored) = flow.probed(told)? {
                        return flow.result::<E>(stored);
                    }
                }
            }
        }
    }

    /// See [`Cx::step`](crate::Cx::step).
    ///
    /// # Errors
    /// As there.
    pub async fn step<T: Stored>(&self, name: &str, f: impl AsyncFnOnce() -> Outcome<T>) -> Outcome<T> {
        if let Some(value) = flow::remembered(&self.attempt, name, false)? {
            return Ok(value);
        }
        let value = f().await?;
        let told = flow::store_step(&self.attempt, name, &value)?.await;
        flow::stored_step(&self.attempt, told)?;
        Ok(value)
    }

    /// See [`Cx::commit`](crate::Cx::commit).
    ///
    /// # Errors
    /// As there.
    pub async fn commit<T: Stored>(
        &self,
        name: &str,
        f: impl Fn(&mut Tx<'_>) -> Outcome<T> + Send + 'static,
    ) -> Outcome<T> {
        if let Some(value) = flow::remembered(&self.attempt, name, true)? {
            return Ok(value);
        }
        let told = flow::commit(&self.attempt, Some(name), flow::code(f))?.await;
        let value = flow::committed(&self.attempt, told)?;
        serde_json::from_slice(&value).map_err(Fail::permanent)
    }

    /// See [`Cx::finish`](crate::Cx::finish).
    ///
    /// # Errors
    /// As there.
    pub async fn finish(&self, f: impl Fn(&mut Tx<'_>) -> Outcome + Send + 'static) -> Outcome {
        self.attempt.go_on()?;
        self.attempt.at_step("finish".to_owned());
        let told = flow::commit(&self.attempt, None, flow::code(f))?.await;
        flow::committed(&self.attempt, told).map(|_| ())
    }

    fn bridge(&self) -> Result<&Arc<dyn Bridge>, Fail> {
        self.attempt.shared.bridge.as_ref().ok_or_else(|| Fail::permanent("an async handler needs a runtime"))
    }
}
