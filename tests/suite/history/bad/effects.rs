//! Bad histories of effects: I10 to I15, and I29.

use super::*;
use crate::history::effects;

fn id(n: u64) -> JobId {
    JobId::from_number(n)
}

/// Where the call with this number was made.
fn entered(n: u64) -> impl Fn(&What) -> bool {
    move |w| matches!(w, What::Entered { call, .. } if *call == n)
}

/// One more call of an effect at the end, which happens.
fn call_again(c: &mut Case, job: u64, effect: &str, key: &str) {
    let (job, effect, key) = (id(job), effect.to_owned(), key.to_owned());
    c.append(What::Entered { call: 90, job, effect, key, request: 1 });
    c.append(What::Applied { call: 90 });
}

fn set_key(c: &mut Case, n: u64, new: &str) {
    if let What::Entered { key, .. } = c.what(entered(n)) {
        *key = new.into();
    }
}

fn came(c: &mut Case, n: u64, new: Came) {
    *c.what(|w| matches!(w, What::Returned { call, .. } if *call == n)) = What::Returned { call: n, came: new };
}

/// A call without a durable intent (I10).
#[test]
fn a_call_without_an_intent_is_rejected() {
    rejected(
        effects::i10,
        &[
            ("called 1 times without an intent", |c| c.job(8).effects.clear()),
            ("2 times, 1 intents are known", |c| c.effect(1, "charge").calls = 1),
        ],
    );
}

/// A confirmed effect is called again: after a restart, after a replay (I11). A person may have said that it did not happen.
#[test]
fn a_confirmed_effect_that_is_called_again_is_rejected() {
    rejected(
        effects::i11,
        &[
            ("was confirmed", |c| call_again(c, 8, "charge", "k6")),
            ("was confirmed", |c| {
                c.append(What::Acting { act: 9, job: Some(id(8)), deed: Deed::Decide(did_not_happen("wire", false)) });
                call_again(c, 8, "charge", "k6");
            }),
            ("was confirmed", |c| {
                c.append(What::Acting {
                    act: 9,
                    job: Some(id(8)),
                    deed: Deed::Decide(did_not_happen("charge", false)),
                });
                c.append(What::Acted { act: 9, done: Some(false) });
                call_again(c, 8, "charge", "k6");
            }),
        ],
    );
    let mut case = story();
    case.append(What::Acting { act: 9, job: Some(id(8)), deed: Deed::Decide(did_not_happen("charge", false)) });
    call_again(&mut case, 8, "charge", "k6");
    effects::i11(&View::of(&case.history, &case.jobs).unwrap()).unwrap();
}

/// Two confirmations, one that is forgotten, one of something that never happened (I12).
#[test]
fn a_second_confirmation_is_rejected() {
    rejected(
        effects::i12,
        &[
            ("was confirmed as op, and as other", |c| {
                let told = Told::Done("other".into());
                c.append(What::EffectTold { job: id(8), token: 306, effect: "charge".into(), told });
            }),
            ("was confirmed and is Unknown", |c| c.effect(8, "charge").state = EffectState::Unknown),
            ("and it never happened", |c| c.remove(|w| matches!(w, What::Applied { call: 9 | 10 }))),
            ("and it never happened", |c| c.job(9).effects.push(confirmed("charge", "k9", 1, 1))),
        ],
    );
}

/// An unknown effect is repeated: past the life of its key, with another key, before the settle time, without having asked, without a
/// person (I13).
#[test]
fn a_blind_repeat_is_rejected() {
    rejected(
        effects::i13,
        &[
            ("nothing allowed to repeat it", |c| set_key(c, 2, "k9")),
            ("nothing allowed to repeat it", |c| {
                let at = c.at(entered(2));
                let hours = 3 * 3_600 * 1_000;
                c.history.events[at - 1..].iter_mut().filter(|e| e.life == 1).for_each(|e| e.now.mono.0 += hours);
            }),
            ("nothing allowed to repeat it", |c| c.remove(|w| matches!(w, What::Probing { .. } | What::Probed { .. }))),
            ("nothing allowed to repeat it", |c| {
                *c.what(|w| matches!(w, What::Probed { .. })) = What::Probed { probe: 1, said: Said::CannotTell };
            }),
            ("nothing allowed to repeat it", |c| {
                // Asked a second too early.
                let at = c.at(|w| matches!(w, What::Probing { .. }));
                c.history.events[at].now.mono.0 -= 1_000;
                c.history.events[at - 1].now.mono.0 -= 1_000;
                c.history.events[at - 2].now.mono.0 -= 1_000;
            }),
            ("nothing allowed to repeat it", |c| {
                // Asked while the earlier call was still under way: it returned only after that.
                let at = c.at(|w| matches!(w, What::Returned { call: 7, .. }));
                let returned = c.history.events.remove(at);
                let probed = c.at(|w| matches!(w, What::Probed { .. }));
                c.history.events.insert(probed, returned);
            }),
            ("nothing allowed to repeat it", |c| {
                // It was refused once, and is called again after a call that has no answer.
                call_again(c, 1, "wire", "k3");
            }),
        ],
    );
}

