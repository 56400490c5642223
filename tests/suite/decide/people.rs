//! People who decide: they have the provider asked again, are told what changed, work in pairs, bring things back out of the trash,
//! run again from a step or many at a time, and all of it is listed.

use super::super::rig::order::{Ask, Do, Order, Probed, SameKey, Shop, always, counted, mixes};
use super::super::rig::provider::{Act, Says};
use super::super::rig::{Crash, DAY, MINUTE, block_on, is};
use onceward::{
    CheckAnswer, Decided, Decision, EffectId, EffectState, Entry, Error, Fail, JobId, Jobs, LetterFilter, Refusal,
    State, Why,
};

/// Tells a story for every mix of blocking and async parts.
fn each_mix(story: impl Fn(Shop)) {
    let mixes = mixes();
    mixes.iter().for_each(|mix| story(Shop::new(*mix)));
    println!("told for {} mixes", mixes.len());
    assert!(!mixes.is_empty());
}

fn charge() -> EffectId {
    EffectId { name: "charge".into(), part: String::new() }
}

/// An order whose charge nobody knows about: the answer was lost, or it never arrived.
fn in_doubt(shop: &Shop, act: Act) -> (Jobs, JobId) {
    let jobs = shop.open::<Ask, Probed>(vec![Do::Charge(500), Do::Reserve, Do::Finish]);
    shop.pay.will([act]);
    let id = shop.order::<Ask, Probed>(&jobs);
    shop.world.settle(&jobs);
    is(&jobs, id, State::NeedsDecision);
    (jobs, id)
}

/// The answer to a charge was lost; a person has the provider asked again, it is found, and the job goes on without another call.
/// What was asked, by whom, and what came back stands in the history and in the list of what people did.
#[test]
fn check_again_finds_the_charge() {
    each_mix(|shop| {
        let (jobs, id) = in_doubt(&shop, Act::Loses);
        let letter = jobs.dead_letter(id).unwrap();
        assert_eq!(letter.can_check(), [charge()]);
        let checked = jobs.check_again(&letter, &charge(), "ann").unwrap();
        assert_eq!(checked.answer, CheckAnswer::Happened(Some("op_1".into())), "{checked:?}");
        assert_eq!((checked.text.as_str(), checked.letter.is_none()), ("it happened (reference op_1)", true));
        shop.world.settle(&jobs);
        is(&jobs, id, State::Done);
        assert_eq!((shop.pay.calls().len(), shop.pay.asked(), shop.pay.times()), (1, 1, 1));
        let said = jobs.decisions(None, 10).unwrap();
        assert_eq!(said.len(), 1);
        assert_eq!((said[0].who.as_str(), said[0].job, said[0].at), ("ann", Some(id), checked.at));
        assert_eq!(said[0].says(), "ann had the provider asked about charge: it happened (reference op_1)");
        assert!(jobs.history(id).unwrap().contains(&said[0].entry));
    });
}

/// The charge never arrived. Right after the call "not there" is worth nothing yet, a minute later it is; a provider that is down
/// says nothing. None of these decides anything: the person does.
#[test]
fn check_again_informs_and_the_person_decides() {
    each_mix(|shop| {
        let (jobs, id) = in_doubt(&shop, Act::Vanishes);
        let check = |word| {
            let letter = jobs.dead_letter(id).unwrap();
            let checked = block_on(jobs.check_again_async(&letter, &charge(), "ann")).unwrap();
            is(&jobs, id, State::NeedsDecision);
            let shown = checked.letter.as_ref().unwrap();
            assert!(shown.history().last().unwrap().says().contains(word), "{:?}", shown.history());
            assert_eq!(shown.revision(), letter.revision() + 1, "what was asked is part of the view");
            let anew = jobs.dead_letter(id).unwrap();
            assert_eq!(format!("{:?}", shown.choices()), format!("{:?}", anew.choices()), "the question is over");
            checked.answer
        };
        assert_eq!(check("not there yet"), CheckAnswer::NotThereYet);
        shop.world.pass(&jobs, MINUTE);
        assert_eq!(check("not there"), CheckAnswer::NotThere);
        shop.pay.will_say([Says::CannotTell]);
        assert!(matches!(check("cannot tell"), CheckAnswer::CannotTell(_)));
        assert_eq!(shop.pay.calls().len(), 1, "nobody called again");
        let letter = jobs.dead_letter(id).unwrap();
        jobs.decide(&letter, Decision::did_not_happen(&charge()).by("ann", "asked three times")).unwrap();
        shop.world.settle(&jobs);
        is(&jobs, id, State::Done);
        assert_eq!((shop.pay.calls().len(), shop.pay.times()), (2, 1));
    });
}

