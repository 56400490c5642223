//! One life of the app of the crash suites: recorded on a disk that keeps every operation, cut off at one of them, looked at and
//! driven to its end by the next process. Used by the sweep and by the fuzzer's lives.

use super::crash_oracle::{check, effect_ids, ended, never_again, rested};
use super::crash_scripts::{Script, secs};
use super::crash_world::{Caller, Facts, Note, Process, Told, Work, World, app};
use super::oracle::{Letters, i18, i18_of};
use onceward::clock::ManualClock;
use onceward::model::time::Wall;
use onceward::store::disk::{CrashPoint, Event};
use onceward::store::{Place, Store, StoreOptions};
use onceward::testkit::SimDisk;
use onceward::{Job, JobId, Jobs};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// One recorded life.
pub(crate) struct Life {
    pub(crate) start: Vec<u8>,
    pub(crate) start_sidecar: Vec<u8>,
    pub(crate) log: Vec<Event>,
    pub(crate) told: Vec<Told>,
    /// Events of the history that came before it.
    pub(crate) past: usize,
}

/// How a life ends.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    Kill,
    Power,
}

impl Life {
    pub(crate) fn record(script: &Script) -> Self {
        let disk = SimDisk::new();
        disk.record();
        let world = World::new(&[], Some(disk.clone()));
        let process = Process::first();
        let jobs = app(&world, Arc::new(disk.clone()), &process).start().unwrap();
        let caller = Caller::new(&jobs, &world, &process);
        (script.run)(&caller);
        let errors = caller.errors.into_inner().unwrap();
        assert!(errors.is_empty(), "{}: {errors:?}", script.name);
        jobs.shutdown(secs(5)).unwrap();
        Self { start: Vec::new(), start_sidecar: Vec::new(), log: disk.log(), told: world.told(), past: 0 }
    }
    /// The history up to a crash point.
    pub(crate) fn told_at(&self, point: &CrashPoint<'_>) -> &[Told] {
        let n = point.mark.map_or(self.past, |n| usize::try_from(n).unwrap() + 1);
        &self.told[..n]
    }
}

/// An image at a crash point, and what is left of the sidecar.
pub(crate) fn left_behind(point: &CrashPoint<'_>, how: End, seed: u64) -> SimDisk {
    if !point.exists {
        return SimDisk::new();
    }
    match how {
        End::Kill => SimDisk::from_image(point.image(0), point.sidecar.to_vec()),
        End::Power => SimDisk::from_image(point.image(seed), sidecar_after_power_cut(point, seed)),
    }
}

/// The sidecar is written without fsync: each of its slots is what it was at some time. It is created with the file, so its header
/// is there.
fn sidecar_after_power_cut(point: &CrashPoint<'_>, seed: u64) -> Vec<u8> {
    const SLOT: usize = 64;
    let mut rng = fastrand::Rng::with_seed(seed ^ point.index as u64);
    let versions: Vec<&[u8]> =
        point.older_sidecars.iter().copied().filter(|v| v.len() >= SLOT).chain([point.sidecar]).collect();
    if point.sidecar.len() < SLOT {
        return point.sidecar.to_vec();
    }
    let mut out = Vec::new();
    for at in (0..rng.choice(&versions).map_or(0, |v| v.len())).step_by(SLOT) {
        let slots: Vec<&[u8]> = versions.iter().filter_map(|v| v.get(at..at + SLOT)).collect();
        out.extend_from_slice(rng.choice(slots).unwrap_or(&[0; SLOT]));
    }
    out
}

/// A process after a crash. Its stopwatch starts later than every one before it: calls that ended are remembered for the whole
/// process that runs these tests, and must not seem to end in the future.
pub(crate) fn next_process(facts: &Facts, stopwatch: &AtomicU64, how: End, generation: u64) -> Process {
    let origin = stopwatch.fetch_add(7_200_000, Ordering::Relaxed);
    let clock = ManualClock::at(Wall(facts.time - origin));
    clock.advance(Duration::from_millis(origin));
    let boot = if how == End::Kill { 1 } else { u8::try_from(generation + 1).unwrap() };
    Process { clock, boot, nonce: generation + 1, workers: 2 }
}

