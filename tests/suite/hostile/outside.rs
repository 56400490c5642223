//! Hostile input from outside the handlers: signatures, pauses, messages, scopes, file names, ids, and times at both ends.

use super::super::ground::{DAY, Ground, MINUTE, PATIENCE, SECOND, is, kind};
use super::{Row, TEXTS, broken, one_line, refused, row, rows, seen, too_big};
use onceward::prelude::*;
use onceward::testkit::Clock;
use onceward::{Backoff, Error, Keep, Outgoing, Scope, StoreError, Why};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeSet, HashSet};
use std::sync::{Arc, Mutex};
use std::time::{Duration, UNIX_EPOCH};

/// Whoever signs with a text, or for it: kept as it is in the list of what people did, or refused with nothing changed.
#[test]
fn any_text_signs_in_one_line_or_not_at_all() {
    let ground = Ground::new();
    let jobs = rows(&ground);
    let (mut signed, mut not) = (Vec::new(), 0);
    let id = broken(&jobs, "a", "no");
    ground.settle(&jobs);
    let discard = |who: &str, why: &str| {
        let letter = jobs.dead_letter(id).unwrap();
        seen(&letter);
        let told = jobs.decide(&letter, Decision::discard().by(who, why));
        told.map_err(|e| (jobs.dead_letter(id).unwrap().revision() == letter.revision()).then_some(e).unwrap())
    };
    let more = [("", false), (" ", false), (" \u{a0} ", false)];
    for (text, plain) in TEXTS.iter().chain(&more) {
        for (who, why) in [(*text, "ok"), ("ann", *text)] {
            if *plain {
                discard(who, why).unwrap();
                jobs.restore(id, who, why).unwrap();
                signed.extend([(who, why); 2]);
            } else {
                refused(discard(who, why));
                refused(jobs.lift_review(who, why));
                refused(jobs.restore(id, who, why));
                not += 3;
            }
        }
    }
    // A name of which nothing can be seen is none.
    refused(discard("\u{200b}\u{feff}", "ok"));
    let long = "é".repeat(2_048);
    discard(&long, &long).unwrap();
    too_big(jobs.restore(id, &format!("{long}x"), "ok"), "reason or name", 4_097, "fewer words");
    too_big(jobs.restore(id, "ann", &format!("{long}x")), "reason or name", 4_097, "fewer words");
    jobs.restore(id, &long, &long).unwrap();
    signed.extend([(long.as_str(), long.as_str()); 2]);
    ground.settle(&jobs);
    jobs.shutdown(PATIENCE).unwrap();
    let jobs = rows(&ground);
    let acts = jobs.decisions(None, usize::MAX).unwrap();
    acts.iter().for_each(|act| one_line(&act.says()));
    assert_eq!(acts.iter().map(|a| (a.who.as_str(), a.why.as_str())).collect::<Vec<_>>(), signed);
    seen(&jobs.dead_letter(id).unwrap());
    println!("hostile: {} signatures kept, {} refused", acts.len(), not + 3);
    assert_eq!((acts.len(), not), (38, 72));
    ground.close(jobs);
}

/// Somebody lifts the review of a file without its sidecar: only with a signature that is one line.
#[test]
fn a_review_is_lifted_in_one_line() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("jobs.redb");
    let start = || onceward::Jobs::open(&path).on(|_, _: Row| Ok(())).start().unwrap();
    start().shutdown(PATIENCE).unwrap();
    std::fs::remove_file(dir.path().join("jobs.redb.run")).unwrap();
    let jobs = start();
    let before = jobs.review().unwrap();
    let bad: Vec<&str> = TEXTS.iter().filter(|(_, plain)| !plain).map(|(text, _)| *text).collect();
    for text in &bad {
        refused(jobs.lift_review(text, "ok"));
        refused(jobs.lift_review("ann", text));
        assert_eq!(jobs.review().as_ref(), Some(&before));
    }
    let (who, why) = ("\u{1f468}\u{200d}\u{1f469}", "| \"a\", <b> | \u{ffff}");
    assert_eq!(jobs.lift_review(who, why).unwrap(), before);
    jobs.shutdown(PATIENCE).unwrap();
    let jobs = start();
    assert!(jobs.review().is_none());
    let acts = jobs.decisions(None, 9).unwrap();
    assert_eq!((acts.len(), acts[0].who.as_str(), acts[0].why.as_str()), (1, who, why));
    one_line(&acts[0].says());
    println!("hostile: {} signatures refused, 1 review lifted", 2 * bad.len());
    jobs.shutdown(PATIENCE).unwrap();
}

