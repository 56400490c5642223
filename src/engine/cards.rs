//! The safety cards of what is registered: from a builder before anything is opened, or from a running queue.

use crate::handler::kinds::Kinds;
use crate::observe::safety::{Registered, SafetyCard, SafetyCards};

/// One card per registered kind.
pub(crate) fn cards(registry: &Kinds) -> SafetyCards {
    SafetyCards::new(registry.kinds.iter().map(|kind| {
        let asked = |name: &&'static str| registry.effect(name).is_some_and(|e| e.prober.is_some());
        let probes: Vec<_> = kind.rules.effects.iter().map(|c| c.name()).filter(asked).collect();
        SafetyCard::of(&Registered {
            kind: kind.name,
            aliases: kind.aliases,
            queue: kind.queue,
            type_name: kind.type_name,
            policy: &kind.policy,
            rules: &kind.rules,
            probes: &probes,
        })
    }))
}
