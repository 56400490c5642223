//! A hierarchical timer wheel as a plain value: no thread, no clock, it is told the time in milliseconds.
//! Promise: every entry comes out once, in the order of its due time, never before that time and never later
//! than the first `advance` that reaches it; any `u64` is a due time. The timer of the engine keeps its wakes here.

const BITS: u32 = 6;
const SLOTS: usize = 1 << BITS;
/// Eleven digits of six bits hold every `u64`, so the far future needs no list of its own that a jump would have to scan.
const LEVELS: usize = u64::BITS.div_ceil(BITS) as usize;
/// The chain after the last level: entries that were already due when they were inserted.
const OVERDUE: usize = LEVELS * SLOTS;
/// The end of a chain.
const NIL: u32 = u32::MAX;
/// An empty wheel keeps room for this many entries and gives the rest back.
const ROOM_KEPT: usize = 1024;

/// A handle to take one entry out again. It is never reused for another entry of the same wheel: once the entry has
/// fired, was removed or drained, the key finds nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WheelKey {
    index: u32,
    number: u64,
}

/// Entries of `T`, each with the time at which it is due. Inserting and removing cost the same for ten entries and for
/// millions; an entry costs 24 bytes beside its `Option<T>`.
///
/// Level `l` holds the entries whose due time first differs from the wheel's time in digit `l` (base 64), one chain a
/// digit. The place thus depends on both times alone: equal due times always share a chain and stay in the order of
/// insertion, and moving the time forward touches only the chains whose first instant it reaches.
pub struct Wheel<T> {
    now_ms: u64,
    len: usize,
    /// The number of the next entry. Counts on for the life of the wheel, so that a stale key matches nothing.
    next_number: u64,
    nodes: Vec<Node<T>>,
    /// The first vacant node; vacant nodes are chained by `next`.
    vacant: u32,
    /// One bit for each chain with entries; the last word is the overdue chain.
    occupied: [u64; LEVELS + 1],
    chains: Box<[Chain; OVERDUE + 1]>,
}

struct Node<T> {
    due_ms: u64,
    number: u64,
    prev: u32,
    next: u32,
    value: Option<T>,
}

#[derive(Clone, Copy)]
struct Chain {
    head: u32,
    tail: u32,
}

const EMPTY: Chain = Chain { head: NIL, tail: NIL };

impl<T> Wheel<T> {
    /// An empty wheel that believes it is `now_ms`.
    pub fn new(now_ms: u64) -> Self {
        Self {
            now_ms,
            len: 0,
            next_number: 0,
            nodes: Vec::new(),
            vacant: NIL,
            occupied: [0; LEVELS + 1],
            chains: Box::new([EMPTY; OVERDUE + 1]),
        }
    }

    /// Adds an entry. If it is due now or was due in the past, the next [`advance`](Self::advance) fires it.
    pub fn insert(&mut self, due_ms: u64, value: T) -> WheelKey {
        let number = self.next_number;
        self.next_number += 1;
        let node = Node { due_ms, number, prev: NIL, next: NIL, value: Some(value) };
        let index = if self.vacant == NIL {
            let index = u32::try_from(self.nodes.len()).ok().filter(|&index| index != NIL);
            self.nodes.push(node);
            index.expect("four thousand million entries would need over a hundred gigabytes first")
        } else {
            let index = self.vacant;
            self.vacant = std::mem::replace(&mut self.nodes[index as usize], node).next;
            index
        };
        self.link(index);
        self.len += 1;
        WheelKey { index, number }
    }

    /// Takes an entry out, in constant time. `None` if it has left the wheel already.
    pub fn remove(&mut self, key: WheelKey) -> Option<T> {
        let node = self.nodes.get(key.index as usize)?;
        if node.number != key.number || node.value.is_none() {
            return None;
        }
        self.unlink(key.index);
        self.release(key.index).map(|(_, value)| value)
    }

