//! A simulated disk: records what is written, loses what was not synced, and fails on demand.
//! Used by the tests of this crate and, under `testkit`, by tests of apps; nothing of it is used by a store on a real file.

use redb::{BackendError, StorageBackend};
use std::collections::{HashSet, VecDeque};
use std::fmt;
use std::io;
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Makes backends over the same bytes: one per open.
pub trait DiskFactory: Send + Sync {
    /// The disk as it stands, for one opened database.
    fn open(&self) -> io::Result<Box<dyn StorageBackend>>;
    /// Whether there is a file on it.
    fn exists(&self) -> bool;
    /// Puts a whole new file on it: all of it or nothing, and durable (temporary name, fsync, rename, fsync of the directory).
    fn install(&self, image: &[u8]) -> io::Result<()>;
    /// The bytes of the sidecar.
    fn sidecar(&self) -> Arc<Mutex<Vec<u8>>>;
    /// Keeps so many bytes of its room for nothing else, instead of what was kept before.
    fn reserve(&self, _bytes: u64) -> io::Result<()> {
        Ok(())
    }
    /// How many are kept.
    fn reserved(&self) -> u64 {
        u64::MAX
    }
}

/// What changes a disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Bytes at an offset.
    Write(u64, Vec<u8>),
    /// The file's length.
    SetLen(u64),
}

/// What the disk saw, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Reached the cache, not the platter.
    Change(Change),
    /// Everything before it is durable.
    Sync,
    /// A sync that failed: of the changes before it exactly these became durable, the others never will.
    FailedSync(Vec<Change>),
    /// A new file, durable at once.
    Install(Vec<u8>),
    /// The sidecar became this, some time after the event before. It is never synced: a dead process leaves it as it is, a power
    /// cut may leave any older one.
    Sidecar(Vec<u8>),
    /// The test says that something happened or was acknowledged.
    Mark(u64),
}

/// Which operation a fault is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum On {
    /// Making a backend.
    Open,
    /// Reading.
    Read,
    /// Writing.
    Write,
    /// Changing the length.
    SetLen,
    /// Syncing.
    Sync,
    /// Writing, changing the length or syncing, whichever comes.
    AnyChange,
}

/// How an operation fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fails {
    /// An I/O error; nothing happens.
    Eio,
    /// No room; nothing happens.
    Full,
    /// The first half of a write happens, to the end of a sector, then an I/O error.
    Short,
    /// It panics, as a bug in the database would.
    Panic,
    /// A sync fails after this many of a hundred pending changes became durable. The cache keeps showing all of them and never
    /// tries again, as an operating system does; if `forget`, the cache shows only what became durable.
    Sync {
        /// Of a hundred.
        reached: u8,
        /// The cache loses the others, too.
        forget: bool,
        /// Chooses which.
        seed: u64,
    },
}

/// A fault that will happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Which operation.
    pub on: On,
    /// How many of them still succeed.
    pub after: u64,
    /// How many of them fail then.
    pub times: u64,
    /// How.
    pub fails: Fails,
}

/// How many operations of each sort there were.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Backends made.
    pub opens: u64,
    /// Reads.
    pub reads: u64,
    /// Writes.
    pub writes: u64,
    /// Changes of length.
    pub set_lens: u64,
    /// Syncs.
    pub syncs: u64,
    /// Faults that happened.
    pub faults: u64,
}

/// A disk in memory with one file and its sidecar; clones are the same disk.
#[derive(Clone, Default)]
pub struct SimDisk(Arc<Shared>);

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    sidecar: Arc<Mutex<Vec<u8>>>,
}

#[derive(Default)]
struct State {
    /// What reads see: the cache over the platter.
    live: Vec<u8>,
    /// The platter.
    durable: Vec<u8>,
    /// In the cache only.
    pending: Vec<Change>,
    exists: bool,
    /// Handles below it belong to a process that was killed.
    generation: u64,
    locked_by: Option<u64>,
    handles: u64,
    faults: VecDeque<Fault>,
    counts: Counts,
    log: Option<Vec<Event>>,
    /// The sidecar as the log has it.
    noted_sidecar: Vec<u8>,
    /// How many bytes fit on it; `None`: any number.
    room: Option<u64>,
    /// Blocks of the file that take room: those that were ever written. Kept while the room is bounded.
    blocks: HashSet<u64>,
    reserved: u64,
}

