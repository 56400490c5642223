//! What may be done when nobody knows whether it happened: the same key while it lives, the provider's word once it can be
//! believed, or a person.

use super::{charge, each_mix, one_key};
use crate::rig::order::{Ask, Both, Charge, Do, Probed, SameKey, Shop};
use crate::rig::provider::{Act, Says};
use crate::rig::{Crash, DAY, HOUR, MINUTE, SECOND, is};
use onceward::{EffectState, Fail, Question, State, Why};
use std::sync::Arc;

/// Whatever else a performer fails with is unknown: `.transient()`, any `?`, a panic, "permanent". None of them says that it did
/// not happen, and a person is asked. Prevents taking an error for a refusal.
#[test]
fn every_other_failure_of_a_performer_is_unknown() {
    each_mix(|mix| {
        let odd: [Act; 6] = [
            Act::Loses,
            Act::Panics,
            Act::Errs(|| Fail::transient("timeout")),
            Act::Errs(|| Fail::permanent("500")),
            Act::Errs(|| std::io::Error::other("reset").into()),
            Act::Errs(|| Fail::not_yet("not now", SECOND)),
        ];
        for act in odd {
            let shop = Shop::new(mix);
            let jobs = shop.open::<Ask, Probed>(vec![Do::Charge(500)]);
            shop.pay.will([act.clone()]);
            let id = shop.order::<Ask, Probed>(&jobs);
            shop.world.settle(&jobs);
            assert_eq!(charge(&jobs, id), EffectState::Unknown, "{act:?}");
            is(&jobs, id, State::NeedsDecision);
            let letter = jobs.dead_letter(id).unwrap();
            assert_eq!(letter.why(), Why::EffectUnresolved);
            assert!(matches!(letter.questions(), [Question::DidItHappen { effect }] if effect.name == "charge"));
            assert_eq!(letter.headline(), "Did this happen: Charge 500 cents for order 1?");
            assert_eq!(shop.pay.calls().len(), 1);
            shop.world.pass(&jobs, DAY);
            assert_eq!(shop.pay.calls().len(), 1, "nobody calls again by himself");
        }
    });
}

/// The answer of the first call is lost; the retry sends the same key, and the provider drops the repeat. One charge, and the
/// job goes on with its result.
#[test]
fn same_key_calls_again_with_the_same_key() {
    each_mix(|mix| {
        let shop = Shop::new(mix);
        let jobs = shop.open::<SameKey, Probed>(vec![Do::Charge(500), Do::Reserve]);
        shop.pay.will([Act::Loses]);
        let id = shop.order::<SameKey, Probed>(&jobs);
        shop.world.settle(&jobs);
        assert_eq!(charge(&jobs, id), EffectState::Unknown);
        is(&jobs, id, State::Delayed);
        shop.world.pass(&jobs, MINUTE);
        is(&jobs, id, State::Done);
        assert_eq!(shop.pay.calls().len(), 2);
        one_key(&shop.pay.keys());
        assert_eq!((shop.pay.times(), shop.stock.times(), shop.pay.asked()), (1, 1, 0));
        assert_eq!(shop.seen.starts(), 2);
    });
}

/// The first call charges and loses its answer; the second, same key, gets "too many requests", the third no connection. Both
/// speak about their own call only: still unknown, same key, same generation, one charge.
#[test]
fn a_later_no_does_not_resolve_an_earlier_unknown() {
    each_mix(|mix| {
        let shop = Shop::new(mix);
        let jobs = shop.open::<SameKey, Probed>(vec![Do::Charge(500)]);
        shop.pay.will([Act::Loses, Act::RefusesFor(2 * MINUTE), Act::Unreachable]);
        let id = shop.order::<SameKey, Probed>(&jobs);
        shop.world.settle(&jobs);
        shop.world.pass(&jobs, MINUTE);
        assert_eq!((charge(&jobs, id), shop.pay.calls().len()), (EffectState::Unknown, 2));
        shop.world.pass(&jobs, 5 * MINUTE);
        assert_eq!((charge(&jobs, id), shop.pay.calls().len()), (EffectState::Unknown, 3));
        shop.world.pass(&jobs, 15 * MINUTE);
        is(&jobs, id, State::Done);
        assert_eq!(shop.pay.calls().len(), 4);
        one_key(&shop.pay.keys());
        assert_eq!(shop.pay.times(), 1);
    });
}

