//! What a person may choose about a letter, in words: what each choice will do and what it will not.
//!
//! Keeps the promise that a text says what really follows: it is asked of the rules that carry the choice out. Called by `desk` when
//! a letter is read.

use crate::model::effect::{EffectRecord, EffectState, Undoing};
use crate::model::id::EffectId;
use crate::model::job::{JobState, Memo};
use crate::model::letter::{Question, Verdict};
use crate::rules::letter::Choice as Valid;
use crate::rules::review;
use crate::rules::undo::{extent, taken_back};
use crate::rules::{Change, LetterMove};

/// Something a person may decide, with what will and will not happen.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Choice {
    /// In a few words.
    pub label: String,
    /// What will happen.
    pub will: Vec<String>,
    /// What will not happen.
    pub will_not: Vec<String>,
    pub(super) decides: Verdict,
}

/// What a decision that answers a question leads to, from the same rules that carry it out. `on` is what it means that the job goes on.
fn leads_to(came: &Result<Change, String>, effects: &[EffectRecord], on: &str) -> String {
    let change = match came {
        Ok(change) => change,
        Err(why) => return format!("not now: {why}"),
    };
    match &change.record().state {
        JobState::Compensating { .. } => {
            let now: Vec<EffectRecord> = effects
                .iter()
                .map(|e| change.effects().iter().find(|new| new.id == e.id).unwrap_or(e).clone())
                .collect();
            let undone = now.iter().filter(|e| e.undoing == Undoing::UnderWay).chain(extent(&now).undo);
            let undone: Vec<&str> = undone.map(|e| e.says.as_str()).collect();
            format!("the job does not go on: it is undone at once ({})", undone.join("; "))
        }
        JobState::NeedsDecision | JobState::Dead => {
            let next = match change.letter() {
                LetterMove::Put(letter) => letter.questions.first(),
                LetterMove::Keep | LetterMove::Remove => None,
            };
            let says =
                |id: &EffectId| effects.iter().find(|e| e.id == *id).map_or_else(|| id.to_string(), |e| e.says.clone());
            match next {
                Some(Question::ResultLost { effect }) => {
                    format!("the job waits: the reference of this is asked for next, for its result: {}", says(effect))
                }
                Some(
                    Question::DidItHappen { effect }
                    | Question::RequestChanged { effect }
                    | Question::RequestUnreadable { effect }
                    | Question::Undeclared { effect }
                    | Question::Conflict { effect },
                ) => format!("the job waits: this is asked next: {}", says(effect)),
                Some(Question::WhatNow) | None => "the job waits: it is asked next what shall become of it".to_owned(),
            }
        }
        JobState::Ready { .. }
        | JobState::Delayed { .. }
        | JobState::Running { .. }
        | JobState::Waiting { .. }
        | JobState::Ended { .. } => on.to_owned(),
    }
}

