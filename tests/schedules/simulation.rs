//! Whole worlds in one thread: a queue with everything it has (writer, workers, timer, relay), providers that lose answers, people,
//! callers, crashes, clocks that jump and machines that sleep, all in an order that follows from one number.
//!
//! Keeps the promises of the design over everything that was seen from outside (`history::judge`), and this one: the same number gives
//! the same world, to the last event.

mod app;
mod end;
mod world;

use crate::history::{Answer, Counts, Crash, Deed, Due, Event, Moved, Recorder, What, judge};
use app::{Pay, Plain, Press, TOPIC, Tell, Trip};
use onceward::model::effect::EffectState;
use onceward::testkit::{Fails, Fault, ManualClock, On, Order, SimDisk, run, run_until_idle};
use onceward::{Decision, EffectId, Enqueued, Error, Job, JobId, Jobs, Scope, StoreError, Verdict};
use std::fmt::Write;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use world::{Dice, Life, Shop, digest, payload_of};

const HOUR_MS: u64 = 3_600_000;
const DAY_MS: u64 = 24 * HOUR_MS;
const KINDS: [&str; 5] = ["plain", "pay", "tell", "press", "trip"];
/// Long enough for whatever can still end.
const PATIENCE: Duration = Duration::from_secs(60);

/// What one world came to.
#[derive(Clone, Debug, Default)]
struct Outcome {
    /// Of everything that happened, in its order.
    trace: u64,
    events: usize,
    /// By the clocks, jumps and sleeps left out.
    advanced_ms: u64,
    counts: Counts,
}

impl Outcome {
    fn add(&mut self, other: &Self) {
        // The order in which worlds are added makes no difference.
        self.trace ^= other.trace;
        self.events += other.events;
        self.advanced_ms += other.advanced_ms;
        self.counts.add(&other.counts);
    }
}

/// One world.
struct World {
    disk: SimDisk,
    clock: ManualClock,
    recorder: Recorder,
    dice: Dice,
    shop: Shop,
    life: Life,
    boot: u8,
    jobs: Jobs,
    /// Callers that have not been told yet.
    callers: Vec<shuttle::thread::JoinHandle<()>>,
    /// Every job that somebody was told of.
    known: Arc<Mutex<Vec<JobId>>>,
    full: bool,
    advanced_ms: u64,
}

impl World {
    fn new(seed: u64) -> Self {
        let (clock, recorder) = (ManualClock::default(), Recorder::default());
        let (disk, dice, shop) = (SimDisk::new(), Dice::new(seed), Shop::default());
        let life = Life {
            number: 1,
            clock: clock.clone(),
            recorder: recorder.clone(),
            dice: dice.clone(),
            numbers: Arc::new(AtomicU64::new(1)),
            over: Arc::new(AtomicBool::new(false)),
        };
        life.say(What::Started { boot: 1, review: false, clocks: true, down_ms: 0 });
        let jobs = open(&disk, &clock, &shop, &life, 1).unwrap();
        let known = Arc::new(Mutex::new(Vec::new()));
        let callers = Vec::new();
        Self { disk, clock, recorder, dice, shop, life, boot: 1, jobs, callers, known, full: false, advanced_ms: 0 }
    }
    fn draw(&self, below: u64) -> u64 {
        self.dice.draw(below)
    }

    /// Something happens.
    fn act(&mut self) {
        let what = self.draw(100);
        if std::env::var_os("ONCEWARD_STORY").is_some() {
            eprintln!("act {what} after {} events", self.recorder.events().len());
        }
        match what {
            0..=29 => self.caller(),
            30..=33 => self.transact(),
            34..=47 => self.advance(),
            48..=57 => self.look(),
            58..=60 => self.jump(),
            61..=62 => self.sleep(),
            63..=66 => self.pause(),
            67..=69 => self.cancel(),
            70..=77 => self.decide(),
            78..=79 => self.restore(),
            80..=83 => self.shop.free(),
            84..=86 => self.break_disk(),
            87..=88 => self.fill_disk(),
            89..=93 => self.crash(),
            94 => self.restart(),
            _ => self.others(),
        }
    }
    /// The others go on for a while.
    fn others(&self) {
        for _ in 0..self.draw(200) {
            shuttle::thread::yield_now();
        }
    }

    // People and programs that ask for jobs.

