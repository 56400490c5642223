//! A shop whose orders pay, ship and mail, each with its way back or without one, and the provider's own ledger, which no crash
//! can change.

use crate::ground::Signs;
use onceward::prelude::*;
use onceward::testkit::SimDisk;
use onceward::{Backoff, Builder, EffectId, OnDead};
use serde::{Deserialize, Serialize};
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

const HOUR: Duration = Duration::from_secs(3600);

/// What the provider does with the next call of an effect; without a plan it does what it is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Plan {
    /// The request never left.
    NotSent,
    /// Done, and the answer is lost.
    DoAndLose,
    /// No, and it will stay so.
    Never,
    /// Done, and the answer comes when the door "answer" is opened.
    DoAndHold,
}

/// One thing that really happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Deed {
    pub(crate) effect: &'static str,
    pub(crate) order: String,
    pub(crate) key: String,
}

#[derive(Default)]
struct Books {
    plans: HashMap<&'static str, VecDeque<Plan>>,
    deeds: Vec<Deed>,
    /// Who looks something up waits at the door "look".
    holds_looks: bool,
    /// Money and parcels are given back also without the reference under which they went out.
    lenient: bool,
    /// Calls of every sort, by effect.
    calls: HashMap<&'static str, usize>,
}

/// The provider, of all processes.
#[derive(Clone, Default)]
pub(crate) struct Provider {
    books: Arc<Mutex<Books>>,
    /// Says every call, and has the door.
    signs: Signs,
    /// Every deed is marked in this disk's log, so that a crash knows what had happened by then.
    disk: Option<SimDisk>,
}

impl Provider {
    pub(crate) fn new() -> Self {
        Self::default()
    }
    /// One whose calls can be waited for.
    pub(crate) fn with_signs(signs: &Signs) -> Self {
        Self { signs: signs.clone(), ..Self::default() }
    }
    /// One whose books are as they were after these deeds; what it does from now on is marked in the log of `disk`.
    pub(crate) fn with_past(deeds: &[Deed], disk: Option<SimDisk>) -> Self {
        let provider = Self { disk, ..Self::default() };
        provider.lock().deeds = deeds.to_vec();
        provider
    }
    fn lock(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }
    pub(crate) fn plan(&self, effect: &'static str, plans: &[Plan]) {
        self.lock().plans.entry(effect).or_default().extend(plans);
    }
    /// From now on nobody has to name what is given back. Otherwise what undoes an effect must know its result.
    pub(crate) fn be_lenient(&self) {
        self.lock().lenient = true;
    }
    /// Whether one of these happened for this order under this reference.
    fn knows(&self, effects: &[&str], order: &str, reference: Option<&str>) -> Outcome {
        let books = self.lock();
        let mut deeds = books.deeds.iter().enumerate();
        let known = deeds.any(|(n, d)| {
            effects.contains(&d.effect) && d.order == order && reference == Some(&format!("{}-{n}", d.effect))
        });
        if known || books.lenient { Ok(()) } else { Err(Fail::permanent(format!("nothing is known of {reference:?}"))) }
    }
    pub(crate) fn deeds(&self) -> Vec<Deed> {
        self.lock().deeds.clone()
    }
    /// What happened, in its order.
    pub(crate) fn happened(&self) -> Vec<&'static str> {
        self.lock().deeds.iter().map(|d| d.effect).collect()
    }
    pub(crate) fn calls(&self, effect: &'static str) -> usize {
        self.lock().calls.get(effect).copied().unwrap_or(0)
    }
    pub(crate) fn hold_looks(&self) {
        self.lock().holds_looks = true;
    }
    pub(crate) fn find(&self, effect: &'static str, order: &str) -> Option<String> {
        if self.lock().holds_looks {
            self.signs.wait("look");
        }
        let books = self.lock();
        books.deeds.iter().position(|d| d.effect == effect && d.order == order).map(|n| format!("{effect}-{n}"))
    }
    /// The reference of what happened, whatever the order.
    pub(crate) fn reference(&self, effect: &str) -> Option<String> {
        self.lock().deeds.iter().position(|d| d.effect == effect).map(|n| format!("{effect}-{n}"))
    }
    /// What a person was told is in the books, too: nothing that could be given back.
    pub(crate) fn write_down(&self, what: &'static str) {
        let mut books = self.lock();
        let n = books.deeds.len();
        books.deeds.push(Deed { effect: what, order: String::new(), key: format!("{what} {n}") });
        if let Some(disk) = &self.disk {
            disk.mark(n as u64);
        }
    }
    /// A repeated key is recognised, whatever the plan.
    pub(crate) fn perform(&self, effect: &'static str, order: &str, key: &IdempotencyKey) -> Outcome<String> {
        self.signs.say(effect);
        let mut books = self.lock();
        *books.calls.entry(effect).or_default() += 1;
        if let Some(n) = books.deeds.iter().position(|d| d.effect == effect && d.key == key.as_str()) {
            return Ok(format!("{effect}-{n}"));
        }
        let plan = books.plans.get_mut(effect).and_then(VecDeque::pop_front);
        if let Some(Plan::NotSent) = plan {
            return Err(Fail::not_sent("no connection"));
        }
        if let Some(Plan::Never) = plan {
            return Err(Fail::refused("none left").for_good());
        }
        let n = books.deeds.len();
        books.deeds.push(Deed { effect, order: order.to_owned(), key: key.as_str().to_owned() });
        if let Some(disk) = &self.disk {
            // With the books held: the log has the same order.
            disk.mark(n as u64);
        }
        match plan {
            Some(Plan::DoAndLose) => Err(Fail::new("the line went dead")),
            Some(Plan::DoAndHold) => {
                drop(books);
                self.signs.wait("answer");
                Ok(format!("{effect}-{n}"))
            }
            Some(Plan::NotSent | Plan::Never) | None => Ok(format!("{effect}-{n}")),
        }
    }
}

