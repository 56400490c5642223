//! One call to a provider, and one question to it, from the durable intent to the recorded end. Whatever becomes of the handler,
//! something true is recorded: dropped before it was entered a call was not sent, dropped inside it is unknown.

use super::attempt::Attempt;
use super::calls::Inside;
use super::effect::{Begun, Called, OnRequest};
use super::fail::Fail;
use super::learn::{News, Told, learn};
use super::reply::Reply;
use super::shared::Shared;
use crate::error::Error;
use crate::model::attempt::Stop;
use crate::model::effect::{CallEnd, EffectRecord, Probed, Stored};
use crate::model::id::{EffectId, IdempotencyKey};
use crate::model::job::JobRow;
use crate::model::policy::KindRules;
use crate::planted::on;
use crate::rules::effect::Asking;
use std::sync::Arc;

/// What a call came to, recorded.
pub(crate) struct Performed {
    pub(crate) told: Told<EffectRecord>,
    pub(crate) fail: Option<Fail>,
}

/// One call under way. Armed from the commit of its intent on: dropped before it was entered it was not sent, dropped inside it is
/// unknown.
pub(crate) struct Call {
    attempt: Arc<Attempt>,
    record: Box<EffectRecord>,
    inside: Option<Inside>,
    armed: bool,
}

impl Call {
    /// A call whose intent is not durable yet: dropping it says nothing.
    pub(crate) fn new(attempt: &Arc<Attempt>, record: EffectRecord) -> Self {
        Self { attempt: attempt.clone(), record: Box::new(record), inside: None, armed: false }
    }
    /// Its intent is durable: from here on it says what became of it, also if nobody waits for it any more.
    pub(crate) fn arm(&mut self) {
        self.armed = true;
    }
    pub(crate) fn effect(&self) -> &EffectId {
        &self.record.id
    }
    /// Enters the performer, or says why the call must not be made any more.
    pub(crate) fn enter(&mut self) -> Result<(), &'static str> {
        self.attempt.enter(&self.record).map(|inside| self.inside = Some(inside))
    }
    pub(crate) fn request(&self) -> (&[u8], u32, &IdempotencyKey) {
        (&self.record.request, self.record.version, &self.record.key)
    }
    /// Records the end; the answer comes after the commit.
    pub(crate) fn end(mut self, end: CallEnd) -> Result<Reply<Told<EffectRecord>>, Error> {
        self.armed = false;
        self.over(end)
    }
    /// Whoever looks meanwhile finds the call inside, or its end on the way: never neither.
    fn over(&mut self, end: CallEnd) -> Result<Reply<Told<EffectRecord>>, Error> {
        match self.inside.take() {
            Some(inside) => inside.end(|| self.record(end)),
            None => self.record(end),
        }
    }
    fn record(&self, end: CallEnd) -> Result<Reply<Told<EffectRecord>>, Error> {
        let (call, generation) = (self.record.calls, self.record.generation);
        learn(&self.attempt, &self.record.id, News::Called { call, generation, end })
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        if self.armed {
            let end = if self.inside.is_some() {
                CallEnd::Unknown("the call was dropped before it returned".into())
            } else {
                CallEnd::NotSent("the attempt was over before the call was made".into())
            };
            // Nobody waits for it; if the store is closed the durable intent says the same.
            let _ = self.over(end);
        }
    }
}

/// A blocking performer, on this thread.
pub(crate) fn call_blocking(mut call: Call, f: &OnRequest<Called>) -> Performed {
    if let Err(why) = call.enter() {
        return not_made(call, why).wait();
    }
    let (request, version, key) = call.request();
    if on("confirmed-first") {
        let _ = call.record(CallEnd::Happened { result: Stored::Json(b"null".to_vec()), reference: None, undo: None });
    }
    let Called { end, fail } = f(request, version, key);
    let told = call.end(end).and_then(|reply| reply.wait().unwrap_or(Err(Error::ShutDown)));
    Performed { told, fail }
}

/// An async performer, inside a task of the engine's own: dropping the handler's future only stops waiting.
pub(crate) async fn call_async(mut call: Call, f: Arc<OnRequest<Begun<Called>>>) -> Performed {
    if let Err(why) = call.enter() {
        return not_made(call, why).resolve().await;
    }
    let (request, version, key) = call.request();
    let started = f(request, version, key);
    let Called { end, fail } = match started {
        Begun::Future(future) => future.await,
        Begun::Answer(called) => called,
    };
    let told = match call.end(end) {
        Ok(reply) => reply.await.unwrap_or(Err(Error::ShutDown)),
        Err(e) => Err(e),
    };
    Performed { told, fail }
}

