//! The days of a month that an expression names, and their order in a search.
//!
//! The days are those that a reader expects. The search has two properties of Quartz 2.5 that show only with
//! `W`. They are kept so that schedulers agree; both are marked below.

use jiff::civil::{Date, DateTime, Time};

use super::set::Set;

/// The two day fields, of which exactly one is not `?`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Days {
    OfMonth(DaysOfMonth),
    /// Weekdays, 1 is Sunday.
    OfWeek(Set),
    /// `6L`: the last such weekday of the month.
    LastOfWeek(i8),
    /// `6#3`: the third such weekday of the month.
    NthOfWeek {
        weekday: i8,
        nth: i8,
    },
}

/// The parts of the day-of-month field.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct DaysOfMonth {
    /// `15`, `L`, `L-3`.
    pub(super) exact: Marks,
    /// `15W`, `LW`, `L-3W`: the weekday (Monday to Friday) nearest to these days.
    pub(super) nearest: Marks,
}

/// Days of any month, counted from its beginning and from its end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Marks {
    pub(super) from_start: Set,
    /// Counted as if the month had 31 days: `L` is 31, `L-3` is 28.
    pub(super) from_end: Set,
}

/// The next step of a search from a day, at a time that the expression names.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// This day matches; the time stays.
    Found(Date),
    /// This later day of the same month may match. The search continues at its midnight.
    Move(Date),
    /// No more days in this month.
    MonthOver,
}

impl Days {
    /// Searches a day from `from` on, in the same month. `in_time` tests whether a wall time is not yet over.
    pub(super) fn next(&self, from: Date, time: Time, in_time: impl Fn(DateTime) -> bool) -> Step {
        let target = match self {
            Self::OfMonth(days) => return days.next(from, time, in_time),
            Self::OfWeek(weekdays) => {
                let today = weekday(from);
                (0..7)
                    .find(|ahead| weekdays.contains((today - 1 + ahead) % 7 + 1))
                    .map(|ahead| from.day() + ahead)
            }
            Self::LastOfWeek(wanted) => {
                let last = from.last_of_month();
                Some(last.day() - (weekday(last) - wanted).rem_euclid(7))
            }
            Self::NthOfWeek { weekday: wanted, nth } => {
                let first = from.first_of_month();
                Some(first.day() + (wanted - weekday(first)).rem_euclid(7) + 7 * (nth - 1))
            }
        };
        target.filter(|&day| day >= from.day()).map_or(Step::MonthOver, |day| go_to(from, day))
    }
}

impl DaysOfMonth {
    fn next(&self, from: Date, time: Time, in_time: impl Fn(DateTime) -> bool) -> Step {
        let exact = self.exact.first_from(from);
        // As in Quartz: when the day that was found is over at that time, the later `W` days of this month
        // are lost, too.
        let nearest = self
            .nearest
            .first_from(from)
            .and_then(|day| nearest_weekday(with_day(from, day)?))
            .filter(|date| in_time(date.to_datetime(time)));
        match (exact, nearest) {
            (Some(exact), nearest) if nearest.is_none_or(|date| exact < date.day()) => go_to(from, exact),
            // As in Quartz: the time of day stays, also when the day is a later one.
            (_, Some(date)) => Step::Found(date),
            (_, None) => Step::MonthOver,
        }
    }
}

impl Marks {
    /// The first marked day of the month of `from`, from that day on.
    fn first_from(self, from: Date) -> Option<i8> {
        let last = from.days_in_month();
        let short = 31 - last;
        let start = self.from_start.first_from(from.day()).filter(|&day| day <= last);
        let end = self.from_end.first_from(from.day() + short);
        match (start, end) {
            // As in Quartz: the two are compared as if the month had 31 days. So in shorter months `27,L-2`
            // can skip the day that is counted from the end.
            (Some(day), Some(mark)) => Some(if day < mark { day } else { mark - short }),
            (day, mark) => day.or_else(|| mark.map(|mark| mark - short)),
        }
    }
}

/// The weekday nearest to `date` in the same month.
fn nearest_weekday(date: Date) -> Option<Date> {
    let (day, last) = (date.day(), date.days_in_month());
    let nearest = match weekday(date) {
        SATURDAY if day == 1 => 3,
        SATURDAY => day - 1,
        SUNDAY if day == last => day - 2,
        SUNDAY => day + 1,
        _ => day,
    };
    with_day(date, nearest)
}

const SUNDAY: i8 = 1;
const SATURDAY: i8 = 7;

/// 1 for Sunday to 7 for Saturday.
fn weekday(date: Date) -> i8 {
    date.weekday().to_sunday_one_offset()
}

fn with_day(date: Date, day: i8) -> Option<Date> {
    Date::new(date.year(), date.month(), day).ok()
}

fn go_to(from: Date, day: i8) -> Step {
    match with_day(from, day) {
        Some(date) if date == from => Step::Found(date),
        Some(date) => Step::Move(date),
        None => Step::MonthOver,
    }
}
