//! Time zone names: the IANA names, and Java's `GMT+8`.
//!
//! Java's `TimeZone.getTimeZone` silently turns an unknown name into GMT. Here an unknown name is an error.

use jiff::tz::{Offset, TimeZone, TimeZoneDatabase};

/// A text names no time zone.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "time zone `{}`: must be {}, `UTC`, or an offset such as `GMT+8` or `GMT-03:30`",
    given.escape_debug(),
    self.name()
)]
pub struct ZoneError {
    /// The text that was given.
    pub given: String,
    /// The name in the database's spelling, when only the case of letters differs.
    pub spelled: Option<String>,
}

impl ZoneError {
    fn name(&self) -> String {
        match &self.spelled {
            Some(name) => format!("spelled `{name}`"),
            None => "an IANA name such as `Europe/Berlin`".to_owned(),
        }
    }
}

/// The time zone that `text` names: an IANA name, `UTC`, or Java's `GMT`, `GMT+8`, `GMT+0800`, `GMT-03:30`.
/// Empty text means UTC.
///
/// The time zone database of the system comes first, then the one compiled into `jiff`. The case of letters
/// must be that of the database, because to Java `europe/berlin` is an unknown name, and so GMT.
///
/// # Errors
///
/// [`ZoneError`] for all other texts. No text falls back to GMT.
pub fn parse_time_zone(text: &str) -> Result<TimeZone, ZoneError> {
    if text.is_empty() || text == "UTC" {
        return Ok(TimeZone::UTC);
    }
    if let Some(offset) = text.strip_prefix("GMT").and_then(gmt_offset) {
        return Ok(if offset == Offset::UTC { TimeZone::UTC } else { TimeZone::fixed(offset) });
    }
    let error = |spelled| ZoneError { given: text.chars().take(MAX_NAME).collect(), spelled };
    let zone = by_name(text).ok_or_else(|| error(None))?;
    match zone.iana_name() {
        Some(name) if name == text => Ok(zone),
        Some(name) if !zone.is_unknown() => Err(error(Some(name.to_owned()))),
        _ => Err(error(None)),
    }
}

/// Longer than any name in the database, in characters.
const MAX_NAME: usize = 64;

fn by_name(name: &str) -> Option<TimeZone> {
    // The database of the system is a folder of files, so a name must not be able to leave it.
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '/' | '_' | '+' | '-');
    if name.len() > MAX_NAME
        || !name.starts_with(|c: char| c.is_ascii_alphabetic())
        || !name.chars().all(plain)
    {
        return None;
    }
    jiff::tz::db().get(name).or_else(|_| TimeZoneDatabase::bundled().get(name)).ok()
}

/// The text after `GMT`: nothing, or a sign and `h`, `hh`, `hmm`, `hhmm`, `h:mm`, `hh:mm`, as in
/// `java.util.TimeZone`.
fn gmt_offset(text: &str) -> Option<Offset> {
    if text.is_empty() {
        return Some(Offset::UTC);
    }
    let (sign, digits) = match text.strip_prefix('+') {
        Some(digits) => (1, digits),
        None => (-1, text.strip_prefix('-')?),
    };
    let (hours, minutes) = match digits.split_once(':') {
        Some((hours, minutes)) => (hours, minutes),
        None if digits.len() > 2 => digits.split_at_checked(digits.len().checked_sub(2)?)?,
        None => (digits, "00"),
    };
    let number = |text: &str| text.bytes().all(|b| b.is_ascii_digit()).then(|| text.parse::<i32>().ok())?;
    if !(1..=2).contains(&hours.len()) || minutes.len() != 2 {
        return None;
    }
    let (hours, minutes) = (number(hours)?, number(minutes)?);
    if hours > 23 || minutes > 59 {
        return None;
    }
    Offset::from_seconds(sign * (hours * 3600 + minutes * 60)).ok()
}
