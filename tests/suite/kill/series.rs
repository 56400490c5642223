//! One queue file: killed many times, then opened, run to the end with a person's answers, and compared with what was promised.

use super::PATIENCE;
use super::app::{BOOKED, DONE, Order, PLACED, POINTS, Quick, RETRIES, TIMES, queue};
use super::effects::Ledger;
use super::parent::{Aim, Life};
use onceward::redb::{ReadableTable, TableDefinition};
use onceward::{AppRead, DeadLetter, Decision, Entry, JobId, Jobs, Question, State, Why};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Orders that each child places.
const PER_LIFE: u64 = 6;
/// Deaths beside others that give the attempt back.
const GIVEN_BACK: u32 = 10;

/// What series of kills came to.
#[derive(Default)]
pub(super) struct Series {
    pub(super) kills: usize,
    lives: usize,
    /// Kills by named point.
    pub(super) at: BTreeMap<String, usize>,
    pub(super) jobs: usize,
    pub(super) effects: usize,
    attempts: usize,
    quick: usize,
    /// Claims given back, by reason.
    given_back: BTreeMap<String, u32>,
    letters: BTreeMap<String, usize>,
    reopens: Vec<u64>,
    pub(super) lost: usize,
    pub(super) repeated: usize,
}

impl Series {
    pub(super) fn add(&mut self, other: Self) {
        let Self { kills, lives, at, jobs, effects, attempts, quick, given_back, letters, reopens, lost, repeated } =
            other;
        self.kills += kills;
        self.lives += lives;
        at.into_iter().for_each(|(k, n)| *self.at.entry(k).or_default() += n);
        self.jobs += jobs;
        self.effects += effects;
        self.attempts += attempts;
        self.quick += quick;
        given_back.into_iter().for_each(|(k, n)| *self.given_back.entry(k).or_default() += n);
        letters.into_iter().for_each(|(k, n)| *self.letters.entry(k).or_default() += n);
        self.reopens.extend(reopens);
        self.lost += lost;
        self.repeated += repeated;
    }
    fn given_back(&mut self, jobs: &Jobs, id: JobId) {
        for entry in jobs.history(id).expect("a history") {
            if let Entry::GivenBack { why, count, .. } = entry {
                *self.given_back.entry(why).or_default() += count;
            }
        }
    }
    pub(super) fn print(&self, files: usize) {
        let mut reopens = self.reopens.clone();
        reopens.sort_unstable();
        let ms = |at: usize| reopens.get(at).map_or(0.0, |us| *us as f64 / 1e3);
        println!("kill -9: {} kills in {} lives of {files} queue files", self.kills, self.lives);
        println!("  {} at named points: {:?}", self.at.values().sum::<usize>(), self.at);
        println!(
            "  {} orders, {} attempts, {} effects; letters {:?}",
            self.jobs, self.attempts, self.effects, self.letters
        );
        println!("  {} quick jobs; claims given back: {:?}", self.quick, self.given_back);
        println!("  reopen p50 {:.1} ms, max {:.1} ms", ms(reopens.len() / 2), ms(reopens.len().saturating_sub(1)));
        println!("  lost {}, repeated {}", self.lost, self.repeated);
    }
}

/// What the children said: the state that is expected, kept outside.
#[derive(Default)]
struct Outside {
    tried: BTreeSet<u64>,
    acked: BTreeMap<u64, String>,
    quick: BTreeMap<u64, String>,
    /// Order -> (attempt, token) of each handler that began.
    begun: BTreeMap<u64, Vec<(u32, u64)>>,
}

