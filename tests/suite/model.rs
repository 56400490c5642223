//! The queue against a model that fits on a page: maps of what should be. Random stories of enqueues, failures, delays, pauses,
//! cancels, decisions, deaths and reopens; after every step each job is where the model says, after as many attempts.

use onceward::prelude::*;
use onceward::testkit::{ManualClock, SimDisk, run_until_idle};
use onceward::{Backoff, Decision, Scope, State};
use proptest::prelude::*;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

const STEP: u64 = 60;
const LIMIT: u32 = 3;

/// A job that fails its first `fails` attempts; for good if it is `fatal`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Work {
    key: u8,
    fails: u32,
    fatal: bool,
}

impl Job for Work {
    const KIND: &'static str = "work";
    fn key(&self) -> JobKey {
        format!("k{}", self.key).into()
    }
    fn policy() -> Policy {
        Policy::default().retries(LIMIT - 1).backoff(Backoff::steps([Duration::from_secs(STEP)]))
    }
}

#[derive(Clone, Debug)]
enum Act {
    Enqueue(Work),
    After(Work, u64),
    Many(Vec<Work>),
    Advance(u64),
    Pause,
    Resume,
    Cancel(u8),
    TryAgain(u8),
    Discard(u8),
    RunAgain(Work),
    Reopen,
    Kill,
}

fn work() -> impl Strategy<Value = Work> {
    (0..6_u8, 0..5_u32, prop::bool::weighted(0.2)).prop_map(|(key, fails, fatal)| Work { key, fails, fatal })
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        4 => work().prop_map(Act::Enqueue),
        2 => (work(), 1..200_u64).prop_map(|(w, s)| Act::After(w, s)),
        1 => prop::collection::vec(work(), 0..4).prop_map(Act::Many),
        4 => (1..150_u64).prop_map(Act::Advance),
        1 => Just(Act::Pause),
        2 => Just(Act::Resume),
        1 => (0..6_u8).prop_map(Act::Cancel),
        2 => (0..6_u8).prop_map(Act::TryAgain),
        1 => (0..6_u8).prop_map(Act::Discard),
        1 => work().prop_map(Act::RunAgain),
        1 => Just(Act::Reopen),
        1 => Just(Act::Kill),
    ]
}

/// What the model knows of one intent.
#[derive(Clone, Debug)]
struct Known {
    id: onceward::JobId,
    work: Work,
    state: State,
    due: u64,
    attempts: u32,
    granted: u32,
}

/// The queue as it should be.
#[derive(Default)]
struct Model {
    now: u64,
    paused: bool,
    jobs: BTreeMap<u8, Known>,
    ran: usize,
}

impl Model {
    fn add(&mut self, id: onceward::JobId, work: &Work, delay: u64) {
        let state = if delay == 0 { State::Ready } else { State::Delayed };
        let known = Known { id, work: work.clone(), state, due: self.now + delay, attempts: 0, granted: 0 };
        self.jobs.insert(work.key, known);
    }
    /// Everything that may run runs, as far as it gets by itself.
    fn settle(&mut self) {
        for job in self.jobs.values_mut() {
            if job.state == State::Delayed && job.due <= self.now {
                job.state = State::Ready;
            }
            if job.state == State::Ready && !self.paused {
                job.attempts += 1;
                self.ran += 1;
                job.state = if job.attempts > job.work.fails {
                    State::Done
                } else if job.work.fatal || job.attempts >= LIMIT + job.granted {
                    State::Dead
                } else {
                    job.due = self.now + STEP;
                    State::Delayed
                };
            }
        }
    }
    fn shown(&self, job: &Known) -> State {
        if job.state == State::Ready && self.paused { State::Paused } else { job.state }
    }
}

struct Real {
    disk: SimDisk,
    clock: ManualClock,
    ran: Arc<AtomicUsize>,
    nonce: u64,
}

impl Real {
    fn open(&mut self) -> Jobs {
        self.nonce += 1;
        let ran = self.ran.clone();
        Jobs::on_disk(Arc::new(self.disk.clone()))
            .clock(Arc::new(self.clock.clone()))
            .process([7; 16], self.nonce)
            .workers(2)
            .on(move |cx, work: Work| {
                ran.fetch_add(1, Ordering::SeqCst);
                match (cx.attempt() <= work.fails, work.fatal) {
                    (false, _) => Ok(()),
                    (true, true) => Err(Fail::permanent("fatal")),
                    (true, false) => Err(Fail::transient("not this time")),
                }
            })
            .start()
            .unwrap()
    }
}

