//! Histories that must never be accepted: three lives of a small queue are taken down as a simulation does it, one thing is spoilt, and
//! the invariant has to say which promise was broken. Without the change it accepts the history, and finds something to look at.

mod effects;
mod jobs;
mod runs;

use super::*;
use crate::oracle::Line;
use onceward::model::time::{Mono, Wall};
use onceward::{Backoff, EffectCard, EffectId, Ending, Policy, Recovery, Risk, Signed};
use std::time::Duration;

pub(super) const T0: u64 = 1_767_225_600_000;
const SECOND: u64 = 1_000;

/// A history with what the file says at its end.
#[derive(Clone)]
pub(super) struct Case {
    pub(super) history: History,
    pub(super) jobs: Vec<FinalJob>,
}

impl Case {
    /// The first event that is like this.
    pub(super) fn at(&self, like: impl Fn(&What) -> bool) -> usize {
        self.history.events.iter().position(|e| like(&e.what)).expect("the story has such an event")
    }
    pub(super) fn what(&mut self, like: impl Fn(&What) -> bool) -> &mut What {
        let at = self.at(like);
        &mut self.history.events[at].what
    }
    /// Something else happened before the event at `at`, or at the end, at the same time in the same life.
    pub(super) fn insert(&mut self, at: usize, what: What) {
        let events = &mut self.history.events;
        let like = events.get(at).unwrap_or_else(|| &events[at - 1]).clone();
        events.insert(at, Event { what, ..like });
    }
    pub(super) fn append(&mut self, what: What) {
        self.insert(self.history.events.len(), what);
    }
    pub(super) fn remove(&mut self, like: impl Fn(&What) -> bool) {
        self.history.events.retain(|e| !like(&e.what));
    }
    pub(super) fn job(&mut self, id: u64) -> &mut FinalJob {
        self.jobs.iter_mut().find(|j| j.id.number() == id).expect("the story has such a job")
    }
    pub(super) fn effect(&mut self, id: u64, name: &str) -> &mut FinalEffect {
        self.job(id).effects.iter_mut().find(|e| e.effect == name).expect("the job has such an effect")
    }
}

/// The good story is accepted by the invariant, which finds something to look at; each bad one is rejected with these words, by the whole
/// judge, too.
#[track_caller]
pub(super) fn rejected(check: Check, bad: &[(&str, fn(&mut Case))]) {
    let good = story();
    let looked_at = check(&View::of(&good.history, &good.jobs).unwrap()).unwrap();
    assert!(looked_at > 0, "there was nothing to look at");
    for (words, spoil) in bad {
        let mut case = good.clone();
        spoil(&mut case);
        let why = check(&View::of(&case.history, &case.jobs).unwrap()).expect_err(words);
        assert!(why.contains(words), "{words:?} expected, said: {why}");
        assert!(judge(&case.history, &case.jobs).is_err());
    }
}

/// Takes the story down.
struct Scribe {
    recorder: Recorder,
    life: u32,
    wall: u64,
    mono: u64,
    calls: u64,
}

