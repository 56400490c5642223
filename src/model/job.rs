//! A job as it is stored: an immutable row (what was asked) and a small mutable record (where it stands).

use super::id::{EffectId, JobId, JobKey, KindId, Token};
use super::letter::Why;
use super::time::Wall;
use serde::{Deserialize, Serialize};

/// How a payload is encoded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Codec {
    /// Self-describing: a struct may gain fields, people can read it. The default.
    #[default]
    Json,
    /// Compact, for hot or binary payloads; such kinds override `upgrade_bytes`.
    Bincode,
}

/// The priority of a kind that says nothing else.
pub const PRIORITY: u8 = 128;

/// What was asked: written once at enqueue, never changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobRow {
    /// The kind as stored at enqueue.
    pub kind: KindId,
    /// The intent within the kind.
    pub key: JobKey,
    /// Rises when a finished intent is deliberately run again.
    pub incarnation: u32,
    /// The app's version of the payload.
    pub version: u32,
    /// How the payload is encoded.
    pub codec: Codec,
    /// What a person sees.
    pub title: String,
    /// When it was enqueued.
    pub enqueued: Wall,
    /// The payload.
    pub payload: Vec<u8>,
    /// What it undoes, if it was made by a compensation.
    pub undoes: Option<Undoes>,
}

/// The effect of another job that a job undoes: its end is told there, in the same commit.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Undoes {
    /// The job that is compensated.
    pub job: JobId,
    /// Its effect.
    pub effect: EffectId,
}

/// Why a delayed job is not due yet.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Delay {
    /// Asked for with `at`: the calendar decides.
    At,
    /// Asked for with `after`: the stopwatch decides inside a process.
    After,
    /// Between two attempts.
    Backoff,
    /// The handler said "not yet", with this reason.
    Snooze(String),
}

/// What a waiting job waits for. It spends neither an attempt nor a worker.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Wait {
    /// A call ended without an answer; the probe's "not there" is believed only after the settle time.
    Settling(EffectId),
    /// An earlier call has not returned yet; a person is asked when the bound is over.
    OldCall(EffectId),
    /// The probe could not tell; it is asked again later.
    CannotTell(EffectId),
}

impl Wait {
    /// The effect that is waited for.
    pub fn effect(&self) -> &EffectId {
        match self {
            Self::Settling(e) | Self::OldCall(e) | Self::CannotTell(e) => e,
        }
    }
}

/// How a job ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum End {
    /// The handler succeeded and every effect is accounted for.
    Done,
    /// A person took care of it outside.
    HandledOutside,
    /// A person threw it away.
    Discarded,
    /// It was cancelled before it ran, or stopped when asked to.
    Cancelled,
    /// It could not go forward, and what it had done was undone. Never a success.
    Compensated,
}

/// The ticket of a job that just became ready: the store replaces it with the next one.
pub const NEXT_TICKET: u64 = 0;

/// Where a job stands: exactly one of these, and every index row follows from it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum JobState {
    /// Can be claimed; the ticket orders it among its priority.
    Ready {
        /// Order among ready jobs of one kind and priority: earlier tickets first.
        ticket: u64,
    },
    /// Due later.
    Delayed {
        /// When, by the calendar.
        due: Wall,
        /// The delay as it was asked for, in ms: bounds the wait if the calendar jumps back.
        delay_ms: u64,
        /// Why.
        why: Delay,
    },
    /// A handler has it.
    Running {
        /// The fencing token of the claim.
        token: Token,
        /// This claim continues the last attempt instead of being a new one.
        continuing: bool,
    },
    /// Waits for a fact about an effect.
    Waiting {
        /// When it is looked at again, by the calendar.
        due: Wall,
        /// The wait as it was asked for, in ms.
        delay_ms: u64,
        /// For what.
        on: Wait,
    },
    /// A person has to answer; the letter holds the questions.
    NeedsDecision,
    /// Retries ended; the letter says why and what a person can do.
    Dead,
    /// Over.
    Ended {
        /// How.
        how: End,
        /// When.
        at: Wall,
    },
    /// It does not go forward: what it did is being undone by jobs of their own, one after the other. One of them is under way.
    Compensating {
        /// Effects that were known to stay as they are when this began.
        left: u32,
    },
}

