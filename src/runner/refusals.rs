//! Says in the log that the registry refuses what a participant wants to record, for a reason that only a person can
//! remove: an access list, a quota. The participant tries again and again, so not every refusal is told.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tracing::warn;

use crate::coordination::job::contract::commit::Purpose;
use crate::registry::Error;
use crate::telemetry::limiter::{Limiter, Verdict};
use crate::tree::CommitError;

/// The refusals of one participant's transactions. They are of one kind: what is refused, all of them are about.
#[derive(Default)]
pub(super) struct Refusals {
    limiter: Mutex<Limiter<()>>,
}

impl Refusals {
    /// Warns of a transaction that the registry has refused, unless a warning was given just before. What is left out then
    /// is told with the next one, because a participant goes on trying.
    pub(super) fn tell(&self, now: Duration, purpose: Purpose, error: &CommitError) {
        if lasts(&error.error)
            && let Some(left_out) = self.admit(now)
        {
            warn!(%purpose, %error, left_out, "the registry refuses to record this; it is tried again");
        }
    }

    /// How many warnings were left out before this one, if it is to be given.
    fn admit(&self, now: Duration) -> Option<u64> {
        match self.limiter.lock().unwrap_or_else(PoisonError::into_inner).admit((), now) {
            Verdict::Tell(left_out) => Some(left_out),
            Verdict::First(_) | Verdict::Count => None,
        }
    }
}

/// Whether the same request will be refused again, whatever the other participants do.
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
        | Error::Unreachable(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::Path;

    #[test]
    fn a_refusal_that_is_repeated_is_told_now_and_then() {
        let refusals = Refusals::default();
        let told = |second| Some((second, refusals.admit(Duration::from_secs(second))?));
        assert_eq!((0..25).filter_map(told).collect::<Vec<_>>(), [(0, 0), (10, 9), (20, 9)]);
    }

    #[test]
    fn only_what_a_person_can_remove_is_told() {
        assert!(lasts(&Error::NoPermission(Path::root())));
        assert!(lasts(&Error::Refused("/a: quota exceeded".to_owned())));
        assert!(!lasts(&Error::BadVersion(Path::root())));
        assert!(!lasts(&Error::Suspended));
    }
}
