//! What may happen to an effect: return what is recorded, call, ask the provider, wait, or ask a person.
//!
//! An intent is never taken as completion, and an unknown is never blindly repeated. Tokens fence job state, never knowledge
//! about the world: a late proof counts whatever its token.

use super::look::{Look, look, look_without_attempts};
use super::{Change, Env, Refusal, retry};
use crate::model::attempt::Stop;
use crate::model::effect::{EffectRecord, EffectState, Reach, Refusal as NotHappened, Risk, Stored, UndoJob, Undoing};
use crate::model::fact::Fact;
use crate::model::id::{CallNo, EffectId, IdempotencyKey, JobKey, Lease, Token};
use crate::model::job::{JobRecord, JobState};
use crate::model::letter::{Entry, Question};
use crate::model::policy::KindRules;
use crate::model::room::Room;
use crate::model::time::Wall;
use crate::planted::on;
use sha2::{Digest, Sha256};

pub use super::proof::{AfterProbe, called, probed};

/// What a question to the provider rests on; handed back with its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Asking {
    /// The generation whose key was asked for.
    pub generation: u32,
    /// When the question was sent, every call had settled: "not there" may be believed.
    pub settled: bool,
}

/// What the handler asks for, as a value.
#[derive(Clone, Debug)]
pub struct Request {
    /// Name (today's) and part.
    pub id: EffectId,
    /// The request as JSON.
    pub body: Vec<u8>,
    /// The app's version of it.
    pub version: u32,
    /// One plain sentence.
    pub says: String,
    /// Where to look it up.
    pub look_up: Option<(String, String)>,
    /// What can go wrong.
    pub risk: Risk,
    /// How to compensate it.
    pub undo: Option<UndoJob>,
}

/// How the stored request relates to what the handler asks for now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Same {
    /// Equal as JSON values, after decoding the stored one with today's type.
    Yes,
    /// Another request under the same name and part.
    No,
    /// Today's type cannot read the stored one.
    Unreadable,
}

/// The answer to `cx.effect(..)`.
#[derive(Clone, Debug)]
pub enum Begin {
    /// It is recorded as done.
    Recorded {
        /// What came back then.
        result: Stored,
        /// The handler asks for something else now.
        differs: bool,
    },
    /// Write this, then call.
    Call {
        /// The durable intent.
        change: Box<Change>,
        /// Which call.
        call: CallNo,
    },
    /// Ask the provider first; its answer goes to [`probed`], together with this.
    Probe(Asking),
    /// The attempt may go no further.
    Stop(Stop),
}

/// The idempotency key: 64 hex digits of SHA-256 over the length-prefixed parts, so that no two different identities share one.
pub fn idempotency_key(
    scope: &str,
    kind: &str,
    key: &JobKey,
    incarnation: u32,
    effect: &EffectId,
    generation: u32,
) -> IdempotencyKey {
    let mut h = Sha256::new();
    let (incarnation, generation) = (incarnation.to_string(), generation.to_string());
    for part in [scope, kind, key.as_str(), &incarnation, &effect.name, &effect.part, &generation] {
        h.update((part.len() as u64).to_be_bytes());
        h.update(part.as_bytes());
    }
    IdempotencyKey(h.finalize().iter().map(|b| format!("{b:02x}")).collect())
}

/// Whether the disk has room for what `cx.effect(request)` may have to record: while it is full no risky effect begins, and none at all
/// once only what became of things fits. What is done is returned all the same.
pub fn has_room(record: Option<&EffectRecord>, risk: Risk, room: Room) -> bool {
    let fits = match room {
        Room::Normal => true,
        Room::Low => !risk.is_risky(),
        Room::Critical => false,
    };
    fits || record.is_some_and(|r| r.state == EffectState::Confirmed)
}

