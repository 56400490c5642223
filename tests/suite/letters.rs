//! A person sees what happened, may decide only what can be true, signs it, and nothing that was undecided is ever lost.

use super::rig::order::{Ask, Do, Order, Probed, SameKey, Shop, always, counted, mixes};
use super::rig::provider::Act;
use super::rig::{Crash, DAY, HOUR, MINUTE, is};
use onceward::{
    DeadLetter, Decision, EffectId, EffectState, Enqueued, Entry, Error, Fail, JobId, Jobs, Needs, Question, Refusal,
    Risk, State, Why,
};

/// Tells a story for every mix of blocking and async parts.
fn each_mix(story: impl Fn(Shop)) {
    let mixes = mixes();
    mixes.iter().for_each(|mix| story(Shop::new(*mix)));
    println!("told for {} mixes", mixes.len());
    assert!(!mixes.is_empty());
}

fn usual() -> Vec<Do> {
    vec![Do::Mail("a@x"), Do::Step("s"), Do::Commit("c"), Do::Charge(500), Do::Reserve, Do::Finish]
}

/// An order whose charge nobody knows about.
fn in_doubt(shop: &Shop) -> (Jobs, JobId) {
    let jobs = shop.open::<Ask, Probed>(usual());
    shop.pay.will([Act::Loses]);
    let id = shop.order::<Ask, Probed>(&jobs);
    shop.world.settle(&jobs);
    is(&jobs, id, State::NeedsDecision);
    (jobs, id)
}

fn charge_of(letter: &DeadLetter) -> EffectId {
    letter.ledger().iter().find(|l| l.id.name == "charge").unwrap().id.clone()
}

fn labels(letter: &DeadLetter) -> Vec<String> {
    letter.choices().iter().map(|c| c.label.clone()).collect()
}

/// The letter of an unknown charge: the question in plain words, what is done, what is not sure, what may be decided and what that
/// will and will not do.
#[test]
fn a_letter_shows_what_happened_and_what_may_be_decided() {
    each_mix(|shop| {
        let (jobs, id) = in_doubt(&shop);
        let letters = jobs.dead_letters().unwrap();
        assert_eq!(letters.len(), 1);
        let letter = jobs.dead_letter(id).unwrap();
        assert_eq!((letter.job(), letter.kind(), letter.key(), letter.title()), (id, "order", "ord_1", "Order 1"));
        assert_eq!((letter.why(), letter.attempts()), (Why::EffectUnresolved, 1));
        assert_eq!(letter.headline(), "Did this happen: Charge 500 cents for order 1?");
        assert_eq!(letter.error(), "no answer from the provider");
        assert_eq!(letter.questions(), [Question::DidItHappen { effect: charge_of(&letter) }]);
        let states: Vec<_> = letter.ledger().iter().map(|l| (l.says.as_str(), l.state, l.risk, l.calls)).collect();
        assert!(states.contains(&("Mail a@x about order 1", EffectState::Confirmed, Risk::Email, 1)), "{states:?}");
        assert!(
            states.contains(&("Charge 500 cents for order 1", EffectState::Unknown, Risk::Charge, 1)),
            "{states:?}"
        );
        assert_eq!(
            labels(&letter),
            [
                "Have the provider asked again: Charge 500 cents for order 1",
                "It happened: Charge 500 cents for order 1",
                "It did not happen: Charge 500 cents for order 1"
            ]
        );
        assert_eq!(letter.choices()[0].check(), Some(&charge_of(&letter)), "one list leads to everything");
        assert!(letter.choices()[0].decision().is_none() && letter.choices()[1].decision().is_some());
        assert!(letter.choices()[2].will_not.contains(&"Mail a@x about order 1 is done again".to_owned()));
        assert!(letter.history().iter().any(|e| matches!(e, Entry::Effect { became, .. } if became == "unknown")));
        assert_eq!(letter.history(), jobs.history(id).unwrap());
        assert_eq!(jobs.snapshot().unwrap().gauges.dead_letters, 1);
        assert!(matches!(jobs.dead_letter(JobId::from_number(99)), Err(Error::NoLetter(_))));
    });
}

