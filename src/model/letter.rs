//! Dead letters: what a person is asked, what they may answer, and what is kept of it.

pub use super::question::Question;

use super::attempt::Class;
use super::effect::UndoJob;
use super::id::{EffectId, JobId};
use super::shown::Shown;
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
    /// A person brought it back out of the trash.
    Restored,
    /// Undoing what it did cannot go on by itself.
    UndoStopped,
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
            Self::Restored => "somebody brought it back out of the trash",
            Self::UndoStopped => "undoing what it did cannot go on by itself",
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
    /// What one person decided, where two have to: it waits for the second.
    pub proposed: Option<Box<(Verdict, Signed)>>,
}

/// What a person decided.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Verdict {
    /// The effect happened; the result rebuilt from the reference, if that was possible.
    Happened {
        /// Which effect.
        effect: EffectId,
        /// What the person read off the provider's page.
        reference: Option<String>,
        /// The result as JSON; `None` if it cannot be rebuilt.
        result: Option<Vec<u8>>,
        /// The job that compensates it, now that its result is known; kept with the effect, not with what was said.
        #[serde(skip)]
        undo: Option<UndoJob>,
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
    /// Run it again from a remembered step or commit: it and what was remembered after it is forgotten, effects are kept.
    ReplayFrom {
        /// Its name.
        step: String,
    },
    /// What it did is undone, the last first.
    Undo,
}

impl Verdict {
    /// In plain words, as what somebody decided; in one line, whatever the reference is.
    pub fn says(&self) -> String {
        Shown(&self.words()).to_string()
    }
    fn words(&self) -> String {
        match self {
            Self::Happened { effect, reference: Some(r), .. } => format!("{effect} happened (reference {r})"),
            Self::Happened { effect, reference: None, .. } => format!("{effect} happened"),
            Self::DidNotHappen { effect, new_key: false } => format!("{effect} did not happen"),
            Self::DidNotHappen { effect, new_key: true } => format!("{effect} did not happen, and gets a new key"),
            Self::TryAgain => "try again".to_owned(),
            Self::HandledOutside => "handled outside".to_owned(),
            Self::Discard => "discard".to_owned(),
            Self::ReplayFrom { step } => format!("run again from {step}"),
            Self::Undo => "undo what it did".to_owned(),
        }
    }
    /// As it was said: without the result that was rebuilt for it.
    pub fn bare(&self) -> Self {
        match self {
            Self::Happened { effect, reference, .. } => {
                Self::Happened { effect: effect.clone(), reference: reference.clone(), result: None, undo: None }
            }
            Self::DidNotHappen { .. }
            | Self::TryAgain
            | Self::HandledOutside
            | Self::Discard
            | Self::Undo
            | Self::ReplayFrom { .. } => self.clone(),
        }
    }
    /// The same decision as `first`, whatever result was rebuilt for either; `first` may know a reference that this one leaves out.
    pub fn agrees_with(&self, first: &Self) -> bool {
        if let (Self::Happened { effect, reference: None, .. }, Self::Happened { effect: of, .. }) = (self, first) {
            return effect == of;
        }
        self.bare() == first.bare()
    }
}

/// Who decided, and why: kept with the act, in the same commit.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Signed {
    /// Who.
    pub who: String,
    /// Why.
    pub why: String,
    /// When.
    pub at: Wall,
}

/// A person as one name: not another one by case, spaces, or characters that cannot be seen.
pub fn person(who: &str) -> String {
    let shown: String = who.chars().filter(|c| c.is_whitespace() || !cannot_be_seen(*c)).collect();
    shown.split_whitespace().collect::<Vec<_>>().join(" ").to_lowercase()
}

