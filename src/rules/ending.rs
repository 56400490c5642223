//! What follows the end of an attempt, as its own lease reports it.
//!
//! First what a person must see (two accounts of one effect), then the wish to stop, then the effects this very claim left open,
//! then the failure and its limits. No end leads to a claim that could end the same way for ever without spending an attempt.

use super::effect::{conflicts, gate, running, undeclared};
use super::lifecycle::{cancelled, no_attempt};
use super::moves::{
    Plan, Scene, back_off, bury, end_job, give_back, make_ready, park, plan, report, resume, transient,
};
use super::retry::{self, Retry, backoff_ms};
use super::{Change, Env, Refusal};
use crate::model::attempt::{AttemptEnd, Class, Failure, Outcome, PANICKED, Stop};
use crate::model::effect::{EffectRecord, EffectState};
use crate::model::fact::Fact;
use crate::model::id::{EffectId, Lease};
use crate::model::job::{Delay, End, GivenBack, JobRecord, JobState, NEXT_TICKET, Wait};
use crate::model::letter::{Entry, Question, Why};
use crate::model::policy::{KindRules, OnInterrupt};
use crate::model::time::{Wall, millis};
use std::time::Duration;

/// The end of an attempt, as its own lease reports it.
pub fn end(
    job: &JobRecord,
    lease: &Lease,
    how: AttemptEnd,
    effects: &[EffectRecord],
    rules: &KindRules,
    env: &Env<'_>,
) -> Result<Change, Refusal> {
    let continuing = running(job, lease)?;
    let scene = Scene { token: lease.token, continuing, effects, rules, env };
    let mut change = Change::of(job);
    if proves_innocence(&how) {
        change.record.suspect = false;
        change.record.strikes = 0;
    }
    let c = &mut change;
    match how {
        AttemptEnd::Success | AttemptEnd::Stopped(Stop::Finished) => succeeded(c, &scene),
        AttemptEnd::Failed(failure) => failed(c, failure, &scene),
        AttemptEnd::Panicked(text) => failed(c, transient(format!("{PANICKED}{text}")), &scene),
        AttemptEnd::Stalled => {
            lapsed(c, format!("no sign of progress for {:?}: the lease expired", rules.stall_timeout), &scene);
        }
        AttemptEnd::TimedOut => {
            lapsed(c, format!("the attempt took longer than {:?}: the lease expired", rules.attempt_timeout), &scene);
        }
        AttemptEnd::NotYet(why, wait) => not_yet(c, why, wait, &scene),
        AttemptEnd::Interrupted | AttemptEnd::Stopped(Stop::Interrupted | Stop::Fenced) => {
            interrupted(c, "interrupted", |g| &mut g.interrupted, &scene);
        }
        AttemptEnd::NeverStarted => never_started(c, &scene),
        AttemptEnd::Unreadable(text) => {
            give_back(c, continuing, "unreadable", scene.at(), |g| &mut g.never_started);
            bury(c, Why::Unreadable, Class::Permanent, text, vec![Question::WhatNow], &scene);
        }
        AttemptEnd::Cancelled => cancelled(c, &scene),
        AttemptEnd::Stopped(Stop::Unknown(id, text)) => unknown(c, &id, text, &scene),
        AttemptEnd::Stopped(Stop::Settling(id, ms)) => {
            waits(c, Wait::Settling(id), ms, "the settle time is not over".into(), &scene);
        }
        AttemptEnd::Stopped(Stop::OldCall(id, ms)) => {
            waits(c, Wait::OldCall(id), ms, "an earlier call still runs".into(), &scene);
        }
        AttemptEnd::Stopped(Stop::CannotTell(id, text)) => {
            let ms = until_next_question(job, &id, &scene);
            waits(c, Wait::CannotTell(id), ms, text, &scene);
        }
        AttemptEnd::Stopped(Stop::Ask(question)) => asks(c, question, &scene),
        AttemptEnd::Stopped(Stop::Earlier(id)) => {
            let text = format!("the handler asked for another effect before {id} of an earlier attempt was settled");
            let question = Question::DidItHappen { effect: id };
            asks_because(c, question, text, &scene);
        }
        AttemptEnd::Stopped(Stop::NoAttemptLeft(id)) => {
            let (why, class, error) = no_attempt(job, env.now);
            let text = format!("{id} did not happen, and it cannot be called again: {error}");
            bury(c, why, class, text, vec![Question::WhatNow], &scene);
        }
    }
    Ok(change)
}

/// The handler came back by itself: whatever killed the process before, it was not this. One that never ran, or was cut off,
/// has proven nothing.
fn proves_innocence(how: &AttemptEnd) -> bool {
    match how {
        AttemptEnd::Interrupted
        | AttemptEnd::NeverStarted
        | AttemptEnd::Unreadable(_)
        | AttemptEnd::Stopped(Stop::Interrupted | Stop::Fenced) => false,
        AttemptEnd::Success
        | AttemptEnd::Failed(_)
        | AttemptEnd::NotYet(..)
        | AttemptEnd::Panicked(_)
        | AttemptEnd::Stalled
        | AttemptEnd::TimedOut
        | AttemptEnd::Cancelled
        | AttemptEnd::Stopped(
            Stop::Unknown(..)
            | Stop::Settling(..)
            | Stop::OldCall(..)
            | Stop::CannotTell(..)
            | Stop::Ask(_)
            | Stop::Earlier(_)
            | Stop::NoAttemptLeft(_)
            | Stop::Finished,
        ) => true,
    }
}

