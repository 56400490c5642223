//! Tokens fence job state, never knowledge about the world: a call that hangs, is fenced, and returns later. What it proves counts,
//! and nothing is called beside it.

use super::{charge, each_mix, effects};
use crate::rig::order::{Ask, Do, Probed, SameKey, Shop, counted};
use crate::rig::provider::{Act, Says};
use crate::rig::{MINUTE, PATIENCE, SECOND, is};
use onceward::{Decision, EffectState, Error, JobId, Jobs, Question, Refusal, Scope, State};

/// Enqueues, waits until the call hangs, and lets the lease lapse (a minute without a sign of progress).
fn hang(shop: &Shop, jobs: &Jobs, id: JobId) {
    shop.world.stage.came("call", 1);
    assert_eq!(charge(jobs, id), EffectState::Intended, "the intent is durable before the call");
    shop.world.clock.advance(MINUTE);
    shop.world.lines.wait(1);
    shop.world.settle(jobs);
}

/// Lets the hung call go on, and waits until what it said is stored.
fn release(shop: &Shop, jobs: &Jobs, id: JobId) {
    shop.world.stage.open("call");
    shop.world.stage.until("the outcome of the call", || {
        (jobs.ledger(id).unwrap()[0].state != EffectState::Intended && !in_call(jobs, id)).then_some(())
    });
    shop.world.settle(jobs);
}

/// Whether the newest call has not been recorded yet.
fn in_call(jobs: &Jobs, id: JobId) -> bool {
    use onceward::Entry;
    let history = jobs.history(id).unwrap();
    let calls = history.iter().filter(|e| matches!(e, Entry::Intended { .. })).count();
    let ends = history
        .iter()
        .filter(|e| matches!(e, Entry::Effect { became, .. } if !became.contains("there") && became != "cannot tell"))
        .count();
    ends < calls
}

/// A hung performer sits in a connection pool and is fenced. The probe says "not there", but that counts only after the call
/// has ended: the replacement does not charge, the wait is visible. Then the pool lets the first one go: it is found. One charge.
#[test]
fn a_hung_call_that_goes_through_later_is_the_only_one() {
    each_mix(|mix| {
        let shop = Shop::without_keys(mix);
        let jobs = shop.open::<Probed, Probed>(vec![Do::Charge(500), Do::Reserve]);
        shop.pay.will([Act::Holds("call")]);
        let id = shop.order::<Probed, Probed>(&jobs);
        hang(&shop, &jobs, id);
        is(&jobs, id, State::Waiting);
        assert_eq!(shop.pay.asked(), 1);
        for _ in 0..3 {
            shop.world.pass(&jobs, MINUTE);
            is(&jobs, id, State::Waiting);
            assert_eq!(shop.pay.calls().len(), 1, "the settle time does not begin before the call has ended");
        }
        release(&shop, &jobs, id);
        is(&jobs, id, State::Done);
        assert_eq!((shop.pay.calls().len(), shop.pay.times(), shop.stock.times()), (1, 1, 1));
        let counts = jobs.snapshot().unwrap().all;
        assert_eq!((counts.late_proofs_total, counts.conflicts_total, counts.lease_expired_total), (1, 0, 1));
    });
}

/// The hung call never comes back: five minutes after it was made a person is asked (a risky kind), and the letter says which
/// effect. When it comes back after all, that answers the question.
#[test]
fn a_call_that_hangs_past_the_bound_ends_in_a_question() {
    each_mix(|mix| {
        let shop = Shop::without_keys(mix);
        let jobs = shop.open::<Probed, Probed>(vec![Do::Charge(500), Do::Reserve]);
        shop.pay.will([Act::Holds("call")]);
        let id = shop.order::<Probed, Probed>(&jobs);
        hang(&shop, &jobs, id);
        shop.world.pass(&jobs, 3 * MINUTE);
        is(&jobs, id, State::Waiting);
        shop.world.pass(&jobs, MINUTE);
        is(&jobs, id, State::NeedsDecision);
        let letter = jobs.dead_letter(id).unwrap();
        assert!(matches!(letter.questions(), [Question::DidItHappen { effect }] if effect.name == "charge"));
        let seen = letter.revision();
        let no = Decision::did_not_happen(&letter.ledger()[0].id).by("ann", "not on the statement");
        let refused = jobs.decide(&letter, no.clone());
        assert!(matches!(refused, Err(Error::Refused(Refusal::CallRunning(_)))), "{refused:?}");
        // Nor is the provider asked beside the call: its "not there" would be worth nothing.
        let (effect, asked) = (letter.ledger()[0].id.clone(), shop.pay.asked());
        assert!(letter.choices().iter().any(|c| c.will.iter().any(|w| w.starts_with("not now:"))), "{letter:?}");
        let refused = jobs.check_again(&letter, &effect, "ann");
        assert!(matches!(refused, Err(Error::Refused(Refusal::CallRunning(ref of))) if *of == effect), "{refused:?}");
        assert_eq!((shop.pay.asked(), jobs.decisions(None, 10).unwrap().len()), (asked, 0));
        release(&shop, &jobs, id);
        is(&jobs, id, State::Done);
        assert_eq!((shop.pay.calls().len(), shop.pay.times(), shop.stock.times()), (1, 1, 1));
        let refused = jobs.decide(&letter, no);
        let Err(Error::Refused(Refusal::Stale { since, .. })) = refused else { panic!("{refused:?}") };
        assert!(since[0].contains("charge: confirmed, from a call whose lease was over"), "{since:?}");
        assert!(seen > 0);
    });
}

