//! What was done outside, against what was known and what is recorded: I10 to I15, and I29.

use super::view::{Call, Run, View};
use super::{Came, Memo, Told, What};
use onceward::model::time::millis;
use onceward::{EffectState, JobId, Recovery, State, Undoing, Verdict};
use std::collections::BTreeMap;

/// Each real call of an effect is preceded by its durable intent: whatever crashed after it, its record is there and counts it.
///
/// Legal: calls of before an older copy of the file was put back are forgotten with it.
pub(super) fn i10(view: &View<'_>) -> Result<u64, String> {
    let mut looked_at = 0;
    for (id, effect) in view.effects() {
        let made = view.calls_of(id, &effect).filter(|c| c.entered > view.copied).count();
        let Some(job) = view.job(id).filter(|j| j.state != State::Remembered) else { continue };
        looked_at += made as u64;
        match job.effects.iter().find(|e| e.effect == effect) {
            None if made == 0 => {}
            None => return Err(format!("{effect} of job {id} was called {made} times without an intent")),
            Some(record) if made > record.calls as usize => {
                return Err(format!(
                    "{effect} of job {id} was called {made} times, {} intents are known",
                    record.calls
                ));
            }
            Some(_) => {}
        }
    }
    Ok(looked_at)
}

/// A confirmed effect is never called again: crash, replay and upgrade included.
///
/// Legal: a person says that it did not happen after all; after an older copy of the file was put back its first call counts as
/// unknown, which is I13's.
pub(super) fn i11(view: &View<'_>) -> Result<u64, String> {
    let mut looked_at = 0;
    for (at, id, effect, _) in view.confirmed() {
        looked_at += 1;
        let again =
            view.calls_of(id, effect).filter(|c| c.entered > at && (at > view.copied || c.entered < view.copied));
        for call in again {
            if !view.verdicts(id, effect, at, call.entered).any(|v| matches!(v, Verdict::DidNotHappen { .. })) {
                return Err(format!("{effect} of job {id} was confirmed at {at} and called again at {}", call.entered));
            }
        }
    }
    Ok(looked_at)
}

/// At most one confirmation of an effect is stored, and it is one of something that happened.
///
/// Legal: another account after a person gave one. A second, different one that nobody asked for is a conflict, which a person is asked
/// about; it replaces nothing. What a person says, and what a provider says that is not honest, nobody can check.
pub(super) fn i12(view: &View<'_>) -> Result<u64, String> {
    let mut first: BTreeMap<(JobId, &str), (usize, &str)> = BTreeMap::new();
    for (at, id, effect, result) in view.confirmed() {
        let (since, before) = *first.entry((id, effect)).or_insert((at, result));
        let said = |v: &Verdict| matches!(v, Verdict::Happened { .. });
        if before != result && !view.verdicts(id, effect, since, at).any(said) {
            return Err(format!("{effect} of job {id} was confirmed as {before}, and as {result}"));
        }
    }
    for job in view.kept() {
        for record in &job.effects {
            let told = first.get(&(job.id, record.effect.as_str())).filter(|(at, _)| *at > view.copied);
            let said = || view.verdicts(job.id, &record.effect, 0, view.end()).next().is_some();
            let real = view.calls_of(job.id, &record.effect).any(|c| c.applied > 0);
            let stands = matches!(record.state, EffectState::Confirmed | EffectState::Undone);
            if told.is_some() && !stands && !said() {
                return Err(format!("{} of job {} was confirmed and is {:?}", record.effect, job.id, record.state));
            }
            if stands && !real && !said() && !is_liar(view, &record.effect) {
                return Err(format!("{} of job {} is confirmed, and it never happened", record.effect, job.id));
            }
        }
    }
    Ok(first.len() as u64)
}

/// An unknown effect is repeated only with the same key within the provider's window; or after the provider was asked at least the
/// settle time after every earlier call surely ended, and said "not there"; or after a person's "it did not happen"; or where the
/// app declared `repeat()`.
///
/// The window begins with the first call under the key that may have left, in time that really passed. Not held against anybody: a
/// window across a start at which the calendar had stood still.
pub(super) fn i13(view: &View<'_>) -> Result<u64, String> {
    let mut looked_at = 0;
    for (n, call) in view.calls.iter().enumerate() {
        let open = |c: &&Call| c.of(call.job, &call.effect) && !c.is_known_undone();
        for earlier in view.calls[..n].iter().filter(open) {
            looked_at += 1;
            if !may_repeat(view, earlier, call) {
                return Err(format!(
                    "{} of job {} was called at {}, nobody knew about the call at {}, and nothing allowed to repeat it",
                    call.effect, call.job, call.entered, earlier.entered
                ));
            }
        }
    }
    Ok(looked_at)
}

