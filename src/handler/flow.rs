//! The way of one effect, step or commit through an attempt, in pieces that the blocking and the async context share: prepare,
//! ask the writer, perform or probe, record, conclude. Only the waiting between the pieces differs.

use super::attempt::Attempt;
use super::call::{Call, Performed};
use super::effect::{self, Effect, EffectEntry, Performer, Prober};
use super::fail::{Fail, Outcome, cut};
use super::learn::Told;
use super::ops::{AppCode, Began, BeginOp, CommitOp, Committed, StepOp};
use super::reply::{Reply, answer};
use super::shared::Suppressed;
use super::tx::Tx;
use crate::error::Error;
use crate::model::attempt::Stop;
use crate::model::effect::{EffectRecord, EffectState, Stored, UndoJob};
use crate::model::id::EffectId;
use crate::model::job::Memo;
use crate::model::letter::Question;
use crate::rules::Refusal;
use crate::rules::effect::{Asking, Request, Same};
use crate::store::Lane;
use serde::{Serialize, de::DeserializeOwned};
use std::sync::Arc;
use std::time::Duration;

/// After this a job that found no room on the disk is claimed again, if there is room.
const NO_ROOM: Duration = Duration::from_secs(30);

/// One `cx.effect(..)` on its way.
pub(crate) struct Flow {
    pub(crate) attempt: Arc<Attempt>,
    entry: EffectEntry,
    request: Request,
    stored: Option<EffectId>,
    same: Same,
}

/// What to do after the writer answered.
pub(crate) enum Next {
    Return(Stored, Option<String>),
    Perform(Call),
    Probe(Box<EffectRecord>, Asking),
}

