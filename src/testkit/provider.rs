//! Pretend providers with a ledger of what really happened: they do it and say so, do it and time out, do it later than they say, or
//! not at all. The ledger survives every crash of the app, as the world does. Used by the tests of apps, and by `crash`.

use crate::clock::{Clock, ManualClock};
use crate::handler::fail::{Fail, Outcome};
use crate::model::id::IdempotencyKey;
use crate::model::time::{Wall, millis};
use crate::store::disk::SimDisk;
use parking_lot::Mutex;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// What a provider does with a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Does {
    /// It happens, and the answer arrives.
    It,
    /// It happens, and the answer is lost: the caller's line goes dead.
    ItAndTimesOut,
    /// It happens this much later, although the line went dead at once; until then the provider says that it knows nothing of it.
    ItLater(Duration),
    /// The request is lost on its way, and the line goes dead.
    NothingAndTimesOut,
    /// It says no; nothing happens.
    Refuses,
    /// No connection: the request never left.
    NotSent,
}

/// Something that really happened at a provider.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Operation {
    /// What was asked for.
    pub what: String,
    /// The idempotency key that came with it.
    pub key: String,
    /// The provider's name for it.
    pub reference: String,
    /// When, by the calendar of the test.
    pub at: Wall,
    /// How much later that is than it was asked for.
    pub later: Duration,
}

/// A pretend provider; its clones, and all that were made with the same ledger and name, have one memory.
#[derive(Clone)]
pub struct Provider {
    name: Arc<str>,
    ledger: Ledger,
    keys: bool,
    behaves: Arc<Behaviour>,
}

/// What is done with a call, by what is asked for and by how many calls for that came before.
type Behaviour = dyn Fn(&str, usize) -> Does + Send + Sync;

impl Provider {
    /// One that does what it is asked for, says so, and does nothing twice under one idempotency key.
    ///
    /// For a test with a clock of its own; in a [`Scene`](super::Scene) it is made by [`Scene::provider`](super::Scene::provider).
    pub fn new(name: &str, clock: &ManualClock) -> Self {
        Ledger::new(clock.clone()).provider(name)
    }
    /// It has no idempotency keys: every call that arrives is done.
    #[must_use]
    pub fn without_keys(mut self) -> Self {
        self.keys = false;
        self
    }
    /// What it does with a call: chosen by what is asked for and by how many calls for that came before.
    #[must_use]
    pub fn behaving(mut self, f: impl Fn(&str, usize) -> Does + Send + Sync + 'static) -> Self {
        self.behaves = Arc::new(f);
        self
    }
    /// A call, as a performer makes it: the provider's reference, or how it failed.
    ///
    /// # Errors
    /// As the provider behaves: a refusal, a request that was not sent, a line that went dead.
    pub fn call(&self, what: &str, key: &IdempotencyKey) -> Outcome<String> {
        let (does, reference) = self.ledger.call(self, what, key);
        self.ledger.disturb();
        match does {
            Does::It => Ok(reference),
            Does::ItAndTimesOut | Does::ItLater(_) | Does::NothingAndTimesOut => Err(Fail::new("the line went dead")),
            Does::Refuses => Err(Fail::refused("the provider says no")),
            Does::NotSent => Err(Fail::not_sent("no connection")),
        }
    }
    /// Asks whether it happened, as a probe does: its reference. What happens later than it was asked for is not known before.
    pub fn find(&self, what: &str) -> Option<String> {
        let now = self.ledger.now();
        // A provider has a calendar of its own: what it did at once it knows, whatever the test sets.
        let known = |o: &Operation| o.what == what && (o.later.is_zero() || o.at <= now);
        self.operations().into_iter().find(known).map(|o| o.reference)
    }
    /// Everything that really happened here, in the order in which it was asked for.
    pub fn operations(&self) -> Vec<Operation> {
        let real = |e: &Entry| match e {
            Entry::Call { provider, operation: Some(operation), .. } if *provider == self.name => {
                Some(operation.clone())
            }
            Entry::Call { .. } | Entry::Time(_) => None,
        };
        self.ledger.entries().iter().filter_map(real).collect()
    }
    /// How often this really happened.
    pub fn happened(&self, what: &str) -> usize {
        self.operations().iter().filter(|o| o.what == what).count()
    }
    /// How often it was asked for, in vain or not.
    pub fn calls(&self, what: &str) -> usize {
        self.ledger.calls_before(&self.name, what)
    }
}

