//! The lives that a fuzzer plays on the stage of the crash suites: the app of `crash_world`, judged by `crash_oracle`. Bytes choose what
//! people ask for, how the clock moves, which operation of the disk fails, where the process dies and what the power cut spares.
//!
//! Compiled into the suite, which replays the corpus, and into `fuzz/`. A broken promise is a panic whose text tells the story.

use super::crash_life::{End, Life, drive, left_behind, look_at};
use super::crash_scripts::SCRIPTS;
use super::crash_world::{
    Brief, Caller, Do, Facts, Name, Note, Process, START, Told, Work, World, app, calls, effect_id,
};
use onceward::clock::{Clock, ManualClock};
use onceward::model::time::Wall;
use onceward::store::disk::{CrashPoint, Fails, Fault, On, crash_points};
use onceward::testkit::fuzz::Reader;
use onceward::testkit::{DiskFactory, SimDisk};
use onceward::{Decision, Error, Job, JobId, State, StoreError};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// Longer than any life: calls that ended are remembered for the whole process that plays them, and must not seem to end in the
/// future of the next one.
const LIFE_MS: u64 = 30 * DAY_MS;
const DAY_MS: u64 = 24 * 3_600_000;

/// The next process on a file.
fn process(wall: u64, boot: u8, nonce: u64) -> Process {
    static STOPWATCH: AtomicU64 = AtomicU64::new(LIFE_MS);
    let origin = STOPWATCH.fetch_add(LIFE_MS, Ordering::Relaxed);
    let clock = ManualClock::at(Wall(0));
    clock.advance(Duration::from_millis(origin));
    clock.jump_wall(wall.cast_signed() - origin.cast_signed());
    Process { clock, boot, nonce, workers: 1 }
}

/// What is left at a crash point, by choice.
fn left(point: &CrashPoint<'_>, how: End, r: &mut Reader<'_>) -> SimDisk {
    if how == End::Kill || !point.exists {
        return left_behind(point, End::Kill, 0);
    }
    // The sidecar is drawn: each of its slots is one of its versions.
    let drawn = left_behind(point, End::Power, u64::from(r.byte()) + 2);
    let sidecar = sidecar(&drawn);
    SimDisk::from_image(point.chosen(|n| r.byte() % n), sidecar)
}

fn end(r: &mut Reader<'_>) -> End {
    if r.flag() { End::Power } else { End::Kill }
}

/// A life that was cut off: what is left of the disk, and the history up to there.
fn cut(life: &Life, r: &mut Reader<'_>) -> (SimDisk, Vec<Told>, End) {
    let events = r.below(life.log.len());
    let how = end(r);
    let mut found = None;
    crash_points(&life.start, &life.start_sidecar, &life.log[..=events], |point| {
        if point.index == events + 1 {
            found = Some((left(point, how, r), life.told_at(point).to_vec(), how));
        }
    });
    found.expect("the point is within the log")
}

/// One of the scripts of the crash sweep, cut off at any operation: the file is compared with what callers had been told, driven to its
/// end and, if the bytes say so, cut off again on the way.
pub(crate) fn crash_image(bytes: &[u8]) -> usize {
    static LIVES: [OnceLock<Life>; SCRIPTS.len()] = [const { OnceLock::new() }; SCRIPTS.len()];
    let mut r = Reader::new(bytes);
    let nth = r.below(SCRIPTS.len());
    let life = LIVES[nth].get_or_init(|| Life::record(&SCRIPTS[nth]));
    let (disk, told, how) = cut(life, &mut r);
    let what = format!("{}, {} events of the history", SCRIPTS[nth].name, told.len());
    let facts = Facts::of(&told);
    look_at(&disk.fork(), &facts).unwrap_or_else(|why| panic!("{what}: {why}"));
    let again = match r.below(3) {
        0 => return 1,
        1 => false,
        _ => true,
    };
    let (start, start_sidecar) = (disk.bytes(), sidecar(&disk));
    if again {
        disk.record();
    }
    let world = World::new(&told, again.then(|| disk.clone()));
    let boot = if how == End::Kill { 1 } else { 2 };
    drive(&disk, &world, &process(facts.time, boot, 2), &facts, 0).unwrap_or_else(|why| panic!("{what}: {why}"));
    if again {
        let life = Life { start, start_sidecar, log: disk.log(), told: world.told(), past: told.len() };
        let (disk, told, how) = cut(&life, &mut r);
        let facts = Facts::of(&told);
        look_at(&disk.fork(), &facts).unwrap_or_else(|why| panic!("{what}, twice: {why}"));
        let world = World::new(&told, None);
        let boot = boot + u8::from(how == End::Power);
        drive(&disk, &world, &process(facts.time, boot, 3), &facts, 0)
            .unwrap_or_else(|why| panic!("{what}, twice: {why}"));
    }
    2
}

