//! A soak: one file, one mix of work, one process after the other, each killed with SIGKILL somewhere; the clock runs fast, is set
//! and sleeps. Nothing is lost, nothing happens twice, and nothing grows: not the memory, threads and descriptors of a process, not
//! the file.
//!
//! `ONCEWARD_SOAK_SECS=3600 cargo test --test suite soak:: -- --nocapture` for an hour of it; without, a few lives bounded by what
//! was heard of them.
#![expect(clippy::disallowed_methods, reason = "a suite about processes: it starts, kills, waits for and times them")]

mod app;
mod child;
mod levels;
mod outside;
mod port;

use app::PATIENCE;
use outside::Outside;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// 2026-01-01T00:00:00Z.
const BEGAN: u64 = 1_767_225_600_000;
const HOUR_MS: u64 = 3_600_000;

/// Not a test: the process that the other one kills. Does nothing unless that one started it.
#[test]
fn child() {
    child::main();
}

/// How long a soak is.
enum Size {
    /// So many kills, each after so many facts; then a calm life of so many rests.
    Facts { kills: u64, rests: usize },
    /// So long, killed every so often, the last quarter calm.
    Time { whole: Duration, life: Duration },
}

impl Size {
    fn asked_for() -> Self {
        let Ok(secs) = std::env::var("ONCEWARD_SOAK_SECS") else { return Self::Facts { kills: 6, rests: 40 } };
        let whole = Duration::from_secs(secs.parse().expect("ONCEWARD_SOAK_SECS is a number"));
        Self::Time { whole, life: (whole / 12).min(Duration::from_secs(60)) }
    }
    /// Rounds between two rests.
    fn rounds(&self) -> u64 {
        match self {
            Self::Time { whole, .. } if *whole >= Duration::from_secs(600) => 8,
            Self::Facts { .. } | Self::Time { .. } => 1,
        }
    }
}

/// The queue runs for as long as it is asked to, is killed again and again, and its clock is set and sleeps: every job that was
/// acknowledged ends once, every effect happens once, the file forgets what is over, and in the end everything takes as much as it
/// did in the beginning.
#[test]
fn nothing_is_lost_or_repeated_and_nothing_grows() {
    let size = Size::asked_for();
    let dir = tempfile::tempdir().expect("a directory");
    let outside = Arc::new(Mutex::new(Outside::new(dir.path().join("q.redb"), BEGAN)));
    let mut rng = fastrand::Rng::with_seed(3);
    let began = Instant::now();
    let (mut lives, mut kills) = (0, 0);
    let ended = loop {
        let calm = match size {
            Size::Facts { kills: wanted, .. } => kills >= wanted,
            Size::Time { whole, .. } => began.elapsed() >= whole * 3 / 4,
        };
        let mut life = Life::start(dir.path(), &outside, size.rounds());
        lives += 1;
        if calm {
            life.until_enough(&size, began, &outside);
            break life.end();
        }
        life.until_killed(&size, began, &mut rng);
        kills += 1;
        dead_for_a_while(&mut outside.lock().expect("no panic holds it"), &mut rng);
    };
    let outside = outside.lock().expect("no panic holds it");
    levels::print(&outside.samples, BEGAN);
    let (verdict, rising) = (outside.judge(), levels::rising(&outside.samples));
    println!(
        "soak: {} s, {kills} kills in {lives} lives, {} jobs in {} rounds, {:.0} days by the calendar, {} samples, {} long lives; lost {}, repeated {}, rising {}; {:?}",
        began.elapsed().as_secs(),
        outside.acked,
        outside.counted("rounds"),
        (outside.wall - BEGAN) as f64 / (24 * HOUR_MS) as f64,
        outside.samples.len(),
        levels::long_lives(&outside.samples),
        verdict.lost.len(),
        verdict.repeated.len(),
        rising.len(),
        outside.counts
    );
    for found in verdict.lost.iter().chain(&verdict.repeated).take(50) {
        eprintln!("{found}");
    }
    assert_eq!((verdict.lost.len(), verdict.repeated.len()), (0, 0));
    assert!(rising.is_empty(), "{rising:#?}");
    assert!(ended, "the last child did not close its queue");
    assert!(kills >= 6 && levels::long_lives(&outside.samples) > 0, "hardly anything was tried");
    for tried in
        ["answers lost", "requests lost", "not sent", "refused", "keys known", "probes", "jump", "suspend", "outlasted"]
    {
        assert!(outside.counted(tried) > 0, "never seen: {tried}");
    }
}

