//! What people decide about a letter: the decision, signed, and its way into the store.
//!
//! Keeps the promise that an act and its signature are one commit, that it rests on the view that was shown, and that where two people
//! have to decide one cannot.

use super::choices::{Choice, Leads};
use super::{DeadLetter, in_one_line, needs_two, or_asked, rebuilt, running, sign, with_news};
use crate::engine::core::Core;
use crate::engine::ops::named;
use crate::error::Error;
use crate::handler::reply::{Answer, Reply, answer};
use crate::handler::shared::{Changed, InsideTransaction, keep, store_error};
use crate::handler::undo;
use crate::jobs::Jobs;
use crate::model::effect::{EffectState, Refusal as NotHappened};
use crate::model::id::{EffectId, JobId};
use crate::model::letter::{Signed, Verdict};
use crate::rules::Refusal;
use crate::rules::letter::Case;
use crate::rules::review::{self, Second};
use crate::store::{Lane, Op, StoreError, Write};
use std::sync::Arc;

/// What somebody wants done about a letter.
#[derive(Clone, Debug)]
enum Wants {
    /// Says this.
    Says(Verdict),
    /// What was proposed.
    Agrees,
    /// That nothing is proposed any more.
    Drops,
}

impl Choice {
    /// What may be added to its decision, whether or not it [`needs`](Self::needs) it: the provider's reference to "it happened" (without
    /// it the job may have to ask for that next), the wish for a new key to "it did not happen".
    pub fn takes(&self) -> Option<super::Needs> {
        match &self.leads {
            Leads::Says(Verdict::Happened { .. }) => Some(super::Needs::Reference),
            Leads::Says(Verdict::DidNotHappen { .. }) => Some(super::Needs::NewKey),
            Leads::Says(
                Verdict::TryAgain
                | Verdict::ReplayFrom { .. }
                | Verdict::Undo
                | Verdict::HandledOutside
                | Verdict::Discard,
            )
            | Leads::Agrees
            | Leads::Drops
            | Leads::Checks(_) => None,
        }
    }
    /// The decision that carries it out, still to be signed with [`by`](Decision::by): a list of choices is all that a screen needs
    /// where nothing has to be typed in ([`needs`](Self::needs)); a reference is added with
    /// [`with_reference`](Decision::with_reference). `None` for a question to the provider: [`check`](Self::check).
    pub fn decision(&self) -> Option<Decision> {
        match &self.leads {
            Leads::Says(verdict) => Some(Decision::new(verdict.clone())),
            Leads::Agrees => Some(Decision::agree()),
            Leads::Drops => Some(Decision::drop_proposal()),
            Leads::Checks(_) => None,
        }
    }
    /// The effect about which the provider is asked again, if the choice is that: for [`Jobs::check_again`].
    pub fn check(&self) -> Option<&EffectId> {
        match &self.leads {
            Leads::Checks(effect) => Some(effect),
            Leads::Says(_) | Leads::Agrees | Leads::Drops => None,
        }
    }
}

/// What a person decides; sign it with [`by`](Self::by).
#[derive(Clone, Debug)]
#[must_use = "hand it to Jobs::decide"]
pub struct Decision {
    wants: Wants,
    who: String,
    why: String,
    /// Something was added that does not belong to this decision: it is refused rather than left out.
    misused: Option<&'static str>,
}

