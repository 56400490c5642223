//! Requests meet in rounds: one commit for many, the order of the lanes, and a failure that stays alone.

use super::*;
use redb::{MultimapTableDefinition, ReadableTable, TableDefinition};
use std::collections::BTreeSet;

const ORDERS: TableDefinition<'static, u64, &str> = TableDefinition::new("orders");
const TAGS: MultimapTableDefinition<'static, u64, u64> = MultimapTableDefinition::new("tags");

fn order(tx: &mut Write<'_>, n: u64, fail: bool) -> Result<String, StoreError> {
    let run = tx.app("order", &mut |mut app| -> Result<(), StoreError> {
        app.open_table(ORDERS)?.insert(n, "paid")?;
        enqueue(app.own(), &format!("order {n}"))?;
        if fail { Err(StoreError::Busy) } else { Ok(()) }
    });
    Ok(match run {
        AppRun::Done { value: Ok(()), wrote } => format!("done, wrote {wrote}"),
        AppRun::Done { value: Err(e), .. } => {
            tx.fail_app();
            format!("failed: {e}")
        }
        AppRun::Panicked(text) => format!("panicked: {text}"),
        AppRun::Leaked(table) => format!("leaked: {table}"),
    })
}

fn orders(store: &Store) -> Vec<u64> {
    let rows = store.read_app(|app| match app.open_table(ORDERS) {
        Ok(table) => table.iter().unwrap().map(|r| r.unwrap().0.value()).collect(),
        Err(_) => Vec::new(),
    });
    rows.unwrap()
}

/// A hundred callers enqueue at the same time: one commit makes all of them durable, and the numbers rise in the order of arrival.
#[test]
fn a_hundred_enqueues_share_one_commit() {
    let disk = SimDisk::new();
    let store = open(&disk);
    let gate = Gate::close(&store);
    let heard: Vec<_> =
        (0..100).map(|i| send(&store, Lane::Enqueue, move |tx| enqueue(tx, &format!("k{i}")))).collect();
    let before = rounds(&disk);
    drop(gate);
    let ids: Vec<_> = heard.into_iter().map(|h| h.recv().unwrap()).collect();
    assert_eq!(rounds(&disk) - before, 1);
    assert_eq!(ids, (1..=100).map(|n| Heard::Settled(Some(JobId(n)))).collect::<Vec<_>>());
    assert_eq!((check_rows(&store).ready, check_rows(&store).identities), (100, 100));
}

/// Outcomes of one sort arrive while the writer is busy: what comes directly behind one rides with it; what comes behind another needs
/// a request of its own, and so does whatever comes when none waits.
#[test]
fn an_outcome_takes_along_what_comes_behind_it() {
    struct Many(Vec<u32>, Sender<Vec<u32>>);
    impl Op for Many {
        fn run(&mut self, _: &mut Write<'_>) -> Result<(), StoreError> {
            Ok(())
        }
        fn take_along(&mut self, more: &mut dyn Any) -> bool {
            let more = more.downcast_mut::<Option<u32>>().and_then(Option::take);
            self.0.extend(more);
            more.is_some()
        }
        fn settle(self: Box<Self>, _: Result<(), StoreError>) {
            let _ = self.1.send(self.0);
        }
    }
    let store = open(&SimDisk::new());
    let join = |n: u32| {
        let mut n = Some(n);
        store.join(&mut n).map(|()| n)
    };
    let gate = Gate::close(&store);
    assert_eq!(join(1).unwrap(), Some(1));
    let (to, told) = mpsc::channel();
    store.submit(Lane::Outcome, Box::new(Many(vec![1], to))).map_err(|(_, e)| e).unwrap();
    assert_eq!(join(2).unwrap(), None);
    send(&store, Lane::Enqueue, |_| Ok(()));
    assert_eq!(join(3).unwrap(), None);
    send(&store, Lane::Outcome, |_| Ok(()));
    assert_eq!(join(4).unwrap(), Some(4));
    drop(gate);
    assert_eq!(told.recv().unwrap(), [1, 2, 3]);
    store.clone().close().unwrap();
    assert!(matches!(join(5), Err(StoreError::Closed)));
}

