//! The relay: topics beside each other, publishers that panic, hang, say nothing or are async, and a relay that sleeps.

use super::super::ground::{HOUR, MINUTE, PATIENCE};
use super::broker::{World, steps};
use super::send;
use onceward::{AsyncPublisher, Fail, Message, Outcome, Publisher, testkit};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// One topic fails, one hangs, one panics: the fourth delivers everything meanwhile.
#[test]
fn a_failing_hanging_or_panicking_topic_stops_no_other() {
    let world = World::new();
    let signs = world.ground.signs.clone();
    let builder = world
        .builder(&["fails", "fine"])
        .publisher("hangs", move |_: &Message| {
            signs.wait("hung");
            Ok(())
        })
        .publisher("panics", |m: &Message| -> Outcome { panic!("on purpose: {}", m.id) });
    let jobs = ["fails", "hangs", "panics", "fine"].iter().fold(builder, |b, t| b.topic(*t, steps())).start().unwrap();
    world.broker.fail("fails0", 99, || Fail::transient("away"));
    send(&jobs, "hangs", "k", "hangs0");
    world.ground.signs.until("hung", 1);
    for n in 0..5 {
        for topic in ["fails", "panics", "fine"] {
            send(&jobs, topic, "k", &format!("{topic}{n}"));
        }
    }
    // Not idle, because one hangs: waited for by what arrives.
    world.broker.until(5);
    world.ground.signs.open("hung");
    world.settle(&jobs);
    assert_eq!(world.broker.ids(), (0..5).map(|n| format!("fine{n}")).collect::<Vec<_>>());
    let seen = jobs.outbox().find("panics", "panics0").unwrap().unwrap();
    assert_eq!(seen.failures, 1);
    assert!(seen.error.unwrap().contains("panicked: on purpose: panics0"));
    let counts = jobs.snapshot().unwrap().topics;
    assert_eq!(counts["panics"].failures_total["unknown"], 1);
    assert_eq!((counts["hangs"].published_total, counts["fails"].published_total), (1, 0));
    jobs.shutdown(PATIENCE).unwrap();
}

/// Nothing is written and nothing is due: the relay does not look, however much time passes and however much else is committed.
#[test]
fn an_idle_relay_does_not_look() {
    let world = World::new();
    let jobs = world.start_with(&["t", "u"], |b| b.topic("t", steps()));
    send(&jobs, "t", "t", "a");
    world.settle(&jobs);
    let looks = testkit::outbox_looks(&jobs, "t");
    assert!(looks > 0);
    for n in 0..50 {
        send(&jobs, "u", "u", &format!("u{n}"));
        world.pass(&jobs, HOUR);
    }
    assert_eq!(testkit::outbox_looks(&jobs, "t"), looks);
    assert_eq!(world.broker.ids().len(), 51);
    // Between two tries it sleeps, too.
    world.broker.fail("b", 2, || Fail::transient("away"));
    send(&jobs, "t", "t", "b");
    world.settle(&jobs);
    let looks = testkit::outbox_looks(&jobs, "t");
    (0..5).for_each(|_| world.pass(&jobs, MINUTE / 6));
    assert_eq!(testkit::outbox_looks(&jobs, "t"), looks);
    world.pass(&jobs, MINUTE);
    assert_eq!(world.broker.tries("b"), 2);
    jobs.shutdown(PATIENCE).unwrap();
}

