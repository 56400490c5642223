//! Whether an enqueue makes a job: the same intent is the same job, until it is deliberately run again.

use super::{Change, LetterMove, Refusal, UndoOrder};
use crate::model::effect::EffectRecord;
use crate::model::fact::Fact;
use crate::model::id::{EffectId, JobId, KindId};
use crate::model::job::{Delay, JobRecord, JobState, NEXT_TICKET, State};
use crate::model::letter::Entry;
use crate::model::policy::{Keep, KindRules};
use crate::model::time::{Now, Wall, millis};
use std::time::Duration;

/// When an enqueued job may start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Start {
    /// At once.
    #[default]
    Now,
    /// At this instant of the calendar.
    At(Wall),
    /// After this long.
    After(Duration),
}

/// What is known of an intent.
#[derive(Clone, Copy, Debug)]
pub struct Known<'a> {
    /// Its newest job.
    pub id: JobId,
    /// That job's incarnation.
    pub incarnation: u32,
    /// Its job, unless the row is pruned.
    pub job: Option<&'a JobRecord>,
    /// Its kind is paused.
    pub paused: bool,
}

/// The answer to an enqueue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admit {
    /// Make a job with this incarnation.
    New {
        /// From 1.
        incarnation: u32,
    },
    /// It exists.
    Existing {
        /// The real job.
        id: JobId,
        /// Where it stands.
        state: State,
        /// The payload differs.
        differs: bool,
    },
}

/// What the caller of an enqueue is told; `differs` if the payload is not that of the known intent. The memory of an intent counts for as long as its row exists: it is pruned late, never
/// early, so a clock that jumped cannot make a charge new again.
pub fn enqueue(known: Option<Known<'_>>, differs: bool) -> Admit {
    match known {
        None => Admit::New { incarnation: 1 },
        Some(k) => Admit::Existing { id: k.id, state: shown(k), differs },
    }
}

/// Starts an ended intent anew, with new idempotency keys. Refused while the job is not over, an effect of it is unresolved, or
/// a call of it still runs.
pub fn run_again(
    known: Option<Known<'_>>,
    effects: &[EffectRecord],
    running: Option<&EffectId>,
) -> Result<Admit, Refusal> {
    let Some(k) = known else { return Ok(Admit::New { incarnation: 1 }) };
    let state = shown(k);
    if !state.is_over() {
        return Err(Refusal::WrongState(state));
    }
    if let Some(id) = running {
        return Err(Refusal::CallRunning(id.clone()));
    }
    let open: Vec<_> = effects.iter().filter(|e| e.state.is_unresolved()).map(|e| e.id.clone()).collect();
    if !open.is_empty() {
        return Err(Refusal::Unresolved(open));
    }
    Ok(Admit::New { incarnation: k.incarnation.saturating_add(1) })
}

/// Where the job of an intent stands, as a caller sees it.
pub fn shown(k: Known<'_>) -> State {
    match k.job {
        None => State::Remembered,
        Some(job) => paused(State::from(&job.state), k.paused),
    }
}

/// Paused is derived: a job that could be claimed shows as paused while its kind is. Every other state says more than that.
pub fn paused(state: State, kind_paused: bool) -> State {
    match state {
        State::Ready if kind_paused => State::Paused,
        State::Ready
        | State::Delayed
        | State::Running
        | State::Waiting
        | State::Paused
        | State::NeedsDecision
        | State::Done
        | State::Dead
        | State::HandledOutside
        | State::Discarded
        | State::Cancelled
        | State::Compensating
        | State::Compensated
        | State::Remembered => state,
    }
}

/// The first record of a new job.
pub fn create(id: JobId, kind: KindId, priority: u8, start: Start, rules: &KindRules, now: Now) -> Change {
    let wall = now.wall;
    let (state, due) = match start {
        Start::At(due) if due > wall => {
            (JobState::Delayed { due, delay_ms: due.since(wall), why: Delay::At }, Some(due))
        }
        Start::After(d) if !d.is_zero() => {
            let due = wall.after(d);
            (JobState::Delayed { due, delay_ms: millis(d), why: Delay::After }, Some(due))
        }
        Start::Now | Start::At(_) | Start::After(_) => (JobState::Ready { ticket: NEXT_TICKET }, None),
    };
    // The deadline counts from when the job may start: a job for next month is not late today.
    let deadline = rules.deadline.map(|d| due.unwrap_or(wall).after(d));
    let to = State::from(&state);
    Change {
        before: None,
        record: JobRecord::new(id, kind, priority, state, deadline),
        effects: Vec::new(),
        memo: None,
        forget: Vec::new(),
        journal: Vec::new(),
        letter: LetterMove::Keep,
        prune: None,
        facts: vec![Fact::Enqueued(id), Fact::Moved { job: id, to, due }],
        undo: None,
        settled: false,
        given_back: false,
    }
}

