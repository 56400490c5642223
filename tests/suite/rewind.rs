//! A backup is put back: the file of any moment of an afternoon of work, beside the sidecar of its evening and providers that know
//! what was done. Everything is asked for again, and nothing happens again.

use super::ground::{DAY, HOUR, MINUTE, looked_up, order};
use onceward::clock::ManualClock;
use onceward::model::time::Wall;
use onceward::prelude::*;
use onceward::store::disk::crash_points;
use onceward::testkit::{self, DiskFactory, SimDisk};
use onceward::{Builder, DeadLetter, Decision, Error, IdempotencyKey, JobId, Jobs, Question, Scope, State};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Orders of an afternoon.
const ORDERS: u64 = 5;
/// Every how many operations of the afternoon a copy is made.
const EVERY: usize = 5;
const START: u64 = 1_767_225_600_000;

looked_up!(Charge "charge" Risk::Charge, Recovery::same_key(2 * HOUR).or_probe(MINUTE));
looked_up!(Book "book" Risk::Order, Recovery::same_key(2 * HOUR));
looked_up!(Mail "mail" Risk::Email, Recovery::probe(MINUTE));
looked_up!(Print "print" Risk::Routine, Recovery::ask());

order!([Charge, Book, Mail, Print] Policy::default()
    .retries(9)
    .backoff(onceward::Backoff::steps([Duration::from_secs(90)]))
    .success("it is paid for once")
    .review("nobody knows what was done"));

/// What a provider does with a call.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Does {
    It,
    ItAndTimesOut,
    NothingAndTimesOut,
    Refuses,
    NotSent,
}

/// A provider that remembers every call, and drops repeats of a key if it has keys.
#[derive(Clone)]
struct Provider {
    keys: bool,
    /// What the first call for an order comes to, where that is not what was asked for.
    first: &'static [(u64, Does)],
    /// Every call: the order, its key, whether something happened.
    calls: Arc<Mutex<Vec<(u64, String, bool)>>>,
}

impl Provider {
    fn new(keys: bool, first: &'static [(u64, Does)]) -> Self {
        Self { keys, first, calls: Arc::default() }
    }
    /// The same past, and a future of its own.
    fn fork(&self, keys: bool) -> Self {
        let calls = self.calls.lock().unwrap().clone();
        Self { keys: self.keys && keys, first: self.first, calls: Arc::new(Mutex::new(calls)) }
    }
    fn call(&self, order: u64, key: &IdempotencyKey) -> Outcome<String> {
        let mut calls = self.calls.lock().unwrap();
        let is_first = calls.iter().all(|(o, ..)| *o != order);
        let odd = self.first.iter().find(|(o, _)| is_first && *o == order);
        let does = odd.map_or(Does::It, |(_, does)| *does);
        let repeated = self.keys && calls.iter().any(|(_, k, happened)| *happened && k == key.as_str());
        let happens = matches!(does, Does::It | Does::ItAndTimesOut) && !repeated;
        calls.push((order, key.as_str().to_owned(), happens));
        match does {
            Does::It => Ok(format!("ref-{order}")),
            Does::ItAndTimesOut | Does::NothingAndTimesOut => Err(Fail::new("the line went dead")),
            Does::Refuses => Err(Fail::refused("the provider says no")),
            Does::NotSent => Err(Fail::not_sent("no connection")),
        }
    }
    fn happened(&self, order: u64) -> usize {
        self.calls.lock().unwrap().iter().filter(|(o, _, happened)| *o == order && *happened).count()
    }
    fn find_key(&self, key: &IdempotencyKey) -> Option<String> {
        let calls = self.calls.lock().unwrap();
        calls.iter().find(|(_, k, happened)| *happened && k == key.as_str()).map(|(order, ..)| format!("ref-{order}"))
    }
    fn find(&self, order: u64) -> Option<String> {
        (self.happened(order) > 0).then(|| format!("ref-{order}"))
    }
}

/// What the providers know, whatever becomes of the file.
#[derive(Clone)]
struct World {
    clock: ManualClock,
    bank: Provider,
    room: Provider,
    post: Provider,
    printer: Provider,
}

