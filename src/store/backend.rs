//! The bytes under redb. Keeps the promises that a file which is not surely ours is examined without a byte of it being changed,
//! also when redb has to repair it before it can be read, and that nothing is acknowledged on a file which somebody cut or wrote over
//! while it was open, as far as its length and header show before and after a commit, and its pages when they are read. Used by `create`.

mod left;

use super::error::StoreError;
use super::options::Met;
use crate::planted::on;
use left::{BLOCK, Base};
use parking_lot::{Mutex, RwLock};
use redb::{BackendError, StorageBackend};
use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;
use std::io;
use std::ops::{Bound, Range};
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};

/// A file under redb. It begins under examination: what redb writes (it marks, repairs and trims files when it opens and closes
/// them) is kept in memory until [`admit`](Self::admit). And it can be taken away: app code that forgets a table keeps redb's
/// write transaction, and with it the file and its lock, for ever; taken away, the file can be opened anew.
/// The lock methods are handed through: a wrapper without them would lose the lock that keeps a second process out.
#[derive(Clone)]
pub(super) struct Backing {
    state: Arc<RwLock<State>>,
    /// What it met; outlives the file.
    met: Arc<Met>,
    /// How somebody else changed it, once that was seen.
    meddled: Arc<OnceLock<String>>,
}

enum State {
    Examined(Base, Kept),
    Admitted(Base),
    Gone,
}

impl Backing {
    pub(super) fn new(backend: Box<dyn StorageBackend>, met: &Arc<Met>) -> io::Result<Self> {
        let len = backend.len()?;
        let kept = Kept { len, base_len: len, blocks: HashMap::new(), steps: Vec::new() };
        let state = Arc::new(RwLock::new(State::Examined(Base::new(backend)?, kept)));
        Ok(Self { state, met: met.clone(), meddled: Arc::default() })
    }
    /// How somebody else changed the file while it was open here, if that was seen: it is not written to any more.
    pub(super) fn meddled(&self) -> Option<&str> {
        self.meddled.get().map(String::as_str)
    }
    /// The file is ours: makes sure of what a failed sync left open, then does what was kept back, in the same order with the same
    /// syncs, so that a crash on the way leaves nothing that a crash in redb's own open could not have left.
    pub(super) fn admit(&self) -> io::Result<()> {
        let mut state = self.state.write();
        match std::mem::replace(&mut *state, State::Gone) {
            State::Examined(base, kept) => {
                let done = self.look(&base).and_then(|()| self.make_sure(&base)).and_then(|()| {
                    kept.steps.iter().try_for_each(|step| match step {
                        Step::Write(offset, data) => self.put(&base, *offset, data),
                        Step::SetLen(len) => base.set_len(*len),
                        Step::Sync => self.sync(&base),
                    })
                });
                // What redb writes when it is dropped now must not reach a file that is half done.
                *state = match done {
                    Ok(()) => State::Admitted(base),
                    Err(_) => {
                        drop(base.disk.close());
                        State::Gone
                    }
                };
                done
            }
            other @ (State::Admitted(..) | State::Gone) => {
                *state = other;
                Ok(())
            }
        }
    }
    /// Closes the file, whoever still holds on to it.
    pub(super) fn take_away(&self) {
        match std::mem::replace(&mut *self.state.write(), State::Gone) {
            // Frees the locks; after an error nothing is left to be done, the file is dropped next.
            State::Examined(base, _) | State::Admitted(base) => drop(base.disk.close()),
            State::Gone => {}
        }
    }
    /// After a failed sync nothing new is written before what it was about is surely on the disk: redb reuses pages that only the root
    /// before it needs, and that root is what the next power cut may bring back.
    fn make_sure(&self, base: &Base) -> io::Result<()> {
        if self.met.fsync_failed.load(Ordering::Acquire) {
            let places = self.met.unsynced.lock().clone();
            base.write_again(&places)?;
            self.met.unsynced.lock().clear();
            self.met.fsync_failed.store(false, Ordering::Release);
        }
        Ok(())
    }
    fn put(&self, base: &Base, offset: u64, data: &[u8]) -> io::Result<()> {
        self.met.unsynced.lock().push((offset, data.len()));
        base.write(offset, data)
    }
    fn sync(&self, base: &Base) -> io::Result<()> {
        if on("sync-skipped") {
            return Ok(());
        }
        base.sync().inspect_err(|_| self.met.fsync_failed.store(true, Ordering::Release))?;
        // One that works after one that failed says nothing of what that one was about.
        if !self.met.fsync_failed.load(Ordering::Acquire) {
            self.met.unsynced.lock().clear();
        }
        Ok(())
    }
    fn base<T, E: From<io::Error>>(&self, f: impl FnOnce(&dyn StorageBackend) -> Result<T, E>) -> Result<T, E> {
        match &*self.state.read() {
            State::Examined(base, _) | State::Admitted(base) => f(&*base.disk),
            State::Gone => Err(gone().into()),
        }
    }
    fn change(&self, step: Step<'_>) -> io::Result<()> {
        self.changed(step).inspect_err(|e| {
            if StoreError::is_full(e) {
                self.met.no_room.store(true, Ordering::Release);
            }
        })
    }
    fn changed(&self, step: Step<'_>) -> io::Result<()> {
        match &*self.state.read() {
            State::Admitted(base) => return self.apply(base, &step),
            State::Gone => return Err(gone()),
            State::Examined(..) => {}
        }
        match &mut *self.state.write() {
            State::Examined(base, kept) => kept.change(base, step),
            State::Admitted(base) => self.apply(base, &step),
            State::Gone => Err(gone()),
        }
    }
    /// Looks at the file before the first change of a commit, which may make it as long again as it was, and after each sync, before
    /// anybody hears of the commit.
    fn apply(&self, base: &Base, step: &Step<'_>) -> io::Result<()> {
        if !matches!(step, Step::Sync) && self.met.unsynced.lock().is_empty() {
            self.look(base)?;
        }
        match step {
            Step::Write(offset, data) => self.put(base, *offset, data),
            Step::SetLen(len) => base.set_len(*len),
            Step::Sync => {
                self.sync(base)?;
                self.look(base)
            }
        }
    }
    /// Whether the file still is as this process left it.
    fn look(&self, base: &Base) -> io::Result<()> {
        if let Some(how) = base.differs()? {
            let _first = self.meddled.set(how);
        }
        self.meddled().map_or(Ok(()), |how| Err(io::Error::other(how.to_owned())))
    }
}

