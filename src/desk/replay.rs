//! Many dead letters at once: first the count, as of a number, then their release in slices. What changed since the count, or has
//! an effect nobody is sure of, is left out and named; there is no "retry all".

use super::{needs_two, sign, two_decide};
use crate::engine::core::Core;
use crate::engine::ops::named;
use crate::error::Error;
use crate::handler::reply::{Answer, Reply, answer};
use crate::handler::shared::{Changed, InsideTransaction, Shared, store_error};
use crate::jobs::Jobs;
use crate::model::id::{EffectId, JobId};
use crate::model::letter::{LetterRecord, Signed, Why};
use crate::model::time::Wall;
use crate::rules::letter::Case;
use crate::rules::{Refusal, review};
use crate::store::{Lane, Op, StoreError, View, Write};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::SystemTime;

/// Letters read at a time, and released in one commit.
const PAGE: usize = 256;

/// Which dead letters: all that fit everything that was said.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LetterFilter {
    kind: Option<String>,
    why: Option<Why>,
    error: Option<String>,
    before: Option<Wall>,
}

impl LetterFilter {
    /// Of this kind, as stored at enqueue.
    pub fn kind(kind: &str) -> Self {
        Self { kind: Some(kind.to_owned()), ..Self::default() }
    }
    /// Dead for this reason.
    #[must_use]
    pub fn why(mut self, why: Why) -> Self {
        self.why = Some(why);
        self
    }
    /// With these words in the last error.
    #[must_use]
    pub fn error(mut self, words: &str) -> Self {
        self.error = Some(words.to_owned());
        self
    }
    /// Created before this instant.
    #[must_use]
    pub fn before(mut self, at: SystemTime) -> Self {
        self.before = Some(Wall::from_system(at));
        self
    }
    fn fits(&self, kind: &str, letter: &LetterRecord) -> bool {
        self.kind.as_ref().is_none_or(|k| k == kind)
            && self.why.is_none_or(|w| w == letter.why)
            && self.error.as_ref().is_none_or(|words| letter.error.contains(words.as_str()))
            && self.before.is_none_or(|at| letter.created < at)
    }
}

/// Letters that fit a filter at one moment, to be released in slices.
#[derive(Clone, Debug)]
#[must_use = "hand it to Jobs::replay, slice by slice"]
pub struct ReplayPlan {
    as_of: u64,
    jobs: VecDeque<(JobId, u32)>,
    ask_first: Vec<JobId>,
}

impl ReplayPlan {
    /// How many would be released: those that are left.
    pub fn count(&self) -> usize {
        self.jobs.len()
    }
    /// The newest number that the queue had handed out when it looked; nothing that became a letter later is in the plan.
    pub fn as_of(&self) -> u64 {
        self.as_of
    }
    /// The jobs that would be released.
    pub fn jobs(&self) -> impl Iterator<Item = JobId> + '_ {
        self.jobs.iter().map(|(id, _)| *id)
    }
    /// Jobs that fit, but have a question that has to be answered first, or need two people: never in the plan.
    pub fn ask_first(&self) -> &[JobId] {
        &self.ask_first
    }
}

/// What one slice came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Replayed {
    /// Jobs that run again.
    pub released: Vec<JobId>,
    /// Jobs that changed since the count, or may not be replayed: each with its reason, untouched.
    pub refused: Vec<(JobId, Refusal)>,
}

impl Jobs {
    /// Counts the dead letters that fit, and would be replayed: nothing happens yet. Done effects and remembered steps would be
    /// kept, as with [`Decision::try_again`](crate::Decision::try_again).
    ///
    /// # Errors
    /// A store that cannot read.
    pub fn plan_replay(&self, filter: &LetterFilter) -> Result<ReplayPlan, Error> {
        let shared = self.shared();
        shared.may_call()?;
        // One view for all of it: what became a letter later is not in it, whatever the clocks say. Rows are read only of those that fit.
        let plan = shared.store.read(|v| {
            let mut plan = ReplayPlan { as_of: v.last_number()?, jobs: VecDeque::new(), ask_first: Vec::new() };
            let mut after = None;
            loop {
                let ids = v.letter_ids(after, PAGE)?;
                for id in &ids {
                    // A damaged letter is shown, and decided, by itself.
                    if let Some(fits) = StoreError::readable(fits(shared, v, *id, filter))? {
                        match fits {
                            Fits::Ready(revision) => plan.jobs.push_back((*id, revision)),
                            Fits::AskFirst => plan.ask_first.push(*id),
                        }
                    }
                }
                match ids.last() {
                    Some(last) if ids.len() == PAGE => after = Some(*last),
                    Some(_) | None => return Ok(plan),
                }
            }
        });
        Ok(plan?)
    }
    /// Releases the next `at_most` of a plan, signed; the plan keeps the rest for the next slice. What changed since the count, has
    /// an effect nobody is sure of, or needs a second person is refused by itself and named.
    ///
    /// # Errors
    /// If who or why is missing, and a store that cannot write: the rest stays in the plan. What was released in an earlier commit of
    /// the same call is returned instead, and the next call has the error.
    pub fn replay(&self, plan: &mut ReplayPlan, at_most: usize, who: &str, why: &str) -> Result<Replayed, Error> {
        let mut out = Replayed::default();
        let mut left = at_most;
        while left > 0 && !plan.jobs.is_empty() {
            let slice: Vec<_> = plan.jobs.iter().take(left.min(PAGE)).copied().collect();
            let (n, reply) = (slice.len(), self.submit_replay(slice, who, why)?);
            let part = match reply.wait().unwrap_or(Err(Error::ShutDown)) {
                Ok(part) => part,
                // What was released is said; the next slice says what is wrong.
                Err(_) if left < at_most => return Ok(out),
                Err(e) => return Err(e),
            };
            plan.jobs.drain(..n);
            left -= n;
            out.released.extend(part.released);
            out.refused.extend(part.refused);
        }
        Ok(out)
    }
    /// [`replay`](Self::replay), awaited.
    ///
    /// # Errors
    /// As there.
    pub async fn replay_async(
        &self,
        plan: &mut ReplayPlan,
        at_most: usize,
        who: &str,
        why: &str,
    ) -> Result<Replayed, Error> {
        let mut out = Replayed::default();
        let mut left = at_most;
        while left > 0 && !plan.jobs.is_empty() {
            let slice: Vec<_> = plan.jobs.iter().take(left.min(PAGE)).copied().collect();
            let (n, reply) = (slice.len(), self.submit_replay(slice, who, why)?);
            let part = match reply.await.unwrap_or(Err(Error::ShutDown)) {
                Ok(part) => part,
                // What was released is said; the next slice says what is wrong.
                Err(_) if left < at_most => return Ok(out),
                Err(e) => return Err(e),
            };
            plan.jobs.drain(..n);
            left -= n;
            out.released.extend(part.released);
            out.refused.extend(part.refused);
        }
        Ok(out)
    }
    fn submit_replay(
        &self,
        jobs: Vec<(JobId, u32)>,
        who: &str,
        why: &str,
    ) -> Result<Reply<Result<Replayed, Error>>, Error> {
        let shared = self.shared();
        shared.may_call()?;
        let signed = sign(shared, who.to_owned(), why.to_owned())?;
        let (tell, reply) = answer();
        let op = ReplayOp {
            core: self.0.core.clone(),
            jobs,
            signed,
            answer: tell,
            changes: Vec::new(),
            came: Replayed::default(),
        };
        shared.submit(Lane::Outcome, Box::new(op))?;
        Ok(reply)
    }
}

