//! The same intent is the same job: the life cycle of an identity as a table, duplicates, limits, and when a job may start.

mod closures;

use super::ground::{DAY, Ground, HOUR, PATIENCE, is, kind};
use onceward::testkit::run_until_idle;
use onceward::{
    Decision, Effect, EffectCard, Enqueued, Error, Fail, IdempotencyKey, Job, JobId, JobKey, Jobs, Keep, Policy,
    Recovery, Refusal, Scope, Setup, State,
};
use serde::{Deserialize, Serialize};
use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

kind!(Plain = "plain");
kind!(Other = "other");
kind!(Urgent = "urgent" { const PRIORITY: u8 = 0; });
kind!(Later = "later" { const PRIORITY: u8 = 200; });

/// A job that ends up wherever its number says.
#[derive(Clone, Serialize, Deserialize)]
struct Thing {
    key: String,
    how: How,
    /// Makes another payload of the same intent.
    other: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
enum How {
    Succeeds,
    Fails,
    Runs,
    Unknown,
    Settles,
}

impl Job for Thing {
    const KIND: &'static str = "thing";
    fn key(&self) -> JobKey {
        self.key.as_str().into()
    }
    fn policy() -> Policy {
        Policy::default().keep_done(Keep::For(HOUR)).keep_discarded(Keep::For(HOUR)).remember(Keep::For(10 * DAY))
    }
    fn effects() -> Vec<EffectCard> {
        vec![Ask::card(), Settle::card(), Fine::card()]
    }
}

macro_rules! effect {
    ($name:ident = $text:literal, $recovery:expr) => {
        #[derive(Serialize, Deserialize)]
        struct $name;
        impl Effect for $name {
            type Result = ();
            const NAME: &'static str = $text;
            fn says(&self) -> String {
                $text.into()
            }
            fn recovery() -> Recovery {
                $recovery
            }
        }
    };
}
effect!(Ask = "ask", Recovery::ask());
effect!(Settle = "settle", Recovery::probe(HOUR));
effect!(Fine = "fine", Recovery::ask());

/// The states of the table, and how a job gets there.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Row {
    Ready,
    Delayed,
    Running,
    Waiting,
    Paused,
    NeedsDecision,
    Done,
    Dead,
    HandledOutside,
    Discarded,
    Cancelled,
    Tombstone,
    MemoryOver,
}

/// What `enqueue` answers, and whether `run_again` may start it anew.
const TABLE: [(Row, Option<State>, bool); 13] = [
    (Row::Ready, Some(State::Ready), false),
    (Row::Delayed, Some(State::Delayed), false),
    (Row::Running, Some(State::Running), false),
    (Row::Waiting, Some(State::Waiting), false),
    (Row::Paused, Some(State::Paused), false),
    (Row::NeedsDecision, Some(State::NeedsDecision), false),
    (Row::Done, Some(State::Done), true),
    (Row::Dead, Some(State::Dead), false),
    (Row::HandledOutside, Some(State::HandledOutside), true),
    (Row::Discarded, Some(State::Discarded), true),
    (Row::Cancelled, Some(State::Cancelled), true),
    (Row::Tombstone, Some(State::Remembered), true),
    (Row::MemoryOver, None, true),
];

struct Stage {
    ground: Ground,
    jobs: Jobs,
    /// The idempotency keys that the provider saw.
    keys: Arc<Mutex<Vec<String>>>,
}

