//! One change after its commit, with the names that facts leave out: what lines, events and counters are made from.
//!
//! Keeps the promise that nothing is logged or counted that did not become durable: only a caller that got the commit's answer
//! can have one. Made by the engine.

use super::line::{AttemptLine, GaveBack};
use crate::model::attempt::{Outcome, Run};
use crate::model::fact::Fact;
use crate::model::id::{JobKey, Token};
use crate::model::job::{JobRecord, JobState};
use crate::model::letter::Entry;
use crate::model::time::Wall;

/// What became durable about one job with one change.
#[derive(Clone, Copy, Debug)]
pub struct Committed<'a> {
    /// When, by the calendar.
    pub at: Wall,
    /// The job's kind: a word of code, used as a label.
    pub kind: &'a str,
    /// Its queue: a word of code, used as a label.
    pub queue: &'a str,
    /// Its key: for lines only, never a label.
    pub key: &'a JobKey,
    /// Where it stood before; `None` for a new job.
    pub before: Option<&'a JobState>,
    /// How it stands now.
    pub record: &'a JobRecord,
    /// What was appended to its history.
    pub journal: &'a [Entry],
    /// What became true.
    pub facts: &'a [Fact],
    /// For a claim: how long it could have run before.
    pub wait_ms: Option<u64>,
    /// For the end of a claim: what the engine saw of it; absent when a dead process left it behind.
    pub run: Option<&'a Run>,
}

impl Committed<'_> {
    /// How the claim ended that ended with this change, if one did.
    pub fn outcome(&self) -> Option<Outcome> {
        self.facts.iter().find_map(|fact| match fact {
            Fact::Attempt { outcome, .. } => Some(*outcome),
            Fact::Enqueued(_)
            | Fact::Moved { .. }
            | Fact::Claimed(_)
            | Fact::LeaseExpired(_)
            | Fact::Effect { .. }
            | Fact::Conflict { .. }
            | Fact::Letter { .. }
            | Fact::LetterClosed(_)
            | Fact::Compensation { .. }
            | Fact::Ended { .. } => None,
        })
    }
    /// The line about the claim that ended with this change, if one did.
    pub fn line(&self) -> Option<AttemptLine> {
        self.facts.iter().find_map(|fact| {
            let Fact::Attempt { job, attempt, outcome, class, error, next, given_back: _ } = fact else { return None };
            let mut line = AttemptLine::new(self.at, self.kind, self.key.as_str(), *job, *attempt, *outcome);
            line.queue = self.queue.to_owned();
            line.token = self.token();
            line.class = *class;
            line.error.clone_from(error);
            line.next = *next;
            line.given_back = self.gave_back();
            line.continued = self.continued();
            if let Some(run) = self.run {
                line.owner = Some(run.owner.to_string());
                line.step.clone_from(&run.step);
                line.operation.clone_from(&run.operations);
                line.duration_ms = Some(run.duration_ms);
                line.notes.clone_from(&run.notes);
            }
            // What this very change proved, e.g. while a dead process's claim was looked at.
            line.operation.extend(self.references().filter(|r| !self.run_knows(r)).map(str::to_owned));
            Some(line)
        })
    }
    /// The token of the claim that ended.
    pub fn token(&self) -> Option<Token> {
        match self.before? {
            JobState::Running { token, .. } => Some(*token),
            JobState::Ready { .. }
            | JobState::Delayed { .. }
            | JobState::Waiting { .. }
            | JobState::NeedsDecision
            | JobState::Dead
            | JobState::Compensating { .. }
            | JobState::Ended { .. } => None,
        }
    }
    /// The claim that ended went on with an attempt that had been accounted for before.
    pub fn continued(&self) -> bool {
        matches!(self.before, Some(JobState::Running { continuing: true, .. }))
    }
    /// The claim that began goes on with an attempt that has been accounted for before.
    pub fn continues(&self) -> bool {
        matches!(self.record.state, JobState::Running { continuing: true, .. })
    }
    /// The claim still runs, and counts as an attempt of its own.
    pub fn begins_anew(&self) -> bool {
        matches!(self.record.state, JobState::Running { continuing: false, .. })
    }
    /// Why the claim that ended does not count as an attempt. The history says it, also where a letter followed at once.
    pub fn gave_back(&self) -> Option<GaveBack> {
        let noted = self.journal.iter().find_map(|entry| match entry {
            Entry::GivenBack { why, .. } => Some(reason(why)),
            Entry::Attempt { .. }
            | Entry::Intended { .. }
            | Entry::Effect { .. }
            | Entry::Strike { .. }
            | Entry::Decision { .. }
            | Entry::Checked { .. }
            | Entry::Forgotten { .. }
            | Entry::Restored { .. }
            | Entry::Proposed { .. }
            | Entry::UndoEnqueued { .. }
            | Entry::Undoes { .. }
            | Entry::Compensated { .. }
            | Entry::ProposalDropped { .. }
            | Entry::Message { .. }
            | Entry::ReviewLifted { .. }
            | Entry::Asked { .. } => None,
        });
        // The rules say "given back" of a continuing claim too: it was accounted for when it began, and has no reason of its own.
        let said = self.facts.iter().any(|fact| matches!(fact, Fact::Attempt { given_back: true, .. }));
        noted.or((said && !self.continued()).then_some(GaveBack::Other))
    }
    /// A person has been asked about this job already.
    pub fn was_asked(&self) -> bool {
        matches!(self.before, Some(JobState::NeedsDecision | JobState::Dead))
    }

    fn references(&self) -> impl Iterator<Item = &str> {
        self.facts.iter().filter_map(|fact| match fact {
            Fact::Effect { reference, .. } => reference.as_deref(),
            Fact::Enqueued(_)
            | Fact::Moved { .. }
            | Fact::Claimed(_)
            | Fact::Attempt { .. }
            | Fact::LeaseExpired(_)
            | Fact::Conflict { .. }
            | Fact::Letter { .. }
            | Fact::LetterClosed(_)
            | Fact::Compensation { .. }
            | Fact::Ended { .. } => None,
        })
    }
    fn run_knows(&self, reference: &str) -> bool {
        self.run.is_some_and(|run| run.operations.iter().any(|known| known == reference))
    }
}

