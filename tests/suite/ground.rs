//! The ground the suites about running stand on: a disk and a clock by hand, signs by which handlers and tests wait for each
//! other, the lines of every attempt, and a recount of the file when everything is over.
//!
//! Nothing here waits for luck: whoever waits, waits for a fact, and gives up loudly after a minute.

#![allow(dead_code, reason = "shared: a suite that needs less of it is no mistake")]

use onceward::model::id::JobId;
use onceward::model::job::{JobRecord, JobState};
use onceward::model::time::Wall;
use onceward::observe::AttemptLine;
use onceward::store::{Place, Store, StoreOptions};
use onceward::testkit::{self, ManualClock, SimDisk};
use onceward::{Builder, Jobs, Sink, State};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Poll, Waker};
use std::thread::JoinHandle;
use std::time::Duration;

pub(crate) const SECOND: Duration = Duration::from_secs(1);
pub(crate) const MINUTE: Duration = Duration::from_secs(60);
pub(crate) const HOUR: Duration = Duration::from_secs(3600);
pub(crate) const DAY: Duration = Duration::from_secs(24 * 3600);
/// Longer than any step may take on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Declares a kind of job with a key and a number: `kind!(Plain = "plain")`, with more items of the trait in braces.
macro_rules! kind {
    ($name:ident = $kind:literal $({ $($items:tt)* })?) => {
        #[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
        pub(crate) struct $name {
            pub(crate) key: String,
            pub(crate) n: u64,
        }
        impl $name {
            #[allow(dead_code, reason = "some kinds are only ever built by hand")]
            pub(crate) fn new(key: &str, n: u64) -> Self {
                Self { key: key.to_owned(), n }
            }
        }
        impl onceward::Job for $name {
            const KIND: &'static str = $kind;
            fn key(&self) -> onceward::JobKey {
                self.key.as_str().into()
            }
            $($($items)*)?
        }
    };
}
pub(crate) use kind;

/// Declares a request of an order to a provider: `request!(Charge "charge" Risk::Charge, Recovery::ask())`, with more items of the
/// trait behind it.
macro_rules! request {
    ($name:ident $text:literal $risk:expr, $recovery:expr $(, $item:item)*) => {
        #[derive(serde::Serialize, serde::Deserialize)]
        struct $name {
            order: u64,
        }
        impl onceward::Effect for $name {
            type Result = String;
            const NAME: &'static str = $text;
            const RISK: onceward::Risk = $risk;
            fn says(&self) -> String {
                format!("{} {}", $text, self.order)
            }
            fn recovery() -> onceward::Recovery {
                $recovery
            }
            $($item)*
        }
    };
}
pub(crate) use request;

/// A request whose result is what a person reads off the provider's page.
macro_rules! looked_up {
    ($($request:tt)*) => {
        $crate::ground::request!($($request)*, fn from_reference(&self, reference: &str) -> Option<String> {
            Some(reference.to_owned())
        });
    };
}
pub(crate) use looked_up;

/// Declares the order that makes such requests: `order!([Charge, Mail] Policy::default().success("..").review(".."))`.
macro_rules! order {
    ([$($request:ident),+] $policy:expr) => {
        #[derive(serde::Serialize, serde::Deserialize)]
        struct Order {
            id: u64,
        }
        impl onceward::Job for Order {
            const KIND: &'static str = "order";
            fn key(&self) -> onceward::JobKey {
                format!("ord_{}", self.id).into()
            }
            fn title(&self) -> String {
                format!("Order {}", self.id)
            }
            fn effects() -> Vec<onceward::EffectCard> {
                vec![$(<$request as onceward::Effect>::card()),+]
            }
            fn policy() -> onceward::Policy {
                $policy
            }
        }
    };
}
pub(crate) use order;

/// Disk, clock and machine: what survives a process.
pub(crate) struct Ground {
    pub(crate) disk: SimDisk,
    pub(crate) clock: ManualClock,
    pub(crate) signs: Signs,
    /// The lines of every process.
    pub(crate) lines: Lines,
    pub(crate) boot: u8,
    pub(crate) nonce: u64,
}

