//! A claim that a dead process left behind: whose fault was it, and does the attempt count?
//!
//! Only a death in the same boot, while the handler was the only one at work, counts against a job. Deaths beside others give the
//! attempt back, at most ten times, so that also a job that kills its process ends. Called once per run row at process start.

use super::ending::{follow, held, interrupted, moved_already, never_started};
use super::lifecycle::no_attempt;
use super::moves::{Scene, bury, make_ready, plan};
use super::{Change, Env, Refusal, retry};
use crate::model::attempt::{Class, Evidence, Outcome};
use crate::model::effect::EffectRecord;
use crate::model::job::{JobRecord, JobState, State};
use crate::model::letter::{Entry, Question, Why};
use crate::model::policy::KindRules;
use crate::model::time::Wall;

/// Strikes count within this window.
pub const STRIKE_WINDOW_MS: u64 = 72 * 3600 * 1000;
/// A death beside other handlers gives the attempt back this many times at most.
pub const MAX_DEATHS_BESIDE_OTHERS: u32 = 10;

/// A claim that a dead process left behind.
pub fn recover(
    job: &JobRecord,
    evidence: Evidence,
    effects: &[EffectRecord],
    rules: &KindRules,
    env: &Env<'_>,
) -> Result<Change, Refusal> {
    let JobState::Running { token, continuing } = job.state else {
        return Err(Refusal::WrongState(State::from(&job.state)));
    };
    let scene = Scene { token, continuing, effects, rules, env };
    let mut change = Change::of(job);
    match evidence {
        // Its handler had returned, and the death came before its end was durable. The calls it made are not free.
        Evidence::NeverStarted if scene.called() => {
            interrupted(&mut change, "interrupted", |g| &mut g.interrupted, &scene);
        }
        Evidence::NeverStarted => never_started(&mut change, &scene),
        Evidence::Interrupted => interrupted(&mut change, "interrupted", |g| &mut g.interrupted, &scene),
        Evidence::Suspect { alone } => {
            // From now on it runs alone until it has come back alive.
            change.record.suspect = true;
            died(&mut change, alone, &scene);
        }
    }
    Ok(change)
}

fn died(change: &mut Change, alone: bool, scene: &Scene<'_>) {
    let at = scene.at();
    let beside = if alone { "" } else { " (other handlers ran too)" };
    let text = format!("the process died while this handler ran{beside}");
    change.note(Entry::Attempt { attempt: change.record.attempts, at, class: Class::Transient, text: text.clone() });
    if alone {
        strike(change, at);
        change.note(Entry::Strike { at });
        if change.record.strikes >= 2 {
            let questions = vec![Question::WhatNow];
            return bury(change, Why::ProcessDied, Class::Permanent, "process died".into(), questions, scene);
        }
    } else if change.record.given_back.died_beside_others < MAX_DEATHS_BESIDE_OTHERS {
        return interrupted(change, "died beside others", |g| &mut g.died_beside_others, scene);
    }
    spent(change, text, scene);
}

/// The attempt is spent, but nothing is gained by waiting: it runs again at once.
fn spent(change: &mut Change, text: String, scene: &Scene<'_>) {
    if held(change, scene) || moved_already(change, scene) {
        return;
    }
    if scene.own_call_is_open()
        && let Some(plan) = plan(&change.record, scene, true)
    {
        return follow(change, plan, text, scene);
    }
    // Also a claim that only continued an attempt is followed by one that counts: deaths are bounded by attempts.
    if retry::may_begin(&change.record, scene.rules, scene.at()) {
        return make_ready(change, Outcome::Retry, Some(Class::Transient), Some(text), scene.at());
    }
    let limit_reached = change.record.given_back.died_beside_others >= MAX_DEATHS_BESIDE_OTHERS;
    let (why, class, _) = no_attempt(&change.record, scene.env.now);
    let why = if limit_reached { Why::InterruptedTooOften } else { why };
    bury(change, why, class, text, vec![Question::WhatNow], scene);
}

