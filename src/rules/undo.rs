//! What would be undone when a job cannot go forward, in which order, whether that may begin, and its beginning.
//!
//! The last confirmed effect first, one after the other, each by a durable job of its own. Never beside an effect nobody is sure of
//! or a call that still runs, never past what cannot be undone unless a person said so. Called where a letter would be made and by
//! a person's verdict; `compensate` goes on from there.

use super::{Change, Refusal, UndoOrder};
use crate::model::effect::{EffectRecord, EffectState, UndoJob, Undoing};
use crate::model::id::JobKey;
use crate::model::job::JobState;
use crate::model::letter::{Entry, Question, Why};
use crate::model::policy::{KindRules, OnDead};
use crate::model::time::Wall;
use crate::planted::on;
use std::cmp::Reverse;

/// What a compensation would undo, in its order, and what it would leave as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Extent<'a> {
    /// The last confirmed first.
    pub undo: Vec<&'a EffectRecord>,
    /// Done, and without a way back.
    pub left: Vec<&'a EffectRecord>,
}

/// What a compensation would do now.
pub fn extent(effects: &[EffectRecord]) -> Extent<'_> {
    let done = effects.iter().filter(|e| e.state == EffectState::Confirmed && e.undoing != Undoing::UnderWay);
    let (mut undo, left): (Vec<_>, Vec<_>) = done.partition(|e| e.undo.is_some() && e.undoing == Undoing::No);
    undo.sort_by_key(|e| Reverse(e.confirmed));
    if on("undone-forwards") {
        undo.reverse();
    }
    Extent { undo, left }
}

/// The key of the job that undoes this effect.
pub fn undo_key(record: &EffectRecord) -> JobKey {
    format!("undo/{}", record.key).into()
}

/// An effect that does not stand any more: the job must not go on as if it did.
pub fn taken_back(effects: &[EffectRecord]) -> Option<&EffectRecord> {
    effects.iter().find(|e| e.is_taken_back())
}

/// Why a job cannot be tried again although nothing else is asked.
pub fn no_way_back(effects: &[EffectRecord]) -> Result<(), Refusal> {
    match taken_back(effects) {
        None => Ok(()),
        Some(e) => Err(Refusal::NotAChoice(format!(
            "undoing {} was begun, and what was undone is not done again under the same key: run the job again as a new one \
             (run_again)",
            e.id
        ))),
    }
}

/// Whether what was done may be undone now.
pub fn may_undo(effects: &[EffectRecord], running: &dyn Fn(&EffectRecord) -> bool) -> Result<(), Refusal> {
    may_choose(effects)?;
    match effects.iter().find(|e| running(e)) {
        Some(e) => Err(Refusal::CallRunning(e.id.clone())),
        None => Ok(()),
    }
}

/// The same, apart from calls that still run.
pub(super) fn may_choose(effects: &[EffectRecord]) -> Result<(), Refusal> {
    let open: Vec<_> = effects.iter().filter(|e| e.state.is_unresolved()).map(|e| e.id.clone()).collect();
    if !open.is_empty() {
        return Err(Refusal::Unresolved(open));
    }
    if let Some(e) = effects.iter().find(|e| e.conflict) {
        let text = format!("two accounts of {} exist: say first which one is true", e.id);
        return Err(Refusal::NotAChoice(text));
    }
    if extent(effects).undo.is_empty() {
        return Err(Refusal::NotAChoice("nothing that was done can be undone".into()));
    }
    Ok(())
}

/// What the policy says about a job that would get a letter with these questions.
pub(super) enum ByPolicy {
    /// It has nothing to say.
    Silent,
    /// Undo, at once.
    Undo,
    /// It would undo, but that needs a person, for this reason.
    Ask(String),
}

/// What a letter says of a policy that would undo, and may not.
pub(super) fn not_by_itself(reason: &str) -> String {
    format!("nothing was undone by itself: {reason}")
}

pub(super) fn by_policy(
    why: Why,
    questions: &[Question],
    effects: &[EffectRecord],
    rules: &KindRules,
    running: &dyn Fn(&EffectRecord) -> bool,
) -> ByPolicy {
    // Something done is the reason to undo: a job that never did anything only failed.
    let begun = extent(effects);
    let done = !begun.undo.is_empty() || !begun.left.is_empty();
    if rules.on_dead != OnDead::Undo || !done || !ends_it(why) || questions != [Question::WhatNow] {
        return ByPolicy::Silent;
    }
    if taken_back(effects).is_some() {
        return ByPolicy::Silent;
    }
    if !begun.left.is_empty() {
        return ByPolicy::Ask(format!("this cannot be undone: {}", says(&begun.left)));
    }
    match may_undo(effects, running) {
        Ok(()) => ByPolicy::Undo,
        Err(refusal) => ByPolicy::Ask(refusal.to_string()),
    }
}

/// The job itself cannot go forward. One that its kind wants to be looked at, or that another version of the app could read, may.
fn ends_it(why: Why) -> bool {
    match why {
        Why::TriesUsedUp | Why::Permanent | Why::ProcessDied | Why::DeadlinePassed | Why::InterruptedTooOften => true,
        Why::HeldAfterInterrupt | Why::Unreadable | Why::EffectUnresolved | Why::Restored | Why::UndoStopped => false,
    }
}

