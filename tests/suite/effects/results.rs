//! Requests and results outlive the code that wrote them: what cannot be read or stored any more needs a decision, never a call.

use super::charge;
use crate::rig::{MINUTE, World, is};
use onceward::{
    Decision, Effect, EffectCard, EffectState, Fail, IdempotencyKey, Job, JobId, JobKey, Jobs, Outcome, Policy,
    Question, Recovery, Risk, State,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::marker::PhantomData;
use std::sync::{Arc, Mutex};

/// One version of an app: what its charge looks like.
trait App: Send + Sync + 'static {
    const VERSION: u32 = 1;
    const RISK: Risk = Risk::Charge;
    type Request: Serialize + serde::de::DeserializeOwned + Clone + Send + Sync + 'static;
    type Result: Serialize + serde::de::DeserializeOwned + Send + 'static;
    fn asks() -> Self::Request;
    fn gets() -> Self::Result;
    fn upgrade(_: u32, request: Value) -> Result<Self::Request, Fail> {
        Ok(serde_json::from_value(request)?)
    }
    fn rebuild(_: &str) -> Option<Self::Result> {
        None
    }
}

#[derive(Serialize, Deserialize)]
#[serde(transparent, bound = "")]
struct Pay<A: App> {
    request: A::Request,
}
impl<A: App> Effect for Pay<A> {
    type Result = A::Result;
    const NAME: &'static str = "charge";
    const VERSION: u32 = A::VERSION;
    const RISK: Risk = A::RISK;
    fn says(&self) -> String {
        "Charge it".into()
    }
    fn recovery() -> Recovery {
        Recovery::same_key(24 * 60 * MINUTE)
    }
    fn from_reference(&self, reference: &str) -> Option<A::Result> {
        A::rebuild(reference)
    }
    fn upgrade(from: u32, request: Value) -> Result<Self, Fail> {
        Ok(Self { request: A::upgrade(from, request)? })
    }
}

#[derive(Serialize, Deserialize)]
#[serde(bound = "")]
struct Buy<A>(PhantomData<A>);
impl<A: App> Job for Buy<A> {
    const KIND: &'static str = "buy";
    fn key(&self) -> JobKey {
        "it".into()
    }
    fn effects() -> Vec<EffectCard> {
        vec![Pay::<A>::card()]
    }
    fn policy() -> Policy {
        Policy::default().success("paid").review("unknown")
    }
}

