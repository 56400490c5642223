//! The rows of the outbox: messages, where each stands, the memory of their ids, and the numbers of topics. Keeps the promise that a
//! number is never used twice, that the memory of an id outlives its message, and that every message which is not delivered stands
//! in exactly one place. Called by the operations of a round and by the relay.

use super::error::StoreError;
use super::read::Rows;
use super::schema::Source;
use super::write::{Write, at_most};
use crate::model::letter::{Act, Why};
use crate::model::outbox::{Delivery, OutboxRow, Remembered, Standing};
use crate::model::time::Wall;
use redb::ReadableTable;
use std::ops::Bound;

/// What waits in a topic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TopicDepth {
    /// Messages on their way: due, or between two tries, or behind one that is.
    pub waiting: u64,
    /// Stuck messages that their key waits for.
    pub stuck: u64,
    /// Stuck messages that were put aside.
    pub aside: u64,
    /// When the oldest one that is not delivered was committed, those put aside left out.
    pub oldest: Option<Wall>,
}

/// A key of an ordered line, its message's number and where that stands.
type Line<'a> = (&'a str, &'a str, u64);

impl<S: Source> Rows<'_, S> {
    /// All topics ever used in this file, each with the highest number handed out.
    pub fn topics(&self) -> Result<Vec<(String, u64)>, StoreError> {
        let rows = self.tables.topic.read(self.tx)?.iter()?;
        rows.map(|row| row.map(|(name, last)| (name.value().to_owned(), last.value())).map_err(Into::into)).collect()
    }
    /// A message as it was handed in.
    pub fn message(&self, topic: &str, number: u64) -> Result<Option<OutboxRow>, StoreError> {
        let row = self.tables.message.read(self.tx)?.get((topic, number))?;
        row.map(|v| self.value(v.value(), &|| format!("message {number} of {topic}"))).transpose()
    }
    /// The memory of a message's id.
    pub fn remembered(&self, topic: &str, id: &str) -> Result<Option<Remembered>, StoreError> {
        let row = self.tables.sent.read(self.tx)?.get((topic, id))?;
        row.map(|v| self.value(v.value(), &|| format!("memory of message {id} of {topic}"))).transpose()
    }
    /// The next ordering key after this one that has messages on their way.
    pub fn next_line(&self, topic: &str, after: Option<&str>) -> Result<Option<String>, StoreError> {
        let from: Bound<Line<'_>> = match after {
            None => Bound::Included((topic, "", 0)),
            Some(key) => Bound::Excluded((topic, key, u64::MAX)),
        };
        let mut rows = self.tables.unsent.read(self.tx)?.range::<Line<'_>>((from, Bound::Unbounded))?;
        let Some(row) = rows.next() else { return Ok(None) };
        let key = row?.0;
        let (of, key, _) = key.value();
        Ok((of == topic).then(|| key.to_owned()))
    }
    /// The messages of one key from the front, after this number; one whose standing cannot be read is an error in its place.
    #[expect(clippy::type_complexity, reason = "a number and where it stands")]
    pub fn line(
        &self,
        topic: &str,
        key: &str,
        after: u64,
        most: usize,
    ) -> Result<Vec<(u64, Result<Delivery, StoreError>)>, StoreError> {
        let all = (Bound::Excluded((topic, key, after)), Bound::Included((topic, key, u64::MAX)));
        let rows = self.tables.unsent.read(self.tx)?.range::<Line<'_>>(all)?;
        rows.take(most)
            .map(|row| {
                let (k, v) = row?;
                let n = k.value().2;
                Ok((n, self.value(v.value(), &|| format!("standing of message {n} of {topic}"))))
            })
            .collect()
    }
    /// Where one message on its way stands; a stuck one that was put aside, too.
    pub fn delivery(&self, topic: &str, key: &str, number: u64) -> Result<Option<Delivery>, StoreError> {
        let what = || format!("standing of message {number} of {topic}");
        if let Some(v) = self.tables.unsent.read(self.tx)?.get((topic, key, number))? {
            return self.value(v.value(), &what).map(Some);
        }
        let row = self.tables.aside.read(self.tx)?.get((topic, number))?;
        row.map(|v| self.value(v.value(), &what)).transpose()
    }
    /// Messages on their way after this one, by key and number, a page at a time.
    pub fn unsent(
        &self,
        topic: &str,
        after: Option<(&str, u64)>,
        most: usize,
    ) -> Result<Vec<(String, u64, Delivery)>, StoreError> {
        let from: Bound<Line<'_>> = match after {
            None => Bound::Included((topic, "", 0)),
            Some((key, n)) => Bound::Excluded((topic, key, n)),
        };
        let mut out = Vec::new();
        for row in self.tables.unsent.read(self.tx)?.range::<Line<'_>>((from, Bound::Unbounded))?.take(most) {
            let (k, v) = row?;
            let (of, key, n) = k.value();
            if of != topic {
                break;
            }
            let delivery = self.value(v.value(), &|| format!("standing of message {n} of {topic}"));
            // A damaged one is told as such; it must not hide the others.
            out.push((key.to_owned(), n, delivery.or_else(unreadable)?));
        }
        Ok(out)
    }
    /// Stuck messages that were put aside, after this number.
    pub fn put_aside(&self, topic: &str, after: u64, most: usize) -> Result<Vec<(u64, Delivery)>, StoreError> {
        let all = (Bound::Excluded((topic, after)), Bound::Included((topic, u64::MAX)));
        let rows = self.tables.aside.read(self.tx)?.range::<(&str, u64)>(all)?;
        rows.take(most)
            .map(|row| {
                let (k, v) = row?;
                let n = k.value().1;
                let delivery = self.value(v.value(), &|| format!("standing of message {n} of {topic}"));
                Ok((n, delivery.or_else(unreadable)?))
            })
            .collect()
    }
    /// Counts what waits in a topic.
    pub fn topic_depth(&self, topic: &str) -> Result<TopicDepth, StoreError> {
        let mut depth = TopicDepth::default();
        for row in self.tables.unsent.read(self.tx)?.range::<Line<'_>>((topic, "", 0)..)? {
            let (k, v) = row?;
            if k.value().0 != topic {
                break;
            }
            let n = k.value().2;
            let delivery: Result<Delivery, _> = self.value(v.value(), &|| format!("standing of message {n}"));
            let Delivery { standing, committed, .. } = delivery.or_else(unreadable)?;
            match standing {
                Standing::Waiting { .. } => depth.waiting += 1,
                Standing::Dead { .. } => depth.stuck += 1,
            }
            depth.oldest = Some(depth.oldest.map_or(committed, |o| o.min(committed)));
        }
        let aside = (Bound::Excluded((topic, 0)), Bound::Included((topic, u64::MAX)));
        for row in self.tables.aside.read(self.tx)?.range::<(&str, u64)>(aside)? {
            row?;
            depth.aside += 1;
        }
        Ok(depth)
    }
    /// Messages and memories that may go before this instant, after that one (exclusive), earliest first: when, topic, id.
    pub fn fading(
        &self,
        after: Option<&(Wall, String, String)>,
        before: Wall,
        most: usize,
    ) -> Result<Vec<(Wall, String, String)>, StoreError> {
        let from =
            after.map_or(Bound::Unbounded, |(at, topic, id)| Bound::Excluded((at.0, topic.as_str(), id.as_str())));
        let range = (from, Bound::Excluded((before.0, "", "")));
        if after.is_some_and(|(at, _, _)| *at >= before) {
            return Ok(Vec::new());
        }
        let rows = self.tables.fade.read(self.tx)?.range::<(u64, &str, &str)>(range)?;
        rows.take(most)
            .map(|row| {
                let (key, _) = row?;
                let (at, topic, id) = key.value();
                Ok((Wall(at), topic.to_owned(), id.to_owned()))
            })
            .collect()
    }
}

