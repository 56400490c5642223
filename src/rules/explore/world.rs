//! One job in a small world: a handler, calls inside performers, requests on the wire, an honest provider with a ledger of its
//! own, a person who looks things up, and a clock. Every step it can take is an [`Event`]; troubles cost, so that "every
//! combination of up to n troubles" is a finite set.

mod events;
mod holds;

pub(super) use self::events::{Death, Ending, Event, Ret, Word};
use self::holds::check_effect;
use crate::model::attempt::{AttemptEnd, Evidence, Stop};
use crate::model::effect::{CallEnd, EffectRecord, EffectState, Probed, Recovery, Refusal as NotHappened, Stored};
use crate::model::fact::Fact;
use crate::model::id::{CallNo, EffectId, Lease, Token};
use crate::model::job::{End, JobRecord, JobState, NEXT_TICKET};
use crate::model::letter::{LetterRecord, Question, Verdict};
use crate::model::policy::KindRules;
use crate::model::review::Review;
use crate::model::time::Wall;
use crate::rules::effect::{AfterProbe, Asking, Begin, Same, begin, called, probed};
use crate::rules::fixture::{SETTLE, TTL, at, id, job, key, put, record, request, signed, way_back};
use crate::rules::lifecycle::{self, Claim};
use crate::rules::{CallFacts, Change, Env, Refusal, compensate, letter, older};

/// When an older copy is found to be one.
const FOUND: u64 = SETTLE / 2;

/// What is fixed while a world is explored.
#[derive(Clone, Copy)]
pub(super) struct Setting<'a> {
    pub(super) rules: &'a KindRules,
    /// Effects the handler asks for, in order.
    pub(super) script: &'a [&'static str],
    /// The code changed: from the second claim on it asks in the reverse order.
    pub(super) reversed: bool,
    /// The person looks before answering. A careless one may say anything.
    pub(super) honest: bool,
    /// Effects that can be undone.
    pub(super) undo: &'a [&'static str],
    /// The file is an older copy: what happened meanwhile.
    pub(super) older: Option<Meanwhile>,
}

/// What an older copy of the file does not know of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Meanwhile {
    /// Nothing.
    Nothing,
    /// The first effect happened.
    Happened,
    /// It had been refused when the copy was made, and happened under the next key.
    HappenedAgain,
    /// It was on its way when the copy was made, was refused then, and happened under the next key.
    RefusedAndHappened,
}

#[derive(Clone, Debug, Hash)]
enum Step {
    Ask(usize),
    Calling(usize),
    Probing(Asking, Option<bool>),
    Finish,
}

#[derive(Clone, Debug, Hash)]
struct Hand {
    lease: Lease,
    started: bool,
    order: Vec<EffectId>,
    next: usize,
    step: Step,
    stop: Option<Stop>,
    unasked: Vec<EffectId>,
}

/// A call inside its performer, of whatever claim.
#[derive(Clone, Debug, Hash)]
struct Call {
    effect: EffectId,
    lease: Lease,
    no: CallNo,
    generation: u32,
    since: u64,
    landed: bool,
}

/// A request that was sent; nobody waits for its answer any more.
#[derive(Clone, Debug, Hash)]
struct Wire {
    effect: EffectId,
    generation: u32,
    until: u64,
}

/// A line of the provider's own ledger.
#[derive(Clone, Debug, Hash)]
struct Landing {
    effect: EffectId,
    generation: u32,
    at: u64,
}

#[derive(Clone, Debug, Hash)]
pub(super) struct World {
    pub(super) job: JobRecord,
    pub(super) effects: Vec<EffectRecord>,
    pub(super) letter: Option<LetterRecord>,
    now: u64,
    token: u64,
    born: u64,
    ended: Vec<(EffectId, u64)>,
    hand: Option<Hand>,
    late: Option<(EffectId, Lease, Asking, bool)>,
    calls: Vec<Call>,
    wires: Vec<Wire>,
    ledger: Vec<Landing>,
    trusted: bool,
    counted: u32,
    sleeps: u32,
    /// The effect whose undo job is under way, and those that were undone, in order.
    undoing: Option<EffectId>,
    undone: Vec<EffectId>,
}

