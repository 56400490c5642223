//! How a record becomes bytes and back: an envelope of version, kind, length and checksum around a bincode payload.
//! Keeps the promise that damaged bytes are `Corrupt`, never a panic and never another value. Called by `read` and `write`.

use super::error::StoreError;
use super::plain_row;
use super::record;
use crate::model::effect::EffectRecord;
use crate::model::job::{Codec, Identity, JobRecord, JobRow, Memo, Undoes};
use crate::model::letter::{Act, Entry, LetterRecord};
use crate::model::outbox::{Delivery, Message, OutboxRow, Remembered};
use crate::model::time::Wall;
use crate::model::{id::JobKey, id::KindId};
use crate::planted::on;
use bincode::config::{self, Configuration, Limit, LittleEndian, Varint};
use bincode::enc::write::Writer;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// The version of every record written today.
const VERSION: u8 = 1;
/// Version, kind and length before the payload; the checksum after it.
const HEAD: usize = 6;
const FOOT: usize = 4;
/// No record may claim more than this, so that a damaged length cannot ask for all memory.
pub(super) const LARGEST: usize = 64 << 20;
/// Longer values go to the chunk table: a pair larger than a page costs a power of two of pages.
pub(super) const INLINE: usize = 3_584;
/// A longer record of a job goes there too, so that the records which share a pack stay within a page.
pub(super) const SLIM: usize = 88;
/// One chunk: with its key it just fits a page.
pub(super) const CHUNK: usize = 4_000;

const POINTER: u8 = 15;

fn config() -> Configuration<LittleEndian, Varint, Limit<LARGEST>> {
    config::standard().with_limit::<LARGEST>()
}

/// A record with a place in the file. The kind byte keeps a record from being read as another one.
pub(super) trait Stored: Sized {
    /// Its kind byte; never reused for another type.
    const KIND: u8;
    /// In words, for errors.
    const NAME: &'static str;
    /// Appends the payload.
    fn write(&self, out: &mut Vec<u8>) -> Result<(), StoreError>;
    /// Reads the whole payload.
    fn read(payload: &[u8]) -> Result<Self, String>;
}

/// Replaces `out` with the envelope of `value`.
pub(super) fn encode<T: Stored>(value: &T, out: &mut Vec<u8>) -> Result<(), StoreError> {
    out.clear();
    out.extend_from_slice(&[VERSION, T::KIND, 0, 0, 0, 0]);
    value.write(out)?;
    seal(T::NAME, out)
}

fn seal(name: &'static str, out: &mut Vec<u8>) -> Result<(), StoreError> {
    let len = out.len() - HEAD;
    if len > LARGEST {
        return Err(StoreError::TooBig { what: name, len, limit: LARGEST });
    }
    let len = u32::try_from(len).map_err(|_| StoreError::TooBig { what: name, len, limit: LARGEST })?;
    out[2..HEAD].copy_from_slice(&len.to_le_bytes());
    let crc = crc32fast::hash(out);
    out.extend_from_slice(&crc.to_le_bytes());
    Ok(())
}

/// Reads an envelope; the text of the error says what is wrong with it.
pub(super) fn decode<T: Stored>(bytes: &[u8]) -> Result<T, String> {
    T::read(payload(T::KIND, bytes)?).map_err(|e| format!("{}: {e}", T::NAME))
}

fn payload(kind: u8, bytes: &[u8]) -> Result<&[u8], String> {
    let (body, foot) = bytes
        .len()
        .checked_sub(FOOT)
        .filter(|&n| n >= HEAD)
        .map(|n| bytes.split_at(n))
        .ok_or_else(|| format!("{} bytes are too few for a record", bytes.len()))?;
    if crc32fast::hash(body).to_le_bytes() != foot && !on("checksum-ignored") {
        return Err("the checksum does not match".to_owned());
    }
    if body[0] != VERSION {
        return Err(format!("record version {} is not known", body[0]));
    }
    if body[1] != kind {
        return Err(format!("record kind {} where {kind} belongs", body[1]));
    }
    let len = u32::from_le_bytes([body[2], body[3], body[4], body[5]]);
    let payload = &body[HEAD..];
    if usize::try_from(len) != Ok(payload.len()) {
        return Err(format!("length {len} where {} bytes are", payload.len()));
    }
    Ok(payload)
}

