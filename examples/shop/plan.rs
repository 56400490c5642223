//! What goes wrong, and when: decided from the seed alone, so that both shops meet the same faults and a run can be repeated.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Duration;

/// How many orders there are.
pub(crate) const ORDERS: u64 = 40;
/// How long a client waits for an answer.
pub(crate) const PATIENCE: Duration = Duration::from_millis(300);
/// How long a slow provider takes: what it was asked to do happens after the client has given up.
pub(crate) const SLOW: Duration = Duration::from_millis(500);

/// What a customer ordered.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Order {
    pub(crate) number: u64,
    pub(crate) cents: u64,
    pub(crate) mail: String,
    /// A courier takes it.
    pub(crate) express: bool,
}

/// What a provider does with a request, when it does not simply answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Does it, then closes the connection without an answer.
    LoseAnswer,
    /// Does it, but only after the client has given up.
    Slow,
    /// 503, and does nothing.
    Busy,
}

/// Where the shop's process is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Point {
    Charged,
    MarkPaid,
    Reserved,
    Finish,
    Mailed,
}

impl Point {
    pub(crate) fn says(self) -> &'static str {
        match self {
            Self::Charged => "after the charge, before the record",
            Self::MarkPaid => "while the payment was written down",
            Self::Reserved => "after the reservation, before the record",
            Self::Finish => "while the order was closed",
            Self::Mailed => "after the receipt was sent, before the record",
        }
    }
}

/// By order: what happens to its first request, its second, ...; later ones are simply answered.
type Faults = BTreeMap<u64, Vec<Fault>>;

/// The orders, every fault, every crash.
pub(crate) struct Plan {
    pub(crate) orders: Vec<Order>,
    pub(crate) charge: Faults,
    pub(crate) reserve: Faults,
    pub(crate) look_up: Faults,
    pub(crate) courier: Faults,
    /// At most one for an order.
    pub(crate) crashes: BTreeMap<u64, Point>,
}

impl Plan {
    pub(crate) fn of(seed: u64) -> Self {
        let mut draw = Draw(seed);
        let mut charge = Faults::new();
        let dealt = draw.shuffled();
        // One answer in five is lost; two customers have no luck twice.
        deal(&mut charge, &dealt[..8], Fault::LoseAnswer);
        deal(&mut charge, &dealt[..2], Fault::LoseAnswer);
        deal(&mut charge, &dealt[8..12], Fault::Slow);
        deal(&mut charge, &dealt[12..16], Fault::Busy);

        let (mut reserve, mut look_up) = (Faults::new(), Faults::new());
        let dealt = draw.shuffled();
        deal(&mut reserve, &dealt[..5], Fault::LoseAnswer);
        deal(&mut reserve, &dealt[5..8], Fault::Slow);
        deal(&mut reserve, &dealt[8..11], Fault::Busy);
        deal(&mut look_up, &dealt[3..6], Fault::Busy);

        let mut courier = Faults::new();
        let express = draw.shuffled()[..8].to_vec();
        deal(&mut courier, &express[..2], Fault::LoseAnswer);

        // The orders that end as a question are spared, so that it is the same question in every run.
        let mut to_crash = draw.shuffled();
        to_crash.retain(|n| !courier.contains_key(n));
        let points = [Point::Charged, Point::MarkPaid, Point::Reserved, Point::Charged, Point::Finish, Point::Mailed];
        let crashes = to_crash.into_iter().zip(points.into_iter().cycle()).take(10).collect();

        let order = |number| Order {
            number,
            cents: 500 + draw.below(9_500),
            mail: format!("customer{number}@example.org"),
            express: express.contains(&number),
        };
        Self { orders: (1..=ORDERS).map(order).collect(), charge, reserve, look_up, courier, crashes }
    }
}

/// What happens to the `nth` request (from 0) for an order.
pub(crate) fn fault(faults: &Faults, order: u64, nth: usize) -> Option<Fault> {
    faults.get(&order)?.get(nth).copied()
}

fn deal(faults: &mut Faults, orders: &[u64], fault: Fault) {
    for order in orders {
        faults.entry(*order).or_default().push(fault);
    }
}

/// SplitMix64: the same numbers for the same seed, on every machine.
struct Draw(u64);

impl Draw {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
    fn shuffled(&mut self) -> Vec<u64> {
        let mut all: Vec<u64> = (1..=ORDERS).collect();
        for (n, last) in (1..all.len()).zip(2..).collect::<Vec<(usize, u64)>>().into_iter().rev() {
            let other = usize::try_from(self.below(last)).unwrap_or(0);
            all.swap(n, other);
        }
        all
    }
}
