//! The end of an attempt: which end counts, what a person is asked, and what goes on by itself.
//!
//! Each test crosses one bound, so that a comparison turned round cannot pass; the combinations are those of `states` and `explore`.

use super::*;
use crate::model::effect::{Recovery, Refusal as NotHappened, Risk, Stored};
use crate::model::letter::LetterRecord;
use crate::rules::LetterMove;
use crate::rules::fixture::{INSIDE, QUIET, id, job, kind, ms, record, token, with};

fn rules() -> KindRules {
    kind(Recovery::probe(ms(20)), Recovery::ask(), Risk::Charge)
}
fn at_work() -> JobRecord {
    let running = job(JobState::Running { token: token(3), continuing: false });
    JobRecord { attempts: 1, claims: 1, last_token: token(3), strikes: 1, suspect: true, ..running }
}
fn ended(job: &JobRecord, how: AttemptEnd, effects: &[EffectRecord], now: u64) -> Change {
    let lease = Lease { job: job.id, token: token(3) };
    with(QUIET, now, |env| end(job, &lease, how, effects, &rules(), env)).expect("a live lease")
}

/// Nobody can tell: the provider is asked again on the kind's backoff, but not later than a person is to be asked. Another effect
/// has nothing to do with that.
#[test]
fn the_next_question_comes_before_the_person_does() {
    let since = |ms| Some(Wall(ms));
    let asked = EffectRecord { cannot_tell_since: since(0), ..record("a", EffectState::Unknown, 1) };
    let beside = EffectRecord { cannot_tell_since: since(30), ..record("b", EffectState::Unknown, 1) };
    for (looks, now, wait) in [(0, 10, 10), (1, 10, 20), (1, 25, 15), (0, 35, 5), (0, 40, 0)] {
        let mut job = at_work();
        job.given_back.settled = looks;
        let how = AttemptEnd::Stopped(Stop::CannotTell(id("a"), "down".into()));
        let change = ended(&job, how, &[beside.clone(), asked.clone()], now);
        let JobState::Waiting { due, delay_ms, on } = change.record().state.clone() else { panic!("it waits") };
        assert_eq!((due, delay_ms, on), (Wall(now + wait), wait, Wait::CannotTell(id("a"))), "{looks} looks, at {now}");
    }
}

/// A handler that comes back, however, did not kill the process; one that never ran or was cut off has proven nothing.
#[test]
fn who_comes_back_is_innocent() {
    for (how, innocent) in [
        (AttemptEnd::Success, true),
        (AttemptEnd::Panicked("oops".into()), true),
        (AttemptEnd::NotYet("later".into(), ms(5)), true),
        (AttemptEnd::Stalled, true),
        (AttemptEnd::Interrupted, false),
        (AttemptEnd::NeverStarted, false),
        (AttemptEnd::Unreadable("what".into()), false),
        (AttemptEnd::Stopped(Stop::Fenced), false),
    ] {
        let now = ended(&at_work(), how.clone(), &[], 9).record;
        assert_eq!((now.suspect, now.strikes), (!innocent, u8::from(!innocent)), "{how:?}");
    }
}

