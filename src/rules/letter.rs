//! What a person may decide about a letter, and what follows.

use super::moves::{close_letter, end_job, go_on, put_letter};
use super::proof::confirmation;
use super::undo::{self, ByPolicy, by_policy};
use super::{Change, Refusal, retry};
use crate::model::effect::{EffectRecord, EffectState, Refusal as NotHappened, Stored};
use crate::model::fact::Fact;
use crate::model::id::EffectId;
use crate::model::job::{End, JobRecord, JobState, NEXT_TICKET, State};
use crate::model::letter::{Entry, LetterRecord, Question, Signed, Verdict, Why};
use crate::model::policy::KindRules;
use crate::model::time::Wall;
use crate::planted::on;

/// Verdicts that are valid for a letter as it stands, in the order in which a person should see them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Choice {
    /// The effect happened.
    Happened(EffectId),
    /// The effect did not happen.
    DidNotHappen(EffectId),
    /// Run it again.
    TryAgain,
    /// Taken care of elsewhere.
    HandledOutside,
    /// Thrown away.
    Discard,
    /// What it did is undone.
    Undo,
}

/// The valid choices: exactly what [`decide`] accepts while no call is running. Where only a lost result is asked for, "it happened"
/// is accepted with whatever the result can be rebuilt from.
pub fn choices(letter: &LetterRecord, effects: &[EffectRecord]) -> Vec<Choice> {
    let asked = letter.questions.iter().filter_map(Question::effect);
    let open = effects.iter().filter(|e| e.state.is_unresolved()).map(|e| &e.id);
    let mut ids: Vec<&EffectId> = Vec::new();
    for id in asked.chain(open) {
        if !ids.contains(&id) {
            ids.push(id);
        }
    }
    let mut out = Vec::new();
    for id in ids {
        let Some(record) = effects.iter().find(|e| e.id == *id) else { continue };
        if may_have_happened(letter, record) {
            out.push(Choice::Happened(id.clone()));
        }
        if may_not_have_happened(letter, record) {
            out.push(Choice::DidNotHappen(id.clone()));
        }
    }
    if undo::may_choose(effects).is_ok() {
        out.push(Choice::Undo);
    }
    if may_try_again(&letter.questions) && undo::no_way_back(effects).is_ok() {
        out.push(Choice::TryAgain);
    }
    if effects.iter().all(|e| !e.state.is_unresolved()) {
        out.push(Choice::HandledOutside);
        out.push(Choice::Discard);
    }
    out
}

/// Everything that a decision rests on.
#[derive(Clone, Copy)]
pub struct Case<'a> {
    /// The job that is decided about.
    pub job: &'a JobRecord,
    /// Its letter.
    pub letter: &'a LetterRecord,
    /// All of its effects.
    pub effects: &'a [EffectRecord],
    /// The revision that the person saw.
    pub shown: u32,
    /// Whether a call of an effect still runs.
    pub running: &'a dyn Fn(&EffectId) -> bool,
    /// Those of its kind.
    pub rules: &'a KindRules,
}

