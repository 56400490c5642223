//! The app of a simulated world: kinds of jobs that use every feature, and what their handlers write down.
//!
//! What a handler is and does follows from its payload and from what the world draws; everything it sees, it says to the recorder.

use super::world::{Life, Shop, payload_of};
use crate::history::{How, Memo, Told, What};
use onceward::redb::{ReadableTable, TableDefinition};
use onceward::{
    Backoff, Builder, Cx, Effect, EffectCard, Fail, Job, JobId, JobKey, Keep, KindRules, Message, OnDead, Outcome,
    Policy, Recovery, Risk, Topic, Tx, Undo,
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3_600);

pub(super) const TOPIC: &str = "news";

/// How often each row was counted up.
pub(super) const ROWS: TableDefinition<'_, &str, u64> = TableDefinition::new("app/rows");

pub(super) fn count_up(tx: &mut Tx<'_>, row: &str) -> Outcome<u64> {
    let mut rows = tx.open_table(ROWS)?;
    let now = rows.get(row)?.map_or(0, |v| v.value()) + 1;
    rows.insert(row, now)?;
    Ok(now)
}

/// A job of the world: its number is its key.
macro_rules! kinds {
    ($($name:ident $kind:literal { $($items:tt)* })*) => {$(
        #[derive(Clone, Debug, Serialize, Deserialize)]
        pub(super) struct $name {
            pub(super) n: u64,
            pub(super) v: u64,
        }
        impl Job for $name {
            const KIND: &'static str = $kind;
            fn key(&self) -> JobKey {
                self.n.to_string().into()
            }
            $($items)*
        }
    )*};
}

kinds! {
    Plain "plain" {
        fn policy() -> Policy {
            Policy::default().retries(4).backoff(Backoff::exponential(SECOND, 5 * MINUTE)).remember(Keep::Forever)
        }
    }
    Pay "pay" {
        fn effects() -> Vec<EffectCard> { vec![Charge::card()] }
        fn policy() -> Policy { told().backoff(Backoff::steps([MINUTE, 5 * MINUTE])) }
    }
    Tell "tell" {
        fn effects() -> Vec<EffectCard> { vec![Mail::card()] }
        fn policy() -> Policy { told() }
    }
    Press "press" {
        fn effects() -> Vec<EffectCard> { vec![Print::card()] }
        fn policy() -> Policy { told() }
    }
    Trip "trip" {
        fn effects() -> Vec<EffectCard> { vec![Book::card(), Charge::card()] }
        fn policy() -> Policy { told().on_dead(OnDead::Undo) }
    }
    Cancel "cancel-booking" {
        fn effects() -> Vec<EffectCard> { vec![GiveBack::card()] }
        fn policy() -> Policy { told() }
    }
    Refund "refund" {
        fn effects() -> Vec<EffectCard> { vec![GiveBack::card()] }
        fn policy() -> Policy { told() }
    }
}

fn told() -> Policy {
    let policy = Policy::default().keep_done(Keep::Forever).keep_discarded(Keep::Forever);
    policy.success("it is done").review("nobody knows whether it is")
}