/// Kills the child of file `n` until it was killed `kills` times, then looks at everything.
pub(super) fn run(n: usize, kills: usize) -> Series {
    let dir = tempfile::tempdir().expect("a directory");
    let mut rng = fastrand::Rng::with_seed(n as u64);
    let (mut sum, mut out, mut first) = (Series::default(), Outside::default(), 0);
    while sum.kills < kills {
        // A file is not killed for ever without progress.
        assert!(sum.lives < kills * 4, "{} kills in {} lives", sum.kills, sum.lives);
        let (point, nth, aim) = aim(&mut rng, sum.lives, n);
        let mut life = Life::start(&format!("orders|{}|{first}|{PER_LIFE}|{point}|{nth}", dir.path().display()));
        first += PER_LIFE;
        sum.lives += 1;
        let fired = life.wait_for(&aim);
        if fired {
            life.kill();
        }
        let (status, said) = life.end();
        assert!(status.code() != Some(101), "the child failed: {said:#?}");
        out.hear(&said, &mut sum);
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

/// Half of the kills are aimed at the named points in turn, the others fall anywhere: while the file is created, opened, used and
/// closed.
fn aim(rng: &mut fastrand::Rng, life: usize, file: usize) -> (&'static str, usize, Aim) {
    let anywhere = |line: &str, nth: usize, micros: u64| Aim { line: line.to_owned(), nth, micros };
    if life == 0 {
        return ("", 1, anywhere("opening", 1, rng.u64(0..20_000)));
    }
    match rng.u8(0..20) {
        0..=11 => {
            let point = POINTS[(file * 7 + life) % POINTS.len()];
            // Some are passed seldom in one life.
            let most = match point {
                "asking ship" => 1,
                "in transact" => 2,
                _ => 5,
            };
            let nth = rng.usize(1..=most);
            (point, nth, anywhere("at", 1, 0))
        }
        12 | 13 => ("", 1, anywhere("opening", 1, rng.u64(0..20_000))),
        14 => ("", 1, anywhere("closing", 1, rng.u64(0..5_000))),
        15..=17 => ("", 1, anywhere("begin", rng.usize(1..=8), rng.u64(0..5_000))),
        _ => ("", 1, anywhere("ack", rng.usize(1..=6), rng.u64(0..5_000))),
    }
}

impl Outside {
    fn hear(&mut self, said: &[String], sum: &mut Series) {
        for line in said {
            match line.split(' ').collect::<Vec<_>>()[..] {
                ["try", n] => {
                    self.tried.insert(number(n));
                }
                ["ack", n, id] => {
                    let known = self.acked.entry(number(n)).or_insert_with(|| id.to_owned());
                    assert_eq!(known, id, "order {n} became another job");
                }
                ["begin", n, attempt, token] => {
                    let begun = self.begun.entry(number(n)).or_default();
                    let (attempt, token) = (attempt.parse().expect("a number"), number(token));
                    assert!(begun.iter().all(|(_, t)| *t < token), "order {n}: token {token} after {begun:?}");
                    begun.push((attempt, token));
                    sum.attempts += 1;
                }
                ["quick-ack", n, id] => {
                    self.quick.insert(number(n), id.to_owned());
                }
                ["open", us] => sum.reopens.push(number(us)),
                _ => {}
            }
        }
    }
}

fn number(text: &str) -> u64 {
    text.parse().unwrap_or_else(|_| panic!("not a number: {text:?}"))
}

/// Opens the file, lets everything end, answers what is asked, and compares.
fn finale(dir: &Path, out: &Outside, sum: &mut Series) {
    let ledger = Ledger::open(dir);
    let jobs = queue(dir, &ledger).start().expect("after the last kill the file opens");
    let mut ids: BTreeMap<u64, JobId> = BTreeMap::new();
    for n in &out.tried {
        // What was tried and not acknowledged may be there or not: now it is.
        let told = jobs.enqueue(&Order::new(*n)).expect("an order can be enqueued");
        if let Some(id) = out.acked.get(n)
            && (told.is_new() || told.id().to_string() != *id)
        {
            eprintln!("order {n} was acknowledged as job {id} and is {told:?} now");
            sum.lost += 1;
        }
        ids.insert(*n, told.id());
    }
    let granted = answer_all(&jobs, &ids, &ledger, sum);
    jobs.drain(PATIENCE).expect("the follow-up jobs end too");
    sum.jobs += ids.len();
    sum.effects += ledger.all().len();

    let table = |t| jobs.read(|r| rows(r, t)).expect("the file can be read");
    let (placed, booked, done) = (table(PLACED), table(BOOKED), table(DONE));
    let times = jobs.read(times).expect("the file can be read");
    for (n, id) in &ids {
        let state = jobs.state(*id).expect("an acknowledged job has a state");
        let what = |w: &str| times.get(&(w.to_owned(), *n)).copied().unwrap_or(0);
        if state != State::Done || !done.contains_key(n) {
            eprintln!("order {n} is {state:?}; history: {:#?}", jobs.history(*id));
            sum.lost += 1;
        }
        assert_eq!(booked.get(n), done.get(n), "order {n}: a remembered step came back with another value");
        let all = [what("book"), what("finish"), what("thank")];
        if all != [1, 1, 1] {
            eprintln!("order {n}: booked, finished and thanked {all:?} times");
            sum.repeated += 1;
        }
        sum.given_back(&jobs, *id);
        happened_once(&jobs, *n, *id, &ledger, sum);
        bounded(*n, *id, &jobs, out, granted.get(n).copied().unwrap_or(0));
        // No jump of the numbers: after a kill nothing may look like an old copy that was put back.
        assert!(id.number() < 1 << 32, "job {id}: a kill was taken for a restored backup");
    }
    for (n, id) in &out.quick {
        let told = jobs.enqueue(&Quick { n: *n }).expect("known");
        let state = jobs.state(told.id()).expect("an acknowledged job has a state");
        if told.is_new() || told.id().to_string() != *id || state != State::Done {
            eprintln!("quick job {n} was acknowledged as job {id}, now {told:?} is {state:?}");
            sum.lost += 1;
        }
        sum.given_back(&jobs, told.id());
    }
    sum.quick += out.quick.len();
    let phantoms: Vec<_> = placed.keys().chain(done.keys()).filter(|n| !out.tried.contains(n)).collect();
    assert!(phantoms.is_empty(), "orders that nobody placed: {phantoms:?}");
    let depth = jobs.snapshot().expect("a snapshot").gauges.queue_depth;
    let open: u64 =
        depth.values().flat_map(|states| states.iter()).filter(|(s, _)| **s != "done").map(|(_, n)| n).sum();
    assert_eq!(open, 0, "nothing is left over: {depth:?}");
    jobs.shutdown(PATIENCE).expect("it closes");
    let left: BTreeSet<String> = std::fs::read_dir(dir)
        .expect("the directory")
        .map(|f| f.expect("an entry").file_name().to_string_lossy().into_owned())
        .filter(|f| f != "ledger" && f != "q.redb" && !f.ends_with(".run") && !f.ends_with(".reserve"))
        .collect();
    assert!(left.is_empty(), "kills left files behind: {left:?}");
}

/// A person answers from the ledger; every question must be one that the rules allow. Returns how many more attempts were granted.
fn answer_all(jobs: &Jobs, ids: &BTreeMap<u64, JobId>, ledger: &Ledger, sum: &mut Series) -> BTreeMap<u64, u32> {
    let mut granted: BTreeMap<u64, u32> = BTreeMap::new();
    for (n, id) in ids {
        loop {
            let state = jobs.wait(*id, PATIENCE).unwrap_or_else(|e| panic!("order {n}: {e}: {:#?}", jobs.history(*id)));
            if state == State::Done {
                break;
            }
            let letter =
                jobs.dead_letter(*id).unwrap_or_else(|e| panic!("order {n} is {state:?} without a letter: {e}"));
            *sum.letters.entry(format!("{:?}", letter.why())).or_default() += 1;
            let g = granted.entry(*n).or_default();
            assert!(*g < 20, "order {n} never ends: {letter:#?}");
            *g += 1;
            jobs.decide(&letter, decision(&letter, ledger)).unwrap_or_else(|e| panic!("order {n}: {e}: {letter:#?}"));
        }
    }
    granted
}

fn decision(letter: &DeadLetter, ledger: &Ledger) -> Decision {
    assert!(!letter.headline().is_empty() && !letter.choices().is_empty(), "a letter asks something: {letter:#?}");
    lawful(letter);
    let answer = match letter.questions().first() {
        Some(Question::DidItHappen { effect }) => {
            let line = letter.ledger().iter().find(|l| l.id == *effect).expect("what is asked about is shown");
            match ledger.find(&line.idempotency_key) {
                Some(h) => Decision::happened(effect, Some(&h.receipt())),
                None => Decision::did_not_happen(effect),
            }
        }
        Some(Question::WhatNow) => Decision::try_again(),
        other => panic!("no kill makes such a question: {other:?} in {letter:#?}"),
    };
    answer.by("the suite", "the ledger says so")
}

/// Every letter follows from the rules: two deaths alone at work, an effect that only a person can settle, or more deaths beside
/// others than are given back and then the attempts used up.
fn lawful(letter: &DeadLetter) {
    let (mut strikes, mut beside) = (0, 0);
    for entry in letter.history() {
        if let Entry::Strike { .. } = entry {
            strikes += 1;
        }
        if let Entry::GivenBack { why, count, .. } = entry
            && why == "died beside others"
        {
            beside += count;
        }
    }
    let lawful = match letter.why() {
        Why::ProcessDied => strikes >= 2,
        Why::EffectUnresolved => letter.questions().iter().filter_map(Question::effect).all(|e| e.name == "print"),
        Why::InterruptedTooOften => beside >= GIVEN_BACK && letter.attempts() > RETRIES,
        Why::TriesUsedUp => letter.attempts() > RETRIES,
        Why::Permanent | Why::HeldAfterInterrupt | Why::DeadlinePassed | Why::Unreadable => false,
        other => panic!("a new sort of letter: {other:?}"),
    };
    assert!(lawful, "no rule makes this letter: {letter:#?}");
}

/// The honest provider and the one that can be asked: once. The one that a person answers for: once. The one that was declared at
/// least once: at most once per call.
fn happened_once(jobs: &Jobs, n: u64, id: JobId, ledger: &Ledger, sum: &mut Series) {
    let all: Vec<_> = ledger.all().into_iter().filter(|h| h.order == n).collect();
    let lines = jobs.ledger(id).expect("a ledger");
    for effect in ["charge", "ship", "print", "mail"] {
        let happened: Vec<_> = all.iter().filter(|h| h.effect == effect).collect();
        let line = lines.iter().find(|l| l.id.name == effect);
        let (calls, key) = line.map_or((0, ""), |l| (l.calls, l.idempotency_key.as_str()));
        let most = match effect {
            "mail" => calls as usize,
            "print" if !n.is_multiple_of(3) => 0,
            _ => 1,
        };
        if happened.len() > most {
            eprintln!("order {n}: {effect} happened {} times: {:#?}", happened.len(), jobs.history(id));
            sum.repeated += 1;
        }
        if happened.is_empty() && most > 0 {
            eprintln!("order {n}: {effect} never happened");
            sum.lost += 1;
        }
        assert!(happened.iter().all(|h| h.key == key), "order {n}: {effect} was called under several keys");
    }
}

/// Attempts are bounded, and each was counted before its handler ran.
fn bounded(n: u64, id: JobId, jobs: &Jobs, out: &Outside, granted: u32) {
    let begun = out.begun.get(&n).map_or(&[][..], Vec::as_slice);
    let most = RETRIES + 1 + granted;
    let highest = begun.iter().map(|(attempt, _)| *attempt).max().unwrap_or(0);
    assert!(highest <= most, "order {n}: attempt {highest} of {most}: {begun:?}, {:#?}", jobs.history(id));
    let claims = begun.len() as u32;
    // Beside the attempts: deaths given back, and claims that only looked whether an effect had settled.
    assert!(claims <= most + GIVEN_BACK * 3, "order {n}: {claims} handlers began: {:#?}", jobs.history(id));
}

fn rows(r: &AppRead<'_>, t: TableDefinition<'static, u64, u64>) -> BTreeMap<u64, u64> {
    let Ok(table) = r.open_table(t) else { return BTreeMap::new() };
    let all = table.iter().expect("the table can be read");
    all.map(|row| row.expect("a row can be read")).map(|(k, v)| (k.value(), v.value())).collect()
}

fn times(r: &AppRead<'_>) -> BTreeMap<(String, u64), u64> {
    let Ok(table) = r.open_table(TIMES) else { return BTreeMap::new() };
    let all = table.iter().expect("the table can be read");
    all.map(|row| row.expect("a row can be read"))
        .map(|(k, v)| ((k.value().0.to_owned(), k.value().1), v.value()))
        .collect()
}
