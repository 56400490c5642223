//! One attempt in memory: its lease, the gate that makes entering a performer and fencing one step, the stop that nothing gets
//! past, and what will stand in its log line.

use super::fail::Fail;
use super::kinds::Kind;
use super::shared::Shared;
use crate::model::attempt::{Run, Stop};
use crate::model::effect::EffectRecord;
use crate::model::id::{EffectId, JobId, Lease};
use crate::model::job::{JobRow, Memo};
use crate::model::time::{Mono, Wall};
use crate::planted::on;
use crate::rules::look::{Look, look};
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

/// A claimed job on its way to a handler.
pub(crate) struct Claimed {
    pub(crate) lease: Lease,
    pub(crate) row: JobRow,
    /// Attempts so far, this one included.
    pub(crate) attempts: u32,
    /// It was asked to stop.
    pub(crate) cancel: bool,
    /// It may have killed the process: it runs alone.
    pub(crate) suspect: bool,
    /// The last instant at which it may begin, if that was to come when it was claimed.
    pub(crate) deadline: Option<Wall>,
    pub(crate) effects: Vec<EffectRecord>,
    pub(crate) memos: Vec<Memo>,
    pub(crate) kind: Arc<Kind>,
    pub(crate) stored_kind: Arc<str>,
}

#[derive(Default)]
struct Inner {
    stop: Option<Stop>,
    records: Vec<EffectRecord>,
    memos: Vec<Memo>,
    used: HashSet<(&'static str, String, String)>,
    unasked: Vec<EffectId>,
    notes: Vec<(String, String)>,
    operations: Vec<String>,
    step: Option<String>,
    output: Option<Vec<u8>>,
}

/// One attempt, shared by its handler, its performers, the lease timer and the desk.
pub(crate) struct Attempt {
    pub(crate) shared: Arc<Shared>,
    pub(crate) lease: Lease,
    pub(crate) row: JobRow,
    pub(crate) stored_kind: Arc<str>,
    pub(crate) kind: Arc<Kind>,
    pub(crate) owner: Arc<str>,
    pub(crate) started: Mono,
    pub(crate) watch: crate::clock::Stopwatch,
    number: AtomicU32,
    /// Fencing and entering a performer take this lock: a fenced attempt that has not entered never enters.
    gate: Mutex<bool>,
    cancelled: AtomicBool,
    over: AtomicBool,
    finished: AtomicBool,
    seen: AtomicU64,
    /// Milliseconds during which its lease stood still.
    stood_still: AtomicU64,
    pending: AtomicU32,
    done: AtomicU64,
    of: AtomicU64,
    inner: Mutex<Inner>,
}

/// Counts a request of this lease as queued: its lease does not lapse meanwhile.
pub(crate) struct Pending(Arc<Attempt>);

impl Drop for Pending {
    fn drop(&mut self) {
        // An answer is a sign of progress: the time it was waited for, perhaps a long heal, is not the handler's.
        self.0.progressed();
        self.0.pending.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Attempt {
    pub(crate) fn new(shared: Arc<Shared>, c: Claimed, owner: Arc<str>) -> Arc<Self> {
        let now = shared.now().mono;
        let unasked = c.effects.iter().filter(|e| e.state.is_unresolved()).map(|e| e.id.clone()).collect();
        Arc::new(Self {
            shared,
            lease: c.lease,
            row: c.row,
            stored_kind: c.stored_kind,
            kind: c.kind,
            owner,
            started: now,
            watch: crate::clock::Stopwatch::start(),
            number: AtomicU32::new(c.attempts),
            gate: Mutex::new(false),
            cancelled: AtomicBool::new(c.cancel),
            over: AtomicBool::new(false),
            finished: AtomicBool::new(false),
            seen: AtomicU64::new(now.0),
            stood_still: AtomicU64::new(0),
            pending: AtomicU32::new(0),
            done: AtomicU64::new(0),
            of: AtomicU64::new(0),
            inner: Mutex::new(Inner { records: c.effects, memos: c.memos, unasked, ..Inner::default() }),
        })
    }
    pub(crate) fn id(&self) -> JobId {
        self.lease.job
    }
    pub(crate) fn number(&self) -> u32 {
        self.number.load(Ordering::Acquire)
    }
    pub(crate) fn set_number(&self, n: u32) {
        self.number.store(n, Ordering::Release);
    }

    // ---- stop ----------------------------------------------------------------------------------------------------------
    /// Refuses when the attempt may go no further; a sign of progress otherwise.
    pub(crate) fn go_on(&self) -> Result<(), Fail> {
        if super::shared::inside_transaction() {
            return Err(Fail::permanent(crate::error::Error::InsideTransaction));
        }
        if self.shared.is_forked() {
            return Err(Fail::permanent(crate::error::Error::Forked));
        }
        if self.over.load(Ordering::Acquire) {
            // An AsyncCx that outlived its handler, or a cx smuggled into another thread.
            return Err(Fail::stop(Stop::Fenced));
        }
        if let Some(stop) = self.stopped() {
            return Err(Fail::stop(stop));
        }
        if self.fenced() {
            // Remembered: a handler that makes nothing of it has not succeeded.
            return Err(self.stop(Stop::Fenced));
        }
        self.progressed();
        Ok(())
    }
    /// Stops the attempt: whatever the handler does with the error, every later call gets the same one.
    pub(crate) fn stop(&self, stop: Stop) -> Fail {
        let mut inner = self.inner.lock();
        let said = inner.stop.get_or_insert(stop).clone();
        Fail::stop(said)
    }
    pub(crate) fn stopped(&self) -> Option<Stop> {
        self.inner.lock().stop.clone()
    }
    pub(crate) fn finished(&self) -> bool {
        self.finished.load(Ordering::Acquire)
    }
    pub(crate) fn set_finished(&self) {
        self.finished.store(true, Ordering::Release);
        self.inner.lock().stop = Some(Stop::Finished);
    }
    /// The handler returned: a context that outlives it is refused, and a call that was left behind before it was entered is never
    /// made. It could come after the next attempt was told "not there", and charge a second time.
    pub(crate) fn close(&self) {
        self.over.store(true, Ordering::Release);
        *self.gate.lock() = true;
    }

    // ---- gate ----------------------------------------------------------------------------------------------------------
    /// Fences: nothing new is entered from now on.
    pub(crate) fn fence(&self) {
        *self.gate.lock() = true;
        self.cancelled.store(true, Ordering::Release);
    }
    pub(crate) fn fenced(&self) -> bool {
        *self.gate.lock()
    }
    /// Enters a performer, in one atomic step with fencing; or why the call must not be made any more.
    pub(crate) fn enter(&self, record: &EffectRecord) -> Result<super::calls::Inside, &'static str> {
        // A repeated call rests on the age of its key, and since the writer decided a heal or a suspend may have passed.
        let again = record.unresolved.len() > 1;
        if again && !self.may_still_repeat(record) {
            return Err("the key had come of age before the call was made");
        }
        let gate = self.gate.lock();
        if *gate && !on("fenced-call-made") {
            return Err("the attempt was fenced before the call was made");
        }
        Ok(self.shared.calls.enter(self.lease.job, &record.id, record.calls, &self.shared.clock))
    }
    fn may_still_repeat(&self, record: &EffectRecord) -> bool {
        let now = self.shared.now();
        let facts = self.shared.call_facts(self.lease.job, record, now);
        look(record, &self.kind.rules, facts, now.wall) == Look::CallAgain
    }
    pub(crate) fn cancel(&self) {
        self.cancelled.store(true, Ordering::Release);
    }
    pub(crate) fn cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Acquire)
    }

