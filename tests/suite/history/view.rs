//! A history, read once: whose job, which run, which call, what was really over when. The invariants ask it; it judges nothing but
//! whether the history was taken down as it has to be.

use super::{Answer, Came, Crash, Deed, Due, Event, FinalJob, History, How, Name, Said, Told, What};
use onceward::{JobId, Keep, KindRules, Recovery, State, Verdict};
use std::collections::BTreeMap;

/// Somebody asked for a job.
pub(super) struct Ask {
    pub(super) at: usize,
    pub(super) name: Name,
    pub(super) payload: u64,
    pub(super) due: Due,
    pub(super) answer: Option<(usize, Answer)>,
}

/// One call of a handler.
pub(super) struct Run {
    pub(super) job: JobId,
    pub(super) token: u64,
    pub(super) attempt: u32,
    pub(super) life: u32,
    pub(super) began: usize,
    pub(super) ended: Option<(usize, How)>,
}

/// One call of a provider.
pub(super) struct Call {
    pub(super) job: JobId,
    pub(super) effect: String,
    pub(super) key: String,
    pub(super) request: u64,
    pub(super) life: u32,
    pub(super) entered: usize,
    /// The run that asked for it.
    pub(super) run: Option<usize>,
    pub(super) applied: u64,
    pub(super) came: Option<(usize, Came)>,
    /// From here on it can surely not be sent any more: it returned, or its process was over.
    pub(super) over: Option<usize>,
}

impl Call {
    /// Its caller knows that nothing happened by it.
    pub(super) fn is_known_undone(&self) -> bool {
        matches!(self.came, Some((_, Came::Refused | Came::NotSent)))
    }
    pub(super) fn of(&self, job: JobId, effect: &str) -> bool {
        self.job == job && self.effect == effect
    }
}

/// A provider was asked.
pub(super) struct Probe {
    pub(super) job: JobId,
    pub(super) effect: String,
    pub(super) asked: usize,
    pub(super) said: Option<(usize, Said)>,
}

/// What a person asked for.
pub(super) struct Act {
    pub(super) at: usize,
    pub(super) job: Option<JobId>,
    pub(super) deed: Deed,
    /// Whether it was done; unknown is `None`.
    pub(super) done: Option<bool>,
}

pub(super) struct View<'a> {
    pub(super) history: &'a History,
    pub(super) jobs: &'a [FinalJob],
    pub(super) asks: BTreeMap<u64, Ask>,
    pub(super) runs: Vec<Run>,
    pub(super) calls: Vec<Call>,
    pub(super) probes: Vec<Probe>,
    pub(super) acts: Vec<Act>,
    /// Ms that had really passed at each event.
    pub(super) truth: Vec<u64>,
    /// The newest start of a review: what was told before it may be forgotten by the file.
    pub(super) copied: usize,
}

impl<'a> View<'a> {
    pub(super) fn of(history: &'a History, jobs: &'a [FinalJob]) -> Result<Self, String> {
        let mut view = View {
            history,
            jobs,
            asks: BTreeMap::new(),
            runs: Vec::new(),
            calls: Vec::new(),
            probes: Vec::new(),
            acts: Vec::new(),
            truth: truth(&history.events)?,
            copied: 0,
        };
        let mut calls = BTreeMap::new();
        let mut probes = BTreeMap::new();
        let mut acts = BTreeMap::new();
        let mut reviewed = false;
        for (at, event) in history.events.iter().enumerate() {
            let odd = |what: &str| format!("badly taken down: {what} at {at}: {event:?}");
            match &event.what {
                What::Started { review, .. } => {
                    if *review && !reviewed {
                        view.copied = at;
                    }
                    reviewed = *review;
                }
                What::Crashed(_) => {
                    for call in view.calls.iter_mut().filter(|c| c.life <= event.life) {
                        call.over.get_or_insert(at);
                    }
                }
                What::Asking { ask, name, payload, due } => {
                    let new = Ask { at, name: name.clone(), payload: *payload, due: *due, answer: None };
                    if view.asks.insert(*ask, new).is_some() {
                        return Err(odd("a number twice"));
                    }
                }
                What::Asked { ask, answer } => {
                    view.asks.get_mut(ask).ok_or_else(|| odd("nobody asked"))?.answer = Some((at, *answer));
                }
                What::Began { job, attempt, token } => {
                    let (job, attempt, token, life) = (*job, *attempt, *token, event.life);
                    view.runs.push(Run { job, token, attempt, life, began: at, ended: None });
                }
                What::Ended { job, token, how } => {
                    view.owner(event, *job, *token).map_err(|what| odd(&what))?;
                    let run = view.runs.iter_mut().rev().find(|r| r.token == *token && r.life == event.life);
                    run.ok_or_else(|| odd("nothing began"))?.ended = Some((at, *how));
                }
                What::Entered { call, job, effect, key, request } => {
                    calls.insert(*call, view.calls.len());
                    let run = view.asker(at, *job, effect);
                    view.calls.push(Call {
                        job: *job,
                        effect: effect.clone(),
                        key: key.clone(),
                        request: *request,
                        life: event.life,
                        entered: at,
                        run,
                        applied: 0,
                        came: None,
                        over: None,
                    });
                }
                What::Applied { call } => {
                    view.calls[*calls.get(call).ok_or_else(|| odd("no such call"))?].applied += 1;
                }
                What::Returned { call, came } => {
                    let call = &mut view.calls[*calls.get(call).ok_or_else(|| odd("no such call"))?];
                    (call.came, call.over) = (Some((at, came.clone())), Some(at));
                }
                What::Probing { probe, job, effect } => {
                    probes.insert(*probe, view.probes.len());
                    view.probes.push(Probe { job: *job, effect: effect.clone(), asked: at, said: None });
                }
                What::Probed { probe, said } => {
                    let nth = *probes.get(probe).ok_or_else(|| odd("nobody asked"))?;
                    view.probes[nth].said = Some((at, said.clone()));
                }
                What::Acting { act, job, deed } => {
                    acts.insert(*act, view.acts.len());
                    view.acts.push(Act { at, job: *job, deed: deed.clone(), done: None });
                }
                What::Acted { act, done } => {
                    let nth = *acts.get(act).ok_or_else(|| odd("nobody asked"))?;
                    view.acts[nth].done = *done;
                }
                What::Finishing { job, token }
                | What::Remember { job, token, .. }
                | What::EffectAsked { job, token, .. }
                | What::EffectTold { job, token, .. } => {
                    view.owner(event, *job, *token).map_err(|what| odd(&what))?;
                }
                _ => {}
            }
        }
        if let Some(job) = jobs.iter().find(|j| !history.kinds.contains_key(j.name.0)) {
            return Err(format!("badly taken down: nobody declared the kind of {:?}", job.name));
        }
        Ok(view)
    }

