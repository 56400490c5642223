//! Locks with the faces of `parking_lot` over those of the scheduler.

use super::time::{Until, Waiting};
use shuttle::sync as inner;
use std::ops::{Deref, DerefMut};
use std::panic::Location;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

/// A panic inside is the business of whoever guards the thread, not of the next one who locks.
fn sound<T>(locked: Result<T, PoisonError<T>>) -> T {
    locked.unwrap_or_else(PoisonError::into_inner)
}

#[derive(Debug, Default)]
pub(crate) struct Mutex<T>(inner::Mutex<T>);

/// `None` only while its thread waits.
pub(crate) struct MutexGuard<'a, T>(Option<inner::MutexGuard<'a, T>>);

const HELD: &str = "a guard is empty only inside of a wait, which has it to itself";

impl<T> Mutex<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(inner::Mutex::new(value))
    }
    #[track_caller]
    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        let _waits = Waiting::at(Location::caller());
        MutexGuard(Some(sound(self.0.lock())))
    }
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        self.0.as_ref().expect(HELD)
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.0.as_mut().expect(HELD)
    }
}

#[derive(Debug, Default)]
pub(crate) struct RwLock<T>(inner::RwLock<T>);

pub(crate) type RwLockReadGuard<'a, T> = inner::RwLockReadGuard<'a, T>;

impl<T> RwLock<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(inner::RwLock::new(value))
    }
    #[track_caller]
    pub(crate) fn read(&self) -> RwLockReadGuard<'_, T> {
        let _waits = Waiting::at(Location::caller());
        sound(self.0.read())
    }
    #[track_caller]
    pub(crate) fn write(&self) -> inner::RwLockWriteGuard<'_, T> {
        let _waits = Waiting::at(Location::caller());
        sound(self.0.write())
    }
    pub(crate) fn into_inner(self) -> T {
        sound(self.0.into_inner())
    }
}

#[derive(Debug, Default)]
pub(crate) struct Condvar(Arc<inner::Condvar>);

pub(crate) struct WaitTimeoutResult(bool);

impl WaitTimeoutResult {
    pub(crate) fn timed_out(&self) -> bool {
        self.0
    }
}

impl Condvar {
    pub(crate) fn new() -> Self {
        Self::default()
    }
    #[track_caller]
    pub(crate) fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
        let _waits = Waiting::at(Location::caller());
        let held = guard.0.take().expect(HELD);
        guard.0 = Some(sound(self.0.wait(held)));
    }
    #[track_caller]
    pub(crate) fn wait_for<T>(&self, guard: &mut MutexGuard<'_, T>, at_most: Duration) -> WaitTimeoutResult {
        let until = Until::new(at_most, &self.0);
        self.wait(guard);
        WaitTimeoutResult(until.is_over())
    }
    #[track_caller]
    pub(crate) fn wait_while_for<T>(
        &self,
        guard: &mut MutexGuard<'_, T>,
        mut waits: impl FnMut(&mut T) -> bool,
        at_most: Duration,
    ) -> WaitTimeoutResult {
        let until = Until::new(at_most, &self.0);
        while waits(&mut **guard) {
            if until.is_over() {
                return WaitTimeoutResult(true);
            }
            self.wait(guard);
        }
        WaitTimeoutResult(false)
    }
    pub(crate) fn notify_one(&self) {
        self.0.notify_one();
    }
    pub(crate) fn notify_all(&self) {
        self.0.notify_all();
    }
}
