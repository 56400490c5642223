//! What the fuzzer found, and what it began with, replayed on the stable toolchain; and a bounded run of drawn inputs from a fixed seed.
//! A target without an input of its own fails here. `ONCEWARD_FUZZ_SEEDS=1` writes the seeds of `fuzz/corpus` anew, and
//! `ONCEWARD_FUZZ_DRAWN` asks for another number of drawn inputs.

mod seeds;

use super::fuzz_lives;
use onceward::testkit::fuzz;
use std::fs;
use std::path::{Path, PathBuf};

/// A target: its name, what it calls, and how many drawn inputs of which length at most it gets in every run.
struct Target {
    name: &'static str,
    run: fn(&[u8]) -> usize,
    drawn: usize,
    longest: usize,
}

const TARGETS: [Target; 7] = [
    Target { name: "model", run: fuzz_lives::model, drawn: 60, longest: 200 },
    Target { name: "crash_image", run: fuzz_lives::crash_image, drawn: 150, longest: 120 },
    Target { name: "open_bytes", run: fuzz::open_bytes, drawn: 400, longest: 200 },
    Target { name: "decode_record", run: fuzz::decode_record, drawn: 20_000, longest: 200 },
    Target { name: "ids", run: fuzz::ids, drawn: 2_000, longest: 200 },
    Target { name: "lines", run: fuzz::lines, drawn: 2_000, longest: 400 },
    Target { name: "time", run: fuzz::time, drawn: 2_000, longest: 400 },
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz")
}

/// Inputs of a folder, by name.
fn inputs(folder: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let Ok(files) = fs::read_dir(folder) else { return Vec::new() };
    let mut all: Vec<PathBuf> = files.map(|f| f.unwrap().path()).filter(|p| p.is_file()).collect();
    all.sort();
    all.into_iter().map(|path| (path.clone(), fs::read(path).unwrap())).collect()
}

/// Names the input that failed.
struct Named<'a>(&'a str, &'a Path);

impl Drop for Named<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("fuzz target {} failed on {}", self.0, self.1.display());
        }
    }
}

/// Every input that the targets ever failed on, and the seeds that they begin with, still pass.
#[test]
fn every_input_of_the_corpus_passes() {
    // The folder is not part of the published package.
    if !root().join("Cargo.toml").exists() {
        println!("fuzz replay: this is a package without fuzz/: only drawn inputs are tried");
        return;
    }
    if std::env::var_os("ONCEWARD_FUZZ_SEEDS").is_some() {
        seeds::write(&root().join("corpus"));
    }
    for target in &TARGETS {
        let [corpus, regressions] = ["corpus", "regressions"].map(|f| inputs(&root().join(f).join(target.name)));
        let mut worked = 0;
        for (path, bytes) in corpus.iter().chain(&regressions) {
            let named = Named(target.name, path);
            worked += (target.run)(bytes);
            drop(named);
        }
        println!(
            "fuzz replay: {:>13}: {} seeds, {} regressions, {worked} things looked at",
            target.name,
            corpus.len(),
            regressions.len()
        );
        assert!(!corpus.is_empty(), "{} has no corpus: write it with ONCEWARD_FUZZ_SEEDS=1", target.name);
        assert!(worked > 0, "{} did nothing", target.name);
    }
    let known: Vec<&str> = TARGETS.iter().map(|t| t.name).collect();
    for folder in ["corpus", "regressions", "fuzz_targets"] {
        for entry in fs::read_dir(root().join(folder)).into_iter().flatten() {
            let path = entry.unwrap().path();
            let name = path.file_stem().unwrap().to_string_lossy().into_owned();
            assert!(known.contains(&name.as_str()), "{} belongs to no target", path.display());
        }
    }
}

/// Inputs that nobody wrote, from a fixed seed: half of them drawn, half of them seeds with some bytes changed.
#[test]
fn drawn_inputs_pass() {
    let asked = std::env::var("ONCEWARD_FUZZ_DRAWN").ok().and_then(|n| n.parse().ok());
    let only = std::env::var("ONCEWARD_FUZZ_ONLY").ok();
    let seed = std::env::var("ONCEWARD_FUZZ_SEED").ok().and_then(|n| n.parse().ok()).unwrap_or(1);
    for target in TARGETS.iter().filter(|t| only.as_deref().is_none_or(|only| only == t.name)) {
        let seeds = inputs(&root().join("corpus").join(target.name));
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut worked = 0;
        for n in 0..asked.unwrap_or(target.drawn) {
            let bytes = match rng.choice(&seeds) {
                Some((_, seed)) if rng.bool() => {
                    let mut bytes = seed.clone();
                    for _ in 0..rng.usize(1..8) {
                        let at = rng.usize(..=bytes.len());
                        match rng.u8(..3) {
                            0 => bytes.insert(at, rng.u8(..)),
                            1 => bytes.truncate(at.max(1)),
                            _ if at < bytes.len() => bytes[at] = rng.u8(..),
                            _ => {}
                        }
                    }
                    bytes
                }
                _ => (0..rng.usize(..target.longest)).map(|_| rng.u8(..)).collect(),
            };
            let path = std::env::temp_dir().join(format!("onceward-{}-{n}", target.name));
            let named = Drawn(target.name, &bytes, &path);
            worked += (target.run)(&bytes);
            drop(named);
        }
        println!(
            "fuzz drawn: {:>13}: {} inputs, {worked} things looked at",
            target.name,
            asked.unwrap_or(target.drawn)
        );
        assert!(worked > 0, "{} did nothing", target.name);
    }
}

/// A drawn input that failed is kept as a file.
struct Drawn<'a>(&'a str, &'a [u8], &'a Path);

impl Drop for Drawn<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let kept = fs::write(self.2, self.1).is_ok();
            eprintln!("fuzz target {} failed on {} (kept: {kept}): {:?}", self.0, self.2.display(), self.1);
        }
    }
}
