//! What a person may choose about a letter, in words: what each choice will do and what it will not.
//!
//! Keeps the promise that a text says what really follows: it is asked of the rules that carry the choice out. Called by `desk` when
//! a letter is read.

use crate::model::effect::{EffectRecord, EffectState, Undoing};
use crate::model::id::EffectId;
use crate::model::job::{JobState, Memo};
use crate::model::letter::{Question, Signed, Verdict};
use crate::model::shown::Shown;
use crate::rules::letter::Choice as Valid;
use crate::rules::review;
use crate::rules::undo::{extent, taken_back};
use crate::rules::{Change, LetterMove, Refusal};

/// Something a person may do about a letter, with what will and will not happen.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Choice {
    /// In a few words.
    pub label: String,
    /// What will happen.
    pub will: Vec<String>,
    /// What will not happen.
    pub will_not: Vec<String>,
    /// What the decision needs beside a signature; without it, it is refused and nothing changes.
    pub needs: Option<Needs>,
    pub(super) leads: Leads,
}

impl Choice {
    /// What apps and providers wrote stands in these texts: none of it may look like a line of its own.
    fn one_line_each(&mut self) {
        for text in std::iter::once(&mut self.label).chain(&mut self.will).chain(&mut self.will_not) {
            *text = Shown(text).to_string();
        }
    }
}

/// What a person has to add to a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Needs {
    /// The provider's reference: [`Decision::with_reference`](crate::Decision::with_reference).
    Reference,
    /// The wish for a new key: [`Decision::with_new_key`](crate::Decision::with_new_key).
    NewKey,
}

/// What a choice leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Leads {
    /// This is decided.
    Says(Verdict),
    /// What somebody proposed is agreed to.
    Agrees,
    /// It is taken back.
    Drops,
    /// The provider is asked.
    Checks(EffectId),
}

/// What the texts rest on.
#[derive(Clone, Copy)]
pub(super) struct Scene<'a> {
    pub(super) effects: &'a [EffectRecord],
    pub(super) memos: &'a [Memo],
    /// The job undoes an effect of another one.
    pub(super) undoes: bool,
    /// What is paused and holds it up, each with its reason.
    pub(super) holds: &'a [(&'static str, String)],
    /// Two people have to decide.
    pub(super) two: bool,
    /// What one of them proposed.
    pub(super) proposed: Option<&'a (Verdict, Signed)>,
    /// What a verdict would come to.
    pub(super) follows: &'a dyn Fn(&Verdict) -> Result<Change, Refusal>,
    /// What keeps the provider from being asked about an effect right now: a call of it, or another question.
    pub(super) busy: &'a dyn Fn(&EffectId) -> Option<Refusal>,
}

/// So many steps are named where a choice forgets them.
const NAMED: usize = 10;

/// All that a person may do: first what waits for a second person, then questions, then decisions.
pub(super) fn offered(valid: &[Valid], checkable: &[EffectId], scene: &Scene<'_>) -> Vec<Choice> {
    let mut out: Vec<Choice> = scene.proposed.map(|open| scene.agree(open)).into_iter().collect();
    out.extend(checkable.iter().map(|effect| scene.check(effect)));
    out.extend(valid.iter().map(verdict).chain(scene.replays(valid)).filter_map(|verdict| scene.word(&verdict)));
    out.extend(scene.proposed.map(drop_it));
    out.iter_mut().for_each(Choice::one_line_each);
    out
}

/// The bare word of a valid choice.
fn verdict(valid: &Valid) -> Verdict {
    match valid {
        Valid::Happened(effect) => {
            Verdict::Happened { effect: effect.clone(), reference: None, result: None, undo: None }
        }
        Valid::DidNotHappen(effect) => Verdict::DidNotHappen { effect: effect.clone(), new_key: false },
        Valid::TryAgain => Verdict::TryAgain,
        Valid::HandledOutside => Verdict::HandledOutside,
        Valid::Discard => Verdict::Discard,
        Valid::Undo => Verdict::Undo,
    }
}