/// What an app does and sees.
#[derive(Clone, Default)]
struct Told {
    calls: Arc<Mutex<Vec<String>>>,
    results: Arc<Mutex<Vec<String>>>,
}
impl Told {
    fn calls(&self) -> usize {
        self.calls.lock().unwrap().len()
    }
    fn results(&self) -> Vec<String> {
        self.results.lock().unwrap().clone()
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Does,
    Loses,
    DoesThenFails,
}

fn open<A: App>(world: &World, told: &Told, way: Way) -> Jobs
where
    A::Result: serde::Serialize,
{
    let (calls, results) = (told.calls.clone(), told.results.clone());
    world
        .builder()
        .payload_limit(10_000)
        .effect(move |e: &Pay<A>, key: &IdempotencyKey| -> Outcome<A::Result> {
            let sent = serde_json::to_string(&e.request)?;
            calls.lock().unwrap().push(format!("{sent} {key}"));
            if way == Way::Loses { Err(Fail::new("no answer")) } else { Ok(A::gets()) }
        })
        .on(move |cx, _: Buy<A>| {
            let result = cx.effect(Pay::<A> { request: A::asks() })?;
            results.lock().unwrap().push(serde_json::to_string(&result).unwrap_or_else(|e| e.to_string()));
            if way == Way::DoesThenFails { Err(Fail::new("later")) } else { Ok(()) }
        })
        .start()
        .unwrap()
}

fn buy<A: App>(world: &World, jobs: &Jobs) -> JobId {
    let id = jobs.enqueue(&Buy::<A>(PhantomData)).unwrap().id();
    world.settle(jobs);
    id
}

/// Runs version `A`, then version `B` a minute later; what became of the job.
fn two_versions<A: App, B: App>(first: Way, second: Way) -> (World, Jobs, JobId, Told) {
    let (world, told) = (World::new(), Told::default());
    let jobs = open::<A>(&world, &told, first);
    let id = buy::<A>(&world, &jobs);
    let _ = jobs.shutdown(MINUTE).unwrap();
    let jobs = open::<B>(&world, &told, second);
    world.pass(&jobs, MINUTE);
    (world, jobs, id, told)
}

fn question(jobs: &Jobs, id: JobId) -> Question {
    is(jobs, id, State::NeedsDecision);
    jobs.dead_letter(id).unwrap().questions()[0].clone()
}

#[derive(Clone, Serialize, Deserialize)]
struct Cents {
    cents: u64,
}
macro_rules! app {
    ($name:ident, $asks:expr => $request:ty, $gets:expr => $result:ty $(, $($more:tt)*)?) => {
        struct $name;
        impl App for $name {
            type Request = $request;
            type Result = $result;
            fn asks() -> $request {
                $asks
            }
            fn gets() -> $result {
                $gets
            }
            $($($more)*)?
        }
    };
}
app!(Plain, Cents { cents: 500 } => Cents, "op_1".into() => String);
app!(Dearer, Cents { cents: 700 } => Cents, "op_1".into() => String);
app!(Routine, Cents { cents: 500 } => Cents, "op_1".into() => String, const RISK: Risk = Risk::Routine;);
app!(RoutineDearer, Cents { cents: 700 } => Cents, "op_1".into() => String, const RISK: Risk = Risk::Routine;);

/// Unknown, and the handler now asks for something else under the same name: a question, never a call. The answer decides: it
/// happened with its reference, or it did not, and then the new request is sent under a new key if that is wished.
#[test]
fn another_request_under_an_open_name_is_a_question() {
    let (_, jobs, id, told) = two_versions::<Plain, Dearer>(Way::Loses, Way::Does);
    assert!(matches!(question(&jobs, id), Question::RequestChanged { .. }));
    assert_eq!(told.calls(), 1);

    let (world, jobs, id, told) = two_versions::<Plain, Dearer>(Way::Loses, Way::Does);
    let letter = jobs.dead_letter(id).unwrap();
    let no = Decision::did_not_happen(&letter.ledger()[0].id).with_new_key().by("ann", "not on the statement");
    jobs.decide(&letter, no).unwrap();
    world.settle(&jobs);
    is(&jobs, id, State::Done);
    let calls = told.calls.lock().unwrap().clone();
    assert!(calls.len() == 2 && calls[1].starts_with("{\"cents\":700}"), "{calls:?}");

    let (world, jobs, id, told) = two_versions::<Plain, Dearer>(Way::Loses, Way::Does);
    let letter = jobs.dead_letter(id).unwrap();
    jobs.decide(&letter, Decision::did_not_happen(&letter.ledger()[0].id).by("ann", "not there")).unwrap();
    world.settle(&jobs);
    is(&jobs, id, State::Done);
    let calls = told.calls.lock().unwrap().clone();
    let key = |n: usize| calls[n].rsplit(' ').next().map(str::to_owned);
    assert!(calls.len() == 2 && calls[1].starts_with("{\"cents\":500}"), "the same key keeps its request: {calls:?}");
    assert_eq!(key(0), key(1));
}

/// Confirmed, and the handler now asks for something else: a risky effect is a question; a routine one returns its record.
#[test]
fn another_request_under_a_confirmed_name() {
    let (_, jobs, id, told) = two_versions::<Plain, Dearer>(Way::DoesThenFails, Way::Does);
    assert!(matches!(question(&jobs, id), Question::RequestChanged { .. }));
    assert_eq!(told.calls(), 1);

    let (_, jobs, id, told) = two_versions::<Routine, RoutineDearer>(Way::DoesThenFails, Way::Does);
    is(&jobs, id, State::Done);
    assert_eq!((told.calls(), told.results()), (1, vec!["\"op_1\"".to_owned(); 2]));
}

#[derive(Clone, Serialize, Deserialize)]
struct WithCurrency {
    cents: u64,
    #[serde(default = "euro")]
    currency: String,
}
fn euro() -> String {
    "EUR".into()
}
app!(Currency, WithCurrency { cents: 500, currency: euro() } => WithCurrency, "op_1".into() => String);

/// A new version adds a field with a default: the stored request, read by today's type, is what the handler asks for. No
/// question, and the retry goes on with the same key.
#[test]
fn a_new_field_with_a_default_is_the_same_request() {
    let (_, jobs, id, told) = two_versions::<Plain, Currency>(Way::Loses, Way::Does);
    is(&jobs, id, State::Done);
    let calls = told.calls.lock().unwrap().clone();
    assert_eq!(calls.len(), 2);
    assert!(calls[1].starts_with("{\"cents\":500,\"currency\":\"EUR\"}"), "{calls:?}");
    assert_eq!(calls[0].rsplit(' ').next(), calls[1].rsplit(' ').next(), "one key");
}

#[derive(Clone, Serialize, Deserialize)]
struct Amount {
    amount: String,
}
app!(Incompatible, Amount { amount: "5.00".into() } => Amount, "op_1".into() => String);
app!(Refusing, Amount { amount: "5.00".into() } => Amount, "op_1".into() => String,
    const VERSION: u32 = 2;
    fn upgrade(_: u32, _: Value) -> Result<Amount, Fail> { Err(Fail::permanent("too old")) });
app!(Upgrading, Amount { amount: "5.00".into() } => Amount, "op_1".into() => String,
const VERSION: u32 = 2;
fn upgrade(from: u32, request: Value) -> Result<Amount, Fail> {
    let cents = request["cents"].as_u64().ok_or("no cents")?;
    assert_eq!(from, 1);
    Ok(Amount { amount: format!("{}.{:02}", cents / 100, cents % 100) })
});

/// Today's type cannot read the stored request, and nobody upgrades it: a decision, never a call. Only a new key makes it anew.
#[test]
fn a_request_that_cannot_be_read_needs_a_decision() {
    for (world, jobs, id, told) in [
        two_versions::<Plain, Incompatible>(Way::Loses, Way::Does),
        two_versions::<Plain, Refusing>(Way::Loses, Way::Does),
    ] {
        assert!(matches!(question(&jobs, id), Question::RequestUnreadable { .. }));
        assert_eq!(told.calls(), 1);
        let letter = jobs.dead_letter(id).unwrap();
        let no = Decision::did_not_happen(&letter.ledger()[0].id).by("ann", "not on the statement");
        assert!(jobs.decide(&letter, no.clone()).unwrap_err().to_string().contains("new key"));
        jobs.decide(&letter, no.with_new_key()).unwrap();
        world.settle(&jobs);
        is(&jobs, id, State::Done);
        assert_eq!(told.calls(), 2);
    }
}

/// With an upgrade the stored request is read, is the same one, and goes on with its key.
#[test]
fn an_upgraded_request_goes_on() {
    let (_, jobs, id, told) = two_versions::<Plain, Upgrading>(Way::Loses, Way::Does);
    is(&jobs, id, State::Done);
    let calls = told.calls.lock().unwrap().clone();
    assert!(calls.len() == 2 && calls[1].starts_with("{\"amount\":\"5.00\"}"), "{calls:?}");
    assert_eq!(calls[0].rsplit(' ').next(), calls[1].rsplit(' ').next(), "one key");
}

/// A confirmed effect returns its record also when its request cannot be read any more.
#[test]
fn a_confirmed_effect_needs_no_readable_request() {
    let (_, jobs, id, told) = two_versions::<Plain, Incompatible>(Way::DoesThenFails, Way::Does);
    is(&jobs, id, State::Done);
    assert_eq!((told.calls(), told.results().len()), (1, 2));
}

#[derive(Serialize, Deserialize)]
struct Structured {
    operation: String,
}
app!(Huge, Cents { cents: 500 } => Cents, "x".repeat(20_000) => String,
    fn rebuild(reference: &str) -> Option<String> { Some(reference.to_owned()) });
app!(Structures, Cents { cents: 500 } => Cents, Structured { operation: "op_1".into() } => Structured,
    fn rebuild(reference: &str) -> Option<Structured> { Some(Structured { operation: reference.to_owned() }) });

/// Cannot be written at all.
struct Secret;
impl Serialize for Secret {
    fn serialize<S: serde::Serializer>(&self, _: S) -> Result<S::Ok, S::Error> {
        Err(serde::ser::Error::custom("secrets are not written"))
    }
}
impl<'de> Deserialize<'de> for Secret {
    fn deserialize<D: serde::Deserializer<'de>>(_: D) -> Result<Self, D::Error> {
        Err(serde::de::Error::custom("secrets are not read"))
    }
}
/// Can be written and not read back.
struct OneWay;
impl Serialize for OneWay {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_str("one way")
    }
}
impl<'de> Deserialize<'de> for OneWay {
    fn deserialize<D: serde::Deserializer<'de>>(_: D) -> Result<Self, D::Error> {
        Err(serde::de::Error::custom("there is no way back"))
    }
}
/// Panics while it is written.
struct Bomb;
impl Serialize for Bomb {
    fn serialize<S: serde::Serializer>(&self, _: S) -> Result<S::Ok, S::Error> {
        std::panic::resume_unwind(Box::new("a bug in a serializer"))
    }
}
impl<'de> Deserialize<'de> for Bomb {
    fn deserialize<D: serde::Deserializer<'de>>(_: D) -> Result<Self, D::Error> {
        Err(serde::de::Error::custom("no"))
    }
}
app!(Secretive, Cents { cents: 500 } => Cents, Secret => Secret);
app!(OneWayOnly, Cents { cents: 500 } => Cents, OneWay => OneWay);
app!(Bombing, Cents { cents: 500 } => Cents, Bomb => Bomb);