impl Ground {
    pub(crate) fn new() -> Self {
        Self {
            disk: SimDisk::new(),
            clock: ManualClock::default(),
            signs: Signs::default(),
            lines: Lines::default(),
            boot: 1,
            nonce: 1,
        }
    }
    /// A queue of the process that runs now, two threads wide.
    pub(crate) fn builder(&self) -> Builder {
        Jobs::on_disk(Arc::new(self.disk.clone()))
            .clock(Arc::new(self.clock.clone()))
            .process([self.boot; 16], self.nonce)
            .seed(self.nonce)
            .workers(2)
            .sink(self.lines.clone())
    }
    /// The process dies as it stands. The dead one winds up on a disk that nobody reads: its handlers are let go, what they still
    /// say is not heard. The next queue is another process of the same boot.
    pub(crate) fn kill(&mut self, jobs: Jobs) {
        let disk = self.disk.fork();
        let lines = self.lines.all();
        self.signs.end();
        drop(jobs.shutdown(PATIENCE));
        self.disk = disk;
        self.lines.keep(lines);
        self.signs = Signs::default();
        self.nonce += 1;
    }
    /// Lets everything run that can run now.
    #[track_caller]
    pub(crate) fn settle(&self, jobs: &Jobs) {
        testkit::run_until_idle(jobs).unwrap();
    }
    /// Time passes, and everything that becomes due runs.
    #[track_caller]
    pub(crate) fn pass(&self, jobs: &Jobs, time: Duration) {
        self.clock.advance(time);
        self.settle(jobs);
    }
    /// Shuts down, opens the file by itself and recounts it.
    #[track_caller]
    pub(crate) fn close(&self, jobs: Jobs) -> Recount {
        jobs.shutdown(PATIENCE).unwrap();
        self.recount()
    }
    /// Opens the closed file by itself: every job is in exactly the index that its state says, and its claims are its attempts
    /// and those given back.
    #[track_caller]
    pub(crate) fn recount(&self) -> Recount {
        let disk = Arc::new(self.disk.fork());
        let (store, _) = Store::open(StoreOptions::new(Place::Disk(disk), Arc::new(ManualClock::default()))).unwrap();
        let recount = store.read(|v| Ok(Recount::of(v))).unwrap();
        store.close().unwrap();
        recount
    }
}

/// Ids that nobody has, one after the other, until the last job counts as found.
const GAP: u64 = 20_000;

/// What the file says when nobody has it open.
pub(crate) struct Recount {
    pub(crate) jobs: BTreeMap<JobId, JobRecord>,
    keys: HashMap<String, JobId>,
}

impl Recount {
    fn of(v: &onceward::store::View<'_>) -> Self {
        let timers: HashSet<_> = v.due(Wall(u64::MAX), usize::MAX).unwrap().into_iter().collect();
        let running: HashSet<_> = v.running().unwrap().into_iter().collect();
        let letters: HashSet<_> = v.letters(None, usize::MAX).unwrap().into_iter().map(|(id, _)| id).collect();
        for (id, _) in v.untold(None, usize::MAX).unwrap() {
            assert!(letters.contains(&id), "somebody is to be told of a letter that is not there: job {id}");
        }
        let compensating: HashSet<_> = v.compensating().unwrap().into_iter().collect();
        let mut ready = HashSet::new();
        for (kind, _) in v.kinds().unwrap() {
            ready.extend(v.ready(kind, usize::MAX).unwrap().into_iter().map(|(_, ticket, id)| (kind, ticket, id)));
        }
        let (mut jobs, mut keys) = (BTreeMap::new(), HashMap::new());
        let (mut n, mut missed) = (0, 0);
        let mut indexed = 0;
        while missed < GAP {
            n += 1;
            missed += 1;
            let id = JobId::from_number(n);
            let Some(r) = v.record(id).unwrap() else { continue };
            missed = 0;
            assert_eq!(u64::from(r.claims), u64::from(r.attempts) + r.given_back.sum(), "claims of {id}: {r:#?}");
            let found = match &r.state {
                JobState::Ready { ticket } => ready.contains(&(r.kind, *ticket, id)),
                JobState::Delayed { due, .. } | JobState::Waiting { due, .. } => timers.contains(&(*due, id)),
                JobState::Running { token, .. } => running.contains(&(id, *token)),
                JobState::NeedsDecision | JobState::Dead => letters.contains(&id),
                JobState::Compensating { .. } => compensating.contains(&id),
                JobState::Ended { .. } => false,
            };
            let over = matches!(r.state, JobState::Ended { .. });
            assert!(found || over, "{id} is in no index of its state: {r:#?}");
            indexed += usize::from(found);
            keys.insert(v.job(id).unwrap().map(|row| row.key.to_string()).unwrap_or_default(), id);
            jobs.insert(id, r);
        }
        let rows = timers.len() + running.len() + letters.len() + ready.len() + compensating.len();
        assert_eq!(rows, indexed, "index rows without a job in that state");
        Self { jobs, keys }
    }
    /// The newest job with this key.
    #[track_caller]
    pub(crate) fn job(&self, key: &str) -> &JobRecord {
        &self.jobs[&self.keys[key]]
    }
    pub(crate) fn claims(&self) -> u64 {
        self.jobs.values().map(|r| u64::from(r.claims)).sum()
    }
    pub(crate) fn attempts(&self) -> u64 {
        self.jobs.values().map(|r| u64::from(r.attempts)).sum()
    }
}

