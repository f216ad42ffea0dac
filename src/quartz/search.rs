//! The next instant: a search in local wall time, and the way back from wall time to instants.

use jiff::civil::{Date, DateTime, Time};
use jiff::tz::{AmbiguousOffset, Offset, TimeZone};
use jiff::{SignedDuration, Timestamp};

use super::Expression;
use super::days::Step;

/// How far a search goes, in years. Quartz's distance; it covers every leap day and every weekday of one but for
/// the rarest (the fifth Saturday of February comes every 28 or 40 years).
const HORIZON: i16 = 100;

/// What a search in wall time finds.
struct Found {
    /// Where the search stood: a time of day that is named, on a day from which `W` may name another one. A clock
    /// change on that day counts too, because the search has to pass it.
    stood: DateTime,
    wall: DateTime,
}

/// See [`Expression::next_after`].
pub(super) fn next_after(expression: &Expression, after: Timestamp, zone: &TimeZone) -> Option<Timestamp> {
    let last_year = zone.to_datetime(after).year().saturating_add(HORIZON);
    let start = zone.to_datetime(after.checked_add(SignedDuration::from_secs(1)).ok()?);
    let mut floor = start.with().subsec_nanosecond(0).build().ok()?;
    // Each round leaves one gap of the zone behind, and there are at most a few a year.
    loop {
        let Found { stood, wall } = expression.next_wall_time(floor, last_year)?;
        if stood != wall
            && let AmbiguousOffset::Gap { before, .. } = zone.to_ambiguous_timestamp(stood).offset()
        {
            floor = gap_end(stood, before, zone)?;
            continue;
        }
        let instant = zone.to_ambiguous_timestamp(wall);
        match instant.offset() {
            AmbiguousOffset::Gap { before, .. } => floor = gap_end(wall, before, zone)?,
            AmbiguousOffset::Unambiguous { .. } | AmbiguousOffset::Fold { .. } => {
                return instant.later().ok();
            }
        }
    }
}

/// The first wall time after the gap that `wall` is in; `before` is the offset that the gap ends.
fn gap_end(wall: DateTime, before: Offset, zone: &TimeZone) -> Option<DateTime> {
    let moved = before.to_timestamp(wall).ok()?;
    // Transitions are whole seconds, and the one of this gap is at `moved` or before it.
    let change = zone.preceding(moved.checked_add(SignedDuration::from_secs(1)).ok()?).next();
    let end = change.map(|change| zone.to_datetime(change.timestamp())).filter(|&end| end > wall);
    end.or_else(|| wall.checked_add(SignedDuration::from_secs(1)).ok())
}

impl Expression {
    /// The first wall time from `floor` on, up to the end of `last_year`.
    fn next_wall_time(&self, floor: DateTime, last_year: i16) -> Option<Found> {
        let (mut date, mut time) = (floor.date(), floor.time());
        // Each round ends the search or moves to a later date; a month costs at most a handful of rounds.
        while date.year() <= last_year {
            let year = self.years.first_from(date.year())?;
            let moved = if year != date.year() {
                Date::new(year, 1, 1).ok()?
            } else if let Some(named) = self.time_from(time) {
                if !self.months.contains(date.month()) {
                    self.next_month(date)?
                } else {
                    match self.days.next(date, named, floor) {
                        Step::Found(found) => {
                            return Some(Found {
                                stood: date.to_datetime(named),
                                wall: found.to_datetime(named),
                            });
                        }
                        Step::Move(later) => later,
                        Step::MonthOver => self.next_month(date)?,
                    }
                }
            } else {
                date.tomorrow().ok()?
            };
            (date, time) = (moved, Time::midnight());
        }
        None
    }

    /// The first time of day that is named, from `time` on.
    fn time_from(&self, time: Time) -> Option<Time> {
        let (hour, minute) = (time.hour(), time.minute());
        let at = |hour, minute, second| Time::new(hour, minute, second, 0).ok();
        if self.hours.contains(hour) {
            if self.minutes.contains(minute)
                && let Some(second) = self.seconds.first_from(time.second())
            {
                return at(hour, minute, second);
            }
            if let Some(minute) = self.minutes.first_from(minute + 1) {
                return at(hour, minute, self.seconds.first()?);
            }
        }
        at(self.hours.first_from(hour + 1)?, self.minutes.first()?, self.seconds.first()?)
    }

    /// The first day of the next named month.
    fn next_month(&self, date: Date) -> Option<Date> {
        match self.months.first_from(date.month() + 1) {
            Some(month) => Date::new(date.year(), month, 1).ok(),
            None => Date::new(date.year() + 1, self.months.first()?, 1).ok(),
        }
    }
}
