//! The receiver's side: enqueue with key = message id, and every redelivery is recognised. The recipe of docs/outbox.md.

use super::super::ground::{Ground, PATIENCE, kind};
use super::broker::World;
use super::send;
use onceward::redb::{ReadableTable, TableDefinition};
use onceward::{Cx, Enqueued, Fail, Jobs, Message, Outcome, Topic, Why};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

const BOOKED: TableDefinition<'_, &str, u64> = TableDefinition::new("booked");

kind!(Paid = "paid");

/// A receiver whose handler books each order in its own table.
fn receiver(ground: &Ground) -> Jobs {
    let builder = ground.builder().on(|cx: &Cx, job: Paid| {
        cx.finish(move |tx| {
            let mut booked = tx.open_table(BOOKED)?;
            let before = booked.get(job.key.as_str())?.map_or(0, |v| v.value());
            booked.insert(job.key.as_str(), before + 1)?;
            Ok(())
        })
    });
    builder.start().unwrap()
}

/// The whole recipe: the enqueue is acknowledged when it is durable, and so is the message.
fn take(receiver: &Jobs, message: &Message) -> Outcome {
    let body = message.body.iter().fold(0_u64, |n, byte| n.wrapping_mul(257).wrapping_add((*byte).into()));
    match receiver.enqueue(&Paid::new(&message.id, body))? {
        Enqueued::Existing { differs: true, .. } => Err(Fail::permanent("another message came under a known id")),
        Enqueued::New(_) | Enqueued::Existing { .. } => Ok(()),
    }
}

/// Another message comes under an id that the receiver has: it is refused for good, so that it waits at the sender for a person
/// instead of being taken for the first one.
#[test]
fn another_message_under_a_known_id_is_refused_for_good() {
    let (world, far) = (World::new(), Ground::new());
    let there = receiver(&far);
    let (first, other) = (Message::new("t", "order/1", b"1".to_vec()), Message::new("t", "order/1", b"other".to_vec()));
    take(&there, &first).unwrap();
    take(&there, &first).unwrap();
    far.settle(&there);
    let receives = there.clone();
    // The sender's memory of its ids is gone, or it was never this sender's id.
    let jobs = world.builder(&[]).publisher("t", move |m: &Message| take(&receives, m)).start().unwrap();
    jobs.transact(|tx| tx.outbox("t", "order/1", &"other")).unwrap();
    world.settle(&jobs);
    let found = jobs.outbox().find("t", "order/1").unwrap().unwrap();
    assert_eq!((found.stuck, found.marks), (Some(Why::Permanent), 0), "{:?}", found.error);
    assert!(take(&there, &other).is_err());
    far.settle(&there);
    let booked = there.read(|r| r.open_table(BOOKED).unwrap().get("order/1").unwrap().map(|v| v.value())).unwrap();
    assert_eq!(booked, Some(1), "the first one, once");
    jobs.shutdown(PATIENCE).unwrap();
    there.shutdown(PATIENCE).unwrap();
}

/// Forty orders go from one queue to another. The sender is killed at every fifth delivery, after the receiver had it and before
/// the sender knew; the receiver is killed, too. Every order is booked exactly once.
#[test]
fn enqueue_with_the_message_id_as_key_is_the_receivers_exactly_once() {
    const ORDERS: usize = 40;
    let (mut world, mut far) = (World::new(), Ground::new());
    let there = Arc::new(Mutex::new(Some(receiver(&far))));
    let arrived = Arc::new(AtomicU64::new(0));
    let start = |world: &World| {
        let (there, arrived, signs) = (there.clone(), arrived.clone(), world.ground.signs.clone());
        let publisher = move |message: &Message| {
            let receiver = there.lock().unwrap().clone();
            take(&receiver.ok_or("nobody is there")?, message)?;
            if arrived.fetch_add(1, Ordering::SeqCst) % 5 == 4 {
                // Here the sender dies.
                signs.wait("arrived");
            }
            Ok(())
        };
        world.builder(&[]).publisher("t", publisher).topic("t", Topic::default().batch(1)).start().unwrap()
    };
    let mut jobs = start(&world);
    for n in 0..ORDERS {
        send(&jobs, "t", "t", &format!("order/{n}"));
    }
    let mut kills = 0;
    // After a kill one message of every five is delivered again.
    while arrived.load(Ordering::SeqCst) < u64::try_from(ORDERS + ORDERS / 4).unwrap() - 5 {
        world.ground.signs.until("arrived", 1);
        world.kill(jobs);
        kills += 1;
        if kills % 3 == 0 {
            let receiver_jobs = there.lock().unwrap().take().unwrap();
            far.kill(receiver_jobs);
            *there.lock().unwrap() = Some(receiver(&far));
        }
        jobs = start(&world);
    }
    world.ground.signs.open("arrived");
    world.settle(&jobs);
    jobs.shutdown(PATIENCE).unwrap();
    let receiver = there.lock().unwrap().take().unwrap();
    onceward::testkit::run_until_idle(&receiver).unwrap();
    let booked = receiver.read(|r| {
        let table = r.open_table(BOOKED).unwrap();
        table.iter().unwrap().map(|row| row.unwrap().1.value()).collect::<Vec<_>>()
    });
    receiver.shutdown(PATIENCE).unwrap();
    let arrived = arrived.load(Ordering::SeqCst);
    println!("outbox: {ORDERS} orders, {arrived} deliveries, {kills} kills of the sender");
    assert_eq!(booked.unwrap(), [1; ORDERS], "each once");
    assert!(kills > 3 && arrived > ORDERS as u64, "{kills} kills, {arrived} deliveries");
}
