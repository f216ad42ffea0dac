//! Log lines that outsiders can cause as often as they like. [`Limiter`] decides which of them are written.
//! The others are counted; a line at the end of the pause has their number, because no further event may
//! come.

use std::sync::{Arc, Mutex, PoisonError};

use crate::coordination::time::Wakeup;
use crate::runner::clock::Clock;
use crate::telemetry::limiter::{Limiter, Verdict};

/// The lines of one place in the program. Clones share the counts.
#[derive(Clone)]
pub(crate) struct LimitedLog<K> {
    clock: Clock,
    limiter: Arc<Mutex<Limiter<K>>>,
    /// Logs how many events of a kind were left out. `None`: the kinds beyond the limit.
    log_left_out: fn(Option<&K>, u64),
}

impl<K: Ord + Clone + Send + 'static> LimitedLog<K> {
    pub(crate) fn new(clock: &Clock, log_left_out: fn(Option<&K>, u64)) -> Self {
        Self { clock: clock.clone(), limiter: Arc::default(), log_left_out }
    }

    /// Whether an event of this kind gets a line. If not, it is counted.
    pub(crate) fn admits(&self, kind: &K) -> bool {
        let now = self.clock.now().mono;
        let verdict = self.limiter.lock().unwrap_or_else(PoisonError::into_inner).admit(kind.clone(), now);
        match verdict {
            Verdict::Log(0) => true,
            Verdict::Log(left_out) => {
                (self.log_left_out)(Some(kind), left_out);
                true
            }
            Verdict::First(rest) => {
                // One task for each pause of a kind; the number of kinds is bounded. The task ends with the
                // pause.
                let (log, until) = (self.clone(), now.saturating_add(rest));
                self.clock.spawn(async move {
                    while log.clock.now().mono < until {
                        log.clock.sleep_until(Wakeup { wall: None, mono: Some(until) }).await;
                    }
                    log.log_due();
                });
                false
            }
            Verdict::Count => false,
        }
    }

    fn log_due(&self) {
        let now = self.clock.now().mono;
        let due = self.limiter.lock().unwrap_or_else(PoisonError::into_inner).due(now);
        for (kind, left_out) in due {
            (self.log_left_out)(kind.as_ref(), left_out);
        }
    }
}