    /// The token was handed to a handler of this job in this life.
    fn owner(&self, event: &Event, job: JobId, token: u64) -> Result<(), String> {
        match self.runs.iter().any(|r| (r.job, r.token, r.life) == (job, token, event.life)) {
            true => Ok(()),
            false => Err("nothing began with this token".into()),
        }
    }
    /// The run whose question for this effect is open, the newest one if there are several.
    fn asker(&self, at: usize, job: JobId, effect: &str) -> Option<usize> {
        let life = self.history.events[at].life;
        let open = |run: &Run| {
            let mut open = false;
            for what in self.told(run).filter(|(n, _)| *n < at).map(|(_, what)| what) {
                match what {
                    What::EffectAsked { effect: e, .. } if e == effect => open = true,
                    What::EffectTold { effect: e, .. } if e == effect => open = false,
                    _ => {}
                }
            }
            open
        };
        self.runs.iter().rposition(|r| r.job == job && r.life == life && open(r))
    }
    /// What a handler asked for and was told, with its place.
    pub(super) fn told(&self, run: &Run) -> impl Iterator<Item = (usize, &'a What)> {
        let (token, life) = (run.token, run.life);
        let events = self.history.events.iter().enumerate().skip(run.began);
        events.filter(move |(_, e)| e.life == life).map(|(at, e)| (at, &e.what)).filter(move |(_, what)| match what {
            What::EffectAsked { token: t, .. }
            | What::EffectTold { token: t, .. }
            | What::Remember { token: t, .. }
            | What::Finishing { token: t, .. } => *t == token,
            _ => false,
        })
    }
    pub(super) fn event(&self, at: usize) -> &'a Event {
        &self.history.events[at]
    }
    pub(super) fn events(&self) -> impl Iterator<Item = (usize, &'a Event)> {
        self.history.events.iter().enumerate()
    }
    pub(super) fn wall(&self, at: usize) -> u64 {
        self.event(at).now.wall.0
    }
    pub(super) fn mono(&self, at: usize) -> u64 {
        self.event(at).now.mono.0
    }
    /// The latest that the calendar showed between two events.
    pub(super) fn latest(&self, from: usize, to: usize) -> u64 {
        (from..=to).map(|at| self.wall(at)).max().unwrap_or(0)
    }
    pub(super) fn job(&self, id: JobId) -> Option<&'a FinalJob> {
        self.jobs.iter().find(|j| j.id == id)
    }
    /// Jobs that the file still has rows of.
    pub(super) fn kept(&self) -> impl Iterator<Item = &'a FinalJob> {
        self.jobs.iter().filter(|j| j.state != State::Remembered)
    }
    pub(super) fn rules(&self, name: &Name) -> &'a KindRules {
        &self.history.kinds[name.0]
    }
    pub(super) fn runs_of(&self, id: JobId) -> impl Iterator<Item = &Run> {
        self.runs.iter().filter(move |r| r.job == id)
    }
    pub(super) fn calls_of(&self, id: JobId, effect: &str) -> impl Iterator<Item = &Call> {
        self.calls.iter().filter(move |c| c.of(id, effect))
    }
    /// Every effect that was called, with its job.
    pub(super) fn effects(&self) -> Vec<(JobId, String)> {
        let mut all: Vec<_> = self.calls.iter().map(|c| (c.job, c.effect.clone())).collect();
        all.sort();
        all.dedup();
        all
    }
    /// What the job's kind declares about an effect.
    pub(super) fn recovery(&self, id: JobId, effect: &str) -> Option<Recovery> {
        let name = effect.split('/').next().unwrap_or(effect);
        Some(self.rules(&self.job(id)?.name).card(name)?.recovery())
    }
    /// What people asked for about a job between two events, and which was not refused.
    pub(super) fn acts_about(&self, id: JobId, from: usize, to: usize) -> impl Iterator<Item = &Act> {
        self.acts.iter().filter(move |a| a.job == Some(id) && a.done != Some(false) && from <= a.at && a.at <= to)
    }
    /// What people decided about an effect between two events.
    pub(super) fn verdicts(&self, id: JobId, about: &str, from: usize, to: usize) -> impl Iterator<Item = &Verdict> {
        self.acts_about(id, from, to).filter_map(move |a| match &a.deed {
            Deed::Decide(v @ (Verdict::Happened { effect, .. } | Verdict::DidNotHappen { effect, .. }))
                if effect.to_string() == about =>
            {
                Some(v)
            }
            _ => None,
        })
    }
    /// The end of a life that crashed.
    pub(super) fn crash(&self, life: u32) -> Option<(usize, Crash)> {
        self.events().find_map(|(at, e)| match e.what {
            What::Crashed(how) if e.life == life => Some((at, how)),
            _ => None,
        })
    }
    /// The crash of a life, or the end of the history.
    pub(super) fn end_of(&self, life: u32) -> usize {
        let stopped =
            || self.events().find(|(_, e)| e.life == life && matches!(e.what, What::Stopped)).map(|(at, _)| at);
        self.crash(life).map(|(at, _)| at).or_else(stopped).unwrap_or(self.end())
    }
    /// The newest moment before `at` in its life at which no claim was on its way to a handler.
    pub(super) fn quiet_before(&self, at: usize) -> Option<usize> {
        let life = self.event(at).life;
        (0..at).rev().find(|n| {
            let e = self.event(*n);
            e.life == life && matches!(e.what, What::Idle | What::Started { .. })
        })
    }
    /// Handlers that began and have not returned, at this event, in its life.
    pub(super) fn live(&self, at: usize) -> impl Iterator<Item = &Run> {
        let life = self.event(at).life;
        self.runs.iter().filter(move |r| r.life == life && r.began < at && r.ended.is_none_or(|(ended, _)| ended > at))
    }
    /// So much time passed between the two that something kept for this long may be gone. Retention follows the calendar: a clock that
    /// was set ahead brings its end nearer, so every way that the calendar went counts.
    pub(super) fn may_have_passed(&self, keep: Keep, from: usize, to: usize) -> bool {
        match keep {
            Keep::Forever => false,
            Keep::For(d) => {
                let mut earliest = u64::MAX;
                (from..=to).any(|n| {
                    earliest = earliest.min(self.wall(n));
                    u128::from(self.wall(n) - earliest) >= d.as_millis()
                })
            }
        }
    }
    /// The last event.
    pub(super) fn end(&self) -> usize {
        self.history.events.len().saturating_sub(1)
    }
    /// What a handler was told was done: place, run, effect, result.
    pub(super) fn confirmed(&self) -> impl Iterator<Item = (usize, JobId, &'a str, &'a str)> {
        self.events().filter_map(|(at, e)| match &e.what {
            What::EffectTold { job, effect, told: Told::Done(result), .. } => Some((at, *job, &**effect, &**result)),
            _ => None,
        })
    }
}

/// Ms that had really passed at each event: within a life the stopwatch and what was slept, between two what the start says.
fn truth(events: &[Event]) -> Result<Vec<u64>, String> {
    // Of each life: what had passed when the stopwatch stood here.
    let mut lives: BTreeMap<u32, (u64, u64)> = BTreeMap::new();
    let mut passed: Vec<u64> = Vec::with_capacity(events.len());
    for event in events {
        let before = passed.last().copied().unwrap_or(0);
        match event.what {
            What::Started { down_ms, .. } => {
                lives.insert(event.life, (before + down_ms, event.now.mono.0));
            }
            What::Moved(super::Moved::Suspend(ms)) => lives.values_mut().for_each(|(base, _)| *base += ms),
            _ => {}
        }
        passed.push(match lives.get(&event.life) {
            Some((base, mono)) => before.max(base + event.now.mono.0.saturating_sub(*mono)),
            None if event.life == 0 => before,
            None => return Err(format!("badly taken down: a life that did not start: {event:?}")),
        });
    }
    Ok(passed)
}
