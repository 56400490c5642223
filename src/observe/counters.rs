//! Counters: facts of commits, added up since the process started.
//!
//! Keeps the promise that a metric never counts what did not commit, that `attempts = claims - given back` at every instant, and
//! that labels come from code (kinds, effects, queues), never from keys. Fed by [`Observer`](super::Observer), read by
//! [`Counters::snapshot`].

use super::committed::Committed;
use super::histogram::{COMMITS, Histogram};
use super::kind::Kind;
use super::snapshot::{Gauges, KindCounts, Snapshot, TopicCounts};
use crate::model::outbox::TopicNews;
use crate::model::time::Wall;
use parking_lot::Mutex;
use std::collections::BTreeMap;

/// Where a duplicate was recognised and nothing happened a second time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Duplicate {
    /// The intent existed already.
    Enqueue,
    /// The effect was confirmed already.
    Effect,
    /// The step or commit was remembered.
    Step,
}

/// Everything that is counted. One lock, held for a batch of facts or a copy: a snapshot never shows half a commit.
#[derive(Debug, Default)]
pub struct Counters(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    kinds: BTreeMap<String, Kind>,
    topics: BTreeMap<String, TopicCounts>,
    commits: Histogram<{ COMMITS.len() }>,
}

impl Counters {
    /// Nothing counted yet.
    pub fn new() -> Self {
        Self::default()
    }
    /// Shows a kind and its effects with zeros, before anything happens: an alert on a counter that does not exist never fires.
    pub fn register<'a>(&self, kind: &str, effects: impl IntoIterator<Item = &'a str>) {
        let mut inner = self.0.lock();
        let counts = inner.kind(kind);
        for effect in effects {
            counts.effects.entry(effect.to_owned()).or_default();
        }
    }
    /// Claims that an earlier process left behind, counted at open so that their ends have a beginning here too.
    pub fn carry(&self, kind: &str, continuing: bool, claims: u64) {
        self.0.lock().kind(kind).claim(continuing, claims);
    }
    /// Adds what became durable with one commit.
    pub fn count(&self, changes: &[Committed<'_>]) {
        let mut inner = self.0.lock();
        for of_one_kind in changes.chunk_by(|a, b| a.kind == b.kind) {
            let Some(first) = of_one_kind.first() else { continue };
            let counts = inner.kind(first.kind);
            for change in of_one_kind {
                change.facts.iter().for_each(|fact| counts.fact(fact, change));
            }
        }
    }
    /// Shows a topic with zeros, before anything happens.
    pub fn topic(&self, topic: &str) {
        self.0.lock().topics.entry(topic.to_owned()).or_default();
    }
    /// Adds what became durable about topics of the outbox.
    pub fn outbox(&self, news: &[TopicNews]) {
        let mut inner = self.0.lock();
        for TopicNews { topic, news } in news {
            inner.topics.entry(topic.clone()).or_default().add(news);
        }
    }
    /// Adds a duplicate that was recognised.
    pub fn duplicate(&self, kind: &str, at: Duplicate) {
        self.0.lock().kind(kind).duplicates.add(at as usize);
    }
    /// Adds a commit and how long it took.
    pub fn commit(&self, micros: u64) {
        self.0.lock().commits.add(&COMMITS, micros);
    }
    /// All counts at one instant, together with what the store counted (`gauges`).
    pub fn snapshot(&self, now: Wall, gauges: Gauges) -> Snapshot {
        let inner = self.0.lock();
        let mut all = Kind::default();
        inner.kinds.values().for_each(|kind| all.absorb(kind));
        Snapshot {
            at_ms: now.0,
            all: KindCounts::of(&all),
            kinds: inner.kinds.iter().map(|(name, kind)| (name.clone(), KindCounts::of(kind))).collect(),
            topics: inner.topics.clone(),
            store_commit_duration_seconds: inner.commits.show(&COMMITS),
            gauges,
        }
    }
}

impl Inner {
    fn kind(&mut self, name: &str) -> &mut Kind {
        // Looked up twice so that the name is copied only once per process.
        if !self.kinds.contains_key(name) {
            self.kinds.insert(name.to_owned(), Kind::default());
        }
        self.kinds.get_mut(name).expect("it was inserted above if it was missing")
    }
}

#[cfg(test)]
mod tests {
    use super::super::committed::tests::{READY, Told};
    use super::*;
    use crate::model::attempt::{Class, Outcome};
    use crate::model::effect::{EffectState, Refusal};
    use crate::model::fact::{Compensation, Fact};
    use crate::model::id::{EffectId, JobId};
    use crate::model::job::{End, JobState, State};
    use crate::model::letter::Why;
    use proptest::prelude::*;

