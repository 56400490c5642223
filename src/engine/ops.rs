//! The engine's own operations on the store: promotion of due jobs, pruning, pause and resume, cancel.

use super::core::Core;
use crate::error::Error;
use crate::handler::job::digest;
use crate::handler::reply::Answer;
use crate::handler::shared::{Changed, Pauses, Shared, store_error};
use crate::handler::undo;
use crate::model::id::{JobId, KindId};
use crate::model::job::{Identity, Intent, JobState};
use crate::model::time::Wall;
use crate::planted::on;
use crate::rules::{admit, lifecycle};
use crate::store::{Lane, Op, StoreError, Write};
use std::sync::Arc;
use std::time::Duration;

/// Rows are pruned only after this much uptime without a divergence of the clocks: a clock that jumped must not make the queue
/// forget what already happened.
pub(crate) const TRUSTED_MS: u64 = 24 * 3600 * 1000;
/// Jobs pruned in one commit.
const SLICE: usize = 256;
/// When a memory that could not go is looked at again.
const AGAIN: Duration = Duration::from_secs(24 * 3600);

/// Due jobs become ready.
pub(crate) struct PromoteOp {
    core: Arc<Core>,
    due: Vec<(JobId, Wall)>,
    changes: Vec<Changed>,
}

impl PromoteOp {
    pub(crate) fn new(core: Arc<Core>, due: Vec<(JobId, Wall)>) -> Self {
        Self { core, due, changes: Vec::new() }
    }
    pub(crate) fn submit(core: &Arc<Core>, due: Vec<(JobId, Wall)>) {
        let _ = core.shared.submit(Lane::Outcome, Box::new(Self::new(core.clone(), due)));
    }
}

impl Op for PromoteOp {
    fn run(&mut self, tx: &mut Write<'_>) -> Result<(), StoreError> {
        self.changes.clear();
        for (id, due) in &self.due {
            let job = match tx.record(*id) {
                Ok(Some(job)) => job,
                // Pruned or damaged meanwhile: one bad record stops nothing.
                Ok(None) | Err(StoreError::Corrupt { .. }) => continue,
                Err(e) => return Err(e),
            };
            // Only the wait that this entry was made for: the job may have run and failed again since.
            let same = match &job.state {
                JobState::Delayed { due: d, .. } | JobState::Waiting { due: d, .. } => d == due,
                JobState::Ready { .. }
                | JobState::Running { .. }
                | JobState::NeedsDecision
                | JobState::Dead
                | JobState::Compensating { .. }
                | JobState::Ended { .. } => false,
            };
            if same && let Ok(change) = lifecycle::promote(&job) {
                tx.put(&change)?;
                // Promotions are not told by key: nobody reads them, and the row would have to be loaded for it.
                let name = self.core.shared.kind_name(job.kind);
                let queue = self.core.shared.queue_of(&name);
                self.changes.push(Changed::new(name, queue, "".into(), change));
            }
        }
        Ok(())
    }
    fn settle(self: Box<Self>, result: Result<(), StoreError>) {
        match result {
            Ok(()) => self.core.shared.report.changed(&self.changes),
            // Nothing is written any more; the next open promotes.
            Err(StoreError::Closed | StoreError::Stopped(_)) => {}
            // One of them cannot be moved: the others must not wait for it.
            Err(_) if self.due.len() > 1 => {
                self.due.iter().for_each(|one| Self::submit(&self.core, vec![*one]));
            }
            Err(e) => {
                for (id, due) in &self.due {
                    self.core.shared.report.warn(&format!("job {id} is due and could not be made ready: {e}"));
                    self.core.timer.look_again(*id, *due, self.core.shared.now());
                }
            }
        }
    }
}

/// Prunes what is past its retention, a slice at a time; never an undecided letter or an unresolved effect, because only ended jobs
/// have a prune row. Their intent is remembered. What has to stay holds up nothing that comes after it.
pub(crate) struct MaintainOp {
    core: Arc<Core>,
    from: Place,
    /// Where the next slice begins, if there is more.
    next: Option<Place>,
    /// What cannot be read, and stays.
    kept: Kept,
}

/// Where a slice begins: after this job, and after this message.
#[derive(Clone)]
struct Place {
    jobs: (Wall, JobId),
    messages: Option<(Wall, String, String)>,
    kept: Kept,
}

