//! Calls that are inside a performer right now, and questions that people had asked, for the whole process: a request that may still
//! be sent must not be taken for "not there", also when the queue was closed and opened again in the same process.

use crate::model::id::{CallNo, EffectId, JobId};
use crate::model::time::Mono;
use crate::rules::CallFacts;
use crate::sync::{Mutex, process_wide};
use std::collections::{HashMap, HashSet};

type Key = ([u8; 16], JobId, EffectId);

#[derive(Default)]
struct State {
    running: Vec<(CallNo, Mono)>,
    ended: Option<Mono>,
}

process_wide! {
    static CALLS: Mutex<HashMap<Key, State>> = Mutex::new(HashMap::new());
    static ASKED: Mutex<HashSet<Key>> = Mutex::new(HashSet::new());
}

/// One question to a provider that a person had asked; it is over when this is dropped, wherever that is. Whoever runs the probe has
/// it, not whoever waits for the answer: a probe that outlives the wait still asks.
pub(crate) struct Question(Key);

impl Drop for Question {
    fn drop(&mut self) {
        ASKED.lock().remove(&self.0);
    }
}

/// One call inside its performer; its end is noted when this is dropped, however that comes about.
pub(crate) struct Inside {
    key: Key,
    call: CallNo,
    clock: std::sync::Arc<dyn crate::clock::Clock>,
    left: bool,
}

impl Inside {
    /// The call ended, and its end is handed on: in one step for everybody who looks.
    pub(crate) fn end<T>(mut self, hand_on: impl FnOnce() -> T) -> T {
        let mut calls = CALLS.lock();
        let told = hand_on();
        self.leave(&mut calls);
        told
    }
    fn leave(&mut self, calls: &mut HashMap<Key, State>) {
        let now = self.clock.now().mono;
        if let Some(s) = calls.get_mut(&self.key) {
            s.running.retain(|(c, _)| *c != self.call);
            s.ended = Some(now);
        }
        self.left = true;
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        if !self.left {
            self.leave(&mut CALLS.lock());
        }
    }
}

/// The calls of one file.
#[derive(Clone)]
pub(crate) struct Calls {
    instance: [u8; 16],
    opened: Mono,
}

impl Calls {
    pub(crate) fn of(instance: [u8; 16], opened: Mono) -> Self {
        Self { instance, opened }
    }
    fn key(&self, job: JobId, effect: &EffectId) -> Key {
        (self.instance, job, effect.clone())
    }
    /// A performer is entered.
    pub(crate) fn enter(
        &self,
        job: JobId,
        effect: &EffectId,
        call: CallNo,
        clock: &std::sync::Arc<dyn crate::clock::Clock>,
    ) -> Inside {
        let key = self.key(job, effect);
        let now = clock.now().mono;
        CALLS.lock().entry(key.clone()).or_default().running.push((call, now));
        Inside { key, call, clock: clock.clone(), left: false }
    }
    /// The effect is resolved: nobody will ask when its calls ended.
    pub(crate) fn forget(&self, job: JobId, effect: &EffectId) {
        let key = self.key(job, effect);
        let mut calls = CALLS.lock();
        if calls.get(&key).is_some_and(|s| s.running.is_empty()) {
            calls.remove(&key);
        }
    }
    /// Whether a call is inside its performer.
    pub(crate) fn running(&self, job: JobId, effect: &EffectId) -> bool {
        CALLS.lock().get(&self.key(job, effect)).is_some_and(|s| !s.running.is_empty())
    }
    /// A person has the provider asked; `None` while an earlier question about the effect is under way.
    pub(crate) fn ask(&self, job: JobId, effect: &EffectId) -> Option<Question> {
        let key = self.key(job, effect);
        ASKED.lock().insert(key.clone()).then(|| Question(key))
    }
    /// Whether a question about the effect is under way.
    pub(crate) fn asked(&self, job: JobId, effect: &EffectId) -> bool {
        ASKED.lock().contains(&self.key(job, effect))
    }
    /// What is known about the calls of an effect. Without a memory of this process the earlier call ended with its process, so
    /// the quiet time starts when the file was opened: it errs on the long side.
    pub(crate) fn facts(&self, job: JobId, effect: &EffectId, now: Mono, key_age_ms: Option<u64>) -> CallFacts {
        let calls = CALLS.lock();
        let state = calls.get(&self.key(job, effect));
        let oldest = state.and_then(|s| s.running.iter().map(|(_, since)| *since).min());
        let quiet_since = state.and_then(|s| s.ended).unwrap_or(self.opened).max(self.opened);
        CallFacts { running_ms: oldest.map(|since| now.since(since)), quiet_ms: now.since(quiet_since), key_age_ms }
    }
}
