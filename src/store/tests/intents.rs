//! Intents: the same one is the same job, whatever was merged, pruned, undone, reopened or damaged meanwhile.

use super::super::disk::{Fails, Fault, On};
use super::super::intents::memory::Sizes;
use super::*;
use crate::model::job::{End, Identity, Intent};
use crate::rules::Change;
use redb::{ReadableTable, ReadableTableMetadata, TableDefinition};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

const PAGE: TableDefinition<'_, (u64, u64, u64), &[u8]> = TableDefinition::new("q/id-page");
const FRESH: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("q/id-fresh");
const RUN: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("q/id-run");
const JOB: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("q/job");

fn options(disk: &SimDisk, sizes: Sizes) -> StoreOptions {
    StoreOptions { intents: sizes, ..on_disk(disk) }
}

/// Another job of an intent, as a deliberate second run would make it.
fn again(tx: &mut Write<'_>, key: &str) -> Result<(JobId, u32), StoreError> {
    let kind = tx.add_kind("test")?;
    let known = tx.intent(kind, key)?;
    if let Some(Intent::Remembered(memory)) = &known {
        tx.forget(kind, key, memory)?;
    }
    let incarnation = known.map_or(1, |i| i.incarnation() + 1);
    let id = tx.next_id();
    let change = admit::create(id, kind, 128, Start::Now, &rules(), ManualClock::default().now());
    tx.insert(&JobRow { incarnation, ..row(key, vec![7; 20]) }, &change)?;
    Ok((id, incarnation))
}

/// Ends a job and removes its rows. The newest one of its intent is remembered.
fn prune(tx: &mut Write<'_>, id: JobId) -> Result<(), StoreError> {
    let (Some(record), Some(row)) = (tx.record(id)?, tx.job(id)?) else { return Ok(()) };
    let ended = JobState::Ended { how: End::Done, at: Wall(3) };
    let mut change = Change::bare(&record, ended);
    change.prune = Some(Wall(4));
    tx.put(&change)?;
    if tx.intent(row.kind, row.key.as_str())?.is_some_and(|i| i.id() == id) {
        let memory =
            Identity { id, incarnation: row.incarnation, digest: [0; 16], how: End::Done, until: Some(Wall(9)) };
        tx.remember(row.kind, row.key.as_str(), &memory)?;
    }
    tx.prune(id)
}

/// What should be known: of each key its newest job, its incarnation, and whether that has rows; and all jobs that have rows.
#[derive(Clone, Default)]
struct Known {
    intents: BTreeMap<String, (JobId, u32, bool)>,
    rows: BTreeMap<JobId, (String, u32)>,
}

impl Known {
    fn add(&mut self, key: &str, id: JobId, incarnation: u32) {
        self.intents.insert(key.to_owned(), (id, incarnation, true));
        self.rows.insert(id, (key.to_owned(), incarnation));
    }
    fn prune(&mut self, id: JobId) {
        let Some((key, _)) = self.rows.remove(&id) else { return };
        if let Some(known) = self.intents.get_mut(&key).filter(|(newest, ..)| *newest == id) {
            known.2 = false;
        }
    }
    /// The memory of a pruned job goes; an older one with rows would be the newest then.
    fn forget(&mut self, key: &str) {
        let older = self.rows.iter().rev().find(|(_, (k, _))| k == key).map(|(id, (_, n))| (*id, *n, true));
        match older {
            Some(older) => self.intents.insert(key.to_owned(), older),
            None => self.intents.remove(key),
        };
    }
    fn same(&self, key: &str, found: Option<Intent>) {
        let found = found.map(|i| (i.id(), i.incarnation(), matches!(i, Intent::Kept(..))));
        assert_eq!(found, self.intents.get(key).copied(), "{key}");
    }
}

fn key(n: u64) -> String {
    format!("order {n}")
}

