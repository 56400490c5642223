//! The file is damaged under the running queue: cut, written over, rolled back in place, its sidecar taken away, while the queue is
//! idle, at work and inside an effect. It stops, heals or is refused at the next start, in words; what can still be read is what was
//! acknowledged; nothing that happened counts as new.
//!
//! `ONCEWARD_FAULT_SEEDS` asks for more places in the file than those of every run.

mod eight;
mod shop;

use super::ground::{PATIENCE, SECOND};
use onceward::Scope;
use onceward::clock::ManualClock;
use shop::{Books, EFFECTS, Life, Truth, finish, patiently, readable};
use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// Orders and rows of the file before it is damaged.
const ORDERS: u64 = 10;
const ROWS_BEFORE: u64 = 150;
const PLACES: u64 = 150;
/// Pages in memory: a few, so that the file itself is read, or all of them.
const CACHES: [usize; 2] = [64 << 10, 32 << 20];

/// What becomes of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Damage {
    CutToHalf,
    CutToAPage,
    CutToNothing,
    /// An earlier copy is written into it, and it keeps its length or gets the copy's.
    RolledBack {
        shorter: bool,
    },
    /// So many bytes of noise, or zeroes, somewhere.
    Spoilt {
        seed: u64,
        len: usize,
        zeroes: bool,
    },
    SidecarRemoved,
    SidecarEmptied,
    SidecarOlder,
    ReserveRemoved,
}

/// When.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Moment {
    Idle,
    BetweenCommits,
    InsideAnEffect,
}
const MOMENTS: [Moment; 3] = [Moment::Idle, Moment::BetweenCommits, Moment::InsideAnEffect];

fn beside(path: &Path, what: &str) -> PathBuf {
    PathBuf::from(format!("{}.{what}", path.display()))
}

impl Damage {
    fn strike(self, path: &Path, older: &Path) {
        let file = || OpenOptions::new().read(true).write(true).open(path).unwrap();
        let cut = |len: u64| file().set_len(len).unwrap();
        match self {
            Self::CutToHalf => cut(fs::metadata(path).unwrap().len() / 2),
            Self::CutToAPage => cut(4_096),
            Self::CutToNothing => cut(0),
            Self::RolledBack { shorter } => {
                let copy = fs::read(older).unwrap();
                file().write_all(&copy).unwrap();
                if shorter {
                    // As `cp` leaves it, which empties the file first, and was stopped on its way.
                    cut(copy.len() as u64 - 8_192);
                }
            }
            Self::Spoilt { seed, len, zeroes } => spoil(&mut file(), seed, len, zeroes),
            Self::SidecarRemoved => fs::remove_file(beside(path, "run")).unwrap(),
            Self::SidecarEmptied => File::create(beside(path, "run")).map(drop).unwrap(),
            Self::SidecarOlder => {
                let copy = beside(path, "copy");
                fs::copy(beside(older, "run"), &copy).unwrap();
                fs::rename(copy, beside(path, "run")).unwrap();
            }
            Self::ReserveRemoved => fs::remove_file(beside(path, "reserve")).unwrap(),
        }
    }
    /// The file is another one than the queue left: nothing more may be acknowledged.
    fn must_stop(self) -> bool {
        matches!(self, Self::CutToHalf | Self::CutToAPage | Self::CutToNothing | Self::RolledBack { .. })
    }
    fn may_open_plainly(self) -> bool {
        !self.must_stop() && self != Self::SidecarRemoved
    }
}

/// Three of four places are such as hold something.
fn spoil(file: &mut File, seed: u64, len: usize, zeroes: bool) {
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).unwrap();
    let mut places: Vec<usize> = (0..bytes.len() / len).map(|n| n * len).collect();
    if !seed.is_multiple_of(4) {
        places.retain(|at| bytes[*at..*at + len].iter().any(|b| *b != 0));
    }
    let at = places[rng.usize(..places.len())];
    let noise: Vec<u8> = (0..len).map(|_| if zeroes { 0 } else { rng.u8(..) }).collect();
    file.seek(SeekFrom::Start(at as u64)).unwrap();
    file.write_all(&noise).unwrap();
}

/// How it ended.
#[derive(Default, Debug)]
struct Ends {
    lives: u64,
    stopped: u64,
    refused: u64,
    reviewed: u64,
    plain: u64,
    errors: u64,
    asked: u64,
}

impl Ends {
    fn add(&mut self, one: &Self) {
        let Self { lives, stopped, refused, reviewed, plain, errors, asked } = one;
        let sums = [
            (&mut self.lives, lives),
            (&mut self.stopped, stopped),
            (&mut self.refused, refused),
            (&mut self.reviewed, reviewed),
            (&mut self.plain, plain),
            (&mut self.errors, errors),
            (&mut self.asked, asked),
        ];
        sums.into_iter().for_each(|(sum, n)| *sum += n);
    }
}

