//! The index of intents: from the hash of kind and key to the numbers of the jobs that may have them. Keeps the promise that the
//! same intent is the same job, whatever was written, undone, merged or pruned meanwhile. Asked by [`look`], kept up by [`work`] in
//! every round that creates jobs, read back by [`load`].
//!
//! An entry is a hint: the row of the job it names says whether kind and key are really those, and `q/id` remembers what was pruned.
//! So an entry too many does no harm, and one that is missing would let a charge happen twice. Where entries are:
//!
//! - The newest are in [`tail`], in memory, and beside it in `q/id-fresh`, which each round writes in its own transaction.
//! - Once the tail is long, one round writes it, sorted by hash, as a run (`q/id-page`, known by its card in `q/id-run`) and empties
//!   `q/id-fresh`.
//! - Runs of one size class are merged, a few pages in each round that brings jobs: the lowest entries of all inputs go to the output
//!   and their pages go from the inputs, in one transaction. So an entry is always in some run that has a card, a merge that a crash
//!   cut short is simply carried on, and nothing is ever left over.
//! - Entries of jobs without rows are left out when a run is written, and a run below the oldest job that has rows is removed page by
//!   page. Since the class of a run is its size after that, the index stays within a small multiple of the jobs that have rows, also
//!   if one very old job among them never ends: only the neighbours in its strip of 64 numbers stay with it.
//!
//! Why a reader finds every job that its snapshot has. It takes the snapshot first and looks into memory afterwards. The job's
//! entry was in the tail before its round was committed, and leaves memory only by becoming part of a run. If that had happened when
//! the snapshot was taken, the run is in the snapshot. If it happened later, memory says that its tail begins behind the first row
//! of `q/id-fresh` in the snapshot: then these rows are read. Runs are those of the snapshot, and so are their pages; the filters in
//! memory are only asked about runs that memory knows, numbers of runs are never used twice, and bits are set before the commit that
//! writes the entries, so that a filter says "no" to nothing that any snapshot of its run has. Whether the job has rows, and whether
//! `q/id` remembers it, is one question to one snapshot, because pruning moves it in one transaction.

pub(super) mod filter;
pub(super) mod living;
pub(super) mod load;
pub(super) mod look;
pub(super) mod memory;
pub(super) mod merge;
pub(super) mod page;
pub(super) mod tail;
pub(super) mod work;
