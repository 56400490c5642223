//! Numbers by label and durations by fixed buckets: what [`counters`](super::counters) adds up and a snapshot shows.
//!
//! Keeps the promise that counting costs no allocation and never overflows: it saturates.

use serde::Serialize;
use std::collections::BTreeMap;

/// Upper bounds for attempts and waits, in microseconds: 10 ms to an hour.
pub(super) const ATTEMPTS: [u64; 7] = [10_000, 100_000, 1_000_000, 10_000_000, 60_000_000, 600_000_000, 3_600_000_000];
/// Upper bounds for commits, in microseconds: 0.25 ms to a second.
pub(super) const COMMITS: [u64; 8] = [250, 500, 1_000, 2_500, 5_000, 25_000, 100_000, 1_000_000];

/// One number for each of a fixed set of labels.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tally<const N: usize>([u64; N]);

impl<const N: usize> Default for Tally<N> {
    fn default() -> Self {
        Self([0; N])
    }
}

impl<const N: usize> Tally<N> {
    pub(super) fn add(&mut self, at: usize) {
        self.add_many(at, 1);
    }
    pub(super) fn add_many(&mut self, at: usize, n: u64) {
        if let Some(slot) = self.0.get_mut(at) {
            *slot = slot.saturating_add(n);
        }
    }
    pub(super) fn take_one(&mut self, at: usize) {
        if let Some(slot) = self.0.get_mut(at) {
            *slot = slot.saturating_sub(1);
        }
    }
    pub(super) fn absorb(&mut self, other: &Self) {
        self.0.iter_mut().zip(other.0).for_each(|(mine, theirs)| *mine = mine.saturating_add(theirs));
    }
    pub(super) fn sum(&self) -> u64 {
        self.0.iter().fold(0, |sum, n| sum.saturating_add(*n))
    }
    pub(super) fn at(&self, at: usize) -> u64 {
        self.0.get(at).copied().unwrap_or(0)
    }
    pub(super) fn named(&self, labels: [&'static str; N]) -> BTreeMap<&'static str, u64> {
        labels.into_iter().zip(self.0).collect()
    }
}

/// Durations by upper bound; the bounds are handed in, so that the counts stay small.
#[derive(Clone, Copy, Debug)]
pub(super) struct Histogram<const N: usize> {
    within: Tally<N>,
    count: u64,
    sum_micros: u64,
}

impl<const N: usize> Default for Histogram<N> {
    fn default() -> Self {
        Self { within: Tally::default(), count: 0, sum_micros: 0 }
    }
}

impl<const N: usize> Histogram<N> {
    pub(super) fn add(&mut self, bounds: &[u64; N], micros: u64) {
        self.within.add(bounds.partition_point(|bound| *bound < micros));
        self.count = self.count.saturating_add(1);
        self.sum_micros = self.sum_micros.saturating_add(micros);
    }
    pub(super) fn absorb(&mut self, other: &Self) {
        self.within.absorb(&other.within);
        self.count = self.count.saturating_add(other.count);
        self.sum_micros = self.sum_micros.saturating_add(other.sum_micros);
    }
    pub(super) fn show(&self, bounds: &[u64; N]) -> Durations {
        let mut so_far = 0u64;
        let buckets = bounds
            .iter()
            .enumerate()
            .map(|(i, bound)| {
                so_far = so_far.saturating_add(self.within.at(i));
                Bucket { le: seconds(*bound), count: so_far }
            })
            .collect();
        Durations { count: self.count, sum: seconds(self.sum_micros), buckets }
    }
}

/// Durations in seconds, as Prometheus shows a histogram.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Durations {
    /// How many.
    pub count: u64,
    /// All of them together.
    pub sum: f64,
    /// How many took at most so long; cumulative. The bucket without bound is `count`.
    pub buckets: Vec<Bucket>,
}

/// One bucket of [`Durations`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Bucket {
    /// The upper bound, included, in seconds.
    pub le: f64,
    /// How many took at most so long.
    pub count: u64,
}

#[expect(clippy::cast_precision_loss, reason = "past 285 years of microseconds the last digit does not matter")]
fn seconds(micros: u64) -> f64 {
    micros as f64 / 1e6
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A duration exactly on a bound belongs to it; longer ones than all bounds only to the count.
    #[test]
    fn buckets_are_cumulative_and_include_their_bound() {
        let mut commits = Histogram::default();
        for micros in [0, 250, 251, 1_000_000, 1_000_001, u64::MAX] {
            commits.add(&COMMITS, micros);
        }
        let shown = commits.show(&COMMITS);
        assert_eq!(shown.buckets.iter().map(|b| b.count).collect::<Vec<_>>(), [2, 3, 3, 3, 3, 3, 3, 4]);
        assert_eq!(shown.count, 6);
        assert!((shown.buckets[0].le - 0.00025).abs() < 1e-12);
        assert!(COMMITS.is_sorted() && ATTEMPTS.is_sorted());
    }

    /// Counters at their end stay there instead of starting anew.
    #[test]
    fn counts_saturate() {
        let mut tally = Tally::<2>::default();
        tally.add_many(0, u64::MAX);
        tally.add(0);
        tally.add(1);
        tally.add(2);
        assert_eq!((tally.at(0), tally.at(1), tally.at(2), tally.sum()), (u64::MAX, 1, 0, u64::MAX));
        let copy = tally;
        tally.absorb(&copy);
        assert_eq!(Vec::from_iter(tally.named(["a", "b"])), [("a", u64::MAX), ("b", 2)]);
    }
}