/// A closed queue that has done some work, to be copied: its folder, and what was told.
struct Base {
    folder: tempfile::TempDir,
    books: Books,
    truth: Truth,
}

impl Base {
    fn make() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let books = Arc::new(Books::default());
        let path = folder.path().join("q.redb");
        let mut life = Life {
            path,
            books: books.clone(),
            clock: ManualClock::default(),
            truth: Truth::default(),
            cache: CACHES[1],
        };
        let jobs = life.start(1).unwrap().unwrap();
        (0..ROWS_BEFORE).for_each(|n| assert!(life.row(&jobs, n).unwrap().is_none()));
        (0..ORDERS).for_each(|n| assert!(life.order(&jobs, n).unwrap().is_none()));
        (0..ORDERS).for_each(|n| life.done(&jobs, n).unwrap());
        jobs.shutdown(PATIENCE).unwrap();
        Self { folder, books: books.fork(), truth: life.truth }
    }
    fn path(&self) -> PathBuf {
        self.folder.path().join("q.redb")
    }
    fn life(&self, damage: Damage, moment: Moment, cache: usize, ends: &mut Ends) -> Result<(), String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("q.redb");
        fs::copy(self.path(), &path).unwrap();
        fs::copy(beside(&self.path(), "run"), beside(&path, "run")).unwrap();
        let books = Arc::new(self.books.fork());
        let mut life = Life { path, books, clock: ManualClock::default(), truth: self.truth.clone(), cache };
        ends.lives += 1;
        self.first(&mut life, damage, moment, ends)?;
        life.books.twice()?;
        self.second(&mut life, damage, ends)?;
        life.books.twice()
    }
    /// The process under which it happens.
    fn first(&self, life: &mut Life, damage: Damage, moment: Moment, ends: &mut Ends) -> Result<(), String> {
        let jobs = life.start(2)?.map_err(|e| e.to_string())?;
        let [acknowledged, open, later] = [ORDERS, ORDERS + 1, ORDERS + 2];
        life.order(&jobs, acknowledged)?;
        life.done(&jobs, acknowledged)?;
        life.row(&jobs, ROWS_BEFORE)?;
        let books = life.books.clone();
        match moment {
            Moment::Idle => {}
            Moment::BetweenCommits => books.handlers.shut(),
            Moment::InsideAnEffect => books.calls.shut(),
        }
        if moment != Moment::Idle {
            life.order(&jobs, open)?;
            let gate = if moment == Moment::InsideAnEffect { &books.calls } else { &books.handlers };
            gate.wait_for(1);
        }
        damage.strike(&life.path, &self.path());
        ends.errors += life.look(&jobs)?;
        let told = [life.order(&jobs, later)?, life.row(&jobs, ROWS_BEFORE + 1)?];
        books.handlers.open();
        books.calls.open();
        if damage.must_stop() {
            let [first, second] = told.map(|t| t.map_or_else(|| "taken".to_owned(), |e| e.to_string()));
            // Of the first one nobody knows: its commit may have been on its way.
            let in_doubt = first.contains("nobody knows") || first.contains("while it was open");
            if !in_doubt || !second.contains("while it was open") {
                return Err(format!("it goes on: {first}; {second}"));
            }
            ends.stopped += 1;
        } else if let (Damage::Spoilt { .. }, _) | (_, [None, None]) = (damage, &told) {
            let queue = jobs.clone();
            if let Some(id) = life.truth.orders.get(&later).copied() {
                let _told = patiently(&life.clock, move || queue.wait(id, SECOND))?;
            }
        } else {
            return Err(format!("it does not matter to the running queue, which says {told:?}"));
        }
        ends.errors += life.look(&jobs)?;
        match patiently(&life.clock, move || jobs.shutdown(PATIENCE))? {
            Ok(_) if damage.must_stop() => Err("it shut down as if nothing had happened".to_owned()),
            Ok(_) => Ok(()),
            Err(e) => readable(&e),
        }
    }
    /// The next one, with the file that is there, or where it is refused with the copy that a person puts in its place.
    fn second(&self, life: &mut Life, damage: Damage, ends: &mut Ends) -> Result<(), String> {
        let jobs = match life.start(3)? {
            Ok(jobs) => jobs,
            Err(e) => {
                readable(&e)?;
                ends.refused += 1;
                fs::copy(self.path(), beside(&life.path, "copy")).unwrap();
                fs::rename(beside(&life.path, "copy"), &life.path).unwrap();
                let jobs = life.start(4)?.map_err(|e| format!("the copy is refused: {e}"))?;
                if jobs.review().is_none() {
                    return Err("an older copy was taken for the newest".to_owned());
                }
                jobs
            }
        };
        if jobs.review().is_some() {
            ends.reviewed += 1;
            jobs.resume(Scope::All).map_err(|e| e.to_string())?;
            // It knows less than was acknowledged, and knows that.
            life.truth = Truth { orders: BTreeMap::new(), ..self.truth.clone() };
        } else if damage.may_open_plainly() {
            ends.plain += 1;
            let errors = life.look(&jobs)?;
            if errors > 0 {
                return Err(format!("{errors} errors in a file that was not refused"));
            }
        } else {
            return Err("it opens as if nothing had happened".to_owned());
        }
        let orders: Vec<u64> = (0..ORDERS + 3).collect();
        for n in &orders {
            if let Some(e) = life.order(&jobs, *n)? {
                return Err(format!("order {n} is not taken: {e}"));
            }
        }
        ends.asked += finish(life, &jobs, &orders)?;
        for (effect, order) in EFFECTS.iter().flat_map(|e| orders.iter().map(move |o| (e, o))) {
            if life.books.times(effect, *order) != 1 {
                return Err(format!("{effect} {order} happened {} times", life.books.times(effect, *order)));
            }
        }
        jobs.shutdown(PATIENCE).map(drop).map_err(|e| e.to_string())
    }
}

