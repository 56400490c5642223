//! Any bytes as a file or a sidecar, rot in a used one, and damaged rows: refused untouched, or read as they were.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(
    init: {
        // A damaged file may make the database panic; the store catches that and refuses the file. Only what leaves it is a crash.
        std::panic::set_hook(Box::new(|_| {}));
    },
    |bytes: &[u8]| {
        if let Err(panic) = std::panic::catch_unwind(|| onceward::testkit::fuzz::open_bytes(bytes)) {
            let text = panic.downcast_ref::<String>().map_or("no text", |text| text.as_str());
            eprintln!("{text}");
            std::process::abort();
        }
    }
);
