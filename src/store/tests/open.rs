//! Files: what is ours is opened, what is not is refused and stays as it was, and an older copy is noticed.

use super::*;
use crate::model::id::Token;
use std::fs;
use std::path::{Path, PathBuf};

fn options(path: &Path) -> StoreOptions {
    let clock = Arc::new(ManualClock::default());
    StoreOptions { cache_bytes: 4 << 20, ..StoreOptions::new(Place::File(path.to_owned()), clock) }
}

fn open_file(path: &Path) -> Result<(Store, Opened), StoreError> {
    Store::open(options(path))
}

fn sidecar(path: &Path) -> PathBuf {
    super::super::run_file::sidecar_path(path)
}

/// A store with a few jobs, closed.
fn used(path: &Path, jobs: u64) {
    let store = open_file(path).unwrap().0;
    for i in 0..jobs {
        ask(&store, move |tx| enqueue(tx, &format!("job {i}")));
    }
    store.close().unwrap();
}

/// A new store: file, sidecar and reserve for the owner only, no leftovers beside them; opened again it is the same store, one epoch on.
#[test]
fn a_new_store_is_private_and_comes_back() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("jobs.redb");
    let (store, first) = open_file(&path).unwrap();
    assert!(first.created && first.running.is_empty() && first.slots.is_empty() && first.header.is_none());
    let names: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(names.len(), 3, "{names:?}");
    #[cfg(unix)]
    for file in [&path, &sidecar(&path), &path.with_extension("redb.reserve")] {
        use std::os::unix::fs::PermissionsExt;
        assert_eq!(fs::metadata(file).unwrap().permissions().mode() & 0o777, 0o600);
    }
    let id = ask(&store, |tx| enqueue(tx, "a")).unwrap();
    assert!(matches!(open_file(&path), Err(StoreError::AlreadyOpen { .. })));
    store.close().unwrap();
    let (store, second) = open_file(&path).unwrap();
    assert!(!second.created);
    assert_eq!((second.instance, second.epoch, second.round), (first.instance, first.epoch + 1, (1 << 32) + 1));
    assert_eq!(store.read(|r| r.meta("rewound")).unwrap(), None);
    assert_eq!(record(&store, id).id, id);
    assert!(ask(&store, |tx| enqueue(tx, "b")).unwrap() > id);
}

/// The file is gone, and only its sidecar is left: an empty queue in its place does not know what it did, so a person is asked. Whoever
/// wants to begin anew removes both.
#[test]
fn an_empty_store_in_the_place_of_one_that_is_gone_is_noticed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("jobs.redb");
    used(&path, 1);
    for left in [fs::read(sidecar(&path)).unwrap(), b"not of ours at all".to_vec()] {
        fs::remove_file(&path).unwrap();
        fs::write(sidecar(&path), left).unwrap();
        let (store, opened) = open_file(&path).unwrap();
        assert!(opened.created && opened.slots.is_empty());
        assert!(store.read(|r| r.meta("rewound")).unwrap().is_some());
        store.close().unwrap();
        // It is its own from now on.
        let (store, opened) = open_file(&path).unwrap();
        assert_eq!(opened.header.map(|h| h.instance), Some(opened.instance));
        assert!(store.read(|r| r.meta("rewound")).unwrap().is_some(), "until a person has looked");
        store.close().unwrap();
    }
    fs::remove_file(&path).unwrap();
    fs::remove_file(sidecar(&path)).unwrap();
    let (store, _) = open_file(&path).unwrap();
    assert_eq!(store.read(|r| r.meta("rewound")).unwrap(), None);
    store.close().unwrap();
}

/// The file is removed while its process is at work, and an empty one is made in its place: what the old process does to its slots
/// says nothing about the new one's, so that a killer there is known.
#[cfg(unix)]
#[test]
fn an_empty_store_shares_no_slot_with_the_one_whose_place_it_took() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("jobs.redb");
    let (old, _) = open_file(&path).unwrap();
    let was = old.run_file().fill(JobId(1), Token(1), [1; 16], 1);
    fs::remove_file(&path).unwrap();
    let (new, opened) = open_file(&path).unwrap();
    assert!(opened.created && opened.rewound);
    new.run_file().fill(JobId(2), Token(2), [1; 16], 2);
    old.run_file().clear(was);
    drop(old);
    // Its process dies.
    let copy = dir.path().join("copy.redb");
    fs::copy(&path, &copy).unwrap();
    fs::copy(sidecar(&path), sidecar(&copy)).unwrap();
    let (_, found) = open_file(&copy).unwrap();
    assert_eq!(found.slots.iter().map(|s| s.job).collect::<Vec<_>>(), [JobId(2)]);
    new.close().unwrap();
}

