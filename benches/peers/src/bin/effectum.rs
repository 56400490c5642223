//! effectum with its defaults: SQLite, async handlers.

use effectum::{Job, JobRunner, Queue, RunningJob, Worker};
use onceward_peers::{Args, PAYLOAD, peak_kib, percentiles, say};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

struct Context {
    done: AtomicU64,
    started: UnboundedSender<Instant>,
}

impl std::fmt::Debug for Context {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Context")
    }
}

async fn noop(_: RunningJob, context: Arc<Context>) -> Result<(), std::convert::Infallible> {
    let _ = context.started.send(Instant::now());
    context.done.fetch_add(1, Ordering::AcqRel);
    Ok(())
}

fn job() -> effectum::JobBuilder {
    Job::builder("noop").payload(vec![9; PAYLOAD])
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() {
    let args = Args::read();
    let queue = Arc::new(Queue::new(&args.fresh("effectum.db")).await.expect("a queue"));
    let one = args.jobs / 10;
    let t = Instant::now();
    for _ in 0..one {
        job().add_to(&queue).await.expect("added");
    }
    say("effectum", "enqueue_1", one as f64 / t.elapsed().as_secs_f64());
    let each = args.jobs / 64;
    let t = Instant::now();
    let callers: Vec<_> = (0..64)
        .map(|_| {
            let queue = queue.clone();
            tokio::spawn(async move {
                for _ in 0..each {
                    job().add_to(&queue).await.expect("added");
                }
            })
        })
        .collect();
    for caller in callers {
        caller.await.expect("a caller");
    }
    say("effectum", "enqueue_64", (64 * each) as f64 / t.elapsed().as_secs_f64());
    let bulks = args.jobs / 1_000;
    let t = Instant::now();
    for _ in 0..bulks {
        queue.add_jobs((0..1_000).map(|_| job().build()).collect::<Vec<_>>()).await.expect("added");
    }
    say("effectum", "bulk_1000", (1_000 * bulks) as f64 / t.elapsed().as_secs_f64());

    let all = one + 64 * each + 1_000 * bulks;
    let (started, mut starts) = unbounded_channel();
    let context = Arc::new(Context { done: AtomicU64::new(0), started });
    let t = Instant::now();
    let worker = Worker::builder(&queue, context.clone())
        .jobs(vec![JobRunner::builder("noop", noop).build()])
        .min_concurrency(64)
        .max_concurrency(256)
        .build()
        .await
        .expect("a worker");
    while context.done.load(Ordering::Acquire) < all && t.elapsed() < Duration::from_secs(120) {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let done = context.done.load(Ordering::Acquire);
    assert_eq!(done, all, "jobs were left");
    say("effectum", "drain", done as f64 / t.elapsed().as_secs_f64());
    tokio::time::sleep(Duration::from_millis(300)).await;
    while starts.try_recv().is_ok() {}
    let mut times = Vec::new();
    for _ in 0..200 {
        let t = Instant::now();
        job().add_to(&queue).await.expect("added");
        let start = starts.recv().await.expect("it started");
        times.push(start.saturating_duration_since(t));
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    let (p50, p99) = percentiles(times);
    say("effectum", "latency_p50_us", p50);
    say("effectum", "latency_p99_us", p99);
    say("effectum", "peak_kib", peak_kib());
    drop(worker);
    std::process::exit(0);
}