impl SimDisk {
    /// An empty disk.
    pub fn new() -> Self {
        Self::default()
    }
    /// A disk that holds this file and this sidecar.
    pub fn from_image(image: Vec<u8>, sidecar: Vec<u8>) -> Self {
        let disk = Self::default();
        {
            let mut s = disk.lock();
            s.exists = true;
            s.live = image.clone();
            s.durable = image;
        }
        *disk.sidecar_bytes() = sidecar;
        disk
    }
    /// Keeps every event from here on.
    pub fn record(&self) {
        let mut s = self.lock();
        s.noted_sidecar.clone_from(&self.sidecar_bytes());
        s.log = Some(Vec::new());
    }
    /// The events since [`record`](Self::record).
    pub fn log(&self) -> Vec<Event> {
        self.lock().log.clone().unwrap_or_default()
    }
    /// Notes in the log that something happened or was acknowledged.
    pub fn mark(&self, n: u64) {
        self.lock().note(&self.0.sidecar, || Event::Mark(n));
    }
    /// Lets operations fail from now on; faults on the same operation come one after the other.
    pub fn fail(&self, fault: Fault) {
        self.lock().faults.push_back(fault);
    }
    /// No more faults.
    pub fn heal(&self) {
        self.lock().faults.clear();
    }
    /// From now on so many bytes fit on it, besides those that it holds now; `None`: any number. A file takes room where it was ever
    /// written, as a sparse one does.
    pub fn bound_room(&self, left: Option<u64>) {
        let mut s = self.lock();
        s.blocks = (0..(s.live.len() as u64).div_ceil(BLOCK)).collect();
        s.room = left.map(|left| s.taken() + left);
    }
    /// Operations so far.
    pub fn counts(&self) -> Counts {
        self.lock().counts
    }
    /// The file as reads see it.
    pub fn bytes(&self) -> Vec<u8> {
        self.lock().live.clone()
    }
    /// The process dies: its handles fail from now on and its lock is free; the cache stays.
    pub fn kill_process(&self) {
        let mut s = self.lock();
        s.generation = s.handles;
        s.locked_by = None;
    }
    /// A power cut: what was not synced is lost, except for the part of it that `seed` chooses.
    pub fn cut_power(&self, seed: u64) {
        self.kill_process();
        let mut s = self.lock();
        let image = crash_image(&s.durable, &s.pending, seed);
        s.live = image.clone();
        s.durable = image;
        s.pending.clear();
    }

    /// Another disk, as a death of the process at this moment leaves it: the cache and the sidecar stay. This one goes on.
    pub fn fork(&self) -> Self {
        let image = self.lock().live.clone();
        self.as_large(Self::from_image(image, self.sidecar_bytes().clone()))
    }
    /// Another disk, as a power cut at this moment can leave it (see [`crash_image`]). This one goes on.
    pub fn fork_unpowered(&self, seed: u64) -> Self {
        let image = {
            let s = self.lock();
            crash_image(&s.durable, &s.pending, seed)
        };
        self.as_large(Self::from_image(image, self.sidecar_bytes().clone()))
    }
    /// With the same room, of which as much is taken and kept.
    fn as_large(&self, other: Self) -> Self {
        {
            let (from, mut to) = (self.lock(), other.lock());
            (to.room, to.reserved) = (from.room, from.reserved);
            to.blocks.clone_from(&from.blocks);
        }
        other
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
    fn sidecar_bytes(&self) -> MutexGuard<'_, Vec<u8>> {
        self.0.sidecar.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for SimDisk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SimDisk({:?})", self.lock().counts)
    }
}

