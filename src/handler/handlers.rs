//! The handlers, by the kind they serve: blocking closures and futures, with the stored payload decoded before they are called.

use super::async_cx::AsyncCx;
use super::cx::Cx;
use super::effect::BoxFuture;
use super::fail::{Fail, Outcome};
use super::job::{self, Job};
use crate::model::job::Codec;
use std::collections::HashMap;
use std::future::Future;
use std::sync::Arc;

/// A stored payload, as a handler gets it.
pub(crate) struct Payload<'a> {
    pub(crate) codec: Codec,
    pub(crate) version: u32,
    pub(crate) bytes: &'a [u8],
}

/// Why a handler was not called, or what it returned.
pub(crate) enum Run {
    Unreadable(Fail),
    Returned(Outcome),
}

type Blocking = Arc<dyn Fn(&Cx, Payload<'_>) -> Run + Send + Sync>;
pub(crate) type Async = Arc<dyn Fn(AsyncCx, Payload<'_>) -> Result<BoxFuture<Outcome>, Fail> + Send + Sync>;

/// A handler of either sort.
#[derive(Clone)]
pub(crate) enum Handler {
    Blocking(Blocking),
    #[cfg_attr(not(feature = "tokio"), expect(dead_code, reason = "only the bridge to a runtime calls async handlers"))]
    Async(Async),
}

/// All handlers.
#[derive(Default)]
pub(crate) struct Handlers(HashMap<&'static str, Handler>);

impl Handlers {
    pub(crate) fn on<J: Job>(&mut self, f: impl Fn(&Cx, J) -> Outcome + Send + Sync + 'static) {
        self.0.insert(
            J::KIND,
            Handler::Blocking(Arc::new(move |cx, p| match job::decode::<J>(p.codec, p.version, p.bytes) {
                Ok(job) => Run::Returned(f(cx, job)),
                Err(fail) => Run::Unreadable(fail),
            })),
        );
    }
    pub(crate) fn on_async<J: Job, Fut>(&mut self, f: impl Fn(AsyncCx, J) -> Fut + Send + Sync + 'static)
    where
        Fut: Future<Output = Outcome> + Send + 'static,
    {
        self.0.insert(
            J::KIND,
            Handler::Async(Arc::new(move |cx, p| {
                let job = job::decode::<J>(p.codec, p.version, p.bytes)?;
                Ok(Box::pin(f(cx, job)))
            })),
        );
    }
    /// The handler of a registered kind.
    pub(crate) fn of(&self, kind: &str) -> Option<&Handler> {
        self.0.get(kind)
    }
    /// The name of a kind with an async handler, if there is one: it needs a runtime.
    pub(crate) fn first_async(&self) -> Option<&'static str> {
        self.0.iter().find(|(_, h)| matches!(h, Handler::Async(_))).map(|(k, _)| *k)
    }
}
