//! The crash sweep: scripts run against the whole library on a disk that records every write, change of length, sync and
//! acknowledgement; then the power is cut, or the process killed, at every single one of them, and the file is opened again.
//!
//! Every image is opened and compared row by row with what callers had been told. At every crash point the library is also
//! started on an image and driven to the end, and for a part of them it dies again on the way.
//! `ONCEWARD_SWEEP_IMAGES` asks for more images than the ones of every run.

mod scripts;

use super::crash_oracle::{check, effect_ids, ended};
use super::crash_world::{Caller, Facts, Note, Process, Told, Work, World, app};
use super::oracle::{Letters, i18, i18_of};
use onceward::clock::ManualClock;
use onceward::model::time::Wall;
use onceward::store::disk::{CrashPoint, Event, crash_points};
use onceward::store::{Place, Store, StoreOptions};
use onceward::testkit::{DiskFactory, SimDisk};
use onceward::{Job, JobId, Jobs};
use scripts::{SCRIPTS, Script, secs};
use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

/// Images of every run.
const IMAGES: u64 = 50_000;
/// Unsynced changes at a crash point from which on it has any number of images.
const RICH: usize = 2;
/// Every how many crash points the recovery is recorded and dies again.
const SECOND: usize = 61;

/// What was done.
#[derive(Default)]
struct Counts {
    operations: AtomicU64,
    points: AtomicU64,
    images: AtomicU64,
    drives: AtomicU64,
    second_points: AtomicU64,
    second_images: AtomicU64,
    calls: AtomicU64,
}

fn add(to: &AtomicU64, n: u64) -> u64 {
    to.fetch_add(n, Ordering::Relaxed)
}

/// One recorded life.
struct Life {
    start: Vec<u8>,
    start_sidecar: Vec<u8>,
    log: Vec<Event>,
    told: Vec<Told>,
    /// Events of the history that came before it.
    past: usize,
}

/// How a life ends.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Kill,
    Power,
}