impl DiskFactory for SimDisk {
    fn open(&self) -> io::Result<Box<dyn StorageBackend>> {
        let mut s = self.lock();
        s.counts.opens += 1;
        s.fault(On::Open)?;
        s.handles += 1;
        Ok(Box::new(Handle { disk: self.clone(), number: s.handles }))
    }
    fn exists(&self) -> bool {
        self.lock().exists
    }
    fn install(&self, image: &[u8]) -> io::Result<()> {
        let mut s = self.lock();
        s.fault(On::Write)?;
        s.exists = true;
        s.live = image.to_vec();
        s.durable = image.to_vec();
        s.note(&self.0.sidecar, || Event::Install(image.to_vec()));
        Ok(())
    }
    fn sidecar(&self) -> Arc<Mutex<Vec<u8>>> {
        self.0.sidecar.clone()
    }
    fn reserve(&self, bytes: u64) -> io::Result<()> {
        let mut s = self.lock();
        let rest = s.taken() - s.reserved;
        if bytes > s.reserved && s.room.is_some_and(|room| rest + bytes > room) {
            return Err(error(Fails::Full));
        }
        s.reserved = bytes;
        Ok(())
    }
    fn reserved(&self) -> u64 {
        self.lock().reserved
    }
}

/// What a file takes room in.
const BLOCK: u64 = 4_096;

impl State {
    fn taken(&self) -> u64 {
        self.blocks.len() as u64 * BLOCK + self.reserved
    }
    /// Room for a change, if it needs any.
    fn fit(&mut self, change: &Change) -> io::Result<()> {
        let Some(room) = self.room else { return Ok(()) };
        match change {
            Change::SetLen(len) => self.blocks.retain(|block| block * BLOCK < *len),
            Change::Write(at, data) => {
                let touched = at / BLOCK..(at + data.len() as u64).div_ceil(BLOCK);
                let new: Vec<_> = touched.filter(|block| !self.blocks.contains(block)).collect();
                if self.taken() + new.len() as u64 * BLOCK > room {
                    return Err(error(Fails::Full));
                }
                self.blocks.extend(new);
            }
        }
        Ok(())
    }
    fn note(&mut self, sidecar: &Mutex<Vec<u8>>, event: impl FnOnce() -> Event) {
        let Some(log) = &mut self.log else { return };
        let now = sidecar.lock().unwrap_or_else(PoisonError::into_inner);
        if *now != self.noted_sidecar {
            self.noted_sidecar.clone_from(&now);
            log.push(Event::Sidecar(now.clone()));
        }
        log.push(event());
    }
    fn change(&mut self, sidecar: &Mutex<Vec<u8>>, change: Change) -> io::Result<()> {
        self.fit(&change)?;
        apply(&mut self.live, &change);
        self.note(sidecar, || Event::Change(change.clone()));
        self.pending.push(change);
        Ok(())
    }
    /// The fault that hits this operation, if one does.
    fn due(&mut self, on: On) -> Option<Fails> {
        let any = matches!(on, On::Write | On::SetLen | On::Sync);
        let fault = self.faults.iter_mut().find(|f| f.on == on || (f.on == On::AnyChange && any))?;
        if fault.after > 0 {
            fault.after -= 1;
            return None;
        }
        let (fails, on) = (fault.fails, fault.on);
        fault.times = fault.times.saturating_sub(1);
        if fault.times == 0 {
            let spent = self.faults.iter().position(|f| f.on == on && f.times == 0);
            spent.and_then(|i| self.faults.remove(i));
        }
        self.counts.faults += 1;
        Some(fails)
    }
    fn fault(&mut self, on: On) -> io::Result<()> {
        match self.due(on) {
            None => Ok(()),
            Some(fails) => Err(error(fails)),
        }
    }
    fn fail_sync(&mut self, sidecar: &Mutex<Vec<u8>>, reached: u8, forget: bool, seed: u64) -> io::Error {
        let mut rng = fastrand::Rng::with_seed(seed);
        let pending = std::mem::take(&mut self.pending);
        let durable: Vec<Change> = pending.into_iter().filter(|_| rng.u8(..100) < reached).collect();
        durable.iter().for_each(|c| apply(&mut self.durable, c));
        if forget {
            self.live = self.durable.clone();
        }
        self.note(sidecar, || Event::FailedSync(durable));
        error(Fails::Eio)
    }
}

/// How much of a write a short one does: some half of it, up to the end of a sector. A sector is written whole or not at all.
fn short(offset: u64, len: usize) -> usize {
    let (half, end) = (offset + len as u64 / 2, offset + len as u64);
    let sector = half / SECTOR as u64 * SECTOR as u64;
    usize::try_from(sector.clamp(offset, end) - offset).unwrap_or(0)
}

