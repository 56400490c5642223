//! `kill -9` for the servers: a set of our own, with a proxy in front that keeps acknowledgements back.

use super::{again, message, mqtt, nats, one, postgres, run, server, unique, until};
use crate::ground::thread;
use onceward::AsyncPublisher;
use onceward::publishers::async_nats::jetstream::stream::Config;
use onceward::publishers::{Mqtt, Nats, Postgres};
use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Servers that this test may kill.
struct Own {
    dir: tempfile::TempDir,
    addresses: HashMap<String, String>,
}

impl Own {
    fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let said = script(&["start", &dir.path().join("servers").to_string_lossy()]);
        let lines = String::from_utf8(said.stdout).unwrap();
        let pairs = lines.lines().filter_map(|l| l.strip_prefix("export ONCEWARD_")?.split_once('='));
        Self { addresses: pairs.map(|(k, v)| (k.to_owned(), v.to_owned())).collect(), dir }
    }
    fn at(&self, name: &str) -> &str {
        &self.addresses[name]
    }
    fn tell(&self, word: &str, name: &str) {
        script(&[word, &self.dir.path().join("servers").to_string_lossy(), name]);
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        script(&["stop", &self.dir.path().join("servers").to_string_lossy()]);
    }
}

fn script(arguments: &[&str]) -> Output {
    let script = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(".ci/servers");
    let output = Command::new("bash").arg(script).args(arguments).output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    output
}

/// Passes bytes on to a server; can keep back what the server says.
struct Proxy {
    port: u16,
    mute: Arc<AtomicBool>,
}

impl Proxy {
    fn to(server: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (port, mute) = (listener.local_addr().unwrap().port(), Arc::<AtomicBool>::default());
        let (server, muted) = (server.to_owned(), mute.clone());
        thread(move || {
            for from in listener.incoming() {
                let from = from.unwrap();
                let Ok(to) = TcpStream::connect(&server) else { continue };
                let (back, there) = (to.try_clone().unwrap(), from.try_clone().unwrap());
                let muted = muted.clone();
                thread(move || pass(from, to, &AtomicBool::new(false)));
                thread(move || pass(back, there, &muted));
            }
        });
        Self { port, mute }
    }
    fn mute(&self, mute: bool) {
        self.mute.store(mute, Ordering::SeqCst);
    }
}

fn pass(mut from: TcpStream, mut to: TcpStream, mute: &AtomicBool) {
    let mut bytes = [0; 4096];
    while let Ok(n) = from.read(&mut bytes) {
        if n == 0 || !mute.load(Ordering::SeqCst) && to.write_all(&bytes[..n]).is_err() {
            break;
        }
    }
    drop((from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both)));
}

/// The server has the message and dies before it says so; while it is down every try is "again"; when it is back the same
/// message is published again, and whoever reads has it once.
#[test]
fn a_server_killed_between_publish_and_acknowledgement_has_one() {
    if server("ONCEWARD_SERVERS").is_none() {
        return;
    }
    let own = Own::start();
    run(async {
        nats_killed(&own).await;
        postgres_killed(&own).await;
        mqtt_killed(&own).await;
    });
    println!("killed: 3 servers with kill -9, each between publish and acknowledgement");
}

const SHORT: Duration = Duration::from_secs(6);

/// What happens to every broker: publish into silence, kill, try in vain, start, publish again. What is said of the cut and of the
/// server that is away, at the end.
async fn killed<F: Future<Output = Option<()>>>(
    own: &Own,
    name: &str,
    proxy: &Proxy,
    publisher: &impl AsyncPublisher,
    topic: &str,
    arrived: impl FnMut() -> F,
    [cut, away]: [&str; 2],
) {
    // Connected, and known to work.
    one(publisher, &message(topic, "before")).await.unwrap();
    proxy.mute(true);
    let second = message(topic, "second");
    let (told, ()) = tokio::join!(one(publisher, &second), async {
        until("the server has it", arrived).await;
        own.tell("kill", name);
    });
    again(&told, cut);
    proxy.mute(false);
    again(&one(publisher, &second).await, away);
    own.tell("again", name);
    until("delivered when it is back", || async { one(publisher, &second).await.ok() }).await;
}

async fn nats_killed(own: &Own) {
    let address = own.at("NATS");
    let topic = unique("killed");
    let config = Config { name: topic.clone(), subjects: vec![topic.clone()], ..Config::default() };
    let stream = nats::stream(address, config).await;
    let proxy = Proxy::to(address.trim_start_matches("nats://"));
    let publisher = Nats::at(&format!("127.0.0.1:{}", proxy.port)).unwrap().timeout(SHORT);
    killed(
        own,
        "nats",
        &proxy,
        &publisher,
        &topic,
        || async { (stream.get_info().await.ok()?.state.messages == 2).then_some(()) },
        ["NATS", "NATS"],
    )
    .await;
    let messages = until("the stream answers", || async { Some(stream.get_info().await.ok()?.state.messages) }).await;
    assert_eq!(messages, 2, "the second message is there once");
}

async fn postgres_killed(own: &Own) {
    let address = own.at("POSTGRES");
    let (client, table) = postgres::inbox(address).await;
    let server = address.split('@').nth(1).and_then(|rest| rest.split('/').next()).unwrap();
    let proxy = Proxy::to(server);
    let through = address.replace(server, &format!("127.0.0.1:{}", proxy.port));
    let publisher = Postgres::at(&through, &table).unwrap().timeout(SHORT);
    killed(
        own,
        "postgres",
        &proxy,
        &publisher,
        "orders",
        || async { (postgres::ids(&client, &table).await.len() == 2).then_some(()) },
        ["the database", "the database cannot be reached"],
    )
    .await;
    let client = until("the database answers", || async { postgres::connect(address).await.ok() }).await;
    assert_eq!(postgres::ids(&client, &table).await, ["before", "second"]);
}

async fn mqtt_killed(own: &Own) {
    let address = own.at("MQTT");
    let topic = unique("killed");
    let first = tokio::sync::Mutex::new(mqtt::Subscriber::new(address, &topic).await);
    let proxy = Proxy::to(address);
    let publisher = Mqtt::at("127.0.0.1", proxy.port, &unique("pub")).timeout(SHORT);
    let mut seen = Vec::new();
    let (second, seen_ref) = (&first, std::sync::Mutex::new(&mut seen));
    killed(
        own,
        "mqtt",
        &proxy,
        &publisher,
        &topic,
        || async {
            let publish = second.lock().await.next().await;
            let mut seen = seen_ref.lock().unwrap();
            seen.push(mqtt::property(&publish, "onceward-id"));
            (seen.len() == 2).then_some(())
        },
        ["the connection to the MQTT broker failed", "the connection to the MQTT broker failed"],
    )
    .await;
    assert_eq!(seen, ["before", "second"], "the first receiver had it before the broker died");
    // The broker remembers nothing: it comes again, with the same id, to whoever is there then.
    let mut later = mqtt::Subscriber::new(address, &topic).await;
    one(&publisher, &message(&topic, "second")).await.unwrap();
    assert_eq!(mqtt::property(&later.next().await, "onceward-id"), "second");
}
