//! rustqueue with its defaults on its redb backend: one-phase commits, one per call.

use onceward_peers::{Args, PAYLOAD, peak_kib, say};
use rustqueue::RustQueue;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> anyhow::Result<()> {
    let args = Args::read();
    let queue = Arc::new(RustQueue::redb(args.fresh("rustqueue.redb"))?.build()?);
    let payload = serde_json::json!({ "p": "9".repeat(PAYLOAD - 8) });
    let one = args.jobs / 10;
    let t = Instant::now();
    for _ in 0..one {
        queue.push("noop", "noop", payload.clone(), None).await?;
    }
    say("rustqueue", "enqueue_1", one as f64 / t.elapsed().as_secs_f64());
    let each = args.jobs / 64;
    let t = Instant::now();
    let callers: Vec<_> = (0..64)
        .map(|_| {
            let (queue, payload) = (queue.clone(), payload.clone());
            tokio::spawn(async move {
                for _ in 0..each {
                    queue.push("noop", "noop", payload.clone(), None).await.expect("pushed");
                }
            })
        })
        .collect();
    for caller in callers {
        caller.await?;
    }
    say("rustqueue", "enqueue_64", (64 * each) as f64 / t.elapsed().as_secs_f64());
    let done = Arc::new(AtomicU64::new(0));
    let t = Instant::now();
    let workers: Vec<_> = (0..8)
        .map(|_| {
            let (queue, done) = (queue.clone(), done.clone());
            tokio::spawn(async move {
                loop {
                    let jobs = queue.pull("noop", 32).await.expect("pulled");
                    if jobs.is_empty() {
                        return;
                    }
                    for job in jobs {
                        queue.ack(job.id, None).await.expect("acknowledged");
                        done.fetch_add(1, Ordering::AcqRel);
                    }
                }
            })
        })
        .collect();
    for worker in workers {
        worker.await?;
    }
    let done = done.load(Ordering::Acquire);
    assert_eq!(done, one + 64 * each, "jobs were left");
    say("rustqueue", "drain", done as f64 / t.elapsed().as_secs_f64());
    say("rustqueue", "peak_kib", peak_kib());
    Ok(())
}