/// Carries out a verdict.
pub fn decide(case: &Case<'_>, verdict: &Verdict, signed: &Signed) -> Result<Change, Refusal> {
    let Case { job, letter, effects, shown, running, rules } = *case;
    if !matches!(job.state, JobState::NeedsDecision | JobState::Dead) {
        return Err(Refusal::WrongState(State::from(&job.state)));
    }
    if shown != job.revision {
        return Err(Refusal::Stale { shown, now: job.revision, since: Vec::new() });
    }
    let mut change = Change::of(job);
    change.record.revision = job.revision.saturating_add(1);
    change.note(Entry::Decision { verdict: verdict.clone(), signed: signed.clone() });
    match verdict {
        Verdict::Happened { effect, reference, result, undo } => {
            let record = asked(letter, effects, effect)?;
            if !may_have_happened(letter, record) {
                return Err(Refusal::NotAChoice(format!(
                    "nobody doubts what became of {effect}: look at the letter anew, and take one of its choices"
                )));
            }
            let lost = asks(letter, effect, |q| matches!(q, Question::ResultLost { .. }));
            if lost && says_nothing_new(letter, record, reference.as_deref(), result.is_some()) {
                return Err(Refusal::NeedsReference { effect: effect.clone(), known: record.reference.clone() });
            }
            let (mut record, left) = it_happened(record, lost, reference, result, without(letter, effect));
            if undo.is_some() && record.state == EffectState::Confirmed {
                // What was stored before the call knew no reference.
                record.undo.clone_from(undo);
            }
            if effects.iter().any(|e| e.id == *effect && e.state != EffectState::Confirmed) {
                record.confirmed = confirmation(job);
            }
            let effects = with(effects, &record);
            put_effect(&mut change, record);
            let letter = LetterRecord { questions: left, ..letter.clone() };
            let answered = letter.questions.is_empty();
            go_on_or_ask(&mut change, letter, answered, &effects, rules, &|e| running(&e.id), signed.at);
        }
        Verdict::DidNotHappen { effect, new_key } => {
            let record = asked(letter, effects, effect)?;
            if !may_not_have_happened(letter, record) {
                return Err(Refusal::NotAChoice(format!(
                    "{effect} is confirmed: it did happen. If it shall not stand, undo it, or take it back at its provider and end the job as handled outside"
                )));
            }
            if running(effect) {
                return Err(Refusal::CallRunning(effect.clone()));
            }
            let unreadable = asks(letter, effect, |q| matches!(q, Question::RequestUnreadable { .. }));
            if unreadable && !new_key {
                let text = format!(
                    "the stored request of {effect} cannot be read, so it can only be made anew: say that you want a new key for it, or that it happened"
                );
                return Err(Refusal::NotAChoice(text));
            }
            let changed = asks(letter, effect, |q| matches!(q, Question::RequestChanged { .. }));
            let record = it_did_not(record, *new_key || on("new-key-unasked"), changed);
            let effects = with(effects, &record);
            put_effect(&mut change, record);
            // Calling again is a new attempt; the person's answer grants it, so that it does not spend the automatic budget.
            change.record.granted = job.granted.saturating_add(1);
            let mut letter = letter.clone();
            letter.questions = without(&letter, effect);
            if letter.questions.is_empty() && retry::past_deadline(job, signed.at) {
                // It was asked what happened, not whether it shall still be done: no attempt begins after the deadline.
                letter.why = Why::DeadlinePassed;
                letter.questions.push(Question::WhatNow);
            }
            let answered = letter.questions.is_empty();
            go_on_or_ask(&mut change, letter, answered, &effects, rules, &|e| running(&e.id), signed.at);
        }
        Verdict::TryAgain => {
            if !may_try_again(&letter.questions) {
                return Err(Refusal::Unresolved(open_of(&letter.questions)));
            }
            undo::no_way_back(effects)?;
            let r = &mut change.record;
            r.replays = r.replays.saturating_add(1);
            r.granted = r.granted.saturating_add(1);
            r.continues = false;
            r.deadline = None;
            r.cancel = false;
            if letter.why == Why::ProcessDied {
                // What killed the process twice gets two more chances, alone.
                r.strikes = 0;
                r.suspect = true;
            }
            close_letter(&mut change);
            change.move_to(JobState::Ready { ticket: NEXT_TICKET });
        }
        Verdict::HandledOutside => finish(&mut change, effects, End::HandledOutside, rules, signed)?,
        Verdict::Discard => {
            // Out of the trash the same is asked again.
            let LetterRecord { why, class, error, questions, .. } = letter.clone();
            change.note(Entry::Asked { why, class, error, questions });
            finish(&mut change, effects, End::Discarded, rules, signed)?;
        }
        Verdict::ReplayFrom { .. } => {
            return Err(Refusal::NotAChoice(
                "what the job remembers has to be known for that: look at its letter anew".into(),
            ));
        }
        Verdict::Undo => {
            undo::may_undo(effects, &|e| running(&e.id))?;
            close_letter(&mut change);
            undo::begin(&mut change, effects, signed.at);
        }
    }
    Ok(change)
}

/// Whether "it happened" says something about this record.
fn may_have_happened(letter: &LetterRecord, record: &EffectRecord) -> bool {
    match record.state {
        EffectState::Intended | EffectState::Unknown => true,
        EffectState::Confirmed | EffectState::Refused(_) => {
            record.conflict
                || asks(letter, &record.id, |q| {
                    matches!(
                        q,
                        Question::RequestChanged { .. }
                            | Question::RequestUnreadable { .. }
                            | Question::ResultLost { .. }
                    )
                })
        }
        // A second account of what was undone: nothing else takes that question away.
        EffectState::Undone => record.conflict,
    }
}

/// Whether "it did not happen" can be true of this record.
fn may_not_have_happened(letter: &LetterRecord, record: &EffectRecord) -> bool {
    match record.state {
        EffectState::Intended | EffectState::Unknown => true,
        EffectState::Confirmed => record.conflict,
        EffectState::Refused(_) => may_have_happened(letter, record),
        EffectState::Undone => false,
    }
}

/// "It happened" where only its result is asked for, and it does not bring that: the same would be asked again, on a new view.
fn says_nothing_new(letter: &LetterRecord, record: &EffectRecord, reference: Option<&str>, rebuilt: bool) -> bool {
    let only_that = !asks(letter, &record.id, |q| !matches!(q, Question::ResultLost { .. }));
    let known = reference.is_none() || reference == record.reference.as_deref();
    !rebuilt && only_that && known && record.state == EffectState::Confirmed && !record.conflict
}

