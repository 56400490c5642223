//! When an order cannot go forward, what it did is undone: the last first, each by a durable job of its own, never past something
//! nobody is sure of, and what was undone never counts as a success.

mod shop;
mod sweep;

use super::ground::{Ground, MINUTE, PATIENCE, SECOND, is};
use onceward::observe::Snapshot;
use onceward::prelude::*;
use onceward::{
    DeadLetter, Decision, EffectState, Entry, Error, JobId, LedgerLine, Question, Refusal, Scope, State, Undoing, Why,
};
use shop::{Dated, Held, Order, Pay, Plan, Provider, Refund, Short, app, effect_id};

/// A queue on this ground, with this provider.
fn open(ground: &Ground, provider: &Provider) -> Jobs {
    app(ground.builder(), provider).start().unwrap()
}

fn of(jobs: &Jobs, id: JobId, effect: &str) -> LedgerLine {
    jobs.ledger(id).unwrap().into_iter().find(|l| l.id.name == effect).unwrap()
}

/// The job that undoes this effect.
#[track_caller]
fn undo_job(jobs: &Jobs, id: JobId, effect: &str) -> JobId {
    of(jobs, id, effect).undo_job.unwrap()
}

#[track_caller]
fn decide(jobs: &Jobs, id: JobId, decision: Decision) {
    let letter = jobs.dead_letter(id).unwrap();
    jobs.decide(&letter, decision.by("ana", "as agreed")).unwrap();
}

#[track_caller]
fn refused(jobs: &Jobs, id: JobId, decision: Decision) -> Refusal {
    let letter = jobs.dead_letter(id).unwrap();
    match jobs.decide(&letter, decision.by("ana", "as agreed")) {
        Err(Error::Refused(refusal)) => refusal,
        other => panic!("expected a refusal, got {other:?}"),
    }
}

fn labels(letter: &DeadLetter) -> Vec<&str> {
    letter.choices().iter().map(|c| c.label.as_str()).collect()
}

fn compensations(snapshot: &Snapshot, result: &str) -> u64 {
    snapshot.all.compensation_total[result]
}

/// A card is charged, then the last item turns out to be gone for good. The refund's provider is away twice; the third try works:
/// one refund, and the order is compensated, not done, for whoever asks.
#[test]
fn a_payment_is_refunded_once_when_the_order_cannot_go_forward() {
    let ground = Ground::new();
    let provider = Provider::new();
    provider.plan("reserve", &[Plan::Never]);
    provider.plan("give-back", &[Plan::NotSent, Plan::NotSent]);
    let jobs = open(&ground, &provider);
    let order = Order::new("4201", &["pay", "reserve"]);
    let id = jobs.enqueue(&order).unwrap().id();
    ground.settle(&jobs);
    is(&jobs, id, State::Compensating);
    assert!(matches!(jobs.dead_letter(id), Err(Error::NoLetter(_))), "nobody is asked");
    assert_eq!((of(&jobs, id, "pay").state, of(&jobs, id, "pay").undoing), (EffectState::Confirmed, Undoing::UnderWay));
    let refund = undo_job(&jobs, id, "pay");
    is(&jobs, refund, State::Delayed);
    assert_eq!(jobs.snapshot().unwrap().gauges.queue_depth["default"]["compensating"], 1);
    // While that lasts it is neither cancelled nor enqueued nor run again.
    assert!(matches!(jobs.cancel(id), Err(Error::Refused(Refusal::WrongState(State::Compensating)))));
    assert!(matches!(jobs.enqueue(&order).unwrap(), Enqueued::Existing { state: State::Compensating, .. }));
    assert!(matches!(jobs.run_again(&order), Err(Error::Refused(Refusal::WrongState(State::Compensating)))));

    ground.pass(&jobs, 10 * SECOND);
    is(&jobs, id, State::Compensating);
    ground.pass(&jobs, 10 * SECOND);
    is(&jobs, refund, State::Done);
    assert_eq!(jobs.wait(id, PATIENCE).unwrap(), State::Compensated);
    assert_eq!(provider.happened(), ["pay", "give-back"]);
    assert_eq!(provider.calls("give-back"), 3);
    assert_eq!((of(&jobs, id, "pay").state, of(&jobs, id, "pay").undoing), (EffectState::Undone, Undoing::No));
    assert!(matches!(jobs.enqueue(&order).unwrap(), Enqueued::Existing { state: State::Compensated, .. }));

    // It can be read in both histories.
    let history = jobs.history(id).unwrap();
    let told: Vec<&str> = history
        .iter()
        .filter_map(|e| match e {
            Entry::UndoEnqueued { effect, kind, .. } if effect.name == "pay" && kind == "refund" => Some("enqueued"),
            Entry::Effect { effect, became, .. } if effect.name == "pay" => Some(became.as_str()),
            Entry::Compensated { left, .. } if left.is_empty() => Some("compensated"),
            _ => None,
        })
        .collect();
    assert_eq!(told, ["confirmed", "enqueued", "undone", "compensated"], "{history:#?}");
    let first = jobs.history(refund).unwrap().into_iter().next();
    assert!(matches!(first, Some(Entry::Undoes { job, says, .. }) if job == id && says == "pay 4201"));
    // One line says that its tries ended so, and the counters say what came of it.
    assert_eq!(ground.lines.of("4201").iter().map(|l| l.outcome.as_str()).collect::<Vec<_>>(), ["compensating"]);
    let snapshot = jobs.snapshot().unwrap();
    assert_eq!((compensations(&snapshot, "complete"), compensations(&snapshot, "stopped")), (1, 0));
    let counts = &snapshot.kinds["order"];
    assert_eq!((counts.ended_total["compensated"], counts.ended_total["done"]), (1, 0));
    assert_eq!(counts.effects_total["pay"]["undone"], 1);
    assert_eq!(snapshot.gauges.queue_depth["default"]["compensating"], 0);

    // Run again it is a new job: it pays under a new key.
    let again = jobs.run_again(&order).unwrap();
    assert_ne!(again, id);
    ground.settle(&jobs);
    is(&jobs, again, State::Done);
    let deeds = provider.deeds();
    assert_eq!(provider.happened(), ["pay", "give-back", "pay", "reserve"]);
    assert_ne!(deeds[0].key, deeds[2].key);
    ground.close(jobs);
}