fn sidecar(disk: &SimDisk) -> Vec<u8> {
    disk.sidecar().lock().map(|s| s.clone()).unwrap_or_default()
}

/// Lives one after the other on one file, each cut off or ended in order; then everything is driven to its end.
pub(crate) fn model(bytes: &[u8]) -> usize {
    let mut r = Reader::new(bytes);
    let mut disk = SimDisk::new();
    let mut told: Vec<Told> = Vec::new();
    let (mut boot, mut nonce, mut acts) = (1, 1, Vec::new());
    for _ in 0..=r.below(4) {
        let facts = Facts::of(&told);
        let (start, start_sidecar, past) = (file(&disk), sidecar(&disk), told.len());
        disk.record();
        let world = World::new(&told, Some(disk.clone()));
        let process = process(facts.time, boot, nonce);
        let jobs = app(&world, Arc::new(disk.clone()), &process).start().expect("a healthy disk");
        let caller = Caller::new(&jobs, &world, &process);
        let mut life = Acts { caller: &caller, disk: &disk, r: &mut r, done: &mut acts };
        while life.act() {}
        let errors = std::mem::take(&mut *caller.errors.lock().expect("nobody panics with it"));
        let shut = jobs.shutdown(Duration::from_secs(30)).map(drop);
        let faults = disk.counts().faults;
        let errors = errors.into_iter().chain(shut.err().map(|e| ("shutdown", e)));
        for (what, e) in errors {
            assert!(may_fail(what, &e, faults), "{what}: {e}, after {acts:?}");
        }
        told = world.told();
        nonce += 1;
        if r.flag() {
            let life = Life { start, start_sidecar, log: disk.log(), told, past };
            let how;
            (disk, told, how) = cut(&life, &mut r);
            boot += u8::from(how == End::Power);
            acts.push(format!("crash at {} events, {} of them told", life.log.len(), told.len()));
        } else {
            disk = disk.fork();
        }
        look_at(&disk.fork(), &Facts::of(&told)).unwrap_or_else(|why| panic!("{why}, after {acts:#?}"));
    }
    // Hours pass: rows of short memory may go.
    told.push(Told::Aged(true));
    let facts = Facts::of(&told);
    let world = World::new(&told, None);
    drive(&disk, &world, &process(facts.time, boot, nonce), &facts, 60)
        .unwrap_or_else(|why| panic!("{why}, in the end after {acts:#?}"));
    acts.len()
}

fn file(disk: &SimDisk) -> Vec<u8> {
    if disk.exists() { disk.bytes() } else { Vec::new() }
}

/// People may ask for what is not possible. A look may meet a fault of the disk, and so may the database when it is closed; everything
/// that writes is healed before anybody hears of it.
fn may_fail(what: &str, e: &Error, faults: u64) -> bool {
    let look = matches!(what, "state" | "dead_letter" | "run_until_idle" | "shutdown" | "plan_replay");
    match e {
        Error::Refused(_) => matches!(what, "decide" | "cancel" | "restore" | "replay"),
        Error::NoLetter(_) => what == "dead_letter",
        Error::Store(StoreError::Io(_) | StoreError::Full(_)) => look && faults > 0,
        _ => false,
    }
}

/// What one process is asked for.
struct Acts<'a, 'b> {
    caller: &'a Caller<'a>,
    disk: &'a SimDisk,
    r: &'a mut Reader<'b>,
    /// In words.
    done: &'a mut Vec<String>,
}

