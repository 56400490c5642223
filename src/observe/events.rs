//! `tracing` events, all with target `onceward`: one per claim that ended, and a warning for whatever somebody should know.
//!
//! Keeps the promise that each line is also there as fields, and that no field can forge a line in a subscriber that prints
//! plain text: what comes from outside is escaped as in the proof line. Called by [`Observer`](super::Observer) and the engine.

use super::alerts::Said;
use super::committed::Committed;
use super::escape::{Name, Value};
use super::line::{AttemptLine, class_word};
use super::stamp::Zone;
use crate::model::attempt::Outcome;
use crate::model::fact::{Compensation, Fact};
use std::fmt::{self, Display};
use std::panic::{AssertUnwindSafe, catch_unwind};
use tracing::field::display;

/// The target of every event of this crate.
pub const TARGET: &str = "onceward";

/// Raises an event for which nobody may have to pay: a subscriber that panics (a closed stderr is enough) is the app's, and the
/// caller has work to hand out.
pub fn quietly(raise: impl FnOnce()) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(raise)) {
        // Not dropped: the `Drop` of an odd payload could panic again.
        std::mem::forget(panic);
    }
}

/// Whether anybody hears of claims that end so.
pub fn hears(outcome: Outcome) -> bool {
    let mut heard = false;
    quietly(|| {
        heard = if is_warning(outcome) {
            tracing::enabled!(target: TARGET, tracing::Level::WARN)
        } else {
            tracing::enabled!(target: TARGET, tracing::Level::INFO)
        }
    });
    heard
}

/// A person is needed.
fn is_warning(outcome: Outcome) -> bool {
    match outcome {
        Outcome::NeedsDecision | Outcome::Dead | Outcome::Compensating => true,
        Outcome::Success
        | Outcome::Retry
        | Outcome::NotYet
        | Outcome::Waiting
        | Outcome::Interrupted
        | Outcome::Cancelled => false,
    }
}

/// One event for a claim that ended: a warning if a person is needed, else information.
pub fn attempt(line: &AttemptLine) {
    macro_rules! tell {
        ($level:expr) => {
            tracing::event!(
                target: TARGET,
                $level,
                job = display(Value(&line.job)),
                attempt = line.attempt,
                outcome = line.outcome.as_str(),
                notes = line.notes.first().map(|_| display(Notes(&line.notes))),
                kind = display(Value(&line.kind)),
                id = line.id.number(),
                queue = display(Value(&line.queue)),
                token = line.token.map(|t| t.number()),
                step = line.step.as_deref().map(|s| display(Value(s))),
                owner = line.owner.as_deref().map(|s| display(Value(s))),
                operation = line.operation.first().map(|_| display(List(&line.operation))),
                class = line.class.map(class_word),
                error = line.error.as_deref().map(|s| display(Value(s))),
                duration_ms = line.duration_ms,
                next = line.next.map(|at| Zone::utc().text(at)),
                given_back = line.given_back.map(|why| why.as_str()),
                continued = line.continued,
                "attempt ended"
            )
        };
    }
    if is_warning(line.outcome) {
        tell!(tracing::Level::WARN);
    } else {
        tell!(tracing::Level::INFO);
    }
}

/// What else a change says to people: letters and conflicting proofs.
pub fn news(change: &Committed<'_>) {
    let (job, kind) = (display(Value(change.key.as_str())), display(Value(change.kind)));
    for fact in change.facts {
        match fact {
            Fact::Letter { job: id, why } if !change.was_asked() => tracing::warn!(
                target: TARGET,
                job,
                kind,
                id = id.number(),
                why = why.says(),
                "dead letter created: a person has to decide"
            ),
            Fact::Conflict { job: id, effect } => tracing::error!(
                target: TARGET,
                job,
                kind,
                id = id.number(),
                effect = display(Value(&effect.to_string())),
                "two accounts of one effect contradict each other: look at the provider before anything else"
            ),
            Fact::Compensation { job: id, result } => match result {
                Compensation::Stopped => tracing::warn!(
                    target: TARGET,
                    job,
                    kind,
                    id = id.number(),
                    result = result.as_str(),
                    "compensation stopped: a person has to decide"
                ),
                Compensation::Complete | Compensation::Partial => tracing::info!(
                    target: TARGET,
                    job,
                    kind,
                    id = id.number(),
                    result = result.as_str(),
                    "compensation ended: what was done is undone"
                ),
            },
            Fact::Letter { .. }
            | Fact::LetterClosed(_)
            | Fact::Enqueued(_)
            | Fact::Moved { .. }
            | Fact::Claimed(_)
            | Fact::Attempt { .. }
            | Fact::LeaseExpired(_)
            | Fact::Effect { .. }
            | Fact::Ended { .. } => {}
        }
    }
}

