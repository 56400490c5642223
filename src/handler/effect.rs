//! An effect as an app declares it, and how it is performed and asked about: the type is the request, the performer and probe
//! are registered once.
//!
//! The stored request, not today's code, is what a retry sends. Requests and results are always JSON.

use super::fail::{Fail, Happened, Outcome};
use super::job::Job;
use crate::model::Limits;
use crate::model::effect::{CallEnd, EffectCard, Probed, Recovery, Risk, Stored, UndoJob};
use crate::model::id::IdempotencyKey;
use serde::{Serialize, de::DeserializeOwned};
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::{Arc, OnceLock};

/// A request to the outside world: the value is the request.
pub trait Effect: Serialize + DeserializeOwned + Send + Sync + 'static {
    /// What the provider answers.
    type Result: Serialize + DeserializeOwned + Send + 'static;
    /// The name, stored with every record. At most 128 bytes.
    const NAME: &'static str;
    /// Former names: records under them are still its own.
    const ALIASES: &'static [&'static str] = &[];
    /// The version of the request; see [`upgrade`](Self::upgrade).
    const VERSION: u32 = 1;
    /// What can go wrong when it happens twice.
    const RISK: Risk = Risk::Routine;

    /// One plain sentence for the person who may have to decide; never secrets.
    fn says(&self) -> String;
    /// Tells several requests of one name within a job apart (one mail per recipient).
    fn part(&self) -> String {
        String::new()
    }
    /// Where a person can look it up.
    fn look_up(&self) -> Option<LookUp> {
        None
    }
    /// What may be done when nobody knows whether it happened. Default: ask a person.
    fn recovery() -> Recovery {
        Recovery::ask()
    }
    /// The forward action that compensates it; stored with the intent, completed by the result.
    ///
    /// It is asked for twice: before the call, without a result, and after it. What cannot be stored (not encodable, over the
    /// payload limit, of a kind that has no handler here) is a permanent failure before the call; after it, what was stored with the
    /// intent is kept. Without a result the job must still find what to undo, e.g. by the order's number.
    ///
    /// ```ignore
    /// fn undo(&self, done: Option<&String>) -> Undo {
    ///     Undo::job(Refund { order: self.order, charge: done.cloned() })
    /// }
    /// ```
    fn undo(&self, done: Option<&Self::Result>) -> Undo {
        let _ = done;
        Undo::none()
    }
    /// The provider's operation id, for the log line, the ledger and the letter.
    fn reference(done: &Self::Result) -> Option<String> {
        let _ = done;
        None
    }
    /// Rebuilds a result from the reference that a person read off the provider's page. Called when a letter is read and, on the
    /// writer's thread, when it is decided: do no I/O, and wait for nobody. Without it a person's "it happened" lets a
    /// job go on only if JSON `null` is a result (`()`, an `Option`); otherwise the job can only be ended as taken care of.
    #[expect(clippy::wrong_self_convention, reason = "named after what a person holds; the request helps to rebuild")]
    fn from_reference(&self, reference: &str) -> Option<Self::Result> {
        let _ = reference;
        None
    }
    /// Reads a request stored by another version of the app.
    ///
    /// # Errors
    /// A request that cannot be read needs a decision; it is never called.
    fn upgrade(from: u32, request: serde_json::Value) -> Result<Self, Fail> {
        let _ = from;
        Ok(serde_json::from_value(request)?)
    }
    /// Its card, for [`Job::effects`].
    fn card() -> EffectCard {
        EffectCard::new(Self::NAME, Self::ALIASES, Self::RISK, Self::recovery())
    }
}

/// Where a person can look an effect up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LookUp {
    pub(crate) url: String,
    pub(crate) how: String,
}

impl LookUp {
    /// An address and what to do there.
    pub fn at(url: &str, how: &str) -> Self {
        Self { url: url.to_owned(), how: how.to_owned() }
    }
}

/// How an effect can be compensated: by a job of its own, or not at all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Undo(Option<Result<UndoJob, String>>);

impl Undo {
    /// It cannot be undone.
    pub fn none() -> Self {
        Self(None)
    }
    /// By this job, stored as JSON. It runs under a key of its own, derived from the effect's: the same work that somebody asks
    /// for under the job's own key is another job.
    pub fn job<J: Job>(job: J) -> Self {
        let payload = serde_json::to_vec(&job).map_err(|e| e.to_string());
        Self(Some(payload.map(|payload| UndoJob {
            kind: J::KIND.to_owned(),
            key: job.key(),
            version: J::VERSION,
            payload,
        })))
    }
    /// As it is stored with an effect, within the limits.
    pub(crate) fn into_stored(self, limits: &Limits) -> Result<Option<UndoJob>, Fail> {
        let Some(job) = self.0 else { return Ok(None) };
        let job = job.map_err(|e| Fail::permanent(format!("the undo job could not be encoded: {e}")))?;
        for (what, len, limit) in [
            ("kind", job.kind.len(), limits.name),
            ("key", job.key.as_str().len(), limits.key),
            ("payload", job.payload.len(), limits.payload),
        ] {
            if len == 0 || len > limit {
                let text = format!("the {what} of the undo job has {len} bytes; it must have 1 to {limit}");
                return Err(Fail::permanent(text));
            }
        }
        Ok(Some(job))
    }
}

