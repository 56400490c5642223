//! The relay: delivers the outbox, a thread for each topic with a publisher, so that a slow or failing topic stops no other.
//!
//! Keeps the promises that a message goes out only after its commit and at least once, that nothing overtakes within an ordering
//! key, and that it is marked only after the other side has acknowledged it. It sleeps until a commit wrote to its topic or the
//! timer says that a wait is over; nothing polls.

use super::core::Core;
use super::outbox::{MarkOp, Tried};
use super::publish::{self, Call, Caller, Place};
use super::relays::{InCall, Relay, State};
use crate::handler::reply::{Waited, answer};
use crate::handler::shared::Phase;
use crate::model::attempt::{Class, Failure};
use crate::model::id::Token;
use crate::model::outbox::{Delivery, Message, Standing};
use crate::model::time::{Mono, Now, Wall};
use crate::planted::on;
use crate::rules::outbox::{self, Given, Look, Suspects};
use crate::store::{Lane, StoreError, View};
use crate::sync::thread;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

/// Bytes of bodies that one batch holds; a larger message goes alone.
const BATCH_BYTES: usize = 4 << 20;
/// Calls that hang at a time: each keeps a thread. Then the whole topic waits for one of them.
const MOST_HUNG: usize = 8;
/// After a read or a mark that failed: the store may be better in a while.
const STORE_PAUSE: Duration = Duration::from_secs(1);

