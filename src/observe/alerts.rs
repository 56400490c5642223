//! When somebody has to be told: which rules there are, and what they say.
//!
//! What a rule said last about one subject is kept ([`Said`]) until it is over and somebody heard so: that is how a restart neither
//! repeats nor swallows it. Decided in [`watch`](super::watch), carried to the app by the engine.

use crate::model::id::JobId;
use crate::model::time::Wall;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Which rules there are, and from when on they speak; each can be switched off with `None`.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct AlertRules {
    /// Dead letters have waited without a break for this long (30 minutes).
    pub dead_letters: Option<Duration>,
    /// The same job has failed this often (5 times).
    pub failures: Option<u32>,
    /// The first job in line of a kind that is not paused has been ready for this long (15 minutes).
    pub oldest_job: Option<Duration>,
    /// A message of the outbox is undelivered for this long (15 minutes), whoever holds it up.
    pub outbox: Option<Duration>,
    /// The share of retries among the attempts has jumped.
    pub retry_ratio: Option<RetryRatio>,
}

/// When the share of retries counts as having jumped.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RetryRatio {
    /// At least this share of the attempts in a window are not the first of their job (0.25),
    pub share: f64,
    /// and at least this many times the usual share (3),
    pub times_usual: f64,
    /// among at least so many attempts (20),
    pub attempts: u64,
    /// in a window of this length (10 minutes).
    pub window: Duration,
}

impl Default for AlertRules {
    fn default() -> Self {
        Self {
            dead_letters: Some(Duration::from_secs(30 * 60)),
            failures: Some(5),
            oldest_job: Some(Duration::from_secs(15 * 60)),
            outbox: Some(Duration::from_secs(15 * 60)),
            retry_ratio: Some(RetryRatio {
                share: 0.25,
                times_usual: 3.0,
                attempts: 20,
                window: Duration::from_secs(10 * 60),
            }),
        }
    }
}

impl AlertRules {
    /// Whether any is on.
    pub fn any(&self) -> bool {
        let Self { dead_letters, failures, oldest_job, outbox, retry_ratio } = self;
        dead_letters.is_some()
            || failures.is_some()
            || oldest_job.is_some()
            || outbox.is_some()
            || retry_ratio.is_some()
    }
    /// The defaults.
    pub fn new() -> Self {
        Self::default()
    }
    /// Dead letters for this long.
    #[must_use]
    pub fn dead_letters(mut self, after: impl Into<Option<Duration>>) -> Self {
        self.dead_letters = after.into();
        self
    }
    /// The same job so often.
    #[must_use]
    pub fn failures(mut self, n: impl Into<Option<u32>>) -> Self {
        self.failures = n.into();
        self
    }
    /// The first job in line for this long.
    #[must_use]
    pub fn oldest_job(mut self, after: impl Into<Option<Duration>>) -> Self {
        self.oldest_job = after.into();
        self
    }
    /// A message of the outbox undelivered for this long.
    #[must_use]
    pub fn outbox(mut self, after: impl Into<Option<Duration>>) -> Self {
        self.outbox = after.into();
        self
    }
    /// The share of retries.
    #[must_use]
    pub fn retry_ratio(mut self, rule: impl Into<Option<RetryRatio>>) -> Self {
        self.retry_ratio = rule.into();
        self
    }
}

/// Which rule speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum AlertRule {
    /// Dead letters have waited for too long.
    DeadLetters,
    /// The same job fails again and again.
    SameJobFailing,
    /// A job that could run is not run.
    OldestJob,
    /// A message of the outbox is not delivered.
    OutboxStuck,
    /// More attempts than usual are retries.
    RetryRatio,
    /// The file may be an older copy, and nobody has lifted its review. Speaks at once, whenever any rule is on.
    OlderCopy,
    /// The disk is full: nothing new is taken. Speaks at once, whenever any rule is on.
    DiskFull,
}

impl AlertRule {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::DeadLetters,
        Self::SameJobFailing,
        Self::OldestJob,
        Self::OutboxStuck,
        Self::RetryRatio,
        Self::OlderCopy,
        Self::DiskFull,
    ];
    /// What it says of this, as one name.
    pub(crate) fn about(self, of: &dyn std::fmt::Display) -> String {
        format!("{}/{of}", self.as_str())
    }
    /// One word, for logs and labels.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::DeadLetters => "dead-letters",
            Self::SameJobFailing => "same-job-failing",
            Self::OldestJob => "oldest-job",
            Self::OutboxStuck => "outbox-stuck",
            Self::RetryRatio => "retry-ratio",
            Self::OlderCopy => "older-copy",
            Self::DiskFull => "disk-full",
        }
    }
}

/// What a rule says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Firing {
    /// Which rule.
    pub rule: AlertRule,
    /// The kind it is about, if it is about one.
    pub kind: Option<String>,
    /// The job it is about, if it is about one.
    pub job: Option<JobId>,
    /// That job's key.
    pub key: Option<String>,
    /// The topic of the outbox it is about, if it is about one.
    pub topic: Option<String>,
    /// Since when.
    pub since: Wall,
    /// In plain words.
    pub text: String,
}

impl Firing {
    /// What it is about, as one name: a rule speaks once about each.
    pub fn subject(&self) -> String {
        let rule = self.rule;
        match (&self.job, &self.kind, &self.topic, rule) {
            (_, Some(kind), _, AlertRule::OldestJob) => rule.about(kind),
            (Some(job), _, _, _) => rule.about(job),
            (None, Some(of), _, _) | (None, None, Some(of), _) => rule.about(of),
            (None, None, None, _) => rule.as_str().to_owned(),
        }
    }
}

/// A rule begins or ceases to speak.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// It has come to that.
    Fired(Firing),
    /// It is over.
    Resolved(Firing),
}

/// What a rule said last about one subject: kept until it is over and somebody heard so.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Said {
    /// No other has it: what was heard is this one, not a later one about the same subject.
    pub number: u64,
    /// What.
    pub firing: Firing,
    /// It ceased to speak.
    pub over: bool,
    /// The app's callback returned from it.
    pub heard: bool,
}

impl Said {
    /// Not heard yet.
    pub fn new(number: u64, notice: Notice) -> Self {
        let (firing, over) = match notice {
            Notice::Fired(f) => (f, false),
            Notice::Resolved(f) => (f, true),
        };
        Self { number, firing, over, heard: false }
    }
}