pub(crate) type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// What a call came to, and the failure as the handler will see it.
#[derive(Debug)]
pub(crate) struct Called {
    pub(crate) end: CallEnd,
    pub(crate) fail: Option<Fail>,
}

/// Something done with a stored request: its bytes, its version, its key.
pub(crate) type OnRequest<T> = dyn Fn(&[u8], u32, &IdempotencyKey) -> T + Send + Sync;

/// The start of an async one: the future, or the answer if there will be none.
pub(crate) enum Begun<T> {
    Future(BoxFuture<T>),
    Answer(T),
}

/// How an effect is performed: a blocking closure or a future, from a stored request.
#[derive(Clone)]
pub(crate) enum Performer {
    Blocking(Arc<OnRequest<Called>>),
    Async(Arc<OnRequest<Begun<Called>>>),
}

/// How a provider is asked.
#[derive(Clone)]
pub(crate) enum Prober {
    Blocking(Arc<OnRequest<Probed>>),
    Async(Arc<OnRequest<Begun<Probed>>>),
}

/// The result as JSON and how it is undone, from a stored request, its version and a reference.
type Rebuild = dyn Fn(&[u8], u32, Option<&str>) -> Option<(Vec<u8>, Undo)> + Send + Sync;

/// Everything the engine and the desk need of an effect outside a running handler.
#[derive(Clone)]
pub(crate) struct EffectEntry {
    pub(crate) card: EffectCard,
    pub(crate) performer: Option<Performer>,
    pub(crate) prober: Option<Prober>,
    /// The result as JSON from a reference, without one from JSON `null`, if that is a result; and its undo job, as after a call.
    pub(crate) rebuild: Arc<Rebuild>,
    /// The Rust type, so that two effects cannot share a name unnoticed.
    pub(crate) type_name: &'static str,
}

impl EffectEntry {
    pub(crate) fn of<E: Effect>() -> Self {
        Self {
            card: E::card(),
            performer: None,
            prober: None,
            rebuild: Arc::new(|request, version, reference| rebuild::<E>(request, version, reference)),
            type_name: std::any::type_name::<E>(),
        }
    }
}

/// A stored request as today's type.
pub(crate) fn decode<E: Effect>(request: &[u8], version: u32) -> Result<E, Fail> {
    if version == E::VERSION {
        Ok(serde_json::from_slice(request)?)
    } else {
        E::upgrade(version, serde_json::from_slice(request)?)
    }
}

/// The limits, known when the queue starts: performers may be registered before somebody raises them.
#[derive(Clone, Debug, Default)]
pub(crate) struct AtStart(Arc<OnceLock<Limits>>);

impl AtStart {
    pub(crate) fn set(&self, limits: Limits) {
        // Set once, by the one start of a builder.
        let _first = self.0.set(limits);
    }
    fn get(&self) -> &Limits {
        self.0.get_or_init(Limits::default)
    }
}

pub(crate) fn blocking<E: Effect>(
    limits: AtStart,
    f: impl Fn(&E, &IdempotencyKey) -> Outcome<E::Result> + Send + Sync + 'static,
) -> Performer {
    Performer::Blocking(Arc::new(move |request, version, key| {
        // Anything unexpected, a panic included, is unknown: the request may have left.
        match catch_unwind(AssertUnwindSafe(|| match decode::<E>(request, version) {
            Ok(e) => called(&e, f(&e, key), limits.get()),
            Err(fail) => unreadable(&fail, limits.get()),
        })) {
            Ok(called) => called,
            Err(panic) => unknown(panicked("performer", &panic_text(panic), limits.get())),
        }
    }))
}

