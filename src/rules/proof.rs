//! What becomes known about an effect: the end of a call, or the provider's answer to a question.
//!
//! Tokens fence job state, never knowledge about the world: "it happened" counts whatever its lease. "It did not" speaks about
//! one call, or about all of them once they have settled. Called by the operations of a running or fenced attempt.

use super::effect::{Asking, running};
use super::look::{cannot_tell, not_settled};
use super::{Change, Env, Refusal};
use crate::model::attempt::Stop;
use crate::model::effect::{
    CallEnd, EffectRecord, EffectState, Probed, Reach, Refusal as NotHappened, Stored, UndoJob,
};
use crate::model::fact::Fact;
use crate::model::id::{CallNo, Lease};
use crate::model::job::JobRecord;
use crate::model::letter::Entry;
use crate::model::policy::KindRules;
use crate::planted::on;

/// What follows from the provider's answer.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub enum AfterProbe {
    /// Begin the effect again: it returns the recorded result, or calls.
    Again,
    /// The attempt may go no further.
    Stop(Stop),
}

/// What became of a call, from whatever lease: knowledge about the world is never fenced.
pub fn called(
    job: &JobRecord,
    record: &EffectRecord,
    lease: &Lease,
    call: CallNo,
    generation: u32,
    end: CallEnd,
    env: &Env<'_>,
) -> Change {
    let late = running(job, lease).is_err();
    let mut next = record.clone();
    let became = match end {
        CallEnd::Happened { result, reference, undo } => {
            happened(&mut next, generation, result, reference, undo);
            "confirmed"
        }
        CallEnd::Refused(text) => {
            did_not_happen(&mut next, call, generation, NotHappened::Said, text);
            "refused"
        }
        CallEnd::NotSent(text) => {
            did_not_happen(&mut next, call, generation, NotHappened::NotSent, text);
            "not sent"
        }
        CallEnd::Unknown(text) if on("unknown-as-unsent") => {
            did_not_happen(&mut next, call, generation, NotHappened::NotSent, text);
            "not sent"
        }
        CallEnd::Unknown(text) => {
            if generation == next.generation && next.state.is_unresolved() {
                next.state = EffectState::Unknown;
                next.reach = next.reach.max(Reach::Maybe);
                next.error = Some(text);
            }
            "unknown"
        }
    };
    tell(job, record, next, became, late, env)
}

/// What the provider answered when asked. Found counts whatever the lease, and at once; "not there" only within it, and only when
/// the question was sent after the calls had settled. `asking` is what [`begin`](super::effect::begin) said with the question.
pub fn probed(
    job: &JobRecord,
    record: &EffectRecord,
    lease: &Lease,
    asking: Asking,
    answer: Probed,
    rules: &KindRules,
    env: &Env<'_>,
) -> Result<(Change, AfterProbe), Refusal> {
    let late = running(job, lease).is_err();
    let mut next = record.clone();
    // A late proof may have answered meanwhile; then what the provider knows or not changes nothing.
    let open = record.state.is_unresolved() && asking.generation == record.generation;
    let (became, after) = match answer {
        Probed::Found { result, reference, undo } => {
            happened(&mut next, asking.generation, result, reference, undo);
            ("confirmed", if late { AfterProbe::Stop(Stop::Fenced) } else { AfterProbe::Again })
        }
        Probed::NotThere | Probed::CannotTell(_) if late => return Err(Refusal::Fenced),
        Probed::NotThere if !open => ("not there", AfterProbe::Again),
        Probed::NotThere if asking.settled => {
            next.state = EffectState::Refused(NotHappened::NotThere);
            next.unresolved.clear();
            next.cannot_tell_since = None;
            ("not there", AfterProbe::Again)
        }
        Probed::NotThere => {
            next.state = EffectState::Unknown;
            next.cannot_tell_since = None;
            ("not there yet", AfterProbe::Stop(not_settled(record, rules, (env.calls)(record))))
        }
        Probed::CannotTell(_) if !open => ("cannot tell", AfterProbe::Again),
        Probed::CannotTell(text) => {
            next.state = EffectState::Unknown;
            next.cannot_tell_since = next.cannot_tell_since.or(Some(env.now.wall));
            next.error = Some(text.clone());
            let stop = cannot_tell(&next, rules, (env.calls)(record), env.now.wall, text);
            ("cannot tell", AfterProbe::Stop(stop))
        }
    };
    Ok((tell(job, record, next, became, late, env), after))
}

