//! One look at the alert rules, inside a round of the writer: what is kept and what is told rest on the same commit.

use super::alerts::{Alarms, MOVING};
use super::core::Core;
use super::oldest::{Oldest, SLICE, Sweep, oldest};
use super::tell::{self, ALERTS};
use crate::handler::shared::Shared;
use crate::model::id::JobId;
use crate::model::job::End;
use crate::model::time::Wall;
use crate::observe::alerts::{AlertRule, Said};
use crate::observe::book::Book;
use crate::observe::events;
use crate::observe::watch::{self, Failing, First, Seen, look};
use crate::store::{FAILED, Lane, Op, StoreError, View, Write};
use crate::sync::atomic::Ordering;
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

/// After a look that could not be kept.
const LOOK_AGAIN: Duration = Duration::from_secs(30);

/// One look, inside a round: what is kept and what is told rest on the same commit.
pub(crate) struct LookOp {
    core: Arc<Core>,
    alarms: Arc<Alarms>,
    looked: Option<(Book, Vec<Said>, Option<Wall>)>,
    /// A job that is told as failing is over already: the next look says so.
    over: bool,
    /// More jobs fail than there was room for.
    left: bool,
    /// The oldest undelivered message of each topic, read before: a long backlog must not hold the writer up.
    unsent: Unsent,
    /// What was taken out of the counters for this look; put back if it fails.
    ended: (u64, u64),
}

impl LookOp {
    pub(crate) fn submit(core: &Arc<Core>, alarms: &Arc<Alarms>) {
        // Before the look: what is written after it asks for the next one.
        alarms.watches_outbox.store(false, Ordering::Release);
        let watched = alarms.rules.outbox.is_some();
        let unsent = match watched {
            true => core.shared.store.read(|v| unsent(v, &core.shared, &mut alarms.sweeps.lock())),
            false => Ok(Unsent::default()),
        };
        let Ok(unsent) = unsent else {
            alarms.timer.look_at_alerts(core.shared.now().mono.after(LOOK_AGAIN));
            return;
        };
        let op = Self {
            core: core.clone(),
            alarms: alarms.clone(),
            looked: None,
            over: false,
            left: false,
            unsent,
            ended: (alarms.attempts.swap(0, Ordering::AcqRel), alarms.retries.swap(0, Ordering::AcqRel)),
        };
        let _ = core.shared.submit(Lane::Outcome, Box::new(op));
    }
    /// Whether whoever is told has heard that this job fails; where nobody is told, nobody waits for that.
    fn was_heard(&self, tx: &Write<'_>, job: JobId) -> Result<bool, StoreError> {
        if self.alarms.teller.is_none() {
            return Ok(true);
        }
        let name = format!("{}{}", tell::SAID, AlertRule::SameJobFailing.about(&job));
        let said = tell::read(StoreError::readable(tx.meta(&name))?.as_deref());
        Ok(said.is_none_or(|said| said.heard))
    }
    fn seen(&self, tx: &Write<'_>, book: &Book, failing: Vec<Failing>) -> Result<Seen, StoreError> {
        let shared = &self.core.shared;
        let letters = tx.letter_count()?;
        let oldest = match tx.letter_ids(None, 1)?.first() {
            Some(id) => StoreError::readable(tx.letter(*id))?.map(|l| l.created),
            None => None,
        };
        let mut over = Vec::new();
        for job in book.failing_jobs() {
            let over_now = match StoreError::readable(tx.record(job))?.map(|r| r.state.end()) {
                None | Some(Some(End::Done)) => true,
                // It failed and was undone, perhaps, and nobody is asked anything: somebody hears that before its end is told.
                Some(Some(_)) => self.was_heard(tx, job)?,
                Some(None) => false,
            };
            if over_now {
                over.push(job);
            }
        }
        Ok(Seen {
            now: shared.now().wall,
            letters,
            oldest_letter: oldest,
            ready: if self.alarms.rules.oldest_job.is_some() { line(tx, shared)? } else { Vec::new() },
            unserved: {
                let names = self.unsent.known.iter().map(|(topic, _)| topic);
                names.filter(|topic| self.core.relays.policy(topic).is_none()).cloned().collect()
            },
            unsent: self.unsent.known.clone(),
            unclear: self.unsent.unclear.clone(),
            failing,
            over,
            attempts: self.ended.0,
            retries: self.ended.1,
            older: shared.review.read().as_ref().map(|review| review.epoch),
            full: !shared.store.room().is_normal(),
        })
    }
}

