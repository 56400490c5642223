//! Who is told that a person is needed: a thread of its own calls the app, the writer keeps what was told, the timer looks again.
//!
//! Keeps the promise that what is told is durable first, so that a restart does not repeat it, that no callback runs
//! inside a transaction or holds up the queue, and that one that panics harms nobody.

use super::wake::TimerHandle;
use crate::handler::effect::panic_text;
use crate::handler::shared::{Changed, inside_transaction};
use crate::model::attempt::Outcome;
use crate::model::fact::Fact;
use crate::model::id::JobId;
use crate::model::job::{JobState, State};
use crate::model::outbox::{News, TopicNews};
use crate::model::time::Mono;
use crate::observe::alerts::{AlertRules, Book, Failing, Notice};
use crate::observe::events;
use crossbeam_channel::{Receiver, Sender};
use parking_lot::Mutex;
use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// The setting in which the memory of the rules is kept.
pub(crate) const ALERTS: &str = "alerts";
/// While a line was told to be stuck and moves, it is looked at this often.
const MOVING: Duration = Duration::from_secs(60);
/// A shutdown waits this long for what is still to be told.
const PATIENCE: Duration = Duration::from_secs(5);
const THREAD: &str = "onceward-alerts";

/// What the app is told.
pub(crate) enum Word {
    /// A letter was created.
    Letter(JobId),
    /// A rule spoke.
    Notice(Notice),
    /// Nothing more will come; whoever waits for that hears it.
    Stop(Sender<()>),
}

/// What is watched, and who is told.
pub(crate) struct Alarms {
    pub(super) rules: AlertRules,
    pub(super) timer: TimerHandle,
    pub(super) to: Sender<Word>,
    pub(super) book: Mutex<Book>,
    pub(super) failing: Mutex<Vec<Failing>>,
    pub(super) attempts: AtomicU64,
    pub(super) retries: AtomicU64,
    /// A look at the line is planned: enqueues need not ask for one.
    pub(super) watches_line: AtomicBool,
    /// The line was told to be stuck: when it moves it is looked at.
    pub(super) line_told: AtomicBool,
    /// The same two for the outbox.
    pub(super) watches_outbox: AtomicBool,
    pub(super) outbox_told: AtomicBool,
    /// A window over retries is open.
    pub(super) window: AtomicBool,
    /// Jobs that were told: the end of each is looked for.
    pub(super) jobs_told: Mutex<HashSet<JobId>>,
    pub(super) any_told: AtomicBool,
}