impl fmt::Debug for Provider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Provider")
            .field("name", &self.name)
            .field("operations", &self.operations())
            .finish_non_exhaustive()
    }
}

/// One line of the world's memory.
#[derive(Clone, Debug)]
pub(super) enum Entry {
    /// A provider was called; what really happened by that.
    Call { provider: Arc<str>, what: String, operation: Option<Operation> },
    /// The calendar is about to show this.
    Time(Wall),
}

/// What happens inside a call, after the provider did its part and before the caller hears of it.
pub(super) type Disturbance = Box<dyn FnOnce() + Send>;

/// What all providers of one world remember. Every line is marked in the disk's log, so that each moment of that has its past.
#[derive(Clone)]
pub(super) struct Ledger(Arc<Inner>);

struct Inner {
    entries: Mutex<Vec<Entry>>,
    clock: ManualClock,
    disk: Option<SimDisk>,
    /// Happens inside the call after this many others.
    disturbance: Mutex<Option<(usize, Disturbance)>>,
}

impl Ledger {
    pub(super) fn new(clock: ManualClock) -> Self {
        Self::after(Vec::new(), clock, None)
    }
    /// A world with this past.
    pub(super) fn after(past: Vec<Entry>, clock: ManualClock, disk: Option<SimDisk>) -> Self {
        Self(Arc::new(Inner { entries: Mutex::new(past), clock, disk, disturbance: Mutex::new(None) }))
    }
    pub(super) fn provider(&self, name: &str) -> Provider {
        Provider { name: name.into(), ledger: self.clone(), keys: true, behaves: Arc::new(|_, _| Does::It) }
    }
    pub(super) fn entries(&self) -> Vec<Entry> {
        self.0.entries.lock().clone()
    }
    /// Calls so far.
    pub(super) fn calls(&self) -> usize {
        self.0.entries.lock().iter().filter(|e| matches!(e, Entry::Call { .. })).count()
    }
    /// The calendar is about to be moved to this.
    pub(super) fn time(&self, at: Wall) {
        self.add(&mut self.0.entries.lock(), Entry::Time(at));
    }
    /// The next call but so many is disturbed.
    pub(super) fn disturb_after(&self, calls: usize, f: Disturbance) {
        *self.0.disturbance.lock() = Some((calls, f));
    }
    fn now(&self) -> Wall {
        self.0.clock.now().wall
    }
    fn calls_before(&self, provider: &str, what: &str) -> usize {
        of(&self.0.entries.lock(), provider, what).count()
    }
    /// With the memory held, so that the disk's log has the same order.
    fn add(&self, entries: &mut Vec<Entry>, entry: Entry) {
        entries.push(entry);
        if let Some(disk) = &self.0.disk {
            disk.mark(entries.len() as u64 - 1);
        }
    }
    fn call(&self, provider: &Provider, what: &str, key: &IdempotencyKey) -> (Does, String) {
        let mut entries = self.0.entries.lock();
        let before = of(&entries, &provider.name, what).count();
        let does = (provider.behaves)(what, before);
        let done =
            of(&entries, &provider.name, what).flatten().find(|o| provider.keys && o.key == key.as_str()).cloned();
        let later = match does {
            Does::It | Does::ItAndTimesOut => Some(Duration::ZERO),
            Does::ItLater(later) => Some(later),
            Does::NothingAndTimesOut | Does::Refuses | Does::NotSent => None,
        };
        let reference =
            done.as_ref().map_or_else(|| format!("{}-{what}-{}", provider.name, before + 1), |o| o.reference.clone());
        // Under a key that is known nothing happens again.
        let operation = later.filter(|_| done.is_none()).map(|later| Operation {
            what: what.to_owned(),
            key: key.as_str().to_owned(),
            reference: reference.clone(),
            at: Wall(self.now().0.saturating_add(millis(later))),
            later,
        });
        let entry = Entry::Call { provider: provider.name.clone(), what: what.to_owned(), operation };
        self.add(&mut entries, entry);
        (does, reference)
    }
    /// Not under the lock: the disturbance moves the clock, and the app looks at the ledger meanwhile.
    fn disturb(&self) {
        let due = {
            let mut disturbance = self.0.disturbance.lock();
            match disturbance.take() {
                Some((0, f)) => Some(f),
                Some((n, f)) => {
                    *disturbance = Some((n - 1, f));
                    None
                }
                None => None,
            }
        };
        if let Some(f) = due {
            f();
        }
    }
}

