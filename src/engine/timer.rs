//! The one timer: due jobs, leases, hung handlers, closures that hold the writer, pruning. A wheel that is told the time; only the
//! near horizon of due jobs is in memory, the rest stays in the store. An idle queue sleeps until something is due; nothing polls.
//!
//! Backoffs and leases are measured with the stopwatch, so a clock set back cannot starve them; a suspend or a clock set forward
//! is noticed within the check period, and what became due by the calendar starts then.

use super::core::{Core, Pooled};
use super::look::LookOp;
use super::ops::{MaintainOp, PromoteOp};
use super::wake::{Hold, Told, longest};
use super::worker;
use crate::handler::attempt::{Attempt, Claimed};
use crate::handler::shared::HOLD_WARNING;
use crate::model::attempt::{AttemptEnd, Stop};
use crate::model::id::{JobId, Token};
use crate::model::job::JobRecord;
use crate::model::time::{Mono, Now, Wall};
use crate::store::{Lane, StoreError};
use crate::sync::atomic::Ordering;
use crate::sync::channel::{Receiver, RecvTimeoutError};
use crate::sync::thread;
use crate::wheel::Wheel;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

/// While anything is due later, the clocks are looked at this often: a suspend stops the stopwatch, not the calendar.
pub(crate) const CHECK_MS: u64 = 30_000;
/// Due jobs of this long ahead are kept in memory.
const HORIZON_MS: u64 = 3_600_000;
/// At most this many of them.
const HORIZON_JOBS: usize = 65_536;
/// Rows read at a time.
const PAGE: usize = 1_024;
/// How many jobs one commit promotes.
const PROMOTE: usize = 1_000;
/// A fenced handler that still holds its thread is replaced after this long.
pub(crate) const REPLACE: Duration = Duration::from_secs(30);
/// Wall and stopwatch may differ by this much between two looks before the wheel is rebuilt.
const JUMP_MS: i64 = 2_000;
/// Pruning looks at most this often.
const MAINTAIN_MS: u64 = 600_000;

#[derive(Clone, Debug)]
enum Entry {
    /// The flag: only the calendar counts.
    Due(JobId, Wall, bool),
    Lease(Token),
    Hung(Token),
    Hold(u64),
    Callback(u64),
    Alone,
    Relay(usize),
    Maintain,
    Alerts,
}

/// The timer thread's own state.
pub(crate) struct Timer {
    core: Arc<Core>,
    from: Receiver<Told>,
    wheel: Wheel<Entry>,
    leases: HashSet<Token>,
    hung: HashMap<Token, Arc<Attempt>>,
    /// Due jobs up to here are in the wheel.
    loaded: (Wall, JobId),
    more: bool,
    /// Where a look for jobs that would wait too long stopped, because the wheel was full.
    looked: Option<(Wall, JobId)>,
    /// The clocks when the wheel last fitted the calendar: small steps of it add up until they count.
    last: Now,
    /// The clocks at the last look.
    seen: Now,
    replaced: usize,
    jobs: Receiver<Claimed>,
    maintain_at: Option<Mono>,
    /// The next look at the alert rules; a look covers all of them, so there is one.
    alerts_at: Option<Mono>,
    abort: super::worker::Abort,
}

/// Spawns the timer thread.
pub(crate) fn spawn(
    core: Arc<Core>,
    from: Receiver<Told>,
    jobs: Receiver<Claimed>,
    abort: super::worker::Abort,
) -> std::io::Result<thread::JoinHandle<()>> {
    let now = core.shared.now();
    let timer = Timer {
        wheel: Wheel::new(now.mono.0),
        core,
        from,
        leases: HashSet::new(),
        hung: HashMap::new(),
        loaded: (Wall(0), JobId(0)),
        more: true,
        looked: None,
        last: now,
        seen: now,
        replaced: 0,
        jobs,
        maintain_at: None,
        alerts_at: None,
        abort,
    };
    #[expect(clippy::disallowed_methods, reason = "the engine owns the threads")]
    thread::Builder::new().name("onceward-timer".into()).spawn(move || timer.run())
}

