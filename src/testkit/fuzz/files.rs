//! Files and sidecars that are anything: an open never panics, what it refuses stays as it was, and what it accepts is read as it was
//! written, or said to be damaged, or known to be an older copy.

use super::Reader;
use crate::builder::Builder;
use crate::clock::ManualClock;
use crate::desk::decide::Decision;
use crate::handler::cx::Cx;
use crate::handler::effect::Effect;
use crate::handler::fail::Fail;
use crate::handler::job::Job;
use crate::jobs::Jobs;
use crate::model::effect::{EffectCard, Recovery};
use crate::model::id::{JobId, JobKey};
use crate::model::policy::{Backoff, Policy};
use crate::model::time::Wall;
use crate::store::disk::SimDisk;
use crate::store::{self, DiskFactory, Place, RunHeader, Store, StoreError, StoreOptions, View};
use crate::testkit::run_until_idle;
use serde::{Deserialize, Serialize};
use std::fmt::Debug;
use std::path::Path;
use std::sync::{Arc, LazyLock, PoisonError};
use std::time::Duration;

/// One of the used files, spoilt as the bytes say, is opened and read. Returns how many of its facts could be read.
pub fn open_bytes(bytes: &[u8]) -> usize {
    let mut r = Reader::new(bytes);
    let used = if r.flag() { &USED.killed } else { &USED.closed };
    let mut sidecar = used.sidecar.clone();
    match r.below(4) {
        // Whatever lies at the path, behind some beginning of a real file.
        0 => {
            let begin = r.below(used.file.len() + 1);
            let file = [used.file.get(..begin).unwrap_or_default(), r.rest()].concat();
            open(used, file, sidecar, Touched::File)
        }
        // Whatever lies beside it.
        1 => {
            let begin = r.below(sidecar.len() + 1);
            sidecar = [sidecar.get(..begin).unwrap_or_default(), r.rest()].concat();
            open(used, used.file.clone(), sidecar, Touched::Sidecar)
        }
        // Rot.
        2 => {
            let mut file = used.file.clone();
            let beside = r.flag();
            for _ in 0..=r.below(8) {
                spoil(if beside && r.flag() { &mut sidecar } else { &mut file }, &mut r);
            }
            open(used, file, sidecar, Touched::File)
        }
        // A row was damaged before the database computed its checksums: only our own are left to notice.
        _ => {
            let nth = r.below(USED.values.len());
            let file = store::with_value_changed(&USED.closed.file, nth, |value| {
                for _ in 0..=r.below(3) {
                    spoil(value, &mut r);
                }
            });
            file.map_or(0, |file| open(&USED.closed, file, USED.closed.sidecar.clone(), Touched::Row))
        }
    }
}

/// A used file with its sidecar, as the fixtures of the format keep it.
#[derive(Debug)]
pub struct Fixture {
    /// How its process ended.
    pub name: &'static str,
    /// The bytes of the file.
    pub file: Vec<u8>,
    /// The bytes of the sidecar.
    pub sidecar: Vec<u8>,
}

/// A file that was closed in order, and one that was left behind by a process that died at work.
pub fn fixtures() -> [Fixture; 2] {
    [("closed", &USED.closed), ("killed", &USED.killed)].map(|(name, used)| Fixture {
        name,
        file: used.file.clone(),
        sidecar: used.sidecar.clone(),
    })
}

/// What is in such a file, a line for each fact.
///
/// # Errors
/// It cannot be opened or read.
pub fn facts_of_file(path: &Path) -> Result<Vec<String>, crate::error::Error> {
    let (store, _) = Store::open(StoreOptions::new(Place::File(path.to_owned()), Arc::new(ManualClock::default())))?;
    let lines = store.read(|v| facts(v).into_iter().collect::<Result<_, _>>())?;
    store.close()?;
    Ok(lines)
}

/// What becomes of its jobs once it is opened by an app with the same handlers and a day passes: a line for each.
///
/// # Errors
/// It cannot be opened, or something fails on the way.
pub fn a_day_later(path: &Path) -> Result<Vec<String>, crate::error::Error> {
    let clock = Arc::new(ManualClock::default());
    let jobs = handlers(Jobs::open(path).clock(clock.clone()), 2).start()?;
    run_until_idle(&jobs)?;
    clock.advance(Duration::from_secs(24 * 3_600));
    run_until_idle(&jobs)?;
    let mut lines = Vec::new();
    for n in 0..JOBS {
        // Whoever asks again is told which job it is.
        let told = jobs.enqueue(&order(n))?;
        let ledger = jobs.ledger(told.id())?;
        let effects: Vec<String> = ledger.iter().map(|l| format!("{} {:?}", l.id, l.state)).collect();
        let (id, state, new) = (told.id(), jobs.state(told.id())?, told.is_new());
        lines.push(format!("order {n}: job {id}, new {new}, {state:?} [{}]", effects.join(", ")));
    }
    lines.push(format!("letters: {}", jobs.dead_letters()?.len()));
    jobs.shutdown(Duration::from_secs(60))?;
    Ok(lines)
}