/// A thousand keys and a broker that is away: it is asked a few times, not once for each key at every moment; when it is back
/// everything arrives.
#[test]
fn a_broker_that_is_away_is_not_asked_for_every_key() {
    let world = World::new();
    let tries = Arc::new(AtomicUsize::new(0));
    let (count, publish) = (tries.clone(), world.publisher());
    let back = Arc::new(AtomicUsize::new(0));
    let is_back = back.clone();
    let publisher = move |m: &Message| {
        count.fetch_add(1, Ordering::SeqCst);
        if is_back.load(Ordering::SeqCst) == 0 { Err(Fail::not_sent("connection refused")) } else { publish(m) }
    };
    let jobs = world.builder(&[]).publisher("t", publisher).topic("t", steps()).start().unwrap();
    jobs.transact(|tx| {
        for n in 0..1_000 {
            tx.send(onceward::Outgoing::new("t", format!("m{n}"), &n).key(format!("k{n}")))?;
        }
        Ok::<_, onceward::Error>(())
    })
    .unwrap();
    world.settle(&jobs);
    let first = tries.load(Ordering::SeqCst);
    (0..10).for_each(|_| world.pass(&jobs, MINUTE));
    let all = tries.load(Ordering::SeqCst);
    assert!(first <= 3 && all <= 12, "{first} tries at once, {all} in ten minutes");
    back.store(1, Ordering::SeqCst);
    (0..3).for_each(|_| world.pass(&jobs, 5 * MINUTE));
    assert_eq!(world.broker.ids().len(), 1_000);
    jobs.shutdown(PATIENCE).unwrap();
}

/// A publisher that answers for nothing: its first message counts as failed and waits; it is not asked again at once for ever.
struct Silent;

impl Publisher for Silent {
    fn publish(&self, _: &Message) -> Outcome {
        Ok(())
    }
    fn publish_all(&self, _: &[Message]) -> Vec<Outcome> {
        Vec::new()
    }
}

/// A publisher with a bug returns an empty list: the message comes back at its backoff and says why.
#[test]
fn a_publisher_that_says_nothing_has_failed() {
    let world = World::new();
    let jobs = world.builder(&[]).publisher("t", Silent).topic("t", steps()).start().unwrap();
    send(&jobs, "t", "t", "a");
    world.settle(&jobs);
    let seen = jobs.outbox().find("t", "a").unwrap().unwrap();
    assert_eq!((seen.failures, seen.error.as_deref()), (1, Some("the publisher answered for none of its messages")));
    jobs.shutdown(PATIENCE).unwrap();
}

struct Awaiting {
    broker: super::broker::Broker,
    panics: Arc<AtomicUsize>,
}

impl AsyncPublisher for Awaiting {
    async fn publish_all(&self, messages: Vec<Message>) -> Vec<Outcome<()>> {
        tokio_yield().await;
        assert!(self.panics.fetch_sub(1, Ordering::SeqCst) == 0, "on purpose");
        self.panics.store(0, Ordering::SeqCst);
        messages.iter().map(|m| self.broker.take(m)).collect()
    }
}

/// Once around the runtime.
async fn tokio_yield() {
    let mut first = true;
    std::future::poll_fn(|cx| {
        if std::mem::take(&mut first) {
            cx.waker().wake_by_ref();
            return std::task::Poll::Pending;
        }
        std::task::Poll::Ready(())
    })
    .await;
}

/// An async publisher delivers on the queue's runtime; one that panics has failed without an answer, and its batch comes again.
#[cfg(feature = "tokio")]
#[test]
fn an_async_publisher_delivers_and_its_panic_is_a_failure() {
    let world = World::new();
    let panics = Arc::new(AtomicUsize::new(1));
    let publisher = Awaiting { broker: world.broker.clone(), panics: panics.clone() };
    let jobs = world.builder(&[]).publisher_async("t", publisher).topic("t", steps()).start().unwrap();
    for n in 0..3 {
        send(&jobs, "t", "k", &format!("m{n}"));
    }
    world.settle(&jobs);
    let seen = jobs.outbox().find("t", "m0").unwrap().unwrap();
    assert!(seen.error.unwrap().contains("panicked: on purpose"));
    world.pass(&jobs, MINUTE);
    assert_eq!(world.broker.ids(), ["m0", "m1", "m2"]);
    assert_eq!(jobs.outbox().find("t", "m0").unwrap().unwrap().marks, 1);
    jobs.shutdown(PATIENCE).unwrap();
}
