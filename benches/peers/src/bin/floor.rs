//! The least work that redb can do for a durable job, as a queue over it would have to: four rows in, three moves to be claimed,
//! three to be ended, two-phase commits, 32 MiB of cache. No rules, no payload logic, no answers.
//!
//! `floor DIR JOBS [existing N]`: with N jobs in the file first, so that the dedupe index is that large.

use onceward_peers::{Args, PAYLOAD, percentiles, rate, say};
use redb::{Database, TableDefinition, WriteTransaction};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread::{self, Thread};
use std::time::Instant;

const JOB: TableDefinition<u64, &[u8]> = TableDefinition::new("job");
const STATE: TableDefinition<u64, &[u8; 64]> = TableDefinition::new("state");
const READY: TableDefinition<(u32, u8, u64, u64), ()> = TableDefinition::new("ready");
const RUN: TableDefinition<u64, u64> = TableDefinition::new("run");
const ID: TableDefinition<&str, u64> = TableDefinition::new("id");
const PRUNE: TableDefinition<(u64, u64), ()> = TableDefinition::new("prune");

fn begin(db: &Database) -> WriteTransaction {
    let mut tx = db.begin_write().expect("a transaction");
    tx.set_two_phase_commit(true);
    tx
}

/// Keys that are neighbours, or spread over the whole index.
fn key(n: u64, scattered: bool) -> String {
    let n = if scattered { n.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 20 } else { n };
    format!("complete-order/ord_{n:014}")
}

fn enqueue(tx: &WriteTransaction, first: u64, keys: &[String]) -> Result<(), redb::Error> {
    let (mut job, mut state) = (tx.open_table(JOB)?, tx.open_table(STATE)?);
    let (mut ready, mut id) = (tx.open_table(READY)?, tx.open_table(ID)?);
    for (n, key) in (first..).zip(keys) {
        assert!(id.insert(key.as_str(), n)?.is_none(), "the same key twice");
        job.insert(n, [9; PAYLOAD].as_slice())?;
        state.insert(n, &[0; 64])?;
        ready.insert((1, 128, n, n), ())?;
    }
    Ok(())
}

fn claim(tx: &WriteTransaction, most: usize) -> Result<Vec<u64>, redb::Error> {
    let (mut state, mut ready, mut run) = (tx.open_table(STATE)?, tx.open_table(READY)?, tx.open_table(RUN)?);
    let mut claimed = Vec::with_capacity(most);
    while claimed.len() < most {
        let Some((key, _)) = ready.pop_first()? else { break };
        let n = key.value().3;
        state.insert(n, &[1; 64])?;
        run.insert(n, 7)?;
        claimed.push(n);
    }
    Ok(claimed)
}

fn end(tx: &WriteTransaction, claimed: &[u64]) -> Result<(), redb::Error> {
    let (mut state, mut run, mut prune) = (tx.open_table(STATE)?, tx.open_table(RUN)?, tx.open_table(PRUNE)?);
    for &n in claimed {
        state.insert(n, &[2; 64])?;
        run.remove(n)?;
        prune.insert((9, n), ())?;
    }
    Ok(())
}

struct Floor {
    args: Args,
    existing: u64,
    scattered: bool,
}

impl Floor {
    fn fresh(&self) -> Result<Database, redb::Error> {
        let db = Database::builder().set_cache_size(32 << 20).create(self.args.fresh("floor.redb"))?;
        let mut n = 0;
        while n < self.existing {
            let batch = 10_000.min(self.existing - n);
            let tx = db.begin_write()?;
            enqueue(&tx, n, &self.keys(n, batch))?;
            claim(&tx, batch as usize)?;
            tx.commit()?;
            n += batch;
        }
        Ok(db)
    }
    fn keys(&self, from: u64, n: u64) -> Vec<String> {
        (from..from + n).map(|n| key(n, self.scattered)).collect()
    }
    fn say(&self, metric: &str, value: f64) {
        let keys = if self.scattered { "scattered_" } else { "" };
        say("floor", &format!("{keys}{metric}"), value);
    }

