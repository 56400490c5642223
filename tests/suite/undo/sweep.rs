//! An order pays, ships, cannot go forward and is undone, on a disk that records every operation; then the power is cut, or the
//! process killed, at every single one of them, the next life is driven to its end, and for a part of them dies again on the way.

use super::super::oracle::{Undone, Way, i20};
use super::shop::{Deed, Order, Plan, Provider, app};
use onceward::clock::ManualClock;
use onceward::model::effect::Undoing;
use onceward::model::id::JobId;
use onceward::model::job::JobState;
use onceward::model::time::Wall;
use onceward::rules::{invariants, undo};
use onceward::store::disk::{CrashPoint, Event, crash_points};
use onceward::store::{Place, Store, StoreOptions, View};
use onceward::testkit::{self, DiskFactory, SimDisk};
use onceward::{Decision, Job, Jobs, Question, State};
use std::sync::Arc;
use std::time::Duration;

const START: u64 = 1_767_225_600_000;
const HOUR: u64 = 3_600_000;
/// Images of a power cut at each point.
const SEEDS: u64 = 2;
/// Every how many crash points the next life is recorded and dies again.
const SECOND: usize = 15;
/// More jobs than a life makes.
const IDS: u64 = 400;

#[derive(Default)]
struct Counts {
    points: u64,
    images: u64,
    lives: u64,
    second_points: u64,
    /// Images in which an undo job was under way.
    under_way: u64,
    people: u64,
}

/// One recorded life.
struct Life {
    start: Vec<u8>,
    start_sidecar: Vec<u8>,
    log: Vec<Event>,
    deeds: Vec<Deed>,
    past: usize,
}

impl Life {
    fn deeds_at(&self, point: &CrashPoint<'_>) -> &[Deed] {
        &self.deeds[..point.mark.map_or(self.past, |n| usize::try_from(n).unwrap() + 1)]
    }
}

/// The stopwatch of every life starts later than those before: calls that ended must not seem to end in the future.
fn clock(generation: u64, origin: &mut u64) -> ManualClock {
    *origin += 4 * HOUR;
    let clock = ManualClock::at(Wall(START + generation * HOUR - *origin));
    clock.advance(Duration::from_millis(*origin));
    clock
}

fn order() -> Order {
    Order::new("4201", &["pay", "ship", "reserve"])
}

/// A provider that has none left, and is away for the first refunds.
fn provider(deeds: &[Deed], disk: Option<SimDisk>, away: usize) -> Provider {
    let provider = Provider::with_past(deeds, disk);
    provider.plan("reserve", &[Plan::Never; 40]);
    provider.plan("give-back", &[Plan::NotSent, Plan::NotSent][..away]);
    provider
}

/// Runs until nothing happens by itself any more, with an honest person at the desk.
fn live(disk: &SimDisk, clock: &ManualClock, boot: u8, nonce: u64, provider: &Provider, people: &mut u64) -> State {
    let builder = Jobs::on_disk(Arc::new(disk.clone()))
        .clock(Arc::new(clock.clone()))
        .process([boot; 16], nonce)
        .seed(7)
        .cache_bytes(1 << 20)
        .workers(1);
    let jobs = app(builder, provider).start().unwrap();
    let id = jobs.enqueue(&order()).unwrap().id();
    testkit::run_until_idle(&jobs).unwrap();
    for _ in 0..40 {
        let state = jobs.state(id).unwrap();
        assert_ne!(state, State::Done, "an order without its goods is a success: {:#?}", jobs.history(id));
        if state.is_over() {
            break;
        }
        for letter in jobs.dead_letters().unwrap() {
            *people += 1;
            let asked = letter.questions().iter().find_map(|q| match q {
                Question::DidItHappen { effect } => Some(effect.clone()),
                _ => None,
            });
            let decision = match asked {
                // They look it up: the process may have died twice inside a call, whose rule is not asked any more then.
                Some(effect) => match provider.reference(&effect.name) {
                    Some(reference) => Decision::happened(&effect, Some(&reference)),
                    None => Decision::did_not_happen(&effect),
                },
                None => Decision::try_again(),
            };
            let told = jobs.decide(&letter, decision.by("ana", "it was looked up"));
            assert!(told.is_ok(), "{told:?}: {:?}, {:#?}", letter.questions(), letter.history());
        }
        clock.advance(Duration::from_secs(61));
        testkit::run_until_idle(&jobs).unwrap();
    }
    let state = jobs.state(id).unwrap();
    assert_eq!(state, State::Compensated, "{:#?}\n{:#?}", jobs.history(id), jobs.ledger(id));
    jobs.shutdown(Duration::from_secs(60)).unwrap();
    state
}

/// The structural promises, and what one commit keeps together: an effect is being undone exactly while its undo job is not over, and
/// undone exactly when that is done.
fn look_at(disk: &SimDisk, deeds: &[Deed]) -> Result<bool, String> {
    let words = |e: onceward::StoreError| e.to_string();
    let mut options = StoreOptions::new(Place::Disk(Arc::new(disk.clone())), Arc::new(ManualClock::at(Wall(START))));
    options.cache_bytes = 1 << 20;
    let (store, _) = Store::open(options).map_err(|e| format!("it does not open: {e}"))?;
    let looked = store.read(|v| Ok(look(v, deeds))).map_err(words)?;
    store.close().map_err(words)?;
    looked
}