/// What a letter that fits is for a plan.
enum Fits {
    /// It would be released, as it stands at this revision.
    Ready(u32),
    /// It has a question that comes first, or needs two people.
    AskFirst,
}

fn fits(shared: &Shared, v: &View<'_>, id: JobId, filter: &LetterFilter) -> Result<Option<Fits>, StoreError> {
    let (Some(job), Some(letter)) = (v.record(id)?, v.letter(id)?) else { return Ok(None) };
    if !filter.fits(&shared.kind_name(job.kind), &letter) {
        return Ok(None);
    }
    let (effects, Some(row)) = (v.effects(id)?, v.job(id)?) else { return Ok(None) };
    let pairs = {
        // The stake is read by the app's code.
        let _inside = InsideTransaction::enter();
        letter.proposed.is_some() || two_decide(shared, &row)
    };
    if pairs {
        return Ok(Some(Fits::AskFirst));
    }
    let (quiet, signed) =
        (|_: &EffectId| false, Signed { who: String::new(), why: String::new(), at: shared.now().wall });
    let (shown, running, rules) = (job.revision, &quiet, shared.rules_of(job.kind));
    let came =
        review::try_again(&Case { job: &job, letter: &letter, effects: &effects, shown, running, rules }, &signed);
    Ok(Some(came.map_or(Fits::AskFirst, |_| Fits::Ready(job.revision))))
}

/// One slice, in one commit.
struct ReplayOp {
    core: Arc<Core>,
    jobs: Vec<(JobId, u32)>,
    signed: Signed,
    answer: Answer<Result<Replayed, Error>>,
    changes: Vec<Changed>,
    came: Replayed,
}

impl ReplayOp {
    fn release(&self, tx: &mut Write<'_>, id: JobId, shown: u32) -> Result<Result<Changed, Refusal>, StoreError> {
        let shared = &self.core.shared;
        let (Some(job), Some(letter)) = (tx.record(id)?, tx.letter(id)?) else {
            let gone = "its letter was answered since it was counted: there is nothing left to do about it";
            return Ok(Err(Refusal::NotAChoice(gone.into())));
        };
        if needs_two(shared, tx, id)? {
            let text = "two people have to decide about it: show its own letter to both";
            return Ok(Err(Refusal::NotAChoice(text.into())));
        }
        let effects = tx.effects(id)?;
        let running = |effect: &EffectId| shared.calls.running(id, effect);
        let rules = shared.rules_of(job.kind);
        let case = Case { job: &job, letter: &letter, effects: &effects, shown, running: &running, rules };
        match review::try_again(&case, &self.signed) {
            Ok(change) => {
                tx.put(&change)?;
                Ok(Ok(named(tx, shared, change)?))
            }
            Err(refusal) => Ok(Err(refusal)),
        }
    }
}

impl Op for ReplayOp {
    fn run(&mut self, tx: &mut Write<'_>) -> Result<(), StoreError> {
        self.changes.clear();
        self.came = Replayed::default();
        for (id, shown) in self.jobs.clone() {
            match self.release(tx, id, shown) {
                Ok(Ok(changed)) => {
                    self.came.released.push(id);
                    self.changes.push(changed);
                }
                Ok(Err(refusal)) => self.came.refused.push((id, refusal)),
                // One damaged job is named; the others go.
                Err(StoreError::Corrupt { what }) => self.came.refused.push((id, Refusal::NotAChoice(what))),
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }
    fn settle(self: Box<Self>, result: Result<(), StoreError>) {
        match result {
            Ok(()) => {
                self.core.shared.report.changed(&self.changes);
                self.answer.send(Ok(self.came));
            }
            Err(e) => self.answer.send(Err(store_error(e))),
        }
    }
    fn unknown(&mut self) {
        self.answer.send(Err(Error::Unknown));
    }
}
