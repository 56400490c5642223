//! Room on the disk that is kept for what became of things. Keeps the promise that a full disk does not cost the memory of a charge:
//! a reserve is given up first, in two parts, and meanwhile nothing new is taken, so that what is under way can still be recorded.
//!
//! redb writes copies, so that even a commit which changes no length needs room. Used by the writer when it heals, and by `open`.

use super::error::StoreError;
use super::options::{Place, StoreOptions};
use super::private::only_owner;
use crate::model::room::Room;
use crate::model::time::{Mono, millis};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// One part: some thousand pages more than the commit of an outcome copies.
const PART: u64 = 1 << 20;
/// Both parts.
const PARTS: u64 = 2;
/// A reserve is taken back only where so much more room is left: else it would be given up again at once.
const MARGIN: u64 = 4 << 20;
/// How often it is tried to take it back.
pub const EVERY: Duration = Duration::from_secs(10);

/// What is kept of the disk's room.
pub(super) struct Reserve {
    place: Place,
    parts: u64,
    tried: Option<Mono>,
}

impl Reserve {
    /// As an earlier process left it, filled up if there is room.
    pub(super) fn open(place: &Place) -> Self {
        let held = place.reserved();
        let mut reserve = Self { place: place.clone(), parts: (held / PART).min(PARTS), tried: None };
        // A small disk is no full one; one that was full when an earlier process ended has to have room to spare.
        let was_full = held > 0 && held < PARTS * PART;
        reserve.fill(if was_full { MARGIN } else { 0 });
        reserve
    }
    /// What the disk has room for.
    pub(super) fn room(&self) -> Room {
        match self.parts {
            0 => Room::Critical,
            1 => Room::Low,
            _ => Room::Normal,
        }
    }
    /// The disk is full: gives up a part. `false` if nothing is left.
    pub(super) fn give_up(&mut self) -> bool {
        if self.parts == 0 {
            return false;
        }
        self.parts -= 1;
        // What cannot be cut is given up as a whole.
        if self.place.cut_reserve(self.parts * PART).is_err() {
            self.parts = 0;
            let _gone = self.place.cut_reserve(0);
        }
        true
    }
    /// Takes back what was given up, if there is room again; not more often than every ten seconds. Whether it was
    /// tried.
    pub(super) fn take_back(&mut self, now: Mono) -> bool {
        if self.parts == PARTS || self.tried.is_some_and(|at| now.since(at) < millis(EVERY)) {
            return false;
        }
        self.tried = Some(now);
        self.fill(MARGIN);
        true
    }
    /// As much of it as there is room for.
    fn fill(&mut self, margin: u64) {
        for parts in (self.parts + 1..=PARTS).rev() {
            match self.place.reserve(parts * PART, margin).map_err(StoreError::from) {
                Ok(()) => self.parts = parts,
                Err(StoreError::Full(_)) => continue,
                // There can be none, for another reason than room: that refuses nobody's work.
                Err(_) => self.parts = PARTS,
            }
            return;
        }
    }
}

/// Opens a store whose disk may be full: the reserve was kept for that, too.
pub(super) fn on_full_disk<T>(
    options: &StoreOptions,
    open: impl Fn(&StoreOptions) -> Result<T, StoreError>,
) -> Result<T, StoreError> {
    let mut opened = open(options);
    for parts in (0..PARTS).rev() {
        if !matches!(opened, Err(StoreError::Full(_))) || options.place.reserved() <= parts * PART {
            continue;
        }
        if options.place.cut_reserve(parts * PART).is_err() {
            break;
        }
        opened = open(options);
    }
    opened
}

impl Place {
    /// How much is reserved.
    fn reserved(&self) -> u64 {
        match self {
            Self::File(path) => ours(&beside(path)).map_or(0, |len| len.unwrap_or(0)),
            #[cfg(feature = "testkit")]
            Self::Disk(disk) => disk.reserved(),
        }
    }
    fn cut_reserve(&self, to: u64) -> io::Result<()> {
        match self {
            Self::File(path) => {
                let path = beside(path);
                if ours(&path)?.is_none() {
                    return Ok(());
                }
                let file = OpenOptions::new().write(true).open(path)?;
                // Never longer than it is: a hole would reserve nothing.
                file.set_len(file.metadata()?.len().min(to))?;
                file.sync_all()
            }
            #[cfg(feature = "testkit")]
            Self::Disk(disk) => disk.reserve(to),
        }
    }
    /// Reserves so much, if there is so much more room besides.
    fn reserve(&self, len: u64, margin: u64) -> io::Result<()> {
        match self {
            Self::File(path) => reserve_file(&beside(path), len, margin),
            #[cfg(feature = "testkit")]
            Self::Disk(disk) => disk.reserve(len + margin).and_then(|()| disk.reserve(len)),
        }
    }
}

