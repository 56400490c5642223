//! The sidecar `<db>.run`: which handlers were being called when a process died. Written in place without fsync, because all it
//! has to survive is the death of the process; damaged or missing it says nothing, which is not an error.
//! Filled and cleared by the engine's workers, read once at open; its header tells a restored copy from the newest file.

use super::error::StoreError;
use super::private::only_owner;
use crate::model::id::{JobId, Token};
use parking_lot::{Mutex, RwLock};
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek};
use std::path::{Path, PathBuf};
use std::sync::PoisonError;
use std::sync::atomic::{AtomicU64, Ordering};

const MAGIC: [u8; 8] = *b"onceward";
const VERSION: u32 = 1;
/// The header and every slot.
const SIZE: usize = 64;
/// No machine says this of its boot, also not one that cannot tell: a claim that ended in it was interrupted.
const NO_BOOT: [u8; 16] = [0xff; 16];

/// The place of one running handler in the sidecar.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SlotNo(u32);

/// A handler that was being called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    /// Its job.
    pub job: JobId,
    /// The token of its claim.
    pub token: Token,
    /// The boot of the machine it ran in.
    pub boot: [u8; 16],
    /// Its process.
    pub nonce: u64,
}

/// What the sidecar says about the file it belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunHeader {
    /// Which file.
    pub instance: [u8; 16],
    /// The newest epoch.
    pub epoch: u32,
    /// The newest round.
    pub round: u64,
}

/// The sidecar of an open store.
pub struct RunFile {
    medium: Medium,
    slots: Mutex<Slots>,
    failures: AtomicU64,
    /// Written to while it is held for reading: nothing is written once it is false.
    ours: RwLock<bool>,
}

/// Which slots are taken.
#[derive(Default)]
struct Slots {
    free: Vec<u32>,
    /// Slots ever used: the sidecar grows by one when none is free.
    used: u32,
    /// Left behind by a dead process; kept until its recovery is durable.
    found: Vec<u32>,
}

pub(super) enum Medium {
    File(File),
    #[cfg_attr(not(any(test, feature = "testkit")), expect(dead_code, reason = "for simulated disks only"))]
    Memory(std::sync::Arc<std::sync::Mutex<Vec<u8>>>),
}

impl RunFile {
    /// Notes that a handler is about to be called.
    pub fn fill(&self, job: JobId, token: Token, boot: [u8; 16], nonce: u64) -> SlotNo {
        let n = {
            let mut slots = self.slots.lock();
            slots.free.pop().unwrap_or_else(|| {
                slots.used += 1;
                slots.used - 1
            })
        };
        self.refill(SlotNo(n), job, token, boot, nonce)
    }
    /// Notes that another handler is about to be called in the place of one that returned.
    pub fn refill(&self, slot: SlotNo, job: JobId, token: Token, boot: [u8; 16], nonce: u64) -> SlotNo {
        self.put(slot.0, &Slot { job, token, boot, nonce }.to_bytes());
        slot
    }
    /// Notes that it returned.
    pub fn clear(&self, slot: SlotNo) {
        // Emptied before it is free again: the next handler may fill it at once.
        self.put(slot.0, &[0; SIZE]);
        self.slots.lock().free.push(slot.0);
    }
    /// Clears the slots that were found at open. Called once the recovery they speak about is durable: cleared earlier, a death
    /// in between would make a killer look as if it had never started.
    pub fn forget_found(&self) {
        let found = std::mem::take(&mut self.slots.lock().found);
        for n in found {
            self.clear(SlotNo(n));
        }
    }
    /// How many slots could not be written: after a death their claims would look as if never started.
    pub fn failures(&self) -> u64 {
        self.failures.load(Ordering::Relaxed)
    }

    /// Takes over a sidecar: what its header and its slots say.
    pub(super) fn open(medium: Medium) -> Result<(Self, Option<RunHeader>, Vec<Slot>), StoreError> {
        let bytes = medium.read_all()?;
        let header = bytes.first_chunk().and_then(RunHeader::from_bytes);
        let (mut found, mut free, mut used) = (Vec::new(), Vec::new(), 0);
        let behind = if header.is_some() { bytes.get(SIZE..).unwrap_or_default() } else { &[] };
        for (n, slot) in (0u32..).zip(behind.as_chunks().0) {
            used = n + 1;
            match Slot::from_bytes(slot) {
                Some(slot) => found.push((n, slot)),
                None => free.push(n),
            }
        }
        let slots = Slots { free, used, found: found.iter().map(|&(n, _)| n).collect() };
        let run = Self { medium, slots: Mutex::new(slots), failures: AtomicU64::new(0), ours: RwLock::new(true) };
        Ok((run, header, found.into_iter().map(|(_, slot)| slot).collect()))
    }
    /// After every commit: how far the file has come.
    pub(super) fn note(&self, header: RunHeader) {
        self.write(0, &header.to_bytes());
    }

