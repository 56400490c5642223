//! What people do: pause, resume, retry, discard, send again. Signed where something is decided, and kept.

use super::super::ground::{DAY, HOUR, MINUTE, PATIENCE};
use super::super::rig::block_on;
use super::broker::{World, steps};
use super::send;
use onceward::{Act, Ending, Error, Fail, OnStuck, Outboxed, Scope};

/// Paused: nothing of the topic goes out, also after a restart, until it is resumed; other topics go on. "Everything" includes it.
#[test]
fn a_paused_topic_waits_also_after_a_restart() {
    let mut world = World::new();
    let jobs = world.start(&["t", "u"]);
    jobs.pause(Scope::topic("t"), "the receiver migrates").unwrap();
    send(&jobs, "t", "t", "a");
    send(&jobs, "u", "u", "b");
    world.settle(&jobs);
    assert_eq!(world.broker.ids(), ["b"]);
    world.kill(jobs);
    let jobs = world.start(&["t", "u"]);
    world.pass(&jobs, HOUR);
    assert_eq!(world.broker.ids(), ["b"]);
    assert_eq!(jobs.pauses(), [(Scope::topic("t"), "the receiver migrates".to_owned())]);
    let topic = jobs.outbox().topics().unwrap().into_iter().find(|t| t.topic == "t").unwrap();
    assert_eq!((topic.depth, topic.paused.as_deref()), (1, Some("the receiver migrates")));
    assert!(jobs.snapshot().unwrap().gauges.paused_topics.contains("t"));
    jobs.pause(Scope::All, "everything").unwrap();
    jobs.resume(Scope::topic("t")).unwrap();
    send(&jobs, "u", "u", "c");
    world.settle(&jobs);
    assert_eq!(world.broker.ids(), ["b"]);
    jobs.resume(Scope::All).unwrap();
    world.settle(&jobs);
    let mut ids = world.broker.ids();
    ids.sort();
    assert_eq!(ids, ["a", "b", "c"]);
    jobs.shutdown(PATIENCE).unwrap();
}

