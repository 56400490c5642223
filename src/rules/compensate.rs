//! How a compensation goes on: an undo job is over, and the compensated job hears of it.
//!
//! The next effect is undone, or the job ends as compensated (never as a success), or a person is asked: what was given up, or turned
//! out to have happened meanwhile, is never passed over in silence. Called in the commit that ends an undo job.

use super::effect::conflicts;
use super::moves::{Scene, bury, end_job};
use super::undo::{Extent, extent, order, put, says};
use super::{Change, Env};
use crate::model::attempt::Class;
use crate::model::effect::{EffectRecord, EffectState, Undoing};
use crate::model::fact::{Compensation, Fact};
use crate::model::id::{EffectId, Token};
use crate::model::job::{End, JobRecord, JobState};
use crate::model::letter::{Entry, Question, Why};
use crate::model::policy::KindRules;

/// The job that undoes `of` is over: what follows for the job that is compensated. `None` if that was heard before.
pub fn heard(
    job: &JobRecord,
    effects: &[EffectRecord],
    of: &EffectId,
    how: End,
    rules: &KindRules,
    env: &Env<'_>,
) -> Option<Change> {
    let record = effects.iter().find(|e| e.id == *of && e.undoing == Undoing::UnderWay)?;
    let at = env.now.wall;
    let mut change = Change::of(job);
    let mut next = record.clone();
    let (given_up, became) = match how {
        End::Done => (false, "undone"),
        End::HandledOutside => (false, "undone outside"),
        End::Discarded | End::Cancelled | End::Compensated => (true, "not undone"),
    };
    next.undoing = if given_up { Undoing::GivenUp } else { Undoing::No };
    if !given_up {
        next.state = EffectState::Undone;
        let (job, effect, reference) = (job.id, of.clone(), next.reference.clone());
        change.facts.push(Fact::Effect { job, effect, state: next.state, late: false, reference });
    }
    change.note(Entry::Effect { effect: of.clone(), became: became.into(), late: false, at });
    put(&mut change, next.clone());
    let JobState::Compensating { left } = job.state else { return Some(change) };
    let effects: Vec<EffectRecord> =
        effects.iter().map(|e| if e.id == *of { next.clone() } else { e.clone() }).collect();
    let scene = Scene { token: Token(0), continuing: false, effects: &effects, rules, env };
    if given_up {
        let text = format!("the job that was to undo this was given up: {}", record.says);
        stop(&mut change, Why::UndoStopped, text, vec![Question::WhatNow], &scene);
        return Some(change);
    }
    go_on(&mut change, left, &scene);
    Some(change)
}

/// A compensation that nothing carries on: no effect of it is being undone. A person is asked, nobody waits for ever.
pub fn nobody_undoes(job: &JobRecord, effects: &[EffectRecord], rules: &KindRules, env: &Env<'_>) -> Option<Change> {
    let JobState::Compensating { .. } = job.state else { return None };
    if effects.iter().any(|e| e.undoing == Undoing::UnderWay) {
        return None;
    }
    let mut change = Change::of(job);
    let scene = Scene { token: Token(0), continuing: false, effects, rules, env };
    let text = "undoing stopped in the middle: no effect is being undone".to_owned();
    stop(&mut change, Why::UndoStopped, text, vec![Question::WhatNow], &scene);
    Some(change)
}

fn go_on(change: &mut Change, accepted: u32, scene: &Scene<'_>) {
    let Extent { undo, left } = extent(scene.effects);
    let contradictions: Vec<_> = conflicts(scene.effects).collect();
    if !contradictions.is_empty() {
        let text = "two different accounts of the same effect exist".to_owned();
        return stop(change, Why::EffectUnresolved, text, contradictions, scene);
    }
    if let Some(next) = undo.first() {
        return order(change, next, accepted, scene.at());
    }
    if left.len() > usize::try_from(accepted).unwrap_or(usize::MAX) {
        // A late proof: nobody was told that this stays.
        let text = format!("this turned out to have happened, and it cannot be undone: {}", says(&left));
        return stop(change, Why::UndoStopped, text, vec![Question::WhatNow], scene);
    }
    let result = if left.is_empty() { Compensation::Complete } else { Compensation::Partial };
    let left = left.iter().map(|e| e.id.clone()).collect();
    change.note(Entry::Compensated { left, at: scene.at() });
    change.facts.push(Fact::Compensation { job: change.record.id, result });
    end_job(change, End::Compensated, scene.rules, scene.at());
}

