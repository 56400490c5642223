//! The one public error: what failed, what it means for the job, what to do next.

use crate::model::id::JobId;
use crate::model::shown::Shown;
use crate::rules::Refusal;
use crate::store::StoreError;
use std::fmt;

/// What a call of this library can fail with. The message names the next step.
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The store failed or refused; see the inner message.
    #[error(transparent)]
    Store(StoreError),
    /// The job or letter as it stands does not allow it.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// Called inside a transaction closure or on the writer's thread (a sink), which would wait for itself.
    #[error(
        "a call of the queue inside a transaction closure (or a log sink) would wait for itself: use what the closure was given (tx.enqueue, tx.open_table), or call from another thread"
    )]
    InsideTransaction,
    /// Called in a forked child: the file belongs to the parent.
    #[error(
        "this process was forked from the one that opened the queue: open nothing here, or start a process of its own"
    )]
    Forked,
    /// The queue is shut down.
    #[error("the queue is shut down, or being shut down by another handle: nothing was done; open it again to go on")]
    ShutDown,
    /// Nobody knows whether the commit happened: the storage failed and healing goes on.
    #[error(
        "nobody knows whether this was stored: the storage failed and healing goes on. Repeat keyed calls (enqueue) freely; look before you repeat a transact"
    )]
    Unknown,
    /// No such job.
    #[error(
        "there is no job {0}: it was never enqueued, or its rows were pruned after their retention. Look whether the id is of this file; what people did about it is in Jobs::decisions"
    )]
    NotFound(JobId),
    /// The job has no dead letter.
    #[error("job {0} has no dead letter (see Jobs::state): nobody is asked about it, or it was never enqueued")]
    NoLetter(JobId),
    /// Something is larger than its limit; nothing was stored.
    #[error("the {what} has {len} bytes, the limit is {limit}: {}", shorter(.what))]
    TooBig {
        /// What.
        what: &'static str,
        /// Its size in bytes.
        len: usize,
        /// The limit in bytes.
        limit: usize,
    },
    /// A key must not be empty.
    #[error("the key of a {kind} job is empty: derive it from the intent, or use JobKey::random()")]
    EmptyKey {
        /// Of which kind.
        kind: String,
    },
    /// One of a list cannot be enqueued, and so none was.
    #[error("job {index} of the list (the first is 0) cannot be enqueued, and none of them was: {error}")]
    Item {
        /// Which one, the first is 0.
        index: usize,
        /// What is wrong with it.
        error: Box<Error>,
    },
    /// A name must not be empty.
    #[error("{what} is empty: give it a name that stays the same")]
    NoName {
        /// Of what.
        what: String,
    },
    /// The topic knows no message with this id.
    #[error(
        "there is no message {id:?} in the topic {topic:?}: it was never committed, or its memory ended after its retention. Look at the spelling of both, and whether the commit that wrote it succeeded"
    )]
    NoMessage {
        /// The topic.
        topic: String,
        /// The id.
        id: String,
    },
    /// The key of a topic has no message with this number.
    #[error(
        "there is no message {number} of the key {key:?} in the topic {topic:?}: take key and number from Outbox::stuck(..), and look whether it was decided meanwhile"
    )]
    NoNumber {
        /// The topic.
        topic: String,
        /// The ordering key.
        key: String,
        /// The number.
        number: u64,
    },
    /// A payload, request or value could not be encoded or decoded.
    #[error(
        "{} could not be encoded or read: {}. Give the value the type it was stored with, and a type that serde can carry", Shown(.what), Shown(.why)
    )]
    Encode {
        /// What.
        what: String,
        /// Why.
        why: String,
    },
    /// Something about the registered kinds and effects is not right; nothing was started.
    #[error("{0}")]
    Setup(Setup),
    /// The time given to a wait is over; the job goes on.
    #[error("the wait is over, and job {0} has not ended: it goes on; wait again, or look at Jobs::state")]
    WaitOver(JobId),
    /// The time given to a wait is over, and the job cannot begin: it is held by a pause.
    #[error(
        "the wait is over, and job {job} cannot begin, because it is paused ({}): see Jobs::pauses, resume it (Jobs::resume), then wait again",
        Shown(.why)
    )]
    Paused {
        /// The job that was waited for.
        job: JobId,
        /// Why it was paused, as was said then.
        why: String,
    },
    /// What the job did is being undone, and that waits for a person: it ends only when this other job's letter is decided.
    #[error(
        "what job {job} did is being undone, and the job {letter} that undoes a part of it waits for a person: decide its dead letter \
         (Jobs::dead_letter, Jobs::decide), then wait again"
    )]
    UndoNeedsPerson {
        /// The job that was waited for.
        job: JobId,
        /// The undo job, whose dead letter has to be decided.
        letter: JobId,
    },
    /// The time given to a drain is over; work goes on.
    #[error("the wait is over, and the queue is not idle: it goes on; wait again, or look at Jobs::snapshot")]
    NotIdle,
    /// The app's transaction closure failed; nothing of it was stored.
    #[error("the transaction closure failed, and nothing of it was stored: {}", Shown(.0))]
    App(String),
    /// The transaction closure panicked; nothing of it was stored.
    #[error("the transaction closure panicked, and nothing of it was stored: {}", Shown(.0))]
    Panicked(String),
    /// An async handler, performer or probe needs a runtime.
    #[error("{0} is async, and there is no runtime: enable the feature `tokio`")]
    NoRuntime(String),
}