/// Every text as the name of what is paused and as the reason, and reasons of any length: as they are, after a restart too; whoever
/// waits reads one line.
#[test]
fn any_text_is_a_pause_and_its_reason() {
    let ground = Ground::new();
    let jobs = rows(&ground);
    let of = |text: &&str| [Scope::kind(text), Scope::queue(text), Scope::topic(text)].map(|s| (s, (*text).to_owned()));
    let texts: Vec<&str> = TEXTS.iter().map(|(text, _)| *text).chain(["", "kind/a/b"]).collect();
    let mut all: Vec<(Scope, String)> = texts.iter().flat_map(of).collect();
    all.push((Scope::All, "y".repeat(100_000)));
    for (scope, why) in &all {
        jobs.pause(scope.clone(), why).unwrap();
    }
    let shown = |all: &[(Scope, String)]| all.iter().map(|p| format!("{p:?}")).collect::<BTreeSet<_>>();
    assert_eq!(shown(&jobs.pauses()), shown(&all));
    ground.close(jobs);
    let jobs = rows(&ground);
    assert_eq!(shown(&jobs.pauses()), shown(&all));
    all.iter().for_each(|(scope, _)| jobs.resume(scope.clone()).unwrap());
    assert_eq!(jobs.pauses(), []);
    let mut waited = 0;
    for text in &texts {
        jobs.pause(Scope::kind("row"), text).unwrap();
        let id = jobs.enqueue(&row("held", "held")).unwrap().id();
        let told = jobs.wait(id, Duration::ZERO).unwrap_err();
        assert!(matches!(&told, Error::Paused { why, .. } if why == text), "{told:?}");
        one_line(&told.to_string());
        waited += 1;
    }
    jobs.resume(Scope::kind("row")).unwrap();
    ground.settle(&jobs);
    ground.pass(&jobs, MINUTE);
    println!("hostile: {} pauses, {waited} waits that name one", all.len());
    assert_eq!((all.len(), waited, ground.close(jobs).attempts()), (61, 20, 2));
}

fn message(text: &str) -> Message {
    let mut message = Message::new(text, text, serde_json::to_vec(text).unwrap());
    (message.key, message.kind) = (text.to_owned(), text.to_owned());
    message.headers = vec![(text.to_owned(), text.to_owned()), (String::new(), String::new())];
    message
}

