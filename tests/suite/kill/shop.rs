//! The shop under the knife: orders that pay, ship and then find the last item gone for good, with a way back whose refund fails
//! twice before it works; and the person who decides where the policy does not.

use super::app::at;
use super::child::is_child;
use super::effects::Ledger;
use super::{PATIENCE, app::say};
use onceward::{
    Backoff, Builder, Choice, Cx, DeadLetter, Decision, Effect, EffectCard, Fail, IdempotencyKey, Job, JobId, JobKey,
    Jobs, OnDead, Outcome, Policy, Question, Recovery, State, Undo, Undoing,
};
use serde::{Deserialize, Deserializer, Serialize};
use std::path::Path;
use std::time::Duration;

/// Where the child can be told to stop until it is killed, in the order of a job's way there and back.
pub(super) const POINTS: &[&str] = &[
    "in the order",
    "before pay",
    "after pay",
    "pay confirmed",
    "before ship",
    "after ship",
    "ship confirmed",
    "before reserve",
    "no goods",
    "at the desk",
    "undo decided",
    "recall claimed",
    "before fetch",
    "after fetch",
    "fetch confirmed",
    "refund claimed",
    "before give",
    "give is away",
    "after give",
    "give confirmed",
];

/// How often the provider of refunds is away, for each order.
pub(super) const AWAY: usize = 2;
const DAY: Duration = Duration::from_secs(24 * 3600);
const SETTLE: Duration = Duration::from_millis(100);

macro_rules! effects {
    ($($name:ident $word:literal $recovery:expr, $undo:expr;)*) => {$(
        #[derive(Serialize, Deserialize)]
        struct $name {
            order: u64,
        }
        impl Effect for $name {
            type Result = String;
            const NAME: &'static str = $word;
            fn says(&self) -> String {
                format!("{} for order {}", $word, self.order)
            }
            fn recovery() -> Recovery {
                $recovery
            }
            fn undo(&self, _: Option<&String>) -> Undo {
                let undo: fn(u64) -> Undo = $undo;
                undo(self.order)
            }
            fn reference(done: &String) -> Option<String> {
                Some(done.clone())
            }
            fn from_reference(&self, reference: &str) -> Option<String> {
                Some(reference.to_owned())
            }
        }
    )*};
}

effects! {
    Pay "pay" Recovery::same_key(DAY), |order| Undo::job(Refund { order });
    Ship "ship" Recovery::probe(SETTLE), |order| Undo::job(Recall { order });
    Reserve "reserve" Recovery::ask(), |_| Undo::none();
    Give "give" Recovery::same_key(DAY), |_| Undo::none();
    Fetch "fetch" Recovery::probe(SETTLE), |_| Undo::none();
}