fn shorter(what: &str) -> &'static str {
    if what.contains("reason") {
        "say it in fewer words, and keep the rest elsewhere"
    } else if what.contains("key") || what.contains("name") || what.contains("part") {
        "use a shorter one, e.g. a hash of it"
    } else {
        "store large data elsewhere and pass a reference"
    }
}

/// What is wrong with a setup, found before anything runs.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Setup {
    /// Two handlers for one kind.
    KindTwice(String),
    /// A declared effect without performer.
    NoPerformer {
        /// The kind that declares it.
        kind: String,
        /// The effect.
        effect: String,
    },
    /// A recovery rule with a probe, and no probe registered.
    NoProbe {
        /// The effect.
        effect: String,
    },
    /// `repeat()` on a charge, order or bulk delete.
    RepeatForbidden {
        /// The effect.
        effect: String,
    },
    /// A risky effect and no `key_scope`.
    NoKeyScope {
        /// The effect.
        effect: String,
    },
    /// A risky kind without success or review text.
    NoTexts {
        /// The kind.
        kind: String,
        /// Which texts are missing: `success`, `review` or both.
        missing: Vec<&'static str>,
    },
    /// Two types under one effect name, or one name declared twice by a kind.
    EffectTwice {
        /// The name.
        effect: String,
    },
    /// Two publishers or two policies for one topic.
    TopicTwice(String),
    /// A policy for a topic without a publisher: most likely a misspelt name.
    NoPublisher(String),
    /// A name that is empty or too long.
    BadName {
        /// What it names.
        what: &'static str,
        /// The name.
        name: String,
    },
    /// A payload limit above what one record can hold.
    PayloadLimit {
        /// What was asked for, in bytes.
        asked: usize,
        /// The most there can be.
        most: usize,
    },
}

impl fmt::Display for Setup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::KindTwice(k) => {
                write!(f, "the kind {k:?} (or one of its former names) has two handlers: register one")
            }
            Self::NoPerformer { kind, effect } => write!(
                f,
                "the kind {kind:?} declares the effect {effect:?}, and no performer is registered: add .effect(..) for it"
            ),
            Self::NoProbe { effect } => write!(
                f,
                "the effect {effect:?} recovers by asking its provider, and no probe is registered: add .probe(..) for it"
            ),
            Self::RepeatForbidden { effect } => write!(
                f,
                "the effect {effect:?} must not use Recovery::repeat(): a charge, an order or a bulk delete would happen twice; use same_key, probe or ask"
            ),
            Self::NoKeyScope { effect } => write!(
                f,
                "the effect {effect:?} is risky, and there is no key scope: call .key_scope(..) with a name of this installation, so that another one at the same provider account cannot share its keys"
            ),
            Self::NoTexts { kind, missing } => {
                write!(f, "the kind {kind:?} has a risky effect: say in plain words")?;
                for (n, what) in missing.iter().enumerate() {
                    let and = if n > 0 { ", and" } else { "" };
                    let text =
                        if *what == "success" { "what is true when it succeeded" } else { "when a person is asked" };
                    write!(f, "{and} in Policy::{what}(..) {text}")?;
                }
                Ok(())
            }
            Self::EffectTwice { effect } => {
                write!(f, "two effects have the name (or former name) {effect:?}: declare it once, or rename one")
            }
            Self::TopicTwice(t) => write!(f, "the topic {t:?} has two publishers or two policies: give it one"),
            Self::NoPublisher(t) => write!(
                f,
                "the topic {t:?} has a policy and no publisher: add .publisher({t:?}, ..), or correct the name"
            ),
            Self::BadName { what, name } => {
                write!(f, "the {what} {name:?} is empty or too long: give it a name of 1 to 128 bytes")
            }
            Self::PayloadLimit { asked, most } => write!(
                f,
                "a payload limit of {asked} bytes is more than one record can hold: use at most {most}, and keep larger data in a file whose name is the payload"
            ),
        }
    }
}

/// The message: a `main` that returns this error prints it so, and the next step must not be lost there.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Error {
    pub(crate) fn encode(what: impl Into<String>, why: &dyn fmt::Display) -> Self {
        Self::Encode { what: what.into(), why: why.to_string() }
    }
}

impl From<StoreError> for Error {
    fn from(e: StoreError) -> Self {
        if matches!(e, StoreError::Unknown) {
            Self::Unknown
        } else if matches!(e, StoreError::Closed) {
            Self::ShutDown
        } else {
            Self::Store(e)
        }
    }
}

impl From<Setup> for Error {
    fn from(s: Setup) -> Self {
        Self::Setup(s)
    }
}