    /// The last write. Whoever still runs then must not touch slots that may be another process's a moment later: an emptied
    /// slot would make a killer look as if it had never started. `well`: every claim was given back, so that no slot says anything.
    /// Otherwise the store ended under its handlers, and whatever ends the process now is none of their doing.
    pub(super) fn close(&self, well: bool) {
        let mut ours = self.ours.write();
        if *ours {
            let slots = self.slots.lock();
            if well {
                (0..slots.used).for_each(|n| self.write_slot(n, &[0; SIZE]));
            } else {
                self.blame_nobody(&slots.found);
            }
        }
        *ours = false;
    }
    /// What these slots say of an earlier process stays as it is.
    fn blame_nobody(&self, found: &[u32]) {
        // What cannot be read says nothing anyway.
        let bytes = self.medium.read_all().unwrap_or_default();
        for (n, slot) in (0u32..).zip(bytes.get(SIZE..).unwrap_or_default().as_chunks().0) {
            if let Some(slot) = Slot::from_bytes(slot).filter(|_| !found.contains(&n)) {
                self.write_slot(n, &Slot { boot: NO_BOOT, ..slot }.to_bytes());
            }
        }
    }

    /// Forgets all of it: it belongs to another file, or cannot be read.
    pub(super) fn start_over(&self) -> Result<(), StoreError> {
        self.medium.empty()?;
        *self.slots.lock() = Slots::default();
        Ok(())
    }

