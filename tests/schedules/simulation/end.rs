//! How a simulated world ends: what its file says, for the judge.

use super::app::{self, Plain, TOPIC};
use super::world::{digest, rows};
use super::{PATIENCE, WORKERS, World};
use crate::history::{FinalEffect, FinalJob, FinalLetter, History, What};
use crate::oracle::Posted;
use onceward::model::job::JobState;
use onceward::store::{Place, Store, StoreOptions, View};
use onceward::{JobId, Jobs, State, Wall};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Looks at everything, stops the queue, and reads its file.
pub(super) fn of(world: &World) -> (History, Vec<FinalJob>) {
    let letters = letters(&world.jobs);
    let due = |job| world.jobs.due(job).ok().flatten().map(|at| Wall::from_system(at).0);
    topic(world);
    world.life.say(What::Rows(rows(&world.jobs)));
    let store_disk = world.disk.clone();
    let ids: Vec<JobId> = (1..20_000).map(JobId::from_number).collect();
    let states: BTreeMap<JobId, State> =
        ids.iter().filter_map(|id| world.jobs.state(*id).ok().map(|s| (*id, s))).collect();
    let dues: BTreeMap<JobId, Option<u64>> = states.keys().map(|id| (*id, due(*id))).collect();
    let pruned = pruned(world, &states);
    world.jobs.clone().shutdown(PATIENCE).unwrap();
    world.life.say(What::Stopped);
    let options = StoreOptions::new(Place::Disk(Arc::new(store_disk.fork())), Arc::new(world.clock.clone()));
    let (store, _) = Store::open(options).unwrap();
    let mut jobs: Vec<FinalJob> = store
        .read(|v| Ok(states.iter().filter_map(|(id, state)| job(v, *id, *state, dues[id], letters.get(id))).collect()))
        .unwrap();
    store.close().unwrap();
    jobs.extend(pruned);
    let history = History {
        kinds: app::rules(),
        liars: BTreeSet::new(),
        workers: WORKERS,
        calm: true,
        events: world.recorder.events(),
    };
    (history, jobs)
}

/// Nothing is left but jobs that wait for a date which is far away: the calendar had been set ahead when somebody asked for it.
pub(super) fn only_dates(world: &World) -> bool {
    let known = world.known.lock().unwrap().clone();
    let far = world.life.now().wall.0.saturating_add(400 * super::DAY_MS);
    let waits = |id: &JobId| world.jobs.state(*id).is_ok_and(|s| s == State::Delayed);
    let dates = known.into_iter().filter(waits).map(|id| world.jobs.due(id).unwrap().map(|at| Wall::from_system(at).0));
    let (far, near): (Vec<_>, Vec<_>) = dates.partition(|due| due.is_some_and(|due| due > far));
    let gauges = world.jobs.snapshot().unwrap().gauges;
    let of = |word| gauges.queue_depth.values().filter_map(|words| words.get(word)).sum::<u64>();
    let others = ["ready", "running", "waiting"].into_iter().map(of).sum::<u64>();
    near.is_empty()
        && others == 0
        && of("delayed") == far.len() as u64
        && gauges.outbox.values().all(|t| t.depth == t.stuck)
}

/// What goes on and on, for whoever has to find out why.
pub(super) fn open_ends(world: &World) -> String {
    let known = world.known.lock().unwrap().clone();
    let jobs = known.into_iter().filter_map(|id| Some((id, world.jobs.state(id).ok()?)));
    let open = jobs
        .filter(|(_, s)| matches!(s, State::Ready | State::Delayed | State::Running | State::Waiting | State::Paused));
    let told = open.map(|(id, s)| format!("\n{id} {s:?}: {:#?}", world.jobs.history(id).unwrap()));
    let topics = world.jobs.outbox().topics().unwrap();
    format!("{:?}\n{topics:?}{}", world.jobs.snapshot().unwrap().gauges, told.collect::<String>())
}

