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

mod crash;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzz;
mod provider;

#[cfg(onceward_shuttle)]
#[doc(hidden)]
pub use crate::sync::{Order, Ran, run};
pub use crash::{Broken, Scene, Tried, crash_everywhere, naive};
pub use provider::{Does, Operation, Provider, assert_effect_once, idempotency_key};

pub use crate::clock::{Clock, ManualClock};
pub use crate::model::time::Wall;
pub use crate::store::DiskFactory;
pub use crate::store::disk::{Change, Counts, CrashPoint, Event, Fails, Fault, On, SimDisk, crash_image};

use crate::clock::Stopwatch;
use crate::engine::idle::{self, Quiet};
use crate::error::Error;
use crate::handler::job::Job;
use crate::jobs::Jobs;
use crate::observe::SafetyCards;
use std::path::Path;
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
            // What the last end has asked the timer for, a look of the alert rules among it, goes before this second question.
            core.timer.tick_and_wait(PATIENCE);
            if idle::look(core, PATIENCE)? == Quiet::Idle {
                return Ok(());
            }
        }
    }
    Err(Error::NotIdle)
}

/// Waits until the callbacks of [`on_alert`](crate::Builder::on_alert) have heard everything that is owed to them, and the file says
/// so: a process that dies after this repeats none of it. What the rules find has to be found before, by [`run_until_idle`].
///
/// # Errors
/// [`Error::NotIdle`] if that takes more than a minute of real time, e.g. because a callback waits for the test.
pub fn run_until_told(jobs: &Jobs) -> Result<(), Error> {
    // Whoever asks the writer something is answered behind everything that was committed before.
    idle::look(&jobs.0.core, PATIENCE)?;
    let teller = jobs.0.core.alarms.as_ref().and_then(|a| a.teller.as_ref());
    if teller.is_none_or(|t| t.until_quiet(PATIENCE)) { Ok(()) } else { Err(Error::NotIdle) }
}

/// Fails a test unless the queue knows this intent: the job is there, or was and is remembered.
///
/// # Panics
/// That is what it is for.
#[track_caller]
pub fn assert_enqueued<J: Job>(jobs: &Jobs, job: &J) {
    let key = job.key();
    match jobs.find::<J>(&key) {
        Ok(Some(_)) => {}
        Ok(None) => panic!("nobody has enqueued {}/{key}", J::KIND),
        Err(e) => panic!("{}/{key} cannot be looked for: {e}", J::KIND),
    }
}

/// How often the relay of a topic has looked for messages since the start: an idle one does not look.
pub fn outbox_looks(jobs: &Jobs, topic: &str) -> u64 {
    jobs.0.core.relays.looks(topic)
}
/// The variable that has [`check_safety_file`] write the file instead of comparing it.
pub const BLESS: &str = "ONCEWARD_BLESS";

/// Compares a committed `JOB-SAFETY.md` with the cards of what is registered, for a test of your own:
///
/// ```no_run
/// # fn builder() -> onceward::Builder { onceward::Jobs::open("app.redb") }
/// let cards = builder().safety_cards().unwrap();
/// onceward::testkit::check_safety_file("JOB-SAFETY.md", &cards).unwrap();
/// ```
///
/// # Errors
/// A text that shows each line that differs and says how to renew the file: run the same test with `ONCEWARD_BLESS=1`, read the
/// difference in your version control, and commit it if that is what you promise.
pub fn check_safety_file(path: impl AsRef<Path>, cards: &SafetyCards) -> Result<(), StaleFile> {
    let path = path.as_ref();
    let is = cards.to_string();
    let why = |e: std::io::Error| StaleFile(format!("{} cannot be read or written: {e}", path.display()));
    if std::env::var_os(BLESS).is_some() {
        return std::fs::write(path, is).map_err(why);
    }
    // Whoever checks out with other line ends has changed nothing.
    let was = match std::fs::read_to_string(path) {
        Ok(text) => text.replace("\r\n", "\n"),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => String::new(),
        Err(e) => return Err(why(e)),
    };
    if was == is {
        return Ok(());
    }
    Err(StaleFile(format!(
        "{} is not what is registered: run this test again with {BLESS}=1 to renew it, and read what changed before you commit it\n{}",
        path.display(),
        difference(&was, &is)
    )))
}

/// The committed file and what is registered differ; its text shows how, and how to renew the file.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct StaleFile(String);

/// What `unwrap` prints in a test: the text as it is to be read.
impl std::fmt::Debug for StaleFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// The lines that only one of two texts has, in order, under the heading they belong to.
fn difference(was: &str, is: &str) -> String {
    let (old, new): (Vec<&str>, Vec<&str>) = (was.lines().collect(), is.lines().collect());
    let mut out = Vec::new();
    // Longest common subsequence; the files have some hundred lines.
    let mut longest = vec![vec![0_usize; new.len() + 1]; old.len() + 1];
    for i in (0..old.len()).rev() {
        for j in (0..new.len()).rev() {
            longest[i][j] =
                if old[i] == new[j] { longest[i + 1][j + 1] + 1 } else { longest[i + 1][j].max(longest[i][j + 1]) };
        }
    }
    let (mut i, mut j, mut heading) = (0, 0, None);
    while i < old.len() || j < new.len() {
        let same = i < old.len() && j < new.len() && old[i] == new[j];
        if same {
            if old[i].starts_with("## ") {
                heading = Some(old[i]);
            }
            (i, j) = (i + 1, j + 1);
            continue;
        }
        out.extend(heading.take().map(|h| format!("  {h}")));
        if j >= new.len() || (i < old.len() && longest[i + 1][j] >= longest[i][j + 1]) {
            out.push(format!("- {}", old[i]));
            i += 1;
        } else {
            out.push(format!("+ {}", new[j]));
            j += 1;
        }
    }
    out.join("\n")
}
