//! What a blocking handler holds. Same words as [`AsyncCx`](crate::AsyncCx); every verb blocks.

use super::attempt::Attempt;
use super::call::{Ask, call_async, call_blocking};
use super::effect::{Effect, Performer, Prober};
use super::fail::{Fail, Outcome};
use super::flow::{self, Flow, Next};
use super::reply::answer;
use super::tx::Tx;
use crate::model::id::JobId;
use serde::{Serialize, de::DeserializeOwned};
use std::sync::Arc;

/// Values that steps and commits remember: JSON in, JSON out.
pub trait Stored: Serialize + DeserializeOwned + Send + 'static {}
impl<T: Serialize + DeserializeOwned + Send + 'static> Stored for T {}

/// The context of one attempt, for blocking handlers.
///
/// Every verb that stores or asks for something is fenced: once the lease is over nothing more is accepted. After an effect ended unknown every later verb of the
/// attempt returns the same stop, whatever the handler does with the error.
pub struct Cx {
    pub(crate) attempt: Arc<Attempt>,
}

macro_rules! both {
    ($t:ty) => {
        impl $t {
            /// Which attempt this is, from 1.
            pub fn attempt(&self) -> u32 {
                self.attempt.number()
            }
            /// The job's id.
            pub fn id(&self) -> JobId {
                self.attempt.id()
            }
            /// Rises with every claim of this job, for ever: hand it to systems that can fence.
            pub fn token(&self) -> u64 {
                self.attempt.lease.token().number()
            }
            /// The job should stop: shutdown, a timeout, or `cancel`. Long loops look at it.
            pub fn cancelled(&self) -> bool {
                self.attempt.cancelled()
            }
            /// A sign of progress: the stall timeout starts anew.
            ///
            /// # Errors
            /// The lease is over, or the attempt was stopped.
            pub fn renew(&self) -> Outcome {
                self.attempt.go_on()
            }
            /// How far it is, for whoever watches; also a sign of progress. Kept in memory only.
            pub fn progress(&self, done: u64, of: u64) {
                if self.attempt.go_on().is_ok() {
                    self.attempt.set_progress(done, of);
                }
            }
            /// A field of this attempt's log line: `rows_upserted=1`. Never put secrets here.
            pub fn note(&self, name: &str, value: impl ToString) {
                let limit = self.attempt.shared.limits.key;
                self.attempt
                    .note(&super::fail::cut(name.to_owned(), limit), super::fail::cut(value.to_string(), limit));
            }
            /// Keeps a value with the job's success, for [`Jobs::output`](crate::Jobs::output).
            ///
            /// # Errors
            /// The value cannot be encoded, or is over the payload limit.
            pub fn output<T: Serialize>(&self, value: &T) -> Outcome {
                let json = serde_json::to_vec(value).map_err(Fail::permanent)?;
                let limit = self.attempt.shared.limits.payload;
                if json.len() > limit {
                    return Err(Fail::permanent(format!("the output has {} bytes, the limit is {limit}", json.len())));
                }
                self.attempt.set_output(json);
                Ok(())
            }
        }
    };
}
pub(super) use both;
both!(Cx);

impl Cx {
    pub(crate) fn new(attempt: Arc<Attempt>) -> Self {
        Self { attempt }
    }