/// An app opens its file by a link: the sidecar is that of the file, so nothing looks older than it is; and a link to a disk that is
/// not there makes no empty queue.
#[cfg(unix)]
#[test]
fn a_link_leads_to_the_file_and_its_sidecar_or_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (path, link) = (dir.path().join("jobs.redb"), dir.path().join("link.redb"));
    used(&path, 1);
    std::os::unix::fs::symlink(&path, &link).unwrap();
    for path in [&link, &path, &link] {
        let (store, _) = open_file(path).unwrap();
        assert_eq!(store.read(|r| r.meta("rewound")).unwrap(), None);
        store.close().unwrap();
    }
    assert!(!sidecar(&link).exists());
    let away = dir.path().join("away.redb");
    std::os::unix::fs::symlink(dir.path().join("no such disk/jobs.redb"), &away).unwrap();
    let refused = open_file(&away).err().unwrap();
    assert!(matches!(&refused, StoreError::CannotOpen { path, .. } if *path == away), "{refused:?}");
    assert!(refused.to_string().contains("link"), "{refused}");
}

/// Somebody removes the file, or puts another one in its place, while the store is open: a commit would succeed and be lost, so
/// the store stops, and says so before anything else.
#[cfg(unix)]
#[test]
fn a_removed_or_replaced_file_stops_the_store() {
    for replaced in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("jobs.redb");
        let (store, _) = open_file(&path).unwrap();
        ask(&store, |tx| enqueue(tx, "a"));
        let copy = dir.path().join("copy.redb");
        fs::copy(&path, &copy).unwrap();
        if replaced {
            fs::rename(&copy, &path).unwrap()
        } else {
            fs::remove_file(&path).unwrap()
        }
        let heard = send(&store, Lane::Enqueue, |tx| enqueue(tx, "b")).recv().unwrap();
        assert!(matches!(&heard, Heard::Failed(e) if e.contains("removed or replaced")), "{heard:?}");
        assert!(matches!(store.close(), Err(StoreError::Stopped(_))));
        assert_eq!(path.exists(), replaced, "nothing was recreated");
    }
}

/// The process was killed again and again while it created the file: its temporary files are gone after the first open, one of which
/// was another name of the file; what only looks like them stays.
#[test]
fn leftovers_of_cut_creations_are_cleared_away() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("jobs.redb");
    let ours = ["jobs.redb.0123456789ab.new", "jobs.redb.run.ba9876543210.new"];
    let theirs =
        ["jobs.redb.new", "jobs.redb.backup.new", "jobs.redb.0123456789abcd.new", "other.redb.0123456789ab.new"];
    for file in ours.iter().chain(&theirs) {
        fs::write(dir.path().join(file), "cut").unwrap();
    }
    open_file(&path).unwrap().0.close().unwrap();
    for (files, stay) in [(&ours[..], false), (&theirs[..], true)] {
        files.iter().for_each(|f| assert_eq!(dir.path().join(f).exists(), stay, "{f}"));
    }
}

/// Two processes start at the same moment with the same new path: one creates the file, and nobody replaces it.
#[test]
fn racing_creators_end_up_with_one_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = Arc::new(dir.path().join("jobs.redb"));
    let threads: Vec<_> = (0..8)
        .map(|_| {
            let path = path.clone();
            std::thread::spawn(move || open_file(&path).map(|(store, opened)| (store, opened.instance)))
        })
        .collect();
    let ended: Vec<_> = threads.into_iter().map(|t| t.join().unwrap()).collect();
    let won: Vec<_> = ended.iter().filter_map(|r| r.as_ref().ok()).collect();
    assert_eq!(won.len(), 1, "one owner");
    let lost = ended.iter().filter_map(|r| r.as_ref().err());
    lost.for_each(|e| assert!(matches!(e, StoreError::AlreadyOpen { .. }), "{e}"));
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 3, "no leftovers");
}

