//! Async handlers on tokio: the same promises as on threads, and those about runtimes that are blocked or gone.

use super::{Mine, until};
use crate::ground::{DAY, Ground, HOUR, MINUTE, PATIENCE, SECOND, Signs, is, kind, listen, thread};
use onceward::{AsyncCx, Backoff, Error, Fail, Policy, State};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};

const RARELY: Duration = Duration::from_secs(100_000);

kind!(Task = "task" {
    fn policy() -> Policy {
        Policy::default().backoff(Backoff::steps([RARELY])).stall_timeout(MINUTE).attempt_timeout(10 * MINUTE)
    }
});
kind!(Good = "good");
kind!(Blocking = "blocking");

const PANICS: [&str; 6] =
    ["before the future", "first poll", "after an await", "a local's drop", "odd payload", "payload's drop"];

async fn go_wild(how: &'static str) -> onceward::Outcome {
    let _mine = (how == "a local's drop").then(|| Mine("in a drop"));
    if how == "first poll" {
        panic!("at once");
    }
    tokio::task::yield_now().await;
    match how {
        "after an await" => panic!("later"),
        "odd payload" => std::panic::panic_any(vec![1_u8]),
        "payload's drop" => std::panic::panic_any(Mine("the payload of a panic")),
        _ => Ok(()),
    }
}

/// An async handler panics in every way there is, one task at a time: each costs one attempt, and the next job runs at once.
#[test]
fn a_panic_in_a_task_costs_one_attempt_and_the_next_job_runs_at_once() {
    let ground = Ground::new();
    let signs = ground.signs.clone();
    let jobs = ground
        .builder()
        .tasks(1)
        .on_async(|_, j: Task| {
            let how = PANICS[usize::try_from(j.n).unwrap()];
            if how == "before the future" {
                panic!("no future");
            }
            go_wild(how)
        })
        .on_async(move |_, j: Good| {
            signs.say(j.key);
            async { Ok(()) }
        })
        .start()
        .unwrap();
    let mut ids = Vec::new();
    for (n, how) in PANICS.iter().enumerate() {
        ids.push(jobs.enqueue(&Task::new(how, n as u64)).unwrap().id());
        let good = jobs.enqueue(&Good::new(how, 0)).unwrap().id();
        assert_eq!(jobs.wait(good, PATIENCE).unwrap(), State::Done, "after {how}");
    }
    ground.settle(&jobs);
    for (id, how) in ids.iter().zip(PANICS) {
        is(&jobs, *id, State::Delayed);
        let past = format!("{:?}", jobs.history(*id).unwrap());
        assert!(past.contains("panicked: "), "{how}: {past}");
    }
    ground.close(jobs);
    println!("panics in tasks: {} ways", ids.len());
    assert_eq!(ground.signs.words(), PANICS);
}

