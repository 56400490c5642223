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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::effect::{Recovery, Risk};
    use crate::model::job::JobState;
    use crate::rules::fixture::{at, job, kind, ms};
    use std::time::Duration;

    fn rules() -> KindRules {
        kind(Recovery::ask(), Recovery::ask(), Risk::Charge)
    }

    /// Jobs that failed together come back at every moment up to the ceiling, and at none behind it; it doubles up to the cap.
    #[test]
    fn a_wait_is_any_moment_up_to_its_ceiling() {
        let backoff = Backoff::Exponential { first: ms(10), cap: ms(35) };
        for (n, ceiling) in [(0, 10), (1, 10), (2, 20), (3, 35), (64, 35), (65, 35), (u32::MAX, 35)] {
            let waits: Vec<u64> = (0..=ceiling + 1).map(|draw| backoff_ms(&backoff, n, draw)).collect();
            assert_eq!(waits, (0..=ceiling).chain([0]).collect::<Vec<_>>(), "retry {n}");
        }
        let steps = Backoff::steps([ms(10), ms(20)]);
        assert_eq!([0, 1, 2, 3, u32::MAX].map(|n| backoff_ms(&steps, n, 7)), [10, 10, 20, 20, 20]);
    }

    /// Two attempts are two, what a person grants comes on top, and a job is late only after the instant of its deadline.
    #[test]
    fn an_attempt_begins_within_its_number_and_its_deadline() {
        let mut job = job(JobState::Ready { ticket: 1 });
        for (attempts, granted, left) in
            [(0, 0, true), (1, 0, true), (2, 0, false), (3, 0, false), (2, 1, true), (3, 1, false)]
        {
            (job.attempts, job.granted) = (attempts, granted);
            assert_eq!(attempts_left(&job, &rules()), left, "{attempts} of 2 and {granted}");
        }
        (job.attempts, job.granted, job.deadline) = (1, 0, Some(Wall(100)));
        for (now, late) in [(99, false), (100, false), (101, true)] {
            assert_eq!((past_deadline(&job, Wall(now)), may_begin(&job, &rules(), Wall(now))), (late, !late), "{now}");
        }
        job.attempts = 2;
        assert!(!may_begin(&job, &rules(), Wall(99)), "in time, and none is left");
    }

    /// The provider asks for a pause: it is kept where it is the longer one, for a week at most, and nobody waits for an attempt
    /// that may not begin.
    #[test]
    fn a_pause_is_kept_for_a_week_at_most_and_never_past_the_deadline() {
        let mut job = job(JobState::Ready { ticket: 1 });
        job.attempts = 1;
        let next = |job: &JobRecord, class, retry_after| {
            after(job, &Failure { class, text: "no".into(), retry_after }, &rules(), at(50), 0)
        };
        for (asked, wait) in [(None, 10), (Some(ms(9)), 10), (Some(ms(11)), 11), (Some(Duration::MAX), 604_800_000)] {
            for class in [Class::Transient, Class::Unknown] {
                assert_eq!(next(&job, class, asked), Retry::In(wait), "{asked:?}");
            }
            assert_eq!(next(&job, Class::Permanent, asked), Retry::Stop(Why::Permanent));
        }
        for (deadline, expected) in [(60, Retry::In(10)), (59, Retry::Stop(Why::DeadlinePassed))] {
            job.deadline = Some(Wall(deadline));
            assert_eq!(next(&job, Class::Transient, None), expected);
        }
        job.attempts = 2;
        assert_eq!(
            next(&job, Class::Transient, None),
            Retry::Stop(Why::TriesUsedUp),
            "before the deadline is looked at"
        );
    }
}
