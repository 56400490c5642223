//! What is wrong with a setup, files of before the outbox, damaged rows.

use super::super::ground::{Ground, PATIENCE};
use super::broker::World;
use super::send;
use onceward::redb::{self, TableDefinition};
use onceward::{Error, Jobs, Message, OnStuck, Outboxed, Setup, Topic, Why};
use std::sync::{Arc, Mutex};

/// Two publishers, two policies, a policy for a misspelt name, no name: refused before the file is touched.
#[test]
fn mistakes_about_topics_are_refused_at_start() {
    let publish = |_: &Message| Ok(());
    let setup = |f: &dyn Fn(onceward::Builder) -> onceward::Builder| {
        let ground = Ground::new();
        match f(ground.builder()).start() {
            Err(Error::Setup(s)) => s,
            Err(e) => panic!("{e}"),
            Ok(_) => panic!("it started"),
        }
    };
    let twice = |t: &str| Setup::TopicTwice(t.to_owned());
    assert_eq!(setup(&|b| b.publisher("t", publish).publisher("t", publish)), twice("t"));
    let two =
        |b: onceward::Builder| b.publisher("t", publish).topic("t", Topic::default()).topic("t", Topic::default());
    assert_eq!(setup(&two), twice("t"));
    let misspelt = |b: onceward::Builder| b.publisher("orders", publish).topic("order", Topic::default());
    assert_eq!(setup(&misspelt), Setup::NoPublisher("order".to_owned()));
    let nameless = setup(&|b| b.publisher("", publish));
    assert!(matches!(nameless, Setup::BadName { what: "topic", .. }));
    assert!(setup(&misspelt).to_string().contains("publisher"));
}

type Seen = Arc<Mutex<Vec<String>>>;

fn on_file(path: &std::path::Path, policy: Topic) -> (Jobs, Seen) {
    let seen = Seen::default();
    let kept = seen.clone();
    let publish = move |m: &Message| {
        kept.lock().unwrap().push(m.id.clone());
        Ok(())
    };
    (Jobs::open(path).publisher("t", publish).topic("t", policy).start().unwrap(), seen)
}

/// A file of the same format that was made before there was an outbox: it opens, keeps what it had, and gets one.
#[test]
fn a_file_without_the_tables_of_the_outbox_opens() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("old.redb");
    let (jobs, _) = on_file(&path, Topic::default());
    jobs.transact(|tx| {
        tx.open_table(super::ROWS)?.insert("kept", 5).map_err(|e| Error::App(e.to_string()))?;
        Ok::<_, Error>(())
    })
    .unwrap();
    jobs.shutdown(PATIENCE).unwrap();
    let mut removed = 0;
    {
        let db = redb::Database::open(&path).unwrap();
        let tx = db.begin_write().unwrap();
        let names: Vec<String> = tx.list_tables().unwrap().map(|t| redb::TableHandle::name(&t).to_owned()).collect();
        for handle in tx.list_tables().unwrap().collect::<Vec<_>>() {
            let name = redb::TableHandle::name(&handle).to_owned();
            if ["q/topic", "q/message", "q/unsent", "q/aside", "q/sent", "q/fade"].contains(&name.as_str()) {
                removed += u32::from(tx.delete_table(handle).unwrap());
            }
        }
        tx.commit().unwrap();
        assert!(names.len() > 16);
    }
    assert_eq!(removed, 6);
    let (jobs, seen) = on_file(&path, Topic::default());
    assert_eq!(jobs.outbox().topics().unwrap().len(), 1);
    assert_eq!(send(&jobs, "t", "t", "a"), Outboxed::New { number: 1 });
    jobs.drain(PATIENCE).unwrap();
    assert_eq!(*seen.lock().unwrap(), ["a"]);
    let kept = jobs.read(|r| r.open_table(super::ROWS).unwrap().get("kept").unwrap().map(|v| v.value()));
    assert_eq!(kept.unwrap(), Some(5));
    jobs.shutdown(PATIENCE).unwrap();
}