/// Topic, id, key, kind, body and headers of every text, and the trace parent that is none: delivered as handed in, by another
/// process; what the publisher says against it is kept.
#[test]
fn any_text_is_a_message() {
    let (ground, trace) = (Ground::new(), Arc::new(Mutex::new(String::new())));
    let (got, tried) = (Arc::new(Mutex::new(Vec::new())), Arc::new(Mutex::new(HashSet::new())));
    let said = trace.clone();
    let jobs = ground.builder().trace_parent(move || Some(said.lock().unwrap().clone())).start().unwrap();
    for (text, _) in TEXTS {
        *trace.lock().unwrap() = text.to_owned();
        let send = move |tx: &mut Tx<'_>| {
            let plain = Outgoing::new(text, text, text).key(text).kind(text);
            tx.send(plain.header(text, text).header("", ""))
        };
        assert!(jobs.transact(send).unwrap().is_new());
        let waiting = jobs.outbox().waiting(text, usize::MAX).unwrap();
        assert_eq!((waiting.len(), waiting[0].message.as_ref()), (1, Some(&message(text))));
    }
    assert!(jobs.transact(|tx| tx.send(Outgoing::new("x", "deep", "").raw_body(vec![b'['; 10_000]))).unwrap().is_new());
    for (topic, id) in [("", "i"), ("t", "")] {
        let told = jobs.transact(move |tx| tx.outbox(topic, id, &1)).unwrap_err();
        assert!(matches!(told, Error::NoName { .. }), "{told:?}");
    }
    let gone = jobs.outbox().retry("\u{202e}", "\u{1b}[2J\n", "ann", "ok").unwrap_err();
    assert!(matches!(gone, Error::NoMessage { .. }));
    one_line(&gone.to_string());
    ground.close(jobs);
    let start = || {
        let publish = |(got, tried): (Arc<Mutex<Vec<Message>>>, Arc<Mutex<HashSet<String>>>)| {
            move |m: &Message| -> Outcome {
                if tried.lock().unwrap().insert(m.topic.clone()) {
                    return Err(Fail::permanent(m.topic.clone()));
                }
                got.lock().unwrap().push(m.clone());
                Ok(())
            }
        };
        let add =
            |b: onceward::Builder, (text, _): &(&str, bool)| b.publisher(*text, publish((got.clone(), tried.clone())));
        TEXTS.iter().fold(ground.builder(), add).start().unwrap()
    };
    let jobs = start();
    ground.settle(&jobs);
    for (text, _) in TEXTS {
        let stuck = jobs.outbox().stuck(text, usize::MAX).unwrap();
        assert_eq!((stuck.len(), stuck[0].error.as_deref(), stuck[0].stuck), (1, Some(text), Some(Why::Permanent)));
        jobs.outbox().retry(text, text, "ann", "it is back").unwrap();
        ground.settle(&jobs);
        assert!(got.lock().unwrap().contains(&message(text)), "{text:?}");
    }
    ground.close(jobs);
    let jobs = start();
    let delivered = TEXTS.iter().filter_map(|(text, _)| jobs.outbox().find(text, text).unwrap()?.ended).count();
    jobs.decisions(None, 100).unwrap().iter().for_each(|act| one_line(&act.says()));
    let got = got.lock().unwrap().clone();
    assert!(got.iter().any(|m| m.id == "deep" && m.body == vec![b'['; 10_000]));
    println!("hostile: {} messages delivered", got.len());
    assert_eq!((got.len(), delivered), (19, 18));
    ground.close(jobs);
}

/// Every text as the key scope: keys are 64 digits, and no two scopes share one.
#[test]
fn any_text_is_a_key_scope() {
    #[derive(Serialize, Deserialize)]
    struct Pay;
    impl Effect for Pay {
        type Result = ();
        const NAME: &'static str = "pay";
        const RISK: Risk = Risk::Charge;
        fn says(&self) -> String {
            "Pay".into()
        }
    }
    kind!(Sale = "sale" {
        fn effects() -> Vec<EffectCard> { vec![Pay::card()] }
        fn policy() -> Policy { Policy::default().success("paid").review("unknown") }
    });
    let keys = Arc::new(Mutex::new(Vec::new()));
    let long = "z".repeat(1_000_000);
    let scopes: Vec<&str> = TEXTS.iter().map(|(text, _)| *text).chain([long.as_str()]).collect();
    for scope in &scopes {
        let (ground, keys) = (Ground::new(), keys.clone());
        let pay = move |_: &Pay, key: &IdempotencyKey| {
            keys.lock().unwrap().push(key.to_string());
            Ok(())
        };
        let jobs = ground.builder().key_scope(scope).on(|cx, _: Sale| cx.effect(Pay)).effect(pay).start().unwrap();
        let id = jobs.enqueue(&Sale::new("1", 0)).unwrap().id();
        ground.settle(&jobs);
        is(&jobs, id, State::Done);
        ground.close(jobs);
    }
    let keys = keys.lock().unwrap();
    assert!(keys.iter().all(|key| key.len() == 64 && key.bytes().all(|b| b.is_ascii_hexdigit())));
    println!("hostile: {} key scopes", keys.len());
    assert_eq!((keys.len(), keys.iter().collect::<HashSet<_>>().len()), (19, 19));
}

