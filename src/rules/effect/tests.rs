//! What a handler is told that asks for an effect: its record, a call, or a stop, and what that costs.
//!
//! Each test crosses one bound, so that a comparison turned round cannot pass; the combinations are those of `states` and `explore`.

use super::*;
use crate::model::effect::Recovery;
use crate::rules::fixture::{QUIET, job, key, kind, ms, record, request, token, with};

/// What is done is returned on any disk; what has to be recorded begins only where that fits.
#[test]
fn no_effect_begins_that_could_not_be_recorded() {
    let (done, open) = (record("a", EffectState::Confirmed, 1), record("a", EffectState::Unknown, 1));
    for (room, routine, risky) in [(Room::Normal, true, true), (Room::Low, true, false), (Room::Critical, false, false)]
    {
        for old in [None, Some(&open)] {
            assert_eq!(has_room(old, Risk::Routine, room), routine, "{room:?}");
            assert_eq!(has_room(old, Risk::Charge, room), risky, "{room:?}");
        }
        assert!(has_room(Some(&done), Risk::Charge, room), "{room:?}");
    }
}

/// What the claim 3 is told when it asks for `a`; as its second claim of one attempt if `continuing`.
fn begun(old: &EffectRecord, same: Same, continuing: bool) -> Begin {
    let mut job = job(JobState::Running { token: token(3), continuing });
    (job.attempts, job.effects, job.given_back.settled) = (1, 1, 1);
    let (lease, rules) =
        (Lease { job: job.id, token: token(3) }, kind(Recovery::same_key(ms(300)), Recovery::ask(), Risk::Charge));
    let fresh = |generation| key("a", generation);
    with(QUIET, 9, |env| begin(&job, &lease, Some(old), same, &request("a"), &[], &rules, env, &fresh))
        .expect("a live lease")
}

/// A changed request to pay is asked about, unless a person accepted it; what is harmless returns its record. Either way the
/// handler hears that it asks for something else now.
#[test]
fn a_confirmed_effect_returns_its_record_or_a_question() {
    for (same, risk, accept_changed, expected) in [
        (Same::Yes, Risk::Charge, false, Some(false)),
        (Same::No, Risk::Charge, false, None),
        (Same::No, Risk::Charge, true, Some(true)),
        (Same::No, Risk::Routine, false, Some(true)),
        (Same::Unreadable, Risk::Charge, false, Some(true)),
    ] {
        let old = EffectRecord { risk, accept_changed, ..record("a", EffectState::Confirmed, 1) };
        match (begun(&old, same, false), expected) {
            (Begin::Recorded { differs, .. }, Some(expected)) => assert_eq!(differs, expected, "{same:?} {risk:?}"),
            (Begin::Stop(Stop::Ask(Question::RequestChanged { .. })), None) => {}
            (other, _) => panic!("{same:?} {risk:?} {accept_changed}: {other:?}"),
        }
    }
    // Before it happened a change matters whatever the risk, and only a person can accept it.
    for accept_changed in [false, true] {
        let unsent = record("a", EffectState::Refused(NotHappened::NotSent), 1);
        let old = EffectRecord { risk: Risk::Routine, accept_changed, ..unsent };
        assert_eq!(matches!(begun(&old, Same::No, false), Begin::Call { .. }), accept_changed);
    }
}

/// Calling again is an attempt of its own; only the first call of what was doubted is not. What never reached the provider begins
/// the life of its key anew.
#[test]
fn calling_again_is_a_new_attempt() {
    let unsent = record("a", EffectState::Refused(NotHappened::NotSent), 1);
    let unknown = record("a", EffectState::Unknown, 1);
    let doubted = EffectRecord { token: Token::first_of(2), reach: Reach::Maybe, ..unknown.clone() };
    let called = EffectRecord { calls: 2, ..doubted.clone() };
    for (old, continuing, attempts, first_call, reach) in [
        (&unsent, false, 1, 9, Reach::Never),
        (&unsent, true, 2, 9, Reach::Never),
        (&unknown, true, 2, 0, Reach::Maybe),
        (&called, true, 2, 0, Reach::Maybe),
        (&doubted, true, 1, 0, Reach::Maybe),
    ] {
        let Begin::Call { change, call } = begun(old, Same::Yes, continuing) else {
            panic!("it may be called: {old:?}")
        };
        let (job, record) = (change.record(), &change.effects()[0]);
        assert_eq!((job.attempts, job.given_back.settled), (attempts, 2 - attempts), "{old:?}");
        assert_eq!((record.first_call, record.reach), (Wall(first_call), reach), "{old:?}");
        assert_eq!((record.attempt, call, job.effects), (attempts, old.calls + 1, 1), "no second record: {old:?}");
        assert_eq!(job.state, JobState::Running { token: token(3), continuing: continuing && attempts == 1 });
    }
}

/// What this very claim called gets no second call, although its key lives; what was refused for good begins anew, whatever was
/// asked for then.
#[test]
fn a_claim_calls_once_and_a_new_request_has_a_new_key() {
    let own = begun(&record("a", EffectState::Unknown, 3), Same::Yes, false);
    assert!(matches!(own, Begin::Stop(Stop::Unknown(effect, _)) if effect.name == "a"));
    let refused = record("a", EffectState::Refused(NotHappened::Said), 1);
    for same in [Same::Yes, Same::No, Same::Unreadable] {
        let Begin::Call { change, .. } = begun(&refused, same, false) else { panic!("a new request: {same:?}") };
        let next = &change.effects()[0];
        assert_eq!((next.generation, &next.key, next.state), (2, &key("a", 2), EffectState::Intended));
    }
}

/// The last attempt may call what was not sent; a claim that only goes on with it may not, for that is one more.
#[test]
fn the_last_attempt_has_its_call() {
    let unsent = record("a", EffectState::Refused(NotHappened::NotSent), 1);
    for continuing in [false, true] {
        let mut job = job(JobState::Running { token: token(3), continuing });
        job.attempts = 2;
        let lease = Lease { job: job.id, token: token(3) };
        let rules = kind(Recovery::ask(), Recovery::ask(), Risk::Charge);
        let fresh = |generation| key("a", generation);
        let begun = with(QUIET, 9, |env| {
            begin(&job, &lease, Some(&unsent), Same::Yes, &request("a"), &[], &rules, env, &fresh)
        });
        let none_left = matches!(&begun, Ok(Begin::Stop(Stop::NoAttemptLeft(_))));
        assert_eq!((matches!(begun, Ok(Begin::Call { .. })), none_left), (!continuing, continuing));
    }
}