/// Many letters are listed by job, page by page.
#[test]
fn letters_are_listed_page_by_page() {
    let shop = Shop::new(mixes()[0]);
    let jobs = shop.open::<Ask, Probed>(vec![Do::Fail(|| Fail::permanent("no"))]);
    let ids: Vec<JobId> = (1..=230).map(|n| jobs.enqueue(&Order::<Ask, Probed>::number(n)).unwrap().id()).collect();
    shop.world.settle(&jobs);
    let all: Vec<JobId> = jobs.dead_letters().unwrap().iter().map(DeadLetter::job).collect();
    assert_eq!(all, ids);
    let page = jobs.dead_letters_after(Some(ids[9]), 10).unwrap();
    assert_eq!(page.iter().map(DeadLetter::job).collect::<Vec<_>>(), ids[10..20]);
}

/// "It happened", with the provider's reference: the result is rebuilt from it, and the job goes on in the same attempt; nothing
/// is called again.
#[test]
fn it_happened_with_its_reference() {
    each_mix(|shop| {
        let (jobs, id) = in_doubt(&shop);
        let letter = jobs.dead_letter(id).unwrap();
        let yes = Decision::happened(&charge_of(&letter), Some("op_1")).by("ann", "it is on the statement");
        jobs.decide(&letter, yes).unwrap();
        shop.world.settle(&jobs);
        is(&jobs, id, State::Done);
        assert!(shop.seen.all().contains(&"1 charge = \"op_1\"".to_owned()), "{:?}", shop.seen.all());
        assert_eq!((shop.pay.calls().len(), shop.post.calls().len(), counted(&jobs, "c")), (1, 1, 1));
        let counts = jobs.snapshot().unwrap();
        assert_eq!((counts.all.attempts_total, counts.gauges.dead_letters), (1, 0));
        assert!(matches!(jobs.dead_letter(id), Err(Error::NoLetter(_))));
        let ledger = jobs.ledger(id).unwrap();
        let line = ledger.iter().find(|l| l.id.name == "charge").unwrap();
        assert_eq!((line.state, line.reference.as_deref()), (EffectState::Confirmed, Some("op_1")));
    });
}

/// "It happened", without a reference: a result that has to be text cannot be made up. It is confirmed and lost, and the next
/// question asks for the reference; never a call.
#[test]
fn it_happened_without_a_reference() {
    each_mix(|shop| {
        let (jobs, id) = in_doubt(&shop);
        let letter = jobs.dead_letter(id).unwrap();
        let effect = charge_of(&letter);
        jobs.decide(&letter, Decision::happened(&effect, None).by("ann", "she saw it")).unwrap();
        shop.world.settle(&jobs);
        is(&jobs, id, State::NeedsDecision);
        let letter = jobs.dead_letter(id).unwrap();
        assert_eq!(letter.questions(), [Question::ResultLost { effect: effect.clone() }]);
        assert_eq!(letter.ledger().iter().find(|l| l.id == effect).unwrap().state, EffectState::Confirmed);
        assert!(labels(&letter).contains(&"Somebody took care of it".to_owned()), "{:?}", labels(&letter));
        // The choice says that it takes a reference; without one nothing changes, not even the view.
        let choice = letter.choices().iter().find(|c| c.label.starts_with("It happened")).unwrap();
        assert_eq!(choice.needs, Some(Needs::Reference), "{choice:?}");
        let refused = jobs.decide(&letter, choice.decision().unwrap().by("bob", "she saw it, too")).unwrap_err();
        let needs = Refusal::NeedsReference { effect: effect.clone(), known: None };
        assert!(matches!(&refused, Error::Refused(refusal) if *refusal == needs), "{refused:?}");
        assert!(refused.to_string().contains("with its reference at the provider"), "{refused}");
        let unchanged = jobs.dead_letter(id).unwrap();
        assert_eq!((unchanged.revision(), unchanged.history()), (letter.revision(), letter.history()));
        jobs.decide(&letter, choice.decision().unwrap().with_reference("op_1").by("bob", "found it")).unwrap();
        shop.world.settle(&jobs);
        is(&jobs, id, State::Done);
        assert_eq!(shop.pay.calls().len(), 1);
    });
}

