//! What must be true of messages, letters, replays and compensations, whatever crashed: I17 to I20 of the design, each one function
//! over what outsiders were told and what a file holds. The sweeps and the suites that kill processes ask those of them that their
//! scripts can break; an answer is a sentence that says what is wrong. The tests below hand each of them histories that must never be accepted.

use onceward::model::effect::{EffectState, Undoing};
use onceward::{Ending, State};
use std::collections::{BTreeMap, BTreeSet};

/// A message as the file has it.
#[derive(Clone, Debug)]
pub(crate) struct Posted {
    pub(crate) id: String,
    /// Its ordering key.
    pub(crate) key: String,
    pub(crate) number: u64,
    pub(crate) marks: u32,
    /// How often a person was told that it is sent again, and how often one asked for that.
    pub(crate) again: (u32, u32),
    pub(crate) ended: Option<Ending>,
    /// It is stuck, or stands behind one that is.
    pub(crate) may_wait: bool,
    /// It was put aside, so that others went past it.
    pub(crate) overtaken: bool,
}

/// A topic: what outsiders know, and what the file has.
#[derive(Clone, Debug, Default)]
pub(crate) struct Post {
    /// Somebody asked for a transaction with it.
    pub(crate) asked: BTreeSet<String>,
    /// It was acknowledged.
    pub(crate) committed: BTreeSet<String>,
    /// Somebody asked to throw it away.
    pub(crate) discards: BTreeSet<String>,
    /// What the other side was given, in its order: id, and everything that it consists of.
    pub(crate) arrived: Vec<(String, String)>,
    pub(crate) posted: Vec<Posted>,
    /// The newest number of the topic.
    pub(crate) last: u64,
}

/// Published at least once if committed, never if aborted; marked once for every time it was sent, and never without that; first publications in order within the key; repeats
/// are the same message; numbers without gaps, never reused.
pub(crate) fn i17(post: &Post) -> Result<(), String> {
    let mut first: BTreeMap<&str, &str> = BTreeMap::new();
    let mut order: Vec<&str> = Vec::new();
    for (id, message) in &post.arrived {
        if !post.asked.contains(id) {
            return Err(format!("{id} arrived, and nobody committed it"));
        }
        match first.insert(id, message) {
            None => order.push(id),
            Some(before) if before == message => {}
            Some(before) => return Err(format!("{id} arrived as two different messages: {before}, {message}")),
        }
    }
    let by_id: BTreeMap<&str, &Posted> = post.posted.iter().map(|p| (p.id.as_str(), p)).collect();
    if let Some(lost) = post.committed.iter().find(|id| !by_id.contains_key(id.as_str())) {
        return Err(format!("{lost} was acknowledged and is lost"));
    }
    if let Some(unknown) = order.iter().find(|id| !by_id.contains_key(**id)) {
        return Err(format!("{unknown} arrived and is not in the file"));
    }
    for p in &post.posted {
        let reached = first.contains_key(p.id.as_str());
        let times = post.arrived.iter().filter(|(id, _)| *id == p.id).count();
        let sent = 1 + p.again.0..=1 + p.again.1;
        match p.ended {
            Some(Ending::Published) if sent.contains(&p.marks) && p.marks as usize <= times => {}
            Some(Ending::Discarded) if !reached && post.discards.contains(&p.id) => {}
            None if !reached && p.may_wait && p.marks == 0 => {}
            other => {
                let Posted { id, marks, again, .. } = p;
                return Err(format!(
                    "{id} is {other:?} with {marks} marks, sent again {again:?}, arrived: {reached} ({times})"
                ));
            }
        }
    }
    let numbers: BTreeSet<u64> = post.posted.iter().map(|p| p.number).collect();
    if numbers.len() != post.posted.len() {
        return Err(format!("a number was handed out twice: {:?}", post.posted));
    }
    if numbers.iter().copied().ne(1..=post.last) {
        return Err(format!("the numbers are {numbers:?}, and the last one is {}", post.last));
    }
    let mut newest: BTreeMap<&str, u64> = BTreeMap::new();
    for p in order.iter().filter_map(|id| by_id.get(id)).filter(|p| !p.overtaken) {
        if newest.insert(&p.key, p.number).is_some_and(|before| before > p.number) {
            return Err(format!("first deliveries of {:?} are out of order: {order:?}", p.key));
        }
    }
    Ok(())
}

