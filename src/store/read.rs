//! Reads of the queue's own rows, the same words inside a round and in a read transaction. Keeps the promise that a damaged
//! record is `Corrupt`, never a panic and never "not there". Called by the engine, the desk and the operations of a round.

use super::bits::{Bits, numbers, word_of};
use super::codec::{self, Pointer, Raw, StateRow, Stored};
use super::error::StoreError;
use super::intents::memory::Memory;
use super::pack::{Packs, STRIP};
use super::schema::{META_LIVE, SETTING, Source, Tables, split_identity_key};
use crate::model::effect::EffectRecord;
use crate::model::id::{EffectId, JobId, KindId, Token};
use crate::model::job::{JobRecord, JobRow, JobState, Memo};
use crate::model::letter::{Act, Entry, LetterRecord};
use crate::model::time::Wall;
use redb::{ReadTransaction, ReadableTable, ReadableTableMetadata};
use std::cell::RefCell;
use std::fmt::Display;
use std::ops::{Bound, RangeBounds, RangeInclusive};

/// The queue's rows as one transaction sees them; [`View`] in a read transaction, [`Write`](super::Write) dereferences to it.
pub struct Rows<'t, S: Source> {
    pub(super) tx: &'t S,
    pub(super) tables: Tables<'t, S>,
    pub(super) held: Held,
    /// The index of intents, in memory.
    pub(super) memory: &'t Memory,
    pub(super) sight: Sight,
}

/// How a transaction stands to what is in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sight {
    /// It is the writer's: both say the same.
    Newest,
    /// Memory may be later, never earlier.
    Snapshot,
}

/// What this transaction has read or changed of the packed tables.
#[derive(Debug, Default)]
pub(super) struct Held {
    /// What was asked.
    pub(super) jobs: Packs,
    /// Where jobs stand.
    pub(super) states: Packs,
    pub(super) ready: Bits<(u32, u8, u64)>,
    pub(super) run: Bits<u64>,
    pub(super) prune: Bits<(u64, u64)>,
    /// Records that were written last.
    pub(super) recent: Recent,
    /// Kinds never change their number.
    kinds: RefCell<Vec<(String, KindId)>>,
}

/// Records as they were written last: what is claimed ends soon. One place for each, the newest of those that share it.
#[derive(Debug, Default)]
pub(super) struct Recent {
    places: Vec<Option<StateRow>>,
}

/// How many places; more than are ever in flight.
const RECENT: u64 = 2_048;

impl Recent {
    fn place(id: JobId) -> usize {
        usize::try_from(id.0 % RECENT).unwrap_or_default()
    }
    fn get(&self, id: JobId) -> Option<&StateRow> {
        self.places.get(Self::place(id))?.as_ref().filter(|row| row.record.id == id)
    }
    pub(super) fn put(&mut self, row: StateRow) {
        if self.places.is_empty() {
            self.places.resize_with(Self::place(JobId(RECENT - 1)) + 1, || None);
        }
        let place = Self::place(row.record.id);
        self.places[place] = Some(row);
    }
    pub(super) fn remove(&mut self, id: JobId) {
        if let Some(place) =
            self.places.get_mut(Self::place(id)).filter(|p| p.as_ref().is_some_and(|r| r.record.id == id))
        {
            *place = None;
        }
    }
}

impl Held {
    /// What of it is still true in the next round, if this one is committed.
    pub(super) fn for_the_next_round(mut self) -> Self {
        self.jobs.trim();
        self.states.trim();
        Self { jobs: self.jobs, states: self.states, recent: self.recent, kinds: self.kinds, ..Self::default() }
    }
}

/// The pack of a job's record, and its place there.
pub(super) fn strip_of(id: JobId) -> (u64, u32) {
    (id.0 / STRIP, u32::try_from(id.0 % STRIP).unwrap_or_default())
}

/// The last job of the pack that this job's record is in.
pub(super) fn last_of_strip(id: JobId) -> JobId {
    JobId(id.0 | (STRIP - 1))
}