/// Where a message whose standing is damaged stands: it waits for a person.
fn unreadable(e: StoreError) -> Result<Delivery, StoreError> {
    let StoreError::Corrupt { what } = e else { return Err(e) };
    let standing = Standing::Dead { why: Why::Unreadable, at: Wall(u64::MAX), blocks: true };
    Ok(Delivery { standing, error: Some(what), ..Delivery::new(Wall(u64::MAX)) })
}

impl Write<'_> {
    /// Writes a new message under the next number of its topic: the message, where it stands, and the memory of its id.
    pub fn add_message(&mut self, row: &OutboxRow, digest: [u8; 16]) -> Result<u64, StoreError> {
        let m = &row.message;
        at_most("the topic", m.topic.len(), self.limits.name)?;
        at_most("the message's id", m.id.len(), self.limits.key)?;
        at_most("the message's ordering key", m.key.len(), self.limits.key)?;
        let headers: usize = m.headers.iter().map(|(name, value)| name.len() + value.len()).sum();
        at_most("the message's body with its headers", m.body.len() + headers, self.limits.payload)?;
        self.touch();
        let topics = self.rows.tables.topic.write(self.rows.tx)?;
        let last = topics.get(m.topic.as_str())?.map_or(0, |v| v.value());
        let number = last + 1;
        topics.insert(m.topic.as_str(), number)?;
        self.set(|t| &mut t.message, (m.topic.as_str(), number), row)?;
        self.set(|t| &mut t.unsent, (m.topic.as_str(), m.key.as_str(), number), &Delivery::new(row.committed))?;
        let remembered = Remembered { number, key: m.key.clone(), digest, marks: 0, ended: None, acts: Vec::new() };
        self.set(|t| &mut t.sent, (m.topic.as_str(), m.id.as_str()), &remembered)?;
        Ok(number)
    }
    /// Where a message stands from now on: in its line, or aside.
    pub fn put_delivery(&mut self, topic: &str, key: &str, number: u64, delivery: &Delivery) -> Result<(), StoreError> {
        match delivery.standing {
            Standing::Waiting { .. } | Standing::Dead { blocks: true, .. } => {
                self.unset(|t| &mut t.aside, (topic, number))?;
                self.set(|t| &mut t.unsent, (topic, key, number), delivery)
            }
            Standing::Dead { blocks: false, .. } => {
                self.unset(|t| &mut t.unsent, (topic, key, number))?;
                self.set(|t| &mut t.aside, (topic, number), delivery)
            }
        }
    }
    /// A message is not on its way any more.
    pub fn remove_delivery(&mut self, topic: &str, key: &str, number: u64) -> Result<(), StoreError> {
        self.unset(|t| &mut t.unsent, (topic, key, number))?;
        self.unset(|t| &mut t.aside, (topic, number))
    }
    /// Rewrites the memory of an id, and the note of when something of it may go.
    pub fn put_remembered(&mut self, topic: &str, id: &str, memory: &Remembered) -> Result<(), StoreError> {
        let before = self.rows.remembered(topic, id)?.and_then(|r| r.ended).and_then(|e| e.row_until);
        let after = memory.ended.and_then(|e| e.row_until);
        if before != after {
            self.touch();
            let fade = self.rows.tables.fade.write(self.rows.tx)?;
            if let Some(at) = before {
                fade.remove((at.0, topic, id))?;
            }
            if let Some(at) = after {
                fade.insert((at.0, topic, id), ())?;
            }
        }
        self.set(|t| &mut t.sent, (topic, id), memory)
    }
    /// Lists what a person did about a message; the list outlives it.
    pub fn list_act(&mut self, act: &Act) -> Result<(), StoreError> {
        let number = self.next_id().0;
        self.set(|t| &mut t.act, number, act)
    }
    /// What faded: first the message goes, later the memory of its id. Whatever is on its way stays.
    pub fn fade(&mut self, at: Wall, topic: &str, id: &str) -> Result<(), StoreError> {
        self.touch();
        self.rows.tables.fade.write(self.rows.tx)?.remove((at.0, topic, id))?;
        let Some(memory) = self.rows.remembered(topic, id)? else { return Ok(()) };
        let Some(ended) = memory.ended else { return Ok(()) };
        if self.rows.tables.message.read(self.rows.tx)?.get((topic, memory.number))?.is_some() {
            self.unset(|t| &mut t.message, (topic, memory.number))?;
            if let Some(forget) = ended.forget {
                self.rows.tables.fade.write(self.rows.tx)?.insert((forget.0, topic, id), ())?;
            }
            return Ok(());
        }
        if ended.forget.is_some_and(|forget| forget <= at) {
            self.unset(|t| &mut t.sent, (topic, id))?;
        }
        Ok(())
    }
    /// An older copy of the file may have been put back: numbers that were handed out since are not handed out again.
    pub(super) fn skip_message_numbers(&mut self, n: u64) -> Result<(), StoreError> {
        for (topic, last) in self.rows.topics()? {
            self.touch();
            self.rows.tables.topic.write(self.rows.tx)?.insert(topic.as_str(), last.saturating_add(n))?;
        }
        Ok(())
    }
}