    /// Everything in commits of one size.
    fn batches(&self, batch: u64) -> Result<(), redb::Error> {
        let jobs = if batch == 1 { self.args.jobs / 40 } else { self.args.jobs }.div_ceil(batch) * batch;
        let db = self.fresh()?;
        let (from, until) = (self.existing, self.existing + jobs);
        let mut failed = Ok(());
        let mut one = |f: &mut dyn FnMut(&WriteTransaction) -> Result<(), redb::Error>, db: &Database| {
            let tx = begin(db);
            failed = f(&tx).and_then(|()| Ok(tx.commit()?));
            failed.is_ok()
        };
        self.say(
            &format!("enqueue_{batch}"),
            rate(jobs, || {
                let mut n = from;
                while n < until && one(&mut |tx| enqueue(tx, n, &self.keys(n, batch)), &db) {
                    n += batch;
                }
            }),
        );
        self.say(
            &format!("drain_{batch}"),
            rate(jobs, || {
                let mut claimed = Vec::new();
                let mut more = true;
                while more
                    && one(
                        &mut |tx| {
                            end(tx, &claimed)?;
                            claimed = claim(tx, batch as usize)?;
                            more = !claimed.is_empty();
                            Ok(())
                        },
                        &db,
                    )
                {}
            }),
        );
        drop(db);
        let db = self.fresh()?;
        self.say(
            &format!("life_{batch}"),
            rate(jobs, || {
                let (mut n, mut claimed, mut more) = (from, Vec::new(), true);
                while more
                    && one(
                        &mut |tx| {
                            end(tx, &claimed)?;
                            if n < until {
                                enqueue(tx, n, &self.keys(n, batch))?;
                                n += batch;
                            }
                            claimed = claim(tx, batch as usize)?;
                            more = !claimed.is_empty();
                            Ok(())
                        },
                        &db,
                    )
                {}
            }),
        );
        failed
    }

    /// Callers that wait until their own job is durable; one writer commits whatever has arrived.
    fn parked(&self, callers: usize) -> Result<(), redb::Error> {
        struct Caller {
            done: AtomicBool,
            thread: Thread,
        }
        let jobs = if callers == 1 { self.args.jobs / 40 } else { self.args.jobs };
        let db = self.fresh()?;
        let (to, from) = mpsc::sync_channel::<(String, Arc<Caller>)>(4_096);
        let mut n = self.existing;
        let writer = thread::spawn(move || -> Result<(), redb::Error> {
            while let Ok(first) = from.recv() {
                let batch = std::iter::once(first).chain(from.try_iter().take(1_023));
                let (keys, waiting): (Vec<_>, Vec<_>) = batch.unzip();
                let tx = begin(&db);
                enqueue(&tx, n, &keys)?;
                tx.commit()?;
                n += keys.len() as u64;
                for caller in waiting {
                    caller.done.store(true, Ordering::Release);
                    caller.thread.unpark();
                }
            }
            Ok(())
        });
        let (next, until, scattered) = (AtomicU64::new(self.existing), self.existing + jobs, self.scattered);
        self.say(
            &format!("parked_{callers}"),
            rate(jobs, || {
                thread::scope(|scope| {
                    for _ in 0..callers {
                        let (to, next) = (to.clone(), &next);
                        scope.spawn(move || {
                            let me = Arc::new(Caller { done: AtomicBool::new(false), thread: thread::current() });
                            loop {
                                let n = next.fetch_add(1, Ordering::Relaxed);
                                if n >= until {
                                    return;
                                }
                                me.done.store(false, Ordering::Relaxed);
                                to.send((key(n, scattered), me.clone())).expect("the writer is there");
                                while !me.done.load(Ordering::Acquire) {
                                    thread::park();
                                }
                            }
                        });
                    }
                });
            }),
        );
        drop(to);
        writer.join().expect("the writer")
    }

    /// What one commit of one small row takes: the least that anything durable can take.
    fn one_commit(&self) -> Result<(), redb::Error> {
        let db = self.fresh()?;
        let mut times = Vec::new();
        for n in 0..200 {
            let t = Instant::now();
            let tx = begin(&db);
            enqueue(&tx, n, &[key(n, false)])?;
            tx.commit()?;
            times.push(t.elapsed());
        }
        let (p50, p99) = percentiles(times);
        self.say("commit_p50_us", p50);
        self.say("commit_p99_us", p99);
        Ok(())
    }
}

fn main() -> Result<(), redb::Error> {
    let args = Args::read();
    let existing = match args.more.as_slice() {
        [word, n] if word == "existing" => n.parse().expect("a number of jobs"),
        _ => 0,
    };
    let mut floor = Floor { args, existing, scattered: false };
    if existing == 0 {
        floor.one_commit()?;
    }
    for scattered in [false, true] {
        floor.scattered = scattered;
        for batch in [1, 64, 256, 1_024] {
            floor.batches(batch)?;
        }
        for callers in [1, 64, 256] {
            floor.parked(callers)?;
        }
    }
    Ok(())
}
