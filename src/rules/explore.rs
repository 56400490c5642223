//! Every state that one job can reach by any combination of up to n troubles, and what must hold in each of them.
//!
//! Breadth first, so that the first broken promise comes with the shortest story. From every state a quiet world is followed as
//! well: whatever happened, the job ends or a person is asked. `ONCEWARD_EXPLORE=n` sets the number of troubles.

mod world;

use super::fixture::{kind, ms, recoveries};
use crate::model::effect::{Recovery, Risk};
use crate::model::job::{End, JobState};
use crate::model::policy::{KindRules, OnDead, OnInterrupt};
use crate::rules::effect::Same;
use std::collections::{HashMap, HashSet, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use world::{Ending, Event, Meanwhile, Ret, Setting, World};

/// Troubles in a story, unless the environment says otherwise: deep enough for the stories of `cases.md`.
const TROUBLES: usize = 2;
/// Fewer states than this would mean that the world stands still.
const AT_LEAST: usize = 150_000;
/// A quiet world that has not come to rest after this many steps never will.
const STEPS: usize = 400;

/// How a world without troubles goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Mood {
    /// Everything works.
    Fine,
    /// Every call loses its answer without reaching anybody.
    Mute,
    /// The provider can never be asked.
    Deaf,
    /// Old calls never return.
    Stuck,
    /// The handler fails before it asks for anything.
    Failing,
    /// The provider refuses everything.
    Refusing,
}

const MOODS: [Mood; 5] = [Mood::Mute, Mood::Deaf, Mood::Stuck, Mood::Failing, Mood::Refusing];

fn fingerprint(world: &World) -> u64 {
    let mut hasher = DefaultHasher::new();
    world.hash(&mut hasher);
    hasher.finish()
}

/// A world on its way: how it came about, and its fingerprint.
struct Visit {
    world: World,
    print: u64,
    from: u64,
    by: Option<Event>,
}

struct Search<'a> {
    setting: Setting<'a>,
    name: String,
    /// Where each state came from, for the story.
    seen: HashMap<u64, (u64, Option<Event>)>,
    at_rest: HashSet<(Mood, u64)>,
    steps: usize,
    /// States in which everything that could be undone is.
    compensated: usize,
}

impl<'a> Search<'a> {
    /// Fewest troubles first, then fewest steps: each state is taken up once, with as many troubles to come as it can have.
    fn run(name: String, setting: Setting<'a>, troubles: usize) -> Self {
        let mut search =
            Self { setting, name, seen: HashMap::new(), at_rest: HashSet::new(), steps: 0, compensated: 0 };
        let mut queues: Vec<VecDeque<Visit>> = (0..=troubles).map(|_| VecDeque::new()).collect();
        let world = World::new(&setting);
        let print = fingerprint(&world);
        queues[0].push_back(Visit { world, print, from: print, by: None });
        for spent in 0..=troubles {
            while let Some(visit) = queues[spent].pop_front() {
                if search.seen.contains_key(&visit.print) {
                    continue;
                }
                search.seen.insert(visit.print, (visit.from, visit.by));
                search.compensated +=
                    usize::from(matches!(visit.world.job.state, JobState::Ended { how: End::Compensated, .. }));
                for (event, cost) in visit.world.events(&setting, troubles - spent) {
                    let mut world = visit.world.clone();
                    search.guarded(visit.print, event, || world.step(event, &setting));
                    search.steps += 1;
                    let print = fingerprint(&world);
                    if !search.seen.contains_key(&print) {
                        queues[spent + cost].push_back(Visit { world, print, from: visit.print, by: Some(event) });
                    }
                }
                search.settle(&visit.world, visit.print, Mood::Fine);
                // The other moods take turns: each still meets states of every sort.
                let turn = usize::try_from(visit.print % 5).unwrap_or(0);
                search.settle(&visit.world, visit.print, MOODS[turn]);
            }
        }
        search
    }

