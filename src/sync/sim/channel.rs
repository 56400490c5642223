//! `crossbeam_channel`, as far as the crate uses it: many senders, many receivers, bounded or not.

use super::locks::{Condvar, Mutex};
use super::time::since_start;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

pub(crate) use crossbeam_channel::{RecvError, RecvTimeoutError, SendError, TryRecvError};

struct Line<T> {
    waiting: VecDeque<T>,
    senders: usize,
    receivers: usize,
    most: usize,
}

struct Both<T> {
    line: Mutex<Line<T>>,
    changed: Condvar,
}

pub(crate) struct Sender<T>(Arc<Both<T>>);
pub(crate) struct Receiver<T>(Arc<Both<T>>);

pub(crate) fn unbounded<T>() -> (Sender<T>, Receiver<T>) {
    bounded(usize::MAX)
}

/// At most so many wait; none would be a hand-over from thread to thread, which nothing here uses.
pub(crate) fn bounded<T>(most: usize) -> (Sender<T>, Receiver<T>) {
    let line = Line { waiting: VecDeque::new(), senders: 1, receivers: 1, most: most.max(1) };
    let both = Arc::new(Both { line: Mutex::new(line), changed: Condvar::new() });
    (Sender(both.clone()), Receiver(both))
}

impl<T> Sender<T> {
    #[track_caller]
    pub(crate) fn send(&self, what: T) -> Result<(), SendError<T>> {
        let mut line = self.0.line.lock();
        while line.receivers > 0 && line.waiting.len() >= line.most {
            self.0.changed.wait(&mut line);
        }
        if line.receivers == 0 {
            return Err(SendError(what));
        }
        line.waiting.push_back(what);
        drop(line);
        self.0.changed.notify_all();
        Ok(())
    }
}

impl<T> Receiver<T> {
    #[track_caller]
    pub(crate) fn try_recv(&self) -> Result<T, TryRecvError> {
        let mut line = self.0.line.lock();
        let taken = line.waiting.pop_front();
        let none = if line.senders == 0 { TryRecvError::Disconnected } else { TryRecvError::Empty };
        drop(line);
        if taken.is_some() {
            self.0.changed.notify_all();
        }
        taken.ok_or(none)
    }
    #[track_caller]
    pub(crate) fn recv(&self) -> Result<T, RecvError> {
        self.recv_until(None).map_err(|_| RecvError)
    }
    #[track_caller]
    pub(crate) fn recv_timeout(&self, at_most: Duration) -> Result<T, RecvTimeoutError> {
        self.recv_until(Some(since_start().saturating_add(at_most)))
    }
    #[track_caller]
    fn recv_until(&self, end: Option<Duration>) -> Result<T, RecvTimeoutError> {
        let mut line = self.0.line.lock();
        loop {
            if let Some(taken) = line.waiting.pop_front() {
                drop(line);
                self.0.changed.notify_all();
                return Ok(taken);
            }
            if line.senders == 0 {
                return Err(RecvTimeoutError::Disconnected);
            }
            match end.map(|end| end.saturating_sub(since_start())) {
                None => self.0.changed.wait(&mut line),
                Some(left) if left.is_zero() => return Err(RecvTimeoutError::Timeout),
                Some(left) => drop(self.0.changed.wait_for(&mut line, left)),
            }
        }
    }
    pub(crate) fn is_empty(&self) -> bool {
        self.0.line.lock().waiting.is_empty()
    }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        self.0.line.lock().senders += 1;
        Self(self.0.clone())
    }
}

impl<T> Clone for Receiver<T> {
    fn clone(&self) -> Self {
        self.0.line.lock().receivers += 1;
        Self(self.0.clone())
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        self.0.line.lock().senders -= 1;
        self.0.changed.notify_all();
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        let mut line = self.0.line.lock();
        line.receivers -= 1;
        // What nobody can take any more is gone, outside of the lock: it may be a sender itself.
        let lost = if line.receivers == 0 { std::mem::take(&mut line.waiting) } else { VecDeque::new() };
        drop(line);
        drop(lost);
        self.0.changed.notify_all();
    }
}

impl<T> Iterator for Receiver<T> {
    type Item = T;
    fn next(&mut self) -> Option<T> {
        self.recv().ok()
    }
}

/// `for x in &receiver`.
pub(crate) struct Iter<'a, T>(&'a Receiver<T>);

impl<T> Iterator for Iter<'_, T> {
    type Item = T;
    fn next(&mut self) -> Option<T> {
        self.0.recv().ok()
    }
}

impl<'a, T> IntoIterator for &'a Receiver<T> {
    type Item = T;
    type IntoIter = Iter<'a, T>;
    fn into_iter(self) -> Iter<'a, T> {
        Iter(self)
    }
}