    /// Moves the time to `now_ms` and appends everything due by then to `fired` with its due time, ordered by due time,
    /// equal ones in the order of their insertion. The work depends on the entries, not on how far the time jumps.
    ///
    /// The time never runs backwards: a `now_ms` before an earlier one counts as that earlier one.
    pub fn advance(&mut self, now_ms: u64, fired: &mut Vec<(u64, T)>) {
        let now_ms = now_ms.max(self.now_ms);
        let already = fired.len();
        while let Some((chain, start_ms)) = self.next_chain()
            && start_ms <= now_ms
        {
            // Only now, one chain at a time: the place of every other entry is still the right one for this time.
            self.now_ms = start_ms;
            let mut index = self.take_chain(chain);
            while index != NIL {
                let Node { due_ms, next, .. } = self.nodes[index as usize];
                if due_ms <= start_ms {
                    fired.extend(self.release(index));
                } else {
                    self.link(index);
                }
                index = next;
            }
            if chain == OVERDUE {
                // Always the first chain to come, and the only one that holds different times which have passed.
                fired[already..].sort_by_key(|&(due_ms, _)| due_ms);
            }
        }
        self.now_ms = now_ms;
        if self.len == 0 {
            // A burst of a million entries must not hold its memory for the rest of the process.
            self.nodes.clear();
            self.nodes.shrink_to(ROOM_KEPT);
            self.vacant = NIL;
        }
    }

    /// The time at which `advance` has to be called next, `None` if the wheel is empty. It is never before the wheel's
    /// own time: for an entry that is overdue it is that time, in words "at once".
    ///
    /// It is exact for entries that are due within the current 64 ms (the same `due / 64`) and otherwise a lower bound,
    /// at which nothing may fire yet. Then `advance` brings the entry at least one level nearer, so that following
    /// `next_due` reaches any entry after eleven calls at most.
    pub fn next_due(&self) -> Option<u64> {
        self.next_chain().map(|(_, start_ms)| start_ms)
    }

    /// How many entries wait.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether no entry waits.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Takes all entries out, ordered as `advance` would fire them, and forgets the time: the wheel restarts at zero and
    /// the next `advance` may name any time. So the entries can be put back after the clock was set back, which
    /// `advance` alone would not believe. Keys handed out before find nothing.
    pub fn drain(&mut self) -> Vec<(u64, T)> {
        let mut all = Vec::with_capacity(self.len);
        self.advance(u64::MAX, &mut all);
        self.now_ms = 0;
        all
    }

    /// The chain whose first instant comes next, and that instant. All entries of a level share the digits above it with
    /// the wheel's time and have a greater digit at it, so the lowest bit of the lowest level comes first.
    fn next_chain(&self) -> Option<(usize, u64)> {
        if self.occupied[LEVELS] != 0 {
            return Some((OVERDUE, self.now_ms));
        }
        let level = self.occupied[..LEVELS].iter().position(|&bits| bits != 0)?;
        let slot = self.occupied[level].trailing_zeros() as usize;
        let shift = level as u32 * BITS;
        let above = (self.now_ms >> shift) & !(SLOTS as u64 - 1);
        Some((level * SLOTS + slot, (above | slot as u64) << shift))
    }

    /// The chain on which an entry belongs, as long as the wheel's time is what it is now.
    fn chain_for(&self, due_ms: u64) -> usize {
        if due_ms <= self.now_ms {
            return OVERDUE;
        }
        let level = (due_ms ^ self.now_ms).ilog2() / BITS;
        let slot = (due_ms >> (level * BITS)) as usize % SLOTS;
        level as usize * SLOTS + slot
    }

    /// Appends a node to the chain on which it belongs.
    fn link(&mut self, index: u32) {
        let chain = self.chain_for(self.nodes[index as usize].due_ms);
        let tail = std::mem::replace(&mut self.chains[chain].tail, index);
        let node = &mut self.nodes[index as usize];
        node.prev = tail;
        node.next = NIL;
        if tail == NIL {
            self.chains[chain].head = index;
            self.occupied[chain / SLOTS] |= 1 << (chain % SLOTS);
        } else {
            self.nodes[tail as usize].next = index;
        }
    }

    /// Takes a node out of its chain.
    fn unlink(&mut self, index: u32) {
        let Node { due_ms, prev, next, .. } = self.nodes[index as usize];
        let chain = self.chain_for(due_ms);
        if prev == NIL {
            self.chains[chain].head = next;
        } else {
            self.nodes[prev as usize].next = next;
        }
        if next == NIL {
            self.chains[chain].tail = prev;
        } else {
            self.nodes[next as usize].prev = prev;
        }
        if self.chains[chain].head == NIL {
            self.occupied[chain / SLOTS] &= !(1 << (chain % SLOTS));
        }
    }

    /// Empties a chain and returns its first node.
    fn take_chain(&mut self, chain: usize) -> u32 {
        self.occupied[chain / SLOTS] &= !(1 << (chain % SLOTS));
        std::mem::replace(&mut self.chains[chain], EMPTY).head
    }

