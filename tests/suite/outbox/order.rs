//! Nothing overtakes within an ordering key; nothing else waits.

use super::super::ground::{HOUR, MINUTE, PATIENCE};
use super::broker::{World, steps};
use super::send;
use onceward::{Fail, Message, OnStuck, Outcome, Publisher, Why};
use std::sync::{Arc, Mutex};

/// The first message of one key fails three times: those behind it wait, however long it takes, and the other keys go on.
#[test]
fn nothing_overtakes_within_a_key_and_other_keys_go_on() {
    let world = World::new();
    let jobs = world.start_with(&["t"], |b| b.topic("t", steps()));
    world.broker.fail("a1", 3, || Fail::transient("not now"));
    world.broker.fail("b2", 1, || Fail::new("who knows"));
    for n in 1..=3 {
        for key in ["a", "b", "c"] {
            send(&jobs, "t", key, &format!("{key}{n}"));
        }
    }
    world.settle(&jobs);
    for _ in 0..6 {
        world.pass(&jobs, MINUTE);
        assert!(!world.broker.ids().iter().any(|id| id.starts_with('a')) || world.broker.tries("a1") == 4);
    }
    world.pass(&jobs, 5 * MINUTE);
    let ids = world.broker.ids();
    assert_eq!(ids.len(), 9);
    for key in ["a", "b", "c"] {
        let of: Vec<_> = ids.iter().filter(|id| id.starts_with(key)).collect();
        assert_eq!(of, [&format!("{key}1"), &format!("{key}2"), &format!("{key}3")]);
    }
    assert!(ids.iter().position(|i| i == "c3") < ids.iter().position(|i| i == "a1"), "c did not wait for a: {ids:?}");
    jobs.shutdown(PATIENCE).unwrap();
}

/// A message is refused for good. By default its key waits behind it until a person decides; with dead letters it is put aside and
/// the others go on. Other keys never wait.
#[test]
fn a_refused_message_blocks_its_key_or_is_put_aside_as_the_topic_says() {
    for (policy, expected) in [(OnStuck::Block, vec!["b1"]), (OnStuck::DeadLetter, vec!["a2", "a3", "b1"])] {
        let world = World::new();
        let jobs = world.start_with(&["t"], |b| b.topic("t", steps().on_stuck(policy)));
        world.broker.fail("a1", 1, || Fail::refused("it is not a parcel").for_good());
        for (key, id) in [("a", "a1"), ("a", "a2"), ("a", "a3"), ("b", "b1")] {
            send(&jobs, "t", key, id);
        }
        world.pass(&jobs, HOUR);
        let mut ids = world.broker.ids();
        ids.sort();
        assert_eq!(ids, expected, "{policy:?}");
        let stuck = jobs.outbox().stuck("t", 10).unwrap();
        let seen: Vec<_> = stuck.iter().map(|m| (m.id.as_str(), m.stuck, m.blocks, m.error.as_deref())).collect();
        let blocks = policy == OnStuck::Block;
        assert_eq!(seen, [("a1", Some(Why::Permanent), blocks, Some("it is not a parcel"))]);
        let gauges = jobs.snapshot().unwrap().gauges.outbox["t"].clone();
        assert_eq!((gauges.depth, gauges.stuck, gauges.aside), if blocks { (3, 1, 0) } else { (0, 0, 1) });
        let counts = &jobs.snapshot().unwrap().topics["t"];
        assert_eq!((counts.dead_total, counts.failures_total["permanent"]), (1, 1));
        assert_eq!(world.broker.tries("a1"), 1, "no more by itself");
        jobs.outbox().retry("t", "a1", "ana", "the broker was wrong").unwrap();
        world.settle(&jobs);
        let ids = world.broker.ids();
        let of_a: Vec<_> = ids.iter().filter(|i| i.starts_with('a')).map(String::as_str).collect();
        let expected = if blocks { ["a1", "a2", "a3"] } else { ["a2", "a3", "a1"] };
        assert_eq!(of_a, expected, "in its place if its key waited, beside the others if not");
        jobs.shutdown(PATIENCE).unwrap();
    }
}

/// Tries can be limited by number and by time; then a person is asked, and no further try is made.
#[test]
fn retries_and_deadline_end_in_a_question() {
    let world = World::new();
    let policy = steps().on_stuck(OnStuck::DeadLetter);
    let jobs = world.start_with(&["few", "soon"], |b| {
        b.topic("few", policy.clone().retries(2)).topic("soon", policy.clone().deadline(3 * MINUTE))
    });
    for id in ["few", "soon"] {
        world.broker.fail(id, 99, || Fail::transient("away"));
    }
    send(&jobs, "few", "k", "few");
    send(&jobs, "soon", "k", "soon");
    world.settle(&jobs);
    world.pass(&jobs, MINUTE);
    for _ in 0..3 {
        world.pass(&jobs, 5 * MINUTE);
    }
    assert_eq!((world.broker.tries("few"), world.broker.tries("soon")), (3, 2));
    let why = |topic| jobs.outbox().stuck(topic, 9).unwrap()[0].stuck;
    assert_eq!((why("few"), why("soon")), (Some(Why::TriesUsedUp), Some(Why::DeadlinePassed)));
    // Paused past its deadline: it is not tried at all.
    jobs.pause(onceward::Scope::topic("soon"), "a holiday").unwrap();
    send(&jobs, "soon", "k", "late");
    world.pass(&jobs, HOUR);
    jobs.resume(onceward::Scope::topic("soon")).unwrap();
    world.settle(&jobs);
    assert_eq!((world.broker.tries("late"), jobs.outbox().stuck("soon", 9).unwrap().len()), (0, 2));
    jobs.shutdown(PATIENCE).unwrap();
}