/// When rows may go is kept in whole seconds, never earlier: jobs that end together share a row.
pub(super) fn whole_seconds(at: Wall) -> u64 {
    at.0.div_ceil(1_000).saturating_mul(1_000)
}

/// The queue's rows in a read transaction.
pub type View<'t> = Rows<'t, ReadTransaction>;

/// How many rows there are; for tests.
#[cfg(feature = "testkit")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Depth {
    /// Jobs whose rows are kept.
    pub jobs: u64,
    /// Ready ones.
    pub ready: u64,
    /// Delayed and waiting ones.
    pub timers: u64,
    /// Running ones.
    pub running: u64,
    /// Dead ones and those that need a decision.
    pub letters: u64,
    /// Intents that are known, by a job or by their memory.
    pub identities: u64,
}

impl<'t, S: Source> Rows<'t, S> {
    pub(super) fn new(tx: &'t S, memory: &'t Memory) -> Self {
        Self { tx, tables: Tables::new(), held: Held::default(), memory, sight: Sight::Snapshot }
    }
    /// In the transaction of the one writer, with what an earlier one has left at hand.
    pub(super) fn newest(tx: &'t S, memory: &'t Memory, held: Held) -> Self {
        Self { held, sight: Sight::Newest, ..Self::new(tx, memory) }
    }

