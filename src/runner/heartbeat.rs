//! The heartbeat of the process: a task that is due each second, and how late it was. Decides nothing.
//!
//! A process whose threads are all busy, or that does not get any processor time, is late. Nothing here depends on the registry.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::clock::Clock;

/// The time between two beats.
const BEAT: Duration = Duration::from_secs(1);
/// For how long a delay is remembered.
const MEMORY: Duration = Duration::from_secs(60);

/// The heartbeat. Clones share it.
#[derive(Clone)]
pub struct Heartbeat {
    clock: Clock,
    inner: Arc<Mutex<Inner>>,
}

struct Inner {
    /// When it was last; monotonic.
    last: Duration,
    /// The beats of the last minute: when each was, and how late.
    beats: VecDeque<(Duration, Duration)>,
}

impl Heartbeat {
    /// A heart that has just beaten.
    pub fn new(clock: &Clock) -> Self {
        let inner = Inner { last: clock.now().mono, beats: VecDeque::new() };
        Self { clock: clock.clone(), inner: Arc::new(Mutex::new(inner)) }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Beats. Never ends.
    pub async fn keep(self) {
        loop {
            self.clock.sleep(BEAT).await;
            self.beat(self.clock.now().mono);
        }
    }

    fn beat(&self, now: Duration) {
        let mut inner = self.lock();
        let late = now.saturating_sub(inner.last).saturating_sub(BEAT);
        inner.last = now;
        inner.beats.push_back((now, late));
        while inner.beats.front().is_some_and(|(at, _)| at.saturating_add(MEMORY) < now) {
            inner.beats.pop_front();
        }
    }

    /// The time since the last beat.
    pub fn age(&self) -> Duration {
        self.clock.now().mono.saturating_sub(self.lock().last)
    }

    /// The longest delay in the last minute; that of a beat that is due now counts.
    pub fn longest_delay(&self) -> Duration {
        let due = self.age().saturating_sub(BEAT);
        self.lock().beats.iter().map(|(_, late)| *late).max().unwrap_or_default().max(due)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_delay_is_remembered_for_a_minute() {
        let heart = Heartbeat::new(&Clock::start());
        let begin = heart.lock().last;
        heart.beat(begin + BEAT);
        heart.beat(begin + BEAT * 4);
        let delays = |heart: &Heartbeat| heart.lock().beats.iter().map(|(_, late)| *late).max().unwrap();
        assert_eq!(delays(&heart), BEAT * 2);
        for second in 5..=64 {
            heart.beat(begin + BEAT * second);
        }
        assert_eq!(delays(&heart), BEAT * 2);
        heart.beat(begin + BEAT * 65);
        assert_eq!(delays(&heart), Duration::ZERO);
    }
}
