//! Processes that die: who was running, who is to blame, what comes back. Claims that never began, interruptions, suspects that
//! run alone, strikes, and an end for whatever kills its process again and again.

use super::ground::{DAY, Ground, HOUR, MINUTE, PATIENCE, SECOND, Signs, is, kind};
use super::running::until;
use onceward::testkit::{Fails, Fault, On, SimDisk, run_until_idle};
use onceward::{Backoff, Decision, Entry, Fail, JobId, Jobs, OnInterrupt, Policy, Scope, State, Why};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

// Runs until the test says otherwise: `n` 0 waits at its door, everything else returns.
kind!(Work = "work");
kind!(Held = "held" {
    fn policy() -> Policy {
        Policy::default().on_interrupt(OnInterrupt::Hold)
    }
});
kind!(Few = "few" {
    fn policy() -> Policy {
        Policy::default().retries(2)
    }
});

/// All tokens in the order in which handlers got them.
type Tokens = Arc<Mutex<Vec<u64>>>;

fn handler<J: Send + 'static>(
    signs: &Signs,
    tokens: &Tokens,
    of: fn(&J) -> (&str, u64),
) -> impl Fn(&onceward::Cx, J) -> onceward::Outcome + Send + Sync + use<J> {
    let (signs, tokens) = (signs.clone(), tokens.clone());
    move |cx, j| {
        tokens.lock().unwrap().push(cx.token());
        let (key, n) = of(&j);
        signs.say(format!("{key} begins"));
        if n == 0 {
            signs.wait(key);
        }
        Ok(())
    }
}

struct Lab {
    ground: Ground,
    tokens: Tokens,
    workers: usize,
}

impl Lab {
    fn new(workers: usize) -> Self {
        Self { ground: Ground::new(), tokens: Arc::default(), workers }
    }
    fn start(&self) -> Jobs {
        let (signs, tokens) = (&self.ground.signs, &self.tokens);
        self.ground
            .builder()
            .workers(self.workers)
            .on(handler::<Work>(signs, tokens, |j| (&j.key, j.n)))
            .on(handler::<Held>(signs, tokens, |j| (&j.key, j.n)))
            .on(handler::<Few>(signs, tokens, |j| (&j.key, j.n)))
            .start()
            .unwrap()
    }
    fn work(&self, jobs: &Jobs, key: &str, n: u64) -> JobId {
        jobs.enqueue(&Work::new(key, n)).unwrap().id()
    }
    /// Waits until all of these have begun in this process.
    fn begun(&self, keys: &[&str]) {
        keys.iter().for_each(|k| self.ground.signs.until(&format!("{k} begins"), 1));
    }
    fn has_begun(&self, key: &str) -> bool {
        self.ground.signs.times(&format!("{key} begins")) > 0
    }
    /// Who began in this process, in order.
    fn order(&self) -> Vec<String> {
        let words = self.ground.signs.words();
        words.iter().filter_map(|w| w.strip_suffix(" begins")).map(str::to_owned).collect()
    }
    /// Everything that is left finishes.
    fn finish(self, jobs: Jobs) -> super::ground::Recount {
        self.ground.signs.end();
        until(|| run_until_idle(&jobs).is_ok());
        // Handlers that run side by side note theirs in any order; each job's own order is a test of its own.
        let mut tokens = self.tokens.lock().unwrap().clone();
        tokens.sort_unstable();
        assert!(tokens.is_sorted_by(|a, b| a < b), "no token is used twice, for ever: {tokens:?}");
        self.ground.close(jobs)
    }
}

fn strikes(jobs: &Jobs, id: JobId) -> usize {
    jobs.history(id).unwrap().iter().filter(|e| matches!(e, Entry::Strike { .. })).count()
}

/// A process dies after it claimed three jobs and before any handler was called. Nobody is suspected, nothing counts, they run
/// at once in the next process.
#[test]
fn claims_that_never_began_are_given_back() {
    let mut lab = Lab::new(3);
    let jobs = lab.start();
    ["a", "b", "c"].iter().for_each(|k| {
        lab.work(&jobs, k, 0);
    });
    lab.begun(&["a", "b", "c"]);
    lab.ground.kill(jobs);
    // As if it had died a moment before: no slot was filled yet.
    let header = lab.ground.disk.fork().bytes();
    let sidecar = onceward::testkit::DiskFactory::sidecar(&lab.ground.disk).lock().unwrap()[..64].to_vec();
    lab.ground.disk = SimDisk::from_image(header, sidecar);
    let jobs = lab.start();
    lab.begun(&["a", "b", "c"]);
    let recount = lab.finish(jobs);
    let mut seen = 0;
    for key in ["a", "b", "c"] {
        let r = recount.job(key);
        assert_eq!((r.attempts, r.given_back.never_started, r.strikes, r.suspect), (1, 1, 0, false));
        seen += 1;
    }
    println!("never began: {seen} claims");
}

