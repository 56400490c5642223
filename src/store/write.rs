//! Writes of the queue's own rows inside a round. Keeps the promise that a record and its index rows move together.
//! Called by the operations of a round; a [`Change`] comes only from the rules.

use super::bits::word_of;
use super::codec::{self, CHUNK, INLINE, Pointer, Raw, SLIM, StateRow, Stored};
use super::error::StoreError;
use super::intents::memory::{Done, Memory};
use super::intents::work;
use super::own::AppTable;
use super::pack::pointer_of;
use super::read::{Held, Rows, last_of_strip, strip_of, whole_seconds};
use super::schema::{Lazy, META_EPOCH, META_LIVE, SETTING, Tables, identity_key};
use crate::model::Limits;
use crate::model::id::{JobId, KindId};
use crate::model::job::{Identity, JobRecord, JobRow, JobState, NEXT_TICKET};
use crate::model::letter::{Act, Entry};
use crate::model::time::Wall;
use crate::planted::on;
use crate::rules::{Change, LetterMove};
use redb::{AccessGuard, Key, ReadableTable, ReadableTableMetadata, WriteTransaction};
use std::borrow::Borrow;
use std::ops::Deref;
use std::time::Duration;

type Bytes = &'static [u8];

/// Jobs that failed often, and that nobody has looked at since: by number, each with its attempts.
pub const FAILED: &str = "failed/";

/// The queue's rows inside a round's transaction; reads come from [`Rows`].
pub struct Write<'t> {
    pub(super) rows: Rows<'t, WriteTransaction>,
    live: Live,
    /// The pack of the newest number, once it was found to be readable.
    looked_at: Option<u64>,
    pub(super) limits: Limits,
    /// Writes so far in this transaction, and how many there were when the operation that runs now began.
    touches: u64,
    touches_before_op: u64,
    /// What the operation that runs now wrote must be undone.
    pub(super) spoiled: bool,
    /// App tables that the closure which runs now has opened.
    pub(super) app_tables: Vec<AppTable>,
    /// The epoch, if this transaction raises it.
    pub(super) raised_epoch: Option<u32>,
    /// Closures that held the writer for long.
    pub(super) slow: Vec<(String, Duration)>,
    /// What was done to the index of intents.
    pub(super) indexed: Option<Done>,
    bytes: usize,
    scratch: Vec<u8>,
    /// From this attempt on a failed one is noted.
    note_failures: Option<u32>,
}

/// What one round leaves at hand for the next.
#[derive(Debug, Default)]
pub(super) struct Kept {
    held: Held,
    scratch: Vec<u8>,
}

impl Kept {
    /// The round was undone: what it had changed is not what the tables hold.
    pub(super) fn undone(&mut self) {
        self.held = Held::default();
    }
}

/// What every committed round rewrites: its number and the highest number handed out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Live {
    pub(super) round: u64,
    pub(super) last_id: u64,
}

impl Live {
    pub(super) fn to_bytes(self) -> Vec<u8> {
        [self.round.to_le_bytes(), self.last_id.to_le_bytes()].concat()
    }
    pub(super) fn from_bytes(bytes: &[u8]) -> Result<Self, StoreError> {
        let (round, id) = bytes.split_at_checked(8).unwrap_or_default();
        match (round.try_into(), id.try_into()) {
            (Ok(round), Ok(id)) => Ok(Self { round: u64::from_le_bytes(round), last_id: u64::from_le_bytes(id) }),
            (Err(_), _) | (_, Err(_)) => Err(StoreError::corrupt("the round's number")),
        }
    }
}

impl<'t> Deref for Write<'t> {
    type Target = Rows<'t, WriteTransaction>;
    fn deref(&self) -> &Self::Target {
        &self.rows
    }
}

