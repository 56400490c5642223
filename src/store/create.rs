//! How a store's file comes to be, is recognised, opened and reopened. Keeps the promises that a crash during creation leaves no
//! file that never opens, and that a file which is not surely ours is refused before anything is written to it.
//! Called by [`Store::open`](super::Store::open) and by the writer when it heals.
#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "redb's and std's enums may grow: what is new is handled as the rest"
)]

use super::app::panic_text;
use super::backend::{Backing, Image};
use super::error::StoreError;
use super::intents::load::load;
use super::intents::memory::{Memory, Sizes};
use super::options::{Commits, Met, Opened, Place, StoreOptions};
use super::private::only_owner;
use super::read::{Rows, View, number};
use super::refused::{HEAD, Head, named};
use super::run_file::{self, Medium, RunFile, RunHeader};
use super::schema::{FORMAT, META_EPOCH, META_FORMAT, META_HASH, META_INSTANCE, META_LIVE, OLDEST, PREFIX, REWOUND};
use super::write::{Kept, Live, Write};
use crate::model::Limits;
use crate::model::id::{Token, random_bytes, random_hex};
use crate::planted::on;
use redb::backends::FileBackend;
use redb::{
    Builder, Database, DatabaseError, ReadTransaction, ReadableDatabase, StorageBackend, StorageError, TableHandle,
    TransactionError, WriteTransaction,
};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What the meta table says about a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Meta {
    pub(super) instance: [u8; 16],
    /// The key of the hashes of intents.
    pub(super) hash: [u8; 16],
    pub(super) epoch: u32,
    pub(super) live: Live,
}

/// An open database, and the file under it.
pub(super) struct OpenFile {
    pub(super) db: Database,
    file: Backing,
    path: PathBuf,
}

impl OpenFile {
    /// Closes the database and frees the file, even if app code still holds a piece of a transaction. `Stopped` if somebody cut the file
    /// or wrote over it: nothing more was written to it, and it is not ours to open again.
    pub(super) fn close(self) -> Result<(), StoreError> {
        let closed = self.db.close();
        self.file.take_away();
        if let Some(how) = self.file.meddled() {
            return Err(StoreError::Stopped(format!("{} was {how} while it was open", self.path.display())));
        }
        match closed {
            // Every commit is durable; only the next open has more to do.
            Ok(()) | Err(DatabaseError::TransactionInProgress) => Ok(()),
            Err(e) => Err(e.into()),
        }
    }
}

/// Everything that [`open`] makes.
pub(super) struct Base {
    pub(super) db: OpenFile,
    pub(super) meta: Meta,
    pub(super) run: RunFile,
    pub(super) memory: Memory,
    pub(super) opened: Opened,
}

/// Tokens of a process that is not surely known here may be out there: these many epochs are skipped.
const EPOCHS_SKIPPED: u32 = 16;
/// And these many job numbers, and numbers of messages in every topic.
const IDS_SKIPPED: u64 = 1 << 32;
const LAST_EPOCH: u32 = (1 << (64 - Token::COUNTER_BITS)) - 1;

/// Opens the file, creating it if there is none, and makes a new epoch durable. What goes wrong names the file.
pub(super) fn open(options: &StoreOptions) -> Result<Base, StoreError> {
    let place = &options.place;
    make(options).map_err(|e| named(&place.path(), e, || place.is_out_of_reach(), || place.head().ok()))
}

/// The header of a sidecar that cannot be read, of whichever file it was.
const NOBODYS: RunHeader = RunHeader { instance: [0; 16], epoch: 0, round: 0 };