/// The stopwatch of every life starts later than those before: calls that ended must not seem to end in the future.
fn clock(at: Wall, origin: &mut Duration) -> ManualClock {
    *origin += DAY;
    let clock = ManualClock::at(Wall(at.0 - u64::try_from(origin.as_millis()).unwrap()));
    clock.advance(*origin);
    clock
}

impl World {
    fn new(origin: &mut Duration) -> Self {
        Self {
            // Refused once, and paid under the next key; not sent once, and paid under the same.
            bank: Provider::new(true, &[(2, Does::Refuses), (3, Does::NotSent), (4, Does::ItAndTimesOut)]),
            room: Provider::new(true, &[(1, Does::NotSent)]),
            post: Provider::new(false, &[(3, Does::ItAndTimesOut), (5, Does::NothingAndTimesOut)]),
            printer: Provider::new(false, &[]),
            clock: clock(Wall(START), origin),
        }
    }
    /// The world as the afternoon left it, for one copy: a minute later, or when the keys are forgotten.
    fn later(&self, late: bool, origin: &mut Duration) -> Self {
        let now = onceward::clock::Clock::now(&self.clock).wall;
        let fork = |provider: &Provider| provider.fork(!late);
        Self {
            clock: clock(now.after(if late { 3 * HOUR } else { MINUTE }), origin),
            bank: fork(&self.bank),
            room: fork(&self.room),
            post: fork(&self.post),
            printer: fork(&self.printer),
        }
    }
    fn queue(&self, disk: &SimDisk, nonce: u64) -> Builder {
        let World { bank, room, post, printer, .. } = self.clone();
        let (asked, seen) = (self.bank.clone(), self.post.clone());
        Jobs::on_disk(Arc::new(disk.clone()))
            .clock(Arc::new(self.clock.clone()))
            .process([1; 16], nonce)
            .seed(nonce)
            .cache_bytes(1 << 20)
            .workers(1)
            .key_scope("rewind")
            .effect(move |e: &Charge, key| bank.call(e.order, key))
            .probe(move |_: &Charge, key| Ok(asked.find_key(key)))
            .effect(move |e: &Book, key| room.call(e.order, key))
            .effect(move |e: &Mail, key| post.call(e.order, key))
            .probe(move |e: &Mail, _| Ok(seen.find(e.order)))
            .effect(move |e: &Print, key| printer.call(e.order, key))
            .on(|cx, order: Order| {
                cx.effect(Charge { order: order.id })?;
                cx.effect(Book { order: order.id })?;
                cx.effect(Mail { order: order.id })?;
                cx.effect(Print { order: order.id })?;
                Ok(())
            })
    }
    fn provider(&self, effect: &str) -> &Provider {
        match effect {
            "charge" => &self.bank,
            "book" => &self.room,
            "mail" => &self.post,
            _ => &self.printer,
        }
    }
    fn pass(&self, jobs: &Jobs, time: Duration) {
        self.clock.advance(time);
        testkit::run_until_idle(jobs).unwrap();
    }
    /// Everything was done once for every order so far.
    fn check(&self, orders: u64) -> Result<(), String> {
        for order in 1..=orders {
            for effect in ["charge", "book", "mail", "print"] {
                let times = self.provider(effect).happened(order);
                if times != 1 {
                    return Err(format!("{effect} of order {order} happened {times} times"));
                }
            }
        }
        Ok(())
    }
}

/// Whoever looks it up with the provider, and says what is so.
fn answer(world: &World, jobs: &Jobs, letter: &DeadLetter) {
    let Some(Question::DidItHappen { effect }) = letter.questions().first() else {
        panic!("asked for something else: {:?} {:#?}", letter.questions(), letter.history());
    };
    let order = letter.title().strip_prefix("Order ").and_then(|n| n.parse().ok()).expect("its title");
    let decision = match world.provider(&effect.name).find(order) {
        Some(reference) => Decision::happened(effect, Some(&reference)),
        None => Decision::did_not_happen(effect),
    };
    jobs.decide(letter, decision.by("ana", "looked it up")).unwrap();
}

