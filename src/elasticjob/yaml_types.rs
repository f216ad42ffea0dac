//! The meaning of scalars in YAML 1.1, as SnakeYAML reads them for Java. Pure.
//!
//! Two uses. For fields with a type (`bool`, `int`) the type decides, and quotes do not matter. For values of
//! `props` the text of a plain scalar decides the type, and Java then prints the value (protocol 1.4 rule 3).

use crate::elasticjob::java;

/// YAML 1.1's `bool`, in any case as SnakeYAML reads typed fields.
pub(super) fn boolean(text: &str) -> Option<bool> {
    match text.to_ascii_lowercase().as_str() {
        "yes" | "true" | "on" => Some(true),
        "no" | "false" | "off" => Some(false),
        _ => None,
    }
}

/// YAML 1.1's `int`: decimal, `0` octal, `0x`, `0b`, base 60 (`1:30` is 90), with `_` anywhere.
pub(super) fn integer(text: &str) -> Option<i128> {
    let digits = text.replace('_', "");
    let (negative, digits) = match digits.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, digits.strip_prefix('+').unwrap_or(&digits)),
    };
    if digits.starts_with(['-', '+']) {
        return None;
    }
    let magnitude = if digits == "0" {
        0
    } else if let Some(binary) = digits.strip_prefix("0b") {
        radix(binary, 2)?
    } else if let Some(hexadecimal) = digits.strip_prefix("0x") {
        radix(hexadecimal, 16)?
    } else if let Some(octal) = digits.strip_prefix('0') {
        radix(octal, 8)?
    } else {
        digits.split(':').try_fold(0_i128, |sum, part| sum.checked_mul(60)?.checked_add(radix(part, 10)?))?
    };
    Some(if negative { -magnitude } else { magnitude })
}

/// `from_str_radix` without its signs.
fn radix(digits: &str, radix: u32) -> Option<i128> {
    if digits.starts_with(['-', '+']) { None } else { i128::from_str_radix(digits, radix).ok() }
}

/// The value that Java makes of a value in `props`.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Property {
    /// Java makes this text.
    Text(String),
    /// A date, whose text depends on the locale and time zone of the peer that reads it.
    Date,
    /// A number too large for this program to compute.
    Huge,
}

/// Reads a plain scalar of `props`. The caller has handled null.
///
/// Booleans become `true` and `false`. Integers become decimal (`0123` is 83, `12:30` is 750). Other numbers
/// get the form of Java's `Double` (`1.50` is 1.5, `1e3` is 1000.0). All other texts stay.
pub(super) fn property(text: &str) -> Property {
    if is_implicit_boolean(text) {
        return Property::Text(boolean(text).unwrap_or_default().to_string());
    }
    if is_implicit_integer(text) {
        return integer(text).map_or(Property::Huge, |value| Property::Text(value.to_string()));
    }
    if let Some(value) = implicit_float(text) {
        return Property::Text(java::double_to_string(value));
    }
    if is_timestamp(text) { Property::Date } else { Property::Text(text.to_owned()) }
}

fn is_implicit_boolean(text: &str) -> bool {
    let mut chars = text.chars();
    chars.next();
    let rest = chars.as_str();
    let uniform =
        text.chars().all(|c| c.is_ascii_uppercase()) || !rest.contains(|c: char| c.is_ascii_uppercase());
    uniform && boolean(text).is_some()
}

fn is_implicit_integer(text: &str) -> bool {
    let digits = text.strip_prefix(['-', '+']).unwrap_or(text);
    let all = |digits: &str, allowed: fn(char) -> bool| {
        digits.chars().all(|c| c == '_' || allowed(c)) && digits.chars().any(|c| c != '_')
    };
    if let Some(binary) = digits.strip_prefix("0b") {
        return all(binary, |c| matches!(c, '0' | '1'));
    }
    if let Some(hexadecimal) = digits.strip_prefix("0x") {
        return all(hexadecimal, |c| c.is_ascii_hexdigit());
    }
    if let Some(octal) = digits.strip_prefix('0') {
        return octal.is_empty() || all(octal, |c| matches!(c, '0'..='7'));
    }
    let mut parts = digits.split(':');
    let first = parts.next().unwrap_or_default();
    first.starts_with(|c: char| c.is_ascii_digit())
        && all(first, |c| c.is_ascii_digit())
        && parts.all(is_base_60_digit)
}

