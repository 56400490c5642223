//! Handlers at work: whatever one of them does - panic, hang, stall, fail at once, refuse to stop - costs its own attempt and
//! nobody else's turn.

mod keeping;
mod payloads;
#[cfg(feature = "tokio")]
mod tasks;

use super::ground::{Ground, HOUR, MINUTE, SECOND, from_threads, is, kind, listen};
use onceward::{Backoff, Error, Fail, Policy, Refusal, State};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

kind!(Plain = "plain");
kind!(Good = "good");
/// Comes back only when told to.
const RARELY: Duration = Duration::from_secs(100_000);
fn rarely() -> Policy {
    Policy::default().backoff(Backoff::steps([RARELY]))
}

kind!(Wild = "wild" { fn policy() -> Policy { rarely() } });
kind!(Slow = "slow" {
    fn policy() -> Policy {
        rarely().stall_timeout(MINUTE).attempt_timeout(10 * MINUTE)
    }
});

/// Panics when it is dropped.
struct Mine(&'static str);
impl Drop for Mine {
    fn drop(&mut self) {
        panic!("{}", self.0);
    }
}

/// An error that panics when it is printed or dropped.
#[derive(Debug)]
struct Bomb {
    show: bool,
}
impl std::error::Error for Bomb {}
impl std::fmt::Display for Bomb {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.show {
            panic!("panics when shown");
        }
        f.write_str("quiet")
    }
}
impl Drop for Bomb {
    fn drop(&mut self) {
        if !self.show {
            panic!("panics when dropped");
        }
    }
}

const PANICS: [&str; 8] =
    ["text", "string", "number", "odd payload", "local's drop", "payload's drop", "error's text", "error's drop"];

fn go_wild(n: usize) -> onceward::Outcome {
    match PANICS[n] {
        "text" => panic!("plainly"),
        "string" => std::panic::panic_any("as a string".to_owned()),
        "number" => std::panic::panic_any(42_u64),
        "odd payload" => std::panic::panic_any(vec![Some(1), None]),
        "local's drop" => {
            let _mine = Mine("in a drop");
            Ok(())
        }
        "payload's drop" => std::panic::panic_any(Mine("the payload of a panic")),
        "error's text" => Err(Fail::new(Bomb { show: true })),
        _ => Err(Fail::new(Bomb { show: false })),
    }
}

/// A handler panics in every way there is, with one worker: each costs one attempt, the worker lives, and the next job runs at
/// once.
#[test]
fn a_panic_costs_one_attempt_and_the_next_job_runs_at_once() {
    let ground = Ground::new();
    let signs = ground.signs.clone();
    let jobs = ground
        .builder()
        .workers(1)
        .on(|_, j: Wild| go_wild(usize::try_from(j.n).unwrap()))
        .on(move |_, j: Good| {
            signs.say(j.key);
            Ok(())
        })
        .start()
        .unwrap();
    let mut ids = Vec::new();
    for (n, how) in PANICS.iter().enumerate() {
        ids.push(jobs.enqueue(&Wild::new(how, n as u64)).unwrap().id());
        let good = jobs.enqueue(&Good::new(how, 0)).unwrap().id();
        assert_eq!(jobs.wait(good, super::ground::PATIENCE).unwrap(), State::Done, "after {how}");
    }
    ground.settle(&jobs);
    for (id, how) in ids.iter().zip(PANICS) {
        is(&jobs, *id, State::Delayed);
        let past = format!("{:?}", jobs.history(*id).unwrap());
        assert!(past.contains("panicked: "), "{how}: {past}");
    }
    let recount = ground.close(jobs);
    println!("panics: {} ways, {} good jobs", PANICS.len(), ground.signs.words().len());
    assert_eq!(ground.signs.words(), PANICS);
    assert!(PANICS.iter().all(|how| recount.jobs[&ids[0]].attempts == 1 && !how.is_empty()));
}

