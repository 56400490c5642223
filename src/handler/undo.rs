//! A change and what it means for other jobs, in one transaction: the undo job that it orders is enqueued, and the end of an undo
//! job is told to the job that is compensated. Keeps the promise that no crash falls between them. Called by every operation that
//! can move a job out of its way forward.

use super::shared::{Changed, Shared};
use crate::model::effect::{EffectRecord, Undoing};
use crate::model::id::JobId;
use crate::model::job::{Codec, End, Intent, JobRow, JobState, Undoes};
use crate::rules::{self, Env, UndoOrder, admit, compensate};
use crate::store::{StoreError, Write};

/// Writes a change and everything that follows from it. What became true is told in this order; the change itself comes first.
/// `row` is the job's own, if it is at hand.
pub(crate) fn put(
    tx: &mut Write<'_>,
    shared: &Shared,
    changed: Changed,
    row: Option<&JobRow>,
) -> Result<Vec<Changed>, StoreError> {
    let mut out = Vec::new();
    put_behind(tx, shared, changed, row, &mut out)?;
    Ok(out)
}

/// The same, told behind what `out` has already.
pub(crate) fn put_behind(
    tx: &mut Write<'_>,
    shared: &Shared,
    changed: Changed,
    row: Option<&JobRow>,
    out: &mut Vec<Changed>,
) -> Result<(), StoreError> {
    tx.put_with_order(&changed.change)?;
    let id = changed.change.record().id;
    let order = changed.change.undo().cloned();
    let ended = ends(&changed);
    out.push(changed);
    if let Some(order) = order {
        out.push(enqueue(tx, shared, id, &order)?);
    }
    if let Some(how) = ended {
        let undoes = match row {
            Some(row) => row.undoes.clone(),
            None => tx.job(id)?.and_then(|row| row.undoes),
        };
        if let Some(undoes) = undoes {
            out.extend(tell(tx, shared, &undoes, how)?);
        }
    }
    Ok(())
}

/// A compensation as it was found when the file was opened: an effect that is being undone has a job that undoes it. One that has none
/// gets it, one whose end was not heard is told, and where nothing is being undone a person is asked.
pub(crate) fn carry_on(tx: &mut Write<'_>, shared: &Shared, id: JobId) -> Result<Vec<Changed>, StoreError> {
    let (Some(job), Some(row)) = (tx.record(id)?, tx.job(id)?) else { return Ok(Vec::new()) };
    let effects = tx.effects(id)?;
    let now = shared.now();
    let name = shared.kind_name(job.kind);
    let calls = |r: &EffectRecord| shared.call_facts(id, r, now);
    let env = Env { now, draw: shared.draw(), calls: &calls };
    if let Some(change) = compensate::nobody_undoes(&job, &effects, shared.rules_named(&name), &env) {
        let changed = Changed::new(name.clone(), shared.queue_of(&name), row.key.clone(), change);
        return put(tx, shared, changed, Some(&row));
    }
    let mut out = Vec::new();
    for record in effects.iter().filter(|e| e.undoing == Undoing::UnderWay) {
        let Some(undo) = record.undo.clone() else { continue };
        let known = match tx.kind(&undo.kind)? {
            Some(kind) => tx.intent(kind, rules::undo::undo_key(record).as_str())?,
            None => None,
        };
        let ended = match known {
            None => None,
            Some(Intent::Remembered(memory)) => Some(memory.how),
            Some(Intent::Kept(undo, _)) => match tx.record(undo)?.map(|r| r.state.end()) {
                Some(Some(how)) => Some(how),
                Some(None) => continue,
                // It may have run: a second one could undo twice.
                None => {
                    return Err(StoreError::Corrupt {
                        what: format!("the job that undoes {} of job {id} is missing", record.id),
                    });
                }
            },
        };
        match ended {
            Some(how) => {
                let undoes = Undoes { job: id, effect: record.id.clone() };
                out.extend(tell(tx, shared, &undoes, how)?);
            }
            None => out.push(enqueue(tx, shared, id, &rules::undo::order_of(record, undo, now.wall))?),
        }
    }
    Ok(out)
}

/// How the job ended, if it is this change that ended it.
fn ends(changed: &Changed) -> Option<End> {
    let was = changed.change.before().and_then(JobState::end);
    changed.change.record().state.end().filter(|_| was.is_none())
}

/// A job like any other, but for its key and for what it undoes.
fn enqueue(tx: &mut Write<'_>, shared: &Shared, of: JobId, order: &UndoOrder) -> Result<Changed, StoreError> {
    let now = shared.now();
    let stored = order.job.kind.as_str();
    let kind = tx.add_kind(stored)?;
    let registered = shared.registry.kind(stored);
    if registered.is_none() {
        shared.report.warn(&format!(
            "job {of} waits for a job of the kind {stored:?} to undo {}, which has no handler here: register it",
            order.effect
        ));
    }
    // Of the same key only if the memory of the job that is compensated was over: new keys for its effects.
    let known = tx.intent(kind, order.key.as_str())?;
    if let Some(Intent::Remembered(memory)) = &known {
        tx.forget(kind, order.key.as_str(), memory)?;
    }
    let incarnation = known.map_or(1, |i| i.incarnation().saturating_add(1));
    let id = tx.next_id();
    let priority = registered.map_or(crate::model::job::PRIORITY, |k| k.priority);
    let change = admit::create_undo(id, kind, priority, order, of, shared.rules_named(stored), now);
    let row = JobRow {
        kind,
        key: order.key.clone(),
        incarnation,
        version: order.job.version,
        codec: Codec::Json,
        title: super::fail::cut(format!("undo: {}", order.says), shared.limits.key),
        enqueued: now.wall,
        payload: order.job.payload.clone(),
        undoes: Some(Undoes { job: of, effect: order.effect.clone() }),
    };
    tx.insert(&row, &change)?;
    Ok(Changed::new(stored.into(), shared.queue_of(stored), row.key, change))
}

/// The job that is compensated hears that one of its undo jobs is over, and goes on undoing, ends, or asks a person.
fn tell(tx: &mut Write<'_>, shared: &Shared, undoes: &Undoes, how: End) -> Result<Vec<Changed>, StoreError> {
    let id = undoes.job;
    let found = match (tx.record(id), tx.job(id), tx.effects(id)) {
        (Ok(record), Ok(row), Ok(effects)) => record.zip(row).map(|(record, row)| (record, row, effects)),
        // Its rows are damaged: the end of the undo job is stored all the same.
        (Err(StoreError::Corrupt { what }), ..)
        | (_, Err(StoreError::Corrupt { what }), _)
        | (.., Err(StoreError::Corrupt { what })) => {
            shared.report.warn(&format!("job {id} is not told that its {} was undone: {what}", undoes.effect));
            None
        }
        (Err(e), ..) | (_, Err(e), _) | (.., Err(e)) => return Err(e),
    };
    let Some((record, row, effects)) = found else { return Ok(Vec::new()) };
    let now = shared.now();
    let calls = |r: &EffectRecord| shared.call_facts(id, r, now);
    let env = Env { now, draw: shared.draw(), calls: &calls };
    let name = shared.kind_name(record.kind);
    match compensate::heard(&record, &effects, &undoes.effect, how, shared.rules_named(&name), &env) {
        Some(change) => {
            let changed = Changed::new(name.clone(), shared.queue_of(&name), row.key.clone(), change);
            put(tx, shared, changed, Some(&row))
        }
        None => Ok(Vec::new()),
    }
}