/// An app's payload in the compact encoding.
pub fn encode_app<T: Serialize>(value: &T) -> Result<Vec<u8>, StoreError> {
    bincode::serde::encode_to_vec(value, config()).map_err(|e| StoreError::corrupt(e.to_string()))
}

/// An app's payload out of the compact encoding; every byte must be consumed.
pub fn decode_app<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, StoreError> {
    read_serde(bytes).map_err(StoreError::corrupt)
}

/// Where the chunks of a long value are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pointer {
    /// First half of the chunks' keys.
    pub(super) id: u64,
    /// Bytes in all of them.
    pub(super) len: usize,
}

/// Whether a value is a pointer to chunks; decided by its kind byte, then checked.
pub(super) fn pointer(bytes: &[u8]) -> Result<Option<Pointer>, String> {
    if bytes.get(1) != Some(&POINTER) { Ok(None) } else { decode(bytes).map(Some) }
}

impl Stored for Pointer {
    const KIND: u8 = POINTER;
    const NAME: &'static str = "pointer to chunks";
    fn write(&self, out: &mut Vec<u8>) -> Result<(), StoreError> {
        write_serde(&(self.id, self.len), out)
    }
    fn read(payload: &[u8]) -> Result<Self, String> {
        let (id, len): (u64, usize) = read_serde(payload)?;
        if len > LARGEST + HEAD + FOOT {
            return Err(format!("it claims {len} bytes"));
        }
        Ok(Self { id, len })
    }
}

/// A job's record and, once it ended, when its rows may go: kept together so that a change can find the index row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct StateRow {
    pub(super) record: JobRecord,
    pub(super) prune: Option<Wall>,
}

impl Stored for StateRow {
    const KIND: u8 = 2;
    const NAME: &'static str = "job record";
    fn write(&self, out: &mut Vec<u8>) -> Result<(), StoreError> {
        let Self { record, prune } = self;
        if record::write(record, *prune, out) { write_serde(&(&record.state, record.why), out) } else { Ok(()) }
    }
    fn read(payload: &[u8]) -> Result<Self, String> {
        let (mut record, prune, tail) = record::read(payload)?;
        if let Some(tail) = tail {
            (record.state, record.why) = read_serde(tail)?;
        }
        Ok(Self { record, prune })
    }
}

/// What a sorted run of the index of intents is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct RunCard {
    /// The first job that it may have an entry of.
    pub(super) first: u64,
    /// The number after the last one.
    pub(super) end: u64,
    /// How many entries it has; at most, as long as it is being merged.
    pub(super) entries: u64,
    /// The runs that it is being merged from; none if it is whole.
    pub(super) inputs: Vec<u64>,
}

/// The payload is copied as it is: serde would take it byte by byte.
impl Stored for JobRow {
    const KIND: u8 = 1;
    const NAME: &'static str = "job row";
    fn write(&self, out: &mut Vec<u8>) -> Result<(), StoreError> {
        let Self { kind, key, incarnation, version, codec, title, enqueued, payload, undoes } = self;
        if undoes.is_none() {
            plain_row::write(self, out);
            return Ok(());
        }
        write_serde(&(kind, key, incarnation, version, codec, title, enqueued, undoes, payload.len()), out)?;
        out.extend_from_slice(payload);
        Ok(())
    }
    fn read(bytes: &[u8]) -> Result<Self, String> {
        match plain_row::read(bytes) {
            Some(row) => Ok(row),
            None => read_row(bytes),
        }
    }
}

/// The rows that are not plain, and those that are damaged.
fn read_row(bytes: &[u8]) -> Result<JobRow, String> {
    type Head = (KindId, JobKey, u32, u32, Codec, String, Wall, Option<Undoes>, usize);
    let (head, used) =
        bincode::serde::borrow_decode_from_slice::<Head, _>(bytes, config()).map_err(|e| e.to_string())?;
    let (kind, key, incarnation, version, codec, title, enqueued, undoes, len) = head;
    let payload = bytes.get(used..).unwrap_or_default();
    if payload.len() != len {
        return Err(format!("a payload of {len} bytes is announced, {} are there", payload.len()));
    }
    Ok(JobRow { kind, key, incarnation, version, codec, title, enqueued, payload: payload.to_vec(), undoes })
}

