//! What is wrong with a setup is found before anything runs, with a message that names the mistake and the way out, and before the
//! file is touched.

use super::rig::World;
use onceward::testkit::DiskFactory;
use onceward::{
    Builder, Effect, EffectCard, Error, Fail, IdempotencyKey, Job, JobKey, Outcome, Policy, Recovery, Risk, Setup,
};
use serde::{Deserialize, Serialize};
use std::time::Duration;

const DAY: Duration = Duration::from_secs(24 * 3600);

macro_rules! effect {
    ($name:ident, $shown:literal, $risk:expr, $rule:expr) => {
        #[derive(Serialize, Deserialize)]
        struct $name;
        impl Effect for $name {
            type Result = ();
            const NAME: &'static str = $shown;
            const RISK: Risk = $risk;
            fn says(&self) -> String {
                $shown.into()
            }
            fn recovery() -> Recovery {
                $rule
            }
        }
    };
}
macro_rules! job {
    ($name:ident, $kind:expr, [$($effect:ident),*], $policy:expr) => {
        #[derive(Serialize, Deserialize)]
        struct $name;
        impl Job for $name {
            const KIND: &'static str = $kind;
            fn key(&self) -> JobKey {
                "k".into()
            }
            fn effects() -> Vec<EffectCard> {
                vec![$($effect::card()),*]
            }
            fn policy() -> Policy {
                $policy
            }
        }
    };
}
effect!(Call, "call", Risk::Routine, Recovery::ask());
effect!(Lookup, "lookup", Risk::Routine, Recovery::probe(DAY));
effect!(KeyAndLookup, "key-and-lookup", Risk::Routine, Recovery::same_key(DAY).or_probe(DAY));
effect!(Pay, "pay", Risk::Charge, Recovery::same_key(DAY));
effect!(PayTwice, "pay-twice", Risk::Charge, Recovery::repeat());
effect!(OrderTwice, "order-twice", Risk::Order, Recovery::repeat());
effect!(DeleteTwice, "delete-twice", Risk::BulkDelete, Recovery::repeat());
effect!(MailTwice, "mail-twice", Risk::Email, Recovery::repeat());
effect!(PublishTwice, "publish-twice", Risk::Publish, Recovery::repeat());
effect!(Nameless, "", Risk::Routine, Recovery::ask());
mod other {
    use super::*;
    effect!(Call, "call", Risk::Routine, Recovery::ask());
    pub(super) fn register(b: Builder) -> Builder {
        b.effect(done::<Call>)
    }
}
fn texts() -> Policy {
    Policy::default().success("it is paid").review("nobody knows")
}
job!(Calls, "calls", [Call], Policy::default());
job!(Looks, "looks", [Lookup], Policy::default());
job!(KeysAndLooks, "keys-and-looks", [KeyAndLookup], Policy::default());
job!(Pays, "pays", [Pay], texts());
job!(PaysSilently, "pays-silently", [Pay], Policy::default().review("nobody knows"));
job!(PaysUnseen, "pays-unseen", [Pay], Policy::default().success("it is paid").review("  "));
job!(PaysMutely, "pays-mutely", [Pay], Policy::default());
job!(PaysTwice, "pays-twice", [PayTwice], texts());
job!(OrdersTwice, "orders-twice", [OrderTwice], texts());
job!(DeletesTwice, "deletes-twice", [DeleteTwice], texts());
job!(MailsTwice, "mails-twice", [MailTwice, PublishTwice], texts());
job!(Kindless, "", [], Policy::default());
job!(CallsToo, "calls", [], Policy::default());
#[derive(Serialize, Deserialize)]
struct FormerlyCalls;
impl Job for FormerlyCalls {
    const KIND: &'static str = "rings";
    const ALIASES: &'static [&'static str] = &["calls"];
    fn key(&self) -> JobKey {
        "k".into()
    }
}
job!(NamelessEffect, "nameless-effect", [Nameless], Policy::default());

fn done<E: Effect<Result = ()>>(_: &E, _: &IdempotencyKey) -> Outcome {
    Ok(())
}
fn there<E: Effect<Result = ()>>(_: &E, _: &IdempotencyKey) -> Outcome<Option<()>> {
    Ok(Some(()))
}
fn ok<J: Job>(_: &onceward::Cx, _: J) -> Outcome {
    Ok(())
}

