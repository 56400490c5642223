//! Failures, as app code says them. Two questions, kept apart: did it happen, and when to come back.
//!
//! Inside a performer only [`Fail::refused`] and [`Fail::not_sent`] say "it did not happen"; everything else is unknown.
//! Elsewhere an unclassified error is transient, and these two are a mistake that is said loudly: nobody there knows of a call.

use crate::model::attempt::{Class, Failure, Stop};
use std::error::Error as StdError;
use std::fmt;
use std::time::Duration;

/// What handlers, performers and probes return.
pub type Outcome<T = ()> = Result<T, Fail>;

/// A classified failure. `?` makes one from any error (transient where nothing else is said).
pub struct Fail(Box<Inner>);

struct Inner {
    source: Box<dyn StdError + Send + Sync>,
    class: Option<Class>,
    happened: Happened,
    retry_after: Option<Duration>,
    not_yet: Option<Duration>,
    stop: Option<Stop>,
}

/// What a failure says about the outside effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Happened {
    NotSaid,
    Refused,
    NotSent,
}

impl<E: Into<Box<dyn StdError + Send + Sync>>> From<E> for Fail {
    fn from(e: E) -> Self {
        Self::new(e)
    }
}

impl Fail {
    /// An unclassified failure: transient in a handler, unknown in a performer.
    pub fn new(e: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        Self(Box::new(Inner {
            source: e.into(),
            class: None,
            happened: Happened::NotSaid,
            retry_after: None,
            not_yet: None,
            stop: None,
        }))
    }
    /// Later may be better.
    pub fn transient(e: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        Self::new(e).with(|i| i.class = Some(Class::Transient))
    }
    /// Trying again cannot help.
    pub fn permanent(e: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        Self::new(e).with(|i| i.class = Some(Class::Permanent))
    }
    /// The provider said no: it did not happen. Only for performers: a handler that makes a call of its own has no ledger line that
    /// this could be about. There it counts as transient, like everything that is not classified, and the attempt's line, the history
    /// and a warning say so; use [`permanent`](Self::permanent) to give up.
    pub fn refused(e: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        Self::new(e).with(|i| i.happened = Happened::Refused)
    }
    /// The request never left (no connection, no name): it did not happen. Only for performers, as [`refused`](Self::refused).
    pub fn not_sent(e: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        Self::new(e).with(|i| i.happened = Happened::NotSent)
    }
    /// Not a failure: look again after `again_in`. Costs no attempt and no budget. Only outside performers.
    pub fn not_yet(why: impl Into<String>, again_in: Duration) -> Self {
        Self::new(why.into()).with(|i| i.not_yet = Some(again_in))
    }
    /// Not before this long, as the provider asked.
    pub fn retry_after(self, d: Duration) -> Self {
        self.with(|i| i.retry_after = Some(d))
    }
    /// For good: trying again cannot help.
    pub fn for_good(self) -> Self {
        self.with(|i| i.class = Some(Class::Permanent))
    }
    fn with(mut self, f: impl FnOnce(&mut Inner)) -> Self {
        f(&mut self.0);
        self
    }

