//! The outbox: what a committed transaction owes the world goes out after it, at least once, in order within its key, with the same
//! id for ever; what cannot go out waits for a person and says so.

mod broker;
mod consumer;
mod crashes;
mod hangs;
mod numbers;
mod order;
mod people;
mod relay;
mod setup;
mod sweep;
mod traced;

use super::ground::{DAY, HOUR, MINUTE, PATIENCE, SECOND, kind};
use broker::World;
use onceward::redb::TableDefinition;
use onceward::{Cx, Error, Fail, Job as _, Jobs, Message, Outboxed, Outgoing, State};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

const ROWS: TableDefinition<'_, &str, u64> = TableDefinition::new("rows");

kind!(Order = "order");

/// Commits one message, with an app row beside it.
#[track_caller]
fn send(jobs: &Jobs, topic: &'static str, key: &str, id: &str) -> Outboxed {
    let (key, id) = (key.to_owned(), id.to_owned());
    jobs.transact(move |tx| {
        tx.open_table(ROWS)?.insert(id.as_str(), 1).map_err(|e| Error::App(e.to_string()))?;
        tx.send(Outgoing::new(topic, id.as_str(), &id).key(key.as_str()))
    })
    .unwrap()
}

/// The same event is told twice: the second one changes nothing, and the sender hears which message it is and whether it differs.
#[test]
fn a_known_id_is_told_and_changes_nothing() {
    let world = World::new();
    let jobs = world.start(&["t"]);
    let send = |body: u32| jobs.transact(move |tx| tx.outbox("t", "order/1/paid", &body)).unwrap();
    assert_eq!(send(1), Outboxed::New { number: 1 });
    assert_eq!(send(1), Outboxed::Existing { number: 1, differs: false });
    world.settle(&jobs);
    assert_eq!(send(2), Outboxed::Existing { number: 1, differs: true });
    // Twice in one transaction, too; and another topic is another memory.
    let twice = jobs.transact(|tx| Ok::<_, Error>((tx.outbox("u", "x", &1)?, tx.outbox("u", "x", &1)?))).unwrap();
    assert_eq!(twice, (Outboxed::New { number: 1 }, Outboxed::Existing { number: 1, differs: false }));
    world.settle(&jobs);
    let got: Vec<_> = world.broker.got().iter().map(|m| (m.id.clone(), m.body.clone())).collect();
    assert_eq!(got, [("order/1/paid".to_owned(), b"1".to_vec())], "the first body, once");
    let counts = &jobs.snapshot().unwrap().topics["t"];
    assert_eq!((counts.written_total, counts.duplicate_suppressed_total, counts.published_total), (1, 2, 1));
    jobs.shutdown(PATIENCE).unwrap();
}

/// The transaction fails, panics or is never committed: nothing of it is ever delivered, and its number is the next one's.
#[test]
fn an_aborted_transaction_delivers_nothing() {
    let world = World::new();
    let jobs = world.start(&["t"]);
    let failed = jobs.transact(|tx| {
        tx.outbox("t", "a", &1)?;
        Err::<(), _>(Error::App("no".into()))
    });
    assert!(matches!(failed, Err(Error::App(_))), "{failed:?}");
    let panicked = jobs.transact(|tx| -> Result<(), Error> {
        tx.outbox("t", "b", &1)?;
        panic!("on purpose")
    });
    assert!(matches!(panicked, Err(Error::Panicked(_))), "{panicked:?}");
    world.settle(&jobs);
    assert!(world.broker.got().is_empty());
    assert_eq!(jobs.outbox().find("t", "a").unwrap(), None);
    assert_eq!(send(&jobs, "t", "t", "c"), Outboxed::New { number: 1 });
    world.settle(&jobs);
    assert_eq!(world.broker.ids(), ["c"]);
    let written = jobs.snapshot().unwrap().topics["t"].written_total;
    assert_eq!(written, 1, "what did not commit is not counted");
    jobs.shutdown(PATIENCE).unwrap();
}