fn it_happened(
    record: &EffectRecord,
    lost: bool,
    reference: &Option<String>,
    result: &Option<Vec<u8>>,
    mut left: Vec<Question>,
) -> (EffectRecord, Vec<Question>) {
    let mut next = record.clone();
    if record.state == EffectState::Undone {
        // What was undone stays so; what else happened is known to the person now.
        next.conflict = false;
        return (next, left);
    }
    let kept = record.state == EffectState::Confirmed && matches!(record.result, Some(Stored::Json(_))) && !lost;
    next.state = EffectState::Confirmed;
    next.unresolved.clear();
    next.cannot_tell_since = None;
    next.conflict = false;
    next.accept_changed = true;
    if reference.is_some() {
        next.reference.clone_from(reference);
    }
    match result {
        Some(json) => next.result = Some(Stored::Json(json.clone())),
        None if kept => {}
        None => {
            let why = "a person said that it happened, without a reference to rebuild its result";
            next.result = Some(Stored::Lost(why.into()));
            left.insert(0, Question::ResultLost { effect: next.id.clone() });
        }
    }
    (next, left)
}

fn it_did_not(record: &EffectRecord, new_key: bool, changed: bool) -> EffectRecord {
    let mut next = record.clone();
    next.state = EffectState::Refused(NotHappened::Person { new_key });
    next.unresolved.clear();
    next.conflict = false;
    next.result = None;
    next.reference = None;
    next.cannot_tell_since = None;
    next.accept_changed = changed && !new_key;
    next
}

/// Running again needs every question about an effect answered; questions about today's code answer themselves by running.
fn may_try_again(questions: &[Question]) -> bool {
    questions.iter().all(|q| match q {
        Question::WhatNow | Question::Undeclared { .. } | Question::RequestUnreadable { .. } => true,
        Question::DidItHappen { .. }
        | Question::RequestChanged { .. }
        | Question::ResultLost { .. }
        | Question::Conflict { .. } => false,
    })
}

fn open_of(questions: &[Question]) -> Vec<EffectId> {
    questions.iter().filter_map(|q| q.effect().cloned()).collect()
}

fn asks(letter: &LetterRecord, effect: &EffectId, which: impl Fn(&Question) -> bool) -> bool {
    letter.questions.iter().any(|q| q.effect() == Some(effect) && which(q))
}

fn asked<'a>(
    letter: &LetterRecord,
    effects: &'a [EffectRecord],
    effect: &EffectId,
) -> Result<&'a EffectRecord, Refusal> {
    let record = effects.iter().find(|e| e.id == *effect);
    match record {
        Some(r) if asks(letter, effect, |_| true) || r.state.is_unresolved() => Ok(r),
        Some(_) | None => Err(Refusal::NotAChoice(format!(
            "nothing is asked about {effect}: look at the letter anew, and take one of its choices"
        ))),
    }
}

fn without(letter: &LetterRecord, effect: &EffectId) -> Vec<Question> {
    letter.questions.iter().filter(|q| q.effect() != Some(effect)).cloned().collect()
}

/// The job resumes when its letter is answered; it is undone if only "what now" is left and its policy answers that. `effects` are
/// all records as this change leaves them.
pub(super) fn go_on_or_ask(
    change: &mut Change,
    mut letter: LetterRecord,
    answered: bool,
    effects: &[EffectRecord],
    rules: &KindRules,
    running: &dyn Fn(&EffectRecord) -> bool,
    at: Wall,
) {
    if answered {
        if undo::taken_back(effects).is_none() {
            return go_on(change);
        }
        // Something of it was undone: it must not run on as if that stood.
        letter.why = Why::UndoStopped;
        letter.questions = vec![Question::WhatNow];
    }
    match by_policy(letter.why, &letter.questions, effects, rules, running) {
        ByPolicy::Undo => {
            close_letter(change);
            undo::begin(change, effects, at);
        }
        ByPolicy::Silent => put_letter(change, LetterRecord { proposed: None, ..letter }),
        ByPolicy::Ask(reason) => {
            let told = undo::not_by_itself(&reason);
            let new = !letter.error.contains(&told);
            let error = if new { format!("{}; {told}", letter.error) } else { letter.error };
            put_letter(change, LetterRecord { proposed: None, error, ..letter });
        }
    }
}

/// All records, with this one as it is now.
fn with(effects: &[EffectRecord], record: &EffectRecord) -> Vec<EffectRecord> {
    effects.iter().map(|e| if e.id == record.id { record.clone() } else { e.clone() }).collect()
}

fn finish(
    change: &mut Change,
    effects: &[EffectRecord],
    how: End,
    rules: &KindRules,
    signed: &Signed,
) -> Result<(), Refusal> {
    let open: Vec<_> = effects.iter().filter(|e| e.state.is_unresolved()).map(|e| e.id.clone()).collect();
    if !open.is_empty() {
        return Err(Refusal::Unresolved(open));
    }
    close_letter(change);
    end_job(change, how, rules, signed.at);
    Ok(())
}

fn put_effect(change: &mut Change, record: EffectRecord) {
    change.facts.push(Fact::Effect {
        job: change.record.id,
        effect: record.id.clone(),
        state: record.state,
        late: false,
        reference: record.reference.clone(),
    });
    change.effects.push(record);
}

#[cfg(test)]
mod tests;