impl Stage {
    fn new(workers: usize) -> Self {
        let ground = Ground::new();
        let keys: Arc<Mutex<Vec<String>>> = Arc::default();
        let (seen, signs) = (keys.clone(), ground.signs.clone());
        let jobs = ground
            .builder()
            .workers(workers)
            .effect(|_: &Ask, _| Err(Fail::new("no answer")))
            .effect(|_: &Settle, _| Err(Fail::new("no answer")))
            .probe(|_: &Settle, _| Ok(None))
            .effect(move |_: &Fine, key: &IdempotencyKey| {
                seen.lock().unwrap().push(key.to_string());
                Ok(())
            })
            .on(move |cx, job: Thing| match job.how {
                How::Succeeds => cx.effect(Fine),
                How::Fails => Err(Fail::permanent("no")),
                How::Runs => {
                    signs.wait("running");
                    Ok(())
                }
                How::Unknown => cx.effect(Ask),
                How::Settles => cx.effect(Settle),
            })
            .start()
            .unwrap();
        Self { ground, jobs, keys }
    }
    fn thing(row: Row) -> Thing {
        let how = match row {
            Row::Running => How::Runs,
            Row::Waiting => How::Settles,
            Row::NeedsDecision => How::Unknown,
            Row::Dead | Row::HandledOutside | Row::Discarded => How::Fails,
            Row::Ready | Row::Delayed | Row::Paused | Row::Done | Row::Cancelled | Row::Tombstone | Row::MemoryOver => {
                How::Succeeds
            }
        };
        Thing { key: format!("{row:?}"), how, other: false }
    }
    /// Brings a job to the state of its row.
    fn bring(&self, row: Row) -> JobId {
        let (jobs, thing) = (&self.jobs, Self::thing(row));
        let letter = |id, decision: Decision| {
            jobs.decide(&jobs.dead_letter(id).unwrap(), decision).unwrap();
        };
        match row {
            Row::Delayed => return jobs.after(10_000 * DAY, &thing).unwrap().id(),
            Row::Ready => return jobs.enqueue(&thing).unwrap().id(),
            Row::Paused => {
                jobs.pause(Scope::kind("thing"), "a look at the provider").unwrap();
                return jobs.enqueue(&thing).unwrap().id();
            }
            Row::Cancelled => {
                let id = jobs.after(HOUR, &thing).unwrap().id();
                jobs.cancel(id).unwrap();
                return id;
            }
            Row::Running
            | Row::Waiting
            | Row::NeedsDecision
            | Row::Done
            | Row::Dead
            | Row::HandledOutside
            | Row::Discarded
            | Row::Tombstone
            | Row::MemoryOver => {}
        }
        let id = jobs.enqueue(&thing).unwrap().id();
        match row {
            Row::Running => self.ground.signs.until("running", 1),
            _ => run_until_idle(jobs).unwrap(),
        }
        match row {
            Row::HandledOutside => letter(id, Decision::handled_outside().by("ann", "the shop did it by hand")),
            Row::Discarded => letter(id, Decision::discard().by("ann", "not wanted")),
            Row::Tombstone => self.until_pruned(id, 2),
            Row::MemoryOver => {
                self.until_pruned(id, 2);
                self.ground.pass(jobs, 11 * DAY);
                // Memories are forgotten in rounds of their own.
                for _ in 0..3 {
                    self.ground.pass(jobs, HOUR);
                }
            }
            Row::Ready
            | Row::Delayed
            | Row::Running
            | Row::Waiting
            | Row::Paused
            | Row::NeedsDecision
            | Row::Done
            | Row::Dead
            | Row::Cancelled => {}
        }
        id
    }
    fn until_pruned(&self, id: JobId, days: u32) {
        // A first day of uptime that the clocks agree about.
        for _ in 0..24 * days {
            self.ground.pass(&self.jobs, HOUR);
        }
        assert!(matches!(self.jobs.state(id), Err(Error::NotFound(_))), "its rows are gone after retention");
    }
}

/// A caller asks for the same intent while its job is in any of its states. Each answer is in the table: the real job and where
/// it stands, whether the payload differs, and only a deliberate run again starts an ended one anew.
#[test]
fn every_state_has_its_answer_to_the_same_intent() {
    let (mut answers, mut again) = (0, 0);
    for (row, state, may_run_again) in TABLE {
        let stage = Stage::new(if row == Row::Ready { 0 } else { 2 });
        let id = stage.bring(row);
        let jobs = &stage.jobs;
        let thing = Stage::thing(row);
        if let Some(state) = state {
            assert_eq!(jobs.enqueue(&thing).unwrap(), Enqueued::Existing { id, state, differs: false }, "{row:?}");
            let other = Thing { other: true, ..thing.clone() };
            assert_eq!(jobs.enqueue(&other).unwrap(), Enqueued::Existing { id, state, differs: true }, "{row:?}");
            let at = jobs.after(HOUR, &thing).unwrap();
            assert_eq!(at, Enqueued::Existing { id, state, differs: false }, "{row:?}: a date changes nothing");
            answers += 3;
        }
        match (jobs.run_again(&thing), may_run_again) {
            (Ok(new), true) => {
                assert_ne!(new, id, "{row:?}: another job");
                assert_eq!(jobs.enqueue(&thing).unwrap().id(), new, "{row:?}: the new one is the intent's job now");
                again += 1;
            }
            (Err(Error::Refused(Refusal::WrongState(s))), false) => assert_eq!(Some(s), state, "{row:?}"),
            (other, _) => panic!("{row:?}: {other:?}"),
        }
        if row == Row::MemoryOver {
            let fresh = Thing { key: "another".into(), ..thing };
            assert!(jobs.enqueue(&fresh).unwrap().is_new());
        }
        stage.ground.signs.end();
        stage.ground.close(stage.jobs);
    }
    println!("identity: {} states, {answers} answers, {again} run again", TABLE.len());
    assert_eq!((TABLE.len(), answers, again), (13, 36, 6));
}