impl Decision {
    fn new(verdict: Verdict) -> Self {
        Self::of(Wants::Says(verdict))
    }
    fn of(wants: Wants) -> Self {
        Self { wants, who: String::new(), why: String::new(), misused: None }
    }
    /// Agrees to what another person proposed, where two people have to decide ([`DeadLetter::proposed`]): exactly that, with the
    /// reference that it came with, is carried out. Refused for whoever proposed it, and if the proposal is not the one that was
    /// shown.
    pub fn agree() -> Self {
        Self::of(Wants::Agrees)
    }
    /// Takes back what somebody proposed, oneself or another person: the letter asks as before, and nothing is carried out.
    pub fn drop_proposal() -> Self {
        Self::of(Wants::Drops)
    }
    /// The effect happened. With the provider's reference its result can be rebuilt; where the letter asks for that
    /// ([`Choice::needs`]) it is refused without one.
    pub fn happened(effect: &EffectId, reference: Option<&str>) -> Self {
        Self::new(Verdict::Happened {
            effect: effect.clone(),
            reference: reference.map(str::to_owned),
            result: None,
            undo: None,
        })
    }
    /// The effect did not happen. The next call uses the same idempotency key, unless [`with_new_key`](Self::with_new_key).
    pub fn did_not_happen(effect: &EffectId) -> Self {
        Self::new(Verdict::DidNotHappen { effect: effect.clone(), new_key: false })
    }
    /// The provider's reference, with [`happened`](Self::happened): it becomes the result if the effect can rebuild one from it.
    ///
    /// Any other decision with it is refused: whoever has a reference has seen that it happened. So is an agreement, which has the
    /// reference that was proposed.
    pub fn with_reference(mut self, found: &str) -> Self {
        if let Wants::Says(Verdict::Happened { reference, .. }) = &mut self.wants {
            *reference = Some(found.to_owned());
        } else {
            self.misused = Some("a reference belongs to \"it happened\": leave out with_reference(..) or decide that");
        }
        self
    }
    /// Explicitly wants a new idempotency key for the next call; belongs to [`did_not_happen`](Self::did_not_happen) only, any other
    /// decision with it is refused.
    pub fn with_new_key(mut self) -> Self {
        if let Wants::Says(Verdict::DidNotHappen { new_key, .. }) = &mut self.wants {
            *new_key = true;
        } else {
            self.misused = Some("a new key belongs to \"it did not happen\": leave out with_new_key() or decide that");
        }
        self
    }
    /// Run it again: done effects and remembered steps are skipped. Does not spend the automatic budget.
    pub fn try_again() -> Self {
        Self::new(Verdict::TryAgain)
    }
    /// Somebody took care of it elsewhere: it ends, and not as success.
    pub fn handled_outside() -> Self {
        Self::new(Verdict::HandledOutside)
    }
    /// Run it again from a remembered step or commit: it and everything remembered after it is forgotten (into the history) and
    /// done anew, commits to app tables too; effects are never forgotten. Refused while nobody knows about an effect.
    pub fn replay_from(step: &str) -> Self {
        Self::new(Verdict::ReplayFrom { step: step.to_owned() })
    }
    /// Undo what it did: each effect that can be undone, the last first, by a job of its own. It ends as compensated, never as a
    /// success. [`DeadLetter::choices`] says what would be undone and what stays.
    pub fn undo() -> Self {
        Self::new(Verdict::Undo)
    }
    /// Throw it into the trash: [`Jobs::restore`] brings it back until its rows are pruned (30 days, 90 for risky kinds).
    pub fn discard() -> Self {
        Self::new(Verdict::Discard)
    }
    /// Who decides, and why: both are required, in one line each, and kept in the same commit. `who` has to be an id that your app has
    /// authenticated: where two people have to decide, they are told apart by it (not by case, spaces or what cannot be seen).
    pub fn by(mut self, who: &str, why: &str) -> Self {
        self.who = who.to_owned();
        self.why = why.to_owned();
        self
    }
}

/// What two people have to do is done by one, or waits for the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Decided {
    /// It is carried out.
    Done,
    /// Two people have to decide this: the decision is kept and waits for another person to decide the same.
    WaitsForSecond,
}

impl Jobs {
    /// Carries out a person's decision, signed, in one commit. Where two people have to decide, the first one's decision is kept
    /// and waits for the second, who says the same or [`agree`](Decision::agree)s; "it happened" without a reference says the same as
    /// with one. Any other decision takes the place of the proposal.
    ///
    /// # Errors
    /// Refused if the letter changed since it was shown, which says what has happened since, if it is not one of the valid choices, if unresolved effects need an
    /// answer first, if a result is asked for and the reference does not bring it, if the second person is the first one, or if who or
    /// why is missing.
    pub fn decide(&self, letter: &DeadLetter, decision: Decision) -> Result<Decided, Error> {
        self.submit_decision(letter, decision)?.wait().unwrap_or(Err(Error::ShutDown))
    }
    /// [`decide`](Self::decide), awaited.
    ///
    /// # Errors
    /// As there.
    pub async fn decide_async(&self, letter: &DeadLetter, decision: Decision) -> Result<Decided, Error> {
        let reply = self.submit_decision(letter, decision)?;
        reply.await.unwrap_or(Err(Error::ShutDown))
    }