/// Opens the store alone on the image and compares it with the history.
pub(crate) fn look_at(disk: &SimDisk, facts: &Facts) -> Result<(), String> {
    let clock = ManualClock::at(Wall(facts.time));
    let mut options = StoreOptions::new(Place::Disk(Arc::new(disk.clone())), Arc::new(clock));
    options.cache_bytes = 1 << 20;
    let (store, opened) = Store::open(options).map_err(|e| format!("it does not open: {e}"))?;
    check(&store, &opened, facts)?;
    store.close().map_err(|e| format!("it does not close: {e}"))
}

/// Starts the library on the image and drives it until nothing happens by itself any more: for some minutes, then for so many hours.
pub(crate) fn drive(
    disk: &SimDisk,
    world: &Arc<World>,
    process: &Process,
    past: &Facts,
    hours: usize,
) -> Result<(), String> {
    let mut options = StoreOptions::new(Place::Disk(Arc::new(disk.fork())), Arc::new(process.clock.clone()));
    options.cache_bytes = 1 << 20;
    let before = Store::open(options).and_then(|(store, _)| {
        let letters = store.read(|v| v.depth())?.letters;
        store.close()?;
        Ok(letters)
    });
    let before = before.map_err(|e| format!("it does not open: {e}"))?;
    let jobs = app(world, Arc::new(disk.clone()), process).start().map_err(|e| format!("it does not start: {e}"))?;
    let caller = Caller::new(&jobs, world, process);
    caller.idle();
    for wait in std::iter::repeat_n(secs(61), 12).chain(std::iter::repeat_n(secs(3_600), hours)) {
        if nothing_waits(&jobs)? {
            break;
        }
        caller.pass(wait);
    }
    let paused = !jobs.pauses().is_empty();
    if paused {
        rested(past, &Facts::of(&world.told()))?;
        caller.pause(false);
        caller.idle();
    }
    // Who asks again is told that it exists.
    for (name, id) in &past.stored {
        let told = match name.0 {
            Work::KIND => caller.enqueue(&Work::new(&name.1, &[])),
            Note::KIND => caller.enqueue(&Note { key: name.1.clone() }),
            _ => continue,
        };
        if told.is_none_or(|t| t.is_new() || t.id() != *id) {
            return Err(format!("{name:?} was enqueued again: {told:?}"));
        }
    }
    let errors = std::mem::take(&mut *caller.errors.lock().unwrap());
    if !errors.is_empty() {
        return Err(format!("calls failed on a healthy disk: {errors:?}"));
    }
    let seen = jobs.snapshot().map_err(|e| e.to_string())?.all;
    let after = jobs.dead_letters().map_err(|e| e.to_string())?;
    i18(Letters {
        before,
        opened: seen.letters_opened_total,
        closed: seen.letters_closed_total,
        after: after.len() as u64,
    })?;
    let listed: Vec<(JobId, Vec<String>)> =
        after.iter().map(|l| (l.job(), l.ledger().iter().map(|line| line.id.to_string()).collect())).collect();
    jobs.shutdown(secs(5)).map_err(|e| format!("it does not shut down: {e}"))?;
    let facts = Facts::of(&world.told());
    never_again(past, &facts)?;
    let clock = process.clock.clone();
    let mut options = StoreOptions::new(Place::Disk(Arc::new(disk.clone())), Arc::new(clock));
    options.cache_bytes = 1 << 20;
    let (store, opened) = Store::open(options).map_err(|e| format!("it does not open after its end: {e}"))?;
    let whole = check(&store, &opened, &facts)?;
    for (job, ids) in listed {
        let found = whole.jobs.values().find(|f| f.id == job).ok_or_else(|| format!("a letter of no job {job}"))?;
        i18_of(true, found.letter.is_some(), &ids, &effect_ids(&found.effects))?;
    }
    ended(&whole, &facts)
}

/// Nothing is going to happen by itself, now or later.
fn nothing_waits(jobs: &Jobs) -> Result<bool, String> {
    let depths = jobs.snapshot().map_err(|e| e.to_string())?.gauges.queue_depth;
    let going_on = |words: &std::collections::BTreeMap<&str, u64>| {
        ["ready", "delayed", "running", "waiting"].iter().filter_map(|w| words.get(w)).sum::<u64>()
    };
    Ok(depths.values().map(going_on).sum::<u64>() == 0)
}