/// A refusal, then an unknown under the new key, then a refusal under it: the effect is refused only when every call under the
/// key is accounted for.
#[test]
fn refused_needs_every_call_under_the_key_accounted_for() {
    each_mix(|mix| {
        let shop = Shop::new(mix);
        let jobs = shop.open::<SameKey, Probed>(vec![Do::Charge(500)]);
        shop.pay.will([Act::Refuses, Act::Vanishes, Act::Refuses]);
        let id = shop.order::<SameKey, Probed>(&jobs);
        shop.world.settle(&jobs);
        shop.world.pass(&jobs, MINUTE);
        shop.world.pass(&jobs, 5 * MINUTE);
        assert_eq!(charge(&jobs, id), EffectState::Unknown, "the call that vanished may still have happened");
        let keys = shop.pay.keys();
        assert!(keys[0] != keys[1] && keys[1] == keys[2], "{keys:?}");
    });
}

/// The process is away while the key ages. Within nine tenths of its life the key is used again; later it counts as over, and a
/// person is asked. A tenth is margin, because the provider counts too.
#[test]
fn a_key_is_used_for_nine_tenths_of_its_life() {
    each_mix(|mix| {
        for (away, calls_again) in [(21 * HOUR, true), (22 * HOUR, false)] {
            let shop = Shop::new(mix);
            let script = vec![Do::Charge(500)];
            let jobs = shop.open::<SameKey, Probed>(script.clone());
            shop.pay.will([Act::Loses]);
            let id = shop.order::<SameKey, Probed>(&jobs);
            shop.world.settle(&jobs);
            let _ = jobs.shutdown(MINUTE).unwrap();
            shop.world.clock.advance(away);
            let jobs = shop.open::<SameKey, Probed>(script);
            shop.world.settle(&jobs);
            is(&jobs, id, if calls_again { State::Done } else { State::NeedsDecision });
            assert_eq!(shop.pay.calls().len(), if calls_again { 2 } else { 1 });
            assert_eq!(shop.pay.times(), 1);
        }
    });
}

/// Key and probe: after the key's life the provider is asked instead, and its word counts.
#[test]
fn key_and_probe_asks_the_provider_after_the_keys_life() {
    each_mix(|mix| {
        let shop = Shop::new(mix);
        let script = vec![Do::Charge(500), Do::Reserve];
        let jobs = shop.open::<Both, Probed>(script.clone());
        shop.pay.will([Act::Loses]);
        let id = shop.order::<Both, Probed>(&jobs);
        shop.world.settle(&jobs);
        assert_eq!(shop.pay.asked(), 0, "the key comes first");
        let _ = jobs.shutdown(MINUTE).unwrap();
        shop.world.clock.advance(22 * HOUR);
        let jobs = shop.open::<Both, Probed>(script);
        shop.world.settle(&jobs);
        is(&jobs, id, State::Done);
        assert_eq!((shop.pay.calls().len(), shop.pay.asked(), shop.pay.times()), (1, 1, 1));
    });
}