/// While one person's question is under way a second one about the same effect is refused; if somebody decides meanwhile, a late
/// "not there" changes nothing, and says what happened.
#[test]
fn one_check_at_a_time_and_an_old_answer_is_refused() {
    let shop = Shop::new(mixes()[0]);
    let (jobs, id) = in_doubt(&shop, Act::Vanishes);
    let letter = jobs.dead_letter(id).unwrap();
    shop.pay.will_say([Says::Holds("asked")]);
    let asks = {
        let (jobs, letter) = (jobs.clone(), letter.clone());
        super::super::ground::thread(move || jobs.check_again(&letter, &charge(), "ann"))
    };
    shop.world.stage.came("asked", 1);
    let refused = jobs.check_again(&letter, &charge(), "bob").unwrap_err();
    assert!(matches!(refused, Error::Refused(Refusal::CheckRunning(ref effect)) if *effect == charge()), "{refused:?}");
    let shown = jobs.dead_letter(id).unwrap();
    assert!(shown.choices()[0].will[0].starts_with("not now: the provider is still being asked"), "{shown:?}");
    let yes = Decision::happened(&charge(), Some("op_9")).by("bob", "it is on the statement");
    assert_eq!(jobs.decide(&letter, yes).unwrap(), Decided::Done);
    shop.world.stage.open("asked");
    let late = asks.join().unwrap().unwrap_err();
    assert!(matches!(late, Error::Refused(Refusal::WrongState(_) | Refusal::Stale { .. })), "{late:?}");
    shop.world.settle(&jobs);
    is(&jobs, id, State::Done);
    // The check is over: its guard does not outlive it, and nothing is in doubt any more.
    let refused = jobs.check_again(&letter, &charge(), "bob").unwrap_err();
    assert!(matches!(refused, Error::Refused(Refusal::Stale { .. })), "{refused:?}");
}

/// Two people look at the same letter and decide at the same moment: one act happens, the other is refused with what the first one
/// did and why. Told a hundred times over, in every order that the threads take.
#[test]
fn two_people_race_and_the_second_hears_what_the_first_did() {
    let shop = Shop::new(mixes()[0]);
    let jobs = shop.open::<Ask, Probed>(vec![Do::Fail(|| Fail::permanent("no"))]);
    let (mut ann, mut bob) = (0, 0);
    for n in 1..=100 {
        let id = jobs.enqueue(&Order::<Ask, Probed>::number(n)).unwrap().id();
        shop.world.settle(&jobs);
        let letter = jobs.dead_letter(id).unwrap();
        let shared = jobs.clone();
        let told = super::super::ground::from_threads(2, move |i| {
            let act = if i == 0 {
                Decision::discard().by("ann", "a duplicate")
            } else {
                Decision::handled_outside().by("bob", "by phone")
            };
            shared.decide(&letter, act)
        });
        let winner = told.iter().position(|t| t.is_ok()).expect("one act happens");
        let Err(Error::Refused(Refusal::Stale { since, .. })) = &told[1 - winner] else { panic!("{told:?}") };
        let (line, state) = if winner == 0 {
            ann += 1;
            ("ann decided: discard (a duplicate)", State::Discarded)
        } else {
            bob += 1;
            ("bob decided: handled outside (by phone)", State::HandledOutside)
        };
        assert_eq!(since, &[line.to_owned()]);
        is(&jobs, id, state);
    }
    println!("revision races: ann came first {ann} times, bob {bob} times");
    assert_eq!((ann + bob, jobs.decisions(None, 1_000).unwrap().len()), (100, 100));
}