    /// Asks for an effect: performed once, with its intent durable before the call and its result durable before this returns.
    /// On a retry a confirmed effect returns the recorded result; an unknown one follows its recovery rule.
    ///
    /// # Errors
    /// The provider's refusal as the performer classified it; otherwise a stop: return it, nothing more of this attempt is
    /// accepted. An undeclared effect, or the same name and part twice, is a permanent failure that says what to do.
    pub fn effect<E: Effect>(&self, request: E) -> Outcome<E::Result> {
        #[cfg(feature = "testkit")]
        if self.attempt.shared.naive {
            return match super::naive::call(&self.attempt, &request)? {
                super::effect::Begun::Answer(called) => super::naive::answered::<E>(called),
                super::effect::Begun::Future(future) => {
                    let (tell, reply) = answer();
                    self.spawn(Box::pin(async move { tell.send(future.await) }))?;
                    reply.wait().map_or_else(|| Err(Fail::new("the runtime is gone")), super::naive::answered::<E>)
                }
            };
        }
        let mut flow = Flow::prepare(&self.attempt, &request)?;
        loop {
            let told = flow.begin()?.wait();
            match flow.began(told)? {
                Next::Return(stored, differs) => {
                    if let Some(text) = differs {
                        self.attempt.shared.report.warn(&text);
                    }
                    return flow.result::<E>(stored);
                }
                Next::Perform(call) => {
                    let performed = match flow.performer()? {
                        Performer::Blocking(f) => Some(call_blocking(call, &*f)),
                        Performer::Async(f) => {
                            let (tell, reply) = answer();
                            self.spawn(Box::pin(async move { tell.send(call_async(call, f).await) }))?;
                            reply.wait()
                        }
                    };
                    let stored = flow.performed(performed)?;
                    return flow.result::<E>(stored);
                }
                Next::Probe(record, asking) => {
                    let ask = Arc::new(Ask::new(&self.attempt, record, asking));
                    let told = match flow.prober()? {
                        Prober::Blocking(f) => ask.blocking(&*f)?,
                        Prober::Async(f) => {
                            let (tell, reply) = answer();
                            let asks = ask.clone();
                            self.spawn(Box::pin(async move { tell.send(asks.future(f).await) }))?;
                            match reply.wait() {
                                Some(told) => told?,
                                None => ask.lost()?.wait(),
                            }
                        }
                    };
                    if let Some(stored) = flow.probed(told)? {
                        return flow.result::<E>(stored);
                    }
                }
            }
        }
    }

    /// Remembers the Ok of pure work by name: on a retry it is not run again and the same value comes back.
    ///
    /// # Errors
    /// Whatever `f` returned, unremembered; or a stop.
    pub fn step<T: Stored>(&self, name: &str, f: impl FnOnce() -> Outcome<T>) -> Outcome<T> {
        if let Some(value) = flow::remembered(&self.attempt, name, false)? {
            return Ok(value);
        }
        let value = f()?;
        let told = flow::store_step(&self.attempt, name, &value)?.wait();
        flow::stored_step(&self.attempt, told)?;
        Ok(value)
    }

    /// One transaction over app tables and follow-up jobs, with its name remembered: it happens once. The closure runs on the
    /// writer's thread and may be repeated with its round, so it must do nothing outside.
    ///
    /// # Errors
    /// Whatever `f` returned, with nothing stored; or a stop.
    pub fn commit<T: Stored>(&self, name: &str, f: impl Fn(&mut Tx<'_>) -> Outcome<T> + Send + 'static) -> Outcome<T> {
        if let Some(value) = flow::remembered(&self.attempt, name, true)? {
            return Ok(value);
        }
        let told = flow::commit(&self.attempt, Some(name), flow::code(f))?.wait();
        let value = flow::committed(&self.attempt, told)?;
        serde_json::from_slice(&value).map_err(Fail::permanent)
    }

    /// A commit and the end of the job in one transaction. Once it returned Ok the job is done, whatever the handler then does.
    ///
    /// # Errors
    /// Whatever `f` returned, with nothing stored; or a stop, also if an effect of the job is not accounted for.
    pub fn finish(&self, f: impl Fn(&mut Tx<'_>) -> Outcome + Send + 'static) -> Outcome {
        self.attempt.go_on()?;
        self.attempt.at_step("finish".to_owned());
        let told = flow::commit(&self.attempt, None, flow::code(f))?.wait();
        flow::committed(&self.attempt, told).map(|_| ())
    }

    fn spawn(&self, f: super::effect::BoxFuture<()>) -> Result<(), Fail> {
        match &self.attempt.shared.bridge {
            Some(bridge) => {
                bridge.spawn(f);
                Ok(())
            }
            None => Err(Fail::permanent("an async performer or probe needs a runtime: enable the feature `tokio`")),
        }
    }
}
