//! Time that jumps, sleeps and stands still: it changes when things happen, never whether or how often, and nothing waits for
//! ever or starts before its time.

use super::ground::{DAY, Ground, HOUR, MINUTE, PATIENCE, SECOND, is, kind};
use super::running::until;
use onceward::testkit::{Clock, run_until_idle};
use onceward::{Backoff, Fail, Jobs, Policy, State};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

kind!(Plain = "plain");
const RETRY: Duration = Duration::from_secs(600);
kind!(Retries = "retries" {
    fn policy() -> Policy {
        Policy::default().backoff(Backoff::steps([RETRY])).stall_timeout(MINUTE)
    }
});

fn queue(ground: &Ground) -> Jobs {
    let (signs, s2) = (ground.signs.clone(), ground.signs.clone());
    ground
        .builder()
        .on(move |_, j: Plain| {
            signs.say(j.key);
            Ok(())
        })
        .on(move |cx, j: Retries| {
            s2.say(format!("{} {}", j.key, cx.attempt()));
            match (j.n, cx.attempt()) {
                (0, 1) => Err(Fail::new("not today")),
                (1, 1) => {
                    s2.wait(&format!("{} goes on", j.key));
                    Ok(())
                }
                _ => Ok(()),
            }
        })
        .start()
        .unwrap()
}

/// The machine sleeps for eight hours: the stopwatch stands still, the calendar goes on. Everything that became due in the
/// meantime starts at the first look afterwards: delayed jobs, dates, retries. What was running is not fenced for it.
#[test]
fn after_a_suspend_everything_that_became_due_starts() {
    let ground = Ground::new();
    let jobs = queue(&ground);
    let now = ground.clock.now().wall;
    let due = [
        jobs.after(HOUR, &Plain::new("after 1 h", 0)).unwrap().id(),
        jobs.after(7 * HOUR, &Plain::new("after 7 h", 0)).unwrap().id(),
        jobs.at(now.after(2 * HOUR).to_system(), &Plain::new("at 2 h", 0)).unwrap().id(),
        jobs.enqueue(&Retries::new("retry", 0)).unwrap().id(),
    ];
    let later = jobs.after(9 * HOUR, &Plain::new("after 9 h", 0)).unwrap().id();
    ground.settle(&jobs);
    let running = jobs.enqueue(&Retries::new("running", 1)).unwrap().id();
    ground.signs.until("running goes on", 1);
    ground.clock.suspend(8 * HOUR);
    for id in due {
        assert_eq!(jobs.wait(id, PATIENCE).unwrap(), State::Done);
    }
    is(&jobs, later, State::Delayed);
    is(&jobs, running, State::Running);
    ground.signs.open("running goes on");
    assert_eq!(jobs.wait(running, PATIENCE).unwrap(), State::Done);
    assert_eq!(jobs.snapshot().unwrap().all.lease_expired_total, 0, "a suspend alone fences nobody");
    ground.pass(&jobs, HOUR);
    is(&jobs, later, State::Done);
    let recount = ground.close(jobs);
    println!("suspend: {} jobs, {} attempts", recount.jobs.len(), recount.attempts());
    assert_eq!((recount.jobs.len(), recount.attempts()), (6, 7));
}

/// The clock is set back by twelve hours while one job waits for its retry, one for its delay and one runs. The waits end by the
/// stopwatch, on time; the one that hangs loses its lease on time; nothing waits twelve hours, nothing runs twice.
#[test]
fn a_clock_set_back_starves_no_retry_and_keeps_no_lease_alive() {
    let ground = Ground::new();
    let jobs = queue(&ground);
    let retry = jobs.enqueue(&Retries::new("retry", 0)).unwrap().id();
    let soon = jobs.after(30 * MINUTE, &Plain::new("soon", 0)).unwrap().id();
    // Beyond what is held in memory.
    let far = jobs.after(5 * HOUR, &Plain::new("far", 0)).unwrap().id();
    let hangs = jobs.enqueue(&Retries::new("hangs", 1)).unwrap().id();
    ground.signs.until("hangs goes on", 1);
    until(|| jobs.state(retry).unwrap() == State::Delayed);
    ground.clock.jump_wall(-12 * 3_600_000);
    ground.clock.advance(MINUTE);
    until(|| jobs.state(hangs).unwrap() == State::Delayed);
    // Enqueued on the wrong calendar.
    let on_it = jobs.after(40 * MINUTE, &Plain::new("on it", 0)).unwrap().id();
    ground.pass(&jobs, RETRY - MINUTE - SECOND);
    is(&jobs, retry, State::Delayed);
    ground.pass(&jobs, SECOND);
    is(&jobs, retry, State::Done);
    ground.pass(&jobs, MINUTE);
    is(&jobs, hangs, State::Done);
    ground.pass(&jobs, 19 * MINUTE - SECOND);
    is(&jobs, soon, State::Delayed);
    ground.pass(&jobs, SECOND);
    is(&jobs, soon, State::Done);
    is(&jobs, on_it, State::Delayed);
    ground.pass(&jobs, 11 * MINUTE);
    is(&jobs, on_it, State::Done);
    // Its wait counts from the look at which the jump was noticed: that was within the first minute.
    ground.pass(&jobs, 4 * HOUR + 19 * MINUTE + MINUTE);
    is(&jobs, far, State::Done);
    ground.signs.end();
    let recount = ground.close(jobs);
    println!("set back: {} jobs, {} attempts", recount.jobs.len(), recount.attempts());
    assert_eq!((recount.jobs.len(), recount.attempts()), (5, 7));
}