fn may_repeat(view: &View<'_>, earlier: &Call, call: &Call) -> bool {
    let recovery = view.recovery(call.job, &call.effect);
    if recovery == Some(Recovery::Repeat) {
        return true;
    }
    let no = |v: &Verdict| matches!(v, Verdict::DidNotHappen { .. });
    if view.verdicts(call.job, &call.effect, earlier.entered, call.entered).any(no) {
        return true;
    }
    let Some(recovery) = recovery else { return false };
    if let Some(ttl) = recovery.key_ttl()
        && earlier.key == call.key
        && in_window(view, call, millis(ttl))
    {
        return true;
    }
    let (Some(settle), Some(over)) = (recovery.settle(), earlier.over) else { return false };
    view.probes.iter().any(|p| {
        let answered = matches!(&p.said, Some((at, super::Said::NotThere)) if *at < call.entered);
        let settled = p.asked > over && view.truth[p.asked] - view.truth[over] >= millis(settle);
        p.job == call.job && p.effect == call.effect && answered && settled
    })
}

/// The provider still knows the key of this call, as far as clocks can tell.
fn in_window(view: &View<'_>, call: &Call, ttl: u64) -> bool {
    let same = |c: &&Call| c.key == call.key && !matches!(c.came, Some((_, Came::NotSent)));
    let Some(first) = view.calls_of(call.job, &call.effect).find(same) else { return true };
    let stood_still = view
        .events()
        .any(|(n, e)| matches!(e.what, What::Started { clocks: false, .. }) && first.entered < n && n < call.entered);
    stood_still || view.truth[call.entered] - view.truth[first.entered] <= ttl
}

/// All calls of one effect carry the same key and the same request; no two effects share a key.
///
/// Legal: another key after the provider refused the one before, or after a person asked for a new one.
pub(super) fn i14(view: &View<'_>) -> Result<u64, String> {
    let mut keys: BTreeMap<&str, (JobId, &str, u64)> = BTreeMap::new();
    for call in &view.calls {
        let mine = (call.job, call.effect.as_str(), call.request);
        let (job, effect, request) = *keys.entry(&call.key).or_insert(mine);
        if (job, effect) != (call.job, &call.effect) {
            return Err(format!("{effect} of job {job} and {} of job {} share a key", call.effect, call.job));
        }
        if request != call.request {
            return Err(format!("{effect} of job {job} was asked for as two different requests under one key"));
        }
    }
    for (id, effect) in view.effects() {
        let calls: Vec<&Call> = view.calls_of(id, &effect).collect();
        for pair in calls.windows(2).filter(|p| p[0].key != p[1].key) {
            if !may_renew(view, &calls, pair[0], pair[1].entered) {
                return Err(format!("{effect} of job {id} got another key at {}, for no reason", pair[1].entered));
            }
        }
        let record = view.job(id).and_then(|j| j.effects.iter().find(|e| e.effect == effect));
        if let (Some(last), Some(record)) = (calls.last(), record)
            && record.key != last.key
            && !may_renew(view, &calls, last, view.end())
            && last.entered > view.copied
        {
            return Err(format!("{effect} of job {id} was called with another key than its record's"));
        }
    }
    Ok(view.calls.len() as u64)
}

fn may_renew(view: &View<'_>, calls: &[&Call], last: &Call, at: usize) -> bool {
    let refused = |c: &&&Call| c.key == last.key && matches!(&c.came, Some((n, Came::Refused)) if *n < at);
    let asked = |v: &Verdict| matches!(v, Verdict::DidNotHappen { new_key: true, .. });
    calls.iter().any(|c| refused(&c)) || view.verdicts(last.job, &last.effect, last.entered, at).any(asked)
}