/// A parcel was sent after the card was charged: it comes back before the money does, and the refund does not even exist before.
#[test]
fn the_last_is_undone_first_and_one_after_the_other() {
    let ground = Ground::new();
    let provider = Provider::new();
    provider.plan("fetch-back", &[Plan::Never]);
    let jobs = open(&ground, &provider);
    let id = jobs.enqueue(&Order::new("7", &["pay", "ship", "fail"])).unwrap().id();
    ground.settle(&jobs);
    // The undo job has a dead letter of its own; the order waits for it.
    let recall = undo_job(&jobs, id, "ship");
    is(&jobs, recall, State::Dead);
    is(&jobs, id, State::Compensating);
    assert_eq!((of(&jobs, id, "pay").undoing, of(&jobs, id, "pay").undo_job), (Undoing::No, None));
    assert_eq!(jobs.dead_letter(recall).unwrap().title(), "undo: ship 7");
    assert_eq!(jobs.dead_letters().unwrap().len(), 1);
    decide(&jobs, recall, Decision::try_again());
    ground.settle(&jobs);
    is(&jobs, id, State::Compensated);
    assert_eq!(provider.happened(), ["pay", "ship", "fetch-back", "give-back"]);
    ground.close(jobs);
}

/// The driver brings the parcel back himself: the rest is undone all the same.
#[test]
fn an_undo_job_that_was_handled_outside_lets_the_chain_go_on() {
    let ground = Ground::new();
    let provider = Provider::new();
    provider.plan("fetch-back", &[Plan::Never]);
    let jobs = open(&ground, &provider);
    let id = jobs.enqueue(&Order::new("8", &["pay", "ship", "fail"])).unwrap().id();
    ground.settle(&jobs);
    decide(&jobs, undo_job(&jobs, id, "ship"), Decision::handled_outside());
    ground.settle(&jobs);
    is(&jobs, id, State::Compensated);
    assert_eq!(of(&jobs, id, "ship").state, EffectState::Undone);
    assert_eq!(provider.happened(), ["pay", "ship", "give-back"]);
    ground.close(jobs);
}

