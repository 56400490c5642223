//! What a job remembers beside its effects: steps, commits, and the finish that ends it in the same transaction.

use super::each_mix;
use crate::rig::order::{Ask, Do, Probed, SameKey, Shop, counted};
use crate::rig::provider::Act;
use crate::rig::{Crash, MINUTE, is};
use onceward::{Fail, State};
use std::sync::Arc;

/// A step's value is remembered by name: the retry gets the first attempt's value and does not run it again. A step that failed
/// is not remembered.
#[test]
fn a_step_is_remembered() {
    each_mix(|mix| {
        let shop = Shop::new(mix);
        let jobs = shop.open::<SameKey, Probed>(vec![Do::Step("s"), Do::Charge(500)]);
        shop.pay.will([Act::Refuses, Act::Refuses]);
        let id = shop.order::<SameKey, Probed>(&jobs);
        shop.world.settle(&jobs);
        shop.world.pass(&jobs, MINUTE);
        shop.world.pass(&jobs, 5 * MINUTE);
        is(&jobs, id, State::Done);
        let steps: Vec<String> = shop.seen.all().into_iter().filter(|s| s.contains(" s = ")).collect();
        assert_eq!(steps, ["1 s = 1", "2 s = 1", "3 s = 1"]);
        assert_eq!(jobs.snapshot().unwrap().all.duplicate_suppressed_total["step"], 2);
    });
}

/// A commit happens once over all attempts, in one transaction with the memory of it; a second one under another name is another.
#[test]
fn a_commit_happens_once() {
    each_mix(|mix| {
        let shop = Shop::new(mix);
        let script = vec![Do::Commit("a"), Do::Charge(500), Do::Commit("b")];
        let jobs = shop.open::<SameKey, Probed>(script);
        shop.pay.will([Act::Refuses]);
        let id = shop.order::<SameKey, Probed>(&jobs);
        shop.world.settle(&jobs);
        assert_eq!((counted(&jobs, "a"), counted(&jobs, "b")), (1, 0));
        shop.world.pass(&jobs, MINUTE);
        is(&jobs, id, State::Done);
        assert_eq!((counted(&jobs, "a"), counted(&jobs, "b")), (1, 1));
    });
}

/// The process dies right after a commit was acknowledged: the row and the memory are there, and it does not happen again.
#[test]
fn an_acknowledged_commit_survives_every_crash() {
    each_mix(|mix| {
        for crash in [Crash::Kill, Crash::Power(1), Crash::Power(2), Crash::Power(3)] {
            let mut shop = Shop::new(mix);
            let script = vec![Do::Step("s"), Do::Commit("c"), Do::Wait("after"), Do::Finish];
            let jobs = shop.open::<SameKey, Probed>(script.clone());
            let id = shop.order::<SameKey, Probed>(&jobs);
            shop.world.stage.came("after", 1);
            shop.world.crash(jobs, crash);
            shop.world.stage.open("after");
            let jobs = shop.open::<SameKey, Probed>(script);
            shop.world.settle(&jobs);
            is(&jobs, id, State::Done);
            assert_eq!((counted(&jobs, "c"), counted(&jobs, "finish")), (1, 1), "{crash:?}");
        }
    });
}

/// Once finish returned Ok the job is done, whatever the handler then does: it fails, panics, or goes on working, and whatever it
/// still asks for is refused.
#[test]
fn after_finish_the_job_is_done_whatever_the_handler_does() {
    each_mix(|mix| {
        for rest in [
            vec![Do::Panic],
            vec![Do::Fail(|| Fail::permanent("a bug after the end"))],
            vec![
                Do::shrug(Do::Charge(500)),
                Do::shrug(Do::Step("s")),
                Do::shrug(Do::Commit("c")),
                Do::shrug(Do::Finish),
                Do::Panic,
            ],
        ] {
            let shop = Shop::new(mix);
            let mut script = vec![Do::Finish];
            script.extend(rest.clone());
            let jobs = shop.open::<SameKey, Probed>(script);
            let id = shop.order::<SameKey, Probed>(&jobs);
            shop.world.settle(&jobs);
            is(&jobs, id, State::Done);
            assert_eq!((counted(&jobs, "finish"), counted(&jobs, "c"), shop.pay.calls().len()), (1, 0, 0));
            // The handler goes on after the end of its job; nothing waits for it but this test.
            let refused = || shop.seen.all().iter().filter(|s| s.ends_with("! the job is finished already")).count();
            let expected = rest.len().min(5) - 1;
            shop.world.stage.until("what comes after the end", || (refused() == expected).then_some(()));
            assert_eq!(shop.world.lines.all().len(), 1);
            assert_eq!(shop.world.lines.all()[0].outcome.as_str(), "success");
        }
    });
}

