//! Every state, every event: what follows, and that it is always either a sound change or a named refusal.
//!
//! The table in `docs/states.md` is written from here and compared on every run; `ONCEWARD_BLESS=1 cargo test states` rewrites it.

use super::admit::{self, Admit, Known};
use super::effect::{Asking, Begin, Same, begin, called, probed};
use super::fixture::{
    CANNOT_TELL, INSIDE, JUST_ENDED, OLD_CALL, QUIET, id, job, key, kind, put, record, recoveries, request, signed,
    token, way_back, with,
};
use super::invariants::broken;
use super::review::{self, Check, Second};
use super::{CallFacts, Change, Env, Refusal, compensate, letter, lifecycle};
use crate::model::attempt::{AttemptEnd, Class, Evidence, Failure, Stop};
use crate::model::effect::{
    CallEnd, EffectRecord, EffectState, Probed, Recovery, Refusal as NotHappened, Risk, Stored, Undoing,
};
use crate::model::id::{JobId, Lease};
use crate::model::job::{Delay, End, JobRecord, JobState, Memo, NEXT_TICKET, State, Wait};
use crate::model::letter::{Entry, LetterRecord, Question, Verdict, Why};
use crate::model::policy::{KindRules, OnDead, OnInterrupt};
use crate::model::time::Wall;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

const NOW: u64 = 1_000;
/// Fewer pairs than this would mean that the lists below have shrunk.
const AT_LEAST: usize = 1_000_000;

const STATES: [&str; 8] = ["ready", "delayed", "running", "waiting", "needs decision", "dead", "compensating", "ended"];

fn name(state: &JobState) -> &'static str {
    match state {
        JobState::Ready { .. } => "ready",
        JobState::Delayed { .. } => "delayed",
        JobState::Running { .. } => "running",
        JobState::Waiting { .. } => "waiting",
        JobState::NeedsDecision => "needs decision",
        JobState::Dead => "dead",
        JobState::Compensating { .. } => "compensating",
        JobState::Ended { .. } => "ended",
    }
}

/// What the store could hold about one job.
#[derive(Clone)]
struct Stand {
    job: JobRecord,
    effects: Vec<EffectRecord>,
    letter: Option<LetterRecord>,
}

const LAST: u64 = 3;

fn effect_sets() -> Vec<Vec<EffectRecord>> {
    let of = |name: &str, state, by| record(name, state, by);
    let mut sets = vec![vec![]];
    for by in [1, LAST] {
        for state in [EffectState::Intended, EffectState::Unknown, EffectState::Confirmed, EffectState::Undone] {
            sets.push(vec![of("a", state, by)]);
        }
    }
    for how in [
        NotHappened::Said,
        NotHappened::NotSent,
        NotHappened::NotThere,
        NotHappened::Person { new_key: false },
        NotHappened::Person { new_key: true },
    ] {
        sets.push(vec![of("a", EffectState::Refused(how), 1)]);
    }
    let mut in_vain = of("a", EffectState::Unknown, 1);
    in_vain.cannot_tell_since = Some(Wall(NOW - CANNOT_TELL));
    let mut lost = of("a", EffectState::Confirmed, 1);
    lost.result = Some(Stored::Lost("too big".into()));
    let mut doubted = of("a", EffectState::Confirmed, 1);
    doubted.conflict = true;
    let mut second = of("a", EffectState::Unknown, LAST);
    second.calls = 2;
    second.unresolved = vec![1, 2];
    sets.extend([vec![in_vain], vec![lost], vec![doubted], vec![second]]);
    sets.push(vec![of("gone", EffectState::Unknown, 1)]);
    sets.push(vec![of("gone", EffectState::Confirmed, 1)]);
    sets.push(vec![of("old-a", EffectState::Unknown, 1)]);
    sets.push(vec![of("a", EffectState::Unknown, 1), of("b", EffectState::Unknown, LAST)]);
    sets.push(vec![of("a", EffectState::Confirmed, 1), of("b", EffectState::Unknown, 1)]);
    sets.extend(compensated_sets());
    sets
}