/// Everything is paused, and the kind as well: the choice that would have the job go on names all that has to be resumed first.
#[test]
fn a_choice_names_everything_that_is_paused() {
    let shop = Shop::new(mixes()[0]);
    let jobs = shop.open::<Ask, Probed>(vec![Do::Fail(|| Fail::permanent("no"))]);
    let id = shop.order::<Ask, Probed>(&jobs);
    shop.world.settle(&jobs);
    let kind = jobs.dead_letter(id).unwrap().kind().to_owned();
    jobs.pause(onceward::Scope::All, "maintenance").unwrap();
    jobs.pause(onceward::Scope::kind(&kind), "the bank is down").unwrap();
    let held = |jobs: &Jobs| {
        let letter = jobs.dead_letter(id).unwrap();
        let again = letter.choices().iter().find(|c| c.label == "Try again").unwrap();
        again.will.iter().find(|w| w.contains("resumed")).cloned()
    };
    let text = "it does not run before this is resumed: everything (maintenance), its kind (the bank is down)";
    assert_eq!(held(&jobs).as_deref(), Some(text));
    jobs.resume(onceward::Scope::All).unwrap();
    let text = "it does not run before this is resumed: its kind (the bank is down)";
    assert_eq!(held(&jobs).as_deref(), Some(text));
    jobs.resume(onceward::Scope::kind(&kind)).unwrap();
    assert_eq!(held(&jobs), None);
}

/// A discarded job lies in the trash for its time, comes back as a dead letter with everything it remembers, and runs to its end;
/// what is done is not done again. Twice in the trash it goes for good when its time is over, and its acts stay listed.
#[test]
fn the_trash_gives_back_until_its_time_is_over() {
    each_mix(|mut shop| {
        let script = always(vec![Do::Charge(500), Do::Step("s"), Do::Commit("c"), Do::Fail(|| Fail::permanent("no"))]);
        let jobs = shop.open_with::<SameKey, Probed>(script);
        let id = shop.order::<SameKey, Probed>(&jobs);
        shop.world.settle(&jobs);
        let discard = |jobs: &Jobs| {
            let letter = jobs.dead_letter(id).unwrap();
            jobs.decide(&letter, Decision::discard().by("ann", "a test order")).unwrap();
        };
        let before = jobs.dead_letter(id).unwrap();
        assert_eq!((before.why(), before.restored()), (Why::Permanent, None));
        discard(&jobs);
        let trash = jobs.trash().unwrap();
        assert_eq!((trash.len(), trash[0].job, trash[0].title.as_str()), (1, id, "Order 1"));
        assert_eq!(trash[0].until.unwrap().duration_since(trash[0].at).unwrap(), 90 * DAY, "a risky kind");
        shop.world.crash(jobs, Crash::Kill);
        let jobs = shop.open::<SameKey, Probed>(vec![Do::Charge(500), Do::Step("s"), Do::Commit("c"), Do::Finish]);
        assert!(jobs.restore(id, "bob", " ").is_err(), "nobody signs with nothing");
        jobs.restore(id, "bob", "it was a real one").unwrap();
        assert!(jobs.trash().unwrap().is_empty());
        is(&jobs, id, State::Dead);
        let letter = jobs.dead_letter(id).unwrap();
        // The question is the one that was thrown away, and says that it came back.
        assert_eq!((letter.why(), letter.error()), (before.why(), "no"));
        assert_eq!((letter.questions(), letter.choices()), (before.questions(), before.choices()));
        assert_eq!(letter.headline(), format!("{} (brought back out of the trash by bob)", before.headline()));
        assert_eq!(letter.restored().map(|by| by.why.as_str()), Some("it was a real one"));
        let again = jobs.restore(id, "bob", "twice").unwrap_err();
        assert!(matches!(again, Error::Refused(Refusal::WrongState(State::Dead))), "{again:?}");
        // It is not in the way of the pruning any more, and is not pruned.
        for _ in 0..100 {
            shop.world.pass(&jobs, DAY);
        }
        is(&jobs, id, State::Dead);
        discard(&jobs);
        block_on(jobs.restore_async(id, "bob", "after all")).unwrap();
        let letter = jobs.dead_letter(id).unwrap();
        jobs.decide(&letter, Decision::try_again().by("bob", "go")).unwrap();
        shop.world.settle(&jobs);
        is(&jobs, id, State::Done);
        assert_eq!((shop.pay.calls().len(), counted(&jobs, "c"), counted(&jobs, "finish")), (1, 1, 1));
        let said: Vec<String> =
            jobs.decisions(None, 100).unwrap().iter().map(|a| format!("{} {}", a.who, a.why)).collect();
        assert_eq!(said, ["ann a test order", "bob it was a real one", "ann a test order", "bob after all", "bob go"]);
        let page = jobs.decisions(Some(jobs.decisions(None, 2).unwrap()[1].number), 2).unwrap();
        assert_eq!(page.iter().map(|a| a.why.as_str()).collect::<Vec<_>>(), ["a test order", "after all"]);
        // What people did outlives the job's rows.
        for _ in 0..200 {
            shop.world.pass(&jobs, DAY);
        }
        assert!(matches!(jobs.state(id), Err(Error::NotFound(_))));
        assert_eq!(jobs.decisions(None, 100).unwrap().len(), 5);
    });
}

