//! The kit that apps test themselves with: their own handlers, once for every place where the process can die and for everything that
//! can go wrong with time inside a call. It has to find what is wrong with an app, and nothing wrong with a careful one.

mod examples;

use super::ground::request;
use onceward::prelude::*;
use onceward::testkit::{self, Broken, Does, Scene, Tried};
use onceward::{AlertEvent, AlertRules, Backoff, Builder, Error, OnDead, Outboxed, State, Why};
use redb::{ReadableTable, TableDefinition};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

const DAY: Duration = Duration::from_secs(24 * 3_600);
const BOOKS: TableDefinition<'_, &str, u64> = TableDefinition::new("books");

/// An order: charge, reserve, tell, and write it into the books.
#[derive(Serialize, Deserialize)]
struct Order {
    id: u64,
}

impl Job for Order {
    const KIND: &'static str = "order";
    fn key(&self) -> JobKey {
        format!("ord_{}", self.id).into()
    }
    fn effects() -> Vec<EffectCard> {
        vec![Charge::card(), Reserve::card(), Tell::card()]
    }
    fn policy() -> Policy {
        Policy::default()
            .retries(5)
            .backoff(Backoff::steps([Duration::from_secs(60), Duration::from_secs(600)]))
            .success("the order is paid, reserved and announced once")
            .review("nobody knows whether it was paid or announced")
    }
}

request!(Charge "charge" Risk::Charge, Recovery::same_key(DAY));
request!(Reserve "reserve" Risk::Routine, Recovery::probe(Duration::from_secs(60)));
request!(Tell "tell" Risk::Email, Recovery::ask());

fn order(cx: &Cx, order: Order) -> Outcome {
    let id = order.id;
    cx.effect(Charge { order: id })?;
    cx.effect(Reserve { order: id })?;
    cx.effect(Tell { order: id })?;
    cx.finish(move |tx| {
        let mut books = tx.open_table(BOOKS)?;
        let before = books.get("orders").map_err(Fail::new)?.map_or(0, |n| n.value());
        books.insert("orders", before + 1).map_err(Fail::new)?;
        Ok(())
    })
}

/// The bank does it and its answer is lost; the store loses the first request; the post has no keys.
fn shop(scene: &Scene) -> Builder {
    let first = |does| move |_: &str, before: usize| if before == 0 { does } else { Does::It };
    let bank = scene.provider("bank").behaving(first(Does::ItAndTimesOut));
    let stock = scene.provider("stock").without_keys().behaving(first(Does::NothingAndTimesOut));
    let (asked, post) = (stock.clone(), scene.provider("post").without_keys());
    scene
        .open()
        .key_scope("kit")
        .on(order)
        .effect(move |c: &Charge, key| bank.call(&c.says(), key))
        .effect(move |r: &Reserve, key| stock.call(&r.says(), key))
        .effect(move |t: &Tell, key| post.call(&t.says(), key))
        .probe(move |r: &Reserve, _| Ok(asked.find(&r.says())))
}

fn ask_for_one(_: &Scene, jobs: &Jobs) -> Result<(), Error> {
    jobs.enqueue(&Order { id: 1 }).map(drop)
}

fn booked(jobs: &Jobs) -> u64 {
    let found = jobs.read(|r| r.open_table(BOOKS).ok().and_then(|t| t.get("orders").unwrap().map(|n| n.value())));
    found.unwrap().unwrap_or(0)
}