    /// Makes a node that is on no chain vacant and returns what it held.
    fn release(&mut self, index: u32) -> Option<(u64, T)> {
        let node = &mut self.nodes[index as usize];
        let value = node.value.take()?;
        node.next = std::mem::replace(&mut self.vacant, index);
        self.len -= 1;
        Some((node.due_ms, value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use std::rc::Rc;

    fn advance<T>(wheel: &mut Wheel<T>, now_ms: u64) -> Vec<(u64, T)> {
        let mut fired = Vec::new();
        wheel.advance(now_ms, &mut fired);
        fired
    }

    #[test]
    fn an_entry_never_fires_early() {
        // A retry waits until 5 000; the wheel hears of every millisecond before it and stays silent.
        let mut wheel = Wheel::new(1_000);
        wheel.insert(5_000, "retry");
        assert!((1_000..5_000).all(|now_ms| advance(&mut wheel, now_ms).is_empty()));
        assert_eq!(advance(&mut wheel, 5_000), [(5_000, "retry")]);
        assert_eq!(wheel.next_due(), None);
    }

    #[test]
    fn what_is_already_due_fires_on_the_next_advance() {
        // After a long stop the file is full of jobs of the past; they come out oldest first, before today's.
        let mut wheel = Wheel::new(1_000);
        let today = [(1_000, 0), (1_001, 1)];
        let past = (2..300).map(|number| (number % 7, number));
        for (due_ms, number) in today.into_iter().chain(past.clone()) {
            wheel.insert(due_ms, number);
        }
        assert_eq!(wheel.next_due(), Some(1_000), "at once");
        let mut fired = vec![(9_999, 9_999)];
        wheel.advance(1_001, &mut fired);
        let mut expected: Vec<_> = past.chain(today).collect();
        expected.sort();
        expected.insert(0, (9_999, 9_999));
        assert_eq!(fired, expected, "appended, what the caller had collected before is left alone");
    }

    #[test]
    fn equal_due_times_fire_in_insertion_order() {
        // Three jobs for the same instant are put in an hour, a second and a millisecond ahead of it.
        let due_ms = 10_000_000;
        let mut wheel = Wheel::new(0);
        for (turn, lead_ms) in [3_600_000, 1_000, 1].into_iter().enumerate() {
            assert!(advance(&mut wheel, due_ms - lead_ms).is_empty());
            wheel.insert(due_ms, turn);
        }
        assert_eq!(advance(&mut wheel, u64::MAX), [(due_ms, 0), (due_ms, 1), (due_ms, 2)]);
    }

    #[test]
    fn a_clock_that_runs_backwards_is_not_believed() {
        // The clock falls back to zero; what was overdue still comes, what is ahead does not move.
        let mut wheel = Wheel::new(100);
        wheel.insert(90, "late");
        wheel.insert(110, "ahead");
        assert_eq!(advance(&mut wheel, 0), [(90, "late")]);
        assert_eq!(wheel.next_due(), Some(110));
        assert_eq!(advance(&mut wheel, 110), [(110, "ahead")]);
    }

    #[test]
    fn after_a_clock_jump_the_drained_entries_can_be_put_back() {
        // The clock was set back from 2033 to 2026: the rebuilt wheel wakes the job at its time, not at once.
        let (wrong_ms, right_ms) = (2_000_000_000_000, 1_780_000_000_000);
        let mut wheel = Wheel::new(wrong_ms);
        let stale = wheel.insert(right_ms + 5, "job");
        for (due_ms, name) in wheel.drain() {
            wheel.insert(due_ms, name);
        }
        assert_eq!(wheel.remove(stale), None, "keys do not survive a rebuild");
        assert_eq!(advance(&mut wheel, right_ms), []);
        assert_eq!(advance(&mut wheel, right_ms + 5), [(right_ms + 5, "job")]);
    }

    #[test]
    fn a_stale_key_removes_nobody_else() {
        // The lease behind a key ended and its place went to another job; the late removal must not cancel that one.
        let mut wheel = Wheel::new(0);
        let [removed, fired, drained] = [5, 6, 1_000].map(|due_ms| wheel.insert(due_ms, "first"));
        assert_eq!(wheel.remove(removed), Some("first"));
        assert_eq!(advance(&mut wheel, 6).len(), 1);
        assert_eq!(wheel.drain().len(), 1);
        let fresh = [7, 8, 9].map(|due_ms| wheel.insert(due_ms, "second"));
        assert!([removed, fired, drained].map(|key| wheel.remove(key)).iter().all(Option::is_none));
        assert_eq!(fresh.map(|key| wheel.remove(key)), [Some("second"); 3]);
    }

    #[test]
    fn the_end_of_time_is_reached_in_eleven_calls() {
        // A job that shall never come is due at u64::MAX; whoever sleeps until `next_due` wakes eleven times, not forever.
        let mut wheel = Wheel::new(0);
        wheel.insert(u64::MAX, ());
        let calls = calls_until_one_fires(&mut wheel).0;
        println!("u64::MAX reached from 0 in {calls} calls");
        assert_eq!(calls, LEVELS);
    }

    #[test]
    fn a_burst_gives_its_memory_back() {
        // A hundred thousand jobs wake at once; afterwards the wheel is small again and holds none of their values.
        let mut wheel = Wheel::new(0);
        let value = Rc::new(());
        for due_ms in 0..100_000 {
            wheel.insert(due_ms, Rc::clone(&value));
        }
        assert!(wheel.nodes.capacity() >= 100_000);
        assert_eq!(advance(&mut wheel, 100_000).len(), 100_000);
        assert!(wheel.nodes.capacity() <= ROOM_KEPT);
        assert_eq!(Rc::strong_count(&value), 1);
        assert_eq!(size_of::<Node<u64>>(), 40, "a million entries of eight bytes take 40 MB");
    }

    #[test]
    fn renewals_do_not_grow_the_wheel() {
        // A lease is renewed every second for a day: each renewal takes the place that the one before has left.
        let mut wheel = Wheel::new(0);
        let mut key = wheel.insert(30_000, "lease");
        for now_ms in (0..86_400_000).step_by(1_000) {
            assert_eq!(wheel.remove(key), Some("lease"));
            key = wheel.insert(now_ms + 30_000, "lease");
            assert!(advance(&mut wheel, now_ms).is_empty());
        }
        assert_eq!((wheel.len(), wheel.nodes.len()), (1, 1));
    }

    /// Sleeps from `next_due` to `next_due` until something fires: the number of calls, and what fired.
    fn calls_until_one_fires<T>(wheel: &mut Wheel<T>) -> (usize, Vec<(u64, T)>) {
        let mut fired = Vec::new();
        let mut calls = 0;
        while let (true, Some(next_ms)) = (fired.is_empty(), wheel.next_due()) {
            assert!(next_ms > wheel.now_ms || calls == 0, "no progress at {next_ms}");
            wheel.advance(next_ms, &mut fired);
            calls += 1;
        }
        (calls, fired)
    }

    /// A small fixed-seed generator (splitmix64), so that a failing run can be repeated from its seed.
    struct Draw(u64);

    impl Draw {
        fn next(&mut self) -> u64 {
            self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            mixed ^ (mixed >> 31)
        }

        fn below(&mut self, end: u64) -> u64 {
            self.next() % end
        }

        /// Any size from 0 to `u64::MAX`, every order of magnitude as likely as the next.
        fn span(&mut self) -> u64 {
            self.next() >> self.below(64)
        }
    }

    /// What the wheel has to agree with: a map sorted by due time and order of insertion.
    #[derive(Default)]
    struct Model {
        now_ms: u64,
        waiting: BTreeMap<(u64, u64), WheelKey>,
        /// Keys of entries that have left.
        stale: Vec<WheelKey>,
    }

    impl Model {
        fn advance(&mut self, now_ms: u64) -> Vec<(u64, u64)> {
            self.now_ms = self.now_ms.max(now_ms);
            let later = self.now_ms.checked_add(1).map(|ms| self.waiting.split_off(&(ms, 0)));
            let fired = std::mem::replace(&mut self.waiting, later.unwrap_or_default());
            self.stale.extend(fired.values());
            fired.into_keys().collect()
        }

        fn earliest(&self) -> Option<u64> {
            self.waiting.first_key_value().map(|(&(due_ms, _), _)| due_ms.max(self.now_ms))
        }

        fn any_waiting(&self, draw: &mut Draw) -> Option<(u64, u64)> {
            let from = (self.now_ms.saturating_add(draw.span()), 0);
            let found = self.waiting.range(from..).next().or_else(|| self.waiting.first_key_value());
            found.map(|(&place, _)| place)
        }
    }

    #[derive(Default, Debug)]
    struct Counts {
        operations: u64,
        inserted: u64,
        overdue: u64,
        removed: u64,
        stale: u64,
        fired: u64,
        advances: u64,
        to_the_end: u64,
        drains: u64,
        most_calls: usize,
        most_waiting: usize,
    }

    #[test]
    fn the_wheel_agrees_with_a_sorted_map() {
        // Any mixture of inserts, removals, steps, jumps to the end of time and rebuilds ends as a sorted map says.
        let mut counts = Counts::default();
        for seed in 0..20 {
            compare(seed, 20_000, &mut counts);
        }
        println!("{counts:?}");
        assert_eq!(counts.operations, 400_000);
        assert_eq!(counts.inserted, counts.removed + counts.fired);
        assert!(counts.removed > 10_000 && counts.stale > 10_000 && counts.fired > 10_000 && counts.overdue > 10_000);
        assert!(counts.to_the_end > 100 && counts.drains > 100 && counts.most_waiting > 1_000);
    }

    fn compare(seed: u64, operations: u64, counts: &mut Counts) {
        let mut draw = Draw(seed);
        let mut model = Model { now_ms: draw.span(), ..Model::default() };
        let mut wheel = Wheel::new(model.now_ms);
        let mut number = 0;
        for turn in 0..operations {
            let at = format!("seed {seed}, operation {turn}");
            // Tides of many inserts with short steps and of few with long ones, so that the wheel is both full and empty.
            let rising = (turn / 2_500) % 2 == 0;
            match draw.below(100) {
                0..40 => {
                    for _ in 0..if rising { 3 } else { 1 } {
                        let due_ms = match draw.below(8) {
                            0 => model.now_ms.saturating_sub(draw.span()),
                            1 => model.now_ms.saturating_add(draw.below(64)),
                            // Time and again the due time of another entry, for the order among equals.
                            2 => model.any_waiting(&mut draw).map_or(model.now_ms, |(due_ms, _)| due_ms),
                            _ => model.now_ms.saturating_add(draw.span()),
                        };
                        counts.overdue += u64::from(due_ms <= model.now_ms);
                        model.waiting.insert((due_ms, number), wheel.insert(due_ms, number));
                        number += 1;
                    }
                }
                40..65 => {
                    if let Some(place) = model.any_waiting(&mut draw)
                        && let Some(key) = model.waiting.remove(&place)
                    {
                        assert_eq!(wheel.remove(key), Some(place.1), "{at}");
                        model.stale.push(key);
                        counts.removed += 1;
                    }
                }
                65..75 => {
                    if let Some(&key) = model.stale.get(draw.below(model.stale.len() as u64 + 1) as usize) {
                        assert_eq!(wheel.remove(key), None, "{at}");
                        counts.stale += 1;
                    }
                }
                75..77 => {
                    let (calls, fired) = calls_until_one_fires(&mut wheel);
                    assert!(calls <= LEVELS, "{at}: {calls} calls");
                    assert_eq!(fired, model.advance(wheel.now_ms), "{at}");
                    counts.most_calls = counts.most_calls.max(calls);
                    counts.fired += fired.len() as u64;
                }
                77..80 if model.now_ms > 1 << 60 || draw.below(64) == 0 => {
                    let drained = wheel.drain();
                    assert_eq!(drained, model.advance(u64::MAX), "{at}");
                    model.now_ms = 0;
                    counts.fired += drained.len() as u64;
                    counts.drains += 1;
                }
                _ => {
                    let now_ms = match draw.below(if rising { 100 } else { 200 }) {
                        0..40 => model.now_ms.saturating_add(draw.below(5)),
                        40..80 => model.now_ms.saturating_add(draw.below(5_000)),
                        80..90 => model.now_ms.saturating_sub(draw.span()),
                        90..100 => model.earliest().unwrap_or(model.now_ms),
                        100..105 => u64::MAX,
                        _ => model.now_ms.saturating_add(draw.span() >> 16),
                    };
                    let fired = advance(&mut wheel, now_ms);
                    assert_eq!(fired, model.advance(now_ms), "{at}");
                    counts.fired += fired.len() as u64;
                    counts.advances += 1;
                    counts.to_the_end += u64::from(now_ms == u64::MAX);
                }
            }
            assert_eq!(wheel.len(), model.waiting.len(), "{at}");
            assert_eq!(wheel.is_empty(), model.waiting.is_empty(), "{at}");
            let (bound, exact) = (wheel.next_due(), model.earliest());
            assert!(bound.is_some() == exact.is_some() && bound <= exact, "{at}: {bound:?} for {exact:?}");
            assert!(bound.is_none_or(|bound_ms| bound_ms >= model.now_ms), "{at}: {bound:?}");
            counts.most_waiting = counts.most_waiting.max(wheel.len());
            counts.operations += 1;
        }
        let rest = wheel.drain();
        assert_eq!(rest, model.advance(u64::MAX));
        counts.fired += rest.len() as u64;
        counts.inserted += number;
    }
}