macro_rules! effects {
    ($($name:ident $text:literal $recovery:expr, $undo:expr;)*) => {$(
        #[derive(Clone, Debug, Serialize, Deserialize)]
        pub(crate) struct $name {
            pub(crate) order: String,
        }
        impl Effect for $name {
            type Result = String;
            const NAME: &'static str = $text;
            fn says(&self) -> String {
                format!("{} {}", $text, self.order)
            }
            fn recovery() -> Recovery {
                $recovery
            }
            fn undo(&self, done: Option<&String>) -> Undo {
                let undo: fn(String, Option<String>) -> Undo = $undo;
                undo(self.order.clone(), done.cloned())
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
    Pay "pay" Recovery::same_key(24 * HOUR), |order, charge| Undo::job(Refund { order, charge });
    Ship "ship" Recovery::probe(Duration::from_secs(60)), |order, parcel| Undo::job(Recall { order, parcel });
    Wire "wire" Recovery::ask(), |order, charge| Undo::job(Refund { order, charge });
    Mail "mail" Recovery::ask(), |_, _| Undo::none();
    Reserve "reserve" Recovery::ask(), |_, _| Undo::none();
    GiveBack "give-back" Recovery::same_key(24 * HOUR), |_, _| Undo::none();
    FetchBack "fetch-back" Recovery::same_key(24 * HOUR), |_, _| Undo::none();
}

/// A refund, asked for by a customer or by a compensation.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Refund {
    pub(crate) order: String,
    pub(crate) charge: Option<String>,
}

/// Brings a parcel back.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Recall {
    pub(crate) order: String,
    pub(crate) parcel: Option<String>,
}

fn tries() -> Policy {
    Policy::default()
        .retries(3)
        .backoff(Backoff::steps([Duration::from_secs(10)]))
        .stall_timeout(Duration::from_secs(60))
}

impl Job for Refund {
    const KIND: &'static str = "refund";
    fn key(&self) -> JobKey {
        self.order.as_str().into()
    }
    fn policy() -> Policy {
        tries()
    }
    fn effects() -> Vec<EffectCard> {
        vec![GiveBack::card()]
    }
}

impl Job for Recall {
    const KIND: &'static str = "recall";
    fn key(&self) -> JobKey {
        self.order.as_str().into()
    }
    fn policy() -> Policy {
        tries()
    }
    fn effects() -> Vec<EffectCard> {
        vec![FetchBack::card()]
    }
}

macro_rules! orders {
    ($($(#[$doc:meta])* $name:ident $kind:literal $policy:expr;)*) => {$(
        $(#[$doc])*
        /// Does what it lists, in this order.
        #[derive(Clone, Debug, Serialize, Deserialize)]
        pub(crate) struct $name {
            pub(crate) id: String,
            pub(crate) does: Vec<String>,
        }
        impl $name {
            pub(crate) fn new(id: &str, does: &[&str]) -> Self {
                Self { id: id.to_owned(), does: does.iter().map(|d| (*d).to_owned()).collect() }
            }
        }
        impl Job for $name {
            const KIND: &'static str = $kind;
            fn key(&self) -> JobKey {
                self.id.as_str().into()
            }
            fn stake(&self) -> u64 {
                2
            }
            fn policy() -> Policy {
                $policy
            }
            fn effects() -> Vec<EffectCard> {
                vec![Pay::card(), Ship::card(), Wire::card(), Mail::card(), Reserve::card()]
            }
        }
    )*};
}

orders! {
    Order "order" tries().on_dead(OnDead::Undo);
    Held "held order" tries();
    /// Two people decide about it.
    Dear "dear order" tries().second_person_above(1);
    Dated "dated order" tries().on_dead(OnDead::Undo).deadline(Duration::from_secs(15));
}

/// Pays, and cannot go forward.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Short {
    pub(crate) id: String,
}

impl Job for Short {
    const KIND: &'static str = "short order";
    fn key(&self) -> JobKey {
        self.id.as_str().into()
    }
    fn policy() -> Policy {
        tries().on_dead(OnDead::Undo)
    }
    fn effects() -> Vec<EffectCard> {
        vec![Pay::card()]
    }
}

fn carry_out(cx: &Cx, id: &str, does: &[String]) -> Outcome {
    for what in does {
        let order = id.to_owned();
        match what.as_str() {
            "pay" => drop(cx.effect(Pay { order })?),
            "ship" => drop(cx.effect(Ship { order })?),
            "wire" => drop(cx.effect(Wire { order })?),
            "mail" => drop(cx.effect(Mail { order })?),
            "reserve" => drop(cx.effect(Reserve { order })?),
            "fail" => return Err(Fail::permanent("it cannot be done")),
            other => return Err(Fail::permanent(format!("what is {other}?"))),
        }
    }
    Ok(())
}

/// The app.
pub(crate) fn app(builder: Builder, provider: &Provider) -> Builder {
    let p = || provider.clone();
    let (pay, ship, wire, mail, reserve, give, fetch, look) = (p(), p(), p(), p(), p(), p(), p(), p());
    let (paid, charged, sent) = (p(), p(), p());
    builder
        .key_scope("the shop of the tests")
        .on(|cx, order: Order| carry_out(cx, &order.id, &order.does))
        .on(|cx, order: Held| carry_out(cx, &order.id, &order.does))
        .on(|cx, order: Dear| carry_out(cx, &order.id, &order.does))
        .on(|cx, order: Dated| carry_out(cx, &order.id, &order.does))
        .on(|cx, short: Short| {
            cx.effect(Pay { order: short.id })?;
            Err(Fail::permanent("it cannot be done"))
        })
        .on(move |cx, refund: Refund| {
            charged.knows(&["pay", "wire"], &refund.order, refund.charge.as_deref())?;
            cx.effect(GiveBack { order: refund.order }).map(drop)
        })
        .on(move |cx, recall: Recall| {
            sent.knows(&["ship"], &recall.order, recall.parcel.as_deref())?;
            cx.effect(FetchBack { order: recall.order }).map(drop)
        })
        .effect(move |e: &Pay, key| pay.perform(Pay::NAME, &e.order, key))
        .effect(move |e: &Ship, key| ship.perform(Ship::NAME, &e.order, key))
        .effect(move |e: &Wire, key| wire.perform(Wire::NAME, &e.order, key))
        .effect(move |e: &Mail, key| mail.perform(Mail::NAME, &e.order, key))
        .effect(move |e: &Reserve, key| reserve.perform(Reserve::NAME, &e.order, key))
        .effect(move |e: &GiveBack, key| give.perform(GiveBack::NAME, &e.order, key))
        .effect(move |e: &FetchBack, key| fetch.perform(FetchBack::NAME, &e.order, key))
        .probe(move |e: &Ship, _| Ok(look.find(Ship::NAME, &e.order)))
        .probe(move |e: &Pay, _| Ok(paid.find(Pay::NAME, &e.order)))
}

pub(crate) fn effect_id(name: &str) -> EffectId {
    EffectId { name: name.to_owned(), part: String::new() }
}