/// Every text as a file name: a queue that is found again, or an error that names the file and says what to do.
#[cfg(unix)]
#[test]
fn any_name_is_a_file_or_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let names = ["".to_owned(), "n".repeat(100), "n".repeat(255), "n".repeat(256), "no/such/folder".to_owned()];
    let (mut files, mut errors) = (0, Vec::new());
    for name in TEXTS.iter().map(|(text, _)| (*text).to_owned()).chain(names) {
        let path = dir.path().join(&name);
        let start = || Jobs::open(&path).on(|_, _: Row| Ok(())).start();
        if name.is_empty() || name.contains(['\0', '/']) || name.len() > 250 {
            match start().map(drop) {
                Err(e @ Error::Store(StoreError::CannotOpen { .. })) => errors.push(e.to_string()),
                // The folder itself.
                Err(e @ Error::Store(StoreError::Foreign { .. })) if name.is_empty() => errors.push(e.to_string()),
                other => panic!("{name:?}: {other:?}"),
            }
            continue;
        }
        let jobs = start().unwrap();
        let id = jobs.enqueue(&row("k", name.as_str())).unwrap().id();
        let late = jobs.after(Duration::MAX, &row("late", "")).unwrap().id();
        assert_eq!(jobs.wait(id, PATIENCE).unwrap(), State::Done, "{name:?}");
        match start().map(drop) {
            Err(e @ Error::Store(StoreError::AlreadyOpen { .. })) => errors.push(e.to_string()),
            other => panic!("{name:?}: {other:?}"),
        }
        jobs.shutdown(PATIENCE).unwrap();
        let jobs = start().unwrap();
        assert_eq!((jobs.pauses(), jobs.enqueue(&row("k", name.as_str())).unwrap().id()), (vec![], id));
        is(&jobs, id, State::Done);
        is(&jobs, late, State::Delayed);
        jobs.shutdown(PATIENCE).unwrap();
        files += 1;
    }
    println!("hostile: {files} file names, {} errors", errors.len());
    assert_eq!((files, errors.len()), (15, 23));
    errors.iter().for_each(|e| one_line(e));
}

kind!(Plain = "plain");
kind!(Late = "late" {
    fn policy() -> Policy {
        let (all, keep) = (Duration::MAX, Keep::For(Duration::MAX));
        let p = Policy::default().deadline(all).stall_timeout(all).attempt_timeout(all).backoff(Backoff::steps([all]));
        p.keep_done(keep).keep_discarded(keep).remember(keep)
    }
});
kind!(Jitter = "jitter" {
    fn policy() -> Policy { Policy::default().backoff(Backoff::exponential(Duration::MAX, Duration::MAX)) }
});
kind!(Hasty = "hasty" {
    fn policy() -> Policy {
        let policy = Policy::default().deadline(Duration::ZERO).backoff(Backoff::steps([MINUTE]));
        policy.keep_discarded(Keep::For(Duration::MAX))
    }
});
kind!(Soon = "soon" {
    fn policy() -> Policy { Policy::default().retries(2).backoff(Backoff::exponential(Duration::ZERO, Duration::ZERO)) }
});
fn run(cx: &Cx, n: u64) -> Outcome {
    match (n, cx.attempt()) {
        (1, _) => Err(Fail::transient("away")),
        (2, 1) => Err(Fail::transient("busy").retry_after(Duration::MAX)),
        (3, _) => Err(Fail::not_yet("too early", Duration::MAX)),
        _ => Ok(()),
    }
}
fn timed(ground: &Ground) -> Jobs {
    let all = Duration::MAX;
    let topic = Topic::default().backoff(Backoff::steps([all])).deadline(all).attempt_timeout(all);
    let publish = |m: &Message| -> Outcome {
        if m.id == "bad" { Err(Fail::transient("away").retry_after(Duration::MAX)) } else { Ok(()) }
    };
    let b = ground.builder().publisher("t", publish).topic("t", topic.keep(Keep::For(all)).remember(Keep::For(all)));
    let b = b.on(|cx, j: Plain| run(cx, j.n)).on(|cx, j: Late| run(cx, j.n)).on(|cx, j: Jitter| run(cx, j.n));
    b.on(|cx, j: Hasty| run(cx, j.n)).on(|cx, j: Soon| run(cx, j.n)).start().unwrap()
}

