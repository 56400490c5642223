//! When things happen, and that they happen: I21, I22, I28.

use super::view::{Ask, Run, View};
use super::{Answer, Deed, Due, FinalJob, How, What};
use onceward::model::time::millis;
use onceward::rules::retry::MAX_RETRY_AFTER_MS;
use onceward::{Backoff, JobId, KindRules, State};
use std::collections::BTreeMap;

/// How often clocks are looked at while something is due later, by the stopwatch.
const CHECK_MS: u64 = 30_000;

/// No attempt begins before its time, none after the deadline; a backoff is within its cap.
///
/// The calendar or the stopwatch may have brought a wait to its end, whichever was first; a date is the calendar's alone, at any moment
/// since it was asked for. A deadline is held against a claim only if the calendar was past it since a moment at which no claim was on
/// its way; a claim that goes on with an effect of the last attempt is no new attempt.
pub(super) fn i21(view: &View<'_>) -> Result<u64, String> {
    let mut looked_at = 0;
    for job in view.jobs {
        let runs: Vec<&Run> = view.runs_of(job.id).collect();
        if let (Some(first), Some(ask)) = (runs.first(), asked(view, job)) {
            looked_at += 1;
            let early = match ask.due {
                Due::AtOnce | Due::Again => false,
                Due::After(ms) => !is_over(view, ask.at, first.began, ms),
                Due::At(due) => view.latest(ask.at, first.began) < due,
            };
            if early {
                return Err(format!("job {} began at {}, before its time: {:?}", job.id, first.began, ask.due));
            }
        }
        let rules = view.rules(&job.name);
        for pair in runs.windows(2) {
            let Some((ended, wait)) = pause(view, rules, pair[0]) else { continue };
            let (same, begins) = (pair[0].life == pair[1].life, pair[1].began);
            // A person who decides does not wait for a pause.
            let decided = view.acts.iter().any(|a| a.job == Some(job.id) && (ended..begins).contains(&a.at));
            if begins < ended
                || decided
                || !(same || saw(view, job.id, State::Delayed, ended, view.end_of(pair[0].life)))
            {
                continue;
            }
            looked_at += 1;
            if !is_over(view, ended, begins, wait) {
                return Err(format!("job {} began at {begins}, its pause since {ended} is {wait} ms", job.id));
            }
        }
        for (n, run) in runs.iter().enumerate() {
            looked_at += 1;
            let next = runs.get(n + 1).map_or(view.end(), |r| r.began);
            backoff(view, rules, run, next)?;
        }
        deadline(view, job, &runs)?;
    }
    Ok(looked_at)
}

/// What made the job; `None` if that cannot be told: several asked, or nobody did outside a transaction.
fn asked<'v>(view: &'v View<'_>, job: &FinalJob) -> Option<&'v Ask> {
    let told = |a: &&Ask| matches!(a.answer, Some((_, Answer::Stored(id))) if id == job.id);
    let mut by_name = view.asks.values().filter(|a| a.name == job.name);
    view.asks.values().find(told).or_else(|| by_name.next().filter(|_| by_name.next().is_none()))
}

/// A wait of `ms` that began at `from` may be over at `to`: of each part of the time between them, the calendar or the stopwatch may have
/// counted, whichever went further. A process that starts takes what the calendar says is left of a wait, and goes on by its stopwatch.
fn is_over(view: &View<'_>, from: usize, to: usize, ms: u64) -> bool {
    let passed = |n: usize| {
        let by_calendar = view.wall(n + 1).saturating_sub(view.wall(n));
        by_calendar.max(view.mono(n + 1).saturating_sub(view.mono(n)))
    };
    (from..to).map(passed).fold(0, u64::saturating_add) >= ms
}

fn saw(view: &View<'_>, id: JobId, what: State, from: usize, to: usize) -> bool {
    (from..to).any(|n| matches!(view.event(n).what, What::Saw { job, state: Some(s), .. } if job == id && s == what))
}