/// A handler hangs on the only thread. Its lease lapses, it is fenced; 30 s later another thread takes its place, which is
/// said, and the queue goes on. Whatever the hung one still wants to write is refused, and its job is done by its second
/// attempt, once.
#[test]
fn a_hung_handler_is_fenced_replaced_and_refused() {
    let heard = listen();
    let ground = Ground::new();
    let (signs, s2) = (ground.signs.clone(), ground.signs.clone());
    let jobs = ground
        .builder()
        .workers(1)
        .on(move |cx, j: Slow| {
            if cx.attempt() > 1 {
                return Ok(());
            }
            signs.wait("hangs");
            let refused = [
                cx.renew().is_err(),
                cx.step("late", || Ok(1)).is_err(),
                cx.commit("late row", |_| Ok(())).is_err(),
                cx.finish(|_| Ok(())).is_err(),
                cx.cancelled(),
            ];
            signs.say(format!("{} {refused:?}", j.key));
            Ok(())
        })
        .on(move |_, j: Good| {
            s2.say(j.key);
            Ok(())
        })
        .start()
        .unwrap();
    let hung = jobs.enqueue(&Slow::new("hung job 17", 0)).unwrap().id();
    ground.signs.until("hangs", 1);
    let good = jobs.enqueue(&Good::new("behind it", 0)).unwrap().id();
    ground.clock.advance(MINUTE - SECOND);
    is(&jobs, hung, State::Running);
    ground.clock.advance(SECOND);
    assert!(matches!(jobs.wait(hung, SECOND), Err(Error::WaitOver(_)) | Ok(_)));
    ground.signs.until("hangs", 1);
    // Fenced: the job waits for its next attempt, the thread is still held.
    until(|| jobs.state(hung).unwrap() == State::Delayed);
    is(&jobs, good, State::Ready);
    ground.clock.advance(30 * SECOND);
    heard.until(&["hung job 17", "replaced"]);
    assert_eq!(jobs.wait(good, super::ground::PATIENCE).unwrap(), State::Done);
    ground.pass(&jobs, RARELY);
    is(&jobs, hung, State::Done);
    let before = format!("{:?}", jobs.history(hung).unwrap());
    ground.signs.open("hangs");
    ground.signs.until("hung job 17 [true, true, true, true, true]", 1);
    ground.settle(&jobs);
    assert_eq!(format!("{:?}", jobs.history(hung).unwrap()), before, "nothing of it is recorded");
    let snapshot = jobs.snapshot().unwrap();
    assert_eq!(snapshot.kinds["slow"].lease_expired_total, 1);
    let recount = ground.close(jobs);
    assert_eq!(recount.job("hung job 17").attempts, 2);
    assert_eq!(ground.lines.of("hung job 17").len(), 2, "one line per claim");
}

/// Waits for a fact without a sign: looks again when another thread has had its turn.
#[track_caller]
pub(super) fn until(fact: impl Fn() -> bool) {
    let mut looks: u64 = 0;
    while !fact() {
        looks += 1;
        assert!(looks < 50_000_000, "waited in vain");
        std::thread::yield_now();
    }
}

/// A handler never comes back, and was replaced. The app shuts down all the same, at once, and loses nothing.
#[test]
fn shutting_down_does_not_wait_for_a_thread_that_was_given_up() {
    let ground = Ground::new();
    let signs = ground.signs.clone();
    let jobs = ground
        .builder()
        .workers(1)
        .on(move |_, _: Slow| {
            signs.wait("for ever");
            Ok(())
        })
        .on(|_, _: Good| Ok(()))
        .start()
        .unwrap();
    let hung = jobs.enqueue(&Slow::new("h", 0)).unwrap().id();
    ground.signs.until("for ever", 1);
    ground.clock.advance(MINUTE);
    until(|| jobs.state(hung).unwrap() == State::Delayed);
    ground.clock.advance(30 * SECOND);
    let good = jobs.enqueue(&Good::new("g", 0)).unwrap().id();
    assert_eq!(jobs.wait(good, super::ground::PATIENCE).unwrap(), State::Done);
    let report = jobs.shutdown(super::ground::PATIENCE).unwrap();
    assert_eq!((report.finished, report.interrupted), (0, 0));
    let recount = ground.recount();
    assert_eq!(recount.job("h").attempts, 1);
    ground.signs.end();
}

