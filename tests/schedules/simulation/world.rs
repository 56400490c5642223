//! The world around a simulated queue: its lives, its clocks, the providers that remember what really happened, and the dice.

use super::app::{Failed, ROWS, Run};
use crate::history::{Came, Recorder, Said, Told, What};
use onceward::model::time::Now;
use onceward::testkit::{Clock, ManualClock};
use onceward::{Cx, Fail, Job, JobId, Jobs, Message, Outcome};
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The same number for the same bytes, in every run.
pub(super) fn digest(what: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    what.hash(&mut hasher);
    hasher.finish()
}

pub(super) fn payload_of<J: Job>(job: &J) -> u64 {
    digest(serde_json::to_vec(job).unwrap())
}

/// One life of the process. What it would still do once it is dead, it does not.
#[derive(Clone)]
pub(super) struct Life {
    pub(super) number: u32,
    pub(super) clock: ManualClock,
    pub(super) recorder: Recorder,
    pub(super) dice: Dice,
    pub(super) numbers: Arc<AtomicU64>,
    pub(super) over: Arc<AtomicBool>,
}

/// The same numbers for the same seed.
#[derive(Clone)]
pub(super) struct Dice(Arc<Mutex<fastrand::Rng>>);

impl Dice {
    pub(super) fn new(seed: u64) -> Self {
        Self(Arc::new(Mutex::new(fastrand::Rng::with_seed(seed))))
    }
    pub(super) fn draw(&self, below: u64) -> u64 {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).u64(..below)
    }
}

impl Life {
    pub(super) fn now(&self) -> Now {
        self.clock.now()
    }
    /// False: this process is dead.
    pub(super) fn say(&self, what: What) -> bool {
        self.recorder.tell(self.number, self.now(), what)
    }
    pub(super) fn draw(&self, below: u64) -> u64 {
        self.dice.draw(below)
    }
    /// A number that nobody else has.
    pub(super) fn number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::Relaxed)
    }
    /// A handler that says when it begins and how it ends.
    pub(super) fn handler<J: Job>(
        &self,
        shop: &Shop,
        f: fn(&Run<'_>, J) -> Result<(), Failed>,
    ) -> impl Fn(&Cx, J) -> Outcome + Send + Sync + 'static {
        let (life, shop) = (self.clone(), shop.clone());
        move |cx, payload| {
            let (job, token) = (cx.id(), cx.token());
            life.say(What::Began { job, attempt: cx.attempt(), token });
            let run = Run { life: &life, shop: &shop, cx, job, token };
            let (how, end) = match f(&run, payload) {
                Ok(()) => (crate::history::How::Ok, Ok(())),
                Err(Failed(how, fail)) => (how, Err(fail)),
            };
            life.say(What::Ended { job, token, how });
            end
        }
    }
}

/// Everything outside: banks, printers, the post, and whoever reads the news.
#[derive(Clone, Default)]
pub(super) struct Shop(Arc<Outside>);

#[derive(Default)]
struct Outside {
    done: Mutex<Done>,
    /// Calls that hang wait here.
    held: shuttle::sync::Mutex<u64>,
    freed: shuttle::sync::Condvar,
}

#[derive(Default)]
struct Done {
    /// By key: what a provider with keys did.
    by_key: BTreeMap<String, String>,
    /// By job and effect: everything that really happened.
    by_job: BTreeMap<(JobId, String), Vec<String>>,
    /// What the last call came to.
    last: BTreeMap<(JobId, String), Came>,
    /// Calls inside.
    inside: BTreeMap<(JobId, String), u32>,
}

/// What a provider does with a call.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Does {
    It,
    ItAndTimesOut,
    NothingAndTimesOut,
    Refuses,
    NotSent,
    /// It hangs, and then does it.
    HangsThenIt,
    /// It does it, and then hangs.
    ItThenHangs,
}

