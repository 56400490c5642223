//! Claims: at the end of every round, in the same commit, so that an enqueue and its claim cost one.
//!
//! Nothing polls. A round happens when somebody has something to write or when a place in a pool became free.

use super::core::{Core, Pooled};
use super::worker::{MAX_AHEAD, MAX_AHEAD_BYTES};
use crate::handler::attempt::Claimed;
use crate::handler::kinds::Kind;
use crate::handler::shared::{Changed, Phase};
use crate::handler::undo;
use crate::model::effect::EffectRecord;
use crate::model::id::{JobId, KindId, Lease, Token};
use crate::model::job::JobState;
use crate::model::time::{Mono, Now};
use crate::rules::Env;
use crate::rules::lifecycle::{self, Claim};
use crate::store::{RoundHook, StoreError, Tell, Write};
use crate::sync::atomic::Ordering;
use crate::sync::channel::Sender;
use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;
use std::time::Duration;

/// A suspect runs alone for this long.
pub(crate) const ALONE: Duration = Duration::from_secs(60);
/// Jobs that may not begin any more are put before a person, so many in one round.
const MOST_MOVED: usize = 256;
/// The name under which the clock's marks are kept.
pub(crate) const CLOCK: &str = "clock";

/// Where the claimed async jobs of a round go.
pub(crate) type ToTasks = Box<dyn Fn(Vec<Claimed>) + Send>;

/// A kind under one of the names it is stored with.
pub(crate) struct Served {
    pub(crate) id: KindId,
    pub(crate) name: Arc<str>,
    pub(crate) kind: Arc<Kind>,
    pub(crate) pooled: Pooled,
}

/// The round hook of the engine.
pub(crate) struct Dispatcher {
    core: Arc<Core>,
    kinds: Vec<Served>,
    to_threads: Sender<Claimed>,
    to_tasks: Option<ToTasks>,
    next_token: Token,
    epoch: u32,
    commit_us: u64,
    /// How many tasks ended from one commit to the next, lately.
    pace: usize,
    /// Jobs whose rows cannot be read: they stop nothing.
    unreadable: HashSet<JobId>,
    /// Since when a suspect runs.
    suspect: Option<Mono>,
    /// Suspects that were heard of: while none runs, each goes before all other jobs.
    suspects: BTreeSet<JobId>,
    prepared: Vec<(Claimed, Pooled)>,
    changes: Vec<Changed>,
    /// There is more to claim than this round took.
    more: bool,
    before: Before,
}

/// What an undone round puts back.
#[derive(Clone, Copy)]
struct Before {
    suspect: Option<Mono>,
    next_token: Token,
    epoch: u32,
}

impl Dispatcher {
    pub(crate) fn new(
        core: Arc<Core>,
        kinds: Vec<Served>,
        to_threads: Sender<Claimed>,
        to_tasks: Option<ToTasks>,
        epoch: u32,
        suspects: Vec<JobId>,
    ) -> Self {
        let first = Token::first_of(epoch);
        Self {
            core,
            kinds,
            to_threads,
            to_tasks,
            next_token: first,
            epoch,
            commit_us: 0,
            pace: 0,
            unreadable: HashSet::new(),
            suspect: None,
            suspects: suspects.into_iter().collect(),
            prepared: Vec::new(),
            changes: Vec::new(),
            more: false,
            before: Before { suspect: None, next_token: first, epoch },
        }
    }

    fn token(&mut self, tx: &mut Write<'_>) -> Result<Token, StoreError> {
        let next = Token(self.next_token.0 + 1);
        // Long before the counter ends a new epoch begins, so that a token is never reused.
        if next.0 & ((1 << Token::COUNTER_BITS) - 1) >= 1 << (Token::COUNTER_BITS - 1) {
            self.epoch = tx.raise_epoch()?;
            self.next_token = Token(Token::first_of(self.epoch).0 + 1);
        } else {
            self.next_token = next;
        }
        Ok(self.next_token)
    }