/// The memory of an intent is over: the same intent is a new job, and the caller is told so.
#[test]
fn after_the_memory_is_over_the_intent_is_new() {
    let stage = Stage::new(2);
    let id = stage.bring(Row::MemoryOver);
    let answer = stage.jobs.enqueue(&Stage::thing(Row::MemoryOver)).unwrap();
    assert!(answer.is_new() && answer.id() != id, "{answer:?}");
    stage.ground.close(stage.jobs);
}

/// An order is deliberately run again after it was done: the provider gets another idempotency key, or it would drop the call.
#[test]
fn a_deliberate_repeat_gets_new_idempotency_keys() {
    let stage = Stage::new(2);
    stage.bring(Row::Done);
    let again = stage.jobs.run_again(&Stage::thing(Row::Done)).unwrap();
    run_until_idle(&stage.jobs).unwrap();
    is(&stage.jobs, again, State::Done);
    let keys = stage.keys.lock().unwrap().clone();
    assert_eq!(keys.len(), 2, "performed once per incarnation");
    assert_ne!(keys[0], keys[1]);
    stage.ground.close(stage.jobs);
}

/// Kept in the trash for longer than it is remembered.
#[derive(Serialize, Deserialize)]
struct Parcel {
    fails: bool,
}

impl Job for Parcel {
    const KIND: &'static str = "parcel";
    fn key(&self) -> JobKey {
        "p".into()
    }
    fn policy() -> Policy {
        Policy::default().keep_done(Keep::For(HOUR)).keep_discarded(Keep::For(30 * DAY)).remember(Keep::For(2 * HOUR))
    }
    fn effects() -> Vec<EffectCard> {
        vec![Fine::card()]
    }
}

/// A job lies in the trash while a later one of its intent is done, pruned and due to be forgotten: until the older one goes too the
/// intent is still the later job, or the one in the trash could come back and the next one would get that one's idempotency keys.
#[test]
fn a_later_job_is_remembered_while_an_older_one_is_in_the_trash() {
    let ground = Ground::new();
    let keys: Arc<Mutex<Vec<String>>> = Arc::default();
    let seen = keys.clone();
    let jobs = ground
        .builder()
        .effect(move |_: &Fine, key: &IdempotencyKey| {
            seen.lock().unwrap().push(key.to_string());
            Ok(())
        })
        .on(|cx, job: Parcel| if job.fails { Err(Fail::permanent("no")) } else { cx.effect(Fine) })
        .start()
        .unwrap();
    let first = jobs.enqueue(&Parcel { fails: true }).unwrap().id();
    run_until_idle(&jobs).unwrap();
    jobs.decide(&jobs.dead_letter(first).unwrap(), Decision::discard().by("ann", "wrong address")).unwrap();
    assert_eq!(jobs.trash().unwrap().len(), 1);
    let second = jobs.run_again(&Parcel { fails: false }).unwrap();
    run_until_idle(&jobs).unwrap();
    for _ in 0..24 * 3 {
        ground.pass(&jobs, HOUR);
    }
    is(&jobs, first, State::Discarded);
    let known = Enqueued::Existing { id: second, state: State::Remembered, differs: false };
    assert_eq!(jobs.enqueue(&Parcel { fails: false }).unwrap(), known);
    assert_eq!(jobs.trash().unwrap().len(), 0);
    jobs.run_again(&Parcel { fails: false }).unwrap();
    run_until_idle(&jobs).unwrap();
    let seen = keys.lock().unwrap().clone();
    assert_eq!(seen.len(), 2);
    assert_ne!(seen[0], seen[1]);
    // Once nothing of it is kept, it is new.
    for _ in 0..40 {
        ground.pass(&jobs, DAY);
    }
    assert!(jobs.enqueue(&Parcel { fails: false }).unwrap().is_new());
    ground.close(jobs);
}

