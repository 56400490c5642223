//! Nothing that could go on waits for luck: whatever happened to its neighbours, a job that is ready is claimed without anybody
//! asking the queue for anything else. These stories never drain or settle, because that makes a round by itself.

use super::ground::{Ground, HOUR, PATIENCE, is, kind, listen, thread};
use onceward::prelude::*;
use onceward::testkit::SimDisk;
use onceward::{AlertRule, Error, Jobs, Refusal, Scope, State, redb::TableDefinition};
use serde::{Deserialize, Serialize};
use std::time::Duration;

const ROWS: TableDefinition<u64, u64> = TableDefinition::new("rows");

kind!(Plain = "plain");
kind!(Dated = "dated" { fn policy() -> Policy { Policy::default().deadline(24 * HOUR) } });

/// Two callers' transactions share a round: one enqueues a job, the other fails after it has written, so the round is split. The
/// job runs, although nobody asks for anything after that.
#[test]
fn a_job_beside_a_failed_transaction_runs_without_another_request() {
    let ground = Ground::new();
    let jobs = ground.builder().on(|_, _: Plain| Ok(())).start().unwrap();
    for n in 0..20 {
        // The writer is held, so that both wait for the same round.
        let (signs, held) = (ground.signs.clone(), jobs.clone());
        let door = format!("hold {n}");
        let holder = thread(move || {
            held.transact::<_, Fail>(move |_| {
                signs.say("held");
                signs.wait(&door);
                Ok(())
            })
        });
        ground.signs.until("held", n + 1);
        let both = [false, true].map(|fails| {
            let jobs = jobs.clone();
            thread(move || {
                jobs.transact::<_, Fail>(move |tx| {
                    tx.open_table(ROWS)?.insert(n as u64, 1)?;
                    let job = tx.enqueue(&Plain::new(&format!("{n} {fails}"), 0))?;
                    if fails { Err(Fail::new("by design")) } else { Ok(job.id()) }
                })
            })
        });
        ground.signs.open(&format!("hold {n}"));
        holder.join().unwrap().unwrap();
        let [good, failed] = both.map(|t| t.join().unwrap());
        assert!(failed.is_err());
        assert_eq!(jobs.wait(good.unwrap(), PATIENCE).unwrap(), State::Done);
    }
    assert_eq!(ground.close(jobs).jobs.len(), 20);
}

/// A hundred jobs whose deadline passed while everything was paused stand before one that may run: they are put before a person,
/// and the one behind them runs in the same breath.
#[test]
fn jobs_past_their_deadline_hold_up_nobody() {
    let ground = Ground::new();
    let jobs = ground.builder().workers(1).on(|_, _: Dated| Ok(())).start().unwrap();
    jobs.pause(Scope::All, "the shop is closed").unwrap();
    let old: Vec<Dated> = (0..600).map(|n| Dated::new(&format!("old {n}"), n)).collect();
    let old: Vec<_> = jobs.enqueue_many(&old).unwrap().iter().map(Enqueued::id).collect();
    ground.clock.advance(25 * HOUR);
    let young = jobs.enqueue(&Dated::new("young", 0)).unwrap().id();
    jobs.resume(Scope::All).unwrap();
    assert_eq!(jobs.wait(young, PATIENCE).unwrap(), State::Done);
    for id in &old {
        assert!(jobs.wait(*id, PATIENCE).unwrap() == State::Dead, "{:?}", jobs.history(*id));
    }
    ground.close(jobs);
}

fn standing(jobs: &Jobs) -> Vec<AlertRule> {
    jobs.alerts().unwrap().into_iter().map(|firing| firing.rule).collect()
}