/// A discarded job whose intent was run again meanwhile stays where it is: two of them would do the same.
#[test]
fn the_trash_does_not_give_back_beside_a_newer_job() {
    let shop = Shop::new(mixes()[0]);
    let jobs = shop.open::<SameKey, Probed>(vec![Do::Fail(|| Fail::permanent("no"))]);
    let id = shop.order::<SameKey, Probed>(&jobs);
    shop.world.settle(&jobs);
    jobs.decide(&jobs.dead_letter(id).unwrap(), Decision::discard().by("ann", "no")).unwrap();
    let newer = jobs.run_again(&Order::<SameKey, Probed>::number(1)).unwrap();
    assert_ne!(newer, id);
    assert!(jobs.trash().unwrap().is_empty(), "what cannot be brought back is not listed");
    let refused = jobs.restore(id, "ann", "after all").unwrap_err();
    assert!(matches!(refused, Error::Refused(Refusal::NotAChoice(_))), "{refused:?}");
    is(&jobs, id, State::Discarded);
}

/// A kind whose discarded jobs are kept for ever: they lie in the trash like all others, without an end, are never pruned, wake
/// nobody, and come back.
#[test]
fn the_trash_lists_what_is_kept_for_ever() {
    use onceward::{Job, JobKey, Keep, Policy};
    use serde::{Deserialize, Serialize};
    #[derive(Serialize, Deserialize)]
    struct Deed {
        n: u64,
    }
    impl Job for Deed {
        const KIND: &'static str = "deed";
        fn key(&self) -> JobKey {
            self.n.to_string().into()
        }
        fn policy() -> Policy {
            Policy::default().keep_discarded(Keep::Forever)
        }
    }
    let world = super::super::rig::World::new();
    let jobs = world.builder().on(|_, _: Deed| Err(Fail::permanent("no"))).start().unwrap();
    let ids: Vec<JobId> = (0..3).map(|n| jobs.enqueue(&Deed { n }).unwrap().id()).collect();
    world.settle(&jobs);
    for id in &ids {
        jobs.decide(&jobs.dead_letter(*id).unwrap(), Decision::discard().by("ann", "no")).unwrap();
    }
    for _ in 0..30 {
        world.pass(&jobs, DAY);
    }
    world.pass(&jobs, 4_000 * DAY);
    (0..30).for_each(|_| world.pass(&jobs, DAY));
    let trash: Vec<_> = jobs.trash().unwrap().into_iter().map(|t| (t.job, t.until)).collect();
    assert_eq!(trash, ids.iter().map(|id| (*id, None)).collect::<Vec<_>>());
    jobs.restore(ids[1], "bob", "after all").unwrap();
    is(&jobs, ids[1], State::Dead);
    assert_eq!(jobs.trash().unwrap().len(), 2);
}