fn make(options: &StoreOptions) -> Result<Base, StoreError> {
    let place = &options.place;
    if !place.exists()? {
        place.install(&new_image(options.limits)?)?;
    }
    let (db, found) = database(options)?;
    let created = found.epoch == 0;
    if created {
        place.clear_leftovers();
        // Before the first epoch is durable: a store that was ever used has a sidecar, unless somebody lost it. One that is there
        // already is of a file that is gone: what it says of itself stays, so that this empty one is known not to know what happened.
        // The file is a new one: a process that still works on the old one clears its own slots, not ours.
        let header = match place.has_sidecar() {
            true => place.sidecar().and_then(RunFile::open).map_err(|e| place.of_sidecar(e))?.1.unwrap_or(NOBODYS),
            false => RunHeader { instance: found.instance, epoch: found.epoch, round: found.live.round },
        };
        place.write_fresh_sidecar(&run_file::fresh(header)).map_err(|e| place.of_sidecar(e))?;
    }
    let (run, header, slots) = place.sidecar().and_then(RunFile::open).map_err(|e| place.of_sidecar(e))?;
    let known = header.filter(|h| h.instance == found.instance);
    let (next, rewound) = next_meta(found, known)?;
    let (memory, unreadable) = memory(&db.db, &found, options)?;
    let tx = begin(&db.db, options.commits)?;
    let running = {
        let mut w = Write::new(&tx, &memory, next.live, options.limits, Kept::default());
        w.rows.tables.complete(&tx)?;
        w.set_own_meta(META_EPOCH, &next.epoch.to_le_bytes())?;
        if rewound {
            // In the same commit that lets the sidecar catch up: afterwards nothing else would show it.
            w.put_meta(REWOUND, &next.epoch.to_le_bytes())?;
            w.skip_message_numbers(IDS_SKIPPED)?;
        }
        w.finish(next.live.round)?;
        w.running()?
    };
    tx.commit()?;
    if known.is_none() {
        run.start_over()?;
    }
    run.note(RunHeader { instance: next.instance, epoch: next.epoch, round: next.live.round });
    let opened = Opened {
        path: place.path(),
        created,
        instance: next.instance,
        epoch: next.epoch,
        round: found.live.round,
        running,
        // Slots of another file say nothing about this one.
        slots: if known.is_some() { slots } else { Vec::new() },
        header: if created { None } else { header },
        rewound,
        unreadable,
    };
    Ok(Base { db, meta: next, run, memory, opened })
}

/// The index of intents as the file has it, and what of it could not be read.
pub(super) fn memory(db: &Database, meta: &Meta, options: &StoreOptions) -> Result<(Memory, Vec<String>), StoreError> {
    guarded(|| {
        let tx = db.begin_read()?;
        let empty = Memory::new(meta.hash, options.intents);
        load(&Rows::new(&tx, &empty), meta.hash, options.intents)
    })
}

/// Opens the file again while its process lives: the same epoch, nothing recovered, nothing counted.
pub(super) fn reopen(options: &StoreOptions, known: &Meta) -> Result<(OpenFile, Meta), StoreError> {
    let (db, found) = database(options)?;
    // Only ours could have raised the epoch meanwhile: token counters near their end ask for it.
    if found.instance != known.instance || found.epoch < known.epoch {
        let path = options.place.path();
        let why = format!("another file, or another process's work, is at {}", path.display());
        return Err(StoreError::Stopped(why));
    }
    Ok((db, found))
}

/// A transaction whose commit survives what the options say.
pub(super) fn begin(db: &Database, commits: Commits) -> Result<WriteTransaction, StoreError> {
    // Nobody else writes, so the only other transaction is one that app code keeps alive by a forgotten table.
    let mut tx = db.try_begin_write().map_err(|e| match e {
        TransactionError::WouldBlock => StoreError::Io("app code keeps the last transaction open".to_owned()),
        other => other.into(),
    })?;
    tx.set_two_phase_commit(commits == Commits::TwoPhase);
    Ok(tx)
}

