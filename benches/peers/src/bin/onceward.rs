//! onceward with its defaults: durable, two-phase commits, 32 MiB of cache.
//!
//! `onceward DIR JOBS` measures throughput and latency. `onceward DIR JOBS one-phase` does so with that named option. `onceward
//! DIR JOBS only METRIC` measures one figure of throughput, for a profiler. `onceward DIR JOBS large` loads JOBS jobs and measures what depends on how many there are; `churn SECONDS` and `idle SECONDS` watch a
//! file that is used, and a queue that is not.

use onceward::prelude::*;
use onceward::{Scope, State, redb::TableDefinition};
use onceward_peers::{Args, PAYLOAD, cpu, cpu_of, peak_kib, percentiles, proc, rate, say, wakeups};
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(600);
const PAID: TableDefinition<u64, u64> = TableDefinition::new("paid");

/// A job with a key like a real one. The payload is as long as the others'.
macro_rules! noop {
    ($name:ident, $kind:literal) => {
        #[derive(Serialize, Deserialize)]
        struct $name {
            n: u64,
            pad: String,
        }
        impl $name {
            fn new(n: u64) -> Self {
                Self { n, pad: "9".repeat(PAYLOAD - 24) }
            }
        }
        impl Job for $name {
            const KIND: &'static str = $kind;
            fn key(&self) -> JobKey {
                format!("ord_{:014}", self.n).into()
            }
        }
    };
}
noop!(Noop, "complete-order");
noop!(Task, "complete-order-async");

/// The same with keys that are spread over the whole index.
#[derive(Serialize, Deserialize)]
struct Spread(Noop);
impl Job for Spread {
    const KIND: &'static str = "spread";
    fn key(&self) -> JobKey {
        format!("ord_{:014}", self.0.n.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 20).into()
    }
}

#[derive(Serialize, Deserialize)]
struct Pay(u64);
impl Job for Pay {
    const KIND: &'static str = "pay";
    fn key(&self) -> JobKey {
        self.0.to_string().into()
    }
    fn effects() -> Vec<EffectCard> {
        vec![Call::card()]
    }
}

#[derive(Serialize, Deserialize)]
struct Call(u64);
impl Effect for Call {
    type Result = u64;
    const NAME: &'static str = "call";
    fn says(&self) -> String {
        format!("call {}", self.0)
    }
    fn recovery() -> Recovery {
        Recovery::same_key(Duration::from_secs(3600))
    }
}

struct Queue {
    jobs: Jobs,
    done: Arc<AtomicU64>,
    starts: Receiver<Instant>,
}

#[derive(Clone, Copy)]
struct Setup<'a> {
    path: &'a Path,
    workers: usize,
    one_phase: bool,
}

impl Setup<'_> {
    fn open(self) -> Queue {
        let done = Arc::new(AtomicU64::new(0));
        let (say, starts): (Sender<Instant>, _) = channel();
        let count = |done: &Arc<AtomicU64>| {
            let done = done.clone();
            move || {
                done.fetch_add(1, Ordering::Relaxed);
            }
        };
        let (a, b, c) = (count(&done), count(&done), count(&done));
        let mut builder = Jobs::open(self.path)
            .workers(self.workers)
            .effect(|c: &Call, _| Ok(c.0))
            .on(move |_, _: Noop| {
                let _ = say.send(Instant::now());
                a();
                Ok(())
            })
            .on(move |_, _: Spread| {
                b();
                Ok(())
            })
            .on(|cx, job: Pay| {
                let n = cx.effect(Call(job.0))?;
                cx.finish(move |tx| {
                    tx.open_table(PAID)?.insert(job.0, n)?;
                    Ok(())
                })
            })
            .on_async(move |_, _: Task| {
                c();
                async { Ok(()) }
            });
        if self.one_phase {
            builder = builder.one_phase_commits();
        }
        Queue { jobs: builder.start().expect("a queue"), done, starts }
    }
}

