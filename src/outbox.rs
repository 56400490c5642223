//! The face of the outbox: what waits in each topic, what is stuck, and what a person can do about it: retry, discard, send again.

use crate::desk::sign;
use crate::engine::outbox::{Which, Wish, WishOp};
use crate::error::Error;
use crate::handler::reply::{Reply, answer};
use crate::jobs::Jobs;
use crate::model::letter::{Signed, Why};
use crate::model::outbox::{Act, Delivery, Ending, Message, Standing};
use crate::model::time::Wall;
use crate::store::{Lane, StoreError, View};
use std::time::{Duration, SystemTime};

/// The outbox of a queue; from [`Jobs::outbox`].
pub struct Outbox<'a>(&'a Jobs);

impl Jobs {
    /// The messages that committed work still owes the world.
    pub fn outbox(&self) -> Outbox<'_> {
        Outbox(self)
    }
}

/// One topic, as it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TopicState {
    /// Its name.
    pub topic: String,
    /// Messages that are not delivered, those put aside left out.
    pub depth: u64,
    /// Of those, stuck ones: their key waits until a person decides.
    pub stuck: u64,
    /// Stuck ones that others have gone past.
    pub aside: u64,
    /// How long ago the oldest of `depth` was committed.
    pub oldest_age: Option<Duration>,
    /// The highest number handed out.
    pub last_number: u64,
    /// Why it is paused, if it is.
    pub paused: Option<String>,
    /// Messages whose publisher has not answered within [`Topic::attempt_timeout`](crate::Topic::attempt_timeout): their keys wait.
    pub hung: u64,
    /// This process has a publisher for it; without one its messages wait.
    pub has_publisher: bool,
}

/// A message, and where it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct OutboxMessage {
    /// Its number within the topic.
    pub number: u64,
    /// Its ordering key; empty for one put aside that cannot be read.
    pub key: String,
    /// What was handed in; `None` if only its id is remembered, or it cannot be read.
    pub message: Option<Message>,
    /// Its id; empty if it cannot be read. Such a message is decided by its number.
    pub id: String,
    /// When it was committed, as far as that is kept.
    pub committed: Option<SystemTime>,
    /// How it ended; `None` while it is on its way or stuck.
    pub ended: Option<(Ending, SystemTime)>,
    /// Failed tries since it was last put on its way.
    pub failures: u32,
    /// What went wrong last.
    pub error: Option<String>,
    /// When it is tried again, by the calendar, if it waits for that.
    pub next_try: Option<SystemTime>,
    /// For how long the publisher has had it without an answer, if it has it now.
    pub in_call: Option<Duration>,
    /// Why it does not go out by itself any more.
    pub stuck: Option<Why>,
    /// Its key waits behind it.
    pub blocks: bool,
    /// How often it was marked as delivered.
    pub marks: u32,
    /// What people did about it: what, who, why, when. Of very many the first and the last, with an entry by nobody (an empty name)
    /// between them that says how many were left out.
    pub acts: Vec<(Act, Signed)>,
}

