//! Nobody walks past an unknown: whatever the handler does with the error, its attempt goes no further, and no job ends as success
//! before every effect it has is accounted for.

use super::{charge, each_mix, effects};
use crate::rig::order::{Ask, Do, Probed, SameKey, Shop, counted};
use crate::rig::provider::Act;
use crate::rig::{MINUTE, is};
use onceward::{EffectState, Fail, Question, State};
use std::sync::Arc;

/// `let _ = cx.effect(..)` and then everything else: the second provider hears nothing, no step, commit or finish is accepted,
/// and Ok(()) is no success. Each of them gets the same stop.
#[test]
fn after_an_unknown_every_later_word_gets_the_same_stop() {
    each_mix(|mix| {
        let shop = Shop::new(mix);
        let script = vec![
            Do::shrug(Do::Charge(500)),
            Do::shrug(Do::Reserve),
            Do::shrug(Do::Mail("a@x")),
            Do::shrug(Do::Step("s")),
            Do::shrug(Do::Commit("c")),
            Do::shrug(Do::Finish),
        ];
        let jobs = shop.open::<Ask, Probed>(script);
        shop.pay.will([Act::Loses]);
        let id = shop.order::<Ask, Probed>(&jobs);
        shop.world.settle(&jobs);
        is(&jobs, id, State::NeedsDecision);
        let stop = "nobody knows whether charge happened: no answer from the provider";
        let seen = shop.seen.all();
        assert_eq!(seen.len(), 7, "{seen:?}");
        assert!(seen[1..].iter().all(|s| s.ends_with(stop)), "{seen:?}");
        assert_eq!((shop.stock.calls().len(), shop.post.calls().len()), (0, 0));
        assert_eq!((counted(&jobs, "c"), counted(&jobs, "finish")), (0, 0));
        assert_eq!(effects(&jobs, id).len(), 1);
    });
}

/// The same while the effect settles: the second claim asks, hears "not there yet", shrugs, and gets no further either.
#[test]
fn after_a_settling_effect_every_later_word_gets_the_same_stop() {
    each_mix(|mix| {
        let shop = Shop::without_keys(mix);
        let script = vec![Do::shrug(Do::Charge(500)), Do::shrug(Do::Reserve), Do::shrug(Do::Commit("c"))];
        let jobs = shop.open::<Probed, Probed>(script);
        shop.pay.will([Act::Vanishes]);
        let id = shop.order::<Probed, Probed>(&jobs);
        shop.world.settle(&jobs);
        is(&jobs, id, State::Waiting);
        assert_eq!((shop.stock.calls().len(), counted(&jobs, "c")), (0, 0));
        shop.world.pass(&jobs, MINUTE);
        is(&jobs, id, State::Done);
        assert_eq!((shop.pay.times(), shop.stock.times(), counted(&jobs, "c")), (1, 1, 1));
    });
}

/// A handler that panics or fails after a shrugged unknown: the unknown decides what follows, not the failure.
#[test]
fn a_panic_after_an_unknown_is_still_the_unknown() {
    each_mix(|mix| {
        for last in [Do::Panic, Do::Fail(|| Fail::permanent("something else"))] {
            let shop = Shop::new(mix);
            let jobs = shop.open::<Ask, Probed>(vec![Do::shrug(Do::Charge(500)), last]);
            shop.pay.will([Act::Loses]);
            let id = shop.order::<Ask, Probed>(&jobs);
            shop.world.settle(&jobs);
            is(&jobs, id, State::NeedsDecision);
            let letter = jobs.dead_letter(id).unwrap();
            assert!(matches!(letter.questions(), [Question::DidItHappen { .. }]), "{:?}", letter.questions());
        }
    });
}

/// Unknown on one provider; the next attempt, with other code, asks another provider first: refused until the first is resolved,
/// and a person is asked about the first. Prevents paying twice by way of two providers.
#[test]
fn no_second_provider_beside_an_unknown_first_one() {
    each_mix(|mix| {
        let shop = Shop::new(mix);
        let jobs = shop.open_with::<SameKey, Probed>(Arc::new(|attempt| match attempt {
            1 => vec![Do::Charge(500)],
            _ => vec![Do::shrug(Do::Reserve), Do::shrug(Do::Charge(500)), Do::shrug(Do::Mail("a@x"))],
        }));
        shop.pay.will([Act::Loses]);
        let id = shop.order::<SameKey, Probed>(&jobs);
        shop.world.settle(&jobs);
        is(&jobs, id, State::Delayed);
        shop.world.pass(&jobs, MINUTE);
        is(&jobs, id, State::NeedsDecision);
        assert_eq!((shop.stock.calls().len(), shop.post.calls().len(), shop.pay.calls().len()), (0, 0, 1));
        let letter = jobs.dead_letter(id).unwrap();
        assert!(matches!(letter.questions(), [Question::DidItHappen { effect }] if effect.name == "charge"));
        let stop = "charge of an earlier attempt has to be settled first: ask for it before another";
        assert!(shop.seen.all()[3..].iter().all(|s| s.ends_with(stop)), "{:?}", shop.seen.all());
    });
}