/// A valid choice in words; `follows` says what a verdict would come to.
pub(super) fn describe(
    valid: &Valid,
    effects: &[EffectRecord],
    follows: &dyn Fn(&Verdict) -> Result<Change, String>,
) -> Choice {
    let says = |id: &EffectId| effects.iter().find(|e| e.id == *id).map_or_else(|| id.to_string(), |e| e.says.clone());
    let done: Vec<String> = effects
        .iter()
        .filter(|e| e.state == EffectState::Confirmed)
        .map(|e| format!("{} is done again", e.says))
        .collect();
    match valid {
        Valid::Happened(id) => {
            let said = |result| Verdict::Happened { effect: id.clone(), reference: None, result, undo: None };
            let undone = effects.iter().any(|e| e.id == *id && e.state == EffectState::Undone);
            let known = leads_to(&follows(&said(Some(Vec::new()))), effects, "the job goes on");
            let bare = leads_to(&follows(&said(None)), effects, "the job goes on");
            let mut will = vec![if undone { "it stays undone" } else { "it counts as done" }.to_owned(), known.clone()];
            if bare != known {
                will.push(format!("without a reference that its result can be rebuilt from: {bare}"));
            }
            Choice {
                label: format!("It happened: {}", says(id)),
                will,
                will_not: vec!["it is asked for again".into()],
                decides: said(None),
            }
        }
        Valid::DidNotHappen(id) => {
            let decides = Verdict::DidNotHappen { effect: id.clone(), new_key: false };
            let new = Verdict::DidNotHappen { effect: id.clone(), new_key: true };
            let on = "it is asked for again, with the same key unless you want a new one";
            let with_new = "it is asked for again, with a new key, which you have to want (with_new_key)";
            let came = follows(&decides);
            let text = if came.is_err() && follows(&new).is_ok() {
                leads_to(&follows(&new), effects, with_new)
            } else {
                leads_to(&came, effects, on)
            };
            Choice { label: format!("It did not happen: {}", says(id)), will: vec![text], will_not: done, decides }
        }
        Valid::TryAgain => Choice {
            label: "Try again".into(),
            will: vec!["the job runs once more at once; this does not spend its automatic tries".into()],
            will_not: done,
            decides: Verdict::TryAgain,
        },
        Valid::Undo => {
            let plan = extent(effects);
            let undone = plan.undo.iter().filter_map(|e| Some((e, e.undo.as_ref()?)));
            Choice {
                label: "Undo what was done".into(),
                will: undone.map(|(e, u)| format!("{} is undone, by a {} job of its own", e.says, u.kind)).collect(),
                will_not: plan
                    .left
                    .iter()
                    .map(|e| format!("{} stays as it is: nobody undoes it", e.says))
                    .chain(["it counts as a success, or is tried again as the same job".to_owned()])
                    .collect(),
                decides: Verdict::Undo,
            }
        }
        Valid::HandledOutside => Choice {
            label: "Somebody took care of it".into(),
            will: vec!["the job ends, marked as handled outside".into()],
            will_not: never_again("it runs again", effects),
            decides: Verdict::HandledOutside,
        },
        Valid::Discard => Choice {
            label: "Discard".into(),
            will: vec![
                "the job ends, marked as discarded, and lies in the trash for a while: it can be brought back".into(),
            ],
            will_not: never_again("it runs again, or what was done is undone", effects),
            decides: Verdict::Discard,
        },
    }
}

/// A person may have given the reference already: then asking for it again would lead nowhere.
pub(super) fn lost(says: String, reference: Option<&str>) -> String {
    match reference {
        None => format!("This happened, but the answer is lost: {says}. What is its reference?"),
        Some(r) => format!(
            "This happened (reference {r}), but its result cannot be rebuilt from that: {says}. Has the app learnt to (Effect::from_reference)? If not, it can only be ended as taken care of"
        ),
    }
}

/// One choice for each remembered step, where running again is a choice at all.
pub(super) fn replays(valid: &[Valid], effects: &[EffectRecord], memos: &[Memo]) -> Vec<Choice> {
    if !valid.contains(&Valid::TryAgain) || effects.iter().any(|e| e.state.is_unresolved()) {
        return Vec::new();
    }
    let done = effects.iter().filter(|e| e.state == EffectState::Confirmed);
    let done: Vec<String> = done.map(|e| format!("{} is done again", e.says)).collect();
    let choice = |memo: &Memo| {
        let gone = review::forgotten(memos, &memo.name).unwrap_or_default();
        let word = |m: &Memo| if m.commit { "written to the app's tables again" } else { "worked out again" };
        Choice {
            label: format!("Run again from {}", memo.name),
            will: gone.iter().map(|m| format!("{} is forgotten and {}", m.name, word(m))).collect(),
            will_not: done.clone(),
            decides: Verdict::ReplayFrom { step: memo.name.clone() },
        }
    };
    memos.iter().map(choice).collect()
}

/// Why "try again" is not among the choices, where that is so.
fn never_again(text: &str, effects: &[EffectRecord]) -> Vec<String> {
    let why = taken_back(effects).map(|e| {
        format!("it cannot be tried again, because undoing this was begun: {}; run_again makes a new job of it", e.says)
    });
    std::iter::once(text.to_owned()).chain(why).collect()
}