/// The disk fails for good under a handler, the queue stops by that, its process ends and another one starts; three times. No handler
/// killed anything: nothing counts against the job, nobody is asked, and in the end it is done.
#[test]
fn a_queue_that_stops_blames_no_handler() {
    let mut lab = Lab::new(1);
    let jobs = lab.start();
    let id = lab.work(&jobs, "a", 0);
    let mut jobs = Some(jobs);
    for _ in 0..3 {
        lab.begun(&["a"]);
        let fails = Fails::Eio;
        lab.ground.disk.fail(Fault { on: On::AnyChange, after: 0, times: u64::MAX, fails });
        let stopped = jobs.take().unwrap().shutdown(Duration::ZERO);
        assert!(stopped.is_err(), "{stopped:?}");
        // What it leaves behind, with its sidecar, and a process of the same boot that goes on with it.
        let left = lab.ground.disk.fork();
        lab.ground.signs.end();
        left.heal();
        lab.ground.disk = left;
        lab.ground.signs = Signs::default();
        lab.ground.nonce += 1;
        jobs = Some(lab.start());
    }
    let jobs = jobs.unwrap();
    assert_eq!((strikes(&jobs, id), jobs.dead_letters().unwrap().len()), (0, 0), "{:?}", jobs.history(id));
    let recount = lab.finish(jobs);
    let r = recount.job("a");
    assert_eq!((r.attempts, r.given_back.interrupted, r.strikes, r.suspect), (1, 3, 0, false));
}

/// The same slot, found by another process of the same boot, by another boot, by the same process: only the first makes a
/// suspect; after a power cut or a second open nobody is to blame.
#[test]
fn a_suspect_is_who_ran_in_the_same_boot_and_another_process() {
    let mut kinds = BTreeMap::new();
    for (name, boot, nonce) in [("same boot", 0, 1), ("other boot", 1, 1), ("same process", 0, 0)] {
        let mut lab = Lab::new(2);
        let jobs = lab.start();
        lab.work(&jobs, "a", 0);
        lab.work(&jobs, "b", 0);
        lab.begun(&["a", "b"]);
        let (old_boot, old_nonce) = (lab.ground.boot, lab.ground.nonce);
        lab.ground.kill(jobs);
        (lab.ground.boot, lab.ground.nonce) = (old_boot + boot, old_nonce + nonce);
        let jobs = lab.start();
        lab.begun(&["a"]);
        if name == "same boot" {
            run_until_alone(&jobs);
            assert!(!lab.has_begun("b"), "suspects run one at a time");
        } else {
            lab.begun(&["b"]);
        }
        let recount = lab.finish(jobs);
        for key in ["a", "b"] {
            let r = recount.job(key);
            let (died, interrupted) = (r.given_back.died_beside_others, r.given_back.interrupted);
            assert_eq!((r.attempts, died + interrupted, r.strikes, r.suspect), (1, 1, 0, false), "{name}");
            kinds.insert(name, (died, interrupted));
        }
    }
    println!("evidence: {kinds:?}");
    assert_eq!(kinds["same boot"], (1, 0));
    assert_eq!(kinds["other boot"], (0, 1));
    assert_eq!(kinds["same process"], (0, 1));
}

/// Gives the queue every chance to start something more.
fn run_until_alone(jobs: &Jobs) {
    for n in 0..3 {
        let _ = jobs.enqueue(&Work::new(&format!("chance {n} {:?}", jobs.snapshot().unwrap().at_ms), 1)).unwrap();
        jobs.transact::<(), onceward::Error>(|_| Ok(())).unwrap();
    }
}

