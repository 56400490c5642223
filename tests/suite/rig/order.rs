//! One small kind of job: an order that charges, reserves and mails as a script says, in a blocking or an async handler with
//! performers and probes of either sort, so that one story is told for every mix.

use super::provider::Provider;
use super::stage::{Life, Stage};
use super::{DAY, MINUTE, World, join};
use onceward::redb::ReadableTable;
use onceward::{Cx, Effect, EffectCard, Fail, Job, JobId, JobKey, Jobs, Outcome, Policy, Recovery, Risk, Undo};
use serde::{Deserialize, Serialize};
use std::marker::PhantomData;
use std::panic::resume_unwind;
use std::sync::{Arc, Mutex};

/// A recovery rule as a type.
pub(crate) trait Rule: Send + Sync + 'static {
    fn recovery() -> Recovery;
}
macro_rules! rule {
    ($($name:ident = $rule:expr;)*) => {$(
        pub(crate) struct $name;
        impl Rule for $name {
            fn recovery() -> Recovery {
                $rule
            }
        }
    )*};
}
rule! {
    Ask = Recovery::ask();
    SameKey = Recovery::same_key(DAY);
    Probed = Recovery::probe(MINUTE);
    Both = Recovery::same_key(DAY).or_probe(MINUTE);
}

/// A charge.
#[derive(Serialize, Deserialize)]
#[serde(bound = "")]
pub(crate) struct Charge<R> {
    pub(crate) order: u64,
    pub(crate) cents: u64,
    #[serde(skip)]
    pub(crate) rule: PhantomData<R>,
}
impl<R: Rule> Effect for Charge<R> {
    type Result = String;
    const NAME: &'static str = "charge";
    const RISK: Risk = Risk::Charge;
    fn says(&self) -> String {
        format!("Charge {} cents for order {}", self.cents, self.order)
    }
    fn recovery() -> Recovery {
        R::recovery()
    }
    fn undo(&self, done: Option<&String>) -> Undo {
        Undo::job(Refund { order: self.order, charge: done.cloned() })
    }
    fn reference(done: &String) -> Option<String> {
        Some(done.clone())
    }
    fn from_reference(&self, reference: &str) -> Option<String> {
        Some(reference.to_owned())
    }
}

/// Goods put aside for an order.
#[derive(Serialize, Deserialize)]
#[serde(bound = "")]
pub(crate) struct Reserve<R> {
    pub(crate) order: u64,
    #[serde(skip)]
    pub(crate) rule: PhantomData<R>,
}
impl<R: Rule> Effect for Reserve<R> {
    type Result = String;
    const NAME: &'static str = "reserve";
    const RISK: Risk = Risk::Order;
    fn says(&self) -> String {
        format!("Reserve the goods of order {}", self.order)
    }
    fn recovery() -> Recovery {
        R::recovery()
    }
}

/// A mail, rather twice than never.
#[derive(Serialize, Deserialize)]
pub(crate) struct Mail {
    pub(crate) order: u64,
    pub(crate) to: String,
}
/// What is known of a mail that was sent.
#[derive(Debug, Serialize, Deserialize, PartialEq, Eq)]
pub(crate) struct Sent;
impl From<String> for Sent {
    fn from(_: String) -> Self {
        Self
    }
}
impl Effect for Mail {
    type Result = Sent;
    const NAME: &'static str = "mail";
    const RISK: Risk = Risk::Email;
    fn says(&self) -> String {
        format!("Mail {} about order {}", self.to, self.order)
    }
    fn part(&self) -> String {
        self.to.clone()
    }
    fn recovery() -> Recovery {
        Recovery::repeat()
    }
}

/// What gives the money back.
#[derive(Serialize, Deserialize)]
pub(crate) struct Refund {
    pub(crate) order: u64,
    pub(crate) charge: Option<String>,
}
impl Job for Refund {
    const KIND: &'static str = "refund";
    fn key(&self) -> JobKey {
        format!("refund_{}", self.order).into()
    }
}