    fn counted(told: &[Told]) -> KindCounts {
        let counters = Counters::new();
        counters.count(&told.iter().map(Told::committed).collect::<Vec<_>>());
        counters.snapshot(Wall(0), Gauges::default()).all
    }

    /// A claim is handed back by a shutdown, the next one fails, the third waits, its continuation succeeds: two attempts.
    #[test]
    fn attempts_are_claims_without_those_given_back() {
        let counts = counted(&[
            Told::claim(false),
            Told::end(false, 0, Outcome::Interrupted, None).gave_back("interrupted"),
            Told::claim(false),
            Told::end(false, 1, Outcome::Retry, Some(Class::Transient)),
            Told::claim(false),
            Told::end(false, 2, Outcome::Waiting, Some(Class::Unknown)),
            Told::claim(true),
            Told::end(true, 2, Outcome::Waiting, Some(Class::Unknown)).gave_back("settling"),
            Told::claim(true),
            Told::end(true, 2, Outcome::Success, None),
        ]);
        assert_eq!((counts.claims_total, counts.attempts_total), (5, 2));
        assert_eq!(counts.given_back_total["interrupted"], 1);
        assert_eq!(counts.given_back_total["settled"], 2);
        assert_eq!(counts.retries_total, 1);
        assert_eq!(counts.outcomes_total.values().sum::<u64>(), 5, "one line per claim");
        assert_eq!(counts.outcomes_total["waiting"], 2);
        assert_eq!(counts.failures_total["transient"], 1);
        assert_eq!(counts.failures_total["unknown"], 1, "waiting once more is no further failure");
        assert_eq!(counts.success_ratio, Some(0.5));
        assert_eq!(counts.retry_ratio, Some(0.5));
        assert_eq!(counts.duration_seconds.count, 5);
    }

    /// The app restarts while three jobs were running: their ends are counted here, their claims too.
    #[test]
    fn claims_of_an_earlier_process_are_carried() {
        let counters = Counters::new();
        counters.carry("complete-order", false, 2);
        counters.carry("complete-order", true, 1);
        let ends = [
            Told::end(false, 0, Outcome::Interrupted, None).gave_back("never started"),
            Told::end(false, 1, Outcome::Retry, Some(Class::Transient)),
            Told::end(true, 1, Outcome::Interrupted, None).gave_back("interrupted"),
        ];
        counters.count(&ends.iter().map(Told::committed).collect::<Vec<_>>());
        let counts = counters.snapshot(Wall(0), Gauges::default()).all;
        assert_eq!((counts.claims_total, counts.attempts_total), (3, 1));
        assert_eq!(counts.given_back_total.values().sum::<u64>(), 2);
    }

    /// Each fact has its counter, with a label from code; parts and keys never become labels.
    #[test]
    fn every_fact_has_its_counter() {
        let job = JobId(7);
        let id = EffectId { name: "charge".into(), part: "secret-part".into() };
        let effect = |state, late| Fact::Effect { job, effect: id.clone(), state, late, reference: None };
        let states = [
            (EffectState::Intended, "intended"),
            (EffectState::Confirmed, "confirmed"),
            (EffectState::Refused(Refusal::Said), "refused"),
            (EffectState::Unknown, "unknown"),
            (EffectState::Undone, "undone"),
        ];
        let mut told: Vec<_> =
            states.iter().map(|(s, _)| Told::new(Some(READY), READY, vec![effect(*s, false)])).collect();
        told.push(Told::new(Some(READY), READY, vec![effect(EffectState::Confirmed, true)]));
        told.push(Told::new(None, READY, vec![Fact::Enqueued(job)]));
        told.push(Told::new(Some(READY), READY, vec![Fact::LeaseExpired(job)]));
        told.push(Told::new(Some(READY), READY, vec![Fact::Conflict { job, effect: id.clone() }]));
        let letter = Fact::Letter { job, why: Why::TriesUsedUp };
        told.push(Told::new(Some(READY), JobState::Dead, vec![letter.clone()]));
        told.push(Told::new(Some(JobState::Dead), JobState::Dead, vec![letter]));
        told.push(Told::new(Some(JobState::Dead), READY, vec![Fact::LetterClosed(job)]));
        for how in [End::Done, End::HandledOutside, End::Discarded, End::Cancelled, End::Compensated] {
            told.push(Told::new(Some(READY), JobState::Ended { how, at: Wall(0) }, vec![Fact::Ended { job, how }]));
        }
        for result in [Compensation::Complete, Compensation::Partial, Compensation::Stopped] {
            told.push(Told::new(Some(READY), JobState::Dead, vec![Fact::Compensation { job, result }]));
        }
        let counts = counted(&told);
        assert!(["complete", "partial", "stopped"].iter().all(|result| counts.compensation_total[result] == 1));
        for (_, result) in states {
            assert_eq!(counts.effects_total["charge"][result], if result == "confirmed" { 2 } else { 1 }, "{result}");
        }
        assert_eq!((counts.late_proofs_total, counts.conflicts_total, counts.lease_expired_total), (1, 1, 1));
        assert_eq!((counts.enqueued_total, counts.letters_opened_total, counts.letters_closed_total), (1, 1, 1));
        assert!(
            ["done", "handled-outside", "discarded", "cancelled", "compensated"]
                .iter()
                .all(|how| counts.ended_total[how] == 1)
        );
        let json = serde_json::to_string(&counts).unwrap_or_default();
        assert!(json.contains("charge") && !json.contains("secret-part") && !json.contains("ord_12"));
    }

