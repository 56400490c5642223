//! Files are created for their owner alone. Used for the database, its temporary file and the sidecar.

use std::fs::OpenOptions;

/// Payloads may hold what only the owner should read.
pub(super) fn only_owner(options: &mut OpenOptions) {
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(options, 0o600);
    #[cfg(not(unix))]
    let _ = options;
}
