//! The face: open a queue, enqueue, run, wait, pause, shut down. Everything here checks, encodes, asks the writer and waits.

#[cfg(feature = "testkit")]
use crate::clock::Clock;
use crate::clock::SystemClock;
use crate::engine::core::Pooled;
use crate::engine::core::{Core, Pool};
use crate::engine::dispatcher::{CLOCK, Dispatcher, Served, ToTasks};
use crate::engine::idle;
use crate::engine::ops::{CancelOp, PAUSES, PauseOp, load_pauses};
use crate::engine::recover::{self, RecoverOp};
use crate::engine::report::Reporter;
use crate::engine::wake::TimerHandle;
use crate::engine::worker;
use crate::error::Error;
use crate::handler::async_cx::AsyncCx;
use crate::handler::calls::Calls;
use crate::handler::cx::Cx;
use crate::handler::effect::{self, Effect};
use crate::handler::enqueue::{EnqueueOp, RunAgainOp, Spec};
use crate::handler::fail::Outcome;
use crate::handler::handlers::{Handler, Handlers};
use crate::handler::job::Job;
use crate::handler::kinds::{Kind, Kinds};
use crate::handler::reply::{Reply, Waited, answer};
use crate::handler::shared::{Bridge, Phase, Report as _, Shared, inside_transaction, plain_rules, store_error};
use crate::handler::transact::TransactOp;
use crate::handler::trust::{Marks, Trust};
use crate::handler::tx::Tx;
use crate::model::id::{IdempotencyKey, JobId, KindId};
use crate::model::job::{Enqueued, State};
use crate::model::time::Wall;
use crate::observe::{Observer, Sink, events};
use crate::rules::admit::{self, Start};
use crate::store::{AppRead, Commits, Lane, Place, Store, StoreEvent, StoreOptions};
use parking_lot::{Condvar, Mutex, RwLock};
use serde::de::DeserializeOwned;
use std::future::Future;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime};

pub use crate::engine::idle::Report;
pub use crate::engine::ops::Scope;

/// Everything that is said before a queue starts.
#[must_use = "a builder does nothing until .start()"]
pub struct Builder {
    options: StoreOptions,
    registry: Kinds,
    handlers: Handlers,
    key_scope: Option<String>,
    workers: Option<usize>,
    tasks: usize,
    sinks: Vec<Box<dyn Sink>>,
    #[cfg(feature = "tokio")]
    runtime: Option<Handle>,
    boot: [u8; 16],
    nonce: u64,
    seed: Option<u64>,
}

#[cfg(feature = "tokio")]
use crate::engine::bridge::Handle;

