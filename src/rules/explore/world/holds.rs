//! What must hold in every state that a world comes to, and of every change on the way to it.

use super::{Setting, World};
use crate::model::attempt::AttemptEnd;
use crate::model::effect::{EffectRecord, EffectState, Refusal as NotHappened};
use crate::model::fact::Fact;
use crate::model::id::{EffectId, Lease, Token};
use crate::model::job::{End, JobState};
use crate::rules::{Change, Refusal, invariants, lifecycle};

impl World {
    /// An undo job was ordered: one at a time, the last confirmed first, beside nothing that is unknown or under way.
    pub(super) fn check_undo(&mut self, effect: &EffectId) {
        assert!(self.undoing.is_none(), "two undo jobs at a time");
        assert!(self.calls.is_empty() && self.hand.is_none(), "something is undone beside a call that still runs");
        assert!(self.effects.iter().all(|e| !e.state.is_unresolved()), "something is undone past an unknown effect");
        let this = self.effects.iter().find(|e| e.id == *effect).expect("it has a record");
        let later = |e: &&EffectRecord| {
            e.state == EffectState::Confirmed && e.undo.is_some() && !e.is_taken_back() && e.confirmed > this.confirmed
        };
        assert_eq!(self.effects.iter().find(later), None, "the last confirmed is undone first");
        self.undoing = Some(effect.clone());
    }

    /// Nobody can stop a provider from contradicting a person when all is over; that is said loudly, once. Before, it is no success.
    pub(super) fn check_contradictions(&self, change: &Change) {
        if change.record().state.end() != Some(End::Done) {
            return;
        }
        let was_over = self.job.state.end() == Some(End::Done);
        let had = |id: &EffectId| self.effects.iter().any(|e| e.id == *id && e.conflict);
        let unchanged = self.effects.iter().filter(|e| !change.effects().iter().any(|new| new.id == e.id));
        for e in change.effects().iter().chain(unchanged).filter(|e| e.conflict) {
            let said = change.facts().iter().any(|f| matches!(f, Fact::Conflict { effect, .. } if *effect == e.id));
            assert!(was_over, "success beside an effect of which two accounts differ");
            assert!(said || had(&e.id), "a late contradiction nobody hears of");
        }
    }

    pub(super) fn check(&self, s: &Setting<'_>) {
        let broken = invariants::broken(&self.job, &self.effects, self.letter.as_ref(), s.rules);
        assert!(broken.is_empty(), "{broken:?}");
        let (running, continuing) = match self.job.state {
            JobState::Running { continuing, .. } => (true, continuing),
            JobState::Ready { .. }
            | JobState::Delayed { .. }
            | JobState::Waiting { .. }
            | JobState::NeedsDecision
            | JobState::Dead
            | JobState::Compensating { .. }
            | JobState::Ended { .. } => (false, false),
        };
        assert_eq!(running, self.hand.is_some(), "running means that a handler has it");
        let told = self.counted + u32::from(running && !continuing);
        assert_eq!(told, self.job.attempts, "attempts are the lines that were not given back");
        if self.job.state.end() == Some(End::Done) {
            let settled = |e: &EffectRecord| !e.state.is_unresolved();
            assert!(self.effects.iter().all(settled), "success beside an effect that is not accounted for");
            assert!(self.undone.is_empty(), "a job of which something was undone succeeded");
        }
        self.check_stale(s);
    }

    /// An old token changes nothing.
    fn check_stale(&self, s: &Setting<'_>) {
        let live = self.hand.as_ref().map(|h| h.lease.token);
        for n in (1..=self.token).rev().take(2) {
            let lease = Lease { job: self.job.id, token: Token(n) };
            if live == Some(lease.token) {
                continue;
            }
            let end =
                self.env(|env| lifecycle::end(&self.job, &lease, AttemptEnd::Success, &self.effects, s.rules, env));
            assert_eq!(end.err(), Some(Refusal::Fenced));
            assert_eq!(lifecycle::may_finish(&self.job, &lease, &self.effects, s.rules), Err(Refusal::Fenced));
        }
    }
}

/// Keys and requests stay together; a generation rises only out of a refusal or a person's word.
pub(super) fn check_effect(old: &EffectRecord, new: &EffectRecord) {
    if new.generation == old.generation {
        assert!(new.key == old.key && new.request == old.request, "one generation, one key, one request");
    } else {
        let allowed =
            matches!(old.state, EffectState::Refused(NotHappened::Said | NotHappened::Person { new_key: true }));
        assert!(
            allowed && new.generation == old.generation + 1 && new.key != old.key,
            "a generation rose out of {:?}",
            old.state
        );
    }
    if old.state == EffectState::Confirmed
        && new.state == EffectState::Confirmed
        && !old.conflict
        && !new.accept_changed
    {
        assert_eq!(old.result, new.result, "one confirmation is kept");
    }
}
