//! Failures are two questions: did it happen, and when to come back. The second one is answered to the millisecond, survives a
//! restart, holds no worker, and costs exactly what it should.

use super::rig::order::{Ask, Do, Order, Probed, SameKey, Shop, mixes};
use super::rig::provider::Act;
use super::rig::{Crash, DAY, HOUR, MINUTE, SECOND, World, is};
use onceward::{Backoff, Fail, Job, JobKey, Jobs, Outcome, Policy, State, Why};
use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A kind of plain jobs with a policy of its own.
macro_rules! plain {
    ($name:ident, $kind:literal, $policy:expr) => {
        #[derive(Serialize, Deserialize)]
        struct $name(u64);
        impl Job for $name {
            const KIND: &'static str = $kind;
            fn key(&self) -> JobKey {
                format!("{}-{}", $kind, self.0).into()
            }
            fn policy() -> Policy {
                $policy
            }
        }
    };
}
plain!(Plain, "plain", Policy::default());
plain!(Stepped, "stepped", Policy::default().retries(3).backoff(Backoff::steps([MINUTE, 5 * MINUTE, 15 * MINUTE])));
plain!(Limited, "limited", Policy::default().retries(1_000).backoff(Backoff::steps([10 * MINUTE])).deadline(HOUR));
plain!(
    Jittered,
    "jittered",
    Policy::default().retries(12).backoff(Backoff::exponential(Duration::from_millis(100), 10 * SECOND))
);

/// Runs the handler for plain jobs of one kind; the second argument of the handler is the attempt.
fn open<J: Job>(world: &World, f: impl Fn(&onceward::Cx, u32) -> Outcome + Send + Sync + 'static) -> Jobs {
    world.builder().on(move |cx, _: J| f(cx, cx.attempt())).start().unwrap()
}

/// Seconds from the first line to each.
fn times(world: &World) -> Vec<u64> {
    let lines = world.lines.all();
    lines.iter().map(|l| (l.at.0 - lines[0].at.0) / 1_000).collect()
}

