//! What is owed to a callback is in the file until it was heard: a crash in the middle tells it again and says so, a callback that
//! hangs holds up no rule, and without any callback the rules are watched all the same.

use super::super::ground::{Ground, MINUTE, PATIENCE, SECOND, kind, listen};
use super::alerts::{Fine, Told, close, dead, queue};
use onceward::testkit::{DiskFactory as _, SimDisk, run_until_told};
use onceward::{AlertEvent, AlertRule, AlertRules, Decision, Fail, Jobs, Scope, State};
use redb::TableDefinition;
use std::collections::BTreeSet;

kind!(Lost = "lost");

/// What the rules say now, and to how many people it is owed.
fn standing(jobs: &Jobs) -> (Vec<AlertRule>, u64) {
    let now = jobs.alerts().unwrap().iter().map(|f| f.rule).collect();
    (now, jobs.snapshot().unwrap().gauges.alerts_waiting)
}

/// The process dies inside the callback, twice: for a letter, and for the rule about it. Each is told again by the next process, which
/// says that it may have been told before; what was heard to its end is never told again.
#[test]
fn a_crash_inside_the_callback_tells_it_again_and_says_so() {
    let (mut ground, told) = (Ground::new(), Told::default());
    let rules = || AlertRules::new().failures(None).retry_ratio(None);
    let stuck = |ground: &Ground, told: &Told| {
        let (told, signs) = (told.clone(), ground.signs.clone());
        ground
            .builder()
            .on(|_, _: Lost| Err(Fail::permanent("no")))
            .alert_rules(rules())
            .on_alert(move |alert| {
                told.hear(alert);
                signs.wait("in the callback");
            })
            .start()
            .unwrap()
    };
    let jobs = stuck(&ground, &told);
    jobs.enqueue(&Lost::new("a", 1)).unwrap();
    ground.signs.until("in the callback", 1);
    ground.kill(jobs);

    let jobs = queue(&ground, &told).alert_rules(rules()).start().unwrap();
    run_until_told(&jobs).unwrap();
    assert_eq!(told.words(), ["letter", "again letter"]);
    ground.kill(jobs);

    let jobs = stuck(&ground, &told);
    ground.pass(&jobs, 30 * MINUTE);
    ground.signs.until("in the callback", 1);
    ground.kill(jobs);

    for _ in 0..2 {
        let jobs = queue(&ground, &told).alert_rules(rules()).start().unwrap();
        ground.pass(&jobs, MINUTE);
        run_until_told(&jobs).unwrap();
        assert_eq!(standing(&jobs), (vec![AlertRule::DeadLetters], 0));
        assert_eq!(told.words(), ["letter", "again letter", "fired dead-letters", "again fired dead-letters"]);
        ground.kill(jobs);
    }
}

/// The end of it meets the same fate: the process dies before anybody was told that it is over, and the next one says so, marked.
#[test]
fn an_end_that_nobody_heard_is_told_by_the_next_process() {
    let (mut ground, told) = (Ground::new(), Told::default());
    let jobs = queue(&ground, &told).start().unwrap();
    let id = dead(&ground, &jobs, "a");
    ground.pass(&jobs, 30 * MINUTE);
    run_until_told(&jobs).unwrap();
    ground.kill(jobs);
    let signs = ground.signs.clone();
    let jobs = ground.builder().on_alert(move |_| signs.wait("in the callback")).start().unwrap();
    let letter = jobs.dead_letter(id).unwrap();
    jobs.decide(&letter, Decision::discard().by("ann", "not needed")).unwrap();
    ground.settle(&jobs);
    ground.signs.until("in the callback", 1);
    ground.kill(jobs);
    let jobs = queue(&ground, &told).start().unwrap();
    ground.settle(&jobs);
    run_until_told(&jobs).unwrap();
    assert_eq!(standing(&jobs), (vec![], 0));
    close(jobs);
    let times = |w: &str| told.signs.times(w);
    assert_eq!((times("again over dead-letters"), times("over dead-letters")), (1, 0), "{:?}", told.words());
}