fn stop(change: &mut Change, why: Why, text: String, questions: Vec<Question>, scene: &Scene<'_>) {
    change.facts.push(Fact::Compensation { job: change.record.id, result: Compensation::Stopped });
    let class = if why == Why::UndoStopped { Class::Permanent } else { Class::Unknown };
    bury(change, why, class, text, questions, scene);
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{QUIET, job, kind, record, way_back, with};
    use super::*;
    use crate::model::effect::{Recovery, Risk};

    /// A payment was undone, and an earlier call of it turns out to have happened, too. A person can say so, and the rest can then be
    /// undone: the question is no dead end.
    #[test]
    fn a_second_account_of_what_was_undone_can_be_answered() {
        use super::super::fixture::signed;
        use super::super::{LetterMove, letter, undo};
        use crate::model::letter::{LetterRecord, Verdict};
        let rules = kind(Recovery::ask(), Recovery::ask(), Risk::Charge);
        let twice = EffectRecord { conflict: true, undo: Some(way_back("a")), ..record("a", EffectState::Undone, 1) };
        let rest = EffectRecord { undo: Some(way_back("b")), ..record("b", EffectState::Confirmed, 1) };
        let effects = [twice, rest];
        let asked = LetterRecord {
            why: Why::EffectUnresolved,
            created: crate::model::time::Wall(0),
            class: Class::Unknown,
            error: String::new(),
            questions: vec![Question::Conflict { effect: effects[0].id.clone() }],
            proposed: None,
        };
        let job = job(JobState::NeedsDecision);
        let happened = Verdict::Happened { effect: effects[0].id.clone(), reference: None, result: None, undo: None };
        assert!(letter::choices(&asked, &effects).contains(&letter::Choice::Happened(effects[0].id.clone())));
        let (shown, running) = (job.revision, |_: &EffectId| false);
        let case =
            letter::Case { job: &job, letter: &asked, effects: &effects, shown, running: &running, rules: &rules };
        let change = letter::decide(&case, &happened, &signed(1));
        let change = change.expect("it can be answered");
        let answered = &change.effects()[0];
        assert_eq!((answered.state, answered.conflict), (EffectState::Undone, false));
        let LetterMove::Put(left) = change.letter() else { unreachable!("it must not run on") };
        assert_eq!((left.why, &left.questions[..]), (Why::UndoStopped, &[Question::WhatNow][..]));
        assert!(undo::may_undo(&[answered.clone(), effects[1].clone()], &|_| false).is_ok());
    }

    /// While a parcel was recalled a late answer proved that a mail went out, too, which nobody can call back: the job does not end
    /// as if everything were undone.
    #[test]
    fn what_turns_out_to_have_happened_meanwhile_is_asked_about() {
        let rules = kind(Recovery::ask(), Recovery::ask(), Risk::Charge);
        let under_way = EffectRecord {
            undoing: Undoing::UnderWay,
            undo: Some(way_back("a")),
            ..record("a", EffectState::Confirmed, 1)
        };
        let effects = [under_way, EffectRecord { confirmed: 2, ..record("b", EffectState::Confirmed, 1) }];
        for (left, ends) in [(0, false), (1, true)] {
            let job = job(JobState::Compensating { left });
            let change = with(QUIET, 9, |env| heard(&job, &effects, &effects[0].id, End::Done, &rules, env))
                .expect("it is under way");
            let ended = matches!(change.record.state, JobState::Ended { how: End::Compensated, .. });
            assert_eq!((ended, change.record.state == JobState::Dead), (ends, !ends));
        }
    }

    /// Nobody undoes anything any more: a person is asked. While an undo job is under way, or where nothing is being undone, nobody is.
    #[test]
    fn a_compensation_that_nobody_carries_on_is_asked_about() {
        let rules = kind(Recovery::ask(), Recovery::ask(), Risk::Charge);
        let done = EffectRecord { undo: Some(way_back("a")), ..record("a", EffectState::Confirmed, 1) };
        let under_way = EffectRecord { undoing: Undoing::UnderWay, ..done.clone() };
        let asked = |state, effect: &EffectRecord| {
            with(QUIET, 9, |env| nobody_undoes(&job(state), std::slice::from_ref(effect), &rules, env))
        };
        let change = asked(JobState::Compensating { left: 0 }, &done).expect("it stands still");
        assert_eq!((&change.record().state, change.record().why), (&JobState::Dead, Some(Why::UndoStopped)));
        assert_eq!(asked(JobState::Compensating { left: 0 }, &under_way), None);
        assert_eq!(asked(JobState::Dead, &done), None);
    }

    /// An undo job that was given up is a failure for good; two accounts of one effect are what nobody knows. Its end is heard once.
    #[test]
    fn a_compensation_that_stops_says_why() {
        use super::super::LetterMove;
        let rules = kind(Recovery::ask(), Recovery::ask(), Risk::Charge);
        let of = |name: &str, undoing, conflict| EffectRecord {
            undoing,
            conflict,
            undo: Some(way_back(name)),
            ..record(name, EffectState::Confirmed, 1)
        };
        for (how, conflict, why, class) in [
            (End::Discarded, false, Why::UndoStopped, Class::Permanent),
            (End::Done, true, Why::EffectUnresolved, Class::Unknown),
        ] {
            let effects = [of("a", Undoing::UnderWay, false), of("b", Undoing::No, conflict)];
            let heard = |of: usize| {
                let job = job(JobState::Compensating { left: 0 });
                with(QUIET, 9, |env| heard(&job, &effects, &effects[of].id, how, &rules, env))
            };
            assert_eq!(heard(1), None, "nobody undoes that one");
            let LetterMove::Put(letter) = heard(0).expect("it is under way").letter().clone() else {
                panic!("it asks")
            };
            assert_eq!((letter.why, letter.class), (why, class));
        }
    }
}