/// Decides what `cx.effect(request)` does. `unasked` are unresolved records of earlier claims that the handler has not asked for
/// yet in this one; `fresh_key` makes the key of a generation.
#[expect(clippy::too_many_arguments, reason = "a decision names everything it rests on")]
pub fn begin(
    job: &JobRecord,
    lease: &Lease,
    record: Option<&EffectRecord>,
    same: Same,
    request: &Request,
    unasked: &[EffectId],
    rules: &KindRules,
    env: &Env<'_>,
    fresh_key: &dyn Fn(u32) -> IdempotencyKey,
) -> Result<Begin, Refusal> {
    let continuing = running(job, lease)?;
    // Calling again is a new attempt: it needs one that is left, before the deadline. The first call of a claim has its attempt.
    // So has one that nobody called in this file.
    let may_call = !continuing || record.is_some_and(is_first) || retry::may_begin(job, rules, env.now.wall);
    // No second provider beside an unknown first one.
    let earlier = |id: &EffectId| unasked.iter().find(|u| *u != id).map(|u| Begin::Stop(Stop::Earlier(u.clone())));
    let Some(old) = record else {
        let first = || call(job, None, request, 1, fresh_key(1), continuing, lease, env);
        return Ok(earlier(&request.id).unwrap_or_else(first));
    };
    let id = &old.id;
    if let Some(question) = doubt(old, same) {
        return Ok(Begin::Stop(Stop::Ask(question)));
    }
    match old.state {
        EffectState::Confirmed if on("confirmed-called-again") => Ok(call_stored(job, old, continuing, lease, env)),
        EffectState::Confirmed | EffectState::Undone => Ok(recorded(old, same)),
        EffectState::Refused(how) => {
            if let Some(stop) = earlier(id) {
                return Ok(stop);
            }
            if !may_call {
                return Ok(Begin::Stop(Stop::NoAttemptLeft(id.clone())));
            }
            Ok(if is_renewed(how) {
                let generation = old.generation.saturating_add(1);
                call(job, Some(old), request, generation, fresh_key(generation), continuing, lease, env)
            } else {
                call_stored(job, old, continuing, lease, env)
            })
        }
        EffectState::Intended | EffectState::Unknown if old.token == lease.token => {
            // It was called in this very claim: whatever the handler made of the error, it gets no second call.
            let text = old.error.clone().unwrap_or_else(|| "its call has not returned".into());
            Ok(Begin::Stop(Stop::Unknown(id.clone(), text)))
        }
        EffectState::Intended | EffectState::Unknown => {
            let facts = (env.calls)(old);
            let at = env.now.wall;
            let look =
                if may_call { look(old, rules, facts, at) } else { look_without_attempts(old, rules, facts, at) };
            Ok(match look {
                Look::CallAgain => call_stored(job, old, continuing, lease, env),
                Look::Probe { settled } => Begin::Probe(Asking { generation: old.generation, settled }),
                Look::OldCall(ms) => Begin::Stop(Stop::OldCall(id.clone(), ms)),
                Look::Ask => Begin::Stop(Stop::Ask(Question::DidItHappen { effect: id.clone() })),
            })
        }
    }
}

/// Questions that forbid ending as success: every record must be confirmed, refused or resolved, and its effect declared. A job
/// of which something was undone never ends as success either.
pub fn gate(effects: &[EffectRecord], rules: &KindRules) -> Vec<Question> {
    let mut questions = undeclared(effects, rules);
    questions.extend(
        unanswered(effects).into_iter().filter(|q| q.effect().is_some_and(|id| rules.card(&id.name).is_some())),
    );
    if effects.iter().any(EffectRecord::is_taken_back) {
        questions.push(Question::WhatNow);
    }
    questions
}

/// What only the world or a person can answer: whether it happened, and which of two accounts is true.
pub fn unanswered(effects: &[EffectRecord]) -> Vec<Question> {
    let open = effects.iter().filter(|e| e.state.is_unresolved() && !e.conflict);
    open.map(|e| Question::DidItHappen { effect: e.id.clone() }).chain(conflicts(effects)).collect()
}

/// Two accounts of one effect: never run past, whatever the handler says.
pub(super) fn conflicts(effects: &[EffectRecord]) -> impl Iterator<Item = Question> {
    effects.iter().filter(|e| e.conflict).map(|e| Question::Conflict { effect: e.id.clone() })
}

/// Records that today's declarations do not own: never run past.
pub fn undeclared(effects: &[EffectRecord], rules: &KindRules) -> Vec<Question> {
    effects
        .iter()
        .filter(|e| rules.card(&e.id.name).is_none())
        .map(|e| Question::Undeclared { effect: e.id.clone() })
        .collect()
}

/// Whether this lease runs the job, and whether its claim continues an attempt.
pub fn running(job: &JobRecord, lease: &Lease) -> Result<bool, Refusal> {
    match job.state {
        JobState::Running { token, continuing } if token == lease.token && job.id == lease.job => Ok(continuing),
        JobState::Running { .. }
        | JobState::Ready { .. }
        | JobState::Delayed { .. }
        | JobState::Waiting { .. }
        | JobState::NeedsDecision
        | JobState::Dead
        | JobState::Ended { .. }
        | JobState::Compensating { .. } => Err(Refusal::Fenced),
    }
}

