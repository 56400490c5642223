//! The face for people: dead letters, their questions, and decisions. Only valid choices; every act signed and kept.

pub(crate) mod alert;
pub(crate) mod check;
mod choices;
pub(crate) mod replay;
pub(crate) mod trash;

pub use self::choices::Choice;
use self::choices::{describe, lost, replays};
use crate::engine::core::Core;
use crate::engine::ops::named;
use crate::error::Error;
use crate::handler::reply::{Answer, answer};
use crate::handler::shared::{Changed, InsideTransaction, Shared, keep, store_error};
use crate::handler::undo;
use crate::jobs::Jobs;
use crate::model::effect::{EffectRecord, EffectState, Risk, Stored, Undoing};
use crate::model::id::{EffectId, JobId};
use crate::model::job::{JobRow, Memo};
use crate::model::letter::{Entry, LetterRecord, Question, Signed, Verdict, Why};
use crate::model::time::Wall;
use crate::rules::Refusal;
use crate::rules::letter;
use crate::rules::review::{self, Second};
use crate::rules::undo::undo_key;
use crate::store::{Lane, Op, StoreError, View, Write};
use std::sync::Arc;
use std::time::SystemTime;

/// A job that ended its automatic life: what failed, what was done, and what a person is asked.
#[derive(Clone, Debug)]
pub struct DeadLetter {
    job: JobId,
    revision: u32,
    kind: String,
    key: String,
    title: String,
    why: Why,
    error: String,
    created: Wall,
    attempts: u32,
    ledger: Vec<LedgerLine>,
    questions: Vec<Question>,
    choices: Vec<Choice>,
    history: Vec<Entry>,
    steps: Vec<String>,
    checkable: Vec<EffectId>,
    proposed: Option<(Verdict, Signed)>,
    two: bool,
}

/// One effect of a letter's job, as a person sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LedgerLine {
    /// Name and part.
    pub id: EffectId,
    /// One plain sentence.
    pub says: String,
    /// Where it stands.
    pub state: EffectState,
    /// What can go wrong when it happens twice.
    pub risk: Risk,
    /// The provider's operation id.
    pub reference: Option<String>,
    /// What the provider was given; look it up with this.
    pub idempotency_key: String,
    /// Where to look it up: address and what to do there.
    pub look_up: Option<(String, String)>,
    /// The last error of a call or probe.
    pub error: Option<String>,
    /// How often the provider was called.
    pub calls: u32,
    /// The job that would compensate it, or does, as kind and key.
    pub undo: Option<(String, String)>,
    /// How far its compensation is.
    pub undoing: Undoing,
    /// The job that undoes it, or did, while that is remembered.
    pub undo_job: Option<JobId>,
}

impl Choice {
    /// The decision that carries it out, still to be signed with [`by`](Decision::by): a list of choices is all that a screen needs
    /// where nothing has to be typed in; a reference is added with [`with_reference`](Decision::with_reference).
    pub fn decision(&self) -> Decision {
        Decision::new(self.decides.clone())
    }
}

