//! The face for people: dead letters, their questions, and decisions. Only valid choices; every act signed and kept.

pub(crate) mod alert;
pub(crate) mod check;
mod choices;
pub(crate) mod decide;
mod lift;
pub(crate) mod replay;
pub(crate) mod trash;

pub use self::choices::{Choice, Needs};
use self::choices::{Scene, lost, offered};
use crate::error::Error;
use crate::handler::fail::was_cut;
use crate::handler::job::title;
use crate::handler::shared::{InsideTransaction, Shared};
use crate::jobs::Jobs;
use crate::model::effect::{EffectCard, EffectRecord, EffectState, Risk, Stored, Undoing};
use crate::model::id::{EffectId, JobId};
use crate::model::job::{JobRow, Memo};
use crate::model::letter::{Entry, LetterRecord, Question, Signed, Verdict, Why};
use crate::model::shown::Shown;
use crate::model::time::Wall;
use crate::rules::Refusal;
use crate::rules::letter;
use crate::rules::review;
use crate::rules::undo::undo_key;
use crate::store::{StoreError, View, Write};
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
    not_begun: Vec<&'static str>,
    steps: Vec<String>,
    checkable: Vec<EffectId>,
    proposed: Option<(Verdict, Signed)>,
    two: bool,
    restored: Option<Signed>,
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

