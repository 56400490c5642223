//! Which jobs still have rows, as spans of strips: what a merge may leave out. Keeps the promise that the entry of a job that has
//! rows is never dropped. Surveyed from the keys of `q/state` as they were before the round, a slice in each round.

use super::super::pack::STRIP;
use std::ops::Range;

/// What is known of a range of strips so far.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Living {
    /// Strips that have rows, neighbours joined.
    spans: Vec<Range<u64>>,
    /// Strips that nobody has looked at yet.
    left: Range<u64>,
}

impl Living {
    /// Nothing yet of these jobs.
    pub(super) fn of(jobs: &Range<u64>) -> Self {
        let left = if jobs.is_empty() { 0..0 } else { jobs.start / STRIP..(jobs.end - 1) / STRIP + 1 };
        Self { spans: Vec::new(), left }
    }
    /// Those to be looked at next, in order.
    pub(super) fn left(&self) -> Range<u64> {
        self.left.clone()
    }
    pub(super) fn is_known(&self) -> bool {
        self.left.is_empty()
    }
    /// This strip has rows, and none between it and the one before.
    pub(super) fn has(&mut self, strip: u64) {
        match self.spans.last_mut() {
            Some(last) if last.end == strip => last.end += 1,
            Some(_) | None => self.spans.push(strip..strip + 1),
        }
        self.left.start = strip + 1;
    }
    /// No strip after that one has rows.
    pub(super) fn ends(&mut self) {
        self.left.start = self.left.end;
    }
    /// Whether a job may have rows.
    pub(super) fn lives(&self, job: u64) -> bool {
        let strip = job / STRIP;
        let behind = self.spans.partition_point(|s| s.end <= strip);
        self.spans.get(behind).is_some_and(|s| s.contains(&strip))
    }
    /// How many jobs may have rows.
    pub(super) fn jobs(&self) -> u64 {
        self.spans.iter().map(|s| s.end - s.start).sum::<u64>().saturating_mul(STRIP)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Strips are surveyed one after the other: exactly those that were seen live.
    #[test]
    fn only_what_was_seen_lives() {
        let seen = [3, 4, 5, 9, 20, 21, 40];
        let mut living = Living::of(&(3 * STRIP + 7..40 * STRIP + 1));
        for strip in seen {
            assert!(!living.is_known() && living.left().contains(&strip));
            living.has(strip);
        }
        assert!(living.is_known(), "the last strip was the last one of the range");
        for strip in 0..60 {
            assert_eq!(living.lives(strip * STRIP + strip), seen.contains(&strip), "{strip}");
        }
        assert_eq!((living.jobs(), living.spans.len()), (7 * STRIP, 4));
        let mut none = Living::of(&(5..9));
        none.ends();
        assert!(none.is_known() && !none.lives(5));
    }
}
