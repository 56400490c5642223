//! A cancel against the claim, the handler and its end, and somebody who waits for it.

use super::{FEW, Log, PATIENCE, SECOND, World, doze, explore, spawn};
use onceward::{Error, Fail, Job, JobKey, Refusal, State};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct Walk(u64);
impl Job for Walk {
    const KIND: &'static str = "walk";
    fn key(&self) -> JobKey {
        self.0.to_string().into()
    }
}

/// Somebody cancels a job while it is claimed, runs and ends, and two others wait for it: both hear of its end, and that is one which the
/// answer to the cancel allows. Its neighbour is not touched.
#[test]
fn a_cancelled_job_ends_as_was_said_and_who_waits_hears_it() {
    let must = ["never called", "stopped", "ran to its end all the same", "too late"];
    explore("cancel, wait and end", &FEW, &must, |schedule| {
        let world = World::default();
        let (begun, stopped) = (Log::default(), Log::default());
        let (begins, stops) = (begun.clone(), stopped.clone());
        let handler = move |cx: &onceward::Cx, _: Walk| {
            begins.push(cx.id());
            for _ in 0..8 {
                shuttle::thread::yield_now();
                if cx.cancelled() {
                    stops.push(cx.id());
                    return Err(Fail::new("somebody called it off"));
                }
            }
            Ok(())
        };
        let jobs = world.process(1, 1).on(handler).start().unwrap();
        let neighbour = jobs.enqueue(&Walk(0)).unwrap().id();
        let id = jobs.enqueue(&Walk(1)).unwrap().id();
        let waiters: Vec<_> = (0..2)
            .map(|_| {
                let jobs = jobs.clone();
                spawn(move || jobs.wait(id, PATIENCE))
            })
            .collect();
        doze(schedule.draw(1, schedule.pick(2, [1, 40, 200])));
        let told = jobs.cancel(id);
        let heard: Vec<_> = waiters.into_iter().map(|w| w.join().unwrap()).collect();
        world.all_over(&jobs, &[id, neighbour], SECOND);
        let (end, began) = (jobs.state(id).unwrap(), begun.count(|b| *b == id));
        assert!(heard.iter().all(|h| matches!(h, Ok(state) if *state == end)), "{heard:?}, and it is {end:?}");
        assert!(began <= 1, "it ran {began} times");
        let saw = match (&told, end, began) {
            (Ok(()), State::Cancelled, 0) => "never called",
            (Ok(()), State::Cancelled, 1) if stopped.len() == 1 => "stopped",
            (Ok(()), State::Done, 1) if stopped.len() == 0 => "ran to its end all the same",
            (Err(Error::Refused(Refusal::WrongState(State::Done))), State::Done, 1) => "too late",
            other => panic!("{other:?}, stopped {}", stopped.len()),
        };
        schedule.saw(saw);
        assert_eq!((jobs.state(neighbour).unwrap(), begun.count(|b| *b == neighbour)), (State::Done, 1));
        world.end(jobs);
    });
}