/// Outcomes arrive while enqueues wait: they go first, whatever came earlier.
#[test]
fn outcomes_go_before_enqueues() {
    let store = open(&SimDisk::new());
    let gate = Gate::close(&store);
    let order = Arc::new(Mutex::new(Vec::new()));
    let note = |name: &'static str| {
        let order = order.clone();
        move |_: &mut Write<'_>| {
            order.lock().push(name);
            Ok(())
        }
    };
    let heard = [
        send(&store, Lane::Enqueue, note("enqueue 1")),
        send(&store, Lane::Outcome, note("outcome 1")),
        send(&store, Lane::Enqueue, note("enqueue 2")),
        send(&store, Lane::Outcome, note("outcome 2")),
    ];
    drop(gate);
    heard.iter().for_each(|h| assert_eq!(h.recv().unwrap(), Heard::Settled(())));
    assert_eq!(*order.lock(), ["outcome 1", "outcome 2", "enqueue 1", "enqueue 2"]);
}

/// The enqueue lane is full: the next enqueue is handed back untouched, an outcome is still taken.
#[test]
fn a_full_lane_hands_enqueues_back_and_takes_outcomes() {
    let store = open(&SimDisk::new());
    let gate = Gate::close(&store);
    let (to, _heard) = mpsc::channel();
    let nothing = |_: &mut Write<'_>| Ok(());
    for _ in 0..super::super::shared::ENQUEUES {
        let op = Call { f: nothing, value: None, app: false, to: to.clone() };
        assert!(store.submit(Lane::Enqueue, Box::new(op)).is_ok());
    }
    let (op, heard) = call(false, |_| Ok(5));
    let (op, error) = store.submit(Lane::Enqueue, op).unwrap_err();
    assert!(matches!(error, StoreError::Busy));
    assert!(store.submit(Lane::Outcome, op).is_ok());
    drop(gate);
    assert_eq!(heard.recv().unwrap(), Heard::Settled(5));
}

/// A round in which nobody writes costs no commit; the engine still hears that it is over.
#[test]
fn a_round_that_writes_nothing_is_not_committed() {
    let disk = SimDisk::new();
    let store = open(&disk);
    let seen = Seen::default();
    store.install_hook(Box::new(seen.clone()));
    ask(&store, |tx| enqueue(tx, "a"));
    let (syncs, writes) = (disk.counts().syncs, disk.counts().writes);
    assert_eq!(ask(&store, |tx| enqueue(tx, "a")), None);
    assert_eq!((disk.counts().syncs, disk.counts().writes), (syncs, writes));
    drop(Gate::close(&store));
    ask(&store, |_| Ok(()));
    let [before, committed, aborted] = seen.now();
    assert!(before >= 3 && committed >= 2 && aborted == 0, "{:?}", seen.now());
}

/// Every committed round counts one up, and the number survives.
#[test]
fn committed_rounds_are_numbered_without_gaps() {
    let disk = SimDisk::new();
    let (store, opened) = Store::open(on_disk(&disk)).unwrap();
    for i in 0..5 {
        ask(&store, move |tx| enqueue(tx, &format!("{i}")));
    }
    store.close().unwrap();
    let (_store, again) = Store::open(on_disk(&disk)).unwrap();
    assert_eq!((opened.round, again.round), (0, (1 << 32) + 5), "the first process start, and five rounds after it");
    assert_eq!(again.header.unwrap().round, again.round);
}

/// One of five transactions fails after it has written: it alone leaves no trace and is told so; everybody else is durable,
/// app rows and jobs together.
#[test]
fn a_failed_closure_leaves_no_trace_and_harms_no_neighbour() {
    let disk = SimDisk::new();
    let store = open(&disk);
    let gate = Gate::close(&store);
    let seen = Seen::default();
    store.install_hook(Box::new(seen.clone()));
    let own = send(&store, Lane::Enqueue, |tx| enqueue(tx, "own"));
    let heard: Vec<_> = (0..5).map(|n| send_app(&store, move |tx| order(tx, n, n == 2))).collect();
    drop(gate);
    let heard: Vec<_> = heard.into_iter().map(|h| h.recv().unwrap()).collect();
    for (n, heard) in heard.into_iter().enumerate() {
        let Heard::Settled(said) = heard else { panic!("{heard:?}") };
        assert_eq!(said.starts_with("failed"), n == 2, "{n}: {said}");
    }
    assert!(matches!(own.recv().unwrap(), Heard::Settled(Some(_))));
    assert_eq!(orders(&store), [0, 1, 3, 4]);
    assert_eq!(check_rows(&store).ready, 5, "the own one and four follow-ups");
    // Nothing of it was only in memory.
    store.close().unwrap();
    disk.cut_power(1);
    let store = open(&disk);
    assert_eq!((orders(&store), check_rows(&store).ready), (vec![0, 1, 3, 4], 5));
}

