//! How the writer gets over a storage failure. redb refuses everything after an I/O error until the file is opened anew, so the
//! writer reopens it, finds out by the round's number whether the failed round was applied, and makes a commit of its own
//! durable before anybody hears or reads anything. Epoch, tokens and claims stay: a heal is not a process start.

use super::create::{self, Meta, OpenFile};
use super::error::StoreError;
use super::op::StoreEvent;
use super::options::Commits;
use super::shared::Waiting;
use super::write::{Kept, Live, Write};
use super::writer::{FIRST_PAUSE, Verdict, Writer};
use crate::planted::on;
use crate::sync::atomic::Ordering;
use std::time::Duration;

const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// Callers wait this long, by the stopwatch, before they are told "unknown".
const PATIENCE_MS: u64 = 30_000;
/// A store that is being closed tries this often (some two seconds) before it gives up.
const TRIES_WHEN_CLOSING: u32 = 8;

impl Writer {
    /// After a reader met an error and no round is in the air.
    pub(super) fn heal_idle(&mut self, error: StoreError) -> Result<(), StoreError> {
        self.heal(error, &mut [])?;
        self.recovered();
        Ok(())
    }

    /// Reopens until a commit of our own is durable; then says whether the failed round was applied. `Err` ends the store.
    pub(super) fn heal(&mut self, error: StoreError, ops: &mut [Waiting]) -> Result<Verdict, StoreError> {
        let now = self.options.clock.now().mono;
        let again = self.trouble.is_some();
        self.was_full = false;
        self.trouble.get_or_insert(now);
        self.shared.begin_heal();
        if !again {
            self.shared.tell(&StoreEvent::HealStarted { error: error.clone() });
        }
        let round = self.meta.live.round;
        let mut seen = vec![(round, Verdict::NotApplied), (round + 1, Verdict::Applied)];
        let mut last = error;
        // The first failure is tried at once; a disk that fails round after round is given time.
        let mut wait = again;
        let mut damaged = false;
        loop {
            // Nothing is written by closing: redb has latched the error. What somebody else did to the file no reopening undoes.
            if let Err(e @ StoreError::Stopped(_)) = self.shared.close_db() {
                return Err(e);
            }
            // redb, and an app's closure, may have handed it on as something else.
            if self.options.met.no_room.swap(false, Ordering::AcqRel) || matches!(last, StoreError::Full(_)) {
                self.was_full = true;
                // Nobody is refused for it yet: it may be so for a moment only.
                wait &= !self.reserve.give_up();
            }
            // Also one outside of a commit, when the file grew: what it lost is not known, and one phase does not survive it.
            if self.options.commits == Commits::OnePhase && self.options.met.fsync_failed.load(Ordering::Acquire) {
                return Err(last);
            }
            if wait {
                self.out_of_patience(&last, ops);
                if self.shared.is_closing() && self.tries >= TRIES_WHEN_CLOSING {
                    return Err(last);
                }
                self.shared.pause(self.backoff);
                self.backoff = (self.backoff * 2).min(LONGEST_PAUSE);
            }
            wait = true;
            self.tries += 1;
            match self.reopen(&mut seen) {
                Ok(verdict) => return Ok(verdict),
                Err(e @ StoreError::Stopped(_)) => return Err(e),
                // Found once it may be the disk that reads wrong; twice it is the file, which no reopening mends.
                Err(e) if is_damage(&e) && damaged => return Err(e),
                Err(e) => {
                    damaged |= is_damage(&e);
                    last = e;
                }
            }
        }
    }

    /// One try. `seen` maps every number that the file may show to what it means for the failed round: each try writes a
    /// number of its own, and a later one may find that an earlier one was applied although it had failed.
    fn reopen(&mut self, seen: &mut Vec<(u64, Verdict)>) -> Result<Verdict, StoreError> {
        let (file, found) = create::reopen(&self.options, &self.meta)?;
        match self.take_up(&file, found, seen) {
            Ok((verdict, meta)) => {
                self.meta = meta;
                self.kept.undone();
                self.file_id = self.options.place.file_id();
                self.shared.set_db(file);
                self.note();
                Ok(if on("heal-verdict-wrong") { Verdict::NotApplied } else { verdict })
            }
            Err(e) => {
                // If somebody changed the file meanwhile, that is what it stops for.
                file.close()?;
                Err(e)
            }
        }
    }
    /// The first commit on a file that was opened again.
    fn take_up(
        &self,
        file: &OpenFile,
        found: Meta,
        seen: &mut Vec<(u64, Verdict)>,
    ) -> Result<(Verdict, Meta), StoreError> {
        let Some(&(_, verdict)) = seen.iter().find(|(n, _)| *n == found.live.round) else {
            let known: Vec<u64> = seen.iter().map(|(n, _)| *n).collect();
            let why =
                format!("the file is at round {}, which this process did not write ({known:?})", found.live.round);
            return Err(StoreError::Stopped(why));
        };
        let next = seen.iter().map(|(n, _)| *n).max().unwrap_or(found.live.round) + 1;
        seen.push((next, verdict));
        // Nobody knows what became of the last round: what memory says of it is what the file says.
        let (memory, _told_at_open) = create::memory(&file.db, &found, &self.options)?;
        self.shared.memory.replace(memory);
        let tx = create::begin(&file.db, self.options.commits)?;
        let last_id = found.live.last_id.max(self.meta.live.last_id);
        let live = Live { round: found.live.round, last_id };
        let live = Write::new(&tx, &self.shared.memory, live, self.options.limits, Kept::default()).finish(next)?;
        tx.commit()?;
        Ok((verdict, Meta { live, ..found }))
    }

    /// The storage works again: what was retried is durable.
    pub(super) fn recovered(&mut self) {
        if let Some(since) = self.trouble.take() {
            self.backoff = FIRST_PAUSE;
            self.tries = 0;
            let after_ms = self.options.clock.now().mono.since(since);
            // Told while it still counts as healing: whoever stood still meanwhile can start anew before anybody looks.
            self.shared.tell(&StoreEvent::Healed { after_ms });
            self.shared.end_heal();
        }
    }

    /// After 30 s nobody is kept waiting, but every request stays where it is.
    fn out_of_patience(&mut self, error: &StoreError, ops: &mut [Waiting]) {
        let since = self.trouble.unwrap_or_default();
        if self.options.clock.now().mono.since(since) >= PATIENCE_MS {
            self.shared.give_up_waiting(error.clone());
            ops.iter_mut().for_each(Waiting::tell);
            self.groups.iter_mut().flat_map(|g| &mut g.ops).for_each(Waiting::tell);
            self.shared.tell_unknown();
        }
    }
}

/// The file itself is not what it was.
fn is_damage(e: &StoreError) -> bool {
    matches!(
        e,
        StoreError::Damaged { .. } | StoreError::Half { .. } | StoreError::Foreign { .. } | StoreError::Newer { .. }
    )
}
