//! A disk that fails: every read, write, change of length and sync of a script fails once, in every way that it can, while the
//! queue is at work. Nothing is lost, nothing happens twice, nobody is blamed, and what was acknowledged survives the power cut
//! that comes afterwards.

use super::crash_oracle::{Whole, check, ended};
use super::crash_world::{Caller, Do, Facts, Note, Process, ROWS, START, Told, Work, World, app, effect_id};
use onceward::clock::ManualClock;
use onceward::model::time::Wall;
use onceward::store::disk::{Fails, Fault, On};
use onceward::store::{Place, Store, StoreOptions};
use onceward::testkit::SimDisk;
use onceward::{Decision, Error, Job, Jobs, State, StoreError};
use redb::ReadableTable;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

/// Everything the queue does that touches the disk, in one life.
fn script(c: &Caller<'_>) {
    let _told = c.enqueue(&Work::new("joint", &[Do::Step, Do::Commit, Do::Charge, Do::Finish]));
    c.transact("a");
    let notes: Vec<Note> = (0..3).map(|n| Note { key: format!("n{n}") }).collect();
    let _told = c.enqueue_many(&notes);
    let _told = c.enqueue(&Work::new("lost-pay", &[Do::Charge, Do::Commit]));
    let wire = c.enqueue(&Work::new("lost-wire", &[Do::Wire]));
    c.idle();
    if let Some(wire) = wire {
        let happened = Decision::happened(&effect_id("wire"), Some("wire-lost-wire-1"));
        c.decide((Work::KIND, "lost-wire".into()), wire.id(), happened);
    }
    c.pause(true);
    let _told = c.enqueue(&Note { key: "paused".into() });
    c.pause(false);
    c.transact("b");
    c.pass(secs(10));
    c.idle();
}

/// What a life came to, without its clock, tokens and history: the same whatever the disk did.
fn outcome(whole: &Whole) -> BTreeMap<String, String> {
    let jobs = whole.jobs.iter().map(|(name, f)| {
        let effects: Vec<_> = f.effects.iter().map(|e| (&e.id.name, e.state, e.calls, &e.result)).collect();
        let r = &f.record;
        let state = State::from(&r.state);
        let what = format!("{state:?} {} {} {:?} {} {effects:?}", r.attempts, r.claims, r.given_back, r.strikes);
        (format!("{name:?}"), what)
    });
    jobs.chain(whole.rows.iter().map(|(k, n)| (format!("row {k}"), n.to_string()))).collect()
}

fn look(disk: &SimDisk, facts: &Facts) -> Result<Whole, String> {
    let mut options =
        StoreOptions::new(Place::Disk(Arc::new(disk.clone())), Arc::new(ManualClock::at(Wall(facts.time))));
    options.cache_bytes = 1 << 20;
    let (store, opened) = Store::open(options).map_err(|e| format!("it does not open: {e}"))?;
    let whole = check(&store, &opened, facts)?;
    ended(&whole, facts)?;
    Ok(whole)
}

/// One life on a disk with one fault; what it came to, and whether the fault happened.
fn life(fault: Option<Fault>, cut: u64) -> Result<(BTreeMap<String, String>, bool), String> {
    let disk = SimDisk::new();
    let world = World::new(&[], None);
    let process = Process { workers: 1, ..Process::first() };
    let start = || app(&world, Arc::new(disk.clone()), &process).start();
    // A fault while it opens is the caller's to see, who tries again.
    if let Some(fault) = fault {
        disk.fail(fault);
    }
    let mut seen = 0;
    let jobs = loop {
        match start() {
            Ok(jobs) => break jobs,
            Err(Error::Store(StoreError::Io(_) | StoreError::Full(_))) if disk.counts().faults > seen => {
                seen = disk.counts().faults;
            }
            Err(e) => return Err(format!("it does not start: {e:?}")),
        }
    };
    let caller = Caller::new(&jobs, &world, &process);
    script(&caller);
    for (what, e) in caller.errors.into_inner().unwrap() {
        // A look may meet the fault itself; everything that writes is healed before anybody hears of it.
        let look = matches!(what, "state" | "dead_letter" | "run_until_idle");
        if !look || !matches!(e, Error::Store(StoreError::Io(_))) || disk.counts().faults == 0 {
            return Err(format!("{what}: {e}"));
        }
    }
    match jobs.shutdown(secs(5)) {
        // The last writes are redb's own, when it closes: everything that was acknowledged is durable without them.
        Ok(_) | Err(Error::Store(StoreError::Io(_) | StoreError::Full(_))) => {}
        Err(e) => return Err(format!("it does not shut down: {e}")),
    }
    let hit = disk.counts().faults > 0;
    disk.heal();
    disk.cut_power(cut);
    let facts = Facts::of(&world.told());
    look(&disk, &facts).map(|whole| (outcome(&whole), hit))
}