/// Everything that is not surely ours is refused with its reason, and not a byte of it changes.
#[test]
fn what_is_not_ours_is_refused_and_stays_as_it_was() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("jobs.redb");
    used(&path, 3);
    let good = fs::read(&path).unwrap();
    let foreign = |live: bool| {
        let other = dir.path().join("other.redb");
        let db = redb::Database::create(&other).unwrap();
        let tx = db.begin_write().unwrap();
        tx.open_table(redb::TableDefinition::<u64, u64>::new("mine")).unwrap().insert(1, 2).unwrap();
        tx.commit().unwrap();
        // Copied while it is open: as after a crash of that program.
        let copy = fs::read(&other).unwrap();
        drop(db);
        let closed = fs::read(&other).unwrap();
        fs::remove_file(&other).unwrap();
        if live { copy } else { closed }
    };
    let marked = |format: u32| {
        let other = dir.path().join("marked.redb");
        fs::write(&other, &good).unwrap();
        let db = redb::Database::open(&other).unwrap();
        let tx = db.begin_write().unwrap();
        let mark = [&b"onceward"[..], &format.to_le_bytes()].concat();
        let meta = redb::TableDefinition::<&str, &[u8]>::new("q/meta");
        tx.open_table(meta).unwrap().insert("format", mark.as_slice()).unwrap();
        tx.commit().unwrap();
        drop(db);
        fs::read(&other).unwrap()
    };
    let half = {
        let other = dir.path().join("half.redb");
        let db = redb::Database::create(&other).unwrap();
        let tx = db.begin_write().unwrap();
        tx.open_table(redb::TableDefinition::<&str, &[u8]>::new("q/meta")).unwrap();
        tx.commit().unwrap();
        drop(db);
        fs::read(&other).unwrap()
    };
    let live = {
        let other = dir.path().join("live.redb");
        let store = open_file(&other).unwrap().0;
        ask(&store, |tx| enqueue(tx, "a"));
        // Copied while it is open: as after a crash.
        let copy = fs::read(&other).unwrap();
        store.close().unwrap();
        copy
    };
    let rotten = {
        let mut bytes = good.clone();
        // Both commit slots.
        bytes[64..320].fill(0xff);
        bytes
    };
    let cases: [(&str, Vec<u8>, fn(&StoreError) -> bool); 15] = [
        ("empty", vec![], |e| matches!(e, StoreError::Half { .. })),
        ("three bytes", b"abc".to_vec(), |e| matches!(e, StoreError::Foreign { .. })),
        ("text", b"dear diary, ".repeat(999), |e| matches!(e, StoreError::Foreign { .. })),
        ("foreign redb", foreign(false), |e| matches!(e, StoreError::Foreign { .. })),
        ("foreign redb after a crash", foreign(true), |e| matches!(e, StoreError::Foreign { .. })),
        ("newer", marked(9), |e| matches!(e, StoreError::Newer { found: 9, known: 3, .. })),
        (
            "older than the first release",
            marked(1),
            |e| matches!(e, StoreError::Foreign { why, .. } if why.contains("format 1")),
        ),
        (
            "older than the first release, with shared rows",
            marked(2),
            |e| matches!(e, StoreError::Foreign { why, .. } if why.contains("format 2")),
        ),
        ("tables without a mark", half, |e| matches!(e, StoreError::Half { .. })),
        ("cut", good[..good.len() / 2].to_vec(), |e| matches!(e, StoreError::Half { .. })),
        ("cut by a byte", good[..good.len() - 1].to_vec(), |e| matches!(e, StoreError::Half { .. })),
        ("cut to a page", good[..4_096].to_vec(), |e| matches!(e, StoreError::Half { .. })),
        ("cut after a crash", live[..live.len() / 2].to_vec(), |e| matches!(e, StoreError::Half { .. })),
        ("header only", good[..64].to_vec(), |e| matches!(e, StoreError::Half { .. })),
        ("rotten header", rotten, |e| matches!(e, StoreError::Damaged { .. })),
    ];
    let mut tried = 0;
    for (name, bytes, expected) in cases {
        for with_sidecar in [true, false] {
            let path = dir.path().join(format!("{tried}.redb"));
            fs::write(&path, &bytes).unwrap();
            if with_sidecar {
                fs::copy(sidecar(&dir.path().join("jobs.redb")), sidecar(&path)).unwrap();
            }
            let error = open_file(&path).map(drop).expect_err(name);
            assert!(expected(&error), "{name}: {error}");
            assert!(error.to_string().contains(&path.display().to_string()), "{name}: which file? {error}");
            assert!(fs::read(&path).unwrap() == bytes, "{name}: {error}: the file was changed");
            tried += 1;
        }
    }
    assert_eq!(tried, 30);
    assert!(matches!(open_file(dir.path()), Err(StoreError::Foreign { .. })), "a directory");
    let nowhere = open_file(&dir.path().join("no/such/dir.redb"));
    assert!(matches!(&nowhere, Err(e @ StoreError::CannotOpen { .. }) if e.to_string().contains("create the folder")));
    assert!(!dir.path().join("no").exists());
    // The sidecar is in the way of nobody: a folder of its name is named.
    let path = dir.path().join("folder.redb");
    fs::create_dir(sidecar(&path)).unwrap();
    let beside = open_file(&path).map(drop).expect_err("a folder is no sidecar");
    assert!(matches!(&beside, StoreError::CannotOpen { path: named, .. } if *named == sidecar(&path)), "{beside}");
}

