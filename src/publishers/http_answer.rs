//! What an answer to a webhook means, as a function of its status and headers: no clock, no network.

use std::time::Duration;

/// What becomes of the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Taken,
    Again,
    Never,
}

/// By status. "Never" is said only where the answer judges this message: what is wrong with an address, a login or the receiver's
/// setup can be mended while the message waits. 409 is "the same key is still being worked on" where the receiver follows the
/// idempotency-key draft, and "it is here already" where it does not: the app says which.
pub(super) fn verdict(status: u16, conflict_means_there: bool) -> Verdict {
    match status {
        200..=299 => Verdict::Taken,
        409 if conflict_means_there => Verdict::Taken,
        400 | 406 | 411 | 413..=416 | 422 | 431 | 451 => Verdict::Never,
        _ => Verdict::Again,
    }
}

/// No receiver may hold a topic longer than this by one answer.
const LONGEST: u64 = 24 * 3600;

/// `Retry-After` in seconds or as a date, which counts from the `Date` of the same answer: the other side's clock, not ours.
pub(super) fn retry_after(field: Option<&str>, date: Option<&str>) -> Option<Duration> {
    let field = field?.trim();
    let seconds = if !field.is_empty() && field.bytes().all(|b| b.is_ascii_digit()) {
        field.parse().unwrap_or(LONGEST)
    } else {
        u64::try_from(seconds(field)?.checked_sub(seconds(date?.trim())?)?).ok()?
    };
    Some(Duration::from_secs(seconds.min(LONGEST)))
}

/// `Sun, 06 Nov 1994 08:49:37 GMT` in seconds since 1970.
fn seconds(date: &str) -> Option<i64> {
    const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let mut words = date.split_once(", ")?.1.split(' ');
    let day: i64 = words.next()?.parse().ok()?;
    let month = words.next()?;
    let month = i64::try_from(MONTHS.iter().position(|m| *m == month)?).ok()? + 1;
    let year: i64 = words.next()?.parse().ok()?;
    let mut time = words.next()?.split(':').map(str::parse::<i64>);
    let (hour, minute, second) = (time.next()?.ok()?, time.next()?.ok()?, time.next()?.ok()?);
    if words.next()? != "GMT" || !(1970..=9999).contains(&year) || !(1..=31).contains(&day) {
        return None;
    }
    // Days of the civil calendar, with years that begin in March so that the leap day is the last one.
    let (y, m) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days = y * 365 + y / 4 - y / 100 + y / 400 + (m * 153 + 2) / 5 + day - 1 - 719_468;
    Some(days * 86_400 + hour.clamp(0, 23) * 3600 + minute.clamp(0, 59) * 60 + second.clamp(0, 60))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_status_has_its_verdict() {
        for (statuses, verdict_of) in [
            (&[200, 201, 202, 204, 299][..], Verdict::Taken),
            (&[301, 302, 307, 308, 408, 409, 425, 429, 500, 501, 502, 503, 504, 599], Verdict::Again),
            // A token that ran out, a wrong path: one of them must not make dead letters of a whole topic.
            (&[401, 402, 403, 404, 405, 407, 410, 418, 421, 423, 424, 426, 428, 499], Verdict::Again),
            (&[400, 406, 411, 413, 414, 415, 416, 422, 431, 451], Verdict::Never),
        ] {
            for status in statuses {
                assert_eq!(verdict(*status, false), verdict_of, "{status}");
            }
        }
        assert_eq!(verdict(409, true), Verdict::Taken);
    }

    #[test]
    fn retry_after_is_read_in_both_forms_and_bounded() {
        const NOON: &str = "Sun, 06 Nov 1994 12:00:00 GMT";
        let s = |n| Some(Duration::from_secs(n));
        assert_eq!(retry_after(Some("120"), None), s(120));
        assert_eq!(retry_after(Some("0"), None), s(0));
        assert_eq!(retry_after(Some("99999999999999999999999"), None), s(24 * 3600));
        assert_eq!(retry_after(Some("Sun, 06 Nov 1994 12:01:30 GMT"), Some(NOON)), s(90));
        assert_eq!(retry_after(Some("Mon, 07 Nov 1994 00:00:00 GMT"), Some(NOON)), s(12 * 3600));
        assert_eq!(retry_after(Some("Sun, 06 Nov 1994 11:59:59 GMT"), Some(NOON)), None, "past");
        for bad in ["", "-5", "soon", "Sun, 06 Foo 1994 12:01:30 GMT", "Sun, 06 Nov 1994 12:01", "Sun, 06 Nov 1994"] {
            assert_eq!(retry_after(Some(bad), Some(NOON)), None, "{bad:?}");
        }
        assert_eq!(retry_after(Some(NOON), None), None, "no date to count from");
        assert_eq!(seconds("Sun, 06 Nov 1994 08:49:37 GMT"), Some(784_111_777));
        assert_eq!(seconds("Thu, 29 Feb 2024 00:00:00 GMT"), Some(1_709_164_800));
        assert_eq!(seconds("Thu, 01 Jan 1970 00:00:00 GMT"), Some(0));
    }
}
