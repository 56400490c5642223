//! An order pays, ships, cannot go forward and is undone, on a disk that records every operation; then the power is cut, or the
//! process killed, at every single one of them, the next life is driven to its end, and for a part of them dies again on the way.

use super::super::oracle::{Undone, Way, i20};
use super::shop::{Dated, Dear, Deed, Held, Order, Plan, Provider, app};
use onceward::clock::ManualClock;
use onceward::model::effect::{EffectRecord, Undoing};
use onceward::model::id::JobId;
use onceward::model::job::JobState;
use onceward::model::policy::KindRules;
use onceward::model::time::Wall;
use onceward::rules::{invariants, undo};
use onceward::store::disk::{CrashPoint, Event, crash_points};
use onceward::store::{Place, Store, StoreOptions, View};
use onceward::testkit::{self, DiskFactory, SimDisk};
use onceward::{CheckAnswer, DeadLetter, Decided, Decision, Entry, Job, Jobs, Question, State, Verdict};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

const START: u64 = 1_767_225_600_000;
const HOUR: u64 = 3_600_000;
/// Images of a power cut at each point.
const SEEDS: u64 = 2;
/// Every how many crash points the next life is recorded and dies again.
const SECOND: usize = 15;
/// Every how many operations of the lives in which people decide there is a crash.
const EVERY: usize = 3;
/// More jobs than a life makes.
const IDS: u64 = 400;

/// Who has it undone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tale {
    /// The policy.
    Policy,
    /// A person who picks "Undo what was done".
    Person,
    /// The policy, once a person had the provider asked about a payment whose answer was lost.
    Checked,
    /// Two people: the first takes the proposal back, proposes it again, and the second agrees.
    Pair,
}

/// What a person was told, as it stands in the books.
const UNDO: &str = "told: it is undone";
const FOUND: &str = "told: it was found";
const PROPOSED: &str = "told: it is proposed";
const DROPPED: &str = "told: nothing is proposed any more";

impl Tale {
    fn enqueue(self, jobs: &Jobs) -> JobId {
        let does = ["pay", "ship", "reserve"];
        let told = match self {
            Self::Policy => jobs.enqueue(&Order::new("4201", &does)),
            Self::Person => jobs.enqueue(&Held::new("4201", &does)),
            Self::Checked => jobs.enqueue(&Dated::new("4201", &["pay", "fail"])),
            Self::Pair => jobs.enqueue(&Dear::new("4201", &does)),
        };
        told.unwrap().id()
    }
    fn kind(self) -> (&'static str, KindRules) {
        fn of<J: Job>() -> (&'static str, KindRules) {
            (J::KIND, J::policy().resolve(&J::effects()))
        }
        match self {
            Self::Policy => of::<Order>(),
            Self::Person => of::<Held>(),
            Self::Checked => of::<Dated>(),
            Self::Pair => of::<Dear>(),
        }
    }
    /// A provider that has none left, is away for the first refunds, or loses the answer of a payment.
    fn provider(self, deeds: &[Deed], disk: Option<SimDisk>, away: usize) -> Provider {
        let provider = Provider::with_past(deeds, disk);
        provider.plan("reserve", &[Plan::Never; 40]);
        provider.plan("give-back", &[Plan::NotSent, Plan::NotSent][..away]);
        if self == Self::Checked {
            provider.plan("pay", &[Plan::DoAndLose]);
        }
        provider
    }
}

#[derive(Default)]
struct Counts {
    points: u64,
    images: u64,
    lives: u64,
    second_points: u64,
    /// Images in which an undo job was under way.
    under_way: u64,
    people: u64,
    /// What people were told, by its words.
    told: BTreeMap<&'static str, usize>,
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
    fn happened(&self) -> Vec<&'static str> {
        self.deeds.iter().map(|d| d.effect).collect()
    }
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

/// Runs until nothing happens by itself any more, with an honest person at the desk.
fn live(
    tale: Tale,
    disk: &SimDisk,
    clock: &ManualClock,
    (boot, nonce): (u8, u64),
    provider: &Provider,
    people: &mut u64,
) {
    let builder = Jobs::on_disk(Arc::new(disk.clone()))
        .clock(Arc::new(clock.clone()))
        .process([boot; 16], nonce)
        .seed(7)
        .cache_bytes(1 << 20)
        .workers(1);
    let jobs = app(builder, provider).start().unwrap();
    let id = tale.enqueue(&jobs);
    testkit::run_until_idle(&jobs).unwrap();
    for _ in 0..40 {
        let state = jobs.state(id).unwrap();
        assert_ne!(state, State::Done, "an order without its goods is a success: {:#?}", jobs.history(id));
        if state.is_over() {
            break;
        }
        for letter in jobs.dead_letters().unwrap() {
            *people += 1;
            answer(tale, &jobs, &letter, provider);
        }
        clock.advance(Duration::from_secs(61));
        testkit::run_until_idle(&jobs).unwrap();
    }
    let state = jobs.state(id).unwrap();
    assert_eq!(state, State::Compensated, "{:#?}\n{:#?}", jobs.history(id), jobs.ledger(id));
    jobs.shutdown(Duration::from_secs(60)).unwrap();
}

