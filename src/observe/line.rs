//! The proof line: one line per claim of a job, always with its key.
//!
//! `2026-09-12T07:01:22-04:00 job=fred/UNRATE/2026-06 attempt=2 outcome=success rows_upserted=1 note=duplicate-delivery-skipped
//! kind=fred.ingest id=7 queue=default`: time, job, attempt, outcome; what the handler noted; then our own fields, those that are
//! unknown left out. `job` is always the key alone and `kind` always a field of its own: a key may have slashes, so the two glued
//! together could not be told apart again. Payloads never appear. Called by [`Observer`](super::Observer) and by sinks.

use super::escape::{self, FIELDS, Name, Value};
use super::stamp::{self, Zone};
use crate::model::attempt::{Class, Outcome};
use crate::model::id::{JobId, Token};
use crate::model::time::Wall;
use std::fmt;

/// What is said about one claim, once its end is durable.
///
/// Exactly one line for each claim that reached a handler or was meant to. Attempts are the lines that were neither given back
/// nor continued.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct AttemptLine {
    /// When it ended.
    pub at: Wall,
    /// The job's key.
    pub job: String,
    /// Which attempt.
    pub attempt: u32,
    /// In one word.
    pub outcome: Outcome,
    /// What the handler noted, in its order.
    pub notes: Vec<(String, String)>,
    /// The job's kind.
    pub kind: String,
    /// The job's number.
    pub id: JobId,
    /// The queue it ran in.
    pub queue: String,
    /// The fencing token of the claim.
    pub token: Option<Token>,
    /// The last thing the handler asked for, e.g. `effect charge`.
    pub step: Option<String>,
    /// Who held the lease, e.g. `worker-3`.
    pub owner: Option<String>,
    /// The provider's operation ids that became known.
    pub operation: Vec<String>,
    /// The failure's class.
    pub class: Option<Class>,
    /// What went wrong, cut to the limit.
    pub error: Option<String>,
    /// How long the handler had it.
    pub duration_ms: Option<u64>,
    /// When it comes back, if it does.
    pub next: Option<Wall>,
    /// The claim was not an attempt after all, and why.
    pub given_back: Option<GaveBack>,
    /// The claim went on with an attempt that has a line already.
    pub continued: bool,
}

impl AttemptLine {
    /// A line with what every line has.
    pub fn new(at: Wall, kind: &str, job: &str, id: JobId, attempt: u32, outcome: Outcome) -> Self {
        Self {
            at,
            job: job.to_owned(),
            attempt,
            outcome,
            notes: Vec::new(),
            kind: kind.to_owned(),
            id,
            queue: String::new(),
            token: None,
            step: None,
            owner: None,
            operation: Vec::new(),
            class: None,
            error: None,
            duration_ms: None,
            next: None,
            given_back: None,
            continued: false,
        }
    }
    /// The line without its newline, with instants in `zone`.
    pub fn render(&self, zone: &Zone) -> String {
        let mut out = String::with_capacity(160);
        self.write(&mut out, zone).expect("writing to a String cannot fail");
        out
    }
    /// Writes the line without its newline, with instants in `zone`.
    pub fn write(&self, f: &mut impl fmt::Write, zone: &Zone) -> fmt::Result {
        zone.write(f, self.at)?;
        write!(f, " job={} attempt={} outcome={}", Value(&self.job), self.attempt, self.outcome.as_str())?;
        for (name, value) in &self.notes {
            write!(f, " {}={}", Name(name), Value(value))?;
        }
        write!(f, " kind={} id={} queue={}", Value(&self.kind), self.id, Value(&self.queue))?;
        if let Some(token) = self.token {
            write!(f, " token={token}")?;
        }
        if let Some(step) = &self.step {
            write!(f, " step={}", Value(step))?;
        }
        if let Some(owner) = &self.owner {
            write!(f, " owner={}", Value(owner))?;
        }
        for operation in &self.operation {
            write!(f, " operation={}", Value(operation))?;
        }
        if let Some(class) = self.class {
            write!(f, " class={}", class_word(class))?;
        }
        if let Some(error) = &self.error {
            write!(f, " error={}", Value(error))?;
        }
        if let Some(ms) = self.duration_ms {
            write!(f, " duration_ms={ms}")?;
        }
        if let Some(next) = self.next {
            f.write_str(" next=")?;
            zone.write(f, next)?;
        }
        if let Some(why) = self.given_back {
            write!(f, " given_back={}", why.as_str())?;
        }
        if self.continued {
            f.write_str(" continued=true")?;
        }
        Ok(())
    }
}