    /// How many claims each pool wants, risky ones and others.
    fn wanted(&self, p: Pooled) -> Wanted {
        let pool = self.core.pool(p);
        let in_flight = pool.in_flight.load(Ordering::Acquire);
        // Handlers that are faster than a commit are given work ahead: twice what they finish during one. Slow handlers get
        // none, because what is claimed ahead is in doubt after a kill and waits behind them.
        // While nothing is known of them, they may be slow.
        let (mean, commit) = (pool.mean_us.load(Ordering::Relaxed), self.commit_us);
        let bytes = pool.bytes.load(Ordering::Acquire);
        let ahead = if mean > 0 && commit > mean && bytes < MAX_AHEAD_BYTES {
            let could = usize::try_from(commit / mean).unwrap_or(MAX_AHEAD).saturating_mul(2 * pool.capacity);
            let did = match p {
                Pooled::Threads => MAX_AHEAD,
                // There are far more places for tasks than threads that run them: only what they did counts.
                Pooled::Tasks => 2 * self.pace,
            };
            could.min(did).min(MAX_AHEAD)
        } else {
            0
        };
        if !self.is_open(p) {
            return Wanted { any: 0, risky: 0, bytes: 0 };
        }
        Wanted {
            bytes,
            any: (pool.capacity + ahead).saturating_sub(in_flight),
            risky: pool.capacity.saturating_sub(in_flight),
        }
    }

    /// Whether jobs can be handed to this pool at all.
    fn is_open(&self, p: Pooled) -> bool {
        match p {
            Pooled::Threads => self.core.threads.capacity > 0,
            Pooled::Tasks => self.to_tasks.is_some() && !self.core.gated.load(Ordering::Acquire),
        }
    }

    /// The next suspect that could run now. It goes first: behind a long job it would hold up the whole queue, because it has to
    /// wait until nothing else runs.
    fn next_suspect(&mut self, tx: &Write<'_>) -> Result<Option<(JobId, usize)>, StoreError> {
        for id in self.suspects.clone() {
            let record = StoreError::readable(tx.record(id))?;
            let Some(record) = record.filter(|r| r.suspect && !self.unreadable.contains(&id)) else {
                self.suspects.remove(&id);
                continue;
            };
            let served = self.kinds.iter().position(|s| s.id == record.kind);
            if let (JobState::Ready { .. }, Some(at)) = (&record.state, served)
                && self.is_open(self.kinds[at].pooled)
                && !self.core.shared.paused(&self.kinds[at].name)
            {
                return Ok(Some((id, at)));
            }
        }
        Ok(None)
    }

    /// Whether claims are held back because a suspect has to run alone.
    fn suspect_alone(&self) -> bool {
        match self.suspect {
            None => false,
            Some(since) => self.core.shared.now().mono < since.after(ALONE),
        }
    }

    fn claim_all(&mut self, tx: &mut Write<'_>) -> Result<(), StoreError> {
        let mut wanted = [self.wanted(Pooled::Threads), self.wanted(Pooled::Tasks)];
        // Nothing is begun while the disk is full.
        let full = !self.core.shared.store.room().is_normal();
        if full || self.suspect_alone() || wanted.iter().all(|w| w.any == 0) {
            return Ok(());
        }
        let now = self.core.shared.now();
        loop {
            while self.suspect.is_none()
                && let Some((id, at)) = self.next_suspect(tx)?
            {
                // What runs is waited for; a suspect that moved elsewhere makes room for the next.
                if self.core.in_flight() > 0 || self.claim_readable(tx, id, at, now)? == Claimedness::HoldAll {
                    return Ok(());
                }
            }
            let passed_over = self.suspects.len() + self.unreadable.len();
            let moved_before = self.changes.len() - self.prepared.len();
            let hold = self.claim_heads(tx, &mut wanted, now)?;
            // Whoever was found out just now, or may not begin any more, stood in the line before others: look behind them.
            let moved = self.changes.len() - self.prepared.len();
            if hold || (self.suspects.len() + self.unreadable.len() == passed_over && moved == moved_before) {
                return Ok(());
            }
            if moved >= MOST_MOVED {
                // The rest of them in rounds of their own.
                self.more = true;
                return Ok(());
            }
        }
    }

