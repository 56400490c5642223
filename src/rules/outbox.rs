//! What becomes of a message: whether it is new, whether it may go out, and what a publisher's answer means for it.
//!
//! Keeps the promises that a known id is never dropped in silence, that nothing overtakes within an ordering key unless the topic
//! says so, and that a message which cannot go forward waits for a person instead of vanishing. Called by the relay's operations.

use super::Refusal;
use super::recover::MAX_DEATHS_BESIDE_OTHERS;
use super::retry::{MAX_RETRY_AFTER_MS, backoff_ms};
use crate::model::attempt::{Class, Failure};
use crate::model::id::JobId;
use crate::model::letter::{Signed, Why};
use crate::model::outbox::{Act, Delivery, Ended, Ending, Message, OnStuck, Outboxed, Remembered, Standing, Topic};
use crate::model::policy::Keep;
use crate::model::time::{Wall, millis};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::time::Duration;

/// Different keys that failed in a row before the whole topic is given a rest: a broker that is away must not be asked once for each
/// of ten thousand keys. One key that fails again and again has waits of its own, and says nothing about the others.
const LAME: usize = 3;

/// A broker may ask for a pause; the whole topic keeps it for no longer than this (an hour): the next key is asked then.
const MAX_REST_MS: u64 = 3_600_000;

/// So many decisions about one message are kept of the first and of the last; those between are counted.
const ACTS: usize = 32;

/// Tells "same id, other message". Headers are left out: they carry what differs between two tellings of one event.
pub fn digest(message: &Message) -> [u8; 16] {
    let mut hash = Sha256::new();
    for part in [message.key.as_bytes(), message.kind.as_bytes(), &message.body] {
        hash.update(u64::try_from(part.len()).unwrap_or(u64::MAX).to_le_bytes());
        hash.update(part);
    }
    let mut out = [0; 16];
    out.copy_from_slice(&hash.finalize()[..16]);
    out
}

/// What the sender is told about an id that is known; `None`: it is a new message.
pub fn known(remembered: Option<&Remembered>, digest: &[u8; 16]) -> Option<Outboxed> {
    remembered.map(|r| Outboxed::Existing { number: r.number, differs: r.digest != *digest })
}

/// Whether a message may go out now, as far as it is about itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// Now.
    Due,
    /// In so many ms, by the calendar, and in no more than that by the stopwatch. Unless it stands aside its key waits with it.
    Later(u64),
    /// Its deadline has passed: no try begins.
    TooLate,
    /// A person has to say what becomes of it; whether its key waits.
    Dead(bool),
}

/// Looks at one message.
pub fn look(delivery: &Delivery, topic: &Topic, now: Wall) -> Look {
    match delivery.standing {
        Standing::Dead { blocks, .. } => Look::Dead(blocks),
        Standing::Waiting { .. } if past_deadline(delivery, topic, now) => Look::TooLate,
        Standing::Waiting { due, delay_ms } => match due.since(now).min(delay_ms) {
            0 => Look::Due,
            ms => Look::Later(ms),
        },
    }
}

/// What a try came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Given {
    /// The other side has it.
    Taken,
    /// It may have it or not: the same message with the same id is right in any case.
    Failed(Failure),
    /// No try was made: it is too late for one.
    TooLate,
}

/// What becomes of a message after a try.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// Over.
    Published(Ended),
    /// It comes back.
    Again(Delivery),
    /// It waits for a person.
    Dead(Delivery, Why),
}