/// The ways in which one operation can fail.
fn ways() -> Vec<(&'static str, On, Fails)> {
    let sync = |reached, forget| Fails::Sync { reached, forget, seed: u64::from(reached) + 1 };
    vec![
        ("write: EIO", On::Write, Fails::Eio),
        ("write: disk full", On::Write, Fails::Full),
        ("write: half of it", On::Write, Fails::Short),
        ("length: EIO", On::SetLen, Fails::Eio),
        ("length: disk full", On::SetLen, Fails::Full),
        ("sync: nothing reached", On::Sync, sync(0, false)),
        ("sync: half reached", On::Sync, sync(50, false)),
        ("sync: most reached", On::Sync, sync(90, false)),
        ("sync: nothing reached, cache lost", On::Sync, sync(0, true)),
        ("sync: half reached, cache lost", On::Sync, sync(50, true)),
        ("sync: most reached, cache lost", On::Sync, sync(90, true)),
        ("read: EIO", On::Read, Fails::Eio),
        ("open: EIO", On::Open, Fails::Eio),
    ]
}

/// Runs `f` for every item on two threads; what failed, with its item.
fn both<T: Sync, R: Send>(items: &[T], f: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let (next, out) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    #[expect(clippy::disallowed_methods, reason = "two halves of a suite side by side")]
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while let Some(item) = items.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let told = f(item);
                    out.lock().unwrap().push(told);
                }
            });
        }
    });
    out.into_inner().unwrap()
}

fn seeds() -> u64 {
    std::env::var("ONCEWARD_FAULT_SEEDS").ok().and_then(|n| n.parse().ok()).unwrap_or(1)
}

/// The disk fails at any single operation of a life, in every way it can, while handlers run, people decide and rows are
/// committed; then the power is cut. The life comes to exactly what it comes to on a healthy disk: the same attempts, the same
/// claims, the same calls, nobody interrupted and nobody blamed.
#[test]
fn a_disk_that_fails_at_any_operation_changes_nothing_but_the_time_it_takes() {
    let (healthy, _) = life(None, 1).unwrap();
    let counted = {
        let disk = SimDisk::new();
        let world = World::new(&[], None);
        let process = Process { workers: 1, ..Process::first() };
        let jobs = app(&world, Arc::new(disk.clone()), &process).start().unwrap();
        script(&Caller::new(&jobs, &world, &process));
        jobs.shutdown(secs(5)).unwrap();
        disk.counts()
    };
    let mut runs = Vec::new();
    for (what, on, fails) in ways() {
        let operations = match on {
            On::Open => counted.opens,
            On::Read => counted.reads,
            On::Write => counted.writes,
            On::SetLen => counted.set_lens,
            On::Sync => counted.syncs,
            On::AnyChange => 0,
        };
        for after in 0..operations {
            for seed in 0..seeds() {
                let fails = match fails {
                    Fails::Sync { reached, forget, .. } => Fails::Sync { reached, forget, seed: after + 1_000 * seed },
                    other @ (Fails::Eio | Fails::Full | Fails::Short | Fails::Panic) => other,
                };
                // Some failures last: the queue reopens more than once.
                let times = if (after + seed).is_multiple_of(5) { 2 } else { 1 };
                runs.push((what, Fault { on, after, times, fails }, 1 + after + seed));
            }
        }
    }
    let told = both(&runs, |(what, fault, cut)| (*what, *fault, life(Some(*fault), *cut)));
    let mut hits: BTreeMap<&str, u64> = BTreeMap::new();
    for (what, fault, told) in told {
        let (came_to, hit) = told.unwrap_or_else(|why| panic!("{what}, {fault:?}: {why}"));
        assert_eq!(came_to, healthy, "{what}, {fault:?}");
        *hits.entry(what).or_default() += u64::from(hit);
    }
    let all: u64 = hits.values().sum();
    let fsync: u64 = hits.iter().filter(|(what, _)| what.starts_with("sync")).map(|(_, n)| n).sum();
    println!("I/O faults: {} lives, {all} of them with a fault ({fsync} failed fsyncs): {hits:?}", runs.len());
    assert_eq!(hits.len(), ways().len());
    assert!(hits.values().all(|n| *n > 0) && all * 10 > runs.len() as u64 * 9, "faults that never happened");
}

