//! What a fuzzer calls: each function does with any bytes what its name says, and panics over a broken promise.
//! Called by the targets of `fuzz/` and by the suite, which replays what they found; each returns how much it had to look at.
//!
//! The two targets that play whole lives are beside the crash suites, whose world and oracle they use: `tests/suite/fuzz_lives.rs`.

mod files;
mod log;
mod names;
mod reader;
mod times;

pub use files::{Fixture, a_day_later, facts_of_file, fixtures, open_bytes};
pub use log::lines;
pub use names::ids;
pub use reader::Reader;
pub use times::time;

use crate::store;

/// Any bytes as every sort of record, page and payload: none panics, none takes more memory than its bytes may claim, and what can
/// be read is the same after it was written again.
pub fn decode_record(bytes: &[u8]) -> usize {
    store::decode_anything(bytes)
}

/// Values of a used file, as seeds.
pub fn some_records() -> Vec<Vec<u8>> {
    files::values()
}
