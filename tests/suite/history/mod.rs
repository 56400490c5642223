//! A recorded history, and the judge over it: what callers were told, what handlers, providers and people did, what the clocks and
//! the disk did, in the order in which it happened. Each invariant of the design whose feature shows in a history is one function
//! over it, named after its number; an answer is a sentence that says which promise was broken.
//!
//! A call that was cut off by a crash has no answer: it may have been done or not, and neither is held against anybody. What a dead
//! process would still have said is not recorded at all. `bad` hands each function a history that must never be accepted.

#![cfg_attr(onceward_shuttle, allow(dead_code, reason = "worlds do not have everything that `bad` has"))]

mod coverage;
mod effects;
mod jobs;
mod letters;
mod recorder;
mod runs;
mod time;
mod view;

#[cfg(not(onceward_shuttle))]
mod bad;

pub(crate) use coverage::Counts;
#[cfg(not(onceward_shuttle))]
pub(crate) use coverage::Coverage;
pub(crate) use recorder::Recorder;

use crate::oracle::{Kept, Posted};
use onceward::model::time::Now;
use onceward::{EffectState, Entry, JobId, KindRules, State, Undoing, Verdict};
use std::collections::{BTreeMap, BTreeSet};
use view::View;

/// A kind and a key.
pub(crate) type Name = (&'static str, String);

/// Something that happened.
#[derive(Clone, Debug)]
pub(crate) struct Event {
    /// In which life of the process, from 1; 0 is the world outside.
    pub(crate) life: u32,
    /// Both clocks.
    pub(crate) now: Now,
    pub(crate) what: What,
}

/// How a process ended without having been asked to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Crash {
    /// The process alone: the machine goes on.
    Kill,
    PowerCut,
}

/// What happened to the clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Moved {
    /// Both went on.
    Advance,
    /// Somebody set the calendar.
    Jump,
    /// The machine slept for so many ms: the stopwatch stood still.
    Suspend(u64),
}

/// When a job is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Due {
    AtOnce,
    /// After so many ms.
    After(u64),
    /// At this ms of the calendar.
    At(u64),
    /// At once, although it was done already: `run_again`.
    Again,
}

/// What somebody who asked for a job was told. Cut off by a crash: nothing at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Stored(JobId),
    Existing {
        id: JobId,
        differs: bool,
    },
    /// An error that says that nothing was done.
    NotDone,
    /// An error that says that nobody knows.
    Unknown,
}

/// How a handler ended, as it saw it itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum How {
    Ok,
    /// Asked to come back no earlier than after so many ms.
    Transient(u64),
    Permanent,
    /// An effect of it has no answer.
    Unknown,
    Interrupted,
    /// Not before so many ms.
    Snoozed(u64),
    Panicked,
}

/// What `cx.effect` returned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Told {
    /// The result.
    Done(String),
    Refused,
    NotSent,
    /// Any other error.
    Failed,
}

/// What a provider's call came to, as its caller saw it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Came {
    /// The provider's operation.
    Back(String),
    Refused,
    NotSent,
    /// The line went dead, or the call was dropped.
    ToNothing,
}

/// What a provider said when it was asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Said {
    Found(String),
    NotThere,
    CannotTell,
}

/// A step or a commit on its way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Memo {
    Asked,
    /// The app's closure is run; that of a commit more than once if its transaction is.
    Ran,
    /// The handler was given these bytes.
    Told(Vec<u8>),
}

/// What a person asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Deed {
    Decide(Verdict),
    Restore,
    Cancel,
    /// The review of a file that may be an older copy is lifted; of no job.
    Lift,
}

#[derive(Clone, Debug)]
pub(crate) enum What {
    /// A process opened the file: in which boot of the machine, whether under review, whether the calendar had gone on since the life
    /// before, and how many ms had really passed.
    Started {
        boot: u64,
        review: bool,
        clocks: bool,
        down_ms: u64,
    },
    Crashed(Crash),
    Stopped,
    /// The store was opened again inside the process.
    Healed,
    /// The clocks moved; the event has the time after it.
    Moved(Moved),
    DiskFull(bool),
    /// Nothing is left to do at this time: whatever was claimed has a handler that began.
    Idle,

    /// Somebody is about to ask for a job with a payload of this digest. `ask` is a number of its own.
    Asking {
        ask: u64,
        name: Name,
        payload: u64,
        due: Due,
    },
    Asked {
        ask: u64,
        answer: Answer,
    },
    /// A transaction that counts the app's row `row` up and owes these jobs and messages. `once`: it is a handler's, which is
    /// remembered; any other one counts up every time.
    Transacting {
        ask: u64,
        row: String,
        jobs: Vec<(Name, u64)>,
        messages: Vec<String>,
        once: bool,
    },
    /// `None`: nobody knows.
    Transacted {
        ask: u64,
        done: Option<bool>,
    },
    /// The app's rows at the end.
    Rows(BTreeMap<String, u64>),
    /// Somebody looked. `due`: in ms of the calendar, if it says.
    Saw {
        job: JobId,
        state: Option<State>,
        due: Option<u64>,
    },

    Began {
        job: JobId,
        attempt: u32,
        token: u64,
    },
    Ended {
        job: JobId,
        token: u64,
        how: How,
    },
    /// The handler is about to end its job with `cx.finish`.
    Finishing {
        job: JobId,
        token: u64,
    },
    Remember {
        job: JobId,
        token: u64,
        name: String,
        commit: bool,
        memo: Memo,
    },
    /// `effect` is a name and part as an `EffectId` shows them.
    EffectAsked {
        job: JobId,
        token: u64,
        effect: String,
    },
    EffectTold {
        job: JobId,
        token: u64,
        effect: String,
        told: Told,
    },

