//! What `jobs.snapshot()` returns: counters and gauges at one instant, as plain values without an exporter.
//!
//! Counters count since the process started and only what was committed; gauges are what the store counted. Every label is
//! there from the start, with zero. Made by [`Counters::snapshot`](super::counters::Counters::snapshot).

use super::histogram::{ATTEMPTS, Durations};
use super::kind::{Kind, outcome_index};
use super::line::{CLASSES, GaveBack, OUTCOMES, class_word};
use crate::model::attempt::Outcome;
use crate::model::job::State;
use crate::model::outbox::News;
use crate::model::time::Wall;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// Counters and gauges at one instant.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Snapshot {
    /// When, in milliseconds since 1970.
    pub at_ms: u64,
    /// All kinds together.
    pub all: KindCounts,
    /// By kind.
    pub kinds: BTreeMap<String, KindCounts>,
    /// By topic of the outbox.
    pub topics: BTreeMap<String, TopicCounts>,
    /// How long commits took.
    pub store_commit_duration_seconds: Durations,
    /// What the store counted.
    #[serde(flatten)]
    pub gauges: Gauges,
}

/// What is true now, as the store counted it.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Gauges {
    /// Jobs by queue and state; those that are over are not counted.
    pub queue_depth: BTreeMap<String, BTreeMap<&'static str, u64>>,
    /// By queue: how long ago the first ready job of its kinds was enqueued, paused ones included; of several kinds the oldest. A
    /// job that was delayed counts from its enqueue. Absent if none is ready.
    pub oldest_age_seconds: BTreeMap<String, f64>,
    /// Jobs about which a person is asked.
    pub dead_letters: u64,
    /// Something is paused: everything, a kind, a queue or a topic. [`Jobs::pauses`](crate::Jobs::pauses) says what and why.
    pub paused: bool,
    /// Everything is.
    pub paused_all: bool,
    /// Kinds that are paused by themselves.
    pub paused_kinds: BTreeSet<String>,
    /// Kinds with ready jobs that no handler is registered for: they wait.
    pub unknown_kinds: BTreeSet<String>,
    /// The size of the database file.
    pub store_size_bytes: u64,
    /// What the disk has room for: "normal", "low" (it was full: nothing new is taken, no job and no risky effect begins) or "critical"
    /// (no effect begins, only what became of things is recorded). Empty in a snapshot that nobody took of a store.
    pub disk: &'static str,
    /// By topic: what waits in the outbox.
    pub outbox: BTreeMap<String, TopicGauges>,
    /// Topics that are paused by themselves.
    pub paused_topics: BTreeSet<String>,
    /// By alert rule: how many subjects it speaks about now. Every rule is there, with zero.
    pub alerts: BTreeMap<&'static str, u64>,
    /// Letters and notices that a callback is still to be told; zero where there is none.
    pub alerts_waiting: u64,
    /// A callback for alerts has not returned for this long. Absent unless that is more than 5 s.
    pub alert_callback_hangs_seconds: Option<f64>,
}

/// What waits in one topic of the outbox.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[non_exhaustive]
pub struct TopicGauges {
    /// Messages that are not delivered; those put aside are not among them.
    pub depth: u64,
    /// Of those, the ones that wait for a person, and their key with them.
    pub stuck: u64,
    /// Stuck messages that others have gone past.
    pub aside: u64,
    /// The age of the oldest message that is not delivered. Absent if there is none.
    pub oldest_age_seconds: Option<f64>,
}

/// The counters of one topic.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct TopicCounts {
    /// Messages stored.
    pub written_total: u64,
    /// Messages handed in whose id was known: nothing was stored.
    pub duplicate_suppressed_total: u64,
    /// Messages marked as delivered, each time they were sent again included.
    pub published_total: u64,
    /// Tries that failed, by class.
    pub failures_total: BTreeMap<&'static str, u64>,
    /// Messages that came to wait for a person.
    pub dead_total: u64,
    /// Stuck messages that a person put on their way again.
    pub retried_total: u64,
    /// Stuck messages that a person threw away.
    pub discarded_total: u64,
    /// Delivered messages that a person had sent again.
    pub resent_total: u64,
}

impl TopicCounts {
    pub(super) fn add(&mut self, news: &News) {
        let one = match news {
            News::Written => &mut self.written_total,
            News::Existing => &mut self.duplicate_suppressed_total,
            News::Published => &mut self.published_total,
            News::Retried => &mut self.retried_total,
            News::Discarded => &mut self.discarded_total,
            News::Resent => &mut self.resent_total,
            News::Failed(class) => self.failures_total.entry(class_word(*class)).or_default(),
            News::Dead { class, .. } => {
                if let Some(class) = class {
                    let failures = self.failures_total.entry(class_word(*class)).or_default();
                    *failures = failures.saturating_add(1);
                }
                &mut self.dead_total
            }
        };
        *one = one.saturating_add(1);
    }
}

impl Gauges {
    /// Adds `n` jobs in `state`; the queue shows every other state with zero.
    pub fn depth(&mut self, queue: &str, state: State, n: u64) {
        let states =
            self.queue_depth.entry(queue.to_owned()).or_insert_with(|| STATES.map(|s| (state_word(s), 0)).into());
        let depth = states.entry(state_word(state)).or_default();
        *depth = depth.saturating_add(n);
    }
    /// What waits in a topic: on its way, stuck, put aside; and when the oldest of the first two was committed.
    pub fn topic(&mut self, topic: &str, (waiting, stuck, aside): (u64, u64, u64), oldest: Option<Wall>, now: Wall) {
        #[expect(clippy::cast_precision_loss, reason = "an age in ms is exact up to 285,000 years")]
        let oldest_age_seconds = oldest.map(|at| now.since(at) as f64 / 1e3);
        let gauges = TopicGauges { depth: waiting.saturating_add(stuck), stuck, aside, oldest_age_seconds };
        self.outbox.insert(topic.to_owned(), gauges);
    }
    /// The oldest unfinished job of a queue was enqueued at `enqueued`; the older of two wins.
    pub fn oldest(&mut self, queue: &str, enqueued: Wall, now: Wall) {
        #[expect(clippy::cast_precision_loss, reason = "an age in ms is exact up to 285,000 years")]
        let age = now.since(enqueued) as f64 / 1e3;
        let oldest = self.oldest_age_seconds.entry(queue.to_owned()).or_default();
        *oldest = oldest.max(age);
    }
}