/// Spawns the thread of one topic.
pub(crate) fn spawn(core: Arc<Core>, nth: usize) -> std::io::Result<thread::JoinHandle<()>> {
    #[expect(clippy::disallowed_methods, reason = "the engine owns the threads")]
    thread::Builder::new().name("onceward-outbox".into()).spawn(move || {
        if let Some(relay) = core.relays.0.get(nth) {
            let caller = Caller::new(core.relays.clone(), nth, relay.deliver.clone());
            let run = Run {
                core: &core,
                relay,
                nth,
                caller,
                calls: Vec::new(),
                after: None,
                waits: HashMap::new(),
                lame: HashSet::new(),
                rest: None,
                next: None,
                seen: core.shared.now(),
                alone: 0,
            };
            run.run();
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
    caller: Caller,
    /// Calls that have not been answered: at most one that does not hang.
    calls: Vec<Call>,
    /// The last key that was tried: the next one goes first, so that neither a busy key nor a failing one starves another.
    after: Option<String>,
    /// Waits that were seen begin, by the stopwatch: a calendar that is set back must not starve a retry.
    waits: HashMap<(String, u64), (Wall, Mono)>,
    /// Keys that failed since something was delivered. One that fails again and again says nothing about the broker.
    lame: HashSet<String>,
    /// The topic rests until then: by the stopwatch, or by the calendar if that is earlier.
    rest: Option<(Mono, Wall)>,
    /// The clocks at the last turn.
    seen: Now,
    /// Before this instant nothing becomes due by itself.
    next: Option<Mono>,
    /// So many messages go out one by one: a batch panicked, and nobody knows at which of them.
    alone: usize,
}

impl Run<'_> {
    fn run(mut self) {
        while self.sleep() {
            let mut look = false;
            loop {
                {
                    let mut state = self.relay.state.lock();
                    state.rung = false;
                    look |= std::mem::take(&mut state.wanted);
                }
                let turn = self.turn(look);
                let mut state = self.relay.state.lock();
                state.marking = false;
                if state.stopping && state.answers.is_empty() {
                    break;
                }
                match turn {
                    Turn::More => look = true,
                    Turn::Gone => return,
                    Turn::Idle(next) => {
                        drop(state);
                        self.next = next;
                        let calls = self.calls.iter().filter(|c| !c.hung).map(|c| c.until).min();
                        self.arm(next.into_iter().chain(calls).min());
                        break;
                    }
                }
            }
            self.core.signal();
        }
    }
    /// Until somebody has something; `false` at the end. What was handed over is waited for at the end, too: the shutdown says
    /// for how long.
    fn sleep(&self) -> bool {
        let mut state = self.relay.state.lock();
        state.working = false;
        let something = |s: &State| s.wanted && !s.stopping || s.rung || !s.answers.is_empty();
        let over = |s: &State| s.stopping && s.calls.is_empty();
        if !something(&state) && !over(&state) {
            drop(state);
            // Whoever waits for quiet looks again.
            self.core.signal();
            state = self.relay.state.lock();
        }
        while !something(&state) && !over(&state) {
            self.relay.woken.wait(&mut state);
        }
        state.working = !state.stopping;
        !over(&state) || !state.answers.is_empty()
    }
    /// Has the timer wake it; the same instant only once.
    fn arm(&mut self, next: Option<Mono>) {
        let Some(next) = next else { return };
        let mut state = self.relay.state.lock();
        if state.armed.is_none_or(|armed| next < armed) {
            state.armed = Some(next);
            self.core.timer.relay(self.nth, next, self.seen);
        }
    }

    /// `look`: somebody has something; otherwise only the time has come for something.
    fn turn(&mut self, look: bool) -> Turn {
        let shared = &self.core.shared;
        let now = shared.now();
        self.seen = now;
        let tried = self.answered();
        if !tried.is_empty() {
            return self.mark(tried);
        }
        // What a panic left goes on at once, one by one.
        let look = self.give_up(now.mono) || look || self.alone > 0;
        if self.relay.stopping() {
            return Turn::Idle(None);
        }
        let hung = self.calls.iter().filter(|c| c.hung).count();
        if hung < self.calls.len() || hung >= MOST_HUNG {
            // What is written meanwhile is looked at when the call is answered.
            return Turn::Idle(None);
        }
        // The ring was for a call that has been answered, and nothing waits.
        if !look && self.next.is_none() {
            return Turn::Idle(None);
        }
        if let Some((until, due)) = self.rest.filter(|(until, due)| *until > now.mono && *due > now.wall) {
            return Turn::Idle(Some(until.min(Mono(now.mono.0.saturating_add(due.since(now.wall))))));
        }
        self.rest = None;
        if shared.pauses.read().topic(&self.relay.topic).is_some() {
            return Turn::Idle(None);
        }
        self.relay.state.lock().looks += 1;
        let (relay, after) = (self.relay, self.after.clone());
        let most = if self.alone > 0 { 1 } else { relay.policy.batch };
        let suspects = relay.suspects.lock().clone();
        let found = shared.store.read(|v| {
            let mut look = Scan {
                relay,
                now,
                most,
                waits: &self.waits,
                calls: &self.calls,
                suspects: &suspects,
                seen: HashMap::new(),
                picked: Vec::new(),
                bytes: 0,
                next: None,
            };
            let whole = look.all(v, after.as_deref())?;
            Ok((whole, look.seen, look.picked, look.next))
        });
        let (picked, next) = match found {
            Ok((whole, seen, picked, next)) => {
                // Every key was looked at: what is not among the waits is over.
                if whole {
                    self.waits = seen;
                } else {
                    self.waits.extend(seen);
                }
                (picked, next)
            }
            Err(StoreError::Closed | StoreError::Stopped(_)) => return Turn::Gone,
            Err(e) => {
                shared
                    .report
                    .warn(&format!("the outbox of {:?} could not be read, and is looked at again: {e}", relay.topic));
                return self.pause(STORE_PAUSE, shared.now());
            }
        };
        if picked.is_empty() {
            return Turn::Idle(next);
        }
        // Held while it begins, so that a pause is acknowledged before or after that, never in between.
        let pauses = shared.pauses.read();
        if shared.phase() != Phase::Open || pauses.topic(&relay.topic).is_some() {
            return Turn::Idle(None);
        }
        let (mut tried, mut messages, mut places) = (Vec::new(), Vec::new(), Vec::new());
        for Picked { key, number, what } in picked {
            match what {
                Ok(message) => {
                    places.push(Place { key, number });
                    messages.push(message);
                }
                Err(given) => tried.push(Tried { key, number, given }),
            }
        }
        if !messages.is_empty() {
            self.begin(places, messages, now.mono);
        }
        if tried.is_empty() {
            return Turn::Idle(next);
        }
        relay.state.lock().marking = true;
        drop(pauses);
        self.mark(tried)
    }

    /// Hands messages over. Each is noted in the sidecar first: if the process dies now, somebody knows what it died with.
    fn begin(&mut self, places: Vec<Place>, messages: Vec<Message>, now: Mono) {
        let (core, relay) = (self.core, self.relay);
        let run_file = core.shared.store.run_file();
        let tag = outbox::tag(&relay.topic);
        let slots = places.iter().map(|p| run_file.fill(tag, Token(p.number), core.boot, core.nonce)).collect();
        let until = now.after(relay.policy.attempt_timeout);
        let id = self.caller.next_id();
        if on("marked-first") {
            let taken = |p: &Place| Tried { key: p.key.clone(), number: p.number, given: Given::Taken };
            let _ = self.mark(places.iter().map(taken).collect());
        }
        let numbers = places.iter().map(|p| p.number).collect();
        relay.state.lock().calls.push(InCall { id, numbers, since: now, hung: false, dropped: false });
        let first = messages.first().map(|m| m.id.clone()).unwrap_or_default();
        let abort = self.caller.call(id, messages, core.shared.bridge.as_deref());
        self.calls.push(Call { id, places, slots, first, until, hung: false, abort });
    }
    /// What answered calls came to.
    fn answered(&mut self) -> Vec<Tried> {
        let answers = {
            let mut state = self.relay.state.lock();
            let answers = std::mem::take(&mut state.answers);
            state.calls.retain(|c| answers.iter().all(|(id, _)| *id != c.id));
            state.marking = !answers.is_empty();
            answers
        };
        let limit = self.core.shared.limits.error_text;
        let mut tried = Vec::new();
        for (id, told) in answers {
            let Some(at) = self.calls.iter().position(|c| c.id == id) else { continue };
            let call = self.calls.swap_remove(at);
            call.slots.into_iter().for_each(|slot| self.core.shared.store.run_file().clear(slot));
            match &told {
                // A panic or a time that is over says nothing about any of them: the first would be blamed for another's, and sent
                // again for ever.
                Err(why) if call.places.len() > 1 => {
                    self.alone = call.places.len();
                    self.core.shared.report.warn(&format!(
                        "a batch of {} messages of {:?} came to nothing, so they are handed over one by one: {why}",
                        self.alone, self.relay.topic
                    ));
                    continue;
                }
                Err(_) => self.alone = 0,
                Ok(_) => self.alone = self.alone.saturating_sub(1),
            }
            let given = publish::given(told, limit);
            tried.extend(call.places.into_iter().zip(given).map(|(Place { key, number }, given)| Tried {
                key,
                number,
                given,
            }));
        }
        tried
    }
    /// A call has taken too long. An async one is dropped, and tried again like any failure; a blocking one cannot be ended, so its
    /// keys wait for it and the others go on.
    fn give_up(&mut self, now: Mono) -> bool {
        let mut any = false;
        for call in self.calls.iter_mut().filter(|c| !c.hung && c.until <= now) {
            (call.hung, any) = (true, true);
            let dropped = call.abort.is_some();
            let what = match call.abort.take() {
                Some(abort) => {
                    abort();
                    "the call is dropped, and they are tried again"
                }
                None => {
                    self.caller.leave();
                    "it cannot be ended: their keys wait for it, other keys go on; restart the process to end it"
                }
            };
            self.relay.state.lock().calls.iter_mut().filter(|c| c.id == call.id).for_each(|c| {
                (c.hung, c.dropped) = (true, dropped);
            });
            self.core.shared.report.warn(&format!(
                "the publisher of {:?} has not answered for {:?} ({} messages, the first is {:?}): {what}",
                self.relay.topic,
                self.relay.policy.attempt_timeout,
                call.places.len(),
                call.first,
            ));
        }
        any
    }

    /// Makes durable what the tries came to, then goes on.
    fn mark(&mut self, tried: Vec<Tried>) -> Turn {
        let shared = &self.core.shared;
        // Whoever was handed over is behind whoever was too late.
        let Some(last) = tried.last() else { return Turn::More };
        self.after = Some(last.key.clone());
        let names: Vec<_> = tried.iter().map(|t| (t.key.clone(), t.number)).collect();
        let taken = tried.iter().any(|t| t.given == Given::Taken);
        let (mut lame, mut asked): (Vec<String>, Option<Duration>) = (Vec::new(), None);
        for t in &tried {
            if let Given::Failed(f) = &t.given
                && f.class != Class::Permanent
            {
                lame.push(t.key.clone());
                asked = asked.into_iter().chain(f.retry_after).min();
            }
        }
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
            // Those that wait again are seen again; a look that was cut short would keep the others for ever.
            Ok(()) => {
                for name in &names {
                    self.waits.remove(name);
                }
            }
            Err(StoreError::Closed | StoreError::Stopped(_)) => return Turn::Gone,
            Err(e) => {
                shared.report.warn(&format!(
                    "what became of messages of {:?} could not be written, so they are delivered again: {e}",
                    self.relay.topic
                ));
                return self.pause(STORE_PAUSE, shared.now());
            }
        }
        if taken {
            self.lame.clear();
        } else if !lame.is_empty() {
            self.lame.extend(lame);
            let rest = outbox::rest_ms(&self.relay.policy, self.lame.len(), asked, shared.draw());
            if rest > 0 {
                // From when the answer was heard, as the message's own wait.
                return self.pause(Duration::from_millis(rest), self.seen);
            }
        }
        Turn::More
    }
    fn pause(&mut self, d: Duration, from: Now) -> Turn {
        let until = from.mono.after(d);
        (self.rest, self.seen) = (Some((until, from.wall.after(d))), from);
        Turn::Idle(Some(until))
    }
}

/// One look through a topic.
struct Scan<'a> {
    relay: &'a Relay,
    now: Now,
    /// So many messages at most.
    most: usize,
    waits: &'a HashMap<(String, u64), (Wall, Mono)>,
    /// Whose keys wait, because a call holds messages of theirs.
    calls: &'a [Call],
    suspects: &'a Suspects,
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
        if self.calls.iter().any(|c| c.places.iter().any(|p| p.key == key)) {
            return Ok(true);
        }
        let mut behind = 0;
        loop {
            let page = v.line(topic, key, behind, policy.batch)?;
            let whole = page.len() < policy.batch;
            for (number, delivery) in page {
                behind = number;
                if self.picked.len() >= self.most {
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
                // With what an earlier process died goes out alone: the next death knows its culprit.
                let alone = what.is_ok() && self.suspects.contains_key(&number);
                if alone && !self.picked.is_empty() {
                    return Ok(false);
                }
                let size = what.as_ref().map_or(0, |m| m.body.len());
                if !self.picked.is_empty() && self.bytes.saturating_add(size) > BATCH_BYTES {
                    return Ok(false);
                }
                self.bytes = self.bytes.saturating_add(size);
                let stop = what.is_err();
                self.picked.push(Picked { key: key.to_owned(), number, what });
                if alone {
                    return Ok(false);
                }
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