pub(crate) fn future<E: Effect, Fut>(
    limits: AtStart,
    f: impl Fn(E, IdempotencyKey) -> Fut + Send + Sync + 'static,
) -> Performer
where
    Fut: Future<Output = Outcome<E::Result>> + Send + 'static,
{
    Performer::Async(Arc::new(move |request, version, key| {
        // Decoded twice: the app's future owns one, the result is read beside the other.
        let (again, e) = match (decode::<E>(request, version), decode::<E>(request, version)) {
            (Ok(a), Ok(b)) => (a, b),
            (Err(fail), _) | (_, Err(fail)) => return Begun::Answer(unreadable(&fail, limits.get())),
        };
        let fut = match catch_unwind(AssertUnwindSafe(|| f(e, key.clone()))) {
            Ok(fut) => fut,
            Err(p) => return Begun::Answer(unknown(panicked("performer", &panic_text(p), limits.get()))),
        };
        let limits = limits.clone();
        Begun::Future(Box::pin(async move {
            match Caught::new(Box::pin(fut)).await {
                Ok(outcome) => called(&again, outcome, limits.get()),
                Err(text) => unknown(panicked("performer", &text, limits.get())),
            }
        }))
    }))
}

pub(crate) fn blocking_probe<E: Effect>(
    limits: AtStart,
    f: impl Fn(&E, &IdempotencyKey) -> Outcome<Option<E::Result>> + Send + Sync + 'static,
) -> Prober {
    Prober::Blocking(Arc::new(move |request, version, key| {
        match catch_unwind(AssertUnwindSafe(|| match decode::<E>(request, version) {
            Ok(e) => probed(&e, f(&e, key), limits.get()),
            Err(fail) => Probed::CannotTell(fail.text(limits.get().error_text)),
        })) {
            Ok(p) => p,
            Err(panic) => Probed::CannotTell(panicked("probe", &panic_text(panic), limits.get())),
        }
    }))
}

pub(crate) fn future_probe<E: Effect, Fut>(
    limits: AtStart,
    f: impl Fn(E, IdempotencyKey) -> Fut + Send + Sync + 'static,
) -> Prober
where
    Fut: Future<Output = Outcome<Option<E::Result>>> + Send + 'static,
{
    Prober::Async(Arc::new(move |request, version, key| {
        let (again, e) = match (decode::<E>(request, version), decode::<E>(request, version)) {
            (Ok(a), Ok(b)) => (a, b),
            (Err(fail), _) | (_, Err(fail)) => {
                return Begun::Answer(Probed::CannotTell(fail.text(limits.get().error_text)));
            }
        };
        let fut = match catch_unwind(AssertUnwindSafe(|| f(e, key.clone()))) {
            Ok(fut) => fut,
            Err(p) => return Begun::Answer(Probed::CannotTell(panicked("probe", &panic_text(p), limits.get()))),
        };
        let limits = limits.clone();
        Begun::Future(Box::pin(async move {
            match Caught::new(Box::pin(fut)).await {
                Ok(outcome) => probed(&again, outcome, limits.get()),
                Err(text) => Probed::CannotTell(panicked("probe", &text, limits.get())),
            }
        }))
    }))
}

/// What a panic said. An odd payload is not dropped: its `Drop` could panic again.
pub(crate) fn panic_text(panic: Box<dyn std::any::Any + Send>) -> String {
    match panic.downcast::<String>() {
        Ok(s) => *s,
        Err(panic) => match panic.downcast::<&'static str>() {
            Ok(s) => (*s).to_owned(),
            Err(odd) => {
                std::mem::forget(odd);
                "a panic without text".to_owned()
            }
        },
    }
}

/// A future whose panic is an `Err`, also the panic of its `Drop`.
pub(crate) struct Caught<T>(Option<BoxFuture<T>>);

impl<T> Caught<T> {
    pub(crate) fn new(f: BoxFuture<T>) -> Self {
        Self(Some(f))
    }
    /// Drops the future; what its `Drop` panics with is an error like any other.
    fn discard(&mut self) -> Result<(), String> {
        let f = self.0.take();
        catch_unwind(AssertUnwindSafe(|| drop(f))).map_err(panic_text)
    }
}

impl<T> Future for Caught<T> {
    type Output = Result<T, String>;
    fn poll(mut self: Pin<&mut Self>, cx: &mut std::task::Context<'_>) -> std::task::Poll<Self::Output> {
        use std::task::Poll;
        let Some(f) = self.0.as_mut() else { return Poll::Ready(Err("polled after its end".to_owned())) };
        match catch_unwind(AssertUnwindSafe(|| f.as_mut().poll(cx))) {
            Ok(Poll::Pending) => Poll::Pending,
            Ok(Poll::Ready(t)) => Poll::Ready(self.discard().map(|()| t)),
            Err(panic) => {
                let text = panic_text(panic);
                let _ = self.discard();
                Poll::Ready(Err(text))
            }
        }
    }
}

impl<T> Drop for Caught<T> {
    fn drop(&mut self) {
        let _ = self.discard();
    }
}

