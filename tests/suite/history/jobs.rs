//! What callers were told about jobs and transactions, against what is there: I1 to I5, and I30.

use super::view::{Ask, View};
use super::{Answer, Deed, Due, FinalJob, Name, What};
use onceward::{Entry, JobId, Keep, State};
use std::collections::{BTreeMap, BTreeSet};

/// A job that was acknowledged is present in exactly one state after every recovery, until its end and the end of its retention.
///
/// Legal: rows that are pruned after retention leave the memory of their intent; a discarded job comes back out of the trash when a person
/// asked for that. A job that was never acknowledged may be there or not, but not twice.
pub(super) fn i1(view: &View<'_>) -> Result<u64, String> {
    let mut there = BTreeMap::new();
    for job in view.jobs {
        if there.insert(job.id, job).is_some() {
            return Err(format!("job {} is there twice", job.id));
        }
    }
    let mut looked_at = 0;
    for (id, ask, at) in stored(view) {
        looked_at += 1;
        match there.get(&id) {
            Some(job) if job.name == ask.name => {}
            Some(job) => return Err(format!("job {id} was acknowledged as {:?} and is {:?}", ask.name, job.name)),
            None => return Err(format!("job {id} ({:?}) was acknowledged and is lost", ask.name)),
        }
        let seen = view.events().skip(at).filter_map(|(n, e)| match e.what {
            What::Saw { job, state, .. } if job == id => Some((n, state)),
            _ => None,
        });
        let last = (view.end(), Some(there[&id].state));
        let mut over: Option<(usize, State)> = None;
        for (n, state) in seen.chain([last]) {
            let Some(state) = state else {
                return Err(format!("job {id} was acknowledged, and nobody found it at {n}"));
            };
            if let Some((since, was)) = over
                && was != state
            {
                let back = was == State::Discarded && view.acts_about(id, since, n).any(|a| a.deed == Deed::Restore);
                let pruned = state == State::Remembered && view.may_have_passed(keep(view, &ask.name, was), at, n);
                if !back && !pruned {
                    return Err(format!("job {id} was over as {was:?} and is {state:?} at {n}"));
                }
            } else if state == State::Remembered && over.is_none() {
                let kept = [State::Done, State::Discarded].map(|was| keep(view, &ask.name, was));
                if !kept.into_iter().any(|k| view.may_have_passed(k, at, n)) {
                    return Err(format!("job {id} is pruned at {n}, before its retention was over"));
                }
            }
            over = state.is_over().then_some((n, state));
        }
    }
    Ok(looked_at)
}

fn keep(view: &View<'_>, name: &Name, was: State) -> Keep {
    let rules = view.rules(name);
    if was == State::Done { rules.keep_done } else { rules.keep_discarded }
}

/// Jobs that were acknowledged as new, each with what was asked for and when that was said.
pub(super) fn stored<'v>(view: &'v View<'_>) -> impl Iterator<Item = (JobId, &'v Ask, usize)> {
    view.asks.values().filter_map(|ask| match ask.answer {
        Some((at, Answer::Stored(id))) => Some((id, ask, at)),
        _ => None,
    })
}

/// A transaction: its row, what it owes, what was said.
struct Deal<'a> {
    row: &'a str,
    jobs: &'a [(Name, u64)],
    messages: &'a [String],
    once: bool,
    done: Option<bool>,
}

fn deals<'a>(view: &View<'a>) -> Vec<Deal<'a>> {
    let mut deals: BTreeMap<u64, Deal<'a>> = BTreeMap::new();
    for (_, event) in view.events() {
        match &event.what {
            What::Transacting { ask, row, jobs, messages, once } => {
                deals.insert(*ask, Deal { row, jobs, messages, once: *once, done: None });
            }
            What::Transacted { ask, done } => {
                if let Some(deal) = deals.get_mut(ask) {
                    deal.done = *done;
                }
            }
            _ => {}
        }
    }
    deals.into_values().collect()
}

