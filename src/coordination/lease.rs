//! Is the session surely alive? A lease on the monotonic clock (P4).
//!
//! The registry ends a session when it has received no request of the session for the session's timeout. So the lease
//! counts from the moment when the last request with a proof was *sent*; `runner/session/proven.rs` says which answers
//! prove the session alive.
//!
//! A safety margin before the timeout, each participant gives the session up by itself (`check_lease` and
//! `lose_session` in `job/participant.rs`): it forgets its commits and plans, answers waiting reports with
//! LEASE_LOST, sends a `Cancel` with LEASE_LOST for each running execution, then `SessionChanged` with LOST, then an
//! empty assignment. The runner withdraws the session at once and opens another one. It closes the old session only
//! after the margin, also if that turns out to be alive, or when the sidecar stops: applications have so long to
//! stop before other sidecars get the items (`runner/session/keeper.rs`).
//!
//! Decides only when that is. The lease is checked before every other input, on a clock that does not stop while the
//! machine sleeps: a process that slept longer than its lease must learn that first, also if changes of the registry
//! wait for it.
//!
//! A sidecar that is stopped cannot notify its application. Therefore the application regularly gets the end of its
//! lease, and stops its executions by itself when that has passed without a newer one. It gets the remaining time, and
//! the end on a clock of the kernel that both processes read (`SessionChanged.lease_end_boottime_ns`): an application
//! that was itself stopped reads old messages late, and must not count the remaining time from then.

use std::time::Duration;

/// The part of the sent lease after which the next end is sent, as a divisor: if one message is late, there is still
/// time for another.
const NOTIFY_PART: u32 = 3;
/// The shortest pause between two messages, also if little of the lease is left.
const NOTIFY_INTERVAL_MIN: Duration = Duration::from_millis(50);
/// Ends that are due within this time are sent together: all instances of a sidecar read one clock, and many messages at once cost
/// little more than one. A part of the interval that is too small to matter.
const NOTIFY_TOGETHER: Duration = Duration::from_millis(100);

/// Until when the participant may rely on the session; all times are monotonic.
#[derive(Debug, Default)]
pub(crate) struct Lease {
    /// `None`: the session has no known end.
    until: Option<Duration>,
    /// The last end that was sent.
    notified: Option<Duration>,
    /// When to check whether a later end is to be sent. `None`: at once.
    notify_at: Option<Duration>,
    /// The last end that the application got when it asked.
    answered: Option<Duration>,
}

impl Lease {
    /// The registry has answered: the participant may rely on the session until then.
    pub(crate) fn renew(&mut self, until: Duration) {
        self.until = self.until.max(Some(until));
    }

    /// The time until the end. `None`: not known.
    pub(crate) fn remaining(&self, now: Duration) -> Option<Duration> {
        self.until.map(|until| until.saturating_sub(now))
    }

    pub(crate) fn is_over(&self, now: Duration) -> bool {
        self.until.is_some_and(|until| now >= until)
    }

    /// The application asks, and gets this end.
    pub(crate) fn answer(&mut self, end: Option<Duration>) {
        self.answered = self.answered.max(end);
    }

    /// Whether it is time to send a later end.
    pub(crate) fn is_due(&self, now: Duration) -> bool {
        self.notify_at.is_none_or(|at| now >= at)
    }

    /// Whether the lease ends later than the end that was sent.
    pub(crate) fn is_newer(&self) -> bool {
        self.until > self.notified
    }

    /// The end, unless the registry answers before.
    pub(crate) fn end(&self) -> Option<Duration> {
        self.until
    }

    /// The latest end that the application has got, by itself or when it asked. `None`: none.
    pub(crate) fn notified(&self) -> Option<Duration> {
        self.notified.max(self.answered)
    }

    /// How often an application asks that counts its lease by the answers.
    pub(crate) fn renewal_interval(&self, now: Duration) -> Option<Duration> {
        self.remaining(now).map(|left| (left / NOTIFY_PART).max(NOTIFY_INTERVAL_MIN))
    }

    /// When to check whether a later end is to be sent.
    pub(crate) fn next_notice(&self) -> Option<Duration> {
        self.notify_at
    }

    /// Nothing was sent on the new stream yet.
    pub(crate) fn notify_again(&mut self) {
        (self.notified, self.notify_at, self.answered) = (None, None, None);
    }

    /// Records that the end is sent now; returns it.
    pub(crate) fn notify(&mut self, now: Duration) -> Option<Duration> {
        self.notified = self.until;
        self.notify_at = self.renewal_interval(now).map(|interval| together(now, interval));
        self.until
    }
}

/// An interval from now, or a little earlier, at an instant that many instances have in common.
fn together(now: Duration, interval: Duration) -> Duration {
    let at = now.saturating_add(interval);
    let early = u64::try_from(at.as_millis() % NOTIFY_TOGETHER.as_millis())
        .map_or(Duration::ZERO, Duration::from_millis);
    if interval <= NOTIFY_TOGETHER * 10 { at } else { at.saturating_sub(early) }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn ends_of_many_instances_are_sent_at_few_instants_and_not_later() {
        let mut instants = BTreeSet::new();
        for instance in 0..1_000 {
            let now = Duration::from_secs(100) + Duration::from_millis(instance);
            let mut lease = Lease::default();
            lease.renew(now + Duration::from_secs(24));
            lease.notify(now);
            let at = lease.next_notice().unwrap();
            let due = now + Duration::from_secs(24) / NOTIFY_PART;
            assert!(at <= due && due - at < NOTIFY_TOGETHER, "{at:?} {due:?}");
            instants.insert(at);
        }
        assert!(instants.len() <= 11, "{instants:?}");
    }

    #[test]
    fn the_end_of_a_short_lease_is_sent_at_its_own_instant() {
        let (now, mut lease) = (Duration::from_millis(1_234), Lease::default());
        lease.renew(now + Duration::from_millis(900));
        lease.notify(now);
        assert_eq!(lease.next_notice(), Some(now + Duration::from_millis(300)));
    }
}
