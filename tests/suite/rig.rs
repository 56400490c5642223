//! What the suites share: a world in which a queue runs, dies and is opened again, a provider whose ledger knows what really
//! happened, and one small kind of job that does what a script says.
//!
//! Nothing here waits for luck: whoever waits, waits for a fact, and gives up loudly after a minute.

#![allow(dead_code, reason = "shared: a suite that needs less of it is no mistake")]

pub(crate) mod order;
pub(crate) mod provider;
pub(crate) mod stage;

use onceward::observe::AttemptLine;
use onceward::testkit::{self, ManualClock, SimDisk};
use onceward::{Builder, Jobs, Sink, State};
use stage::{Life, Stage};
use std::sync::Arc;
use std::time::Duration;

pub(crate) const SECOND: Duration = Duration::from_secs(1);
pub(crate) const MINUTE: Duration = Duration::from_secs(60);
pub(crate) const HOUR: Duration = Duration::from_secs(3600);
pub(crate) const DAY: Duration = Duration::from_secs(24 * 3600);
/// Longer than any step may take on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// How a process ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Crash {
    /// Killed: what it wrote stays.
    Kill,
    /// The power is cut: what was not synced is lost, but for the part that this seed keeps.
    Power(u64),
}

/// Disk, clock and machine: what survives a process.
pub(crate) struct World {
    pub(crate) disk: SimDisk,
    pub(crate) clock: ManualClock,
    pub(crate) stage: Stage,
    /// The process that runs now.
    pub(crate) life: Life,
    /// One line per attempt, of all processes.
    pub(crate) lines: Lines,
    boot: u8,
    nonce: u64,
}

impl World {
    pub(crate) fn new() -> Self {
        let stage = Stage::default();
        Self {
            disk: SimDisk::new(),
            clock: ManualClock::default(),
            life: stage.life(),
            lines: Lines { stage: stage.clone(), all: Arc::default() },
            stage,
            boot: 1,
            nonce: 1,
        }
    }
    /// A queue of the process that runs now, four threads wide.
    pub(crate) fn builder(&self) -> Builder {
        Jobs::on_disk(Arc::new(self.disk.clone()))
            .clock(Arc::new(self.clock.clone()))
            .process([self.boot; 16], self.nonce)
            .seed(self.nonce)
            .workers(4)
            .key_scope("the shop of the tests")
            .sink(self.lines.clone())
    }
    /// The process ends as it stands: from here on its handlers and its provider calls do nothing more in this world. The next
    /// queue is another process, after a power cut on another boot.
    pub(crate) fn crash(&mut self, jobs: Jobs, how: Crash) {
        let disk = match how {
            Crash::Kill => self.disk.fork(),
            Crash::Power(seed) => self.disk.fork_unpowered(seed),
        };
        self.life.end();
        // The dead process winds up on a disk of its own, which nobody reads.
        drop(jobs.shutdown(PATIENCE));
        self.disk = disk;
        self.nonce += 1;
        if let Crash::Power(_) = how {
            self.boot += 1;
        }
        self.life = self.stage.life();
    }
    /// Lets everything run that can run now.
    pub(crate) fn settle(&self, jobs: &Jobs) {
        testkit::run_until_idle(jobs).unwrap();
    }
    /// Time passes, and everything that becomes due runs.
    pub(crate) fn pass(&self, jobs: &Jobs, time: Duration) {
        self.clock.advance(time);
        self.settle(jobs);
    }
    /// Time passes until the n-th log line (from 1) is there. In steps: a lease is given a second more for every request of it
    /// that is not answered yet.
    pub(crate) fn pass_to_line(&self, n: usize, step: Duration) -> AttemptLine {
        self.stage.until(&format!("log line {n}, while time passes"), || {
            let line = self.lines.all().get(n - 1).cloned();
            if line.is_none() {
                self.clock.advance(step);
            }
            line
        })
    }
    /// An instant by the world's calendar.
    pub(crate) fn clock_after(&self, time: Duration) -> std::time::SystemTime {
        testkit::Clock::now(&self.clock).wall.to_system() + time
    }
    /// When the job comes back by itself, from now on: the clock is moved on, up to `at_most`, in steps of `step`.
    pub(crate) fn pass_until(&self, jobs: &Jobs, step: Duration, at_most: Duration, is: impl Fn() -> bool) -> Duration {
        let mut passed = Duration::ZERO;
        while !is() {
            assert!(passed < at_most, "nothing came of it within {at_most:?}");
            self.pass(jobs, step);
            passed += step;
        }
        passed
    }
}

/// The log lines, kept.
#[derive(Clone)]
pub(crate) struct Lines {
    stage: Stage,
    all: Arc<std::sync::Mutex<Vec<AttemptLine>>>,
}

impl Sink for Lines {
    fn attempt(&self, line: &AttemptLine) {
        self.all.lock().unwrap().push(line.clone());
        self.stage.stir();
    }
}

impl Lines {
    pub(crate) fn all(&self) -> Vec<AttemptLine> {
        self.all.lock().unwrap().clone()
    }
    /// Waits for the n-th line (from 1).
    pub(crate) fn wait(&self, n: usize) -> AttemptLine {
        self.stage.until(&format!("log line {n}"), || self.all.lock().unwrap().get(n - 1).cloned())
    }
}

/// The job's state.
#[track_caller]
pub(crate) fn is(jobs: &Jobs, id: onceward::JobId, state: State) {
    let now = jobs.state(id).unwrap();
    let letter = jobs.dead_letter(id).ok().map(|l| (l.headline(), l.error().to_owned()));
    assert_eq!(now, state, "letter: {letter:?}, history: {:#?}", jobs.history(id).unwrap());
}

/// Waits for a future on this thread.
pub(crate) fn block_on<T>(f: impl Future<Output = T>) -> T {
    struct Unpark(std::thread::Thread);
    impl std::task::Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Arc::new(Unpark(std::thread::current())).into();
    let mut cx = std::task::Context::from_waker(&waker);
    let mut f = std::pin::pin!(f);
    loop {
        match f.as_mut().poll(&mut cx) {
            std::task::Poll::Ready(t) => return t,
            std::task::Poll::Pending => std::thread::park(),
        }
    }
}

/// Awaits two futures at the same time.
pub(crate) async fn join<A, B>(a: impl Future<Output = A>, b: impl Future<Output = B>) -> (A, B) {
    use std::task::Poll;
    let (mut a, mut b) = (std::pin::pin!(a), std::pin::pin!(b));
    let (mut x, mut y) = (None, None);
    std::future::poll_fn(|cx| {
        if x.is_none()
            && let Poll::Ready(t) = a.as_mut().poll(cx)
        {
            x = Some(t);
        }
        if y.is_none()
            && let Poll::Ready(t) = b.as_mut().poll(cx)
        {
            y = Some(t);
        }
        match (x.take(), y.take()) {
            (Some(x), Some(y)) => Poll::Ready((x, y)),
            (p, q) => {
                (x, y) = (p, q);
                Poll::Pending
            }
        }
    })
    .await
}