    /// Whatever happened before, a world of this mood comes to rest.
    fn settle(&mut self, world: &World, from: u64, mood: Mood) {
        let mut world = world.clone();
        let mut path = Vec::new();
        let mut print = from;
        while !world.rests() && !self.at_rest.contains(&(mood, print)) {
            path.push(print);
            assert!(
                path.len() <= STEPS,
                "{}: no rest in mood {mood:?} after:\n{}\nat {world:#?}",
                self.name,
                self.story(from)
            );
            let Some(event) = calm(&world, &self.setting, mood) else {
                panic!(
                    "{}: nothing can happen in mood {mood:?} after:\n{}\nat {world:#?}",
                    self.name,
                    self.story(from)
                );
            };
            self.guarded(from, event, || world.step(event, &self.setting));
            print = fingerprint(&world);
        }
        self.at_rest.extend(path.into_iter().map(|p| (mood, p)));
    }

    fn guarded(&self, from: u64, event: Event, step: impl FnOnce()) {
        let told = std::panic::catch_unwind(std::panic::AssertUnwindSafe(step));
        if let Err(panic) = told {
            eprintln!("{}: broken by {event:?} after:\n{}", self.name, self.story(from));
            std::panic::resume_unwind(panic);
        }
    }

    fn story(&self, mut at: u64) -> String {
        let mut events = Vec::new();
        while let Some((from, Some(event))) = self.seen.get(&at) {
            events.push(format!("  {event:?}"));
            at = *from;
        }
        events.reverse();
        events.join("\n")
    }
}

/// The next event of a world without troubles.
fn calm(world: &World, setting: &Setting<'_>, mood: Mood) -> Option<Event> {
    let events = world.events(setting, usize::MAX);
    let has = |wanted: Event| events.iter().any(|(e, _)| *e == wanted).then_some(wanted);
    let any = |which: fn(&Event) -> bool| events.iter().map(|(e, _)| *e).find(which);
    let landing = any(|e| matches!(e, Event::Land(_)));
    let call = match mood {
        Mood::Stuck => None,
        Mood::Mute => any(|e| matches!(e, Event::Return(_, Ret::Lost(false)))),
        Mood::Refusing => any(|e| matches!(e, Event::Return(_, Ret::Refused | Ret::Ok))),
        Mood::Fine | Mood::Deaf | Mood::Failing => any(|e| matches!(e, Event::Return(_, Ret::Ok)))
            .or(landing)
            .or_else(|| any(|e| matches!(e, Event::Return(_, Ret::NotSent)))),
    };
    let asking = match mood {
        Mood::Failing => has(Event::End(Ending::Transient)),
        Mood::Fine | Mood::Mute | Mood::Deaf | Mood::Stuck | Mood::Refusing => None,
    };
    let answering = match mood {
        Mood::Deaf => has(Event::Answer(false)),
        Mood::Fine | Mood::Mute | Mood::Stuck | Mood::Failing | Mood::Refusing => {
            has(Event::Answer(true)).or_else(|| has(Event::Look))
        }
    };
    call.or_else(|| has(Event::End(Ending::Stop)))
        .or(asking)
        .or_else(|| has(Event::Claim))
        .or_else(|| has(Event::Start))
        .or_else(|| has(Event::Ask(Same::Yes)))
        .or(answering)
        .or_else(|| has(Event::Finish))
        .or_else(|| has(Event::Undo(End::Done)))
        .or_else(|| has(Event::Wake))
        // Only a handler inside a call that never returns is left: its lease runs out.
        .or_else(|| has(Event::End(Ending::Lapse)))
}

struct Case {
    name: String,
    rules: KindRules,
    script: &'static [&'static str],
    reversed: bool,
    honest: bool,
    undo: &'static [&'static str],
    older: Option<Meanwhile>,
    /// Fewer troubles where two effects, or a person who may say anything, make many states.
    less: usize,
}

