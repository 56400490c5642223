//! kill -9 of a real child on a real file. The parent keeps the expected state outside: what the child said before it died, and a
//! ledger file of what really happened. Lost: acknowledged and not done at the end. Repeated: an effect that happened twice.
//!
//! `ONCEWARD_KILLS=10000 cargo test --test suite kill:: -- --nocapture` for more than the kills of every run (300, and 200 while undoing).
//! `ONCEWARD_STOPS` sets how often the process is stopped and goes on (20).
#![expect(clippy::disallowed_methods, reason = "a suite about processes: it starts, kills, waits for and times them")]

mod app;
mod child;
mod effects;
#[cfg(feature = "tokio")]
mod fenced;
mod parent;
mod poison;
mod publisher;
mod series;
mod shop;
#[cfg(unix)]
mod stopped;
mod undone;

#[cfg(all(feature = "http", feature = "nats", feature = "postgres", feature = "mqtt"))]
pub(crate) use {app::say, parent::Life};

use series::Series;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// Queue files at a time.
const FILES: usize = 4;
/// Kills of one queue file, before everything is looked at.
const KILLS_PER_FILE: usize = 25;

/// Not a test: the process that the others kill. Does nothing unless one of them started it.
#[test]
fn child() {
    child::main();
}

/// The process is killed at every named point of a job's way, in the middle of anything else, while it opens, creates and closes
/// its file: no acknowledged job is lost, no effect happens twice, and whatever does not end by itself asks a named question.
#[test]
fn kill_9_loses_nothing_and_repeats_nothing() {
    let wanted = wanted(300);
    let files = wanted.div_ceil(KILLS_PER_FILE);
    let all = side_by_side(files, |n| series::run(n, KILLS_PER_FILE), Series::add);
    all.print(files);
    assert!(all.kills >= wanted, "{} kills instead of {wanted}", all.kills);
    assert!(all.jobs > files * 50 && all.effects > all.jobs, "hardly anything was at stake");
    killed_at_each(app::POINTS, &all.at, wanted, 300);
    assert_eq!((all.lost, all.repeated), (0, 0));
}

/// How many kills are asked for, where every run has `usual`.
fn wanted(usual: usize) -> usize {
    std::env::var("ONCEWARD_KILLS").map_or(usual, |n| n.parse().expect("ONCEWARD_KILLS is a number"))
}

/// Each named point was hit: at least once where the `usual` kills were asked for, and a hundred times in a series of 10,000.
fn killed_at_each(points: &[&str], at: &BTreeMap<String, usize>, wanted: usize, usual: usize) {
    let least = if wanted >= 10_000 { 100 } else { usize::from(wanted >= usual) };
    for point in points {
        let hits = at.get(*point).copied().unwrap_or(0);
        assert!(hits >= least, "killed {hits} times at {point:?} instead of {least}");
    }
}

/// Kills this many queue files, some of them at a time.
fn side_by_side<T: Default + Send>(files: usize, run: impl Fn(usize) -> T + Sync, add: fn(&mut T, T)) -> T {
    let next = AtomicUsize::new(0);
    std::thread::scope(|s| {
        let work = || {
            let mut sum = T::default();
            loop {
                let n = next.fetch_add(1, Ordering::Relaxed);
                if n >= files {
                    break sum;
                }
                add(&mut sum, run(n));
            }
        };
        let threads: Vec<_> = (0..FILES).map(|_| s.spawn(work)).collect();
        let mut all = T::default();
        for t in threads {
            match t.join() {
                Ok(one) => add(&mut all, one),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        all
    })
}

/// Longer than any step may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);
