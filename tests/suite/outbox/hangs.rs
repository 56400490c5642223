//! A publisher that does not come back: a blocking one keeps its own key only, an async one is dropped and tried again; both are
//! seen. A hung call is never beside a second one for the same message.

use super::super::ground::{HOUR, MINUTE, PATIENCE, listen};
use super::broker::{World, steps};
use super::send;
use onceward::Message;
#[cfg(feature = "tokio")]
use onceward::{AsyncPublisher, Outcome, Scope};
#[cfg(feature = "tokio")]
use std::sync::Arc;
#[cfg(feature = "tokio")]
use std::sync::atomic::{AtomicUsize, Ordering};

/// A connection that nobody answers, without a timeout of its own: after the topic's time the call is named, its key waits for it
/// and every other key goes on; when it comes back after all, its message is marked and was handed over once.
#[test]
fn a_blocking_publisher_that_hangs_keeps_its_own_key_only() {
    let heard = listen();
    let world = World::new();
    let (signs, publish) = (world.ground.signs.clone(), world.publisher());
    let publisher = move |m: &Message| {
        if m.id == "a1" {
            signs.wait("hung");
        }
        publish(m)
    };
    let jobs = world
        .builder(&[])
        .publisher("blocked", publisher)
        .topic("blocked", steps().attempt_timeout(MINUTE))
        .start()
        .unwrap();
    send(&jobs, "blocked", "a", "a1");
    world.ground.signs.until("hung", 1);
    let early = jobs.outbox().find("blocked", "a1").unwrap().unwrap();
    assert!(early.in_call.is_some() && jobs.outbox().topics().unwrap()[0].hung == 0);
    send(&jobs, "blocked", "a", "a2");
    send(&jobs, "blocked", "b", "b1");
    world.ground.pass(&jobs, MINUTE);
    assert_eq!(world.broker.ids(), ["b1"], "the other key goes on");
    let state = jobs.outbox().topics().unwrap().remove(0);
    assert_eq!((state.hung, state.depth), (1, 2));
    let waiting = jobs.outbox().waiting("blocked", 9).unwrap();
    let held: Vec<_> = waiting.iter().map(|m| (m.id.as_str(), m.in_call)).collect();
    assert_eq!(held, [("a1", Some(MINUTE)), ("a2", None)]);
    heard.until(&["has not answered for 60s", "blocked", "a1"]);
    // However much time passes, nobody else gets it.
    send(&jobs, "blocked", "b", "b2");
    (0..5).for_each(|_| world.pass(&jobs, HOUR));
    assert_eq!(world.broker.ids(), ["b1", "b2"]);
    world.ground.signs.open("hung");
    world.broker.until(4);
    world.settle(&jobs);
    assert_eq!(world.broker.ids(), ["b1", "b2", "a1", "a2"]);
    assert_eq!((world.broker.tries("a1"), jobs.outbox().find("blocked", "a1").unwrap().unwrap().marks), (1, 1));
    assert_eq!(jobs.outbox().topics().unwrap()[0].hung, 0);
    assert_eq!(jobs.shutdown(PATIENCE).unwrap().publishing, 0);
}

/// Eight calls hang: the topic waits as a whole instead of keeping a thread for every message it will ever have.
#[test]
fn hung_calls_are_bounded() {
    let world = World::new();
    let signs = world.ground.signs.clone();
    let publisher = move |_: &Message| {
        signs.wait("hung");
        Ok(())
    };
    let policy = steps().attempt_timeout(MINUTE).batch(1);
    let jobs = world.builder(&[]).publisher("t", publisher).topic("t", policy).start().unwrap();
    for n in 0..20 {
        send(&jobs, "t", &format!("k{n}"), &format!("m{n}"));
    }
    for n in 1..=8 {
        world.ground.signs.until("hung", n);
        world.ground.clock.advance(MINUTE);
    }
    world.settle(&jobs);
    (0..5).for_each(|_| world.pass(&jobs, HOUR));
    let waiting = jobs.outbox().waiting("t", 99).unwrap();
    assert_eq!((waiting.len(), waiting.iter().filter(|m| m.in_call.is_some()).count()), (20, 8));
    world.ground.signs.open("hung");
    world.settle(&jobs);
    while jobs.outbox().topics().unwrap()[0].depth > 0 {
        world.settle(&jobs);
    }
    println!("hung: 8 of 20 calls at a time, then all 20 delivered");
    jobs.shutdown(PATIENCE).unwrap();
}

