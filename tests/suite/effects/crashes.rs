//! The process dies, or the power is cut, at every named point around a call: whatever is found afterwards, nothing happens twice,
//! nothing is lost in silence, and the recovery rule decides what follows.

use super::{charge, each_mix};
use crate::rig::order::{Ask, Both, Do, Mix, Probed, Rule, SameKey, Shop, counted, mixes};
use crate::rig::provider::{Act, Says};
use crate::rig::{Crash, HOUR, MINUTE, is};
use onceward::{EffectState, Jobs, Question, State};

/// Where the process ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Point {
    /// The handler began.
    Start,
    /// Inside the performer: nothing was sent.
    BeforeItHappens,
    /// Inside the performer: it happened.
    AfterItHappened,
    /// The handler has the result.
    AfterTheAnswer,
    /// Beside that, the app's row is committed.
    AfterTheCommit,
    /// Inside the second performer, the first effect is confirmed.
    BesideTheSecond,
    /// Inside the probe, after a lost answer.
    InTheProbe,
}
const POINTS: [Point; 7] = [
    Point::Start,
    Point::BeforeItHappens,
    Point::AfterItHappened,
    Point::AfterTheAnswer,
    Point::AfterTheCommit,
    Point::BesideTheSecond,
    Point::InTheProbe,
];
const CRASHES: [Crash; 5] = [Crash::Kill, Crash::Power(0), Crash::Power(1), Crash::Power(2), Crash::Power(3)];

fn script() -> Vec<Do> {
    vec![
        Do::Wait("start"),
        Do::Charge(500),
        Do::Wait("answered"),
        Do::Commit("paid"),
        Do::Wait("committed"),
        Do::Reserve,
        Do::Finish,
    ]
}

/// Runs until the point is reached; false if this rule never comes there.
fn run_to<C: Rule>(shop: &Shop, jobs: &Jobs, point: Point) -> bool {
    let stage = &shop.world.stage;
    let door = match point {
        Point::Start => "start",
        Point::BeforeItHappens => {
            shop.pay.will([Act::Holds("call")]);
            "call"
        }
        Point::AfterItHappened => {
            shop.pay.will([Act::Dawdles("call")]);
            "call"
        }
        Point::AfterTheAnswer => "answered",
        Point::AfterTheCommit => "committed",
        Point::BesideTheSecond => {
            shop.stock.will([Act::Dawdles("second")]);
            "second"
        }
        Point::InTheProbe => {
            if C::recovery().key_ttl().is_some() || C::recovery().settle().is_none() {
                return false;
            }
            shop.pay.will([Act::Loses]);
            shop.pay.will_say([Says::Holds("probe")]);
            "probe"
        }
    };
    let _ = shop.order::<C, Probed>(jobs);
    // Every door before the point is opened, for every attempt.
    let doors = ["start", "call", "probe", "answered", "committed", "second"];
    doors.iter().take_while(|d| **d != door).for_each(|d| (0..9).for_each(|_| stage.open(d)));
    stage.came(door, 1);
    true
}