/// No phantom: every stored job traces to somebody who asked for it, with the same payload; one answered "not done" never appears.
///
/// Legal: an answer that is missing or unknown may have been a yes; a transaction's follow-ups and the jobs that undo an effect are
/// asked for by those. No handler begins for a job that is not there.
pub(super) fn i2(view: &View<'_>) -> Result<u64, String> {
    let deals = deals(view);
    for job in view.jobs {
        let undoes = job.undoes.as_ref().is_some_and(|(of, effect)| {
            view.job(*of).is_some_and(|j| j.state == State::Remembered || j.effects.iter().any(|e| e.effect == *effect))
        });
        let pruned = job.state == State::Remembered;
        let fits = |name: &Name, payload: u64| *name == job.name && (pruned || payload == job.payload);
        let owed =
            deals.iter().any(|d| d.done != Some(false) && d.jobs.iter().any(|(name, payload)| fits(name, *payload)));
        let asked: Vec<&Ask> = view.asks.values().filter(|a| fits(&a.name, a.payload)).collect();
        let refused = |a: &&Ask| matches!(a.answer, Some((_, Answer::NotDone)));
        if undoes || owed || asked.iter().any(|a| !refused(a)) {
            continue;
        }
        return Err(match asked.is_empty() {
            true => format!("nobody asked for {:?} as it is stored", job.name),
            false => format!("{:?} was answered \"not done\", and is there", job.name),
        });
    }
    match view.runs.iter().find(|r| view.job(r.job).is_none()) {
        Some(run) => Err(format!("a handler began for job {}, which is not there", run.job)),
        None => Ok(view.jobs.len() as u64),
    }
}

/// One job per key while its memory lives, however it ended.
///
/// Legal: `run_again` makes one more for every time somebody asked for it; after the time for which the kind remembers an intent it is a
/// new one.
pub(super) fn i3(view: &View<'_>) -> Result<u64, String> {
    let mut ids: BTreeMap<&Name, BTreeSet<JobId>> = BTreeMap::new();
    for job in view.jobs.iter().filter(|j| j.undoes.is_none()) {
        ids.entry(&job.name).or_default().insert(job.id);
    }
    for (id, ask, _) in stored(view) {
        ids.entry(&ask.name).or_default().insert(id);
    }
    for (name, ids) in &ids {
        let again =
            |a: &&Ask| a.name == **name && a.due == Due::Again && !matches!(a.answer, Some((_, Answer::NotDone)));
        let again = view.asks.values().filter(again).count();
        if ids.len() > 1 + again && !view.may_have_passed(view.rules(name).remember, 0, view.end()) {
            return Err(format!("{name:?} has the jobs {ids:?}, and was run again {again} times"));
        }
    }
    let mut looked_at = ids.len() as u64;
    for ask in view.asks.values() {
        if let Some((_, Answer::Existing { id, .. })) = ask.answer {
            looked_at += 1;
            if !ids.get(&ask.name).is_some_and(|ids| ids.contains(&id)) {
                return Err(format!("{:?} was said to exist as job {id}, which is another one or none", ask.name));
            }
        }
    }
    Ok(looked_at)
}

/// The same key with another payload is reported, and changes nothing.
pub(super) fn i4(view: &View<'_>) -> Result<u64, String> {
    let mut payloads: BTreeMap<JobId, u64> = view.kept().map(|j| (j.id, j.payload)).collect();
    for (id, ask, _) in stored(view) {
        if *payloads.entry(id).or_insert(ask.payload) != ask.payload {
            return Err(format!("the payload of job {id} is another one than was acknowledged"));
        }
    }
    let mut looked_at = 0;
    for ask in view.asks.values() {
        let Some((_, Answer::Existing { id, differs })) = ask.answer else { continue };
        let Some(payload) = payloads.get(&id) else { continue };
        looked_at += 1;
        if differs != (*payload != ask.payload) {
            return Err(format!("{:?} exists as job {id}: the caller was told differs = {differs}", ask.name));
        }
    }
    Ok(looked_at)
}