/// Letters over one life of the process.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Letters {
    pub(crate) before: u64,
    pub(crate) opened: u64,
    pub(crate) closed: u64,
    pub(crate) after: u64,
}

/// Letters are conserved: none ages out, none comes from nowhere.
pub(crate) fn i18(letters: Letters) -> Result<(), String> {
    if letters.before + letters.opened == letters.closed + letters.after {
        return Ok(());
    }
    Err(format!("letters got lost or came from nowhere: {letters:?}"))
}

/// The half of it that speaks about one job: whoever asks has a letter, which lists every effect that is stored.
pub(crate) fn i18_of(asks: bool, letter: bool, listed: &[String], stored: &[String]) -> Result<(), String> {
    if asks != letter {
        return Err(format!("needs a person: {asks}, has a letter: {letter}"));
    }
    let all = |ids: &[String]| ids.iter().cloned().collect::<BTreeSet<_>>();
    if letter && all(listed) != all(stored) {
        return Err(format!("the letter lists {listed:?}, stored are {stored:?}"));
    }
    Ok(())
}

/// An effect at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Line {
    pub(crate) effect: String,
    pub(crate) key: String,
    pub(crate) confirmed: bool,
    pub(crate) reference: Option<String>,
}

/// A job at one moment.
#[derive(Clone, Debug, Default)]
pub(crate) struct Kept {
    pub(crate) token: u64,
    pub(crate) effects: Vec<Line>,
    /// Steps and commits that are remembered.
    pub(crate) memos: Vec<String>,
}

/// A job before a replay and at any time after it: tokens never fall, effects keep their key and what is known of them, and what
/// was remembered before the step it ran again from is remembered. `ran` says that a handler began since.
pub(crate) fn i19(before: &Kept, after: &Kept, ran: bool) -> Result<(), String> {
    if after.token < before.token || (ran && after.token == before.token) {
        return Err(format!("token {} before the replay, {} after it", before.token, after.token));
    }
    for old in &before.effects {
        let new = after.effects.iter().find(|e| e.effect == old.effect);
        let kept = new.is_some_and(|new| {
            new.key == old.key && (!old.confirmed || (new.confirmed && new.reference == old.reference))
        });
        if !kept {
            return Err(format!("a replay made {new:?} of {old:?}"));
        }
    }
    match before.memos.iter().find(|m| !after.memos.contains(m)) {
        None => Ok(()),
        Some(gone) => Err(format!("a replay forgot {gone}, which came before it")),
    }
}

/// An effect that can be undone, as the file has it.
#[derive(Clone, Debug)]
pub(crate) struct Undone {
    pub(crate) effect: String,
    pub(crate) state: EffectState,
    pub(crate) undoing: Undoing,
    /// Of the job that undoes it, if there is one.
    pub(crate) job: Option<State>,
}

/// One job's way there and back.
#[derive(Clone, Debug)]
pub(crate) struct Way {
    /// What undoes what, in the order of the way there.
    pub(crate) pairs: Vec<(&'static str, &'static str)>,
    /// What really happened, in its order: effect and key.
    pub(crate) deeds: Vec<(String, String)>,
    pub(crate) effects: Vec<Undone>,
    /// An effect about which nobody is sure.
    pub(crate) unresolved: bool,
    pub(crate) state: State,
}