    /// Claims from the heads of the lines; `true` if nothing more may be claimed.
    fn claim_heads(&mut self, tx: &mut Write<'_>, wanted: &mut [Wanted; 2], now: Now) -> Result<bool, StoreError> {
        let mut heads: Vec<(u8, u64, JobId, usize)> = Vec::new();
        for (at, served) in self.kinds.iter().enumerate() {
            let w = &wanted[served.pooled as usize];
            let most = if served.kind.rules.risky { w.risky } else { w.any };
            if most == 0 || self.core.shared.paused(&served.name) {
                continue;
            }
            let found = tx.ready(served.id, most + self.unreadable.len() + self.suspects.len())?;
            heads.extend(found.into_iter().map(|(prio, ticket, id)| (prio, ticket, id, at)));
        }
        heads.sort_unstable();
        let most: usize = wanted.iter().map(|w| w.any).sum::<usize>().min(heads.len());
        self.prepared.reserve(most);
        self.changes.reserve(most);
        for (_, _, id, at) in heads {
            let (pooled, risky) = (self.kinds[at].pooled, self.kinds[at].kind.rules.risky);
            let w = &mut wanted[pooled as usize];
            if w.any == 0 || (risky && w.risky == 0) || self.unreadable.contains(&id) || self.suspects.contains(&id) {
                continue;
            }
            match self.claim_readable(tx, id, at, now)? {
                Claimedness::Claimed => {
                    let w = &mut wanted[pooled as usize];
                    w.any -= 1;
                    w.risky = w.risky.saturating_sub(1);
                    w.bytes += self.prepared.last().map_or(0, |(claimed, _)| claimed.row.payload.len());
                    if w.bytes >= MAX_AHEAD_BYTES {
                        // No more than there are places.
                        w.any = w.any.min(w.risky);
                    }
                }
                Claimedness::Moved => {}
                Claimedness::HoldAll => return Ok(true),
            }
        }
        Ok(false)
    }

    /// Claims, unless the job's rows are damaged: it is left alone, and stops nothing.
    fn claim_readable(
        &mut self,
        tx: &mut Write<'_>,
        id: JobId,
        at: usize,
        now: Now,
    ) -> Result<Claimedness, StoreError> {
        let written = tx.touches();
        match self.claim(tx, id, at, now) {
            Err(StoreError::Corrupt { what }) => {
                self.unreadable.insert(id);
                if tx.touches() != written {
                    // Half of it must not be committed: the round goes on without claims, the next one without this job.
                    return Err(StoreError::Corrupt { what });
                }
                self.core.shared.report.warn(&format!("job {id} is not run: {what}"));
                Ok(Claimedness::Moved)
            }
            other => other,
        }
    }

    fn claim(&mut self, tx: &mut Write<'_>, id: JobId, at: usize, now: Now) -> Result<Claimedness, StoreError> {
        let missing = |what: &str| StoreError::Corrupt { what: format!("{what} of job {id} is missing") };
        let record = tx.record(id)?.ok_or_else(|| missing("the record"))?;
        let row = tx.job(id)?.ok_or_else(|| missing("the row"))?;
        if record.suspect {
            // It may have killed the process: it runs alone, or not yet.
            self.suspects.insert(id);
            if self.suspect.is_some() {
                return Ok(Claimedness::Moved);
            }
            if !self.prepared.is_empty() || self.core.in_flight() > 0 {
                return Ok(Claimedness::HoldAll);
            }
        }
        let effects = if record.effects > 0 { tx.effects(id)? } else { Vec::new() };
        let memos = if record.memos > 0 { tx.memos(id)? } else { Vec::new() };
        let token = self.token(tx)?;
        let served = &self.kinds[at];
        let calls = |r: &EffectRecord| self.core.shared.call_facts(id, r, now);
        let env = Env { now, draw: 0, calls: &calls };
        let claim = lifecycle::claim(&record, token, &effects, &self.core.shared.in_force(&served.kind.rules), &env);
        let (change, go) = match claim {
            Ok(Claim::Go(change)) => (change, true),
            Ok(Claim::Not(change)) => (change, false),
            Err(refusal) => {
                return Err(StoreError::Corrupt { what: format!("its ready row is not true: {refusal}") });
            }
        };
        let mut changed = Changed::new(served.name.clone(), served.kind.queue, row.key.clone(), change);
        if !go {
            let changes = undo::put(tx, &self.core.shared, changed, Some(&row))?;
            self.changes.extend(changes);
            return Ok(Claimedness::Moved);
        }
        tx.put(&changed.change)?;
        // A new job's ticket is its number; one that came back has a later one, and when that was is not kept.
        let first = matches!(record.state, JobState::Ready { ticket } if ticket == id.0);
        changed.waited_ms = first.then(|| now.wall.since(row.enqueued));
        let record = changed.change.record();
        let (attempts, cancel, suspect, deadline) = (record.attempts, record.cancel, record.suspect, record.deadline);
        self.changes.push(changed);
        if suspect {
            self.suspect = Some(now.mono);
        }
        let pooled = served.pooled;
        let claimed = Claimed {
            lease: Lease { job: id, token },
            row,
            effects,
            memos,
            kind: served.kind.clone(),
            stored_kind: served.name.clone(),
            attempts,
            cancel,
            suspect,
            // One that is past already goes on for another reason, e.g. to ask about an effect.
            deadline: deadline.filter(|at| *at >= now.wall),
        };
        self.prepared.push((claimed, pooled));
        Ok(if suspect { Claimedness::HoldAll } else { Claimedness::Claimed })
    }
}