/// A job is asked for with a date, near or far. Whoever sets the clock moves the date with it: back, and it waits until the
/// calendar says so; forward, and it starts at the next look. A delay beside it is not moved back.
#[test]
fn a_date_follows_the_calendar() {
    let ground = Ground::new();
    let jobs = queue(&ground);
    let now = ground.clock.now().wall;
    let near = jobs.at(now.after(30 * MINUTE).to_system(), &Plain::new("near", 0)).unwrap().id();
    let far = jobs.at(now.after(3 * HOUR).to_system(), &Plain::new("far", 0)).unwrap().id();
    ground.settle(&jobs);
    ground.clock.jump_wall(-12 * 3_600_000);
    ground.settle(&jobs);
    ground.pass(&jobs, 4 * HOUR);
    is(&jobs, near, State::Delayed);
    is(&jobs, far, State::Delayed);
    ground.pass(&jobs, 8 * HOUR + 30 * MINUTE - SECOND);
    is(&jobs, near, State::Delayed);
    ground.pass(&jobs, SECOND);
    is(&jobs, near, State::Done);
    is(&jobs, far, State::Delayed);
    // Forward.
    ground.clock.jump_wall(3 * 3_600_000);
    ground.settle(&jobs);
    is(&jobs, far, State::Done);
    assert_eq!(ground.signs.words(), ["near", "far"]);
    ground.close(jobs);
}

/// The clock jumps ten years ahead and back again: what was due by then has run, once; what comes after is on time.
#[test]
fn a_jump_of_ten_years_runs_nothing_twice() {
    let ground = Ground::new();
    let jobs = queue(&ground);
    let ten_years = 10 * 365 * 24 * 3_600_000_i64;
    let now = ground.clock.now().wall;
    let dated = jobs.at(now.after(365 * DAY).to_system(), &Plain::new("dated", 0)).unwrap().id();
    let delayed = jobs.after(HOUR, &Plain::new("delayed", 0)).unwrap().id();
    ground.clock.jump_wall(ten_years);
    ground.settle(&jobs);
    is(&jobs, dated, State::Done);
    is(&jobs, delayed, State::Done);
    let next = jobs.after(HOUR, &Plain::new("next", 0)).unwrap().id();
    ground.settle(&jobs);
    ground.clock.jump_wall(-ten_years);
    ground.pass(&jobs, HOUR - SECOND);
    is(&jobs, next, State::Delayed);
    ground.pass(&jobs, SECOND);
    is(&jobs, next, State::Done);
    assert_eq!(ground.signs.words().len(), 3);
    ground.close(jobs);
}

/// A delay and a backoff are in the file: the app is down meanwhile, on a clock that is right or days behind, and both end when
/// they should, at the latest after the whole time that was asked for.
#[test]
fn waits_survive_a_restart_also_on_a_wrong_clock() {
    let mut restarts = 0;
    for (down, back) in [(MINUTE, 0), (HOUR, 0), (MINUTE, 3 * 24 * 3_600_000_i64)] {
        let ground = Ground::new();
        let jobs = queue(&ground);
        let retry = jobs.enqueue(&Retries::new("retry", 0)).unwrap().id();
        let delay = jobs.after(30 * MINUTE, &Plain::new("delay", 0)).unwrap().id();
        ground.settle(&jobs);
        ground.close(jobs);
        ground.clock.advance(down);
        ground.clock.jump_wall(-back);
        let jobs = queue(&ground);
        ground.settle(&jobs);
        if down == HOUR {
            is(&jobs, retry, State::Done);
            is(&jobs, delay, State::Done);
        } else {
            // The whole wait anew if the calendar cannot be believed, the rest of it otherwise.
            let begun = if back == 0 { down } else { Duration::ZERO };
            ground.pass(&jobs, RETRY - begun - SECOND);
            is(&jobs, retry, State::Delayed);
            ground.pass(&jobs, SECOND);
            is(&jobs, retry, State::Done);
            ground.pass(&jobs, 20 * MINUTE - SECOND);
            is(&jobs, delay, State::Delayed);
            ground.pass(&jobs, SECOND);
            is(&jobs, delay, State::Done);
        }
        assert_eq!(ground.close(jobs).attempts(), 3);
        restarts += 1;
    }
    println!("waits across restarts: {restarts}");
    assert_eq!(restarts, 3);
}