/// One message fails for hours, and another key is written to meanwhile: that one goes out at once, and the topic does not rest.
#[test]
fn a_key_that_fails_for_ever_starves_no_other() {
    let world = World::new();
    let jobs = world.start_with(&["t"], |b| b.topic("t", steps()));
    world.broker.fail("a", 99, || Fail::transient("not this one"));
    send(&jobs, "t", "a", "a");
    world.settle(&jobs);
    (0..20).for_each(|_| world.pass(&jobs, MINUTE));
    assert!(world.broker.tries("a") > 4, "{} tries", world.broker.tries("a"));
    send(&jobs, "t", "b", "b");
    world.settle(&jobs);
    assert_eq!(world.broker.ids(), ["b"]);
    // Both are due at the same instant, and the one that fails comes first: the other one has its turn all the same.
    world.broker.fail("c", 1, || Fail::transient("once"));
    send(&jobs, "t", "c", "c");
    (0..60).for_each(|_| world.pass(&jobs, MINUTE));
    assert_eq!(world.broker.ids(), ["b", "c"]);
    jobs.shutdown(PATIENCE).unwrap();
}

/// Remembers its batches; stops at what it was told to.
struct Batches {
    seen: Arc<Mutex<Vec<Vec<String>>>>,
    stop_at: &'static str,
}

impl Publisher for Batches {
    fn publish(&self, _: &Message) -> Outcome {
        Err(Fail::permanent("only batches"))
    }
    fn publish_all(&self, messages: &[Message]) -> Vec<Outcome> {
        let mut seen = self.seen.lock().unwrap();
        let first = !seen.iter().flatten().any(|id| id == self.stop_at);
        seen.push(messages.iter().map(|m| m.id.clone()).collect());
        let until = messages.iter().position(|m| first && m.id == self.stop_at);
        let taken = until.unwrap_or(messages.len());
        let failed = until.map(|_| Err(Fail::transient("once")));
        std::iter::repeat_with(|| Ok(())).take(taken).chain(failed).collect()
    }
}

/// Ten messages wait, a batch holds four, and the sixth fails: batches hold one key's messages in their order, what was not tried
/// comes again without counting as failed, and nothing is marked that was not taken.
#[test]
fn batches_keep_the_order_and_what_was_not_tried_is_tried_next() {
    let world = World::new();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let builder = || world.builder(&[]);
    let jobs = builder().start().unwrap();
    for n in 0..10 {
        send(&jobs, "t", "k", &format!("m{n}"));
    }
    jobs.shutdown(PATIENCE).unwrap();
    let batches = Batches { seen: seen.clone(), stop_at: "m5" };
    let jobs = builder().publisher("t", batches).topic("t", steps().batch(4)).start().unwrap();
    world.settle(&jobs);
    let state = |id| {
        let m = jobs.outbox().find("t", id).unwrap().unwrap();
        (m.marks, m.failures)
    };
    assert_eq!([state("m4"), state("m5"), state("m6")], [(1, 0), (0, 1), (0, 0)]);
    world.pass(&jobs, MINUTE);
    let expected =
        [vec!["m0", "m1", "m2", "m3"], vec!["m4", "m5", "m6", "m7"], vec!["m5", "m6", "m7", "m8"], vec!["m9"]];
    assert_eq!(*seen.lock().unwrap(), expected);
    assert_eq!(jobs.outbox().topics().unwrap()[0].depth, 0);
    jobs.shutdown(PATIENCE).unwrap();
}

/// A key with a long line and many with one message each: every key has its turn, none waits for the end of the long one.
#[test]
fn a_busy_key_starves_no_other() {
    let world = World::new();
    let jobs = world.start(&[]);
    for n in 0..40 {
        send(&jobs, "t", "a-busy", &format!("busy{n:02}"));
    }
    for n in 0..5 {
        send(&jobs, "t", &format!("k{n}"), &format!("one{n}"));
    }
    jobs.shutdown(PATIENCE).unwrap();
    let jobs = world.start_with(&["t"], |b| b.topic("t", steps().batch(4)));
    world.settle(&jobs);
    let ids = world.broker.ids();
    assert_eq!(ids.len(), 45);
    let last_one = ids.iter().rposition(|id| id.starts_with("one")).unwrap();
    assert!(last_one < 16, "{ids:?}");
    let busy: Vec<_> = ids.iter().filter(|i| i.starts_with("busy")).cloned().collect();
    assert!(busy.is_sorted() && busy.len() == 40);
    jobs.shutdown(PATIENCE).unwrap();
}