impl Outbox<'_> {
    /// Every topic that was ever used in this file or has a publisher here.
    ///
    /// # Errors
    /// A store that cannot read.
    pub fn topics(&self) -> Result<Vec<TopicState>, Error> {
        let shared = self.0.shared();
        shared.may_call()?;
        let relays = &self.0.0.core.relays;
        let mut known = shared.store.read(|v| v.topics())?;
        for topic in relays.topics() {
            if !known.iter().any(|(t, _)| t == topic) {
                known.push((topic.to_owned(), 0));
            }
        }
        known.sort();
        let now = shared.now().wall;
        let mut out = Vec::with_capacity(known.len());
        for (topic, last_number) in known {
            let depth = shared.store.read(|v| v.topic_depth(&topic))?;
            out.push(TopicState {
                depth: depth.waiting + depth.stuck,
                stuck: depth.stuck,
                aside: depth.aside,
                oldest_age: depth.oldest.map(|at| Duration::from_millis(now.since(at))),
                last_number,
                paused: shared.pauses.read().topic(&topic).map(str::to_owned),
                hung: relays.calls(&topic).iter().filter(|c| c.hung).map(|c| c.numbers.len() as u64).sum(),
                has_publisher: relays.policy(&topic).is_some(),
                topic,
            });
        }
        Ok(out)
    }
    /// Messages of a topic that are not delivered, by ordering key and number; at most so many. Those put aside are not among them.
    ///
    /// # Errors
    /// A store that cannot read.
    pub fn waiting(&self, topic: &str, at_most: usize) -> Result<Vec<OutboxMessage>, Error> {
        let mut found: Vec<OutboxMessage> = self.read(|v| {
            let rows = v.unsent(topic, None, at_most)?;
            rows.into_iter().map(|(key, number, delivery)| by_number(v, topic, &key, number, Some(delivery))).collect()
        })?;
        self.in_call(topic, found.iter_mut());
        Ok(found)
    }
    /// Stuck messages of a topic: those that their key waits for, then those that others have gone past; at most so many of each.
    ///
    /// # Errors
    /// A store that cannot read.
    pub fn stuck(&self, topic: &str, at_most: usize) -> Result<Vec<OutboxMessage>, Error> {
        self.read(|v| {
            let mut out = Vec::new();
            let mut after: Option<String> = None;
            // A stuck message that blocks stands at the head of its key, behind at most some that stand aside.
            while out.len() < at_most
                && let Some(key) = v.next_line(topic, after.as_deref())?
            {
                if let Some((number, delivery)) = head(v, topic, &key)?
                    && matches!(delivery.standing, Standing::Dead { .. })
                {
                    out.push(by_number(v, topic, &key, number, Some(delivery))?);
                }
                after = Some(key);
            }
            for (number, delivery) in v.put_aside(topic, 0, at_most)? {
                out.push(by_number(v, topic, "", number, Some(delivery))?);
            }
            Ok(out)
        })
    }
    /// One message by its id, also a delivered one, for as long as its id is remembered.
    ///
    /// # Errors
    /// A store that cannot read.
    pub fn find(&self, topic: &str, id: &str) -> Result<Option<OutboxMessage>, Error> {
        let mut found = self.read(|v| {
            let Some(memory) = v.remembered(topic, id)? else { return Ok(None) };
            let delivery = StoreError::readable(v.delivery(topic, &memory.key, memory.number))?;
            let mut found = by_number(v, topic, &memory.key, memory.number, delivery)?;
            found.id = id.to_owned();
            found.ended = memory.ended.map(|e| (e.how, e.at.to_system()));
            found.marks = memory.marks;
            found.acts = memory.acts;
            Ok(Some(found))
        })?;
        self.in_call(topic, found.iter_mut());
        Ok(found)
    }
    /// Sends a delivered message again, with the same id: for a receiver that lost it. It holds nothing up. Who and why are kept in
    /// the same commit.
    ///
    /// # Errors
    /// [`Error::NoMessage`] for an id that is not remembered; refused for a message that was not delivered or is pruned, or if who or
    /// why is missing.
    pub fn resend(&self, topic: &str, id: &str, who: &str, why: &str) -> Result<(), Error> {
        let wish = self.signed(who, why, Wish::Resend)?;
        self.submit(topic, id, wish)?.wait().unwrap_or(Err(Error::ShutDown))
    }
    /// [`resend`](Self::resend), awaited.
    ///
    /// # Errors
    /// As there.
    pub async fn resend_async(&self, topic: &str, id: &str, who: &str, why: &str) -> Result<(), Error> {
        let wish = self.signed(who, why, Wish::Resend)?;
        let reply = self.submit(topic, id, wish)?;
        reply.await.unwrap_or(Err(Error::ShutDown))
    }
    /// Puts a stuck message on its way again, with all its tries: in its place if its key waited for it, beside the others if
    /// they went past it. Who and why are kept in the same commit.
    ///
    /// # Errors
    /// As for [`resend`](Self::resend); refused if it is not stuck, or who or why is missing.
    pub fn retry(&self, topic: &str, id: &str, who: &str, why: &str) -> Result<(), Error> {
        let wish = self.signed(who, why, Wish::Retry)?;
        self.submit(topic, id, wish)?.wait().unwrap_or(Err(Error::ShutDown))
    }
    /// [`retry`](Self::retry), awaited.
    ///
    /// # Errors
    /// As there.
    pub async fn retry_async(&self, topic: &str, id: &str, who: &str, why: &str) -> Result<(), Error> {
        let wish = self.signed(who, why, Wish::Retry)?;
        let reply = self.submit(topic, id, wish)?;
        reply.await.unwrap_or(Err(Error::ShutDown))
    }
    /// Throws a stuck message away: it is never delivered, its id stays taken, and what waited behind it goes on. Who and why are
    /// kept in the same commit.
    ///
    /// # Errors
    /// As for [`retry`](Self::retry).
    pub fn discard(&self, topic: &str, id: &str, who: &str, why: &str) -> Result<(), Error> {
        let wish = self.signed(who, why, Wish::Discard)?;
        self.submit(topic, id, wish)?.wait().unwrap_or(Err(Error::ShutDown))
    }
    /// [`discard`](Self::discard), awaited.
    ///
    /// # Errors
    /// As there.
    pub async fn discard_async(&self, topic: &str, id: &str, who: &str, why: &str) -> Result<(), Error> {
        let wish = self.signed(who, why, Wish::Discard)?;
        let reply = self.submit(topic, id, wish)?;
        reply.await.unwrap_or(Err(Error::ShutDown))
    }
    /// [`retry`](Self::retry) by ordering key and number, as [`stuck`](Self::stuck) lists them: also for a message of whose id nothing
    /// can be read.
    ///
    /// # Errors
    /// As there; [`Error::NoNumber`] if the key has no such message.
    pub fn retry_number(&self, topic: &str, key: &str, number: u64, who: &str, why: &str) -> Result<(), Error> {
        let wish = self.signed(who, why, Wish::Retry)?;
        self.ask(topic, Which::Number(key.to_owned(), number), wish)?.wait().unwrap_or(Err(Error::ShutDown))
    }
    /// [`retry_number`](Self::retry_number), awaited.
    ///
    /// # Errors
    /// As there.
    pub async fn retry_number_async(
        &self,
        topic: &str,
        key: &str,
        number: u64,
        who: &str,
        why: &str,
    ) -> Result<(), Error> {
        let wish = self.signed(who, why, Wish::Retry)?;
        let reply = self.ask(topic, Which::Number(key.to_owned(), number), wish)?;
        reply.await.unwrap_or(Err(Error::ShutDown))
    }
    /// [`discard`](Self::discard) by ordering key and number, as [`stuck`](Self::stuck) lists them: also for a message that cannot be
    /// read, which would hold its key up for ever. What can be read of it is kept with who and why.
    ///
    /// # Errors
    /// As for [`retry_number`](Self::retry_number).
    pub fn discard_number(&self, topic: &str, key: &str, number: u64, who: &str, why: &str) -> Result<(), Error> {
        let wish = self.signed(who, why, Wish::Discard)?;
        self.ask(topic, Which::Number(key.to_owned(), number), wish)?.wait().unwrap_or(Err(Error::ShutDown))
    }
    /// [`discard_number`](Self::discard_number), awaited.
    ///
    /// # Errors
    /// As there.
    pub async fn discard_number_async(
        &self,
        topic: &str,
        key: &str,
        number: u64,
        who: &str,
        why: &str,
    ) -> Result<(), Error> {
        let wish = self.signed(who, why, Wish::Discard)?;
        let reply = self.ask(topic, Which::Number(key.to_owned(), number), wish)?;
        reply.await.unwrap_or(Err(Error::ShutDown))
    }

    /// Who of these is with the publisher.
    fn in_call<'m>(&self, topic: &str, messages: impl Iterator<Item = &'m mut OutboxMessage>) {
        let core = &self.0.0.core;
        let (calls, now) = (core.relays.calls(topic), core.shared.now().mono);
        for message in messages {
            let call = calls.iter().find(|c| c.numbers.contains(&message.number));
            message.in_call = call.map(|c| Duration::from_millis(now.0.saturating_sub(c.since.0)));
        }
    }
    fn read<T>(&self, f: impl Fn(&View<'_>) -> Result<T, StoreError>) -> Result<T, Error> {
        let shared = self.0.shared();
        shared.may_call()?;
        Ok(shared.store.read(f)?)
    }
    fn signed(&self, who: &str, why: &str, wish: fn(String, String) -> Wish) -> Result<Wish, Error> {
        let Signed { who, why, .. } = sign(self.0.shared(), who.to_owned(), why.to_owned())?;
        Ok(wish(who, why))
    }
    fn submit(&self, topic: &str, id: &str, wish: Wish) -> Result<Reply<Result<(), Error>>, Error> {
        self.ask(topic, Which::Id(id.to_owned()), wish)
    }
    fn ask(&self, topic: &str, which: Which, wish: Wish) -> Result<Reply<Result<(), Error>>, Error> {
        let shared = self.0.shared();
        shared.may_call()?;
        let (tell, reply) = answer();
        let op = WishOp { core: self.0.0.core.clone(), topic: topic.to_owned(), which, wish, answer: tell, done: None };
        shared.submit(Lane::Outcome, Box::new(op))?;
        Ok(reply)
    }
}