/// The calls for one thing, each with what really happened by it.
fn of<'a>(entries: &'a [Entry], provider: &'a str, what: &'a str) -> impl Iterator<Item = Option<&'a Operation>> {
    entries.iter().filter_map(move |e| match e {
        Entry::Call { provider: p, what: w, operation } if &**p == provider && w == what => Some(operation.as_ref()),
        Entry::Call { .. } | Entry::Time(_) => None,
    })
}

/// A key for a call that no effect makes: a publisher's, or that of a test itself.
pub fn idempotency_key(text: &str) -> IdempotencyKey {
    IdempotencyKey(text.to_owned())
}

/// Fails a test unless this really happened exactly once; the message lists what did happen.
///
/// # Panics
/// That is what it is for.
#[track_caller]
pub fn assert_effect_once(provider: &Provider, what: &str) {
    let times = provider.happened(what);
    assert!(times == 1, "{what:?} happened {times} times at {}: {:#?}", provider.name, provider.operations());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(k: &str) -> IdempotencyKey {
        IdempotencyKey(k.to_owned())
    }

    /// A provider with keys does nothing twice under one, one without does; what is asked for under another key is something new.
    #[test]
    fn keys_are_honoured_unless_there_are_none() {
        let clock = ManualClock::default();
        let bank = Provider::new("bank", &clock);
        let first = bank.call("pay", &key("a")).unwrap();
        assert_eq!(bank.call("pay", &key("a")).unwrap(), first);
        assert_effect_once(&bank, "pay");
        assert_ne!(bank.call("pay", &key("b")).unwrap(), first);
        assert_eq!((bank.happened("pay"), bank.calls("pay")), (2, 3));
        let careless = Provider::new("post", &clock).without_keys();
        careless.call("mail", &key("a")).unwrap();
        careless.call("mail", &key("a")).unwrap();
        assert_eq!((careless.happened("mail"), careless.happened("pay")), (2, 0));
    }

    /// Every way to fail says what really happened in the ledger, whatever the caller hears; what happens late is not found before.
    #[test]
    fn the_ledger_knows_what_the_caller_does_not() {
        let clock = ManualClock::default();
        let hour = Duration::from_secs(3_600);
        let ways = [
            (Does::It, 1, true, true),
            (Does::ItAndTimesOut, 1, false, true),
            (Does::ItLater(hour), 1, false, false),
            (Does::NothingAndTimesOut, 0, false, false),
            (Does::Refuses, 0, false, false),
            (Does::NotSent, 0, false, false),
        ];
        for (does, happened, said, found) in ways {
            let p = Provider::new("p", &clock).behaving(move |_, _| does);
            assert_eq!(p.call("x", &key("k")).is_ok(), said, "{does:?}");
            assert_eq!((p.happened("x"), p.find("x").is_some()), (happened, found), "{does:?}");
            clock.advance(hour);
            assert_eq!(p.find("x").is_some(), happened == 1, "{does:?}");
        }
    }
}