/// A closure panics while it holds a table, another forgets one: both are told, nobody else notices.
#[test]
fn a_panic_and_a_leaked_table_are_undone() {
    let disk = SimDisk::new();
    let store = open(&disk);
    for round in 0..2 {
        let gate = Gate::close(&store);
        let good = send_app(&store, move |tx| order(tx, 10 + round, false));
        let panics = send_app(&store, |tx| {
            Ok(
                match tx.app("panics", &mut |mut app| {
                    let mut orders = app.open_table(ORDERS).unwrap();
                    orders.insert(1, "half").unwrap();
                    panic!("by design");
                }) {
                    AppRun::Panicked(text) => text,
                    AppRun::Done::<()> { .. } | AppRun::Leaked(_) => "?".to_owned(),
                },
            )
        });
        let leaks = send_app(&store, |tx| {
            Ok(
                match tx.app("leaks", &mut |mut app| {
                    let mut tags = app.open_multimap_table(TAGS).unwrap();
                    tags.insert(1, 1).unwrap();
                    std::mem::forget(tags);
                }) {
                    AppRun::Leaked(table) => table,
                    AppRun::Done { .. } | AppRun::Panicked(_) => "?".to_owned(),
                },
            )
        });
        let behind = send(&store, Lane::Enqueue, move |tx| enqueue(tx, &format!("behind {round}")));
        drop(gate);
        assert_eq!(panics.recv().unwrap(), Heard::Settled("by design".to_owned()));
        assert_eq!(leaks.recv().unwrap(), Heard::Settled("tags".to_owned()));
        assert_eq!(good.recv().unwrap(), Heard::Settled("done, wrote true".to_owned()));
        assert!(matches!(behind.recv().unwrap(), Heard::Settled(Some(_))));
    }
    assert_eq!(orders(&store), [10, 11]);
    assert_eq!(check_rows(&store).ready, 4);
    // redb would have waited for the forgotten table for ever: the file was taken from it and opened anew.
    store.close().unwrap();
    assert_eq!(check_rows(&open(&disk)).ready, 4);
}

/// A bug of ours panics in the middle of a round: that request alone is told, and the writer goes on.
#[test]
fn a_panicking_operation_is_a_bug_of_its_own() {
    let store = open(&SimDisk::new());
    let gate = Gate::close(&store);
    let a = send(&store, Lane::Enqueue, |tx| enqueue(tx, "a"));
    let bug = send(&store, Lane::Enqueue, |tx| -> Result<(), StoreError> {
        enqueue(tx, "bug")?;
        panic!("a bug")
    });
    let wrong = send(&store, Lane::Enqueue, |tx| -> Result<(), StoreError> {
        enqueue(tx, "wrong")?;
        Err(StoreError::corrupt("for example"))
    });
    let b = send(&store, Lane::Enqueue, |tx| enqueue(tx, "b"));
    drop(gate);
    assert!(matches!(a.recv().unwrap(), Heard::Settled(Some(_))));
    assert!(matches!(b.recv().unwrap(), Heard::Settled(Some(_))));
    assert!(matches!(bug.recv().unwrap(), Heard::Failed(e) if e.contains("a bug")));
    assert!(matches!(wrong.recv().unwrap(), Heard::Failed(e) if e.contains("for example")));
    assert_eq!(check_rows(&store).identities, 2);
}

/// A closure fails before it opened anything: nothing has to be undone, the round stays one commit.
#[test]
fn a_failure_that_wrote_nothing_costs_nothing() {
    let disk = SimDisk::new();
    let store = open(&disk);
    let gate = Gate::close(&store);
    let a = send(&store, Lane::Enqueue, |tx| enqueue(tx, "a"));
    let fails = send_app(&store, |tx| {
        let run = tx.app("early", &mut |_| false);
        tx.fail_app();
        Ok(matches!(run, AppRun::Done { wrote: false, .. }))
    });
    let b = send_app(&store, |tx| order(tx, 1, false));
    let before = rounds(&disk);
    drop(gate);
    assert_eq!(fails.recv().unwrap(), Heard::Settled(true));
    assert!(matches!(a.recv().unwrap(), Heard::Settled(Some(_))));
    assert!(matches!(b.recv().unwrap(), Heard::Settled(_)));
    assert_eq!(rounds(&disk) - before, 1);
}

