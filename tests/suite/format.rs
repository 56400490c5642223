//! The format on disk: the files in `tests/fixtures` were written once, and every later version has to open them, find everything
//! that is in them and go on with it. `ONCEWARD_BLESS=1` writes the description of each anew (a record that gained a field is described
//! in other words), and the files of the present format if there are none. A file that was released is never written again.

use onceward::testkit::{BLESS, fuzz};
use std::fs;
use std::path::{Path, PathBuf};

/// The present format.
const FORMAT: u32 = 3;
/// A folder of one format.
const MOST_BYTES: u64 = 300 * 1024;
/// Files are kept without their empty sectors: length, then number and bytes of each sector in which something is.
const SECTOR: usize = 512;

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures")
}

fn pack(file: &[u8]) -> Vec<u8> {
    let mut out = (file.len() as u64).to_le_bytes().to_vec();
    for (n, sector) in file.chunks(SECTOR).enumerate().filter(|(_, sector)| sector.iter().any(|byte| *byte != 0)) {
        out.extend_from_slice(&(n as u32).to_le_bytes());
        out.extend_from_slice(sector);
    }
    out
}

fn unpack(packed: &[u8]) -> Vec<u8> {
    let (len, sectors) = packed.split_at(8);
    let mut file = vec![0; u64::from_le_bytes(len.try_into().unwrap()) as usize];
    for sector in sectors.chunks(4 + SECTOR) {
        let (n, bytes) = sector.split_at(4);
        let at = u32::from_le_bytes(n.try_into().unwrap()) as usize * SECTOR;
        file[at..at + bytes.len()].copy_from_slice(bytes);
    }
    file
}

/// A copy under a name of its own, so that what is kept is never opened.
fn copy(folder: &Path, name: &str, to: &Path) -> PathBuf {
    let path = to.join(format!("{name}.redb"));
    fs::write(&path, unpack(&fs::read(folder.join(format!("{name}.packed"))).unwrap())).unwrap();
    fs::copy(folder.join(format!("{name}.run")), to.join(format!("{name}.redb.run"))).unwrap();
    path
}

/// A long line is told by its beginning, its length and a sum over all of it.
fn short(line: &str) -> String {
    match line.get(..160) {
        Some(begin) if line.len() > 200 => {
            let sum =
                line.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3));
            format!("{begin} .. {} bytes, {sum:016x}", line.len())
        }
        Some(_) | None => line.to_owned(),
    }
}

/// Everything that is in a file, and what becomes of it.
fn described(folder: &Path, name: &str) -> String {
    let dir = tempfile::tempdir().unwrap();
    let facts = fuzz::facts_of_file(&copy(folder, name, dir.path())).unwrap();
    let facts: Vec<String> = facts.iter().map(|line| short(line)).collect();
    let later = fuzz::a_day_later(&copy(folder, name, dir.path())).unwrap();
    format!("# {name}\n{}\n# {name}, a day later\n{}\n", facts.join("\n"), later.join("\n"))
}

/// Writes the files of the present format, unless they are there.
fn write(folder: &Path) {
    fs::create_dir_all(folder).unwrap();
    for file in fuzz::fixtures() {
        let path = folder.join(format!("{}.packed", file.name));
        if !path.exists() {
            let packed = pack(&file.file);
            assert_eq!(unpack(&packed), file.file);
            fs::write(&path, packed).unwrap();
            fs::write(path.with_extension("run"), file.sidecar).unwrap();
        }
    }
}

/// A queue that was closed in order, and one whose process died at work, are opened by this version: every job, effect, step, letter
/// and message is there as it was, and all of them go on as they would have.
#[test]
fn files_of_every_released_format_are_opened_and_go_on() {
    // They are not part of the published package.
    let bless = std::env::var_os(BLESS).is_some();
    if !bless && !fixtures().exists() {
        println!("format: this is a package without fixtures");
        return;
    }
    let present = fixtures().join(format!("format-{FORMAT}"));
    if bless {
        write(&present);
    }
    let mut folders: Vec<PathBuf> = fs::read_dir(fixtures()).unwrap().map(|f| f.unwrap().path()).collect();
    folders.sort();
    assert!(folders.contains(&present), "format {FORMAT} has no files: write them with {BLESS}=1");
    for folder in folders {
        let bytes: u64 = fs::read_dir(&folder).unwrap().map(|f| f.unwrap().metadata().unwrap().len()).sum();
        assert!(bytes < MOST_BYTES, "{} has {bytes} bytes", folder.display());
        let is = ["closed", "killed"].map(|name| described(&folder, name)).concat();
        if bless {
            fs::write(folder.join("facts.txt"), &is).unwrap();
        }
        let was = fs::read_to_string(folder.join("facts.txt")).unwrap();
        for (was, is) in was.lines().zip(is.lines()) {
            assert_eq!(was, is, "{}", folder.display());
        }
        assert_eq!(was.lines().count(), is.lines().count());
        println!("format: {}: {} lines of facts, {bytes} bytes", folder.display(), is.lines().count());
    }
}
