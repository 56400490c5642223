//! A page of the index as bytes: entries side by side under one checksum. Keeps the promise that a damaged page is noticed, so that
//! "not there" is never said of an entry that cannot be read. Used for rows of `q/id-fresh` and for pages of runs.

use super::super::codec::INLINE;

/// The version of every page written today.
const VERSION: u8 = 1;
/// Its kind byte; no record has it.
const KIND: u8 = 31;
/// Version, kind and count before the entries, the checksum behind them.
const HEAD: usize = 4;
const CHECK: usize = 4;
const ENTRY: usize = 16;

/// So many entries fit one page.
pub(super) const ROOM: usize = (INLINE - HEAD - CHECK) / ENTRY;

/// A job that may be the one of an intent with this hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Entry {
    pub(super) hash: u64,
    pub(super) job: u64,
}

/// The entries of a page whose checksum was right.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Page<'a>(&'a [[u8; ENTRY]]);

impl<'a> Page<'a> {
    /// Takes a value apart; the text of the error says what is wrong with it.
    pub(crate) fn parse(value: &'a [u8]) -> Result<Self, String> {
        let (head, check) = value.split_last_chunk::<CHECK>().ok_or("it is too short for a page of the index")?;
        if crc32fast::hash(head).to_le_bytes() != *check {
            return Err("its checksum does not match".to_owned());
        }
        let Some((&[VERSION, KIND, a, b], entries)) = head.split_first_chunk::<HEAD>() else {
            return Err("it is no page of the index that is known here".to_owned());
        };
        let (entries, rest) = entries.as_chunks();
        let count = usize::from(u16::from_le_bytes([a, b]));
        if count == 0 || entries.len() != count || !rest.is_empty() {
            return Err(format!("{count} entries are announced, {} are there", entries.len()));
        }
        Ok(Self(entries))
    }
    /// In the order in which they were written.
    pub(super) fn entries(self) -> impl ExactSizeIterator<Item = Entry> + 'a {
        self.0.iter().map(entry)
    }
    pub(super) fn first(self) -> Option<Entry> {
        self.0.first().map(entry)
    }
    /// The entries with this hash, in a page that is sorted by hash.
    pub(super) fn of(self, hash: u64) -> impl Iterator<Item = Entry> + 'a {
        let from = self.0.partition_point(|e| entry(e).hash < hash);
        self.0[from..].iter().map(entry).take_while(move |e| e.hash == hash)
    }
}

#[cfg(feature = "fuzzing")]
impl Page<'_> {
    /// Whether any bytes are a page, as they are or under a right checksum; a page that was read is the same after it was written.
    pub(crate) fn comes_back(bytes: &[u8]) -> bool {
        fn read(bytes: &[u8]) -> bool {
            let Ok(page) = Page::parse(bytes) else { return false };
            let (entries, mut written) = (page.entries().collect::<Vec<_>>(), Vec::new());
            encode(&entries, &mut written);
            assert_eq!(written, bytes);
            let by_hash = entries.is_sorted_by_key(|e| e.hash);
            assert!(!by_hash || entries.iter().all(|e| page.of(e.hash).any(|found| found == *e)), "{entries:?}");
            true
        }
        let sealed = [bytes, &crc32fast::hash(bytes).to_le_bytes()].concat();
        read(bytes) | read(&sealed)
    }
}

fn entry(bytes: &[u8; ENTRY]) -> Entry {
    let both = u128::from_le_bytes(*bytes);
    // The lower and the upper half.
    Entry { hash: both as u64, job: (both >> 64) as u64 }
}

/// Replaces `out` with the value; not more than [`ROOM`] entries.
pub(super) fn encode(entries: &[Entry], out: &mut Vec<u8>) {
    out.clear();
    out.extend_from_slice(&[VERSION, KIND]);
    let count = u16::try_from(entries.len()).unwrap_or(u16::MAX);
    out.extend_from_slice(&count.to_le_bytes());
    for e in entries {
        out.extend_from_slice(&e.hash.to_le_bytes());
        out.extend_from_slice(&e.job.to_le_bytes());
    }
    let check = crc32fast::hash(out);
    out.extend_from_slice(&check.to_le_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn some(n: u64) -> Vec<Entry> {
        (0..n).map(|i| Entry { hash: i / 3, job: 100 + i }).collect()
    }

    /// Pages of every length come back; a full one still fits a page of the file; all jobs of a hash are found in it, and no others.
    #[test]
    fn a_page_comes_back_as_it_was() {
        let mut out = vec![9];
        for n in [1, 2, 50, ROOM as u64] {
            let entries = some(n);
            encode(&entries, &mut out);
            assert!(out.len() <= INLINE);
            let page = Page::parse(&out).unwrap();
            assert_eq!(page.entries().collect::<Vec<_>>(), entries);
            for hash in 0..=n {
                let expected: Vec<_> = entries.iter().copied().filter(|e| e.hash == hash).collect();
                assert_eq!(page.of(hash).collect::<Vec<_>>(), expected);
            }
        }
    }

    /// The disk flips any bit of a page, or cuts it: it is noticed, and no entry of it is believed.
    #[test]
    fn a_damaged_page_is_noticed() {
        let mut out = Vec::new();
        encode(&some(9), &mut out);
        for bit in 0..out.len() * 8 {
            let mut bad = out.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(Page::parse(&bad).is_err(), "bit {bit}");
        }
        for len in 0..out.len() {
            assert!(Page::parse(&out[..len]).is_err(), "cut to {len}");
        }
        encode(&[], &mut out);
        assert!(Page::parse(&out).is_err(), "nobody writes an empty page");
    }
}