fn beside(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".reserve");
    PathBuf::from(name)
}

/// How a reserve begins: a file of this name that does not is somebody else's.
const HEAD: &[u8] = b"onceward: room kept on the disk, no data; it may be removed while the queue is closed\n";

/// How long our reserve is; `None` if there is none.
fn ours(path: &Path) -> io::Result<Option<u64>> {
    let found = match fs::symlink_metadata(path) {
        Ok(found) => found,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(e),
    };
    if found.is_file() && found.len() == 0 {
        return Ok(Some(0));
    }
    let mut head = vec![0; HEAD.len()];
    let read = found.is_file().then(|| File::open(path).and_then(|mut f| io::Read::read_exact(&mut f, &mut head)));
    match read {
        Some(Ok(())) if head == HEAD => Ok(Some(found.len())),
        Some(Ok(()) | Err(_)) | None => Err(io::Error::other(format!("{} is not a reserve of ours", path.display()))),
    }
}

/// Written in full, with bytes that no file system makes smaller: a hole would reserve nothing.
fn reserve_file(path: &Path, len: u64, margin: u64) -> io::Result<()> {
    ours(path)?;
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(false);
    only_owner(&mut options);
    let mut file = options.open(path)?;
    let before = file.metadata()?.len();
    let filled = fill(&mut file, before, len + margin);
    // Also where it did not fit: nothing of the try stays.
    let cut = file.set_len(if filled.is_ok() { len } else { before.min(len) });
    filled?;
    cut?;
    file.sync_all()
}

fn fill(file: &mut File, from: u64, to: u64) -> io::Result<()> {
    io::Seek::seek(file, io::SeekFrom::Start(from))?;
    let mut noise = from + 1;
    let mut block = vec![0; 1 << 16];
    let mut at = from;
    while at < to {
        for word in block.chunks_exact_mut(8) {
            // xorshift64.
            noise ^= noise << 13;
            noise ^= noise >> 7;
            noise ^= noise << 17;
            word.copy_from_slice(&noise.to_le_bytes());
        }
        if at == 0 {
            block[..HEAD.len()].copy_from_slice(HEAD);
        }
        let n = usize::try_from(to - at).unwrap_or(block.len()).min(block.len());
        file.write_all(&block[..n])?;
        at += n as u64;
    }
    // Some file systems look for room only now.
    file.sync_data()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file beside the database: filled once, cut part by part, filled again, and found as it is by the next process.
    #[test]
    fn a_reserve_is_filled_given_up_and_taken_back() {
        let folder = tempfile::tempdir().expect("a folder");
        let place = Place::File(folder.path().join("a.redb"));
        let mut reserve = Reserve::open(&place);
        assert_eq!((reserve.room(), place.reserved()), (Room::Normal, PARTS * PART));
        assert!(reserve.give_up());
        assert_eq!((reserve.room(), place.reserved()), (Room::Low, PART));
        assert!(reserve.give_up() && !reserve.give_up());
        assert_eq!((reserve.room(), place.reserved()), (Room::Critical, 0));
        assert!(reserve.take_back(Mono(0)));
        assert_eq!((reserve.room(), place.reserved()), (Room::Normal, PARTS * PART));
        assert!(reserve.give_up());
        assert!(!reserve.take_back(Mono(millis(EVERY) - 1)));
        assert_eq!(reserve.room(), Room::Low, "not at once again");
        assert_eq!(Reserve::open(&place).room(), Room::Normal, "the next process has room");
    }

    /// Something else has the name of the reserve: it is left alone, and nobody's work is refused for it.
    #[test]
    fn what_is_no_reserve_is_left_alone() {
        let folder = tempfile::tempdir().expect("a folder");
        let place = Place::File(folder.path().join("a.redb"));
        let reserve = beside(&folder.path().join("a.redb"));
        let check = || {
            let mut reserve = Reserve::open(&place);
            assert_eq!((reserve.room(), place.reserved()), (Room::Normal, 0));
            assert!(reserve.give_up());
        };
        fs::create_dir(&reserve).expect("a folder in its place");
        check();
        fs::remove_dir(&reserve).expect("removed");
        fs::write(&reserve, b"my notes").expect("written");
        check();
        assert_eq!(fs::read(&reserve).expect("there"), b"my notes");
        #[cfg(unix)]
        {
            let other = folder.path().join("other");
            fs::write(&other, b"").expect("written");
            fs::remove_file(&reserve).expect("removed");
            std::os::unix::fs::symlink(&other, &reserve).expect("linked");
            check();
            assert_eq!(fs::read(&other).expect("there"), b"");
        }
    }
}
