//! The app's own handlers, once for every place where the process can die: after each change of the disk, by a kill and by a power
//! cut; and with the lease gone, the machine asleep or the calendar wrong inside every call of a provider.
//!
//! Keeps the promise that whoever embeds the queue can try the same on their own code. One life is recorded with everything that
//! providers did; each later one begins on what a crash would have left of the file, in a world that has the past up to that moment.

use super::provider::{Disturbance, Entry, Ledger, Provider};
use super::run_until_idle;
use crate::builder::Builder;
use crate::clock::{Clock, ManualClock};
use crate::engine::core::Core;
use crate::error::Error;
use crate::handler::effect::panic_text;
use crate::jobs::Jobs;
use crate::model::time::{Wall, millis};
use crate::store::disk::{CrashPoint, SimDisk, crash_points};
use parking_lot::Mutex;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// The first calendar reading: 2026-01-01T00:00:00Z.
const START: Wall = Wall(1_767_225_600_000);
/// A life has this long, by its own clock, to come to an end or to ask a person.
const LONGEST: Duration = Duration::from_secs(400 * 24 * 3_600);
/// Longer than any lease.
const ASLEEP: Duration = Duration::from_secs(3 * 3_600);
const PATIENCE: Duration = Duration::from_secs(60);
/// Calls that ended are remembered for the whole process of the test: no life may seem to be earlier than one before it.
static STOPWATCH: AtomicU64 = AtomicU64::new(1);

/// One life of the app: its disk, its clock, and the world around it.
pub struct Scene {
    disk: SimDisk,
    clock: ManualClock,
    ledger: Ledger,
    process: ([u8; 16], u64),
    naive: bool,
    core: Mutex<Weak<Core>>,
}

impl Scene {
    /// In place of `Jobs::open(path)`: a builder over the disk and the clock of this life. Register everything as the app does.
    pub fn open(&self) -> Builder {
        let (boot, nonce) = self.process;
        let builder =
            Jobs::on_disk(Arc::new(self.disk.clone())).clock(Arc::new(self.clock.clone())).process(boot, nonce).seed(7);
        builder.workers(2).cache_bytes(1 << 20).naive(self.naive)
    }
    /// The pretend provider of this name: it remembers what it did in the lives before.
    pub fn provider(&self, name: &str) -> Provider {
        self.ledger.provider(name)
    }
    /// What the calendar shows.
    pub fn now(&self) -> Wall {
        self.clock.now().wall
    }
    /// Lets time pass, and everything happen that is due by then.
    ///
    /// # Errors
    /// As [`run_until_idle`].
    pub fn pass(&self, jobs: &Jobs, time: Duration) -> Result<(), Error> {
        self.ledger.time(Wall(self.now().0.saturating_add(millis(time))));
        self.clock.advance(time);
        run_until_idle(jobs)
    }

    fn new(past: Vec<Entry>, disk: SimDisk, process: ([u8; 16], u64), naive: bool) -> Self {
        let now =
            past.iter().rev().find_map(|e| if let Entry::Time(at) = e { Some(*at) } else { None }).unwrap_or(START);
        let clock = ManualClock::with_stopwatch(now, STOPWATCH.load(Ordering::Relaxed));
        let ledger = Ledger::after(past, clock.clone(), Some(disk.clone()));
        Self { disk, clock, ledger, process, naive, core: Mutex::default() }
    }
    /// Until nothing happens any more by itself.
    fn settle(&self, jobs: &Jobs) -> Result<(), String> {
        let (mut step, mut passed) = (Duration::from_secs(30), Duration::ZERO);
        run_until_idle(jobs).map_err(|e| e.to_string())?;
        while going_on(jobs)? {
            if passed > LONGEST {
                return Err(format!("after {} days of its clock something still goes on", passed.as_secs() / 86_400));
            }
            self.pass(jobs, step).map_err(|e| e.to_string())?;
            passed += step;
            step = (step * 2).min(Duration::from_secs(24 * 3_600));
        }
        Ok(())
    }
    fn disturbance(&self, what: Disturb) -> Disturbance {
        let (clock, ledger, core) = (self.clock.clone(), self.ledger.clone(), self.core.lock().clone());
        Box::new(move || {
            let now = clock.now().wall.0;
            match what {
                Disturb::Lease => {
                    ledger.time(Wall(now + millis(ASLEEP)));
                    clock.advance(ASLEEP);
                }
                Disturb::Asleep => {
                    ledger.time(Wall(now + millis(ASLEEP)));
                    clock.suspend(ASLEEP);
                }
                Disturb::Calendar(by) => {
                    ledger.time(Wall(now.saturating_add_signed(by)));
                    clock.jump_wall(by);
                }
            }
            if let Some(core) = core.upgrade() {
                core.timer.tick_and_wait(PATIENCE);
            }
        })
    }
}