fn succeeded(change: &mut Change, scene: &Scene<'_>) {
    let questions = gate(scene.effects, scene.rules);
    if questions.is_empty() {
        report(change, Outcome::Success, None, None, None);
        end_job(change, End::Done, scene.rules, scene.at());
        return;
    }
    let error = "the handler succeeded, but an effect of an earlier attempt is not accounted for".to_owned();
    bury(change, Why::EffectUnresolved, Class::Unknown, error, questions, scene);
}

fn lapsed(change: &mut Change, text: String, scene: &Scene<'_>) {
    change.facts.push(Fact::LeaseExpired(change.record.id));
    failed(change, transient(text), scene);
}

/// Two accounts of an effect, or the wish to stop, come before everything else. True: the job has moved.
pub(super) fn moved_already(change: &mut Change, scene: &Scene<'_>) -> bool {
    let contradictions: Vec<Question> = conflicts(scene.effects).collect();
    if !contradictions.is_empty() {
        let error = "two different accounts of the same effect exist".to_owned();
        bury(change, Why::EffectUnresolved, Class::Unknown, error, contradictions, scene);
        return true;
    }
    if change.record.cancel {
        cancelled(change, scene);
        return true;
    }
    false
}

fn failed(change: &mut Change, failure: Failure, scene: &Scene<'_>) {
    let at = scene.at();
    let attempt = change.record.attempts;
    change.note(Entry::Attempt { attempt, at, class: failure.class, text: failure.text.clone() });
    if moved_already(change, scene) {
        return;
    }
    // Where trying again cannot help, a person is asked about the open call together with what to do now.
    if failure.class != Class::Permanent
        && scene.own_call_is_open()
        && let Some(plan) = plan(&change.record, scene, false)
    {
        return follow(change, plan, failure.text, scene);
    }
    // An effect that an earlier claim left open and the handler did not get to is no reason to come back for nothing, for ever:
    // its own failure counts, and the next attempt will ask.
    match retry::after(&change.record, &failure, scene.rules, scene.env.now, scene.env.draw) {
        Retry::In(ms) => back_off(change, ms, failure.class, failure.text, at),
        Retry::Stop(why) => bury(change, why, failure.class, failure.text, vec![Question::WhatNow], scene),
    }
}

/// Follows a plan after an attempt that is spent.
pub(super) fn follow(change: &mut Change, plan: Plan, text: String, scene: &Scene<'_>) {
    let at = scene.at();
    match plan {
        Plan::Ask(questions) => bury(change, Why::EffectUnresolved, Class::Unknown, text, questions, scene),
        Plan::Wait(on, ms) => {
            change.record.continues = true;
            park(change, on, ms, text, at);
        }
        Plan::Probe => {
            change.record.continues = true;
            make_ready(change, Outcome::Waiting, Some(Class::Unknown), Some(text), at);
        }
        Plan::CallAgain(0) => make_ready(change, Outcome::Retry, Some(Class::Unknown), Some(text), at),
        Plan::CallAgain(ms) => back_off(change, ms, Class::Unknown, text, at),
    }
}

fn unknown(change: &mut Change, id: &EffectId, text: String, scene: &Scene<'_>) {
    if moved_already(change, scene) {
        return;
    }
    let proven = scene.effects.iter().any(|e| e.id == *id && e.state == EffectState::Confirmed);
    if proven && !scene.own_call_is_open() {
        // The proof came between the stop and the end.
        return resume(change, scene.at());
    }
    failed(change, Failure { class: Class::Unknown, text, retry_after: None }, scene);
}

fn not_yet(change: &mut Change, why: String, wait: Duration, scene: &Scene<'_>) {
    if moved_already(change, scene) {
        return;
    }
    if scene.own_call_is_open()
        && let Some(plan) = plan(&change.record, scene, false)
    {
        return follow(change, plan, why, scene);
    }
    let at = scene.at();
    give_back(change, scene.continuing, "snoozed", at, |g| &mut g.snoozed);
    let ms = millis(wait);
    let due = Wall(at.0.saturating_add(ms));
    report(change, Outcome::NotYet, None, Some(why.clone()), Some(due));
    change.move_to(JobState::Delayed { due, delay_ms: ms, why: Delay::Snooze(why) });
}

/// The claim never reached its handler.
pub(super) fn never_started(change: &mut Change, scene: &Scene<'_>) {
    give_back(change, scene.continuing, "never started", scene.at(), |g| &mut g.never_started);
    if moved_already(change, scene) {
        return;
    }
    report(change, Outcome::Interrupted, None, None, Some(scene.at()));
    change.move_to(JobState::Ready { ticket: NEXT_TICKET });
}

