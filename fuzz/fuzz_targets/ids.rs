//! Keys and numbers in every encoding, their order in tables, and idempotency keys of different identities.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    onceward::testkit::fuzz::ids(bytes);
});
