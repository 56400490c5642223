//! The one writer: gathers requests into rounds, commits each round once, and answers after the commit.
//! Keeps the promise that no answer rests on rows that did not become durable, and that a request which fails harms no neighbour.
//! Its thread is started by [`Store::open`](super::Store::open); how it heals is in `heal`.

mod answers;

use super::app::panic_text;
use super::create::{self, Meta};
use super::error::StoreError;
use super::op::{RoundHook, StoreEvent, quietly};
use super::options::{Commits, StoreOptions};
use super::reserve::Reserve;
use super::run_file::RunHeader;
use super::shared::{Shared, Waiting, full};
use super::write::{Kept, Write};
use crate::clock::Stopwatch;
use crate::model::time::Mono;
use crate::planted::on;
use crate::sync::atomic::Ordering;
use crate::sync::thread::{self, JoinHandle};
use answers::{Answers, Batch, settle};
use redb::{CommitError, WriteTransaction};
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

pub(super) const FIRST_PAUSE: Duration = Duration::from_millis(10);
/// The most that one round takes: what comes later would wait longer than a commit.
const OPS: usize = 4_096;
const BYTES: usize = 8 << 20;
/// The same while the disk is full: what one commit copies has to fit into the reserve.
const OPS_WHEN_FULL: usize = 32;

/// The writer's own state; lives on its thread.
pub(super) struct Writer {
    pub(super) options: StoreOptions,
    pub(super) shared: Arc<Shared>,
    pub(super) meta: Meta,
    pub(super) hook: Option<Box<dyn RoundHook>>,
    /// The parts of a split round that come later.
    pub(super) groups: VecDeque<Group>,
    /// Since when the storage fails, and how long to wait before the next try.
    pub(super) trouble: Option<Mono>,
    pub(super) backoff: Duration,
    /// How often the database was opened anew since then.
    pub(super) tries: u32,
    /// Which file is written to.
    pub(super) file_id: Option<(u64, u64)>,
    /// What the newest commit left at hand.
    pub(super) kept: Kept,
    /// Room on the disk that is given up before anything is lost.
    pub(super) reserve: Reserve,
    /// The newest heal met a full disk.
    pub(super) was_full: bool,
    answers: Answers,
    last_ops: usize,
    last_took: Duration,
}

/// Requests that share a commit.
pub(super) struct Group {
    pub(super) ops: Vec<Waiting>,
    /// The engine's part is in it.
    hook: bool,
    /// Requests that arrive meanwhile may join.
    open: bool,
    /// Since the inbox was first found empty: callers that were just answered may be back in a moment.
    gathering: Option<Stopwatch>,
    /// A heal did not help against damage: whoever meets it again gets it as an answer.
    damage_is_final: bool,
}

/// Why a group's transaction must be undone.
enum Undo {
    /// One request: which, what its caller gets, and whether it ran on nothing but durable rows.
    Op { index: usize, error: Option<StoreError>, alone: bool },
    /// The engine's part.
    Hook(StoreError),
    /// The storage.
    Storage(StoreError),
}

/// How a group's transaction ended.
enum Ended {
    Committed(Duration),
    Nothing,
    Undone(Undo),
    /// The storage failed; in the commit itself, so that it may have been applied.
    CommitFailed(StoreError, Duration),
    /// redb refused to commit: a table was kept open behind our back.
    Poisoned,
    /// Somebody removed or replaced the file; nothing was committed into the one that is left over.
    Removed,
}

/// What is found after a heal about the round that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Applied,
    NotApplied,
}

/// The store ends here: why, and whose outcome nobody knows.
struct Halt {
    error: StoreError,
    in_doubt: Vec<Waiting>,
    untouched: Vec<Waiting>,
}

impl Writer {
    pub(super) fn new(options: StoreOptions, shared: Arc<Shared>, meta: Meta, reserve: Reserve) -> Self {
        shared.set_room(reserve.room());
        // The open got over it.
        options.met.no_room.store(false, Ordering::Release);
        Self {
            reserve,
            was_full: false,
            file_id: options.place.file_id(),
            options,
            shared,
            meta,
            hook: None,
            groups: VecDeque::new(),
            trouble: None,
            backoff: FIRST_PAUSE,
            tries: 0,
            kept: Kept::default(),
            answers: Answers::default(),
            last_ops: 0,
            last_took: Duration::ZERO,
        }
    }
    #[expect(clippy::disallowed_methods, reason = "the store's one thread")]
    pub(super) fn spawn(self) -> Result<JoinHandle<()>, StoreError> {
        let weak = Arc::downgrade(&self.shared);
        self.options.clock.subscribe(Box::new(move || {
            if let Some(shared) = weak.upgrade() {
                shared.kick();
            }
        }));
        Ok(thread::Builder::new().name("onceward-writer".to_owned()).spawn(move || self.run_guarded())?)
    }

