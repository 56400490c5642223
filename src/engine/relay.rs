//! The relay: delivers the outbox, a thread for each topic with a publisher, so that a slow or failing topic stops no other.
//!
//! Keeps the promises that a message goes out only after its commit and at least once, that nothing overtakes within an ordering
//! key, and that it is marked only after the other side has acknowledged it. It sleeps until a commit wrote to its topic or the
//! timer says that a wait is over; nothing polls.

use super::core::Core;
use super::outbox::{MarkOp, Tried};
use super::relays::{Deliver, Relay, State};
use crate::handler::effect::{BoxFuture, Caught, panic_text};
use crate::handler::fail::{Fail, Outcome, cut};
use crate::handler::reply::{Waited, answer};
use crate::handler::shared::{Bridge, Phase};
use crate::model::attempt::{Class, Failure};
use crate::model::outbox::{Delivery, Message, Standing};
use crate::model::time::{Mono, Now, Wall};
use crate::rules::outbox::{self, Given, Look};
use crate::store::{Lane, StoreError, View};
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

/// Bytes of bodies that one batch holds; a larger message goes alone.
const BATCH_BYTES: usize = 4 << 20;
/// After a read or a mark that failed: the store may be better in a while.
const STORE_PAUSE: Duration = Duration::from_secs(1);

/// Spawns the thread of one topic.
pub(crate) fn spawn(core: Arc<Core>, nth: usize) -> std::io::Result<std::thread::JoinHandle<()>> {
    #[expect(clippy::disallowed_methods, reason = "the engine owns the threads")]
    std::thread::Builder::new().name("onceward-outbox".into()).spawn(move || {
        if let Some(relay) = core.relays.0.get(nth) {
            Run { core: &core, relay, nth, after: None, waits: HashMap::new(), empty: 0, rest: None }.run();
            // Nobody waits for one that has ended.
            *relay.state.lock() = State { stopping: true, ..State::default() };
            core.signal();
        }
    })
}

/// A message that goes out now.
struct Picked {
    key: String,
    number: u64,
    /// What is handed over; a message that cannot go out has its failure instead.
    what: Result<Message, Given>,
}

/// What a look came to.
enum Turn {
    /// Something was delivered or moved: look again.
    More,
    /// Nothing to do before this instant.
    Idle(Option<Mono>),
    /// The store is closed.
    Gone,
}

/// One relay's thread.
struct Run<'a> {
    core: &'a Arc<Core>,
    relay: &'a Relay,
    nth: usize,
    /// The last key that had its turn: the next one goes first, so that a busy key starves no other.
    after: Option<String>,
    /// Waits that were seen begin, by the stopwatch: a calendar that is set back must not starve a retry.
    waits: HashMap<(String, u64), (Wall, Mono)>,
    /// Rounds in a row that delivered nothing.
    empty: u32,
    /// The topic rests until then.
    rest: Option<Mono>,
}

