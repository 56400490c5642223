//! Claims that a dead process left behind, told apart at once when the file is opened: no timeout, no sweeper.
//!
//! A slot of the sidecar counts only if its token is the claim's: the same boot and another process make a suspect, the same
//! process or another boot an interruption, no slot at all means that the handler was never called.

use crate::handler::shared::{Changed, Shared};
use crate::handler::undo;
use crate::model::attempt::Evidence;
use crate::model::effect::EffectRecord;
use crate::model::id::{JobId, Token};
use crate::model::job::JobState;
use crate::planted::on;
use crate::rules::{Env, lifecycle};
use crate::store::{Op, Slot, StoreError, Write};
use std::sync::Arc;

/// What the sidecar says about each claim.
pub(crate) fn evidence(
    running: &[(JobId, Token)],
    slots: &[Slot],
    boot: [u8; 16],
    nonce: u64,
) -> Vec<(JobId, Token, Evidence)> {
    let slot_of = |job: JobId, token: Token| slots.iter().find(|s| s.job == job && s.token == token);
    // Also those whose claim is over: a handler that goes on after its `finish`, or after it was fenced, can kill its company.
    let alone = |of: &Slot| slots.iter().filter(|s| s.boot == of.boot && s.nonce == of.nonce).count() == 1;
    running
        .iter()
        .map(|&(job, token)| {
            let what = match slot_of(job, token) {
                None => Evidence::NeverStarted,
                Some(s) if (s.boot != boot || s.nonce == nonce) && !on("reboot-blamed") => Evidence::Interrupted,
                // A boot that cannot be named may have been another one: nobody gets a strike, but deaths stay bounded.
                Some(s) if s.boot == [0; 16] => Evidence::Suspect { alone: false },
                Some(s) => Evidence::Suspect { alone: alone(s) },
            };
            (job, token, what)
        })
        .collect()
}

/// Gives a slice of left-behind claims back, or buries them, in one commit.
pub(crate) struct RecoverOp {
    pub(crate) shared: Arc<Shared>,
    pub(crate) claims: Vec<(JobId, Token, Evidence)>,
    pub(crate) changes: Vec<Changed>,
    /// Told which of them are suspects now.
    pub(crate) answer: crate::handler::reply::Answer<Result<Vec<JobId>, StoreError>>,
}

impl Op for RecoverOp {
    fn run(&mut self, tx: &mut Write<'_>) -> Result<(), StoreError> {
        self.changes.clear();
        for (id, token, evidence) in &self.claims {
            let job = match tx.record(*id) {
                Ok(Some(job)) => job,
                Ok(None) | Err(StoreError::Corrupt { .. }) => {
                    self.shared
                        .report
                        .warn(&format!("job {id} was running and its record cannot be read: it is not run"));
                    continue;
                }
                Err(e) => return Err(e),
            };
            if !matches!(job.state, JobState::Running { token: t, .. } if t == *token) {
                continue;
            }
            let name = self.shared.kind_name(job.kind);
            // Also of a kind that this app does not know: what a call left open must not be forgotten with the job.
            let effects = match tx.effects(*id) {
                Ok(e) => e,
                Err(StoreError::Corrupt { what }) => {
                    self.shared.report.warn(&format!("job {id} is not run: {what}"));
                    continue;
                }
                Err(e) => return Err(e),
            };
            let now = self.shared.now();
            let calls = |r: &EffectRecord| self.shared.call_facts(*id, r, now);
            let env = Env { now, draw: self.shared.draw(), calls: &calls };
            let rules = self.shared.in_force(self.shared.rules_named(&name));
            if let Ok(change) = lifecycle::recover(&job, *evidence, &effects, &rules, &env) {
                let changed = super::ops::named(tx, &self.shared, change)?;
                self.changes.extend(undo::put(tx, &self.shared, changed, None)?);
            }
        }
        Ok(())
    }
    fn settle(self: Box<Self>, result: Result<(), StoreError>) {
        if result.is_ok() {
            for change in &self.changes {
                if let Some(JobState::Running { continuing, .. }) = change.change.before() {
                    self.shared.report.carried(&change.kind, *continuing);
                }
            }
            self.shared.report.changed(&self.changes);
        }
        let records = self.changes.iter().map(|c| c.change.record());
        let suspects = records.filter(|r| r.suspect).map(|r| r.id).collect();
        self.answer.send(result.map(|()| suspects));
    }
}