/// The hung call ends without an answer: from then on the settle time counts, and after it the provider's "not there" is
/// believed. The second call is the only charge.
#[test]
fn the_settle_time_counts_from_the_sure_end_of_the_call() {
    each_mix(|mix| {
        let shop = Shop::without_keys(mix);
        let jobs = shop.open::<Probed, Probed>(vec![Do::Charge(500)]);
        shop.pay.will([Act::HoldsThenErrs("call")]);
        let id = shop.order::<Probed, Probed>(&jobs);
        hang(&shop, &jobs, id);
        shop.world.pass(&jobs, 2 * MINUTE);
        release(&shop, &jobs, id);
        assert_eq!(charge(&jobs, id), EffectState::Unknown);
        is(&jobs, id, State::Waiting);
        shop.world.pass(&jobs, MINUTE - SECOND);
        assert_eq!((jobs.state(id).unwrap(), shop.pay.calls().len()), (State::Waiting, 1));
        shop.world.pass(&jobs, SECOND);
        is(&jobs, id, State::Done);
        assert_eq!((shop.pay.calls().len(), shop.pay.times()), (2, 1));
    });
}

/// The hung call ends with "refused": it was the only call under its key, so nothing is unknown any more.
#[test]
fn a_late_refusal_resolves_the_effect() {
    each_mix(|mix| {
        let shop = Shop::without_keys(mix);
        let jobs = shop.open::<Probed, Probed>(vec![Do::Charge(500)]);
        shop.pay.will([Act::HoldsThenRefuses("call")]);
        let id = shop.order::<Probed, Probed>(&jobs);
        hang(&shop, &jobs, id);
        release(&shop, &jobs, id);
        is(&jobs, id, State::Done);
        let keys = shop.pay.keys();
        assert_eq!((keys.len(), shop.pay.times()), (2, 1));
        assert_ne!(keys[0], keys[1], "out of refused the generation rises");
    });
}

/// The queue is closed and opened again in the same process while a call hangs in its pool: the new one knows of it, does not
/// believe "not there", and finds what comes of it. A future is dropped with the queue's own runtime: that is a sure end, from
/// which the settle time counts.
#[test]
fn a_second_open_in_the_same_process_sees_the_hung_call() {
    each_mix(|mix| {
        let shop = Shop::without_keys(mix);
        let script = vec![Do::Charge(500), Do::Reserve];
        let jobs = shop.open::<Probed, Probed>(script.clone());
        shop.pay.will([Act::Holds("call")]);
        let id = shop.order::<Probed, Probed>(&jobs);
        shop.world.stage.came("call", 1);
        let report = jobs.shutdown(std::time::Duration::ZERO).unwrap();
        assert_eq!(report.interrupted, 1);
        let jobs = shop.open::<Probed, Probed>(script);
        shop.world.settle(&jobs);
        shop.world.pass(&jobs, MINUTE - SECOND);
        assert_eq!((jobs.state(id).unwrap(), shop.pay.calls().len()), (State::Waiting, 1));
        shop.world.pass(&jobs, SECOND);
        if mix.performer {
            is(&jobs, id, State::Done);
            assert_eq!((shop.pay.calls().len(), shop.pay.times(), shop.stock.times()), (2, 1, 1));
            return;
        }
        assert_eq!((jobs.state(id).unwrap(), shop.pay.calls().len()), (State::Waiting, 1));
        shop.world.stage.open("call");
        // Its own queue is closed, so what it answered is lost; but the provider knows it.
        shop.world.stage.until("the charge", || (shop.pay.times() == 1).then_some(()));
        shop.world.pass_until(&jobs, 30 * SECOND, 10 * MINUTE, || jobs.state(id).unwrap() == State::Done);
        assert_eq!((shop.pay.calls().len(), shop.pay.times(), shop.stock.times()), (1, 1, 1));
    });
}