impl fmt::Debug for Scene {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scene").field("now", &self.now()).finish_non_exhaustive()
    }
}

/// Whether anything is left that goes on by itself: paused kinds and letters do not.
fn going_on(jobs: &Jobs) -> Result<bool, String> {
    let gauges = jobs.snapshot().map_err(|e| e.to_string())?.gauges;
    let count = |words: &std::collections::BTreeMap<&str, u64>| {
        ["ready", "delayed", "running", "waiting"].iter().filter_map(|w| words.get(w)).sum::<u64>()
    };
    let served = gauges.outbox.iter().filter(|(topic, _)| jobs.0.core.relays.policy(topic).is_some());
    let messages: u64 = served.map(|(_, of)| of.depth.saturating_sub(of.stuck)).sum();
    Ok(gauges.queue_depth.values().map(count).sum::<u64>() + messages > 0)
}

/// What is done inside a call of a provider.
#[derive(Clone, Copy, Debug)]
enum Disturb {
    /// The attempt hangs until its lease is over.
    Lease,
    /// The machine sleeps.
    Asleep,
    /// Somebody sets the calendar, by so many ms.
    Calendar(i64),
}

const DAY: i64 = 24 * 3_600 * 1_000;
const DISTURBANCES: [Disturb; 5] = [
    Disturb::Lease,
    Disturb::Asleep,
    Disturb::Calendar(-DAY),
    Disturb::Calendar(2 * 3_600 * 1_000),
    Disturb::Calendar(365 * DAY),
];

impl fmt::Display for Disturb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lease => f.write_str("the lease ran out"),
            Self::Asleep => f.write_str("the machine slept"),
            Self::Calendar(by) => write!(f, "the calendar was set by {} h", by / 3_600_000),
        }
    }
}

/// What was tried.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Tried {
    /// Places where the process was killed, and where the power was cut: every change, sync and call of the undisturbed life.
    pub crash_points: usize,
    /// Lives that were begun on what such a crash left, and driven to their end.
    pub lives: usize,
    /// Calls of providers in the undisturbed life.
    pub calls: usize,
    /// Lives in which the lease ran out, the machine slept or the calendar was set inside one of these calls.
    pub disturbed: usize,
}

impl fmt::Display for Tried {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { crash_points, lives, calls, disturbed } = self;
        write!(
            f,
            "{crash_points} crash points, {lives} lives after a crash, {calls} calls, {disturbed} lives with one disturbed"
        )
    }
}

/// A promise of the app that did not hold: where, and what was wrong.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error("{place}: {why}")]
pub struct Broken {
    /// Where the process died, or what else happened.
    pub place: String,
    /// What the app's own check, or the queue, said.
    pub why: String,
}

