//! Which job an intent is: candidates from the index, confirmed by the rows of the jobs, and the memory of what was pruned. Keeps
//! the promise that what cannot be read is `Corrupt`, never "new". Asked by every enqueue and by whoever looks for a key.

use super::super::error::StoreError;
use super::super::pack::Pack;
use super::super::read::{Rows, Sight};
use super::super::schema::{Source, identity_key};
use super::merge::{PageKey, Which};
use super::page::{Entry, Page};
use crate::model::id::{JobId, KindId};
use crate::model::job::{Identity, Intent, JobRow};
use redb::ReadableTable;

type Bytes = &'static [u8];

impl<S: Source> Rows<'_, S> {
    /// What is known of an intent. Its newest job is the one that counts: an older one may be kept for longer.
    pub fn intent(&self, kind: KindId, key: &str) -> Result<Option<Intent>, StoreError> {
        let kept = self.kept(kind, key)?;
        let remembered = self.remembered_intent(kind, key)?;
        Ok(match (kept, remembered) {
            (Some((id, _)), Some(memory)) if memory.id > id => Some(Intent::Remembered(memory)),
            (Some((id, row)), _) => Some(Intent::Kept(id, row)),
            (None, memory) => memory.map(Intent::Remembered),
        })
    }
    /// The newest job of an intent that has rows.
    pub fn kept(&self, kind: KindId, key: &str) -> Result<Option<(JobId, JobRow)>, StoreError> {
        let hash = self.memory.hash(kind, key);
        let (newest, runs) = self.newest_candidates(hash)?;
        // Jobs in the tail are newer than those in runs.
        let found = self.confirm(newest, kind, key)?;
        if found.is_some() || runs.is_empty() {
            return Ok(found);
        }
        let mut older = Vec::new();
        let table = self.tables.id_page.read(self.tx)?;
        for run in runs {
            probe(table, run, hash, &mut older)?;
        }
        self.confirm(older, kind, key)
    }
    /// The newest of these jobs that is of this intent.
    fn confirm(&self, mut jobs: Vec<u64>, kind: KindId, key: &str) -> Result<Option<(JobId, JobRow)>, StoreError> {
        jobs.sort_unstable();
        jobs.dedup();
        for id in jobs.into_iter().rev().map(JobId) {
            match self.job(id)? {
                Some(row) if row.kind == kind && row.key.as_str() == key => return Ok(Some((id, row))),
                // Another intent with the same hash.
                Some(_) => {}
                // Pruned, unless only a half of it is gone: then nobody knows whose it was.
                None => {
                    if let Ok(Some(_)) = self.record(id) {
                        return Err(StoreError::corrupt(format!("row of job {id}, which may be of intent {key}")));
                    }
                }
            }
        }
        Ok(None)
    }
    /// The memory of an intent whose job was pruned.
    pub fn remembered_intent(&self, kind: KindId, key: &str) -> Result<Option<Identity>, StoreError> {
        let row = self.tables.id.read(self.tx)?.get(identity_key(kind, key).as_slice())?;
        row.map(|v| self.value(v.value(), &|| format!("memory of intent {key}"))).transpose()
    }
    /// The jobs with this hash that are in no run yet, and the runs that may have more.
    fn newest_candidates(&self, hash: u64) -> Result<(Vec<u64>, Vec<u64>), StoreError> {
        match self.sight {
            // The file and memory say the same.
            Sight::Newest => {
                let state = self.memory.state.read();
                let runs = state.runs.iter().filter(|(_, r)| r.may_have(hash)).map(|(id, _)| *id);
                Ok((state.tail.find(hash).collect(), runs.collect()))
            }
            Sight::Snapshot => {
                let mut runs = Vec::new();
                for row in self.tables.id_run.read(self.tx)?.iter()? {
                    runs.push(row?.0.value());
                }
                let first = self.tables.fresh.read(self.tx)?.first()?.map(|(k, _)| k.value());
                let state = self.memory.state.read();
                runs.retain(|id| state.runs.get(id).is_none_or(|r| r.may_have(hash)));
                let mut found: Vec<u64> = state.tail.find(hash).collect();
                let from = state.tail.from();
                drop(state);
                if first.is_some_and(|first| first < from) {
                    self.each_fresh(&mut |e| found.extend((e.hash == hash).then_some(e.job)), &mut |_| {})?;
                }
                Ok((found, runs))
            }
        }
    }
    /// Every entry of `q/id-fresh`, in the order of the jobs. A row that is damaged is made anew from the rows of its jobs; what
    /// stays unknown of them is told to `lost`.
    pub(super) fn each_fresh(
        &self,
        each: &mut dyn FnMut(Entry),
        lost: &mut dyn FnMut(String),
    ) -> Result<(), StoreError> {
        let mut rows = self.tables.fresh.read(self.tx)?.iter()?.peekable();
        while let Some(row) = rows.next() {
            let (first, value) = row?;
            let first = first.value();
            match Page::parse(value.value()).ok().filter(|p| p.first().is_some_and(|e| e.job == first)) {
                Some(page) => page.entries().for_each(&mut *each),
                None => {
                    let next = match rows.peek() {
                        Some(Ok((next, _))) => next.value(),
                        Some(Err(_)) | None => u64::MAX,
                    };
                    self.entries_of_jobs(first, next, each, lost)?;
                }
            }
        }
        Ok(())
    }
    /// The entries of the jobs from `first` up to `next`, out of their rows.
    pub(super) fn entries_of_jobs(
        &self,
        first: u64,
        next: u64,
        each: &mut dyn FnMut(Entry),
        lost: &mut dyn FnMut(String),
    ) -> Result<(), StoreError> {
        let table = self.tables.job.read(self.tx)?;
        // The row may begin in the middle of a pack.
        let base = table.range(..=first)?.next_back().transpose()?.map_or(first, |(k, _)| k.value());
        for row in table.range(base..next)? {
            let (base, value) = row?;
            let base = base.value();
            let pack = match Pack::parse(value.value()) {
                Ok(pack) => pack,
                Err(why) => {
                    lost(format!("the jobs from number {base} on are not known by their keys any more ({why})"));
                    continue;
                }
            };
            for id in pack.numbers().map(|n| JobId(base.saturating_add(u64::from(n)))) {
                if id.0 < first || id.0 >= next {
                    continue;
                }
                match self.job(id) {
                    Ok(Some(row)) => each(Entry { hash: self.memory.hash(row.kind, row.key.as_str()), job: id.0 }),
                    Ok(None) => {}
                    Err(StoreError::Corrupt { what }) => {
                        lost(format!("job {id} is not known by its key any more ({what})"));
                    }
                    Err(e) => return Err(e),
                }
            }
        }
        Ok(())
    }
    /// Every job that has rows is found by its intent, or a newer one is: for tests.
    #[cfg(feature = "testkit")]
    pub fn check_intents(&self) -> Result<u64, StoreError> {
        let mut checked = 0;
        for id in self.job_ids()? {
            let Some(row) = self.job(id)? else { continue };
            let newest = self.intent(row.kind, row.key.as_str())?.map(|i| i.id());
            if newest.is_none_or(|newest| newest < id) {
                let key = &row.key;
                return Err(StoreError::Bug(format!("job {id} of intent {key} is not in the index: {newest:?}")));
            }
            checked += 1;
        }
        Ok(checked)
    }
    /// All jobs that have rows; a walk, for tests.
    #[cfg(feature = "testkit")]
    pub(crate) fn job_ids(&self) -> Result<Vec<JobId>, StoreError> {
        let mut ids = Vec::new();
        for row in self.tables.job.read(self.tx)?.iter()? {
            let (base, value) = row?;
            let base = base.value();
            let pack = Pack::parse(value.value()).map_err(|why| StoreError::corrupt(format!("{base}: {why}")))?;
            ids.extend(pack.numbers().map(|n| JobId(base.saturating_add(u64::from(n)))));
        }
        Ok(ids)
    }
    /// How many intents are known: one walk over everything, for tests.
    #[cfg(feature = "testkit")]
    pub(crate) fn count_intents(&self) -> Result<u64, StoreError> {
        let mut intents = std::collections::BTreeSet::new();
        for id in self.job_ids()? {
            if let Some(row) = self.job(id)? {
                intents.insert(identity_key(row.kind, row.key.as_str()));
            }
        }
        for row in self.tables.id.read(self.tx)?.iter()? {
            intents.insert(row?.0.value().to_vec());
        }
        Ok(u64::try_from(intents.len()).unwrap_or(u64::MAX))
    }
}

