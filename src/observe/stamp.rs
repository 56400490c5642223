//! Instants as text: RFC 3339 to the second, UTC unless a zone is asked for.
//!
//! Keeps the promise that a log line can be read anywhere and compared with a provider's page. No clock is read here.
//! Called by [`line`](super::line) for `at` and `next`.

use crate::model::time::Wall;
use std::fmt;

/// In which offset instants are written.
#[derive(Clone, Debug, Default)]
pub struct Zone(Kind);

#[derive(Clone, Debug, Default)]
enum Kind {
    #[default]
    Utc,
    #[cfg(feature = "jiff")]
    Named(jiff::tz::TimeZone),
}

impl Zone {
    /// `Z`, the default.
    pub fn utc() -> Self {
        Self(Kind::Utc)
    }
    /// The zone of this machine, read once; UTC where the system does not tell. Each instant gets the offset it had or will
    /// have, so a line before and one after a change of summer time differ.
    #[cfg(feature = "jiff")]
    pub fn local() -> Self {
        Self(Kind::Named(jiff::tz::TimeZone::system()))
    }
    /// Minutes east of Greenwich at `at`; `None` is UTC, written `Z`.
    fn offset_min(&self, at: Wall) -> Option<i32> {
        match (&self.0, at) {
            (Kind::Utc, _) => None,
            #[cfg(feature = "jiff")]
            (Kind::Named(zone), at) => {
                // Beyond the zone data's last year there is no offset to ask for: UTC is never wrong.
                let stamp = jiff::Timestamp::from_millisecond(i64::try_from(at.0).ok()?).ok()?;
                // RFC 3339 has no seconds in offsets; the civil time is computed from what is written.
                Some(zone.to_offset(stamp).seconds() / 60)
            }
        }
    }
    /// Writes `at`, cut to the second. Years past 9999 are written in the expanded form, with a sign.
    pub fn write(&self, f: &mut impl fmt::Write, at: Wall) -> fmt::Result {
        let offset = self.offset_min(at);
        let local = whole_seconds(at) + i64::from(offset.unwrap_or(0)) * MINUTE;
        let (days, rest) = (local.div_euclid(DAY), local.rem_euclid(DAY));
        let (year, month, day) = civil(days);
        if (0..=9999).contains(&year) {
            write!(f, "{year:04}")?;
        } else {
            write!(f, "{year:+}")?;
        }
        write!(f, "-{month:02}-{day:02}T{:02}:{:02}:{:02}", rest / HOUR, rest % HOUR / MINUTE, rest % MINUTE)?;
        match offset {
            None => f.write_char('Z'),
            Some(min) => {
                let sign = if min < 0 { '-' } else { '+' };
                write!(f, "{sign}{:02}:{:02}", min.abs() / 60, min.abs() % 60)
            }
        }
    }
    /// `at` as text.
    pub fn text(&self, at: Wall) -> String {
        let mut out = String::with_capacity(25);
        self.write(&mut out, at).expect("writing to a String cannot fail");
        out
    }
}

/// Reads what [`Zone::write`] writes, in any offset. `None` for anything else, for days that no calendar has and for instants
/// before 1970.
pub fn parse(text: &str) -> Option<Wall> {
    let (year, rest) = match text.strip_prefix('+') {
        Some(rest) => {
            let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
            if !(4..=10).contains(&digits) {
                return None;
            }
            digits_of(rest, digits)?
        }
        None => digits_of(text, 4)?,
    };
    let (month, rest) = digits_of(rest.strip_prefix('-')?, 2)?;
    let (day, rest) = digits_of(rest.strip_prefix('-')?, 2)?;
    let (hour, rest) = digits_of(rest.strip_prefix('T')?, 2)?;
    let (minute, rest) = digits_of(rest.strip_prefix(':')?, 2)?;
    let (second, rest) = digits_of(rest.strip_prefix(':')?, 2)?;
    let offset = offset_seconds(rest)?;
    let month_at = usize::try_from(month).ok()?.checked_sub(1)?;
    let in_month = *lengths(year).get(month_at)?;
    if !(1..=in_month).contains(&day) || hour > 23 || minute > 59 || second > 59 {
        return None;
    }
    let days = before_year(year) + lengths(year).iter().take(month_at).sum::<i64>() + day - 1;
    let seconds = days * DAY + hour * HOUR + minute * MINUTE + second - offset;
    u64::try_from(seconds).ok()?.checked_mul(1000).map(Wall)
}

