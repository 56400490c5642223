//! "Check again for me": the provider is asked about an effect on behalf of a person; answer, time and who asked are written down.
//!
//! Keeps the promise that one question about an effect runs at a time, never beside a running call, and that "it happened" counts
//! at once while "not there" only informs.

use super::{DeadLetter, read_letter, with_news};
use crate::engine::core::Core;
use crate::engine::idle;
use crate::engine::ops::named;
use crate::error::Error;
use crate::handler::effect::{Begun, Prober};
use crate::handler::fail::cut;
use crate::handler::reply::{Answer, Reply, Waited, answer};
use crate::handler::shared::{Changed, Shared, keep, store_error};
use crate::handler::undo;
use crate::jobs::Jobs;
use crate::model::effect::{EffectRecord, Probed};
use crate::model::id::{EffectId, JobId};
use crate::model::time::Wall;
use crate::rules::effect::Asking;
use crate::rules::review::{self, Check};
use crate::rules::{Env, Refusal};
use crate::store::{Lane, Op, StoreError, Write};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// What came of asking a provider again.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Checked {
    /// What it said.
    pub answer: CheckAnswer,
    /// The same in plain words, as it stands in the history.
    pub text: String,
    /// When.
    pub at: SystemTime,
    /// The letter as it stands now; `None` if it is answered by that.
    pub letter: Option<DeadLetter>,
}

/// What a provider said when it was asked again.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CheckAnswer {
    /// It happened; the reference, if the effect has one. That counts: the question is answered.
    Happened(Option<String>),
    /// It is not there. That is for the person to decide upon.
    NotThere,
    /// It is not there, but its last call is so recent that it may still arrive.
    NotThereYet,
    /// It could not be asked.
    CannotTell(String),
}

impl Jobs {
    /// Asks the provider again about an effect of a letter ([`DeadLetter::can_check`]) and writes down what it said. "It happened"
    /// is taken as a fact; everything else is for the person who decides. A provider that does not answer within the kind's attempt
    /// timeout cannot tell.
    ///
    /// # Errors
    /// Refused if the letter changed since it was shown, while a call or another check of this effect runs, or if no probe is
    /// registered for it.
    pub fn check_again(&self, letter: &DeadLetter, effect: &EffectId, who: &str) -> Result<Checked, Error> {
        let shared = self.shared();
        shared.may_call()?;
        if who.trim().is_empty() {
            return Err(Refusal::NotAChoice("the name of the person who asks is missing".into()).into());
        }
        super::in_one_line("name of the person who asks", who)?;
        super::named_person(who)?;
        let who = cut(who.to_owned(), shared.limits.error_text);
        let core = &self.0.core;
        let _guard = Guard::take(core, letter.job, effect)?;
        let (record, asking) = self.question(letter, effect)?;
        let entry = shared.registry.effect(&effect.name).and_then(|e| e.prober.clone());
        let prober = entry.ok_or_else(|| Refusal::NotAChoice(format!("no probe is registered for {effect}")))?;
        let kind = shared.store.read(|v| v.record(letter.job))?.map(|job| job.kind);
        let at_most = kind.map_or(shared.plain.attempt_timeout, |kind| shared.rules_of(kind).attempt_timeout);
        let probed = ask(shared, prober, record, at_most)?;
        let text = review::in_words(&probed, asking.settled);
        let answer = match &probed {
            Probed::Found { reference, .. } => CheckAnswer::Happened(reference.clone()),
            Probed::NotThere if asking.settled => CheckAnswer::NotThere,
            Probed::NotThere => CheckAnswer::NotThereYet,
            Probed::CannotTell(text) => CheckAnswer::CannotTell(text.clone()),
        };
        let at = record_answer(core, letter, effect, who, asking, probed)?.wait().unwrap_or(Err(Error::ShutDown))?;
        Ok(Checked { answer, text, at: at.to_system(), letter: read_letter(shared, letter.job)? })
    }
    /// [`check_again`](Self::check_again), awaited: on a thread beside your runtime's.
    ///
    /// # Errors
    /// As there.
    pub async fn check_again_async(&self, letter: &DeadLetter, effect: &EffectId, who: &str) -> Result<Checked, Error> {
        let reply = {
            self.shared().may_call()?;
            let (jobs, letter, effect, who) = (self.clone(), letter.clone(), effect.clone(), who.to_owned());
            idle::aside(move || jobs.check_again(&letter, &effect, &who))
        };
        reply.await.unwrap_or(Err(Error::ShutDown))
    }

    /// The stored request, and what an answer about it will rest on.
    fn question(&self, letter: &DeadLetter, effect: &EffectId) -> Result<(EffectRecord, Asking), Error> {
        let shared = self.shared();
        let found = shared.store.read(|v| {
            let Some(job) = v.record(letter.job)? else { return Ok(None) };
            Ok(Some((job, v.letter(letter.job)?, v.effect(letter.job, effect)?, v.journal(letter.job)?)))
        })?;
        let Some((job, stored, record, history)) = found else { return Err(Error::NotFound(letter.job)) };
        if job.revision != letter.revision || stored.is_none() {
            let stale = Refusal::Stale { shown: letter.revision, now: job.revision, since: Vec::new() };
            return Err(with_news(stale, &history, letter.history.len()).into());
        }
        match record {
            Some(r) if stored.as_ref().is_some_and(|l| review::may_check(l, &r)) => {
                let facts = shared.call_facts(letter.job, &r, shared.now());
                let asking = review::ask_again(&r, shared.rules_of(job.kind), facts)?;
                Ok((r, asking))
            }
            Some(_) | None => Err(Refusal::NotAChoice(format!("nothing is in doubt about {effect}")).into()),
        }
    }
}