/// An effect of the world.
macro_rules! effects {
    ($($name:ident $text:literal $risk:expr, $recovery:expr, $undo:expr;)*) => {$(
        #[derive(Serialize, Deserialize)]
        pub(super) struct $name {
            pub(super) job: u64,
            pub(super) n: u64,
        }
        impl Effect for $name {
            type Result = String;
            const NAME: &'static str = $text;
            const RISK: Risk = $risk;
            fn says(&self) -> String {
                format!("{} {}", $text, self.n)
            }
            fn recovery() -> Recovery {
                $recovery
            }
            fn undo(&self, _: Option<&String>) -> Undo {
                let undo: fn(u64) -> Undo = $undo;
                undo(self.n)
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
    Charge "charge" Risk::Charge, Recovery::same_key(24 * HOUR), |n| Undo::job(Refund { n, v: 0 });
    Mail "mail" Risk::Email, Recovery::probe(MINUTE), |_| Undo::none();
    Print "print" Risk::Order, Recovery::ask(), |_| Undo::none();
    Book "book" Risk::Order, Recovery::same_key(HOUR).or_probe(MINUTE), |n| Undo::job(Cancel { n, v: 0 });
    GiveBack "give-back" Risk::Charge, Recovery::same_key(24 * HOUR), |_| Undo::none();
}

/// Registers everything, for one life.
pub(super) fn register(builder: Builder, shop: &Shop, life: &Life) -> Builder {
    let mut builder = builder
        .on(life.handler(shop, plain))
        .on(life.handler(shop, pay))
        .on(life.handler(shop, tell))
        .on(life.handler(shop, press))
        .on(life.handler(shop, trip))
        .on(life.handler(shop, cancel))
        .on(life.handler(shop, refund));
    let (shop_of, life_of) = (shop.clone(), life.clone());
    builder = builder.topic(TOPIC, Topic::default().keep(Keep::Forever));
    builder = builder.publisher(TOPIC, move |m: &Message| shop_of.deliver(&life_of, m));
    macro_rules! performed {
        ($($effect:ident)*) => {$(
            let (shop_of, life_of) = (shop.clone(), life.clone());
            builder = builder.effect(move |e: &$effect, key| {
                shop_of.call(&life_of, JobId::from_number(e.job), $effect::NAME, key.as_str(), e.n)
            });
        )*};
    }
    performed!(Charge Mail Print Book GiveBack);
    macro_rules! probed {
        ($($effect:ident)*) => {$(
            let (shop_of, life_of) = (shop.clone(), life.clone());
            builder = builder.probe(move |e: &$effect, _| {
                shop_of.find(&life_of, JobId::from_number(e.job), $effect::NAME)
            });
        )*};
    }
    probed!(Mail Book);
    builder
}

/// Why a handler gives up, as it sees it itself.
pub(super) struct Failed(pub(super) How, pub(super) Fail);

type Out<T> = Result<T, Failed>;

fn failed(fail: Fail) -> Failed {
    let seen = format!("{fail:?}");
    let how = match seen.split_once("stop: Some(").map(|(_, stop)| stop) {
        None => How::Transient(0),
        Some(stop) if stop.starts_with("Fenced") || stop.starts_with("Interrupted") => How::Interrupted,
        Some(_) => How::Unknown,
    };
    Failed(how, fail)
}

/// A handler at work: who it is, and whom it tells.
pub(super) struct Run<'a> {
    pub(super) life: &'a Life,
    pub(super) shop: &'a Shop,
    pub(super) cx: &'a Cx,
    pub(super) job: JobId,
    pub(super) token: u64,
}

impl Run<'_> {
    /// An effect, with what came of it.
    fn effect<E: Effect<Result = String>>(&self, request: E) -> Out<String> {
        let (job, token, effect) = (self.job, self.token, E::NAME.to_owned());
        self.life.say(What::EffectAsked { job, token, effect: effect.clone() });
        let came = self.cx.effect(request).map_err(failed);
        let told = match &came {
            Ok(reference) => Told::Done(reference.clone()),
            Err(Failed(How::Transient(_), _)) => self.shop.last(job, E::NAME),
            Err(_) => Told::Failed,
        };
        self.life.say(What::EffectTold { job, token, effect, told });
        came
    }
    fn remember(&self, name: &str, commit: bool, memo: Memo) {
        let (job, token, name) = (self.job, self.token, name.to_owned());
        self.life.say(What::Remember { job, token, name, commit, memo });
    }
    /// A step, which nobody may see run again.
    fn step(&self, name: &str) -> Out<u64> {
        self.remember(name, false, Memo::Asked);
        let drawn = self.life.draw(1 << 20);
        let ran = || {
            self.remember(name, false, Memo::Ran);
            Ok(drawn)
        };
        let value = self.cx.step(name, ran).map_err(failed)?;
        self.remember(name, false, Memo::Told(value.to_string().into_bytes()));
        Ok(value)
    }
    /// A commit: a row is counted up, a message is owed, and another job is asked for.
    fn commit(&self, name: &'static str, n: u64) -> Out<u64> {
        let (row, id, next) = (format!("job/{}", self.job), format!("m/{}", self.job), 2_000_000 + n);
        let ask = self.life.number();
        self.remember(name, true, Memo::Asked);
        let jobs = vec![(("plain", next.to_string()), payload_of(&Plain { n: next, v: 0 }))];
        self.life.say(What::Transacting { ask, row: row.clone(), jobs, messages: vec![id.clone()], once: true });
        self.life.say(What::Owing { topic: TOPIC, id: id.clone() });
        let (life, job, token, owed) = (self.life.clone(), self.job, self.token, id.clone());
        let done = self.cx.commit(name, move |tx| {
            life.say(What::Remember { job, token, name: name.to_owned(), commit: true, memo: Memo::Ran });
            tx.outbox(TOPIC, id.clone(), &job.number())?;
            tx.enqueue(&Plain { n: next, v: 0 })?;
            count_up(tx, &row)
        });
        let done = done.map_err(failed);
        self.life.say(What::Transacted { ask, done: done.is_ok().then_some(true) });
        let value = done?;
        self.life.say(What::Owed { topic: TOPIC, id: owed });
        self.remember(name, true, Memo::Told(value.to_string().into_bytes()));
        Ok(value)
    }
    /// Sometimes an attempt fails by itself.
    fn maybe_fail(&self) -> Out<()> {
        let seconds = 1 + self.life.draw(600);
        let (how, fail) = match self.life.draw(24) {
            0..=3 => (How::Transient(0), Fail::transient("the weather")),
            4 => {
                let fail = Fail::transient("too many of us").retry_after(Duration::from_secs(seconds));
                (How::Transient(seconds * 1_000), fail)
            }
            5 => (How::Permanent, Fail::permanent("never")),
            6 => (How::Snoozed(seconds * 1_000), Fail::not_yet("not open yet", Duration::from_secs(seconds))),
            _ => return Ok(()),
        };
        Err(Failed(how, fail))
    }
}

fn plain(run: &Run<'_>, job: Plain) -> Out<()> {
    if job.v % 3 == 1 {
        run.step("look")?;
    }
    run.maybe_fail()?;
    if job.v % 4 == 2 {
        run.commit("count", job.n)?;
    }
    run.maybe_fail()
}

fn pay(run: &Run<'_>, job: Pay) -> Out<()> {
    run.effect(Charge { job: run.job.number(), n: job.n }).map(drop)
}

fn tell(run: &Run<'_>, job: Tell) -> Out<()> {
    run.maybe_fail()?;
    run.effect(Mail { job: run.job.number(), n: job.n })?;
    run.maybe_fail()
}

fn press(run: &Run<'_>, job: Press) -> Out<()> {
    run.effect(Print { job: run.job.number(), n: job.n }).map(drop)
}

fn trip(run: &Run<'_>, job: Trip) -> Out<()> {
    let n = 1_000_000 + job.n;
    run.effect(Book { job: run.job.number(), n })?;
    run.maybe_fail()?;
    run.effect(Charge { job: run.job.number(), n }).map(drop)
}

fn cancel(run: &Run<'_>, job: Cancel) -> Out<()> {
    run.effect(GiveBack { job: run.job.number(), n: job.n }).map(drop)
}

fn refund(run: &Run<'_>, job: Refund) -> Out<()> {
    run.effect(GiveBack { job: run.job.number(), n: job.n }).map(drop)
}

/// The rules of every kind, for the judge.
pub(super) fn rules() -> BTreeMap<&'static str, KindRules> {
    fn of<J: Job>() -> (&'static str, KindRules) {
        (J::KIND, J::policy().resolve(&J::effects()))
    }
    [of::<Plain>(), of::<Pay>(), of::<Tell>(), of::<Press>(), of::<Trip>(), of::<Cancel>(), of::<Refund>()].into()
}