impl Shop {
    fn done(&self) -> MutexGuard<'_, Done> {
        self.0.done.lock().unwrap_or_else(PoisonError::into_inner)
    }
    /// A call of a provider.
    pub(super) fn call(&self, life: &Life, job: JobId, effect: &str, key: &str, n: u64) -> Outcome<String> {
        let call = life.number();
        let (of, with) = ((job, effect.to_owned()), key.to_owned());
        let entered = What::Entered { call, job, effect: of.1.clone(), key: with, request: digest((effect, n)) };
        if !life.say(entered) {
            return Err(Fail::new("nobody is there any more"));
        }
        *self.done().inside.entry(of.clone()).or_default() += 1;
        let does = match life.draw(20) {
            0..=2 => Does::ItAndTimesOut,
            3..=4 => Does::NothingAndTimesOut,
            5 => Does::Refuses,
            6..=7 => Does::NotSent,
            8 => Does::HangsThenIt,
            9 => Does::ItThenHangs,
            _ => Does::It,
        };
        if does == Does::HangsThenIt {
            self.hang(life);
        }
        // A dead process sends nothing any more.
        let sends = !matches!(does, Does::NothingAndTimesOut | Does::Refuses | Does::NotSent);
        let reference = sends.then(|| self.apply(life, call, &of, key)).flatten();
        if does == Does::ItThenHangs {
            self.hang(life);
        }
        let came = match (does, reference) {
            (Does::It | Does::HangsThenIt | Does::ItThenHangs, Some(reference)) => Came::Back(reference),
            (Does::Refuses, _) => Came::Refused,
            (Does::NotSent, _) => Came::NotSent,
            _ => Came::ToNothing,
        };
        let mut done = self.done();
        if let Some(inside) = done.inside.get_mut(&of) {
            *inside -= 1;
        }
        done.last.insert(of, came.clone());
        life.say(What::Returned { call, came: came.clone() });
        drop(done);
        match came {
            Came::Back(reference) => Ok(reference),
            Came::Refused => Err(Fail::refused("the provider says no")),
            Came::NotSent => Err(Fail::not_sent("no connection")),
            Came::ToNothing => Err(Fail::new("the line went dead")),
        }
    }
    /// It really happens; under a key that is known nothing happens again. The post and the printer know no keys.
    fn apply(&self, life: &Life, call: u64, of: &(JobId, String), key: &str) -> Option<String> {
        let mut done = self.done();
        let keys = !matches!(of.1.as_str(), "mail" | "print");
        if let Some(reference) = done.by_key.get(key).filter(|_| keys) {
            return Some(reference.clone());
        }
        if !life.say(What::Applied { call }) {
            return None;
        }
        let reference = format!("{}-{call}", of.1);
        done.by_key.insert(key.to_owned(), reference.clone());
        done.by_job.entry(of.clone()).or_default().push(reference.clone());
        Some(reference)
    }
    fn hang(&self, life: &Life) {
        let mut held = self.0.held.lock().unwrap();
        let since = *held;
        while *held == since && !life.over.load(Ordering::Relaxed) {
            held = self.0.freed.wait(held).unwrap();
        }
    }
    /// Whoever hangs goes on.
    pub(super) fn free(&self) {
        *self.0.held.lock().unwrap() += 1;
        self.0.freed.notify_all();
    }
    /// Asks a provider, as a probe does.
    pub(super) fn find(&self, life: &Life, job: JobId, effect: &str) -> Outcome<Option<String>> {
        let probe = life.number();
        if !life.say(What::Probing { probe, job, effect: effect.to_owned() }) {
            return Err(Fail::new("nobody is there any more"));
        }
        let said = match life.draw(8) {
            0 => Said::CannotTell,
            _ => self.happened(job, effect).map_or(Said::NotThere, Said::Found),
        };
        life.say(What::Probed { probe, said: said.clone() });
        match said {
            Said::Found(reference) => Ok(Some(reference)),
            Said::NotThere => Ok(None),
            Said::CannotTell => Err(Fail::transient("the provider does not answer")),
        }
    }
    /// What somebody finds who looks.
    pub(super) fn happened(&self, job: JobId, effect: &str) -> Option<String> {
        self.done().by_job.get(&(job, effect.to_owned())).and_then(|all| all.first().cloned())
    }
    /// Whether a call is under way.
    pub(super) fn inside(&self, job: JobId, effect: &str) -> bool {
        self.done().inside.get(&(job, effect.to_owned())).is_some_and(|n| *n > 0)
    }
    /// Nobody of a dead process is inside any more.
    pub(super) fn left_alone(&self) {
        self.done().inside.clear();
        self.free();
    }
    pub(super) fn last(&self, job: JobId, effect: &str) -> Told {
        match self.done().last.get(&(job, effect.to_owned())) {
            Some(Came::Refused) => Told::Refused,
            Some(Came::NotSent) => Told::NotSent,
            Some(Came::Back(_) | Came::ToNothing) | None => Told::Failed,
        }
    }
    /// The other side of the outbox.
    pub(super) fn deliver(&self, life: &Life, m: &Message) -> Outcome<()> {
        if life.draw(6) == 0 {
            return Err(Fail::new("the broker is away"));
        }
        let message = format!("{}/{:?}", m.key, m.body);
        if !life.say(What::Delivered { topic: super::app::TOPIC, id: m.id.clone(), message }) {
            return Err(Fail::new("nobody is there any more"));
        }
        // The acknowledgement may be lost.
        if life.draw(8) == 0 { Err(Fail::new("the broker's answer got lost")) } else { Ok(()) }
    }
}

/// The app's rows.
pub(super) fn rows(jobs: &Jobs) -> BTreeMap<String, u64> {
    use onceward::redb::ReadableTable;
    let read = jobs.read(|view| {
        let Ok(rows) = view.open_table(ROWS) else { return BTreeMap::new() };
        rows.iter().unwrap().map(|row| row.unwrap()).map(|(k, v)| (k.value().to_owned(), v.value())).collect()
    });
    read.unwrap()
}