impl Scene<'_> {
    /// What somebody who says this does: decides, proposes, agrees, or proposes something else. `None` where the choice to agree says
    /// it all.
    fn word(&self, verdict: &Verdict) -> Option<Choice> {
        let mut choice = self.tell(verdict);
        if !self.two {
            return Some(choice);
        }
        match self.proposed {
            None => choice.will.insert(
                0,
                "this is a proposal: it waits until a second person agrees to it, and only then:".to_owned(),
            ),
            Some((first, by)) if verdict.agrees_with(first) => {
                let Verdict::Happened { .. } = first else { return None };
                let (who, what) = (&by.who, first.says());
                choice.will = vec![
                    format!(
                        "without another reference it agrees to what {who} proposed ({what}), which is carried out"
                    ),
                    format!("with another one it replaces what {who} proposed, and waits until another person agrees"),
                ];
                choice.needs = None;
            }
            Some((first, by)) => choice.will.insert(
                0,
                format!(
                    "it replaces what {} proposed ({}), and waits until another person agrees to it; only then:",
                    by.who,
                    first.says()
                ),
            ),
        }
        choice.will_not.push("anything is carried out on the word of one person alone".to_owned());
        Some(choice)
    }
    /// Agreeing to what another person proposed.
    fn agree(&self, (first, by): &(Verdict, Signed)) -> Choice {
        let told = self.tell(&first.bare());
        let mut will = vec![format!("what {} proposed is carried out: {} ({})", by.who, first.says(), by.why)];
        will.extend(told.will);
        let mut will_not = told.will_not;
        will_not.push(format!("it is carried out on the word of {} alone: another person has to agree", by.who));
        Choice {
            label: format!("Agree with {}: {}", by.who, told.label),
            will,
            will_not,
            needs: None,
            leads: Leads::Agrees,
        }
    }
    /// Having the provider asked again.
    fn check(&self, effect: &EffectId) -> Choice {
        let now = match (self.busy)(effect) {
            Some(why) => not_now(&why),
            None => "the provider is asked, and its answer is written into the history with your name".to_owned(),
        };
        let mut will = vec![now, "if it says that it happened, that counts at once".to_owned()];
        will.extend(self.proposed.map(|(_, by)| {
            format!("what {} proposed is gone with any answer: that was proposed without knowing it", by.who)
        }));
        Choice {
            label: format!("Have the provider asked again: {}", self.says(effect)),
            will,
            will_not: vec![
                "it is called again: asking changes nothing there".to_owned(),
                "any other answer decides anything: that is for a person".to_owned(),
            ],
            needs: None,
            leads: Leads::Checks(effect.clone()),
        }
    }
    fn replays(&self, valid: &[Valid]) -> impl Iterator<Item = Verdict> {
        let from = review::replays(valid, self.effects, self.memos).into_iter();
        from.map(|memo| Verdict::ReplayFrom { step: memo.name.clone() })
    }
    /// A word of one person in words: what it does once it counts.
    fn tell(&self, verdict: &Verdict) -> Choice {
        let came = (self.follows)(verdict);
        let (label, will, will_not, needs) = match verdict {
            Verdict::Happened { effect, reference, .. } => {
                let (will, will_not, needs) = self.happened(effect, reference.as_deref(), &came);
                (format!("It happened: {}", self.says(effect)), will, will_not, needs)
            }
            Verdict::DidNotHappen { effect, new_key } => {
                let (text, needs) = self.did_not(effect, *new_key, &came);
                let not = self.nothing_again(&[], "it counts as done");
                (format!("It did not happen: {}", self.says(effect)), vec![text], not, needs)
            }
            Verdict::TryAgain => (
                "Try again".to_owned(),
                vec!["the job runs once more at once; this does not spend its automatic tries".to_owned()],
                self.nothing_again(self.memos, "anything that is recorded of it is forgotten"),
                None,
            ),
            Verdict::ReplayFrom { step } => {
                let gone = review::forgotten(self.memos, step).unwrap_or_default();
                let word =
                    |m: &Memo| if m.commit { "written to the app's tables again" } else { "worked out again" };
                let mut will: Vec<String> =
                    gone.iter().take(NAMED).map(|m| format!("{} is forgotten and {}", m.name, word(m))).collect();
                if let Some(last) = gone.last().filter(|_| gone.len() > NAMED) {
                    will.push(format!("so are the {} steps and commits behind it, up to {}", gone.len() - NAMED, last.name));
                }
                let kept = self.memos.len().saturating_sub(gone.len());
                let kept = self.memos.get(..kept).unwrap_or_default();
                let not = self.nothing_again(kept, "anything that is recorded before that is forgotten");
                (format!("Run again from {step}"), will, not, None)
            }
            Verdict::Undo => {
                let plan = extent(self.effects);
                let undone = plan.undo.iter().filter_map(|e| Some((e, e.undo.as_ref()?)));
                let left = plan.left.iter().map(|e| format!("{} is taken back: nobody undoes it, it stays as it is", e.says));
                let counts = "it counts as a success, or is tried again as the same job".to_owned();
                (
                    "Undo what was done".to_owned(),
                    undone.map(|(e, u)| format!("{} is undone, by a {} job of its own", e.says, u.kind)).collect(),
                    left.chain([counts]).collect(),
                    None,
                )
            }
            Verdict::HandledOutside => {
                let mut will = vec!["the job ends, marked as handled outside".to_owned()];
                if self.undoes {
                    will.push("what it was to undo counts as undone, and the rest is undone in its turn".to_owned());
                }
                ("Somebody took care of it".to_owned(), will, self.never_again("it runs again"), None)
            }
            Verdict::Discard if self.undoes => (
                "Discard".to_owned(),
                vec![
                    "the job ends, marked as discarded".to_owned(),
                    "the job of which it was to undo something asks a person what now".to_owned(),
                ],
                self.never_again("it runs again, or comes back: what it was to undo stays as it is"),
                None,
            ),
            Verdict::Discard => (
                "Discard".to_owned(),
                vec![
                    "the job ends, marked as discarded, and lies in the trash for a while: it can be brought back, with the same question"
                        .to_owned(),
                ],
                self.never_again("it runs again, or what was done is undone"),
                None,
            ),
        };
        // What stands in the way now is all that can be said of what follows; the texts above say it themselves where they ask.
        let asks = matches!(verdict, Verdict::Happened { .. } | Verdict::DidNotHappen { .. });
        let mut will = match &came {
            Err(refusal) if !asks => vec![not_now(refusal)],
            Err(_) | Ok(_) => will,
        };
        let goes_on =
            came.as_ref().is_ok_and(|c| matches!(c.record().state, JobState::Ready { .. } | JobState::Delayed { .. }));
        if goes_on && !self.holds.is_empty() {
            let paused: Vec<String> = self.holds.iter().map(|(what, why)| format!("{what} ({why})")).collect();
            will.push(format!("it does not run before this is resumed: {}", paused.join(", ")));
        }
        Choice { label, will, will_not, needs, leads: Leads::Says(verdict.clone()) }
    }
    fn happened(
        &self,
        effect: &EffectId,
        reference: Option<&str>,
        came: &Result<Change, Refusal>,
    ) -> (Vec<String>, Vec<String>, Option<Needs>) {
        let record = self.effects.iter().find(|e| e.id == *effect);
        let undone = record.is_some_and(|e| e.state == EffectState::Undone);
        let on = "the job goes on";
        let mut will = vec![if undone { "it stays undone" } else { "it counts as done" }.to_owned()];
        let mut will_not = vec!["its provider is called for it again".to_owned()];
        if reference.is_some() {
            will.push(self.leads_to(came, on));
            return (will, will_not, None);
        }
        let rebuilt =
            Verdict::Happened { effect: effect.clone(), reference: None, result: Some(Vec::new()), undo: None };
        let known = self.leads_to(&(self.follows)(&rebuilt), on);
        if let Err(Refusal::NeedsReference { known: given, .. }) = came {
            let with = match given {
                None => "with its reference at the provider".to_owned(),
                Some(given) => format!("with another reference than {given}"),
            };
            will.push(format!("{with}, from which its result is rebuilt: {known}"));
            will.push("one from which it cannot be rebuilt is kept, and the letter asks for it still".to_owned());
            will_not.push("anything changes without a reference: that is refused".to_owned());
            return (will, will_not, Some(Needs::Reference));
        }
        let bare = self.leads_to(came, on);
        will.push(known.clone());
        if bare != known {
            will.push(format!("without a reference that its result can be rebuilt from: {bare}"));
        }
        (will, will_not, None)
    }
    fn did_not(&self, effect: &EffectId, new_key: bool, came: &Result<Change, Refusal>) -> (String, Option<Needs>) {
        let with_new = "it is asked for again, with a new key, which you have to want";
        if new_key {
            return (self.leads_to(came, "it is asked for again, with a new key"), None);
        }
        if came.is_err() {
            let new = (self.follows)(&Verdict::DidNotHappen { effect: effect.clone(), new_key: true });
            if new.is_ok() {
                return (self.leads_to(&new, with_new), Some(Needs::NewKey));
            }
        }
        (self.leads_to(came, "it is asked for again, with the same key unless you want a new one"), None)
    }
    /// What a decision that answers a question leads to, from the same rules that carry it out. `on` is what it means that the job goes
    /// on.
    fn leads_to(&self, came: &Result<Change, Refusal>, on: &str) -> String {
        let change = match came {
            Ok(change) => change,
            Err(why) => return not_now(why),
        };
        match &change.record().state {
            JobState::Compensating { .. } => {
                let new = |e: &EffectRecord| change.effects().iter().find(|new| new.id == e.id).cloned();
                let now: Vec<EffectRecord> = self.effects.iter().map(|e| new(e).unwrap_or_else(|| e.clone())).collect();
                let undone = now.iter().filter(|e| e.undoing == Undoing::UnderWay).chain(extent(&now).undo);
                let undone: Vec<&str> = undone.map(|e| e.says.as_str()).collect();
                format!("the job does not go on: it is undone at once ({})", undone.join("; "))
            }
            JobState::NeedsDecision | JobState::Dead => {
                let next = match change.letter() {
                    LetterMove::Put(letter) => letter.questions.first(),
                    LetterMove::Keep | LetterMove::Remove => None,
                };
                match next {
                    Some(Question::ResultLost { effect }) => format!(
                        "the job waits: the reference of this is asked for next, for its result: {}",
                        self.says(effect)
                    ),
                    Some(
                        Question::DidItHappen { effect }
                        | Question::RequestChanged { effect }
                        | Question::RequestUnreadable { effect }
                        | Question::Undeclared { effect }
                        | Question::Conflict { effect },
                    ) => format!("the job waits: this is asked next: {}", self.says(effect)),
                    Some(Question::WhatNow) | None => {
                        "the job waits: it is asked next what shall become of it".to_owned()
                    }
                }
            }
            JobState::Ready { .. }
            | JobState::Delayed { .. }
            | JobState::Running { .. }
            | JobState::Waiting { .. }
            | JobState::Ended { .. } => on.to_owned(),
        }
    }
    fn says(&self, id: &EffectId) -> String {
        self.effects.iter().find(|e| e.id == *id).map_or_else(|| id.to_string(), |e| e.says.clone())
    }
    /// What is done stays done, and what is remembered is kept, each by its name; and one thing more that does not happen.
    fn nothing_again(&self, kept: &[Memo], more: &str) -> Vec<String> {
        let done = self.effects.iter().filter(|e| e.state == EffectState::Confirmed);
        let word = |m: &Memo| if m.commit { "written to the app's tables again" } else { "worked out again" };
        let skipped = kept.iter().take(NAMED).map(|m| format!("{} is {}", m.name, word(m)));
        let rest = kept.len().saturating_sub(NAMED);
        let rest = (rest > 0).then(|| format!("the {rest} steps and commits behind them are done again"));
        done.map(|e| format!("{} is done again", e.says)).chain(skipped).chain(rest).chain([more.to_owned()]).collect()
    }
    /// Why "try again" is not among the choices, where that is so.
    fn never_again(&self, text: &str) -> Vec<String> {
        let why = taken_back(self.effects).map(|e| {
            format!("it is tried again: undoing this was begun, so only run_again makes a new job of it: {}", e.says)
        });
        std::iter::once(text.to_owned()).chain(why).collect()
    }
}