impl Scribe {
    fn now(&self) -> Now {
        Now { wall: Wall(self.wall), mono: Mono(self.mono) }
    }
    fn tell(&self, what: What) {
        assert!(self.recorder.tell(self.life, self.now(), what));
    }
    fn start(&mut self, boot: u64, down_ms: u64) {
        self.life += 1;
        self.wall += down_ms;
        self.mono = 0;
        self.tell(What::Started { boot, review: false, clocks: true, down_ms });
    }
    fn pass(&mut self, ms: u64) {
        self.wall += ms;
        self.mono += ms;
        self.tell(What::Moved(Moved::Advance));
    }
    fn ask(&self, ask: u64, name: (&'static str, &str), payload: u64, due: Due, answer: Answer) {
        self.tell(What::Asking { ask, name: (name.0, name.1.to_owned()), payload, due });
        self.tell(What::Asked { ask, answer });
    }
    fn stored(&self, id: u64, name: (&'static str, &str), due: Due) {
        self.ask(100 + id, name, 7, due, Answer::Stored(JobId::from_number(id)));
    }
    fn began(&self, id: u64, attempt: u32, token: u64) {
        self.tell(What::Began { job: JobId::from_number(id), attempt, token });
    }
    fn ended(&self, id: u64, token: u64, how: How) {
        self.tell(What::Ended { job: JobId::from_number(id), token, how });
    }
    fn saw(&self, id: u64, state: State, due: Option<u64>) {
        self.tell(What::Saw { job: JobId::from_number(id), state: Some(state), due });
    }
    /// A step or a commit; `first`: its closure runs.
    fn remember(&self, id: u64, token: u64, name: &str, first: bool) {
        let memo = |memo| What::Remember {
            job: JobId::from_number(id),
            token,
            name: name.into(),
            commit: name == "commit",
            memo,
        };
        self.tell(memo(Memo::Asked));
        if first {
            self.tell(memo(Memo::Ran));
        }
        self.tell(memo(Memo::Told(b"1".to_vec())));
    }
    /// An effect that is recorded, or that is called: under which key, whether it happens, what comes back.
    fn effect(&mut self, id: u64, token: u64, effect: &str, call: Option<(&str, bool, Came)>, told: Told) {
        let job = JobId::from_number(id);
        self.tell(What::EffectAsked { job, token, effect: effect.into() });
        if let Some((key, happens, came)) = call {
            self.calls += 1;
            let call = self.calls;
            self.tell(What::Entered { call, job, effect: effect.into(), key: key.into(), request: 1 });
            if happens {
                self.recorder.world(self.now(), What::Applied { call });
            }
            self.tell(What::Returned { call, came });
        }
        self.tell(What::EffectTold { job, token, effect: effect.into(), told });
    }
    fn act(&self, act: u64, id: u64, verdict: Verdict) {
        self.tell(What::Acting { act, job: Some(JobId::from_number(id)), deed: Deed::Decide(verdict) });
        self.tell(What::Acted { act, done: Some(true) });
    }
}

pub(super) fn effect_id(name: &str) -> EffectId {
    EffectId { name: name.into(), part: String::new() }
}

pub(super) fn happened(effect: &str) -> Verdict {
    Verdict::Happened { effect: effect_id(effect), reference: Some("w-1".into()), result: None, undo: None }
}

pub(super) fn did_not_happen(effect: &str, new_key: bool) -> Verdict {
    Verdict::DidNotHappen { effect: effect_id(effect), new_key }
}

fn kinds() -> BTreeMap<&'static str, KindRules> {
    let (minute, hour) = (Duration::from_secs(60), Duration::from_secs(3_600));
    let card = |name, recovery| EffectCard::new(name, &[], Risk::Routine, recovery);
    let pay =
        Policy::default().retries(3).backoff(Backoff::steps([10, 20].map(Duration::from_secs))).deadline(24 * hour);
    let effects = [
        card("charge", Recovery::same_key(2 * hour)),
        card("wire", Recovery::ask()),
        card("mail", Recovery::repeat()),
        card("book", Recovery::probe(minute)),
    ];
    BTreeMap::from([("pay", pay.resolve(&effects)), ("note", Policy::default().resolve(&[]))])
}

fn decision(verdict: Verdict) -> Entry {
    Entry::Decision { verdict, signed: Signed { who: "ann".into(), why: "looked".into(), at: Wall(T0) } }
}

fn died() -> Entry {
    let text = "the process died while this handler ran".into();
    Entry::Attempt { attempt: 2, at: Wall(T0), class: onceward::Class::Transient, text }
}

fn done(id: u64, name: (&'static str, &str), last_token: u64) -> FinalJob {
    FinalJob {
        id: JobId::from_number(id),
        name: (name.0, name.1.into()),
        payload: 7,
        undoes: None,
        state: State::Done,
        due: None,
        deadline: (name.0 == "pay").then_some(T0 + 24 * 3_600 * SECOND),
        attempts: 1,
        claims: 1,
        given_back: 0,
        granted: 0,
        last_token,
        effects: Vec::new(),
        letter: None,
        memos: Vec::new(),
        history: Vec::new(),
    }
}

fn confirmed(effect: &str, key: &str, generation: u32, calls: u32) -> FinalEffect {
    FinalEffect {
        effect: effect.into(),
        state: EffectState::Confirmed,
        key: key.into(),
        generation,
        calls,
        reference: Some("op".into()),
        undoing: Undoing::No,
        conflict: false,
    }
}

/// Three lives: an order that is charged, dies with its process, is wired under a second key, and asks a person; jobs that are due
/// later; a pause and a power cut; a mail that is sent twice, as declared; a probe; a replay of a dead job; a sleep of the machine.
pub(super) fn story() -> Case {
    let mut s = Scribe { recorder: Recorder::default(), life: 0, wall: T0, mono: 0, calls: 0 };
    let back = |what: &str| Came::Back(what.into());
    let op = || Told::Done("op".into());
    s.start(1, 0);
    s.stored(1, ("pay", "a"), Due::AtOnce);
    s.ask(2, ("pay", "a"), 8, Due::AtOnce, Answer::Existing { id: JobId::from_number(1), differs: true });
    s.ask(3, ("note", "no"), 7, Due::AtOnce, Answer::NotDone);
    s.stored(2, ("note", "later"), Due::After(60 * SECOND));
    s.stored(3, ("note", "date"), Due::At(T0 + 70 * SECOND));
    s.began(1, 1, 101);
    s.remember(1, 101, "draw", true);
    s.effect(1, 101, "charge", Some(("k1", true, Came::ToNothing)), Told::Failed);
    s.ended(1, 101, How::Unknown);
    s.tell(What::Idle);
    s.saw(1, State::Delayed, Some(T0 + 10 * SECOND));
    s.pass(10 * SECOND);
    s.began(1, 2, 102);
    s.remember(1, 102, "draw", false);
    s.effect(1, 102, "charge", Some(("k1", false, back("op"))), op());
    s.tell(What::Crashed(Crash::Kill));
    assert!(!s.recorder.tell(1, s.now(), What::Idle), "a dead process says nothing");

    s.start(1, SECOND);
    s.began(1, 3, 201);
    s.remember(1, 201, "draw", false);
    s.effect(1, 201, "charge", None, op());
    s.effect(1, 201, "wire", Some(("k2", false, Came::Refused)), Told::Refused);
    s.ended(1, 201, How::Transient(0));
    s.saw(1, State::Delayed, Some(s.wall + 20 * SECOND));
    s.pass(20 * SECOND);
    s.began(1, 4, 202);
    s.effect(1, 202, "wire", Some(("k3", true, Came::ToNothing)), Told::Failed);
    s.ended(1, 202, How::Unknown);
    s.saw(1, State::NeedsDecision, None);
    s.act(1, 1, happened("wire"));
    s.began(1, 4, 203);
    s.effect(1, 203, "wire", None, Told::Done("w-1".into()));
    let jobs = vec![(("note", "a/commit".to_owned()), 7)];
    s.tell(What::Owing { topic: "owed", id: "m1".into() });
    s.tell(What::Transacting { ask: 20, row: "a".into(), jobs, messages: vec!["m1".into()], once: true });
    s.remember(1, 203, "commit", true);
    s.tell(What::Transacted { ask: 20, done: Some(true) });
    s.tell(What::Owed { topic: "owed", id: "m1".into() });
    s.ended(1, 203, How::Ok);
    s.saw(1, State::Done, None);
    s.began(4, 1, 204);
    s.ended(4, 204, How::Ok);
    s.recorder.world(s.now(), What::Delivered { topic: "owed", id: "m1".into(), message: "paid".into() });
    s.tell(What::Idle);
    s.pass(40 * SECOND);
    s.began(2, 1, 205);
    s.ended(2, 205, How::Ok);
    s.began(3, 1, 206);
    s.ended(3, 206, How::Ok);
    s.tell(What::Idle);
    s.pass(30 * SECOND);
    s.tell(What::Idle);
    s.tell(What::Pausing { kind: Some("note"), on: true });
    s.tell(What::Paused { kind: Some("note"), on: true });
    s.stored(5, ("note", "kept"), Due::AtOnce);
    s.tell(What::Idle);
    s.tell(What::Crashed(Crash::PowerCut));

    s.start(2, 5 * SECOND);
    s.stored(6, ("pay", "b"), Due::AtOnce);
    s.began(6, 1, 301);
    s.effect(6, 301, "mail", Some(("k4", true, Came::ToNothing)), Told::Failed);
    s.ended(6, 301, How::Unknown);
    s.pass(10 * SECOND);
    s.began(6, 2, 302);
    s.effect(6, 302, "mail", Some(("k4", true, back("op"))), op());
    s.tell(What::Finishing { job: JobId::from_number(6), token: 302 });
    s.ended(6, 302, How::Ok);
    s.stored(7, ("pay", "c"), Due::AtOnce);
    s.began(7, 1, 303);
    s.effect(7, 303, "book", Some(("k5", false, Came::ToNothing)), Told::Failed);
    s.ended(7, 303, How::Unknown);
    s.saw(7, State::Waiting, None);
    s.pass(60 * SECOND);
    s.began(7, 2, 304);
    s.tell(What::Probing { probe: 1, job: JobId::from_number(7), effect: "book".into() });
    s.tell(What::Probed { probe: 1, said: Said::NotThere });
    s.effect(7, 304, "book", Some(("k5", true, back("op"))), op());
    s.ended(7, 304, How::Ok);
    s.stored(8, ("pay", "d"), Due::AtOnce);
    s.began(8, 1, 305);
    s.remember(8, 305, "draw", true);
    s.effect(8, 305, "charge", Some(("k6", true, back("op"))), op());
    s.ended(8, 305, How::Permanent);
    s.saw(8, State::Dead, None);
    let line = Line { effect: "charge".into(), key: "k6".into(), confirmed: true, reference: Some("op".into()) };
    let kept = Kept { token: 305, effects: vec![line], memos: vec!["draw".into()] };
    s.tell(What::Replaying { job: JobId::from_number(8), kept });
    s.act(2, 8, Verdict::TryAgain);
    s.began(8, 2, 306);
    s.remember(8, 306, "draw", false);
    s.effect(8, 306, "charge", None, op());
    s.ended(8, 306, How::Permanent);
    s.saw(8, State::Dead, None);
    s.stored(9, ("pay", "e"), Due::AtOnce);
    s.began(9, 1, 307);
    s.wall += 3_600 * SECOND;
    s.tell(What::Moved(Moved::Suspend(3_600 * SECOND)));
    s.ended(9, 307, How::Ok);
    s.tell(What::Idle);
    s.tell(What::Rows(BTreeMap::from([("a".into(), 1)])));
    let posted = Posted {
        id: "m1".into(),
        key: "a".into(),
        number: 1,
        marks: 1,
        again: (0, 0),
        ended: Some(Ending::Published),
        may_wait: false,
        overtaken: false,
    };
    s.tell(What::Topic { topic: "owed", posted: vec![posted], last: 1 });
    let events = s.recorder.events();
    Case { history: History { kinds: kinds(), liars: BTreeSet::new(), workers: 2, calm: true, events }, jobs: ends() }
}

/// What the file says at the end of the story.
fn ends() -> Vec<FinalJob> {
    let memo = |name: &str| (name.to_owned(), b"1".to_vec());
    vec![
        FinalJob {
            attempts: 4,
            claims: 5,
            given_back: 1,
            effects: vec![confirmed("charge", "k1", 1, 2), confirmed("wire", "k3", 2, 2)],
            memos: vec![memo("draw"), memo("commit")],
            history: vec![died(), Entry::Strike { at: Wall(T0) }, decision(happened("wire"))],
            ..done(1, ("pay", "a"), 203)
        },
        done(2, ("note", "later"), 205),
        done(3, ("note", "date"), 206),
        done(4, ("note", "a/commit"), 204),
        FinalJob { state: State::Ready, attempts: 0, claims: 0, ..done(5, ("note", "kept"), 0) },
        FinalJob { attempts: 2, claims: 2, effects: vec![confirmed("mail", "k4", 1, 2)], ..done(6, ("pay", "b"), 302) },
        FinalJob { attempts: 2, claims: 2, effects: vec![confirmed("book", "k5", 1, 2)], ..done(7, ("pay", "c"), 304) },
        FinalJob {
            state: State::Dead,
            attempts: 2,
            claims: 2,
            granted: 1,
            effects: vec![confirmed("charge", "k6", 1, 1)],
            letter: Some(FinalLetter { lists: vec!["charge".into()], questions: 1 }),
            memos: vec![memo("draw")],
            history: vec![decision(Verdict::TryAgain)],
            ..done(8, ("pay", "d"), 306)
        },
        done(9, ("pay", "e"), 307),
    ]
}

/// The story is accepted, every invariant finds something to look at, and the counts say what was in it.
#[test]
fn the_good_story_is_accepted_and_counted() {
    let case = story();
    let mut counts = judge(&case.history, &case.jobs).unwrap();
    println!("looked at: {:?}\nevents: {:?}\n{:?}", counts.looked_at, counts.events, counts.coverage);
    let idle: Vec<_> = counts.looked_at.iter().filter(|(_, n)| **n == 0).collect();
    assert!(counts.looked_at.len() == CHECKS.len() && idle.is_empty(), "{idle:?}");
    let edge = ("NeedsDecision".to_owned(), "Running".to_owned());
    let Coverage { states, edges, faults } = counts.coverage.clone();
    assert!(states.contains("Dead") && edges.contains(&edge), "{states:?} {edges:?}");
    assert!(faults.contains("power cut") && faults.contains("suspended"), "{faults:?}");
    counts.add(&judge(&case.history, &case.jobs).unwrap());
    assert_eq!((counts.events["killed"], counts.events["provider did it"]), (2, 12));
    assert_eq!(counts.coverage.states, states);
}

/// What the story has none of is counted under a name of its own.
#[test]
fn every_fault_has_a_name() {
    let mut case = story();
    let (job, token, effect) = (JobId::from_number(9), 307, "charge".to_owned());
    let act = |deed| What::Acting { act: 90, job: None, deed };
    for what in [
        What::EffectTold { job, token, effect, told: Told::NotSent },
        What::Ended { job, token, how: How::Interrupted },
        What::Ended { job, token, how: How::Panicked },
        What::Probed { probe: 1, said: Said::Found("op".into()) },
        What::Tossing { topic: "owed", id: "m1".into() },
        What::DiskFull(true),
        What::Healed,
        act(Deed::Cancel),
        act(Deed::Lift),
    ] {
        case.append(what);
    }
    let Counts { events, coverage, .. } = coverage::count(&View::of(&case.history, &case.jobs).unwrap());
    let new = ["probe: found", "message thrown away", "person cancels", "person lifts the review"];
    assert!(new.iter().all(|word| events.get(word) == Some(&1)), "{events:?}");
    let new = ["effect not sent", "handler ended: interrupted", "handler ended: panicked", "disk full", "healed"];
    assert!(new.iter().all(|word| coverage.faults.contains(word)), "{:?}", coverage.faults);
}

/// An older copy of the file is put back: what was confirmed before may be called once more under its key, and nothing else (I11, I13).
#[test]
fn an_older_copy_makes_confirmed_effects_unknown() {
    for (key, accepted) in [("k1", true), ("k9", false)] {
        let mut case = story();
        let at = case.at(|w| matches!(w, What::Started { boot: 2, .. }));
        case.history.events[at].what = What::Started { boot: 2, review: true, clocks: true, down_ms: 5_000 };
        let (effect, key) = ("charge".to_owned(), key.to_owned());
        case.append(What::Entered { call: 90, job: JobId::from_number(1), effect, key, request: 1 });
        let view = View::of(&case.history, &case.jobs).unwrap();
        super::effects::i11(&view).unwrap();
        assert_eq!(super::effects::i13(&view).is_ok(), accepted);
    }
}

/// A history that was not taken down as it has to be is not judged.
#[test]
fn a_history_with_holes_is_not_accepted() {
    let holes: [(&str, fn(&mut Case)); 6] = [
        ("a number twice", |c| {
            let again = c.history.events[1].what.clone();
            c.append(again);
        }),
        ("nobody asked", |c| c.append(What::Asked { ask: 999, answer: Answer::Unknown })),
        ("nothing began", |c| c.append(What::Ended { job: JobId::from_number(1), token: 999, how: How::Ok })),
        ("no such call", |c| c.append(What::Applied { call: 999 })),
        ("did not start", |c| drop(c.history.events.remove(0))),
        ("declared the kind", |c| c.history.kinds.clear()),
    ];
    for (words, spoil) in holes {
        let mut case = story();
        spoil(&mut case);
        let why = judge(&case.history, &case.jobs).expect_err(words);
        assert!(why.contains("badly taken down") && why.contains(words), "{words:?} expected, said: {why}");
    }
}