/// What has to be asked before this record is used at all. The order is the order in which a person can help.
fn doubt(old: &EffectRecord, same: Same) -> Option<Question> {
    let effect = old.id.clone();
    if old.conflict {
        return Some(Question::Conflict { effect });
    }
    match old.state {
        // It was compensated: the job never goes on as if it had happened, nor does it happen again by itself.
        EffectState::Undone => Some(Question::WhatNow),
        EffectState::Confirmed => {
            // A confirmed effect returns its record whatever became of the request's type.
            if same == Same::No && old.risk.is_risky() && !old.accept_changed {
                return Some(Question::RequestChanged { effect });
            }
            match old.result {
                Some(Stored::Json(_)) => None,
                Some(Stored::Lost(_)) | None => Some(Question::ResultLost { effect }),
            }
        }
        // A new generation sends a new request: the stored one does not matter any more.
        EffectState::Refused(how) if is_renewed(how) => None,
        EffectState::Refused(_) | EffectState::Intended | EffectState::Unknown => match same {
            Same::Yes => None,
            Same::No => (!old.accept_changed).then_some(Question::RequestChanged { effect }),
            Same::Unreadable => Some(Question::RequestUnreadable { effect }),
        },
    }
}

/// It was doubted before it was ever called in this file: its first call is not another attempt.
fn is_first(record: &EffectRecord) -> bool {
    record.is_doubted() && record.calls == 1
}

/// The next call is a new request with a new key.
pub(super) fn is_renewed(how: NotHappened) -> bool {
    match how {
        NotHappened::Said | NotHappened::Person { new_key: true } => true,
        NotHappened::NotSent | NotHappened::NotThere | NotHappened::Person { new_key: false } => false,
    }
}

fn recorded(old: &EffectRecord, same: Same) -> Begin {
    let result = old.result.clone().unwrap_or_else(|| Stored::Lost("no result was kept".into()));
    Begin::Recorded { result, differs: same != Same::Yes }
}

/// A first call or a new generation: the request of now.
#[expect(clippy::too_many_arguments, reason = "a decision names everything it rests on")]
fn call(
    job: &JobRecord,
    old: Option<&EffectRecord>,
    request: &Request,
    generation: u32,
    key: IdempotencyKey,
    continuing: bool,
    lease: &Lease,
    env: &Env<'_>,
) -> Begin {
    let record = first(request, old, generation, key, env.now.wall);
    intend(job, record, old.is_some(), continuing, lease, env)
}

/// The record of a request whose first call under this key was at `at`.
pub(super) fn first(
    request: &Request,
    old: Option<&EffectRecord>,
    generation: u32,
    key: IdempotencyKey,
    at: Wall,
) -> EffectRecord {
    EffectRecord {
        // A record keeps the name it was first stored under, also after the effect was renamed.
        id: old.map_or_else(|| request.id.clone(), |o| o.id.clone()),
        state: EffectState::Intended,
        generation,
        key,
        request: request.body.clone(),
        version: request.version,
        says: request.says.clone(),
        look_up: request.look_up.clone(),
        risk: request.risk,
        undo: request.undo.clone(),
        undoing: Undoing::No,
        confirmed: 0,
        attempt: 0,
        token: Token(0),
        calls: old.map_or(0, |o| o.calls),
        unresolved: Vec::new(),
        reach: Reach::Never,
        first_call: at,
        last_call: at,
        result: None,
        reference: None,
        cannot_tell_since: None,
        error: None,
        conflict: false,
        accept_changed: false,
    }
}

/// The same key again: always with the stored request.
fn call_stored(job: &JobRecord, old: &EffectRecord, continuing: bool, lease: &Lease, env: &Env<'_>) -> Begin {
    let mut record = old.clone();
    let unsent = old.state == EffectState::Refused(NotHappened::NotSent);
    match old.reach {
        // The key never reached the provider: its life starts with this call.
        Reach::Never if unsent => record.first_call = env.now.wall,
        Reach::Never => record.reach = Reach::Maybe,
        Reach::Maybe | Reach::Refused => {}
    }
    record.state = EffectState::Intended;
    record.cannot_tell_since = None;
    intend(job, record, true, continuing, lease, env)
}

fn intend(
    job: &JobRecord,
    mut record: EffectRecord,
    again: bool,
    continuing: bool,
    lease: &Lease,
    env: &Env<'_>,
) -> Begin {
    let mut change = Change::of(job);
    if again && continuing && !is_first(&record) {
        // Calling again is a new attempt: the claim that only looked becomes one.
        change.record.attempts = change.record.attempts.saturating_add(1);
        change.record.given_back.settled = change.record.given_back.settled.saturating_sub(1);
        change.record.state = JobState::Running { token: lease.token, continuing: false };
    }
    if !again {
        change.record.effects = change.record.effects.saturating_add(1);
    }
    record.calls = record.calls.saturating_add(1);
    let call = record.calls;
    record.unresolved.push(call);
    record.attempt = change.record.attempts;
    record.token = lease.token;
    record.last_call = env.now.wall;
    change.note(Entry::Intended { effect: record.id.clone(), call, at: env.now.wall });
    change.facts.push(Fact::Effect {
        job: job.id,
        effect: record.id.clone(),
        state: record.state,
        late: false,
        reference: None,
    });
    change.effects.push(record);
    Begin::Call { change: Box::new(change), call }
}

#[cfg(test)]
mod tests;
