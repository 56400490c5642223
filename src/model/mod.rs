//! Values that cannot be wrong: what the rules decide about and the store keeps.
//!
//! Nothing here does I/O, reads a clock or draws a number. Ids are parsed once and compared afterwards; state variants own
//! their data. Every floor above speaks with these words.

pub mod acted;
pub mod attempt;
pub mod effect;
pub mod fact;
pub mod id;
pub mod job;
pub mod letter;
pub mod outbox;
pub mod policy;
pub mod question;
pub mod review;
pub mod room;
pub mod shown;
pub mod time;

/// The limits of what a job may carry, with their defaults (`Limits::default()`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Largest payload, request, result or step value, in bytes (default 1 MiB).
    pub payload: usize,
    /// Longest key, in bytes (default 512).
    pub key: usize,
    /// Longest kind, effect, step or commit name, in bytes (default 128).
    pub name: usize,
    /// Longest stored error text, in bytes; longer ones are cut (default 4 KiB).
    pub error_text: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { payload: 1 << 20, key: 512, name: 128, error_text: 4 << 10 }
    }
}