    /// If the writer itself has a bug, callers hear of it instead of waiting for ever.
    fn run_guarded(self) {
        let shared = self.shared.clone();
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| self.run())) {
            let error = StoreError::Bug(panic_text(panic));
            let waiting = shared.shut(&error);
            shared.run.close(false);
            // The next open finds what became durable; nobody reads from a store that has ended.
            quietly(|| drop(shared.close_db()));
            shared.end(error.clone(), Err(error.clone()));
            shared.tell(&StoreEvent::Stopped { error: error.clone() });
            waiting.into_iter().for_each(|w| settle(w, Some(error.clone())));
        }
    }
    fn run(mut self) {
        loop {
            let work = self.shared.work();
            if let Some(hook) = work.hook {
                self.hook = Some(hook);
            }
            let healed = work.suspect.map_or(Ok(()), |e| self.heal_idle(e));
            let done = healed.map_err(Halt::of).and_then(|()| if work.last { Ok(()) } else { self.round() });
            if let Err(halt) = done {
                return self.stop(halt);
            }
            if work.last {
                self.answers.flush();
                // Before the file is free for others.
                self.shared.run.close(true);
                let closed = self.shared.close_db();
                return self.shared.end(StoreError::Closed, closed);
            }
        }
    }

    /// What waits now, in one commit; in several if one of the requests must be undone.
    fn round(&mut self) -> Result<(), Halt> {
        let mut ops = Vec::new();
        self.shared.take(self.most(), &mut ops);
        self.groups.push_back(Group { open: true, ..Group::of(ops, true) });
        while let Some(group) = self.groups.pop_front() {
            match self.group(group) {
                Ok(split) => split.into_iter().rev().for_each(|g| self.groups.push_front(g)),
                Err(mut halt) => {
                    halt.untouched.extend(self.groups.drain(..).flat_map(|g| g.ops));
                    return Err(halt);
                }
            }
        }
        Ok(())
    }

    /// One group, until it is committed, found to have written nothing, or split.
    fn group(&mut self, mut group: Group) -> Result<Vec<Group>, Halt> {
        loop {
            self.take_back();
            if !self.reserve.room().is_normal() {
                // Also what was taken before the disk was full: the reserve is for what became of things.
                self.refuse_new(&mut group.ops);
                group.open = false;
            }
            match self.attempt(&mut group) {
                Ended::Committed(took) => {
                    self.last_took = took;
                    self.recovered();
                    self.answer(group, took);
                    return Ok(Vec::new());
                }
                Ended::Nothing => {
                    self.recovered();
                    self.answer(group, Duration::ZERO);
                    return Ok(Vec::new());
                }
                Ended::Undone(Undo::Op { index, ref error, alone: true })
                    if group
                        .ops
                        .get_mut(index)
                        .and_then(|w| w.op.as_mut())
                        .is_some_and(|op| op.leave_out(error.as_ref())) => {}
                Ended::Undone(Undo::Op { index, error, alone: true }) => {
                    let waiting = group.ops.remove(index);
                    self.answers.catch_up();
                    settle(waiting, error);
                    if group.ops.is_empty() && !group.hook {
                        self.recovered();
                        return Ok(Vec::new());
                    }
                }
                Ended::Undone(Undo::Op { index, .. }) => return Ok(group.split(Some(index))),
                Ended::Undone(Undo::Hook(error)) => {
                    self.shared.tell(&StoreEvent::HookFailed { error });
                    group.hook = false;
                }
                Ended::Undone(Undo::Storage(error)) => {
                    group.damage_is_final |= matches!(error, StoreError::Damaged { .. });
                    // Nothing was committed, so nothing can have been applied.
                    self.heal(error, &mut group.ops).map_err(|e| Halt::of(e).with_untouched(&mut group.ops))?;
                    if std::mem::take(&mut self.was_full) {
                        return Ok(group.in_parts());
                    }
                }
                Ended::CommitFailed(error, _) if self.options.commits == Commits::OnePhase => {
                    return Err(Halt::of(error).in_doubt(group.ops));
                }
                Ended::CommitFailed(error, took) => match self.heal(error, &mut group.ops) {
                    Ok(Verdict::Applied) => {
                        self.recovered();
                        self.answer(group, took);
                        return Ok(Vec::new());
                    }
                    Ok(Verdict::NotApplied) => {
                        self.undo_hook(group.hook);
                        if std::mem::take(&mut self.was_full) {
                            return Ok(group.in_parts());
                        }
                    }
                    Err(e) => return Err(Halt::of(e).in_doubt(group.ops)),
                },
                Ended::Removed => {
                    let why = format!("{} was removed or replaced", self.options.place.path().display());
                    return Err(Halt::of(StoreError::Stopped(why)).with_untouched(&mut group.ops));
                }
                Ended::Poisoned if group.ops.len() > 1 => return Ok(group.split(None)),
                Ended::Poisoned => {
                    let error = StoreError::Bug("a table was kept open".to_owned());
                    self.recovered();
                    self.answers.catch_up();
                    group.ops.drain(..).for_each(|w| settle(w, Some(error.clone())));
                    return Ok(if group.hook { vec![Group::of(Vec::new(), true)] } else { Vec::new() });
                }
            }
        }
    }

    /// The most requests of one round.
    fn most(&self) -> usize {
        if self.reserve.room().is_normal() { OPS } else { OPS_WHEN_FULL }
    }
    fn refuse_new(&mut self, ops: &mut Vec<Waiting>) {
        let is_new = |w: &Waiting| w.op.as_ref().is_some_and(|op| op.is_new_work());
        if ops.iter().any(is_new) {
            self.answers.catch_up();
            let (new, rest): (Vec<_>, Vec<_>) = std::mem::take(ops).into_iter().partition(is_new);
            new.into_iter().for_each(|w| settle(w, Some(full())));
            *ops = rest;
        }
    }
    /// Takes the reserve back, if it was given up and there is room again, and says what there is room for.
    fn take_back(&mut self) {
        if self.reserve.room().is_normal() && self.shared.room().is_normal() {
            return;
        }
        let tried = self.reserve.take_back(self.options.clock.now().mono);
        let (before, room) = (self.shared.room(), self.reserve.room());
        if tried || room != before {
            self.shared.set_room(room);
            self.shared.tell(&StoreEvent::Room { room, changed: room != before });
        }
    }

    /// One transaction over a group.
    fn attempt(&mut self, group: &mut Group) -> Ended {
        let commits = self.options.commits;
        let tx = match self.shared.with_db(|db| create::begin(db, commits)) {
            Ok(tx) => tx,
            Err(e) => return Ended::Undone(Undo::Storage(e)),
        };
        let shared = self.shared.clone();
        let kept = std::mem::take(&mut self.kept);
        let mut w = Write::new(&tx, &shared.memory, self.meta.live, self.options.limits, kept)
            .noting(self.options.note_failures);
        let ran = self.fill(&mut w, group).and_then(|()| {
            let next = self.meta.live.round + 1;
            w.is_dirty().then(|| w.finish(next)).transpose().map_err(Undo::Storage)
        });
        let slow = std::mem::take(&mut w.slow);
        let epoch = w.raised_epoch.unwrap_or(self.meta.epoch);
        let indexed = w.indexed.take();
        // Closes the tables: redb would take an open one for a leaked one.
        let mut kept = w.into_kept();
        for (name, took) in slow {
            self.shared.tell(&StoreEvent::SlowClosure { name, took });
        }
        let ended = match ran {
            Ok(Some(live)) => self.commit(tx, Meta { epoch, live, ..self.meta }, group.hook),
            Ok(None) => match tx.abort() {
                Ok(()) => Ended::Nothing,
                Err(e) => self.undone(Undo::Storage(e.into()), group.hook),
            },
            Err(undo) => {
                let hook_ran = group.hook && !matches!(undo, Undo::Op { .. });
                let undo = match (tx.abort(), undo) {
                    (Ok(()), undo) | (Err(_), undo @ Undo::Storage(_)) => undo,
                    (Err(e), Undo::Op { .. } | Undo::Hook(_)) => Undo::Storage(e.into()),
                };
                self.undone(undo, hook_ran)
            }
        };
        match (&ended, indexed) {
            (Ended::Committed(_), Some(done)) => shared.memory.commit(done),
            // Read anew from the file by the heal, which finds out what became of it.
            (Ended::Committed(_) | Ended::CommitFailed(..), _) => {}
            (Ended::Nothing | Ended::Undone(_) | Ended::Poisoned | Ended::Removed, _) => shared.memory.undo(),
        }
        if !matches!(ended, Ended::Committed(_)) {
            kept.undone();
        }
        self.kept = kept;
        ended
    }

    fn commit(&mut self, tx: WriteTransaction, next: Meta, hook_ran: bool) -> Ended {
        if self.options.place.file_id() != self.file_id && !on("inode-unwatched") {
            self.undo_hook(hook_ran);
            // What is left of it does not matter any more.
            drop(tx);
            return Ended::Removed;
        }
        let watch = Stopwatch::start();
        match tx.commit() {
            Ok(()) => {
                self.meta = next;
                self.note();
                Ended::Committed(watch.elapsed())
            }
            // redb has rolled it back already.
            Err(CommitError::TransactionPoisoned) => {
                self.undo_hook(hook_ran);
                Ended::Poisoned
            }
            Err(_) if on("failed-commit-answered") => Ended::Committed(watch.elapsed()),
            Err(e) => Ended::CommitFailed(e.into(), watch.elapsed()),
        }
    }
    fn undone(&mut self, undo: Undo, hook_ran: bool) -> Ended {
        self.undo_hook(hook_ran);
        Ended::Undone(undo)
    }

    /// Runs the requests, those that arrive meanwhile too, then the engine's part.
    fn fill(&mut self, w: &mut Write<'_>, group: &mut Group) -> Result<(), Undo> {
        let mut next = 0;
        loop {
            while next < group.ops.len() {
                if group.open && next > 0 && w.bytes() > BYTES {
                    self.shared.put_back(group.ops.drain(next..));
                    group.open = false;
                    break;
                }
                run_one(w, group, next)?;
                next += 1;
            }
            if !self.more(group) {
                break;
            }
        }
        // Whoever comes now is not in this run any more; another run of it must be the same.
        group.open = false;
        match &mut self.hook {
            Some(hook) if group.hook => run_hook(&mut **hook, w, group.damage_is_final),
            Some(_) | None => Ok(()),
        }
    }
    /// Whether somebody joined. Callers that were just answered are waited for at most a tenth of the last commit.
    fn more(&self, group: &mut Group) -> bool {
        let room = self.most().saturating_sub(group.ops.len());
        if !group.open || room == 0 {
            return false;
        }
        let before = group.ops.len();
        self.shared.take(room, &mut group.ops);
        if group.ops.len() > before {
            return true;
        }
        if before == 0 || before >= self.last_ops {
            return false;
        }
        let watch = *group.gathering.get_or_insert_with(Stopwatch::start);
        while watch.elapsed() < self.last_took / 10 {
            if self.shared.something_waits() {
                self.shared.take(room, &mut group.ops);
                return true;
            }
            thread::yield_now();
        }
        false
    }

    /// After the commit: work is handed out, then everybody is told in order.
    fn answer(&mut self, group: Group, took: Duration) {
        self.last_ops = group.ops.len();
        let (mut then, mut mark) = (None, None);
        if let Some(hook) = &mut self.hook {
            mark = Some(hook.mark());
            quietly(|| then = hook.committed(took));
        }
        let busy = self.shared.something_waits();
        self.answers.give(&self.shared, Batch { ops: group.ops, then, mark }, busy);
    }
    fn undo_hook(&mut self, ran: bool) {
        if let Some(hook) = &mut self.hook
            && ran
        {
            quietly(|| hook.aborted());
        }
    }
    pub(super) fn note(&self) {
        let Meta { instance, epoch, live, .. } = self.meta;
        self.shared.run.note(RunHeader { instance, epoch, round: live.round });
    }

    fn stop(mut self, halt: Halt) {
        let told = matches!(halt.error, StoreError::Stopped(_));
        let why = if told { halt.error.clone() } else { StoreError::Stopped(halt.error.to_string()) };
        let waiting = self.shared.shut(&why);
        self.undo_hook(true);
        // Rounds that became durable are told as such, whatever comes behind them.
        self.answers.flush();
        self.shared.run.close(false);
        // Its error would only repeat what the store stops for.
        let _failed = self.shared.close_db();
        self.shared.end(why.clone(), Err(why.clone()));
        self.shared.tell(&StoreEvent::Stopped { error: halt.error });
        halt.in_doubt.into_iter().for_each(|w| settle(w, Some(StoreError::Unknown)));
        halt.untouched.into_iter().chain(waiting).for_each(|w| settle(w, Some(why.clone())));
    }
}

