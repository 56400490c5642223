//! kill -9 of a process that undoes: the card was charged, the goods are gone for good, the refund fails twice and then works.

use super::super::oracle::{Undone, Way, i18_of, i20};
use super::effects::{Happened, Ledger};
use super::parent::{Aim, Life};
use super::shop::{AWAY, POINTS, follow, place, queue};
use super::{PATIENCE, killed_at_each, side_by_side, wanted};
use onceward::{Entry, JobId, Jobs, LedgerLine, State};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Kills of every run.
const KILLS: usize = 200;
const KILLS_PER_FILE: usize = 20;
/// Orders that each child places.
const PER_LIFE: u64 = 4;

/// What undoes what, in the order of the way there.
const PAIRS: [(&str, &str); 2] = [("pay", "give"), ("ship", "fetch")];

/// What series of kills came to.
#[derive(Default)]
struct Series {
    kills: usize,
    lives: usize,
    at: BTreeMap<String, usize>,
    orders: usize,
    deeds: BTreeMap<String, usize>,
    decided: usize,
    letters: BTreeMap<String, usize>,
    /// Looks at a job together with its letter, after the last kill.
    asked: usize,
    lost: usize,
    repeated: usize,
}

impl Series {
    fn add(&mut self, other: Self) {
        let Self { kills, lives, at, orders, deeds, decided, letters, asked, lost, repeated } = other;
        self.kills += kills;
        self.lives += lives;
        at.into_iter().for_each(|(k, n)| *self.at.entry(k).or_default() += n);
        self.orders += orders;
        deeds.into_iter().for_each(|(k, n)| *self.deeds.entry(k).or_default() += n);
        self.decided += decided;
        letters.into_iter().for_each(|(k, n)| *self.letters.entry(k).or_default() += n);
        self.asked += asked;
        self.lost += lost;
        self.repeated += repeated;
    }
    fn lose(&mut self, what: &str) {
        eprintln!("lost: {what}");
        self.lost += 1;
    }
}

/// What the children said.
#[derive(Default)]
struct Outside {
    tried: BTreeSet<u64>,
    acked: BTreeMap<u64, String>,
    /// Acknowledged decisions, by job.
    decided: BTreeMap<String, usize>,
    over: BTreeMap<String, String>,
}

impl Outside {
    fn hear(&mut self, said: &[String]) {
        for line in said {
            match line.split(' ').collect::<Vec<_>>()[..] {
                ["try", n] => {
                    self.tried.insert(n.parse().expect("a number"));
                }
                ["ack", n, id] => {
                    let known = self.acked.entry(n.parse().expect("a number")).or_insert_with(|| id.to_owned());
                    assert_eq!(known, id, "order {n} became another job");
                }
                ["decided", id] => *self.decided.entry(id.to_owned()).or_default() += 1,
                ["over", id, state] => {
                    self.over.insert(id.to_owned(), state.to_owned());
                }
                _ => {}
            }
        }
    }
}

/// Kills the child of file `n` until it was killed `kills` times, then looks at everything.
fn run(n: usize, kills: usize) -> Series {
    let dir = tempfile::tempdir().expect("a directory");
    let mut rng = fastrand::Rng::with_seed(1_000 + n as u64);
    let (mut sum, mut out, mut first) = (Series::default(), Outside::default(), 0);
    while sum.kills < kills {
        assert!(sum.lives < kills * 4, "{} kills in {} lives", sum.kills, sum.lives);
        let (point, nth, aim) = aim(&mut rng, sum.lives, n);
        let mut life = Life::start(&format!("shop|{}|{first}|{PER_LIFE}|{point}|{nth}", dir.path().display()));
        first += PER_LIFE;
        sum.lives += 1;
        let fired = life.wait_for(&aim);
        if fired {
            life.kill();
        }
        let (status, said) = life.end();
        assert!(status.code() != Some(101), "the child failed: {said:#?}");
        out.hear(&said);
        if !status.success() {
            assert!(fired, "the child ended by itself with {status}: {said:#?}");
            sum.kills += 1;
            if !point.is_empty() {
                *sum.at.entry(point.to_owned()).or_default() += 1;
            }
        }
    }
    finale(dir.path(), &out, &mut sum);
    sum
}