/// Time passes between two processes, and somebody may set the calendar meanwhile.
fn dead_for_a_while(outside: &mut Outside, rng: &mut fastrand::Rng) {
    match rng.u8(0..4) {
        0 => {
            let back = if rng.bool() { HOUR_MS } else { 24 * HOUR_MS };
            outside.wall = outside.wall.saturating_sub(back).max(BEGAN);
            outside.steady = 0;
            outside.count("jump while dead");
        }
        _ => outside.wall += rng.u64(0..2 * HOUR_MS),
    }
}

/// A child, whoever answers it, and the first words of what it says.
struct Life {
    child: Child,
    answers: JoinHandle<()>,
    facts: Receiver<String>,
}

impl Life {
    /// Starts this test binary as a child, with one end of a pair of sockets as its standard input.
    fn start(dir: &Path, outside: &Arc<Mutex<Outside>>, rounds: u64) -> Self {
        let told = {
            let mut o = outside.lock().expect("no panic holds it");
            o.life += 1;
            format!("{}|{}|{}|{}|{rounds}", dir.display(), o.wall, o.steady, o.acked)
        };
        let (ours, theirs) = UnixStream::pair().expect("a pair of sockets");
        let child = Command::new(std::env::current_exe().expect("a test binary has a path"))
            .args(["--exact", "soak::child", "--nocapture", "--test-threads=1"])
            .env(child::CHILD, told)
            .stdin(OwnedFd::from(theirs))
            .stdout(Stdio::null())
            .spawn()
            .expect("a child starts");
        let (to, facts) = channel();
        let outside = outside.clone();
        let answers = std::thread::spawn(move || {
            let mut port = BufReader::new(ours);
            let mut line = String::new();
            // What a killed child had sent is still heard; only the last line may be cut.
            while port.read_line(&mut line).is_ok_and(|n| n > 0) && line.ends_with('\n') {
                let answer = outside.lock().expect("no panic holds it").hear(line.trim_end());
                // It may be dead by now.
                let _ = port.get_mut().write_all(format!("{answer}\n").as_bytes());
                let word = line.split([' ', '\n']).next().unwrap_or_default();
                let _ = to.send(word.to_owned());
                line.clear();
            }
        });
        Self { child, answers, facts }
    }

    /// The next thing it says; `None` if there is none in time.
    fn hear(&mut self, at_most: Duration) -> Option<String> {
        match self.facts.recv_timeout(at_most) {
            Ok(word) => Some(word),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => panic!("the child ended by itself: {:?}", self.child.wait()),
        }
    }
    fn hear_surely(&mut self) -> String {
        if let Some(word) = self.hear(PATIENCE) {
            return word;
        }
        let _ = self.child.kill();
        panic!("the child says nothing any more");
    }

    /// kill -9, at a drawn moment.
    fn until_killed(mut self, size: &Size, began: Instant, rng: &mut fastrand::Rng) {
        match *size {
            Size::Facts { .. } => {
                for _ in 0..rng.usize(60..220) {
                    self.hear_surely();
                }
            }
            Size::Time { whole, life } => {
                let at = (began.elapsed() + life * rng.u32(50..150) / 100).min(whole);
                while began.elapsed() < at {
                    self.hear_surely();
                }
            }
        }
        // Not a wait for luck: the kill falls somewhere within this time, or right after the next thing that happens.
        let _ = self.hear(Duration::from_micros(rng.u64(0..5_000)));
        self.child.kill().expect("a child can be killed");
        let status = self.child.wait().expect("a child ends");
        assert_eq!(status.signal(), Some(9), "the child ended by itself: {status}");
        self.answers.join().expect("the outside understood all of it");
    }

    /// Leaves it alone until it has run for long enough, and tells it so.
    fn until_enough(&mut self, size: &Size, began: Instant, outside: &Mutex<Outside>) {
        match *size {
            Size::Facts { rests, .. } => {
                for _ in 0..rests {
                    while self.hear_surely() != "rest" {}
                }
            }
            Size::Time { whole, .. } => {
                while began.elapsed() < whole {
                    self.hear_surely();
                }
            }
        }
        outside.lock().expect("no panic holds it").enough = true;
    }

    /// Whether it comes to its end by itself, and well.
    fn end(mut self) -> bool {
        while self.hear_surely() != "over" {}
        // Its end of the connection closes with it.
        if self.facts.recv_timeout(PATIENCE) == Err(RecvTimeoutError::Timeout) {
            self.child.kill().expect("a child can be killed");
        }
        let status = self.child.wait().expect("a child ends");
        self.answers.join().expect("the outside understood all of it");
        status.success()
    }
}
