//! Time: no instant or wait overflows, none comes early, backoff stays within its ceiling, and the wheel loses nothing that is due.

use super::Reader;
use crate::clock::{Clock, ManualClock};
use crate::model::attempt::{Class, Failure};
use crate::model::id::{JobId, KindId};
use crate::model::job::{JobRecord, JobState};
use crate::model::policy::{Backoff, Policy};
use crate::model::time::{Mono, Now, Wall, millis};
use crate::observe::stamp::{self, Zone};
use crate::rules::retry::{self, MAX_RETRY_AFTER_MS, Retry};
use crate::wheel::{Wheel, WheelKey};
use std::collections::BTreeMap;
use std::time::Duration;

/// The bytes as instants, waits and moves of a wheel.
pub fn time(bytes: &[u8]) -> usize {
    let mut r = Reader::new(bytes);
    let (a, b) = (r.number(), r.number());
    let wait = duration(&mut r);
    instants(a, b, wait);
    by_hand(a, &mut r);
    retries(a, &mut r);
    wheel(a, &mut r)
}

fn duration(r: &mut Reader<'_>) -> Duration {
    let nanos = u32::try_from(r.number() % 1_000_000_000).unwrap_or(0);
    Duration::new(r.number(), nanos)
}

fn instants(a: u64, b: u64, wait: Duration) {
    let ms = millis(wait);
    let exact = wait.as_nanos();
    assert!(u128::from(ms) * 1_000_000 >= exact || ms == u64::MAX, "{wait:?} is cut to {ms} ms");
    assert!(u128::from(ms) * 1_000_000 < exact + 1_000_000, "{wait:?} is stretched to {ms} ms");
    assert_eq!(Wall(a).after(wait), Wall(a.saturating_add(ms)));
    assert_eq!(Mono(a).after(wait), Mono(a.saturating_add(ms)));
    assert_eq!(Wall(a).since(Wall(b)), a.saturating_sub(b));
    assert_eq!(Mono(a).since(Mono(b)), a.saturating_sub(b));
    let there = Wall::from_system(Wall(a).to_system());
    assert!(there == Wall(a) || there == Wall(0), "{a} became {there:?}");
    assert_eq!(stamp::parse(&Zone::utc().text(Wall(a))), Some(Wall(a / 1_000 * 1_000)));
}

/// A clock that is moved by hand never runs over, and only the calendar goes back.
fn by_hand(start: u64, r: &mut Reader<'_>) {
    let clock = ManualClock::at(Wall(start));
    for _ in 0..r.below(6) {
        let before = clock.read();
        match r.below(3) {
            0 => clock.advance(duration(r)),
            1 => clock.suspend(duration(r)),
            _ => clock.jump_wall(r.number().cast_signed()),
        }
        let after = clock.read();
        assert!(after.0.mono >= before.0.mono && after.1 >= before.1);
    }
}

fn retries(wall: u64, r: &mut Reader<'_>) {
    let backoff = if r.flag() {
        Backoff::exponential(duration(r), duration(r))
    } else {
        Backoff::Steps((0..r.below(5)).map(|_| duration(r)).collect())
    };
    let (n, draw) = (u32::try_from(r.number() & u64::from(u32::MAX)).unwrap_or(0), r.number());
    let waits = retry::backoff_ms(&backoff, n, draw);
    match &backoff {
        Backoff::Exponential { first, cap } => {
            let doubled = u128::from(millis(*first)) << n.saturating_sub(1).min(64);
            assert!(u128::from(waits) <= doubled.min(u128::from(millis(*cap))), "{backoff:?} {n} {draw}: {waits}");
        }
        Backoff::Steps(steps) => {
            let at = usize::try_from(n.saturating_sub(1)).unwrap_or(usize::MAX).min(steps.len().saturating_sub(1));
            assert_eq!(waits, steps.get(at).map_or(0, |d| millis(*d)), "{backoff:?} {n}");
        }
    }
    let retries = u32::from(r.byte());
    let rules = Policy::default().retries(retries).backoff(backoff).resolve(&[]);
    let deadline = r.flag().then(|| Wall(r.number()));
    let mut job = JobRecord::new(JobId(1), KindId(1), 0, JobState::Dead, deadline);
    job.attempts = n;
    job.granted = u32::from(r.byte());
    let class = if r.flag() { Class::Transient } else { Class::Unknown };
    let failure = Failure { class, text: String::new(), retry_after: r.flag().then(|| duration(r)) };
    let now = Now { wall: Wall(wall), mono: Mono(0) };
    match retry::after(&job, &failure, &rules, now, draw) {
        Retry::In(ms) => {
            assert!(job.attempts <= retries.saturating_add(job.granted), "{job:?}");
            assert!(ms >= failure.retry_after.map_or(0, millis).min(MAX_RETRY_AFTER_MS) && ms >= waits);
            // It comes back, and at a time at which it may begin.
            assert!(retry::may_begin(&job, &rules, Wall(wall.saturating_add(ms))));
        }
        Retry::Stop(_) => {
            let late =
                deadline.is_some_and(|at| Wall(wall).after(Duration::from_millis(waits.max(MAX_RETRY_AFTER_MS))) > at);
            assert!(late || job.attempts > retries.saturating_add(job.granted), "{job:?} {failure:?}");
        }
    }
}

