//! What the programs of this comparison share: the same payload, one line per figure, the process's own costs.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Bytes of payload in every job of every queue.
pub const PAYLOAD: usize = 128;

/// Where to work and how many jobs a figure rests on: `PROGRAM DIR JOBS [MORE..]`.
pub struct Args {
    pub dir: PathBuf,
    pub jobs: u64,
    pub more: Vec<String>,
}

impl Args {
    pub fn read() -> Self {
        let mut args = std::env::args().skip(1);
        let dir = args.next().expect("the first argument is a directory to work in").into();
        let jobs = args.next().and_then(|n| n.parse().ok()).expect("the second argument is a number of jobs");
        Self { dir, jobs, more: args.collect() }
    }
    /// A file that does not exist yet, nor anything that belongs to it.
    pub fn fresh(&self, name: &str) -> PathBuf {
        let path = self.dir.join(name);
        for ending in ["", "-wal", "-shm", "-journal", ".run"] {
            let _ = std::fs::remove_file(format!("{}{ending}", path.display()));
        }
        path
    }
}

/// One figure on one line, for `table.py`.
pub fn say(who: &str, metric: &str, value: f64) {
    println!("{who} {metric} {value:.1}");
}

/// Jobs per second of something that takes a while.
pub fn rate(jobs: u64, f: impl FnOnce()) -> f64 {
    let t = Instant::now();
    f();
    jobs as f64 / t.elapsed().as_secs_f64()
}

/// The values at 50 and 99 percent, in microseconds.
pub fn percentiles(mut times: Vec<Duration>) -> (f64, f64) {
    times.sort_unstable();
    let at = |percent: usize| times[(times.len() - 1) * percent / 100].as_secs_f64() * 1e6;
    (at(50), at(99))
}

/// A number from a file of the kernel about this process.
pub fn proc(file: &str, name: &str) -> u64 {
    let text = std::fs::read_to_string(Path::new("/proc/self").join(file)).unwrap_or_default();
    let line = text.lines().find(|l| l.starts_with(name)).unwrap_or_default();
    line.split_whitespace().nth(1).and_then(|n| n.parse().ok()).unwrap_or(0)
}

/// The most memory this process ever had, in KiB.
pub fn peak_kib() -> f64 {
    proc("status", "VmHWM:") as f64
}

/// Processor time of this process so far.
pub fn cpu() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let after = stat.rsplit(')').next().unwrap_or_default();
    let ticks: u64 = after.split_whitespace().skip(11).take(2).filter_map(|n| n.parse::<u64>().ok()).sum();
    Duration::from_millis(ticks * 10)
}

/// Processor time so far of the threads with this name.
pub fn cpu_of(name: &str) -> Duration {
    let Ok(tasks) = std::fs::read_dir("/proc/self/task") else { return Duration::ZERO };
    // The kernel keeps the first 15 bytes of a name.
    let name = &name[..name.len().min(15)];
    tasks
        .filter_map(|t| Some(t.ok()?.path()))
        .filter(|t| std::fs::read_to_string(t.join("comm")).is_ok_and(|comm| comm.trim_end() == name))
        .filter_map(|t| std::fs::read_to_string(t.join("schedstat")).ok()?.split_whitespace().next()?.parse().ok())
        .map(Duration::from_nanos)
        .sum()
}

/// How often a thread of this process gave up its core because it had nothing to do.
pub fn wakeups() -> u64 {
    let Ok(tasks) = std::fs::read_dir("/proc/self/task") else { return 0 };
    tasks
        .filter_map(|t| std::fs::read_to_string(t.ok()?.path().join("status")).ok())
        .filter_map(|s| s.lines().find(|l| l.starts_with("voluntary_ctxt_switches")).map(str::to_owned))
        .filter_map(|l| l.split_whitespace().nth(1)?.parse::<u64>().ok())
        .sum()
}
