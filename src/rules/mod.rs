//! Pure decisions: `(record, event, now, draw) -> Change | Refusal`.
//!
//! "Run again, give up, or ask" is decided here and nowhere else. No I/O, no clock, no randomness, no threads: time and chance
//! are arguments. A [`Change`] can only be built here; the store writes it, and the facts in it are reported after the commit.

pub mod admit;
pub mod compensate;
pub mod effect;
mod ending;
#[cfg(test)]
mod explore;
#[cfg(test)]
mod fixture;
#[cfg(any(test, feature = "testkit"))]
pub mod invariants;
mod learn;
pub mod letter;
pub mod lifecycle;
pub mod look;
mod moves;
pub mod older;
pub mod outbox;
mod proof;
mod recover;
pub mod retry;
pub mod review;
#[cfg(test)]
pub(crate) mod states;
pub mod undo;

use crate::model::effect::{EffectRecord, UndoJob};
use crate::model::fact::Fact;
use crate::model::id::{EffectId, JobKey, Token};
use crate::model::job::{JobRecord, JobState, Memo, State};
use crate::model::letter::{Entry, LetterRecord};
use crate::model::shown::Shown;
use crate::model::time::{Now, Wall};

/// What a decision wants written, all of it in one transaction. Every job makes three of them: what is rare is boxed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub struct Change {
    pub(crate) before: Option<JobState>,
    pub(crate) record: JobRecord,
    pub(crate) effects: Vec<EffectRecord>,
    pub(crate) memo: Option<Box<Memo>>,
    pub(crate) forget: Vec<String>,
    pub(crate) journal: Vec<Entry>,
    pub(crate) letter: LetterMove,
    pub(crate) prune: Option<Wall>,
    pub(crate) facts: Vec<Fact>,
    pub(crate) undo: Option<Box<UndoOrder>>,
    /// An effect that nobody was sure of is settled by this change.
    settled: bool,
    /// The claim that ends with this change was not an attempt after all.
    given_back: bool,
}

/// A job to be enqueued in the same transaction: it undoes an effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UndoOrder {
    /// What it undoes.
    pub effect: EffectId,
    /// The same in plain words.
    pub says: String,
    /// Its kind, version and payload.
    pub job: UndoJob,
    /// Its key: derived from the effect's, so that the same work asked for by a customer is another job.
    pub key: JobKey,
    /// When it was ordered.
    pub at: Wall,
}

/// What becomes of a job's letter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LetterMove {
    /// Nothing.
    Keep,
    /// It is created or replaced.
    Put(LetterRecord),
    /// It is answered.
    Remove,
}

impl Change {
    /// The state before; `None` for a new job.
    pub fn before(&self) -> Option<&JobState> {
        self.before.as_ref()
    }
    /// The record as it will stand.
    pub fn record(&self) -> &JobRecord {
        &self.record
    }
    /// Effect records to write.
    pub fn effects(&self) -> &[EffectRecord] {
        &self.effects
    }
    /// A step or commit to remember.
    pub fn memo(&self) -> Option<&Memo> {
        self.memo.as_deref()
    }
    /// Steps and commits that are no longer remembered.
    pub fn forget(&self) -> &[String] {
        &self.forget
    }
    /// Lines to append to the history.
    pub fn journal(&self) -> &[Entry] {
        &self.journal
    }
    /// What becomes of the letter.
    pub fn letter(&self) -> &LetterMove {
        &self.letter
    }
    /// It brings a letter where there was none: somebody has to be told.
    pub fn brings_letter(&self) -> bool {
        let was_asked = matches!(self.before, Some(JobState::NeedsDecision | JobState::Dead));
        matches!(self.letter, LetterMove::Put(_)) && !was_asked
    }
    /// The number of the attempt that failed with it.
    pub fn failed_attempt(&self) -> Option<u32> {
        self.facts.iter().find_map(|fact| match fact {
            Fact::Attempt { attempt, outcome, given_back: false, .. } => outcome.failed().then_some(*attempt),
            Fact::Attempt { .. }
            | Fact::Enqueued(_)
            | Fact::Moved { .. }
            | Fact::Claimed(_)
            | Fact::Ended { .. }
            | Fact::Letter { .. }
            | Fact::LetterClosed(_)
            | Fact::LeaseExpired(_)
            | Fact::Effect { .. }
            | Fact::Compensation { .. }
            | Fact::Conflict { .. } => None,
        })
    }
    /// When the rows of a job that ends with this change may be pruned; `None`: it does not end here, or is kept for ever; one in the
    /// trash that is kept for ever has [`Wall::NEVER`].
    pub fn prune(&self) -> Option<Wall> {
        self.prune
    }
    /// What becomes true with the commit.
    pub fn facts(&self) -> &[Fact] {
        &self.facts
    }

    /// A job to enqueue with it, which undoes an effect.
    pub fn undo(&self) -> Option<&UndoOrder> {
        self.undo.as_deref()
    }

