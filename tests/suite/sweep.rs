//! The crash sweep: scripts run against the whole library on a disk that records every write, change of length, sync and
//! acknowledgement; then the power is cut, or the process killed, at every single one of them, and the file is opened again.
//!
//! Every image is opened and compared row by row with what callers had been told. At every crash point the library is also
//! started on an image and driven to the end, and for a part of them it dies again on the way.
//! `ONCEWARD_SWEEP_IMAGES` asks for more images than the ones of every run.

use super::crash_life::{End, Life, drive, left_behind, look_at, next_process};
use super::crash_scripts::{SCRIPTS, Script};
use super::crash_world::{Facts, Told, World};
use onceward::store::disk::{CrashPoint, Event, crash_points};
use onceward::testkit::DiskFactory;
use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

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
        if let Err(why) = drive(&disk, &world, &process, facts, 0) {
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
                if let Err(why) = drive(&disk, &world, &process, &facts.1, 0) {
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