impl JobState {
    /// How it ended, if it is over.
    pub fn end(&self) -> Option<End> {
        match self {
            Self::Ended { how, .. } => Some(*how),
            Self::Ready { .. }
            | Self::Delayed { .. }
            | Self::Running { .. }
            | Self::Waiting { .. }
            | Self::NeedsDecision
            | Self::Dead
            | Self::Compensating { .. } => None,
        }
    }
    /// Asked for with a date: whatever the stopwatch says, the calendar decides.
    pub fn follows_calendar(&self) -> bool {
        match self {
            Self::Delayed { why, .. } => *why == Delay::At,
            Self::Ready { .. }
            | Self::Running { .. }
            | Self::Waiting { .. }
            | Self::NeedsDecision
            | Self::Dead
            | Self::Ended { .. }
            | Self::Compensating { .. } => false,
        }
    }
}

/// Claims that were not attempts, by reason; claims = attempts + the sum of these.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct GivenBack {
    /// Shutdown, lost runtime, reboot.
    pub interrupted: u32,
    /// The handler said "not yet".
    pub snoozed: u32,
    /// Claimed, but the handler was never called.
    pub never_started: u32,
    /// Looked at an unresolved effect, then waited or continued the same attempt.
    pub settled: u32,
    /// The process died while other handlers ran too.
    pub died_beside_others: u32,
}

impl GivenBack {
    /// All of them together.
    pub fn sum(&self) -> u64 {
        [self.interrupted, self.snoozed, self.never_started, self.settled, self.died_beside_others]
            .iter()
            .map(|&n| u64::from(n))
            .sum()
    }
}

/// Where a job stands: small, rewritten by every change.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct JobRecord {
    /// Its number.
    pub id: JobId,
    /// Its kind as stored at enqueue.
    pub kind: KindId,
    /// 0 first, 255 last.
    pub priority: u8,
    /// Where it stands.
    pub state: JobState,
    /// Attempts so far, the running one included.
    pub attempts: u32,
    /// Claims so far.
    pub claims: u32,
    /// Claims that were not attempts.
    pub given_back: GivenBack,
    /// Attempts that a person granted on top of the policy's.
    pub granted: u32,
    /// The next claim continues the last attempt (an effect of it was settled).
    pub continues: bool,
    /// Replays by people.
    pub replays: u32,
    /// Deaths of the process with this handler alone at work: when the first of them was, and how many within 72 h.
    pub strikes: u8,
    /// When the first of the strikes was.
    pub first_strike: Wall,
    /// Was running when the process died: runs alone until proven innocent.
    pub suspect: bool,
    /// Rises with everything that a deciding person should know; a decision on an older view is refused.
    pub revision: u32,
    /// No attempt begins after this instant.
    pub deadline: Option<Wall>,
    /// The last token handed out for it.
    pub last_token: Token,
    /// Effect records it owns.
    pub effects: u32,
    /// Step and commit records it owns.
    pub memos: u32,
    /// Journal entries it owns.
    pub journal: u32,
    /// It was asked to stop.
    pub cancel: bool,
    /// Why it is dead or needs a decision.
    pub why: Option<Why>,
}

impl JobRecord {
    /// A fresh record in `state`.
    pub fn new(id: JobId, kind: KindId, priority: u8, state: JobState, deadline: Option<Wall>) -> Self {
        Self {
            id,
            kind,
            priority,
            state,
            attempts: 0,
            claims: 0,
            given_back: GivenBack::default(),
            granted: 0,
            continues: false,
            replays: 0,
            strikes: 0,
            first_strike: Wall(0),
            suspect: false,
            revision: 0,
            deadline,
            last_token: Token(0),
            effects: 0,
            memos: 0,
            journal: 0,
            cancel: false,
            why: None,
        }
    }
}

