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
use crate::model::review::Review;
use crate::planted::on;

/// What is said of an effect that may have been called by what the file does not know of.
const TEXT: &str = "the file may be an older copy, or a new one in the place of another: this may have been called by what is not in it";

/// The record of an effect that the handler asks for, as one call of which nobody knows the outcome; `None` where there is nothing to
/// doubt: it is confirmed, nobody is sure of it anyway, or it was looked at since the copy was found. `unasked` as for
/// [`begin`](super::effect::begin): beside what has to be asked first no second effect begins.
///
/// # Errors
/// The lease is over.
pub fn doubted(
    job: &JobRecord,
    lease: &Lease,
    record: Option<&EffectRecord>,
    request: &Request,
    unasked: &[EffectId],
    review: &Review,
    fresh_key: &dyn Fn(u32) -> IdempotencyKey,
) -> Result<Option<Change>, Refusal> {
    running(job, lease)?;
    let id = record.map_or(&request.id, |r| &r.id);
    if on("older-copy-trusted") || unasked.iter().any(|u| u != id) {
        return Ok(None);
    }
    let mut doubted = match record {
        None => first(request, None, 1, fresh_key(1), review.since),
        Some(old) if old.conflict || old.last_call >= review.found => return Ok(None),
        Some(old) => match old.state {
            EffectState::Refused(how) if is_renewed(how) => {
                let generation = old.generation.saturating_add(1);
                first(request, Some(old), generation, fresh_key(generation), review.since)
            }
            EffectState::Refused(_) => old.clone(),
            EffectState::Confirmed | EffectState::Undone | EffectState::Intended | EffectState::Unknown => {
                return Ok(None);
            }
        },
    };
    doubted.first_call = match doubted.reach {
        Reach::Never => review.since,
        Reach::Maybe | Reach::Refused => doubted.first_call.min(review.since),
    };
    doubted.reach = doubted.reach.max(Reach::Maybe);
    doubted.state = EffectState::Unknown;
    doubted.last_call = review.found;
    doubted.calls = doubted.calls.saturating_add(1);
    doubted.unresolved = vec![doubted.calls];
    // Of no claim of this file: what is known of its own calls is not mistaken for it.
    doubted.token = Token(0);
    doubted.error = Some(TEXT.to_owned());
    let mut change = Change::of(job);
    if record.is_none() {
        change.record.effects = change.record.effects.saturating_add(1);
    }
    let effect = doubted.id.clone();
    change.note(Entry::Effect { effect: effect.clone(), became: "doubted".into(), late: false, at: review.found });
    change.facts.push(Fact::Effect { job: job.id, effect, state: doubted.state, late: false, reference: None });
    change.effects.push(doubted);
    Ok(Some(change))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::effect::Refusal as NotHappened;
    use crate::model::job::JobState;
    use crate::model::time::Wall;
    use crate::rules::fixture::{id, job, key, record, request, token};

    fn review() -> Review {
        Review { what: "older".into(), since: Wall(10), found: Wall(20), epoch: 2 }
    }

    fn asked(old: Option<&EffectRecord>, unasked: &[EffectId]) -> Option<EffectRecord> {
        let mut job = job(JobState::Running { token: token(5), continuing: false });
        job.attempts = 1;
        let lease = Lease { job: job.id, token: token(5) };
        let told = doubted(&job, &lease, old, &request("a"), unasked, &review(), &|generation| key("a", generation));
        told.expect("a live lease").map(|change| {
            assert_eq!(change.record().effects, u32::from(old.is_none()));
            change.effects()[0].clone()
        })
    }

    /// What is not in the copy may have been called until it was put back, under the key that it would have now.
    #[test]
    fn no_record_is_a_call_nobody_is_sure_of() {
        let new = asked(None, &[]).expect("doubted");
        assert_eq!((new.state, new.generation, new.reach), (EffectState::Unknown, 1, Reach::Maybe));
        assert_eq!((new.first_call, new.last_call, &new.key), (Wall(10), Wall(20), &key("a", 1)));
        assert_eq!((new.calls, new.unresolved.as_slice()), (1, &[1][..]));
        assert_eq!(asked(None, &[id("b")]), None, "what an earlier claim left open is asked first");
        assert_eq!(asked(Some(&new), &[]), None, "once");
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
        for state in [EffectState::Confirmed, EffectState::Undone, EffectState::Intended, EffectState::Unknown] {
            assert_eq!(asked(Some(&record("a", state, 1)), &[]), None, "{state:?}");
        }
        let mut disputed = record("a", EffectState::Refused(NotHappened::Said), 1);
        disputed.conflict = true;
        assert_eq!(asked(Some(&disputed), &[]), None, "two accounts are a question of their own");
    }

    /// A claim of before does not write.
    #[test]
    fn an_old_lease_doubts_nothing() {
        let job = job(JobState::Running { token: token(5), continuing: false });
        let lease = Lease { job: job.id, token: token(4) };
        let told = doubted(&job, &lease, None, &request("a"), &[], &review(), &|generation| key("a", generation));
        assert_eq!(told.err(), Some(Refusal::Fenced));
    }
}