/// A rule about what somebody should look after begins to speak, which is a warning, or ceases to.
pub fn alert(notice: &Said) {
    let firing = &notice.firing;
    macro_rules! tell {
        ($level:expr) => {
            tracing::event!(
                target: TARGET,
                $level,
                alert = firing.rule.as_str(),
                resolved = notice.over,
                kind = firing.kind.as_deref().map(|k| display(Value(k))),
                job = firing.key.as_deref().map(|k| display(Value(k))),
                id = firing.job.map(|j| j.number()),
                topic = firing.topic.as_deref().map(|t| display(Value(t))),
                "{}",
                Value(&firing.text)
            )
        };
    }
    quietly(|| if notice.over { tell!(tracing::Level::INFO) } else { tell!(tracing::Level::WARN) });
}

/// Something else that a person should read.
pub fn warning(text: &str) {
    quietly(|| tracing::warn!(target: TARGET, "{}", Value(text)));
}

/// A message of the outbox does not go out by itself any more.
pub fn message_stuck(topic: &str, id: &str, why: &str, blocks: bool) {
    let then = if blocks { "its key waits behind it" } else { "the messages behind it go on" };
    quietly(|| {
        tracing::warn!(
            target: TARGET,
            topic = %Value(topic),
            id = %Value(id),
            "a message is stuck: {why}; {then}; look at jobs.outbox().stuck(..), then retry or discard it"
        );
    });
}

/// The database had an I/O error and is being reopened; requests wait.
pub fn heal_started(error: &dyn Display) {
    tracing::warn!(
        target: TARGET,
        error = display(Value(&error.to_string())),
        "the database had an I/O error: it is being reopened, requests wait and no job is harmed"
    );
}

/// The database is open again.
pub fn heal_ended(after_ms: u64) {
    tracing::warn!(target: TARGET, after_ms, "the database is open again: everything that waited goes on");
}

/// A sink panicked and was skipped for one batch of lines.
pub(super) fn sink_panicked(lines: usize) {
    tracing::error!(target: TARGET, lines, "a sink panicked while it was given lines; the jobs are not harmed");
}

/// Lines could not be written to a log file; said once until it works again.
pub(super) fn lines_held_back(error: &dyn Display) {
    tracing::error!(
        target: TARGET,
        error = display(Value(&error.to_string())),
        "the proof log cannot be written: lines are held back in memory; free space or mend the path"
    );
}

/// The log file can be written again, or is closed for ever.
pub(super) fn lines_lost(lost: u64, closed: bool) {
    match (lost, closed) {
        (0, _) => tracing::info!(target: TARGET, "the proof log is written again, no line was lost"),
        (lost, false) => tracing::error!(target: TARGET, lost, "the proof log is written again, but lines were lost"),
        (lost, true) => tracing::error!(target: TARGET, lost, "the proof log was closed before lines could be written"),
    }
}

struct Notes<'a>(&'a [(String, String)]);

impl Display for Notes<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, (name, value)) in self.0.iter().enumerate() {
            let gap = if i == 0 { "" } else { " " };
            write!(f, "{gap}{}={}", Name(name), Value(value))?;
        }
        Ok(())
    }
}

struct List<'a>(&'a [String]);