impl Life {
    fn record(script: &Script) -> Self {
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
    fn told_at(&self, point: &CrashPoint<'_>) -> &[Told] {
        let n = point.mark.map_or(self.past, |n| usize::try_from(n).unwrap() + 1);
        &self.told[..n]
    }
}

/// An image at a crash point, and what is left of the sidecar.
fn left_behind(point: &CrashPoint<'_>, how: End, seed: u64) -> SimDisk {
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

/// The image without its unchanged parts, so that equal images are counted once.
fn fingerprint(point: &CrashPoint<'_>, image: &[u8]) -> u64 {
    use onceward::store::disk::Change;
    let mut hash = DefaultHasher::new();
    image.len().hash(&mut hash);
    for change in point.pending {
        if let Change::Write(at, data) = change {
            let at = usize::try_from(*at).unwrap();
            image.get(at..(at + data.len()).min(image.len())).hash(&mut hash);
        }
    }
    hash.finish()
}

/// A process after a crash. Its stopwatch starts later than every one before it: calls that ended are remembered for the whole
/// process that runs these tests, and must not seem to end in the future.
fn next_process(facts: &Facts, stopwatch: &AtomicU64, how: End, generation: u64) -> Process {
    let origin = stopwatch.fetch_add(7_200_000, Ordering::Relaxed);
    let clock = ManualClock::at(Wall(facts.time - origin));
    clock.advance(Duration::from_millis(origin));
    let boot = if how == End::Kill { 1 } else { u8::try_from(generation + 1).unwrap() };
    Process { clock, boot, nonce: generation + 1, workers: 2 }
}

/// Opens the store alone on the image and compares it with the history.
fn look_at(disk: &SimDisk, facts: &Facts) -> Result<(), String> {
    let clock = ManualClock::at(Wall(facts.time));
    let mut options = StoreOptions::new(Place::Disk(Arc::new(disk.clone())), Arc::new(clock));
    options.cache_bytes = 1 << 20;
    let (store, opened) = Store::open(options).map_err(|e| format!("it does not open: {e}"))?;
    check(&store, &opened, facts)?;
    store.close().map_err(|e| format!("it does not close: {e}"))
}

/// Starts the library on the image and drives it until nothing happens by itself any more.
fn drive(disk: &SimDisk, world: &Arc<World>, process: &Process, past: &Facts) -> Result<(), String> {
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
    for _ in 0..12 {
        if nothing_waits(&jobs)? {
            break;
        }
        caller.pass(secs(61));
    }
    let paused = !jobs.pauses().is_empty();
    if paused {
        let began = Facts::of(&world.told()).began;
        let before = &past.began;
        if began.iter().any(|(n, t)| n.0 == Note::KIND && before.get(n).map_or(0, Vec::len) < t.len()) {
            return Err("a paused kind was run".to_owned());
        }
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
    // A confirmed effect is never asked for again.
    for (job, effect) in past.confirmed.keys() {
        let calls = |f: &Facts| f.calls.iter().filter(|c| c.effect == *effect && c.order == job.1).count();
        if calls(&facts) != calls(past) {
            return Err(format!("{effect} of {job:?} was confirmed and was called again"));
        }
    }
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

struct Sweep<'a> {
    script: &'a Script,
    counts: &'a Counts,
    stopwatch: AtomicU64,
    /// Images at a point with unsynced writes.
    depth: u64,
}

impl Sweep<'_> {
    fn fail(&self, life: &Life, point: &CrashPoint<'_>, what: &str, why: &str) -> ! {
        let around = life.log.iter().enumerate().skip(point.index.saturating_sub(4)).take(6);
        let around: Vec<String> = around
            .map(|(n, e)| match e {
                Event::Mark(m) => format!("{n}: {:?}", life.told.get(usize::try_from(*m).unwrap())),
                Event::Change(_) | Event::Sync | Event::FailedSync(_) | Event::Install(_) | Event::Sidecar(_) => {
                    format!("{n}: {:.60}", format!("{e:?}"))
                }
            })
            .collect();
        panic!("{}, crash after {} operations, {what}: {why}\n{}", self.script.name, point.index, around.join("\n"));
    }

    /// Every crash point of a life: images, and one drive for each of both ways to die.
    fn first(&self, life: &Life) {
        let mut indices = HashSet::new();
        let mut facts = (usize::MAX, Facts::default());
        crash_points(&life.start, &life.start_sidecar, &life.log, |point| {
            assert!(indices.insert(point.index));
            let told = life.told_at(point);
            if facts.0 != told.len() {
                facts = (told.len(), Facts::of(told));
            }
            add(&self.counts.images, self.images(life, point, &facts.1, 0, self.depth));
            for how in [End::Kill, End::Power] {
                let record = how == End::Kill && point.index.is_multiple_of(SECOND);
                self.drive_on(life, point, told, &facts.1, how, record);
            }
        });
        add(&self.counts.points, indices.len() as u64);
        add(&self.counts.operations, life.log.len() as u64);
    }

    fn images(&self, life: &Life, point: &CrashPoint<'_>, facts: &Facts, first_seed: u64, depth: u64) -> u64 {
        let wanted = if point.pending.is_empty() || !point.exists { 1 } else { depth };
        let (mut seen, mut n) = (HashSet::new(), 0);
        for seed in first_seed..first_seed + wanted * 4 {
            let disk = left_behind(point, End::Power, seed);
            if !seen.insert(fingerprint(point, &disk.bytes())) {
                continue;
            }
            if let Err(why) = look_at(&disk, facts) {
                self.fail(life, point, &format!("power cut, seed {seed}"), &why);
            }
            n += 1;
            if n == wanted {
                break;
            }
        }
        n
    }

    fn drive_on(&self, life: &Life, point: &CrashPoint<'_>, told: &[Told], facts: &Facts, how: End, record: bool) {
        let disk = left_behind(point, how, point.index as u64);
        let (start, start_sidecar) = (disk.bytes(), disk.sidecar().lock().unwrap().clone());
        if record {
            disk.record();
        }
        let world = World::new(told, record.then(|| disk.clone()));
        let process = next_process(facts, &self.stopwatch, how, 1);
        if let Err(why) = drive(&disk, &world, &process, facts) {
            self.fail(life, point, if how == End::Kill { "kill" } else { "power cut" }, &why);
        }
        add(&self.counts.drives, 1);
        add(&self.counts.calls, Facts::of(&world.told()).calls.len() as u64);
        if record {
            let again = Life { start, start_sidecar, log: disk.log(), told: world.told(), past: told.len() };
            self.second(&again, point.index);
        }
    }

    /// A life that began with a recovery dies again: an image at every point, a drive at some.
    fn second(&self, life: &Life, offset: usize) {
        let mut facts = (usize::MAX, Facts::default());
        crash_points(&life.start, &life.start_sidecar, &life.log, |point| {
            let told = life.told_at(point);
            if facts.0 != told.len() {
                facts = (told.len(), Facts::of(told));
            }
            add(&self.counts.second_points, 1);
            let seed = 2 + point.index as u64;
            add(&self.counts.second_images, self.images(life, point, &facts.1, seed, 1));
            if (point.index + offset).is_multiple_of(16) {
                let how = if point.index % 32 < 16 { End::Kill } else { End::Power };
                let disk = left_behind(point, how, point.index as u64);
                let world = World::new(told, None);
                let process = next_process(&facts.1, &self.stopwatch, how, 2);
                if let Err(why) = drive(&disk, &world, &process, &facts.1) {
                    self.fail(life, point, "second crash", &why);
                }
                add(&self.counts.drives, 1);
            }
        });
    }
}

/// A job is enqueued, charged, decided about, retried, forgotten, and the machine dies at any single moment of it, twice if it
/// must be: nothing that was acknowledged is lost, nothing appears that nobody asked for, nothing happens twice, and everything
/// ends or waits with a question.
#[test]
fn a_crash_at_any_operation_loses_nothing_and_repeats_nothing() {
    let wanted = std::env::var("ONCEWARD_SWEEP_IMAGES").ok().and_then(|n| n.parse().ok()).unwrap_or(IMAGES);
    let counts = Counts::default();
    let lives: Vec<(&Script, Life)> = SCRIPTS.iter().map(|s| (s, Life::record(s))).collect();
    for (script, life) in &lives {
        println!("{:>6} operations: {}", life.log.len(), script.name);
    }
    // Most images where most can be lost.
    let mut rich = 0;
    for (_, life) in &lives {
        crash_points(&life.start, &life.start_sidecar, &life.log, |p| rich += u64::from(p.pending.len() >= RICH));
    }
    // Equal images count once, and some points have few different ones: a third more is asked of the others.
    let depth = (wanted + wanted / 3).div_ceil(rich.max(1));
    let next = AtomicUsize::new(0);
    #[expect(clippy::disallowed_methods, reason = "two halves of the sweep side by side")]
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while let Some((script, life)) = lives.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let stopwatch = AtomicU64::new(200_000_000);
                    Sweep { script, counts: &counts, stopwatch, depth }.first(life);
                }
            });
        }
    });
    let Counts { operations, points, images, drives, second_points, second_images, calls } = counts;
    let [operations, points, images, drives, second_points, second_images, calls] =
        [operations, points, images, drives, second_points, second_images, calls].map(AtomicU64::into_inner);
    println!(
        "crash sweep: {} scripts, {operations} operations, {points} crash points, {images} images opened and compared \
         and {second_images} more after a second crash at {second_points} points of recoveries, {drives} lives driven to the end, \
         {calls} calls of providers",
        SCRIPTS.len()
    );
    assert_eq!(points, operations, "an operation without a crash");
    assert!(images >= wanted, "only {images} images of {wanted}");
    assert!(drives > 2 * points && second_images > 0 && second_points > 0 && calls > 0);
}