impl<'t> Write<'t> {
    /// The next number, for a job or a ticket; never handed out again once its round is durable.
    ///
    /// None is of a pack that cannot be read: a new job's record would have to go into it, and nothing could be enqueued any more.
    pub fn next_id(&mut self) -> JobId {
        let next = JobId(self.live.last_id + 1);
        let (strip, _) = strip_of(next);
        let damaged =
            self.looked_at != Some(strip) && matches!(self.rows.record(next), Err(StoreError::Corrupt { .. }));
        self.live.last_id = if damaged { last_of_strip(next).0 + 1 } else { next.0 };
        let id = JobId(self.live.last_id);
        self.looked_at = Some(strip_of(id).0);
        id
    }
    /// Writes a new job: its row, its record and its index rows. From now on it is the job of its intent.
    pub fn insert(&mut self, row: &JobRow, change: &Change) -> Result<(), StoreError> {
        if row.undoes.is_none() {
            // That of an undo job was checked when it was stored with its effect; the limit may be another one today.
            at_most("the payload", row.payload.len(), self.limits.payload)?;
        }
        at_most("the job's key", row.key.as_str().len(), self.limits.key)?;
        self.check(change)?;
        self.set_job(change.record().id, row)?;
        self.rows.memory.add(row.kind, row.key.as_str(), change.record().id.0);
        self.put(change)
    }
    /// Writes a decision: the record, its index rows, effects, memo, history and letter. One that orders an undo job is refused: a job
    /// would wait for ever for what was never enqueued.
    pub fn put(&mut self, change: &Change) -> Result<(), StoreError> {
        if change.undo().is_some() {
            let id = change.record().id;
            return Err(StoreError::Bug(format!("job {id} orders an undo job, and nobody enqueues it")));
        }
        self.put_with_order(change)
    }
    /// The same for a caller that enqueues the undo job, if one is ordered, in this transaction.
    pub fn put_with_order(&mut self, change: &Change) -> Result<(), StoreError> {
        self.check(change)?;
        self.open_strip(change.record().id)?;
        self.touch();
        let mut record = change.record().clone();
        let id = record.id;
        let prune = match change.before().and_then(JobState::end) {
            // Over is over: late news about an ended job says nothing about how long its rows are kept.
            Some(_) => {
                let was = self.rows.state_row(id)?.and_then(|s| s.prune);
                // Out of the trash: nothing of it may go any more.
                let kept = was.filter(|_| record.state.end().is_some());
                self.move_prune_row(id, was, kept)?;
                kept
            }
            None => {
                self.move_prune_row(id, None, change.prune())?;
                change.prune()
            }
        };
        if change.before() != Some(&record.state) {
            if let Some(before) = change.before() {
                self.unindex(&record, before)?;
            }
            self.take_ticket(&mut record, change.before().is_none());
            self.index(&record)?;
        }
        for effect in change.effects() {
            self.set(|t| &mut t.effect, (id.0, effect.id.name.as_str(), effect.id.part.as_str()), effect)?;
        }
        if let Some(memo) = change.memo() {
            self.set(|t| &mut t.memo, (id.0, memo.name.as_str()), memo)?;
        }
        for name in change.forget() {
            self.unset(|t| &mut t.memo, (id.0, name.as_str()))?;
        }
        for entry in change.journal() {
            self.append(&mut record, entry)?;
            if entry.is_of_a_person() {
                self.note_act(&record, entry)?;
            }
        }
        match change.letter() {
            LetterMove::Keep => {}
            LetterMove::Put(letter) => {
                // Somebody has to be told of a new one, also if this process dies before it can: noted in the same commit.
                if change.brings_letter() {
                    self.rows.tables.untold.write(self.rows.tx)?.insert(id.0, record.revision)?;
                }
                self.set(|t| &mut t.letter, id.0, letter)?;
            }
            LetterMove::Remove => {
                self.rows.tables.untold.write(self.rows.tx)?.remove(id.0)?;
                self.unset(|t| &mut t.letter, id.0)?;
            }
        }
        // Somebody has to hear of it, also if this process dies before it can say so.
        if let (Some(from), Some(attempt)) = (self.note_failures, change.failed_attempt())
            && attempt >= from
        {
            self.put_meta(&format!("{FAILED}{}", id.0), &attempt.to_le_bytes())?;
        }
        self.set_state(id, StateRow { record, prune })
    }
    /// Puts a new job's row beside those of its round.
    fn set_job(&mut self, id: JobId, row: &JobRow) -> Result<(), StoreError> {
        self.encode(row, INLINE)?;
        self.rows.held.jobs.append(id.0, &self.scratch)
    }
    fn set_state(&mut self, id: JobId, state: StateRow) -> Result<(), StoreError> {
        self.encode(&state, SLIM)?;
        let (base, number) = strip_of(id);
        let Rows { tx, tables, held, .. } = &mut self.rows;
        let pack = held.states.edit(tables.state.read(tx)?, base)?;
        let old = pointer_of(pack.get(number));
        pack.set(number, &self.scratch);
        held.recent.put(state);
        old.map_or(Ok(()), |p| self.remove_chunks(p))
    }
    /// Before the first write about a job: a pack that cannot be read refuses all of it, whatever is at hand of the job.
    ///
    /// # Errors
    /// `Corrupt` if the job's record could not be written back.
    pub fn open_strip(&mut self, id: JobId) -> Result<(), StoreError> {
        let Rows { tx, tables, held, .. } = &mut self.rows;
        held.states.edit(tables.state.read(tx)?, strip_of(id).0).map(|_| ())
    }
    fn remove_job(&mut self, id: JobId) -> Result<(), StoreError> {
        self.touch();
        let Rows { tx, tables, held, .. } = &mut self.rows;
        let table = tables.job.read(tx)?;
        let Some(base) = held.jobs.nearest(table, id.0)? else { return Ok(()) };
        let Ok(number) = u32::try_from(id.0 - base) else { return Ok(()) };
        let pack = held.jobs.edit(table, base)?;
        let old = pointer_of(pack.get(number));
        pack.remove(number);
        old.map_or(Ok(()), |p| self.remove_chunks(p))
    }
    fn remove_state(&mut self, id: JobId) -> Result<(), StoreError> {
        self.touch();
        self.rows.held.recent.remove(id);
        let (base, number) = strip_of(id);
        let Rows { tx, tables, held, .. } = &mut self.rows;
        let pack = held.states.edit(tables.state.read(tx)?, base)?;
        let old = pointer_of(pack.get(number));
        pack.remove(number);
        old.map_or(Ok(()), |p| self.remove_chunks(p))
    }
    /// Remembers an intent whose job is about to be pruned, and notes when the memory may go.
    pub fn remember(&mut self, kind: KindId, key: &str, memory: &Identity) -> Result<(), StoreError> {
        let intent = identity_key(kind, key);
        if on("intent-forgotten") {
            return Ok(());
        }
        self.set(|t| &mut t.id, intent.as_slice(), memory)?;
        if let Some(until) = memory.until {
            self.rows.tables.tomb.write(self.rows.tx)?.insert((until.0, intent.as_slice()), ())?;
        }
        Ok(())
    }
    /// Forgets that memory, and the note.
    pub fn forget(&mut self, kind: KindId, key: &str, memory: &Identity) -> Result<(), StoreError> {
        self.unset(|t| &mut t.id, identity_key(kind, key).as_slice())?;
        memory.until.map_or(Ok(()), |until| self.remove_tomb(until, kind, key))
    }
    /// Keeps what `finish` left behind.
    pub fn put_output(&mut self, id: JobId, value: Vec<u8>) -> Result<(), StoreError> {
        at_most("the output", value.len(), self.limits.payload)?;
        self.set(|t| &mut t.output, id.0, &Raw(value))
    }
    /// The number of a kind, new or existing.
    pub fn add_kind(&mut self, name: &str) -> Result<KindId, StoreError> {
        if let Some(kind) = self.rows.kind(name)? {
            return Ok(kind);
        }
        at_most("the kind's name", name.len(), self.limits.name)?;
        self.touch();
        let kinds = self.rows.tables.kind.write(self.rows.tx)?;
        // Kinds are never removed, so their count is the last number.
        let next = u32::try_from(kinds.len()?).unwrap_or(u32::MAX).saturating_add(1);
        kinds.insert(name, next)?;
        Ok(KindId(next))
    }
    /// Removes everything about an ended job except its identity.
    pub fn prune(&mut self, id: JobId) -> Result<(), StoreError> {
        let Some(row) = self.rows.state_row(id)? else { return Ok(()) };
        if !matches!(row.record.state, JobState::Ended { .. }) {
            return Err(StoreError::Bug(format!("job {id} was to be pruned but has not ended")));
        }
        self.open_strip(id)?;
        self.move_prune_row(id, row.prune, None)?;
        self.remove_job(id)?;
        self.remove_state(id)?;
        self.unset(|t| &mut t.output, id.0)?;
        self.unset(|t| &mut t.letter, id.0)?;
        for (name, part) in self.effect_keys(id)? {
            self.unset(|t| &mut t.effect, (id.0, name.as_str(), part.as_str()))?;
        }
        for name in self.memo_keys(id)? {
            self.unset(|t| &mut t.memo, (id.0, name.as_str()))?;
        }
        for n in 0..row.record.journal {
            self.unset(|t| &mut t.journal, (id.0, n))?;
        }
        Ok(())
    }
    /// Removes a note of when the memory of an intent may go.
    pub fn remove_tomb(&mut self, until: Wall, kind: KindId, key: &str) -> Result<(), StoreError> {
        self.touch();
        self.rows.tables.tomb.write(self.rows.tx)?.remove((until.0, identity_key(kind, key).as_slice()))?;
        Ok(())
    }
    /// Writes one of the engine's own settings.
    pub fn put_meta(&mut self, name: &str, value: &[u8]) -> Result<(), StoreError> {
        self.set_own_meta(&format!("{SETTING}{name}"), value)
    }
    /// Removes one of the engine's own settings.
    pub fn remove_meta(&mut self, name: &str) -> Result<(), StoreError> {
        self.unset(|t| &mut t.meta, format!("{SETTING}{name}").as_str())
    }
    /// Somebody was told of this letter; nothing changes if it is another one by now.
    pub fn told(&mut self, id: JobId, revision: u32) -> Result<(), StoreError> {
        let untold = self.rows.tables.untold.write(self.rows.tx)?;
        if untold.get(id.0)?.is_some_and(|r| r.value() == revision) {
            untold.remove(id.0)?;
            self.touch();
        }
        Ok(())
    }
    /// Says that app code failed after it may have written: what this operation wrote is undone. If other operations share
    /// the round they are run again without it, and its answer is that of its own last run.
    pub fn fail_app(&mut self) {
        self.spoiled = true;
    }
    /// A new epoch, durable with this round: for token counters near their end.
    pub fn raise_epoch(&mut self) -> Result<u32, StoreError> {
        let old = self.rows.own_meta(META_EPOCH)?.unwrap_or_default();
        let old = old.try_into().map(u32::from_le_bytes).map_err(|_| StoreError::corrupt("the epoch"))?;
        let next = old.saturating_add(1);
        self.set_own_meta(META_EPOCH, &next.to_le_bytes())?;
        self.raised_epoch = Some(next);
        Ok(next)
    }
    /// Whether anything was written in this transaction.
    pub fn is_dirty(&self) -> bool {
        self.touches > 0
    }