/// Done with a way back, alone and beside others; under way, given up, over.
fn compensated_sets() -> Vec<Vec<EffectRecord>> {
    let done = |name: &str, n, undoing| {
        let mut e = record(name, EffectState::Confirmed, 1);
        e.undo = Some(way_back(name));
        (e.confirmed, e.undoing) = (n, undoing);
        e
    };
    let no_way_back = |name: &str| record(name, EffectState::Confirmed, 1);
    let undone = |name: &str| EffectRecord { state: EffectState::Undone, ..done(name, 1, Undoing::No) };
    let doubted = |e: EffectRecord| EffectRecord { conflict: true, ..e };
    vec![
        vec![done("a", 1, Undoing::No)],
        vec![done("a", 1, Undoing::UnderWay)],
        vec![done("a", 1, Undoing::GivenUp)],
        vec![doubted(done("a", 1, Undoing::UnderWay))],
        vec![undone("a")],
        vec![done("a", 1, Undoing::No), done("b", 2, Undoing::No)],
        vec![done("a", 1, Undoing::No), done("b", 2, Undoing::UnderWay)],
        vec![done("a", 1, Undoing::No), done("b", 2, Undoing::GivenUp)],
        vec![done("a", 1, Undoing::No), no_way_back("b")],
        vec![done("a", 1, Undoing::No), record("b", EffectState::Unknown, 1)],
        vec![done("a", 1, Undoing::UnderWay), no_way_back("b")],
        vec![doubted(done("a", 1, Undoing::No)), done("b", 2, Undoing::UnderWay)],
        vec![done("a", 1, Undoing::UnderWay), undone("b")],
        vec![done("a", 1, Undoing::UnderWay), record("b", EffectState::Refused(NotHappened::NotSent), 1)],
    ]
}

fn job_states(effects: &[EffectRecord]) -> Vec<JobState> {
    let mut out = vec![
        JobState::Ready { ticket: 9 },
        JobState::Running { token: token(LAST), continuing: false },
        JobState::Running { token: token(LAST), continuing: true },
        JobState::NeedsDecision,
        JobState::Dead,
        JobState::Compensating { left: 0 },
        JobState::Compensating { left: 1 },
    ];
    for why in [Delay::At, Delay::After, Delay::Backoff, Delay::Snooze("later".into())] {
        out.push(JobState::Delayed { due: Wall(NOW), delay_ms: 10, why });
    }
    for how in [End::Done, End::HandledOutside, End::Discarded, End::Cancelled, End::Compensated] {
        out.push(JobState::Ended { how, at: Wall(NOW) });
    }
    for e in effects {
        for on in [Wait::Settling(e.id.clone()), Wait::OldCall(e.id.clone()), Wait::CannotTell(e.id.clone())] {
            out.push(JobState::Waiting { due: Wall(NOW), delay_ms: 10, on });
        }
    }
    out
}

fn letters(effects: &[EffectRecord]) -> Vec<LetterRecord> {
    let mut sets = vec![vec![Question::WhatNow]];
    for e in effects {
        let effect = || e.id.clone();
        for q in [
            Question::DidItHappen { effect: effect() },
            Question::RequestChanged { effect: effect() },
            Question::RequestUnreadable { effect: effect() },
            Question::ResultLost { effect: effect() },
            Question::Undeclared { effect: effect() },
            Question::Conflict { effect: effect() },
        ] {
            sets.push(vec![q.clone(), Question::WhatNow]);
            sets.push(vec![q]);
        }
    }
    let letter = |questions| LetterRecord {
        why: Why::EffectUnresolved,
        created: Wall(0),
        class: Class::Unknown,
        error: "oops".into(),
        questions,
        proposed: None,
    };
    sets.into_iter().map(letter).collect()
}

/// All that could be stored and keeps the invariants.
fn stands(rules: &KindRules) -> Vec<Stand> {
    let mut out = Vec::new();
    for effects in effect_sets() {
        for state in job_states(&effects) {
            let letters = match state {
                JobState::NeedsDecision | JobState::Dead => letters(&effects).into_iter().map(Some).collect(),
                JobState::Ready { .. }
                | JobState::Delayed { .. }
                | JobState::Running { .. }
                | JobState::Waiting { .. }
                | JobState::Compensating { .. }
                | JobState::Ended { .. } => vec![None],
            };
            for letter in letters {
                for j in jobs(&state, &effects, letter.as_ref()) {
                    if broken(&j, &effects, letter.as_ref(), rules).is_empty() {
                        out.push(Stand { job: j, effects: effects.clone(), letter: letter.clone() });
                    }
                }
            }
        }
    }
    out
}

/// A job, its letter and its effects.
pub(crate) type Asked = (JobRecord, LetterRecord, Vec<EffectRecord>);

/// Everything that could be stored of jobs about which a person is asked, once where only counters differ; and their kind.
pub(crate) fn asked() -> (Vec<Asked>, KindRules) {
    let rules = kind(Recovery::ask(), Recovery::ask(), Risk::Charge);
    let mut out: Vec<Asked> = Vec::new();
    for Stand { job, effects, letter } in stands(&rules) {
        let Some(letter) = letter else { continue };
        let known = out
            .last()
            .is_some_and(|(j, l, e)| (&j.state, j.deadline, l, e) == (&job.state, job.deadline, &letter, &effects));
        if !known {
            out.push((job, letter, effects));
        }
    }
    (out, rules)
}

