//! Enqueue: one intent, one job, race-free because the writer decides; every caller gets an answer of their own.

use super::job::{self, Job};
use super::kinds::Kind;
use super::reply::Answer;
use super::shared::{Changed, Shared, Suppressed, keep, store_error};
use crate::error::{Error, Setup};
use crate::model::id::{JobId, KindId};
use crate::model::job::{Enqueued, Intent, JobRecord, JobRow};
use crate::model::policy::KindRules;
use crate::model::time::{Now, Wall};
use crate::rules::admit::{self, Admit, Known, Start};
use crate::store::{Op, Own, StoreError, Write};
use std::sync::Arc;

/// A job on its way into the store: encoded and checked on the caller's thread.
pub(crate) struct Spec {
    pub(crate) kind: &'static str,
    aliases: &'static [&'static str],
    /// As it is stored, but for what only the writer knows: the kind's number, the incarnation, when.
    row: JobRow,
    priority: u8,
    start: Start,
    queue: &'static str,
    registered: Registered,
}

/// What the registry says about a kind.
enum Registered {
    Here(Arc<Kind>),
    /// Not here: what it would say.
    Elsewhere(Box<KindRules>),
}

impl Spec {
    pub(crate) fn of<J: Job>(job: &J, start: Start, shared: &Shared) -> Result<Self, Error> {
        let limits = &shared.limits;
        let key = job.key();
        if key.as_str().is_empty() {
            return Err(Error::EmptyKey { kind: J::KIND.to_owned() });
        }
        if key.as_str().len() > limits.key {
            return Err(Error::TooBig { what: "key", len: key.as_str().len(), limit: limits.key });
        }
        if J::KIND.is_empty() || J::KIND.len() > limits.name {
            return Err(Setup::BadName { what: "kind", name: J::KIND.to_owned() }.into());
        }
        let payload = job::encode(job, limits)?;
        let title = super::fail::cut(job.title(), limits.key);
        let registered = match shared.registry.kind(J::KIND) {
            Some(kind) => Registered::Here(kind.clone()),
            None => Registered::Elsewhere(Box::new(J::policy().resolve(&J::effects()))),
        };
        let row = JobRow {
            kind: KindId(0),
            key,
            incarnation: 0,
            version: J::VERSION,
            codec: J::CODEC,
            title,
            enqueued: Wall(0),
            payload,
            undoes: None,
        };
        Ok(Self { kind: J::KIND, aliases: J::ALIASES, row, priority: J::PRIORITY, start, queue: J::QUEUE, registered })
    }
    fn rules(&self) -> &KindRules {
        match &self.registered {
            Registered::Here(kind) => &kind.rules,
            Registered::Elsewhere(rules) => rules,
        }
    }
    /// The kind's name, as a label.
    fn label(&self) -> Arc<str> {
        match &self.registered {
            // Registered under a former name of a kind: the job is counted under the name that it is stored with.
            Registered::Here(kind) if kind.name == self.kind => kind.label.clone(),
            Registered::Here(_) | Registered::Elsewhere(_) => self.kind.into(),
        }
    }
}

/// What is known of an intent: under the kind's name first, then under its former names.
fn find(tx: &mut dyn Own, spec: &Spec) -> Result<Option<(KindId, Intent)>, StoreError> {
    for name in std::iter::once(spec.kind).chain(spec.aliases.iter().copied()) {
        if let Some(kind) = tx.kind(name)?
            && let Some(intent) = tx.intent(kind, spec.row.key.as_str())?
        {
            return Ok(Some((kind, intent)));
        }
    }
    Ok(None)
}

/// Where the job of an intent stands, unless its rows were pruned.
fn standing(tx: &mut dyn Own, intent: &Intent) -> Result<Option<JobRecord>, StoreError> {
    match intent {
        Intent::Kept(id, _) => tx.record(*id),
        Intent::Remembered(_) => Ok(None),
    }
}

/// Whether an intent is known with another payload.
fn differs(intent: &Intent, asked: &JobRow) -> bool {
    match intent {
        Intent::Kept(_, row) => {
            (row.version, row.codec) != (asked.version, asked.codec) || row.payload != asked.payload
        }
        Intent::Remembered(memory) => memory.digest != job::digest(asked.version, asked.codec, &asked.payload),
    }
}

fn known<'a>(intent: &Intent, job: Option<&'a JobRecord>, paused: bool) -> Known<'a> {
    Known { id: intent.id(), incarnation: intent.incarnation(), job, paused }
}

/// Enqueues in the writer's transaction.
pub(crate) fn admit(
    tx: &mut dyn Own,
    spec: &mut Spec,
    shared: &Shared,
    now: Now,
) -> Result<(Enqueued, Option<Changed>), Error> {
    let found = find(tx, spec)?;
    let job = match &found {
        Some((_, intent)) => standing(tx, intent)?,
        None => None,
    };
    let differs = found.as_ref().is_some_and(|(_, intent)| differs(intent, &spec.row));
    let known = found.as_ref().map(|(kind, intent)| {
        let paused =
            shared.paused(&shared.kind_name(*kind)) || shared.pauses.read().covers(spec.kind, Some(spec.queue));
        known(intent, job.as_ref(), paused)
    });
    match admit::enqueue(known, differs) {
        Admit::Existing { id, state, differs } => Ok((Enqueued::Existing { id, state, differs }, None)),
        Admit::New { incarnation } => {
            let kind = tx.add_kind(spec.kind)?;
            let (id, changed) = insert(tx, spec, kind, incarnation, now)?;
            Ok((Enqueued::New(id), Some(changed)))
        }
    }
}