/// A person gave the provider's reference, and the app could not read it: it is kept, and the same is asked. Saying it again changes
/// nothing and is refused. The next version of the app can read it: now the word alone is enough, nobody has to look it up again.
#[test]
fn a_reference_that_is_known_counts_once_the_app_can_read_it() {
    use onceward::{Effect, EffectCard, IdempotencyKey, Job, JobKey};
    use serde::{Deserialize, Serialize};
    macro_rules! version {
        ($name:ident, $read:expr) => {
            #[derive(Clone, Serialize, Deserialize)]
            struct $name;
            impl Effect for $name {
                type Result = String;
                const NAME: &'static str = "parcel";
                fn says(&self) -> String {
                    "Send the parcel".into()
                }
                fn from_reference(&self, reference: &str) -> Option<String> {
                    let read: fn(&str) -> Option<String> = $read;
                    read(reference)
                }
            }
            impl Job for $name {
                const KIND: &'static str = "parcel";
                fn key(&self) -> JobKey {
                    "1".into()
                }
                fn effects() -> Vec<EffectCard> {
                    vec![<Self as Effect>::card()]
                }
            }
        };
    }
    version!(Old, |_| None);
    version!(New, |reference| Some(reference.to_owned()));
    let world = super::rig::World::new();
    let lost = |_: &Old, _: &IdempotencyKey| Err(Fail::new("the line went dead"));
    let jobs = world.builder().on(|cx, job: Old| cx.effect(job).map(drop)).effect(lost).start().unwrap();
    let id = jobs.enqueue(&Old).unwrap().id();
    world.settle(&jobs);
    let parcel = EffectId { name: "parcel".into(), part: String::new() };
    let say = |jobs: &Jobs, reference| {
        let letter = jobs.dead_letter(id).unwrap();
        jobs.decide(&letter, Decision::happened(&parcel, reference).by("ann", "their page says so"))
    };
    say(&jobs, Some("p-7")).unwrap();
    let letter = jobs.dead_letter(id).unwrap();
    assert!(letter.headline().contains("reference p-7"), "{}", letter.headline());
    let choice = letter.choices().iter().find(|c| c.label.starts_with("It happened")).unwrap();
    assert!(choice.needs == Some(Needs::Reference) && choice.will[1].contains("another reference than p-7"));
    for again in [None, Some("p-7")] {
        let refused = say(&jobs, again).unwrap_err();
        let known = Some("p-7".to_owned());
        let needs = Refusal::NeedsReference { effect: parcel.clone(), known };
        assert!(matches!(&refused, Error::Refused(refusal) if *refusal == needs), "{refused:?}");
    }
    assert_eq!(jobs.dead_letter(id).unwrap().revision(), letter.revision(), "nothing was changed");
    say(&jobs, Some("p-8")).unwrap();
    assert_eq!(jobs.ledger(id).unwrap()[0].reference.as_deref(), Some("p-8"), "a better one is kept");
    let _ = jobs.shutdown(MINUTE).unwrap();
    let got = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let told = got.clone();
    let jobs = world
        .builder()
        .on(move |cx, job: New| {
            told.lock().unwrap().push(cx.effect(job)?);
            Ok(())
        })
        .effect(|_: &New, _: &IdempotencyKey| Err(Fail::new("never called again")))
        .start()
        .unwrap();
    let letter = jobs.dead_letter(id).unwrap();
    let choice = letter.choices().iter().find(|c| c.label.starts_with("It happened")).unwrap();
    assert_eq!((choice.needs, choice.will[1].as_str()), (None, "the job goes on"));
    say(&jobs, None).unwrap();
    world.settle(&jobs);
    is(&jobs, id, State::Done);
    assert_eq!(*got.lock().unwrap(), ["p-8"]);
}

/// "It did not happen": called again, with the same key and the stored request, as an attempt that the answer grants.
#[test]
fn it_did_not_happen_keeps_the_key() {
    each_mix(|shop| {
        let jobs = shop.open::<Ask, Probed>(usual());
        shop.pay.will([Act::Vanishes]);
        let id = shop.order::<Ask, Probed>(&jobs);
        shop.world.settle(&jobs);
        let letter = jobs.dead_letter(id).unwrap();
        let no = Decision::did_not_happen(&charge_of(&letter)).by("ann", "not on the statement");
        jobs.decide(&letter, no).unwrap();
        shop.world.settle(&jobs);
        is(&jobs, id, State::Done);
        let keys = shop.pay.keys();
        assert_eq!((keys.len(), shop.pay.times()), (2, 1));
        assert_eq!(keys[0], keys[1]);
        assert_eq!((shop.post.calls().len(), counted(&jobs, "c")), (1, 1));
    });
}

