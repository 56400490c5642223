//! 574 months of real data, every month delivered at least twice, by a process that is killed again and again: each month ends up
//! in the table exactly once, equal to the file.
//!
//!     cargo run --example unemployment              three rounds
//!     cargo run --example unemployment -- --once    one round, as in CI
//!
//! The program starts itself as a child that ingests; the parent reads what the child says and kills it (SIGKILL), then starts the
//! next. Whoever sends the months does not remember what it has sent, so every child gets all of them again, twice, in another
//! order. Exits with an error on any difference.
#![expect(
    clippy::disallowed_methods,
    reason = "a program of its own: it has threads and measures how long a reopen takes"
)]

use onceward::prelude::*;
use onceward::redb::{ReadableTable, ReadableTableMetadata, TableDefinition};
use onceward::{Decision, ProofLog, State, Why};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::error::Error;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

type AnyError = Box<dyn Error + Send + Sync>;

/// The source: what a fetch over the network would return.
const FILE: &str = include_str!("data/fred_unemploy.csv");
const MONTHS: usize = 574;
const SEED: u64 = 1967;
const SENDERS: usize = 4;

/// (source, series, date) -> thousands of persons.
const ROWS: TableDefinition<(&str, &str, &str), u64> = TableDefinition::new("observations");
/// (source, series, date) -> how often its row was written. Counts wrong at once if anything happens twice.
const WRITES: TableDefinition<(&str, &str, &str), u64> = TableDefinition::new("writes");

/// Ingest one month. The payload is the intent; the value is fetched when the job runs.
#[derive(Serialize, Deserialize)]
struct Ingest {
    date: String,
}

impl Job for Ingest {
    const KIND: &'static str = "fred.ingest";
    fn key(&self) -> JobKey {
        key(&self.date).into()
    }
}

/// `2015-04-01` is `fred/UNEMPLOY/2015-04`.
fn key(date: &str) -> String {
    format!("fred/UNEMPLOY/{}", &date[..7])
}

fn ingest(cx: &Cx, job: Ingest) -> Outcome {
    println!("begin {} {}", job.date, cx.attempt());
    // Remembered: if we are killed after this line, the next attempt does not fetch again.
    let thousands = cx.step("fetch", || {
        println!("fetch {}", job.date);
        fetch(&job.date)
    })?;
    println!("fetched {}", job.date);
    cx.note("rows_upserted", 1);
    let date = job.date.clone();
    // The row and the end of the job are one transaction: both are there, or neither.
    cx.finish(move |tx| {
        let row = ("fred", "UNEMPLOY", date.as_str());
        tx.open_table(ROWS)?.insert(row, thousands)?;
        let mut writes = tx.open_table(WRITES)?;
        let before = writes.get(row)?.map_or(0, |n| n.value());
        writes.insert(row, before + 1)?;
        Ok(())
    })?;
    println!("done {}", job.date);
    Ok(())
}

fn fetch(date: &str) -> Outcome<u64> {
    let line = FILE.lines().find_map(|l| l.strip_prefix(date)?.strip_prefix(','));
    line.ok_or_else(|| Fail::permanent(format!("the source has no {date}")))?.parse().permanent()
}

fn observations() -> Result<Vec<(&'static str, u64)>, AnyError> {
    let lines = FILE.lines().skip(1).map(|l| l.split_once(',').ok_or("a line without a comma"));
    lines.map(|l| l.map_err(AnyError::from).and_then(|(date, n)| Ok((date, n.parse()?)))).collect()
}

fn open(dir: &Path) -> Result<Jobs, AnyError> {
    let log = ProofLog::open(dir.join("proof.log"))?;
    Ok(registered(Jobs::open(dir.join("fred.redb"))).sink(log).start()?)
}

/// What is registered: also what the safety card in JOB-SAFETY.md is rendered from.
pub(crate) fn registered(builder: onceward::Builder) -> onceward::Builder {
    builder.on(ingest)
}

// ---- the child: it ingests until it is killed, or done --------------------------------------------------------------------------