impl DeadLetter {
    /// The job.
    pub fn job(&self) -> JobId {
        self.job
    }
    /// Its kind as stored at enqueue.
    pub fn kind(&self) -> &str {
        &self.kind
    }
    /// Its key.
    pub fn key(&self) -> &str {
        &self.key
    }
    /// What the app calls it.
    pub fn title(&self) -> &str {
        &self.title
    }
    /// Why it is here.
    pub fn why(&self) -> Why {
        self.why
    }
    /// What went wrong last.
    pub fn error(&self) -> &str {
        &self.error
    }
    /// When the letter was created.
    pub fn created(&self) -> SystemTime {
        self.created.to_system()
    }
    /// Attempts so far.
    pub fn attempts(&self) -> u32 {
        self.attempts
    }
    /// Which view of the job this is: a decision on an older one is refused.
    pub fn revision(&self) -> u32 {
        self.revision
    }
    /// Every effect, each with its state: done, not sure, not done.
    pub fn ledger(&self) -> &[LedgerLine] {
        &self.ledger
    }
    /// What a person is asked.
    pub fn questions(&self) -> &[Question] {
        &self.questions
    }
    /// The valid choices.
    pub fn choices(&self) -> &[Choice] {
        &self.choices
    }
    /// Steps and commits that are remembered, in order: it can be run again from one of them.
    pub fn steps(&self) -> &[String] {
        &self.steps
    }
    /// Effects about which the provider can be asked again: [`Jobs::check_again`].
    pub fn can_check(&self) -> &[EffectId] {
        &self.checkable
    }
    /// Two people have to decide this: [`Policy::second_person_above`](crate::Policy::second_person_above).
    pub fn needs_second_person(&self) -> bool {
        self.two
    }
    /// What one person decided already, where two have to: it waits for another one to decide the same.
    pub fn proposed(&self) -> Option<(&Verdict, &Signed)> {
        self.proposed.as_ref().map(|(verdict, signed)| (verdict, signed))
    }
    /// What happened to the job, oldest first.
    pub fn history(&self) -> &[Entry] {
        &self.history
    }
    /// The question in plain words.
    pub fn headline(&self) -> String {
        let says =
            |id: &EffectId| self.ledger.iter().find(|l| l.id == *id).map_or_else(|| id.to_string(), |l| l.says.clone());
        match self.questions.first() {
            Some(Question::DidItHappen { effect }) => format!("Did this happen: {}?", says(effect)),
            Some(Question::RequestChanged { effect }) => {
                format!("{} was asked for before, and now something else is. Did the first one happen?", says(effect))
            }
            Some(Question::RequestUnreadable { effect }) => {
                format!("This version of the app cannot read what it asked for: {}. Did it happen?", says(effect))
            }
            Some(Question::ResultLost { effect }) => {
                lost(says(effect), self.ledger.iter().find(|l| l.id == *effect).and_then(|l| l.reference.as_deref()))
            }
            Some(Question::Undeclared { effect }) => {
                format!("This version of the app no longer knows this effect: {}. What now?", says(effect))
            }
            Some(Question::Conflict { effect }) => {
                format!("There are two different accounts of this: {}. Which one is true?", says(effect))
            }
            Some(Question::WhatNow) | None => format!("{}: {}. What now?", self.title, self.why.says()),
        }
    }
}

/// What a person decides; sign it with [`by`](Self::by).
#[derive(Clone, Debug)]
#[must_use = "hand it to Jobs::decide"]
pub struct Decision {
    verdict: Verdict,
    who: String,
    why: String,
    /// Something was added that does not belong to this decision: it is refused rather than left out.
    misused: Option<&'static str>,
}

