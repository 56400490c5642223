//! How fast the queue is with its defaults: durable, two-phase commits, 128-byte payloads, handlers that do nothing.
//!
//! Compare ratios of one run only; absolute figures move with the machine.
#![expect(clippy::disallowed_methods, reason = "a benchmark measures, and its callers are threads")]

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use onceward::prelude::*;
use onceward::{Scope, redb::TableDefinition};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(120);
const PAID: TableDefinition<u64, u64> = TableDefinition::new("paid");

/// 128 bytes of payload, a key like a real one.
#[derive(Serialize, Deserialize)]
struct Noop {
    n: u64,
    pad: String,
}

impl Noop {
    fn new(n: u64) -> Self {
        Self { n, pad: "9".repeat(104) }
    }
}

impl Job for Noop {
    const KIND: &'static str = "complete-order";
    fn key(&self) -> JobKey {
        format!("ord_{:014}", self.n).into()
    }
}

#[derive(Serialize, Deserialize)]
struct Pay {
    n: u64,
}

impl Job for Pay {
    const KIND: &'static str = "pay";
    fn key(&self) -> JobKey {
        self.n.to_string().into()
    }
    fn effects() -> Vec<EffectCard> {
        vec![Call::card()]
    }
}

#[derive(Serialize, Deserialize)]
struct Call {
    n: u64,
}

impl Effect for Call {
    type Result = u64;
    const NAME: &'static str = "call";
    fn says(&self) -> String {
        format!("call {}", self.n)
    }
    fn recovery() -> Recovery {
        Recovery::same_key(Duration::from_secs(3600))
    }
}

/// A queue in a directory of its own.
struct Bench {
    jobs: Jobs,
    done: Arc<AtomicU64>,
    _dir: tempfile::TempDir,
}

fn open(workers: usize) -> Bench {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let done = Arc::new(AtomicU64::new(0));
    let count = done.clone();
    let jobs = Jobs::open(dir.path().join("bench.redb"))
        .workers(workers)
        .effect(|c: &Call, _| Ok(c.n))
        .on(move |_, _: Noop| {
            count.fetch_add(1, Ordering::Relaxed);
            Ok(())
        })
        .on(|cx, job: Pay| {
            let n = cx.effect(Call { n: job.n })?;
            cx.finish(move |tx| {
                tx.open_table(PAID)?.insert(job.n, n)?;
                Ok(())
            })
        })
        .start()
        .expect("a queue");
    Bench { jobs, done, _dir: dir }
}

fn timed(f: impl FnOnce()) -> Duration {
    let t = Instant::now();
    f();
    t.elapsed()
}

fn enqueue_from(jobs: &Jobs, threads: u64, total: u64) {
    std::thread::scope(|s| {
        for t in 0..threads {
            s.spawn(move || {
                for n in (t..total).step_by(usize::try_from(threads).unwrap_or(1)) {
                    assert!(jobs.enqueue(&Noop::new(n)).expect("enqueued").is_new());
                }
            });
        }
    });
}

fn bulk(jobs: &Jobs, total: u64) {
    let mut n = 0;
    while n < total {
        let many: Vec<_> = (n..total.min(n + 1_000)).map(Noop::new).collect();
        n += jobs.enqueue_many(&many).expect("enqueued").len() as u64;
    }
}

/// So many jobs in one measured run: enough for full rounds, few enough for ten runs.
fn size(jobs: u64) -> u64 {
    // `--test` only has to run each body once.
    if std::env::args().any(|a| a == "--test") { jobs / 100 + 64 } else { jobs }
}

/// Measures `run`, which returns the time of its timed part, over `jobs` jobs each time.
fn bench(c: &mut Criterion, name: &str, jobs: u64, run: impl Fn(u64) -> Duration) {
    let jobs = size(jobs);
    let mut g = c.benchmark_group("throughput");
    g.sample_size(10).warm_up_time(Duration::from_millis(300)).measurement_time(Duration::from_secs(2));
    g.throughput(Throughput::Elements(jobs));
    g.bench_function(name, |b| b.iter_custom(|n| (0..n).map(|_| run(jobs)).sum()));
    g.finish();
}

fn fill_paused(q: &Bench, n: u64) {
    q.jobs.pause(Scope::All, "filling").expect("paused");
    bulk(&q.jobs, n);
}

fn run_dry(q: &Bench) {
    q.jobs.resume(Scope::All).expect("resumed");
    q.jobs.drain(PATIENCE).expect("drained");
}

fn throughput(c: &mut Criterion) {
    bench(c, "enqueue_1", 400, |n| {
        let q = open(0);
        timed(|| enqueue_from(&q.jobs, 1, n))
    });
    bench(c, "enqueue_64", 12_800, |n| {
        let q = open(0);
        timed(|| enqueue_from(&q.jobs, 64, n))
    });
    bench(c, "bulk_1000", 20_000, |n| {
        let q = open(0);
        timed(|| bulk(&q.jobs, n))
    });
    bench(c, "drain", 20_000, |n| {
        let q = open(2);
        fill_paused(&q, n);
        let took = timed(|| run_dry(&q));
        assert_eq!(q.done.load(Ordering::Relaxed), n, "every job ran once");
        took
    });
    bench(c, "pipeline_64", 12_800, |n| {
        let q = open(2);
        let took = timed(|| {
            enqueue_from(&q.jobs, 64, n);
            q.jobs.drain(PATIENCE).expect("drained");
        });
        assert_eq!(q.done.load(Ordering::Relaxed), n, "every job ran once");
        took
    });
    bench(c, "effect_job_64", 3_200, |n| {
        let q = open(64);
        q.jobs.pause(Scope::All, "filling").expect("paused");
        let many: Vec<_> = (0..n).map(|n| Pay { n }).collect();
        for part in many.chunks(1_000) {
            assert_eq!(q.jobs.enqueue_many(part).expect("enqueued").len(), part.len());
        }
        timed(|| run_dry(&q))
    });
}

fn latency(c: &mut Criterion) {
    let mut g = c.benchmark_group("latency");
    g.sample_size(10).warm_up_time(Duration::from_millis(500)).measurement_time(Duration::from_secs(3));
    g.bench_function("idle_enqueue_to_handler_start", |b| {
        b.iter_custom(|n| {
            let dir = tempfile::tempdir().expect("a temporary directory");
            let (say, hear) = std::sync::mpsc::channel();
            let jobs = Jobs::open(dir.path().join("bench.redb"))
                .workers(2)
                .on(move |_, _: Noop| {
                    let _ = say.send(Instant::now());
                    Ok(())
                })
                .start()
                .expect("a queue");
            let mut total = Duration::ZERO;
            for n in 0..n {
                let t = Instant::now();
                let id = jobs.enqueue(&Noop::new(n)).expect("enqueued").id();
                total += hear.recv().expect("started").saturating_duration_since(t);
                jobs.wait(id, PATIENCE).expect("done");
            }
            total
        });
    });
    g.finish();
}

criterion_group!(benches, throughput, latency);
criterion_main!(benches);