/// The counters and wishes that make a difference where the job stands.
fn jobs(state: &JobState, effects: &[EffectRecord], letter: Option<&LetterRecord>) -> Vec<JobRecord> {
    let mut out = Vec::new();
    let running = matches!(state, JobState::Running { .. });
    let claimed_next = running || matches!(state, JobState::Ready { .. });
    let wishes: &[_] =
        if claimed_next { &[(false, false), (true, false), (false, true)] } else { &[(false, false), (false, true)] };
    let marks: &[_] = if running { &[(false, 0), (false, 1)] } else { &[(false, 0), (true, 0)] };
    for attempts in [1, 2] {
        for (cancel, late) in wishes {
            for (continues, strikes) in marks {
                let mut j = job(state.clone());
                j.attempts = attempts;
                // Deaths beside others are used up where a strike has been, so that both bounds are met.
                j.given_back.died_beside_others = u32::from(*strikes) * lifecycle::MAX_DEATHS_BESIDE_OTHERS;
                j.given_back.settled = 1;
                j.claims = attempts + u32::try_from(j.given_back.sum()).expect("small");
                j.last_token = token(LAST);
                j.effects = u32::try_from(effects.len()).expect("small");
                j.cancel = *cancel;
                j.deadline = late.then_some(Wall(NOW - 1));
                j.continues = *continues;
                j.strikes = *strikes;
                j.why = letter.map(|l| l.why);
                out.push(j);
            }
        }
    }
    out
}

/// What an event came to.
enum Came {
    To(Box<Change>),
    Refused(Refusal),
    /// A decision that changes nothing.
    Said,
}

impl From<Result<Change, Refusal>> for Came {
    fn from(r: Result<Change, Refusal>) -> Self {
        match r {
            Ok(change) => Self::To(Box::new(change)),
            Err(refusal) => Self::Refused(refusal),
        }
    }
}

type Row = (&'static str, Came);

fn ends() -> Vec<(&'static str, AttemptEnd)> {
    let failed = |class| AttemptEnd::Failed(Failure { class, text: "oops".into(), retry_after: None });
    let stop = AttemptEnd::Stopped;
    let a = || id("a");
    vec![
        ("the handler succeeds", AttemptEnd::Success),
        ("the handler fails", failed(Class::Transient)),
        ("the handler fails", failed(Class::Unknown)),
        ("the handler fails for good", failed(Class::Permanent)),
        ("the handler panics", AttemptEnd::Panicked("boo".into())),
        ("the handler says \"not yet\"", AttemptEnd::NotYet("later".into(), Duration::from_millis(10))),
        ("its lease runs out", AttemptEnd::Stalled),
        ("its lease runs out", AttemptEnd::TimedOut),
        ("it is interrupted (shutdown, lost runtime)", AttemptEnd::Interrupted),
        ("it is interrupted (shutdown, lost runtime)", stop(Stop::Interrupted)),
        ("it is interrupted (shutdown, lost runtime)", stop(Stop::Fenced)),
        ("it is given back unstarted", AttemptEnd::NeverStarted),
        ("its payload cannot be read", AttemptEnd::Unreadable("version 9".into())),
        ("it stops because it was asked to", AttemptEnd::Cancelled),
        ("the handler succeeds", stop(Stop::Finished)),
        ("stop: nobody knows whether a call happened", stop(Stop::Unknown(a(), "timeout".into()))),
        ("stop: a call has not settled", stop(Stop::Settling(a(), 10))),
        ("stop: an old call still runs", stop(Stop::OldCall(a(), 10))),
        ("stop: the provider cannot tell", stop(Stop::CannotTell(a(), "down".into()))),
        ("stop: a question for a person", stop(Stop::Ask(Question::DidItHappen { effect: a() }))),
        ("stop: a question for a person", stop(Stop::Ask(Question::RequestChanged { effect: a() }))),
        ("stop: a question for a person", stop(Stop::Ask(Question::RequestUnreadable { effect: a() }))),
        ("stop: a question for a person", stop(Stop::Ask(Question::ResultLost { effect: a() }))),
        ("stop: a question for a person", stop(Stop::Ask(Question::Undeclared { effect: id("gone") }))),
        ("stop: a question for a person", stop(Stop::Ask(Question::Conflict { effect: a() }))),
        ("stop: a question for a person", stop(Stop::Ask(Question::WhatNow))),
        ("stop: another effect was to come first", stop(Stop::Earlier(a()))),
        ("stop: no attempt is left", stop(Stop::NoAttemptLeft(a()))),
    ]
}

/// Events that end a claim, or move a job from outside.
fn moves(s: &Stand, rules: &KindRules, env: &Env<'_>) -> Vec<Row> {
    let (job, effects) = (&s.job, s.effects.as_slice());
    let lease = Lease { job: job.id, token: token(LAST) };
    let mut out: Vec<Row> = Vec::new();
    let claim = |n| lifecycle::claim(job, token(n), effects, rules, env).map(|c| c.change().clone());
    out.push(("it is claimed", claim(LAST + 1).into()));
    for (what, how) in ends() {
        out.push((what, lifecycle::end(job, &lease, how, effects, rules, env).into()));
    }
    for (what, evidence) in [
        ("the process died before its handler was called", Evidence::NeverStarted),
        ("the process died, its handler alone at work", Evidence::Suspect { alone: true }),
        ("the process died beside other handlers", Evidence::Suspect { alone: false }),
        ("the machine was restarted, or lost power", Evidence::Interrupted),
    ] {
        out.push((what, lifecycle::recover(job, evidence, effects, rules, env).into()));
    }
    out.push(("it is due", lifecycle::promote(job).into()));
    out.push(("somebody cancels it", lifecycle::cancel(job, effects, rules, env.now).into()));
    for (what, how) in [
        ("its undo job is done", End::Done),
        ("its undo job is handled outside", End::HandledOutside),
        ("its undo job is discarded or cancelled", End::Discarded),
        ("its undo job is discarded or cancelled", End::Cancelled),
        ("its undo job is discarded or cancelled", End::Compensated),
    ] {
        let heard = effects.iter().find_map(|e| compensate::heard(job, effects, &e.id, how, rules, env));
        out.extend(heard.map(|change| (what, Ok(change).into())));
    }
    out.extend(late_news(s, rules, env));
    out.extend(verdicts(s, rules));
    out.extend(reviews(s, rules, env));
    out
}

/// A decision on the newest view, while no call runs.
fn case<'a>(s: &'a Stand, letter: &'a LetterRecord, rules: &'a KindRules) -> letter::Case<'a> {
    letter::Case { job: &s.job, letter, effects: &s.effects, shown: s.job.revision, running: &|_| false, rules }
}

