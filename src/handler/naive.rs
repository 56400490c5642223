//! What a queue without records of effects would do: call the provider at once, on every attempt, with a key that nobody has seen.
//!
//! For tests only, which show that a scenario can fail (`testkit::naive`).

use super::attempt::Attempt;
use super::effect::{Begun, Called, Effect, Performer};
use super::fail::{Fail, Outcome};
use crate::model::effect::{CallEnd, Stored};
use crate::model::id::{IdempotencyKey, random_hex};
use std::sync::Arc;

/// A call, or its beginning.
pub(super) fn call<E: Effect>(attempt: &Arc<Attempt>, request: &E) -> Outcome<Begun<Called>> {
    attempt.go_on()?;
    let json = serde_json::to_vec(request).map_err(Fail::permanent)?;
    let performer = attempt.shared.registry.effect(E::NAME).and_then(|entry| entry.performer.clone());
    let key = IdempotencyKey(random_hex() + &random_hex());
    match performer {
        Some(Performer::Blocking(f)) => Ok(Begun::Answer(f(&json, E::VERSION, &key))),
        Some(Performer::Async(f)) => Ok(f(&json, E::VERSION, &key)),
        None => Err(Fail::permanent(format!("no performer is registered for {}", E::NAME))),
    }
}

/// What the handler hears of it.
pub(super) fn answered<E: Effect>(called: Called) -> Outcome<E::Result> {
    match (called.end, called.fail) {
        (CallEnd::Happened { result: Stored::Json(json), .. }, _) => {
            serde_json::from_slice(&json).map_err(Fail::permanent)
        }
        (_, Some(fail)) => Err(fail),
        (end, None) => Err(Fail::new(format!("{end:?}"))),
    }
}