/// Three handlers were running when the process died. In the next one each runs alone for its first 60 s: ordinary jobs wait,
/// also urgent ones, then they run beside it; the other suspects wait until it has come back.
#[test]
fn a_suspect_runs_alone_for_a_minute_then_beside_others_one_at_a_time() {
    let mut lab = Lab::new(3);
    let jobs = lab.start();
    ["a", "b", "c"].iter().for_each(|k| {
        lab.work(&jobs, k, 0);
    });
    lab.begun(&["a", "b", "c"]);
    lab.work(&jobs, "ordinary", 1);
    lab.ground.kill(jobs);

    let jobs = lab.start();
    lab.begun(&["a"]);
    run_until_alone(&jobs);
    lab.ground.clock.advance(MINUTE - SECOND);
    run_until_alone(&jobs);
    assert_eq!(lab.order(), ["a"], "alone");
    lab.ground.clock.advance(SECOND);
    lab.begun(&["ordinary"]);
    // However many there are: the other suspects do not stand in their way, nor jump in.
    let many: Vec<_> = (0..50).map(|n| Work::new(&format!("more {n}"), 1)).collect();
    for e in jobs.enqueue_many(&many).unwrap() {
        assert_eq!(jobs.wait(e.id(), PATIENCE).unwrap(), State::Done);
    }
    assert!(!lab.has_begun("b") && !lab.has_begun("c"), "one suspect at a time");
    lab.ground.signs.open("a");
    lab.begun(&["b"]);
    let late = lab.work(&jobs, "late", 1);
    run_until_alone(&jobs);
    assert!(!lab.has_begun("c") && !lab.has_begun("late"), "alone again");
    lab.ground.signs.open("b");
    lab.begun(&["c"]);
    lab.ground.signs.open("c");
    assert_eq!(jobs.wait(late, PATIENCE).unwrap(), State::Done);
    let recount = lab.finish(jobs);
    println!("suspects: 3 of {} jobs", recount.jobs.len());
    assert!(recount.jobs.values().all(|r| r.attempts == 1 && r.strikes == 0 && !r.suspect));
}

/// An old job that takes long was ready when the process died. The suspect goes first: behind it, waiting for a moment in which
/// nothing else runs, it would hold up the whole queue.
#[test]
fn suspects_go_first_in_the_next_process() {
    let mut lab = Lab::new(1);
    let jobs = lab.start();
    lab.work(&jobs, "suspect", 0);
    lab.begun(&["suspect"]);
    lab.work(&jobs, "long", 0);
    lab.work(&jobs, "short", 1);
    lab.ground.kill(jobs);
    let jobs = lab.start();
    lab.begun(&["suspect"]);
    lab.ground.signs.open("suspect");
    lab.begun(&["long"]);
    lab.ground.signs.open("long");
    lab.begun(&["short"]);
    assert_eq!(lab.order(), ["suspect", "long", "short"]);
    lab.finish(jobs);
}

/// The kind of a suspect is paused when the next process starts: nobody waits for it. Resumed, it has its turn, alone.
#[test]
fn a_paused_suspect_holds_up_nobody() {
    let mut lab = Lab::new(2);
    let jobs = lab.start();
    let held = jobs.enqueue(&Few::new("suspect", 0)).unwrap().id();
    lab.begun(&["suspect"]);
    jobs.pause(Scope::kind("few"), "it kills us").unwrap();
    lab.ground.kill(jobs);
    let jobs = lab.start();
    let other = lab.work(&jobs, "other", 1);
    assert_eq!(jobs.wait(other, PATIENCE).unwrap(), State::Done);
    is(&jobs, held, State::Paused);
    jobs.resume(Scope::kind("few")).unwrap();
    lab.begun(&["suspect"]);
    run_until_alone(&jobs);
    assert!(!lab.has_begun("chance 0"));
    lab.finish(jobs);
}

/// Eight handlers run, one of them kills the process. None gets a strike for that; in the following processes each is tried
/// alone, the seven finish, and the killer is found: after its second strike it is a dead letter and is not claimed again.
#[test]
fn the_killer_among_eight_is_found_and_the_others_finish() {
    let mut lab = Lab::new(8);
    let jobs = lab.start();
    let keys: Vec<String> = (0..8).map(|n| if n == 3 { "killer".into() } else { format!("job {n}") }).collect();
    let ids: Vec<_> = keys.iter().map(|k| lab.work(&jobs, k, 0)).collect();
    lab.begun(&keys.iter().map(String::as_str).collect::<Vec<_>>());
    lab.ground.kill(jobs);
    let (killer, mut deaths) = (ids[3], 1);
    let jobs = loop {
        let jobs = lab.start();
        assert_eq!(strikes(&jobs, killer), deaths - 1, "the first death was beside others");
        assert!(ids.iter().all(|id| *id == killer || strikes(&jobs, *id) == 0));
        // The innocent come back when they are tried; the killer never does.
        keys.iter().filter(|k| *k != "killer").for_each(|k| lab.ground.signs.open(k));
        if jobs.state(killer).unwrap() == State::Dead {
            break jobs;
        }
        lab.begun(&["killer"]);
        deaths += 1;
        assert!(deaths < 10, "it is found in bounded time");
        lab.ground.kill(jobs);
    };
    lab.ground.settle(&jobs);
    for id in ids.iter().filter(|id| **id != killer) {
        is(&jobs, *id, State::Done);
    }
    let letter = jobs.dead_letter(killer).unwrap();
    assert_eq!((letter.why(), letter.error()), (Why::ProcessDied, "process died"));
    lab.ground.pass(&jobs, 100 * DAY);
    is(&jobs, killer, State::Dead);
    assert!(!lab.has_begun("killer"), "it is not claimed again");
    let recount = lab.finish(jobs);
    println!("killer: {deaths} deaths, {} claims in all", recount.claims());
    assert_eq!(deaths, 3);
    let r = recount.job("killer");
    assert_eq!((r.claims, r.attempts, r.given_back.died_beside_others, r.strikes), (3, 2, 1, 2));
    assert!(recount.jobs.values().filter(|r| r.id != killer).all(|r| r.attempts == 1 && r.strikes == 0));
}

