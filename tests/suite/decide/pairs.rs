//! Two people decide where much is at stake: a proposal waits, is shown as what it is, agreed to, replaced or taken back.

use super::super::rig::{Crash, World, is};
use onceward::{Decided, Decision, EffectId, Error, Fail, Job, JobKey, Jobs, LetterFilter, Policy, Refusal, State};
use serde::{Deserialize, Serialize};

/// A payment about which two people have to decide if it is large.
#[derive(Serialize, Deserialize)]
struct Pay {
    n: u64,
    cents: u64,
}
impl Job for Pay {
    const KIND: &'static str = "pay";
    fn key(&self) -> JobKey {
        self.n.to_string().into()
    }
    fn stake(&self) -> u64 {
        self.cents
    }
    fn policy() -> Policy {
        Policy::default().second_person_above(10_000)
    }
}

/// A large payment: one person's decision waits, also over a crash; the same person again is refused; another one who agrees
/// carries it out; another verdict is a new proposal. A small one needs nobody else. Many at once leave the large ones out.
#[test]
fn a_large_one_needs_a_second_person() {
    let mut world = World::new();
    let open = |world: &World| world.builder().on(|_, _: Pay| Err(Fail::permanent("no"))).start().unwrap();
    let jobs = open(&world);
    let small = jobs.enqueue(&Pay { n: 1, cents: 10_000 }).unwrap().id();
    let large = jobs.enqueue(&Pay { n: 2, cents: 10_001 }).unwrap().id();
    world.settle(&jobs);
    let by = |jobs: &Jobs, id, act: Decision, who| jobs.decide(&jobs.dead_letter(id).unwrap(), act.by(who, "seen"));
    let two = |id| jobs.dead_letter(id).unwrap().needs_second_person();
    assert_eq!((two(small), two(large)), (false, true));
    assert_eq!(by(&jobs, small, Decision::handled_outside(), "ann").unwrap(), Decided::Done);
    assert_eq!(by(&jobs, large, Decision::handled_outside(), "ann").unwrap(), Decided::WaitsForSecond);
    is(&jobs, large, State::Dead);
    world.crash(jobs, Crash::Kill);
    let jobs = open(&world);
    let letter = jobs.dead_letter(large).unwrap();
    let (verdict, signed) = letter.proposed().unwrap();
    assert_eq!((verdict.says().as_str(), signed.who.as_str()), ("handled outside", "ann"));
    let same = by(&jobs, large, Decision::handled_outside(), "Ann ").unwrap_err();
    assert!(matches!(same, Error::Refused(Refusal::SecondPerson(ref who)) if who == "ann"), "{same:?}");
    assert_eq!(by(&jobs, large, Decision::discard(), "bob").unwrap(), Decided::WaitsForSecond);
    let mut plan = jobs.plan_replay(&LetterFilter::kind("pay")).unwrap();
    assert_eq!((plan.count(), plan.ask_first()), (0, &[large][..]), "two people are asked first");
    let many = jobs.replay(&mut plan, 10, "cid", "all of them").unwrap();
    assert_eq!((many.released.len(), many.refused.len()), (0, 0));
    assert_eq!(by(&jobs, large, Decision::discard(), "ann").unwrap(), Decided::Done);
    is(&jobs, large, State::Discarded);
    let said: Vec<String> = jobs.decisions(None, 10).unwrap().iter().map(|a| a.says()).collect();
    assert_eq!(
        said,
        [
            "ann decided: handled outside (seen)",
            "ann proposed: handled outside (seen); a second person has to agree",
            "bob proposed: discard (seen); a second person has to agree",
            "ann decided: discard (seen)",
        ]
    );
    assert!(jobs.safety_cards().to_string().contains("above a stake of 10000 two people have to decide"));
    println!("pairs: {} acts", said.len());
}