/// Bits rot in a closed file: it is refused, or everything in it reads as it was; no panic leaves the store.
#[test]
fn rot_is_refused_or_harmless() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("jobs.redb");
    used(&path, 40);
    let (good, good_sidecar) = (fs::read(&path).unwrap(), fs::read(sidecar(&path)).unwrap());
    let expected: Vec<_> = {
        let (store, _) = open_file(&path).unwrap();
        (1..=40).map(|n| store.read(|r| Ok((r.job(JobId(n))?, r.record(JobId(n))?))).unwrap()).collect()
    };
    let mut rng = fastrand::Rng::with_seed(11);
    let (mut refused, mut harmless, mut changed) = (0, 0, 0);
    for _ in 0..150 {
        let mut bad = good.clone();
        match rng.u8(..3) {
            0 => {
                let bit = rng.usize(..bad.len() * 8);
                bad[bit / 8] ^= 1 << (bit % 8);
            }
            1 => {
                let sector = rng.usize(..bad.len() / 512) * 512;
                bad[sector..sector + 512].fill(0);
            }
            _ => {
                let (a, b) = (rng.usize(1..bad.len() / 4096) * 4096, rng.usize(1..bad.len() / 4096) * 4096);
                let page = bad[a..a + 4096].to_vec();
                bad.copy_within(b..b + 4096, a);
                bad[b..b + 4096].copy_from_slice(&page);
            }
        }
        fs::write(&path, &bad).unwrap();
        fs::write(sidecar(&path), &good_sidecar).unwrap();
        match open_file(&path) {
            Err(_) => {
                refused += 1;
                changed += usize::from(fs::read(&path).unwrap() != bad);
            }
            Ok((store, _)) => {
                for (n, expected) in (1..).zip(&expected) {
                    let seen = store.read(|r| Ok((r.job(JobId(n))?, r.record(JobId(n))?)));
                    assert!(seen.unwrap() == *expected, "a silent wrong answer");
                }
                harmless += 1;
            }
        }
    }
    println!("{refused} refused ({changed} of them changed by the repair that failed), {harmless} harmless");
    assert!(refused > 5 && refused + harmless == 150);
    assert_eq!(changed, 0);
}

/// The process is killed while claims are held: the next one finds the claims and the slots of their handlers, and tokens of a
/// later epoch, even if it dies at once and a third one comes.
#[test]
fn a_killed_process_leaves_its_claims_and_slots() {
    let disk = SimDisk::new();
    let (store, first) = Store::open(on_disk(&disk)).unwrap();
    let id = ask(&store, |tx| enqueue(tx, "a")).unwrap();
    let token = Token::first_of(first.epoch);
    ask(&store, move |tx| {
        let record = tx.record(id)?.unwrap();
        let mut change = admit::create(id, record.kind, record.priority, Start::Now, &rules(), Default::default());
        change.before = Some(record.state.clone());
        change.record.state = JobState::Running { token, continuing: false };
        tx.put(&change)
    });
    store.run_file().fill(id, token, [9; 16], 77);
    for n in 1..3 {
        disk.kill_process();
        let (again, found) = Store::open(on_disk(&disk)).unwrap();
        assert_eq!(found.running, [(id, token)]);
        assert_eq!(found.slots, [Slot { job: id, token, boot: [9; 16], nonce: 77 }]);
        assert_eq!((found.epoch, found.created), (first.epoch + n, false));
        assert!(Token::first_of(found.epoch) > token);
        std::mem::forget(again);
    }
    std::mem::forget(store);
}

