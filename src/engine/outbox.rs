//! The operations of the outbox on the store: what a delivery came to, and what a person does about a message.
//!
//! Each loads, lets the rules decide, and puts; what it remembers belongs to the round's final run and is told after the commit.

use super::core::Core;
use crate::error::Error;
use crate::handler::reply::Answer;
use crate::handler::shared::{keep, store_error};
use crate::model::attempt::Class;
use crate::model::id::JobId;
use crate::model::letter::{Act as Acted, Entry, Signed, Why};
use crate::model::outbox::{Act, Delivery, Ending, Message, News, Remembered, Standing, Topic, TopicNews};
use crate::model::time::Wall;
use crate::rules::Refusal;
use crate::rules::outbox::{self, Given, Next, Suspects};
use crate::store::{Op, Slot, StoreError, Write};
use std::sync::Arc;

/// A message and what its delivery came to.
pub(crate) struct Tried {
    pub(crate) key: String,
    pub(crate) number: u64,
    pub(crate) given: Given,
}

/// Writes what deliveries came to, after the other side has answered.
pub(crate) struct MarkOp {
    core: Arc<Core>,
    topic: String,
    policy: Topic,
    tried: Vec<Tried>,
    news: Vec<TopicNews>,
    /// What is left of the suspects, if some of them came back alive.
    suspects: Option<Suspects>,
    answer: Answer<Result<(), StoreError>>,
}

impl MarkOp {
    pub(crate) fn new(
        core: Arc<Core>,
        topic: String,
        policy: Topic,
        tried: Vec<Tried>,
        answer: Answer<Result<(), StoreError>>,
    ) -> Self {
        Self { core, topic, policy, tried, news: Vec::new(), suspects: None, answer }
    }
    fn one(&self, tx: &mut Write<'_>, tried: &Tried) -> Result<Option<News>, StoreError> {
        let (topic, Tried { key, number, given }) = (&self.topic, tried);
        let shared = &self.core.shared;
        let now = shared.now().wall;
        let delivery = match tx.delivery(topic, key, *number) {
            Ok(Some(delivery)) => delivery,
            // Nobody takes a message away that is on its way.
            Ok(None) => return Ok(None),
            Err(StoreError::Corrupt { .. }) => Delivery::new(now),
            Err(e) => return Err(e),
        };
        let id = match tx.message(topic, *number) {
            Ok(Some(row)) => row.message.id,
            // Its id is in what cannot be read.
            Ok(None) | Err(StoreError::Corrupt { .. }) => String::new(),
            Err(e) => return Err(e),
        };
        let class = match given {
            Given::Failed(failure) => Some(failure.class),
            Given::Taken | Given::TooLate => None,
        };
        Ok(Some(match outbox::after(&delivery, given, &self.policy, now, shared.draw()) {
            Next::Again(delivery) => {
                tx.put_delivery(topic, key, *number, &delivery)?;
                News::Failed(class.unwrap_or(Class::Unknown))
            }
            Next::Dead(delivery, why) => {
                tx.put_delivery(topic, key, *number, &delivery)?;
                let blocks = matches!(delivery.standing, Standing::Dead { blocks: true, .. });
                News::Dead { id, why, class, blocks }
            }
            Next::Published(ended) => {
                tx.remove_delivery(topic, key, *number)?;
                // Without its memory there is nothing to mark: a new message with this id would be a new one.
                if let Some(memory) = remembered(tx, topic, &id)? {
                    let memory = Remembered { marks: memory.marks.saturating_add(1), ended: Some(ended), ..memory };
                    tx.put_remembered(topic, &id, &memory)?;
                }
                News::Published
            }
        }))
    }
}

/// A damaged memory stops no delivery.
fn remembered(tx: &Write<'_>, topic: &str, id: &str) -> Result<Option<Remembered>, StoreError> {
    StoreError::readable(tx.remembered(topic, id))
}