/// More jobs are delayed than are held in memory, all for the same hour of tomorrow, and some before and after. Not one starts
/// early, and when the hour comes all of them start.
#[test]
fn seventy_thousand_delayed_jobs_start_on_time() {
    const MANY: usize = 70_000;
    let ground = Ground::new();
    let begun = Arc::new(AtomicUsize::new(0));
    let count = begun.clone();
    let jobs = ground
        .builder()
        .workers(4)
        .on(move |_, _: Plain| {
            count.fetch_add(1, Ordering::Relaxed);
            Ok(())
        })
        .start()
        .unwrap();
    let due = ground.clock.now().wall.after(DAY);
    for part in 0..MANY / 1_000 {
        jobs.transact::<_, onceward::Error>(move |tx| {
            for n in 0..1_000 {
                let _ = tx.enqueue_at(due.to_system(), &Plain::new(&format!("{part}/{n}"), n))?;
            }
            Ok(())
        })
        .unwrap();
    }
    let early = jobs.after(23 * HOUR, &Plain::new("an hour before", 0)).unwrap().id();
    let late = jobs.after(25 * HOUR, &Plain::new("an hour after", 0)).unwrap().id();
    let settle = || until(|| run_until_idle(&jobs).is_ok());
    ground.clock.advance(12 * HOUR);
    settle();
    assert_eq!(begun.load(Ordering::Relaxed), 0);
    ground.clock.advance(11 * HOUR);
    settle();
    is(&jobs, early, State::Done);
    ground.clock.advance(HOUR - Duration::from_millis(1));
    settle();
    assert_eq!(begun.load(Ordering::Relaxed), 1, "not a millisecond early");
    ground.clock.advance(Duration::from_millis(1));
    settle();
    let on_time = begun.load(Ordering::Relaxed) - 1;
    println!("delayed: {on_time} jobs started in their millisecond");
    assert_eq!(on_time, MANY);
    is(&jobs, late, State::Delayed);
    ground.clock.advance(HOUR);
    settle();
    is(&jobs, late, State::Done);
    jobs.shutdown(PATIENCE).unwrap();
}

/// Delays of every length, in and beyond the hour that is held in memory, told in any order while the clock goes on in uneven
/// steps: each job starts in the step that reaches its time.
#[test]
fn jobs_beyond_the_horizon_start_in_the_step_that_reaches_them() {
    let ground = Ground::new();
    let jobs = queue(&ground);
    let mut rng = fastrand::Rng::with_seed(11);
    let start = ground.clock.now().mono.0;
    let mut waiting: Vec<(u64, String)> = Vec::new();
    let mut begun = 0;
    for step in 0..60 {
        let now = ground.clock.now().mono.0 - start;
        for n in 0..rng.usize(..8) {
            let wait = Duration::from_secs(rng.u64(1..5 * 3600));
            let key = format!("{step}/{n}");
            let _ = jobs.after(wait, &Plain::new(&key, 0)).unwrap();
            waiting.push((now + u64::try_from(wait.as_millis()).unwrap(), key));
        }
        let by = Duration::from_secs(rng.u64(1..2_000));
        ground.pass(&jobs, by);
        let now = ground.clock.now().mono.0 - start;
        let words = ground.signs.words();
        waiting.retain(|(due, key)| {
            let ran = words.contains(key);
            assert_eq!(ran, *due <= now, "{key}, due {due}, now {now}");
            begun += usize::from(ran);
            !ran
        });
    }
    ground.pass(&jobs, 5 * HOUR);
    begun += waiting.len();
    println!("horizon: {begun} delays, {} of them left at the end", waiting.len());
    assert_eq!(ground.signs.words().len(), begun);
    assert!(begun > 100);
    ground.close(jobs);
}