/// Begins: the job enters its compensating state and the first undo job is ordered. `effects` are all records as this change
/// leaves them.
pub(super) fn begin(change: &mut Change, effects: &[EffectRecord], at: Wall) {
    let Extent { undo, left } = extent(effects);
    let Some(first) = undo.first() else { return };
    change.record.why = None;
    change.record.continues = false;
    change.record.cancel = false;
    order(change, first, u32::try_from(left.len()).unwrap_or(u32::MAX), at);
}

/// Orders one undo job.
pub(super) fn order(change: &mut Change, record: &EffectRecord, left: u32, at: Wall) {
    let Some(job) = record.undo.clone() else { return };
    let mut next = record.clone();
    next.undoing = Undoing::UnderWay;
    change.note(Entry::UndoEnqueued {
        effect: next.id.clone(),
        kind: job.kind.clone(),
        key: undo_key(record).as_str().to_owned(),
        at,
    });
    put(change, next);
    change.undo = Some(Box::new(order_of(record, job, at)));
    let state = JobState::Compensating { left };
    if change.record.state != state {
        change.move_to(state);
    }
}

/// The order of the job that undoes this effect.
pub fn order_of(record: &EffectRecord, job: UndoJob, at: Wall) -> UndoOrder {
    UndoOrder { effect: record.id.clone(), says: record.says.clone(), job, key: undo_key(record), at }
}

pub(super) fn put(change: &mut Change, record: EffectRecord) {
    change.effects.retain(|e| e.id != record.id);
    change.effects.push(record);
}

pub(super) fn says(effects: &[&EffectRecord]) -> String {
    effects.iter().map(|e| e.says.as_str()).collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{record, way_back};
    use super::*;
    use crate::model::effect::Recovery;
    use crate::model::effect::Risk;

    fn done(name: &str, confirmed: u32) -> EffectRecord {
        EffectRecord { undo: Some(way_back(name)), confirmed, ..record(name, EffectState::Confirmed, 1) }
    }

    /// Of three effects the middle one was confirmed last, by a late answer: it goes first. What has no way back is named.
    #[test]
    fn the_last_confirmed_goes_first_and_the_rest_is_named() {
        let effects = [done("a", 1), done("b", 3), done("c", 2), record("d", EffectState::Confirmed, 1)];
        let Extent { undo, left } = extent(&effects);
        let names = |of: &[&EffectRecord]| of.iter().map(|e| e.id.name.clone()).collect::<Vec<_>>();
        assert_eq!((names(&undo), names(&left)), (vec!["b".into(), "c".into(), "a".into()], vec!["d".to_owned()]));
    }

    /// Two generations of one effect are two undo jobs, and neither has the key that a customer would use.
    #[test]
    fn an_undo_job_has_a_key_of_its_own() {
        let first = done("a", 1);
        let second = EffectRecord { key: super::super::fixture::key("a", 2), ..first.clone() };
        assert_ne!(undo_key(&first), undo_key(&second));
        assert_ne!(undo_key(&first), way_back("a").key);
    }

    /// Only what ends a job's way forward is undone by itself; what a kind or another version of the app may still see to is not.
    #[test]
    fn a_policy_undoes_only_what_cannot_go_forward() {
        let mut rules = super::super::fixture::kind(Recovery::ask(), Recovery::ask(), Risk::Charge);
        let effects = [done("a", 1)];
        let undoes = |why, questions: &[Question], rules: &KindRules| {
            matches!(by_policy(why, questions, &effects, rules, &|_| false), ByPolicy::Undo)
        };
        let now = [Question::WhatNow];
        assert!(!undoes(Why::Permanent, &now, &rules), "hold is the default");
        rules.on_dead = OnDead::Undo;
        for (why, expected) in [
            (Why::TriesUsedUp, true),
            (Why::Permanent, true),
            (Why::ProcessDied, true),
            (Why::DeadlinePassed, true),
            (Why::InterruptedTooOften, true),
            (Why::HeldAfterInterrupt, false),
            (Why::Unreadable, false),
            (Why::EffectUnresolved, false),
            (Why::UndoStopped, false),
        ] {
            assert_eq!(undoes(why, &now, &rules), expected, "{why:?}");
        }
        let open = [Question::DidItHappen { effect: effects[0].id.clone() }, Question::WhatNow];
        assert!(!undoes(Why::TriesUsedUp, &open, &rules), "what nobody is sure of is asked first");
        let running = by_policy(Why::Permanent, &now, &effects, &rules, &|_| true);
        assert!(matches!(running, ByPolicy::Ask(reason) if reason.contains("still running")));
    }

    /// What was undone, or is being undone, is not done again under the same key.
    #[test]
    fn no_way_leads_back_from_undoing() {
        assert_eq!(no_way_back(&[done("a", 1)]), Ok(()));
        for record in [
            record("a", EffectState::Undone, 1),
            EffectRecord { undoing: Undoing::UnderWay, ..done("a", 1) },
            EffectRecord { undoing: Undoing::GivenUp, ..done("a", 1) },
        ] {
            let told = no_way_back(&[done("b", 1), record]);
            assert!(matches!(told, Err(Refusal::NotAChoice(why)) if why.starts_with("undoing a was begun")));
        }
    }
}
