//! Bad histories of claims, pauses, deaths and clocks: I7 to I9, I16, I21, I22, I26, I28, I31.

use super::*;
use crate::history::{runs, time};

fn id(n: u64) -> JobId {
    JobId::from_number(n)
}

fn began(token: u64) -> impl Fn(&What) -> bool {
    move |w| matches!(w, What::Began { token: t, .. } if *t == token)
}

fn ended(token: u64) -> impl Fn(&What) -> bool {
    move |w| matches!(w, What::Ended { token: t, .. } if *t == token)
}

fn begin(job: u64, attempt: u32, token: u64) -> What {
    What::Began { job: id(job), attempt, token }
}

fn told(token: u64, name: &str) -> What {
    let memo = Memo::Told(b"1".to_vec());
    What::Remember { job: id(1), token, name: name.into(), commit: false, memo }
}

fn ran(token: u64, name: &str) -> What {
    What::Remember { job: id(1), token, name: name.into(), commit: false, memo: Memo::Ran }
}

/// Tokens that do not rise, or are handed out twice; two live handlers (I7).
#[test]
fn a_token_that_does_not_rise_is_rejected() {
    rejected(
        runs::i7,
        &[
            ("was handed out twice", |c| c.append(begin(2, 1, 204))),
            ("do not rise", |c| c.append(begin(9, 2, 50))),
            ("two live handlers", |c| c.remove(ended(101))),
            ("forgot its newest token", |c| c.job(9).last_token = 306),
        ],
    );
}

/// A handler that was silent for longer than the stall timeout has a successor (I7).
#[test]
fn a_lapsed_lease_is_accepted() {
    let mut case = story();
    case.remove(ended(202));
    let at = case.at(began(203));
    for event in case.history.events[at - 3..].iter_mut().filter(|e| e.life == 2) {
        event.now.mono.0 += 300_000;
    }
    runs::i7(&View::of(&case.history, &case.jobs).unwrap()).unwrap();
}

/// A heal takes every lease away, a full disk and a pause of everything hold due work back (I7, I22, I26).
#[test]
fn a_heal_and_a_full_disk_are_accepted() {
    let mut case = story();
    case.remove(ended(101));
    let at = case.at(began(102));
    case.insert(at, What::Healed);
    runs::i7(&View::of(&case.history, &case.jobs).unwrap()).unwrap();
    for held in [What::DiskFull(true), What::Paused { kind: None, on: true }] {
        let mut case = story();
        let at = case.at(began(205));
        case.insert(at, held);
        case.remove(|w| began(205)(w) || ended(205)(w));
        time::i22(&View::of(&case.history, &case.jobs).unwrap()).unwrap();
    }
}

/// An old token stores a step, has a call made, or ends the job (I8).
#[test]
fn a_write_with_an_old_token_is_rejected() {
    rejected(
        runs::i8,
        &[
            ("late of job 1 was stored with the old token 202", |c| {
                let at = c.at(began(203)) + 1;
                c.insert(at, told(202, "late"));
                c.insert(at, ran(202, "late"));
            }),
            ("wire of job 1 was called with the old token 202", |c| {
                let at = c.at(began(203)) + 1;
                let (effect, key) = ("wire".to_owned(), "k3".to_owned());
                c.insert(at, What::Entered { call: 91, job: id(1), effect, key, request: 1 });
                c.insert(at, What::EffectAsked { job: id(1), token: 202, effect: "wire".into() });
            }),
            ("and no handler asked for it", |c| {
                c.remove(|w| matches!(w, What::EffectAsked { token: 101, .. }));
            }),
            ("no handler with the newest token ended it", |c| {
                *c.what(ended(203)) = What::Ended { job: id(1), token: 203, how: How::Permanent };
            }),
            ("no handler with the newest token ended it", |c| {
                let at = c.at(ended(203));
                c.insert(at, begin(1, 4, 209));
            }),
        ],
    );
}

/// Claims that do not add up, attempts past the limit or uncounted, a grant that nobody asked for (I9).
#[test]
fn counts_that_cannot_be_are_rejected() {
    rejected(
        runs::i9,
        &[
            ("6 claims, 4 attempts, 1 given back", |c| c.job(1).claims = 6),
            ("5 claims, 4 attempts, 0 given back", |c| c.job(1).given_back = 0),
            ("5 attempts, at most 4", |c| (c.job(1).attempts, c.job(1).claims) = (5, 6)),
            ("granted", |c| c.job(6).granted = 1),
            ("5 handlers began, 4 claims", |c| (c.job(1).claims, c.job(1).given_back) = (4, 0)),
            ("attempt 1 after ", |c| *c.what(began(203)) = begin(1, 1, 203)),
            ("attempt 5 after 4, of 4", |c| *c.what(began(203)) = begin(1, 5, 203)),
            ("attempt 3 began, 1 are counted", |c| {
                (c.job(6).attempts, c.job(6).claims) = (1, 2);
                c.job(6).given_back = 1;
                *c.what(began(302)) = begin(6, 3, 302);
            }),
        ],
    );
}

