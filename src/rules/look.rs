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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::effect::{EffectState, Risk};
    use crate::model::id::Token;
    use crate::rules::fixture::{INSIDE, JUST_ENDED, QUIET, id, kind, ms, record};

    const NOW: Wall = Wall(39);

    fn rules(recovery: Recovery) -> KindRules {
        kind(recovery, Recovery::ask(), Risk::Charge)
    }
    fn unknown() -> EffectRecord {
        record("a", EffectState::Unknown, 1)
    }
    fn running(ms: u64) -> CallFacts {
        CallFacts { running_ms: Some(ms), ..QUIET }
    }

    /// The provider remembers a key for 305 ms. It is used for 275 of them, and not at all where its age cannot be trusted.
    #[test]
    fn a_key_is_used_for_nine_tenths_of_its_life_and_no_longer() {
        let key = Recovery::same_key(ms(305));
        for (recovery, then) in [(key, Look::Ask), (key.or_probe(ms(20)), Look::Probe { settled: true })] {
            for (age, lives) in
                [(Some(0), true), (Some(274), true), (Some(275), false), (Some(276), false), (None, false)]
            {
                let facts = CallFacts { key_age_ms: age, ..QUIET };
                let expected = if lives { Look::CallAgain } else { then };
                assert_eq!(look(&unknown(), &rules(recovery), facts, NOW), expected, "{recovery:?} at {age:?}");
            }
        }
    }

    /// What an older copy of the file may have forgotten is asked about first, where there is somebody to ask.
    #[test]
    fn a_doubted_call_is_asked_about_although_its_key_lives() {
        let doubted = EffectRecord { token: Token::first_of(2), ..unknown() };
        let key = Recovery::same_key(ms(305));
        assert_eq!(look(&doubted, &rules(key), QUIET, NOW), Look::CallAgain);
        assert_eq!(look(&doubted, &rules(key.or_probe(ms(20))), QUIET, NOW), Look::Probe { settled: true });
    }

    /// "Not there" is believed once every call has ended and the settle time is over since; a person is asked where nobody could
    /// tell for too long.
    #[test]
    fn not_there_counts_from_the_settle_time_on() {
        let probing = rules(Recovery::probe(ms(20)));
        for (facts, settled) in [
            (QUIET, true),
            (CallFacts { quiet_ms: 19, ..QUIET }, false),
            (CallFacts { quiet_ms: 21, ..QUIET }, true),
            (running(0), false),
            (JUST_ENDED, false),
        ] {
            assert_eq!(look(&unknown(), &probing, facts, NOW), Look::Probe { settled }, "{facts:?}");
        }
        let in_vain = EffectRecord { cannot_tell_since: Some(Wall(0)), ..unknown() };
        assert_eq!(look(&in_vain, &probing, QUIET, NOW), Look::Probe { settled: true });
        assert_eq!(look(&in_vain, &probing, QUIET, Wall(40)), Look::Ask);
    }

    /// A call that is still inside its performer may answer by itself for 30 ms; then a person is troubled.
    #[test]
    fn an_old_call_has_its_time_and_no_more() {
        for recovery in [Recovery::ask(), Recovery::same_key(ms(1))] {
            let (r, old) = (rules(recovery), CallFacts { key_age_ms: None, ..QUIET });
            for (ms, expected) in [(0, Look::OldCall(30)), (29, Look::OldCall(1)), (30, Look::Ask), (31, Look::Ask)] {
                assert_eq!(look(&unknown(), &r, CallFacts { running_ms: Some(ms), ..old }, NOW), expected, "{ms}");
            }
            assert_eq!(look(&unknown(), &r, old, NOW), Look::Ask);
        }
        let (r, asks) = (rules(Recovery::probe(ms(20))), Stop::Ask(Question::DidItHappen { effect: id("a") }));
        assert_eq!(not_settled(&unknown(), &r, running(29)), Stop::OldCall(id("a"), 1));
        assert_eq!(not_settled(&unknown(), &r, running(30)), asks);
        assert_eq!(not_settled(&unknown(), &r, CallFacts { quiet_ms: 5, ..QUIET }), Stop::Settling(id("a"), 15));
        let down = |record: &EffectRecord, facts, now| cannot_tell(record, &r, facts, Wall(now), "down".into());
        let in_vain = EffectRecord { cannot_tell_since: Some(Wall(0)), ..unknown() };
        for (told, expected) in [
            (down(&unknown(), running(29), 90), None),
            (down(&unknown(), running(30), 0), Some(&asks)),
            (down(&in_vain, QUIET, 39), None),
            (down(&in_vain, QUIET, 40), Some(&asks)),
        ] {
            assert_eq!(told, expected.cloned().unwrap_or_else(|| Stop::CannotTell(id("a"), "down".into())));
        }
    }

    /// Where no attempt may begin, nobody calls again: who can be asked is asked, an old call is waited for, else a person answers.
    #[test]
    fn without_an_attempt_nobody_calls_again() {
        let asked = |recovery, facts| look_without_attempts(&unknown(), &rules(recovery), facts, NOW);
        assert_eq!(asked(Recovery::repeat(), QUIET), Look::Ask);
        assert_eq!(asked(Recovery::repeat(), INSIDE), Look::OldCall(25));
        let both = Recovery::same_key(ms(305)).or_probe(ms(20));
        assert_eq!(asked(both, QUIET), Look::Probe { settled: true });
        assert_eq!(asked(both, JUST_ENDED), Look::Probe { settled: false });
    }
}