/// Every value of a used file.
pub(super) fn values() -> Vec<Vec<u8>> {
    USED.values.clone()
}

/// What was spoilt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Touched {
    File,
    Sidecar,
    Row,
}

fn open(used: &Used, file: Vec<u8>, sidecar: Vec<u8>, touched: Touched) -> usize {
    let disk = SimDisk::from_image(file.clone(), sidecar.clone());
    let (store, opened) = match opened(&disk) {
        Ok(both) => both,
        Err(refused) => {
            assert!(disk.bytes() == file, "{refused}: the file was changed");
            assert!(sidecar_of(&disk) == sidecar, "{refused}: the sidecar was changed");
            return 0;
        }
    };
    assert!(!opened.created, "a new queue in the place of a used one forgets what happened");
    let older = opened.header.is_none_or(|RunHeader { instance, round, epoch }| {
        instance != opened.instance || round > opened.round || epoch >= opened.epoch
    });
    let (facts, told) = match store.read(|v| Ok((facts(v), v.meta("rewound")?))) {
        Ok(both) => both,
        Err(e) => {
            assert!(touched == Touched::Row && is_damage(&e), "{e}");
            return 0;
        }
    };
    assert_eq!(told.is_some(), older, "an older copy is told, and nothing else: {opened:?}");
    let mut read = 0;
    for (was, is) in used.facts.iter().zip(&facts) {
        match is {
            Ok(is) if is == was => read += 1,
            // Numbers that an older copy may have handed out are skipped.
            Ok(is) if older && is.starts_with(NUMBERS) => {}
            Ok(is) => assert!(older && touched == Touched::File, "a silent wrong answer: {was} became {is}"),
            Err(e) => assert!(touched == Touched::Row && is_damage(e), "{was}: {e}"),
        }
    }
    let closed = store.close();
    assert!(closed.is_ok(), "{closed:?}");
    read
}

fn is_damage(e: &StoreError) -> bool {
    matches!(e, StoreError::Corrupt { .. } | StoreError::Damaged { .. })
}

fn sidecar_of(disk: &SimDisk) -> Vec<u8> {
    disk.sidecar().lock().unwrap_or_else(PoisonError::into_inner).clone()
}

fn opened(disk: &SimDisk) -> Result<(Store, store::Opened), StoreError> {
    let clock = Arc::new(ManualClock::default());
    let mut options = StoreOptions::new(Place::Disk(Arc::new(disk.clone())), clock);
    options.cache_bytes = 1 << 20;
    Store::open(options)
}

const PAGE: usize = 4_096;

fn spoil(bytes: &mut Vec<u8>, r: &mut Reader<'_>) {
    let at = |r: &mut Reader<'_>, len: usize| match r.below(4) {
        // The database's own header and the roots of its last two commits.
        0 | 1 => r.below(320.min(len)),
        2 => (r.below(len.div_ceil(PAGE)) * PAGE + r.below(64)).min(len.saturating_sub(1)),
        _ => r.below(len),
    };
    let from = at(r, bytes.len());
    match r.below(8) {
        0 => {
            if let Some(byte) = bytes.get_mut(from) {
                *byte ^= 1 << r.below(8);
            }
        }
        1 | 2 => {
            for (to, by) in bytes.iter_mut().skip(from).zip(r.bytes()) {
                *to = *by;
            }
        }
        3 => {
            let n = r.below(2 * PAGE);
            bytes.iter_mut().skip(from).take(n).for_each(|b| *b = 0);
        }
        4 => bytes.truncate(from),
        5 => bytes.extend_from_slice(r.bytes()),
        6 => bytes.resize(bytes.len() + r.below(4 * PAGE), 0),
        _ => {
            let (a, b) = (from / PAGE * PAGE, at(r, bytes.len()) / PAGE * PAGE);
            for n in 0..PAGE {
                if bytes.len() > a.max(b) + n {
                    bytes.swap(a + n, b + n);
                }
            }
        }
    }
}

const NUMBERS: &str = "numbers of messages";

/// A fact as it is shown; each stands for itself, so that damage of one is not an excuse for another.
type Fact = Result<String, StoreError>;