fn is_base_60_digit(part: &str) -> bool {
    matches!(part.as_bytes(), [b'0'..=b'9'] | [b'0'..=b'5', b'0'..=b'9'])
}

fn implicit_float(text: &str) -> Option<f64> {
    let (sign, digits) = match text.strip_prefix('-') {
        Some(rest) => (-1.0, rest),
        None => (1.0, text.strip_prefix('+').unwrap_or(text)),
    };
    match digits {
        ".inf" | ".Inf" | ".INF" => return Some(sign * f64::INFINITY),
        ".nan" | ".NaN" | ".NAN" => return (digits.len() == text.len()).then_some(f64::NAN),
        _ => {}
    }
    if digits.contains(':') {
        return base_60_float(digits).map(|value| sign * value);
    }
    let (mantissa, exponent) = match digits.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, Some(exponent)),
        None => (digits, None),
    };
    let (whole, fraction) = match mantissa.split_once('.') {
        Some((whole, fraction)) => (whole, Some(fraction)),
        None => (mantissa, None),
    };
    let is_digits = |part: &str| part.chars().all(|c| c == '_' || c.is_ascii_digit());
    let begins_with_digit = |part: &str| part.starts_with(|c: char| c.is_ascii_digit());
    let well_formed = is_digits(whole)
        && fraction.is_none_or(is_digits)
        && (fraction.is_some() || exponent.is_some())
        && match fraction {
            // `.5` cannot have a sign.
            Some(fraction) if whole.is_empty() => begins_with_digit(fraction) && digits.len() == text.len(),
            _ => begins_with_digit(whole),
        }
        && exponent.is_none_or(|exponent| {
            let digits = exponent.strip_prefix(['-', '+']).unwrap_or(exponent);
            !digits.is_empty() && digits.chars().all(|c| c.is_ascii_digit())
        });
    if !well_formed {
        return None;
    }
    digits.replace('_', "").parse::<f64>().ok().map(|value| sign * value)
}

/// `1:30.5` is 90.5.
fn base_60_float(digits: &str) -> Option<f64> {
    let (whole, fraction) = digits.split_once('.')?;
    let mut parts = whole.split(':');
    let first = parts.next()?;
    let first_is_number = first.starts_with(|c: char| c.is_ascii_digit())
        && first.chars().all(|c| c == '_' || c.is_ascii_digit());
    if !first_is_number
        || !parts.all(is_base_60_digit)
        || !fraction.chars().all(|c| c == '_' || c.is_ascii_digit())
    {
        return None;
    }
    let digits = digits.replace('_', "");
    digits.split(':').try_fold(0.0, |sum, part| Some(sum * 60.0 + part.parse::<f64>().ok()?))
}

/// `2024-01-31` or `2024-1-31 12:00:00.5 +1:00`.
fn is_timestamp(text: &str) -> bool {
    let (date, time) = match text.find(['T', 't', ' ', '\t']) {
        Some(at) => text.split_at_checked(at).unwrap_or((text, "")),
        None => (text, ""),
    };
    let parts: Vec<&str> = date.split('-').collect();
    let [year, month, day] = parts.as_slice() else { return false };
    let is_number = |part: &str, lengths: &[usize]| {
        lengths.contains(&part.len()) && part.bytes().all(|b| b.is_ascii_digit())
    };
    if !is_number(year, &[4]) {
        return false;
    }
    if time.is_empty() {
        return is_number(month, &[2]) && is_number(day, &[2]);
    }
    let clock = time.strip_prefix(['T', 't']).unwrap_or_else(|| time.trim_start_matches([' ', '\t']));
    let parts: Vec<&str> = clock.splitn(3, ':').collect();
    let [hour, minute, rest] = parts.as_slice() else { return false };
    is_number(month, &[1, 2])
        && is_number(day, &[1, 2])
        && is_number(hour, &[1, 2])
        && is_number(minute, &[2])
        && is_seconds_and_zone(rest)
}

