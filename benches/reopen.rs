//! How long a start takes after a kill: redb's own repair and check of every page, and what the queue adds to it.
//!
//! The file is copied while its queue is open, which is how a killed process leaves it.
#![expect(clippy::disallowed_methods, reason = "a benchmark measures, and its callers are threads")]

use criterion::{Criterion, criterion_group, criterion_main};
use onceward::prelude::*;
use onceward::redb;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const JOBS: u64 = 100_000;

#[derive(Serialize, Deserialize)]
struct Noop {
    n: u64,
    pad: String,
}

impl Job for Noop {
    const KIND: &'static str = "complete-order";
    fn key(&self) -> JobKey {
        format!("ord_{:014}", self.n).into()
    }
}

/// The file and its sidecar as a kill leaves them, with so many jobs waiting.
fn killed(dir: &Path, jobs: u64) -> (PathBuf, PathBuf) {
    let path = dir.join("live.redb");
    let queue = Jobs::open(&path).workers(0).on(|_, _: Noop| Ok(())).start().expect("a queue");
    let mut n = 0;
    while n < jobs {
        let many: Vec<_> = (n..jobs.min(n + 1_000)).map(|n| Noop { n, pad: "9".repeat(104) }).collect();
        n += queue.enqueue_many(&many).expect("enqueued").len() as u64;
    }
    let left = (dir.join("left.redb"), dir.join("left.redb.run"));
    std::fs::copy(&path, &left.0).expect("a copy");
    std::fs::copy(dir.join("live.redb.run"), &left.1).expect("a copy");
    left
}

fn reopen(c: &mut Criterion) {
    let jobs = if std::env::args().any(|a| a == "--test") { 1_000 } else { JOBS };
    let dir = tempfile::tempdir().expect("a temporary directory");
    let (file, sidecar) = killed(dir.path(), jobs);
    let fresh = |n: u64| {
        let path = dir.path().join(format!("fresh-{n}.redb"));
        std::fs::copy(&file, &path).expect("a copy");
        std::fs::copy(&sidecar, dir.path().join(format!("fresh-{n}.redb.run"))).expect("a copy");
        path
    };
    let gone = |path: &Path| {
        let _ = std::fs::remove_file(path);
        let _ = std::fs::remove_file(path.with_extension("redb.run"));
    };
    let mut g = c.benchmark_group("reopen_after_kill");
    g.sample_size(10).warm_up_time(Duration::from_millis(300)).measurement_time(Duration::from_secs(3));
    g.bench_function(format!("redb_alone/{jobs}"), |b| {
        b.iter_custom(|n| {
            (0..n)
                .map(|n| {
                    let path = fresh(n);
                    let t = Instant::now();
                    let db = redb::Database::builder()
                        .set_cache_size(32 << 20)
                        .set_check_integrity_on_open(true)
                        .open(&path)
                        .expect("opened");
                    let took = t.elapsed();
                    drop(db);
                    gone(&path);
                    took
                })
                .sum()
        });
    });
    g.bench_function(format!("queue/{jobs}"), |b| {
        b.iter_custom(|n| {
            (0..n)
                .map(|n| {
                    let path = fresh(n);
                    let t = Instant::now();
                    let queue = Jobs::open(&path).workers(0).on(|_, _: Noop| Ok(())).start().expect("a queue");
                    let took = t.elapsed();
                    queue.shutdown(Duration::from_secs(5)).expect("closed");
                    gone(&path);
                    took
                })
                .sum()
        });
    });
    g.finish();
}

criterion_group!(benches, reopen);
criterion_main!(benches);
