//! The disk fails: nothing is applied twice, nothing acknowledged is lost, nobody hears of what did not become durable.

use super::super::disk::{Fails, Fault, On};
use super::*;
use std::collections::BTreeMap;
use std::time::Duration;

fn fault(on: On, after: u64, times: u64, fails: Fails) -> Fault {
    Fault { on, after, times, fails }
}

#[derive(Clone, Default)]
struct Events(Arc<Mutex<Vec<String>>>);

impl Events {
    fn of(store: &Store) -> Self {
        let events = Self::default();
        let seen = events.clone();
        store.on_event(Box::new(move |e| {
            let name = format!("{e:?}");
            seen.0.lock().push(name.split([' ', '{']).next().unwrap_or_default().to_owned());
        }));
        events
    }
    fn now(&self) -> Vec<String> {
        self.0.lock().clone()
    }
}

/// Counts how often each request was applied: a second application would be seen in the rows.
fn bump(tx: &mut Write<'_>, name: &str) -> Result<u64, StoreError> {
    let n = tx.meta(name)?.map_or(0, |v| u64::from_le_bytes(v.try_into().unwrap())) + 1;
    tx.put_meta(name, &n.to_le_bytes())?;
    Ok(n)
}

fn bumps(store: &Store) -> BTreeMap<String, u64> {
    let rows = store.read(|r| r.metas("bump")).unwrap();
    rows.into_iter().map(|(k, v)| (k, u64::from_le_bytes(v.try_into().unwrap()))).collect()
}

/// The first sync of a commit fails: the round was not applied, runs again after the reopen, and its callers hear Ok. Epoch and
/// claims stay, jobs keep their numbers.
#[test]
fn a_failed_commit_that_was_not_applied_runs_again() {
    let disk = SimDisk::new();
    let (store, _) = Store::open(on_disk(&disk)).unwrap();
    let (events, seen) = (Events::of(&store), Seen::default());
    store.install_hook(Box::new(seen.clone()));
    ask(&store, |tx| enqueue(tx, "before"));
    let epoch = header_of(&disk.sidecar().lock().unwrap()).unwrap().epoch;
    disk.fail(fault(On::Sync, 0, 1, Fails::Sync { reached: 50, forget: false, seed: 3 }));
    assert_eq!(ask(&store, |tx| enqueue(tx, "a")), Some(JobId(2)));
    assert_eq!(disk.counts().faults, 1);
    assert_eq!(events.now(), ["HealStarted", "Healed"]);
    assert_eq!(seen.now()[2], 1, "the engine forgot what it had prepared");
    assert!(!store.healing());
    assert_eq!(header_of(&disk.sidecar().lock().unwrap()).unwrap().epoch, epoch);
    assert_eq!(check_rows(&store).ready, 2);
    drop(store);
    disk.cut_power(1);
    assert_eq!(check_rows(&open(&disk)).ready, 2);
}

/// The last sync of a commit reaches the disk and reports an error all the same: the round was applied, is not run again, and
/// its callers hear Ok with what they remembered.
#[test]
fn a_failed_commit_that_was_applied_is_not_run_again() {
    let mut applied = 0;
    for syncs in 0..4 {
        let disk = SimDisk::new();
        let store = open(&disk);
        ask(&store, |tx| bump(tx, "bump warm"));
        let runs = Arc::new(AtomicUsize::new(0));
        let count = runs.clone();
        disk.fail(fault(On::Sync, syncs, 1, Fails::Sync { reached: 100, forget: false, seed: 0 }));
        let before = disk.counts().syncs;
        let n = ask(&store, move |tx| {
            count.fetch_add(1, Ordering::SeqCst);
            bump(tx, "bump once")
        });
        if disk.counts().faults == 0 {
            assert!(disk.counts().syncs - before <= syncs);
            continue;
        }
        assert_eq!((n, bumps(&store)["bump once"]), (1, 1));
        applied += usize::from(runs.load(Ordering::SeqCst) == 1);
        drop(store);
        disk.cut_power(1);
        assert_eq!(bumps(&open(&disk))["bump once"], 1, "durable when it was answered");
    }
    assert!(applied > 0, "no failed commit was applied");
}

