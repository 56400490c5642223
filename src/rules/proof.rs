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
