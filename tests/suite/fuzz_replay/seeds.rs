//! The inputs that the fuzzer begins with: small, and each a way into another part of its target.

use onceward::Wall;
use onceward::observe::AttemptLine;
use onceward::testkit::fuzz;
use std::collections::HashSet;
use std::fs;
use std::path::Path;

/// Writes all seeds, each under a name that says what it is; what else is in the folder stays.
pub(super) fn write(corpus: &Path) {
    let mut n = 0;
    for (target, name, bytes) in all() {
        let folder = corpus.join(target);
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join(name), &bytes).unwrap();
        n += 1;
    }
    println!("fuzz seeds: {n} files written");
}

fn all() -> Vec<(&'static str, String, Vec<u8>)> {
    let mut all = Vec::new();
    // One value of every sort (its kind byte) and length.
    let mut sorts = HashSet::new();
    for value in fuzz::some_records() {
        let sort = value.get(1).copied().unwrap_or(0);
        if value.len() <= 400 && sorts.insert((sort, value.len().ilog2())) {
            all.push(("decode_record", format!("kind-{sort}-{}", value.len()), value.clone()));
            // And its payload, which is tried behind an envelope of every kind.
            if let Some(payload) = value.get(6..value.len().saturating_sub(4)).filter(|_| sort < 30) {
                all.push(("decode_record", format!("payload-{sort}-{}", value.len()), payload.to_vec()));
            }
        }
    }
    for (name, life) in LIVES {
        all.push(("model", (*name).to_owned(), life.to_vec()));
    }
    // Script, crash point (two bytes where there are more than 256), how, what is left, and whether it is driven and dies again.
    for script in 0..17_u8 {
        for (name, tail) in [("kill", &[0, 40, 0, 1][..]), ("power", &[0, 90, 1, 9, 2, 1, 0, 1, 3, 1, 0, 1, 2, 2])] {
            all.push(("crash_image", format!("{name}-{script}"), [&[script], tail].concat()));
        }
    }
    for (name, bytes) in FILES {
        all.push(("open_bytes", (*name).to_owned(), bytes.to_vec()));
    }
    let split = b"shop\0order\0order/1\0charge\0part";
    all.push((
        "ids",
        "split".to_owned(),
        [&[2, 1, 0, 3, 1, 0, 0, 4, 5, 7, 6, 5, 4, 7, 6, 1, 1, 1, 1][..], split].concat(),
    ));
    all.push(("ids", "equal".to_owned(), [&[1, 7, 1, 7, 4, 5, 7, 6, 4, 5, 7, 6, 1, 2, 1, 2][..], split].concat()));
    let accents = "straße/東京/\u{1f600}".as_bytes();
    all.push(("ids", "unicode".to_owned(), [&[8; 18][..], &[3, 4, 5, 6, 7, 8, 9, 1, 1, 2, 1, 2], accents].concat()));
    for (name, line) in lines() {
        all.push(("lines", name.to_owned(), line.into_bytes()));
    }
    all.push(("time", "zero".to_owned(), vec![0; 8]));
    let wheel = [1, 9, 2, 1, 0, 1, 5, 0, 0, 3, 1, 1, 0, 1, 0, 1, 0, 1, 0, 0, 0];
    let moves = [
        0, 1, 1, 30, 0, 1, 2, 1, 0, 1, 0, 1, 64, 7, 1, 1, 31, 3, 0, 4, 0, 6, 5, 0, 0, 8, 255, 255, 255, 255, 255, 255,
        255, 255,
    ];
    all.push(("time", "wheel".to_owned(), [&wheel[..], &moves].concat()));
    all.push((
        "time",
        "ends".to_owned(),
        [[8, 255, 255, 255, 255, 255, 255, 255, 255].repeat(8), vec![1; 24]].concat(),
    ));
    all
}