/// A callback hangs. It is named after 5 s, by the place where it was registered and what it was called with, and seen in the
/// snapshot. The rules go on: a letter's half hour is over, it is kept and can be read. It is answered before the callback is free:
/// nobody is told of something that is neither true any more nor ever was said.
#[test]
fn a_callback_that_hangs_is_named_and_holds_up_no_rule() {
    let (ground, told) = (Ground::new(), Told::default());
    let (heard, signs) = (listen(), ground.signs.clone());
    let jobs = {
        let told = told.clone();
        let rules = AlertRules::new().failures(None).retry_ratio(None);
        let builder = ground.builder().on(|_, _: Lost| Err(Fail::permanent("no"))).alert_rules(rules);
        builder
            .on_alert(move |alert| {
                signs.wait("in the callback");
                told.hear(alert);
            })
            .start()
            .unwrap()
    };
    let id = jobs.enqueue(&Lost::new("hanging", 1)).unwrap().id();
    ground.signs.until("in the callback", 1);
    ground.pass(&jobs, 4 * SECOND);
    assert_eq!(jobs.snapshot().unwrap().gauges.alert_callback_hangs_seconds, None);
    assert!(!heard.has(&["has not returned for 5 s", "lost/hanging"]));
    ground.pass(&jobs, SECOND);
    heard.until(&["decide/told.rs:", "has not returned for 5 s", "lost/hanging"]);
    assert_eq!(jobs.snapshot().unwrap().gauges.alert_callback_hangs_seconds, Some(5.0));
    ground.pass(&jobs, 30 * MINUTE);
    assert_eq!(standing(&jobs), (vec![AlertRule::DeadLetters], 2), "the letter in the callback, and the rule");
    assert_eq!(jobs.snapshot().unwrap().gauges.alerts["dead-letters"], 1);
    assert_eq!(heard.count(&["has not returned for 5 s", "lost/hanging"]), 1, "once for each call");
    let letter = jobs.dead_letter(id).unwrap();
    jobs.decide(&letter, Decision::discard().by("ann", "not needed")).unwrap();
    ground.settle(&jobs);
    assert_eq!(standing(&jobs), (vec![], 0));
    ground.signs.open("in the callback");
    run_until_told(&jobs).unwrap();
    assert_eq!(jobs.snapshot().unwrap().gauges.alert_callback_hangs_seconds, None);
    close(jobs);
    assert_eq!(told.words(), ["letter"]);
}

/// A rule that was told ends, begins again and ends once more while a callback hangs: afterwards its end is told, once. If it has not
/// ended once more, nothing is: what was told last is still true, and no restart tells it a second time.
#[test]
fn what_ends_and_begins_behind_a_hanging_callback_is_told_as_it_is() {
    use std::sync::atomic::{AtomicBool, Ordering};
    for ends in [true, false] {
        let (mut ground, told, hangs) = (Ground::new(), Told::default(), std::sync::Arc::new(AtomicBool::new(false)));
        let open = |ground: &Ground| {
            let (told, signs, hangs) = (told.clone(), ground.signs.clone(), hangs.clone());
            let rules = AlertRules::new().failures(None).retry_ratio(None);
            let builder = ground.builder().on(|_, _: Lost| Err(Fail::permanent("no"))).alert_rules(rules);
            builder
                .on_alert(move |alert| {
                    if hangs.load(Ordering::SeqCst) {
                        signs.wait("hung");
                    }
                    told.hear(alert);
                })
                .start()
                .unwrap()
        };
        let jobs = open(&ground);
        let lost = |key: &str| jobs.enqueue(&Lost::new(key, 1)).unwrap().id();
        let answer = |id| {
            let letter = jobs.dead_letter(id).unwrap();
            jobs.decide(&letter, Decision::discard().by("ann", "not needed")).unwrap();
            ground.settle(&jobs);
        };
        let a = lost("a");
        ground.settle(&jobs);
        ground.pass(&jobs, 30 * MINUTE);
        run_until_told(&jobs).unwrap();
        assert_eq!(told.words(), ["letter", "fired dead-letters"]);
        hangs.store(true, Ordering::SeqCst);
        let b = lost("b");
        ground.signs.until("hung", 1);
        answer(a);
        answer(b);
        assert_eq!(standing(&jobs).0, []);
        let c = lost("c");
        ground.settle(&jobs);
        ground.pass(&jobs, 30 * MINUTE);
        assert_eq!(standing(&jobs).0, [AlertRule::DeadLetters]);
        let mut words = vec!["letter", "fired dead-letters", "letter"];
        if ends {
            answer(c);
            words.push("over dead-letters");
        } else {
            words.push("letter");
        }
        hangs.store(false, Ordering::SeqCst);
        ground.signs.open("hung");
        run_until_told(&jobs).unwrap();
        assert_eq!(told.words(), words);
        ground.kill(jobs);
        let jobs = open(&ground);
        ground.settle(&jobs);
        run_until_told(&jobs).unwrap();
        assert_eq!(told.words(), words, "nothing is told a second time");
        assert_eq!(standing(&jobs).1, 0);
        close(jobs);
    }
}

