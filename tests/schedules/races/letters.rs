//! Two people and one letter: one of them decides it, the other one is told that it changed.

use super::{FEW, Log, SECOND, World, explore, spawn};
use onceward::testkit::run_until_idle;
use onceward::{Decided, Decision, Entry, Error, Fail, Job, JobKey, Refusal, State};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

#[derive(Serialize, Deserialize)]
struct Report;
impl Job for Report {
    const KIND: &'static str = "report";
    fn key(&self) -> JobKey {
        "may".into()
    }
}

const ENDS: [(&str, State, usize); 3] =
    [("try again", State::Done, 2), ("discard", State::Discarded, 1), ("handled outside", State::HandledOutside, 1)];

fn decision(nth: usize) -> Decision {
    [Decision::try_again, Decision::discard, Decision::handled_outside][nth]()
}

/// Two people look at the same letter and decide it at the same time, each in one of three ways: exactly one decision is carried out, the
/// other is refused because the letter changed, and what happens afterwards is what the one decided.
#[test]
fn of_two_decisions_about_a_letter_one_counts() {
    let must = ["ann was first", "bob was first", "try again", "discard", "handled outside", "two different decisions"];
    explore("two people and a letter", &FEW, &must, |schedule| {
        let world = World::default();
        let begun = Log::default();
        let log = begun.clone();
        let handler = move |cx: &onceward::Cx, _: Report| {
            log.push(cx.attempt());
            if cx.attempt() == 1 { Err(Fail::permanent("the printer is gone")) } else { Ok(()) }
        };
        let jobs = world.process(1, 2).on(handler).start().unwrap();
        let id = jobs.enqueue(&Report).unwrap().id();
        run_until_idle(&jobs).unwrap();
        let letter = Arc::new(jobs.dead_letter(id).unwrap());
        let wants = [schedule.pick(1, [0, 1, 2]), schedule.pick(2, [0, 1, 2])];
        let people: Vec<_> = ["ann", "bob"]
            .into_iter()
            .zip(wants)
            .map(|(who, nth)| {
                let (jobs, letter) = (jobs.clone(), letter.clone());
                spawn(move || jobs.decide(&letter, decision(nth).by(who, "I have looked")))
            })
            .collect();
        let said: Vec<_> = people.into_iter().map(|p| p.join().unwrap()).collect();
        let first = usize::from(said[0].is_err());
        assert!(matches!(said[first], Ok(Decided::Done)), "{said:?}");
        assert!(matches!(&said[1 - first], Err(Error::Refused(Refusal::Stale { .. }))), "{said:?}");
        world.all_over(&jobs, &[id], SECOND);
        let (name, state, attempts) = ENDS[wants[first]];
        assert_eq!((jobs.state(id).unwrap(), begun.len()), (state, attempts), "after {name}");
        let history = jobs.history(id).unwrap();
        let signed: Vec<_> = history.iter().filter(|e| matches!(e, Entry::Decision { .. })).map(Entry::says).collect();
        assert!(signed.len() == 1 && signed[0].contains(["ann", "bob"][first]), "{signed:?}");
        assert_eq!(jobs.dead_letters().unwrap().len(), 0);
        schedule.saw(["ann was first", "bob was first"][first]);
        schedule.saw(name);
        if wants[0] != wants[1] {
            schedule.saw("two different decisions");
        }
        world.end(jobs);
    });
}