/// A charge about which two people have to decide whatever it is worth, and whose answer was lost.
#[derive(Clone, Serialize, Deserialize)]
struct Large {
    n: u64,
}
impl onceward::Effect for Large {
    type Result = String;
    const NAME: &'static str = "large";
    fn says(&self) -> String {
        format!("Charge a lot for order {}", self.n)
    }
    fn from_reference(&self, reference: &str) -> Option<String> {
        reference.starts_with("op_").then(|| reference.to_owned())
    }
}
impl Job for Large {
    const KIND: &'static str = "large";
    fn key(&self) -> JobKey {
        self.n.to_string().into()
    }
    fn policy() -> Policy {
        Policy::default().second_person_above(0)
    }
    fn effects() -> Vec<onceward::EffectCard> {
        vec![<Self as onceward::Effect>::card()]
    }
}

/// Every word of one person is said to be a proposal. What Ann proposed, with the reference she found, is what Bob is asked to
/// agree to, in words, with what comes of it; he agrees, or says the same without the reference, and it counts with it. Ann cannot
/// agree with herself, nobody agrees to what he was not shown, and anybody may take it back.
#[test]
fn the_second_person_agrees_to_what_was_proposed() {
    let world = World::new();
    let got = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let told = got.clone();
    let jobs = world
        .builder()
        .on(move |cx, job: Large| {
            told.lock().unwrap().push(cx.effect(job)?);
            Ok(())
        })
        .effect(|_: &Large, _: &onceward::IdempotencyKey| Err(Fail::new("the line went dead")))
        .probe(|_: &Large, _: &onceward::IdempotencyKey| Ok(None))
        .start()
        .unwrap();
    let large = EffectId { name: "large".into(), part: String::new() };
    let new = |n| {
        let id = jobs.enqueue(&Large { n }).unwrap().id();
        world.settle(&jobs);
        id
    };
    let labels =
        |id| -> Vec<String> { jobs.dead_letter(id).unwrap().choices().iter().map(|c| c.label.clone()).collect() };
    let find = |id, label: &str| {
        let letter = jobs.dead_letter(id).unwrap();
        letter.choices().iter().find(|c| c.label.starts_with(label)).cloned().unwrap()
    };
    let say = |id, act: Decision, who| jobs.decide(&jobs.dead_letter(id).unwrap(), act.by(who, "seen"));
    let id = new(1);
    let charge = "Charge a lot for order 1";
    let (check, yes, no) = (
        format!("Have the provider asked again: {charge}"),
        format!("It happened: {charge}"),
        format!("It did not happen: {charge}"),
    );
    assert_eq!(labels(id), [&*check, &*yes, &*no]);
    let choice = find(id, "It happened");
    assert!(choice.will[0].contains("this is a proposal") && choice.will.len() > 1, "{choice:?}");
    let nothing = say(id, Decision::agree(), "bob").unwrap_err();
    assert!(matches!(nothing, Error::Refused(Refusal::NoProposal)), "{nothing:?}");

    // Ann has found the reference.
    let before = jobs.dead_letter(id).unwrap();
    let found = find(id, "It happened").decision().unwrap().with_reference("op_7");
    assert_eq!(say(id, found.clone(), "ann").unwrap(), Decided::WaitsForSecond);
    let agree = format!("Agree with ann: {yes}");
    assert_eq!(labels(id), [&*agree, &*check, &*yes, &*no, "Take back what ann proposed"]);
    let choice = find(id, "Agree");
    assert_eq!(
        choice.will,
        [
            "what ann proposed is carried out: large happened (reference op_7) (seen)",
            "it counts as done",
            "the job goes on"
        ]
    );
    assert!(find(id, "It did not").will[0].contains("replaces what ann proposed (large happened (reference op_7))"));
    assert!(find(id, "It happened").will[0].contains("agrees to what ann proposed"));
    assert!(find(id, "Have the").will.iter().any(|w| w.contains("what ann proposed is gone")));
    let alone = say(id, choice.decision().unwrap(), " Ann").unwrap_err();
    assert!(matches!(&alone, Error::Refused(Refusal::SecondPerson(who)) if who == "ann"), "{alone:?}");
    assert!(
        alone.to_string().contains("another person") && alone.to_string().contains("take the proposal back"),
        "{alone}"
    );
    let unseen = jobs.decide(&before, Decision::agree().by("bob", "whatever it is")).unwrap_err();
    assert!(matches!(unseen, Error::Refused(Refusal::Stale { .. })), "{unseen:?}");
    let odd = say(id, Decision::agree().with_reference("op_8"), "bob").unwrap_err();
    assert!(matches!(odd, Error::Refused(Refusal::NotAChoice(_))), "an agreement has its reference: {odd:?}");
    assert_eq!(say(id, choice.decision().unwrap(), "bob").unwrap(), Decided::Done);
    world.settle(&jobs);
    is(&jobs, id, State::Done);

    // The same word without the reference agrees to it with the reference.
    let id = new(2);
    say(id, found, "ann").unwrap();
    assert_eq!(say(id, find(id, "It happened").decision().unwrap(), "bob").unwrap(), Decided::Done);
    world.settle(&jobs);
    is(&jobs, id, State::Done);
    assert_eq!(*got.lock().unwrap(), ["op_7", "op_7"], "what was proposed is what counted");

    // Taken back, and something else in its place: one person is never enough.
    let id = new(3);
    say(id, Decision::did_not_happen(&large), "ann").unwrap();
    assert_eq!(say(id, find(id, "Take back").decision().unwrap(), "bob").unwrap(), Decided::Done);
    assert_eq!(jobs.dead_letter(id).unwrap().proposed(), None);
    is(&jobs, id, State::NeedsDecision);
    assert_eq!(say(id, Decision::did_not_happen(&large), "bob").unwrap(), Decided::WaitsForSecond);
    assert_eq!(say(id, Decision::happened(&large, Some("op_9")), "ann").unwrap(), Decided::WaitsForSecond);
    let (verdict, by) = jobs.dead_letter(id).unwrap().proposed().map(|(v, s)| (v.says(), s.who.clone())).unwrap();
    assert_eq!((verdict.as_str(), by.as_str()), ("large happened (reference op_9)", "ann"));
    let said: Vec<String> = jobs.decisions(None, 100).unwrap().iter().map(|a| a.says()).collect();
    assert!(said.contains(&"bob took back what ann proposed: large did not happen (seen)".to_owned()), "{said:?}");
}

