//! What the declared recovery rule says about an effect nobody is sure of: call again, ask the provider, wait, or ask a person.
//!
//! Every answer rests on facts that err on the long side: a key of uncertain age counts as over, a call of uncertain end as
//! just ended. Called when an effect is begun and when an attempt ends.

use super::CallFacts;
use crate::model::attempt::Stop;
use crate::model::effect::{EffectRecord, Recovery};
use crate::model::letter::Question;
use crate::model::policy::KindRules;
use crate::model::time::{Wall, millis};
use crate::planted::on;
use std::time::Duration;

/// What to do about an unresolved effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// The same key is safe, or a duplicate was declared preferable: call again, which is a new attempt.
    CallAgain,
    /// Ask the provider. "It happened" counts at once, "not there" only when the calls have settled.
    Probe {
        /// Whether "not there" may be believed.
        settled: bool,
    },
    /// An earlier call still runs: this many ms more, then a person is asked.
    OldCall(u64),
    /// A person has to answer.
    Ask,
}

/// What the declared rule says about an unresolved effect.
pub fn look(record: &EffectRecord, rules: &KindRules, facts: CallFacts, now: Wall) -> Look {
    let Some(card) = rules.card(&record.id.name) else { return Look::Ask };
    if asked_too_long(record, rules, now) {
        return Look::Ask;
    }
    match card.recovery {
        Recovery::SameKey { ttl } if key_lives(ttl, facts) => Look::CallAgain,
        // What an older copy of the file forgot may have been refused and called again, under the next key: asking tells both.
        Recovery::KeyThenProbe { ttl, .. } if key_lives(ttl, facts) && !record.is_doubted() => Look::CallAgain,
        Recovery::KeyThenProbe { settle, .. } | Recovery::Probe { settle } => {
            Look::Probe { settled: settled(settle, facts) }
        }
        Recovery::Repeat => Look::CallAgain,
        Recovery::SameKey { .. } | Recovery::Ask => old_call_or_ask(rules, facts),
    }
}

/// The same, when no attempt may begin any more: calling again is out, asking the provider is not.
pub fn look_without_attempts(record: &EffectRecord, rules: &KindRules, facts: CallFacts, now: Wall) -> Look {
    match look(record, rules, facts, now) {
        Look::CallAgain => match rules.card(&record.id.name).and_then(|c| c.recovery.settle()) {
            Some(settle) => Look::Probe { settled: settled(settle, facts) },
            None => old_call_or_ask(rules, facts),
        },
        other @ (Look::Probe { .. } | Look::OldCall(_) | Look::Ask) => other,
    }
}

/// The provider said "not there" before that could be believed: why the attempt stops, and for how long.
pub(super) fn not_settled(record: &EffectRecord, rules: &KindRules, facts: CallFacts) -> Stop {
    let id = record.id.clone();
    match facts.running_ms {
        Some(running) if running >= millis(rules.old_call_bound) => Stop::Ask(Question::DidItHappen { effect: id }),
        Some(running) => Stop::OldCall(id, millis(rules.old_call_bound).saturating_sub(running)),
        None => {
            let settle = rules.card(&record.id.name).and_then(|c| c.recovery.settle()).map_or(0, millis);
            Stop::Settling(id, settle.saturating_sub(facts.quiet_ms))
        }
    }
}

/// The provider could not be asked: again later, or a person if that, or an old call, has gone on for too long.
pub(super) fn cannot_tell(record: &EffectRecord, rules: &KindRules, facts: CallFacts, now: Wall, text: String) -> Stop {
    let overdue = facts.running_ms.is_some_and(|running| running >= millis(rules.old_call_bound));
    if overdue || asked_too_long(record, rules, now) {
        return Stop::Ask(Question::DidItHappen { effect: record.id.clone() });
    }
    Stop::CannotTell(record.id.clone(), text)
}

fn asked_too_long(record: &EffectRecord, rules: &KindRules, now: Wall) -> bool {
    record.cannot_tell_since.is_some_and(|since| now.since(since) >= millis(rules.cannot_tell_bound))
}

/// A tenth is kept as margin; an age that cannot be trusted counts as over.
fn key_lives(ttl: Duration, facts: CallFacts) -> bool {
    let ttl = millis(ttl);
    facts.key_age_ms.is_some_and(|age| age < ttl - ttl / 10 || on("key-never-old"))
}

/// Every call surely ended, and long enough ago: what was sent has landed by now, or never will.
fn settled(settle: Duration, facts: CallFacts) -> bool {
    facts.running_ms.is_none() && (facts.quiet_ms >= millis(settle) || on("settle-time-ignored"))
}

/// The old call may still answer by itself; only when it is overdue is a person troubled.
fn old_call_or_ask(rules: &KindRules, facts: CallFacts) -> Look {
    let bound = millis(rules.old_call_bound);
    match facts.running_ms {
        Some(running) if running < bound => Look::OldCall(bound - running),
        Some(_) | None => Look::Ask,
    }
}
