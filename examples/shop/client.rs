//! The shop's side of the wire: each call says whether it happened, whether it surely did not, or that nobody knows.

use super::http::{self, NoAnswer};
use super::plan::PATIENCE;
use onceward::{Fail, Outcome};
use serde_json::{Value, json};
use std::error::Error;
use std::fmt;
use std::io;
use std::time::Duration;

/// Why a call brought no result.
#[derive(Debug)]
pub(crate) enum CallError {
    /// There was no connection: it never left.
    NotSent(io::Error),
    /// The provider said no.
    Refused { status: u16, text: String, retry_after: Option<Duration> },
    /// It may have happened.
    NoAnswer(io::Error),
}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotSent(e) => write!(f, "no connection: {e}"),
            Self::Refused { status, text, .. } => write!(f, "{status} {text}"),
            Self::NoAnswer(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                write!(f, "no answer within {} ms", PATIENCE.as_millis())
            }
            Self::NoAnswer(e) => write!(f, "no answer: {e}"),
        }
    }
}

impl Error for CallError {}

/// Where the others are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outside {
    pub(crate) payments: u16,
    pub(crate) warehouse: u16,
}

/// What the shop asks of others; somebody else may stand in for them.
pub(crate) trait World: Clone + Send + Sync + 'static {
    /// Moves money; the same key moves it once.
    fn charge(&self, order: u64, cents: u64, key: &str) -> Outcome<String>;
    fn find_charge(&self, key: &str) -> Outcome<Option<String>>;
    fn reserve(&self, order: u64) -> Outcome<String>;
    fn find_reservation(&self, order: u64) -> Outcome<Option<String>>;
    fn book_courier(&self, order: u64) -> Outcome<String>;
    fn send_receipt(&self, order: u64, mail: &str) -> Outcome<String>;
}

impl World for Outside {
    fn charge(&self, order: u64, cents: u64, key: &str) -> Outcome<String> {
        happened(Outside::charge(self, order, cents, Some(key)))
    }
    fn find_charge(&self, key: &str) -> Outcome<Option<String>> {
        Ok(Outside::find_charge(self, key)?)
    }
    fn reserve(&self, order: u64) -> Outcome<String> {
        happened(Outside::reserve(self, order))
    }
    fn find_reservation(&self, order: u64) -> Outcome<Option<String>> {
        Ok(Outside::find_reservation(self, order)?)
    }
    fn book_courier(&self, order: u64) -> Outcome<String> {
        happened(Outside::book_courier(self, order))
    }
    fn send_receipt(&self, order: u64, mail: &str) -> Outcome<String> {
        happened(Outside::send_receipt(self, order, mail))
    }
}

/// Did it happen? Only a provider's "no" and a request that never left say that it did not.
fn happened(called: Result<String, CallError>) -> Outcome<String> {
    called.map_err(|e| match e {
        CallError::NotSent(_) => Fail::not_sent(e),
        CallError::Refused { retry_after, .. } => {
            Fail::refused(e).retry_after(retry_after.unwrap_or(Duration::from_millis(100)))
        }
        CallError::NoAnswer(_) => Fail::new(e),
    })
}

impl Outside {
    /// Moves money; the same key moves it once.
    pub(crate) fn charge(&self, order: u64, cents: u64, key: Option<&str>) -> Result<String, CallError> {
        create(self.payments, "/charges", key, &json!({ "order": order, "cents": cents }))
    }
    pub(crate) fn find_charge(&self, key: &str) -> Result<Option<String>, CallError> {
        find(self.payments, &format!("/charges/{key}"))
    }
    pub(crate) fn reserve(&self, order: u64) -> Result<String, CallError> {
        create(self.warehouse, "/reservations", None, &json!({ "order": order }))
    }
    pub(crate) fn find_reservation(&self, order: u64) -> Result<Option<String>, CallError> {
        find(self.warehouse, &format!("/reservations/{order}"))
    }
    pub(crate) fn book_courier(&self, order: u64) -> Result<String, CallError> {
        create(self.warehouse, "/pickups", None, &json!({ "order": order }))
    }
    pub(crate) fn send_receipt(&self, order: u64, mail: &str) -> Result<String, CallError> {
        create(self.warehouse, "/receipts", None, &json!({ "order": order, "to": mail }))
    }
}

fn create(port: u16, path: &str, key: Option<&str>, body: &Value) -> Result<String, CallError> {
    let answer = send(port, "POST", path, key, body)?;
    match answer.status {
        201 => id_of(&answer.body),
        status => Err(refused(status, &answer)),
    }
}

fn find(port: u16, path: &str) -> Result<Option<String>, CallError> {
    let answer = send(port, "GET", path, None, &Value::Null)?;
    match answer.status {
        200 => id_of(&answer.body).map(Some),
        404 => Ok(None),
        status => Err(refused(status, &answer)),
    }
}

fn send(port: u16, method: &str, path: &str, key: Option<&str>, body: &Value) -> Result<http::Answer, CallError> {
    http::send(port, method, path, key, body, PATIENCE).map_err(|e| match e {
        NoAnswer::NotSent(e) => CallError::NotSent(e),
        NoAnswer::Lost(e) => CallError::NoAnswer(e),
    })
}

fn refused(status: u16, answer: &http::Answer) -> CallError {
    let text = answer.body["error"].as_str().unwrap_or("no reason given").to_owned();
    CallError::Refused { status, text, retry_after: answer.retry_after }
}

/// An answer that cannot be understood is no answer: it may have happened.
fn id_of(body: &Value) -> Result<String, CallError> {
    let id = body["id"].as_str().map(str::to_owned);
    id.ok_or_else(|| CallError::NoAnswer(io::Error::new(io::ErrorKind::InvalidData, "no id in the answer")))
}
