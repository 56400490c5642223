//! Any bytes as every record, pack, page and sidecar block: no panic, and what is read is the same when written again.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    onceward::testkit::fuzz::decode_record(bytes);
});