/// The same, with an explicit wish for a new key.
#[test]
fn it_did_not_happen_with_a_new_key() {
    each_mix(|shop| {
        let jobs = shop.open::<Ask, Probed>(usual());
        shop.pay.will([Act::Vanishes]);
        let id = shop.order::<Ask, Probed>(&jobs);
        shop.world.settle(&jobs);
        let letter = jobs.dead_letter(id).unwrap();
        let no = Decision::did_not_happen(&charge_of(&letter)).with_new_key().by("ann", "they forget keys");
        jobs.decide(&letter, no).unwrap();
        shop.world.settle(&jobs);
        is(&jobs, id, State::Done);
        let keys = shop.pay.keys();
        assert_eq!((keys.len(), shop.pay.times()), (2, 1));
        assert_ne!(keys[0], keys[1]);
    });
}

/// Retries ended; "try again" keeps every memory (mail, step, commit are not repeated), runs at once with a higher token, and does
/// not spend the automatic budget: each one is exactly one attempt more.
#[test]
fn try_again_keeps_the_memory_and_does_not_spend_the_budget() {
    each_mix(|shop| {
        let jobs = shop.open::<SameKey, Probed>(usual());
        shop.pay.will(std::iter::repeat_n(Act::Refuses, 6));
        let id = shop.order::<SameKey, Probed>(&jobs);
        shop.world.settle(&jobs);
        for minutes in [1, 5, 15] {
            shop.world.pass(&jobs, minutes * MINUTE);
        }
        for attempts in [4, 5, 6] {
            is(&jobs, id, State::Dead);
            let letter = jobs.dead_letter(id).unwrap();
            assert_eq!((letter.why(), letter.attempts()), (Why::TriesUsedUp, attempts));
            assert_eq!(letter.headline(), "Order 1: every automatic try failed. What now?");
            assert_eq!(
                labels(&letter),
                ["Try again", "Somebody took care of it", "Discard", "Run again from s", "Run again from c"]
            );
            let again = &letter.choices()[0];
            let not = ["s is worked out again", "c is written to the app's tables again"];
            assert!(not.iter().all(|n| again.will_not.iter().any(|w| w == n)), "what is skipped is named: {again:?}");
            let mut stands: Vec<_> = letter.ledger().iter().map(|l| (l.id.name.as_str(), l.standing())).collect();
            stands.sort_unstable();
            assert_eq!(stands, [("charge", "not done"), ("mail", "done")]);
            assert_eq!(letter.not_begun(), ["reserve"]);
            jobs.decide(&letter, Decision::try_again().by("ann", "they are back")).unwrap();
            shop.world.settle(&jobs);
        }
        is(&jobs, id, State::Done);
        assert_eq!((shop.pay.calls().len(), shop.pay.times()), (7, 1));
        assert_eq!((shop.post.calls().len(), counted(&jobs, "c"), counted(&jobs, "finish")), (1, 1, 1));
        let tokens: Vec<u64> = shop.world.lines.all().iter().filter_map(|l| l.token.map(|t| t.number())).collect();
        assert!(tokens.len() == 7 && tokens.windows(2).all(|w| w[0] < w[1]), "{tokens:?}");
        let signed = jobs.history(id).unwrap().iter().filter(|e| matches!(e, Entry::Decision { .. })).count();
        assert_eq!(signed, 3);
    });
}

/// A replay of an order whose deadline passed runs: the person decided that it is not too late.
#[test]
fn try_again_lifts_the_deadline() {
    each_mix(|shop| {
        let jobs = shop.open::<SameKey, Probed>(usual());
        let _ = jobs.shutdown(MINUTE).unwrap();
        let jobs = shop.world.builder().start().unwrap();
        let id = shop.order::<SameKey, Probed>(&jobs);
        let _ = jobs.shutdown(MINUTE).unwrap();
        shop.world.clock.advance(2 * DAY);
        let jobs = shop.open::<SameKey, Probed>(usual());
        shop.world.settle(&jobs);
        is(&jobs, id, State::Dead);
        let letter = jobs.dead_letter(id).unwrap();
        assert_eq!((letter.why(), letter.attempts()), (Why::DeadlinePassed, 0));
        jobs.decide(&letter, Decision::try_again().by("ann", "the customer still wants it")).unwrap();
        shop.world.settle(&jobs);
        is(&jobs, id, State::Done);
    });
}

