//! The only reader of time. Wall time (a calendar, may jump) and monotonic time (a stopwatch, may stand still in suspend) are
//! read together and handed on as arguments, so that nothing above mixes them and every test can move them by hand.

use crate::model::time::{Mono, Now, Wall};
use std::sync::LazyLock;
use std::time::{Duration, Instant, SystemTime};

/// Where time comes from.
pub trait Clock: Send + Sync {
    /// Both clocks, read together.
    fn now(&self) -> Now;
    /// Both, and the milliseconds since the machine booted, time in suspend included; `None` where no such clock exists. Compared
    /// with the wall clock it tells a calendar that was set from a machine that slept, so all three are of one moment: a thread that
    /// is held up between two readings must not look like a calendar that was set.
    fn read(&self) -> (Now, Option<u64>);
    /// Has `f` called whenever this clock is moved by hand; a clock that runs by itself never calls it.
    fn subscribe(&self, f: Box<dyn Fn() + Send + Sync>);
    /// Whether it only moves by hand: then nobody may wait for it to pass.
    fn is_manual(&self) -> bool;
}

/// The clocks of the machine.
#[derive(Clone, Copy, Debug)]
pub struct SystemClock {
    origin: Instant,
}

/// One origin for the whole process: calls that a queue left running are still known to the next one that opens its file, and
/// their ages must mean the same to both.
#[expect(clippy::disallowed_methods, reason = "the one place that reads the clocks")]
static ORIGIN: LazyLock<Instant> = LazyLock::new(Instant::now);

impl SystemClock {
    /// The clocks as they run; monotonic time counts from the first use in this process.
    pub fn new() -> Self {
        Self { origin: *ORIGIN }
    }
}

/// Two readings that are no further apart are of one moment: far below what counts as a step.
const SAME_MOMENT_MS: u64 = 100;
/// A machine that holds a thread up so often has worse things to tell.
const READINGS: u32 = 8;

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SystemClock {
    #[expect(clippy::disallowed_methods, reason = "the one place that reads the clocks")]
    fn now(&self) -> Now {
        // Rounded down, unlike `millis`: an instant that has not come yet must not be reported.
        let mono = u64::try_from(self.origin.elapsed().as_millis()).unwrap_or(u64::MAX);
        Now { wall: Wall::from_system(SystemTime::now()), mono: Mono(mono) }
    }
    fn read(&self) -> (Now, Option<u64>) {
        let mut before = boot_ms();
        for _ in 1..READINGS {
            let read = (self.now(), boot_ms());
            if before.zip(read.1).is_none_or(|(a, b)| b.saturating_sub(a) <= SAME_MOMENT_MS) {
                return read;
            }
            before = read.1;
        }
        (self.now(), before)
    }
    fn subscribe(&self, _: Box<dyn Fn() + Send + Sync>) {}
    fn is_manual(&self) -> bool {
        false
    }
}

#[cfg(any(target_os = "linux", target_os = "android"))]
fn boot_ms() -> Option<u64> {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    Some(u64::try_from(t.tv_sec).ok()?.saturating_mul(1000).saturating_add(u64::try_from(t.tv_nsec).ok()? / 1_000_000))
}

/// Elsewhere no clock of the standard library is known to count suspend.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn boot_ms() -> Option<u64> {
    None
}

/// What the stopwatch of the machine shows; where a scheduler runs all threads in one, what its own does.
#[cfg(not(onceward_shuttle))]
#[expect(clippy::disallowed_methods, reason = "the one place that reads the clocks")]
fn running() -> Duration {
    ORIGIN.elapsed()
}
#[cfg(onceward_shuttle)]
use crate::sync::since_start as running;

/// Measures how long something took, for reports and for pacing; never decides anything about a job.
#[derive(Clone, Copy, Debug)]
pub struct Stopwatch(Duration);

impl Stopwatch {
    /// Starts now.
    pub fn start() -> Self {
        Self(running())
    }
    /// Time since the start.
    pub fn elapsed(&self) -> Duration {
        running().saturating_sub(self.0)
    }
}

#[cfg(feature = "testkit")]
pub use manual::ManualClock;