/// Never answers the first time it is called.
#[cfg(feature = "tokio")]
struct Late {
    broker: super::broker::Broker,
    calls: Arc<AtomicUsize>,
    dropped: Arc<AtomicUsize>,
}

#[cfg(feature = "tokio")]
struct Dropped(Arc<AtomicUsize>);

#[cfg(feature = "tokio")]
impl Drop for Dropped {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

#[cfg(feature = "tokio")]
impl AsyncPublisher for Late {
    async fn publish_all(&self, messages: Vec<Message>) -> Vec<Outcome> {
        if self.calls.fetch_add(1, Ordering::SeqCst) == 0 {
            let _dropped = Dropped(self.dropped.clone());
            std::future::pending::<()>().await;
        }
        messages.iter().map(|m| self.broker.take(m)).collect()
    }
}

/// An async publisher that never answers is dropped at the topic's time: a failed try like any other, and its message comes back
/// under the same id at its backoff; the messages of its key keep their order.
#[cfg(feature = "tokio")]
#[test]
fn an_async_publisher_that_hangs_is_dropped_and_tried_again_with_the_same_id() {
    let world = World::new();
    let (calls, dropped) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let late = Late { broker: world.broker.clone(), calls: calls.clone(), dropped: dropped.clone() };
    let policy = steps().attempt_timeout(MINUTE);
    let jobs = world.builder(&[]).publisher_async("t", late).topic("t", policy).start().unwrap();
    send(&jobs, "t", "a", "a1");
    while calls.load(Ordering::SeqCst) == 0 {
        std::thread::yield_now();
    }
    send(&jobs, "t", "a", "a2");
    world.ground.pass(&jobs, MINUTE);
    let seen = jobs.outbox().find("t", "a1").unwrap().unwrap();
    assert_eq!((seen.failures, seen.in_call, dropped.load(Ordering::SeqCst)), (1, None, 1));
    assert!(seen.error.unwrap().contains("did not answer in time"));
    assert_eq!(world.broker.ids(), Vec::<String>::new());
    world.pass(&jobs, MINUTE);
    assert_eq!(world.broker.ids(), ["a1", "a2"]);
    assert_eq!(jobs.outbox().find("t", "a1").unwrap().unwrap().marks, 1);
    jobs.shutdown(PATIENCE).unwrap();
}

/// Hands over one after the other; the first two times it never comes back from the second message.
#[cfg(feature = "tokio")]
struct Second {
    broker: super::broker::Broker,
    hung: Arc<AtomicUsize>,
}

#[cfg(feature = "tokio")]
impl AsyncPublisher for Second {
    async fn publish_all(&self, messages: Vec<Message>) -> Vec<Outcome> {
        let mut told = Vec::new();
        for m in &messages {
            if m.id == "m2" && self.hung.fetch_add(1, Ordering::SeqCst) < 2 {
                std::future::pending::<()>().await;
            }
            told.push(self.broker.take(m));
        }
        told
    }
}

/// Nobody knows at which message of a batch the time was lost: they go out one by one, the first is marked and never blamed, and the
/// one that hangs has its failure.
#[cfg(feature = "tokio")]
#[test]
fn a_batch_whose_time_is_over_goes_out_one_by_one() {
    let world = World::new();
    let hung = Arc::new(AtomicUsize::new(0));
    let second = Second { broker: world.broker.clone(), hung: hung.clone() };
    let policy = steps().attempt_timeout(MINUTE);
    let jobs = world.builder(&[]).publisher_async("t", second).topic("t", policy).start().unwrap();
    jobs.pause(Scope::topic("t"), "collecting").unwrap();
    for id in ["m1", "m2", "m3"] {
        send(&jobs, "t", "a", id);
    }
    jobs.resume(Scope::topic("t")).unwrap();
    let find = |id: &str| jobs.outbox().find("t", id).unwrap().unwrap();
    for times in 1..=2 {
        while hung.load(Ordering::SeqCst) < times {
            std::thread::yield_now();
        }
        let (first, second) = (find("m1"), find("m2"));
        assert_eq!((first.failures, second.failures), (0, 0));
        // In the second round the first message is behind us.
        assert_eq!((first.marks, world.broker.tries("m1")), if times == 1 { (0, 1) } else { (1, 2) });
        world.ground.clock.advance(MINUTE);
    }
    while find("m2").failures == 0 {
        std::thread::yield_now();
    }
    world.pass(&jobs, MINUTE);
    let state = ["m1", "m2", "m3"].map(|id| (find(id).marks, world.broker.tries(id)));
    assert_eq!(state, [(1, 2), (1, 1), (1, 1)]);
    jobs.shutdown(PATIENCE).unwrap();
}
