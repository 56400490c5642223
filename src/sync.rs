//! Threads, locks, channels and atomics, under one name each: those of the operating system, or, in a build with
//! `--cfg onceward_shuttle`, those of a scheduler that runs all threads of a queue in one, in an order that a seed decides.
//!
//! Keeps the promise that the tests which try many orders of threads (`tests/schedules/races`) and whole simulated worlds
//! (`tests/schedules/simulation`) run the code that apps run, and no other. Whoever waits or hands something over in `engine`, `handler`
//! and `store` takes the means from here; a lock that is never held while its holder waits for anything need not.

#[cfg(not(onceward_shuttle))]
mod real {
    pub(crate) use crossbeam_channel as channel;
    pub(crate) use parking_lot::{Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard};
    pub(crate) use std::sync::atomic;
    pub(crate) use std::thread;
    pub(crate) use std::thread_local;

    /// What the whole process shares.
    macro_rules! process_wide {
        ($($(#[$attr:meta])* static $name:ident: $of:ty = $new:expr;)*) => {
            $($(#[$attr])* static $name: std::sync::LazyLock<$of> = std::sync::LazyLock::new(|| $new);)*
        };
    }
    pub(crate) use process_wide;
}

#[cfg(onceward_shuttle)]
mod sim;

#[cfg(not(onceward_shuttle))]
pub(crate) use real::{
    Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, atomic, channel, process_wide, thread, thread_local,
};
#[cfg(onceward_shuttle)]
pub(crate) use sim::{
    Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, atomic, channel, process_wide, since_start, thread,
    thread_local,
};
#[cfg(onceward_shuttle)]
pub use sim::{Order, Ran, run};
