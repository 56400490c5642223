//! Races that matter: each story runs in many orders of threads, drawn from a seed, and what was promised holds in every one of them.
//!
//! `ONCEWARD_SCHEDULES` says how many orders of each sort (100 unless told), `ONCEWARD_BLOCK` with which block of a hundred to begin:
//! a failure names its block as the seed. A story counts what it saw, and fails if it never saw what it is about.

mod alerts;
mod cancel;
mod clock;
mod lease;
mod letters;
mod pause;
mod relay;
mod shutdown;
mod workers;
mod writer;

use onceward::testkit::{ManualClock, Order, Ran, SimDisk, run, run_until_idle};
use onceward::{Builder, JobId, Jobs, State};
use shuttle::sync::{Condvar, Mutex, MutexGuard};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

/// Longer than anything takes: it passes only when nobody can go on.
const PATIENCE: Duration = Duration::from_secs(60);
const SECOND: Duration = Duration::from_secs(1);
/// Orders that share a seed: so many runs lead to a failure again.
const BLOCK: usize = 100;
/// With fewer schedules nobody can expect to have seen everything.
const ENOUGH: usize = 100;
/// Two sorts of random orders for few threads, which need few changes to go wrong.
const FEW: [Order; 3] = [Order::Random, Order::Pct(2), Order::Pct(3)];
const MANY: [Order; 2] = [Order::Random, Order::Pct(3)];

fn from_env(name: &str, otherwise: usize) -> usize {
    std::env::var(name).ok().and_then(|n| n.parse().ok()).unwrap_or(otherwise)
}

/// One schedule of a story: its number, from which the story draws, and what all of them count.
struct Schedule {
    number: usize,
    tally: Tally,
}

impl Schedule {
    /// A number below `n` that follows from that of the schedule; `what` keeps draws of one schedule apart.
    fn draw(&self, what: u64, n: u64) -> u64 {
        let mixed = (self.number as u64 ^ what.wrapping_mul(0x9e37_79b9_7f4a_7c15)).wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % n
    }
    /// One of these.
    fn pick<T: Clone, const N: usize>(&self, what: u64, of: [T; N]) -> T {
        of[usize::try_from(self.draw(what, N as u64)).unwrap()].clone()
    }
    fn saw(&self, what: &'static str) {
        self.tally.saw(what);
    }
}