const MOST_ACTS: usize = 60;
const PREFIXES: [&str; 8] = ["", "", "", "lost-", "gone-", "refused-", "unsent-", "dear-"];

impl Acts<'_, '_> {
    /// One more; `false` if this life has no other.
    fn act(&mut self) -> bool {
        let c = self.caller;
        if self.r.is_empty() || self.done.len() >= MOST_ACTS {
            return false;
        }
        match self.r.byte() % 24 {
            0..=3 => {
                let work = self.work();
                self.say(|| format!("{work:?}"));
                let _told = c.enqueue(&work);
            }
            4 => {
                let note = self.note();
                self.say(|| format!("{note:?}"));
                let _told = c.enqueue(&note);
            }
            5 => {
                let notes: Vec<Note> = (0..self.r.below(7)).map(|_| self.note()).collect();
                self.say(|| format!("{notes:?}"));
                let _told = c.enqueue_many(&notes);
            }
            6 => {
                // A key that was never used: its memory may end within the story.
                let key = format!("b{}", c.world.told().len());
                let body = "0123456789abcdef".repeat(self.r.below(900));
                self.say(|| format!("brief {key} {}", body.len()));
                let _told = c.enqueue(&Brief { key, body });
            }
            7 => {
                let (work, wait) = (self.work(), self.wait());
                self.say(|| format!("after {wait:?}: {work:?}"));
                let _told = c.after(wait, &work);
            }
            8 => {
                let key = format!("t{}", c.world.told().len());
                self.say(|| format!("transact {key}"));
                c.transact(&key);
            }
            9 | 10 => {
                self.say(|| "idle".into());
                c.idle();
            }
            11 | 12 => self.time(),
            13 => {
                let on = self.r.flag();
                self.say(|| format!("pause {on}"));
                c.pause(on);
            }
            14 => self.about(|c, name, id, _| c.cancel(name, id)),
            15 | 16 => self.about(decide),
            17 => self.about(|c, name, id, _| c.restore(name, id)),
            18 => self.about(again),
            19 => {
                let dead = self.dead();
                let at_most = self.r.below(3) + 1;
                self.say(|| format!("release {dead:?}, {at_most} at a time"));
                c.release(&dead, at_most);
            }
            20 => {
                self.say(|| "look".into());
                for (name, id) in self.known() {
                    c.look(name, id);
                }
            }
            21 => self.fault(),
            _ => {
                self.say(|| "end".into());
                return false;
            }
        }
        true
    }
    fn say(&mut self, what: impl FnOnce() -> String) {
        self.done.push(what());
    }
    fn work(&mut self) -> Work {
        let key = format!("{}k{}", self.r.one(&PREFIXES).unwrap_or_default(), self.r.below(4));
        let mut does = Vec::new();
        for _ in 0..self.r.below(6) {
            does.push(match self.r.below(12) {
                0 | 1 => Do::Charge,
                2 | 3 => Do::Reserve,
                4 | 5 => Do::Wire,
                6 => Do::Step,
                7 => Do::Commit,
                8 => Do::Fail(u32::from(self.r.byte() % 5)),
                9 => Do::Panic(u32::from(self.r.byte() % 3)),
                10 => Do::Never,
                _ => {
                    // Nothing of what comes after it would be done.
                    does.push(Do::Finish);
                    break;
                }
            });
        }
        Work::new(&key, &does)
    }
    fn note(&mut self) -> Note {
        Note { key: format!("n{}", self.r.below(6)) }
    }
    fn wait(&mut self) -> Duration {
        let seconds = [1, 9, 10, 20, 60, 61, 3_600, 3_601, 25 * 3_600];
        Duration::from_secs(self.r.one(&seconds).unwrap_or(1))
    }
    /// The clock moves, within the retention of what is compared in the end.
    fn time(&mut self) {
        let c = self.caller;
        let clock = &c.process.clock;
        let (wait, how) = (self.wait(), self.r.below(4));
        let now = clock.now().wall.0;
        let ms = wait.as_millis() as u64;
        let back = how == 3;
        let then = if back { now - ms } else { now + ms };
        if !(START - DAY_MS..START + 3 * DAY_MS).contains(&then) {
            return;
        }
        self.say(|| format!("{} {}{wait:?}", ["pass", "suspend", "jump", "jump"][how], if back { "-" } else { "" }));
        c.world.tell(Told::Aged(true));
        c.world.tell(Told::Time(then));
        match how {
            0 => clock.advance(wait),
            1 => clock.suspend(wait),
            2 => clock.jump_wall(ms.cast_signed()),
            _ => clock.jump_wall(-ms.cast_signed()),
        }
        if self.r.flag() {
            c.idle();
        }
    }
    /// Jobs that were acknowledged.
    fn known(&self) -> Vec<(Name, JobId)> {
        Facts::of(&self.caller.world.told()).stored.into_iter().filter(|(name, _)| name.0 != Brief::KIND).collect()
    }
    fn about(&mut self, f: impl FnOnce(&Caller<'_>, Name, JobId, &mut Reader<'_>)) {
        let known = self.known();
        let nth = self.r.below(known.len());
        let Some((name, id)) = known.into_iter().nth(nth) else { return };
        self.say(|| format!("a person about {name:?}"));
        f(self.caller, name, id, self.r);
    }
    fn dead(&self) -> Vec<(Name, JobId)> {
        let dead = |id: &JobId| matches!(self.caller.jobs.state(*id), Ok(State::Dead));
        self.known().into_iter().filter(|(name, id)| name.0 == Work::KIND && dead(id)).collect()
    }
    /// One operation of the disk fails, once in a life: the queue heals without the clock.
    fn fault(&mut self) {
        let sync = |r: &mut Reader<'_>| Fails::Sync { reached: r.byte() % 101, forget: r.flag(), seed: r.number() };
        let (on, fails) = match self.r.below(8) {
            0 => (On::Write, Fails::Eio),
            1 => (On::Write, Fails::Full),
            2 => (On::Write, Fails::Short),
            3 => (On::SetLen, Fails::Full),
            4 => (On::Read, Fails::Eio),
            _ => (On::Sync, sync(self.r)),
        };
        let fault = Fault { on, after: self.r.below(64) as u64, times: 1, fails };
        self.disk.heal();
        if self.disk.counts().faults == 0 {
            self.say(|| format!("{fault:?}"));
            self.disk.fail(fault);
        }
    }
}

