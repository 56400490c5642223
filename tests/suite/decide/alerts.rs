//! Somebody is told the moment a person is needed, and again when it goes on for too long; across restarts neither forgotten nor
//! repeated, and whatever the callback does.

use super::super::ground::{Ground, MINUTE, SECOND, Signs, kind, listen};
use onceward::{
    Alert, AlertEvent, AlertRules, Builder, Decision, Fail, Jobs, OnStuck, RetryRatio, Scope, State, Topic, testkit,
};
use std::sync::{Arc, Mutex};

kind!(Fails = "fails" {
    fn policy() -> onceward::Policy {
        onceward::Policy::default().retries(5).backoff(onceward::Backoff::steps([SECOND]))
    }
});
kind!(Fine = "fine");
kind!(Alone = "alone");

/// What was told: words as signs, and the whole of it. What may have been told before is said so.
#[derive(Clone, Default)]
pub(super) struct Told {
    pub(super) signs: Signs,
    pub(super) all: Arc<Mutex<Vec<String>>>,
}
impl Told {
    pub(super) fn hear(&self, alert: &Alert) {
        let word = match alert.event() {
            AlertEvent::Letter(_) => "letter".to_owned(),
            AlertEvent::Fired(f) => format!("fired {}", f.rule.as_str()),
            AlertEvent::Resolved(f) => format!("over {}", f.rule.as_str()),
            other => panic!("{other:?}"),
        };
        self.all.lock().unwrap().push(alert.to_string());
        self.signs.say(if alert.again() { format!("again {word}") } else { word });
    }
    pub(super) fn words(&self) -> Vec<String> {
        self.signs.words()
    }
}

pub(super) fn queue(ground: &Ground, told: &Told) -> Builder {
    let told = told.clone();
    ground
        .builder()
        .on(|_, job: Fails| if job.n == 0 { Ok(()) } else { Err(Fail::new("no luck")) })
        .on(|_, _: Fine| Ok(()))
        .on_alert(move |alert| told.hear(alert))
}

/// A job that fails for good.
pub(super) fn dead(ground: &Ground, jobs: &Jobs, key: &str) -> onceward::JobId {
    let id = jobs.enqueue(&Fails::new(key, 1)).unwrap().id();
    for _ in 0..6 {
        ground.pass(jobs, SECOND);
    }
    assert_eq!(jobs.state(id).unwrap(), State::Dead);
    id
}

/// The process is killed when everything was told; the next one looks at what there is.
fn killed(ground: &mut Ground, jobs: Jobs, told: &Told) -> Jobs {
    testkit::run_until_told(&jobs).unwrap();
    ground.kill(jobs);
    let jobs = queue(ground, told).start().unwrap();
    ground.settle(&jobs);
    jobs
}

/// Everything that was to be told has been told: the queue says so when it stops.
pub(super) fn close(jobs: Jobs) {
    jobs.shutdown(super::super::ground::PATIENCE).unwrap();
}

/// A job dies: its question is told at once. The fifth failure of the same job was told before it. Half an hour later it is told
/// that a letter still waits; when it is answered, that too. Each once.
#[test]
fn somebody_is_told_at_once_after_half_an_hour_and_when_it_is_over() {
    let (ground, told) = (Ground::new(), Told::default());
    let jobs = queue(&ground, &told).start().unwrap();
    let id = dead(&ground, &jobs, "a");
    told.signs.until("letter", 1);
    told.signs.until("fired same-job-failing", 1);
    ground.pass(&jobs, 29 * MINUTE);
    assert_eq!(told.signs.times("fired dead-letters"), 0);
    ground.pass(&jobs, MINUTE);
    told.signs.until("fired dead-letters", 1);
    ground.pass(&jobs, 300 * MINUTE);
    let letter = jobs.dead_letter(id).unwrap();
    jobs.decide(&letter, Decision::handled_outside().by("ann", "done by hand")).unwrap();
    ground.settle(&jobs);
    told.signs.until("over dead-letters", 1);
    told.signs.until("over same-job-failing", 1);
    close(jobs);
    let mut words = told.words();
    words.sort();
    assert_eq!(
        words,
        ["fired dead-letters", "fired same-job-failing", "letter", "over dead-letters", "over same-job-failing"]
    );
    let all = told.all.lock().unwrap().join("\n");
    assert!(all.contains("fails/a: fails a: every automatic try failed. What now?"), "{all}");
    assert!(all.contains("fails/a has failed 5 times"), "{all}");
    assert!(all.contains("1 waiting for a decision: there has been a dead letter for 30 minutes"), "{all}");
}