/// Nobody failed: the claim is given back. Also the death of a process beside other handlers.
pub(super) fn interrupted(change: &mut Change, why: &str, field: fn(&mut GivenBack) -> &mut u32, scene: &Scene<'_>) {
    let at = scene.at();
    // A call that will be repeated without asking costs its attempt: at least once is at most once per attempt.
    if !scene.repeatable_call_is_open() {
        give_back(change, scene.continuing, why, at, field);
    }
    if held(change, scene) || moved_already(change, scene) {
        return;
    }
    match plan(&change.record, scene, true) {
        Some(Plan::Ask(questions)) => {
            let text = format!("{why} while a call was under way");
            bury(change, Why::EffectUnresolved, Class::Unknown, text, questions, scene);
        }
        Some(Plan::Wait(on, ms)) => {
            // A spent attempt goes on; one that was given back begins anew.
            change.record.continues |= !change.given_back;
            park(change, on, ms, why.to_owned(), at);
        }
        Some(Plan::Probe | Plan::CallAgain(_)) | None => {
            make_ready(change, Outcome::Interrupted, None, Some(why.to_owned()), at);
        }
    }
}

/// The kind wants a person to look after an interruption.
pub(super) fn held(change: &mut Change, scene: &Scene<'_>) -> bool {
    match scene.rules.on_interrupt {
        OnInterrupt::RunAgain => false,
        OnInterrupt::Hold => {
            let error = "interrupted while it ran".to_owned();
            bury(change, Why::HeldAfterInterrupt, Class::Transient, error, vec![Question::WhatNow], scene);
            true
        }
    }
}

fn waits(change: &mut Change, on: Wait, ms: u64, text: String, scene: &Scene<'_>) {
    if moved_already(change, scene) {
        return;
    }
    let at = scene.at();
    if !scene.open(on.effect()) {
        return resume(change, at);
    }
    if scene.called() {
        // It did more than look: the attempt stays spent, and goes on later.
        change.record.continues = true;
    } else {
        give_back(change, scene.continuing, "settling", at, |g| &mut g.settled);
    }
    park(change, on, ms, text, at);
}

/// On the kind's backoff, growing with every look, but not past the moment when a person is to be asked.
fn until_next_question(job: &JobRecord, id: &EffectId, scene: &Scene<'_>) -> u64 {
    let looks = job.attempts.saturating_add(job.given_back.settled).max(1);
    let pause = backoff_ms(&scene.rules.backoff, looks, scene.env.draw);
    let since = scene.effects.iter().find(|e| e.id == *id).and_then(|e| e.cannot_tell_since);
    let left = since.map_or(u64::MAX, |s| millis(scene.rules.cannot_tell_bound).saturating_sub(scene.at().since(s)));
    pause.min(left)
}

fn asks(change: &mut Change, question: Question, scene: &Scene<'_>) {
    let text = ask_text(&question).to_owned();
    asks_because(change, question, text, scene);
}

fn asks_because(change: &mut Change, question: Question, text: String, scene: &Scene<'_>) {
    if moved_already(change, scene) {
        return;
    }
    // A question about an effect that has no record (the finish gate of something undone) is one about the whole job.
    let known = |id: &EffectId| scene.effects.iter().any(|e| e.id == *id);
    let question = if question.effect().is_none_or(known) { question } else { Question::WhatNow };
    let mut questions = undeclared(scene.effects, scene.rules);
    if still_asked(&question, scene) && !questions.contains(&question) {
        questions.push(question);
    }
    if questions.is_empty() {
        // The answer came between the stop and the end.
        return resume(change, scene.at());
    }
    bury(change, Why::EffectUnresolved, Class::Unknown, text, questions, scene);
}

/// A late proof may have answered it meanwhile. Contradictions and undeclared records were looked at before.
fn still_asked(question: &Question, scene: &Scene<'_>) -> bool {
    let Some(record) = question.effect().and_then(|id| scene.effects.iter().find(|e| e.id == *id)) else {
        return true;
    };
    let confirmed = record.state == EffectState::Confirmed;
    match question {
        Question::DidItHappen { .. } => record.state.is_unresolved(),
        Question::RequestChanged { .. } => !confirmed || record.risk.is_risky(),
        Question::RequestUnreadable { .. } => !confirmed,
        Question::ResultLost { .. } => confirmed,
        Question::Undeclared { .. } | Question::Conflict { .. } => false,
        Question::WhatNow => true,
    }
}

fn ask_text(q: &Question) -> &'static str {
    match q {
        Question::DidItHappen { .. } => "nobody knows whether this effect happened",
        Question::RequestChanged { .. } => "the handler now asks for something else under the same name",
        Question::RequestUnreadable { .. } => "the stored request cannot be read by this version of the app",
        Question::ResultLost { .. } => "it happened, but its result is lost",
        Question::Undeclared { .. } => "a recorded effect is not declared by this version of the app",
        Question::Conflict { .. } => "two different accounts of the same effect exist",
        Question::WhatNow => "a person decides what happens now",
    }
}

#[cfg(test)]
mod tests;