/// Three steps and a charge; the second step was wrong. Run again from it: it and the commit after it happen anew, the first step
/// and the charge do not; what was forgotten stands in the history.
#[test]
fn a_replay_from_a_step_repeats_what_came_after_it_and_no_effect() {
    each_mix(|shop| {
        let script = std::sync::Arc::new(|attempt: u32| {
            let mut all = vec![Do::Step("first"), Do::Charge(500), Do::Commit("second"), Do::Step("third")];
            all.push(if attempt == 1 { Do::Fail(|| Fail::permanent("no")) } else { Do::Finish });
            all
        });
        let jobs = shop.open_with::<SameKey, Probed>(script);
        let id = shop.order::<SameKey, Probed>(&jobs);
        shop.world.settle(&jobs);
        let letter = jobs.dead_letter(id).unwrap();
        assert_eq!(letter.steps(), ["first", "second", "third"], "in the order in which they happened");
        let choice = letter.choices().iter().find(|c| c.label == "Run again from second").unwrap();
        assert_eq!(
            choice.will,
            ["second is forgotten and written to the app's tables again", "third is forgotten and worked out again"]
        );
        assert_eq!(
            choice.will_not,
            [
                "Charge 500 cents for order 1 is done again",
                "first is worked out again",
                "anything that is recorded before that is forgotten"
            ]
        );
        let unheard = jobs.decide(&letter, Decision::replay_from("fourth").by("ann", "?")).unwrap_err();
        assert!(matches!(unheard, Error::Refused(Refusal::NotAChoice(_))), "{unheard:?}");
        jobs.decide(&letter, Decision::replay_from("second").by("ann", "the rate was wrong")).unwrap();
        shop.world.settle(&jobs);
        is(&jobs, id, State::Done);
        assert_eq!((shop.pay.calls().len(), counted(&jobs, "second")), (1, 2));
        let seen = shop.seen.all();
        assert!(seen.contains(&"2 first = 1".to_owned()) && seen.contains(&"2 third = 2".to_owned()), "{seen:?}");
        let gone: Vec<String> = jobs
            .history(id)
            .unwrap()
            .iter()
            .filter_map(|e| match e {
                Entry::Forgotten { name, value, .. } => Some(format!("{name}={}", String::from_utf8_lossy(value))),
                _ => None,
            })
            .collect();
        assert_eq!(gone, ["second=null", "third=1"]);
        let ledger = jobs.ledger(id).unwrap();
        assert_eq!((ledger.len(), ledger[0].state), (1, EffectState::Confirmed));
    });
}

