//! The relay of a topic, two people who decide about a stuck message at the same time, and the end of the process.

use super::{Board, Log, MANY, PATIENCE, SECOND, World, doze, explore, spawn};
use onceward::testkit::run_until_idle;
use onceward::{Backoff, Ending, Error, Fail, Jobs, Message, Outgoing, Topic};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

type AnyError = Box<dyn std::error::Error + Send + Sync>;
const TOPIC: &str = "news";
const STUCK: &str = "a/1";

/// A broker that is away now and then, loses an answer, and refuses one message the first time.
#[derive(Clone, Default)]
struct Broker {
    took: Log<(String, String)>,
    asked: Arc<AtomicU64>,
    refused: Board<bool>,
}

impl Broker {
    /// Whoever waits for the refusal waits no longer; whether it had not happened.
    fn lock_away(&self) -> bool {
        let waited = !*self.refused.lock();
        self.refused.write(|refused| *refused = true);
        waited
    }
    fn takes(&self, m: &Message) -> Result<(), Fail> {
        let nth = self.asked.fetch_add(1, Ordering::Relaxed);
        if m.id == STUCK && !*self.refused.lock() {
            self.refused.write(|refused| *refused = true);
            return Err(Fail::permanent("it cannot be read"));
        }
        if nth % 5 == 1 {
            return Err(Fail::new("the broker is away"));
        }
        self.took.push((m.key.clone(), m.id.clone()));
        if nth % 7 == 3 { Err(Fail::new("the answer got lost")) } else { Ok(()) }
    }
}

fn open(world: &World, life: u64, broker: &Broker) -> Jobs {
    let broker = broker.clone();
    let topic = Topic::default().retries(20).backoff(Backoff::steps([SECOND])).batch(2);
    world.process(life, 1).publisher(TOPIC, move |m: &Message| broker.takes(m)).topic(TOPIC, topic).start().unwrap()
}

/// Somebody who waits until the message is stuck, and decides: whether that was carried out, if there was anything to decide.
fn person(jobs: &Jobs, broker: &Broker, discards: bool) -> Option<bool> {
    broker.refused.until(|refused| *refused);
    for _ in 0..2_000 {
        match jobs.outbox().stuck(TOPIC, 9) {
            Ok(stuck) if stuck.is_empty() => shuttle::thread::yield_now(),
            Ok(_) => {
                let (outbox, who) = (jobs.outbox(), if discards { "ann" } else { "bob" });
                let done = if discards {
                    outbox.discard(TOPIC, STUCK, who, "old")
                } else {
                    outbox.retry(TOPIC, STUCK, who, "try")
                };
                return match done {
                    Err(Error::ShutDown) => None,
                    done => Some(done.is_ok()),
                };
            }
            Err(_) => return None,
        }
    }
    None
}

/// Messages of two ordering keys are committed while the relay delivers to a broker that fails now and then; two people decide about the
/// one that is stuck, one of them for it and one against, and the queue stops at a racing moment: one of the two is heard at most, and
/// in the end every committed message was taken by the broker or discarded, first deliveries in the order of their numbers, and marked once.
#[test]
fn every_committed_message_goes_out_in_order_or_is_discarded() {
    let must =
        ["retried", "discarded", "the next process delivered", "delivered more than once", "nobody decided in time"];
    explore("relay, people and shutdown", &MANY, &must, |schedule| {
        let (world, broker, sent) = (World::default(), Broker::default(), Log::default());
        broker.asked.store(schedule.draw(1, 5), Ordering::Relaxed);
        let jobs = open(&world, 1, &broker);
        let senders: Vec<_> = ["a", "b"]
            .into_iter()
            .map(|key| {
                let (jobs, sent) = (jobs.clone(), sent.clone());
                spawn(move || {
                    for n in 0..3 {
                        let id = format!("{key}/{n}");
                        let of = id.clone();
                        let done = jobs.transact(move |tx| -> Result<u64, AnyError> {
                            Ok(tx.send(Outgoing::new(TOPIC, of.clone(), &n).key(key))?.number())
                        });
                        sent.push((id, done.unwrap()));
                    }
                })
            })
            .collect();
        let people: Vec<_> = [true, false]
            .into_iter()
            .map(|discards| {
                let (jobs, broker) = (jobs.clone(), broker.clone());
                spawn(move || person(&jobs, &broker, discards))
            })
            .collect();
        senders.into_iter().for_each(|s| s.join().unwrap());
        let clock = world.clock.clone();
        let time = spawn(move || {
            for _ in 0..6 {
                clock.advance(SECOND);
                doze(10);
            }
        });
        doze(schedule.draw(2, schedule.pick(3, [1, 100, 400])));
        let patient = schedule.draw(4, 2) == 0;
        let mut time = Some(time);
        if patient {
            time.take().into_iter().for_each(|t| t.join().unwrap());
            run_until_idle(&jobs).unwrap();
        }
        let _report = jobs.clone().shutdown(PATIENCE).unwrap();
        let before = broker.took.len();
        // Whoever still waits for the message goes home.
        let away = broker.lock_away();
        let said: Vec<_> = people.into_iter().map(|p| p.join().unwrap()).collect();
        broker.refused.write(|refused| *refused = *refused && !away);
        drop(jobs);
        let jobs = open(&world, 2, &broker);
        for _ in 0..100 {
            run_until_idle(&jobs).unwrap();
            for stuck in jobs.outbox().stuck(TOPIC, 9).unwrap() {
                schedule.saw("nobody decided in time");
                jobs.outbox().discard(TOPIC, &stuck.id, "cyd", "in the end").unwrap();
            }
            world.clock.advance(SECOND);
            if jobs.outbox().topics().unwrap().iter().all(|t| t.depth == 0) {
                break;
            }
        }
        let heard = said.iter().filter(|s| **s == Some(true)).count();
        assert!(heard <= 1, "one of two people is heard: {said:?}");
        if said.iter().all(Option::is_some) {
            assert_eq!(heard, 1, "one of two people is heard: {said:?}");
        }
        let numbers: BTreeMap<String, u64> = sent.all().into_iter().collect();
        let took = broker.took.all();
        let mut last: BTreeMap<&str, u64> = BTreeMap::new();
        let mut first: Vec<&str> = Vec::new();
        for (key, id) in &took {
            if !first.contains(&id.as_str()) {
                first.push(id);
                let was = last.insert(key, numbers[id]);
                assert!(was.is_none_or(|was| was < numbers[id]), "out of order: {took:?}");
            }
        }
        for id in numbers.keys() {
            let m = jobs.outbox().find(TOPIC, id).unwrap().unwrap();
            let how = m.ended.map(|e| e.0);
            let marks = u32::from(how == Some(Ending::Published));
            assert!(how.is_some() && m.marks == marks, "{m:?}");
            assert_eq!(first.contains(&id.as_str()), how == Some(Ending::Published), "{id} ended as {how:?}");
            if id == STUCK && heard == 1 {
                assert_eq!(how == Some(Ending::Discarded), said[0] == Some(true), "{said:?}");
                schedule.saw(if said[0] == Some(true) { "discarded" } else { "retried" });
            }
        }
        if took.len() > before {
            schedule.saw("the next process delivered");
        }
        if took.len() > first.len() {
            schedule.saw("delivered more than once");
        }
        time.into_iter().for_each(|t| t.join().unwrap());
        world.end(jobs);
    });
}
