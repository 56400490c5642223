//! What a person may decide about a letter: which words count, and what they leave to be asked.
//!
//! Each test crosses one bound, so that a comparison turned round cannot pass; the combinations are those of `states` and `explore`.

use super::*;
use crate::model::effect::{Recovery, Risk};
use crate::model::policy::OnDead;
use crate::rules::LetterMove;
use crate::rules::fixture::{id, job, kind, record, signed};

fn letter(questions: &[Question]) -> LetterRecord {
    LetterRecord {
        why: Why::TriesUsedUp,
        created: Wall(0),
        class: crate::model::attempt::Class::Transient,
        error: "oops".into(),
        questions: questions.to_vec(),
        proposed: Some(Box::new((Verdict::Discard, signed(1)))),
    }
}
fn decided(
    letter: &LetterRecord,
    effects: &[EffectRecord],
    on_dead: OnDead,
    verdict: &Verdict,
) -> Result<Change, Refusal> {
    let job = JobRecord { attempts: 2, journal: 7, ..job(JobState::NeedsDecision) };
    let rules = KindRules { on_dead, ..kind(Recovery::ask(), Recovery::ask(), Risk::Charge) };
    decide(&Case { job: &job, letter, effects, shown: 0, running: &|_| false, rules: &rules }, verdict, &signed(9))
}
fn happened(name: &str, reference: Option<&str>, result: Option<&[u8]>) -> Verdict {
    let (reference, result) = (reference.map(str::to_owned), result.map(<[u8]>::to_vec));
    Verdict::Happened { effect: id(name), reference, result, undo: None }
}
fn left(change: &Change) -> &LetterRecord {
    let LetterMove::Put(letter) = change.letter() else { panic!("it asks on: {change:?}") };
    letter
}
fn did(name: &str) -> Question {
    Question::DidItHappen { effect: id(name) }
}

/// One of two questions is answered: what somebody proposed on the view before is gone with it, under every policy. A policy that
/// would undo says once why it does not.
#[test]
fn an_answer_ends_what_was_proposed_before_it() {
    let effects = [record("a", EffectState::Unknown, 1), record("b", EffectState::Unknown, 1)];
    let change =
        decided(&letter(&[did("a"), did("b")]), &effects, OnDead::Hold, &happened("a", Some("op"), Some(b"1")));
    let change = change.expect("it is asked");
    assert_eq!(*left(&change), LetterRecord { proposed: None, ..letter(&[did("b")]) });
    let once = letter(&[did("a"), Question::WhatNow]);
    let told = "oops; nothing was undone by itself: this cannot be undone: do a";
    let twice = LetterRecord { error: told.into(), ..once.clone() };
    for asked in [once, twice] {
        let change = decided(&asked, &effects[..1], OnDead::Undo, &happened("a", Some("op"), Some(b"1")));
        let change = change.expect("it is asked");
        let expected = LetterRecord { proposed: None, error: told.into(), ..letter(&[Question::WhatNow]) };
        assert_eq!(*left(&change), expected);
    }
}

/// What nobody asked about cannot be answered, and what is confirmed cannot be denied.
#[test]
fn only_what_is_asked_is_answered() {
    let effects = [record("a", EffectState::Unknown, 1), record("b", EffectState::Confirmed, 1)];
    let not_a_choice = |verdict: &Verdict, questions: &[Question], text: &str| {
        let told = decided(&letter(questions), &effects, OnDead::Hold, verdict);
        assert!(matches!(&told, Err(Refusal::NotAChoice(why)) if why.contains(text)), "{verdict:?}: {told:?}");
    };
    let denied = |name: &str| Verdict::DidNotHappen { effect: id(name), new_key: false };
    for verdict in [happened("b", None, None), denied("b"), happened("c", None, None), denied("c")] {
        not_a_choice(&verdict, &[did("a")], "nothing is asked about");
    }
    not_a_choice(&happened("b", None, None), &[did("a"), did("b")], "nobody doubts what became of b");
    not_a_choice(&denied("b"), &[did("a"), did("b")], "b is confirmed: it did happen");
    // What is open can be answered although its letter asks for something else.
    assert!(decided(&letter(&[Question::WhatNow]), &effects, OnDead::Hold, &denied("a")).is_ok());
}