/// Thousands of jobs die while a callback hangs: what waits in memory is bounded, the file has the rest, and each is told exactly once
/// when the callback is free; those that were answered meanwhile are not told at all.
#[test]
fn a_flood_of_letters_behind_a_callback_is_told_once_each() {
    const MANY: u64 = 2_500;
    let (ground, told) = (Ground::new(), Told::default());
    let signs = ground.signs.clone();
    let jobs = {
        let told = told.clone();
        let rules = AlertRules::new().failures(None).retry_ratio(None).dead_letters(None);
        let builder = ground.builder().on(|_, _: Lost| Err(Fail::permanent("no"))).alert_rules(rules);
        builder
            .on_alert(move |alert| {
                signs.wait("in the callback");
                told.hear(alert);
            })
            .start()
            .unwrap()
    };
    jobs.enqueue(&Lost::new("first", 0)).unwrap();
    ground.signs.until("in the callback", 1);
    let many: Vec<_> = (1..=MANY).map(|n| Lost::new(&n.to_string(), n)).collect();
    let ids = jobs.enqueue_many(&many).unwrap();
    ground.settle(&jobs);
    assert_eq!(standing(&jobs).1, MANY + 1);
    let answered: Vec<_> = ids.iter().rev().take(3).map(|e| e.id()).collect();
    for id in &answered {
        let letter = jobs.dead_letter(*id).unwrap();
        jobs.decide(&letter, Decision::discard().by("ann", "not needed")).unwrap();
    }
    ground.signs.open("in the callback");
    run_until_told(&jobs).unwrap();
    assert_eq!(standing(&jobs).1, 0);
    close(jobs);
    let all = told.all.lock().unwrap();
    assert_eq!(all.len() as u64, MANY + 1 - 3);
    assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), all.len(), "nobody was told twice");
}

/// An app without a callback: what the rules say is kept, logged once when it begins and once when it is over, and can be read, across
/// a restart. Whoever adds a callback is told what goes on, as something new; an idle queue is not woken for any of it.
#[test]
fn without_a_callback_the_rules_are_watched_kept_and_read() {
    let (mut ground, told, heard) = (Ground::new(), Told::default(), listen());
    let rules = || AlertRules::new().failures(None).retry_ratio(None).dead_letters(17 * MINUTE);
    let start = |ground: &Ground| {
        let builder = ground.builder().on(|_, _: Lost| Err(Fail::permanent("no")));
        builder.alert_rules(rules()).start().unwrap()
    };
    let said = "1 waiting for a decision: there has been a dead letter for 17 minutes";
    let jobs = start(&ground);
    let id = jobs.enqueue(&Lost::new("quiet", 1)).unwrap().id();
    ground.settle(&jobs);
    ground.pass(&jobs, 16 * MINUTE);
    assert_eq!(standing(&jobs), (vec![], 0));
    ground.pass(&jobs, MINUTE);
    assert_eq!(standing(&jobs), (vec![AlertRule::DeadLetters], 0), "nobody waits to be told");
    assert_eq!(jobs.alerts().unwrap()[0].text, said);
    assert_eq!(heard.count(&[said, "resolved=false"]), 1);
    let commits = |jobs: &Jobs| jobs.snapshot().unwrap().store_commit_duration_seconds.count;
    let before = commits(&jobs);
    for _ in 0..50 {
        ground.pass(&jobs, 10 * MINUTE);
    }
    assert_eq!(commits(&jobs), before, "nothing was written");
    ground.kill(jobs);
    let jobs = start(&ground);
    ground.pass(&jobs, MINUTE);
    assert_eq!(standing(&jobs).0, [AlertRule::DeadLetters]);
    assert_eq!(heard.count(&[said]), 1, "it is not said again");
    ground.kill(jobs);

    let jobs = queue(&ground, &told).alert_rules(rules()).start().unwrap();
    ground.pass(&jobs, MINUTE);
    run_until_told(&jobs).unwrap();
    assert_eq!(told.signs.times("fired dead-letters"), 1, "{:?}", told.words());
    assert_eq!(told.signs.times("letter"), 1, "{:?}", told.words());
    close(jobs);

    let jobs = start(&ground);
    let letter = jobs.dead_letter(id).unwrap();
    jobs.decide(&letter, Decision::discard().by("ann", "not needed")).unwrap();
    ground.settle(&jobs);
    assert_eq!(standing(&jobs), (vec![], 0));
    assert_eq!(jobs.state(id).unwrap(), State::Discarded);
    heard.until(&["no dead letter waits any more", "resolved=true"]);
    jobs.shutdown(PATIENCE).unwrap();
}