/// An app's life, thousands of rounds long, on an index whose parts are tiny and whose hashes are few: jobs are enqueued, run again,
/// pruned and forgotten, rounds are undone by an app that panics and by a disk that fails, the store is killed and opened again.
/// Every intent is found as what it is, by the writer and by a reader, and no other one.
#[test]
fn an_intent_is_found_whatever_happens_to_its_jobs() {
    let mut did = BTreeMap::<&str, usize>::new();
    for (seed, hash_bits, tail, fan, page) in
        [(1, 4, 6, 2, 2), (2, 64, 5, 2, 3), (3, 64, 16, 3, 2), (4, 7, 12, 2, 4), (5, 64, 2, 2, 1), (6, 10, 9, 4, 223)]
    {
        let sizes = Sizes { tail, fan, page, hash_bits };
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut disk = SimDisk::new();
        let mut store = Store::open(options(&disk, sizes)).unwrap().0;
        let mut known = Known::default();
        for step in 0..900 {
            let keys: Vec<u64> = (0..rng.u64(1..5)).map(|_| rng.u64(..400)).collect();
            let what = match rng.u8(..100) {
                0..55 => {
                    let names: Vec<String> = keys.iter().map(|n| key(*n)).collect();
                    let made = ask(&store, move |tx| {
                        // One key may be there twice: the second one sees the first.
                        names.iter().map(|k| enqueue(tx, k).map(|id| (k.clone(), id))).collect::<Result<Vec<_>, _>>()
                    });
                    for (key, id) in made {
                        assert_eq!(id.is_none(), known.intents.contains_key(&key), "{key} in step {step}");
                        if let Some(id) = id {
                            known.add(&key, id, 1);
                        }
                    }
                    "enqueued"
                }
                55..65 => {
                    let name = key(keys[0]);
                    let expected = known.intents.get(&name).map_or(1, |(_, n, _)| n + 1);
                    let (id, n) = ask(&store, {
                        let name = name.clone();
                        move |tx| again(tx, &name)
                    });
                    assert_eq!(n, expected);
                    known.add(&name, id, n);
                    "run again"
                }
                65..83 => {
                    let old: Vec<JobId> = known.rows.keys().copied().take(60).collect();
                    let some: Vec<JobId> = (0..6).filter_map(|_| rng.choice(&old).copied()).collect();
                    some.iter().for_each(|id| known.prune(*id));
                    ask(&store, move |tx| some.iter().try_for_each(|id| prune(tx, *id)));
                    "pruned"
                }
                83..90 => {
                    for name in keys.iter().map(|n| key(*n)) {
                        if known.intents.get(&name).is_some_and(|(.., rows)| !rows) {
                            known.forget(&name);
                            ask(&store, move |tx| {
                                let memory = tx.remembered_intent(KindId(1), &name)?.unwrap();
                                tx.forget(KindId(1), &name, &memory)
                            });
                        }
                    }
                    "forgotten"
                }
                90..95 => {
                    let names: Vec<String> = keys.iter().map(|n| key(*n)).collect();
                    let heard = send_app(&store, move |tx| {
                        for name in &names {
                            again(tx, name)?;
                        }
                        tx.fail_app();
                        Ok(())
                    });
                    let _undone = heard.recv().unwrap();
                    "undone"
                }
                95..97 => {
                    let (on, fails) = if rng.bool() {
                        (On::Sync, Fails::Sync { reached: rng.u8(..=100), forget: false, seed })
                    } else {
                        (On::Write, Fails::Eio)
                    };
                    disk.fail(Fault { on, after: rng.u64(..3), times: 1, fails });
                    let name = key(keys[0]);
                    let (id, n) = ask(&store, {
                        let name = name.clone();
                        move |tx| again(tx, &name)
                    });
                    known.add(&name, id, n);
                    "healed"
                }
                97..99 => {
                    disk = disk.fork();
                    store = Store::open(options(&disk, sizes)).unwrap().0;
                    "killed"
                }
                _ => {
                    store.close().unwrap();
                    store = Store::open(options(&disk, sizes)).unwrap().0;
                    "closed"
                }
            };
            *did.entry(what).or_default() += 1;
            let sample: Vec<String> = (0..6).map(|_| key(rng.u64(..420))).collect();
            store
                .read(|r| {
                    for name in &sample {
                        known.same(name, r.intent(KindId(1), name)?);
                    }
                    Ok(())
                })
                .unwrap();
            let names = sample.clone();
            let found = ask(&store, move |tx| {
                names.iter().map(|name| tx.intent(KindId(1), name)).collect::<Result<Vec<_>, _>>()
            });
            sample.iter().zip(found).for_each(|(name, found)| known.same(name, found));
            if step % 50 == 0 {
                assert_eq!(store.read(|r| r.check_intents()).unwrap(), known.rows.len() as u64);
                assert_eq!(check_rows(&store).identities, known.intents.len() as u64);
            }
        }
    }
    println!("intents: {did:?}");
    assert!(did.len() == 8 && did.values().all(|n| *n > 20), "{did:?}");
}

