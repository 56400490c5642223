//! The shop with onceward: what it asks of the outside world as declared effects, and a handler that only orchestrates.

use super::Child;
use super::client::World;
use super::crash::Crash;
use super::plan::{Order, Point};
use onceward::observe::AttemptLine;
use onceward::prelude::*;
use onceward::redb::TableDefinition;
use onceward::{Backoff, Builder, LookUp, ProofLog, Sink, State};
use serde::{Deserialize, Serialize};
use std::error::Error;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The shop's own table, in the same file: order -> the charge that paid it.
pub(crate) const PAID: TableDefinition<'static, u64, &'static str> = TableDefinition::new("paid");

const DAY: Duration = Duration::from_secs(24 * 3600);
/// "Not there" is believed this long after the call ended; in real life rather a minute.
const SETTLE: Duration = Duration::from_millis(800);
const LONG: Duration = Duration::from_secs(60);

pub(crate) fn file(dir: &Path) -> PathBuf {
    dir.join("shop.redb")
}
pub(crate) fn proof_log(dir: &Path) -> PathBuf {
    dir.join("proof.log")
}

// ---- jobs ------------------------------------------------------------------------------------------------------------------

#[derive(Serialize, Deserialize)]
pub(crate) struct CompleteOrder(pub(crate) Order);

impl Job for CompleteOrder {
    const KIND: &'static str = "complete-order";
    fn key(&self) -> JobKey {
        format!("ord_{}", self.0.number).into()
    }
    fn effects() -> Vec<EffectCard> {
        vec![Charge::card(), Reserve::card(), BookCourier::card()]
    }
    fn policy() -> Policy {
        // In real life the defaults for risky kinds: 1, 5 and 15 minutes, then a person.
        let waits =
            Backoff::steps([Duration::from_millis(100), Duration::from_millis(200), Duration::from_millis(400)]);
        Policy::default()
            .retries(5)
            .backoff(waits)
            .success("charged once, paid, reserved, a courier if express, receipt enqueued")
            .review("a courier nobody knows about; the sixth failure")
    }
}

#[derive(Serialize, Deserialize)]
pub(crate) struct SendReceipt {
    pub(crate) order: u64,
    pub(crate) mail: String,
}

impl Job for SendReceipt {
    const KIND: &'static str = "send-receipt";
    fn key(&self) -> JobKey {
        format!("ord_{}", self.order).into()
    }
    fn effects() -> Vec<EffectCard> {
        vec![Receipt::card()]
    }
    fn policy() -> Policy {
        Policy::default().success("the receipt was sent at least once").review("the fourth failure")
    }
}

// ---- effects ---------------------------------------------------------------------------------------------------------------

/// The payment company drops repeats of a key: call again with the same one.
#[derive(Serialize, Deserialize)]
struct Charge {
    order: u64,
    cents: u64,
}

impl Effect for Charge {
    type Result = String;
    const NAME: &'static str = "charge";
    const RISK: Risk = Risk::Charge;
    fn says(&self) -> String {
        format!("Charge ${}.{:02} for order {}", self.cents / 100, self.cents % 100, self.order)
    }
    fn recovery() -> Recovery {
        Recovery::same_key(DAY).or_probe(SETTLE)
    }
    fn reference(done: &String) -> Option<String> {
        Some(done.clone())
    }
    fn from_reference(&self, reference: &str) -> Option<String> {
        Some(reference.to_owned())
    }
}

/// The warehouse knows no keys, but it can be asked what it has for an order.
#[derive(Serialize, Deserialize)]
struct Reserve {
    order: u64,
}

impl Effect for Reserve {
    type Result = String;
    const NAME: &'static str = "reserve";
    const RISK: Risk = Risk::Order;
    fn says(&self) -> String {
        format!("Reserve the goods of order {}", self.order)
    }
    fn recovery() -> Recovery {
        Recovery::probe(SETTLE)
    }
    fn reference(done: &String) -> Option<String> {
        Some(done.clone())
    }
    fn from_reference(&self, reference: &str) -> Option<String> {
        Some(reference.to_owned())
    }
}

/// The courier knows no keys and cannot be asked by a program: a person has to.
#[derive(Serialize, Deserialize)]
struct BookCourier {
    order: u64,
}

impl Effect for BookCourier {
    type Result = String;
    const NAME: &'static str = "courier";
    const RISK: Risk = Risk::Order;
    fn says(&self) -> String {
        format!("Book a courier for order {}", self.order)
    }
    fn look_up(&self) -> Option<LookUp> {
        Some(LookUp::at("the courier's desk, by telephone", &format!("ask for a pickup of order {}", self.order)))
    }
    fn recovery() -> Recovery {
        Recovery::ask()
    }
    fn reference(done: &String) -> Option<String> {
        Some(done.clone())
    }
    fn from_reference(&self, reference: &str) -> Option<String> {
        Some(reference.to_owned())
    }
}

/// Two receipts are better than none.
#[derive(Serialize, Deserialize)]
struct Receipt {
    order: u64,
    mail: String,
}