fn facts(v: &View<'_>) -> Vec<Fact> {
    fn fact<T: Debug>(what: &str, of: Result<T, StoreError>) -> Fact {
        of.map(|value| format!("{what}: {value:?}"))
    }
    let mut all = vec![
        fact("kinds", v.kinds()),
        fact("depth", v.depth()),
        fact("due", v.timers((Wall(0), JobId(0)), 1_000)),
        fact("running", v.running()),
        fact("letters", v.letter_ids(None, 1_000)),
        fact(NUMBERS, v.topics()),
    ];
    // Other things are numbered by the same counter.
    for n in 1..=2 * JOBS {
        let id = JobId(n);
        let what = |what: &str| format!("{what} of job {n}");
        all.push(fact(&what("row"), v.job(id)));
        all.push(fact(&what("record"), v.record(id)));
        all.push(fact(&what("effects"), v.effects(id)));
        all.push(fact(&what("steps"), v.memos(id)));
        all.push(fact(&what("history"), v.journal(id)));
        all.push(fact(&what("letter"), v.letter(id)));
        all.push(fact(&what("output"), v.output(id)));
    }
    for kind in 1..=2 {
        all.push(fact("ready", v.ready(crate::model::id::KindId(kind), 1_000)));
        for n in 0..=JOBS {
            all.push(fact(&format!("intent {n}"), v.intent(crate::model::id::KindId(kind), &key(n))));
        }
    }
    for act in 0..2 {
        let acts = v.acts(None, 100).and_then(|acts| acts.into_iter().nth(act).map(|(_, act)| act).transpose());
        all.push(fact("act", acts));
    }
    for n in 1..=2 {
        all.push(fact("message", v.message("orders", n)));
        all.push(fact("delivery", v.delivery("orders", "orders", n)));
        all.push(fact("memory", v.remembered("orders", &format!("m{n}"))));
    }
    all
}

/// A file that was used, with its sidecar.
struct Used {
    file: Vec<u8>,
    sidecar: Vec<u8>,
    facts: Vec<String>,
}

struct Files {
    /// Shut down in order.
    closed: Used,
    /// Left behind by a process that died at work.
    killed: Used,
    values: Vec<Vec<u8>>,
}

static USED: LazyLock<Files> = LazyLock::new(|| make().expect("a healthy disk in memory takes a dozen jobs"));

const JOBS: u64 = 12;

fn key(n: u64) -> String {
    format!("order/{n}")
}

#[derive(Debug, Serialize, Deserialize)]
struct Order {
    n: u64,
    body: String,
}

fn order(n: u64) -> Order {
    Order { n, body: "x".repeat(if n == 8 { 9_000 } else { 10 }) }
}

impl Job for Order {
    const KIND: &'static str = "order";
    fn key(&self) -> JobKey {
        key(self.n).into()
    }
    fn policy() -> Policy {
        Policy::default().backoff(Backoff::steps([Duration::from_secs(60)]))
    }
    fn effects() -> Vec<EffectCard> {
        vec![Pay::card()]
    }
}

#[derive(Debug, Serialize, Deserialize)]
struct Pay {
    n: u64,
}

impl Effect for Pay {
    type Result = String;
    const NAME: &'static str = "pay";
    fn says(&self) -> String {
        format!("pay order {}", self.n)
    }
    fn recovery() -> Recovery {
        Recovery::ask()
    }
}

fn builder(disk: &SimDisk, nonce: u64) -> Builder {
    handlers(Jobs::on_disk(Arc::new(disk.clone())).clock(Arc::new(ManualClock::default())), nonce)
}

fn handlers(queue: Builder, nonce: u64) -> Builder {
    queue
        .process([1; 16], nonce)
        .seed(7)
        .key_scope("fuzz")
        .workers(1)
        // Every fourth call's answer is lost.
        .effect(|pay: &Pay, _| if pay.n % 4 == 3 { Err(Fail::new("no answer")) } else { Ok(format!("op-{}", pay.n)) })
        .on(|cx: &Cx, order: Order| {
            let drawn = cx.step("draw", || Ok(order.n * 2))?;
            if !order.n.is_multiple_of(4) {
                let _operation = cx.effect(Pay { n: order.n })?;
            }
            match order.n {
                1 => cx.finish(|tx| Ok(tx.outbox("orders", "m2", &1).map(drop)?)),
                2 => Err(Fail::transient("later")),
                5 | 6 => Err(Fail::permanent("never")),
                _ => cx.output(&drawn),
            }
        })
}

fn make() -> Result<Files, crate::error::Error> {
    let disk = SimDisk::new();
    let jobs = builder(&disk, 1).start()?;
    jobs.transact(|tx| tx.outbox("orders", "m1", &"hello").map(drop))?;
    let mut ids = Vec::new();
    for n in 0..JOBS {
        let order = order(n);
        ids.push(
            if n % 5 == 4 { jobs.after(Duration::from_secs(60 * n), &order)? } else { jobs.enqueue(&order)? }.id(),
        );
    }
    run_until_idle(&jobs)?;
    if let Some(id) = ids.get(6) {
        jobs.decide(&jobs.dead_letter(*id)?, Decision::discard().by("ada", "never mind"))?;
    }
    let killed = disk.fork();
    jobs.shutdown(Duration::from_secs(60))?;
    let [closed, killed] = [used(&disk)?, used(&killed)?];
    let values = store::values(&closed.file)?;
    Ok(Files { closed, killed, values })
}

fn used(disk: &SimDisk) -> Result<Used, StoreError> {
    let (file, sidecar) = (disk.bytes(), sidecar_of(disk));
    let (store, _) = opened(&disk.fork())?;
    let facts = store.read(|v| facts(v).into_iter().collect::<Result<_, _>>())?;
    store.close()?;
    Ok(Used { file, sidecar, facts })
}