/// When a run ended in a way that has a pause, and the shortest that it can be. Not told of: a run whose lease may have been over, or
/// with a call that may still be answered, which brings its job back at once.
fn pause(view: &View<'_>, rules: &KindRules, run: &Run) -> Option<(usize, u64)> {
    let (ended, how) = run.ended?;
    let known = |c: &super::view::Call| {
        view.confirmed().any(|(at, job, effect, _)| at < ended && c.of(job, effect))
            || c.came.as_ref().is_some_and(|(n, came)| *n < ended && *came != super::Came::ToNothing)
    };
    let open = view.calls.iter().any(|c| c.job == run.job && c.entered < ended && !known(c));
    if open || super::runs::may_have_lapsed(view, run, ended) {
        return None;
    }
    match how {
        How::Transient(asked) => {
            let steps = match &rules.backoff {
                Backoff::Steps(steps) => {
                    let nth = usize::try_from(run.attempt).unwrap_or(usize::MAX).clamp(1, steps.len().max(1));
                    steps.get(nth - 1).copied().map_or(0, millis)
                }
                Backoff::Exponential { .. } => 0,
            };
            Some((ended, steps.max(asked.min(MAX_RETRY_AFTER_MS))))
        }
        How::Snoozed(ms) => Some((ended, ms)),
        How::Ok | How::Permanent | How::Unknown | How::Interrupted | How::Panicked => None,
    }
}

/// A due time that somebody saw between two attempts is no further away than the longest pause.
fn backoff(view: &View<'_>, rules: &KindRules, run: &Run, next: usize) -> Result<(), String> {
    let Some((ended, How::Transient(asked))) = run.ended else { return Ok(()) };
    let cap = match &rules.backoff {
        Backoff::Exponential { cap, .. } => millis(*cap),
        Backoff::Steps(steps) => steps.iter().copied().map(millis).max().unwrap_or(0),
    };
    let longest = cap.max(asked.min(MAX_RETRY_AFTER_MS));
    for n in ended..next {
        if let What::Saw { job, state: Some(State::Delayed), due: Some(due) } = view.event(n).what
            && job == run.job
            && due > view.latest(ended, n).saturating_add(longest)
        {
            return Err(format!("job {job} comes back at {due}, further away than its cap of {longest} ms"));
        }
    }
    Ok(())
}

fn deadline(view: &View<'_>, job: &FinalJob, runs: &[&Run]) -> Result<(), String> {
    let Some(deadline) = job.deadline else { return Ok(()) };
    // A claim that goes on with the last attempt becomes one of its own once it calls again.
    let counted = |n: usize| {
        let (run, next) = (runs[n], runs.get(n + 1).map_or(view.end(), |r| r.began));
        let calls = view.calls.iter().any(|c| c.job == job.id && run.began < c.entered && c.entered < next);
        run.attempt + u32::from(calls && runs[..n].iter().any(|r| r.attempt == run.attempt))
    };
    let first = view
        .events()
        .find(|(_, e)| matches!(&e.what, What::EffectAsked { job: j, .. } if *j == job.id))
        .map(|(n, _)| n);
    for (n, run) in runs.iter().enumerate() {
        let goes_on = first.is_some_and(|n| n < run.began) && (0..n).any(|earlier| counted(earlier) >= run.attempt);
        let Some(quiet) = view.quiet_before(run.began).filter(|_| !goes_on) else { continue };
        if (quiet..=run.began).all(|n| view.event(n).life == 0 || view.wall(n) > deadline) {
            return Err(format!("job {} began at {}, after its deadline {deadline}", job.id, run.began));
        }
    }
    Ok(())
}