fn called<E: Effect>(e: &E, outcome: Outcome<E::Result>, limits: &Limits) -> Called {
    match outcome {
        Ok(result) => {
            let (result, reference, undo) = stored(e, &result, limits);
            Called { end: CallEnd::Happened { result, reference, undo }, fail: None }
        }
        Err(fail) => {
            let text = fail.text(limits.error_text);
            let end = match fail.happened() {
                Happened::Refused => CallEnd::Refused(text),
                Happened::NotSent => CallEnd::NotSent(text),
                Happened::NotSaid => CallEnd::Unknown(text),
            };
            Called { end, fail: Some(fail) }
        }
    }
}

fn probed<E: Effect>(e: &E, outcome: Outcome<Option<E::Result>>, limits: &Limits) -> Probed {
    match outcome {
        Ok(Some(result)) => {
            let (result, reference, undo) = stored(e, &result, limits);
            Probed::Found { result, reference, undo }
        }
        Ok(None) => Probed::NotThere,
        Err(fail) => Probed::CannotTell(fail.text(limits.error_text)),
    }
}

/// The confirmation must always be storable: a result that cannot be kept is lost, the fact is not.
fn stored<E: Effect>(e: &E, result: &E::Result, limits: &Limits) -> (Stored, Option<String>, Option<UndoJob>) {
    let kept = catch_unwind(AssertUnwindSafe(|| {
        let json = serde_json::to_vec(result).map_err(|e| format!("the result could not be encoded: {e}"));
        let kept = json.and_then(|j| {
            if j.len() > limits.payload {
                return Err(format!("the result has {} bytes, more than the limit of {}", j.len(), limits.payload));
            }
            // Read back now: what a retry could not read must not look fine today.
            serde_json::from_slice::<E::Result>(&j).map_err(|e| format!("the result cannot be read back: {e}"))?;
            Ok(j)
        });
        let reference = E::reference(result).map(|r| super::fail::cut(r, limits.key));
        // One that does not fit leaves the one that was stored with the intent.
        let undo = e.undo(Some(result)).into_stored(limits).unwrap_or_default();
        (kept, reference, undo)
    }));
    match kept {
        Ok((Ok(json), reference, undo)) => (Stored::Json(json), reference, undo),
        Ok((Err(why), reference, undo)) => (Stored::Lost(super::fail::cut(why, limits.error_text)), reference, undo),
        Err(panic) => (Stored::Lost(panicked("encoding of the result", &panic_text(panic), limits)), None, None),
    }
}

fn rebuild<E: Effect>(request: &[u8], version: u32, reference: Option<&str>) -> Option<(Vec<u8>, Undo)> {
    let e = || decode::<E>(request, version).ok();
    let read = || e()?.from_reference(reference?);
    let null = || serde_json::from_slice::<E::Result>(b"null").ok();
    let kept = |result: E::Result| {
        let json = serde_json::to_vec(&result).ok()?;
        // One that panics leaves the one that was stored with the intent.
        let undo = catch_unwind(AssertUnwindSafe(|| e().map(|e| e.undo(Some(&result)))));
        Some((json, undo.unwrap_or_default().unwrap_or_default()))
    };
    let caught = |f: &dyn Fn() -> Option<E::Result>| catch_unwind(AssertUnwindSafe(|| kept(f()?))).unwrap_or_default();
    caught(&read).or_else(|| caught(&null))
}

fn unreadable(fail: &Fail, limits: &Limits) -> Called {
    // Nothing was called; but the store holds an intent, so it is said as plainly as "it never left".
    let text = format!("the stored request cannot be read: {}", fail.text(limits.error_text));
    let text = super::fail::cut(text, limits.error_text);
    Called { end: CallEnd::NotSent(text.clone()), fail: Some(Fail::not_sent(text).for_good()) }
}

/// Kept with the effect, so no longer than any other error.
fn panicked(what: &str, text: &str, limits: &Limits) -> String {
    super::fail::cut(format!("the {what} panicked: {text}"), limits.error_text)
}

fn unknown(text: String) -> Called {
    Called { end: CallEnd::Unknown(text), fail: None }
}

/// Whether a stored request is what the handler asks for now, compared as JSON values after decoding with today's type.
pub(crate) fn same_request<E: Effect>(stored: &[u8], version: u32, now: &E) -> crate::rules::effect::Same {
    use crate::rules::effect::Same;
    let Ok(old) = decode::<E>(stored, version) else { return Same::Unreadable };
    match (serde_json::to_value(&old), serde_json::to_value(now)) {
        (Ok(a), Ok(b)) if a == b => Same::Yes,
        _ => Same::No,
    }
}