/// The process is killed after 20 minutes, and another after it was told: the half hour is over after 10 more minutes, it is told
/// once, and the next process tells it neither again nor forgets to say that it is over.
#[test]
fn a_restart_neither_forgets_the_half_hour_nor_tells_it_twice() {
    let (mut ground, told) = (Ground::new(), Told::default());
    let jobs = queue(&ground, &told).start().unwrap();
    let id = dead(&ground, &jobs, "a");
    ground.pass(&jobs, 20 * MINUTE);
    testkit::run_until_told(&jobs).unwrap();
    ground.kill(jobs);
    assert_eq!(told.signs.times("fired dead-letters"), 0);
    let jobs = queue(&ground, &told).start().unwrap();
    ground.settle(&jobs);
    ground.pass(&jobs, 9 * MINUTE);
    ground.settle(&jobs);
    assert_eq!(told.signs.times("fired dead-letters"), 0, "29 minutes");
    ground.pass(&jobs, MINUTE);
    told.signs.until("fired dead-letters", 1);
    testkit::run_until_told(&jobs).unwrap();
    ground.kill(jobs);
    // It goes on while nobody is there to tell it.
    ground.clock.advance(60 * MINUTE);
    let jobs = queue(&ground, &told).start().unwrap();
    ground.settle(&jobs);
    ground.pass(&jobs, 60 * MINUTE);
    let letter = jobs.dead_letter(id).unwrap();
    jobs.decide(&letter, Decision::discard().by("ann", "not needed")).unwrap();
    ground.settle(&jobs);
    told.signs.until("over dead-letters", 1);
    close(jobs);
    let times = |w: &str| told.signs.times(w);
    assert_eq!((times("fired dead-letters"), times("over dead-letters")), (1, 1), "{:?}", told.words());
    assert_eq!((times("fired same-job-failing"), times("letter")), (1, 1), "{:?}", told.words());
}

/// The machine sleeps through the half hour: the stopwatch stood still, the calendar did not, and it is told when that is noticed.
#[test]
fn a_suspend_does_not_stop_the_half_hour() {
    let (ground, told) = (Ground::new(), Told::default());
    let jobs = queue(&ground, &told).start().unwrap();
    dead(&ground, &jobs, "a");
    ground.settle(&jobs);
    ground.clock.suspend(31 * MINUTE);
    ground.settle(&jobs);
    told.signs.until("fired dead-letters", 1);
    close(jobs);
}

/// The half hour passes while no process runs: the next one says it when it starts.
#[test]
fn what_became_overdue_while_nobody_ran_is_told_at_the_start() {
    let (mut ground, told) = (Ground::new(), Told::default());
    let jobs = queue(&ground, &told).start().unwrap();
    dead(&ground, &jobs, "a");
    ground.kill(jobs);
    ground.clock.advance(31 * MINUTE);
    let jobs = queue(&ground, &told).start().unwrap();
    told.signs.until("fired dead-letters", 1);
    close(jobs);
}