/// Between the stop and the end of the attempt a late proof may answer what it stopped for.
#[test]
fn a_question_stays_until_something_answers_it() {
    let done = record("a", EffectState::Confirmed, 1);
    let harmless = EffectRecord { risk: Risk::Routine, ..done.clone() };
    let lost = EffectRecord { result: Some(Stored::Lost("too big".into())), ..done.clone() };
    let open = record("a", EffectState::Unknown, 1);
    let refused = record("a", EffectState::Refused(NotHappened::NotSent), 1);
    let effect = || id("a");
    for (question, by, text) in [
        (
            Question::DidItHappen { effect: effect() },
            [false, false, true, false],
            "nobody knows whether this effect happened",
        ),
        (
            Question::RequestChanged { effect: effect() },
            [true, false, true, true],
            "the handler now asks for something else under the same name",
        ),
        (
            Question::RequestUnreadable { effect: effect() },
            [false, false, true, true],
            "the stored request cannot be read by this version of the app",
        ),
        (Question::ResultLost { effect: effect() }, [true, true, false, false], "it happened, but its result is lost"),
    ] {
        for (known, asked) in [&done, &harmless, &open, &refused].into_iter().zip(by) {
            let effects = [record("b", EffectState::Confirmed, 1), known.clone()];
            let change = ended(&at_work(), AttemptEnd::Stopped(Stop::Ask(question.clone())), &effects, 9);
            match change.letter() {
                LetterMove::Put(LetterRecord { error, questions, .. }) if asked => {
                    assert_eq!((error.as_str(), questions.as_slice()), (text, &[question.clone()][..]));
                }
                LetterMove::Keep if !asked => {
                    assert!(matches!(change.record().state, JobState::Ready { .. }), "{question:?} {known:?}");
                    assert!(change.record().continues, "it goes on in the same attempt");
                }
                other @ (LetterMove::Keep | LetterMove::Put(_) | LetterMove::Remove) => {
                    panic!("{question:?} {known:?}: {other:?}")
                }
            }
        }
    }
    let change =
        ended(&at_work(), AttemptEnd::Stopped(Stop::Ask(Question::ResultLost { effect: effect() })), &[lost], 9);
    assert!(matches!(change.record().state, JobState::NeedsDecision));
    // One that has no record is a question about the whole job.
    let change =
        ended(&at_work(), AttemptEnd::Stopped(Stop::Ask(Question::DidItHappen { effect: id("c") })), &[done], 9);
    assert!(matches!(change.letter(), LetterMove::Put(letter) if letter.questions == [Question::WhatNow]));
}

/// The line of an attempt has the number that its handler saw, also where the claim is given back; only those that count are
/// attempts.
#[test]
fn a_line_has_the_number_that_its_handler_saw() {
    let failure = || Failure { class: Class::Transient, text: "oops".into(), retry_after: None };
    let not_yet = || AttemptEnd::NotYet("later".into(), ms(5));
    for (how, continuing, left, snoozed, free) in [
        (AttemptEnd::Failed(failure()), false, 1, 0, false),
        (AttemptEnd::Failed(failure()), true, 1, 0, true),
        (not_yet(), false, 0, 1, true),
        (not_yet(), true, 1, 1, true),
    ] {
        let mut job = JobRecord { state: JobState::Running { token: token(3), continuing }, ..at_work() };
        job.given_back.settled = u32::from(continuing);
        let change = ended(&job, how, &[], 9);
        assert_eq!((change.record().attempts, change.record().given_back.snoozed), (left, snoozed));
        let is_line =
            |fact: &&Fact| matches!(fact, Fact::Attempt { attempt: 1, given_back, .. } if *given_back == free);
        assert_eq!(change.facts().iter().filter(is_line).count(), 1, "{:?}", change.facts());
    }
}

/// An interrupted claim waits for the old call of an earlier one. It goes on as the attempt that it was, or, given back, anew.
#[test]
fn an_interrupted_claim_goes_on_as_what_it_was() {
    let lease = Lease { job: at_work().id, token: token(3) };
    let rules = kind(Recovery::ask(), Recovery::repeat(), Risk::Routine);
    let old = record("a", EffectState::Unknown, 1);
    let repeatable = record("b", EffectState::Unknown, 3);
    let inside = |e: &EffectRecord| super::super::CallFacts { running_ms: (e.id == id("a")).then_some(5), ..QUIET };
    let env = Env { now: crate::rules::fixture::at(9), draw: 0, calls: &inside };
    let ended = |effects: &[EffectRecord]| {
        end(&at_work(), &lease, AttemptEnd::Interrupted, effects, &rules, &env).expect("a live lease").record
    };
    let alone = ended(std::slice::from_ref(&old));
    assert_eq!((alone.attempts, alone.given_back.interrupted, alone.continues), (0, 1, false));
    assert_eq!(alone.state, JobState::Waiting { due: Wall(34), delay_ms: 25, on: Wait::OldCall(id("a")) });
    let both = ended(&[old, repeatable]);
    assert_eq!(
        (both.attempts, both.given_back.interrupted),
        (1, 0),
        "what is repeated without asking costs its attempt"
    );
    assert!(matches!(both.state, JobState::Ready { .. }), "{:?}", both.state);
}

