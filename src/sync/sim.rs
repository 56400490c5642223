//! The same names over [shuttle](https://docs.rs/shuttle): every lock, wait, hand-over and atomic is a place where the scheduler may
//! go on with another thread, and the whole queue runs in one thread of the operating system.
//!
//! Time inside is a number. It goes on only when no thread can: then the wait that ends first ends, and the number becomes its end.
//! So a timeout never decides a race against work that could still be done, and nobody waits for real. The keeper of the time is a
//! thread like the others, which does nothing as long as anybody else does something; if nobody can ever go on, it says so.

mod locks;
mod time;

pub(crate) mod channel;

pub(crate) use locks::{Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard};
pub(crate) use shuttle::sync::atomic;
pub(crate) use shuttle::thread_local;
pub(crate) use time::{since_start, thread};

use shuttle::scheduler::{PctScheduler, RandomScheduler, Scheduler};
use shuttle::{Config, FailurePersistence, MaxSteps, Runner};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// What the whole process shares, anew in every run.
macro_rules! process_wide {
    ($($(#[$attr:meta])* static $name:ident: $of:ty = $new:expr;)*) => {
        shuttle::lazy_static! { $($(#[$attr])* static ref $name: $of = $new;)* }
    };
}
pub(crate) use process_wide;

/// A queue's stacks hold a handler and redb below it.
const STACK: usize = 1 << 20;
/// No run of a test needs so many; one that does goes round in circles.
const STEPS: usize = 200_000_000;

/// Who goes on next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Anybody, drawn anew at every step.
    Random,
    /// Whoever stands highest in an order that is drawn, and changed at so many drawn steps: finds what needs few, but exact, changes.
    Pct(usize),
}

/// What was run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ran {
    /// Orders of threads that were tried.
    pub schedules: u64,
    /// Steps in which a thread could have been put off, in all of them.
    pub steps: u64,
}

/// Runs `f` and every thread that it starts so many times, each in an order of its own that follows from the seed.
///
/// # Panics
/// If `f` does, in any of them: the message names what `seed` and how many runs before it lead there again.
pub fn run(order: Order, seed: u64, times: usize, f: impl Fn() + Send + Sync + 'static) -> Ran {
    let (steps, done) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let (counted, ended) = (steps.clone(), done.clone());
    let one = move || {
        time::keep(|| {
            named_if_it_fails(seed, &ended, &f);
        });
        counted.fetch_add(time::steps() as u64, Ordering::Relaxed);
        ended.fetch_add(1, Ordering::Relaxed);
    };
    match order {
        Order::Random => go(RandomScheduler::new_from_seed(seed, times), one),
        Order::Pct(depth) => go(PctScheduler::new_from_seed(seed, depth, times), one),
    }
    Ran { schedules: done.load(Ordering::Relaxed), steps: steps.load(Ordering::Relaxed) }
}

fn go(scheduler: impl Scheduler + 'static, f: impl Fn() + Send + Sync + 'static) {
    let mut config = Config::new();
    config.stack_size = STACK;
    config.max_steps = MaxSteps::FailAfter(STEPS);
    // The seed and the number of the run say it in fewer words.
    config.failure_persistence = FailurePersistence::None;
    config.silence_warnings = true;
    Runner::new(scheduler, config).run(f);
}

/// Names the run in which a test fails.
fn named_if_it_fails(seed: u64, ended: &AtomicU64, f: &impl Fn()) {
    struct Named<'a>(u64, &'a AtomicU64);
    impl Drop for Named<'_> {
        fn drop(&mut self) {
            if std::thread::panicking() {
                eprintln!("seed {}, after {} runs that were well", self.0, self.1.load(Ordering::Relaxed));
            }
        }
    }
    let named = Named(seed, ended);
    f();
    drop(named);
}