/// Many orders died when the provider was down, some with a doubt. The count comes first; what changes after it, and what is in
/// doubt, is left out and named; the rest goes in slices, signed, and each effect happens once.
#[test]
fn a_replay_by_filter_counts_first_and_goes_in_slices() {
    each_mix(|shop| {
        let jobs = shop.open_with::<Ask, Probed>(std::sync::Arc::new(|attempt| {
            let last = if attempt == 1 { Do::Fail(|| Fail::permanent("the provider is down")) } else { Do::Finish };
            vec![Do::Charge(500), last]
        }));
        let ids: Vec<JobId> = (1..=20)
            .map(|n| {
                // Of the last five nobody knows whether they were charged.
                shop.pay.will((n > 15).then_some(Act::Loses));
                let id = jobs.enqueue(&Order::<Ask, Probed>::number(n)).unwrap().id();
                shop.world.settle(&jobs);
                id
            })
            .collect();
        let filter = LetterFilter::kind("order").error("down").why(Why::Permanent);
        assert_eq!(jobs.plan_replay(&LetterFilter::kind("other")).unwrap().count(), 0);
        assert_eq!(jobs.plan_replay(&LetterFilter::kind("order").error("up")).unwrap().count(), 0);
        let everything = jobs.plan_replay(&LetterFilter::default()).unwrap();
        assert_eq!((everything.count(), everything.ask_first()), (15, &ids[15..]), "never past a doubt");
        let mut plan = jobs.plan_replay(&filter).unwrap();
        assert_eq!((plan.count(), plan.jobs().collect::<Vec<_>>()), (15, ids[..15].to_vec()));
        assert!(plan.as_of() >= ids[19].number());
        // Somebody sets the calendar back: the same letters are there.
        shop.world.clock.jump_wall(-3_600_000);
        assert_eq!(jobs.plan_replay(&filter).unwrap().count(), 15);
        shop.world.clock.jump_wall(3_600_000);
        let before = |ms: i64| {
            let now = onceward::testkit::Clock::now(&shop.world.clock).wall;
            let at = onceward::testkit::Wall(now.0.saturating_add_signed(ms)).to_system();
            jobs.plan_replay(&LetterFilter::default().before(at)).unwrap().count()
        };
        assert_eq!((before(1), before(-365 * 24 * 3_600_000)), (15, 0));
        // After the count: one is answered, one more dies.
        jobs.decide(&jobs.dead_letter(ids[2]).unwrap(), Decision::discard().by("ann", "not this one")).unwrap();
        let late = jobs.enqueue(&Order::<Ask, Probed>::number(21)).unwrap().id();
        shop.world.settle(&jobs);
        assert!(jobs.replay(&mut plan, 4, "ann", "").is_err(), "a reason is required");
        assert_eq!(plan.count(), 15, "and nothing is lost from the plan");
        let first = jobs.replay(&mut plan, 4, "ann", "they are back").unwrap();
        assert_eq!(first.released, [ids[0], ids[1], ids[3]]);
        assert_eq!(first.refused.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [ids[2]]);
        assert_eq!(plan.count(), 11);
        shop.world.settle(&jobs);
        assert_eq!(jobs.snapshot().unwrap().all.ended_total["done"], 3, "only the first slice ran");
        let rest = block_on(jobs.replay_async(&mut plan, usize::MAX, "ann", "they are back")).unwrap();
        assert_eq!((rest.released.len(), rest.refused.len(), plan.count()), (11, 0, 0));
        shop.world.settle(&jobs);
        for id in ids[..15].iter().filter(|id| **id != ids[2]) {
            is(&jobs, *id, State::Done);
        }
        is(&jobs, late, State::Dead);
        assert_eq!(shop.pay.calls().len(), 21, "one call each: nothing is charged again");
        let signed = jobs.decisions(None, 100).unwrap().iter().filter(|a| a.why == "they are back").count();
        assert_eq!(signed, 14);
    });
}

/// Names and reasons stand in lists, line by line: what could look like somebody else's line is refused, and so is a name of which
/// nothing can be seen.
#[test]
fn nobody_signs_with_somebody_elses_line() {
    let shop = Shop::new(mixes()[0]);
    let (jobs, id) = in_doubt(&shop, Act::Vanishes);
    let letter = jobs.dead_letter(id).unwrap();
    let hostile = [
        ("ann", "ok\nbob decided: discard (seen)"),
        ("ann\r\nbob", "ok"),
        ("ann", "\u{1b}[2K"),
        ("ann", "a\u{2028}b"),
        ("\u{202e}nna", "ok"),
        ("\u{200b}\u{feff} ", "ok"),
    ];
    let mut refused = 0;
    for (who, why) in hostile {
        let told = jobs.decide(&letter, Decision::did_not_happen(&charge()).by(who, why)).unwrap_err();
        assert!(matches!(told, Error::Refused(Refusal::NotAChoice(_))), "{who:?} {why:?}: {told:?}");
        refused += 1;
    }
    assert!(jobs.check_again(&letter, &charge(), "ann\nbob").is_err());
    let forged = Decision::happened(&charge(), Some("op_1)\nbob decided: discard (seen")).by("ann", "ok");
    assert!(jobs.decide(&letter, forged).unwrap_err().to_string().contains("line breaks"));
    let blank = jobs.decide(&letter, Decision::happened(&charge(), Some(" ")).by("ann", "ok")).unwrap_err();
    assert!(blank.to_string().contains("the reference is empty"), "an empty field of a form is no reference: {blank}");
    let long = Decision::happened(&charge(), Some(&"9".repeat(600))).by("ann", "ok");
    assert!(matches!(jobs.decide(&letter, long), Err(Error::TooBig { what: "reference", len: 600, .. })));
    refused += 3;
    assert_eq!(jobs.decisions(None, 10).unwrap().len(), 0);
    println!("hostile signatures refused: {refused}");
    jobs.decide(&letter, Decision::did_not_happen(&charge()).by("Änn O'Neil", "they said: \"no\" \u{1f44d}")).unwrap();
}