fn error(fails: Fails) -> io::Error {
    match fails {
        Fails::Full => io::Error::new(io::ErrorKind::StorageFull, "simulated full disk"),
        Fails::Eio | Fails::Short | Fails::Sync { .. } => io::Error::other("simulated disk error"),
        Fails::Panic => std::panic::resume_unwind(Box::new("simulated bug in the database")),
    }
}

struct Handle {
    disk: SimDisk,
    number: u64,
}

impl Handle {
    fn state(&self) -> io::Result<MutexGuard<'_, State>> {
        let state = self.disk.lock();
        if self.number <= state.generation { Err(io::Error::other("this process was killed")) } else { Ok(state) }
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SimDisk handle {}", self.number)
    }
}

fn is_whole(start: Bound<u64>, end: Bound<u64>) -> bool {
    matches!(start, Bound::Unbounded | Bound::Included(0)) && end == Bound::Unbounded
}

impl StorageBackend for Handle {
    fn len(&self) -> io::Result<u64> {
        Ok(self.state()?.live.len() as u64)
    }
    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let mut s = self.state()?;
        s.counts.reads += 1;
        s.fault(On::Read)?;
        let from = usize::try_from(offset).map_err(io::Error::other)?;
        let to = from.saturating_add(out.len());
        out.copy_from_slice(s.live.get(from..to).ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut s = self.state()?;
        s.counts.set_lens += 1;
        s.fault(On::SetLen)?;
        s.change(&self.disk.0.sidecar, Change::SetLen(len))
    }
    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut s = self.state()?;
        s.counts.writes += 1;
        let sidecar = &*self.disk.0.sidecar;
        match s.due(On::Write) {
            None => s.change(sidecar, Change::Write(offset, data.to_vec())),
            Some(fails) => {
                if fails == Fails::Short {
                    s.change(sidecar, Change::Write(offset, data[..short(offset, data.len())].to_vec()))?;
                }
                Err(error(fails))
            }
        }
    }
    fn sync_data(&self) -> io::Result<()> {
        let mut s = self.state()?;
        s.counts.syncs += 1;
        let sidecar = &*self.disk.0.sidecar;
        match s.due(On::Sync) {
            None => {
                let pending = std::mem::take(&mut s.pending);
                pending.iter().for_each(|c| apply(&mut s.durable, c));
                s.note(sidecar, || Event::Sync);
                Ok(())
            }
            Some(Fails::Sync { reached, forget, seed }) => Err(s.fail_sync(sidecar, reached, forget, seed)),
            Some(fails @ Fails::Panic) => Err(error(fails)),
            Some(Fails::Eio | Fails::Short) => Err(s.fail_sync(sidecar, 0, false, 0)),
            Some(Fails::Full) => {
                s.fail_sync(sidecar, 0, false, 0);
                Err(error(Fails::Full))
            }
        }
    }
    fn close(&self) -> io::Result<()> {
        let mut s = self.disk.lock();
        if s.locked_by == Some(self.number) {
            s.locked_by = None;
        }
        Ok(())
    }
    fn try_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        let mut s = self.state().map_err(BackendError::Io)?;
        if !is_whole(start, end) {
            return Err(BackendError::Unsupported);
        }
        let free = s.locked_by.is_none_or(|n| n == self.number);
        if free {
            s.locked_by = Some(self.number);
        }
        Ok(free)
    }
    /// Nobody here reads beside another reader, so a shared lock is as good as an exclusive one.
    fn try_lock_shared_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.try_lock_range(start, end)
    }
    fn unlock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        if !is_whole(start, end) {
            return Err(BackendError::Unsupported);
        }
        self.close().map_err(BackendError::Io)
    }
}

fn apply(image: &mut Vec<u8>, change: &Change) {
    match change {
        Change::Write(offset, data) => {
            let from = usize::try_from(*offset).unwrap_or(usize::MAX);
            let to = from.saturating_add(data.len());
            if image.len() < to {
                image.resize(to, 0);
            }
            image[from..to].copy_from_slice(data);
        }
        Change::SetLen(len) => image.resize(usize::try_from(*len).unwrap_or(usize::MAX), 0),
    }
}

const SECTOR: usize = 512;

