//! Callers and the one writer: what three of them are told at the same time is what the file holds, also if the disk fails in between.

use super::{Log, MANY, SECOND, World, explore, spawn};
use onceward::redb::{ReadableTable, TableDefinition};
use onceward::testkit::{Fails, Fault, On};
use onceward::{Enqueued, Error, Job, JobId, JobKey, Jobs, State, StoreError};
use serde::{Deserialize, Serialize};

type AnyError = Box<dyn std::error::Error + Send + Sync>;

const ROWS: TableDefinition<'_, &str, u64> = TableDefinition::new("app/rows");

#[derive(Serialize, Deserialize)]
struct Intent(u64);
impl Job for Intent {
    const KIND: &'static str = "intent";
    fn key(&self) -> JobKey {
        self.0.to_string().into()
    }
}

/// Enqueued together with a row.
#[derive(Serialize, Deserialize)]
struct Beside(String);
impl Job for Beside {
    const KIND: &'static str = "beside";
    fn key(&self) -> JobKey {
        self.0.as_str().into()
    }
}

/// What callers were told.
#[derive(Clone, Default)]
struct Told {
    /// Each intent whose job somebody was the first to ask for.
    new: Log<u64>,
    jobs: Log<JobId>,
    /// Rows that are there, that nobody knows of, and that are not.
    rows: Log<(String, Option<bool>)>,
}

fn unknown(e: &Error) -> bool {
    matches!(e, Error::Unknown | Error::Store(StoreError::Unknown))
}

fn ask(jobs: &Jobs, told: &Told, intent: u64) {
    // Whoever does not know asks again.
    for _ in 0..20 {
        match jobs.enqueue(&Intent(intent)) {
            Ok(Enqueued::New(id)) => {
                told.new.push(intent);
                return told.jobs.push(id);
            }
            Ok(Enqueued::Existing { id, differs, .. }) => {
                assert!(!differs);
                return told.jobs.push(id);
            }
            Err(_) => {}
        }
    }
    panic!("intent {intent} cannot be enqueued");
}

fn count_up(jobs: &Jobs, told: &Told, row: String) {
    let mine = row.clone();
    let done = jobs.transact(move |tx| -> Result<JobId, AnyError> {
        let mut rows = tx.open_table(ROWS)?;
        for name in ["sum", &mine] {
            let was = rows.get(name)?.map_or(0, |v| v.value());
            rows.insert(name, was + 1)?;
        }
        drop(rows);
        Ok(tx.enqueue(&Beside(mine.clone()))?.id())
    });
    let sure = match done {
        Ok(id) => {
            told.jobs.push(id);
            Some(true)
        }
        Err(e) if e.downcast_ref::<Error>().is_some_and(unknown) => None,
        Err(_) => Some(false),
    };
    told.rows.push((row, sure));
}

/// Three callers ask for overlapping sets of intents and count rows up, each with a job in the same transaction, while the disk fails
/// at a drawn moment and the writer heals: every intent is new to at most one of them, what was acknowledged is there exactly once, and
/// a row and its job are there together or not at all.
#[test]
fn what_callers_are_told_is_what_the_file_holds() {
    explore("writer and callers", &MANY, &["the disk failed", "a sync failed", "no fault"], |schedule| {
        let world = World::default();
        let (told, ran) = (Told::default(), Log::default());
        let (one, two) = (ran.clone(), ran.clone());
        let jobs = world.process(1, 2).on(move |cx, _: Intent| Ok(one.push(cx.id())));
        let jobs = jobs.on(move |cx, _: Beside| Ok(two.push(cx.id()))).start().unwrap();
        let sync = schedule.draw(1, 3) == 0;
        let fails = match schedule.draw(2, 4) {
            _ if sync => {
                let reached = schedule.pick(3, [0, 50, 100]);
                Fails::Sync { reached, forget: schedule.draw(4, 2) == 0, seed: schedule.number as u64 }
            }
            0 => Fails::Short,
            _ => Fails::Eio,
        };
        let (on, after) = if sync { (On::Sync, schedule.draw(5, 8)) } else { (On::AnyChange, schedule.draw(5, 60)) };
        if schedule.draw(6, 4) > 0 {
            world.disk.fail(Fault { on, after, times: 1 + schedule.draw(7, 2), fails });
        }
        let callers: Vec<_> = (0..3)
            .map(|caller| {
                let (jobs, told) = (jobs.clone(), told.clone());
                spawn(move || {
                    for n in 0..2 {
                        ask(&jobs, &told, caller + n);
                        count_up(&jobs, &told, format!("{caller}/{n}"));
                    }
                })
            })
            .collect();
        callers.into_iter().for_each(|c| c.join().unwrap());
        let faults = world.disk.counts().faults;
        world.disk.heal();
        world.all_over(&jobs, &told.jobs.all(), SECOND);
        let new = told.new.all();
        for intent in 0..4 {
            assert!(new.iter().filter(|n| **n == intent).count() <= 1, "{intent} was new to two callers: {new:?}");
            assert!(faults > 0 || new.contains(&intent), "{intent} was new to nobody");
            let id = jobs.find::<Intent>(&intent.to_string().into()).unwrap().unwrap();
            assert_eq!(ran.count(|job| *job == id), 1, "the handler of intent {intent}");
        }
        assert!(told.jobs.all().iter().all(|id| jobs.state(*id).unwrap() == State::Done));
        let value = |row: &str| {
            let read =
                jobs.read(|r| r.open_table(ROWS).ok().map(|rows| rows.get(row).unwrap().map_or(0, |v| v.value())));
            read.unwrap().unwrap_or(0)
        };
        let mut there = 0;
        for (row, sure) in told.rows.all() {
            let n = value(&row);
            assert!(
                n <= 1 && sure.is_none_or(|sure| (n == 1) == sure),
                "row {row} is {n}, and its caller was told {sure:?}"
            );
            let job = jobs.find::<Beside>(&row.as_str().into()).unwrap();
            assert_eq!(job.is_some(), n == 1, "row {row} and its job are there together or not at all");
            there += n;
            if sure.is_none() {
                schedule.saw("nobody knew");
            }
        }
        assert_eq!(value("sum"), there, "every increment is in the row exactly once");
        schedule.saw(if faults == 0 { "no fault" } else { "the disk failed" });
        if faults > 0 && sync {
            schedule.saw("a sync failed");
        }
        world.end(jobs);
    });
}