/// Handled outside and discard need an answer for every unresolved effect first; then they end the job, not as success, and
/// nothing of it runs again.
#[test]
fn ending_a_job_by_hand_needs_every_effect_answered() {
    each_mix(|shop| {
        for (end, state) in [
            (Decision::handled_outside as fn() -> Decision, State::HandledOutside),
            (Decision::discard as fn() -> Decision, State::Discarded),
        ] {
            let shop = Shop::new(shop.mix);
            let (jobs, id) = in_doubt(&shop);
            let letter = jobs.dead_letter(id).unwrap();
            let effect = charge_of(&letter);
            for not_yet in [end(), Decision::try_again()] {
                let refused = jobs.decide(&letter, not_yet.by("ann", "away with it")).unwrap_err();
                assert!(matches!(&refused, Error::Refused(Refusal::Unresolved(open)) if *open == [effect.clone()]));
                assert!(refused.to_string().contains("say first whether these happened: charge"), "{refused}");
            }
            let unchanged = jobs.dead_letter(id).unwrap();
            assert_eq!((unchanged.revision(), unchanged.history()), (letter.revision(), letter.history()));
            jobs.decide(&letter, Decision::happened(&effect, None).by("ann", "she saw it")).unwrap();
            let letter = jobs.dead_letter(id).unwrap();
            jobs.decide(&letter, end().by("ann", "settled by phone")).unwrap();
            shop.world.settle(&jobs);
            is(&jobs, id, state);
            assert!(jobs.dead_letters().unwrap().is_empty());
            assert_eq!((shop.pay.calls().len(), shop.stock.calls().len()), (1, 0));
            shop.world.pass(&jobs, DAY);
            is(&jobs, id, state);
        }
    });
}

/// Handled outside, then run again, while the charge is unknown: refused until it is answered. A discarded order answers
/// "existing"; only running again starts it anew.
#[test]
fn running_again_needs_every_effect_answered() {
    each_mix(|shop| {
        let (jobs, id) = in_doubt(&shop);
        let order = Order::<Ask, Probed>::number(1);
        let refused = jobs.run_again(&order).unwrap_err();
        assert!(matches!(refused, Error::Refused(Refusal::WrongState(State::NeedsDecision))), "{refused:?}");
        let letter = jobs.dead_letter(id).unwrap();
        let no = Decision::did_not_happen(&charge_of(&letter)).by("ann", "not there");
        jobs.pause(onceward::Scope::All, "the test decides").unwrap();
        jobs.decide(&letter, no).unwrap();
        assert_eq!(jobs.state(id).unwrap(), State::Paused);
        jobs.cancel(id).unwrap();
        let known = jobs.enqueue(&order).unwrap();
        assert!(
            matches!(known, Enqueued::Existing { id: same, state: State::Cancelled, differs: false } if same == id)
        );
        jobs.resume(onceward::Scope::All).unwrap();
        let again = jobs.run_again(&order).unwrap();
        shop.world.settle(&jobs);
        is(&jobs, again, State::Done);
        assert_ne!(again, id);
    });
}

/// A decision on an older view is refused, and so is one about a letter that was answered meanwhile: two people cannot decide
/// past each other.
#[test]
fn a_decision_on_an_old_view_is_refused() {
    each_mix(|shop| {
        let (jobs, id) = in_doubt(&shop);
        let (ann, bob) = (jobs.dead_letter(id).unwrap(), jobs.dead_letter(id).unwrap());
        let effect = charge_of(&ann);
        jobs.decide(&ann, Decision::happened(&effect, None).by("ann", "she saw it")).unwrap();
        let refused = jobs.decide(&bob, Decision::did_not_happen(&effect).by("bob", "he did not")).unwrap_err();
        assert!(matches!(refused, Error::Refused(Refusal::Stale { .. })), "{refused:?}");
        assert!(refused.to_string().contains("look at it again and decide anew"), "{refused}");
        assert_eq!(jobs.ledger(id).unwrap().iter().find(|l| l.id == effect).unwrap().state, EffectState::Confirmed);
        let now = jobs.dead_letter(id).unwrap();
        jobs.decide(&now, Decision::handled_outside().by("bob", "by phone")).unwrap();
        let refused = jobs.decide(&now, Decision::discard().by("ann", "too late")).unwrap_err();
        assert!(matches!(refused, Error::Refused(Refusal::Stale { .. })), "{refused:?}");
        assert!(refused.to_string().contains("bob decided: handled outside (by phone)"), "{refused}");
    });
}

