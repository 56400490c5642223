//! Kills the process where the plan says so, once for each order that the plan names.

use super::plan::{Plan, Point};
use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// The crashes that are still to come.
pub(crate) struct Crash {
    due: BTreeMap<u64, Point>,
    done: PathBuf,
    /// Held to kill: two handlers do not both take the blame for one death. Shared by whoever must not be killed.
    killer: RwLock<()>,
}

impl Crash {
    pub(crate) fn new(plan: &Plan, dir: &Path) -> Self {
        let done = done_file(dir);
        let mut due = plan.crashes.clone();
        due.retain(|n, _| !crashed(&done).contains(n));
        Self { due, done, killer: RwLock::new(()) }
    }
    /// Dies here, if it is time.
    pub(crate) fn at(&self, point: Point, order: u64) {
        let _held = self.before(point, order);
        self.inside(point, order);
    }
    /// The same for a transaction closure: `before` is called and its answer kept by the handler, which may wait, `inside` by the
    /// closure, which must not.
    pub(crate) fn before(&self, point: Point, order: u64) -> Option<RwLockWriteGuard<'_, ()>> {
        let doomed = self.due.get(&order) == Some(&point);
        doomed.then(|| self.killer.write().unwrap_or_else(PoisonError::into_inner))
    }
    /// See [`before`](Self::before).
    pub(crate) fn inside(&self, point: Point, order: u64) {
        if self.due.get(&order) != Some(&point) {
            return;
        }
        let noted =
            OpenOptions::new().create(true).append(true).open(&self.done).and_then(|mut f| writeln!(f, "{order}"));
        if noted.is_ok() {
            std::process::abort();
        }
    }
    /// Nothing is killed while this is held: for a call about which a person would have to be asked, so that every run ends with
    /// the same questions.
    pub(crate) fn spare(&self) -> RwLockReadGuard<'_, ()> {
        self.killer.read().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Which order killed the process last, and how often that happened so far.
pub(crate) fn last(dir: &Path) -> (Option<u64>, usize) {
    let all = crashed(&done_file(dir));
    (all.last().copied(), all.len())
}

fn done_file(dir: &Path) -> PathBuf {
    dir.join("crashes")
}

fn crashed(done: &Path) -> Vec<u64> {
    fs::read_to_string(done).unwrap_or_default().lines().filter_map(|l| l.parse().ok()).collect()
}