/// Nobody decides in secret: who and why are required, kept with the act and told with the message, also after a restart.
#[test]
fn retry_and_discard_are_signed_and_kept() {
    let mut world = World::new();
    let start = |world: &World| world.start_with(&["t"], |b| b.topic("t", steps()));
    let jobs = start(&world);
    world.broker.fail("bad", 2, || Fail::permanent("no such street"));
    send(&jobs, "t", "t", "bad");
    send(&jobs, "t", "t", "good");
    world.settle(&jobs);
    let outbox = jobs.outbox();
    for (who, why) in [("", "why"), ("ana", " ")] {
        assert!(matches!(outbox.retry("t", "bad", who, why), Err(Error::Refused(_))));
        assert!(matches!(outbox.discard("t", "bad", who, why), Err(Error::Refused(_))));
    }
    let unsigned = outbox.retry("t", "bad", "", "why").unwrap_err().to_string();
    assert!(unsigned.contains("who decides") && !unsigned.contains(".by("), "the text fits the call: {unsigned}");
    assert!(matches!(outbox.retry("t", "never", "ana", "why"), Err(Error::NoMessage { .. })));
    for number in [0, 77] {
        let nobody = outbox.discard_number("t", "k", number, "ana", "why");
        assert!(matches!(&nobody, Err(Error::NoNumber { number: n, .. }) if *n == number), "{nobody:?}");
        assert!(matches!(outbox.retry_number("t", "k", number, "ana", "why"), Err(Error::NoNumber { .. })));
    }
    assert!(matches!(outbox.discard("t", "good", "ana", "why"), Err(Error::Refused(_))), "it is not stuck");
    outbox.retry("t", "bad", "ana", "the street was added").unwrap();
    world.settle(&jobs);
    assert_eq!(world.broker.ids(), Vec::<String>::new());
    world.kill(jobs);
    let jobs = start(&world);
    world.settle(&jobs);
    assert_eq!(jobs.outbox().stuck("t", 9).unwrap().len(), 1);
    jobs.outbox().discard("t", "bad", "ben", "the customer moved away").unwrap();
    world.settle(&jobs);
    assert_eq!(world.broker.ids(), ["good"], "what waited behind it goes on");
    let told = jobs.outbox().find("t", "bad").unwrap().unwrap();
    let acts: Vec<_> = told.acts.iter().map(|(act, s)| (*act, s.who.as_str(), s.why.as_str())).collect();
    let expected = [(Act::Retried, "ana", "the street was added"), (Act::Discarded, "ben", "the customer moved away")];
    assert_eq!(acts, expected);
    assert_eq!((told.ended.map(|e| e.0), told.marks), (Some(Ending::Discarded), 0));
    // What people did about messages stands in the one list of what people did.
    let said: Vec<String> = jobs.decisions(None, 10).unwrap().iter().map(|a| a.says()).collect();
    assert_eq!(
        said,
        [
            "ana had message 1 of t (\"bad\") put on its way again (the street was added)",
            "ben had message 1 of t (\"bad\") thrown away (the customer moved away)"
        ]
    );
    let last = jobs.decisions(None, 10).unwrap().remove(1);
    assert_eq!((last.job, last.kind.as_str(), last.key.as_str()), (None, "t", "t"));
    assert_eq!((last.who.as_str(), last.why.as_str()), ("ben", "the customer moved away"));
    assert!(matches!(jobs.outbox().retry("t", "bad", "ana", "again"), Err(Error::Refused(_))));
    assert!(matches!(jobs.outbox().resend("t", "bad", "ana", "lost"), Err(Error::Refused(_))));
    assert_eq!(send(&jobs, "t", "t", "bad"), Outboxed::Existing { number: 1, differs: false }, "its id stays taken");
    let counts = jobs.snapshot().unwrap().topics["t"].clone();
    assert_eq!((counts.discarded_total, counts.published_total), (1, 1));
    jobs.shutdown(PATIENCE).unwrap();
}

/// The receiver lost its disk: a delivered message is sent again with the same id and body, and holds nothing up while it fails.
#[test]
fn a_message_is_sent_again_with_the_same_id() {
    let world = World::new();
    let jobs = world.start_with(&["t"], |b| b.topic("t", steps()));
    send(&jobs, "t", "k", "a");
    world.settle(&jobs);
    world.broker.fail("a", 1, || Fail::transient("still formatting"));
    assert!(jobs.outbox().resend("t", "a", "ana", " ").is_err(), "nobody signs with nothing");
    jobs.outbox().resend("t", "a", "ana", "their disk died").unwrap();
    world.settle(&jobs);
    send(&jobs, "t", "k", "b");
    world.settle(&jobs);
    assert_eq!(world.broker.ids(), ["a", "b"], "the one that is sent again waits alone");
    assert!(
        matches!(jobs.outbox().resend("t", "a", "ana", "their disk died"), Err(Error::Refused(_))),
        "it is on its way"
    );
    world.pass(&jobs, MINUTE);
    let got = world.broker.got();
    assert_eq!(world.broker.ids(), ["a", "b", "a"]);
    assert_eq!(got[0], got[2]);
    assert_eq!(jobs.outbox().find("t", "a").unwrap().unwrap().marks, 2);
    assert!(matches!(jobs.outbox().resend("t", "x", "ana", "lost"), Err(Error::NoMessage { .. })));
    // Pruned: only its id is known.
    for _ in 0..10 {
        world.pass(&jobs, DAY);
    }
    assert!(matches!(jobs.outbox().resend("t", "a", "ana", "their disk died"), Err(Error::Refused(_))));
    let said = jobs.decisions(None, 10).unwrap();
    assert_eq!((said.len(), said[0].says().contains("sent again (their disk died)")), (1, true), "{said:?}");
    let known = jobs.outbox().find("t", "a").unwrap().unwrap();
    assert_eq!(known.acts.iter().map(|(act, _)| *act).collect::<Vec<_>>(), [Act::Resent]);
    assert_eq!((known.message, known.ended.map(|e| e.0)), (None, Some(Ending::Published)));
    jobs.shutdown(PATIENCE).unwrap();
}