/// One handler shows no sign of life, another shows many but takes too long in all: the first stalls, the second runs out of
/// time, and each history says which.
#[test]
fn a_stall_and_a_timeout_are_told_apart() {
    let ground = Ground::new();
    let (signs, clock) = (ground.signs.clone(), ground.clock.clone());
    let jobs = ground
        .builder()
        .on(move |cx, j: Slow| {
            let mut renewals = 0;
            while j.n == 1 && cx.renew().is_ok() {
                clock.advance(50 * SECOND);
                renewals += 1;
            }
            signs.say(format!("{} {renewals}", j.key));
            signs.wait(&format!("{} ends", j.key));
            Err(Fail::permanent("what a fenced handler returns counts for nothing"))
        })
        .start()
        .unwrap();
    let long = jobs.enqueue(&Slow::new("long", 1)).unwrap().id();
    until(|| jobs.state(long).unwrap() == State::Delayed);
    let stalled = jobs.enqueue(&Slow::new("stalled", 0)).unwrap().id();
    ground.signs.until("stalled 0", 1);
    ground.clock.advance(MINUTE);
    until(|| jobs.state(stalled).unwrap() == State::Delayed);
    ground.signs.open("long ends");
    ground.signs.open("stalled ends");
    ground.settle(&jobs);
    let past = |id| format!("{:?}", jobs.history(id).unwrap());
    assert!(past(long).contains("took longer than 600s"), "{}", past(long));
    assert!(past(stalled).contains("no sign of progress for 60s"), "{}", past(stalled));
    is(&jobs, long, State::Delayed);
    let recount = ground.close(jobs);
    assert_eq!((recount.attempts(), recount.claims()), (2, 2));
}

/// A healthy handler works for ten lease lengths and says so now and then: one run, no lease expires. (Queues that rescue by age
/// run such a job twice.)
#[test]
fn a_long_healthy_handler_keeps_its_lease() {
    let ground = Ground::new();
    let clock = ground.clock.clone();
    let jobs = ground
        .builder()
        .on(move |cx, j: Slow| {
            // Ten minutes is the whole time it has; the stall timeout is one of them.
            for step in 0..9 {
                clock.advance(59 * SECOND);
                match (j.n, step % 3) {
                    (0, _) => cx.renew()?,
                    (1, _) => cx.progress(step, 9),
                    (_, 0) => cx.step(&format!("{step}"), || Ok(()))?,
                    (_, 1) => cx.commit(&format!("{step}"), |_| Ok(()))?,
                    (_, _) => cx.renew()?,
                }
            }
            Ok(())
        })
        .start()
        .unwrap();
    for n in 0..3 {
        let id = jobs.enqueue(&Slow::new(&format!("{n}"), n)).unwrap().id();
        assert_eq!(jobs.wait(id, super::ground::PATIENCE).unwrap(), State::Done);
    }
    assert_eq!(jobs.snapshot().unwrap().all.lease_expired_total, 0);
    let recount = ground.close(jobs);
    println!("leases: {} long handlers, {} attempts", recount.jobs.len(), recount.attempts());
    assert_eq!((recount.jobs.len(), recount.attempts()), (3, 3));
}