fn is_seconds_and_zone(text: &str) -> bool {
    let Some((seconds, rest)) = text.split_at_checked(2) else { return false };
    let rest = match rest.strip_prefix('.') {
        Some(fraction) => fraction.trim_start_matches(|c: char| c.is_ascii_digit()),
        None => rest,
    };
    let zone = rest.trim_start_matches([' ', '\t']);
    let zone_is_known = zone.is_empty()
        || zone == "Z"
        || zone.strip_prefix(['-', '+']).is_some_and(|offset| {
            offset.starts_with(|c: char| c.is_ascii_digit())
                && offset.chars().all(|c| c == ':' || c.is_ascii_digit())
                && offset.len() <= 5
        });
    seconds.bytes().all(|b| b.is_ascii_digit()) && zone_is_known
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn typed_fields_take_all_spellings_of_yaml_1_1() {
        for text in ["yes", "YES", "on", "On", "true", "tRuE"] {
            assert_eq!(boolean(text), Some(true), "{text}");
        }
        for text in ["no", "OFF", "false"] {
            assert_eq!(boolean(text), Some(false), "{text}");
        }
        for text in ["", "y", "n", "1", "0", "null"] {
            assert_eq!(boolean(text), None, "{text}");
        }
        for (text, value) in [
            ("0", 0),
            ("-0", 0),
            ("+7", 7),
            ("0123", 83),
            ("-0b1_01", -5),
            ("0xFf", 255),
            ("1_000", 1000),
            ("1:30", 90),
            ("-190:20:30", -685_230),
        ] {
            assert_eq!(integer(text), Some(value), "{text}");
        }
        for text in ["", "-", "08", "0o17", "1.0", "--1", "+-1", "0x", "1e3", "0x-1", "a", "\u{661}"] {
            assert_eq!(integer(text), None, "{text}");
        }
    }

    #[test]
    fn properties_get_the_text_that_java_prints() {
        for (text, printed) in [
            ("yes", "true"),
            ("True", "true"),
            ("tRue", "tRue"),
            ("y", "y"),
            ("OFF", "false"),
            ("0123", "83"),
            ("08", "08"),
            ("0o17", "0o17"),
            ("1_000", "1000"),
            ("12:30", "750"),
            ("12:60", "12:60"),
            ("1.50", "1.5"),
            ("1e3", "1000.0"),
            ("1E10", "1.0E10"),
            (".5", "0.5"),
            ("-.5", "-.5"),
            ("1.", "1.0"),
            ("-1:30.5", "-90.5"),
            (".inf", "Infinity"),
            ("-.INF", "-Infinity"),
            (".NaN", "NaN"),
            ("-.nan", "-.nan"),
            ("1.2.3", "1.2.3"),
            ("10.0.0.1", "10.0.0.1"),
            ("+", "+"),
            ("0x_", "0x_"),
            ("1e", "1e"),
            ("text", "text"),
            ("2024-1-1", "2024-1-1"),
            ("2024-01-01 x", "2024-01-01 x"),
            ("170141183460469231731687303715884105727", "170141183460469231731687303715884105727"),
        ] {
            assert_eq!(property(text), Property::Text(printed.to_owned()), "{text}");
        }
        assert_eq!(property("170141183460469231731687303715884105728"), Property::Huge);
        for text in
            ["2024-01-31", "2024-1-31T1:02:03", "2024-01-31 01:02:03.5 +01:00", "2024-01-31t01:02:03Z"]
        {
            assert_eq!(property(text), Property::Date, "{text}");
        }
    }
}