fn story<C: Rule>(mix: Mix, point: Point, crash: Crash, keys: bool) -> bool {
    let mut shop = if keys { Shop::new(mix) } else { Shop::without_keys(mix) };
    let jobs = shop.open::<C, Probed>(script());
    if !run_to::<C>(&shop, &jobs, point) {
        return false;
    }
    shop.world.crash(jobs, crash);
    let charged = shop.pay.times();
    assert_eq!(charged, usize::from(!matches!(point, Point::Start | Point::BeforeItHappens)));
    // The next process runs without a stop.
    for door in ["start", "answered", "committed"] {
        (0..9).for_each(|_| shop.world.stage.open(door));
    }
    let jobs = shop.open::<C, Probed>(script());
    let id = jobs.enqueue(&crate::rig::order::Order::<C, Probed>::number(1)).unwrap();
    assert!(!id.is_new(), "an acknowledged enqueue is never lost");
    let id = id.id();
    shop.world.settle(&jobs);
    let settled = || jobs.state(id).unwrap().is_settled();
    shop.world.pass_until(&jobs, MINUTE, HOUR, settled);
    let open = matches!(point, Point::BeforeItHappens | Point::AfterItHappened);
    let what = format!("{mix:?} {point:?} {crash:?}");
    if open && C::recovery() == onceward::Recovery::ask() {
        is(&jobs, id, State::NeedsDecision);
        assert_eq!(charge(&jobs, id), EffectState::Intended, "{what}");
        let letter = jobs.dead_letter(id).unwrap();
        assert!(matches!(letter.questions(), [Question::DidItHappen { effect }] if effect.name == "charge"), "{what}");
        assert_eq!((shop.pay.times(), shop.pay.calls().len()), (charged, 1), "{what}");
        return true;
    }
    is(&jobs, id, State::Done);
    assert_eq!((shop.pay.times(), shop.stock.times()), (1, 1), "{what}");
    assert_eq!((counted(&jobs, "paid"), counted(&jobs, "finish")), (1, 1), "{what}");
    true
}

/// Every point, every way to die, every rule: the intent is durable before the call and the confirmation before the answer, so the
/// next process knows what to ask; one charge, one reservation, one row.
#[test]
fn a_death_at_any_point_never_charges_twice() {
    let mut told = 0;
    for mix in mixes() {
        for point in POINTS {
            for crash in CRASHES {
                told += usize::from(story::<SameKey>(mix, point, crash, true));
                told += usize::from(story::<Both>(mix, point, crash, true));
                told += usize::from(story::<Probed>(mix, point, crash, false));
                told += usize::from(story::<Ask>(mix, point, crash, false));
            }
        }
    }
    println!("{told} deaths");
    assert!(told >= 100, "{told}");
}

/// The intent alone: the power is cut inside the performer, nothing unsynced survives, and the record is there, with its key.
#[test]
fn the_intent_is_durable_before_the_call() {
    each_mix(|mix| {
        let mut shop = Shop::new(mix);
        let jobs = shop.open::<Ask, Probed>(vec![Do::Charge(500)]);
        shop.pay.will([Act::Holds("call")]);
        let id = shop.order::<Ask, Probed>(&jobs);
        shop.world.stage.came("call", 1);
        shop.world.crash(jobs, Crash::Power(1));
        let jobs = shop.open::<Ask, Probed>(vec![]);
        let ledger = jobs.ledger(id).unwrap();
        assert_eq!((ledger.len(), ledger[0].state, ledger[0].calls), (1, EffectState::Intended, 1));
        assert_eq!(vec![ledger[0].idempotency_key.clone()], shop.pay.keys());
        assert_eq!(ledger[0].says, "Charge 500 cents for order 1");
    });
}

/// The confirmation alone: the power is cut right after effect() returned, and it is there, with the reference.
#[test]
fn the_confirmation_is_durable_before_the_answer() {
    each_mix(|mix| {
        let mut shop = Shop::new(mix);
        let jobs = shop.open::<Ask, Probed>(vec![Do::Charge(500), Do::Wait("after")]);
        let id = shop.order::<Ask, Probed>(&jobs);
        shop.world.stage.came("after", 1);
        shop.world.crash(jobs, Crash::Power(1));
        let jobs = shop.open::<Ask, Probed>(vec![Do::Charge(500)]);
        let line = jobs.ledger(id).unwrap().remove(0);
        assert_eq!((line.state, line.reference.as_deref()), (EffectState::Confirmed, Some("op_1")));
        assert_eq!(line.undo.map(|(kind, _)| kind).as_deref(), Some("refund"));
        shop.world.settle(&jobs);
        is(&jobs, id, State::Done);
        assert_eq!(shop.pay.calls().len(), 1);
    });
}
