//! The face: enqueue, run, wait, pause, shut down. Everything here checks, encodes, asks the writer and waits.

use crate::clock::Stopwatch;
use crate::engine::core::Core;
use crate::engine::idle;
use crate::engine::look::CountOp;
use crate::engine::ops::{CancelOp, PauseOp};
use crate::engine::report::Reporter;
use crate::engine::wake::TimerHandle;
use crate::error::Error;
use crate::handler::enqueue::{EnqueueOp, RunAgainOp, Spec};
use crate::handler::job::Job;
use crate::handler::reply::{Reply, Waited, answer};
use crate::handler::shared::{Phase, Shared, inside_transaction};
use crate::handler::transact::TransactOp;
use crate::handler::tx::Tx;
use crate::model::effect::Undoing;
use crate::model::id::{JobId, JobKey};
use crate::model::job::{Enqueued, JobState, State};
use crate::model::time::Wall;
use crate::rules::admit::{self, Start};
use crate::store::{AppRead, Lane};
use crate::sync::Mutex;
use crate::sync::atomic::Ordering;
use crate::sync::thread::{self, JoinHandle};
use serde::de::DeserializeOwned;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

pub use crate::engine::idle::Report;
pub use crate::engine::ops::Scope;

#[cfg(not(feature = "tokio"))]
pub(crate) use crate::engine::NoTasks as Tasks;
#[cfg(feature = "tokio")]
pub(crate) type Tasks = crate::engine::bridge::Tokio;

/// A running queue. Clones are the same queue; when the last one is dropped it stops at once (see [`shutdown`](Self::shutdown)).
#[derive(Clone)]
pub struct Jobs(pub(crate) Arc<Inner>);

pub(crate) struct Inner {
    pub(crate) core: Arc<Core>,
    pub(crate) reporter: Arc<Reporter>,
    pub(crate) timer: TimerHandle,
    pub(crate) threads: Mutex<Vec<JoinHandle<()>>>,
    bridge: Mutex<Option<Arc<Tasks>>>,
}