/// The epoch and the numbers of a new process. If the sidecar knows of rounds that the file does not have, or is missing, an
/// older copy may have been put back: then nothing that was handed out since may be handed out again.
fn next_meta(found: Meta, sidecar: Option<RunHeader>) -> Result<(Meta, bool), StoreError> {
    let rewound = !on("rewound-unseen") && sidecar.is_none_or(|h| h.round > found.live.round || h.epoch > found.epoch);
    let newest = sidecar.map_or(found.epoch, |h| h.epoch.max(found.epoch));
    let epoch = newest.saturating_add(if rewound { EPOCHS_SKIPPED } else { u32::from(!on("epoch-reused")) });
    if epoch > LAST_EPOCH {
        return Err(StoreError::damaged(format!("epoch {epoch} does not fit a fencing token")));
    }
    let newest = sidecar.map_or(found.live.round, |h| h.round.max(found.live.round));
    let round = first_round_after(newest);
    let last_id = found.live.last_id.saturating_add(if rewound { IDS_SKIPPED } else { 0 });
    Ok((Meta { epoch, live: Live { round, last_id }, ..found }, rewound))
}

/// Every process start has a range of rounds of its own. A heal recognises by the round's number what became of its last
/// commit: with consecutive numbers the first commit of another process would look just like it.
fn first_round_after(round: u64) -> u64 {
    ((round >> 32) + 1) << 32
}

/// A new, empty store as bytes: all tables, no epoch yet.
fn new_image(limits: Limits) -> Result<Vec<u8>, StoreError> {
    let image = Image::default();
    let db = Builder::new().set_cache_size(1 << 20).create_with_backend(image.clone())?;
    let memory = Memory::new([0; 16], Sizes::default());
    let tx = begin(&db, Commits::TwoPhase)?;
    {
        let mut w = Write::new(&tx, &memory, Live::default(), limits, Kept::default());
        w.rows.tables.create(&tx)?;
        w.rows.tables.meta.write(&tx)?.insert(META_FORMAT, format_mark(FORMAT).as_slice())?;
        w.set_own_meta(META_INSTANCE, &random_bytes())?;
        w.set_own_meta(META_HASH, &random_bytes())?;
        w.set_own_meta(META_EPOCH, &0u32.to_le_bytes())?;
        w.finish(0)?;
    }
    tx.commit()?;
    db.close()?;
    Ok(image.bytes())
}

const FORMAT_MARK: &[u8; 8] = b"onceward";

/// Not in a record's envelope: every later version must be able to read it.
fn format_mark(format: u32) -> Vec<u8> {
    [&FORMAT_MARK[..], &format.to_le_bytes()].concat()
}

const MAGIC: [u8; 9] = *b"redb\x1A\x0A\xA9\x0D\x0A";

/// Whether the tables are ours and of a format that is known here.
fn look(place: &Place, tx: &ReadTransaction) -> Result<Meta, StoreError> {
    let foreign = |why: String| StoreError::Foreign { path: place.path(), why };
    let half = |why: &str| StoreError::Half { path: place.path(), why: why.to_owned() };
    let names: Vec<String> = tx.list_tables()?.map(|t| t.name().to_owned()).collect();
    if !names.iter().any(|n| n.starts_with(PREFIX)) {
        return Err(foreign("it is a redb database of another program".to_owned()));
    }
    let unasked = Memory::new([0; 16], Sizes::default());
    let rows: View<'_> = Rows::new(tx, &unasked);
    let mark = match rows.tables.meta.read(tx) {
        Ok(meta) => meta.get(META_FORMAT)?.map(|v| v.value().to_vec()),
        Err(StoreError::Damaged { why, .. }) => return Err(foreign(why)),
        Err(e) => return Err(e),
    };
    let format = match mark.as_deref().and_then(|m| m.strip_prefix(FORMAT_MARK)) {
        None => return Err(half("it has no format mark")),
        Some(bytes) => number(bytes, "the format")?,
    };
    if format > FORMAT {
        return Err(StoreError::Newer { path: place.path(), found: format, known: FORMAT });
    }
    if format < OLDEST {
        return Err(foreign(format!("it has format {format}, from before the first release")));
    }
    let instance = rows.own_meta(META_INSTANCE)?.and_then(|v| v.try_into().ok());
    let hash = rows.own_meta(META_HASH)?.and_then(|v| v.try_into().ok());
    let (epoch, live) = (rows.own_meta(META_EPOCH)?, rows.own_meta(META_LIVE)?);
    let (Some(instance), Some(hash), Some(epoch), Some(live)) = (instance, hash, epoch, live) else {
        return Err(half("its own settings are not complete"));
    };
    Ok(Meta { instance, hash, epoch: number(&epoch, "the epoch")?, live: Live::from_bytes(&live)? })
}

