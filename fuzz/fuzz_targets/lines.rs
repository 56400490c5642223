//! Proof lines: printed and read back; any text is read or refused.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    onceward::testkit::fuzz::lines(bytes);
});