fn look(v: &View<'_>, deeds: &[Deed]) -> Result<bool, String> {
    let words = |e: onceward::StoreError| e.to_string();
    let rules = Order::policy().resolve(&Order::effects());
    let order_kind = v.kind(Order::KIND).map_err(words)?;
    let (mut compensating, mut under_way) = (Vec::new(), false);
    for n in 1..IDS {
        let id = JobId::from_number(n);
        let (Some(record), Some(row)) = (v.record(id).map_err(words)?, v.job(id).map_err(words)?) else { continue };
        if matches!(record.state, JobState::Compensating { .. }) {
            compensating.push(id);
        }
        if Some(row.kind) != order_kind {
            continue;
        }
        let (effects, letter) = (v.effects(id).map_err(words)?, v.letter(id).map_err(words)?);
        let broken = invariants::broken(&record, &effects, letter.as_ref(), &rules);
        if !broken.is_empty() {
            return Err(format!("{broken:?}: {record:#?} {effects:#?}"));
        }
        let mut undone = Vec::new();
        for e in effects.iter().filter(|e| e.undo.is_some()) {
            let job = e.undo.as_ref().unwrap();
            let intent = match v.kind(&job.kind).map_err(words)? {
                Some(kind) => v.intent(kind, undo::undo_key(e).as_str()).map_err(words)?,
                None => None,
            };
            let undo_job = match intent {
                Some(i) => v.record(i.id()).map_err(words)?,
                None => None,
            };
            let job = undo_job.map(|r| State::from(&r.state));
            under_way |= e.undoing == Undoing::UnderWay;
            undone.push(Undone { effect: e.id.name.clone(), state: e.state, undoing: e.undoing, job });
        }
        i20(&Way {
            pairs: vec![("pay", "give-back"), ("ship", "fetch-back")],
            deeds: deeds.iter().map(|d| (d.effect.to_owned(), d.key.clone())).collect(),
            effects: undone,
            unresolved: effects.iter().any(|e| e.state.is_unresolved()),
            state: State::from(&record.state),
        })?;
    }
    let indexed = v.compensating().map_err(words)?;
    if indexed != compensating {
        return Err(format!("compensating are {compensating:?}, the index says {indexed:?}"));
    }
    Ok(under_way)
}

/// Dies at every point of a life and lives on; `generation` is how many processes there were before.
fn die_everywhere(life: &Life, generation: u64, every: usize, origin: &mut u64, counts: &mut Counts) {
    crash_points(&life.start, &life.start_sidecar, &life.log, |point| {
        if !point.index.is_multiple_of(every) {
            return;
        }
        *(if generation == 1 { &mut counts.points } else { &mut counts.second_points }) += 1;
        for how in 0..=SEEDS {
            let disk = if !point.exists {
                SimDisk::new()
            } else {
                // 0 is a kill: everything that was written is there.
                SimDisk::from_image(point.image(how), point.sidecar.to_vec())
            };
            let fail = |why: String| -> ! {
                panic!("life {generation}, after {} operations, image {how}: {why}", point.index);
            };
            counts.images += 1;
            if point.exists {
                match look_at(&SimDisk::from_image(disk.bytes(), point.sidecar.to_vec()), life.deeds_at(point)) {
                    Ok(under_way) => counts.under_way += u64::from(under_way),
                    Err(why) => fail(why),
                }
            }
            if how > 0 && point.pending.is_empty() {
                continue;
            }
            let again = generation == 1 && point.index.is_multiple_of(SECOND);
            let (start, start_sidecar) = (disk.bytes(), disk.sidecar().lock().unwrap().clone());
            if again {
                disk.record();
            }
            let deeds = life.deeds_at(point);
            let provider = provider(deeds, again.then(|| disk.clone()), point.index % 3);
            let boot = if how == 0 { 1 } else { u8::try_from(generation + 1).unwrap() };
            let clock = clock(generation, origin);
            live(&disk, &clock, boot, generation + 1, &provider, &mut counts.people);
            counts.lives += 1;
            if provider.calls("reserve") > 0 && !provider.happened().contains(&"give-back") {
                fail("nothing was left, and no money came back".into());
            }
            match look_at(&disk.fork(), &provider.deeds()) {
                Ok(false) => {}
                Ok(true) => fail("an undo job is still under way".into()),
                Err(why) => fail(why),
            }
            if again {
                let next = Life { start, start_sidecar, log: disk.log(), deeds: provider.deeds(), past: deeds.len() };
                die_everywhere(&next, generation + 1, SECOND, origin, counts);
            }
        }
    });
}

/// Wherever the machine dies between the enqueue and the last refund, once or twice: the order ends compensated and never as a
/// success, the parcel comes back before the money, each once, and at no moment is an effect being undone without its job, or
/// undone without that job's end.
#[test]
fn a_crash_anywhere_undoes_everything_once_and_in_order() {
    let (mut counts, mut origin) = (Counts::default(), 100 * HOUR);
    let disk = SimDisk::new();
    disk.record();
    let books = provider(&[], Some(disk.clone()), 2);
    live(&disk, &clock(0, &mut origin), 1, 1, &books, &mut counts.people);
    assert_eq!(books.happened(), ["pay", "ship", "fetch-back", "give-back"]);
    assert_eq!(counts.people, 0, "nobody was asked");
    let life = Life { start: Vec::new(), start_sidecar: Vec::new(), log: disk.log(), deeds: books.deeds(), past: 0 };
    die_everywhere(&life, 1, 1, &mut origin, &mut counts);
    println!(
        "compensation: {} crash points, {} images, {} lives driven to their end, {} points of second crashes, {} images with \
         an undo job under way, {} answers of people",
        counts.points, counts.images, counts.lives, counts.second_points, counts.under_way, counts.people
    );
    assert!(counts.points as usize == life.log.len() && counts.points > 100, "only {} points", counts.points);
    assert!(counts.second_points > 100 && counts.under_way > 100 && counts.lives > counts.points && counts.people > 0);
}
