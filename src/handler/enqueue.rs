//! Enqueue: one intent, one job, race-free because the writer decides; every caller gets an answer of their own.

use super::job::{self, Job};
use super::reply::Answer;
use super::shared::{Changed, Shared, Suppressed, keep, store_error};
use crate::error::{Error, Setup};
use crate::model::id::{JobId, JobKey, KindId};
use crate::model::job::{Codec, Enqueued, Identity, JobRow};
use crate::model::policy::KindRules;
use crate::rules::admit::{self, Admit, Known, Start};
use crate::store::{Op, Own, StoreError, Write};
use std::sync::Arc;

/// A job on its way into the store: encoded and checked on the caller's thread.
pub(crate) struct Spec {
    pub(crate) kind: &'static str,
    pub(crate) aliases: &'static [&'static str],
    pub(crate) key: JobKey,
    pub(crate) version: u32,
    pub(crate) codec: Codec,
    pub(crate) title: String,
    pub(crate) payload: Vec<u8>,
    pub(crate) digest: [u8; 16],
    pub(crate) priority: u8,
    pub(crate) start: Start,
    pub(crate) queue: &'static str,
    /// Only for kinds that are not registered here.
    rules: Option<Box<KindRules>>,
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
        let digest = job::digest(J::VERSION, J::CODEC, &payload);
        let title = super::fail::cut(job.title(), limits.key);
        let rules = match shared.registry.kind(J::KIND) {
            Some(_) => None,
            None => Some(Box::new(J::policy().resolve(&J::effects()))),
        };
        Ok(Self {
            kind: J::KIND,
            aliases: J::ALIASES,
            key,
            version: J::VERSION,
            codec: J::CODEC,
            title,
            payload,
            digest,
            priority: J::PRIORITY,
            start,
            queue: J::QUEUE,
            rules,
        })
    }
    fn rules<'a>(&'a self, shared: &'a Shared) -> &'a KindRules {
        match &self.rules {
            Some(r) => r,
            None => shared.rules_named(self.kind),
        }
    }
}

/// The memory of an intent: under the kind's name first, then under its former names.
fn find(tx: &mut dyn Own, spec: &Spec) -> Result<Option<(KindId, Identity)>, StoreError> {
    for name in std::iter::once(spec.kind).chain(spec.aliases.iter().copied()) {
        if let Some(kind) = tx.kind(name)?
            && let Some(i) = tx.identity(kind, spec.key.as_str())?
        {
            return Ok(Some((kind, i)));
        }
    }
    Ok(None)
}

/// Enqueues in the writer's transaction.
pub(crate) fn admit(tx: &mut dyn Own, spec: &Spec, shared: &Shared) -> Result<(Enqueued, Option<Changed>), Error> {
    let found = find(tx, spec)?;
    let job = match &found {
        Some((_, i)) if i.ended.is_none() => tx.record(i.id)?,
        Some(_) | None => None,
    };
    let stored = found.as_ref().map_or_else(|| spec.kind.into(), |(kind, _)| shared.kind_name(*kind));
    let paused = shared.paused(&stored) || shared.pauses.read().covers(spec.kind, Some(spec.queue));
    let known = found.as_ref().map(|(_, identity)| Known { identity, job: job.as_ref(), paused });
    match admit::enqueue(known, &spec.digest) {
        Admit::Existing { id, state, differs } => Ok((Enqueued::Existing { id, state, differs }, None)),
        Admit::New { incarnation } => {
            let kind = tx.add_kind(spec.kind)?;
            let (id, changed) = insert(tx, spec, kind, incarnation, shared)?;
            Ok((Enqueued::New(id), Some(changed)))
        }
    }
}

fn insert(
    tx: &mut dyn Own,
    spec: &Spec,
    kind: KindId,
    incarnation: u32,
    shared: &Shared,
) -> Result<(JobId, Changed), StoreError> {
    let now = shared.now();
    let id = tx.next_id();
    let change = admit::create(id, kind, spec.priority, spec.start, spec.rules(shared), now);
    let row = JobRow {
        kind,
        key: spec.key.clone(),
        incarnation,
        version: spec.version,
        codec: spec.codec,
        title: spec.title.clone(),
        enqueued: now.wall,
        payload: spec.payload.clone(),
        undoes: None,
    };
    tx.insert(&row, &change)?;
    tx.put_identity(kind, spec.key.as_str(), &Identity { id, incarnation, digest: spec.digest, ended: None })?;
    Ok((id, Changed::new(spec.kind.into(), spec.queue, spec.key.clone(), change)))
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
        Self { shared, specs, answer, done: Vec::new(), changes: Vec::new(), refused: None }
    }
}

impl Op for EnqueueOp {
    fn run(&mut self, tx: &mut Write<'_>) -> Result<(), StoreError> {
        self.done.clear();
        self.changes.clear();
        self.refused = None;
        for spec in &self.specs {
            match admit(tx, spec, &self.shared) {
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
        self.specs.iter().map(|s| s.payload.len()).sum()
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
    fn again(&self, tx: &mut Write<'_>) -> Result<(JobId, Changed), Error> {
        let found = find(tx, &self.spec)?;
        let (mut job, mut effects) = (None, Vec::new());
        if let Some((_, i)) = &found
            && i.ended.is_none()
        {
            job = tx.record(i.id)?;
            effects = tx.effects(i.id)?;
        }
        let running = found
            .as_ref()
            .and_then(|(_, i)| effects.iter().find(|e| self.shared.calls.running(i.id, &e.id)))
            .map(|e| e.id.clone());
        let paused = found.as_ref().is_some_and(|(kind, _)| self.shared.paused(&self.shared.kind_name(*kind)));
        let known = found.as_ref().map(|(_, identity)| Known { identity, job: job.as_ref(), paused });
        match admit::run_again(known, &effects, running.as_ref())? {
            Admit::New { incarnation } => {
                // The new incarnation stays under the kind name it was stored with, so that one intent has one memory.
                let kind = match &found {
                    Some((kind, _)) => *kind,
                    None => tx.add_kind(self.spec.kind)?,
                };
                if let Some((kind, i)) = &found
                    && let Some((_, Some(until))) = i.ended
                {
                    tx.remove_tomb(until, *kind, self.spec.key.as_str())?;
                }
                Ok(insert(tx, &self.spec, kind, incarnation, &self.shared)?)
            }
            Admit::Existing { state, .. } => Err(crate::rules::Refusal::WrongState(state).into()),
        }
    }
}

impl Op for RunAgainOp {
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