/// More than half of the kills are aimed at the named points in turn, the others fall anywhere on the way.
fn aim(rng: &mut fastrand::Rng, life: usize, file: usize) -> (&'static str, usize, Aim) {
    let anywhere = |line: &str, nth: usize, micros: u64| Aim { line: line.to_owned(), nth, micros };
    match rng.u8(0..10) {
        0..=5 => {
            let point = POINTS[(file * 7 + life) % POINTS.len()];
            // Half of the orders come to the desk.
            let most = if matches!(point, "at the desk" | "undo decided") { 1 } else { 3 };
            (point, rng.usize(1..=most), anywhere("at", 1, 0))
        }
        6 => ("", 1, anywhere("opening", 1, rng.u64(0..20_000))),
        7 => ("", 1, anywhere("decided", rng.usize(1..=2), rng.u64(0..5_000))),
        _ => ("", 1, anywhere("begin", rng.usize(1..=4), rng.u64(0..20_000))),
    }
}

/// Opens the file, lets everything end, and compares with the ledger of what really happened.
fn finale(dir: &Path, out: &Outside, sum: &mut Series) {
    let ledger = Ledger::open(dir);
    let jobs = queue(dir, &ledger).start().expect("after the last kill the file opens");
    let mut letters = Vec::new();
    for n in &out.tried {
        // What was tried and not acknowledged may be there or not: now it is.
        let told = place(&jobs, *n);
        if let Some(id) = out.acked.get(n)
            && (told.is_new() || told.id().to_string() != *id)
        {
            sum.lose(&format!("order {n} was acknowledged as job {id} and is {told:?} now"));
        }
        sum.asked += asked(&jobs, *n, told.id());
        let state = follow(&jobs, told.id(), &ledger, &mut letters);
        compensated(&jobs, *n, told.id(), state, out, &ledger, sum);
        sum.orders += 1;
    }
    for letter in letters {
        *sum.letters.entry(letter).or_default() += 1;
    }
    for (id, n) in &out.decided {
        let job = JobId::from_number(id.parse().expect("a number"));
        let kept = jobs.history(job).expect("a history");
        let kept = kept.iter().filter(|e| matches!(e, Entry::Decision { signed, .. } if signed.who == "the suite"));
        if kept.count() < *n {
            sum.lose(&format!("{n} decisions about job {id} were acknowledged: {:#?}", jobs.history(job)));
        }
        sum.decided += n;
    }
    let all = ledger.all();
    let phantom = all.iter().find(|h| !out.tried.contains(&h.order));
    assert!(phantom.is_none(), "nobody ordered {phantom:?}");
    assert_eq!(jobs.dead_letters().expect("letters").len(), 0);
    for h in all {
        *sum.deeds.entry(h.effect).or_default() += 1;
    }
    jobs.shutdown(PATIENCE).expect("it closes");
}

/// The order, and every job that undoes something of it, has a letter exactly while it needs a person, and the letter lists every effect
/// that is stored. How many letters there were.
fn asked(jobs: &Jobs, n: u64, order: JobId) -> usize {
    let lines = |id: JobId| jobs.ledger(id).expect("a ledger");
    let undo = lines(order).into_iter().filter_map(|l| l.undo_job);
    let mut letters = 0;
    for id in undo.chain([order]) {
        let state = || jobs.state(id).expect("a state");
        let (before, letter, after) = (state(), jobs.dead_letter(id).ok(), state());
        // It goes on by itself until it needs a person, who is not there yet: what stands still was seen at one moment.
        if before != after {
            continue;
        }
        let ids = |lines: &[LedgerLine]| lines.iter().map(|l| l.id.to_string()).collect::<Vec<_>>();
        let listed = letter.as_ref().map(|l| ids(l.ledger())).unwrap_or_default();
        let asks = matches!(after, State::Dead | State::NeedsDecision);
        i18_of(asks, letter.is_some(), &listed, &ids(&lines(id)))
            .unwrap_or_else(|why| panic!("order {n}, job {id}: {why}"));
        letters += usize::from(letter.is_some());
    }
    letters
}

