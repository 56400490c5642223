//! What must hold for every stored job, whatever happened to it: the structural part of the guarantees.
//!
//! Used by the exhaustive tests of the rules and, behind `testkit`, by every suite that looks at a recovered file.

use crate::model::effect::{EffectRecord, EffectState, Undoing};
use crate::model::job::{End, JobRecord, JobState};
use crate::model::letter::{LetterRecord, Question};
use crate::model::policy::KindRules;
use crate::rules::retry;

/// Every broken promise of one job, in words; empty if all hold.
pub fn broken(
    job: &JobRecord,
    effects: &[EffectRecord],
    letter: Option<&LetterRecord>,
    rules: &KindRules,
) -> Vec<String> {
    let mut out = Vec::new();
    let mut must = |holds: bool, what: &str| {
        if !holds {
            out.push(what.to_owned());
        }
    };
    count(job, rules, &mut must);
    place(job, effects, letter, &mut must);
    must(usize::try_from(job.effects).is_ok_and(|n| n == effects.len()), "each job counts its effect records");
    for e in effects {
        record(e, job, &mut must);
    }
    out
}

fn count(job: &JobRecord, rules: &KindRules, must: &mut impl FnMut(bool, &str)) {
    let spent = u64::from(job.attempts) + job.given_back.sum();
    must(u64::from(job.claims) == spent, "claims = attempts + given back");
    must(job.attempts <= retry::limit(job, rules), "attempts stay within the limit");
    must(job.strikes <= 2, "two strikes end it");
    if let JobState::Running { token, continuing } = job.state {
        must(token == job.last_token, "the running claim has the last token");
        must(continuing || job.attempts > 0, "a claim that is an attempt is counted before its handler runs");
        must(!job.continues, "a claim takes the wish to continue with it");
    }
    must(!job.continues || job.attempts > 0, "only an attempt that was counted can be continued");
}

fn place(job: &JobRecord, effects: &[EffectRecord], letter: Option<&LetterRecord>, must: &mut impl FnMut(bool, &str)) {
    let asked = matches!(job.state, JobState::NeedsDecision | JobState::Dead);
    must(asked == letter.is_some(), "a letter exists exactly while a person is asked");
    must(job.why == letter.map(|l| l.why), "the record says why as its letter does");
    match &job.state {
        JobState::NeedsDecision => {
            must(
                letter.is_some_and(|l| l.questions.iter().any(|q| q.effect().is_some())),
                "a decision is about an effect",
            );
        }
        JobState::Dead => {
            let only = letter.is_some_and(|l| l.questions == [Question::WhatNow]);
            must(only, "a dead letter asks what now, once, and nothing else");
        }
        JobState::Waiting { on, .. } => {
            let open = effects.iter().any(|e| e.id == *on.effect() && e.state.is_unresolved());
            must(open, "a job waits only for an effect nobody is sure of");
        }
        JobState::Ended { .. } => {
            must(effects.iter().all(|e| !e.state.is_unresolved()), "no job ends beside an unresolved effect");
        }
        JobState::Compensating { .. } => {
            must(effects.iter().all(|e| !e.state.is_unresolved()), "nothing is undone beside an unresolved effect");
        }
        JobState::Ready { .. } | JobState::Delayed { .. } | JobState::Running { .. } => {}
    }
    compensation(job, effects, must);
    let parked = |e: &EffectRecord| {
        let question = Question::Conflict { effect: e.id.clone() };
        letter.is_some_and(|l| l.questions.contains(&question))
    };
    let unseen = matches!(job.state, JobState::Running { .. } | JobState::Compensating { .. } | JobState::Ended { .. });
    must(unseen || effects.iter().all(|e| !e.conflict || parked(e)), "two accounts of one effect are a question");
    if let Some(letter) = letter {
        let twice = letter.questions.iter().enumerate().any(|(i, q)| letter.questions[..i].contains(q));
        must(!letter.questions.is_empty() && !twice, "a letter asks something, and each thing once");
        let known = |q: &Question| q.effect().is_none_or(|id| effects.iter().any(|e| e.id == *id));
        must(letter.questions.iter().all(known), "a question names an effect that has a record");
    }
}

/// One effect after the other, never a success, and never on as if nothing had been undone.
fn compensation(job: &JobRecord, effects: &[EffectRecord], must: &mut impl FnMut(bool, &str)) {
    let under_way = effects.iter().filter(|e| e.undoing == Undoing::UnderWay).count();
    let compensating = matches!(job.state, JobState::Compensating { .. });
    must(under_way == usize::from(compensating), "a compensating job has exactly one undo job under way, others none");
    let any_back = effects.iter().any(EffectRecord::is_taken_back);
    match job.state {
        JobState::Ended { how: End::Done, .. }
        | JobState::Ready { .. }
        | JobState::Delayed { .. }
        | JobState::Running { .. }
        | JobState::Waiting { .. } => must(!any_back, "a job does not go on, nor succeed, once undoing it was begun"),
        JobState::Ended { how: End::Compensated, .. } => must(any_back, "compensated means that something was undone"),
        JobState::Ended { .. } | JobState::NeedsDecision | JobState::Dead | JobState::Compensating { .. } => {}
    }
}

fn record(e: &EffectRecord, job: &JobRecord, must: &mut impl FnMut(bool, &str)) {
    must(e.calls > 0 && e.generation > 0, "a record exists only because of a call");
    must(e.state.is_unresolved() != e.unresolved.is_empty(), "unresolved means that some call is not accounted for");
    must(e.unresolved.iter().all(|c| *c <= e.calls), "only calls that were made are unresolved");
    must(e.token <= job.last_token, "an effect's token is one of its job");
    must(
        e.cannot_tell_since.is_none() || e.state == EffectState::Unknown,
        "only an unknown effect is asked about in vain",
    );
    must((e.undoing != Undoing::UnderWay) || e.state == EffectState::Confirmed, "only what is confirmed is undone");
    must(e.state != EffectState::Undone || e.undoing == Undoing::No, "what is undone is over");
    match e.state {
        EffectState::Confirmed | EffectState::Undone => {
            must(e.result.is_some(), "a confirmation keeps a result, or says it is lost")
        }
        EffectState::Refused(_) => must(e.result.is_none(), "what did not happen has no result"),
        EffectState::Intended | EffectState::Unknown => {
            must(e.result.is_none(), "an intent is never taken as completion")
        }
    }
}
