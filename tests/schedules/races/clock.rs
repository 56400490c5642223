//! A machine that sleeps while somebody asks for something later: what is due by the calendar when it wakes up is done then.

use super::{Log, MANY, World, doze, explore, spawn};
use onceward::testkit::{Clock, run_until_idle};
use onceward::{Error, Fail, Job, JobKey, Message, Policy, State, Wall};
use serde::{Deserialize, Serialize};
use std::time::Duration;

const HOUR: Duration = Duration::from_secs(3_600);

#[derive(Serialize, Deserialize)]
struct Later;
impl Job for Later {
    const KIND: &'static str = "later";
    fn key(&self) -> JobKey {
        "l".into()
    }
    fn policy() -> Policy {
        Policy::default()
    }
}

/// A job is to start in an hour, a message is to be tried again in an hour; meanwhile the machine sleeps for two, at any moment between
/// the request and the thread that waits for its time. Whatever is due by the calendar then is done: nothing waits for another hour of a
/// stopwatch that stood still.
#[test]
fn what_became_due_in_a_sleep_starts_whoever_had_heard_of_it() {
    let must = ["asked before the sleep", "asked after the sleep", "tried before the sleep, and after it again"];
    explore("a sleep and what is to come", &MANY, &must, |schedule| {
        let world = World::default();
        let (tried, clock) = (Log::default(), world.clock.clone());
        let log = tried.clone();
        let publisher = move |_: &Message| {
            log.push(clock.now().wall);
            if log.len() == 1 { Err(Fail::transient("away").retry_after(HOUR)) } else { Ok(()) }
        };
        let jobs = world.process(1, 1).on(|_, _: Later| Ok(())).publisher("news", publisher).start().unwrap();
        let asks = {
            let jobs = jobs.clone();
            spawn(move || {
                let owed = jobs.transact(|tx| tx.outbox("news", "m", &1_u8).map(drop).map_err(Error::from));
                owed.unwrap();
                jobs.after(HOUR, &Later).unwrap().id()
            })
        };
        let sleeps = {
            let clock = world.clock.clone();
            let turns = schedule.pick(1, [0, 20, 60, 120, 200, 300, 400, 600]);
            spawn(move || {
                doze(turns);
                clock.suspend(2 * HOUR);
            })
        };
        let id = asks.join().unwrap();
        sleeps.join().unwrap();
        run_until_idle(&jobs).unwrap();
        let now = world.clock.now().wall;
        let due = jobs.due(id).unwrap().map(Wall::from_system);
        match jobs.state(id).unwrap() {
            State::Done => schedule.saw("asked before the sleep"),
            State::Delayed if due > Some(now) => schedule.saw("asked after the sleep"),
            state => panic!("it is {now:?}, and a job that was due at {due:?} is {state:?}"),
        }
        let message = jobs.outbox().find("news", "m").unwrap().unwrap();
        match message.next_try.map(Wall::from_system) {
            None => assert!(message.ended.is_some(), "{message:?}"),
            Some(at) => assert!(at > now, "it is {now:?}, and {message:?} is due"),
        }
        if tried.all()[0] < now && message.ended.is_some() {
            schedule.saw("tried before the sleep, and after it again");
        }
        world.end(jobs);
    });
}

/// A job is to start in 61 minutes, further away than the timer looks ahead, and somebody sets the calendar back by a day, at any moment
/// between the request and the thread that waits for its time. After 62 minutes it has run: nobody waits a day longer than was asked.
#[test]
fn a_calendar_that_is_set_back_makes_no_wait_longer_whoever_had_heard_of_it() {
    const MINUTE: Duration = Duration::from_secs(60);
    let must = ["asked before it was set", "asked after it was set"];
    explore("a calendar set back and what is to come", &MANY, &must, |schedule| {
        let world = World::default();
        let jobs = world.process(1, 1).on(|_, _: Later| Ok(())).start().unwrap();
        let asks = {
            let jobs = jobs.clone();
            spawn(move || jobs.after(61 * MINUTE, &Later).unwrap().id())
        };
        let sets = {
            let clock = world.clock.clone();
            let turns = schedule.pick(1, [0, 10, 20, 40, 60, 90, 120, 200]);
            spawn(move || {
                doze(turns);
                clock.jump_wall(-24 * 3_600 * 1_000);
            })
        };
        let id = asks.join().unwrap();
        sets.join().unwrap();
        let far =
            jobs.due(id).unwrap().map(Wall::from_system) > Some(Wall(world.clock.now().wall.0 + 2 * 3_600 * 1_000));
        schedule.saw(if far { "asked before it was set" } else { "asked after it was set" });
        run_until_idle(&jobs).unwrap();
        world.clock.advance(62 * MINUTE);
        run_until_idle(&jobs).unwrap();
        assert_eq!(jobs.state(id).unwrap(), State::Done);
        world.end(jobs);
    });
}
