//! What callers and the writer share: the lanes, the open database and how well it is. Keeps the promise that an outcome is
//! never refused for lack of room, that enqueues are bounded, and that nobody reads while the database is being reopened.

use super::create::OpenFile;
use super::error::StoreError;
use super::intents::memory::Memory;
use super::op::{Lane, Op, RoundHook, StoreEvent, quietly};
use super::run_file::RunFile;
use crate::model::room::Room;
use crate::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use crate::sync::thread::{self, ThreadId};
use crate::sync::{Condvar, Mutex, MutexGuard, RwLock};
use redb::{Database, ReadTransaction, ReadableDatabase};
use std::any::Any;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

/// Enqueues that may wait.
pub(super) const ENQUEUES: usize = 65_536;
/// Bytes of payload that may wait with them; one request may be larger, if nothing else waits.
const ENQUEUE_BYTES: usize = 64 << 20;

/// A request that waits, and whether its caller was told "unknown" already.
pub(super) struct Waiting {
    /// Until it is settled.
    pub(super) op: Option<Box<dyn Op>>,
    bytes: usize,
    pub(super) lane: Lane,
    pub(super) told: bool,
    /// What the run of this round answered instead of Ok; nothing was written by it.
    pub(super) failed: Option<StoreError>,
}

type Listener = Arc<dyn Fn(StoreEvent) + Send + Sync>;

pub(super) struct Shared {
    inbox: Mutex<Inbox>,
    arrived: Condvar,
    /// Requests that wait, readable without the lock.
    waiting: AtomicUsize,
    db: RwLock<Open>,
    health: Mutex<Health>,
    better: Condvar,
    listeners: Mutex<Vec<Listener>>,
    pub(super) run: RunFile,
    /// The thread that answers beside the writer, once there is one.
    answers_on: Mutex<Option<ThreadId>>,
    /// The index of intents.
    pub(super) memory: Memory,
    /// What the disk has room for.
    room: AtomicU8,
}

#[derive(Default)]
struct Inbox {
    outcomes: VecDeque<Waiting>,
    enqueues: VecDeque<Waiting>,
    enqueue_bytes: usize,
    hook: Option<Box<dyn RoundHook>>,
    poked: bool,
    /// A reader met a storage error: the database has to be reopened, whether or not something waits.
    suspect: Option<StoreError>,
    closing: bool,
    /// Nothing is taken any more, and why.
    shut: Option<StoreError>,
    writer_sleeps: bool,
}

struct Open {
    db: Option<OpenFile>,
    /// Rises with every reopen, so that an error of an old read is not blamed on the new database.
    generation: u64,
}

#[derive(Default)]
struct Health {
    healing: bool,
    /// So long that callers are not kept waiting any more.
    hopeless: Option<StoreError>,
    ended: Option<StoreError>,
    closing_error: Option<StoreError>,
    /// Rises with every reason to try a reopen at once.
    kicks: u64,
}

/// What the writer found when it looked for work.
pub(super) struct Work {
    pub(super) suspect: Option<StoreError>,
    pub(super) hook: Option<Box<dyn RoundHook>>,
    /// Closed, and nothing waits.
    pub(super) last: bool,
}

impl Shared {
    pub(super) fn new(db: OpenFile, run: RunFile, memory: Memory) -> Self {
        Self {
            inbox: Mutex::default(),
            arrived: Condvar::new(),
            waiting: AtomicUsize::new(0),
            db: RwLock::new(Open { db: Some(db), generation: 0 }),
            health: Mutex::default(),
            better: Condvar::new(),
            listeners: Mutex::default(),
            run,
            answers_on: Mutex::default(),
            memory,
            room: AtomicU8::new(Room::Normal as u8),
        }
    }

    // The callers' side.

