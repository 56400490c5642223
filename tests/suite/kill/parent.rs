//! Starting, hearing and killing a child.

use super::PATIENCE;
use super::child::CHILD;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

/// When to kill a child.
pub(super) struct Aim {
    /// The line to wait for: its first word.
    pub(super) line: String,
    /// The how-many-th of them.
    pub(super) nth: usize,
    /// Then at most so much longer: in the middle of whatever it does then.
    pub(super) micros: u64,
}

/// A child and what it says.
pub(crate) struct Life {
    pub(crate) child: Child,
    lines: Receiver<String>,
    said: Vec<String>,
}

impl Life {
    /// Starts this test binary as a child.
    pub(crate) fn start(what: &str) -> Self {
        let mut child = Command::new(std::env::current_exe().expect("a test binary has a path"))
            .args(["--exact", "kill::child", "--nocapture", "--test-threads=1"])
            .env(CHILD, what)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a child starts");
        let out = BufReader::new(child.stdout.take().expect("its output is a pipe"));
        let (to, lines) = channel();
        std::thread::spawn(move || {
            for line in out.split(b'\n').map_while(Result::ok) {
                let line = String::from_utf8_lossy(&line).into_owned();
                // Whoever listened may have seen enough.
                if let Some(said) = line.strip_prefix('@') {
                    let _ = to.send(said.to_owned());
                }
            }
        });
        Self { child, lines, said: Vec::new() }
    }
    /// The next line; `None` when the child is over and everything it said was heard.
    pub(crate) fn hear(&mut self) -> Option<String> {
        match self.within(PATIENCE) {
            Ok(line) => line,
            Err(()) => {
                let _ = self.child.kill();
                panic!("the child says nothing any more; its last lines: {:#?}", self.last());
            }
        }
    }
    /// The next line, if there is one in time: `Err` when there was none.
    pub(crate) fn within(&mut self, at_most: Duration) -> Result<Option<String>, ()> {
        match self.lines.recv_timeout(at_most) {
            Ok(line) => {
                self.said.push(line.clone());
                Ok(Some(line))
            }
            Err(RecvTimeoutError::Disconnected) => Ok(None),
            Err(RecvTimeoutError::Timeout) => Err(()),
        }
    }
    /// Whether the moment came.
    pub(super) fn wait_for(&mut self, aim: &Aim) -> bool {
        let mut seen = 0;
        while let Some(line) = self.hear() {
            seen += usize::from(line.split(' ').next() == Some(&aim.line));
            if seen == aim.nth {
                // Not a wait for luck: the kill falls somewhere within this time, or right after the next thing that happens.
                let _ = self.within(Duration::from_micros(aim.micros));
                return true;
            }
        }
        false
    }
    /// kill -9. What it said before is still in the pipe.
    pub(crate) fn kill(&mut self) {
        self.child.kill().expect("a child can be killed");
    }
    /// How it ended, after its last line; and all its lines.
    pub(crate) fn end(mut self) -> (std::process::ExitStatus, Vec<String>) {
        while self.hear().is_some() {}
        (self.child.wait().expect("a child ends"), self.said)
    }
    pub(crate) fn last(&self) -> &[String] {
        &self.said[self.said.len().saturating_sub(20)..]
    }
}
