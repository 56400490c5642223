//! Late news about an effect: the job that waited for it goes on, the letter that asked for it is updated, a contradiction parks
//! the job.
//!
//! Called after [`called`](super::effect::called) or [`probed`](super::effect::probed) on a lease that is over.

use super::effect::conflicts;
use super::letter::go_on_or_ask;
use super::moves::{Plan, Scene, bury, plan};
use super::{Change, Env};
use crate::model::attempt::Class;
use crate::model::effect::{EffectRecord, EffectState};
use crate::model::id::EffectId;
use crate::model::job::{Delay, JobState, NEXT_TICKET};
use crate::model::letter::{LetterRecord, Question, Why};
use crate::model::policy::KindRules;
use crate::model::time::Wall;

/// After a late proof or a late end of a call: the job that waited for it goes on, a letter that asked for it is updated.
/// `change` is what [`called`](super::effect::called) or [`probed`](super::effect::probed) made; `effects` are all records of the
/// job, already with the new one among them.
pub fn learned(
    mut change: Change,
    letter: Option<&LetterRecord>,
    effects: &[EffectRecord],
    rules: &KindRules,
    env: &Env<'_>,
) -> Change {
    let Some(news) = change.effects.first().cloned() else { return change };
    let scene = Scene { token: change.record.last_token, continuing: false, effects, rules, env };
    let nothing_open = effects.iter().all(|e| !e.state.is_unresolved());
    match change.record.state.clone() {
        // Its own attempt, or the replacement, will see the record; an ended job only raises the alert.
        // A compensation looks at every record at its next step.
        JobState::Running { .. } | JobState::Ended { .. } | JobState::Compensating { .. } => {}
        JobState::Ready { .. } | JobState::Delayed { .. } | JobState::Waiting { .. } if news.conflict => {
            let error = "a proof arrived that contradicts what was decided or recorded".to_owned();
            let questions = conflicts(effects).collect();
            bury(&mut change, Why::EffectUnresolved, Class::Unknown, error, questions, &scene);
        }
        JobState::Ready { .. } => {}
        JobState::Delayed { why: Delay::Backoff, .. } => {
            // It came back later only because this very call of its last claim had no answer: it goes on at once, in the same
            // attempt. A failure of its own keeps its pause.
            let waited_for_it = news.token == change.record.last_token;
            if change.settled && waited_for_it && nothing_open && news.state == EffectState::Confirmed {
                change.record.continues = true;
                change.move_to(JobState::Ready { ticket: NEXT_TICKET });
            }
        }
        JobState::Delayed { why: Delay::At | Delay::After | Delay::Snooze(_), .. } => {}
        JobState::Waiting { on, .. } => {
            if nothing_open {
                change.move_to(JobState::Ready { ticket: NEXT_TICKET });
            } else if on.effect() == &news.id {
                replan(&mut change, &scene);
            }
        }
        JobState::NeedsDecision | JobState::Dead => {
            change.record.revision = change.record.revision.saturating_add(1);
            if let Some(letter) = letter {
                update(&mut change, letter, &news, &scene);
            }
        }
    }
    change
}

/// New facts for a job that already waits: its attempt is accounted for, only where it waits changes.
fn replan(change: &mut Change, scene: &Scene<'_>) {
    let at = scene.at();
    let due = |ms: u64| Wall(at.0.saturating_add(ms));
    match plan(&change.record, scene, false) {
        None | Some(Plan::Probe) => change.move_to(JobState::Ready { ticket: NEXT_TICKET }),
        Some(Plan::Ask(questions)) => {
            let text = "an earlier call ended without an answer".to_owned();
            bury(change, Why::EffectUnresolved, Class::Unknown, text, questions, scene);
        }
        Some(Plan::Wait(on, ms)) => change.move_to(JobState::Waiting { due: due(ms), delay_ms: ms, on }),
        Some(Plan::CallAgain(ms)) => {
            // Calling again is a new attempt; the claim must count as one.
            change.record.continues = false;
            change.move_to(JobState::Delayed { due: due(ms), delay_ms: ms, why: Delay::Backoff });
        }
    }
}

/// The letter with what is known now: answered questions are gone, a contradiction is asked for first.
fn update(change: &mut Change, letter: &LetterRecord, news: &EffectRecord, scene: &Scene<'_>) {
    // Whoever proposed something did so on the old view.
    let mut letter = LetterRecord { proposed: None, ..letter.clone() };
    let before = letter.questions.len();
    letter.questions.retain(|q| !answers(news, q));
    if news.conflict {
        let question = Question::Conflict { effect: news.id.clone() };
        letter.questions.retain(|q| *q != question);
        letter.questions.insert(0, question);
    }
    let running = |e: &EffectRecord| (scene.env.calls)(e).running_ms.is_some();
    let answered = letter.questions.is_empty() && before > 0;
    go_on_or_ask(change, letter, answered, scene.effects, scene.rules, &running, scene.at());
}

/// Whether what is known of an effect takes a question about it away.
pub(super) fn answers(news: &EffectRecord, question: &Question) -> bool {
    let about = |effect: &EffectId| *effect == news.id;
    match question {
        Question::DidItHappen { effect } => about(effect) && !news.state.is_unresolved(),
        // The stored request does not matter any more: it was carried out.
        Question::RequestUnreadable { effect } => about(effect) && news.state == EffectState::Confirmed,
        // The result that a person could not give.
        Question::ResultLost { effect } => about(effect) && is_kept(news),
        Question::RequestChanged { .. }
        | Question::Undeclared { .. }
        | Question::Conflict { .. }
        | Question::WhatNow => false,
    }
}

fn is_kept(news: &EffectRecord) -> bool {
    matches!(news.result, Some(crate::model::effect::Stored::Json(_)))
}