impl Flow {
    /// The checks that need no store: stopped, declared, asked once, within the limits.
    pub(crate) fn prepare<E: Effect>(attempt: &Arc<Attempt>, now: &E) -> Result<Self, Fail> {
        attempt.go_on()?;
        let shared = &attempt.shared;
        let Some(card) = attempt.kind.rules.effects.iter().find(|c| c.name == E::NAME).cloned() else {
            return Err(Fail::permanent(format!(
                "the kind {:?} did not declare the effect {:?}: add {}::card() to its effects()",
                attempt.kind.name,
                E::NAME,
                short_type::<E>()
            )));
        };
        let Some(entry) = shared.registry.effect(E::NAME).cloned() else {
            return Err(Fail::permanent(format!("the effect {:?} has no performer", E::NAME)));
        };
        let id = EffectId { name: E::NAME.to_owned(), part: now.part() };
        if id.part.len() > shared.limits.key {
            return Err(too_long("part of an effect", 0, id.part.len(), shared.limits.key));
        }
        let body =
            serde_json::to_vec(now).map_err(|e| Fail::permanent(format!("the request could not be encoded: {e}")))?;
        if body.len() > shared.limits.payload {
            return Err(too_big("request", body.len(), shared.limits.payload));
        }
        attempt.take("effect", &id.name, &id.part)?;
        attempt.at_step(format!("effect {id}"));
        let record = attempt.record(&card, &id.part);
        let same = record.as_ref().map_or(Same::Yes, |r| effect::same_request(&r.request, r.version, now));
        let known = |undo: Option<UndoJob>| match undo {
            Some(job) if shared.registry.kind(&job.kind).is_none() => Err(Fail::permanent(format!(
                "the undo job of {id} is of the kind {:?}, which has no handler here: register it",
                job.kind
            ))),
            other => Ok(other),
        };
        let undo = match now.undo(None).into_stored(&shared.limits).and_then(known) {
            // What is done is not undone by a worse way to undo it.
            Err(fail) if record.as_ref().is_none_or(|r| r.state != EffectState::Confirmed) => return Err(fail),
            other => other.unwrap_or_default(),
        };
        let request = Request {
            body,
            version: E::VERSION,
            says: cut(now.says(), shared.limits.error_text),
            look_up: now
                .look_up()
                .map(|l| (cut(l.url, shared.limits.error_text), cut(l.how, shared.limits.error_text))),
            risk: E::RISK,
            undo,
            id,
        };
        Ok(Self { attempt: attempt.clone(), entry, request, stored: record.map(|r| r.id), same })
    }
    pub(crate) fn begin(&self) -> Result<Reply<Told<Began>>, Fail> {
        let (tell, reply) = answer();
        let op = BeginOp {
            attempt: self.attempt.clone(),
            request: self.request.clone(),
            stored: self.stored.clone(),
            same: self.same,
            answer: tell,
            done: None,
            pending: self.attempt.pending(),
        };
        self.attempt.shared.submit(Lane::Outcome, Box::new(op)).map_err(|e| lost(&self.attempt, &e))?;
        Ok(reply)
    }
    pub(crate) fn began(&mut self, told: Option<Told<Began>>) -> Result<Next, Fail> {
        match told {
            Some(Ok(Began::Recorded(result, differs))) => {
                self.attempt.shared.report.suppressed(&self.attempt.stored_kind, Suppressed::Effect);
                let differs = differs.then(|| {
                    format!("{} asks for another request now; its recorded result was returned", self.request.id)
                });
                Ok(Next::Return(result, differs))
            }
            Some(Ok(Began::Call(call))) => {
                self.stored = Some(call.effect().clone());
                Ok(Next::Perform(call))
            }
            Some(Ok(Began::Probe(record, asking))) => {
                // An older copy of the file had none until now.
                self.stored = Some(record.id.clone());
                Ok(Next::Probe(record, asking))
            }
            Some(Ok(Began::NoRoom)) => {
                Err(Fail::not_yet("the disk is full: no effect begins before there is room", NO_ROOM))
            }
            Some(Ok(Began::Stop(stop))) => Err(self.attempt.stop(stop)),
            Some(Err(e)) => Err(refused(&self.attempt, e)),
            None => Err(self.attempt.stop(Stop::Interrupted)),
        }
    }
    /// To be held while an async handler waits for the effect.
    pub(crate) fn waiting(&self) -> Waiting {
        Waiting { attempt: self.attempt.clone(), effect: Some(self.request.id.clone()) }
    }
    /// The performer, called where the handler is or beside it.
    pub(crate) fn performer(&self) -> Result<Performer, Fail> {
        self.entry.performer.clone().ok_or_else(|| Fail::permanent("no performer"))
    }
    pub(crate) fn prober(&self) -> Result<Prober, Fail> {
        self.entry.prober.clone().ok_or_else(|| Fail::permanent("no probe"))
    }
    /// After a call was recorded: the result, the provider's "no", or a stop.
    pub(crate) fn performed(&self, performed: Option<Performed>) -> Result<Stored, Fail> {
        let a = &self.attempt;
        let id = &self.request.id;
        let Some(Performed { told, fail }) = performed else {
            return Err(a.stop(Stop::Unknown(id.clone(), "the call was lost with its runtime".into())));
        };
        let record = match told {
            Ok(record) => record,
            Err(e) => {
                return Err(a.stop(Stop::Unknown(id.clone(), format!("its outcome could not be stored yet: {e}"))));
            }
        };
        a.learn(record.clone());
        if a.fenced() {
            return Err(a.stop(Stop::Fenced));
        }
        match record.state {
            EffectState::Confirmed => Ok(result_of(&record)),
            EffectState::Refused(_) => Err(fail.map(Fail::recorded).unwrap_or_else(|| {
                Fail::transient(record.error.clone().unwrap_or_else(|| format!("{id} did not happen")))
            })),
            EffectState::Intended | EffectState::Unknown | EffectState::Undone => {
                let text = record.error.clone().unwrap_or_else(|| "no answer".into());
                Err(a.stop(Stop::Unknown(record.id.clone(), text)))
            }
        }
    }
    /// After a probe was recorded: the result, or `None` to ask the writer again ("not there").
    pub(crate) fn probed(&self, told: Option<Told<EffectRecord>>) -> Result<Option<Stored>, Fail> {
        let a = &self.attempt;
        let record = match told {
            Some(Ok(record)) => record,
            Some(Err(e)) => return Err(refused(a, e)),
            None => return Err(a.stop(Stop::Interrupted)),
        };
        a.learn(record.clone());
        match record.state {
            EffectState::Confirmed => Ok(Some(result_of(&record))),
            EffectState::Refused(_) => Ok(None),
            EffectState::Intended | EffectState::Unknown | EffectState::Undone => {
                let text = record.error.clone().unwrap_or_default();
                Err(a.stop(Stop::CannotTell(record.id.clone(), text)))
            }
        }
    }
    /// The recorded bytes as today's type. What cannot be read any more needs a decision, never a call.
    pub(crate) fn result<E: Effect>(&self, stored: Stored) -> Outcome<E::Result> {
        let lost = match stored {
            Stored::Json(json) => match serde_json::from_slice(&json) {
                Ok(result) => return Ok(result),
                Err(_) => self.stored.clone().unwrap_or_else(|| self.request.id.clone()),
            },
            Stored::Lost(_) => self.stored.clone().unwrap_or_else(|| self.request.id.clone()),
        };
        Err(self.attempt.stop(Stop::Ask(Question::ResultLost { effect: lost })))
    }
}

fn result_of(record: &EffectRecord) -> Stored {
    record.result.clone().unwrap_or_else(|| Stored::Lost("no result was kept".into()))
}

/// An async handler that stops waiting for an effect (a timeout around it, a branch that lost a race) knows nothing about it and
/// must not go on as if it had not been asked for: it could call a second provider beside the first. Dropped before its answer was
/// seen this stops the attempt.
pub(crate) struct Waiting {
    attempt: Arc<Attempt>,
    effect: Option<EffectId>,
}

impl Waiting {
    /// The answer was seen.
    pub(crate) fn over(mut self) {
        self.effect = None;
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if let Some(effect) = self.effect.take() {
            let _said_later = self.attempt.stop(Stop::Unknown(effect, "the handler stopped waiting for it".into()));
        }
    }
}

// ---- steps and commits -----------------------------------------------------------------------------------------------------

