//! The publishers, each against the real server. `.ci/servers` starts those; a test without its server says "skipped", and
//! `.ci/run` does not accept that.

#[cfg(feature = "http")]
mod http;
#[cfg(all(feature = "nats", feature = "postgres", feature = "mqtt"))]
mod killed;
#[cfg(feature = "mqtt")]
mod mqtt;
#[cfg(feature = "nats")]
mod nats;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(all(feature = "http", feature = "nats", feature = "postgres", feature = "mqtt"))]
pub(crate) mod sender;

use onceward::{AsyncPublisher, Fail, Message, Outcome};
use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(60);

/// Where the server is, or a line that says what was not tested.
#[cfg(any(feature = "nats", feature = "postgres", feature = "mqtt"))]
#[track_caller]
fn server(variable: &str) -> Option<String> {
    let found = std::env::var(variable).ok();
    if found.is_none() {
        let test = std::thread::current().name().unwrap_or_default().to_owned();
        println!("skipped: {test} needs a server in {variable}; see .ci/servers");
    }
    found
}

/// A name that no other test, and no earlier run against the same server, has.
fn unique(word: &str) -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let mut bytes = [0; 8];
    getrandom::fill(&mut bytes).unwrap();
    format!("{word}_{}_{:x}", NEXT.fetch_add(1, Ordering::Relaxed), u64::from_ne_bytes(bytes))
}

fn message(topic: &str, id: &str) -> Message {
    let mut message = Message::new(topic, id, format!(r#"{{"order":"{id}"}}"#).into_bytes());
    message.key = format!("key of {id}");
    message.kind = "order-paid".to_owned();
    message.headers = vec![("traceparent".to_owned(), "00-1-2-03".to_owned())];
    message
}

/// Runs on a runtime of its own, and never for ever.
#[cfg(feature = "tokio")]
fn run<T>(test: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async { tokio::time::timeout(3 * PATIENCE, test).await.expect("the test hangs") })
}

#[cfg(feature = "tokio")]
async fn one(publisher: &impl AsyncPublisher, message: &Message) -> Outcome<()> {
    let mut told = publisher.publish_all(vec![message.clone()]).await;
    assert_eq!(told.len(), 1, "one message, one answer: {told:?}");
    told.remove(0)
}

/// Asks again until the answer is the one that is waited for.
#[cfg(feature = "tokio")]
async fn until<T, F: Future<Output = Option<T>>>(what: &str, mut ask: impl FnMut() -> F) -> T {
    let asking = async {
        loop {
            if let Some(answer) = ask().await {
                return answer;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, asking).await.unwrap_or_else(|_| panic!("waited in vain: {what}"))
}

/// Whether trying again cannot help. The class is not public; its debug text is what a log would show.
fn for_good(fail: &Fail) -> bool {
    format!("{fail:?}").contains("class: Some(Permanent)")
}

#[track_caller]
fn refused(told: &Outcome<()>, word: &str) {
    let fail = told.as_ref().expect_err("refused");
    assert!(for_good(fail) && fail.to_string().contains(word), "for good, because of {word:?}: {fail:?}");
}

#[track_caller]
fn again(told: &Outcome<()>, word: &str) {
    let fail = told.as_ref().expect_err("again");
    assert!(!for_good(fail) && fail.to_string().contains(word), "again, because of {word:?}: {fail:?}");
}