impl Queue {
    fn close(self) {
        self.jobs.shutdown(PATIENCE).expect("closed");
    }
    fn dry(&self) {
        self.jobs.resume(Scope::All).expect("resumed");
        self.jobs.drain(PATIENCE).expect("drained");
    }
    fn bulk<J: Job>(&self, from: u64, until: u64, make: impl Fn(u64) -> J) {
        let mut n = from;
        while n < until {
            let many: Vec<J> = (n..until.min(n + 1_000)).map(&make).collect();
            n += self.jobs.enqueue_many(&many).expect("enqueued").len() as u64;
        }
    }
    /// Callers that wait for their own answer before they come again.
    fn callers<J: Job>(&self, callers: u64, from: u64, jobs: u64, make: impl Fn(u64) -> J + Sync) {
        let (make, queue) = (&make, &self.jobs);
        thread::scope(|scope| {
            for caller in 0..callers {
                scope.spawn(move || {
                    for n in (from + caller..from + jobs).step_by(callers as usize) {
                        assert!(queue.enqueue(&make(n)).expect("enqueued").is_new());
                    }
                });
            }
        });
    }
    fn tasks(&self, runtime: &tokio::runtime::Runtime, tasks: u64, jobs: u64) {
        let spawned: Vec<_> = (0..tasks)
            .map(|task| {
                let queue = self.jobs.clone();
                runtime.spawn(async move {
                    for n in (task..jobs).step_by(tasks as usize) {
                        assert!(queue.enqueue_async(&Noop::new(n)).await.expect("enqueued").is_new());
                    }
                })
            })
            .collect();
        for task in spawned {
            runtime.block_on(task).expect("a task");
        }
    }
}

struct Run {
    args: Args,
    who: &'static str,
    one_phase: bool,
    only: Option<String>,
}

impl Run {
    fn say(&self, metric: &str, value: f64) {
        say(self.who, metric, value);
    }
    /// One figure over a queue of its own; the queue is made ready outside of the measured time.
    fn measure(&self, metric: &str, jobs: u64, workers: usize, ready: impl Fn(&Queue), timed: impl Fn(&Queue)) {
        if self.only.as_ref().is_some_and(|only| only != metric) {
            return;
        }
        let path = self.args.fresh("onceward.redb");
        let queue = Setup { path: &path, workers, one_phase: self.one_phase }.open();
        ready(&queue);
        let before = cpu_of("onceward-writer");
        self.say(metric, rate(jobs, || timed(&queue)));
        // What neighbours on the machine hardly change.
        let used = cpu_of("onceward-writer") - before;
        self.say(&format!("{metric}_writer_ns"), used.as_nanos() as f64 / jobs as f64);
        queue.close();
    }

    fn throughput(&self) {
        let jobs = self.args.jobs;
        let none = |_: &Queue| {};
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().expect("a runtime");
        self.measure("enqueue_1", jobs / 40, 0, none, |q| q.callers(1, 0, jobs / 40, Noop::new));
        self.measure("enqueue_64", jobs, 0, none, |q| q.callers(64, 0, jobs, Noop::new));
        self.measure("enqueue_64_tasks", jobs, 0, none, |q| q.tasks(&runtime, 64, jobs));
        self.measure("bulk_1000", jobs, 0, none, |q| q.bulk(0, jobs, Noop::new));
        let fill = |q: &Queue| {
            q.jobs.pause(Scope::All, "filling").expect("paused");
            q.bulk(0, jobs, Noop::new);
        };
        self.measure("drain", jobs, 2, fill, |q| {
            q.dry();
            assert_eq!(q.done.load(Ordering::Relaxed), jobs, "every job ran once");
        });
        let fill = |q: &Queue| {
            q.jobs.pause(Scope::All, "filling").expect("paused");
            q.bulk(0, jobs, Task::new);
        };
        self.measure("drain_async", jobs, 0, fill, Queue::dry);
        self.measure("pipeline_64", jobs, 2, none, |q| {
            q.callers(64, 0, jobs, Noop::new);
            q.dry();
        });
        self.measure("pipeline_256_tasks", jobs, 2, none, |q| {
            q.tasks(&runtime, 256, jobs);
            q.dry();
        });
        self.measure("life_bulk", jobs, 2, none, |q| {
            q.bulk(0, jobs, Noop::new);
            q.dry();
        });
        let few = jobs / 5;
        let fill = |q: &Queue| {
            q.jobs.pause(Scope::All, "filling").expect("paused");
            q.bulk(0, few, Pay);
        };
        self.measure("effect_job_64", few, 64, fill, Queue::dry);
        self.measure("app_commits_64", jobs, 0, none, |q| {
            let queue = &q.jobs;
            thread::scope(|scope| {
                for caller in 0..64 {
                    scope.spawn(move || {
                        for n in (caller..jobs).step_by(64) {
                            let told: Result<(), Fail> = queue.transact(move |tx| {
                                tx.open_table(PAID)?.insert(n, n)?;
                                Ok(())
                            });
                            told.expect("committed");
                        }
                    });
                }
            });
        });
        if self.only.is_none() {
            self.latency();
            self.costs();
        }
    }

