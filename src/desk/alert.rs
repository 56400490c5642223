//! What an app is told when a person is needed, with the means to pause, and what speaks now. Called on a thread of its own, after the
//! commit that made it true, never inside a transaction.

use super::{DeadLetter, read_letter};
use crate::engine::ops::{PauseOp, Scope};
use crate::engine::tell::{Teller, Told, Word, standing};
use crate::error::Error;
use crate::handler::effect::panic_text;
use crate::handler::reply::answer;
use crate::handler::shared::Shared;
use crate::jobs::Jobs;
use crate::model::id::JobId;
use crate::model::shown::Shown;
use crate::observe::alerts::{Firing, Said};
use crate::observe::events;
use crate::store::{Lane, StoreError};
use std::fmt;
use std::panic::{AssertUnwindSafe, Location, catch_unwind};
use std::sync::Arc;

/// Somebody has to know, and may pause what it is about.
pub struct Alert {
    event: AlertEvent,
    again: bool,
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
    /// It may have been told before: a process before this one ended before every callback had returned from it, or before the first
    /// was called. Whoever sends something out for an alert can say "again"; leaving it out could leave it out altogether.
    pub fn again(&self) -> bool {
        self.again
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

/// In one line, as somebody would be told, whatever an app put into it: the question of a letter, the words of a rule.
impl fmt::Display for Alert {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.event {
            AlertEvent::Letter(letter) => {
                let name = format!("{}/{}", letter.kind(), letter.key());
                write!(f, "{}: {}", Shown(&name), Shown(&letter.headline()))
            }
            AlertEvent::Fired(firing) => write!(f, "{}", Shown(&firing.text)),
            AlertEvent::Resolved(firing) => write!(f, "over: {}", Shown(&firing.text)),
        }
    }
}

impl fmt::Debug for Alert {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Alert").field("event", &self.event).field("again", &self.again).finish_non_exhaustive()
    }
}

/// Somebody who is told.
pub(crate) struct Listener {
    call: Box<dyn Fn(&Alert) + Send + Sync>,
    /// Where it was registered: its name in warnings.
    at: &'static Location<'static>,
}

impl Listener {
    #[track_caller]
    pub(crate) fn new(f: impl Fn(&Alert) + Send + Sync + 'static) -> Self {
        Self { call: Box::new(f), at: Location::caller() }
    }
}

/// Turns what the engine says into what the app is told.
pub(crate) fn teller(
    shared: Arc<Shared>,
    calls: Arc<Teller>,
    listeners: Vec<Listener>,
) -> impl Fn(Word, bool) -> Told + Send + 'static {
    move |word, again| {
        let event = match word {
            Word::Letter(job, revision) => match letter_of(&shared, job, revision) {
                Ok(Some(letter)) => AlertEvent::Letter(Box::new(letter)),
                // Answered before anybody could be told; what was asked next has a turn of its own.
                Ok(None) => return Told::Heard,
                Err(Error::Store(StoreError::Closed | StoreError::Stopped(_))) => return Told::Not,
                Err(Error::Store(e)) if e.is_storage() => return Told::Later,
                Err(e) => {
                    // Said here, once; the rule about dead letters counts it, too.
                    events::warning(&format!("job {job} needs a person, and its letter cannot be shown: {e}"));
                    return Told::Heard;
                }
            },
            Word::Said(Said { firing, over: false, .. }) => AlertEvent::Fired(firing),
            Word::Said(Said { firing, over: true, .. }) => AlertEvent::Resolved(firing),
        };
        let alert = Alert { event, again, shared: shared.clone() };
        for Listener { call, at } in &listeners {
            let calling = calls.call(format!("the on_alert callback of {at}, called with \"{alert}\","));
            // One that panics must not keep the others from hearing it.
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| call(&alert))) {
                let why = panic_text(panic);
                events::warning(&format!("the on_alert callback of {at} panicked at \"{alert}\": {why}"));
            }
            drop(calling);
        }
        Told::Heard
    }
}

/// The letter that this revision brought, as it stands now; `None` if it was answered.
fn letter_of(shared: &Shared, job: JobId, revision: u32) -> Result<Option<DeadLetter>, Error> {
    let letter = read_letter(shared, job)?;
    // After the letter: one that came later than what is owed here has noted so by now.
    let owed = shared.store.read(|v| v.untold_revision(job))?;
    Ok(letter.filter(|_| owed.is_none_or(|owed| owed == revision)))
}

impl Jobs {
    /// What the alert rules say now, the longest first: what began and is not over, whether or not anybody was told. Dead letters
    /// are listed by themselves: [`dead_letters`](Self::dead_letters).
    ///
    /// # Errors
    /// A store that cannot read.
    pub fn alerts(&self) -> Result<Vec<Firing>, Error> {
        let shared = self.shared();
        shared.may_call()?;
        let mut now: Vec<Firing> =
            shared.store.read(standing)?.into_iter().filter(|said| !said.over).map(|said| said.firing).collect();
        now.sort_by_key(|firing| firing.since);
        Ok(now)
    }
}
