//! A pause against claims and starts: once it is acknowledged, nothing of what it covers begins.

use super::{Log, MANY, SECOND, World, doze, explore, spawn};
use onceward::testkit::run_until_idle;
use onceward::{Job, JobId, JobKey, Scope, State};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct Held(u64);
impl Job for Held {
    const KIND: &'static str = "held";
    const QUEUE: &'static str = "aside";
    fn key(&self) -> JobKey {
        self.0.to_string().into()
    }
}

#[derive(Serialize, Deserialize)]
struct Free(u64);
impl Job for Free {
    const KIND: &'static str = "free";
    fn key(&self) -> JobKey {
        self.0.to_string().into()
    }
}

/// Jobs are enqueued, claimed and started while somebody pauses their kind, their queue or everything: after the pause returned none of
/// them begins, whatever was on its way, the others go on, and the resume lets all of them end.
#[test]
fn nothing_begins_after_a_pause_was_acknowledged() {
    let must = ["all held", "some held", "none held", "a claim was given back"];
    explore("pause against claim and start", &MANY, &must, |schedule| {
        let world = World::default();
        let begun: Log<JobId> = Log::default();
        let (held, free) = (begun.clone(), begun.clone());
        let handler = move |cx: &onceward::Cx, _: Held| {
            held.push(cx.id());
            shuttle::thread::yield_now();
            Ok(())
        };
        let jobs = world.process(1, 2).on(handler).on(move |cx, _: Free| Ok(free.push(cx.id()))).start().unwrap();
        let (asks, others) = (jobs.clone(), jobs.clone());
        let first = spawn(move || (0..4).map(|n| asks.enqueue(&Held(n)).unwrap().id()).collect::<Vec<_>>());
        let second = spawn(move || (0..2).map(|n| others.enqueue(&Free(n)).unwrap().id()).collect::<Vec<_>>());
        doze(schedule.draw(1, schedule.pick(3, [1, 20, 120])));
        let scope = schedule.pick(2, [Scope::kind("held"), Scope::queue("aside"), Scope::All]);
        jobs.pause(scope.clone(), "a look").unwrap();
        // A handler that was called before, and has not come to its first word: it runs, and shows that it does.
        let seen = begun.len();
        let running: Vec<u64> = (1..20).filter(|n| jobs.progress(JobId::from_number(*n)).is_some()).collect();
        let before = begun.len();
        let (ids, free) = (first.join().unwrap(), second.join().unwrap());
        run_until_idle(&jobs).unwrap();
        let after = begun.all();
        let covered = |id: &JobId| ids.contains(id) || scope == Scope::All;
        let late: Vec<_> = after[before..].iter().filter(|id| covered(id)).collect();
        assert!(
            late.iter().all(|id| running.contains(&id.number())),
            "begun after the pause: {late:?}, running: {running:?}"
        );
        assert!(
            after[seen..].iter().filter(|id| covered(id)).count() <= 2,
            "no more than there are workers: {after:?}, {seen}"
        );
        if scope != Scope::All {
            assert!(free.iter().all(|id| jobs.state(*id).unwrap() == State::Done), "the others go on");
        }
        let held: Vec<_> = ids.iter().filter(|id| !after.contains(id)).collect();
        assert!(held.iter().all(|id| jobs.state(**id).unwrap() == State::Paused), "{held:?}");
        schedule.saw(match held.len() {
            0 => "none held",
            4 => "all held",
            _ => "some held",
        });
        let counts = jobs.snapshot().unwrap().all;
        if counts.given_back_total.values().any(|n| *n > 0) {
            schedule.saw("a claim was given back");
        }
        if !late.is_empty() {
            schedule.saw("called, and not yet at its first word");
        }
        jobs.resume(scope).unwrap();
        let all = [ids, free].concat();
        world.all_over(&jobs, &all, SECOND);
        for id in &all {
            assert_eq!((begun.count(|b| b == id), jobs.state(*id).unwrap()), (1, State::Done));
        }
        assert_eq!(jobs.snapshot().unwrap().all.attempts_total, 6, "what was given back was no attempt");
        world.end(jobs);
    });
}