/// Every single write, change of length, sync and read of a script fails once, in every way a disk can: each request is applied
/// once, in order, and everything answered survives a power cut right after the answer.
#[test]
fn one_fault_anywhere_neither_loses_nor_repeats_a_request() {
    let script = |disk: &SimDisk| {
        // The open itself may meet the fault: then it says so, and the next one works.
        let store = match Store::open(on_disk(disk)) {
            Ok((store, _)) => store,
            Err(_) => {
                assert_eq!(disk.counts().faults, 1);
                open(disk)
            }
        };
        let gate = Gate::close(&store);
        let mut heard = Vec::new();
        for i in 0..6 {
            heard.push(send(&store, Lane::Enqueue, move |tx| bump(tx, &format!("bump {i}"))));
            heard.push(send(&store, Lane::Outcome, |tx| bump(tx, "bump all")));
        }
        drop(gate);
        let mut told: Vec<_> = heard.iter().map(|h| h.recv().unwrap()).collect();
        let payload = vec![3; 200_000];
        told.push(
            send(&store, Lane::Enqueue, move |tx| {
                enqueue_at(tx, "big", Start::Now, payload.clone())?;
                bump(tx, "bump all")
            })
            .recv()
            .unwrap(),
        );
        (store, told)
    };
    let clean = SimDisk::new();
    drop(script(&clean));
    let total = clean.counts();
    let ways = [
        (On::Write, Fails::Eio, total.writes),
        (On::Write, Fails::Short, total.writes),
        (On::Write, Fails::Full, total.writes),
        (On::SetLen, Fails::Full, total.set_lens),
        (On::Sync, Fails::Sync { reached: 0, forget: false, seed: 1 }, total.syncs),
        (On::Sync, Fails::Sync { reached: 50, forget: true, seed: 2 }, total.syncs),
        (On::Sync, Fails::Sync { reached: 90, forget: false, seed: 3 }, total.syncs),
        (On::Read, Fails::Eio, total.reads),
    ];
    let (mut runs, mut faults) = (0, 0);
    for (on, fails, n) in ways {
        for after in 0..n {
            let disk = SimDisk::new();
            disk.fail(fault(on, after, 1, fails));
            let (store, told) = script(&disk);
            let said: Vec<_> = told[..12].iter().skip(1).step_by(2).cloned().collect();
            assert_eq!(said, (1..=6).map(Heard::Settled).collect::<Vec<_>>(), "{on:?} {after}");
            assert_eq!(told[12], Heard::Settled(7));
            let applied = bumps(&store);
            assert_eq!((applied["bump all"], applied.len()), (7, 7), "{on:?} {after}: {applied:?}");
            assert!((0..6).all(|i| applied[&format!("bump {i}")] == 1), "{on:?} {after}: {applied:?}");
            std::mem::forget(store);
            faults += disk.counts().faults;
            disk.heal();
            disk.cut_power(1);
            let store = open(&disk);
            assert_eq!(bumps(&store), applied, "{on:?} {after}: answered, then lost");
            assert_eq!(check_rows(&store).jobs, 1);
            runs += 1;
        }
    }
    println!("{runs} runs, {faults} faults");
    assert!(runs > 100 && faults as usize > runs / 2);
}

/// The disk is full for a while: nobody hears anything, then there is room and everybody hears Ok, in order.
#[test]
fn a_full_disk_holds_everybody_up_until_there_is_room() {
    let disk = SimDisk::new();
    let store = open(&disk);
    ask(&store, |tx| bump(tx, "bump"));
    let started = Arc::new(AtomicUsize::new(0));
    let count = started.clone();
    disk.fail(fault(On::AnyChange, 0, 40, Fails::Full));
    let heard: Vec<_> = (0..5)
        .map(|_| {
            let count = count.clone();
            send(&store, Lane::Enqueue, move |tx| {
                count.fetch_add(1, Ordering::SeqCst);
                bump(tx, "bump")
            })
        })
        .collect();
    let told: Vec<_> = heard.into_iter().map(|h| h.recv().unwrap()).collect();
    assert_eq!(told, (2..=6).map(Heard::Settled).collect::<Vec<_>>());
    assert_eq!(disk.counts().faults, 40);
    assert!(started.load(Ordering::SeqCst) >= 5);
}

