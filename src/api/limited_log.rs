//! Lines of the log that outsiders can cause as often as they like. [`Limiter`] decides which of them are written; here the
//! rest are counted in a line of their own when the pause is over, because there may be no next event to tell of them.

use std::sync::{Arc, Mutex, PoisonError};

use crate::coordination::time::Wakeup;
use crate::runner::clock::Clock;
use crate::telemetry::limiter::{Limiter, Verdict};

/// The lines of one place in the program. Clones share the count.
#[derive(Clone)]
pub(super) struct LimitedLog<K> {
    clock: Clock,
    limiter: Arc<Mutex<Limiter<K>>>,
    /// Says how many of a kind were left out. `None`: of kinds that there was no room for.
    tell_left_out: fn(Option<&K>, u64),
}

impl<K: Ord + Clone + Send + 'static> LimitedLog<K> {
    pub(super) fn new(clock: &Clock, tell_left_out: fn(Option<&K>, u64)) -> Self {
        Self { clock: clock.clone(), limiter: Arc::default(), tell_left_out }
    }

    /// Whether an event of this kind gets a line. If not, it is counted.
    pub(super) fn admits(&self, kind: &K) -> bool {
        let now = self.clock.now().mono;
        let verdict = self.limiter.lock().unwrap_or_else(PoisonError::into_inner).admit(kind.clone(), now);
        match verdict {
            Verdict::Tell(0) => true,
            Verdict::Tell(left_out) => {
                (self.tell_left_out)(Some(kind), left_out);
                true
            }
            Verdict::First(rest) => {
                // One task for each pause of a kind; the number of kinds is bounded. It ends with the pause.
                let (log, until) = (self.clone(), now.saturating_add(rest));
                self.clock.spawn(async move {
                    while log.clock.now().mono < until {
                        log.clock.sleep_until(Wakeup { wall: None, mono: Some(until) }).await;
                    }
                    log.tell_due();
                });
                false
            }
            Verdict::Count => false,
        }
    }

    fn tell_due(&self) {
        let now = self.clock.now().mono;
        let due = self.limiter.lock().unwrap_or_else(PoisonError::into_inner).due(now);
        for (kind, left_out) in due {
            (self.tell_left_out)(kind.as_ref(), left_out);
        }
    }
}
