//! A script of the crash sweep, cut off at any operation with any part of the unsynced writes on the platter.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    onceward_fuzz::crash_image(bytes);
});