/// The fenced call returns its receipt before the retry: the effect is confirmed, the job goes on at once in the same attempt,
/// and nothing is called again.
#[test]
fn a_receipt_that_comes_before_the_retry_makes_it_needless() {
    each_mix(|mix| {
        let shop = Shop::new(mix);
        let jobs = shop.open::<SameKey, Probed>(vec![Do::Charge(500), Do::Reserve]);
        shop.pay.will([Act::Dawdles("call")]);
        let id = shop.order::<SameKey, Probed>(&jobs);
        hang(&shop, &jobs, id);
        is(&jobs, id, State::Delayed);
        release(&shop, &jobs, id);
        is(&jobs, id, State::Done);
        assert_eq!((shop.pay.calls().len(), shop.pay.times(), shop.stock.times()), (1, 1, 1));
        assert_eq!(jobs.snapshot().unwrap().all.attempts_total, 1);
    });
}

/// The replacement has called again with the same key when the first call returns: both bring the same receipt, and all is well.
#[test]
fn two_calls_with_one_receipt_agree() {
    each_mix(|mix| {
        let shop = Shop::new(mix);
        let jobs = shop.open::<SameKey, Probed>(vec![Do::Charge(500), Do::Reserve]);
        shop.pay.will([Act::Dawdles("call")]);
        let id = shop.order::<SameKey, Probed>(&jobs);
        hang(&shop, &jobs, id);
        shop.world.pass(&jobs, MINUTE);
        is(&jobs, id, State::Done);
        assert_eq!((shop.pay.calls().len(), shop.pay.times()), (2, 1));
        release(&shop, &jobs, id);
        is(&jobs, id, State::Done);
        assert_eq!(jobs.snapshot().unwrap().all.conflicts_total, 0);
        assert_eq!(effects(&jobs, id)[0], ("charge".to_owned(), EffectState::Confirmed));
    });
}

/// The provider said it keeps keys and does not: the first call returns with another receipt than the second. That is no
/// success: the job is parked with both accounts in sight, and an alert is raised.
#[test]
fn two_calls_with_two_receipts_park_the_job() {
    each_mix(|mix| {
        let shop = Shop::without_keys(mix);
        let script = vec![Do::Charge(500), Do::Wait("between"), Do::Reserve];
        let jobs = shop.open::<SameKey, Probed>(script);
        shop.pay.will([Act::Dawdles("call")]);
        let id = shop.order::<SameKey, Probed>(&jobs);
        hang(&shop, &jobs, id);
        shop.world.clock.advance(MINUTE);
        shop.world.stage.came("between", 1);
        assert_eq!(charge(&jobs, id), EffectState::Confirmed);
        shop.world.stage.open("call");
        shop.world.stage.until("the conflict", || (jobs.snapshot().unwrap().all.conflicts_total == 1).then_some(()));
        shop.world.stage.open("between");
        shop.world.settle(&jobs);
        is(&jobs, id, State::NeedsDecision);
        let letter = jobs.dead_letter(id).unwrap();
        assert!(matches!(letter.questions()[0], Question::Conflict { .. }), "{:?}", letter.questions());
        assert_eq!(shop.pay.times(), 2, "the provider broke its word; nobody hides that");
    });
}