    pub(super) fn new(tx: &'t WriteTransaction, memory: &'t Memory, live: Live, limits: Limits, kept: Kept) -> Self {
        let Kept { held, scratch } = kept;
        Self {
            rows: Rows::newest(tx, memory, held),
            live,
            looked_at: None,
            limits,
            touches: 0,
            touches_before_op: 0,
            spoiled: false,
            app_tables: Vec::new(),
            raised_epoch: None,
            slow: Vec::new(),
            indexed: None,
            bytes: 0,
            scratch,
            note_failures: None,
        }
    }
    /// Notes failed attempts from this one on.
    pub(super) fn noting(self, from: Option<u32>) -> Self {
        Self { note_failures: from, ..self }
    }
    /// Forgets what is known of the operation before.
    pub(super) fn begin_op(&mut self) {
        self.touches_before_op = self.touches;
        self.spoiled = false;
    }
    /// Whether the operation that runs now has written.
    pub(super) fn op_is_dirty(&self) -> bool {
        self.touches != self.touches_before_op
    }
    /// Whether anything was written before it.
    pub(super) fn dirty_before_op(&self) -> bool {
        self.touches_before_op > 0
    }
    /// How many writes there were in this transaction.
    pub fn touches(&self) -> u64 {
        self.touches
    }
    pub(super) fn touch(&mut self) {
        self.touches += 1;
    }
    /// Bytes of records written in this transaction.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }
    /// Makes this round the newest; the last write of every round.
    pub(super) fn finish(&mut self, round: u64) -> Result<Live, StoreError> {
        // Before the packs: what the index takes for gone was gone before this round.
        self.indexed = work::work(&mut self.rows, &mut self.live.last_id)?;
        self.flush()?;
        self.live.round = round;
        self.set_own_meta(META_LIVE, &self.live.to_bytes())?;
        Ok(self.live)
    }
    /// Writes what the packed tables hold back.
    fn flush(&mut self) -> Result<(), StoreError> {
        let Rows { tx, tables, held, .. } = &mut self.rows;
        // A table that nothing of is written stays closed.
        if held.jobs.is_dirty() {
            held.jobs.flush(tables.job.write(tx)?, &mut self.scratch)?;
        }
        if held.states.is_dirty() {
            held.states.flush(tables.state.write(tx)?, &mut self.scratch)?;
        }
        if held.ready.is_dirty() {
            held.ready.flush(tables.ready.write(tx)?)?;
        }
        if held.run.is_dirty() {
            held.run.flush(tables.run.write(tx)?)?;
        }
        if held.prune.is_dirty() {
            held.prune.flush(tables.prune.write(tx)?)?;
        }
        Ok(())
    }
    /// Closes the tables; what is left is for the next round if this one is committed, else [`Kept::undone`].
    pub(super) fn into_kept(self) -> Kept {
        Kept { held: self.rows.held.for_the_next_round(), scratch: self.scratch }
    }
    pub(super) fn set_own_meta(&mut self, name: &str, value: &[u8]) -> Result<(), StoreError> {
        self.set(|t| &mut t.meta, name, &Raw(value.to_vec()))
    }