/// A job kills its process once, alone, and then behaves: its end clears it, and the next death counts anew.
#[test]
fn an_end_clears_a_suspect() {
    let mut lab = Lab::new(1);
    let jobs = lab.start();
    let id = lab.work(&jobs, "once", 0);
    lab.begun(&["once"]);
    lab.ground.kill(jobs);
    let jobs = lab.start();
    lab.begun(&["once"]);
    assert_eq!(strikes(&jobs, id), 1, "it was alone");
    let recount = lab.finish(jobs);
    let r = recount.job("once");
    assert_eq!((r.attempts, r.strikes, r.suspect, State::from(&r.state)), (2, 0, false, State::Done));
}

/// Two deaths that lie more than 72 hours apart are no pattern: the job goes on, until its attempts are used up.
#[test]
fn strikes_count_within_72_hours_and_attempts_end_the_rest() {
    let mut lab = Lab::new(1);
    let mut jobs = lab.start();
    let id = jobs.enqueue(&Few::new("rare killer", 0)).unwrap().id();
    for death in 1..=3 {
        lab.begun(&["rare killer"]);
        lab.ground.kill(jobs);
        lab.ground.clock.advance(73 * HOUR);
        jobs = lab.start();
        assert_eq!(strikes(&jobs, id), death);
    }
    is(&jobs, id, State::Dead);
    assert_eq!(jobs.dead_letter(id).unwrap().why(), Why::TriesUsedUp);
    assert!(!lab.has_begun("rare killer"));
    let recount = lab.finish(jobs);
    let r = recount.job("rare killer");
    println!("rare killer: {} attempts, {} claims", r.attempts, r.claims);
    assert_eq!((r.attempts, r.claims), (3, 3));
}

/// A job kills its process only when others run beside it, so that it never strikes. Ten deaths are given back, then they cost
/// attempts, and when those are used up it is a dead letter: it ends, whatever it does.
#[test]
fn deaths_beside_others_are_forgiven_ten_times() {
    let mut lab = Lab::new(2);
    let mut jobs = lab.start();
    let killer = jobs.enqueue(&Few::new("killer", 0)).unwrap().id();
    let mut deaths = 0;
    loop {
        lab.begun(&["killer"]);
        // From its second process on it runs alone for a minute first.
        let beside = format!("beside {deaths}");
        lab.work(&jobs, &beside, 0);
        if deaths > 0 {
            lab.ground.clock.advance(MINUTE);
        }
        lab.begun(&[&beside]);
        lab.ground.kill(jobs);
        deaths += 1;
        assert!(deaths < 50, "it ends");
        jobs = lab.start();
        if jobs.state(killer).unwrap() == State::Dead {
            break;
        }
    }
    assert_eq!(strikes(&jobs, killer), 0);
    assert_eq!(jobs.dead_letter(killer).unwrap().why(), Why::InterruptedTooOften);
    let recount = lab.finish(jobs);
    let r = recount.job("killer");
    println!("beside others: {deaths} deaths, {} given back, {} attempts", r.given_back.died_beside_others, r.attempts);
    assert_eq!((deaths, r.given_back.died_beside_others, r.attempts), (13, 10, 3));
    assert_eq!(recount.jobs.values().filter(|r| State::from(&r.state) == State::Done).count(), 13, "the others finish");
}

