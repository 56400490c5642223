//! How this process left an open file. Keeps the promise that whatever becomes of the file from outside - it is cut, written over, a
//! page of it rots - is an error and never a value: redb checks its pages when it opens a file, and believes them afterwards.
//! Used by everything that reads or writes a file under redb.

use parking_lot::Mutex;
use redb::StorageBackend;
use std::io;
use std::ops::Range;

/// What is looked after as one: a page of redb is one of them or several.
pub(super) const BLOCK: usize = 4096;
/// So much of the file changes with every commit: redb's header names the newest root and its checksum.
const HEAD: usize = 512;

/// A file, and what it must look like.
pub(super) struct Base {
    pub(super) disk: Box<dyn StorageBackend>,
    left: Mutex<Left>,
}

struct Left {
    /// The file is not shorter.
    len: u64,
    /// How it begins; empty where a write failed, so that nobody knows.
    head: Vec<u8>,
    /// Sums of the blocks that were read or written; 0 where that is not known.
    sums: Vec<u32>,
}

impl Base {
    pub(super) fn new(disk: Box<dyn StorageBackend>) -> io::Result<Self> {
        let len = disk.len()?;
        let mut head = vec![0; usize::try_from(len).unwrap_or(HEAD).min(HEAD)];
        disk.read(0, &mut head)?;
        Ok(Self { disk, left: Mutex::new(Left { len, head, sums: Vec::new() }) })
    }
    /// What was read or written before is the same now. A page that is read is not written meanwhile: redb writes copies.
    pub(super) fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let blocks = whole(offset, out.len());
        let known: Vec<u32> = {
            let left = self.left.lock();
            blocks.clone().map(|block| left.sum(block)).collect()
        };
        self.disk.read(offset, out)?;
        for (block, known) in blocks.zip(known) {
            let inside = usize::try_from(block * BLOCK as u64 - offset).unwrap_or_default();
            let now = sum(&out[inside..inside + BLOCK]);
            if now != known {
                let mut left = self.left.lock();
                match left.sum(block) {
                    0 if known == 0 => left.set(block, now),
                    other if other == known => return Err(other_bytes(block)),
                    // Written meanwhile.
                    _ => {}
                }
            }
        }
        Ok(())
    }
    pub(super) fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let begins = offset < HEAD as u64;
        let mut head = {
            let mut left = self.left.lock();
            let touched = offset / BLOCK as u64..(offset + data.len() as u64).div_ceil(BLOCK as u64);
            touched.for_each(|block| left.set(block, 0));
            if begins { std::mem::take(&mut left.head) } else { Vec::new() }
        };
        // Readers of other places need not wait for the disk.
        self.disk.write(offset, data)?;
        let mut left = self.left.lock();
        for block in whole(offset, data.len()) {
            let inside = usize::try_from(block * BLOCK as u64 - offset).unwrap_or_default();
            left.set(block, sum(&data[inside..inside + BLOCK]));
        }
        if begins {
            let from = usize::try_from(offset).unwrap_or(HEAD);
            head.iter_mut().skip(from).zip(data).for_each(|(to, byte)| *to = *byte);
            left.head = head;
        }
        left.len = left.len.max(offset + data.len() as u64);
        Ok(())
    }
    pub(super) fn set_len(&self, len: u64) -> io::Result<()> {
        let mut left = self.left.lock();
        // One that fails may have cut it all the same.
        left.len = left.len.min(len);
        left.sums.truncate(usize::try_from(len / BLOCK as u64).unwrap_or(usize::MAX));
        self.disk.set_len(len)?;
        left.len = len;
        Ok(())
    }
    /// After a failed sync the system may show what is on the disk, or what should be: nothing is known until it is opened anew.
    pub(super) fn sync(&self) -> io::Result<()> {
        self.disk.sync_data().inspect_err(|_| {
            let mut left = self.left.lock();
            (left.len, left.head, left.sums) = (0, Vec::new(), Vec::new());
        })
    }
    /// What somebody else did to it, as far as its length and its header say.
    pub(super) fn differs(&self) -> io::Result<Option<String>> {
        let left = self.left.lock();
        let found = self.disk.len()?;
        if found < left.len {
            return Ok(Some(format!("cut from {} to {found} bytes", left.len)));
        }
        let mut now = vec![0; left.head.len()];
        self.disk.read(0, &mut now)?;
        Ok((now != left.head).then(|| "written over".to_owned()))
    }
    /// Writes these places once more, as they are read. A system that failed to write something back tries it no more, but goes on showing
    /// it: what is written next might be on the disk without it.
    pub(super) fn write_again(&self, places: &[(u64, usize)]) -> io::Result<()> {
        let len = self.disk.len()?;
        self.disk.set_len(len)?;
        let mut bytes = Vec::new();
        for (at, n) in places {
            let n = usize::try_from(len.saturating_sub(*at)).unwrap_or(*n).min(*n);
            if n == 0 {
                continue;
            }
            bytes.resize(n, 0);
            self.disk.read(*at, &mut bytes)?;
            self.disk.write(*at, &bytes)?;
        }
        self.disk.sync_data()
    }
}

impl Left {
    fn sum(&self, block: u64) -> u32 {
        usize::try_from(block).ok().and_then(|n| self.sums.get(n)).copied().unwrap_or(0)
    }
    fn set(&mut self, block: u64, sum: u32) {
        let Ok(n) = usize::try_from(block) else { return };
        if n >= self.sums.len() {
            if sum == 0 {
                return;
            }
            self.sums.resize(n + 1, 0);
        }
        self.sums[n] = sum;
    }
}

/// Blocks that lie in it as a whole.
fn whole(offset: u64, len: usize) -> Range<u64> {
    offset.div_ceil(BLOCK as u64)..(offset + len as u64) / BLOCK as u64
}

fn other_bytes(block: u64) -> io::Error {
    let at = block * BLOCK as u64;
    io::Error::other(format!("the {BLOCK} bytes at {at} are not those that were written there"))
}

/// Never 0, which says that nothing is known.
fn sum(block: &[u8]) -> u32 {
    crc32fast::hash(block).max(1)
}
