//! App code in the queue's transactions: rows and jobs share one fate, the queue's own tables are out of reach, and a closure with
//! a bug harms nobody else.

use crate::ground::{Ground, HOUR, MINUTE, PATIENCE, from_threads, is, kind};
use onceward::redb::{ReadableTable, TableDefinition};
use onceward::{Error, Fail, JobId, Jobs, Outcome, Scope, State, StoreError};
use std::sync::{Arc, Mutex};

kind!(Plain = "plain");

const ROWS: TableDefinition<'_, &str, u64> = TableDefinition::new("rows");

fn count_rows(jobs: &Jobs) -> u64 {
    let table = jobs.read(|r| r.open_table(ROWS).map(|t| t.iter().unwrap().count())).unwrap();
    u64::try_from(table.unwrap_or(0)).unwrap()
}

/// App rows and jobs in one transaction: both are there, or neither; the closure's own error comes back as it was.
#[test]
fn a_transaction_stores_rows_and_jobs_together_or_not_at_all() {
    #[derive(Debug)]
    enum Mine {
        #[expect(dead_code, reason = "only shown")]
        Queue(Error),
        TooPoor,
    }
    impl From<Error> for Mine {
        fn from(e: Error) -> Self {
            Self::Queue(e)
        }
    }
    let ground = Ground::new();
    let signs = ground.signs.clone();
    let jobs = ground
        .builder()
        .on(move |_, j: Plain| {
            signs.say(j.key);
            Ok(())
        })
        .start()
        .unwrap();
    let write = |jobs: &Jobs, key: &'static str, fail: bool| {
        jobs.transact(move |tx| {
            let old =
                tx.open_table(ROWS).map_err(Mine::Queue)?.insert(key, 1).map_err(|e| Error::Store(e.into()))?.is_some();
            let now = tx.enqueue(&Plain::new(key, 0))?.is_new();
            let _ = tx.enqueue_after(HOUR, &Plain::new(&format!("{key} later"), 0))?;
            let _ = tx.enqueue_at(std::time::UNIX_EPOCH, &Plain::new(&format!("{key} past"), 0))?;
            if fail { Err(Mine::TooPoor) } else { Ok((old, now)) }
        })
    };
    assert!(matches!(write(&jobs, "a", true), Err(Mine::TooPoor)));
    ground.settle(&jobs);
    assert_eq!((count_rows(&jobs), ground.signs.words().len()), (0, 0), "nothing of it is stored");
    assert_eq!(write(&jobs, "a", false).unwrap(), (false, true));
    ground.settle(&jobs);
    assert_eq!(count_rows(&jobs), 1);
    // Two workers: either may be first.
    let mut ran = ground.signs.words();
    ran.sort();
    assert_eq!(ran, ["a", "a past"]);
    // The second time the rows are there and the jobs are known: told, not refused.
    assert_eq!(write(&jobs, "a", false).unwrap(), (true, false));
    assert_eq!(jobs.snapshot().unwrap().all.enqueued_total, 3, "what was undone was never counted");
    assert_eq!(jobs.snapshot().unwrap().all.duplicate_suppressed_total["enqueue"], 3);
    ground.close(jobs);
}

/// App code reaches for the queue's own tables, to read or to write: refused by name, nothing happens.
#[test]
fn the_queues_own_tables_are_out_of_reach() {
    const OURS: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("q/job");
    const MAP: onceward::redb::MultimapTableDefinition<'_, u64, u64> =
        onceward::redb::MultimapTableDefinition::new("q/mine");
    let ground = Ground::new();
    let jobs = ground.builder().on(|_, _: Plain| Ok(())).start().unwrap();
    let _ = jobs.enqueue(&Plain::new("a", 0)).unwrap();
    let reserved = |e: StoreError| matches!(&e, StoreError::ReservedTable(name) if name.starts_with("q/"));
    assert!(jobs.read(|r| r.open_table(OURS).map(|_| ()).is_err_and(reserved)).unwrap());
    assert!(jobs.read(|r| r.open_multimap_table(MAP).map(|_| ()).is_err_and(reserved)).unwrap());
    for map in [false, true] {
        let refused =
            jobs.transact(
                move |tx| {
                    if map { tx.open_multimap_table(MAP).map(|_| ()) } else { tx.open_table(OURS).map(|_| ()) }
                },
            );
        assert!(matches!(&refused, Err(Error::Store(StoreError::ReservedTable(_)))), "{refused:?}");
    }
    ground.settle(&jobs);
    ground.close(jobs);
}