    /// What was asked.
    pub fn job(&self, id: JobId) -> Result<Option<JobRow>, StoreError> {
        let table = self.tables.job.read(self.tx)?;
        let Some(base) = self.held.jobs.nearest(table, id.0)? else { return Ok(None) };
        let Ok(number) = u32::try_from(id.0 - base) else { return Ok(None) };
        self.held.jobs.look(table, base, number, |v| self.value(v, &|| format!("row of job {id}")))
    }
    /// Where a job stands.
    pub fn record(&self, id: JobId) -> Result<Option<JobRecord>, StoreError> {
        Ok(self.state_row(id)?.map(|s| s.record))
    }
    pub(super) fn state_row(&self, id: JobId) -> Result<Option<StateRow>, StoreError> {
        if let Some(row) = self.held.recent.get(id) {
            return Ok(Some(row.clone()));
        }
        let (base, number) = strip_of(id);
        let table = self.tables.state.read(self.tx)?;
        let found = self.held.states.look(table, base, number, |v| self.value(v, &|| format!("record of job {id}")))?;
        let Some(state): Option<StateRow> = found else { return Ok(None) };
        // A row that was written under another number is damage, not another job.
        if state.record.id != id {
            return Err(StoreError::corrupt(format!("record of job {id} says it is job {}", state.record.id)));
        }
        Ok(Some(state))
    }
    /// All effect records of a job, by name and part. `Corrupt` if there are not as many as its record counts: a missing one
    /// must never look like "not done".
    pub fn effects(&self, id: JobId) -> Result<Vec<EffectRecord>, StoreError> {
        let mut found = Vec::new();
        for row in self.tables.effect.read(self.tx)?.range((id.0, "", "")..(id.0.saturating_add(1), "", ""))? {
            let (_, v) = row?;
            found.push(self.value::<EffectRecord>(v.value(), &|| format!("an effect record of job {id}"))?);
        }
        let counted = self.record(id)?.map_or(0, |r| r.effects);
        if u32::try_from(found.len()) != Ok(counted) {
            let n = found.len();
            return Err(StoreError::corrupt(format!("job {id} counts {counted} effect records, {n} are there")));
        }
        Ok(found)
    }
    /// One effect record.
    pub fn effect(&self, id: JobId, effect: &EffectId) -> Result<Option<EffectRecord>, StoreError> {
        let key = (id.0, effect.name.as_str(), effect.part.as_str());
        let row = self.tables.effect.read(self.tx)?.get(key)?;
        row.map(|v| self.value(v.value(), &|| format!("effect {effect} of job {id}"))).transpose()
    }
    /// A remembered step or commit.
    pub fn memo(&self, id: JobId, name: &str) -> Result<Option<Memo>, StoreError> {
        let row = self.tables.memo.read(self.tx)?.get((id.0, name))?;
        row.map(|v| self.value(v.value(), &|| format!("step {name} of job {id}"))).transpose()
    }
    /// All remembered steps and commits of a job, by name.
    pub fn memos(&self, id: JobId) -> Result<Vec<Memo>, StoreError> {
        let rows = self.tables.memo.read(self.tx)?.range((id.0, "")..(id.0.saturating_add(1), ""))?;
        let found: Vec<Memo> =
            rows.map(|row| self.value(row?.1.value(), &|| format!("a step of job {id}"))).collect::<Result<_, _>>()?;
        // One that is missing would run again, and with it what the app committed.
        let known = self.record(id)?.map_or(0, |r| r.memos);
        if u64::try_from(found.len()).unwrap_or(u64::MAX) < u64::from(known) {
            let what = format!("{} of {known} steps and commits of job {id}", found.len());
            return Err(StoreError::Corrupt { what: format!("only {what} are there") });
        }
        Ok(found)
    }
    /// What `finish` left behind.
    pub fn output(&self, id: JobId) -> Result<Option<Vec<u8>>, StoreError> {
        let row = self.tables.output.read(self.tx)?.get(id.0)?;
        row.map(|v| Ok(self.value::<Raw>(v.value(), &|| format!("output of job {id}"))?.0)).transpose()
    }
    /// The history of a job, oldest first.
    pub fn journal(&self, id: JobId) -> Result<Vec<Entry>, StoreError> {
        let rows = self.tables.journal.read(self.tx)?.range((id.0, 0)..=(id.0, u32::MAX))?;
        rows.map(|row| self.value(row?.1.value(), &|| format!("history of job {id}"))).collect()
    }
    /// A job's letter.
    pub fn letter(&self, id: JobId) -> Result<Option<LetterRecord>, StoreError> {
        let row = self.tables.letter.read(self.tx)?.get(id.0)?;
        row.map(|v| self.value(v.value(), &|| format!("letter of job {id}"))).transpose()
    }
    /// The letters after this job, by job, a page at a time.
    pub fn letters(&self, after: Option<JobId>, at_most: usize) -> Result<Vec<(JobId, LetterRecord)>, StoreError> {
        let from = after.map_or(Bound::Unbounded, |id| Bound::Excluded(id.0));
        let rows = self.tables.letter.read(self.tx)?.range((from, Bound::Unbounded))?;
        rows.take(at_most)
            .map(|row| {
                let (id, v) = row?;
                let id = JobId(id.value());
                Ok((id, self.value(v.value(), &|| format!("letter of job {id}"))?))
            })
            .collect()
    }
    /// Whose letters these are, without reading them: a damaged one must not hide the others.
    pub fn letter_ids(&self, after: Option<JobId>, at_most: usize) -> Result<Vec<JobId>, StoreError> {
        let from = after.map_or(Bound::Unbounded, |id| Bound::Excluded(id.0));
        let rows = self.tables.letter.read(self.tx)?.range((from, Bound::Unbounded))?;
        rows.take(at_most).map(|row| Ok(JobId(row?.0.value()))).collect()
    }
    /// Letters that nobody is known to have been told of, after this job: each with the revision that brought it.
    pub fn untold(&self, after: Option<JobId>, at_most: usize) -> Result<Vec<(JobId, u32)>, StoreError> {
        let from = after.map_or(Bound::Unbounded, |id| Bound::Excluded(id.0));
        let rows = self.tables.untold.read(self.tx)?.range((from, Bound::Unbounded))?;
        rows.take(at_most).map(|row| row.map(|(id, r)| (JobId(id.value()), r.value())).map_err(Into::into)).collect()
    }
    /// The revision that brought this job's letter, while nobody is known to have been told of it.
    pub fn untold_revision(&self, id: JobId) -> Result<Option<u32>, StoreError> {
        Ok(self.tables.untold.read(self.tx)?.get(id.0)?.map(|r| r.value()))
    }
    /// How many those are, without a walk.
    pub fn untold_count(&self) -> Result<u64, StoreError> {
        Ok(self.tables.untold.read(self.tx)?.len()?)
    }
    /// The number of a kind.
    pub fn kind(&self, name: &str) -> Result<Option<KindId>, StoreError> {
        let known = self.held.kinds.borrow().iter().find(|(n, _)| n == name).map(|(_, id)| *id);
        if known.is_some() {
            return Ok(known);
        }
        let found = self.tables.kind.read(self.tx)?.get(name)?.map(|v| KindId(v.value()));
        if let Some(id) = found {
            self.held.kinds.borrow_mut().push((name.to_owned(), id));
        }
        Ok(found)
    }
    /// All kinds ever seen in this file.
    pub fn kinds(&self) -> Result<Vec<(KindId, String)>, StoreError> {
        let rows = self.tables.kind.read(self.tx)?.iter()?;
        rows.map(|row| row.map(|(name, id)| (KindId(id.value()), name.value().to_owned())).map_err(Into::into))
            .collect()
    }
    /// The first ready jobs of a kind, in order: priority, ticket, job.
    pub fn ready(&self, kind: KindId, at_most: usize) -> Result<Vec<(u8, u64, JobId)>, StoreError> {
        let mut found = Vec::new();
        // Those that came back and those that never ran are two lists, each in order.
        for row in self.tables.again.read(self.tx)?.range(came_back(kind))?.take(at_most) {
            let (_, priority, ticket, job) = row?.0.value();
            found.push((priority, ticket, JobId(job)));
        }
        let back = found.len();
        self.held.ready.scan(self.tables.ready.read(self.tx)?, ready_words(kind), |(_, priority, word), bits| {
            found.extend(numbers(word, bits).map(|id| (priority, id, JobId(id))));
            found.len() - back < at_most
        })?;
        if back > 0 {
            found.sort_unstable();
        }
        found.truncate(at_most);
        Ok(found)
    }
    /// How many jobs of a kind are ready.
    pub fn ready_count(&self, kind: KindId) -> Result<u64, StoreError> {
        let mut n = self.held.ready.count(self.tables.ready.read(self.tx)?, ready_words(kind))?;
        for row in self.tables.again.read(self.tx)?.range(came_back(kind))? {
            row?;
            n += 1;
        }
        Ok(n)
    }
    /// Delayed and waiting jobs that are due before this instant, earliest first.
    pub fn due(&self, before: Wall, at_most: usize) -> Result<Vec<(Wall, JobId)>, StoreError> {
        let rows = self.tables.timer.read(self.tx)?.range(..(before.0, 0))?;
        rows.take(at_most).map(|row| Ok(timed(row?.0.value()))).collect()
    }
    /// Delayed and waiting jobs after this one (exclusive), earliest first.
    pub fn timers(&self, after: (Wall, JobId), at_most: usize) -> Result<Vec<(Wall, JobId)>, StoreError> {
        let from = Bound::Excluded((after.0.0, after.1.0));
        let rows = self.tables.timer.read(self.tx)?.range((from, Bound::Unbounded))?;
        rows.take(at_most).map(|row| Ok(timed(row?.0.value()))).collect()
    }
    /// Ended jobs whose rows may go before this instant, earliest first.
    pub fn prunable(&self, before: Wall, at_most: usize) -> Result<Vec<(Wall, JobId)>, StoreError> {
        self.ending(..(before.0, 0), (Wall(0), JobId(0)), at_most)
    }
    fn ending(
        &self,
        range: impl RangeBounds<(u64, u64)> + Clone,
        after: (Wall, JobId),
        at_most: usize,
    ) -> Result<Vec<(Wall, JobId)>, StoreError> {
        let mut found = Vec::new();
        self.held.prune.scan(self.tables.prune.read(self.tx)?, range, |(when, word), bits| {
            found.extend(numbers(word, bits).map(|id| (Wall(when), JobId(id))).filter(|row| *row > after));
            found.len() < at_most
        })?;
        found.truncate(at_most);
        Ok(found)
    }
    /// Memories of intents that may go before this instant, earliest first.
    pub fn tombs(&self, before: Wall, at_most: usize) -> Result<Vec<(Wall, KindId, String)>, StoreError> {
        let rows = self.tables.tomb.read(self.tx)?.range(..(before.0, [].as_slice()))?;
        rows.take(at_most)
            .map(|row| {
                let (key, _) = row?;
                let (until, intent) = key.value();
                let (kind, key) = split_identity_key(intent)?;
                Ok((Wall(until), kind, key))
            })
            .collect()
    }
    /// Ended jobs whose rows may go some day, after this one (exclusive), earliest first.
    pub fn ended(&self, after: (Wall, JobId), at_most: usize) -> Result<Vec<(Wall, JobId)>, StoreError> {
        self.ending((after.0.0, word_of(after.1.0)).., after, at_most)
    }
    /// What people did, after this number, oldest first; one that cannot be read says so and hides none of the others.
    #[expect(clippy::type_complexity, reason = "a number and what was done")]
    pub fn acts(&self, after: Option<u64>, at_most: usize) -> Result<Vec<(u64, Result<Act, StoreError>)>, StoreError> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let rows = self.tables.act.read(self.tx)?.range((from, Bound::Unbounded))?;
        rows.take(at_most)
            .map(|row| {
                let (number, v) = row?;
                Ok((number.value(), self.value(v.value(), &|| format!("act {} of a person", number.value()))))
            })
            .collect()
    }
    /// Claims that are held. One whose record is damaged has a token that nobody has.
    pub fn running(&self) -> Result<Vec<(JobId, Token)>, StoreError> {
        let mut found = Vec::new();
        self.held.run.scan(self.tables.run.read(self.tx)?, .., |word, bits| {
            found.extend(numbers(word, bits).map(JobId));
            true
        })?;
        found.into_iter().map(|id| Ok((id, self.token(id)?))).collect()
    }
    fn token(&self, id: JobId) -> Result<Token, StoreError> {
        match self.record(id) {
            Ok(Some(JobRecord { state: JobState::Running { token, .. }, .. })) => Ok(token),
            Ok(Some(_) | None) | Err(StoreError::Corrupt { .. }) => Ok(Token(0)),
            Err(e) => Err(e),
        }
    }
    /// Whether any claim is held.
    pub fn any_running(&self) -> Result<bool, StoreError> {
        let mut any = false;
        self.held.run.scan(self.tables.run.read(self.tx)?, .., |_, _| {
            any = true;
            false
        })?;
        Ok(any)
    }
    /// How many letters there are, without a walk.
    pub fn letter_count(&self) -> Result<u64, StoreError> {
        Ok(self.tables.letter.read(self.tx)?.len()?)
    }
    /// Jobs that are being compensated.
    pub fn compensating(&self) -> Result<Vec<JobId>, StoreError> {
        let rows = self.tables.undo.read(self.tx)?.iter()?;
        rows.map(|row| Ok(JobId(row?.0.value()))).collect()
    }
    /// One of the engine's own settings.
    pub fn meta(&self, name: &str) -> Result<Option<Vec<u8>>, StoreError> {
        self.own_meta(&format!("{SETTING}{name}"))
    }
    /// All settings whose names begin so.
    pub fn metas(&self, prefix: &str) -> Result<Vec<(String, Vec<u8>)>, StoreError> {
        let from = format!("{SETTING}{prefix}");
        let mut found = Vec::new();
        for row in self.tables.meta.read(self.tx)?.range(from.as_str()..)? {
            let (name, v) = row?;
            let name = name.value();
            if !name.starts_with(&from) {
                break;
            }
            let value: Raw = self.value(v.value(), &|| format!("setting {name}"))?;
            found.push((name[SETTING.len()..].to_owned(), value.0));
        }
        Ok(found)
    }
    /// Their names alone, whatever they hold.
    pub fn meta_names(&self, prefix: &str) -> Result<Vec<String>, StoreError> {
        let from = format!("{SETTING}{prefix}");
        let rows = self.tables.meta.read(self.tx)?.range(from.as_str()..)?;
        let names = rows.map(|row| row.map(|(name, _)| name.value().to_owned()));
        let own = names.take_while(|name| name.as_ref().map_or(true, |name| name.starts_with(&from)));
        own.map(|name| Ok(name?[SETTING.len()..].to_owned())).collect()
    }
    /// The highest number handed out for a job, a ticket or anything else that is numbered.
    pub fn last_number(&self) -> Result<u64, StoreError> {
        let live = self.own_meta(META_LIVE)?.unwrap_or_default();
        // The round's number comes first; `Live` writes both.
        let id = live.get(8..16).and_then(|bytes| bytes.try_into().ok()).map(u64::from_le_bytes);
        id.ok_or_else(|| StoreError::corrupt("the highest number handed out"))
    }
    pub(super) fn own_meta(&self, name: &str) -> Result<Option<Vec<u8>>, StoreError> {
        let row = self.tables.meta.read(self.tx)?.get(name)?;
        row.map(|v| Ok(self.value::<Raw>(v.value(), &|| format!("setting {name}"))?.0)).transpose()
    }
    /// Decodes a value, fetching its chunks first if it was long.
    pub(super) fn value<T: Stored>(&self, bytes: &[u8], what: &dyn Fn() -> String) -> Result<T, StoreError> {
        let bad = |why: String| StoreError::corrupt(format!("{}: {why}", what()));
        match codec::pointer(bytes).map_err(bad)? {
            None => codec::decode(bytes).map_err(bad),
            Some(pointer) => codec::decode(&self.chunks(pointer).map_err(|e| in_words(e, &bad))?).map_err(bad),
        }
    }
    fn chunks(&self, pointer: Pointer) -> Result<Vec<u8>, StoreError> {
        let mut whole = Vec::new();
        for row in self.tables.chunk.read(self.tx)?.range((pointer.id, 0)..=(pointer.id, u32::MAX))? {
            whole.extend_from_slice(row?.1.value());
        }
        if whole.len() != pointer.len {
            return Err(StoreError::corrupt(format!("{} bytes are announced, {} are there", pointer.len, whole.len())));
        }
        Ok(whole)
    }
}