impl Default for Place {
    fn default() -> Self {
        Self { jobs: (Wall(0), JobId(0)), messages: None, kept: Kept::default() }
    }
}

/// How many rows cannot be read, and the first of them.
#[derive(Clone, Default)]
struct Kept(usize, Option<String>);

impl Kept {
    fn add(&mut self, what: impl FnOnce() -> String) {
        self.0 += 1;
        self.1.get_or_insert_with(what);
    }
}

impl MaintainOp {
    pub(crate) fn new(core: Arc<Core>) -> Self {
        Self { core, from: Place::default(), next: None, kept: Kept::default() }
    }
    fn prune(&self, tx: &mut Write<'_>, id: JobId) -> Result<(), StoreError> {
        let shared = &self.core.shared;
        let Some(job) = tx.record(id)? else { return tx.prune(id) };
        let Some(row) = tx.job(id)? else {
            // Nobody knows any more whose it was: its intent must not become new.
            return Err(StoreError::Corrupt { what: format!("the row of job {id} is missing") });
        };
        let JobState::Ended { how, at } = job.state else { return Ok(()) };
        if job.effects > 0 && tx.effects(id)?.iter().any(|e| e.state.is_unresolved()) {
            return Ok(());
        }
        tx.open_strip(id)?;
        // How long a kind wants to be remembered is known to the app that registers it. One that does not must not make a charge
        // new again: it forgets the rows, never the intent.
        let registered = shared.registry.kind(&shared.kind_name(job.kind));
        let until = registered.and_then(|k| admit::remembered_until(&k.rules, at));
        if let Some(Intent::Kept(newest, _)) = tx.intent(row.kind, row.key.as_str())?
            && newest == id
        {
            let digest = digest(row.version, row.codec, &row.payload);
            let memory = Identity { id, incarnation: row.incarnation, digest, how, until };
            tx.remember(row.kind, row.key.as_str(), &memory)?;
        }
        tx.prune(id)
    }
    /// Forgets an intent, or notes when to look at it again.
    fn forget(&self, tx: &mut Write<'_>, until: Wall, kind: KindId, key: &str) -> Result<(), StoreError> {
        let Some(memory) = tx.remembered_intent(kind, key)?.filter(|m| m.until == Some(until)) else {
            return tx.remove_tomb(until, kind, key);
        };
        // Looked at before anything is written.
        let older = tx.kept(kind, key)?.is_some();
        tx.forget(kind, key, &memory)?;
        if older {
            // An older job of it is kept for longer, in the trash perhaps: without this memory it would pass for the newest, and the
            // next one would get the idempotency keys of the one that is forgotten.
            let later = self.core.shared.now().wall.after(AGAIN);
            tx.remember(kind, key, &Identity { until: Some(later), ..memory })?;
        }
        Ok(())
    }
}

impl Op for MaintainOp {
    fn run(&mut self, tx: &mut Write<'_>) -> Result<(), StoreError> {
        self.next = None;
        self.kept = self.from.kept.clone();
        let shared = self.core.shared.clone();
        let now = shared.read_clock();
        if shared.trust.marks().trusted_ms < TRUSTED_MS {
            return Ok(());
        }
        let mut old = tx.ended(self.from.jobs, SLICE)?;
        let more_jobs = old.len() == SLICE;
        old.retain(|(when, _)| *when < now.wall);
        for (_, id) in &old {
            match self.prune(tx, *id) {
                Err(StoreError::Corrupt { what }) => self.kept.add(|| format!("job {id}: {what}")),
                other => other?,
            }
        }
        let tombs = tx.tombs(now.wall, SLICE)?;
        for (until, kind, key) in &tombs {
            match self.forget(tx, *until, *kind, key) {
                // Nobody knows whether its time is over: it is remembered for ever.
                Err(StoreError::Corrupt { what }) => {
                    self.kept.add(|| format!("the memory of {key:?}: {what}"));
                    tx.remove_tomb(*until, *kind, key)?;
                }
                other => other?,
            }
        }
        let fading = tx.fading(self.from.messages.as_ref(), now.wall, SLICE)?;
        for (at, topic, id) in &fading {
            match tx.fade(*at, topic, id) {
                Err(StoreError::Corrupt { what }) => self.kept.add(|| format!("message {id:?}: {what}")),
                other => other?,
            }
        }
        let more_jobs = more_jobs && old.len() == SLICE;
        if more_jobs || tombs.len() == SLICE || fading.len() == SLICE {
            self.next = Some(Place {
                jobs: old.last().copied().unwrap_or(self.from.jobs),
                messages: fading.last().cloned().or_else(|| self.from.messages.clone()),
                kept: self.kept.clone(),
            });
        }
        Ok(())
    }
    fn settle(self: Box<Self>, result: Result<(), StoreError>) {
        match (result, self.next) {
            (Ok(()), Some(from)) => {
                let op = MaintainOp { from, ..MaintainOp::new(self.core.clone()) };
                let _ = self.core.shared.submit(Lane::Enqueue, Box::new(op));
            }
            (Ok(()), None) => {
                if let Kept(n, Some(first)) = &self.kept {
                    let text =
                        format!("{n} rows are past their time and cannot be read: they are kept; the first is {first}");
                    self.core.shared.report.warn(&text);
                }
            }
            (Err(_), _) => {}
        }
    }
}