fn enqueued(model: &mut Model, told: Enqueued, work: &Work, delay: u64) -> Result<(), TestCaseError> {
    match (model.jobs.get(&work.key), told) {
        (None, Enqueued::New(id)) => model.add(id, work, delay),
        (Some(known), Enqueued::Existing { id, state, differs }) => {
            prop_assert_eq!((id, state, differs), (known.id, model.shown(known), known.work != *work));
        }
        (known, told) => prop_assert!(false, "{known:?} but {told:?}"),
    }
    Ok(())
}

fn decide(jobs: &Jobs, model: &mut Model, key: u8, again: bool) -> Result<(), TestCaseError> {
    let Some(known) = model.jobs.get_mut(&key) else { return Ok(()) };
    let letter = jobs.dead_letter(known.id);
    if known.state != State::Dead {
        prop_assert!(letter.is_err(), "a letter of a job that is {:?}", known.state);
        return Ok(());
    }
    let decision = if again { Decision::try_again() } else { Decision::discard() };
    jobs.decide(&letter.unwrap(), decision.by("ada", "seen")).unwrap();
    if again {
        known.granted += 1;
        known.state = State::Ready;
    } else {
        known.state = State::Discarded;
    }
    Ok(())
}

fn story(acts: &[Act]) -> Result<usize, TestCaseError> {
    let mut real = Real { disk: SimDisk::new(), clock: ManualClock::default(), ran: Arc::default(), nonce: 0 };
    let mut model = Model::default();
    let mut jobs = real.open();
    for act in acts {
        match act {
            Act::Enqueue(w) => enqueued(&mut model, jobs.enqueue(w).unwrap(), w, 0)?,
            Act::After(w, s) => {
                enqueued(&mut model, jobs.after(Duration::from_secs(*s), w).unwrap(), w, *s)?;
            }
            Act::Many(many) => {
                let told = jobs.enqueue_many(many).unwrap();
                prop_assert_eq!(told.len(), many.len());
                for (w, told) in many.iter().zip(told) {
                    enqueued(&mut model, told, w, 0)?;
                }
            }
            Act::Advance(s) => {
                real.clock.advance(Duration::from_secs(*s));
                model.now += s;
            }
            Act::Pause | Act::Resume => {
                model.paused = matches!(act, Act::Pause);
                if model.paused { jobs.pause(Scope::All, "story") } else { jobs.resume(Scope::All) }.unwrap();
            }
            Act::Cancel(key) => {
                if let Some(known) = model.jobs.get_mut(key) {
                    let pending = matches!(known.state, State::Ready | State::Delayed);
                    prop_assert_eq!(jobs.cancel(known.id).is_ok(), pending);
                    if pending {
                        known.state = State::Cancelled;
                    }
                }
            }
            Act::TryAgain(key) => decide(&jobs, &mut model, *key, true)?,
            Act::Discard(key) => decide(&jobs, &mut model, *key, false)?,
            Act::RunAgain(w) => {
                let over = model.jobs.get(&w.key).is_none_or(|k| k.state.is_over());
                let told = jobs.run_again(w);
                prop_assert_eq!(told.is_ok(), over);
                if let Ok(id) = told {
                    model.add(id, w, 0);
                }
            }
            Act::Reopen => {
                jobs.shutdown(Duration::from_secs(30)).unwrap();
                jobs = real.open();
            }
            Act::Kill => {
                real.disk.kill_process();
                drop(jobs);
                jobs = real.open();
            }
        }
        model.settle();
        run_until_idle(&jobs).unwrap();
        for known in model.jobs.values() {
            prop_assert_eq!(jobs.state(known.id).unwrap(), model.shown(known), "{:?} after {:?}", known, act);
        }
        prop_assert_eq!(real.ran.load(Ordering::SeqCst), model.ran, "attempts, after {:?}", act);
    }
    Ok(model.ran)
}

/// Whatever happens in whatever order, the queue does what a page of maps says it does.
#[test]
fn the_queue_does_what_the_model_says() {
    let cases = std::env::var("ONCEWARD_MODEL_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(500);
    let config = ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() };
    let (acts, ran) = (AtomicUsize::new(0), AtomicUsize::new(0));
    proptest!(config, |(story_acts in prop::collection::vec(act(), 1..24))| {
        acts.fetch_add(story_acts.len(), Ordering::Relaxed);
        ran.fetch_add(story(&story_acts)?, Ordering::Relaxed);
    });
    let (acts, ran) = (acts.into_inner(), ran.into_inner());
    println!("model: {cases} stories, {acts} acts, {ran} attempts");
    assert!(acts as u32 > cases && ran > 0);
}
