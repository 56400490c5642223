//! A callback of alerts that calls back into the queue, while letters are made and the queue stops: nobody waits for ever, and no letter
//! is forgotten or told twice in a process.

use super::{Log, MANY, PATIENCE, World, doze, explore, spawn};
use onceward::testkit::{run_until_idle, run_until_told};
use onceward::{AlertEvent, Fail, Job, JobId, JobKey, Jobs, Scope};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::time::Duration;

#[derive(Serialize, Deserialize)]
struct Bad(u64);
impl Job for Bad {
    const KIND: &'static str = "bad";
    fn key(&self) -> JobKey {
        self.0.to_string().into()
    }
}

/// In which process, about which letter, and whether it may have been told before.
type Told = Log<(u64, JobId, bool)>;

fn open(world: &World, life: u64, told: &Told, own: bool) -> Jobs {
    let (told, w) = (told.clone(), world.clone());
    let builder = world.process(life, 2).on(|_, _: Bad| Err(Fail::permanent("it cannot be done")));
    let builder = builder.on_alert(move |alert| {
        let AlertEvent::Letter(letter) = alert.event() else { return };
        told.push((life, letter.job(), alert.again()));
        let scope = Scope::kind(if own { letter.kind() } else { "another" });
        match alert.pause(scope.clone(), "a letter waits") {
            Ok(()) | Err(onceward::Error::ShutDown) => {}
            Err(e) => w.wrong(format!("a callback cannot pause: {e}")),
        }
        if !own {
            let _may_be_shut_down = alert.resume(scope);
        }
    });
    builder.start().unwrap()
}

/// Jobs get letters, a callback pauses their kind or another one for each letter it hears of, and the queue is shut down at a racing
/// moment; the next process resumes: each letter is told at most once in a process, all of them are told in the end, and one that is
/// told again says that it may have been.
#[test]
fn every_letter_is_told_and_a_callback_may_call_the_queue() {
    let must = ["told before the stop", "told by the next process", "some of each"];
    explore("alerts that call back", &MANY, &must, |schedule| {
        let (world, told) = (World::default(), Told::default());
        let own = schedule.draw(1, 2) == 0;
        let jobs = open(&world, 1, &told, own);
        let asks = jobs.clone();
        let caller =
            spawn(move || (0..3).map_while(|n| asks.enqueue(&Bad(n)).ok()).map(|e| e.id()).collect::<Vec<_>>());
        doze(schedule.draw(2, schedule.pick(3, [1, 60, 300])));
        let ids = if schedule.draw(4, 3) == 0 {
            let ids = caller.join().unwrap();
            run_until_idle(&jobs).unwrap();
            let _report = jobs.shutdown(PATIENCE).unwrap();
            ids
        } else {
            let _report = jobs.shutdown(schedule.pick(5, [Duration::ZERO, PATIENCE])).unwrap();
            caller.join().unwrap()
        };
        let before = told.len();
        let jobs = open(&world, 2, &told, own);
        for _ in 0..ids.len() + 2 {
            jobs.resume(Scope::kind("bad")).unwrap();
            run_until_idle(&jobs).unwrap();
            run_until_told(&jobs).unwrap();
        }
        let letters: BTreeSet<JobId> = jobs.dead_letters().unwrap().iter().map(|l| l.job()).collect();
        assert_eq!(letters, ids.iter().copied().collect::<BTreeSet<_>>(), "every job got its letter");
        let all = told.all();
        for id in &letters {
            let lives: Vec<_> =
                all.iter().filter(|(_, job, _)| job == id).map(|(life, _, again)| (*life, *again)).collect();
            let fits = match lives[..] {
                [(1, false) | (2, _)] => true,
                [(1, false), (2, again)] => again,
                _ => false,
            };
            assert!(fits, "job {id} was told {lives:?}");
            if lives.len() == 2 {
                schedule.saw("told again, and said so");
            }
        }
        let next = all[before.min(all.len())..].len();
        schedule.saw(match (before, next) {
            (0, 0) => "nothing to tell",
            (_, 0) => "told before the stop",
            (0, _) => "told by the next process",
            _ => "some of each",
        });
        world.end(jobs);
    });
}