impl Jobs {
    pub(crate) fn of(core: Arc<Core>, reporter: Arc<Reporter>, timer: TimerHandle, bridge: Option<Arc<Tasks>>) -> Self {
        Self(Arc::new(Inner { core, reporter, timer, threads: Mutex::default(), bridge: Mutex::new(bridge) }))
    }
    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.0.core.shared
    }

    // ---- enqueue -------------------------------------------------------------------------------------------------------
    /// Enqueues a job: durable when this returns. The same intent is the same job, and the caller is told. A kind without a handler
    /// in this process is accepted: its jobs wait for a process that has one ([`Snapshot`](crate::Snapshot) names such kinds).
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
    /// The job of an intent, by its key: the newest, if it was run again. Also one whose rows were pruned, as long as it is
    /// remembered; [`state`](Self::state) is [`State::Remembered`] then.
    ///
    /// # Errors
    /// A store that cannot read.
    pub fn find<J: Job>(&self, key: &JobKey) -> Result<Option<JobId>, Error> {
        let shared = self.shared();
        shared.may_call()?;
        let found = shared.store.read(|v| {
            for name in std::iter::once(J::KIND).chain(J::ALIASES.iter().copied()) {
                if let Some(kind) = v.kind(name)?
                    && let Some(intent) = v.intent(kind, key.as_str())?
                {
                    return Ok(Some(intent.id()));
                }
            }
            Ok(None)
        });
        Ok(found?)
    }
    /// Deliberately runs an ended intent again: a new incarnation with new idempotency keys, so every effect happens anew. One that
    /// was never seen, or is not remembered any more, simply starts.
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
        let spec = |(index, job): (usize, &J)| {
            Spec::of(job, start, shared).map_err(|error| match jobs.len() {
                1 => error,
                _ => Error::Item { index, error: Box::new(error) },
            })
        };
        let specs = jobs.iter().enumerate().map(spec).collect::<Result<Vec<_>, _>>()?;
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
    pub(crate) fn may_start_work(&self) -> Result<&Arc<Shared>, Error> {
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
    /// [`read`](Self::read), awaited: pages that are not in memory are read on a thread beside your runtime's.
    ///
    /// # Errors
    /// As there.
    pub async fn read_async<T: Send + 'static>(
        &self,
        f: impl FnOnce(&AppRead<'_>) -> T + Send + 'static,
    ) -> Result<T, Error> {
        let reply = {
            let shared = self.may_start_work()?.clone();
            idle::aside(move || Ok(shared.store.read_app(f)?))
        };
        reply.await.unwrap_or(Err(Error::ShutDown))
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
    /// When a delayed or waiting job is due, by the calendar; `None` in every other state.
    ///
    /// # Errors
    /// As for [`state`](Self::state).
    pub fn due(&self, id: JobId) -> Result<Option<SystemTime>, Error> {
        let found = self.may_start_work()?.store.read(|v| v.record(id))?.ok_or(Error::NotFound(id))?;
        Ok(match found.state {
            JobState::Delayed { due, .. } | JobState::Waiting { due, .. } => Some(due.to_system()),
            JobState::Ready { .. }
            | JobState::Running { .. }
            | JobState::NeedsDecision
            | JobState::Dead
            | JobState::Compensating { .. }
            | JobState::Ended { .. } => None,
        })
    }
    /// Waits until a job is over or needs a person: `Ok` is no success, look at the state. While what it did is being undone, the wait
    /// is for the undo jobs, too.
    ///
    /// # Errors
    /// [`Error::WaitOver`] after `at_most`; the job goes on. [`Error::Paused`] instead if a pause holds it. [`Error::UndoNeedsPerson`] if it is being undone and an undo job waits for
    /// a person. [`Error::NotFound`] as for [`state`](Self::state); [`Error::ShutDown`] when the queue is shut down first,
    /// [`Error::Store`] when its storage gives up.
    pub fn wait(&self, id: JobId, at_most: Duration) -> Result<State, Error> {
        self.may_start_work()?;
        let watch = Stopwatch::start();
        loop {
            let (reply, _guards) = match self.watch(id)? {
                Watch::Settled(state) => return Ok(state),
                Watch::For(reply, guards) => (reply, guards),
            };
            match reply.wait_at_most(at_most.saturating_sub(watch.elapsed())) {
                Waited::Told(Some(state)) => return Ok(state),
                // Something moved that it depends on.
                Waited::Told(None) => {}
                Waited::Gone => return Err(self.gone(id)),
                Waited::Over => return Err(self.wait_over(id)),
            }
        }
    }
    /// What a wait says that is over: what holds the job up, where that is known.
    fn wait_over(&self, id: JobId) -> Error {
        let kind = match self.state(id) {
            Ok(State::Paused) => self.shared().store.read(|v| v.record(id)).ok().flatten().map(|r| r.kind),
            Ok(_) | Err(_) => None,
        };
        let holds = kind.map(|kind| self.shared().holds(&self.shared().kind_name(kind))).unwrap_or_default();
        let why = holds.into_iter().next().map(|(_, why)| why);
        why.map_or(Error::WaitOver(id), |why| Error::Paused { job: id, why })
    }
    /// [`wait`](Self::wait), awaited, for as long as it takes, also while the job is paused: bound it with your runtime's timeout.
    ///
    /// # Errors
    /// As there, without [`Error::WaitOver`].
    pub async fn wait_async(&self, id: JobId) -> Result<State, Error> {
        self.may_start_work()?;
        loop {
            let (reply, _guards) = match self.watch(id)? {
                Watch::Settled(state) => return Ok(state),
                Watch::For(reply, guards) => (reply, guards),
            };
            if let Some(state) = reply.await.ok_or_else(|| self.gone(id))? {
                return Ok(state);
            }
        }
    }
    /// Whoever waits for a job hears of it, and, while it is undone, of the jobs that undo it. Registered before each look, so that what
    /// happens in between is not missed.
    fn watch(&self, id: JobId) -> Result<Watch, Error> {
        let (tell, reply) = answer();
        let tell = Arc::new(tell);
        let told = tell.clone();
        let on = Box::new(move |state: State| told.send(state.is_settled().then_some(state)));
        let mut guards = vec![WaitGuard::new(self, id, on)];
        let mut now = self.state(id)?;
        if now.is_settled() {
            return Ok(Watch::Settled(now));
        }
        // An undo job may have effects of its own, and be undone itself.
        let mut at = id;
        while now == State::Compensating {
            let Some(undo) = self.under_way(at)? else { break };
            if guards.iter().any(|g| g.id == undo) {
                break;
            }
            let told = tell.clone();
            guards.push(WaitGuard::new(self, undo, Box::new(move |_| told.send(None))));
            now = match self.state(undo) {
                // It is over and its rows are gone; whoever heard of it has moved.
                Err(Error::NotFound(_)) => break,
                state => state?,
            };
            if matches!(now, State::NeedsDecision | State::Dead) {
                return Err(Error::UndoNeedsPerson { job: id, letter: undo });
            }
            // It ended between the two looks, and the next one is under way: that one has to be watched.
            if now.is_over() && self.under_way(at)? != Some(undo) {
                tell.send(None);
            }
            at = undo;
        }
        Ok(Watch::For(reply, guards))
    }
    /// The job that undoes something of this one right now.
    fn under_way(&self, id: JobId) -> Result<Option<JobId>, Error> {
        let line = self.ledger(id)?.into_iter().find(|line| line.undoing == Undoing::UnderWay);
        Ok(line.and_then(|line| line.undo_job))
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
        crate::engine::snapshot::take(&self.0.reporter.observer, shared, self.0.core.alarms.as_deref())
    }
    /// The safety cards of every registered kind: what each promises, in six fields. Displayed as Markdown.
    pub fn safety_cards(&self) -> crate::observe::SafetyCards {
        crate::engine::cards::cards(&self.shared().registry)
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
    /// Resumes what was paused with the same scope; what was paused with another one stays paused. `Ok` also if nothing was.
    ///
    /// A file that may be an old copy (see [`start`](crate::Builder::start)) was paused with [`Scope::All`] for a person to look at:
    /// do not resume that at every start. Its [`review`](Self::review) goes on until it is [lifted](Self::lift_review).
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
        let topics = p.topics.iter().map(|(t, why)| (Scope::Topic(t.clone()), why.clone()));
        all.chain(kinds).chain(queues).chain(topics).collect()
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
    /// Waits until nothing is ready or running (paused and unknown kinds, delayed jobs and letters aside), and no message of the
    /// outbox is due that this process has a publisher for. `Ok` is not "everything is done": [`pauses`](Self::pauses) says what is
    /// held, [`snapshot`](Self::snapshot) counts the rest.
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
    /// closes the file. Interrupted is not failed: those jobs run again at the next open. Every clone of this handle is closed; a
    /// handler that still runs after `at_most` keeps its thread until it returns, and what it changes is refused. Alerts that nobody
    /// was told of yet have what is left of `at_most`, but at least one second and at most five; the next process tells the others.
    ///
    /// # Errors
    /// A store that cannot write or close; the claims are then given back at the next open. [`Error::ShutDown`] if another clone
    /// was faster.
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
        let watch = Stopwatch::start();
        let report = idle::stop(&self.core, at_most);
        // What was committed is told beside the writer; whoever asks it something is answered behind that. On its own thread (a closure
        // held the last handle) nobody may wait for it.
        if self.core.alarms.is_some() && !inside_transaction() {
            let left = at_most.saturating_sub(watch.elapsed());
            let _ = idle::look(&self.core, left.clamp(Duration::from_millis(100), Duration::from_secs(1)));
        }
        CountOp::submit(&self.core);
        if let Some(teller) = self.core.alarms.as_ref().and_then(|a| a.teller.as_ref()) {
            teller.stop(at_most.saturating_sub(watch.elapsed()));
        }
        self.timer.stop();
        shared.phase.store(Phase::Closed as u8, Ordering::Release);
        let closed = shared.store.clone().close();
        self.reporter.release();
        if let Some(bridge) = self.bridge.lock().take() {
            bridge.close();
        }
        let me = thread::current().id();
        let hung = report.interrupted > 0 || report.publishing > 0 || self.core.stuck.load(Ordering::Acquire) > 0;
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

/// What a wait has to look at.
enum Watch {
    /// Nothing: it is over, or needs a person.
    Settled(State),
    /// The next news: the state in which it settled, or nothing but that it is worth another look.
    For(Reply<Option<State>>, Vec<WaitGuard>),
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