impl LedgerLine {
    /// Where it stands, in the words of a screen: done, not sure, not done, undone, or on its way to that.
    pub fn standing(&self) -> &'static str {
        match (self.state, self.undoing) {
            (EffectState::Confirmed, Undoing::No) => "done",
            (EffectState::Confirmed, Undoing::UnderWay) => "done, and being undone",
            (EffectState::Confirmed, Undoing::GivenUp) => "done, and nobody undoes it any more",
            (EffectState::Intended | EffectState::Unknown, _) => "not sure",
            (EffectState::Refused(_), _) => "not done",
            (EffectState::Undone, _) => "undone",
        }
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
    /// Every effect that was begun, each with its state: done, not sure, not done, undone ([`LedgerLine::standing`]).
    pub fn ledger(&self) -> &[LedgerLine] {
        &self.ledger
    }
    /// Effects that the kind declares and this job has not begun, by name: not done yet. Empty if the kind is not registered here.
    pub fn not_begun(&self) -> &[&'static str] {
        &self.not_begun
    }
    /// What a person is asked.
    pub fn questions(&self) -> &[Question] {
        &self.questions
    }
    /// Everything that a person may do about it, for one list: an open proposal to agree to, questions that the provider can be asked
    /// again, and the valid decisions, each with what will and what will not happen.
    pub fn choices(&self) -> &[Choice] {
        &self.choices
    }
    /// Steps and commits that are remembered, in order: it can be run again from one of them.
    pub fn steps(&self) -> &[String] {
        &self.steps
    }
    /// Effects about which the provider can be asked again: [`Jobs::check_again`]. Each is one of the [`choices`](Self::choices), too.
    pub fn can_check(&self) -> &[EffectId] {
        &self.checkable
    }
    /// Two people have to decide this: [`Policy::second_person_above`](crate::Policy::second_person_above).
    pub fn needs_second_person(&self) -> bool {
        self.two
    }
    /// What one person decided already, where two have to: it waits for another one to [`agree`](crate::Decision::agree). The first of
    /// the [`choices`](Self::choices) says what will happen then.
    pub fn proposed(&self) -> Option<(&Verdict, &Signed)> {
        self.proposed.as_ref().map(|(verdict, signed)| (verdict, signed))
    }
    /// Who brought it back out of the trash, and why, if somebody did since its job ran last: it asks what it asked before.
    pub fn restored(&self) -> Option<&Signed> {
        self.restored.as_ref()
    }
    /// What happened to the job, oldest first.
    pub fn history(&self) -> &[Entry] {
        &self.history
    }
    /// The question in plain words.
    pub fn headline(&self) -> String {
        let back = self.restored.as_ref();
        let back = back.map_or_else(String::new, |by| format!(" (brought back out of the trash by {})", by.who));
        Shown(&format!("{}{back}", self.question())).to_string()
    }
    fn question(&self) -> String {
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
    // What each choice would forget is worked out step by step: the values, perhaps many MiB, must not be copied for every one.
    memos.iter_mut().for_each(|m| m.value = Vec::new());
    let follows = |verdict: &Verdict| {
        // A result is rebuilt by the app's code.
        let _inside = InsideTransaction::enter();
        let nobody = Signed { who: String::new(), why: String::new(), at: shared.now().wall };
        let verdict = rebuilt(shared, verdict, &effects);
        let running = |effect: &EffectId| running(shared, id, &verdict, effect);
        let (rules, shown, running) = (shared.rules_of(row.kind), record.revision, &running);
        let case = letter::Case { job: &record, letter: &letter, effects: &effects, shown, running, rules };
        let came = review::say(&case, &memos, &verdict, &nobody);
        came.map_err(|refusal| or_asked(shared, id, refusal))
    };
    let begun = |card: &&EffectCard| effects.iter().any(|e| card.owns(&e.id.name));
    let not_begun = shared.rules_of(row.kind).effects.iter().filter(|c| !begun(c)).map(|c| c.name).collect();
    let can_ask = |e: &&EffectRecord| shared.registry.effect(&e.id.name).is_some_and(|entry| entry.prober.is_some());
    let checkable = effects.iter().filter(|e| review::may_check(&letter, e)).filter(can_ask).map(|e| e.id.clone());
    let checkable: Vec<EffectId> = checkable.collect();
    let holds = shared.holds(&kind);
    let choices = offered(
        &letter::choices(&letter, &effects),
        &checkable,
        &Scene {
            effects: &effects,
            memos: &memos,
            undoes: row.undoes.is_some(),
            holds: &holds,
            two,
            proposed: letter.proposed.as_deref(),
            follows: &follows,
            busy: &|effect| {
                let called = shared.calls.running(id, effect).then(|| Refusal::CallRunning(effect.clone()));
                called.or_else(|| shared.calls.asked(id, effect).then(|| Refusal::CheckRunning(effect.clone())))
            },
        },
    );
    let restored = history.iter().rev().find_map(|entry| {
        if let Entry::Restored { signed } = entry {
            return Some((signed.at == letter.created).then(|| signed.clone()));
        }
        // It has run since: this is another letter.
        entry.failed_attempt().map(|_| None)
    });
    Ok(Some(DeadLetter {
        job: id,
        revision: record.revision,
        title: title(&row, &kind),
        kind,
        key: row.key.to_string(),
        why: letter.why,
        error: letter.error,
        created: letter.created,
        attempts: record.attempts,
        ledger,
        questions: letter.questions,
        choices,
        history,
        not_begun,
        steps: memos.into_iter().map(|m| m.name).collect(),
        checkable,
        proposed: letter.proposed.map(|both| *both),
        two,
        restored: restored.flatten(),
    }))
}

/// Who and why, both required: a decision that nobody signed is none.
pub(crate) fn sign(shared: &Shared, who: String, why: String) -> Result<Signed, Error> {
    for (what, text) in [("name of the person who decides", &who), ("reason", &why)] {
        if text.trim().is_empty() {
            return Err(Refusal::NotAChoice(format!("the {what} is missing: say who does this and why")).into());
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
        // What the letter asked is known to whoever saw it.
        let news = history.iter().skip(shown).filter(|e| !matches!(e, Entry::Asked { .. }));
        return Refusal::Stale { shown: was, now, since: news.map(Entry::says).collect() };
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

/// Whether a call of the effect runs; nor is anything undone while its provider is still being asked about it.
fn running(shared: &Shared, job: JobId, verdict: &Verdict, effect: &EffectId) -> bool {
    shared.calls.running(job, effect) || (matches!(verdict, Verdict::Undo) && shared.calls.asked(job, effect))
}

/// What is waited for may be the answer to a question, not the end of a call.
fn or_asked(shared: &Shared, job: JobId, refusal: Refusal) -> Refusal {
    if let Refusal::CallRunning(effect) = &refusal
        && !shared.calls.running(job, effect)
        && shared.calls.asked(job, effect)
    {
        return Refusal::CheckRunning(effect.clone());
    }
    refusal
}

/// A reference becomes the result it stands for, if the effect can rebuild it, and says how it is undone, as the result of a call does.
fn rebuilt(shared: &Shared, verdict: &Verdict, effects: &[EffectRecord]) -> Verdict {
    match verdict {
        Verdict::Happened { effect, reference, result: None, .. } => {
            let record = effects.iter().find(|e| e.id == *effect);
            let entry = shared.registry.effect(&effect.name);
            // Where the result is lost, the reference that is known may do: the app may have learnt to read it since.
            let known = record.filter(|r| matches!(r.result, Some(Stored::Lost(_)))).and_then(|r| r.reference.as_ref());
            // One that was cut names another operation, or none.
            let known = known.filter(|reference| !was_cut(reference, shared.limits.key));
            let found = reference.as_ref().or(known);
            let (result, undo) = record
                .zip(entry)
                .and_then(|(r, entry)| (entry.rebuild)(&r.request, r.version, found.map(String::as_str)))
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