/// What `unwrap` prints in a test: the text as it is to be read.
impl fmt::Debug for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Runs the app's own handlers once for every place where the process can die, and once for everything that can go wrong with time
/// inside a call, each in a world of its own.
///
/// - `app` registers handlers, performers and probes with [`Scene::open`], as the app does at its start; what they do outside goes to
///   [`Scene::provider`].
/// - `drive` is what the app does then: enqueue what is wanted, decide. It is run again in every life, as an app does that is started
///   again. After it the clock goes on until everything is over or waits for a person.
/// - `check` says whether all is well: each promise about the ledger of a provider, the state of a job, the app's tables.
///
/// Whatever of it panics is taken for a broken promise, too: plain `assert!` will do.
///
/// ```
/// use onceward::{prelude::*, testkit::{self, Does, Scene}, Builder};
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Serialize, Deserialize)]
/// struct Pay { order: u64 }
/// impl Job for Pay {
///     const KIND: &'static str = "pay";
///     fn key(&self) -> JobKey { format!("order/{}", self.order).into() }
///     fn effects() -> Vec<EffectCard> { vec![Charge::card()] }
///     fn policy() -> Policy { Policy::default().success("paid once").review("nobody knows whether it was paid") }
/// }
///
/// #[derive(Serialize, Deserialize)]
/// struct Charge { order: u64 }
/// impl Effect for Charge {
///     type Result = String;
///     const NAME: &'static str = "charge";
///     const RISK: Risk = Risk::Charge;
///     fn says(&self) -> String { format!("charge order {}", self.order) }
///     fn recovery() -> Recovery { Recovery::same_key(std::time::Duration::from_secs(24 * 3600)) }
/// }
///
/// fn app(scene: &Scene) -> Builder {
///     // The first answer is lost: the customer has paid, and the app does not know.
///     let bank = scene.provider("bank").behaving(|_, before| if before == 0 { Does::ItAndTimesOut } else { Does::It });
///     scene.open().key_scope("test").on(|cx, pay: Pay| cx.effect(Charge { order: pay.order }).map(drop))
///         .effect(move |c: &Charge, key| bank.call(&c.says(), key))
/// }
/// fn drive(_: &Scene, jobs: &Jobs) -> Result<(), onceward::Error> {
///     jobs.enqueue(&Pay { order: 1 }).map(drop)
/// }
/// fn check(scene: &Scene, jobs: &Jobs) -> Result<(), String> {
///     testkit::assert_enqueued(jobs, &Pay { order: 1 });
///     testkit::assert_effect_once(&scene.provider("bank"), "charge order 1");
///     Ok(())
/// }
///
/// let tried = testkit::crash_everywhere(app, drive, check).unwrap();
/// assert!(tried.crash_points > 20 && tried.disturbed > 0);
/// // The same story on a queue that only retries: the customer pays twice, and the test sees it.
/// assert!(testkit::naive(app, drive, check).is_err());
/// ```
///
/// # Errors
/// The first promise that did not hold, with the place.
pub fn crash_everywhere(
    app: impl Fn(&Scene) -> Builder,
    drive: impl Fn(&Scene, &Jobs) -> Result<(), Error>,
    check: impl Fn(&Scene, &Jobs) -> Result<(), String>,
) -> Result<Tried, Broken> {
    everywhere(&Story { app: &app, drive: &drive, check: &check, naive: false })
}

/// The same on a queue that keeps no records of effects: every attempt calls the provider anew. A scenario that is worth something
/// fails here; one that passes cannot see what it is meant to see.
///
/// # Errors
/// As [`crash_everywhere`]: that is what is hoped for.
pub fn naive(
    app: impl Fn(&Scene) -> Builder,
    drive: impl Fn(&Scene, &Jobs) -> Result<(), Error>,
    check: impl Fn(&Scene, &Jobs) -> Result<(), String>,
) -> Result<Tried, Broken> {
    everywhere(&Story { app: &app, drive: &drive, check: &check, naive: true })
}

type App<'a> = &'a dyn Fn(&Scene) -> Builder;
type Drive<'a> = &'a dyn Fn(&Scene, &Jobs) -> Result<(), Error>;
type Check<'a> = &'a dyn Fn(&Scene, &Jobs) -> Result<(), String>;