/// The charge of an order is unknown and a person has not answered: neither discard nor run again may walk past that.
#[test]
fn an_unresolved_effect_forbids_a_new_start() {
    let stage = Stage::new(2);
    let id = stage.bring(Row::NeedsDecision);
    let jobs = &stage.jobs;
    let letter = jobs.dead_letter(id).unwrap();
    let refused = jobs.decide(&letter, Decision::discard().by("ann", "gone"));
    assert!(matches!(refused, Err(Error::Refused(_))), "{refused:?}");
    assert!(matches!(jobs.run_again(&Stage::thing(Row::NeedsDecision)), Err(Error::Refused(_))));
    is(jobs, id, State::NeedsDecision);
    stage.ground.close(stage.jobs);
}

/// One call brings the same intent three times, twice with the same payload: one job, three answers.
#[test]
fn duplicates_inside_one_call_are_one_job() {
    let ground = Ground::new();
    let jobs = ground.builder().on(|_, _: Plain| Ok(())).start().unwrap();
    let batch = [Plain::new("a", 1), Plain::new("b", 1), Plain::new("a", 1), Plain::new("a", 2)];
    let answers = jobs.enqueue_many(&batch).unwrap();
    let (a, b) = (answers[0].id(), answers[1].id());
    assert!(answers[0].is_new() && answers[1].is_new() && a != b);
    assert_eq!(answers[2], Enqueued::Existing { id: a, state: State::Ready, differs: false });
    assert_eq!(answers[3], Enqueued::Existing { id: a, state: State::Ready, differs: true });
    assert!(jobs.enqueue_many::<Plain>(&[]).unwrap().is_empty());
    ground.settle(&jobs);
    assert_eq!(jobs.snapshot().unwrap().all.duplicate_suppressed_total["enqueue"], 2);
    assert_eq!(ground.close(jobs).jobs.len(), 2);
}

/// Two kinds use the same key: neither swallows the other's job.
#[test]
fn two_kinds_may_use_the_same_key() {
    let ground = Ground::new();
    let jobs = ground.builder().on(|_, _: Plain| Ok(())).on(|_, _: Other| Ok(())).start().unwrap();
    let (a, b) = (jobs.enqueue(&Plain::new("k", 1)).unwrap(), jobs.enqueue(&Other::new("k", 1)).unwrap());
    assert!(a.is_new() && b.is_new() && a.id() != b.id());
    ground.settle(&jobs);
    is(&jobs, a.id(), State::Done);
    is(&jobs, b.id(), State::Done);
    ground.close(jobs);
}

mod before {
    use super::kind;
    kind!(Mail = "mail");
}
mod now {
    use super::kind;
    kind!(Mail = "letter" { const ALIASES: &'static [&'static str] = &["mail", "post"]; });
}