/// App code asks for one of our tables, to read or to write: refused by name.
#[test]
fn our_tables_are_hidden_from_app_code() {
    let store = open(&SimDisk::new());
    let said = ask(&store, |tx| {
        Ok(
            match tx.app("nosy", &mut |mut app| {
                let mine = app.open_table(TableDefinition::<u64, &[u8]>::new("q/job")).map(drop);
                let new = app.open_multimap_table(MultimapTableDefinition::<u64, u64>::new("q/new")).map(drop);
                [mine.unwrap_err().to_string(), new.unwrap_err().to_string()]
            }) {
                AppRun::Done { value, wrote: false } => value,
                AppRun::Done { wrote: true, .. } | AppRun::Panicked(_) | AppRun::Leaked(_) => Default::default(),
            },
        )
    });
    assert!(said.iter().all(|s| s.contains("reserved")), "{said:?}");
    let read = store.read_app(|app| app.open_table(TableDefinition::<u64, u64>::new("q/run")).map(drop));
    assert!(matches!(read.unwrap(), Err(StoreError::ReservedTable(_))));
    // The app's own mistake with its own table is an error of its own.
    ask(&store, |tx| order(tx, 1, false));
    let wrong = ask(&store, |tx| {
        Ok(
            match tx.app("wrong type", &mut |mut app| {
                app.open_table(TableDefinition::<&str, u64>::new("orders")).map(drop).map_err(|e| e.to_string())
            }) {
                AppRun::Done { value, .. } => value.unwrap_err(),
                AppRun::Panicked(e) | AppRun::Leaked(e) => e,
            },
        )
    });
    assert!(wrong.contains("app table"), "{wrong}");
}

/// The engine's part fails or panics: requests are committed without it, it forgets what it prepared, and it is named.
#[test]
fn a_failing_hook_does_not_hold_up_requests() {
    struct Bad(Seen, usize);
    impl RoundHook for Bad {
        fn before_commit(&mut self, tx: &mut Write<'_>) -> Result<(), StoreError> {
            self.1 += 1;
            tx.put_meta("half", b"x")?;
            if self.1.is_multiple_of(2) { panic!("by design") } else { Err(StoreError::corrupt("by design")) }
        }
        fn committed(&mut self, took: std::time::Duration) -> Option<Tell> {
            self.0.committed(took)
        }
        fn aborted(&mut self) {
            self.0.aborted();
        }
    }
    let store = open(&SimDisk::new());
    let (seen, events) = (Seen::default(), Arc::new(AtomicUsize::new(0)));
    let count = events.clone();
    store.on_event(Box::new(move |e| {
        assert!(matches!(e, StoreEvent::HookFailed { .. }));
        count.fetch_add(1, Ordering::SeqCst);
    }));
    store.install_hook(Box::new(Bad(seen.clone(), 0)));
    for key in ["a", "b"] {
        assert!(ask(&store, move |tx| enqueue(tx, key)).is_some());
    }
    assert_eq!(store.read(|r| r.meta("half")).unwrap(), None);
    assert_eq!((events.load(Ordering::SeqCst), seen.now()[2]), (2, 2));
}

/// Big payloads arrive together: a round ends when it is heavy enough, and what is left waits in its place.
#[test]
fn a_heavy_round_leaves_the_rest_for_the_next() {
    let disk = SimDisk::new();
    let store = open(&disk);
    let gate = Gate::close(&store);
    let heard: Vec<_> = (0..12)
        .map(|i| {
            let f = move |tx: &mut Write<'_>| enqueue_at(tx, &format!("{i}"), Start::Now, vec![1; 1 << 20]);
            send(&store, Lane::Enqueue, f)
        })
        .collect();
    let before = rounds(&disk);
    drop(gate);
    let ids: Vec<_> = heard.into_iter().map(|h| h.recv().unwrap()).collect();
    assert!(ids.is_sorted_by_key(|h| if let Heard::Settled(Some(id)) = h { id.0 } else { 0 }), "{ids:?}");
    assert_eq!(rounds(&disk) - before, 2);
    assert_eq!(check_rows(&store).jobs, 12);
}