fn run_sizes(store: &Store) -> (usize, u64) {
    store.read(|r| Ok((r.tables.id_run.read(r.tx)?.iter()?.count(), r.tables.id_page.read(r.tx)?.len()?))).unwrap()
}

/// A reader keeps its snapshot while hundreds of rounds empty the tail, merge its runs away and prune its jobs: it still finds every
/// intent as it was, and nothing that came later.
#[test]
fn a_reader_finds_what_its_snapshot_has_whatever_the_writer_does() {
    let mut looked = 0;
    for before in [3, 8, 20, 77, 150] {
        let disk = SimDisk::new();
        let store = Store::open(options(&disk, Sizes::tiny())).unwrap().0;
        let ids: Vec<JobId> = (0..before).map(|n| ask(&store, move |tx| enqueue(tx, &key(n))).unwrap()).collect();
        looked += store
            .read(|r| {
                let mut looked = 0;
                for round in 0..120 {
                    ask(&store, move |tx| enqueue(tx, &key(1_000 + round)));
                    if round % 3 == 0 {
                        let old = ids.get(usize::try_from(round / 3).unwrap()).copied();
                        ask(&store, move |tx| old.map_or(Ok(()), |id| prune(tx, id)));
                    }
                    if round % 10 == 0 {
                        for n in 0..before {
                            let found = r.intent(KindId(1), &key(n))?;
                            let kept = matches!(&found, Some(Intent::Kept(id, _)) if *id == ids[n as usize]);
                            assert!(kept, "{n} after {round}: {found:?}");
                            looked += 1;
                        }
                        assert_eq!(r.intent(KindId(1), &key(1_000 + round))?, None);
                    }
                }
                Ok(looked)
            })
            .unwrap();
        let after = store.read(|r| r.intent(KindId(1), &key(0))).unwrap();
        assert!(matches!(after, Some(Intent::Remembered(_))));
    }
    assert!(looked > 3_000, "{looked}");
}