/// A call of this claim is open when it fails: the provider is asked in the same attempt. Where trying again cannot help, a person
/// is asked about the call and about the job.
#[test]
fn an_open_call_comes_before_the_failure() {
    let failed = |class, by| {
        let failure = Failure { class, text: "oops".into(), retry_after: None };
        ended(&at_work(), AttemptEnd::Failed(failure), &[record("a", EffectState::Unknown, by)], 9)
    };
    for class in [Class::Transient, Class::Unknown] {
        let asks = failed(class, 3).record;
        assert_eq!((&asks.state, asks.continues), (&JobState::Ready { ticket: NEXT_TICKET }, true), "{class:?}");
        let earlier = failed(class, 1).record;
        assert_eq!(earlier.state, JobState::Delayed { due: Wall(19), delay_ms: 10, why: Delay::Backoff }, "{class:?}");
    }
    let dead = failed(Class::Permanent, 3);
    let LetterMove::Put(letter) = dead.letter() else { panic!("a person is asked") };
    assert_eq!(letter.questions, [Question::DidItHappen { effect: id("a") }, Question::WhatNow]);
}

/// It stopped because nobody knew, and the proof came before its end: it goes on. A refusal, or a proof of something else, is none.
#[test]
fn a_proof_between_the_stop_and_the_end_lets_it_go_on() {
    let (done, no) = (EffectState::Confirmed, EffectState::Refused(NotHappened::NotSent));
    let stopped = |a, b, by| {
        let how = AttemptEnd::Stopped(Stop::Unknown(id("a"), "timeout".into()));
        ended(&at_work(), how, &[record("a", a, 3), record("b", b, by)], 9).record
    };
    for (a, b, goes_on) in [(done, done, true), (done, no, true), (no, done, false), (no, no, false)] {
        let now = stopped(a, b, 1);
        assert_eq!((now.continues, matches!(now.state, JobState::Ready { .. })), (goes_on, goes_on), "{a:?} {b:?}");
    }
    assert!(matches!(stopped(done, EffectState::Unknown, 3).state, JobState::NeedsDecision), "another call is open");
    assert!(
        stopped(done, EffectState::Unknown, 1).continues,
        "an earlier claim's call is asked about when it is needed"
    );
}

/// A repeatable call of the last attempt is cut off and still runs: the attempt is spent, so the next claim goes on with it. An
/// earlier claim's call, or one that is accounted for, costs nothing.
#[test]
fn only_an_open_call_of_its_own_costs_an_attempt() {
    let rules = kind(Recovery::ask(), Recovery::repeat(), Risk::Routine);
    let lease = Lease { job: at_work().id, token: token(3) };
    let cut_off = |facts, effects: &[EffectRecord]| {
        let job = JobRecord { attempts: 2, ..at_work() };
        with(facts, 9, |env| end(&job, &lease, AttemptEnd::Interrupted, effects, &rules, env))
            .expect("a live lease")
            .record
    };
    let spent = cut_off(INSIDE, &[record("b", EffectState::Unknown, 3)]);
    assert_eq!((spent.attempts, spent.continues), (2, true));
    assert_eq!(spent.state, JobState::Waiting { due: Wall(34), delay_ms: 25, on: Wait::OldCall(id("b")) });
    for effects in [
        [record("a", EffectState::Confirmed, 3), record("b", EffectState::Unknown, 1)],
        [record("a", EffectState::Unknown, 3), record("b", EffectState::Confirmed, 1)],
        [record("a", EffectState::Confirmed, 1), record("b", EffectState::Confirmed, 3)],
    ] {
        assert_eq!(cut_off(QUIET, &effects).attempts, 1, "{effects:?}");
    }
}
