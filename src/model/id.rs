//! Identity: a job is its intent (kind and key), never its attempt. Parsed once, compared afterwards.

use serde::de::Visitor;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::sync::Arc;

/// The intent of a job within its kind, e.g. `ord_4201`. At most 512 bytes, not empty. Clones share the text.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct JobKey(Arc<str>);

impl JobKey {
    /// The visible opt-out, for work that has no natural key: every call is another job.
    ///
    /// # Panics
    /// Never: without a random source of the operating system the key is derived from the clock of the process and a counter.
    pub fn random() -> Self {
        random_hex().into()
    }
    /// The key as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<String> for JobKey {
    fn from(s: String) -> Self {
        Self(s.into())
    }
}
impl From<&str> for JobKey {
    fn from(s: &str) -> Self {
        Self(s.into())
    }
}
impl From<&String> for JobKey {
    fn from(s: &String) -> Self {
        s.as_str().into()
    }
}
impl Serialize for JobKey {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}
impl<'de> Deserialize<'de> for JobKey {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;
        impl Visitor<'_> for Text {
            type Value = JobKey;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a key")
            }
            fn visit_str<E>(self, text: &str) -> Result<JobKey, E> {
                Ok(text.into())
            }
        }
        deserializer.deserialize_str(Text)
    }
}
impl fmt::Display for JobKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The number of a stored job: rises with every enqueue, never reused, also after its row is pruned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct JobId(pub(crate) u64);

impl JobId {
    /// The number itself, for logs and links.
    pub fn number(self) -> u64 {
        self.0
    }
    /// An id from its number, e.g. out of a link; whether such a job exists is known when it is used.
    pub fn from_number(n: u64) -> Self {
        Self(n)
    }
}
impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// A kind's short number inside one file (the store keeps the table of names).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct KindId(pub u32);

/// A fencing token: 24 bits of epoch, 40 bits of counter. Rises with every claim, for ever; never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Token(pub(crate) u64);

impl Token {
    /// Bits of the counter within one epoch.
    pub const COUNTER_BITS: u32 = 40;
    /// The first token of an epoch.
    pub fn first_of(epoch: u32) -> Self {
        Self(u64::from(epoch) << Self::COUNTER_BITS)
    }
    /// The number itself: hand it to systems that can fence.
    pub fn number(self) -> u64 {
        self.0
    }
    /// The first of an epoch: claims have later ones.
    pub fn is_of_no_claim(self) -> bool {
        self == Self::first_of(self.epoch())
    }
    /// The epoch this token belongs to.
    pub fn epoch(self) -> u32 {
        u32::try_from(self.0 >> Self::COUNTER_BITS).unwrap_or(u32::MAX)
    }
}
impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// The ticket for every write about a running job: the job and the token of its claim. Only a claim makes one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Lease {
    pub(crate) job: JobId,
    pub(crate) token: Token,
}

impl Lease {
    /// The job it is for.
    pub fn job(&self) -> JobId {
        self.job
    }
    /// The fencing token of the claim.
    pub fn token(&self) -> Token {
        self.token
    }
}

/// An effect within a job: its declared name and the part that tells several requests of one name apart.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct EffectId {
    /// The effect's declared name as it was stored.
    pub name: String,
    /// What [`part`](crate::Effect::part) returned; empty if the job asks once for this effect.
    pub part: String,
}

impl fmt::Display for EffectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.part.is_empty() { f.write_str(&self.name) } else { write!(f, "{}/{}", self.name, self.part) }
    }
}

/// What the provider gets: 64 hexadecimal digits, the same on every call of one effect.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct IdempotencyKey(pub(crate) String);

impl IdempotencyKey {
    /// The key as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}
impl fmt::Display for IdempotencyKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The number of one call to a provider under one effect record, from 1.
pub type CallNo = u32;

/// 32 hexadecimal digits that no other call returns.
pub(crate) fn random_hex() -> String {
    random_bytes().iter().map(|b| format!("{b:02x}")).collect()
}

/// 16 bytes from the operating system. Without such a source: process id, a counter and an address, mixed; still unique here.
pub(crate) fn random_bytes() -> [u8; 16] {
    use std::hash::{BuildHasher, RandomState};
    use std::sync::atomic::{AtomicU64, Ordering};
    static CALLS: AtomicU64 = AtomicU64::new(0);
    let mut out = [0; 16];
    if getrandom::fill(&mut out).is_err() {
        let n = CALLS.fetch_add(1, Ordering::Relaxed);
        let a = RandomState::new().hash_one((std::process::id(), n));
        let b = RandomState::new().hash_one((a, n));
        out[..8].copy_from_slice(&a.to_le_bytes());
        out[8..].copy_from_slice(&b.to_le_bytes());
    }
    out
}
