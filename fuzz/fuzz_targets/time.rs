//! Instants, waits, backoff and the wheel of timers.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    onceward::testkit::fuzz::time(bytes);
});