/// The first and the last instant, no time and all of it, as date, delay, backoff, retry-after, deadline, timeout and retention: what is
/// past is now, what does not come waits without holding anything up, and nothing overflows.
#[test]
fn any_time_is_an_instant() {
    let ground = Ground::new();
    let jobs = timed(&ground);
    let now = ground.clock.now().wall;
    let far = (0..64).find_map(|n| UNIX_EPOCH.checked_add(Duration::from_secs(u64::MAX >> n))).unwrap();
    let past = (0..64).find_map(|n| UNIX_EPOCH.checked_sub(Duration::from_secs(u64::MAX >> n))).unwrap();
    let waits = [
        jobs.at(far, &Plain::new("at", 0)),
        jobs.after(Duration::MAX, &Plain::new("after", 0)),
        jobs.transact(move |tx| tx.enqueue_at(far, &Plain::new("in tx at", 0))),
        jobs.transact(|tx| tx.enqueue_after(Duration::MAX, &Hasty::new("in tx after", 0))),
        jobs.enqueue(&Late::new("backoff", 1)),
        jobs.enqueue(&Late::new("not yet", 3)),
        jobs.enqueue(&Jitter::new("jitter", 1)),
    ];
    let waits = waits.map(|told| told.unwrap().id());
    let done = [jobs.at(past, &Plain::new("past", 0)), jobs.after(Duration::ZERO, &Plain::new("zero", 0))];
    let done = done.map(|told| told.unwrap().id());
    let kept = jobs.enqueue(&Late::new("kept", 0)).unwrap().id();
    let asked = jobs.enqueue(&Plain::new("asked", 2)).unwrap().id();
    let hasty = jobs.enqueue(&Hasty::new("hasty", 1)).unwrap().id();
    let soon = jobs.enqueue(&Soon::new("soon", 1)).unwrap().id();
    for id in ["good", "bad"] {
        assert!(jobs.transact(move |tx| tx.outbox("t", id, &1)).unwrap().is_new());
        ground.settle(&jobs);
    }
    done.iter().chain([&kept]).for_each(|id| is(&jobs, *id, State::Done));
    jobs.shutdown(PATIENCE).unwrap();
    let jobs = timed(&ground);
    ground.settle(&jobs);
    waits.iter().for_each(|id| is(&jobs, *id, State::Delayed));
    for id in &waits[..6] {
        assert!(jobs.due(*id).unwrap().unwrap() > now.after(36_500 * DAY).to_system());
    }
    // A provider may ask for seven days at most.
    assert_eq!(jobs.due(asked).unwrap(), Some(now.after(7 * DAY).to_system()));
    for (id, why, attempts) in [(hasty, Why::DeadlinePassed, 1), (soon, Why::TriesUsedUp, 3)] {
        is(&jobs, id, State::Dead);
        let letter = jobs.dead_letter(id).unwrap();
        assert_eq!((letter.why(), letter.attempts()), (why, attempts));
    }
    ground.pass(&jobs, 7 * DAY - SECOND);
    is(&jobs, asked, State::Delayed);
    ground.pass(&jobs, SECOND);
    is(&jobs, asked, State::Done);
    jobs.decide(&jobs.dead_letter(hasty).unwrap(), Decision::discard().by("ann", "too late")).unwrap();
    ground.pass(&jobs, 400 * DAY);
    is(&jobs, kept, State::Done);
    assert!(!jobs.enqueue(&Late::new("kept", 0)).unwrap().is_new());
    let trash = jobs.trash().unwrap();
    assert_eq!(trash.iter().map(|t| (t.job, t.until)).collect::<Vec<_>>(), [(hasty, None)]);
    jobs.restore(hasty, "ann", "look again").unwrap();
    is(&jobs, hasty, State::Dead);
    let message = |id| jobs.outbox().find("t", id).unwrap().unwrap();
    assert!(message("good").ended.is_some() && message("bad").stuck.is_none());
    assert!(message("bad").next_try.unwrap() > now.after(36_500 * DAY).to_system());
    for line in ground.lines.all() {
        assert_eq!(onceward::observe::parse_line(&line.to_string()).unwrap().next.is_some(), line.next.is_some());
    }
    for id in waits {
        is(&jobs, id, State::Delayed);
        jobs.cancel(id).unwrap();
        is(&jobs, id, State::Cancelled);
    }
    println!("hostile: 13 jobs and 2 messages at the ends of time");
    assert!(ground.close(jobs).jobs.len() >= 10);
}

