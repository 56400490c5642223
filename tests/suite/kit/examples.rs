//! The project's own examples at every place where they can die: their kinds and handlers as they run, with pretend providers outside.

use super::super::decide::cards::notify::{self, By, Notify, Sends};
use super::super::decide::cards::the_shop::client::World;
use super::super::decide::cards::the_shop::crash::Crash;
use super::super::decide::cards::the_shop::plan::{Order, Plan};
use super::super::decide::cards::the_shop::shop::{self, CompleteOrder, PAID, SendReceipt};
use super::tried;
use onceward::testkit::{self, Does, Provider, Scene, idempotency_key};
use onceward::{Builder, Error, Jobs, Outcome, State, Why};
use std::sync::Arc;

/// Waits for a person for a reason that nothing can help: nobody knows, or the calendar was set ahead by more than it has time.
fn asks(jobs: &Jobs, id: onceward::JobId) -> Result<(), String> {
    let letter = jobs.dead_letter(id).map_err(|e| e.to_string())?;
    let unknown = letter.questions().iter().any(|q| q.effect().is_some());
    if unknown || letter.why() == Why::DeadlinePassed { Ok(()) } else { Err(format!("asked for nothing: {letter:?}")) }
}

/// A company of the example about messages; it has no keys, and its first answer is lost.
#[derive(Clone)]
struct Company(Provider);

impl Company {
    fn of(scene: &Scene, name: &str) -> Self {
        let company = scene.provider(name).without_keys();
        Self(company.behaving(|_, before| if before == 0 { Does::ItAndTimesOut } else { Does::It }))
    }
}

impl Sends for Company {
    fn send(&self, payment: u64) -> Outcome<String> {
        self.0.call(&format!("message {payment}"), &idempotency_key("none"))
    }
    fn find(&self, payment: u64) -> Outcome<Option<String>> {
        Ok(self.0.find(&format!("message {payment}")))
    }
}

/// A customer is told once, whatever dies, by a company that can be asked; by one that cannot, once, or a person is asked.
#[test]
fn the_double_notify_story_tells_once_wherever_it_dies() {
    let app = |scene: &Scene| notify::with(scene.open(), &Company::of(scene, "push"), &Company::of(scene, "sms"));
    let drive = |_: &Scene, jobs: &Jobs| -> Result<(), Error> {
        jobs.enqueue(&Notify { payment: 1, by: By::Push })?;
        jobs.enqueue(&Notify { payment: 2, by: By::Sms }).map(drop)
    };
    let check = |scene: &Scene, jobs: &Jobs| {
        for (payment, company) in [(1_u64, "push"), (2, "sms")] {
            let told = scene.provider(company).happened(&format!("message {payment}"));
            let id = jobs.find::<Notify>(&format!("payment/{payment}").into()).map_err(|e| e.to_string())?;
            let id = id.ok_or("the intent is lost")?;
            match jobs.state(id).map_err(|e| e.to_string())? {
                State::Done if told == 1 => {}
                State::NeedsDecision | State::Dead if told <= 1 => asks(jobs, id)?,
                state => return Err(format!("payment {payment} is {state:?}, and its customer was told {told} times")),
            }
        }
        Ok(())
    };
    tried("notify", testkit::crash_everywhere(app, drive, check));
    let broken = testkit::naive(app, drive, check).unwrap_err();
    assert!(broken.why.contains("was told 2 times"), "{broken}");
}

/// Everybody outside of the shop. The payment company's first answer is lost, the warehouse's first request.
#[derive(Clone)]
struct Outside {
    bank: Provider,
    stock: Provider,
}

impl World for Outside {
    fn charge(&self, order: u64, cents: u64, key: &str) -> Outcome<String> {
        self.bank.call(&format!("charge {order} {cents}"), &idempotency_key(key))
    }
    fn find_charge(&self, key: &str) -> Outcome<Option<String>> {
        let key = idempotency_key(key);
        Ok(self.bank.operations().into_iter().find(|o| o.key == key.as_str()).map(|o| o.reference))
    }
    fn reserve(&self, order: u64) -> Outcome<String> {
        self.stock.call(&format!("reserve {order}"), &idempotency_key("none"))
    }
    fn find_reservation(&self, order: u64) -> Outcome<Option<String>> {
        Ok(self.stock.find(&format!("reserve {order}")))
    }
    fn book_courier(&self, order: u64) -> Outcome<String> {
        self.stock.call(&format!("courier {order}"), &idempotency_key("none"))
    }
    fn send_receipt(&self, order: u64, mail: &str) -> Outcome<String> {
        self.stock.call(&format!("receipt {order} {mail}"), &idempotency_key("none"))
    }
}

fn the_order() -> CompleteOrder {
    CompleteOrder(Order { number: 1, cents: 1999, mail: "a@x".into(), express: true })
}

fn the_shop(scene: &Scene) -> Builder {
    let first = |does| move |_: &str, before: usize| if before == 0 { does } else { Does::It };
    let bank = scene.provider("bank").behaving(first(Does::ItAndTimesOut));
    let lost = first(Does::NothingAndTimesOut);
    let stock = scene.provider("stock").without_keys();
    let stock = stock.behaving(move |what, n| if what.starts_with("reserve") { lost(what, n) } else { Does::It });
    let mut plan = Plan::of(1);
    plan.crashes.clear();
    let crash = Crash::new(&plan, &std::env::temp_dir().join("onceward-no-shop"));
    shop::registered(scene.open(), Outside { bank, stock }, &Arc::new(crash))
}

/// The shop's order: charged once, reserved once, one courier, a receipt rather twice than never, and the shop's own table says paid
/// exactly if it is.
#[test]
fn the_shops_order_is_completed_once_wherever_it_dies() {
    let drive = |_: &Scene, jobs: &Jobs| jobs.enqueue(&the_order()).map(drop);
    let check = |scene: &Scene, jobs: &Jobs| {
        let times = |name: &str, what: &str| scene.provider(name).happened(what);
        let (charged, reserved) = (times("bank", "charge 1 1999"), times("stock", "reserve 1"));
        let (sent, mailed) = (times("stock", "courier 1"), times("stock", "receipt 1 a@x"));
        let paid = jobs.read(|r| r.open_table(PAID).ok().and_then(|t| t.get(1).unwrap().map(|v| v.value().to_owned())));
        let paid = paid.map_err(|e| e.to_string())?.is_some();
        if charged > 1 || reserved > 1 || sent > 1 || (paid && charged == 0) {
            return Err(format!("charged {charged}, reserved {reserved}, sent {sent} times, paid: {paid}"));
        }
        let id = jobs.find::<CompleteOrder>(&"ord_1".into()).map_err(|e| e.to_string())?.ok_or("the order is lost")?;
        match jobs.state(id).map_err(|e| e.to_string())? {
            State::Done => {
                testkit::assert_enqueued(jobs, &SendReceipt { order: 1, mail: "a@x".into() });
                let all = (charged, reserved, sent, paid) == (1, 1, 1, true) && mailed >= 1;
                if all { Ok(()) } else { Err(format!("done, and {charged} {reserved} {sent} {mailed} {paid}")) }
            }
            State::NeedsDecision | State::Dead => asks(jobs, id),
            state => Err(format!("the order is {state:?}")),
        }
    };
    tried("shop", testkit::crash_everywhere(the_shop, drive, check));
    let broken = testkit::naive(the_shop, drive, check).unwrap_err();
    // The bank's answer was lost, then the warehouse's.
    assert!(broken.why.contains("charged 3"), "{broken}");
}