/// A key that wants to be two lines, and to be read backwards: what somebody is told stays one line that reads as it was written.
#[test]
fn an_alert_is_one_line_whatever_the_key_says() {
    let (ground, told) = (Ground::new(), Told::default());
    let jobs = queue(&ground, &told).start().unwrap();
    dead(&ground, &jobs, "a\nover: \u{202e}everything");
    run_until_told(&jobs).unwrap();
    close(jobs);
    let all = told.all.lock().unwrap();
    assert_eq!(all.len(), 2, "{all:?}");
    for line in all.iter() {
        assert!(line.contains(r"fails/a\nover: \u{202e}everything"), "{line}");
        assert!(!line.chars().any(onceward::model::letter::breaks_a_line), "{line}");
    }
}

/// A bit flips in what a rule said, another in the list of what people did: the other rows are read as before, and the lost line of
/// the list is named.
#[test]
fn a_damaged_row_hides_no_other_alert_and_no_other_decision() {
    let (mut ground, heard) = (Ground::new(), listen());
    let start = |ground: &Ground| {
        let rules = AlertRules::new().failures(1).dead_letters(MINUTE);
        ground.builder().on(|_, _: Lost| Err(Fail::permanent("no"))).alert_rules(rules).start().unwrap()
    };
    let jobs = start(&ground);
    let ids = ["a", "b", "c", "d"].map(|key| jobs.enqueue(&Lost::new(key, 1)).unwrap().id());
    ground.settle(&jobs);
    for id in &ids[2..] {
        jobs.decide(&jobs.dead_letter(*id).unwrap(), Decision::discard().by("ann", "not needed")).unwrap();
    }
    ground.pass(&jobs, MINUTE);
    let mut all = standing(&jobs).0;
    all.sort();
    assert_eq!(all, [AlertRule::DeadLetters, AlertRule::SameJobFailing, AlertRule::SameJobFailing]);
    assert_eq!(jobs.decisions(None, 9).unwrap().len(), 2);
    jobs.shutdown(PATIENCE).unwrap();
    ground.disk = damaged(&ground, "s/alert/dead-letters", true);
    ground.nonce += 1;
    let jobs = start(&ground);
    assert_eq!(standing(&jobs).0, [AlertRule::SameJobFailing, AlertRule::SameJobFailing]);
    let left = jobs.decisions(None, 9).unwrap();
    assert_eq!(left.iter().map(|act| act.job).collect::<Vec<_>>(), [Some(ids[3])]);
    assert!(heard.has(&["a line is left out of the list of decisions", "act"]));
    assert_eq!(jobs.decisions(None, 1).unwrap(), left, "a page is not empty because its first line is lost");
    close(jobs);
}

/// A bit flips in what the rules remember: the queue opens all the same, and they begin anew.
#[test]
fn a_damaged_memory_of_the_rules_does_not_keep_the_queue_shut() {
    let mut ground = Ground::new();
    let start = |ground: &Ground| {
        let rules = AlertRules::new().dead_letters(MINUTE);
        ground
            .builder()
            .on(|_, _: Lost| Err(Fail::permanent("no")))
            .alert_rules(rules)
            .on_alert(|_| {})
            .start()
            .unwrap()
    };
    let jobs = start(&ground);
    jobs.enqueue(&Lost::new("a", 1)).unwrap();
    ground.pass(&jobs, MINUTE);
    jobs.shutdown(PATIENCE).unwrap();
    ground.disk = damaged(&ground, "s/alerts", false);
    ground.nonce += 1;
    let jobs = start(&ground);
    ground.pass(&jobs, MINUTE);
    assert_eq!(standing(&jobs).0, [AlertRule::DeadLetters]);
    close(jobs);
}