/// Closing writes what waits, then refuses; what was refused comes back unsettled.
#[test]
fn closing_writes_what_waits_and_then_refuses() {
    let disk = SimDisk::new();
    let store = open(&disk);
    let gate = Gate::close(&store);
    let heard: Vec<_> = (0..10).map(|i| send(&store, Lane::Enqueue, move |tx| enqueue(tx, &format!("{i}")))).collect();
    let (other, closer) = (store.clone(), store.clone());
    let closing = std::thread::spawn(move || closer.close());
    while other.submit(Lane::Outcome, call(false, |_| Ok(())).0).is_ok() {
        std::thread::yield_now();
    }
    drop(gate);
    closing.join().unwrap().unwrap();
    heard.into_iter().for_each(|h| assert!(matches!(h.recv().unwrap(), Heard::Settled(Some(_)))));
    let (op, heard) = call(false, |_| Ok(()));
    assert!(matches!(other.submit(Lane::Enqueue, op), Err((_, StoreError::Closed))));
    assert!(heard.recv().is_err(), "handed back and dropped by us, never settled");
    assert!(matches!(other.read(|r| r.depth()), Err(StoreError::Closed)));
    assert!(other.close().is_ok());
    assert_eq!(check_rows(&open(&disk)).ready, 10);
}

/// The last handle is dropped by a request that settles: the writer ends without waiting for itself, and the file is free.
#[test]
fn the_last_handle_may_be_dropped_on_the_writer() {
    struct Last(Option<Store>, Sender<()>);
    impl Op for Last {
        fn run(&mut self, tx: &mut Write<'_>) -> Result<(), StoreError> {
            enqueue(tx, "last").map(drop)
        }
        fn settle(mut self: Box<Self>, _: Result<(), StoreError>) {
            drop(self.0.take());
            let _ = self.1.send(());
        }
    }
    let disk = SimDisk::new();
    let store = open(&disk);
    let (to, heard) = mpsc::channel();
    let last = Box::new(Last(Some(store.clone()), to));
    let gate = Gate::close(&store);
    assert!(store.submit(Lane::Enqueue, last).is_ok());
    let holder = std::thread::spawn(move || drop(store));
    drop(gate);
    heard.recv().unwrap();
    holder.join().unwrap();
    // The writer closes the file right after; the lock is its last sign.
    let store = loop {
        match Store::open(on_disk(&disk)) {
            Ok((store, _)) => break store,
            Err(StoreError::AlreadyOpen { .. }) => std::thread::yield_now(),
            Err(e) => panic!("{e}"),
        }
    };
    assert_eq!(check_rows(&store).ready, 1);
}

/// Who was told, on which thread.
type ToldOn = Arc<Mutex<Vec<(usize, String)>>>;

