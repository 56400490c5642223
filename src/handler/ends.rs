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
    /// Each with what became of it.
    ends: Vec<(End, Came)>,
    /// Which of them is decided.
    at: usize,
    /// What its handlers left for their callers, in bytes.
    bytes: usize,
    hears: Arc<dyn HearsEnds>,
    /// Their own changes, each before what followed for other jobs.
    done: Vec<Changed>,
}

/// What becomes of an end.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Came {
    /// Nothing yet, or it was refused.
    Nothing,
    /// Its own change is at this place.
    At(usize),
    /// It cannot be written: the others are, without it. Its claim stays until the next open.
    Left,
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
        let op = Self { bytes: end.bytes(), ends: vec![(end, Came::Nothing)], at: 0, hears, done: Vec::new() };
        shared.submit(Lane::Outcome, Box::new(op))
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
        let rules = shared.in_force(&a.kind.rules);
        let Ok(change) = lifecycle::end(&job, &a.lease, self.how.clone(), &effects, &rules, &env) else {
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
        for (nth, (end, came)) in self.ends.iter_mut().enumerate().filter(|(_, (_, came))| *came != Came::Left) {
            self.at = nth;
            let (at, written) = (self.done.len(), tx.touches());
            *came = match end.decide(tx, now, &mut self.done) {
                Ok(true) => Came::At(at),
                Ok(false) => Came::Nothing,
                // Nothing of it was written: the claim stays until the next open, and the other ends count.
                Err(e) if !e.is_storage() && tx.touches() == written => Came::Nothing,
                Err(e) => return Err(e),
            };
        }
        Ok(())
    }
    fn take_along(&mut self, more: &mut dyn Any) -> bool {
        let more = more.downcast_mut::<Option<End>>().filter(|_| self.bytes < FULL);
        let Some(end) = more.and_then(Option::take) else { return false };
        self.bytes += end.bytes();
        self.ends.push((end, Came::Nothing));
        true
    }
    fn leave_out(&mut self, error: Option<&StoreError>) -> bool {
        let others = self.ends.iter().filter(|(_, came)| *came != Came::Left).count() > 1;
        match self.ends.get_mut(self.at).filter(|_| others) {
            Some((end, came)) => {
                let (id, why) = (end.attempt.id(), error.map_or_else(String::new, |e| format!(": {e}")));
                end.attempt.shared.report.warn(&format!(
                    "the end of job {id} cannot be written, and its claim stays until the file is opened again{why}"
                ));
                *came = Came::Left;
                true
            }
            None => false,
        }
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
        let Self { ends, at: _, bytes: _, hears, mut done } = *self;
        let report = ends.first().map(|(end, _)| end.attempt.shared.report.clone());
        let mut over = Vec::with_capacity(ends.len());
        for (end, came) in ends {
            let own = match came {
                Came::At(at) if result.is_ok() => done.get_mut(at),
                Came::At(_) | Came::Nothing | Came::Left => None,
            };
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