/// A closure calls the queue it is inside of, by any verb: a typed error at once that names the way out, never a deadlock.
#[test]
fn every_verb_inside_a_closure_is_refused_at_once() {
    let ground = Ground::new();
    let signs = ground.signs.clone();
    let (own, finished) = (Arc::new(Mutex::new(None::<Jobs>)), Arc::new(Mutex::new(Vec::new())));
    let (inside, told) = (own.clone(), finished.clone());
    let jobs = ground
        .builder()
        .on(move |cx, j: Plain| {
            let (jobs, told) = (inside.lock().unwrap().clone().unwrap(), told.clone());
            let id = cx.id();
            let look = move || told.lock().unwrap().extend(all_verbs(&jobs, id));
            if j.n == 0 {
                cx.commit("look", move |_| {
                    look();
                    Ok(())
                })?;
            } else {
                cx.finish(move |_| {
                    look();
                    Ok(())
                })?;
            }
            signs.say("done");
            Ok(())
        })
        .start()
        .unwrap();
    *own.lock().unwrap() = Some(jobs.clone());
    let id = jobs.enqueue(&Plain::new("commit", 0)).unwrap().id();
    let _ = jobs.enqueue(&Plain::new("finish", 1)).unwrap();
    ground.signs.until("done", 2);
    let again = jobs.clone();
    let in_transact = jobs.transact::<_, Error>(move |_| Ok(all_verbs(&again, id))).unwrap();
    let mut all = std::mem::take(&mut *finished.lock().unwrap());
    all.extend(in_transact);
    println!("inside: {} verbs refused", all.len());
    assert_eq!(all.len(), 3 * 21);
    for (verb, e) in all {
        assert!(matches!(e, Some(Error::InsideTransaction)), "{verb}: {e:?}");
    }
    *own.lock().unwrap() = None;
    // In a read closure nobody holds the writer: there it may be called.
    let id = jobs.read(|_| jobs.enqueue(&Plain::new("from a read", 0)).unwrap().id()).unwrap();
    ground.settle(&jobs);
    assert!(jobs.state(id).is_ok());
    ground.close(jobs);
}

/// Calls every verb; what each failed with.
fn all_verbs(jobs: &Jobs, id: JobId) -> Vec<(&'static str, Option<Error>)> {
    let p = Plain::new("inside", 0);
    let now = |mut f: std::pin::Pin<Box<dyn Future<Output = Option<Error>> + '_>>| match f.as_mut().poll_once() {
        Some(e) => e,
        None => Some(Error::NotIdle),
    };
    vec![
        ("enqueue", jobs.enqueue(&p).err()),
        ("enqueue_async", now(Box::pin(async { jobs.enqueue_async(&p).await.err() }))),
        ("at", jobs.at(std::time::UNIX_EPOCH, &p).err()),
        ("at_async", now(Box::pin(async { jobs.at_async(std::time::UNIX_EPOCH, &p).await.err() }))),
        ("after", jobs.after(MINUTE, &p).err()),
        ("after_async", now(Box::pin(async { jobs.after_async(MINUTE, &p).await.err() }))),
        ("enqueue_many", jobs.enqueue_many(std::slice::from_ref(&p)).err()),
        ("run_again", jobs.run_again(&p).err()),
        ("run_again_async", now(Box::pin(async { jobs.run_again_async(&p).await.err() }))),
        ("transact", jobs.transact::<(), Error>(|_| Ok(())).err()),
        ("read", jobs.read(|_| ()).err()),
        ("state", jobs.state(id).err()),
        ("wait", jobs.wait(id, PATIENCE).err()),
        ("output", jobs.output::<u64>(id).err()),
        ("snapshot", jobs.snapshot().err()),
        ("pause", jobs.pause(Scope::All, "no").err()),
        ("resume", jobs.resume(Scope::All).err()),
        ("cancel", jobs.cancel(id).err()),
        ("drain", jobs.drain(PATIENCE).err()),
        ("dead_letters", jobs.dead_letters().err()),
        ("history", jobs.history(id).err()),
    ]
}

trait PollOnce<T> {
    fn poll_once(self) -> Option<T>;
}
impl<T> PollOnce<T> for std::pin::Pin<&mut (dyn Future<Output = T> + '_)> {
    fn poll_once(self) -> Option<T> {
        let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
        match self.poll(&mut cx) {
            std::task::Poll::Ready(t) => Some(t),
            std::task::Poll::Pending => None,
        }
    }
}

/// How the one bad closure among many misbehaves.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Bad {
    Fails,
    Panics,
    OddPanic,
    LeaksTable,
}

