//! When, by this machine's clock, did the registry make a change that it has stamped with its own time?
//!
//! The registry stamps each change. When the change arrives, the difference between this clock and the stamp is the
//! difference of the clocks, and the time that the change has travelled. The travel is short, except for a sidecar that
//! was stopped: it may get a change seconds late. So of the latest changes the one with the shortest travel shows the
//! difference of the clocks. Must not decide anything.

use std::collections::VecDeque;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use crate::mutants::mutant;
use crate::tree::{NodeChange, WatchEvent};

use crate::coordination::job::picture::nodes::stat_time;
use crate::coordination::time::Now;

/// How many of the latest arrival times count. A sidecar that was stopped gets all changes of that time at once; also
/// several stops in a row are covered. A change of the registry's clock shows after this number of arrivals at the
/// latest.
const TIMES: usize = 8;

/// The registry's clock, according to the latest changes.
#[derive(Debug, Clone, Default)]
pub(in crate::coordination) struct RegistryClock {
    /// The latest times at which changes arrived: the time, and how far this monotonic clock was ahead of the
    /// registry's time of day when the newest of the changes was made. This machine's time of day may be set.
    arrivals: VecDeque<(Duration, SignedDuration)>,
}

impl RegistryClock {
    /// An event of a watch arrives now; monotonic. A snapshot says nothing: its nodes may be old.
    pub(in crate::coordination) fn record(&mut self, event: &WatchEvent, now: Duration) {
        let WatchEvent::Changes(changes) = event else { return };
        let written = |change: &NodeChange| match change {
            NodeChange::Put { content: Some((_, stat)), .. } => stat_time(*stat),
            NodeChange::Put { content: None, .. } | NodeChange::Removed { .. } => None,
        };
        let Some(written) = changes.iter().filter_map(written).max() else { return };
        let Ok(mono) = SignedDuration::try_from(now) else { return };
        if mutant!(DelayCountedAsClock) {
            self.arrivals.clear();
        }
        let ahead = mono.saturating_sub(written.as_duration());
        match self.arrivals.back_mut().filter(|(arrived, _)| *arrived == now) {
            Some((_, least)) => *least = ahead.min(*least),
            None => self.arrivals.push_back((now, ahead)),
        }
        if self.arrivals.len() > TIMES {
            self.arrivals.pop_front();
        }
    }

    /// When a change was made, by this machine's time of day; late by the travel of the fastest of the latest changes.
    /// `None`: no change has arrived yet.
    pub(in crate::coordination) fn here(&self, written: Timestamp, now: Now) -> Option<Timestamp> {
        let ahead = self.arrivals.iter().map(|(_, ahead)| *ahead).min()?;
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

    /// A change that the registry made at `written` arrives at `now` of this monotonic clock; both in milliseconds.
    fn arrive(clock: &mut RegistryClock, written: i64, now: u64) {
        let stat = Stat {
            created: Zxid(1),
            modified: Zxid(1),
            version: 0,
            ephemeral_owner: None,
            modified_ms: written,
        };
        let change = NodeChange::Put { path: Path::parse("/a").unwrap(), content: Some(([].into(), stat)) };
        clock.record(&WatchEvent::Changes(vec![change]), Duration::from_millis(now));
    }

    #[test]
    fn the_latest_change_with_the_shortest_travel_counts() {
        let mut clock = RegistryClock::default();
        // This time of day is 500 s ahead of the registry's, and this monotonic clock was at 0 when the registry's was
        // at 100 s.
        let now = |mono| Now {
            mono: Duration::from_millis(mono),
            wall: at(600_000 + i64::try_from(mono).unwrap()),
        };
        assert_eq!(clock.here(at(100_000), now(0)), None);
        arrive(&mut clock, 101_000, 1_010);
        arrive(&mut clock, 102_000, 7_000);
        assert_eq!(clock.here(at(105_000), now(7_000)), Some(at(605_010)));
        // This machine's time of day is set.
        let set = Now { wall: at(9_000_000), ..now(7_000) };
        assert_eq!(clock.here(at(105_000), set), Some(at(9_000_000 - 1_990)));
        // The registry's clock goes back by a second: that shows when the earlier changes do not count any more.
        for number in 0..8 {
            arrive(&mut clock, 110_000 + number, 11_020 + u64::try_from(number).unwrap());
        }
        assert_eq!(clock.here(at(110_000), now(12_000)), Some(at(611_020)));
    }
}