fn strike(change: &mut Change, at: Wall) {
    let r = &mut change.record;
    if r.strikes == 0 || at.since(r.first_strike) > STRIKE_WINDOW_MS {
        r.strikes = 1;
        r.first_strike = at;
    } else {
        r.strikes = r.strikes.saturating_add(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::effect::{EffectCard, EffectState, Reach, Recovery, Risk};
    use crate::model::id::{EffectId, IdempotencyKey, JobId, KindId, Token};
    use crate::model::policy::{OnInterrupt, Policy};
    use crate::model::time::{Mono, Now};
    use crate::rules::CallFacts;
    use crate::rules::fixture::{QUIET, job, kind, token, with};

    /// The call came to nothing certain, the handler returned, and the process died before that was durable: no slot, but a call.
    fn recovered(recovery: Recovery) -> Change {
        let id = EffectId { name: "mail".into(), part: String::new() };
        let (token, at) = (Token(7), Wall(1_000));
        let record = EffectRecord {
            id,
            state: EffectState::Unknown,
            generation: 1,
            key: IdempotencyKey("k".into()),
            request: b"{}".to_vec(),
            version: 1,
            says: "mail it".into(),
            look_up: None,
            risk: Risk::Routine,
            undo: None,
            undoing: crate::model::effect::Undoing::No,
            confirmed: 0,
            attempt: 1,
            token,
            calls: 1,
            unresolved: vec![1],
            reach: Reach::Maybe,
            first_call: at,
            last_call: at,
            result: None,
            reference: None,
            cannot_tell_since: None,
            error: None,
            conflict: false,
            accept_changed: false,
        };
        let rules = Policy::default().resolve(&[EffectCard::new("mail", &[], Risk::Routine, recovery)]);
        let mut job = JobRecord::new(JobId(1), KindId(1), 128, JobState::Running { token, continuing: false }, None);
        (job.attempts, job.claims, job.effects) = (1, 1, 1);
        let calls = |_: &EffectRecord| CallFacts { running_ms: None, quiet_ms: 0, key_age_ms: Some(10) };
        let env = Env { now: Now { wall: at, mono: Mono(0) }, draw: 0, calls: &calls };
        recover(&job, Evidence::NeverStarted, &[record], &rules, &env).expect("it was running")
    }

    /// A mail that may be repeated was sent by an attempt whose end did not become durable: if that attempt were free, the mail
    /// could be sent more often than there are attempts.
    #[test]
    fn a_repeatable_call_costs_its_attempt_although_the_slot_was_clear() {
        let change = recovered(Recovery::repeat());
        assert_eq!((change.record.attempts, change.record.given_back.never_started), (1, 0));
    }

    /// A call of which only a person can say whether it happened is asked about at once, not when the next attempt gets there.
    #[test]
    fn an_unknown_call_is_asked_about_although_the_slot_was_clear() {
        let change = recovered(Recovery::ask());
        assert_eq!(State::from(&change.record.state), State::NeedsDecision);
    }

    /// An attempt of its own, the first of two, with nobody's effects.
    fn at_work() -> JobRecord {
        let running = job(JobState::Running { token: token(3), continuing: false });
        JobRecord { attempts: 1, claims: 1, last_token: token(3), ..running }
    }

    fn plain() -> KindRules {
        kind(Recovery::ask(), Recovery::ask(), Risk::Charge)
    }

    fn found(job: &JobRecord, evidence: Evidence, now: u64, rules: &KindRules) -> Change {
        with(QUIET, now, |env| recover(job, evidence, &[], rules, env)).expect("it was running")
    }

    /// Two deaths within three days, with nobody else at work, end its tries. One that comes later begins to count anew.
    #[test]
    fn two_deaths_within_three_days_are_asked_about() {
        let alone = Evidence::Suspect { alone: true };
        let first = found(&at_work(), alone, 1_000, &plain()).record;
        assert_eq!((first.strikes, first.first_strike, first.suspect), (1, Wall(1_000), true));
        assert_eq!((State::from(&first.state), first.attempts), (State::Ready, 1), "the attempt is spent");
        let three_days = 259_200_000;
        for (later, strikes, since, state) in [
            (0, 2, 1_000, State::Dead),
            (three_days, 2, 1_000, State::Dead),
            (three_days + 1, 1, three_days + 1_001, State::Ready),
        ] {
            let struck = JobRecord { strikes: 1, first_strike: Wall(1_000), ..at_work() };
            let again = found(&struck, alone, 1_000 + later, &plain()).record;
            assert_eq!((again.strikes, again.first_strike), (strikes, Wall(since)), "{later} ms later");
            assert_eq!(State::from(&again.state), state, "{later} ms later");
        }
    }

    /// Ten deaths beside others are free; those that follow cost their attempt, and the last one is asked about for what it is.
    #[test]
    fn ten_deaths_in_company_are_free() {
        for (before, free) in [(0, true), (9, true), (10, false), (11, false)] {
            let mut job = at_work();
            job.given_back.died_beside_others = before;
            let after = found(&job, Evidence::Suspect { alone: false }, 1_000, &plain()).record;
            assert_eq!((after.attempts, after.strikes), (u32::from(!free), 0), "{before} before it");
            assert_eq!(after.given_back.died_beside_others, before + u32::from(free));
            assert_eq!(State::from(&after.state), State::Ready);
        }
        for (before, alone, why) in [(10, false, Why::InterruptedTooOften), (9, true, Why::TriesUsedUp)] {
            let mut job = JobRecord { attempts: 2, ..at_work() };
            job.given_back.died_beside_others = before;
            let last = found(&job, Evidence::Suspect { alone }, 1_000, &plain()).record;
            assert_eq!((State::from(&last.state), last.why), (State::Dead, Some(why)));
        }
    }

    /// A kind wants a person to look after an interruption. A claim whose handler was never called was none.
    #[test]
    fn only_a_handler_that_was_called_is_held() {
        let rules = KindRules { on_interrupt: OnInterrupt::Hold, ..plain() };
        let never = found(&at_work(), Evidence::NeverStarted, 1_000, &rules).record;
        assert_eq!((State::from(&never.state), never.attempts), (State::Ready, 0));
        assert_eq!((never.given_back.never_started, never.given_back.interrupted), (1, 0));
        for evidence in [Evidence::Interrupted, Evidence::Suspect { alone: true }, Evidence::Suspect { alone: false }] {
            let held = found(&at_work(), evidence, 1_000, &rules).record;
            assert_eq!(
                (State::from(&held.state), held.why),
                (State::Dead, Some(Why::HeldAfterInterrupt)),
                "{evidence:?}"
            );
        }
    }
}