    pub(super) fn submit(&self, lane: Lane, op: Box<dyn Op>) -> Result<(), (Box<dyn Op>, StoreError)> {
        let mut inbox = self.inbox.lock();
        if let Some(why) = &inbox.shut {
            return Err((op, why.clone()));
        }
        if op.is_new_work() && !self.room().is_normal() {
            // The writer looks whether there is room again.
            inbox.poked = true;
            self.wake(inbox);
            return Err((op, full()));
        }
        let bytes = op.bytes();
        let full = inbox.enqueues.len() >= ENQUEUES
            || (inbox.enqueue_bytes > 0 && inbox.enqueue_bytes.saturating_add(bytes) > ENQUEUE_BYTES);
        if lane == Lane::Enqueue && full {
            return Err((op, StoreError::Busy));
        }
        let waiting = Waiting { op: Some(op), bytes, lane, told: false, failed: None };
        match lane {
            Lane::Outcome => inbox.outcomes.push_back(waiting),
            Lane::Enqueue => {
                inbox.enqueue_bytes += bytes;
                inbox.enqueues.push_back(waiting);
            }
        }
        self.waiting.fetch_add(1, Ordering::Release);
        self.wake(inbox);
        Ok(())
    }
    /// What the disk has room for.
    pub(super) fn room(&self) -> Room {
        match self.room.load(Ordering::Acquire) {
            0 => Room::Normal,
            1 => Room::Low,
            _ => Room::Critical,
        }
    }
    pub(super) fn set_room(&self, room: Room) {
        self.room.store(room as u8, Ordering::Release);
    }
    /// Has the outcome that waits last take this along, if it can.
    pub(super) fn join(&self, what: &mut dyn Any) -> Result<(), StoreError> {
        let mut inbox = self.inbox.lock();
        if let Some(why) = &inbox.shut {
            return Err(why.clone());
        }
        if let Some(op) = inbox.outcomes.back_mut().and_then(|last| last.op.as_mut()) {
            op.take_along(what);
        }
        Ok(())
    }
    pub(super) fn poke(&self) {
        let mut inbox = self.inbox.lock();
        inbox.poked = true;
        self.wake(inbox);
    }
    pub(super) fn install_hook(&self, hook: Box<dyn RoundHook>) {
        self.inbox.lock().hook = Some(hook);
    }
    pub(super) fn ask_to_close(&self) {
        let mut inbox = self.inbox.lock();
        inbox.closing = true;
        inbox.shut.get_or_insert(StoreError::Closed);
        self.wake(inbox);
        self.kick();
    }
    /// A reader met a storage error: redb refuses every write from now on, so the writer reopens before the next one fails.
    pub(super) fn suspect(&self, generation: u64, error: StoreError) {
        if self.db.read().generation != generation {
            return;
        }
        let mut inbox = self.inbox.lock();
        inbox.suspect.get_or_insert(error);
        self.wake(inbox);
    }
    /// A read transaction and the generation of the database it belongs to.
    pub(super) fn begin_read(&self) -> Result<(ReadTransaction, u64), StoreError> {
        loop {
            let failed = {
                let open = self.db.read();
                match open.db.as_ref().map(|file| file.db.begin_read()) {
                    Some(Ok(tx)) => return Ok((tx, open.generation)),
                    Some(Err(e)) => Some((open.generation, StoreError::from(e))),
                    None => None,
                }
            };
            if let Some((generation, error)) = failed {
                self.suspect(generation, error.clone());
                return Err(error);
            }
            self.wait_until_better()?;
        }
    }
    /// Whether the database that was open under this number is closed by now.
    pub(super) fn is_replaced(&self, generation: u64) -> bool {
        let open = self.db.read();
        open.generation != generation || open.db.is_none()
    }
    fn wait_until_better(&self) -> Result<(), StoreError> {
        let mut health = self.health.lock();
        loop {
            if let Some(e) = health.ended.as_ref().or(health.hopeless.as_ref()) {
                return Err(e.clone());
            }
            if !health.healing {
                return Ok(());
            }
            self.better.wait(&mut health);
        }
    }
    /// This thread gives answers beside the writer.
    pub(super) fn answers_come_from(&self, thread: ThreadId) {
        *self.answers_on.lock() = Some(thread);
    }
    /// Whether a thread gives answers: it cannot wait for the writer, which waits for it.
    pub(super) fn answers_on(&self, thread: ThreadId) -> bool {
        *self.answers_on.lock() == Some(thread)
    }
    pub(super) fn is_healing(&self) -> bool {
        self.health.lock().healing
    }
    pub(super) fn closing_error(&self) -> Option<StoreError> {
        self.health.lock().closing_error.clone()
    }
    pub(super) fn on_event(&self, f: Box<dyn Fn(StoreEvent) + Send + Sync>) {
        self.listeners.lock().push(Arc::from(f));
    }
    /// A reason to try a reopen at once: the clock was moved, or the store is closed.
    pub(super) fn kick(&self) {
        self.health.lock().kicks += 1;
        self.better.notify_all();
    }
    fn wake(&self, inbox: MutexGuard<'_, Inbox>) {
        let sleeps = inbox.writer_sleeps;
        drop(inbox);
        if sleeps {
            self.arrived.notify_one();
        }
    }

    // The writer's side.

