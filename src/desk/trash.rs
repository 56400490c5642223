//! The trash, and the list of what people did. A discarded job can be brought back until its rows are pruned; what somebody did
//! stays listed after that.

use super::sign;
use crate::engine::core::Core;
use crate::engine::ops::named;
use crate::error::Error;
use crate::handler::job::title;
use crate::handler::reply::{Answer, Reply, answer};
use crate::handler::shared::{Changed, keep, store_error};
use crate::jobs::Jobs;
use crate::model::id::JobId;
use crate::model::job::{End, JobRow, JobState};
use crate::model::letter::{Act, Entry, Signed};
use crate::model::time::Wall;
use crate::rules::{Refusal, review};
use crate::store::{Lane, Op, StoreError, View, Write};
use std::sync::Arc;
use std::time::SystemTime;

/// Rows read at a time.
const PAGE: usize = 1_024;

/// A discarded job that can still be brought back.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Trashed {
    /// The job.
    pub job: JobId,
    /// Its kind as stored.
    pub kind: String,
    /// Its key.
    pub key: String,
    /// What the app calls it.
    pub title: String,
    /// When it was discarded.
    pub at: SystemTime,
    /// When its rows may go; `None`: it is kept for ever.
    pub until: Option<SystemTime>,
}

/// Something that a person did about a job or a message of the outbox: who, what, why, when.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Acted {
    /// Its place in the list: ask for those after it.
    pub number: u64,
    /// About which job; `None` for a message of the outbox, or the file itself.
    pub job: Option<JobId>,
    /// Its kind as stored; of a message its topic; of the file nothing.
    pub kind: String,
    /// Its key; of a message its ordering key; of the file nothing.
    pub key: String,
    /// Who.
    pub who: String,
    /// Why; empty for a check, which needs no reason.
    pub why: String,
    /// When.
    pub at: SystemTime,
    /// What, in full.
    pub entry: Entry,
}

impl Acted {
    /// What, in plain words.
    pub fn says(&self) -> String {
        self.entry.says()
    }
    fn of(number: u64, act: Act) -> Option<Self> {
        let (who, why, at) = match &act.entry {
            Entry::Decision { signed, .. }
            | Entry::Proposed { signed, .. }
            | Entry::ProposalDropped { signed, .. }
            | Entry::Message { signed, .. }
            | Entry::ReviewLifted { signed, .. }
            | Entry::Restored { signed } => (signed.who.clone(), signed.why.clone(), signed.at),
            Entry::Checked { who, at, .. } => (who.clone(), String::new(), *at),
            Entry::Attempt { .. }
            | Entry::GivenBack { .. }
            | Entry::Intended { .. }
            | Entry::Effect { .. }
            | Entry::Strike { .. }
            | Entry::Forgotten { .. }
            | Entry::UndoEnqueued { .. }
            | Entry::Undoes { .. }
            | Entry::Compensated { .. }
            | Entry::Asked { .. } => return None,
        };
        let Act { job, kind, key, entry } = act;
        Some(Self { number, job, kind, key, who, why, at: at.to_system(), entry })
    }
}

