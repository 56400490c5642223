//! A message that a committed job owes the world. Its id is the sender's and stays for ever: a repeated publication carries the
//! same one, and whoever receives it twice can tell.

pub use super::acted::Act;
use super::attempt::Class;
use super::letter::{Signed, Why};
use super::policy::{Backoff, Keep};
use super::time::Wall;
use serde::{Deserialize, Serialize};
use std::time::Duration;

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

/// Whether a message that was handed in is a new one. A repeated id is a value, never an error and never a silent drop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outboxed {
    /// It is on its way once the transaction is committed.
    New {
        /// Its number within the topic, from 1 and without gaps.
        number: u64,
    },
    /// The topic knows a message with this id: nothing was changed.
    Existing {
        /// The number of that one.
        number: u64,
        /// Its body, key or kind was another one (headers are not compared).
        differs: bool,
    },
}

impl Outboxed {
    /// Whether this call made the message.
    pub fn is_new(self) -> bool {
        matches!(self, Self::New { .. })
    }
    /// The message's number within its topic, new or existing.
    pub fn number(self) -> u64 {
        match self {
            Self::New { number } | Self::Existing { number, .. } => number,
        }
    }
}

/// What happens behind a message that cannot go forward by itself: refused for good, tries used up, or past its deadline.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum OnStuck {
    /// Its key waits behind it until a person retries or discards it: nothing overtakes. Other keys go on.
    #[default]
    Block,
    /// It is put aside for a person, and the messages behind it go on.
    DeadLetter,
}

/// How the messages of a topic are delivered.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "hand it to Builder::topic"]
pub struct Topic {
    pub(crate) retries: Option<u32>,
    pub(crate) backoff: Backoff,
    pub(crate) deadline: Option<Duration>,
    pub(crate) on_stuck: OnStuck,
    pub(crate) batch: usize,
    pub(crate) attempt_timeout: Duration,
    pub(crate) keep: Keep,
    pub(crate) remember: Keep,
}

impl Default for Topic {
    fn default() -> Self {
        const DAY: Duration = Duration::from_secs(24 * 3600);
        Self {
            retries: None,
            backoff: Backoff::exponential(Duration::from_secs(1), Duration::from_secs(15 * 60)),
            deadline: None,
            on_stuck: OnStuck::Block,
            batch: 64,
            attempt_timeout: Duration::from_secs(15 * 60),
            keep: Keep::For(7 * DAY),
            remember: Keep::For(90 * DAY),
        }
    }
}

impl Topic {
    /// Tries after the first one before a message counts as stuck (default: no limit; a broker may be away for long).
    pub fn retries(mut self, n: u32) -> Self {
        self.retries = Some(n);
        self
    }
    /// When to come back after a failure (default: exponential from 1 s with full jitter, at most 15 min).
    pub fn backoff(mut self, b: Backoff) -> Self {
        self.backoff = b;
        self
    }
    /// No try begins later than this after the commit; the message then counts as stuck (default: none).
    pub fn deadline(mut self, d: Duration) -> Self {
        self.deadline = Some(d);
        self
    }
    /// What happens behind a stuck message (default: its key waits).
    pub fn on_stuck(mut self, o: OnStuck) -> Self {
        self.on_stuck = o;
        self
    }
    /// Messages handed to the publisher at a time (default 64). After a death so many may arrive twice.
    pub fn batch(mut self, n: usize) -> Self {
        self.batch = n.max(1);
        self
    }
    /// How long one call of the publisher may take, a whole batch included (default 15 min). After that an async call is dropped and
    /// tried again; a blocking one cannot be ended: it is named in a warning, its keys wait for it, other keys go on.
    pub fn attempt_timeout(mut self, d: Duration) -> Self {
        self.attempt_timeout = d;
        self
    }
    /// How long a delivered message can still be looked at and sent again (default 7 days).
    pub fn keep(mut self, k: Keep) -> Self {
        self.keep = k;
        self
    }
    /// How long the id of a delivered message is remembered, so that a second one is recognised (default 90 days; never shorter
    /// than the message is kept).
    pub fn remember(mut self, k: Keep) -> Self {
        self.remember = k;
        self
    }
}

/// A message as it is stored: written once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutboxRow {
    /// What was handed in.
    pub message: Message,
    /// When its transaction ran.
    pub committed: Wall,
}

/// Where a message that is not delivered stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Delivery {
    /// When its transaction ran.
    pub committed: Wall,
    /// The deadline counts from here: the commit, or the last time a person put it on its way.
    pub since: Wall,
    /// Where it stands.
    pub standing: Standing,
    /// Failed tries since it was last put on its way.
    pub failures: u32,
    /// What went wrong last, cut.
    pub error: Option<String>,
    /// It holds nothing up and is held up by nothing: sent again, or tried again after others had gone past it.
    pub aside: bool,
}

/// Waiting, or waiting for a person.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Standing {
    /// Goes out when it is due and nothing of its key stands before it.
    Waiting {
        /// When, by the calendar.
        due: Wall,
        /// The wait as it was asked for, in ms: bounds it if the calendar jumps back.
        delay_ms: u64,
    },
    /// Does not go out by itself any more.
    Dead {
        /// Why.
        why: Why,
        /// Since when.
        at: Wall,
        /// Its key waits behind it.
        blocks: bool,
    },
}

impl Delivery {
    /// A message whose transaction runs now.
    pub fn new(now: Wall) -> Self {
        let standing = Standing::Waiting { due: now, delay_ms: 0 };
        Self { committed: now, since: now, standing, failures: 0, error: None, aside: false }
    }
}

/// How a message ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ending {
    /// The publisher said that the other side has it.
    Published,
    /// A person threw it away.
    Discarded,
}

/// The end of a message, and how long what is left of it is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ended {
    /// How.
    pub how: Ending,
    /// When.
    pub at: Wall,
    /// The message itself may go (`None`: it is kept for ever).
    pub row_until: Option<Wall>,
    /// Its id may be forgotten (`None`: it is remembered for ever).
    pub forget: Option<Wall>,
}

/// The memory of an id within a topic: outlives the message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Remembered {
    /// The message's number.
    pub number: u64,
    /// Its ordering key.
    pub key: String,
    /// SHA-256 of key, kind and body, first 16 bytes: tells "same id, other message".
    pub digest: [u8; 16],
    /// How often it was marked as delivered: once, and once more for every time it was sent again.
    pub marks: u32,
    /// How it ended; `None` while it is on its way or waits for a person.
    pub ended: Option<Ended>,
    /// What people did about it, signed: the first and the last of them, and between them, by nobody, how many were left out.
    pub acts: Vec<(Act, Signed)>,
}

/// Something that became true about a topic with a commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicNews {
    /// Which topic.
    pub topic: String,
    /// What.
    pub news: News,
}

/// What became true.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum News {
    /// A message exists.
    Written,
    /// An id was handed in that was known.
    Existing,
    /// A message was delivered.
    Published,
    /// A try failed, and comes back.
    Failed(Class),
    /// A message does not go out by itself any more; the last failure's class, unless it only ran out of time.
    Dead {
        /// Its id.
        id: String,
        /// Why.
        why: Why,
        /// What failed.
        class: Option<Class>,
        /// Its key waits behind it.
        blocks: bool,
    },
    /// A person put a stuck message on its way again.
    Retried,
    /// A person threw a stuck message away.
    Discarded,
    /// A person had a delivered message sent again.
    Resent,
}