    fn caller(&mut self) {
        let (n, v) = (self.draw(60), self.draw(12));
        let jobs = self.jobs.clone();
        let (life, known) = (self.life.clone(), self.known.clone());
        let due = match self.draw(6) {
            0 => Due::After(self.draw(2 * HOUR_MS)),
            1 => Due::At(self.life.now().wall.0 + self.draw(2 * HOUR_MS)),
            _ => Due::AtOnce,
        };
        let kind = self.draw(6);
        let ask = move || match kind {
            0 => ask(&jobs, &life, &known, &Pay { n, v: 0 }, due),
            1 => ask(&jobs, &life, &known, &Tell { n, v: 0 }, due),
            2 => ask(&jobs, &life, &known, &Press { n, v: 0 }, due),
            3 => ask(&jobs, &life, &known, &Trip { n, v: 0 }, due),
            _ => ask(&jobs, &life, &known, &Plain { n, v }, due),
        };
        if self.draw(2) == 0 { self.callers.push(shuttle::thread::spawn(ask)) } else { ask() }
    }
    /// A row of the app, a message and a job, in one transaction.
    fn transact(&mut self) {
        let ask = self.life.number();
        let (row, id, job) = (format!("row/{ask}"), format!("t/{ask}"), Plain { n: 3_000_000 + ask, v: 0 });
        let name = (Plain::KIND, job.n.to_string());
        let jobs = vec![(name, payload_of(&job))];
        self.life.say(What::Transacting { ask, row: row.clone(), jobs, messages: vec![id.clone()], once: false });
        self.life.say(What::Owing { topic: TOPIC, id: id.clone() });
        let owed = id.clone();
        let done = self.jobs.transact(move |tx| -> Result<(), Error> {
            tx.outbox(TOPIC, owed.clone(), &ask)?;
            tx.enqueue(&job)?;
            app::count_up(tx, &row).map(drop).map_err(|_| Error::ShutDown)
        });
        let done = known(&done);
        self.life.say(What::Transacted { ask, done });
        if done == Some(true) {
            self.life.say(What::Owed { topic: TOPIC, id });
        }
    }

    // Clocks.

    fn advance(&mut self) {
        let ms = match self.draw(5) {
            0 => 1 + self.draw(1_000),
            1..=3 => self.draw(HOUR_MS),
            _ => self.draw(DAY_MS),
        };
        self.pass(ms);
        self.others();
    }
    fn pass(&mut self, ms: u64) {
        self.advanced_ms += ms;
        self.clock.advance(Duration::from_millis(ms));
        self.recorder.world(self.life.now(), What::Moved(Moved::Advance));
    }
    fn jump(&mut self) {
        let sizes = [1_000, HOUR_MS, DAY_MS, 365 * DAY_MS, 3_650 * DAY_MS];
        let by = i64::try_from(sizes[usize::try_from(self.draw(5)).unwrap()]).unwrap();
        self.clock.jump_wall(if self.draw(2) == 0 { by } else { -by });
        self.recorder.world(self.life.now(), What::Moved(Moved::Jump));
    }
    fn sleep(&mut self) {
        let ms = 1_000 + self.draw(7 * DAY_MS);
        self.clock.suspend(Duration::from_millis(ms));
        self.recorder.world(self.life.now(), What::Moved(Moved::Suspend(ms)));
    }

    // People.