/// The recall is given up. The order asks a person; the job cannot simply be tried again, and says why; what is left is undone if
/// that is decided, and the end is said to be a partial one.
#[test]
fn an_undo_job_that_was_discarded_stops_the_chain_with_a_letter() {
    let ground = Ground::new();
    let provider = Provider::new();
    provider.plan("fetch-back", &[Plan::Never]);
    let jobs = open(&ground, &provider);
    let id = jobs.enqueue(&Order::new("9", &["pay", "ship", "fail"])).unwrap().id();
    ground.settle(&jobs);
    decide(&jobs, undo_job(&jobs, id, "ship"), Decision::discard());
    ground.settle(&jobs);
    is(&jobs, id, State::Dead);
    assert!(jobs.trash().unwrap().is_empty(), "the undo job cannot be brought back, and is not listed");
    let letter = jobs.dead_letter(id).unwrap();
    assert_eq!(letter.why(), Why::UndoStopped);
    assert!(letter.error().contains("ship 9"), "{}", letter.error());
    assert_eq!(labels(&letter), ["Undo what was done", "Somebody took care of it", "Discard"]);
    let undo = &letter.choices()[0];
    assert!(undo.will.iter().any(|w| w.contains("pay 9")) && !undo.will.iter().any(|w| w.contains("ship")), "{undo:?}");
    assert!(undo.will_not.iter().any(|w| w.contains("ship 9")), "{undo:?}");
    let outside = &letter.choices()[1];
    assert!(outside.will_not.iter().any(|w| w.contains("it is tried again: undoing this was begun")), "{outside:?}");
    let refusal = refused(&jobs, id, Decision::try_again());
    assert!(refusal.to_string().contains("ship") && refusal.to_string().contains("run_again"), "{refusal}");
    assert_eq!(compensations(&jobs.snapshot().unwrap(), "stopped"), 1);

    decide(&jobs, id, Decision::undo());
    ground.settle(&jobs);
    is(&jobs, id, State::Compensated);
    assert_eq!(provider.happened(), ["pay", "ship", "give-back"]);
    assert_eq!(
        (of(&jobs, id, "ship").state, of(&jobs, id, "ship").undoing),
        (EffectState::Confirmed, Undoing::GivenUp)
    );
    assert_eq!(compensations(&jobs.snapshot().unwrap(), "partial"), 1);
    ground.close(jobs);
}

/// Somebody waits for an order that is being undone. The job that calls the parcel back needs a person: whoever waits hears which letter
/// that is, before and while it waits, and once that is decided the wait goes on to the end.
#[test]
fn whoever_waits_hears_that_undoing_needs_a_person() {
    let ground = Ground::new();
    let provider = Provider::new();
    provider.plan("fetch-back", &[Plan::Never]);
    let jobs = open(&ground, &provider);
    jobs.pause(Scope::All, "the test begins to wait first").unwrap();
    let id = jobs.enqueue(&Order::new("9", &["pay", "ship", "fail"])).unwrap().id();
    let waiting = jobs.clone();
    let mut waits = std::pin::pin!(waiting.wait_async(id));
    let mut look = std::task::Context::from_waker(std::task::Waker::noop());
    assert!(waits.as_mut().poll(&mut look).is_pending(), "it waits before anything of it has run");
    jobs.resume(Scope::All).unwrap();
    ground.settle(&jobs);
    let std::task::Poll::Ready(heard) = waits.as_mut().poll(&mut look) else { panic!("nobody told whoever waits") };
    let heard = heard.unwrap_err();
    let undo = undo_job(&jobs, id, "ship");
    assert!(matches!(heard, Error::UndoNeedsPerson { job, letter } if (job, letter) == (id, undo)), "{heard:?}");
    assert!(heard.to_string().contains(&undo.to_string()), "{heard}");
    is(&jobs, id, State::Compensating);
    // A wait that begins now hears the same at once.
    let again = jobs.wait(id, PATIENCE).unwrap_err();
    assert!(matches!(again, Error::UndoNeedsPerson { letter, .. } if letter == undo), "{again:?}");
    decide(&jobs, undo, Decision::handled_outside());
    assert_eq!(jobs.wait(id, PATIENCE).unwrap(), State::Compensated);
    assert_eq!(provider.happened(), ["pay", "ship", "give-back"]);
    ground.close(jobs);
}