/// What an honest person does about a letter.
fn answer(tale: Tale, jobs: &Jobs, letter: &DeadLetter, provider: &Provider) {
    let asked = letter.questions().iter().find_map(|q| match q {
        Question::DidItHappen { effect } => Some(effect.clone()),
        _ => None,
    });
    if let Some(effect) = asked.as_ref().filter(|e| tale == Tale::Checked && letter.can_check().contains(e)) {
        let checked = jobs.check_again(letter, effect, "ana").unwrap();
        if let CheckAnswer::Happened(_) = checked.answer {
            return provider.write_down(FOUND);
        }
    }
    // A check is in the letter's history.
    let letter = jobs.dead_letter(letter.job()).unwrap();
    let history = letter.history();
    let undo = tale != Tale::Policy && letter.choices().iter().any(|c| c.label == "Undo what was done");
    let mut decision = match &asked {
        // They look it up: the process may have died twice inside a call, whose rule is not asked any more then.
        Some(effect) => match provider.reference(&effect.name) {
            Some(reference) => Decision::happened(effect, Some(&reference)),
            None => Decision::did_not_happen(effect),
        },
        None if undo => Decision::undo(),
        None => Decision::try_again(),
    };
    let mut word = (undo && asked.is_none()).then_some(UNDO);
    let mut who = "ana";
    if let Some((verdict, _)) = letter.proposed() {
        if history.iter().any(|e| matches!(e, Entry::ProposalDropped { .. })) {
            (who, decision) = ("ben", Decision::agree());
            word = (*verdict == Verdict::Undo).then_some(UNDO);
        } else {
            (word, decision) = (Some(DROPPED), Decision::drop_proposal());
        }
    }
    let told = jobs.decide(&letter, decision.by(who, "it was looked up"));
    match told {
        Ok(Decided::WaitsForSecond) => provider.write_down(PROPOSED),
        Ok(_) => word.into_iter().for_each(|word| provider.write_down(word)),
        Err(e) => panic!("{e}: {:?}, {history:#?}", letter.questions()),
    }
}

/// The structural promises, and what one commit keeps together: an effect is being undone exactly while its undo job is not over, and
/// undone exactly when that is done.
fn look_at(tale: Tale, disk: &SimDisk, deeds: &[Deed]) -> Result<bool, String> {
    let words = |e: onceward::StoreError| e.to_string();
    let mut options = StoreOptions::new(Place::Disk(Arc::new(disk.clone())), Arc::new(ManualClock::at(Wall(START))));
    options.cache_bytes = 1 << 20;
    let (store, _) = Store::open(options).map_err(|e| format!("it does not open: {e}"))?;
    let looked = store.read(|v| Ok(look(tale, v, deeds))).map_err(words)?;
    store.close().map_err(words)?;
    looked
}

fn look(tale: Tale, v: &View<'_>, deeds: &[Deed]) -> Result<bool, String> {
    let words = |e: onceward::StoreError| e.to_string();
    let (kind, rules) = tale.kind();
    let order_kind = v.kind(kind).map_err(words)?;
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
        acknowledged(deeds, State::from(&record.state), &effects, &v.journal(id).map_err(words)?)?;
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

/// What people were told about an order is in the file: nothing of it is lost.
fn acknowledged(deeds: &[Deed], state: State, effects: &[EffectRecord], journal: &[Entry]) -> Result<(), String> {
    let told = |word: &str| deeds.iter().filter(|d| d.effect == word).count();
    let kept = |is: fn(&Entry) -> bool| journal.iter().filter(|e| is(e)).count();
    let proposed = kept(|e| matches!(e, Entry::Proposed { .. }));
    let dropped = kept(|e| matches!(e, Entry::ProposalDropped { .. }));
    let undo = told(UNDO) == 0 || matches!(state, State::Compensating | State::Compensated);
    let found = told(FOUND) == 0 || !effects.iter().any(|e| e.state.is_unresolved());
    if undo && found && proposed >= told(PROPOSED) && dropped >= told(DROPPED) {
        return Ok(());
    }
    Err(format!("people were told {deeds:?}, and it is {state:?}: {effects:#?} {journal:#?}"))
}

/// Dies at every point of a life and lives on; `generation` is how many processes there were before.
fn die_everywhere(tale: Tale, life: &Life, generation: u64, every: usize, origin: &mut u64, counts: &mut Counts) {
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
                panic!("{tale:?}, life {generation}, after {} operations, image {how}: {why}", point.index);
            };
            counts.images += 1;
            if point.exists {
                match look_at(tale, &SimDisk::from_image(disk.bytes(), point.sidecar.to_vec()), life.deeds_at(point)) {
                    Ok(under_way) => counts.under_way += u64::from(under_way),
                    Err(why) => fail(why),
                }
            }
            if how > 0 && point.pending.is_empty() {
                continue;
            }
            let again = tale == Tale::Policy && generation == 1 && point.index.is_multiple_of(SECOND);
            let (start, start_sidecar) = (disk.bytes(), disk.sidecar().lock().unwrap().clone());
            if again {
                disk.record();
            }
            let deeds = life.deeds_at(point);
            let provider = tale.provider(deeds, again.then(|| disk.clone()), point.index % 3);
            let boot = if how == 0 { 1 } else { u8::try_from(generation + 1).unwrap() };
            let clock = clock(generation, origin);
            live(tale, &disk, &clock, (boot, generation + 1), &provider, &mut counts.people);
            counts.lives += 1;
            if provider.calls("reserve") > 0 && !provider.happened().contains(&"give-back") {
                fail("nothing was left, and no money came back".into());
            }
            match look_at(tale, &disk.fork(), &provider.deeds()) {
                Ok(false) => {}
                Ok(true) => fail("an undo job is still under way".into()),
                Err(why) => fail(why),
            }
            for word in [UNDO, FOUND, PROPOSED, DROPPED] {
                *counts.told.entry(word).or_default() += provider.happened().iter().filter(|d| **d == word).count();
            }
            if again {
                let next = Life { start, start_sidecar, log: disk.log(), deeds: provider.deeds(), past: deeds.len() };
                die_everywhere(tale, &next, generation + 1, SECOND, origin, counts);
            }
        }
    });
}

