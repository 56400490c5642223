//! Between a durable intent and its call, an attempt loses its lease: the one place that no signal hits reliably, held open here by
//! a runtime that does not run.

use onceward::testkit::{ManualClock, SimDisk};
use onceward::{Effect, EffectCard, EffectState, Job, JobKey, Jobs, Policy, Recovery, State};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);
const STALL: Duration = Duration::from_secs(10);

#[derive(Serialize, Deserialize)]
struct Label {
    order: u64,
}

impl Job for Label {
    const KIND: &'static str = "label";
    fn key(&self) -> JobKey {
        format!("label/{}", self.order).into()
    }
    fn effects() -> Vec<EffectCard> {
        vec![Stick::card()]
    }
    fn policy() -> Policy {
        Policy::default().stall_timeout(STALL)
    }
}

#[derive(Serialize, Deserialize)]
struct Stick {
    order: u64,
}

impl Effect for Stick {
    type Result = u64;
    const NAME: &'static str = "stick";
    fn says(&self) -> String {
        format!("Stick the label on order {}", self.order)
    }
    fn recovery() -> Recovery {
        Recovery::probe(SECOND)
    }
}

/// The intent is durable, then the attempt stands still until its lease is over; the replacement asks the provider, hears "not
/// there" and calls; then the first goes on: it never enters its performer.
#[test]
fn a_fenced_attempt_that_has_not_entered_its_performer_never_does() {
    let rt = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    let (clock, disk) = (ManualClock::default(), SimDisk::new());
    let entered = Arc::new(AtomicUsize::new(0));
    let (count, seen) = (entered.clone(), entered.clone());
    let jobs = Jobs::on_disk(Arc::new(disk))
        .clock(Arc::new(clock.clone()))
        .workers(2)
        .runtime(rt.handle().clone())
        .on(|cx, job: Label| cx.effect(Stick { order: job.order }).map(|_| ()))
        .effect_async(move |_: Stick, _| {
            count.fetch_add(1, Ordering::AcqRel);
            async { Ok(1) }
        })
        .probe(move |_: &Stick, _| Ok((seen.load(Ordering::Acquire) > 0).then_some(1)))
        .start()
        .expect("it opens");
    let id = jobs.enqueue(&Label { order: 1 }).expect("enqueued").id();

    // Nobody drives the runtime: each call stands between its intent and its performer.
    let intents = || jobs.ledger(id).expect("a ledger").first().map_or(0, |l| l.calls);
    let mut looks = 0;
    while intents() < 2 {
        let expired = jobs.snapshot().expect("a snapshot").all.lease_expired_total;
        let waits = matches!(jobs.state(id), Ok(State::Delayed | State::Waiting));
        // Time passes until the first lease is over, and while the job waits; the replacement is given time to come so far.
        if intents() == 1 && (expired == 0 || waits) {
            clock.advance(SECOND);
        }
        std::thread::yield_now();
        looks += 1;
        assert!(looks < 1_000_000, "no replacement: {:#?}", jobs.history(id));
    }
    assert_eq!((intents(), entered.load(Ordering::Acquire)), (2, 0));
    let state = rt.block_on(jobs.wait_async(id)).expect("it ends");
    assert_eq!(state, State::Done, "{:#?}", jobs.history(id));
    assert_eq!(entered.load(Ordering::Acquire), 1, "the fenced attempt called too: {:#?}", jobs.history(id));
    assert_eq!(jobs.ledger(id).expect("a ledger")[0].state, EffectState::Confirmed);
    println!("fenced: 2 intents, 1 call");
    // Whatever waits on this runtime for the queue would wait for ever once it is gone.
    drop(jobs);
}
