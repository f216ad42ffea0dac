//! Decides which of many similar events get a line in the log, so that a repeated event cannot fill a disk.
//! Pure: the time is an argument, and the caller writes the lines.
//!
//! The first event of a kind is logged. Further events of that kind in the next [`PAUSE`] are counted. Their
//! number is logged once: with the next event after the pause, or when the pause is over, if the caller asks
//! for [`Limiter::due`].

use std::collections::BTreeMap;
use std::time::Duration;

/// The pause between two lines about one kind. Short enough for a person who follows the log.
pub const PAUSE: Duration = Duration::from_secs(10);
/// The most kinds that are counted separately; all others count as one kind. Six times as many lines a minute
/// are still readable.
const KINDS_MAX: usize = 64;

/// The decision about one event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The event is logged, with the number of events of its kind that were not logged since the last line.
    Log(u64),
    /// The event is the first that is not logged since the last line. After this time its kind is
    /// [`Limiter::due`].
    First(Duration),
    /// The event is only counted.
    Count,
}

/// The counts of events, by kind.
#[derive(Debug)]
pub struct Limiter<K> {
    /// `None`: the kinds beyond the limit.
    kinds: BTreeMap<Option<K>, Kind>,
}

#[derive(Debug)]
struct Kind {
    /// When its last line was written, on the monotonic clock.
    logged: Duration,
    left_out: u64,
}

impl Kind {
    fn is_over(&self, now: Duration) -> bool {
        now >= self.logged.saturating_add(PAUSE)
    }
}

impl<K> Default for Limiter<K> {
    fn default() -> Self {
        Self { kinds: BTreeMap::new() }
    }
}

impl<K: Ord + Clone> Limiter<K> {
    /// Whether this event is logged.
    pub fn admit(&mut self, key: K, now: Duration) -> Verdict {
        let mut key = Some(key);
        if !self.kinds.contains_key(&key) && self.kinds.len() >= KINDS_MAX {
            self.kinds.retain(|_, kind| kind.left_out > 0 || !kind.is_over(now));
            if self.kinds.len() >= KINDS_MAX {
                key = None;
            }
        }
        let Some(kind) = self.kinds.get_mut(&key) else {
            self.kinds.insert(key, Kind { logged: now, left_out: 0 });
            return Verdict::Log(0);
        };
        if kind.is_over(now) {
            kind.logged = now;
            return Verdict::Log(std::mem::take(&mut kind.left_out));
        }
        kind.left_out = kind.left_out.saturating_add(1);
        match kind.left_out {
            1 => Verdict::First(kind.logged.saturating_add(PAUSE).saturating_sub(now)),
            _ => Verdict::Count,
        }
    }

    /// The kinds with events that were not logged, whose pause is over, and the numbers of their events. The
    /// caller logs each, so the kind's next pause begins. `None`: the kinds beyond the limit.
    pub fn due(&mut self, now: Duration) -> Vec<(Option<K>, u64)> {
        let due = self.kinds.iter_mut().filter(|(_, kind)| kind.left_out > 0 && kind.is_over(now));
        due.map(|(key, kind)| {
            kind.logged = now;
            (key.clone(), std::mem::take(&mut kind.left_out))
        })
        .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn second(second: u64) -> Duration {
        Duration::from_secs(second)
    }

    #[test]
    fn the_first_is_logged_and_the_others_are_counted_until_the_pause_is_over() {
        let mut limiter = Limiter::default();
        assert_eq!(limiter.admit("a", second(1)), Verdict::Log(0));
        assert_eq!(limiter.admit("a", second(3)), Verdict::First(second(8)));
        assert_eq!(limiter.admit("b", second(2)), Verdict::Log(0));
        assert_eq!(limiter.admit("a", second(10)), Verdict::Count);
        assert_eq!(limiter.due(second(10)), []);
        assert_eq!(limiter.admit("a", second(11)), Verdict::Log(2));
        assert_eq!(limiter.admit("b", second(12)), Verdict::Log(0));
    }

    #[test]
    fn the_number_of_the_others_is_logged_once_and_then_a_pause_begins() {
        let mut limiter = Limiter::default();
        for _ in 0..20_000 {
            limiter.admit("a", second(0));
        }
        assert_eq!(limiter.due(second(10)), [(Some("a"), 19_999)]);
        assert_eq!(limiter.due(second(30)), []);
        assert_eq!(limiter.admit("a", second(11)), Verdict::First(second(9)));
        assert_eq!(limiter.due(second(19)), []);
        assert_eq!(limiter.due(second(20)), [(Some("a"), 1)]);
    }

    #[test]
    fn kinds_beyond_the_limit_count_as_one_kind() {
        let mut limiter = Limiter::default();
        let logged = |limiter: &mut Limiter<u64>, now| {
            (0..20_000).filter(|key| matches!(limiter.admit(*key, now), Verdict::Log(_))).count()
        };
        assert_eq!(logged(&mut limiter, second(0)), KINDS_MAX + 1);
        assert_eq!(limiter.kinds.len(), KINDS_MAX + 1);
        let others = 20_000 - u64::try_from(KINDS_MAX).unwrap() - 1;
        assert_eq!(limiter.due(second(10)), [(None, others)]);
        // A kind without events makes room for another.
        assert_eq!(limiter.admit(77_777, second(20)), Verdict::Log(0));
        assert!(limiter.kinds.contains_key(&Some(77_777)));
    }
}
