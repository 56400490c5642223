//! A provider that only pretends, with a ledger that counts what really happened in its world, whatever it told anybody.

use super::stage::{Life, Stage};
use onceward::{Effect, Fail, IdempotencyKey, Outcome};
use std::collections::{HashMap, VecDeque};
use std::future::Future;
use std::panic::resume_unwind;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

/// What one call does.
#[derive(Clone, Debug)]
pub(crate) enum Act {
    /// Does it and says so.
    Does,
    /// Does it, and the answer is lost.
    Loses,
    /// Does not do it, and there is no answer.
    Vanishes,
    /// No answer, and it happens when the test calls [`Provider::land`].
    Late,
    /// Waits at this door; then does it and says so. The process that asked may be gone by then: it happens nevertheless.
    Holds(&'static str),
    /// Does it, waits at this door, then says so.
    Dawdles(&'static str),
    /// Waits at this door, then says no.
    HoldsThenRefuses(&'static str),
    /// Waits at this door, then there is no answer.
    HoldsThenErrs(&'static str),
    /// Says no.
    Refuses,
    /// Says no: come back later.
    RefusesFor(Duration),
    /// Says no for good.
    RefusesForGood,
    /// Could not be reached.
    Unreachable,
    /// Does it and panics.
    Panics,
    /// Any other error of the performer, without doing it.
    Errs(fn() -> Fail),
}

/// What one question gets.
#[derive(Clone, Debug)]
pub(crate) enum Says {
    /// What the ledger says.
    Truth,
    /// Not there, whatever the ledger says (a lookup that lags behind).
    NotThere,
    /// Cannot tell.
    CannotTell,
    /// Panics.
    Panics,
    /// Waits at this door, then tells the truth.
    Holds(&'static str),
}

/// Something that really happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Happened {
    pub(crate) key: String,
    pub(crate) what: String,
    pub(crate) operation: String,
}

#[derive(Default)]
struct Books {
    /// Drops repeats of a key, as a provider with idempotency keys does.
    dedupes: bool,
    happened: Vec<Happened>,
    late: Vec<(String, String)>,
    calls: Vec<(String, String)>,
    asked: u64,
    acts: VecDeque<Act>,
    says: VecDeque<Says>,
}

/// The provider; clones are the same one.
#[derive(Clone)]
pub(crate) struct Provider {
    stage: Stage,
    books: Arc<Mutex<Books>>,
}

impl Provider {
    /// One that drops repeats of a key.
    pub(crate) fn with_keys(stage: &Stage) -> Self {
        Self { stage: stage.clone(), books: Arc::new(Mutex::new(Books { dedupes: true, ..Books::default() })) }
    }
    /// One that does it again for every call, but can be asked.
    pub(crate) fn without_keys(stage: &Stage) -> Self {
        Self { stage: stage.clone(), books: Arc::default() }
    }
    fn lock(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap()
    }

    // ---- for the test --------------------------------------------------------------------------------------------------
    /// What the next calls do, in order; the others simply do it.
    pub(crate) fn will(&self, acts: impl IntoIterator<Item = Act>) {
        self.lock().acts.extend(acts);
    }
    /// What the next questions get, in order; the others get the truth.
    pub(crate) fn will_say(&self, says: impl IntoIterator<Item = Says>) {
        self.lock().says.extend(says);
    }
    /// What was under way arrives.
    pub(crate) fn land(&self) {
        let late = std::mem::take(&mut self.lock().late);
        assert!(!late.is_empty(), "nothing was under way");
        for (key, what) in late {
            self.lock().book(&key, &what);
        }
    }
    /// Everything that really happened.
    pub(crate) fn happened(&self) -> Vec<Happened> {
        self.lock().happened.clone()
    }
    /// How often it really happened, under any key.
    pub(crate) fn times(&self) -> usize {
        self.lock().happened.len()
    }
    /// Every call: key and request.
    pub(crate) fn calls(&self) -> Vec<(String, String)> {
        self.lock().calls.clone()
    }
    /// The keys of the calls.
    pub(crate) fn keys(&self) -> Vec<String> {
        self.lock().calls.iter().map(|(k, _)| k.clone()).collect()
    }
    /// How often it was asked.
    pub(crate) fn asked(&self) -> u64 {
        self.lock().asked
    }

    // ---- for the queue -------------------------------------------------------------------------------------------------
    /// A performer for the process that runs now.
    pub(crate) fn performs<E: Effect<Result: From<String>>>(
        &self,
        life: &Life,
    ) -> impl Fn(&E, &IdempotencyKey) -> Outcome<E::Result> + Send + Sync + use<E> {
        let (p, life) = (self.clone(), life.clone());
        move |e, key| {
            let call = p.take_call(&life, key, what(e))?;
            if let Some(door) = call.before() {
                // Whoever asked may be gone: what was sent arrives nevertheless.
                life.wait(door);
            }
            let done = p.carry_out(&life, &call);
            if let Some(door) = call.after() {
                life.wait(door);
            }
            p.answer(&life, &call, done).map(E::Result::from)
        }
    }
    /// The same as a future.
    pub(crate) fn performs_async<E: Effect<Result: From<String>>>(
        &self,
        life: &Life,
    ) -> impl Fn(E, IdempotencyKey) -> std::pin::Pin<Box<dyn Future<Output = Outcome<E::Result>> + Send>>
    + Send
    + Sync
    + use<E> {
        let (p, life) = (self.clone(), life.clone());
        move |e, key| {
            let (p, life) = (p.clone(), life.clone());
            Box::pin(async move {
                let call = p.take_call(&life, &key, what(&e))?;
                drop(e);
                if let Some(door) = call.before() {
                    life.wait_async(door).await;
                }
                let done = p.carry_out(&life, &call);
                if let Some(door) = call.after() {
                    life.wait_async(door).await;
                }
                p.answer(&life, &call, done).map(E::Result::from)
            })
        }
    }
    /// A probe for the process that runs now.
    pub(crate) fn tells<E: Effect<Result: From<String>>>(
        &self,
        life: &Life,
    ) -> impl Fn(&E, &IdempotencyKey) -> Outcome<Option<E::Result>> + Send + Sync + use<E> {
        let (p, life) = (self.clone(), life.clone());
        move |_, key| {
            let says = p.take_question();
            if let Says::Holds(door) = says {
                life.wait(door);
            }
            p.tell(&says, key).map(|found| found.map(E::Result::from))
        }
    }
    /// The same as a future.
    pub(crate) fn tells_async<E: Effect<Result: From<String>>>(
        &self,
        life: &Life,
    ) -> impl Fn(E, IdempotencyKey) -> std::pin::Pin<Box<dyn Future<Output = Outcome<Option<E::Result>>> + Send>>
    + Send
    + Sync
    + use<E> {
        let (p, life) = (self.clone(), life.clone());
        move |_, key| {
            let (p, life) = (p.clone(), life.clone());
            Box::pin(async move {
                let says = p.take_question();
                if let Says::Holds(door) = says {
                    life.wait_async(door).await;
                }
                p.tell(&says, &key).map(|found| found.map(E::Result::from))
            })
        }
    }

    fn take_call(&self, life: &Life, key: &IdempotencyKey, what: String) -> Result<Call, Fail> {
        if life.ended() {
            return Err(Fail::not_sent("this process is no more"));
        }
        let mut books = self.lock();
        let act = books.acts.pop_front().unwrap_or(Act::Does);
        books.calls.push((key.as_str().to_owned(), what.clone()));
        drop(books);
        self.stage.stir();
        Ok(Call { key: key.as_str().to_owned(), what, act })
    }
    fn carry_out(&self, life: &Life, call: &Call) -> Option<String> {
        let mut books = self.lock();
        match call.act {
            // A held call of a process that ended was never sent: it sat in its memory.
            Act::Holds(_) if life.ended() => None,
            Act::Does | Act::Loses | Act::Panics | Act::Holds(_) | Act::Dawdles(_) => {
                Some(books.book(&call.key, &call.what))
            }
            Act::Late => {
                books.late.push((call.key.clone(), call.what.clone()));
                None
            }
            Act::Vanishes
            | Act::HoldsThenErrs(_)
            | Act::HoldsThenRefuses(_)
            | Act::Refuses
            | Act::RefusesFor(_)
            | Act::RefusesForGood
            | Act::Unreachable
            | Act::Errs(_) => None,
        }
    }
    fn answer(&self, life: &Life, call: &Call, done: Option<String>) -> Outcome<String> {
        if life.ended() {
            return Err(Fail::new("this process is no more"));
        }
        match (&call.act, done) {
            (Act::Does | Act::Holds(_) | Act::Dawdles(_), Some(operation)) => Ok(operation),
            (Act::Does | Act::Holds(_) | Act::Dawdles(_), None) => Err(Fail::new("nothing came of it")),
            (Act::Loses | Act::Vanishes | Act::Late | Act::HoldsThenErrs(_), _) => {
                Err(Fail::new("no answer from the provider"))
            }
            (Act::Refuses | Act::HoldsThenRefuses(_), _) => Err(Fail::refused("declined")),
            (Act::RefusesFor(d), _) => Err(Fail::refused("too many requests").retry_after(*d)),
            (Act::RefusesForGood, _) => Err(Fail::refused("card stolen").for_good()),
            (Act::Unreachable, _) => Err(Fail::not_sent("no connection")),
            (Act::Panics, _) => resume_unwind(Box::new("a bug in the performer")),
            (Act::Errs(fail), _) => Err(fail()),
        }
    }
    fn take_question(&self) -> Says {
        let mut books = self.lock();
        books.asked += 1;
        let says = books.says.pop_front().unwrap_or(Says::Truth);
        drop(books);
        self.stage.stir();
        says
    }
    fn tell(&self, says: &Says, key: &IdempotencyKey) -> Outcome<Option<String>> {
        let truth = || {
            let books = self.lock();
            books.happened.iter().find(|h| h.key == key.as_str()).map(|h| h.operation.clone())
        };
        match says {
            Says::Truth | Says::Holds(_) => Ok(truth()),
            Says::NotThere => Ok(None),
            Says::CannotTell => Err(Fail::new("the lookup is down")),
            Says::Panics => resume_unwind(Box::new("a bug in the probe")),
        }
    }
}

struct Call {
    key: String,
    what: String,
    act: Act,
}

impl Call {
    fn before(&self) -> Option<&'static str> {
        match self.act {
            Act::Holds(door) | Act::HoldsThenErrs(door) | Act::HoldsThenRefuses(door) => Some(door),
            _ => None,
        }
    }
    fn after(&self) -> Option<&'static str> {
        match self.act {
            Act::Dawdles(door) => Some(door),
            _ => None,
        }
    }
}

impl Books {
    fn book(&mut self, key: &str, what: &str) -> String {
        let before = self.happened.iter().find(|h| h.key == key);
        if let Some(before) = before.filter(|_| self.dedupes) {
            return before.operation.clone();
        }
        let operation = format!("op_{}", self.happened.len() + 1);
        self.happened.push(Happened { key: key.to_owned(), what: what.to_owned(), operation: operation.clone() });
        operation
    }
}

fn what<E: Effect>(e: &E) -> String {
    serde_json::to_string(e).unwrap()
}

/// How often each request really happened; for ledgers of several jobs.
pub(crate) fn counts(happened: &[Happened]) -> HashMap<String, usize> {
    let mut out = HashMap::new();
    for h in happened {
        *out.entry(h.what.clone()).or_default() += 1;
    }
    out
}