/// Carries a compensation on that was found when the file was opened.
pub(crate) struct CarryOnOp {
    pub(crate) shared: Arc<Shared>,
    pub(crate) job: JobId,
    pub(crate) changes: Vec<Changed>,
    pub(crate) answer: crate::handler::reply::Answer<Result<(), StoreError>>,
}

impl Op for CarryOnOp {
    fn run(&mut self, tx: &mut Write<'_>) -> Result<(), StoreError> {
        self.changes = undo::carry_on(tx, &self.shared, self.job)?;
        Ok(())
    }
    fn settle(self: Box<Self>, result: Result<(), StoreError>) {
        if result.is_ok() && !self.changes.is_empty() {
            self.shared.report.warn(&format!("undoing what job {} did had come to a halt: it goes on", self.job));
            self.shared.report.changed(&self.changes);
        }
        self.answer.send(result);
    }
}

/// The boot of this machine, as far as it can be told; zeroes where it cannot.
pub(crate) fn boot_id() -> [u8; 16] {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let hex: String = text.chars().filter(char::is_ascii_hexdigit).collect();
    u128::from_str_radix(&hex, 16).map_or([0; 16], u128::to_be_bytes)
}

/// Tells this process from every other one.
pub(crate) fn process_nonce() -> u64 {
    use std::sync::LazyLock;
    static NONCE: LazyLock<u64> = LazyLock::new(|| {
        let b = crate::model::id::random_bytes();
        let (head, _) = b.split_at(8);
        head.iter().fold(0, |n, &x| n << 8 | u64::from(x)) | 1
    });
    *NONCE
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: [u8; 16] = [7; 16];

    fn slot(n: u64, boot: [u8; 16], nonce: u64) -> Slot {
        Slot { job: JobId(n), token: Token(n), boot, nonce }
    }
    fn told(running: u64, slots: &[Slot], boot: [u8; 16]) -> Vec<Evidence> {
        let running: Vec<_> = (1..=running).map(|n| (JobId(n), Token(n))).collect();
        evidence(&running, slots, boot, 9).into_iter().map(|(_, _, what)| what).collect()
    }

    /// Two handlers ran; one had finished its job and was still at work when the process died. It may have been that one: the
    /// other gets no strike.
    #[test]
    fn a_handler_that_works_on_after_its_job_is_company() {
        let slots = [slot(1, HERE, 5), slot(44, HERE, 5)];
        assert_eq!(told(1, &slots, HERE), [Evidence::Suspect { alone: false }]);
        assert_eq!(told(1, &slots[..1], HERE), [Evidence::Suspect { alone: true }]);
        // What an older process left behind was not beside it.
        assert_eq!(told(1, &[slot(1, HERE, 5), slot(44, HERE, 4)], HERE), [Evidence::Suspect { alone: true }]);
    }

    /// The same process or another boot: nobody's fault. No slot: never called. A machine that cannot name its boots blames
    /// nobody, but a job that kills each process does not come back for nothing for ever.
    #[test]
    fn only_a_death_in_the_same_boot_makes_a_suspect() {
        let slots = [slot(1, HERE, 9), slot(2, [8; 16], 5)];
        assert_eq!(told(3, &slots, HERE), [Evidence::Interrupted, Evidence::Interrupted, Evidence::NeverStarted]);
        assert_eq!(told(1, &[slot(1, [0; 16], 5)], [0; 16]), [Evidence::Suspect { alone: false }]);
        assert_eq!(told(1, &[slot(1, [0; 16], 9)], [0; 16]), [Evidence::Interrupted]);
    }
}