const MINUTE: i64 = 60;
const HOUR: i64 = 3600;
const DAY: i64 = 86_400;

fn whole_seconds(at: Wall) -> i64 {
    i64::try_from(at.0 / 1000).expect("a thousandth of a u64 fits an i64")
}

fn offset_seconds(text: &str) -> Option<i64> {
    if text == "Z" {
        return Some(0);
    }
    let (sign, rest) = match text.strip_prefix('-') {
        Some(rest) => (-1, rest),
        None => (1, text.strip_prefix('+')?),
    };
    let (hours, rest) = digits_of(rest, 2)?;
    let (minutes, rest) = digits_of(rest.strip_prefix(':')?, 2)?;
    (rest.is_empty() && hours < 24 && minutes < 60).then_some(sign * (hours * HOUR + minutes * MINUTE))
}

fn digits_of(text: &str, n: usize) -> Option<(i64, &str)> {
    let (digits, rest) = text.split_at_checked(n)?;
    if !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    Some((digits.parse().ok()?, rest))
}

/// Days since 1970-01-01 as year, month, day.
fn civil(days: i64) -> (i64, usize, i64) {
    // 400 years have 146,097 days. The estimate is off by a year at most.
    let mut year = 1970 + (days * 400).div_euclid(146_097);
    while days < before_year(year) {
        year -= 1;
    }
    while days >= before_year(year + 1) {
        year += 1;
    }
    let mut day = days - before_year(year);
    let mut month = 1;
    for length in lengths(year) {
        if day < length {
            break;
        }
        day -= length;
        month += 1;
    }
    (year, month, day + 1)
}

/// Days from 1970-01-01 to the first day of `year`.
fn before_year(year: i64) -> i64 {
    let leaps_until = |y: i64| y.div_euclid(4) - y.div_euclid(100) + y.div_euclid(400);
    365 * (year - 1970) + leaps_until(year - 1) - leaps_until(1969)
}

