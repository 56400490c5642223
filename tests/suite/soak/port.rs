//! The child's end of the connection to its parent, where the providers and everything that has to be remembered live: what the
//! child keeps itself would be taken for a leak. One line asks, one line answers; a kill cuts it anywhere.

use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Mutex;

pub(super) struct Port(Mutex<BufReader<UnixStream>>);

impl Port {
    /// The parent hands it over as standard input.
    pub(super) fn open() -> Self {
        let end = std::io::stdin().as_fd().try_clone_to_owned().expect("standard input is open");
        Self(Mutex::new(BufReader::new(UnixStream::from(end))))
    }
    pub(super) fn ask(&self, line: &str) -> String {
        let mut port = self.0.lock().expect("no panic holds it");
        port.get_mut().write_all(format!("{line}\n").as_bytes()).expect("the parent listens");
        let mut answer = String::new();
        port.read_line(&mut answer).expect("the parent answers");
        assert!(answer.ends_with('\n'), "the parent is gone");
        answer.trim_end().to_owned()
    }
    /// The parent knows it when this returns.
    pub(super) fn tell(&self, line: &str) {
        assert_eq!(self.ask(line), "ok", "{line}");
    }
    /// What the provider says of a charge or a mail.
    pub(super) fn find(&self, effect: &str, n: u64) -> Option<String> {
        self.ask(&format!("find {effect} {n}")).strip_prefix("ok ").map(str::to_owned)
    }
}