/// Acts as `fuzz_lives` reads them, by their number.
const LIVES: &[(&str, &[u8])] = &[
    // One life: a job that steps, commits, charges and finishes.
    ("finish", &[0, 0, 0, 0, 4, 6, 7, 0, 11, 9, 22, 0]),
    // A charge whose answer is lost; the process dies; the next one goes on.
    ("lost-charge", &[1, 0, 3, 0, 2, 0, 7, 9, 11, 2, 0, 1, 9, 22, 1, 0, 60, 1, 5, 1, 1, 2, 1, 0, 1, 9, 22, 0]),
    // A wire that nobody knows about, and the person who says so.
    ("decide-wire", &[0, 0, 4, 1, 1, 4, 9, 15, 0, 0, 1, 0, 9, 20, 22, 0]),
    // Fails for good, is discarded, brought back, and run again from its step.
    ("dead-and-back", &[0, 0, 0, 2, 3, 6, 0, 10, 9, 15, 0, 0, 2, 9, 17, 0, 18, 0, 1, 9, 20, 22, 0]),
    // Notes, a pause, a transaction, a long payload, a cancel.
    ("notes", &[0, 13, 1, 5, 5, 0, 1, 2, 1, 3, 4, 2, 8, 6, 3, 0, 14, 0, 9, 13, 0, 9, 20, 22, 0]),
    // A failed sync, then a power cut at some operation of the same life, twice.
    (
        "faults",
        &[
            2, 21, 5, 50, 1, 1, 7, 3, 0, 0, 1, 4, 0, 7, 6, 11, 9, 8, 22, 1, 0, 80, 1, 2, 1, 0, 3, 1, 0, 1, 21, 0, 4, 1,
            3, 2, 1, 2, 9, 22, 1, 0, 50, 1, 3,
        ],
    ),
    // Retries, jumps of the calendar and a suspend.
    (
        "clock",
        &[
            1, 0, 0, 0, 2, 8, 3, 2, 9, 11, 2, 0, 1, 11, 6, 2, 0, 11, 8, 3, 1, 12, 5, 1, 1, 9, 22, 1, 0, 30, 0, 11, 3,
            0, 1, 9, 22, 0,
        ],
    ),
    // Two people about a dear order; many letters released in slices.
    (
        "two-people",
        &[0, 0, 7, 0, 2, 0, 10, 0, 0, 1, 1, 10, 0, 0, 2, 1, 10, 9, 15, 0, 0, 0, 15, 0, 1, 0, 19, 1, 9, 20, 22, 0],
    ),
];

/// Which used file, what of it is spoilt, and how.
const FILES: &[(&str, &[u8])] = &[
    ("whole-closed", &[0, 2, 0, 0, 5, 5, 0, 0]),
    ("whole-killed", &[1, 2, 0, 0, 5, 5, 0, 0]),
    ("text", b"\0\0\0\0\0\0dear diary"),
    ("empty", &[0, 0]),
    ("cut", &[0, 0, 0, 0, 64, 0]),
    ("no-sidecar", &[1, 1, 0]),
    ("half-sidecar", &[1, 1, 0, 70, 9, 9, 9]),
    ("header-bit", &[0, 2, 0, 0, 0, 0, 9, 0, 1]),
    ("commit-slot", &[0, 2, 0, 0, 0, 0, 80, 1, 8, 1, 2, 3, 4, 5, 6, 7, 8]),
    ("sidecar-bit", &[1, 2, 1, 0, 1, 0, 20, 0, 3]),
    ("zeroes", &[0, 2, 0, 1, 2, 0, 5, 0, 3, 16, 0, 2, 9, 0, 3, 8, 0]),
    ("swap", &[0, 2, 0, 0, 2, 0, 5, 0, 7, 2, 9, 0]),
    ("row-bit", &[0, 3, 4, 0, 3, 9, 0, 2]),
    ("row-cut", &[0, 3, 20, 0, 0, 12, 4]),
    ("row-longer", &[0, 3, 40, 0, 0, 0, 5, 3, 1, 2, 3]),
];

fn lines() -> Vec<(&'static str, String)> {
    let plain = "2026-09-12T07:01:22-04:00 job=fred/UNRATE/2026-06 attempt=2 outcome=success rows=1 kind=fred.ingest id=7 queue=default";
    let rich = format!(
        "{plain} token=1099511627776 step=\"effect charge\" owner=worker-3 operation=ch_1 operation=ch_2 class=unknown \
         error=\"lost\\nafter \\u{{202e}} 30 s\" duration_ms=30012 next=2026-09-12T11:02:22Z given_back=settled continued=true"
    );
    let far = plain.replace("2026-09-12T07:01:22-04:00", &onceward::observe::Zone::utc().text(Wall(u64::MAX)));
    let forged = plain.replace("rows=1", "note_outcome=success note_note_kind=\"x y\" \\u{6f}utcome=\"\\u{3d}\"");
    let empty = AttemptLine::new(Wall(0), "", "", onceward::JobId::from_number(0), 0, onceward::AttemptOutcome::Dead);
    vec![
        ("plain", plain.to_owned()),
        ("rich", rich),
        ("far", far),
        ("forged", forged),
        ("empty", empty.to_string()),
        ("time", "+584556019-04-03T14:25:51Z\n1970-01-01T00:00:00+00:01\n2000-02-29T23:59:59Z".to_owned()),
    ]
}