impl Op for MarkOp {
    fn run(&mut self, tx: &mut Write<'_>) -> Result<(), StoreError> {
        self.news.clear();
        for tried in &self.tried {
            if let Some(news) = self.one(tx, tried)? {
                self.news.push(TopicNews { topic: self.topic.clone(), news });
            }
        }
        let mut suspects = self.core.relays.suspects(&self.topic);
        let before = suspects.len();
        for tried in &self.tried {
            suspects.remove(&tried.number);
        }
        self.suspects = (suspects.len() < before).then_some(suspects);
        match &self.suspects {
            Some(suspects) => put_suspects(tx, &self.topic, suspects),
            None => Ok(()),
        }
    }
    fn settle(self: Box<Self>, result: Result<(), StoreError>) {
        if result.is_ok() {
            if let Some(suspects) = &self.suspects {
                self.core.relays.suspect(&self.topic, suspects);
            }
            self.core.shared.report.outbox(&self.news);
        }
        self.answer.send(result);
    }
}

/// The names under which suspects are kept, a topic each.
pub(crate) const SUSPECTS: &str = "suspects/";

fn put_suspects(tx: &mut Write<'_>, topic: &str, suspects: &Suspects) -> Result<(), StoreError> {
    let name = format!("{SUSPECTS}{topic}");
    if suspects.is_empty() {
        return tx.remove_meta(&name);
    }
    let bytes = serde_json::to_vec(suspects).map_err(|e| StoreError::Bug(e.to_string()))?;
    tx.put_meta(&name, &bytes)
}

/// What a dead process was handing over: each of these messages goes out alone from now on, until it has come back alive; one that
/// the process dies of again and again waits for a person. One commit, before anything goes out.
pub(crate) struct SuspectOp {
    core: Arc<Core>,
    /// Which message, and whether nothing else was at work.
    found: Vec<(JobId, u64, bool)>,
    all: Vec<(String, Suspects)>,
    news: Vec<TopicNews>,
    answer: Answer<Result<(), StoreError>>,
}

impl SuspectOp {
    /// The sidecar's slots as they were found. A death of the machine, or of a process that named none, makes no suspect.
    pub(crate) fn new(core: &Arc<Core>, slots: &[Slot], answer: Answer<Result<(), StoreError>>) -> Self {
        let alone = |of: &Slot| slots.iter().filter(|s| s.boot == of.boot && s.nonce == of.nonce).count() == 1;
        let ours = |s: &&Slot| s.boot == core.boot && s.nonce != core.nonce && s.job.0 >> 63 == 1;
        // A boot that cannot be named may have been another one.
        let found = slots.iter().filter(ours).map(|s| (s.job, s.token.0, alone(s) && s.boot != [0; 16])).collect();
        Self { core: core.clone(), found, all: Vec::new(), news: Vec::new(), answer }
    }
    /// Nothing was being handed over.
    pub(crate) fn is_empty(&self) -> bool {
        self.found.is_empty()
    }
    fn topic(&self, tx: &mut Write<'_>, topic: &str) -> Result<(Suspects, Vec<News>), StoreError> {
        // What cannot be read is damaged, or was written by another version: its deaths are counted anew.
        let kept = StoreError::readable(tx.meta(&format!("{SUSPECTS}{topic}")))?;
        let mut suspects: Suspects = kept.and_then(|b| serde_json::from_slice(&b).ok()).unwrap_or_default();
        let (mut news, mut changed) = (Vec::new(), false);
        let now = self.core.shared.now().wall;
        let policy = self.core.relays.policy(topic).cloned().unwrap_or_default();
        for (_, number, alone) in self.found.iter().filter(|(tag, ..)| *tag == outbox::tag(topic)) {
            let row = StoreError::readable(tx.message(topic, *number))?;
            let Some(Message { id, key, .. }) = row.map(|r| r.message) else { continue };
            let delivery = StoreError::readable(tx.delivery(topic, &key, *number))?;
            // Marked, and only its slot was not empty yet.
            let Some(delivery) = delivery.filter(|d| matches!(d.standing, Standing::Waiting { .. })) else { continue };
            changed = true;
            let mut deaths = suspects.remove(number).unwrap_or_default();
            match outbox::died(&delivery, &mut deaths, *alone, &policy, now) {
                Next::Again(delivery) => {
                    tx.put_delivery(topic, &key, *number, &delivery)?;
                    suspects.insert(*number, deaths);
                }
                Next::Dead(delivery, why) => {
                    tx.put_delivery(topic, &key, *number, &delivery)?;
                    let blocks = matches!(delivery.standing, Standing::Dead { blocks: true, .. });
                    news.push(News::Dead { id, why, class: None, blocks });
                }
                Next::Published(_) => {}
            }
        }
        if changed {
            put_suspects(tx, topic, &suspects)?;
        }
        Ok((suspects, news))
    }
}