/// The remembered value of a step or commit, if it ran before in this job.
pub(crate) fn remembered<T: DeserializeOwned>(a: &Arc<Attempt>, name: &str, commit: bool) -> Result<Option<T>, Fail> {
    a.go_on()?;
    let sort = if commit { "commit" } else { "step" };
    if name.is_empty() || name.len() > a.shared.limits.name {
        return Err(too_long("name of a step or commit", 1, name.len(), a.shared.limits.name));
    }
    a.take("step or commit", name, "")?;
    a.at_step(format!("{sort} {name}"));
    let Some(memo) = a.memo(name) else { return Ok(None) };
    if memo.commit != commit {
        return Err(Fail::permanent(format!(
            "{name:?} is remembered as the other sort (step or commit): use another name"
        )));
    }
    a.shared.report.suppressed(&a.stored_kind, Suppressed::Step);
    serde_json::from_slice(&memo.value)
        .map(Some)
        .map_err(|e| Fail::permanent(format!("the remembered value of {sort} {name:?} cannot be read: {e}")))
}

pub(crate) fn store_step<T: Serialize>(a: &Arc<Attempt>, name: &str, value: &T) -> Result<Reply<Told<()>>, Fail> {
    let json = serde_json::to_vec(value)
        .map_err(|e| Fail::permanent(format!("the value of step {name:?} could not be encoded: {e}")))?;
    if json.len() > a.shared.limits.payload {
        return Err(too_big("value of a step", json.len(), a.shared.limits.payload));
    }
    let (tell, reply) = answer();
    let memo = Memo { name: name.to_owned(), commit: false, value: json, number: 0 };
    let op = StepOp { attempt: a.clone(), memo, answer: tell, done: None, pending: a.pending() };
    a.shared.submit(Lane::Outcome, Box::new(op)).map_err(|e| lost(a, &e))?;
    Ok(reply)
}

pub(crate) fn stored_step(a: &Arc<Attempt>, told: Option<Told<()>>) -> Result<(), Fail> {
    match told {
        Some(Ok(())) => Ok(()),
        Some(Err(e)) => Err(refused(a, e)),
        None => Err(a.stop(Stop::Interrupted)),
    }
}

/// App code that returns a value, as the writer runs it.
pub(crate) fn code<T: Serialize>(f: impl Fn(&mut Tx<'_>) -> Outcome<T> + Send + 'static) -> AppCode {
    Box::new(move |tx| {
        let value = f(tx)?;
        serde_json::to_vec(&value).map_err(|e| Fail::permanent(format!("the value could not be encoded: {e}")))
    })
}

pub(crate) fn commit(a: &Arc<Attempt>, name: Option<&str>, code: AppCode) -> Result<Reply<Told<Committed>>, Fail> {
    let (tell, reply) = answer();
    let op = CommitOp {
        attempt: a.clone(),
        name: name.map(str::to_owned),
        code,
        output: a.output(),
        trace: a.shared.trace.now(|text| a.shared.report.warn(text)),
        answer: tell,
        done: None,
        pending: a.pending(),
    };
    a.shared.submit(Lane::Outcome, Box::new(op)).map_err(|e| lost(a, &e))?;
    Ok(reply)
}

pub(crate) fn committed(a: &Arc<Attempt>, told: Option<Told<Committed>>) -> Result<Vec<u8>, Fail> {
    match told {
        Some(Ok(Committed::Ok(value))) => Ok(value),
        Some(Ok(Committed::Fail(fail))) => Err(fail),
        Some(Ok(Committed::Gate(ids))) => {
            let effect = ids.into_iter().next().unwrap_or(EffectId { name: String::new(), part: String::new() });
            Err(a.stop(Stop::Ask(Question::DidItHappen { effect })))
        }
        Some(Err(e)) => Err(refused(a, e)),
        None => Err(a.stop(Stop::Interrupted)),
    }
}

// ---- small things ----------------------------------------------------------------------------------------------------------

/// The writer refused: the lease is over, or the storage did not answer in time. Either way this attempt goes no further.
pub(crate) fn refused(a: &Arc<Attempt>, e: Error) -> Fail {
    if matches!(e, Error::Refused(Refusal::Fenced)) { a.stop(Stop::Fenced) } else { lost(a, &e) }
}

/// The store is closed or healing: nobody failed, the attempt is given back.
fn lost(a: &Arc<Attempt>, _e: &Error) -> Fail {
    a.stop(Stop::Interrupted)
}

fn too_big(what: &str, len: usize, limit: usize) -> Fail {
    let next = "store large data elsewhere and keep a reference";
    Fail::permanent(format!("the {what} has {len} bytes, at most {limit} are allowed: {next}"))
}

fn too_long(what: &str, least: usize, len: usize, limit: usize) -> Fail {
    let next = if len < least { "give it one" } else { "use a shorter one" };
    Fail::permanent(format!("the {what} has {len} bytes, {least} to {limit} are allowed: {next}"))
}

fn short_type<T>() -> &'static str {
    std::any::type_name::<T>().rsplit("::").next().unwrap_or("Effect")
}