/// Every life, two at a time.
fn all(what: &str, lives: &[(Damage, Moment, usize)]) -> Ends {
    let (base, next) = (Base::make(), AtomicUsize::new(0));
    let came = Mutex::new((Ends::default(), Vec::new()));
    #[expect(clippy::disallowed_methods, reason = "two halves of a suite side by side")]
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while let Some((damage, moment, cache)) = lives.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let mut ends = Ends::default();
                    let life = base.life(*damage, *moment, *cache, &mut ends);
                    let mut came = came.lock().unwrap();
                    came.0.add(&ends);
                    if let Err(why) = life {
                        came.1.push(format!("{damage:?}, {moment:?}, {cache} bytes of cache: {why}"));
                    }
                }
            });
        }
    });
    let (ends, broken) = came.into_inner().unwrap();
    println!("under the running file: {what}: {ends:?}, {} violations", broken.len());
    assert!(broken.is_empty(), "{}", broken.join("\n"));
    assert_eq!(ends.lives, lives.len() as u64);
    ends
}

fn everywhere(damages: &[Damage]) -> Vec<(Damage, Moment, usize)> {
    let lives = damages.iter().flat_map(|d| MOMENTS.map(|m| (*d, m)));
    lives.flat_map(|(d, m)| CACHES.map(|c| (d, m, c))).collect()
}

/// The file is cut, or an older copy is written into it, under a queue that is idle, between two commits, inside an effect: nothing is
/// acknowledged any more, and the next start refuses it or knows that it is an older one.
#[test]
fn a_file_that_is_cut_or_rolled_back_in_place_stops_the_queue() {
    let cuts = [Damage::CutToHalf, Damage::CutToAPage, Damage::CutToNothing];
    let back = [false, true].map(|shorter| Damage::RolledBack { shorter });
    let cut = all("cut", &everywhere(&cuts));
    assert!(cut.stopped == cut.lives && cut.refused == cut.lives && cut.asked > 0);
    let back = all("rolled back in place", &everywhere(&back));
    assert!(back.stopped == back.lives && back.reviewed == back.lives && back.asked > 0);
}

/// A sector or a page of the open file is zeroed or overwritten with noise: whatever is read meanwhile is right or an error, and the next
/// start has everything or refuses it.
#[test]
fn a_page_that_is_spoilt_under_the_queue_is_never_read_as_a_value() {
    let seeds = std::env::var("ONCEWARD_FAULT_SEEDS").ok().and_then(|n| n.parse().ok()).unwrap_or(1);
    let lives: Vec<_> = (0..PLACES * seeds)
        .map(|seed| {
            let of = |n: u64, len: u64| usize::try_from(n % len).unwrap();
            let damage = Damage::Spoilt { seed, len: [512, 4_096][of(seed / 2, 2)], zeroes: seed.is_multiple_of(2) };
            (damage, MOMENTS[of(seed, 3)], CACHES[of(seed / 5, 2)])
        })
        .collect();
    let ends = all("spoilt", &lives);
    assert!(ends.refused > 0 && ends.plain > 0, "{ends:?}");
}

/// The sidecar is removed, emptied or replaced by an older one, the reserve removed: the running queue goes on, and the next start knows
/// everything, or knows that it may not.
#[test]
fn what_lies_beside_the_file_may_be_taken_away() {
    let ends = all(
        "beside the file",
        &everywhere(&[Damage::SidecarRemoved, Damage::SidecarEmptied, Damage::SidecarOlder, Damage::ReserveRemoved]),
    );
    assert!(ends.reviewed > 0 && ends.plain > 0 && ends.refused == 0, "{ends:?}");
}