/// Jobs come and go for a long time beside one that never ends: the index stays as small as what is kept. Then that one goes too, and
/// with it all that was left.
#[test]
fn the_index_does_not_grow_although_one_old_job_stays() {
    let sizes = Sizes { tail: 64, fan: 4, page: 16, hash_bits: 64 };
    let disk = SimDisk::new();
    let store = Store::open(options(&disk, sizes)).unwrap().0;
    let old = ask(&store, |tx| enqueue(tx, "old")).unwrap();
    let (mut n, mut most, mut alive) = (0, (0, 0), Vec::new());
    let mut round = |store: &Store, alive: &mut Vec<JobId>| {
        let from = n;
        n += 20;
        alive.extend(ask(store, move |tx| {
            (from..from + 20).map(|n| Ok(enqueue(tx, &key(n))?.unwrap())).collect::<Result<Vec<_>, StoreError>>()
        }));
        if alive.len() > 300 {
            let gone: Vec<JobId> = alive.drain(..20).collect();
            ask(store, move |tx| gone.iter().try_for_each(|id| prune(tx, *id)));
        }
    };
    for _ in 0..600 {
        round(&store, &mut alive);
        let now = run_sizes(&store);
        most = (most.0.max(now.0), most.1.max(now.1));
    }
    // 12,000 jobs of which 300 are kept: 750 pages and more if nothing were left out.
    println!("index: at most {most:?} runs and pages beside {} jobs", alive.len());
    assert!(most.0 > 4 && most.0 <= 24 && most.1 <= 200, "{most:?}");
    assert_eq!(ask(&store, |tx| enqueue(tx, "old")), None);
    ask(&store, move |tx| prune(tx, old));
    for _ in 0..60 {
        round(&store, &mut alive);
    }
    let (_, pages) = run_sizes(&store);
    assert!(pages <= 60, "{pages} pages");
    assert_eq!(store.read(|r| r.check_intents()).unwrap(), alive.len() as u64);
}

/// A file whose index has rows of every sort, closed; all jobs keep their rows.
fn file(path: &Path, jobs: u64) -> StoreOptions {
    let clock = Arc::new(ManualClock::default());
    let mut options = StoreOptions::new(Place::File(path.to_owned()), clock);
    (options.cache_bytes, options.intents) = (4 << 20, Sizes { tail: 30, fan: 3, page: 5, hash_bits: 64 });
    let store = Store::open(options.clone()).unwrap().0;
    for from in (0..jobs).step_by(5) {
        ask(&store, move |tx| (from..jobs.min(from + 5)).try_for_each(|n| enqueue(tx, &key(n)).map(drop)));
    }
    store.close().unwrap();
    options
}

/// Flips a bit in the middle of the nth row of a table.
fn damage<K: redb::Key>(path: &Path, table: TableDefinition<'static, K, &'static [u8]>, nth: usize) {
    let db = redb::Database::open(path).unwrap();
    let tx = db.begin_write().unwrap();
    {
        let mut table = tx.open_table(table).unwrap();
        let found = table.iter().unwrap().nth(nth).unwrap().unwrap();
        let (k, mut bytes) = (K::as_bytes(&found.0.value()).as_ref().to_vec(), found.1.value().to_vec());
        drop(found);
        let middle = bytes.len() / 2;
        bytes[middle] ^= 4;
        table.insert(K::from_bytes(&k), bytes.as_slice()).unwrap();
    }
    tx.commit().unwrap();
}

/// Enqueues every key again: how many are recognised, how many refused as corrupt, how many taken for new.
fn ask_all(store: &Store, jobs: u64) -> [usize; 3] {
    let mut heard = [0; 3];
    let asked: Vec<_> = (0..jobs).map(|n| send(store, Lane::Enqueue, move |tx| enqueue(tx, &key(n)))).collect();
    for answer in asked {
        let place = match answer.recv().unwrap() {
            Heard::Settled(None) => 0,
            Heard::Failed(e) if e.contains("cannot be read") => 1,
            Heard::Settled(Some(_)) => 2,
            other @ (Heard::Failed(_) | Heard::Unknown) => panic!("{other:?}"),
        };
        heard[place] += 1;
    }
    heard
}

