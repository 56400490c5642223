//! The moves a job can make, each with what must go with it: the count, the line, the letter, the pruning date.
//!
//! Straight lines only; which move follows is decided by the callers (claim, end, recovery, proof, verdict).

use super::effect::gate;
use super::look::{Look, look, look_without_attempts};
use super::retry::{self, backoff_ms};
use super::undo::{self, ByPolicy, by_policy};
use super::{Change, Env, LetterMove};
use crate::model::attempt::{Class, Failure, Outcome};
use crate::model::effect::{EffectRecord, Recovery};
use crate::model::fact::Fact;
use crate::model::id::{EffectId, Token};
use crate::model::job::{Delay, End, GivenBack, JobRecord, JobState, NEXT_TICKET, Wait};
use crate::model::letter::{Entry, LetterRecord, Question, Why};
use crate::model::policy::{Keep, KindRules};
use crate::model::time::Wall;

/// What the end of a claim rests on.
#[derive(Clone, Copy)]
pub(super) struct Scene<'a> {
    /// The claim that ends.
    pub(super) token: Token,
    /// It continued an earlier attempt and has not become one of its own.
    pub(super) continuing: bool,
    /// All effect records of the job.
    pub(super) effects: &'a [EffectRecord],
    /// The kind.
    pub(super) rules: &'a KindRules,
    /// Time, chance, calls.
    pub(super) env: &'a Env<'a>,
}

impl Scene<'_> {
    pub(super) fn at(&self) -> Wall {
        self.env.now.wall
    }
    /// The record, if the effect exists and nobody is sure of it.
    pub(super) fn open(&self, id: &EffectId) -> bool {
        self.effects.iter().any(|e| e.id == *id && e.state.is_unresolved())
    }
    /// This very claim made a call of which nobody knows the outcome.
    pub(super) fn own_call_is_open(&self) -> bool {
        self.effects.iter().any(|e| e.token == self.token && e.state.is_unresolved())
    }
    /// This very claim made a call.
    pub(super) fn called(&self) -> bool {
        self.effects.iter().any(|e| e.token == self.token)
    }
    /// This very claim made a call that may be repeated without asking: repeating it has to cost an attempt.
    pub(super) fn repeatable_call_is_open(&self) -> bool {
        let repeats = |e: &EffectRecord| self.rules.card(&e.id.name).is_some_and(|c| c.recovery == Recovery::Repeat);
        self.effects.iter().any(|e| e.token == self.token && e.state.is_unresolved() && repeats(e))
    }
}

/// What follows from the effects nobody is sure of.
pub(super) enum Plan {
    /// A person answers these.
    Ask(Vec<Question>),
    /// An old call may still answer by itself.
    Wait(Wait, u64),
    /// The next claim asks the provider, in the same attempt.
    Probe,
    /// The next attempt calls again, after this many ms.
    CallAgain(u64),
}

/// The plan for all unresolved effects; `None` if there is none. `at_once`: calling again needs no pause, nobody failed.
pub(super) fn plan(job: &JobRecord, scene: &Scene<'_>, at_once: bool) -> Option<Plan> {
    let Scene { effects, rules, env, .. } = *scene;
    let at = env.now.wall;
    let pause = if at_once { 0 } else { backoff_ms(&rules.backoff, job.attempts.max(1), env.draw) };
    let may_call = retry::may_begin(job, rules, Wall(at.0.saturating_add(pause)));
    let look_at = if may_call { look } else { look_without_attempts };
    let looks: Vec<(&EffectId, Look)> = effects
        .iter()
        .filter(|e| e.state.is_unresolved())
        .map(|e| (&e.id, look_at(e, rules, (env.calls)(e), at)))
        .collect();
    let asked: Vec<Question> = looks.iter().filter(|(_, l)| *l == Look::Ask).map(|(id, _)| ask(id, rules)).collect();
    if !asked.is_empty() {
        return Some(Plan::Ask(asked));
    }
    if looks.iter().any(|(_, l)| *l == Look::CallAgain) {
        return Some(Plan::CallAgain(pause));
    }
    if looks.iter().any(|(_, l)| matches!(l, Look::Probe { .. })) {
        return Some(Plan::Probe);
    }
    // The shortest wait: when it is over, a person is to be asked about that call.
    let waits = looks.into_iter().filter_map(|(id, l)| match l {
        Look::OldCall(ms) => Some((Wait::OldCall(id.clone()), ms)),
        Look::CallAgain | Look::Probe { .. } | Look::Ask => None,
    });
    waits.min_by_key(|(_, ms)| *ms).map(|(on, ms)| Plan::Wait(on, ms))
}

fn ask(id: &EffectId, rules: &KindRules) -> Question {
    match rules.card(&id.name) {
        Some(_) => Question::DidItHappen { effect: id.clone() },
        None => Question::Undeclared { effect: id.clone() },
    }
}