/// A handler commits a message, fails twice and finishes with another: each goes out once, with the job's kind and its headers.
#[test]
fn a_job_that_runs_three_times_owes_each_message_once() {
    let world = World::new();
    let runs = Arc::new(AtomicU32::new(0));
    let count = runs.clone();
    let builder = world.builder(&["t"]).on(move |cx: &Cx, job: Order| {
        let (key, n) = (job.key.clone(), job.n);
        cx.commit("paid", move |tx| {
            tx.open_table(ROWS)?.insert(key.as_str(), n)?;
            tx.send(Outgoing::new("t", format!("{key}/paid"), &n).header("traceparent", "00-1-2-01"))?;
            Ok(())
        })?;
        if count.fetch_add(1, Ordering::SeqCst) < 2 {
            return Err(Fail::transient("the shelf is locked"));
        }
        let key = job.key;
        cx.finish(move |tx| {
            tx.send(Outgoing::new("t", format!("{key}/sent"), &n).kind("parcel"))?;
            Ok(())
        })
    });
    let jobs = builder.start().unwrap();
    let id = jobs.enqueue(&Order::new("ord_1", 7)).unwrap().id();
    world.settle(&jobs);
    assert_eq!(world.broker.ids(), ["ord_1/paid"], "after the commit, before the job's end");
    world.pass(&jobs, HOUR);
    world.pass(&jobs, HOUR);
    assert_eq!((jobs.state(id).unwrap(), runs.load(Ordering::SeqCst)), (State::Done, 3));
    let got = world.broker.got();
    let mut paid = Message::new("t", "ord_1/paid", b"7".to_vec());
    paid.kind = Order::KIND.into();
    paid.headers = vec![("traceparent".into(), "00-1-2-01".into())];
    let mut sent = Message::new("t", "ord_1/sent", b"7".to_vec());
    sent.kind = "parcel".into();
    assert_eq!(got, [paid, sent]);
    jobs.shutdown(PATIENCE).unwrap();
}

/// No publisher here: messages wait and are seen, other topics and jobs go on, and a process that has one delivers them.
#[test]
fn messages_without_a_publisher_wait_visibly_and_stop_nothing() {
    let world = World::new();
    let jobs = world.start(&["t"]);
    for n in 1..=3 {
        send(&jobs, "nobody", "nobody", &format!("n{n}"));
    }
    send(&jobs, "t", "t", "a");
    world.pass(&jobs, HOUR);
    assert_eq!(world.broker.ids(), ["a"]);
    let topics = jobs.outbox().topics().unwrap();
    let seen: Vec<_> = topics.iter().map(|t| (t.topic.as_str(), t.depth, t.oldest_age, t.has_publisher)).collect();
    assert_eq!(seen, [("nobody", 3, Some(HOUR), false), ("t", 0, None, true)]);
    let gauges = jobs.snapshot().unwrap().gauges.outbox;
    assert_eq!((gauges["nobody"].depth, gauges["nobody"].oldest_age_seconds), (3, Some(3_600.0)));
    assert_eq!((gauges["t"].depth, gauges["t"].oldest_age_seconds), (0, None));
    let waiting = jobs.outbox().waiting("nobody", 2).unwrap();
    assert_eq!(waiting.iter().map(|m| (m.id.as_str(), m.number)).collect::<Vec<_>>(), [("n1", 1), ("n2", 2)]);
    jobs.shutdown(PATIENCE).unwrap();
    let jobs = world.start(&["nobody"]);
    world.settle(&jobs);
    assert_eq!(world.broker.ids(), ["a", "n1", "n2", "n3"]);
    jobs.shutdown(PATIENCE).unwrap();
}

