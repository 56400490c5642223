//! Several records in one value, side by side: a page holds dozens of jobs, so a round that moves neighbours writes it once.
//!
//! Keeps the promise that a damaged record is `Corrupt` and harms no neighbour: each record has its own envelope, and the list of
//! them has a checksum, so that one which is missing never looks like "never there". Used by `read` and `write` for the records and
//! the rows of jobs.

use super::codec::{self, INLINE};
use super::error::StoreError;
#[cfg(feature = "fuzzing")]
use super::intents::page::Page;
#[cfg(feature = "fuzzing")]
use super::run_file;
use redb::{ReadableTable, Table};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::Range;

type Bytes = &'static [u8];

/// The version of every pack written today.
const VERSION: u8 = 1;
/// Its kind byte; no record has it.
const KIND: u8 = 30;
/// Version, kind and count before the list of slots; the list's checksum behind it.
const HEAD: usize = 4;
const CHECK: usize = 4;
/// One entry of the list: number, counted from the pack's first, and the record's length.
const ENTRY: usize = 6;

/// Rows of one round share values up to four pages: one insert for dozens of jobs. A value that a later round may still add to
/// stays within one page, or a lone job would cost four.
const WIDE: usize = 4 * 4_096 - 128;

/// So many jobs share the pack that says where they stand.
pub(super) const STRIP: u64 = 64;

/// How many packs that were only read are kept at hand.
const AT_HAND: usize = 64;
/// How many of any kind are kept from one round to the next.
const KEPT: usize = 256;

/// A value that was taken apart. Changed records are appended behind those that were read, until it is encoded again.
#[derive(Clone, Debug, Default)]
pub(super) struct Pack {
    bytes: Vec<u8>,
    /// By number: where its record is in `bytes`.
    slots: Vec<(u32, Range<usize>)>,
}

impl Pack {
    /// Takes a value apart; the text of the error says what is wrong with it.
    pub(super) fn parse(value: &[u8]) -> Result<Self, String> {
        let (head, count) = match value {
            [VERSION, KIND, a, b, ..] => (HEAD, usize::from(u16::from_le_bytes([*a, *b]))),
            [version, KIND, ..] => return Err(format!("pack version {version} is not known")),
            _ => return Err("it is no pack of records".to_owned()),
        };
        let body = head + count * ENTRY;
        let Some((list, rest)) = value.split_at_checked(body) else {
            return Err(format!("{} bytes are too few for {count} records", value.len()));
        };
        let Some((check, records)) = rest.split_first_chunk::<CHECK>() else {
            return Err("its checksum is missing".to_owned());
        };
        if crc32fast::hash(list).to_le_bytes() != *check {
            return Err("the checksum of its list does not match".to_owned());
        }
        let mut slots = Vec::with_capacity(count);
        let mut end = 0;
        let (entries, _) = list[head..].as_chunks::<ENTRY>();
        for &[a, b, c, d, e, f] in entries {
            let from = end;
            end += usize::from(u16::from_le_bytes([e, f]));
            slots.push((u32::from_le_bytes([a, b, c, d]), from..end));
        }
        if end != records.len() {
            return Err(format!("{end} bytes of records are announced, {} are there", records.len()));
        }
        if !slots.is_sorted_by(|(a, _), (b, _)| a < b) {
            return Err("its list is not in order".to_owned());
        }
        Ok(Self { bytes: records.to_vec(), slots })
    }
    /// Replaces `out` with the value.
    fn encode(&self, out: &mut Vec<u8>) -> Result<(), StoreError> {
        let bug = |what: &str| StoreError::Bug(format!("a pack of {} records: {what}", self.slots.len()));
        out.clear();
        out.extend_from_slice(&[VERSION, KIND]);
        let count = u16::try_from(self.slots.len()).map_err(|_| bug("too many"))?;
        out.extend_from_slice(&count.to_le_bytes());
        for (number, place) in &self.slots {
            let len = u16::try_from(place.len()).map_err(|_| bug("one is too long"))?;
            out.extend_from_slice(&number.to_le_bytes());
            out.extend_from_slice(&len.to_le_bytes());
        }
        let check = crc32fast::hash(out);
        out.extend_from_slice(&check.to_le_bytes());
        for (_, place) in &self.slots {
            out.extend_from_slice(&self.bytes[place.clone()]);
        }
        Ok(())
    }
    /// The envelope of one record.
    pub(super) fn get(&self, number: u32) -> Option<&[u8]> {
        let at = self.slots.binary_search_by_key(&number, |(n, _)| *n).ok()?;
        Some(&self.bytes[self.slots[at].1.clone()])
    }
    /// Puts a record in its place.
    pub(super) fn set(&mut self, number: u32, record: &[u8]) {
        let from = self.bytes.len();
        self.bytes.extend_from_slice(record);
        let place = from..self.bytes.len();
        match self.slots.binary_search_by_key(&number, |(n, _)| *n) {
            Ok(at) => self.slots[at].1 = place,
            Err(at) => self.slots.insert(at, (number, place)),
        }
    }
    /// Takes a record out.
    pub(super) fn remove(&mut self, number: u32) {
        if let Ok(at) = self.slots.binary_search_by_key(&number, |(n, _)| *n) {
            self.slots.remove(at);
        }
    }
    /// Forgets replaced records, once they are more than those that count.
    fn compact(&mut self) {
        let live: usize = self.slots.iter().map(|(_, place)| place.len()).sum();
        if self.bytes.len() > 2 * live {
            let mut bytes = Vec::with_capacity(live);
            for (_, place) in &mut self.slots {
                let from = bytes.len();
                bytes.extend_from_slice(&self.bytes[place.clone()]);
                *place = from..bytes.len();
            }
            self.bytes = bytes;
        }
    }
    /// Which records there are.
    pub(super) fn numbers(&self) -> impl Iterator<Item = u32> {
        self.slots.iter().map(|(n, _)| *n)
    }
    /// How many records there are.
    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }
    fn last(&self) -> Option<u32> {
        self.slots.last().map(|(n, _)| *n)
    }
    /// Whether one more record of this length still leaves the value within so many bytes.
    fn has_room(&self, len: usize, within: usize) -> bool {
        // Replaced records count too until they are forgotten; rows of jobs never are replaced.
        HEAD + CHECK + self.bytes.len() + (self.slots.len() + 1) * ENTRY + len <= within
    }
}