impl Effect for Receipt {
    type Result = String;
    const NAME: &'static str = "receipt";
    const RISK: Risk = Risk::Email;
    fn says(&self) -> String {
        format!("Mail the receipt of order {} to its customer", self.order)
    }
    fn recovery() -> Recovery {
        Recovery::repeat()
    }
}

// ---- handlers --------------------------------------------------------------------------------------------------------------

fn complete(cx: &Cx, order: Order, crash: &Arc<Crash>) -> Outcome {
    let Order { number, cents, mail, express } = order;
    let charge = cx.effect(Charge { order: number, cents })?;
    cx.note("charge", &charge);
    let (dies, _held) = (crash.clone(), crash.before(Point::MarkPaid, number));
    cx.commit("mark paid", move |tx| {
        tx.open_table(PAID)?.insert(number, charge.as_str())?;
        dies.inside(Point::MarkPaid, number);
        Ok(())
    })?;
    cx.note("reserve", cx.effect(Reserve { order: number })?);
    if express {
        let _spared = crash.spare();
        cx.note("courier", cx.effect(BookCourier { order: number })?);
    }
    let (dies, _held) = (crash.clone(), crash.before(Point::Finish, number));
    cx.finish(move |tx| {
        tx.enqueue(&SendReceipt { order: number, mail: mail.clone() })?;
        dies.inside(Point::Finish, number);
        Ok(())
    })
}

fn open(child: &Child) -> Result<Jobs, Box<dyn Error>> {
    let crash = Arc::new(Crash::new(&child.plan, &child.dir));
    let builder = Jobs::open(file(&child.dir)).workers(4).sink(ProofLog::open(proof_log(&child.dir))?).sink(ToParent);
    Ok(registered(builder, child.outside, &crash).start()?)
}

/// What is registered: also what the safety cards in JOB-SAFETY.md are rendered from.
pub(crate) fn registered(builder: Builder, outside: impl World, crash: &Arc<Crash>) -> Builder {
    let [pays, paid, reserves, stock, courier, mails] = std::array::from_fn(|_| outside.clone());
    let (charged, reserved, mailed, completed) = (crash.clone(), crash.clone(), crash.clone(), crash.clone());
    builder
        .key_scope("shop-demo")
        .effect(move |c: &Charge, key| {
            let id = pays.charge(c.order, c.cents, key.as_str())?;
            charged.at(Point::Charged, c.order);
            Ok(id)
        })
        .probe(move |_: &Charge, key| paid.find_charge(key.as_str()))
        .effect(move |r: &Reserve, _| {
            let id = reserves.reserve(r.order)?;
            reserved.at(Point::Reserved, r.order);
            Ok(id)
        })
        .probe(move |r: &Reserve, _| stock.find_reservation(r.order))
        .effect(move |c: &BookCourier, _| courier.book_courier(c.order))
        .effect(move |r: &Receipt, _| {
            let id = mails.send_receipt(r.order, &r.mail)?;
            mailed.at(Point::Mailed, r.order);
            Ok(id)
        })
        .on(move |cx, CompleteOrder(order)| complete(cx, order, &completed))
        .on(|cx, SendReceipt { order, mail }| cx.effect(Receipt { order, mail }).map(|_| ()))
}

// ---- the process -----------------------------------------------------------------------------------------------------------

/// Opens, enqueues every order (known ones stay what they are) and works until each is done or waits for a person.
pub(crate) fn run(child: &Child) -> Result<(), Box<dyn Error>> {
    let watch = Instant::now();
    let jobs = open(child)?;
    println!("opened {}", watch.elapsed().as_millis());
    let orders: Vec<CompleteOrder> = child.plan.orders.iter().cloned().map(CompleteOrder).collect();
    let known = jobs.enqueue_many(&orders)?;
    for (CompleteOrder(order), enqueued) in orders.iter().zip(&known) {
        if let Enqueued::Existing { state, .. } = enqueued {
            println!("state {} {}", order.number, word(*state));
        }
    }
    for (CompleteOrder(order), enqueued) in orders.iter().zip(&known) {
        let state = jobs.wait(enqueued.id(), LONG)?;
        println!("state {} {}", order.number, word(state));
        if state == State::Done {
            // The order enqueued it when it ended: the same intent is the same job.
            let receipt = jobs.enqueue(&SendReceipt { order: order.number, mail: order.mail.clone() })?;
            jobs.wait(receipt.id(), LONG)?;
        }
    }
    jobs.shutdown(LONG)?;
    Ok(())
}

fn word(state: State) -> &'static str {
    if state == State::Done {
        "done"
    } else if matches!(state, State::NeedsDecision | State::Dead) {
        "asks"
    } else if matches!(state, State::Ready | State::Running) {
        "ready"
    } else {
        "open"
    }
}

/// Every line of the proof log also goes to the parent, which draws it.
struct ToParent;

impl Sink for ToParent {
    fn attempt(&self, line: &AttemptLine) {
        println!("proof {line}");
    }
}
