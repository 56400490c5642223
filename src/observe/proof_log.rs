//! Sinks: who is given a line for every claim. [`ProofLog`] appends them to a file.
//!
//! Keeps the promise that no line is torn or lost in silence: what cannot be written is held back, said once and, past a bound,
//! counted and marked in the file itself. Lines are written after the commit and not synced: the truth is the job's history in
//! the database, the log is what a person reads. Called by [`Observer`](super::Observer).

use super::escape::Value;
use super::events;
use super::line::AttemptLine;
use super::stamp::Zone;
use parking_lot::Mutex;
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::Path;

/// Is given the line of every claim, after its end is durable, in the order of the commits.
///
/// Called on the thread that reports commits: be quick, do not call back into the queue. A panic is caught and reported.
pub trait Sink: Send + Sync {
    /// One line.
    fn attempt(&self, line: &AttemptLine);
    /// The lines of one commit; by default one after the other.
    fn attempts(&self, lines: &[AttemptLine]) {
        for line in lines {
            self.attempt(line);
        }
    }
}

/// Appends each line to a file, the lines of one commit in one write.
///
/// The file is created for its owner alone (mode 0600 on unix); the mode of an existing file is left as it is. It may be moved
/// away at a restart, or cut to nothing in place at any time. A line that begins with `#` marks a place where lines were lost.
pub struct ProofLog {
    zone: Zone,
    file: Mutex<Tail>,
}

/// Held-back bytes at most; past them, whole lines are dropped, counted and marked.
const HELD_BACK_MAX: usize = 1 << 20;

struct Tail {
    out: Box<dyn Write + Send>,
    /// Whole lines, except that the first may be the rest of one that was cut by an error.
    pending: Vec<u8>,
    /// Lines that found no room since the last mark in the file.
    unmarked: u64,
    lost: u64,
    error: Option<io::Error>,
}

impl ProofLog {
    /// Opens or creates the file, to append. If its last line was cut by a crash, a newline is added first.
    pub fn open(path: impl AsRef<Path>) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        options.read(true).append(true).create(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let mut file = options.open(path)?;
        let cut = is_cut(&mut file)?;
        let log = Self::over(Box::new(file));
        if cut {
            log.file.lock().pending.push(b'\n');
        }
        Ok(log)
    }
    /// Writes times with the offset of this machine's zone instead of UTC.
    #[cfg(feature = "jiff")]
    pub fn local_offset(mut self) -> Self {
        self.zone = Zone::local();
        self
    }
    /// Lines that were dropped because the file could not be written for too long.
    pub fn lost_lines(&self) -> u64 {
        self.file.lock().lost
    }

    fn over(out: Box<dyn Write + Send>) -> Self {
        let tail = Tail { out, pending: Vec::new(), unmarked: 0, lost: 0, error: None };
        Self { zone: Zone::utc(), file: Mutex::new(tail) }
    }
}

impl Sink for ProofLog {
    fn attempt(&self, line: &AttemptLine) {
        self.attempts(std::slice::from_ref(line));
    }
    fn attempts(&self, lines: &[AttemptLine]) {
        let mut tail = self.file.lock();
        if tail.error.is_some() {
            // There may be room again: then these lines need not share the fate of those before them.
            tail.flush();
        }
        for line in lines {
            tail.add(line.render(&self.zone));
        }
        tail.flush();
    }
}

/// What was held back gets a last chance.
impl Drop for ProofLog {
    fn drop(&mut self) {
        let tail = self.file.get_mut();
        tail.flush();
        let unwritten = tail.pending.iter().filter(|b| **b == b'\n').count();
        let lost = u64::try_from(unwritten).unwrap_or(u64::MAX).saturating_add(tail.unmarked);
        if lost > 0 {
            events::lines_lost(lost, true);
        }
    }
}