/// Waits of no time and of all time; and ids out of a link that no job has.
#[test]
fn any_wait_and_any_id_is_answered() {
    let ground = Ground::new();
    let (signs, door) = (ground.signs.clone(), ground.signs.clone());
    let busy = move |_: &Cx, _: Plain| {
        door.wait("door");
        Ok(())
    };
    let jobs = ground.builder().on(busy).start().unwrap();
    let mut asked = 0;
    for id in [0, 1, 1 << 63, u64::MAX - 1, u64::MAX].map(JobId::from_number) {
        let told =
            [jobs.state(id).err(), jobs.due(id).err(), jobs.wait(id, Duration::ZERO).err(), jobs.cancel(id).err()];
        let more = [jobs.output::<u64>(id).err(), jobs.restore(id, "ann", "ok").err()];
        assert!(
            told.iter().chain(&more).all(|e| matches!(e, Some(Error::NotFound(of)) if *of == id)),
            "{told:?} {more:?}"
        );
        assert!(matches!(jobs.dead_letter(id), Err(Error::NoLetter(of)) if of == id));
        assert!(jobs.history(id).unwrap().is_empty() && jobs.ledger(id).unwrap().is_empty());
        assert!(jobs.progress(id).is_none() && jobs.dead_letters_after(Some(id), usize::MAX).unwrap().is_empty());
        let act = jobs.outbox().discard_number("t", "k", id.number(), "ann", "ok");
        assert!(matches!(act, Err(Error::NoNumber { .. })), "{act:?}");
        assert!(jobs.decisions(Some(id.number()), usize::MAX).unwrap().is_empty());
        asked += 1;
    }
    let id = jobs.enqueue(&Plain::new("busy", 0)).unwrap().id();
    signs.until("door", 1);
    assert!(matches!(jobs.wait(id, Duration::ZERO), Err(Error::WaitOver(_))));
    assert!(matches!(jobs.drain(Duration::ZERO), Err(Error::NotIdle)));
    signs.open("door");
    assert_eq!(jobs.wait(id, Duration::MAX).unwrap(), State::Done);
    jobs.drain(Duration::MAX).unwrap();
    assert_eq!(jobs.wait(id, Duration::ZERO).unwrap(), State::Done);
    println!("hostile: {asked} ids, 6 waits");
    assert_eq!(asked, 5);
    // Nothing is ready or running: whoever only looks must not be told that it is.
    let idle = jobs.drain(Duration::ZERO);
    ground.close(jobs);
    assert!(idle.is_ok(), "{idle:?}");
}