    /// Everything that can happen now happens, and somebody looks at how the jobs stand.
    fn look(&mut self) {
        if self.draw(2) == 0 {
            self.shop.free();
            self.settle();
        }
        let ids = self.known.lock().unwrap().clone();
        for job in ids {
            if let Ok(state) = self.jobs.state(job) {
                let due = self.jobs.due(job).ok().flatten();
                let due = due.map(|at| onceward::Wall::from_system(at).0);
                self.life.say(What::Saw { job, state: Some(state), due });
            }
        }
    }
    /// Nothing is left to do at this time.
    fn settle(&mut self) {
        self.join();
        if run_until_idle(&self.jobs).is_ok() {
            self.life.say(What::Idle);
        }
    }
    fn pause(&mut self) {
        let (on, nth) = (self.draw(2) == 0, usize::try_from(self.draw(6)).unwrap());
        let kind = KINDS.get(nth).copied();
        let scope = kind.map_or(Scope::All, Scope::kind);
        self.life.say(What::Pausing { kind, on });
        let done = if on { self.jobs.pause(scope, "a look") } else { self.jobs.resume(scope) };
        if done.is_ok() {
            self.life.say(What::Paused { kind, on });
        }
    }
    fn some_job(&self) -> Option<JobId> {
        let known = self.known.lock().unwrap();
        let n = u64::try_from(known.len()).unwrap();
        (n > 0).then(|| known[usize::try_from(self.draw(n)).unwrap()])
    }
    fn deed(&self, job: JobId, deed: Deed, f: impl FnOnce(&Jobs) -> Option<bool>) {
        let act = self.life.number();
        self.life.say(What::Acting { act, job: Some(job), deed });
        let done = f(&self.jobs);
        self.life.say(What::Acted { act, done });
    }
    fn cancel(&mut self) {
        if let Some(job) = self.some_job() {
            self.deed(job, Deed::Cancel, |jobs| known(&jobs.cancel(job)));
        }
    }
    fn restore(&mut self) {
        let Ok(trash) = self.jobs.trash() else { return };
        if let Some(job) = trash.first().map(|t| t.job) {
            self.deed(job, Deed::Restore, |jobs| known(&jobs.restore(job, "ann", "after all")));
        }
    }
    /// A person decides a letter, and says of effects what is true.
    fn decide(&mut self) {
        let Ok(letters) = self.jobs.dead_letters() else { return };
        if letters.is_empty() {
            return;
        }
        let letter = &letters[usize::try_from(self.draw(letters.len() as u64)).unwrap()];
        let job = letter.job();
        let open = letter.ledger().iter().find(|line| {
            matches!(line.state, EffectState::Unknown | EffectState::Intended)
                && !self.shop.inside(job, &line.id.to_string())
        });
        if self.draw(4) == 0
            && let Some(effect) = letter.can_check().first()
        {
            let effect: EffectId = effect.clone();
            let _answer = self.jobs.check_again(letter, &effect, "ann");
            return;
        }
        let (verdict, decision) = match open {
            Some(line) => {
                let effect = line.id.clone();
                match self.shop.happened(job, &effect.to_string()) {
                    Some(reference) => (
                        Verdict::Happened {
                            effect: effect.clone(),
                            reference: Some(reference.clone()),
                            result: None,
                            undo: None,
                        },
                        Decision::happened(&effect, Some(&reference)),
                    ),
                    None => (
                        Verdict::DidNotHappen { effect: effect.clone(), new_key: false },
                        Decision::did_not_happen(&effect),
                    ),
                }
            }
            None => match self.draw(6) {
                0 => (Verdict::HandledOutside, Decision::handled_outside()),
                1 => (Verdict::Discard, Decision::discard()),
                2 => (Verdict::Undo, Decision::undo()),
                _ => (Verdict::TryAgain, Decision::try_again()),
            },
        };
        self.deed(job, Deed::Decide(verdict), |jobs| known(&jobs.decide(letter, decision.by("ann", "I have looked"))));
    }

    // Disks and deaths.

    fn break_disk(&mut self) {
        let fails = match self.draw(5) {
            0 => Fails::Eio,
            1 => Fails::Short,
            _ => {
                let reached = [0, 50, 90][usize::try_from(self.draw(3)).unwrap()];
                Fails::Sync { reached, forget: self.draw(2) == 0, seed: self.draw(1 << 30) }
            }
        };
        let on = if matches!(fails, Fails::Sync { .. }) { On::Sync } else { On::AnyChange };
        self.disk.fail(Fault { on, after: self.draw(20), times: 1 + self.draw(3), fails });
    }
    fn fill_disk(&mut self) {
        self.full = !self.full;
        self.disk.bound_room(self.full.then(|| self.draw(1 << 16)));
        self.life.say(What::DiskFull(self.full));
    }
    /// Callers that were cut off, or told, are done.
    fn join(&mut self) {
        for caller in std::mem::take(&mut self.callers) {
            caller.join().unwrap();
        }
    }
    fn crash(&mut self) {
        let power = self.draw(2) == 0;
        let disk = if power { self.disk.fork_unpowered(self.draw(1 << 40)) } else { self.disk.fork() };
        self.life.say(What::Crashed(if power { Crash::PowerCut } else { Crash::Kill }));
        self.begin(disk, power);
    }
    fn restart(&mut self) {
        self.shop.free();
        self.join();
        self.disk.heal();
        self.unfill();
        self.jobs.clone().shutdown(PATIENCE).unwrap();
        self.life.say(What::Stopped);
        let disk = self.disk.fork();
        self.begin(disk, false);
    }
    fn unfill(&mut self) {
        self.disk.bound_room(None);
        if std::mem::take(&mut self.full) {
            self.life.say(What::DiskFull(false));
        }
    }
    /// The next process opens what the last one left. That one winds up on a disk that nobody reads.
    fn begin(&mut self, disk: SimDisk, power: bool) {
        self.life.over.store(true, Ordering::Relaxed);
        self.shop.left_alone();
        self.disk.heal();
        self.disk.bound_room(None);
        drop(self.jobs.clone().shutdown(PATIENCE));
        self.join();
        disk.heal();
        disk.bound_room(None);
        if std::mem::take(&mut self.full) {
            self.recorder.world(self.life.now(), What::DiskFull(false));
        }
        self.boot += u8::from(power);
        self.life = Life { number: self.life.number + 1, over: Arc::new(AtomicBool::new(false)), ..self.life.clone() };
        let down_ms = if self.draw(3) == 0 { self.draw(DAY_MS) } else { 0 };
        if down_ms > 0 {
            self.clock.suspend(Duration::from_millis(down_ms));
        }
        self.disk = disk;
        self.life.say(What::Started { boot: self.boot.into(), review: false, clocks: true, down_ms });
        self.jobs = open(&self.disk, &self.clock, &self.shop, &self.life, self.boot).unwrap();
        assert_eq!(self.jobs.review(), None, "a crash leaves no older copy");
    }