fn child(dir: &Path, seed: u64) -> Result<(), AnyError> {
    println!("opening -");
    let watch = Instant::now();
    let jobs = open(dir)?;
    println!("open {}", watch.elapsed().as_millis());

    let months: Vec<&str> = observations()?.into_iter().map(|(date, _)| date).collect();
    let mut deliveries = [months.clone(), months].concat();
    fastrand::Rng::with_seed(seed).shuffle(&mut deliveries);
    std::thread::scope(|s| {
        let send = |part: &[&str]| -> Result<(), onceward::Error> {
            for date in part {
                let told = jobs.enqueue(&Ingest { date: (*date).to_owned() })?;
                println!("{} {date} {}", if told.is_new() { "new" } else { "again" }, told.id());
            }
            Ok(())
        };
        let parts = deliveries.chunks(deliveries.len().div_ceil(SENDERS));
        let senders: Vec<_> = parts.map(|part| s.spawn(move || send(part))).collect();
        senders.into_iter().try_for_each(|t| t.join().unwrap_or(Err(onceward::Error::ShutDown)))
    })?;

    jobs.drain(Duration::from_secs(120))?;
    // A job that was the only one at work in two deaths waits for a person, who knows here who the killer was.
    for letter in jobs.dead_letters()? {
        if letter.why() != Why::ProcessDied {
            return Err(format!("{}: {}", letter.key(), letter.headline()).into());
        }
        println!("letter {}", letter.key());
        jobs.decide(&letter, Decision::try_again().by("the demo", "it was killed from outside, twice"))?;
    }
    jobs.drain(Duration::from_secs(120))?;
    jobs.shutdown(Duration::from_secs(10))?;
    Ok(())
}

// ---- the parent: it starts, listens, kills, and looks at what is left ------------------------------------------------------------

/// Where the child is killed: at a line that begins with `word`, once it has finished `done` months.
struct Kill {
    place: &'static str,
    word: &'static str,
    done: usize,
}

const KILLS: [Kill; 9] = [
    Kill { place: "while messages arrive", word: "new", done: 25 },
    Kill { place: "while it reopens", word: "opening", done: 0 },
    Kill { place: "as a job begins", word: "begin", done: 40 },
    Kill { place: "inside a fetch", word: "fetch", done: 60 },
    Kill { place: "between fetch and finish", word: "fetched", done: 50 },
    Kill { place: "right after it opened", word: "open", done: 0 },
    Kill { place: "right after a finish", word: "done", done: 70 },
    Kill { place: "as a duplicate is answered", word: "again", done: 5 },
    Kill { place: "inside a fetch", word: "fetch", done: 45 },
];

/// What all children of a round said.
#[derive(Default)]
struct Heard {
    ids: BTreeMap<String, String>,
    deliveries: BTreeMap<String, usize>,
    suppressed: usize,
    attempts: BTreeMap<String, usize>,
    fetches: usize,
    letters: usize,
    kills: usize,
    reopens: Vec<u64>,
}

impl Heard {
    fn line(&mut self, word: &str, rest: &str) -> Result<(), AnyError> {
        let (date, more) = rest.split_once(' ').unwrap_or((rest, ""));
        match word {
            "new" | "again" => {
                self.suppressed += usize::from(word == "again");
                *self.deliveries.entry(date.to_owned()).or_default() += 1;
                let known = self.ids.entry(date.to_owned()).or_insert_with(|| more.to_owned());
                if known != more {
                    return Err(format!("{date} was job {known}, now it is job {more}").into());
                }
            }
            "begin" => *self.attempts.entry(date.to_owned()).or_default() += 1,
            "fetch" => self.fetches += 1,
            "open" => self.reopens.push(rest.parse()?),
            "letter" => self.letters += 1,
            _ => {}
        }
        Ok(())
    }
}

/// One life of the child. `None`: it may end by itself.
fn live(dir: &Path, seed: u64, kill: Option<&Kill>, heard: &mut Heard) -> Result<usize, AnyError> {
    let mut child = Command::new(std::env::current_exe()?)
        .args(["child".as_ref(), dir.as_os_str(), seed.to_string().as_ref()])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()?;
    let out = BufReader::new(child.stdout.take().ok_or("the child has no output")?);
    let (mut done, mut killed) = (0, false);
    // What it said before it died is still in the pipe and counts.
    for line in out.split(b'\n') {
        let line = String::from_utf8(line?)?;
        let Some((word, rest)) = line.split_once(' ') else { continue };
        heard.line(word, rest)?;
        done += usize::from(word == "done");
        if let Some(k) = kill.filter(|k| !killed && k.word == word && done >= k.done) {
            child.kill()?;
            killed = true;
            println!("  killed {:<27} {done:>3} months done in this life", k.place);
        }
    }
    let status = child.wait()?;
    match kill {
        Some(k) if !killed || status.success() => Err(format!("never killed {}", k.place).into()),
        None if !status.success() => Err(format!("the last child ended with {status}").into()),
        _ => {
            heard.kills += usize::from(killed);
            Ok(done)
        }
    }
}

fn round(n: u64) -> Result<(), AnyError> {
    let dir = tempfile::tempdir()?;
    let mut heard = Heard::default();
    let seed = SEED + 100 * n;
    for (life, kill) in KILLS.iter().enumerate() {
        live(dir.path(), seed + life as u64, Some(kill), &mut heard)?;
    }
    let done = live(dir.path(), seed + KILLS.len() as u64, None, &mut heard)?;
    println!("  {:<34} {done:>3} months done in this life", "let live");
    check(dir.path(), &heard)
}

