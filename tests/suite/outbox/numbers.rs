//! Numbers have no gaps and are never used twice; the memory of an id outlives its message, and ends some day.

use super::super::ground::{DAY, PATIENCE};
use super::broker::World;
use super::send;
use onceward::{Ending, Error, Keep, Outboxed, Topic};

/// Transactions that fail, kills, power cuts and pruning in between: the numbers of a topic are 1, 2, 3, .. and none comes twice.
#[test]
fn numbers_have_no_gaps_and_are_not_used_again_after_pruning_and_crashes() {
    let mut world = World::new();
    let short = |b: onceward::Builder| b.topic("t", Topic::default().keep(Keep::For(DAY)).remember(Keep::For(DAY)));
    let mut jobs = world.start_with(&["t"], short);
    let mut expected = 0;
    for round in 0..6_u64 {
        for n in 0..3 {
            expected += 1;
            assert_eq!(send(&jobs, "t", "t", &format!("r{round}/{n}")).number(), expected);
            let failed = jobs.transact(move |tx| {
                assert_eq!(tx.outbox("t", "never", &n)?.number(), expected + 1);
                Err::<(), _>(Error::App("no".into()))
            });
            assert!(failed.is_err());
        }
        world.settle(&jobs);
        for _ in 0..4 {
            world.pass(&jobs, DAY);
        }
        assert_eq!(jobs.outbox().find("t", &format!("r{round}/0")).unwrap(), None, "pruned and forgotten");
        if round % 2 == 0 {
            world.kill(jobs);
        } else {
            world.cut_power(jobs, round);
        }
        jobs = world.start_with(&["t"], short);
    }
    assert_eq!(jobs.outbox().topics().unwrap()[0].last_number, 18);
    assert_eq!(world.broker.ids().len(), 18);
    jobs.shutdown(PATIENCE).unwrap();
}

/// A delivered message is pruned after a week; for three months its id is still known; then it is forgotten, and the same event
/// told again would be a new message with a number of its own. What was not delivered is never pruned.
#[test]
fn the_memory_of_an_id_outlives_its_message() {
    let world = World::new();
    let jobs = world.start(&["t"]);
    send(&jobs, "t", "t", "a");
    send(&jobs, "nobody", "nobody", "waits");
    world.settle(&jobs);
    let days = |n: u32| (0..n).for_each(|_| world.pass(&jobs, DAY));
    days(6);
    assert!(jobs.outbox().find("t", "a").unwrap().unwrap().message.is_some());
    days(4);
    let known = jobs.outbox().find("t", "a").unwrap().unwrap();
    assert_eq!((known.message, known.ended.map(|e| e.0)), (None, Some(Ending::Published)));
    days(70);
    assert_eq!(send(&jobs, "t", "t", "a"), Outboxed::Existing { number: 1, differs: false });
    days(15);
    assert_eq!(jobs.outbox().find("t", "a").unwrap(), None);
    assert_eq!(send(&jobs, "t", "t", "a"), Outboxed::New { number: 2 });
    let waiting = jobs.outbox().waiting("nobody", 9).unwrap();
    assert_eq!(waiting.len(), 1, "undelivered is never pruned");
    jobs.shutdown(PATIENCE).unwrap();
}

/// Kept for ever means for ever.
#[test]
fn an_id_that_is_kept_for_ever_is_never_forgotten() {
    let world = World::new();
    let jobs =
        world.start_with(&["t"], |b| b.topic("t", Topic::default().keep(Keep::For(DAY)).remember(Keep::Forever)));
    send(&jobs, "t", "t", "a");
    world.settle(&jobs);
    (0..200).for_each(|_| world.pass(&jobs, DAY));
    assert_eq!(jobs.outbox().find("t", "a").unwrap().unwrap().message, None);
    assert_eq!(send(&jobs, "t", "t", "a"), Outboxed::Existing { number: 1, differs: false });
    jobs.shutdown(PATIENCE).unwrap();
}

/// Somebody puts yesterday's copy of the file back: it is paused, nothing goes out, and the numbers that were handed out since
/// yesterday are not handed out again.
#[test]
fn an_older_copy_delivers_nothing_and_reuses_no_number() {
    let mut world = World::new();
    let jobs = world.start(&[]);
    send(&jobs, "t", "t", "a");
    let old = world.ground.disk.bytes();
    send(&jobs, "t", "t", "b");
    jobs.shutdown(PATIENCE).unwrap();
    let sidecar = {
        use onceward::testkit::DiskFactory;
        world.ground.disk.sidecar().lock().unwrap().clone()
    };
    world.ground.disk = onceward::testkit::SimDisk::from_image(old, sidecar);
    world.ground.nonce += 1;
    let jobs = world.start(&["t"]);
    world.settle(&jobs);
    assert!(world.broker.got().is_empty(), "nothing goes out before somebody has looked");
    assert!(send(&jobs, "t", "t", "c").number() > 1 << 31);
    jobs.resume(onceward::Scope::All).unwrap();
    world.settle(&jobs);
    assert_eq!(world.broker.ids(), ["a", "c"]);
    jobs.shutdown(PATIENCE).unwrap();
}