/// The body is copied as it is, as a job's payload.
impl Stored for OutboxRow {
    const KIND: u8 = 20;
    const NAME: &'static str = "message";
    fn write(&self, out: &mut Vec<u8>) -> Result<(), StoreError> {
        let Self { message: Message { id, topic, key, kind, body, headers }, committed } = self;
        write_serde(&(id, topic, key, kind, headers, committed, body.len()), out)?;
        out.extend_from_slice(body);
        Ok(())
    }
    fn read(bytes: &[u8]) -> Result<Self, String> {
        type Head = (String, String, String, String, Vec<(String, String)>, Wall, usize);
        let (head, used) = bincode::serde::decode_from_slice::<Head, _>(bytes, config()).map_err(|e| e.to_string())?;
        let (id, topic, key, kind, headers, committed, len) = head;
        let body = bytes.get(used..).unwrap_or_default();
        if body.len() != len {
            return Err(format!("a body of {len} bytes is announced, {} are there", body.len()));
        }
        Ok(Self { message: Message { id, topic, key, kind, body: body.to_vec(), headers }, committed })
    }
}

/// Bytes that mean nothing to the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Raw(pub(super) Vec<u8>);

impl Stored for Raw {
    const KIND: u8 = 9;
    const NAME: &'static str = "stored bytes";
    fn write(&self, out: &mut Vec<u8>) -> Result<(), StoreError> {
        out.extend_from_slice(&self.0);
        Ok(())
    }
    fn read(payload: &[u8]) -> Result<Self, String> {
        Ok(Self(payload.to_vec()))
    }
}

macro_rules! stored {
    ($($type:ty = $kind:literal $name:literal;)*) => {$(
        impl Stored for $type {
            const KIND: u8 = $kind;
            const NAME: &'static str = $name;
            fn write(&self, out: &mut Vec<u8>) -> Result<(), StoreError> {
                write_serde(self, out)
            }
            fn read(payload: &[u8]) -> Result<Self, String> {
                read_serde(payload)
            }
        }
    )*};
}

stored! {
    Identity = 3 "memory of an intent";
    EffectRecord = 4 "effect record";
    Memo = 5 "remembered step";
    Entry = 6 "history entry";
    LetterRecord = 8 "letter";
    Delivery = 21 "standing of a message";
    Remembered = 22 "memory of a message";
    Act = 10 "act of a person";
    RunCard = 23 "card of a run";
}

struct Append<'a>(&'a mut Vec<u8>);

impl Writer for Append<'_> {
    fn write(&mut self, bytes: &[u8]) -> Result<(), bincode::error::EncodeError> {
        self.0.extend_from_slice(bytes);
        Ok(())
    }
}

fn write_serde<T: Serialize>(value: &T, out: &mut Vec<u8>) -> Result<(), StoreError> {
    bincode::serde::encode_into_writer(value, Append(out), config()).map_err(|e| StoreError::Bug(e.to_string()))
}

/// bincode leaves bytes that it did not need without a word; here they are damage.
fn read_serde<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, String> {
    let (value, used) = bincode::serde::decode_from_slice(bytes, config()).map_err(|e| e.to_string())?;
    if used == bytes.len() { Ok(value) } else { Err(format!("{} bytes too many", bytes.len() - used)) }
}

