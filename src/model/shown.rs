//! Texts of apps and providers as people may see them: in one line, of bounded length, with nothing in them that moves other text.
//!
//! Keeps the promise that a key, an error or a reference cannot forge a line of a list, turn round what stands beside it or fill a
//! screen. Used wherever a sentence for people is put together; what is stored stays as it was given.

use std::fmt::{self, Write as _};

/// Longer ones are cut, in characters.
const LONGEST: usize = 1_000;

/// A text as people may see it: line breaks, control characters and direction marks are written out (`\n`, `\u{202e}`), and what is
/// longer than 1,000 characters is cut and says so. For the values of your own screens, too: titles, keys, errors, references.
///
/// ```
/// assert_eq!(onceward::Shown("paid\nby \u{202e}nobody").to_string(), r"paid\nby \u{202e}nobody");
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Shown<'a>(pub &'a str);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut left = self.0.chars();
        for c in left.by_ref().take(LONGEST) {
            match c {
                '\n' => f.write_str("\\n")?,
                '\r' => f.write_str("\\r")?,
                '\t' => f.write_str("\\t")?,
                _ if moves(c) => write!(f, "{}", c.escape_unicode())?,
                _ => f.write_char(c)?,
            }
        }
        match left.count() {
            0 => Ok(()),
            n => write!(f, "… ({n} more characters)"),
        }
    }
}

/// Controls, ends of lines, marks that change the direction, tags and blanks of no width. Joiners stay: scripts and pictures need them.
fn moves(c: char) -> bool {
    c.is_control()
        || matches!(
            c,
            '\u{61c}'
                | '\u{200b}'
                | '\u{200e}'..='\u{200f}'
                | '\u{2028}'..='\u{202e}'
                | '\u{2060}'..='\u{206f}'
                | '\u{feff}'
                | '\u{fff9}'..='\u{fffb}'
                | '\u{e0000}'..='\u{e0fff}'
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Words of every script stay as they are; whatever could make one line look like two, or like another one, is seen.
    #[test]
    fn ordinary_words_stay_and_nothing_moves_its_neighbours() {
        for text in ["Charge 5 € for straße/東京", "ord_4201", "שלום", "\u{1f469}\u{200d}\u{1f4bb}", "a\\n"] {
            assert_eq!(Shown(text).to_string(), text);
        }
        let hostile: String = (0..=u32::from(char::MAX)).filter_map(char::from_u32).filter(|c| moves(*c)).collect();
        assert!(hostile.chars().count() > 4_000);
        for c in hostile.chars() {
            let shown = Shown(&format!("a{c}b")).to_string();
            assert!(shown.starts_with("a\\") && shown.is_ascii() && shown.ends_with('b'), "{shown}");
        }
    }

    /// A provider answers with a page instead of a line: its beginning is shown.
    #[test]
    fn what_is_too_long_is_cut_and_says_so() {
        assert_eq!(Shown(&"é".repeat(LONGEST)).to_string().chars().count(), LONGEST);
        let long = Shown(&"é".repeat(LONGEST + 7)).to_string();
        assert!(long.ends_with("é… (7 more characters)"), "{long}");
    }
}