impl Builder {
    pub(crate) fn new(place: Place) -> Self {
        Self {
            options: StoreOptions::new(place, Arc::new(SystemClock::new())),
            registry: Kinds::default(),
            handlers: Handlers::default(),
            key_scope: None,
            workers: None,
            tasks: 64,
            sinks: Vec::new(),
            #[cfg(feature = "tokio")]
            runtime: None,
            boot: recover::boot_id(),
            nonce: recover::process_nonce(),
            seed: None,
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
        self.registry.performer::<E>(effect::blocking::<E>(self.options.limits, f));
        self
    }
    /// How an effect is performed, async. Needs the feature `tokio`.
    pub fn effect_async<E: Effect, Fut: Future<Output = Outcome<E::Result>> + Send + 'static>(
        mut self,
        f: impl Fn(E, IdempotencyKey) -> Fut + Send + Sync + 'static,
    ) -> Self {
        self.registry.performer::<E>(effect::future::<E, Fut>(self.options.limits, f));
        self
    }
    /// How to find out whether an effect happened: Some = it did, None = it is not there, Err = cannot tell.
    pub fn probe<E: Effect>(
        mut self,
        f: impl Fn(&E, &IdempotencyKey) -> Outcome<Option<E::Result>> + Send + Sync + 'static,
    ) -> Self {
        self.registry.prober::<E>(effect::blocking_probe::<E>(self.options.limits, f));
        self
    }
    /// How to find out, async. Needs the feature `tokio`.
    pub fn probe_async<E: Effect, Fut: Future<Output = Outcome<Option<E::Result>>> + Send + 'static>(
        mut self,
        f: impl Fn(E, IdempotencyKey) -> Fut + Send + Sync + 'static,
    ) -> Self {
        self.registry.prober::<E>(effect::future_probe::<E, Fut>(self.options.limits, f));
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
        self.tasks = n.max(1);
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
    /// The largest payload, request, result or step value, in bytes (default 1 MiB). Call it before the effects are registered.
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
    /// Another clock.
    #[cfg(feature = "testkit")]
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
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
    /// Seeds the jitter.
    #[cfg(feature = "testkit")]
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// Checks the setup, opens the file, recovers what a dead process left behind, and starts the threads.
    ///
    /// # Errors
    /// [`Error::Setup`] for what is wrong with the registered kinds and effects, before the file is touched;
    /// [`Error::Store`] for a file that cannot be opened: it is left untouched.
    pub fn start(self) -> Result<Jobs, Error> {
        self.registry.check(self.key_scope.as_deref(), &self.options.limits)?;
        let bridge = self.bridge()?;
        let clock = self.options.clock.clone();
        let limits = self.options.limits;
        let (store, opened) = Store::open(self.options)?;
        let now = clock.now();
        let (timer, told) = TimerHandle::new();
        let observer = Observer::new(self.sinks);
        for kind in &self.registry.kinds {
            observer.counters().register(kind.name, kind.rules.effects.iter().map(|c| c.name()));
        }
        let reporter = Arc::new(Reporter::new(timer.clone(), clock.clone(), observer));
        let (marks, pauses) = store.read(|v| Ok((v.meta(CLOCK)?, v.metas(PAUSES)?)))?;
        let marks = marks.and_then(|m| Marks::from_bytes(&m));
        let kept = marks.unwrap_or(Marks { high: Wall(0), stepped: Wall(0), trusted_ms: 0 });
        if crate::engine::aborts_on_panic() {
            reporter.warn(
                "this program aborts on panic: a handler that panics ends the process and counts as a process death",
            );
        }
        let shared = Arc::new(Shared {
            clock: clock.clone(),
            registry: self.registry,
            limits,
            key_scope: self.key_scope.unwrap_or_default(),
            calls: Calls::of(opened.instance, now.mono),
            trust: Trust::new(kept, now, clock.boot_ms()),
            report: reporter.clone(),
            bridge: bridge.as_ref().map(|b| b.clone() as Arc<dyn Bridge>),
            watchdog: Arc::new(timer.clone()),
            pauses: RwLock::new(load_pauses(pauses)),
            names: RwLock::default(),
            phase: AtomicU8::new(Phase::Open as u8),
            pid: std::process::id(),
            draws: Mutex::new(crate::engine::draws(self.seed)),
            plain: plain_rules(),
            store: store.clone(),
        });
        let workers = self.workers.unwrap_or_else(default_workers);
        let core = Arc::new(Core {
            shared: shared.clone(),
            handlers: self.handlers,
            threads: Pool::new(workers),
            tasks: Pool::new(self.tasks),
            gated: AtomicBool::new(false),
            ending: std::sync::atomic::AtomicUsize::new(0),
            running: Mutex::default(),
            timer: timer.clone(),
            ended: Condvar::new(),
            ended_lock: Mutex::new(0),
            boot: self.boot,
            nonce: self.nonce,
            suspect_over: AtomicBool::new(false),
            stuck: AtomicUsize::new(0),
            cancels: Mutex::default(),
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
                StoreEvent::HealStarted { .. } | StoreEvent::HookFailed { .. } | StoreEvent::SlowClosure { .. } => {}
            }
        }));
        let suspects = recover_claims(&shared, &opened.running, &opened.slots, self.boot, self.nonce)?;
        store.run_file().forget_found();
        let served = serve(&core)?;

        let (to_threads, jobs) = worker::channel(workers);
        let (to_tasks, abort) = task_ends(&core, bridge.as_ref());
        let dispatcher = Dispatcher::new(core.clone(), served, to_threads, to_tasks, opened.epoch, suspects);
        store.install_hook(Box::new(dispatcher));
        let tick = timer.clone();
        // From here on the hook and the store hold each other: an early return has to go through the end of a queue, too, or the
        // file would stay locked.
        let queue =
            Jobs(Arc::new(Inner { core, reporter, timer, threads: Mutex::default(), bridge: Mutex::new(bridge) }));
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

    fn first_async(&self) -> Option<String> {
        let handler = self.handlers.first_async().map(|k| format!("the handler of {k:?}"));
        handler.or_else(|| self.registry.first_async().map(|e| format!("the performer or probe of {e:?}")))
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

#[cfg(feature = "tokio")]
type Tasks = crate::engine::bridge::Tokio;
#[cfg(not(feature = "tokio"))]
use crate::engine::NoTasks as Tasks;

fn task_ends(core: &Arc<Core>, bridge: Option<&Arc<Tasks>>) -> (Option<ToTasks>, worker::Abort) {
    match bridge {
        None => (None, Box::new(|_| {})),
        Some(b) => {
            let (run, abort, core) = (b.clone(), b.clone(), core.clone());
            (Some(Box::new(move |claimed| run.run(&core, claimed))), Box::new(move |token| abort.abort(token)))
        }
    }
}

fn default_cores() -> usize {
    std::thread::available_parallelism().map_or(2, std::num::NonZero::get)
}

fn default_workers() -> usize {
    (2 * default_cores()).clamp(4, 16)
}

fn tell(e: &StoreEvent) {
    match e {
        StoreEvent::HealStarted { error } => events::heal_started(error),
        StoreEvent::Healed { after_ms } => events::heal_ended(*after_ms),
        StoreEvent::HookFailed { error } => events::warning(&format!("no job was claimed in this round: {error}")),
        // The timer has warned while the closure held the writer.
        StoreEvent::SlowClosure { .. } => {}
        StoreEvent::Stopped { error } => events::warning(&format!("the queue has stopped: {error}")),
    }
}

/// Tells apart, gives back or buries what a dead process left behind: at once, before anything is claimed. Who is a suspect now.
fn recover_claims(
    shared: &Arc<Shared>,
    running: &[(JobId, crate::model::id::Token)],
    slots: &[crate::store::Slot],
    boot: [u8; 16],
    nonce: u64,
) -> Result<Vec<JobId>, Error> {
    let mut suspects = Vec::new();
    for part in recover::evidence(running, slots, boot, nonce).chunks(1_000) {
        let (tell, reply) = answer();
        let op = RecoverOp { shared: shared.clone(), claims: part.to_vec(), changes: Vec::new(), answer: tell };
        shared.submit(Lane::Outcome, Box::new(op))?;
        suspects.extend(reply.wait().unwrap_or(Err(crate::store::StoreError::Closed)).map_err(store_error)?);
    }
    Ok(suspects)
}

/// Gives every registered kind, and each of its former names, a number in this file.
fn serve(core: &Core) -> Result<Vec<Served>, Error> {
    let shared = &core.shared;
    let names: Vec<_> = shared
        .registry
        .kinds
        .iter()
        .flat_map(|k| std::iter::once(k.name).chain(k.aliases.iter().copied()).map(|n| (n, k.clone())))
        .collect();
    let (tell, reply) = answer();
    let op = crate::engine::ops::KindsOp::new(names.iter().map(|(n, _)| *n).collect(), tell);
    shared.submit(Lane::Outcome, Box::new(op))?;
    let ids = reply.wait().unwrap_or(Err(crate::store::StoreError::Closed)).map_err(store_error)?;
    let served = |((name, kind), id): (&(&'static str, Arc<Kind>), KindId)| {
        let pooled = match core.handlers.of(kind.name) {
            Some(Handler::Async(_)) => Pooled::Tasks,
            Some(Handler::Blocking(_)) | None => Pooled::Threads,
        };
        Served { id, name: (*name).into(), kind: kind.clone(), pooled }
    };
    Ok(names.iter().zip(ids).map(served).collect())
}

/// A running queue. Clones are the same queue; when the last one is dropped it stops at once (see [`shutdown`](Self::shutdown)).
#[derive(Clone)]
pub struct Jobs(pub(crate) Arc<Inner>);

pub(crate) struct Inner {
    pub(crate) core: Arc<Core>,
    pub(crate) reporter: Arc<Reporter>,
    pub(crate) timer: TimerHandle,
    threads: Mutex<Vec<JoinHandle<()>>>,
    bridge: Mutex<Option<Arc<Tasks>>>,
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

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.0.core.shared
    }

    // ---- enqueue -------------------------------------------------------------------------------------------------------
    /// Enqueues a job: durable when this returns. The same intent is the same job, and the caller is told.
    ///
    /// # Errors
    /// A payload, key or name over its limit; a store that cannot write. [`Error::Unknown`] may be repeated freely.
    pub fn enqueue<J: Job>(&self, job: &J) -> Result<Enqueued, Error> {
        one(self.submit_enqueue(std::slice::from_ref(job), Start::Now)?.wait())
    }
    /// [`enqueue`](Self::enqueue), awaited.
    ///
    /// # Errors
    /// As there.
    pub async fn enqueue_async<J: Job>(&self, job: &J) -> Result<Enqueued, Error> {
        let reply = self.submit_enqueue(std::slice::from_ref(job), Start::Now)?;
        one(reply.await)
    }
    /// Enqueues a job that starts at `due` or later, by the calendar.
    ///
    /// # Errors
    /// As for [`enqueue`](Self::enqueue).
    pub fn at<J: Job>(&self, due: SystemTime, job: &J) -> Result<Enqueued, Error> {
        one(self.submit_enqueue(std::slice::from_ref(job), Start::At(Wall::from_system(due)))?.wait())
    }
    /// [`at`](Self::at), awaited.
    ///
    /// # Errors
    /// As there.
    pub async fn at_async<J: Job>(&self, due: SystemTime, job: &J) -> Result<Enqueued, Error> {
        let reply = self.submit_enqueue(std::slice::from_ref(job), Start::At(Wall::from_system(due)))?;
        one(reply.await)
    }
    /// Enqueues a job that starts after `delay` or later.
    ///
    /// # Errors
    /// As for [`enqueue`](Self::enqueue).
    pub fn after<J: Job>(&self, delay: Duration, job: &J) -> Result<Enqueued, Error> {
        one(self.submit_enqueue(std::slice::from_ref(job), Start::After(delay))?.wait())
    }
    /// [`after`](Self::after), awaited.
    ///
    /// # Errors
    /// As there.
    pub async fn after_async<J: Job>(&self, delay: Duration, job: &J) -> Result<Enqueued, Error> {
        let reply = self.submit_enqueue(std::slice::from_ref(job), Start::After(delay))?;
        one(reply.await)
    }
    /// Enqueues many jobs in one transaction, all or none, with an answer for each.
    ///
    /// # Errors
    /// As for [`enqueue`](Self::enqueue); nothing is stored then.
    pub fn enqueue_many<J: Job>(&self, jobs: &[J]) -> Result<Vec<Enqueued>, Error> {
        self.submit_enqueue(jobs, Start::Now)?.wait().unwrap_or(Err(Error::ShutDown))
    }
    /// [`enqueue_many`](Self::enqueue_many), awaited.
    ///
    /// # Errors
    /// As there.
    pub async fn enqueue_many_async<J: Job>(&self, jobs: &[J]) -> Result<Vec<Enqueued>, Error> {
        let reply = self.submit_enqueue(jobs, Start::Now)?;
        reply.await.unwrap_or(Err(Error::ShutDown))
    }
    /// Deliberately runs an ended intent again: a new incarnation with new idempotency keys, so every effect happens anew.
    ///
    /// # Errors
    /// Refused while the job is not over, one of its effects is unresolved, or a call of it still runs.
    pub fn run_again<J: Job>(&self, job: &J) -> Result<JobId, Error> {
        self.submit_again(job)?.wait().unwrap_or(Err(Error::ShutDown))
    }
    /// [`run_again`](Self::run_again), awaited.
    ///
    /// # Errors
    /// As there.
    pub async fn run_again_async<J: Job>(&self, job: &J) -> Result<JobId, Error> {
        let reply = self.submit_again(job)?;
        reply.await.unwrap_or(Err(Error::ShutDown))
    }

    fn submit_enqueue<J: Job>(&self, jobs: &[J], start: Start) -> Result<Reply<Result<Vec<Enqueued>, Error>>, Error> {
        let shared = self.may_start_work()?;
        let specs = jobs.iter().map(|j| Spec::of(j, start, shared)).collect::<Result<Vec<_>, _>>()?;
        let (tell, reply) = answer();
        if specs.is_empty() {
            tell.send(Ok(Vec::new()));
            return Ok(reply);
        }
        shared.submit(Lane::Enqueue, Box::new(EnqueueOp::new(shared.clone(), specs, tell)))?;
        Ok(reply)
    }
    fn submit_again<J: Job>(&self, job: &J) -> Result<Reply<Result<JobId, Error>>, Error> {
        let shared = self.may_start_work()?;
        let spec = Spec::of(job, Start::Now, shared)?;
        let (tell, reply) = answer();
        shared
            .submit(Lane::Enqueue, Box::new(RunAgainOp { shared: shared.clone(), spec, answer: tell, done: None }))?;
        Ok(reply)
    }
    fn may_start_work(&self) -> Result<&Arc<Shared>, Error> {
        let shared = self.shared();
        shared.may_call()?;
        Ok(shared)
    }

    // ---- transactions and reads ----------------------------------------------------------------------------------------
    /// App tables and jobs in one transaction, from outside a handler. The closure runs on the writer's thread, may run again
    /// with its round, and must do nothing outside; what it wrote is durable when this returns Ok.
    ///
    /// # Errors
    /// Whatever the closure returned, with nothing stored; a panic; a table left open. After [`Error::Unknown`] look before you
    /// repeat.
    pub fn transact<T, E>(&self, f: impl Fn(&mut Tx<'_>) -> Result<T, E> + Send + 'static) -> Result<T, E>
    where
        T: Send + 'static,
        E: From<Error> + Send + 'static,
    {
        let shared = self.may_start_work()?;
        let (op, reply) = TransactOp::prepare(shared.clone(), f);
        shared.submit(Lane::Enqueue, op)?;
        reply.wait().unwrap_or_else(|| Err(E::from(Error::ShutDown)))
    }
    /// [`transact`](Self::transact), awaited.
    ///
    /// # Errors
    /// As there.
    pub async fn transact_async<T, E>(&self, f: impl Fn(&mut Tx<'_>) -> Result<T, E> + Send + 'static) -> Result<T, E>
    where
        T: Send + 'static,
        E: From<Error> + Send + 'static,
    {
        let reply = {
            let shared = self.may_start_work()?;
            let (op, reply) = TransactOp::prepare(shared.clone(), f);
            shared.submit(Lane::Enqueue, op)?;
            reply
        };
        reply.await.unwrap_or_else(|| Err(E::from(Error::ShutDown)))
    }
    /// Reads app tables, as of one moment. Keep it short: a living read keeps old pages from being reused.
    ///
    /// # Errors
    /// A store that cannot read.
    pub fn read<T>(&self, f: impl FnOnce(&AppRead<'_>) -> T) -> Result<T, Error> {
        let shared = self.may_start_work()?;
        Ok(shared.store.read_app(f)?)
    }

    // ---- watching ------------------------------------------------------------------------------------------------------
    /// Where a job stands.
    ///
    /// # Errors
    /// [`Error::NotFound`] if its rows are pruned or it never existed.
    pub fn state(&self, id: JobId) -> Result<State, Error> {
        let shared = self.may_start_work()?;
        let found = shared.store.read(|v| v.record(id))?.ok_or(Error::NotFound(id))?;
        let name = shared.kind_name(found.kind);
        Ok(admit::paused(State::from(&found.state), shared.paused(&name)))
    }
    /// Waits until a job is over or needs a person.
    ///
    /// # Errors
    /// [`Error::WaitOver`] after `at_most`; the job goes on. [`Error::NotFound`] as for [`state`](Self::state);
    /// [`Error::ShutDown`] when the queue is shut down first, [`Error::Store`] when its storage gives up.
    pub fn wait(&self, id: JobId, at_most: Duration) -> Result<State, Error> {
        self.may_start_work()?;
        let (tell, reply) = answer();
        let _guard = WaitGuard::new(self, id, Box::new(move |state| tell.send(state)));
        let now = self.state(id)?;
        if now.is_settled() {
            return Ok(now);
        }
        match reply.wait_at_most(at_most) {
            Waited::Told(state) => Ok(state),
            Waited::Gone => Err(self.gone(id)),
            Waited::Over => Err(Error::WaitOver(id)),
        }
    }
    /// Waits until a job is over or needs a person; bound it with your runtime's timeout.
    ///
    /// # Errors
    /// As for [`state`](Self::state); [`Error::ShutDown`] when the queue stops first.
    pub async fn wait_async(&self, id: JobId) -> Result<State, Error> {
        let (reply, _guard) = {
            self.may_start_work()?;
            let (tell, reply) = answer();
            (reply, WaitGuard::new(self, id, Box::new(move |state| tell.send(state))))
        };
        let now = self.state(id)?;
        if now.is_settled() {
            return Ok(now);
        }
        reply.await.ok_or_else(|| self.gone(id))
    }
    /// Why a wait cannot end any more: the queue was shut down, or its storage gave up.
    fn gone(&self, id: JobId) -> Error {
        self.state(id).err().unwrap_or(Error::ShutDown)
    }
    /// What the handler kept with [`Cx::output`](crate::Cx::output), once the job is done.
    ///
    /// # Errors
    /// A value that is not of this type; [`Error::NotFound`] as for [`state`](Self::state).
    pub fn output<T: DeserializeOwned>(&self, id: JobId) -> Result<Option<T>, Error> {
        let shared = self.may_start_work()?;
        let found = shared.store.read(|v| {
            let known = v.record(id)?.is_some();
            Ok((known, v.output(id)?))
        })?;
        match found {
            (false, _) => Err(Error::NotFound(id)),
            (true, None) => Ok(None),
            (true, Some(json)) => serde_json::from_slice(&json).map(Some).map_err(|e| Error::encode("the output", &e)),
        }
    }
    /// How far a running job is, as its handler last said: (done, of). `None` while it does not run here.
    pub fn progress(&self, id: JobId) -> Option<(u64, u64)> {
        self.shared().may_call().ok()?;
        self.0.core.attempts().iter().find(|a| a.id() == id).map(|a| a.progress())
    }
    /// Counters and gauges as they stand, without an exporter.
    ///
    /// # Errors
    /// A store that cannot read.
    pub fn snapshot(&self) -> Result<crate::observe::Snapshot, Error> {
        let shared = self.may_start_work()?;
        crate::engine::snapshot::take(&self.0.reporter.observer, shared)
    }

    // ---- control -------------------------------------------------------------------------------------------------------
    /// Pauses, durably: once this returns nothing of the scope is claimed or started until it is resumed, also after a restart.
    /// What runs goes on.
    ///
    /// # Errors
    /// A store that cannot write.
    pub fn pause(&self, what: Scope, why: &str) -> Result<(), Error> {
        self.submit_pause(what, Some(why.to_owned()))?.wait().unwrap_or(Err(Error::ShutDown))
    }
    /// Resumes what was paused with the same scope.
    ///
    /// # Errors
    /// A store that cannot write.
    pub fn resume(&self, what: Scope) -> Result<(), Error> {
        self.submit_pause(what, None)?.wait().unwrap_or(Err(Error::ShutDown))
    }
    /// [`pause`](Self::pause), awaited.
    ///
    /// # Errors
    /// As there.
    pub async fn pause_async(&self, what: Scope, why: &str) -> Result<(), Error> {
        let reply = self.submit_pause(what, Some(why.to_owned()))?;
        reply.await.unwrap_or(Err(Error::ShutDown))
    }
    /// [`resume`](Self::resume), awaited.
    ///
    /// # Errors
    /// As there.
    pub async fn resume_async(&self, what: Scope) -> Result<(), Error> {
        let reply = self.submit_pause(what, None)?;
        reply.await.unwrap_or(Err(Error::ShutDown))
    }
    fn submit_pause(&self, scope: Scope, why: Option<String>) -> Result<Reply<Result<(), Error>>, Error> {
        let shared = self.may_start_work()?;
        let (tell, reply) = answer();
        shared.submit(Lane::Outcome, Box::new(PauseOp { shared: shared.clone(), scope, why, answer: tell }))?;
        Ok(reply)
    }
    /// What is paused, each with its reason.
    pub fn pauses(&self) -> Vec<(Scope, String)> {
        let p = self.shared().pauses.read();
        let all = p.all.iter().map(|why| (Scope::All, why.clone()));
        let kinds = p.kinds.iter().map(|(k, why)| (Scope::Kind(k.clone()), why.clone()));
        let queues = p.queues.iter().map(|(q, why)| (Scope::Queue(q.clone()), why.clone()));
        all.chain(kinds).chain(queues).collect()
    }
    /// Cancels a job that is not running; asks a running one to stop (its handler sees `cx.cancelled()`).
    ///
    /// # Errors
    /// Refused when it is over or waits for a person, or while an effect of it is unresolved.
    pub fn cancel(&self, id: JobId) -> Result<(), Error> {
        self.submit_cancel(id)?.wait().unwrap_or(Err(Error::ShutDown))
    }
    /// [`cancel`](Self::cancel), awaited.
    ///
    /// # Errors
    /// As there.
    pub async fn cancel_async(&self, id: JobId) -> Result<(), Error> {
        let reply = self.submit_cancel(id)?;
        reply.await.unwrap_or(Err(Error::ShutDown))
    }
    fn submit_cancel(&self, id: JobId) -> Result<Reply<Result<(), Error>>, Error> {
        let shared = self.may_start_work()?;
        let (tell, reply) = answer();
        let op = CancelOp { core: self.0.core.clone(), id, answer: tell, done: None };
        shared.submit(Lane::Outcome, Box::new(op))?;
        Ok(reply)
    }
    /// Waits until nothing is ready or running (paused and unknown kinds, delayed jobs and letters aside).
    ///
    /// # Errors
    /// [`Error::NotIdle`] after `at_most`; work goes on.
    pub fn drain(&self, at_most: Duration) -> Result<(), Error> {
        self.may_start_work()?;
        idle::drain(&self.0.core, at_most)
    }
    /// [`drain`](Self::drain), awaited.
    ///
    /// # Errors
    /// As there.
    pub async fn drain_async(&self, at_most: Duration) -> Result<(), Error> {
        self.may_start_work()?;
        let core = self.0.core.clone();
        idle::aside(move || idle::drain(&core, at_most)).await.unwrap_or(Err(Error::ShutDown))
    }
    /// Stops: claims nothing more, tells running handlers (`cx.cancelled()`), waits `at_most` for them, gives the rest back and
    /// closes the file. Interrupted is not failed: those jobs run again at the next open. Every clone of this handle is closed.
    ///
    /// # Errors
    /// A store that cannot write or close; the claims are then given back at the next open.
    pub fn shutdown(self, at_most: Duration) -> Result<Report, Error> {
        self.shared().may_call()?;
        self.0.stop(at_most)
    }
}

impl Jobs {
    /// [`shutdown`](Self::shutdown), awaited: the tasks of your runtime go on meanwhile.
    ///
    /// # Errors
    /// As there.
    pub async fn shutdown_async(self, at_most: Duration) -> Result<Report, Error> {
        self.shared().may_call()?;
        let inner = self.0.clone();
        drop(self);
        idle::aside(move || inner.stop(at_most)).await.unwrap_or(Err(Error::ShutDown))
    }
}

impl Inner {
    /// Ends everything, once.
    fn stop(&self, at_most: Duration) -> Result<Report, Error> {
        let shared = &self.core.shared;
        let was = shared.phase.compare_exchange(
            Phase::Open as u8,
            Phase::Stopping as u8,
            Ordering::AcqRel,
            Ordering::Acquire,
        );
        if was.is_err() {
            return Err(Error::ShutDown);
        }
        // Whoever was about to begin a handler has begun it, and is stopped like the others; nobody begins one from here on.
        drop(shared.pauses.write());
        let report = idle::stop(&self.core, at_most);
        self.timer.stop();
        shared.phase.store(Phase::Closed as u8, Ordering::Release);
        let closed = shared.store.clone().close();
        self.reporter.release();
        if let Some(bridge) = self.bridge.lock().take() {
            bridge.close();
        }
        let me = std::thread::current().id();
        let hung = report.interrupted > 0 || self.core.stuck.load(Ordering::Acquire) > 0;
        // The workers end when the writer has; on its own thread (a closure held the last handle) nobody may wait for them.
        let hung = hung || inside_transaction();
        for t in std::mem::take(&mut *self.threads.lock()) {
            // A hung handler keeps its thread; the process does not wait for it. Nor does a thread wait for itself.
            if t.is_finished() || (!hung && t.thread().id() != me) {
                let _ = t.join();
            }
        }
        closed?;
        Ok(report)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // Forked children own nothing here; a second stop does nothing.
        if std::process::id() == self.core.shared.pid {
            let _ = self.stop(Duration::ZERO);
        }
    }
}

fn one(told: Option<Result<Vec<Enqueued>, Error>>) -> Result<Enqueued, Error> {
    match told {
        Some(Ok(list)) => list.into_iter().next().ok_or(Error::ShutDown),
        Some(Err(e)) => Err(e),
        None => Err(Error::ShutDown),
    }
}

/// Takes the waiter out again, however the wait ends.
struct WaitGuard {
    reporter: Arc<Reporter>,
    id: JobId,
    n: u64,
}

impl WaitGuard {
    fn new(jobs: &Jobs, id: JobId, f: crate::engine::report::Waiter) -> Self {
        let reporter = jobs.0.reporter.clone();
        let n = reporter.wait(id, f);
        Self { reporter, id, n }
    }
}

impl Drop for WaitGuard {
    fn drop(&mut self) {
        self.reporter.forget(self.id, self.n);
    }
}