/// The callback pauses the kind whose jobs fail: nothing more of it runs, before and after a restart. One callback panics each
/// time, and the other hears everything all the same.
#[test]
fn a_callback_may_pause_and_may_panic() {
    let (mut ground, told) = (Ground::new(), Told::default());
    let signs = told.signs.clone();
    let jobs = ground
        .builder()
        .on(|_, _: Fails| Err(Fail::permanent("no")))
        .on_alert(|_| std::panic::resume_unwind(Box::new("a bug in the callback")))
        .on_alert({
            let told = told.clone();
            move |alert| {
                if let AlertEvent::Letter(letter) = alert.event() {
                    alert.pause(Scope::kind(letter.kind()), "it fails for good").unwrap();
                }
                told.hear(alert);
            }
        })
        .start()
        .unwrap();
    let heard = listen();
    jobs.enqueue(&Fails::new("a", 1)).unwrap();
    signs.until("letter", 1);
    // Named by the place where it was registered, and by what it was called with.
    heard.until(&["decide/alerts.rs:", "panicked at", "fails/a", "a bug in the callback"]);
    let id = jobs.enqueue(&Fails::new("b", 1)).unwrap().id();
    ground.settle(&jobs);
    assert_eq!(jobs.state(id).unwrap(), State::Paused);
    assert_eq!(jobs.pauses(), [(Scope::kind("fails"), "it fails for good".to_owned())]);
    testkit::run_until_told(&jobs).unwrap();
    ground.kill(jobs);
    let jobs = queue(&ground, &told).start().unwrap();
    ground.settle(&jobs);
    assert_eq!(jobs.state(id).unwrap(), State::Paused);
    jobs.resume(Scope::kind("fails")).unwrap();
    ground.settle(&jobs);
    assert_eq!(jobs.state(id).unwrap(), State::Delayed);
    close(jobs);
}

/// A kind whose handler is gone: its job could run and does not. A quarter of an hour after that was first seen somebody is told,
/// once; a pause, which somebody knows about, ends it. The hour for which the job was asked to wait does not count. Processes that are
/// killed in between neither begin to count anew nor say it again.
#[test]
fn a_job_that_nobody_runs_is_told_and_a_pause_ends_it() {
    let (mut ground, told) = (Ground::new(), Told::default());
    let jobs = ground.builder().on(|_, _: Alone| Ok(())).start().unwrap();
    jobs.after(60 * MINUTE, &Alone::new("a", 0)).unwrap();
    ground.kill(jobs);
    let jobs = queue(&ground, &told).start().unwrap();
    ground.settle(&jobs);
    ground.pass(&jobs, 60 * MINUTE);
    ground.pass(&jobs, 14 * MINUTE);
    assert_eq!(told.words(), Vec::<String>::new());
    // Nobody wrote down when it became ready: it counts from the first look on, which is a quarter of an hour later.
    ground.pass(&jobs, MINUTE);
    let jobs = killed(&mut ground, jobs, &told);
    ground.pass(&jobs, 14 * MINUTE);
    assert_eq!(told.words(), Vec::<String>::new());
    ground.pass(&jobs, MINUTE);
    told.signs.until("fired oldest-job", 1);
    let jobs = killed(&mut ground, jobs, &told);
    ground.pass(&jobs, 60 * MINUTE);
    jobs.pause(Scope::kind("alone"), "known").unwrap();
    ground.settle(&jobs);
    told.signs.until("over oldest-job", 1);
    close(jobs);
    assert_eq!(told.words(), ["fired oldest-job", "over oldest-job"]);
}

/// Jobs run as they should, then every second attempt is a retry: the jump is told, and over when it is calm again, also if the process
/// is killed in between.
#[test]
fn a_jump_of_the_retry_ratio_is_told_once_and_over_once() {
    let (mut ground, told) = (Ground::new(), Told::default());
    let rules = AlertRules::new().failures(None).dead_letters(None).retry_ratio(RetryRatio {
        share: 0.25,
        times_usual: 3.0,
        attempts: 20,
        window: 10 * MINUTE,
    });
    let open = |ground: &Ground| queue(ground, &told).alert_rules(rules.clone()).start().unwrap();
    let fine = |ground: &Ground, jobs: &Jobs, from: u64| {
        let some: Vec<_> = (from..from + 100).map(|n| Fine::new(&n.to_string(), n)).collect();
        jobs.enqueue_many(&some).unwrap();
        ground.settle(jobs);
    };
    let jobs = open(&ground);
    fine(&ground, &jobs, 0);
    ground.pass(&jobs, 60 * MINUTE);
    let failing: Vec<_> = (0..10).map(|n| Fails::new(&n.to_string(), 1)).collect();
    jobs.enqueue_many(&failing).unwrap();
    for _ in 0..6 {
        ground.pass(&jobs, SECOND);
    }
    assert_eq!(told.signs.times("fired retry-ratio"), 0, "the window is not over");
    ground.pass(&jobs, 10 * MINUTE);
    told.signs.until("fired retry-ratio", 1);
    testkit::run_until_told(&jobs).unwrap();
    ground.kill(jobs);
    let jobs = open(&ground);
    ground.settle(&jobs);
    fine(&ground, &jobs, 100);
    ground.pass(&jobs, 10 * MINUTE);
    told.signs.until("over retry-ratio", 1);
    close(jobs);
    assert_eq!((told.signs.times("fired retry-ratio"), told.signs.times("letter")), (1, 10), "{:?}", told.words());
}