/// A box without a clock battery wakes up three days in the past: by that calendar the key is young, but nobody can know. The
/// key's life counts as over: a person is asked, or the provider.
#[test]
fn a_clock_three_days_in_the_past_ends_the_keys_life() {
    each_mix(|mix| {
        for crash in [Crash::Kill, Crash::Power(1)] {
            let mut shop = Shop::new(mix);
            let script = vec![Do::Charge(500)];
            let jobs = shop.open::<SameKey, Probed>(script.clone());
            shop.pay.will([Act::Loses]);
            let id = shop.order::<SameKey, Probed>(&jobs);
            shop.world.settle(&jobs);
            shop.world.crash(jobs, crash);
            shop.world.clock.jump_wall(-3 * 24 * 3_600_000);
            let jobs = shop.open::<SameKey, Probed>(script);
            shop.world.settle(&jobs);
            shop.world.pass(&jobs, MINUTE);
            is(&jobs, id, State::NeedsDecision);
            assert_eq!((shop.pay.calls().len(), shop.pay.times()), (1, 1));
        }
        let mut shop = Shop::new(mix);
        let script = vec![Do::Charge(500)];
        let jobs = shop.open::<Both, Probed>(script.clone());
        shop.pay.will([Act::Loses]);
        let id = shop.order::<Both, Probed>(&jobs);
        shop.world.settle(&jobs);
        shop.world.crash(jobs, Crash::Power(1));
        shop.world.clock.jump_wall(-3 * 24 * 3_600_000);
        let jobs = shop.open::<Both, Probed>(script);
        shop.world.pass(&jobs, MINUTE);
        is(&jobs, id, State::Done);
        assert_eq!((shop.pay.calls().len(), shop.pay.asked(), shop.pay.times()), (1, 1, 1));
    });
}

/// The calendar steps back an hour and forward again while the queue runs: the first call cannot be dated any more, so its key
/// counts as over. A step forward alone only shortens a key's life.
#[test]
fn a_step_back_of_the_calendar_ends_the_keys_life() {
    each_mix(|mix| {
        let shop = Shop::new(mix);
        let jobs = shop.open::<SameKey, Probed>(vec![Do::Charge(500)]);
        shop.pay.will([Act::Loses]);
        let id = shop.order::<SameKey, Probed>(&jobs);
        shop.world.settle(&jobs);
        shop.world.clock.jump_wall(-3_600_000);
        shop.world.settle(&jobs);
        shop.world.clock.jump_wall(3_600_000);
        shop.world.pass(&jobs, MINUTE);
        is(&jobs, id, State::NeedsDecision);
        assert_eq!(shop.pay.calls().len(), 1);

        let shop = Shop::new(mix);
        let jobs = shop.open::<SameKey, Probed>(vec![Do::Charge(500)]);
        shop.pay.will([Act::Loses]);
        let id = shop.order::<SameKey, Probed>(&jobs);
        shop.world.settle(&jobs);
        shop.world.clock.jump_wall(3_600_000);
        shop.world.settle(&jobs);
        is(&jobs, id, State::Done);
        assert_eq!((shop.pay.calls().len(), shop.pay.times()), (2, 1));
    });
}

/// The call is lost, but it happened: the provider is asked at once and knows it. Nothing has to settle for that, the same
/// attempt goes on, and nothing is called twice.
#[test]
fn found_by_the_probe_counts_at_once() {
    each_mix(|mix| {
        let shop = Shop::without_keys(mix);
        let jobs = shop.open::<Probed, Probed>(vec![Do::Charge(500), Do::Reserve]);
        shop.pay.will([Act::Loses]);
        let id = shop.order::<Probed, Probed>(&jobs);
        shop.world.settle(&jobs);
        is(&jobs, id, State::Done);
        assert_eq!((shop.pay.calls().len(), shop.pay.asked(), shop.pay.times()), (1, 1, 1));
        let counts = jobs.snapshot().unwrap().all;
        assert_eq!((counts.claims_total, counts.attempts_total), (2, 1), "the same attempt went on");
        assert!(shop.seen.all().contains(&"1 charge = \"op_1\"".to_owned()), "{:?}", shop.seen.all());
    });
}

/// The call vanished: "not there" is believed only after the settle time, and only then is it called again, with the same key,
/// as a new attempt. Meanwhile the job waits visibly and holds no worker.
#[test]
fn not_there_is_believed_after_the_settle_time() {
    each_mix(|mix| {
        let shop = Shop::without_keys(mix);
        let jobs = shop.open::<Probed, Probed>(vec![Do::Charge(500)]);
        shop.pay.will([Act::Vanishes]);
        let id = shop.order::<Probed, Probed>(&jobs);
        shop.world.settle(&jobs);
        is(&jobs, id, State::Waiting);
        assert_eq!(shop.pay.asked(), 1, "asked at once: it might have been there");
        shop.world.pass(&jobs, MINUTE - SECOND);
        is(&jobs, id, State::Waiting);
        assert_eq!(shop.pay.calls().len(), 1);
        shop.world.pass(&jobs, SECOND);
        is(&jobs, id, State::Done);
        assert_eq!((shop.pay.calls().len(), shop.pay.asked(), shop.pay.times()), (2, 2, 1));
        one_key(&shop.pay.keys());
        let counts = jobs.snapshot().unwrap().all;
        assert_eq!(counts.attempts_total, 2, "calling again is a new attempt, waiting is none");
    });
}