/// The disk works again: time passes until the store has seen it. Readers are not kept waiting for a disk that was dead for long.
fn until_healed(jobs: &Jobs, process: &Process) {
    while jobs.read(|_| ()).is_err() {
        process.clock.advance(Duration::from_millis(1));
        std::thread::yield_now();
    }
}

/// Eight handlers sit inside their calls when the disk dies. The provider answers all of them, and nothing can be written. When
/// the disk comes back every confirmation arrives: no call is repeated, no lease was lost, no attempt was spent.
#[test]
fn handlers_that_are_inside_a_call_survive_a_dead_disk() {
    let mut confirmed = 0;
    for fails in [Fails::Eio, Fails::Full, Fails::Sync { reached: 50, forget: true, seed: 3 }] {
        let disk = SimDisk::new();
        let world = World::new(&[], None);
        let process = Process { workers: 8, ..Process::first() };
        let jobs = app(&world, Arc::new(disk.clone()), &process).start().unwrap();
        let caller = Caller::new(&jobs, &world, &process);
        world.gate.shut();
        let ids: Vec<_> = (0..8)
            .map(|n| caller.enqueue(&Work::new(&format!("late-{n}"), &[Do::Charge, Do::Finish])).unwrap().id())
            .collect();
        world.gate.wait_for(8);
        let before = disk.counts();
        let on = if matches!(fails, Fails::Sync { .. }) { On::Sync } else { On::AnyChange };
        disk.fail(Fault { on, after: 0, times: u64::MAX, fails });
        world.gate.open();
        // The clock goes on while the disk is dead, further than every lease would last.
        for _ in 0..3 {
            let faults = disk.counts().faults;
            while disk.counts().faults < faults + 2 {
                process.clock.advance(Duration::from_millis(1));
                std::thread::yield_now();
            }
            process.clock.advance(secs(40));
        }
        world.tell(Told::Time(START + 200_000));
        disk.heal();
        until_healed(&jobs, &process);
        for id in &ids {
            let ended = jobs.wait(*id, secs(20));
            assert!(matches!(ended, Ok(State::Done)), "{ended:?}: {:?}, {:?}", jobs.state(*id), jobs.history(*id));
        }
        caller.idle();
        assert!(disk.counts().opens > before.opens, "the store was not reopened");
        jobs.shutdown(secs(5)).unwrap();
        disk.cut_power(1);
        let facts = Facts::of(&world.told());
        let whole = look(&disk, &facts).unwrap();
        assert_eq!(facts.calls.len(), 8, "{:?}", facts.calls);
        for found in whole.jobs.values().filter(|f| !f.effects.is_empty()) {
            assert_eq!((found.record.attempts, found.record.claims), (1, 1), "{found:?}");
            confirmed += 1;
        }
    }
    println!("dead disks under live handlers: 3, {confirmed} confirmations arrived");
    assert_eq!(confirmed, 24);
}

/// A handler computes while the disk is dead for longer than its lease lasts. Nobody could have heard of its progress, so the time
/// is given back: it ends its first attempt.
#[test]
fn a_lease_stands_still_while_the_store_heals() {
    let disk = SimDisk::new();
    let world = World::new(&[], None);
    let process = Process::first();
    let jobs = app(&world, Arc::new(disk.clone()), &process).start().unwrap();
    let caller = Caller::new(&jobs, &world, &process);
    world.gate.shut();
    let id = caller.enqueue(&Work::new("long", &[Do::Gate, Do::Charge])).unwrap().id();
    world.gate.wait_for(1);
    disk.fail(Fault { on: On::Sync, after: 0, times: u64::MAX, fails: Fails::Eio });
    let later = jobs.clone();
    #[expect(clippy::disallowed_methods, reason = "a caller that waits while the test moves the clock")]
    let waits = std::thread::spawn(move || later.enqueue(&Note { key: "later".into() }));
    let faults = |n| {
        while disk.counts().faults < n {
            process.clock.advance(Duration::ZERO);
            std::thread::yield_now();
        }
    };
    faults(2);
    process.clock.advance(secs(100));
    faults(disk.counts().faults + 2);
    disk.heal();
    until_healed(&jobs, &process);
    // Told "unknown" after thirty seconds; stored all the same.
    assert!(matches!(waits.join().unwrap(), Err(Error::Unknown)));
    while jobs.read(|_| ()).is_err() {
        std::thread::yield_now();
    }
    let note = jobs.enqueue(&Note { key: "later".into() }).unwrap().id();
    // Less than a lease without the time of the heal, far more than one with it.
    process.clock.advance(secs(50));
    let looked = jobs.after(secs(1), &Note { key: "looked".into() }).unwrap().id();
    process.clock.advance(secs(1));
    for id in [note, looked] {
        // The timer has looked at the leases, too, when it started these.
        assert_eq!(jobs.wait(id, secs(60)).unwrap(), State::Done);
    }
    world.gate.open();
    assert_eq!(jobs.wait(id, secs(60)).unwrap(), State::Done);
    assert_eq!(jobs.snapshot().unwrap().all.lease_expired_total, 0);
    jobs.shutdown(secs(5)).unwrap();
    println!("leases: 1 stood still for 100 s of healing");
}

