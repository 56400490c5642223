//! An effect happens once, whatever happens to the process, the provider or the handler: every sentence of that promise, told
//! through the public API for handlers, performers and probes of either sort.

#[cfg(feature = "tokio")]
mod concurrent;
mod crashes;
mod healing;
mod late;
mod memory;
mod names;
mod records;
mod recovery;
mod results;
mod stops;

use super::rig::order::{Mix, mixes};
use onceward::{EffectState, JobId, Jobs};

/// Tells a story for every mix of blocking and async parts; says how often, and fails if never.
fn each_mix(story: impl Fn(Mix)) {
    let mixes = mixes();
    for mix in &mixes {
        println!("{mix:?}");
        story(*mix);
    }
    println!("told for {} mixes of handler, performer and probe", mixes.len());
    assert!(!mixes.is_empty());
}

/// Name and state of every effect of a job.
fn effects(jobs: &Jobs, id: JobId) -> Vec<(String, EffectState)> {
    jobs.ledger(id).unwrap().into_iter().map(|l| (l.id.to_string(), l.state)).collect()
}

/// The state of its charge.
fn charge(jobs: &Jobs, id: JobId) -> EffectState {
    jobs.ledger(id).unwrap().into_iter().find(|l| l.id.name == "charge").unwrap().state
}

/// All keys are the same one.
#[track_caller]
fn one_key(keys: &[String]) {
    assert!(!keys.is_empty() && keys.iter().all(|k| *k == keys[0]), "{keys:?}");
}
