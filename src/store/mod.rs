//! The only code that knows redb: one file, one owner, one writer thread.
//!
//! Promises kept here: nobody is told anything that rests on rows which did not become durable; a round of requests is applied
//! exactly once across a failed commit and a heal; app closures leave no trace when they fail; a file that is not surely ours is
//! left untouched. The engine submits [`Op`]s and installs one [`RoundHook`]; everybody else reads through [`Store::read`].

mod app;
mod backend;
mod bits;
mod codec;
mod create;
#[cfg(feature = "testkit")]
pub mod disk;
mod error;
#[cfg(feature = "fuzzing")]
mod fuzz;
mod heal;
mod intents;
mod lend;
mod op;
mod options;
mod outbox;
mod own;
mod pack;
mod plain_row;
mod private;
mod read;
mod record;
mod refused;
mod reserve;
mod run_file;
mod schema;
mod shared;
mod write;
mod writer;

pub use app::{AppRead, AppRun, AppWrite};
pub use codec::{decode_app, encode_app};
#[cfg(feature = "testkit")]
pub use disk::DiskFactory;
pub use error::StoreError;
#[cfg(feature = "fuzzing")]
pub use fuzz::{intent_keys, values, with_value_changed, words};
pub use intents::memory::Sizes;
pub use op::{Lane, Op, RoundHook, StoreEvent, Tell};
pub use options::{Commits, Opened, Place, StoreOptions};
pub use outbox::TopicDepth;
pub use own::{AppTable, Own};
#[cfg(feature = "fuzzing")]
pub use pack::decode_anything;
#[cfg(feature = "testkit")]
pub use read::Depth;
pub use read::{Rows, View};
pub use reserve::EVERY as ROOM_EVERY;
pub use run_file::{RunFile, RunHeader, Slot, SlotNo};
pub use schema::Source;
pub use write::{FAILED, Write};

use crate::model::room::Room;
use crate::sync::Mutex;
use crate::sync::thread::{self, JoinHandle};
use reserve::Reserve;
use shared::Shared;
use std::any::Any;
use std::path::PathBuf;
use std::sync::Arc;
use writer::Writer;

/// A store; clones are the same store. When the last one is dropped, what waits is written and the file is closed.
#[derive(Clone)]
pub struct Store {
    inner: Arc<Inner>,
}

impl Store {
    /// Opens the file, or creates it if there is none; checks it, and makes the new epoch durable before it returns.
    pub fn open(mut options: StoreOptions) -> Result<(Self, Opened), StoreError> {
        options.place = options.place.followed()?;
        let base = reserve::on_full_disk(&options, create::open)?;
        let reserve = Reserve::open(&options.place);
        let opened = base.opened.clone();
        let shared = Arc::new(Shared::new(base.db, base.run, base.memory));
        let path = match &options.place {
            Place::File(p) => Some(p.clone()),
            #[cfg(feature = "testkit")]
            Place::Disk(_) => None,
        };
        let writer = Writer::new(options, shared.clone(), base.meta, reserve);
        let thread = writer.spawn()?;
        Ok((Self { inner: Arc::new(Inner { shared, path, thread: Mutex::new(Some(thread)) }) }, opened))
    }
    /// Reads in one read transaction; waits while the store heals. Keep it short: a living read keeps old pages from being
    /// reused. Not to be called on the writer's thread, where nobody would end the heal that is waited for.
    pub fn read<T>(&self, f: impl Fn(&View<'_>) -> Result<T, StoreError>) -> Result<T, StoreError> {
        let shared = &self.inner.shared;
        loop {
            let (tx, generation) = shared.begin_read()?;
            match f(&Rows::new(&tx, &shared.memory)) {
                // The writer closed the database under this reader, to heal it: whoever asks is told by the one that follows.
                Err(e) if e.is_storage() && shared.is_replaced(generation) => {}
                Err(e) if e.is_storage() => {
                    shared.suspect(generation, e.clone());
                    return Err(e);
                }
                other => return other,
            }
        }
    }
    /// Lends the app a read transaction over its own tables.
    pub fn read_app<T>(&self, f: impl FnOnce(&AppRead<'_>) -> T) -> Result<T, StoreError> {
        let (tx, _) = self.inner.shared.begin_read()?;
        Ok(f(&AppRead { tx: &tx }))
    }
    /// Hands a request to the writer. On `Err` the request comes back unsettled.
    pub fn submit(&self, lane: Lane, op: Box<dyn Op>) -> Result<(), (Box<dyn Op>, StoreError)> {
        self.inner.shared.submit(lane, op)
    }
    /// Has the outcome that waits last take `what` along, if it knows it: then nothing is left of it, and no request has to be made.
    pub fn join(&self, what: &mut dyn Any) -> Result<(), StoreError> {
        self.inner.shared.join(what)
    }
    /// The length of the file in bytes; 0 on a simulated disk.
    pub fn size_bytes(&self) -> u64 {
        self.inner.path.as_ref().and_then(|p| std::fs::metadata(p).ok()).map_or(0, |m| m.len())
    }
    /// Gives the writer its hook; replaces an earlier one.
    pub fn install_hook(&self, hook: Box<dyn RoundHook>) {
        self.inner.shared.install_hook(hook);
    }
    /// Asks for a round even if no request waits.
    pub fn poke(&self) {
        self.inner.shared.poke();
    }
    /// Whether the database is being reopened after a storage failure.
    pub fn healing(&self) -> bool {
        self.inner.shared.is_healing()
    }
    /// What the disk has room for.
    pub fn room(&self) -> Room {
        self.inner.shared.room()
    }
    /// The sidecar.
    pub fn run_file(&self) -> &RunFile {
        &self.inner.shared.run
    }
    /// Has `f` called, on the writer's thread, when a heal starts or ends and when the store stops.
    pub fn on_event(&self, f: Box<dyn Fn(StoreEvent) + Send + Sync>) {
        self.inner.shared.on_event(f);
    }
    /// Writes what waits, ends the writer and closes the database; later requests get [`StoreError::Closed`].
    pub fn close(self) -> Result<(), StoreError> {
        self.inner.close()
    }
}

struct Inner {
    shared: Arc<Shared>,
    path: Option<PathBuf>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Inner {
    fn close(&self) -> Result<(), StoreError> {
        self.shared.ask_to_close();
        let thread = self.thread.lock().take();
        if let Some(thread) = thread {
            // The last handle may be dropped by a request that settles: the writer cannot wait for itself.
            let current = thread::current().id();
            let own = thread.thread().id() == current || self.shared.answers_on(current);
            if !own && thread.join().is_err() {
                return Err(StoreError::Bug("the writer's thread panicked".to_owned()));
            }
        }
        self.shared.closing_error().map_or(Ok(()), Err)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // Nobody is left to hear of an error; the next open finds out.
        let _unheard = self.close();
    }
}

#[cfg(all(test, feature = "testkit"))]
mod tests;