/// The first message of a key that does not stand aside.
fn head(v: &View<'_>, topic: &str, key: &str) -> Result<Option<(u64, Delivery)>, StoreError> {
    const PAGE: usize = 64;
    let mut after = 0;
    loop {
        let page = v.line(topic, key, after, PAGE)?;
        let more = page.len() == PAGE;
        for (number, delivery) in page {
            after = number;
            // A damaged one is found by the relay, which says so in its place.
            if let Some(delivery) = StoreError::readable(delivery.map(Some))?.filter(|d| !d.aside) {
                return Ok(Some((number, delivery)));
            }
        }
        if !more {
            return Ok(None);
        }
    }
}

fn by_number(
    v: &View<'_>,
    topic: &str,
    key: &str,
    number: u64,
    delivery: Option<Delivery>,
) -> Result<OutboxMessage, StoreError> {
    let row = StoreError::readable(v.message(topic, number))?;
    let memory = match &row {
        Some(row) => StoreError::readable(v.remembered(topic, &row.message.id))?,
        None => None,
    };
    let (mut next_try, mut stuck, mut blocks) = (None, None, false);
    match delivery.as_ref().map(|d| d.standing) {
        Some(Standing::Waiting { due, delay_ms }) => next_try = (delay_ms > 0).then(|| due.to_system()),
        Some(Standing::Dead { why, blocks: b, .. }) => (stuck, blocks) = (Some(why), b),
        None => {}
    }
    Ok(OutboxMessage {
        number,
        key: row.as_ref().map_or(key, |r| &r.message.key).to_owned(),
        id: row.as_ref().map(|r| r.message.id.clone()).unwrap_or_default(),
        committed: row.as_ref().map(|r| r.committed).map(Wall::to_system),
        ended: memory.as_ref().and_then(|m| m.ended).map(|e| (e.how, e.at.to_system())),
        failures: delivery.as_ref().map_or(0, |d| d.failures),
        error: delivery.and_then(|d| d.error),
        next_try,
        in_call: None,
        stuck,
        blocks,
        marks: memory.as_ref().map_or(0, |m| m.marks),
        acts: memory.map(|m| m.acts).unwrap_or_default(),
        message: row.map(|r| r.message),
    })
}
