//! Which record an effect has: name and part within the job, declared or not, renamed or not; and the key its provider gets.

use super::{charge, each_mix, effects, one_key};
use crate::rig::order::{Ask, Charge, Do, Mail, Order, Probed, Refund, Reserve, Rule, SameKey, Shop};
use crate::rig::provider::Act;
use crate::rig::{MINUTE, World, is};
use onceward::{
    Decision, Effect, EffectCard, EffectState, Job, JobKey, Jobs, Policy, Question, Recovery, Risk, State, Why,
};
use serde::{Deserialize, Serialize};
use std::marker::PhantomData;
use std::sync::{Arc, Mutex};

/// A loop over recipients with one effect name and no part: the second one is a typed error that says what to do, not a
/// swallowed mail.
#[test]
fn one_name_twice_in_one_attempt_is_an_error_that_names_part() {
    each_mix(|mix| {
        for (twice, says) in [
            (
                Do::Charge(500),
                "the effect \"charge\" was asked for twice in one attempt: give each request a part() of its own",
            ),
            (Do::Mail("a@x"), "the effect \"mail/a@x\" was asked for twice in one attempt: give each request a part()"),
            (Do::Step("s"), "the step or commit \"s\" was asked for twice in one attempt: give each a name of its own"),
            (
                Do::Commit("c"),
                "the step or commit \"c\" was asked for twice in one attempt: give each a name of its own",
            ),
        ] {
            let shop = Shop::new(mix);
            let jobs = shop.open::<SameKey, Probed>(vec![twice.clone(), twice]);
            let id = shop.order::<SameKey, Probed>(&jobs);
            shop.world.settle(&jobs);
            is(&jobs, id, State::Dead);
            let letter = jobs.dead_letter(id).unwrap();
            assert_eq!(letter.why(), Why::Permanent);
            assert!(letter.error().starts_with(says), "{}", letter.error());
            assert!(shop.pay.times() <= 1 && shop.post.times() <= 1);
        }
    });
}

/// With a part of its own each mail is sent once, over retries too.
#[test]
fn each_part_happens_once() {
    each_mix(|mix| {
        let shop = Shop::new(mix);
        let script = vec![Do::Mail("a@x"), Do::Mail("b@x"), Do::Charge(500), Do::Mail("c@x")];
        let jobs = shop.open::<SameKey, Probed>(script);
        shop.pay.will([Act::Refuses]);
        let id = shop.order::<SameKey, Probed>(&jobs);
        shop.world.settle(&jobs);
        shop.world.pass(&jobs, MINUTE);
        is(&jobs, id, State::Done);
        assert_eq!((shop.post.calls().len(), shop.post.times()), (3, 3));
        let keys = shop.post.keys();
        assert!(keys[0] != keys[1] && keys[1] != keys[2] && keys[0] != keys[2], "every part has a key of its own");
    });
}

/// An effect that the kind did not declare is refused at the call, before anything is stored or sent.
#[test]
fn an_undeclared_effect_is_refused_at_the_call() {
    #[derive(Serialize, Deserialize)]
    struct Sneaky;
    impl Job for Sneaky {
        const KIND: &'static str = "sneaky";
        fn key(&self) -> JobKey {
            "k".into()
        }
    }
    let shop = Shop::new(super::mixes()[0]);
    let jobs = shop
        .builder::<SameKey, Probed>(Arc::new(|_| vec![]))
        .on(|cx, _: Sneaky| cx.effect(Mail { order: 1, to: "a@x".into() }).map(|_| ()))
        .start()
        .unwrap();
    let id = jobs.enqueue(&Sneaky).unwrap().id();
    shop.world.settle(&jobs);
    is(&jobs, id, State::Dead);
    let letter = jobs.dead_letter(id).unwrap();
    assert_eq!(
        letter.error(),
        "the kind \"sneaky\" did not declare the effect \"mail\": add Mail::card() to its effects()"
    );
    assert_eq!(letter.why(), Why::Permanent);
    assert!(jobs.ledger(id).unwrap().is_empty() && shop.post.calls().is_empty());
}

