//! Log lines about a participant: events for its application, problems, failed executions, and refusals of the registry.
//! Decides only which refusals are logged: the participant tries again and again, so not each of them is.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tracing::{debug, info, warn};

use crate::coordination::job::contract::commit::Purpose;
use crate::coordination::job::contract::effect::{LockWait, RetryNews};
use crate::coordination::job::contract::event::Event;
use crate::coordination::time::Now;
use crate::excerpt::Excerpt;
use crate::findings::problem::Problem;
use crate::job::Item;
use crate::registry::Error;
use crate::telemetry::limiter::{Limiter, Verdict};
use crate::tree::CommitError;

/// Items of an assignment that a log line lists at most. It always has their number.
const ITEMS_LOGGED: usize = 100;

/// Logs an event for the application.
pub(super) fn event(now: Now, event: &Event) {
    match event {
        Event::AssignmentChanged { assignment, reason, leader, .. } => {
            let items: Vec<_> =
                assignment.items.iter().map(|assigned| assigned.item).take(ITEMS_LOGGED).collect();
            let (generation, count) = (assignment.generation.0, assignment.items.len());
            info!(generation, count, ?items, leader, ?reason, "assignment");
        }
        Event::SessionChanged { status, lease_end } => {
            let remaining_lease = lease_end.map(|end| end.saturating_sub(now.mono));
            info!(?status, ?remaining_lease, "session");
        }
        Event::LeaseRenewed { lease_end } => {
            debug!(remaining = ?lease_end.saturating_sub(now.mono), "lease");
        }
        Event::Waiting(what) => info!(?what, "not attached yet"),
        Event::Draining { remaining } => info!(?remaining, "draining: nothing more starts here"),
        Event::Execute(_)
        | Event::Attached { .. }
        | Event::Cancel { .. }
        | Event::LeadershipChanged(_)
        | Event::JobChanged { .. }
        | Event::CallListener(_) => {}
    }
}

/// Logs what is wrong with a node.
pub(super) fn problem(problem: &Problem) {
    let (path, detail) = problem.excerpt();
    warn!(event = "NODE_PROBLEM", code = problem.code.as_str(), %path, %detail, "a node of the job has a problem");
}

/// Logs what becomes of an execution that has failed.
pub(super) fn retry(item: Item, news: RetryNews) {
    match news {
        RetryNews::Waits { attempt, of, pause } => {
            info!(%item, attempt, of, ?pause, "an execution failed and will be tried again");
        }
        RetryNews::Dropped { attempt, why } => {
            warn!(event = "RETRY_DROPPED", %item, attempt, why, "an execution that failed is not tried again");
        }
        RetryNews::GivenUp { attempts } => {
            warn!(event = "RETRIES_EXHAUSTED", %item, attempts, "an execution failed for the last time and is given up");
        }
    }
}

/// Logs the wait of an execution for the lock of its item. `is_new`: its holder was not known.
pub(super) fn lock_wait(item: Item, wait: &LockWait, is_new: bool) {
    match wait {
        LockWait::Behind { lock, holder } if is_new => {
            let holder = holder.as_deref().map(Excerpt::of).map(tracing::field::display);
            info!(%item, lock, holder, "an execution waits for the lock of its item");
        }
        LockWait::GivenUp { lock, after } => {
            warn!(event = "ITEM_LOCK_NOT_FREE", %item, lock, ?after, "an execution does not begin: the lock of its item was not free in time");
        }
        LockWait::Behind { .. } | LockWait::Over => {}
    }
}

/// The refusals of one participant's transactions by the registry. They have one limit for all: they have the same cause.
#[derive(Default)]
pub(super) struct Refusals {
    limiter: Mutex<Limiter<()>>,
}

impl Refusals {
    /// Warns of a transaction that the registry has refused, if only a person can remove the cause: an access list, a quota.
    /// Not if a warning was given just before; the next warning counts the refusals that were left out.
    pub(super) fn warn(&self, now: Duration, purpose: Purpose, error: &CommitError) {
        if lasts(&error.error)
            && let Some(left_out) = self.admit(now)
        {
            warn!(event = "REGISTRY_REFUSES", %purpose, %error, left_out, "the registry refuses to record this; it is tried again");
        }
    }

    /// How many warnings were left out before this one; `None`: this one is left out too.
    fn admit(&self, now: Duration) -> Option<u64> {
        match self.limiter.lock().unwrap_or_else(PoisonError::into_inner).admit((), now) {
            Verdict::Log(left_out) => Some(left_out),
            Verdict::First(_) | Verdict::Count => None,
        }
    }
}

/// Whether the registry will refuse the same request again, whatever the other participants do.
fn lasts(error: &Error) -> bool {
    match error {
        Error::NoPermission(_) | Error::Refused(_) => true,
        Error::NoNode(_)
        | Error::NodeExists(_)
        | Error::BadVersion(_)
        | Error::NotEmpty(_)
        | Error::ParentIsEphemeral(_)
        | Error::OutcomeUnknown(_)
        | Error::Suspended
        | Error::SessionLost
        | Error::Unreachable(_)
        | Error::ReadOnly(_)
        | Error::AuthRefused(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::Path;

    #[test]
    fn of_repeated_refusals_one_in_ten_seconds_is_logged() {
        let refusals = Refusals::default();
        let logged = |second| Some((second, refusals.admit(Duration::from_secs(second))?));
        assert_eq!((0..25).filter_map(logged).collect::<Vec<_>>(), [(0, 0), (10, 9), (20, 9)]);
    }

    #[test]
    fn only_refusals_with_a_cause_for_a_person_are_logged() {
        assert!(lasts(&Error::NoPermission(Path::root())));
        assert!(lasts(&Error::Refused("/a: quota exceeded".to_owned())));
        assert!(!lasts(&Error::BadVersion(Path::root())));
        assert!(!lasts(&Error::Suspended));
    }
}
