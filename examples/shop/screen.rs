//! What the demo shows: lines, and one progress bar that stays at the bottom of a terminal. Elsewhere the bar is a line now and
//! then, and nothing is coloured; nor with NO_COLOR.

use onceward::observe::AttemptLine;
use std::io::{IsTerminal, Write, stdout};
use std::time::{SystemTime, UNIX_EPOCH};

const WIDTH: usize = 36;

#[derive(Clone, Copy)]
pub(crate) enum Colour {
    Plain,
    Dim,
    Green,
    Yellow,
    Red,
}

/// How many orders are how far.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) all: usize,
    pub(crate) done: usize,
    pub(crate) retrying: usize,
    pub(crate) asking: usize,
}

pub(crate) struct Screen {
    terminal: bool,
    colours: bool,
    bar: Option<Counts>,
    /// The bar stands in the present line of the terminal.
    drawn: bool,
    /// The last bar that was printed as a line.
    printed: Counts,
}

impl Screen {
    pub(crate) fn new() -> Self {
        let terminal = stdout().is_terminal();
        let colours = terminal && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty());
        Self { terminal, colours, bar: None, drawn: false, printed: Counts::default() }
    }
    pub(crate) fn line(&mut self, text: &str) {
        self.coloured(Colour::Plain, text);
    }
    pub(crate) fn coloured(&mut self, colour: Colour, text: &str) {
        let text = self.paint(colour, text);
        self.write(&format!("{text}\n"));
    }
    pub(crate) fn paint(&self, colour: Colour, text: &str) -> String {
        let code = match colour {
            Colour::Plain => return text.to_owned(),
            Colour::Dim => 2,
            Colour::Green => 32,
            Colour::Yellow => 33,
            Colour::Red => 31,
        };
        if self.colours { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }
    /// Shows how far it is.
    pub(crate) fn progress(&mut self, counts: Counts) {
        if self.bar != Some(counts) {
            self.bar = Some(counts);
            self.write("");
        }
    }
    /// On a terminal the bar is there already.
    pub(crate) fn milestone(&mut self) {
        if let Some(counts) = self.bar.filter(|c| !self.terminal && *c != self.printed) {
            self.printed = counts;
            let text = format!("{}\n", bar(counts));
            self.write(&text);
        }
    }
    /// The bar stays where it is; what follows comes below it.
    pub(crate) fn end_progress(&mut self) {
        self.milestone();
        self.bar = None;
        if std::mem::take(&mut self.drawn) {
            self.write("\n");
        }
        self.printed = Counts::default();
    }

    fn write(&mut self, text: &str) {
        let mut out = stdout().lock();
        let clear = if self.drawn { "\r\x1b[2K" } else { "" };
        let bar = self.bar.filter(|_| self.terminal).map(bar);
        self.drawn = bar.is_some();
        // A closed pipe (head, less) is no reason to fail: the exit code tells.
        let _ = write!(out, "{clear}{text}{}", bar.unwrap_or_default()).and_then(|()| out.flush());
    }
}

fn bar(c: Counts) -> String {
    let full = (c.done + c.asking) * WIDTH / c.all.max(1);
    let (full, empty) = ("#".repeat(full), ".".repeat(WIDTH - full));
    format!("orders  [{full}{empty}] {} done  {} retrying  {} need a decision", c.done, c.retrying, c.asking)
}

/// One attempt, for a person.
pub(crate) fn attempt(line: &AttemptLine) -> String {
    let time = line.to_string().get(11..19).unwrap_or_default().to_owned();
    let mut text = format!(" {time}  {}/{:<7} attempt {}  ", line.kind, line.job, line.attempt);
    for (effect, id) in &line.notes {
        // The provider's answer is news in this claim, or it was on record and nobody was called.
        let how = if line.operation.contains(id) { "done" } else { "already done (skipped)" };
        text += &format!(" {effect}: {how}  ");
    }
    match (line.outcome.as_str(), &line.error) {
        ("success", _) => text += " done",
        (outcome, None) => text += &format!(" {outcome}"),
        (outcome, Some(error)) => text += &format!(" {outcome}: {error}"),
    }
    text
}

/// The time of day (UTC), as in the lines above.
pub(crate) fn now() -> String {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs()) % 86_400;
    format!("{:02}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60)
}