/// A remembered step runs again, gives back something else, or is not remembered (I16).
#[test]
fn a_step_that_runs_again_is_rejected() {
    rejected(
        runs::i16,
        &[
            ("was remembered and ran again", |c| {
                let at = c.at(began(201)) + 1;
                c.insert(at, ran(201, "draw"));
            }),
            ("commit of job 1 was remembered and ran again", |c| {
                let at = c.at(ended(203));
                c.insert(at, ran(203, "commit"));
            }),
            ("before that", |c| {
                let at = c.at(ended(102 + 99));
                let memo = Memo::Told(b"2".to_vec());
                let name = "draw".to_owned();
                c.insert(at, What::Remember { job: id(1), token: 201, name, commit: false, memo });
            }),
            ("is not remembered", |c| c.job(1).memos.clear()),
            ("is not remembered", |c| c.job(1).memos[0].1 = b"2".to_vec()),
            ("was remembered and ran again", |c| {
                // A person had it run again from the commit, which is later.
                let at = c.at(began(201)) + 1;
                c.insert(at, ran(201, "draw"));
                let deed = Deed::Decide(Verdict::ReplayFrom { step: "draw".into() });
                c.insert(at, What::Acted { act: 9, done: Some(false) });
                c.insert(at, What::Acting { act: 9, job: Some(id(1)), deed });
            }),
        ],
    );
}

/// A paused kind begins: after a restart, after a quiet moment, or more handlers than can run (I26).
#[test]
fn a_pause_that_is_not_kept_is_rejected() {
    rejected(
        runs::i26,
        &[
            ("was paused at", |c| {
                let at = c.at(|w| matches!(w, What::Started { boot: 2, .. })) + 1;
                c.insert(at, begin(5, 1, 300));
            }),
            ("was paused at", |c| {
                let at = c.at(|w| matches!(w, What::Crashed(Crash::PowerCut)));
                c.insert(at, begin(5, 1, 300));
            }),
            ("was paused at", |c| {
                let at = c.at(|w| matches!(w, What::Asking { ask: 105, .. }));
                for token in 300..303 {
                    c.insert(at, begin(5, 1, token));
                }
            }),
            ("None was paused", |c| {
                let at = c.at(|w| matches!(w, What::Started { boot: 2, .. }));
                c.history.events[at].what = What::Started { boot: 2, review: true, clocks: true, down_ms: 5_000 };
            }),
        ],
    );
}

/// A reboot, a clean stop or a death beside others counts against a job as if it had killed the process (I31).
#[test]
fn a_death_that_was_no_ones_fault_is_rejected() {
    rejected(
        runs::i31,
        &[
            ("1 deaths count against job 1, in 0", |c| {
                *c.what(|w| matches!(w, What::Crashed(Crash::Kill))) = What::Crashed(Crash::PowerCut);
            }),
            ("1 deaths count against job 1, in 0", |c| {
                *c.what(|w| matches!(w, What::Crashed(Crash::Kill))) = What::Stopped;
            }),
            ("1 deaths count against job 9, in 0", |c| c.job(9).history.push(died())),
            ("2 deaths count against job 1, in 1", |c| c.job(1).history.push(died())),
            ("1 strikes against job 1, in 0", |c| {
                let at = c.at(|w| matches!(w, What::Crashed(Crash::Kill)));
                c.insert(at, begin(2, 1, 103));
            }),
        ],
    );
}

/// An attempt before its time, after the deadline, before the end of its pause; a pause beyond the cap (I21).
#[test]
fn an_attempt_at_the_wrong_time_is_rejected() {
    rejected(
        time::i21,
        &[
            ("before its time: After(90000)", |c| set_due(c, 102, Due::After(90_000))),
            ("before its time: At(", |c| set_due(c, 103, Due::At(T0 + 90_000))),
            ("its pause since", |c| {
                *c.what(ended(201)) = What::Ended { job: id(1), token: 201, how: How::Transient(25_000) };
            }),
            ("its pause since", |c| {
                *c.what(ended(201)) = What::Ended { job: id(1), token: 201, how: How::Snoozed(25_000) };
            }),
            ("further away than its cap of 20000 ms", |c| {
                let at = c.at(ended(201)) + 1;
                let due = c.history.events[at].now.wall.0 + 20_001;
                c.history.events[at].what = What::Saw { job: id(1), state: Some(State::Delayed), due: Some(due) };
            }),
            ("after its deadline", |c| c.job(9).deadline = Some(T0)),
        ],
    );
}

fn set_due(c: &mut Case, n: u64, new: Due) {
    if let What::Asking { due, .. } = c.what(|w| matches!(w, What::Asking { ask, .. } if *ask == n)) {
        *due = new;
    }
}

/// A sleep of the machine fences a handler, an ended job begins again, due work does not begin (I22).
#[test]
fn a_clock_that_changes_how_often_is_rejected() {
    rejected(
        time::i22,
        &[
            ("moved clocks fenced a handler of job 9", |c| {
                let at = c.at(ended(307));
                c.insert(at, begin(9, 2, 308));
            }),
            ("was over as Done at", |c| c.append(begin(1, 4, 310))),
            ("job 2 is due since", |c| c.remove(|w| began(205)(w) || ended(205)(w))),
            ("job 3 is due since", |c| c.remove(|w| began(206)(w) || ended(206)(w))),
        ],
    );
}

/// At rest something is neither over nor waits for anybody (I28).
#[test]
fn a_job_that_is_stuck_is_rejected() {
    rejected(
        time::i28,
        &[
            ("job 5 is still Ready", |c| c.remove(|w| matches!(w, What::Paused { .. } | What::Pausing { .. }))),
            ("job 5 is still Ready", |c| {
                c.append(What::Pausing { kind: Some("note"), on: false });
                c.append(What::Paused { kind: Some("note"), on: false });
            }),
            ("job 8 is still Dead", |c| c.job(8).letter.as_mut().unwrap().questions = 0),
            ("job 6 is still Running", |c| c.job(6).state = State::Running),
            ("job 6 is still Waiting", |c| c.job(6).state = State::Waiting),
            ("job 6 is still Delayed", |c| (c.job(6).state, c.job(6).due) = (State::Delayed, Some(T0))),
            ("job 6 is still Compensating", |c| c.job(6).state = State::Compensating),
        ],
    );
}
