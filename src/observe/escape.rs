//! Text from outside (keys, notes, errors) as one token of a line.
//!
//! Keeps the promise that nothing a job carries can forge a line, a field or what a terminal shows, and that a reader gets the
//! exact text back. Called by [`line`](super::line) and [`events`](super::events).

use std::fmt::{self, Write as _};

/// The names of a line's own fields. A note of such a name is written with `note_` before it.
pub const FIELDS: [&str; 16] = [
    "job",
    "attempt",
    "outcome",
    "kind",
    "id",
    "queue",
    "token",
    "step",
    "owner",
    "operation",
    "class",
    "error",
    "duration_ms",
    "next",
    "given_back",
    "continued",
];

/// A value: bare if every character is plain and visible, else in double quotes with escapes.
pub struct Value<'a>(pub &'a str);

/// A note's name: always one bare word.
pub struct Name<'a>(pub &'a str);

impl fmt::Display for Value<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = self.0;
        if !text.is_empty() && text.chars().all(is_plain) {
            return f.write_str(text);
        }
        f.write_char('"')?;
        // The word as it reads in the line: after a newline it begins with the `n` of its escape.
        let mut word = String::new();
        for c in text.chars() {
            match c {
                '"' => f.write_str("\\\"")?,
                '\\' => f.write_str("\\\\")?,
                '\n' => f.write_str("\\n")?,
                '\r' => f.write_str("\\r")?,
                '\t' => f.write_str("\\t")?,
                // An error text that says `outcome=success` must not be counted by whoever greps for it.
                '=' if FIELDS.contains(&word.as_str()) => escape(f, c)?,
                ' ' => f.write_char(' ')?,
                _ if is_visible(c) => f.write_char(c)?,
                _ => escape(f, c)?,
            }
            match c {
                _ if is_word(c) => word.push(c),
                '\n' => "n".clone_into(&mut word),
                '\r' => "r".clone_into(&mut word),
                '\t' => "t".clone_into(&mut word),
                _ => word.clear(),
            }
        }
        f.write_char('"')
    }
}

impl fmt::Display for Name<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.0;
        if is_taken(name) {
            f.write_str(PREFIX)?;
            return f.write_str(name);
        }
        // `x-outcome=` would still read as our field for a search by word: its first letter is escaped.
        let last_word = name.rsplit(|c| !is_word(c)).next().unwrap_or(name);
        let hidden = FIELDS.contains(&last_word).then(|| name.len() - last_word.len());
        for (i, c) in name.char_indices() {
            if is_plain(c) && hidden != Some(i) { f.write_char(c)? } else { escape(f, c)? }
        }
        Ok(())
    }
}

/// Takes a value off the front of `rest`: the text and what follows it. The error says what is wrong.
pub(super) fn take_value(rest: &str) -> Result<(String, &str), &'static str> {
    let Some(mut rest) = rest.strip_prefix('"') else {
        let end = rest.find(' ').unwrap_or(rest.len());
        let (bare, rest) = rest.split_at(end);
        return if bare.is_empty() {
            Err("an empty value is written as two quotes")
        } else if bare.chars().all(is_plain) {
            Ok((bare.to_owned(), rest))
        } else {
            Err("a character that has to be quoted")
        };
    };
    let mut out = String::new();
    loop {
        let Some(c) = rest.chars().next() else { return Err("the closing quote is missing") };
        let after = &rest[c.len_utf8()..];
        rest = match c {
            '"' => return Ok((out, after)),
            '\\' => take_escape(after, &mut out)?,
            ' ' => {
                out.push(' ');
                after
            }
            _ if is_visible(c) => {
                out.push(c);
                after
            }
            _ => return Err("a character that has to be escaped"),
        };
    }
}