fn lost<A: App>() -> u32 {
    let (world, told) = (World::new(), Told::default());
    let jobs = open::<A>(&world, &told, Way::Does);
    let id = buy::<A>(&world, &jobs);
    assert!(matches!(question(&jobs, id), Question::ResultLost { .. }));
    assert_eq!(charge(&jobs, id), EffectState::Confirmed, "the fact is written first and always fits");
    assert_eq!((told.calls(), told.results().len()), (1, 0));
    world.pass(&jobs, 24 * 60 * MINUTE);
    assert_eq!(told.calls(), 1);
    let letter = jobs.dead_letter(id).unwrap();
    assert!(
        letter.headline().starts_with("This happened, but the answer is lost: Charge it."),
        "{}",
        letter.headline()
    );
    1
}

/// It happened, and its result is too big, cannot be written, cannot be read back, or panics while it is written: confirmed,
/// result lost, a decision, never a call.
#[test]
fn a_result_that_cannot_be_kept_is_confirmed_and_lost() {
    let told = lost::<Huge>() + lost::<Secretive>() + lost::<OneWayOnly>() + lost::<Bombing>();
    println!("{told} ways to lose a result");
    assert_eq!(told, 4);
}

/// The next version of the app cannot read the result of a confirmed effect: a decision, never a call.
#[test]
fn a_result_that_cannot_be_read_any_more_needs_a_decision() {
    let (_, jobs, id, told) = two_versions::<Plain, Structures>(Way::DoesThenFails, Way::Does);
    assert!(matches!(question(&jobs, id), Question::ResultLost { .. }));
    assert_eq!((told.calls(), told.results().len()), (1, 1));
}