struct NotMade(Result<Reply<Told<EffectRecord>>, Error>);

fn not_made(call: Call, why: &str) -> NotMade {
    NotMade(call.end(CallEnd::NotSent(why.into())))
}

impl NotMade {
    fn wait(self) -> Performed {
        let told = self.0.and_then(|r| r.wait().unwrap_or(Err(Error::ShutDown)));
        Performed { told, fail: Some(Fail::stop(Stop::Fenced)) }
    }
    async fn resolve(self) -> Performed {
        let told = match self.0 {
            Ok(r) => r.await.unwrap_or(Err(Error::ShutDown)),
            Err(e) => Err(e),
        };
        Performed { told, fail: Some(Fail::stop(Stop::Fenced)) }
    }
}

/// The keys under which a provider is asked: that of the record, and where an older copy of the file may have forgotten refusals those
/// of as many generations as there can have been.
pub(crate) fn asked_keys(
    shared: &Shared,
    row: &JobRow,
    kind: &str,
    record: &EffectRecord,
    rules: &KindRules,
) -> Vec<IdempotencyKey> {
    let later = if record.is_doubted() { rules.max_attempts.min(MOST_FORGOTTEN) } else { 0 };
    let key = |n| shared.idempotency_key(row, kind, &record.id, record.generation.saturating_add(n));
    std::iter::once(record.key.clone()).chain((1..=later).map(key)).collect()
}

/// More refusals than any kind has attempts for.
const MOST_FORGOTTEN: u32 = 32;

/// Asks under one key after the other: "not there" is true only if it is not there under any of them.
pub(crate) fn probe_blocking(f: &OnRequest<Probed>, record: &EffectRecord, keys: &[IdempotencyKey]) -> Probed {
    for key in keys {
        match f(&record.request, record.version, key) {
            Probed::NotThere => {}
            told @ (Probed::Found { .. } | Probed::CannotTell(_)) => return told,
        }
    }
    Probed::NotThere
}

/// The same, awaited.
pub(crate) async fn probe_async(
    f: Arc<OnRequest<Begun<Probed>>>,
    record: &EffectRecord,
    keys: &[IdempotencyKey],
) -> Probed {
    for key in keys {
        let told = match f(&record.request, record.version, key) {
            Begun::Future(future) => future.await,
            Begun::Answer(told) => told,
        };
        match told {
            Probed::NotThere => {}
            told @ (Probed::Found { .. } | Probed::CannotTell(_)) => return told,
        }
    }
    Probed::NotThere
}

/// A question to the provider. Whoever asks it also records the answer: the handler may be fenced and gone by then, and "it
/// happened" counts all the same.
pub(crate) struct Ask {
    attempt: Arc<Attempt>,
    record: Box<EffectRecord>,
    keys: Vec<IdempotencyKey>,
    asking: Asking,
}

/// What was recorded of an answer; `None` if nobody can say any more.
pub(crate) type Asked = Result<Option<Told<EffectRecord>>, Fail>;

impl Ask {
    pub(crate) fn new(attempt: &Arc<Attempt>, record: Box<EffectRecord>, asking: Asking) -> Self {
        let keys = asked_keys(&attempt.shared, &attempt.row, &attempt.stored_kind, &record, &attempt.kind.rules);
        Self { attempt: attempt.clone(), record, keys, asking }
    }
    /// On this thread.
    pub(crate) fn blocking(&self, f: &OnRequest<Probed>) -> Asked {
        Ok(self.answered(probe_blocking(f, &self.record, &self.keys))?.wait())
    }
    /// Inside a task of the engine's own.
    pub(crate) async fn future(&self, f: Arc<OnRequest<Begun<Probed>>>) -> Asked {
        let probed = probe_async(f, &self.record, &self.keys).await;
        Ok(self.answered(probed)?.await)
    }
    /// The task that asked is gone with its runtime.
    pub(crate) fn lost(&self) -> Result<Reply<Told<EffectRecord>>, Fail> {
        self.answered(Probed::CannotTell("the probe was lost with its runtime".into()))
    }
    fn answered(&self, probed: Probed) -> Result<Reply<Told<EffectRecord>>, Fail> {
        learn(&self.attempt, &self.record.id, News::Probed(self.asking, probed))
            .map_err(|_| self.attempt.stop(Stop::Interrupted))
    }
}
