//! Where threads and tasks of a test wait for each other: named doors that the test opens, processes that end.

use super::PATIENCE;
use std::collections::{HashMap, HashSet};
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};

/// How often a waiting test looks by itself before it gives up.
const LOOKS: u32 = 600;

/// All doors and processes of one world; clones are the same stage.
#[derive(Clone, Default)]
pub(crate) struct Stage(Arc<(Mutex<Doors>, Condvar)>);

#[derive(Default)]
struct Doors {
    /// How often somebody came to a door.
    came: HashMap<String, u64>,
    /// How many may pass it.
    open: HashMap<String, u64>,
    passed: HashMap<String, u64>,
    ended: HashSet<u64>,
    lives: u64,
    wakers: Vec<Waker>,
}

/// One process: what it does counts until it ends.
#[derive(Clone)]
pub(crate) struct Life {
    stage: Stage,
    number: u64,
}

impl Stage {
    fn lock(&self) -> MutexGuard<'_, Doors> {
        self.0.0.lock().unwrap()
    }
    /// Something that may be waited for has changed.
    pub(crate) fn stir(&self) {
        let wakers = std::mem::take(&mut self.lock().wakers);
        self.0.1.notify_all();
        wakers.into_iter().for_each(Waker::wake);
    }
    /// A process begins.
    pub(crate) fn life(&self) -> Life {
        let mut doors = self.lock();
        doors.lives += 1;
        Life { stage: self.clone(), number: doors.lives }
    }
    /// Lets one more through.
    pub(crate) fn open(&self, door: &str) {
        *self.lock().open.entry(door.to_owned()).or_default() += 1;
        self.stir();
    }
    /// Waits until somebody has come to this door for the n-th time (from 1).
    pub(crate) fn came(&self, door: &str, n: u64) {
        self.until(&format!("somebody at {door:?} ({n})"), || {
            (self.lock().came.get(door).copied().unwrap_or(0) >= n).then_some(())
        });
    }
    /// Waits for a fact; whatever makes it true calls [`stir`](Self::stir).
    #[track_caller]
    pub(crate) fn until<T>(&self, what: &str, fact: impl Fn() -> Option<T>) -> T {
        let mut looks_in_vain = 0;
        loop {
            if let Some(t) = fact() {
                return t;
            }
            assert!(looks_in_vain < LOOKS, "waited in vain for {what}");
            // In case the fact came without a stir it is looked at now and then.
            let (_doors, waited) = self.0.1.wait_timeout(self.lock(), PATIENCE / LOOKS).unwrap();
            looks_in_vain += u32::from(waited.timed_out());
        }
    }
}

impl Life {
    /// The process ends: everybody who waits at a door is let go, and knows it.
    pub(crate) fn end(&self) {
        self.stage.lock().ended.insert(self.number);
        self.stage.stir();
    }
    pub(crate) fn ended(&self) -> bool {
        self.stage.lock().ended.contains(&self.number)
    }
    /// Waits at a door until the test opens it; false if the process ended meanwhile.
    pub(crate) fn wait(&self, door: &str) -> bool {
        self.come(door);
        let mut doors = self.stage.lock();
        loop {
            if let Some(alive) = self.through(&mut doors, door) {
                return alive;
            }
            doors = self.stage.0.1.wait(doors).unwrap();
        }
    }
    /// The same, awaited.
    pub(crate) fn wait_async(&self, door: &str) -> impl Future<Output = bool> + Send + use<> {
        self.come(door);
        AtDoor { life: self.clone(), door: door.to_owned() }
    }
    fn come(&self, door: &str) {
        *self.stage.lock().came.entry(door.to_owned()).or_default() += 1;
        self.stage.stir();
    }
    fn through(&self, doors: &mut Doors, door: &str) -> Option<bool> {
        if doors.ended.contains(&self.number) {
            return Some(false);
        }
        let open = doors.open.get(door).copied().unwrap_or(0);
        let passed = doors.passed.entry(door.to_owned()).or_default();
        (*passed < open).then(|| {
            *passed += 1;
            true
        })
    }
}

struct AtDoor {
    life: Life,
    door: String,
}

impl Future for AtDoor {
    type Output = bool;
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<bool> {
        let mut doors = self.life.stage.lock();
        match self.life.through(&mut doors, &self.door) {
            Some(alive) => Poll::Ready(alive),
            None => {
                doors.wakers.push(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}
