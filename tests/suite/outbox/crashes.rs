//! The process dies between the delivery and its mark: the message arrives again with the same id, and nothing is lost.

use super::super::ground::{HOUR, PATIENCE, SECOND};
use super::broker::World;
use super::{ROWS, send};
use onceward::redb::ReadableTableMetadata;
use onceward::{Builder, Jobs, Message};

/// How the process ends.
#[derive(Clone, Copy, Debug)]
enum Death {
    Kill,
    Power(u64),
}

impl Death {
    fn strike(self, world: &mut World, jobs: Jobs) {
        match self {
            Self::Kill => world.kill(jobs),
            Self::Power(seed) => world.cut_power(jobs, seed),
        }
    }
}

/// Delivers, then waits at the door `delivered` before it says so.
fn slow_to_answer(world: &World, builder: Builder) -> Builder {
    let (broker, signs) = (world.publisher(), world.ground.signs.clone());
    builder.publisher("t", move |message: &Message| {
        let told = broker(message);
        signs.wait("delivered");
        told
    })
}

/// The broker has it, the process dies before the mark: it arrives again, with the same id and body; then it is marked, once.
#[test]
fn a_death_between_delivery_and_mark_delivers_again_with_the_same_id() {
    let mut deaths = 0;
    for death in [Death::Kill, Death::Power(1), Death::Power(2), Death::Power(3)] {
        let mut world = World::new();
        let jobs = slow_to_answer(&world, world.builder(&[])).start().unwrap();
        send(&jobs, "t", "k", "a");
        send(&jobs, "t", "k", "b");
        world.ground.signs.until("delivered", 1);
        death.strike(&mut world, jobs);
        assert_eq!(world.broker.ids(), ["a"]);
        let jobs = world.start(&["t"]);
        world.settle(&jobs);
        let got = world.broker.got();
        assert_eq!(world.broker.ids(), ["a", "a", "b"], "{death:?}");
        assert_eq!(got[0], got[1]);
        for id in ["a", "b"] {
            assert_eq!(jobs.outbox().find("t", id).unwrap().unwrap().marks, 1);
        }
        // Nobody owes it any more, also after the next death.
        death.strike(&mut world, jobs);
        let jobs = world.start(&["t"]);
        world.pass(&jobs, HOUR);
        assert_eq!(world.broker.ids().len(), 3);
        jobs.shutdown(PATIENCE).unwrap();
        deaths += 2;
    }
    println!("outbox: {deaths} deaths around a delivery");
    assert_eq!(deaths, 8);
}

/// Power cuts right after the commit was acknowledged: app row and message are there together, and the message goes out.
#[test]
fn what_was_acknowledged_goes_out_after_every_power_cut() {
    let mut sent = 0;
    for seed in 0..20 {
        let mut world = World::new();
        let jobs = world.start(&[]);
        for n in 0..3 {
            send(&jobs, "t", "k", &format!("m{n}"));
        }
        world.cut_power(jobs, seed);
        let jobs = world.start(&["t"]);
        world.settle(&jobs);
        assert_eq!(world.broker.ids(), ["m0", "m1", "m2"]);
        let rows = jobs.read(|r| r.open_table(ROWS).unwrap().len().unwrap()).unwrap();
        assert_eq!(rows, 3);
        jobs.shutdown(PATIENCE).unwrap();
        sent += 3;
    }
    assert_eq!(sent, 60);
}

/// A publisher that hangs: a shutdown waits as long as it was told and not longer, and what it held goes out at the next start.
#[test]
fn a_hung_publisher_bounds_no_shutdown_and_loses_nothing() {
    let mut world = World::new();
    let jobs = slow_to_answer(&world, world.builder(&["u"])).start().unwrap();
    send(&jobs, "t", "t", "a");
    world.ground.signs.until("delivered", 1);
    send(&jobs, "u", "u", "b");
    // The other topic goes on beside it.
    world.broker.until(2);
    let disk = world.ground.disk.clone();
    let report = jobs.shutdown(SECOND / 10).unwrap();
    assert_eq!(report.publishing, 1);
    world.ground.signs.open("delivered");
    world.ground.disk = disk.fork();
    world.ground.nonce += 1;
    let jobs = world.start(&["t", "u"]);
    world.settle(&jobs);
    let mut ids = world.broker.ids();
    ids.sort();
    assert_eq!(ids, ["a", "a", "b"]);
    jobs.shutdown(PATIENCE).unwrap();
}

/// A shutdown with time: what was handed over is marked before the file is closed, and nothing new is taken.
#[test]
fn a_shutdown_marks_what_was_delivered() {
    let mut world = World::new();
    let jobs =
        slow_to_answer(&world, world.builder(&[])).topic("t", onceward::Topic::default().batch(1)).start().unwrap();
    for id in ["a", "b"] {
        send(&jobs, "t", "k", id);
    }
    world.ground.signs.until("delivered", 1);
    let stopping = super::super::ground::thread(move || jobs.shutdown(PATIENCE).unwrap());
    world.ground.signs.open("delivered");
    let report = stopping.join().unwrap();
    assert_eq!(report.publishing, 0);
    let delivered = world.broker.ids();
    assert!(delivered == ["a"] || delivered == ["a", "b"], "{delivered:?}");
    world.ground.nonce += 1;
    let jobs = world.start(&["t"]);
    world.settle(&jobs);
    assert_eq!(world.broker.ids(), ["a", "b"], "nothing twice");
    jobs.shutdown(PATIENCE).unwrap();
}