/// A provider that does not answer a question in time: the person hears that. The probe still asks, so nobody asks a second time beside
/// it; when it comes back after all, "it happened" counts as any late proof, and "not there" is thrown away. Another question is then
/// asked at once, and another letter's was never held up.
#[test]
fn a_probe_that_outlives_its_wait_is_never_doubled() {
    use super::super::ground::{Ground, Signs};
    use onceward::{Effect, EffectCard, IdempotencyKey, Job, JobKey, Policy};
    use serde::{Deserialize, Serialize};
    use std::time::Duration;

    #[derive(Serialize, Deserialize)]
    struct Slow {
        n: u64,
    }
    #[derive(Serialize, Deserialize)]
    struct Pays {
        n: u64,
    }
    impl Effect for Slow {
        type Result = ();
        const NAME: &'static str = "slow";
        fn says(&self) -> String {
            format!("something slow ({})", self.n)
        }
    }
    impl Job for Pays {
        const KIND: &'static str = "pays";
        fn key(&self) -> JobKey {
            self.n.to_string().into()
        }
        fn policy() -> Policy {
            Policy::default().attempt_timeout(Duration::from_millis(50))
        }
        fn effects() -> Vec<EffectCard> {
            vec![Slow::card()]
        }
    }
    let ground = Ground::new();
    let (door, went_on): (Signs, Signs) = (ground.signs.clone(), ground.signs.clone());
    let jobs = ground
        .builder()
        .on(move |cx, job: Pays| {
            cx.effect(Slow { n: job.n })?;
            went_on.say("went on");
            Ok(())
        })
        .effect(|_: &Slow, _: &IdempotencyKey| Err(Fail::new("the line went dead")))
        .probe(move |slow: &Slow, _: &IdempotencyKey| {
            if slow.n == 3 {
                return Ok(None);
            }
            door.wait(&format!("answer {}", slow.n));
            // It happened to the first, not to the second.
            Ok((slow.n == 1).then_some(()))
        })
        .start()
        .unwrap();
    let [first, second, third] = [1, 2, 3].map(|n| jobs.enqueue(&Pays { n }).unwrap().id());
    ground.settle(&jobs);
    let slow = EffectId { name: "slow".into(), part: String::new() };
    let check = |id| jobs.check_again(&jobs.dead_letter(id).unwrap(), &slow, "ann");
    for id in [first, second] {
        let checked = check(id).unwrap();
        assert!(
            matches!(&checked.answer, CheckAnswer::CannotTell(why) if why.contains("no answer within")),
            "{checked:?}"
        );
        let beside = check(id).unwrap_err();
        assert!(matches!(beside, Error::Refused(Refusal::CheckRunning(_))), "{beside:?}");
        let shown = jobs.dead_letter(id).unwrap();
        let choice = shown.choices().iter().find(|c| c.check().is_some()).unwrap();
        assert!(choice.will[0].starts_with("not now: "), "{choice:?}");
    }
    assert!(!matches!(check(third).unwrap().answer, CheckAnswer::CannotTell(_)), "another one's question is its own");
    let asked = |n| ground.signs.times(&format!("answer {n}"));
    assert_eq!((asked(1), asked(2)), (1, 1), "no second question beside the first");
    let shown = jobs.dead_letter(second).unwrap();
    ground.signs.open("answer 1");
    ground.signs.open("answer 2");
    ground.signs.until("went on", 1);
    assert_eq!(jobs.ledger(first).unwrap()[0].state, EffectState::Confirmed);
    let last = jobs.decisions(None, 100).unwrap();
    assert!(
        last.iter().any(|a| a.job == Some(first) && a.says() == "ann had the provider asked about slow: it happened")
    );
    // The second question is over once another one may be asked.
    super::super::running::until(|| check(second).is_ok());
    let late = jobs.dead_letter(second).unwrap();
    let answers = |l: &onceward::DeadLetter| l.history().iter().filter(|e| matches!(e, Entry::Checked { .. })).count();
    assert_eq!(answers(&late), answers(&shown) + 1, "the late \"not there\" was overtaken: {:?}", late.history());
    ground.settle(&jobs);
    is(&jobs, first, State::Done);
    ground.close(jobs);
}