/// One of the images that a power cut can leave. Seed 0 keeps everything, 1 nothing; others keep any part of it, single writes
/// torn at sectors. That covers every order in which a drive may write: a sector ends as it was, or as one of its writes left it.
pub fn crash_image(durable: &[u8], pending: &[Change], seed: u64) -> Vec<u8> {
    match seed {
        0 => chosen_image(durable, pending, |_| 1),
        1 => durable.to_vec(),
        _ => {
            let mut rng = fastrand::Rng::with_seed(seed);
            chosen_image(durable, pending, |n| rng.u8(..n))
        }
    }
}

/// The image that a power cut leaves by choice. `choose` is asked for a number below the given one. Of a write: 0 nothing of it, 1 all
/// of it, else each sector is asked for. Of a change of length and of a sector: 0 it is lost, 1 it is kept.
pub fn chosen_image(durable: &[u8], pending: &[Change], mut choose: impl FnMut(u8) -> u8) -> Vec<u8> {
    let mut image = durable.to_vec();
    for change in pending {
        match change {
            Change::SetLen(_) if choose(2) == 0 => {}
            Change::SetLen(_) => apply(&mut image, change),
            Change::Write(offset, data) => match choose(4) {
                0 => {}
                1 => apply(&mut image, change),
                _ => keep_some(*offset, data, &mut choose, &mut image),
            },
        }
    }
    image
}

fn keep_some(offset: u64, data: &[u8], choose: &mut impl FnMut(u8) -> u8, image: &mut Vec<u8>) {
    let mut done = 0;
    while done < data.len() {
        let at = offset + done as u64;
        let rest = SECTOR - usize::try_from(at % SECTOR as u64).unwrap_or(0);
        let n = rest.min(data.len() - done);
        if choose(2) == 1 {
            apply(image, &Change::Write(at, data[done..done + n].to_vec()));
        }
        done += n;
    }
}

/// A moment at which the power may be cut.
#[derive(Debug)]
pub struct CrashPoint<'a> {
    /// How many events came before it.
    pub index: usize,
    /// Surely on the platter.
    pub durable: &'a [u8],
    /// Perhaps on the platter.
    pub pending: &'a [Change],
    /// The newest mark before it.
    pub mark: Option<u64>,
    /// There is a file.
    pub exists: bool,
    /// The sidecar.
    pub sidecar: &'a [u8],
    /// What the sidecar was before, oldest first.
    pub older_sidecars: &'a [&'a [u8]],
}

impl CrashPoint<'_> {
    /// One of the images that a cut at this moment can leave.
    pub fn image(&self, seed: u64) -> Vec<u8> {
        crash_image(self.durable, self.pending, seed)
    }
    /// The image that a cut at this moment leaves by choice (see [`chosen_image`]).
    pub fn chosen(&self, choose: impl FnMut(u8) -> u8) -> Vec<u8> {
        chosen_image(self.durable, self.pending, choose)
    }
}

/// Walks through every moment of a log, after each event once. `start` and `start_sidecar` are the disk when recording began,
/// empty if there was no file.
pub fn crash_points(start: &[u8], start_sidecar: &[u8], log: &[Event], mut f: impl FnMut(&CrashPoint<'_>)) {
    let (mut durable, mut pending, mut mark) = (start.to_vec(), Vec::new(), None);
    let mut exists = !start.is_empty();
    let (mut sidecar, mut older_sidecars): (&[u8], Vec<&[u8]>) = (start_sidecar, Vec::new());
    for (index, event) in log.iter().enumerate() {
        match event {
            Event::Change(c) => pending.push(c.clone()),
            Event::Sync => pending.drain(..).for_each(|c| apply(&mut durable, &c)),
            Event::FailedSync(reached) => {
                pending.clear();
                reached.iter().for_each(|c| apply(&mut durable, c));
            }
            Event::Install(image) => {
                exists = true;
                durable.clone_from(image);
            }
            Event::Sidecar(bytes) => older_sidecars.push(std::mem::replace(&mut sidecar, bytes)),
            Event::Mark(n) => mark = Some(*n),
        }
        f(&CrashPoint {
            index: index + 1,
            durable: &durable,
            pending: &pending,
            mark,
            exists,
            sidecar,
            older_sidecars: &older_sidecars,
        });
    }
}
