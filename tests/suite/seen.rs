//! What people see: one line per claim with its fields, counters that agree with a recount of the file, a proof log that can be
//! read back.

use super::ground::{Ground, HOUR, MINUTE, Recount, SECOND, Signs, is, kind};
use super::running::until;
use onceward::model::attempt::{Class, Outcome as Word};
use onceward::observe::{GaveBack, parse_line};
use onceward::{
    Backoff, Decision, Effect, EffectCard, Fail, Job, JobKey, Jobs, Outcome, Policy, ProofLog, Recovery, Snapshot,
    State,
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

kind!(Plain = "plain" { const QUEUE: &'static str = "quick"; });

/// Does what it is told, each attempt in turn.
#[derive(Clone, Serialize, Deserialize)]
struct Story {
    key: String,
    acts: Vec<Act>,
}
#[derive(Clone, Copy, Serialize, Deserialize)]
enum Act {
    Succeed,
    Fail,
    Give,
    NotYet,
    Panic,
    Wait,
    Charge,
    Lose,
    Step,
}
impl Job for Story {
    const KIND: &'static str = "story";
    const QUEUE: &'static str = "slow";
    fn key(&self) -> JobKey {
        self.key.as_str().into()
    }
    fn policy() -> Policy {
        Policy::default().retries(2).backoff(Backoff::steps([MINUTE])).stall_timeout(5 * MINUTE)
    }
    fn effects() -> Vec<EffectCard> {
        vec![Charge::card(), Lose::card()]
    }
}
#[derive(Serialize, Deserialize)]
struct Charge(u64);
impl Effect for Charge {
    type Result = String;
    const NAME: &'static str = "charge";
    fn says(&self) -> String {
        format!("charge {}", self.0)
    }
    fn reference(result: &String) -> Option<String> {
        Some(result.clone())
    }
}
#[derive(Serialize, Deserialize)]
struct Lose;
impl Effect for Lose {
    type Result = ();
    const NAME: &'static str = "lose";
    fn says(&self) -> String {
        "lose an answer".into()
    }
    fn recovery() -> Recovery {
        Recovery::ask()
    }
}

fn start(ground: &Ground) -> Jobs {
    builder(ground).start().unwrap()
}

fn builder(ground: &Ground) -> onceward::Builder {
    let signs = ground.signs.clone();
    ground
        .builder()
        .effect(|c: &Charge, _| Ok(format!("ch_{}", c.0)))
        .effect(|_: &Lose, _| Err(Fail::new("no answer")))
        .on(|cx, j: Plain| {
            cx.note("rows_upserted", j.n);
            Ok(())
        })
        .on(move |cx, story: Story| act(cx, &story, &signs))
}

fn act(cx: &onceward::Cx, story: &Story, signs: &Signs) -> Outcome {
    let n = signs.times(&story.key);
    signs.say(&story.key);
    cx.note("act", n);
    match story.acts.get(n).copied().unwrap_or(Act::Succeed) {
        Act::Succeed => Ok(()),
        Act::Fail => Err(Fail::new("the provider is busy\nforged=line job=evil")),
        Act::Give => Err(Fail::permanent("it cannot work")),
        Act::NotYet => Err(Fail::not_yet("too early", HOUR)),
        Act::Panic => panic!("a bug"),
        Act::Wait => {
            signs.wait(&format!("{} waits", story.key));
            Ok(())
        }
        Act::Charge => {
            cx.effect(Charge(42))?;
            Err(Fail::new("after the charge"))
        }
        Act::Lose => cx.effect(Lose),
        Act::Step => {
            cx.step("look up", || Ok(7))?;
            cx.commit("book", |_| Ok(()))?;
            Err(Fail::new("after the step"))
        }
    }
}

fn story(key: &str, acts: &[Act]) -> Story {
    Story { key: key.into(), acts: acts.to_vec() }
}

/// Jobs that succeed, fail, snooze, panic, give up, charge and lose an answer: every claim has one line, in order, with key,
/// attempt, outcome, notes, kind, queue, token, owner, step, operation, class, error, duration and next try; no text forges one.
#[test]
fn every_claim_has_one_line_with_its_fields() {
    let ground = Ground::new();
    let jobs = start(&ground);
    let _ = jobs.enqueue(&Plain::new("fred/UNRATE/2026-06", 1)).unwrap();
    let _ = jobs.enqueue(&story("snoozes", &[Act::NotYet, Act::Fail, Act::Succeed])).unwrap();
    let _ = jobs.enqueue(&story("gives up", &[Act::Give])).unwrap();
    let _ = jobs.enqueue(&story("panics", &[Act::Panic, Act::Panic, Act::Panic])).unwrap();
    let _ = jobs.enqueue(&story("charges", &[Act::Charge, Act::Charge])).unwrap();
    let _ = jobs.enqueue(&story("steps", &[Act::Step, Act::Step])).unwrap();
    let _ = jobs.enqueue(&story("loses", &[Act::Lose])).unwrap();
    ground.settle(&jobs);
    (0..65).for_each(|_| ground.pass(&jobs, MINUTE));

    let summary = |key: &str| -> Vec<(u32, Word, Option<Class>, Option<GaveBack>)> {
        ground.lines.of(key).iter().map(|l| (l.attempt, l.outcome, l.class, l.given_back)).collect()
    };
    let (retry, failed) = (Word::Retry, Some(Class::Transient));
    assert_eq!(summary("fred/UNRATE/2026-06"), [(1, Word::Success, None, None)]);
    assert_eq!(
        summary("snoozes"),
        [(1, Word::NotYet, None, Some(GaveBack::Snoozed)), (1, retry, failed, None), (2, Word::Success, None, None)]
    );
    assert_eq!(summary("gives up"), [(1, Word::Dead, Some(Class::Permanent), None)]);
    assert_eq!(summary("panics"), [(1, retry, failed, None), (2, retry, failed, None), (3, Word::Dead, failed, None)]);
    assert_eq!(summary("loses"), [(1, Word::NeedsDecision, Some(Class::Unknown), None)]);

    let plain = ground.lines.of("fred/UNRATE/2026-06").remove(0);
    assert_eq!((plain.kind.as_str(), plain.queue.as_str()), ("plain", "quick"));
    assert_eq!(plain.notes, [("rows_upserted".to_owned(), "1".to_owned())]);
    assert!(plain.owner.as_deref().is_some_and(|o| o.starts_with("worker-")) && plain.duration_ms.is_some());
    let text = plain.to_string();
    assert!(text.contains(" job=fred/UNRATE/2026-06 attempt=1 outcome=success rows_upserted=1 kind=plain "), "{text}");

    // The provider's operation is named by the attempt that made it, and by the one that was told of it again.
    let charges = ground.lines.of("charges");
    assert_eq!(charges[0].operation, ["ch_42"]);
    assert_eq!(charges[0].step.as_deref(), Some("effect charge"));
    assert_eq!(ground.lines.of("steps")[0].step.as_deref(), Some("commit book"));

    let mut tokens = Vec::new();
    for line in ground.lines.all() {
        tokens.push(line.token.unwrap().number());
        assert_eq!(line.next.is_some(), matches!(line.outcome, Word::Retry | Word::NotYet), "{line}");
        let text = line.to_string();
        assert_eq!(text.lines().count(), 1, "no error forges a line: {text}");
        let back = parse_line(&text).unwrap();
        assert_eq!((back.job, back.attempt, back.outcome), (line.job, line.attempt, line.outcome));
    }
    let lines = tokens.len();
    tokens.sort_unstable();
    tokens.dedup();
    assert_eq!(tokens.len(), lines, "one line per claim");
    let recount = agree(&ground, jobs, 0);
    println!("lines: {lines} for {} claims of {} jobs", recount.claims(), recount.jobs.len());
    assert_eq!(recount.claims(), lines as u64);
}

/// Shuts down, recounts the file and the lines, and compares them with the counters of the last process. `before`: claims that
/// ended in earlier processes.
fn agree(ground: &Ground, jobs: Jobs, before: u64) -> Recount {
    let snapshot = jobs.snapshot().unwrap();
    let recount = ground.close(jobs);
    let lines = ground.lines.all();
    let all = &snapshot.all;
    let sum = |m: &BTreeMap<&'static str, u64>| m.values().sum::<u64>();
    assert_eq!(all.attempts_total + sum(&all.given_back_total), all.claims_total);
    assert_eq!(sum(&all.outcomes_total), lines.len() as u64 - before, "one line per claim that ended");
    assert_eq!(all.claims_total, sum(&all.outcomes_total), "nothing runs");
    assert_eq!(all.claims_total + before, recount.claims());
    for outcome in [Word::Success, Word::Retry, Word::NotYet, Word::NeedsDecision, Word::Dead, Word::Interrupted] {
        let of =
            |lines: &[onceward::observe::AttemptLine]| lines.iter().filter(|l| l.outcome == outcome).count() as u64;
        let counted = all.outcomes_total[outcome.as_str()];
        assert_eq!(counted, of(&lines[usize::try_from(before).unwrap()..]), "{outcome:?}");
    }
    recount
}

fn depth(snapshot: &Snapshot, queue: &str, state: &str) -> u64 {
    snapshot.gauges.queue_depth.get(queue).and_then(|q| q.get(state)).copied().unwrap_or(0)
}

/// Jobs in every state: what `snapshot` counts and gauges is what a recount of the file finds, in this process and, after a death
/// in the middle of two handlers, in the next.
#[test]
fn counters_and_gauges_agree_with_a_recount() {
    let mut ground = Ground::new();
    let jobs = start(&ground);
    assert_eq!(jobs.snapshot().unwrap().kinds["story"].effects_total["charge"]["confirmed"], 0, "there from the start");
    for n in 0..20 {
        let _ = jobs.enqueue(&Plain::new(&format!("p{n}"), n)).unwrap();
        let _ = jobs.enqueue(&Plain::new(&format!("p{n}"), n)).unwrap();
    }
    let dead = jobs.enqueue(&story("dead", &[Act::Give])).unwrap().id();
    let discarded = jobs.enqueue(&story("discarded", &[Act::Give])).unwrap().id();
    let lost = jobs.enqueue(&story("lost", &[Act::Lose])).unwrap().id();
    let cancelled = jobs.after(HOUR, &story("cancelled", &[])).unwrap().id();
    let _ = jobs.after(HOUR, &story("delayed", &[])).unwrap();
    let _ = jobs.enqueue(&story("charged", &[Act::Charge])).unwrap();
    let _ = jobs.enqueue(&story("stepped", &[Act::Step])).unwrap();
    let _ = jobs.enqueue(&story("panics", &[Act::Panic])).unwrap();
    ground.settle(&jobs);
    jobs.cancel(cancelled).unwrap();
    let letter = jobs.dead_letter(discarded).unwrap();
    jobs.decide(&letter, Decision::discard().by("ann", "a test")).unwrap();
    ground.pass(&jobs, MINUTE);
    for key in ["hangs", "runs"] {
        let _ = jobs.enqueue(&story(key, &[Act::Wait])).unwrap();
        ground.signs.until(&format!("{key} waits"), 1);
    }
    // A claim is handed out first and counted right behind that: a handler may be a moment ahead of the counters.
    until(|| jobs.snapshot().unwrap().all.claims_total >= ground.lines.all().len() as u64 + 2);
    let s = jobs.snapshot().unwrap();
    let (plain, stories) = (&s.kinds["plain"], &s.kinds["story"]);
    assert_eq!((plain.enqueued_total, plain.duplicate_suppressed_total["enqueue"]), (20, 20));
    assert_eq!((plain.claims_total, plain.attempts_total, plain.ended_total["done"]), (20, 20, 20));
    assert_eq!(plain.success_ratio, Some(1.0));
    assert_eq!(stories.enqueued_total, 10);
    assert_eq!((stories.ended_total["discarded"], stories.ended_total["cancelled"]), (1, 1));
    assert_eq!((stories.letters_opened_total, stories.letters_closed_total, s.gauges.dead_letters), (3, 1, 2));
    let charge = &stories.effects_total["charge"];
    assert_eq!((charge["intended"], charge["confirmed"]), (1, 1), "called once");
    assert_eq!(stories.effects_total["lose"]["unknown"], 1);
    assert_eq!(stories.duplicate_suppressed_total["effect"] + stories.duplicate_suppressed_total["step"], 0);
    assert_eq!((stories.failures_total["permanent"], stories.failures_total["unknown"]), (2, 1));
    assert_eq!(stories.failures_total["transient"], 3, "charged, stepped and panics, once each");
    assert_eq!(stories.retries_total, 3, "and their second attempts");
    assert_eq!((depth(&s, "slow", "running"), depth(&s, "slow", "delayed"), depth(&s, "quick", "ready")), (2, 1, 0));
    is(&jobs, dead, State::Dead);
    is(&jobs, lost, State::NeedsDecision);
    let ended = ground.lines.all().len() as u64;
    assert_eq!(s.all.claims_total, ended + 2, "two are running");
    ground.kill(jobs);

    // What the dead process had claimed ends here, so it has a beginning here too.
    let jobs = start(&ground);
    let again = |key: &str| until(|| ground.signs.times(key) > 0);
    again("hangs");
    ground.signs.end();
    ground.settle(&jobs);
    again("runs");
    let s = jobs.snapshot().unwrap();
    assert_eq!(s.all.given_back_total["died-beside-others"], 2);
    assert_eq!((s.all.claims_total, s.all.attempts_total), (4, 2));
    let recount = agree(&ground, jobs, ended);
    println!("recount: {} jobs, {} claims, {} attempts", recount.jobs.len(), recount.claims(), recount.attempts());
    assert_eq!(recount.jobs.len(), 30);
}

/// A handler asks again for what it has done: the effect and the step are recognised and counted as suppressed, and the line
/// names the operation of then.
#[test]
fn what_is_remembered_is_counted_as_suppressed() {
    #[derive(Serialize, Deserialize)]
    struct Twice;
    impl Job for Twice {
        const KIND: &'static str = "twice";
        fn key(&self) -> JobKey {
            "t".into()
        }
        fn effects() -> Vec<EffectCard> {
            vec![Charge::card()]
        }
    }
    let ground = Ground::new();
    let jobs = ground
        .builder()
        .effect(|c: &Charge, _| Ok(format!("ch_{}", c.0)))
        .on(|cx, _: Twice| {
            cx.effect(Charge(1))?;
            cx.step("s", || Ok(()))?;
            cx.commit("c", |_| Ok(()))?;
            if cx.attempt() < 3 { Err(Fail::new("again")) } else { Ok(()) }
        })
        .start()
        .unwrap();
    let id = jobs.enqueue(&Twice).unwrap().id();
    ground.settle(&jobs);
    (0..60).for_each(|_| ground.pass(&jobs, SECOND));
    is(&jobs, id, State::Done);
    let s = jobs.snapshot().unwrap();
    let suppressed = &s.all.duplicate_suppressed_total;
    assert_eq!((suppressed["effect"], suppressed["step"]), (2, 4));
    let charge = &s.all.effects_total["charge"];
    assert_eq!((charge["intended"], charge["confirmed"]), (1, 1));
    assert_eq!(ground.lines.of("t").len(), 3);
    agree(&ground, jobs, 0);
}

/// The proof log is a file: one line per claim, readable back, appended by the next process, and not readable by others.
#[test]
fn the_proof_log_keeps_one_line_per_claim() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("proof.log");
    let ground = Ground::new();
    for process in 0..2 {
        let jobs = builder(&ground).sink(ProofLog::open(&path).unwrap()).start().unwrap();
        for n in 0..5 {
            let _ = jobs.enqueue(&Plain::new(&format!("k{process} {n}\n\u{202e}"), n)).unwrap();
        }
        let _ = jobs.enqueue(&story(&format!("fails {process}"), &[Act::Fail])).unwrap();
        ground.settle(&jobs);
        ground.pass(&jobs, MINUTE);
        ground.close(jobs);
    }
    let text = std::fs::read_to_string(&path).unwrap();
    let lines: Vec<_> = text.lines().map(|l| parse_line(l).unwrap()).collect();
    let told = ground.lines.all();
    println!("proof log: {} lines", lines.len());
    assert_eq!((lines.len(), told.len()), (14, 14));
    for (line, told) in lines.iter().zip(&told) {
        assert_eq!((&line.job, line.attempt, line.outcome, line.id), (&told.job, told.attempt, told.outcome, told.id));
        assert_eq!((&line.notes, &line.error, line.token), (&told.notes, &told.error, told.token));
    }
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }
}