    /// From the call of `enqueue` to the first line of the handler, on a queue that has nothing else to do.
    fn latency(&self) {
        let path = self.args.fresh("onceward.redb");
        let queue = Setup { path: &path, workers: 2, one_phase: self.one_phase }.open();
        let times = (0..200)
            .map(|n| {
                let t = Instant::now();
                let id = queue.jobs.enqueue(&Noop::new(n)).expect("enqueued").id();
                let start = queue.starts.recv().expect("it started");
                assert_eq!(queue.jobs.wait(id, PATIENCE).expect("done"), State::Done);
                start.saturating_duration_since(t)
            })
            .collect();
        let (p50, p99) = percentiles(times);
        self.say("latency_p50_us", p50);
        self.say("latency_p99_us", p99);
        queue.close();
    }

    /// Bytes that a job costs on the disk, over its whole life, alone and in bulk.
    fn costs(&self) {
        for (metric, jobs, size) in [("bytes_alone", 500, 1), ("bytes_in_bulk", self.args.jobs, 1_000)] {
            let path = self.args.fresh("onceward.redb");
            let queue = Setup { path: &path, workers: 2, one_phase: self.one_phase }.open();
            let before = proc("io", "write_bytes:");
            if size == 1 {
                queue.callers(1, 0, jobs, Noop::new);
            } else {
                queue.bulk(0, jobs, Noop::new);
            }
            queue.dry();
            self.say(metric, (proc("io", "write_bytes:") - before) as f64 / jobs as f64);
            queue.close();
        }
        self.say("peak_kib", peak_kib());
    }

    /// What depends on how many jobs there are.
    fn large(&self) {
        let jobs = self.args.jobs;
        let path = self.args.fresh("onceward.redb");
        let setup = Setup { path: &path, workers: 0, one_phase: self.one_phase };
        let queue = setup.open();
        let tenth = jobs / 10;
        self.say("bulk_first_tenth", rate(tenth, || queue.bulk(0, tenth, Noop::new)));
        queue.bulk(tenth, jobs - tenth, Noop::new);
        self.say("bulk_last_tenth", rate(tenth, || queue.bulk(jobs - tenth, jobs, Noop::new)));
        self.say("waiting_peak_kib", peak_kib());
        queue.close();
        let t = Instant::now();
        let queue = setup.open();
        self.say("reopen_ms", t.elapsed().as_secs_f64() * 1e3);
        queue.close();

        // The history of all of them, and as many scheduled ones as a fifth.
        let queue = Setup { workers: 2, ..setup }.open();
        queue.dry();
        let later = Duration::from_secs(30 * 24 * 3600);
        thread::scope(|scope| {
            for caller in 0..64 {
                let jobs_of = &queue.jobs;
                scope.spawn(move || {
                    for n in (caller..jobs / 5).step_by(64) {
                        jobs_of.after(later, &Task::new(n)).expect("scheduled");
                    }
                });
            }
        });
        while queue.starts.try_recv().is_ok() {}
        let claims = |queue: &Queue, from: u64| {
            let times = (from..from + 500)
                .map(|n| {
                    let t = Instant::now();
                    let id = queue.jobs.enqueue(&Noop::new(n)).expect("enqueued").id();
                    let start = queue.starts.recv().expect("it started");
                    assert_eq!(queue.jobs.wait(id, PATIENCE).expect("done"), State::Done);
                    start.saturating_duration_since(t)
                })
                .collect();
            percentiles(times)
        };
        let (_, full) = claims(&queue, jobs);
        queue.close();
        let empty = Setup { path: &self.args.fresh("empty.redb"), workers: 2, one_phase: self.one_phase }.open();
        let (_, bare) = claims(&empty, 0);
        empty.close();
        self.say("claim_p99_full_us", full);
        self.say("claim_p99_empty_us", bare);

        // Scattered keys over as many existing ones.
        let path = self.args.fresh("onceward.redb");
        let queue = Setup { path: &path, workers: 0, one_phase: self.one_phase }.open();
        queue.bulk(0, jobs, |n| Spread(Noop::new(n)));
        let more = tenth.min(50_000);
        self.say("scattered_bulk_1000", rate(more, || queue.bulk(jobs, jobs + more, |n| Spread(Noop::new(n)))));
        self.say("scattered_64", rate(more, || queue.callers(64, jobs + more, more, |n| Spread(Noop::new(n)))));
        queue.close();
    }

