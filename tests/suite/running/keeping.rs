//! What is kept and for how long: pauses across restarts, claims across a shutdown, answers for whoever waits, rows until their
//! retention is over.

use super::until;
use crate::ground::{DAY, Ground, HOUR, MINUTE, PATIENCE, SECOND, from_threads, is, kind, thread};
use onceward::{Decision, Effect, EffectCard, Error, Fail, Job, JobId, JobKey, Jobs, Policy, Recovery, Scope, State};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

kind!(Plain = "plain");
kind!(Mail = "mail" { const QUEUE: &'static str = "outside"; });
kind!(Push = "push" { const QUEUE: &'static str = "outside"; });

fn three_kinds(ground: &Ground) -> Jobs {
    let signs = [ground.signs.clone(), ground.signs.clone(), ground.signs.clone()];
    let [a, b, c] = signs;
    ground
        .builder()
        .on(move |_, j: Plain| {
            a.say(j.key);
            Ok(())
        })
        .on(move |_, j: Mail| {
            b.say(j.key);
            Ok(())
        })
        .on(move |_, j: Push| {
            c.say(j.key);
            Ok(())
        })
        .start()
        .unwrap()
}

fn enqueue_all(jobs: &Jobs, round: u32) -> [JobId; 3] {
    let key = |k: &str| format!("{k}{round}");
    [
        jobs.enqueue(&Plain::new(&key("plain"), 0)).unwrap().id(),
        jobs.enqueue(&Mail::new(&key("mail"), 0)).unwrap().id(),
        jobs.enqueue(&Push::new(&key("push"), 0)).unwrap().id(),
    ]
}

/// An operator pauses one kind, a queue, or everything, and says why. Nothing of it runs, also after a restart, until the same
/// scope is resumed; the rest goes on, and the reason is there for whoever asks.
#[test]
fn a_pause_lasts_until_it_is_lifted_also_across_a_restart() {
    let scopes = [
        (Scope::kind("mail"), [false, true, false]),
        (Scope::queue("outside"), [false, true, true]),
        (Scope::All, [true, true, true]),
    ];
    let mut rounds = 0;
    for (scope, held) in scopes {
        let ground = Ground::new();
        let jobs = three_kinds(&ground);
        jobs.pause(scope.clone(), "the provider is down").unwrap();
        let first = enqueue_all(&jobs, 1);
        let check = |jobs: &Jobs, ids: [JobId; 3]| {
            ground.settle(jobs);
            for (id, held) in ids.into_iter().zip(held) {
                is(jobs, id, if held { State::Paused } else { State::Done });
                // Whoever waits hears what for.
                let waited = jobs.wait(id, Duration::ZERO);
                let told =
                    matches!(&waited, Err(Error::Paused { job, why }) if *job == id && why == "the provider is down");
                assert!(told == held, "{waited:?}");
            }
        };
        check(&jobs, first);
        assert_eq!(jobs.pauses(), [(scope.clone(), "the provider is down".to_owned())]);
        assert!(jobs.snapshot().unwrap().gauges.paused);
        ground.close(jobs);

        let jobs = three_kinds(&ground);
        check(&jobs, first);
        let second = enqueue_all(&jobs, 2);
        check(&jobs, second);
        assert_eq!(jobs.pauses(), [(scope.clone(), "the provider is down".to_owned())]);
        // Another scope's resume lifts nothing.
        jobs.resume(Scope::kind("plain")).unwrap();
        check(&jobs, second);
        jobs.resume(scope).unwrap();
        ground.settle(&jobs);
        first.iter().chain(&second).for_each(|id| is(&jobs, *id, State::Done));
        assert!(jobs.pauses().is_empty());
        assert_eq!(ground.close(jobs).attempts(), 6);
        rounds += 1;
    }
    println!("pauses: {rounds} scopes");
    assert_eq!(rounds, 3);
}

/// Jobs stream in and run while an operator pauses and resumes, again and again: from the moment the pause is acknowledged no
/// further job begins, and none is lost.
#[test]
fn nothing_begins_after_an_acknowledged_pause() {
    let ground = Ground::new();
    let begun = Arc::new(AtomicUsize::new(0));
    let count = begun.clone();
    let jobs = ground
        .builder()
        .workers(4)
        .on(move |_, _: Plain| {
            count.fetch_add(1, Ordering::SeqCst);
            Ok(())
        })
        .start()
        .unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let (producer, end) = (jobs.clone(), stop.clone());
    let producer = thread(move || {
        let mut n = 0;
        while !end.load(Ordering::SeqCst) {
            let batch: Vec<_> = (n..n + 20).map(|n| Plain::new(&n.to_string(), n)).collect();
            let _ = producer.enqueue_many(&batch).unwrap();
            n += 20;
        }
        usize::try_from(n).unwrap()
    });
    let mut pauses = 0;
    for _ in 0..30 {
        until(|| begun.load(Ordering::SeqCst) > pauses);
        jobs.pause(Scope::All, "a look").unwrap();
        // What had begun before the answer may still be on its first instruction: those that are running now.
        until(|| jobs.snapshot().unwrap().gauges.queue_depth["default"]["running"] == 0);
        let now = begun.load(Ordering::SeqCst);
        let _ = jobs.enqueue(&Plain::new(&format!("while paused {pauses}"), 0)).unwrap();
        jobs.drain(PATIENCE).unwrap();
        assert_eq!(begun.load(Ordering::SeqCst), now, "a job began during the pause");
        jobs.resume(Scope::All).unwrap();
        pauses += 1;
    }
    stop.store(true, Ordering::SeqCst);
    let enqueued = producer.join().unwrap() + pauses;
    ground.settle(&jobs);
    println!("pauses: {pauses}, {enqueued} jobs");
    assert_eq!(begun.load(Ordering::SeqCst), enqueued);
    let recount = ground.close(jobs);
    assert!(recount.jobs.values().all(|r| r.attempts == 1));
}

kind!(Patient = "patient");

/// The app shuts down while one handler stops when asked, one finishes, one does not listen, and others are on their way to a
/// worker. The report says so; interrupted is not failed, what never began is given back, and everything runs at the next open.
#[test]
fn a_graceful_shutdown_gives_back_what_it_could_not_finish() {
    let ground = Ground::new();
    let signs = ground.signs.clone();
    let jobs = ground
        .builder()
        .workers(3)
        .on(move |cx, j: Patient| {
            signs.say("begun");
            match j.n {
                0 => until(|| cx.cancelled()),
                1 => {
                    until(|| cx.cancelled());
                    return Err(Fail::new("I was asked to stop"));
                }
                2 => signs.wait("does not listen"),
                _ => {}
            }
            Ok(())
        })
        .start()
        .unwrap();
    let batch: Vec<_> = (0..10).map(|n| Patient::new(&n.to_string(), n)).collect();
    let _ = jobs.enqueue_many(&batch).unwrap();
    ground.signs.until("begun", 3);
    let other = jobs.clone();
    let report = jobs.shutdown(Duration::from_millis(500)).unwrap();
    assert_eq!((report.finished, report.interrupted), (2, 1), "{report:?}");
    assert!(matches!(other.enqueue(&Plain::new("x", 0)), Err(Error::ShutDown)), "every clone is closed");
    assert!(matches!(other.shutdown(PATIENCE), Err(Error::ShutDown)));
    let recount = ground.recount();
    let of = |k: &str| {
        let r = recount.job(k);
        (State::from(&r.state), r.attempts, r.given_back.interrupted)
    };
    assert_eq!(of("0"), (State::Done, 1, 0));
    assert_eq!(of("1"), (State::Ready, 0, 1), "asked to stop: interrupted, not failed");
    assert_eq!(of("2"), (State::Ready, 0, 1));
    assert!((3..10).all(|n| recount.job(&n.to_string()).attempts == 0));
    // The deaf one comes back to a closed store, and is not heard.
    ground.signs.end();

    let jobs = ground.builder().on(|_, _: Patient| Ok(())).start().unwrap();
    ground.settle(&jobs);
    let recount = ground.close(jobs);
    println!("shutdown: {} jobs, {report:?}", recount.jobs.len());
    assert!(recount.jobs.values().all(|r| State::from(&r.state) == State::Done && r.attempts == 1));
}

/// An app drops its handle without a word while jobs run and wait: nothing is lost, nothing counts as failed.
#[test]
fn dropping_the_queue_without_shutdown_loses_nothing() {
    let ground = Ground::new();
    let signs = ground.signs.clone();
    let jobs = ground
        .builder()
        .on(move |_, _: Patient| {
            signs.wait("runs");
            Ok(())
        })
        .start()
        .unwrap();
    let batch: Vec<_> = (0..8).map(|n| Patient::new(&n.to_string(), n)).collect();
    let _ = jobs.enqueue_many(&batch).unwrap();
    ground.signs.until("runs", 2);
    drop(jobs);
    ground.signs.end();
    let recount = ground.recount();
    assert!(recount.jobs.values().all(|r| State::from(&r.state) == State::Ready && r.attempts == 0));
    let jobs = ground.builder().on(|_, _: Patient| Ok(())).start().unwrap();
    ground.settle(&jobs);
    let recount = ground.close(jobs);
    assert_eq!(recount.jobs.values().filter(|r| State::from(&r.state) == State::Done).count(), 8);
}

/// Somebody waits for a job: told when it is over or needs a person; a wait that is over says that the job goes on; one that the
/// shutdown catches is not left alone. Output, progress and notes are where they are looked for.
#[test]
fn waiting_output_progress_and_notes() {
    let ground = Ground::new();
    let signs = ground.signs.clone();
    let jobs = ground
        .builder()
        .workers(4)
        .on(move |cx, j: Plain| {
            cx.progress(3, 10);
            cx.note("rows_upserted", 3);
            signs.wait(&j.key);
            cx.progress(10, 10);
            cx.output(&vec![j.n, j.n + 1])?;
            if j.n == 9 { Err(Fail::permanent("no")) } else { Ok(()) }
        })
        .start()
        .unwrap();
    let good = jobs.enqueue(&Plain::new("good", 1)).unwrap().id();
    let bad = jobs.enqueue(&Plain::new("bad", 9)).unwrap().id();
    let stuck = jobs.enqueue(&Plain::new("stuck", 2)).unwrap().id();
    ["good", "bad", "stuck"].iter().for_each(|k| ground.signs.until(k, 1));
    assert_eq!(jobs.progress(good), Some((3, 10)));
    assert!(matches!(jobs.wait(good, Duration::ZERO), Err(Error::WaitOver(id)) if id == good));
    assert_eq!(jobs.output::<Vec<u64>>(good).unwrap(), None, "not before it is done");
    let waiters: Vec<_> = [good, bad]
        .into_iter()
        .flat_map(|id| [id; 3])
        .map(|id| {
            let jobs = jobs.clone();
            thread(move || jobs.wait(id, PATIENCE).unwrap())
        })
        .collect();
    ground.signs.open("good");
    ground.signs.open("bad");
    let told: Vec<_> = waiters.into_iter().map(|t| t.join().unwrap()).collect();
    assert_eq!(told, [State::Done, State::Done, State::Done, State::Dead, State::Dead, State::Dead]);
    assert_eq!(jobs.wait(good, Duration::ZERO).unwrap(), State::Done);
    assert_eq!(jobs.output::<Vec<u64>>(good).unwrap(), Some(vec![1, 2]));
    assert!(matches!(jobs.output::<String>(good), Err(Error::Encode { .. })), "another type is an error");
    assert_eq!(jobs.output::<Vec<u64>>(bad).unwrap(), None, "a failure leaves none");
    assert_eq!(jobs.progress(good), None, "over");
    assert_eq!(ground.lines.of("good")[0].notes, [("rows_upserted".to_owned(), "3".to_owned())]);
    let nobody = JobId::from_number(99_999);
    assert!(matches!(jobs.wait(nobody, PATIENCE), Err(Error::NotFound(_))));
    assert!(matches!(jobs.output::<u64>(nobody), Err(Error::NotFound(_))));

    let waiter = jobs.clone();
    let waiting = thread(move || waiter.wait(stuck, Duration::from_secs(3_600)));
    let report = jobs.shutdown(Duration::from_millis(100)).unwrap();
    assert_eq!(report.interrupted, 1);
    let told = waiting.join().unwrap();
    assert!(matches!(told, Err(Error::ShutDown)), "{told:?}");
    ground.signs.end();
    ground.recount();
}

/// A job with an effect whose answer never came.
#[derive(Clone, Serialize, Deserialize)]
struct Doubtful {
    key: String,
    ask: bool,
}
impl Job for Doubtful {
    const KIND: &'static str = "doubtful";
    fn key(&self) -> JobKey {
        self.key.as_str().into()
    }
    fn policy() -> Policy {
        Policy::default().retries(1_000).stall_timeout(1_000 * DAY).attempt_timeout(1_000 * DAY)
    }
    fn effects() -> Vec<EffectCard> {
        vec![Ask::card(), Look::card()]
    }
}
#[derive(Serialize, Deserialize)]
struct Ask;
impl Effect for Ask {
    type Result = ();
    const NAME: &'static str = "ask";
    fn says(&self) -> String {
        "ask".into()
    }
}
#[derive(Serialize, Deserialize)]
struct Look;
impl Effect for Look {
    type Result = ();
    const NAME: &'static str = "look";
    fn says(&self) -> String {
        "look".into()
    }
    fn recovery() -> Recovery {
        Recovery::probe(100 * DAY)
    }
}

kind!(Kept = "kept" {
    fn policy() -> Policy {
        Policy::default()
            .retries(1_000)
            .stall_timeout(1_000 * DAY)
            .attempt_timeout(1_000 * DAY)
            .backoff(onceward::Backoff::steps([200 * DAY]))
    }
});

/// Retention goes by outcome and by when a job ended, never by its age: jobs 30 days old that run, wait for a retry, for a date,
/// for a person or for a provider stay, while the 700 done ones beside them go after their 7 days, in slices, and discarded ones
/// after 30.
#[test]
fn retention_takes_only_what_is_over() {
    let ground = Ground::new();
    let signs = ground.signs.clone();
    let jobs = ground
        .builder()
        .on(|_, _: Plain| Ok(()))
        .on(move |_, j: Kept| match j.n {
            0 => {
                signs.wait("running");
                Ok(())
            }
            1 => Err(Fail::new("again much later")),
            _ => Err(Fail::permanent("no")),
        })
        .effect(|_: &Ask, _| Err(Fail::new("no answer")))
        .effect(|_: &Look, _| Err(Fail::new("no answer")))
        .probe(|_: &Look, _| Ok(None))
        .on(|cx, j: Doubtful| if j.ask { cx.effect(Ask) } else { cx.effect(Look) })
        .start()
        .unwrap();
    let kept = [
        jobs.enqueue(&Kept::new("running", 0)).unwrap().id(),
        jobs.enqueue(&Kept::new("retry", 1)).unwrap().id(),
        jobs.enqueue(&Kept::new("dead", 2)).unwrap().id(),
        jobs.after(300 * DAY, &Plain::new("dated", 0)).unwrap().id(),
        jobs.enqueue(&Doubtful { key: "needs a person".into(), ask: true }).unwrap().id(),
        jobs.enqueue(&Doubtful { key: "settles".into(), ask: false }).unwrap().id(),
    ];
    let discarded = jobs.enqueue(&Kept::new("discarded", 2)).unwrap().id();
    ground.signs.until("running", 1);
    let done: Vec<_> = (0..700).map(|n| Plain::new(&n.to_string(), n)).collect();
    let done: Vec<_> = jobs.enqueue_many(&done).unwrap().iter().map(|e| e.id()).collect();
    for id in &done {
        assert_eq!(jobs.wait(*id, PATIENCE).unwrap(), State::Done);
    }
    assert_eq!(jobs.wait(discarded, PATIENCE).unwrap(), State::Dead);
    let letter = jobs.dead_letter(discarded).unwrap();
    jobs.decide(&letter, Decision::discard().by("ann", "a test order")).unwrap();
    let states = [State::Running, State::Delayed, State::Dead, State::Delayed, State::NeedsDecision, State::Waiting];
    kept.iter().zip(states).for_each(|(id, state)| until(|| jobs.state(*id).unwrap() == state));

    let gone = |id: JobId| matches!(jobs.state(id), Err(Error::NotFound(_)));
    let days = |n: u32| (0..24 * n).for_each(|_| ground.clock.advance(HOUR));
    days(6);
    assert!(!done.iter().any(|id| gone(*id)), "7 days are not over");
    days(2);
    until(|| {
        ground.clock.advance(MINUTE);
        done.iter().all(|id| gone(*id))
    });
    assert!(!gone(discarded), "30 days for what was discarded");
    days(30);
    until(|| {
        ground.clock.advance(MINUTE);
        gone(discarded)
    });
    // The trash is empty, and what was in it cannot be brought back.
    assert!(jobs.trash().unwrap().is_empty());
    let late = jobs.restore(discarded, "ann", "it was a real one after all").unwrap_err();
    assert!(matches!(late, Error::NotFound(id) if id == discarded), "{late:?}");
    for (id, state) in kept.iter().zip(states) {
        is(&jobs, *id, state);
    }
    println!("retention: {} rows gone, {} kept", done.len() + 1, kept.len());
    // Their intents are remembered.
    assert_eq!(jobs.enqueue(&Plain::new("0", 0)).unwrap().id(), done[0]);
    ground.signs.end();
    jobs.wait(kept[0], PATIENCE).unwrap();
    ground.close(jobs);
}

/// Hundreds of callers wait, enqueue and look at once while jobs run: nobody is told anything wrong, nobody hangs.
#[test]
fn many_callers_at_once_get_their_own_answers() {
    let ground = Ground::new();
    let jobs = ground.builder().workers(4).on(|cx, j: Plain| cx.output(&j.n)).start().unwrap();
    let caller = jobs.clone();
    let counts = from_threads(16, move |t| {
        let mut right = 0;
        for n in 0..25_u64 {
            let number = (t as u64) * 1_000 + n;
            let id = caller.enqueue(&Plain::new(&number.to_string(), number)).unwrap().id();
            assert_eq!(caller.wait(id, PATIENCE).unwrap(), State::Done);
            right += usize::from(caller.output::<u64>(id).unwrap() == Some(number));
        }
        right
    });
    assert_eq!(counts, [25; 16]);
    ground.pass(&jobs, SECOND);
    let recount = ground.close(jobs);
    println!("callers: 16, {} answers", recount.jobs.len());
    assert_eq!(recount.jobs.len(), 400);
}

kind!(Brief = "brief" {
    fn policy() -> Policy {
        Policy::default().keep_done(onceward::Keep::For(DAY))
    }
});

/// Hundreds of ended jobs cannot be read any more, and they are the oldest: they are kept, are named in one line, and hold up none of
/// those that come after them.
#[test]
fn damaged_rows_at_the_front_hold_up_no_pruning() {
    const BAD: u64 = 600;
    const GOOD: u64 = 300;
    let mut ground = Ground::new();
    let heard = crate::ground::listen();
    let start = |ground: &Ground| ground.builder().on(|_, _: Brief| Ok(())).start().unwrap();
    let jobs = start(&ground);
    let some = |from: u64, to: u64| {
        let some: Vec<_> = (from..to).map(|n| Brief::new(&n.to_string(), n)).collect();
        let ids = jobs.enqueue_many(&some).unwrap().iter().map(onceward::Enqueued::id).collect::<Vec<_>>();
        ground.pass(&jobs, SECOND);
        ids
    };
    let bad = some(0, BAD);
    ground.pass(&jobs, MINUTE);
    let good = some(BAD, BAD + GOOD);
    jobs.shutdown(PATIENCE).unwrap();
    ground.disk = with_damaged_rows(&ground, good[0]);
    ground.nonce += 1;
    let jobs = start(&ground);
    for _ in 0..60 {
        ground.pass(&jobs, HOUR);
    }
    let gone = |ids: &[JobId]| ids.iter().filter(|id| matches!(jobs.state(**id), Err(Error::NotFound(_)))).count();
    assert_eq!((gone(&bad), gone(&good)), (0, good.len()));
    assert!(heard.has(&["600 rows are past their time and cannot be read"]));
    jobs.shutdown(PATIENCE).unwrap();
}

/// The disk, with nothing left that can be read of what was asked of every job before this one.
fn with_damaged_rows(ground: &Ground, before: JobId) -> onceward::testkit::SimDisk {
    use onceward::testkit::DiskFactory;
    use redb::ReadableTable;
    const JOB: redb::TableDefinition<'_, u64, &[u8]> = redb::TableDefinition::new("q/job");
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("damaged.redb");
    std::fs::write(&path, ground.disk.bytes()).unwrap();
    let db = redb::Database::open(&path).unwrap();
    let tx = db.begin_write().unwrap();
    {
        let mut table = tx.open_table(JOB).unwrap();
        let packs: Vec<(u64, Vec<u8>)> = table
            .range(..before.number())
            .unwrap()
            .map(|row| row.unwrap())
            .map(|(k, v)| (k.value(), v.value().to_vec()))
            .collect();
        assert!(!packs.is_empty());
        for (first, mut bytes) in packs {
            // Behind version, kind and count.
            bytes[8..].iter_mut().for_each(|byte| *byte ^= 0x55);
            table.insert(first, bytes.as_slice()).unwrap();
        }
    }
    tx.commit().unwrap();
    drop(db);
    let sidecar = ground.disk.sidecar().lock().unwrap().clone();
    onceward::testkit::SimDisk::from_image(std::fs::read(&path).unwrap(), sidecar)
}