/// The key is 64 hexadecimal digits, the same for every call, and the letter shows it, so that a person can look it up.
#[test]
fn the_key_is_stored_and_shown() {
    each_mix(|mix| {
        let shop = Shop::new(mix);
        let jobs = shop.open::<Ask, Probed>(vec![Do::Charge(500)]);
        shop.pay.will([Act::Loses]);
        let id = shop.order::<Ask, Probed>(&jobs);
        shop.world.settle(&jobs);
        let key = shop.pay.keys().remove(0);
        assert!(key.len() == 64 && key.bytes().all(|b| b.is_ascii_hexdigit()), "{key}");
        assert_eq!(jobs.dead_letter(id).unwrap().ledger()[0].idempotency_key, key);
    });
}

fn keys_of(scope: &str, orders: &[u64]) -> Vec<String> {
    let shop = Shop::new(super::mixes()[0]);
    let jobs = shop.builder::<SameKey, Probed>(Arc::new(|_| vec![Do::Charge(500)])).key_scope(scope).start().unwrap();
    for order in orders {
        let id = jobs.enqueue(&Order::<SameKey, Probed>::number(*order)).unwrap().id();
        shop.world.settle(&jobs);
        is(&jobs, id, State::Done);
    }
    shop.pay.keys()
}

/// Two installations that share a provider account do not share keys; the same one computes the same ones.
#[test]
fn the_scope_is_part_of_the_key() {
    let (a, b) = (keys_of("shop of Ann", &[1, 2]), keys_of("shop of Bob", &[1, 2]));
    assert_eq!(a, keys_of("shop of Ann", &[1, 2]));
    let all: std::collections::HashSet<&String> = a.iter().chain(&b).collect();
    assert_eq!(all.len(), 4);
}

/// A finished intent is deliberately run again: a new incarnation, new keys, and it really happens again. Within it everything
/// is once, as before.
#[test]
fn running_again_is_a_new_incarnation_with_new_keys() {
    each_mix(|mix| {
        let shop = Shop::new(mix);
        let jobs = shop.open::<SameKey, Probed>(vec![Do::Charge(500), Do::Reserve]);
        let id = shop.order::<SameKey, Probed>(&jobs);
        shop.world.settle(&jobs);
        is(&jobs, id, State::Done);
        shop.pay.will([Act::Loses]);
        let again = jobs.run_again(&Order::<SameKey, Probed>::number(1)).unwrap();
        shop.world.settle(&jobs);
        shop.world.pass(&jobs, MINUTE);
        is(&jobs, again, State::Done);
        assert_ne!(again, id);
        let keys = shop.pay.keys();
        assert_eq!((keys.len(), shop.pay.times(), shop.stock.times()), (3, 2, 2));
        assert_ne!(keys[0], keys[1]);
        assert_eq!(keys[1], keys[2]);
    });
}

/// The card is declined for good, the customer fixes it, an operator replays the job: a new generation, a new key, one charge.
#[test]
fn a_declined_card_is_charged_once_after_a_replay() {
    each_mix(|mix| {
        let shop = Shop::new(mix);
        let jobs = shop.open::<SameKey, Probed>(vec![Do::Charge(500), Do::Reserve]);
        shop.pay.will([Act::RefusesForGood]);
        let id = shop.order::<SameKey, Probed>(&jobs);
        shop.world.settle(&jobs);
        is(&jobs, id, State::Dead);
        let letter = jobs.dead_letter(id).unwrap();
        jobs.decide(&letter, Decision::try_again().by("ann", "the card was replaced")).unwrap();
        shop.world.settle(&jobs);
        is(&jobs, id, State::Done);
        let keys = shop.pay.keys();
        assert_eq!((keys.len(), shop.pay.times(), shop.stock.times()), (2, 1, 1));
        assert_ne!(keys[0], keys[1]);
    });
}