/// Without a policy a person is asked, as always. They are told what would be undone and what would stay, and choose.
#[test]
fn a_person_may_choose_to_undo_and_is_told_what_stays() {
    let ground = Ground::new();
    let provider = Provider::new();
    let jobs = open(&ground, &provider);
    let id = jobs.enqueue(&Held::new("11", &["pay", "mail", "fail"])).unwrap().id();
    ground.settle(&jobs);
    is(&jobs, id, State::Dead);
    let letter = jobs.dead_letter(id).unwrap();
    assert_eq!(labels(&letter), ["Undo what was done", "Try again", "Somebody took care of it", "Discard"]);
    let undo = &letter.choices()[0];
    assert!(undo.will.iter().any(|w| w.contains("pay 11") && w.contains("refund")), "{undo:?}");
    assert!(undo.will_not.iter().any(|w| w.contains("mail 11")), "{undo:?}");
    decide(&jobs, id, Decision::undo());
    ground.settle(&jobs);
    is(&jobs, id, State::Compensated);
    assert_eq!(provider.happened(), ["pay", "mail", "give-back"]);
    let snapshot = jobs.snapshot().unwrap();
    assert_eq!((compensations(&snapshot, "partial"), snapshot.all.letters_closed_total), (1, 1));
    let left = jobs.history(id).unwrap().into_iter().find_map(|e| match e {
        Entry::Compensated { left, .. } => Some(left),
        _ => None,
    });
    assert_eq!(left, Some(vec![effect_id("mail")]));
    // An older view of the letter decides nothing any more.
    assert!(jobs.decide(&letter, Decision::undo().by("ben", "late")).is_err());
    // Nothing that was done can be undone: that is no choice.
    let none = jobs.enqueue(&Held::new("12", &["mail", "fail"])).unwrap().id();
    ground.settle(&jobs);
    assert!(!labels(&jobs.dead_letter(none).unwrap()).contains(&"Undo what was done"));
    assert!(matches!(refused(&jobs, none, Decision::undo()), Refusal::NotAChoice(_)));
    ground.close(jobs);
}

/// The policy says undo, but a mail cannot be called back: nothing is skipped silently, a person is asked and told what it is about.
/// Where nothing was done there is nothing to undo, and a person is asked as always.
#[test]
fn a_policy_asks_a_person_where_something_cannot_be_undone() {
    let ground = Ground::new();
    let provider = Provider::new();
    let jobs = open(&ground, &provider);
    let id = jobs.enqueue(&Order::new("21", &["pay", "mail", "fail"])).unwrap().id();
    let idle = jobs.enqueue(&Order::new("22", &["fail"])).unwrap().id();
    ground.settle(&jobs);
    is(&jobs, id, State::Dead);
    is(&jobs, idle, State::Dead);
    let letter = jobs.dead_letter(id).unwrap();
    assert!(letter.error().contains("cannot be undone: mail 21"), "{}", letter.error());
    assert!(labels(&letter).contains(&"Undo what was done"));
    assert!(!labels(&jobs.dead_letter(idle).unwrap()).contains(&"Undo what was done"));
    assert_eq!(provider.happened(), ["pay", "mail"]);
    ground.close(jobs);
}

/// The second call's answer is lost. As long as nobody knows, nothing is undone, also not by a person; once they have said that it
/// happened, it is undone first, because it was confirmed last.
#[test]
fn what_nobody_is_sure_of_is_asked_first() {
    let ground = Ground::new();
    let provider = Provider::new();
    provider.plan("wire", &[Plan::DoAndLose]);
    let jobs = open(&ground, &provider);
    let id = jobs.enqueue(&Order::new("31", &["ship", "wire", "fail"])).unwrap().id();
    ground.settle(&jobs);
    is(&jobs, id, State::NeedsDecision);
    assert!(!labels(&jobs.dead_letter(id).unwrap()).contains(&"Undo what was done"));
    assert_eq!(refused(&jobs, id, Decision::undo()), Refusal::Unresolved(vec![effect_id("wire")]));
    assert_eq!(provider.happened(), ["ship", "wire"]);
    decide(&jobs, id, Decision::happened(&effect_id("wire"), Some("wire-1")));
    ground.settle(&jobs);
    // It went on, could not go forward, and was undone.
    is(&jobs, id, State::Compensated);
    assert_eq!(provider.happened(), ["ship", "wire", "give-back", "fetch-back"]);
    ground.close(jobs);
}