/// Paid once; done means all of it once, and everything else is a question to a person about the one thing nobody can know.
fn once(scene: &Scene, jobs: &Jobs) -> Result<(), String> {
    testkit::assert_enqueued(jobs, &Order { id: 1 });
    testkit::assert_effect_once(&scene.provider("bank"), "charge 1");
    let times = |name: &str, what: &str| scene.provider(name).happened(what);
    assert!(times("stock", "reserve 1") <= 1 && times("post", "tell 1") <= 1);
    let id = jobs.find::<Order>(&"ord_1".into()).unwrap().ok_or("the order is lost")?;
    match jobs.state(id).map_err(|e| e.to_string())? {
        State::Done => {
            assert_eq!((times("stock", "reserve 1"), times("post", "tell 1"), booked(jobs)), (1, 1, 1));
            Ok(())
        }
        State::NeedsDecision => {
            let letter = jobs.dead_letter(id).map_err(|e| e.to_string())?;
            assert!(letter.questions().iter().all(|q| q.effect().is_some()), "{:?}", letter.questions());
            Ok(())
        }
        // The calendar was set ahead by more than the order has time: a person is asked what now.
        State::Dead if jobs.dead_letter(id).is_ok_and(|l| l.why() == Why::DeadlinePassed) => Ok(()),
        other => Err(format!("the order is {other:?}")),
    }
}

fn tried(what: &str, came: Result<Tried, Broken>) -> Tried {
    let tried = came.unwrap();
    println!("kit, {what}: {tried}");
    assert!(tried.crash_points > 50 && tried.lives == 2 * tried.crash_points);
    assert!(tried.calls > 0 && tried.disturbed == 5 * tried.calls);
    tried
}

/// The order story, at every place: paid once, whatever dies; and the same story on a queue that only retries is seen to fail.
#[test]
fn a_careful_app_keeps_its_promises_wherever_it_dies() {
    tried("order", testkit::crash_everywhere(shop, ask_for_one, once));
    let broken = testkit::naive(shop, ask_for_one, once).unwrap_err();
    // Once for each try: the bank's answer was lost, then the store's.
    assert!(broken.place == "without any crash" && broken.why.contains("\"charge 1\" happened 3 times"), "{broken}");
}

/// The app calls its bank in the handler, with no effect around it: all is well until it dies behind the call, and the kit says where.
#[test]
fn a_call_that_is_no_effect_is_found_out() {
    let careless = |scene: &Scene| {
        let bank = scene.provider("bank").without_keys();
        let stock = scene.provider("stock").without_keys();
        let post = scene.provider("post");
        scene
            .open()
            .key_scope("kit")
            .effect(move |r: &Reserve, key| stock.call(&r.says(), key))
            .effect(move |t: &Tell, key| post.call(&t.says(), key))
            .effect(|_: &Charge, _| Ok(String::new()))
            .probe(|_: &Reserve, _| Ok(None))
            .on(move |cx, order: Order| {
                let (charge, key) = (Charge { order: order.id }, cx.effect(Charge { order: order.id }));
                key?;
                bank.call(&charge.says(), &testkit::idempotency_key("any"))?;
                Ok(())
            })
    };
    let check = |scene: &Scene, _: &Jobs| {
        testkit::assert_effect_once(&scene.provider("bank"), "charge 1");
        Ok(())
    };
    let broken = testkit::crash_everywhere(careless, ask_for_one, check).unwrap_err();
    let place = broken.place.contains("the process was killed") && broken.place.contains("after the call \"charge 1\"");
    assert!(place && broken.why.contains("happened 2 times"), "{broken}");
}

/// Its key is made anew at every start: the same intent twice, and the kit sees it at the first death.
#[test]
fn a_key_that_is_not_the_intent_is_found_out() {
    #[derive(Serialize, Deserialize)]
    struct Anew {
        key: String,
    }
    impl Job for Anew {
        const KIND: &'static str = "anew";
        fn key(&self) -> JobKey {
            self.key.clone().into()
        }
        fn effects() -> Vec<EffectCard> {
            vec![Charge::card()]
        }
        fn policy() -> Policy {
            Policy::default().success("paid").review("nobody knows")
        }
    }
    let starts = Arc::new(AtomicUsize::new(0));
    let app = |scene: &Scene| {
        let bank = scene.provider("bank");
        let builder = scene.open().key_scope("kit").on(|cx, _: Anew| cx.effect(Charge { order: 1 }).map(drop));
        builder.effect(move |c: &Charge, key| bank.call(&c.says(), key))
    };
    let drive = |_: &Scene, jobs: &Jobs| {
        let key = starts.fetch_add(1, Ordering::SeqCst).to_string();
        jobs.enqueue(&Anew { key }).map(drop)
    };
    let check = |scene: &Scene, _: &Jobs| match scene.provider("bank").happened("charge 1") {
        1 => Ok(()),
        n => Err(format!("paid {n} times")),
    };
    let broken = testkit::crash_everywhere(app, drive, check).unwrap_err();
    assert_eq!(broken.why, "paid 2 times", "{broken}");
}

