//! What is recorded is returned, and the provider is not called again; what was refused may be tried again.

use super::{charge, each_mix, effects, one_key};
use crate::rig::order::{Do, Probed, SameKey, Shop, counted};
use crate::rig::provider::{Act, counts};
use crate::rig::{MINUTE, SECOND, is};
use onceward::{EffectState, Fail, NotHappened, State, Why};
use std::sync::Arc;

/// A job charges, commits, reserves, mails and finishes: each thing happened once, the results came from the providers, and the
/// log has one line. Prevents the simplest way to be wrong.
#[test]
fn a_job_does_each_thing_once() {
    each_mix(|mix| {
        let shop = Shop::new(mix);
        let script = vec![Do::Charge(500), Do::Commit("paid"), Do::Reserve, Do::Mail("a@x"), Do::Finish];
        let jobs = shop.open::<SameKey, Probed>(script);
        let id = shop.order::<SameKey, Probed>(&jobs);
        shop.world.settle(&jobs);
        is(&jobs, id, State::Done);
        let seen = shop.seen.all();
        let expected = ["1 starts", "1 charge = \"op_1\"", "1 paid = ()", "1 reserve = \"op_1\"", "1 mail a@x = Sent"];
        assert_eq!(seen[..5], expected);
        assert_eq!(seen[5..], ["1 finish = ()"]);
        assert_eq!((shop.pay.times(), shop.stock.times(), shop.post.times()), (1, 1, 1));
        assert_eq!((counted(&jobs, "paid"), counted(&jobs, "finish")), (1, 1));
        assert_eq!(shop.world.lines.all().len(), 1);
        assert_eq!(shop.world.lines.all()[0].operation, ["op_1"]);
    });
}

/// The handler fails after the charge and the reservation; its retry gets the recorded results and the providers hear nothing of
/// it. Prevents a second charge by a retry of something else.
#[test]
fn a_retry_gets_the_recorded_result_and_the_provider_is_not_called() {
    each_mix(|mix| {
        let shop = Shop::without_keys(mix);
        let jobs = shop.open_with::<SameKey, Probed>(Arc::new(|attempt| {
            let mut script = vec![Do::Charge(500), Do::Reserve];
            if attempt < 3 {
                script.push(Do::Fail(|| Fail::new("the printer is out of paper")));
            }
            script
        }));
        let id = shop.order::<SameKey, Probed>(&jobs);
        shop.world.settle(&jobs);
        shop.world.pass(&jobs, MINUTE);
        shop.world.pass(&jobs, 5 * MINUTE);
        is(&jobs, id, State::Done);
        assert_eq!(shop.seen.starts(), 3);
        for attempt in 1..=3 {
            assert!(shop.seen.all().contains(&format!("{attempt} charge = \"op_1\"")), "{:?}", shop.seen.all());
        }
        assert_eq!((shop.pay.calls().len(), shop.stock.calls().len()), (1, 1));
        let counts = jobs.snapshot().unwrap().all;
        assert_eq!(counts.duplicate_suppressed_total["effect"], 4);
        assert_eq!(counts.attempts_total, 3);
    });
}

/// Five mails, the third is refused three times: one, two, four and five are sent once, and the row and the message between them are
/// written once. Prevents effects that repeat per attempt.
#[test]
fn five_effects_of_which_the_third_fails_three_times_happen_once_each() {
    each_mix(|mix| {
        let shop = Shop::new(mix);
        let script = vec![
            Do::Mail("1@x"),
            Do::Mail("2@x"),
            Do::Commit("half"),
            Do::Post("posted"),
            Do::Mail("3@x"),
            Do::Mail("4@x"),
            Do::Mail("5@x"),
        ];
        let jobs = shop.open::<SameKey, Probed>(script);
        shop.post.will([Act::Does, Act::Does, Act::Refuses, Act::Refuses, Act::Refuses]);
        let id = shop.order::<SameKey, Probed>(&jobs);
        shop.world.settle(&jobs);
        for minutes in [1, 5, 15] {
            is(&jobs, id, State::Delayed);
            shop.world.pass(&jobs, minutes * MINUTE);
        }
        is(&jobs, id, State::Done);
        assert_eq!(shop.seen.starts(), 4);
        assert_eq!(shop.post.times(), 5);
        assert!(counts(&shop.post.happened()).values().all(|n| *n == 1));
        assert_eq!(shop.post.calls().len(), 8, "five mails and three refusals");
        assert_eq!((counted(&jobs, "half"), counted(&jobs, "posted")), (1, 1));
        let topics = jobs.outbox().topics().unwrap();
        assert_eq!(topics.iter().map(|t| (t.topic.as_str(), t.last_number)).collect::<Vec<_>>(), [("posts", 1)]);
    });
}

