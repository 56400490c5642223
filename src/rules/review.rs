//! What people do beside deciding: have the provider asked again, agree as the second person, run again from a remembered step,
//! bring something back out of the trash.
//!
//! Keeps the promise that "it happened" counts from wherever it is learned, that "not there" only informs the person who decides,
//! and that no effect record is ever forgotten. Called by the desk's operations.

use super::effect::{Asking, gate, probed};
use super::learn::answers;
use super::letter::{Case, Choice, decide};
use super::moves::put_letter;
use super::{CallFacts, Change, Env, LetterMove, Refusal, lifecycle};
use crate::model::attempt::Class;
use crate::model::effect::{EffectRecord, EffectState, Probed, Stored};
use crate::model::id::{EffectId, Lease, Token};
use crate::model::job::{End, JobRecord, JobState, Memo, State};
use crate::model::letter::{Entry, LetterRecord, Question, Signed, Verdict, Why, person};
use crate::model::policy::KindRules;
use crate::model::time::{Wall, millis};
use std::time::Duration;

/// For an effect without a probe in its rule: "not there" means something only this long after its last call.
const SETTLE: Duration = Duration::from_secs(60);

/// Whether asking the provider about this effect could tell a person anything.
pub fn may_check(letter: &LetterRecord, record: &EffectRecord) -> bool {
    let asked = letter.questions.iter().any(|q| q.effect() == Some(&record.id));
    let kept = record.state == EffectState::Confirmed && matches!(record.result, Some(Stored::Json(_)));
    record.state.is_unresolved() || (asked && (!kept || record.conflict))
}

/// What a question to the provider rests on, when a person has it asked. Never beside a running call: its answer would be old
/// before it came.
pub fn ask_again(record: &EffectRecord, rules: &KindRules, facts: CallFacts) -> Result<Asking, Refusal> {
    if facts.running_ms.is_some() {
        return Err(Refusal::CallRunning(record.id.clone()));
    }
    let settle = rules.card(&record.id.name).and_then(|c| c.recovery.settle()).unwrap_or(SETTLE);
    Ok(Asking { generation: record.generation, settled: facts.quiet_ms >= millis(settle) })
}

/// Who asked, about what, and what it rests on.
#[derive(Clone, Debug)]
pub struct Check<'a> {
    /// About which effect.
    pub effect: &'a EffectId,
    /// Who.
    pub who: &'a str,
    /// The revision that was shown.
    pub shown: u32,
    /// As [`ask_again`] said.
    pub asking: Asking,
}

/// The provider's answer to a person: "it happened" is proof, as from a late call; everything else is written down for the person
/// to decide, and only if nothing else has happened since the question.
pub fn checked(
    job: &JobRecord,
    letter: Option<&LetterRecord>,
    effects: &[EffectRecord],
    check: &Check<'_>,
    answer: Probed,
    rules: &KindRules,
    env: &Env<'_>,
) -> Result<Change, Refusal> {
    let Some(record) = effects.iter().find(|e| e.id == *check.effect) else {
        return Err(Refusal::NotAChoice(format!("this job has no effect {}: take one of its letter", check.effect)));
    };
    let entry = Entry::Checked {
        effect: record.id.clone(),
        answer: in_words(&answer, check.asking.settled),
        who: check.who.to_owned(),
        at: env.now.wall,
    };
    if let Probed::Found { .. } = answer {
        // No claim has this token: the answer is nobody's attempt, and counts as every late proof does.
        let nobody = Lease { job: job.id, token: Token(0) };
        let (mut change, _) = probed(job, record, &nobody, check.asking, answer, rules, env)?;
        change.journal.insert(0, entry);
        let mut all = effects.to_vec();
        for new in &change.effects {
            all.iter_mut().filter(|e| e.id == new.id).for_each(|e| *e = new.clone());
        }
        return Ok(lifecycle::learned(change, letter, &all, rules, env));
    }
    if !matches!(job.state, JobState::NeedsDecision | JobState::Dead) {
        return Err(Refusal::WrongState(State::from(&job.state)));
    }
    if check.shown != job.revision || record.generation != check.asking.generation {
        return Err(Refusal::Stale { shown: check.shown, now: job.revision, since: Vec::new() });
    }
    if (env.calls)(record).running_ms.is_some() {
        return Err(Refusal::CallRunning(record.id.clone()));
    }
    let mut change = Change::of(job);
    change.record.revision = job.revision.saturating_add(1);
    change.note(entry);
    if let Some(letter) = letter.filter(|l| l.proposed.is_some()) {
        // Whoever proposed something did so on the old view.
        change.letter = LetterMove::Put(LetterRecord { proposed: None, ..letter.clone() });
    }
    if let Probed::CannotTell(text) = answer {
        change.effects.push(EffectRecord { error: Some(text), ..record.clone() });
    }
    Ok(change)
}

