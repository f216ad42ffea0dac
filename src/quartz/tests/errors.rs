//! The content of an error: the field, the place in the text, the given text and the allowed form.

use expect_test::expect;

use super::Random;
use crate::quartz::{Expression, Field, parse_time_zone};

#[test]
fn an_error_names_the_place_the_text_and_the_allowed_form() {
    let texts = [
        "",
        "* * * * *",
        "0 0 12 * * ? * *",
        "@daily",
        "60 * * * * ?",
        "*/60 * * * * ?",
        "*/ * * * * ?",
        "? * * * * ?",
        "*5 * * * * ?",
        "0,,5 * * * * ?",
        "1-2-3 * * * * ?",
        "99999999999 * * * * ?",
        "0 5- * * * ?",
        "0 0 24 * * ?",
        "0 0 9-24 * * ?",
        "0 0 0 0 * ?",
        "0 0 0 1,2,32W * ?",
        "0 0 0 L-31 * ?",
        "0 0 0 5L * ?",
        "0 0 0 1,? * ?",
        "0 0 0 * JANUARY ?",
        "0 0 0 * 13 ?",
        "0 0 0 ? * MONDAY",
        "0 0 0 ? * 8L",
        "0 0 0 ? * 6#6",
        "0 0 0 ? * FRI#",
        "0 0 0 ? * MON,6L",
        "0 0 0 ? * 2#1,4#3",
        "0 0 0 1 * MON",
        "0 0 0 ? * ?",
        "0 0 0 1 1 ? ABC",
        "0 0 0 1 1 ? 2030-2026",
        "0\t0\t\u{1}0 1 1 ? 20\u{1}26",
    ];
    let mut table = String::new();
    for text in texts {
        let error = Expression::parse(text).unwrap_err();
        table += &format!("{:?} at {:?}\n    {error}\n", error.field, error.span);
    }
    expect![[r#"
        None at 0..0
            cron expression ``: must be 6 or 7 fields (seconds, minutes, hours, day of month, month, day of week, year), not 0
        None at 0..9
            cron expression `* * * * *`: must be 6 or 7 fields (seconds, minutes, hours, day of month, month, day of week, year), not 5
        None at 0..16
            cron expression `0 0 12 * * ? * *`: must be 6 or 7 fields (seconds, minutes, hours, day of month, month, day of week, year), not 8
        None at 0..6
            cron expression `@daily`: must be 6 or 7 fields (seconds, minutes, hours, day of month, month, day of week, year), not 1
        Some(Seconds) at 0..2
            seconds `60` in `60 * * * * ?`: must be 0 to 59
        Some(Seconds) at 2..4
            seconds `60` in `*/60 * * * * ?`: must be at most 59 after `/`
        Some(Seconds) at 2..2
            seconds `` in `*/ * * * * ?`: must be a number after `/`
        Some(Seconds) at 0..1
            seconds `?` in `? * * * * ?`: must be `*`, a number 0 to 59, a range `10-20` or a step `*/5`, `0/5`, `10-20/5`
        Some(Seconds) at 0..2
            seconds `*5` in `*5 * * * * ?`: must be `*`, a number 0 to 59, a range `10-20` or a step `*/5`, `0/5`, `10-20/5`
        Some(Seconds) at 2..2
            seconds `` in `0,,5 * * * * ?`: must be `*`, a number 0 to 59, a range `10-20` or a step `*/5`, `0/5`, `10-20/5`
        Some(Seconds) at 0..5
            seconds `1-2-3` in `1-2-3 * * * * ?`: must be `*`, a number 0 to 59, a range `10-20` or a step `*/5`, `0/5`, `10-20/5`
        Some(Seconds) at 0..11
            seconds `99999999999` in `99999999999 * * * * ?`: must be 0 to 59
        Some(Minutes) at 2..4
            minutes `5-` in `0 5- * * * ?`: must be `*`, a number 0 to 59, a range `10-20` or a step `*/5`, `0/5`, `10-20/5`
        Some(Hours) at 4..6
            hours `24` in `0 0 24 * * ?`: must be 0 to 23
        Some(Hours) at 4..8
            hours `9-24` in `0 0 9-24 * * ?`: must be 0 to 23
        Some(DayOfMonth) at 6..7
            day of month `0` in `0 0 0 0 * ?`: must be 1 to 31
        Some(DayOfMonth) at 10..13
            day of month `32W` in `0 0 0 1,2,32W * ?`: must be 1 to 31
        Some(DayOfMonth) at 8..10
            day of month `31` in `0 0 0 L-31 * ?`: must be 0 to 30 after `L-`
        Some(DayOfMonth) at 6..8
            day of month `5L` in `0 0 0 5L * ?`: must be `?`, `*`, a number 1 to 31, a range `10-20`, a step `*/5`, `1/5`, `10-20/5`, or one of `L`, `L-3`, `LW`, `L-3W`, `15W`
        Some(DayOfMonth) at 8..9
            day of month `?` in `0 0 0 1,? * ?`: must be without `?` when there are several
        Some(Month) at 8..15
            month `JANUARY` in `0 0 0 * JANUARY ?`: must be `*`, a number 1 to 12 or a name JAN to DEC, a range `3-5`, `MAR-MAY` or a step `*/3`, `1/3`, `1-6/2`
        Some(Month) at 8..10
            month `13` in `0 0 0 * 13 ?`: must be 1 to 12 or JAN to DEC
        Some(DayOfWeek) at 10..16
            day of week `MONDAY` in `0 0 0 ? * MONDAY`: must be `?`, `*`, a number 1 (Sunday) to 7 (Saturday) or a name SUN to SAT, a range `2-6`, `MON-FRI`, a step `*/2`, `2-6/2`, or one of `L`, `6L`, `FRIL`, `6#3`, `FRI#3`
        Some(DayOfWeek) at 10..12
            day of week `8L` in `0 0 0 ? * 8L`: must be 1 (Sunday) to 7 (Saturday) or SUN to SAT
        Some(DayOfWeek) at 12..13
            day of week `6` in `0 0 0 ? * 6#6`: must be 1 to 5 after `#`
        Some(DayOfWeek) at 14..14
            day of week `` in `0 0 0 ? * FRI#`: must be 1 to 5 after `#`
        Some(DayOfWeek) at 14..16
            day of week `6L` in `0 0 0 ? * MON,6L`: must be without `?`, `L` and `#` when there are several
        Some(DayOfWeek) at 10..13
            day of week `2#1` in `0 0 0 ? * 2#1,4#3`: must be without `?`, `L` and `#` when there are several
        Some(DayOfWeek) at 10..13
            day of week `MON` in `0 0 0 1 * MON`: must be `?` when the day of month is given (or the day of month `?`)
        Some(DayOfWeek) at 10..11
            day of week `?` in `0 0 0 ? * ?`: must be given when the day of month is `?`
        Some(Year) at 12..15
            year `ABC` in `0 0 0 1 1 ? ABC`: must be `*`, a year such as 2026, a range `2026-2030` or a step `2026/2`, `2026-2030/2`
        Some(Year) at 12..21
            year `2030-2026` in `0 0 0 1 1 ? 2030-2026`: must be a range that ends in the year it begins or later
        Some(Year) at 13..18
            year `20\u{1}26` in `0\t0\t\u{1}0 1 1 ? 20\u{1}26`: must be `*`, a year such as 2026, a range `2026-2030` or a step `2026/2`, `2026-2030/2`
    "#]].assert_eq(&table);
}

#[test]
fn an_error_points_at_the_wrong_part() {
    let error = Expression::parse("0 0 9-17,25 * * ?").unwrap_err();
    assert_eq!(error.field, Some(Field::Hours));
    assert_eq!(error.span, 9..11);
    assert_eq!(error.given, "25");
    assert_eq!(error.allowed, "0 to 23");
    assert_eq!(error.text, "0 0 9-17,25 * * ?");

    // The error is about the first wrong field.
    assert_eq!(Expression::parse("0 60 24 32 13 8").unwrap_err().field, Some(Field::Minutes));
}

#[test]
fn an_error_does_not_grow_with_the_given_text() {
    let long = format!("0 0 {} * * ?", "9,".repeat(5_000));
    let error = Expression::parse(&long).unwrap_err();
    assert_eq!(error.field, None);
    assert!(error.to_string().len() < 500, "{error}");

    let most = format!("0 0 {}9 * * ?", "9,".repeat((Expression::MAX_LENGTH - 13) / 2));
    assert!(most.len() <= Expression::MAX_LENGTH);
    assert!(Expression::parse(&most).is_ok());

    let error = Expression::parse(&format!("0 0 {} * * ?", "x".repeat(900))).unwrap_err();
    assert_eq!(error.field, Some(Field::Hours));
    assert_eq!(error.span, 4..904);
    assert!(error.to_string().len() < 700, "{error}");
}

/// Each text gives an expression that can be used, or an error that points into the text.
#[test]
fn mutated_text_never_panics() {
    let valid = [
        "0 0/5 14,18 3-9,L-3W,15W JAN-MAR/2 ? 2026-2030/2",
        "*/5 10-20/3 22-4 ? * FRI#3 *",
        "0 15 10 ? 1,6 6L 2028/4",
        "0 0 0 LW * ?",
    ];
    let characters: Vec<char> =
        "0123456789*/,-?LW# \tJANFRISUNMO\u{0}\u{e9}\u{2014}\u{1f4a5}".chars().collect();
    let zone = parse_time_zone("America/New_York").unwrap();
    let after = "2026-03-08T06:30:00Z".parse().unwrap();
    let (mut random, mut accepted) = (Random(0x5eed), 0);
    for _ in 0..20_000 {
        let mut text: Vec<char> = random.one_of(&valid).chars().collect();
        for _ in 0..random.between(1, 4) {
            let at = usize::try_from(random.between(0, i64::try_from(text.len()).unwrap() - 1)).unwrap();
            match random.between(0, 2) {
                0 => text[at] = *random.one_of(&characters),
                1 => text.insert(at, *random.one_of(&characters)),
                _ => drop(text.remove(at)),
            }
        }
        let text: String = text.into_iter().collect();
        match Expression::parse(&text) {
            Ok(expression) => {
                accepted += 1;
                assert!(expression.next_after(after, &zone).is_none_or(|next| next > after), "{text:?}");
                assert!(!expression.describe().is_empty(), "{text:?}");
            }
            Err(error) => {
                assert!(text.get(error.span.clone()).is_some(), "{text:?}: {error:?}");
                assert!(!error.to_string().contains(char::is_control), "{text:?}: {error:?}");
            }
        }
    }
    assert!((1_000..19_000).contains(&accepted), "of both kinds, enough: {accepted}");
}
