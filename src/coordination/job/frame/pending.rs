//! Commits in flight: at most one of each purpose, with a growing pause after a failure.
//!
//! A commit that failed because the view was behind would fail again at once. The pause ends early when the view
//! changes, but only a few times: a commit that fails on each new view has another reason. After some failures in a row
//! the view is read again.

use std::time::Duration;

use crate::coordination::job::contract::commit::{CommitId, Purpose};

/// The first pause after a failure; about one round trip to a busy ensemble.
const PAUSE_MIN: Duration = Duration::from_millis(20);
/// The longest pause; keeps a hopeless commit down to one a second.
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// Failures in a row after which the view is read again.
const DOUBT_AFTER: u32 = 3;
/// Failures in a row up to which a change of the view ends the pause.
const EARLY_MAX: u32 = 8;

/// A commit in flight, or one that has failed.
#[derive(Debug)]
struct Slot {
    purpose: Purpose,
    in_flight: Option<CommitId>,
    failures: u32,
    retry_at: Duration,
    failed_at_revision: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Pending {
    /// At most one of each purpose; few at a time.
    slots: Vec<Slot>,
    last_id: u64,
}

impl Pending {
    fn slot(&self, purpose: Purpose) -> Option<&Slot> {
        self.slots.iter().find(|slot| slot.purpose == purpose)
    }

    /// Takes the slot out, or a new one. The caller puts it back.
    fn take(&mut self, purpose: Purpose) -> Slot {
        match self.slots.iter().position(|slot| slot.purpose == purpose) {
            Some(at) => self.slots.swap_remove(at),
            None => Slot {
                purpose,
                in_flight: None,
                failures: 0,
                retry_at: Duration::ZERO,
                failed_at_revision: 0,
            },
        }
    }

    pub(crate) fn may(&self, purpose: Purpose, now: Duration, revision: u64) -> bool {
        self.slot(purpose).is_none_or(|slot| {
            let changed = revision != slot.failed_at_revision && slot.failures <= EARLY_MAX;
            slot.in_flight.is_none() && (slot.failures == 0 || now >= slot.retry_at || changed)
        })
    }

    pub(crate) fn is_in_flight(&self, purpose: Purpose) -> bool {
        self.slot(purpose).is_some_and(|slot| slot.in_flight.is_some())
    }

    /// Records that a commit is made.
    pub(crate) fn begin(&mut self, purpose: Purpose) -> CommitId {
        self.last_id += 1;
        let id = CommitId(self.last_id);
        let slot = self.take(purpose);
        self.slots.push(Slot { in_flight: Some(id), ..slot });
        id
    }

    /// Records that a commit has ended, and returns its purpose; `None`: it belongs to an earlier session.
    pub(crate) fn end(&mut self, id: CommitId) -> Option<Purpose> {
        let slot = self.slots.iter_mut().find(|slot| slot.in_flight == Some(id))?;
        slot.in_flight = None;
        Some(slot.purpose)
    }

    /// Records that a commit has succeeded.
    pub(crate) fn succeeded(&mut self, purpose: Purpose) {
        self.slots.retain(|slot| slot.purpose != purpose);
    }

    /// Records that a commit has failed. Returns whether the view has to be read again.
    pub(crate) fn failed(&mut self, purpose: Purpose, now: Duration, revision: u64) -> bool {
        let mut slot = self.take(purpose);
        let pause = PAUSE_MIN.saturating_mul(1 << slot.failures.min(10)).min(PAUSE_MAX);
        slot.failures = slot.failures.saturating_add(1);
        slot.retry_at = now.saturating_add(pause);
        slot.failed_at_revision = revision;
        let doubt = slot.failures.is_multiple_of(DOUBT_AFTER);
        self.slots.push(slot);
        doubt
    }

    /// Forgets all commits: the session has ended.
    pub(crate) fn clear(&mut self) {
        self.slots.clear();
    }

    pub(crate) fn next_retry(&self, now: Duration) -> Option<Duration> {
        self.slots
            .iter()
            .filter(|slot| slot.in_flight.is_none() && slot.failures > 0 && slot.retry_at > now)
            .map(|slot| slot.retry_at)
            .min()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn a_changed_view_ends_the_pause_but_not_of_a_commit_that_fails_on_each_new_view() {
        let mut pending = Pending::default();
        let (purpose, now) = (Purpose::Leave, Duration::from_secs(1));
        for failure in 1..=u64::from(EARLY_MAX) {
            let id = pending.begin(purpose);
            pending.end(id).unwrap();
            pending.failed(purpose, now, failure);
            assert!(!pending.may(purpose, now, failure), "nothing has changed");
            assert!(pending.may(purpose, now, failure + 1), "after {failure} failures");
        }
        let id = pending.begin(purpose);
        pending.end(id).unwrap();
        pending.failed(purpose, now, 100);
        assert!(!pending.may(purpose, now, 101));
        let retry = pending.next_retry(now).unwrap();
        assert!(retry <= now + PAUSE_MAX && pending.may(purpose, retry, 101));
    }
}
