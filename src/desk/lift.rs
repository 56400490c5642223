//! A file that may be an older copy, as a person sees it, and the end of that.

use super::sign;
use crate::engine::review::LiftOp;
use crate::error::Error;
use crate::handler::reply::{Reply, answer};
use crate::jobs::Jobs;
use crate::model::review::Review;
use crate::store::Lane;

impl Jobs {
    /// The review that holds while the file may be an older copy, and nobody has compared it with the providers; `None` for every
    /// other file.
    ///
    /// While there is one, every first call of an effect (of a job that the copy has, or of one enqueued since) counts as
    /// made and not answered: where the provider can be asked it is, else it is called with the same key while the provider surely
    /// remembers that, else a person is asked.
    pub fn review(&self) -> Option<Review> {
        self.shared().review.read().clone()
    }
    /// Somebody has compared the file with the providers: from now on an effect without a record was never called, and what the copy says of
    /// refused and unsure calls counts again. What is asked already stays asked. Returns what was lifted; [`decisions`](Self::decisions) lists it. What is paused stays paused:
    /// [`resume`](Self::resume) with [`Scope::All`](crate::Scope::All).
    ///
    /// # Errors
    /// [`Error::Refused`] where there is nothing to lift or the signature lacks a name or a reason; a store that cannot write.
    pub fn lift_review(&self, who: &str, why: &str) -> Result<Review, Error> {
        self.submit_lift(who, why)?.wait().unwrap_or(Err(Error::ShutDown))
    }
    /// [`lift_review`](Self::lift_review), awaited.
    ///
    /// # Errors
    /// As there.
    pub async fn lift_review_async(&self, who: &str, why: &str) -> Result<Review, Error> {
        let reply = self.submit_lift(who, why)?;
        reply.await.unwrap_or(Err(Error::ShutDown))
    }
    fn submit_lift(&self, who: &str, why: &str) -> Result<Reply<Result<Review, Error>>, Error> {
        let shared = self.may_start_work()?;
        let signed = sign(shared, who.to_owned(), why.to_owned())?;
        let (tell, reply) = answer();
        let op = LiftOp { shared: shared.clone(), signed, lifted: None, answer: tell };
        shared.submit(Lane::Outcome, Box::new(op))?;
        Ok(reply)
    }
}