/// The counters of one kind, or of all.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[non_exhaustive]
pub struct KindCounts {
    /// Jobs stored; duplicates are not among them.
    pub enqueued_total: u64,
    /// Claims, those that an earlier process left behind included.
    pub claims_total: u64,
    /// Claims that were not attempts, by reason.
    pub given_back_total: BTreeMap<&'static str, u64>,
    /// Attempts begun: exactly the claims without those given back.
    pub attempts_total: u64,
    /// Claims that ended, by outcome: one for each line of the log, those given back and continued included.
    pub outcomes_total: BTreeMap<&'static str, u64>,
    /// Attempts ended that were not the first of their job.
    pub retries_total: u64,
    /// Duplicates recognised, by where: `enqueue`, `effect`, `step`.
    pub duplicate_suppressed_total: BTreeMap<&'static str, u64>,
    /// Failed attempts by class.
    pub failures_total: BTreeMap<&'static str, u64>,
    /// Leases that ran out while a handler had them.
    pub lease_expired_total: u64,
    /// Jobs over, by how.
    pub ended_total: BTreeMap<&'static str, u64>,
    /// Compensations by result: `complete`, `partial` (something stays, as a person was told), `stopped` (a person is asked).
    pub compensation_total: BTreeMap<&'static str, u64>,
    /// By effect: how often its record came to be in a state. `intended` is the number of calls about to be made.
    pub effects_total: BTreeMap<String, BTreeMap<&'static str, u64>>,
    /// Proofs from calls whose lease was over.
    pub late_proofs_total: u64,
    /// Proofs that contradict another one or a person.
    pub conflicts_total: u64,
    /// Dead letters created.
    pub letters_opened_total: u64,
    /// Dead letters answered.
    pub letters_closed_total: u64,
    /// Of the claims that ended well or badly, the share that ended well; interruptions, waits and "not yet" are neither.
    pub success_ratio: Option<f64>,
    /// Of the attempts that ended, the share that were not the first of their job.
    pub retry_ratio: Option<f64>,
    /// How long handlers had their jobs.
    pub duration_seconds: Durations,
    /// How long jobs that could run were not claimed.
    pub wait_seconds: Durations,
}

impl KindCounts {
    pub(super) fn of(kind: &Kind) -> Self {
        let good = kind.outcomes.at(outcome_index(Outcome::Success));
        let bad = [Outcome::Retry, Outcome::NeedsDecision, Outcome::Dead, Outcome::Compensating]
            .map(|o| kind.outcomes.at(outcome_index(o)));
        Self {
            enqueued_total: kind.enqueued,
            claims_total: kind.claims,
            given_back_total: kind.given_back.named(GaveBack::ALL.map(GaveBack::as_str)),
            attempts_total: kind.claims.saturating_sub(kind.given_back.sum()),
            outcomes_total: kind.outcomes.named(OUTCOMES.map(Outcome::as_str)),
            retries_total: kind.retries,
            duplicate_suppressed_total: kind.duplicates.named(["enqueue", "effect", "step"]),
            failures_total: kind.failures.named(CLASSES.map(class_word)),
            lease_expired_total: kind.leases_expired,
            ended_total: kind.ended.named(["done", "handled-outside", "discarded", "cancelled", "compensated"]),
            compensation_total: kind.compensations.named(["complete", "partial", "stopped"]),
            effects_total: kind.effects.iter().map(|(name, results)| (name.clone(), results.named(RESULTS))).collect(),
            late_proofs_total: kind.late_proofs,
            conflicts_total: kind.conflicts,
            letters_opened_total: kind.letters_opened,
            letters_closed_total: kind.letters_closed,
            success_ratio: ratio(good, bad.iter().fold(good, |sum, n| sum.saturating_add(*n))),
            retry_ratio: ratio(kind.retries, kind.attempts_ended),
            duration_seconds: kind.durations.show(&ATTEMPTS),
            wait_seconds: kind.waits.show(&ATTEMPTS),
        }
    }
}

/// A job's state as it stands in labels.
pub fn state_word(state: State) -> &'static str {
    match state {
        State::Ready => "ready",
        State::Delayed => "delayed",
        State::Running => "running",
        State::Waiting => "waiting",
        State::Paused => "paused",
        State::NeedsDecision => "needs-decision",
        State::Done => "done",
        State::Dead => "dead",
        State::HandledOutside => "handled-outside",
        State::Discarded => "discarded",
        State::Cancelled => "cancelled",
        State::Compensating => "compensating",
        State::Compensated => "compensated",
        State::Remembered => "remembered",
    }
}

/// The states that a queue always shows.
const STATES: [State; 8] = [
    State::Ready,
    State::Delayed,
    State::Running,
    State::Waiting,
    State::Paused,
    State::NeedsDecision,
    State::Dead,
    State::Compensating,
];

const RESULTS: [&str; 5] = ["intended", "confirmed", "refused", "unknown", "undone"];

#[expect(clippy::cast_precision_loss, reason = "a ratio of counts needs no more than 15 digits")]
fn ratio(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| part as f64 / whole as f64)
}
