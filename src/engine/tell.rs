//! What is owed to the app's callbacks: a bounded queue, one thread that calls them, and the commit that says what was heard.
//!
//! Keeps the promise that nothing is lost and nothing is told twice but for a crash in the middle: what is owed is in the file
//! before a callback runs (a letter's own commit, or that of the look), and goes from it after the callback returned. What a dead
//! process may have told is told again, marked so. A callback that hangs is named, and holds up no rule.

use super::wake::{Hold, TimerHandle};
use crate::clock::{Clock, Stopwatch};
use crate::handler::effect::panic_text;
use crate::handler::reply::Answer;
use crate::handler::shared::{HOLD_WARNING, Shared, inside_transaction};
use crate::model::id::JobId;
use crate::model::time::Mono;
use crate::observe::alerts::{AlertRule, Said};
use crate::observe::book::Book;
use crate::observe::events;
use crate::store::{Lane, Op, Store, StoreError, View, Write};
use crate::sync::{Condvar, Mutex, MutexGuard, thread};
use std::collections::{BTreeMap, HashSet, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

/// The setting in which the memory of the rules is kept.
pub(crate) const ALERTS: &str = "alerts";
/// What a rule said last about a subject is kept under this, and the subject's name.
pub(crate) const SAID: &str = "alert/";
/// Letters that wait in memory; the file has the others.
const MOST_LETTERS: usize = 1_024;
/// A shutdown waits at least, and at most, this long for what is still to be told, in between as long as it was given.
const PATIENCE: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(5)];
/// What could not be read is read again after this long, or as soon as something else is to be told.
const READ_AGAIN: Duration = Duration::from_secs(1);
const THREAD: &str = "onceward-alerts";

/// What the app is told.
pub(crate) enum Word {
    /// A letter was created, by this revision.
    Letter(JobId, u32),
    /// A rule spoke.
    Said(Said),
}

/// What came of telling something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Told {
    /// Every callback has returned.
    Heard,
    /// The storage could not be read: once more in a while.
    Later,
    /// It cannot be shown; the next process tries again.
    Not,
}

/// Something that waits for its turn.
#[derive(Clone, PartialEq)]
enum Turn {
    Letter(JobId),
    Said(String),
}

/// What came back from a callback, to be kept.
enum Heard {
    Letter(JobId, u32),
    Said(String, u64),
}

/// A callback that is being called.
struct Call {
    number: u64,
    who: String,
    since: Mono,
    /// It was named.
    named: bool,
}

#[derive(Default)]
struct Inner {
    order: VecDeque<Turn>,
    /// Those that wait, with the revision that brought each.
    letters: BTreeMap<JobId, u32>,
    /// The flag: a process before this one may have told it.
    said: BTreeMap<String, (Said, bool)>,
    /// The file has letters that are not in `letters`.
    more: bool,
    /// Letters that a process before this one may have told.
    left: HashSet<(JobId, u32)>,
    /// Letters that were told, and whose row may still be there.
    handed: HashSet<(JobId, u32)>,
    heard: Vec<Heard>,
    /// What was heard is on its way into the file.
    keeping: usize,
    calling: bool,
    call: Option<Call>,
    calls: u64,
    /// The timer looks at the call by itself.
    watched: bool,
    stopping: bool,
    /// Nobody waits any more for what is still to be told.
    abandoned: bool,
    ended: bool,
}

impl Inner {
    #[cfg(feature = "testkit")]
    fn is_quiet(&self) -> bool {
        self.order.is_empty() && !self.more && !self.calling && self.heard.is_empty() && self.keeping == 0
    }
    fn add_letter(&mut self, job: JobId, revision: u32) {
        // Read from the file before whoever created it was answered, and told already.
        if self.handed.contains(&(job, revision)) {
            return;
        }
        let new = !self.letters.contains_key(&job);
        // What was read from the file a moment ago may be older than what was just told.
        self.letters.entry(job).and_modify(|r| *r = revision.max(*r)).or_insert(revision);
        if new {
            self.order.push_back(Turn::Letter(job));
        }
    }
}

/// Who is told, and what is still to be told.
pub(crate) struct Teller {
    inner: Mutex<Inner>,
    stir: Condvar,
    timer: TimerHandle,
    clock: Arc<dyn Clock>,
}

