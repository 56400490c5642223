//! What an app is told when a person is needed, with the means to pause. Called on a thread of its own, after the commit that made
//! it true, never inside a transaction.

use super::{DeadLetter, read_letter};
use crate::engine::alerts::Word;
use crate::engine::ops::{PauseOp, Scope};
use crate::error::Error;
use crate::handler::effect::panic_text;
use crate::handler::reply::answer;
use crate::handler::shared::Shared;
use crate::observe::alerts::{Firing, Notice};
use crate::observe::events;
use crate::store::Lane;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// Somebody has to know, and may pause what it is about.
pub struct Alert {
    event: AlertEvent,
    shared: Arc<Shared>,
}

/// What has come to pass.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum AlertEvent {
    /// A dead letter was created; [`headline`](DeadLetter::headline) is its question. It is as it stands now: it may have changed
    /// since.
    Letter(Box<DeadLetter>),
    /// A rule begins to speak.
    Fired(Firing),
    /// It ceases to.
    Resolved(Firing),
}

impl Alert {
    /// What has come to pass.
    pub fn event(&self) -> &AlertEvent {
        &self.event
    }
    /// Pauses, durably, as [`Jobs::pause`](crate::Jobs::pause) does: the kind of the letter, its queue, or everything.
    ///
    /// # Errors
    /// A store that cannot write; a queue that was shut down meanwhile.
    pub fn pause(&self, what: Scope, why: &str) -> Result<(), Error> {
        self.submit(what, Some(why.to_owned()))
    }
    /// Resumes what was paused with the same scope.
    ///
    /// # Errors
    /// As there.
    pub fn resume(&self, what: Scope) -> Result<(), Error> {
        self.submit(what, None)
    }
    fn submit(&self, scope: Scope, why: Option<String>) -> Result<(), Error> {
        self.shared.may_call()?;
        let (tell, reply) = answer();
        let op = PauseOp { shared: self.shared.clone(), scope, why, answer: tell };
        self.shared.submit(Lane::Outcome, Box::new(op))?;
        reply.wait().unwrap_or(Err(Error::ShutDown))
    }
}

/// In one line, as somebody would be told: the question of a letter, the words of a rule.
impl fmt::Display for Alert {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.event {
            AlertEvent::Letter(letter) => write!(f, "{}/{}: {}", letter.kind(), letter.key(), letter.headline()),
            AlertEvent::Fired(firing) => f.write_str(&firing.text),
            AlertEvent::Resolved(firing) => write!(f, "over: {}", firing.text),
        }
    }
}

impl fmt::Debug for Alert {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Alert").field(&self.event).finish()
    }
}

/// Somebody who is told.
pub(crate) type Listener = Box<dyn Fn(&Alert) + Send + Sync>;

/// Turns what the engine says into what the app is told.
pub(crate) fn teller(shared: Arc<Shared>, listeners: Vec<Listener>) -> impl Fn(Word) + Send + 'static {
    move |word| {
        let event = match word {
            Word::Letter(job) => match read_letter(&shared, job) {
                Ok(Some(letter)) => AlertEvent::Letter(Box::new(letter)),
                // Answered before anybody could be told.
                Ok(None) => return,
                Err(e) => {
                    events::warning(&format!("job {job} needs a person, and its letter cannot be shown: {e}"));
                    return;
                }
            },
            Word::Notice(Notice::Fired(f)) => AlertEvent::Fired(f),
            Word::Notice(Notice::Resolved(f)) => AlertEvent::Resolved(f),
            Word::Stop(_) => return,
        };
        let alert = Alert { event, shared: shared.clone() };
        for listener in &listeners {
            // One that panics must not keep the others from hearing it.
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| listener(&alert))) {
                events::warning(&format!("a callback for alerts panicked at {alert}: {}", panic_text(panic)));
            }
        }
    }
}