/// The process ends every three minutes, in good order, and begins again: the attempts of all of them are counted together.
#[test]
fn a_jump_of_the_retry_ratio_is_noticed_over_restarts() {
    let (ground, told) = (Ground::new(), Told::default());
    let start = || {
        let rules = AlertRules::new().failures(None).dead_letters(None).retry_ratio(RetryRatio {
            share: 0.25,
            times_usual: 3.0,
            attempts: 20,
            window: 10 * MINUTE,
        });
        queue(&ground, &told).alert_rules(rules).start().unwrap()
    };
    let jobs = start();
    let fine: Vec<_> = (0..100).map(|n| Fine::new(&n.to_string(), n)).collect();
    jobs.enqueue_many(&fine).unwrap();
    ground.settle(&jobs);
    ground.pass(&jobs, 60 * MINUTE);
    close(jobs);
    for n in 0..4 {
        let jobs = start();
        dead(&ground, &jobs, &n.to_string());
        ground.pass(&jobs, 3 * MINUTE);
        close(jobs);
    }
    let jobs = start();
    ground.pass(&jobs, MINUTE);
    testkit::run_until_told(&jobs).unwrap();
    close(jobs);
    assert_eq!((told.signs.times("fired retry-ratio"), told.signs.times("letter")), (1, 4), "{:?}", told.words());
}

/// Nothing waits for anybody: the rules do not wake the queue, whatever they would look for. A letter that waits asks for one look,
/// at its half hour, and for none after it.
#[test]
fn an_idle_queue_with_alerts_sleeps() {
    let (ground, told) = (Ground::new(), Told::default());
    let jobs = queue(&ground, &told).start().unwrap();
    ground.settle(&jobs);
    dead(&ground, &jobs, "1");
    for _ in 0..6 {
        ground.pass(&jobs, 10 * MINUTE);
    }
    told.signs.until("fired dead-letters", 1);
    // That it was told is written behind the callback.
    onceward::testkit::run_until_told(&jobs).unwrap();
    let words = told.words().len();
    let commits = |jobs: &Jobs| jobs.snapshot().unwrap().store_commit_duration_seconds.count;
    let before = commits(&jobs);
    for _ in 0..100 {
        ground.pass(&jobs, 10 * MINUTE);
    }
    assert_eq!(commits(&jobs), before, "nothing was written");
    close(jobs);
    assert_eq!(told.words().len(), words, "nothing more was said: {:?}", told.words());
}

