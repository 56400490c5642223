//! The ends of attempts on their way into the store: those that come one after the other are one request, so that what they share is
//! paid for once. Keeps the promise that an end which cannot be written holds up no other. Made by the engine.

use super::attempt::Attempt;
use super::shared::{Changed, store_error};
use super::undo;
use crate::error::Error;
use crate::model::attempt::{AttemptEnd, Run};
use crate::model::effect::EffectRecord;
use crate::model::id::JobId;
use crate::model::job::JobState;
use crate::model::time::Now;
use crate::rules::{Env, lifecycle};
use crate::store::{Lane, Op, StoreError, Write};
use std::any::Any;
use std::sync::Arc;

/// No more joins a request that has so many bytes to write: a round is cut between requests.
const FULL: usize = 1 << 20;

/// The end of an attempt.
pub(crate) struct End {
    pub(crate) attempt: Arc<Attempt>,
    pub(crate) how: AttemptEnd,
    pub(crate) output: Option<Vec<u8>>,
    /// What its line says beside the facts.
    pub(crate) seen: Run,
}

/// Who is told which ends were accepted: `false` if the lease was over.
pub(crate) trait HearsEnds: Send + Sync {
    fn over(&self, ends: &[(JobId, bool)]);
}

/// The ends of attempts, as many as came one after the other: what they share is paid for once.
pub(crate) struct EndOp {
    /// Each with the place of its own change, if it was accepted.
    ends: Vec<(End, Option<usize>)>,
    /// It failed beside others: no end joins it any more.
    alone: bool,
    /// What its handlers left for their callers, in bytes.
    bytes: usize,
    hears: Arc<dyn HearsEnds>,
    /// Their own changes, each before what followed for other jobs.
    done: Vec<Changed>,
}

impl EndOp {
    /// Hands an end to the writer.
    ///
    /// # Errors
    /// Nothing is written any more.
    pub(crate) fn submit(end: End, hears: Arc<dyn HearsEnds>) -> Result<(), Error> {
        let store = end.attempt.shared.store.clone();
        let mut end = Some(end);
        store.join(&mut end).map_err(store_error)?;
        let Some(end) = end else { return Ok(()) };
        let shared = end.attempt.shared.clone();
        shared.submit(Lane::Outcome, Box::new(Self::of(end, false, hears)))
    }
    fn of(end: End, alone: bool, hears: Arc<dyn HearsEnds>) -> Self {
        Self { bytes: end.bytes(), ends: vec![(end, None)], alone, hears, done: Vec::new() }
    }
}

impl End {
    fn bytes(&self) -> usize {
        self.output.as_ref().map_or(0, Vec::len)
    }
    /// Its own change and what followed for other jobs, behind those in `done`; `false` if it was refused: another claim, a decision or
    /// the job's end came first.
    fn decide(&self, tx: &mut Write<'_>, now: Now, done: &mut Vec<Changed>) -> Result<bool, StoreError> {
        let a = &self.attempt;
        let (shared, id) = (&a.shared, a.id());
        let Some(job) = tx.record(id)? else { return Ok(false) };
        let effects = if job.effects > 0 { tx.effects(id)? } else { Vec::new() };
        let calls = |r: &EffectRecord| shared.call_facts(id, r, now);
        let env = Env { now, draw: shared.draw(), calls: &calls };
        let Ok(change) = lifecycle::end(&job, &a.lease, self.how.clone(), &effects, &a.kind.rules, &env) else {
            return Ok(false);
        };
        // Only with its success: the finish gate may have made a question of it.
        let over = matches!(change.record().state, JobState::Ended { .. });
        undo::put_behind(tx, shared, a.changed(change), Some(&a.row), done)?;
        if let Some(output) = self.output.as_ref().filter(|_| over) {
            tx.put_output(id, output.clone())?;
        }
        Ok(true)
    }
}

impl Op for EndOp {
    fn run(&mut self, tx: &mut Write<'_>) -> Result<(), StoreError> {
        self.done.clear();
        self.done.reserve(self.ends.len());
        let Some(now) = self.ends.first().map(|(end, _)| end.attempt.shared.now()) else { return Ok(()) };
        for (end, own) in &mut self.ends {
            let (at, written) = (self.done.len(), tx.touches());
            *own = match end.decide(tx, now, &mut self.done) {
                Ok(accepted) => accepted.then_some(at),
                // Nothing of it was written: the claim stays until the next open, and the other ends count.
                Err(e) if !e.is_storage() && tx.touches() == written => None,
                Err(e) => return Err(e),
            };
        }
        Ok(())
    }
    fn take_along(&mut self, more: &mut dyn Any) -> bool {
        let more = more.downcast_mut::<Option<End>>().filter(|_| !self.alone && self.bytes < FULL);
        let Some(end) = more.and_then(Option::take) else { return false };
        self.bytes += end.bytes();
        self.ends.push((end, None));
        true
    }
    fn answers(&self) -> usize {
        self.ends.len()
    }
    fn is_awaited(&self) -> bool {
        false
    }
    fn may_be_told_later(&self) -> bool {
        // Nothing of the attempts runs any more.
        true
    }
    fn settle(self: Box<Self>, result: Result<(), StoreError>) {
        let Self { ends, alone: _, bytes: _, hears, mut done } = *self;
        if let Err(e) = &result
            && ends.len() > 1
            && !matches!(e, StoreError::Closed | StoreError::Stopped(_) | StoreError::Unknown)
        {
            // One of them cannot be written: the others must not wait for it.
            for (end, _) in ends {
                let (shared, job) = (end.attempt.shared.clone(), end.attempt.id());
                if shared.submit(Lane::Outcome, Box::new(Self::of(end, true, hears.clone()))).is_err() {
                    hears.over(&[(job, false)]);
                }
            }
            return;
        }
        let report = ends.first().map(|(end, _)| end.attempt.shared.report.clone());
        let mut over = Vec::with_capacity(ends.len());
        for (end, own) in ends {
            let own = own.filter(|_| result.is_ok()).and_then(|at| done.get_mut(at));
            over.push((end.attempt.id(), own.is_some()));
            if let Some(own) = own {
                own.run = Some(end.seen);
            }
        }
        if let Some(report) = report.filter(|_| result.is_ok()) {
            report.changed(&done);
        }
        hears.over(&over);
    }
}