/// What a caller is told about a job's state. `Paused` is derived from its kind, never stored per job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum State {
    /// Can be claimed.
    Ready,
    /// Due later.
    Delayed,
    /// A handler has it.
    Running,
    /// Waits for a fact about an effect.
    Waiting,
    /// Could be claimed, but its kind or everything is paused.
    Paused,
    /// A person has to answer a question.
    NeedsDecision,
    /// Succeeded.
    Done,
    /// Retries ended; a person decides.
    Dead,
    /// A person took care of it outside.
    HandledOutside,
    /// A person threw it away.
    Discarded,
    /// Cancelled.
    Cancelled,
    /// It does not go forward: what it did is being undone.
    Compensating,
    /// What it did was undone.
    Compensated,
    /// Its row is pruned; only the memory of the intent is left.
    Remembered,
}

impl State {
    /// No handler will run for it again by itself, and no person is asked.
    pub fn is_over(self) -> bool {
        match self {
            Self::Done
            | Self::HandledOutside
            | Self::Discarded
            | Self::Cancelled
            | Self::Compensated
            | Self::Remembered => true,
            Self::Ready
            | Self::Delayed
            | Self::Running
            | Self::Waiting
            | Self::Paused
            | Self::NeedsDecision
            | Self::Compensating
            | Self::Dead => false,
        }
    }
    /// Over, or waiting for a person: what [`wait`](crate::Jobs::wait) waits for.
    pub fn is_settled(self) -> bool {
        self.is_over() || matches!(self, Self::NeedsDecision | Self::Dead)
    }
}

impl From<&JobState> for State {
    fn from(s: &JobState) -> Self {
        match s {
            JobState::Ready { .. } => Self::Ready,
            JobState::Delayed { .. } => Self::Delayed,
            JobState::Running { .. } => Self::Running,
            JobState::Waiting { .. } => Self::Waiting,
            JobState::NeedsDecision => Self::NeedsDecision,
            JobState::Dead => Self::Dead,
            JobState::Ended { how, .. } => Self::from(*how),
            JobState::Compensating { .. } => Self::Compensating,
        }
    }
}

impl From<End> for State {
    fn from(e: End) -> Self {
        match e {
            End::Done => Self::Done,
            End::HandledOutside => Self::HandledOutside,
            End::Discarded => Self::Discarded,
            End::Cancelled => Self::Cancelled,
            End::Compensated => Self::Compensated,
        }
    }
}

/// What is known of an intent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Intent {
    /// Its newest job has rows: everything follows from them.
    Kept(JobId, JobRow),
    /// The rows were pruned.
    Remembered(Identity),
}

impl Intent {
    /// Its newest job.
    pub fn id(&self) -> JobId {
        match self {
            Self::Kept(id, _) => *id,
            Self::Remembered(memory) => memory.id,
        }
    }
    /// That job's incarnation.
    pub fn incarnation(&self) -> u32 {
        match self {
            Self::Kept(_, row) => row.incarnation,
            Self::Remembered(memory) => memory.incarnation,
        }
    }
}

/// The memory of an intent: outlives the job's rows, so that a duplicate is recognised after retention.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// The newest job of this intent.
    pub id: JobId,
    /// Its incarnation.
    pub incarnation: u32,
    /// SHA-256 of version, codec and payload, first 16 bytes: tells "same key, other payload".
    pub digest: [u8; 16],
    /// How it ended.
    pub how: End,
    /// Until when the intent is remembered; `None`: for ever.
    pub until: Option<Wall>,
}

/// A remembered result of pure work (`step`) or of an app transaction (`commit`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Memo {
    /// Its name within the job.
    pub name: String,
    /// It was a commit, not a step.
    pub commit: bool,
    /// The value as JSON.
    pub value: Vec<u8>,
    /// The how manieth of its job, from 0.
    pub number: u32,
}

/// The answer to an enqueue: a duplicate is a value, never an error and never a silent drop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Enqueued {
    /// A new job.
    New(JobId),
    /// The intent was known already; nothing was changed.
    Existing {
        /// The real job's id.
        id: JobId,
        /// Where it stands.
        state: State,
        /// The payload differs from the stored one (the stored one is kept).
        differs: bool,
    },
}

impl Enqueued {
    /// The job's id, new or existing.
    pub fn id(&self) -> JobId {
        match self {
            Self::New(id) | Self::Existing { id, .. } => *id,
        }
    }
    /// Whether this call made the job.
    pub fn is_new(&self) -> bool {
        matches!(self, Self::New(_))
    }
}