/// Clock jumps and suspends change when, never how often: none takes a lease away, none makes a job run that is over, and due work
/// starts within the check period.
///
/// Held against a job only if it was due at two moments in one life at which nothing was left to do, a check period of the stopwatch
/// apart, with a free worker, room on the disk, and nothing paused meanwhile.
pub(super) fn i22(view: &View<'_>) -> Result<u64, String> {
    let mut looked_at = 0;
    for run in &view.runs {
        if let Some(other) = super::runs::beside(view, run)
            && super::runs::moved_oddly(view, other, run)
        {
            return Err(format!("moved clocks fenced a handler of job {}: {} and {}", run.job, other.token, run.token));
        }
        let over = (0..run.began).rev().find_map(|n| match view.event(n).what {
            What::Saw { job, state: Some(state), .. } if job == run.job => Some((n, state)),
            _ => None,
        });
        if let Some((n, state)) = over
            && state.is_over()
            && !view.acts_about(run.job, n, run.began).any(|a| a.deed == Deed::Restore)
        {
            return Err(format!("job {} was over as {state:?} at {n} and began again at {}", run.job, run.began));
        }
    }
    let mut full = false;
    let mut paused: BTreeMap<Option<&str>, bool> = BTreeMap::new();
    let mut waiting: BTreeMap<JobId, usize> = BTreeMap::new();
    for (at, event) in view.events() {
        match event.what {
            What::DiskFull(on) => (full, waiting) = (on, BTreeMap::new()),
            What::Pausing { .. } | What::Paused { .. } | What::Started { .. } => {
                may_pause(&mut paused, &event.what);
                waiting.clear();
            }
            What::Idle if !full && !paused.values().any(|on| *on) && view.live(at).next().is_none() => {
                looked_at += 1;
                for (id, ask, answered) in super::jobs::stored(view).filter(|(.., answered)| *answered < at) {
                    let due = match ask.due {
                        Due::AtOnce | Due::Again => 0,
                        Due::After(ms) => view.latest(ask.at, answered).saturating_add(ms),
                        Due::At(due) => due,
                    };
                    let begun = view.runs_of(id).any(|r| r.began < at);
                    let touched = || view.acts_about(id, 0, at).next().is_some() || ended_unseen(view, id, at);
                    if begun || view.wall(at) < due || touched() {
                        waiting.remove(&id);
                        continue;
                    }
                    let since = *waiting.entry(id).or_insert(at);
                    if view.mono(at).saturating_sub(view.mono(since)) >= CHECK_MS {
                        return Err(format!("job {id} is due since {since} and has not begun at {at}"));
                    }
                }
            }
            _ => {}
        }
    }
    Ok(looked_at)
}

/// What may be paused: from when somebody asked for it until the resume was acknowledged. A review pauses everything.
fn may_pause(paused: &mut BTreeMap<Option<&str>, bool>, what: &What) {
    match what {
        What::Pausing { kind, on: true } => drop(paused.insert(*kind, true)),
        What::Paused { kind, on } => drop(paused.insert(*kind, *on)),
        What::Started { review: true, .. } => drop(paused.insert(None, true)),
        _ => {}
    }
}

/// It ended, or a person is asked, without a handler: its deadline passed.
fn ended_unseen(view: &View<'_>, id: JobId, at: usize) -> bool {
    let asks = |s: &State| matches!(s, State::Dead | State::NeedsDecision);
    let seen = (0..at).rev().find_map(|n| match &view.event(n).what {
        What::Saw { job, state: Some(state), .. } if *job == id => Some(asks(state)),
        _ => None,
    });
    if seen == Some(true) {
        return true;
    }
    let deadline = view.job(id).and_then(|j| j.deadline);
    // Of a job that was pruned since nobody knows whether it had one.
    view.job(id).is_none_or(|j| j.state == State::Remembered) || deadline.is_some_and(|d| view.latest(0, at) > d)
}

/// With faults off and time passed every job that is not paused ended, died, or waits for a decision that somebody can name.
///
/// Legal: a date that has not come; a job that is undone while what undoes it waits for a person.
pub(super) fn i28(view: &View<'_>) -> Result<u64, String> {
    if !view.history.calm {
        return Ok(0);
    }
    let mut paused: BTreeMap<Option<&str>, bool> = BTreeMap::new();
    for (_, event) in view.events() {
        may_pause(&mut paused, &event.what);
    }
    let is_paused = |job: &FinalJob| [None, Some(job.name.0)].iter().any(|k| paused.get(k).copied().unwrap_or(false));
    let asks = |job: &FinalJob| {
        let asked = job.letter.as_ref().is_some_and(|l| l.questions > 0);
        matches!(job.state, State::NeedsDecision | State::Dead) && asked
    };
    let now = view.wall(view.end());
    for job in view.jobs {
        let fits = job.state.is_over()
            || asks(job)
            || match job.state {
                State::Ready | State::Waiting => is_paused(job),
                State::Delayed => is_paused(job) || job.due.is_some_and(|due| due > now),
                State::Compensating => view.jobs.iter().any(|undo| {
                    let of = undo.undoes.as_ref().is_some_and(|(of, _)| *of == job.id);
                    of && (asks(undo) || is_paused(undo) && !undo.state.is_over())
                }),
                _ => false,
            };
        if !fits {
            return Err(format!("job {} is still {:?}, and nothing will happen to it", job.id, job.state));
        }
    }
    Ok(view.jobs.len() as u64)
}