/// Every mistake, its error and the way out in its message; the disk is not touched.
#[test]
fn every_mistake_of_a_setup_is_refused_at_start() {
    type Build = fn(Builder) -> Builder;
    let cases: Vec<(Build, Setup, &str)> = vec![
        (
            |b| b.payload_limit(64 << 20),
            Setup::PayloadLimit { asked: 64 << 20, most: 16 << 20 },
            "use at most 16777216, and keep larger data in a file",
        ),
        (
            |b| b.on(ok::<Calls>),
            Setup::NoPerformer { kind: "calls".into(), effect: "call".into() },
            "the kind \"calls\" declares the effect \"call\", and no performer is registered: add .effect(..) for it",
        ),
        (
            |b| b.on(ok::<Looks>).effect(done::<Lookup>),
            Setup::NoProbe { effect: "lookup".into() },
            "the effect \"lookup\" recovers by asking its provider, and no probe is registered: add .probe(..) for it",
        ),
        (
            |b| b.on(ok::<KeysAndLooks>).effect(done::<KeyAndLookup>),
            Setup::NoProbe { effect: "key-and-lookup".into() },
            "add .probe(..) for it",
        ),
        (
            |b| b.on(ok::<PaysTwice>).effect(done::<PayTwice>),
            Setup::RepeatForbidden { effect: "pay-twice".into() },
            "must not use Recovery::repeat(): a charge, an order or a bulk delete would happen twice",
        ),
        (
            |b| b.on(ok::<OrdersTwice>).effect(done::<OrderTwice>),
            Setup::RepeatForbidden { effect: "order-twice".into() },
            "use same_key, probe or ask",
        ),
        (
            |b| b.on(ok::<DeletesTwice>).effect(done::<DeleteTwice>),
            Setup::RepeatForbidden { effect: "delete-twice".into() },
            "use same_key, probe or ask",
        ),
        (
            |b| b.effect(done::<PayTwice>),
            Setup::RepeatForbidden { effect: "pay-twice".into() },
            "use same_key, probe or ask",
        ),
        (
            |b| b.on(ok::<Pays>).effect(done::<Pay>).key_scope(""),
            Setup::NoKeyScope { effect: "pay".into() },
            "the effect \"pay\" is risky, and there is no key scope: call .key_scope(..) with a name of this installation",
        ),
        (
            |b| b.on(ok::<PaysSilently>).effect(done::<Pay>),
            Setup::NoTexts { kind: "pays-silently".into(), missing: vec!["success"] },
            "say in plain words in Policy::success(..) what is true when it succeeded",
        ),
        (
            |b| b.on(ok::<PaysUnseen>).effect(done::<Pay>),
            Setup::NoTexts { kind: "pays-unseen".into(), missing: vec!["review"] },
            "say in plain words in Policy::review(..) when a person is asked",
        ),
        (
            |b| b.on(ok::<PaysMutely>).effect(done::<Pay>),
            Setup::NoTexts { kind: "pays-mutely".into(), missing: vec!["success", "review"] },
            "in Policy::success(..) what is true when it succeeded, and in Policy::review(..) when a person is asked",
        ),
        (
            |b| b.on(ok::<Calls>).effect(done::<Call>).on(ok::<CallsToo>),
            Setup::KindTwice("calls".into()),
            "the kind \"calls\" (or one of its former names) has two handlers: register one",
        ),
        (
            |b| b.on(ok::<Calls>).effect(done::<Call>).on(ok::<FormerlyCalls>),
            Setup::KindTwice("calls".into()),
            "has two handlers",
        ),
        (
            |b| other::register(b.on(ok::<Calls>).effect(done::<Call>)),
            Setup::EffectTwice { effect: "call".into() },
            "two effects have the name (or former name) \"call\": declare it once, or rename one",
        ),
        (
            |b| b.on(ok::<Kindless>),
            Setup::BadName { what: "kind", name: String::new() },
            "the kind \"\" is empty or too long: give it a name of 1 to 128 bytes",
        ),
        (
            |b| b.on(ok::<NamelessEffect>).effect(done::<Nameless>),
            Setup::BadName { what: "effect", name: String::new() },
            "the effect \"\" is empty or too long",
        ),
    ];
    let n = cases.len();
    for (build, setup, says) in cases {
        let world = World::new();
        match build(world.builder()).start().map(drop) {
            Err(Error::Setup(found)) => {
                assert_eq!(found, setup);
                let text = Error::Setup(found).to_string();
                assert!(text.contains(says), "{text}");
            }
            other => panic!("{setup:?}: {other:?}"),
        }
        assert!(!world.disk.exists(), "{setup:?}: the file was touched");
    }
    println!("{n} mistakes");
    assert!(n >= 15);
}