impl Op for SuspectOp {
    fn run(&mut self, tx: &mut Write<'_>) -> Result<(), StoreError> {
        self.all.clear();
        self.news.clear();
        for (topic, _) in tx.topics()? {
            let (suspects, news) = self.topic(tx, &topic)?;
            self.news.extend(news.into_iter().map(|news| TopicNews { topic: topic.clone(), news }));
            self.all.push((topic, suspects));
        }
        Ok(())
    }
    fn settle(self: Box<Self>, result: Result<(), StoreError>) {
        if result.is_ok() {
            self.all.iter().for_each(|(topic, suspects)| self.core.relays.suspect(topic, suspects));
            self.core.shared.report.outbox(&self.news);
        }
        self.answer.send(result);
    }
}

/// What a person wants done about a message.
#[derive(Clone, Debug)]
pub(crate) enum Wish {
    /// Sends a delivered one again, signed: who, why.
    Resend(String, String),
    /// Puts a stuck one on its way, signed.
    Retry(String, String),
    /// Throws a stuck one away, signed.
    Discard(String, String),
}

/// Which message a person means.
#[derive(Clone, Debug)]
pub(crate) enum Which {
    /// By its id, through the memory of it.
    Id(String),
    /// By its ordering key and number: also one whose id, or the memory of it, cannot be read.
    Number(String, u64),
}

/// Carries out a wish about one message.
pub(crate) struct WishOp {
    pub(crate) core: Arc<Core>,
    pub(crate) topic: String,
    pub(crate) which: Which,
    pub(crate) wish: Wish,
    pub(crate) answer: Answer<Result<(), Error>>,
    pub(crate) done: Option<Result<News, Error>>,
}

