//! What is said before a queue starts, and the start: the setup is checked, the file opened, what a dead process left behind is
//! recovered, and only then the threads begin.

mod start;

use crate::clock::SystemClock;
use crate::desk::alert::{self, Alert, Listener};
#[cfg(feature = "tokio")]
use crate::engine::bridge::Handle;
use crate::engine::core::{Core, Pool};
use crate::engine::dispatcher::{CLOCK, Dispatcher, ToTasks};
use crate::engine::idle;
use crate::engine::ops::{PAIRS, PAUSES, REWOUND, load_pauses};
use crate::engine::recover;
use crate::engine::relays::{AsyncDeliver, Deliver, Relays};
use crate::engine::report::Reporter;
use crate::engine::review::{self, REVIEW};
use crate::engine::tell::{self, ALERTS};
use crate::engine::wake::TimerHandle;
use crate::engine::worker;
use crate::error::{Error, Setup};
use crate::handler::async_cx::AsyncCx;
use crate::handler::calls::Calls;
use crate::handler::cx::Cx;
use crate::handler::effect::{self, AtStart, Effect};
use crate::handler::fail::Outcome;
use crate::handler::handlers::Handlers;
use crate::handler::job::Job;
use crate::handler::kinds::Kinds;
use crate::handler::publish::{AsyncPublisher, Publisher};
use crate::handler::shared::{Bridge, Phase, Report as _, Shared, plain_rules};
use crate::handler::trace::TraceParent;
use crate::handler::trust::{Marks, Trust};
use crate::jobs::{Jobs, Tasks};
use crate::model::id::IdempotencyKey;
use crate::model::outbox::Topic;
use crate::observe::{AlertRules, Observer, SafetyCards, Sink};
use crate::store::{Commits, Place, ROOM_EVERY, Store, StoreError, StoreEvent, StoreOptions};
use crate::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize};
use crate::sync::{Condvar, Mutex, RwLock};
use start::{alarms, carry_on, hold_for_review, recover_claims, room_says, serve, suspect_messages, tell};
use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Everything that is said before a queue starts.
#[must_use = "a builder does nothing until .start()"]
pub struct Builder {
    options: StoreOptions,
    limits: AtStart,
    registry: Kinds,
    handlers: Handlers,
    key_scope: Option<String>,
    workers: Option<usize>,
    tasks: usize,
    sinks: Vec<Box<dyn Sink>>,
    publishers: Vec<(String, Deliver)>,
    topics: Vec<(String, Topic)>,
    trace: TraceParent,
    #[cfg(feature = "tokio")]
    runtime: Option<Handle>,
    boot: [u8; 16],
    nonce: u64,
    seed: Option<u64>,
    #[cfg(feature = "testkit")]
    naive: bool,
    listeners: Vec<Listener>,
    alert_rules: AlertRules,
}

impl Builder {
    pub(crate) fn new(place: Place) -> Self {
        Self {
            options: StoreOptions::new(place, Arc::new(SystemClock::new())),
            limits: AtStart::default(),
            registry: Kinds::default(),
            handlers: Handlers::default(),
            key_scope: None,
            workers: None,
            tasks: 64,
            sinks: Vec::new(),
            publishers: Vec::new(),
            topics: Vec::new(),
            trace: TraceParent::default(),
            #[cfg(feature = "tokio")]
            runtime: None,
            boot: recover::boot_id(),
            nonce: recover::process_nonce(),
            seed: None,
            #[cfg(feature = "testkit")]
            naive: false,
            listeners: Vec::new(),
            alert_rules: AlertRules::default(),
        }
    }

