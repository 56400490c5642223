//! Why a file was not opened, in words that name it and the next step: what was cut is told from what is damaged.
//! Called by `create` when an open has failed; changes nothing.

use super::error::StoreError;
use std::path::Path;

/// The first bytes of a database, and how long it is.
pub(super) struct Head {
    pub(super) bytes: [u8; HEAD],
    pub(super) len: u64,
}

/// Bytes of redb's header that say how long the file has to be.
pub(super) const HEAD: usize = 32;
/// Header and both commit slots.
const SLOTS: u64 = 320;

/// The error of an open, with the file in it. The disk may be fine: more often the folder is missing, or is somebody else's. And a
/// setting that cannot be read is not one job's record.
pub(super) fn named(
    path: &Path,
    e: StoreError,
    out_of_reach: impl FnOnce() -> bool,
    head: impl FnOnce() -> Option<Head>,
) -> StoreError {
    let path = path.to_owned();
    match e {
        StoreError::Io(why) if out_of_reach() => StoreError::CannotOpen { path, why },
        StoreError::Io(why) => StoreError::Io(format!("{}: {why}", path.display())),
        StoreError::Full(why) => StoreError::Full(format!("{}: {why}", path.display())),
        StoreError::Damaged { why, .. } | StoreError::Corrupt { what: why } => match head().as_ref().and_then(cut) {
            Some(missing) => StoreError::Half { path, why: missing },
            None => StoreError::Damaged { path: Some(path), why },
        },
        named @ (StoreError::AlreadyOpen { .. }
        | StoreError::Foreign { .. }
        | StoreError::Newer { .. }
        | StoreError::Half { .. }
        | StoreError::CannotOpen { .. }
        | StoreError::Closed
        | StoreError::Stopped(_)
        | StoreError::Busy
        | StoreError::Unknown
        | StoreError::ReservedTable(_)
        | StoreError::TableLeaked(_)
        | StoreError::Table(_)
        | StoreError::TooBig { .. }
        | StoreError::Bug(_)) => named,
    }
}

/// What is missing, if the file is shorter than its own header says. Only asked after an open has failed: a file that grew when the
/// power was cut may be longer than that.
fn cut(head: &Head) -> Option<String> {
    if head.len < SLOTS {
        return Some(format!("it ends after {} bytes", head.len));
    }
    // Magic number, flags and padding come before; all of it little endian.
    let number = |nth: usize| {
        let at = 12 + 4 * nth;
        head.bytes.get(at..at + 4).and_then(|b| b.try_into().ok()).map(u32::from_le_bytes).map(u64::from)
    };
    let (page, header, most, full, rest) = (number(0)?, number(1)?, number(2)?, number(3)?, number(4)?);
    let region = header.checked_add(most)?.checked_mul(page)?;
    let trailing = if rest > 0 { header.checked_add(rest)?.checked_mul(page)? } else { 0 };
    let whole = region.checked_mul(full)?.checked_add(trailing)?.checked_add(page)?;
    (head.len < whole).then(|| format!("it has {} bytes of {whole}", head.len))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(numbers: [u32; 5], len: u64) -> Head {
        let mut bytes = [0; HEAD];
        for (nth, n) in numbers.into_iter().enumerate() {
            bytes[12 + 4 * nth..16 + 4 * nth].copy_from_slice(&n.to_le_bytes());
        }
        Head { bytes, len }
    }

    /// One whole region and a part of another one: one byte less is a cut. Numbers that make no sense say nothing.
    #[test]
    fn what_is_shorter_than_its_header_says_was_cut() {
        let whole = 4_096 * (1 + 100 + 7);
        assert_eq!(cut(&head([4_096, 0, 100, 1, 7], whole)), None);
        assert!(cut(&head([4_096, 0, 100, 1, 7], whole - 1)).is_some());
        assert_eq!(cut(&head([u32::MAX, u32::MAX, u32::MAX, u32::MAX, 1], 1 << 40)), None);
        assert!(cut(&head([0; 5], 100)).is_some());
    }
}
