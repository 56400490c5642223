//! The disk fills up while jobs are inside their effects: what they did is recorded, nothing new begins, people are told, and when
//! there is room again everything goes on by itself, once.

use super::ground::{Ground, MINUTE, PATIENCE, SECOND, Signs, is, kind, order, request};
use onceward::prelude::*;
use onceward::testkit::run_until_told;
use onceward::{AlertRule, Error, JobId, Jobs, Scope, State, StoreError};
use serde::{Deserialize, Serialize};
use std::sync::{Arc, Mutex};

kind!(Big = "big");

order!([Charge, Mail] Policy::default().success("it is paid and told once").review("nobody knows whether it was paid"));

request!(Charge "charge" Risk::Charge, Recovery::ask());
request!(Mail "mail" Risk::Email, Recovery::ask());

/// What was done outside, in order.
#[derive(Clone, Default)]
struct Done(Arc<Mutex<Vec<String>>>);

impl Done {
    fn add(&self, what: String) -> String {
        self.0.lock().unwrap().push(what.clone());
        what
    }
    fn all(&self) -> Vec<String> {
        let mut all = self.0.lock().unwrap().clone();
        all.sort();
        all
    }
}

fn queue(ground: &Ground, done: &Done, signs: &Signs, told: &Done) -> Jobs {
    let (paid, mailed, signs, told) = (done.clone(), done.clone(), signs.clone(), told.clone());
    ground
        .builder()
        .key_scope("full")
        .workers(4)
        .effect(move |e: &Charge, _| {
            signs.say("inside");
            signs.wait("go on");
            Ok(paid.add(format!("charge {}", e.order)))
        })
        .effect(move |e: &Mail, _| Ok(mailed.add(format!("mail {}", e.order))))
        .on(|cx, order: Order| {
            cx.effect(Charge { order: order.id })?;
            cx.effect(Mail { order: order.id })?;
            Ok(())
        })
        .on(|_, _: Big| Ok(()))
        .on_alert(move |alert| drop(told.add(format!("{alert:?}"))))
        .start()
        .unwrap()
}

fn standing(jobs: &Jobs) -> Vec<AlertRule> {
    jobs.alerts().unwrap().into_iter().map(|firing| firing.rule).collect()
}

#[derive(Serialize, Deserialize)]
struct Filler {
    n: u64,
    body: String,
}

impl Job for Filler {
    const KIND: &'static str = "filler";
    fn key(&self) -> JobKey {
        self.n.to_string().into()
    }
}

/// Enqueues large jobs that nobody runs until the disk is full.
fn fill_up(jobs: &Jobs) -> u64 {
    for n in 0..2_000 {
        match jobs.enqueue(&Filler { n, body: "x".repeat(200_000) }) {
            Ok(_) => {}
            Err(Error::Store(StoreError::Full(_))) => return n,
            Err(e) => panic!("{e}"),
        }
    }
    panic!("the disk never filled up");
}

/// Four charges are inside their performer when the disk fills up. They happen and are recorded as confirmed; the mails, which nobody
/// has begun, wait, and so does everything new, which is refused with a clear error. The process dies and starts again on the full
/// disk and knows all that. Then there is room: everything is done, once, nobody is asked anything, and no attempt was counted for
/// the wait.
#[test]
fn what_is_under_way_is_recorded_and_nothing_new_begins() {
    let (mut ground, done, told) = (Ground::new(), Done::default(), Done::default());
    let jobs = queue(&ground, &done, &ground.signs, &told);
    let ids: Vec<JobId> = (0..4).map(|id| jobs.enqueue(&Order { id }).unwrap().id()).collect();
    ground.signs.until("inside", 4);
    assert_eq!(jobs.snapshot().unwrap().gauges.disk, "normal");
    ground.disk.bound_room(Some(3 << 20));
    let fillers = fill_up(&jobs);
    assert!(fillers > 0);
    let waits = jobs.snapshot().unwrap().gauges.disk;
    assert!(matches!(waits, "low" | "critical"), "{waits}");
    let transacted = jobs.transact(|_| Ok::<_, Error>(()));
    assert!(matches!(transacted, Err(Error::Store(StoreError::Full(_)))), "{transacted:?}");
    ground.signs.open("go on");
    ground.settle(&jobs);
    for id in &ids {
        is(&jobs, *id, State::Delayed);
        let ledger = jobs.ledger(*id).unwrap();
        assert!(ledger.len() == 1 && ledger[0].state == onceward::EffectState::Confirmed, "{ledger:?}");
    }
    assert_eq!(done.all(), ["charge 0", "charge 1", "charge 2", "charge 3"]);
    run_until_told(&jobs).unwrap();
    assert_eq!(standing(&jobs), [AlertRule::DiskFull]);
    assert!(told.all().iter().any(|t| t.contains("DiskFull")), "{:?}", told.all());

    ground.kill(jobs);
    let jobs = queue(&ground, &done, &ground.signs, &told);
    ground.signs.open("go on");
    ground.pass(&jobs, MINUTE);
    assert_ne!(jobs.snapshot().unwrap().gauges.disk, "normal");
    assert!(matches!(jobs.enqueue(&Big::new("late", 0)), Err(Error::Store(StoreError::Full(_)))));
    assert_eq!(done.all().len(), 4, "nothing began");
    jobs.pause(Scope::kind("big"), "people may still say what they want").unwrap();
    jobs.resume(Scope::kind("big")).unwrap();

    ground.disk.bound_room(None);
    ground.pass(&jobs, 11 * SECOND);
    ground.pass(&jobs, MINUTE);
    for id in &ids {
        assert_eq!(jobs.wait(*id, PATIENCE).unwrap(), State::Done, "{:?}", jobs.history(*id));
    }
    assert_eq!(done.all().len(), 8, "{:?}", done.all());
    assert_eq!(jobs.snapshot().unwrap().gauges.disk, "normal");
    jobs.enqueue(&Big::new("late", 0)).unwrap();
    run_until_told(&jobs).unwrap();
    assert_eq!(standing(&jobs), []);
    assert!(jobs.dead_letters().unwrap().is_empty());
    let whole = ground.close(jobs);
    for id in 0..4 {
        assert_eq!(whole.job(&format!("ord_{id}")).attempts, 1, "to wait for room is no attempt");
    }
    println!("a full disk: {fillers} large jobs until it was full, 4 of 4 charges recorded, 4 mails later");
}