    /// A blocking handler for the jobs of one kind.
    pub fn on<J: Job>(mut self, f: impl Fn(&Cx, J) -> Outcome + Send + Sync + 'static) -> Self {
        self.registry.add::<J>();
        self.handlers.on::<J>(f);
        self
    }
    /// An async handler for the jobs of one kind. Needs the feature `tokio`.
    pub fn on_async<J: Job, Fut: Future<Output = Outcome> + Send + 'static>(
        mut self,
        f: impl Fn(AsyncCx, J) -> Fut + Send + Sync + 'static,
    ) -> Self {
        self.registry.add::<J>();
        self.handlers.on_async::<J, Fut>(f);
        self
    }
    /// How an effect is performed. Ok = it happened; see [`Fail`](crate::Fail) for the rest.
    pub fn effect<E: Effect>(
        mut self,
        f: impl Fn(&E, &IdempotencyKey) -> Outcome<E::Result> + Send + Sync + 'static,
    ) -> Self {
        self.registry.performer::<E>(effect::blocking::<E>(self.limits.clone(), f));
        self
    }
    /// How an effect is performed, async. Needs the feature `tokio`.
    pub fn effect_async<E: Effect, Fut: Future<Output = Outcome<E::Result>> + Send + 'static>(
        mut self,
        f: impl Fn(E, IdempotencyKey) -> Fut + Send + Sync + 'static,
    ) -> Self {
        self.registry.performer::<E>(effect::future::<E, Fut>(self.limits.clone(), f));
        self
    }
    /// How to find out whether an effect happened: Some = it did, None = it is not there, Err = cannot tell.
    pub fn probe<E: Effect>(
        mut self,
        f: impl Fn(&E, &IdempotencyKey) -> Outcome<Option<E::Result>> + Send + Sync + 'static,
    ) -> Self {
        self.registry.prober::<E>(effect::blocking_probe::<E>(self.limits.clone(), f));
        self
    }
    /// How to find out, async. Needs the feature `tokio`.
    pub fn probe_async<E: Effect, Fut: Future<Output = Outcome<Option<E::Result>>> + Send + 'static>(
        mut self,
        f: impl Fn(E, IdempotencyKey) -> Fut + Send + Sync + 'static,
    ) -> Self {
        self.registry.prober::<E>(effect::future_probe::<E, Fut>(self.limits.clone(), f));
        self
    }
    /// Who delivers the messages of a topic: a [`Publisher`], or a closure `|message: &Message| -> Outcome`. Without one, messages
    /// of the topic wait, visibly, and stop nothing.
    pub fn publisher(mut self, topic: impl Into<String>, publisher: impl Publisher) -> Self {
        self.publishers.push((topic.into(), Deliver::Blocking(Box::new(publisher))));
        self
    }
    /// Who delivers the messages of a topic, async. Needs the feature `tokio`.
    pub fn publisher_async<P: AsyncPublisher>(mut self, topic: impl Into<String>, publisher: P) -> Self {
        let publisher = Arc::new(publisher);
        let deliver: AsyncDeliver = Box::new(move |messages| {
            let publisher = publisher.clone();
            Box::pin(async move { publisher.publish_all(messages).await })
        });
        self.publishers.push((topic.into(), Deliver::Async(deliver)));
        self
    }
    /// How the messages of a topic are delivered: backoff, deadline, batches, what happens behind a stuck one. See [`Topic`].
    pub fn topic(mut self, topic: impl Into<String>, policy: Topic) -> Self {
        self.topics.push((topic.into(), policy));
        self
    }
    /// Which trace the caller is in, as a W3C `traceparent`: every message handed in by [`Tx::outbox`](crate::Tx::outbox) or
    /// [`Tx::send`](crate::Tx::send) carries it as the header of that name, unless the sender gave one. Asked on the thread, or in
    /// the task, that calls `transact`, `commit` or `finish`, once each, because the closure runs on the writer's thread. A value
    /// that is no `traceparent` is left out with one warning; the message goes its way.
    ///
    /// With OpenTelemetry: read the current span's context and format it with its text map propagator.
    pub fn trace_parent(mut self, f: impl Fn() -> Option<String> + Send + Sync + 'static) -> Self {
        self.trace = TraceParent::new(f);
        self
    }
    /// Distinguishes installations that share one account at a provider: part of every idempotency key. Required once a risky
    /// effect is registered. It must differ between installations unless they share the same orders, and must never change.
    pub fn key_scope(mut self, scope: &str) -> Self {
        self.key_scope = Some(scope.to_owned());
        self
    }
    /// Threads for blocking handlers (default: twice the cores, 4 to 16). With 0 this process only enqueues for them.
    pub fn workers(mut self, n: usize) -> Self {
        self.workers = Some(n);
        self
    }
    /// Async handlers at a time (default 64).
    pub fn tasks(mut self, n: usize) -> Self {
        self.tasks = n.clamp(1, MOST_TASKS);
        self
    }
    /// The runtime for async handlers, performers and probes; without one the queue starts its own.
    #[cfg(feature = "tokio")]
    pub fn runtime(mut self, handle: Handle) -> Self {
        self.runtime = Some(handle);
        self
    }
    /// Memory for pages of the file (default 32 MiB).
    pub fn cache_bytes(mut self, n: usize) -> Self {
        self.options.cache_bytes = n;
        self
    }
    /// The largest payload, request, result or step value, in bytes (default 1 MiB, at most 16 MiB).
    pub fn payload_limit(mut self, n: usize) -> Self {
        self.options.limits.payload = n;
        self
    }
    /// One-phase commits: half the time per commit, and the first failed fsync stops the queue until the process restarts. After
    /// a failed fsync and a later power cut one-phase files were seen to lose everything (17 of 630 runs), two-phase ones never.
    pub fn one_phase_commits(mut self) -> Self {
        self.options.commits = Commits::OnePhase;
        self
    }
    /// Opens without checking every page. A flipped bit is then read as a value, without an error.
    pub fn skip_integrity_check(mut self) -> Self {
        self.options.check_integrity = false;
        self
    }
    /// Where the log line of every attempt goes, beside the `tracing` event: e.g. a [`ProofLog`](crate::ProofLog).
    pub fn sink(mut self, sink: impl Sink + 'static) -> Self {
        self.sinks.push(Box::new(sink));
        self
    }
    /// Who is told that a person is needed: the moment a dead letter is created, with its question, and when one of the
    /// [`alert_rules`](Self::alert_rules) begins or ceases to speak. Called on a thread of its own, one alert after the other,
    /// after the commit; it may pause what the alert is about. Several callbacks are all called, one after the other.
    ///
    /// Nothing is lost, and nothing is told twice: what is owed is in the file before the call, and leaves it when every callback
    /// has returned (or panicked, which is logged). If the process ends in between, the next one that has a callback tells it again,
    /// and [`Alert::again`](crate::Alert::again) says that it may have been told. What is over before its turn came is not told.
    ///
    /// While a callback runs nothing else is told, though everything is watched and kept. One that has not returned after 5 s is
    /// named in a warning by the place where it was registered, and seen in [`Jobs::snapshot`](crate::Jobs::snapshot): hand slow work
    /// to a thread of your own.
    #[track_caller]
    pub fn on_alert(mut self, f: impl Fn(&Alert) + Send + Sync + 'static) -> Self {
        self.listeners.push(Listener::new(f));
        self
    }
    /// When the rules speak. They are watched, kept and logged whether or not there is a callback, and what they say is read with
    /// [`Jobs::alerts`](crate::Jobs::alerts).
    pub fn alert_rules(mut self, rules: AlertRules) -> Self {
        self.alert_rules = rules;
        self
    }
    /// Another clock.
    #[cfg(feature = "testkit")]
    pub fn clock(mut self, clock: Arc<dyn crate::clock::Clock>) -> Self {
        self.options.clock = clock;
        self
    }
    /// Another boot and process, as the sidecar tells them apart.
    #[cfg(feature = "testkit")]
    pub fn process(mut self, boot: [u8; 16], nonce: u64) -> Self {
        self.boot = boot;
        self.nonce = nonce;
        self
    }
    /// How big the parts of the index of intents are.
    #[cfg(feature = "testkit")]
    pub fn intent_sizes(mut self, sizes: crate::store::Sizes) -> Self {
        self.options.intents = sizes;
        self
    }
    /// Effects keep no records.
    #[cfg(feature = "testkit")]
    pub(crate) fn naive(mut self, naive: bool) -> Self {
        self.naive = naive;
        self
    }
    /// Seeds the jitter.
    #[cfg(feature = "testkit")]
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// The safety cards of what is registered so far: nothing is opened or started. A test renders them and compares the
    /// committed file (`testkit::check_safety_file`).
    ///
    /// # Errors
    /// [`Error::Setup`] for a setup that [`start`](Self::start) would refuse: its cards would promise what cannot run.
    pub fn safety_cards(&self) -> Result<SafetyCards, Error> {
        self.registry.check(self.key_scope.as_deref(), &self.options.limits)?;
        Ok(crate::engine::cards::cards(&self.registry))
    }

    /// Checks the setup, opens the file, recovers what a dead process left behind, and starts the threads.
    ///
    /// A file whose sidecar (`<file>.run`) is missing, is not its own, or has seen more than the file may be an old copy: it opens with
    /// everything paused, which a warning and [`Jobs::pauses`](crate::Jobs::pauses) say, until
    /// [`Jobs::resume`](crate::Jobs::resume)`(Scope::All)`, and under a [`review`](crate::Jobs::review), until
    /// [`Jobs::lift_review`](crate::Jobs::lift_review). The page docs/running.md says what to look at before.
    ///
    /// # Errors
    /// [`Error::Setup`] for what is wrong with the registered kinds and effects, before the file is touched;
    /// [`Error::Store`] for a file that cannot be opened: it is left untouched.
    pub fn start(mut self) -> Result<Jobs, Error> {
        self.registry.check(self.key_scope.as_deref(), &self.options.limits)?;
        self.limits.set(self.options.limits);
        let bridge = self.bridge()?;
        let relays = Arc::new(Relays::new(self.relays()?));
        let clock = self.options.clock.clone();
        let limits = self.options.limits;
        self.options.note_failures = self.alert_rules.failures;
        let (store, opened) = Store::open(self.options)?;
        let (now, boot) = clock.read();
        let (timer, told) = TimerHandle::new();
        let observer = Observer::new(self.sinks);
        for kind in &self.registry.kinds {
            observer.counters().register(kind.name, kind.rules.effects.iter().map(|c| c.name()));
        }
        relays.topics().for_each(|topic| observer.counters().topic(topic));
        let (marks, pauses, rewound, alerts, review) = store.read(|v| {
            Ok((v.meta(CLOCK)?, v.metas(PAUSES)?, v.meta(REWOUND)?.is_some(), v.meta(ALERTS), v.meta(REVIEW)))
        })?;
        let review = review::load(review, now.wall, opened.epoch)?;
        // What the rules remember is not worth the queue: they begin anew.
        let alerts = StoreError::readable(alerts)?;
        self.registry.pairs = match store.read(|v| v.meta(PAIRS)) {
            Ok(None) => Some(BTreeSet::new()),
            // Unless it can be read, every kind that is not registered here may need two, and the row stays as it is.
            Ok(Some(bytes)) => serde_json::from_slice(&bytes).ok(),
            Err(StoreError::Corrupt { .. }) => None,
            Err(e) => return Err(e.into()),
        };
        let alarms = alarms(&store, self.alert_rules, alerts.as_deref(), !self.listeners.is_empty(), &timer, &clock)?;
        let reporter = Arc::new(Reporter::new(timer.clone(), clock.clone(), relays.clone(), observer, alarms.clone()));
        let marks = marks.and_then(|m| Marks::from_bytes(&m));
        let kept = marks.unwrap_or_default();
        if crate::engine::aborts_on_panic() {
            reporter.warn(
                "this program aborts on panic: a handler that panics ends the process and counts as a process death",
            );
        }
        for what in &opened.unreadable {
            reporter.warn(&format!("the index of intents is damaged: {what}; keep a copy of the file and look at it"));
        }
        let shared = Arc::new(Shared {
            clock: clock.clone(),
            registry: self.registry,
            limits,
            key_scope: self.key_scope.unwrap_or_default(),
            calls: Calls::of(opened.instance, now.mono),
            trust: Trust::new(kept, now, boot),
            report: reporter.clone(),
            bridge: bridge.as_ref().map(|b| b.clone() as Arc<dyn Bridge>),
            watchdog: Arc::new(timer.clone()),
            pauses: RwLock::new(load_pauses(pauses)),
            review: RwLock::new(review),
            answered: Mutex::default(),
            trace: self.trace,
            names: RwLock::default(),
            phase: AtomicU8::new(Phase::Open as u8),
            pid: std::process::id(),
            draws: Mutex::new(crate::engine::draws(self.seed)),
            plain: plain_rules(),
            #[cfg(feature = "testkit")]
            naive: self.naive,
            store: store.clone(),
        });
        let workers = self.workers.unwrap_or_else(default_workers);
        let core = Arc::new(Core {
            shared: shared.clone(),
            handlers: self.handlers,
            threads: Pool::new(workers),
            tasks: Pool::new(self.tasks),
            gated: AtomicBool::new(false),
            ending: AtomicUsize::new(0),
            running: Mutex::default(),
            timer: timer.clone(),
            ended: Condvar::new(),
            ended_lock: Mutex::new(0),
            boot: self.boot,
            nonce: self.nonce,
            suspect_over: AtomicBool::new(false),
            stuck: AtomicUsize::new(0),
            relays,
            cancels: Mutex::default(),
            alarms,
        });
        let (weak, waiting) = (Arc::downgrade(&core), reporter.clone());
        store.on_event(Box::new(move |e| {
            tell(&e);
            match e {
                // Lease timers stood still: nobody is to blame for the time that the disk took.
                StoreEvent::Healed { after_ms } => {
                    weak.upgrade().iter().flat_map(|core| core.attempts()).for_each(|a| a.stand_still(after_ms));
                }
                // Nothing will settle any more.
                StoreEvent::Stopped { .. } => waiting.release(),
                // Nothing was claimed: in a moment another round is made, also if nobody asks for one.
                StoreEvent::HookFailed { .. } => {
                    if let Some(core) = weak.upgrade() {
                        core.timer.alone(core.shared.now().mono.after(Duration::from_secs(1)));
                    }
                }
                // In a while it is looked whether there is room again, also if nobody asks for anything.
                StoreEvent::Room { room, .. } => {
                    if let Some(core) = weak.upgrade() {
                        if !room.is_normal() {
                            core.timer.alone(core.shared.now().mono.after(ROOM_EVERY));
                        }
                        core.shared.report.paused();
                    }
                }
                StoreEvent::HealStarted { .. } | StoreEvent::SlowClosure { .. } => {}
            }
        }));
        if rewound {
            hold_for_review(&shared, &opened, kept.dated(), now.wall)?;
        }
        let room = store.room();
        if !room.is_normal() {
            reporter.warn(room_says(room));
            timer.alone(now.mono.after(ROOM_EVERY));
        }
        let suspects = recover_claims(&shared, &opened.running, &opened.slots, self.boot, self.nonce)?;
        suspect_messages(&core, &opened.slots)?;
        store.run_file().forget_found();
        let served = serve(&core)?;
        carry_on(&shared)?;

        let (to_threads, jobs) = worker::channel(workers);
        let (to_tasks, abort) = task_ends(&core, bridge.as_ref());
        let dispatcher = Dispatcher::new(core.clone(), served, to_threads, to_tasks, opened.epoch, suspects);
        store.install_hook(Box::new(dispatcher));
        let tick = timer.clone();
        // From here on the hook and the store hold each other: an early return has to go through the end of a queue, too, or the
        // file would stay locked.
        let queue = Jobs::of(core, reporter, timer, bridge);
        if let Some(teller) = queue.0.core.alarms.as_ref().and_then(|a| a.teller.clone()) {
            let calls = alert::teller(shared.clone(), teller.clone(), self.listeners);
            tell::spawn(teller, shared, calls).map_err(|e| Error::Store(e.into()))?;
        }
        let begun = crate::engine::spawn(&queue.0.core, told, &jobs, abort, workers, &mut queue.0.threads.lock());
        begun.map_err(|e| Error::Store(e.into()))?;
        clock.subscribe(Box::new(move || tick.tick(None)));
        store.poke();
        Ok(queue)
    }

    /// [`start`](Self::start), awaited: the check of a large file takes its time.
    ///
    /// # Errors
    /// As there.
    pub async fn start_async(self) -> Result<Jobs, Error> {
        idle::aside(move || self.start()).await.unwrap_or(Err(Error::ShutDown))
    }

    /// Every publisher with the policy of its topic.
    fn relays(&mut self) -> Result<Vec<(String, Topic, Deliver)>, Error> {
        let most = self.options.limits.name;
        let mut policies = BTreeMap::new();
        for (topic, policy) in std::mem::take(&mut self.topics) {
            if policies.insert(topic.clone(), policy).is_some() {
                return Err(Setup::TopicTwice(topic).into());
            }
        }
        let mut relays: Vec<(String, Topic, Deliver)> = Vec::new();
        for (topic, deliver) in std::mem::take(&mut self.publishers) {
            if topic.is_empty() || topic.len() > most {
                return Err(Setup::BadName { what: "topic", name: topic }.into());
            }
            if relays.iter().any(|(t, _, _)| *t == topic) {
                return Err(Setup::TopicTwice(topic).into());
            }
            let policy = policies.remove(&topic).unwrap_or_default();
            relays.push((topic, policy, deliver));
        }
        match policies.into_keys().next() {
            None => Ok(relays),
            Some(topic) => Err(Setup::NoPublisher(topic).into()),
        }
    }
    fn first_async(&self) -> Option<String> {
        let handler = self.handlers.first_async().map(|k| format!("the handler of {k:?}"));
        let publisher = || {
            let first = self.publishers.iter().find(|(_, deliver)| matches!(deliver, Deliver::Async(_)));
            first.map(|(topic, _)| format!("the publisher of {topic:?}"))
        };
        handler
            .or_else(publisher)
            .or_else(|| self.registry.first_async().map(|e| format!("the performer or probe of {e:?}")))
    }
    #[cfg(feature = "tokio")]
    fn bridge(&self) -> Result<Option<Arc<Tasks>>, Error> {
        match (self.first_async(), &self.runtime) {
            (None, None) => Ok(None),
            (_, Some(handle)) => Ok(Some(Tasks::given(handle.clone()))),
            (Some(_), None) => Tasks::own(default_cores()).map(Some).map_err(|e| Error::Store(e.into())),
        }
    }
    #[cfg(not(feature = "tokio"))]
    fn bridge(&self) -> Result<Option<Arc<Tasks>>, Error> {
        match self.first_async() {
            None => Ok(None),
            Some(what) => Err(Error::NoRuntime(what)),
        }
    }
}

