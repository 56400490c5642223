//! A queue whose threads all run in one, in an order that a seed decides: many orders of what could go wrong, and whole simulated worlds.
//!
//! Only in a build with `--cfg onceward_shuttle`: `bash tests/schedules.sh` makes one. Each suite prints what it did and fails if it did
//! nothing.
#![cfg(onceward_shuttle)]
#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

#[path = "../suite/history/mod.rs"]
mod history;
#[path = "../suite/oracle.rs"]
mod oracle;
mod races;
mod simulation;
