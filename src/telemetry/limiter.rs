//! Decides which of many like events get a line in the log, so that nobody can fill a disk by repeating one. Pure: the time
//! is an argument, and who asks writes the lines.
//!
//! The first event of a kind is told. What comes of that kind in the next [`PAUSE`] is counted, and the count is told
//! once: with the next event after the pause, or, for those who ask [`Limiter::due`], when the pause is over.

use std::collections::BTreeMap;
use std::time::Duration;

/// The pause between two lines about one kind. Short enough for somebody who looks at the end of a log.
pub const PAUSE: Duration = Duration::from_secs(10);
/// Kinds that are told apart at a time; all others are one kind. Six times as many lines a minute are still readable.
const KINDS_MAX: usize = 64;

/// The decision about one event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It gets its line; so many of its kind did not since the last one.
    Tell(u64),
    /// It is the first to be left out since the last line. After so long its kind is [`Limiter::due`].
    First(Duration),
    /// It is counted.
    Count,
}

/// The events that were told and left out, by kind.
#[derive(Debug)]
pub struct Limiter<K> {
    /// `None`: the kinds that there is no room for.
    kinds: BTreeMap<Option<K>, Kind>,
}

#[derive(Debug)]
struct Kind {
    /// When its last line was written, monotonic.
    told: Duration,
    left_out: u64,
}

impl Kind {
    fn is_over(&self, now: Duration) -> bool {
        now >= self.told.saturating_add(PAUSE)
    }
}

impl<K> Default for Limiter<K> {
    fn default() -> Self {
        Self { kinds: BTreeMap::new() }
    }
}

impl<K: Ord + Clone> Limiter<K> {
    /// Whether this event gets a line.
    pub fn admit(&mut self, key: K, now: Duration) -> Verdict {
        let mut key = Some(key);
        if !self.kinds.contains_key(&key) && self.kinds.len() >= KINDS_MAX {
            self.kinds.retain(|_, kind| kind.left_out > 0 || !kind.is_over(now));
            if self.kinds.len() >= KINDS_MAX {
                key = None;
            }
        }
        let Some(kind) = self.kinds.get_mut(&key) else {
            self.kinds.insert(key, Kind { told: now, left_out: 0 });
            return Verdict::Tell(0);
        };
        if kind.is_over(now) {
            kind.told = now;
            return Verdict::Tell(std::mem::take(&mut kind.left_out));
        }
        kind.left_out = kind.left_out.saturating_add(1);
        match kind.left_out {
            1 => Verdict::First(kind.told.saturating_add(PAUSE).saturating_sub(now)),
            _ => Verdict::Count,
        }
    }

    /// The kinds of which something was left out and whose pause is over, and how many events that were. Each is told by
    /// the caller, so its next pause begins. `None`: kinds that there was no room for.
    pub fn due(&mut self, now: Duration) -> Vec<(Option<K>, u64)> {
        let due = self.kinds.iter_mut().filter(|(_, kind)| kind.left_out > 0 && kind.is_over(now));
        due.map(|(key, kind)| {
            kind.told = now;
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
    fn the_first_is_told_and_the_others_are_counted_until_the_pause_is_over() {
        let mut limiter = Limiter::default();
        assert_eq!(limiter.admit("a", second(1)), Verdict::Tell(0));
        assert_eq!(limiter.admit("a", second(3)), Verdict::First(second(8)));
        assert_eq!(limiter.admit("b", second(2)), Verdict::Tell(0));
        assert_eq!(limiter.admit("a", second(10)), Verdict::Count);
        assert_eq!(limiter.due(second(10)), []);
        assert_eq!(limiter.admit("a", second(11)), Verdict::Tell(2));
        assert_eq!(limiter.admit("b", second(12)), Verdict::Tell(0));
    }

    #[test]
    fn what_was_left_out_is_told_once_and_then_there_is_a_pause_again() {
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
    fn kinds_that_there_is_no_room_for_are_one_kind() {
        let mut limiter = Limiter::default();
        let told = |limiter: &mut Limiter<u64>, now| {
            (0..20_000).filter(|key| matches!(limiter.admit(*key, now), Verdict::Tell(_))).count()
        };
        assert_eq!(told(&mut limiter, second(0)), KINDS_MAX + 1);
        assert_eq!(limiter.kinds.len(), KINDS_MAX + 1);
        let others = 20_000 - u64::try_from(KINDS_MAX).unwrap() - 1;
        assert_eq!(limiter.due(second(10)), [(None, others)]);
        // A kind that is quiet makes room for another.
        assert_eq!(limiter.admit(77_777, second(20)), Verdict::Tell(0));
        assert!(limiter.kinds.contains_key(&Some(77_777)));
    }
}