fn task_ends(core: &Arc<Core>, bridge: Option<&Arc<Tasks>>) -> (Option<ToTasks>, worker::Abort) {
    match bridge {
        None => (None, Box::new(|_| {})),
        Some(b) => {
            let (run, abort, core, of) = (b.clone(), b.clone(), core.clone(), core.clone());
            (Some(Box::new(move |claimed| run.run(&core, claimed))), Box::new(move |token| abort.abort(&of, token)))
        }
    }
}

fn default_cores() -> usize {
    std::thread::available_parallelism().map_or(2, std::num::NonZero::get)
}

/// More handlers than any runtime carries at once; their places are counted, so a number without bound would be none.
const MOST_TASKS: usize = 1 << 20;

fn default_workers() -> usize {
    (2 * default_cores()).clamp(4, 16)
}

impl Jobs {
    /// A builder for the queue in this file; the file is created by [`start`](Builder::start) if there is none.
    pub fn open(path: impl AsRef<Path>) -> Builder {
        Builder::new(Place::File(path.as_ref().to_owned()))
    }
    /// A builder for a queue on a simulated disk.
    #[cfg(feature = "testkit")]
    pub fn on_disk(disk: Arc<dyn crate::store::DiskFactory>) -> Builder {
        Builder::new(Place::Disk(disk))
    }
}
