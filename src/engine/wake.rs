//! The other threads' end of the timer: what it is told, and when it has to be woken for it.

use crate::handler::shared::Watchdog;
use crate::model::id::JobId;
use crate::model::job::{Delay, JobState};
use crate::model::time::{Mono, Now, Wall};
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::sync::channel::{self, Receiver, Sender};
use std::sync::Arc;

/// Between two tries to make a due job ready.
const LOOK_AGAIN: std::time::Duration = std::time::Duration::from_secs(30);

/// What the timer is told.
pub(crate) enum Told {
    /// A job is due at this instant of the calendar; the flag: only the calendar counts, not the stopwatch.
    Due(JobId, Wall, Mono, bool),
    /// A due job could not be made ready: it is tried again at this instant.
    Again(JobId, Wall, Mono),
    /// Look at the running leases: one of them may lapse before the next wake.
    Leases,
    /// A suspect has been alone for long enough at this instant.
    Alone(Mono),
    /// This closure begins to hold the writer, and nobody watches.
    Held(u64),
    /// The callback with this number is called; if it still is at this instant, it is named.
    Callback(u64, Mono),
    /// The clock was moved by hand; the sender hears when everything that became due was handed on.
    Tick(Option<Sender<()>>),
    /// A relay has something to do at this instant: which, when, and the clocks by which it worked that out.
    Relay(usize, Mono, Now),
    /// At this instant it is to be looked whether somebody has to be told.
    Alerts(Mono),
    /// Rows can be pruned, or the marks should be kept.
    Maintain,
    Stop,
}

/// The other threads' end.
#[derive(Clone)]
pub(crate) struct TimerHandle {
    to: Sender<Told>,
    next_wake: Arc<AtomicU64>,
    holder: Arc<Mutex<Holder>>,
    maintains: Arc<AtomicBool>,
}

impl TimerHandle {
    pub(crate) fn new() -> (Self, Receiver<Told>) {
        let (to, from) = channel::unbounded();
        (
            Self {
                to,
                next_wake: Arc::new(AtomicU64::new(u64::MAX)),
                holder: Arc::default(),
                maintains: Arc::default(),
            },
            from,
        )
    }
    /// The timer says until when it will sleep.
    pub(crate) fn sleeps_until(&self, at: u64) {
        self.next_wake.store(at, Ordering::Release);
    }
    /// A job waits from `now` on. When that ends by the stopwatch is worked out here, at once: by the time the timer hears it
    /// somebody may have set the calendar back, or the machine may have slept, which the timer finds then.
    pub(crate) fn due(&self, job: JobId, due: Wall, state: &JobState, now: Now) {
        let wait = due.since(now.wall).min(longest(state));
        let mono = Mono(now.mono.0.saturating_add(wait));
        let _ = self.to.send(Told::Due(job, due, mono, state.follows_calendar()));
    }
    /// A due job could not be made ready: it is tried again in a while.
    pub(crate) fn look_again(&self, job: JobId, due: Wall, now: Now) {
        let _ = self.to.send(Told::Again(job, due, now.mono.after(LOOK_AGAIN)));
    }
    /// A lease will lapse at this instant unless it is renewed; the timer is only woken if it would sleep longer.
    pub(crate) fn watch_lease(&self, lapses: Mono) {
        if lapses.0 < self.next_wake.load(Ordering::Acquire) {
            let _ = self.to.send(Told::Leases);
        }
    }
    pub(crate) fn alone(&self, over: Mono) {
        let _ = self.to.send(Told::Alone(over));
    }
    pub(crate) fn relay(&self, nth: usize, at: Mono, seen: Now) {
        let _ = self.to.send(Told::Relay(nth, at, seen));
    }
    pub(crate) fn look_at_alerts(&self, at: Mono) {
        let _ = self.to.send(Told::Alerts(at));
    }
    pub(crate) fn look_at_callback(&self, number: u64, at: Mono) {
        let _ = self.to.send(Told::Callback(number, at));
    }
    pub(crate) fn tick(&self, done: Option<Sender<()>>) {
        let _ = self.to.send(Told::Tick(done));
    }
    /// Looks at the clocks now; returns when everything that became due was handed on.
    #[cfg(feature = "testkit")]
    pub(crate) fn tick_and_wait(&self, at_most: std::time::Duration) {
        let (done, told) = channel::bounded(1);
        self.tick(Some(done));
        let _ = told.recv_timeout(at_most);
    }
    /// A job ended: some day its rows can be pruned. The timer is told once, not for every job.
    pub(crate) fn maintain(&self) {
        if !self.maintains.load(Ordering::Acquire) && !self.maintains.swap(true, Ordering::AcqRel) {
            let _ = self.to.send(Told::Maintain);
        }
    }
    /// The timer says whether it will look by itself.
    pub(crate) fn maintains(&self, by_itself: bool) {
        self.maintains.store(by_itself, Ordering::Release);
    }
    /// What became of the closure that held the writer when it was last looked at. Unless another one is to be watched now, the
    /// timer rests, and is told of the next one.
    pub(crate) fn look_at_holder(&self, was: u64) -> Hold {
        let mut holder = self.holder.lock();
        let hold = match &holder.name {
            Some(name) if holder.number == was => Hold::Still(name.clone()),
            Some(_) => Hold::Another(holder.number),
            None => Hold::Over,
        };
        holder.watched = matches!(hold, Hold::Another(_));
        hold
    }
    pub(crate) fn stop(&self) {
        let _ = self.to.send(Told::Stop);
    }
}

/// A look at the closure that holds the writer, or at the callback that is called.
pub(crate) enum Hold {
    /// Still the same one, by this name.
    Still(String),
    /// Another one, which began meanwhile.
    Another(u64),
    /// None.
    Over,
}

/// Who holds the writer: there is one writer, so there is at most one.
#[derive(Default)]
struct Holder {
    /// Of the newest one.
    number: u64,
    name: Option<String>,
    /// The timer looks by itself.
    watched: bool,
}

impl Watchdog for TimerHandle {
    fn hold(&self, name: &str) -> Box<dyn Send> {
        let mut holder = self.holder.lock();
        holder.number += 1;
        holder.name = Some(name.to_owned());
        // Told once, not for every closure.
        if !std::mem::replace(&mut holder.watched, true) {
            let _ = self.to.send(Told::Held(holder.number));
        }
        Box::new(Held(self.holder.clone()))
    }
}

struct Held(Arc<Mutex<Holder>>);

impl Drop for Held {
    fn drop(&mut self) {
        self.0.lock().name = None;
    }
}

/// How long a job may wait at most from a look on, whatever the calendar says: what was asked for. Only `at` follows the calendar.
pub(crate) fn longest(state: &JobState) -> u64 {
    match state {
        JobState::Delayed { why: Delay::At, .. } => u64::MAX,
        JobState::Delayed { delay_ms, .. } | JobState::Waiting { delay_ms, .. } => *delay_ms,
        JobState::Ready { .. }
        | JobState::Running { .. }
        | JobState::NeedsDecision
        | JobState::Dead
        | JobState::Compensating { .. }
        | JobState::Ended { .. } => u64::MAX,
    }
}