/// One question about an effect at a time, in this process, which owns the file.
struct Guard(Arc<Core>, (JobId, EffectId));

impl Guard {
    fn take(core: &Arc<Core>, job: JobId, effect: &EffectId) -> Result<Self, Error> {
        let what = (job, effect.clone());
        if !core.checks.lock().insert(what.clone()) {
            return Err(
                Refusal::NotAChoice(format!("somebody is having the provider asked about {effect} right now")).into()
            );
        }
        Ok(Self(core.clone(), what))
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.checks.lock().remove(&self.1);
    }
}

/// Asks beside the caller, who waits no longer than an attempt may: a provider that never answers must not hold up the next question.
fn ask(shared: &Shared, prober: Prober, record: EffectRecord, at_most: Duration) -> Result<Probed, Error> {
    let reply = match prober {
        Prober::Blocking(f) => idle::aside(move || Ok(f(&record.request, record.version, &record.key))),
        Prober::Async(f) => {
            let future = match f(&record.request, record.version, &record.key) {
                Begun::Answer(probed) => return Ok(probed),
                Begun::Future(future) => future,
            };
            let (tell, reply) = answer();
            let bridge =
                shared.bridge.as_ref().ok_or_else(|| Error::NoRuntime(format!("the probe of {}", record.id)))?;
            bridge.spawn(Box::pin(async move { tell.send(Ok(future.await)) }));
            reply
        }
    };
    match reply.wait_at_most(at_most) {
        Waited::Told(probed) => probed,
        Waited::Gone => Ok(Probed::CannotTell("the probe was lost with its runtime".into())),
        Waited::Over => Ok(Probed::CannotTell(format!("no answer within {at_most:?}"))),
    }
}

fn record_answer(
    core: &Arc<Core>,
    letter: &DeadLetter,
    effect: &EffectId,
    who: String,
    asking: Asking,
    probed: Probed,
) -> Result<Reply<Result<Wall, Error>>, Error> {
    let (tell, reply) = answer();
    let op = CheckedOp {
        core: core.clone(),
        job: letter.job,
        effect: effect.clone(),
        who,
        shown: letter.revision,
        lines: letter.history.len(),
        asking,
        probed,
        answer: tell,
        done: None,
    };
    core.shared.submit(Lane::Outcome, Box::new(op))?;
    Ok(reply)
}

/// The answer on its way into the store.
struct CheckedOp {
    core: Arc<Core>,
    job: JobId,
    effect: EffectId,
    who: String,
    shown: u32,
    lines: usize,
    asking: Asking,
    probed: Probed,
    answer: Answer<Result<Wall, Error>>,
    done: Option<Result<(Vec<Changed>, Wall), Error>>,
}

impl CheckedOp {
    fn record(&self, tx: &mut Write<'_>) -> Result<(Vec<Changed>, Wall), Error> {
        let shared = &self.core.shared;
        let job = tx.record(self.job)?.ok_or(Error::NotFound(self.job))?;
        let (letter, effects) = (tx.letter(self.job)?, tx.effects(self.job)?);
        let now = shared.now();
        let calls = |r: &EffectRecord| shared.call_facts(self.job, r, now);
        let env = Env { now, draw: shared.draw(), calls: &calls };
        let check = Check { effect: &self.effect, who: &self.who, shown: self.shown, asking: self.asking };
        let rules = shared.rules_of(job.kind);
        let mut probed = self.probed.clone();
        if let Probed::Found { undo, .. } = &mut probed {
            *undo = shared.registry.runs(undo.take());
        }
        let change = match review::checked(&job, letter.as_ref(), &effects, &check, probed, rules, &env) {
            Ok(change) => change,
            Err(refusal) => return Err(with_news(refusal, &tx.journal(self.job)?, self.lines).into()),
        };
        // By its policy a job that is answered by this may be undone.
        let changed = named(tx, shared, change)?;
        Ok((undo::put(tx, shared, changed, None)?, now.wall))
    }
}

impl Op for CheckedOp {
    fn run(&mut self, tx: &mut Write<'_>) -> Result<(), StoreError> {
        let came = self.record(tx);
        keep(&mut self.done, came)
    }
    fn settle(self: Box<Self>, result: Result<(), StoreError>) {
        match (result, self.done) {
            (Ok(()), Some(Ok((changes, at)))) => {
                let own = changes.first().map_or(&[][..], |c| c.change.effects());
                for e in own.iter().filter(|e| !e.state.is_unresolved()) {
                    self.core.shared.calls.forget(self.job, &e.id);
                }
                self.core.shared.report.changed(&changes);
                self.answer.send(Ok(at));
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
