//! What an app registered: kinds with their rules, performers and probes by effect. Checked as a whole before anything runs.

use super::effect::{EffectEntry, Performer, Prober};
use super::job::Job;
use crate::error::Setup;
use crate::model::Limits;
use crate::model::effect::{Recovery, UndoJob};
use crate::model::job::JobRow;
use crate::model::policy::{KindRules, Policy};
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

/// A quarter of the largest record.
const LARGEST_PAYLOAD: usize = 16 << 20;

/// One registered kind.
pub(crate) struct Kind {
    pub(crate) name: &'static str,
    /// The same, shared by everything that is told about its jobs.
    pub(crate) label: Arc<str>,
    pub(crate) aliases: &'static [&'static str],
    pub(crate) queue: &'static str,
    pub(crate) priority: u8,
    pub(crate) policy: Policy,
    pub(crate) rules: KindRules,
    /// The Rust type of the payload.
    pub(crate) type_name: &'static str,
    /// What is at stake in one of its jobs.
    pub(crate) stake: fn(&JobRow) -> Option<u64>,
}

impl Kind {
    /// It, or this effect of it, had another name before: keys may have been made of that.
    pub(crate) fn was_renamed(&self, effect: &str) -> bool {
        !self.aliases.is_empty() || self.rules.card(effect).is_some_and(|card| !card.aliases.is_empty())
    }
}

/// Everything registered, but for the handlers.
#[derive(Default)]
pub(crate) struct Kinds {
    pub(crate) kinds: Vec<Arc<Kind>>,
    by_name: HashMap<&'static str, Arc<Kind>>,
    effects: HashMap<&'static str, EffectEntry>,
    faults: Vec<Setup>,
    /// Kinds about which two people had to decide when an app last registered them; nothing if that cannot be read.
    pub(crate) pairs: Option<BTreeSet<String>>,
}

impl Kinds {
    /// A kind of jobs; its handler is kept elsewhere.
    pub(crate) fn add<J: Job>(&mut self) {
        let (policy, effects) = (J::policy(), J::effects());
        let rules = policy.resolve(&effects);
        let kind = Arc::new(Kind {
            name: J::KIND,
            label: J::KIND.into(),
            aliases: J::ALIASES,
            queue: J::QUEUE,
            priority: J::PRIORITY,
            policy,
            rules,
            type_name: std::any::type_name::<J>(),
            stake: super::job::stake::<J>,
        });
        for name in std::iter::once(J::KIND).chain(J::ALIASES.iter().copied()) {
            if self.by_name.insert(name, kind.clone()).is_some() {
                self.faults.push(Setup::KindTwice(name.to_owned()));
            }
        }
        self.kinds.push(kind);
    }
    pub(crate) fn performer<E: super::effect::Effect>(&mut self, p: Performer) {
        if let Some(entry) = self.entry::<E>() {
            entry.performer = Some(p);
        }
    }
    pub(crate) fn prober<E: super::effect::Effect>(&mut self, p: Prober) {
        if let Some(entry) = self.entry::<E>() {
            entry.prober = Some(p);
        }
    }
    fn entry<E: super::effect::Effect>(&mut self) -> Option<&mut EffectEntry> {
        let entry = self.effects.entry(E::NAME).or_insert_with(EffectEntry::of::<E>);
        if entry.type_name != std::any::type_name::<E>() {
            self.faults.push(Setup::EffectTwice { effect: E::NAME.to_owned() });
            return None;
        }
        Some(entry)
    }