/// How often something was seen, over all schedules.
#[derive(Clone, Default)]
struct Tally(Arc<std::sync::Mutex<BTreeMap<&'static str, u64>>>);

impl Tally {
    fn all(&self) -> std::sync::MutexGuard<'_, BTreeMap<&'static str, u64>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
    fn saw(&self, what: &'static str) {
        *self.all().entry(what).or_default() += 1;
    }
}

/// Tells a story in every sort of order, and fails unless each of `must` was seen in some schedule.
fn explore(name: &str, orders: &[Order], must: &[&str], story: impl Fn(&Schedule) + Send + Sync + 'static) {
    let (times, first) = (from_env("ONCEWARD_SCHEDULES", 100), from_env("ONCEWARD_BLOCK", 0));
    let (story, tally, mut all) = (Arc::new(story), Tally::default(), Ran::default());
    for order in orders {
        let mut left = times;
        for block in first.. {
            let now = left.min(BLOCK);
            if now == 0 {
                break;
            }
            let (story, tally, next) = (story.clone(), tally.clone(), AtomicUsize::new(block * BLOCK));
            let ran = run(*order, block as u64, now, move || {
                story(&Schedule { number: next.fetch_add(1, Ordering::Relaxed), tally: tally.clone() });
            });
            (all.schedules, all.steps, left) = (all.schedules + ran.schedules, all.steps + ran.steps, left - now);
        }
    }
    let seen = tally.all();
    let list: Vec<_> = seen.iter().map(|(what, n)| format!("{what} {n}")).collect();
    println!("schedules: {name}: {} schedules, {} steps; {}", all.schedules, all.steps, list.join(", "));
    assert_eq!(all.schedules, (times * orders.len()) as u64, "{name}: every schedule was run to its end");
    let missed: Vec<_> = must.iter().filter(|what| !seen.contains_key(**what)).collect();
    assert!(times < ENOUGH || missed.is_empty(), "{name}: never seen in any schedule: {missed:?}");
}

/// Something that a thread writes on and others wait for.
struct Board<T>(Arc<(Mutex<T>, Condvar)>);

impl<T> Clone for Board<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T: Default> Default for Board<T> {
    fn default() -> Self {
        Self(Arc::new((Mutex::new(T::default()), Condvar::new())))
    }
}

impl<T> Board<T> {
    fn lock(&self) -> MutexGuard<'_, T> {
        self.0.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
    fn write(&self, f: impl FnOnce(&mut T)) {
        f(&mut self.lock());
        self.0.1.notify_all();
    }
    fn until(&self, fits: impl Fn(&T) -> bool) {
        let mut now = self.lock();
        while !fits(&now) {
            now = self.0.1.wait(now).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// A door that is opened once.
type Gate = Board<bool>;

impl Gate {
    fn open(&self) {
        self.write(|open| *open = true);
    }
    fn pass(&self) {
        self.until(|open| *open);
    }
}

/// What handlers, performers and publishers wrote down, in the order in which it happened.
struct Log<T>(Arc<std::sync::Mutex<Vec<T>>>);

impl<T> Clone for Log<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T> Default for Log<T> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<T: Clone> Log<T> {
    fn push(&self, what: T) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(what);
    }
    fn all(&self) -> Vec<T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
    fn len(&self) -> usize {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).len()
    }
    fn count(&self, fits: impl Fn(&T) -> bool) -> usize {
        self.all().iter().filter(|what| fits(what)).count()
    }
}

/// What the story has, process after process.
#[derive(Clone, Default)]
struct World {
    disk: SimDisk,
    clock: ManualClock,
    /// What went wrong where nobody may panic.
    wrong: Log<String>,
}

impl World {
    /// A process of its own.
    fn process(&self, nonce: u64, workers: usize) -> Builder {
        let builder = Jobs::on_disk(Arc::new(self.disk.clone())).clock(Arc::new(self.clock.clone()));
        builder.process([1; 16], nonce).seed(nonce).workers(workers)
    }
    fn wrong(&self, what: impl Into<String>) {
        self.wrong.push(what.into());
    }
    /// Lets everything happen, and the time pass, until these are over.
    fn all_over(&self, jobs: &Jobs, ids: &[JobId], step: Duration) {
        for _ in 0..100 {
            run_until_idle(jobs).unwrap();
            if ids.iter().all(|id| jobs.state(*id).unwrap().is_over()) {
                return;
            }
            self.clock.advance(step);
            // An order by rank lets nobody of a lower one go on while others still can: whoever waits for them steps back.
            doze(1);
        }
        let states: Vec<(JobId, State)> = ids.iter().map(|id| (*id, jobs.state(*id).unwrap())).collect();
        let letters: Vec<_> =
            jobs.dead_letters().unwrap().iter().map(|l| (l.headline(), l.error().to_owned())).collect();
        let past: Vec<String> = ids.iter().flat_map(|id| jobs.history(*id).unwrap()).map(|e| e.says()).collect();
        panic!("some never end: {states:?}, {letters:?}, {past:#?}");
    }
    /// The end of the story.
    fn end(&self, jobs: Jobs) {
        let _report = jobs.shutdown(PATIENCE).unwrap();
        assert_eq!(self.wrong.all(), Vec::<String>::new());
    }
}

/// Lets others go first so often: whoever acts then, acts at another moment.
fn doze(times: u64) {
    (0..times).for_each(|_| shuttle::thread::yield_now());
}

fn spawn<T: Send + 'static>(f: impl FnOnce() -> T + Send + 'static) -> shuttle::thread::JoinHandle<T> {
    shuttle::thread::spawn(f)
}
