//! What an app gives the queue to deliver messages with: one call per message or per batch, blocking or async, or a closure.
//!
//! A publisher is called after the commit, at least once per message, in order within a message's key. Ok means that the broker
//! has acknowledged it. Every error may be repeated with the same id, so `Fail`'s classes only say when and whether to come back.

use super::effect::panic_text;
use super::fail::{Fail, Outcome};
use crate::model::outbox::Message;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Delivers messages; called on a thread of the relay.
pub trait Publisher: Send + Sync + 'static {
    /// Delivers one message and returns when the other side has acknowledged it.
    ///
    /// # Errors
    /// [`Fail::refused(..).for_good()`](crate::Fail) for a message that will never be taken, anything else for "again later".
    fn publish(&self, message: &Message) -> Outcome<()>;

    /// Delivers several messages in their order: one answer for each that was tried. A shorter list leaves the rest untried.
    ///
    /// If [`publish`](Self::publish) panics, that is the failure of its message; those before it stay delivered.
    fn publish_all(&self, messages: &[Message]) -> Vec<Outcome<()>> {
        let mut told = Vec::with_capacity(messages.len());
        for message in messages {
            let one = catch_unwind(AssertUnwindSafe(|| self.publish(message)))
                .unwrap_or_else(|panic| Err(Fail::new(format!("the publisher panicked: {}", panic_text(panic)))));
            let stop = one.is_err();
            told.push(one);
            if stop {
                break;
            }
        }
        told
    }
}

impl<F: Fn(&Message) -> Outcome<()> + Send + Sync + 'static> Publisher for F {
    fn publish(&self, message: &Message) -> Outcome<()> {
        self(message)
    }
}

/// Delivers messages on the queue's async runtime. Needs the feature `tokio`.
pub trait AsyncPublisher: Send + Sync + 'static {
    /// As [`Publisher::publish_all`], awaited.
    fn publish_all(&self, messages: Vec<Message>) -> impl Future<Output = Vec<Outcome<()>>> + Send;
}
