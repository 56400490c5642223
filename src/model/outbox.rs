//! A message that a committed job owes the world. Its id is the sender's and stays for ever: a repeated publication carries the
//! same one, and whoever receives it twice can tell.

use serde::{Deserialize, Serialize};

/// A message on its way to a broker, an inbox or a webhook.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Message {
    /// Names this message for ever, within its topic: `order/4201/paid`.
    pub id: String,
    /// Where it goes: `orders.paid`.
    pub topic: String,
    /// Messages of one key are first published in the order of their commits. The topic, unless the sender chose another one.
    pub key: String,
    /// What the body is, for a receiver that gets several sorts: the kind of the job that sent it, unless the sender chose another
    /// word; empty outside of a job.
    pub kind: String,
    /// The body, as the sender encoded it: JSON.
    pub body: Vec<u8>,
    /// Names and values beside the body, e.g. `traceparent`.
    pub headers: Vec<(String, String)>,
}

impl Message {
    /// A message with the topic as its key, no kind and no headers.
    pub fn new(topic: &str, id: &str, body: Vec<u8>) -> Self {
        Self {
            id: id.to_owned(),
            topic: topic.to_owned(),
            key: topic.to_owned(),
            kind: String::new(),
            body,
            headers: Vec::new(),
        }
    }
}