/// A person gives the reference, the effect rebuilds its result from it, and the job goes on with it, without a call.
#[test]
fn a_lost_result_is_rebuilt_from_the_reference() {
    let (world, jobs, id, told) = two_versions::<Plain, Structures>(Way::DoesThenFails, Way::Does);
    let letter = jobs.dead_letter(id).unwrap();
    let effect = letter.ledger()[0].id.clone();
    jobs.decide(&letter, Decision::happened(&effect, Some("op_1")).by("ann", "read off the statement")).unwrap();
    world.settle(&jobs);
    is(&jobs, id, State::Done);
    assert_eq!(told.calls(), 1);
    assert_eq!(told.results()[1..], ["{\"operation\":\"op_1\"}"]);
}

app!(Unit, Cents { cents: 500 } => Cents, () => ());
app!(Optional, Cents { cents: 500 } => Cents, Some("op_1".into()) => Option<String>);

fn without_reference<A: App>(result: &str) -> u32 {
    let (world, told) = (World::new(), Told::default());
    let jobs = open::<A>(&world, &told, Way::Loses);
    let id = buy::<A>(&world, &jobs);
    // The key is over after a day away: a person is asked.
    let _ = jobs.shutdown(MINUTE).unwrap();
    world.clock.advance(23 * 60 * MINUTE);
    let jobs = open::<A>(&world, &told, Way::Does);
    world.settle(&jobs);
    assert!(matches!(question(&jobs, id), Question::DidItHappen { .. }));
    let letter = jobs.dead_letter(id).unwrap();
    jobs.decide(&letter, Decision::happened(&letter.ledger()[0].id, None).by("ann", "she saw it")).unwrap();
    world.settle(&jobs);
    is(&jobs, id, State::Done);
    assert_eq!((told.calls(), told.results()), (1, vec![result.to_owned()]));
    1
}

/// "It happened", without a reference: a result that JSON `null` stands for needs none; the job goes on.
#[test]
fn a_result_that_null_stands_for_needs_no_reference() {
    let told = without_reference::<Unit>("null") + without_reference::<Optional>("null");
    assert_eq!(told, 2);
}

/// "It happened", and neither a reference nor `null` makes its result: the job can only be ended as handled outside, which then
/// keeps the charge as what it is.
#[test]
fn a_result_that_cannot_be_rebuilt_leaves_handled_outside() {
    let (_, jobs, id, told) = two_versions::<Plain, Dearer>(Way::Loses, Way::Does);
    let letter = jobs.dead_letter(id).unwrap();
    let effect = letter.ledger()[0].id.clone();
    jobs.decide(&letter, Decision::happened(&effect, Some("op_1")).by("ann", "on the statement")).unwrap();
    assert!(matches!(question(&jobs, id), Question::ResultLost { .. }), "this version rebuilds nothing");
    let letter = jobs.dead_letter(id).unwrap();
    let refused = jobs.decide(&letter, Decision::try_again().by("ann", "perhaps"));
    assert!(refused.is_err());
    jobs.decide(&letter, Decision::handled_outside().by("ann", "shipped by hand")).unwrap();
    is(&jobs, id, State::HandledOutside);
    assert_eq!((charge(&jobs, id), told.calls()), (EffectState::Confirmed, 1));
    assert_eq!(jobs.ledger(id).unwrap()[0].reference.as_deref(), Some("op_1"));
}