/// The call times out, a lookup says "not there", the charge lands a second later: a charge that lands in between is found.
/// Prevents the double notification that a payment API was seen to cause.
#[test]
fn a_charge_that_lands_after_the_lookup_is_found() {
    each_mix(|mix| {
        let shop = Shop::without_keys(mix);
        let jobs = shop.open::<Probed, Probed>(vec![Do::Charge(500), Do::Reserve]);
        shop.pay.will([Act::Late]);
        let id = shop.order::<Probed, Probed>(&jobs);
        shop.world.settle(&jobs);
        is(&jobs, id, State::Waiting);
        shop.world.pass(&jobs, SECOND);
        shop.pay.land();
        shop.world.pass(&jobs, MINUTE);
        is(&jobs, id, State::Done);
        assert_eq!((shop.pay.calls().len(), shop.pay.times(), shop.stock.times()), (1, 1, 1));
    });
}

/// The settle time starts anew with every process: how long the old one was quiet before it died, nobody knows.
#[test]
fn the_settle_time_starts_anew_with_the_process() {
    each_mix(|mix| {
        let mut shop = Shop::without_keys(mix);
        let script = vec![Do::Charge(500)];
        let jobs = shop.open::<Probed, Probed>(script.clone());
        shop.pay.will([Act::Vanishes]);
        let id = shop.order::<Probed, Probed>(&jobs);
        shop.world.settle(&jobs);
        shop.world.pass(&jobs, MINUTE - SECOND);
        shop.world.crash(jobs, Crash::Kill);
        shop.world.clock.advance(SECOND);
        let jobs = shop.open::<Probed, Probed>(script);
        shop.world.settle(&jobs);
        is(&jobs, id, State::Waiting);
        assert_eq!(shop.pay.calls().len(), 1);
        shop.world.pass(&jobs, MINUTE);
        is(&jobs, id, State::Done);
        assert_eq!(shop.pay.times(), 1);
    });
}

/// The lookup is down: the provider is asked again on the kind's backoff, no attempt is spent; when it answers, the job goes on.
#[test]
fn a_probe_that_cannot_tell_is_asked_again_without_spending_attempts() {
    each_mix(|mix| {
        let shop = Shop::without_keys(mix);
        let jobs = shop.open::<Probed, Probed>(vec![Do::Charge(500)]);
        shop.pay.will([Act::Loses]);
        shop.pay.will_say([Says::CannotTell, Says::Panics, Says::CannotTell, Says::CannotTell, Says::CannotTell]);
        let id = shop.order::<Probed, Probed>(&jobs);
        shop.world.settle(&jobs);
        for _ in 0..5 {
            is(&jobs, id, State::Waiting);
            assert_eq!(charge(&jobs, id), EffectState::Unknown);
            shop.world.pass(&jobs, 15 * MINUTE);
        }
        is(&jobs, id, State::Done);
        assert_eq!((shop.pay.calls().len(), shop.pay.asked(), shop.pay.times()), (1, 6, 1));
        assert_eq!(jobs.snapshot().unwrap().all.attempts_total, 1);
    });
}

/// The lookup stays down for a day: then a person is asked, with the same single attempt.
#[test]
fn a_probe_that_cannot_tell_for_a_day_ends_with_a_person() {
    each_mix(|mix| {
        let shop = Shop::without_keys(mix);
        let jobs = shop.open::<Probed, Probed>(vec![Do::Charge(500)]);
        shop.pay.will([Act::Loses]);
        shop.pay.will_say(std::iter::repeat_n(Says::CannotTell, 1_000));
        let id = shop.order::<Probed, Probed>(&jobs);
        shop.world.settle(&jobs);
        let asked = || jobs.state(id).unwrap() == State::NeedsDecision;
        let took = shop.world.pass_until(&jobs, 15 * MINUTE, 25 * HOUR, asked);
        assert!(took >= 24 * HOUR, "{took:?}");
        assert_eq!(jobs.dead_letter(id).unwrap().attempts(), 1);
        assert_eq!(shop.pay.calls().len(), 1);
    });
}