/// The answer to what a try came to.
pub fn after(delivery: &Delivery, given: &Given, topic: &Topic, now: Wall, draw: u64) -> Next {
    let failure = match given {
        Given::Taken => return Next::Published(ended(Ending::Published, topic, now)),
        Given::TooLate => return dead(delivery.clone(), Why::DeadlinePassed, topic, now),
        Given::Failed(failure) => failure,
    };
    let mut next = delivery.clone();
    next.failures = next.failures.saturating_add(1);
    next.error = Some(failure.text.clone());
    match failure.class {
        Class::Permanent => dead(next, Why::Permanent, topic, now),
        Class::Transient | Class::Unknown if topic.retries.is_some_and(|n| next.failures > n) => {
            dead(next, Why::TriesUsedUp, topic, now)
        }
        Class::Transient | Class::Unknown => {
            let asked = failure.retry_after.map_or(0, millis).min(MAX_RETRY_AFTER_MS);
            let delay_ms = backoff_ms(&topic.backoff, next.failures, draw).max(asked);
            let due = Wall(now.0.saturating_add(delay_ms));
            // Waiting for a try that may not begin would only delay the question to a person.
            if past_deadline(&next, topic, due) {
                return dead(next, Why::DeadlinePassed, topic, now);
            }
            next.standing = Standing::Waiting { due, delay_ms };
            Next::Again(next)
        }
    }
}

/// How long a topic rests, in ms, after so many different keys failed in a row, and the last answers asked for a pause.
pub fn rest_ms(topic: &Topic, keys: usize, asked: Option<Duration>, draw: u64) -> u64 {
    let lame = match keys.checked_sub(LAME) {
        None => 0,
        Some(n) => backoff_ms(&topic.backoff, u32::try_from(n).unwrap_or(u32::MAX).saturating_add(1), draw),
    };
    lame.max(asked.map_or(0, millis).min(MAX_REST_MS))
}

/// A person puts a stuck message on its way again, with all its tries. One that held its key up goes first in it; one that the
/// others have gone past holds nothing up.
pub fn retry(delivery: &Delivery, now: Wall) -> Result<Delivery, Refusal> {
    match delivery.standing {
        Standing::Dead { blocks, .. } => {
            let standing = Standing::Waiting { due: now, delay_ms: 0 };
            Ok(Delivery { since: now, standing, failures: 0, aside: !blocks || delivery.aside, ..delivery.clone() })
        }
        Standing::Waiting { .. } => Err(Refusal::NotAChoice(
            "the message is on its way by itself: wait for it, or see why its topic waits".to_owned(),
        )),
    }
}

/// A person throws a stuck message away. One that was delivered before, and stuck when it was sent again, stays delivered.
pub fn discard(delivery: &Delivery, delivered: bool, topic: &Topic, now: Wall) -> Result<Ended, Refusal> {
    match delivery.standing {
        Standing::Dead { .. } if delivered => Ok(ended(Ending::Published, topic, now)),
        Standing::Dead { .. } => Ok(ended(Ending::Discarded, topic, now)),
        Standing::Waiting { .. } => Err(Refusal::NotAChoice(
            "the message is on its way by itself, and may be at the broker already: pause its topic instead".to_owned(),
        )),
    }
}

/// Keeps a decision with those before it. A script that retries every minute must not make the memory of one id grow without end:
/// the middle is one entry by nobody, which says how many were left out.
pub fn sign(acts: &mut Vec<(Act, Signed)>, act: Act, by: Signed) {
    acts.push((act, by));
    let gap = acts.get(ACTS).filter(|(_, s)| s.who.is_empty());
    let left_out: Option<u64> = gap.map(|(_, s)| s.why.split(' ').next().and_then(|n| n.parse().ok()).unwrap_or(0));
    let n = match left_out {
        Some(n) if acts.len() > 2 * ACTS + 1 => {
            acts.remove(ACTS + 1);
            n.saturating_add(1)
        }
        None if acts.len() > 2 * ACTS => 1,
        Some(_) | None => return,
    };
    if let Some((_, gap)) = acts.get_mut(ACTS) {
        (gap.who, gap.why) = (String::new(), format!("{n} more decisions, left out"));
    }
}