impl Timer {
    fn run(mut self) {
        self.maintain();
        if self.core.alarms.is_some() {
            self.hear(Told::Alerts(self.last.mono));
        }
        // A machine that woke up in the past (no clock battery): a wait that began before counts from now on, not by its calendar.
        if self.core.shared.trust.is_behind(self.last) {
            self.look_back(self.last, self.loaded);
        }
        loop {
            self.turn();
            let wake = self.wake();
            self.core.timer.sleeps_until(wake.unwrap_or(u64::MAX));
            // A lease that was registered before the new wake was known is seen here, not a check period later; a claim that
            // came while nothing was to be waited for must not be slept through.
            if self.watch_leases() || (wake.is_none() && self.core.in_flight() > 0) {
                continue;
            }
            let told = match wake {
                _ if self.core.shared.clock.is_manual() => self.from.recv().map_err(|_| RecvTimeoutError::Disconnected),
                None => self.from.recv().map_err(|_| RecvTimeoutError::Disconnected),
                Some(at) => {
                    let now = self.core.shared.now().mono.0;
                    self.from.recv_timeout(Duration::from_millis(at.saturating_sub(now)))
                }
            };
            match told {
                Ok(told) => {
                    if !self.hear(told) {
                        return;
                    }
                    // What came in meanwhile is heard before the next look, so that a burst costs one.
                    while let Ok(told) = self.from.try_recv() {
                        if !self.hear(told) {
                            return;
                        }
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn hear(&mut self, told: Told) -> bool {
        let now = self.core.shared.now();
        match told {
            Told::Due(job, due, mono, calendar) => {
                let at = waits_until(mono.0, due, calendar, now);
                // A calendar that was set back since the wait began must not make it longer than was asked for, however far away the
                // date is now.
                let sooner = at < waits_until(u64::MAX, due, true, now).saturating_sub(self.noise().unsigned_abs());
                if due <= self.loaded.0 || sooner {
                    self.wheel.insert(at, Entry::Due(job, due, calendar));
                } else {
                    // Beyond the horizon: the store keeps it until its time is near.
                    self.more = true;
                }
            }
            Told::Again(job, due, mono) => {
                self.wheel.insert(mono.0, Entry::Due(job, due, false));
            }
            Told::Leases => {
                self.watch_leases();
            }
            Told::Alone(over) => {
                self.wheel.insert(over.0, Entry::Alone);
            }
            Told::Relay(nth, at, seen) => {
                // Moved clocks were looked at before it was heard: it works out anew what that means for its messages.
                let moved = shift(seen, now).abs() > self.noise();
                self.wheel.insert(if moved { now.mono.0 } else { at.0 }, Entry::Relay(nth));
            }
            Told::Held(id) => {
                self.wheel.insert(now.mono.after(HOLD_WARNING).0, Entry::Hold(id));
            }
            Told::Callback(number, at) => {
                self.wheel.insert(at.0, Entry::Callback(number));
            }
            Told::Tick(done) => {
                self.turn();
                if let Some(done) = done {
                    let _ = done.send(());
                }
            }
            Told::Maintain => self.maintain(),
            Told::Alerts(at) => {
                if self.alerts_at.is_none_or(|planned| at < planned) {
                    self.alerts_at = Some(at);
                    self.wheel.insert(at.0, Entry::Alerts);
                }
            }
            Told::Stop => return false,
        }
        true
    }

    /// What is no step of the calendar yet, in ms. A clock that is moved by hand is read exactly: a step of it that was let pass would
    /// leave a job due and never started.
    fn noise(&self) -> i64 {
        if self.core.shared.clock.is_manual() { 0 } else { JUMP_MS }
    }
    /// Looks at the clocks, and hands on everything that is due.
    fn turn(&mut self) {
        let now = self.core.shared.read_clock();
        let shift = shift(self.last, now);
        let noise = self.noise();
        if shift.abs() > noise {
            if self::shift(self.seen, now).abs() > noise {
                self.core.shared.report.warn(&format!(
                    "the wall clock moved by {shift} ms against the stopwatch (a suspend, or a clock that was set): due times were looked at again"
                ));
            }
            self.rebuild(now, shift);
            self.last = now;
        }
        self.seen = now;
        if let Some(after) = self.looked
            && self.wheel.len() < HORIZON_JOBS / 2
        {
            self.look_back(now, after);
        }
        let mut fired = Vec::new();
        loop {
            let before = fired.len();
            self.load(now);
            self.wheel.advance(now.mono.0, &mut fired);
            // A full wheel that fired has room for what is due next.
            if fired.len() == before || !self.more {
                break;
            }
        }
        let mut due = Vec::new();
        for (_, entry) in fired {
            match entry {
                Entry::Due(job, at, _) => due.push((job, at)),
                Entry::Lease(token) => self.lease(token, now.mono),
                Entry::Hung(token) => self.replace(token),
                Entry::Hold(id) => self.hold(id, now.mono),
                Entry::Callback(number) => self.callback(number),
                Entry::Alone => self.core.shared.store.poke(),
                Entry::Relay(nth) => self.core.relays.ring(nth),
                Entry::Maintain => self.maintain(),
                Entry::Alerts => self.alerts(now.mono),
            }
        }
        for part in due.chunks(PROMOTE) {
            PromoteOp::submit(&self.core, part.to_vec());
        }
        self.watch_leases();
    }

    /// Brings the due jobs of the next hour into the wheel.
    fn load(&mut self, now: Now) {
        let until = Wall(now.wall.0.saturating_add(HORIZON_MS));
        while self.more && self.loaded.0 < until && self.wheel.len() < HORIZON_JOBS {
            let Ok(page) = self.page(self.loaded) else { return };
            let whole = page.len() < PAGE;
            for (due, id, record) in page {
                if due > until {
                    self.loaded = (until, JobId(u64::MAX));
                    return;
                }
                self.loaded = (due, id);
                let (most, calendar) =
                    record.map_or((u64::MAX, true), |r| (longest(&r.state), r.state.follows_calendar()));
                let wait = due.since(now.wall).min(most);
                self.wheel.insert(now.mono.0.saturating_add(wait), Entry::Due(id, due, calendar));
            }
            if whole {
                // Nothing lies beyond; what comes later and is due later is told.
                self.loaded = (until, JobId(u64::MAX));
                self.more = false;
            }
        }
        if !self.more && self.loaded.0 < until {
            self.loaded = (until, JobId(u64::MAX));
        }
    }

    fn page(&self, after: (Wall, JobId)) -> Result<Vec<(Wall, JobId, Option<JobRecord>)>, StoreError> {
        self.core.shared.store.read(|v| {
            let rows = v.timers(after, PAGE)?;
            let mut out = Vec::with_capacity(rows.len());
            for (due, id) in rows {
                let record = StoreError::readable(v.record(id))?;
                out.push((due, id, record));
            }
            Ok(out)
        })
    }

    /// The calendar moved against the stopwatch: what became due by it starts now, and nothing waits longer than it was asked to.
    fn rebuild(&mut self, now: Now, shift: i64) {
        let entries = self.wheel.drain();
        self.wheel = Wheel::new(now.mono.0);
        self.leases.clear();
        for (mono, entry) in entries {
            let at = match &entry {
                Entry::Due(_, due, calendar) => waits_until(mono, *due, *calendar, now),
                Entry::Lease(_) => continue,
                // It knows best what the calendar's step means for its messages.
                Entry::Relay(_) => now.mono.0,
                Entry::Hung(_)
                | Entry::Hold(_)
                | Entry::Callback(_)
                | Entry::Alone
                | Entry::Maintain
                | Entry::Alerts => mono,
            };
            self.wheel.insert(at, entry);
        }
        if shift < 0 {
            self.look_back(now, self.loaded);
        }
        // The rules count by the calendar, their next look by the stopwatch.
        if self.core.alarms.is_some() {
            self.hear(Told::Alerts(now.mono));
        }
    }

    /// After a step back the horizon lies in the future: what would now wait longer than it was asked to is brought in.
    fn look_back(&mut self, now: Now, after: (Wall, JobId)) {
        let mut after = after;
        self.looked = None;
        loop {
            if self.wheel.len() >= HORIZON_JOBS {
                self.looked = Some(after);
                return;
            }
            let Ok(page) = self.page(after) else { return };
            let last = page.last().map(|(due, id, _)| (*due, *id));
            for (due, id, record) in page {
                let asked = record.map_or(u64::MAX, |r| longest(&r.state));
                if asked < due.since(now.wall) {
                    self.wheel.insert(now.mono.0.saturating_add(asked), Entry::Due(id, due, false));
                }
            }
            match last {
                Some(l) => after = l,
                None => return,
            }
        }
    }

    /// When to look again: the next due entry, and a check of the clocks while anything is due later.
    fn wake(&self) -> Option<u64> {
        let now = self.core.shared.now().mono.0;
        let waits = !self.wheel.is_empty() || self.more || self.core.in_flight() > 0;
        let check = waits.then(|| now.saturating_add(CHECK_MS));
        match (self.wheel.next_due(), check) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    /// Whether a lease came into the wheel.
    fn watch_leases(&mut self) -> bool {
        let mut new = false;
        let soon = self.core.shared.now().mono.0.saturating_add(2 * CHECK_MS);
        for a in self.core.attempts() {
            let (lapses, _) = a.lapses();
            let token = a.lease.token();
            // Far leases are looked at again at the next check; short ones come into the wheel.
            if lapses.0 <= soon && self.leases.insert(token) {
                self.wheel.insert(lapses.0, Entry::Lease(token));
                new = true;
            }
        }
        new
    }

    fn lease(&mut self, token: Token, now: Mono) {
        self.leases.remove(&token);
        let attempt = self.core.running.lock().get(&token).map(|r| r.attempt.clone());
        let Some(attempt) = attempt else { return };
        // Lease timers stand still while the store heals or a request of this lease is queued: it is alive, only unheard. Looked at
        // before the lease itself: when either ends, the time is given back first.
        let unheard = self.core.shared.store.healing() || attempt.has_pending();
        let (lapses, stalled) = attempt.lapses();
        if lapses > now || unheard {
            if self.leases.insert(token) {
                let look = if lapses > now { lapses } else { now.after(Duration::from_secs(1)) };
                self.wheel.insert(look.0, Entry::Lease(token));
            }
            return;
        }
        attempt.fence();
        let how = attempt
            .stopped()
            .filter(|s| !matches!(s, Stop::Finished | Stop::Fenced | Stop::Interrupted))
            .map_or(if stalled { AttemptEnd::Stalled } else { AttemptEnd::TimedOut }, AttemptEnd::Stopped);
        self.core.submit_end(&attempt, how);
        (self.abort)(token);
        self.hung.insert(token, attempt);
        self.wheel.insert(now.after(REPLACE).0, Entry::Hung(token));
    }

    /// Names a closure that has held the writer for long; one entry for all of them, however many there are.
    fn hold(&mut self, id: u64, now: Mono) {
        match self.core.timer.look_at_holder(id) {
            Hold::Still(name) => self.core.shared.report.warn(&format!(
                "the transaction closure of {name} has held the writer for 5 s: nothing else is written meanwhile; do slow work outside of it"
            )),
            Hold::Another(id) => {
                self.wheel.insert(now.after(HOLD_WARNING).0, Entry::Hold(id));
            }
            Hold::Over => {}
        }
    }

    /// Names a callback for alerts that has not returned for long.
    fn callback(&mut self, number: u64) {
        let Some(teller) = self.core.alarms.as_ref().and_then(|a| a.teller.as_ref()) else { return };
        match teller.look(number) {
            (Hold::Still(name), _) => self.core.shared.report.warn(&format!(
                "{name} has not returned for 5 s: the rules are watched, and nobody is told anything until it does; hand the alert to a thread of your own"
            )),
            (Hold::Another(number), at) => {
                self.wheel.insert(at.0, Entry::Callback(number));
            }
            (Hold::Over, _) => {}
        }
    }

    /// A fenced handler still holds its thread: another thread takes its place, so that the pool keeps its size.
    fn replace(&mut self, token: Token) {
        let Some(attempt) = self.hung.remove(&token) else { return };
        let hung = self.core.running.lock().remove(&token);
        let Some(hung) = hung else { return };
        let pool = self.core.pool(hung.pooled);
        pool.in_flight.fetch_sub(1, Ordering::AcqRel);
        if hung.suspect {
            self.core.suspect_over.store(true, Ordering::Release);
        }
        let name = format!("{}/{}", attempt.stored_kind, attempt.row.key);
        self.core.shared.report.warn(&format!(
            "the handler of {name} (attempt {}) has not returned 30 s after it was fenced: its thread was replaced; whatever it still does is refused",
            attempt.number()
        ));
        if hung.pooled == Pooled::Threads {
            self.core.stuck.fetch_add(1, Ordering::AcqRel);
            self.replaced += 1;
            let n = self.core.threads.capacity + self.replaced;
            if let Err(e) = worker::spawn(self.core.clone(), self.jobs.clone(), n) {
                self.core.shared.report.warn(&format!("no thread could be started in its place: {e}"));
            }
        }
        self.core.shared.store.poke();
    }

    /// Has the writer look whether somebody has to be told; what it finds says when to look again.
    fn alerts(&mut self, now: Mono) {
        if self.alerts_at.is_none_or(|at| at > now) {
            return;
        }
        self.alerts_at = None;
        if let Some(alarms) = &self.core.alarms {
            LookOp::submit(&self.core, alarms);
        }
    }

    /// Pruning in slices, and the trusted uptime it depends on.
    fn maintain(&mut self) {
        let now = self.core.shared.now();
        if self.maintain_at.is_some_and(|at| at > now.mono) {
            return;
        }
        let op = MaintainOp::new(self.core.clone());
        let _ = self.core.shared.submit(Lane::Enqueue, Box::new(op));
        // Before the look: a job that ends after it must be told.
        self.core.timer.maintains(false);
        // The next look, if there is anything to prune at all: an empty queue has no reason to wake.
        let next = self.core.shared.store.read(|v| v.prunable(Wall::NEVER, 1)).unwrap_or_default();
        let tomb = self.core.shared.store.read(|v| v.tombs(Wall(u64::MAX), 1)).unwrap_or_default();
        let fade = self.core.shared.store.read(|v| v.fading(None, Wall(u64::MAX), 1)).unwrap_or_default();
        let due = [next.first().map(|(d, _)| *d), tomb.first().map(|(d, _, _)| *d), fade.first().map(|(d, _, _)| *d)];
        let due = due.into_iter().flatten().min();
        if let Some(due) = due {
            // Not longer than an hour ahead: what ends meanwhile may be kept for a shorter time, and nobody says so.
            let wait = due.since(now.wall).clamp(MAINTAIN_MS, HORIZON_MS);
            let at = Mono(now.mono.0.saturating_add(wait));
            self.maintain_at = Some(at);
            self.wheel.insert(at.0, Entry::Maintain);
            self.core.timer.maintains(true);
        } else {
            self.maintain_at = None;
        }
    }
}

/// When a wait ends by the stopwatch that was to end at `mono`, as the clocks stand now: the calendar may have brought its end nearer
/// since that was worked out, and decides alone where a date was asked for.
fn waits_until(mono: u64, due: Wall, calendar: bool, now: Now) -> u64 {
    let by_calendar = now.mono.0.saturating_add(due.since(now.wall));
    if calendar { by_calendar } else { by_calendar.min(mono) }
}

/// How far the calendar has moved against the stopwatch, in ms.
fn shift(from: Now, to: Now) -> i64 {
    signed(to.wall.0) - signed(from.wall.0) - (signed(to.mono.0) - signed(from.mono.0))
}

fn signed(ms: u64) -> i64 {
    i64::try_from(ms).unwrap_or(i64::MAX)
}