/// A delivered message is sent again and sticks; it is thrown away. It was delivered all the same, and can be sent again once more.
#[test]
fn what_was_delivered_stays_delivered_when_a_second_copy_is_thrown_away() {
    let world = World::new();
    let jobs = world.start_with(&["t"], |b| b.topic("t", steps()));
    send(&jobs, "t", "k", "a");
    world.settle(&jobs);
    world.broker.fail("a", 1, || Fail::permanent("no such street"));
    let outbox = jobs.outbox();
    block_on(outbox.resend_async("t", "a", "ana", "their disk died")).unwrap();
    world.settle(&jobs);
    assert_eq!(outbox.stuck("t", 9).unwrap().len(), 1);
    block_on(outbox.discard_async("t", "a", "ana", "not needed")).unwrap();
    let found = outbox.find("t", "a").unwrap().unwrap();
    assert_eq!(found.ended.map(|e| e.0), Some(Ending::Published));
    block_on(outbox.resend_async("t", "a", "ana", "needed after all")).unwrap();
    world.settle(&jobs);
    assert_eq!(world.broker.ids(), ["a", "a"]);
    // The others of the awaited decisions.
    world.broker.fail("b", 2, || Fail::permanent("no such street"));
    world.broker.fail("c", 1, || Fail::permanent("no such street"));
    let number = |id: &str| outbox.stuck("t", 9).unwrap().iter().find(|m| m.id == id).unwrap().number;
    for (key, id) in [("k2", "b"), ("k3", "c")] {
        send(&jobs, "t", key, id);
    }
    world.settle(&jobs);
    block_on(outbox.retry_async("t", "b", "ana", "the street was added")).unwrap();
    world.settle(&jobs);
    block_on(outbox.retry_number_async("t", "k2", number("b"), "ana", "once more")).unwrap();
    block_on(outbox.discard_number_async("t", "k3", number("c"), "ana", "moved away")).unwrap();
    world.settle(&jobs);
    assert_eq!(world.broker.ids(), ["a", "a", "b"]);
    assert_eq!(outbox.find("t", "c").unwrap().unwrap().ended.map(|e| e.0), Some(Ending::Discarded));
    jobs.shutdown(PATIENCE).unwrap();
}

/// A topic that puts stuck messages aside lists them, page by page if there are many, and each can be decided by itself.
#[test]
fn messages_put_aside_are_listed_and_decided_one_by_one() {
    let world = World::new();
    let jobs = world.start_with(&["t"], |b| b.topic("t", steps().on_stuck(OnStuck::DeadLetter)));
    for n in 0..7 {
        world.broker.fail(&format!("m{n}"), 1, || Fail::permanent("no"));
        send(&jobs, "t", "k", &format!("m{n}"));
    }
    world.settle(&jobs);
    assert_eq!(jobs.outbox().stuck("t", 5).unwrap().len(), 5);
    assert_eq!(jobs.outbox().stuck("t", 50).unwrap().len(), 7);
    jobs.outbox().discard("t", "m3", "ana", "old").unwrap();
    for n in [6, 0] {
        jobs.outbox().retry("t", &format!("m{n}"), "ana", "try").unwrap();
        world.settle(&jobs);
    }
    assert_eq!(world.broker.ids(), ["m6", "m0"]);
    let left: Vec<_> = jobs.outbox().stuck("t", 50).unwrap().into_iter().map(|m| m.number).collect();
    assert_eq!(left, [2, 3, 5, 6]);
    jobs.shutdown(PATIENCE).unwrap();
}