/// Decodes any bytes as every kind of record: it comes back whatever they are, with the number of kinds that could be read. What could
/// be read is the same after it was written again.
#[cfg(any(test, feature = "fuzzing"))]
pub(super) fn decode_records(bytes: &[u8]) -> usize {
    fn read<T: Stored + PartialEq + std::fmt::Debug>(bytes: &[u8]) -> bool {
        let Ok(value) = decode::<T>(bytes) else { return false };
        let mut written = Vec::new();
        let again = encode(&value, &mut written).map_err(|e| e.to_string()).and_then(|()| decode::<T>(&written));
        assert!(again.as_ref() == Ok(&value), "{value:?} became {again:?}");
        true
    }
    fn one<T: Stored + PartialEq + std::fmt::Debug>(bytes: &[u8]) -> usize {
        let mut sealed = vec![VERSION, T::KIND, 0, 0, 0, 0];
        sealed.extend_from_slice(bytes);
        // The payload behind a valid envelope too: otherwise the checksum hides the decoders from the fuzzer.
        let behind = seal(T::NAME, &mut sealed).is_ok_and(|()| read::<T>(&sealed));
        usize::from(read::<T>(bytes)) + usize::from(behind)
    }
    one::<JobRow>(bytes)
        + one::<StateRow>(bytes)
        + one::<Identity>(bytes)
        + one::<RunCard>(bytes)
        + one::<EffectRecord>(bytes)
        + one::<Memo>(bytes)
        + one::<Entry>(bytes)
        + one::<LetterRecord>(bytes)
        + one::<Act>(bytes)
        + one::<OutboxRow>(bytes)
        + one::<Delivery>(bytes)
        + one::<Remembered>(bytes)
        + one::<Raw>(bytes)
        + one::<Pointer>(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::id::{EffectId, JobId};
    use crate::model::job::{Delay, JobState};
    use crate::model::letter::Why;

    fn row() -> JobRow {
        JobRow {
            kind: KindId(3),
            key: "ord_1".into(),
            incarnation: 1,
            version: 2,
            codec: Codec::Json,
            title: "Complete order 1".to_owned(),
            enqueued: Wall(77),
            payload: b"{\"order\":1}".to_vec(),
            undoes: Some(Undoes { job: JobId(1), effect: EffectId { name: "charge".to_owned(), part: String::new() } }),
        }
    }

    fn encoded<T: Stored>(value: &T) -> Vec<u8> {
        let mut out = vec![1, 2, 3];
        encode(value, &mut out).unwrap();
        out
    }

    /// Whatever is written is read back, and as nothing else.
    #[test]
    fn a_record_comes_back_as_itself_and_as_nothing_else() {
        let bytes = encoded(&row());
        assert_eq!(decode::<JobRow>(&bytes).unwrap(), row());
        assert!(decode::<Entry>(&bytes).unwrap_err().contains("kind 1"));
        let state = StateRow {
            record: JobRecord::new(JobId(9), KindId(3), 4, JobState::Ready { ticket: 9 }, None),
            prune: Some(Wall(5)),
        };
        assert_eq!(decode::<StateRow>(&encoded(&state)).unwrap(), state);
        let why = Delay::Snooze("the bank is closed".to_owned());
        let delayed = JobState::Delayed { due: Wall(7), delay_ms: 3, why };
        let ended = JobState::Ended { how: crate::model::job::End::Discarded, at: Wall(8) };
        for (to, why) in
            [(delayed, None), (JobState::NeedsDecision, Some(Why::EffectUnresolved)), (ended, Some(Why::Unreadable))]
        {
            let record = JobRecord { why, ..JobRecord::new(JobId(9), KindId(3), 4, to, Some(Wall(0))) };
            let state = StateRow { record, prune: None };
            assert_eq!(decode::<StateRow>(&encoded(&state)).unwrap(), state);
        }
        let mut message = Message::new("orders.paid", "order/1/paid", b"{\"cents\":5}".to_vec());
        message.headers = vec![("traceparent".to_owned(), "00-1-2-01".to_owned())];
        let message = OutboxRow { message, committed: Wall(6) };
        assert_eq!(decode::<OutboxRow>(&encoded(&message)).unwrap(), message);
        assert!(decode::<JobRow>(&encoded(&message)).unwrap_err().contains("kind 20"));
        let pointer_bytes = encoded(&Pointer { id: 7, len: 9_000 });
        assert_eq!(pointer(&pointer_bytes).unwrap(), Some(Pointer { id: 7, len: 9_000 }));
        assert_eq!(pointer(&bytes).unwrap(), None);
    }

    /// The disk flips a bit, cuts the record or appends to it: every such record is refused.
    #[test]
    fn every_flipped_bit_and_every_cut_is_noticed() {
        let entry = Entry::Effect {
            effect: EffectId { name: "charge".to_owned(), part: String::new() },
            became: "confirmed".to_owned(),
            late: false,
            at: Wall(12),
        };
        let bytes = encoded(&entry);
        let mut tried = 0;
        for i in 0..bytes.len() * 8 {
            let mut bad = bytes.clone();
            bad[i / 8] ^= 1 << (i % 8);
            assert!(decode::<Entry>(&bad).is_err(), "bit {i}");
            tried += 1;
        }
        for n in 0..bytes.len() {
            assert!(decode::<Entry>(&bytes[..n]).is_err(), "cut to {n}");
            tried += 1;
        }
        assert!(decode::<Entry>(&[&bytes[..], &[0]].concat()).is_err());
        assert!(tried > 200, "only {tried} damaged records were tried");
    }

    /// A record says it is 2^64 bytes long, or has bytes left over: neither takes memory nor is believed.
    #[test]
    fn hostile_payloads_are_errors() {
        let mut rng = fastrand::Rng::with_seed(7);
        let mut tried = 0;
        for n in 0..200 {
            let mut bytes: Vec<u8> = (0..n).map(|_| rng.u8(..)).collect();
            decode_records(&bytes);
            bytes.extend_from_slice(&[0xfd; 9]);
            decode_records(&bytes);
            tried += 2;
        }
        assert_eq!(tried, 400);
        let mut long = vec![VERSION, Memo::KIND, 0, 0, 0, 0];
        write_serde(&("name", false, [1u8; 3].as_slice(), 0u32, 1u8), &mut long).unwrap();
        seal("x", &mut long).unwrap();
        assert!(decode::<Memo>(&long).unwrap_err().contains("1 bytes too many"));
    }

    /// Rows of every sort, whole, damaged and cut, are read without serde wherever they can be: what comes out is what serde reads.
    #[test]
    fn a_plain_row_is_what_serde_reads() {
        let mut rng = fastrand::Rng::with_seed(9);
        let (mut plain, mut refused) = (0, 0);
        for _ in 0..2_000 {
            let len = |rng: &mut fastrand::Rng| [0, 1, 30, 249, 250, 251, 70_000][rng.usize(..7)];
            let some = |rng: &mut fastrand::Rng| rng.u32(..) >> rng.u32(..32);
            let row = JobRow {
                kind: KindId(some(&mut rng)),
                key: "k".repeat(len(&mut rng)).as_str().into(),
                incarnation: some(&mut rng),
                version: some(&mut rng),
                codec: if rng.bool() { Codec::Json } else { Codec::Bincode },
                title: "ü".repeat(len(&mut rng)),
                enqueued: Wall(rng.u64(..) >> rng.u32(..64)),
                payload: vec![rng.u8(..); len(&mut rng)],
                undoes: if rng.u8(..8) == 0 { row().undoes } else { None },
            };
            let mut bytes = Vec::new();
            row.write(&mut bytes).unwrap();
            assert_eq!(JobRow::read(&bytes).unwrap(), row);
            let JobRow { kind, key, incarnation, version, codec, title, enqueued, payload, undoes } = &row;
            let mut serdes = Vec::new();
            let head = (kind, key, incarnation, version, codec, title, enqueued, undoes, payload.len());
            write_serde(&head, &mut serdes).unwrap();
            assert_eq!(bytes, [&serdes[..], payload].concat());
            assert_eq!(plain_row::read(&bytes).is_some(), row.undoes.is_none());
            for _ in 0..20 {
                let mut bad = bytes.clone();
                // The numbers stand at the beginning, and behind a short key.
                let at = rng.usize(..bad.len().min(24));
                match rng.u8(..4) {
                    0 => bad.truncate(at),
                    1 => bad.push(0),
                    _ => bad[at] = rng.u8(..),
                }
                match plain_row::read(&bad) {
                    Some(row) => {
                        assert_eq!(read_row(&bad), Ok(row));
                        plain += 1;
                    }
                    None => refused += 1,
                }
            }
        }
        assert!(plain > 1_000 && refused > 1_000, "{plain} damaged rows could be read, {refused} could not");
    }
}