/// Of a kind that undoes what it did nobody gets a letter: that a job of it has failed again and again is said all the same.
#[test]
fn a_job_that_is_undone_after_its_fifth_failure_is_told() {
    use onceward::{Effect, EffectCard, IdempotencyKey, Job, JobKey, OnDead, Policy, Undo};

    #[derive(serde::Serialize, serde::Deserialize)]
    struct Book;
    impl Effect for Book {
        type Result = ();
        const NAME: &'static str = "book";
        fn says(&self) -> String {
            "a room".into()
        }
        fn undo(&self, _: Option<&()>) -> Undo {
            Undo::job(Fine::new("cancel", 0))
        }
    }
    #[derive(serde::Serialize, serde::Deserialize)]
    struct Trip;
    impl Job for Trip {
        const KIND: &'static str = "trip";
        fn key(&self) -> JobKey {
            "1".into()
        }
        fn policy() -> Policy {
            Policy::default().retries(4).backoff(onceward::Backoff::steps([SECOND])).on_dead(OnDead::Undo)
        }
        fn effects() -> Vec<EffectCard> {
            vec![Book::card()]
        }
    }
    // The callback is free, hangs at something else until all of it is over, or the rule is off.
    for (limit, times, hangs) in [(Some(5), 1, false), (Some(5), 1, true), (None, 0, false)] {
        let (ground, told) = (Ground::new(), Told::default());
        let signs = ground.signs.clone();
        let jobs = queue(&ground, &told)
            .alert_rules(AlertRules::new().failures(limit))
            .on(|_, _: Alone| Err(Fail::permanent("no")))
            .on_alert(move |alert| {
                if matches!(alert.event(), AlertEvent::Letter(_)) {
                    signs.wait("hung");
                }
            })
            .on(|cx, _: Trip| {
                cx.effect(Book)?;
                Err(Fail::new("no luck"))
            })
            .effect(|_: &Book, _: &IdempotencyKey| Ok(()))
            .start()
            .unwrap();
        if hangs {
            jobs.enqueue(&Alone::new("a", 1)).unwrap();
            ground.signs.until("hung", 1);
        }
        let id = jobs.enqueue(&Trip).unwrap().id();
        for _ in 0..6 {
            ground.pass(&jobs, SECOND);
        }
        assert_eq!(jobs.state(id).unwrap(), State::Compensated);
        ground.signs.open("hung");
        testkit::run_until_told(&jobs).unwrap();
        // What was heard asks for a look, and that says that it is over.
        ground.settle(&jobs);
        testkit::run_until_told(&jobs).unwrap();
        close(jobs);
        for word in ["fired same-job-failing", "over same-job-failing"] {
            assert_eq!(told.signs.times(word), times, "{:?}", told.words());
        }
    }
}

/// The broker is away for a quarter of an hour: told once with the topic, and over a minute after the messages go out again. A
/// process that knows no publisher for a topic at all is told as well. One is killed a minute before that, another after it: it is told
/// in its time, and once.
#[test]
fn a_topic_that_is_not_delivered_is_told_and_over_when_it_is() {
    let (mut ground, told) = (Ground::new(), Told::default());
    let away = Arc::new(std::sync::atomic::AtomicBool::new(true));
    let open = |ground: &Ground| {
        let broker = away.clone();
        let publisher = move |_: &onceward::Message| {
            if broker.load(std::sync::atomic::Ordering::SeqCst) { Err(Fail::new("no broker")) } else { Ok(()) }
        };
        let jobs = queue(ground, &told).publisher("paid", publisher).start().unwrap();
        ground.settle(&jobs);
        jobs
    };
    let killed = |ground: &mut Ground, jobs: Jobs| {
        testkit::run_until_told(&jobs).unwrap();
        ground.kill(jobs);
        open(ground)
    };
    let jobs = open(&ground);
    for topic in ["paid", "nobody"] {
        jobs.transact::<_, Fail>(move |tx| Ok(tx.outbox(topic, "1", &1)?.is_new())).unwrap();
    }
    ground.pass(&jobs, 14 * MINUTE);
    let jobs = killed(&mut ground, jobs);
    assert_eq!(told.signs.times("fired outbox-stuck"), 0);
    ground.pass(&jobs, MINUTE);
    told.signs.until("fired outbox-stuck", 2);
    let jobs = killed(&mut ground, jobs);
    ground.pass(&jobs, 10 * MINUTE);
    away.store(false, std::sync::atomic::Ordering::SeqCst);
    for _ in 0..20 {
        ground.pass(&jobs, MINUTE);
    }
    told.signs.until("over outbox-stuck", 1);
    close(jobs);
    assert_eq!((told.signs.times("fired outbox-stuck"), told.signs.times("over outbox-stuck")), (2, 1));
    let all = told.all.lock().unwrap().join("\n");
    assert!(all.contains("topic \"paid\" has an undelivered message for 15 minutes"), "{all}");
    let nobody = "topic \"nobody\" has an undelivered message for 15 minutes, and this process has no publisher for it";
    assert!(all.contains(nobody), "{all}");
}

