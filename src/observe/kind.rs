//! The counts of one kind, and which fact moves which of them.
//!
//! Keeps the promise that `attempts = claims - given back`, also across settled effects and restarts. Used by
//! [`counters`](super::counters) to count and by [`snapshot`](super::snapshot) to show.

use super::committed::Committed;
use super::histogram::{ATTEMPTS, Histogram, Tally};
use super::line::GaveBack;
use crate::model::attempt::{Class, Outcome};
use crate::model::effect::EffectState;
use crate::model::fact::{Compensation, Fact};
use crate::model::job::End;
use std::collections::BTreeMap;

/// The counts of one kind, indexed by label.
#[derive(Clone, Debug, Default)]
pub(super) struct Kind {
    pub(super) enqueued: u64,
    pub(super) claims: u64,
    pub(super) given_back: Tally<6>,
    pub(super) outcomes: Tally<9>,
    /// Ends of attempts: lines that were neither given back nor continued.
    pub(super) attempts_ended: u64,
    pub(super) retries: u64,
    pub(super) duplicates: Tally<3>,
    pub(super) failures: Tally<3>,
    pub(super) leases_expired: u64,
    pub(super) ended: Tally<5>,
    pub(super) compensations: Tally<3>,
    pub(super) effects: BTreeMap<String, Tally<5>>,
    pub(super) late_proofs: u64,
    pub(super) conflicts: u64,
    pub(super) letters_opened: u64,
    pub(super) letters_closed: u64,
    pub(super) durations: Histogram<{ ATTEMPTS.len() }>,
    pub(super) waits: Histogram<{ ATTEMPTS.len() }>,
}

impl Kind {
    pub(super) fn claim(&mut self, continuing: bool, claims: u64) {
        self.claims = self.claims.saturating_add(claims);
        // The rules count a continuing claim as given back when it is made: its attempt is accounted for.
        if continuing {
            self.given_back.add_many(GaveBack::Settled as usize, claims);
        }
    }

    pub(super) fn fact(&mut self, fact: &Fact, change: &Committed<'_>) {
        match fact {
            Fact::Enqueued(_) => bump(&mut self.enqueued),
            Fact::Moved { .. } => {}
            Fact::Claimed(_) => {
                self.claim(change.continues(), 1);
                if let Some(ms) = change.wait_ms {
                    self.waits.add(&ATTEMPTS, ms.saturating_mul(1000));
                }
            }
            Fact::Attempt { attempt, outcome, class, .. } => self.end(*attempt, *outcome, *class, change),
            Fact::LeaseExpired(_) => bump(&mut self.leases_expired),
            Fact::Effect { effect, state, late, .. } => {
                // Calling again made an attempt of its own out of a claim that only went on with one.
                if change.continued() && change.begins_anew() {
                    self.given_back.take_one(GaveBack::Settled as usize);
                }
                if !self.effects.contains_key(&effect.name) {
                    self.effects.insert(effect.name.clone(), Tally::default());
                }
                if let Some(results) = self.effects.get_mut(&effect.name) {
                    results.add(result_index(*state));
                }
                if *late {
                    bump(&mut self.late_proofs);
                }
            }
            Fact::Conflict { .. } => bump(&mut self.conflicts),
            Fact::Letter { .. } => {
                if !change.was_asked() {
                    bump(&mut self.letters_opened);
                }
            }
            Fact::LetterClosed(_) => bump(&mut self.letters_closed),
            Fact::Compensation { result, .. } => self.compensations.add(compensation_index(*result)),
            Fact::Ended { how, .. } => self.ended.add(end_index(*how)),
        }
    }

    fn end(&mut self, attempt: u32, outcome: Outcome, class: Option<Class>, change: &Committed<'_>) {
        self.outcomes.add(outcome_index(outcome));
        let gave_back = change.gave_back();
        match gave_back {
            // A continuing claim was counted as given back when it began.
            _ if change.continued() => {}
            Some(why) => self.given_back.add(why as usize),
            None => {
                bump(&mut self.attempts_ended);
                if attempt > 1 {
                    bump(&mut self.retries);
                }
            }
        }
        // Waiting for a settle time again and again is one failure, not many.
        if let Some(class) = class
            && (gave_back.is_none() || is_final(outcome))
        {
            self.failures.add(class_index(class));
        }
        if let Some(run) = change.run {
            self.durations.add(&ATTEMPTS, run.duration_ms.saturating_mul(1000));
        }
    }

    pub(super) fn absorb(&mut self, other: &Self) {
        for (mine, theirs) in [
            (&mut self.enqueued, other.enqueued),
            (&mut self.claims, other.claims),
            (&mut self.attempts_ended, other.attempts_ended),
            (&mut self.retries, other.retries),
            (&mut self.leases_expired, other.leases_expired),
            (&mut self.late_proofs, other.late_proofs),
            (&mut self.conflicts, other.conflicts),
            (&mut self.letters_opened, other.letters_opened),
            (&mut self.letters_closed, other.letters_closed),
        ] {
            *mine = mine.saturating_add(theirs);
        }
        self.given_back.absorb(&other.given_back);
        self.outcomes.absorb(&other.outcomes);
        self.duplicates.absorb(&other.duplicates);
        self.failures.absorb(&other.failures);
        self.ended.absorb(&other.ended);
        self.compensations.absorb(&other.compensations);
        self.durations.absorb(&other.durations);
        self.waits.absorb(&other.waits);
        for (name, results) in &other.effects {
            self.effects.entry(name.clone()).or_default().absorb(results);
        }
    }
}

fn bump(n: &mut u64) {
    *n = n.saturating_add(1);
}

fn is_final(outcome: Outcome) -> bool {
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

pub(super) fn outcome_index(outcome: Outcome) -> usize {
    match outcome {
        Outcome::Success => 0,
        Outcome::Retry => 1,
        Outcome::NotYet => 2,
        Outcome::Waiting => 3,
        Outcome::NeedsDecision => 4,
        Outcome::Dead => 5,
        Outcome::Interrupted => 6,
        Outcome::Cancelled => 7,
        Outcome::Compensating => 8,
    }
}

fn class_index(class: Class) -> usize {
    match class {
        Class::Transient => 0,
        Class::Permanent => 1,
        Class::Unknown => 2,
    }
}

fn result_index(state: EffectState) -> usize {
    match state {
        EffectState::Intended => 0,
        EffectState::Confirmed => 1,
        EffectState::Refused(_) => 2,
        EffectState::Unknown => 3,
        EffectState::Undone => 4,
    }
}

fn compensation_index(result: Compensation) -> usize {
    match result {
        Compensation::Complete => 0,
        Compensation::Partial => 1,
        Compensation::Stopped => 2,
    }
}

fn end_index(how: End) -> usize {
    match how {
        End::Done => 0,
        End::HandledOutside => 1,
        End::Discarded => 2,
        End::Cancelled => 3,
        End::Compensated => 4,
    }
}

#[cfg(test)]
mod tests {
    use super::super::line::{CLASSES, OUTCOMES};
    use super::*;

    /// Every place stands for the label that a snapshot shows there.
    #[test]
    fn labels_and_places_agree() {
        assert!(OUTCOMES.iter().enumerate().all(|(i, o)| outcome_index(*o) == i));
        assert!(CLASSES.iter().enumerate().all(|(i, c)| class_index(*c) == i));
        assert!(GaveBack::ALL.iter().enumerate().all(|(i, g)| *g as usize == i));
    }
}
