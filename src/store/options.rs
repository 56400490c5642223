//! How a store is opened, and what was found when it was. Read by every file that opens, reopens or commits.

use super::intents::memory::Sizes;
use super::run_file::{RunHeader, Slot};
use crate::clock::Clock;
use crate::model::Limits;
use crate::model::id::{JobId, Token};
use parking_lot::Mutex;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

#[cfg(feature = "testkit")]
use super::disk::DiskFactory;

/// How and where a store is opened.
#[derive(Clone)]
pub struct StoreOptions {
    /// Where the bytes are.
    pub place: Place,
    /// Memory for pages; 32 MiB by default.
    pub cache_bytes: usize,
    /// What a commit survives.
    pub commits: Commits,
    /// Whether every page is checked at open; on by default, because a flipped bit is otherwise read as a value.
    pub check_integrity: bool,
    /// The limits of what a job may carry.
    pub limits: Limits,
    /// How big the parts of the index of intents are.
    pub intents: Sizes,
    /// Where time comes from.
    pub clock: Arc<dyn Clock>,
    /// From this attempt on a failed one is noted for whoever watches, in the commit of its end.
    pub note_failures: Option<u32>,
    /// What its files met, in this process.
    pub(super) met: Arc<Met>,
}

/// What the file under redb met: redb, and app code inside a transaction, may hand on less than that.
#[derive(Debug, Default)]
pub(super) struct Met {
    /// An fsync failed: with one-phase commits the end of the store.
    pub(super) fsync_failed: AtomicBool,
    /// There was no room, since that was last asked.
    pub(super) no_room: AtomicBool,
    /// What was written since the last sync that worked: offset and length. One that failed leaves it here, also for the next opening of
    /// the file, because a system that could not write something back goes on showing it.
    pub(super) unsynced: Mutex<Vec<(u64, usize)>>,
}

impl StoreOptions {
    /// The defaults for this file.
    pub fn new(place: Place, clock: Arc<dyn Clock>) -> Self {
        Self {
            place,
            cache_bytes: 32 << 20,
            commits: Commits::default(),
            check_integrity: true,
            limits: Limits::default(),
            intents: Sizes::default(),
            clock,
            note_failures: None,
            met: Arc::default(),
        }
    }
}

/// Where the bytes of a store are.
#[derive(Clone)]
pub enum Place {
    /// A file, with its sidecar beside it.
    File(PathBuf),
    /// A simulated disk.
    #[cfg(feature = "testkit")]
    Disk(Arc<dyn DiskFactory>),
}

/// How a round is committed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Commits {
    /// Pages first, then the root that names them: a failed fsync followed by a power cut loses nothing.
    #[default]
    TwoPhase,
    /// Both at once, in half the time. The first failed fsync stops the store until the process restarts.
    OnePhase,
}

/// What was found when a store was opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Opened {
    /// Where it is, for messages.
    pub path: PathBuf,
    /// The file was never used before.
    pub created: bool,
    /// Which file this is, since its creation.
    pub instance: [u8; 16],
    /// The epoch of this process start: the upper bits of every token it hands out.
    pub epoch: u32,
    /// The number of the newest round that was found in the file.
    pub round: u64,
    /// Claims that a dead process left behind.
    pub running: Vec<(JobId, Token)>,
    /// The filled slots of the sidecar, as the dead process left them.
    pub slots: Vec<Slot>,
    /// The sidecar's header as it was found; `None` if the sidecar was missing, unreadable or new. If it is missing although
    /// the file was used before, belongs to another file, or knows a later round than the file, an older copy may have been put
    /// back: then epoch, job numbers and rounds jump ahead, and the setting `rewound` is there until somebody removes it.
    pub header: Option<RunHeader>,
    /// This open has found that; one after it only finds the setting.
    pub rewound: bool,
    /// What of the index of intents could not be read, in words: an enqueue that needs it is refused as corrupt, and whose key is lost
    /// with it is not recognised.
    pub unreadable: Vec<String>,
}
