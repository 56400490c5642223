//! JetStream, against nats-server.

use super::{again, message, one, refused, run, server, unique};
use crate::ground::thread;
use onceward::publishers::async_nats::jetstream::stream::{Config, DiscardPolicy, Stream};
use onceward::publishers::async_nats::{self, jetstream};
use onceward::publishers::{Nats, StreamWarning, dedupe_key};
use onceward::{AsyncPublisher, Message};
use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::{Arc, Mutex};
use std::time::Duration;

pub(super) async fn stream(address: &str, config: Config) -> Stream {
    let client = async_nats::connect(address).await.unwrap();
    jetstream::new(client).create_stream(config).await.unwrap()
}

/// A stream that is there.
pub(super) async fn known(address: &str, name: &str) -> Stream {
    let client = async_nats::connect(address).await.unwrap();
    jetstream::new(client).get_stream(name).await.unwrap()
}

pub(super) async fn count(stream: &mut Stream) -> u64 {
    stream.info().await.unwrap().state.messages
}

pub(super) fn plain(topic: &str) -> Config {
    Config { name: topic.to_owned(), subjects: vec![topic.to_owned()], ..Config::default() }
}

pub(super) fn once_each(topic: &str) -> Config {
    Config {
        name: topic.to_owned(),
        subjects: vec![format!("{topic}.*")],
        max_messages_per_subject: 1,
        discard: DiscardPolicy::New,
        discard_new_per_subject: true,
        // The shortest there is: one test needs it to be over.
        duplicate_window: Duration::from_millis(100),
        ..Config::default()
    }
}

/// The same message twice, in two calls and in one batch: the stream has it once, with its id and headers.
#[test]
fn nats_has_a_repeated_message_once() {
    let Some(address) = server("ONCEWARD_NATS") else { return };
    run(async {
        let topic = unique("repeated");
        let mut stream = stream(&address, plain(&topic)).await;
        let nats = Nats::at(&address).unwrap();
        let (a, b) = (message(&topic, "a/1"), message(&topic, "b"));
        one(&nats, &a).await.unwrap();
        one(&nats, &a).await.unwrap();
        let told = nats.publish_all(vec![a.clone(), b.clone(), b.clone(), a.clone()]).await;
        assert!(told.len() == 4 && told.iter().all(Result::is_ok), "{told:?}");
        assert_eq!(count(&mut stream).await, 2);
        let kept = stream.get_raw_message(1).await.unwrap();
        assert_eq!((&kept.payload[..], kept.subject.as_str()), (&a.body[..], topic.as_str()));
        let header = |name: &str| kept.headers.get(name).map(|v| v.as_str().to_owned()).unwrap();
        assert_eq!(header("Nats-Msg-Id"), dedupe_key(&a));
        assert_eq!((header("Onceward-Id"), header("traceparent")), ("a/1".to_owned(), "00-1-2-03".to_owned()));
        println!("nats: 6 publications, {} messages", count(&mut stream).await);
    });
}

/// Two topics in one stream may use the same id: both messages arrive.
#[test]
fn nats_keeps_two_topics_with_the_same_id_apart() {
    let Some(address) = server("ONCEWARD_NATS") else { return };
    run(async {
        let name = unique("apart");
        let mut stream = stream(&address, Config { subjects: vec![format!("{name}.>")], ..plain(&name) }).await;
        let nats = Nats::at(&address).unwrap();
        for topic in ["paid", "sent"] {
            one(&nats, &message(&format!("{name}.{topic}"), "1")).await.unwrap();
        }
        assert_eq!(count(&mut stream).await, 2);
    });
}

/// The window has forgotten the id, but the subject is taken: the refusal means "here already", and the first body stays.
#[test]
fn one_subject_per_id_outlives_the_duplicate_window() {
    let Some(address) = server("ONCEWARD_NATS") else { return };
    run(async {
        let topic = unique("each");
        let mut stream = stream(&address, once_each(&topic)).await;
        let nats = Nats::at(&address).unwrap().one_subject_per_id();
        let first = message(&topic, "order.1");
        one(&nats, &first).await.unwrap();
        // Published past the window by somebody who does not know the pattern, the server says what it says then.
        let client = async_nats::connect(&address).await.unwrap();
        let subject = format!("{topic}.order%2E1");
        let late = jetstream::new(client).publish(subject.clone(), "late".into()).await.unwrap().await.unwrap_err();
        assert!(format!("{late:?}").contains("maximum messages per subject exceeded"), "{late:?}");
        // Until the window has passed this is a duplicate, afterwards a refusal: Ok both times, which the count proves.
        super::until("the window forgets", || async {
            one(&nats, &first).await.unwrap();
            let client = async_nats::connect(&address).await.unwrap();
            let mut headers = async_nats::HeaderMap::new();
            headers.insert("Nats-Msg-Id", dedupe_key(&first));
            let ack =
                jetstream::new(client).publish_with_headers(subject.clone(), headers, "late".into()).await.unwrap();
            ack.await.is_err().then_some(())
        })
        .await;
        one(&nats, &first).await.unwrap();
        assert_eq!(count(&mut stream).await, 1);
        one(&nats, &message(&topic, "order.2")).await.unwrap();
        assert_eq!(count(&mut stream).await, 2);
        // Without the pattern the same refusal is no proof of anything.
        let other = Nats::at(&address).unwrap();
        again(&one(&other, &message(&subject, "another id")).await, "maximum messages per subject");
    });
}

