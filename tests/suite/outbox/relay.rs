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

/// The broker says "too many, come back in ten minutes" to the first message: the next key is not asked before that, either.
#[test]
fn a_pause_that_the_broker_asks_for_holds_the_topic() {
    let world = World::new();
    let jobs = world.start_with(&["t"], |b| b.topic("t", steps()));
    world.broker.fail("a", 1, || Fail::transient("too many").retry_after(10 * MINUTE));
    send(&jobs, "t", "a", "a");
    world.settle(&jobs);
    send(&jobs, "t", "b", "b");
    (0..9).for_each(|_| world.pass(&jobs, MINUTE));
    assert_eq!((world.broker.tries("a"), world.broker.tries("b")), (1, 0));
    (0..2).for_each(|_| world.pass(&jobs, MINUTE));
    let mut ids = world.broker.ids();
    ids.sort();
    assert_eq!(ids, ["a", "b"]);
    jobs.shutdown(PATIENCE).unwrap();
}

fn send_three(jobs: &onceward::Jobs) {
    jobs.transact(|tx| {
        for n in 1..=3 {
            tx.send(onceward::Outgoing::new("t", format!("m{n}"), &n).key("k"))?;
        }
        Ok::<_, onceward::Error>(())
    })
    .unwrap();
}

/// Three messages of one key go out together, and the closure panics at the second: the first is delivered and stays so, the second
/// has the failure, the third waits behind it.
#[test]
fn a_panic_is_the_failure_of_its_own_message() {
    let world = World::new();
    let publish = world.publisher();
    let publisher = move |m: &Message| {
        assert!(m.id != "m2", "on purpose");
        publish(m)
    };
    let jobs = world.builder(&[]).publisher("t", publisher).topic("t", steps()).start().unwrap();
    send_three(&jobs);
    (0..10).for_each(|_| world.pass(&jobs, MINUTE));
    assert_eq!(world.broker.ids(), ["m1"]);
    let seen = |id| {
        let m = jobs.outbox().find("t", id).unwrap().unwrap();
        (m.marks, m.failures, m.error.unwrap_or_default())
    };
    assert_eq!((seen("m1").0, seen("m1").1, seen("m3").1), (1, 0, 0));
    assert!(seen("m2").1 > 1 && seen("m2").2.contains("panicked: on purpose"), "{:?}", seen("m2"));
    jobs.shutdown(PATIENCE).unwrap();
}

/// Hands whole batches over, and panics at one of their messages after those before it have arrived.
struct Bursts(super::broker::Broker);

impl Publisher for Bursts {
    fn publish(&self, _: &Message) -> Outcome {
        Err(Fail::permanent("only batches"))
    }
    fn publish_all(&self, messages: &[Message]) -> Vec<Outcome> {
        let take = |m: &Message| {
            assert!(m.id != "m2", "on purpose");
            self.0.take(m)
        };
        messages.iter().map(take).collect()
    }
}

/// A whole batch panics, and nobody knows at which message: it goes out one by one, so that the first is marked and the second has
/// the failure. The first arrives once more, not for ever.
#[test]
fn a_batch_that_panics_goes_out_one_by_one() {
    let world = World::new();
    let jobs = world.builder(&[]).publisher("t", Bursts(world.broker.clone())).topic("t", steps()).start().unwrap();
    send_three(&jobs);
    (0..10).for_each(|_| world.pass(&jobs, MINUTE));
    assert_eq!(world.broker.ids(), ["m1", "m1"]);
    let seen = |id| jobs.outbox().find("t", id).unwrap().unwrap();
    assert_eq!((seen("m1").marks, seen("m1").failures), (1, 0));
    // Refused by nobody: it goes on as it began, until somebody mends the publisher or decides.
    let m2 = seen("m2");
    assert!(m2.failures > 1 && m2.error.unwrap().contains("panicked: on purpose"));
    assert_eq!((seen("m3").marks, seen("m3").failures), (0, 0));
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

/// An async publisher delivers on the queue's runtime; one that panics has failed without an answer, and its message comes again. A
/// batch that panics comes again one by one, at once.
#[cfg(feature = "tokio")]
#[test]
fn an_async_publisher_delivers_and_its_panic_is_a_failure() {
    let world = World::new();
    let panics = Arc::new(AtomicUsize::new(1));
    let publisher = Awaiting { broker: world.broker.clone(), panics: panics.clone() };
    let jobs = world.builder(&[]).publisher_async("t", publisher).topic("t", steps()).start().unwrap();
    send(&jobs, "t", "k", "m0");
    world.settle(&jobs);
    let seen = jobs.outbox().find("t", "m0").unwrap().unwrap();
    assert!(seen.error.unwrap().contains("panicked: on purpose"));
    world.pass(&jobs, MINUTE);
    assert_eq!(world.broker.ids(), ["m0"]);
    panics.store(1, Ordering::SeqCst);
    send_three(&jobs);
    world.settle(&jobs);
    assert_eq!(world.broker.ids(), ["m0", "m1", "m2", "m3"]);
    assert_eq!(jobs.outbox().find("t", "m1").unwrap().unwrap().failures, 0);
    assert_eq!(jobs.outbox().find("t", "m0").unwrap().unwrap().marks, 1);
    jobs.shutdown(PATIENCE).unwrap();
}