/// In UTC.
impl fmt::Display for AttemptLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write(f, &Zone::utc())
    }
}

/// Why a claim does not count as an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum GaveBack {
    /// Shutdown, lost runtime, reboot.
    Interrupted,
    /// The handler said "not yet".
    Snoozed,
    /// Claimed, but the handler was never called or could not read the payload.
    NeverStarted,
    /// Looked at an unresolved effect, then waited or continued the same attempt.
    Settled,
    /// The process died while other handlers ran too.
    DiedBesideOthers,
    /// A reason that a newer version wrote.
    Other,
}

impl GaveBack {
    /// Every reason, in the order of declaration.
    pub const ALL: [Self; 6] =
        [Self::Interrupted, Self::Snoozed, Self::NeverStarted, Self::Settled, Self::DiedBesideOthers, Self::Other];
    /// As it stands in lines and labels.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Interrupted => "interrupted",
            Self::Snoozed => "snoozed",
            Self::NeverStarted => "never-started",
            Self::Settled => "settled",
            Self::DiedBesideOthers => "died-beside-others",
            Self::Other => "other",
        }
    }
}

/// Every outcome, in the order of declaration.
pub(crate) const OUTCOMES: [Outcome; 9] = [
    Outcome::Success,
    Outcome::Retry,
    Outcome::NotYet,
    Outcome::Waiting,
    Outcome::NeedsDecision,
    Outcome::Dead,
    Outcome::Interrupted,
    Outcome::Cancelled,
    Outcome::Compensating,
];
/// Every class, in the order of declaration.
pub(crate) const CLASSES: [Class; 3] = [Class::Transient, Class::Permanent, Class::Unknown];

/// A failure's class as it stands in lines and labels.
pub fn class_word(class: Class) -> &'static str {
    match class {
        Class::Transient => "transient",
        Class::Permanent => "permanent",
        Class::Unknown => "unknown",
    }
}

/// Why a text is not a proof line, and where.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a proof line: {why}, at byte {at}")]
pub struct BadLine {
    /// Byte offset.
    pub at: usize,
    /// What was found or missing.
    pub why: &'static str,
}

/// Reads one line, without its newline, in any offset. Instants come back to the second, everything else exactly.
pub fn parse_line(text: &str) -> Result<AttemptLine, BadLine> {
    let bad = |rest: &str, why| BadLine { at: text.len() - rest.len(), why };
    let (time, rest) = text.split_once(' ').ok_or(bad(text, "no field after the time"))?;
    let at = stamp::parse(time).ok_or(bad(text, "the time is not RFC 3339 to the second"))?;
    let mut line = AttemptLine::new(at, "", "", JobId(0), 0, Outcome::Success);
    let mut rest = rest;
    let mut seen: Vec<&str> = Vec::new();
    loop {
        let here = rest;
        let (written, after) = here.split_once('=').ok_or(bad(here, "a field without `=`"))?;
        let (value, after) = escape::take_value(after).map_err(|why| bad(after, why))?;
        // Time, job, attempt, outcome come first, so that a reader of columns finds them.
        if let Some(first) = FIELDS[..3].get(seen.len())
            && *first != written
        {
            return Err(bad(here, "job, attempt and outcome come first, in this order"));
        }
        if FIELDS.contains(&written) {
            if seen.contains(&written) && written != "operation" {
                return Err(bad(here, "a field that stood before"));
            }
            seen.push(written);
            line.set(written, value).map_err(|why| bad(here, why))?;
        } else {
            line.notes.push((escape::read_name(written).map_err(|why| bad(here, why))?, value));
        }
        if after.is_empty() {
            break;
        }
        rest = after.strip_prefix(' ').ok_or(bad(after, "no space between two fields"))?;
    }
    match ["outcome", "kind", "id", "queue"].iter().all(|field| seen.contains(field)) {
        true => Ok(line),
        false => Err(bad("", "outcome, kind, id or queue is missing")),
    }
}