/// Who and why are required, and kept in the same commit as the act: after a power cut right behind it both are there.
#[test]
fn every_decision_is_signed() {
    each_mix(|mut shop| {
        let (jobs, id) = in_doubt(&shop);
        let letter = jobs.dead_letter(id).unwrap();
        let yes = || Decision::happened(&charge_of(&letter), Some("op_1"));
        for (unsigned, missing) in [
            (yes(), "name of the person"),
            (yes().by("", "because"), "name of the person"),
            (yes().by("ann", "  "), "reason"),
        ] {
            let refused = jobs.decide(&letter, unsigned).unwrap_err().to_string();
            assert!(refused.contains(missing) && refused.contains("say who does this and why"), "{refused}");
        }
        let refused = jobs.decide(&letter, yes().by("ann", &"x".repeat(5_000))).unwrap_err();
        assert!(matches!(refused, Error::TooBig { limit: 4_096, .. }), "{refused:?}");
        assert_eq!(jobs.dead_letter(id).unwrap().revision(), letter.revision());
        jobs.decide(&letter, yes().by("ann", "it is on the statement")).unwrap();
        shop.world.settle(&jobs);
        shop.world.crash(jobs, Crash::Power(1));
        let jobs = shop.open::<Ask, Probed>(usual());
        let history = jobs.history(id).unwrap();
        let signed = history.iter().find_map(|e| match e {
            Entry::Decision { signed, .. } => Some((signed.who.clone(), signed.why.clone())),
            _ => None,
        });
        assert_eq!(signed, Some(("ann".to_owned(), "it is on the statement".to_owned())));
        shop.world.settle(&jobs);
        is(&jobs, id, State::Done);
        assert_eq!(shop.pay.calls().len(), 1);
    });
}

/// Only what can be true may be decided: a confirmed effect did not "not happen", and about a stranger nothing is asked.
#[test]
fn only_valid_choices_are_accepted() {
    each_mix(|shop| {
        let (jobs, id) = in_doubt(&shop);
        let letter = jobs.dead_letter(id).unwrap();
        let mail = letter.ledger().iter().find(|l| l.id.name == "mail").unwrap().id.clone();
        let stranger = EffectId { name: "gift".into(), part: String::new() };
        for (odd, says) in [
            (Decision::did_not_happen(&mail), "nothing is asked about mail/a@x"),
            (Decision::happened(&mail, Some("op_9")), "nothing is asked about mail/a@x"),
            (Decision::did_not_happen(&stranger), "nothing is asked about gift"),
        ] {
            let refused = jobs.decide(&letter, odd.by("ann", "a slip")).unwrap_err();
            assert!(matches!(&refused, Error::Refused(Refusal::NotAChoice(_))), "{refused:?}");
            assert!(refused.to_string().contains(says), "{refused}");
        }
        assert_eq!(jobs.dead_letter(id).unwrap().revision(), letter.revision());
    });
}

