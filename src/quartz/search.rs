//! The next instant: a search in local wall time, then the conversion from wall time to instants.
//!
//! The search takes small steps. Each step ends at a wall time that exists in the zone. Where a clock change
//! has skipped some wall times, the end of the step decides which times of that day are found. So this search
//! takes Quartz's choice: as far behind the gap as the step would have led into it, or one hour later (see
//! `set_hour`).

use jiff::civil::{Date, DateTime};
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};

use super::Expression;
use super::days::Step;

/// How far a search goes, in years, as in Quartz. The range has every leap day on every weekday, except for
/// the rarest: the fifth Saturday of February comes every 28 or 40 years.
const HORIZON: i16 = 100;

/// See [`Expression::next_after`].
pub(super) fn next_after(expression: &Expression, after: Timestamp, zone: &TimeZone) -> Option<Timestamp> {
    let last_year = zone.to_datetime(after).year().saturating_add(HORIZON);
    let start = whole_second(after.checked_add(SignedDuration::from_secs(1)).ok()?)?;
    let search = Search { expression, zone, start };
    let mut at = zone.to_datetime(start);
    // Each round leads to a later wall time. A month takes at most a handful of rounds.
    while at.year() <= last_year {
        match search.round(at)? {
            Round::Found(instant) => return Some(instant),
            Round::Later(wall) => at = wall,
        }
    }
    None
}

fn whole_second(instant: Timestamp) -> Option<Timestamp> {
    Timestamp::from_second(instant.as_nanosecond().div_euclid(1_000_000_000).try_into().ok()?).ok()
}

struct Search<'s> {
    expression: &'s Expression,
    zone: &'s TimeZone,
    /// No earlier instant may be found.
    start: Timestamp,
}

enum Round {
    Found(Timestamp),
    /// The expression names no time before this wall time.
    Later(DateTime),
}

impl Search<'_> {
    /// Tries one wall time. `None`: the expression names no time from there on.
    fn round(&self, at: DateTime) -> Option<Round> {
        let Expression { years, months, days, .. } = self.expression;
        let date = at.date();
        let year = years.first_from(date.year())?;
        if year != date.year() {
            return self.begin(Date::new(year, 1, 1).ok()?);
        }
        if !months.contains(date.month()) {
            return self.begin(self.next_month(date)?);
        }
        if let Some(later) = self.later_that_day(at)? {
            return Some(Round::Later(later));
        }
        let in_time = |wall| self.instant(wall).is_some_and(|instant| instant >= self.start);
        match days.next(date, at.time(), in_time) {
            Step::Found(date) => self.instant(date.to_datetime(at.time())).map(Round::Found),
            Step::Move(later) => self.begin(later),
            Step::MonthOver => self.begin(self.next_month(date)?),
        }
    }

    /// Where to continue if the expression does not name the time of day of `at`; `Some(None)` if it does.
    fn later_that_day(&self, at: DateTime) -> Option<Option<DateTime>> {
        let Expression { seconds, minutes, hours, .. } = self.expression;
        let (date, hour, minute) = (at.date(), at.hour(), at.minute());
        let later =
            match (seconds.first_from(at.second()), minutes.first_from(minute), hours.first_from(hour)) {
                (Some(second), ..) if second != at.second() => at.with().second(second).build().ok()?,
                (None, ..) => {
                    let next_minute = at.checked_add(SignedDuration::from_mins(1)).ok()?;
                    self.land(next_minute.with().second(seconds.first()?).build().ok()?)?
                }
                (_, Some(named), _) if named != minute => self.set_hour(date, hour, named)?,
                (_, None, _) => self.set_hour(date, hour + 1, minutes.first()?)?,
                (_, _, Some(named)) if named != hour => self.set_hour(date, named, 0)?,
                (_, _, None) => self.set_hour(date.tomorrow().ok()?, hours.first()?, 0)?,
                _ => return Some(None),
            };
        Some(Some(later))
    }

    /// Goes to an hour of a day; 24 is the midnight that ends it. As in Quartz: when a clock change leads to
    /// another hour, the step goes to the hour after the wanted one, and the time between is not found. That
    /// does not apply at 24.
    fn set_hour(&self, date: Date, hour: i8, minute: i8) -> Option<DateTime> {
        let landed = self.land(wall_time(date, hour, minute, 0)?)?;
        if landed.hour() == hour || hour == 24 {
            return Some(landed);
        }
        self.land(wall_time(landed.date(), hour + 1, landed.minute(), landed.second())?)
    }

    fn begin(&self, date: Date) -> Option<Round> {
        self.land(DateTime::from(date)).map(Round::Later)
    }

    /// The first day of the next named month.
    fn next_month(&self, date: Date) -> Option<Date> {
        let months = self.expression.months;
        match months.first_from(date.month() + 1) {
            Some(month) => Date::new(date.year(), month, 1).ok(),
            None => Date::new(date.year() + 1, months.first()?, 1).ok(),
        }
    }

    /// `wall`. If a clock change skips it: the wall time as far behind the gap as `wall` is in it.
    fn land(&self, wall: DateTime) -> Option<DateTime> {
        self.instant(wall).map(|instant| self.zone.to_datetime(instant))
    }

    /// The later instant of a wall time that occurs twice. For a skipped wall time, the instant behind the
    /// gap.
    fn instant(&self, wall: DateTime) -> Option<Timestamp> {
        self.zone.to_ambiguous_timestamp(wall).later().ok()
    }
}

/// The wall time at `hour`, 0 to 24, of `date`.
fn wall_time(date: Date, hour: i8, minute: i8, second: i8) -> Option<DateTime> {
    let date = if hour < 24 { date } else { date.tomorrow().ok()? };
    DateTime::new(date.year(), date.month(), date.day(), hour % 24, minute, second, 0).ok()
}
