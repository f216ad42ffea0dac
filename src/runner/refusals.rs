//! Says in the log that the registry refuses what a participant wants to record, for a reason that only a person can
//! remove: an access list, a quota. The participant tries again and again, so not every refusal is told.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tracing::warn;

use crate::coordination::effect::Purpose;
use crate::registry::Error;
use crate::tree::CommitError;

/// The pause between two warnings of one participant. Short enough for somebody who looks at the end of a log.
const PAUSE: Duration = Duration::from_secs(10);

/// The refusals of one participant's transactions.
#[derive(Default)]
pub(super) struct Refusals {
    /// When the last warning was given, monotonic.
    told: Mutex<Option<Duration>>,
}

impl Refusals {
    /// Warns of a transaction that the registry has refused, unless a warning was given just before.
    pub(super) fn tell(&self, now: Duration, purpose: Purpose, error: &CommitError) {
        if lasts(&error.error) && self.is_due(now) {
            warn!(%purpose, %error, "the registry refuses to record this; it is tried again");
        }
    }

    fn is_due(&self, now: Duration) -> bool {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        let is_due = told.is_none_or(|told| now >= told.saturating_add(PAUSE));
        if is_due {
            *told = Some(now);
        }
        is_due
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
        let due: Vec<_> = (0..25).filter(|second| refusals.is_due(Duration::from_secs(*second))).collect();
        assert_eq!(due, [0, 10, 20]);
    }

    #[test]
    fn only_what_a_person_can_remove_is_told() {
        assert!(lasts(&Error::NoPermission(Path::root())));
        assert!(lasts(&Error::Refused("/a: quota exceeded".to_owned())));
        assert!(!lasts(&Error::BadVersion(Path::root())));
        assert!(!lasts(&Error::Suspended));
    }
}