/// A kind wants a person to look after every interruption: after a death, a reboot or a shutdown its job waits with that reason,
/// and runs when told to.
#[test]
fn a_kind_may_be_held_after_an_interruption() {
    let mut held = 0;
    for how in ["death", "reboot", "shutdown"] {
        let mut lab = Lab::new(2);
        let jobs = lab.start();
        let id = jobs.enqueue(&Held::new("held", 0)).unwrap().id();
        let other = lab.work(&jobs, "other", 0);
        lab.begun(&["held", "other"]);
        if how == "shutdown" {
            let report = jobs.shutdown(std::time::Duration::from_millis(50)).unwrap();
            assert_eq!(report.interrupted, 2);
            lab.ground.signs.end();
            lab.ground.signs = Signs::default();
        } else {
            lab.ground.kill(jobs);
            lab.ground.boot += u8::from(how == "reboot");
        }
        let jobs = lab.start();
        is(&jobs, id, State::Dead);
        let letter = jobs.dead_letter(id).unwrap();
        assert_eq!(letter.why(), Why::HeldAfterInterrupt, "{how}");
        jobs.decide(&letter, Decision::try_again().by("ann", "I looked")).unwrap();
        lab.ground.signs.end();
        assert_eq!(jobs.wait(id, PATIENCE).unwrap(), State::Done);
        assert_eq!(jobs.wait(other, PATIENCE).unwrap(), State::Done);
        let recount = lab.finish(jobs);
        assert_eq!(recount.job("held").attempts, 1, "{how}");
        held += 1;
    }
    println!("held: {held} ways to be interrupted");
    assert_eq!(held, 3);
}

/// The app that starts next does not know the kind that was running: its claim is given back and it waits; whoever knows it runs
/// it, alone.
#[test]
fn an_unknown_kind_that_was_running_waits_for_who_knows_it() {
    let mut lab = Lab::new(1);
    let jobs = lab.start();
    let id = lab.work(&jobs, "w", 0);
    lab.begun(&["w"]);
    lab.ground.kill(jobs);
    kind!(Else = "else");
    let jobs = lab.ground.builder().on(|_, _: Else| Ok(())).start().unwrap();
    let other = jobs.enqueue(&Else::new("e", 0)).unwrap().id();
    lab.ground.settle(&jobs);
    is(&jobs, id, State::Ready);
    is(&jobs, other, State::Done);
    jobs.shutdown(PATIENCE).unwrap();
    lab.ground.nonce += 1;
    let jobs = lab.start();
    lab.begun(&["w"]);
    let recount = lab.finish(jobs);
    assert_eq!(State::from(&recount.job("w").state), State::Done);
}

/// One job is retried, killed, rebooted, shut down and replayed by a person: its token rises with every claim, also across all
/// of that, and a job that was claimed before by an old process is never claimed with an old number.
#[test]
fn tokens_rise_across_retries_restarts_and_replays() {
    kind!(Hard = "hard" {
        fn policy() -> Policy {
            Policy::default().retries(1).backoff(Backoff::steps([SECOND]))
        }
    });
    let mut ground = Ground::new();
    let tokens: Tokens = Arc::default();
    let start = |ground: &Ground| {
        let (signs, tokens) = (ground.signs.clone(), tokens.clone());
        ground
            .builder()
            .workers(1)
            .on(move |cx, _: Hard| {
                tokens.lock().unwrap().push(cx.token());
                signs.wait("begun");
                Err(Fail::new("no"))
            })
            .start()
            .unwrap()
    };
    let mut jobs = start(&ground);
    let id = jobs.enqueue(&Hard::new("h", 0)).unwrap().id();
    let (mut replays, mut kills) = (0, 0);
    for round in 0..6 {
        ground.signs.until("begun", 1);
        match round % 3 {
            0 => {
                ground.kill(jobs);
                ground.boot += 1;
                kills += 1;
                jobs = start(&ground);
            }
            1 => {
                let _ = jobs.shutdown(std::time::Duration::from_millis(20)).unwrap();
                ground.signs.end();
                ground.signs = Signs::default();
                ground.nonce += 1;
                jobs = start(&ground);
            }
            _ => {
                ground.signs.end();
                ground.settle(&jobs);
                ground.pass(&jobs, SECOND);
                is(&jobs, id, State::Dead);
                jobs.shutdown(PATIENCE).unwrap();
                ground.signs = Signs::default();
                jobs = start(&ground);
                let letter = jobs.dead_letter(id).unwrap();
                jobs.decide(&letter, Decision::try_again().by("ann", "once more")).unwrap();
                replays += 1;
            }
        }
    }
    ground.signs.until("begun", 1);
    ground.signs.end();
    ground.settle(&jobs);
    let seen = tokens.lock().unwrap().clone();
    println!("tokens: {} claims, {kills} reboots, {replays} replays", seen.len());
    assert!(seen.len() == 8 && replays == 2 && kills == 2, "{seen:?}");
    assert!(seen.is_sorted_by(|a, b| a < b), "{seen:?}");
    let recount = ground.close(jobs);
    assert_eq!(recount.job("h").claims as usize, seen.len());
    assert_eq!(recount.job("h").replays, 2);
}