    /// A performer was entered. `call` is a number of its own, `request` a digest.
    Entered {
        call: u64,
        job: JobId,
        effect: String,
        key: String,
        request: u64,
    },
    /// Something really happened at the provider by that call: not a repeat that it recognised.
    Applied {
        call: u64,
    },
    Returned {
        call: u64,
        came: Came,
    },
    Probing {
        probe: u64,
        job: JobId,
        effect: String,
    },
    Probed {
        probe: u64,
        said: Said,
    },

    /// A person is about to ask for it. `act` is a number of its own.
    Acting {
        act: u64,
        job: Option<JobId>,
        deed: Deed,
    },
    /// `None`: nobody knows.
    Acted {
        act: u64,
        done: Option<bool>,
    },
    /// A person is about to run a job again: how it stands, without what is to be forgotten.
    Replaying {
        job: JobId,
        kept: Kept,
    },
    /// Somebody is about to pause or resume a kind, or everything.
    Pausing {
        kind: Option<&'static str>,
        on: bool,
    },
    /// It was acknowledged.
    Paused {
        kind: Option<&'static str>,
        on: bool,
    },

    /// Somebody is about to commit a message.
    Owing {
        topic: &'static str,
        id: String,
    },
    /// It was acknowledged.
    Owed {
        topic: &'static str,
        id: String,
    },
    /// A person is about to throw it away.
    Tossing {
        topic: &'static str,
        id: String,
    },
    /// The other side has it: everything that it consists of.
    Delivered {
        topic: &'static str,
        id: String,
        message: String,
    },
    /// A topic as the file has it at the end, with its newest number.
    Topic {
        topic: &'static str,
        posted: Vec<Posted>,
        last: u64,
    },
}

/// A history, and what was declared before it began.
#[derive(Clone, Debug, Default)]
pub(crate) struct History {
    /// Every kind that a job may be of.
    pub(crate) kinds: BTreeMap<&'static str, KindRules>,
    /// Effects whose provider is not honest: it forgets keys early, or does things later than a probe's settle time allows.
    pub(crate) liars: BTreeSet<String>,
    /// Handlers that can run at a time.
    pub(crate) workers: usize,
    /// At the end faults were off and time was passed until nothing happened by itself any more.
    pub(crate) calm: bool,
    pub(crate) events: Vec<Event>,
}

/// An effect as the file has it at the end.
#[derive(Clone, Debug)]
pub(crate) struct FinalEffect {
    pub(crate) effect: String,
    pub(crate) state: EffectState,
    pub(crate) key: String,
    pub(crate) generation: u32,
    pub(crate) calls: u32,
    pub(crate) reference: Option<String>,
    pub(crate) undoing: Undoing,
    pub(crate) conflict: bool,
}

/// A letter as a person is shown it.
#[derive(Clone, Debug)]
pub(crate) struct FinalLetter {
    /// The effects it lists.
    pub(crate) lists: Vec<String>,
    pub(crate) questions: usize,
}

/// A job as the file has it at the end. One whose rows are pruned is `Remembered`; nothing but its name and id is looked at then.
#[derive(Clone, Debug)]
pub(crate) struct FinalJob {
    pub(crate) id: JobId,
    pub(crate) name: Name,
    /// The digest of its payload.
    pub(crate) payload: u64,
    /// The job and the effect that it undoes.
    pub(crate) undoes: Option<(JobId, String)>,
    /// As it is stored: never `Paused`.
    pub(crate) state: State,
    pub(crate) due: Option<u64>,
    pub(crate) deadline: Option<u64>,
    pub(crate) attempts: u32,
    pub(crate) claims: u32,
    pub(crate) given_back: u64,
    pub(crate) granted: u32,
    pub(crate) last_token: u64,
    pub(crate) effects: Vec<FinalEffect>,
    pub(crate) letter: Option<FinalLetter>,
    /// Steps and commits: name, bytes.
    pub(crate) memos: Vec<(String, Vec<u8>)>,
    pub(crate) history: Vec<Entry>,
}

/// An invariant over a history: how many things it looked at, or what is wrong.
type Check = fn(&View<'_>) -> Result<u64, String>;

const CHECKS: [(&str, Check); 26] = [
    ("I1", jobs::i1),
    ("I2", jobs::i2),
    ("I3", jobs::i3),
    ("I4", jobs::i4),
    ("I5", jobs::i5),
    ("I7", runs::i7),
    ("I8", runs::i8),
    ("I9", runs::i9),
    ("I10", effects::i10),
    ("I11", effects::i11),
    ("I12", effects::i12),
    ("I13", effects::i13),
    ("I14", effects::i14),
    ("I15", effects::i15),
    ("I16", runs::i16),
    ("I17", letters::i17),
    ("I18", letters::i18),
    ("I18, seen", letters::i18_seen),
    ("I19", letters::i19),
    ("I21", time::i21),
    ("I22", time::i22),
    ("I26", runs::i26),
    ("I28", time::i28),
    ("I29", effects::i29),
    ("I30", jobs::i30),
    ("I31", runs::i31),
];

/// Every invariant over a history and over what the file says at its end. The counts say what there was to look at.
pub(crate) fn judge(history: &History, jobs: &[FinalJob]) -> Result<Counts, String> {
    let view = View::of(history, jobs)?;
    let mut counts = coverage::count(&view);
    for (name, check) in CHECKS {
        let looked_at = check(&view).map_err(|what| format!("{name}: {what}"))?;
        counts.looked_at.insert(name, looked_at);
    }
    Ok(counts)
}
