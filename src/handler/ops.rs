//! The operations of a running attempt on the store: intent, result, probe answer, step, commit, finish. Its end is in `ends`.
//!
//! Each loads, lets the rules decide, and puts; what it remembers belongs to the round's final run and is told after the commit.

use super::attempt::{Attempt, Pending};
use super::call::Call;
use super::fail::Fail;
use super::learn::Told;
use super::reply::Answer;
use super::shared::{Changed, Did, InsideTransaction, Shared, store_error};
use super::tx::Tx;
use super::undo;
use crate::model::attempt::{AttemptEnd, Stop};
use crate::model::effect::{EffectRecord, Stored};
use crate::model::id::{EffectId, Lease};
use crate::model::job::{JobRecord, Memo};
use crate::rules::effect::{self, Asking, Begin, Request, Same};
use crate::rules::older::{self, Doubted};
use crate::rules::{Env, Refusal, lifecycle};
use crate::store::{AppRun, Op, StoreError, Write};
use std::sync::Arc;

/// What the writer said to `cx.effect(..)`.
pub(crate) enum Began {
    Recorded(Stored, bool),
    Call(Call),
    Probe(Box<EffectRecord>, Asking),
    Stop(Stop),
    /// The disk is full: what cannot be recorded does not begin.
    NoRoom,
}

fn load(tx: &mut Write<'_>, lease: &Lease) -> Result<Option<JobRecord>, StoreError> {
    tx.record(lease.job())
}

/// Asks the rules about an effect and writes the intent, durably, before anything is called.
pub(crate) struct BeginOp {
    pub(crate) attempt: Arc<Attempt>,
    pub(crate) request: Request,
    pub(crate) stored: Option<EffectId>,
    pub(crate) same: Same,
    pub(crate) answer: Answer<Told<Began>>,
    pub(crate) done: Option<(Told<Began>, Vec<Changed>)>,
    pub(crate) pending: Pending,
}

impl BeginOp {
    fn decide(&self, tx: &mut Write<'_>) -> Result<(Told<Began>, Vec<Changed>), StoreError> {
        let nothing = |told| Ok((told, Vec::new()));
        let a = &self.attempt;
        let shared = &a.shared;
        if let Some(stop) = a.stopped() {
            // Asked for beside another effect that has ended without an answer meanwhile.
            return nothing(Ok(Began::Stop(stop)));
        }
        let Some(mut job) = load(tx, &a.lease)? else { return nothing(Err(Refusal::Fenced.into())) };
        let mut record = match &self.stored {
            Some(id) => tx.effect(a.id(), id)?,
            None => None,
        };
        if !effect::has_room(record.as_ref(), self.request.risk, shared.store.room()) {
            return nothing(Ok(Began::NoRoom));
        }
        let now = shared.now();
        let calls = |r: &EffectRecord| shared.call_facts(a.id(), r, now);
        let env = Env { now, draw: shared.draw(), calls: &calls };
        let of = record.as_ref().map_or_else(|| self.request.id.clone(), |r| r.id.clone());
        let key = |generation| shared.idempotency_key(&a.row, &a.stored_kind, &of, generation);
        let unasked = self.unasked(tx)?;
        let (mut changes, mut same) = (Vec::new(), self.same);
        let review = shared.review_of(a.id(), &of);
        if let Some(review) = review {
            // What is not in an older copy of the file may have happened: from here on it has a record, like every call.
            let renamed = a.kind.was_renamed(&self.request.id.name);
            let request = &self.request;
            let told = older::doubted(&job, &a.lease, record.as_ref(), request, &unasked, &review, renamed, &key);
            match told {
                Ok(Some(Doubted { change, is_of_now })) => {
                    tx.put(&change)?;
                    // As it was put, with its history.
                    let Some(put) = load(tx, &a.lease)? else { return nothing(Err(Refusal::Fenced.into())) };
                    job = put;
                    record = change.effects().first().cloned();
                    same = if is_of_now { Same::Yes } else { same };
                    changes.push(a.changed(change));
                }
                Ok(None) => {}
                Err(refusal) => return nothing(Err(refusal.into())),
            }
        }
        let begun =
            effect::begin(&job, &a.lease, record.as_ref(), same, &self.request, &unasked, &a.kind.rules, &env, &key);
        let told = match begun {
            Err(refusal) => Err(refusal.into()),
            Ok(Begin::Recorded { result, differs }) => Ok(Began::Recorded(result, differs)),
            Ok(Begin::Probe(asking)) => match record {
                Some(r) => Ok(Began::Probe(Box::new(r), asking)),
                None => Err(Refusal::Fenced.into()),
            },
            Ok(Begin::Stop(stop)) => Ok(Began::Stop(stop)),
            Ok(Begin::Call { change, .. }) => {
                tx.put(&change)?;
                let record = change.effects().first().cloned();
                a.set_number(change.record().attempts);
                changes.push(a.changed(*change));
                record.map(|r| Began::Call(Call::new(a, r))).ok_or_else(|| Refusal::Fenced.into())
            }
        };
        Ok((told, changes))
    }
}