    /// A bare move, for the tests of the store: no rule was asked.
    #[cfg(test)]
    pub(crate) fn bare(before: &JobRecord, to: JobState) -> Self {
        let mut change = Self::of(before);
        change.record.state = to;
        change
    }
    fn of(before: &JobRecord) -> Self {
        Self {
            before: Some(before.state.clone()),
            record: before.clone(),
            effects: Vec::new(),
            memo: None,
            forget: Vec::new(),
            journal: Vec::new(),
            letter: LetterMove::Keep,
            prune: None,
            facts: Vec::new(),
            undo: None,
            settled: false,
            given_back: false,
        }
    }
    fn move_to(&mut self, state: JobState) {
        let due = match &state {
            JobState::Delayed { due, .. } | JobState::Waiting { due, .. } => Some(*due),
            JobState::Ready { .. }
            | JobState::Running { .. }
            | JobState::NeedsDecision
            | JobState::Dead
            | JobState::Ended { .. }
            | JobState::Compensating { .. } => None,
        };
        self.facts.push(Fact::Moved { job: self.record.id, to: State::from(&state), due });
        self.record.state = state;
    }
    fn note(&mut self, entry: Entry) {
        self.journal.push(entry);
    }
}

/// Why an event cannot happen to a job as it stands.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Another claim, a decision or the job's end came first.
    #[error(
        "the lease is over: this attempt was fenced, and what it still tries to change is refused; return from the handler"
    )]
    Fenced,
    /// Tokens rise with every claim; this one is not above the last.
    #[error("the token {given} is not above {last}, the last one of this job: a claim needs a new token")]
    OldToken {
        /// The job's last token.
        last: Token,
        /// The one that was given.
        given: Token,
    },
    /// The job is not in a state in which this can happen.
    #[error("this cannot be done while the job is {0:?}{next}", next = instead(.0))]
    WrongState(State),
    /// A decision on an older view.
    #[error(
        "the letter changed since it was shown (revision {shown}, now {now}){}: look at it again and decide anew",
        what(.since)
    )]
    Stale {
        /// The revision that was shown.
        shown: u32,
        /// The revision now.
        now: u32,
        /// What happened since, in plain words.
        since: Vec<String>,
    },
    /// Every unresolved effect needs an answer first.
    #[error("say first whether these happened: {}", list(.0))]
    Unresolved(Vec<EffectId>),
    /// This is not one of the valid choices.
    #[error("not a valid choice here: {}", Shown(.0))]
    NotAChoice(String),
    /// Two people have to decide this, and the first one cannot be the second.
    #[error(
        "{} proposed this already, and the same person cannot agree to it: have another person look at the letter and agree, \
         or take the proposal back",
        Shown(.0)
    )]
    SecondPerson(String),
    /// There is nothing to agree to, or to take back.
    #[error("nobody has proposed anything about this letter: look at it again, and decide it")]
    NoProposal,
    /// The result of an effect is asked for, and this answer does not bring it: nothing was changed.
    #[error(
        "the result of {} is asked for, and it cannot be rebuilt {}: say that it happened with its reference at the provider, \
         or end the job: handled outside, discard, or undo", Shown(&.effect.to_string()), from(.known)
    )]
    NeedsReference {
        /// Which effect.
        effect: EffectId,
        /// The reference that is known, and does not help.
        known: Option<String>,
    },
    /// Calls are still running.
    #[error("a call of {} is still running: wait for its end", Shown(&.0.to_string()))]
    CallRunning(EffectId),
    /// The provider is being asked about it.
    #[error(
        "the provider is still being asked about {}, and an earlier question that got no answer in time counts: wait for that, or \
         look it up yourself and decide; a probe that never returns ends with its process", Shown(&.0.to_string())
    )]
    CheckRunning(EffectId),
    /// Effects without an answer forbid ending as success.
    #[error("the job cannot end as success before these are answered: {}", list(.0))]
    Gate(Vec<EffectId>),
}

fn instead(state: &State) -> &'static str {
    match state {
        State::Dead | State::NeedsDecision => ": decide its dead letter first (Jobs::dead_letter, Jobs::decide)",
        State::Ready | State::Delayed | State::Running | State::Waiting | State::Paused => {
            ": wait for its end, or cancel it"
        }
        State::Compensating => ": what it did is being undone, wait for its end",
        State::Discarded => ": it is over, and in the trash while its rows are kept (Jobs::trash, Jobs::restore)",
        State::Done | State::Cancelled | State::HandledOutside | State::Compensated | State::Remembered => {
            ": it is over; the same work once more needs a key of its own"
        }
    }
}

/// What a result cannot be rebuilt from.
fn from(known: &Option<String>) -> String {
    match known {
        None => "without a reference".to_owned(),
        Some(known) => format!("from the reference {}", Shown(known)),
    }
}

/// What changed since, as the middle of a sentence.
fn what(since: &[String]) -> String {
    if since.is_empty() { String::new() } else { format!("; since then: {}", since.join("; ")) }
}

fn list(ids: &[EffectId]) -> String {
    let ids = ids.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    Shown(&ids).to_string()
}

/// What is known about the calls of one effect, at the moment of a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallFacts {
    /// An earlier call is still inside its performer, for this many ms.
    pub running_ms: Option<u64>,
    /// Monotonic ms since the last call surely ended; since the process start if that is later. Counts only while none runs.
    pub quiet_ms: u64,
    /// Wall ms since the first call under the present key; `None` if the clock is not trustworthy: the key counts as over.
    pub key_age_ms: Option<u64>,
}