/// The app renames the kind and the effect between two versions while a charge is unknown: the former names make it the same
/// job and the same record, with the same key. One charge.
#[test]
fn a_rename_with_aliases_keeps_record_and_key() {
    #[derive(Serialize, Deserialize)]
    struct Purchase {
        order: u64,
    }
    impl Job for Purchase {
        const KIND: &'static str = "purchase";
        const ALIASES: &'static [&'static str] = &["order"];
        fn key(&self) -> JobKey {
            format!("ord_{}", self.order).into()
        }
        fn effects() -> Vec<EffectCard> {
            vec![Payment::card(), Reserve::<Probed>::card()]
        }
        fn policy() -> Policy {
            Policy::default().success("paid").review("unknown")
        }
    }
    #[derive(Serialize, Deserialize)]
    struct Payment {
        order: u64,
        cents: u64,
    }
    impl Effect for Payment {
        type Result = String;
        const NAME: &'static str = "payment";
        const ALIASES: &'static [&'static str] = &["charge"];
        const RISK: Risk = Risk::Charge;
        fn says(&self) -> String {
            "Pay".into()
        }
        fn recovery() -> Recovery {
            SameKey::recovery()
        }
    }
    let mut told = 0;
    for mix in super::mixes() {
        let shop = Shop::new(mix);
        let jobs = shop.open::<SameKey, Probed>(vec![Do::Charge(500)]);
        shop.pay.will([Act::Loses]);
        let id = shop.order::<SameKey, Probed>(&jobs);
        shop.world.settle(&jobs);
        assert_eq!(charge(&jobs, id), EffectState::Unknown);
        let _ = jobs.shutdown(MINUTE).unwrap();
        let life = &shop.world.life;
        let jobs = shop
            .world
            .builder()
            .effect(shop.pay.performs::<Payment>(life))
            .effect(shop.stock.performs::<Reserve<Probed>>(life))
            .probe(shop.stock.tells::<Reserve<Probed>>(life))
            .on(|cx, job: Purchase| {
                cx.effect(Payment { order: job.order, cents: 500 })?;
                cx.effect(Reserve::<Probed> { order: job.order, rule: PhantomData })?;
                Ok(())
            })
            .start()
            .unwrap();
        let known = jobs.enqueue(&Purchase { order: 1 }).unwrap();
        assert!(!known.is_new() && known.id() == id, "{known:?}");
        shop.world.pass(&jobs, MINUTE);
        is(&jobs, id, State::Done);
        assert_eq!((shop.pay.calls().len(), shop.pay.times()), (2, 1));
        one_key(&shop.pay.keys());
        assert_eq!(effects(&jobs, id)[0], ("charge".to_owned(), EffectState::Confirmed), "the record keeps its name");
        told += 1;
    }
    println!("{told} mixes");
    assert!(told > 0);
}

/// The next version of the app does not declare the charge any more, whatever became of it: the job is not run past the record,
/// a person is asked; the handler is not called at all.
#[test]
fn a_record_that_nobody_declares_any_more_is_not_run_past() {
    #[derive(Serialize, Deserialize)]
    struct Slim {
        order: u64,
    }
    impl Job for Slim {
        const KIND: &'static str = "order";
        fn key(&self) -> JobKey {
            format!("ord_{}", self.order).into()
        }
    }
    let mut told = 0;
    for (act, then) in [(Act::Loses, vec![]), (Act::Does, vec![Do::Fail(|| onceward::Fail::new("later"))])] {
        let shop = Shop::new(super::mixes()[0]);
        let mut script = vec![Do::Charge(500)];
        script.extend(then);
        let jobs = shop.open::<SameKey, Probed>(script);
        shop.pay.will([act]);
        let id = shop.order::<SameKey, Probed>(&jobs);
        shop.world.settle(&jobs);
        is(&jobs, id, State::Delayed);
        let _ = jobs.shutdown(MINUTE).unwrap();
        let ran = Arc::new(Mutex::new(0));
        let count = ran.clone();
        let jobs = shop
            .world
            .builder()
            .on(move |_, _: Slim| {
                *count.lock().unwrap() += 1;
                Ok(())
            })
            .start()
            .unwrap();
        shop.world.pass(&jobs, MINUTE);
        is(&jobs, id, State::NeedsDecision);
        let letter = jobs.dead_letter(id).unwrap();
        assert!(
            letter.questions().iter().any(|q| matches!(q, Question::Undeclared { effect } if effect.name == "charge")),
            "{:?}",
            letter.questions()
        );
        assert_eq!((*ran.lock().unwrap(), shop.pay.calls().len()), (0, 1));
        told += 1;
    }
    assert_eq!(told, 2);
}

