//! Claims, tokens, what is remembered of a run, pauses, and deaths: I7, I8, I9, I16, I26, I31.

use super::view::{Run, View};
use super::{Crash, Deed, FinalJob, How, Memo, What};
use onceward::model::time::millis;
use onceward::{Entry, JobId, State, Verdict};
use std::collections::BTreeMap;

/// At most one live handler per job; tokens rise per job across lives, replays and recoveries, and none is handed out twice.
///
/// Legal: a second handler beside one that showed no sign of life for the stall timeout, or that took longer than an attempt may, by
/// the stopwatch; one that renewed its lease unseen only makes this check milder. A heal takes every lease away. What a suspend or a set
/// calendar did is I22's.
pub(super) fn i7(view: &View<'_>) -> Result<u64, String> {
    let mut handed: BTreeMap<u64, JobId> = BTreeMap::new();
    let mut newest: BTreeMap<JobId, u64> = BTreeMap::new();
    for run in &view.runs {
        if let Some(other) = handed.insert(run.token, run.job) {
            return Err(format!("the token {} was handed out twice, to {other} and {}", run.token, run.job));
        }
        if newest.insert(run.job, run.token).is_some_and(|before| before >= run.token) {
            return Err(format!("the tokens of job {} do not rise", run.job));
        }
        if let Some(other) = beside(view, run)
            && !moved_oddly(view, other, run)
        {
            return Err(format!("two live handlers of job {}: {} and {}", run.job, other.token, run.token));
        }
    }
    for job in view.kept() {
        if newest.get(&job.id).is_some_and(|t| *t > job.last_token) {
            return Err(format!("job {} forgot its newest token: {}", job.id, job.last_token));
        }
    }
    Ok(view.runs.len() as u64)
}

/// A handler of the same job and life whose lease cannot have been over when `run` began.
pub(super) fn beside<'v>(view: &'v View<'_>, run: &Run) -> Option<&'v Run> {
    let other = view.live(run.began).filter(|r| r.job == run.job).last()?;
    let healed = view
        .events()
        .any(|(n, e)| matches!(e.what, What::Healed) && e.life == run.life && other.began < n && n < run.began);
    (!healed && !may_have_lapsed(view, other, run.began)).then_some(other)
}

/// The lease of a run may have been over at `at`, by the stopwatch.
pub(super) fn may_have_lapsed(view: &View<'_>, run: &Run, at: usize) -> bool {
    let Some(job) = view.job(run.job) else { return true };
    let rules = view.rules(&job.name);
    let sign = view.told(run).map(|(n, _)| n).take_while(|n| *n < at).last().unwrap_or(run.began);
    // The clocks may have been moved between what the queue noted and what was taken down of it.
    let since = |n: usize| view.mono(at).saturating_sub(view.mono(n.saturating_sub(1)));
    since(sign) >= millis(rules.stall_timeout) || since(run.began) >= millis(rules.attempt_timeout)
}

/// The machine slept or somebody set the calendar between the beginnings of two runs.
pub(super) fn moved_oddly(view: &View<'_>, first: &Run, second: &Run) -> bool {
    (first.began..second.began)
        .any(|n| matches!(view.event(n).what, What::Moved(super::Moved::Jump | super::Moved::Suspend(_))))
}

/// A newer handler of the same job had begun by then.
fn is_old(view: &View<'_>, run: &Run, at: usize) -> bool {
    view.runs.iter().any(|r| r.job == run.job && r.token > run.token && r.began < at)
}

/// The moments of a run that can have ended its job as done: it asked for `finish` or returned Ok, while no newer handler had begun.
pub(super) fn endings(view: &View<'_>, run: &Run) -> Vec<usize> {
    let finish = view.told(run).find(|(_, what)| matches!(what, What::Finishing { .. })).map(|(n, _)| n);
    let ok = run.ended.filter(|(_, how)| *how == How::Ok).map(|(n, _)| n);
    finish.into_iter().chain(ok).filter(|n| !is_old(view, run, *n)).collect()
}

