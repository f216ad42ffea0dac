//! The form of a duration in Sidekeeper's properties: `250ms`, `90s`, `5m`, `24h`, or a bare number of
//! milliseconds.

use std::ops::RangeInclusive;
use std::time::Duration;

/// Reads a duration. `None`: the text is no duration, or it is out of range.
pub(super) fn parse(text: &str, allowed: RangeInclusive<Duration>) -> Option<Duration> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at_checked(digits)?;
    let milliseconds_each = match unit {
        "" | "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        _ => return None,
    };
    let milliseconds = number.parse::<u64>().ok()?.checked_mul(milliseconds_each)?;
    Some(Duration::from_millis(milliseconds)).filter(|time| allowed.contains(time))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_a_number_and_one_of_four_units() {
        let read = |text: &str| parse(text, Duration::from_millis(10)..=Duration::from_secs(3600));
        for (text, millis) in
            [("10", 10), ("250ms", 250), ("90s", 90_000), ("5m", 300_000), ("1h", 3_600_000)]
        {
            assert_eq!(read(text), Some(Duration::from_millis(millis)), "{text}");
        }
        for text in
            ["", "s", "9", "61m", "5 s", "-1", "+1s", "1d", "1.5s", "99999999999999999999h", "5124095576031h"]
        {
            assert_eq!(read(text), None, "{text}");
        }
    }
}