/// The job's state, with its past if it is another one.
#[track_caller]
pub(crate) fn is(jobs: &Jobs, id: JobId, state: State) {
    let now = jobs.state(id).unwrap();
    let letter = jobs.dead_letter(id).ok().map(|l| (l.headline(), l.error().to_owned()));
    assert_eq!(now, state, "letter: {letter:?}, history: {:#?}", jobs.history(id).unwrap());
}

/// Signs by which threads and tasks of a test wait for each other; clones are the same.
#[derive(Clone, Default)]
pub(crate) struct Signs(Arc<(Mutex<Said>, Condvar)>);

#[derive(Default)]
struct Said {
    words: Vec<String>,
    open: HashSet<String>,
    ended: bool,
    wakers: Vec<Waker>,
}

impl Signs {
    fn lock(&self) -> MutexGuard<'_, Said> {
        self.0.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
    fn stir(&self, f: impl FnOnce(&mut Said)) {
        let wakers = {
            let mut said = self.lock();
            f(&mut said);
            std::mem::take(&mut said.wakers)
        };
        self.0.1.notify_all();
        wakers.into_iter().for_each(Waker::wake);
    }
    /// Says a word; whoever waits for it goes on.
    pub(crate) fn say(&self, word: impl Into<String>) {
        let word = word.into();
        self.stir(|s| s.words.push(word));
    }
    /// Everything that was said.
    pub(crate) fn words(&self) -> Vec<String> {
        self.lock().words.clone()
    }
    /// How often a word was said.
    pub(crate) fn times(&self, word: &str) -> usize {
        self.lock().words.iter().filter(|w| *w == word).count()
    }
    /// Waits until a word was said `n` times.
    #[track_caller]
    pub(crate) fn until(&self, word: &str, n: usize) {
        let mut said = self.lock();
        while said.words.iter().filter(|w| *w == word).count() < n {
            let (next, waited) = self.0.1.wait_timeout(said, PATIENCE).unwrap();
            assert!(!waited.timed_out(), "waited in vain for {word:?} ({n}); said: {:?}", next.words);
            said = next;
        }
    }
    /// Opens a door for everybody, for good.
    pub(crate) fn open(&self, door: &str) {
        self.stir(|s| {
            s.open.insert(door.to_owned());
        });
    }
    /// The process ends: every door is open.
    pub(crate) fn end(&self) {
        self.stir(|s| s.ended = true);
    }
    /// Says the door's name and waits until it is opened.
    pub(crate) fn wait(&self, door: &str) {
        self.say(door);
        let mut said = self.lock();
        while !said.ended && !said.open.contains(door) {
            said = self.0.1.wait(said).unwrap();
        }
    }
    /// The same, awaited.
    pub(crate) fn wait_async(&self, door: &str) -> impl Future<Output = ()> + Send + use<> {
        self.say(door);
        AtDoor { signs: self.clone(), door: door.to_owned() }
    }
}

struct AtDoor {
    signs: Signs,
    door: String,
}

impl Future for AtDoor {
    type Output = ();
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let mut said = self.signs.lock();
        if said.ended || said.open.contains(&self.door) {
            return Poll::Ready(());
        }
        said.wakers.push(cx.waker().clone());
        Poll::Pending
    }
}

