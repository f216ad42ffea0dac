//! A text from outside, short enough for a log, an error or a status, and without characters that command a
//! terminal. Pure. Such a text may have megabytes. Errors carry an [`Excerpt`] of it, so that no log prints
//! the whole.

use std::fmt;

/// Characters of the text that an excerpt keeps.
const CHARS_MAX: usize = 80;

/// The beginning of a text from outside.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Excerpt(String);

impl Excerpt {
    /// The beginning of this text. `...` follows if the text is longer.
    pub fn of(text: &str) -> Self {
        Self::of_length(text, CHARS_MAX)
    }

    /// The same with this number of characters.
    pub fn of_length(text: &str, chars_max: usize) -> Self {
        let mut chars = text.chars();
        let mut short = printable(chars.by_ref().take(chars_max));
        if chars.next().is_some() {
            short.push_str("...");
        }
        Self(short)
    }

    /// The kept text.
    pub fn into_string(self) -> String {
        self.0
    }
}

impl fmt::Display for Excerpt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A text with escapes for each character that could command a terminal, break a line or turn the reading
/// direction.
pub fn printable(text: impl IntoIterator<Item = char>) -> String {
    let mut printable = String::new();
    for c in text {
        if commands(c) {
            printable.extend(c.escape_default());
        } else {
            printable.push(c);
        }
    }
    printable
}

/// Whether a character can command a terminal or break a line: control characters, the separators of lines
/// and paragraphs, and the marks of writing direction (Unicode, UAX 9).
pub fn commands(c: char) -> bool {
    c.is_control()
        || matches!(
            c,
            '\u{61C}' | '\u{200E}' | '\u{200F}' | '\u{2028}'..='\u{202E}' | '\u{2066}'..='\u{2069}' | '\u{FEFF}'
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_text_is_cut_and_a_short_one_is_kept() {
        assert_eq!(Excerpt::of("orderSync").to_string(), "orderSync");
        assert_eq!(Excerpt::of(&"a".repeat(80)).to_string(), "a".repeat(80));
        assert_eq!(Excerpt::of(&"ä".repeat(4_000_000)).to_string(), "ä".repeat(80) + "...");
    }

    #[test]
    fn characters_that_command_a_terminal_are_escaped() {
        assert_eq!(Excerpt::of("a\u{1b}[2J\n").to_string(), r"a\u{1b}[2J\n");
        assert_eq!(Excerpt::of("gpj\u{202e}txt\u{2028}").to_string(), r"gpj\u{202e}txt\u{2028}");
    }
}