impl WishOp {
    fn decide(&self, tx: &mut Write<'_>) -> Result<News, Error> {
        let topic = self.topic.as_str();
        let now = self.core.shared.now().wall;
        // Without a memory nothing is remembered of what becomes of it; it must not hold its key up for that.
        let Meant { key, number, id, mut memory } = self.meant(tx)?;
        let delivery = match tx.delivery(topic, &key, number) {
            Err(StoreError::Corrupt { what }) => Some(damaged(what, now)),
            other => other?,
        };
        let policy = self.core.relays.policy(topic).cloned().unwrap_or_default();
        let (news, act, who, why) = match (&self.wish, delivery) {
            (Wish::Resend(who, why), None) => {
                let Some(memory) = &mut memory else { return Err(unknown(topic, id)) };
                let kept = tx.message(topic, number)?.is_some();
                tx.put_delivery(topic, &key, number, &outbox::resend(memory, kept, now)?)?;
                memory.ended = None;
                (News::Resent, Act::Resent, who, why)
            }
            (Wish::Resend(..), Some(_)) => {
                return Err(Refusal::NotAChoice(
                    "only a delivered message can be sent again, and this one is not delivered, or is being sent again already"
                        .to_owned(),
                )
                .into());
            }
            (Wish::Retry(..) | Wish::Discard(..), None) => {
                let how = match memory.and_then(|m| m.ended).map(|e| e.how) {
                    Some(Ending::Published) => "it was delivered; Outbox::resend sends it again",
                    Some(Ending::Discarded) => "it was thrown away; the same again needs a new id",
                    None => match &self.which {
                        // Nothing of it is there at all.
                        Which::Number(key, number) => {
                            let (topic, key, number) = (topic.to_owned(), key.clone(), *number);
                            return Err(Error::NoNumber { topic, key, number });
                        }
                        Which::Id(_) => "it is not on its way; look at Outbox::find",
                    },
                };
                return Err(Refusal::NotAChoice(format!("the message is not stuck: {how}")).into());
            }
            (Wish::Retry(who, why), Some(delivery)) => {
                tx.put_delivery(topic, &key, number, &outbox::retry(&delivery, now)?)?;
                (News::Retried, Act::Retried, who, why)
            }
            (Wish::Discard(who, why), Some(delivery)) => {
                let delivered = memory.as_ref().is_some_and(|m| m.marks > 0);
                let ended = outbox::discard(&delivery, delivered, &policy, now)?;
                if let Some(memory) = &mut memory {
                    memory.ended = Some(ended);
                }
                tx.remove_delivery(topic, &key, number)?;
                (News::Discarded, Act::Discarded, who, why)
            }
        };
        let signed = Signed { who: who.clone(), why: why.clone(), at: now };
        if let (Some(id), Some(memory)) = (&id, &mut memory) {
            outbox::sign(&mut memory.acts, act, signed.clone());
            tx.put_remembered(topic, id, memory)?;
        }
        // Kept with the message for whoever looks at that, and listed for whoever asks what people did.
        let id = id.unwrap_or_default();
        let entry = Entry::Message { topic: topic.to_owned(), number, id, act, signed };
        tx.list_act(&Acted { job: None, kind: topic.to_owned(), key, entry })?;
        Ok(news)
    }
    fn meant(&self, tx: &Write<'_>) -> Result<Meant, Error> {
        let topic = self.topic.as_str();
        match &self.which {
            Which::Id(id) => {
                let memory = match tx.remembered(topic, id) {
                    Err(StoreError::Corrupt { what }) => {
                        return Err(Refusal::NotAChoice(format!(
                            "what is kept under this id cannot be read ({what}): if the message is stuck, decide by its key and \
                             number (retry_number, discard_number), as stuck(..) lists them"
                        ))
                        .into());
                    }
                    other => other?.ok_or_else(|| unknown(topic, Some(id.clone())))?,
                };
                let (key, number) = (memory.key.clone(), memory.number);
                Ok(Meant { key, number, id: Some(id.clone()), memory: Some(memory) })
            }
            Which::Number(key, number) => {
                let (key, id) = match tx.message(topic, *number) {
                    Ok(Some(row)) if row.message.key != *key => {
                        let of = &row.message.key;
                        return Err(Refusal::NotAChoice(format!(
                            "message {number} of {topic} is of the key {of:?}: give that key if you mean that message"
                        ))
                        .into());
                    }
                    Ok(Some(row)) => (row.message.key, Some(row.message.id)),
                    // What cannot be read stands where the caller was told that it stands.
                    Ok(None) | Err(StoreError::Corrupt { .. }) => (key.clone(), None),
                    Err(e) => return Err(e.into()),
                };
                let memory = id.as_deref().map_or(Ok(None), |id| remembered(tx, topic, id))?;
                Ok(Meant { key, number: *number, id, memory })
            }
        }
    }
}

/// The message a person means, as far as it can be read.
struct Meant {
    key: String,
    number: u64,
    id: Option<String>,
    memory: Option<Remembered>,
}

fn unknown(topic: &str, id: Option<String>) -> Error {
    Error::NoMessage { topic: topic.to_owned(), id: id.unwrap_or_default() }
}

/// Where a message stands whose standing cannot be read: a person may still say what becomes of it.
fn damaged(what: String, now: Wall) -> Delivery {
    let why = Why::Unreadable;
    let standing = Standing::Dead { why, at: now, blocks: true };
    Delivery { standing, error: Some(what), ..Delivery::new(now) }
}

impl Op for WishOp {
    fn run(&mut self, tx: &mut Write<'_>) -> Result<(), StoreError> {
        let came = self.decide(tx);
        keep(&mut self.done, came)
    }
    fn settle(self: Box<Self>, result: Result<(), StoreError>) {
        match (result, self.done) {
            (Ok(()), Some(Ok(news))) => {
                self.core.shared.report.outbox(&[TopicNews { topic: self.topic, news }]);
                self.answer.send(Ok(()));
            }
            (Ok(()), Some(Err(e))) => self.answer.send(Err(e)),
            (Ok(()), None) => {}
            (Err(e), _) => self.answer.send(Err(store_error(e))),
        }
    }
    fn unknown(&mut self) {
        self.answer.send(Err(Error::Unknown));
    }
}