/// A handler that never ends, and a check that panics: each is said, with its place, and hangs nobody.
#[test]
fn what_does_not_start_settle_or_hold_is_said_with_its_place() {
    let nothing = |_: &Scene, _: &Jobs| Ok(());
    let twice = |scene: &Scene| scene.open().on(|_, _: Order| Ok(())).on(|_, _: Order| Ok(()));
    let broken = testkit::crash_everywhere(twice, |_, _| Ok(()), nothing).unwrap_err();
    assert!(broken.why.starts_with("it does not start: "), "{broken}");
    let refused = |_: &Scene, _: &Jobs| Err(Error::ShutDown);
    let broken = testkit::crash_everywhere(shop, refused, nothing).unwrap_err();
    assert!(broken.why.starts_with("the drive failed: "), "{broken}");
    let forever = |scene: &Scene| {
        let day = |_: &Cx, _: Brief| Err(Fail::not_yet("tomorrow", DAY));
        scene.open().on(day)
    };
    let ask = |_: &Scene, jobs: &Jobs| jobs.enqueue(&Brief).map(drop);
    let broken = testkit::crash_everywhere(forever, ask, nothing).unwrap_err();
    assert!(broken.why.contains("something still goes on"), "{broken}");
    let panics = |_: &Scene, _: &Jobs| panic!("this is not so");
    let broken = testkit::crash_everywhere(shop, ask_for_one, panics).unwrap_err();
    assert_eq!(broken.to_string(), "without any crash: this is not so");
}

#[derive(Serialize, Deserialize)]
struct Brief;
impl Job for Brief {
    const KIND: &'static str = "brief";
    fn key(&self) -> JobKey {
        "b".into()
    }
}

/// A trip: paid, then the hotel says no for good, and the payment is given back by a job of its own, which tells the world.
#[derive(Serialize, Deserialize)]
struct Trip;
impl Job for Trip {
    const KIND: &'static str = "trip";
    fn key(&self) -> JobKey {
        "trip".into()
    }
    fn effects() -> Vec<EffectCard> {
        vec![Pay::card(), Hotel::card()]
    }
    fn policy() -> Policy {
        Policy::default().on_dead(OnDead::Undo).success("booked").review("nobody knows whether it was paid")
    }
}

#[derive(Serialize, Deserialize)]
struct GiveBack;
impl Job for GiveBack {
    const KIND: &'static str = "give-back";
    fn key(&self) -> JobKey {
        "trip".into()
    }
    fn effects() -> Vec<EffectCard> {
        vec![Refund::card()]
    }
    fn policy() -> Policy {
        Policy::default().retries(3).success("given back once").review("nobody knows whether it was given back")
    }
}

request!(Pay "pay" Risk::Charge, Recovery::same_key(DAY), fn undo(&self, _: Option<&String>) -> Undo {
    Undo::job(GiveBack)
});
request!(Hotel "hotel" Risk::Routine, Recovery::ask());
request!(Refund "refund" Risk::Charge, Recovery::same_key(DAY));