/// Everything that a letter offers is accepted, for every sort of letter that an order can get; a refusal of an offered choice would
/// leave a person without a way out.
#[test]
fn every_offered_choice_is_accepted() {
    let mut taken = 0;
    type Story = fn(&Shop) -> (Jobs, JobId);
    let stories: [Story; 3] = [
        in_doubt,
        |shop| {
            let jobs = shop.open::<SameKey, Probed>(vec![Do::Fail(|| Fail::permanent("no"))]);
            let id = shop.order::<SameKey, Probed>(&jobs);
            shop.world.settle(&jobs);
            (jobs, id)
        },
        |shop| {
            let (jobs, id) = in_doubt(shop);
            let letter = jobs.dead_letter(id).unwrap();
            jobs.decide(&letter, Decision::happened(&charge_of(&letter), None).by("ann", "she saw it")).unwrap();
            (jobs, id)
        },
    ];
    for story in stories {
        let n = {
            let shop = Shop::new(mixes()[0]);
            let (jobs, id) = story(&shop);
            jobs.dead_letter(id).unwrap().choices().len()
        };
        assert!(n > 0);
        for at in 0..n {
            let shop = Shop::new(mixes()[0]);
            let (jobs, id) = story(&shop);
            let letter = jobs.dead_letter(id).unwrap();
            let label = letter.choices()[at].label.clone();
            taken += 1;
            if let Some(effect) = letter.choices()[at].check() {
                jobs.check_again(&letter, effect, "ann").unwrap_or_else(|e| panic!("{label}: {e}"));
                continue;
            }
            let decision = letter.choices()[at].decision().unwrap();
            let needs = letter.choices()[at].needs == Some(Needs::Reference);
            let decision = if needs { decision.with_reference("op_1") } else { decision };
            jobs.decide(&letter, decision.by("ann", "as offered")).unwrap_or_else(|e| panic!("{label}: {e}"));
        }
    }
    // What does not belong to a decision is refused, never left out.
    let shop = Shop::new(mixes()[0]);
    let (jobs, id) = in_doubt(&shop);
    let letter = jobs.dead_letter(id).unwrap();
    let refused = jobs.decide(&letter, Decision::discard().with_new_key().by("ann", "not needed")).unwrap_err();
    assert!(refused.to_string().contains("leave out with_new_key()"), "{refused}");
    let slip = Decision::did_not_happen(&charge_of(&letter)).with_reference("op_1").by("ann", "a slip");
    let refused = jobs.decide(&letter, slip).unwrap_err();
    assert!(refused.to_string().contains("leave out with_reference(..)"), "{refused}");
    assert_eq!(jobs.dead_letter(id).unwrap().revision(), letter.revision(), "nothing was decided");
    println!("{taken} choices taken");
    assert!(taken >= 7);
}

/// Ten years pass, with retention at work: a letter that nobody decided is still there, with
/// everything that is needed to decide it. Prevents a dead set that is trimmed in silence.
#[test]
fn an_undecided_letter_is_never_trimmed() {
    let shop = Shop::new(mixes()[0]);
    let (mut jobs, doubt) = in_doubt(&shop);
    let done = {
        let order = Order::<Ask, Probed>::number(2);
        let id = jobs.enqueue(&order).unwrap().id();
        shop.world.settle(&jobs);
        is(&jobs, id, State::Done);
        id
    };
    let far = shop.world.clock_after(40 * 365 * DAY);
    let later = jobs.at(far, &Order::<Ask, Probed>::number(4)).unwrap().id();
    let _ = jobs.shutdown(MINUTE).unwrap();
    jobs = shop.open_with::<Ask, Probed>(always(vec![Do::Fail(|| Fail::permanent("no"))]));
    let dead = jobs.enqueue(&Order::<Ask, Probed>::number(3)).unwrap().id();
    shop.world.settle(&jobs);
    for _ in 0..40 {
        // Pruning wants a day of undisturbed uptime before it believes the calendar.
        (0..26).for_each(|_| shop.world.pass(&jobs, HOUR));
        shop.world.pass(&jobs, 90 * DAY);
        (0..3).for_each(|_| shop.world.pass(&jobs, HOUR));
    }
    assert!(matches!(jobs.state(done), Err(Error::NotFound(_))), "retention was at work: {:?}", jobs.state(done));
    assert_eq!(jobs.state(later).unwrap(), State::Delayed, "nor is anything else that is not over");
    let _ = jobs.shutdown(MINUTE).unwrap();
    let jobs = shop.open::<Ask, Probed>(usual());
    assert_eq!(jobs.dead_letters().unwrap().iter().map(DeadLetter::job).collect::<Vec<_>>(), [doubt, dead]);
    let letter = jobs.dead_letter(doubt).unwrap();
    let seen = letter.ledger().iter().find(|l| l.id.name == "charge").unwrap();
    assert_eq!(seen.idempotency_key, shop.pay.keys()[0]);
    jobs.decide(&letter, Decision::happened(&seen.id, Some("op_1")).by("ann", "after ten years")).unwrap();
    shop.world.settle(&jobs);
    is(&jobs, doubt, State::Done);
}

