//! The steps of a start, between the open file and the first claim: what the alert rules know, what an older copy asks of a person,
//! and what a dead process left behind. Called by the builder, in its order.

use crate::clock::Clock;
use crate::engine::alerts::Alarms;
use crate::engine::core::{Core, Pooled};
use crate::engine::dispatcher::Served;
use crate::engine::ops::{KindsOp, PauseOp, Scope};
use crate::engine::outbox::{SUSPECTS, SuspectOp};
use crate::engine::recover::{self, CarryOnOp, RecoverOp};
use crate::engine::review::HoldOp;
use crate::engine::tell::{Owed, Teller, TellsOp};
use crate::engine::wake::TimerHandle;
use crate::error::Error;
use crate::handler::kinds::Kind;
use crate::handler::reply::answer;
use crate::handler::shared::{Shared, store_error};
use crate::model::id::{JobId, KindId, Token};
use crate::model::review::Review;
use crate::model::room::Room;
use crate::model::shown::Shown;
use crate::model::time::Wall;
use crate::observe::book::Book;
use crate::observe::{AlertRules, events};
use crate::store::{Lane, Opened, Slot, Store, StoreError, StoreEvent};
use std::sync::Arc;

/// What is watched, and who is told: what the file knows of it, before anything happens.
pub(super) fn alarms(
    store: &Store,
    rules: AlertRules,
    kept: Option<&[u8]>,
    tells: bool,
    timer: &TimerHandle,
    clock: &Arc<dyn Clock>,
) -> Result<Option<Arc<Alarms>>, Error> {
    if !tells && !rules.any() && kept.is_none() {
        return Ok(None);
    }
    if !tells {
        return Ok(Some(Alarms::new(rules, timer.clone(), None)));
    }
    let mut book = Book::from_row(kept);
    let owed = Owed::read(store, book.tells())?;
    let teller = Teller::new(timer.clone(), clock.clone(), book.tells(), owed);
    if !book.tells() {
        // Before anybody is: what is not known to be heard from here on may have been.
        book.begin_to_tell();
        let (tell, reply) = answer();
        let op = TellsOp::new(book, tell);
        store.submit(Lane::Outcome, Box::new(op)).map_err(|(_, e)| store_error(e))?;
        reply.wait().unwrap_or(Err(StoreError::Closed)).map_err(store_error)?;
    }
    Ok(Some(Alarms::new(rules, timer.clone(), Some(teller))))
}

/// What the storage went through, for the log.
pub(super) fn tell(e: &StoreEvent) {
    match e {
        StoreEvent::HealStarted { error } => events::heal_started(error),
        StoreEvent::Healed { after_ms } => events::heal_ended(*after_ms),
        StoreEvent::HookFailed { error } => events::warning(&format!("no job was claimed in this round: {error}")),
        // The timer has warned while the closure held the writer.
        StoreEvent::SlowClosure { .. } | StoreEvent::Room { changed: false, .. } => {}
        StoreEvent::Room { room, .. } => events::warning(room_says(*room)),
        StoreEvent::Stopped { error: error @ StoreError::Stopped(_) } => events::warning(&error.to_string()),
        StoreEvent::Stopped { error } => events::warning(&format!("the queue has stopped: {error}")),
    }
}

/// What the disk has room for, for the log.
pub(super) fn room_says(room: Room) -> &'static str {
    match room {
        Room::Normal => "the disk has room again: new work is taken, and jobs begin",
        Room::Low => {
            "the disk is full: nothing new is taken, no job and no risky effect begins until there is room; what is under way is \
             still recorded, in a reserve"
        }
        Room::Critical => {
            "the disk is full, and the reserve is used up: no effect begins until there is room; what is under way is still \
             recorded as long as that fits"
        }
    }
}

const ADVICE: &str = "a copy may have been put back, and it does not know what happened since; compare with your providers, and say \
                      so (Jobs::lift_review); until then jobs may run (Jobs::resume with Scope::All), and every effect they ask for \
                      counts as one that nobody is sure of";

/// An older copy of the file may have been put back, or an empty one be in the place of one that is gone: what happened after `since`
/// may not be in it, and would happen again. Nothing runs until a person resumes everything, and nothing is taken for new until
/// one has compared the file with the providers.
pub(super) fn hold_for_review(shared: &Arc<Shared>, opened: &Opened, since: Wall, now: Wall) -> Result<(), Error> {
    let file = opened.path.display().to_string();
    let file = Shown(&file);
    let what = match opened.header {
        // Its process died before it could say so.
        _ if !opened.rewound => format!("{file} was found to be no copy of today by a start before this one"),
        _ if opened.created => format!("{file} is new, and {file}.run is of one that was there before"),
        None => format!("{file}.run is missing, or cannot be read"),
        Some(header) if header.instance != opened.instance => format!("{file}.run belongs to another file"),
        Some(_) => format!("{file} is older than what was done with it"),
    };
    shared.report.warn(&format!("everything is paused: {what}: {ADVICE}"));
    let before = shared.review.read().clone();
    let found = Review { what: what.clone(), since, found: now, epoch: opened.epoch };
    let was = shared.pauses.read().all.clone();
    let why = match was {
        Some(was) if was.contains(ADVICE) && was.contains(&what) => was,
        Some(was) if was.contains(ADVICE) => format!("{was}; and {what}"),
        // Whoever paused it before, for another reason, reads this one, too, before they resume.
        Some(was) => format!("{was}; and {what}: {ADVICE}"),
        None => format!("{what}: {ADVICE}"),
    };
    let (tell, reply) = answer();
    let pause = Box::new(PauseOp { shared: shared.clone(), scope: Scope::All, why: Some(why), answer: tell });
    let review = match before {
        Some(before) => before.again(found),
        None => found,
    };
    shared.submit(Lane::Outcome, Box::new(HoldOp { review, pause }))?;
    reply.wait().unwrap_or(Err(Error::ShutDown))
}

