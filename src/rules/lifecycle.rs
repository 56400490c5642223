//! A job's way through its states: claim, promotion, cancelling, and the doors to the rest (end, recovery, late news).
//!
//! One place decides what follows an attempt, however it ended: first the effects nobody is sure of, then the failure, then the
//! limits. `docs/states.md` shows the table; a test compares it with these files.

use super::effect::{conflicts, gate, running, unanswered, undeclared};
use super::moves::{Scene, bury, end_job};
use super::{Change, Env, Refusal, retry};
use crate::model::attempt::{Class, Stop};
use crate::model::effect::EffectRecord;
use crate::model::fact::Fact;
use crate::model::id::{EffectId, Lease, Token};
use crate::model::job::{End, JobRecord, JobState, Memo, NEXT_TICKET, State};
use crate::model::letter::{Question, Why};
use crate::model::policy::KindRules;
use crate::model::time::Now;
use crate::planted::on;

pub use super::ending::end;
pub use super::learn::learned;
pub use super::recover::{MAX_DEATHS_BESIDE_OTHERS, STRIKE_WINDOW_MS, recover};

/// The answer to a claim.
#[derive(Clone, Debug)]
pub enum Claim {
    /// Hand it to a handler.
    Go(Change),
    /// It may not begin: it moved somewhere else.
    Not(Change),
}

impl Claim {
    /// The ticket for everything that the handler writes; only a claim makes one.
    pub fn lease(&self) -> Option<Lease> {
        match self {
            Self::Go(change) => Some(Lease { job: change.record.id, token: change.record.last_token }),
            Self::Not(_) => None,
        }
    }
    /// What to write.
    pub fn change(&self) -> &Change {
        match self {
            Self::Go(change) | Self::Not(change) => change,
        }
    }
}

/// Claims a ready job with `token`. The attempt is counted here, durably, before the handler runs: attempts are bounded even when
/// each one kills the process. `effects` are all its effect records.
pub fn claim(
    job: &JobRecord,
    token: Token,
    effects: &[EffectRecord],
    rules: &KindRules,
    env: &Env<'_>,
) -> Result<Claim, Refusal> {
    if !matches!(job.state, JobState::Ready { .. }) {
        return Err(Refusal::WrongState(State::from(&job.state)));
    }
    if token <= job.last_token {
        return Err(Refusal::OldToken { last: job.last_token, given: token });
    }
    let mut change = Change::of(job);
    let now = env.now;
    let scene = Scene { token, continuing: job.continues, effects, rules, env };
    if job.cancel {
        cancelled(&mut change, &scene);
        return Ok(Claim::Not(change));
    }
    if !job.continues && !retry::may_begin(job, rules, now.wall) {
        let (why, class, error) = no_attempt(job, now);
        bury(&mut change, why, class, error.to_owned(), vec![Question::WhatNow], &scene);
        return Ok(Claim::Not(change));
    }
    let r = &mut change.record;
    r.claims = r.claims.saturating_add(1);
    if job.continues {
        r.given_back.settled = r.given_back.settled.saturating_add(1);
    } else {
        r.attempts = r.attempts.saturating_add(u32::from(!on("attempt-uncounted")));
    }
    r.continues = false;
    r.last_token = token;
    change.facts.push(Fact::Claimed(job.id));
    change.move_to(JobState::Running { token, continuing: job.continues });
    Ok(Claim::Go(change))
}

/// Before the handler is called: a record that today's code does not own, or two accounts of one effect, are never run past.
pub fn may_run(effects: &[EffectRecord], rules: &KindRules) -> Option<Stop> {
    undeclared(effects, rules).into_iter().chain(conflicts(effects)).next().map(Stop::Ask)
}

/// Remembers a step or commit of a running job.
pub fn remember(job: &JobRecord, lease: &Lease, mut memo: Memo) -> Result<Change, Refusal> {
    running(job, lease)?;
    let mut change = Change::of(job);
    // Those that are forgotten are always the last ones, so the count is the next number.
    memo.number = job.memos;
    change.record.memos = job.memos.saturating_add(1);
    change.memo = Some(Box::new(memo));
    Ok(change)
}