fn gone() -> io::Error {
    io::Error::other("the file was taken away")
}

impl fmt::Debug for Backing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Backing")
    }
}

impl StorageBackend for Backing {
    fn len(&self) -> io::Result<u64> {
        match &*self.state.read() {
            State::Examined(_, kept) => Ok(kept.len),
            State::Admitted(base) => base.disk.len(),
            State::Gone => Err(gone()),
        }
    }
    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        match &*self.state.read() {
            State::Examined(base, kept) => kept.read(base, offset, out),
            State::Admitted(base) => base.read(offset, out).or_else(|e| self.look(base).and(Err(e))),
            State::Gone => Err(gone()),
        }
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        self.change(Step::SetLen(len))
    }
    fn sync_data(&self) -> io::Result<()> {
        self.change(Step::Sync)
    }
    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.change(Step::Write(offset, Cow::Borrowed(data)))
    }
    fn close(&self) -> io::Result<()> {
        self.base(|b| b.close())
    }
    fn try_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.base(|b| b.try_lock_range(start, end))
    }
    fn try_lock_shared_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.base(|b| b.try_lock_shared_range(start, end))
    }
    fn lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.base(|b| b.lock_range(start, end))
    }
    fn lock_shared_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.base(|b| b.lock_shared_range(start, end))
    }
    fn unlock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.base(|b| b.unlock_range(start, end))
    }
    fn query_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.base(|b| b.query_lock_range(start, end))
    }
}

/// What redb did to a file under examination, and how the file reads since.
struct Kept {
    len: u64,
    /// Up to here the file itself shows through.
    base_len: u64,
    blocks: HashMap<u64, Box<[u8; BLOCK]>>,
    steps: Vec<Step<'static>>,
}