/// A risky effect needs a key scope also when nobody thought of one at all.
#[test]
fn a_risky_effect_needs_a_key_scope() {
    let disk = onceward::testkit::SimDisk::new();
    let built = onceward::Jobs::on_disk(std::sync::Arc::new(disk)).on(ok::<Pays>).effect(done::<Pay>).start();
    assert!(matches!(built.map(drop), Err(Error::Setup(Setup::NoKeyScope { .. }))));
}

/// What is right is accepted: probes where they are needed, repeat for mail and publishing, an effect that nobody declares.
#[test]
fn a_sound_setup_starts() {
    let world = World::new();
    let jobs = world
        .builder()
        .on(ok::<Calls>)
        .effect(done::<Call>)
        .on(ok::<Looks>)
        .effect(done::<Lookup>)
        .probe(there::<Lookup>)
        .on(ok::<KeysAndLooks>)
        .probe(there::<KeyAndLookup>)
        .effect(done::<KeyAndLookup>)
        .on(ok::<Pays>)
        .effect(done::<Pay>)
        .on(ok::<MailsTwice>)
        .effect(done::<MailTwice>)
        .effect(done::<PublishTwice>)
        .effect(|_: &OrderOnce, _: &IdempotencyKey| Err(Fail::new("nobody declares it")))
        .start()
        .unwrap();
    let id = jobs.enqueue(&Pays).unwrap().id();
    world.settle(&jobs);
    assert_eq!(jobs.state(id).unwrap(), onceward::State::Done);
}
effect!(OrderOnce, "order-once", Risk::Order, Recovery::ask());

/// Without the feature `tokio` an async handler has nowhere to run: refused at start, with the feature's name.
#[cfg(not(feature = "tokio"))]
#[test]
fn an_async_handler_needs_the_feature() {
    let world = World::new();
    let built = world.builder().on_async(|_, _: CallsToo| async { Ok(()) }).start();
    match built.map(drop) {
        Err(e @ Error::NoRuntime(_)) => assert!(e.to_string().contains("enable the feature `tokio`"), "{e}"),
        other => panic!("{other:?}"),
    }
}

/// Whoever keeps what a public call returns in a struct of their own has to be able to write its type: each is at the root of the
/// crate, and what a program sets up with is in the prelude.
#[test]
fn what_public_calls_return_can_be_named() {
    use onceward::prelude::{Message, OnDead, OnStuck, Topic};
    struct Names {
        _rules: fn(&onceward::Policy, &[onceward::EffectCard]) -> onceward::KindRules,
        _token: fn(&onceward::AttemptLine) -> Option<onceward::Token>,
        _outcome: fn(&onceward::AttemptLine) -> onceward::AttemptOutcome,
        _gave_back: fn(&onceward::AttemptLine) -> Option<onceward::GaveBack>,
        _undo: fn(&onceward::Verdict) -> Option<onceward::UndoJob>,
        _firing: fn(&onceward::Jobs) -> Result<Vec<onceward::Firing>, onceward::Error>,
    }
    let names = Names {
        _rules: |policy, cards| policy.resolve(cards),
        _token: |line| line.token,
        _outcome: |line| line.outcome,
        _gave_back: |line| line.given_back,
        _undo: |verdict| match verdict {
            onceward::Verdict::Happened { undo, .. } => undo.clone(),
            _ => None,
        },
        _firing: |jobs| jobs.alerts(),
    };
    assert!((names._rules)(&onceward::Policy::default(), &[]).max_attempts > 0);
    let topic = Topic::default().on_stuck(OnStuck::DeadLetter);
    let policy = onceward::Policy::default().on_dead(OnDead::Undo);
    assert_eq!((policy.resolve(&[]).on_dead, Message::new("t", "1", Vec::new()).id), (OnDead::Undo, "1".to_owned()));
    assert_ne!(format!("{topic:?}"), format!("{:?}", Topic::default()));
}