/// Everything that was asked for is done, with a person at the desk: how often they were asked.
fn finish(world: &World, jobs: &Jobs, ids: &[JobId]) -> u64 {
    let mut asked = 0;
    for _ in 0..80 {
        world.pass(jobs, Duration::from_secs(95));
        for letter in jobs.dead_letters().unwrap() {
            asked += 1;
            answer(world, jobs, &letter);
        }
        if ids.iter().all(|id| jobs.state(*id).unwrap() == State::Done) {
            return asked;
        }
    }
    panic!("not done: {:#?}", ids.iter().map(|id| (jobs.state(*id), jobs.history(*id))).collect::<Vec<_>>());
}

/// An afternoon, recorded: orders come in one by one, some calls go wrong.
fn afternoon(world: &World, disk: &SimDisk) {
    disk.record();
    let jobs = world.queue(disk, 1).start().unwrap();
    // A clock that ran steadily for a day is believed.
    world.pass(&jobs, DAY + HOUR);
    let ids: Vec<_> = (1..=ORDERS)
        .map(|id| {
            let job = jobs.enqueue(&Order { id }).unwrap().id();
            world.pass(&jobs, 3 * MINUTE);
            job
        })
        .collect();
    finish(world, &jobs, &ids);
    jobs.shutdown(MINUTE).unwrap();
    world.check(ORDERS).unwrap();
}

/// The copy of any moment of the afternoon is put back, in the evening and hours later, when the keys are forgotten. Everything that was
/// ordered is ordered again, as webhooks are delivered again; work is resumed without anybody having compared anything. Nothing is done
/// twice, nothing is left out, and people are asked only where nobody else can tell. Once the review is lifted, new orders are new.
#[test]
fn whatever_copy_is_put_back_nothing_happens_again() {
    let mut origin = 400 * DAY;
    let (world, disk) = (World::new(&mut origin), SimDisk::new());
    afternoon(&world, &disk);
    let sidecar = disk.sidecar().lock().unwrap().clone();
    let (mut copies, mut reviews, mut asked, mut after) = (0_u64, 0_u64, 0_u64, 0_u64);
    crash_points(&[], &[], &disk.log(), |point| {
        if !point.exists || !point.index.is_multiple_of(EVERY) {
            return;
        }
        for late in [false, true] {
            // The providers' memories are those of the evening, whichever copy is put back.
            let world = world.later(late, &mut origin);
            copies += 1;
            let copy = SimDisk::from_image(point.image(0), sidecar.clone());
            let jobs = world.queue(&copy, 2).start().unwrap();
            let fail = |why: String| panic!("the copy after {} operations, late: {late}: {why}", point.index);
            if let Some(review) = jobs.review() {
                reviews += 1;
                assert!(jobs.pauses().iter().any(|(scope, _)| *scope == Scope::All), "{review:?}");
                jobs.resume(Scope::All).unwrap();
            }
            let again: Vec<_> = (1..=ORDERS).map(|id| jobs.enqueue(&Order { id }).unwrap().id()).collect();
            asked += finish(&world, &jobs, &again);
            if let Err(why) = world.check(ORDERS) {
                fail(why);
            }
            match jobs.lift_review("ana", "compared with all of them") {
                Ok(_) => after += 1,
                Err(Error::Refused(_)) => {}
                Err(e) => fail(e.to_string()),
            }
            let new = jobs.enqueue(&Order { id: ORDERS + 1 }).unwrap().id();
            testkit::run_until_idle(&jobs).unwrap();
            assert_eq!(jobs.state(new).unwrap(), State::Done, "a new order waits for nobody: {:#?}", jobs.history(new));
            if let Err(why) = world.check(ORDERS + 1) {
                fail(why);
            }
            jobs.shutdown(MINUTE).unwrap();
        }
    });
    println!("rewind: {copies} copies put back, {reviews} of them known to be older, {asked} questions to people");
    assert!(copies > 100 && reviews > copies / 2 && asked > reviews, "{copies} {reviews} {asked}");
    assert_eq!(reviews, after, "every review was lifted, and nothing else");
}
