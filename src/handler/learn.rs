//! What became of a call or a probe, on its way into the store: knowledge about the world, from whatever lease.

use super::attempt::{Attempt, Pending};
use super::reply::{Answer, Reply, answer};
use super::shared::{Changed, Shared, store_error};
use super::undo;
use crate::error::Error;
use crate::model::attempt::Stop;
use crate::model::effect::{CallEnd, EffectRecord, Probed, UndoJob};
use crate::model::id::{CallNo, EffectId};
use crate::rules::effect::{self, AfterProbe, Asking};
use crate::rules::{Change, Env, Refusal, lifecycle};
use crate::store::{Lane, Op, StoreError, Write};
use std::sync::Arc;

/// An answer of the writer to an attempt.
pub(crate) type Told<T> = Result<T, Error>;

/// Hands the news to the writer.
pub(crate) fn learn(attempt: &Arc<Attempt>, effect: &EffectId, news: News) -> Result<Reply<Told<EffectRecord>>, Error> {
    let (tell, reply) = answer();
    let op = LearnOp {
        shared: attempt.shared.clone(),
        attempt: attempt.clone(),
        effect: effect.clone(),
        news,
        answer: tell,
        done: None,
        after: None,
        pending: attempt.pending(),
    };
    attempt.shared.submit(Lane::Outcome, Box::new(op))?;
    Ok(reply)
}

/// What became of a call or a probe: knowledge about the world, from whatever lease.
pub(crate) struct LearnOp {
    pub(crate) shared: Arc<Shared>,
    pub(crate) attempt: Arc<Attempt>,
    pub(crate) effect: EffectId,
    pub(crate) news: News,
    pub(crate) answer: Answer<Told<EffectRecord>>,
    pub(crate) done: Option<(Told<EffectRecord>, Vec<Changed>)>,
    /// What the provider's answer means for the attempt.
    pub(crate) after: Option<Stop>,
    pub(crate) pending: Pending,
}

pub(crate) enum News {
    Called { call: CallNo, generation: u32, end: CallEnd },
    Probed(Asking, Probed),
}

impl LearnOp {
    fn decide(
        &self,
        tx: &mut Write<'_>,
        after: &mut Option<Stop>,
    ) -> Result<(Told<EffectRecord>, Vec<Changed>), StoreError> {
        let (shared, lease) = (&self.shared, &self.attempt.lease);
        let gone = || (Err(Refusal::Fenced.into()), Vec::new());
        let Some(job) = tx.record(lease.job())? else { return Ok(gone()) };
        let Some(record) = tx.effect(lease.job(), &self.effect)? else { return Ok(gone()) };
        let now = shared.now();
        let calls = |r: &EffectRecord| shared.call_facts(lease.job(), r, now);
        let env = Env { now, draw: shared.draw(), calls: &calls };
        let known = |undo: &Option<UndoJob>| shared.registry.runs(undo.clone());
        let change = match &self.news {
            News::Called { call, generation, end } => {
                let mut end = end.clone();
                if let CallEnd::Happened { undo, .. } = &mut end {
                    // One that nobody runs leaves the one that was stored with the intent.
                    *undo = known(undo);
                }
                effect::called(&job, &record, lease, *call, *generation, end, &env)
            }
            News::Probed(asking, probed) => {
                let mut probed = probed.clone();
                if let Probed::Found { undo, .. } = &mut probed {
                    *undo = known(undo);
                }
                match effect::probed(&job, &record, lease, *asking, probed, &self.attempt.kind.rules, &env) {
                    Ok((change, AfterProbe::Again)) => change,
                    Ok((change, AfterProbe::Stop(stop))) => {
                        *after = Some(stop);
                        change
                    }
                    Err(refusal) => return Ok((Err(refusal.into()), Vec::new())),
                }
            }
        };
        let late = effect::running(&job, lease).is_err();
        let change = if late { self.after_late(tx, change, &env)? } else { change };
        let news = change.effects().iter().find(|e| e.id == record.id).cloned().unwrap_or(record);
        let changes = undo::put(tx, shared, self.attempt.changed(change), Some(&self.attempt.row))?;
        Ok((Ok(news), changes))
    }
    fn after_late(&self, tx: &mut Write<'_>, change: Change, env: &Env<'_>) -> Result<Change, StoreError> {
        let id = self.attempt.lease.job();
        let (letter, mut all) = match (tx.letter(id), tx.effects(id)) {
            (Ok(letter), Ok(all)) => (letter, all),
            // What happened is written whatever else of the job cannot be read: a fact that is lost would be called again.
            (Err(StoreError::Corrupt { what }), _) | (_, Err(StoreError::Corrupt { what })) => {
                self.shared.report.warn(&format!("what became of {} is stored, and nothing else: {what}", self.effect));
                return Ok(change);
            }
            (Err(e), _) | (_, Err(e)) => return Err(e),
        };
        for new in change.effects() {
            for old in all.iter_mut().filter(|e| e.id == new.id) {
                *old = new.clone();
            }
        }
        Ok(lifecycle::learned(
            change,
            letter.as_ref(),
            &all,
            &self.attempt.shared.in_force(&self.attempt.kind.rules),
            env,
        ))
    }
}

impl Op for LearnOp {
    fn run(&mut self, tx: &mut Write<'_>) -> Result<(), StoreError> {
        let mut after = None;
        self.done = Some(self.decide(tx, &mut after)?);
        self.after = after;
        Ok(())
    }
    fn settle(self: Box<Self>, result: Result<(), StoreError>) {
        drop(self.pending);
        match (result, self.done) {
            (Ok(()), Some((told, changes))) => {
                if let Ok(record) = &told
                    && !record.state.is_unresolved()
                {
                    self.shared.calls.forget(self.attempt.lease.job(), &record.id);
                }
                // Said before the answer: whatever the handler makes of it, also beside it, the attempt goes no further.
                if let Some(stop) = self.after.or_else(|| unanswered(&self.news, &told)) {
                    let _said_later = self.attempt.stop(stop);
                }
                self.shared.report.changed(&changes);
                self.answer.send(told);
            }
            (Ok(()), None) => {}
            (Err(e), _) => self.answer.send(Err(store_error(e))),
        }
    }
}

/// Nobody knows what became of this call.
fn unanswered(news: &News, told: &Told<EffectRecord>) -> Option<Stop> {
    match (news, told) {
        (News::Called { .. }, Ok(record)) if record.state.is_unresolved() => {
            let text = record.error.clone().unwrap_or_else(|| "no answer".into());
            Some(Stop::Unknown(record.id.clone(), text))
        }
        (News::Called { .. } | News::Probed(..), Ok(_) | Err(_)) => None,
    }
}
