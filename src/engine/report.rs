//! Changes, after their commit: counters, one log line per attempt, who waits for a job, what the timer has to know.

use super::alerts::Alarms;
use super::relays::Relays;
use super::wake::TimerHandle;
use crate::handler::shared::{Changed, Report, Suppressed};
use crate::model::fact::Fact;
use crate::model::id::JobId;
use crate::model::job::State;
use crate::model::outbox::{News, TopicNews};
use crate::model::time::Now;
use crate::observe::{Committed, Duplicate, Observer, events};
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicU64, Ordering};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

/// Somebody who waits for a job to settle.
pub(crate) type Waiter = Box<dyn FnOnce(State) + Send>;

/// Where changes go.
pub(crate) struct Reporter {
    timer: TimerHandle,
    clock: Arc<dyn crate::clock::Clock>,
    waiters: Mutex<HashMap<JobId, Vec<(u64, Waiter)>>>,
    next: AtomicU64,
    relays: Arc<Relays>,
    pub(crate) observer: Observer,
    alarms: Option<Arc<Alarms>>,
}

impl Reporter {
    pub(crate) fn new(
        timer: TimerHandle,
        clock: Arc<dyn crate::clock::Clock>,
        relays: Arc<Relays>,
        observer: Observer,
        alarms: Option<Arc<Alarms>>,
    ) -> Self {
        Self { timer, clock, waiters: Mutex::new(HashMap::new()), next: AtomicU64::new(0), relays, observer, alarms }
    }
    /// Has `f` called when the job settles, or begins to be undone. Register first, then look: what settles in between is not missed.
    pub(crate) fn wait(&self, job: JobId, f: Waiter) -> u64 {
        let n = self.next.fetch_add(1, Ordering::Relaxed);
        self.waiters.lock().entry(job).or_default().push((n, f));
        n
    }
    pub(crate) fn forget(&self, job: JobId, n: u64) {
        let mut waiters = self.waiters.lock();
        if let Some(list) = waiters.get_mut(&job) {
            list.retain(|(m, _)| *m != n);
            if list.is_empty() {
                waiters.remove(&job);
            }
        }
    }
    /// Lets everybody go who still waits: the queue is gone.
    pub(crate) fn release(&self) {
        self.waiters.lock().clear();
    }
    fn settled(&self, job: JobId, state: State) {
        let list = self.waiters.lock().remove(&job).unwrap_or_default();
        for (_, f) in list {
            f(state);
        }
    }
    fn now(&self) -> Now {
        self.clock.now()
    }
}

impl Report for Reporter {
    fn changed(&self, changes: &[Changed]) {
        let now = self.now();
        let at = now.wall;
        let told: Vec<Committed<'_>> = changes
            .iter()
            .map(|c| Committed {
                at,
                kind: &c.kind,
                queue: c.queue,
                key: &c.key,
                before: c.change.before(),
                record: c.change.record(),
                journal: c.change.journal(),
                facts: c.change.facts(),
                wait_ms: c.waited_ms,
                run: c.run.as_ref(),
            })
            .collect();
        self.observer.committed(&told);
        if let Some(alarms) = &self.alarms {
            alarms.heard(changes, now.mono);
        }
        // Whoever registers from here on looks at the store next, where all of this is.
        let anybody_waits = !self.waiters.lock().is_empty();
        for (change, fact) in changes.iter().flat_map(|c| c.change.facts().iter().map(|f| (&c.change, f))) {
            if let Fact::Moved { job, to, due } = fact {
                if let Some(due) = due {
                    self.timer.due(*job, *due, &change.record().state, now);
                }
                if to.is_over() {
                    self.timer.maintain();
                }
                // Whoever waits for a job that is undone has more to watch from here on.
                if anybody_waits && (to.is_settled() || *to == State::Compensating) {
                    self.settled(*job, *to);
                }
            }
        }
    }
    fn carried(&self, kind: &str, continuing: bool) {
        self.observer.counters().carry(kind, continuing, 1);
    }
    fn suppressed(&self, kind: &str, at: Suppressed) {
        let at = match at {
            Suppressed::Enqueue => Duplicate::Enqueue,
            Suppressed::Effect => Duplicate::Effect,
            Suppressed::Step => Duplicate::Step,
        };
        self.observer.counters().duplicate(kind, at);
    }
    fn outbox(&self, news: &[TopicNews]) {
        self.observer.outbox(news);
        if let Some(alarms) = &self.alarms {
            alarms.outbox(news, self.now().mono);
        }
        for TopicNews { topic, news } in news {
            match news {
                News::Written | News::Retried | News::Resent => self.relays.wake(topic),
                News::Discarded => {
                    // What waited behind it may go on, and it fades some day.
                    self.relays.wake(topic);
                    self.timer.maintain();
                }
                News::Published => self.timer.maintain(),
                News::Existing | News::Failed(_) | News::Dead { .. } => {}
            }
        }
    }
    fn resumed(&self) {
        self.relays.wake_all();
    }
    fn paused(&self) {
        if let Some(alarms) = &self.alarms {
            alarms.look(self.now().mono);
        }
    }
    fn warn(&self, text: &str) {
        events::warning(text);
    }
    fn committed(&self, took: Duration) {
        self.observer.counters().commit(u64::try_from(took.as_micros()).unwrap_or(u64::MAX));
    }
}
