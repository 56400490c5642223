//! The hand-over from the dispatcher to the workers: nobody gets a job twice, nobody is forgotten.

use super::{Log, MANY, SECOND, World, explore, spawn};
use onceward::{Backoff, Fail, Job, JobId, JobKey, Policy, State};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

#[derive(Serialize, Deserialize)]
struct Work {
    n: usize,
    fails: u32,
}
impl Job for Work {
    const KIND: &'static str = "work";
    fn key(&self) -> JobKey {
        self.n.to_string().into()
    }
    fn policy() -> Policy {
        Policy::default().retries(3).backoff(Backoff::steps([SECOND]))
    }
}

/// How often each of the first jobs fails.
const FAILS: [u32; 4] = [0, 1, 2, 0];

#[derive(Default)]
struct Now {
    inside: BTreeMap<JobId, u64>,
    last: BTreeMap<JobId, u64>,
}

/// Four workers get seven jobs, some of which fail once or twice, while the clock goes on and later callers come: every job runs as
/// often as it should, never twice at once, each time with a higher token, and the counters say what was seen.
#[test]
fn every_job_runs_as_often_as_it_should() {
    explore("dispatcher and workers", &MANY, &["two at once", "four at once", "retried"], |schedule| {
        let world = World::default();
        let now = Arc::new(Mutex::new(Now::default()));
        let begun: Log<(JobId, u32)> = Log::default();
        let (at, log, w, tally) = (now.clone(), begun.clone(), world.clone(), schedule.tally.clone());
        let handler = move |cx: &onceward::Cx, work: Work| {
            let (id, token) = (cx.id(), cx.token());
            let most = {
                let mut at = at.lock().unwrap();
                if let Some(other) = at.inside.insert(id, token) {
                    w.wrong(format!("job {id} runs under {other} and {token} at once"));
                }
                if at.last.insert(id, token).is_some_and(|last| last >= token) {
                    w.wrong(format!("the token of job {id} did not rise: {token}"));
                }
                at.inside.len()
            };
            log.push((id, cx.attempt()));
            tally.saw(["none", "one at once", "two at once", "three at once", "four at once"][most]);
            shuttle::thread::yield_now();
            at.lock().unwrap().inside.remove(&id);
            if cx.attempt() <= work.fails { Err(Fail::new("not yet")) } else { Ok(()) }
        };
        let jobs = world.process(1, 4).on(handler).start().unwrap();
        let (later, clock) = (jobs.clone(), world.clock.clone());
        let caller =
            spawn(move || (4..7).map(|n| later.enqueue(&Work { n, fails: 0 }).unwrap().id()).collect::<Vec<_>>());
        let time = spawn(move || {
            for _ in 0..10 {
                clock.advance(SECOND);
                shuttle::thread::yield_now();
            }
        });
        let asked: Vec<_> = (0..4).map(|n| Work { n, fails: FAILS[n] }).collect();
        let mut ids: Vec<_> = jobs.enqueue_many(&asked).unwrap().iter().map(|e| e.id()).collect();
        ids.extend(caller.join().unwrap());
        time.join().unwrap();
        world.all_over(&jobs, &ids, SECOND);
        let mut attempts = 0;
        for (n, id) in ids.iter().enumerate() {
            let should = 1 + FAILS.get(n).copied().unwrap_or(0);
            let was: Vec<u32> = begun.all().iter().filter(|(job, _)| job == id).map(|(_, attempt)| *attempt).collect();
            assert_eq!(was, (1..=should).collect::<Vec<_>>(), "attempts of job {n}");
            assert_eq!(jobs.state(*id).unwrap(), State::Done);
            attempts += u64::from(should);
        }
        let snapshot = jobs.snapshot().unwrap();
        let counts = &snapshot.kinds["work"];
        let back: u64 = counts.given_back_total.values().sum();
        assert_eq!((counts.enqueued_total, counts.attempts_total), (7, attempts));
        assert_eq!(counts.claims_total, attempts + back, "claims are attempts and what was given back");
        assert_eq!((counts.outcomes_total["success"], counts.retries_total), (7, attempts - 7));
        let left: u64 = snapshot.gauges.queue_depth.values().flat_map(BTreeMap::values).sum();
        assert_eq!((left, snapshot.gauges.dead_letters), (0, 0));
        if attempts > 7 {
            schedule.saw("retried");
        }
        world.end(jobs);
    });
}