/// A kind is renamed between two versions of an app. Its old jobs still run, the same intent is still the same job, and a pause
/// of the new name covers them.
#[test]
fn a_renamed_kind_keeps_its_jobs_and_its_memory() {
    let ground = Ground::new();
    let jobs = ground.builder().workers(0).on(|_, _: before::Mail| Ok(())).start().unwrap();
    let old = jobs.enqueue(&before::Mail::new("m1", 7)).unwrap().id();
    jobs.shutdown(PATIENCE).unwrap();

    let signs = ground.signs.clone();
    let jobs = ground.builder().on(move |_, m: now::Mail| {
        signs.say(format!("{}:{}", m.key, m.n));
        Ok(())
    });
    let jobs = jobs.start().unwrap();
    ground.settle(&jobs);
    is(&jobs, old, State::Done);
    let same = jobs.enqueue(&now::Mail::new("m1", 7)).unwrap();
    assert_eq!(same, Enqueued::Existing { id: old, state: State::Done, differs: false });
    let new = jobs.enqueue(&now::Mail::new("m2", 8)).unwrap().id();
    ground.settle(&jobs);
    assert_eq!(ground.signs.words(), ["m1:7", "m2:8"]);

    // Run again stays under the name of old: one intent, one memory. A pause of today's name covers it.
    jobs.pause(Scope::kind("letter"), "the printer is out of paper").unwrap();
    let again = jobs.run_again(&now::Mail::new("m1", 9)).unwrap();
    is(&jobs, again, State::Paused);
    let same = jobs.enqueue(&now::Mail::new("m1", 9)).unwrap();
    assert_eq!(same, Enqueued::Existing { id: again, state: State::Paused, differs: false });
    ground.settle(&jobs);
    is(&jobs, again, State::Paused);
    jobs.resume(Scope::kind("letter")).unwrap();
    ground.settle(&jobs);
    is(&jobs, again, State::Done);
    is(&jobs, new, State::Done);
    ground.close(jobs);
}

#[derive(Serialize, Deserialize)]
struct Nameless;
impl Job for Nameless {
    const KIND: &'static str = "";
    fn key(&self) -> JobKey {
        "k".into()
    }
}
#[derive(Serialize, Deserialize)]
struct LongName;
impl Job for LongName {
    const KIND: &'static str = "a name that goes on and on, far beyond what anybody would want to read in a log line, a label of a metric or the title of a page, and then some more";
    fn key(&self) -> JobKey {
        "k".into()
    }
}
#[derive(Serialize, Deserialize)]
struct Big {
    key: String,
    body: String,
}
impl Job for Big {
    const KIND: &'static str = "big";
    fn key(&self) -> JobKey {
        self.key.as_str().into()
    }
}

/// Somebody hands in a key, payload or name beyond its limit, or an empty one: a typed refusal that says what to do, and nothing
/// is stored; exactly at the limit it is taken and runs.
#[test]
fn limits_are_refused_by_name_and_store_nothing() {
    let ground = Ground::new();
    let signs = ground.signs.clone();
    let jobs = ground
        .builder()
        .on(move |_, b: Big| {
            signs.say(format!("{}:{}", b.key.len(), b.body.len()));
            Ok(())
        })
        .start()
        .unwrap();
    let big = |key: usize, body: usize| Big { key: "k".repeat(key), body: "x".repeat(body) };
    let empty = jobs.enqueue(&big(0, 1)).unwrap_err();
    assert!(matches!(&empty, Error::EmptyKey { kind } if kind == "big"), "{empty:?}");
    let long = jobs.enqueue(&big(513, 1)).unwrap_err();
    assert!(matches!(long, Error::TooBig { what: "key", len: 513, limit: 512 }), "{long:?}");
    // The JSON around the body: {"key":"k","body":"..."}.
    let around = serde_json::to_vec(&big(1, 0)).unwrap().len();
    let most = (1 << 20) - around;
    let fat = jobs.enqueue(&big(1, most + 1)).unwrap_err();
    assert!(matches!(fat, Error::TooBig { what: "payload", len: 1_048_577, limit: 1_048_576 }), "{fat:?}");
    assert!(fat.to_string().contains("store large data elsewhere"), "{fat}");
    let many = jobs.enqueue_many(&[big(2, 1), big(513, 1), big(3, 1)]).unwrap_err();
    let named = matches!(&many, Error::Item { index: 1, error } if matches!(**error, Error::TooBig { .. }));
    assert!(named && many.to_string().contains("job 1 of the list"), "{many:?}");
    for bad in [jobs.enqueue(&Nameless).unwrap_err(), jobs.enqueue(&LongName).unwrap_err()] {
        assert!(matches!(&bad, Error::Setup(Setup::BadName { what: "kind", .. })), "{bad:?}");
    }
    let inside = jobs.transact(move |tx| tx.enqueue(&Big { key: String::new(), body: String::new() }).map(|_| ()));
    assert!(matches!(inside, Err(Error::EmptyKey { .. })), "{inside:?}");
    ground.settle(&jobs);
    assert!(ground.signs.words().is_empty(), "nothing was stored");

    let _ = jobs.enqueue(&big(512, 1)).unwrap();
    let _ = jobs.enqueue(&big(1, most)).unwrap();
    ground.settle(&jobs);
    let mut ran = ground.signs.words();
    ran.sort();
    assert_eq!(ran, [format!("1:{most}"), "512:1".to_owned()]);
    assert_eq!(ground.close(jobs).jobs.len(), 2);
}