    /// Each place where a duplicate is recognised has its own count.
    #[test]
    fn duplicates_are_counted_by_place() {
        let counters = Counters::new();
        [Duplicate::Enqueue, Duplicate::Effect, Duplicate::Effect, Duplicate::Step, Duplicate::Step, Duplicate::Step]
            .iter()
            .for_each(|at| counters.duplicate("k", *at));
        let counts = counters.snapshot(Wall(0), Gauges::default()).all;
        assert_eq!(Vec::from_iter(counts.duplicate_suppressed_total), [("effect", 2), ("enqueue", 1), ("step", 3)]);
    }

    /// Before anything happened each registered kind and effect is there, with zeros and without a ratio.
    #[test]
    fn registered_kinds_start_at_zero() {
        let counters = Counters::new();
        counters.register("complete-order", ["charge", "reserve"]);
        counters.register("report", []);
        let mut gauges = Gauges::default();
        gauges.depth("default", State::Ready, 3);
        gauges.oldest("default", Wall(1_000), Wall(3_500));
        let snapshot = counters.snapshot(Wall(3_500), gauges);
        assert_eq!(Vec::from_iter(snapshot.kinds.keys()), ["complete-order", "report"]);
        let counts = &snapshot.kinds["complete-order"];
        assert_eq!(Vec::from_iter(counts.effects_total.keys()), ["charge", "reserve"]);
        assert_eq!(counts.effects_total["charge"].len(), 5);
        assert_eq!((counts.outcomes_total.len(), counts.given_back_total.len()), (9, 6));
        assert_eq!((counts.attempts_total, counts.success_ratio, counts.retry_ratio), (0, None, None));
        assert_eq!(snapshot.gauges.queue_depth["default"]["ready"], 3);
        assert_eq!(snapshot.gauges.queue_depth["default"]["needs-decision"], 0);
        assert!((snapshot.gauges.oldest_age_seconds["default"] - 2.5).abs() < 1e-9);
        let json = serde_json::to_value(&snapshot).unwrap_or_default();
        assert_eq!(json["queue_depth"]["default"]["ready"], 3);
        assert_eq!(json["kinds"]["report"]["success_ratio"], serde_json::Value::Null);
    }

    proptest! {
        /// Whatever happens to claims, in whatever order: attempts = claims - given back, lines = claims - running, and the
        /// whole is the sum of its kinds.
        #[test]
        fn counts_always_add_up(steps in proptest::collection::vec((0..3usize, any::<bool>(), 0..4u8), 1..200)) {
            let kinds = ["a", "b", "c"];
            let counters = Counters::new();
            let mut running: Vec<(usize, bool)> = Vec::new();
            for (kind, flag, what) in steps {
                let (kind, told) = match what {
                    0 | 1 => {
                        running.push((kind, flag));
                        (kind, Told::claim(flag))
                    }
                    _ => {
                        let Some((kind, continuing)) = running.pop() else { continue };
                        let told = Told::end(continuing, 2, Outcome::Retry, Some(Class::Transient));
                        (kind, if flag { told.gave_back("snoozed") } else { told })
                    }
                };
                counters.count(&[Committed { kind: kinds[kind], ..told.committed() }]);
                let snapshot = counters.snapshot(Wall(0), Gauges::default());
                let all = &snapshot.all;
                let lines: u64 = all.outcomes_total.values().sum();
                let given_back: u64 = all.given_back_total.values().sum();
                prop_assert_eq!(all.attempts_total + given_back, all.claims_total);
                prop_assert_eq!(lines + u64::try_from(running.len()).unwrap_or(0), all.claims_total);
                prop_assert_eq!(all.claims_total, snapshot.kinds.values().map(|k| k.claims_total).sum::<u64>());
                prop_assert_eq!(all.attempts_total, snapshot.kinds.values().map(|k| k.attempts_total).sum::<u64>());
            }
        }
    }
}