    /// Before the first write of a change, so that a refused one leaves nothing behind.
    fn check(&self, change: &Change) -> Result<(), StoreError> {
        if let Some(memo) = change.memo() {
            at_most("the step's name", memo.name.len(), self.limits.name)?;
            at_most("the step's value", memo.value.len(), self.limits.payload)?;
        }
        Ok(())
    }
    /// A job that becomes ready goes behind those that are; a new job's own number is its ticket.
    fn take_ticket(&mut self, record: &mut JobRecord, new: bool) {
        if record.state == (JobState::Ready { ticket: NEXT_TICKET }) {
            let ticket = if new { record.id.0 } else { self.next_id().0 };
            record.state = JobState::Ready { ticket };
        }
    }
    fn index(&mut self, record: &JobRecord) -> Result<(), StoreError> {
        let Rows { tx, tables, held, .. } = &mut self.rows;
        let id = record.id.0;
        match &record.state {
            JobState::Ready { ticket } if *ticket == id => {
                held.ready.put(tables.ready.read(tx)?, (record.kind.0, record.priority, word_of(id)), id, true)?;
            }
            JobState::Ready { ticket } => {
                tables.again.write(tx)?.insert((record.kind.0, record.priority, *ticket, id), ())?;
            }
            JobState::Delayed { due, .. } | JobState::Waiting { due, .. } => {
                tables.timer.write(tx)?.insert((due.0, id), ())?;
            }
            JobState::Running { .. } => {
                held.run.put(tables.run.read(tx)?, word_of(id), id, true)?;
            }
            JobState::Compensating { .. } => {
                tables.undo.write(tx)?.insert(id, ())?;
            }
            JobState::NeedsDecision | JobState::Dead | JobState::Ended { .. } => {}
        }
        Ok(())
    }
    /// An index row that should be there and is not means that the index lies about this job.
    fn unindex(&mut self, record: &JobRecord, before: &JobState) -> Result<(), StoreError> {
        if on("index-row-left") {
            return Ok(());
        }
        let Rows { tx, tables, held, .. } = &mut self.rows;
        let id = record.id.0;
        let found = match before {
            JobState::Ready { ticket } if *ticket == id => {
                held.ready.put(tables.ready.read(tx)?, (record.kind.0, record.priority, word_of(id)), id, false)?
            }
            JobState::Ready { ticket } => {
                tables.again.write(tx)?.remove((record.kind.0, record.priority, *ticket, id))?.is_some()
            }
            JobState::Delayed { due, .. } | JobState::Waiting { due, .. } => {
                tables.timer.write(tx)?.remove((due.0, id))?.is_some()
            }
            JobState::Running { .. } => held.run.put(tables.run.read(tx)?, word_of(id), id, false)?,
            JobState::Compensating { .. } => tables.undo.write(tx)?.remove(id)?.is_some(),
            JobState::NeedsDecision | JobState::Dead | JobState::Ended { .. } => true,
        };
        if found { Ok(()) } else { Err(StoreError::corrupt(format!("job {id} has no index row for {before:?}"))) }
    }
    fn move_prune_row(&mut self, id: JobId, from: Option<Wall>, to: Option<Wall>) -> Result<(), StoreError> {
        if from == to {
            return Ok(());
        }
        self.touch();
        let Rows { tx, tables, held, .. } = &mut self.rows;
        let table = tables.prune.read(tx)?;
        for (at, member) in [(from, false), (to, true)] {
            if let Some(at) = at {
                held.prune.put(table, (whole_seconds(at), word_of(id.0)), id.0, member)?;
            }
        }
        Ok(())
    }
    /// Appends to the history; claims given back for one reason in a row stay one entry, so that a job that snoozes for a
    /// year has a short history.
    fn append(&mut self, record: &mut JobRecord, entry: &Entry) -> Result<(), StoreError> {
        let id = record.id;
        if let Entry::GivenBack { why, count, at } = entry
            && let Some(last) = record.journal.checked_sub(1)
        {
            let key = (id.0, last);
            let row = self.rows.tables.journal.read(self.rows.tx)?.get(key)?;
            let newest: Option<Entry> =
                row.map(|v| self.rows.value(v.value(), &|| format!("history of job {id}"))).transpose()?;
            if let Some(Entry::GivenBack { why: before, count: n, .. }) = newest
                && before == *why
            {
                let merged = Entry::GivenBack { why: before, count: n.saturating_add(*count), at: *at };
                return self.set(|t| &mut t.journal, key, &merged);
            }
        }
        self.set(|t| &mut t.journal, (id.0, record.journal), entry)?;
        record.journal = record.journal.saturating_add(1);
        Ok(())
    }
    /// Who did what stays known when the job's rows are gone.
    fn note_act(&mut self, record: &JobRecord, entry: &Entry) -> Result<(), StoreError> {
        let key = match self.rows.job(record.id) {
            // What a person did is noted all the same.
            Err(StoreError::Corrupt { .. }) => String::new(),
            row => row?.map_or_else(String::new, |row| row.key.to_string()),
        };
        let kind = self.rows.kinds()?.into_iter().find(|(id, _)| *id == record.kind);
        let kind = kind.map_or_else(String::new, |(_, name)| name);
        let number = self.next_id().0;
        self.set(|t| &mut t.act, number, &Act { job: Some(record.id), kind, key, entry: entry.clone() })
    }
    fn effect_keys(&self, id: JobId) -> Result<Vec<(String, String)>, StoreError> {
        let Rows { tx, tables, .. } = &self.rows;
        let rows = tables.effect.read(tx)?.range((id.0, "", "")..(id.0.saturating_add(1), "", ""))?;
        rows.map(|row| {
            let key = row?.0;
            let (_, name, part) = key.value();
            Ok((name.to_owned(), part.to_owned()))
        })
        .collect()
    }
    fn memo_keys(&self, id: JobId) -> Result<Vec<String>, StoreError> {
        let Rows { tx, tables, .. } = &self.rows;
        let rows = tables.memo.read(tx)?.range((id.0, "")..(id.0.saturating_add(1), ""))?;
        rows.map(|row| Ok(row?.0.value().1.to_owned())).collect()
    }
    /// Writes one value; a long one in chunks. Chunks of the value that was there before are removed.
    pub(super) fn set<'k, K: Key + 'static, T: Stored>(
        &mut self,
        table: for<'a> fn(&'a mut Tables<'t, WriteTransaction>) -> &'a mut Lazy<'t, WriteTransaction, K, Bytes>,
        key: impl Borrow<K::SelfType<'k>>,
        value: &T,
    ) -> Result<(), StoreError> {
        self.encode(value, INLINE)?;
        let Rows { tx, tables, .. } = &mut self.rows;
        let old = table(tables).write(tx)?.insert(key, self.scratch.as_slice())?;
        let old = chunks_of(old);
        old.map_or(Ok(()), |p| self.remove_chunks(p))
    }
    pub(super) fn unset<'k, K: Key + 'static>(
        &mut self,
        table: for<'a> fn(&'a mut Tables<'t, WriteTransaction>) -> &'a mut Lazy<'t, WriteTransaction, K, Bytes>,
        key: impl Borrow<K::SelfType<'k>>,
    ) -> Result<(), StoreError> {
        self.touch();
        let Rows { tx, tables, .. } = &mut self.rows;
        let old = table(tables).write(tx)?.remove(key)?;
        let old = chunks_of(old);
        old.map_or(Ok(()), |p| self.remove_chunks(p))
    }
    /// Encodes a value into the buffer; in place of one that is longer than this stands the pointer to its chunks.
    fn encode<T: Stored>(&mut self, value: &T, longest: usize) -> Result<(), StoreError> {
        self.touch();
        codec::encode(value, &mut self.scratch)?;
        self.bytes += self.scratch.len();
        if self.scratch.len() > longest { self.write_chunks() } else { Ok(()) }
    }
    /// Moves the encoded value from the buffer to the chunk table and leaves a pointer in its place.
    fn write_chunks(&mut self) -> Result<(), StoreError> {
        let id = self.next_id().0;
        let pointer = Pointer { id, len: self.scratch.len() };
        let chunk = self.rows.tables.chunk.write(self.rows.tx)?;
        for (n, piece) in (0u32..).zip(self.scratch.chunks(CHUNK)) {
            chunk.insert((id, n), piece)?;
        }
        codec::encode(&pointer, &mut self.scratch)
    }
    fn remove_chunks(&mut self, pointer: Pointer) -> Result<(), StoreError> {
        let pieces = u32::try_from(pointer.len.div_ceil(CHUNK)).unwrap_or(u32::MAX);
        let chunk = self.rows.tables.chunk.write(self.rows.tx)?;
        for n in 0..pieces {
            chunk.remove((pointer.id, n))?;
        }
        Ok(())
    }
}

/// The chunks of a value that was replaced; a damaged one has none that could be found.
fn chunks_of(old: Option<AccessGuard<'_, Bytes>>) -> Option<Pointer> {
    old.and_then(|v| codec::pointer(v.value()).ok().flatten())
}

pub(super) fn at_most(what: &'static str, len: usize, limit: usize) -> Result<(), StoreError> {
    if len <= limit { Ok(()) } else { Err(StoreError::TooBig { what, len, limit }) }
}
