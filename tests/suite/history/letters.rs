//! Messages, letters and replays: I17 to I19, as far as a history shows them; the functions themselves are the oracle's.

use super::view::View;
use super::{Answer, Came, What};
use crate::oracle::{self, Kept, Line, Post};
use onceward::{EffectState, JobId, NotHappened, State, Verdict};
use std::collections::BTreeMap;

/// Every topic, as the outbox promises it.
pub(super) fn i17(view: &View<'_>) -> Result<u64, String> {
    let mut posts: BTreeMap<&str, Post> = BTreeMap::new();
    let mut looked_at: BTreeMap<&str, bool> = BTreeMap::new();
    for (_, event) in view.events() {
        match &event.what {
            What::Owing { topic, id } => drop(posts.entry(topic).or_default().asked.insert(id.clone())),
            What::Owed { topic, id } => drop(posts.entry(topic).or_default().committed.insert(id.clone())),
            What::Tossing { topic, id } => drop(posts.entry(topic).or_default().discards.insert(id.clone())),
            What::Delivered { topic, id, message } => {
                posts.entry(topic).or_default().arrived.push((id.clone(), message.clone()));
            }
            What::Topic { topic, posted, last } => {
                let post = posts.entry(topic).or_default();
                (post.posted, post.last) = (posted.clone(), *last);
                looked_at.insert(topic, true);
            }
            _ => {}
        }
    }
    for (topic, post) in &posts {
        if !looked_at.contains_key(topic) {
            return Err(format!("badly taken down: nobody looked at the topic {topic} at the end"));
        }
        oracle::i17(post).map_err(|what| format!("topic {topic}: {what}"))?;
    }
    Ok(posts.values().map(|p| p.posted.len() as u64).sum())
}

/// Whoever asks a person has a letter, which lists every effect with its state.
pub(super) fn i18(view: &View<'_>) -> Result<u64, String> {
    for job in view.kept() {
        let asks = matches!(job.state, State::NeedsDecision | State::Dead);
        let stored: Vec<String> = job.effects.iter().map(|e| e.effect.clone()).collect();
        let listed = job.letter.as_ref().map_or(&[][..], |l| &l.lists);
        oracle::i18_of(asks, job.letter.is_some(), listed, &stored)
            .map_err(|what| format!("job {}: {what}", job.id))?;
    }
    Ok(view.kept().count() as u64)
}

/// No letter ages out undecided: a job about which a person was asked moves on only after somebody asked for that, or after news about
/// one of its calls.
pub(super) fn i18_seen(view: &View<'_>) -> Result<u64, String> {
    let mut asked: BTreeMap<JobId, usize> = BTreeMap::new();
    let asks = |state| matches!(state, State::NeedsDecision | State::Dead);
    let mut looked_at = 0;
    let last = view.kept().map(|j| (view.end(), j.id, Some(j.state)));
    let seen = view.events().filter_map(|(at, e)| match e.what {
        What::Saw { job, state, .. } => Some((at, job, state)),
        What::Began { job, .. } => Some((at, job, Some(State::Running))),
        _ => None,
    });
    for (at, job, state) in seen.chain(last) {
        let Some(state) = state else { continue };
        if asks(state) {
            asked.insert(job, at);
            continue;
        }
        let Some(since) = asked.remove(&job) else { continue };
        looked_at += 1;
        let decided = view.acts_about(job, 0, at).any(|a| a.at > since || is_open(view, a.at, since));
        let late = |n: usize| since < n && n <= at;
        // What a call came to may be seen before the queue has written it down: it is news until somebody is told.
        let told = |effect: &str, from: usize| {
            (from..since).any(|n| matches!(&view.event(n).what, What::EffectTold { job: j, effect: e, .. } if *j == job && e == effect))
        };
        let tells = |c: &super::view::Call| {
            c.came
                .as_ref()
                .is_some_and(|(n, came)| late(*n) || (*came != Came::ToNothing && *n < since && !told(&c.effect, *n)))
        };
        let news = view.calls.iter().any(|c| c.job == job && tells(c))
            || view.probes.iter().any(|p| p.job == job && p.said.as_ref().is_some_and(|(n, _)| late(*n)));
        // What was decided before an older copy of the file was put back may be asked again, and the other way round.
        let copied = since < view.copied && view.copied <= at;
        if !(decided || news || copied) {
            return Err(format!(
                "a person was asked about job {job} at {since}, and it is {state:?} without an answer"
            ));
        }
    }
    Ok(looked_at + asked.len() as u64)
}