fn cases() -> Vec<Case> {
    let mut out = Vec::new();
    for (name, recovery) in recoveries() {
        let rules =
            |other| kind(recovery, other, if recovery == Recovery::Repeat { Risk::Email } else { Risk::Charge });
        let one = |what: &str, rules, honest| Case {
            name: format!("{name}, {what}"),
            rules,
            script: &["a"],
            reversed: false,
            honest,
            undo: &[],
            older: None,
            less: usize::from(!honest),
        };
        out.push(one("alone", rules(Recovery::ask()), true));
        out.push(one("a careless person", rules(Recovery::ask()), false));
        let mut meanwhile = vec![Meanwhile::Nothing, Meanwhile::Happened, Meanwhile::HappenedAgain];
        // A key alone is no help where the provider forgets what it refused (docs/running.md).
        if !matches!(recovery, Recovery::SameKey { .. }) {
            meanwhile.push(Meanwhile::RefusedAndHappened);
        }
        for meanwhile in meanwhile {
            let case = one(&format!("in an older copy, {meanwhile:?}"), rules(Recovery::ask()), true);
            out.push(Case { older: Some(meanwhile), less: 1, ..case });
            // A second effect behind it, and no attempt but the first.
            let mut once = rules(Recovery::ask());
            once.max_attempts = 1;
            let case = one(&format!("in an older copy, once, {meanwhile:?}, then asked"), once, true);
            out.push(Case { older: Some(meanwhile), less: 1, script: &["a", "b"], ..case });
        }
        let mut strict = rules(Recovery::ask());
        strict.on_interrupt = OnInterrupt::Hold;
        strict.deadline = Some(ms(60));
        out.push(one("held after an interruption, with a deadline", strict, true));
        for reversed in [false, true] {
            out.push(Case {
                name: format!("{name}, then a probe{}", if reversed { ", in another order later" } else { "" }),
                rules: rules(Recovery::probe(ms(super::fixture::SETTLE))),
                script: &["a", "b"],
                reversed,
                honest: true,
                undo: &[],
                older: None,
                less: 1,
            });
        }
        // Undone by policy where all of it can be, and by a person where some of it stays.
        for (what, on_dead, undo) in
            [("undone by policy", OnDead::Undo, &["a", "b"][..]), ("partly undone", OnDead::Hold, &["a"][..])]
        {
            let mut rules = rules(Recovery::ask());
            rules.on_dead = on_dead;
            out.push(Case {
                name: format!("{name}, {what}"),
                rules,
                script: &["a", "b"],
                reversed: false,
                honest: true,
                undo,
                older: None,
                less: 1,
            });
        }
    }
    out
}

/// Whatever up to n troubles do to a job - lost answers, late answers, refusals, deaths, lapses, interruptions, changed code,
/// clocks nobody can trust, careless people - nothing is performed twice, nothing is forgotten, and it comes to rest.
#[test]
#[expect(clippy::disallowed_methods, reason = "a long test uses both cores")]
fn every_reachable_state_keeps_every_promise_and_comes_to_rest() {
    let troubles = std::env::var("ONCEWARD_EXPLORE").ok().and_then(|n| n.parse().ok()).unwrap_or(TROUBLES);
    let cases = cases();
    let (mut states, mut steps) = (0, 0);
    std::thread::scope(|scope| {
        let halves: Vec<_> = cases.chunks(cases.len().div_ceil(2)).collect();
        let running: Vec<_> = halves
            .into_iter()
            .map(|half| {
                scope.spawn(move || {
                    let mut sum = (0, 0);
                    for c in half {
                        let setting = Setting {
                            rules: &c.rules,
                            script: c.script,
                            reversed: c.reversed,
                            honest: c.honest,
                            undo: c.undo,
                            older: c.older,
                        };
                        let search = Search::run(c.name.clone(), setting, troubles.saturating_sub(c.less));
                        eprintln!("{:>9} states {:>9} steps  {}", search.seen.len(), search.steps, c.name);
                        assert_eq!(search.compensated > 0, !c.undo.is_empty(), "{}: {}", c.name, search.compensated);
                        sum = (sum.0 + search.seen.len(), sum.1 + search.steps);
                    }
                    sum
                })
            })
            .collect();
        for half in running {
            let (n, m) = half.join().expect("a promise is broken, see above");
            states += n;
            steps += m;
        }
    });
    println!("{states} states, {steps} steps, {} settings, up to {troubles} troubles each", cases.len());
    assert!(states >= AT_LEAST, "only {states} states were reached: the world stands still");
}