/// The same for another part of the same name.
#[test]
fn no_other_part_beside_an_unknown_one() {
    each_mix(|mix| {
        let shop = Shop::new(mix);
        let jobs = shop.open_with::<SameKey, Probed>(Arc::new(|attempt| match attempt {
            1 => vec![Do::Mail("a@x")],
            _ => vec![Do::Mail("b@x"), Do::Mail("a@x")],
        }));
        shop.post.will([Act::Loses]);
        let id = shop.order::<SameKey, Probed>(&jobs);
        shop.world.settle(&jobs);
        shop.world.pass(&jobs, MINUTE);
        is(&jobs, id, State::NeedsDecision);
        assert_eq!(shop.post.calls().len(), 1);
    });
}

/// Steps, commits and recorded effects do not ask anybody: they may come before the effect that an earlier attempt left open.
#[test]
fn work_that_asks_nobody_may_come_before_the_open_effect() {
    each_mix(|mix| {
        let shop = Shop::new(mix);
        let script = vec![Do::Reserve, Do::Step("s"), Do::Commit("c"), Do::Charge(500)];
        let jobs = shop.open::<SameKey, Probed>(script);
        shop.pay.will([Act::Loses]);
        let id = shop.order::<SameKey, Probed>(&jobs);
        shop.world.settle(&jobs);
        shop.world.pass(&jobs, MINUTE);
        is(&jobs, id, State::Done);
        assert_eq!((shop.stock.calls().len(), shop.pay.calls().len(), shop.pay.times()), (1, 2, 1));
        assert_eq!(counted(&jobs, "c"), 1);
    });
}

/// A handler that ends, in whatever way, without asking for the effect that an earlier attempt left open: never success, a
/// decision that names it.
#[test]
fn an_effect_that_todays_code_no_longer_reaches_needs_a_decision() {
    each_mix(|mix| {
        for rest in [vec![], vec![Do::Step("s")], vec![Do::Finish], vec![Do::shrug(Do::Finish)]] {
            let shop = Shop::new(mix);
            let later = rest.clone();
            let jobs = shop.open_with::<SameKey, Probed>(Arc::new(move |attempt| match attempt {
                1 => vec![Do::Charge(500)],
                _ => later.clone(),
            }));
            shop.pay.will([Act::Loses]);
            let id = shop.order::<SameKey, Probed>(&jobs);
            shop.world.settle(&jobs);
            shop.world.pass(&jobs, MINUTE);
            is(&jobs, id, State::NeedsDecision);
            let letter = jobs.dead_letter(id).unwrap();
            assert!(matches!(letter.questions(), [Question::DidItHappen { effect }] if effect.name == "charge"));
            assert_eq!(counted(&jobs, "finish"), 0, "finish wrote nothing");
            assert_eq!(charge(&jobs, id), EffectState::Unknown);
        }
    });
}

/// The attempt after an unknown fails before it gets to ask: its own failure counts and is bounded, and the attempt after it
/// asks. One charge.
#[test]
fn a_failure_before_the_open_effect_is_asked_for_counts_as_a_failure() {
    each_mix(|mix| {
        let shop = Shop::new(mix);
        let jobs = shop.open_with::<SameKey, Probed>(Arc::new(|attempt| match attempt {
            2 => vec![Do::Fail(|| Fail::new("the address book is away"))],
            _ => vec![Do::Charge(500)],
        }));
        shop.pay.will([Act::Loses]);
        let id = shop.order::<SameKey, Probed>(&jobs);
        shop.world.settle(&jobs);
        shop.world.pass(&jobs, MINUTE);
        is(&jobs, id, State::Delayed);
        shop.world.pass(&jobs, 5 * MINUTE);
        is(&jobs, id, State::Done);
        assert_eq!((shop.pay.calls().len(), shop.pay.times(), shop.seen.starts()), (2, 1, 3));
    });
}

/// It never asks again: the attempts end, and the letter asks about the charge, not only what now.
#[test]
fn attempts_that_end_beside_an_open_effect_ask_about_it() {
    each_mix(|mix| {
        let shop = Shop::new(mix);
        let jobs = shop.open_with::<SameKey, Probed>(Arc::new(|attempt| match attempt {
            1 => vec![Do::Charge(500)],
            _ => vec![Do::Fail(|| Fail::new("the address book is away"))],
        }));
        shop.pay.will([Act::Loses]);
        let id = shop.order::<SameKey, Probed>(&jobs);
        shop.world.settle(&jobs);
        for minutes in [1, 5, 15] {
            shop.world.pass(&jobs, minutes * MINUTE);
        }
        is(&jobs, id, State::NeedsDecision);
        let letter = jobs.dead_letter(id).unwrap();
        assert!(matches!(letter.questions(), [Question::DidItHappen { .. }, Question::WhatNow]));
        assert_eq!(letter.attempts(), 4);
    });
}
