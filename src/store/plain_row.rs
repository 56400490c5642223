//! A job's row as nearly all are: one that undoes nothing. Every enqueue writes one and every claim reads one, for which serde takes a
//! multiple of the time; the bytes are the same.
//!
//! Keeps the promise that it reads nothing else than serde would, or leaves it to serde. Called by `codec` alone.

use crate::model::id::{JobKey, KindId};
use crate::model::job::{Codec, JobRow};
use crate::model::time::Wall;

/// Reads a row, unless it is anything but plain, or damaged.
pub(super) fn read(bytes: &[u8]) -> Option<JobRow> {
    let mut rest = bytes;
    let kind = KindId(narrow(&mut rest)?);
    let key = JobKey::from(text(&mut rest)?);
    let (incarnation, version) = (narrow(&mut rest)?, narrow(&mut rest)?);
    let codec = match narrow(&mut rest)? {
        0 => Codec::Json,
        1 => Codec::Bincode,
        _ => return None,
    };
    let title = text(&mut rest)?.to_owned();
    let enqueued = Wall(wide(&mut rest)?);
    let (0, after) = rest.split_first()? else { return None };
    rest = after;
    let len = wide(&mut rest)?;
    let payload = (u64::try_from(rest.len()) == Ok(len)).then(|| rest.to_vec())?;
    Some(JobRow { kind, key, incarnation, version, codec, title, enqueued, payload, undoes: None })
}

/// Appends a row that undoes nothing.
pub(super) fn write(row: &JobRow, out: &mut Vec<u8>) {
    fn number(n: u64, out: &mut Vec<u8>) {
        let bytes = n.to_le_bytes();
        match n {
            0..=250 => out.push(bytes[0]),
            251..=0xffff => out.extend_from_slice(&[251, bytes[0], bytes[1]]),
            0x1_0000..=0xffff_ffff => {
                out.push(252);
                out.extend_from_slice(&bytes[..4]);
            }
            0x1_0000_0000.. => {
                out.push(253);
                out.extend_from_slice(&bytes);
            }
        }
    }
    fn text(text: &[u8], out: &mut Vec<u8>) {
        number(text.len() as u64, out);
        out.extend_from_slice(text);
    }
    let codec = match row.codec {
        Codec::Json => 0,
        Codec::Bincode => 1,
    };
    number(row.kind.0.into(), out);
    text(row.key.as_str().as_bytes(), out);
    number(row.incarnation.into(), out);
    number(row.version.into(), out);
    number(codec, out);
    text(row.title.as_bytes(), out);
    number(row.enqueued.0, out);
    out.push(0);
    text(&row.payload, out);
}

/// A number of up to 32 bits in bincode's varints.
fn narrow(rest: &mut &[u8]) -> Option<u32> {
    if *rest.first()? == 253 { None } else { wide(rest).and_then(|n| u32::try_from(n).ok()) }
}

/// A number of up to 64 bits in bincode's varints.
fn wide(rest: &mut &[u8]) -> Option<u64> {
    let (first, after) = rest.split_first()?;
    let (n, after) = match first {
        0..=250 => (u64::from(*first), after),
        251 => after.split_first_chunk().map(|(n, after)| (u16::from_le_bytes(*n).into(), after))?,
        252 => after.split_first_chunk().map(|(n, after)| (u32::from_le_bytes(*n).into(), after))?,
        253 => after.split_first_chunk().map(|(n, after)| (u64::from_le_bytes(*n), after))?,
        254..=255 => return None,
    };
    *rest = after;
    Some(n)
}

fn text<'a>(rest: &mut &'a [u8]) -> Option<&'a str> {
    let len = usize::try_from(wide(rest)?).ok()?;
    let (text, after) = rest.split_at_checked(len)?;
    *rest = after;
    std::str::from_utf8(text).ok()
}