/// What people do beside deciding.
fn reviews(s: &Stand, rules: &KindRules, env: &Env<'_>) -> Vec<Row> {
    let mut out: Vec<Row> = Vec::new();
    let (job, effects, by) = (&s.job, s.effects.as_slice(), signed(NOW));
    if let Some(letter) = &s.letter {
        let memos = [Memo { name: "step".into(), commit: false, value: b"1".to_vec(), number: 0 }];
        let again = review::replay_from(&case(s, letter, rules), &memos, "step", &by);
        out.push(("a person: run again from a step", again.into()));
        let second = review::second(job, letter, &Verdict::Discard, &by);
        out.push((
            "a person proposes, where two have to decide",
            match second {
                Ok(Second::Waits(change)) => Came::To(change),
                Ok(Second::Agreed) => Came::Said,
                Err(refusal) => Came::Refused(refusal),
            },
        ));
        let proposed = Some(Box::new((Verdict::Discard, by.clone())));
        let open = LetterRecord { proposed, ..letter.clone() };
        let back = review::drop_proposal(job, &open, &by, job.revision);
        out.push(("a person takes back what was proposed", back.into()));
    }
    for e in effects {
        for answer in answers() {
            let what = match answer {
                Probed::Found { .. } => "a person has the provider asked: it did happen",
                Probed::NotThere | Probed::CannotTell(_) => "a person has the provider asked: anything else",
            };
            let asking = Asking { generation: e.generation, settled: true };
            let check = Check { effect: &e.id, who: "ada", shown: job.revision, asking };
            let came = review::checked(job, s.letter.as_ref(), effects, &check, answer, rules, env);
            out.push((what, came.into()));
        }
    }
    for asked in letters(effects) {
        let LetterRecord { why, class, error, questions, .. } = asked;
        let history = [Entry::Asked { why, class, error, questions }];
        let back = review::restore(job, effects, &history, &by, rules);
        out.push(("a person brings it back out of the trash", back.into()));
    }
    out
}

fn late_news(s: &Stand, rules: &KindRules, env: &Env<'_>) -> Vec<Row> {
    let old = Lease { job: s.job.id, token: token(1) };
    let mut out = Vec::new();
    for e in &s.effects {
        for (what, end) in call_ends() {
            let what = match what {
                "confirmed" => "late: the call did happen",
                "unknown" => "late: the call ended without an answer",
                _ => "late: the call did not happen",
            };
            let change = called(&s.job, e, &old, 1, e.generation, end, env);
            out.push((what, learned(s, &old, change, rules, env)));
        }
    }
    out
}