/// Takes the jobs that failed often since the last look, of this process or one before; and whether one of them is over. Whoever did
/// well after all is not told of; nor are more than there is `room` for, whose turn comes.
fn failing(tx: &mut Write<'_>, shared: &Shared, room: usize) -> Result<(Vec<Failing>, bool), StoreError> {
    let (mut found, mut over) = (Vec::new(), false);
    for name in tx.meta_names(FAILED)? {
        if found.len() == room {
            break;
        }
        let attempts = StoreError::readable(tx.meta(&name))?.and_then(|n| n.try_into().ok()).map(u32::from_le_bytes);
        let job = name.strip_prefix(FAILED).and_then(|n| n.parse().ok()).map(JobId::from_number);
        tx.remove_meta(&name)?;
        let (Some(job), Some(attempts)) = (job, attempts) else { continue };
        let (record, row) = (StoreError::readable(tx.record(job))?, StoreError::readable(tx.job(job))?);
        let (Some(record), Some(row)) = (record, row) else { continue };
        match record.state.end() {
            Some(End::Done) => continue,
            Some(_) => over = true,
            None => {}
        }
        let kind = shared.kind_name(row.kind).to_string();
        found.push(Failing { job, kind, key: row.key.to_string(), attempts });
    }
    Ok((found, over))
}

/// The first in line of each kind that is not paused.
fn line(tx: &Write<'_>, shared: &Shared) -> Result<Vec<First>, StoreError> {
    let mut out = Vec::new();
    for (id, kind) in tx.kinds()? {
        if shared.paused(&kind) {
            continue;
        }
        if let Some((_, ticket, job)) = tx.ready(id, 1)?.first() {
            // A new job's own number is its ticket; one with another ticket was promoted, nobody wrote down when.
            let since = match StoreError::readable(tx.job(*job))? {
                Some(row) if *ticket == job.number() => Some(row.enqueued),
                Some(_) | None => None,
            };
            out.push(First { kind, job: *job, since });
        }
    }
    Ok(out)
}

/// The oldest undelivered message of each topic that is not paused, and the topics in which it is still looked for.
fn unsent(v: &View<'_>, shared: &Shared, sweeps: &mut Sweeps) -> Result<Unsent, StoreError> {
    let (mut out, mut most) = (Unsent::default(), SLICE);
    for (topic, _) in v.topics()? {
        if shared.pauses.read().topic(&topic).is_some() {
            continue;
        }
        match oldest(v, &topic, sweeps.entry(topic.clone()).or_default(), &mut most)? {
            Oldest::Known(Some(at)) => out.known.push((topic, at)),
            Oldest::Known(None) => {}
            Oldest::Unclear => {
                out.unclear.push(topic);
                out.goes_on = true;
            }
            Oldest::Moves => out.unclear.push(topic),
        }
    }
    Ok(out)
}

type Sweeps = BTreeMap<String, Sweep>;

#[derive(Default)]
struct Unsent {
    known: Vec<(String, Wall)>,
    /// Topics of which that is not known yet.
    unclear: Vec<String>,
    /// One of them has a next slice.
    goes_on: bool,
}

/// Keeps what was counted since the last look, before the file is closed: a process that ends every few minutes would never count
/// enough for the share of retries. Nothing is looked at, and nobody waits.
pub(crate) struct CountOp {
    core: Arc<Core>,
    counted: (u64, u64),
}

impl CountOp {
    pub(crate) fn submit(core: &Arc<Core>) {
        let Some(alarms) = core.alarms.as_ref().filter(|alarms| alarms.rules.retry_ratio.is_some()) else { return };
        let counted = (alarms.attempts.swap(0, Ordering::AcqRel), alarms.retries.swap(0, Ordering::AcqRel));
        if counted.0 > 0 {
            let _ = core.shared.submit(Lane::Outcome, Box::new(Self { core: core.clone(), counted }));
        }
    }
}

