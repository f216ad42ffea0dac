//! The errors in the text of an expression, and their places.

use std::fmt;
use std::ops::Range;

use crate::excerpt::Excerpt;

/// A field of an expression, in written order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Field {
    /// 0 to 59.
    Seconds,
    /// 0 to 59.
    Minutes,
    /// 0 to 23.
    Hours,
    /// 1 to 31.
    DayOfMonth,
    /// 1 to 12, January is 1.
    Month,
    /// 1 to 7, Sunday is 1.
    DayOfWeek,
    /// May be absent, which means every year.
    Year,
}

impl Field {
    /// All fields, in written order.
    pub const ALL: [Self; 7] = [
        Self::Seconds,
        Self::Minutes,
        Self::Hours,
        Self::DayOfMonth,
        Self::Month,
        Self::DayOfWeek,
        Self::Year,
    ];

    /// The smallest and the largest value. `None` for years, which have no practical limits.
    pub(super) fn bounds(self) -> Option<(i8, i8)> {
        match self {
            Self::Seconds | Self::Minutes => Some((0, 59)),
            Self::Hours => Some((0, 23)),
            Self::DayOfMonth => Some((1, 31)),
            Self::Month => Some((1, 12)),
            Self::DayOfWeek => Some((1, 7)),
            Self::Year => None,
        }
    }

    /// The values, in words.
    pub(super) fn values(self) -> &'static str {
        match self {
            Self::Seconds | Self::Minutes => "0 to 59",
            Self::Hours => "0 to 23",
            Self::DayOfMonth => "1 to 31",
            Self::Month => "1 to 12 or JAN to DEC",
            Self::DayOfWeek => "1 (Sunday) to 7 (Saturday) or SUN to SAT",
            Self::Year => "a year such as 2026",
        }
    }

    /// The forms that a part of this field can have, in words.
    pub(super) fn forms(self) -> &'static str {
        match self {
            Self::Seconds | Self::Minutes => {
                "`*`, a number 0 to 59, a range `10-20` or a step `*/5`, `0/5`, `10-20/5`"
            }
            Self::Hours => "`*`, a number 0 to 23, a range `9-17` or a step `*/6`, `0/6`, `8-18/2`",
            Self::DayOfMonth => {
                "`?`, `*`, a number 1 to 31, a range `10-20`, a step `*/5`, `1/5`, `10-20/5`, \
                 or one of `L`, `L-3`, `LW`, `L-3W`, `15W`"
            }
            Self::Month => {
                "`*`, a number 1 to 12 or a name JAN to DEC, a range `3-5`, `MAR-MAY` or a step `*/3`, `1/3`, `1-6/2`"
            }
            Self::DayOfWeek => {
                "`?`, `*`, a number 1 (Sunday) to 7 (Saturday) or a name SUN to SAT, a range `2-6`, `MON-FRI`, \
                 a step `*/2`, `2-6/2`, or one of `L`, `6L`, `FRIL`, `6#3`, `FRI#3`"
            }
            Self::Year => "`*`, a year such as 2026, a range `2026-2030` or a step `2026/2`, `2026-2030/2`",
        }
    }
}

impl fmt::Display for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Seconds => "seconds",
            Self::Minutes => "minutes",
            Self::Hours => "hours",
            Self::DayOfMonth => "day of month",
            Self::Month => "month",
            Self::DayOfWeek => "day of week",
            Self::Year => "year",
        })
    }
}

/// Why a text is not a cron expression.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct ParseError {
    /// The wrong field. `None` when the text as a whole is wrong (the number of fields, its length).
    pub field: Option<Field>,
    /// The place of the wrong part in the text, in bytes.
    pub span: Range<usize>,
    /// The wrong part, cut off when it is very long.
    pub given: String,
    /// The allowed form; it continues the words "must be".
    pub allowed: String,
    /// The whole text, cut off when it is very long.
    pub text: String,
}

impl ParseError {
    pub(super) fn new(
        field: Option<Field>,
        text: &str,
        span: Range<usize>,
        allowed: impl Into<String>,
    ) -> Self {
        let given = text.get(span.clone()).unwrap_or_default();
        Self {
            field,
            span,
            given: Excerpt::of_length(given, MAX_SHOWN).into_string(),
            allowed: allowed.into(),
            text: Excerpt::of_length(text, MAX_SHOWN).into_string(),
        }
    }
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.field {
            Some(field) => write!(f, "{field} `{}` in `{}`", self.given, self.text)?,
            None => write!(f, "cron expression `{}`", self.text)?,
        }
        write!(f, ": must be {}", self.allowed)
    }
}

/// The most characters of the given text in an error message.
const MAX_SHOWN: usize = 200;