fn tell(job: &JobRecord, was: &EffectRecord, next: EffectRecord, became: &str, late: bool, env: &Env<'_>) -> Change {
    let mut next = next;
    if next.state == EffectState::Confirmed && was.state != EffectState::Confirmed {
        next.confirmed = confirmation(job);
    }
    let mut change = Change::of(job);
    change.settled = was.state.is_unresolved() && !next.state.is_unresolved();
    change.note(Entry::Effect { effect: next.id.clone(), became: became.into(), late, at: env.now.wall });
    change.facts.push(Fact::Effect {
        job: job.id,
        effect: next.id.clone(),
        state: next.state,
        late,
        reference: next.reference.clone(),
    });
    if next.conflict && !was.conflict {
        change.facts.push(Fact::Conflict { job: job.id, effect: next.id.clone() });
    }
    change.effects.push(next);
    change
}

/// The number of the confirmation that follows: it rises, because each is a line of the history.
pub(super) fn confirmation(job: &JobRecord) -> u32 {
    job.journal.saturating_add(1)
}

/// It happened. At most one account of it is kept; one that contradicts it, or a person, is a conflict.
fn happened(
    next: &mut EffectRecord,
    generation: u32,
    result: Stored,
    reference: Option<String>,
    undo: Option<UndoJob>,
) {
    if generation != next.generation {
        let seen = reference.as_ref().map_or_else(|| "no reference".into(), |r| format!("reference {r}"));
        next.error = Some(format!("a call under an earlier key happened too ({seen})"));
        next.conflict = true;
        return;
    }
    match next.state {
        EffectState::Confirmed | EffectState::Undone => {
            if contradicts(next, &result, &reference) {
                next.conflict = true;
                return;
            }
            // The same account, perhaps with more to it: a person's word had no result, the call's has.
            if !matches!(next.result, Some(Stored::Json(_))) {
                next.result = Some(result);
            }
            next.reference = next.reference.take().or(reference);
            next.undo = undo.or_else(|| next.undo.take());
        }
        EffectState::Refused(how) => {
            next.conflict |= matches!(how, NotHappened::Person { .. });
            confirm(next, result, reference, undo);
        }
        EffectState::Intended | EffectState::Unknown => confirm(next, result, reference, undo),
    }
}

fn confirm(next: &mut EffectRecord, result: Stored, reference: Option<String>, undo: Option<UndoJob>) {
    next.state = EffectState::Confirmed;
    next.unresolved.clear();
    next.cannot_tell_since = None;
    next.result = Some(result);
    next.reference = reference;
    next.error = None;
    if undo.is_some() {
        next.undo = undo;
    }
}

/// Two results, or two references of the provider, that are not the same. A lost result contradicts nothing.
fn contradicts(record: &EffectRecord, result: &Stored, reference: &Option<String>) -> bool {
    let results = match (&record.result, result) {
        (Some(Stored::Json(a)), Stored::Json(b)) => !same_json(a, b),
        (Some(Stored::Json(_) | Stored::Lost(_)) | None, Stored::Json(_) | Stored::Lost(_)) => false,
    };
    let references = matches!((&record.reference, reference), (Some(a), Some(b)) if a != b);
    results || references
}

fn same_json(a: &[u8], b: &[u8]) -> bool {
    let value = |bytes| serde_json::from_slice::<serde_json::Value>(bytes).ok();
    a == b || value(a).is_some_and(|v| Some(v) == value(b))
}

