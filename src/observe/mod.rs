//! What became durable, told to people: the proof line, `tracing` events, counters.
//!
//! Decisions list facts; after the commit [`Observer::committed`] is the one place that turns them into everything that is seen,
//! so nothing is reported that could still vanish. Pure over what it is given: no clock, no store. Called by the engine.

pub mod alerts;
pub mod book;
pub mod committed;
pub mod counters;
pub mod escape;
pub mod events;
pub mod histogram;
mod kind;
pub mod line;
pub mod proof_log;
pub mod safety;
pub mod snapshot;
pub mod stamp;
pub mod watch;

pub use alerts::{AlertRule, AlertRules, Firing, Notice, RetryRatio};
pub use committed::Committed;
pub use counters::{Counters, Duplicate};
pub use histogram::{Bucket, Durations};
pub use line::{AttemptLine, BadLine, GaveBack, parse_line};
pub use proof_log::{ProofLog, Sink};
pub use safety::{SafetyCard, SafetyCards};
pub use snapshot::{Gauges, KindCounts, Snapshot, TopicCounts, TopicGauges};
pub use stamp::Zone;

use crate::model::outbox::{News, TopicNews};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Everybody who is told.
#[derive(Default)]
pub struct Observer {
    counters: Counters,
    sinks: Vec<Box<dyn Sink>>,
}

impl Observer {
    /// Counts, raises events and gives lines to `sinks`.
    pub fn new(sinks: Vec<Box<dyn Sink>>) -> Self {
        Self { counters: Counters::new(), sinks }
    }
    /// What was counted so far.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }
    /// Tells what one commit made true about topics of the outbox.
    pub fn outbox(&self, news: &[TopicNews]) {
        self.counters.outbox(news);
        for TopicNews { topic, news } in news {
            match news {
                News::Dead { id, why, blocks, .. } => events::message_stuck(topic, id, why.says(), *blocks),
                News::Written
                | News::Existing
                | News::Published
                | News::Failed(_)
                | News::Retried
                | News::Discarded
                | News::Resent => {}
            }
        }
    }
    /// Tells what one commit made true, in its order: counted first, then raised as events, then given to the sinks.
    pub fn committed(&self, changes: &[Committed<'_>]) {
        self.counters.count(changes);
        let mut lines = Vec::new();
        for change in changes {
            // A line for nobody is not made: most apps have no sink, and many no subscriber for this.
            if let Some(outcome) = change.outcome()
                && (!self.sinks.is_empty() || events::hears(outcome))
                && let Some(line) = change.line()
            {
                events::quietly(|| events::attempt(&line));
                lines.push(line);
            }
            events::quietly(|| events::news(change));
        }
        if lines.is_empty() {
            return;
        }
        for sink in &self.sinks {
            // The caller goes on to hand out work: an app's sink must not take the queue down with it.
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| sink.attempts(&lines))) {
                // Not dropped: the `Drop` of an odd payload could panic again.
                std::mem::forget(panic);
                events::quietly(|| events::sink_panicked(lines.len()));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::committed::tests::Told;
    use super::events::tests::heard;
    use super::*;
    use crate::model::attempt::{Class, Outcome};
    use crate::model::time::Wall;
    use parking_lot::Mutex;
    use std::sync::Arc;

    #[derive(Clone, Default)]
    struct Kept(Arc<Mutex<Vec<String>>>);

    impl Sink for Kept {
        fn attempt(&self, line: &AttemptLine) {
            self.0.lock().push(line.to_string());
        }
    }

    struct Broken;

    impl Sink for Broken {
        fn attempt(&self, _: &AttemptLine) {
            std::panic::resume_unwind(Box::new("a sink with a bug"));
        }
    }

    /// Two claims and two ends in one commit: two lines, two events, and a sink that panics keeps nobody from hearing them.
    #[test]
    fn each_claim_that_ended_is_told_once_to_everybody() {
        let kept = Kept::default();
        let observer = Observer::new(vec![Box::new(Broken), Box::new(kept.clone())]);
        let told = [
            Told::claim(false),
            Told::end(false, 1, Outcome::Retry, Some(Class::Transient)),
            Told::claim(false),
            Told::end(false, 2, Outcome::Success, None),
        ];
        let events = heard(|| observer.committed(&told.each_ref().map(Told::committed)));
        let lines = kept.0.lock().clone();
        let outcomes: Vec<_> = lines.iter().map(|l| parse_line(l).map(|l| (l.attempt, l.outcome))).collect();
        assert_eq!(outcomes, [Ok((1, Outcome::Retry)), Ok((2, Outcome::Success))]);
        let said = |text: &str| events.iter().filter(|e| e.fields["message"] == text).count();
        assert_eq!(said("attempt ended"), 2);
        assert_eq!(events.len(), 3, "and one about the sink");
        let counts = observer.counters().snapshot(Wall(0), Gauges::default()).all;
        assert_eq!(counts.outcomes_total.values().sum::<u64>(), 2, "one line per claim that ended");
        assert_eq!(counts.attempts_total, 2);
    }
}