impl Alarms {
    /// With the memory that the file has.
    pub(crate) fn new(rules: AlertRules, kept: Option<&[u8]>, timer: TimerHandle) -> (Arc<Self>, Receiver<Word>) {
        // What cannot be read was written by a version that knew other rules: they begin anew.
        let book: Book = kept.and_then(|bytes| serde_json::from_slice(bytes).ok()).unwrap_or_default();
        let (to, from) = crossbeam_channel::unbounded();
        let alarms = Self {
            rules,
            timer,
            to,
            book: Mutex::new(book),
            failing: Mutex::default(),
            attempts: AtomicU64::new(0),
            retries: AtomicU64::new(0),
            watches_line: AtomicBool::new(false),
            line_told: AtomicBool::new(false),
            watches_outbox: AtomicBool::new(false),
            outbox_told: AtomicBool::new(false),
            window: AtomicBool::new(false),
            jobs_told: Mutex::default(),
            any_told: AtomicBool::new(false),
        };
        (Arc::new(alarms), from)
    }
    /// What became durable. Cheap where nothing has to be looked at: a few flags.
    pub(crate) fn heard(&self, changes: &[Changed], now: Mono) {
        let mut at_once = false;
        for c in changes {
            let was_asked = matches!(c.change.before(), Some(JobState::NeedsDecision | JobState::Dead));
            for fact in c.change.facts() {
                match fact {
                    Fact::Letter { job, .. } if !was_asked => {
                        let _ = self.to.send(Word::Letter(*job));
                        at_once = true;
                    }
                    Fact::LetterClosed(_) => at_once = true,
                    Fact::Attempt { attempt, outcome, given_back: false, .. } => {
                        at_once |= self.attempt(c, *attempt, *outcome);
                    }
                    Fact::Enqueued(_) | Fact::Moved { to: State::Ready, .. } => self.ready(now),
                    Fact::Claimed(_) => self.moves(now),
                    Fact::Ended { job, .. } => {
                        self.moves(now);
                        at_once |= self.any_told.load(Ordering::Acquire) && self.jobs_told.lock().contains(job);
                    }
                    Fact::Letter { .. }
                    | Fact::Attempt { .. }
                    | Fact::Moved { .. }
                    | Fact::LeaseExpired(_)
                    | Fact::Effect { .. }
                    | Fact::Compensation { .. }
                    | Fact::Conflict { .. } => {}
                }
            }
        }
        if at_once {
            self.timer.look_at_alerts(now);
        }
    }
    /// Messages were written, or delivered.
    pub(crate) fn outbox(&self, news: &[TopicNews], now: Mono) {
        for TopicNews { news, .. } in news {
            match news {
                News::Written | News::Retried | News::Resent => {
                    if let Some(limit) = self.rules.outbox
                        && !self.watches_outbox.swap(true, Ordering::AcqRel)
                    {
                        self.timer.look_at_alerts(now.after(limit));
                    }
                }
                News::Published | News::Discarded => {
                    if self.outbox_told.load(Ordering::Acquire) && self.outbox_told.swap(false, Ordering::AcqRel) {
                        self.timer.look_at_alerts(now.after(MOVING));
                    }
                }
                News::Existing | News::Failed(_) | News::Dead { .. } => {}
            }
        }
    }
    /// Pauses and resumes change which lines count.
    pub(crate) fn look(&self, now: Mono) {
        self.timer.look_at_alerts(now);
    }
    /// Some line moves: if one was told to be stuck, it is looked at in a while.
    fn moves(&self, now: Mono) {
        if self.line_told.load(Ordering::Acquire) && self.line_told.swap(false, Ordering::AcqRel) {
            self.timer.look_at_alerts(now.after(MOVING));
        }
    }
    fn ready(&self, now: Mono) {
        if let Some(limit) = self.rules.oldest_job
            && !self.watches_line.swap(true, Ordering::AcqRel)
        {
            self.timer.look_at_alerts(now.after(limit));
        }
    }
    fn attempt(&self, c: &Changed, attempt: u32, outcome: Outcome) -> bool {
        self.attempts.fetch_add(1, Ordering::AcqRel);
        let retry = attempt > 1;
        if retry {
            self.retries.fetch_add(1, Ordering::AcqRel);
        }
        let failed = matches!(outcome, Outcome::Retry | Outcome::NeedsDecision | Outcome::Dead | Outcome::Compensating);
        let often = failed && self.rules.failures.is_some_and(|n| attempt >= n);
        if often {
            let (kind, key) = (c.kind.to_string(), c.key.to_string());
            self.failing.lock().push(Failing { job: c.change.record().id, kind, key, attempts: attempt });
        }
        often || (retry && self.rules.retry_ratio.is_some() && !self.window.load(Ordering::Acquire))
    }
    /// Everything that is still to be told is told, within a bound: the file is open until then.
    pub(crate) fn stop(&self) {
        let (done, told) = crossbeam_channel::bounded(1);
        // The thread that tells does not wait for itself, nor does the writer, which a callback may wait for.
        let waits = std::thread::current().name() != Some(THREAD) && !inside_transaction();
        if self.to.send(Word::Stop(done)).is_ok() && waits {
            let _ = told.recv_timeout(PATIENCE);
        }
    }
}

/// Starts the thread that calls the app. Nobody joins it: an app's callback may take as long as it likes.
pub(crate) fn spawn(from: Receiver<Word>, tell: impl Fn(Word) + Send + 'static) -> std::io::Result<()> {
    #[expect(clippy::disallowed_methods, reason = "the engine owns the threads")]
    let thread = std::thread::Builder::new().name(THREAD.into()).spawn(move || {
        for word in from {
            if let Word::Stop(done) = word {
                let _ = done.send(());
                return;
            }
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| tell(word))) {
                events::warning(&format!("an alert could not be told: the callback panicked: {}", panic_text(panic)));
            }
        }
    });
    thread.map(drop)
}
