//! Jobs, effects and kinds for the tests of the rules; short times, so that every bound can be crossed.

use super::effect::Request;
use super::{CallFacts, Change, Env, LetterMove};
use crate::model::effect::{EffectCard, EffectRecord, EffectState, Reach, Recovery, Risk, Stored, UndoJob, Undoing};
use crate::model::id::{EffectId, IdempotencyKey, JobId, KindId, Token};
use crate::model::job::{JobRecord, JobState};
use crate::model::letter::{LetterRecord, Signed};
use crate::model::policy::{Backoff, KindRules, Policy};
use crate::model::time::{Mono, Now, Wall};
use std::time::Duration;

pub(super) const SETTLE: u64 = 20;
pub(super) const TTL: u64 = 300;
pub(super) const OLD_CALL: u64 = 30;
pub(super) const CANNOT_TELL: u64 = 40;
pub(super) const RETRIES: u32 = 1;

pub(super) fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

pub(super) fn at(ms: u64) -> Now {
    Now { wall: Wall(ms), mono: Mono(ms) }
}

/// Every recovery rule, by name.
pub(super) fn recoveries() -> [(&'static str, Recovery); 5] {
    [
        ("ask", Recovery::ask()),
        ("same key", Recovery::same_key(ms(TTL))),
        ("probe", Recovery::probe(ms(SETTLE))),
        ("key, then probe", Recovery::same_key(ms(TTL)).or_probe(ms(SETTLE))),
        ("repeat", Recovery::repeat()),
    ]
}

/// A kind whose effects `a` and `b` follow these rules: two attempts, steps of 10 and 20 ms.
pub(super) fn kind(a: Recovery, b: Recovery, risk: Risk) -> KindRules {
    let cards = [EffectCard::new("a", &["old-a"], risk, a), EffectCard::new("b", &[], risk, b)];
    let mut rules = Policy::default().retries(RETRIES).backoff(Backoff::steps([ms(10), ms(20)])).resolve(&cards);
    rules.old_call_bound = ms(OLD_CALL);
    rules.cannot_tell_bound = ms(CANNOT_TELL);
    rules.deadline = None;
    rules
}

pub(super) fn id(name: &str) -> EffectId {
    EffectId { name: name.into(), part: String::new() }
}

pub(super) fn key(name: &str, generation: u32) -> IdempotencyKey {
    // As unique as the real one, and made in no time.
    IdempotencyKey(format!("{name}-{generation}"))
}

pub(super) fn request(name: &str) -> Request {
    Request {
        id: id(name),
        body: b"{}".to_vec(),
        version: 1,
        says: format!("do {name}"),
        look_up: None,
        risk: Risk::Charge,
        undo: None,
    }
}

pub(super) fn token(n: u64) -> Token {
    Token(n)
}

pub(super) fn job(state: JobState) -> JobRecord {
    JobRecord::new(JobId(1), KindId(1), 4, state, None)
}

/// One call made by the claim `by`, at 0 ms.
pub(super) fn record(name: &str, state: EffectState, by: u64) -> EffectRecord {
    let (unresolved, result) = match state {
        EffectState::Intended | EffectState::Unknown => (vec![1], None),
        EffectState::Confirmed | EffectState::Undone => (vec![], Some(Stored::Json(b"1".to_vec()))),
        EffectState::Refused(_) => (vec![], None),
    };
    EffectRecord {
        id: id(name),
        state,
        generation: 1,
        key: key(name, 1),
        request: b"{}".to_vec(),
        version: 1,
        says: format!("do {name}"),
        look_up: None,
        risk: Risk::Charge,
        undo: None,
        undoing: Undoing::No,
        confirmed: u32::from(matches!(state, EffectState::Confirmed | EffectState::Undone)),
        attempt: 1,
        token: token(by),
        calls: 1,
        unresolved,
        reach: Reach::Never,
        first_call: Wall(0),
        last_call: Wall(0),
        result,
        reference: None,
        cannot_tell_since: None,
        error: None,
        conflict: false,
        accept_changed: false,
    }
}

/// The job that undoes an effect.
pub(super) fn way_back(name: &str) -> UndoJob {
    UndoJob { kind: format!("undo-{name}"), key: "1".into(), version: 1, payload: b"{}".to_vec() }
}

/// Nothing runs, everything ended long ago, the key is young.
pub(super) const QUIET: CallFacts = CallFacts { running_ms: None, quiet_ms: SETTLE, key_age_ms: Some(0) };
/// Nothing runs, but a call ended just now.
pub(super) const JUST_ENDED: CallFacts = CallFacts { running_ms: None, quiet_ms: 0, key_age_ms: Some(0) };
/// A call is inside its performer.
pub(super) const INSIDE: CallFacts = CallFacts { running_ms: Some(5), quiet_ms: 0, key_age_ms: Some(0) };

/// Decides with these facts at `now`.
pub(super) fn with<T>(facts: CallFacts, now: u64, f: impl FnOnce(&Env<'_>) -> T) -> T {
    f(&Env { now: at(now), draw: 0, calls: &|_| facts })
}

pub(super) fn signed(now: u64) -> Signed {
    Signed { who: "ada".into(), why: "looked it up".into(), at: Wall(now) }
}

/// What the store would hold after a change.
pub(super) fn put(
    job: &mut JobRecord,
    effects: &mut Vec<EffectRecord>,
    letter: &mut Option<LetterRecord>,
    change: &Change,
) {
    *job = change.record().clone();
    // The store counts lines of history; here it is enough that the count rises with every confirmation.
    job.journal = change.effects().iter().map(|e| e.confirmed).fold(job.journal, u32::max);
    for new in change.effects() {
        match effects.iter_mut().find(|e| e.id == new.id) {
            Some(old) => *old = new.clone(),
            None => effects.push(new.clone()),
        }
    }
    match change.letter() {
        LetterMove::Keep => {}
        LetterMove::Put(l) => *letter = Some(l.clone()),
        LetterMove::Remove => *letter = None,
    }
}