/// A customer asks for their money back under the order's own number, and the compensation does it too: two jobs, two keys, two
/// requests. Neither is taken for the other.
#[test]
fn a_refund_that_the_customer_asked_for_is_another_job() {
    let ground = Ground::new();
    let provider = Provider::new();
    // Who asks by hand has no reference.
    provider.be_lenient();
    let jobs = open(&ground, &provider);
    let by_hand = Refund { order: "41".into(), charge: None };
    let asked = jobs.enqueue(&by_hand).unwrap().id();
    let id = jobs.enqueue(&Order::new("41", &["pay", "fail"])).unwrap().id();
    ground.settle(&jobs);
    is(&jobs, id, State::Compensated);
    let undo = undo_job(&jobs, id, "pay");
    assert_ne!(asked, undo);
    is(&jobs, asked, State::Done);
    is(&jobs, undo, State::Done);
    let keys: std::collections::BTreeSet<String> =
        provider.deeds().into_iter().filter(|d| d.effect == "give-back").map(|d| d.key).collect();
    assert_eq!(keys.len(), 2);
    assert!(matches!(jobs.enqueue(&by_hand).unwrap(), Enqueued::Existing { id, .. } if id == asked));
    ground.close(jobs);
}

/// Tries used up, a deadline that passed while the queue was closed: whatever ends a job's way forward, what it did is undone, also
/// by another process.
#[test]
fn a_job_past_its_tries_is_undone_by_the_next_process() {
    let mut ground = Ground::new();
    let provider = Provider::new();
    provider.plan("reserve", &[Plan::NotSent; 4]);
    provider.plan("give-back", &[Plan::NotSent]);
    let jobs = open(&ground, &provider);
    let id = jobs.enqueue(&Order::new("51", &["pay", "reserve"])).unwrap().id();
    ground.settle(&jobs);
    for _ in 0..3 {
        is(&jobs, id, State::Delayed);
        ground.pass(&jobs, 10 * SECOND);
    }
    is(&jobs, id, State::Compensating);
    ground.kill(jobs);
    let jobs = open(&ground, &provider);
    is(&jobs, id, State::Compensating);
    ground.pass(&jobs, MINUTE);
    is(&jobs, id, State::Compensated);
    assert_eq!(provider.happened(), ["pay", "give-back"]);
    ground.close(jobs);
}

/// An undo job that was cancelled did not undo anything: the order is not taken for compensated.
#[test]
fn a_cancelled_undo_job_is_no_undoing() {
    let ground = Ground::new();
    let provider = Provider::new();
    provider.plan("give-back", &[Plan::NotSent]);
    let jobs = open(&ground, &provider);
    let id = jobs.enqueue(&Order::new("61", &["pay", "fail"])).unwrap().id();
    ground.settle(&jobs);
    jobs.cancel(undo_job(&jobs, id, "pay")).unwrap();
    is(&jobs, id, State::Dead);
    let letter = jobs.dead_letter(id).unwrap();
    assert_eq!(labels(&letter), ["Somebody took care of it", "Discard"]);
    decide(&jobs, id, Decision::handled_outside());
    is(&jobs, id, State::HandledOutside);
    ground.close(jobs);
}

/// The answer of a call hangs; its lease is over, the provider says that it happened, and the order cannot go forward. Nothing is
/// undone beside that call, whatever policy and person say; when it returns after all, the policy is carried out at once.
#[test]
fn nothing_is_undone_beside_a_call_that_still_runs() {
    let ground = Ground::new();
    let provider = Provider::with_signs(&ground.signs);
    provider.plan("ship", &[Plan::DoAndHold]);
    let jobs = open(&ground, &provider);
    let id = jobs.enqueue(&Order::new("71", &["ship", "fail"])).unwrap().id();
    ground.signs.until("answer", 1);
    ground.clock.advance(61 * SECOND);
    assert_eq!(jobs.wait(id, PATIENCE).unwrap(), State::Dead);
    let letter = jobs.dead_letter(id).unwrap();
    assert!(letter.error().contains("ship is still running"), "{}", letter.error());
    assert_eq!(of(&jobs, id, "ship").state, EffectState::Confirmed);
    assert_eq!(refused(&jobs, id, Decision::undo()), Refusal::CallRunning(effect_id("ship")));
    assert_eq!(provider.happened(), ["ship"]);
    ground.signs.open("answer");
    ground.signs.until("fetch-back", 1);
    ground.settle(&jobs);
    is(&jobs, id, State::Compensated);
    assert_eq!(provider.happened(), ["ship", "fetch-back"]);
    ground.close(jobs);
}