#[cfg(feature = "testkit")]
mod manual {
    use super::{Clock, Duration, Mono, Now, Wall};
    use crate::model::time::millis;
    use parking_lot::Mutex;
    use std::sync::Arc;

    /// A clock that only moves by hand; its clones are the same clock.
    #[derive(Clone)]
    pub struct ManualClock(Arc<Inner>);

    struct Inner {
        time: Mutex<Time>,
        listeners: Mutex<Vec<Arc<dyn Fn() + Send + Sync>>>,
    }

    #[derive(Clone, Copy)]
    struct Time {
        wall: u64,
        mono: u64,
        boot: u64,
    }

    impl ManualClock {
        /// Starts at this wall time.
        pub fn at(wall: Wall) -> Self {
            Self::with_stopwatch(wall, 0)
        }
        /// Starts at this wall time, with this many ms on the stopwatch.
        pub(crate) fn with_stopwatch(wall: Wall, mono: u64) -> Self {
            let time = Time { wall: wall.0, mono, boot: mono };
            Self(Arc::new(Inner { time: Mutex::new(time), listeners: Mutex::new(Vec::new()) }))
        }
        /// Both clocks go on by `d`.
        pub fn advance(&self, d: Duration) {
            self.change(|t| {
                t.wall = t.wall.saturating_add(millis(d));
                t.mono = t.mono.saturating_add(millis(d));
                t.boot = t.boot.saturating_add(millis(d));
            });
        }
        /// Somebody sets the calendar: forward, or back if negative.
        pub fn jump_wall(&self, ms: i64) {
            self.change(|t| t.wall = t.wall.saturating_add_signed(ms));
        }
        /// The machine sleeps for `d`: the stopwatch stands still.
        pub fn suspend(&self, d: Duration) {
            self.change(|t| {
                t.wall = t.wall.saturating_add(millis(d));
                t.boot = t.boot.saturating_add(millis(d));
            });
        }
        fn change(&self, f: impl FnOnce(&mut Time)) {
            f(&mut self.0.time.lock());
            // Called without the lock held: a listener may read the clock or subscribe.
            let listeners = self.0.listeners.lock().clone();
            for listener in listeners {
                listener();
            }
        }
    }

    impl Default for ManualClock {
        /// 2026-01-01T00:00:00Z.
        fn default() -> Self {
            Self::at(Wall(1_767_225_600_000))
        }
    }

    impl std::fmt::Debug for ManualClock {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            write!(f, "ManualClock({:?})", self.now())
        }
    }

    impl Clock for ManualClock {
        fn now(&self) -> Now {
            self.read().0
        }
        fn read(&self) -> (Now, Option<u64>) {
            let t = *self.0.time.lock();
            (Now { wall: Wall(t.wall), mono: Mono(t.mono) }, Some(t.boot))
        }
        fn subscribe(&self, f: Box<dyn Fn() + Send + Sync>) {
            self.0.listeners.lock().push(Arc::from(f));
        }
        fn is_manual(&self) -> bool {
            true
        }
    }

    #[cfg(test)]
    mod tests {
        use super::*;
        use std::sync::atomic::{AtomicU32, Ordering};

        /// A test moves the calendar, the stopwatch and a sleeping machine one by one; each moves only what it should, and
        /// whoever waits hears of every move.
        #[test]
        fn wall_and_stopwatch_move_separately_and_listeners_hear_it() {
            let clock = ManualClock::at(Wall(1_000));
            let heard = Arc::new(AtomicU32::new(0));
            let count = heard.clone();
            clock.subscribe(Box::new(move || {
                count.fetch_add(1, Ordering::SeqCst);
            }));
            clock.advance(Duration::from_millis(5));
            assert_eq!(clock.read(), (Now { wall: Wall(1_005), mono: Mono(5) }, Some(5)));
            clock.jump_wall(-1_000);
            assert_eq!(clock.read(), (Now { wall: Wall(5), mono: Mono(5) }, Some(5)));
            clock.suspend(Duration::from_millis(10));
            assert_eq!(clock.read(), (Now { wall: Wall(15), mono: Mono(5) }, Some(15)));
            assert_eq!(heard.load(Ordering::SeqCst), 3);
        }
    }
}