impl Teller {
    /// With what the file still has: `left` letters and `said` notices that a process before this one may have told, and whether
    /// there are letters at all that nobody was told of.
    pub(crate) fn new(timer: TimerHandle, clock: Arc<dyn Clock>, tells: bool, owed: Owed) -> Arc<Self> {
        let mut inner = Inner { more: !owed.letters.is_empty(), ..Inner::default() };
        inner.left = if tells { owed.letters.into_iter().collect() } else { HashSet::new() };
        let mut said: Vec<Said> = owed.said.into_iter().filter(|s| s.over || !s.heard).collect();
        said.sort_by_key(|s| s.number);
        for said in said {
            inner.order.push_back(Turn::Said(said.firing.subject()));
            inner.said.insert(said.firing.subject(), (said, tells));
        }
        Arc::new(Self { inner: Mutex::new(inner), stir: Condvar::new(), timer, clock })
    }
    /// A letter was created: its commit has noted that nobody was told of it.
    pub(crate) fn letter(&self, job: JobId, revision: u32) {
        let mut inner = self.inner.lock();
        if inner.letters.len() < MOST_LETTERS || inner.letters.contains_key(&job) {
            inner.add_letter(job, revision);
        } else {
            inner.more = true;
        }
        self.stir.notify_all();
    }
    /// A rule spoke, and that is kept. What is over before anybody heard that it had begun is told to nobody, nor what begins anew before
    /// anybody heard that it was over: who hears it still holds for true what was told last.
    pub(crate) fn said(self: &Arc<Self>, shared: &Arc<Shared>, said: Said) {
        let mut inner = self.inner.lock();
        let subject = said.firing.subject();
        let waits = inner.said.get(&subject).map(|(was, again)| (was.over, *again));
        if waits == Some((!said.over, false)) {
            inner.said.remove(&subject);
            inner.order.retain(|turn| *turn != Turn::Said(subject.clone()));
            inner.heard.push(Heard::Said(subject, said.number));
            drop(inner);
            return self.keep(shared);
        }
        // Whether the end that waited was heard is not known, so its begin may still be held for true.
        let again = waits == Some((true, true)) && !said.over;
        if inner.said.insert(subject.clone(), (said, again)).is_none() {
            inner.order.push_back(Turn::Said(subject));
        }
        self.stir.notify_all();
    }
    /// How many notices of rules wait in memory, and for how long a callback has been called that was named.
    pub(crate) fn state(&self, now: Mono) -> (usize, Option<Duration>) {
        let inner = self.inner.lock();
        let hung = inner.call.as_ref().filter(|c| c.named).map(|c| Duration::from_millis(now.since(c.since)));
        (inner.said.len(), hung)
    }
    /// Waits until everything was told, and kept as heard; `false` if that takes longer.
    #[cfg(feature = "testkit")]
    pub(crate) fn until_quiet(&self, at_most: Duration) -> bool {
        let watch = Stopwatch::start();
        let mut inner = self.inner.lock();
        while !inner.is_quiet() && !inner.ended {
            let left = at_most.saturating_sub(watch.elapsed());
            if left.is_zero() {
                return false;
            }
            self.stir.wait_for(&mut inner, left);
        }
        true
    }
    /// A callback is about to be called; what is returned ends that.
    pub(crate) fn call(self: &Arc<Self>, who: String) -> Calling {
        let now = self.clock.now().mono;
        let mut inner = self.inner.lock();
        inner.calls += 1;
        let number = inner.calls;
        inner.call = Some(Call { number, who, since: now, named: false });
        // Told once, not for every call.
        if !std::mem::replace(&mut inner.watched, true) {
            self.timer.look_at_callback(number, now.after(HOLD_WARNING));
        }
        Calling(self.clone())
    }
    /// What became of the call that was under way when the timer was told; unless another one is to be watched, the timer rests.
    pub(crate) fn look(&self, was: u64) -> (Hold, Mono) {
        let mut inner = self.inner.lock();
        let waiting = inner.order.len();
        let (hold, since) = match &mut inner.call {
            Some(call) if call.number == was => {
                call.named = true;
                (Hold::Still(format!("{} ({waiting} more wait behind it)", call.who)), call.since)
            }
            Some(call) => (Hold::Another(call.number), call.since),
            None => (Hold::Over, Mono(0)),
        };
        inner.watched = matches!(hold, Hold::Another(_));
        (hold, since.after(HOLD_WARNING))
    }
    /// Everything that is still to be told is told, within what is `left` of the time to stop: the file is open until then. What is
    /// not told is told by the next process.
    pub(crate) fn stop(&self, left: Duration) {
        let patience = left.clamp(PATIENCE[0], PATIENCE[1]);
        // The thread that tells does not wait for itself, nor does the writer, which a callback may wait for.
        let waits = thread::current().name() != Some(THREAD) && !inside_transaction();
        let watch = Stopwatch::start();
        let mut inner = self.inner.lock();
        inner.stopping = true;
        self.stir.notify_all();
        while waits && !inner.ended {
            let left = patience.saturating_sub(watch.elapsed());
            if left.is_zero() {
                break;
            }
            self.stir.wait_for(&mut inner, left);
        }
        inner.abandoned = true;
    }