impl Tail {
    fn add(&mut self, line: String) {
        // Once a line is lost the following ones are too, until the file can be written: the mark stands where the gap is.
        if self.unmarked > 0 || self.pending.len() + line.len() >= HELD_BACK_MAX {
            self.unmarked = self.unmarked.saturating_add(1);
            self.lost = self.lost.saturating_add(1);
        } else {
            self.pending.extend_from_slice(line.as_bytes());
            self.pending.push(b'\n');
        }
    }
    fn flush(&mut self) {
        let result = self.drain();
        if let Err(error) = result {
            if self.error.is_none() {
                events::lines_held_back(&error);
            }
            self.error = Some(error);
            return;
        }
        let Some(error) = self.error.take() else { return };
        events::lines_lost(self.unmarked, false);
        if self.unmarked > 0 {
            let mark = format!("# {} lines lost here, error={}\n", self.unmarked, Value(&error.to_string()));
            self.pending.extend_from_slice(mark.as_bytes());
            self.unmarked = 0;
            if let Err(error) = self.drain() {
                events::lines_held_back(&error);
                self.error = Some(error);
            }
        }
    }
    /// One write for everything pending. After a short one goes on exactly where it ended, so no line is torn or doubled.
    fn drain(&mut self) -> io::Result<()> {
        let mut written = 0;
        let result = loop {
            if written == self.pending.len() {
                break self.out.flush();
            }
            match self.out.write(&self.pending[written..]) {
                Ok(0) => break Err(ErrorKind::WriteZero.into()),
                Ok(n) => written += n,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => break Err(e),
            }
        };
        self.pending.drain(..written);
        result
    }
}

/// Whether the file ends in the middle of a line.
fn is_cut(file: &mut File) -> io::Result<bool> {
    // A pipe or terminal has no end to look at.
    if !file.metadata()?.is_file() || file.seek(SeekFrom::End(0))? == 0 {
        return Ok(false);
    }
    let mut last = [0];
    file.seek(SeekFrom::End(-1))?;
    file.read_exact(&mut last)?;
    Ok(last != *b"\n")
}

#[cfg(test)]
mod tests {
    use super::super::events::tests::heard;
    use super::super::line::parse_line;
    use super::*;
    use crate::model::attempt::Outcome;
    use crate::model::id::JobId;
    use crate::model::time::Wall;
    use std::sync::Arc;
    use tracing::Level;

    fn line(n: u64) -> AttemptLine {
        AttemptLine::new(Wall(n * 1000), "k", &format!("key {n}"), JobId(n), 1, Outcome::Success)
    }

    /// The numbers of the lines in a file, which must all be whole.
    fn numbers(text: &str) -> Vec<u64> {
        assert!(text.is_empty() || text.ends_with('\n'));
        let read = |l: &str| parse_line(l).map(|line| line.id.number());
        text.lines().filter(|l| !l.starts_with('#')).map(|l| read(l).unwrap_or_else(|e| panic!("{e}: {l}"))).collect()
    }

    /// Room for so many bytes, then errors: a full disk. Counts the calls.
    #[derive(Clone, Default)]
    struct Disk(Arc<Mutex<(Vec<u8>, usize, usize)>>);

    impl Disk {
        fn with_room(room: usize) -> Self {
            Self(Arc::new(Mutex::new((Vec::new(), room, 0))))
        }
        fn make_room(&self, room: usize) {
            self.0.lock().1 = room;
        }
        fn text(&self) -> String {
            String::from_utf8_lossy(&self.0.lock().0).into_owned()
        }
    }

    impl Write for Disk {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let (stored, room, calls) = &mut *self.0.lock();
            *calls += 1;
            let n = bytes.len().min(*room);
            if n == 0 {
                return Err(ErrorKind::StorageFull.into());
            }
            stored.extend_from_slice(&bytes[..n]);
            *room -= n;
            Ok(n)
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// An app starts twice on the same file: the log goes on, and only its owner can read it.
    #[test]
    fn a_log_is_private_and_goes_on_after_a_restart() -> io::Result<()> {
        let dir = tempfile::tempdir()?;
        let path = dir.path().join("proof.log");
        for n in [1, 2] {
            ProofLog::open(&path)?.attempt(&line(n));
        }
        assert_eq!(numbers(&std::fs::read_to_string(&path)?), [1, 2]);
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            assert_eq!(std::fs::metadata(&path)?.permissions().mode() & 0o777, 0o600);
        }
        Ok(())
    }

