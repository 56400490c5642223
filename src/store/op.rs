//! What the writer is asked and what it tells: requests, the engine's part of a round, events. Implemented by the floors above.

use super::app::panic_text;
use super::error::StoreError;
use super::write::Write;
use crate::model::room::Room;
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

/// Which queue a request waits in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lane {
    /// What became of something: goes first, never refused for lack of room.
    Outcome,
    /// New work: bounded.
    Enqueue,
}

/// A request to the writer.
pub trait Op: Send {
    /// Runs in the round's transaction, perhaps more than once (split, heal): it overwrites what it remembered of an earlier
    /// run. Its own checks that fail are remembered and return Ok. Err of storage undoes and heals the whole round; any other
    /// Err undoes this operation alone and settles it with that error.
    fn run(&mut self, tx: &mut Write<'_>) -> Result<(), StoreError>;
    /// Whether it contains app code that may write app tables: it runs alone when a round is split.
    fn is_app(&self) -> bool {
        false
    }
    /// Whether it is new work, which is refused while the disk is full.
    fn is_new_work(&self) -> bool {
        false
    }
    /// How much memory it holds while it waits, in bytes, as far as that is the caller's.
    fn bytes(&self) -> usize {
        0
    }
    /// Takes along what was handed in behind it, if it is of a sort that it knows; `false`: that needs a request of its own.
    fn take_along(&mut self, _: &mut dyn Any) -> bool {
        false
    }
    /// It failed alone, and was undone: whether it can be run again without the part of it that failed.
    fn leave_out(&mut self, _: Option<&StoreError>) -> bool {
        false
    }
    /// For how many requests it stands, when it comes to telling them.
    fn answers(&self) -> usize {
        1
    }
    /// Whether a caller waits to be told.
    fn is_awaited(&self) -> bool {
        true
    }
    /// Whether a round may run before this one is told how it ended: only if no request looks at what telling it changes.
    fn may_be_told_later(&self) -> bool {
        false
    }
    /// After the commit of its final run (Ok), or when it failed or can never be known (Err).
    fn settle(self: Box<Self>, result: Result<(), StoreError>);
    /// The store has been healing for 30 s: the caller is told "unknown"; the request stays queued, still runs and settles.
    fn unknown(&mut self) {}
}

/// What the engine has to tell about a round.
pub type Tell = Box<dyn FnOnce() + Send>;

/// What the engine does in every round: claims, promotions, pruning.
pub trait RoundHook: Send {
    /// After the requests, before the commit; may run again after `aborted`.
    fn before_commit(&mut self, tx: &mut Write<'_>) -> Result<(), StoreError>;
    /// After each durable commit; with zero if there was nothing to write. It hands out at once what it prepared; what it has to tell
    /// about it goes behind the answers of the round, in the order of rounds.
    fn committed(&mut self, took: Duration) -> Option<Tell>;
    /// What a thread has to do before it answers: requests settle on the writer's thread or on one beside it.
    fn mark(&self) -> fn() {
        || ()
    }
    /// What `before_commit` prepared is undone.
    fn aborted(&mut self);
}

/// What happens to the storage as a whole.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum StoreEvent {
    /// The storage failed; the database is being reopened.
    HealStarted {
        /// Why.
        error: StoreError,
    },
    /// It was reopened, and a commit of its own is durable. Until the listeners have heard it, the store counts as healing.
    Healed {
        /// Since the failure.
        after_ms: u64,
    },
    /// It is closed until the process restarts.
    Stopped {
        /// Why.
        error: StoreError,
    },
    /// The engine's part of a round failed or panicked; the round was committed without it.
    HookFailed {
        /// How.
        error: StoreError,
    },
    /// The disk is full, or has room again; told again at each vain try to take the reserve back.
    Room {
        /// What it has room for now.
        room: Room,
        /// It was another before.
        changed: bool,
    },
    /// An app closure held the writer for more than 5 s: everybody else waited.
    SlowClosure {
        /// Its name.
        name: String,
        /// How long.
        took: Duration,
    },
}

/// A caller's panic must not end the writer: everybody else still waits for it.
pub(super) fn quietly(f: impl FnOnce()) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(f)) {
        panic_text(panic);
    }
}