/// A full stream refuses with the same code as a taken subject: that is no delivery.
#[test]
fn a_full_stream_is_again_and_not_here_already() {
    let Some(address) = server("ONCEWARD_NATS") else { return };
    run(async {
        let topic = unique("full");
        let mut stream = stream(&address, Config { max_messages: 1, ..once_each(&topic) }).await;
        let nats = Nats::at(&address).unwrap().one_subject_per_id();
        one(&nats, &message(&topic, "1")).await.unwrap();
        again(&one(&nats, &message(&topic, "2")).await, "maximum messages exceeded");
        assert_eq!(count(&mut stream).await, 1);
    });
}

/// A window of two minutes and retries of a day: the app is told at the first message, once, and can ask before.
#[test]
fn a_duplicate_window_that_retries_can_outlast_is_told() {
    let Some(address) = server("ONCEWARD_NATS") else { return };
    run(async {
        let day = Duration::from_secs(86_400);
        let (short, long) = (unique("short"), unique("long"));
        stream(&address, plain(&short)).await;
        stream(&address, Config { duplicate_window: 2 * day, ..plain(&long) }).await;
        let told = Arc::<Mutex<Vec<StreamWarning>>>::default();
        let heard = told.clone();
        let nats = Nats::at(&address).unwrap().retries_last(day, move |w| heard.lock().unwrap().push(w));
        for id in ["1", "2"] {
            one(&nats, &message(&short, id)).await.unwrap();
            one(&nats, &message(&long, id)).await.unwrap();
        }
        let window = Duration::from_secs(120);
        let warning = StreamWarning::ShortWindow { stream: short.clone(), window, retries: day };
        assert_eq!(*told.lock().unwrap(), std::slice::from_ref(&warning));
        assert_eq!(nats.check(&short, day).await.unwrap(), [warning]);
        assert_eq!(nats.check(&long, day).await.unwrap(), []);
        // Nobody said how long retries last: they last for ever, and the log tells, once.
        let heard = crate::ground::listen();
        let nats = Nats::at(&address).unwrap();
        for id in ["3", "4"] {
            one(&nats, &message(&short, id)).await.unwrap();
        }
        assert_eq!(heard.count(&[&short, "forgets ids after 120s, but retries may last for ever"]), 1);
        let (each, loose) = (unique("each"), unique("loose"));
        stream(&address, once_each(&each)).await;
        stream(&address, Config { subjects: vec![format!("{loose}.*")], ..plain(&loose) }).await;
        let nats = Nats::at(&address).unwrap().one_subject_per_id();
        assert_eq!(nats.check(&each, day).await.unwrap(), []);
        assert_eq!(nats.check(&loose, day).await.unwrap(), [StreamWarning::TakesSecond { stream: loose }]);
        assert!(nats.check(&unique("nowhere"), day).await.is_err());
    });
}

/// Too large for the server or the stream, or no subject at all: trying again cannot help. The ones before it are delivered, the
/// ones after it untouched.
#[test]
fn nats_refuses_for_good_what_it_can_never_take() {
    let Some(address) = server("ONCEWARD_NATS") else { return };
    run(async {
        let topic = unique("large");
        let mut stream = stream(&address, Config { max_message_size: 1024, ..plain(&topic) }).await;
        let nats = Nats::at(&address).unwrap();
        let sized = |size| Message::new(&topic, &format!("{size}"), vec![b'1'; size]);
        refused(&one(&nats, &sized(2048)).await, "message size exceeds maximum");
        refused(&one(&nats, &sized(1 << 20)).await, "max payload");
        refused(&one(&nats, &message("not a subject", "1")).await, "no subject");
        refused(&one(&nats, &message("orders.*", "1")).await, "no subject");
        let mut ours = message(&topic, "1");
        ours.headers.push(("nats-msg-id".to_owned(), "other".to_owned()));
        refused(&one(&nats, &ours).await, "nats-msg-id");
        assert_eq!(count(&mut stream).await, 0);
        let told = nats.publish_all(vec![sized(1), sized(2048), sized(2)]).await;
        assert!(told.len() == 2 && told[0].is_ok(), "{told:?}");
        refused(&told[1], "message size");
        assert_eq!(count(&mut stream).await, 1);
    });
}