/// As an operation does it: news of a lease that is over may move the job.
fn learned(s: &Stand, lease: &Lease, change: Change, rules: &KindRules, env: &Env<'_>) -> Came {
    if super::effect::running(&s.job, lease).is_ok() {
        return Came::To(Box::new(change));
    }
    let mut all = s.effects.clone();
    for new in change.effects() {
        all.iter_mut().filter(|o| o.id == new.id).for_each(|o| *o = new.clone());
    }
    Came::To(Box::new(lifecycle::learned(change, s.letter.as_ref(), &all, rules, env)))
}

fn call_ends() -> [(&'static str, CallEnd); 5] {
    let happened = |result| CallEnd::Happened { result, reference: Some("op".into()), undo: None };
    [
        ("confirmed", happened(Stored::Json(b"1".to_vec()))),
        ("confirmed", happened(Stored::Lost("too big".into()))),
        ("refused", CallEnd::Refused("no".into())),
        ("not sent", CallEnd::NotSent("no route".into())),
        ("unknown", CallEnd::Unknown("timeout".into())),
    ]
}

fn verdicts(s: &Stand, rules: &KindRules) -> Vec<Row> {
    let asked = LetterRecord {
        why: Why::TriesUsedUp,
        created: Wall(0),
        class: Class::Transient,
        error: String::new(),
        questions: vec![],
        proposed: None,
    };
    let letter = s.letter.as_ref().unwrap_or(&asked);
    let decide = |v: &Verdict| -> Came { letter::decide(&case(s, letter, rules), v, &signed(NOW)).into() };
    let mut out = vec![
        ("a person: try again", decide(&Verdict::TryAgain)),
        ("a person: handled outside", decide(&Verdict::HandledOutside)),
        ("a person: discard", decide(&Verdict::Discard)),
        ("a person: undo what was done", decide(&Verdict::Undo)),
    ];
    for name in ["a", "b", "gone", "old-a", "nothing"] {
        for result in [None, Some(b"1".to_vec())] {
            let v = Verdict::Happened { effect: id(name), reference: None, result, undo: None };
            out.push(("a person: it happened", decide(&v)));
        }
        for new_key in [false, true] {
            let v = Verdict::DidNotHappen { effect: id(name), new_key };
            out.push(("a person: it did not happen", decide(&v)));
        }
    }
    check_choices(s, rules);
    out
}

/// What a person is offered is exactly what is accepted.
fn check_choices(s: &Stand, rules: &KindRules) {
    let (Some(letter), JobState::NeedsDecision | JobState::Dead) = (&s.letter, &s.job.state) else { return };
    let choices = letter::choices(letter, &s.effects);
    let accepted = |v: &Verdict| letter::decide(&case(s, letter, rules), v, &signed(NOW)).is_ok();
    for name in ["a", "b", "gone", "old-a", "nothing"] {
        // Where only its result is asked for, it takes something that the result can be rebuilt from.
        let result = Some(b"1".to_vec());
        let happened = Verdict::Happened { effect: id(name), reference: None, result, undo: None };
        assert_eq!(
            choices.contains(&letter::Choice::Happened(id(name))),
            accepted(&happened),
            "{:?}",
            letter.questions
        );
        let did_not = Verdict::DidNotHappen { effect: id(name), new_key: true };
        assert_eq!(
            choices.contains(&letter::Choice::DidNotHappen(id(name))),
            accepted(&did_not),
            "{:?}",
            letter.questions
        );
    }
    // And every question about what happened can be answered: none of them can only be thrown away.
    for q in &letter.questions {
        let Some(effect) = q.effect().cloned() else { continue };
        let Some(record) = s.effects.iter().find(|e| e.id == effect) else { continue };
        // Not those that nobody asks about a record as it stands here.
        let meant = match q {
            Question::DidItHappen { .. } => record.state.is_unresolved(),
            Question::Conflict { .. } => record.conflict,
            Question::ResultLost { .. } => record.state == EffectState::Confirmed,
            Question::RequestChanged { .. } | Question::RequestUnreadable { .. } => record.state != EffectState::Undone,
            // These are about today's code: running again answers them.
            Question::Undeclared { .. } | Question::WhatNow => false,
        };
        if !meant {
            continue;
        }
        let result = Some(b"1".to_vec());
        let answers = [
            Verdict::Happened { effect: effect.clone(), reference: None, result, undo: None },
            Verdict::DidNotHappen { effect, new_key: true },
        ];
        let gone = answers.iter().any(|v| match letter::decide(&case(s, letter, rules), v, &signed(NOW)) {
            Ok(change) => match change.letter() {
                super::LetterMove::Put(letter) => !letter.questions.contains(q),
                super::LetterMove::Remove => true,
                super::LetterMove::Keep => false,
            },
            Err(_) => false,
        });
        assert!(gone, "nobody can answer {q:?} of {:?}: {:?}", letter.questions, s.effects);
    }
    assert_eq!(choices.contains(&letter::Choice::TryAgain), accepted(&Verdict::TryAgain));
    assert_eq!(choices.contains(&letter::Choice::HandledOutside), accepted(&Verdict::HandledOutside));
    assert_eq!(choices.contains(&letter::Choice::Undo), accepted(&Verdict::Undo));
    assert_eq!(choices.contains(&letter::Choice::Discard), accepted(&Verdict::Discard));
    assert!(!choices.is_empty(), "a person is asked and given no choice: {:?} {:?}", letter.questions, s.effects);
}

/// Events inside an attempt: they change records, and never where the job stands.
fn work(s: &Stand, rules: &KindRules, env: &Env<'_>) -> Vec<Row> {
    let mut out: Vec<Row> = Vec::new();
    for by in [1, LAST] {
        let lease = Lease { job: s.job.id, token: token(by) };
        let memo = Memo { name: "step".into(), commit: false, value: b"1".to_vec(), number: 0 };
        out.push(("remember", lifecycle::remember(&s.job, &lease, memo).into()));
        let finish = lifecycle::may_finish(&s.job, &lease, &s.effects, rules);
        out.push(("finish", finish.map_or_else(Came::Refused, |()| Came::Said)));
        for name in ["a", "b"] {
            let old = s.effects.iter().find(|e| e.id == id(name));
            for same in [Same::Yes, Same::No, Same::Unreadable] {
                for unasked in [vec![], vec![id("a")]] {
                    let fresh = |generation| key(name, generation);
                    let begun = begin(&s.job, &lease, old, same, &request(name), &unasked, rules, env, &fresh);
                    out.push(("begin", begun_to(begun, old, by)));
                }
            }
        }
        for e in &s.effects {
            for (_, end) in call_ends() {
                for generation in [e.generation, e.generation + 1] {
                    let change = called(&s.job, e, &lease, e.calls, generation, end.clone(), env);
                    out.push(("called", learned(s, &lease, change, rules, env)));
                }
            }
            for settled in [false, true] {
                for answer in answers() {
                    let asking = Asking { generation: e.generation, settled };
                    let told = probed(&s.job, e, &lease, asking, answer, rules, env);
                    let came = match told {
                        Ok((change, _)) => learned(s, &lease, change, rules, env),
                        Err(refusal) => Came::Refused(refusal),
                    };
                    out.push(("probed", came));
                }
            }
        }
    }
    out
}

fn answers() -> [Probed; 3] {
    [
        Probed::Found { result: Stored::Json(b"1".to_vec()), reference: None, undo: None },
        Probed::NotThere,
        Probed::CannotTell("down".into()),
    ]
}

fn begun_to(begun: Result<Begin, Refusal>, old: Option<&EffectRecord>, by: u64) -> Came {
    assert_eq!(begun.is_err(), by != LAST || matches!(begun, Err(Refusal::Fenced)), "only the last token may call");
    match begun {
        Err(refusal) => Came::Refused(refusal),
        Ok(Begin::Call { change, .. }) => {
            let confirmed = old.is_some_and(|e| e.state == EffectState::Confirmed);
            assert!(!confirmed, "a confirmed effect is called again");
            Came::To(change)
        }
        Ok(Begin::Recorded { .. }) => {
            assert!(old.is_some_and(|e| e.state == EffectState::Confirmed), "only what happened is recorded as done");
            Came::Said
        }
        Ok(Begin::Probe(_) | Begin::Stop(_)) => Came::Said,
    }
}

/// Work inside an attempt does not look at these.
fn plain(job: &JobRecord) -> bool {
    !job.cancel && job.strikes == 0
}

const FACTS: &[CallFacts] = &[QUIET, JUST_ENDED, INSIDE, OVERDUE, UNDATED];
const OVERDUE: CallFacts = CallFacts { running_ms: Some(OLD_CALL), quiet_ms: 0, key_age_ms: Some(0) };
const UNDATED: CallFacts = CallFacts { running_ms: None, quiet_ms: 0, key_age_ms: None };

fn kinds() -> Vec<KindRules> {
    let mut out: Vec<KindRules> = recoveries().map(|(_, r)| kind(r, Recovery::ask(), Risk::Charge)).to_vec();
    let mut hold = kind(Recovery::ask(), Recovery::ask(), Risk::Charge);
    hold.on_interrupt = OnInterrupt::Hold;
    out.push(hold);
    let mut undo = kind(Recovery::ask(), Recovery::ask(), Risk::Charge);
    undo.on_dead = OnDead::Undo;
    out.push(undo);
    out
}

type Table = BTreeMap<(&'static str, &'static str), BTreeSet<&'static str>>;

/// Every pair, once: the table of the moves, the number of pairs, and the order in which the events came.
fn try_everything() -> (Table, usize, Vec<&'static str>) {
    let (mut table, mut pairs, mut order) = (Table::new(), 0, Vec::new());
    for (nth, rules) in kinds().into_iter().enumerate() {
        for s in stands(&rules) {
            // Recovery rules and call facts speak only where an effect nobody is sure of is looked at.
            let looked_at = matches!(s.job.state, JobState::Running { .. } | JobState::Waiting { .. });
            let open = s.effects.iter().any(|e| e.state.is_unresolved());
            let holds = rules.on_interrupt == OnInterrupt::Hold;
            let undoes = rules.on_dead == OnDead::Undo && s.effects.iter().any(|e| e.undo.is_some());
            if nth > 0 && !(looked_at && (open || holds)) && !undoes {
                continue;
            }
            for facts in if open && looked_at { FACTS } else { &FACTS[..1] } {
                let moves = with(*facts, NOW, |env| moves(&s, &rules, env));
                let work = if plain(&s.job) { with(*facts, NOW, |env| work(&s, &rules, env)) } else { vec![] };
                pairs += moves.len() + work.len();
                for (what, came) in work {
                    check(what, &s, &came, &rules);
                }
                for (what, came) in moves {
                    check(what, &s, &came, &rules);
                    if !order.contains(&what) {
                        order.push(what);
                    }
                    let to = match &came {
                        Came::To(change) => name(&change.record().state),
                        Came::Refused(_) => "refused",
                        Came::Said => "",
                    };
                    table.entry((what, name(&s.job.state))).or_default().insert(to);
                }
            }
        }
    }
    (table, pairs, order)
}

fn check(what: &str, s: &Stand, came: &Came, rules: &KindRules) {
    let (mut job, mut effects, mut letter) = (s.job.clone(), s.effects.clone(), s.letter.clone());
    let told = match came {
        Came::To(change) => {
            assert_eq!(change.before(), Some(&s.job.state), "a change says what it changes");
            put(&mut job, &mut effects, &mut letter, change);
            format!("{:?}", job.state)
        }
        Came::Refused(refusal) => {
            assert!(!refusal.to_string().is_empty(), "a refusal has a name");
            return;
        }
        Came::Said => return,
    };
    let faults = broken(&job, &effects, letter.as_ref(), rules);
    assert!(
        faults.is_empty(),
        "{what}: {:?} -> {told}: {faults:?}\n{:?}\n{:?}\n{:?}",
        s.job.state,
        s.job,
        s.effects,
        s.letter
    );
}

fn render(table: &Table, order: &[&str]) -> String {
    let mut out = format!("| | {} |\n|---{}|\n", STATES.join(" | "), "|---".repeat(STATES.len()));
    for what in order {
        let cells = STATES.map(|state| {
            let to = table.iter().find(|((w, s), _)| w == what && *s == state).map(|(_, to)| to);
            cell(state, to)
        });
        out.push_str(&format!("| {what} | {} |\n", cells.join(" | ")));
    }
    out
}

/// The next states in the order of the columns; nothing if the event cannot happen there.
fn cell(state: &str, to: Option<&BTreeSet<&'static str>>) -> String {
    let Some(to) = to else { return String::new() };
    if to.iter().all(|t| *t == "refused") {
        return String::new();
    }
    let next = STATES.iter().filter(|s| to.contains(**s)).map(|s| if *s == state { "stays" } else { s });
    next.collect::<Vec<_>>().join(", ")
}

fn identity_table() -> String {
    let mut out = String::from(
        "| the intent's job | enqueue | enqueue, other payload | run again | run again, an effect unresolved | run again, a call still running |\n|---|---|---|---|---|---|\n",
    );
    let job_in = |state: JobState| Some(job(state));
    let ended = |how| JobState::Ended { how, at: Wall(NOW) };
    let delayed = JobState::Delayed { due: Wall(NOW), delay_ms: 1, why: Delay::At };
    let waiting = JobState::Waiting { due: Wall(NOW), delay_ms: 1, on: Wait::OldCall(id("a")) };
    let ready = || JobState::Ready { ticket: NEXT_TICKET };
    let rows = [
        ("ready", job_in(ready()), false),
        ("delayed", job_in(delayed), false),
        ("running", job_in(JobState::Running { token: token(1), continuing: false }), false),
        ("waiting", job_in(waiting), false),
        ("paused", job_in(ready()), true),
        ("needs decision", job_in(JobState::NeedsDecision), false),
        ("done", job_in(ended(End::Done)), false),
        ("dead", job_in(JobState::Dead), false),
        ("handled outside", job_in(ended(End::HandledOutside)), false),
        ("discarded", job_in(ended(End::Discarded)), false),
        ("cancelled", job_in(ended(End::Cancelled)), false),
        ("compensating", job_in(JobState::Compensating { left: 0 }), false),
        ("compensated", job_in(ended(End::Compensated)), false),
        ("pruned, remembered", None, false),
    ];
    for (what, job, paused) in &rows {
        let known = Some(Known { id: JobId(1), incarnation: 3, job: job.as_ref(), paused: *paused });
        // What was pruned has no effect records any more; nothing unresolved is ever pruned.
        let pruned = job.is_none();
        let open = [record("a", EffectState::Unknown, 1)];
        let cells = [
            said(Ok(admit::enqueue(known, false))),
            said(Ok(admit::enqueue(known, true))),
            said(admit::run_again(known, &[], None)),
            if pruned { String::new() } else { said(admit::run_again(known, &open, None)) },
            if pruned { String::new() } else { said(admit::run_again(known, &open, Some(&id("a")))) },
        ];
        out.push_str(&format!("| {what} | {} |\n", cells.join(" | ")));
    }
    let new = [said(Ok(admit::enqueue(None, false))), said(Ok(admit::enqueue(None, true)))];
    out.push_str(&format!(
        "| memory over, or never seen | {} | {} | | |\n",
        new.join(" | "),
        said(admit::run_again(None, &[], None))
    ));
    out
}

fn said(answer: Result<Admit, Refusal>) -> String {
    match answer {
        Ok(Admit::New { incarnation: 1 }) => "new".into(),
        Ok(Admit::New { .. }) => "new, with new idempotency keys".into(),
        Ok(Admit::Existing { state, differs, .. }) => {
            format!("existing: {}{}", shown(state), if differs { ", differs" } else { "" })
        }
        Err(Refusal::WrongState(_)) => "refused".into(),
        Err(Refusal::Unresolved(_)) => "refused until it is answered".into(),
        Err(Refusal::CallRunning(_)) => "refused until it returned".into(),
        Err(other) => format!("refused: {other}"),
    }
}

fn shown(state: State) -> &'static str {
    match state {
        State::Ready => "ready",
        State::Delayed => "delayed",
        State::Running => "running",
        State::Waiting => "waiting",
        State::Paused => "paused",
        State::NeedsDecision => "needs decision",
        State::Done => "done",
        State::Dead => "dead",
        State::HandledOutside => "handled outside",
        State::Discarded => "discarded",
        State::Cancelled => "cancelled",
        State::Compensating => "compensating",
        State::Compensated => "compensated",
        State::Remembered => "remembered",
    }
}