/// The order ended as compensated, whatever was done was undone, each once and the last first.
fn compensated(jobs: &Jobs, n: u64, id: JobId, state: State, out: &Outside, ledger: &Ledger, sum: &mut Series) {
    assert_eq!(state, State::Compensated, "order {n}: {:#?}", jobs.history(id));
    if let Some(before) = out.over.get(&id.to_string()) {
        assert_eq!(before, "Compensated", "order {n} had another end before");
    }
    let all: Vec<Happened> = ledger.all().into_iter().filter(|h| h.order == n).collect();
    let at = |effect: &str| -> Vec<usize> { (0..all.len()).filter(|i| all[*i].effect == effect).collect() };
    for (did, undid) in PAIRS {
        if at(did).len() > 1 || at(undid).len() > 1 {
            eprintln!("order {n}: {did} and {undid} happened more than once: {all:#?} {:#?}", jobs.history(id));
            sum.repeated += 1;
        }
        if at(did).len() > at(undid).len() {
            sum.lose(&format!("order {n}: {did} was not undone: {all:#?} {:#?}", jobs.history(id)));
        }
    }
    let lines = jobs.ledger(id).expect("a ledger");
    let undone = |l: &LedgerLine| Undone {
        effect: l.id.name.clone(),
        state: l.state,
        undoing: l.undoing,
        job: l.undo_job.map(|undo| jobs.state(undo).expect("a state")),
    };
    let way = Way {
        pairs: PAIRS.to_vec(),
        deeds: all.iter().filter(|h| h.effect != "away").map(|h| (h.effect.clone(), h.key.clone())).collect(),
        effects: lines.iter().filter(|l| l.undo.is_some()).map(undone).collect(),
        unresolved: lines.iter().any(|l| l.state.is_unresolved()),
        state,
    };
    // What happened twice or never is counted above.
    if sum.lost + sum.repeated == 0 {
        i20(&way).unwrap_or_else(|why| panic!("order {n}: {why}, {:#?}", jobs.history(id)));
    }
    let away = if at("give").is_empty() { 0 } else { AWAY };
    assert_eq!(at("away").len(), away, "order {n}: the refund failed otherwise");
}

/// The process is killed at every named point of the way there and back, and anywhere else on it: every order ends as compensated
/// and never as a success; whatever was charged and sent is back, once each, the parcel before the money; no decision is lost.
#[test]
fn kill_9_while_undoing_loses_nothing_and_repeats_nothing() {
    let wanted = wanted(KILLS);
    let files = wanted.div_ceil(KILLS_PER_FILE);
    let all = side_by_side(files, |n| run(n, KILLS_PER_FILE), Series::add);
    println!("kill -9 while undoing: {} kills in {} lives of {files} queue files", all.kills, all.lives);
    println!("  {} at named points: {:?}", all.at.values().sum::<usize>(), all.at);
    println!(
        "  {} orders, {:?}; {} decisions acknowledged; letters at the end {:?}",
        all.orders, all.deeds, all.decided, all.letters
    );
    println!("  {} letters looked at beside their jobs", all.asked);
    println!("  lost {}, repeated {}", all.lost, all.repeated);
    assert!(all.kills >= wanted, "{} kills instead of {wanted}", all.kills);
    let happened = |effect: &str| all.deeds.get(effect).copied().unwrap_or(0);
    assert!(happened("give") > files * 20 && happened("fetch") > files * 20, "hardly anything was at stake");
    assert!(all.decided > files, "a person hardly decided anything");
    killed_at_each(POINTS, &all.at, wanted, KILLS);
    assert_eq!((all.lost, all.repeated), (0, 0));
}