/// "It did not happen" speaks about one call; the effect is refused only when every call under the key is accounted for.
fn did_not_happen(next: &mut EffectRecord, call: CallNo, generation: u32, how: NotHappened, text: String) {
    if generation != next.generation {
        return;
    }
    // A person said that it happened, and now the provider's own answer to the last call says that it did not.
    if next.state == EffectState::Confirmed && next.accept_changed && call == next.calls && how == NotHappened::Said {
        next.error = Some(text);
        next.conflict = true;
        return;
    }
    if !next.state.is_unresolved() {
        return;
    }
    if how == NotHappened::Said {
        next.reach = Reach::Refused;
    }
    next.unresolved.retain(|&c| c != call);
    next.error = Some(text);
    next.state = match (next.unresolved.is_empty(), next.reach) {
        (false, _) => EffectState::Unknown,
        // One "no" among the calls is enough: the provider would say it again to this key.
        (true, Reach::Refused) => EffectState::Refused(NotHappened::Said),
        (true, Reach::Never | Reach::Maybe) => EffectState::Refused(how),
    };
    if !next.state.is_unresolved() {
        next.cannot_tell_since = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::effect::{Recovery, Risk};
    use crate::model::job::JobState;
    use crate::model::time::Wall;
    use crate::rules::fixture::{QUIET, id, job, kind, ms, record, token, with};

    fn at_work() -> (JobRecord, Lease) {
        let job = JobRecord { journal: 7, ..job(JobState::Running { token: token(3), continuing: false }) };
        let lease = Lease { job: job.id, token: token(3) };
        (job, lease)
    }
    fn told(old: &EffectRecord, call: CallNo, generation: u32, end: CallEnd) -> Change {
        let (job, lease) = at_work();
        with(QUIET, 9, |env| called(&job, old, &lease, call, generation, end, env))
    }
    fn happens(json: &str, reference: Option<&str>) -> CallEnd {
        let result = Stored::Json(json.as_bytes().to_vec());
        CallEnd::Happened { result, reference: reference.map(str::to_owned), undo: None }
    }
    fn conflict_told(change: &Change) -> bool {
        change.facts().contains(&Fact::Conflict { job: change.record().id, effect: id("a") })
    }

    /// The same account in other spelling is the same; another result or another reference is a second account, told once.
    #[test]
    fn two_accounts_contradict_where_they_differ() {
        let result = Some(Stored::Json(br#"{"a":1,"b":2}"#.to_vec()));
        let first = EffectRecord { result, reference: Some("op".into()), ..record("a", EffectState::Confirmed, 1) };
        for (json, reference, differs) in [
            (r#"{"a":1,"b":2}"#, Some("op"), false),
            (r#"{ "b": 2, "a": 1 }"#, None, false),
            (r#"{"a":1,"b":3}"#, Some("op"), true),
            ("no JSON", Some("op"), true),
            (r#"{"a":1,"b":2}"#, Some("other"), true),
        ] {
            let change = told(&first, 1, 1, happens(json, reference));
            assert_eq!(change.effects(), [EffectRecord { conflict: differs, ..first.clone() }], "{json} {reference:?}");
            assert_eq!(conflict_told(&change), differs, "{json} {reference:?}");
        }
        let known = EffectRecord { conflict: true, ..first.clone() };
        assert!(!conflict_told(&told(&known, 1, 1, happens("3", None))), "it was told before");
        let garbled = EffectRecord { result: Some(Stored::Json(b"garbled".to_vec())), ..first.clone() };
        assert!(!told(&garbled, 1, 1, happens("garbled", None)).effects()[0].conflict, "byte for byte the same");
        assert!(told(&garbled, 1, 1, happens("otherwise", None)).effects()[0].conflict);
        // A person's word had no result and no reference; the call's has both.
        let lost = EffectRecord { result: Some(Stored::Lost("said".into())), reference: None, ..first };
        let more = &told(&lost, 1, 1, happens("3", Some("op"))).effects()[0].clone();
        assert_eq!((&more.result, more.reference.as_deref()), (&Some(Stored::Json(b"3".to_vec())), Some("op")));
        assert_eq!((more.conflict, more.confirmed), (false, lost.confirmed), "it is confirmed once");
    }

    /// A proof beats what the provider said before; against a person's word it is a question.
    #[test]
    fn a_proof_against_a_person_is_a_question() {
        let person = NotHappened::Person { new_key: false };
        for (how, asked) in [(NotHappened::NotSent, false), (NotHappened::NotThere, false), (person, true)] {
            let change = told(&record("a", EffectState::Refused(how), 1), 1, 1, happens("1", None));
            let now = &change.effects()[0];
            assert_eq!((now.state, now.conflict, now.confirmed), (EffectState::Confirmed, asked, 8), "{how:?}");
            assert_eq!((conflict_told(&change), change.settled), (asked, false), "{how:?}");
        }
        let open = told(&record("a", EffectState::Unknown, 1), 1, 1, happens("1", None));
        assert_eq!((open.effects()[0].confirmed, open.settled), (8, true));
        let earlier = told(&record("a", EffectState::Unknown, 1), 1, 0, happens("1", None));
        assert_eq!((earlier.effects()[0].state, earlier.effects()[0].conflict), (EffectState::Unknown, true));
        assert_eq!(
            (earlier.effects()[0].confirmed, earlier.settled),
            (0, false),
            "the other key's call is as open as before"
        );
    }

    /// Ann says that it happened, and then the provider answers the last call with "no": two accounts. What was not sent, or an
    /// answer to an earlier call, says nothing against her.
    #[test]
    fn a_refusal_of_the_last_call_contradicts_a_person() {
        let said = EffectRecord { calls: 2, accept_changed: true, ..record("a", EffectState::Confirmed, 1) };
        let (no, unsent) = (|| CallEnd::Refused("no".into()), || CallEnd::NotSent("no route".into()));
        assert!(told(&said, 2, 1, no()).effects()[0].conflict);
        for (old, call, generation, end) in [
            (said.clone(), 1, 1, no()),
            (said.clone(), 2, 0, no()),
            (said.clone(), 2, 1, unsent()),
            (EffectRecord { accept_changed: false, ..said.clone() }, 2, 1, no()),
            (EffectRecord { state: EffectState::Undone, ..said.clone() }, 2, 1, no()),
        ] {
            assert_eq!(told(&old, call, generation, end).effects(), [old]);
        }
    }

    /// Two calls are on their way. The effect is refused when both are accounted for, and one "no" is enough to make it the answer.
    #[test]
    fn an_effect_is_refused_when_every_call_is_accounted_for() {
        let (no, unsent) = (|| CallEnd::Refused("no".into()), || CallEnd::NotSent("no route".into()));
        let since = Some(Wall(4));
        let two = EffectRecord {
            calls: 2,
            unresolved: vec![1, 2],
            cannot_tell_since: since,
            ..record("a", EffectState::Unknown, 1)
        };
        for (first, second, how) in [
            (no(), unsent(), NotHappened::Said),
            (unsent(), no(), NotHappened::Said),
            (unsent(), unsent(), NotHappened::NotSent),
        ] {
            let one = told(&two, 1, 1, first);
            let left = one.effects()[0].clone();
            assert_eq!((left.state, left.unresolved.as_slice()), (EffectState::Unknown, &[2][..]));
            assert_eq!((left.cannot_tell_since, one.settled), (since, false));
            let over = told(&left, 2, 1, second);
            assert_eq!((over.effects()[0].state, over.settled), (EffectState::Refused(how), true));
            assert_eq!(over.effects()[0].cannot_tell_since, None);
        }
        assert_eq!(told(&two, 2, 0, no()).effects(), [two], "another key's answer says nothing about these");
    }

    /// "Unknown" is news only about a call under the key of now, and only while nobody knows better.
    #[test]
    fn an_unknown_end_takes_no_knowledge_away() {
        let lost = || CallEnd::Unknown("timeout".into());
        let open = record("a", EffectState::Intended, 1);
        let now = told(&open, 1, 1, lost()).effects()[0].clone();
        assert_eq!((now.state, now.reach, now.error.as_deref()), (EffectState::Unknown, Reach::Maybe, Some("timeout")));
        let done = record("a", EffectState::Confirmed, 1);
        assert_eq!(told(&done, 1, 1, lost()).effects(), [done]);
        assert_eq!(told(&open, 1, 0, lost()).effects(), [open]);
    }

    /// A late proof came while the provider was asked: what it does not know, or cannot tell, changes nothing. A fenced attempt says
    /// nothing but what happened.
    #[test]
    fn an_answer_takes_no_knowledge_away() {
        let (job, lease) = at_work();
        let rules = kind(Recovery::probe(ms(20)), Recovery::ask(), Risk::Charge);
        let asked = |old: &EffectRecord, lease: &Lease, generation, settled, answer| {
            let asking = Asking { generation, settled };
            with(QUIET, 9, |env| probed(&job, old, lease, asking, answer, &rules, env))
                .map(|(change, after)| (change.effects()[0].clone(), after))
        };
        let (done, open) = (record("a", EffectState::Confirmed, 1), record("a", EffectState::Unknown, 1));
        for answer in [Probed::NotThere, Probed::CannotTell("down".into())] {
            for settled in [true, false] {
                let again = |record: &EffectRecord| Ok((record.clone(), AfterProbe::Again));
                assert_eq!(asked(&done, &lease, 1, settled, answer.clone()), again(&done));
                assert_eq!(asked(&open, &lease, 0, settled, answer.clone()), again(&open), "another key was asked for");
                let over = Lease { token: token(2), ..lease };
                assert_eq!(asked(&open, &over, 1, settled, answer.clone()), Err(Refusal::Fenced));
            }
        }
        let (gone, after) = asked(&open, &lease, 1, true, Probed::NotThere).expect("a live lease");
        assert_eq!((gone.state, after), (EffectState::Refused(NotHappened::NotThere), AfterProbe::Again));
        let (not_yet, after) = asked(&open, &lease, 1, false, Probed::NotThere).expect("a live lease");
        assert_eq!(not_yet.state, EffectState::Unknown);
        assert_eq!(after, AfterProbe::Stop(Stop::Settling(id("a"), 0)), "by now the calls have settled: ask again");
        let (down, after) = asked(&open, &lease, 1, true, Probed::CannotTell("down".into())).expect("a live lease");
        assert_eq!((down.cannot_tell_since, down.error.as_deref()), (Some(Wall(9)), Some("down")));
        assert_eq!(after, AfterProbe::Stop(Stop::CannotTell(id("a"), "down".into())));
    }
}
