//! `kill -9` of the sender: after the other side has acknowledged a message and before the sender could mark it. The message arrives
//! again with the same id, and what docs/publishers.md names keeps the second copy out.

use super::{http, message, mqtt, nats, postgres, run, server, unique};
use crate::kill::{Life, say};
use onceward::publishers::{Http, Mqtt, Nats, Postgres};
use onceward::{AsyncPublisher, Job, JobKey, Jobs, Message, Outcome, Outgoing, Publisher, State};
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(60);
/// Kills of each sender: with the first it has both messages in its hands, with the second only one.
const KILLS: usize = 2;
const IDS: [&str; 2] = ["order/1", "order/2"];

// ---- the child ---------------------------------------------------------------------------------------------------------------

/// Publishes, says so, and never comes back if this life is to be killed: the mark cannot have happened.
struct Stops<P> {
    inner: P,
    stop: bool,
}

fn tell(messages: &[Message], told: &[Outcome]) {
    messages.iter().zip(told).filter(|(_, t)| t.is_ok()).for_each(|(m, _)| say(&format!("acknowledged {}", m.id)));
}

impl<P: AsyncPublisher> AsyncPublisher for Stops<P> {
    async fn publish_all(&self, messages: Vec<Message>) -> Vec<Outcome> {
        let told = self.inner.publish_all(messages.clone()).await;
        tell(&messages, &told);
        if self.stop && told.iter().any(Result::is_ok) {
            say("stopped");
            std::future::pending::<()>().await;
        }
        told
    }
}

struct StopsBlocking(Stops<Http>);

impl Publisher for StopsBlocking {
    fn publish(&self, m: &Message) -> Outcome {
        self.0.inner.publish(m)
    }
    fn publish_all(&self, messages: &[Message]) -> Vec<Outcome> {
        let told = self.0.inner.publish_all(messages);
        tell(messages, &told);
        while self.0.stop && told.iter().any(Result::is_ok) {
            say("stopped");
            std::thread::park();
        }
        told
    }
}

/// The sender: hands two messages in, which later lives find there, and delivers.
pub(crate) fn child(dir: &Path, broker: &str, address: &str, topic: &str, stop: bool) {
    let builder = Jobs::open(dir.join("sender.redb"));
    let builder = match broker {
        "nats" => builder.publisher_async(topic, Stops { inner: Nats::at(address).unwrap(), stop }),
        "each" => {
            builder.publisher_async(topic, Stops { inner: Nats::at(address).unwrap().one_subject_per_id(), stop })
        }
        "postgres" => builder.publisher_async(topic, Stops { inner: Postgres::at(address, topic).unwrap(), stop }),
        "mqtt" => {
            let (host, port) = mqtt::split(address);
            builder.publisher_async(topic, Stops { inner: Mqtt::at(&host, port, &unique("sender")), stop })
        }
        "http" => builder.publisher(topic, StopsBlocking(Stops { inner: Http::to(address).unwrap(), stop })),
        _ => panic!("no broker is called {broker}"),
    };
    let jobs = builder.start().expect("a kill leaves a file that opens");
    let of = topic.to_owned();
    jobs.transact(move |tx| {
        for id in IDS {
            let m = message(&of, id);
            tx.send(Outgoing::new(m.topic, m.id, &()).raw_body(m.body).key(m.key).kind(m.kind))?;
        }
        Ok::<_, onceward::Error>(())
    })
    .expect("they are handed in");
    jobs.drain(PATIENCE).expect("everything is delivered");
    let left = jobs.outbox().topics().expect("topics")[0].depth;
    jobs.shutdown(PATIENCE).expect("it closes");
    say(&format!("left {left}"));
}

// ---- the parent --------------------------------------------------------------------------------------------------------------

/// Kills the sender twice between acknowledgement and mark, then lets it end: how often each id was acknowledged.
fn kill_the_sender(broker: &str, address: &str, topic: &str) -> BTreeMap<String, usize> {
    let dir = tempfile::tempdir().unwrap();
    let mut acknowledged = BTreeMap::new();
    for life in 0..=KILLS {
        let stop = if life < KILLS { "stop" } else { "end" };
        let mut sender = Life::start(&format!("sender|{}|{broker}|{address}|{topic}|{stop}", dir.path().display()));
        while let Some(line) = sender.hear() {
            if line == "stopped" {
                sender.kill();
                break;
            }
        }
        let (status, said) = sender.end();
        assert_eq!(status.success(), life == KILLS, "{broker}, life {life}: {status}: {said:#?}");
        for id in said.iter().filter_map(|line| line.strip_prefix("acknowledged ")) {
            *acknowledged.entry(id.to_owned()).or_default() += 1;
        }
        assert!(life < KILLS || said.contains(&"left 0".to_owned()), "{said:#?}");
    }
    let all: usize = acknowledged.values().sum();
    assert_eq!(acknowledged.keys().collect::<Vec<_>>(), IDS, "{broker}");
    assert!(all > IDS.len(), "{broker}: nothing was published again: {acknowledged:?}");
    println!(
        "sender: {broker}: {KILLS} kills between acknowledgement and mark, {} messages acknowledged {all} times",
        IDS.len()
    );
    acknowledged
}