/// What the wheel has to agree with: a map in the order of due time and insertion.
#[derive(Default)]
struct Model {
    now_ms: u64,
    waiting: BTreeMap<(u64, u64), WheelKey>,
    gone: Vec<WheelKey>,
}

impl Model {
    fn due(&mut self, now_ms: u64) -> Vec<(u64, u64)> {
        self.now_ms = self.now_ms.max(now_ms);
        let later = self.now_ms.checked_add(1).map(|ms| self.waiting.split_off(&(ms, 0)));
        let due = std::mem::replace(&mut self.waiting, later.unwrap_or_default());
        self.gone.extend(due.values());
        due.into_keys().collect()
    }
}

fn wheel(start: u64, r: &mut Reader<'_>) -> usize {
    let mut model = Model { now_ms: start, ..Model::default() };
    let mut wheel = Wheel::new(start);
    let (mut number, mut moves) = (0, 0);
    while !r.is_empty() && moves < 2_000 {
        moves += 1;
        match r.below(8) {
            0..=2 => {
                let ms = if r.flag() { model.now_ms.saturating_add(r.number()) } else { r.number() };
                model.waiting.insert((ms, number), wheel.insert(ms, number));
                number += 1;
            }
            3 => {
                let at = r.below(model.waiting.len());
                if let Some(place) = model.waiting.keys().nth(at).copied()
                    && let Some(key) = model.waiting.remove(&place)
                {
                    assert_eq!(wheel.remove(key), Some(place.1));
                    model.gone.push(key);
                }
            }
            4 => {
                if let Some(key) = r.one(&model.gone) {
                    assert_eq!(wheel.remove(key), None, "a key that was used up");
                }
            }
            5 => {
                assert_eq!(wheel.drain(), model.due(u64::MAX));
                model.now_ms = 0;
            }
            6 => {
                // Whoever sleeps from one `next_due` to the next comes to the first entry, and past nothing.
                let mut fired = Vec::new();
                for _ in 0..11 {
                    let Some(ms) = wheel.next_due().filter(|_| fired.is_empty()) else { break };
                    wheel.advance(ms, &mut fired);
                    assert_eq!(fired, model.due(ms));
                }
                assert!(!fired.is_empty() || model.waiting.is_empty());
            }
            _ => {
                let ms = if r.flag() { model.now_ms.saturating_add(r.number()) } else { r.number() };
                let mut fired = Vec::new();
                wheel.advance(ms, &mut fired);
                assert_eq!(fired, model.due(ms));
            }
        }
        assert_eq!(wheel.len(), model.waiting.len());
        let earliest = model.waiting.keys().next().map(|(ms, _)| (*ms).max(model.now_ms));
        let next = wheel.next_due();
        assert!(next.is_some() == earliest.is_some() && next <= earliest && next.is_none_or(|ms| ms >= model.now_ms));
    }
    assert_eq!(wheel.drain(), model.due(u64::MAX), "nothing is lost");
    moves
}