    fn submit_decision(&self, letter: &DeadLetter, decision: Decision) -> Result<Reply<Result<Decided, Error>>, Error> {
        let shared = self.shared();
        shared.may_call()?;
        if let Some(why) = decision.misused {
            return Err(Refusal::NotAChoice(why.to_owned()).into());
        }
        if let Wants::Says(Verdict::Happened { reference: Some(reference), .. }) = &decision.wants {
            in_one_line("reference", reference)?;
            if reference.trim().is_empty() {
                let why = "the reference is empty: give the provider's id of the operation, or leave the reference out";
                return Err(Refusal::NotAChoice(why.to_owned()).into());
            }
            let limit = shared.limits.key;
            if reference.len() > limit {
                return Err(Error::TooBig { what: "reference", len: reference.len(), limit });
            }
        }
        let signed = sign(shared, decision.who, decision.why)?;
        let (tell, reply) = answer();
        let op = DecideOp {
            core: self.0.core.clone(),
            job: letter.job,
            shown: letter.revision,
            wants: decision.wants,
            signed,
            lines: letter.history.len(),
            answer: tell,
            done: None,
        };
        shared.submit(Lane::Outcome, Box::new(op))?;
        Ok(reply)
    }
}

/// A decision on its way into the store.
struct DecideOp {
    core: Arc<Core>,
    job: JobId,
    shown: u32,
    wants: Wants,
    signed: Signed,
    /// Lines of history that were shown.
    lines: usize,
    answer: Answer<Result<Decided, Error>>,
    done: Option<Result<(Vec<Changed>, Decided), Error>>,
}

impl DecideOp {
    fn decide(&self, tx: &mut Write<'_>) -> Result<(Vec<Changed>, Decided), Error> {
        let shared = &self.core.shared;
        let job = tx.record(self.job)?.ok_or(Error::NotFound(self.job))?;
        let Some(letter) = tx.letter(self.job)? else {
            if self.shown != job.revision {
                let stale = Refusal::Stale { shown: self.shown, now: job.revision, since: Vec::new() };
                return Err(with_news(stale, &tx.journal(self.job)?, self.lines).into());
            }
            return Err(Refusal::WrongState(crate::model::job::State::from(&job.state)).into());
        };
        let stale = |refusal: Refusal| -> Error {
            match tx.journal(self.job) {
                Ok(history) => with_news(refusal, &history, self.lines).into(),
                Err(e) => e.into(),
            }
        };
        let two = needs_two(shared, tx, self.job)?;
        let verdict = match &self.wants {
            Wants::Says(verdict) if two => review::as_proposed(&letter, verdict),
            Wants::Says(verdict) => verdict.clone(),
            Wants::Agrees => review::proposal(&job, &letter, self.shown).map_err(stale)?,
            Wants::Drops => {
                let change = review::drop_proposal(&job, &letter, &self.signed, self.shown).map_err(stale)?;
                tx.put(&change)?;
                return Ok((vec![named(tx, shared, change)?], Decided::Done));
            }
        };
        let effects = tx.effects(self.job)?;
        let verdict = rebuilt(shared, &verdict, &effects);
        let running = |id: &EffectId| running(shared, self.job, &verdict, id);
        let rules = &*shared.in_force(shared.rules_of(job.kind));
        let memos = if matches!(verdict, Verdict::ReplayFrom { .. }) { tx.memos(self.job)? } else { Vec::new() };
        let (shown, running) = (self.shown, &running);
        let case = Case { job: &job, letter: &letter, effects: &effects, shown, running, rules };
        let decided = review::say(&case, &memos, &verdict, &self.signed);
        let mut change = decided.map_err(|refusal| stale(or_asked(shared, self.job, refusal)))?;
        let mut came = Decided::Done;
        if two && let Second::Waits(first) = review::second(&job, &letter, &verdict, &self.signed)? {
            (change, came) = (*first, Decided::WaitsForSecond);
        }
        let changed = named(tx, shared, change)?;
        Ok((undo::put(tx, shared, changed, None)?, came))
    }
}

impl Op for DecideOp {
    fn run(&mut self, tx: &mut Write<'_>) -> Result<(), StoreError> {
        // `from_reference` is the app's code.
        let _inside = InsideTransaction::enter();
        let came = self.decide(tx);
        keep(&mut self.done, came)
    }
    fn settle(self: Box<Self>, result: Result<(), StoreError>) {
        match (result, self.done) {
            (Ok(()), Some(Ok((changes, came)))) => {
                // Only now: an undone decision must not make an effect forget when its last call ended.
                for e in changes.first().map_or(&[][..], |c| c.change.effects()) {
                    self.core.shared.calls.forget(self.job, &e.id);
                    if let EffectState::Refused(NotHappened::Person { .. }) = e.state {
                        self.core.shared.answered(self.job, &e.id);
                    }
                }
                self.core.shared.report.changed(&changes);
                self.answer.send(Ok(came));
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