    /// A file under steady use: does it grow, and does a job cost more with time?
    fn churn(&self, seconds: u64) {
        let path = self.args.fresh("onceward.redb");
        let queue = Setup { path: &path, workers: 2, one_phase: self.one_phase }.open();
        let (start, mut n) = (Instant::now(), 0);
        for part in 1..=4 {
            let (before, from) = (proc("io", "write_bytes:"), n);
            while start.elapsed() < Duration::from_secs(seconds * part / 4) {
                queue.bulk(n, n + 5_000, Noop::new);
                queue.dry();
                n += 5_000;
                while queue.starts.try_recv().is_ok() {}
            }
            let size = std::fs::metadata(&path).map_or(0, |m| m.len());
            self.say(&format!("churn_{part}_jobs"), n as f64);
            self.say(&format!("churn_{part}_file_bytes"), size as f64);
            self.say(
                &format!("churn_{part}_bytes_per_job"),
                (proc("io", "write_bytes:") - before) as f64 / (n - from).max(1) as f64,
            );
        }
        queue.close();
    }

    /// A queue that has nothing to do, with and without something that is due one day.
    fn idle(&self, seconds: u64) {
        for (what, scheduled) in [("nothing", false), ("scheduled", true)] {
            let path = self.args.fresh("onceward.redb");
            let queue = Setup { path: &path, workers: 2, one_phase: self.one_phase }.open();
            if scheduled {
                queue.jobs.after(Duration::from_secs(24 * 3600), &Noop::new(1)).expect("scheduled");
            }
            thread::sleep(Duration::from_secs(2));
            let (woke, used) = (wakeups(), cpu());
            thread::sleep(Duration::from_secs(seconds));
            // This thread's own sleep is one of them.
            self.say(&format!("idle_{what}_wakeups"), (wakeups() - woke).saturating_sub(1) as f64);
            self.say(&format!("idle_{what}_cpu_ms"), (cpu() - used).as_secs_f64() * 1e3);
            queue.close();
        }
    }
}

fn main() {
    let args = Args::read();
    let words: Vec<String> = args.more.clone();
    let seconds = |n: usize| words.get(n).and_then(|n| n.parse().ok()).unwrap_or(60);
    let one_phase = words.iter().any(|w| w == "one-phase");
    let only = words.iter().skip_while(|w| *w != "only").nth(1).cloned();
    let run = Run { only, args, who: if one_phase { "onceward-one-phase" } else { "onceward" }, one_phase };
    match words.first().map(String::as_str) {
        None | Some("one-phase" | "only") => run.throughput(),
        Some("large") => run.large(),
        Some("churn") => run.churn(seconds(1)),
        Some("idle") => run.idle(seconds(1)),
        Some(other) => panic!("{other:?} is none of: one-phase, only METRIC, large, churn SECONDS, idle SECONDS"),
    }
}