/// An older copy of the file is put back beside a newer sidecar, or the sidecar is lost: tokens and job numbers go on beyond
/// everything that was handed out since, and a setting stays until somebody has looked.
#[test]
fn an_older_copy_is_noticed_and_nothing_is_handed_out_twice() {
    for lost in [false, true] {
        let disk = SimDisk::new();
        let (store, _) = Store::open(on_disk(&disk)).unwrap();
        ask(&store, |tx| enqueue(tx, "a"));
        store.close().unwrap();
        let copy = disk.bytes();
        let (store, newest) = Store::open(on_disk(&disk)).unwrap();
        let last = ask(&store, |tx| enqueue(tx, "b")).unwrap();
        store.close().unwrap();
        let sidecar = if lost { Vec::new() } else { disk.sidecar().lock().unwrap().clone() };

        let disk = SimDisk::from_image(copy, sidecar);
        let (store, found) = Store::open(on_disk(&disk)).unwrap();
        assert_eq!(found.header.is_none(), lost);
        assert!(found.header.is_none_or(|h| h.round > found.round));
        assert!(found.epoch > newest.epoch, "{} after {}", found.epoch, newest.epoch);
        assert!(ask(&store, |tx| enqueue(tx, "c")).unwrap() > last);
        store.close().unwrap();
        // The sidecar has caught up, but nobody has looked yet.
        let (store, found) = Store::open(on_disk(&disk)).unwrap();
        assert_eq!(found.header.unwrap().round, found.round);
        assert!(store.read(|r| r.meta("rewound")).unwrap().is_some());
        ask(&store, |tx| tx.remove_meta("rewound"));
    }
}

/// A sidecar of another file says nothing about this one.
#[test]
fn slots_of_another_file_do_not_count() {
    let (a, b) = (SimDisk::new(), SimDisk::new());
    let store = open(&a);
    store.run_file().fill(JobId(1), Token(1), [0; 16], 1);
    let other = a.sidecar().lock().unwrap().clone();
    open(&b).close().unwrap();
    let disk = SimDisk::from_image(b.bytes(), other);
    for slots_found in 0..2 {
        let (store, found) = Store::open(on_disk(&disk)).unwrap();
        assert_eq!(
            (found.slots.len(), store.read(|r| r.meta("rewound")).unwrap().is_some()),
            (0, true),
            "{slots_found}"
        );
    }
}

/// The power is cut at every moment while a store is created, opened and used, with every sort of loss: it always opens, never
/// twice with the same epoch, and what was acknowledged is there.
#[test]
fn a_power_cut_at_any_moment_leaves_a_store_that_opens() {
    let disk = SimDisk::new();
    disk.record();
    for session in 0..2 {
        let (store, opened) = Store::open(on_disk(&disk)).unwrap();
        disk.mark(u64::from(opened.epoch) << 32 | (session * 4));
        for i in 0..4u64 {
            ask(&store, move |tx| enqueue(tx, &format!("{session} {i}")));
            disk.mark(u64::from(opened.epoch) << 32 | (session * 4 + i + 1));
        }
        store.close().unwrap();
    }
    let (mut images, mut empty) = (0, 0);
    super::super::disk::crash_points(&[], &[], &disk.log(), |point| {
        for seed in 0..6 {
            let image = point.image(seed * 1_000 + if seed > 1 { point.index as u64 } else { 0 });
            if image.is_empty() {
                empty += 1;
                continue;
            }
            let mark = point.mark.unwrap_or(0);
            let disk = SimDisk::from_image(image, point.sidecar.to_vec());
            let (store, opened) = Store::open(on_disk(&disk)).unwrap();
            assert!(u64::from(opened.epoch) > mark >> 32, "epoch {} again", opened.epoch);
            let depth = check_rows(&store);
            assert!(depth.jobs >= mark & 0xffff && depth.jobs <= (mark & 0xffff) + 1);
            images += 1;
        }
    });
    println!("{images} images opened");
    assert!(images > 200 && empty == 0, "{images} {empty}");
}
