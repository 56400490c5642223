//! A pretend broker that remembers everything it was given, and a world in which queues that publish to it live and die.

use super::super::ground::{Ground, MINUTE, PATIENCE};
use onceward::testkit::SimDisk;
use onceward::{Backoff, Builder, Fail, Jobs, Message, Outcome, Topic};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

/// One minute, then five each time.
pub(crate) fn steps() -> Topic {
    Topic::default().backoff(Backoff::steps([MINUTE, 5 * MINUTE]))
}

/// What the other side has, and what it refuses; clones are the same broker.
#[derive(Clone, Default)]
pub(crate) struct Broker(Arc<(Mutex<Inner>, Condvar)>);

#[derive(Default)]
struct Inner {
    got: Vec<Message>,
    tries: HashMap<String, usize>,
    fails: HashMap<String, (usize, fn() -> Fail)>,
}

impl Broker {
    /// The next `times` deliveries of this message fail.
    pub(crate) fn fail(&self, id: &str, times: usize, how: fn() -> Fail) {
        self.0.0.lock().unwrap().fails.insert(id.to_owned(), (times, how));
    }
    /// Everything that arrived, in order.
    pub(crate) fn got(&self) -> Vec<Message> {
        self.0.0.lock().unwrap().got.clone()
    }
    pub(crate) fn ids(&self) -> Vec<String> {
        self.got().into_iter().map(|m| m.id).collect()
    }
    /// Waits until so many messages have arrived.
    #[track_caller]
    pub(crate) fn until(&self, n: usize) {
        let inner = self.0.0.lock().unwrap();
        let (inner, waited) = self.0.1.wait_timeout_while(inner, PATIENCE, |inner| inner.got.len() < n).unwrap();
        assert!(!waited.timed_out(), "only {} of {n} messages arrived", inner.got.len());
    }
    /// How often this message was handed over.
    pub(crate) fn tries(&self, id: &str) -> usize {
        self.0.0.lock().unwrap().tries.get(id).copied().unwrap_or(0)
    }
    pub(crate) fn take(&self, message: &Message) -> Outcome {
        let mut inner = self.0.0.lock().unwrap();
        *inner.tries.entry(message.id.clone()).or_default() += 1;
        if let Some((left, how)) = inner.fails.get_mut(&message.id)
            && *left > 0
        {
            *left -= 1;
            return Err(how());
        }
        inner.got.push(message.clone());
        self.0.1.notify_all();
        Ok(())
    }
}

/// Disk, clock and broker: what survives a process.
pub(crate) struct World {
    pub(crate) ground: Ground,
    pub(crate) broker: Broker,
    alive: Arc<AtomicBool>,
}

impl World {
    pub(crate) fn new() -> Self {
        Self { ground: Ground::new(), broker: Broker::default(), alive: Arc::new(AtomicBool::new(true)) }
    }
    /// A queue that publishes these topics to the broker, for as long as its process lives.
    pub(crate) fn builder(&self, topics: &[&str]) -> Builder {
        topics.iter().fold(self.ground.builder(), |b, topic| b.publisher(*topic, self.publisher()))
    }
    pub(crate) fn publisher(&self) -> impl Fn(&Message) -> Outcome + Send + Sync + 'static {
        let (broker, alive) = (self.broker.clone(), self.alive.clone());
        move |message: &Message| {
            if !alive.load(Ordering::SeqCst) {
                return Err(Fail::transient("this process is dead"));
            }
            broker.take(message)
        }
    }
    pub(crate) fn start(&self, topics: &[&str]) -> Jobs {
        self.builder(topics).start().unwrap()
    }
    pub(crate) fn start_with(&self, topics: &[&str], f: impl FnOnce(Builder) -> Builder) -> Jobs {
        f(self.builder(topics)).start().unwrap()
    }
    #[track_caller]
    pub(crate) fn settle(&self, jobs: &Jobs) {
        self.ground.settle(jobs);
    }
    /// Time passes when nothing is under way: a call that has only just begun must not look like one that hangs.
    #[track_caller]
    pub(crate) fn pass(&self, jobs: &Jobs, time: Duration) {
        self.ground.settle(jobs);
        self.ground.pass(jobs, time);
    }
    /// The process dies as it stands: what it still does reaches nobody.
    pub(crate) fn kill(&mut self, jobs: Jobs) {
        let disk = self.ground.disk.fork();
        self.crash(jobs, disk);
    }
    /// The power is cut: what was not synced is lost, but for the part that this seed keeps.
    pub(crate) fn cut_power(&mut self, jobs: Jobs, seed: u64) {
        let disk = self.ground.disk.fork_unpowered(seed);
        self.ground.boot += 1;
        self.crash(jobs, disk);
    }
    fn crash(&mut self, jobs: Jobs, disk: SimDisk) {
        self.alive.store(false, Ordering::SeqCst);
        self.ground.kill(jobs);
        self.ground.disk = disk;
        self.alive = Arc::new(AtomicBool::new(true));
    }
}
