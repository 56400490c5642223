//! An outside effect as it is remembered: written before the call, confirmed after it, never taken as done in between.

use super::id::{CallNo, EffectId, IdempotencyKey, JobKey, Token};
use super::time::Wall;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// What can go wrong when an effect happens twice; anything but `Routine` narrows the defaults of its kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Risk {
    /// A duplicate is a nuisance.
    #[default]
    Routine,
    /// Money moves.
    Charge,
    /// Something becomes public.
    Publish,
    /// Many things are deleted.
    BulkDelete,
    /// A customer gets mail.
    Email,
    /// Goods are ordered or reserved.
    Order,
}

/// What may be done when nobody knows whether an effect happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Recovery {
    /// A person is asked. The default.
    #[default]
    Ask,
    /// Call again with the same key while the provider surely remembers it.
    SameKey {
        /// How long the provider remembers a key; a tenth is kept as margin.
        ttl: Duration,
    },
    /// Ask the provider first.
    Probe {
        /// "Not there" is believed only this long after the earlier call surely ended.
        settle: Duration,
    },
    /// The key while it lives, the probe afterwards.
    KeyThenProbe {
        /// How long the provider remembers a key; a tenth is kept as margin.
        ttl: Duration,
        /// "Not there" is believed only this long after the earlier call surely ended.
        settle: Duration,
    },
    /// At least once: a duplicate is preferable to none.
    Repeat,
}

impl Recovery {
    /// A person is asked.
    pub fn ask() -> Self {
        Self::Ask
    }
    /// The provider drops repeats of a key for `ttl`, counted from the first call.
    pub fn same_key(ttl: Duration) -> Self {
        Self::SameKey { ttl }
    }
    /// The provider can be asked; "not there" is believed only `settle` after the earlier call surely ended.
    pub fn probe(settle: Duration) -> Self {
        Self::Probe { settle }
    }
    /// Adds a probe for the time after the key's life.
    pub fn or_probe(self, settle: Duration) -> Self {
        match self {
            Self::SameKey { ttl } | Self::KeyThenProbe { ttl, .. } => Self::KeyThenProbe { ttl, settle },
            Self::Ask | Self::Probe { .. } | Self::Repeat => Self::Probe { settle },
        }
    }
    /// At least once: a duplicate is preferable to none. Refused for charge, order and bulk delete.
    pub fn repeat() -> Self {
        Self::Repeat
    }
    /// The settle time, if the rule has a probe.
    pub fn settle(self) -> Option<Duration> {
        match self {
            Self::Probe { settle } | Self::KeyThenProbe { settle, .. } => Some(settle),
            Self::Ask | Self::SameKey { .. } | Self::Repeat => None,
        }
    }
    /// The key's life, if the rule uses it.
    pub fn key_ttl(self) -> Option<Duration> {
        match self {
            Self::SameKey { ttl } | Self::KeyThenProbe { ttl, .. } => Some(ttl),
            Self::Ask | Self::Probe { .. } | Self::Repeat => None,
        }
    }
}

/// What a kind declares about an effect it may perform: checked at start, shown to people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EffectCard {
    pub(crate) name: &'static str,
    pub(crate) aliases: &'static [&'static str],
    pub(crate) risk: Risk,
    pub(crate) recovery: Recovery,
}

impl EffectCard {
    /// A card from its parts; effects make theirs with [`Effect::card`](crate::Effect::card).
    pub fn new(name: &'static str, aliases: &'static [&'static str], risk: Risk, recovery: Recovery) -> Self {
        Self { name, aliases, risk, recovery }
    }
    /// The declared name.
    pub fn name(&self) -> &'static str {
        self.name
    }
    /// What can go wrong.
    pub fn risk(&self) -> Risk {
        self.risk
    }
    /// What may be done when nobody knows.
    pub fn recovery(&self) -> Recovery {
        self.recovery
    }
    /// It is risky, and its provider's "not there" counts earlier than a minute after the call.
    pub fn is_hasty(&self) -> bool {
        self.risk.is_risky() && self.recovery.settle().is_some_and(|d| d < Duration::from_secs(60))
    }
    /// Whether a record stored under `name` belongs to it.
    pub fn owns(&self, name: &str) -> bool {
        self.name == name || self.aliases.contains(&name)
    }
}

/// Why an effect counts as "did not happen".
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Refusal {
    /// The provider said no: the next call is a new request with a new key.
    Said,
    /// It never left: the same key serves again.
    NotSent,
    /// The provider was asked after the settle time and knows nothing: the same key serves again.
    NotThere,
    /// A person said so; the flag is their explicit wish for a new key.
    Person {
        /// Use a new key.
        new_key: bool,
    },
}