/// A job is cancelled while it waits: it never runs. Another while it runs: its handler sees it and stops, or finishes first, and
/// then it is done. A third after it was claimed but before its handler began: that handler sees it, too.
#[test]
fn cancelling_stops_what_waits_and_asks_what_runs() {
    let ground = Ground::new();
    let signs = ground.signs.clone();
    let jobs = ground
        .builder()
        .workers(1)
        .on(move |cx, j: Plain| {
            signs.wait(&j.key);
            signs.say(format!("{} cancelled={}", j.key, cx.cancelled()));
            match (j.n, cx.cancelled()) {
                (0, true) => Err(Fail::new("stopped as asked")),
                (_, _) => Ok(()),
            }
        })
        .start()
        .unwrap();
    let keys = [("stops", 0), ("finishes", 1), ("claimed ahead", 0)];
    let batch: Vec<_> = keys.iter().map(|(k, n)| Plain::new(k, *n)).collect();
    let ids: Vec<_> = jobs.enqueue_many(&batch).unwrap().iter().map(|e| e.id()).collect();
    let later = jobs.after(HOUR, &Plain::new("later", 0)).unwrap().id();
    ground.signs.until("stops", 1);
    jobs.cancel(later).unwrap();
    is(&jobs, later, State::Cancelled);
    for ((key, _), id) in keys.iter().zip(&ids) {
        ground.signs.until(key, usize::from(*key == "stops"));
        let before = jobs.state(*id).unwrap();
        jobs.cancel(*id).unwrap();
        if *key == "claimed ahead" && before == State::Ready {
            is(&jobs, *id, State::Cancelled);
        }
    }
    keys.iter().for_each(|(k, _)| ground.signs.open(k));
    ground.pass(&jobs, HOUR);
    is(&jobs, ids[0], State::Cancelled);
    let words = ground.signs.words();
    assert!(words.contains(&"stops cancelled=true".to_owned()), "{words:?}");
    assert!(!words.iter().any(|w| w.ends_with("cancelled=false")), "{words:?}");
    for (id, (key, _)) in ids[1..].iter().zip(&keys[1..]) {
        let state = jobs.state(*id).unwrap();
        let ran = words.iter().any(|w| w == key);
        let done = ran && *key == "finishes";
        assert_eq!(state, if done { State::Done } else { State::Cancelled }, "{key}: {words:?}");
    }
    assert!(!words.iter().any(|w| w == "later"));
    for id in [ids[0], later] {
        let again = jobs.cancel(id).unwrap_err();
        assert!(matches!(again, Error::Refused(Refusal::WrongState(State::Cancelled))), "{again:?}");
    }
    ground.close(jobs);
}

/// Cancels race claims, 400 times: a job is cancelled or it was executed, never both.
#[test]
fn a_job_is_never_both_cancelled_and_executed() {
    let ground = Ground::new();
    let signs = ground.signs.clone();
    let jobs = ground
        .builder()
        .workers(3)
        .on(move |_, j: Plain| {
            signs.say(j.key);
            Ok(())
        })
        .start()
        .unwrap();
    let caller = jobs.clone();
    let ids: Vec<_> = from_threads(4, move |t| {
        let mut ids = Vec::new();
        for n in 0..100 {
            let key = format!("{t}/{n}");
            let id = caller.enqueue(&Plain::new(&key, 0)).unwrap().id();
            // Refused when it was quicker.
            let accepted = caller.cancel(id).is_ok();
            ids.push((key, id, accepted));
        }
        ids
    })
    .concat();
    ground.settle(&jobs);
    let words = ground.signs.words();
    let (mut cancelled, mut executed) = (0, 0);
    for (key, id, accepted) in &ids {
        let ran = words.contains(key);
        match jobs.state(*id).unwrap() {
            State::Cancelled => {
                assert!(*accepted && !ran, "{key} was cancelled and executed");
                cancelled += 1;
            }
            State::Done => {
                assert!(ran, "{key}");
                executed += 1;
            }
            other => panic!("{key}: {other:?}"),
        }
    }
    println!("cancel against claim: {cancelled} cancelled, {executed} executed");
    assert_eq!(cancelled + executed, 400);
    ground.close(jobs);
}

kind!(Hopeless = "hopeless" {
    fn policy() -> Policy {
        Policy::default().retries(50).backoff(Backoff::steps([std::time::Duration::ZERO]))
    }
});