impl BeginOp {
    /// What earlier claims left open and this one has not asked for yet; a late proof may have settled it since the claim.
    fn unasked(&self, tx: &mut Write<'_>) -> Result<Vec<EffectId>, StoreError> {
        let mut open = Vec::new();
        for id in self.attempt.unasked() {
            if tx.effect(self.attempt.id(), &id)?.is_some_and(|r| r.state.is_unresolved()) {
                open.push(id);
            }
        }
        Ok(open)
    }
}

impl Op for BeginOp {
    fn run(&mut self, tx: &mut Write<'_>) -> Result<(), StoreError> {
        self.done = Some(self.decide(tx)?);
        Ok(())
    }
    fn settle(self: Box<Self>, result: Result<(), StoreError>) {
        drop(self.pending);
        match (result, self.done) {
            (Ok(()), Some((mut told, changes))) => {
                if let Ok(Began::Call(call)) = &mut told {
                    call.arm();
                }
                if !changes.is_empty() {
                    self.attempt.shared.report.changed(&changes);
                }
                self.answer.send(told);
            }
            (Ok(()), None) => {}
            (Err(e), _) => self.answer.send(Err(store_error(e))),
        }
    }
}

/// Remembers a step.
pub(crate) struct StepOp {
    pub(crate) attempt: Arc<Attempt>,
    pub(crate) memo: Memo,
    pub(crate) answer: Answer<Told<()>>,
    pub(crate) done: Option<(Told<()>, Option<Changed>)>,
    pub(crate) pending: Pending,
}

impl Op for StepOp {
    fn run(&mut self, tx: &mut Write<'_>) -> Result<(), StoreError> {
        let lease = &self.attempt.lease;
        let told = match load(tx, lease)? {
            Some(job) if self.attempt.stopped().is_none() => lifecycle::remember(&job, lease, self.memo.clone()),
            Some(_) | None => Err(Refusal::Fenced),
        };
        self.done = Some(match told {
            Ok(change) => {
                tx.put(&change)?;
                (Ok(()), Some(self.attempt.changed(change)))
            }
            Err(refusal) => (Err(refusal.into()), None),
        });
        Ok(())
    }
    fn settle(self: Box<Self>, result: Result<(), StoreError>) {
        drop(self.pending);
        match (result, self.done) {
            (Ok(()), Some((told, changed))) => {
                if let Some(changed) = changed {
                    self.attempt.shared.report.changed(&[changed]);
                }
                self.answer.send(told);
            }
            (Ok(()), None) => {}
            (Err(e), _) => self.answer.send(Err(store_error(e))),
        }
    }
}