/// A provider's answer in plain words.
pub fn in_words(answer: &Probed, settled: bool) -> String {
    match answer {
        Probed::Found { reference: Some(r), .. } => format!("it happened (reference {r})"),
        Probed::Found { reference: None, .. } => "it happened".to_owned(),
        Probed::NotThere if settled => "not there".to_owned(),
        Probed::NotThere => "not there yet; its last call is so recent that it may still arrive".to_owned(),
        Probed::CannotTell(text) => format!("cannot tell: {text}"),
    }
}

/// Whether a decision that two people have to take may be carried out.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub enum Second {
    /// This is the second person, and the two agree.
    Agreed,
    /// This is the first one: kept until somebody else decides the same.
    Waits(Box<Change>),
}

/// Where two have to decide. Another verdict than the first one's is a new proposal.
pub fn second(job: &JobRecord, letter: &LetterRecord, verdict: &Verdict, signed: &Signed) -> Result<Second, Refusal> {
    if let Some((first, by)) = letter.proposed.as_deref()
        && verdict.agrees_with(first)
    {
        if person(&by.who) == person(&signed.who) {
            return Err(Refusal::SecondPerson(by.who.clone()));
        }
        return Ok(Second::Agreed);
    }
    let mut change = Change::of(job);
    change.record.revision = job.revision.saturating_add(1);
    change.note(Entry::Proposed { verdict: verdict.clone(), signed: signed.clone() });
    put_letter(
        &mut change,
        LetterRecord { proposed: Some(Box::new((verdict.clone(), signed.clone()))), ..letter.clone() },
    );
    Ok(Second::Waits(Box::new(change)))
}

/// What a word comes to beside an open proposal: whoever says the same agrees to what was proposed, with the reference that the
/// first one knew.
pub fn as_proposed(letter: &LetterRecord, verdict: &Verdict) -> Verdict {
    match letter.proposed.as_deref() {
        Some((first, _)) if verdict.agrees_with(first) => first.bare(),
        Some(_) | None => verdict.clone(),
    }
}

/// What somebody who agrees decides: exactly what was proposed on the view that was shown.
pub fn proposal(job: &JobRecord, letter: &LetterRecord, shown: u32) -> Result<Verdict, Refusal> {
    if shown != job.revision {
        return Err(Refusal::Stale { shown, now: job.revision, since: Vec::new() });
    }
    letter.proposed.as_deref().map(|(first, _)| first.bare()).ok_or(Refusal::NoProposal)
}

/// The proposal is taken back, by whoever made it or by somebody who does not agree: the letter asks as before. One person is
/// enough for that: nothing is carried out.
pub fn drop_proposal(job: &JobRecord, letter: &LetterRecord, signed: &Signed, shown: u32) -> Result<Change, Refusal> {
    proposal(job, letter, shown)?;
    let Some((verdict, by)) = letter.proposed.as_deref() else { return Err(Refusal::NoProposal) };
    let mut change = Change::of(job);
    change.record.revision = job.revision.saturating_add(1);
    change.note(Entry::ProposalDropped { verdict: verdict.bare(), proposer: by.who.clone(), signed: signed.clone() });
    change.letter = LetterMove::Put(LetterRecord { proposed: None, ..letter.clone() });
    Ok(change)
}

/// What is forgotten when a job runs again from `step`: it and everything that was remembered after it, in order. `None` if nothing
/// of that name is remembered.
pub fn forgotten<'a>(memos: &'a [Memo], step: &str) -> Option<Vec<&'a Memo>> {
    let from = memos.iter().find(|m| m.name == step)?.number;
    let mut out: Vec<&Memo> = memos.iter().filter(|m| m.number >= from).collect();
    out.sort_by_key(|m| m.number);
    Some(out)
}

