//! When, by our clock, was something written that the registry has stamped with its own time?
//!
//! The registry stamps each change. When a change is told, our clock shows the stamp, and how far the clocks are apart, and how
//! long the change has travelled. The travel is short, but for a sidecar that was stopped: it may hear of a change seconds
//! late. So of the latest changes the one with the shortest travel tells how far the clocks are apart. Must not decide
//! anything.

use std::collections::VecDeque;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use crate::mutants::mutant;
use crate::tree::{NodeChange, WatchEvent};

use crate::coordination::job::picture::nodes::stat_time;
use crate::coordination::time::Now;

/// How many of the latest times count at which changes were told. A sidecar that was stopped hears at once of all that was
/// changed meanwhile; also one that was stopped several times in a row is covered. A clock that is set, on the registry's
/// side, shows after so many times at the latest.
const TIMES: usize = 8;

/// The registry's clock, as far as changes have told it.
#[derive(Debug, Clone, Default)]
pub(in crate::coordination) struct RegistryClock {
    /// Of the latest times at which changes were told: when that was, and how far our monotonic clock was ahead of the
    /// registry's time of day when the newest of them was made. Our time of day may be set.
    told: VecDeque<(Duration, SignedDuration)>,
}

impl RegistryClock {
    /// A watch tells something now; monotonic. A snapshot says nothing: its nodes may be old.
    pub(in crate::coordination) fn told(&mut self, event: &WatchEvent, now: Duration) {
        let WatchEvent::Changes(changes) = event else { return };
        let written = |change: &NodeChange| match change {
            NodeChange::Put { content: Some((_, stat)), .. } => stat_time(*stat),
            NodeChange::Put { content: None, .. } | NodeChange::Removed { .. } => None,
        };
        let Some(written) = changes.iter().filter_map(written).max() else { return };
        let Ok(mono) = SignedDuration::try_from(now) else { return };
        if mutant!(DelayTakenForClock) {
            self.told.clear();
        }
        let ahead = mono.saturating_sub(written.as_duration());
        match self.told.back_mut().filter(|(told, _)| *told == now) {
            Some((_, least)) => *least = ahead.min(*least),
            None => self.told.push_back((now, ahead)),
        }
        if self.told.len() > TIMES {
            self.told.pop_front();
        }
    }

    /// When something was written, by our time of day; later by as long as the fastest of the latest changes took to be
    /// told. `None`: no change has been told yet.
    pub(in crate::coordination) fn here(&self, written: Timestamp, now: Now) -> Option<Timestamp> {
        let ahead = self.told.iter().map(|(_, ahead)| *ahead).min()?;
        let ago = SignedDuration::try_from(now.mono)
            .ok()?
            .checked_sub(written.as_duration())?
            .checked_sub(ahead)?;
        now.wall.checked_sub(ago).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::{Path, Stat, Zxid};

    fn at(milliseconds: i64) -> Timestamp {
        Timestamp::from_millisecond(milliseconds).unwrap()
    }

    /// A change that the registry made at `written`, told at `now` of our monotonic clock; both in milliseconds.
    fn tell(clock: &mut RegistryClock, written: i64, now: u64) {
        let stat = Stat {
            created: Zxid(1),
            modified: Zxid(1),
            version: 0,
            ephemeral_owner: None,
            modified_ms: written,
        };
        let change = NodeChange::Put { path: Path::parse("/a").unwrap(), content: Some(([].into(), stat)) };
        clock.told(&WatchEvent::Changes(vec![change]), Duration::from_millis(now));
    }

    #[test]
    fn of_the_latest_changes_the_one_that_was_told_soonest_counts() {
        let mut clock = RegistryClock::default();
        // Our time of day is 500 s ahead of the registry's, and our monotonic clock was at 0 when the registry's was at 100 s.
        let now = |mono| Now {
            mono: Duration::from_millis(mono),
            wall: at(600_000 + i64::try_from(mono).unwrap()),
        };
        assert_eq!(clock.here(at(100_000), now(0)), None);
        tell(&mut clock, 101_000, 1_010);
        tell(&mut clock, 102_000, 7_000);
        assert_eq!(clock.here(at(105_000), now(7_000)), Some(at(605_010)));
        // Our time of day is set.
        let set = Now { wall: at(9_000_000), ..now(7_000) };
        assert_eq!(clock.here(at(105_000), set), Some(at(9_000_000 - 1_990)));
        // The registry's clock goes back by a second: that shows when the earlier changes do not count any more.
        for number in 0..8 {
            tell(&mut clock, 110_000 + number, 11_020 + u64::try_from(number).unwrap());
        }
        assert_eq!(clock.here(at(110_000), now(12_000)), Some(at(611_020)));
    }
}