/// Only what was done is undone, once, the last first, by a job with an identity of its own; never past something unknown; and
/// whoever began to undo does not end as a success.
pub(crate) fn i20(way: &Way) -> Result<(), String> {
    let wrong = |what: String| Err(format!("{what}: {way:#?}"));
    let at = |effect: &str| -> Vec<usize> { (0..way.deeds.len()).filter(|n| way.deeds[*n].0 == effect).collect() };
    let keys: BTreeSet<_> = way.deeds.iter().map(|d| &d.1).collect();
    if keys.len() != way.deeds.len() {
        return wrong("two requests shared a key, or one was made twice".into());
    }
    let mut later: Vec<(&str, Vec<usize>, Vec<usize>)> = Vec::new();
    for (did, undid) in way.pairs.iter().rev() {
        let (done, back) = (at(did), at(undid));
        if done.len() > 1 || back.len() > 1 {
            return wrong(format!("{did} or {undid} happened more than once"));
        }
        if back.len() > done.len() || done.iter().zip(&back).any(|(d, b)| b < d) {
            return wrong(format!("{undid} before {did}"));
        }
        for (other, other_done, other_back) in &later {
            let first = |b: &usize| other_back.first().is_some_and(|o| o < b);
            if !other_done.is_empty() && back.iter().any(|b| !first(b)) {
                let given_up = way.effects.iter().any(|e| e.effect == *other && e.undoing == Undoing::GivenUp);
                if !given_up {
                    return wrong(format!("{did} was undone before {other}"));
                }
            }
        }
        let given_up = way.effects.iter().any(|e| e.effect == *did && e.undoing == Undoing::GivenUp);
        if way.state == State::Compensated && done.len() > back.len() && !given_up {
            return wrong(format!("compensated, and {did} was not undone"));
        }
        later.push((did, done, back));
    }
    let mut begun = false;
    for e in &way.effects {
        let fits = match (e.undoing, e.state) {
            (Undoing::UnderWay, EffectState::Confirmed) => e.job.is_some_and(|s| !s.is_over()),
            (Undoing::No, EffectState::Undone) => e.job == Some(State::Done),
            (Undoing::No, _) => e.job.is_none(),
            (Undoing::GivenUp, EffectState::Confirmed) => e.job.is_some_and(|s| s.is_over() && s != State::Done),
            (Undoing::UnderWay | Undoing::GivenUp, _) => false,
        };
        if !fits {
            return wrong(format!("{} and the job that undoes it do not fit", e.effect));
        }
        begun |= e.job.is_some();
    }
    if begun && way.unresolved {
        return wrong("something was undone past an effect that nobody is sure of".into());
    }
    if begun && way.state == State::Done {
        return wrong("it was undone and counts as a success".into());
    }
    Ok(())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// The bad history is rejected with these words; without its change it is accepted.
    #[track_caller]
    pub(crate) fn rejected<T: Clone>(good: &T, check: fn(&T) -> Result<(), String>, bad: &[(&str, fn(&mut T))]) {
        check(good).unwrap();
        for (words, spoil) in bad {
            let mut history = good.clone();
            spoil(&mut history);
            let why = check(&history).expect_err(words);
            assert!(why.contains(words), "{words:?} expected, said: {why}");
        }
    }

    fn posted(id: &str, number: u64) -> Posted {
        let ended = Some(Ending::Published);
        Posted {
            id: id.into(),
            key: "k".into(),
            number,
            marks: 1,
            again: (0, 0),
            ended,
            may_wait: false,
            overtaken: false,
        }
    }

    /// Two messages of one key were committed and delivered, the first one twice.
    #[test]
    fn a_bad_history_of_an_outbox_is_rejected() {
        let ids = || ["m1", "m2"].map(str::to_owned).into_iter().collect::<BTreeSet<_>>();
        let arrived = [("m1", "one"), ("m1", "one"), ("m2", "two")].map(|(a, b)| (a.to_owned(), b.to_owned())).to_vec();
        let posted = vec![posted("m1", 1), posted("m2", 2)];
        let good = Post { asked: ids(), committed: ids(), discards: BTreeSet::new(), arrived, posted, last: 2 };
        rejected(
            &good,
            i17,
            &[
                ("nobody committed it", |p| p.asked = BTreeSet::new()),
                ("two different messages", |p| p.arrived[1].1 = "other".into()),
                ("acknowledged and is lost", |p| drop(p.posted.remove(1))),
                ("arrived: false", |p| drop(p.arrived.pop())),
                ("2 marks", |p| p.posted[0].marks = 2),
                ("1 marks", |p| p.posted[0].again = (1, 1)),
                ("arrived: true (1)", |p| (p.posted[1].marks, p.posted[1].again) = (2, (1, 1))),
                ("handed out twice", |p| p.posted[1].number = 1),
                ("the last one is 3", |p| p.last = 3),
                ("out of order", |p| p.arrived.rotate_right(1)),
                ("Discarded", |p| p.posted[1].ended = Some(Ending::Discarded)),
            ],
        );
    }

    /// One letter was there, two came, one was answered.
    #[test]
    fn a_bad_history_of_letters_is_rejected() {
        let good = Letters { before: 1, opened: 2, closed: 1, after: 2 };
        rejected(&good, |l| i18(*l), &[("got lost", |l| l.after = 1), ("came from nowhere", |l| l.after = 3)]);
        let pay = ["pay".to_owned()];
        i18_of(true, true, &pay, &pay).unwrap();
        i18_of(false, false, &[], &pay).unwrap();
        assert!(i18_of(true, false, &[], &pay).unwrap_err().contains("has a letter: false"));
        assert!(i18_of(false, true, &pay, &pay).unwrap_err().contains("needs a person: false"));
        assert!(i18_of(true, true, &[], &pay).unwrap_err().contains("lists []"));
    }

    /// A job paid and remembered a step before it was run again.
    #[test]
    fn a_bad_history_of_a_replay_is_rejected() {
        let line = Line { effect: "pay".into(), key: "k1".into(), confirmed: true, reference: Some("op-1".into()) };
        let before = Kept { token: 4, effects: vec![line], memos: vec!["draw".into()] };
        let good = (before.clone(), Kept { token: 5, ..before });
        rejected(
            &good,
            |(before, after)| i19(before, after, true),
            &[
                ("token 4", |h| h.1.token = 4),
                ("token 4", |h| h.1.token = 3),
                ("made", |h| h.1.effects[0].key = "k2".into()),
                ("made", |h| h.1.effects[0].confirmed = false),
                ("made", |h| h.1.effects[0].reference = None),
                ("made None", |h| h.1.effects.clear()),
                ("forgot draw", |h| h.1.memos.clear()),
            ],
        );
    }

    /// Paid, sent, fetched back, refunded.
    #[test]
    fn a_bad_history_of_a_compensation_is_rejected() {
        let undone = |effect: &str| Undone {
            effect: effect.into(),
            state: EffectState::Undone,
            undoing: Undoing::No,
            job: Some(State::Done),
        };
        let good = Way {
            pairs: vec![("pay", "give"), ("ship", "fetch")],
            deeds: ["pay", "ship", "fetch", "give"].map(|d| (d.to_owned(), format!("key of {d}"))).to_vec(),
            effects: vec![undone("pay"), undone("ship")],
            unresolved: false,
            state: State::Compensated,
        };
        rejected(
            &good,
            i20,
            &[
                ("more than once", |w| w.deeds.push(("give".into(), "another key".into()))),
                ("shared a key", |w| w.deeds[3].1 = w.deeds[0].1.clone()),
                ("pay was undone before ship", |w| w.deeds.swap(2, 3)),
                ("fetch before ship", |w| drop(w.deeds.remove(1))),
                ("pay was not undone", |w| drop(w.deeds.pop())),
                ("success", |w| w.state = State::Done),
                ("past an effect", |w| w.unresolved = true),
                ("do not fit", |w| w.effects[0].job = Some(State::Dead)),
                ("do not fit", |w| w.effects[0].undoing = Undoing::UnderWay),
                ("do not fit", |w| w.effects[1].state = EffectState::Confirmed),
            ],
        );
    }
}
