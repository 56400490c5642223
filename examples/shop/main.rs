//! 40 orders, a payment company that loses answers, a warehouse without idempotency keys, and a process that is killed again and
//! again: once with the retry loop that everybody writes, once with onceward.
//!
//! ```text
//! cargo run --example shop                 to watch
//! cargo run --example shop -- --once       quick, as in CI
//! cargo run --example shop -- --seed 7     other faults, other crashes
//! ```
//! It ends with an error if onceward charged, reserved or booked anything twice, if an order is neither done nor waiting with a
//! question, or if the naive shop charged nobody twice (then it would have shown nothing).
#![expect(clippy::disallowed_methods, reason = "a program of its own: it has clocks, threads and a process to kill")]

pub(crate) mod client;
pub(crate) mod crash;
mod desk;
mod http;
mod naive;
pub(crate) mod plan;
mod provider;
mod run;
mod screen;
pub(crate) mod shop;
mod warehouse;

use client::Outside;
use plan::{ORDERS, Plan};
use run::{Seen, repeated};
use screen::{Colour, Screen};
use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What a shop's own process is told.
pub(crate) struct Child {
    plan: Plan,
    outside: Outside,
    dir: PathBuf,
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let ended = match arguments.first().map(String::as_str) {
        Some("child") => child(&arguments[1..]).map(|()| true),
        _ => parent(&arguments),
    };
    match ended {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(e) => {
            eprintln!("shop: {e}");
            ExitCode::FAILURE
        }
    }
}

fn child(arguments: &[String]) -> Result<(), Box<dyn Error>> {
    let [shop, seed, payments, warehouse, dir] = arguments else {
        return Err("this way the demo only starts itself".into());
    };
    let outside = Outside { payments: payments.parse()?, warehouse: warehouse.parse()? };
    let child = Child { plan: Plan::of(seed.parse()?), outside, dir: dir.into() };
    match shop.as_str() {
        "naive" => naive::run(&child),
        _ => shop::run(&child),
    }
}

fn parent(arguments: &[String]) -> Result<bool, Box<dyn Error>> {
    let (mut seed, mut once) = (1_u64, false);
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        match argument.as_str() {
            "--once" => once = true,
            "--seed" => seed = rest.next().ok_or("--seed needs a number")?.parse()?,
            other => return Err(format!("unknown argument {other}: there are --once and --seed N").into()),
        }
    }
    let latency = Duration::from_millis(if once { 0 } else { 60 });
    let watch = Instant::now();
    let plan = Arc::new(Plan::of(seed));
    let dir = tempfile::tempdir()?;
    let mut screen = Screen::new();
    screen.line(&format!(
        "shop demo: {ORDERS} orders, a payment company that loses 1 answer in 5, and a crash every few orders (seed {seed})"
    ));

    screen.line("\nnaive retries: try again until it works, write down what is done");
    let naive_dir = dir.path().join("naive");
    std::fs::create_dir(&naive_dir)?;
    let naive = run::run("naive", &plan, seed, latency, &naive_dir, &mut screen)?;

    screen.line("\nwith the ledger: the same orders, faults and crashes");
    let shop_dir = dir.path().join("onceward");
    std::fs::create_dir(&shop_dir)?;
    let ours = run::run("onceward", &plan, seed, latency, &shop_dir, &mut screen)?;
    let audit = desk::audit(&plan, &ours, &shop_dir)?;

    let proof = std::fs::read_to_string(shop::proof_log(&shop_dir))?;
    screen.line(&format!("\nproof log: {} lines, the last of them", proof.lines().count()));
    for line in proof.lines().rev().take(2) {
        screen.coloured(Colour::Dim, &format!("  {line}"));
    }

    let letters = audit.letters.len();
    screen.line("");
    row(&mut screen, "naive retries", &naive, None);
    row(&mut screen, "with the ledger", &ours, Some(letters));
    screen.line(&format!(
        "  {:<18} reopened in {} ms at most, {} jobs taken up again; {} receipts for {} orders done",
        "",
        ours.slowest_reopen_ms,
        ours.taken_up,
        ours.book.receipts.len(),
        audit.done
    ));
    screen.line(&format!("\n{letters} orders wait for you"));
    audit.letters.iter().for_each(|letter| desk::show(letter, &mut screen));
    screen.line("");

    let mut wrong = audit.wrong;
    if naive.charged_twice() == 0 {
        wrong.push("the naive shop charged nobody twice: this run shows nothing, try another seed".into());
    }
    if naive.kills == 0 || ours.kills == 0 {
        wrong.push("nobody was killed: this run shows nothing".into());
    }
    if letters == 0 {
        wrong.push("nobody is asked anything: a courier's lost answer must not be repeated".into());
    }
    wrong.iter().for_each(|w| screen.coloured(Colour::Red, &format!("wrong: {w}")));
    let verdict = if wrong.is_empty() { "ok" } else { "FAILED" };
    screen.line(&format!("{verdict} after {:.1} s", watch.elapsed().as_secs_f64()));
    Ok(wrong.is_empty())
}

/// What one shop did, for the comparison.
fn row(screen: &mut Screen, name: &str, seen: &Seen, asked: Option<usize>) {
    let twice = seen.charged_twice();
    let (colour, mark) = if twice == 0 { (Colour::Green, "ok") } else { (Colour::Red, "x") };
    let mark = screen.paint(colour, &format!("{mark:<2}"));
    let asked = asked.map(|n| format!("   {n} wait for you")).unwrap_or_default();
    let charged = seen.charges.len();
    screen.line(&format!(
        "  {name:<18} charged  {charged} times for {ORDERS} orders   {twice:>2} customers charged twice     {mark}{asked}"
    ));
    let twice = |book: &[u64]| repeated(book.iter().copied());
    screen.line(&format!(
        "  {:<18} reserved {} times, {:>2} twice; couriers booked {:>2} times, {} twice; killed {} times",
        "",
        seen.book.reservations.len(),
        twice(&seen.book.reservations),
        seen.book.pickups.len(),
        twice(&seen.book.pickups),
        seen.kills,
    ));
}

/// The shop's kinds, for JOB-SAFETY.md: registered as they run, with nobody outside.
#[allow(dead_code, reason = "a test renders the safety cards from it")]
pub(crate) fn registered(builder: onceward::Builder) -> onceward::Builder {
    let crash = crash::Crash::new(&Plan::of(1), &std::env::temp_dir().join("onceward-no-shop"));
    shop::registered(builder, Outside { payments: 0, warehouse: 0 }, &Arc::new(crash))
}
