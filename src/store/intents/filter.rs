//! A Bloom filter: tells without reading a run that an intent is not in it. Keeps the promise that it never says so of one that is.
//! One for every run, in memory only: an open builds it from the run's pages.

/// A block is one cache line, so that a question costs one miss at most.
type Block = [u64; 8];
const BITS: u64 = 512;
/// Bits of memory for an entry, and how many of them it sets: about one wrong "perhaps" in two hundred.
const PER_ENTRY: u64 = 12;
const SET: u32 = 6;

/// A set that may claim more than it has.
#[derive(Debug)]
pub(super) struct Filter {
    blocks: Vec<Block>,
}

impl Filter {
    /// For so many entries; more of them only make it less useful.
    pub(super) fn new(entries: u64) -> Self {
        let blocks = (entries.saturating_mul(PER_ENTRY) / BITS).saturating_add(1);
        Self { blocks: vec![Block::default(); usize::try_from(blocks).unwrap_or(1)] }
    }
    pub(super) fn add(&mut self, hash: u64) {
        let (at, mask) = self.place(hash);
        for (word, bits) in self.blocks[at].iter_mut().zip(mask) {
            *word |= bits;
        }
    }
    pub(super) fn may_have(&self, hash: u64) -> bool {
        let (at, mask) = self.place(hash);
        self.blocks[at].iter().zip(mask).all(|(word, bits)| word & bits == bits)
    }
    /// The block of a hash, and its bits there. The hash is a keyed one, so it needs no more than being spread.
    fn place(&self, hash: u64) -> (usize, Block) {
        let blocks = self.blocks.len() as u128;
        // The upper half of the product is below the number of blocks.
        let at = ((u128::from(hash) * blocks) >> 64) as usize;
        // The block follows from the upper bits: the bits within it must come from all.
        let mut rest = hash.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let mut mask = Block::default();
        for _ in 0..SET {
            rest = rest.rotate_left(9);
            let bit = rest % BITS;
            mask[(bit / 64) as usize] |= 1 << (bit % 64);
        }
        (at, mask)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Filters of every size: none denies what it was given, and the full ones still deny almost everything else.
    #[test]
    fn a_filter_never_denies_what_it_has() {
        let mut rng = fastrand::Rng::with_seed(3);
        for entries in [0, 1, 40, 10_000] {
            let mut filter = Filter::new(entries);
            let hashes: Vec<u64> = (0..entries.max(3)).map(|_| rng.u64(..)).collect();
            hashes.iter().for_each(|h| filter.add(*h));
            assert!(hashes.iter().all(|h| filter.may_have(*h)));
            let wrong = (0..100_000).filter(|_| filter.may_have(rng.u64(..))).count();
            assert!(wrong < 1_500, "{wrong} of 100,000 for {entries} entries");
        }
    }
}