    // ---- lease ---------------------------------------------------------------------------------------------------------
    pub(crate) fn progressed(&self) {
        self.seen.store(self.shared.now().mono.0, Ordering::Release);
    }
    /// The store healed for this long: nothing that the handler did could be heard, so its lease gets the time back.
    pub(crate) fn stand_still(&self, ms: u64) {
        self.stood_still.fetch_add(ms, Ordering::AcqRel);
        let now = self.shared.now().mono.0;
        let later = |seen: u64| Some(seen.saturating_add(ms).min(now));
        let _always = self.seen.fetch_update(Ordering::AcqRel, Ordering::Acquire, later);
    }
    /// When the lease lapses if nothing happens: after a stall, or when the attempt is too long.
    pub(crate) fn lapses(&self) -> (Mono, bool) {
        let later = Duration::from_millis(self.stood_still.load(Ordering::Acquire));
        let stall = Mono(self.seen.load(Ordering::Acquire)).after(self.kind.rules.stall_timeout);
        let whole = self.started.after(self.kind.rules.attempt_timeout).after(later);
        if stall < whole { (stall, true) } else { (whole, false) }
    }
    pub(crate) fn pending(self: &Arc<Self>) -> Pending {
        self.pending.fetch_add(1, Ordering::AcqRel);
        Pending(self.clone())
    }
    pub(crate) fn has_pending(&self) -> bool {
        self.pending.load(Ordering::Acquire) > 0
    }

