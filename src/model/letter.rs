//! Dead letters: what a person is asked, what they may answer, and what is kept of it.

pub use super::question::Question;

use super::attempt::Class;
use super::id::{EffectId, JobId};
use super::time::Wall;
use serde::{Deserialize, Serialize};

/// Why a job is dead or needs a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Why {
    /// The automatic attempts are used up.
    TriesUsedUp,
    /// The handler or provider said that trying again cannot help.
    Permanent,
    /// The process died twice while this handler was alone at work.
    ProcessDied,
    /// The kind wants a person to look after an interruption.
    HeldAfterInterrupt,
    /// The deadline passed before an attempt could begin.
    DeadlinePassed,
    /// Today's app cannot read the payload.
    Unreadable,
    /// An effect is unresolved or its record needs an answer.
    EffectUnresolved,
    /// Interrupted too often.
    InterruptedTooOften,
}

impl Why {
    /// In plain words, as the start of a sentence.
    pub fn says(self) -> &'static str {
        match self {
            Self::TriesUsedUp => "every automatic try failed",
            Self::Permanent => "it failed in a way that trying again cannot help",
            Self::ProcessDied => "the process died twice while this job was the only one running",
            Self::HeldAfterInterrupt => "it was interrupted and its kind asks for a look before it runs again",
            Self::DeadlinePassed => "its deadline passed before a try could begin",
            Self::Unreadable => "this version of the app cannot read its payload",
            Self::EffectUnresolved => "nobody knows for sure what happened outside",
            Self::InterruptedTooOften => "it was interrupted ten times without ending",
        }
    }
}

/// What is stored of a letter.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct LetterRecord {
    /// Why it exists.
    pub why: Why,
    /// When it was created.
    pub created: Wall,
    /// The failure's class.
    pub class: Class,
    /// What went wrong last, cut.
    pub error: String,
    /// What a person is asked, one after the other.
    pub questions: Vec<Question>,
}

/// What a person decided.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Verdict {
    /// The effect happened; the result rebuilt from the reference, if that was possible.
    Happened {
        /// Which effect.
        effect: EffectId,
        /// What the person read off the provider's page.
        reference: Option<String>,
        /// The result as JSON; `None` if it cannot be rebuilt.
        result: Option<Vec<u8>>,
    },
    /// The effect did not happen.
    DidNotHappen {
        /// Which effect.
        effect: EffectId,
        /// The next call gets a new key.
        new_key: bool,
    },
    /// Run it again: done effects and remembered steps are kept.
    TryAgain,
    /// Taken care of elsewhere.
    HandledOutside,
    /// Thrown away.
    Discard,
}

/// Who decided, and why: kept with the act, in the same commit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Signed {
    /// Who.
    pub who: String,
    /// Why.
    pub why: String,
    /// When.
    pub at: Wall,
}

/// One line of a job's history; appended, never changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Entry {
    /// An attempt that did not end in success.
    Attempt {
        /// Its number.
        attempt: u32,
        /// When it ended.
        at: Wall,
        /// The failure's class.
        class: Class,
        /// What went wrong, cut.
        text: String,
    },
    /// Claims that were given back for one reason; one entry with a count while the reason stays the same.
    GivenBack {
        /// The reason.
        why: String,
        /// How many in a row.
        count: u32,
        /// The newest.
        at: Wall,
    },
    /// A call was about to be made.
    Intended {
        /// Which effect.
        effect: EffectId,
        /// Which call.
        call: u32,
        /// When.
        at: Wall,
    },
    /// What became of a call, a probe or a late proof.
    Effect {
        /// Which effect.
        effect: EffectId,
        /// In one word: confirmed, refused, not sent, unknown, not there, not there yet, cannot tell.
        became: String,
        /// It came from a call whose lease was over.
        late: bool,
        /// When.
        at: Wall,
    },
    /// A process death with this handler alone at work.
    Strike {
        /// When it was noticed.
        at: Wall,
    },
    /// A person decided.
    Decision {
        /// What.
        verdict: Verdict,
        /// Who and why.
        signed: Signed,
    },
}

/// Which job a letter is about and which view of it a person has seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// The job.
    pub job: JobId,
    /// The revision that was shown.
    pub revision: u32,
}