/// A reader meets a bad sector: redb would refuse every write from then on, so the store reopens although nobody writes.
#[test]
fn a_read_error_is_healed_without_a_writer() {
    let disk = SimDisk::new();
    let mut options = on_disk(&disk);
    options.cache_bytes = 0;
    let (store, _) = Store::open(options).unwrap();
    let (healed, hear) = mpsc::channel();
    store.on_event(Box::new(move |e| {
        if matches!(e, StoreEvent::Healed { .. }) {
            let _ = healed.send(());
        }
    }));
    ask(&store, |tx| enqueue_at(tx, "a", Start::Now, vec![1; 100_000]));
    disk.fail(fault(On::Read, 0, 1, Fails::Eio));
    assert!(store.read(|r| r.job(JobId(1))).is_err());
    hear.recv().unwrap();
    assert_eq!(store.read(|r| r.job(JobId(1))).unwrap().unwrap().payload.len(), 100_000);
}

/// The file cannot be reopened for half a minute: callers are told "unknown" once, later ones too; the requests stay and run
/// when the disk is back, readers are let go with an error.
#[test]
fn after_half_a_minute_callers_hear_unknown_and_requests_still_run() {
    let disk = SimDisk::new();
    let clock = ManualClock::default();
    let mut options = on_disk(&disk);
    options.clock = Arc::new(clock.clone());
    let (store, _) = Store::open(options).unwrap();
    ask(&store, |tx| bump(tx, "bump"));
    disk.fail(fault(On::Sync, 0, 1, Fails::Eio));
    disk.fail(fault(On::Open, 0, u64::MAX, Fails::Eio));
    let first = send(&store, Lane::Outcome, |tx| bump(tx, "bump"));
    while !store.healing() {
        std::thread::yield_now();
    }
    let second = send(&store, Lane::Enqueue, |tx| bump(tx, "bump"));
    let reader = {
        let store = store.clone();
        std::thread::spawn(move || store.read(|r| r.meta("bump")).map(drop))
    };
    clock.advance(Duration::from_millis(29_999));
    assert!(first.try_recv().is_err() && second.try_recv().is_err());
    clock.advance(Duration::from_millis(1));
    assert_eq!((first.recv().unwrap(), second.recv().unwrap()), (Heard::Unknown, Heard::Unknown));
    assert!(reader.join().unwrap().is_err());
    let third = send(&store, Lane::Enqueue, |tx| bump(tx, "bump"));
    clock.advance(Duration::from_millis(1));
    assert_eq!(third.recv().unwrap(), Heard::Unknown);
    disk.heal();
    clock.advance(Duration::from_millis(1));
    let told = [first, second, third].map(|h| h.recv().unwrap());
    assert_eq!(told, [2, 3, 4].map(Heard::Settled));
    assert_eq!(bumps(&store)["bump"], 4);
}

/// The app chose one-phase commits: after the first failed commit nobody can say what is on the disk, so the store stops.
#[test]
fn one_phase_commits_stop_at_the_first_failed_sync() {
    let disk = SimDisk::new();
    let mut options = on_disk(&disk);
    options.commits = Commits::OnePhase;
    let (store, _) = Store::open(options).unwrap();
    let events = Events::of(&store);
    let before = disk.counts().syncs;
    ask(&store, |tx| bump(tx, "bump"));
    ask(&store, |tx| bump(tx, "bump"));
    assert!(disk.counts().syncs > before);
    disk.fail(fault(On::Sync, 0, 1, Fails::Eio));
    let gate = Gate::close(&store);
    let heard = send(&store, Lane::Enqueue, |tx| bump(tx, "bump"));
    drop(gate);
    assert!(matches!(heard.recv().unwrap(), Heard::Failed(e) if e.contains("unknown whether")));
    let (op, _heard) = call(false, |_| Ok(()));
    let error = loop {
        match store.submit(Lane::Outcome, call(false, |_| Ok(())).0) {
            Ok(()) => std::thread::yield_now(),
            Err((_, error)) => break error,
        }
    };
    assert!(matches!(error, StoreError::Stopped(_)), "{error}");
    assert!(matches!(store.submit(Lane::Enqueue, op), Err((_, StoreError::Stopped(_)))));
    assert!(matches!(store.read(|r| r.depth()), Err(StoreError::Stopped(_))));
    assert!(matches!(store.close(), Err(StoreError::Stopped(_))));
    assert_eq!(events.now(), ["Stopped"]);
    assert!(bumps(&open(&disk))["bump"] >= 2);
}