/// 64 callers write at once, and the closure of one of them fails, panics or keeps a table open. The other 63 are stored, the
/// bad one leaves no trace, and only it hears of it.
#[test]
fn one_bad_closure_among_many_harms_nobody() {
    let mut rounds = 0;
    for bad in [Bad::Fails, Bad::Panics, Bad::OddPanic, Bad::LeaksTable] {
        let ground = Ground::new();
        let jobs = ground.builder().on(|_, _: Plain| Ok(())).start().unwrap();
        let caller = jobs.clone();
        let told = from_threads(64, move |i| {
            let key = format!("{bad:?}/{i}");
            if i % 2 == 1 {
                return caller.enqueue(&Plain::new(&key, 0)).map(|_| ());
            }
            caller.transact(move |tx| {
                let mut table = tx.open_table(ROWS)?;
                table.insert(key.as_str(), 1).map_err(|e| Error::Store(e.into()))?;
                match (i, bad) {
                    (32, Bad::LeaksTable) => std::mem::forget(table),
                    _ => drop(table),
                }
                let _ = tx.enqueue(&Plain::new(&key, 0))?;
                match (i, bad) {
                    (32, Bad::Fails) => Err(Error::App("no".into())),
                    (32, Bad::Panics) => panic!("a closure with a bug"),
                    (32, Bad::OddPanic) => std::panic::panic_any(Odd),
                    _ => Ok(()),
                }
            })
        });
        for (i, told) in told.iter().enumerate() {
            match (i, bad, told) {
                (32, Bad::Fails, Err(Error::App(_)))
                | (32, Bad::Panics | Bad::OddPanic, Err(Error::Panicked(_)))
                | (32, Bad::LeaksTable, Err(Error::Store(StoreError::TableLeaked(_)))) => {}
                (32, ..) => panic!("{bad:?}: {told:?}"),
                (_, _, told) => assert!(told.is_ok(), "{bad:?}, caller {i}: {told:?}"),
            }
        }
        ground.settle(&jobs);
        assert_eq!(count_rows(&jobs), 31, "{bad:?}");
        // And the writer lives on.
        let _ = jobs.enqueue(&Plain::new("after it", 0)).unwrap();
        ground.settle(&jobs);
        let recount = ground.close(jobs);
        assert_eq!(recount.jobs.len(), 64, "{bad:?}: 63 and one afterwards");
        assert!(recount.jobs.values().all(|r| State::from(&r.state) == State::Done));
        rounds += 1;
    }
    println!("bad closures: {rounds} ways, 64 callers each");
    assert_eq!(rounds, 4);
}

/// A panic with something that is no text.
struct Odd;
impl Drop for Odd {
    fn drop(&mut self) {
        panic!("and its drop panics, too");
    }
}

/// A handler's commit fails, panics or keeps a table open: that attempt fails with a text that says so, its neighbours' commits
/// are stored.
#[test]
fn a_bad_commit_of_one_handler_fails_only_its_attempt() {
    let ground = Ground::new();
    let jobs = ground
        .builder()
        .workers(4)
        .on(move |cx, j: Plain| {
            let key = j.key.clone();
            cx.commit("row", move |tx| -> Outcome {
                let mut table = tx.open_table(ROWS)?;
                table.insert(key.as_str(), 1)?;
                match key.as_str() {
                    "leaks" => std::mem::forget(table),
                    _ => drop(table),
                }
                match key.as_str() {
                    "fails" => Err(Fail::permanent("no")),
                    "panics" => panic!("a commit with a bug"),
                    _ => Ok(()),
                }
            })
        })
        .start()
        .unwrap();
    let mut batch: Vec<_> = (0..20).map(|n| Plain::new(&format!("good {n}"), n)).collect();
    batch.extend(["fails", "panics", "leaks"].map(|k| Plain::new(k, 0)));
    let ids = jobs.enqueue_many(&batch).unwrap();
    ground.settle(&jobs);
    assert_eq!(count_rows(&jobs), 20);
    is(&jobs, ids[20].id(), State::Dead);
    for (id, word) in [(ids[21].id(), "panicked"), (ids[22].id(), "left the table")] {
        is(&jobs, id, State::Delayed);
        let past = format!("{:?}", jobs.history(id).unwrap());
        assert!(past.contains(word), "{past}");
    }
    ids[..20].iter().for_each(|e| is(&jobs, e.id(), State::Done));
    ground.close(jobs);
}

/// The app reads its own tables as of one moment, also one that was never written.
#[test]
fn reading_sees_one_moment_of_the_apps_own_tables() {
    let ground = Ground::new();
    let jobs = ground.builder().on(|_, _: Plain| Ok(())).start().unwrap();
    assert!(jobs.read(|r| r.open_table(ROWS).is_err()).unwrap(), "no such table yet");
    let put = |jobs: &Jobs, n: u64| {
        jobs.transact::<(), Error>(move |tx| {
            tx.open_table(ROWS)?.insert("x", n).map_err(|e| Error::Store(e.into()))?;
            Ok(())
        })
        .unwrap();
    };
    put(&jobs, 1);
    let seen = jobs
        .read(|r| {
            let table = r.open_table(ROWS).unwrap();
            let before = table.get("x").unwrap().unwrap().value();
            put(&jobs, 2);
            (before, table.get("x").unwrap().unwrap().value())
        })
        .unwrap();
    assert_eq!(seen, (1, 1), "one moment");
    assert_eq!(jobs.read(|r| r.open_table(ROWS).unwrap().get("x").unwrap().unwrap().value()).unwrap(), 2);
    ground.close(jobs);
}