/// The charge of the last attempt is lost and the provider knows it: the same attempt continues, reserve and finish run.
#[test]
fn found_on_the_last_attempt_the_same_attempt_continues() {
    each_mix(|mix| {
        let shop = Shop::without_keys(mix);
        let jobs = shop.open_with::<Probed, Probed>(Arc::new(|attempt| match attempt {
            1..=3 => vec![Do::Fail(|| Fail::new("not today"))],
            _ => vec![Do::Charge(500), Do::Reserve, Do::Finish],
        }));
        shop.pay.will([Act::Loses]);
        let id = shop.order::<Probed, Probed>(&jobs);
        shop.world.settle(&jobs);
        for minutes in [1, 5, 15] {
            shop.world.pass(&jobs, minutes * MINUTE);
        }
        is(&jobs, id, State::Done);
        assert_eq!((shop.pay.calls().len(), shop.pay.times(), shop.stock.times()), (1, 1, 1));
        assert_eq!(jobs.snapshot().unwrap().all.attempts_total, 4);
    });
}

/// The last attempt's call vanished and the provider does not know it after the settle time: calling again would be a fifth
/// attempt. A person decides; nothing is called.
#[test]
fn not_there_on_the_last_attempt_is_not_called_again() {
    each_mix(|mix| {
        let shop = Shop::without_keys(mix);
        let jobs = shop.open_with::<Probed, Probed>(Arc::new(|attempt| match attempt {
            1..=3 => vec![Do::Fail(|| Fail::new("not today"))],
            _ => vec![Do::Charge(500)],
        }));
        shop.pay.will([Act::Vanishes]);
        let id = shop.order::<Probed, Probed>(&jobs);
        shop.world.settle(&jobs);
        for minutes in [1, 5, 15] {
            shop.world.pass(&jobs, minutes * MINUTE);
        }
        is(&jobs, id, State::Waiting);
        shop.world.pass(&jobs, MINUTE);
        is(&jobs, id, State::Dead);
        assert_eq!((shop.pay.calls().len(), shop.pay.times()), (1, 0));
        assert_eq!(jobs.dead_letter(id).unwrap().why(), Why::TriesUsedUp);
    });
}

/// A receipt may come twice, but it must come: the mail whose answer was lost is sent again.
#[test]
fn repeat_is_at_least_once() {
    each_mix(|mix| {
        let shop = Shop::new(mix);
        let jobs = shop.open::<SameKey, Probed>(vec![Do::Mail("a@x")]);
        shop.post.will([Act::Loses]);
        let id = shop.order::<SameKey, Probed>(&jobs);
        shop.world.settle(&jobs);
        shop.world.pass(&jobs, MINUTE);
        is(&jobs, id, State::Done);
        assert_eq!(shop.post.times(), 2);
        one_key(&shop.post.keys());
    });
}

/// The retry sends the stored request, and so does the first call: what the handler asks for is encoded once and decoded for
/// every call.
#[test]
fn a_retry_sends_the_stored_request() {
    each_mix(|mix| {
        let shop = Shop::new(mix);
        let jobs = shop.open::<SameKey, Probed>(vec![Do::Charge(500)]);
        shop.pay.will([Act::Loses]);
        let id = shop.order::<SameKey, Probed>(&jobs);
        shop.world.settle(&jobs);
        shop.world.pass(&jobs, MINUTE);
        is(&jobs, id, State::Done);
        let sent: Vec<String> = shop.pay.calls().into_iter().map(|(_, what)| what).collect();
        let request =
            serde_json::to_string(&Charge::<SameKey> { order: 1, cents: 500, rule: std::marker::PhantomData });
        assert_eq!(sent, vec![request.unwrap(); 2]);
    });
}