/// The undo job is longer than what may be stored. That is found before the call, not when it is too late. If only the one with the
/// result is too long, the one that was stored with the intent is what undoes it.
#[test]
fn an_undo_job_that_cannot_be_stored_fails_before_the_call() {
    let key = "x".repeat(40);
    let intent = serde_json::to_vec(&Refund { order: key.clone(), charge: None }).unwrap().len();
    for (limit, end, happened) in
        [(intent - 1, State::Dead, &[][..]), (intent, State::Compensated, &["pay", "give-back"][..])]
    {
        let ground = Ground::new();
        let provider = Provider::new();
        // What was stored with the intent does not name it yet.
        provider.be_lenient();
        let jobs = app(ground.builder().payload_limit(limit), &provider).start().unwrap();
        let id = jobs.enqueue(&Short { id: key.clone() }).unwrap().id();
        ground.settle(&jobs);
        is(&jobs, id, end);
        assert_eq!(provider.happened(), happened);
        if end == State::Dead {
            let letter = jobs.dead_letter(id).unwrap();
            assert!(letter.error().contains("payload of the undo job"), "{}", letter.error());
        }
        ground.close(jobs);
    }
}

/// The answer of a payment is lost, and its deadline passes before the next try. A person has the provider asked: it happened. That
/// answers the last question about it, so the policy is carried out: the refund is enqueued in the same commit, and the order ends.
#[test]
fn a_check_that_finds_the_payment_lets_the_policy_undo_it() {
    let ground = Ground::new();
    let provider = Provider::new();
    let jobs = open(&ground, &provider);
    let id = payment_in_doubt(&ground, &jobs, &provider, "91");
    let letter = jobs.dead_letter(id).unwrap();
    assert_eq!(letter.can_check(), [effect_id("pay")]);
    let checked = jobs.check_again(&letter, &effect_id("pay"), "ana").unwrap();
    assert!(checked.letter.is_none(), "nobody is asked any more: {checked:?}");
    undo_job(&jobs, id, "pay");
    ground.settle(&jobs);
    is(&jobs, id, State::Compensated);
    assert_eq!(provider.happened(), ["pay", "give-back"]);
    ground.close(jobs);
}

/// While the provider is being asked about a payment on behalf of one person, another one does not have it undone.
#[test]
fn nothing_is_undone_beside_a_running_check() {
    let ground = Ground::new();
    let provider = Provider::with_signs(&ground.signs);
    let jobs = open(&ground, &provider);
    let id = payment_in_doubt(&ground, &jobs, &provider, "97");
    provider.hold_looks();
    let letter = jobs.dead_letter(id).unwrap();
    let asks = {
        let jobs = jobs.clone();
        super::ground::thread(move || jobs.check_again(&letter, &effect_id("pay"), "ana"))
    };
    ground.signs.until("look", 1);
    decide(&jobs, id, Decision::happened(&effect_id("pay"), None));
    assert!(labels(&jobs.dead_letter(id).unwrap()).contains(&"Undo what was done"));
    let now = jobs.dead_letter(id).unwrap();
    let undo = now.choices().iter().find(|c| c.label == "Undo what was done").unwrap();
    assert!(undo.will[0].starts_with("not now: the provider is still being asked about pay"), "{undo:?}");
    assert_eq!(refused(&jobs, id, Decision::undo()), Refusal::CheckRunning(effect_id("pay")));
    ground.signs.open("look");
    drop(asks.join().unwrap());
    ground.settle(&jobs);
    // The check brought the reference, and the policy is carried out by that.
    is(&jobs, id, State::Compensated);
    assert_eq!(provider.happened(), ["pay", "give-back"]);
    ground.close(jobs);
}