/// The store is closed while the disk is gone for good: closing ends, what was in flight is unknown, what waited is not written.
#[test]
fn closing_gives_up_on_a_disk_that_is_gone() {
    let disk = SimDisk::new();
    let store = open(&disk);
    disk.fail(fault(On::AnyChange, 0, u64::MAX, Fails::Eio));
    let heard = send(&store, Lane::Enqueue, |tx| bump(tx, "bump"));
    while !store.healing() {
        std::thread::yield_now();
    }
    let behind = send(&store, Lane::Enqueue, |tx| bump(tx, "bump"));
    let _ = store.close();
    assert!(matches!(heard.recv().unwrap(), Heard::Failed(_)));
    assert!(matches!(behind.recv().unwrap(), Heard::Failed(e) if e.contains("stopped")));
}

/// While the file was closed for a heal another process took it, worked in it or only opened it: the store stops instead of
/// writing over it, and takes none of the other's commits for its own.
#[test]
fn another_owner_after_a_failure_stops_the_store() {
    for works in [false, true] {
        let disk = SimDisk::new();
        let store = open(&disk);
        let in_between = disk.clone();
        store.on_event(Box::new(move |e| {
            if matches!(e, StoreEvent::HealStarted { .. }) {
                // The old handle is dead by now; this is the other process.
                in_between.kill_process();
                let store = open(&in_between);
                if works {
                    ask(&store, |tx| bump(tx, "bump theirs"));
                }
                store.close().unwrap();
            }
        }));
        disk.fail(fault(On::Sync, 0, 1, Fails::Eio));
        let heard = send(&store, Lane::Enqueue, |tx| bump(tx, "bump ours")).recv().unwrap();
        assert!(matches!(&heard, Heard::Failed(e) if e.contains("unknown whether")), "{heard:?}");
        assert_eq!(bumps(&open(&disk)).len(), usize::from(works));
    }
}

/// The database itself panics in a commit. Whoever waited for that round hears that nobody knows, whoever waited behind it that
/// nothing was done; nobody waits for ever, and the next open finds a whole file.
#[test]
fn a_panic_below_the_writer_is_told_as_unknown() {
    let disk = SimDisk::new();
    let store = open(&disk);
    assert!(ask(&store, |tx| enqueue(tx, "before")).is_some());
    let gate = Gate::close(&store);
    let in_doubt = send(&store, Lane::Enqueue, |tx| enqueue(tx, "in doubt"));
    disk.fail(Fault { on: On::Sync, after: 0, times: 1, fails: Fails::Panic });
    drop(gate);
    assert!(matches!(in_doubt.recv().unwrap(), Heard::Failed(e) if e == StoreError::Unknown.to_string()));
    assert!(store.read(|r| r.meta("x")).is_err());
    assert!(store.close().is_err());
    disk.cut_power(1);
    let store = open(&disk);
    assert!(check_rows(&store).identities >= 1);
    assert!(ask(&store, |tx| enqueue(tx, "in doubt")).is_some());
}

/// Old bytes are overwritten with zeroes, and the sync that was about it fails: the system goes on showing zeroes, and the disk has the old
/// bytes. Whoever opens the file again writes them once more, so that the next power cut, after a sync that works, leaves zeroes; a sync
/// that works alone says nothing.
#[test]
fn what_a_failed_sync_was_about_is_written_again_zeroes_too() {
    use super::super::backend::Backing;
    use redb::StorageBackend;
    const AT: u64 = 8_192;
    let disk = SimDisk::new();
    disk.install(&[0xff; 16_384]).unwrap();
    let met = Arc::default();
    let open = || {
        let file = Backing::new(disk.open().unwrap(), &met).unwrap();
        file.admit().map(|()| file)
    };
    let file = open().unwrap();
    file.write(AT, &[0; 4_096]).unwrap();
    disk.fail(Fault { on: On::Sync, after: 0, times: 1, fails: Fails::Sync { reached: 0, forget: false, seed: 1 } });
    assert!(file.sync_data().is_err());
    file.take_away();
    let bytes = |disk: &SimDisk| disk.fork_unpowered(0).bytes()[usize::try_from(AT).unwrap()..][..4_096].to_vec();
    assert_eq!(bytes(&disk), [0xff; 4_096], "the failed sync reached nothing");
    let file = open().unwrap();
    assert_eq!(bytes(&disk), [0; 4_096], "it is on the disk before anything new is written");
    file.write(0, &[7; 4_096]).unwrap();
    file.sync_data().unwrap();
    assert_eq!(bytes(&disk), [0; 4_096]);
}
