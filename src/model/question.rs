//! What only a person can answer.
//!
//! An attempt stops with a question, a letter asks it; it stands apart from both so that neither needs the other.

use super::id::EffectId;
use serde::{Deserialize, Serialize};

/// A question that only a person can answer.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Question {
    /// Nobody knows whether this effect happened.
    DidItHappen {
        /// Which effect.
        effect: EffectId,
    },
    /// The handler now asks for another request under the same name and part.
    RequestChanged {
        /// Which effect.
        effect: EffectId,
    },
    /// The stored request cannot be read by today's app.
    RequestUnreadable {
        /// Which effect.
        effect: EffectId,
    },
    /// It happened, but its result is lost or cannot be read any more.
    ResultLost {
        /// Which effect.
        effect: EffectId,
    },
    /// A record whose effect is neither declared nor an alias today.
    Undeclared {
        /// Which effect.
        effect: EffectId,
    },
    /// Somebody decided otherwise, or another confirmation exists, and then a proof arrived.
    Conflict {
        /// Which effect.
        effect: EffectId,
    },
    /// The automatic tries ended, or were never to begin: try again, handled outside or discard.
    WhatNow,
}

impl Question {
    /// The effect it is about.
    pub fn effect(&self) -> Option<&EffectId> {
        match self {
            Self::DidItHappen { effect }
            | Self::RequestChanged { effect }
            | Self::RequestUnreadable { effect }
            | Self::ResultLost { effect }
            | Self::Undeclared { effect }
            | Self::Conflict { effect } => Some(effect),
            Self::WhatNow => None,
        }
    }
}