impl Jobs {
    /// Discarded jobs that can still be brought back, those that go first first, and those that are kept for ever last.
    ///
    /// # Errors
    /// A store that cannot read.
    pub fn trash(&self) -> Result<Vec<Trashed>, Error> {
        let shared = self.shared();
        shared.may_call()?;
        let mut out = Vec::new();
        let mut after = (Wall(0), JobId::from_number(0));
        loop {
            // A page at a time, because a long read keeps old pages.
            let (page, found) = shared.store.read(|v| {
                let page = v.ended(after, PAGE)?;
                let mut found = Vec::new();
                for (until, id) in &page {
                    match discarded(v, *id) {
                        Ok(Some((at, row))) => found.push((*until, *id, at, row)),
                        Ok(None) => {}
                        // One damaged row hides none of the others.
                        Err(StoreError::Corrupt { what }) => {
                            shared.report.warn(&format!("job {id} is left out of the list of the trash: {what}"));
                        }
                        Err(e) => return Err(e),
                    }
                }
                Ok((page, found))
            })?;
            out.extend(found.into_iter().map(|(until, job, at, row)| {
                let kind = shared.kind_name(row.kind).to_string();
                Trashed {
                    job,
                    title: title(&row, &kind),
                    kind,
                    key: row.key.to_string(),
                    at: at.to_system(),
                    until: (until < Wall::NEVER).then(|| until.to_system()),
                }
            }));
            match page.last() {
                Some(last) if page.len() == PAGE => after = *last,
                Some(_) | None => return Ok(out),
            }
        }
    }
    /// Brings a discarded job back: its letter asks again what it asked before, as far as nothing has answered that meanwhile, and says
    /// who brought it back ([`DeadLetter::restored`](crate::DeadLetter::restored)). Nothing runs, and nothing is undone, by that.
    ///
    /// # Errors
    /// Refused if it is not in the trash, or if its intent was run again meanwhile; [`Error::NotFound`] if its rows are pruned.
    pub fn restore(&self, id: JobId, who: &str, why: &str) -> Result<(), Error> {
        self.submit_restore(id, who, why)?.wait().unwrap_or(Err(Error::ShutDown))
    }
    /// [`restore`](Self::restore), awaited.
    ///
    /// # Errors
    /// As there.
    pub async fn restore_async(&self, id: JobId, who: &str, why: &str) -> Result<(), Error> {
        let reply = self.submit_restore(id, who, why)?;
        reply.await.unwrap_or(Err(Error::ShutDown))
    }
    fn submit_restore(&self, id: JobId, who: &str, why: &str) -> Result<Reply<Result<(), Error>>, Error> {
        let shared = self.shared();
        shared.may_call()?;
        let signed = sign(shared, who.to_owned(), why.to_owned())?;
        let (tell, reply) = answer();
        let op = RestoreOp { core: self.0.core.clone(), job: id, signed, answer: tell, done: None };
        shared.submit(Lane::Outcome, Box::new(op))?;
        Ok(reply)
    }
    /// What people did, across all jobs and messages of the outbox, oldest first: those after `after` (an [`Acted::number`]), at most `at_most`. It outlives
    /// the rows of the jobs, and the messages.
    ///
    /// # Errors
    /// A store that cannot read.
    pub fn decisions(&self, after: Option<u64>, at_most: usize) -> Result<Vec<Acted>, Error> {
        let shared = self.shared();
        shared.may_call()?;
        let (mut out, mut after) = (Vec::new(), after);
        loop {
            let acts = shared.store.read(|v| v.acts(after, at_most - out.len()))?;
            // A page without a line that can be read is not the end of the list.
            let Some((last, _)) = acts.last() else { return Ok(out) };
            after = Some(*last);
            for (number, act) in acts {
                match act {
                    Ok(act) => out.extend(Acted::of(number, act)),
                    // One damaged row hides none of the others.
                    Err(StoreError::Corrupt { what }) => {
                        shared.report.warn(&format!("a line is left out of the list of decisions: {what}"));
                    }
                    Err(e) => return Err(e.into()),
                }
            }
        }
    }
}

/// When a job was thrown away and what it was asked, if it can still be brought back.
fn discarded(v: &View<'_>, id: JobId) -> Result<Option<(Wall, JobRow)>, StoreError> {
    let (Some(record), Some(row)) = (v.record(id)?, v.job(id)?) else { return Ok(None) };
    let JobState::Ended { how: End::Discarded, at } = record.state else { return Ok(None) };
    let newest = v.intent(row.kind, row.key.as_str())?.is_some_and(|i| i.id() == id);
    Ok((newest && row.undoes.is_none()).then_some((at, row)))
}

/// A way out of the trash, on its way into the store.
struct RestoreOp {
    core: Arc<Core>,
    job: JobId,
    signed: Signed,
    answer: Answer<Result<(), Error>>,
    done: Option<Result<Changed, Error>>,
}

impl RestoreOp {
    fn restore(&self, tx: &mut Write<'_>) -> Result<Changed, Error> {
        let shared = &self.core.shared;
        let job = tx.record(self.job)?.ok_or(Error::NotFound(self.job))?;
        let row = tx.job(self.job)?.ok_or(Error::NotFound(self.job))?;
        // Its intent has a newer job: two of them would do the same.
        if tx.intent(row.kind, row.key.as_str())?.is_none_or(|i| i.id() != self.job) {
            return Err(Refusal::NotAChoice(
                "its intent was run again meanwhile, as another job: look what became of that one (Jobs::find names it)".into(),
            )
            .into());
        }
        // The job that it would have undone asks a person since then.
        if row.undoes.is_some() {
            return Err(Refusal::NotAChoice(
                "it undoes another job, whose own letter asks what now: decide that one".into(),
            )
            .into());
        }
        let (effects, history) = (tx.effects(self.job)?, tx.journal(self.job)?);
        let change = review::restore(&job, &effects, &history, &self.signed, shared.rules_of(job.kind))?;
        tx.put(&change)?;
        Ok(named(tx, shared, change)?)
    }
}

impl Op for RestoreOp {
    fn run(&mut self, tx: &mut Write<'_>) -> Result<(), StoreError> {
        let came = self.restore(tx);
        keep(&mut self.done, came)
    }
    fn settle(self: Box<Self>, result: Result<(), StoreError>) {
        match (result, self.done) {
            (Ok(()), Some(Ok(changed))) => {
                self.core.shared.report.changed(&[changed]);
                self.answer.send(Ok(()));
            }
            (Ok(()), Some(Err(e))) => self.answer.send(Err(e)),
            (Ok(()), None) => {}
            (Err(e), _) => self.answer.send(Err(store_error(e))),
        }
    }
    fn unknown(&mut self) {
        self.answer.send(Err(Error::Unknown));
    }
}
