//! The world that the crash suites play in: an app whose jobs are small programs, a provider whose ledger survives every crash,
//! and a history of everything that callers were told, in the order of the disk's own log.
//!
//! The history is the provider's memory too: a life that begins after a crash is given the history up to it, nothing else.

use super::oracle::{Kept, Line};
use onceward::clock::{Clock, ManualClock};
use onceward::model::time::Wall;
use onceward::store::Sizes;
use onceward::testkit::{self, DiskFactory, SimDisk};
use onceward::{
    Backoff, Builder, Cx, DeadLetter, Decided, Decision, Effect, EffectCard, EffectId, EffectState, Enqueued, Error,
    Fail, IdempotencyKey, Job, JobId, JobKey, Jobs, Keep, LetterFilter, Outcome, Policy, Recovery, Risk, Scope, State,
    Tx,
};
use redb::{ReadableTable, TableDefinition};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// App rows: every one is only ever counted up, so that work that was committed twice shows as a two.
pub(crate) const ROWS: TableDefinition<'static, &str, u64> = TableDefinition::new("rows");

/// The topic of the messages that commits owe; nobody publishes it.
pub(crate) const TOPIC: &str = "owed";

/// One thing that a job does.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Do {
    /// Remembers a step.
    Step,
    /// An app row, a follow-up job and a message, in one commit.
    Commit,
    /// An effect with a provider that honours keys.
    Charge,
    /// An effect with a provider that can only be asked.
    Reserve,
    /// An effect about which only a person can say anything.
    Wire,
    /// Fails while the attempt's number is at most this.
    Fail(u32),
    /// Panics while the attempt's number is at most this.
    Panic(u32),
    /// Fails for good.
    Never,
    /// Waits at the world's gate.
    Gate,
    /// The end, with an app row, a follow-up job and a message in the same commit.
    Finish,
}

/// A job that carries its own program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Work {
    pub(crate) key: String,
    pub(crate) does: Vec<Do>,
}

impl Work {
    pub(crate) fn new(key: &str, does: &[Do]) -> Self {
        Self { key: key.to_owned(), does: does.to_vec() }
    }
}

/// Attempts of a `Work` job without a person's help.
pub(crate) const TRIES: u32 = 3;

impl Job for Work {
    const KIND: &'static str = "work";
    fn key(&self) -> JobKey {
        JobKey::from(&self.key)
    }
    fn policy() -> Policy {
        Policy::default()
            .retries(TRIES - 1)
            .backoff(Backoff::steps([Duration::from_secs(10), Duration::from_secs(20)]))
            .success("everything it lists is done")
            .review("nobody knows whether something happened")
            .second_person_above(1)
    }
    /// Two people decide about orders that begin with "dear".
    fn stake(&self) -> u64 {
        if self.key.starts_with("dear") { 2 } else { 0 }
    }
    fn effects() -> Vec<EffectCard> {
        vec![Charge::card(), Reserve::card(), Wire::card()]
    }
}

/// A follow-up that does nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Note {
    pub(crate) key: String,
}

impl Job for Note {
    const KIND: &'static str = "note";
    fn key(&self) -> JobKey {
        JobKey::from(&self.key)
    }
}

/// A job of a kind that is soon forgotten, with a payload that needs several pages.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Brief {
    pub(crate) key: String,
    pub(crate) body: String,
}

impl Job for Brief {
    const KIND: &'static str = "brief";
    fn key(&self) -> JobKey {
        JobKey::from(&self.key)
    }
    fn policy() -> Policy {
        let hour = Duration::from_secs(3_600);
        Policy::default().keep_done(Keep::For(hour)).remember(Keep::For(48 * hour))
    }
}

macro_rules! effects {
    ($($name:ident $text:literal $risk:expr, $recovery:expr;)*) => {$(
        #[derive(Clone, Debug, Serialize, Deserialize)]
        pub(crate) struct $name {
            pub(crate) order: String,
        }
        impl Effect for $name {
            type Result = String;
            const NAME: &'static str = $text;
            const RISK: Risk = $risk;
            fn says(&self) -> String {
                format!("{} {}", $text, self.order)
            }
            fn recovery() -> Recovery {
                $recovery
            }
            fn reference(done: &String) -> Option<String> {
                Some(done.clone())
            }
            fn from_reference(&self, reference: &str) -> Option<String> {
                Some(reference.to_owned())
            }
        }
    )*};
}

