//! Quartz cron expressions: reading them, describing them in words, and finding their next instant. Pure.
//!
//! The meaning is that of Quartz 2.5: seconds first, six or seven fields, `?`, `L`, `L-3`, `LW`, `15W`, `6L`,
//! `6#3`, ranges that wrap (`22-4`, `FRI-MON`), and Quartz's rule for clock changes. All schedulers of one
//! fleet must name the same instants, so this room also follows the odd but certain rules of Quartz:
//!
//! - a step after a name is read and has no effect (`MON/2` is `MON`); a step of 0 keeps only the first
//!   value;
//! - the search for a day of `W` begins at the day that it is nearest to. A search that begins on a Monday
//!   does not find the `15W` whose 15th was the Sunday before, and a search that begins earlier in the month
//!   keeps its time of day (see `days.rs`);
//! - where clocks are set forward at midnight, within an hour or by several hours, some times behind the gap
//!   can be lost with the times in it. A day that `W` names is moved behind the gap (see `search.rs`).
//!
//! Text that Quartz accepts only because it stops reading (`MONDAY`, `1-2-3`, `*5`, `0,,5`) is refused.
//!
//! This module must not know jobs, configuration or any other part of this program, and has no clock: it
//! depends on `jiff` and `thiserror` only.
//!
//! ```
//! use sidekeeper::quartz::{Expression, parse_time_zone};
//!
//! let expression = Expression::parse("0 15 10 LW * ?")?;
//! assert_eq!(expression.describe(), "at 10:15:00 on the last weekday of every month");
//!
//! let after: jiff::Timestamp = "2026-01-15T12:34:56Z".parse()?;
//! let next = expression.next_after(after, &parse_time_zone("Europe/Berlin")?);
//! assert_eq!(next, Some("2026-01-30T09:15:00Z".parse()?));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod days;
mod describe;
mod error;
mod item;
mod parse;
mod search;
mod set;
#[cfg(test)]
mod tests;
mod years;
mod zone;

use std::fmt;
use std::str::FromStr;

use jiff::Timestamp;
use jiff::tz::TimeZone;

use self::days::Days;
use self::set::Set;
use self::years::Years;

pub use self::error::{Field, ParseError};
pub use self::zone::{ZoneError, parse_time_zone};

/// A cron expression as Quartz reads it.
///
/// Two expressions are equal when their texts are equal; the same schedule can be written in several ways.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expression {
    text: Box<str>,
    seconds: Set,
    minutes: Set,
    hours: Set,
    days: Days,
    months: Set,
    years: Years,
}

impl Expression {
    /// The longest text that is read, in bytes. Quartz has no limit. Schedulers store expressions in columns
    /// of 120 or 200 characters, so this limit is generous. It bounds the cost of an expression.
    pub const MAX_LENGTH: usize = 1024;

    /// Reads an expression.
    ///
    /// # Errors
    ///
    /// Names the first wrong field, its place in the text, the given text and the allowed form.
    pub fn parse(text: &str) -> Result<Self, ParseError> {
        parse::expression(text)
    }

    /// The first instant strictly after `after` that the expression names in `zone`, always a whole second.
    ///
    /// The search runs in local wall time, from the wall time one second after `after`. A wall time that a
    /// clock change skips is skipped, not moved, except for the oddities above. A wall time that occurs twice
    /// means the later instant, so an hourly schedule pauses for one hour when clocks are set back.
    ///
    /// `None` when there is no such instant up to the end of the year 100 years after that of `after`.
    pub fn next_after(&self, after: Timestamp, zone: &TimeZone) -> Option<Timestamp> {
        search::next_after(self, after, zone)
    }

    /// The expression in words, such as `at 10:15:00 on the last weekday of every month`.
    ///
    /// A weekday is Monday to Friday. All times are local to the zone in which the expression is evaluated.
    pub fn describe(&self) -> String {
        describe::expression(self)
    }
}

/// The text of the expression.
impl fmt::Display for Expression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl FromStr for Expression {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        Self::parse(text)
    }
}