/// Jobs of which only the intent is remembered.
fn pruned(world: &World, there: &BTreeMap<JobId, State>) -> Vec<FinalJob> {
    let mut asked: BTreeSet<String> = BTreeSet::new();
    for event in world.recorder.events() {
        match event.what {
            What::Asking { name: ("plain", key), .. } => drop(asked.insert(key)),
            What::Transacting { jobs, .. } => asked.extend(jobs.into_iter().map(|((_, key), _)| key)),
            _ => {}
        }
    }
    let of = |key: String| {
        let id = world.jobs.find::<Plain>(&key.as_str().into()).unwrap()?;
        (!there.contains_key(&id)).then(|| FinalJob {
            id,
            name: ("plain", key),
            payload: 0,
            undoes: None,
            state: State::Remembered,
            due: None,
            deadline: None,
            attempts: 0,
            claims: 0,
            given_back: 0,
            granted: 0,
            last_token: 0,
            effects: Vec::new(),
            letter: None,
            memos: Vec::new(),
            history: Vec::new(),
        })
    };
    asked.into_iter().filter_map(of).collect()
}

fn letters(jobs: &Jobs) -> BTreeMap<JobId, FinalLetter> {
    let of = |l: onceward::DeadLetter| {
        let lists = l.ledger().iter().map(|line| line.id.to_string()).collect();
        (l.job(), FinalLetter { lists, questions: l.questions().len() })
    };
    jobs.dead_letters().unwrap().into_iter().map(of).collect()
}

fn job(v: &View<'_>, id: JobId, state: State, due: Option<u64>, letter: Option<&FinalLetter>) -> Option<FinalJob> {
    let (row, record) = (v.job(id).unwrap()?, v.record(id).unwrap()?);
    let kinds = v.kinds().unwrap();
    let kind = kinds.iter().find(|(k, _)| *k == row.kind)?.1.clone();
    let name = *app::rules().keys().find(|k| **k == kind)?;
    let effect = |e: onceward::model::effect::EffectRecord| FinalEffect {
        effect: e.id.to_string(),
        state: e.state,
        key: e.key.as_str().to_owned(),
        generation: e.generation,
        calls: e.calls,
        reference: e.reference,
        undoing: e.undoing,
        conflict: e.conflict,
    };
    // A pause shows in the state, and is none of the job's.
    let stored = match (&record.state, state) {
        (JobState::Ready { .. }, State::Paused) => State::Ready,
        (JobState::Delayed { .. }, State::Paused) => State::Delayed,
        (JobState::Waiting { .. }, State::Paused) => State::Waiting,
        (_, state) => state,
    };
    Some(FinalJob {
        id,
        name: (name, row.key.to_string()),
        payload: digest(row.payload),
        undoes: row.undoes.map(|u| (u.job, u.effect.to_string())),
        state: stored,
        due,
        deadline: record.deadline.map(|d| d.0),
        attempts: record.attempts,
        claims: record.claims,
        given_back: u64::from(record.given_back.sum()),
        granted: record.granted,
        last_token: record.last_token.number(),
        effects: v.effects(id).unwrap().into_iter().map(effect).collect(),
        letter: letter.cloned(),
        memos: v.memos(id).unwrap().into_iter().map(|m| (m.name, m.value)).collect(),
        history: v.journal(id).unwrap(),
    })
}

/// The messages, as the file has them.
fn topic(world: &World) {
    let outbox = world.jobs.outbox();
    let Some(state) = outbox.topics().unwrap().into_iter().find(|t| t.topic == TOPIC) else { return };
    let owed = world.recorder.events().into_iter().flat_map(|e| match e.what {
        What::Transacting { messages, .. } => messages,
        _ => Vec::new(),
    });
    let mut ids: Vec<String> = owed.collect();
    ids.sort();
    ids.dedup();
    let found = ids.iter().filter_map(|id| outbox.find(TOPIC, id).unwrap());
    let posted = found.map(|m| Posted {
        id: m.id,
        key: m.key,
        number: m.number,
        marks: m.marks,
        again: (0, 0),
        ended: m.ended.map(|e| e.0),
        may_wait: m.stuck.is_some() || m.blocks || state.stuck > 0,
        overtaken: false,
    });
    world.life.say(What::Topic { topic: TOPIC, posted: posted.collect(), last: state.last_number });
}