impl World {
    pub(super) fn new(setting: &Setting<'_>) -> Self {
        let mut first = job(JobState::Ready { ticket: NEXT_TICKET });
        first.deadline = setting.rules.deadline.map(|d| crate::model::time::Wall(0).after(d));
        let mut world = Self {
            job: first,
            effects: Vec::new(),
            letter: None,
            now: 0,
            token: 0,
            born: 0,
            ended: Vec::new(),
            hand: None,
            late: None,
            calls: Vec::new(),
            wires: Vec::new(),
            ledger: Vec::new(),
            trusted: true,
            counted: 0,
            sleeps: 0,
            undoing: None,
            undone: Vec::new(),
        };
        if let Some(meanwhile) = setting.older {
            world.rewind(meanwhile, setting);
        }
        world
    }

    /// A copy of before is put back.
    fn rewind(&mut self, meanwhile: Meanwhile, setting: &Setting<'_>) {
        let effect = id(setting.script[0]);
        let generation = match meanwhile {
            Meanwhile::Nothing | Meanwhile::Happened => 1,
            Meanwhile::HappenedAgain | Meanwhile::RefusedAndHappened => 2,
        };
        let known = match meanwhile {
            Meanwhile::Nothing | Meanwhile::Happened => None,
            Meanwhile::HappenedAgain => Some(EffectState::Refused(NotHappened::Said)),
            Meanwhile::RefusedAndHappened => Some(EffectState::Unknown),
        };
        if let Some(state) = known {
            // One attempt that ended so.
            self.token = 1;
            self.counted = 1;
            self.job.last_token = Token(1);
            (self.job.claims, self.job.attempts, self.job.effects) = (1, 1, 1);
            self.effects.push(record(&effect.name, state, 1));
        }
        if meanwhile != Meanwhile::Nothing {
            self.ledger.push(Landing { effect, generation, at: FOUND / 2 });
        }
        (self.now, self.born) = (FOUND, FOUND);
        // Claims of a start have tokens behind its first.
        self.token = Token::first_of(1).0;
    }

    /// A person or nobody acts on it next.
    pub(super) fn rests(&self) -> bool {
        matches!(self.job.state, JobState::NeedsDecision | JobState::Dead | JobState::Ended { .. })
    }

    fn recovery(&self, s: &Setting<'_>, effect: &EffectId) -> Recovery {
        s.rules.card(&effect.name).map_or(Recovery::Ask, |c| c.recovery)
    }

    fn facts(&self, e: &EffectRecord) -> CallFacts {
        let oldest = self.calls.iter().filter(|c| c.effect == e.id).map(|c| c.since).min();
        let ended = self.ended.iter().find(|(id, _)| *id == e.id).map_or(self.born, |(_, at)| (*at).max(self.born));
        CallFacts {
            running_ms: oldest.map(|since| self.now - since),
            quiet_ms: self.now - ended,
            key_age_ms: self.trusted.then(|| self.now - e.first_call.0),
        }
    }