impl Op for CountOp {
    fn run(&mut self, tx: &mut Write<'_>) -> Result<(), StoreError> {
        let book = Book::from_row(StoreError::readable(tx.meta(ALERTS))?.as_deref());
        let book = watch::counted(book, self.core.shared.now().wall, self.counted.0, self.counted.1);
        tx.put_meta(ALERTS, &serde_json::to_vec(&book).map_err(|e| StoreError::Bug(e.to_string()))?)
    }
    fn settle(self: Box<Self>, _: Result<(), StoreError>) {}
}

impl Op for LookOp {
    fn run(&mut self, tx: &mut Write<'_>) -> Result<(), StoreError> {
        let alarms = &self.alarms;
        // Before the look: what becomes ready after it asks for the next one.
        alarms.watches_line.store(false, Ordering::Release);
        // As the file has it, with what another look of this very round has found.
        let book = Book::from_row(StoreError::readable(tx.meta(ALERTS))?.as_deref());
        let room = watch::room(&book);
        let (failing, over) = failing(tx, &self.core.shared, room)?;
        (self.over, self.left) = (over, failing.len() == room);
        let seen = self.seen(tx, &book, failing)?;
        let mut looked = look(&alarms.rules, &book, &seen);
        let said: Vec<Said> =
            looked.notices.into_iter().map(|notice| Said::new(looked.book.next_number(), notice)).collect();
        if looked.book != book {
            let bytes = serde_json::to_vec(&looked.book).map_err(|e| StoreError::Bug(e.to_string()))?;
            tx.put_meta(ALERTS, &bytes)?;
        }
        for said in &said {
            let name = format!("{}{}", tell::SAID, said.firing.subject());
            // Where nobody is told nobody waits to hear that it is over, unless a process before this one has told that it began.
            let begun = tell::read(StoreError::readable(tx.meta(&name))?.as_deref());
            let heard = said.over && alarms.teller.is_none() && !begun.is_some_and(|b| b.heard);
            tell::put(tx, &name, &Said { heard, ..said.clone() })?;
        }
        self.looked = Some((looked.book, said, looked.next));
        Ok(())
    }
    fn settle(self: Box<Self>, result: Result<(), StoreError>) {
        let alarms = &self.alarms;
        let (Ok(()), Some((book, said, next))) = (result, self.looked) else {
            alarms.attempts.fetch_add(self.ended.0, Ordering::AcqRel);
            alarms.retries.fetch_add(self.ended.1, Ordering::AcqRel);
            alarms.timer.look_at_alerts(self.core.shared.now().mono.after(LOOK_AGAIN));
            return;
        };
        alarms.watches_line.fetch_or(book.watches_line(), Ordering::AcqRel);
        alarms.line_told.store(book.tells_of_line(), Ordering::Release);
        alarms.watches_outbox.fetch_or(book.watches_outbox(), Ordering::AcqRel);
        alarms.outbox_told.store(book.tells_of_outbox(), Ordering::Release);
        alarms.window.store(book.window_is_open(), Ordering::Release);
        if self.left && watch::room(&book) > 0 {
            alarms.timer.look_at_alerts(self.core.shared.now().mono);
        }
        let told: HashSet<JobId> = book.failing_jobs().collect();
        alarms.any_told.store(!told.is_empty(), Ordering::Release);
        *alarms.jobs_told.lock() = told;
        if !self.unsent.unclear.is_empty() {
            // The next slice at once, what moves in a while: a backlog that drains is not looked at without a pause.
            let wait = if self.unsent.goes_on { Duration::ZERO } else { MOVING };
            alarms.timer.look_at_alerts(self.core.shared.now().mono.after(wait));
        }
        if self.over {
            alarms.timer.look_at_alerts(self.core.shared.now().mono);
        }
        if let Some(next) = next {
            let now = self.core.shared.now();
            alarms.timer.look_at_alerts(now.mono.after(Duration::from_millis(next.since(now.wall))));
        }
        for said in said {
            events::alert(&said);
            if let Some(teller) = &alarms.teller {
                teller.said(&self.core.shared, said);
            }
        }
    }
}
