//! Arithmetic and text as Java computes them, because peers compare results bit by bit. Pure.
//!
//! Source: protocol 5 ("Java arithmetic"), 0.2 (order of children), 6.3 (`split`, `trim`).

use std::cmp::Ordering;

/// `String.hashCode`: over UTF-16 code units, wrapping at 32 bits.
pub fn hash_code(text: &str) -> i32 {
    text.encode_utf16().fold(0_i32, |hash, unit| hash.wrapping_mul(31).wrapping_add(i32::from(unit)))
}

/// `String.compareTo`: by UTF-16 code units, so characters beyond U+FFFF come before U+E000 to U+FFFF.
pub fn compare(left: &str, right: &str) -> Ordering {
    left.encode_utf16().cmp(right.encode_utf16())
}

/// Sorts names of children in the order in which every Java peer sees them: descending (protocol 0.2).
///
/// The core passes instances to the strategies in this order, so the order decides which instance gets which
/// items.
pub fn sort_descending<T: AsRef<str>>(names: &mut [T]) {
    names.sort_by(|left, right| compare(right.as_ref(), left.as_ref()));
}

/// `%`: the remainder of a division that truncates toward zero, so it has the dividend's sign. `None` where Java
/// throws `ArithmeticException`.
pub fn remainder(dividend: i32, divisor: i32) -> Option<i32> {
    // `i32::MIN % -1` is 0 in Java; `checked_rem` refuses it.
    if divisor == -1 { Some(0) } else { dividend.checked_rem(divisor) }
}

/// `(int) value`: the low 32 bits of a long.
pub fn int_of_long(value: i64) -> i32 {
    let [a, b, c, d, ..] = value.to_le_bytes();
    i32::from_le_bytes([a, b, c, d])
}

/// `String.trim`: removes characters up to U+0020 at both ends. Other white space stays.
pub fn trim(text: &str) -> &str {
    text.trim_matches(|c| c <= ' ')
}

/// `String.split` with one plain character. Trailing empty parts are dropped, but a text without the
/// separator is one part even if it is empty.
pub fn split(text: &str, separator: char) -> Vec<&str> {
    if !text.contains(separator) {
        return vec![text];
    }
    let mut parts: Vec<&str> = text.split(separator).collect();
    while parts.last().is_some_and(|part| part.is_empty()) {
        parts.pop();
    }
    parts
}

/// `Double.toString`: shortest digits, plain notation from 10^-3 to below 10^7, else with an exponent.
pub fn double_to_string(value: f64) -> String {
    if value.is_nan() {
        return "NaN".to_owned();
    }
    let sign = if value.is_sign_negative() { "-" } else { "" };
    if value.is_infinite() {
        return format!("{sign}Infinity");
    }
    if value == 0.0 {
        return format!("{sign}0.0");
    }
    let magnitude = value.abs();
    if (1e-3..1e7).contains(&magnitude) {
        return format!("{sign}{magnitude:?}");
    }
    let scientific = format!("{magnitude:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let fraction = if digits.contains('.') { "" } else { ".0" };
    format!("{sign}{digits}{fraction}E{exponent}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_code_units_and_wraps() {
        assert_eq!(hash_code("polygenelubricants"), i32::MIN);
        assert_eq!(hash_code("\u{1F600}"), 1_772_899);
    }

    #[test]
    fn orders_by_code_units_not_by_code_points() {
        assert_eq!(compare("\u{1F600}", "\u{FF01}"), Ordering::Less);
        assert_eq!("\u{1F600}".cmp("\u{FF01}"), Ordering::Greater);
        let mut names = ["1", "10", "9", "\u{FF01}", "\u{1F600}"];
        sort_descending(&mut names);
        assert_eq!(names, ["\u{FF01}", "\u{1F600}", "9", "10", "1"]);
    }

    #[test]
    fn remainder_has_the_sign_of_the_dividend() {
        assert_eq!(remainder(-7, 3), Some(-1));
        assert_eq!(remainder(i32::MIN, -1), Some(0));
        assert_eq!(remainder(1, 0), None);
    }

    #[test]
    fn longs_are_cut_to_their_low_bits() {
        assert_eq!(int_of_long(1 << 32), 0);
        assert_eq!(int_of_long(-1), -1);
        assert_eq!(int_of_long(0x1_8000_0000), i32::MIN);
    }

    #[test]
    fn splits_as_java() {
        assert_eq!(split("", ','), [""]);
        assert_eq!(split(",", ','), [""; 0]);
        assert_eq!(split(",a,,", ','), ["", "a"]);
        assert_eq!(trim("\u{1}\t a\u{A0} "), "a\u{A0}");
    }

    #[test]
    fn prints_doubles_as_java() {
        let printed: Vec<String> =
            [1.5, 100.0, 1e7, 1.25e-4, 0.001, -0.0, 9_999_999.5, f64::NEG_INFINITY, f64::NAN]
                .map(double_to_string)
                .into();
        assert_eq!(
            printed,
            ["1.5", "100.0", "1.0E7", "1.25E-4", "0.001", "-0.0", "9999999.5", "-Infinity", "NaN"]
        );
    }
}