enum Step<'a> {
    Write(u64, Cow<'a, [u8]>),
    SetLen(u64),
    Sync,
}

impl Step<'_> {
    fn kept(self) -> Step<'static> {
        match self {
            Self::Write(offset, data) => Step::Write(offset, Cow::Owned(data.into_owned())),
            Self::SetLen(len) => Step::SetLen(len),
            Self::Sync => Step::Sync,
        }
    }
}

impl Kept {
    fn read(&self, base: &Base, offset: u64, out: &mut [u8]) -> io::Result<()> {
        if offset.saturating_add(out.len() as u64) > self.len {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if self.blocks.is_empty() && self.base_len == self.len {
            return base.read(offset, out);
        }
        for (block, inside, place) in pieces(offset, out.len()) {
            match self.blocks.get(&block) {
                Some(bytes) => out[place].copy_from_slice(&bytes[inside]),
                None => out[place].copy_from_slice(&self.block_of(base, block)?[inside]),
            }
        }
        Ok(())
    }
    fn change(&mut self, base: &Base, step: Step<'_>) -> io::Result<()> {
        match &step {
            Step::Write(offset, data) => self.write(base, *offset, data)?,
            Step::SetLen(len) => self.set_len(*len),
            Step::Sync => {}
        }
        self.steps.push(step.kept());
        Ok(())
    }
    fn write(&mut self, base: &Base, offset: u64, data: &[u8]) -> io::Result<()> {
        for (block, inside, place) in pieces(offset, data.len()) {
            if !self.blocks.contains_key(&block) {
                let bytes = self.block_of(base, block)?;
                self.blocks.insert(block, bytes);
            }
            if let Some(bytes) = self.blocks.get_mut(&block) {
                bytes[inside].copy_from_slice(&data[place]);
            }
        }
        self.len = self.len.max(offset + data.len() as u64);
        Ok(())
    }
    fn set_len(&mut self, len: u64) {
        if len < self.len {
            // What is cut and grown again reads as zeroes.
            self.base_len = self.base_len.min(len);
            self.blocks.retain(|&block, _| block * (BLOCK as u64) < len);
            let inside = usize::try_from(len % BLOCK as u64).unwrap_or_default();
            if let Some(last) = self.blocks.get_mut(&(len / BLOCK as u64)) {
                last[inside..].fill(0);
            }
        }
        self.len = len;
    }
    /// One block as the file has it, zeroes behind its end.
    fn block_of(&self, base: &Base, block: u64) -> io::Result<Box<[u8; BLOCK]>> {
        let mut bytes = Box::new([0; BLOCK]);
        let at = block * BLOCK as u64;
        let there = usize::try_from(self.base_len.saturating_sub(at)).unwrap_or(BLOCK).min(BLOCK);
        if there > 0 {
            base.read(at, &mut bytes[..there])?;
        }
        Ok(bytes)
    }
}

/// The blocks that `len` bytes from `offset` touch: block, place within it, place within the bytes.
fn pieces(offset: u64, len: usize) -> impl Iterator<Item = (u64, Range<usize>, Range<usize>)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        if done == len {
            return None;
        }
        let at = offset + done as u64;
        let inside = usize::try_from(at % BLOCK as u64).unwrap_or_default();
        let n = (BLOCK - inside).min(len - done);
        let piece = (at / BLOCK as u64, inside..inside + n, done..done + n);
        done += n;
        Some(piece)
    })
}

/// A database that is built in memory first, so that the file appears whole or not at all.
#[derive(Clone, Debug, Default)]
pub(super) struct Image(Arc<Mutex<Vec<u8>>>);

impl Image {
    #[cfg(feature = "fuzzing")]
    pub(super) fn of(bytes: &[u8]) -> Self {
        Self(Arc::new(Mutex::new(bytes.to_vec())))
    }
    pub(super) fn bytes(&self) -> Vec<u8> {
        self.0.lock().clone()
    }
}

