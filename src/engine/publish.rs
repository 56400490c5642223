//! One call of a publisher: on a thread of its own or as a task, so that the relay sees when it takes too long.
//!
//! Keeps the promise that a call always comes to an answer (a panic, a lost runtime and a dropped task are answers too) and that a
//! blocking call that hangs keeps nobody but itself. Called by the relay of the topic.

use super::relays::{Answered, Deliver, Relays};
use crate::handler::effect::{BoxFuture, Caught, panic_text};
use crate::handler::fail::{Fail, Outcome, cut};
use crate::handler::shared::Bridge;
use crate::model::attempt::{Class, Failure};
use crate::model::outbox::Message;
use crate::model::time::Mono;
use crate::rules::outbox::Given;
use crate::store::SlotNo;
use crate::sync::channel::{self, Receiver, Sender};
use crate::sync::thread;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// Where a message stands that was handed over.
pub(super) struct Place {
    pub(super) key: String,
    pub(super) number: u64,
}

/// A call that has not been answered.
pub(super) struct Call {
    pub(super) id: u64,
    pub(super) places: Vec<Place>,
    pub(super) slots: Vec<SlotNo>,
    /// The id of its first message, for people.
    pub(super) first: String,
    /// It takes too long from here on.
    pub(super) until: Mono,
    pub(super) hung: bool,
    /// Drops an async call.
    pub(super) abort: Option<Box<dyn FnOnce() + Send>>,
}

/// Calls the publisher of one topic.
pub(super) struct Caller {
    relays: Arc<Relays>,
    nth: usize,
    deliver: Arc<Deliver>,
    /// The thread that calls a blocking publisher, once there was something to call it for.
    thread: Option<Sender<(u64, Vec<Message>)>>,
    last: u64,
}

impl Caller {
    pub(super) fn new(relays: Arc<Relays>, nth: usize, deliver: Arc<Deliver>) -> Self {
        Self { relays, nth, deliver, thread: None, last: 0 }
    }
    pub(super) fn next_id(&mut self) -> u64 {
        self.last += 1;
        self.last
    }
    /// Begins a call; its answer comes to the relay's state. An async one can be dropped.
    pub(super) fn call(
        &mut self,
        id: u64,
        messages: Vec<Message>,
        bridge: Option<&dyn Bridge>,
    ) -> Option<Box<dyn FnOnce() + Send>> {
        let begun = match (&*self.deliver, bridge) {
            (Deliver::Blocking(_), _) => self.on_thread(id, messages).map(|()| None),
            (Deliver::Async(_), None) => Err("there is no runtime".to_owned()),
            (Deliver::Async(publish), Some(bridge)) => catch_unwind(AssertUnwindSafe(|| publish(messages)))
                .map_err(|panic| panicked(panic_text(panic)))
                .map(|future| Some(self.task(id, future, bridge))),
        };
        begun.unwrap_or_else(|why| {
            self.relays.answer(self.nth, id, Err(why));
            None
        })
    }
    fn task(&self, id: u64, future: BoxFuture<Vec<Outcome<()>>>, bridge: &dyn Bridge) -> Box<dyn FnOnce() + Send> {
        // Answers when it is dropped, if nothing else does.
        let tell = Tell { relays: self.relays.clone(), nth: self.nth, id, told: None };
        let caught = Caught::new(future);
        bridge.spawn_abortable(Box::pin(async move { tell.say(caught.await.map_err(panicked)) }))
    }
    /// The call that runs hangs: the next one has another thread. That one ends when its call does.
    pub(super) fn leave(&mut self) {
        self.thread = None;
    }

    fn on_thread(&mut self, id: u64, messages: Vec<Message>) -> Result<(), String> {
        let to = match &self.thread {
            Some(to) => to.clone(),
            None => {
                let (to, from) = channel::unbounded();
                let (relays, nth, deliver) = (self.relays.clone(), self.nth, self.deliver.clone());
                let thread = thread::Builder::new().name("onceward-publish".into());
                #[expect(clippy::disallowed_methods, reason = "the engine owns the threads")]
                let spawned = thread.spawn(move || serve(&relays, nth, &deliver, &from));
                // Nobody joins it: a call may hang for ever.
                spawned.map_err(|e| format!("no thread for the publisher: {e}"))?;
                self.thread.insert(to).clone()
            }
        };
        to.send((id, messages)).map_err(|_| "the thread of the publisher is gone".to_owned())
    }
}

fn serve(relays: &Relays, nth: usize, deliver: &Deliver, from: &Receiver<(u64, Vec<Message>)>) {
    for (id, messages) in from {
        let told = match deliver {
            Deliver::Blocking(publisher) => catch_unwind(AssertUnwindSafe(|| publisher.publish_all(&messages)))
                .map_err(|panic| panicked(panic_text(panic))),
            Deliver::Async(_) => Err("an async publisher has no thread".to_owned()),
        };
        relays.answer(nth, id, told);
    }
}

/// The answer to one async call: whatever becomes of its task, there is one.
struct Tell {
    relays: Arc<Relays>,
    nth: usize,
    id: u64,
    told: Option<Answered>,
}

impl Tell {
    fn say(mut self, told: Answered) {
        self.told = Some(told);
    }
}

impl Drop for Tell {
    fn drop(&mut self) {
        let told = self.told.take();
        let told =
            told.unwrap_or_else(|| Err("the publisher did not answer in time, or its runtime is gone".to_owned()));
        self.relays.answer(self.nth, self.id, told);
    }
}

/// A publisher's answers, in the rules' words: nothing it says means that a message cannot have arrived.
pub(super) fn given(told: Answered, limit: usize) -> Vec<Given> {
    // A panic says nothing about any of them: the first counts as tried, so that its failures are counted at all.
    let answers = told.unwrap_or_else(|why| vec![Err(Fail::new(why))]);
    // An error whose text or `Drop` panics is a failure like any other.
    let one = |outcome: Outcome<()>| {
        catch_unwind(AssertUnwindSafe(|| match outcome {
            Ok(()) => Given::Taken,
            Err(fail) => Given::Failed(fail.delivery_failure(limit)),
        }))
        .unwrap_or_else(|panic| Given::Failed(failure(Class::Unknown, panicked(panic_text(panic)), limit)))
    };
    let mut given: Vec<Given> = answers.into_iter().map(one).collect();
    if given.is_empty() {
        // A publisher that tries nothing and says nothing would be asked again at once, for ever.
        let text = "the publisher answered for none of its messages".to_owned();
        given.push(Given::Failed(failure(Class::Transient, text, limit)));
    }
    given
}

fn panicked(text: String) -> String {
    format!("the publisher panicked: {text}")
}

fn failure(class: Class, text: String, limit: usize) -> Failure {
    Failure { class, text: cut(text, limit), retry_after: None }
}
