//! Eight handlers are inside their effects when the disk begins to fail, at every operation of what comes then. Whether it works again
//! or the process dies there, each effect happens once or a person is asked about it, and nothing that was acknowledged is lost.

use crate::crash_life::{End, drive, look_at, next_process};
use crate::crash_world::{Caller, Do, Facts, Process, Told, Work, World, app};
use onceward::store::disk::{Counts, Fails, Fault, On};
use onceward::testkit::SimDisk;
use onceward::{JobId, Jobs, State};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const HANDLERS: usize = 8;
/// Effects of each.
const EFFECTS: usize = 2;
/// Power cuts beside each kill.
const CUTS: u64 = 2;
const PATIENCE: Duration = Duration::from_secs(60);

/// A key is repeated, a provider is asked, a person is asked: what a job has open when the disk dies, and what it begins later.
fn work(n: usize) -> Work {
    let kinds = [Do::Charge, Do::Reserve, Do::Wire];
    let (open, later) = (kinds[n % 3].clone(), kinds[(n + 1) % 3].clone());
    Work::new(&format!("late-{n}"), &[Do::Step, open, Do::Commit, later, Do::Finish])
}

/// A queue whose handlers all wait inside their first effect.
struct Scene {
    disk: SimDisk,
    world: Arc<World>,
    process: Process,
    jobs: Jobs,
    ids: Vec<JobId>,
}

impl Scene {
    fn set() -> Self {
        let (disk, world) = (SimDisk::new(), World::new(&[], None));
        let process = Process { workers: HANDLERS, ..Process::first() };
        let jobs = app(&world, Arc::new(disk.clone()), &process).start().unwrap();
        world.gate.shut();
        let caller = Caller::new(&jobs, &world, &process);
        let ids = (0..HANDLERS).map(|n| caller.enqueue(&work(n)).unwrap().id()).collect();
        world.gate.wait_for(HANDLERS);
        Self { disk, world, process, jobs, ids }
    }
    /// The handlers go on until the disk has failed, and has failed again when the queue tried to go on; `false` if they ended before.
    fn goes_on(&self, fault: Fault) -> bool {
        self.disk.fail(fault);
        self.world.gate.open();
        loop {
            if self.disk.counts().faults >= fault.times.min(2) {
                return true;
            }
            if self.world.told().iter().filter(|t| matches!(t, Told::Finished(_))).count() == HANDLERS {
                return false;
            }
            self.process.clock.advance(Duration::ZERO);
            std::thread::yield_now();
        }
    }
    /// What a death at this moment leaves: the disk, and what was told by then.
    fn left_behind(&self, how: End, seed: u64) -> (SimDisk, Vec<Told>) {
        loop {
            let told = self.world.told();
            let disk = match how {
                End::Kill => self.disk.fork(),
                End::Power => self.disk.fork_unpowered(seed),
            };
            if self.world.told().len() == told.len() {
                return (disk, told);
            }
        }
    }
    /// The disk works again: everything ends as if it had never failed.
    fn heals(self) -> Result<(), String> {
        self.disk.heal();
        while self.jobs.read(|_| ()).is_err() {
            self.process.clock.advance(Duration::from_millis(1));
            std::thread::yield_now();
        }
        for id in &self.ids {
            match self.jobs.wait(*id, PATIENCE) {
                Ok(State::Done) => {}
                other => return Err(format!("{id} is {other:?}: {:?}", self.jobs.history(*id))),
            }
        }
        let caller = Caller::new(&self.jobs, &self.world, &self.process);
        caller.idle();
        let seen = self.jobs.snapshot().map_err(|e| e.to_string())?.all;
        // Each job and the two follow-ups that it committed.
        let once = 3 * HANDLERS as u64;
        if (seen.attempts_total, seen.claims_total) != (once, once) {
            return Err(format!("{} attempts and {} claims of {once} jobs", seen.attempts_total, seen.claims_total));
        }
        self.jobs.shutdown(PATIENCE).map_err(|e| e.to_string())?;
        self.disk.cut_power(1);
        let facts = Facts::of(&self.world.told());
        if facts.calls.len() != EFFECTS * HANDLERS {
            return Err(format!("{} calls", facts.calls.len()));
        }
        look_at(&self.disk, &facts)
    }
}

/// What was tried.
#[derive(Default)]
struct Tried {
    lives: AtomicU64,
    missed: AtomicU64,
    images: AtomicU64,
    asked: AtomicU64,
    stopwatch: AtomicU64,
}

fn add(to: &AtomicU64, n: u64) {
    to.fetch_add(n, Ordering::Relaxed);
}