/// Two thousand jobs at once, half of which have to wait for something: they are claimed ahead of the tasks, each runs once, and never
/// more at a time than were asked for.
#[test]
fn tasks_are_given_work_ahead_and_never_more_at_a_time_than_asked_for() {
    const JOBS: u64 = 2_000;
    let ground = Ground::new();
    let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (at_work, peak) = (now.clone(), most.clone());
    let jobs = ground
        .builder()
        .tasks(3)
        .on_async(move |_, j: Good| {
            let (at_work, peak) = (at_work.clone(), peak.clone());
            async move {
                peak.fetch_max(at_work.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                if j.n.is_multiple_of(2) {
                    tokio::task::yield_now().await;
                }
                at_work.fetch_sub(1, Ordering::SeqCst);
                Ok(())
            }
        })
        .start()
        .unwrap();
    let batch: Vec<_> = (0..JOBS).map(|n| Good::new(&n.to_string(), n)).collect();
    let ids: Vec<_> = jobs.enqueue_many(&batch).unwrap().iter().map(|e| e.id()).collect();
    ground.settle(&jobs);
    ids.iter().for_each(|id| is(&jobs, *id, State::Done));
    assert_eq!(now.load(Ordering::SeqCst), 0);
    assert!((1..=3).contains(&most.load(Ordering::SeqCst)), "{most:?} at a time");
    let recount = ground.close(jobs);
    assert_eq!(recount.attempts(), JOBS);
    println!("work ahead: {JOBS} jobs, {most:?} at a time");
}

/// Handlers that wait for each other: as many are at work as there are places, whatever the runtime's threads take from each other
/// while they are started.
#[test]
fn as_many_tasks_are_at_work_as_there_are_places() {
    const PLACES: u64 = 64;
    const ROUNDS: u64 = 40;
    let ground = Ground::new();
    let begun = Arc::new(AtomicU64::new(0));
    let jobs = ground
        .builder()
        .tasks(64)
        .on_async(move |_, j: Good| {
            let begun = begun.clone();
            async move {
                begun.fetch_add(1, Ordering::SeqCst);
                while begun.load(Ordering::SeqCst) < (j.n + 1) * PLACES {
                    tokio::task::yield_now().await;
                }
                Ok(())
            }
        })
        .start()
        .unwrap();
    for round in 0..ROUNDS {
        let batch: Vec<_> = (0..PLACES).map(|n| Good::new(&format!("{round}/{n}"), round)).collect();
        for told in jobs.enqueue_many(&batch).unwrap() {
            assert_eq!(jobs.wait(told.id(), PATIENCE).unwrap(), State::Done, "round {round}");
        }
    }
    assert_eq!(ground.close(jobs).attempts(), ROUNDS * PLACES);
}

/// One task never ends, another blocks its thread. Both are fenced when their leases lapse: the first is aborted at once, the
/// second's place is given to another after 30 s, which is said. Their second attempts finish the jobs, and what the blocked one
/// still wants is refused.
#[test]
fn a_hung_task_is_fenced_aborted_and_replaced() {
    let heard = listen();
    let ground = Ground::new();
    // Signs of their own: a task that was woken by the blocked thread would wait for that thread.
    let (signs, blocked) = (ground.signs.clone(), Signs::default());
    let theirs = blocked.clone();
    let jobs = ground
        .builder()
        .tasks(2)
        .on_async(move |cx: AsyncCx, j: Task| {
            let (signs, blocked) = (signs.clone(), theirs.clone());
            async move {
                match (cx.attempt(), j.n) {
                    (1, 0) => signs.wait_async("awaits").await,
                    (1, _) => {
                        blocked.wait("blocks");
                        blocked.say(format!(
                            "late {}",
                            cx.renew().is_err() && cx.step("x", async || Ok(1)).await.is_err()
                        ));
                    }
                    _ => {}
                }
                Ok(())
            }
        })
        .on_async(|_, _: Good| async { Ok(()) })
        .start()
        .unwrap();
    let awaits = jobs.enqueue(&Task::new("awaiting task 5", 0)).unwrap().id();
    let blocks = jobs.enqueue(&Task::new("blocking task 6", 1)).unwrap().id();
    ground.signs.until("awaits", 1);
    blocked.until("blocks", 1);
    ground.clock.advance(MINUTE);
    until(|| jobs.state(awaits).unwrap() == State::Delayed && jobs.state(blocks).unwrap() == State::Delayed);
    // The aborted one has left its place.
    let good = jobs.enqueue(&Good::new("g", 0)).unwrap().id();
    assert_eq!(jobs.wait(good, PATIENCE).unwrap(), State::Done);
    ground.clock.advance(30 * SECOND);
    heard.until(&["blocking task 6", "replaced"]);
    assert!(!heard.has(&["awaiting task 5", "replaced"]));
    ground.pass(&jobs, RARELY);
    is(&jobs, awaits, State::Done);
    is(&jobs, blocks, State::Done);
    blocked.open("blocks");
    blocked.until("late true", 1);
    let recount = ground.close(jobs);
    assert_eq!(recount.attempts(), 5);
}

/// A handler computes for five lease lengths without a single await, on a runtime of one thread: its own renewals keep the lease,
/// because nobody else on that thread has to. One run.
#[test]
fn a_busy_handler_on_a_single_threaded_runtime_keeps_its_lease() {
    let ground = Ground::new();
    let rt = Builder::new_current_thread().enable_all().build().unwrap();
    let (clock, signs) = (ground.clock.clone(), ground.signs.clone());
    let jobs = ground
        .builder()
        .runtime(rt.handle().clone())
        .on_async(move |cx: AsyncCx, _: Task| {
            let (clock, signs) = (clock.clone(), signs.clone());
            async move {
                for step in 0..6 {
                    clock.advance(59 * SECOND);
                    if step % 2 == 0 { cx.renew()? } else { cx.progress(step, 6) }
                }
                signs.say("run");
                Ok(())
            }
        })
        .start()
        .unwrap();
    let id = jobs.enqueue(&Task::new("busy", 0)).unwrap().id();
    assert_eq!(rt.block_on(jobs.wait_async(id)).unwrap(), State::Done);
    assert_eq!(ground.signs.times("run"), 1);
    assert_eq!(jobs.snapshot().unwrap().all.lease_expired_total, 0);
    assert_eq!(ground.close(jobs).job("busy").attempts, 1);
}

/// The app drops its runtime before it shuts the queue down. The running tasks are interrupted, not failed: their attempts are
/// given back, nothing is dead, an event says what happened, async jobs wait and blocking ones go on. With a runtime again all
/// are done.
#[test]
fn a_runtime_that_is_gone_gives_attempts_back() {
    let heard = listen();
    let ground = Ground::new();
    let rt = Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let signs = ground.signs.clone();
    let start = |rt: &Runtime| {
        let signs = signs.clone();
        ground
            .builder()
            .tasks(3)
            .runtime(rt.handle().clone())
            .on_async(move |_, j: Task| {
                let signs = signs.clone();
                async move {
                    if j.n == 0 {
                        signs.wait_async("runs").await;
                    }
                    Ok(())
                }
            })
            .on(|_, _: Blocking| Ok(()))
            .start()
            .unwrap()
    };
    let jobs = start(&rt);
    let batch: Vec<_> = (0..9).map(|n| Task::new(&n.to_string(), 0)).collect();
    let ids: Vec<_> = jobs.enqueue_many(&batch).unwrap().iter().map(|e| e.id()).collect();
    ground.signs.until("runs", 3);
    rt.shutdown_background();
    heard.until(&["the tokio runtime of the async handlers is gone"]);
    until(|| ids.iter().all(|id| jobs.state(*id).unwrap() == State::Ready));
    // Also one that is enqueued now; and threads do not mind.
    let late = jobs.enqueue(&Task::new("late", 1)).unwrap().id();
    let blocking = jobs.enqueue(&Blocking::new("b", 0)).unwrap().id();
    assert_eq!(jobs.wait(blocking, PATIENCE).unwrap(), State::Done);
    is(&jobs, late, State::Ready);
    let recount = ground.close(jobs);
    let given_back: u32 = (0..9).map(|n| recount.job(&n.to_string()).given_back.interrupted).sum();
    assert_eq!(given_back, 3, "those that ran");
    assert_eq!(recount.attempts(), 1, "the blocking one");
    ground.signs.open("runs");

    let rt = Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let jobs = start(&rt);
    ground.settle(&jobs);
    ids.iter().chain([&late]).for_each(|id| is(&jobs, *id, State::Done));
    let recount = ground.close(jobs);
    println!("lost runtimes: {} jobs, {given_back} interrupted", recount.jobs.len());
}

/// A context is kept beyond its handler, or carried into a transaction: everything it is asked for is refused, nothing hangs.
#[test]
fn a_context_is_refused_after_its_handler_and_inside_a_transaction() {
    let ground = Ground::new();
    let kept: Arc<Mutex<Option<AsyncCx>>> = Arc::default();
    let (keep, signs) = (kept.clone(), ground.signs.clone());
    let jobs = ground
        .builder()
        .on_async(move |cx: AsyncCx, _: Task| {
            *keep.lock().unwrap() = Some(cx.clone());
            let signs = signs.clone();
            async move {
                let inner = cx.clone();
                cx.commit("outer", move |_| {
                    let mut step = Box::pin(inner.step("inner", async || Ok(1)));
                    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
                    match step.as_mut().poll(&mut context) {
                        std::task::Poll::Ready(Err(e)) => signs.say(e.to_string()),
                        std::task::Poll::Ready(Ok(_)) => signs.say("accepted"),
                        std::task::Poll::Pending => signs.say("would hang"),
                    }
                    Ok(())
                })
                .await
            }
        })
        .start()
        .unwrap();
    let id = jobs.enqueue(&Task::new("t", 0)).unwrap().id();
    assert_eq!(jobs.wait(id, PATIENCE).unwrap(), State::Done);
    assert_eq!(ground.signs.times(&Error::InsideTransaction.to_string()), 1, "{:?}", ground.signs.words());
    let cx = kept.lock().unwrap().take().unwrap();
    let rt = Builder::new_current_thread().build().unwrap();
    assert!(cx.renew().is_err());
    assert!(rt.block_on(cx.step("late", async || Ok(1))).is_err());
    assert!(rt.block_on(cx.commit("late row", |_| Ok(()))).is_err());
    assert!(rt.block_on(cx.finish(|_| Ok(()))).is_err());
    ground.close(jobs);
}

/// Everything that waits has an awaited twin, and a queue can be driven from one thread of a runtime.
#[test]
fn every_waiting_verb_can_be_awaited() {
    let ground = Ground::new();
    let rt = Builder::new_current_thread().enable_all().build().unwrap();
    let jobs = ground
        .builder()
        .runtime(rt.handle().clone())
        .on_async(|cx: AsyncCx, j: Good| async move {
            let doubled: u64 = cx.step("double", async || Ok(2 * j.n)).await?;
            cx.commit("row", |_| Ok(())).await?;
            cx.output(&doubled)
        })
        .start()
        .unwrap();
    let start = onceward::testkit::Clock::now(&ground.clock).wall;
    rt.block_on(async {
        let now = jobs.enqueue_async(&Good::new("now", 4)).await.unwrap().id();
        let many = jobs.enqueue_many_async(&[Good::new("a", 1), Good::new("b", 2)]).await.unwrap();
        let at = jobs.at_async(start.after(HOUR).to_system(), &Good::new("at", 5)).await.unwrap().id();
        let after = jobs.after_async(DAY, &Good::new("after", 6)).await.unwrap().id();
        let inside = jobs.transact_async::<_, Error>(|tx| Ok(tx.enqueue(&Good::new("inside", 7))?.id())).await.unwrap();
        assert_eq!(jobs.read_async(|_| 9).await.unwrap(), 9);
        for id in [now, many[0].id(), many[1].id(), inside] {
            assert_eq!(jobs.wait_async(id).await.unwrap(), State::Done);
        }
        assert_eq!(jobs.output::<u64>(now).unwrap(), Some(8));
        let again = jobs.run_again_async(&Good::new("now", 40)).await.unwrap();
        assert_eq!(jobs.wait_async(again).await.unwrap(), State::Done);
        assert_eq!(jobs.output::<u64>(again).unwrap(), Some(80));
        ground.clock.advance(DAY);
        for id in [at, after] {
            assert_eq!(jobs.wait_async(id).await.unwrap(), State::Done);
        }
    });
    assert_eq!(ground.close(jobs).jobs.len(), 7);
}

/// A running task is cancelled and sees it; another is caught by the shutdown of the queue's own runtime: interrupted, not
/// failed. A waiter is told that the queue is gone.
#[test]
fn tasks_are_cancelled_and_shut_down_like_threads() {
    let ground = Ground::new();
    let signs = ground.signs.clone();
    let jobs = ground
        .builder()
        .on_async(move |cx: AsyncCx, j: Task| {
            let signs = signs.clone();
            async move {
                signs.wait_async(&j.key).await;
                if cx.cancelled() { Err(Fail::new("stopped as asked")) } else { Ok(()) }
            }
        })
        .start()
        .unwrap();
    let cancelled = jobs.enqueue(&Task::new("cancelled", 0)).unwrap().id();
    let deaf = jobs.enqueue(&Task::new("deaf", 0)).unwrap().id();
    ground.signs.until("cancelled", 1);
    ground.signs.until("deaf", 1);
    jobs.cancel(cancelled).unwrap();
    ground.signs.open("cancelled");
    assert_eq!(jobs.wait(cancelled, PATIENCE).unwrap(), State::Cancelled);
    let waiter = jobs.clone();
    let waiting = thread(move || Builder::new_current_thread().build().unwrap().block_on(waiter.wait_async(deaf)));
    let report = jobs.shutdown(Duration::from_millis(200)).unwrap();
    assert_eq!(report.interrupted, 1);
    let told = waiting.join().unwrap();
    assert!(matches!(told, Err(Error::ShutDown)), "{told:?}");
    ground.signs.end();
    let recount = ground.recount();
    let r = recount.job("deaf");
    assert_eq!((State::from(&r.state), r.attempts, r.given_back.interrupted), (State::Ready, 0, 1));
}