    /// Nothing goes wrong any more: everything comes to its end, or to a person.
    fn calm(&mut self) {
        self.shop.free();
        self.disk.heal();
        self.unfill();
        for kind in KINDS.map(Some).into_iter().chain([None]) {
            self.life.say(What::Pausing { kind, on: false });
            self.jobs.resume(kind.map_or(Scope::All, Scope::kind)).unwrap();
            self.life.say(What::Paused { kind, on: false });
        }
        let mut step = 30_000;
        let mut passed = 0;
        loop {
            self.shop.free();
            self.settle();
            self.look();
            if !going_on(&self.jobs) || end::only_dates(self) {
                break;
            }
            assert!(
                passed < 400 * DAY_MS,
                "after {passed} ms without a fault something still goes on: {}",
                end::open_ends(self)
            );
            self.pass(step);
            passed += step;
            step = (step * 2).min(DAY_MS);
        }
    }
}

/// What somebody who asked is told: `None` if nobody knows.
fn known<T>(told: &Result<T, Error>) -> Option<bool> {
    match told {
        Ok(_) => Some(true),
        Err(Error::Unknown | Error::Store(StoreError::Unknown)) => None,
        Err(_) => Some(false),
    }
}

fn ask<J: Job>(jobs: &Jobs, life: &Life, known: &Mutex<Vec<JobId>>, job: &J, due: Due) {
    let ask = life.number();
    let name = (J::KIND, job.key().to_string());
    life.say(What::Asking { ask, name, payload: payload_of(job), due });
    let told = match due {
        Due::AtOnce | Due::Again => jobs.enqueue(job),
        Due::After(ms) => jobs.after(Duration::from_millis(ms), job),
        Due::At(ms) => jobs.at(onceward::Wall(ms).to_system(), job),
    };
    let answer = match &told {
        Ok(Enqueued::New(id)) => Answer::Stored(*id),
        Ok(Enqueued::Existing { id, differs, .. }) => Answer::Existing { id: *id, differs: *differs },
        Err(_) if self::known(&told).is_none() => Answer::Unknown,
        _ => Answer::NotDone,
    };
    if life.say(What::Asked { ask, answer })
        && let Ok(told) = told
    {
        let mut known = known.lock().unwrap();
        if !known.contains(&told.id()) {
            known.push(told.id());
        }
    }
}

fn open(disk: &SimDisk, clock: &ManualClock, shop: &Shop, life: &Life, boot: u8) -> Result<Jobs, Error> {
    let builder = Jobs::on_disk(Arc::new(disk.clone()))
        .clock(Arc::new(clock.clone()))
        .process([boot; 16], life.number.into())
        .seed(life.number.into())
        .workers(WORKERS)
        .cache_bytes(1 << 20)
        .key_scope("a simulated world");
    app::register(builder, shop, life).start()
}

const WORKERS: usize = 3;
/// Worlds at a time: each has all of its own threads in one.
const THREADS: u64 = 2;