    pub(crate) fn stop(stop: Stop) -> Self {
        let text = match &stop {
            Stop::Unknown(id, text) => format!("nobody knows whether {id} happened: {text}"),
            Stop::Settling(id, ms) => format!("{id} settles for {ms} ms more before its provider is believed"),
            Stop::OldCall(id, _) => format!("an earlier call of {id} still runs"),
            Stop::CannotTell(id, text) => format!("the provider of {id} cannot be asked: {text}"),
            Stop::Ask(_) => "a person has to answer before this job goes on".to_owned(),
            Stop::Earlier(id) => {
                format!("{id} of an earlier attempt has to be settled first: ask for it before another")
            }
            Stop::NoAttemptLeft(id) => format!("{id} did not happen, and no attempt is left to call again"),
            Stop::Fenced => "this attempt was fenced: its lease is over and another attempt may be running".to_owned(),
            Stop::Interrupted => "interrupted: the queue is shutting down".to_owned(),
            Stop::Finished => "the job is finished already".to_owned(),
        };
        Self::new(text).with(|i| i.stop = Some(stop))
    }
    pub(crate) fn happened(&self) -> Happened {
        self.0.happened
    }
    /// What it said of a call is recorded: whoever gets it from here on passes on a failure, and says nothing of a call.
    pub(crate) fn recorded(self) -> Self {
        self.with(|i| i.happened = Happened::NotSaid)
    }
    /// What is wrong with it as the end of an attempt: it says of a call what only a performer can say.
    pub(crate) fn misused(&self) -> Option<String> {
        let name = match self.0.happened {
            Happened::NotSaid => return None,
            Happened::Refused => "refused",
            Happened::NotSent => "not_sent",
        };
        let counts = match self.0.class {
            Some(Class::Permanent) => "permanent",
            Some(Class::Transient | Class::Unknown) | None => "transient, and is tried again",
        };
        Some(format!(
            "Fail::{name} outside a performer: it says what became of a call, and here is none; it counts as {counts}; make the call an \
             effect (cx.effect), or say Fail::permanent or Fail::transient"
        ))
    }
    pub(crate) fn stopped(&self) -> Option<&Stop> {
        self.0.stop.as_ref()
    }
    pub(crate) fn as_not_yet(&self) -> Option<Duration> {
        self.0.not_yet
    }
    /// The text of the whole chain of causes, cut to `limit` bytes at a character boundary.
    pub(crate) fn text(&self, limit: usize) -> String {
        let mut out = self.0.source.to_string();
        let mut cause = self.0.source.source();
        while let Some(c) = cause {
            let s = c.to_string();
            if !out.ends_with(&s) {
                out.push_str(": ");
                out.push_str(&s);
            }
            if out.len() > limit {
                break;
            }
            cause = c.source();
        }
        cut(out, limit)
    }
    /// As a publisher's answer: unclassified means that nobody knows whether the message arrived, and it is tried again either way.
    pub(crate) fn delivery_failure(&self, limit: usize) -> Failure {
        let class = match (self.0.class, self.0.happened) {
            (Some(class), _) => class,
            (None, Happened::NotSaid) => Class::Unknown,
            (None, Happened::Refused | Happened::NotSent) => Class::Transient,
        };
        Failure { class, text: self.text(limit), retry_after: self.0.retry_after.or(self.0.not_yet) }
    }
    pub(crate) fn failure(&self, limit: usize) -> Failure {
        let text = match self.misused() {
            Some(misused) => cut(format!("{} [{misused}]", self.text(limit)), limit),
            None => self.text(limit),
        };
        Failure { class: self.0.class.unwrap_or(Class::Transient), text, retry_after: self.0.retry_after }
    }
}

/// The end of a text that was cut.
const MARK: &str = "... (cut)";

/// Whether a text of at most `limit` bytes is what [`cut`] left of a longer one.
pub(crate) fn was_cut(text: &str, limit: usize) -> bool {
    // A character that does not fit has at most four bytes.
    text.len() + 4 > limit && text.ends_with(MARK)
}

/// Cuts at a character boundary, saying so.
pub(crate) fn cut(mut text: String, limit: usize) -> String {
    if text.len() > limit {
        let mut end = limit.saturating_sub(MARK.len());
        while end > 0 && !text.is_char_boundary(end) {
            end -= 1;
        }
        text.truncate(end);
        text.push_str(MARK);
    }
    text
}

impl fmt::Debug for Fail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fail")
            .field("source", &self.0.source)
            .field("class", &self.0.class)
            .field("happened", &self.0.happened)
            .field("retry_after", &self.0.retry_after)
            .field("not_yet", &self.0.not_yet)
            .field("stop", &self.0.stop)
            .finish()
    }
}
impl fmt::Display for Fail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0.source)
    }
}

/// Classifies the error of a `Result` on the way.
pub trait FailExt<T> {
    /// Later may be better.
    fn transient(self) -> Result<T, Fail>;
    /// Trying again cannot help.
    fn permanent(self) -> Result<T, Fail>;
    /// The provider said no: it did not happen.
    fn refused(self) -> Result<T, Fail>;
    /// It never left: it did not happen.
    fn not_sent(self) -> Result<T, Fail>;
}

impl<T, E: Into<Box<dyn StdError + Send + Sync>>> FailExt<T> for Result<T, E> {
    fn transient(self) -> Result<T, Fail> {
        self.map_err(Fail::transient)
    }
    fn permanent(self) -> Result<T, Fail> {
        self.map_err(Fail::permanent)
    }
    fn refused(self) -> Result<T, Fail> {
        self.map_err(Fail::refused)
    }
    fn not_sent(self) -> Result<T, Fail> {
        self.map_err(Fail::not_sent)
    }
}