#[cfg(feature = "testkit")]
impl View<'_> {
    /// How many rows there are of everything; walks over those of the jobs.
    pub fn depth(&self) -> Result<Depth, StoreError> {
        let t = &self.tables;
        Ok(Depth {
            jobs: u64::try_from(self.job_ids()?.len()).unwrap_or(u64::MAX),
            ready: self.held.ready.count(t.ready.read(self.tx)?, ..)? + t.again.read(self.tx)?.len()?,
            timers: t.timer.read(self.tx)?.len()?,
            running: self.held.run.count(t.run.read(self.tx)?, ..)?,
            letters: self.letter_count()?,
            identities: self.count_intents()?,
        })
    }
}

/// All words of a kind's ready jobs.
fn ready_words(kind: KindId) -> RangeInclusive<(u32, u8, u64)> {
    (kind.0, 0, 0)..=(kind.0, u8::MAX, u64::MAX)
}

/// All of a kind's ready jobs that came back.
fn came_back(kind: KindId) -> RangeInclusive<(u32, u8, u64, u64)> {
    (kind.0, 0, 0, 0)..=(kind.0, u8::MAX, u64::MAX, u64::MAX)
}

/// A damaged list of chunks is told with the record it belongs to; a failing disk stays a failing disk.
fn in_words(e: StoreError, bad: &dyn Fn(String) -> StoreError) -> StoreError {
    if let StoreError::Corrupt { what } = e { bad(what) } else { e }
}

fn timed((due, job): (u64, u64)) -> (Wall, JobId) {
    (Wall(due), JobId(job))
}

/// The `u32` of a meta value.
pub(super) fn number(bytes: &[u8], what: impl Display) -> Result<u32, StoreError> {
    let bytes = bytes.try_into().map_err(|_| StoreError::corrupt(format!("{what} is not a number")))?;
    Ok(u32::from_le_bytes(bytes))
}
