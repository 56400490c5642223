//! The shop that stands on the damaged file: three providers that know what happened, callers who keep what they were told and wait
//! for every answer, and the look at everything that was acknowledged: each answer is the truth or an error.

use crate::crash_world::Gate;
use crate::ground::{DAY, MINUTE, PATIENCE, SECOND, looked_up, order};
use onceward::clock::ManualClock;
use onceward::prelude::*;
use onceward::{Builder, Decision, EffectState, Error, IdempotencyKey, JobId, Jobs, Question, State, StoreError};
use redb::TableDefinition;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

const ROWS: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("rows");

looked_up!(Charge "charge" Risk::Charge, Recovery::same_key(DAY));
looked_up!(Reserve "reserve" Risk::Routine, Recovery::probe(MINUTE));
looked_up!(Wire "wire" Risk::Routine, Recovery::ask());
pub(super) const EFFECTS: [&str; 3] = ["charge", "reserve", "wire"];

order!([Charge, Reserve, Wire] Policy::default().retries(9).success("it is done once").review("nobody knows what was done"));

/// What the providers know, whatever becomes of the file: effect, order, key, of what really happened.
#[derive(Default)]
pub(super) struct Books {
    happened: Mutex<Vec<(&'static str, u64, String)>>,
    /// Calls wait here after they happened, handlers between two effects.
    pub(super) calls: Gate,
    pub(super) handlers: Gate,
}

impl Books {
    fn perform(&self, effect: &'static str, order: u64, key: &IdempotencyKey) -> Outcome<String> {
        let mut happened = self.happened.lock().unwrap();
        // The bank knows the keys that it has seen, the others do it again.
        if effect != Charge::NAME || !happened.iter().any(|(e, _, k)| *e == effect && k == key.as_str()) {
            happened.push((effect, order, key.as_str().to_owned()));
        }
        drop(happened);
        self.calls.pass();
        Ok(format!("{effect}-{order}"))
    }
    pub(super) fn times(&self, effect: &str, order: u64) -> usize {
        self.happened.lock().unwrap().iter().filter(|(e, o, _)| *e == effect && *o == order).count()
    }
    fn find(&self, effect: &str, order: u64) -> Option<String> {
        (self.times(effect, order) > 0).then(|| format!("{effect}-{order}"))
    }
    pub(super) fn fork(&self) -> Self {
        Self { happened: Mutex::new(self.happened.lock().unwrap().clone()), ..Self::default() }
    }
    pub(super) fn twice(&self) -> Result<(), String> {
        let happened = self.happened.lock().unwrap();
        let mut seen = BTreeSet::new();
        match happened.iter().find(|(e, o, _)| !seen.insert((*e, *o))) {
            None => Ok(()),
            Some(twice) => Err(format!("happened twice: {twice:?}")),
        }
    }
}

/// What callers were told.
#[derive(Clone, Default)]
pub(super) struct Truth {
    pub(super) orders: BTreeMap<u64, JobId>,
    pub(super) done: BTreeSet<u64>,
    pub(super) rows: BTreeSet<u64>,
}

fn body(n: u64) -> Vec<u8> {
    (0..700).map(|i| (n * 31 + i) as u8).collect()
}

/// One queue in one folder, and the world outside.
pub(super) struct Life {
    pub(super) path: PathBuf,
    pub(super) books: Arc<Books>,
    pub(super) clock: ManualClock,
    pub(super) truth: Truth,
    pub(super) cache: usize,
}

/// A call as everybody makes it, who waits for it while the clock goes on. What it panics with and that it never returns are answers.
pub(super) fn patiently<T: Send + 'static>(
    clock: &ManualClock,
    f: impl FnOnce() -> T + Send + 'static,
) -> Result<T, String> {
    let (done, hears) = mpsc::channel();
    #[expect(clippy::disallowed_methods, reason = "a caller that waits while the test moves the clock")]
    let call = std::thread::spawn(move || {
        let answer = f();
        let _heard = done.send(());
        answer
    });
    let look = Duration::from_millis(10);
    for n in 0..PATIENCE.as_millis() / look.as_millis() {
        match hears.recv_timeout(look) {
            // Callers of a disk that does not come back are told after thirty seconds.
            Err(mpsc::RecvTimeoutError::Timeout) if (2..45).contains(&n) => clock.advance(SECOND),
            Err(mpsc::RecvTimeoutError::Timeout) => {}
            Ok(()) | Err(mpsc::RecvTimeoutError::Disconnected) => {
                return call.join().map_err(|p| format!("a panic left the API: {:?}", p.downcast_ref::<String>()));
            }
        }
    }
    Err("a call never returned".to_owned())
}

/// An error that a person can read: it has a type, and is not our own bug.
pub(super) fn readable(e: &Error) -> Result<(), String> {
    match e {
        Error::Store(StoreError::Bug(_)) => Err(format!("a bug is what is told: {e}")),
        e if e.to_string().len() < 20 => Err(format!("nobody can read {e}")),
        _ => Ok(()),
    }
}

