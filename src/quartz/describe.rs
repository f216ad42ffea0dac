//! An expression in words.
//!
//! The words depend on the meaning of an expression, not on its spelling: `0 0 9 ? * 2,3,4,5,6` and
//! `0 0 9 ? * MON-FRI` have the same words. Consecutive numbers are a range, which may wrap as in an
//! expression (`22 to 4`). Numbers at equal distances are a range in steps. A field that allows every value
//! is left out where its words would add nothing.

use super::Expression;
use super::days::{Days, DaysOfMonth};
use super::set::Set;
use super::years::{YearSpan, Years};

/// The smallest and the largest value of a field.
type Bounds = (i8, i8);

/// Seconds and minutes.
const SIXTY: Bounds = (0, 59);
const HOURS: Bounds = (0, 23);
const DAYS: Bounds = (1, 31);
const MONTHS: Bounds = (1, 12);
const WEEKDAYS: Bounds = (1, 7);
/// For lists of days of the month. 0 is no day, so a range never seems to wrap. Months differ in length.
const DAYS_IN_ORDER: Bounds = (0, 31);

/// The most times of day that are listed one by one when only their hours differ.
const MAX_LISTED_HOURS: u32 = 12;
/// The most times of day that are listed when their minutes or seconds differ.
const MAX_LISTED: u32 = 4;

/// See [`Expression::describe`].
pub(super) fn expression(expression: &Expression) -> String {
    format!("{}{}{}", times(expression), days(expression), years(&expression.years))
}

fn times(expression: &Expression) -> String {
    let &Expression { seconds, minutes, hours, .. } = expression;
    if let (Some(second), Some(minute)) = (seconds.single(), minutes.single()) {
        if is_all(hours, HOURS) && minute == 0 && second == 0 {
            return "every hour".to_owned();
        }
        if !is_all(hours, HOURS)
            && let [Part { first, last, step }] = parts(hours, HOURS).as_slice()
            && first != last
        {
            let (first, last) = (clock(*first, minute, second), clock(*last, minute, second));
            return format!("every {}from {first} to {last}", counted(*step, "hour"));
        }
    }
    let of_an_hour = seconds.len() * minutes.len();
    let limit = if of_an_hour == 1 { MAX_LISTED_HOURS } else { MAX_LISTED };
    if of_an_hour * hours.len() <= limit {
        let times = hours.iter().flat_map(|hour| {
            minutes
                .iter()
                .flat_map(move |minute| seconds.iter().map(move |second| clock(hour, minute, second)))
        });
        return format!("at {}", joined(times.collect()));
    }
    repeated(seconds, minutes, hours)
}

/// Times of which there are too many to list, the finest unit first.
fn repeated(seconds: Set, minutes: Set, hours: Set) -> String {
    let (mut words, regular) = if seconds.single() == Some(0) {
        lead(minutes, "minute")
    } else {
        let (mut words, mut regular) = lead(seconds, "second");
        if !is_all(minutes, SIXTY) {
            words.push_str(&format!(" of {}", numbers(minutes, SIXTY, "minute")));
            regular = false;
        } else if !regular {
            words.push_str(" of every minute");
            regular = true;
        }
        (words, regular)
    };
    if !is_all(hours, HOURS) {
        words.push_str(&format!(" during {}", numbers(hours, HOURS, "hour")));
    } else if !regular {
        words.push_str(" of every hour");
    }
    words
}

/// Seconds or minutes at the beginning of the words, and whether they are regular enough to need no "of
/// every".
fn lead(set: Set, unit: &str) -> (String, bool) {
    if is_all(set, SIXTY) {
        return (format!("every {unit}"), true);
    }
    let values: Vec<i8> = set.iter().collect();
    if let [0, step, ..] = *values.as_slice()
        && 60 % step == 0
        && (0..60).step_by(usize::from(step.unsigned_abs())).eq(values.iter().copied())
    {
        return (format!("every {step} {unit}s"), true);
    }
    (format!("at {}", numbers(set, SIXTY, unit)), false)
}

fn days(expression: &Expression) -> String {
    let months = (!is_all(expression.months, MONTHS))
        .then(|| listed(runs(expression.months, MONTHS), |month| name(&MONTH_NAMES, month).to_owned()));
    let of_months = months.as_deref().unwrap_or("every month");
    let in_months = months.as_deref().map(|months| format!(" in {months}")).unwrap_or_default();
    match &expression.days {
        Days::OfMonth(days) if is_all(days.exact.from_start, DAYS) => every_day(expression) + &in_months,
        Days::OfWeek(weekdays) if is_all(*weekdays, WEEKDAYS) => every_day(expression) + &in_months,
        Days::OfMonth(days) => format!(" on {} of {of_months}", days_of_month(days)),
        Days::OfWeek(weekdays) => {
            // The week begins with Monday for readers.
            let from_monday: Set = weekdays.iter().map(monday_one).collect();
            let name = |weekday| name(&WEEKDAY_NAMES, weekday).to_owned();
            format!(" on {}{in_months}", listed(runs(from_monday, WEEKDAYS), name))
        }
        Days::LastOfWeek(weekday) => {
            format!(" on the last {} of {of_months}", name(&WEEKDAY_NAMES, monday_one(*weekday)))
        }
        Days::NthOfWeek { weekday, nth } => {
            let weekday = name(&WEEKDAY_NAMES, monday_one(*weekday));
            format!(" on the {} {weekday} of {of_months}", name(&ORDINALS, *nth))
        }
    }
}