/// A note's name as it stands in a line, back to the text it was made from.
pub(super) fn read_name(written: &str) -> Result<String, &'static str> {
    let mut out = String::new();
    let mut rest = written;
    while let Some(c) = rest.chars().next() {
        let after = &rest[c.len_utf8()..];
        rest = match c {
            '\\' => take_escape(after, &mut out)?,
            _ if is_plain(c) => {
                out.push(c);
                after
            }
            _ => return Err("a character that has to be escaped in a name"),
        };
    }
    if out.is_empty() {
        return Err("a note without a name");
    }
    // The prefix is ours only if it was needed: `note_text` is the app's own name.
    match out.strip_prefix(PREFIX) {
        Some(name) if is_taken(name) => Ok(name.to_owned()),
        Some(_) | None => Ok(out),
    }
}

const PREFIX: &str = "note_";

/// Names that need the prefix: our fields, the empty one, and both with the prefix already before them.
fn is_taken(name: &str) -> bool {
    let base = name.trim_start_matches(PREFIX);
    base.is_empty() || FIELDS.contains(&base)
}

fn take_escape<'a>(rest: &'a str, out: &mut String) -> Result<&'a str, &'static str> {
    for (letter, meant) in [('"', '"'), ('\\', '\\'), ('n', '\n'), ('r', '\r'), ('t', '\t')] {
        if let Some(rest) = rest.strip_prefix(letter) {
            out.push(meant);
            return Ok(rest);
        }
    }
    let unknown = "an unknown escape";
    let (digits, rest) = rest.strip_prefix("u{").and_then(|r| r.split_once('}')).ok_or(unknown)?;
    let hex = (1..=6).contains(&digits.len()) && digits.bytes().all(|b| b.is_ascii_hexdigit());
    let number = u32::from_str_radix(digits, 16).ok().filter(|_| hex).ok_or(unknown)?;
    out.push(char::from_u32(number).ok_or(unknown)?);
    Ok(rest)
}

fn escape(f: &mut fmt::Formatter<'_>, c: char) -> fmt::Result {
    write!(f, "\\u{{{:x}}}", u32::from(c))
}

/// May stand outside quotes.
fn is_plain(c: char) -> bool {
    is_visible(c) && !matches!(c, '"' | '\'' | '`' | '\\' | '=')
}

/// Shows as itself and moves nothing: no control, no direction mark, no joiner, no accent that sits on its neighbour, no blank.
fn is_visible(c: char) -> bool {
    if c.is_ascii() {
        return c.is_ascii_graphic();
    }
    let blank_letter = matches!(c, '\u{115f}' | '\u{1160}' | '\u{2800}' | '\u{3164}' | '\u{ffa0}');
    !blank_letter && c.escape_debug().len() == 1
}

fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn value(text: &str) -> String {
        Value(text).to_string()
    }

    /// Keys as apps write them stay readable and need no quotes.
    #[test]
    fn ordinary_keys_stand_as_they_are() {
        for key in ["fred/UNRATE/2026-06", "ord_4201", "a:b|c;d,e(f)[g]{h}#%&", "straße/東京", "2026-09-12T07:01:22Z"]
        {
            assert_eq!(value(key), key);
        }
    }

    /// Somebody orders under the name of a log line, a terminal command, or a text that reads backwards.
    #[test]
    fn hostile_text_forges_nothing() {
        for (text, written) in [
            ("", r#""""#),
            ("a b", r#""a b""#),
            ("x\n2026-01-01T00:00:00Z job=y", r#""x\n2026-01-01T00:00:00Z job\u{3d}y""#),
            ("x\r\n\t\0", r#""x\r\n\t\u{0}""#),
            ("\u{1b}[2J\u{9b}31m", r#""\u{1b}[2J\u{9b}31m""#),
            ("\u{202e}evil\u{2066}", r#""\u{202e}evil\u{2066}""#),
            ("a\u{2028}b\u{2029}c\u{85}d", r#""a\u{2028}b\u{2029}c\u{85}d""#),
            ("zero\u{200b}width\u{feff}", r#""zero\u{200b}width\u{feff}""#),
            ("\u{3164}\u{a0}\u{301}", r#""\u{3164}\u{a0}\u{301}""#),
            (r#"say "hi" \ "#, r#""say \"hi\" \\ ""#),
            ("1 outcome=success", r#""1 outcome\u{3d}success""#),
            ("outcome=success", r#""outcome\u{3d}success""#),
            ("a\next=b", r#""a\next\u{3d}b""#),
            ("http://x/?page=3", r#""http://x/?page=3""#),
        ] {
            assert_eq!(value(text), written);
            assert_eq!(take_value(written), Ok((text.to_owned(), "")));
        }
    }

    /// An app notes something under one of our own names: it cannot be taken for the field.
    #[test]
    fn a_note_cannot_pose_as_a_field() {
        for (name, written) in [
            ("rows_upserted", "rows_upserted"),
            ("note", "note"),
            ("note_text", "note_text"),
            ("outcome", "note_outcome"),
            ("note_outcome", "note_note_outcome"),
            ("", "note_"),
            ("note_", "note_note_"),
            ("my-outcome", r"my-\u{6f}utcome"),
            ("x outcome", r"x\u{20}\u{6f}utcome"),
            ("a=b", r"a\u{3d}b"),
            ("a\nb", r"a\u{a}b"),
        ] {
            assert_eq!(Name(name).to_string(), written);
            assert_eq!(read_name(written), Ok(name.to_owned()));
        }
    }

    /// A damaged token is refused with a reason.
    #[test]
    fn damaged_tokens_are_refused() {
        for text in
            ["", " x", "\"open", r#""\q""#, r#""\u{110000}""#, r#""\u{}""#, r#""\u{+41}""#, "\"a\nb\"", "a=b", "a'b"]
        {
            assert!(take_value(text).is_err(), "{text:?}");
        }
        for text in ["", "a b", "a\"b", r"\u{d800}"] {
            assert!(read_name(text).is_err(), "{text:?}");
        }
    }

    fn one_harmless_token(written: &str, quoted: bool) {
        assert!(written.chars().all(|c| is_visible(c) || (quoted && c == ' ')), "{written:?}");
        for field in FIELDS {
            let forged = format!("{field}=");
            let found = written.match_indices(&forged).any(|(i, _)| !written[..i].ends_with(is_word));
            assert!(!found, "{forged} in {written:?}");
        }
    }

    fn text() -> impl Strategy<Value = String> {
        prop_oneof![
            any::<String>(),
            "[a-z =\"\\\\\n\r\t\u{1b}\u{202e}]{0,40}",
            proptest::collection::vec(proptest::sample::select(&FIELDS[..]), 0..4).prop_map(|w| w.join("=")),
            "note_(note_)?(outcome|id|x|)",
        ]
    }

    proptest! {
        /// Any text at all becomes one harmless token and comes back unchanged.
        #[test]
        fn any_value_comes_back_unchanged(text in text(), after in "( .*)?") {
            let written = value(&text);
            one_harmless_token(&written, written.starts_with('"'));
            let line = format!("{written}{after}");
            prop_assert_eq!(take_value(&line), Ok((text, after.as_str())));
        }
        /// Any name at all becomes one word that is not a field and comes back unchanged.
        #[test]
        fn any_name_comes_back_unchanged(name in text()) {
            let written = Name(&name).to_string();
            one_harmless_token(&format!("{written}="), false);
            prop_assert_eq!(read_name(&written), Ok(name));
        }
        /// Whatever stands in a file, reading it never panics.
        #[test]
        fn any_token_is_read_or_refused(text in "\"?([a-z =]|\\\\[unrt\"\\\\]|\\{[0-9a-f]{0,7}\\}|\\PC){0,20}\"?") {
            let _ = take_value(&text);
            let _ = read_name(&text);
        }
    }
}