    /// What to tell next, and whether it may have been told before; waits for it. `None` at the end.
    fn next(&self, shared: &Shared) -> Option<(Word, Heard, bool)> {
        let mut inner = self.inner.lock();
        loop {
            if inner.abandoned {
                return None;
            }
            if let Some(turn) = inner.order.pop_front() {
                if let Some(next) = taken(&mut inner, turn) {
                    inner.calling = true;
                    return Some(next);
                }
            } else if inner.more {
                (inner.more, inner.calling) = (false, true);
                let handed = inner.handed.clone();
                drop(inner);
                let found = unheard(shared, &handed);
                inner = self.inner.lock();
                inner.calling = false;
                match found {
                    Ok((found, more)) => {
                        inner.more |= more;
                        found.into_iter().for_each(|(job, revision)| inner.add_letter(job, revision));
                    }
                    // Nothing is read any more: the next process tells it.
                    Err(StoreError::Closed | StoreError::Stopped(_)) => {}
                    Err(_) => {
                        inner.more = true;
                        self.pause(&mut inner);
                    }
                }
            } else if inner.stopping {
                return None;
            } else {
                self.stir.notify_all();
                self.stir.wait(&mut inner);
            }
        }
    }
    /// The storage fails, and will be healed: what could not be read is read in a while.
    fn pause(&self, inner: &mut MutexGuard<'_, Inner>) {
        if !inner.stopping {
            self.stir.wait_for(inner, READ_AGAIN);
        }
    }
    /// Keeps what was heard; what comes back meanwhile goes along with the next commit.
    fn keep(self: &Arc<Self>, shared: &Arc<Shared>) {
        let mut inner = self.inner.lock();
        // Whoever stops goes on to nothing else with which it could go along.
        if inner.heard.is_empty() || (inner.keeping > 0 && !inner.stopping) {
            return;
        }
        let heard = std::mem::take(&mut inner.heard);
        inner.keeping += 1;
        drop(inner);
        let op = KeepOp { teller: self.clone(), shared: shared.clone(), heard };
        if shared.submit(Lane::Outcome, Box::new(op)).is_err() {
            // The file is closed: the next process tells it again, and says that it may have been told.
            self.inner.lock().keeping -= 1;
            self.stir.notify_all();
        }
    }
    fn run(self: &Arc<Self>, shared: &Arc<Shared>, tell: &dyn Fn(Word, bool) -> Told) {
        while let Some((word, heard, again)) = self.next(shared) {
            let told = catch_unwind(AssertUnwindSafe(|| tell(word, again)));
            let told = told.unwrap_or_else(|panic| {
                events::warning(&format!("an alert could not be told: {}", panic_text(panic)));
                Told::Heard
            });
            let mut inner = self.inner.lock();
            inner.calling = false;
            match (told, heard) {
                (Told::Heard, heard) => inner.heard.push(heard),
                (Told::Later, Heard::Letter(job, revision)) => {
                    inner.handed.remove(&(job, revision));
                    inner.more = true;
                    self.pause(&mut inner);
                }
                (Told::Later, Heard::Said(..)) | (Told::Not, _) => {}
            }
            drop(inner);
            self.keep(shared);
        }
        // What came back while an earlier commit was on its way must not be left behind.
        self.keep(shared);
        self.inner.lock().ended = true;
        self.stir.notify_all();
    }
}

/// Takes one out of its turn.
fn taken(inner: &mut Inner, turn: Turn) -> Option<(Word, Heard, bool)> {
    match turn {
        Turn::Letter(job) => {
            let revision = inner.letters.remove(&job)?;
            let again = inner.left.remove(&(job, revision));
            inner.handed.insert((job, revision));
            Some((Word::Letter(job, revision), Heard::Letter(job, revision), again))
        }
        Turn::Said(subject) => {
            let (said, again) = inner.said.remove(&subject)?;
            let heard = Heard::Said(subject, said.number);
            Some((Word::Said(said), heard, again))
        }
    }
}

/// Letters of the file that nobody was told of, but for those that were handed out, and whether there are more.
fn unheard(shared: &Shared, handed: &HashSet<(JobId, u32)>) -> Result<(Vec<(JobId, u32)>, bool), StoreError> {
    let mut after = None;
    loop {
        let page = shared.store.read(|v| v.untold(after, MOST_LETTERS))?;
        let whole = page.len() < MOST_LETTERS;
        after = page.last().map(|(job, _)| *job);
        let found: Vec<_> = page.into_iter().filter(|one| !handed.contains(one)).collect();
        if whole || !found.is_empty() {
            return Ok((found, !whole));
        }
    }
}

/// A callback is being called, until this is dropped.
pub(crate) struct Calling(Arc<Teller>);

impl Drop for Calling {
    fn drop(&mut self) {
        self.0.inner.lock().call = None;
    }
}

/// What the file says is still to be told.
#[derive(Default)]
pub(crate) struct Owed {
    letters: Vec<(JobId, u32)>,
    said: Vec<Said>,
}

