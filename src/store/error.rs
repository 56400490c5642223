//! What can go wrong below: every message says what failed, what it means for the jobs and what to do next.
//! Keeps the promise that nothing in the file is ever recreated, deleted or guessed silently. Made by every file of the store.
#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "redb's and std's enums may grow: what is new is handled as the rest"
)]

use crate::model::shown::Shown;
use redb::{CommitError, CompactionError, DatabaseError, StorageError, TableError, TransactionError};
use std::io;
use std::path::{Path, PathBuf};

/// What failed in the store.
#[derive(Debug, thiserror::Error, Clone)]
#[non_exhaustive]
pub enum StoreError {
    /// Another open queue has the file.
    #[error("{} is already open, in this process or another: one process owns the file; use its handle or end it", shown(.path))]
    AlreadyOpen {
        /// Which file.
        path: PathBuf,
    },
    /// Not a file of ours.
    #[error("{} is not a onceward file ({why}): it was left untouched; give another path", shown(.path))]
    Foreign {
        /// Which file.
        path: PathBuf,
        /// How that was seen.
        why: String,
    },
    /// Written by a newer version.
    #[error(
        "{} has format {found}, this version knows up to {known}: it was left untouched; open it with a newer version", shown(.path)
    )]
    Newer {
        /// Which file.
        path: PathBuf,
        /// The file's format.
        found: u32,
        /// The newest format that is known here.
        known: u32,
    },
    /// A creation that never ended, or a file that was cut: an interrupted copy, most likely.
    #[error(
        "{} is not a whole file ({why}): it was left untouched, because an empty queue forgets what already happened; restore a copy, or remove it if no job was ever accepted",
        shown(.path)
    )]
    Half {
        /// Which file.
        path: PathBuf,
        /// What is missing.
        why: String,
    },
    /// The file cannot be created or opened where it should be.
    #[error("{} cannot be opened ({why}): create the folder, or check its permissions and the path", shown(.path))]
    CannotOpen {
        /// Which file.
        path: PathBuf,
        /// What the operating system says.
        why: String,
    },
    /// The database's structure is damaged.
    #[error(
        "{} is damaged ({why}): nothing was changed; keep a copy of the file as it is, and put back a good one",
        .path.as_ref().map_or_else(|| "the database".to_owned(), |p| shown(p))
    )]
    Damaged {
        /// Which file, where it is known.
        path: Option<PathBuf>,
        /// What was found.
        why: String,
    },
    /// One record does not decode.
    #[error("a stored record cannot be read ({what}): the job is not run; keep a copy of the file and look at it")]
    Corrupt {
        /// Which record, and what is wrong with it.
        what: String,
    },
    /// The operating system reported an error.
    #[error("the disk reported an error ({0}): a queue that is open reopens its file by itself; check the disk")]
    Io(String),
    /// No room.
    #[error("the disk is full ({0}): nothing was lost, but nothing new can be written; make room")]
    Full(String),
    /// The store is closed.
    #[error("the queue is closed: nothing was written; open it again")]
    Closed,
    /// The store gave up for good.
    #[error("the queue has stopped ({0}): what was in flight is unknown; restart the process")]
    Stopped(String),
    /// Too much is waiting.
    #[error("too many enqueues are waiting to be written: nothing was written; try again a little later")]
    Busy,
    /// A commit failed and the file could not be reopened in time to find out whether it was applied.
    #[error(
        "it is unknown whether this was written (the disk failed and the file could not be reopened in time): calls with a key may be repeated, others may not"
    )]
    Unknown,
    /// App code asked for one of our tables.
    #[error("table names that begin with \"q/\" are reserved ({0}): rename the app's table")]
    ReservedTable(String),
    /// App code kept a table open beyond its closure.
    #[error(
        "the transaction kept table {0} open after it returned: nothing was written; drop every table before returning"
    )]
    TableLeaked(String),
    /// An app table could not be opened.
    #[error("an app table could not be opened ({0}); one that nothing has written to yet does not exist")]
    Table(String),
    /// Larger than allowed.
    #[error("{what} has {len} bytes, at most {limit} are allowed: nothing was written; make it smaller")]
    TooBig {
        /// What is too big.
        what: &'static str,
        /// How big it is.
        len: usize,
        /// How big it may be.
        limit: usize,
    },
    /// A bug in this crate: an operation panicked.
    #[error(
        "an operation of the queue panicked ({0}): nothing of it was written; this is a bug in onceward, please report it"
    )]
    Bug(String),
}

/// In one line, whatever somebody called a file.
fn shown(path: &Path) -> String {
    Shown(&path.display().to_string()).to_string()
}

impl StoreError {
    /// The storage itself failed: the database must be reopened before anything else can be written.
    pub fn is_storage(&self) -> bool {
        match self {
            Self::Io(_) | Self::Full(_) | Self::Damaged { .. } => true,
            Self::AlreadyOpen { .. }
            | Self::Foreign { .. }
            | Self::Newer { .. }
            | Self::Half { .. }
            | Self::CannotOpen { .. }
            | Self::Corrupt { .. }
            | Self::Closed
            | Self::Stopped(_)
            | Self::Busy
            | Self::Unknown
            | Self::ReservedTable(_)
            | Self::TableLeaked(_)
            | Self::Table(_)
            | Self::TooBig { .. }
            | Self::Bug(_) => false,
        }
    }
    /// What was found, where a damaged row says nothing and must not hide the rest.
    pub(crate) fn readable<T>(found: Result<Option<T>, Self>) -> Result<Option<T>, Self> {
        match found {
            Err(Self::Corrupt { .. }) => Ok(None),
            other => other,
        }
    }
    /// There is no room.
    pub(super) fn is_full(e: &io::Error) -> bool {
        matches!(e.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
    }
    pub(super) fn damaged(why: impl Into<String>) -> Self {
        Self::Damaged { path: None, why: why.into() }
    }
    pub(super) fn corrupt(what: impl Into<String>) -> Self {
        Self::Corrupt { what: what.into() }
    }
}

impl From<io::Error> for StoreError {
    fn from(e: io::Error) -> Self {
        if Self::is_full(&e) { Self::Full(e.to_string()) } else { Self::Io(e.to_string()) }
    }
}

impl From<StorageError> for StoreError {
    fn from(e: StorageError) -> Self {
        match e {
            StorageError::Io(e) => e.into(),
            StorageError::Corrupted(why) => Self::damaged(why),
            StorageError::ValueTooLarge(len) => Self::TooBig { what: "a value", len, limit: 3 << 30 },
            other => Self::Io(other.to_string()),
        }
    }
}

impl From<TableError> for StoreError {
    fn from(e: TableError) -> Self {
        match e {
            TableError::Storage(e) => e.into(),
            other => Self::Table(other.to_string()),
        }
    }
}

impl From<TransactionError> for StoreError {
    fn from(e: TransactionError) -> Self {
        match e {
            TransactionError::Storage(e) => e.into(),
            other => Self::Io(other.to_string()),
        }
    }
}

impl From<CommitError> for StoreError {
    fn from(e: CommitError) -> Self {
        match e {
            CommitError::Storage(e) => e.into(),
            other => Self::Io(other.to_string()),
        }
    }
}

impl From<CompactionError> for StoreError {
    fn from(e: CompactionError) -> Self {
        match e {
            CompactionError::Storage(e) => e.into(),
            other => Self::Io(other.to_string()),
        }
    }
}

impl From<DatabaseError> for StoreError {
    fn from(e: DatabaseError) -> Self {
        match e {
            DatabaseError::Storage(e) => e.into(),
            other => Self::Io(other.to_string()),
        }
    }
}
