//! A publisher that ends the process whenever it is given one certain message: that message becomes a question for a person, and all
//! others are delivered.

use super::PATIENCE;
use super::app::say;
use super::parent::Life;
use onceward::{Ending, Jobs, Message, Outgoing, Why};
use std::path::Path;

const MESSAGES: u64 = 13;
const KILLER: &str = "m/6";
const RESTARTS: usize = 10;

fn publish(m: &Message) -> onceward::Outcome {
    say(&format!("publish {}", m.id));
    if m.id == KILLER {
        std::process::abort();
    }
    Ok(())
}

fn open(dir: &Path) -> Jobs {
    Jobs::open(dir.join("q.redb")).publisher("t", publish).start().expect("it opens")
}

pub(super) fn child(dir: &Path) {
    let jobs = open(dir);
    jobs.transact(|tx| {
        for n in 0..MESSAGES {
            tx.send(Outgoing::new("t", format!("m/{n}"), &n).key(format!("k/{n}")))?;
        }
        // Behind the killer, in its key.
        tx.send(Outgoing::new("t", "behind", &0).key("k/6")).map(drop)
    })
    .expect("they are handed in");
    jobs.drain(PATIENCE).expect("everything goes out");
    jobs.shutdown(PATIENCE).expect("it closes");
}

/// Somebody starts the process again and again: after a death in company and two alone the message waits for a person, what stands
/// behind it in its key waits with it, and everything else was delivered. A person may then discard it.
#[test]
fn a_message_that_kills_its_process_waits_for_a_person_and_the_others_go_out() {
    let dir = tempfile::tempdir().expect("a directory");
    let (mut deaths, mut published) = (0, Vec::new());
    loop {
        let (status, said) = Life::start(&format!("poison-publisher|{}", dir.path().display())).end();
        published.extend(said.iter().filter_map(|l| l.strip_prefix("publish ")).map(str::to_owned));
        if status.success() {
            break;
        }
        assert!(status.code() != Some(101), "the child failed: {said:#?}");
        deaths += 1;
        assert!(deaths <= RESTARTS, "still no end after {deaths} deaths: {said:#?}");
    }
    let jobs = open(dir.path());
    let outbox = jobs.outbox();
    let stuck = outbox.stuck("t", 99).expect("a list");
    let which: Vec<_> = stuck.iter().map(|m| (m.id.as_str(), m.stuck, m.failures)).collect();
    assert_eq!(which, [(KILLER, Some(Why::ProcessDied), 2)]);
    assert!(stuck[0].error.as_deref().is_some_and(|e| e.contains("the process died")), "{stuck:#?}");
    let mut out = 0;
    for n in (0..MESSAGES).filter(|n| *n != 6) {
        let found = outbox.find("t", &format!("m/{n}")).expect("read").expect("known");
        assert_eq!(found.ended.map(|e| e.0), Some(Ending::Published), "m/{n}");
        out += 1;
    }
    assert_eq!(published.iter().filter(|id| *id == KILLER).count(), deaths);
    assert_eq!(deaths, 3, "one in company, two alone");
    assert_eq!(outbox.waiting("t", 99).expect("a list").len(), 2);
    outbox.discard("t", KILLER, "ann", "it kills the publisher").expect("it is stuck");
    jobs.drain(PATIENCE).expect("the rest goes out");
    assert_eq!(outbox.find("t", "behind").expect("read").expect("known").marks, 1);
    jobs.shutdown(PATIENCE).expect("it closes");
    println!("poison: {deaths} deaths by one message, then it waits for a person; {out} others delivered");
}