/// A bit flips in the message 1, in where message 3 of the key b stands, and in the memory of c1; all of the topic t.
fn flip_bits(path: &std::path::Path) {
    use redb::ReadableTable;
    const MESSAGE: TableDefinition<'_, (&str, u64), &[u8]> = TableDefinition::new("q/message");
    const UNSENT: TableDefinition<'_, (&str, &str, u64), &[u8]> = TableDefinition::new("q/unsent");
    const SENT: TableDefinition<'_, (&str, &str), &[u8]> = TableDefinition::new("q/sent");
    let db = redb::Database::open(path).unwrap();
    let tx = db.begin_write().unwrap();
    let damage = |bytes: &[u8]| {
        let mut bytes = bytes.to_vec();
        let last = bytes.len() - 6;
        bytes[last] ^= 16;
        bytes
    };
    {
        let mut message = tx.open_table(MESSAGE).unwrap();
        let bad = damage(message.get(("t", 1)).unwrap().unwrap().value());
        message.insert(("t", 1), &*bad).unwrap();
        let mut unsent = tx.open_table(UNSENT).unwrap();
        let bad = damage(unsent.get(("t", "b", 3)).unwrap().unwrap().value());
        unsent.insert(("t", "b", 3), &*bad).unwrap();
        let mut sent = tx.open_table(SENT).unwrap();
        let bad = damage(sent.get(("t", "c1")).unwrap().unwrap().value());
        sent.insert(("t", "c1"), &*bad).unwrap();
    }
    tx.commit().unwrap();
}

/// The message, where it stands or what is remembered of its id cannot be read, and it is stuck: it is listed with its key and number,
/// and a person has it thrown away by these. What waited behind it goes on.
#[test]
fn a_message_that_cannot_be_read_is_decided_by_its_number() {
    for policy in [OnStuck::Block, OnStuck::DeadLetter] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("damaged.redb");
        let jobs = Jobs::open(&path).start().unwrap();
        for (key, id) in [("a", "a1"), ("a", "a2"), ("b", "b1"), ("b", "b2"), ("c", "c1"), ("c", "c2")] {
            send(&jobs, "t", key, id);
        }
        jobs.shutdown(PATIENCE).unwrap();
        flip_bits(&path);
        let seen = Seen::default();
        let kept = seen.clone();
        let publish = move |m: &Message| {
            if m.id == "c1" {
                return Err(onceward::Fail::permanent("no such customer"));
            }
            kept.lock().unwrap().push(m.id.clone());
            Ok(())
        };
        let topic = Topic::default().on_stuck(policy);
        let jobs = Jobs::open(&path).publisher("t", publish).topic("t", topic).start().unwrap();
        jobs.drain(PATIENCE).unwrap();
        let outbox = jobs.outbox();
        let mut stuck = outbox.stuck("t", 9).unwrap();
        stuck.sort_by_key(|m| m.number);
        let shown: Vec<_> = stuck.iter().map(|m| (m.key.as_str(), m.number, m.id.as_str())).collect();
        // Of one that was put aside only the number is known.
        let of_first = if policy == OnStuck::Block { "a" } else { "" };
        assert_eq!(shown, [(of_first, 1, ""), ("b", 3, "b1"), ("c", 5, "c1")], "{policy:?}");
        let refusal = outbox.discard("t", "c1", "ana", "moved away").unwrap_err();
        assert!(matches!(refusal, Error::Refused(_)) && refusal.to_string().contains("discard_number"), "{refusal}");
        assert!(matches!(outbox.discard_number("t", "a", 2, "ana", "it is not stuck"), Err(Error::Refused(_))));
        let wrong = outbox.discard_number("t", "somebody else's", 5, "ana", "a slip").unwrap_err();
        assert!(matches!(wrong, Error::Refused(_)) && wrong.to_string().contains("of the key \"c\""), "{wrong}");
        for (who, why) in [("ana\nbob", "ok"), ("\u{200b}", "ok"), ("ana", "a\nbob: retried"), ("ana", "\u{1b}[31m")] {
            let refusal = outbox.retry_number("t", &stuck[2].key, 5, who, why).unwrap_err();
            assert!(matches!(refusal, Error::Refused(_)), "{who:?} {why:?}");
        }
        outbox.retry_number("t", &stuck[2].key, 5, "ana", "perhaps").unwrap();
        jobs.drain(PATIENCE).unwrap();
        for m in &stuck {
            outbox.discard_number("t", &m.key, m.number, "ana", "unreadable").unwrap();
        }
        jobs.drain(PATIENCE).unwrap();
        let mut ids = seen.lock().unwrap().clone();
        ids.sort();
        assert_eq!(ids, ["a2", "b2", "c2"], "{policy:?}");
        assert_eq!(outbox.stuck("t", 9).unwrap(), []);
        let b1 = outbox.find("t", "b1").unwrap().unwrap();
        assert_eq!(b1.acts.last().map(|(act, by)| (*act, by.who.as_str())), Some((onceward::Act::Discarded, "ana")));
        jobs.shutdown(PATIENCE).unwrap();
    }
}

