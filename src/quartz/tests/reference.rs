//! The search against a slow one that tries every second.
//!
//! The test generates expressions together with their values. It leaves out the oddities of Quartz (see
//! `search.rs` and `days.rs`), which the vectors cover: `W`, and minutes without 0 in a zone that skips half
//! an hour.

use jiff::civil::{Date, DateTime};
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};

use super::Random;
use crate::quartz::{Expression, parse_time_zone};

/// How far the slow search goes.
const WINDOW: i64 = 40 * 3600;

/// A zone, and instants near its clock changes.
const PLACES: [(&str, &[&str]); 6] = [
    ("UTC", &["2026-12-31T23:00:00Z", "2027-02-28T12:00:00Z", "2028-02-29T00:00:00Z"]),
    ("America/New_York", &["2026-03-08T07:00:00Z", "2026-11-01T06:00:00Z"]),
    ("Europe/Berlin", &["2026-03-29T01:00:00Z", "2026-10-25T01:00:00Z"]),
    ("Australia/Lord_Howe", &["2026-04-04T15:00:00Z", "2026-10-03T15:30:00Z"]),
    ("Africa/Cairo", &["2026-04-23T22:00:00Z", "2026-10-29T21:00:00Z"]),
    ("Pacific/Apia", &["2011-04-02T14:00:00Z", "2011-09-24T14:00:00Z", "2011-12-30T10:00:00Z"]),
];

#[test]
fn the_search_agrees_with_a_test_of_every_second() {
    let mut random = Random(2_026);
    let (mut found, mut none) = (0, 0);
    for round in 0..1_000 {
        let (name, instants) = *random.one_of(&PLACES);
        let zone = parse_time_zone(name).unwrap();
        let around: Timestamp = random.one_of(instants).parse().unwrap();
        let after = around + SignedDuration::from_millis(random.between(-30 * 3_600_000, 6 * 3_600_000));
        let schedule = Schedule::random(&mut random);
        let expected = schedule.slow_next(after, &zone);

        let expression = Expression::parse(&schedule.text).unwrap();
        let given = expression.next_after(after, &zone);
        let window_end = after + SignedDuration::from_secs(WINDOW);
        let given = given.filter(|given| *given <= window_end);
        assert_eq!(given, expected, "round {round}: `{}` in {name} after {after}", schedule.text);
        if expected.is_some() { found += 1 } else { none += 1 }
    }
    assert!(found > 400 && none > 100, "of both kinds, enough: {found}, {none}");
}

/// An expression and its meaning.
struct Schedule {
    text: String,
    seconds: Vec<i64>,
    minutes: Vec<i64>,
    hours: Vec<i64>,
    months: Vec<i64>,
    day: Day,
}

enum Day {
    OfMonth(Vec<i64>),
    BeforeLast(i64),
    OfWeek(Vec<i64>),
    LastOfWeek(i64),
    NthOfWeek(i64, i64),
}

impl Schedule {
    fn random(random: &mut Random) -> Self {
        let (seconds_text, seconds) = field(random, 0, 59);
        let (mut minutes_text, mut minutes) = field(random, 0, 59);
        if !minutes.contains(&0) {
            minutes_text += ",0";
            minutes.push(0);
        }
        let (hours_text, hours) = field(random, 0, 23);
        let (of_month, of_week, day) = Day::random(random);
        let (months_text, months) = match random.between(0, 3) {
            0 => field(random, 1, 12),
            _ => ("*".to_owned(), (1..=12).collect()),
        };
        let fields = [seconds_text, minutes_text, hours_text, of_month, months_text, of_week];
        Self { text: fields.join(" "), seconds, minutes, hours, months, day }
    }

    fn slow_next(&self, after: Timestamp, zone: &TimeZone) -> Option<Timestamp> {
        let first = after.as_millisecond().div_euclid(1_000) + 1;
        let earliest = zone.to_datetime(Timestamp::from_second(first).unwrap());
        (first..=first + WINDOW)
            // Offsets are whole minutes here, so no time zone is needed.
            .filter(|second| self.seconds.contains(&second.rem_euclid(60)))
            .map(|second| Timestamp::from_second(second).unwrap())
            .take_while(|instant| *instant <= after + SignedDuration::from_secs(WINDOW))
            .find(|instant| {
                let wall = zone.to_datetime(*instant);
                // Of a wall time that occurs twice, the later instant. Wall time does not go back.
                self.names(wall)
                    && wall >= earliest
                    && zone.to_ambiguous_timestamp(wall).later().unwrap() == *instant
            })
    }

    fn names(&self, wall: DateTime) -> bool {
        self.seconds.contains(&wall.second().into())
            && self.minutes.contains(&wall.minute().into())
            && self.hours.contains(&wall.hour().into())
            && self.months.contains(&wall.month().into())
            && self.day.names(wall.date())
    }
}

impl Day {
    /// The day-of-month field, the day-of-week field and their meaning.
    fn random(random: &mut Random) -> (String, String, Self) {
        let none = || "?".to_owned();
        let weekday = random.between(1, 7);
        match random.between(0, 9) {
            0..=3 => {
                let (text, days) = field(random, 1, 31);
                (text, none(), Self::OfMonth(days))
            }
            4 => {
                let days = random.between(0, 3);
                (if days == 0 { "L".to_owned() } else { format!("L-{days}") }, none(), Self::BeforeLast(days))
            }
            5..=7 => {
                let (text, days) = field(random, 1, 7);
                (none(), text, Self::OfWeek(days))
            }
            8 => (none(), format!("{weekday}L"), Self::LastOfWeek(weekday)),
            _ => {
                let nth = random.between(1, 5);
                (none(), format!("{weekday}#{nth}"), Self::NthOfWeek(weekday, nth))
            }
        }
    }

    fn names(&self, date: Date) -> bool {
        let day = i64::from(date.day());
        let last = i64::from(date.days_in_month());
        let weekday = i64::from(date.weekday().to_sunday_one_offset());
        match self {
            Self::OfMonth(days) => days.contains(&day),
            Self::BeforeLast(days) => day == last - days,
            Self::OfWeek(weekdays) => weekdays.contains(&weekday),
            Self::LastOfWeek(wanted) => weekday == *wanted && day + 7 > last,
            Self::NthOfWeek(wanted, nth) => weekday == *wanted && (day - 1) / 7 + 1 == *nth,
        }
    }
}

/// A field with values from `min` to `max`, and its values.
fn field(random: &mut Random, min: i64, max: i64) -> (String, Vec<i64>) {
    let (first, last) = (random.between(min, max), random.between(min, max));
    let step = random.between(1, (max - min) / 2);
    match random.between(0, 7) {
        0..=2 => ("*".to_owned(), (min..=max).collect()),
        3 => (first.to_string(), vec![first]),
        4 => (format!("{first},{last}"), vec![first, last]),
        5 => (format!("{first}/{step}"), stepped(first, max, step, min, max)),
        6 => (format!("*/{step}"), stepped(min, max, step, min, max)),
        _ => (format!("{first}-{last}/{step}"), stepped(first, last, step, min, max)),
    }
}

/// Counts from `first` one by one to `last`, from the end of the field on to its beginning, and takes each `step`th.
fn stepped(first: i64, last: i64, step: i64, min: i64, max: i64) -> Vec<i64> {
    let (mut values, mut value, mut count) = (Vec::new(), first, 0);
    loop {
        if count % step == 0 {
            values.push(value);
        }
        if value == last {
            return values;
        }
        value = if value == max { min } else { value + 1 };
        count += 1;
    }
}