/// Compares what is left with the file, and with what the children said.
fn check(dir: &Path, heard: &Heard) -> Result<(), AnyError> {
    let want: BTreeMap<String, u64> = observations()?.into_iter().map(|(d, n)| (d.to_owned(), n)).collect();
    let jobs = open(dir)?;
    let (rows, writes) = jobs.read(|r| -> Result<_, AnyError> {
        let mut rows = BTreeMap::new();
        for row in r.open_table(ROWS)?.iter()? {
            let (key, n) = row?;
            rows.insert(key.value().2.to_owned(), n.value());
        }
        let writes = r.open_table(WRITES)?;
        let once = writes.iter()?.filter(|w| w.as_ref().is_ok_and(|(_, n)| n.value() == 1)).count();
        Ok((rows, (usize::try_from(writes.len()?)?, once)))
    })??;
    let mut wrong = Vec::new();
    for date in want.keys().chain(rows.keys()).filter(|d| want.get(*d) != rows.get(*d)) {
        wrong.push(format!("{date}: the file has {:?}, the table {:?}", want.get(date), rows.get(date)));
    }
    for (date, id) in &heard.ids {
        let told = jobs.enqueue(&Ingest { date: date.clone() })?;
        if told.is_new() || told.id().to_string() != *id || jobs.state(told.id())? != State::Done {
            wrong.push(format!("{date}: acknowledged as job {id}, now {told:?}"));
        }
    }
    let mut must = |what: &str, found: usize, wanted: usize| {
        if found != wanted {
            wrong.push(format!("{what}: {found} instead of {wanted}"));
        }
    };
    must("months in the file", want.len(), MONTHS);
    must("rows", rows.len(), MONTHS);
    must("months written once", writes.1, MONTHS);
    must("months written", writes.0, MONTHS);
    must("months delivered at least twice", heard.deliveries.values().filter(|n| **n >= 2).count(), MONTHS);
    must("kills", heard.kills, KILLS.len());
    jobs.shutdown(Duration::from_secs(10))?;

    let attempts: usize = heard.attempts.values().sum();
    let deliveries: usize = heard.deliveries.values().sum();
    let log = std::fs::read_to_string(dir.join("proof.log"))?;
    let again = |l: &&str| l.contains(" outcome=success ") && !l.contains(" attempt=1 ");
    println!("  rows in the table     {:>6}   every one equal to the file, every one written once", rows.len());
    println!("  deliveries            {deliveries:>6}   by {SENDERS} threads at a time, in another order each time");
    println!("  duplicates suppressed {:>6}   a second delivery is the same job", heard.suppressed);
    println!("  attempts              {attempts:>6}   {} of them because of a kill", attempts.saturating_sub(MONTHS));
    println!("  fetches               {:>6}   a fetch that was remembered is not made again", heard.fetches);
    println!(
        "  kills                 {:>6}   reopened in {} ms at most",
        heard.kills,
        heard.reopens.iter().max().unwrap_or(&0)
    );
    if heard.letters > 0 {
        println!(
            "  dead letters          {:>6}   killed twice while alone at work: a person said to try again",
            heard.letters
        );
    }
    println!("  from the proof log ({} lines):", log.lines().count());
    for line in log.lines().filter(again).take(1).chain(log.lines().last()) {
        println!("    {line}");
    }
    let (worst, best) = (rows.iter().max_by_key(|r| r.1), rows.iter().min_by_key(|r| r.1));
    if let (Some((high, most)), Some((low, least))) = (worst, best) {
        println!(
            "  most people without work: {most} thousand in {}, fewest: {least} thousand in {}",
            &high[..7],
            &low[..7]
        );
    }
    if wrong.is_empty() { Ok(()) } else { Err(wrong.join("\n").into()) }
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let result = match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["child", dir, seed] => seed.parse().map_err(AnyError::from).and_then(|seed| child(Path::new(dir), seed)),
        ["--once"] => rounds(1),
        [] => rounds(3),
        _ => Err("usage: unemployment [--once]".into()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("unemployment: {e}");
            ExitCode::FAILURE
        }
    }
}

fn rounds(n: u64) -> Result<(), AnyError> {
    for i in 0..n {
        println!(
            "unemployment: {MONTHS} months, 1967-07 to 2015-04, each delivered at least twice; round {} of {n}",
            i + 1
        );
        round(i)?;
    }
    println!("unemployment: ok, {MONTHS} rows of {MONTHS}");
    Ok(())
}