/// A mail went out before the payment of which nobody knew. Once a person has said that it happened, the policy would undo, and may
/// not: the letter says why, once.
#[test]
fn the_reason_why_nothing_was_undone_outlives_an_answer() {
    let ground = Ground::new();
    let provider = Provider::new();
    provider.plan("pay", &[Plan::DoAndLose]);
    let jobs = open(&ground, &provider);
    let id = jobs.enqueue(&Dated::new("98", &["mail", "pay", "fail"])).unwrap().id();
    ground.settle(&jobs);
    ground.pass(&jobs, 20 * SECOND);
    is(&jobs, id, State::NeedsDecision);
    decide(&jobs, id, Decision::happened(&effect_id("pay"), Some("pay-1")));
    is(&jobs, id, State::Dead);
    let letter = jobs.dead_letter(id).unwrap();
    assert_eq!(
        letter.error().matches("nothing was undone by itself: this cannot be undone: mail 98").count(),
        1,
        "{}",
        letter.error()
    );
    ground.close(jobs);
}

/// An order that is past its deadline, with a payment of which nobody knows: asked about that, and what then.
fn payment_in_doubt(ground: &Ground, jobs: &Jobs, provider: &Provider, key: &str) -> JobId {
    provider.plan("pay", &[Plan::DoAndLose]);
    let id = jobs.enqueue(&Dated::new(key, &["pay", "fail"])).unwrap().id();
    ground.settle(jobs);
    ground.pass(jobs, 20 * SECOND);
    let asks = [Question::DidItHappen { effect: effect_id("pay") }, Question::WhatNow];
    let letter = jobs.dead_letter(id).unwrap();
    assert_eq!(letter.questions(), asks, "{letter:?}");
    id
}

/// A transfer whose answer was lost: a person reads its number off the statement. The refund names that number, as it would have if
/// the answer had come; the bank refuses any other.
#[test]
fn what_a_person_knows_of_it_is_what_it_is_undone_by() {
    let ground = Ground::new();
    let provider = Provider::new();
    provider.plan("wire", &[Plan::DoAndLose]);
    let jobs = open(&ground, &provider);
    let id = jobs.enqueue(&Order::new("92", &["wire", "fail"])).unwrap().id();
    ground.settle(&jobs);
    is(&jobs, id, State::NeedsDecision);
    let found = provider.reference("wire");
    decide(&jobs, id, Decision::happened(&effect_id("wire"), found.as_deref()));
    ground.settle(&jobs);
    is(&jobs, id, State::Compensated);
    assert_eq!(provider.happened(), ["wire", "give-back"]);
    ground.close(jobs);
}

/// What a choice says will happen is what happens: also where the policy undoes the job at once, or something is still asked.
#[test]
fn a_choice_says_what_will_come_of_it() {
    let told = std::cell::Cell::new(0);
    let each =
        |tell: &str, find: &str, (state, calls): (State, usize), make: &dyn Fn(&Ground, &Jobs, &Provider) -> JobId| {
            let ground = Ground::new();
            let provider = Provider::new();
            let jobs = open(&ground, &provider);
            let id = make(&ground, &jobs, &provider);
            let letter = jobs.dead_letter(id).unwrap();
            let choice = letter.choices().iter().find(|c| c.label.starts_with(find)).unwrap();
            assert!(choice.will.iter().any(|w| w.contains(tell)), "{tell:?} is not said: {choice:?}");
            let mut decision = choice.decision().unwrap();
            if find == "It happened" {
                decision = decision.with_reference("pay-0");
            }
            jobs.decide(&letter, decision.by("ana", "as agreed")).unwrap();
            ground.settle(&jobs);
            is(&jobs, id, state);
            assert_eq!(provider.calls("pay") + provider.calls("wire"), calls, "after {find:?}");
            told.set(told.get() + 1);
            ground.close(jobs);
        };
    let dated = |ground: &Ground, jobs: &Jobs, provider: &Provider| payment_in_doubt(ground, jobs, provider, "93");
    each("it is undone at once (pay 93)", "It happened", (State::Compensated, 1), &dated);
    each("it is asked next what shall become of it", "It did not happen", (State::Dead, 1), &dated);
    let wire = |ground: &Ground, jobs: &Jobs, provider: &Provider| {
        provider.plan("wire", &[Plan::DoAndLose]);
        let id = jobs.enqueue(&Held::new("94", &["wire", "fail"])).unwrap().id();
        ground.settle(jobs);
        id
    };
    each("the job goes on", "It happened", (State::Dead, 1), &wire);
    each("it is asked for again, with the same key", "It did not happen", (State::Dead, 2), &wire);
    println!("choices that said what came of them: {}", told.get());
    assert_eq!(told.get(), 4);
}