/// A person has a delivered message sent again, with the same id: beside the others, whose order was decided long ago.
pub fn resend(remembered: &Remembered, row_is_kept: bool, now: Wall) -> Result<Delivery, Refusal> {
    let published = remembered.ended.is_some_and(|e| e.how == Ending::Published);
    if !published {
        let discarded = remembered.acts.last().is_some_and(|(act, _)| *act == Act::Discarded);
        let why = if discarded { "was thrown away" } else { "has not been delivered yet: retry it if it is stuck" };
        return Err(Refusal::NotAChoice(format!("only a delivered message can be sent again, and this one {why}")));
    }
    if !row_is_kept {
        return Err(Refusal::NotAChoice(
            "only its id is remembered, the message itself was pruned: let the app send a new one".to_owned(),
        ));
    }
    Ok(Delivery { aside: true, ..Delivery::new(now) })
}

/// Deaths of the process while a message was being handed over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Deaths {
    /// Nothing else was at work.
    pub alone: u32,
    /// Handlers, or other messages, were at work beside it.
    pub beside: u32,
}

/// Messages with which the process died and which have not come back alive since, by number.
pub type Suspects = BTreeMap<u64, Deaths>;

/// What the sidecar calls the messages of a topic: no job has such a number.
pub fn tag(topic: &str) -> JobId {
    let hash = Sha256::digest(topic.as_bytes());
    JobId(hash.iter().take(8).fold(0, |n, byte| n << 8 | u64::from(*byte)) | 1 << 63)
}

/// The process died while this message was being handed over. Two deaths with nothing else at work, or so many in company, and it
/// waits for a person: the next process would die of it, too. A death alone is a failed try, like an attempt of a job; nothing is
/// gained by waiting, so it goes out again at once.
pub fn died(delivery: &Delivery, deaths: &mut Deaths, alone: bool, topic: &Topic, now: Wall) -> Next {
    let mut next = delivery.clone();
    let count = if alone { &mut deaths.alone } else { &mut deaths.beside };
    *count = count.saturating_add(1);
    let beside = if alone { "" } else { " (others were at work, too)" };
    next.error = Some(format!("the process died while it was being published{beside}"));
    if alone {
        next.failures = next.failures.saturating_add(1);
    }
    if deaths.alone >= 2 || deaths.beside >= MAX_DEATHS_BESIDE_OTHERS {
        return dead(next, Why::ProcessDied, topic, now);
    }
    if alone && topic.retries.is_some_and(|n| next.failures > n) {
        return dead(next, Why::TriesUsedUp, topic, now);
    }
    Next::Again(next)
}

fn past_deadline(delivery: &Delivery, topic: &Topic, at: Wall) -> bool {
    topic.deadline.is_some_and(|d| at > delivery.since.after(d))
}

fn dead(mut delivery: Delivery, why: Why, topic: &Topic, now: Wall) -> Next {
    // What stands aside holds nothing up, whatever the topic says: others have gone past it.
    let blocks = topic.on_stuck == OnStuck::Block && !delivery.aside;
    delivery.standing = Standing::Dead { why, at: now, blocks };
    Next::Dead(delivery, why)
}