/// What the law of repeats allows: the same key after a kill, a person's "no", a calendar that stood still (I13).
#[test]
fn an_allowed_repeat_is_accepted() {
    let accepted = |spoil: &dyn Fn(&mut Case)| {
        let mut case = story();
        spoil(&mut case);
        effects::i13(&View::of(&case.history, &case.jobs).unwrap()).map(drop)
    };
    accepted(&|c| call_again(c, 1, "charge", "k1")).unwrap();
    accepted(&|c| {
        c.append(What::Acting { act: 9, job: Some(id(1)), deed: Deed::Decide(did_not_happen("wire", false)) });
        call_again(c, 1, "wire", "k3");
    })
    .unwrap();
    // Hours later the key is over, unless nobody can tell that because the calendar stood still.
    let later = |c: &mut Case, clocks| {
        let at = c.at(|w| matches!(w, What::Started { boot: 2, .. }));
        c.history.events[at].what = What::Started { boot: 2, review: false, clocks, down_ms: 3 * 3_600_000 };
        call_again(c, 1, "charge", "k1");
    };
    assert!(accepted(&|c| later(c, true)).unwrap_err().contains("nothing allowed"));
    accepted(&|c| later(c, false)).unwrap();
}

/// Another key without a reason, two effects with one key, two requests under one (I14).
#[test]
fn a_key_that_changes_is_rejected() {
    rejected(
        effects::i14,
        &[
            ("got another key", |c| set_key(c, 2, "k9")),
            ("got another key", |c| came(c, 3, Came::NotSent)),
            ("share a key", |c| set_key(c, 9, "k1")),
            ("two different requests", |c| {
                if let What::Entered { request, .. } = c.what(entered(2)) {
                    *request = 2;
                }
            }),
            ("another key than its record's", |c| c.effect(8, "charge").key = "k9".into()),
        ],
    );
}

/// An effect happens twice (I15): not with a liar, and not more often than there were attempts.
#[test]
fn an_effect_that_happened_twice_is_rejected() {
    rejected(
        effects::i15,
        &[
            ("charge of job 1 happened 2 times", |c| c.append(What::Applied { call: 2 })),
            ("mail of job 6 happened 3 times", |c| c.append(What::Applied { call: 6 })),
            ("mail of job 6 happened 2 times", |c| c.job(6).attempts = 1),
            ("charge of job 8 happened 2 times", |c| {
                c.append(What::Acting { act: 9, job: Some(id(8)), deed: Deed::Decide(did_not_happen("wire", true)) });
                call_again(c, 8, "charge", "k6");
            }),
        ],
    );
    let mut case = story();
    case.append(What::Applied { call: 2 });
    case.history.liars.insert("charge".into());
    effects::i15(&View::of(&case.history, &case.jobs).unwrap()).unwrap();
}

/// A success with an effect that nobody is sure of, and an attempt that goes on after a call without an answer (I29).
#[test]
fn a_success_past_a_doubt_is_rejected() {
    rejected(
        effects::i29,
        &[
            ("charge is Unknown", |c| c.effect(1, "charge").state = EffectState::Unknown),
            ("charge is Intended", |c| c.effect(1, "charge").state = EffectState::Intended),
            ("charge is Undone", |c| c.effect(1, "charge").state = EffectState::Undone),
            ("is done, and charge", |c| c.effect(1, "charge").undoing = Undoing::UnderWay),
            ("is done, and charge", |c| c.effect(1, "charge").conflict = true),
            ("went on at", |c| {
                let at = c.at(|w| matches!(w, What::Ended { token: 101, .. }));
                let memo = Memo::Told(b"1".to_vec());
                let name = "draw".to_owned();
                c.insert(at, What::Remember { job: id(1), token: 101, name, commit: false, memo });
            }),
            ("went on at", |c| {
                let at = c.at(|w| matches!(w, What::Ended { token: 101, .. }));
                let told = Told::Done("op".into());
                c.insert(at, What::EffectTold { job: id(1), token: 101, effect: "wire".into(), told });
            }),
            ("went on to call wire", |c| {
                let at = c.at(|w| matches!(w, What::Ended { token: 101, .. }));
                let (effect, key) = ("wire".to_owned(), "k2".to_owned());
                c.insert(at, What::Entered { call: 91, job: id(1), effect, key, request: 1 });
                c.insert(at, What::EffectAsked { job: id(1), token: 101, effect: "wire".into() });
            }),
            ("ended as done by a handler with an effect", |c| {
                came(c, 8, Came::ToNothing);
                let told = What::EffectTold { job: id(7), token: 304, effect: "book".into(), told: Told::Failed };
                *c.what(|w| matches!(w, What::EffectTold { token: 304, .. })) = told;
            }),
        ],
    );
}