/// The history keeps reasons in words, so that a person can read it; labels are fixed.
fn reason(why: &str) -> GaveBack {
    match why {
        "interrupted" => GaveBack::Interrupted,
        "snoozed" => GaveBack::Snoozed,
        "never started" | "unreadable" => GaveBack::NeverStarted,
        "settling" => GaveBack::Settled,
        "died beside others" => GaveBack::DiedBesideOthers,
        _ => GaveBack::Other,
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::model::attempt::Class;
    use crate::model::effect::EffectState;
    use crate::model::id::{EffectId, JobId, KindId};

    /// A change with everything owned, to borrow [`Committed`] from.
    pub(in crate::observe) struct Told {
        pub(in crate::observe) key: JobKey,
        pub(in crate::observe) before: Option<JobState>,
        pub(in crate::observe) record: JobRecord,
        pub(in crate::observe) journal: Vec<Entry>,
        pub(in crate::observe) facts: Vec<Fact>,
        pub(in crate::observe) run: Option<Run>,
    }

    pub(in crate::observe) const READY: JobState = JobState::Ready { ticket: 1 };

    pub(in crate::observe) fn running(continuing: bool) -> JobState {
        JobState::Running { token: Token(9), continuing }
    }

    impl Told {
        pub(in crate::observe) fn new(before: Option<JobState>, after: JobState, facts: Vec<Fact>) -> Self {
            let record = JobRecord::new(JobId(7), KindId(1), 0, after, None);
            Self { key: "ord_12".into(), before, record, journal: Vec::new(), facts, run: None }
        }
        pub(in crate::observe) fn claim(continuing: bool) -> Self {
            Self::new(Some(READY), running(continuing), vec![Fact::Claimed(JobId(7))])
        }
        pub(in crate::observe) fn end(continuing: bool, attempt: u32, outcome: Outcome, class: Option<Class>) -> Self {
            let error = class.map(|_| "no".to_owned());
            // As the rules say it: a continuing claim does not count as an attempt.
            let given_back = continuing;
            let fact = Fact::Attempt { job: JobId(7), attempt, outcome, class, error, next: None, given_back };
            let mut told = Self::new(Some(running(continuing)), READY, vec![fact]);
            told.run = Some(Run { owner: "worker-1".into(), duration_ms: 12, ..Run::default() });
            told
        }
        pub(in crate::observe) fn gave_back(mut self, why: &str) -> Self {
            self.journal.push(Entry::GivenBack { why: why.into(), count: 1, at: Wall(0) });
            self
        }
        pub(in crate::observe) fn and(mut self, fact: Fact) -> Self {
            self.facts.push(fact);
            self
        }
        pub(in crate::observe) fn committed(&self) -> Committed<'_> {
            Committed {
                at: Wall(1_789_210_882_000),
                kind: "complete-order",
                queue: "default",
                key: &self.key,
                before: self.before.as_ref(),
                record: &self.record,
                journal: &self.journal,
                facts: &self.facts,
                wait_ms: None,
                run: self.run.as_ref(),
            }
        }
    }

    /// A claim ended: its line has what the fact says, what the engine saw and the token of the claim.
    #[test]
    fn the_line_joins_fact_and_run() {
        let effect = EffectId { name: "charge".into(), part: String::new() };
        let proof = |reference: &str| Fact::Effect {
            job: JobId(7),
            effect: effect.clone(),
            state: EffectState::Confirmed,
            late: false,
            reference: Some(reference.into()),
        };
        let mut told = Told::end(true, 2, Outcome::Success, None).and(proof("ch_1")).and(proof("ch_2"));
        if let Some(run) = &mut told.run {
            run.operations = vec!["ch_1".into()];
            run.step = Some("effect charge".into());
            run.notes = vec![("rows".into(), "1".into())];
        }
        let line = told.committed().line().map(|line| line.to_string());
        assert_eq!(
            line.as_deref(),
            Some(
                "2026-09-12T11:01:22Z job=ord_12 attempt=2 outcome=success rows=1 kind=complete-order id=7 queue=default \
                 token=9 step=\"effect charge\" owner=worker-1 operation=ch_1 operation=ch_2 duration_ms=12 continued=true"
            )
        );
        assert!(Told::claim(false).committed().line().is_none(), "a claim that began has no line yet");
    }

    /// A shutdown finds an open call: a person is asked at once, and still the claim was no attempt.
    #[test]
    fn a_claim_given_back_is_said_so_also_when_a_letter_follows() {
        let told = Told::end(false, 1, Outcome::NeedsDecision, Some(Class::Unknown));
        assert_eq!(told.committed().gave_back(), None);
        let told = told.gave_back("interrupted");
        assert_eq!(told.committed().line().and_then(|line| line.given_back), Some(GaveBack::Interrupted));
        for (why, reason) in [
            ("snoozed", GaveBack::Snoozed),
            ("never started", GaveBack::NeverStarted),
            ("unreadable", GaveBack::NeverStarted),
            ("settling", GaveBack::Settled),
            ("died beside others", GaveBack::DiedBesideOthers),
            ("something newer", GaveBack::Other),
        ] {
            let told = Told::end(false, 1, Outcome::Interrupted, None).gave_back(why);
            assert_eq!(told.committed().gave_back(), Some(reason), "{why}");
        }
    }
}
