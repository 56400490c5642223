//! What people do about messages of the outbox.
//!
//! The memory of a message and the list of what people did both keep it; it stands apart so that neither needs the other.

use serde::{Deserialize, Serialize};

/// What a person did about a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Act {
    /// Put on its way again, after it was stuck.
    Retried,
    /// Thrown away.
    Discarded,
    /// Sent again, after it was delivered.
    Resent,
}

impl Act {
    /// In plain words: "had it ...".
    pub fn says(self) -> &'static str {
        match self {
            Self::Retried => "put on its way again",
            Self::Discarded => "thrown away",
            Self::Resent => "sent again",
        }
    }
}