/// An app that has dropped the kind, or a tool that never had it, decides about its letters: it cannot read what is at stake, and
/// one person alone does not decide for all that. When the rule is gone, what was begun by one is still ended by another.
#[test]
fn two_people_stay_two_without_the_kind() {
    let mut world = World::new();
    let jobs = world.builder().on(|_, _: Pay| Err(Fail::permanent("no"))).start().unwrap();
    let large = jobs.enqueue(&Pay { n: 1, cents: 10_001 }).unwrap().id();
    world.settle(&jobs);
    world.crash(jobs, Crash::Kill);
    let jobs = world.builder().start().unwrap();
    let by = |jobs: &Jobs, act: Decision, who| jobs.decide(&jobs.dead_letter(large).unwrap(), act.by(who, "seen"));
    assert!(jobs.dead_letter(large).unwrap().needs_second_person());
    assert_eq!(by(&jobs, Decision::discard(), "ann").unwrap(), Decided::WaitsForSecond);
    world.crash(jobs, Crash::Kill);

    /// The same kind without the rule.
    #[derive(Serialize, Deserialize)]
    struct Free {
        n: u64,
        cents: u64,
    }
    impl Job for Free {
        const KIND: &'static str = "pay";
        fn key(&self) -> JobKey {
            self.n.to_string().into()
        }
    }
    let jobs = world.builder().on(|_, _: Free| Ok(())).start().unwrap();
    let same = by(&jobs, Decision::discard(), "a\u{200b}nn").unwrap_err();
    assert!(matches!(same, Error::Refused(Refusal::SecondPerson(_))), "{same:?}");
    assert_eq!(by(&jobs, Decision::discard(), "bob").unwrap(), Decided::Done);
    is(&jobs, large, State::Discarded);
    world.crash(jobs, Crash::Kill);
    // Nobody has the rule any more: one person is enough, also without the kind.
    let jobs = world.builder().start().unwrap();
    jobs.restore(large, "ann", "after all").unwrap();
    assert!(!jobs.dead_letter(large).unwrap().needs_second_person());
}