/// Whether `finish` may end the job as success now.
pub fn may_finish(job: &JobRecord, lease: &Lease, effects: &[EffectRecord], rules: &KindRules) -> Result<(), Refusal> {
    running(job, lease)?;
    let questions = gate(effects, rules);
    if questions.is_empty() || on("finish-ungated") {
        return Ok(());
    }
    Err(Refusal::Gate(questions.iter().filter_map(|q| q.effect().cloned()).collect()))
}

/// A delayed or waiting job is due.
pub fn promote(job: &JobRecord) -> Result<Change, Refusal> {
    match job.state {
        JobState::Delayed { .. } | JobState::Waiting { .. } => {
            let mut change = Change::of(job);
            change.move_to(JobState::Ready { ticket: NEXT_TICKET });
            Ok(change)
        }
        JobState::Ready { .. }
        | JobState::Running { .. }
        | JobState::NeedsDecision
        | JobState::Dead
        | JobState::Compensating { .. }
        | JobState::Ended { .. } => Err(Refusal::WrongState(State::from(&job.state))),
    }
}

/// Cancels: a job that is not running ends now, a running one is asked to stop.
pub fn cancel(job: &JobRecord, effects: &[EffectRecord], rules: &KindRules, now: Now) -> Result<Change, Refusal> {
    let mut change = Change::of(job);
    match job.state {
        JobState::Ready { .. } | JobState::Delayed { .. } | JobState::Waiting { .. } => {
            let open: Vec<EffectId> = unanswered(effects).iter().filter_map(|q| q.effect().cloned()).collect();
            if !open.is_empty() {
                return Err(Refusal::Unresolved(open));
            }
            end_job(&mut change, End::Cancelled, rules, now.wall);
        }
        JobState::Running { .. } => change.record.cancel = true,
        JobState::NeedsDecision | JobState::Dead | JobState::Compensating { .. } | JobState::Ended { .. } => {
            return Err(Refusal::WrongState(State::from(&job.state)));
        }
    }
    Ok(change)
}

/// It was asked to stop, and nothing runs any more: over, unless somebody has to say first what happened outside.
pub(super) fn cancelled(change: &mut Change, scene: &Scene<'_>) {
    let questions = unanswered(scene.effects);
    if questions.is_empty() {
        super::moves::report(change, crate::model::attempt::Outcome::Cancelled, None, None, None);
        end_job(change, End::Cancelled, scene.rules, scene.at());
        return;
    }
    let error = "it was asked to stop while an effect was not accounted for".to_owned();
    bury(change, Why::EffectUnresolved, Class::Unknown, error, questions, scene);
}

/// Why no attempt may begin.
pub(super) fn no_attempt(job: &JobRecord, now: Now) -> (Why, Class, &'static str) {
    if retry::past_deadline(job, now.wall) {
        (Why::DeadlinePassed, Class::Permanent, "its deadline passed before an attempt could begin")
    } else {
        (Why::TriesUsedUp, Class::Transient, "its attempts are used up")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::effect::{EffectState, Recovery, Risk};
    use crate::rules::fixture::{id, kind, record};

    /// No handler runs past what today's code does not own, nor past two accounts of one effect.
    #[test]
    fn no_handler_runs_past_what_has_to_be_asked_first() {
        let rules = kind(Recovery::ask(), Recovery::ask(), Risk::Charge);
        let known = record("a", EffectState::Confirmed, 1);
        let twice = EffectRecord { conflict: true, ..known.clone() };
        let gone = record("gone", EffectState::Confirmed, 1);
        let conflict = Stop::Ask(Question::Conflict { effect: id("a") });
        let undeclared = Stop::Ask(Question::Undeclared { effect: id("gone") });
        assert_eq!(may_run(&[known], &rules), None);
        assert_eq!(may_run(std::slice::from_ref(&twice), &rules), Some(conflict));
        assert_eq!(may_run(&[twice, gone], &rules), Some(undeclared));
    }
}