effects! {
    Charge "charge" Risk::Charge, Recovery::same_key(Duration::from_secs(24 * 3_600));
    Reserve "reserve" Risk::Routine, Recovery::probe(Duration::from_secs(60));
    Wire "wire" Risk::Routine, Recovery::ask();
}

/// What the provider does with a call; chosen by the order's name and by how many calls for it came before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Act {
    /// Does it and says so.
    Do,
    /// Does it, and the answer is lost.
    DoAndLose,
    /// The request is lost.
    Lose,
    /// Says no.
    Refuse,
    /// The request never left.
    NotSent,
}

fn act(order: &str, calls_before: usize) -> Act {
    let first = |act| if calls_before == 0 { act } else { Act::Do };
    match order.split('-').next() {
        Some("lost") => first(Act::DoAndLose),
        Some("gone") => first(Act::Lose),
        Some("refused") => first(Act::Refuse),
        Some("unsent") => first(Act::NotSent),
        Some(_) | None => Act::Do,
    }
}

/// A call as the provider saw it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Call {
    pub(crate) effect: &'static str,
    pub(crate) order: String,
    pub(crate) key: String,
    pub(crate) act: Act,
    /// Something really happened now: not a repeat that the provider recognised.
    pub(crate) real: bool,
    /// The provider's operation.
    pub(crate) operation: String,
}