/// The provider says no, later yes. Each no is a call of its own: a new generation with a new key, because a provider that
/// remembers keys would say no to the old one for ever.
#[test]
fn a_refused_effect_is_tried_again_with_a_new_key() {
    each_mix(|mix| {
        let shop = Shop::new(mix);
        let jobs = shop.open::<SameKey, Probed>(vec![Do::Charge(500)]);
        shop.pay.will([Act::Refuses, Act::Refuses]);
        let id = shop.order::<SameKey, Probed>(&jobs);
        shop.world.settle(&jobs);
        assert_eq!(charge(&jobs, id), EffectState::Refused(NotHappened::Said));
        is(&jobs, id, State::Delayed);
        shop.world.pass(&jobs, MINUTE);
        shop.world.pass(&jobs, 5 * MINUTE);
        is(&jobs, id, State::Done);
        let keys = shop.pay.keys();
        assert_eq!(keys.len(), 3);
        assert!(keys[0] != keys[1] && keys[1] != keys[2] && keys[0] != keys[2], "{keys:?}");
        assert_eq!(shop.pay.times(), 1);
        assert!(shop.seen.all().contains(&"1 charge ! declined".to_owned()));
    });
}

/// The request never left, twice. That never raises the generation: the third call has the key of the first.
#[test]
fn an_effect_that_was_not_sent_keeps_its_key() {
    each_mix(|mix| {
        let shop = Shop::new(mix);
        let jobs = shop.open::<SameKey, Probed>(vec![Do::Charge(500)]);
        shop.pay.will([Act::Unreachable, Act::Unreachable]);
        let id = shop.order::<SameKey, Probed>(&jobs);
        shop.world.settle(&jobs);
        assert_eq!(charge(&jobs, id), EffectState::Refused(NotHappened::NotSent));
        shop.world.pass(&jobs, MINUTE);
        shop.world.pass(&jobs, 5 * MINUTE);
        is(&jobs, id, State::Done);
        assert_eq!(shop.pay.keys().len(), 3);
        one_key(&shop.pay.keys());
        assert_eq!(shop.pay.times(), 1);
    });
}

/// The provider says "not before 20 minutes": the retry comes then, not after the policy's minute.
#[test]
fn a_refusal_may_say_when_to_come_back() {
    each_mix(|mix| {
        let shop = Shop::new(mix);
        let jobs = shop.open::<SameKey, Probed>(vec![Do::Charge(500)]);
        shop.pay.will([Act::RefusesFor(20 * MINUTE)]);
        let id = shop.order::<SameKey, Probed>(&jobs);
        shop.world.settle(&jobs);
        shop.world.pass(&jobs, 20 * MINUTE - SECOND);
        is(&jobs, id, State::Delayed);
        assert_eq!(shop.pay.calls().len(), 1);
        shop.world.pass(&jobs, SECOND);
        is(&jobs, id, State::Done);
        assert_eq!(shop.pay.times(), 1);
    });
}

/// The provider says no for good: no retry spends another attempt, a person sees it at once.
#[test]
fn a_refusal_for_good_goes_to_a_person_at_once() {
    each_mix(|mix| {
        let shop = Shop::new(mix);
        let jobs = shop.open::<SameKey, Probed>(vec![Do::Charge(500)]);
        shop.pay.will([Act::RefusesForGood]);
        let id = shop.order::<SameKey, Probed>(&jobs);
        shop.world.settle(&jobs);
        is(&jobs, id, State::Dead);
        let letter = jobs.dead_letter(id).unwrap();
        assert_eq!((letter.why(), letter.error(), letter.attempts()), (Why::Permanent, "card stolen", 1));
        assert_eq!(effects(&jobs, id), [("charge".to_owned(), EffectState::Refused(NotHappened::Said))]);
    });
}
