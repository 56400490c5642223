//! What asks for a look at the alert rules: the facts of commits, told in a few flags, so that an idle queue is never woken for them.
//!
//! The rules are watched whether or not anybody is told: `look` keeps what they say, `tell` calls the app.

use super::oldest::Sweep;
use super::tell::Teller;
use super::wake::TimerHandle;
use crate::handler::shared::Changed;
use crate::model::attempt::Outcome;
use crate::model::fact::Fact;
use crate::model::id::JobId;
use crate::model::job::State;
use crate::model::outbox::{News, TopicNews};
use crate::model::time::Mono;
use crate::observe::alerts::AlertRules;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

/// While a line was told to be stuck and moves, it is looked at this often; so is a topic whose oldest message goes out.
pub(super) const MOVING: Duration = Duration::from_secs(60);

/// What is watched, and who is told.
pub(crate) struct Alarms {
    pub(super) rules: AlertRules,
    pub(super) timer: TimerHandle,
    /// How far the search for the oldest message is, by topic.
    pub(super) sweeps: Mutex<BTreeMap<String, Sweep>>,
    /// Who is told, if anybody is.
    pub(crate) teller: Option<Arc<Teller>>,
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
    /// Nothing is known yet: the first look, at the start, finds out what there is.
    pub(crate) fn new(rules: AlertRules, timer: TimerHandle, teller: Option<Arc<Teller>>) -> Arc<Self> {
        Arc::new(Self {
            rules,
            timer,
            teller,
            sweeps: Mutex::default(),
            attempts: AtomicU64::new(0),
            retries: AtomicU64::new(0),
            watches_line: AtomicBool::new(false),
            line_told: AtomicBool::new(false),
            watches_outbox: AtomicBool::new(false),
            outbox_told: AtomicBool::new(false),
            window: AtomicBool::new(false),
            jobs_told: Mutex::default(),
            any_told: AtomicBool::new(false),
        })
    }
    /// What became durable. Cheap where nothing has to be looked at: a few flags.
    pub(crate) fn heard(&self, changes: &[Changed], now: Mono) {
        let mut at_once = false;
        for c in changes {
            for fact in c.change.facts() {
                match fact {
                    Fact::Letter { job, .. } if c.change.brings_letter() => {
                        if let Some(teller) = &self.teller {
                            teller.letter(*job, c.change.record().revision);
                        }
                        at_once = true;
                    }
                    Fact::LetterClosed(_) => at_once = true,
                    Fact::Attempt { attempt, outcome, given_back: false, .. } => {
                        at_once |= self.attempt(*attempt, *outcome);
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
        for TopicNews { topic, news } in news {
            match news {
                News::Written | News::Retried | News::Resent => {
                    if matches!(news, News::Retried) {
                        // It is older than others that are on their way.
                        self.sweeps.lock().remove(topic);
                    }
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
    fn attempt(&self, attempt: u32, outcome: Outcome) -> bool {
        self.attempts.fetch_add(1, Ordering::AcqRel);
        let retry = attempt > 1;
        if retry {
            self.retries.fetch_add(1, Ordering::AcqRel);
        }
        // Noted in the commit of its end.
        let often = outcome.failed() && self.rules.failures.is_some_and(|n| attempt >= n);
        often || (retry && self.rules.retry_ratio.is_some() && !self.window.load(Ordering::Acquire))
    }
}
