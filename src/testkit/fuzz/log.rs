//! Proof lines: what is written is read back as it was, and no text panics or is read as something that it does not say.

use super::Reader;
use crate::model::id::{JobId, Token};
use crate::model::time::Wall;
use crate::observe::escape::FIELDS;
use crate::observe::line::{AttemptLine, CLASSES, GaveBack, OUTCOMES, parse_line};
use crate::observe::stamp::{self, Zone};

/// The bytes as text, and as the choices that make a line.
pub fn lines(bytes: &[u8]) -> usize {
    let text = String::from_utf8_lossy(bytes);
    let read = text.split('\n').take(64).filter(|text| read(text)).count();
    written(&any_line(&mut Reader::new(bytes)));
    read + 1
}

/// Whether a text is a line; then it is written and read alike.
fn read(text: &str) -> bool {
    if let Some(at) = stamp::parse(text) {
        assert_eq!(stamp::parse(&Zone::utc().text(at)), Some(at), "{text:?}");
    }
    let Ok(line) = parse_line(text) else { return false };
    assert_eq!(parse_line(&line.to_string()), Ok(line), "{text:?}");
    true
}

/// One line, nothing in it that a terminal would obey, every field of ours where it belongs, and the exact text back.
fn written(line: &AttemptLine) {
    let text = line.to_string();
    assert!(!text.chars().any(char::is_control), "{text:?}");
    for field in FIELDS.iter().filter(|f| **f != "operation") {
        assert!(text.matches(&format!(" {field}=")).count() <= 1, "{field} in {text:?}");
    }
    assert_eq!(parse_line(&text).as_ref(), Ok(line), "{text:?}");
}

fn any_line(r: &mut Reader<'_>) -> AttemptLine {
    // Lines are exact to the second.
    let second = |r: &mut Reader<'_>| Wall(r.number() / 1_000 * 1_000);
    let outcome = r.one(&OUTCOMES).unwrap_or(OUTCOMES[0]);
    let (at, id, attempt) = (second(r), JobId(r.number()), r.number());
    let attempt = u32::try_from(attempt & u64::from(u32::MAX)).unwrap_or(0);
    let mut line = AttemptLine::new(at, &r.text(), &r.text(), id, attempt, outcome);
    line.queue = r.text();
    for _ in 0..r.below(4) {
        // A name of ours is as likely as any other.
        let name = if r.flag() { r.one(&FIELDS).unwrap_or_default().to_owned() } else { r.text() };
        let prefix = if r.byte() == 1 { "note_" } else { "" };
        line.notes.push((format!("{prefix}{name}"), r.text()));
    }
    for _ in 0..r.below(3) {
        line.operation.push(r.text());
    }
    let has = r.byte();
    let has = |bit: u8| has >> bit & 1 == 1;
    line.token = has(0).then(|| Token(r.number()));
    line.step = has(1).then(|| r.text());
    line.owner = has(2).then(|| r.text());
    line.class = if has(3) { r.one(&CLASSES) } else { None };
    line.error = has(4).then(|| r.text());
    line.duration_ms = has(5).then(|| r.number());
    line.next = has(6).then(|| second(r));
    line.given_back = if has(7) { r.one(&GaveBack::ALL) } else { None };
    line.continued = r.flag();
    line
}
