//! Facts: what a commit made true. Decisions list them; after the commit one place turns them into log lines and counters,
//! so that no metric can count what did not become durable.

use super::attempt::{Class, Outcome};
use super::effect::EffectState;
use super::id::{EffectId, JobId};
use super::job::{End, State};
use super::letter::Why;
use super::time::Wall;

/// What a compensation came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Compensation {
    /// Everything that was done is undone.
    Complete,
    /// Something stays as it is, as a person was told before.
    Partial,
    /// It stopped on the way: a person is asked.
    Stopped,
}

impl Compensation {
    /// As it stands in labels and lines.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Complete => "complete",
            Self::Partial => "partial",
            Self::Stopped => "stopped",
        }
    }
}

/// Something that became true with a commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fact {
    /// A job exists.
    Enqueued(JobId),
    /// A job moved.
    Moved {
        /// Which job.
        job: JobId,
        /// To where.
        to: State,
        /// Due again, if it is delayed or waiting.
        due: Option<Wall>,
    },
    /// A job was claimed.
    Claimed(JobId),
    /// An attempt ended.
    Attempt {
        /// Which job.
        job: JobId,
        /// Which attempt.
        attempt: u32,
        /// In one word.
        outcome: Outcome,
        /// The failure's class.
        class: Option<Class>,
        /// What went wrong, cut.
        error: Option<String>,
        /// When it comes back, if it does.
        next: Option<Wall>,
        /// The claim does not count as an attempt: it was given back, or it went on with an earlier one. Attempts are the
        /// facts without it.
        given_back: bool,
    },
    /// A lease ran out.
    LeaseExpired(JobId),
    /// An effect reached a state.
    Effect {
        /// Which job.
        job: JobId,
        /// Which effect.
        effect: EffectId,
        /// Its state now.
        state: EffectState,
        /// It was proven by a call whose lease was over.
        late: bool,
        /// The provider's operation id.
        reference: Option<String>,
    },
    /// Two different proofs, or a proof against a person's word.
    Conflict {
        /// Which job.
        job: JobId,
        /// Which effect.
        effect: EffectId,
    },
    /// A letter was created or changed.
    Letter {
        /// Which job.
        job: JobId,
        /// Why.
        why: Why,
    },
    /// A letter is answered.
    LetterClosed(JobId),
    /// A compensation is over, or stopped.
    Compensation {
        /// Which job.
        job: JobId,
        /// What it came to.
        result: Compensation,
    },
    /// A job is over.
    Ended {
        /// Which job.
        job: JobId,
        /// How.
        how: End,
    },
}