/// The claim was not an attempt after all. One that continued an attempt was never counted as one; it changes its reason.
pub(super) fn give_back(
    change: &mut Change,
    continuing: bool,
    why: &str,
    at: Wall,
    field: fn(&mut GivenBack) -> &mut u32,
) {
    let r = &mut change.record;
    if continuing {
        r.continues = true;
        r.given_back.settled = r.given_back.settled.saturating_sub(1);
    } else {
        r.attempts = r.attempts.saturating_sub(1);
    }
    let n = field(&mut r.given_back);
    *n = n.saturating_add(1);
    change.given_back = true;
    change.note(Entry::GivenBack { why: why.to_owned(), count: 1, at });
}

/// Can be claimed at once. `outcome` says what the log calls it.
pub(super) fn make_ready(change: &mut Change, outcome: Outcome, class: Option<Class>, text: Option<String>, at: Wall) {
    report(change, outcome, class, text, Some(at));
    change.move_to(JobState::Ready { ticket: NEXT_TICKET });
}

/// What stopped the attempt is settled meanwhile: the next claim continues it at once.
pub(super) fn resume(change: &mut Change, at: Wall) {
    change.record.continues = true;
    let text = "what stopped it is settled".to_owned();
    make_ready(change, Outcome::Waiting, None, Some(text), at);
}

/// Waits for a fact about an effect, spending neither an attempt nor a worker.
pub(super) fn park(change: &mut Change, on: Wait, ms: u64, text: String, at: Wall) {
    let due = Wall(at.0.saturating_add(ms));
    report(change, Outcome::Waiting, Some(Class::Unknown), Some(text), Some(due));
    change.move_to(JobState::Waiting { due, delay_ms: ms, on });
}

/// Comes back as a new attempt.
pub(super) fn back_off(change: &mut Change, ms: u64, class: Class, text: String, at: Wall) {
    let due = Wall(at.0.saturating_add(ms));
    report(change, Outcome::Retry, Some(class), Some(text), Some(due));
    change.move_to(JobState::Delayed { due, delay_ms: ms, why: Delay::Backoff });
}

/// Retries ended or a person has to answer: a letter, never a silent stop.
///
/// Where a person is asked what to do now, nothing will look at an unresolved effect by itself any more: the letter asks for
/// each of them, because the job can neither be tried again nor be put aside without that.
pub(super) fn bury(
    change: &mut Change,
    why: Why,
    class: Class,
    error: String,
    mut questions: Vec<Question>,
    scene: &Scene<'_>,
) {
    let Scene { effects, rules, .. } = scene;
    if questions.contains(&Question::WhatNow) {
        questions.retain(|q| *q != Question::WhatNow);
        for q in gate(effects, rules) {
            if !questions.contains(&q) && q != Question::WhatNow {
                questions.push(q);
            }
        }
        questions.push(Question::WhatNow);
    }
    let mut error = error;
    let running = |e: &EffectRecord| (scene.env.calls)(e).running_ms.is_some();
    match by_policy(why, &questions, effects, rules, &running) {
        ByPolicy::Silent => {}
        ByPolicy::Undo => {
            report(change, Outcome::Compensating, Some(class), Some(error), None);
            return undo::begin(change, effects, scene.at());
        }
        ByPolicy::Ask(reason) => error = format!("{error}; {}", undo::not_by_itself(&reason)),
    }
    let outcome = if is_dead(&questions) { Outcome::Dead } else { Outcome::NeedsDecision };
    report(change, outcome, Some(class), Some(error.clone()), None);
    change.record.revision = change.record.revision.saturating_add(1);
    put_letter(change, LetterRecord { why, created: scene.at(), class, error, questions, proposed: None });
}

/// Writes the letter; which of the two states the job is in follows from what is asked.
pub(super) fn put_letter(change: &mut Change, letter: LetterRecord) {
    let state = if is_dead(&letter.questions) { JobState::Dead } else { JobState::NeedsDecision };
    change.record.why = Some(letter.why);
    change.facts.push(Fact::Letter { job: change.record.id, why: letter.why });
    change.letter = LetterMove::Put(letter);
    if change.record.state != state {
        change.move_to(state);
    }
}

fn is_dead(questions: &[Question]) -> bool {
    questions.iter().all(|q| *q == Question::WhatNow)
}

/// The letter is answered.
pub(super) fn close_letter(change: &mut Change) {
    change.letter = LetterMove::Remove;
    change.record.why = None;
    change.facts.push(Fact::LetterClosed(change.record.id));
}

