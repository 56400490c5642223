//! When to come back: backoff with jitter, retry-after, deadline, and when the tries are used up.

use crate::model::attempt::{Class, Failure};
use crate::model::job::JobRecord;
use crate::model::letter::Why;
use crate::model::policy::{Backoff, KindRules};
use crate::model::time::{Now, Wall, millis};

/// A provider may ask for a pause, but not for longer than this (7 days).
pub const MAX_RETRY_AFTER_MS: u64 = 7 * 24 * 3600 * 1000;

/// The answer to a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retry {
    /// Again, after this many ms.
    In(u64),
    /// Never by itself: a person decides.
    Stop(Why),
}

/// The wait before the `n`-th retry (from 1), in ms: within `[0, ceiling]` for exponential backoff, exact for steps.
pub fn backoff_ms(backoff: &Backoff, n: u32, draw: u64) -> u64 {
    match backoff {
        Backoff::Exponential { first, cap } => {
            let doubled = millis(*first).saturating_mul(1_u64.checked_shl(n.saturating_sub(1)).unwrap_or(u64::MAX));
            let ceiling = doubled.min(millis(*cap));
            // Full jitter: a uniform point of [0, ceiling], so that jobs that failed together do not come back together.
            ceiling.checked_add(1).map_or(draw, |width| draw % width)
        }
        Backoff::Steps(steps) => {
            let last = steps.len().saturating_sub(1);
            let at = usize::try_from(n.saturating_sub(1)).unwrap_or(last).min(last);
            steps.get(at).copied().map_or(0, millis)
        }
    }
}

/// Attempts that the job may have in all: the policy's and those that people granted.
pub fn limit(job: &JobRecord, rules: &KindRules) -> u32 {
    rules.max_attempts.saturating_add(job.granted)
}

/// Whether another attempt may begin at all.
pub fn attempts_left(job: &JobRecord, rules: &KindRules) -> bool {
    job.attempts < limit(job, rules)
}

/// Whether an attempt may begin at `at`: one is left, and the deadline has not passed.
pub fn may_begin(job: &JobRecord, rules: &KindRules, at: Wall) -> bool {
    attempts_left(job, rules) && !past_deadline(job, at)
}

/// No attempt begins after the deadline.
pub fn past_deadline(job: &JobRecord, at: Wall) -> bool {
    job.deadline.is_some_and(|deadline| at > deadline)
}

/// What to do after `failure`, when no effect is unresolved.
pub fn after(job: &JobRecord, failure: &Failure, rules: &KindRules, now: Now, draw: u64) -> Retry {
    match failure.class {
        Class::Permanent => Retry::Stop(Why::Permanent),
        Class::Transient | Class::Unknown => {
            if !attempts_left(job, rules) {
                return Retry::Stop(Why::TriesUsedUp);
            }
            let asked = failure.retry_after.map_or(0, millis).min(MAX_RETRY_AFTER_MS);
            let wait = backoff_ms(&rules.backoff, job.attempts, draw).max(asked);
            // Waiting for an attempt that may not begin would only delay the question to a person.
            if past_deadline(job, Wall(now.wall.0.saturating_add(wait))) {
                return Retry::Stop(Why::DeadlinePassed);
            }
            Retry::In(wait)
        }
    }
}
