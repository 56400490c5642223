//! The one integration test binary: a module per promise or tool, so that linking happens once.
//!
//! Each module prints what it did and fails if it did nothing.
#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]
#![expect(clippy::wildcard_enum_match_arm, reason = "a test names what it looks for; everything else is a surprise")]
#![expect(clippy::type_complexity, reason = "the rig returns closures and futures")]

mod crash_life;
mod crash_oracle;
mod crash_scripts;
mod crash_world;
mod deaths;
mod decide;
mod effects;
mod failures;
mod faults;
mod format;
mod forward;
mod full_disk;
mod fuzz_lives;
mod fuzz_replay;
mod ground;
mod history;
mod hostile;
mod identity;
mod kill;
mod kit;
mod layers;
mod letters;
mod model;
mod oracle;
mod outbox;
mod outlive;
mod promises;
#[cfg(any(feature = "http", feature = "nats", feature = "postgres", feature = "mqtt"))]
mod publishers;
mod rewind;
mod rig;
mod running;
mod seen;
mod setup;
#[cfg(unix)]
mod soak;
mod sweep;
mod time;
mod under;
mod undo;
