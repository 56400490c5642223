//! The review of a file that may be an older copy, as the file remembers it: begun by the start that finds one, lifted by a person.
//!
//! Keeps the promise that a crash forgets nothing of it: the pause, the review and the end of the store's own mark are one commit,
//! and so are its end and the signature.

use super::ops::{PauseOp, REWOUND};
use crate::error::Error;
use crate::handler::reply::Answer;
use crate::handler::shared::{Shared, store_error};
use crate::model::letter::{Act, Entry, Signed};
use crate::model::review::Review;
use crate::model::time::Wall;
use crate::rules::Refusal;
use crate::store::{Op, StoreError, Write};
use std::sync::Arc;

/// The setting that keeps the review while nobody has lifted it, as JSON.
pub(crate) const REVIEW: &str = "review";

/// The review as the file has it. One that cannot be read is open all the same, as if it were found by this start (in `epoch`): nothing
/// is known since ever, and nothing was looked at since.
///
/// # Errors
/// A store that cannot read.
pub(crate) fn load(
    row: Result<Option<Vec<u8>>, StoreError>,
    now: Wall,
    epoch: u32,
) -> Result<Option<Review>, StoreError> {
    let json = match row {
        Ok(None) => return Ok(None),
        Ok(Some(json)) => json,
        Err(StoreError::Corrupt { .. }) => Vec::new(),
        Err(e) => return Err(e),
    };
    let unknown =
        || Review { what: "what was found cannot be read any more".to_owned(), since: Wall(0), found: now, epoch };
    Ok(Some(serde_json::from_slice(&json).unwrap_or_else(|_| unknown())))
}

/// Pauses everything and remembers why; in place of the mark that the store left.
pub(crate) struct HoldOp {
    pub(crate) review: Review,
    pub(crate) pause: Box<PauseOp>,
}

impl Op for HoldOp {
    fn run(&mut self, tx: &mut Write<'_>) -> Result<(), StoreError> {
        let json = serde_json::to_vec(&self.review);
        let json = json.map_err(|e| StoreError::Bug(e.to_string()))?;
        tx.put_meta(REVIEW, &json)?;
        tx.remove_meta(REWOUND)?;
        self.pause.run(tx)
    }
    fn settle(self: Box<Self>, result: Result<(), StoreError>) {
        if result.is_ok() {
            *self.pause.shared.review.write() = Some(self.review);
        }
        self.pause.settle(result);
    }
    fn unknown(&mut self) {
        self.pause.unknown();
    }
}

/// A person has compared the file with the providers.
pub(crate) struct LiftOp {
    pub(crate) shared: Arc<Shared>,
    pub(crate) signed: Signed,
    pub(crate) lifted: Option<Review>,
    pub(crate) answer: Answer<Result<Review, Error>>,
}

impl Op for LiftOp {
    fn run(&mut self, tx: &mut Write<'_>) -> Result<(), StoreError> {
        self.lifted = match tx.meta(REVIEW) {
            // There is none, or it was lifted in this very round.
            Ok(None) => None,
            Ok(Some(_)) | Err(StoreError::Corrupt { .. }) => self.shared.review.read().clone(),
            Err(e) => return Err(e),
        };
        let Some(review) = &self.lifted else { return Ok(()) };
        tx.remove_meta(REVIEW)?;
        let entry = Entry::ReviewLifted {
            what: review.what.clone(),
            since: review.since,
            found: review.found,
            signed: self.signed.clone(),
        };
        tx.list_act(&Act { job: None, kind: String::new(), key: String::new(), entry })
    }
    fn settle(self: Box<Self>, result: Result<(), StoreError>) {
        let told = match (result, self.lifted) {
            (Ok(()), Some(review)) => {
                *self.shared.review.write() = None;
                self.shared.answered.lock().clear();
                self.shared.report.paused();
                Ok(review)
            }
            (Ok(()), None) => {
                let text = "there is no review to lift: the file is not held to be an older copy".to_owned();
                Err(Refusal::NotAChoice(text).into())
            }
            (Err(e), _) => Err(store_error(e)),
        };
        self.answer.send(told);
    }
    fn unknown(&mut self) {
        self.answer.send(Err(Error::Unknown));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A damaged row must not end a review.
    #[test]
    fn a_review_that_cannot_be_read_is_open() {
        let review = Review { what: "older".into(), since: Wall(1), found: Wall(2), epoch: 3 };
        let loaded = |row| load(row, Wall(50), 9).expect("read");
        assert_eq!(loaded(Ok(Some(serde_json::to_vec(&review).expect("json")))), Some(review));
        for row in [Ok(Some(b"{".to_vec())), Err(StoreError::Corrupt { what: "a bit".into() })] {
            let found = loaded(row).expect("open");
            assert_eq!((found.since, found.found, found.epoch), (Wall(0), Wall(50), 9));
        }
        assert_eq!(loaded(Ok(None)), None);
        assert!(load(Err(StoreError::Closed), Wall(50), 9).is_err(), "no answer is not a no");
    }
}