const DOCUMENT: &str = include_str!("../../docs/states.md");

/// The document with a block between its markers replaced.
fn with_block(document: &str, block: &str, text: &str) -> String {
    let (begin, end) = (format!("<!-- {block} -->\n"), format!("<!-- end of {block} -->"));
    let from = document.find(&begin).expect("docs/states.md has the marker of each table") + begin.len();
    let to = document.find(&end).expect("docs/states.md has the end marker of each table");
    format!("{}\n{text}\n{}", &document[..from], &document[to..])
}

/// Whatever event meets whatever state: no panic, and either a change after which every structural promise holds, or a refusal
/// with a name. What a person reads in docs/states.md is what these rules do.
#[test]
fn every_event_in_every_state_is_a_sound_change_or_a_named_refusal_and_the_table_is_true() {
    let (table, pairs, order) = try_everything();
    println!("{pairs} pairs of a state and an event");
    assert!(pairs >= AT_LEAST, "only {pairs} pairs were tried");
    let document = with_block(DOCUMENT, "moves", &render(&table, &order));
    let document = with_block(&document, "intents", &identity_table());
    if document == DOCUMENT {
        return;
    }
    if std::env::var_os("ONCEWARD_BLESS").is_some() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/states.md");
        std::fs::write(path, document).expect("docs/states.md can be written");
        return;
    }
    panic!("docs/states.md is not what the rules do: ONCEWARD_BLESS=1 cargo test --lib states rewrites it\n{document}");
}