/// A version of the app forgot to register the job that would undo the payment. Nobody pays first and finds out later.
#[test]
fn an_undo_job_that_nobody_runs_fails_before_the_call() {
    let ground = Ground::new();
    let provider = Provider::new();
    let till = provider.clone();
    let jobs = ground
        .builder()
        .key_scope("the shop of the tests")
        .on(|cx, short: Short| cx.effect(Pay { order: short.id }).map(drop))
        .effect(move |e: &Pay, key| till.perform("pay", &e.order, key))
        .start()
        .unwrap();
    let id = jobs.enqueue(&Short { id: "95".into() }).unwrap().id();
    ground.settle(&jobs);
    is(&jobs, id, State::Dead);
    let letter = jobs.dead_letter(id).unwrap();
    assert!(letter.error().contains("\"refund\"") && letter.error().contains("register"), "{}", letter.error());
    assert_eq!(provider.calls("pay"), 0);
    ground.close(jobs);
}

/// A file from a version that forgot to enqueue the undo job of an order: when it is opened again the job is made, and the order ends.
#[test]
fn a_compensation_without_its_undo_job_goes_on_at_the_next_start() {
    let mut ground = Ground::new();
    let provider = Provider::new();
    let jobs = open(&ground, &provider);
    let id = jobs.enqueue(&Held::new("96", &["pay", "fail"])).unwrap().id();
    ground.settle(&jobs);
    is(&jobs, id, State::Dead);
    jobs.shutdown(PATIENCE).unwrap();
    lose_the_undo_job(&ground, id);
    ground.nonce += 1;
    let jobs = open(&ground, &provider);
    ground.settle(&jobs);
    is(&jobs, id, State::Compensated);
    assert_eq!(provider.happened(), ["pay", "give-back"]);
    ground.close(jobs);
}

/// Begins the undoing of a job in the closed file, and enqueues nothing for it.
fn lose_the_undo_job(ground: &Ground, id: JobId) {
    use onceward::clock::ManualClock;
    use onceward::model::letter::{Signed, Verdict};
    use onceward::model::policy::{KindRules, Policy};
    use onceward::rules::letter::{Case, decide};
    use onceward::store::{Lane, Op, Place, Store, StoreError, StoreOptions, Write};
    use std::sync::mpsc;

    struct Begins(JobId, KindRules, mpsc::Sender<bool>);
    impl Op for Begins {
        fn run(&mut self, tx: &mut Write<'_>) -> Result<(), StoreError> {
            let (job, letter) = (tx.record(self.0)?.unwrap(), tx.letter(self.0)?.unwrap());
            let by = Signed { who: "ana".into(), why: "as agreed".into(), at: onceward::Wall(1) };
            let (effects, shown) = (tx.effects(self.0)?, job.revision);
            let (job, letter, effects, rules) = (&job, &letter, &effects, &self.1);
            let case = Case { job, letter, effects, shown, running: &|_| false, rules };
            let change = decide(&case, &Verdict::Undo, &by).unwrap();
            assert!(matches!(tx.put(&change), Err(StoreError::Bug(_))), "it is not written by the way");
            tx.put_with_order(&change)
        }
        fn settle(self: Box<Self>, result: Result<(), StoreError>) {
            self.2.send(result.is_ok()).unwrap();
        }
    }
    let disk = std::sync::Arc::new(ground.disk.clone());
    let clock = std::sync::Arc::new(ManualClock::default());
    let (store, _) = Store::open(StoreOptions::new(Place::Disk(disk), clock)).unwrap();
    let (tell, told) = mpsc::channel();
    assert!(store.submit(Lane::Outcome, Box::new(Begins(id, Policy::default().resolve(&[]), tell))).is_ok());
    assert!(told.recv().unwrap());
    store.close().unwrap();
}
