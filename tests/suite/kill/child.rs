//! The child: opens the queue, places its orders, runs until it is quiet, closes; killed somewhere on the way.

use super::app::{Order, Quick, STOP_AT, place, queue, say};
use super::effects::Ledger;
use super::{PATIENCE, poison};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicUsize;
use std::time::Instant;

/// Tells the child what to be: `what|directory|arguments`.
pub(super) const CHILD: &str = "ONCEWARD_KILL_CHILD";

/// Jobs that are enqueued together, in some lives.
const QUICK: u64 = 60;

/// Whether this process was told what to be.
pub(super) fn is_child() -> bool {
    std::env::var_os(CHILD).is_some()
}

/// Told what to be, this process is a child; otherwise nothing happens.
pub(super) fn main() {
    let Ok(told) = std::env::var(CHILD) else { return };
    let told: Vec<&str> = told.split('|').collect();
    let number = |text: &str| text.parse().expect("a number");
    match told[..] {
        ["orders", dir, first, count, point, nth] => {
            stop_at(point, number(nth));
            orders(Path::new(dir), number(first) as u64, number(count) as u64);
        }
        ["shop", dir, first, count, point, nth] => {
            stop_at(point, number(nth));
            super::shop::child(Path::new(dir), number(first) as u64, number(count) as u64);
        }
        ["poison", dir] => poison::child(&PathBuf::from(dir)),
        ["poison-publisher", dir] => super::publisher::child(Path::new(dir)),
        #[cfg(all(feature = "http", feature = "nats", feature = "postgres", feature = "mqtt"))]
        ["sender", dir, broker, address, topic, stop] => {
            crate::publishers::sender::child(Path::new(dir), broker, address, topic, stop == "stop");
        }
        #[cfg(unix)]
        ["stopped", dir, count] => super::stopped::child(Path::new(dir), number(count) as u64),
        _ => panic!("not a child: {told:?}"),
    }
    say("closed");
}

/// Stops at this named point, the how-many-th time it is passed.
fn stop_at(point: &str, nth: usize) {
    if !point.is_empty() {
        let _ = STOP_AT.set((point.to_owned(), AtomicUsize::new(nth)));
    }
}

fn orders(dir: &Path, first: u64, count: u64) {
    let ledger = Ledger::open(dir);
    say("opening");
    let watch = Instant::now();
    let jobs = queue(dir, &ledger).start().expect("a kill leaves a file that opens");
    say(&format!("open {}", watch.elapsed().as_micros()));
    if first.is_multiple_of(4) {
        let quick: Vec<_> = (first * QUICK..(first + 1) * QUICK).map(|n| Quick { n }).collect();
        for (job, told) in quick.iter().zip(jobs.enqueue_many(&quick).expect("many can be enqueued")) {
            say(&format!("quick-ack {} {}", job.n, told.id()));
        }
    }
    std::thread::scope(|s| {
        for side in 0..2 {
            let jobs = &jobs;
            s.spawn(move || {
                for n in (first..first + count).filter(|n| n % 2 == side) {
                    say(&format!("try {n}"));
                    let told = if n % 4 < 2 {
                        place(jobs, n).expect("an order can be placed")
                    } else {
                        jobs.enqueue(&Order::new(n)).expect("an order can be enqueued")
                    };
                    say(&format!("ack {n} {}", told.id()));
                }
            });
        }
    });
    jobs.drain(PATIENCE).expect("everything runs");
    say("closing");
    jobs.shutdown(PATIENCE).expect("it closes");
}
