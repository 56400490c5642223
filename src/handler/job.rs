//! A job as an app declares it: payload and intent in one type.

use super::fail::Fail;
use crate::error::Error;
use crate::model::Limits;
use crate::model::effect::EffectCard;
use crate::model::id::JobKey;
use crate::model::job::{Codec, JobRow, PRIORITY};
use crate::model::policy::Policy;
use crate::store;
use serde::{Serialize, de::DeserializeOwned};
use sha2::{Digest, Sha256};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// A kind of job: the payload is the intent. Only `KIND` and `key` are required.
pub trait Job: Serialize + DeserializeOwned + Send + 'static {
    /// The name of the kind, stored with every job. At most 128 bytes.
    const KIND: &'static str;
    /// Former names of this kind: jobs stored under them still run and are still found.
    const ALIASES: &'static [&'static str] = &[];
    /// The version of the payload; see [`upgrade`](Self::upgrade).
    const VERSION: u32 = 1;
    /// How the payload is encoded.
    const CODEC: Codec = Codec::Json;
    /// Groups kinds for pausing and in logs and metrics.
    const QUEUE: &'static str = "default";
    /// 0 first, 255 last.
    const PRIORITY: u8 = PRIORITY;

    /// The intent: the same intent is the same job. At most 512 bytes, not empty.
    fn key(&self) -> JobKey;
    /// What a person sees; never secrets. An empty one, the default, is shown as the kind in words and the key.
    fn title(&self) -> String {
        String::new()
    }
    /// What is at stake, in a unit of the app's own (e.g. cents); see
    /// [`Policy::second_person_above`](crate::Policy::second_person_above). Also called on the writer's thread, while a decision is
    /// written: compute it from the payload, do no I/O, and wait for nobody.
    fn stake(&self) -> u64 {
        0
    }
    /// Retries, timeouts, memory. Defaults narrow for kinds with a risky effect.
    fn policy() -> Policy {
        Policy::default()
    }
    /// The effects this kind may perform: checked at start, shown on the safety card; others are refused.
    fn effects() -> Vec<EffectCard> {
        Vec::new()
    }
    /// Reads a JSON payload stored by another version of the app. The default reads it as it is, so that fields may be added
    /// with `#[serde(default)]`.
    ///
    /// # Errors
    /// A payload that cannot be read waits visibly for a person or a newer app; nothing is lost.
    fn upgrade(from: u32, payload: serde_json::Value) -> Result<Self, Fail> {
        let _ = from;
        Ok(serde_json::from_value(payload)?)
    }
    /// Reads a bincode payload stored by another version of the app.
    ///
    /// # Errors
    /// As for [`upgrade`](Self::upgrade). The default refuses every other version.
    fn upgrade_bytes(from: u32, payload: &[u8]) -> Result<Self, Fail> {
        let _ = payload;
        Err(Fail::permanent(format!("no upgrade from payload version {from}: override upgrade_bytes")))
    }
}

/// A job's payload as it is stored, checked against the limits.
pub(crate) fn encode<J: Job>(job: &J, limits: &Limits) -> Result<Vec<u8>, Error> {
    let bytes = match J::CODEC {
        Codec::Json => serde_json::to_vec(job).map_err(|e| Error::encode(J::KIND, &e))?,
        Codec::Bincode => store::encode_app(job).map_err(|e| Error::encode(J::KIND, &e))?,
    };
    if bytes.len() > limits.payload {
        return Err(Error::TooBig { what: "payload", len: bytes.len(), limit: limits.payload });
    }
    Ok(bytes)
}

/// What is at stake in a stored job; `None` if today's app cannot say: then it counts as much.
pub(crate) fn stake<J: Job>(row: &JobRow) -> Option<u64> {
    let read = || decode::<J>(row.codec, row.version, &row.payload).ok().map(|job| job.stake());
    catch_unwind(AssertUnwindSafe(read)).unwrap_or_else(|panic| {
        // Not dropped: the `Drop` of an odd payload could panic again.
        std::mem::forget(panic);
        None
    })
}

/// What a person sees of a job. A title that says no more than kind and key is not stored.
pub(crate) fn title(row: &JobRow, kind: &str) -> String {
    if row.title.is_empty() { format!("{} {}", kind.replace(['-', '_'], " "), row.key) } else { row.title.clone() }
}

/// A stored payload as today's type.
pub(crate) fn decode<J: Job>(codec: Codec, version: u32, bytes: &[u8]) -> Result<J, Fail> {
    match (codec, version == J::VERSION) {
        (Codec::Json, true) => Ok(serde_json::from_slice(bytes)?),
        (Codec::Json, false) => J::upgrade(version, serde_json::from_slice(bytes)?),
        (Codec::Bincode, true) => Ok(store::decode_app(bytes)?),
        (Codec::Bincode, false) => J::upgrade_bytes(version, bytes),
    }
}

/// Tells "same key, other payload": the first 16 bytes of SHA-256 over version, codec and payload.
pub(crate) fn digest(version: u32, codec: Codec, payload: &[u8]) -> [u8; 16] {
    let mut h = Sha256::new();
    h.update(version.to_be_bytes());
    h.update([match codec {
        Codec::Json => 0_u8,
        Codec::Bincode => 1,
    }]);
    h.update(payload);
    let full = h.finalize();
    let mut out = [0; 16];
    for (o, b) in out.iter_mut().zip(full.iter()) {
        *o = *b;
    }
    out
}