impl Run<'_> {
    fn run(mut self) {
        while self.sleep() {
            loop {
                self.relay.state.lock().wanted = false;
                let turn = self.turn();
                let mut state = self.relay.state.lock();
                state.calling = false;
                if state.stopping {
                    break;
                }
                match turn {
                    Turn::More => {}
                    Turn::Gone => return,
                    Turn::Idle(next) => {
                        drop(state);
                        self.arm(next);
                        break;
                    }
                }
            }
            self.core.signal();
        }
    }
    /// Until somebody has something; `false` at the end.
    fn sleep(&self) -> bool {
        let mut state = self.relay.state.lock();
        state.working = false;
        if !state.wanted && !state.stopping {
            drop(state);
            // Whoever waits for quiet looks again.
            self.core.signal();
            state = self.relay.state.lock();
        }
        while !state.wanted && !state.stopping {
            self.relay.woken.wait(&mut state);
        }
        state.working = !state.stopping;
        !state.stopping
    }
    /// Has the timer wake it; the same instant only once.
    fn arm(&mut self, next: Option<Mono>) {
        let Some(next) = next else { return };
        let mut state = self.relay.state.lock();
        if state.armed.is_none_or(|armed| next < armed) {
            state.armed = Some(next);
            self.core.timer.relay(self.nth, next);
        }
    }

    fn turn(&mut self) -> Turn {
        let shared = &self.core.shared;
        let now = shared.now();
        if let Some(rest) = self.rest.filter(|rest| *rest > now.mono) {
            return Turn::Idle(Some(rest));
        }
        self.rest = None;
        if shared.pauses.read().topic(&self.relay.topic).is_some() {
            return Turn::Idle(None);
        }
        self.relay.state.lock().looks += 1;
        let (relay, after) = (self.relay, self.after.take());
        let mut look =
            Scan { relay, now, waits: &self.waits, seen: HashMap::new(), picked: Vec::new(), bytes: 0, next: None };
        let found = shared.store.read(|v| look.all(v, after.as_deref()));
        let Scan { seen, picked, next, .. } = look;
        match found {
            // Every key was looked at: what is not among the waits is over.
            Ok(true) => self.waits = seen,
            Ok(false) => self.waits.extend(seen),
            Err(StoreError::Closed | StoreError::Stopped(_)) => return Turn::Gone,
            Err(e) => {
                shared
                    .report
                    .warn(&format!("the outbox of {:?} could not be read, and is looked at again: {e}", relay.topic));
                return self.pause(STORE_PAUSE);
            }
        }
        match picked.last() {
            None => return Turn::Idle(next),
            Some(last) => self.after = Some(last.key.clone()),
        }
        {
            // Held while it begins, so that a pause is acknowledged before or after that, never in between.
            let pauses = shared.pauses.read();
            if shared.phase() != Phase::Open || pauses.topic(&relay.topic).is_some() {
                return Turn::Idle(None);
            }
            relay.state.lock().calling = true;
        }
        let tried = self.deliver(picked);
        self.mark(tried)
    }

    /// Hands the messages over; what was not tried is left out.
    fn deliver(&mut self, picked: Vec<Picked>) -> Vec<Tried> {
        let (mut tried, mut messages, mut places) = (Vec::new(), Vec::new(), Vec::new());
        for Picked { key, number, what } in picked {
            match what {
                Ok(message) => {
                    places.push((key, number, message.id.clone()));
                    messages.push(message);
                }
                Err(given) => tried.push(Tried { key, number, given }),
            }
        }
        if messages.is_empty() {
            return tried;
        }
        let limit = self.core.shared.limits.error_text;
        let answers = match &self.relay.deliver {
            Deliver::Blocking(publisher) => catch_unwind(AssertUnwindSafe(|| publisher.publish_all(&messages)))
                .map_err(|panic| panicked(panic_text(panic))),
            Deliver::Async(publish) => {
                let future = catch_unwind(AssertUnwindSafe(|| publish(messages)));
                future.map_err(|panic| panicked(panic_text(panic))).and_then(|future| self.wait_for(future))
            }
        };
        // A panic says nothing about any of them: the first counts as tried, so that its failures are counted at all.
        let answers = answers.unwrap_or_else(|why| vec![Err(Fail::new(why))]);
        // An error whose text or `Drop` panics is a failure like any other.
        let given = |outcome: Outcome<()>| {
            catch_unwind(AssertUnwindSafe(|| given(outcome, limit)))
                .unwrap_or_else(|panic| Given::Failed(failure(Class::Unknown, panicked(panic_text(panic)), limit)))
        };
        let answers: Vec<Given> = answers.into_iter().map(given).collect();
        // A publisher that tries nothing and says nothing would be asked again at once, for ever.
        let silent = answers.is_empty().then(|| {
            Given::Failed(failure(
                Class::Transient,
                "the publisher answered for none of its messages".to_owned(),
                limit,
            ))
        });
        let answers = answers.into_iter().chain(silent);
        tried.extend(places.into_iter().zip(answers).map(|((key, number, _), given)| Tried { key, number, given }));
        tried
    }
    /// Waits for an async publisher, in its own task.
    fn wait_for(&self, future: BoxFuture<Vec<Outcome<()>>>) -> Result<Vec<Outcome<()>>, String> {
        let Some(bridge) = &self.core.shared.bridge else { return Err("there is no runtime".to_owned()) };
        let (tell, reply) = answer();
        let caught = Caught::new(future);
        Bridge::spawn(&**bridge, Box::pin(async move { tell.send(caught.await) }));
        match reply.wait() {
            Some(told) => told.map_err(panicked),
            None => Err("the runtime of the publisher is gone".to_owned()),
        }
    }

    /// Makes durable what the tries came to, then goes on.
    fn mark(&mut self, tried: Vec<Tried>) -> Turn {
        let shared = &self.core.shared;
        let asked = tried.iter().filter(|t| t.given != Given::TooLate).count();
        let taken = tried.iter().any(|t| t.given == Given::Taken);
        let away = tried.iter().any(|t| matches!(&t.given, Given::Failed(f) if f.class != Class::Permanent));
        let (tell, reply) = answer();
        let op = MarkOp::new(self.core.clone(), self.relay.topic.clone(), self.relay.policy.clone(), tried, tell);
        if shared.submit(Lane::Outcome, Box::new(op)).is_err() {
            return Turn::Gone;
        }
        // While the store heals the answer takes its time; it comes, or the store ends.
        let marked = loop {
            match reply.wait_at_most(Duration::from_secs(3600)) {
                Waited::Told(told) => break told,
                Waited::Gone => return Turn::Gone,
                Waited::Over if self.relay.stopping() => return Turn::Gone,
                Waited::Over => {}
            }
        };
        match marked {
            Ok(()) => {}
            Err(StoreError::Closed | StoreError::Stopped(_)) => return Turn::Gone,
            Err(e) => {
                shared.report.warn(&format!(
                    "what became of messages of {:?} could not be written, so they are delivered again: {e}",
                    self.relay.topic
                ));
                return self.pause(STORE_PAUSE);
            }
        }
        if taken {
            self.empty = 0;
        } else if asked > 0 && away {
            self.empty = self.empty.saturating_add(1);
            let rest = outbox::rest_ms(&self.relay.policy, self.empty, shared.draw());
            if rest > 0 {
                return self.pause(Duration::from_millis(rest));
            }
        }
        Turn::More
    }
    fn pause(&mut self, d: Duration) -> Turn {
        let until = self.core.shared.now().mono.after(d);
        self.rest = Some(until);
        Turn::Idle(Some(until))
    }
}