impl Decision {
    fn new(verdict: Verdict) -> Self {
        Self { verdict, who: String::new(), why: String::new(), misused: None }
    }
    /// The effect happened. With the provider's reference its result can be rebuilt.
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
    /// Any other decision with it is refused: whoever has a reference has seen that it happened.
    pub fn with_reference(mut self, found: &str) -> Self {
        if let Verdict::Happened { reference, .. } = &mut self.verdict {
            *reference = Some(found.to_owned());
        } else {
            self.misused = Some("a reference belongs to \"it happened\": leave out with_reference(..) or decide that");
        }
        self
    }
    /// Explicitly wants a new idempotency key for the next call; belongs to [`did_not_happen`](Self::did_not_happen) only, any other
    /// decision with it is refused.
    pub fn with_new_key(mut self) -> Self {
        if let Verdict::DidNotHappen { new_key, .. } = &mut self.verdict {
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

impl Jobs {
    /// All dead letters, by job.
    ///
    /// # Errors
    /// A store that cannot read.
    pub fn dead_letters(&self) -> Result<Vec<DeadLetter>, Error> {
        let mut out = Vec::new();
        let mut after = None;
        loop {
            let page = self.dead_letters_after(after, 100)?;
            let Some(last) = page.last() else { return Ok(out) };
            after = Some(last.job);
            out.extend(page);
        }
    }
    /// A page of dead letters: those of jobs after `after`, at most `at_most`; empty only if there are none. One that cannot be
    /// read is left out with a warning: the others still need their answers, and [`dead_letter`](Self::dead_letter) says why.
    ///
    /// # Errors
    /// A store that cannot read.
    pub fn dead_letters_after(&self, after: Option<JobId>, at_most: usize) -> Result<Vec<DeadLetter>, Error> {
        let shared = self.shared();
        shared.may_call()?;
        let (mut out, mut after) = (Vec::new(), after);
        while out.is_empty() {
            let ids = shared.store.read(|v| v.letter_ids(after, at_most))?;
            let Some(last) = ids.last() else { break };
            after = Some(*last);
            for id in ids {
                match self.read_letter(id) {
                    // None: answered between the two reads, not a letter any more.
                    Ok(letter) => out.extend(letter),
                    Err(Error::Store(StoreError::Corrupt { what })) => {
                        shared.report.warn(&format!("the letter of job {id} is not shown: {what}"));
                    }
                    Err(e) => return Err(e),
                }
            }
        }
        Ok(out)
    }
    /// One job's letter.
    ///
    /// # Errors
    /// [`Error::NoLetter`] if the job has none.
    pub fn dead_letter(&self, id: JobId) -> Result<DeadLetter, Error> {
        self.shared().may_call()?;
        self.read_letter(id)?.ok_or(Error::NoLetter(id))
    }
    /// Everything that is known of a job's past, oldest first.
    ///
    /// # Errors
    /// A store that cannot read.
    pub fn history(&self, id: JobId) -> Result<Vec<Entry>, Error> {
        let shared = self.shared();
        shared.may_call()?;
        Ok(shared.store.read(|v| v.journal(id))?)
    }
    /// Every effect of a job, each with its state.
    ///
    /// # Errors
    /// A store that cannot read.
    pub fn ledger(&self, id: JobId) -> Result<Vec<LedgerLine>, Error> {
        let shared = self.shared();
        shared.may_call()?;
        Ok(shared.store.read(|v| lines(v, &v.effects(id)?))?)
    }
    /// Carries out a person's decision, signed, in one commit. Where two people have to decide, the first one's decision is kept
    /// and waits for the second.
    ///
    /// # Errors
    /// Refused if the letter changed since it was shown, which says what has happened since, if it is not one of the valid choices, if unresolved effects need an
    /// answer first, or if who or why is missing.
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

    fn submit_decision(
        &self,
        letter: &DeadLetter,
        decision: Decision,
    ) -> Result<crate::handler::reply::Reply<Result<Decided, Error>>, Error> {
        let shared = self.shared();
        shared.may_call()?;
        if let Some(why) = decision.misused {
            return Err(Refusal::NotAChoice(why.to_owned()).into());
        }
        if let Verdict::Happened { reference: Some(reference), .. } = &decision.verdict {
            in_one_line("reference", reference)?;
        }
        let signed = sign(shared, decision.who, decision.why)?;
        let (tell, reply) = answer();
        let op = DecideOp {
            core: self.0.core.clone(),
            job: letter.job,
            shown: letter.revision,
            verdict: decision.verdict,
            signed,
            lines: letter.history.len(),
            answer: tell,
            done: None,
        };
        shared.submit(Lane::Outcome, Box::new(op))?;
        Ok(reply)
    }

    fn read_letter(&self, id: JobId) -> Result<Option<DeadLetter>, Error> {
        read_letter(self.shared(), id)
    }
}

fn read_letter(shared: &Shared, id: JobId) -> Result<Option<DeadLetter>, Error> {
    let found = shared.store.read(|v| load(v, id))?;
    let Some((row, record, letter, effects, ledger, history, mut memos)) = found else { return Ok(None) };
    let two = {
        // The stake is read by the app's code.
        let _inside = InsideTransaction::enter();
        letter.proposed.is_some() || two_decide(shared, &row)
    };
    let kind = shared.kind_name(row.kind).to_string();
    memos.sort_by_key(|m| m.number);
    let valid = letter::choices(&letter, &effects);
    let follows = |verdict: &Verdict| {
        // A result is rebuilt by the app's code.
        let _inside = InsideTransaction::enter();
        let nobody = Signed { who: String::new(), why: String::new(), at: shared.now().wall };
        let running = |effect: &EffectId| shared.calls.running(id, effect);
        let verdict = rebuilt(shared, verdict, &effects);
        let rules = shared.rules_of(row.kind);
        let change = letter::decide(&record, &letter, &effects, &verdict, &nobody, record.revision, &running, rules);
        change.map_err(|refusal| refusal.to_string())
    };
    let mut choices: Vec<Choice> = valid.iter().map(|c| describe(c, &effects, &follows)).collect();
    choices.extend(replays(&valid, &effects, &memos));
    let can_ask = |e: &&EffectRecord| shared.registry.effect(&e.id.name).is_some_and(|entry| entry.prober.is_some());
    let checkable = effects.iter().filter(|e| review::may_check(&letter, e)).filter(can_ask).map(|e| e.id.clone());
    let checkable = checkable.collect();
    Ok(Some(DeadLetter {
        job: id,
        revision: record.revision,
        kind,
        key: row.key.to_string(),
        title: row.title,
        why: letter.why,
        error: letter.error,
        created: letter.created,
        attempts: record.attempts,
        ledger,
        questions: letter.questions,
        choices,
        history,
        steps: memos.into_iter().map(|m| m.name).collect(),
        checkable,
        proposed: letter.proposed.map(|both| *both),
        two,
    }))
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

/// Who and why, both required: a decision that nobody signed is none.
pub(crate) fn sign(shared: &Shared, who: String, why: String) -> Result<Signed, Error> {
    for (what, text) in [("name of the person who decides", &who), ("reason", &why)] {
        if text.trim().is_empty() {
            return Err(Refusal::NotAChoice(format!("the {what} is missing: sign it with .by(who, why)")).into());
        }
        let limit = shared.limits.error_text;
        if text.len() > limit {
            return Err(Error::TooBig { what: "reason or name", len: text.len(), limit });
        }
        in_one_line(what, text)?;
    }
    named_person(&who)?;
    Ok(Signed { who, why, at: shared.now().wall })
}

/// What people sign with stands in lists, line by line: a line break in it could look like the line of somebody else.
fn in_one_line(what: &str, text: &str) -> Result<(), Error> {
    if text.chars().any(crate::model::letter::breaks_a_line) {
        let text = format!("the {what} has line breaks or other control characters: write it in one plain line");
        return Err(Refusal::NotAChoice(text).into());
    }
    Ok(())
}

/// A name of which something can be seen.
fn named_person(who: &str) -> Result<(), Error> {
    if crate::model::letter::person(who).is_empty() {
        let text = "the name of the person who decides has nothing that can be seen: sign with an authenticated id";
        return Err(Refusal::NotAChoice(text.into()).into());
    }
    Ok(())
}

/// A stale view says what has happened since it was shown: the lines of the history that it did not have.
fn with_news(refusal: Refusal, history: &[Entry], shown: usize) -> Refusal {
    if let Refusal::Stale { shown: was, now, .. } = refusal {
        return Refusal::Stale { shown: was, now, since: history.iter().skip(shown).map(Entry::says).collect() };
    }
    refusal
}

type Loaded =
    (JobRow, crate::model::job::JobRecord, LetterRecord, Vec<EffectRecord>, Vec<LedgerLine>, Vec<Entry>, Vec<Memo>);

fn load(v: &View<'_>, id: JobId) -> Result<Option<Loaded>, StoreError> {
    let Some(letter) = v.letter(id)? else { return Ok(None) };
    let (Some(row), Some(record)) = (v.job(id)?, v.record(id)?) else { return Ok(None) };
    let effects = v.effects(id)?;
    let ledger = lines(v, &effects)?;
    Ok(Some((row, record, letter, effects, ledger, v.journal(id)?, v.memos(id)?)))
}

fn lines(v: &View<'_>, effects: &[EffectRecord]) -> Result<Vec<LedgerLine>, StoreError> {
    effects.iter().map(|e| Ok(line(e, undo_job(v, e)?))).collect()
}

/// The job that undoes it, if undoing it was ever begun.
fn undo_job(v: &View<'_>, e: &EffectRecord) -> Result<Option<JobId>, StoreError> {
    let Some(undo) = e.undo.as_ref().filter(|_| e.is_taken_back()) else { return Ok(None) };
    match v.kind(&undo.kind)? {
        Some(kind) => Ok(v.intent(kind, undo_key(e).as_str())?.map(|i| i.id())),
        None => Ok(None),
    }
}

fn line(e: &EffectRecord, undo_job: Option<JobId>) -> LedgerLine {
    LedgerLine {
        id: e.id.clone(),
        says: e.says.clone(),
        state: e.state,
        risk: e.risk,
        reference: e.reference.clone(),
        idempotency_key: e.key.as_str().to_owned(),
        look_up: e.look_up.clone(),
        error: e.error.clone().or_else(|| match &e.result {
            Some(Stored::Lost(why)) => Some(why.clone()),
            Some(Stored::Json(_)) | None => None,
        }),
        calls: e.calls,
        undo: e.undo.as_ref().map(|u| (u.kind.clone(), undo_key(e).to_string())),
        undoing: e.undoing,
        undo_job,
    }
}

/// Whether two people have to decide about this job.
fn needs_two(shared: &Shared, tx: &Write<'_>, id: JobId) -> Result<bool, StoreError> {
    // What was begun by one is ended by another, whatever the rule says now.
    let begun = tx.letter(id)?.is_some_and(|letter| letter.proposed.is_some());
    if begun {
        return Ok(true);
    }
    match tx.job(id) {
        Ok(Some(row)) => Ok(two_decide(shared, &row)),
        // What is at stake cannot be read: as for a payload that cannot.
        Ok(None) | Err(StoreError::Corrupt { .. }) => {
            Ok(tx.record(id)?.is_some_and(|job| shared.registry.may_need_two(&shared.kind_name(job.kind))))
        }
        Err(e) => Err(e),
    }
}

fn two_decide(shared: &Shared, row: &JobRow) -> bool {
    let name = shared.kind_name(row.kind);
    // Of a kind that is not registered here nobody can read the stake; that two had to decide is remembered.
    let Some(kind) = shared.registry.kind(&name) else { return shared.registry.may_need_two(&name) };
    let Some(limit) = kind.rules.second_person_above else { return false };
    (kind.stake)(row).is_none_or(|stake| limit == 0 || stake > limit)
}

/// A decision on its way into the store.
struct DecideOp {
    core: Arc<Core>,
    job: JobId,
    shown: u32,
    verdict: Verdict,
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
        let effects = tx.effects(self.job)?;
        let verdict = rebuilt(shared, &self.verdict, &effects);
        // Nor is anything undone while a provider is still being asked about it.
        let asked = |id: &EffectId| {
            matches!(verdict, Verdict::Undo) && self.core.checks.lock().contains(&(self.job, id.clone()))
        };
        let running = |id: &EffectId| shared.calls.running(self.job, id) || asked(id);
        let rules = shared.rules_of(job.kind);
        let decided = match &verdict {
            Verdict::ReplayFrom { step } => {
                let memos = tx.memos(self.job)?;
                let signed = &self.signed;
                review::replay_from(&job, &letter, &effects, &memos, step, signed, self.shown, &running, rules)
            }
            Verdict::Happened { .. }
            | Verdict::DidNotHappen { .. }
            | Verdict::TryAgain
            | Verdict::HandledOutside
            | Verdict::Undo
            | Verdict::Discard => {
                letter::decide(&job, &letter, &effects, &verdict, &self.signed, self.shown, &running, rules)
            }
        };
        let (mut change, mut came) = match decided {
            Ok(change) => (change, Decided::Done),
            Err(stale @ Refusal::Stale { .. }) => {
                return Err(with_news(stale, &tx.journal(self.job)?, self.lines).into());
            }
            Err(refusal) => return Err(refusal.into()),
        };
        if needs_two(shared, tx, self.job)?
            && let Second::Waits(first) = review::second(&job, &letter, &verdict, &self.signed)?
        {
            (change, came) = (*first, Decided::WaitsForSecond);
        }
        let changed = named(tx, shared, change)?;
        Ok((undo::put(tx, shared, changed, None)?, came))
    }
}

/// A reference becomes the result it stands for, if the effect can rebuild it, and says how it is undone, as the result of a call does.
fn rebuilt(shared: &Shared, verdict: &Verdict, effects: &[EffectRecord]) -> Verdict {
    match verdict {
        Verdict::Happened { effect, reference, result: None, .. } => {
            let record = effects.iter().find(|e| e.id == *effect);
            let entry = shared.registry.effect(&effect.name);
            let (result, undo) = record
                .zip(entry)
                .and_then(|(r, entry)| (entry.rebuild)(&r.request, r.version, reference.as_deref()))
                .filter(|(json, _)| json.len() <= shared.limits.payload)
                .unzip();
            let undo = undo.and_then(|undo| undo.into_stored(&shared.limits).unwrap_or_default());
            let undo = shared.registry.runs(undo);
            Verdict::Happened { effect: effect.clone(), reference: reference.clone(), result, undo }
        }
        Verdict::Happened { .. }
        | Verdict::DidNotHappen { .. }
        | Verdict::TryAgain
        | Verdict::HandledOutside
        | Verdict::Discard
        | Verdict::Undo
        | Verdict::ReplayFrom { .. } => verdict.clone(),
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