/// With an honest provider an effect happens at most once; where the app declared at-least-once at most as often as there were
/// attempts.
///
/// Legal: once more for every time that a person said that it did not happen; anything with a provider that is not honest; a key
/// that a calendar which stood still made look alive.
pub(super) fn i15(view: &View<'_>) -> Result<u64, String> {
    let mut looked_at = 0;
    for (id, effect) in view.effects().into_iter().filter(|(_, effect)| !is_liar(view, effect)) {
        let times: u64 = view.calls_of(id, &effect).map(|c| c.applied).sum();
        let denied = |v: &&Verdict| matches!(v, Verdict::DidNotHappen { .. });
        let people = view.verdicts(id, &effect, 0, view.end()).filter(denied).count() as u64;
        let stood_still = view.events().any(|(_, e)| matches!(e.what, What::Started { clocks: false, .. }));
        let keyed = view.recovery(id, &effect).is_some_and(|r| r.key_ttl().is_some());
        let once = match view.recovery(id, &effect) {
            Some(Recovery::Repeat) => view.job(id).map_or(0, |j| attempts(view, j)),
            _ => 1,
        };
        looked_at += times;
        if times > once + people && !(stood_still && keyed) {
            return Err(format!("{effect} of job {id} happened {times} times"));
        }
    }
    Ok(looked_at)
}

/// Of a job whose rows are pruned only the handlers that began are known.
fn attempts(view: &View<'_>, job: &super::FinalJob) -> u64 {
    if job.state == State::Remembered { view.runs_of(job.id).count() as u64 } else { u64::from(job.attempts) }
}

fn is_liar(view: &View<'_>, effect: &str) -> bool {
    view.history.liars.contains(effect.split('/').next().unwrap_or(effect))
}

/// From where on the run was stopped before `at`: a call that it asked for ended without an answer, and it was told so.
pub(super) fn stopped(view: &View<'_>, run: &Run, at: usize) -> Option<usize> {
    view.told(run).take_while(|(n, _)| *n < at).find_map(|(n, what)| {
        let What::EffectTold { effect, told: Told::Failed, .. } = what else { return None };
        let lost = |c: &Call| matches!(c.came, Some((came, Came::ToNothing)) if came < n);
        let mine = |c: &&Call| c.of(run.job, effect) && c.run.is_some_and(|r| view.runs[r].token == run.token);
        view.calls.iter().any(|c| mine(&c) && lost(c)).then_some(n)
    })
}

/// A job ends as success only if every effect it has is confirmed, refused or resolved by a person; after a call without an answer
/// nothing else of that attempt is accepted.
///
/// Legal: a later attempt, after it became known what happened.
pub(super) fn i29(view: &View<'_>) -> Result<u64, String> {
    let mut looked_at = 0;
    for job in view.jobs.iter().filter(|j| j.state == State::Done) {
        looked_at += job.effects.len() as u64;
        let fits = |e: &super::FinalEffect| {
            !e.state.is_unresolved() && e.state != EffectState::Undone && e.undoing == Undoing::No && !e.conflict
        };
        if let Some(doubt) = job.effects.iter().find(|e| !fits(e)) {
            return Err(format!("job {} is done, and {} is {:?}", job.id, doubt.effect, doubt.state));
        }
        let by = |run: &Run| super::runs::endings(view, run).into_iter().any(|n| stopped(view, run, n).is_none());
        if !view.runs_of(job.id).any(by) {
            return Err(format!("job {} was ended as done by a handler with an effect without an answer", job.id));
        }
    }
    for run in &view.runs {
        let Some(stop) = stopped(view, run, view.end() + 1) else { continue };
        looked_at += 1;
        let accepted = |what: &What| {
            matches!(what, What::EffectTold { told: Told::Done(_), .. } | What::Remember { memo: Memo::Told(_), .. })
        };
        if let Some((n, what)) = view.told(run).find(|(n, what)| *n > stop && accepted(what)) {
            return Err(format!("job {} went on at {n} after an effect without an answer: {what:?}", run.job));
        }
        let called = |c: &&Call| c.run.is_some_and(|r| view.runs[r].token == run.token) && c.entered > stop;
        if let Some(call) = view.calls.iter().find(called) {
            return Err(format!("job {} went on to call {} after an effect without an answer", run.job, call.effect));
        }
    }
    Ok(looked_at)
}