    /// The process died in the middle of a line: the next one does not continue it.
    #[test]
    fn a_line_cut_by_a_crash_spoils_no_other() -> io::Result<()> {
        let dir = tempfile::tempdir()?;
        let path = dir.path().join("proof.log");
        std::fs::write(&path, "1970-01-01T00:00:00Z job=a att")?;
        ProofLog::open(&path)?.attempt(&line(1));
        let text = std::fs::read_to_string(&path)?;
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines, ["1970-01-01T00:00:00Z job=a att", line(1).to_string().as_str()]);
        Ok(())
    }

    /// Many jobs end in one commit: one write for all their lines.
    #[test]
    fn the_lines_of_a_commit_are_one_write() {
        let disk = Disk::with_room(usize::MAX);
        let log = ProofLog::over(Box::new(disk.clone()));
        log.attempts(&[line(1), line(2), line(3)]);
        assert_eq!(numbers(&disk.text()), [1, 2, 3]);
        assert_eq!(disk.0.lock().2, 1);
    }

    /// The disk is full in the middle of a line, then there is room again: every line is there, once and whole.
    #[test]
    fn a_full_disk_loses_and_doubles_no_line() {
        let one = line(1).to_string().len() + 1;
        let mut tried = 0;
        for room in 0..one * 3 {
            let disk = Disk::with_room(room);
            let log = ProofLog::over(Box::new(disk.clone()));
            let events = heard(|| {
                (1..=4).for_each(|n| log.attempt(&line(n)));
                disk.make_room(usize::MAX);
                log.attempt(&line(5));
                drop(log);
            });
            assert_eq!(numbers(&disk.text()), [1, 2, 3, 4, 5], "room for {room} bytes");
            let levels: Vec<_> = events.iter().map(|e| e.level).collect();
            assert_eq!(levels, [Level::ERROR, Level::INFO], "said once, and that it is over");
            tried += 1;
        }
        println!("{tried} places at which the disk was full");
        assert!(tried > 200);
    }

    /// The disk stays full for so long that memory would fill up: what is dropped is counted, said and marked in the file.
    #[test]
    fn lines_past_the_bound_are_counted_and_marked() {
        let disk = Disk::with_room(0);
        let log = ProofLog::over(Box::new(disk.clone()));
        let mut big = line(1);
        big.error = Some("x".repeat(HELD_BACK_MAX / 4));
        let events = heard(|| {
            (0..6).for_each(|_| log.attempt(&big));
            assert_eq!(log.lost_lines(), 3);
            disk.make_room(usize::MAX);
            log.attempt(&line(2));
            log.attempt(&line(3));
        });
        let text = disk.text();
        assert_eq!(numbers(&text), [1, 1, 1, 2, 3]);
        let marks: Vec<_> = text.lines().skip(3).take(1).collect();
        assert_eq!(
            marks,
            [format!("# 3 lines lost here, error={}", Value(&io::Error::from(ErrorKind::StorageFull).to_string()))]
        );
        assert_eq!(log.lost_lines(), 3);
        assert_eq!(events.last().map(|e| e.fields["lost"].as_str()), Some("3"));
    }

    /// The app ends while the disk is still full: it is said how many lines never reached the file.
    #[test]
    fn lines_unwritten_at_the_end_are_said() {
        let log = ProofLog::over(Box::new(Disk::with_room(10)));
        log.attempt(&line(1));
        log.attempt(&line(2));
        let events = heard(|| drop(log));
        assert_eq!(events.last().map(|e| e.fields["lost"].as_str()), Some("2"));
    }

    /// A log with local times: the same instants, whatever the zone of this machine.
    #[cfg(feature = "jiff")]
    #[test]
    fn local_times_name_the_same_instants() -> io::Result<()> {
        let dir = tempfile::tempdir()?;
        let path = dir.path().join("proof.log");
        ProofLog::open(&path)?.local_offset().attempt(&line(3));
        let text = std::fs::read_to_string(&path)?;
        assert!(!text.contains('Z'), "{text}");
        assert_eq!(parse_line(text.trim_end()), Ok(line(3)));
        Ok(())
    }

    /// A directory in the way, or a path that does not exist: an error at open, not at the first line.
    #[test]
    fn a_wrong_path_is_refused_at_open() -> io::Result<()> {
        let dir = tempfile::tempdir()?;
        assert!(ProofLog::open(dir.path()).is_err());
        assert!(ProofLog::open(dir.path().join("no/such/dir")).is_err());
        Ok(())
    }
}