/// Notes when it is told; may own a handle of the store.
struct Numbered(usize, ToldOn, #[expect(dead_code, reason = "it is dropped with its owner")] Option<Store>);

impl Op for Numbered {
    fn run(&mut self, tx: &mut Write<'_>) -> Result<(), StoreError> {
        tx.touch();
        Ok(())
    }
    fn may_be_told_later(&self) -> bool {
        // One in the middle must not be.
        self.0 / 20 != 10
    }
    fn settle(self: Box<Self>, result: Result<(), StoreError>) {
        assert!(result.is_ok());
        self.1.lock().push((self.0, std::thread::current().name().unwrap_or_default().to_owned()));
    }
}

/// Hands in more while a round is about to be committed, so that the writer is busy when it answers.
struct Feeder {
    shared: std::sync::Weak<crate::store::shared::Shared>,
    told: ToldOn,
    next: usize,
    until: usize,
    last: Option<Store>,
}

impl RoundHook for Feeder {
    fn before_commit(&mut self, _: &mut Write<'_>) -> Result<(), StoreError> {
        let shared = self.shared.upgrade().unwrap();
        for _ in 0..20 {
            if self.next < self.until {
                let store = if self.next + 1 == self.until { self.last.take() } else { None };
                let op = Numbered(self.next, self.told.clone(), store);
                self.next += 1;
                shared.submit(Lane::Outcome, Box::new(op)).map_err(|(_, e)| e)?;
            }
        }
        Ok(())
    }
    fn committed(&mut self, _: std::time::Duration) -> Option<Tell> {
        let told = self.told.clone();
        Some(Box::new(move || told.lock().push((usize::MAX, String::new()))))
    }
    fn aborted(&mut self) {}
}

fn feed(store: &Store, until: usize, last: Option<Store>) -> ToldOn {
    let told = ToldOn::default();
    let shared = Arc::downgrade(&store.inner.shared);
    store.install_hook(Box::new(Feeder { shared, told: told.clone(), next: 0, until, last }));
    store.poke();
    told
}

/// Work keeps coming while rounds are committed: the answers are given beside the writer, in the order of rounds, the engine's behind
/// those of its round, and a close waits for all of them.
#[test]
fn a_busy_writer_has_its_answers_given_in_order() {
    let store = open(&SimDisk::new());
    let told = feed(&store, 400, None);
    // Whoever closes takes with it what waits: all of it has to be there first.
    while told.lock().iter().filter(|(n, _)| *n != usize::MAX).count() < 380 {
        std::thread::yield_now();
    }
    store.close().unwrap();
    let told = told.lock().clone();
    let numbers: Vec<usize> = told.iter().map(|(n, _)| *n).filter(|n| *n != usize::MAX).collect();
    assert_eq!(numbers, (0..400).collect::<Vec<_>>());
    assert!(
        told.iter().all(|(n, thread)| n / 20 != 10 || thread == "onceward-writer"),
        "told before the next round runs"
    );
    let beside = told.iter().filter(|(_, thread)| thread == "onceward-answers").count();
    assert!(beside >= 100, "{beside} answers were given beside the writer");
    for round in told.split(|(n, _)| *n == usize::MAX).filter(|r| !r.is_empty()) {
        assert_eq!(round.len(), 20, "the engine is told behind its round");
    }
}

/// The last handle of the store goes with an answer that is given beside the writer: the store closes, and nobody waits for himself.
#[test]
fn the_last_handle_may_go_with_an_answer() {
    let store = open(&SimDisk::new());
    let shared = store.inner.shared.clone();
    let last = store.clone();
    let told = feed(&store, 400, Some(last));
    drop(store);
    while shared.begin_read().is_ok() {
        std::thread::yield_now();
    }
    assert_eq!(told.lock().iter().filter(|(n, _)| *n != usize::MAX).count(), 400);
}

/// Ten ends in one request; two of them cannot be written, and that shows after they have written something. The others are durable,
/// also if the store is closed at once: nobody has to hand them in again. Those two leave no trace, and what else is in the round stays.
#[test]
fn a_request_of_many_parts_goes_without_those_that_fail() {
    struct Parts {
        left: BTreeSet<u64>,
        at: u64,
        runs: u64,
        to: Sender<(Result<(), StoreError>, BTreeSet<u64>, u64)>,
    }
    impl Op for Parts {
        fn run(&mut self, tx: &mut Write<'_>) -> Result<(), StoreError> {
            self.runs += 1;
            for part in (0..10).filter(|part| !self.left.contains(part)) {
                self.at = part;
                tx.put_meta(&format!("part/{part}"), &[1])?;
                if part == 3 || part == 7 {
                    return Err(StoreError::corrupt("a damaged line"));
                }
            }
            Ok(())
        }
        fn leave_out(&mut self, _: Option<&StoreError>) -> bool {
            self.left.insert(self.at)
        }
        fn settle(self: Box<Self>, result: Result<(), StoreError>) {
            let _ = self.to.send((result, self.left, self.runs));
        }
    }
    for beside in [false, true] {
        let disk = SimDisk::new();
        let store = open(&disk);
        let hold = beside.then(|| send(&store, Lane::Outcome, |tx| tx.put_meta("beside", &[1])));
        let (to, told) = mpsc::channel();
        let op = Parts { left: BTreeSet::new(), at: 0, runs: 0, to };
        store.submit(Lane::Outcome, Box::new(op)).map_err(|(_, e)| e).unwrap();
        store.close().unwrap();
        let (result, left, runs) = told.recv().unwrap();
        assert!(result.is_ok() && left == BTreeSet::from([3, 7]) && runs >= 3, "{result:?} {left:?} {runs}");
        assert!(hold.is_none_or(|heard| heard.recv().unwrap() == Heard::Settled(())));
        let store = open(&disk);
        let mut names = store.read(|r| r.meta_names("part/")).unwrap();
        names.sort();
        let all: Vec<String> = [0, 1, 2, 4, 5, 6, 8, 9].map(|n| format!("part/{n}")).to_vec();
        assert_eq!((names, store.read(|r| r.meta("beside")).unwrap().is_some()), (all, beside));
        store.close().unwrap();
    }
}
