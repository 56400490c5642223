//! A file that may be an older copy: what of it is not known, until a person has compared it with the providers.

use super::time::Wall;
use serde::{Deserialize, Serialize};

/// A file that may be an older copy, or new in the place of one that is gone: what happened between
/// [`since`](Self::since) and [`found`](Self::found) may be missing in it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Review {
    /// What shows that it may be one, in words.
    pub what: String,
    /// The last time that the file knows of; 0 if it knows of none.
    pub since: Wall,
    /// When the start that found it looked.
    pub found: Wall,
    /// The epoch of that start.
    pub epoch: u32,
}

impl Review {
    /// Another copy was put back before anybody had compared the first: nothing is known since the older of both.
    pub(crate) fn again(self, newer: Self) -> Self {
        let what = match self.what.contains(&newer.what) {
            true => self.what,
            false => format!("{}; and {}", self.what, newer.what),
        };
        Self { what, since: self.since.min(newer.since), ..newer }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of two copies the older counts, and the newer finding; what was seen is said once.
    #[test]
    fn a_second_copy_widens_what_is_not_known() {
        let one = |what: &str, since, found, epoch| Review {
            what: what.into(),
            since: Wall(since),
            found: Wall(found),
            epoch,
        };
        let both = one("older", 5, 10, 1).again(one("missing", 7, 20, 2));
        assert_eq!(both, one("older; and missing", 5, 20, 2));
        assert_eq!(both.again(one("missing", 1, 30, 3)), one("older; and missing", 1, 30, 3));
    }
}