    /// Sleeps until there is something to do.
    pub(super) fn work(&self) -> Work {
        let mut inbox = self.inbox.lock();
        loop {
            let idle = inbox.outcomes.is_empty() && inbox.enqueues.is_empty();
            if !idle || inbox.poked || inbox.closing || inbox.suspect.is_some() || inbox.hook.is_some() {
                let last = inbox.closing && idle;
                inbox.poked = false;
                return Work { suspect: inbox.suspect.take(), hook: inbox.hook.take(), last };
            }
            inbox.writer_sleeps = true;
            self.arrived.wait(&mut inbox);
            inbox.writer_sleeps = false;
        }
    }
    /// Takes what waits, outcomes first, without waiting.
    pub(super) fn take(&self, at_most: usize, into: &mut Vec<Waiting>) {
        if self.waiting.load(Ordering::Acquire) == 0 {
            return;
        }
        let mut inbox = self.inbox.lock();
        let before = into.len();
        let outcomes = at_most.min(inbox.outcomes.len());
        into.extend(inbox.outcomes.drain(..outcomes));
        let enqueues = (at_most - outcomes).min(inbox.enqueues.len());
        into.extend(inbox.enqueues.drain(..enqueues));
        inbox.enqueue_bytes -= into[before + outcomes..].iter().map(|w| w.bytes).sum::<usize>();
        self.waiting.fetch_sub(into.len() - before, Ordering::Release);
    }
    /// Puts back what did not fit into the round, where it was.
    pub(super) fn put_back(&self, rest: impl DoubleEndedIterator<Item = Waiting>) {
        let mut inbox = self.inbox.lock();
        for waiting in rest.rev() {
            match waiting.lane {
                Lane::Outcome => inbox.outcomes.push_front(waiting),
                Lane::Enqueue => {
                    inbox.enqueue_bytes += waiting.bytes;
                    inbox.enqueues.push_front(waiting);
                }
            }
            self.waiting.fetch_add(1, Ordering::Release);
        }
    }
    /// Whether something waits, at the cost of one load.
    pub(super) fn something_waits(&self) -> bool {
        self.waiting.load(Ordering::Acquire) > 0
    }
    pub(super) fn is_closing(&self) -> bool {
        self.inbox.lock().closing
    }
    /// Tells every waiting caller that was not told yet; the requests stay where they are.
    pub(super) fn tell_unknown(&self) {
        let mut taken = Vec::new();
        self.take(usize::MAX, &mut taken);
        taken.iter_mut().for_each(Waiting::tell);
        self.put_back(taken.into_iter());
    }
    /// No request is taken from now on; those that wait come back.
    pub(super) fn shut(&self, why: &StoreError) -> Vec<Waiting> {
        let mut rest = Vec::new();
        self.inbox.lock().shut = Some(why.clone());
        self.take(usize::MAX, &mut rest);
        rest
    }
    /// Runs `f` with the open database.
    pub(super) fn with_db<T>(&self, f: impl FnOnce(&Database) -> Result<T, StoreError>) -> Result<T, StoreError> {
        self.db.read().db.as_ref().map_or(Err(StoreError::Closed), |file| f(&file.db))
    }
    /// Closes the database; reads wait until there is another one.
    pub(super) fn close_db(&self) -> Result<(), StoreError> {
        let db = self.db.write().db.take();
        db.map_or(Ok(()), OpenFile::close)
    }
    pub(super) fn set_db(&self, db: OpenFile) {
        let mut open = self.db.write();
        open.generation += 1;
        open.db = Some(db);
        drop(open);
        // What a reader met before is over.
        self.inbox.lock().suspect = None;
    }
    pub(super) fn begin_heal(&self) {
        self.health.lock().healing = true;
    }
    pub(super) fn end_heal(&self) {
        let mut health = self.health.lock();
        health.healing = false;
        health.hopeless = None;
        drop(health);
        self.better.notify_all();
    }
    /// Readers are not kept waiting any more.
    pub(super) fn give_up_waiting(&self, error: StoreError) {
        self.health.lock().hopeless = Some(error);
        self.better.notify_all();
    }
    pub(super) fn end(&self, why: StoreError, closing: Result<(), StoreError>) {
        let mut health = self.health.lock();
        health.healing = false;
        health.ended = Some(why);
        health.closing_error = closing.err();
        drop(health);
        self.better.notify_all();
    }
    /// Waits before the next try; a kick ends the wait.
    pub(super) fn pause(&self, at_most: Duration) {
        let mut health = self.health.lock();
        let kicks = health.kicks;
        while health.kicks == kicks {
            if self.better.wait_for(&mut health, at_most).timed_out() {
                return;
            }
        }
    }
    pub(super) fn tell(&self, event: &StoreEvent) {
        let listeners = self.listeners.lock().clone();
        for listener in listeners {
            // Whoever listens, a subscriber of the app's log among them, must not take the writer along.
            quietly(|| listener(event.clone()));
        }
    }
}

impl Waiting {
    pub(super) fn tell(&mut self) {
        if !std::mem::replace(&mut self.told, true)
            && let Some(op) = &mut self.op
        {
            quietly(|| op.unknown());
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        // Lost in a panic of the writer, perhaps after its commit: nobody knows, and its caller must hear exactly that.
        if let Some(op) = self.op.take()
            && thread::panicking()
        {
            quietly(|| op.settle(Err(StoreError::Unknown)));
        }
    }
}

/// Why new work is refused.
pub(super) fn full() -> StoreError {
    StoreError::Full("what is under way is still recorded".to_owned())
}