/// A topic or id that is empty, a body, id, key or topic one byte over its limit: refused before anything is written; at the limit
/// it goes through.
#[test]
fn limits_are_typed_errors() {
    let world = World::new();
    let builder = world.builder(&[]).payload_limit(2_000);
    let jobs = builder.start().unwrap();
    let try_it = |m: Outgoing| jobs.transact(move |tx| tx.send(m.clone()));
    let long = |n: usize| "x".repeat(n);
    // A string of n characters is n + 2 bytes of JSON.
    assert!(try_it(Outgoing::new(long(128), long(512), &long(1_998)).key(long(512)).kind(long(128))).unwrap().is_new());
    for (bad, what) in [
        (Outgoing::new(long(129), "i", "b"), "topic"),
        (Outgoing::new("t", long(513), "b"), "id"),
        (Outgoing::new("t", "i", "b").key(long(513)), "key"),
        (Outgoing::new("t", "i", "b").kind(long(129)), "kind"),
        (Outgoing::new("t", "i", &long(1_999)), "body"),
        (Outgoing::new("t", "i", &long(1_990)).header("name", "value"), "body"),
    ] {
        match try_it(bad) {
            Err(Error::TooBig { what: said, .. }) => assert!(said.contains(what), "{said}"),
            other => panic!("{what}: {other:?}"),
        }
    }
    for empty in [Outgoing::new("", "i", "b"), Outgoing::new("t", "", "b")] {
        assert!(matches!(try_it(empty), Err(Error::NoName { .. })));
    }
    let unencodable = std::collections::HashMap::from([((1, 2), 3)]);
    assert!(matches!(try_it(Outgoing::new("t", "i", &unencodable)), Err(Error::Encode { .. })));
    // A closure that passes over the refusal commits the rest.
    let rest = jobs.transact(|tx| {
        assert!(tx.outbox("", "i", "b").is_err());
        tx.open_table(ROWS)?.insert("rest", 1).map_err(|e| Error::App(e.to_string()))?;
        Ok::<_, Error>(())
    });
    rest.unwrap();
    let row = jobs.read(|r| r.open_table(ROWS).unwrap().get("rest").unwrap().map(|v| v.value())).unwrap();
    assert_eq!(row, Some(1));
    assert_eq!(jobs.outbox().topics().unwrap().len(), 1);
    jobs.shutdown(PATIENCE).unwrap();
}

/// A broker that is away for minutes, hours and days: the message comes back at its steps, also after a restart, and the calendar
/// set back by a day starves nothing.
#[test]
fn a_message_comes_back_until_the_broker_is_there() {
    let mut world = World::new();
    let jobs = world.start_with(&["t"], |b| b.topic("t", broker::steps()));
    world.broker.fail("a", 4, || Fail::transient("away"));
    send(&jobs, "t", "t", "a");
    world.settle(&jobs);
    assert_eq!(world.broker.tries("a"), 1);
    let seen = jobs.outbox().find("t", "a").unwrap().unwrap();
    assert_eq!((seen.failures, seen.error.as_deref(), seen.marks), (1, Some("away"), 0));
    world.pass(&jobs, MINUTE - SECOND);
    assert_eq!(world.broker.tries("a"), 1, "not before its time");
    world.pass(&jobs, SECOND);
    assert_eq!(world.broker.tries("a"), 2);
    // The calendar goes back by a day: the stopwatch still counts.
    world.ground.clock.jump_wall(-i64::try_from(DAY.as_millis()).unwrap());
    world.pass(&jobs, 5 * MINUTE);
    assert_eq!(world.broker.tries("a"), 3);
    world.kill(jobs);
    let jobs = world.start_with(&["t"], |b| b.topic("t", broker::steps()));
    world.settle(&jobs);
    assert_eq!(world.broker.tries("a"), 3, "the backoff survives the restart");
    world.pass(&jobs, 5 * MINUTE);
    assert_eq!((world.broker.tries("a"), world.broker.ids().len()), (4, 0));
    // The machine sleeps: what became due by the calendar goes out when it wakes.
    world.ground.clock.suspend(HOUR);
    world.settle(&jobs);
    assert_eq!((world.broker.tries("a"), world.broker.ids()), (5, vec!["a".to_owned()]));
    let counts = &jobs.snapshot().unwrap().topics["t"];
    assert_eq!((counts.failures_total["transient"], counts.published_total), (1, 1));
    jobs.shutdown(PATIENCE).unwrap();
}