/// A message was refused for good and put aside, and everything behind it goes out: it still waits for a person, who is told, and over
/// it is when that person has decided.
#[test]
fn a_message_that_was_put_aside_is_told_until_somebody_decides() {
    let (ground, told) = (Ground::new(), Told::default());
    let jobs = queue(&ground, &told)
        .topic("paid", Topic::default().on_stuck(OnStuck::DeadLetter))
        .publisher(
            "paid",
            |m: &onceward::Message| if m.id == "1" { Err(Fail::permanent("no such order")) } else { Ok(()) },
        )
        .start()
        .unwrap();
    for id in ["1", "2"] {
        jobs.transact::<_, Fail>(move |tx| Ok(tx.outbox("paid", id, &1)?.is_new())).unwrap();
    }
    ground.settle(&jobs);
    assert_eq!(jobs.outbox().topics().unwrap()[0].aside, 1, "one is aside, nothing else waits");
    ground.pass(&jobs, 14 * MINUTE);
    assert_eq!(told.signs.times("fired outbox-stuck"), 0);
    ground.pass(&jobs, MINUTE);
    told.signs.until("fired outbox-stuck", 1);
    ground.pass(&jobs, 60 * MINUTE);
    jobs.outbox().discard("paid", "1", "ann", "there is no such order").unwrap();
    for _ in 0..3 {
        ground.pass(&jobs, MINUTE);
    }
    told.signs.until("over outbox-stuck", 1);
    close(jobs);
    assert_eq!((told.signs.times("fired outbox-stuck"), told.signs.times("over outbox-stuck")), (1, 1));
}

/// Thousands of keys wait, and one of their messages is stuck: it is told once, also while the search among the others goes on, is not
/// over because most of them went out, and is over when a person has decided the last one.
#[test]
fn one_stuck_message_among_thousands_of_keys_is_found_and_stays_found() {
    const KEYS: usize = 3_000;
    let (ground, told) = (Ground::new(), Told::default());
    let away = Arc::new(std::sync::atomic::AtomicBool::new(true));
    let broker = away.clone();
    let jobs = queue(&ground, &told)
        .alert_rules(AlertRules::new().retry_ratio(None))
        .topic("paid", Topic::default().batch(500))
        .publisher("paid", move |m: &onceward::Message| {
            if m.id == "2000" {
                Err(Fail::permanent("no such order"))
            } else if broker.load(std::sync::atomic::Ordering::SeqCst) {
                Err(Fail::new("no broker"))
            } else {
                Ok(())
            }
        })
        .start()
        .unwrap();
    jobs.transact::<_, Fail>(|tx| {
        for n in 0..KEYS {
            tx.send(onceward::Outgoing::new("paid", n.to_string(), &n).key(n.to_string()))?;
        }
        Ok(())
    })
    .unwrap();
    for _ in 0..15 {
        ground.pass(&jobs, MINUTE);
    }
    told.signs.until("fired outbox-stuck", 1);
    away.store(false, std::sync::atomic::Ordering::SeqCst);
    for _ in 0..60 {
        ground.pass(&jobs, MINUTE);
    }
    let topic = &jobs.outbox().topics().unwrap()[0];
    assert_eq!((topic.depth, topic.stuck), (1, 1), "everything else went out");
    assert_eq!(told.signs.times("over outbox-stuck"), 0);
    jobs.outbox().discard("paid", "2000", "ann", "there is no such order").unwrap();
    for _ in 0..3 {
        ground.pass(&jobs, MINUTE);
    }
    told.signs.until("over outbox-stuck", 1);
    close(jobs);
    assert_eq!((told.signs.times("fired outbox-stuck"), told.signs.times("over outbox-stuck")), (1, 1));
}