    // ---- memory --------------------------------------------------------------------------------------------------------
    /// Takes a name for this attempt; the same one twice is a mistake of the handler.
    pub(crate) fn take(&self, sort: &'static str, name: &str, part: &str) -> Result<(), Fail> {
        if self.inner.lock().used.insert((sort, name.to_owned(), part.to_owned())) {
            return Ok(());
        }
        let shown = if part.is_empty() { name.to_owned() } else { format!("{name}/{part}") };
        let hint = if sort == "effect" {
            "give each request a part() of its own, e.g. one per recipient"
        } else {
            "give each a name of its own, e.g. with the item it works on"
        };
        Err(Fail::permanent(format!("the {sort} {shown:?} was asked for twice in one attempt: {hint}")))
    }
    /// The record of an effect: by today's name, or by a former one.
    pub(crate) fn record(&self, card: &crate::model::effect::EffectCard, part: &str) -> Option<EffectRecord> {
        let inner = self.inner.lock();
        let of = |name: &str| inner.records.iter().find(|r| r.id.name == name && r.id.part == part).cloned();
        of(card.name).or_else(|| card.aliases.iter().find_map(|a| of(a)))
    }
    pub(crate) fn learn(&self, record: EffectRecord) {
        let mut inner = self.inner.lock();
        if let Some(r) = &record.reference {
            inner.operations.push(r.clone());
        }
        inner.unasked.retain(|u| *u != record.id);
        match inner.records.iter_mut().find(|r| r.id == record.id) {
            Some(r) => *r = record,
            None => inner.records.push(record),
        }
    }
    pub(crate) fn unasked(&self) -> Vec<EffectId> {
        self.inner.lock().unasked.clone()
    }
    pub(crate) fn memo(&self, name: &str) -> Option<Memo> {
        self.inner.lock().memos.iter().find(|m| m.name == name).cloned()
    }
    pub(crate) fn at_step(&self, step: String) {
        self.inner.lock().step = Some(step);
    }
    pub(crate) fn note(&self, name: &str, value: String) {
        self.inner.lock().notes.push((name.to_owned(), value));
    }
    pub(crate) fn set_output(&self, output: Vec<u8>) {
        self.inner.lock().output = Some(output);
    }
    pub(crate) fn output(&self) -> Option<Vec<u8>> {
        self.inner.lock().output.clone()
    }
    pub(crate) fn set_progress(&self, done: u64, of: u64) {
        self.done.store(done, Ordering::Release);
        self.of.store(of, Ordering::Release);
    }
    pub(crate) fn progress(&self) -> (u64, u64) {
        (self.done.load(Ordering::Acquire), self.of.load(Ordering::Acquire))
    }
    /// What its log line says beside the facts.
    pub(crate) fn run(&self) -> Run {
        let inner = self.inner.lock();
        Run {
            owner: self.owner.clone(),
            step: inner.step.clone(),
            operations: inner.operations.clone(),
            notes: inner.notes.clone(),
            duration_ms: self.shared.now().mono.since(self.started),
        }
    }
    /// One of its changes, named.
    pub(crate) fn changed(&self, change: crate::rules::Change) -> super::shared::Changed {
        super::shared::Changed::new(self.stored_kind.clone(), self.kind.queue, self.row.key.clone(), change)
    }
}
