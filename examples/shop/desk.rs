//! After the last process has ended: the file is opened by somebody who runs nothing, to audit every order against the providers'
//! books and to read the letters.

use super::plan::Plan;
use super::run::Seen;
use super::screen::{Colour, Screen};
use super::shop::{self, CompleteOrder, PAID};
use onceward::redb::ReadableTable;
use onceward::{DeadLetter, Enqueued, Jobs, State};
use std::collections::BTreeMap;
use std::error::Error;
use std::path::Path;
use std::time::Duration;

/// What is true in the end.
pub(crate) struct Audit {
    pub(crate) done: usize,
    pub(crate) letters: Vec<DeadLetter>,
    /// Broken promises, in words.
    pub(crate) wrong: Vec<String>,
}

pub(crate) fn audit(plan: &Plan, seen: &Seen, dir: &Path) -> Result<Audit, Box<dyn Error>> {
    let jobs = Jobs::open(shop::file(dir)).workers(0).start()?;
    let paid = jobs.read(|tables| -> Result<BTreeMap<u64, String>, Box<dyn Error>> {
        let mut paid = BTreeMap::new();
        for row in tables.open_table(PAID)?.iter()? {
            let (order, charge) = row?;
            paid.insert(order.value(), charge.value().to_owned());
        }
        Ok(paid)
    })??;
    let letters = jobs.dead_letters()?;
    let (mut done, mut wrong) = (0, Vec::new());
    for order in &plan.orders {
        let n = order.number;
        let charges: Vec<_> = seen.charges.iter().filter(|c| c.order == n).collect();
        let times = |book: &[u64]| book.iter().filter(|o| **o == n).count();
        let (reserved, couriers) = (times(&seen.book.reservations), times(&seen.book.pickups));
        let mut check = |ok: bool, what: &str| {
            if !ok {
                wrong.push(format!("order {n}: {what}"));
            }
        };
        check(charges.len() <= 1, "charged more than once");
        check(reserved <= 1, "reserved more than once");
        check(couriers <= 1, "more than one courier was booked");
        check(charges.iter().all(|c| c.cents == order.cents), "another amount was charged");
        let recorded = paid.get(&n) == charges.first().map(|c| &c.id);
        match jobs.enqueue(&CompleteOrder(order.clone()))? {
            Enqueued::Existing { state: State::Done, .. } => {
                done += 1;
                check(charges.len() == 1 && recorded, "done, and the charge and its record differ");
                check(reserved == 1, "done, and nothing is reserved");
                check(couriers == usize::from(order.express), "done, and the courier is not as ordered");
                check(times(&seen.book.receipts) >= 1, "done, and no receipt was sent");
            }
            Enqueued::Existing { id, state: State::NeedsDecision, .. } => {
                let letter = letters.iter().find(|l| l.job() == id);
                let named = letter.is_some_and(|l| l.questions().iter().any(|q| q.effect().is_some()));
                check(named, "waits for a person without a question about an effect");
            }
            Enqueued::Existing { state, .. } => {
                check(false, &format!("neither done nor waiting for a person: {state:?}"))
            }
            Enqueued::New(_) => check(false, "it was lost"),
        }
    }
    jobs.shutdown(Duration::from_secs(5))?;
    Ok(Audit { done, letters, wrong })
}

/// A letter as a person may read it.
pub(crate) fn show(letter: &DeadLetter, screen: &mut Screen) {
    screen.line("");
    screen.coloured(Colour::Yellow, &format!("  {}: {}", letter.key(), letter.headline()));
    screen.line(&format!("    why you are asked   {} ({})", letter.why().says(), letter.error()));
    for line in letter.ledger() {
        let state = line.standing();
        let reference = line.reference.as_deref().map(|r| format!(" ({r})")).unwrap_or_default();
        screen.line(&format!("    {:<19} {}{reference}", state, line.says));
        if let Some((place, how)) = line.look_up.as_ref().filter(|_| state == "not sure") {
            screen.line(&format!("    how to find out     {place}: {how}"));
        }
    }
    letter.not_begun().iter().for_each(|name| screen.line(&format!("    {:<19} {name}", "not yet")));
    for choice in letter.choices() {
        screen.line(&format!("    you may say         {}", choice.label));
        choice.will.iter().for_each(|w| screen.coloured(Colour::Dim, &format!("                          then {w}")));
        choice
            .will_not
            .iter()
            .for_each(|w| screen.coloured(Colour::Dim, &format!("                          but not that {w}")));
    }
}