/// One look through a topic.
struct Scan<'a> {
    relay: &'a Relay,
    now: Now,
    waits: &'a HashMap<(String, u64), (Wall, Mono)>,
    seen: HashMap<(String, u64), (Wall, Mono)>,
    picked: Vec<Picked>,
    bytes: usize,
    next: Option<Mono>,
}

impl Scan<'_> {
    /// Every key from the one after `after` on, then those up to it; `true` if none was left out.
    fn all(&mut self, v: &View<'_>, after: Option<&str>) -> Result<bool, StoreError> {
        if !self.lines(v, after, None)? {
            return Ok(false);
        }
        after.map_or(Ok(true), |last| self.lines(v, None, Some(last)))
    }
    fn lines(&mut self, v: &View<'_>, after: Option<&str>, until: Option<&str>) -> Result<bool, StoreError> {
        let topic = &self.relay.topic;
        let mut key = v.next_line(topic, after)?;
        while let Some(line) = key.filter(|k| until.is_none_or(|until| k.as_str() <= until)) {
            if !self.line(v, &line)? {
                return Ok(false);
            }
            key = v.next_line(topic, Some(&line))?;
        }
        Ok(true)
    }
    /// The messages of one key that may go out, in order; `false` if the batch is full.
    fn line(&mut self, v: &View<'_>, key: &str) -> Result<bool, StoreError> {
        let (topic, policy) = (&self.relay.topic, &self.relay.policy);
        let mut behind = 0;
        loop {
            let page = v.line(topic, key, behind, policy.batch)?;
            let whole = page.len() < policy.batch;
            for (number, delivery) in page {
                behind = number;
                if self.picked.len() >= policy.batch {
                    return Ok(false);
                }
                let look = match &delivery {
                    Ok(delivery) => self.look(key, number, delivery),
                    Err(StoreError::Corrupt { .. }) => Look::Due,
                    Err(e) => return Err(e.clone()),
                };
                let aside = delivery.as_ref().is_ok_and(|d| d.aside);
                let what = match (look, delivery) {
                    (Look::Dead(true), _) => return Ok(true),
                    (Look::Later(_), _) if !aside => return Ok(true),
                    (Look::Dead(false) | Look::Later(_), _) => continue,
                    (Look::TooLate, _) => Err(Given::TooLate),
                    (Look::Due, Err(e)) => Err(unreadable(&e)),
                    (Look::Due, Ok(_)) => match v.message(topic, number) {
                        Ok(Some(row)) => Ok(row.message),
                        Ok(None) => Err(unreadable(&StoreError::Corrupt { what: "the message is missing".to_owned() })),
                        Err(e @ StoreError::Corrupt { .. }) => Err(unreadable(&e)),
                        Err(e) => return Err(e),
                    },
                };
                let size = what.as_ref().map_or(0, |m| m.body.len());
                if !self.picked.is_empty() && self.bytes.saturating_add(size) > BATCH_BYTES {
                    return Ok(false);
                }
                self.bytes = self.bytes.saturating_add(size);
                let stop = what.is_err();
                self.picked.push(Picked { key: key.to_owned(), number, what });
                if stop {
                    // Whether the others wait behind it is known when that is written.
                    return Ok(true);
                }
            }
            if whole {
                return Ok(true);
            }
        }
    }
    fn look(&mut self, key: &str, number: u64, delivery: &Delivery) -> Look {
        let look = outbox::look(delivery, &self.relay.policy, self.now.wall);
        let Look::Later(ms) = look else { return look };
        let Standing::Waiting { due, .. } = delivery.standing else { return look };
        let name = (key.to_owned(), number);
        // A wait that is known ends by the stopwatch of its beginning, or by the calendar if that is earlier.
        let fresh = Mono(self.now.mono.0.saturating_add(ms));
        let until = match self.waits.get(&name) {
            Some((of, until)) if *of == due => fresh.min(*until),
            Some(_) | None => fresh,
        };
        if until <= self.now.mono {
            return Look::Due;
        }
        self.seen.insert(name, (due, until));
        self.next = Some(self.next.map_or(until, |n| n.min(until)));
        look
    }
}

fn unreadable(e: &StoreError) -> Given {
    Given::Failed(Failure { class: Class::Permanent, text: e.to_string(), retry_after: None })
}

fn panicked(text: String) -> String {
    format!("the publisher panicked: {text}")
}

fn failure(class: Class, text: String, limit: usize) -> Failure {
    Failure { class, text: cut(text, limit), retry_after: None }
}

/// A publisher's answer, in the rules' words: nothing it says means that the message cannot have arrived.
fn given(outcome: Outcome<()>, limit: usize) -> Given {
    match outcome {
        Ok(()) => Given::Taken,
        Err(fail) => Given::Failed(fail.delivery_failure(limit)),
    }
}
