//! Whether the wall clock can be believed. Ages that protect against repetition only err on the long side: a clock behind what
//! the file has already seen, or one that stepped back since a first call, makes a provider's key count as over.

use crate::model::time::{Now, Wall};
use parking_lot::Mutex;

/// Slack between two readings before they count as a step.
pub(crate) const SLACK_MS: u64 = 2_000;

#[derive(Clone, Copy, Debug)]
struct State {
    high: Wall,
    stepped: Wall,
    last: Now,
    boot: Option<u64>,
    trusted_ms: u64,
}

/// The memory of the wall clock: its high-water mark, and where it was when it last stepped back.
#[derive(Debug)]
pub(crate) struct Trust(Mutex<State>);

/// After so much uptime without a divergence the clock is believed again, whatever it said before.
const BELIEVED_MS: u64 = 24 * 3600 * 1000;

/// What the trust wants kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Marks {
    /// The highest wall clock ever seen.
    pub(crate) high: Wall,
    /// First calls at or before this instant cannot be dated any more.
    pub(crate) stepped: Wall,
    /// Milliseconds of uptime without a divergence of the clocks, summed over starts.
    pub(crate) trusted_ms: u64,
    /// What the wall clock said last: a start behind it is a step back, one that is only behind the highest is an old story.
    pub(crate) last: Wall,
}

impl Trust {
    /// From the marks of the file.
    pub(crate) fn new(kept: Marks, now: Now, boot: Option<u64>) -> Self {
        let mut s = State { high: kept.high, stepped: kept.stepped, last: now, boot, trusted_ms: kept.trusted_ms };
        if now.wall.0.saturating_add(SLACK_MS) < kept.last.0 {
            s.stepped = s.stepped.max(kept.high);
            s.trusted_ms = 0;
        }
        s.high = s.high.max(now.wall);
        Self(Mutex::new(s))
    }
    /// Takes a reading in.
    pub(crate) fn observe(&self, now: Now, boot: Option<u64>) {
        let mut s = self.0.lock();
        let wall = signed(now.wall.0) - signed(s.last.wall.0);
        let mono = signed(now.mono.0) - signed(s.last.mono.0);
        // Suspend moves the wall clock and the boot clock alike: only against the latter is it a step.
        let steady = match (s.boot, boot) {
            (Some(a), Some(b)) => signed(b) - signed(a),
            _ => mono,
        };
        if (wall - steady).unsigned_abs() > SLACK_MS {
            s.trusted_ms = 0;
        } else {
            s.trusted_ms = s.trusted_ms.saturating_add(u64::try_from(mono).unwrap_or(0));
        }
        if wall < steady - signed(SLACK_MS) {
            s.stepped = s.high;
        }
        s.high = s.high.max(now.wall);
        if s.trusted_ms >= BELIEVED_MS {
            // One glitch years ahead must not end every key for years: only what was called before the trusted time is undated.
            s.stepped = s.stepped.min(Wall(now.wall.0.saturating_sub(s.trusted_ms)));
            s.high = now.wall;
        }
        s.last = now;
        s.boot = boot;
    }
    /// Wall ms since a first call; `None` if it cannot be trusted.
    pub(crate) fn age(&self, first_call: Wall, now: Now) -> Option<u64> {
        let s = self.0.lock();
        let behind = now.wall.0.saturating_add(SLACK_MS) < s.high.0;
        let undated = first_call <= s.stepped && s.stepped.0 > 0;
        (!behind && !undated && first_call <= now.wall.after(std::time::Duration::from_millis(SLACK_MS)))
            .then(|| now.wall.since(first_call))
    }
    /// Whether the wall clock is behind what the file has already seen.
    pub(crate) fn is_behind(&self, now: Now) -> bool {
        now.wall.0.saturating_add(SLACK_MS) < self.0.lock().high.0
    }
    /// What should be kept.
    pub(crate) fn marks(&self) -> Marks {
        let s = self.0.lock();
        Marks { high: s.high, stepped: s.stepped, trusted_ms: s.trusted_ms, last: s.last.wall }
    }
}