/// What a person's word comes to, whatever it is. `memos` are the job's, in any order.
pub fn say(case: &Case<'_>, memos: &[Memo], verdict: &Verdict, signed: &Signed) -> Result<Change, Refusal> {
    match verdict {
        Verdict::ReplayFrom { step } => replay_from(case, memos, step, signed),
        Verdict::Happened { .. }
        | Verdict::DidNotHappen { .. }
        | Verdict::TryAgain
        | Verdict::HandledOutside
        | Verdict::Undo
        | Verdict::Discard => decide(case, verdict, signed),
    }
}

/// The steps and commits from which a job can run again, where running again is a choice at all.
pub fn replays<'a>(valid: &[Choice], effects: &[EffectRecord], memos: &'a [Memo]) -> Vec<&'a Memo> {
    if !valid.contains(&Choice::TryAgain) || effects.iter().any(|e| e.state.is_unresolved()) {
        return Vec::new();
    }
    memos.iter().collect()
}

/// Runs a job again from a remembered step or commit. What is forgotten goes into the history with its value; effect records stay,
/// so nothing outside happens again.
pub fn replay_from(case: &Case<'_>, memos: &[Memo], step: &str, signed: &Signed) -> Result<Change, Refusal> {
    let mut change = try_again(case, signed)?;
    let Some(gone) = forgotten(memos, step) else {
        return Err(Refusal::NotAChoice(format!(
            "no step or commit named {step:?} is remembered: take one of those that the letter names"
        )));
    };
    let verdict = Verdict::ReplayFrom { step: step.to_owned() };
    change.journal = vec![Entry::Decision { verdict, signed: signed.clone() }];
    for memo in &gone {
        let Memo { name, commit, value, .. } = *memo;
        change.note(Entry::Forgotten { name: name.clone(), commit: *commit, value: value.clone() });
        change.forget.push(name.clone());
    }
    let left = memos.len().saturating_sub(gone.len());
    change.record.memos = u32::try_from(left).unwrap_or(u32::MAX);
    Ok(change)
}

/// Runs it again, for a whole list or from a step: never while nobody knows about an effect, nor beside a call that still runs.
pub fn try_again(case: &Case<'_>, signed: &Signed) -> Result<Change, Refusal> {
    let Case { effects, running, .. } = *case;
    let change = decide(case, &Verdict::TryAgain, signed)?;
    let open: Vec<EffectId> = effects.iter().filter(|e| e.state.is_unresolved()).map(|e| e.id.clone()).collect();
    if !open.is_empty() {
        return Err(Refusal::Unresolved(open));
    }
    match effects.iter().find(|e| running(&e.id)) {
        Some(e) => Err(Refusal::CallRunning(e.id.clone())),
        None => Ok(change),
    }
}

/// Out of the trash and back among the letters: the letter that it had asks again, with the same questions, as far as late news have
/// not answered them, and with what turned up since. Nothing is undone, nor begun, by that.
pub fn restore(
    job: &JobRecord,
    effects: &[EffectRecord],
    history: &[Entry],
    signed: &Signed,
    rules: &KindRules,
) -> Result<Change, Refusal> {
    let JobState::Ended { how: End::Discarded, .. } = job.state else {
        return Err(Refusal::WrongState(State::from(&job.state)));
    };
    let mut change = Change::of(job);
    change.note(Entry::Restored { signed: signed.clone() });
    change.record.revision = job.revision.saturating_add(1);
    put_letter(&mut change, asked_again(effects, history, rules, signed.at));
    Ok(change)
}

