//! Is our session surely alive? A lease on the monotonic clock (P4).
//!
//! The registry ends a session when it has not heard from it for the session's timeout. It has heard from it, at the
//! earliest, when the last request that it answered was *sent*; a safety margin before that time is over, the
//! participant gives up by itself: whatever the network says later, the application has been told.
//!
//! Decides only when that is. It is looked at before anything else that has happened: a process that was asleep for
//! longer than its lease must learn that first, also if news of the registry wait for it.

use std::time::Duration;

use super::effect::Effect;
use super::input::Now;
use super::participant::{Participant, Session};

/// Until when the session may be acted on; monotonic. `None`: nothing is known to end it.
#[derive(Debug, Default)]
pub(super) struct Lease {
    until: Option<Duration>,
}

impl Lease {
    /// The registry has answered: the session may be acted on until then.
    pub(super) fn renew(&mut self, until: Duration) {
        self.until = self.until.max(Some(until));
    }

    /// How long it may be acted on without further word. `None`: not known.
    pub(super) fn remaining(&self, now: Duration) -> Option<Duration> {
        self.until.map(|until| until.saturating_sub(now))
    }

    /// When it ends, unless the registry answers before.
    pub(super) fn end(&self) -> Option<Duration> {
        self.until
    }
}

impl Participant {
    /// Gives the session up if it cannot be proven alive any more.
    pub(super) fn mind_lease(&mut self, now: Now) {
        let over = self.lease.until.is_some_and(|until| now.mono >= until);
        if over && self.session != Session::None {
            self.effects.push(Effect::GiveUpSession);
            self.lose_session();
        }
    }
}