/// The process dies right after finish was acknowledged: done, and not run again.
#[test]
fn an_acknowledged_finish_survives_every_crash() {
    each_mix(|mix| {
        for crash in [Crash::Kill, Crash::Power(1), Crash::Power(2)] {
            let mut shop = Shop::new(mix);
            let script = vec![Do::Charge(500), Do::Finish, Do::Wait("after")];
            let jobs = shop.open::<SameKey, Probed>(script.clone());
            let id = shop.order::<SameKey, Probed>(&jobs);
            shop.world.stage.came("after", 1);
            shop.world.crash(jobs, crash);
            let jobs = shop.open::<SameKey, Probed>(script);
            shop.world.settle(&jobs);
            is(&jobs, id, State::Done);
            assert_eq!((counted(&jobs, "finish"), shop.seen.starts(), shop.pay.times()), (1, 1, 1));
        }
    });
}

/// A name is a step or a commit, not both: the next version of the handler that confuses them is told, before anything happens.
#[test]
fn a_step_is_not_a_commit() {
    each_mix(|mix| {
        let shop = Shop::new(mix);
        let jobs = shop.open_with::<Ask, Probed>(Arc::new(|attempt| match attempt {
            1 => vec![Do::Step("x"), Do::Fail(|| Fail::new("later"))],
            _ => vec![Do::Commit("x")],
        }));
        let id = shop.order::<Ask, Probed>(&jobs);
        shop.world.settle(&jobs);
        shop.world.pass(&jobs, MINUTE);
        is(&jobs, id, State::Dead);
        assert_eq!(counted(&jobs, "x"), 0);
        assert!(jobs.dead_letter(id).unwrap().error().contains("use another name"));
    });
}

/// A commit whose closure fails or panics leaves no trace, fails the attempt, and happens on the retry.
#[test]
fn a_failed_commit_leaves_no_trace() {
    use onceward::{Job, JobKey, Policy};
    use serde::{Deserialize, Serialize};
    use std::sync::atomic::{AtomicU32, Ordering};
    #[derive(Serialize, Deserialize)]
    struct Book;
    impl Job for Book {
        const KIND: &'static str = "book";
        fn key(&self) -> JobKey {
            "k".into()
        }
        fn policy() -> Policy {
            Policy::default().retries(2).backoff(onceward::Backoff::steps([MINUTE]))
        }
    }
    let world = crate::rig::World::new();
    let runs = Arc::new(AtomicU32::new(0));
    let count = runs.clone();
    let jobs = world
        .builder()
        .on(move |cx, _: Book| {
            let attempt = cx.attempt();
            let count = count.clone();
            cx.commit("book", move |tx| {
                count.fetch_add(1, Ordering::SeqCst);
                let mut table = tx.open_table(crate::rig::order::COUNTS)?;
                table.insert("booked", u64::from(attempt))?;
                match attempt {
                    1 => Err(Fail::new("no")),
                    2 => std::panic::resume_unwind(Box::new("a bug in a closure")),
                    _ => Ok(()),
                }
            })
        })
        .start()
        .unwrap();
    let id = jobs.enqueue(&Book).unwrap().id();
    world.settle(&jobs);
    assert_eq!((jobs.state(id).unwrap(), counted(&jobs, "booked")), (State::Delayed, 0));
    world.pass(&jobs, MINUTE);
    assert_eq!((jobs.state(id).unwrap(), counted(&jobs, "booked")), (State::Delayed, 0));
    world.pass(&jobs, MINUTE);
    is(&jobs, id, State::Done);
    assert_eq!(counted(&jobs, "booked"), 3);
    assert!(runs.load(Ordering::SeqCst) >= 3);
    let lines = world.lines.all();
    assert!(lines[1].error.as_deref().is_some_and(|e| e.contains("a bug in a closure")), "{:?}", lines[1].error);
}