fn count(jobs: &Jobs) -> u64 {
    jobs.read(|app| app.open_table(ROWS).map_or(0, |t| t.get("counter").unwrap().map_or(0, |n| n.value()))).unwrap()
}

/// Four threads count up one row while the disk fails under them: what the row says is what callers were told, no more and no
/// less, before and after the next power cut.
#[test]
fn increments_are_the_acknowledged_calls() {
    const EACH: u64 = 5;
    let lives: Vec<(u64, Fails)> = (0..80_u64)
        .step_by(2)
        .flat_map(|after| {
            let sync = Fails::Sync { reached: 50, forget: after.is_multiple_of(4), seed: after };
            [(after, Fails::Eio), (after, Fails::Short), (after, sync)]
        })
        .collect();
    let faults = AtomicU64::new(0);
    let told = both(&lives, |&(after, fails)| {
        let disk = SimDisk::new();
        let world = World::new(&[], None);
        let process = Process::first();
        let jobs = app(&world, Arc::new(disk.clone()), &process).start().unwrap();
        let on = if matches!(fails, Fails::Sync { .. }) { On::Sync } else { On::AnyChange };
        let after = if on == On::Sync { after / 6 } else { after };
        disk.fail(Fault { on, after, times: 1, fails });
        let acknowledged = AtomicU64::new(0);
        #[expect(clippy::disallowed_methods, reason = "callers side by side share rounds")]
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..EACH {
                        let told: Result<(), Error> = jobs.transact(|tx| {
                            let mut rows = tx.open_table(ROWS)?;
                            let app = |e: redb::StorageError| Error::App(e.to_string());
                            let before = rows.get("counter").map_err(app)?.map_or(0, |n| n.value());
                            rows.insert("counter", before + 1).map_err(app)?;
                            Ok(())
                        });
                        told.unwrap_or_else(|e| panic!("{fails:?} after {after}: {e:?}"));
                        acknowledged.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
        });
        let acknowledged = acknowledged.into_inner();
        assert_eq!(count(&jobs), acknowledged, "{fails:?} after {after}");
        faults.fetch_add(disk.counts().faults, Ordering::Relaxed);
        // The fault may be for the last writes, which are redb's own.
        let _closed = jobs.shutdown(secs(5));
        disk.heal();
        disk.cut_power(after);
        let jobs = app(&world, Arc::new(disk), &Process { boot: 2, nonce: 2, ..Process::first() }).start().unwrap();
        assert_eq!(count(&jobs), acknowledged, "{fails:?} after {after}, then a power cut");
        jobs.shutdown(secs(5)).unwrap();
        acknowledged
    });
    let (all, faults) = (told.iter().sum::<u64>(), faults.into_inner());
    println!("increments: {} lives, {faults} faults, {all} acknowledged, all of them counted once", lives.len());
    assert_eq!(all, lives.len() as u64 * 4 * EACH);
    assert!(faults * 2 > lives.len() as u64);
}