fn signed(ms: u64) -> i64 {
    i64::try_from(ms).unwrap_or(i64::MAX)
}

impl Marks {
    /// The last time that the file surely knows of; 0 where its clock could not be believed: nothing is younger than that.
    pub(crate) fn dated(self) -> Wall {
        let steady = self.trusted_ms >= BELIEVED_MS && self.last.0.saturating_add(SLACK_MS) >= self.high.0;
        if steady { self.last } else { Wall(0) }
    }
    pub(crate) fn to_bytes(self) -> [u8; 32] {
        let mut out = [0; 32];
        out[..8].copy_from_slice(&self.high.0.to_le_bytes());
        out[8..16].copy_from_slice(&self.stepped.0.to_le_bytes());
        out[16..24].copy_from_slice(&self.trusted_ms.to_le_bytes());
        out[24..].copy_from_slice(&self.last.0.to_le_bytes());
        out
    }
    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let word = |at: usize| -> Option<u64> { Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?)) };
        Some(Self { high: Wall(word(0)?), stepped: Wall(word(8)?), trusted_ms: word(16)?, last: Wall(word(24)?) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::time::Mono;

    const HOUR: u64 = 3_600_000;
    const YEAR: u64 = 365 * 24 * HOUR;
    const TODAY: u64 = 50 * YEAR;

    fn at(wall: u64, mono: u64) -> (Now, Option<u64>) {
        (Now { wall: Wall(wall), mono: Mono(mono) }, Some(mono))
    }

    /// The clock read ten years ahead for a moment. Keys of before count as over; a day of steady uptime later, also one that
    /// was spent in several starts, new keys are believed again.
    #[test]
    fn one_glitch_does_not_end_every_key_for_years() {
        let (now, boot) = at(TODAY, 0);
        let trust = Trust::new(Marks::default(), now, boot);
        let (glitch, boot) = at(TODAY + 10 * YEAR, 10);
        trust.observe(glitch, boot);
        let (now, boot) = at(TODAY + 20, 20);
        trust.observe(now, boot);
        assert_eq!(trust.age(Wall(TODAY + 15), now), None);
        let mut marks = trust.marks();
        for start in 1..=30 {
            let (now, boot) = at(TODAY + start * HOUR, 0);
            let trust = Trust::new(marks, now, boot);
            let (later, boot) = at(TODAY + start * HOUR + HOUR - 1_000, HOUR - 1_000);
            trust.observe(later, boot);
            marks = trust.marks();
        }
        let (now, boot) = at(TODAY + 31 * HOUR, 0);
        let trust = Trust::new(Marks::from_bytes(&marks.to_bytes()).expect("marks"), now, boot);
        let (now, boot) = at(TODAY + 31 * HOUR + 10, 10);
        trust.observe(now, boot);
        assert_eq!(trust.age(Wall(TODAY + 31 * HOUR), now), Some(10));
        assert_eq!(trust.age(Wall(TODAY + 15), now), None, "called before anybody could trust the clock");
    }

    /// A start behind the last reading is a step back; one that is only behind the highest is the old story.
    #[test]
    fn a_start_in_the_past_is_a_new_step() {
        let kept = Marks { high: Wall(TODAY + YEAR), stepped: Wall(0), trusted_ms: 5 * HOUR, last: Wall(TODAY) };
        let (now, boot) = at(TODAY + 1, 0);
        assert_eq!(Trust::new(kept, now, boot).marks().trusted_ms, 5 * HOUR);
        let (now, boot) = at(TODAY - HOUR, 0);
        let marks = Trust::new(kept, now, boot).marks();
        assert_eq!((marks.trusted_ms, marks.stepped), (0, Wall(TODAY + YEAR)));
    }
}
