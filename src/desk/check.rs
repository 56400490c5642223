//! "Check again for me": the provider is asked about an effect on behalf of a person; answer, time and who asked are written down.
//!
//! Keeps the promise that one question about an effect runs at a time, never beside a running call, nor beside an earlier question
//! that nobody waits for any more; and that "it happened" counts whenever it comes, while "not there" only informs.

use super::{DeadLetter, read_letter, with_news};
use crate::engine::core::Core;
use crate::engine::idle;
use crate::engine::ops::named;
use crate::error::Error;
use crate::handler::call::{asked_keys, probe_async, probe_blocking};
use crate::handler::calls::Question;
use crate::handler::effect::Prober;
use crate::handler::fail::cut;
use crate::handler::reply::{Answer, Reply, Waited, answer};
use crate::handler::shared::{Changed, keep, store_error};
use crate::handler::undo;
use crate::jobs::Jobs;
use crate::model::effect::{EffectRecord, Probed};
use crate::model::id::{EffectId, IdempotencyKey, JobId};
use crate::model::time::Wall;
use crate::rules::effect::Asking;
use crate::rules::review::{self, Check};
use crate::rules::{Env, Refusal};
use crate::store::{Lane, Op, StoreError, Write};
use std::sync::{Arc, Weak};
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
    /// timeout cannot tell. An async probe is dropped then; a blocking one cannot be ended: no second question about the effect is
    /// asked beside it, and when it comes back after all, "it happened" still counts, while anything else is thrown away.
    ///
    /// # Errors
    /// Refused if the letter changed since it was shown, while a call or another check of this effect runs
    /// ([`Refusal::CheckRunning`]), or if no probe is registered for it.
    pub fn check_again(&self, letter: &DeadLetter, effect: &EffectId, who: &str) -> Result<Checked, Error> {
        let shared = self.shared();
        shared.may_call()?;
        if who.trim().is_empty() {
            return Err(Refusal::NotAChoice("the name of the person who asks is missing: say who does".into()).into());
        }
        super::in_one_line("name of the person who asks", who)?;
        super::named_person(who)?;
        let who = cut(who.to_owned(), shared.limits.error_text);
        let asks = shared.calls.ask(letter.job, effect).ok_or_else(|| Refusal::CheckRunning(effect.clone()))?;
        let (record, asking) = self.question(letter, effect)?;
        let entry = shared.registry.effect(&effect.name).and_then(|e| e.prober.clone());
        let prober = entry.ok_or_else(|| Refusal::NotAChoice(format!(
                "no probe is registered for {effect}: look it up at the provider and decide, or register one (Builder::probe)"
            )))?;
        let row = shared.store.read(|v| v.job(letter.job))?.ok_or(Error::NotFound(letter.job))?;
        let rules = shared.rules_of(row.kind);
        let at_most = rules.attempt_timeout;
        let keys = asked_keys(shared, &row, &shared.kind_name(row.kind), &record, rules);
        let core = &self.0.core;
        let of = Of {
            job: letter.job,
            effect: effect.clone(),
            who,
            shown: letter.revision,
            lines: letter.history.len(),
            asking,
        };
        // Whoever asks next waits until this is written down; a probe that outlives the wait keeps that for itself.
        let (probed, asks) = ask(core, prober, (record, keys), of.clone(), asks, at_most)?;
        let text = review::in_words(&probed, asking.settled);
        let answer = match &probed {
            Probed::Found { reference, .. } => CheckAnswer::Happened(reference.clone()),
            Probed::NotThere if asking.settled => CheckAnswer::NotThere,
            Probed::NotThere => CheckAnswer::NotThereYet,
            Probed::CannotTell(text) => CheckAnswer::CannotTell(text.clone()),
        };
        let at = write_down(core, of, probed, false)?.wait().unwrap_or(Err(Error::ShutDown))?;
        // Before the letter is read: it says whether the provider is being asked.
        drop(asks);
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
            Some(_) | None => Err(Refusal::NotAChoice(format!(
                "nothing is in doubt about {effect}: look at the letter anew, and take one of its choices"
            ))
            .into()),
        }
    }
}

/// Which question: about what, on whose behalf, on which view.
#[derive(Clone)]
struct Of {
    job: JobId,
    effect: EffectId,
    who: String,
    shown: u32,
    /// Lines of history that were shown.
    lines: usize,
    asking: Asking,
}

/// Whoever runs the probe has the question, and hands it back with the answer.
type Told = (Probed, Option<Question>);

