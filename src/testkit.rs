//! For tests: a clock that moves by hand, a disk that lives in memory and fails on demand, and a way to wait for quiet that is a
//! fact, not a sleep. Feature `testkit`.
//!
//! ```
//! use onceward::{prelude::*, testkit::{self, ManualClock, SimDisk}};
//! use std::{sync::Arc, time::Duration};
//! # #[derive(serde::Serialize, serde::Deserialize)] struct Ping;
//! # impl Job for Ping { const KIND: &'static str = "ping"; fn key(&self) -> JobKey { "p".into() } }
//! let (clock, disk) = (ManualClock::default(), SimDisk::new());
//! let jobs = Jobs::on_disk(Arc::new(disk))
//!     .clock(Arc::new(clock.clone()))
//!     .on(|_, _: Ping| Ok(()))
//!     .start()?;
//! let id = jobs.after(Duration::from_secs(3600), &Ping)?.id();
//! testkit::run_until_idle(&jobs)?;
//! assert_eq!(jobs.state(id)?, onceward::State::Delayed);
//! clock.advance(Duration::from_secs(3600));
//! testkit::run_until_idle(&jobs)?;
//! assert_eq!(jobs.state(id)?, onceward::State::Done);
//! # Ok::<(), onceward::Error>(())
//! ```
//!
//! A disk that fails, and a process that dies:
//!
//! ```
//! use onceward::testkit::{Fails, Fault, On, SimDisk};
//! let disk = SimDisk::new();
//! // The third sync from now on fails with an I/O error, and half of what it should have kept is lost.
//! disk.fail(Fault { on: On::Sync, after: 2, times: 1, fails: Fails::Sync { reached: 50, forget: true, seed: 7 } });
//! // What a death of the process at this moment would leave, and what a power cut could: open a queue on either.
//! let (killed, unpowered) = (disk.fork(), disk.fork_unpowered(3));
//! # let _ = (killed, unpowered);
//! ```

pub use crate::clock::{Clock, ManualClock};
pub use crate::model::time::Wall;
pub use crate::store::DiskFactory;
pub use crate::store::disk::{Change, Counts, CrashPoint, Event, Fails, Fault, On, SimDisk, crash_image};

use crate::clock::Stopwatch;
use crate::engine::idle::{self, Quiet};
use crate::error::Error;
use crate::jobs::Jobs;
use std::time::Duration;

/// Longer than any step of a test may take on a busy machine; reaching it is an error, not a result.
const PATIENCE: Duration = Duration::from_secs(60);

/// Waits until nothing is ready, running or due by the queue's clock. With a manual clock this is as far as the queue gets until
/// the clock is moved.
///
/// # Errors
/// [`Error::NotIdle`] if that takes more than a minute of real time, e.g. because a handler waits for the clock.
pub fn run_until_idle(jobs: &Jobs) -> Result<(), Error> {
    let core = &jobs.0.core;
    let watch = Stopwatch::start();
    while watch.elapsed() < PATIENCE {
        // No answer means that the queue was shut down meanwhile, which the drain then says.
        core.timer.tick_and_wait(PATIENCE);
        jobs.drain(PATIENCE)?;
        if idle::look(core, PATIENCE)? == Quiet::Idle {
            return Ok(());
        }
    }
    Err(Error::NotIdle)
}

/// How often the relay of a topic has looked for messages since the start: an idle one does not look.
pub fn outbox_looks(jobs: &Jobs, topic: &str) -> u64 {
    jobs.0.core.relays.looks(topic)
}