/// Tells apart, gives back or buries what a dead process left behind: at once, before anything is claimed. Who is a suspect now.
pub(super) fn recover_claims(
    shared: &Arc<Shared>,
    running: &[(JobId, Token)],
    slots: &[Slot],
    boot: [u8; 16],
    nonce: u64,
) -> Result<Vec<JobId>, Error> {
    let recover = |part: &[_]| {
        let (tell, reply) = answer();
        let op = RecoverOp { shared: shared.clone(), claims: part.to_vec(), changes: Vec::new(), answer: tell };
        shared.submit(Lane::Outcome, Box::new(op))?;
        Ok::<_, Error>(reply.wait().unwrap_or(Err(StoreError::Closed)))
    };
    let mut suspects = Vec::new();
    for part in recover::evidence(running, slots, boot, nonce).chunks(1_000) {
        match recover(part)? {
            Ok(found) => suspects.extend(found),
            // One job's rows are damaged: it is left as it is, and stops nobody else.
            Err(StoreError::Corrupt { .. } | StoreError::Bug(_)) => {
                for one in part.chunks(1) {
                    match recover(one)? {
                        Ok(found) => suspects.extend(found),
                        Err(e @ (StoreError::Corrupt { .. } | StoreError::Bug(_))) => {
                            shared.report.warn(&format!("a job that was running is not run: {e}"));
                        }
                        Err(e) => return Err(store_error(e)),
                    }
                }
            }
            Err(e) => return Err(store_error(e)),
        }
    }
    Ok(suspects)
}

/// Messages that a dead process was handing over. Written only where there is something to write.
pub(super) fn suspect_messages(core: &Arc<Core>, slots: &[Slot]) -> Result<(), Error> {
    let (tell, reply) = answer();
    let op = SuspectOp::new(core, slots, tell);
    let kept = match core.shared.store.read(|v| v.metas(SUSPECTS)) {
        Err(StoreError::Corrupt { .. }) => true,
        kept => !kept?.is_empty(),
    };
    if op.is_empty() && !kept {
        return Ok(());
    }
    core.shared.submit(Lane::Outcome, Box::new(op))?;
    reply.wait().unwrap_or(Err(StoreError::Closed)).map_err(store_error)
}

/// Every compensation has somebody who carries it on: before anything is claimed.
pub(super) fn carry_on(shared: &Arc<Shared>) -> Result<(), Error> {
    for job in shared.store.read(|v| v.compensating())? {
        let (tell, reply) = answer();
        let op = CarryOnOp { shared: shared.clone(), job, changes: Vec::new(), answer: tell };
        shared.submit(Lane::Outcome, Box::new(op))?;
        match reply.wait().unwrap_or(Err(StoreError::Closed)) {
            Ok(()) => {}
            Err(e @ (StoreError::Corrupt { .. } | StoreError::Bug(_))) => {
                shared.report.warn(&format!("nobody knows whether job {job} is still being undone: {e}"));
            }
            Err(e) => return Err(store_error(e)),
        }
    }
    Ok(())
}

/// Gives every registered kind, and each of its former names, a number in this file.
pub(super) fn serve(core: &Core) -> Result<Vec<Served>, Error> {
    let shared = &core.shared;
    let names: Vec<_> = shared
        .registry
        .kinds
        .iter()
        .flat_map(|k| std::iter::once(k.name).chain(k.aliases.iter().copied()).map(|n| (n, k.clone())))
        .collect();
    let (tell, reply) = answer();
    let now = shared.registry.pairs_now();
    let pairs = if now == shared.registry.pairs { None } else { now };
    let pairs = pairs.map(|now| serde_json::to_vec(&now).map_err(|e| StoreError::Bug(e.to_string()))).transpose()?;
    let op = KindsOp::new(names.iter().map(|(n, _)| *n).collect(), pairs, tell);
    shared.submit(Lane::Outcome, Box::new(op))?;
    let ids = reply.wait().unwrap_or(Err(StoreError::Closed)).map_err(store_error)?;
    let served = |((name, kind), id): (&(&'static str, Arc<Kind>), KindId)| {
        let pooled = core.pooled(kind.name).unwrap_or(Pooled::Threads);
        Served { id, name: (*name).into(), kind: kind.clone(), pooled }
    };
    Ok(names.iter().zip(ids).map(served).collect())
}