impl Display for List<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, text) in self.0.iter().enumerate() {
            let gap = if i == 0 { "" } else { " " };
            write!(f, "{gap}{}", Value(text))?;
        }
        Ok(())
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::committed::tests::{READY, Told};
    use super::*;
    use crate::model::attempt::Class;
    use crate::model::id::{EffectId, JobId};
    use crate::model::job::JobState;
    use crate::model::letter::Why;
    use crate::model::time::Wall;
    use parking_lot::Mutex;
    use std::collections::BTreeMap;
    use std::sync::Arc;
    use tracing::field::{Field, Visit};
    use tracing::{Event, Level, Metadata, Subscriber, span};

    /// One event as a subscriber sees it.
    #[derive(Debug)]
    pub(in crate::observe) struct Heard {
        pub(in crate::observe) level: Level,
        pub(in crate::observe) fields: BTreeMap<&'static str, String>,
    }

    #[derive(Clone, Default)]
    struct Ear(Arc<Mutex<Vec<Heard>>>);

    impl Visit for Heard {
        fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
            self.fields.insert(field.name(), format!("{value:?}"));
        }
        fn record_str(&mut self, field: &Field, value: &str) {
            self.fields.insert(field.name(), value.to_owned());
        }
    }

    impl Subscriber for Ear {
        fn enabled(&self, _: &Metadata<'_>) -> bool {
            true
        }
        fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
            span::Id::from_u64(1)
        }
        fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
        fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
        fn event(&self, event: &Event<'_>) {
            if event.metadata().target() != TARGET {
                return;
            }
            let mut heard = Heard { level: *event.metadata().level(), fields: BTreeMap::new() };
            event.record(&mut heard);
            self.0.lock().push(heard);
        }
        fn enter(&self, _: &span::Id) {}
        fn exit(&self, _: &span::Id) {}
    }

    /// What is said while `f` runs on this thread.
    pub(in crate::observe) fn heard(f: impl FnOnce()) -> Vec<Heard> {
        let ear = Ear::default();
        tracing::subscriber::with_default(ear.clone(), f);
        std::mem::take(&mut *ear.0.lock())
    }

    /// An attempt with everything known about it: each part is a field of its own.
    #[test]
    fn an_attempt_is_one_event_with_all_fields() {
        let mut line = AttemptLine::new(Wall(0), "complete-order", "ord_12", JobId(7), 2, Outcome::Retry);
        line.queue = "default".into();
        line.notes = vec![("rows".into(), "1".into()), ("note".into(), "a b".into())];
        line.step = Some("effect charge".into());
        line.owner = Some("worker-1".into());
        line.operation = vec!["ch_1".into(), "ch_2".into()];
        line.class = Some(Class::Transient);
        line.error = Some("503".into());
        line.duration_ms = Some(12);
        line.next = Some(Wall(60_000));
        let events = heard(|| attempt(&line));
        assert_eq!(events.len(), 1);
        assert_eq!(events[0].level, Level::INFO);
        for (field, value) in [
            ("message", "attempt ended"),
            ("job", "ord_12"),
            ("attempt", "2"),
            ("outcome", "retry"),
            ("notes", "rows=1 note=\"a b\""),
            ("kind", "complete-order"),
            ("id", "7"),
            ("queue", "default"),
            ("step", "\"effect charge\""),
            ("owner", "worker-1"),
            ("operation", "ch_1 ch_2"),
            ("class", "transient"),
            ("error", "503"),
            ("duration_ms", "12"),
            ("next", "1970-01-01T00:01:00Z"),
            ("continued", "false"),
        ] {
            assert_eq!(events[0].fields.get(field).map(String::as_str), Some(value), "{field}");
        }
        assert!(!events[0].fields.contains_key("token") && !events[0].fields.contains_key("given_back"));
    }

    /// The outcomes that need a person are warnings; a hostile key stays one escaped word in them.
    #[test]
    fn what_needs_a_person_is_a_warning_and_nothing_is_forged() {
        for (outcome, level) in [
            (Outcome::Success, Level::INFO),
            (Outcome::Waiting, Level::INFO),
            (Outcome::NeedsDecision, Level::WARN),
            (Outcome::Dead, Level::WARN),
        ] {
            let line = AttemptLine::new(Wall(0), "k", "x\n\u{1b}[31m outcome=success", JobId(7), 1, outcome);
            let events = heard(|| attempt(&line));
            assert_eq!(events[0].level, level);
            assert_eq!(events[0].fields["job"], r#""x\n\u{1b}[31m outcome\u{3d}success""#);
        }
    }

    /// A letter is announced when it is created, not each time something is learned about it; a conflict always is.
    #[test]
    fn letters_are_announced_once_and_conflicts_always() {
        let letter = || Fact::Letter { job: JobId(7), why: Why::TriesUsedUp };
        let conflict = Fact::Conflict { job: JobId(7), effect: EffectId { name: "charge".into(), part: "a".into() } };
        let created = Told::new(Some(READY), JobState::Dead, vec![letter()]);
        let changed = Told::new(Some(JobState::Dead), JobState::Dead, vec![letter(), conflict]);
        let events = heard(|| {
            news(&created.committed());
            news(&changed.committed());
        });
        let said: Vec<_> = events.iter().map(|e| (e.level, e.fields["job"].as_str())).collect();
        assert_eq!(said, [(Level::WARN, "ord_12"), (Level::ERROR, "ord_12")]);
        assert_eq!(events[0].fields["why"], "every automatic try failed");
        assert_eq!(events[1].fields["effect"], "charge/a");
    }

    /// Every warning is heard under our target and carries its figure.
    #[test]
    fn each_warning_is_heard_with_its_figure() {
        let events = heard(|| {
            heal_started(&"disk\nfull");
            heal_ended(1);
        });
        assert_eq!(events.len(), 2);
        assert!(events.iter().all(|e| e.level == Level::WARN && e.fields.contains_key("message")));
        assert_eq!(events[0].fields["error"], "\"disk\\nfull\"");
        assert_eq!(events[1].fields["after_ms"], "1");
    }
}