/// Where an effect stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub enum EffectState {
    /// A call may be under way: written before it, never taken as completion.
    Intended,
    /// It happened, once, and that is recorded.
    Confirmed,
    /// It did not happen.
    Refused(Refusal),
    /// Nobody knows.
    Unknown,
    /// It happened and was undone.
    Undone,
}

impl EffectState {
    /// Nobody knows whether it happened.
    pub fn is_unresolved(self) -> bool {
        match self {
            Self::Intended | Self::Unknown => true,
            Self::Confirmed | Self::Refused(_) | Self::Undone => false,
        }
    }
}

/// What the provider can have seen of an effect's present key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Reach {
    /// Nothing: every call so far never left. The key's life has not begun.
    #[default]
    Never,
    /// A call may have arrived.
    Maybe,
    /// A call arrived and was refused: a provider that remembers keys would refuse this one again.
    Refused,
}

/// What became of a confirmed effect's result.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Stored {
    /// The result as JSON.
    Json(Vec<u8>),
    /// It happened, but its result could not be kept; the text says why.
    Lost(String),
}

/// The forward action that compensates an effect: a job of its own, stored with the intent, completed by the result.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct UndoJob {
    /// Its kind.
    pub kind: String,
    /// The key that the app gave it. The job that is enqueued has one of its own, so that the same work asked for by somebody
    /// else is another job.
    pub key: JobKey,
    /// Its payload version.
    pub version: u32,
    /// Its payload as JSON.
    pub payload: Vec<u8>,
}

/// How far the compensation of an effect is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Undoing {
    /// It was never begun, or it is over: then the effect is [`Undone`](EffectState::Undone).
    #[default]
    No,
    /// Its undo job exists and is not over.
    UnderWay,
    /// Its undo job was discarded or cancelled: the effect stays as it is, and nobody counts on it any more.
    GivenUp,
}

/// One effect of one job, as stored.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct EffectRecord {
    /// Name and part as stored.
    pub id: EffectId,
    /// Where it stands.
    pub state: EffectState,
    /// Rises only when a refused effect becomes a new request.
    pub generation: u32,
    /// What the provider gets; never recomputed.
    pub key: IdempotencyKey,
    /// The request as JSON: what a retry sends.
    pub request: Vec<u8>,
    /// The app's version of the request.
    pub version: u32,
    /// One plain sentence for a person.
    pub says: String,
    /// Where a person can look it up: address and instruction.
    pub look_up: Option<(String, String)>,
    /// What can go wrong.
    pub risk: Risk,
    /// How it can be compensated.
    pub undo: Option<UndoJob>,
    /// How far its compensation is.
    pub undoing: Undoing,
    /// Orders what is confirmed: rises with every confirmation of the job; 0 before.
    pub confirmed: u32,
    /// Attempt of the newest call.
    pub attempt: u32,
    /// Token of the newest call.
    pub token: Token,
    /// Calls ever made for this effect.
    pub calls: CallNo,
    /// Calls under the present key of which nobody knows the outcome.
    pub unresolved: Vec<CallNo>,
    /// What the provider can have seen of the present key.
    pub reach: Reach,
    /// The first call under the present key that may have left.
    pub first_call: Wall,
    /// The newest call.
    pub last_call: Wall,
    /// What came back, once confirmed.
    pub result: Option<Stored>,
    /// The provider's operation id.
    pub reference: Option<String>,
    /// Since when the probe cannot tell.
    pub cannot_tell_since: Option<Wall>,
    /// The last error text of a call or probe, cut.
    pub error: Option<String>,
    /// A second, different confirmation arrived, or one that contradicts a person.
    pub conflict: bool,
    /// A person accepted that the handler asks for another request now.
    pub accept_changed: bool,
}

impl EffectRecord {
    /// Its newest call is none that this file knows of: an older copy of the file may have forgotten one, and nothing was called since
    /// that was found.
    pub fn is_doubted(&self) -> bool {
        self.token.is_of_no_claim()
    }
    /// It happened and was undone, or that was begun: the job must not go on as if it stood.
    pub fn is_taken_back(&self) -> bool {
        self.state == EffectState::Undone || self.undoing != Undoing::No
    }
}

/// What one call to a provider came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CallEnd {
    /// It happened: result and reference.
    Happened {
        /// The result, kept or lost.
        result: Stored,
        /// The provider's operation id.
        reference: Option<String>,
        /// The compensation, completed by the result.
        undo: Option<UndoJob>,
    },
    /// The provider said no.
    Refused(String),
    /// It never left.
    NotSent(String),
    /// Anything else.
    Unknown(String),
}

/// What a probe answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Probed {
    /// It did happen.
    Found {
        /// The result, kept or lost.
        result: Stored,
        /// The provider's operation id.
        reference: Option<String>,
        /// The compensation, completed by the result.
        undo: Option<UndoJob>,
    },
    /// The provider knows nothing of it.
    NotThere,
    /// The provider could not be asked.
    CannotTell(String),
}