/// The jobs of a hash in one run.
fn probe(
    table: &impl ReadableTable<PageKey, Bytes>,
    run: u64,
    hash: u64,
    found: &mut Vec<u64>,
) -> Result<(), StoreError> {
    for row in table.range((run, 0, 0)..=(run, hash, u64::MAX))?.rev() {
        let (key, value) = row?;
        let key = key.value();
        found.extend(page_of(key, value.value())?.of(hash).map(|e| e.job));
        // The pages before this one end below it.
        if key.1 < hash {
            break;
        }
    }
    Ok(())
}

/// A page of a run; one that was written under another key is damage.
pub(super) fn page_of(key: PageKey, value: &[u8]) -> Result<Page<'_>, StoreError> {
    let (run, hash, job) = key;
    let bad = |why: &str| StoreError::corrupt(format!("page {hash:x} of run {run} of the index of intents: {why}"));
    let page = Page::parse(value).map_err(|why| bad(&why))?;
    if page.first() == Some(Entry { hash, job }) { Ok(page) } else { Err(bad("it is another page")) }
}

/// A page for a merge; empty behind the last one.
pub(super) fn read_page(
    table: &impl ReadableTable<PageKey, Bytes>,
    run: u64,
    which: Which,
) -> Result<Vec<Entry>, StoreError> {
    let (first, last) = ((run, 0, 0), (run, u64::MAX, u64::MAX));
    let row = match which {
        Which::With(e) => match table.range(first..=(run, e.hash, e.job))?.next_back() {
            Some(row) => Some(row),
            None => table.range(first..=last)?.next(),
        },
        Which::Behind(e) => {
            let behind = (std::ops::Bound::Excluded((run, e.hash, e.job)), std::ops::Bound::Included(last));
            table.range::<PageKey>(behind)?.next()
        }
    };
    let Some((key, value)) = row.transpose()? else { return Ok(Vec::new()) };
    Ok(page_of(key.value(), value.value())?.entries().collect())
}