fn not_now(why: &Refusal) -> String {
    format!("not now: {why}")
}

/// Taking back what somebody proposed.
fn drop_it((first, by): &(Verdict, Signed)) -> Choice {
    Choice {
        label: format!("Take back what {} proposed", by.who),
        will: vec![format!(
            "the proposal of {} is gone ({}), with your name and reason in the history, and the letter asks as before",
            by.who,
            first.says()
        )],
        will_not: vec!["anything is decided or carried out by that".to_owned()],
        needs: None,
        leads: Leads::Drops,
    }
}

/// A person may have given the reference already: then asking for it again would lead nowhere.
pub(super) fn lost(says: String, reference: Option<&str>) -> String {
    match reference {
        None => format!("This happened, but the answer is lost: {says}. What is its reference?"),
        Some(r) => format!(
            "This happened (reference {r}), but its result cannot be rebuilt from that: {says}. If the app cannot learn to, it can only be ended as taken care of"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::time::Wall;
    use crate::rules::letter;
    use crate::rules::states::asked;
    use std::collections::BTreeMap;

    /// Fewer would mean that the lists of what could be stored have shrunk.
    const AT_LEAST: usize = 1_500;

    fn signed(who: &str) -> Signed {
        Signed { who: who.into(), why: "looked it up".into(), at: Wall(1_000) }
    }

    /// What a text has to speak of, by what really follows.
    fn speaks_of(change: &Change) -> &'static [&'static str] {
        match &change.record().state {
            JobState::Compensating { .. } => &["is undone"],
            JobState::NeedsDecision | JobState::Dead => &["the job waits"],
            JobState::Ended { .. } => &["the job ends"],
            JobState::Ready { .. } | JobState::Delayed { .. } | JobState::Running { .. } | JobState::Waiting { .. } => {
                &["the job goes on", "asked for again", "runs once more", "is forgotten and"]
            }
        }
    }

    /// Every letter that could be stored, with nothing and with a call running, for one person and for two, before and after the first
    /// of them has said something: whatever a person may do about it is offered once, says what will happen and what will not, never
    /// the same in both, and what it says is what follows; what is refused says what it needs, and what is accepted changes something.
    #[test]
    fn every_choice_says_what_follows_and_what_does_not() {
        let (all, rules) = asked();
        let memos = [
            Memo { name: "first".into(), commit: false, value: b"1".to_vec(), number: 0 },
            Memo { name: "second".into(), commit: true, value: b"2".to_vec(), number: 1 },
        ];
        let mut seen: BTreeMap<&'static str, usize> = BTreeMap::new();
        let mut count = |what| *seen.entry(what).or_default() += 1;
        for (job, record, effects) in &all {
            let valid = letter::choices(record, effects);
            let checkable: Vec<EffectId> =
                effects.iter().filter(|e| review::may_check(record, e)).map(|e| e.id.clone()).collect();
            for (running, undoes) in [(false, false), (true, false), (false, true)] {
                let follows = |verdict: &Verdict| {
                    let (by, busy) = (signed("ann"), |_: &EffectId| running);
                    let shown = job.revision;
                    let case = letter::Case { job, letter: record, effects, shown, running: &busy, rules: &rules };
                    review::say(&case, &memos, verdict, &by)
                };
                let mut scene = Scene {
                    effects,
                    memos: &memos,
                    undoes,
                    holds: &[],
                    two: false,
                    proposed: None,
                    follows: &follows,
                    busy: &|effect| running.then(|| Refusal::CheckRunning(effect.clone())),
                };
                let alone = offered(&valid, &checkable, &scene);
                let bare: Vec<Verdict> = alone
                    .iter()
                    .filter_map(|c| match &c.leads {
                        Leads::Says(verdict) => Some(verdict.clone()),
                        Leads::Agrees | Leads::Drops | Leads::Checks(_) => None,
                    })
                    .collect();
                assert!(bare.len() >= valid.len() && alone.len() == bare.len() + checkable.len());
                for choice in &alone {
                    whole(choice);
                    assert!(choice.needs.is_none() || choice.needs == choice.takes(), "{choice:?}");
                    let Leads::Says(verdict) = &choice.leads else { continue };
                    let will = choice.will.join("; ");
                    match (follows(verdict), choice.needs) {
                        (Ok(change), None) => {
                            let words = speaks_of(&change);
                            assert!(words.iter().any(|w| will.contains(w)), "{words:?} of {choice:?}");
                            let asks = matches!(change.record().state, JobState::NeedsDecision | JobState::Dead);
                            let same = *change.letter() == LetterMove::Put(record.clone())
                                && change.effects().iter().all(|new| effects.contains(new));
                            assert!(!(asks && same), "{choice:?} changes nothing: {record:?} {effects:?}");
                            count("says what follows");
                        }
                        (Err(Refusal::NeedsReference { effect, .. }), Some(Needs::Reference)) => {
                            let result = Some(b"1".to_vec());
                            let with = Verdict::Happened { effect, reference: Some("op".into()), result, undo: None };
                            assert!(follows(&with).is_ok(), "a reference is all that it needs: {choice:?}");
                            count("needs a reference");
                        }
                        (Err(_), Some(Needs::NewKey)) => {
                            let Verdict::DidNotHappen { effect, .. } = verdict.clone() else { panic!("{choice:?}") };
                            assert!(follows(&Verdict::DidNotHappen { effect, new_key: true }).is_ok(), "{choice:?}");
                            count("needs a new key");
                        }
                        (Err(refusal), None) => {
                            assert!(running, "offered, and refused beside nothing that runs: {choice:?} {refusal}");
                            assert!(will.contains(&format!("not now: {refusal}")), "{choice:?}");
                            count("not now");
                        }
                        (came, needs) => panic!("{needs:?} is needed, and {came:?} comes of {choice:?}"),
                    }
                }
                scene.two = true;
                for choice in offered(&valid, &checkable, &scene) {
                    whole(&choice);
                    let proposes = choice.will[0].contains("this is a proposal");
                    assert_eq!(proposes, matches!(choice.leads, Leads::Says(_)), "{choice:?}");
                    count("proposes");
                }
                for first in bare.iter().filter(|v| follows(v).is_ok()) {
                    let open = (first.clone(), signed("ann"));
                    let scene = Scene { proposed: Some(&open), ..scene };
                    let choices = offered(&valid, &checkable, &scene);
                    let ways = |wanted: &Leads| choices.iter().filter(|c| c.leads == *wanted).count();
                    assert_eq!((ways(&Leads::Agrees), ways(&Leads::Drops)), (1, 1), "{choices:?}");
                    for choice in &choices {
                        whole(choice);
                        match &choice.leads {
                            Leads::Agrees => {
                                let told = scene.tell(first);
                                assert!(
                                    choice.will[0].contains(&first.says()) && choice.will[0].contains("looked it up")
                                );
                                assert_eq!(choice.will[1..], told.will[..], "an agreement says what it comes to");
                                assert!(choice.label.contains("ann") && choice.label.contains(&told.label));
                                count("agrees");
                            }
                            Leads::Says(verdict) => {
                                let will = choice.will.join("; ");
                                assert!(will.contains("replaces what ann proposed"), "{choice:?}");
                                let same = verdict.agrees_with(first);
                                assert_eq!(will.contains("agrees to what ann proposed"), same, "{choice:?}");
                                count("replaces");
                            }
                            Leads::Drops | Leads::Checks(_) => assert!(choice.will.iter().any(|w| w.contains("ann"))),
                        }
                    }
                }
            }
        }
        println!("{} letters, choices by what they say: {seen:?}", all.len());
        assert!(all.len() >= AT_LEAST, "only {} letters", all.len());
        assert_eq!(seen.len(), 7, "every sort of choice was met: {seen:?}");
    }

    /// Says something on both sides, and not the same.
    fn whole(choice: &Choice) {
        assert!(!choice.label.trim().is_empty());
        for side in [&choice.will, &choice.will_not] {
            assert!(!side.is_empty() && side.iter().all(|text| !text.trim().is_empty()), "nothing is said: {choice:?}");
        }
        assert!(!choice.will.iter().any(|w| choice.will_not.contains(w)), "it will and will not: {choice:?}");
        for done in choice.will_not.iter().filter_map(|w| w.strip_suffix(" is done again")) {
            let again = choice.will.iter().any(|w| w.starts_with(done) && w.contains("again"));
            assert!(!again, "it will and will not be done again: {choice:?}");
        }
    }
}