/// What a pause covers.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Scope {
    /// Everything.
    All,
    /// One kind: the jobs stored under this name and, if it is the kind's name of today, those under its former names.
    Kind(String),
    /// All kinds of one queue.
    Queue(String),
    /// One topic of the outbox: its messages wait.
    Topic(String),
}

impl Scope {
    /// One kind.
    pub fn kind(name: &str) -> Self {
        Self::Kind(name.to_owned())
    }
    /// All kinds of one queue.
    pub fn queue(name: &str) -> Self {
        Self::Queue(name.to_owned())
    }
    /// One topic of the outbox.
    pub fn topic(name: &str) -> Self {
        Self::Topic(name.to_owned())
    }
    fn meta(&self) -> String {
        match self {
            Self::All => format!("{PAUSES}all"),
            Self::Kind(k) => format!("{PAUSES}kind/{k}"),
            Self::Queue(q) => format!("{PAUSES}queue/{q}"),
            Self::Topic(t) => format!("{PAUSES}topic/{t}"),
        }
    }
    fn put(&self, pauses: &mut Pauses, why: Option<String>) {
        let (map, name) = match self {
            Self::All => {
                pauses.all = why;
                return;
            }
            Self::Kind(k) => (&mut pauses.kinds, k),
            Self::Queue(q) => (&mut pauses.queues, q),
            Self::Topic(t) => (&mut pauses.topics, t),
        };
        match why {
            Some(why) => map.insert(name.clone(), why),
            None => map.remove(name),
        };
    }
}

/// The store's mark of a file that may be an older copy, until the start that finds it has paused everything.
pub(crate) const REWOUND: &str = "rewound";
/// The names under which pauses are kept.
pub(crate) const PAUSES: &str = "pause/";

/// Pauses as the file has them.
pub(crate) fn load_pauses(metas: Vec<(String, Vec<u8>)>) -> Pauses {
    let mut out = Pauses::default();
    for (name, why) in metas {
        let why = Some(String::from_utf8_lossy(&why).into_owned());
        let rest = name.strip_prefix(PAUSES).unwrap_or(&name);
        match rest.split_once('/') {
            Some(("kind", k)) => Scope::Kind(k.to_owned()).put(&mut out, why),
            Some(("queue", q)) => Scope::Queue(q.to_owned()).put(&mut out, why),
            Some(("topic", t)) => Scope::Topic(t.to_owned()).put(&mut out, why),
            _ => Scope::All.put(&mut out, why),
        }
    }
    out
}

/// Pauses or resumes, durably.
pub(crate) struct PauseOp {
    pub(crate) shared: Arc<Shared>,
    pub(crate) scope: Scope,
    pub(crate) why: Option<String>,
    pub(crate) answer: Answer<Result<(), Error>>,
}