/// A table of packs, with those that one transaction has read or changed. A pack has the number of its first record.
///
/// The writer hands them on from a committed round to the next one: nobody else writes, so they are what the table holds.
#[derive(Debug, Default)]
pub(super) struct Packs {
    held: RefCell<Held>,
}

#[derive(Debug, Default)]
struct Held {
    packs: Vec<(u64, Pack, Dirty)>,
    /// By number: its place in `packs`.
    places: BTreeMap<u64, usize>,
    /// The place that was looked up last: neighbours in time are neighbours here.
    last: usize,
    /// How many were read since those that are only read were dropped.
    read: usize,
    /// The pack that takes new rows, and up to how many bytes.
    filling: Option<(u64, usize)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Dirty {
    No,
    Yes,
}

impl Held {
    fn place(&mut self, base: u64) -> Option<usize> {
        if self.packs.get(self.last).is_none_or(|(b, ..)| *b != base) {
            self.last = *self.places.get(&base)?;
        }
        Some(self.last)
    }
    fn insert(&mut self, base: u64, pack: Pack, dirty: Dirty) -> usize {
        self.last = self.packs.len();
        self.packs.push((base, pack, dirty));
        self.places.insert(base, self.last);
        self.last
    }
    fn keep_read(&mut self, base: u64, pack: Pack) -> usize {
        if self.read >= AT_HAND {
            self.packs.retain(|(_, _, dirty)| *dirty == Dirty::Yes);
            self.places = self.packs.iter().enumerate().map(|(place, (base, ..))| (*base, place)).collect();
            self.read = 0;
        }
        self.read += 1;
        self.insert(base, pack, Dirty::No)
    }
    /// The nearest one that begins before a number, and whether the number is within it.
    fn nearest(&self, id: u64) -> Option<(u64, bool)> {
        let of = |place: usize| {
            let (base, pack, _) = self.packs.get(place)?;
            Some((*base, *base <= id && pack.last().is_some_and(|n| id <= base.saturating_add(u64::from(n)))))
        };
        // One that has the number is the nearest: packs do not overlap.
        of(self.last)
            .filter(|(_, within)| *within)
            .or_else(|| self.places.range(..=id).next_back().and_then(|(_, place)| of(*place)))
    }
}

fn damaged(base: u64, why: &str) -> StoreError {
    StoreError::corrupt(format!("the records from number {base} on: {why}"))
}

/// What was found in a table.
fn found(base: u64, value: &[u8]) -> Result<Pack, StoreError> {
    Pack::parse(value).map_err(|why| damaged(base, &why))
}

impl Packs {
    /// Looks at one record of the pack with this number.
    pub(super) fn look<T>(
        &self,
        table: &impl ReadableTable<u64, Bytes>,
        base: u64,
        number: u32,
        f: impl FnOnce(&[u8]) -> Result<T, StoreError>,
    ) -> Result<Option<T>, StoreError> {
        let mut held = self.held.borrow_mut();
        let place = match held.place(base) {
            Some(place) => place,
            None => {
                let Some(value) = table.get(base)? else { return Ok(None) };
                let pack = found(base, value.value())?;
                held.keep_read(base, pack)
            }
        };
        held.packs[place].1.get(number).map(f).transpose()
    }
    /// The pack that a number belongs to, if packs begin wherever one was begun: the nearest one before it.
    pub(super) fn nearest(&self, table: &impl ReadableTable<u64, Bytes>, id: u64) -> Result<Option<u64>, StoreError> {
        let ours = self.held.borrow().nearest(id);
        match ours {
            Some((base, true)) => Ok(Some(base)),
            Some((base, false)) => {
                // One that nobody has read yet may be nearer.
                let nearer = table.range(base..=id)?.next_back().transpose()?.map(|(k, _)| k.value());
                Ok(Some(nearer.unwrap_or(base)))
            }
            None => Ok(table.range(..=id)?.next_back().transpose()?.map(|(k, _)| k.value())),
        }
    }
    /// The pack with this number, to be changed; an empty one if there is none.
    pub(super) fn edit(&mut self, table: &impl ReadableTable<u64, Bytes>, base: u64) -> Result<&mut Pack, StoreError> {
        let held = self.held.get_mut();
        let place = match held.place(base) {
            Some(place) => place,
            None => {
                let pack = table.get(base)?.map(|v| found(base, v.value())).transpose()?;
                held.insert(base, pack.unwrap_or_default(), Dirty::No)
            }
        };
        let (_, pack, dirty) = &mut held.packs[place];
        *dirty = Dirty::Yes;
        Ok(pack)
    }
    /// Adds a row behind all others of this transaction, beside them while they fit a page together.
    pub(super) fn append(&mut self, id: u64, record: &[u8]) -> Result<(), StoreError> {
        let held = self.held.get_mut();
        if let Some((base, within)) = held.filling
            && let Some(place) = held.place(base)
        {
            let (_, pack, dirty) = &mut held.packs[place];
            // A number in the middle of another pack's would not be found again.
            if pack.last().is_some_and(|last| id <= base + u64::from(last)) {
                return Err(StoreError::Bug(format!("job {id} was written after a later one")));
            }
            if let Ok(number) = u32::try_from(id - base)
                && pack.has_room(record.len(), within)
            {
                pack.set(number, record);
                *dirty = Dirty::Yes;
                return Ok(());
            }
        }
        let mut pack = Pack::default();
        pack.set(0, record);
        held.insert(id, pack, Dirty::Yes);
        held.filling = Some((id, WIDE));
        Ok(())
    }
    /// Writes what was changed.
    pub(super) fn flush(&mut self, table: &mut Table<'_, u64, Bytes>, scratch: &mut Vec<u8>) -> Result<(), StoreError> {
        let Held { packs, places, .. } = self.held.get_mut();
        // In order: neighbours share pages of the table.
        for place in places.values() {
            let (base, pack, dirty) = &mut packs[*place];
            if std::mem::replace(dirty, Dirty::No) == Dirty::No {
                continue;
            }
            if pack.len() == 0 {
                table.remove(*base)?;
            } else {
                pack.encode(scratch)?;
                table.insert(*base, scratch.as_slice())?;
                pack.compact();
            }
        }
        Ok(())
    }
    /// Makes them ready for the next round.
    pub(super) fn trim(&mut self) {
        let held = self.held.get_mut();
        if held.packs.len() > KEPT {
            *held = Held::default();
        }
        if let Some((_, within)) = &mut held.filling {
            *within = INLINE;
        }
    }
    /// Whether something is to be written.
    pub(super) fn is_dirty(&self) -> bool {
        self.held.borrow().packs.iter().any(|(_, _, dirty)| *dirty == Dirty::Yes)
    }
}

/// The pointer that stands in a record's place, if it is one.
pub(super) fn pointer_of(record: Option<&[u8]>) -> Option<codec::Pointer> {
    record.and_then(|bytes| codec::pointer(bytes).ok().flatten())
}

/// Decodes any bytes as every kind of value, for the fuzzer and the tests: it comes back whatever the bytes are, with the number of
/// kinds that could be read. What could be read is the same after it was written again.
#[cfg(feature = "fuzzing")]
pub fn decode_anything(bytes: &[u8]) -> usize {
    // With the list's own checksum made right, too: it would hide what comes behind it.
    let mut sealed = bytes.to_vec();
    if let [VERSION, KIND, a, b, ..] = bytes {
        let list = HEAD + usize::from(u16::from_le_bytes([*a, *b])) * ENTRY;
        if let Some((list, check)) = sealed.split_at_mut_checked(list)
            && let Some(check) = check.first_chunk_mut()
        {
            *check = crc32fast::hash(list).to_le_bytes();
        }
    }
    codec::decode_records(bytes)
        + usize::from(pack_comes_back(bytes))
        + usize::from(pack_comes_back(&sealed))
        + usize::from(Page::comes_back(bytes))
        + usize::from(run_file::comes_back(bytes))
}

#[cfg(feature = "fuzzing")]
fn pack_comes_back(bytes: &[u8]) -> bool {
    let Ok(pack) = Pack::parse(bytes) else { return false };
    let mut written = Vec::new();
    let again = pack.encode(&mut written).map_err(|e| e.to_string()).and_then(|()| Pack::parse(&written));
    let same = again.as_ref().is_ok_and(|again| {
        again.numbers().eq(pack.numbers())
            && pack.numbers().all(|n| again.get(n) == pack.get(n) && pack.get(n).is_some())
    });
    assert!(same, "{pack:?} became {again:?}");
    for n in pack.numbers() {
        codec::decode_records(pack.get(n).unwrap_or_default());
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encoded(pack: &Pack) -> Vec<u8> {
        let mut out = vec![9];
        pack.encode(&mut out).unwrap();
        out
    }

    /// Records are set, replaced and removed at random: the value always holds exactly what a map holds.
    #[test]
    fn a_pack_comes_back_as_it_was() {
        let mut rng = fastrand::Rng::with_seed(11);
        let (mut pack, mut model) = (Pack::default(), BTreeMap::new());
        for step in 0..2_000 {
            let number = rng.u32(..32);
            if rng.u8(..4) == 0 {
                pack.remove(number);
                model.remove(&number);
            } else {
                let record: Vec<u8> = (0..rng.usize(..90)).map(|_| rng.u8(..)).collect();
                pack.set(number, &record);
                model.insert(number, record);
            }
            if step % 7 == 0 {
                pack = Pack::parse(&encoded(&pack)).unwrap();
            }
            for number in 0..32 {
                assert_eq!(pack.get(number), model.get(&number).map(Vec::as_slice), "step {step}");
            }
            assert_eq!(pack.len(), model.len());
        }
    }

    /// The disk flips a bit of the list or cuts the value: no record may look as if it had never been there, and none may stand
    /// under another number. A flipped bit in a record is that record's own damage.
    #[test]
    fn a_damaged_list_is_noticed() {
        let mut pack = Pack::default();
        for number in [1, 5, 9, 31] {
            pack.set(number, &[7; 20]);
        }
        let bytes = encoded(&pack);
        let list = HEAD + 4 * ENTRY + CHECK;
        let mut tried = 0;
        for bit in 0..list * 8 {
            let mut bad = bytes.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(Pack::parse(&bad).is_err(), "bit {bit}");
            tried += 1;
        }
        for len in 0..bytes.len() {
            assert!(Pack::parse(&bytes[..len]).is_err(), "cut to {len}");
            tried += 1;
        }
        assert!(Pack::parse(&[bytes.as_slice(), &[0]].concat()).is_err());
        assert!(tried > 300, "only {tried} damaged values were tried");
        let mut bad = bytes;
        bad[list] ^= 1;
        let read = Pack::parse(&bad).unwrap();
        assert_ne!(read.get(1), pack.get(1));
        assert_eq!(read.get(5), pack.get(5));
    }

    /// A list in which two records share a number, or in which a later one comes first, was not written by us.
    #[test]
    fn a_list_out_of_order_is_refused() {
        for slots in [vec![(4, 0..1), (4, 1..2)], vec![(4, 0..1), (3, 1..2)]] {
            let bad = Pack { bytes: vec![0; 2], slots };
            assert!(Pack::parse(&encoded(&bad)).unwrap_err().contains("order"));
        }
    }
}