/// A bit is flipped in a row of the newest entries, in a page of a run, in the card of a run, or in a job's row: of the key that needs
/// it the caller hears that it cannot be read, never that it is new; every other key is known as before, new ones are taken, and
/// merges go on around it.
#[test]
fn a_damaged_index_makes_nothing_new() {
    let dir = tempfile::tempdir().unwrap();
    let jobs = 400;
    let mut refused = BTreeMap::<&str, usize>::new();
    for nth in 0..4 {
        for what in ["fresh", "page", "card", "job"] {
            let path = dir.path().join(format!("{what}{nth}.redb"));
            let options = file(&path, jobs);
            match what {
                "fresh" => damage(&path, FRESH, 0),
                "page" => damage(&path, PAGE, nth * 17),
                "card" => damage(&path, RUN, nth),
                _ => damage(&path, JOB, nth),
            }
            let (store, opened) = Store::open(options.clone()).unwrap();
            assert_eq!(
                opened.unreadable.len(),
                usize::from(what == "page" || what == "card"),
                "{:?}",
                opened.unreadable
            );
            let heard = ask_all(&store, jobs);
            assert_eq!(heard[2], 0, "{what} {nth}: {heard:?}");
            *refused.entry(what).or_default() += heard[1];
            let most = match what {
                "fresh" | "card" => 0,
                // The five on the page, and perhaps neighbours for which the filter says "perhaps".
                "page" => 8,
                _ => 40,
            };
            assert!(heard[1] <= most && (heard[1] > 0) == (most > 0), "{what} {nth}: {heard:?}");
            for from in (jobs..jobs + 300).step_by(10) {
                let several = move |tx: &mut Write<'_>| {
                    (from..from + 10).try_for_each(|n| enqueue(tx, &format!("new {n}")).map(drop))
                };
                // One of them may meet the damaged page; most do not.
                let _heard = send(&store, Lane::Enqueue, several).recv().unwrap();
            }
            let later = ask_all(&store, jobs);
            assert_eq!(later[2], 0, "{what} {nth}: {later:?}");
            assert!(later[1] <= most, "{what} {nth}: {later:?}");
            store.close().unwrap();
            let store = Store::open(options).unwrap().0;
            assert_eq!(ask_all(&store, jobs)[2], 0);
        }
    }
    println!("index: refused as corrupt {refused:?}");
}

/// A row of the newest entries and the rows of its jobs are damaged both: it is said when the file is opened, and every other key is
/// known.
#[test]
fn what_is_lost_twice_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("jobs.redb");
    let options = file(&path, 12);
    damage(&path, FRESH, 1);
    // In the middle of the one pack: the row of a job whose entry is in the second row of five.
    damage(&path, JOB, 0);
    let (store, opened) = Store::open(options).unwrap();
    assert_eq!(opened.unreadable.len(), 1, "{:?}", opened.unreadable);
    let lost = (6..=10).filter(|n| opened.unreadable[0].contains(&format!("job {n} is not known"))).count();
    assert_eq!(lost, 1, "{:?}", opened.unreadable);
    let heard = ask_all(&store, 12);
    assert_eq!(heard, [11, 0, 1]);
}

/// Many rounds of one job each: what a round writes for the index is bounded, however big the runs are that are being merged.
#[test]
fn no_round_stalls_for_the_index() {
    let disk = SimDisk::new();
    let sizes = Sizes { tail: 64, fan: 4, page: 4, hash_bits: 64 };
    let store = Store::open(options(&disk, sizes)).unwrap().0;
    let (mut was, mut classes, mut most) = (BTreeSet::new(), 0, 0);
    for n in 0..3_000 {
        ask(&store, move |tx| enqueue(tx, &key(n)));
        let pages: BTreeSet<(u64, u64, u64)> = store
            .read(|r| {
                let rows = r.tables.id_page.read(r.tx)?.iter()?;
                rows.map(|row| Ok(row?.0.value())).collect()
            })
            .unwrap();
        most = most.max(pages.symmetric_difference(&was).count());
        was = pages;
        classes = classes.max(was.len());
    }
    println!("index: at most {most} pages changed in a round, {classes} pages in all");
    // The tail is 16 pages; each of the three merges that go on at once writes and removes a few.
    assert!(most <= 16 + 3 * 12 && classes > 700, "{most} {classes}");
}