/// The file of this morning is put back in the evening. What happened since is not in it and would happen again, so nothing runs
/// until a person has looked; afterwards it is an ordinary file.
#[test]
fn an_older_copy_of_the_file_runs_nothing_until_a_person_resumes() {
    for sidecar_lost in [false, true] {
        let mut ground = Ground::new();
        let jobs = ground.builder().on(|_, _: Plain| Ok(())).start().unwrap();
        jobs.pause(Scope::kind("plain"), "not yet").unwrap();
        let id = jobs.enqueue(&Plain::new("p", 0)).unwrap().id();
        jobs.shutdown(PATIENCE).unwrap();
        let copy = ground.disk.bytes();
        let start = |ground: &Ground| ground.builder().on(|_, _: Plain| Ok(())).start().unwrap();
        let jobs = start(&ground);
        jobs.resume(Scope::kind("plain")).unwrap();
        assert_eq!(jobs.wait(id, PATIENCE).unwrap(), State::Done);
        jobs.shutdown(PATIENCE).unwrap();

        use onceward::store::DiskFactory as _;
        let sidecar = if sidecar_lost { Vec::new() } else { ground.disk.sidecar().lock().unwrap().clone() };
        ground.disk = SimDisk::from_image(copy, sidecar);
        let found = if sidecar_lost { ".run is missing" } else { "is older than what was done with it" };
        let heard = listen();
        let mut said = Vec::new();
        for _ in 0..2 {
            let jobs = start(&ground);
            let why = jobs.pauses().into_iter().find(|(s, _)| *s == Scope::All).expect("everything is paused").1;
            assert_eq!(
                (why.matches("compare with your providers").count(), why.matches(found).count()),
                (1, 1),
                "{why}"
            );
            said.push(why);
            jobs.resume(Scope::kind("plain")).unwrap();
            ground.settle(&jobs);
            is(&jobs, id, State::Paused);
            assert_eq!(standing(&jobs), [AlertRule::OlderCopy]);
            jobs.shutdown(PATIENCE).unwrap();
        }
        assert_eq!(said[0], said[1], "a later start says neither more nor something else");
        assert!(heard.has(&["everything is paused", found]), "the start that found it says so in the log");
        let jobs = start(&ground);
        jobs.resume(Scope::All).unwrap();
        assert_eq!(jobs.wait(id, PATIENCE).unwrap(), State::Done);
        jobs.shutdown(PATIENCE).unwrap();
        let jobs = start(&ground);
        assert_eq!(jobs.pauses(), []);
        ground.settle(&jobs);
        assert_eq!(standing(&jobs), [AlertRule::OlderCopy], "work was resumed; nobody has compared anything yet");
        let review = jobs.review().expect("it is open");
        assert!(review.what.contains(found) && review.since <= review.found, "{review:?}");
        for (who, why) in [("", "compared"), ("ada", " "), ("ada", "a\nb")] {
            assert!(matches!(jobs.lift_review(who, why), Err(Error::Refused(_))), "{who:?} {why:?}");
        }
        assert_eq!(jobs.lift_review("ada", "compared with the bank").unwrap(), review);
        assert!(matches!(jobs.lift_review("ada", "again"), Err(Error::Refused(_))), "there is none any more");
        let acts = jobs.decisions(None, 10).unwrap();
        assert!(acts.iter().any(|a| a.who == "ada" && a.job.is_none() && a.says().contains(found)), "{acts:?}");
        ground.settle(&jobs);
        assert_eq!(standing(&jobs), []);
        jobs.shutdown(PATIENCE).unwrap();
        let jobs = start(&ground);
        assert_eq!((jobs.pauses(), jobs.review()), (Vec::new(), None));
        ground.close(jobs);
    }
}

#[derive(Serialize, Deserialize)]
struct Pays;
impl Job for Pays {
    const KIND: &'static str = "pays";
    fn key(&self) -> JobKey {
        "p".into()
    }
    fn effects() -> Vec<EffectCard> {
        vec![Transfer::card()]
    }
}

#[derive(Serialize, Deserialize)]
struct Transfer;
impl Effect for Transfer {
    type Result = ();
    const NAME: &'static str = "transfer";
    fn says(&self) -> String {
        "transfer 5".into()
    }
    fn recovery() -> Recovery {
        Recovery::ask()
    }
}

