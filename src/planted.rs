//! Bugs that are planted on purpose, so that it can be seen whether the suites find them: one `if` at each place, and the place is
//! as correct as ever unless the crate was built with `--cfg onceward_planted` and `ONCEWARD_PLANTED` names the bug. Without the flag
//! every `if` is a constant and compiled away. `tests/planted.sh` runs them all.

/// Whether this bug is planted.
#[cfg(onceward_planted)]
pub(crate) fn on(bug: &str) -> bool {
    static PLANTED: std::sync::LazyLock<Option<String>> =
        std::sync::LazyLock::new(|| std::env::var("ONCEWARD_PLANTED").ok());
    PLANTED.as_deref() == Some(bug)
}

/// Never.
#[cfg(not(onceward_planted))]
pub(crate) const fn on(_bug: &str) -> bool {
    false
}
