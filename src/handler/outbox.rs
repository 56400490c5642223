//! A message on its way into the store: built and checked by the sender, numbered in the writer's transaction.
//!
//! It is there with everything else that the transaction wrote, or not at all; delivered only after the commit. Called by `tx`.

use super::shared::Shared;
use super::trace::TRACE_PARENT;
use crate::error::Error;
use crate::model::outbox::{Message, News, OutboxRow, Outboxed, TopicNews};
use crate::rules::outbox;
use crate::store::Own;
use serde::Serialize;

/// A message to be handed to [`Tx::send`](crate::Tx::send), with more than the usual three things.
#[derive(Clone, Debug)]
#[must_use = "hand it to Tx::send"]
pub struct Outgoing {
    topic: String,
    id: String,
    key: Option<String>,
    kind: Option<String>,
    body: Result<Vec<u8>, String>,
    headers: Vec<(String, String)>,
}

impl Outgoing {
    /// A message with this body, as JSON.
    pub fn new<T: Serialize + ?Sized>(topic: impl Into<String>, id: impl Into<String>, body: &T) -> Self {
        Self {
            topic: topic.into(),
            id: id.into(),
            key: None,
            kind: None,
            body: serde_json::to_vec(body).map_err(|e| e.to_string()),
            headers: Vec::new(),
        }
    }
    /// Orders it among the messages of this key only, instead of among all of its topic.
    pub fn key(mut self, key: impl Into<String>) -> Self {
        self.key = Some(key.into());
        self
    }
    /// What the body is, for the receiver; the kind of the sending job if left out.
    pub fn kind(mut self, kind: impl Into<String>) -> Self {
        self.kind = Some(kind.into());
        self
    }
    /// A name and a value beside the body, e.g. `traceparent`.
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }
    /// Bytes that are JSON already, or another encoding that the receiver knows.
    pub fn raw_body(mut self, body: Vec<u8>) -> Self {
        self.body = Ok(body);
        self
    }

    /// In this trace, unless the sender has said in which one.
    pub(super) fn traced(self, trace: Option<&str>) -> Self {
        let said = self.headers.iter().any(|(name, _)| name.eq_ignore_ascii_case(TRACE_PARENT));
        match trace {
            Some(trace) if !said => self.header(TRACE_PARENT, trace),
            Some(_) | None => self,
        }
    }
    fn into_message(self, from: &str, shared: &Shared) -> Result<Message, Error> {
        let limits = &shared.limits;
        let Self { topic, id, key, kind, body, headers } = self;
        for (what, text) in [("topic", &topic), ("id", &id)] {
            if text.is_empty() {
                return Err(Error::NoName { what: format!("the {what} of an outbox message") });
            }
        }
        let body = body.map_err(|why| Error::Encode { what: format!("the body of message {id:?}"), why })?;
        let key = key.unwrap_or_else(|| topic.clone());
        let kind = kind.unwrap_or_else(|| from.to_owned());
        let beside: usize = headers.iter().map(|(name, value)| name.len() + value.len()).sum();
        for (what, len, limit) in [
            ("topic", topic.len(), limits.name),
            ("id of an outbox message", id.len(), limits.key),
            ("ordering key", key.len(), limits.key),
            ("kind of an outbox message", kind.len(), limits.name),
            ("body of an outbox message, with its headers,", body.len() + beside, limits.payload),
        ] {
            if len > limit {
                return Err(Error::TooBig { what, len, limit });
            }
        }
        Ok(Message { id, topic, key, kind, body, headers })
    }
}

/// Hands a message in, in the writer's transaction: an id that the topic knows changes nothing, and is told.
pub(crate) fn send(
    own: &mut dyn Own,
    outgoing: Outgoing,
    from: &str,
    shared: &Shared,
) -> Result<(Outboxed, TopicNews), Error> {
    let message = outgoing.into_message(from, shared)?;
    let digest = outbox::digest(&message);
    let remembered = own.remembered(&message.topic, &message.id)?;
    let topic = message.topic.clone();
    if let Some(existing) = outbox::known(remembered.as_ref(), &digest) {
        return Ok((existing, TopicNews { topic, news: News::Existing }));
    }
    let number = own.add_message(&OutboxRow { message, committed: shared.now().wall }, digest)?;
    Ok((Outboxed::New { number }, TopicNews { topic, news: News::Written }))
}
