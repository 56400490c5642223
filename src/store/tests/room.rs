//! The disk fills up: what became of things is still written, new work is refused, and all goes on when there is room.

use super::*;
use crate::model::room::Room;
use std::time::Duration;

/// New work that writes large rows.
struct New {
    name: String,
    rows: usize,
    /// What goes wrong inside is handed on as an error of its own, as app code does.
    hides: bool,
    to: Sender<Result<(), StoreError>>,
}

impl Op for New {
    fn run(&mut self, tx: &mut Write<'_>) -> Result<(), StoreError> {
        for row in 0..self.rows {
            let put = tx.put_meta(&format!("{} {row}", self.name), &vec![7; 100_000]);
            if self.hides {
                put.map_err(|_| StoreError::Table("the app says so".to_owned()))?;
            } else {
                put?;
            }
        }
        Ok(())
    }
    fn is_new_work(&self) -> bool {
        true
    }
    fn settle(self: Box<Self>, result: Result<(), StoreError>) {
        let _ = self.to.send(result);
    }
}

fn new_work(store: &Store, name: &str) -> Result<(), StoreError> {
    let (to, heard) = mpsc::channel();
    store
        .submit(Lane::Enqueue, Box::new(New { name: name.to_owned(), rows: 1, hides: false, to }))
        .map_err(|(_, e)| e)?;
    heard.recv().unwrap()
}

/// New work until there is no room for it: how much was taken.
fn fill_up(store: &Store) -> usize {
    for n in 0..2_000 {
        match new_work(store, &format!("new {n:05}")) {
            Ok(()) => {}
            Err(StoreError::Full(_)) => return n,
            Err(e) => panic!("{e}"),
        }
    }
    panic!("the disk never filled up");
}

/// An outcome: a small row of its own, and a count.
fn outcome(store: &Store, n: usize) -> Receiver<Heard<()>> {
    send(store, Lane::Outcome, move |tx| {
        let count = tx.meta("outcomes")?.map_or(0, |v| u64::from_le_bytes(v.try_into().unwrap())) + 1;
        tx.put_meta("outcomes", &count.to_le_bytes())?;
        tx.put_meta(&format!("outcome {:03}", n % 500), &n.to_le_bytes())
    })
}

fn outcomes(store: &Store) -> u64 {
    store.read(|r| r.meta("outcomes")).unwrap().map_or(0, |v| u64::from_le_bytes(v.try_into().unwrap()))
}

/// Five thousand outcomes on a disk without room, one commit after the other and many at a time: each is written, and survives a power
/// cut. Then there is room, and new work is taken again, also if nobody asked meanwhile.
#[test]
fn five_thousand_outcomes_fit_on_a_full_disk() {
    let disk = SimDisk::new();
    let clock = ManualClock::default();
    let options = || StoreOptions::new(Place::Disk(Arc::new(disk.clone())), Arc::new(clock.clone()));
    let (store, _) = Store::open(options()).unwrap();
    let rooms = Arc::new(Mutex::new(Vec::new()));
    let seen = rooms.clone();
    store.on_event(Box::new(move |e| {
        if let StoreEvent::Room { room, changed: true } = e {
            seen.lock().push(room);
        }
    }));
    assert_eq!(store.room(), Room::Normal);
    disk.bound_room(Some(3 << 20));
    let taken = fill_up(&store);
    assert!(taken > 0, "there was room for something");
    assert!(store.room() > Room::Normal);
    assert!(matches!(new_work(&store, "late"), Err(StoreError::Full(_))));
    for n in 0..1_000 {
        assert!(matches!(outcome(&store, n).recv().unwrap(), Heard::Settled(())), "outcome {n}");
    }
    let gate = Gate::close(&store);
    let heard: Vec<_> = (1_000..5_000).map(|n| outcome(&store, n)).collect();
    drop(gate);
    for (n, heard) in heard.iter().enumerate() {
        assert!(matches!(heard.recv().unwrap(), Heard::Settled(())), "outcome {}", n + 1_000);
    }
    assert_eq!(outcomes(&store), 5_000);
    println!("a full disk: {taken} new rows until it was full, 5000 of 5000 outcomes, {:?}", rooms.lock());
    drop(store);
    disk.cut_power(1);
    let (store, _) = Store::open(options()).unwrap();
    assert_eq!(outcomes(&store), 5_000, "durable when they were answered");
    assert!(store.room() > Room::Normal, "the next process knows of it");
    assert!(matches!(new_work(&store, "late"), Err(StoreError::Full(_))));
    disk.bound_room(None);
    clock.advance(Duration::from_secs(11));
    store.poke();
    while store.room() > Room::Normal {
        std::thread::yield_now();
    }
    new_work(&store, "late").unwrap();
}

