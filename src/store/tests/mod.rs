//! The store's promises, tried on the simulated disk and on real files. Shared here: a store to try them on, requests made of
//! closures, and a way to let several of them meet in one round.
#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]
#![expect(clippy::disallowed_methods, reason = "callers of a test are threads")]
#![expect(clippy::type_complexity, reason = "a table of cases")]

mod heal;
mod intents;
mod open;
mod room;
mod rounds;
mod rows;

use super::disk::{DiskFactory, SimDisk};
use super::run_file::header_of;
use super::*;
use crate::clock::Clock;
use crate::clock::ManualClock;
use crate::model::id::JobId;
use crate::model::id::{JobKey, KindId};
use crate::model::job::{Codec, JobRecord, JobRow, JobState};
use crate::model::policy::{KindRules, Policy};
use crate::model::time::Wall;
use crate::rules::admit::{self, Start};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};

fn on_disk(disk: &SimDisk) -> StoreOptions {
    let mut options = StoreOptions::new(Place::Disk(Arc::new(disk.clone())), Arc::new(ManualClock::default()));
    options.cache_bytes = 4 << 20;
    options
}

fn open(disk: &SimDisk) -> Store {
    Store::open(on_disk(disk)).unwrap().0
}

/// The number of the newest committed round.
fn rounds(disk: &SimDisk) -> u64 {
    header_of(&disk.sidecar().lock().unwrap()).unwrap().round
}

/// What a caller hears.
#[derive(Debug, Clone, PartialEq)]
enum Heard<T> {
    Settled(T),
    Failed(String),
    Unknown,
}

struct Call<T, F> {
    f: F,
    value: Option<T>,
    app: bool,
    to: Sender<Heard<T>>,
}

impl<T: Send, F: FnMut(&mut Write<'_>) -> Result<T, StoreError> + Send> Op for Call<T, F> {
    fn run(&mut self, tx: &mut Write<'_>) -> Result<(), StoreError> {
        self.value = None;
        self.value = Some((self.f)(tx)?);
        Ok(())
    }
    fn is_app(&self) -> bool {
        self.app
    }
    fn settle(self: Box<Self>, result: Result<(), StoreError>) {
        let heard = match (result, self.value) {
            (Ok(()), Some(value)) => Heard::Settled(value),
            (Ok(()), None) => Heard::Failed("settled without a value".to_owned()),
            (Err(e), _) => Heard::Failed(e.to_string()),
        };
        let _ = self.to.send(heard);
    }
    fn unknown(&mut self) {
        let _ = self.to.send(Heard::Unknown);
    }
}

fn call<T: Send + 'static>(
    app: bool,
    f: impl FnMut(&mut Write<'_>) -> Result<T, StoreError> + Send + 'static,
) -> (Box<dyn Op>, Receiver<Heard<T>>) {
    let (to, heard) = mpsc::channel();
    (Box::new(Call { f, value: None, app, to }), heard)
}

fn send<T: Send + 'static>(
    store: &Store,
    lane: Lane,
    f: impl FnMut(&mut Write<'_>) -> Result<T, StoreError> + Send + 'static,
) -> Receiver<Heard<T>> {
    let (op, heard) = call(false, f);
    store.submit(lane, op).map_err(|(_, e)| e).unwrap();
    heard
}

fn send_app<T: Send + 'static>(
    store: &Store,
    f: impl FnMut(&mut Write<'_>) -> Result<T, StoreError> + Send + 'static,
) -> Receiver<Heard<T>> {
    let (op, heard) = call(true, f);
    store.submit(Lane::Enqueue, op).map_err(|(_, e)| e).unwrap();
    heard
}

/// Runs one request and waits for its answer.
fn ask<T: Send + 'static>(store: &Store, f: impl FnMut(&mut Write<'_>) -> Result<T, StoreError> + Send + 'static) -> T {
    match send(store, Lane::Enqueue, f).recv().unwrap() {
        Heard::Settled(value) => value,
        Heard::Failed(e) => panic!("{e}"),
        Heard::Unknown => panic!("unknown"),
    }
}

/// Holds the writer inside a round until dropped: what is submitted meanwhile joins that round.
struct Gate(Option<Sender<()>>);

impl Gate {
    fn close(store: &Store) -> Self {
        let (open, opened) = mpsc::channel::<()>();
        let (inside, entered) = mpsc::channel();
        send(store, Lane::Outcome, move |_| {
            let _ = inside.send(());
            let _ = opened.recv();
            Ok(())
        });
        entered.recv().unwrap();
        Self(Some(open))
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        drop(self.0.take());
    }
}

fn rules() -> KindRules {
    Policy::default().resolve(&[])
}

fn row(key: &str, payload: Vec<u8>) -> JobRow {
    JobRow {
        kind: KindId(1),
        key: JobKey::from(key),
        incarnation: 1,
        version: 1,
        codec: Codec::Json,
        title: String::new(),
        enqueued: Wall(1),
        payload,
        undoes: None,
    }
}

/// The smallest enqueue there is: refuses a known key, else makes a ready job.
fn enqueue(tx: &mut dyn Own, key: &str) -> Result<Option<JobId>, StoreError> {
    enqueue_at(tx, key, Start::Now, vec![7; 100])
}

fn enqueue_at(tx: &mut dyn Own, key: &str, start: Start, payload: Vec<u8>) -> Result<Option<JobId>, StoreError> {
    let kind = tx.add_kind("test")?;
    if tx.intent(kind, key)?.is_some() {
        return Ok(None);
    }
    let id = tx.next_id();
    let change = admit::create(id, kind, 128, start, &rules(), ManualClock::default().now());
    tx.insert(&row(key, payload), &change)?;
    Ok(Some(id))
}

fn record(store: &Store, id: JobId) -> JobRecord {
    store.read(|r| r.record(id)).unwrap().unwrap()
}

/// Every index row has its record and the reverse.
fn check_rows(store: &Store) -> Depth {
    store
        .read(|r| {
            let depth = r.depth()?;
            let ready = r.ready(KindId(1), usize::MAX)?;
            assert_eq!(ready.len() as u64, depth.ready);
            for (priority, ticket, id) in ready {
                let record = r.record(id)?.unwrap();
                assert_eq!((record.state, record.priority), (JobState::Ready { ticket }, priority));
                assert!(r.job(id)?.is_some());
            }
            for (due, id) in r.timers((Wall(0), JobId(0)), usize::MAX)? {
                let state = r.record(id)?.unwrap().state;
                assert!(
                    matches!(state, JobState::Delayed { due: d, .. } | JobState::Waiting { due: d, .. } if d == due)
                );
            }
            for (id, token) in r.running()? {
                assert!(matches!(r.record(id)?.unwrap().state, JobState::Running { token: t, .. } if t == token));
            }
            Ok(depth)
        })
        .unwrap()
}

/// Counts what the engine's part of a round sees.
#[derive(Clone, Default)]
struct Seen(Arc<[AtomicUsize; 3]>);

impl Seen {
    fn now(&self) -> [usize; 3] {
        [0, 1, 2].map(|i| self.0[i].load(Ordering::SeqCst))
    }
}

impl RoundHook for Seen {
    fn before_commit(&mut self, _: &mut Write<'_>) -> Result<(), StoreError> {
        self.0[0].fetch_add(1, Ordering::SeqCst);
        Ok(())
    }
    fn committed(&mut self, _: std::time::Duration) -> Option<Tell> {
        self.0[1].fetch_add(1, Ordering::SeqCst);
        None
    }
    fn aborted(&mut self) {
        self.0[2].fetch_add(1, Ordering::SeqCst);
    }
}