/// Opens what is surely ours; anything else is refused and stays as it was.
fn database(options: &StoreOptions) -> Result<(OpenFile, Meta), StoreError> {
    let place = &options.place;
    let file = place.backend(&options.met)?;
    refuse_strangers(place, &file)?;
    let mut builder = Builder::new();
    builder.set_cache_size(options.cache_bytes).set_check_integrity_on_open(options.check_integrity);
    let examined = guarded(|| builder.create_with_backend(file.clone()).map_err(|e| refused(place, e)))
        .map(|db| OpenFile { db, file: file.clone(), path: place.path() })
        .and_then(|open| guarded(|| look(place, &open.db.begin_read()?)).map(|meta| (open, meta)));
    if examined.is_err() {
        file.take_away();
    }
    let (open, meta) = examined?;
    file.admit()?;
    Ok((open, meta))
}

/// By the first bytes. redb would start a new database in an empty file, which would forget every effect.
fn refuse_strangers(place: &Place, file: &Backing) -> Result<(), StoreError> {
    let foreign = |why: String| Err(StoreError::Foreign { path: place.path(), why });
    let mut magic = [0; MAGIC.len()];
    match file.len()? {
        0 => Err(StoreError::Half { path: place.path(), why: "it is empty".to_owned() }),
        len if len < magic.len() as u64 => foreign(format!("it has {len} bytes")),
        _ => {
            file.read(0, &mut magic)?;
            if magic == MAGIC { Ok(()) } else { foreign("it is not a redb database".to_owned()) }
        }
    }
}

/// Without the check of every page redb may panic over damaged ones.
fn guarded<T>(f: impl FnOnce() -> Result<T, StoreError>) -> Result<T, StoreError> {
    catch_unwind(AssertUnwindSafe(f)).unwrap_or_else(|p| Err(StoreError::damaged(panic_text(p))))
}

/// What redb says about a file, in our words.
fn refused(place: &Place, e: DatabaseError) -> StoreError {
    let path = place.path();
    match e {
        DatabaseError::DatabaseAlreadyOpen | DatabaseError::LockProtocolMismatch => StoreError::AlreadyOpen { path },
        DatabaseError::UpgradeRequired(v) => StoreError::Foreign { path, why: format!("its redb file format is {v}") },
        DatabaseError::Storage(StorageError::Io(e)) if e.kind() == io::ErrorKind::InvalidData => {
            StoreError::Foreign { path, why: e.to_string() }
        }
        DatabaseError::Storage(StorageError::Io(e)) if e.kind() == io::ErrorKind::UnexpectedEof => {
            StoreError::Half { path, why: "it ends too early".to_owned() }
        }
        DatabaseError::RepairAborted => StoreError::damaged("it cannot be repaired"),
        other => other.into(),
    }
}