/// Two effects are unknown in one attempt: one letter with two questions. The job goes on when the last is answered, not before.
#[cfg(feature = "tokio")]
#[test]
fn a_letter_may_hold_several_questions() {
    let shop = Shop::new(mixes()[7]);
    let jobs = shop.open::<Ask, Ask>(vec![Do::Both(500), Do::Finish]);
    shop.pay.will([Act::Loses]);
    shop.stock.will([Act::Vanishes]);
    let id = shop.order::<Ask, Ask>(&jobs);
    shop.world.settle(&jobs);
    is(&jobs, id, State::NeedsDecision);
    let letter = jobs.dead_letter(id).unwrap();
    let names: Vec<&str> = letter.questions().iter().filter_map(|q| q.effect()).map(|e| e.name.as_str()).collect();
    assert_eq!((letter.questions().len(), names.contains(&"charge"), names.contains(&"reserve")), (2, true, true));
    let charge = charge_of(&letter);
    let reserve = letter.ledger().iter().find(|l| l.id.name == "reserve").unwrap().id.clone();
    jobs.decide(&letter, Decision::happened(&charge, Some("op_1")).by("ann", "on the statement")).unwrap();
    shop.world.settle(&jobs);
    is(&jobs, id, State::NeedsDecision);
    assert_eq!((shop.pay.calls().len(), shop.stock.calls().len()), (1, 1));
    let letter = jobs.dead_letter(id).unwrap();
    assert_eq!(letter.questions(), [Question::DidItHappen { effect: reserve.clone() }]);
    jobs.decide(&letter, Decision::did_not_happen(&reserve).by("ann", "the shelf is full")).unwrap();
    shop.world.settle(&jobs);
    is(&jobs, id, State::Done);
    assert_eq!((shop.pay.times(), shop.stock.times()), (1, 1));
}

/// The awaited twin of `decide` says and does the same.
#[test]
fn decide_async_is_the_same_act() {
    let shop = Shop::new(mixes()[0]);
    let (jobs, id) = in_doubt(&shop);
    let letter = jobs.dead_letter(id).unwrap();
    let yes = || Decision::happened(&charge_of(&letter), Some("op_1"));
    let refused = super::rig::block_on(jobs.decide_async(&letter, yes()));
    assert!(matches!(refused, Err(Error::Refused(Refusal::NotAChoice(_)))), "{refused:?}");
    super::rig::block_on(jobs.decide_async(&letter, yes().by("ann", "on the statement"))).unwrap();
    shop.world.settle(&jobs);
    is(&jobs, id, State::Done);
}

/// A payload that today's app cannot read stops nothing and loses nothing: a letter, and after the fix "try again" runs it.
#[test]
fn an_unreadable_payload_gets_a_letter_and_runs_after_the_fix() {
    use onceward::{Job, JobKey};
    use serde::{Deserialize, Serialize};
    #[derive(Serialize, Deserialize)]
    struct Old {
        name: String,
    }
    #[derive(Serialize, Deserialize)]
    struct New {
        number: u64,
    }
    impl Job for Old {
        const KIND: &'static str = "k";
        fn key(&self) -> JobKey {
            "k".into()
        }
    }
    impl Job for New {
        const KIND: &'static str = "k";
        fn key(&self) -> JobKey {
            "k".into()
        }
    }
    let world = super::rig::World::new();
    let jobs = world.builder().on(|_, _: New| Ok(())).start().unwrap();
    let id = jobs.enqueue(&Old { name: "seven".into() }).unwrap().id();
    world.settle(&jobs);
    is(&jobs, id, State::Dead);
    let letter = jobs.dead_letter(id).unwrap();
    assert_eq!((letter.why(), letter.attempts()), (Why::Unreadable, 0));
    let _ = jobs.shutdown(MINUTE).unwrap();
    let jobs = world
        .builder()
        .on(|_, job: Old| if job.name == "seven" { Ok(()) } else { Err(Fail::new("?")) })
        .start()
        .unwrap();
    jobs.decide(&jobs.dead_letter(id).unwrap(), Decision::try_again().by("ann", "the fix is out")).unwrap();
    world.settle(&jobs);
    is(&jobs, id, State::Done);
}