/// The order: charges by rule `C`, reserves by rule `W`. The defaults of a risky kind: four attempts, after 1, 5 and 15 minutes.
#[derive(Serialize, Deserialize)]
#[serde(bound = "")]
pub(crate) struct Order<C, W = Probed> {
    pub(crate) order: u64,
    #[serde(skip)]
    rules: PhantomData<(C, W)>,
}
impl<C, W> Order<C, W> {
    pub(crate) fn number(order: u64) -> Self {
        Self { order, rules: PhantomData }
    }
}
impl<C: Rule, W: Rule> Job for Order<C, W> {
    const KIND: &'static str = "order";
    fn key(&self) -> JobKey {
        format!("ord_{}", self.order).into()
    }
    fn title(&self) -> String {
        format!("Order {}", self.order)
    }
    fn effects() -> Vec<EffectCard> {
        vec![Charge::<C>::card(), Reserve::<W>::card(), Mail::card()]
    }
    fn policy() -> Policy {
        Policy::default().success("the order is paid and reserved").review("when nobody knows what was paid")
    }
}

/// One thing that a handler does.
#[derive(Clone)]
pub(crate) enum Do {
    /// Charges this many cents.
    Charge(u64),
    Reserve,
    /// Charges and reserves at the same time (one after the other in a blocking handler).
    Both(u64),
    Mail(&'static str),
    /// Does it and goes on whatever comes of it.
    Shrug(Box<Do>),
    /// Remembers a step whose value is what this returns.
    Step(&'static str),
    /// Commits to the app's table, adding one under this name.
    Commit(&'static str),
    /// A message to the outbox.
    Post(&'static str),
    /// Finishes, adding one under `finish`.
    Finish,
    /// Waits at a door.
    Wait(&'static str),
    /// Fails.
    Fail(fn() -> Fail),
    Panic,
}
impl Do {
    pub(crate) fn shrug(what: Do) -> Self {
        Self::Shrug(Box::new(what))
    }
}

/// What the handler of an attempt does: by its number.
pub(crate) type Script = Arc<dyn Fn(u32) -> Vec<Do> + Send + Sync>;

/// The same in every attempt.
pub(crate) fn always(script: Vec<Do>) -> Script {
    Arc::new(move |_| script.clone())
}

/// What handlers saw, in order: `1 charge = op_1`, `1 charge ! no answer`.
#[derive(Clone)]
pub(crate) struct Seen {
    all: Arc<Mutex<Vec<String>>>,
    stage: Stage,
}
impl Seen {
    fn add(&self, text: String) {
        self.all.lock().unwrap().push(text);
        self.stage.stir();
    }
    pub(crate) fn all(&self) -> Vec<String> {
        self.all.lock().unwrap().clone()
    }
    /// How many times a handler began.
    pub(crate) fn starts(&self) -> usize {
        self.all().iter().filter(|s| s.ends_with(" starts")).count()
    }
}

/// The app's own table.
pub(crate) const COUNTS: onceward::redb::TableDefinition<'static, &str, u64> =
    onceward::redb::TableDefinition::new("counts");

/// What stands in the app's table under this name.
pub(crate) fn counted(jobs: &Jobs, name: &'static str) -> u64 {
    jobs.read(|r| {
        let table = r.open_table(COUNTS).ok();
        table.and_then(|t| t.get(name).unwrap().map(|v| v.value())).unwrap_or(0)
    })
    .unwrap()
}
fn count(tx: &mut onceward::Tx<'_>, name: &str) -> Outcome {
    let mut table = tx.open_table(COUNTS)?;
    let n = table.get(name)?.map_or(0, |v| v.value());
    table.insert(name, n + 1)?;
    Ok(())
}
/// A message of its own for each time.
fn post(tx: &mut onceward::Tx<'_>, name: &str) -> Outcome {
    count(tx, name)?;
    let n = tx.open_table(COUNTS)?.get(name)?.map_or(0, |v| v.value());
    tx.outbox("posts", format!("{name}/{n}"), &n)?;
    Ok(())
}

/// Which parts are async.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mix {
    pub(crate) handler: bool,
    pub(crate) performer: bool,
    pub(crate) probe: bool,
}

/// Every mix that this build knows.
pub(crate) fn mixes() -> Vec<Mix> {
    let sorts: &[bool] = if cfg!(feature = "tokio") { &[false, true] } else { &[false] };
    let mut out = Vec::new();
    for &handler in sorts {
        for &performer in sorts {
            for &probe in sorts {
                out.push(Mix { handler, performer, probe });
            }
        }
    }
    out
}

/// A shop: a world, its payment provider, its warehouse and its mail server, and what its handlers do and see.
pub(crate) struct Shop {
    pub(crate) world: World,
    pub(crate) pay: Provider,
    pub(crate) stock: Provider,
    pub(crate) post: Provider,
    pub(crate) seen: Seen,
    pub(crate) mix: Mix,
}

impl Shop {
    /// A payment provider with keys, a warehouse without.
    pub(crate) fn new(mix: Mix) -> Self {
        let world = World::new();
        let stage = world.stage.clone();
        Self {
            pay: Provider::with_keys(&stage),
            stock: Provider::without_keys(&stage),
            post: Provider::without_keys(&stage),
            seen: Seen { all: Arc::default(), stage },
            world,
            mix,
        }
    }
    /// A payment provider that does it again for every call, but can be asked.
    pub(crate) fn without_keys(mix: Mix) -> Self {
        let mut shop = Self::new(mix);
        shop.pay = Provider::without_keys(&shop.world.stage);
        shop
    }
    /// The queue of the process that runs now.
    pub(crate) fn open<C: Rule, W: Rule>(&self, script: Vec<Do>) -> Jobs {
        self.open_with::<C, W>(always(script))
    }
    pub(crate) fn open_with<C: Rule, W: Rule>(&self, script: Script) -> Jobs {
        self.builder::<C, W>(script).start().unwrap()
    }
    pub(crate) fn builder<C: Rule, W: Rule>(&self, script: Script) -> onceward::Builder {
        let life = &self.world.life;
        // Of what gives money back there are suites of its own: here it only has to exist.
        let mut b = self.world.builder().on(|_, _: Refund| Ok(()));
        b = match self.mix.performer {
            false => b
                .effect(self.pay.performs::<Charge<C>>(life))
                .effect(self.stock.performs::<Reserve<W>>(life))
                .effect(self.post.performs::<Mail>(life)),
            true => b
                .effect_async(self.pay.performs_async::<Charge<C>>(life))
                .effect_async(self.stock.performs_async::<Reserve<W>>(life))
                .effect_async(self.post.performs_async::<Mail>(life)),
        };
        b = match self.mix.probe {
            false => b.probe(self.pay.tells::<Charge<C>>(life)).probe(self.stock.tells::<Reserve<W>>(life)),
            true => b
                .probe_async(self.pay.tells_async::<Charge<C>>(life))
                .probe_async(self.stock.tells_async::<Reserve<W>>(life)),
        };
        let (seen, life) = (self.seen.clone(), life.clone());
        match self.mix.handler {
            false => b.on::<Order<C, W>>(move |cx, job| {
                let actor = Actor { seen: seen.clone(), life: life.clone(), order: job.order, attempt: cx.attempt() };
                actor.starts();
                for what in script(cx.attempt()) {
                    actor.act::<C, W>(cx, what)?;
                }
                Ok(())
            }),
            true => b.on_async::<Order<C, W>, _>(move |cx, job| {
                let actor = Actor { seen: seen.clone(), life: life.clone(), order: job.order, attempt: cx.attempt() };
                let script = script.clone();
                async move {
                    actor.starts();
                    for what in script(cx.attempt()) {
                        actor.act_async::<C, W>(&cx, what).await?;
                    }
                    Ok(())
                }
            }),
        }
    }
    /// Enqueues order 1.
    pub(crate) fn order<C: Rule, W: Rule>(&self, jobs: &Jobs) -> JobId {
        jobs.enqueue(&Order::<C, W>::number(1)).unwrap().id()
    }
}

struct Actor {
    seen: Seen,
    life: Life,
    order: u64,
    attempt: u32,
}

impl Actor {
    fn starts(&self) {
        self.seen.add(format!("{} starts", self.attempt));
    }
    fn note<T: std::fmt::Debug>(&self, what: &str, came: Outcome<T>) -> Outcome {
        let a = self.attempt;
        match came {
            Ok(t) => {
                self.seen.add(format!("{a} {what} = {t:?}"));
                Ok(())
            }
            Err(e) => {
                self.seen.add(format!("{a} {what} ! {e}"));
                Err(e)
            }
        }
    }
    fn charge<C>(&self, cents: u64) -> Charge<C> {
        Charge { order: self.order, cents, rule: PhantomData }
    }
    fn reserve<W>(&self) -> Reserve<W> {
        Reserve { order: self.order, rule: PhantomData }
    }
    fn mail(&self, to: &str) -> Mail {
        Mail { order: self.order, to: to.to_owned() }
    }
    fn alive(&self) -> Outcome {
        if self.life.ended() { Err(Fail::new("this process is no more")) } else { Ok(()) }
    }
    fn act<C: Rule, W: Rule>(&self, cx: &Cx, what: Do) -> Outcome {
        self.alive()?;
        match what {
            Do::Charge(cents) => self.note("charge", cx.effect(self.charge::<C>(cents))),
            Do::Reserve => self.note("reserve", cx.effect(self.reserve::<W>())),
            Do::Both(cents) => {
                self.note("charge", cx.effect(self.charge::<C>(cents)))?;
                self.note("reserve", cx.effect(self.reserve::<W>()))
            }
            Do::Mail(to) => self.note(&format!("mail {to}"), cx.effect(self.mail(to))),
            Do::Shrug(what) => {
                let _ = self.act::<C, W>(cx, *what);
                Ok(())
            }
            Do::Step(name) => self.note(name, cx.step(name, || Ok(self.attempt))),
            Do::Commit(name) => self.note(name, cx.commit(name, move |tx| count(tx, name))),
            Do::Post(name) => self.note(name, cx.commit(name, move |tx| post(tx, name))),
            Do::Finish => self.note("finish", cx.finish(|tx| count(tx, "finish"))),
            Do::Wait(door) => {
                self.life.wait(door);
                self.alive()
            }
            Do::Fail(fail) => Err(fail()),
            Do::Panic => resume_unwind(Box::new("a bug in the handler")),
        }
    }
    async fn act_async<C: Rule, W: Rule>(&self, cx: &onceward::AsyncCx, what: Do) -> Outcome {
        self.alive()?;
        let (what, shrugs) = match what {
            Do::Shrug(what) => (*what, true),
            other => (other, false),
        };
        let came = match what {
            Do::Charge(cents) => self.note("charge", cx.effect(self.charge::<C>(cents)).await),
            Do::Reserve => self.note("reserve", cx.effect(self.reserve::<W>()).await),
            Do::Both(cents) => {
                let (a, b) = join(cx.effect(self.charge::<C>(cents)), cx.effect(self.reserve::<W>())).await;
                self.note("charge", a).and(self.note("reserve", b))
            }
            Do::Mail(to) => self.note(&format!("mail {to}"), cx.effect(self.mail(to)).await),
            Do::Shrug(_) => unreachable!("shrugging at a shrug"),
            Do::Step(name) => self.note(name, cx.step(name, async || Ok(self.attempt)).await),
            Do::Commit(name) => self.note(name, cx.commit(name, move |tx| count(tx, name)).await),
            Do::Post(name) => self.note(name, cx.commit(name, move |tx| post(tx, name)).await),
            Do::Finish => self.note("finish", cx.finish(|tx| count(tx, "finish")).await),
            Do::Wait(door) => {
                self.life.wait_async(door).await;
                self.alive()
            }
            Do::Fail(fail) => Err(fail()),
            Do::Panic => resume_unwind(Box::new("a bug in the handler")),
        };
        if shrugs { Ok(()) } else { came }
    }
}