/// The file cannot be reopened. For thirty seconds of the clock callers wait; then, and not before, they are told that nobody
/// knows. What they asked for stays queued and happens once when the disk is back.
#[test]
fn callers_hear_unknown_only_when_healing_takes_longer_than_thirty_seconds() {
    let disk = SimDisk::new();
    let world = World::new(&[], None);
    let process = Process::first();
    let jobs = app(&world, Arc::new(disk.clone()), &process).start().unwrap();
    disk.fail(Fault { on: On::Sync, after: 0, times: 1, fails: Fails::Eio });
    disk.fail(Fault { on: On::Open, after: 0, times: u64::MAX, fails: Fails::Eio });
    let tries = |n: u64| {
        let opens = disk.counts().opens;
        while disk.counts().opens < opens + n {
            process.clock.advance(Duration::ZERO);
            std::thread::yield_now();
        }
    };
    let (told, hears) = std::sync::mpsc::channel();
    let caller = jobs.clone();
    #[expect(clippy::disallowed_methods, reason = "a caller that waits while the test moves the clock")]
    std::thread::spawn(move || told.send(caller.enqueue(&Note { key: "n".into() })));
    tries(3);
    process.clock.advance(secs(29));
    tries(3);
    assert!(hears.try_recv().is_err(), "told before thirty seconds were over");
    process.clock.advance(secs(1));
    let told = hears.recv().unwrap();
    assert!(matches!(told, Err(Error::Unknown)), "{told:?}");
    // Nor are readers kept waiting any longer.
    assert!(matches!(jobs.read(|_| ()), Err(Error::Store(StoreError::Io(_)))));
    disk.heal();
    until_healed(&jobs, &process);
    assert!(!jobs.enqueue(&Note { key: "n".into() }).unwrap().is_new(), "the first request was lost");
    jobs.shutdown(secs(5)).unwrap();
    println!("unknown: 1 caller told after 30 s and not after 29, 1 request applied once");
}

/// One-phase commits were chosen, and an fsync fails, at every fsync there is. The queue stops: nobody is told anything more, and
/// the next process finds everything that was acknowledged.
#[test]
fn one_phase_commits_stop_the_queue_at_the_first_failed_fsync() {
    let (mut stopped, mut unknown) = (0, 0);
    for after in 0..60_u64 {
        let disk = SimDisk::new();
        let world = World::new(&[], None);
        let process = Process { workers: 1, ..Process::first() };
        let start = |process: &Process| app(&world, Arc::new(disk.clone()), process).one_phase_commits().start();
        let jobs = start(&process).unwrap();
        disk.fail(Fault {
            on: On::Sync,
            after,
            times: 1,
            fails: Fails::Sync { reached: 50, forget: false, seed: after },
        });
        let caller = Caller::new(&jobs, &world, &process);
        for n in 0..12 {
            let _told = caller.enqueue(&Note { key: format!("n{n}") });
            caller.transact(&format!("t{n}"));
        }
        let hit = disk.counts().faults > 0;
        let errors = caller.errors.into_inner().unwrap();
        let over = |e: &Error| matches!(e, Error::Unknown | Error::ShutDown | Error::Store(StoreError::Stopped(_)));
        assert!(errors.iter().all(|(_, e)| over(e)), "{errors:?}");
        if hit {
            assert!(
                matches!(jobs.enqueue(&Note { key: "more".into() }), Err(e) if over(&e)),
                "it goes on after {after}: {errors:?}"
            );
            stopped += 1;
            unknown += errors.iter().filter(|(_, e)| matches!(e, Error::Unknown)).count();
        }
        drop(jobs);
        disk.heal();
        let facts = Facts::of(&world.told());
        let next = Process { nonce: 2, ..Process::first() };
        start(&next).unwrap().shutdown(secs(5)).unwrap();
        let mut options =
            StoreOptions::new(Place::Disk(Arc::new(disk.clone())), Arc::new(ManualClock::at(Wall(facts.time))));
        options.cache_bytes = 1 << 20;
        let (store, opened) = Store::open(options).unwrap();
        check(&store, &opened, &facts).unwrap();
    }
    println!("one-phase: {stopped} failed fsyncs, each stopped the queue, {unknown} callers heard unknown");
    assert!(stopped > 20 && unknown > 0);
}

/// The file is removed under the running queue, or a copy is put in its place: what would be written now is gone with it, so nothing is
/// acknowledged any more.
#[cfg(unix)]
#[test]
fn a_file_that_is_removed_or_replaced_stops_the_queue() {
    for replaced in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let (path, copy) = (dir.path().join("q.redb"), dir.path().join("copy"));
        let jobs = Jobs::open(&path).on(|_, _: Note| Ok(())).start().unwrap();
        let _told = jobs.enqueue(&Note { key: "before".into() }).unwrap();
        if replaced {
            std::fs::copy(&path, &copy).unwrap();
            std::fs::rename(&copy, &path).unwrap();
        } else {
            std::fs::remove_file(&path).unwrap();
        }
        let told = jobs.enqueue(&Note { key: "after".into() });
        assert!(matches!(&told, Err(e) if e.to_string().contains("removed or replaced")), "{told:?}");
    }
}