/// One job fails at once and may come back at once, on the only worker: 100 good jobs that were there before its second attempt
/// all finish before its third.
#[test]
fn a_job_that_fails_at_once_does_not_hog_the_only_worker() {
    let ground = Ground::new();
    let (signs, s2) = (ground.signs.clone(), ground.signs.clone());
    let jobs = ground
        .builder()
        .workers(1)
        .on(move |cx, _: Hopeless| {
            if cx.attempt() == 1 {
                signs.wait("first");
            }
            signs.say(format!("fails {}", cx.attempt()));
            Err(Fail::new("no"))
        })
        .on(move |_, _: Good| {
            s2.say("good");
            Ok(())
        })
        .start()
        .unwrap();
    let bad = jobs.enqueue(&Hopeless::new("bad", 0)).unwrap().id();
    ground.signs.until("first", 1);
    let good: Vec<_> = (0..100).map(|n| Good::new(&format!("{n}"), n)).collect();
    let _ = jobs.enqueue_many(&good).unwrap();
    ground.signs.open("first");
    ground.settle(&jobs);
    is(&jobs, bad, State::Dead);
    let words = ground.signs.words();
    let third = words.iter().position(|w| w == "fails 3").unwrap();
    let before = words[..third].iter().filter(|w| *w == "good").count();
    println!("hot loop: {before} good jobs before its third attempt, {} attempts in all", 51);
    assert_eq!(before, 100);
    assert_eq!(ground.close(jobs).job("bad").attempts, 51);
}

/// One of two jobs of a kind fails: the other's count, time and state are untouched.
#[test]
fn a_failure_touches_no_other_job() {
    let ground = Ground::new();
    let jobs = ground.builder().on(|_, j: Wild| if j.n == 0 { Err(Fail::new("no")) } else { Ok(()) }).start().unwrap();
    let waiting = jobs.after(HOUR, &Wild::new("waits", 1)).unwrap().id();
    let bad = jobs.enqueue(&Wild::new("fails", 0)).unwrap().id();
    ground.settle(&jobs);
    let good = jobs.enqueue(&Wild::new("good", 1)).unwrap().id();
    ground.settle(&jobs);
    is(&jobs, bad, State::Delayed);
    is(&jobs, waiting, State::Delayed);
    is(&jobs, good, State::Done);
    assert!(jobs.history(waiting).unwrap().is_empty());
    let recount = ground.close(jobs);
    let counts = ["waits", "fails", "good"].map(|k| (recount.job(k).attempts, recount.job(k).claims));
    assert_eq!(counts, [(0, 0), (1, 1), (1, 1)]);
}

/// A retry may be asked for by a provider, a snooze by the handler: neither is early, and the snooze costs no attempt.
#[test]
fn not_yet_costs_no_attempt_and_retry_after_is_kept() {
    let ground = Ground::new();
    let asked = Arc::new(AtomicBool::new(false));
    let signs = ground.signs.clone();
    let jobs = ground
        .builder()
        .on(move |cx, _: Plain| {
            signs.say(format!("attempt {}", cx.attempt()));
            match signs.words().len() {
                1 | 2 => Err(Fail::not_yet("the report is not there", HOUR)),
                3 => {
                    asked.store(true, Ordering::SeqCst);
                    Err(Fail::new("busy").retry_after(2 * HOUR))
                }
                _ => Ok(()),
            }
        })
        .start()
        .unwrap();
    let id = jobs.enqueue(&Plain::new("p", 0)).unwrap().id();
    ground.settle(&jobs);
    ground.pass(&jobs, HOUR - SECOND);
    assert_eq!(ground.signs.words().len(), 1, "not early");
    ground.pass(&jobs, SECOND);
    ground.pass(&jobs, HOUR);
    assert_eq!(ground.signs.words().len(), 3);
    ground.pass(&jobs, 2 * HOUR - SECOND);
    is(&jobs, id, State::Delayed);
    ground.pass(&jobs, SECOND);
    is(&jobs, id, State::Done);
    assert_eq!(ground.signs.words(), ["attempt 1", "attempt 1", "attempt 1", "attempt 2"]);
    let recount = ground.close(jobs);
    let r = recount.job("p");
    assert_eq!((r.attempts, r.claims, r.given_back.snoozed), (2, 4, 2));
}