impl Place {
    /// Where a symbolic link leads: file and sidecar have one name, whichever way they were found. A link to nothing is refused: an
    /// empty queue in the place of one that is not there at the moment would forget what already happened.
    pub(super) fn followed(self) -> Result<Self, StoreError> {
        match self {
            Self::File(path) if fs::symlink_metadata(&path).is_ok_and(|m| m.is_symlink()) => {
                match fs::canonicalize(&path) {
                    Ok(real) => Ok(Self::File(real)),
                    Err(e) => {
                        let to = fs::read_link(&path).unwrap_or_default();
                        let why =
                            format!("it is a link to {}, which is not there: {e}; is its disk there?", to.display());
                        Err(StoreError::CannotOpen { path, why })
                    }
                }
            }
            other => Ok(other),
        }
    }
    /// Which file is at the path now: it must stay the one that was opened, because a commit into a removed file succeeds.
    pub(super) fn file_id(&self) -> Option<(u64, u64)> {
        match self {
            #[cfg(unix)]
            Self::File(path) => {
                use std::os::unix::fs::MetadataExt;
                fs::metadata(path).ok().map(|m| (m.dev(), m.ino()))
            }
            // Elsewhere an open file cannot be removed.
            #[cfg(not(unix))]
            Self::File(_) => None,
            #[cfg(feature = "testkit")]
            Self::Disk(_) => None,
        }
    }
    /// For messages.
    pub(super) fn path(&self) -> PathBuf {
        match self {
            Self::File(path) => path.clone(),
            #[cfg(feature = "testkit")]
            Self::Disk(_) => PathBuf::from("(simulated disk)"),
        }
    }
    fn exists(&self) -> Result<bool, StoreError> {
        match self {
            Self::File(path) => match fs::metadata(path) {
                Ok(m) if m.is_file() => Ok(true),
                Ok(_) => Err(StoreError::Foreign { path: path.clone(), why: "it is not a file".to_owned() }),
                Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
                Err(e) => Err(e.into()),
            },
            #[cfg(feature = "testkit")]
            Self::Disk(disk) => Ok(disk.exists()),
        }
    }
    /// Whether the file is missing, or not ours to read and write: then it is not the disk that failed.
    fn is_out_of_reach(&self) -> bool {
        match self {
            Self::File(path) => out_of_reach(path),
            #[cfg(feature = "testkit")]
            Self::Disk(_) => false,
        }
    }
    /// How the file begins, and how long it is.
    fn head(&self) -> io::Result<Head> {
        let mut bytes = [0; HEAD];
        match self {
            Self::File(path) => {
                let mut file = File::open(path)?;
                let len = file.metadata()?.len();
                if len >= HEAD as u64 {
                    io::Read::read_exact(&mut file, &mut bytes)?;
                }
                Ok(Head { bytes, len })
            }
            #[cfg(feature = "testkit")]
            Self::Disk(disk) => {
                let disk = disk.open()?;
                let len = disk.len()?;
                if len >= HEAD as u64 {
                    disk.read(0, &mut bytes)?;
                }
                disk.close()?;
                Ok(Head { bytes, len })
            }
        }
    }
    /// An error about the sidecar names the sidecar.
    fn of_sidecar(&self, e: StoreError) -> StoreError {
        match self {
            Self::File(path) => {
                let path = run_file::sidecar_path(path);
                named(&path, e, || out_of_reach(&path), || None)
            }
            #[cfg(feature = "testkit")]
            Self::Disk(_) => e,
        }
    }
    /// Puts a whole new file in place, unless somebody else was faster.
    fn install(&self, image: &[u8]) -> Result<(), StoreError> {
        match self {
            Self::File(path) => Ok(install_file(path, image)?),
            #[cfg(feature = "testkit")]
            Self::Disk(disk) => Ok(disk.install(image)?),
        }
    }
    /// Temporary files of creations that a crash cut short, perhaps one of them a second name of this very file. The file is open
    /// and locked, so whoever is about to install another one will find that there is one.
    fn clear_leftovers(&self) {
        match self {
            Self::File(path) => clear_leftovers(path),
            #[cfg(feature = "testkit")]
            Self::Disk(_) => {}
        }
    }
    fn backend(&self, met: &Arc<Met>) -> Result<Backing, StoreError> {
        match self {
            Self::File(path) => {
                let file = OpenOptions::new().read(true).write(true).open(path)?;
                let file = FileBackend::new(file).map_err(|e| refused(self, e))?;
                Ok(Backing::new(Box::new(file), met)?)
            }
            #[cfg(feature = "testkit")]
            Self::Disk(disk) => Ok(Backing::new(disk.open()?, met)?),
        }
    }
    /// Whether there is one that says anything.
    fn has_sidecar(&self) -> bool {
        match self {
            Self::File(path) => fs::metadata(run_file::sidecar_path(path)).is_ok_and(|m| m.len() > 0),
            #[cfg(feature = "testkit")]
            Self::Disk(disk) => !disk.sidecar().lock().unwrap_or_else(std::sync::PoisonError::into_inner).is_empty(),
        }
    }
    fn sidecar(&self) -> Result<Medium, StoreError> {
        match self {
            Self::File(path) => Ok(run_file::open_sidecar(path)?),
            #[cfg(feature = "testkit")]
            Self::Disk(disk) => Ok(Medium::Memory(disk.sidecar())),
        }
    }
    fn write_fresh_sidecar(&self, bytes: &[u8]) -> Result<(), StoreError> {
        match self {
            Self::File(path) => {
                let path = run_file::sidecar_path(path);
                let temporary = write_temporary(&path, bytes)?;
                fs::rename(&temporary, &path)?;
                Ok(sync_dir_of(&path)?)
            }
            #[cfg(feature = "testkit")]
            Self::Disk(disk) => {
                *disk.sidecar().lock().unwrap_or_else(std::sync::PoisonError::into_inner) = bytes.to_vec();
                Ok(())
            }
        }
    }
}