impl Tried {
    fn life(&self, fault: Fault, seed: u64) -> Result<(), String> {
        let scene = Scene::set();
        add(&self.lives, 1);
        if scene.goes_on(fault) {
            let cuts = (0..CUTS).map(|n| (End::Power, seed * CUTS + n));
            for (how, seed) in std::iter::once((End::Kill, 0)).chain(cuts) {
                let (disk, told) = scene.left_behind(how, seed);
                self.next_life(&disk, &told, how).map_err(|why| format!("{}, {seed}: {why}", words(how)))?;
            }
        } else {
            add(&self.missed, 1);
        }
        scene.heals().map_err(|why| format!("it works again: {why}"))
    }
    /// The next process, on what was left behind: compared, driven to the end, compared again.
    fn next_life(&self, disk: &SimDisk, told: &[Told], how: End) -> Result<(), String> {
        let facts = Facts::of(told);
        look_at(&disk.fork(), &facts)?;
        let world = World::new(told, None);
        drive(disk, &world, &next_process(&facts, &self.stopwatch, how, 1), &facts, 0)?;
        add(&self.images, 1);
        let after = Facts::of(&world.told());
        let open = HANDLERS - (0..HANDLERS).filter(|n| after.finished.contains(&name(*n))).count();
        add(&self.asked, open as u64);
        Ok(())
    }
}

fn name(n: usize) -> crate::crash_world::Name {
    (<Work as onceward::Job>::KIND, format!("late-{n}"))
}

fn words(how: End) -> &'static str {
    if how == End::Kill { "killed" } else { "power cut" }
}

/// What the disk does between the moment when all are inside their effects and the end, if nothing fails.
fn healthy() -> Counts {
    let scene = Scene::set();
    let before = scene.disk.counts();
    scene.world.gate.open();
    scene.ids.iter().for_each(|id| assert_eq!(scene.jobs.wait(*id, PATIENCE).unwrap(), State::Done));
    let after = scene.disk.counts();
    scene.heals().unwrap();
    Counts {
        writes: after.writes - before.writes,
        set_lens: after.set_lens - before.set_lens,
        syncs: after.syncs - before.syncs,
        ..after
    }
}

/// Every fault at every operation.
fn faults(counted: Counts, seeds: u64) -> Vec<(&'static str, Fault, u64)> {
    let (changes, syncs) = (counted.writes + counted.set_lens + counted.syncs, counted.syncs);
    let mut all = Vec::new();
    for seed in 0..seeds {
        for after in 0..changes {
            let once = if after.is_multiple_of(2) { Fails::Short } else { Fails::Full };
            let fault = |times, fails| Fault { on: On::AnyChange, after, times, fails };
            all.push(("dead for good", fault(u64::MAX, Fails::Eio), after + seed * changes));
            all.push(("short write or no room", fault(1, once), after + seed * changes));
        }
        for after in 0..syncs {
            for (n, reached) in [0, 50, 90].into_iter().enumerate() {
                let forget = (after + n as u64 + seed).is_multiple_of(2);
                let fails = Fails::Sync { reached, forget, seed: after + seed * syncs };
                let times = if (after / 2 + n as u64 + seed).is_multiple_of(2) { 1 } else { u64::MAX };
                all.push(("failed fsync", Fault { on: On::Sync, after, times, fails }, after + seed * syncs));
            }
        }
    }
    all
}

/// All eight are inside their effects, each answered by its provider, when the disk fails at any operation of what comes then: once or
/// for good, with half a write, no room, an fsync of which nothing or most of it reached the disk. The process dies there, by a kill
/// and by power cuts, and another one takes over; and where it lives until the disk works again nobody was lost or blamed.
#[test]
fn a_disk_that_dies_under_eight_handlers() {
    let seeds = std::env::var("ONCEWARD_FAULT_SEEDS").ok().and_then(|n| n.parse().ok()).unwrap_or(1);
    let counted = healthy();
    let all = faults(counted, seeds);
    let (tried, next) = (Tried { stopwatch: AtomicU64::new(200_000_000), ..Tried::default() }, AtomicUsize::new(0));
    let broken = Mutex::new(Vec::new());
    #[expect(clippy::disallowed_methods, reason = "two halves of the sweep side by side")]
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while let Some((what, fault, seed)) = all.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if let Err(why) = tried.life(*fault, *seed) {
                        broken.lock().unwrap().push(format!("{what}, {fault:?}: {why}"));
                    }
                }
            });
        }
    });
    let mut ways: BTreeMap<&str, u64> = BTreeMap::new();
    all.iter().for_each(|(what, ..)| *ways.entry(what).or_default() += 1);
    let Tried { lives, missed, images, asked, .. } = tried;
    let [lives, missed, images, asked] = [lives, missed, images, asked].map(AtomicU64::into_inner);
    let broken = broken.into_inner().unwrap();
    println!(
        "eight handlers: {} operations after the handlers were inside their effects, {lives} lives {ways:?} ({missed} over before \
         their fault), {images} images of dead processes driven to the end with {asked} questions to people, {} violations",
        counted.writes + counted.set_lens + counted.syncs,
        broken.len()
    );
    assert!(broken.is_empty(), "{}", broken.join("\n"));
    assert!(lives > 100 && missed * 2 < lives && images > lives && asked > 0);
}
