//! The app under the knife: orders with four effects, a step, a commit, a finish and a follow-up job, and the named points at which
//! the process can be told to stand still until it is killed.

use super::child::is_child;
use super::effects::{Charge, Ledger, Mail, Print, Ship};
use onceward::redb::{ReadableTable, TableDefinition};
use onceward::{Backoff, Builder, Cx, Effect, EffectCard, Fail, Job, JobKey, Jobs, Outcome, Policy, Tx};
use serde::{Deserialize, Deserializer, Serialize};
use std::io::Write;
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// Orders placed in one transaction with their job.
pub(super) const PLACED: TableDefinition<u64, u64> = TableDefinition::new("placed");
/// What the step drew, as the commit found it.
pub(super) const BOOKED: TableDefinition<u64, u64> = TableDefinition::new("booked");
/// What the step drew, as the finish found it.
pub(super) const DONE: TableDefinition<u64, u64> = TableDefinition::new("done");
/// (what, order) -> how often a transaction did it.
pub(super) const TIMES: TableDefinition<(&str, u64), u64> = TableDefinition::new("times");

pub(super) const RETRIES: u32 = 5;

/// Where the child can be told to stop until it is killed, in the order of a job's way.
pub(super) const POINTS: &[&str] = &[
    "in transact",
    "after the claim",
    "in the handler",
    "in the step",
    "after the step",
    "before charge",
    "after charge",
    "charge confirmed",
    "in commit",
    "after commit",
    "before ship",
    "after ship",
    "asking ship",
    "ship confirmed",
    "before print",
    "after print",
    "before mail",
    "after mail",
    "before finish",
    "in finish",
    "after finish",
];

/// The point at which this process stops, and how often it is passed before.
pub(super) static STOP_AT: OnceLock<(String, AtomicUsize)> = OnceLock::new();

/// A named point: told so, the thread says that it is here and stands still for ever. The other threads go on until the kill.
pub(super) fn at(point: &'static str) {
    if let Some((name, left)) = STOP_AT.get()
        && name == point
        && left.fetch_sub(1, Ordering::AcqRel) == 1
    {
        say(&format!("at {point}"));
        loop {
            std::thread::park();
        }
    }
}

/// One line for the parent; it is in the pipe when this returns, whatever becomes of this process. The parent itself has nobody to
/// tell.
pub(crate) fn say(line: &str) {
    if !is_child() {
        return;
    }
    let mut out = std::io::stdout().lock();
    // The test harness writes to the same pipe: ours are the lines that begin with this mark.
    out.write_all(format!("\n@{line}\n").as_bytes()).and_then(|()| out.flush()).expect("the parent listens");
}

#[derive(Serialize, Deserialize)]
pub(super) struct Order {
    #[serde(deserialize_with = "after_the_claim")]
    pub(super) order: u64,
    /// It also has an effect that only a person can settle.
    pub(super) label: bool,
}

impl Order {
    pub(super) fn new(order: u64) -> Self {
        Self { order, label: order.is_multiple_of(3) }
    }
}

/// The payload is decoded once the job is claimed, and before its handler is called.
fn after_the_claim<'de, D: Deserializer<'de>>(d: D) -> Result<u64, D::Error> {
    at("after the claim");
    u64::deserialize(d)
}

impl Job for Order {
    const KIND: &'static str = "order";
    fn key(&self) -> JobKey {
        format!("order/{}", self.order).into()
    }
    fn effects() -> Vec<EffectCard> {
        vec![Charge::card(), Ship::card(), Print::card(), Mail::card()]
    }
    fn policy() -> Policy {
        Policy::default().retries(RETRIES).backoff(Backoff::steps([Duration::from_millis(1)]))
    }
}

/// What follows an order: enqueued by its finish, in the same transaction.
#[derive(Serialize, Deserialize)]
pub(super) struct Thanks {
    pub(super) order: u64,
}

impl Job for Thanks {
    const KIND: &'static str = "thanks";
    fn key(&self) -> JobKey {
        format!("thanks/{}", self.order).into()
    }
}

fn order(cx: &Cx, job: Order) -> Outcome {
    let order = job.order;
    say(&format!("begin {order} {} {}", cx.attempt(), cx.token()));
    at("in the handler");
    let drawn: u64 = cx.step("draw", || {
        at("in the step");
        Ok(fastrand::u64(..))
    })?;
    at("after the step");
    if order.is_multiple_of(5) && cx.attempt() == 1 {
        // It comes back after its backoff, which a kill may cut.
        return Err(Fail::new("the first attempt of every fifth order fails"));
    }
    let paid = cx.effect(Charge { order })?;
    at("charge confirmed");
    cx.commit("book", move |tx| {
        tx.open_table(BOOKED)?.insert(order, drawn)?;
        count(tx, "book", order)?;
        at("in commit");
        Ok(())
    })?;
    at("after commit");
    cx.effect(Ship { order })?;
    at("ship confirmed");
    if job.label {
        cx.effect(Print { order })?;
    }
    cx.effect(Mail { order })?;
    cx.note("paid", paid);
    at("before finish");
    cx.finish(move |tx| {
        tx.open_table(DONE)?.insert(order, drawn)?;
        count(tx, "finish", order)?;
        let _ = tx.enqueue(&Thanks { order })?;
        at("in finish");
        Ok(())
    })?;
    at("after finish");
    Ok(())
}

fn thanks(cx: &Cx, job: Thanks) -> Outcome {
    cx.finish(move |tx| count(tx, "thank", job.order))
}

/// So fast that many are claimed ahead: most of what a kill finds claimed was never begun.
#[derive(Serialize, Deserialize)]
pub(super) struct Quick {
    pub(super) n: u64,
}

impl Job for Quick {
    const KIND: &'static str = "quick";
    fn key(&self) -> JobKey {
        format!("quick/{}", self.n).into()
    }
}

fn quick(_: &Cx, job: Quick) -> Outcome {
    say(&format!("quick {}", job.n));
    Ok(())
}

fn count(tx: &mut Tx<'_>, what: &'static str, order: u64) -> Result<(), Fail> {
    let mut times = tx.open_table(TIMES)?;
    let before = times.get((what, order))?.map_or(0, |n| n.value());
    times.insert((what, order), before + 1)?;
    Ok(())
}

/// Places an order the way most apps do: its row and its job are one transaction.
pub(super) fn place(jobs: &Jobs, order: u64) -> Result<onceward::Enqueued, Fail> {
    jobs.transact(move |tx| {
        tx.open_table(PLACED)?.insert(order, order)?;
        let told = tx.enqueue(&Order::new(order))?;
        at("in transact");
        Ok::<_, Fail>(told)
    })
}

/// The queue in `dir`, with its providers.
pub(super) fn queue(dir: &Path, ledger: &Ledger) -> Builder {
    let (l1, l2, l3, l4, l5) = (ledger.clone(), ledger.clone(), ledger.clone(), ledger.clone(), ledger.clone());
    Jobs::open(dir.join("q.redb"))
        .workers(4)
        .on(order)
        .on(thanks)
        .on(quick)
        .effect(move |e: &Charge, key| e.once(&l1, key))
        .effect(move |e: &Ship, key| e.perform(&l2, key))
        .probe(move |_: &Ship, key| Ok(Ship::probe(&l3, key)))
        .effect(move |e: &Print, key| e.perform(&l4, key))
        .effect(move |e: &Mail, key| e.perform(&l5, key))
}
