//! What every handler, caller and operation of one open queue shares.

use super::calls::Calls;
use super::effect::BoxFuture;
use super::kinds::Kinds;
use super::trace::TraceParent;
use super::trust::Trust;
use crate::clock::Clock;
use crate::error::Error;
use crate::model::Limits;
use crate::model::attempt::Run;
use crate::model::effect::EffectRecord;
use crate::model::id::{EffectId, IdempotencyKey, JobId, JobKey, KindId};
use crate::model::job::JobRow;
use crate::model::outbox::TopicNews;
use crate::model::policy::{KindRules, Policy};
use crate::model::review::Review;
use crate::model::time::Now;
use crate::rules::{CallFacts, Change, older};
use crate::store::{Lane, Op, Store, StoreError};
use crate::sync::atomic::{AtomicU8, Ordering};
use crate::sync::{Mutex, RwLock};
use std::borrow::Cow;
use std::cell::Cell;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

crate::sync::thread_local! {
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Marks this thread as inside a transaction closure until it is dropped.
pub(crate) struct InsideTransaction(bool);

impl InsideTransaction {
    pub(crate) fn enter() -> Self {
        Self(INSIDE.with(|inside| inside.replace(true)))
    }
}
impl Drop for InsideTransaction {
    fn drop(&mut self) {
        INSIDE.with(|inside| inside.set(self.0));
    }
}

/// Everything that runs on this thread from now on is inside: it is the writer's.
pub(crate) fn this_is_the_writer() {
    INSIDE.with(|inside| inside.set(true));
}

/// Whether this thread is inside a transaction closure, or the writer's own: a call of the queue would wait for itself.
pub(crate) fn inside_transaction() -> bool {
    INSIDE.with(Cell::get)
}

/// Who hears what became true, after the commit.
pub(crate) trait Report: Send + Sync {
    /// What one committed operation changed, in its order.
    fn changed(&self, changes: &[Changed]);
    /// A claim that an earlier process left behind ends here: it has a beginning here, too.
    fn carried(&self, kind: &str, continuing: bool);
    /// A duplicate was recognised and nothing happened a second time.
    fn suppressed(&self, kind: &str, at: Suppressed);
    /// What one committed operation changed in the outbox.
    fn outbox(&self, news: &[TopicNews]);
    /// What app code did in one committed transaction.
    fn did(&self, did: &Did) {
        self.changed(&did.changes);
        did.suppressed.iter().for_each(|kind| self.suppressed(kind, Suppressed::Enqueue));
        if !did.outbox.is_empty() {
            self.outbox(&did.outbox);
        }
    }
    /// Something was resumed: what waited may go on.
    fn resumed(&self);
    /// Something was paused or resumed, or a review was lifted: what the alert rules say of that is looked at.
    fn paused(&self);
    /// Something a person should read in the log.
    fn warn(&self, text: &str);
    /// A round became durable.
    fn committed(&self, took: Duration);
}

/// Where a duplicate was recognised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Suppressed {
    Enqueue,
    Effect,
    Step,
}

/// A change that became durable, with the names that it leaves out.
#[derive(Clone, Debug)]
pub(crate) struct Changed {
    pub(crate) kind: Arc<str>,
    pub(crate) queue: &'static str,
    pub(crate) key: JobKey,
    pub(crate) change: Change,
    /// For a claim: how long it could have run before.
    pub(crate) waited_ms: Option<u64>,
    /// For the end of a claim.
    pub(crate) run: Option<Run>,
}

impl Changed {
    pub(crate) fn new(kind: Arc<str>, queue: &'static str, key: JobKey, change: Change) -> Self {
        Self { kind, queue, key, change, waited_ms: None, run: None }
    }
}

/// What a transaction has done, to be told after its commit.
#[derive(Default)]
pub(crate) struct Did {
    pub(crate) changes: Vec<Changed>,
    pub(crate) suppressed: Vec<&'static str>,
    pub(crate) outbox: Vec<TopicNews>,
}

/// Runs futures and blocking closures beside the caller; implemented over tokio by the engine.
pub(crate) trait Bridge: Send + Sync {
    /// Runs a future to its end, whatever becomes of the caller.
    fn spawn(&self, f: BoxFuture<()>);
    /// The same; what is returned drops the future where it waits.
    fn spawn_abortable(&self, f: BoxFuture<()>) -> Box<dyn FnOnce() + Send>;
    /// Runs a blocking closure on a thread for such.
    fn spawn_blocking(&self, f: Box<dyn FnOnce() + Send>);
}

