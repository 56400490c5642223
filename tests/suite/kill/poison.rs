//! One job alone at work when its process dies: once, and it runs again; whenever it runs, and it becomes a dead letter while the
//! others are done.

use super::PATIENCE;
use super::app::{Order, queue, say};
use super::effects::Ledger;
use super::parent::Life;
use onceward::{Cx, Entry, Job, JobKey, Jobs, Outcome, State, Why};
use serde::{Deserialize, Serialize};
use std::path::Path;

/// Jobs beside the killer.
const OTHERS: u64 = 12;
const RESTARTS: usize = 10;

#[derive(Serialize, Deserialize)]
struct Work {
    n: u64,
    kills: bool,
}

impl Job for Work {
    const KIND: &'static str = "work";
    fn key(&self) -> JobKey {
        format!("work/{}", self.n).into()
    }
}

fn work(cx: &Cx, job: Work) -> Outcome {
    say(&format!("begin {} {}", job.n, cx.attempt()));
    if job.kills {
        std::process::abort();
    }
    cx.step("some work", || Ok(job.n))?;
    Ok(())
}

/// The killer stands in the middle.
fn all() -> Vec<Work> {
    (0..=OTHERS).map(|n| Work { n, kills: n == OTHERS / 2 }).collect()
}

fn open(dir: &Path) -> Jobs {
    Jobs::open(dir.join("q.redb")).workers(3).on(work).start().expect("it opens")
}

pub(super) fn child(dir: &Path) {
    let jobs = open(dir);
    jobs.enqueue_many(&all()).expect("they are enqueued");
    jobs.drain(PATIENCE).expect("everything runs");
    jobs.shutdown(PATIENCE).expect("it closes");
}

/// Some job ends the process whenever it runs, and somebody always starts it again: after two deaths for which nobody else can be
/// blamed it waits for a person, and every other job is done. Nobody beside it is blamed.
#[test]
fn a_job_that_kills_its_process_becomes_a_dead_letter_and_the_others_finish() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut deaths = 0;
    loop {
        let (status, said) = Life::start(&format!("poison|{}", dir.path().display())).end();
        if status.success() {
            break;
        }
        assert!(status.code() != Some(101), "the child failed: {said:#?}");
        deaths += 1;
        assert!(deaths <= RESTARTS, "still no end after {deaths} deaths: {said:#?}");
    }
    let jobs = open(dir.path());
    let mut done = 0;
    for work in all() {
        let id = jobs.enqueue(&work).expect("known").id();
        if !work.kills {
            assert_eq!(jobs.state(id).expect("known"), State::Done, "{:#?}", jobs.history(id));
            done += 1;
            continue;
        }
        let letter = jobs.dead_letter(id).expect("the killer has a letter");
        assert_eq!((letter.why(), letter.error()), (Why::ProcessDied, "process died"), "{letter:#?}");
        let strikes = letter.history().iter().filter(|e| matches!(e, Entry::Strike { .. })).count();
        assert_eq!(strikes, 2, "{letter:#?}");
    }
    assert_eq!(jobs.dead_letters().expect("letters").len(), 1, "nobody else is blamed");
    assert_eq!(done, OTHERS);
    assert!(deaths >= 2, "it died {deaths} times only");
    jobs.shutdown(PATIENCE).expect("it closes");
    println!("poison: {deaths} deaths, then 1 letter \"process died\" and {done} other jobs done");
}

/// The process is killed in the only handler at work: the job is not lost, its attempt counts, and the file opens at once.
#[test]
fn a_job_whose_process_was_killed_runs_again_as_attempt_2() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut life = Life::start(&format!("orders|{}|1|1|in the handler|1", dir.path().display()));
    while life.hear().is_some_and(|line| line != "at in the handler") {}
    life.kill();
    let (status, said) = life.end();
    assert!(!status.success() && said.contains(&"at in the handler".to_owned()), "{status}: {said:#?}");

    let ledger = Ledger::open(dir.path());
    let jobs = queue(dir.path(), &ledger).start().expect("it opens at once");
    let id = jobs.enqueue(&Order::new(1)).expect("known").id();
    assert_eq!(jobs.wait(id, PATIENCE).expect("it ends"), State::Done);
    let history = jobs.history(id).expect("a history");
    let died = history.iter().filter_map(Entry::failed_attempt).map(|(n, text)| (n, text.contains("the process died")));
    assert_eq!(died.collect::<Vec<_>>(), [(1, true)], "{history:#?}");
    let attempts: u64 = jobs.snapshot().expect("a snapshot").kinds["order"].attempts_total;
    assert_eq!(attempts, 2, "the attempt that died is counted: {history:#?}");
    assert_eq!(ledger.all().iter().filter(|h| h.effect == "charge").count(), 1);
    jobs.shutdown(PATIENCE).expect("it closes");
}