/// An older copy of the file is put back: the callback is told when it is found, is left alone over restarts, and hears that it is over
/// when somebody has lifted its review. The next old copy is news.
#[test]
fn an_older_copy_is_told_to_the_callback_until_its_review_is_lifted() {
    let (mut ground, told) = (Ground::new(), Told::default());
    let mut words = Vec::new();
    let life = |ground: &Ground, then: &dyn Fn(&Jobs)| {
        let jobs = queue(ground, &told).start().unwrap();
        jobs.enqueue(&Fine::new("a", 0)).unwrap();
        then(&jobs);
        ground.settle(&jobs);
        run_until_told(&jobs).unwrap();
        close(jobs);
        told.words()
    };
    assert_eq!(life(&ground, &|_| {}), words);
    for _ in 0..2 {
        ground.disk = SimDisk::from_image(ground.disk.bytes(), Vec::new());
        words.push("fired older-copy".to_owned());
        assert_eq!(life(&ground, &|_| {}), words);
        assert_eq!(life(&ground, &|_| {}), words, "it stands, and is not repeated");
        assert_eq!(life(&ground, &|jobs| jobs.resume(Scope::All).unwrap()), words, "resumed, but not compared");
        words.push("over older-copy".to_owned());
        let lift = |jobs: &Jobs| drop(jobs.lift_review("ada", "compared").unwrap());
        assert_eq!(life(&ground, &lift), words);
        assert_eq!(life(&ground, &|_| {}), words);
    }
}

/// A queue is shut down while a callback is called. It has a moment to hear it to the end, and the next process does not repeat it. One
/// that hangs is left behind: the shutdown ends, and the next process tells it again and says so.
#[test]
fn a_shutdown_gives_a_callback_a_moment_and_leaves_one_that_hangs() {
    for hangs in [false, true] {
        let (mut ground, told, late) = (Ground::new(), Told::default(), Told::default());
        let jobs = {
            let (told, signs, stopped) = (late.clone(), ground.signs.clone(), ground.signs.clone());
            let builder = ground.builder().on(|_, _: Lost| Err(Fail::permanent("no"))).on(move |cx, _: Fine| {
                stopped.say("runs");
                while !cx.cancelled() {
                    std::thread::yield_now();
                }
                stopped.say("stopping");
                Ok(())
            });
            builder
                .on_alert(move |alert| {
                    signs.wait("in the callback");
                    told.hear(alert);
                })
                .start()
                .unwrap()
        };
        jobs.enqueue(&Lost::new("a", 1)).unwrap();
        ground.signs.until("in the callback", 1);
        jobs.enqueue(&Fine::new("b", 0)).unwrap();
        ground.signs.until("runs", 1);
        let opens = {
            let signs = ground.signs.clone();
            super::super::ground::thread(move || {
                signs.until("stopping", 1);
                if !hangs {
                    signs.open("in the callback");
                }
            })
        };
        let report = jobs.shutdown(PATIENCE).unwrap();
        opens.join().unwrap();
        assert_eq!((report.finished, report.interrupted), (1, 0));
        assert_eq!(late.words().len(), usize::from(!hangs), "it was waited for");
        let signs = ground.signs.clone();
        ground.nonce += 1;
        let jobs = queue(&ground, &told).start().unwrap();
        run_until_told(&jobs).unwrap();
        assert_eq!(told.words(), if hangs { vec!["again letter"] } else { vec![] });
        close(jobs);
        signs.end();
    }
}

/// A job dies, is tried again and dies again, as fast as it can: whatever the callback's thread is at, no letter is told twice, and the
/// last one is told.
#[test]
fn a_letter_that_comes_back_at_once_is_told_once_for_each_time() {
    const TIMES: usize = 200;
    let ground = Ground::new();
    let heard = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let jobs = {
        let heard = heard.clone();
        let rules = AlertRules::new().failures(None).retry_ratio(None);
        let builder = ground.builder().on(|_, _: Lost| Err(Fail::permanent("no"))).alert_rules(rules);
        builder
            .on_alert(move |alert| match alert.event() {
                AlertEvent::Letter(letter) => heard.lock().unwrap().push(letter.revision()),
                other => panic!("{other:?}"),
            })
            .start()
            .unwrap()
    };
    let id = jobs.enqueue(&Lost::new("a", 1)).unwrap().id();
    let mut last = 0;
    for n in 0..=TIMES {
        assert_eq!(jobs.wait(id, PATIENCE).unwrap(), State::Dead);
        let letter = jobs.dead_letter(id).unwrap();
        last = letter.revision();
        if n < TIMES {
            jobs.decide(&letter, Decision::try_again().by("ann", "once more")).unwrap();
        }
    }
    run_until_told(&jobs).unwrap();
    close(jobs);
    let heard = heard.lock().unwrap();
    println!("{} of {} letters were told before they were answered", heard.len(), TIMES + 1);
    assert!(heard.windows(2).all(|two| two[0] < two[1]), "{heard:?}");
    assert_eq!(heard.last(), Some(&last));
}

