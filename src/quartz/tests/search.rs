//! The next instant: hard cases, clock changes, and a bound on the search.

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use jiff::Timestamp;

use crate::quartz::{Expression, parse_time_zone};

fn next(text: &str, zone: &str, after: &str) -> Option<String> {
    let after: Timestamp = after.parse().unwrap();
    let next = Expression::parse(text).unwrap().next_after(after, &parse_time_zone(zone).unwrap());
    next.map(|next| next.to_string())
}

#[test]
fn the_next_instant_is_later_and_a_whole_second() {
    let every_second = |after| next("* * * * * ?", "UTC", after).unwrap();
    assert_eq!(every_second("2026-01-15T12:34:56Z"), "2026-01-15T12:34:57Z");
    assert_eq!(every_second("2026-01-15T12:34:56.999999999Z"), "2026-01-15T12:34:57Z");
    // The years of Quartz begin there.
    assert_eq!(every_second("1969-12-31T23:59:58.5Z"), "1970-01-01T00:00:00Z");
}

#[test]
fn skipped_and_repeated_wall_times() {
    let cases = [
        // Skipped, and not moved.
        ("0 30 2 * * ?", "America/New_York", "2026-03-07T20:00:00Z", "2026-03-09T06:30:00Z"),
        ("0 15 2 * * ?", "Australia/Lord_Howe", "2026-10-03T00:00:00Z", "2026-10-04T15:15:00Z"),
        // Twice: the later instant, also when the search begins between the two.
        ("0 30 2 * * ?", "Europe/Berlin", "2026-10-24T12:00:00Z", "2026-10-25T01:30:00Z"),
        ("0 0 * * * ?", "Europe/Berlin", "2026-10-25T00:30:00Z", "2026-10-25T02:00:00Z"),
        // A whole day is missing.
        ("0 0 12 * * ?", "Pacific/Apia", "2011-12-29T22:00:00Z", "2011-12-30T22:00:00Z"),
        // Midnight is missing.
        ("0 0 0 * * ?", "Africa/Cairo", "2026-04-23T12:00:00Z", "2026-04-24T21:00:00Z"),
        // As in Quartz: but a W day is moved,
        ("0 0 0 25W * ?", "Africa/Cairo", "2026-04-22T12:00:00Z", "2026-04-23T22:00:00Z"),
        // an hour whose begin is skipped is not entered (clocks go from 02:45 to 03:45),
        ("0 50 3 * * ?", "Pacific/Chatham", "2026-09-26T00:00:00Z", "2026-09-27T14:05:00Z"),
        // nor is the hour behind a gap of two hours (clocks go from 01:00 to 03:00).
        ("0 30 * * * ?", "Antarctica/Troll", "2026-03-29T00:30:00Z", "2026-03-29T02:30:00Z"),
    ];
    for (text, zone, after, expected) in cases {
        assert_eq!(next(text, zone, after).as_deref(), Some(expected), "{text} in {zone} after {after}");
    }
}

#[test]
fn the_search_ends_after_a_hundred_years() {
    let new_year = |year| next(&format!("0 0 0 1 1 ? {year}"), "UTC", "2026-06-01T00:00:00Z");
    assert_eq!(new_year("2126").as_deref(), Some("2126-01-01T00:00:00Z"));
    assert_eq!(new_year("2127"), None);
    assert_eq!(new_year("2026"), None);
}

#[test]
fn dates_that_never_come_end_quickly() {
    let impossible = [
        ("0 0 0 30 2 ?", "UTC"),
        ("0 0 0 31 4,6,9,11 ?", "Europe/Berlin"),
        ("0 0 0 31W 2,4,6 ?", "America/New_York"),
        ("0 0 0 L-30 2-4/2 ?", "UTC"),
        ("0 0 0 L-29W 2 ?", "UTC"),
        ("* * * * * ? 1970-2025", "UTC"),
        ("* * * 29 2 ? 2027/4", "UTC"),
        ("* * * 31 12 ? 2147483647", "UTC"),
        // The second Sunday of March, when 02:30 is skipped.
        ("0 30 2 ? 3 1#2", "America/New_York"),
        ("59 59 23 30 12 ? 2011", "Pacific/Apia"),
    ];
    let (done, all_done) = mpsc::channel();
    thread::spawn(move || {
        for (text, zone) in impossible {
            let after = if zone == "Pacific/Apia" { "2011-01-01T00:00:00Z" } else { "2026-01-15T12:34:56Z" };
            done.send((text, next(text, zone, after))).unwrap();
        }
    });
    for (text, zone) in impossible {
        let answer = all_done.recv_timeout(Duration::from_secs(10));
        assert_eq!(answer, Ok((text, None)), "{text} in {zone}");
    }
}

#[test]
fn the_ends_of_time_are_no_panic() {
    for text in ["* * * * * ?", "0 0 0 L 12 ?", "0 0 0 1W 1 ?", "59 59 23 ? 12 6#5 *"] {
        for zone in ["UTC", "GMT+23:59", "GMT-23:59", "Pacific/Apia"] {
            let zone = parse_time_zone(zone).unwrap();
            let expression = Expression::parse(text).unwrap();
            assert_eq!(expression.next_after(Timestamp::MAX, &zone), None);
            for after in [Timestamp::MIN, Timestamp::UNIX_EPOCH, Timestamp::MAX - Duration::from_secs(86_400)]
            {
                assert!(
                    expression.next_after(after, &zone).is_none_or(|next| next > after),
                    "{text} {after}"
                );
            }
        }
    }
}

#[test]
fn an_expression_is_its_text() {
    let text = " 0 0\t9 ? * mon-FRI ";
    let expression: Expression = text.parse().unwrap();
    assert_eq!(expression.to_string(), text);
    assert_eq!(expression, Expression::parse(text).unwrap());
}