/// App code in a transaction, type-erased: the value as JSON (or nothing), or the app's failure.
pub(crate) type AppCode = Box<dyn Fn(&mut Tx<'_>) -> Result<Vec<u8>, Fail> + Send>;

/// What an app closure came to.
pub(crate) enum AppDone {
    Ok { value: Vec<u8>, did: Did },
    Fail(Fail),
    Panicked(String),
    Leaked(String),
}

/// Runs app code inside the writer's transaction; what a failing one wrote is undone with its whole round.
pub(crate) fn run_app(
    tx: &mut Write<'_>,
    shared: &Arc<Shared>,
    name: &str,
    from: &str,
    trace: Option<&str>,
    code: &dyn Fn(&mut Tx<'_>) -> Result<Vec<u8>, Fail>,
) -> Result<AppDone, StoreError> {
    let _inside = InsideTransaction::enter();
    let _held = shared.watchdog.hold(name);
    let run = tx.app(name, &mut |app| {
        let mut t = Tx::new(app, shared.clone(), from, trace.map(str::to_owned));
        let value = code(&mut t);
        (value, t.into_parts())
    });
    Ok(match run {
        AppRun::Done { value: (Ok(value), did), .. } => AppDone::Ok { value, did },
        AppRun::Done { value: (Err(fail), _), wrote } => {
            if wrote {
                tx.fail_app();
            }
            AppDone::Fail(fail)
        }
        AppRun::Panicked(text) => AppDone::Panicked(text),
        AppRun::Leaked(table) => AppDone::Leaked(table),
    })
}

/// `cx.commit` and `cx.finish`: app tables and the job's progress in one transaction, fenced, once.
pub(crate) struct CommitOp {
    pub(crate) attempt: Arc<Attempt>,
    /// `None`: finish.
    pub(crate) name: Option<String>,
    pub(crate) code: AppCode,
    pub(crate) output: Option<Vec<u8>>,
    /// The trace that the handler is in.
    pub(crate) trace: Option<String>,
    pub(crate) answer: Answer<Told<Committed>>,
    pub(crate) done: Option<Done>,
    pub(crate) pending: Pending,
}

/// What a commit came to, for the handler.
pub(crate) enum Committed {
    Ok(Vec<u8>),
    Fail(Fail),
    /// The finish gate is closed: these effects need an answer.
    Gate(Vec<EffectId>),
}

pub(crate) struct Done {
    told: Told<Committed>,
    did: Did,
    /// Which of its changes is the job's own.
    own: usize,
}

impl CommitOp {
    fn decide(&self, tx: &mut Write<'_>) -> Result<Done, StoreError> {
        let a = &self.attempt;
        let lease = &a.lease;
        let nothing = |told| Done { told, did: Did::default(), own: 0 };
        let refuse =
            |r: Refusal| nothing(if let Refusal::Gate(ids) = r { Ok(Committed::Gate(ids)) } else { Err(r.into()) });
        let Some(job) = load(tx, lease)?.filter(|_| a.stopped().is_none()) else {
            return Ok(refuse(Refusal::Fenced));
        };
        let effects = if job.effects > 0 { tx.effects(a.id())? } else { Vec::new() };
        let may = match self.name {
            Some(_) => effect::running(&job, lease).map(|_| ()),
            None => lifecycle::may_finish(&job, lease, &effects, &a.kind.rules),
        };
        if let Err(r) = may {
            return Ok(refuse(r));
        }
        let fail = |text: String| nothing(Ok(Committed::Fail(Fail::new(text))));
        let holder = match &self.name {
            Some(name) => format!("commit {name:?} of {}/{}", a.stored_kind, a.row.key),
            None => format!("finish of {}/{}", a.stored_kind, a.row.key),
        };
        let (value, mut did) =
            match run_app(tx, &a.shared, &holder, &a.stored_kind, self.trace.as_deref(), &*self.code)? {
                AppDone::Ok { value, did } => (value, did),
                AppDone::Fail(f) => {
                    return Ok(nothing(Ok(Committed::Fail(f))));
                }
                AppDone::Panicked(text) => return Ok(fail(format!("the transaction closure panicked: {text}"))),
                AppDone::Leaked(table) => {
                    return Ok(fail(format!(
                        "the transaction closure left the table {table:?} open: drop it before it returns"
                    )));
                }
            };
        if value.len() > a.shared.limits.payload {
            tx.fail_app();
            return Ok(fail(format!(
                "the value has {} bytes, more than the limit of {}",
                value.len(),
                a.shared.limits.payload
            )));
        }
        let now = a.shared.now();
        let calls = |r: &EffectRecord| a.shared.call_facts(a.id(), r, now);
        let env = Env { now, draw: a.shared.draw(), calls: &calls };
        let change = match &self.name {
            Some(name) => lifecycle::remember(
                &job,
                lease,
                Memo { name: name.clone(), commit: true, value: value.clone(), number: 0 },
            ),
            None => lifecycle::end(&job, lease, AttemptEnd::Success, &effects, &a.shared.in_force(&a.kind.rules), &env),
        };
        match change {
            Ok(change) => {
                let own = did.changes.len();
                did.changes.extend(undo::put(tx, &a.shared, a.changed(change), Some(&a.row))?);
                if let (None, Some(output)) = (&self.name, &self.output) {
                    tx.put_output(a.id(), output.clone())?;
                }
                Ok(Done { told: Ok(Committed::Ok(value)), did, own })
            }
            Err(r) => {
                tx.fail_app();
                Ok(refuse(r))
            }
        }
    }
}

impl Op for CommitOp {
    fn run(&mut self, tx: &mut Write<'_>) -> Result<(), StoreError> {
        self.done = None;
        self.done = Some(self.decide(tx)?);
        Ok(())
    }
    fn is_app(&self) -> bool {
        true
    }
    fn settle(self: Box<Self>, result: Result<(), StoreError>) {
        drop(self.pending);
        match (result, self.done) {
            (Ok(()), Some(mut done)) => {
                let report = &self.attempt.shared.report;
                let finished = self.name.is_none() && matches!(done.told, Ok(Committed::Ok(_)));
                if finished {
                    self.attempt.set_finished();
                }
                if finished && let Some(own) = done.did.changes.get_mut(done.own) {
                    own.run = Some(self.attempt.run());
                }
                report.did(&done.did);
                self.answer.send(done.told);
            }
            (Ok(()), None) => {}
            (Err(e), _) => self.answer.send(Err(store_error(e))),
        }
    }
}
