//! What the other threads see of the relays: which topics have a publisher here, whom to wake, and who is still at work.
//!
//! Keeps the promise that a wake is never lost: whoever has something says so under the lock that the relay sleeps with. The threads
//! themselves are in `relay`; called by the reports after a commit, the timer, and whoever waits for quiet.

use crate::handler::effect::BoxFuture;
use crate::handler::fail::Outcome;
use crate::handler::publish::Publisher;
use crate::model::outbox::{Message, Topic};
use crate::model::time::Mono;
use crate::rules::outbox::Suspects;
use crate::sync::{Condvar, Mutex};
use std::sync::Arc;

/// How a topic's messages are handed over.
pub(crate) enum Deliver {
    Blocking(Box<dyn Publisher>),
    Async(AsyncDeliver),
}

/// An async publisher, type-erased.
pub(crate) type AsyncDeliver = Box<dyn Fn(Vec<Message>) -> BoxFuture<Vec<Outcome<()>>> + Send + Sync>;

/// All relays of one queue.
pub(crate) struct Relays(pub(super) Vec<Relay>);

/// One topic with its publisher, and what its thread is at.
pub(crate) struct Relay {
    pub(super) topic: String,
    pub(super) policy: Topic,
    pub(super) deliver: Arc<Deliver>,
    /// Messages with which an earlier process died: they go out alone until they have come back alive.
    pub(super) suspects: Mutex<Suspects>,
    pub(super) state: Mutex<State>,
    pub(super) woken: Condvar,
}

/// What a relay is at.
#[derive(Default)]
pub(crate) struct State {
    /// Somebody has something for it.
    pub(super) wanted: bool,
    /// The timer has come to an instant that it asked for.
    pub(super) rung: bool,
    /// It looks or marks.
    pub(super) working: bool,
    /// It writes what calls came to: a shutdown waits for that.
    pub(super) marking: bool,
    /// Calls of the publisher that have not been answered.
    pub(super) calls: Vec<InCall>,
    /// What calls came to, by their number.
    pub(super) answers: Vec<(u64, Answered)>,
    pub(super) stopping: bool,
    /// The timer will wake it at this instant.
    pub(super) armed: Option<Mono>,
    /// Looks so far, for the tests.
    pub(super) looks: u64,
}

/// What a publisher said, or why it said nothing.
pub(crate) type Answered = Result<Vec<Outcome<()>>, String>;

/// A call of the publisher that runs.
#[derive(Clone, Debug)]
pub(crate) struct InCall {
    pub(super) id: u64,
    /// The messages it was given.
    pub(crate) numbers: Vec<u64>,
    pub(crate) since: Mono,
    /// It has taken longer than the topic allows; what it holds is not given to anybody else.
    pub(crate) hung: bool,
    /// It is being dropped: its answer comes in a moment.
    pub(super) dropped: bool,
}

impl Relays {
    pub(crate) fn new(topics: Vec<(String, Topic, Deliver)>) -> Self {
        let relay = |(topic, policy, deliver)| {
            // At first everything is looked at that an earlier process left.
            let state = State { wanted: true, ..State::default() };
            let deliver = Arc::new(deliver);
            Relay {
                topic,
                policy,
                deliver,
                suspects: Mutex::default(),
                state: Mutex::new(state),
                woken: Condvar::new(),
            }
        };
        Self(topics.into_iter().map(relay).collect())
    }
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }
    pub(crate) fn topics(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|r| r.topic.as_str())
    }
    /// The policy of a topic that has a publisher here.
    pub(crate) fn policy(&self, topic: &str) -> Option<&Topic> {
        self.0.iter().find(|r| r.topic == topic).map(|r| &r.policy)
    }
    /// A message was written, or may go on.
    pub(crate) fn wake(&self, topic: &str) {
        self.0.iter().filter(|r| r.topic == topic).for_each(Relay::wake);
    }
    /// The timer has come to an instant that the relay asked for.
    pub(crate) fn ring(&self, nth: usize) {
        if let Some(relay) = self.0.get(nth) {
            {
                let mut state = relay.state.lock();
                state.armed = None;
                state.rung = true;
            }
            relay.woken.notify_all();
        }
    }
    /// A call of the publisher has come to something.
    pub(super) fn answer(&self, nth: usize, call: u64, told: Answered) {
        if let Some(relay) = self.0.get(nth) {
            relay.state.lock().answers.push((call, told));
            relay.woken.notify_all();
        }
    }
    /// The calls of a topic's publisher that run.
    pub(crate) fn calls(&self, topic: &str) -> Vec<InCall> {
        self.0.iter().filter(|r| r.topic == topic).flat_map(|r| r.state.lock().calls.clone()).collect()
    }
    /// The suspects of a topic.
    pub(super) fn suspects(&self, topic: &str) -> Suspects {
        self.0.iter().find(|r| r.topic == topic).map(|r| r.suspects.lock().clone()).unwrap_or_default()
    }
    /// What an earlier process died with is a suspect from now on.
    pub(crate) fn suspect(&self, topic: &str, suspects: &Suspects) {
        self.0.iter().filter(|r| r.topic == topic).for_each(|r| *r.suspects.lock() = suspects.clone());
    }
    pub(crate) fn wake_all(&self) {
        self.0.iter().for_each(Relay::wake);
    }
    /// Whether one of them has something to do right now.
    pub(crate) fn busy(&self) -> bool {
        self.0.iter().any(|r| {
            let state = r.state.lock();
            let calls = state.calls.iter().any(|c| !c.hung || c.dropped);
            !state.stopping && (state.wanted || state.rung || state.working || calls || !state.answers.is_empty())
        })
    }
    /// How many have handed messages over and not marked them yet.
    pub(crate) fn calling(&self) -> usize {
        let calling = |r: &&Relay| {
            let state = r.state.lock();
            state.marking || !state.calls.is_empty()
        };
        self.0.iter().filter(calling).count()
    }
    /// Nothing more is taken; what was handed over is still marked.
    pub(crate) fn stop(&self) {
        for relay in &self.0 {
            relay.state.lock().stopping = true;
            relay.woken.notify_all();
        }
    }
    /// How often a topic's relay has looked for messages.
    #[cfg(feature = "testkit")]
    pub(crate) fn looks(&self, topic: &str) -> u64 {
        self.0.iter().filter(|r| r.topic == topic).map(|r| r.state.lock().looks).sum()
    }
}

impl Relay {
    fn wake(&self) {
        self.state.lock().wanted = true;
        self.woken.notify_all();
    }
    pub(super) fn stopping(&self) -> bool {
        self.state.lock().stopping
    }
}