impl AttemptLine {
    fn set(&mut self, field: &str, value: String) -> Result<(), &'static str> {
        let number = || canonical(&value).ok_or("not a number");
        match field {
            "job" => self.job = value,
            "attempt" => self.attempt = u32::try_from(number()?).map_err(|_| "too large a number")?,
            "outcome" => {
                let known = OUTCOMES.into_iter().find(|o| o.as_str() == value);
                self.outcome = known.ok_or("an unknown outcome")?;
            }
            "kind" => self.kind = value,
            "id" => self.id = JobId(number()?),
            "queue" => self.queue = value,
            "token" => self.token = Some(Token(number()?)),
            "step" => self.step = Some(value),
            "owner" => self.owner = Some(value),
            "operation" => self.operation.push(value),
            "class" => {
                let known = CLASSES.into_iter().find(|c| class_word(*c) == value);
                self.class = Some(known.ok_or("an unknown class")?);
            }
            "error" => self.error = Some(value),
            "duration_ms" => self.duration_ms = Some(number()?),
            "next" => self.next = Some(stamp::parse(&value).ok_or("the time is not RFC 3339 to the second")?),
            "given_back" => {
                let known = GaveBack::ALL.into_iter().find(|g| g.as_str() == value);
                self.given_back = Some(known.ok_or("an unknown reason")?);
            }
            "continued" if value == "true" => self.continued = true,
            _ => return Err("an unknown value"),
        }
        Ok(())
    }
}

