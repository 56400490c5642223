//! The two targets that play whole lives, compiled out of the crash suites: one world and one oracle for the sweep and the fuzzer.
#![allow(dead_code, reason = "the sweep uses the rest")]
#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

#[path = "../../tests/suite/crash_life.rs"]
mod crash_life;
#[path = "../../tests/suite/crash_oracle.rs"]
mod crash_oracle;
#[path = "../../tests/suite/crash_scripts.rs"]
mod crash_scripts;
#[path = "../../tests/suite/crash_world.rs"]
mod crash_world;
#[path = "../../tests/suite/fuzz_lives.rs"]
mod fuzz_lives;
#[path = "../../tests/suite/oracle.rs"]
mod oracle;

/// See `tests/suite/fuzz_lives.rs`.
pub fn model(bytes: &[u8]) -> usize {
    fuzz_lives::model(bytes)
}

/// See `tests/suite/fuzz_lives.rs`.
pub fn crash_image(bytes: &[u8]) -> usize {
    fuzz_lives::crash_image(bytes)
}
