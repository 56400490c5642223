//! Publishers for real brokers, each behind a feature of its own: [`Http`], [`Nats`], [`Postgres`], [`Mqtt`].
//!
//! A message arrives at least once and carries the same id every time; what keeps the second copy out, and for how long, stands
//! at the top of each file and in docs/publishers.md. Nothing connects before the first message, so an app starts while its
//! broker is down. Every wait is bounded.
//!
//! "Refused for good" is said only where the other side, or the protocol, has judged this message. Whatever is wrong with an
//! address, a login or a table is "again": it can be mended while the message waits.

#[cfg(feature = "http")]
mod http;
#[cfg(feature = "http")]
mod http_answer;
#[cfg(feature = "http")]
mod http_signature;
#[cfg(feature = "mqtt")]
mod mqtt;
#[cfg(feature = "nats")]
mod nats;
#[cfg(feature = "postgres")]
mod postgres;

#[cfg(feature = "nats")]
pub use async_nats;
#[cfg(feature = "http")]
pub use http::Http;
#[cfg(feature = "mqtt")]
pub use mqtt::Mqtt;
#[cfg(feature = "nats")]
pub use nats::{Nats, StreamWarning};
#[cfg(feature = "postgres")]
pub use postgres::{INBOX_DDL, Postgres};
#[cfg(feature = "mqtt")]
pub use rumqttc;
#[cfg(feature = "postgres")]
pub use tokio_postgres;
#[cfg(feature = "http")]
pub use ureq;

use crate::handler::fail::Fail;
#[cfg(any(feature = "http", feature = "nats", feature = "mqtt"))]
use crate::handler::fail::Outcome;
use crate::model::outbox::Message;
use std::fmt::Write;
use std::time::Duration;

/// How long a publisher waits for a connection or an answer unless told otherwise.
pub const PATIENCE: Duration = Duration::from_secs(15);

/// What a publisher was made with cannot work.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} cannot be used: {why}")]
pub struct Unusable {
    what: String,
    why: String,
}

impl Unusable {
    #[cfg(any(feature = "http", feature = "nats", feature = "postgres"))]
    fn new(what: &str, why: impl ToString) -> Self {
        Self { what: what.to_owned(), why: why.to_string() }
    }
}

/// The name by which the other side tells a repeated message: `<topic>/<id>`, in visible ASCII.
///
/// Two messages never share it, because an id is unique within its topic and a `/` in the topic is written `%2F`. Whatever is
/// not visible ASCII is percent-encoded, `%` too.
pub fn dedupe_key(message: &Message) -> String {
    let mut key = visible(&message.topic, "/");
    key.push('/');
    key.push_str(&visible(&message.id, ""));
    key
}

/// Visible ASCII stays, except `%` and the bytes of `but`; everything else becomes `%XX`.
fn visible(text: &str, but: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_graphic() && byte != b'%' && !but.as_bytes().contains(&byte) {
            out.push(char::from(byte));
        } else {
            write!(out, "%{byte:02X}").expect("a string takes everything");
        }
    }
    out
}

/// What every message says about itself beside its own headers.
#[cfg(any(feature = "http", feature = "nats", feature = "mqtt"))]
fn card(message: &Message) -> [(&'static str, &str); 4] {
    [
        ("Onceward-Id", message.id.as_str()),
        ("Onceward-Topic", message.topic.as_str()),
        ("Onceward-Key", message.key.as_str()),
        ("Onceward-Kind", message.kind.as_str()),
    ]
}

/// A header of the message that would speak for the publisher or the protocol. Leaving it out would lose it in silence.
#[cfg(any(feature = "http", feature = "nats", feature = "mqtt"))]
fn reserved(name: &str, others: &[&str]) -> Outcome<()> {
    let lower = name.to_ascii_lowercase();
    let taken = |other: &&str| match other.strip_suffix('*') {
        Some(start) => lower.starts_with(start),
        None => lower == **other,
    };
    if lower.starts_with("onceward-") || others.iter().any(taken) {
        return Err(never(format!("the header {name:?} is the publisher's to set: give it another name")));
    }
    Ok(())
}

/// This message will never be taken.
fn never(why: impl Into<String>) -> Fail {
    Fail::refused(why.into()).for_good()
}

/// Later may be better, with the same id.
fn again(why: impl Into<String>) -> Fail {
    Fail::transient(why.into())
}

/// The error with its causes: the first text alone is often only half of it.
#[cfg(any(feature = "nats", feature = "postgres"))]
fn chain(e: &dyn std::error::Error) -> String {
    let mut text = e.to_string();
    let mut cause = e.source();
    while let Some(c) = cause {
        let said = c.to_string();
        if !text.ends_with(&said) {
            text.push_str(": ");
            text.push_str(&said);
        }
        cause = c.source();
    }
    text
}

/// How many messages from the front may be on their way together: no two of one key, so that a failed one is not overtaken by a
/// later one of its key.
#[cfg(feature = "nats")]
fn wave(messages: &[Message]) -> usize {
    const WIDEST: usize = 64;
    let mut keys = std::collections::HashSet::new();
    messages.iter().take(WIDEST).take_while(|m| keys.insert(m.key.as_str())).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dedupe_key_names_one_message_only() {
        let keys =
            [("a/b", "c"), ("a", "b/c"), ("a", "b%2Fc"), ("a%2Fb", "c"), ("a", "b c"), ("a", "b%20c"), ("a", "ü\r\n")];
        let mut seen: Vec<_> =
            keys.iter().map(|(topic, id)| dedupe_key(&Message::new(topic, id, Vec::new()))).collect();
        assert_eq!(seen[0], "a%2Fb/c");
        assert_eq!(seen[6], "a/%C3%BC%0D%0A");
        seen.sort();
        seen.dedup();
        assert_eq!(seen.len(), keys.len());
    }

    #[cfg(feature = "nats")]
    #[test]
    fn a_wave_holds_no_key_twice() {
        let of = |keys: &str| -> Vec<Message> {
            keys.chars()
                .map(|k| {
                    let mut m = Message::new("t", "i", Vec::new());
                    m.key = k.to_string();
                    m
                })
                .collect()
        };
        assert_eq!(["", "a", "aa", "abca", "abc"].map(|keys| wave(&of(keys))), [0, 1, 1, 3, 3]);
    }

    #[cfg(any(feature = "http", feature = "nats", feature = "mqtt"))]
    #[test]
    fn a_header_that_is_the_publishers_is_refused() {
        assert!(reserved("traceparent", &["nats-*", "host"]).is_ok());
        for name in ["Onceward-Id", "NATS-msg-id", "Host"] {
            assert!(reserved(name, &["nats-*", "host"]).is_err(), "{name}");
        }
    }
}