    fn env<T>(&self, f: impl FnOnce(&Env<'_>) -> T) -> T {
        f(&Env { now: at(self.now), draw: 0, calls: &|e| self.facts(e) })
    }

    /// The provider remembers keys only where the rule says so, and only for their time.
    fn remembers(&self, s: &Setting<'_>, effect: &EffectId, generation: u32) -> bool {
        self.recovery(s, effect).key_ttl().is_some()
            && self.ledger.iter().any(|l| l.effect == *effect && l.generation == generation && self.now < l.at + TTL)
    }

    fn happened(&self, effect: &EffectId) -> bool {
        self.ledger.iter().any(|l| l.effect == *effect)
    }

    /// A request that hangs around for longer than the key's margin is beyond what a key can promise.
    fn may_land(&self, s: &Setting<'_>, effect: &EffectId, since: u64) -> bool {
        self.recovery(s, effect).key_ttl().is_none() || self.now - since < TTL / 10
    }

    fn apply(&mut self, change: &Change) {
        let running = matches!(self.job.state, JobState::Running { .. });
        let facts = change.facts();
        self.counted += u32::from(facts.iter().any(|f| matches!(f, Fact::Attempt { given_back: false, .. })));
        let told = facts.iter().filter(|f| matches!(f, Fact::Attempt { .. })).count();
        let ended = running && !matches!(change.record().state, JobState::Running { .. });
        assert_eq!(told, usize::from(ended), "one line per claim that a handler had: {facts:?}");
        let deadline = self.job.deadline.is_some_and(|d| self.now > d.0);
        assert!(!(deadline && change.record().attempts > self.job.attempts), "an attempt began after the deadline");
        assert!(change.record().last_token >= self.job.last_token, "tokens never fall");
        for new in change.effects() {
            if let Some(old) = self.effects.iter().find(|e| e.id == new.id) {
                check_effect(old, new);
            }
        }
        self.check_contradictions(change);
        put(&mut self.job, &mut self.effects, &mut self.letter, change);
        if let Some(order) = change.undo() {
            self.check_undo(&order.effect);
        }
    }

    // ---- steps -------------------------------------------------------------------------------------------------------
    pub(super) fn step(&mut self, event: Event, s: &Setting<'_>) {
        match event {
            Event::Claim => self.claim(s),
            Event::Start => self.start(s),
            Event::Ask(same) => self.ask(same, s),
            Event::Land(i) => {
                let (effect, generation) = (self.calls[i].effect.clone(), self.calls[i].generation);
                self.land(&effect, generation, s);
                self.calls[i].landed = true;
            }
            Event::Return(i, ret) => self.returns(i, ret, s),
            Event::WireLands(i) => {
                let wire = self.wires.remove(i);
                self.land(&wire.effect, wire.generation, s);
            }
            Event::Look => self.look(),
            Event::Answer(tells) => self.answer(tells, s),
            Event::Finish => self.finish(s),
            Event::End(how) => self.end(how, s),
            Event::Death(death) => self.death(death, s),
            Event::LateAnswer => self.late_answer(s),
            Event::Tick => self.pass(SETTLE / 2),
            Event::Sleep => {
                self.sleeps += 1;
                self.pass(TTL);
            }
            Event::Wake => {
                let (JobState::Delayed { due, .. } | JobState::Waiting { due, .. }) = self.job.state.clone() else {
                    return;
                };
                self.pass(due.0.saturating_sub(self.now));
                let change = lifecycle::promote(&self.job).expect("a due job can be promoted");
                self.apply(&change);
            }
            Event::Distrust => self.trusted = false,
            Event::Cancel => {
                if let Ok(change) = lifecycle::cancel(&self.job, &self.effects, s.rules, at(self.now)) {
                    self.apply(&change);
                }
            }
            Event::Person(i, word) => self.person(i, word, s),
            Event::Undo(how) => self.undo_ends(how, s),
        }
        self.check(s);
    }

    fn pass(&mut self, ms: u64) {
        self.now += ms;
        let now = self.now;
        self.wires.retain(|w| now < w.until);
    }

    fn claim(&mut self, s: &Setting<'_>) {
        self.token += 1;
        let token = Token(self.token);
        let claim =
            self.env(|env| lifecycle::claim(&self.job, token, &self.effects, s.rules, env)).expect("a ready job");
        self.apply(claim.change());
        let Some(lease) = claim.lease() else { return };
        assert!(matches!(claim, Claim::Go(_)));
        let mut order: Vec<EffectId> = s.script.iter().map(|n| id(n)).collect();
        if s.reversed && self.token > 1 {
            order.reverse();
        }
        let unasked = self.effects.iter().filter(|e| e.state.is_unresolved()).map(|e| e.id.clone()).collect();
        self.hand = Some(Hand { lease, started: false, order, next: 0, step: Step::Ask(0), stop: None, unasked });
    }

    fn start(&mut self, s: &Setting<'_>) {
        let stop = lifecycle::may_run(&self.effects, s.rules);
        if let Some(hand) = &mut self.hand {
            hand.started = true;
            hand.stop = stop;
        }
    }

    fn ask(&mut self, same: Same, s: &Setting<'_>) {
        let Some(hand) = self.hand.clone() else { return };
        let effect = hand.order[hand.next].clone();
        let old = self.effects.iter().find(|e| e.id == effect).cloned();
        let mut same = if old.is_none() { Same::Yes } else { same };
        let name = effect.name.clone();
        let unasked: Vec<_> = hand.unasked.iter().filter(|u| **u != effect).cloned().collect();
        let mut asked = request(&name);
        asked.undo = s.undo.contains(&name.as_str()).then(|| way_back(&name));
        let fresh = |generation| key(&name, generation);
        let mut old = old;
        if s.older.is_some() {
            let review = Review { what: "older".into(), since: Wall(0), found: Wall(FOUND), epoch: 1 };
            let told = older::doubted(&self.job, &hand.lease, old.as_ref(), &asked, &unasked, &review, false, &fresh);
            if let Some(told) = told.expect("a live lease") {
                self.apply(&told.change);
                old = told.change.effects().first().cloned();
                if told.is_of_now {
                    same = Same::Yes;
                }
            }
        }
        let begun = self
            .env(|env| begin(&self.job, &hand.lease, old.as_ref(), same, &asked, &unasked, s.rules, env, &fresh))
            .expect("a live lease");
        let mut hand = hand;
        hand.unasked = unasked;
        match begun {
            Begin::Recorded { .. } => {
                assert!(self.happened(&effect) || !s.honest, "recorded as done, and it was not: {effect}");
                hand = next(hand);
            }
            Begin::Call { change, call } => {
                self.check_call(old.as_ref(), &hand, s);
                let generation = change.effects()[0].generation;
                self.apply(&change);
                self.calls.push(Call {
                    effect,
                    lease: hand.lease,
                    no: call,
                    generation,
                    since: self.now,
                    landed: false,
                });
                hand.step = Step::Calling(hand.next);
            }
            Begin::Probe(asking) => hand.step = Step::Probing(asking, None),
            Begin::Stop(stop) => hand.stop = Some(stop),
        }
        self.hand = Some(hand);
    }

    /// An unknown effect is repeated only where that is safe, or was declared so.
    fn check_call(&self, old: Option<&EffectRecord>, hand: &Hand, s: &Setting<'_>) {
        let Some(old) = old else {
            let unknown = |id: &EffectId| self.effects.iter().any(|e| e.id == *id && e.state.is_unresolved());
            assert!(!hand.unasked.iter().any(unknown), "a second provider is called beside an unknown first one");
            return;
        };
        assert!(old.state != EffectState::Confirmed, "a confirmed effect is called again");
        if old.state.is_unresolved() {
            let safe = match self.recovery(s, &old.id) {
                Recovery::SameKey { .. } | Recovery::KeyThenProbe { .. } => {
                    self.trusted && self.now - old.first_call.0 < TTL - TTL / 10
                }
                Recovery::Repeat => true,
                Recovery::Ask | Recovery::Probe { .. } => false,
            };
            assert!(safe, "an unknown effect is blindly repeated");
        }
    }

    fn land(&mut self, effect: &EffectId, generation: u32, s: &Setting<'_>) {
        if self.remembers(s, effect, generation) {
            return;
        }
        self.ledger.push(Landing { effect: effect.clone(), generation, at: self.now });
        let times = self.ledger.iter().filter(|l| l.effect == *effect).count();
        let confirmed = self.effects.iter().any(|e| e.id == *effect && e.state == EffectState::Confirmed);
        let most = match self.recovery(s, effect) {
            // What a stuck thread has sent cannot be recalled, also after another call was confirmed.
            Recovery::Repeat if confirmed => return,
            // What an older copy of the file forgot counts as an attempt of its own.
            Recovery::Repeat => usize::try_from(self.job.attempts).expect("small") + usize::from(s.older.is_some()),
            Recovery::Ask | Recovery::SameKey { .. } | Recovery::Probe { .. } | Recovery::KeyThenProbe { .. } => 1,
        };
        assert!(times <= most || !s.honest, "{effect} happened {times} times, at most {most} are promised");
    }

    fn returns(&mut self, i: usize, ret: Ret, s: &Setting<'_>) {
        let call = self.calls.remove(i);
        self.ended.retain(|(id, _)| *id != call.effect);
        self.ended.push((call.effect.clone(), self.now));
        let end = match ret {
            Ret::Ok => {
                CallEnd::Happened { result: Stored::Json(b"1".to_vec()), reference: Some("op".into()), undo: None }
            }
            Ret::Lost(on_the_wire) => {
                if on_the_wire {
                    self.send(&call, s);
                }
                CallEnd::Unknown("timeout".into())
            }
            Ret::Refused => CallEnd::Refused("no".into()),
            Ret::NotSent => CallEnd::NotSent("no route".into()),
        };
        let record = self.effects.iter().find(|e| e.id == call.effect).cloned().expect("an intent precedes its call");
        let change = self.env(|env| called(&self.job, &record, &call.lease, call.no, call.generation, end, env));
        self.learn(change, &call.lease, s);
        let own = self.hand.as_mut().filter(|h| h.lease == call.lease);
        let Some(hand) = own else { return };
        let record = self.effects.iter().find(|e| e.id == call.effect).expect("still there");
        match record.state {
            EffectState::Confirmed => {
                let done = self.hand.take().expect("it is there");
                self.hand = Some(next(done));
            }
            // The handler may fail, or go on with something else.
            EffectState::Refused(_) => {
                hand.step = if hand.next + 1 < hand.order.len() { Step::Ask(hand.next + 1) } else { Step::Finish };
                hand.next += 1;
            }
            EffectState::Intended | EffectState::Unknown | EffectState::Undone => {
                hand.stop = Some(Stop::Unknown(record.id.clone(), "timeout".into()));
            }
        }
    }

    fn send(&mut self, call: &Call, s: &Setting<'_>) {
        let mut until = self.now + SETTLE;
        if self.recovery(s, &call.effect).key_ttl().is_some() {
            until = until.min(call.since + TTL / 10);
        }
        self.wires.push(Wire { effect: call.effect.clone(), generation: call.generation, until });
    }

    fn learn(&mut self, change: Change, lease: &Lease, s: &Setting<'_>) {
        let late = crate::rules::effect::running(&self.job, lease).is_err();
        let change = if late {
            let mut all = self.effects.clone();
            for new in change.effects() {
                all.iter_mut().filter(|e| e.id == new.id).for_each(|e| *e = new.clone());
            }
            self.env(|env| lifecycle::learned(change, self.letter.as_ref(), &all, s.rules, env))
        } else {
            change
        };
        self.apply(&change);
    }

    fn look(&mut self) {
        let Some(hand) = &self.hand else { return };
        let seen = self.happened(&hand.order[hand.next]);
        if let Some(Hand { step: Step::Probing(_, found), .. }) = &mut self.hand {
            *found = Some(seen);
        }
    }

    fn probe(
        &mut self,
        effect: &EffectId,
        lease: &Lease,
        asking: Asking,
        answer: Probed,
        s: &Setting<'_>,
    ) -> Result<AfterProbe, Refusal> {
        let record = self.effects.iter().find(|e| e.id == *effect).cloned().expect("probed effects have a record");
        let (change, after) = self.env(|env| probed(&self.job, &record, lease, asking, answer, s.rules, env))?;
        self.learn(change, lease, s);
        let now = self.effects.iter().find(|e| e.id == *effect).expect("still there");
        let believed = record.state.is_unresolved() && now.state == EffectState::Refused(NotHappened::NotThere);
        let under_way =
            self.calls.iter().any(|c| c.effect == *effect) || self.wires.iter().any(|w| w.effect == *effect);
        assert!(!(believed && under_way), "not there was believed while a request could still land");
        Ok(after)
    }

    fn answer(&mut self, tells: bool, s: &Setting<'_>) {
        let Some(hand) = self.hand.clone() else { return };
        let Step::Probing(asking, seen) = hand.step else { return };
        let answer = match seen {
            Some(true) if tells => found(),
            Some(_) if tells => Probed::NotThere,
            Some(_) | None => Probed::CannotTell("down".into()),
        };
        let effect = hand.order[hand.next].clone();
        let after = self.probe(&effect, &hand.lease, asking, answer, s).expect("a live lease");
        if let Some(hand) = &mut self.hand {
            match after {
                AfterProbe::Again => hand.step = Step::Ask(hand.next),
                AfterProbe::Stop(stop) => hand.stop = Some(stop),
            }
        }
    }

    fn late_answer(&mut self, s: &Setting<'_>) {
        let Some((effect, lease, asking, seen)) = self.late.take() else { return };
        let answer = if seen { found() } else { Probed::NotThere };
        let told = self.probe(&effect, &lease, asking, answer, s);
        assert_eq!(told.is_ok(), seen, "a fenced attempt proves what happened, and never that it did not");
    }

    fn finish(&mut self, s: &Setting<'_>) {
        let Some(hand) = self.hand.clone() else { return };
        match lifecycle::may_finish(&self.job, &hand.lease, &self.effects, s.rules) {
            Ok(()) => self.close(AttemptEnd::Success, s),
            Err(Refusal::Gate(ids)) => {
                let stop = Stop::Ask(Question::DidItHappen { effect: ids[0].clone() });
                self.hand = Some(Hand { stop: Some(stop), ..hand });
            }
            Err(other) => panic!("a live lease: {other}"),
        }
    }

    fn end(&mut self, how: Ending, s: &Setting<'_>) {
        let Some(hand) = self.hand.clone() else { return };
        let failure = |class| crate::model::attempt::Failure { class, text: "oops".into(), retry_after: None };
        if let (Step::Probing(asking, Some(seen)), Ending::Lapse) = (&hand.step, how) {
            // The question is out; its answer comes although nobody may act on it any more.
            self.late = Some((hand.order[hand.next].clone(), hand.lease, *asking, *seen));
        }
        let how = match how {
            Ending::Stop => AttemptEnd::Stopped(hand.stop.expect("only a stopped handler stops")),
            Ending::Transient => AttemptEnd::Failed(failure(crate::model::attempt::Class::Transient)),
            Ending::Permanent => AttemptEnd::Failed(failure(crate::model::attempt::Class::Permanent)),
            Ending::NotYet => AttemptEnd::NotYet("later".into(), std::time::Duration::from_millis(10)),
            Ending::Early => AttemptEnd::Success,
            Ending::Lapse => AttemptEnd::Stalled,
            Ending::Interrupt => AttemptEnd::Interrupted,
            Ending::NeverStarted => AttemptEnd::NeverStarted,
        };
        self.close(how, s);
    }

    fn close(&mut self, how: AttemptEnd, s: &Setting<'_>) {
        let Some(hand) = self.hand.take() else { return };
        let change = self
            .env(|env| lifecycle::end(&self.job, &hand.lease, how, &self.effects, s.rules, env))
            .expect("a live lease");
        self.apply(&change);
    }

    fn death(&mut self, death: Death, s: &Setting<'_>) {
        let Some(hand) = self.hand.take() else { return };
        for call in std::mem::take(&mut self.calls) {
            // It was sent or not; what was not sent never is.
            if !call.landed && self.may_land(s, &call.effect, call.since) {
                self.send(&call, s);
            }
        }
        self.late = None;
        self.born = self.now;
        self.ended.clear();
        let evidence = match death {
            Death::Alone | Death::BesideOthers if !hand.started => Evidence::NeverStarted,
            Death::Alone => Evidence::Suspect { alone: true },
            Death::BesideOthers => Evidence::Suspect { alone: false },
            Death::Reboot if !hand.started => Evidence::NeverStarted,
            Death::Reboot => Evidence::Interrupted,
        };
        let strikes = self.job.strikes;
        let change = self
            .env(|env| lifecycle::recover(&self.job, evidence, &self.effects, s.rules, env))
            .expect("a claim was left behind");
        self.apply(&change);
        let counts = evidence == Evidence::Suspect { alone: true };
        assert_eq!(
            self.job.strikes,
            strikes + u8::from(counts),
            "only a death alone at work, in this boot, is a strike"
        );
    }

    fn person(&mut self, i: usize, word: Word, s: &Setting<'_>) {
        let letter = self.letter.clone().expect("a letter to answer");
        let effect = self.effects.get(i).map_or_else(|| id("none"), |e| e.id.clone());
        let verdict = match word {
            Word::Happened => {
                Verdict::Happened { effect, reference: Some("op".into()), result: Some(b"1".to_vec()), undo: None }
            }
            Word::HappenedNoReference => Verdict::Happened { effect, reference: None, result: None, undo: None },
            Word::DidNot => Verdict::DidNotHappen { effect, new_key: false },
            Word::DidNotNewKey => Verdict::DidNotHappen { effect, new_key: true },
            Word::TryAgain => Verdict::TryAgain,
            Word::Outside => Verdict::HandledOutside,
            Word::Discard => Verdict::Discard,
            Word::Undo => Verdict::Undo,
        };
        let inside = |id: &EffectId| self.calls.iter().any(|c| c.effect == *id);
        let decide = |shown| {
            let (job, effects) = (&self.job, self.effects.as_slice());
            let case = letter::Case { job, letter: &letter, effects, shown, running: &inside, rules: s.rules };
            letter::decide(&case, &verdict, &signed(self.now))
        };
        if let Some(older) = self.job.revision.checked_sub(1) {
            assert!(matches!(decide(older), Err(Refusal::Stale { .. })), "a decision on an older view is refused");
        }
        match decide(self.job.revision) {
            Ok(change) => {
                if word == Word::TryAgain {
                    assert!(change.effects().is_empty(), "a replay keeps every effect record");
                }
                self.apply(&change);
            }
            Err(Refusal::CallRunning(_) | Refusal::NotAChoice(_)) => {}
            Err(Refusal::NeedsReference { .. }) if word == Word::HappenedNoReference => {}
            Err(other) => panic!("a choice that was offered is refused: {other}"),
        }
    }

    fn undo_ends(&mut self, how: End, s: &Setting<'_>) {
        let Some(effect) = self.undoing.take() else { panic!("a compensating job without an undo job under way") };
        if how != End::Discarded {
            assert!(!self.undone.contains(&effect), "{effect} is undone twice");
            assert!(!s.honest || self.happened(&effect), "{effect} never happened, and it is undone");
            self.undone.push(effect.clone());
        }
        let heard = |w: &Self| w.env(|env| compensate::heard(&w.job, &w.effects, &effect, how, s.rules, env));
        let change = heard(self).expect("it is under way");
        self.apply(&change);
        let again = self.undoing.as_ref() != Some(&effect) && heard(self).is_none();
        assert!(again, "the end of an undo job is heard once");
    }
}

fn next(mut hand: Hand) -> Hand {
    hand.next += 1;
    hand.step = if hand.next < hand.order.len() { Step::Ask(hand.next) } else { Step::Finish };
    hand
}

fn found() -> Probed {
    Probed::Found { result: Stored::Json(b"1".to_vec()), reference: Some("op".into()), undo: None }
}