/// The app's row, follow-up jobs and messages of one transaction are all there or all absent.
///
/// Of transactions with the same row the follow-ups are the same: one that committed is enough.
pub(super) fn i5(view: &View<'_>) -> Result<u64, String> {
    let deals = deals(view);
    let rows = rows(view, &deals)?;
    let messages: BTreeSet<&str> = view
        .events()
        .filter_map(|(_, e)| if let What::Topic { posted, .. } = &e.what { Some(posted) } else { None })
        .flatten()
        .map(|p| p.id.as_str())
        .collect();
    for deal in &deals {
        let row = rows.get(deal.row).is_some_and(|n| *n > 0);
        for (name, _) in deal.jobs {
            if view.jobs.iter().any(|j| j.name == *name) != row {
                return Err(format!("half of a transaction: row {} {row}, job {name:?} {}", deal.row, !row));
            }
        }
        for id in deal.messages {
            if messages.contains(id.as_str()) != row {
                return Err(format!("half of a transaction: row {} {row}, message {id} {}", deal.row, !row));
            }
        }
    }
    Ok(deals.len() as u64)
}

fn rows<'a>(view: &View<'a>, deals: &[Deal<'_>]) -> Result<&'a BTreeMap<String, u64>, String> {
    static NONE: BTreeMap<String, u64> = BTreeMap::new();
    let last = view.events().filter_map(|(_, e)| if let What::Rows(rows) = &e.what { Some(rows) } else { None }).last();
    match last {
        Some(rows) => Ok(rows),
        None if deals.is_empty() => Ok(&NONE),
        None => Err("badly taken down: transactions, and no rows at the end".into()),
    }
}

/// Nobody was told anything that rests on rows which did not become durable, and a request is applied at most once across a failed
/// commit and a heal.
///
/// Legal: a transaction without an answer was done once or not at all. An act of a person that was acknowledged is kept in the job's
/// history, once for every time it was asked for; of a job whose rows are pruned nothing is known.
pub(super) fn i30(view: &View<'_>) -> Result<u64, String> {
    let deals = deals(view);
    let rows = rows(view, &deals)?;
    let keys: BTreeSet<&str> = deals.iter().map(|d| d.row).collect();
    for key in &keys {
        let of = |done: Option<bool>| deals.iter().filter(|d| d.row == *key && d.done == done).count() as u64;
        let (yes, unknown) = (of(Some(true)), of(None));
        let once = deals.iter().any(|d| d.row == *key && d.once);
        let (least, most) = if once { (yes.min(1), (yes + unknown).min(1)) } else { (yes, yes + unknown) };
        let n = rows.get(*key).copied().unwrap_or(0);
        if n < least {
            return Err(format!("row {key} was acknowledged {least} times and counts {n}"));
        }
        if n > most {
            return Err(format!("row {key} was done at most {most} times and counts {n}"));
        }
    }
    if let Some(row) = rows.keys().find(|row| !keys.contains(row.as_str())) {
        return Err(format!("nobody asked for the row {row}"));
    }
    for job in view.kept() {
        acts(view, job)?;
    }
    Ok(keys.len() as u64 + view.acts.len() as u64)
}

fn acts(view: &View<'_>, job: &FinalJob) -> Result<(), String> {
    let by_people = |a: &&super::view::Act| a.job == Some(job.id) && matches!(a.deed, Deed::Decide(_) | Deed::Restore);
    let of = |done| view.acts.iter().filter(by_people).filter(|a| a.done == done && a.at > view.copied).count();
    let (least, most) = (of(Some(true)), of(Some(true)) + of(None));
    let is_act = |e: &&Entry| matches!(e, Entry::Decision { .. } | Entry::Proposed { .. } | Entry::Restored { .. });
    let kept = job.history.iter().filter(is_act).count();
    // An older copy keeps acts of before it, of which some may be forgotten.
    if kept < least || (kept > most && view.copied == 0) {
        return Err(format!("{least} to {most} acts of people about job {} were done, {kept} are kept", job.id));
    }
    Ok(())
}
