//! What the disk has room for.

use serde::Serialize;

/// What the disk has room for, as the last commits found it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Room {
    /// Everything.
    #[default]
    Normal,
    /// It was full, and part of the reserve is given up: nothing new is taken, and no risky effect begins.
    Low,
    /// The whole reserve is given up: no effect begins. What became of those that run is still recorded.
    Critical,
}

impl Room {
    /// New work is taken, and jobs are claimed.
    pub fn is_normal(self) -> bool {
        self == Self::Normal
    }
    /// In one word.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Normal => "normal",
            Self::Low => "low",
            Self::Critical => "critical",
        }
    }
}