fn travel(scene: &Scene) -> Builder {
    let bank = scene.provider("bank");
    let back = scene.provider("bank").behaving(|_, before| if before < 2 { Does::ItAndTimesOut } else { Does::It });
    let hotel = scene.provider("hotel").behaving(|_, _| Does::Refuses);
    let (world, phone) = (scene.provider("world"), scene.provider("phone"));
    scene
        .open()
        .key_scope("kit")
        .on(|cx, _: Trip| {
            cx.effect(Pay { order: 1 })?;
            cx.effect(Hotel { order: 1 }).map_err(Fail::for_good)?;
            Ok(())
        })
        .on(|cx, _: GiveBack| {
            cx.effect(Refund { order: 1 })?;
            cx.finish(|tx| match tx.outbox("trips", "trip/given-back", b"sorry")? {
                Outboxed::New { .. } => Ok(()),
                known => Err(Fail::permanent(format!("{known:?}"))),
            })
        })
        .effect(move |p: &Pay, key| bank.call(&p.says(), key))
        .effect(move |h: &Hotel, key| hotel.call(&h.says(), key))
        .effect(move |r: &Refund, key| back.call(&r.says(), key))
        .alert_rules(AlertRules::new().failures(1))
        .on_alert(move |alert| {
            if matches!(alert.event(), AlertEvent::Fired(firing) if firing.kind.as_deref() == Some("trip")) {
                phone.call("it fails", &testkit::idempotency_key("trip")).map(drop).unwrap_or_default();
            }
        })
        .publisher("trips", move |m: &onceward::Message| world.call(&m.id, &testkit::idempotency_key(&m.id)).map(drop))
}

/// Payment captured, reservation permanently refused, refund in doubt twice: at every place of it the money is taken once and given
/// back once, the trip never counts as a success, the world hears of it under one id, and somebody is told.
#[test]
fn what_is_undone_is_undone_once_wherever_it_dies() {
    let drive = |_: &Scene, jobs: &Jobs| jobs.enqueue(&Trip).map(drop);
    let check = |scene: &Scene, jobs: &Jobs| {
        let id = jobs.find::<Trip>(&"trip".into()).unwrap().ok_or("the trip is lost")?;
        let state = jobs.state(id).map_err(|e| e.to_string())?;
        assert_eq!(scene.provider("hotel").happened("hotel 1"), 0);
        let letters = jobs.dead_letters().map_err(|e| e.to_string())?;
        let asked = |kind: &str| {
            let letter = letters.iter().find(|l| l.kind() == kind);
            letter.is_some_and(|l| l.questions().iter().any(|q| q.effect().is_some()))
        };
        match state {
            // Dead inside a call that only a person can answer for: nothing is undone beside it.
            State::NeedsDecision => {
                assert!(asked("trip") && scene.provider("bank").happened("refund 1") == 0);
                return Ok(());
            }
            // The calendar cannot be trusted, so nor can the bank's memory of keys: a person is asked before it is called again.
            State::Compensating => {
                // Or its deadline is over by that calendar: then nobody asks about a call that was not made, but whether to go on.
                let late = letters.iter().any(|l| l.kind() == "give-back" && l.why() == Why::DeadlinePassed);
                assert!(late || asked("give-back"), "{letters:?}");
                assert!(scene.provider("bank").happened("refund 1") <= usize::from(asked("give-back")));
                return Ok(());
            }
            State::Compensated => assert!(letters.is_empty()),
            other => return Err(format!("the trip is {other:?}")),
        }
        // Somebody is told that it failed, although nobody is asked and no attempt is left that could fail.
        testkit::run_until_told(jobs).map_err(|e| e.to_string())?;
        testkit::assert_effect_once(&scene.provider("phone"), "it fails");
        testkit::assert_effect_once(&scene.provider("bank"), "pay 1");
        testkit::assert_effect_once(&scene.provider("bank"), "refund 1");
        testkit::assert_effect_once(&scene.provider("world"), "trip/given-back");
        Ok(())
    };
    tried("trip", testkit::crash_everywhere(travel, drive, check));
}