/// Whether anything is left that goes on by itself.
fn going_on(jobs: &Jobs) -> bool {
    let gauges = jobs.snapshot().unwrap().gauges;
    let jobs = gauges
        .queue_depth
        .values()
        .any(|words| ["ready", "delayed", "running", "waiting"].iter().any(|w| words.get(w).is_some_and(|n| *n > 0)));
    jobs || gauges.outbox.values().any(|of| of.depth > of.stuck)
}

/// The world of this number: so many things happen, then nothing goes wrong any more, and everything is judged.
fn live(seed: u64, acts: u64) -> Outcome {
    let told: Arc<Mutex<Outcome>> = Arc::default();
    let out = told.clone();
    run(Order::Random, seed, 1, move || {
        let mut world = World::new(seed);
        for _ in 0..acts {
            world.act();
        }
        world.calm();
        let (history, jobs) = end::of(&world);
        let events = &history.events;
        let trace = digest(events.iter().map(|e| format!("{e:?}")).collect::<Vec<_>>());
        if std::env::var_os("ONCEWARD_STORY").is_some() {
            eprintln!("{}{jobs:#?}", story(events));
        }
        let judged = judge(&history, &jobs);
        let counts = match judged {
            Ok(counts) => counts,
            Err(why) => panic!("seed {seed}, {acts} acts: {why}"),
        };
        *out.lock().unwrap() = Outcome { trace, events: events.len(), advanced_ms: world.advanced_ms, counts };
    });
    let told = told.lock().unwrap();
    told.clone()
}

/// What happened, for whoever has to find out why: `ONCEWARD_STORY=1 ONCEWARD_WORLDS=1 ONCEWARD_WORLD=<seed>`.
fn story(events: &[Event]) -> String {
    let mut out = String::new();
    for (n, Event { life, now, what }) in events.iter().enumerate() {
        let _ = writeln!(out, "{n} life {life} {}/{} {what:?}", now.wall.0, now.mono.0);
    }
    out
}

fn asked(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().map_or(default, |n| n.parse().unwrap())
}

/// Many worlds, each with everything that can go wrong: none breaks a promise, and all come to an end once nothing goes wrong.
#[test]
fn no_world_breaks_a_promise() {
    let (seeds, acts) = (asked("ONCEWARD_WORLDS", 300), asked("ONCEWARD_WORLD_ACTS", 50));
    let first = asked("ONCEWARD_WORLD", 1);
    let next = AtomicU64::new(first);
    let lives = || {
        let mut sum = Outcome::default();
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= first + seeds {
                return sum;
            }
            sum.add(&live(seed, acts));
        }
    };
    let all = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..seeds.min(THREADS)).map(|_| scope.spawn(lives)).collect();
        let mut all = Outcome::default();
        threads.into_iter().for_each(|t| all.add(&t.join().expect("a world broke a promise, see above")));
        all
    });
    let Outcome { events, advanced_ms, ref counts, .. } = all;
    let (states, ways, faults) = (&counts.coverage.states, counts.coverage.edges.len(), &counts.coverage.faults);
    println!(
        "simulation: {seeds} worlds of {acts} acts, {events} events, {} simulated hours, {} states, {ways} ways between them, {} sorts of faults; trace {:016x}",
        advanced_ms / HOUR_MS,
        states.len(),
        faults.len(),
        all.trace
    );
    println!("simulation: states {states:?}, faults {faults:?}");
    println!("simulation: looked at {:?}", counts.looked_at);
    if seeds >= 100 {
        let idle: Vec<_> = counts.looked_at.iter().filter(|(name, n)| **n == 0 && **name != "I19").collect();
        assert!(idle.is_empty(), "nothing to look at for {idle:?}");
        let seen = ["handler ended: unknown", "handler ended: interrupted"].into_iter().all(|how| faults.contains(how));
        assert!(seen, "what stops a handler was not told apart: {faults:?}");
        assert!(states.len() >= 10 && ways >= 30, "{states:?}, {ways} ways: too little was tried");
    }
}

/// The same number gives the same world, to the last event; another number another one.
#[test]
fn the_same_number_gives_the_same_world() {
    for seed in [3, 4, 5] {
        let (one, two) = (live(seed, 60), live(seed, 60));
        assert_eq!((one.trace, one.events), (two.trace, two.events), "seed {seed}");
        assert_ne!(one.trace, live(seed + 100, 60).trace);
    }
    println!("simulation: 3 worlds twice, the same to the last event");
}
