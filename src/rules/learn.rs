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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::effect::{Recovery, Refusal as NotHappened, Risk, Stored};
    use crate::rules::LetterMove;
    use crate::rules::fixture::{QUIET, id, job, kind, record, with};

    /// A question is taken away by what answers it, and by nothing that is known of another effect.
    #[test]
    fn what_is_known_answers_the_questions_that_it_can() {
        let done = record("a", EffectState::Confirmed, 1);
        let lost = EffectRecord { result: Some(Stored::Lost("too big".into())), ..done.clone() };
        let refused = record("a", EffectState::Refused(NotHappened::Said), 1);
        let open = record("a", EffectState::Unknown, 1);
        let effect = || id("a");
        for (question, by) in [
            (Question::DidItHappen { effect: effect() }, [true, true, true, false]),
            (Question::RequestUnreadable { effect: effect() }, [true, true, false, false]),
            (Question::ResultLost { effect: effect() }, [true, false, false, false]),
            (Question::RequestChanged { effect: effect() }, [false; 4]),
            (Question::Undeclared { effect: effect() }, [false; 4]),
            (Question::Conflict { effect: effect() }, [false; 4]),
            (Question::WhatNow, [false; 4]),
        ] {
            assert_eq!([&done, &lost, &refused, &open].map(|news| answers(news, &question)), by, "{question:?}");
            let beside = EffectRecord { id: id("b"), ..done.clone() };
            assert!(!answers(&beside, &question), "{question:?}");
        }
    }

    /// A second account turns up while a person is asked: it is asked for first and once, and what else was asked stays.
    #[test]
    fn a_contradiction_is_asked_for_first_and_once() {
        let rules = kind(Recovery::ask(), Recovery::ask(), Risk::Charge);
        let (twice, open) = (Question::Conflict { effect: id("a") }, Question::DidItHappen { effect: id("b") });
        let effects = [
            EffectRecord { conflict: true, ..record("a", EffectState::Confirmed, 1) },
            record("b", EffectState::Unknown, 1),
        ];
        for before in [vec![open.clone(), Question::WhatNow], vec![open.clone(), twice.clone(), Question::WhatNow]] {
            let letter = LetterRecord {
                why: Why::TriesUsedUp,
                created: Wall(0),
                class: Class::Transient,
                error: "oops".into(),
                questions: before,
                proposed: None,
            };
            let mut change = Change::of(&job(JobState::NeedsDecision));
            change.effects.push(effects[0].clone());
            let change = with(QUIET, 9, |env| learned(change, Some(&letter), &effects, &rules, env));
            let LetterMove::Put(now) = change.letter() else { panic!("it asks on") };
            assert_eq!(now.questions, [twice.clone(), open.clone(), Question::WhatNow]);
            assert_eq!(change.record().revision, 1, "a decision on the view before is refused");
        }
    }

    /// Of a failed attempt one answer came late, and it happened: the job goes on at once, in the same attempt. A refusal, another
    /// claim's call, a second open effect or a failure of its own leave it its pause.
    #[test]
    fn a_pause_ends_early_only_for_the_proof_that_was_missing() {
        let rules = kind(Recovery::ask(), Recovery::ask(), Risk::Charge);
        let paused = |why| JobState::Delayed { due: Wall(50), delay_ms: 10, why };
        let (done, refused) = (EffectState::Confirmed, EffectState::Refused(NotHappened::Said));
        for (state, by, settled, beside, why, goes_on) in [
            (done, 3, true, done, Delay::Backoff, true),
            (refused, 3, true, done, Delay::Backoff, false),
            (done, 2, true, done, Delay::Backoff, false),
            (done, 3, false, done, Delay::Backoff, false),
            (done, 3, true, EffectState::Unknown, Delay::Backoff, false),
            (done, 3, true, done, Delay::Snooze("later".into()), false),
        ] {
            let mut job = job(paused(why.clone()));
            (job.attempts, job.last_token) = (1, crate::rules::fixture::token(3));
            let mut change = Change::of(&job);
            let effects = [record("a", state, by), record("b", beside, 1)];
            change.effects.push(effects[0].clone());
            change.settled = settled;
            let now = with(QUIET, 9, |env| learned(change, None, &effects, &rules, env)).record;
            assert_eq!(
                now.state == JobState::Ready { ticket: NEXT_TICKET },
                goes_on,
                "{state:?} {by} {beside:?} {why:?}"
            );
            assert_eq!(now.continues, goes_on);
        }
    }

    /// A job waits for an old call. Its end without an answer is what a person is asked about; news of another effect are not.
    #[test]
    fn who_waits_hears_only_of_what_it_waits_for() {
        let rules = kind(Recovery::ask(), Recovery::ask(), Risk::Charge);
        let effects = [record("a", EffectState::Unknown, 1), record("b", EffectState::Unknown, 1)];
        for (on, asked) in [("a", true), ("b", false)] {
            let on = crate::model::job::Wait::OldCall(id(on));
            let waiting = JobState::Waiting { due: Wall(50), delay_ms: 10, on };
            let mut change = Change::of(&job(waiting.clone()));
            change.effects.push(effects[0].clone());
            let now = with(QUIET, 9, |env| learned(change, None, &effects, &rules, env)).record;
            assert_eq!(now.state, if asked { JobState::NeedsDecision } else { waiting });
        }
    }
}