impl StorageBackend for Image {
    fn len(&self) -> io::Result<u64> {
        Ok(self.0.lock().len() as u64)
    }
    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let bytes = self.0.lock();
        let range = range(offset, out.len())?;
        out.copy_from_slice(bytes.get(range).ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.lock().resize(range(len, 0)?.end, 0);
        Ok(())
    }
    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }
    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut bytes = self.0.lock();
        let range = range(offset, data.len())?;
        if bytes.len() < range.end {
            bytes.resize(range.end, 0);
        }
        bytes[range].copy_from_slice(data);
        Ok(())
    }
}

fn range(offset: u64, len: usize) -> io::Result<std::ops::Range<usize>> {
    let start = usize::try_from(offset).map_err(io::Error::other)?;
    let end = start.checked_add(len).ok_or_else(|| io::Error::other("offset beyond the address space"))?;
    Ok(start..end)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes, cuts and growth under examination are read back as if they had happened, and the file never changes; admitted,
    /// they happen.
    #[test]
    fn an_examined_file_reads_like_the_changed_one_and_stays_as_it_was() {
        let mut rng = fastrand::Rng::with_seed(3);
        let base = Image::default();
        base.write(0, &(0..20_000).map(|_| rng.u8(..)).collect::<Vec<_>>()).unwrap();
        let before = base.bytes();
        let examined = Backing::new(Box::new(base.clone()), &Arc::default()).unwrap();
        let mut model = before.clone();
        let mut compared = 0;
        for _ in 0..400 {
            if rng.u8(..10) == 0 {
                let len = rng.usize(..30_000);
                examined.set_len(len as u64).unwrap();
                model.resize(len, 0);
            } else {
                let (at, data) = (rng.usize(..25_000), vec![rng.u8(..); rng.usize(1..9_000)]);
                examined.write(at as u64, &data).unwrap();
                model.resize(model.len().max(at + data.len()), 0);
                model[at..at + data.len()].copy_from_slice(&data);
            }
            let mut seen = vec![1; model.len()];
            examined.read(0, &mut seen).unwrap();
            assert!(seen == model);
            compared += 1;
        }
        assert_eq!(compared, 400);
        assert!(base.bytes() == before);
        examined.admit().unwrap();
        assert!(base.bytes() == model);
        examined.write(0, b"through").unwrap();
        assert_eq!(&base.bytes()[..7], b"through");
        examined.take_away();
        assert!(examined.write(0, b"gone").is_err());
    }

    /// Behind the back of an open file one of its pages is changed, its beginning, its length: what is read is an error, and what is
    /// written next, too. What it wrote itself is none of that.
    #[test]
    fn what_somebody_else_does_to_an_open_file_is_noticed() {
        const PAGES: usize = 8;
        type Does = fn(&Image);
        let tricks: [(Does, Option<&str>); 4] = [
            (|file| file.write(3 * BLOCK as u64 + 77, b"!").unwrap(), None),
            (|file| file.write(40, b"!").unwrap(), Some("written over")),
            (|file| file.set_len(5 * BLOCK as u64).unwrap(), Some("cut from 32768 to 20480 bytes")),
            (|file| file.set_len(0).unwrap(), Some("cut from 32768 to 0 bytes")),
        ];
        for (trick, says) in tricks {
            let base = Image::default();
            base.write(0, &vec![7; PAGES * BLOCK]).unwrap();
            let file = Backing::new(Box::new(base.clone()), &Arc::default()).unwrap();
            let read_all = || {
                let mut page = [0; BLOCK];
                (0..PAGES).try_for_each(|n| file.read((n * BLOCK) as u64, &mut page))
            };
            read_all().unwrap();
            file.admit().unwrap();
            for n in [0, 3, 7] {
                file.write(n * BLOCK as u64, &[9; BLOCK]).unwrap();
            }
            file.write(8, b"header").unwrap();
            file.sync_data().unwrap();
            read_all().unwrap();
            trick(&base);
            assert!(says == Some("written over") || read_all().is_err());
            let written = file.write(6 * BLOCK as u64, &[1; BLOCK]);
            assert_eq!(written.is_err(), says.is_some());
            assert_eq!(file.meddled(), says);
        }
    }
}