/// Written only after times that do not fill the day.
fn every_day(expression: &Expression) -> String {
    if is_all(expression.hours, HOURS) { String::new() } else { " every day".to_owned() }
}

fn days_of_month(days: &DaysOfMonth) -> String {
    let mut words = Vec::new();
    if !days.exact.from_start.is_empty() {
        words.push(numbers(days.exact.from_start, DAYS_IN_ORDER, "day"));
    }
    words.extend(days.exact.from_end.iter().map(|mark| match 31 - mark {
        0 => "the last day".to_owned(),
        before => before_last(before),
    }));
    words.extend(days.nearest.from_start.iter().map(|day| format!("the weekday nearest to day {day}")));
    words.extend(days.nearest.from_end.iter().map(|mark| match 31 - mark {
        0 => "the last weekday".to_owned(),
        before => format!("the weekday nearest to {}", before_last(before)),
    }));
    joined(words)
}

fn before_last(days: i8) -> String {
    match days {
        1 => "the day before the last day".to_owned(),
        _ => format!("the day {days} days before the last day"),
    }
}

fn years(years: &Years) -> String {
    if years.is_all() {
        return String::new();
    }
    format!(", in {}", joined(years.0.iter().map(span_of_years).collect()))
}

fn span_of_years(&YearSpan { first, last, step }: &YearSpan) -> String {
    let Some(last) = last else {
        let step = if step == 1 { "every year".to_owned() } else { format!("every {step} years") };
        return format!("{first} and {step} after");
    };
    match first.checked_add(step).filter(|second| *second <= last) {
        None => first.to_string(),
        Some(_) if step == 1 => format!("{first} to {last}"),
        Some(_) => format!("{first} to {last} in steps of {step}"),
    }
}

/// The values `first`, `first + step`, ... up to `last`, which is one of them. The range has wrapped if
/// `last` is smaller than `first`.
#[derive(Clone, Copy)]
struct Part {
    first: i8,
    last: i8,
    step: i8,
}

/// The values of `set` as one range in steps, or as ranges and single values.
fn parts(set: Set, bounds: Bounds) -> Vec<Part> {
    progression(set).map_or_else(|| runs(set, bounds), |part| vec![part])
}

/// The values of `set`, if they are at least three at equal distances.
fn progression(set: Set) -> Option<Part> {
    let (first, last) = (set.first()?, set.last()?);
    let step = set.first_from(first + 1)? - first;
    let even = (first..=last).step_by(usize::from(step.unsigned_abs()));
    (step > 1 && set.len() > 2 && even.eq(set.iter())).then_some(Part { first, last, step })
}

/// The values of `set` as ranges of at least three values, and single values.
fn runs(set: Set, (min, max): Bounds) -> Vec<Part> {
    let mut runs: Vec<Part> = Vec::new();
    for value in set.iter() {
        match runs.last_mut() {
            Some(run) if run.last + 1 == value => run.last = value,
            _ => runs.push(Part { first: value, last: value, step: 1 }),
        }
    }
    // The range that wraps comes last.
    if let [Part { first, last: wrapped, .. }, .., end] = runs.as_mut_slice()
        && *first == min
        && end.last == max
    {
        end.last = *wrapped;
        runs.remove(0);
    }
    let pair = |run: &Part| (run.last - run.first).rem_euclid(max - min + 1) == 1;
    let single = |value| Part { first: value, last: value, step: 1 };
    runs.into_iter()
        .flat_map(|run| if pair(&run) { vec![single(run.first), single(run.last)] } else { vec![run] })
        .collect()
}

/// For example `minute 5` or `minutes 0 to 5 and 30`.
fn numbers(set: Set, bounds: Bounds, unit: &str) -> String {
    let plural = if set.single().is_some() { "" } else { "s" };
    format!("{unit}{plural} {}", listed(parts(set, bounds), |value| value.to_string()))
}

fn listed(parts: Vec<Part>, name: impl Fn(i8) -> String) -> String {
    let words = parts.into_iter().map(|Part { first, last, step }| match step {
        _ if first == last => name(first),
        1 => format!("{} to {}", name(first), name(last)),
        _ => format!("{} to {} in steps of {step}", name(first), name(last)),
    });
    joined(words.collect())
}

/// `a`, `a and b`, `a, b and c`.
fn joined(mut words: Vec<String>) -> String {
    match words.pop() {
        Some(last) if !words.is_empty() => format!("{} and {last}", words.join(", ")),
        last => last.unwrap_or_default(),
    }
}

/// The words after "every": `hour `, `2 hours `.
fn counted(count: i8, unit: &str) -> String {
    if count == 1 { format!("{unit} ") } else { format!("{count} {unit}s ") }
}

fn clock(hour: i8, minute: i8, second: i8) -> String {
    format!("{hour:02}:{minute:02}:{second:02}")
}

fn is_all(set: Set, (min, max): Bounds) -> bool {
    set.covers(min, max)
}

/// From 1 for Sunday to 1 for Monday.
fn monday_one(weekday: i8) -> i8 {
    (weekday + 5) % 7 + 1
}

/// The name of `number`; names are counted from 1.
fn name(names: &[&'static str], number: i8) -> &'static str {
    let index = usize::try_from(number - 1).ok();
    index.and_then(|index| names.get(index)).copied().unwrap_or_default()
}

const MONTH_NAMES: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const WEEKDAY_NAMES: [&str; 7] =
    ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"];
const ORDINALS: [&str; 5] = ["first", "second", "third", "fourth", "fifth"];