/// Time, chance and facts of one decision.
#[derive(Clone, Copy)]
pub struct Env<'a> {
    /// Both clocks.
    pub now: Now,
    /// A uniformly drawn number, for jitter.
    pub draw: u64,
    /// What is known about an effect's calls.
    pub calls: &'a dyn Fn(&EffectRecord) -> CallFacts,
}

#[cfg(test)]
mod tests {
    use super::fixture::{id, job, token};
    use super::*;
    use crate::model::attempt::{Class, Outcome};
    use crate::model::id::{JobId, Lease};
    use crate::model::letter::{Question, Why};

    /// Somebody is told when a letter comes. One that only changes was told before.
    #[test]
    fn a_letter_is_brought_once() {
        let letter = LetterRecord {
            why: Why::Permanent,
            created: Wall(0),
            class: Class::Permanent,
            error: "oops".into(),
            questions: vec![Question::WhatNow],
            proposed: None,
        };
        for (before, asked) in
            [(JobState::Ready { ticket: 1 }, false), (JobState::NeedsDecision, true), (JobState::Dead, true)]
        {
            let mut change = Change::of(&job(before.clone()));
            assert_eq!(change.before(), Some(&before));
            for (letter, brings) in
                [(LetterMove::Keep, false), (LetterMove::Remove, false), (LetterMove::Put(letter.clone()), !asked)]
            {
                change.letter = letter;
                assert_eq!(change.brings_letter(), brings, "{:?}, {:?}", change.before(), change.letter());
            }
        }
    }

    /// Of the facts of a commit only a failure that counts as an attempt is one that failed, under its own number.
    #[test]
    fn only_an_attempt_that_counts_has_failed() {
        let line = |outcome, given_back| Fact::Attempt {
            job: JobId(1),
            attempt: 3,
            outcome,
            class: None,
            error: None,
            next: None,
            given_back,
        };
        for (outcome, given_back, failed) in [
            (Outcome::Retry, false, Some(3)),
            (Outcome::Dead, false, Some(3)),
            (Outcome::Retry, true, None),
            (Outcome::Success, false, None),
            (Outcome::Waiting, false, None),
        ] {
            let mut change = Change::of(&job(JobState::Ready { ticket: 1 }));
            assert_eq!(change.failed_attempt(), None);
            change.facts = vec![Fact::LeaseExpired(JobId(1)), line(outcome, given_back), Fact::Claimed(JobId(1))];
            assert_eq!(change.failed_attempt(), failed, "{outcome:?} {given_back}");
        }
    }

    /// Each thing that a job remembers has the number after the last one.
    #[test]
    fn what_is_remembered_is_numbered() {
        let mut running = job(JobState::Running { token: token(3), continuing: false });
        running.memos = 2;
        let memo = Memo { name: "charge".into(), commit: true, value: b"1".to_vec(), number: 0 };
        let lease = Lease { job: running.id, token: token(3) };
        let change = lifecycle::remember(&running, &lease, memo.clone()).expect("a live lease");
        assert_eq!(change.memo(), Some(&Memo { number: 2, ..memo.clone() }));
        assert_eq!(change.record().memos, 3);
        let over = lifecycle::remember(&running, &Lease { token: token(2), ..lease }, memo);
        assert_eq!(over, Err(Refusal::Fenced));
    }

    /// A refusal says what to do instead.
    #[test]
    fn a_refusal_tells_the_next_step() {
        let of = |name: &str| id(name);
        for (refusal, text) in [
            (
                Refusal::WrongState(State::Dead),
                "this cannot be done while the job is Dead: decide its dead letter first",
            ),
            (Refusal::WrongState(State::Waiting), "while the job is Waiting: wait for its end, or cancel it"),
            (Refusal::WrongState(State::Compensating), "what it did is being undone, wait for its end"),
            (
                Refusal::WrongState(State::Discarded),
                "in the trash while its rows are kept (Jobs::trash, Jobs::restore)",
            ),
            (Refusal::WrongState(State::Done), "the same work once more needs a key of its own"),
            (
                Refusal::Stale { shown: 1, now: 3, since: vec!["a happened".into(), "bob proposed".into()] },
                "(revision 1, now 3); since then: a happened; bob proposed: look at it again",
            ),
            (Refusal::Stale { shown: 1, now: 3, since: vec![] }, "(revision 1, now 3): look at it again"),
            (Refusal::Unresolved(vec![of("a"), of("b")]), "say first whether these happened: a, b"),
            (Refusal::Gate(vec![of("a")]), "before these are answered: a"),
            (
                Refusal::NeedsReference { effect: of("a"), known: None },
                "the result of a is asked for, and it cannot be rebuilt without a reference: say",
            ),
            (
                Refusal::NeedsReference { effect: of("a"), known: Some("op".into()) },
                "it cannot be rebuilt from the reference op: say",
            ),
        ] {
            assert!(refusal.to_string().contains(text), "{refusal}");
        }
    }
}
