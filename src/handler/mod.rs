//! What app code gives and holds: kinds, performers and probes in, contexts out.
//!
//! Handlers only orchestrate; everything they ask for goes through an attempt, which is fenced, stopped and recorded here.

pub(crate) mod async_cx;
pub(crate) mod attempt;
pub(crate) mod call;
pub(crate) mod calls;
pub(crate) mod cx;
pub(crate) mod effect;
pub(crate) mod ends;
pub(crate) mod enqueue;
pub(crate) mod fail;
pub(crate) mod flow;
pub(crate) mod handlers;
pub(crate) mod job;
pub(crate) mod kinds;
pub(crate) mod learn;
#[cfg(feature = "testkit")]
mod naive;
pub(crate) mod ops;
pub(crate) mod outbox;
pub(crate) mod publish;
pub(crate) mod reply;
pub(crate) mod shared;
pub(crate) mod trace;
pub(crate) mod transact;
pub(crate) mod trust;
pub(crate) mod tx;
pub(crate) mod undo;
