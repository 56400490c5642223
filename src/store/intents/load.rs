//! Reads the index of intents back into memory, when a file is opened and after a heal. Keeps the promise that a damaged part harms
//! nothing beside it: a damaged row of the newest entries is made anew from the jobs, and so are the bits of a damaged page in the
//! filter of its run, so that nobody takes what is on it for new, and every other key is as before.

use super::super::codec::RunCard;
use super::super::error::StoreError;
use super::super::read::Rows;
use super::super::schema::Source;
use super::filter::Filter;
use super::look::page_of;
use super::memory::{Memory, Output, Run, Sizes, State};
use super::page::Entry;
use super::tail::Tail;
use redb::ReadableTable;
use std::ops::RangeInclusive;

/// The index as the file has it, and in words what of it could not be read.
pub(crate) fn load<S: Source>(
    rows: &Rows<'_, S>,
    key: [u8; 16],
    sizes: Sizes,
) -> Result<(Memory, Vec<String>), StoreError> {
    let memory = Memory::new(key, sizes);
    let mut unreadable = Vec::new();
    let mut state = State { tail: tail(rows, &mut unreadable)?, ..State::default() };
    let mut begun = Vec::new();
    for row in rows.tables.id_run.read(rows.tx)?.iter()? {
        let (id, value) = row?;
        let id = id.value();
        let (card, run, output) = match rows.value::<RunCard>(value.value(), &|| format!("card of run {id}")) {
            Ok(card) => {
                let (run, output) = pages(rows, id, &card, &mut unreadable)?;
                (card, run, output)
            }
            // Nothing says what it is good for: it is asked for ever, and never merged.
            Err(StoreError::Corrupt { what }) => {
                unreadable.push(what);
                let run = Run { jobs: 0..u64::MAX, entries: 0, filter: None, damaged: true, dead: false };
                (RunCard::default(), run, Output { run: id, last: None, entries: 0 })
            }
            Err(e) => return Err(e),
        };
        state.runs.insert(id, run);
        if !card.inputs.is_empty() {
            begun.push((card.inputs, output));
        }
    }
    for (inputs, output) in begun {
        state.carry_on(inputs, output, &memory.sizes);
    }
    state.plan(&memory.sizes);
    *memory.state.write() = state;
    Ok((memory, unreadable))
}

/// The newest entries.
fn tail<S: Source>(rows: &Rows<'_, S>, unreadable: &mut Vec<String>) -> Result<Tail, StoreError> {
    let first = rows.tables.fresh.read(rows.tx)?.first()?.map(|(k, _)| k.value());
    let mut tail = Tail::new(match first {
        Some(first) => first,
        None => rows.last_number()?.saturating_add(1),
    });
    rows.each_fresh(&mut |e| tail.push(e), &mut |what| unreadable.push(what))?;
    tail.settle();
    Ok(tail)
}

/// Reads all pages of a run: its filter, whether it is damaged, and how far it is written.
fn pages<S: Source>(
    rows: &Rows<'_, S>,
    id: u64,
    card: &RunCard,
    unreadable: &mut Vec<String>,
) -> Result<(Run, Output), StoreError> {
    let mut filter = Filter::new(card.entries);
    let mut output = Output { run: id, last: None, entries: 0 };
    // The hashes that a page which cannot be read may have.
    let mut hidden: Vec<RangeInclusive<u64>> = Vec::new();
    let mut open = None;
    for row in rows.tables.id_page.read(rows.tx)?.range((id, 0, 0)..=(id, u64::MAX, u64::MAX))? {
        let (key, value) = row?;
        let hash = key.value().1;
        hidden.extend(open.take().map(|from| from..=hash));
        match page_of(key.value(), value.value()) {
            Ok(page) => {
                for entry in page.entries() {
                    filter.add(entry.hash);
                    output.last = Some(entry);
                    output.entries += 1;
                }
            }
            Err(StoreError::Corrupt { what }) => {
                open = Some(hash);
                unreadable.push(what);
            }
            Err(e) => return Err(e),
        }
    }
    hidden.extend(open.map(|from| from..=u64::MAX));
    let damaged = !hidden.is_empty();
    let mut known = true;
    if damaged {
        // What is on such a page follows from the jobs: only their keys are refused then, and no other one.
        let mut each = |e: Entry| {
            if hidden.iter().any(|h| h.contains(&e.hash)) {
                filter.add(e.hash);
            }
        };
        rows.entries_of_jobs(card.first, card.end, &mut each, &mut |_| known = false)?;
    }
    let jobs = card.first..card.end;
    Ok((Run { jobs, entries: card.entries, filter: known.then_some(filter), damaged, dead: false }, output))
}