/// A person's word that it happened confirms it once, keeps a result that is there, and asks for one that is not.
#[test]
fn a_word_keeps_the_result_that_is_there() {
    let done = EffectRecord { conflict: true, confirmed: 3, ..record("a", EffectState::Confirmed, 1) };
    let done_and_lost = EffectRecord { result: Some(Stored::Lost("too big".into())), ..done.clone() };
    let open = record("a", EffectState::Unknown, 1);
    let twice = Question::Conflict { effect: id("a") };
    let lost = Question::ResultLost { effect: id("a") };
    for (record, question, result, confirmed, asks) in [
        (&done, &twice, None, 3, false),
        (&done_and_lost, &twice, None, 3, true),
        (&open, &did("a"), None, 8, true),
        (&open, &did("a"), Some(&b"1"[..]), 8, false),
    ] {
        let change = decided(
            &letter(std::slice::from_ref(question)),
            std::slice::from_ref(record),
            OnDead::Hold,
            &happened("a", Some("op"), result),
        );
        let change = change.expect("it is asked");
        let now = &change.effects()[0];
        assert_eq!(
            (now.state, now.confirmed, now.reference.as_deref()),
            (EffectState::Confirmed, confirmed, Some("op"))
        );
        assert_eq!(matches!(now.result, Some(Stored::Json(_))), !asks);
        match change.letter() {
            LetterMove::Put(letter) if asks => assert_eq!(letter.questions, std::slice::from_ref(&lost)),
            LetterMove::Remove if !asks => assert!(matches!(change.record().state, JobState::Ready { .. })),
            other @ (LetterMove::Keep | LetterMove::Put(_) | LetterMove::Remove) => panic!("{question:?}: {other:?}"),
        }
    }
    // The result is lost, and the person's word brings nothing that was not known.
    let lost_one = EffectRecord {
        result: Some(Stored::Lost("too big".into())),
        reference: Some("op".into()),
        ..record("a", EffectState::Confirmed, 1)
    };
    for (word, questions, new) in [
        (happened("a", None, None), vec![lost.clone()], false),
        (happened("a", Some("op"), None), vec![lost.clone()], false),
        (happened("a", Some("other"), None), vec![lost.clone()], true),
        (happened("a", None, Some(b"1")), vec![lost.clone()], true),
        (happened("a", None, None), vec![lost.clone(), twice], true),
    ] {
        let told = decided(&letter(&questions), std::slice::from_ref(&lost_one), OnDead::Hold, &word);
        let known = Some("op".to_owned());
        let nothing_new = matches!(&told, Err(Refusal::NeedsReference { known: k, .. }) if *k == known);
        assert_eq!((told.is_ok(), nothing_new), (new, !new), "{word:?} {questions:?}");
        let Ok(change) = told else { continue };
        let rebuilt = matches!(word, Verdict::Happened { result: Some(_), .. });
        let asks = matches!(change.letter(), LetterMove::Put(letter) if letter.questions == [lost.clone()]);
        assert_eq!(asks, !rebuilt, "the result is asked for until it is there");
    }
}

/// Whoever lets a job run again that killed its process gives it two more deaths, alone; another letter says nothing of that.
#[test]
fn a_second_chance_runs_alone() {
    for (why, strikes, suspect) in [(Why::ProcessDied, 0, true), (Why::TriesUsedUp, 2, false)] {
        let job = JobRecord { strikes: 2, attempts: 2, ..job(JobState::Dead) };
        let letter = LetterRecord { why, ..letter(&[Question::WhatNow]) };
        let rules = kind(Recovery::ask(), Recovery::ask(), Risk::Charge);
        let case = Case { job: &job, letter: &letter, effects: &[], shown: 0, running: &|_| false, rules: &rules };
        let now = decide(&case, &Verdict::TryAgain, &signed(9)).expect("a choice").record;
        assert_eq!((now.strikes, now.suspect, now.granted), (strikes, suspect, 1), "{why:?}");
    }
}

/// The way back that was stored before the call stays, unless the person's word brings a better one.
#[test]
fn a_word_keeps_the_way_back() {
    let way = |name: &str| Some(crate::rules::fixture::way_back(name));
    let old = EffectRecord { undo: way("a"), ..record("a", EffectState::Unknown, 1) };
    let undone = EffectRecord { state: EffectState::Undone, unresolved: vec![], conflict: true, ..old.clone() };
    let (open, twice) = (did("a"), Question::Conflict { effect: id("a") });
    for (record, question, brought, then) in
        [(&old, &open, None, "a"), (&old, &open, way("b"), "b"), (&undone, &twice, way("b"), "a")]
    {
        let word = Verdict::Happened { effect: id("a"), reference: None, result: Some(b"1".to_vec()), undo: brought };
        let change =
            decided(&letter(std::slice::from_ref(question)), std::slice::from_ref(record), OnDead::Hold, &word)
                .expect("it is asked");
        assert_eq!(change.effects()[0].undo, way(then));
    }
}

/// It did not happen: the next call has a new key if the person says so, else the same one; then the changed request is accepted.
/// Nothing runs again before every question about an effect is answered.
#[test]
fn a_denial_says_under_which_key_it_is_called_again() {
    let open = [record("a", EffectState::Unknown, 1)];
    let changed = Question::RequestChanged { effect: id("a") };
    for (question, new_key, accepted) in [
        (did("a"), false, false),
        (did("a"), true, false),
        (changed.clone(), false, true),
        (changed.clone(), true, false),
    ] {
        let word = Verdict::DidNotHappen { effect: id("a"), new_key };
        let change = decided(&letter(&[question]), &open, OnDead::Hold, &word).expect("it is asked");
        let now = &change.effects()[0];
        let state = EffectState::Refused(NotHappened::Person { new_key });
        assert_eq!((now.state, now.accept_changed, change.record().granted), (state, accepted, 1));
    }
    for question in [did("a"), changed] {
        let told = decided(&letter(&[question, Question::WhatNow]), &open, OnDead::Hold, &Verdict::TryAgain);
        assert_eq!(told, Err(Refusal::Unresolved(vec![id("a")])));
    }
}