impl Life {
    fn builder(&self, nonce: u64) -> Builder {
        let (charge, reserve, wire) = (self.books.clone(), self.books.clone(), self.books.clone());
        let (found, between) = (self.books.clone(), self.books.clone());
        Jobs::open(&self.path)
            .clock(Arc::new(self.clock.clone()))
            .process([1; 16], nonce)
            .seed(nonce)
            .workers(4)
            .cache_bytes(self.cache)
            .key_scope("under")
            .effect(move |e: &Charge, key| charge.perform(Charge::NAME, e.order, key))
            .effect(move |e: &Reserve, key| reserve.perform(Reserve::NAME, e.order, key))
            .effect(move |e: &Wire, key| wire.perform(Wire::NAME, e.order, key))
            .probe(move |e: &Reserve, _| Ok(found.find(Reserve::NAME, e.order)))
            .on(move |cx, order: Order| {
                cx.effect(Charge { order: order.id })?;
                between.handlers.pass();
                cx.effect(Reserve { order: order.id })?;
                cx.effect(Wire { order: order.id })?;
                Ok(())
            })
    }
    pub(super) fn start(&self, nonce: u64) -> Result<Result<Jobs, Error>, String> {
        let builder = self.builder(nonce);
        patiently(&self.clock, move || builder.start())
    }
    /// Asks for an order, keeps what was told; whether it was taken.
    pub(super) fn order(&mut self, jobs: &Jobs, id: u64) -> Result<Option<Error>, String> {
        let queue = jobs.clone();
        match patiently(&self.clock, move || queue.enqueue(&Order { id }))? {
            Ok(told) => {
                let before = self.truth.orders.insert(id, told.id());
                match before {
                    Some(before) if told.is_new() || before != told.id() => {
                        Err(format!("order {id} was {before} and counts as new, {}", told.id()))
                    }
                    _ => Ok(None),
                }
            }
            Err(e) => readable(&e).map(|()| Some(e)),
        }
    }
    pub(super) fn row(&mut self, jobs: &Jobs, n: u64) -> Result<Option<Error>, String> {
        let queue = jobs.clone();
        let told = patiently(&self.clock, move || {
            queue.transact(move |tx| {
                let mut rows = tx.open_table(ROWS)?;
                rows.insert(n, body(n).as_slice()).map_err(|e| Error::App(e.to_string()))?;
                Ok::<_, Error>(())
            })
        })?;
        match told {
            Ok(()) => {
                self.truth.rows.insert(n);
                Ok(None)
            }
            Err(e) => readable(&e).map(|()| Some(e)),
        }
    }
    pub(super) fn done(&mut self, jobs: &Jobs, id: u64) -> Result<(), String> {
        let (queue, job) = (jobs.clone(), self.truth.orders[&id]);
        match patiently(&self.clock, move || queue.wait(job, PATIENCE))? {
            Ok(State::Done) => {
                self.truth.done.insert(id);
                Ok(())
            }
            other => Err(format!("order {id} is {other:?}")),
        }
    }
    /// Reads everything that was acknowledged: each answer is the truth or an error. How many errors there were.
    pub(super) fn look(&self, jobs: &Jobs) -> Result<u64, String> {
        let (queue, truth) = (jobs.clone(), self.truth.clone());
        patiently(&self.clock, move || look(&queue, &truth))?
    }
}

fn look(jobs: &Jobs, truth: &Truth) -> Result<u64, String> {
    let mut errors = 0;
    let mut heard = |e: &Error| readable(e).map(|()| errors += 1);
    for (n, id) in &truth.orders {
        match jobs.find::<Order>(&Order { id: *n }.key()) {
            Ok(found) if found == Some(*id) => {}
            Ok(other) => return Err(format!("order {n} is {id} and was found as {other:?}")),
            Err(e) => heard(&e)?,
        }
        if !truth.done.contains(n) {
            continue;
        }
        match jobs.state(*id) {
            Ok(State::Done) => {}
            Ok(other) => return Err(format!("order {n} was done and is {other:?}")),
            Err(e) => heard(&e)?,
        }
        match jobs.ledger(*id) {
            Ok(lines) if lines.len() == 3 && lines.iter().all(|l| l.state == EffectState::Confirmed) => {}
            Ok(lines) => return Err(format!("order {n} was done, its ledger is {lines:?}")),
            Err(e) => heard(&e)?,
        }
    }
    for n in &truth.rows {
        let read = jobs.read(|app| match app.open_table(ROWS) {
            Ok(rows) => rows.get(*n).map(|v| v.map(|v| v.value().to_vec())).map_err(|e| e.to_string()),
            Err(e) => Err(e.to_string()),
        });
        match read {
            Ok(Ok(Some(value))) if value == body(*n) => {}
            Ok(Ok(value)) => return Err(format!("row {n} reads as {:?}", value.map(|v| v[..8].to_vec()))),
            Ok(Err(_)) => errors += 1,
            Err(e) => {
                readable(&e)?;
                errors += 1;
            }
        }
    }
    Ok(errors)
}

/// Until all is done, with somebody at the desk who looks everything up.
pub(super) fn finish(life: &Life, jobs: &Jobs, orders: &[u64]) -> Result<u64, String> {
    let mut asked = 0;
    for _ in 0..60 {
        onceward::testkit::run_until_idle(jobs).map_err(|e| e.to_string())?;
        for letter in jobs.dead_letters().map_err(|e| e.to_string())? {
            let Some(Question::DidItHappen { effect }) = letter.questions().first() else {
                return Err(format!("asked for something else: {:?}", letter.questions()));
            };
            let order = letter.title().strip_prefix("Order ").and_then(|n| n.parse().ok()).unwrap();
            let decision = match life.books.find(&effect.name, order) {
                Some(reference) => Decision::happened(effect, Some(&reference)),
                None => Decision::did_not_happen(effect),
            };
            jobs.decide(&letter, decision.by("ana", "looked it up")).map_err(|e| e.to_string())?;
            asked += 1;
        }
        if orders.iter().all(|n| jobs.state(life.truth.orders[n]).is_ok_and(|s| s == State::Done)) {
            return Ok(asked);
        }
        life.clock.advance(95 * SECOND);
    }
    Err("it does not come to an end".to_owned())
}