/// A write with an old token is refused and changes nothing about its job.
///
/// Legal: a handler that lost its lease is given what was remembered before, runs its closures, and its calls that are already under way
/// are confirmed. Not legal: a step that it ran after the newer claim is stored, a call that it asks for after that is made, its success
/// ends the job.
pub(super) fn i8(view: &View<'_>) -> Result<u64, String> {
    let mut looked_at = 0;
    for run in &view.runs {
        let mut ran: BTreeMap<&str, usize> = BTreeMap::new();
        for (n, what) in view.told(run).filter(|(n, _)| is_old(view, run, *n)) {
            looked_at += 1;
            match what {
                What::Remember { name, memo: Memo::Ran, .. } => drop(ran.insert(name, n)),
                What::Remember { name, memo: Memo::Told(_), .. } if ran.contains_key(name.as_str()) => {
                    return Err(format!("{name} of job {} was stored with the old token {}", run.job, run.token));
                }
                _ => {}
            }
        }
    }
    for call in &view.calls {
        let asked = call.run.map(|r| &view.runs[r]);
        let asked = asked.and_then(|run| {
            let questions = view.told(run).filter(|(n, what)| {
                *n < call.entered && matches!(what, What::EffectAsked { effect, .. } if *effect == call.effect)
            });
            questions.last().map(|(n, _)| (run, n))
        });
        let Some((run, at)) = asked else {
            return Err(format!("{} of job {} was called, and no handler asked for it", call.effect, call.job));
        };
        if is_old(view, run, at) {
            return Err(format!("{} of job {} was called with the old token {}", call.effect, call.job, run.token));
        }
    }
    for job in view.jobs.iter().filter(|j| j.state == State::Done) {
        if view.runs_of(job.id).all(|run| endings(view, run).is_empty()) {
            return Err(format!("job {} is done, and no handler with the newest token ended it so", job.id));
        }
    }
    Ok(looked_at + view.calls.len() as u64)
}

/// Claims = attempts + given back; attempts within the limit, counted before the handler runs; then it is not claimed again.
///
/// Legal: an attempt that a person granted, one for every time that somebody asked for that. A claim whose handler never began is seen by
/// nobody; a handler that began was claimed.
pub(super) fn i9(view: &View<'_>) -> Result<u64, String> {
    for job in view.kept() {
        let FinalJob { id, attempts, claims, given_back, granted, .. } = job;
        if u64::from(*claims) != u64::from(*attempts) + given_back {
            return Err(format!("job {id}: {claims} claims, {attempts} attempts, {given_back} given back"));
        }
        let most = view.rules(&job.name).max_attempts + granted;
        if *attempts > most {
            return Err(format!("job {id}: {attempts} attempts, at most {most} are allowed"));
        }
        if *granted as usize > view.acts_about(*id, 0, view.end()).count() {
            return Err(format!("job {id}: {granted} attempts were granted, and nobody asked for so many"));
        }
        let began = view.runs_of(*id).filter(|r| r.began > view.copied).count();
        if began > *claims as usize {
            return Err(format!("job {id}: {began} handlers began, {claims} claims are counted"));
        }
        let (mut before, mut life) = (0, 0);
        for run in view.runs_of(*id).filter(|r| r.began > view.copied) {
            // Whether the end of the last one was stored before its process was over, nobody knows.
            before -= u32::from(before > 0 && run.life != life);
            life = run.life;
            if run.attempt == 0 || run.attempt < before || run.attempt > most {
                return Err(format!("job {id}: attempt {} after {before}, of {most}", run.attempt));
            }
            // One that was interrupted is given back: a claim that only goes on with its effect has the number before.
            let given_back = matches!(run.ended, Some((_, How::Interrupted)));
            before = run.attempt - u32::from(given_back);
        }
        // The last of them may have been given back.
        if before > attempts + u32::from(*given_back > 0) {
            return Err(format!("job {id}: attempt {before} began, {attempts} are counted"));
        }
    }
    Ok(view.runs.len() as u64)
}

/// A remembered step or commit never runs again, and gives back the same bytes.
///
/// Legal: a step of which nobody was told; one that a person had forgotten by a replay from it or from one before it; after an older
/// copy of the file was put back what was told before.
pub(super) fn i16(view: &View<'_>) -> Result<u64, String> {
    // Of each job, in the order in which they became known: name, bytes, when they were told last.
    let mut known: BTreeMap<JobId, Vec<(&str, &[u8])>> = BTreeMap::new();
    let mut looked_at = 0;
    for (at, event) in view.events() {
        match &event.what {
            What::Started { .. } if at == view.copied => known.clear(),
            What::Acting { job: Some(job), deed: Deed::Decide(Verdict::ReplayFrom { step }), act } => {
                let refused =
                    |e: &super::Event| matches!(e.what, What::Acted { act: a, done: Some(false) } if a == *act);
                if !view.events().any(|(_, e)| refused(e)) {
                    let steps = known.entry(*job).or_default();
                    let from = steps.iter().position(|(name, _)| name == step).unwrap_or(0);
                    steps.truncate(from);
                }
            }
            What::Remember { job, name, memo: Memo::Ran, .. }
                if known.get(job).is_some_and(|steps| steps.iter().any(|(n, _)| n == name)) =>
            {
                return Err(format!("{name} of job {job} was remembered and ran again at {at}"));
            }
            What::Remember { job, name, memo: Memo::Told(bytes), .. } => {
                looked_at += 1;
                let steps = known.entry(*job).or_default();
                match steps.iter().find(|(n, _)| n == name) {
                    None => steps.push((name, bytes)),
                    Some((_, before)) if *before == &**bytes => {}
                    Some((_, before)) => {
                        return Err(format!("{name} of job {job} gave back {bytes:?}, before that {before:?}"));
                    }
                }
            }
            _ => {}
        }
    }
    for job in view.kept() {
        for (name, bytes) in known.get(&job.id).into_iter().flatten() {
            if !job.memos.iter().any(|(n, b)| n == name && b == bytes) {
                return Err(format!("{name} of job {} was given to its handler and is not remembered", job.id));
            }
        }
    }
    Ok(looked_at)
}