fn insert(
    tx: &mut dyn Own,
    spec: &mut Spec,
    kind: KindId,
    incarnation: u32,
    now: Now,
) -> Result<(JobId, Changed), StoreError> {
    let id = tx.next_id();
    let change = admit::create(id, kind, spec.priority, spec.start, spec.rules(), now);
    let row = &mut spec.row;
    (row.kind, row.incarnation, row.enqueued) = (kind, incarnation, now.wall);
    tx.insert(row, &change)?;
    let key = row.key.clone();
    Ok((id, Changed::new(spec.label(), spec.queue, key, change)))
}

/// Enqueues one or many jobs in one transaction, one answer each.
pub(crate) struct EnqueueOp {
    pub(crate) shared: Arc<Shared>,
    pub(crate) specs: Vec<Spec>,
    pub(crate) answer: Answer<Result<Vec<Enqueued>, Error>>,
    pub(crate) done: Vec<Enqueued>,
    pub(crate) changes: Vec<Changed>,
    pub(crate) refused: Option<Error>,
}

impl EnqueueOp {
    pub(crate) fn new(shared: Arc<Shared>, specs: Vec<Spec>, answer: Answer<Result<Vec<Enqueued>, Error>>) -> Self {
        let (done, changes) = (Vec::with_capacity(specs.len()), Vec::with_capacity(specs.len()));
        Self { shared, specs, answer, done, changes, refused: None }
    }
}

impl Op for EnqueueOp {
    fn is_new_work(&self) -> bool {
        true
    }
    fn run(&mut self, tx: &mut Write<'_>) -> Result<(), StoreError> {
        self.done.clear();
        self.changes.clear();
        self.refused = None;
        let now = self.shared.now();
        for spec in &mut self.specs {
            match admit(tx, spec, &self.shared, now) {
                Ok((answer, changed)) => {
                    self.done.push(answer);
                    self.changes.extend(changed);
                }
                Err(Error::Store(e)) => return Err(e),
                Err(e) => self.refused = Some(e),
            }
        }
        Ok(())
    }
    fn bytes(&self) -> usize {
        self.specs.iter().map(|s| s.row.payload.len()).sum()
    }
    fn may_be_told_later(&self) -> bool {
        true
    }
    fn settle(self: Box<Self>, result: Result<(), StoreError>) {
        match (result, self.refused) {
            (Ok(()), None) => {
                for (spec, _) in self.specs.iter().zip(&self.done).filter(|(_, e)| !e.is_new()) {
                    self.shared.report.suppressed(spec.kind, Suppressed::Enqueue);
                }
                self.shared.report.changed(&self.changes);
                self.answer.send(Ok(self.done));
            }
            (Ok(()), Some(e)) => self.answer.send(Err(e)),
            (Err(e), _) => self.answer.send(Err(store_error(e))),
        }
    }
    fn unknown(&mut self) {
        self.answer.send(Err(Error::Unknown));
    }
}

/// Starts an ended intent anew.
pub(crate) struct RunAgainOp {
    pub(crate) shared: Arc<Shared>,
    pub(crate) spec: Spec,
    pub(crate) answer: Answer<Result<JobId, Error>>,
    pub(crate) done: Option<Result<(JobId, Changed), Error>>,
}

impl RunAgainOp {
    fn again(&mut self, tx: &mut Write<'_>) -> Result<(JobId, Changed), Error> {
        let found = find(tx, &self.spec)?;
        let (mut job, mut effects) = (None, Vec::new());
        if let Some((_, intent @ Intent::Kept(id, _))) = &found {
            job = standing(tx, intent)?;
            effects = tx.effects(*id)?;
        }
        let running = found
            .as_ref()
            .and_then(|(_, i)| effects.iter().find(|e| self.shared.calls.running(i.id(), &e.id)))
            .map(|e| e.id.clone());
        let paused = found.as_ref().is_some_and(|(kind, _)| self.shared.paused(&self.shared.kind_name(*kind)));
        let known = found.as_ref().map(|(_, intent)| known(intent, job.as_ref(), paused));
        match admit::run_again(known, &effects, running.as_ref())? {
            Admit::New { incarnation } => {
                // The new incarnation stays under the kind name it was stored with, so that one intent has one memory.
                let kind = match &found {
                    Some((kind, _)) => *kind,
                    None => tx.add_kind(self.spec.kind)?,
                };
                if let Some((kind, Intent::Remembered(memory))) = &found {
                    tx.forget(*kind, self.spec.row.key.as_str(), memory)?;
                }
                Ok(insert(tx, &mut self.spec, kind, incarnation, self.shared.now())?)
            }
            Admit::Existing { state, .. } => Err(crate::rules::Refusal::WrongState(state).into()),
        }
    }
}

impl Op for RunAgainOp {
    fn is_new_work(&self) -> bool {
        true
    }
    fn run(&mut self, tx: &mut Write<'_>) -> Result<(), StoreError> {
        let came = self.again(tx);
        keep(&mut self.done, came)
    }
    fn settle(self: Box<Self>, result: Result<(), StoreError>) {
        match (result, self.done) {
            (Ok(()), Some(Ok((id, changed)))) => {
                self.shared.report.changed(&[changed]);
                self.answer.send(Ok(id));
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
