//! Whole lives: people, clock, faults of the disk, deaths; every invariant of the crash suites at each end.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    onceward_fuzz::model(bytes);
});