/// What was asked for at `act` had no answer yet at `at`.
fn is_open(view: &View<'_>, act: usize, at: usize) -> bool {
    let What::Acting { act, .. } = view.event(act).what else { return false };
    !(0..at).any(|n| matches!(view.event(n).what, What::Acted { act: a, .. } if a == act))
}

/// A replay raises the token, keeps what is recorded of effects and steps, and by itself never raises a generation: only a refusal by
/// the provider does, or a person who asks for a new key.
pub(super) fn i19(view: &View<'_>) -> Result<u64, String> {
    let mut looked_at = 0;
    for job in view.kept() {
        let line = |e: &super::FinalEffect| Line {
            effect: e.effect.clone(),
            key: e.key.clone(),
            confirmed: matches!(e.state, EffectState::Confirmed | EffectState::Undone),
            reference: e.reference.clone(),
        };
        let after = Kept {
            token: job.last_token,
            effects: job.effects.iter().map(line).collect(),
            memos: job.memos.iter().map(|(name, _)| name.clone()).collect(),
        };
        for (at, event) in view.events() {
            let What::Replaying { job: id, kept } = &event.what else { continue };
            if *id != job.id || at < view.copied {
                continue;
            }
            looked_at += 1;
            let mut before = kept.clone();
            // What may get another key for a reason of its own is not the replay's.
            before.effects.retain(|e| !renewed(view, job.id, &e.effect));
            let forgotten =
                |v: &super::view::Act| matches!(&v.deed, super::Deed::Decide(Verdict::ReplayFrom { .. })) && v.at > at;
            if view.acts_about(job.id, at, view.end()).filter(|a| forgotten(a)).count() > 1 {
                before.memos.clear();
            }
            let ran = view.runs_of(job.id).any(|r| r.began > at && r.token > before.token);
            oracle::i19(&before, &after, ran).map_err(|what| format!("job {}: {what}", job.id))?;
        }
        for record in job.effects.iter().filter(|_| view.copied == 0) {
            let refused = view.calls_of(job.id, &record.effect).filter(|c| c.is_known_undone()).count();
            let asked = view.verdicts(job.id, &record.effect, 0, view.end()).filter(|v| is_new_key(v)).count();
            if record.generation as usize > 1 + refused + asked {
                return Err(format!("{} of job {} has the generation {}", record.effect, job.id, record.generation));
            }
        }
    }
    Ok(looked_at)
}

fn is_new_key(verdict: &Verdict) -> bool {
    matches!(verdict, Verdict::DidNotHappen { new_key: true, .. })
}

/// There is a reason for another key of this effect.
fn renewed(view: &View<'_>, id: JobId, effect: &str) -> bool {
    let state = view.job(id).and_then(|j| j.effects.iter().find(|e| e.effect == effect)).map(|e| e.state);
    state == Some(EffectState::Refused(NotHappened::Said))
        || view.calls_of(id, effect).any(|c| matches!(c.came, Some((_, super::Came::Refused))))
        || view.verdicts(id, effect, 0, view.end()).any(is_new_key)
}

/// How an answer reads in a count.
pub(super) fn answer_word(answer: Answer) -> &'static str {
    match answer {
        Answer::Stored(_) => "answered: stored",
        Answer::Existing { differs: false, .. } => "answered: existing",
        Answer::Existing { differs: true, .. } => "answered: conflict",
        Answer::NotDone => "answered: not done",
        Answer::Unknown => "answered: unknown",
    }
}