/// A job was asked to stop while its call was under way, the process died, and the next start is by a program that does not know
/// the kind. The open call is not forgotten with the job: a person is asked, and the intent is not blocked for ever.
#[test]
fn a_cancelled_job_of_a_kind_that_is_gone_still_asks_about_its_call() {
    let mut ground = Ground::new();
    let signs = ground.signs.clone();
    let jobs = ground
        .builder()
        .effect(move |_: &Transfer, _| {
            signs.say("inside");
            signs.wait("provider");
            Ok(())
        })
        .on(|cx, _: Pays| cx.effect(Transfer))
        .start()
        .unwrap();
    let id = jobs.enqueue(&Pays).unwrap().id();
    ground.signs.until("inside", 1);
    jobs.cancel(id).unwrap();
    ground.kill(jobs);

    let jobs = ground.builder().on(|_, _: Plain| Ok(())).start().unwrap();
    assert_eq!(jobs.wait(id, PATIENCE).unwrap(), State::NeedsDecision);
    let letter = jobs.dead_letter(id).unwrap();
    assert!(letter.headline().contains("transfer 5"), "{}", letter.headline());
    let again = jobs.run_again(&Pays);
    assert!(matches!(again, Err(Error::Refused(Refusal::WrongState(_) | Refusal::Unresolved(_)))), "{again:?}");
    ground.close(jobs);
}

/// While the store heals a drain with a bound comes back in time.
#[test]
fn a_bounded_drain_does_not_wait_for_a_dead_disk() {
    use onceward::store::disk::{Fails, Fault, On};
    let ground = Ground::new();
    let jobs = ground.builder().on(|_, _: Plain| Ok(())).start().unwrap();
    ground.disk.fail(Fault { on: On::AnyChange, after: 0, times: u64::MAX, fails: Fails::Full });
    let caller = jobs.clone();
    let waits = thread(move || caller.enqueue(&Plain::new("p", 0)));
    while ground.disk.counts().faults == 0 {
        std::thread::yield_now();
    }
    assert!(matches!(jobs.drain(Duration::from_millis(50)), Err(Error::NotIdle)));
    ground.disk.heal();
    while !waits.is_finished() {
        ground.clock.advance(Duration::from_millis(1));
        std::thread::yield_now();
    }
    assert_eq!(jobs.wait(waits.join().unwrap().unwrap().id(), PATIENCE).unwrap(), State::Done);
    ground.close(jobs);
}

/// The disk dies for good, and somebody waits for a write: a shutdown does not wait until it is better, whatever there was to count and
/// to tell.
#[test]
fn a_shutdown_does_not_wait_for_a_dead_disk() {
    use onceward::store::disk::{Fails, Fault, On};
    for told in [false, true] {
        let ground = Ground::new();
        let builder = ground.builder().on(|_, _: Plain| Ok(()));
        let jobs = if told { builder.on_alert(|_| {}).start() } else { builder.start() }.unwrap();
        let id = jobs.enqueue(&Plain::new("done", 0)).unwrap().id();
        assert_eq!(jobs.wait(id, PATIENCE).unwrap(), State::Done);
        ground.disk.fail(Fault { on: On::AnyChange, after: 0, times: u64::MAX, fails: Fails::Eio });
        let caller = jobs.clone();
        let waits = thread(move || caller.enqueue(&Plain::new("p", 0)));
        while ground.disk.counts().faults == 0 {
            std::thread::yield_now();
        }
        let (tell, ended) = std::sync::mpsc::channel();
        thread(move || tell.send(jobs.shutdown(Duration::ZERO)));
        // By a clock that nobody moves; a bound that only a shutdown without an end passes.
        assert!(ended.recv_timeout(PATIENCE).expect("it ends").is_err());
        assert!(waits.join().unwrap().is_err());
    }
}

/// The folder has a name that would forge a line: the reason of the pause is one line all the same.
#[cfg(unix)]
#[test]
fn the_reason_of_a_pause_is_one_line_whatever_the_path_says() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("a\u{202e}x\nFORGED");
    std::fs::create_dir(&folder).unwrap();
    let path = folder.join("jobs.redb");
    Jobs::open(&path).start().unwrap().shutdown(PATIENCE).unwrap();
    std::fs::remove_file(folder.join("jobs.redb.run")).unwrap();
    let jobs = Jobs::open(&path).start().unwrap();
    let (_, why) = jobs.pauses().remove(0);
    assert!(why.contains(".run is missing") && !why.contains(['\n', '\u{202e}']), "{why:?}");
    jobs.shutdown(PATIENCE).unwrap();
}
