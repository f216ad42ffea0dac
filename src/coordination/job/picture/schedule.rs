//! Which fires of a schedule lie in a span of time? Decides nothing.

use jiff::{SignedDuration, Timestamp};

use crate::coordination::job::picture::settings::Schedule;

/// How many missed fires are stepped through to find the latest; beyond that the search starts close to the present.
const MISSED_STEPS_MAX: usize = 10_000;

/// How close to the present that start is.
const MISSED_RESTART: SignedDuration = SignedDuration::from_hours(2);

/// The latest fire that is not after an instant. Looks back step by step, at most a year.
pub(in crate::coordination) fn latest_before(schedule: &Schedule, instant: Timestamp) -> Option<Timestamp> {
    [SignedDuration::from_mins(10), SignedDuration::from_hours(26), SignedDuration::from_hours(24 * 366)]
        .into_iter()
        .filter_map(|back| instant.checked_sub(back).ok())
        .find_map(|from| schedule.next_after(from).filter(|first| *first <= instant))
        .map(|first| latest_until(schedule, first, instant).0)
}

/// The latest fire that is not after `now`, and the one before it if both are in the span from `first`.
pub(in crate::coordination) fn latest_until(
    schedule: &Schedule,
    first: Timestamp,
    now: Timestamp,
) -> (Timestamp, Option<Timestamp>) {
    let (mut latest, mut before) = (first, None);
    let mut steps = 0;
    while let Some(following) = schedule.next_after(latest).filter(|following| *following <= now) {
        before = Some(latest);
        latest = following;
        steps += 1;
        if steps == MISSED_STEPS_MAX {
            let close = now.checked_sub(MISSED_RESTART).unwrap_or(now);
            match schedule.next_after(close.max(latest)).filter(|next| *next <= now) {
                Some(next) => latest = next,
                None => break,
            }
        }
    }
    (latest, before)
}