/// Two keys in one batch, and an earlier message of each is not taken: whatever is on its way together, no later message of the same
/// key is in the stream before it.
#[test]
fn nats_lets_nothing_overtake_within_a_key_when_an_earlier_one_fails() {
    let Some(address) = server("ONCEWARD_NATS") else { return };
    run(async {
        let topic = unique("order");
        let mut stream = stream(&address, Config { max_message_size: 1024, ..plain(&topic) }).await;
        let nats = Nats::at(&address).unwrap();
        let of = |key: &str, n: u32, size: usize| {
            let mut message = Message::new(&topic, &format!("{key}{n}"), vec![b'1'; size]);
            message.key = key.to_owned();
            message
        };
        let mut tried = 0;
        // The large one stands at each place of its key's three; the other key's three are between.
        for large in 0..3 {
            let sized = |n| if n == large { 2048 } else { 1 };
            let batch: Vec<_> =
                (0..3).flat_map(|n| [of(&format!("a{large}"), n, sized(n)), of(&format!("b{large}"), n, 1)]).collect();
            let before = count(&mut stream).await;
            let told = nats.publish_all(batch.clone()).await;
            let failed = told.iter().position(Result::is_err).unwrap();
            refused(&told[failed], "message size");
            assert_eq!(failed, 2 * large as usize);
            // Its own wave may have gone on with the other key; nothing behind it in its key was even sent.
            let taken = told.iter().filter(|t| t.is_ok()).count() as u64;
            assert_eq!(count(&mut stream).await, before + taken);
            assert_eq!(told.len(), 2 * large as usize + 2);
            tried += batch.len();
        }
        println!("nats: {tried} messages in 3 batches, nothing overtook");
    });
}

/// A server that says hello and then takes nothing more off its connection.
fn deaf() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    thread(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let info = r#"{"server_id":"x","server_name":"x","version":"2.10.0","go":"go","host":"127.0.0.1","port":1,"#;
        let more = r#""headers":true,"max_payload":8388608,"proto":1,"jetstream":true}"#;
        stream.write_all(format!("INFO {info}{more}\r\n").as_bytes()).unwrap();
        let (mut seen, mut bytes) = (Vec::new(), [0; 1024]);
        while !seen.windows(4).any(|w| w == b"PING") {
            let n = stream.read(&mut bytes).unwrap();
            assert!(n > 0);
            seen.extend_from_slice(&bytes[..n]);
        }
        stream.write_all(b"PONG\r\n").unwrap();
        // The connection stays open.
        loop {
            std::thread::park();
        }
    });
    address
}

/// The connection is full after a few messages of a batch: the call ends with one patience, not with one for each message that could
/// not be sent. Those are left for the next call.
#[test]
fn a_batch_that_cannot_be_sent_costs_one_patience() {
    run(async {
        let options = async_nats::ConnectOptions::new().client_capacity(1);
        let client = options.connect(deaf()).await.unwrap();
        let nats = Nats::with_client(client).timeout(Duration::from_millis(500));
        let batch = (0..64).map(|n| {
            let mut m = Message::new("orders", &n.to_string(), vec![b'1'; 1 << 20]);
            m.key = n.to_string();
            m
        });
        let told = nats.publish_all(batch.collect()).await;
        assert!(!told.is_empty() && told.len() < 64, "{} answers", told.len());
        told.iter().for_each(|t| again(t, "no answer from NATS within 500ms"));
        println!("nats: {} messages of 64 were begun", told.len());
    });
}

/// Nobody has made the stream yet: again, and delivered once it is there.
#[test]
fn a_missing_stream_is_again_until_it_is_there() {
    let Some(address) = server("ONCEWARD_NATS") else { return };
    run(async {
        let topic = unique("later");
        let nats = Nats::at(&address).unwrap();
        again(&one(&nats, &message(&topic, "1")).await, "no stream takes the subject");
        let mut stream = stream(&address, plain(&topic)).await;
        one(&nats, &message(&topic, "1")).await.unwrap();
        assert_eq!(count(&mut stream).await, 1);
        let client = async_nats::connect(&address).await.unwrap();
        one(&Nats::with_client(client), &message(&topic, "1")).await.unwrap();
        assert_eq!(count(&mut stream).await, 1);
    });
}
