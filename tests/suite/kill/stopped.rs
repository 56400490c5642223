//! A process that stands still (SIGSTOP) for longer than its leases last, and goes on.

use super::PATIENCE;
use super::app::say;
use super::effects::{Ledger, Ship};
use super::parent::Life;
use onceward::{Backoff, Cx, Effect, EffectCard, Job, JobKey, Jobs, Outcome, Policy, State};
use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

/// Parcels for each stop: it has more to say than is heard until the last of them.
const JOBS_PER_STOP: u64 = 10;
/// Stops of every run; `ONCEWARD_STOPS` asks for more.
const STOPS: usize = 20;
const THREADS: usize = 8;
/// What the work and the provider take: time in which nothing is asked of the store, so that a lease can run out.
const WORK: Duration = Duration::from_millis(3);
/// A lease without a sign of progress.
const STALL: Duration = Duration::from_millis(60);

#[derive(Serialize, Deserialize)]
struct Parcel {
    order: u64,
}

impl Job for Parcel {
    const KIND: &'static str = "parcel";
    fn key(&self) -> JobKey {
        format!("parcel/{}", self.order).into()
    }
    fn effects() -> Vec<EffectCard> {
        vec![Ship::card()]
    }
    fn policy() -> Policy {
        Policy::default().stall_timeout(STALL).retries(1_000).backoff(Backoff::steps([Duration::from_millis(1)]))
    }
}

fn parcel(cx: &Cx, job: Parcel) -> Outcome {
    say(&format!("begin {}", job.order));
    work(1);
    cx.effect(Ship { order: job.order })?;
    say(&format!("shipped {}", job.order));
    Ok(())
}

/// In slices: time that passed while the process was stopped is no work.
fn work(slices: u32) {
    for _ in 0..slices {
        std::thread::park_timeout(WORK);
    }
}

fn open(dir: &Path, ledger: &Ledger) -> Jobs {
    let (l1, l2) = (ledger.clone(), ledger.clone());
    let asked = move |e: &Ship, key: &onceward::IdempotencyKey| {
        say(&format!("entered {}", e.order));
        // Some calls are slow before it happens, some after: when the process goes on, they still run while their leases are found
        // to be over and replaced.
        work(if e.order % 3 == 1 { 10 } else { 1 });
        let done = e.perform(&l1, key);
        work(if e.order % 3 == 2 { 10 } else { 1 });
        done
    };
    let queue = Jobs::open(dir.join("q.redb")).workers(THREADS).on(parcel);
    queue.effect(asked).probe(move |_: &Ship, key| Ok(Ship::probe(&l2, key))).start().expect("it opens")
}

pub(super) fn child(dir: &Path, count: u64) {
    let ledger = Ledger::open(dir);
    let jobs = open(dir, &ledger);
    let all: Vec<_> = (0..count).map(|order| Parcel { order }).collect();
    // Fewer than there are threads: a replacement runs beside the call that it replaces.
    for few in all.chunks(THREADS / 2) {
        for told in jobs.enqueue_many(few).expect("they are enqueued") {
            let state = jobs.wait(told.id(), PATIENCE).expect("it ends");
            assert_eq!(state, State::Done, "{:#?}", jobs.history(told.id()));
        }
    }
    let all = jobs.snapshot().expect("a snapshot").all;
    say(&format!("counted {} {}", all.lease_expired_total, all.late_proofs_total));
    jobs.shutdown(PATIENCE).expect("it closes");
}

/// The process is stopped wherever it stands, also between a durable intent and its call, for longer than a lease lasts, and then
/// goes on: the fenced attempt and its replacement never both call.
#[test]
fn a_stopped_process_that_goes_on_after_its_leases_does_not_call_twice() {
    let wanted = std::env::var("ONCEWARD_STOPS").map_or(STOPS, |n| n.parse().expect("ONCEWARD_STOPS is a number"));
    let parcels = wanted as u64 * JOBS_PER_STOP;
    let dir = tempfile::tempdir().expect("a directory");
    let mut rng = fastrand::Rng::with_seed(19);
    let mut life = Life::start(&format!("stopped|{}|{parcels}", dir.path().display()));
    let pid = Pid::from_child(&life.child);
    let mut stops = 0;
    while stops < wanted {
        // Somewhere between two things it says.
        for _ in 0..rng.usize(1..=6) {
            assert!(life.hear().is_some(), "the child ended early: {:#?}", life.last());
        }
        let _ = life.within(Duration::from_micros(rng.u64(0..3_000)));
        kill_process(pid, Signal::STOP).expect("it can be stopped");
        // What is waited for is the passing of time itself: the leases run out meanwhile. What it had said is heard.
        while life.within(STALL * 2).is_ok_and(|said| said.is_some()) {}
        kill_process(pid, Signal::CONT).expect("it can go on");
        stops += 1;
    }
    let (status, said) = life.end();
    assert!(status.success(), "{status}: {said:#?}");
    let counted = said.iter().find_map(|l| l.strip_prefix("counted ")).expect("it counted");
    let expired: u64 = counted.split(' ').next().and_then(|n| n.parse().ok()).expect("a number");
    let (mut entered, mut shipped): (BTreeMap<&str, u32>, BTreeMap<u64, u32>) = Default::default();
    for order in said.iter().filter_map(|line| line.strip_prefix("entered ")) {
        *entered.entry(order).or_default() += 1;
    }
    for parcel in Ledger::open(dir.path()).all() {
        *shipped.entry(parcel.order).or_default() += 1;
    }
    for order in 0..parcels {
        let entered = entered.get(&order.to_string()[..]).copied().unwrap_or(0);
        let shipped = shipped.get(&order).copied().unwrap_or(0);
        assert_eq!((entered, shipped), (1, 1), "parcel {order}: calls, parcels");
    }
    println!(
        "stopped: {stops} stops, {expired} leases ran out (expired, late proofs: {counted}), {parcels} parcels once each"
    );
    assert!(expired > 0, "no lease ran out: the stops were too short to show anything");
}