/// A life without a crash, recorded; what happened in it, and what people were told.
fn record(tale: Tale, origin: &mut u64, counts: &mut Counts) -> Life {
    let disk = SimDisk::new();
    disk.record();
    let books = tale.provider(&[], Some(disk.clone()), 2);
    live(tale, &disk, &clock(0, origin), (1, 1), &books, &mut counts.people);
    Life { start: Vec::new(), start_sidecar: Vec::new(), log: disk.log(), deeds: books.deeds(), past: 0 }
}

/// Wherever the machine dies between the enqueue and the last refund, once or twice: the order ends compensated and never as a
/// success, the parcel comes back before the money, each once, and at no moment is an effect being undone without its job, or
/// undone without that job's end.
#[test]
fn a_crash_anywhere_undoes_everything_once_and_in_order() {
    let (mut counts, mut origin) = (Counts::default(), 100 * HOUR);
    let life = record(Tale::Policy, &mut origin, &mut counts);
    assert_eq!(life.happened(), ["pay", "ship", "fetch-back", "give-back"]);
    assert_eq!(counts.people, 0, "nobody was asked");
    die_everywhere(Tale::Policy, &life, 1, 1, &mut origin, &mut counts);
    println!(
        "compensation: {} crash points, {} images, {} lives driven to their end, {} points of second crashes, {} images with \
         an undo job under way, {} answers of people",
        counts.points, counts.images, counts.lives, counts.second_points, counts.under_way, counts.people
    );
    assert!(counts.points as usize == life.log.len() && counts.points > 100, "only {} points", counts.points);
    assert!(counts.second_points > 100 && counts.under_way > 100 && counts.lives > counts.points && counts.people > 0);
}

/// The same where people have it undone: one who decides it, one who has the provider asked first, two of whom one proposes, takes that
/// back, and proposes it again. What they were told is never lost, and never carried out twice.
#[test]
fn a_crash_around_what_people_decide_undoes_everything_once() {
    for (tale, expected) in [
        (Tale::Person, &["pay", "ship", UNDO, "fetch-back", "give-back"][..]),
        (Tale::Checked, &["pay", FOUND, "give-back"]),
        (Tale::Pair, &["pay", "ship", PROPOSED, DROPPED, PROPOSED, UNDO, "fetch-back", "give-back"]),
    ] {
        let (mut counts, mut origin) = (Counts::default(), 100 * HOUR);
        let life = record(tale, &mut origin, &mut counts);
        // A person hears that it is carried out while it may be under way already: words and deeds keep an order of their own each.
        let apart = |all: Vec<String>| all.into_iter().partition::<Vec<_>, _>(|what| what.starts_with("told: "));
        let all = life.happened().into_iter().map(|what| what.to_string()).collect();
        let wanted = expected.iter().map(|what| (*what).to_owned()).collect();
        assert_eq!(apart(all), apart(wanted), "{tale:?}");
        die_everywhere(tale, &life, 1, EVERY, &mut origin, &mut counts);
        println!(
            "compensation by {tale:?}: {} crash points, {} images, {} lives driven to their end, {} images with an undo job under \
             way, {} answers of people, {:?}",
            counts.points, counts.images, counts.lives, counts.under_way, counts.people, counts.told
        );
        assert_eq!(counts.points as usize, life.log.len() / EVERY, "{tale:?}");
        assert!(counts.points > 30 && counts.under_way > 30 && counts.lives > counts.points, "{tale:?}");
        let missing = expected.iter().find(|word| counts.told.get(*word) == Some(&0));
        assert!(missing.is_none(), "{tale:?}: nobody was {missing:?}");
    }
}