/// Thousands of large requests wait in line when the disk fills up: those behind the first that did not fit are refused, and leave the
/// reserve to the outcomes that come behind them.
#[test]
fn what_waits_in_line_leaves_the_reserve_to_the_outcomes() {
    let disk = SimDisk::new();
    let store = open(&disk);
    disk.bound_room(Some(2 << 20));
    let gate = Gate::close(&store);
    let (to, heard) = mpsc::channel();
    for n in 0..400 {
        let new = New { name: format!("new {n:05}"), rows: 1, hides: false, to: to.clone() };
        assert!(store.submit(Lane::Enqueue, Box::new(new)).is_ok(), "nobody knows yet");
    }
    drop((to, gate));
    let told: Vec<_> = heard.iter().collect();
    assert_eq!(told.len(), 400, "everybody is told");
    let refused = told.iter().filter(|t| matches!(t, Err(StoreError::Full(_)))).count();
    assert!(refused > 0 && told.iter().all(|t| matches!(t, Ok(()) | Err(StoreError::Full(_)))), "{refused} refused");
    for n in 0..500 {
        assert!(matches!(outcome(&store, n).recv().unwrap(), Heard::Settled(())), "outcome {n}");
    }
    println!("400 large requests in line, {refused} refused, 500 of 500 outcomes behind them");
}

/// App code meets the full disk inside its transaction and makes an error of its own of it: the reserve is given up all the same, the
/// caller hears what it was, and outcomes go on.
#[test]
fn a_full_disk_that_app_code_met_is_noticed() {
    let disk = SimDisk::new();
    let mut options = on_disk(&disk);
    // So small that redb writes before the commit.
    options.cache_bytes = 64 << 10;
    let (store, _) = Store::open(options).unwrap();
    disk.bound_room(Some(0));
    let (to, heard) = mpsc::channel();
    let new = New { name: "app".to_owned(), rows: 60, hides: true, to };
    assert!(store.submit(Lane::Enqueue, Box::new(new)).is_ok());
    let told = heard.recv().unwrap();
    assert!(matches!(told, Err(StoreError::Full(_))), "{told:?}");
    assert!(!store.room().is_normal());
    for n in 0..100 {
        assert!(matches!(outcome(&store, n).recv().unwrap(), Heard::Settled(())), "outcome {n}");
    }
}

/// The disk was full for one moment: the round runs again, nobody is refused, and the reserve is there again.
#[test]
fn a_disk_that_was_full_for_a_moment_refuses_nobody() {
    use super::super::disk::{Fails, Fault, On};
    let disk = SimDisk::new();
    let store = open(&disk);
    disk.fail(Fault { on: On::Write, after: 0, times: 1, fails: Fails::Full });
    new_work(&store, "new").unwrap();
    assert_eq!((disk.counts().faults, store.room()), (1, Room::Normal));
}

/// The disk is so full that the queue cannot even start: a reserve that an earlier process kept is given up for that.
#[test]
fn a_queue_starts_on_a_full_disk() {
    let disk = SimDisk::new();
    drop(open(&disk));
    // Not one page more.
    disk.bound_room(Some(0));
    for start in 0..50 {
        let store = open(&disk);
        assert!(matches!(outcome(&store, start).recv().unwrap(), Heard::Settled(())), "start {start}");
    }
    // Without a reserve it says so, and leaves the file as it is.
    let bare = SimDisk::from_image(disk.bytes(), disk.sidecar().lock().unwrap().clone());
    bare.bound_room(Some(0));
    match Store::open(on_disk(&bare)) {
        Ok((store, _)) => assert_eq!(store.room(), Room::Critical),
        Err(e) => assert!(matches!(e, StoreError::Full(_)), "{e}"),
    }
}