/// Watches app code that holds the writer.
pub(crate) trait Watchdog: Send + Sync {
    /// `name` starts to hold the writer; the returned guard ends it.
    fn hold(&self, name: &str) -> Box<dyn Send>;
}

/// Where the queue is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Phase {
    Open = 0,
    Stopping = 1,
    Closed = 2,
}

/// Keeps what an operation came to for its answer; only a store that fails undoes it.
pub(crate) fn keep<T>(done: &mut Option<Result<T, Error>>, came: Result<T, Error>) -> Result<(), StoreError> {
    match came {
        Err(Error::Store(e)) => Err(e),
        other => {
            *done = Some(other);
            Ok(())
        }
    }
}

/// What is paused, and why.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pauses {
    pub(crate) all: Option<String>,
    pub(crate) kinds: HashMap<String, String>,
    pub(crate) queues: HashMap<String, String>,
    pub(crate) topics: HashMap<String, String>,
}

impl Pauses {
    pub(crate) fn covers(&self, kind: &str, queue: Option<&str>) -> bool {
        self.all.is_some() || self.kinds.contains_key(kind) || queue.is_some_and(|q| self.queues.contains_key(q))
    }
    pub(crate) fn count(&self) -> usize {
        usize::from(self.all.is_some()) + self.kinds.len() + self.queues.len() + self.topics.len()
    }
    /// Why nothing of a topic is published, if so.
    pub(crate) fn topic(&self, topic: &str) -> Option<&str> {
        self.all.as_deref().or_else(|| self.topics.get(topic).map(String::as_str))
    }
}

/// The shared state of one open queue.
pub(crate) struct Shared {
    pub(crate) store: Store,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) registry: Kinds,
    pub(crate) limits: Limits,
    pub(crate) key_scope: String,
    pub(crate) calls: Calls,
    pub(crate) trust: Trust,
    pub(crate) report: Arc<dyn Report>,
    pub(crate) bridge: Option<Arc<dyn Bridge>>,
    pub(crate) watchdog: Arc<dyn Watchdog>,
    pub(crate) pauses: RwLock<Pauses>,
    /// The file may be an older copy, and nobody has lifted that yet.
    pub(crate) review: RwLock<Option<Review>>,
    /// What people said meanwhile of effects; another process asks them again.
    pub(crate) answered: Mutex<HashSet<(JobId, EffectId)>>,
    pub(crate) trace: TraceParent,
    pub(crate) names: RwLock<HashMap<KindId, Arc<str>>>,
    pub(crate) phase: AtomicU8,
    pub(crate) pid: u32,
    pub(crate) draws: Mutex<Box<dyn FnMut() -> u64 + Send>>,
    pub(crate) plain: KindRules,
    /// Effects keep no records: for tests that show what would happen then.
    #[cfg(feature = "testkit")]
    pub(crate) naive: bool,
}