/// A lookup hangs, a person decides "did not happen" on another day's evidence, and then the lookup comes back with the charge:
/// a proof against a decision raises an alert and parks the job, before anything is called again.
#[test]
fn a_proof_against_a_decision_parks_the_job() {
    each_mix(|mix| {
        let shop = Shop::without_keys(mix);
        let jobs = shop.open::<Probed, Probed>(vec![Do::Charge(500), Do::Reserve]);
        shop.pay.will([Act::Loses]);
        shop.pay.will_say([Says::Holds("lookup")]);
        shop.pay.will_say(std::iter::repeat_n(Says::CannotTell, 1_000));
        let id = shop.order::<Probed, Probed>(&jobs);
        shop.world.stage.came("lookup", 1);
        shop.world.clock.advance(MINUTE);
        shop.world.lines.wait(2);
        let asked = || jobs.state(id).unwrap() == State::NeedsDecision;
        shop.world.pass_until(&jobs, 15 * MINUTE, 26 * 60 * MINUTE, asked);
        let letter = jobs.dead_letter(id).unwrap();
        jobs.pause(Scope::All, "the test looks").unwrap();
        let mut answer = Decision::did_not_happen(&letter.ledger()[0].id).by("ann", "not on the statement");
        jobs.decide(&letter, answer.clone()).unwrap();
        let state = jobs.state(id).unwrap();
        shop.world.stage.open("lookup");
        shop.world.stage.until("the conflict", || (jobs.snapshot().unwrap().all.conflicts_total == 1).then_some(()));
        is(&jobs, id, State::NeedsDecision);
        jobs.resume(Scope::All).unwrap();
        shop.world.settle(&jobs);
        is(&jobs, id, State::NeedsDecision);
        let letter = jobs.dead_letter(id).unwrap();
        assert!(matches!(letter.questions()[0], Question::Conflict { .. }), "{state:?} {:?}", letter.questions());
        assert_eq!(shop.pay.calls().len(), 1);
        // The person sees the proof and takes the decision back.
        answer = Decision::happened(&letter.ledger()[0].id, Some("op_1")).by("ann", "it is on the new statement");
        jobs.decide(&letter, answer).unwrap();
        shop.world.settle(&jobs);
        let letter = jobs.dead_letter(id).ok().map(|l| l.questions().to_vec());
        assert!(!letter.iter().flatten().any(|q| matches!(q, Question::Conflict { .. })), "{letter:?}");
        assert_eq!((shop.pay.calls().len(), shop.pay.times()), (1, 1));
    });
}

/// A call hangs, a person says that it happened, and then the provider's own answer to that very call is "declined": an answer
/// against a decision parks the job, it is not taken for success in silence.
#[test]
fn a_refusal_against_a_decision_parks_the_job() {
    each_mix(|mix| {
        let shop = Shop::without_keys(mix);
        let jobs = shop.open::<Ask, Probed>(vec![Do::Charge(500), Do::Reserve]);
        shop.pay.will([Act::HoldsThenRefuses("call")]);
        let id = shop.order::<Ask, Probed>(&jobs);
        shop.world.stage.came("call", 1);
        let asked = || jobs.state(id).unwrap() == State::NeedsDecision;
        shop.world.pass_until(&jobs, 15 * MINUTE, 26 * 60 * MINUTE, asked);
        let letter = jobs.dead_letter(id).unwrap();
        jobs.pause(Scope::All, "the test looks").unwrap();
        let happened = Decision::happened(&letter.ledger()[0].id, Some("op_1")).by("ann", "on the statement");
        jobs.decide(&letter, happened).unwrap();
        shop.world.stage.open("call");
        shop.world.stage.until("the conflict", || (jobs.snapshot().unwrap().all.conflicts_total == 1).then_some(()));
        jobs.resume(Scope::All).unwrap();
        shop.world.settle(&jobs);
        is(&jobs, id, State::NeedsDecision);
        assert_eq!((shop.pay.calls().len(), shop.pay.times(), shop.stock.times()), (1, 0, 0));
    });
}

/// What a fenced attempt still tries to change is refused: its steps, commits, finish and further effects.
#[test]
fn a_fenced_attempt_changes_nothing_any_more() {
    each_mix(|mix| {
        let shop = Shop::new(mix);
        let jobs = shop.open_with::<SameKey, Probed>(std::sync::Arc::new(|attempt| match attempt {
            1 => vec![
                Do::Wait("late"),
                Do::shrug(Do::Step("s")),
                Do::shrug(Do::Commit("c")),
                Do::shrug(Do::Charge(500)),
                Do::shrug(Do::Finish),
            ],
            _ => vec![Do::Charge(500), Do::Commit("c")],
        }));
        let id = shop.order::<SameKey, Probed>(&jobs);
        shop.world.stage.came("late", 1);
        shop.world.clock.advance(MINUTE);
        shop.world.lines.wait(1);
        shop.world.pass(&jobs, MINUTE);
        is(&jobs, id, State::Done);
        shop.world.stage.open("late");
        if !mix.handler {
            // A fenced task is dropped where it waits; a fenced thread goes on and is refused.
            let fenced = || shop.seen.all().iter().filter(|s| s.contains("this attempt was fenced")).count();
            shop.world.stage.until("four refusals", || (fenced() == 4).then_some(()));
        }
        let _ = jobs.shutdown(PATIENCE).unwrap();
        assert_eq!(shop.pay.times(), 1);
        let jobs = shop.open::<SameKey, Probed>(vec![]);
        assert_eq!((counted(&jobs, "c"), counted(&jobs, "finish")), (1, 0));
    });
}