/// JetStream: the duplicate window keeps the copies out, or one subject per id where the window is over.
#[test]
fn a_sender_killed_before_its_mark_leaves_one_message_in_the_stream() {
    let Some(address) = server("ONCEWARD_NATS") else { return };
    for (broker, topic) in [("nats", unique("sender")), ("each", unique("sender"))] {
        let config = if broker == "nats" { nats::plain(&topic) } else { nats::once_each(&topic) };
        run(async { drop(nats::stream(&address, config).await) });
        kill_the_sender(broker, &address, &topic);
        let ids = run(async {
            let mut stream = nats::known(&address, &topic).await;
            let mut ids = Vec::new();
            for n in 1..=nats::count(&mut stream).await {
                let kept = stream.get_raw_message(n).await.unwrap();
                ids.push(kept.headers.get("Onceward-Id").unwrap().as_str().to_owned());
            }
            ids
        });
        let mut sorted = ids;
        sorted.sort();
        assert_eq!(sorted, IDS, "{broker}");
    }
}

/// PostgreSQL: the inbox has each message once.
#[test]
fn a_sender_killed_before_its_mark_leaves_one_row_in_the_inbox() {
    let Some(address) = server("ONCEWARD_POSTGRES") else { return };
    let table = run(async { postgres::inbox(&address).await.1 });
    kill_the_sender("postgres", &address, &table);
    let mut ids = run(async { postgres::ids(&postgres::connect(&address).await.unwrap(), &table).await });
    ids.sort();
    assert_eq!(ids, IDS);
}

#[derive(serde::Serialize, serde::Deserialize)]
struct Received {
    id: String,
}

impl Job for Received {
    const KIND: &'static str = "received";
    fn key(&self) -> JobKey {
        self.id.as_str().into()
    }
}

/// MQTT remembers nothing: the copies arrive, with the same id, and a receiver that enqueues with key = message id has each once.
#[test]
fn a_sender_killed_before_its_mark_repeats_the_id_that_the_receiver_knows() {
    let Some(address) = server("ONCEWARD_MQTT") else { return };
    let topic = unique("sender");
    let (to, heard) = std::sync::mpsc::channel();
    let (ready, go) = std::sync::mpsc::channel();
    let (of, at) = (topic.clone(), address.clone());
    crate::ground::thread(move || {
        run(async {
            let mut subscriber = mqtt::Subscriber::new(&at, &of).await;
            ready.send(()).unwrap();
            loop {
                let publish = subscriber.next().await;
                if to.send(mqtt::property(&publish, "onceward-id")).is_err() {
                    return;
                }
            }
        });
    });
    go.recv_timeout(PATIENCE).unwrap();
    let acknowledged = kill_the_sender("mqtt", &address, &topic);
    let jobs = Jobs::on_disk(std::sync::Arc::new(onceward::testkit::SimDisk::new()))
        .on(|_, _: Received| Ok(()))
        .start()
        .unwrap();
    let (mut arrived, mut new) = (0, Vec::new());
    while arrived < acknowledged.values().sum::<usize>() {
        let id = heard.recv_timeout(PATIENCE).expect("what was acknowledged arrives");
        arrived += 1;
        let told = jobs.enqueue(&Received { id: id.clone() }).unwrap();
        if told.is_new() {
            new.push(id);
        }
        assert_eq!(jobs.wait(told.id(), PATIENCE).unwrap(), State::Done);
    }
    assert_eq!(new, IDS);
    jobs.shutdown(PATIENCE).unwrap();
    println!("sender: mqtt: {arrived} messages arrived, {} jobs", new.len());
}

/// A webhook: the requests carry the same key, and a receiver that remembers keys acts once.
#[test]
fn a_sender_killed_before_its_mark_repeats_the_idempotency_key() {
    let receiver = http::always("204 No Content");
    let acknowledged = kill_the_sender("http", &receiver.url(), "orders");
    let mut keys: BTreeMap<String, usize> = BTreeMap::new();
    receiver.got().iter().for_each(|r| *keys.entry(r.headers["idempotency-key"].clone()).or_default() += 1);
    assert_eq!(keys.keys().collect::<Vec<_>>(), ["orders/order/1", "orders/order/2"]);
    assert!(keys.values().sum::<usize>() >= acknowledged.values().sum());
}
