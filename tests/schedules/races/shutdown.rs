//! A shutdown against everything at once: nothing begins after it, nothing that was acknowledged is lost, nothing happens twice.

use super::{Board, Gate, Log, MANY, SECOND, World, doze, explore, spawn};
use onceward::{Cx, Effect, EffectCard, Job, JobId, JobKey, Jobs, Policy, Recovery, Report, State};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const MINUTE: Duration = Duration::from_secs(60);

#[derive(Serialize, Deserialize)]
struct Plain(u64);
impl Job for Plain {
    const KIND: &'static str = "plain";
    fn key(&self) -> JobKey {
        self.0.to_string().into()
    }
}

#[derive(Serialize, Deserialize)]
struct Pay(u64);
impl Job for Pay {
    const KIND: &'static str = "pay";
    fn key(&self) -> JobKey {
        self.0.to_string().into()
    }
    fn effects() -> Vec<EffectCard> {
        vec![Charge::card()]
    }
    fn policy() -> Policy {
        Policy::default().retries(5)
    }
}

#[derive(Serialize, Deserialize)]
struct Charge(u64);
impl Effect for Charge {
    type Result = String;
    const NAME: &'static str = "charge";
    fn says(&self) -> String {
        format!("Charge order {}", self.0)
    }
    fn recovery() -> Recovery {
        Recovery::same_key(Duration::from_secs(24 * 3_600))
    }
}

/// A provider with keys that takes its time: what it did, and who is inside.
#[derive(Clone, Default)]
struct Bank {
    done: Arc<Mutex<BTreeMap<String, u64>>>,
    /// Calls for the first order.
    inside: Arc<Mutex<u64>>,
    entered: Log<(u64, u64)>,
    gate: Gate,
    someone: Board<bool>,
}

impl Bank {
    fn charge(&self, life: u64, order: u64, key: &str, first: bool) -> String {
        self.entered.push((life, order));
        *self.inside.lock().unwrap() += u64::from(order == 0);
        if first {
            self.does(order, key);
        }
        // Only the first order takes long.
        if order == 0 && life == 1 {
            self.someone.write(|entered| *entered = true);
            self.gate.pass();
        }
        self.does(order, key);
        *self.inside.lock().unwrap() -= u64::from(order == 0);
        key.to_owned()
    }
    fn does(&self, order: u64, key: &str) {
        self.done.lock().unwrap().entry(key.to_owned()).or_insert(order);
    }
}

/// What happened in a life.
type Begun = Log<(u64, JobId)>;

fn open(world: &World, life: u64, bank: &Bank, begun: &Begun, first: bool) -> Jobs {
    let (plain, pay) = (begun.clone(), begun.clone());
    let b = bank.clone();
    let pays = move |cx: &Cx, job: Pay| {
        pay.push((life, cx.id()));
        cx.effect(Charge(job.0)).map(drop)
    };
    let builder = world.process(life, 2).on(move |cx, _: Plain| Ok(plain.push((life, cx.id())))).on(pays);
    let charges = move |c: &Charge, key: &onceward::IdempotencyKey| Ok(b.charge(life, c.0, key.as_str(), first));
    builder.effect(charges).start().unwrap()
}

/// While a caller enqueues, handlers run, and one of them is inside a provider that answers at once, at a racing moment, or only when
/// the next process runs, somebody shuts the queue down, with time for the handlers or without: no handler begins and no provider is
/// called once the shutdown returned, the next process finds every acknowledged job and ends it, with one key and one payment each.
#[test]
fn nothing_begins_after_a_shutdown_and_nothing_is_lost() {
    let must = ["interrupted", "all in time", "never started", "refused an enqueue", "a call outlived its queue"];
    explore("shutdown against everything", &MANY, &must, |schedule| {
        let (world, bank, begun, acked) = (World::default(), Bank::default(), Begun::default(), Log::default());
        let first = schedule.draw(1, 2) == 0;
        let jobs = open(&world, 1, &bank, &begun, first);
        let (asks, told, tally) = (jobs.clone(), acked.clone(), schedule.tally.clone());
        let caller = spawn(move || {
            for n in 0..4 {
                let asked = if n % 2 == 0 { asks.enqueue(&Pay(n / 2)) } else { asks.enqueue(&Plain(n)) };
                match asked {
                    Ok(e) => told.push(e.id()),
                    Err(_) => return tally.saw("refused an enqueue"),
                }
            }
        });
        let (opens, answers, wait) = (bank.gate.clone(), schedule.draw(2, 3), schedule.draw(3, 80));
        let opener = spawn(move || {
            if answers < 2 {
                doze(wait * answers);
                opens.open();
            }
        });
        let at_most = schedule.pick(4, [Duration::ZERO, SECOND, SECOND]);
        let (stops, bank_seen, early) = (jobs.clone(), bank.clone(), schedule.draw(5, 2) == 0);
        let wait = schedule.draw(6, 200);
        let stopper = spawn(move || {
            if early {
                doze(wait);
            } else {
                bank_seen.someone.until(|entered| *entered);
            }
            stops.shutdown(at_most)
        });
        let report: Report = stopper.join().unwrap().unwrap();
        let (begins, enters) = (begun.len(), bank.entered.len());
        caller.join().unwrap();
        opener.join().unwrap();
        drop(jobs);
        // The next process.
        let jobs = open(&world, 2, &bank, &begun, first);
        let outlived = *bank.inside.lock().unwrap() > 0;
        let (opens, wait) = (bank.gate.clone(), schedule.draw(7, 100));
        let opener = spawn(move || {
            doze(wait);
            opens.open();
        });
        let ids = acked.all();
        world.all_over(&jobs, &ids, MINUTE);
        opener.join().unwrap();
        assert!(ids.iter().all(|id| jobs.state(*id).unwrap() == State::Done));
        // Without time for it, whoever was called and interrupted may come to its first word later.
        let may = if at_most.is_zero() { report.interrupted } else { 0 };
        let late = begun.all()[begins..].iter().filter(|(life, _)| *life == 1).count();
        assert!(late <= may, "{late} handlers began after the shutdown returned: {report:?}");
        let late = bank.entered.all()[enters..].iter().filter(|(life, _)| *life == 1).count();
        assert!(late <= may, "{late} calls began after the shutdown returned: {report:?}");
        let orders: Vec<u64> = bank.done.lock().unwrap().values().copied().collect();
        assert_eq!(
            orders.len(),
            orders.iter().collect::<BTreeSet<_>>().len(),
            "one key and one payment for each: {orders:?}"
        );
        let paid = (0..2).filter(|n| jobs.find::<Pay>(&n.to_string().into()).unwrap().is_some()).count();
        assert_eq!(orders.len(), paid, "every order that is there was paid");
        assert!(bank.entered.count(|(_, order)| *order == 0) <= 2);
        for (seen, what) in [
            (report.interrupted > 0, "interrupted"),
            (report.interrupted == 0, "all in time"),
            (report.never_started > 0, "never started"),
            (outlived, "a call outlived its queue"),
            (bank.entered.count(|(_, order)| *order == 0) == 2, "called again with its key"),
        ] {
            if seen {
                schedule.saw(what);
            }
        }
        world.end(jobs);
    });
}