impl Op for PauseOp {
    fn run(&mut self, tx: &mut Write<'_>) -> Result<(), StoreError> {
        match &self.why {
            Some(_) if on("pause-unstored") => Ok(()),
            Some(why) => tx.put_meta(&self.scope.meta(), why.as_bytes()),
            None => tx.remove_meta(&self.scope.meta()),
        }
    }
    fn settle(self: Box<Self>, result: Result<(), StoreError>) {
        if result.is_ok() {
            self.scope.put(&mut self.shared.pauses.write(), self.why);
            // What was paused may be claimed again, and delivered.
            self.shared.store.poke();
            self.shared.report.resumed();
            self.shared.report.paused();
        }
        self.answer.send(result.map_err(store_error));
    }
    fn unknown(&mut self) {
        self.answer.send(Err(Error::Unknown));
    }
}

/// Cancels a job, or asks a running one to stop.
pub(crate) struct CancelOp {
    pub(crate) core: Arc<Core>,
    pub(crate) id: JobId,
    pub(crate) answer: Answer<Result<(), Error>>,
    pub(crate) done: Option<Result<Vec<Changed>, Error>>,
}

impl Op for CancelOp {
    fn run(&mut self, tx: &mut Write<'_>) -> Result<(), StoreError> {
        let Some(job) = tx.record(self.id)? else {
            self.done = Some(Err(Error::NotFound(self.id)));
            return Ok(());
        };
        let effects = if job.effects > 0 { tx.effects(self.id)? } else { Vec::new() };
        let shared = &self.core.shared;
        self.done = Some(match lifecycle::cancel(&job, &effects, shared.rules_of(job.kind), shared.now()) {
            Ok(change) => {
                let changed = named(tx, shared, change)?;
                Ok(undo::put(tx, shared, changed, None)?)
            }
            Err(refusal) => Err(refusal.into()),
        });
        Ok(())
    }
    fn settle(self: Box<Self>, result: Result<(), StoreError>) {
        match (result, self.done) {
            (Ok(()), Some(Ok(changes))) => {
                if changes.first().is_some_and(|c| c.change.record().cancel) {
                    self.core.cancels.lock().insert(self.id);
                }
                for a in self.core.attempts() {
                    if a.id() == self.id {
                        a.cancel();
                    }
                }
                self.core.shared.report.changed(&changes);
                self.answer.send(Ok(()));
            }
            (Ok(()), Some(Err(e))) => self.answer.send(Err(e)),
            (Ok(()), None) => {}
            (Err(e), _) => self.answer.send(Err(store_error(e))),
        }
    }
    fn unknown(&mut self) {
        self.answer.send(Err(Error::Unknown));
    }
}

/// A change with the names of its job.
pub(crate) fn named(tx: &Write<'_>, shared: &Shared, change: crate::rules::Change) -> Result<Changed, StoreError> {
    let id = change.record().id;
    let name = shared.kind_name(change.record().kind);
    let key = match tx.job(id) {
        // It is only shown: a damaged row must not keep a person from deciding.
        Err(StoreError::Corrupt { .. }) => "".into(),
        row => row?.map_or_else(|| "".into(), |row| row.key),
    };
    Ok(Changed::new(name.clone(), shared.queue_of(&name), key, change))
}

/// The setting that names the kinds about which two people have to decide: also an app that does not register one keeps to that.
pub(crate) const PAIRS: &str = "two-people";

/// Gives kinds their numbers.
pub(crate) struct KindsOp {
    names: Vec<&'static str>,
    /// About which two people have to decide, if that changed.
    pairs: Option<Vec<u8>>,
    ids: Vec<KindId>,
    answer: Answer<Result<Vec<KindId>, StoreError>>,
}

impl KindsOp {
    pub(crate) fn new(
        names: Vec<&'static str>,
        pairs: Option<Vec<u8>>,
        answer: Answer<Result<Vec<KindId>, StoreError>>,
    ) -> Self {
        Self { names, pairs, ids: Vec::new(), answer }
    }
}

impl Op for KindsOp {
    fn run(&mut self, tx: &mut Write<'_>) -> Result<(), StoreError> {
        self.ids.clear();
        for name in &self.names {
            self.ids.push(match tx.kind(name)? {
                Some(id) => id,
                None => tx.add_kind(name)?,
            });
        }
        if let Some(pairs) = &self.pairs {
            tx.put_meta(PAIRS, pairs)?;
        }
        Ok(())
    }
    fn settle(self: Box<Self>, result: Result<(), StoreError>) {
        let Self { answer, ids, .. } = *self;
        answer.send(result.map(|()| ids));
    }
}
