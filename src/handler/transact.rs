//! `jobs.transact`: app code in the writer's transaction, from outside a handler.

use super::ops::{AppDone, run_app};
use super::reply::{Answer, Reply, answer};
use super::shared::{Did, Shared, store_error};
use super::tx::Tx;
use crate::error::Error;
use crate::handler::fail::Fail;
use crate::store::{Op, StoreError, Write};
use std::cell::RefCell;
use std::sync::Arc;

/// One transaction of the app's.
pub(crate) struct TransactOp<T, E, F> {
    shared: Arc<Shared>,
    code: F,
    /// The trace that the caller is in.
    trace: Option<String>,
    answer: Answer<Result<T, E>>,
    done: Option<Result<T, E>>,
    did: Did,
}

impl<T, E, F> TransactOp<T, E, F>
where
    T: Send + 'static,
    E: From<Error> + Send + 'static,
    F: Fn(&mut Tx<'_>) -> Result<T, E> + Send + 'static,
{
    pub(crate) fn prepare(shared: Arc<Shared>, code: F) -> (Box<dyn Op>, Reply<Result<T, E>>) {
        let (tell, reply) = answer();
        let trace = shared.trace.now(|text| shared.report.warn(text));
        let op = Self { shared, code, trace, answer: tell, done: None, did: Did::default() };
        (Box::new(op), reply)
    }
}

impl<T, E, F> Op for TransactOp<T, E, F>
where
    T: Send + 'static,
    E: From<Error> + Send + 'static,
    F: Fn(&mut Tx<'_>) -> Result<T, E> + Send + 'static,
{
    fn is_new_work(&self) -> bool {
        true
    }
    fn run(&mut self, tx: &mut Write<'_>) -> Result<(), StoreError> {
        self.did = Did::default();
        let kept = RefCell::new(None);
        let code = &self.code;
        let call = |tx: &mut Tx<'_>| match code(tx) {
            Ok(value) => {
                *kept.borrow_mut() = Some(Ok(value));
                Ok(Vec::new())
            }
            Err(e) => {
                *kept.borrow_mut() = Some(Err(e));
                Err(Fail::new("the closure failed"))
            }
        };
        let run = run_app(tx, &self.shared, "transact", "", self.trace.as_deref(), &call)?;
        self.done = match run {
            AppDone::Ok { did, .. } => {
                self.did = did;
                kept.into_inner()
            }
            AppDone::Fail(_) => kept.into_inner(),
            AppDone::Panicked(text) => Some(Err(E::from(Error::Panicked(text)))),
            AppDone::Leaked(table) => Some(Err(E::from(Error::Store(StoreError::TableLeaked(table))))),
        };
        Ok(())
    }
    fn is_app(&self) -> bool {
        true
    }
    fn settle(self: Box<Self>, result: Result<(), StoreError>) {
        match (result, self.done) {
            (Ok(()), Some(told)) => {
                if told.is_ok() {
                    self.shared.report.did(&self.did);
                }
                self.answer.send(told);
            }
            (Ok(()), None) => {}
            (Err(e), _) => self.answer.send(Err(E::from(store_error(e)))),
        }
    }
    fn unknown(&mut self) {
        self.answer.send(Err(E::from(Error::Unknown)));
    }
}
