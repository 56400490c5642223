//! `jobs.snapshot()`: what was counted, together with what the store counts now.

use super::alerts::Alarms;
use super::tell::standing;
use crate::error::Error;
use crate::handler::shared::Shared;
use crate::model::id::JobId;
use crate::model::job::State;
use crate::observe::{AlertRule, Gauges, Observer, Snapshot};
use crate::store::StoreError;
use std::collections::HashMap;

const PAGE: usize = 4_096;

/// All counters and gauges at one instant.
pub(crate) fn take(observer: &Observer, shared: &Shared, alarms: Option<&Alarms>) -> Result<Snapshot, Error> {
    let now = shared.now();
    let mut gauges = shared.store.read(|v| {
        let mut gauges = Gauges::default();
        for (id, name) in v.kinds()? {
            let queue = shared.queue_of(&name);
            let paused = shared.paused(&name);
            let n = v.ready_count(id)?;
            gauges.depth(queue, if paused { State::Paused } else { State::Ready }, n);
            if shared.registry.kind(&name).is_none() && n > 0 {
                gauges.unknown_kinds.insert(name.clone());
            }
            if let Some((_, _, first)) = v.ready(id, 1)?.first()
                && let Some(row) = StoreError::readable(v.job(*first))?
            {
                gauges.oldest(queue, row.enqueued, now.wall);
            }
        }
        gauges.dead_letters = v.letter_count()?;
        Ok(gauges)
    })?;
    topics(shared, &mut gauges)?;
    waiting(shared, &mut gauges)?;
    lettered(shared, &mut gauges)?;
    running(shared, &mut gauges)?;
    compensating(shared, &mut gauges)?;
    alerts(shared, alarms, &mut gauges)?;
    let pauses = shared.pauses.read();
    gauges.paused = pauses.count() > 0;
    gauges.paused_kinds = pauses.kinds.keys().cloned().collect();
    gauges.paused_all = pauses.all.is_some();
    gauges.paused_topics = pauses.topics.keys().cloned().collect();
    drop(pauses);
    gauges.store_size_bytes = shared.store.size_bytes();
    gauges.disk = shared.store.room().as_str();
    Ok(observer.counters().snapshot(now.wall, gauges))
}

/// What the alert rules say, and what a callback still has to hear.
fn alerts(shared: &Shared, alarms: Option<&Alarms>, gauges: &mut Gauges) -> Result<(), Error> {
    gauges.alerts = AlertRule::ALL.iter().map(|rule| (rule.as_str(), 0)).collect();
    for said in shared.store.read(standing)?.iter().filter(|said| !said.over) {
        *gauges.alerts.entry(said.firing.rule.as_str()).or_default() += 1;
    }
    if let Some(teller) = alarms.and_then(|a| a.teller.as_ref()) {
        let (notices, hangs) = teller.state(shared.now().mono);
        let letters = shared.store.read(|v| v.untold_count())?;
        gauges.alerts_waiting = letters.saturating_add(u64::try_from(notices).unwrap_or(u64::MAX));
        gauges.alert_callback_hangs_seconds = hangs.map(|d| d.as_secs_f64());
    }
    Ok(())
}

/// What waits in the outbox, a read for each topic.
fn topics(shared: &Shared, gauges: &mut Gauges) -> Result<(), Error> {
    let now = shared.now();
    for (topic, _) in shared.store.read(|v| v.topics())? {
        let depth = shared.store.read(|v| v.topic_depth(&topic))?;
        gauges.topic(&topic, (depth.waiting, depth.stuck, depth.aside), depth.oldest, now.wall);
    }
    Ok(())
}

/// Claims as the store has them: also those on their way to a handler, and not those of handlers that were fenced.
fn running(shared: &Shared, gauges: &mut Gauges) -> Result<(), Error> {
    let kinds = shared.store.read(|v| {
        let claims = v.running()?;
        claims
            .into_iter()
            .map(|(id, _)| Ok(StoreError::readable(v.record(id))?.map(|r| r.kind)))
            .collect::<Result<Vec<_>, _>>()
    })?;
    for kind in kinds.into_iter().flatten() {
        gauges.depth(shared.queue_of(&shared.kind_name(kind)), State::Running, 1);
    }
    Ok(())
}

/// Jobs whose undo jobs are not all over.
fn compensating(shared: &Shared, gauges: &mut Gauges) -> Result<(), Error> {
    let kinds = shared.store.read(|v| {
        let ids = v.compensating()?;
        ids.into_iter().map(|id| Ok(StoreError::readable(v.record(id))?.map(|r| r.kind))).collect::<Result<Vec<_>, _>>()
    })?;
    for kind in kinds.into_iter().flatten() {
        gauges.depth(shared.queue_of(&shared.kind_name(kind)), State::Compensating, 1);
    }
    Ok(())
}

/// Delayed and waiting jobs share one index; counted a page at a time, because a long read pins old pages.
fn waiting(shared: &Shared, gauges: &mut Gauges) -> Result<(), Error> {
    let mut counts: HashMap<(&str, State), u64> = HashMap::new();
    let mut after = (crate::model::time::Wall(0), JobId(0));
    loop {
        let page = shared.store.read(|v| {
            let mut out = Vec::new();
            for (due, id) in v.timers(after, PAGE)? {
                let found = StoreError::readable(v.record(id))?;
                out.push((due, id, found.map(|r| (r.kind, State::from(&r.state)))));
            }
            Ok(out)
        })?;
        for (due, id, found) in &page {
            after = (*due, *id);
            if let Some((kind, state)) = found {
                let name = shared.kind_name(*kind);
                *counts.entry((shared.queue_of(&name), *state)).or_default() += 1;
            }
        }
        if page.len() < PAGE {
            break;
        }
    }
    for ((queue, state), n) in counts {
        gauges.depth(queue, state, n);
    }
    Ok(())
}

/// Letters, by what they wait for.
fn lettered(shared: &Shared, gauges: &mut Gauges) -> Result<(), Error> {
    let mut after = None;
    loop {
        let page = shared.store.read(|v| {
            let mut out = Vec::new();
            for id in v.letter_ids(after, PAGE)? {
                let found = StoreError::readable(v.record(id))?;
                out.push((id, found.map(|r| (r.kind, State::from(&r.state)))));
            }
            Ok(out)
        })?;
        for (_, found) in &page {
            if let Some((kind, state)) = found {
                gauges.depth(shared.queue_of(&shared.kind_name(*kind)), *state, 1);
            }
        }
        match page.last() {
            Some((last, _)) if page.len() == PAGE => after = Some(*last),
            Some(_) | None => return Ok(()),
        }
    }
}
