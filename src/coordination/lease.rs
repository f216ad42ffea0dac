//! Is our session surely alive? A lease on the monotonic clock (P4).
//!
//! The registry ends a session when it has not heard from it for the session's timeout. It has heard from it, at the
//! earliest, when the last request that it answered was *sent*; a safety margin before that time is over, the
//! participant gives up by itself: whatever the network says later, the application has been told.
//!
//! Decides only when that is. It is looked at before anything else that has happened: a process that was asleep for
//! longer than its lease must learn that first, also if news of the registry wait for it.
//!
//! A process that is stopped for that long cannot tell its application so. Therefore the application is told now and
//! then when the lease ends, and stops by itself what it executes when that is over without newer word.

use std::time::Duration;

/// The part of what the application was told after which it is told again, as a divisor: if one word is late, there is
/// still time for another.
const TELL_PART: u32 = 3;
/// The shortest time between two words, also if little of the lease is left.
const TELL_INTERVAL_MIN: Duration = Duration::from_millis(50);

/// Until when the session may be acted on; all times are monotonic.
#[derive(Debug, Default)]
pub(in crate::coordination) struct Lease {
    /// `None`: nothing is known to end it.
    until: Option<Duration>,
    /// The end that the application was told last.
    told: Option<Duration>,
    /// When to look whether it is to be told a later one. `None`: at once.
    tell_at: Option<Duration>,
    /// The end that it was given last when it asked.
    answered: Option<Duration>,
}

impl Lease {
    /// The registry has answered: the session may be acted on until then.
    pub(in crate::coordination) fn renew(&mut self, until: Duration) {
        self.until = self.until.max(Some(until));
    }

    /// How long it may be acted on without further word. `None`: not known.
    pub(in crate::coordination) fn remaining(&self, now: Duration) -> Option<Duration> {
        self.until.map(|until| until.saturating_sub(now))
    }

    /// Whether it is over.
    pub(in crate::coordination) fn is_over(&self, now: Duration) -> bool {
        self.until.is_some_and(|until| now >= until)
    }

    /// The application asks, and is given this end.
    pub(in crate::coordination) fn answer(&mut self, end: Option<Duration>) {
        self.answered = self.answered.max(end);
    }

    /// Whether it is time to tell the application of a later end.
    pub(in crate::coordination) fn is_due(&self, now: Duration) -> bool {
        self.tell_at.is_none_or(|at| now >= at)
    }

    /// Whether it ends later than the application was told.
    pub(in crate::coordination) fn is_newer(&self) -> bool {
        self.until > self.told
    }

    /// When it ends, unless the registry answers before.
    pub(in crate::coordination) fn end(&self) -> Option<Duration> {
        self.until
    }

    /// The latest end that the application was told, or given when it asked. `None`: it was told none.
    pub(in crate::coordination) fn told(&self) -> Option<Duration> {
        self.told.max(self.answered)
    }

    /// How often an application asks that counts its lease by the answers.
    pub(in crate::coordination) fn renewal_interval(&self, now: Duration) -> Option<Duration> {
        self.remaining(now).map(|left| (left / TELL_PART).max(TELL_INTERVAL_MIN))
    }

    /// When to look whether the application is to be told a later end.
    pub(in crate::coordination) fn next_word(&self) -> Option<Duration> {
        self.tell_at
    }

    /// Another stream has been told nothing yet.
    pub(in crate::coordination) fn tell_again(&mut self) {
        (self.told, self.tell_at, self.answered) = (None, None, None);
    }

    /// Takes note that the application is told now when it ends; gives that.
    pub(in crate::coordination) fn tell(&mut self, now: Duration) -> Option<Duration> {
        self.told = self.until;
        self.tell_at = self.renewal_interval(now).map(|interval| now.saturating_add(interval));
        self.until
    }
}