    /// The same, with what is registered now.
    pub(crate) fn pairs_now(&self) -> Option<BTreeSet<String>> {
        let mut pairs = self.pairs.clone()?;
        for (name, kind) in &self.by_name {
            if kind.rules.second_person_above.is_some() {
                pairs.insert((*name).to_owned());
            } else {
                pairs.remove(*name);
            }
        }
        Some(pairs)
    }
    /// Whether two people may have to decide about a kind, for all that is known of it here.
    pub(crate) fn may_need_two(&self, name: &str) -> bool {
        match self.kind(name) {
            Some(kind) => kind.rules.second_person_above.is_some(),
            None => self.pairs.as_ref().is_none_or(|pairs| pairs.contains(name)),
        }
    }
    /// The kind that runs jobs stored under `name`.
    pub(crate) fn kind(&self, name: &str) -> Option<&Arc<Kind>> {
        self.by_name.get(name)
    }
    /// An undo job, if this app runs its kind: one that nobody runs would be waited for without end.
    pub(crate) fn runs(&self, undo: Option<UndoJob>) -> Option<UndoJob> {
        undo.filter(|job| self.kind(&job.kind).is_some())
    }
    /// The registered effect that owns records named `name`.
    pub(crate) fn effect(&self, name: &str) -> Option<&EffectEntry> {
        self.effects.get(name).or_else(|| self.effects.values().find(|e| e.card.owns(name)))
    }
    /// The first thing that is wrong, if anything is: found at start, each with a clear error.
    pub(crate) fn check(&self, key_scope: Option<&str>, limits: &Limits) -> Result<(), Setup> {
        if let Some(fault) = self.faults.first() {
            return Err(fault.clone());
        }
        // A record holds a request, its undo and a result at a time, and has to fit into one value.
        if limits.payload > LARGEST_PAYLOAD {
            return Err(Setup::PayloadLimit { asked: limits.payload, most: LARGEST_PAYLOAD });
        }
        let bad = |name: &str| name.is_empty() || name.len() > limits.name;
        for kind in &self.kinds {
            for name in std::iter::once(&kind.name).chain(kind.aliases) {
                if bad(name) {
                    return Err(Setup::BadName { what: "kind", name: (*name).to_owned() });
                }
            }
            for (n, card) in kind.rules.effects.iter().enumerate() {
                let effect = card.name.to_owned();
                // Whose record is it? A name that two effects own would follow the wrong rule.
                let owned =
                    |name: &str| kind.rules.effects.iter().enumerate().any(|(m, other)| m != n && other.owns(name));
                if let Some(name) = std::iter::once(&card.name).chain(card.aliases).find(|name| owned(name)) {
                    return Err(Setup::EffectTwice { effect: (*name).to_owned() });
                }
                if bad(card.name) {
                    return Err(Setup::BadName { what: "effect", name: effect });
                }
                let entry = self.effects.get(card.name);
                if entry.and_then(|e| e.performer.as_ref()).is_none() {
                    return Err(Setup::NoPerformer { kind: kind.name.to_owned(), effect });
                }
                if card.recovery.settle().is_some() && entry.is_some_and(|e| e.prober.is_none()) {
                    return Err(Setup::NoProbe { effect });
                }
                if card.recovery == Recovery::Repeat && card.risk.forbids_repeat() {
                    return Err(Setup::RepeatForbidden { effect });
                }
                if card.risk.is_risky() && key_scope.is_none_or(str::is_empty) {
                    return Err(Setup::NoKeyScope { effect });
                }
            }
            if kind.rules.risky {
                let there = |t: &Option<String>| t.as_ref().is_some_and(|s| !s.trim().is_empty());
                let texts = [("success", &kind.policy.success), ("review", &kind.policy.review)];
                let missing: Vec<_> = texts.into_iter().filter(|(_, t)| !there(t)).map(|(what, _)| what).collect();
                if !missing.is_empty() {
                    return Err(Setup::NoTexts { kind: kind.name.to_owned(), missing });
                }
            }
        }
        self.check_repeat()
    }
    /// Registered effects that no kind declares are checked too: a rule that forbids itself is a mistake wherever it stands.
    fn check_repeat(&self) -> Result<(), Setup> {
        for e in self.effects.values() {
            if e.card.recovery == Recovery::Repeat && e.card.risk.forbids_repeat() {
                return Err(Setup::RepeatForbidden { effect: e.card.name.to_owned() });
            }
        }
        Ok(())
    }
    /// The name of an effect with an async performer or probe, if there is one: it needs a runtime.
    pub(crate) fn first_async(&self) -> Option<&'static str> {
        let is_async = |e: &&EffectEntry| {
            matches!(e.performer, Some(Performer::Async(_))) || matches!(e.prober, Some(Prober::Async(_)))
        };
        self.effects.values().find(is_async).map(|e| e.card.name)
    }
}