impl Dispatcher {
    fn keep(&mut self) {
        self.before = Before { suspect: self.suspect, next_token: self.next_token, epoch: self.epoch };
    }
}

struct Wanted {
    any: usize,
    risky: usize,
    /// What is on its way already, in bytes of payloads.
    bytes: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Claimedness {
    Claimed,
    Moved,
    HoldAll,
}

impl RoundHook for Dispatcher {
    fn before_commit(&mut self, tx: &mut Write<'_>) -> Result<(), StoreError> {
        // Whatever the app hangs into the queue's reports runs here too: a call from there would wait for itself.
        crate::handler::shared::this_is_the_writer();
        self.prepared.clear();
        self.changes.clear();
        self.more = false;
        // A fact about the past: an undone round must not bring that suspect back, or no other one would ever run.
        if self.core.suspect_over.swap(false, Ordering::AcqRel) {
            self.suspect = None;
        }
        self.keep();
        if self.core.shared.phase() == Phase::Open {
            self.claim_all(tx)?;
        }
        if tx.is_dirty() {
            // The wall clock's high-water mark rides along: a clock behind it cannot date a provider's key.
            let shared = &self.core.shared;
            shared.read_clock();
            tx.put_meta(CLOCK, &shared.trust.marks().to_bytes())?;
        }
        Ok(())
    }
    fn committed(&mut self, took: Duration) -> Option<Tell> {
        // From here on an undone round goes back to this one, also if it never came to its claims.
        self.keep();
        if std::mem::take(&mut self.more) {
            self.core.shared.store.poke();
        }
        let shared = self.core.shared.clone();
        if !took.is_zero() {
            self.commit_us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
            shared.report.committed(took);
            let ended = self.core.tasks.ended.swap(0, Ordering::Relaxed);
            self.pace = ended.max(self.pace - self.pace / 4);
        }
        let for_tasks = self.prepared.iter().filter(|(_, pooled)| *pooled == Pooled::Tasks).count();
        let mut for_tasks = Vec::with_capacity(for_tasks);
        for (claimed, pooled) in self.prepared.drain(..) {
            self.core.pool(pooled).take(&claimed.row);
            if claimed.suspect {
                self.core.timer.alone(shared.now().mono.after(ALONE));
            }
            match (pooled, &self.to_tasks) {
                (Pooled::Tasks, Some(_)) => for_tasks.push(claimed),
                (Pooled::Tasks, None) | (Pooled::Threads, _) => {
                    // The channel holds more than may ever be in flight; it is only closed at shutdown.
                    if let Err(e) = self.to_threads.send(claimed) {
                        self.core.never_started(e.into_inner(), Pooled::Threads);
                    }
                }
            }
        }
        if let Some(send) = self.to_tasks.as_ref().filter(|_| !for_tasks.is_empty()) {
            send(for_tasks);
        }
        let room = self.changes.len();
        let changes = std::mem::replace(&mut self.changes, Vec::with_capacity(room));
        (room > 0).then(|| -> Tell { Box::new(move || shared.report.changed(&changes)) })
    }
    fn mark(&self) -> fn() {
        // Whatever the app hangs into the queue's reports runs there: a call from it would wait for itself.
        crate::handler::shared::this_is_the_writer
    }
    fn aborted(&mut self) {
        // Tokens of an undone round were never handed out; they are skipped all the same: never reused.
        self.prepared.clear();
        self.changes.clear();
        self.suspect = self.before.suspect;
        if self.epoch != self.before.epoch {
            // The new epoch was undone with its round: tokens under it would be handed out again after the next start.
            (self.epoch, self.next_token) = (self.before.epoch, self.before.next_token);
        }
    }
}