/// The provider dedupes nothing: it happens whenever it is asked to. The two points are before and after it.
fn perform(
    points: [&'static str; 2],
    effect: &str,
    order: u64,
    ledger: &Ledger,
    key: &IdempotencyKey,
) -> Outcome<String> {
    at(points[0]);
    let done = ledger.happen(effect, order, key.as_str());
    at(points[1]);
    Ok(done.receipt())
}

impl Pay {
    /// This provider honours keys: the same key is the same charge.
    fn once(&self, ledger: &Ledger, key: &IdempotencyKey) -> Outcome<String> {
        let new = || perform(["before pay", "after pay"], Self::NAME, self.order, ledger, key);
        ledger.find(key.as_str()).map_or_else(new, |done| Ok(done.receipt()))
    }
}

impl Give {
    /// Away for the first two calls of an order, whichever process makes them; the ledger knows.
    fn at_last(&self, ledger: &Ledger, key: &IdempotencyKey) -> Outcome<String> {
        let calls = ledger.all().iter().filter(|h| h.effect == "away" && h.order == self.order).count();
        if calls < AWAY {
            // Under no key: nothing is found under it later.
            ledger.happen("away", self.order, "-");
            at("give is away");
            return Err(Fail::not_sent("no connection"));
        }
        let new = || perform(["before give", "after give"], Self::NAME, self.order, ledger, key);
        ledger.find(key.as_str()).map_or_else(new, |done| Ok(done.receipt()))
    }
}

impl Reserve {
    fn never(&self) -> Outcome<String> {
        at("before reserve");
        Err(Fail::refused(format!("nothing is left for order {}", self.order)).for_good())
    }
}

fn tries() -> Policy {
    Policy::default().retries(5).backoff(Backoff::steps([Duration::from_millis(1)]))
}

macro_rules! jobs {
    ($($name:ident $kind:literal $decode:literal $policy:expr, [$($effect:ident),*];)*) => {$(
        #[derive(Serialize, Deserialize)]
        pub(super) struct $name {
            #[serde(deserialize_with = $decode)]
            pub(super) order: u64,
        }
        impl Job for $name {
            const KIND: &'static str = $kind;
            fn key(&self) -> JobKey {
                format!("{}", self.order).into()
            }
            fn policy() -> Policy {
                $policy
            }
            fn effects() -> Vec<EffectCard> {
                vec![$($effect::card()),*]
            }
        }
    )*};
}

jobs! {
    Bought "bought" "number" tries().on_dead(OnDead::Undo), [Pay, Ship, Reserve];
    Held "held" "number" tries(), [Pay, Ship, Reserve];
    Refund "refund" "refund_claimed" tries(), [Give];
    Recall "recall" "recall_claimed" tries(), [Fetch];
}

fn number<'de, D: Deserializer<'de>>(d: D) -> Result<u64, D::Error> {
    u64::deserialize(d)
}

/// Payloads are decoded once the job is claimed, and before its handler is called.
fn refund_claimed<'de, D: Deserializer<'de>>(d: D) -> Result<u64, D::Error> {
    at("refund claimed");
    number(d)
}

fn recall_claimed<'de, D: Deserializer<'de>>(d: D) -> Result<u64, D::Error> {
    at("recall claimed");
    number(d)
}

fn carry_out(cx: &Cx, order: u64) -> Outcome {
    say(&format!("begin {order}"));
    at("in the order");
    cx.effect(Pay { order })?;
    at("pay confirmed");
    cx.effect(Ship { order })?;
    at("ship confirmed");
    let reserved = cx.effect(Reserve { order });
    at("no goods");
    reserved.map(drop)
}

/// The queue in `dir`, with its providers.
pub(super) fn queue(dir: &Path, ledger: &Ledger) -> Builder {
    let l = || ledger.clone();
    let (pay, ship, shipped, give, fetch, fetched) = (l(), l(), l(), l(), l(), l());
    Jobs::open(dir.join("q.redb"))
        .workers(4)
        .on(|cx, job: Bought| carry_out(cx, job.order))
        .on(|cx, job: Held| carry_out(cx, job.order))
        .on(|cx, job: Refund| {
            cx.effect(Give { order: job.order })?;
            at("give confirmed");
            Ok(())
        })
        .on(|cx, job: Recall| {
            cx.effect(Fetch { order: job.order })?;
            at("fetch confirmed");
            Ok(())
        })
        .effect(move |e: &Pay, key| e.once(&pay, key))
        .effect(move |e: &Ship, key| perform(["before ship", "after ship"], Ship::NAME, e.order, &ship, key))
        .probe(move |_: &Ship, key| Ok(shipped.find(key.as_str()).map(|h| h.receipt())))
        .effect(|e: &Reserve, _| e.never())
        .effect(move |e: &Give, key| e.at_last(&give, key))
        .effect(move |e: &Fetch, key| perform(["before fetch", "after fetch"], Fetch::NAME, e.order, &fetch, key))
        .probe(move |_: &Fetch, key| Ok(fetched.find(key.as_str()).map(|h| h.receipt())))
}

/// Orders with even numbers are undone by policy, the others by a person.
pub(super) fn place(jobs: &Jobs, order: u64) -> onceward::Enqueued {
    let told = if order.is_multiple_of(2) { jobs.enqueue(&Bought { order }) } else { jobs.enqueue(&Held { order }) };
    told.expect("an order can be enqueued")
}

/// Lets an order come to its end, with a person at the desk. Returns the letters that they answered, and the end.
pub(super) fn follow(jobs: &Jobs, id: JobId, ledger: &Ledger, letters: &mut Vec<String>) -> State {
    // Not a bound of time: what goes on by itself is waited for, and people are asked only so often.
    while letters.len() < 1_000 {
        let state = jobs.state(id).expect("an order has a state");
        if state.is_over() {
            return state;
        }
        let lines = jobs.ledger(id).expect("a ledger");
        let under_way = lines.iter().find(|l| l.undoing == Undoing::UnderWay).and_then(|l| l.undo_job);
        let waits = under_way.unwrap_or(id);
        match jobs.dead_letter(waits) {
            Ok(letter) => {
                letters.push(format!("{} {:?}", letter.kind(), letter.why()));
                answer(jobs, &letter, ledger);
            }
            // A while: it may go on as something else than what is waited for.
            Err(_) => drop(jobs.wait(waits, Duration::from_millis(20))),
        }
    }
    panic!("order {id} never ends: {:#?}", jobs.history(id));
}

/// The person answers from the ledger, and wants undone whatever can be.
pub(super) fn answer(jobs: &Jobs, letter: &DeadLetter, ledger: &Ledger) {
    let asked = letter.questions().iter().find_map(|q| match q {
        Question::DidItHappen { effect } => Some(effect),
        _ => None,
    });
    let undo = |c: &&Choice| c.label == "Undo what was done";
    let decision = match asked {
        Some(effect) => {
            let line = letter.ledger().iter().find(|l| l.id == *effect).expect("what is asked about is shown");
            match ledger.find(&line.idempotency_key) {
                Some(h) => Decision::happened(effect, Some(&h.receipt())),
                None => Decision::did_not_happen(effect),
            }
        }
        None => letter.choices().iter().find(undo).and_then(Choice::decision).unwrap_or_else(Decision::try_again),
    };
    at("at the desk");
    match jobs.decide(letter, decision.by("the suite", "the ledger says so")) {
        Ok(_) => say(&format!("decided {}", letter.job())),
        // In a child the other orders go on: the job may have moved since.
        Err(onceward::Error::Refused(onceward::Refusal::Stale { .. })) => {}
        Err(e) => panic!("{e}: {letter:#?}"),
    }
    at("undo decided");
}

/// Opens the shop, places its orders, follows them to their end, closes; killed somewhere on the way.
pub(super) fn child(dir: &Path, first: u64, count: u64) {
    assert!(is_child(), "only ever run in a process of its own");
    let ledger = Ledger::open(dir);
    say("opening");
    let jobs = queue(dir, &ledger).start().expect("a kill leaves a file that opens");
    say("open");
    let mut ids = Vec::new();
    for n in first..first + count {
        say(&format!("try {n}"));
        let told = place(&jobs, n);
        say(&format!("ack {n} {}", told.id()));
        ids.push(told.id());
    }
    let mut letters = Vec::new();
    for id in ids {
        let state = follow(&jobs, id, &ledger, &mut letters);
        say(&format!("over {id} {state:?}"));
    }
    jobs.drain(PATIENCE).expect("everything runs");
    say("closing");
    jobs.shutdown(PATIENCE).expect("it closes");
}
