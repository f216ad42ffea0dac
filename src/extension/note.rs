//! The content of a note: who has disabled an item or a server, why, and until when. ElasticJob's nodes have no room for it.
//!
//! A note belongs to one disabling. It was written in the transaction that disabled the item or the server, or it names that transaction. A note of
//! an earlier disabling says nothing about a later one, of ElasticJob's console for example, which leaves no note.

use jiff::Timestamp;

use crate::excerpt::printable;
use crate::tree::Zxid;

/// The most characters of a reason.
pub const REASON_CHARS_MAX: usize = 200;

/// The most characters of an author: more than the name of a token or a certificate has.
const AUTHOR_CHARS_MAX: usize = 400;

/// A note.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Note {
    /// The author, as far as the sidecar knew.
    pub author: String,
    /// Why. Empty: nobody has said it.
    pub reason: String,
    /// Until when. `None`: until somebody enables it.
    pub until: Option<Timestamp>,
    /// The transaction that disabled, if the note was written later.
    pub disabled_in: Option<Zxid>,
}

impl Note {
    /// A note with the transaction that disables. Characters that command a terminal or break a line are escaped.
    pub fn new(author: &str, reason: &str) -> Self {
        let shortened = |text: &str, most| printable(text.chars().take(most));
        Self {
            author: shortened(author, AUTHOR_CHARS_MAX),
            reason: shortened(reason, REASON_CHARS_MAX),
            until: None,
            disabled_in: None,
        }
    }

    /// The same note with this end.
    pub fn until(self, until: Option<Timestamp>) -> Self {
        Self { until, ..self }
    }

    /// The same note about an earlier transaction.
    pub fn about(self, disabled_in: Zxid) -> Self {
        Self { disabled_in: Some(disabled_in), ..self }
    }

    /// Whether a note has this author, this reason and this end.
    pub fn says(&self, other: &Self) -> bool {
        (&self.author, &self.reason, self.until) == (&other.author, &other.reason, other.until)
    }

    /// Reads the node. Lines of later versions are skipped.
    pub fn read(data: &[u8]) -> Self {
        let (mut note, mut disabled_in) = (Self::default(), None);
        for line in String::from_utf8_lossy(data).lines() {
            match line.split_once(' ') {
                Some(("by", author)) => note = Self { author: Self::new(author, "").author, ..note },
                Some(("reason", reason)) => note = Self { reason: Self::new("", reason).reason, ..note },
                Some(("until", until)) => note = Self { until: until.parse().ok(), ..note },
                Some(("in", zxid)) => disabled_in = read_transaction(zxid),
                Some(_) | None => {}
            }
        }
        Self { disabled_in, ..note }
    }

    /// The node's content.
    pub fn write(&self) -> String {
        let Self { author, reason, until, disabled_in } = self;
        let reason = if reason.is_empty() { String::new() } else { format!("reason {reason}\n") };
        let until = until.map(|until| format!("until {until}\n")).unwrap_or_default();
        let disabled_in = disabled_in.map(|zxid| format!("in {:x}\n", zxid.0)).unwrap_or_default();
        format!("by {author}\n{reason}{until}{disabled_in}")
    }
}

/// A transaction's id in hexadecimal digits, without a sign.
fn read_transaction(text: &str) -> Option<Zxid> {
    let unsigned = u64::from_str_radix(text, 16).ok()?;
    i64::try_from(unsigned).ok().map(Zxid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_are_read_as_they_were_written_and_nonsense_is_skipped() {
        let note = Note::new("uid 1000 with token `ops`", "disk full: see 881");
        assert_eq!(note.write(), "by uid 1000 with token `ops`\nreason disk full: see 881\n");
        assert_eq!(Note::read(note.write().as_bytes()), note);
        let until = "2026-11-28T12:00:00.5Z".parse().unwrap();
        let later = note.clone().until(Some(until)).about(Zxid(0x1_0000_002a));
        assert_eq!(Note::read(later.write().as_bytes()), later);
        assert!(
            note.says(&later.clone().until(None))
                && !note.says(&later)
                && !note.says(&Note::new("uid 0", "disk full: see 881"))
        );
        assert_eq!(Note::read(b"by x\nnews 5\n\xff\nin zz\nuntil noon\n"), Note::new("x", ""));
        assert_eq!(Note::read(b""), Note::default());
    }

    #[test]
    fn a_note_has_one_line_for_each_text_whatever_the_texts_are() {
        let note = Note::new("a\nreason b", "c\r\nin 5\n\u{1b}[2J");
        assert_eq!(note.write().lines().count(), 2, "{}", note.write());
        let read = Note::read(note.write().as_bytes());
        assert_eq!(read.disabled_in, None);
        assert_eq!(
            Note::read(Note::new("", &"x".repeat(9_999)).write().as_bytes()).reason.len(),
            REASON_CHARS_MAX
        );
    }
}
