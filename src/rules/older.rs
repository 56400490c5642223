//! What an older copy of the file may have forgotten: the calls that were made after it was.
//!
//! In such a file no record means nothing. The first call of an effect is taken for one that nobody is sure of, and the declared
//! rule decides as after every lost answer, but that a probe comes first: the same key while the provider surely remembers it, else a
//! person.

use super::effect::{Request, first, is_renewed, running};
use super::{Change, Refusal};
use crate::model::effect::{EffectRecord, EffectState, Reach};
use crate::model::fact::Fact;
use crate::model::id::{EffectId, IdempotencyKey, Lease, Token};
use crate::model::job::JobRecord;
use crate::model::letter::Entry;
use crate::model::policy::{KindRules, OnDead};
use crate::model::review::Review;
use crate::model::time::Wall;
use crate::planted::on;
use std::borrow::Cow;

/// What is said of an effect that may have been called by what the file does not know of.
const TEXT: &str = "the file may be an older copy, or a new one in the place of another: this may have been called by what is not in it";

/// Rules as they hold while a file is under review: nothing is undone by itself, because what was done after the copy was made may not
/// be known.
pub fn in_force<'a>(rules: &'a KindRules, review: Option<&Review>) -> Cow<'a, KindRules> {
    if review.is_some() && rules.on_dead == OnDead::Undo {
        Cow::Owned(KindRules { on_dead: OnDead::Hold, ..rules.clone() })
    } else {
        Cow::Borrowed(rules)
    }
}

/// How a record came to be doubted.
pub struct Doubted {
    /// To be written before anything is decided about it.
    pub change: Change,
    /// It is the request of now, under a key that it may have been called with.
    pub is_of_now: bool,
}