/// After an acknowledged pause nothing is claimed until somebody resumes, also after a restart. A review begins with a pause of
/// everything.
///
/// Legal: handlers of what was claimed before: no more than can run at a time, and none after a moment at which nothing was on its way
/// to a handler, or after a start. Who has asked to resume may have been heard.
pub(super) fn i26(view: &View<'_>) -> Result<u64, String> {
    let mut paused: BTreeMap<Option<&str>, (usize, usize)> = BTreeMap::new();
    let mut reviewed = false;
    let mut looked_at = 0;
    for (at, event) in view.events() {
        match event.what {
            What::Paused { kind, on: true } => {
                looked_at += 1;
                paused.insert(kind, (at, 0));
            }
            What::Pausing { kind, on: false } => drop(paused.remove(&kind)),
            What::Started { review, .. } => {
                if review && !reviewed {
                    looked_at += 1;
                    paused.insert(None, (at, 0));
                }
                reviewed = review;
            }
            What::Began { job, token, .. } => {
                let Some(name) = view.job(job).map(|j| &j.name) else { continue };
                for (kind, (since, begun)) in &mut paused {
                    if kind.is_some_and(|k| k != name.0) {
                        continue;
                    }
                    looked_at += 1;
                    *begun += 1;
                    let quiet = view.quiet_before(at).is_some_and(|quiet| quiet >= *since);
                    if quiet || *begun > view.history.workers {
                        return Err(format!("job {job} ({token}) began at {at}, and {kind:?} was paused at {since}"));
                    }
                }
            }
            _ => {}
        }
    }
    Ok(looked_at)
}

/// Only a death in the same boot while its handler was running counts against a job, as a strike only if that was alone at work.
///
/// A claim whose handler had not begun, or whose end was not stored yet, counts as running where the process died in the middle of
/// something. Legal are fewer deaths than there were: a claim that was given back leaves none.
pub(super) fn i31(view: &View<'_>) -> Result<u64, String> {
    let starts: BTreeMap<u32, u64> = view
        .events()
        .filter_map(|(_, e)| if let What::Started { boot, .. } = e.what { Some((e.life, boot)) } else { None })
        .collect();
    let mut deaths = Vec::new();
    for (life, boot) in &starts {
        let Some((at, how)) = view.crash(*life) else { continue };
        let next = starts.range(life + 1..).next().map(|(_, boot)| boot);
        if how == Crash::Kill && next == Some(boot) {
            deaths.push(at);
        }
    }
    for job in view.kept() {
        let known = view.asks.values().filter(|a| a.name == job.name).map(|a| a.at).min();
        let owed = view.events().find_map(|(at, e)| match &e.what {
            What::Transacting { jobs, .. } if jobs.iter().any(|(name, _)| *name == job.name) => Some(at),
            _ => None,
        });
        let known = view.runs_of(job.id).map(|r| r.began).chain(known).chain(owed).min().unwrap_or(0);
        let mine = |at: &&usize| {
            let idle = **at > 0 && matches!(view.event(**at - 1).what, What::Idle);
            view.live(**at).any(|r| r.job == job.id) || (!idle && known < **at)
        };
        let alone = |at: &&usize| !view.live(**at).any(|r| r.job != job.id);
        let (all, lone) = (deaths.iter().filter(mine).count(), deaths.iter().filter(mine).filter(alone).count());
        let died = |e: &&Entry| matches!(e, Entry::Attempt { text, .. } if text.starts_with("the process died while"));
        let counted = job.history.iter().filter(died).count();
        let strikes = job.history.iter().filter(|e| matches!(e, Entry::Strike { .. })).count();
        if counted > all {
            return Err(format!("{counted} deaths count against job {}, in {all} its handler ran", job.id));
        }
        if strikes > lone {
            return Err(format!("{strikes} strikes against job {}, in {lone} deaths it was alone", job.id));
        }
    }
    Ok(starts.len() as u64)
}