struct Story<'a> {
    app: App<'a>,
    drive: Drive<'a>,
    check: Check<'a>,
    naive: bool,
}

impl Story<'_> {
    /// From the start to the end, with everything that has to be true then.
    fn live(&self, scene: &Scene, disturbed: Option<(usize, Disturb)>) -> Result<(), String> {
        let said = catch_unwind(AssertUnwindSafe(|| {
            let jobs = (self.app)(scene).start().map_err(|e| format!("it does not start: {e}"))?;
            *scene.core.lock() = Arc::downgrade(&jobs.0.core);
            if let Some((after, what)) = disturbed {
                scene.ledger.disturb_after(after, scene.disturbance(what));
            }
            (self.drive)(scene, &jobs).map_err(|e| format!("the drive failed: {e}"))?;
            scene.settle(&jobs)?;
            (self.check)(scene, &jobs)?;
            jobs.shutdown(Duration::from_secs(10)).map(drop).map_err(|e| format!("it does not shut down: {e}"))
        }));
        STOPWATCH.fetch_max(scene.clock.now().mono.0.saturating_add(1), Ordering::Relaxed);
        said.unwrap_or_else(|panic| Err(panic_text(panic)))
    }
}

fn everywhere(story: &Story<'_>) -> Result<Tried, Broken> {
    let broken = |place: String| move |why: String| Broken { place, why };
    let disk = SimDisk::new();
    disk.record();
    let first = Scene::new(Vec::new(), disk.clone(), ([1; 16], 1), story.naive);
    story.live(&first, None).map_err(broken("without any crash".to_owned()))?;
    let (log, told) = (disk.log(), first.ledger.entries());
    let mut tried = Tried { calls: first.ledger.calls(), ..Tried::default() };
    let mut came = Ok(());
    crash_points(&[], &[], &log, |point| {
        if came.is_ok() {
            tried.crash_points += 1;
            for power in [false, true] {
                tried.lives += 1;
                let died = if power { "the power was cut" } else { "the process was killed" };
                let place = format!("{died} after {} of {} operations, {}", point.index, log.len(), last(&told, point));
                let past = past(&told, point).to_vec();
                let boot = if power { [2; 16] } else { [1; 16] };
                let scene = Scene::new(past, left_behind(point, power), (boot, 2), story.naive);
                if came.is_ok() {
                    came = story.live(&scene, None).map_err(broken(place));
                }
            }
        }
    });
    came?;
    for call in 0..tried.calls {
        for what in DISTURBANCES {
            tried.disturbed += 1;
            let scene = Scene::new(Vec::new(), SimDisk::new(), ([1; 16], 1), story.naive);
            let place = format!("{what} inside call {} of {}", call + 1, tried.calls);
            story.live(&scene, Some((call, what))).map_err(broken(place))?;
        }
    }
    Ok(tried)
}

/// The world's memory at that moment.
fn past<'a>(told: &'a [Entry], point: &CrashPoint<'_>) -> &'a [Entry] {
    let n = point.mark.map_or(0, |n| usize::try_from(n).map_or(usize::MAX, |n| n.saturating_add(1)));
    told.get(..n).unwrap_or(told)
}

/// What had happened outside last, for a reader.
fn last(told: &[Entry], point: &CrashPoint<'_>) -> String {
    let call = past(told, point).iter().rev().find_map(|e| match e {
        Entry::Call { provider, what, .. } => Some(format!("after the call {what:?} of {provider}")),
        Entry::Time(_) => None,
    });
    call.unwrap_or_else(|| "before any call".to_owned())
}

/// A kill leaves the cache, a power cut any part of what was not synced.
fn left_behind(point: &CrashPoint<'_>, power: bool) -> SimDisk {
    if !point.exists {
        return SimDisk::new();
    }
    let seed = if power { point.index as u64 + 1 } else { 0 };
    SimDisk::from_image(point.image(seed), point.sidecar.to_vec())
}
