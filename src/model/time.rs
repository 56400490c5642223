//! Two kinds of time that must never be mixed: wall time (what a calendar says, may jump) and monotonic time (what a
//! stopwatch says, may stand still in suspend). Both are plain millisecond counts, handed in as arguments.

use serde::{Deserialize, Serialize};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Wall time in milliseconds since 1970-01-01T00:00:00Z.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Wall(pub u64);

/// Monotonic time in milliseconds since an arbitrary origin of this process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Mono(pub u64);

/// One reading of both clocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Now {
    /// What the calendar says.
    pub wall: Wall,
    /// What the stopwatch says.
    pub mono: Mono,
}

impl Wall {
    /// An instant that does not come: what is kept for ever stands there in a list that is sorted by time. In whole seconds.
    pub const NEVER: Self = Self(u64::MAX / 1_000 * 1_000);

    /// This instant plus `d`, saturating.
    pub fn after(self, d: Duration) -> Self {
        Self(self.0.saturating_add(millis(d)))
    }
    /// Milliseconds from `earlier` to this instant; zero if `earlier` is later.
    pub fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
    /// From a [`SystemTime`]; instants before 1970 become 0.
    pub fn from_system(t: SystemTime) -> Self {
        Self(t.duration_since(UNIX_EPOCH).map_or(0, millis))
    }
    /// As a [`SystemTime`]; saturates at what the platform can represent.
    pub fn to_system(self) -> SystemTime {
        UNIX_EPOCH.checked_add(Duration::from_millis(self.0)).unwrap_or(UNIX_EPOCH)
    }
}

impl Mono {
    /// This instant plus `d`, saturating.
    pub fn after(self, d: Duration) -> Self {
        Self(self.0.saturating_add(millis(d)))
    }
    /// Milliseconds from `earlier` to this instant; zero if `earlier` is later.
    pub fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

/// A duration in whole milliseconds, rounded up (so that nothing starts early) and saturating.
pub fn millis(d: Duration) -> u64 {
    u64::try_from(d.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}