/// While a callback hangs, a thousand jobs fail and are cancelled, as many as the rule keeps in mind; then one more fails. It has to wait
/// for its turn, and is told.
#[test]
fn a_job_that_fails_behind_a_thousand_others_is_told() {
    const MANY: usize = 1_000;
    let (ground, told) = (Ground::new(), Told::default());
    let jobs = {
        let (told, signs) = (told.clone(), ground.signs.clone());
        let slow = |_: &onceward::Cx, _: Lost| Err::<(), _>(Fail::transient("no").retry_after(60 * MINUTE));
        let builder = ground.builder().on(slow).alert_rules(AlertRules::new().failures(1).retry_ratio(None));
        builder
            .on_alert(move |alert| {
                signs.wait("in the callback");
                if matches!(alert.event(), AlertEvent::Fired(_)) {
                    told.signs.say(alert.to_string());
                }
            })
            .start()
            .unwrap()
    };
    let many: Vec<_> = (0..MANY).map(|n| Lost::new(&n.to_string(), 1)).collect();
    let ids = jobs.enqueue_many(&many).unwrap();
    ground.settle(&jobs);
    ground.signs.until("in the callback", 1);
    ids.iter().for_each(|e| jobs.cancel(e.id()).unwrap());
    jobs.enqueue(&Lost::new("x", 1)).unwrap();
    ground.settle(&jobs);
    ground.signs.open("in the callback");
    told.signs.until("lost/x has failed 1 times", 1);
    run_until_told(&jobs).unwrap();
    assert_eq!(told.words().len(), MANY + 1);
    close(jobs);
}

/// A callback pauses a kind, looks, and resumes it.
#[test]
fn a_callback_may_resume_what_it_paused() {
    let (ground, told) = (Ground::new(), Told::default());
    let jobs = {
        let told = told.clone();
        let builder = ground.builder().on(|_, _: Lost| Err(Fail::permanent("no")));
        builder
            .on_alert(move |alert| {
                alert.pause(Scope::All, "a look first").unwrap();
                alert.resume(Scope::All).unwrap();
                told.hear(alert);
            })
            .start()
            .unwrap()
    };
    jobs.enqueue(&Lost::new("a", 1)).unwrap();
    ground.settle(&jobs);
    run_until_told(&jobs).unwrap();
    assert_eq!((told.words(), jobs.pauses()), (vec!["letter".to_owned()], vec![]));
    close(jobs);
}

/// The disk with a bit flipped in a setting, and in the first act if asked for.
fn damaged(ground: &Ground, name: &str, act_too: bool) -> SimDisk {
    use redb::ReadableTable;
    const META: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("q/meta");
    const ACT: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("q/act");
    let flipped = |bytes: &[u8]| {
        let mut bytes = bytes.to_vec();
        let last = bytes.len() - 6;
        bytes[last] ^= 16;
        bytes
    };
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("damaged.redb");
    std::fs::write(&path, ground.disk.bytes()).unwrap();
    let db = redb::Database::open(&path).unwrap();
    let tx = db.begin_write().unwrap();
    {
        let (mut meta, mut act) = (tx.open_table(META).unwrap(), tx.open_table(ACT).unwrap());
        let bad = flipped(meta.get(name).unwrap().unwrap().value());
        meta.insert(name, &*bad).unwrap();
        if act_too {
            let (first, bad) = {
                let (first, row) = act.first().unwrap().unwrap();
                (first.value(), flipped(row.value()))
            };
            act.insert(first, &*bad).unwrap();
        }
    }
    tx.commit().unwrap();
    drop(db);
    let sidecar = ground.disk.sidecar().lock().unwrap().clone();
    SimDisk::from_image(std::fs::read(&path).unwrap(), sidecar)
}