impl Group {
    /// Nothing of it was written, because the disk was full: the same in parts, of which each is smaller than what did not fit. The
    /// engine's part comes last.
    fn in_parts(self) -> Vec<Self> {
        let Self { mut ops, hook, damage_is_final, .. } = self;
        let most = ops.len().div_ceil(2).clamp(1, OPS_WHEN_FULL);
        let mut groups = Vec::new();
        while ops.len() > most {
            let rest = ops.split_off(most);
            groups.push(Self { damage_is_final, ..Self::of(std::mem::replace(&mut ops, rest), false) });
        }
        groups.push(Self { damage_is_final, ..Self::of(ops, hook) });
        groups
    }
    fn of(ops: Vec<Waiting>, hook: bool) -> Self {
        Self { ops, hook, open: false, gathering: None, damage_is_final: false }
    }
    /// Our own requests together, then every request with app code, and the one that failed, alone. The engine's part comes last:
    /// what any of them made ready is claimed.
    fn split(self, culprit: Option<usize>) -> Vec<Self> {
        let (mut own, mut alone) = (Vec::new(), Vec::new());
        for (i, waiting) in self.ops.into_iter().enumerate() {
            let apart = waiting.op.as_ref().is_some_and(|op| op.is_app()) || culprit.is_none_or(|c| c == i);
            if apart { alone.push(Self::of(vec![waiting], false)) } else { own.push(waiting) }
        }
        let mut groups = Vec::new();
        if !own.is_empty() || alone.is_empty() {
            groups.push(Self::of(own, false));
        }
        groups.extend(alone);
        if let Some(last) = groups.last_mut() {
            last.hook = self.hook;
        }
        groups.iter_mut().for_each(|g| g.damage_is_final = self.damage_is_final);
        groups
    }
}