fn ended(how: Ending, topic: &Topic, now: Wall) -> Ended {
    let until = |keep: Keep| match keep {
        Keep::For(d) => Some(now.after(d)),
        Keep::Forever => None,
    };
    let row_until = until(topic.keep);
    // The memory outlives the message.
    let forget = row_until.zip(until(topic.remember)).map(|(row, id)| id.max(row));
    Ended { how, at: now, row_until, forget }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::policy::Backoff;

    const NOW: Wall = Wall(1_000_000);
    const MINUTE: Duration = Duration::from_secs(60);

    fn failed(class: Class) -> Given {
        Given::Failed(Failure { class, text: "no".to_owned(), retry_after: None })
    }
    fn steps() -> Topic {
        Topic::default().backoff(Backoff::steps([MINUTE, 5 * MINUTE]))
    }
    fn again(next: Next) -> Delivery {
        match next {
            Next::Again(d) => d,
            other @ (Next::Published(_) | Next::Dead(..)) => panic!("{other:?}"),
        }
    }
    fn gave_up(next: Next) -> (Delivery, Why) {
        match next {
            Next::Dead(d, why) => (d, why),
            other @ (Next::Published(_) | Next::Again(_)) => panic!("{other:?}"),
        }
    }

    /// The broker is away for a long time: the message comes back at its steps, for ever, and its failures are counted.
    #[test]
    fn without_a_limit_a_message_comes_back_for_ever() {
        let mut d = Delivery::new(NOW);
        for n in 1..200 {
            d = again(after(&d, &failed(if n % 2 == 0 { Class::Transient } else { Class::Unknown }), &steps(), NOW, 7));
            let delay_ms = if n == 1 { 60_000 } else { 300_000 };
            assert_eq!(d.standing, Standing::Waiting { due: Wall(NOW.0 + delay_ms), delay_ms });
            assert_eq!((d.failures, d.error.as_deref()), (n, Some("no")));
        }
        assert_eq!(look(&d, &steps(), NOW), Look::Later(300_000));
        assert_eq!(look(&d, &steps(), Wall(NOW.0 + 300_000)), Look::Due);
        // The calendar was set back by a day: nobody waits longer than was asked for.
        assert_eq!(look(&d, &steps(), Wall(0)), Look::Later(300_000));
    }

    /// Two retries are three tries; a refusal for good is the end at once; the policy says whether the key waits.
    #[test]
    fn a_message_that_cannot_go_forward_waits_for_a_person() {
        let topic = steps().retries(2);
        let mut d = Delivery::new(NOW);
        for _ in 0..2 {
            d = again(after(&d, &failed(Class::Transient), &topic, NOW, 0));
        }
        let (d, why) = gave_up(after(&d, &failed(Class::Transient), &topic, NOW, 0));
        assert_eq!((why, d.failures, look(&d, &topic, NOW)), (Why::TriesUsedUp, 3, Look::Dead(true)));
        let open = steps().on_stuck(OnStuck::DeadLetter);
        let (d, why) = gave_up(after(&Delivery::new(NOW), &failed(Class::Permanent), &open, NOW, 0));
        assert_eq!((why, look(&d, &open, NOW)), (Why::Permanent, Look::Dead(false)));
    }

    /// No try begins after the deadline, and none is waited for that could not begin.
    #[test]
    fn the_deadline_ends_the_tries() {
        let topic = steps().deadline(2 * MINUTE);
        let d = Delivery::new(NOW);
        assert_eq!(look(&d, &topic, NOW.after(2 * MINUTE)), Look::Due);
        assert_eq!(look(&d, &topic, Wall(NOW.after(2 * MINUTE).0 + 1)), Look::TooLate);
        assert_eq!(gave_up(after(&d, &Given::TooLate, &topic, NOW, 0)).1, Why::DeadlinePassed);
        let d = again(after(&d, &failed(Class::Transient), &topic, NOW, 0));
        let (d, why) = gave_up(after(&d, &failed(Class::Transient), &topic, NOW.after(MINUTE), 0));
        assert_eq!(why, Why::DeadlinePassed);
        // A person's retry has its own time.
        let d = retry(&d, NOW.after(9 * MINUTE)).unwrap();
        assert_eq!((look(&d, &topic, NOW.after(10 * MINUTE)), d.failures), (Look::Due, 0));
    }

    /// The broker asks for a pause: it is kept, up to a bound, and jitter never makes a wait longer than its ceiling.
    #[test]
    fn retry_after_is_heard_and_bounded() {
        let asked = |d| Given::Failed(Failure { class: Class::Transient, text: String::new(), retry_after: Some(d) });
        let delay = |given: &Given, draw| match again(after(&Delivery::new(NOW), given, &Topic::default(), NOW, draw))
            .standing
        {
            Standing::Waiting { delay_ms, .. } => delay_ms,
            Standing::Dead { .. } => 0,
        };
        assert_eq!(delay(&asked(MINUTE), 3), 60_000);
        assert_eq!(delay(&asked(Duration::MAX), 3), MAX_RETRY_AFTER_MS);
        for draw in [0, 1, 999, 1_000, 1_001, u64::MAX] {
            assert!(delay(&failed(Class::Unknown), draw) <= 1_000);
        }
    }

    /// A stuck message is tried again in its place if its key waited, and beside the others if they went past it.
    #[test]
    fn a_retried_message_keeps_its_place_only_if_it_was_kept() {
        let stuck = |blocks| Delivery {
            standing: Standing::Dead { why: Why::Permanent, at: NOW, blocks },
            ..Delivery::new(NOW)
        };
        assert!(!retry(&stuck(true), NOW).unwrap().aside);
        let beside = retry(&stuck(false), NOW).unwrap();
        assert!(beside.aside);
        // It fails again: under every policy it holds nothing up.
        let (d, _) = gave_up(after(&beside, &failed(Class::Permanent), &Topic::default(), NOW, 0));
        assert_eq!(look(&d, &Topic::default(), NOW), Look::Dead(false));
        assert!(
            retry(&Delivery::new(NOW), NOW).is_err() && discard(&Delivery::new(NOW), false, &steps(), NOW).is_err()
        );
        assert_eq!(discard(&stuck(true), false, &steps(), NOW).unwrap().how, Ending::Discarded);
        assert_eq!(discard(&stuck(true), true, &steps(), NOW).unwrap().how, Ending::Published);
    }

    /// The process dies with a message in its hands: twice alone, or ten times in company, and a person is asked; only a death alone
    /// counts as a failed try, and nobody waits for the next one.
    #[test]
    fn deaths_end_in_a_question() {
        let (topic, mut deaths) = (Topic::default(), Deaths::default());
        let d = Delivery::new(NOW);
        for n in 1..MAX_DEATHS_BESIDE_OTHERS {
            assert_eq!(again(died(&d, &mut deaths, false, &topic, NOW)).failures, 0, "{n}");
        }
        assert_eq!(gave_up(died(&d, &mut deaths.clone(), false, &topic, NOW)).1, Why::ProcessDied);
        let d = again(died(&d, &mut deaths, true, &topic, NOW));
        assert_eq!((d.failures, look(&d, &topic, NOW)), (1, Look::Due));
        assert_eq!(gave_up(died(&d, &mut deaths, true, &topic, NOW)).1, Why::ProcessDied);
        // A topic that allows no second try.
        let strict = Topic::default().retries(0);
        let first = died(&Delivery::new(NOW), &mut Deaths::default(), true, &strict, NOW);
        assert_eq!(gave_up(first).1, Why::TriesUsedUp);
        // One that allows one more.
        let once_more = Topic::default().retries(1);
        assert_eq!(again(died(&Delivery::new(NOW), &mut Deaths::default(), true, &once_more, NOW)).failures, 1);
        // The tag stands in sidecars that were written: the first eight bytes of the hash, with the highest bit set.
        assert_eq!([tag("a"), tag("b")], [JobId(0xca97_8112_ca1b_bdca), JobId(0xbe23_e816_0039_594a)]);
    }

    /// Only what was delivered, and is still kept, can be sent again.
    #[test]
    fn only_a_delivered_message_is_sent_again() {
        let end = |how| ended(how, &Topic::default(), NOW);
        let r = |ended| Remembered { number: 1, key: "k".into(), digest: [0; 16], marks: 1, ended, acts: Vec::new() };
        assert!(resend(&r(Some(end(Ending::Published))), true, NOW).unwrap().aside);
        assert!(resend(&r(Some(end(Ending::Published))), false, NOW).is_err());
        let gone = Remembered {
            acts: vec![(Act::Discarded, Signed { who: "ana".into(), why: "so".into(), at: NOW })],
            ..r(None)
        };
        for (r, why) in [
            (Remembered { ended: Some(end(Ending::Discarded)), ..gone }, "this one was thrown away"),
            (r(None), "this one has not been delivered yet: retry it if it is stuck"),
        ] {
            assert!(resend(&r, true, NOW).is_err_and(|refused| refused.to_string().contains(why)), "{why}");
        }
    }

    /// The id is remembered for longer than the message, also if somebody asks for the reverse.
    #[test]
    fn the_id_outlives_the_message() {
        let day = 24 * 60 * MINUTE;
        let e = ended(Ending::Published, &Topic::default(), NOW);
        assert_eq!((e.row_until, e.forget), (Some(NOW.after(7 * day)), Some(NOW.after(90 * day))));
        let odd = Topic::default().remember(Keep::For(MINUTE));
        assert_eq!(ended(Ending::Published, &odd, NOW).forget, Some(NOW.after(7 * day)));
        let kept = Topic::default().keep(Keep::Forever);
        assert_eq!(
            (ended(Ending::Published, &kept, NOW).row_until, ended(Ending::Published, &kept, NOW).forget),
            (None, None)
        );
    }

    /// Somebody's script retries a stuck message for ever: the first and the last decisions are kept, those between are counted.
    #[test]
    fn decisions_about_one_message_do_not_grow_without_end() {
        let mut acts = Vec::new();
        let by = |n: u64| Signed { who: format!("ana{n}"), why: "again".to_owned(), at: Wall(n) };
        for n in 0..64 {
            sign(&mut acts, Act::Retried, by(n));
        }
        assert!(acts.len() == 64 && acts.iter().all(|(_, s)| !s.who.is_empty()));
        for n in 64..1_000 {
            sign(&mut acts, Act::Retried, by(n));
        }
        let who: Vec<_> = acts.iter().map(|(_, s)| s.who.as_str()).collect();
        assert_eq!((acts.len(), who[31], who[32], who[33], who[64]), (65, "ana31", "", "ana968", "ana999"));
        assert_eq!(acts[32].1.why, "936 more decisions, left out");
        assert_eq!(acts[32].1.at, Wall(32), "since the first of them");
    }

    /// Another body, key or kind under one id is another message, however its parts are cut; headers are not looked at.
    #[test]
    fn a_digest_tells_other_messages() {
        let m = |key: &str, kind: &str, body: &str| Message {
            key: key.into(),
            kind: kind.into(),
            ..Message::new("t", "id", body.into())
        };
        let one = digest(&m("a", "b", "c"));
        for other in [m("ab", "", "c"), m("a", "bc", ""), m("a", "b", "d"), m("", "ab", "c")] {
            assert_ne!(digest(&other), one, "{other:?}");
        }
        let told = Message { headers: vec![("traceparent".into(), "00-1".into())], ..m("a", "b", "c") };
        assert_eq!(digest(&told), one);
        let r = Remembered { number: 4, key: "a".into(), digest: one, marks: 0, ended: None, acts: Vec::new() };
        assert_eq!(known(Some(&r), &one), Some(Outboxed::Existing { number: 4, differs: false }));
        assert_eq!(known(Some(&r), &[0; 16]), Some(Outboxed::Existing { number: 4, differs: true }));
        assert_eq!(known(None, &one), None);
    }

    /// Two keys that fail cost nothing, the third begins a rest that grows; one delivery ends it (the count starts anew). A pause
    /// that the broker asks for is kept from the first, up to a bound.
    #[test]
    fn a_topic_that_delivers_nothing_rests() {
        assert_eq!([0, 1, 2].map(|n| rest_ms(&steps(), n, None, 0)), [0; 3]);
        assert_eq!([3, 4, 9].map(|n| rest_ms(&steps(), n, None, 0)), [60_000, 300_000, 300_000]);
        assert_eq!([1, 3, 4].map(|n| rest_ms(&steps(), n, Some(2 * MINUTE), 0)), [120_000, 120_000, 300_000]);
        assert_eq!(rest_ms(&steps(), 1, Some(Duration::MAX), 0), MAX_REST_MS);
    }
}
