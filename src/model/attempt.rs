//! How an attempt ends, and what is said about it in the log.

use super::id::EffectId;
use super::question::Question;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::Duration;

/// When a failure is worth another try.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Class {
    /// Later may be better.
    Transient,
    /// Never: trying again cannot help.
    Permanent,
    /// Nobody knows whether an effect happened.
    Unknown,
}

/// What the engine saw of one claim; not durable, only told.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Run {
    /// Who held the lease, e.g. `worker-3`.
    pub owner: Arc<str>,
    /// The last thing the handler asked for, e.g. `effect charge`.
    pub step: Option<String>,
    /// The provider's operation ids that became known.
    pub operations: Vec<String>,
    /// How long the handler had it, by the stopwatch.
    pub duration_ms: u64,
    /// What the handler noted.
    pub notes: Vec<(String, String)>,
}

/// A failure that is not about an effect's outcome.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Worth another try?
    pub class: Class,
    /// What went wrong, cut to the limit.
    pub text: String,
    /// Asked for by the provider or the handler: not before this long.
    pub retry_after: Option<Duration>,
}

/// Why an attempt may go no further: once said, every later call of the attempt gets the same answer.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Stop {
    /// A call of this attempt ended without an answer.
    Unknown(EffectId, String),
    /// An earlier call has not settled: wait this long.
    Settling(EffectId, u64),
    /// An earlier call still runs; a person is asked when this many ms are over.
    OldCall(EffectId, u64),
    /// The probe could not tell.
    CannotTell(EffectId, String),
    /// A person has to answer.
    Ask(Question),
    /// An earlier attempt left this effect unresolved and the handler asked for another one first.
    Earlier(EffectId),
    /// Calling again is a new attempt, and none is left.
    NoAttemptLeft(EffectId),
    /// The lease is over: another attempt may be running.
    Fenced,
    /// The process shuts down or the runtime is gone.
    Interrupted,
    /// The job was finished by `finish`.
    Finished,
}

/// What stands before the text of a panic.
pub const PANICKED: &str = "panicked: ";

/// How an attempt ended, as the engine saw it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AttemptEnd {
    /// The handler returned Ok, or `finish` committed.
    Success,
    /// The handler returned an error.
    Failed(Failure),
    /// The handler said "not yet": reason and wait.
    NotYet(String, Duration),
    /// The handler panicked.
    Panicked(String),
    /// The attempt was stopped.
    Stopped(Stop),
    /// No sign of progress for the stall timeout.
    Stalled,
    /// The attempt took longer than allowed.
    TimedOut,
    /// Shutdown, a lost runtime or a cancelled task; nobody failed.
    Interrupted,
    /// Claimed, but the handler was never called.
    NeverStarted,
    /// Today's app cannot read the payload.
    Unreadable(String),
    /// The handler returned an error after the job was asked to stop.
    Cancelled,
}

/// What a recovery learned about a claim that a dead process left behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Evidence {
    /// No slot: the handler was never called.
    NeverStarted,
    /// Its slot was filled in the same boot by another process: a suspect.
    Suspect {
        /// It was the only filled slot.
        alone: bool,
    },
    /// Another boot, or the same process: nobody's fault.
    Interrupted,
}

/// The one word of an attempt's log line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Outcome {
    /// The job is done.
    Success,
    /// Comes back later.
    Retry,
    /// The handler said "not yet".
    NotYet,
    /// Waits for a fact about an effect.
    Waiting,
    /// A person is asked.
    NeedsDecision,
    /// Retries ended.
    Dead,
    /// Nobody failed: shutdown, lost runtime, reboot.
    Interrupted,
    /// Cancelled.
    Cancelled,
    /// Retries ended, and what was done is being undone.
    Compensating,
}

impl Outcome {
    /// The handler, or what it asked for, failed.
    pub fn failed(self) -> bool {
        matches!(self, Self::Retry | Self::NeedsDecision | Self::Dead | Self::Compensating)
    }
    /// As it stands in the proof line.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Success => "success",
            Self::Retry => "retry",
            Self::NotYet => "not-yet",
            Self::Waiting => "waiting",
            Self::NeedsDecision => "needs-decision",
            Self::Dead => "dead",
            Self::Interrupted => "interrupted",
            Self::Cancelled => "cancelled",
            Self::Compensating => "compensating",
        }
    }
}