impl Owed {
    /// All of it; of letters that nobody can have been told of (not `tells`) it is enough to know whether there are any.
    pub(crate) fn read(store: &Store, tells: bool) -> Result<Self, StoreError> {
        let mut owed = Self { letters: Vec::new(), said: store.read(standing)? };
        loop {
            let after = owed.letters.last().map(|(job, _)| *job);
            let page = store.read(|v| v.untold(after, MOST_LETTERS))?;
            let whole = page.len() < MOST_LETTERS;
            owed.letters.extend(page);
            if whole || !tells {
                return Ok(owed);
            }
        }
    }
}

/// What the rules said last, about each subject of which they still speak, or whose end nobody heard.
pub(crate) fn standing(v: &View<'_>) -> Result<Vec<Said>, StoreError> {
    let mut said = Vec::new();
    for name in v.meta_names(SAID)? {
        // A damaged row hides none of the others; what it is about is said anew when it changes.
        said.extend(read(StoreError::readable(v.meta(&name))?.as_deref()));
    }
    Ok(said)
}

/// Notes, once for a file, that somebody is told from now on.
pub(crate) struct TellsOp {
    book: Book,
    answer: Answer<Result<(), StoreError>>,
}

impl TellsOp {
    pub(crate) fn new(book: Book, answer: Answer<Result<(), StoreError>>) -> Self {
        Self { book, answer }
    }
}

impl Op for TellsOp {
    fn run(&mut self, tx: &mut Write<'_>) -> Result<(), StoreError> {
        let bytes = serde_json::to_vec(&self.book).map_err(|e| StoreError::Bug(e.to_string()))?;
        tx.put_meta(ALERTS, &bytes)
    }
    fn settle(self: Box<Self>, result: Result<(), StoreError>) {
        self.answer.send(result);
    }
}

/// Says in the file that something was heard: a letter, or what a rule said, unless something newer is owed by now.
struct KeepOp {
    teller: Arc<Teller>,
    shared: Arc<Shared>,
    heard: Vec<Heard>,
}

impl Op for KeepOp {
    fn run(&mut self, tx: &mut Write<'_>) -> Result<(), StoreError> {
        for heard in &self.heard {
            match heard {
                Heard::Letter(job, revision) => tx.told(*job, *revision)?,
                Heard::Said(subject, number) => {
                    let name = format!("{SAID}{subject}");
                    let row = StoreError::readable(tx.meta(&name))?;
                    let Some(mut said) = read(row.as_deref()) else { continue };
                    if said.number == *number {
                        said.heard = true;
                        put(tx, &name, &said)?;
                    }
                }
            }
        }
        Ok(())
    }
    fn settle(self: Box<Self>, result: Result<(), StoreError>) {
        let Self { teller, shared, heard } = *self;
        let mut inner = teller.inner.lock();
        inner.keeping -= 1;
        match result {
            Ok(()) => heard.iter().for_each(|one| match one {
                Heard::Letter(job, revision) => {
                    inner.handed.remove(&(*job, *revision));
                }
                // That it is over waits until somebody has heard of it.
                Heard::Said(subject, _) if subject.starts_with(AlertRule::SameJobFailing.as_str()) => {
                    teller.timer.look_at_alerts(teller.clock.now().mono);
                }
                Heard::Said(..) => {}
            }),
            Err(StoreError::Closed | StoreError::Stopped(_)) => {}
            // It goes along with what is heard next.
            Err(_) => {
                inner.heard.extend(heard);
                return;
            }
        }
        teller.stir.notify_all();
        drop(inner);
        teller.keep(&shared);
    }
}

/// What a rule said, as the file has it.
pub(crate) fn read(row: Option<&[u8]>) -> Option<Said> {
    row.and_then(|bytes| serde_json::from_slice(bytes).ok())
}

/// Keeps what a rule said; what is over and heard is forgotten.
pub(crate) fn put(tx: &mut Write<'_>, name: &str, said: &Said) -> Result<(), StoreError> {
    if said.over && said.heard {
        return tx.remove_meta(name);
    }
    let bytes = serde_json::to_vec(said).map_err(|e| StoreError::Bug(e.to_string()))?;
    tx.put_meta(name, &bytes)
}

/// Starts the thread that calls the app. Nobody joins it: an app's callback may take as long as it likes.
pub(crate) fn spawn(
    teller: Arc<Teller>,
    shared: Arc<Shared>,
    tell: impl Fn(Word, bool) -> Told + Send + 'static,
) -> std::io::Result<()> {
    #[expect(clippy::disallowed_methods, reason = "the engine owns the threads")]
    let thread = thread::Builder::new().name(THREAD.into()).spawn(move || teller.run(&shared, &tell));
    thread.map(drop)
}
