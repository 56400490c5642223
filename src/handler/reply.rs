//! One answer from the writer to one caller: a thread waits for it or a task awaits it. An answer that can no longer come (the
//! writer is gone) is an answer too, so nobody waits for ever.

use crate::sync::{Condvar, Mutex};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

enum Slot<T> {
    Empty(Option<Waker>),
    Full(T),
    Gone,
}

struct Inner<T> {
    slot: Mutex<Slot<T>>,
    filled: Condvar,
}

/// The writer's end.
pub(crate) struct Answer<T>(Arc<Inner<T>>);

/// The caller's end.
pub(crate) struct Reply<T>(Arc<Inner<T>>);

/// Both ends of one answer.
pub(crate) fn answer<T>() -> (Answer<T>, Reply<T>) {
    let inner = Arc::new(Inner { slot: Mutex::new(Slot::Empty(None)), filled: Condvar::new() });
    (Answer(inner.clone()), Reply(inner))
}

impl<T> Answer<T> {
    /// Gives the answer; a second one is ignored (a caller that was told "unknown" keeps that).
    pub(crate) fn send(&self, value: T) {
        let _ = self.hand(value);
    }
    /// The same; gives it back if nobody takes it: the wait was over, or there was an answer before.
    pub(crate) fn hand(&self, value: T) -> Option<T> {
        match self.fill(Slot::Full(value)) {
            Some(Slot::Full(value)) => Some(value),
            Some(Slot::Empty(_) | Slot::Gone) | None => None,
        }
    }
    fn fill(&self, with: Slot<T>) -> Option<Slot<T>> {
        let mut slot = self.0.slot.lock();
        let Slot::Empty(waker) = &mut *slot else { return Some(with) };
        let waker = waker.take();
        *slot = with;
        drop(slot);
        self.0.filled.notify_one();
        if let Some(w) = waker {
            w.wake();
        }
        None
    }
}

impl<T> Drop for Answer<T> {
    fn drop(&mut self) {
        let _ = self.fill(Slot::Gone);
    }
}

impl<T> Reply<T> {
    /// Blocks for the answer; `None` if it can no longer come.
    pub(crate) fn wait(self) -> Option<T> {
        let mut slot = self.0.slot.lock();
        loop {
            match std::mem::replace(&mut *slot, Slot::Gone) {
                Slot::Full(t) => return Some(t),
                Slot::Gone => return None,
                Slot::Empty(w) => *slot = Slot::Empty(w),
            }
            self.0.filled.wait(&mut slot);
        }
    }
}

impl<T> Reply<T> {
    /// Blocks for the answer, at most this long.
    pub(crate) fn wait_at_most(&self, at_most: std::time::Duration) -> Waited<T> {
        let mut slot = self.0.slot.lock();
        self.0.filled.wait_while_for(&mut slot, |s| matches!(s, Slot::Empty(_)), at_most);
        match std::mem::replace(&mut *slot, Slot::Gone) {
            Slot::Full(t) => Waited::Told(t),
            Slot::Gone => Waited::Gone,
            Slot::Empty(_) => Waited::Over,
        }
    }
}

/// How a bounded wait ended.
pub(crate) enum Waited<T> {
    Told(T),
    /// No answer can come any more.
    Gone,
    /// None came in time.
    Over,
}

impl<T> Future for Reply<T> {
    type Output = Option<T>;
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<T>> {
        let mut slot = self.0.slot.lock();
        match std::mem::replace(&mut *slot, Slot::Gone) {
            Slot::Full(t) => Poll::Ready(Some(t)),
            Slot::Gone => Poll::Ready(None),
            Slot::Empty(_) => {
                *slot = Slot::Empty(Some(cx.waker().clone()));
                Poll::Pending
            }
        }
    }
}