/// A bit flips in a message, in where one stands, and in the memory of one: the first two wait for a person, the rest goes out, and
/// nothing is taken for something else.
#[test]
fn a_damaged_row_waits_for_a_person_and_stops_nothing_else() {
    for (policy, arrives) in [(OnStuck::Block, vec!["c1", "d1"]), (OnStuck::DeadLetter, vec!["a2", "b2", "c1", "d1"])] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("damaged.redb");
        let jobs = Jobs::open(&path).start().unwrap();
        for (key, id) in [("a", "a1"), ("a", "a2"), ("b", "b1"), ("b", "b2"), ("c", "c1"), ("d", "d1")] {
            send(&jobs, "t", key, id);
        }
        jobs.shutdown(PATIENCE).unwrap();
        flip_bits(&path);
        let (jobs, seen) = on_file(&path, Topic::default().on_stuck(policy));
        jobs.drain(PATIENCE).unwrap();
        let mut ids = seen.lock().unwrap().clone();
        ids.sort();
        assert_eq!(ids, arrives, "{policy:?}");
        let stuck = jobs.outbox().stuck("t", 9).unwrap();
        let mut numbers: Vec<_> = stuck.iter().map(|m| (m.number, m.stuck)).collect();
        numbers.sort_by_key(|(n, _)| *n);
        assert_eq!(numbers, [(1, Some(Why::Permanent)), (3, Some(Why::Permanent))]);
        // What can be read of one is sent when a person says so; what cannot goes only out of the way.
        jobs.outbox().retry("t", "b1", "ana", "the row is whole, only its standing was not").unwrap();
        jobs.outbox().discard("t", "a1", "ana", "unreadable").unwrap();
        jobs.drain(PATIENCE).unwrap();
        let mut ids = seen.lock().unwrap().clone();
        ids.sort();
        assert_eq!(ids, ["a2", "b1", "b2", "c1", "d1"]);
        jobs.shutdown(PATIENCE).unwrap();
    }
}

/// Two instances of one setup with two topics each, at the same time, in one process: their topics are their own.
#[test]
fn two_queues_have_their_own_topics() {
    let (one, two) = (World::new(), World::new());
    let (a, b) = (one.start(&["t"]), two.start(&["t"]));
    send(&a, "t", "t", "a");
    send(&b, "t", "t", "b");
    one.settle(&a);
    two.settle(&b);
    assert_eq!((one.broker.ids(), two.broker.ids()), (vec!["a".to_owned()], vec!["b".to_owned()]));
    a.shutdown(PATIENCE).unwrap();
    b.shutdown(PATIENCE).unwrap();
}
