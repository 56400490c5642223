//! What the rules remember from one look to the next, in the file: since when something goes on, and whether it was told.
//!
//! Keeps the promise that a restart neither forgets how long nor tells twice. Written with what is said; worked on by `watch`.

use crate::model::id::JobId;
use crate::model::time::Wall;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What has to outlive the process.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Book {
    pub(super) letters: Option<Since>,
    pub(super) jobs: BTreeMap<JobId, Job>,
    pub(super) ready: BTreeMap<String, Line>,
    pub(super) outbox: BTreeMap<String, Since>,
    pub(super) retries: Retries,
    /// Since when it is told that the file may be an older copy, and in which epoch that was found.
    pub(super) older: Option<(Wall, u32)>,
    /// Since when it is told that the disk is full.
    pub(super) full: Option<Wall>,
    /// Numbers given to what was said.
    pub(super) said: u64,
    /// A process told somebody: what is not known to be heard may have been.
    pub(super) tells: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Since {
    pub(super) since: Wall,
    pub(super) told: bool,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Job {
    pub(super) kind: String,
    pub(super) key: String,
    pub(super) since: Wall,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Line {
    pub(super) job: JobId,
    pub(super) since: Wall,
    pub(super) told: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Retries {
    pub(super) usual_attempts: f64,
    pub(super) usual_retries: f64,
    pub(super) window: Option<Window>,
    pub(super) told: Option<Wall>,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Window {
    pub(super) since: Wall,
    pub(super) attempts: u64,
    pub(super) retries: u64,
}

impl Book {
    /// As it was kept. What cannot be read was written by a version that knew other rules: they begin anew.
    pub fn from_row(kept: Option<&[u8]>) -> Self {
        kept.and_then(|bytes| serde_json::from_slice(bytes).ok()).unwrap_or_default()
    }
    /// Jobs that were told as failing: somebody has to say when they are over.
    pub fn failing_jobs(&self) -> impl Iterator<Item = JobId> + '_ {
        self.jobs.keys().copied()
    }
    /// Whether jobs in line were told: somebody has to say when they move.
    pub fn tells_of_line(&self) -> bool {
        self.ready.values().any(|l| l.told)
    }
    /// Whether a first job in line is watched.
    pub fn watches_line(&self) -> bool {
        !self.ready.is_empty()
    }
    /// Whether topics of the outbox were told: somebody has to say when they move.
    pub fn tells_of_outbox(&self) -> bool {
        self.outbox.values().any(|t| t.told)
    }
    /// Whether a topic of the outbox is watched.
    pub fn watches_outbox(&self) -> bool {
        !self.outbox.is_empty()
    }
    /// The next number for something that is said.
    pub fn next_number(&mut self) -> u64 {
        self.said += 1;
        self.said
    }
    /// Whether a process ever told somebody.
    pub fn tells(&self) -> bool {
        self.tells
    }
    /// One does from now on.
    pub fn begin_to_tell(&mut self) {
        self.tells = true;
    }
    /// Whether a window over retries is open.
    pub fn window_is_open(&self) -> bool {
        self.retries.window.is_some()
    }
}