/// Work without a natural key opts out visibly: each call is another job.
#[test]
fn random_keys_are_never_the_same() {
    #[derive(Serialize, Deserialize)]
    struct Random;
    impl Job for Random {
        const KIND: &'static str = "random";
        fn key(&self) -> JobKey {
            JobKey::random()
        }
    }
    let ground = Ground::new();
    let jobs = ground.builder().on(|_, _: Random| Ok(())).start().unwrap();
    let ids: HashSet<_> = (0..100).map(|_| jobs.enqueue(&Random).unwrap()).map(|e| (e.is_new(), e.id())).collect();
    assert_eq!(ids.len(), 100);
    assert!(ids.iter().all(|(new, _)| *new));
    ground.settle(&jobs);
    ground.close(jobs);
}

/// The one worker is busy while urgent, plain and late jobs pile up: they start by priority, and by age within one.
#[test]
fn priorities_go_first_and_equals_by_age() {
    let ground = Ground::new();
    let (s1, s2, s3, s4) = (ground.signs.clone(), ground.signs.clone(), ground.signs.clone(), ground.signs.clone());
    let jobs = ground
        .builder()
        .workers(1)
        .on(move |_, _: Other| {
            s1.wait("busy");
            Ok(())
        })
        .on(move |_, j: Plain| {
            s2.say(j.key);
            Ok(())
        })
        .on(move |_, j: Urgent| {
            s3.say(j.key);
            Ok(())
        })
        .on(move |_, j: Later| {
            s4.say(j.key);
            Ok(())
        })
        .start()
        .unwrap();
    let _ = jobs.enqueue(&Other::new("o", 0)).unwrap();
    ground.signs.until("busy", 1);
    let _ = jobs.enqueue(&Later::new("late", 0)).unwrap();
    for key in ["plain 1", "plain 2", "plain 3"] {
        let _ = jobs.enqueue(&Plain::new(key, 0)).unwrap();
    }
    let _ = jobs.enqueue(&Urgent::new("urgent", 0)).unwrap();
    ground.signs.open("busy");
    ground.settle(&jobs);
    assert_eq!(ground.signs.words(), ["busy", "urgent", "plain 1", "plain 2", "plain 3", "late"]);
    ground.close(jobs);
}

/// Jobs for later: after a delay or at a date, not a millisecond early, and a date in the past is now.
#[test]
fn jobs_for_later_start_when_due_and_not_before() {
    let ground = Ground::new();
    let jobs = ground.builder().on(|_, _: Plain| Ok(())).start().unwrap();
    let start = onceward::testkit::Clock::now(&ground.clock).wall;
    let after = jobs.after(HOUR, &Plain::new("after", 0)).unwrap().id();
    let at = jobs.at(start.after(2 * HOUR).to_system(), &Plain::new("at", 0)).unwrap().id();
    let past = jobs.at(std::time::UNIX_EPOCH, &Plain::new("past", 0)).unwrap().id();
    let zero = jobs.after(Duration::ZERO, &Plain::new("zero", 0)).unwrap().id();
    ground.settle(&jobs);
    let states = |all: [State; 4]| {
        for (id, state) in [after, at, past, zero].into_iter().zip(all) {
            is(&jobs, id, state);
        }
    };
    states([State::Delayed, State::Delayed, State::Done, State::Done]);
    ground.pass(&jobs, HOUR - Duration::from_millis(1));
    states([State::Delayed, State::Delayed, State::Done, State::Done]);
    ground.pass(&jobs, Duration::from_millis(1));
    states([State::Done, State::Delayed, State::Done, State::Done]);
    ground.pass(&jobs, HOUR - Duration::from_millis(1));
    states([State::Done, State::Delayed, State::Done, State::Done]);
    ground.pass(&jobs, Duration::from_millis(1));
    states([State::Done; 4]);
    ground.close(jobs);
}