/// Asks beside the caller, who waits no longer than an attempt may: a provider that never answers holds up that person no longer, and
/// nobody else but those who would ask the same.
fn ask(
    core: &Arc<Core>,
    prober: Prober,
    (record, keys): (EffectRecord, Vec<IdempotencyKey>),
    of: Of,
    asks: Question,
    at_most: Duration,
) -> Result<Told, Error> {
    let (tell, reply) = answer();
    // A probe that never returns must not keep the file open.
    let home = Arc::downgrade(core);
    let said = move |probed: Probed| {
        if let Some((probed, asks)) = tell.hand((probed, Some(asks))) {
            too_late(&home, of, probed);
            drop(asks);
        }
    };
    let shared = &core.shared;
    let over = match prober {
        Prober::Blocking(f) => {
            let thread = idle::aside(move || {
                said(probe_blocking(&*f, &record, &keys));
                Ok(())
            });
            match reply.wait_at_most(at_most) {
                Waited::Told(told) => return Ok(told),
                Waited::Over => true,
                Waited::Gone => {
                    thread.wait().unwrap_or(Ok(()))?;
                    false
                }
            }
        }
        Prober::Async(f) => {
            let bridge =
                shared.bridge.as_ref().ok_or_else(|| Error::NoRuntime(format!("the probe of {}", record.id)))?;
            let end = bridge.spawn_abortable(Box::pin(async move { said(probe_async(f, &record, &keys).await) }));
            match reply.wait_at_most(at_most) {
                Waited::Told(told) => return Ok(told),
                Waited::Over => {
                    end();
                    true
                }
                Waited::Gone => false,
            }
        }
    };
    let text =
        if over { format!("no answer within {at_most:?}") } else { "the probe was lost with its runtime".into() };
    Ok((Probed::CannotTell(text), None))
}

/// Nobody waits for the answer any more. The rules say what it is worth: a fact counts, anything else was overtaken.
fn too_late(home: &Weak<Core>, of: Of, probed: Probed) {
    // Without the queue there is nothing to write into; a retry or the next question will learn the same.
    let Some(core) = home.upgrade() else { return };
    let about = format!("{} of job {}", of.effect, of.job);
    if let Err(e) = write_down(&core, of, probed, true) {
        core.shared.report.warn(&format!("the provider's late answer about {about} could not be written down: {e}"));
    }
}

fn write_down(core: &Arc<Core>, of: Of, probed: Probed, late: bool) -> Result<Reply<Result<Wall, Error>>, Error> {
    let (tell, reply) = answer();
    core.shared.submit(
        Lane::Outcome,
        Box::new(CheckedOp { core: core.clone(), of, late, probed, answer: tell, done: None }),
    )?;
    Ok(reply)
}

/// The answer on its way into the store.
struct CheckedOp {
    core: Arc<Core>,
    of: Of,
    /// Nobody waits for it any more.
    late: bool,
    probed: Probed,
    answer: Answer<Result<Wall, Error>>,
    done: Option<Result<(Vec<Changed>, Wall), Error>>,
}

impl CheckedOp {
    fn record(&self, tx: &mut Write<'_>) -> Result<(Vec<Changed>, Wall), Error> {
        let shared = &self.core.shared;
        let of = &self.of;
        let job = tx.record(of.job)?.ok_or(Error::NotFound(of.job))?;
        let (letter, effects) = (tx.letter(of.job)?, tx.effects(of.job)?);
        let now = shared.now();
        let calls = |r: &EffectRecord| shared.call_facts(of.job, r, now);
        let env = Env { now, draw: shared.draw(), calls: &calls };
        let check = Check { effect: &of.effect, who: &of.who, shown: of.shown, asking: of.asking };
        let rules = &*shared.in_force(shared.rules_of(job.kind));
        let mut probed = self.probed.clone();
        if let Probed::Found { undo, .. } = &mut probed {
            *undo = shared.registry.runs(undo.take());
        }
        let change = match review::checked(&job, letter.as_ref(), &effects, &check, probed, rules, &env) {
            Ok(change) => change,
            Err(refusal) => return Err(with_news(refusal, &tx.journal(of.job)?, of.lines).into()),
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
                    self.core.shared.calls.forget(self.of.job, &e.id);
                }
                self.core.shared.report.changed(&changes);
                self.answer.send(Ok(at));
            }
            (Ok(()), Some(Err(e))) => {
                if self.late {
                    let (effect, job) = (&self.of.effect, self.of.job);
                    let said = review::in_words(&self.probed, self.of.asking.settled);
                    let text = format!(
                        "the provider's answer about {effect} of job {job} came too late and changes nothing: {said} ({e})"
                    );
                    self.core.shared.report.warn(&text);
                }
                self.answer.send(Err(e));
            }
            (Ok(()), None) => {}
            (Err(e), _) => self.answer.send(Err(store_error(e))),
        }
    }
    fn unknown(&mut self) {
        self.answer.send(Err(Error::Unknown));
    }
}
