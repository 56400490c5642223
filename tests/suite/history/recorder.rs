//! Takes a history down, from every thread of a simulation, in one order. What a dead process would still have said is left out, and it is
//! told so: whoever pretends to be a provider then does nothing.

use super::{Event, What};
use onceward::model::time::Now;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Takes a history down. Nobody waits for it: the lock is only held to push one event.
#[derive(Clone, Debug, Default)]
pub(crate) struct Recorder(Arc<Mutex<Taken>>);

#[derive(Debug, Default)]
struct Taken {
    events: Vec<Event>,
    /// Lives up to this one crashed.
    dead: u32,
}

impl Recorder {
    fn lock(&self) -> MutexGuard<'_, Taken> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
    /// Takes an event of a life down. False: its process is dead, so it does nothing any more and whoever it would have told hears
    /// nothing. With a crash the life is over.
    pub(crate) fn tell(&self, life: u32, now: Now, what: What) -> bool {
        let mut taken = self.lock();
        if life != 0 && life <= taken.dead {
            return false;
        }
        if matches!(what, What::Crashed(_)) {
            taken.dead = life;
        }
        taken.events.push(Event { life, now, what });
        true
    }
    /// Something that happens outside, whatever crashed.
    pub(crate) fn world(&self, now: Now, what: What) {
        self.tell(0, now, what);
    }
    /// What was taken down so far.
    pub(crate) fn events(&self) -> Vec<Event> {
        self.lock().events.clone()
    }
}