/// The first record of a job that undoes an effect of `undoes`: its history begins with what it is for.
pub fn create_undo(
    id: JobId,
    kind: KindId,
    priority: u8,
    order: &UndoOrder,
    of: JobId,
    rules: &KindRules,
    now: Now,
) -> Change {
    let mut change = create(id, kind, priority, Start::Now, rules, now);
    let (effect, says) = (order.effect.clone(), order.says.clone());
    change.note(Entry::Undoes { job: of, effect, says, at: now.wall });
    change
}

/// Until when an ended intent is remembered.
pub fn remembered_until(rules: &KindRules, ended: Wall) -> Option<Wall> {
    match rules.remember {
        Keep::Forever => None,
        Keep::For(d) => Some(ended.after(d)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::effect::{EffectState, Recovery, Risk};
    use crate::model::time::Mono;
    use crate::rules::fixture::{id, job, kind, ms, record};

    const NOW: Now = Now { wall: Wall(1_000), mono: Mono(5) };

    fn rules() -> KindRules {
        kind(Recovery::ask(), Recovery::ask(), Risk::Charge)
    }

    /// A job starts when it was said, at once if that is now or over, and its deadline counts from its start.
    #[test]
    fn a_job_starts_when_it_was_said() {
        let rules = KindRules { deadline: Some(ms(50)), ..rules() };
        let ready = (JobState::Ready { ticket: NEXT_TICKET }, None, 1_050);
        let later =
            |why, due, delay_ms| (JobState::Delayed { due: Wall(due), delay_ms, why }, Some(Wall(due)), due + 50);
        for (start, (state, due, deadline)) in [
            (Start::Now, ready.clone()),
            (Start::At(Wall(999)), ready.clone()),
            (Start::At(Wall(1_000)), ready.clone()),
            (Start::At(Wall(1_001)), later(Delay::At, 1_001, 1)),
            (Start::After(Duration::ZERO), ready),
            (Start::After(ms(7)), later(Delay::After, 1_007, 7)),
        ] {
            let change = create(JobId(1), KindId(1), 4, start, &rules, NOW);
            let record = change.record();
            assert_eq!((&record.state, record.deadline), (&state, Some(Wall(deadline))), "{start:?}");
            let moved = Fact::Moved { job: JobId(1), to: State::from(&state), due };
            assert_eq!(change.facts(), [Fact::Enqueued(JobId(1)), moved]);
        }
    }

    /// An intent is remembered for as long as its kind says, or for ever.
    #[test]
    fn an_intent_is_remembered_as_long_as_its_kind_says() {
        let until = |remember| remembered_until(&KindRules { remember, ..rules() }, Wall(100));
        assert_eq!(until(Keep::For(ms(7))), Some(Wall(107)));
        assert_eq!(until(Keep::Forever), None);
    }

    /// Only what is over runs again, with nothing open and nothing on its way; the new one is the next of its intent. A ready job
    /// of a paused kind shows as paused, and no other does.
    #[test]
    fn what_is_over_runs_again_as_the_next_one() {
        let (over, waiting) = (job(JobState::Dead), job(JobState::Ready { ticket: 1 }));
        let ended = JobState::Ended { how: crate::model::job::End::Done, at: Wall(9) };
        let done = job(ended);
        let known = |job, paused| Some(Known { id: JobId(1), incarnation: 2, job, paused });
        let (closed, open) = ([record("a", EffectState::Confirmed, 1)], [record("a", EffectState::Unknown, 1)]);
        assert_eq!(run_again(None, &[], None), Ok(Admit::New { incarnation: 1 }));
        assert_eq!(run_again(known(Some(&done), false), &closed, None), Ok(Admit::New { incarnation: 3 }));
        assert_eq!(run_again(known(None, false), &[], None), Ok(Admit::New { incarnation: 3 }));
        assert_eq!(run_again(known(Some(&done), false), &open, None), Err(Refusal::Unresolved(vec![id("a")])));
        assert_eq!(run_again(known(Some(&done), false), &closed, Some(&id("a"))), Err(Refusal::CallRunning(id("a"))));
        for (job, paused, state) in [
            (&over, false, State::Dead),
            (&over, true, State::Dead),
            (&waiting, false, State::Ready),
            (&waiting, true, State::Paused),
        ] {
            assert_eq!(run_again(known(Some(job), paused), &[], None), Err(Refusal::WrongState(state)));
        }
    }
}