    fn put(&self, slot: u32, bytes: &[u8; SIZE]) {
        let ours = self.ours.read();
        if *ours {
            self.write_slot(slot, bytes);
        }
    }
    fn write_slot(&self, slot: u32, bytes: &[u8; SIZE]) {
        self.write((u64::from(slot) + 1) * SIZE as u64, bytes);
    }
    fn write(&self, at: u64, bytes: &[u8; SIZE]) {
        if self.medium.write_at(at, bytes).is_err() {
            self.failures.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Slot {
    fn to_bytes(self) -> [u8; SIZE] {
        sealed(&[
            b"slot",
            &self.job.0.to_le_bytes(),
            &self.token.0.to_le_bytes(),
            &self.boot,
            &self.nonce.to_le_bytes(),
        ])
    }
    fn from_bytes(bytes: &[u8; SIZE]) -> Option<Self> {
        let mut rest = unsealed(bytes)?.strip_prefix(b"slot")?;
        let job = JobId(u64::from_le_bytes(take(&mut rest)?));
        let token = Token(u64::from_le_bytes(take(&mut rest)?));
        Some(Self { job, token, boot: take(&mut rest)?, nonce: u64::from_le_bytes(take(&mut rest)?) })
    }
}

impl RunHeader {
    fn to_bytes(self) -> [u8; SIZE] {
        let Self { instance, epoch, round } = self;
        sealed(&[&MAGIC, &VERSION.to_le_bytes(), &instance, &epoch.to_le_bytes(), &round.to_le_bytes()])
    }
    fn from_bytes(bytes: &[u8; SIZE]) -> Option<Self> {
        let mut rest = unsealed(bytes)?.strip_prefix(&MAGIC)?;
        if u32::from_le_bytes(take(&mut rest)?) != VERSION {
            return None;
        }
        let instance = take(&mut rest)?;
        Some(Self {
            instance,
            epoch: u32::from_le_bytes(take(&mut rest)?),
            round: u64::from_le_bytes(take(&mut rest)?),
        })
    }
}

fn take<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    let (head, tail) = rest.split_first_chunk::<N>()?;
    *rest = tail;
    Some(*head)
}

/// Whether any bytes, under a right checksum, are a header or a slot; one that was read is the same after it was written.
#[cfg(feature = "fuzzing")]
pub(super) fn comes_back(bytes: &[u8]) -> bool {
    let block = sealed(&[bytes.get(..SIZE - 4).unwrap_or(bytes)]);
    let (header, slot) = (RunHeader::from_bytes(&block), Slot::from_bytes(&block));
    assert!(header.is_none_or(|h| RunHeader::from_bytes(&h.to_bytes()) == Some(h)), "{header:?}");
    assert!(slot.is_none_or(|s| Slot::from_bytes(&s.to_bytes()) == Some(s)), "{slot:?}");
    header.is_some() || slot.is_some()
}

/// Fields, zeroes, checksum: a half-written slot must not name a job.
fn sealed(fields: &[&[u8]]) -> [u8; SIZE] {
    let mut out = [0; SIZE];
    let mut rest = out.as_mut_slice();
    for field in fields {
        // There is always room: a header and a slot have 44 bytes at most.
        let Some((to, after)) = rest.split_at_mut_checked(field.len()) else { break };
        to.copy_from_slice(field);
        rest = after;
    }
    let crc = crc32fast::hash(&out[..SIZE - 4]);
    out[SIZE - 4..].copy_from_slice(&crc.to_le_bytes());
    out
}

fn unsealed(bytes: &[u8; SIZE]) -> Option<&[u8]> {
    let (body, crc) = bytes.split_at(SIZE - 4);
    (crc32fast::hash(body).to_le_bytes() == crc).then_some(body)
}

impl Medium {
    fn read_all(&self) -> io::Result<Vec<u8>> {
        match self {
            Self::File(file) => {
                let (mut file, mut bytes) = (file, Vec::new());
                file.rewind()?;
                file.read_to_end(&mut bytes)?;
                Ok(bytes)
            }
            Self::Memory(bytes) => Ok(bytes.lock().unwrap_or_else(PoisonError::into_inner).clone()),
        }
    }
    fn empty(&self) -> io::Result<()> {
        match self {
            Self::File(file) => file.set_len(0),
            Self::Memory(bytes) => {
                bytes.lock().unwrap_or_else(PoisonError::into_inner).clear();
                Ok(())
            }
        }
    }
    fn write_at(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::File(file) => write_file_at(file, at, bytes),
            Self::Memory(memory) => {
                let mut memory = memory.lock().unwrap_or_else(PoisonError::into_inner);
                let at = usize::try_from(at).map_err(io::Error::other)?;
                if memory.len() < at + bytes.len() {
                    memory.resize(at + bytes.len(), 0);
                }
                memory[at..at + bytes.len()].copy_from_slice(bytes);
                Ok(())
            }
        }
    }
}

#[cfg(unix)]
fn write_file_at(file: &File, at: u64, bytes: &[u8]) -> io::Result<()> {
    std::os::unix::fs::FileExt::write_all_at(file, bytes, at)
}

#[cfg(windows)]
fn write_file_at(file: &File, at: u64, bytes: &[u8]) -> io::Result<()> {
    // One slot is one write here as well: nobody moves this handle's position but this call.
    let written = std::os::windows::fs::FileExt::seek_write(file, bytes, at)?;
    if written == bytes.len() { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
}

/// `<db>.run`.
pub(super) fn sidecar_path(db: &Path) -> PathBuf {
    let mut name = db.as_os_str().to_owned();
    name.push(".run");
    name.into()
}

/// Opens the sidecar of a file, creating an empty one if it is missing.
pub(super) fn open_sidecar(db: &Path) -> io::Result<Medium> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    only_owner(&mut options);
    options.open(sidecar_path(db)).map(Medium::File)
}

/// The whole of a fresh sidecar.
pub(super) fn fresh(header: RunHeader) -> Vec<u8> {
    header.to_bytes().to_vec()
}

#[cfg(all(test, feature = "testkit"))]
/// What a sidecar's bytes say about the file they belong to.
pub(super) fn header_of(bytes: &[u8]) -> Option<RunHeader> {
    bytes.first_chunk().and_then(RunHeader::from_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    const HEADER: RunHeader = RunHeader { instance: [7; 16], epoch: 3, round: 99 };

    fn memory(bytes: Vec<u8>) -> (Medium, Arc<std::sync::Mutex<Vec<u8>>>) {
        let bytes = Arc::new(std::sync::Mutex::new(bytes));
        (Medium::Memory(bytes.clone()), bytes)
    }

    /// A process dies while two of three handlers run: the next one finds exactly these two, and still finds them if it dies
    /// before it has said that its recovery is durable.
    #[test]
    fn a_dead_process_leaves_the_slots_of_its_running_handlers() {
        let (medium, bytes) = memory(fresh(HEADER));
        let (run, header, found) = RunFile::open(medium).unwrap();
        assert_eq!((header, found), (Some(HEADER), vec![]));
        let slots: Vec<_> = (1..=3).map(|n| run.fill(JobId(n), Token(n), [1; 16], 5)).collect();
        run.clear(slots[1]);
        run.note(RunHeader { round: 100, ..HEADER });

        for _ in 0..2 {
            let (run, header, found) = RunFile::open(Medium::Memory(bytes.clone())).unwrap();
            assert_eq!(header.unwrap().round, 100);
            assert_eq!(found.iter().map(|s| s.job.0).collect::<Vec<_>>(), [1, 3]);
            assert_eq!(found[0], Slot { job: JobId(1), token: Token(1), boot: [1; 16], nonce: 5 });
            // New handlers take other places.
            let slot = run.fill(JobId(9), Token(9), [2; 16], 6);
            assert_eq!(slot, slots[1]);
            run.clear(slot);
        }
        let (run, ..) = RunFile::open(Medium::Memory(bytes.clone())).unwrap();
        run.forget_found();
        assert_eq!(RunFile::open(Medium::Memory(bytes)).unwrap().2, []);
        assert_eq!(run.failures(), 0);
    }

    /// A store ends under two handlers, in a file and in memory: their slots name no boot any more, so that nobody is blamed for what ends
    /// the process then. What an earlier process left stays as it is, and so does everything after the end.
    #[test]
    fn a_store_that_ends_under_its_handlers_blames_none_of_them() {
        let path = std::env::temp_dir().join(format!("onceward-blames-none-{}.run", std::process::id()));
        let file = || File::options().read(true).write(true).create(true).truncate(false).open(&path).unwrap();
        std::fs::write(&path, fresh(HEADER)).unwrap();
        for in_file in [true, false] {
            let (memory, bytes) = memory(fresh(HEADER));
            let medium = || if in_file { Medium::File(file()) } else { Medium::Memory(bytes.clone()) };
            drop(memory);
            let (run, ..) = RunFile::open(medium()).unwrap();
            run.fill(JobId(1), Token(1), [1; 16], 5);
            drop(run);
            let (run, _, found) = RunFile::open(medium()).unwrap();
            let left = Slot { job: JobId(1), token: Token(1), boot: [1; 16], nonce: 5 };
            assert_eq!(found, [left]);
            let slot = run.fill(JobId(2), Token(2), [1; 16], 6);
            run.fill(JobId(3), Token(3), [1; 16], 6);
            run.close(false);
            run.clear(slot);
            let (_, _, found) = RunFile::open(medium()).unwrap();
            let mine = |n| Slot { job: JobId(n), token: Token(n), boot: NO_BOOT, nonce: 6 };
            assert_eq!(found, [left, mine(2), mine(3)]);
        }
        std::fs::remove_file(path).unwrap();
    }

    /// The sidecar is garbage, empty or torn in the middle of a slot: it says nothing, and nobody trips over it.
    #[test]
    fn a_garbled_sidecar_says_nothing() {
        let (medium, bytes) = memory(fresh(HEADER));
        let (run, ..) = RunFile::open(medium).unwrap();
        run.fill(JobId(1), Token(1), [1; 16], 5);
        let good = bytes.lock().unwrap().clone();
        let mut tried = 0;
        for n in 0..good.len() {
            let (cut, _) = memory(good[..n].to_vec());
            let (_, header, found) = RunFile::open(cut).unwrap();
            assert_eq!((header.is_some(), found.len()), (n >= SIZE, 0), "cut to {n}");
            let (mut flipped, at) = (good.clone(), n);
            flipped[at] ^= 0x10;
            let (flipped, _) = memory(flipped);
            let (_, header, found) = RunFile::open(flipped).unwrap();
            assert_eq!((header.is_some(), found.len()), (n >= SIZE, 0), "byte {n}");
            tried += 2;
        }
        assert_eq!(tried, 4 * SIZE);
    }
}