/// The record of an effect that the handler asks for, as one call of which nobody knows the outcome; `None` where there is nothing to
/// doubt: it is confirmed, or it was called or looked at since the copy was found. `unasked` as for
/// [`begin`](super::effect::begin): beside what has to be asked first no second effect begins. `renamed`: what it was called with before
/// may have had another name, and so another key.
///
/// # Errors
/// The lease is over.
#[expect(clippy::too_many_arguments, reason = "a decision names everything it rests on")]
pub fn doubted(
    job: &JobRecord,
    lease: &Lease,
    record: Option<&EffectRecord>,
    request: &Request,
    unasked: &[EffectId],
    review: &Review,
    renamed: bool,
    fresh_key: &dyn Fn(u32) -> IdempotencyKey,
) -> Result<Option<Doubted>, Refusal> {
    running(job, lease)?;
    let is_open = record.is_some_and(|r| r.state.is_unresolved());
    let id = record.map_or(&request.id, |r| &r.id);
    if on("older-copy-trusted") || (!is_open && unasked.iter().any(|u| u != id)) {
        return Ok(None);
    }
    // A clock that was set says nothing of what came first; epochs do.
    if record.is_some_and(|r| r.conflict || r.token.epoch() >= review.epoch) {
        return Ok(None);
    }
    let (mut doubted, is_of_now) = match record {
        None => (first(request, None, 1, fresh_key(1), review.since), true),
        Some(old) => match old.state {
            EffectState::Refused(how) if is_renewed(how) => {
                let generation = old.generation.saturating_add(1);
                (first(request, Some(old), generation, fresh_key(generation), review.since), true)
            }
            // Also a call that was on its way: it may have been refused since, and made again under the next key.
            EffectState::Refused(_) | EffectState::Intended | EffectState::Unknown => (old.clone(), false),
            EffectState::Confirmed | EffectState::Undone => return Ok(None),
        },
    };
    doubted.first_call = match doubted.reach {
        // Long ago: the key counts as over.
        _ if renamed && is_of_now => Wall(0),
        Reach::Never => review.since,
        Reach::Maybe | Reach::Refused => doubted.first_call.min(review.since),
    };
    doubted.reach = doubted.reach.max(Reach::Maybe);
    doubted.state = EffectState::Unknown;
    doubted.last_call = review.found;
    doubted.calls = doubted.calls.saturating_add(1);
    doubted.unresolved.push(doubted.calls);
    // Of no claim: what is known of this file's own calls is not mistaken for it.
    doubted.token = Token::first_of(review.epoch);
    doubted.error = Some(TEXT.to_owned());
    let mut change = Change::of(job);
    if record.is_none() {
        change.record.effects = change.record.effects.saturating_add(1);
    }
    let effect = doubted.id.clone();
    change.note(Entry::Effect { effect: effect.clone(), became: "doubted".into(), late: false, at: review.found });
    change.facts.push(Fact::Effect { job: job.id, effect, state: doubted.state, late: false, reference: None });
    change.effects.push(doubted);
    Ok(Some(Doubted { change, is_of_now }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::effect::{Recovery, Refusal as NotHappened, Risk};
    use crate::model::job::JobState;
    use crate::rules::fixture::{id, job, key, kind, record, request, token};

    fn review() -> Review {
        Review { what: "older".into(), since: Wall(10), found: Wall(20), epoch: 2 }
    }

    fn told(old: Option<&EffectRecord>, unasked: &[EffectId], renamed: bool) -> Option<(EffectRecord, bool)> {
        let token = Token(Token::first_of(2).0 + 5);
        let mut job = job(JobState::Running { token, continuing: false });
        job.attempts = 1;
        let lease = Lease { job: job.id, token };
        let fresh = |generation| key("a", generation);
        let told = doubted(&job, &lease, old, &request("a"), unasked, &review(), renamed, &fresh);
        told.expect("a live lease").map(|told| {
            assert_eq!(told.change.record().effects, u32::from(old.is_none()));
            (told.change.effects()[0].clone(), told.is_of_now)
        })
    }

    fn asked(old: Option<&EffectRecord>, unasked: &[EffectId]) -> Option<EffectRecord> {
        told(old, unasked, false).map(|(record, _)| record)
    }

    /// What is not in the copy may have been called until it was put back, under the key that it would have now.
    #[test]
    fn no_record_is_a_call_nobody_is_sure_of() {
        let new = asked(None, &[]).expect("doubted");
        assert_eq!((new.state, new.generation, new.reach), (EffectState::Unknown, 1, Reach::Maybe));
        assert_eq!((new.first_call, new.last_call, &new.key), (Wall(10), Wall(20), &key("a", 1)));
        assert_eq!((new.calls, new.unresolved.as_slice()), (1, &[1][..]));
        assert_eq!(asked(None, &[id("b")]), None, "what an earlier claim left open is asked first");
        assert!(new.is_doubted());
        assert_eq!(asked(Some(&new), &[]), None, "once");
        let (renamed, is_of_now) = told(None, &[], true).expect("doubted");
        assert_eq!((renamed.first_call, is_of_now), (Wall(0), true), "under whichever name: no key of now helps");
    }

    /// What had not happened when the copy was made may have happened since; what had happened has.
    #[test]
    fn what_had_not_happened_by_then_is_doubted_too() {
        for how in [NotHappened::Said, NotHappened::Person { new_key: true }] {
            let next = asked(Some(&record("a", EffectState::Refused(how), 1)), &[]).expect("doubted");
            assert_eq!((next.generation, &next.key, next.first_call), (2, &key("a", 2), Wall(10)), "{how:?}");
        }
        for how in [NotHappened::NotSent, NotHappened::NotThere, NotHappened::Person { new_key: false }] {
            let same = asked(Some(&record("a", EffectState::Refused(how), 1)), &[]).expect("doubted");
            assert_eq!((same.generation, &same.key, same.state), (1, &key("a", 1), EffectState::Unknown), "{how:?}");
            assert_eq!(same.unresolved, [2]);
            let mut seen = same.clone();
            seen.state = EffectState::Refused(how);
            assert_eq!(asked(Some(&seen), &[]), None, "it was looked at since");
        }
        for state in [EffectState::Intended, EffectState::Unknown] {
            let on_its_way = asked(Some(&record("a", state, 1)), &[]).expect("doubted");
            assert_eq!((on_its_way.state, on_its_way.generation, on_its_way.calls), (EffectState::Unknown, 1, 2));
            assert_eq!(on_its_way.unresolved, [1, 2]);
            assert!(on_its_way.is_doubted());
            assert_eq!(asked(Some(&on_its_way), &[]), None, "once");
            assert!(asked(Some(&record("a", state, 1)), &[id("b")]).is_some(), "also beside another that is open");
        }
        for state in [EffectState::Confirmed, EffectState::Undone] {
            assert_eq!(asked(Some(&record("a", state, 1)), &[]), None, "{state:?}");
        }
        let mut disputed = record("a", EffectState::Refused(NotHappened::Said), 1);
        disputed.conflict = true;
        assert_eq!(asked(Some(&disputed), &[]), None, "two accounts are a question of their own");
    }

    /// Whoever would undo by itself asks a person instead, and only while there is a review.
    #[test]
    fn nothing_is_undone_by_itself_under_review() {
        let mut rules = kind(Recovery::ask(), Recovery::ask(), Risk::Charge);
        for on_dead in [OnDead::Undo, OnDead::Hold] {
            rules.on_dead = on_dead;
            assert_eq!(in_force(&rules, None).on_dead, on_dead);
            assert_eq!(in_force(&rules, Some(&review())).on_dead, OnDead::Hold);
        }
    }

    /// A claim of before does not write.
    #[test]
    fn an_old_lease_doubts_nothing() {
        let job = job(JobState::Running { token: token(5), continuing: false });
        let lease = Lease { job: job.id, token: token(4) };
        let fresh = |generation| key("a", generation);
        let told = doubted(&job, &lease, None, &request("a"), &[], &review(), false, &fresh).map(|_| ());
        assert_eq!(told.err(), Some(Refusal::Fenced));
    }
}