/// The letter of a discarded job, as it asks today.
fn asked_again(effects: &[EffectRecord], history: &[Entry], rules: &KindRules, created: Wall) -> LetterRecord {
    let letter = |why, class, error, questions| LetterRecord { why, created, class, error, questions, proposed: None };
    // One that was thrown away by a version that did not keep what its letter asked is asked what now.
    let plain = |error| letter(Why::Restored, Class::Permanent, error, vec![Question::WhatNow]);
    let kept = history.iter().rev().find_map(|entry| {
        if let Entry::Asked { why, class, error, questions } = entry {
            return Some(letter(*why, *class, error.clone(), questions.clone()));
        }
        entry.failed_attempt().map(|(_, text)| plain(text.to_owned()))
    });
    let mut letter = kept.unwrap_or_else(|| plain(String::new()));
    let now = gate(effects, rules);
    let asked_what_now = letter.questions.contains(&Question::WhatNow) || now.contains(&Question::WhatNow);
    letter.questions.retain(|q| match q {
        Question::Undeclared { .. } | Question::Conflict { .. } | Question::DidItHappen { .. } => now.contains(q),
        Question::RequestChanged { .. } | Question::RequestUnreadable { .. } | Question::ResultLost { .. } => {
            let record = effects.iter().find(|e| q.effect() == Some(&e.id));
            record.is_some_and(|e| e.state != EffectState::Undone && !answers(e, q))
        }
        Question::WhatNow => false,
    });
    // What turned up while it lay there is asked first.
    let new: Vec<Question> =
        now.into_iter().filter(|q| *q != Question::WhatNow && !letter.questions.contains(q)).collect();
    letter.questions.splice(0..0, new);
    if letter.questions.is_empty() && !asked_what_now {
        // Its question was answered while it lay there; going on by itself would be a surprise.
        letter.why = Why::Restored;
    }
    if asked_what_now || letter.questions.is_empty() {
        letter.questions.push(Question::WhatNow);
    }
    letter
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{INSIDE, JUST_ENDED, QUIET, TTL, id, job, kind, ms, put, record, signed, with};
    use super::*;
    use crate::model::effect::{Recovery, Risk};

    fn rules() -> KindRules {
        kind(Recovery::same_key(ms(TTL)), Recovery::ask(), Risk::Charge)
    }
    fn dead(questions: Vec<Question>) -> (JobRecord, LetterRecord) {
        let state = if questions.contains(&Question::WhatNow) { JobState::Dead } else { JobState::NeedsDecision };
        let letter = LetterRecord {
            why: Why::TriesUsedUp,
            created: Wall(0),
            class: Class::Transient,
            error: "oops".into(),
            questions,
            proposed: None,
        };
        (JobRecord { attempts: 2, revision: 3, ..job(state) }, letter)
    }
    fn memo(name: &str, number: u32, commit: bool) -> Memo {
        Memo { name: name.into(), commit, value: number.to_string().into_bytes(), number }
    }
    fn found() -> Probed {
        Probed::Found { result: Stored::Json(b"1".to_vec()), reference: Some("op".into()), undo: None }
    }

    /// The provider is never asked beside a running call, and "not there" is believed only after its settle time.
    #[test]
    fn a_check_waits_for_running_calls_and_knows_what_not_there_is_worth() {
        let r = record("a", EffectState::Unknown, 1);
        assert!(matches!(ask_again(&r, &rules(), INSIDE), Err(Refusal::CallRunning(_))));
        let settled = |facts, rules: &KindRules| ask_again(&r, rules, facts).map(|a| a.settled);
        let probing = kind(Recovery::probe(ms(20)), Recovery::ask(), Risk::Charge);
        assert_eq!((settled(QUIET, &probing), settled(JUST_ENDED, &probing)), (Ok(true), Ok(false)));
        assert_eq!(settled(QUIET, &rules()), Ok(false), "without a settle time of its own: a minute");
    }

    /// "It happened" answers the question from wherever the job stands, also if the view is old; the job goes on.
    #[test]
    fn found_is_a_fact_whatever_was_shown() {
        let (job, letter) = dead(vec![Question::DidItHappen { effect: id("a") }]);
        let effects = vec![record("a", EffectState::Unknown, 1)];
        let check = Check { effect: &id("a"), who: "ada", shown: 1, asking: Asking { generation: 1, settled: false } };
        let change = with(QUIET, 5, |env| checked(&job, Some(&letter), &effects, &check, found(), &rules(), env));
        let change = change.expect("a fact is never stale");
        assert_eq!(change.effects()[0].state, EffectState::Confirmed);
        assert!(matches!(change.record().state, JobState::Ready { .. }));
        assert!(
            matches!(&change.journal()[0], Entry::Checked { answer, who, .. } if answer == "it happened (reference op)" && who == "ada")
        );
        // Beside something that was undone it does not: the news of one effect change nothing about another.
        let effects = [effects[0].clone(), record("b", EffectState::Undone, 1)];
        let change = with(QUIET, 5, |env| checked(&job, Some(&letter), &effects, &check, found(), &rules(), env));
        assert_eq!(change.expect("a fact is never stale").record().state, JobState::Dead);
    }

    /// The provider is asked where its answer tells a person something: about what is open, and about what the letter asks unless
    /// the one account of it is at hand.
    #[test]
    fn what_is_known_needs_no_check() {
        let done = record("a", EffectState::Confirmed, 1);
        let lost = EffectRecord { result: Some(Stored::Lost("too big".into())), ..done.clone() };
        let twice = EffectRecord { conflict: true, ..done.clone() };
        let refused = record("a", EffectState::Refused(crate::model::effect::Refusal::Said), 1);
        let (about_a, about_b) =
            (Question::RequestChanged { effect: id("a") }, Question::RequestChanged { effect: id("b") });
        for (record, asked, unasked) in [
            (record("a", EffectState::Unknown, 1), true, true),
            (done, false, false),
            (lost, true, false),
            (twice, true, false),
            (refused, true, false),
        ] {
            let may = |question: &Question| may_check(&dead(vec![question.clone()]).1, &record);
            assert_eq!((may(&about_a), may(&about_b)), (asked, unasked), "{record:?}");
        }
        assert_eq!(in_words(&Probed::NotThere, true), "not there");
        assert_eq!(
            in_words(&Probed::NotThere, false),
            "not there yet; its last call is so recent that it may still arrive"
        );
    }

    /// Running again from a step is offered where running again is, and never beside what nobody is sure of.
    #[test]
    fn a_replay_is_offered_where_running_again_is() {
        let memos = [memo("a", 0, false), memo("b", 1, true)];
        let (done, open) = ([record("a", EffectState::Confirmed, 1)], [record("a", EffectState::Unknown, 1)]);
        for (valid, effects, offered) in [
            (&[Choice::Discard, Choice::TryAgain][..], &done, 2),
            (&[Choice::Discard], &done, 0),
            (&[Choice::TryAgain], &open, 0),
            (&[Choice::Discard], &open, 0),
        ] {
            assert_eq!(replays(valid, effects, &memos).len(), offered, "{valid:?}");
        }
    }

    /// Everything else only informs: state and records stay, the revision rises; on an old view it is refused.
    #[test]
    fn not_there_only_informs() {
        let (job, letter) = dead(vec![Question::DidItHappen { effect: id("a") }]);
        let effects = vec![record("a", EffectState::Unknown, 1)];
        for (answer, text) in [(Probed::NotThere, "not there"), (Probed::CannotTell("503".into()), "cannot tell: 503")]
        {
            let ask = |shown| {
                let asking = Asking { generation: 1, settled: true };
                let check = Check { effect: &id("a"), who: "ada", shown, asking };
                with(QUIET, 5, |env| checked(&job, Some(&letter), &effects, &check, answer.clone(), &rules(), env))
            };
            let change = ask(3).expect("the view is the newest");
            assert_eq!((change.record().revision, &change.record().state), (4, &JobState::NeedsDecision));
            assert!(change.effects().iter().all(|e| e.state == EffectState::Unknown && !e.unresolved.is_empty()));
            assert!(matches!(&change.journal()[0], Entry::Checked { answer, .. } if answer == text));
            let down = matches!(answer, Probed::CannotTell(_)).then_some("503");
            assert_eq!(change.effects().first().and_then(|e| e.error.as_deref()), down);
            assert!(matches!(ask(2), Err(Refusal::Stale { .. })));
        }
    }

    /// Ann proposed; then Bob has the provider asked and learns something. Ann knew nothing of that: what she proposed is gone.
    #[test]
    fn a_proposal_does_not_outlive_the_view_it_was_made_on() {
        let (job, letter) = dead(vec![Question::DidItHappen { effect: id("a") }]);
        let proposed = Some(Box::new((Verdict::DidNotHappen { effect: id("a"), new_key: false }, signed(1))));
        let letter = LetterRecord { proposed, ..letter };
        let effects = vec![record("a", EffectState::Unknown, 1)];
        let asking = Asking { generation: 1, settled: true };
        let check = Check { effect: &id("a"), who: "bob", shown: 3, asking };
        for answer in [Probed::NotThere, Probed::CannotTell("503".into())] {
            let change = with(QUIET, 5, |env| checked(&job, Some(&letter), &effects, &check, answer, &rules(), env));
            let change = change.expect("the view is the newest");
            assert!(
                matches!(change.letter(), LetterMove::Put(LetterRecord { proposed: None, questions, .. }) if *questions == letter.questions)
            );
        }
    }

    /// The step and what came after it goes into the history with its value; effects stay, and nobody replays past an unknown one.
    #[test]
    fn a_replay_from_a_step_forgets_what_came_after_it_and_no_effect() {
        let (mut job, letter) = dead(vec![Question::WhatNow]);
        job.memos = 3;
        let memos = [memo("z", 0, false), memo("a", 1, true), memo("m", 2, false)];
        let from = |effects: &[EffectRecord], step: &str, running: bool| {
            let (running, rules) = (|_: &EffectId| running, rules());
            let case = Case { job: &job, letter: &letter, effects, shown: 3, running: &running, rules: &rules };
            replay_from(&case, &memos, step, &signed(9))
        };
        let done = [record("a", EffectState::Confirmed, 1)];
        let change = from(&done, "a", false).expect("everything is known");
        assert_eq!(change.forget(), ["a", "m"]);
        assert_eq!((change.record().memos, change.effects().len()), (1, 0));
        let lines: Vec<String> = change.journal().iter().map(Entry::says).collect();
        assert_eq!(
            lines,
            ["ada decided: run again from a (looked it up)", "the commit a was forgotten", "the step m was forgotten"]
        );
        assert!(matches!(&change.journal()[2], Entry::Forgotten { value, .. } if value == b"2"));
        assert!(matches!(from(&done, "unheard", false), Err(Refusal::NotAChoice(_))));
        assert!(matches!(from(&done, "a", true), Err(Refusal::CallRunning(_))));
        for open in [EffectState::Unknown, EffectState::Intended] {
            assert!(matches!(from(&[record("a", open, 1)], "a", false), Err(Refusal::Unresolved(_))));
        }
    }

    /// Two people: the first one's word waits, a repetition by the same person is none, another verdict is a new proposal.
    #[test]
    fn the_second_person_is_another_one() {
        let (mut job, letter) = dead(vec![Question::WhatNow]);
        let (mut effects, mut kept) = (Vec::new(), Some(letter));
        let by = |who: &str| Signed { who: who.into(), why: "so".into(), at: Wall(1) };
        let mut say = |verdict: Verdict, who: &str| match second(&job, kept.as_ref().expect("open"), &verdict, &by(who))
        {
            Ok(Second::Waits(change)) => {
                put(&mut job, &mut effects, &mut kept, &change);
                "waits"
            }
            Ok(Second::Agreed) => "agreed",
            Err(Refusal::SecondPerson(_)) => "same",
            Err(_) => "refused",
        };
        assert_eq!(say(Verdict::TryAgain, "Ada"), "waits");
        assert_eq!(say(Verdict::TryAgain, " ada "), "same");
        for who in ["A\u{200b}da", "ADA\u{feff}", "\u{2060}ada\t", "a\u{ad}da"] {
            assert_eq!(say(Verdict::TryAgain, who), "same", "{who:?}");
        }
        assert_eq!(say(Verdict::Discard, "bob"), "waits");
        assert_eq!(say(Verdict::TryAgain, "ada"), "waits", "the proposal is another one now");
        assert_eq!(say(Verdict::TryAgain, "bob"), "agreed");
    }

    /// Out of the trash comes the letter that was thrown away: the same questions, with what turned up meanwhile in front of them, and
    /// without what late news have answered. Only the trash gives anything back.
    #[test]
    fn only_the_trash_gives_back() {
        let ended = |how| job(JobState::Ended { how, at: Wall(1) });
        let asked = |why, questions: &[Question]| Entry::Asked {
            why,
            class: Class::Unknown,
            error: "oops".into(),
            questions: questions.to_vec(),
        };
        let back = |effects: &[EffectRecord], history: &[Entry], how| {
            let came = restore(&ended(how), effects, history, &signed(5), &rules())?;
            let LetterMove::Put(letter) = came.letter().clone() else { unreachable!("a letter is made") };
            let dead = letter.questions == [Question::WhatNow];
            assert_eq!(came.record().state == JobState::Dead, dead, "the state follows from what is asked");
            assert_eq!((came.record().revision, came.record().why), (1, Some(letter.why)));
            assert_eq!(came.journal(), [Entry::Restored { signed: signed(5) }]);
            Ok((letter.why, letter.questions))
        };
        let (a, gone) = (record("a", EffectState::Confirmed, 1), record("gone", EffectState::Confirmed, 1));
        let lost = EffectRecord { result: Some(Stored::Lost("too big".into())), ..a.clone() };
        let of = |name: &str| id(name);
        let what_now = Question::WhatNow;
        let result = Question::ResultLost { effect: of("a") };
        let cases = [
            // The question is the same one, and so is why it is asked.
            (
                vec![lost.clone()],
                Why::EffectUnresolved,
                vec![result.clone()],
                Why::EffectUnresolved,
                vec![result.clone()],
            ),
            (
                vec![lost.clone()],
                Why::TriesUsedUp,
                vec![result.clone(), what_now.clone()],
                Why::TriesUsedUp,
                vec![result.clone(), what_now.clone()],
            ),
            // A late answer brought the result: nothing is left of that question, and nothing goes on by itself.
            (vec![a.clone()], Why::EffectUnresolved, vec![result.clone()], Why::Restored, vec![what_now.clone()]),
            // Another account of it turned up meanwhile.
            (
                vec![EffectRecord { conflict: true, ..lost.clone() }],
                Why::EffectUnresolved,
                vec![result.clone()],
                Why::EffectUnresolved,
                vec![Question::Conflict { effect: of("a") }, result],
            ),
            // Today's app does not know one of them any more.
            (
                vec![a.clone(), gone.clone()],
                Why::Permanent,
                vec![what_now.clone()],
                Why::Permanent,
                vec![Question::Undeclared { effect: of("gone") }, what_now.clone()],
            ),
            // It did not know it then either: that is asked once.
            (
                vec![a.clone(), gone],
                Why::Permanent,
                vec![Question::Undeclared { effect: of("gone") }, what_now.clone()],
                Why::Permanent,
                vec![Question::Undeclared { effect: of("gone") }, what_now.clone()],
            ),
        ];
        for (effects, why, questions, then, again) in cases {
            assert_eq!(back(&effects, &[asked(why, &questions)], End::Discarded), Ok((then, again)), "{questions:?}");
        }
        // Thrown away by a version that kept nothing of the letter.
        let failed = Entry::Attempt { attempt: 1, at: Wall(0), class: Class::Transient, text: "oops".into() };
        assert_eq!(back(&[a], &[failed], End::Discarded), Ok((Why::Restored, vec![what_now])));
        for how in [End::Done, End::HandledOutside, End::Cancelled] {
            assert!(matches!(back(&[], &[], how), Err(Refusal::WrongState(_))));
        }
    }

    /// What one proposed with its reference is what another one agrees to, also with the same word alone; nobody agrees to what was
    /// not shown, and anybody may take it back.
    #[test]
    fn an_agreement_carries_out_what_was_proposed() {
        let (job, letter) = dead(vec![Question::DidItHappen { effect: id("a") }]);
        let happened = |reference: Option<&str>, result: Option<&[u8]>| Verdict::Happened {
            effect: id("a"),
            reference: reference.map(str::to_owned),
            result: result.map(<[u8]>::to_vec),
            undo: None,
        };
        let by = |who: &str| Signed { who: who.into(), why: "so".into(), at: Wall(1) };
        assert_eq!(proposal(&job, &letter, job.revision), Err(Refusal::NoProposal));
        let proposed = Some(Box::new((happened(Some("op"), Some(b"1")), by("ada"))));
        let open = LetterRecord { proposed, ..letter.clone() };
        assert_eq!(proposal(&job, &open, job.revision), Ok(happened(Some("op"), None)), "as it was said");
        assert!(matches!(proposal(&job, &open, job.revision - 1), Err(Refusal::Stale { .. })));
        for (word, meant) in [
            (happened(None, None), happened(Some("op"), None)),
            (happened(Some("op"), None), happened(Some("op"), None)),
            (happened(Some("other"), None), happened(Some("other"), None)),
            (Verdict::Discard, Verdict::Discard),
        ] {
            assert_eq!(as_proposed(&open, &word), meant);
            let agreed = matches!(second(&job, &open, &meant, &by("bob")), Ok(Second::Agreed));
            assert_eq!(agreed, meant == happened(Some("op"), None), "{meant:?}");
        }
        let dropped = drop_proposal(&job, &open, &by("bob"), job.revision).expect("anybody may");
        assert_eq!(*dropped.letter(), LetterMove::Put(letter.clone()));
        assert_eq!(dropped.record().revision, job.revision + 1, "whoever agrees to it now agrees to nothing");
        assert_eq!(dropped.journal()[0].says(), "bob took back what ada proposed: a happened (reference op) (so)");
        assert_eq!(drop_proposal(&job, &letter, &by("bob"), job.revision), Err(Refusal::NoProposal));
    }
}