/// Two kinds may use the same key: each has its own job, and the charges have keys of their own.
#[test]
fn two_kinds_with_one_key_do_not_share_a_charge() {
    #[derive(Serialize, Deserialize)]
    struct Gift {
        order: u64,
    }
    impl Job for Gift {
        const KIND: &'static str = "gift";
        fn key(&self) -> JobKey {
            format!("ord_{}", self.order).into()
        }
        fn effects() -> Vec<EffectCard> {
            vec![Charge::<SameKey>::card()]
        }
        fn policy() -> Policy {
            Policy::default().success("paid").review("unknown")
        }
    }
    let shop = Shop::new(super::mixes()[0]);
    let jobs = shop
        .builder::<SameKey, Probed>(Arc::new(|_| vec![Do::Charge(500)]))
        .on(|cx, job: Gift| {
            cx.effect(Charge::<SameKey> { order: job.order, cents: 500, rule: PhantomData })?;
            Ok(())
        })
        .start()
        .unwrap();
    let (a, b) = (shop.order::<SameKey, Probed>(&jobs), jobs.enqueue(&Gift { order: 1 }).unwrap());
    assert!(b.is_new());
    shop.world.settle(&jobs);
    is(&jobs, a, State::Done);
    is(&jobs, b.id(), State::Done);
    let keys = shop.pay.keys();
    assert!(keys.len() == 2 && keys[0] != keys[1]);
    assert_eq!(shop.pay.times(), 2);
}

/// What undoes an effect is stored with its intent and completed by its result: the letter shows it.
#[test]
fn the_undo_is_stored_with_the_intent() {
    each_mix(|mix| {
        let shop = Shop::new(mix);
        let jobs = shop.open::<Ask, Probed>(vec![Do::Charge(500)]);
        shop.pay.will([Act::Loses]);
        let id = shop.order::<Ask, Probed>(&jobs);
        shop.world.settle(&jobs);
        let letter = jobs.dead_letter(id).unwrap();
        // A job of its own, beside a refund that the customer asked for.
        let (kind, key) = letter.ledger()[0].undo.clone().unwrap();
        assert_eq!(kind, Refund::KIND);
        assert!(key.starts_with("undo/") && key != Refund { order: 1, charge: None }.key().to_string(), "{key}");
    });
}

/// Two effects asked for at the same time under one name: one is an error that names `part`, and the provider is called once.
#[cfg(feature = "tokio")]
#[test]
fn one_name_twice_at_the_same_time_is_an_error_too() {
    use crate::rig::join;
    let world = World::new();
    let shop = Shop { world, ..Shop::new(super::mixes()[7]) };
    let errors = Arc::new(Mutex::new(Vec::new()));
    let said = errors.clone();
    let life = &shop.world.life;
    let jobs: Jobs = shop
        .world
        .builder()
        .on(|_, _: crate::rig::order::Refund| Ok(()))
        .effect_async(shop.pay.performs_async::<Charge<SameKey>>(life))
        .effect_async(shop.stock.performs_async::<Reserve<Probed>>(life))
        .probe_async(shop.stock.tells_async::<Reserve<Probed>>(life))
        .effect_async(shop.post.performs_async::<Mail>(life))
        .on_async(move |cx, job: Order<SameKey, Probed>| {
            let said = said.clone();
            async move {
                let ask = || cx.effect(Charge::<SameKey> { order: job.order, cents: 500, rule: PhantomData });
                let mail = |to: &str| cx.effect(Mail { order: job.order, to: to.to_owned() });
                let (a, b) = join(ask(), ask()).await;
                said.lock().unwrap().extend([a.err().map(|e| e.to_string()), b.err().map(|e| e.to_string())]);
                let (c, d) = join(mail("a@x"), mail("b@x")).await;
                c.and(d).map(|_| ())
            }
        })
        .start()
        .unwrap();
    let id = shop.order::<SameKey, Probed>(&jobs);
    shop.world.settle(&jobs);
    is(&jobs, id, State::Done);
    let errors = errors.lock().unwrap().clone();
    assert_eq!(errors.iter().flatten().count(), 1, "{errors:?}");
    assert!(errors.iter().flatten().all(|e| e.contains("part()")), "{errors:?}");
    assert_eq!((shop.pay.calls().len(), shop.post.times()), (1, 2));
}