/// What could make one line look like two, or like another one: nobody signs with it. [`Shown`] writes out these, and marks that
/// people of some scripts type without knowing.
pub fn breaks_a_line(c: char) -> bool {
    c.is_control() || matches!(c, '\u{2028}' | '\u{2029}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Control and format characters, and fillers.
fn cannot_be_seen(c: char) -> bool {
    c.is_control()
        || matches!(
            c,
            '\u{ad}'
                | '\u{34f}'
                | '\u{61c}'
                | '\u{115f}'..='\u{1160}'
                | '\u{17b4}'..='\u{17b5}'
                | '\u{180b}'..='\u{180f}'
                | '\u{200b}'..='\u{200f}'
                | '\u{2028}'..='\u{202e}'
                | '\u{2060}'..='\u{206f}'
                | '\u{3164}'
                | '\u{fe00}'..='\u{fe0f}'
                | '\u{feff}'
                | '\u{ffa0}'
                | '\u{e0000}'..='\u{e0fff}'
        )
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
        /// In one word: confirmed, refused, not sent, unknown, doubted (an older copy of the file may not know of its call), not
        /// there, not there yet, cannot tell, undone, undone outside, not undone.
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
    /// A person had the provider asked again.
    Checked {
        /// Which effect.
        effect: EffectId,
        /// What came back, in words.
        answer: String,
        /// Who asked.
        who: String,
        /// When it came back.
        at: Wall,
    },
    /// A remembered step or commit was forgotten, so that it runs again: what it was.
    Forgotten {
        /// Its name.
        name: String,
        /// It was a commit, not a step.
        commit: bool,
        /// The value it had, as JSON.
        value: Vec<u8>,
    },
    /// A person brought the job back out of the trash.
    Restored {
        /// Who and why.
        signed: Signed,
    },
    /// A person decided where two have to: it waits for the second.
    Proposed {
        /// What.
        verdict: Verdict,
        /// Who and why.
        signed: Signed,
    },
    /// The job that undoes an effect was enqueued.
    UndoEnqueued {
        /// Which effect.
        effect: EffectId,
        /// The kind of that job.
        kind: String,
        /// Its key.
        key: String,
        /// When.
        at: Wall,
    },
    /// The first line of an undo job: what it undoes.
    Undoes {
        /// The job that is compensated.
        job: JobId,
        /// Its effect.
        effect: EffectId,
        /// In plain words.
        says: String,
        /// When.
        at: Wall,
    },
    /// Everything that could be undone is.
    Compensated {
        /// What stays as it is.
        left: Vec<EffectId>,
        /// When.
        at: Wall,
    },
    /// What one person proposed was taken back, by that person or another one.
    ProposalDropped {
        /// What was proposed.
        verdict: Verdict,
        /// By whom.
        proposer: String,
        /// Who took it back, and why.
        signed: Signed,
    },
    /// What the letter of a discarded job asked: out of the trash it asks that again.
    Asked {
        /// Why it existed.
        why: Why,
        /// The failure's class.
        class: Class,
        /// What went wrong last, cut.
        error: String,
        /// What a person was asked.
        questions: Vec<Question>,
    },
    /// What a person did about a message of the outbox; of no job.
    Message {
        /// Of which topic.
        topic: String,
        /// Its number there.
        number: u64,
        /// Its id; empty if it cannot be read.
        id: String,
        /// What was done.
        act: super::acted::Act,
        /// Who and why.
        signed: Signed,
    },
    /// A person has compared a file that might have been an older copy with the providers; of no job.
    ReviewLifted {
        /// What had shown that it might be one.
        what: String,
        /// The last time that the file knew of.
        since: Wall,
        /// When that was found.
        found: Wall,
        /// Who and why.
        signed: Signed,
    },
}

impl Entry {
    /// In plain words, as one line of a list, whatever an app or a provider put into it.
    pub fn says(&self) -> String {
        Shown(&self.words()).to_string()
    }
    fn words(&self) -> String {
        match self {
            Self::Attempt { attempt, text, .. } => format!("attempt {attempt} failed: {text}"),
            Self::GivenBack { why, count: 1, .. } => format!("given back: {why}"),
            Self::GivenBack { why, count, .. } => format!("given back {count} times: {why}"),
            Self::Intended { effect, call, .. } => format!("call {call} of {effect} was about to be made"),
            Self::Effect { effect, became, late, .. } => {
                format!("{effect}: {became}{}", if *late { ", from a call whose lease was over" } else { "" })
            }
            Self::Strike { .. } => "the process died with this job alone at work".to_owned(),
            Self::Decision { verdict, signed } => {
                format!("{} decided: {} ({})", signed.who, verdict.says(), signed.why)
            }
            Self::Checked { effect, answer, who, .. } => {
                format!("{who} had the provider asked about {effect}: {answer}")
            }
            Self::Forgotten { name, commit: false, .. } => format!("the step {name} was forgotten"),
            Self::Forgotten { name, commit: true, .. } => format!("the commit {name} was forgotten"),
            Self::Restored { signed } => format!("{} brought it back out of the trash ({})", signed.who, signed.why),
            Self::Proposed { verdict, signed } => {
                format!("{} proposed: {} ({}); a second person has to agree", signed.who, verdict.says(), signed.why)
            }
            Self::UndoEnqueued { effect, kind, key, .. } => format!("{effect} is being undone by {kind}/{key}"),
            Self::Undoes { job, effect, says, .. } => format!("it undoes {effect} of job {job}: {says}"),
            Self::Compensated { left, .. } if left.is_empty() => "everything it did was undone".to_owned(),
            Self::Compensated { left, .. } => {
                let left: Vec<String> = left.iter().map(ToString::to_string).collect();
                format!("what could be undone was undone; this stays: {}", left.join(", "))
            }
            Self::ProposalDropped { verdict, proposer, signed } => {
                format!("{} took back what {proposer} proposed: {} ({})", signed.who, verdict.says(), signed.why)
            }
            Self::Message { topic, number, id, act, signed } => {
                let id = if id.is_empty() { "which cannot be read".to_owned() } else { format!("{id:?}") };
                format!("{} had message {number} of {topic} ({id}) {} ({})", signed.who, act.says(), signed.why)
            }
            Self::ReviewLifted { what, signed, .. } => {
                format!(
                    "{} compared the file with the providers ({what}) and lifted its review ({})",
                    signed.who, signed.why
                )
            }
            Self::Asked { why, error, .. } => {
                format!("its letter stands in the trash with it: {} ({error})", why.says())
            }
        }
    }
    /// An attempt that failed: its number and what it said.
    pub fn failed_attempt(&self) -> Option<(u32, &str)> {
        match self {
            Self::Attempt { attempt, text, .. } => Some((*attempt, text)),
            Self::GivenBack { .. }
            | Self::Intended { .. }
            | Self::Effect { .. }
            | Self::Strike { .. }
            | Self::Decision { .. }
            | Self::Checked { .. }
            | Self::Forgotten { .. }
            | Self::Restored { .. }
            | Self::Proposed { .. }
            | Self::UndoEnqueued { .. }
            | Self::Undoes { .. }
            | Self::Compensated { .. }
            | Self::ProposalDropped { .. }
            | Self::Message { .. }
            | Self::ReviewLifted { .. }
            | Self::Asked { .. } => None,
        }
    }
    /// What people did: kept beyond the job's rows.
    pub fn is_of_a_person(&self) -> bool {
        match self {
            Self::Decision { .. }
            | Self::Checked { .. }
            | Self::Restored { .. }
            | Self::Proposed { .. }
            | Self::ProposalDropped { .. }
            | Self::ReviewLifted { .. }
            | Self::Message { .. } => true,
            Self::Attempt { .. }
            | Self::GivenBack { .. }
            | Self::Intended { .. }
            | Self::Effect { .. }
            | Self::Strike { .. }
            | Self::Forgotten { .. }
            | Self::UndoEnqueued { .. }
            | Self::Undoes { .. }
            | Self::Compensated { .. }
            | Self::Asked { .. } => false,
        }
    }
}

/// What a person did, as it is kept beyond the job's own rows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Act {
    /// About which job; `None` for a message of the outbox, or the file.
    pub job: Option<JobId>,
    /// Its kind as stored; of a message its topic.
    pub kind: String,
    /// Its key; of a message its ordering key.
    pub key: String,
    /// What was done, by whom, why and when.
    pub entry: Entry,
}

/// Which job a letter is about and which view of it a person has seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// The job.
    pub job: JobId,
    /// The revision that was shown.
    pub revision: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A provider's error and a person's reference try to look like another line of the history: each stays one line.
    #[test]
    fn a_line_of_the_history_cannot_forge_another_one() {
        let effect = EffectId { name: "charge".into(), part: "a\u{2028}b".into() };
        let signed = Signed { who: "ann".into(), why: "seen".into(), at: Wall(0) };
        let verdict = Verdict::Happened {
            effect,
            reference: Some("ch_1\nbob decided: discard".into()),
            result: None,
            undo: None,
        };
        let entries = [
            Entry::Attempt {
                attempt: 1,
                at: Wall(0),
                class: Class::Transient,
                text: "503\r\nann decided: done".into(),
            },
            Entry::Decision { verdict: verdict.clone(), signed },
            Entry::GivenBack { why: "x".repeat(9_000), count: 1, at: Wall(0) },
        ];
        let lines: Vec<String> = entries.iter().map(Entry::says).chain([verdict.says()]).collect();
        assert_eq!(lines[0], r"attempt 1 failed: 503\r\nann decided: done");
        assert!(
            lines[1].contains(r"charge/a\u{2028}b happened (reference ch_1\nbob decided: discard)"),
            "{}",
            lines[1]
        );
        assert!(lines.iter().all(|l| !l.chars().any(breaks_a_line) && l.chars().count() < 1_100), "{lines:?}");
    }
}