/// What was replayed once is compared with what it was before: its keys stay, and it forgets nothing else.
fn replayed(c: &Caller<'_>, name: &Name) -> bool {
    Facts::of(&c.world.told()).replayed.iter().any(|(n, _)| n == name)
}

/// People tell the truth about effects: they look at the provider's ledger.
fn decide(c: &Caller<'_>, name: Name, id: JobId, r: &mut Reader<'_>) {
    let who = if r.flag() { "ben" } else { "ana" };
    let Ok(letter) = c.jobs.dead_letter(id) else { return };
    let effect = letter.questions().iter().find_map(|q| q.effect().cloned());
    let decision = match effect.filter(|_| r.below(8) > 0) {
        Some(effect) => {
            let told = c.world.told();
            let real = calls(&told).find(|call| call.real && call.order == name.1 && effect_id(call.effect) == effect);
            match real {
                Some(call) => Decision::happened(&effect, Some(&call.operation)),
                None if r.flag() && !replayed(c, &name) => Decision::did_not_happen(&effect).with_new_key(),
                None => Decision::did_not_happen(&effect),
            }
        }
        None => match r.below(5) {
            0 | 1 => Decision::try_again(),
            2 => Decision::discard(),
            3 => Decision::handled_outside(),
            _ => return again(c, name, id, r),
        },
    };
    c.decide_as(who, name, id, decision);
}

fn again(c: &Caller<'_>, name: Name, id: JobId, r: &mut Reader<'_>) {
    let step = r.one(&[None, Some("step"), Some("commit")]).flatten();
    let step = step.filter(|_| !replayed(c, &name));
    c.again(name, id, step);
}