/// A number written as we write it: digits, no sign, no leading zero.
fn canonical(text: &str) -> Option<u64> {
    let plain = text.bytes().all(|b| b.is_ascii_digit()) && (text == "0" || !text.starts_with('0'));
    text.parse().ok().filter(|_| plain)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use proptest::{collection, option, sample};

    fn fred() -> AttemptLine {
        let at = stamp::parse("2026-09-12T07:01:22-04:00").unwrap_or_default();
        let mut line = AttemptLine::new(at, "fred.ingest", "fred/UNRATE/2026-06", JobId(7), 2, Outcome::Success);
        line.queue = "default".into();
        line.notes = vec![("rows_upserted".into(), "1".into()), ("note".into(), "duplicate-delivery-skipped".into())];
        line
    }

    /// The line that the documentation shows, to the character; our own fields follow it.
    #[test]
    fn a_line_has_the_documented_form() {
        assert_eq!(
            fred().to_string(),
            "2026-09-12T11:01:22Z job=fred/UNRATE/2026-06 attempt=2 outcome=success rows_upserted=1 \
             note=duplicate-delivery-skipped kind=fred.ingest id=7 queue=default"
        );
        let local = fred().to_string().replace("11:01:22Z", "07:01:22-04:00");
        assert_eq!(parse_line(&local), Ok(fred()));
    }

    /// A failed attempt says everything that is known, in a fixed order.
    #[test]
    fn every_field_has_its_place() {
        let mut line = fred();
        line.outcome = Outcome::Waiting;
        line.notes.clear();
        line.token = Some(Token(1 << 40));
        line.step = Some("effect charge".into());
        line.owner = Some("worker-3".into());
        line.operation = vec!["ch_1".into(), "ch_2".into()];
        line.class = Some(Class::Unknown);
        line.error = Some("the answer was lost\nafter 30 s".into());
        line.duration_ms = Some(30_012);
        line.next = Some(Wall(line.at.0 + 60_000));
        line.given_back = Some(GaveBack::Settled);
        line.continued = true;
        assert_eq!(
            line.to_string(),
            "2026-09-12T11:01:22Z job=fred/UNRATE/2026-06 attempt=2 outcome=waiting kind=fred.ingest id=7 queue=default \
             token=1099511627776 step=\"effect charge\" owner=worker-3 operation=ch_1 operation=ch_2 class=unknown \
             error=\"the answer was lost\\nafter 30 s\" duration_ms=30012 next=2026-09-12T11:02:22Z given_back=settled \
             continued=true"
        );
        assert_eq!(parse_line(&line.to_string()), Ok(line));
    }

    /// Somebody orders under a key that is itself a whole success line: the file still has one line, and it says "dead".
    #[test]
    fn a_hostile_key_cannot_forge_a_line() {
        let mut line = fred();
        line.outcome = Outcome::Dead;
        line.job = format!("x\n{}", fred());
        line.error = Some("\r\u{1b}[1A\u{1b}[2K outcome=success \u{202e}".into());
        line.notes = vec![("outcome".into(), "success".into()), ("kind".into(), "x\u{2028}".into())];
        let text = line.to_string();
        assert_eq!(text.lines().count(), 1);
        assert_eq!(text.matches(" outcome=").count(), 1);
        assert!(text.is_ascii() && !text.bytes().any(|b| b.is_ascii_control()));
        assert_eq!(parse_line(&text), Ok(line));
    }

    /// A line cut by a full disk, or put together by hand, is refused and the place is named.
    #[test]
    fn damaged_lines_are_refused() {
        let good = fred().to_string();
        for (text, why) in [
            (String::new(), "no field"),
            ("2026-09-12T11:01:22Z".into(), "no field"),
            ("yesterday job=a attempt=1".into(), "RFC 3339"),
            (good.replace(" attempt=2", ""), "come first"),
            (good.replace("attempt=2", "attempt=02"), "not a number"),
            (good.replace("attempt=2", "attempt=+2"), "not a number"),
            (good.replace("attempt=2", "attempt=4294967296"), "too large"),
            (good.replace("success", "great"), "unknown outcome"),
            (good.replace(" queue=default", ""), "missing"),
            (format!("{good} id=8"), "stood before"),
            (format!("{good} "), "without `=`"),
            (format!("{good}  step=a"), "escaped in a name"),
            (format!("{good} step="), "two quotes"),
            (format!("{good} step=\"a\"b"), "no space"),
            (format!("{good} continued=false"), "unknown value"),
            (format!("{good}\n"), "quoted"),
        ] {
            let refused = parse_line(&text).map_err(|bad| bad.to_string());
            assert!(refused.as_ref().is_err_and(|said| said.contains(why)), "{text:?}: {refused:?}");
        }
    }

    fn any_line() -> impl Strategy<Value = AttemptLine> {
        let text = || prop_oneof![any::<String>(), "[a-z]{1,9}", "[a-z =\"\\\\\n\u{1b}\u{202e}]{0,20}"];
        let names =
            prop_oneof![any::<String>(), "(note_)?[a-z]{0,9}", sample::select(&FIELDS[..]).prop_map(str::to_owned)];
        let first = (any::<u64>(), text(), text(), text(), any::<u64>(), any::<u32>(), sample::select(&OUTCOMES[..]));
        let then = (
            collection::vec((names, text()), 0..4),
            option::of(any::<u64>()),
            option::of(text()),
            option::of(text()),
            collection::vec(text(), 0..3),
            option::of(sample::select(&CLASSES[..])),
            option::of(text()),
            option::of(any::<u64>()),
            option::of(any::<u64>()),
            option::of(sample::select(&GaveBack::ALL[..])),
            any::<bool>(),
        );
        let second = |ms: u64| Wall(ms / 1000 * 1000);
        (first, then).prop_map(move |(a, b)| {
            let mut line = AttemptLine::new(second(a.0), &a.1, &a.2, JobId(a.4), a.5, a.6);
            line.queue = a.3;
            (line.notes, line.token, line.step, line.owner) = (b.0, b.1.map(Token), b.2, b.3);
            (line.operation, line.class, line.error, line.duration_ms) = (b.4, b.5, b.6, b.7);
            (line.next, line.given_back, line.continued) = (b.8.map(second), b.9, b.10);
            line
        })
    }

    proptest! {
        /// Whatever a job carries: one line, no control character, each field of ours at most where it belongs, exact text back.
        #[test]
        fn any_line_comes_back_unchanged(line in any_line()) {
            let text = line.to_string();
            prop_assert!(!text.chars().any(char::is_control), "{text:?}");
            for field in FIELDS.iter().filter(|f| **f != "operation") {
                prop_assert!(text.matches(&format!(" {field}=")).count() <= 1, "{field} in {text}");
            }
            prop_assert_eq!(parse_line(&text), Ok(line));
        }
        /// Whatever stands in a file: never a panic, and what is accepted is written and read alike.
        #[test]
        fn any_text_is_read_or_refused(line in any_line(), cut in any::<sample::Index>(), junk in "\\PC{0,5}") {
            let mut text = line.to_string();
            let at = (0..=cut.index(text.len() + 1)).rev().find(|i| text.is_char_boundary(*i)).unwrap_or(0);
            text.insert_str(at, &junk);
            for text in [&text, &text[..at]] {
                if let Ok(read) = parse_line(text) {
                    prop_assert_eq!(parse_line(&read.to_string()), Ok(read));
                }
            }
        }
    }
}
