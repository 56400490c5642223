//! What a process and its file take: measured while the child stands still, shown as one table, and compared. A level is flat if the
//! last third of the samples is not above the first third, once the process is warm, by more than its tolerance.

use std::path::Path;

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sample {
    pub(super) life: usize,
    pub(super) rounds: u64,
    pub(super) wall: u64,
    pub(super) jobs: u64,
    /// Jobs that are not over, and messages that are not delivered.
    pub(super) open: u64,
    /// Of the newest jobs, about.
    pub(super) rows: u64,
    /// KiB.
    pub(super) rss: u64,
    pub(super) threads: u64,
    pub(super) fds: u64,
    /// KiB.
    pub(super) file: u64,
}

/// Of a process and its file; zeroes where the system has no /proc.
pub(super) fn measure(pid: u64, file: &Path) -> Sample {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let field = |name: &str| {
        let line = status.lines().find_map(|l| l.strip_prefix(name));
        line.and_then(|l| l.split_whitespace().next()?.parse().ok()).unwrap_or(0)
    };
    let fds = std::fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, |all| all.count() as u64);
    let file = std::fs::metadata(file).expect("the file is there").len() / 1024;
    let sample = Sample { rss: field("VmRSS:"), threads: field("Threads:"), fds, file, ..Sample::default() };
    let seen = sample.rss > 0 && sample.threads > 0 && sample.fds > 0;
    assert!(seen || !cfg!(target_os = "linux"), "nothing was measured: {sample:?}");
    sample
}

/// One level: its name, how it is read, and what the last third may be above the first: so many hundredths, and so much.
type Level = (&'static str, fn(&Sample) -> u64, u64, u64);

const RSS: Level = ("resident memory, KiB", |s| s.rss, 30, 16 << 10);
const THREADS: Level = ("threads", |s| s.threads, 0, 0);
const FDS: Level = ("file descriptors", |s| s.fds, 0, 0);
const FILE: Level = ("size of the file, KiB", |s| s.file, 30, 4 << 10);

/// Samples of one life before its own levels are compared.
const LONG: usize = 30;

/// Every level that is not flat, over all lives and within each long one.
pub(super) fn rising(samples: &[Sample]) -> Vec<String> {
    let mut found: Vec<String> = [RSS, THREADS, FDS, FILE]
        .iter()
        .filter_map(|l| rises(samples, l))
        .map(|text| format!("all lives: {text}"))
        .collect();
    for life in samples.chunk_by(|a, b| a.life == b.life).filter(|life| life.len() >= LONG) {
        let within = [RSS, THREADS, FDS].iter().filter_map(|l| rises(life, l));
        found.extend(within.map(|text| format!("life {}: {text}", life[0].life)));
    }
    found
}

/// How many lives were long enough to be looked at by themselves.
pub(super) fn long_lives(samples: &[Sample]) -> usize {
    samples.chunk_by(|a, b| a.life == b.life).filter(|life| life.len() >= LONG).count()
}

fn rises(samples: &[Sample], (name, read, hundredths, more): &Level) -> Option<String> {
    let warm = &samples[samples.len() / 5..];
    let third = warm.len() / 3;
    assert!(third > 0, "{} samples are too few to compare", samples.len());
    let most = |part: &[Sample]| part.iter().map(read).max().unwrap_or(0);
    let (first, last) = (most(&warm[..third]), most(&warm[warm.len() - third..]));
    let allowed = first + first * hundredths / 100 + more;
    (last > allowed).then(|| format!("{name}: {first} in the first third, {last} in the last, {allowed} allowed"))
}

/// A row for each tenth of the run: where it stood at its end, and the most of it.
pub(super) fn print(samples: &[Sample], began: u64) {
    println!("       life  rounds  days by the calendar    jobs  open   rows   RSS MiB  threads  fds  file MiB");
    let part = samples.len().div_ceil(10).max(1);
    for (n, part) in samples.chunks(part).enumerate() {
        let most = |read: fn(&Sample) -> u64| part.iter().map(read).max().unwrap_or(0);
        let Some(last) = part.last() else { continue };
        println!(
            "  {:>2}  {:>5}  {:>6}  {:>20.1}  {:>6}  {:>4}  {:>5}  {:>8.1}  {:>7}  {:>3}  {:>8.1}",
            n + 1,
            last.life,
            last.rounds,
            (last.wall as f64 - began as f64) / 86_400_000.0,
            last.jobs,
            most(|s| s.open),
            most(|s| s.rows),
            most(|s| s.rss) as f64 / 1024.0,
            most(|s| s.threads),
            most(|s| s.fds),
            most(|s| s.file) as f64 / 1024.0
        );
    }
}

/// A comparison that cannot fail is none: a level that creeps up is found, over all lives or within one, and one that swings is not.
#[test]
fn a_level_that_rises_is_found() {
    let series = |of: fn(u64) -> Sample| -> Vec<Sample> { (0..100).map(of).collect() };
    let flat = |n: u64| Sample {
        rss: 50_000 + n % 7 * 1_000,
        threads: 12,
        fds: 9,
        file: 4_000 + n % 5 * 500,
        ..Sample::default()
    };
    assert_eq!(rising(&series(flat)), [""; 0]);
    let found = |of| rising(&series(of)).len();
    // Of one life: over all and within it.
    assert_eq!(found(|n| Sample { rss: 50_000 + n * 2_000, ..Sample::default() }), 2);
    assert_eq!(found(|n| Sample { threads: 12 + n / 60, ..Sample::default() }), 2);
    assert_eq!(found(|n| Sample { fds: 12 + n / 60, ..Sample::default() }), 2);
    assert_eq!(found(|n| Sample { file: 4_000 + n * 300, ..Sample::default() }), 1);
    // Of two lives, each of which begins anew: only within each.
    assert_eq!(found(|n| Sample { life: (n / 50) as usize, threads: 12 + n % 50 / 30, ..Sample::default() }), 2);
    assert_eq!(long_lives(&series(|n| Sample { life: (n / 50) as usize, ..Sample::default() })), 2);
}