impl Halt {
    fn of(error: StoreError) -> Self {
        Self { error, in_doubt: Vec::new(), untouched: Vec::new() }
    }
    fn in_doubt(mut self, ops: Vec<Waiting>) -> Self {
        self.in_doubt = ops;
        self
    }
    fn with_untouched(mut self, ops: &mut Vec<Waiting>) -> Self {
        self.untouched.append(ops);
        self
    }
}

/// Runs one request; its failure is told apart from the storage's.
fn run_one(w: &mut Write<'_>, group: &mut Group, index: usize) -> Result<(), Undo> {
    w.begin_op();
    let waiting = &mut group.ops[index];
    waiting.failed = None;
    let ran = catch_unwind(AssertUnwindSafe(|| waiting.op.as_mut().map_or(Ok(()), |op| op.run(w))));
    let alone = !w.dirty_before_op();
    let (error, wrote) = match ran {
        Ok(Ok(())) if !w.spoiled => return Ok(()),
        Ok(Ok(())) => (None, w.op_is_dirty()),
        Ok(Err(e)) if e.is_storage() && !(group.damage_is_final && matches!(e, StoreError::Damaged { .. })) => {
            return Err(Undo::Storage(e));
        }
        Ok(Err(e)) => (Some(e), w.op_is_dirty()),
        // A panic may have left anything behind.
        Err(p) => (Some(StoreError::Bug(panic_text(p))), true),
    };
    if wrote {
        return Err(Undo::Op { index, error, alone });
    }
    waiting.failed = error;
    Ok(())
}

fn run_hook(hook: &mut dyn RoundHook, w: &mut Write<'_>, damage_is_final: bool) -> Result<(), Undo> {
    w.begin_op();
    match catch_unwind(AssertUnwindSafe(|| hook.before_commit(w))) {
        Ok(Ok(())) => Ok(()),
        Ok(Err(e)) if e.is_storage() && !(damage_is_final && matches!(e, StoreError::Damaged { .. })) => {
            Err(Undo::Storage(e))
        }
        Ok(Err(e)) => Err(Undo::Hook(e)),
        Err(p) => Err(Undo::Hook(StoreError::Bug(panic_text(p)))),
    }
}