impl Shared {
    pub(crate) fn now(&self) -> Now {
        self.clock.now()
    }
    /// The clocks, once more compared with each other.
    pub(crate) fn read_clock(&self) -> Now {
        let (now, boot) = self.clock.read();
        self.trust.observe(now, boot);
        now
    }
    pub(crate) fn draw(&self) -> u64 {
        (self.draws.lock())()
    }
    pub(crate) fn phase(&self) -> Phase {
        match self.phase.load(Ordering::Acquire) {
            0 => Phase::Open,
            1 => Phase::Stopping,
            _ => Phase::Closed,
        }
    }
    /// Refuses what cannot work here: inside a closure it would wait for itself, in a forked child the file is not ours.
    pub(crate) fn may_call(&self) -> Result<(), Error> {
        if inside_transaction() {
            return Err(Error::InsideTransaction);
        }
        if self.is_forked() {
            return Err(Error::Forked);
        }
        if self.phase() == Phase::Closed {
            return Err(Error::ShutDown);
        }
        Ok(())
    }
    /// This is not the process that opened the file, but a child that was forked from it.
    pub(crate) fn is_forked(&self) -> bool {
        std::process::id() != self.pid
    }
    pub(crate) fn submit(&self, lane: Lane, op: Box<dyn Op>) -> Result<(), Error> {
        self.store.submit(lane, op).map_err(|(_, e)| store_error(e))
    }
    /// What is known about the calls of an effect, at `now`.
    pub(crate) fn call_facts(&self, job: JobId, record: &EffectRecord, now: Now) -> CallFacts {
        // `now` may be a while old: a calendar that was set since then is seen first.
        self.read_clock();
        let age = self.trust.age(record.first_call, now);
        self.calls.facts(job, &record.id, now.mono, age)
    }
    /// The name under which jobs of this kind are stored.
    pub(crate) fn kind_name(&self, id: KindId) -> Arc<str> {
        if let Some(name) = self.names.read().get(&id) {
            return name.clone();
        }
        let all = self.store.read(|v| v.kinds()).unwrap_or_default();
        let mut names = self.names.write();
        for (k, n) in all {
            names.entry(k).or_insert_with(|| n.into());
        }
        names.get(&id).cloned().unwrap_or_else(|| format!("kind-{}", id.0).into())
    }
    /// The rules of a stored kind: the registered ones, or the plain defaults for a kind that today's app does not know.
    pub(crate) fn rules_of(&self, kind: KindId) -> &KindRules {
        self.rules_named(&self.kind_name(kind))
    }
    /// Rules as they hold now.
    pub(crate) fn in_force<'a>(&self, rules: &'a KindRules) -> Cow<'a, KindRules> {
        older::in_force(rules, self.review.read().as_ref())
    }
    /// The review that holds for an effect: none, once a person has answered for it while the file was under review.
    pub(crate) fn review_of(&self, job: JobId, effect: &EffectId) -> Option<Review> {
        let review = self.review.read();
        review.as_ref().filter(|_| !self.answered.lock().contains(&(job, effect.clone()))).cloned()
    }
    /// A person says that an effect did not happen.
    pub(crate) fn answered(&self, job: JobId, effect: &EffectId) {
        if self.review.read().is_some() {
            self.answered.lock().insert((job, effect.clone()));
        }
    }
    pub(crate) fn rules_named(&self, name: &str) -> &KindRules {
        self.registry.kind(name).map_or(&self.plain, |k| &k.rules)
    }
    /// The queue of a kind, as a label.
    pub(crate) fn queue_of(&self, kind: &str) -> &'static str {
        self.registry.kind(kind).map_or("default", |k| k.queue)
    }
    pub(crate) fn paused(&self, kind: &str) -> bool {
        self.covered(&self.pauses.read(), kind)
    }
    /// What holds jobs of this kind up, each with its reason: what is paused.
    pub(crate) fn holds(&self, kind: &str) -> Vec<(&'static str, String)> {
        let pauses = self.pauses.read();
        let today = self.registry.kind(kind);
        let of_kind = pauses.kinds.get(kind).or_else(|| pauses.kinds.get(today?.name));
        let of_queue = today.and_then(|today| pauses.queues.get(today.queue));
        let all = [("everything", pauses.all.as_ref()), ("its kind", of_kind), ("its queue", of_queue)];
        all.into_iter().filter_map(|(what, why)| Some((what, why?.clone()))).collect()
    }
    /// Whether these pauses cover jobs stored under `kind`: by that name, by the kind's name of today, or by its queue.
    pub(crate) fn covered(&self, pauses: &Pauses, kind: &str) -> bool {
        match self.registry.kind(kind) {
            Some(k) => pauses.covers(kind, Some(k.queue)) || pauses.covers(k.name, None),
            None => pauses.covers(kind, None),
        }
    }
    /// The key of one generation of an effect.
    pub(crate) fn idempotency_key(
        &self,
        row: &JobRow,
        kind: &str,
        effect: &crate::model::id::EffectId,
        generation: u32,
    ) -> IdempotencyKey {
        let key: &JobKey = &row.key;
        crate::rules::effect::idempotency_key(&self.key_scope, kind, key, row.incarnation, effect, generation)
    }
}

/// Rules for kinds that nobody registered.
pub(crate) fn plain_rules() -> KindRules {
    Policy::default().resolve(&[])
}

/// How a store failure reads to a caller.
pub(crate) fn store_error(e: StoreError) -> Error {
    Error::from(e)
}

/// A closure of the app may hold the writer this long before it is named in a warning.
pub(crate) const HOLD_WARNING: Duration = Duration::from_secs(5);