/// No question is left: the next claim continues the same attempt, also the last one.
pub(super) fn go_on(change: &mut Change) {
    close_letter(change);
    change.record.continues = change.record.attempts > 0;
    change.move_to(JobState::Ready { ticket: NEXT_TICKET });
}

/// Over.
pub(super) fn end_job(change: &mut Change, how: End, rules: &KindRules, at: Wall) {
    let keep = match how {
        End::Done => rules.keep_done,
        End::HandledOutside | End::Discarded | End::Cancelled | End::Compensated => rules.keep_discarded,
    };
    change.prune = match keep {
        // It can be brought back for ever, and is listed for that.
        Keep::Forever if how == End::Discarded => Some(Wall::NEVER),
        Keep::Forever => None,
        Keep::For(d) => Some(at.after(d)),
    };
    change.record.why = None;
    change.record.continues = false;
    change.facts.push(Fact::Ended { job: change.record.id, how });
    change.move_to(JobState::Ended { how, at });
}

/// One line per claim that a handler had; a decision about a letter makes none.
pub(super) fn report(
    change: &mut Change,
    outcome: Outcome,
    class: Option<Class>,
    error: Option<String>,
    next: Option<Wall>,
) {
    let Some(JobState::Running { continuing, .. }) = change.before else { return };
    let given_back = continuing || change.given_back;
    // A claim that was given back is told under the number that its handler saw, not as "attempt 0".
    let uncounted = u32::from(change.given_back && !continuing);
    let (job, attempt) = (change.record.id, change.record.attempts.saturating_add(uncounted));
    change.facts.push(Fact::Attempt { job, attempt, outcome, class, error, next, given_back });
}

/// A failure that is worth another try.
pub(super) fn transient(text: String) -> Failure {
    Failure { class: Class::Transient, text, retry_after: None }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::effect::Risk;
    use crate::rules::fixture::{job, kind, ms};

    /// What is over is kept for as long as its kind says; what can be brought back for ever stays listed for that.
    #[test]
    fn what_is_over_is_pruned_when_its_kind_says() {
        let mut rules = kind(Recovery::ask(), Recovery::ask(), Risk::Charge);
        let over = |how, rules: &KindRules| {
            let mut change = Change::of(&job(JobState::Dead));
            end_job(&mut change, how, rules, Wall(100));
            change.prune()
        };
        (rules.keep_done, rules.keep_discarded) = (Keep::For(ms(5)), Keep::For(ms(7)));
        let others = [End::HandledOutside, End::Cancelled, End::Compensated];
        assert_eq!(over(End::Done, &rules), Some(Wall(105)));
        assert_eq!(over(End::Discarded, &rules), Some(Wall(107)));
        assert_eq!(others.map(|how| over(how, &rules)), [Some(Wall(107)); 3]);
        (rules.keep_done, rules.keep_discarded) = (Keep::Forever, Keep::Forever);
        assert_eq!(over(End::Done, &rules), None);
        assert_eq!(over(End::Discarded, &rules), Some(Wall::NEVER));
        assert_eq!(others.map(|how| over(how, &rules)), [None; 3]);
    }

    /// An answered letter lets the attempt go on that it interrupted; where there was none, the next claim is one.
    #[test]
    fn only_an_attempt_goes_on() {
        for (attempts, continues) in [(0, false), (1, true), (2, true)] {
            let mut change = Change::of(&JobRecord { attempts, ..job(JobState::NeedsDecision) });
            go_on(&mut change);
            assert_eq!(change.record().continues, continues, "{attempts}");
        }
    }

    /// Where a person is asked what now, whatever forbids a success is asked before it, and each thing once.
    #[test]
    fn a_letter_asks_each_thing_once_and_what_now_last() {
        use crate::model::effect::EffectState;
        use crate::rules::fixture::{QUIET, id, record, with};
        let rules = kind(Recovery::ask(), Recovery::ask(), Risk::Charge);
        let effects = [record("a", EffectState::Unknown, 1), record("b", EffectState::Undone, 1)];
        let did = Question::DidItHappen { effect: id("a") };
        for (asked, questions) in [
            (vec![Question::WhatNow], vec![did.clone(), Question::WhatNow]),
            (vec![Question::WhatNow, did.clone()], vec![did.clone(), Question::WhatNow]),
            (vec![did.clone()], vec![did.clone()]),
        ] {
            let mut change = Change::of(&job(JobState::Ready { ticket: 1 }));
            with(QUIET, 9, |env| {
                let scene = Scene {
                    token: crate::rules::fixture::token(3),
                    continuing: false,
                    effects: &effects,
                    rules: &rules,
                    env,
                };
                bury(&mut change, Why::Permanent, Class::Permanent, "oops".into(), asked, &scene);
            });
            assert!(matches!(change.letter(), LetterMove::Put(letter) if letter.questions == questions), "{change:?}");
        }
    }
}