/// The log lines, kept.
#[derive(Clone, Default)]
pub(crate) struct Lines(Arc<Mutex<Vec<AttemptLine>>>);

impl Sink for Lines {
    fn attempt(&self, line: &AttemptLine) {
        self.0.lock().unwrap().push(line.clone());
    }
}

impl Lines {
    pub(crate) fn all(&self) -> Vec<AttemptLine> {
        self.0.lock().unwrap().clone()
    }
    /// The lines of the job with this key.
    pub(crate) fn of(&self, key: &str) -> Vec<AttemptLine> {
        self.all().into_iter().filter(|l| l.job == key).collect()
    }
    fn keep(&self, lines: Vec<AttemptLine>) {
        *self.0.lock().unwrap() = lines;
    }
}

/// A thread of a test, or one that calls the queue from outside.
#[expect(clippy::disallowed_methods, reason = "a test plays the threads of an app")]
pub(crate) fn thread<T: Send + 'static>(f: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    std::thread::Builder::new().spawn(f).unwrap()
}

/// Calls from `n` threads at once; what each returned.
pub(crate) fn from_threads<T: Send + 'static>(n: usize, f: impl Fn(usize) -> T + Send + Sync + 'static) -> Vec<T> {
    let f = Arc::new(f);
    let start = Arc::new(std::sync::Barrier::new(n));
    let threads: Vec<_> = (0..n)
        .map(|i| {
            let (f, start) = (f.clone(), start.clone());
            thread(move || {
                start.wait();
                f(i)
            })
        })
        .collect();
    threads.into_iter().map(|t| t.join().unwrap()).collect()
}

/// The warnings and attempts of every queue in this process, as text: `message field=value ..`.
#[derive(Clone)]
pub(crate) struct Heard(Arc<(Mutex<Vec<String>>, Condvar)>);

/// Listens from now on (at the latest); everybody hears the same.
pub(crate) fn listen() -> Heard {
    static HEARD: OnceLock<Heard> = OnceLock::new();
    HEARD
        .get_or_init(|| {
            let heard = Heard(Arc::default());
            tracing::subscriber::set_global_default(heard.clone()).unwrap();
            heard
        })
        .clone()
}

impl Heard {
    fn find(&self, parts: &[&str]) -> Option<String> {
        let all = self.0.0.lock().unwrap();
        all.iter().find(|text| parts.iter().all(|p| text.contains(p))).cloned()
    }
    /// Whether an event with all these parts was raised.
    pub(crate) fn has(&self, parts: &[&str]) -> bool {
        self.find(parts).is_some()
    }
    /// How many events with all these parts were raised.
    pub(crate) fn count(&self, parts: &[&str]) -> usize {
        self.0.0.lock().unwrap().iter().filter(|text| parts.iter().all(|p| text.contains(p))).count()
    }
    /// Waits for an event with all these parts.
    #[track_caller]
    pub(crate) fn until(&self, parts: &[&str]) -> String {
        let is = |text: &&String| parts.iter().all(|p| text.contains(p));
        let mut all = self.0.0.lock().unwrap();
        loop {
            if let Some(text) = all.iter().find(is) {
                return text.clone();
            }
            let (next, waited) = self.0.1.wait_timeout(all, PATIENCE).unwrap();
            all = next;
            assert!(!waited.timed_out(), "waited in vain for an event with {parts:?}");
        }
    }
}

struct Text(String);

impl tracing::field::Visit for Text {
    fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
        use std::fmt::Write;
        if field.name() == "message" {
            self.0.insert_str(0, &format!("{value:?}"));
        } else {
            write!(self.0, " {}={value:?}", field.name()).unwrap();
        }
    }
    fn record_str(&mut self, field: &tracing::field::Field, value: &str) {
        use std::fmt::Write;
        write!(self.0, " {}={value}", field.name()).unwrap();
    }
}

impl tracing::Subscriber for Heard {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        metadata.target() == "onceward"
    }
    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }
    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn event(&self, event: &tracing::Event<'_>) {
        let mut text = Text(String::new());
        event.record(&mut text);
        self.0.0.lock().unwrap().push(text.0);
        self.0.1.notify_all();
    }
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}
