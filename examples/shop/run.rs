//! The parent's side: opens the outside world, starts the shop as a child process, starts it again when it was killed, and draws
//! what it says.

use super::client::Outside;
use super::crash;
use super::plan::{ORDERS, Plan};
use super::provider::{Charge, Payments};
use super::screen::{self, Colour, Counts, Screen};
use super::warehouse::{Book, Warehouse};
use onceward::observe::{AttemptLine, parse_line};
use std::collections::BTreeMap;
use std::error::Error;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

/// What the outside world saw of one shop.
pub(crate) struct Seen {
    pub(crate) charges: Vec<Charge>,
    pub(crate) book: Book,
    pub(crate) kills: usize,
    pub(crate) slowest_reopen_ms: u64,
    pub(crate) taken_up: usize,
}

impl Seen {
    pub(crate) fn charged_twice(&self) -> usize {
        repeated(self.charges.iter().map(|c| c.order))
    }
}

/// How many orders occur more than once.
pub(crate) fn repeated(orders: impl Iterator<Item = u64>) -> usize {
    let mut times = BTreeMap::<u64, usize>::new();
    orders.for_each(|n| *times.entry(n).or_default() += 1);
    times.values().filter(|n| **n > 1).count()
}

/// Runs one shop against a world of its own until it has come to an end by itself.
pub(crate) fn run(
    name: &str,
    plan: &Arc<Plan>,
    seed: u64,
    latency: Duration,
    dir: &Path,
    screen: &mut Screen,
) -> Result<Seen, Box<dyn Error>> {
    let (payments, pay) = Payments::open(plan.clone(), latency)?;
    let (warehouse, ware) = Warehouse::open(plan.clone(), latency)?;
    let outside = Outside { payments: pay.port(), warehouse: ware.port() };
    let mut shown = Shown { screen, orders: BTreeMap::new(), opened_ms: 0, taken_up: 0, opening: false };
    let (mut kills, mut slowest_reopen_ms, mut taken_up) = (0, 0, 0);
    loop {
        shown.opening = kills > 0;
        shown.taken_up = 0;
        let mut child = Command::new(std::env::current_exe()?)
            .args(["child", name, &seed.to_string(), &outside.payments.to_string(), &outside.warehouse.to_string()])
            .arg(dir)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()?;
        let said = child.stdout.take().map(BufReader::new);
        for line in said.into_iter().flat_map(BufRead::lines) {
            let opened = shown.hear(&line?);
            if opened && kills > 0 {
                slowest_reopen_ms = slowest_reopen_ms.max(shown.opened_ms);
                taken_up += shown.taken_up;
                let again = repeated(payments.charges().iter().map(|c| c.order));
                shown.reopened(name, again);
            }
        }
        let ended = child.wait()?;
        if ended.success() {
            break;
        }
        let (order, deaths) = crash::last(dir);
        let Some(point) = order.and_then(|n| plan.crashes.get(&n)).filter(|_| deaths == kills + 1) else {
            shown.screen.end_progress();
            return Err(format!("the {name} shop ended by itself ({ended}), which was not planned").into());
        };
        kills = deaths;
        if name != "naive" {
            shown.screen.milestone();
        }
        let text = format!(" {}  process killed on purpose ({})", screen::now(), point.says());
        shown.screen.coloured(Colour::Yellow, &text);
    }
    shown.screen.end_progress();
    // Requests that are still under way land first: what came late counts too.
    drop((pay, ware));
    let book = warehouse.book().clone();
    Ok(Seen { charges: payments.charges(), book, kills, slowest_reopen_ms, taken_up })
}

/// What the child said so far, as it is drawn.
struct Shown<'a> {
    screen: &'a mut Screen,
    /// By order: how far it is, in a word.
    orders: BTreeMap<String, &'static str>,
    opened_ms: u64,
    /// Claims that the dead process left behind.
    taken_up: usize,
    opening: bool,
}

impl Shown<'_> {
    /// True for the news that the shop is open.
    fn hear(&mut self, said: &str) -> bool {
        match said.split_once(' ') {
            Some(("opened", ms)) => {
                self.opened_ms = ms.parse().unwrap_or(0);
                self.opening = false;
                self.draw();
                return true;
            }
            Some(("state", news)) => {
                if let Some((order, word)) = news.split_once(' ') {
                    self.orders.insert(format!("ord_{order}"), known(word));
                    self.draw();
                }
            }
            Some(("proof", line)) => match parse_line(line) {
                Ok(line) => self.attempt(&line),
                Err(bad) => self.screen.coloured(Colour::Red, &format!("{bad}: {line}")),
            },
            Some(_) | None => self.screen.line(said),
        }
        false
    }

    fn attempt(&mut self, line: &AttemptLine) {
        let outcome = line.outcome.as_str();
        if self.opening {
            self.taken_up += 1;
        }
        if line.kind == "complete-order" {
            self.orders.insert(line.job.clone(), known(outcome));
        }
        let first_and_fine = line.attempt == 1 && !line.continued && outcome == "success";
        if !first_and_fine && !self.opening {
            let colour = match outcome {
                "success" => Colour::Green,
                "needs-decision" | "dead" => Colour::Red,
                _ => Colour::Dim,
            };
            self.screen.coloured(colour, &screen::attempt(line));
        }
        self.draw();
    }

    fn reopened(&mut self, name: &str, charged_again: usize) {
        let text = match name {
            "naive" => format!(" {}  started again; {charged_again} customers charged twice so far", screen::now()),
            _ => format!(
                " {}  reopened in {} ms; {} jobs taken up again; {charged_again} charges repeated",
                screen::now(),
                self.opened_ms,
                self.taken_up
            ),
        };
        self.screen.coloured(Colour::Yellow, &text);
    }

    fn draw(&mut self) {
        let count = |word| self.orders.values().filter(|w| **w == word).count();
        let all = usize::try_from(ORDERS).unwrap_or(usize::MAX);
        self.screen.progress(Counts { all, done: count("done"), retrying: count("open"), asking: count("asks") });
    }
}

/// The few words that are counted.
fn known(word: &str) -> &'static str {
    match word {
        "done" | "success" => "done",
        "asks" | "needs-decision" | "dead" => "asks",
        "ready" => "ready",
        _ => "open",
    }
}