/// A handler that calls a provider by itself says "refused" or "not sent", which only the performer of an effect can say: it is no
/// silent retry, but said in the attempt's line, the history and the letter, with what it counts as and what to write instead. A
/// refusal that a performer said and the handler passes on is none of that.
#[test]
fn a_refusal_outside_a_performer_is_said_loudly() {
    type Case = (fn() -> Fail, &'static str, u32);
    let cases: [Case; 3] = [
        (|| Fail::refused("card declined"), "card declined [Fail::refused outside a performer: ", 4),
        (|| Fail::not_sent("no route"), "no route [Fail::not_sent outside a performer: ", 4),
        (|| Fail::refused("card declined").for_good(), "it counts as permanent; ", 1),
    ];
    for (fail, says, attempts) in cases {
        let world = World::new();
        let jobs = open::<Stepped>(&world, move |_, _| Err(fail()));
        let id = jobs.enqueue(&Stepped(1)).unwrap().id();
        world.settle(&jobs);
        for minutes in [1_u32, 5, 15] {
            world.pass(&jobs, minutes * MINUTE);
        }
        let letter = jobs.dead_letter(id).unwrap();
        assert_eq!(letter.attempts(), attempts, "{says}");
        assert!(letter.error().contains(says) && letter.error().contains("make the call an effect"), "{letter:?}");
        assert!(letter.history().iter().any(|e| e.says().contains(says)), "{:?}", letter.history());
        let lines = world.lines.all();
        assert!(lines.iter().all(|l| l.error.as_deref().is_some_and(|e| e.contains(says))), "{lines:?}");
        assert_eq!(lines.len(), usize::try_from(attempts).unwrap());
    }
    let shop = Shop::new(mixes()[0]);
    let jobs = shop.open::<SameKey, Probed>(vec![Do::Charge(500)]);
    shop.pay.will(std::iter::repeat_n(Act::Refuses, 4));
    let id = shop.order::<SameKey, Probed>(&jobs);
    shop.world.settle(&jobs);
    for minutes in [1_u32, 5, 15] {
        shop.world.pass(&jobs, minutes * MINUTE);
    }
    let letter = jobs.dead_letter(id).unwrap();
    assert!(letter.attempts() == 4 && !letter.error().contains("outside a performer"), "{letter:?}");
}

/// Three retries are four attempts, after exactly 1, 5 and 15 minutes, and then a person: with that policy set, and as the
/// default of a risky kind.
#[test]
fn three_retries_are_four_attempts_at_1_5_and_15_minutes() {
    let world = World::new();
    let jobs = open::<Stepped>(&world, |_, _| Err(Fail::new("down")));
    let id = jobs.enqueue(&Stepped(1)).unwrap().id();
    world.settle(&jobs);
    for minutes in [1_u32, 5, 15] {
        let before = world.lines.all().len();
        world.pass(&jobs, minutes * MINUTE - Duration::from_millis(1));
        assert_eq!(world.lines.all().len(), before, "not a millisecond early");
        world.pass(&jobs, Duration::from_millis(1));
        assert_eq!(world.lines.all().len(), before + 1);
    }
    is(&jobs, id, State::Dead);
    assert_eq!(times(&world), [0, 60, 360, 1_260]);
    let attempts: Vec<u32> = world.lines.all().iter().map(|l| l.attempt).collect();
    assert_eq!(attempts, [1, 2, 3, 4]);
    let letter = jobs.dead_letter(id).unwrap();
    assert_eq!((letter.why(), letter.attempts(), letter.error()), (Why::TriesUsedUp, 4, "down"));
    world.pass(&jobs, 30 * DAY);
    assert_eq!(world.lines.all().len(), 4, "and then nothing by itself");

    let shop = Shop::new(mixes()[0]);
    let jobs = shop.open::<Ask, Probed>(vec![Do::Fail(|| Fail::new("down"))]);
    let id = shop.order::<Ask, Probed>(&jobs);
    shop.world.settle(&jobs);
    for minutes in [1, 5, 15] {
        shop.world.pass(&jobs, minutes * MINUTE);
    }
    is(&jobs, id, State::Dead);
    assert_eq!(times(&shop.world), [0, 60, 360, 1_260]);
}

/// Where and how an error arose says what it means: unclassified is transient, permanent stops at once, a panic is a failure.
#[test]
fn the_class_of_a_failure_decides_whether_it_comes_back() {
    type Handler = fn() -> Outcome;
    let transient: [Handler; 5] = [
        || Err(Fail::new("x")),
        || Err(Fail::transient("x")),
        || Err(std::io::Error::other("x"))?,
        || Err("x")?,
        || std::panic::resume_unwind(Box::new("x")),
    ];
    let permanent: [Handler; 3] = [
        || Err(Fail::permanent("x")),
        || Err(Fail::new("x").for_good()),
        || {
            use onceward::FailExt;
            "x".parse::<u32>().permanent().map(|_| ())
        },
    ];
    for (handlers, state) in [(&transient[..], State::Delayed), (&permanent[..], State::Dead)] {
        for handler in handlers {
            let world = World::new();
            let handler = *handler;
            let jobs = open::<Stepped>(&world, move |_, _| handler());
            let id = jobs.enqueue(&Stepped(1)).unwrap().id();
            world.settle(&jobs);
            is(&jobs, id, state);
            assert_eq!(world.lines.all().len(), 1);
        }
    }
}

/// The handler passes on "not before": the retry comes then; the policy's own step counts when it is longer.
#[test]
fn retry_after_is_honoured_in_a_handler() {
    for (asked, waits) in [(20 * MINUTE, 20 * MINUTE), (SECOND, MINUTE)] {
        let world = World::new();
        let jobs = open::<Stepped>(&world, move |_, attempt| match attempt {
            1 => Err(Fail::new("busy").retry_after(asked)),
            _ => Ok(()),
        });
        let id = jobs.enqueue(&Stepped(1)).unwrap().id();
        world.settle(&jobs);
        world.pass(&jobs, waits - SECOND);
        is(&jobs, id, State::Delayed);
        world.pass(&jobs, SECOND);
        is(&jobs, id, State::Done);
    }
}

/// "Not yet", a hundred times: no failure, no attempt, no budget; the hundred and first time it runs, as attempt 1.
#[test]
fn not_yet_costs_nothing() {
    let mut told = 0;
    for mix in mixes() {
        let mut shop = Shop::new(mix);
        let mut jobs = shop.open::<SameKey, Probed>(vec![Do::Fail(|| Fail::not_yet("the file is not there", MINUTE))]);
        let id = shop.order::<SameKey, Probed>(&jobs);
        shop.world.settle(&jobs);
        for n in 1..=100 {
            is(&jobs, id, State::Delayed);
            if n % 40 == 0 {
                shop.world.crash(jobs, Crash::Kill);
                jobs = shop.open::<SameKey, Probed>(vec![Do::Fail(|| Fail::not_yet("the file is not there", MINUTE))]);
            }
            if n < 100 {
                shop.world.pass(&jobs, MINUTE);
            }
        }
        assert_eq!(shop.seen.starts(), 100);
        assert!(shop.world.lines.all().iter().all(|l| l.outcome.as_str() == "not-yet" && l.class.is_none()));
        let _ = jobs.shutdown(MINUTE).unwrap();
        let jobs = shop.open::<SameKey, Probed>(vec![Do::Charge(500)]);
        shop.pay.will([Act::Refuses, Act::Refuses, Act::Refuses, Act::Refuses]);
        for minutes in [1, 1, 5, 15] {
            shop.world.pass(&jobs, minutes * MINUTE);
        }
        is(&jobs, id, State::Dead);
        assert_eq!(jobs.dead_letter(id).unwrap().attempts(), 4, "all four attempts were still there");
        told += 1;
    }
    println!("{told} times a hundred snoozes");
    assert!(told > 0);
}

/// Exponential backoff: each wait lies within nothing and its ceiling, the ceiling doubles up to the cap, and the waits differ.
#[test]
fn exponential_backoff_stays_within_its_ceiling() {
    let world = World::new();
    let jobs = open::<Jittered>(&world, |_, _| Err(Fail::new("down")));
    let ids: Vec<_> = (0..40).map(|n| jobs.enqueue(&Jittered(n)).unwrap().id()).collect();
    world.settle(&jobs);
    world.pass_until(&jobs, SECOND, HOUR, || ids.iter().all(|id| jobs.state(*id).unwrap() == State::Dead));
    let mut waits = 0;
    let mut seen = std::collections::HashSet::new();
    let mut longest = 0;
    for line in world.lines.all() {
        let Some(next) = line.next else { continue };
        let wait = next.0 - line.at.0;
        let ceiling = (100_u64 << (line.attempt - 1)).min(10_000);
        assert!(wait <= ceiling, "retry {}: {wait} ms of {ceiling}", line.attempt);
        waits += 1;
        longest = longest.max(wait);
        seen.insert(wait);
    }
    println!("{waits} waits, the longest {longest} ms");
    assert_eq!(waits, 40 * 12);
    assert!(seen.len() > waits / 4 && longest > 5_000, "jobs that failed together do not come back together");
}

/// No attempt begins after the deadline: a person decides as soon as the next one would be too late.
#[test]
fn no_attempt_begins_after_the_deadline() {
    let world = World::new();
    let jobs = open::<Limited>(&world, |_, _| Err(Fail::new("down")));
    let id = jobs.enqueue(&Limited(1)).unwrap().id();
    world.settle(&jobs);
    for _ in 0..6 {
        is(&jobs, id, State::Delayed);
        world.pass(&jobs, 10 * MINUTE);
    }
    is(&jobs, id, State::Dead);
    let letter = jobs.dead_letter(id).unwrap();
    assert_eq!((letter.why(), letter.attempts()), (Why::DeadlinePassed, 7));

    // Nobody ran it in time: it is not begun late either.
    let world = World::new();
    let jobs = open::<Plain>(&world, |_, _| Ok(()));
    let id = jobs.enqueue(&Limited(1)).unwrap().id();
    let _ = jobs.shutdown(MINUTE).unwrap();
    world.clock.advance(2 * HOUR);
    let jobs = open::<Limited>(&world, |_, _| Ok(()));
    world.settle(&jobs);
    is(&jobs, id, State::Dead);
    let letter = jobs.dead_letter(id).unwrap();
    assert_eq!((letter.why(), letter.attempts(), world.lines.all().len()), (Why::DeadlinePassed, 0, 0));
}

/// One worker, one job that fails at once and for ever, a hundred good ones: all hundred are done before its third attempt.
/// Prevents a hot loop in the only slot.
#[test]
fn a_job_that_fails_at_once_does_not_keep_others_from_the_only_worker() {
    plain!(Good, "good", Policy::default());
    let world = World::new();
    let good = Arc::new(AtomicU32::new(0));
    let count = good.clone();
    let jobs = world
        .builder()
        .workers(1)
        .on(|_, _: Stepped| Err(Fail::new("down")))
        .on(move |_, _: Good| {
            count.fetch_add(1, Ordering::SeqCst);
            Ok(())
        })
        .start()
        .unwrap();
    let bad = jobs.enqueue(&Stepped(1)).unwrap().id();
    for n in 0..100 {
        let _ = jobs.enqueue(&Good(n)).unwrap();
    }
    world.settle(&jobs);
    assert_eq!((good.load(Ordering::SeqCst), jobs.state(bad).unwrap()), (100, State::Delayed));
    let lines = world.lines.all();
    assert_eq!(lines.iter().filter(|l| l.id == bad).count(), 1, "the wait holds no worker");
}

/// The process is closed, killed or loses power during the wait: the retry comes when it was due, not at once and not later.
#[test]
fn backoff_survives_a_restart() {
    for crash in [None, Some(Crash::Kill), Some(Crash::Power(1))] {
        let mut world = World::new();
        let jobs = open::<Stepped>(&world, |_, _| Err(Fail::new("down")));
        let id = jobs.enqueue(&Stepped(1)).unwrap().id();
        world.settle(&jobs);
        world.pass(&jobs, MINUTE);
        world.pass(&jobs, MINUTE);
        match crash {
            None => drop(jobs.shutdown(MINUTE).unwrap()),
            Some(how) => world.crash(jobs, how),
        }
        world.clock.advance(2 * MINUTE);
        let jobs = open::<Stepped>(&world, |_, attempt| if attempt == 3 { Ok(()) } else { Err(Fail::new("which?")) });
        world.settle(&jobs);
        is(&jobs, id, State::Delayed);
        world.pass(&jobs, 2 * MINUTE - SECOND);
        is(&jobs, id, State::Delayed);
        world.pass(&jobs, SECOND);
        is(&jobs, id, State::Done);
    }
}

/// Two jobs, one fails: the other is untouched, its attempts too.
#[test]
fn one_failure_touches_no_other_job() {
    let world = World::new();
    let jobs = world
        .builder()
        .on(|cx, job: Stepped| if job.0 == 1 && cx.attempt() < 3 { Err(Fail::new("down")) } else { Ok(()) })
        .start()
        .unwrap();
    let (a, b) = (jobs.enqueue(&Stepped(1)).unwrap().id(), jobs.after(2 * MINUTE, &Stepped(2)).unwrap().id());
    world.settle(&jobs);
    assert_eq!((jobs.state(a).unwrap(), jobs.state(b).unwrap()), (State::Delayed, State::Delayed));
    world.pass(&jobs, 2 * MINUTE);
    is(&jobs, b, State::Done);
    let lines = world.lines.all();
    assert_eq!(lines.iter().filter(|l| l.id == b).map(|l| l.attempt).collect::<Vec<_>>(), [1]);
    assert!(jobs.history(b).unwrap().is_empty());
    world.pass(&jobs, 5 * MINUTE);
    is(&jobs, a, State::Done);
}

/// A unique job that fails twice does not collide with itself: three attempts, one completion, nothing suppressed.
#[test]
fn a_retry_does_not_collide_with_its_own_key() {
    let world = World::new();
    let jobs = open::<Stepped>(&world, |_, attempt| if attempt < 3 { Err(Fail::new("down")) } else { Ok(()) });
    let id = jobs.enqueue(&Stepped(1)).unwrap().id();
    world.settle(&jobs);
    world.pass(&jobs, MINUTE);
    world.pass(&jobs, 5 * MINUTE);
    is(&jobs, id, State::Done);
    let counts = jobs.snapshot().unwrap().all;
    assert_eq!((counts.attempts_total, counts.ended_total["done"]), (3, 1));
    assert_eq!(counts.duplicate_suppressed_total.values().sum::<u64>(), 0);
}

/// An error text of two megabytes, in a handler, a panic, a performer and a snooze: cut, at a character, and the job goes on to
/// its dead letter all the same.
#[test]
fn an_oversize_error_text_is_cut_and_the_job_still_gets_its_letter() {
    fn huge() -> String {
        "ä".repeat(1_000_000)
    }
    let cut = |text: &str| text.len() <= 4_096 && text.ends_with("... (cut)") && text.starts_with("ä");
    let world = World::new();
    let jobs = open::<Stepped>(&world, |_, attempt| match attempt {
        1 => Err(Fail::new(huge())),
        2 => Err(Fail::transient(std::io::Error::other(huge()))),
        3 => std::panic::resume_unwind(Box::new(huge())),
        _ => Err(Fail::permanent(huge())),
    });
    let id = jobs.enqueue(&Stepped(1)).unwrap().id();
    world.settle(&jobs);
    for minutes in [1, 5, 15] {
        world.pass(&jobs, minutes * MINUTE);
    }
    is(&jobs, id, State::Dead);
    let letter = jobs.dead_letter(id).unwrap();
    assert!(cut(letter.error()), "{}", letter.error().len());
    assert_eq!(letter.history().len(), 4);

    for mix in mixes() {
        let shop = Shop::new(mix);
        let jobs = shop.open::<Ask, Probed>(vec![Do::Charge(500)]);
        shop.pay.will([Act::Errs(|| Fail::new(huge()))]);
        let id = shop.order::<Ask, Probed>(&jobs);
        shop.world.settle(&jobs);
        is(&jobs, id, State::NeedsDecision);
        let letter = jobs.dead_letter(id).unwrap();
        assert!(letter.error().len() <= 4_200 && letter.ledger()[0].error.as_deref().is_some_and(cut));
    }

    let world = World::new();
    let jobs = open::<Stepped>(&world, |_, _| Err(Fail::not_yet(huge(), MINUTE)));
    let id = jobs.enqueue(&Stepped(1)).unwrap().id();
    world.settle(&jobs);
    is(&jobs, id, State::Delayed);
}

/// An error whose text panics is a panic of the handler, not of the worker: the next job runs.
#[test]
fn an_error_that_panics_when_it_is_read_fails_only_its_attempt() {
    #[derive(Debug)]
    struct Nasty;
    impl std::fmt::Display for Nasty {
        fn fmt(&self, _: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            std::panic::resume_unwind(Box::new("a bug in Display"))
        }
    }
    impl std::error::Error for Nasty {}
    let world = World::new();
    let jobs =
        world.builder().workers(1).on(|_, job: Stepped| if job.0 == 1 { Err(Nasty)? } else { Ok(()) }).start().unwrap();
    let (a, b) = (jobs.enqueue(&Stepped(1)).unwrap().id(), jobs.enqueue(&Stepped(2)).unwrap().id());
    world.settle(&jobs);
    is(&jobs, a, State::Delayed);
    is(&jobs, b, State::Done);
}

/// Attempts, claims and lines agree over failures, snoozes, waits and answers: claims are attempts and those given back.
#[test]
fn attempts_are_claims_without_those_given_back() {
    let mut told = 0;
    for mix in mixes() {
        let shop = Shop::without_keys(mix);
        let snoozed = Arc::new(AtomicU64::new(0));
        let n = snoozed.clone();
        let jobs = shop.open_with::<Probed, Probed>(Arc::new(move |attempt| {
            match (attempt, n.fetch_add(1, Ordering::SeqCst)) {
                (1, 0 | 1) => vec![Do::Fail(|| Fail::not_yet("not now", SECOND))],
                (1, _) => vec![Do::Fail(|| Fail::new("down"))],
                _ => vec![Do::Charge(500), Do::Reserve],
            }
        }));
        shop.pay.will([Act::Vanishes, Act::Loses]);
        let id = shop.order::<Probed, Probed>(&jobs);
        shop.world.settle(&jobs);
        shop.world.pass_until(&jobs, SECOND, HOUR, || jobs.state(id).unwrap() == State::Done);
        let counts = jobs.snapshot().unwrap().all;
        // Attempts: down, the call that vanished, the call that was lost. Given back: two snoozes, two looks.
        let given_back: u64 = counts.given_back_total.values().sum();
        assert_eq!(counts.claims_total, counts.attempts_total + given_back, "{counts:?}");
        assert_eq!((counts.attempts_total, counts.given_back_total["snoozed"]), (3, 2), "{counts:?}");
        assert_eq!(shop.world.lines.all().len() as u64, counts.claims_total, "one line per claim");
        assert_eq!((shop.pay.times(), shop.stock.times()), (1, 1));
        told += 1;
    }
    println!("{told} mixes");
    assert!(told > 0);
}

/// Each retry of many is run by whoever is free, never twice at the same time: a job is in one place.
#[test]
fn a_job_never_runs_beside_itself() {
    let world = World::new();
    let inside: Arc<Mutex<std::collections::HashSet<u64>>> = Arc::default();
    let check = inside.clone();
    let jobs = world
        .builder()
        .workers(8)
        .on(move |cx, job: Stepped| {
            assert!(check.lock().unwrap().insert(job.0), "twice at the same time");
            let came =
                cx.step("s", || Ok(())).and_then(|()| if cx.attempt() < 4 { Err(Fail::new("again")) } else { Ok(()) });
            assert!(check.lock().unwrap().remove(&job.0));
            came
        })
        .start()
        .unwrap();
    let ids: Vec<_> = (0..60).map(|n| jobs.enqueue(&Stepped(n)).unwrap().id()).collect();
    world.settle(&jobs);
    for minutes in [1, 5, 15] {
        world.pass(&jobs, minutes * MINUTE);
    }
    ids.iter().for_each(|id| is(&jobs, *id, State::Done));
    assert_eq!(world.lines.all().len(), 240);
}

/// An order that is enqueued again while it waits for its retry is the same order: nothing is reset.
#[test]
fn enqueueing_again_does_not_reset_a_retry() {
    let shop = Shop::new(mixes()[0]);
    let jobs = shop.open::<SameKey, Probed>(vec![Do::Charge(500)]);
    shop.pay.will([Act::Refuses]);
    let id = shop.order::<SameKey, Probed>(&jobs);
    shop.world.settle(&jobs);
    let again = jobs.enqueue(&Order::<SameKey, Probed>::number(1)).unwrap();
    assert!(!again.is_new() && again.id() == id);
    shop.world.settle(&jobs);
    assert_eq!((jobs.state(id).unwrap(), shop.seen.starts()), (State::Delayed, 1));
}