fn out_of_reach(path: &Path) -> bool {
    OpenOptions::new().read(true).write(true).open(path).is_err()
}

/// Written under another name, synced, then linked to its own: a crash leaves the whole file or none. Linking, unlike renaming,
/// never replaces a file that another process created meanwhile.
fn install_file(path: &Path, image: &[u8]) -> io::Result<()> {
    let temporary = write_temporary(path, image)?;
    let linked = match fs::hard_link(&temporary, path) {
        // Somebody else was faster, and may have cleared our temporary file away.
        Err(_) if path.exists() => Ok(()),
        Err(_) => fs::rename(&temporary, path),
        Ok(()) => Ok(()),
    };
    // Gone already after a rename. A crash before this leaves it to the first open, which clears it away.
    let _gone = fs::remove_file(&temporary);
    linked?;
    sync_dir_of(path)
}

/// The end of a temporary file's name, after that of the file that it becomes: `.`, this many hex digits, `.new`.
const TEMPORARY_DIGITS: usize = 12;

fn write_temporary(path: &Path, bytes: &[u8]) -> io::Result<PathBuf> {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{}.new", &random_hex()[..TEMPORARY_DIGITS]));
    let temporary = PathBuf::from(name);
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    only_owner(&mut options);
    let written = options.open(&temporary).and_then(|mut file| {
        file.write_all(bytes)?;
        file.sync_all()
    });
    match written {
        Ok(()) => Ok(temporary),
        Err(e) => {
            let _gone = fs::remove_file(&temporary);
            Err(e)
        }
    }
}

fn clear_leftovers(path: &Path) {
    let (Some(name), Ok(files)) = (path.file_name().and_then(|n| n.to_str()), fs::read_dir(dir_of(path))) else {
        return;
    };
    let ours = |file: &str| {
        let digits = file.strip_prefix(name).and_then(|f| f.strip_suffix(".new"));
        let digits = digits.and_then(|d| d.strip_prefix(".run.").or_else(|| d.strip_prefix('.')));
        digits.is_some_and(|d| d.len() == TEMPORARY_DIGITS && d.bytes().all(|b| b.is_ascii_hexdigit()))
    };
    for file in files.flatten().filter(|f| f.file_name().to_str().is_some_and(ours)) {
        // What cannot be removed is a nuisance, not an error.
        let _gone = fs::remove_file(file.path());
    }
}

/// A name is durable only when its directory is.
fn sync_dir_of(path: &Path) -> io::Result<()> {
    if cfg!(unix) {
        File::open(dir_of(path))?.sync_all()?;
    }
    Ok(())
}

fn dir_of(path: &Path) -> &Path {
    path.parent().filter(|d| !d.as_os_str().is_empty()).unwrap_or(Path::new("."))
}