fn lengths(year: i64) -> [i64; 12] {
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    [31, if leap { 29 } else { 28 }, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31]
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const DAYS_KNOWN: [(u64, &str); 15] = [
        (0, "1970-01-01T00:00:00Z"),
        (86_399, "1970-01-01T23:59:59Z"),
        (68_169_600, "1972-02-29T00:00:00Z"),
        (951_782_400, "2000-02-29T00:00:00Z"),
        (951_868_800, "2000-03-01T00:00:00Z"),
        (1_000_000_000, "2001-09-09T01:46:40Z"),
        (1_234_567_890, "2009-02-13T23:31:30Z"),
        (1_709_164_800, "2024-02-29T00:00:00Z"),
        (1_735_689_599, "2024-12-31T23:59:59Z"),
        (1_789_210_882, "2026-09-12T11:01:22Z"),
        (2_147_483_648, "2038-01-19T03:14:08Z"),
        (4_107_542_400, "2100-03-01T00:00:00Z"),
        (4_107_456_000, "2100-02-28T00:00:00Z"),
        (253_402_300_799, "9999-12-31T23:59:59Z"),
        (253_402_300_800, "+10000-01-01T00:00:00Z"),
    ];

    /// Dates that a calendar on the wall confirms, leap years and the end of four-digit years among them.
    #[test]
    fn known_instants_are_written_as_the_calendar_says() {
        for (seconds, text) in DAYS_KNOWN {
            assert_eq!(Zone::utc().text(Wall(seconds * 1000 + 999)), text);
            assert_eq!(parse(text), Some(Wall(seconds * 1000)), "{text}");
        }
    }

    /// Every day of 1,200 years in a row: each follows the one before by the rules of the calendar.
    #[test]
    fn each_day_follows_the_day_before() {
        let (mut year, mut month, mut day) = (1970, 1, 1);
        let mut seen = 0;
        for days in 0..440_000 {
            assert_eq!(civil(days), (year, month, day), "day {days}");
            assert_eq!(parse(&Zone::utc().text(Wall(days.unsigned_abs() * 86_400_000))).map(|w| w.0 / 86_400_000), {
                Some(days.unsigned_abs())
            });
            day += 1;
            if day > lengths(year)[month - 1] {
                (month, day) = (month + 1, 1);
            }
            if month > 12 {
                (year, month) = (year + 1, 1);
            }
            seen += 1;
        }
        println!("{seen} days in a row, up to {year}");
        assert!(seen == 440_000 && year > 3100);
    }

    /// A line from another machine carries its offset; the instant is the same.
    #[test]
    fn any_offset_names_the_same_instant() {
        let utc = parse("2026-09-12T11:01:22Z");
        assert!(utc.is_some());
        for text in ["2026-09-12T07:01:22-04:00", "2026-09-12T16:46:22+05:45", "2026-09-13T01:01:22+14:00"] {
            assert_eq!(parse(text), utc, "{text}");
        }
    }

    /// Text that looks like a time but is none is refused, not read as a nearby one.
    #[test]
    fn what_no_calendar_has_is_refused() {
        for text in [
            "",
            "Z",
            "2026-02-29T00:00:00Z",
            "2100-02-29T00:00:00Z",
            "2026-13-01T00:00:00Z",
            "2026-00-01T00:00:00Z",
            "2026-01-00T00:00:00Z",
            "2026-01-01T24:00:00Z",
            "2026-01-01T00:60:00Z",
            "2026-01-01T00:00:60Z",
            "1969-12-31T23:59:59Z",
            "1970-01-01T00:00:00+00:01",
            "2026-01-01T00:00:00",
            "2026-01-01T00:00:00z",
            "2026-01-01T00:00:00.5Z",
            "2026-01-01T00:00:00+24:00",
            "2026-01-01T00:00:00Z ",
            "+99999999999-01-01T00:00:00Z",
            "+-001-01-01T00:00:00Z",
            "2026-01-0\u{661}T00:00:00Z",
        ] {
            assert_eq!(parse(text), None, "{text:?}");
        }
    }

    /// A machine in a zone with summer time: each instant has its own offset, and reading gives the instant back.
    #[cfg(feature = "jiff")]
    #[test]
    fn a_zone_writes_the_offset_of_the_instant() -> Result<(), jiff::Error> {
        let rule = "EST5EDT,M3.2.0,M11.1.0";
        let zone = Zone(Kind::Named(jiff::tz::TimeZone::posix(rule)?));
        for (utc, local) in [
            ("2026-09-12T11:01:22Z", "2026-09-12T07:01:22-04:00"),
            ("2026-12-12T11:01:22Z", "2026-12-12T06:01:22-05:00"),
            ("1970-01-01T00:00:00Z", "1969-12-31T19:00:00-05:00"),
        ] {
            let at = parse(utc).unwrap_or_default();
            assert_eq!(zone.text(at), local);
            assert_eq!(parse(local), Some(at));
        }
        assert_eq!(zone.text(Wall(u64::MAX)), Zone::utc().text(Wall(u64::MAX)));
        Ok(())
    }

    proptest! {
        /// Whatever the instant, up to the last one that fits: reading gives it back to the second.
        #[test]
        fn every_instant_can_be_read_back(ms in any::<u64>()) {
            prop_assert_eq!(parse(&Zone::utc().text(Wall(ms))), Some(Wall(ms / 1000 * 1000)));
        }
        /// Whatever the text, reading it never panics, and what it accepts it also writes.
        #[test]
        fn any_text_is_read_or_refused(text in "\\PC{0,30}|[+]?[0-9]{4,10}-[01][0-9]-[0-3][0-9]T[0-2][0-9]:[0-6][0-9]:[0-6][0-9]Z") {
            if let Some(at) = parse(&text) {
                prop_assert_eq!(parse(&Zone::utc().text(at)), Some(at));
            }
        }
    }
}
