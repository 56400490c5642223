//! A lease that lapses while a call is inside its provider, against the end of that call: what it came to counts.

use super::{Board, FEW, Gate, Log, World, doze, explore, spawn};
use onceward::{Backoff, Effect, EffectCard, EffectState, Job, JobKey, Policy, Recovery, State};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3_600);

#[derive(Serialize, Deserialize)]
struct Order;
impl Job for Order {
    const KIND: &'static str = "order";
    fn key(&self) -> JobKey {
        "7".into()
    }
    fn effects() -> Vec<EffectCard> {
        vec![Keyed::card(), Asked::card()]
    }
    fn policy() -> Policy {
        Policy::default().retries(3).backoff(Backoff::steps([Duration::from_secs(1)])).stall_timeout(MINUTE)
    }
}

/// Called again with its key, if nobody knows.
#[derive(Serialize, Deserialize)]
struct Keyed;
impl Effect for Keyed {
    type Result = u64;
    const NAME: &'static str = "keyed";
    fn says(&self) -> String {
        "Charge order 7".into()
    }
    fn recovery() -> Recovery {
        Recovery::same_key(24 * HOUR)
    }
}

/// A person is asked, if nobody knows.
#[derive(Serialize, Deserialize)]
struct Asked;
impl Effect for Asked {
    type Result = u64;
    const NAME: &'static str = "asked";
    fn says(&self) -> String {
        "Mail the customer of order 7".into()
    }
}

/// While a call is inside its provider the clock goes past the stall timeout, the attempt timeout, or neither, and the call ends at a
/// racing moment: only where the rule is to repeat the key is there a second call, and that has the same key; the late call is recorded as
/// what it came to, and the job ends as a success, without a letter in the end.
#[test]
fn a_call_that_outlives_its_lease_counts_as_what_it_came_to() {
    let must =
        ["in time", "the lease lapsed", "a late proof", "called again with its key", "a person was asked meanwhile"];
    explore("lease against the end of a call", &FEW, &must, |schedule| {
        let world = World::default();
        let (gate, entered, calls) = (Gate::default(), Board::<u64>::default(), Arc::new(AtomicU64::new(0)));
        let keyed = schedule.draw(1, 2) == 0;
        let perform = {
            let (gate, entered, calls) = (gate.clone(), entered.clone(), calls.clone());
            move || {
                calls.fetch_add(1, Ordering::Relaxed);
                entered.write(|calls| *calls += 1);
                gate.pass();
                // What a provider with keys says to every call with the same one.
                Ok(7)
            }
        };
        let (other, keys) = (perform.clone(), Log::default());
        let with = keys.clone();
        let handler = move |cx: &onceward::Cx, _: Order| {
            let n = if keyed { cx.effect(Keyed)? } else { cx.effect(Asked)? };
            cx.output(&n)
        };
        let builder = world.process(1, 2).on(handler).effect(move |_: &Keyed, key| {
            with.push(key.as_str().to_owned());
            perform()
        });
        let jobs = builder.effect(move |_: &Asked, _| other()).start().unwrap();
        let id = jobs.enqueue(&Order).unwrap().id();
        entered.until(|calls| *calls == 1);
        let wait = schedule.draw(2, 60);
        let opener = spawn(move || {
            doze(wait);
            gate.open();
        });
        for n in 0..=schedule.draw(3, 3) {
            // Past the stall timeout, past what its timers forgive, past the attempt timeout.
            world.clock.advance(schedule.pick(4 + n, [MINUTE / 2, MINUTE, 10 * MINUTE, 2 * HOUR]));
            doze(schedule.draw(9 + n, 40));
        }
        opener.join().unwrap();
        world.all_over(&jobs, &[id], MINUTE);
        let calls = calls.load(Ordering::Relaxed);
        assert_eq!((jobs.state(id).unwrap(), jobs.output::<u64>(id).unwrap()), (State::Done, Some(7)));
        let ledger = jobs.ledger(id).unwrap();
        assert!(
            ledger[0].state == EffectState::Confirmed && u64::from(ledger[0].calls) >= calls,
            "{calls}: {ledger:?}"
        );
        assert!(keyed || calls == 1, "called {calls} times without a key that the provider knows");
        assert!(keys.all().windows(2).all(|two| two[0] == two[1]), "every call has the same key: {:?}", keys.all());
        if calls > 1 {
            schedule.saw("called again with its key");
        }
        assert_eq!(jobs.dead_letters().unwrap().len(), 0);
        let counts = jobs.snapshot().unwrap().all;
        schedule.saw(if counts.lease_expired_total > 0 { "the lease lapsed" } else { "in time" });
        if counts.late_proofs_total > 0 {
            schedule.saw("a late proof");
        }
        if counts.letters_opened_total > 0 {
            schedule.saw("a person was asked meanwhile");
        }
        world.end(jobs);
    });
}