/// A kind and a key.
pub(crate) type Name = (&'static str, String);

/// One event of the history.
#[derive(Clone, Debug)]
pub(crate) enum Told {
    /// The calendar is about to be this late.
    Time(u64),
    /// Rows of ended `Brief` jobs may be pruned from here on, their memory too if the flag is set.
    Aged(bool),
    /// Somebody is about to enqueue this.
    Asking(Name, Vec<u8>),
    /// Somebody was told that it is stored.
    Stored(Name, JobId),
    /// Somebody is about to commit a row and a follow-up from outside.
    Transacting(String),
    /// It was committed.
    Transacted(String),
    /// A handler was called.
    Began { job: Name, token: u64 },
    /// The provider was called.
    Called(Call),
    /// `cx.effect` returned this.
    Confirmed { job: Name, effect: &'static str, result: String },
    /// `cx.step` returned.
    Stepped(Name),
    /// `cx.commit` returned.
    Committed(Name),
    /// `cx.finish` returned.
    Finished(Name),
    /// Somebody looked and saw this state, in which a job stays until a person decides.
    Settled(Name, State),
    /// A person is about to decide about it, or to cancel it.
    Deciding(Name),
    /// It was decided.
    Decided(Name),
    /// One of two people decided.
    Proposed(Name),
    /// It is about to be run again: how it stands, without what is to be forgotten.
    Replaying(Name, Kept),
    /// The kind `note` is about to be paused or resumed.
    Pausing,
    /// It was paused or resumed.
    Paused(bool),
}

/// A place where handlers and performers wait until a test lets them go.
#[derive(Default)]
pub(crate) struct Gate {
    state: Mutex<(bool, usize)>,
    moved: Condvar,
}

impl Gate {
    fn lock(&self) -> MutexGuard<'_, (bool, usize)> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
    /// From now on whoever comes waits.
    pub(crate) fn shut(&self) {
        self.lock().0 = true;
    }
    /// Everybody goes on.
    pub(crate) fn open(&self) {
        self.lock().0 = false;
        self.moved.notify_all();
    }
    pub(crate) fn pass(&self) {
        let mut state = self.lock();
        if !state.0 {
            return;
        }
        state.1 += 1;
        self.moved.notify_all();
        while state.0 {
            state = self.moved.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.1 -= 1;
        self.moved.notify_all();
    }
    /// Returns once this many wait at it.
    pub(crate) fn wait_for(&self, n: usize) {
        let mut state = self.lock();
        while state.1 != n {
            state = self.moved.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// History and provider of one life.
pub(crate) struct World {
    told: Mutex<Vec<Told>>,
    disk: Option<SimDisk>,
    /// Where `Do::Gate` and the calls of orders that begin with "late" wait.
    pub(crate) gate: Gate,
}

impl World {
    /// A life that begins with this past; what happens in it is marked in the disk's log, if there is one to mark.
    pub(crate) fn new(past: &[Told], disk: Option<SimDisk>) -> Arc<Self> {
        Arc::new(Self { told: Mutex::new(past.to_vec()), disk, gate: Gate::default() })
    }
    fn lock(&self) -> MutexGuard<'_, Vec<Told>> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }
    pub(crate) fn told(&self) -> Vec<Told> {
        self.lock().clone()
    }
    pub(crate) fn tell(&self, told: Told) {
        self.add(&mut self.lock(), told);
    }
    /// With the history held, so that the disk's log has the same order.
    fn add(&self, history: &mut Vec<Told>, told: Told) {
        history.push(told);
        if let Some(disk) = &self.disk {
            disk.mark(history.len() as u64 - 1);
        }
    }

    fn perform(&self, effect: &'static str, order: &str, key: &IdempotencyKey) -> Outcome<String> {
        let mut history = self.lock();
        let (act, operation) = {
            let before: Vec<&Call> = calls(&history).filter(|c| c.effect == effect && c.order == order).collect();
            let same = before.iter().find(|c| c.real && c.key == key.as_str() && effect == Charge::NAME);
            let act = act(order, before.len());
            (
                act,
                same.map_or_else(|| Err(format!("{effect}-{order}-{}", before.len() + 1)), |c| Ok(c.operation.clone())),
            )
        };
        let does = matches!(act, Act::Do | Act::DoAndLose);
        let (real, operation) = match operation {
            Ok(same) => (false, same),
            Err(new) => (does, new),
        };
        let call = Call {
            effect,
            order: order.to_owned(),
            key: key.as_str().to_owned(),
            act,
            real,
            operation: operation.clone(),
        };
        self.add(&mut history, Told::Called(call));
        drop(history);
        if order.starts_with("late") {
            self.gate.pass();
        }
        match act {
            Act::Do => Ok(operation),
            Act::DoAndLose | Act::Lose => Err(Fail::new("the line went dead")),
            Act::Refuse => Err(Fail::refused("no")),
            Act::NotSent => Err(Fail::not_sent("no connection")),
        }
    }
    fn look_up(&self, effect: &'static str, order: &str) -> Option<String> {
        let history = self.lock();
        calls(&history).find(|c| c.real && c.effect == effect && c.order == order).map(|c| c.operation.clone())
    }
    fn work(self: &Arc<Self>, cx: &Cx, work: &Work) -> Outcome {
        let job: Name = (Work::KIND, work.key.clone());
        self.tell(Told::Began { job: job.clone(), token: cx.token() });
        for what in &work.does {
            let order = work.key.clone();
            let confirmed = |effect, result| self.tell(Told::Confirmed { job: job.clone(), effect, result });
            match what {
                Do::Step => {
                    cx.step("step", || Ok(7_u32))?;
                    self.tell(Told::Stepped(job.clone()));
                }
                Do::Commit => {
                    let key = format!("{order}/commit");
                    cx.commit("commit", move |tx| Ok(row_and_note(tx, &key)?))?;
                    self.tell(Told::Committed(job.clone()));
                }
                Do::Charge => confirmed(Charge::NAME, cx.effect(Charge { order })?),
                Do::Reserve => confirmed(Reserve::NAME, cx.effect(Reserve { order })?),
                Do::Wire => confirmed(Wire::NAME, cx.effect(Wire { order })?),
                Do::Fail(until) if cx.attempt() <= *until => return Err("not this time".into()),
                Do::Panic(until) if cx.attempt() <= *until => {
                    std::panic::resume_unwind(Box::new("a handler that panics"))
                }
                Do::Fail(_) | Do::Panic(_) => {}
                Do::Never => return Err(Fail::permanent("never")),
                Do::Gate => self.gate.pass(),
                Do::Finish => {
                    let key = format!("{order}/finish");
                    cx.finish(move |tx| Ok(row_and_note(tx, &key)?))?;
                    self.tell(Told::Finished(job.clone()));
                }
            }
        }
        Ok(())
    }
}

pub(crate) fn calls(history: &[Told]) -> impl Iterator<Item = &Call> {
    history.iter().filter_map(|t| if let Told::Called(call) = t { Some(call) } else { None })
}

/// Counts a row up, enqueues the follow-up of the same name, and owes a message of that name.
fn row_and_note(tx: &mut Tx<'_>, key: &str) -> Result<(), Error> {
    {
        let mut rows = tx.open_table(ROWS)?;
        let before = rows.get(key).map_err(|e| Error::App(e.to_string()))?.map_or(0, |n| n.value());
        rows.insert(key, before + 1).map_err(|e| Error::App(e.to_string()))?;
    }
    let _told = tx.enqueue(&Note { key: key.to_owned() })?;
    let _told = tx.outbox(TOPIC, key, &key)?;
    Ok(())
}

/// The first calendar reading of every life.
pub(crate) const START: u64 = 1_767_225_600_000;

/// A process: its clock, and what tells it apart from others.
#[derive(Clone, Debug)]
pub(crate) struct Process {
    pub(crate) clock: ManualClock,
    pub(crate) boot: u8,
    pub(crate) nonce: u64,
    pub(crate) workers: usize,
}

impl Process {
    pub(crate) fn first() -> Self {
        Self { clock: ManualClock::at(Wall(START)), boot: 1, nonce: 1, workers: 2 }
    }
}

/// The app, ready to start.
pub(crate) fn app(world: &Arc<World>, disk: Arc<dyn DiskFactory>, process: &Process) -> Builder {
    let w = || world.clone();
    let (work, note, brief) = (w(), w(), w());
    let (charge, reserve, wire, found) = (w(), w(), w(), w());
    Jobs::on_disk(disk)
        .clock(Arc::new(process.clock.clone()))
        .process([process.boot; 16], process.nonce)
        .seed(7)
        .key_scope("crash suites")
        .cache_bytes(1 << 20)
        // A few jobs are enough to see the index of intents written, merged and cleared.
        .intent_sizes(Sizes { tail: 2, fan: 2, page: 2, ..Sizes::default() })
        .workers(process.workers)
        .on(move |cx, job: Work| work.work(cx, &job))
        .on(move |cx, job: Note| {
            note.tell(Told::Began { job: (Note::KIND, job.key), token: cx.token() });
            Ok(())
        })
        .on(move |cx, job: Brief| {
            brief.tell(Told::Began { job: (Brief::KIND, job.key), token: cx.token() });
            cx.output(&job.body.len())
        })
        .effect(move |c: &Charge, key| charge.perform(Charge::NAME, &c.order, key))
        .effect(move |r: &Reserve, key| reserve.perform(Reserve::NAME, &r.order, key))
        .effect(move |e: &Wire, key| wire.perform(Wire::NAME, &e.order, key))
        .probe(move |r: &Reserve, _| Ok(found.look_up(Reserve::NAME, &r.order)))
}

/// A caller who keeps a record of what it asks and hears. Errors are kept, not raised: whether they may happen is for the suite
/// to say.
pub(crate) struct Caller<'a> {
    pub(crate) jobs: &'a Jobs,
    pub(crate) world: &'a Arc<World>,
    pub(crate) process: &'a Process,
    pub(crate) errors: Mutex<Vec<(&'static str, Error)>>,
}

impl<'a> Caller<'a> {
    pub(crate) fn new(jobs: &'a Jobs, world: &'a Arc<World>, process: &'a Process) -> Self {
        Self { jobs, world, process, errors: Mutex::default() }
    }
    fn heard<T>(&self, what: &'static str, told: Result<T, Error>) -> Option<T> {
        told.map_err(|e| self.errors.lock().unwrap_or_else(PoisonError::into_inner).push((what, e))).ok()
    }
    /// A look that met a failing disk is repeated.
    fn seen<T>(&self, what: &'static str, look: impl Fn() -> Result<T, Error>) -> Option<T> {
        (0..20).find_map(|_| match look() {
            Err(e @ Error::Store(_)) => self.heard(what, Err(e)),
            other => Some(self.heard(what, other)),
        })?
    }
    fn asking<J: Job>(&self, job: &J) -> Name {
        let name = (J::KIND, job.key().as_str().to_owned());
        let payload = serde_json::to_vec(job).unwrap_or_default();
        self.world.tell(Told::Asking(name.clone(), payload));
        name
    }
    pub(crate) fn enqueue<J: Job>(&self, job: &J) -> Option<Enqueued> {
        let name = self.asking(job);
        let told = self.heard("enqueue", self.jobs.enqueue(job))?;
        self.world.tell(Told::Stored(name, told.id()));
        Some(told)
    }
    pub(crate) fn enqueue_many<J: Job>(&self, jobs: &[J]) -> Option<Vec<Enqueued>> {
        let names: Vec<Name> = jobs.iter().map(|j| self.asking(j)).collect();
        let told = self.heard("enqueue_many", self.jobs.enqueue_many(jobs))?;
        for (name, told) in names.into_iter().zip(&told) {
            self.world.tell(Told::Stored(name, told.id()));
        }
        Some(told)
    }
    pub(crate) fn after<J: Job>(&self, delay: Duration, job: &J) -> Option<Enqueued> {
        let name = self.asking(job);
        let told = self.heard("after", self.jobs.after(delay, job))?;
        self.world.tell(Told::Stored(name, told.id()));
        Some(told)
    }
    pub(crate) fn transact(&self, key: &str) -> Option<()> {
        let key = format!("outside/{key}");
        self.world.tell(Told::Transacting(key.clone()));
        let inner = key.clone();
        self.heard("transact", self.jobs.transact(move |tx| row_and_note(tx, &inner)))?;
        self.world.tell(Told::Transacted(key));
        Some(())
    }
    /// As far as the queue gets without the clock.
    pub(crate) fn idle(&self) {
        self.seen("run_until_idle", || testkit::run_until_idle(self.jobs));
    }
    pub(crate) fn pass(&self, time: Duration) {
        let clock = &self.process.clock;
        self.world.tell(Told::Time(clock.now().wall.0 + time.as_millis() as u64));
        clock.advance(time);
        self.idle();
    }
    pub(crate) fn look(&self, name: Name, id: JobId) -> Option<State> {
        let state = self.seen("state", || self.jobs.state(id))?;
        if state.is_settled() {
            self.world.tell(Told::Settled(name, state));
        }
        Some(state)
    }
    pub(crate) fn pause(&self, on: bool) {
        let scope = Scope::kind(Note::KIND);
        self.world.tell(Told::Pausing);
        let told = if on { self.jobs.pause(scope, "a look first") } else { self.jobs.resume(scope) };
        if self.heard("pause", told).is_some() {
            self.world.tell(Told::Paused(on));
        }
    }
    pub(crate) fn cancel(&self, name: Name, id: JobId) {
        self.world.tell(Told::Deciding(name));
        self.heard("cancel", self.jobs.cancel(id));
    }
    pub(crate) fn restore(&self, name: Name, id: JobId) {
        self.world.tell(Told::Deciding(name));
        self.heard("restore", self.jobs.restore(id, "ana", "after all"));
    }
    pub(crate) fn decide(&self, name: Name, id: JobId, decision: Decision) {
        self.decide_as("ana", name, id, decision);
    }
    pub(crate) fn decide_as(&self, who: &str, name: Name, id: JobId, decision: Decision) {
        self.world.tell(Told::Deciding(name.clone()));
        let Some(letter) = self.seen("dead_letter", || self.jobs.dead_letter(id)) else { return };
        match self.heard("decide", self.jobs.decide(&letter, decision.by(who, "as agreed"))) {
            Some(Decided::WaitsForSecond) => self.world.tell(Told::Proposed(name)),
            Some(_) => self.world.tell(Told::Decided(name)),
            None => {}
        }
    }
    /// A person runs it again, from this step if one is named.
    pub(crate) fn again(&self, name: Name, id: JobId, from: Option<&str>) {
        let Some(letter) = self.seen("dead_letter", || self.jobs.dead_letter(id)) else { return };
        self.world.tell(Told::Replaying(name.clone(), self.kept(&name, &letter, from)));
        self.decide(name, id, from.map_or_else(Decision::try_again, Decision::replay_from));
    }
    /// Every letter of `Work` jobs is released, this many at a time.
    pub(crate) fn release(&self, names: &[(Name, JobId)], at_most: usize) {
        let Some(mut plan) = self.seen("plan_replay", || self.jobs.plan_replay(&LetterFilter::kind(Work::KIND))) else {
            return;
        };
        for (name, id) in names {
            if let Some(letter) = self.seen("dead_letter", || self.jobs.dead_letter(*id)) {
                self.world.tell(Told::Replaying(name.clone(), self.kept(name, &letter, None)));
            }
            self.world.tell(Told::Deciding(name.clone()));
        }
        while plan.count() > 0 {
            let slice = self.jobs.replay(&mut plan, at_most, "ana", "the line works again");
            let Some(slice) = self.heard("replay", slice) else { return };
            for (name, _) in names.iter().filter(|(_, id)| slice.released.contains(id)) {
                self.world.tell(Told::Decided(name.clone()));
            }
        }
    }
    fn kept(&self, name: &Name, letter: &DeadLetter, from: Option<&str>) -> Kept {
        let line = |l: &onceward::LedgerLine| Line {
            effect: l.id.name.clone(),
            key: l.idempotency_key.clone(),
            confirmed: l.state == EffectState::Confirmed,
            reference: l.reference.clone(),
        };
        Kept {
            token: Facts::of(&self.world.told()).began.get(name).and_then(|t| t.last().copied()).unwrap_or(0),
            effects: letter.ledger().iter().map(line).collect(),
            memos: letter.steps().iter().take_while(|s| Some(s.as_str()) != from).cloned().collect(),
        }
    }
}

pub(crate) fn effect_id(name: &str) -> EffectId {
    EffectId { name: name.to_owned(), part: String::new() }
}

/// What a history says that must be true of the file.
#[derive(Clone, Debug, Default)]
pub(crate) struct Facts {
    pub(crate) time: u64,
    /// Payloads that may be stored under a name.
    pub(crate) asked: BTreeMap<Name, Vec<Vec<u8>>>,
    pub(crate) stored: BTreeMap<Name, JobId>,
    pub(crate) transacting: BTreeSet<String>,
    pub(crate) transacted: BTreeSet<String>,
    /// Tokens of a job's handlers, in the order in which they were called.
    pub(crate) began: BTreeMap<Name, Vec<u64>>,
    pub(crate) calls: Vec<Call>,
    pub(crate) confirmed: BTreeMap<(Name, &'static str), String>,
    /// Effects that were confirmed again with another result.
    pub(crate) contradicted: Vec<(Name, &'static str)>,
    pub(crate) stepped: BTreeSet<Name>,
    pub(crate) committed: BTreeSet<Name>,
    pub(crate) finished: BTreeSet<Name>,
    pub(crate) settled: BTreeMap<Name, State>,
    pub(crate) decided: BTreeMap<Name, usize>,
    pub(crate) proposed: BTreeMap<Name, usize>,
    /// How jobs stood before they were run again.
    pub(crate) replayed: Vec<(Name, Kept)>,
    /// Whether the kind `note` is paused, if that is sure.
    pub(crate) paused: Option<bool>,
    pub(crate) aged: Option<bool>,
}

impl Facts {
    pub(crate) fn of(history: &[Told]) -> Self {
        let mut facts = Self { time: START, paused: Some(false), ..Self::default() };
        history.iter().for_each(|told| facts.add(told));
        facts
    }
    pub(crate) fn add(&mut self, told: &Told) {
        match told.clone() {
            Told::Time(at) => self.time = at,
            Told::Aged(forgotten) => self.aged = Some(forgotten),
            Told::Asking(name, payload) => self.asked.entry(name).or_default().push(payload),
            Told::Stored(name, id) => {
                self.stored.entry(name).or_insert(id);
            }
            Told::Transacting(key) => {
                self.transacting.insert(key);
            }
            Told::Transacted(key) => {
                self.transacted.insert(key);
            }
            Told::Began { job, token } => self.began.entry(job).or_default().push(token),
            Told::Called(call) => self.calls.push(call),
            Told::Confirmed { job, effect, result } => {
                let first = self.confirmed.entry((job.clone(), effect)).or_insert_with(|| result.clone());
                if *first != result {
                    self.contradicted.push((job, effect));
                }
            }
            Told::Stepped(name) => {
                self.stepped.insert(name);
            }
            Told::Committed(name) => {
                self.committed.insert(name);
            }
            Told::Finished(name) => {
                self.finished.insert(name);
            }
            Told::Settled(name, state) => {
                self.settled.insert(name, state);
            }
            Told::Deciding(name) => {
                self.settled.remove(&name);
            }
            Told::Decided(name) => *self.decided.entry(name).or_default() += 1,
            Told::Proposed(name) => *self.proposed.entry(name).or_default() += 1,
            Told::Replaying(name, kept) => self.replayed.push((name, kept)),
            Told::Pausing => self.paused = None,
            Told::Paused(on) => self.paused = Some(on),
        }
    }
}
