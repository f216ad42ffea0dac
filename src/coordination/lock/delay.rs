//! The lock delay: after a holder has vanished without giving the lock back, nobody gets the lock for a while. Requests that the
//! holder had sent may arrive in that time (Chubby and Consul call it so; locks specification 13).
//!
//! A holder with a delay has a node that outlives its session. The node of a holder that is not in the queue any more stops
//! the first contender of the queue for the delay, counted from when that contender has seen it: never too short, because
//! the contender cannot see it earlier than it is. Then the contender deletes it.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::extension::lock::{Child, LockPaths};
use crate::mutants::mutant;
use crate::tree::{Error, Path};

/// The node of this contender's own delay.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Own {
    None,
    /// A request is in flight.
    Creating(Path),
    /// A request had an unknown outcome.
    Unknown(Path),
    There(Path),
}

/// What is to be done before the first of the queue may hold.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// The delay of a holder that has vanished is not over.
    Wait {
        /// The name of its node.
        name: String,
        /// When the delay is over; monotonic.
        until: Duration,
    },
    /// The contender's own delay needs this node. No other question before the answer.
    Create(Path),
    /// Nothing. These nodes of vanished holders are of no use any more.
    Hold(Vec<String>),
}

/// The delays that a contender knows.
#[derive(Debug)]
pub(super) struct Delays {
    wanted: Duration,
    own: Own,
    /// By the name of the node of a holder that has vanished: when this contender saw that; monotonic.
    vanished: BTreeMap<String, Duration>,
}

impl Delays {
    /// `wanted`: the contender's own delay. Zero: it has none.
    pub(super) fn new(wanted: Duration) -> Self {
        Self { wanted, own: Own::None, vanished: BTreeMap::new() }
    }

    /// What does the first of the queue do, which has this node, by the children of the lock's node?
    pub(super) fn next(&mut self, now: Duration, lock: &LockPaths, own: &str, children: &[String]) -> Next {
        let numbers = |name: &String| match Child::read(name) {
            Child::Contender { number, .. } => Some(number),
            Child::Delay { .. } | Child::WithoutNumber(_) | Child::OtherRecipe | Child::Foreign => None,
        };
        let is_queued = |number| children.iter().filter_map(numbers).any(|other| other == number);
        let delays = children.iter().filter_map(|name| match Child::read(name) {
            Child::Delay { delay, number } => (!is_queued(number)).then_some((name, delay)),
            Child::Contender { .. } | Child::WithoutNumber(_) | Child::OtherRecipe | Child::Foreign => None,
        });
        let delays: Vec<_> = delays.collect();
        self.vanished.retain(|known, _| delays.iter().any(|(name, _)| *name == known));
        let mut ends = Vec::with_capacity(delays.len());
        for (name, delay) in delays {
            let seen = *self.vanished.entry(name.clone()).or_insert(now);
            ends.push((seen.saturating_add(delay), name.clone()));
        }
        if let Some((until, name)) = ends.iter().max().filter(|(until, _)| now < *until)
            && !mutant!(LockDelayIgnored)
        {
            return Next::Wait { name: name.clone(), until: *until };
        }
        let wanted = lock.delay(self.wanted, own).filter(|_| !self.wanted.is_zero());
        if let Some(wanted) = wanted {
            if !children.iter().any(|name| name == wanted.name()) && !mutant!(LockDelayNotAnnounced) {
                self.own = Own::Creating(wanted.clone());
                return Next::Create(wanted);
            }
            self.own = Own::There(wanted);
        }
        Next::Hold(ends.into_iter().map(|(_, name)| name).collect())
    }

    /// The answer to the creation of this node. `Err`: it cannot be created.
    pub(super) fn created(&mut self, path: &Path, result: Result<(), Error>) -> Result<(), Error> {
        if self.own != Own::Creating(path.clone()) {
            return Ok(());
        }
        self.own = match result {
            Ok(()) | Err(Error::NodeExists(_)) => Own::There(path.clone()),
            // Without its parent: the contender's own node is gone as well, as the next look shows.
            Err(Error::OutcomeUnknown(_) | Error::Suspended | Error::SessionLost | Error::NoNode(_)) => {
                Own::Unknown(path.clone())
            }
            Err(error) => {
                self.own = Own::None;
                return Err(error);
            }
        };
        Ok(())
    }

    /// Whether the answer to a creation is missing.
    pub(super) fn is_creating(&self) -> bool {
        matches!(self.own, Own::Creating(_))
    }

    /// The node that is of no use, because the contender gives the lock back or has never held it. While its creation is in
    /// flight: not yet.
    pub(super) fn take(&mut self) -> Option<Path> {
        match std::mem::replace(&mut self.own, Own::None) {
            Own::None => None,
            own @ Own::Creating(_) => {
                self.own = own;
                None
            }
            Own::Unknown(path) | Own::There(path) => Some(path),
        }
    }

    /// The session is lost. Returns the node that was, or may have been, created.
    pub(super) fn lose_session(&mut self) -> Option<Path> {
        match std::mem::replace(&mut self.own, Own::None) {
            Own::None => None,
            Own::Creating(path) | Own::Unknown(path) | Own::There(path) => Some(path),
        }
    }

    /// Leaves the node where it is: the contender has lost the lock.
    pub(super) fn leave(&mut self) {
        self.own = Own::None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn lock() -> LockPaths {
        LockPaths::at(Path::parse("/locks/bill").unwrap())
    }

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn a_holder_that_has_vanished_delays_the_next_one_from_when_it_is_seen() {
        let mut delays = Delays::new(Duration::ZERO);
        let own = "_c_a-lock-0000000008";
        let delay = "delay-2000-0000000007".to_owned();
        let mut next = |now, children: &[&str]| delays.next(now, &lock(), own, &names(children));
        assert_eq!(next(SECOND, &[own]), Next::Hold(vec![]));
        let wait = Next::Wait { name: delay.clone(), until: 3 * SECOND };
        assert_eq!(next(SECOND, &[own, &delay]), wait);
        assert_eq!(next(2 * SECOND, &[own, &delay]), wait);
        assert_eq!(next(3 * SECOND, &[own, &delay]), Next::Hold(vec![delay.clone()]));
        // It was deleted, and another one comes.
        assert_eq!(next(4 * SECOND, &[own]), Next::Hold(vec![]));
        assert!(matches!(next(5 * SECOND, &[own, &delay]), Next::Wait { until, .. } if until == 7 * SECOND));
    }

    #[test]
    fn the_node_of_the_own_delay_is_there_before_the_lock_is_held() {
        let own = "_c_a-lock-0000000008";
        let mut delays = Delays::new(SECOND);
        let wanted = lock().child("delay-1000-0000000008").unwrap();
        assert_eq!(delays.next(SECOND, &lock(), own, &names(&[own])), Next::Create(wanted.clone()));
        assert!(delays.is_creating());
        assert_eq!(delays.take(), None);
        let unknown = Error::OutcomeUnknown(String::new());
        assert_eq!(delays.created(&wanted, Err(unknown)), Ok(()));
        assert_eq!(delays.next(SECOND, &lock(), own, &names(&[own])), Next::Create(wanted.clone()));
        assert_eq!(delays.created(&wanted, Err(Error::NodeExists(wanted.clone()))), Ok(()));
        assert_eq!(delays.next(SECOND, &lock(), own, &names(&[own, wanted.name()])), Next::Hold(vec![]));
        assert_eq!((delays.take(), delays.take()), (Some(wanted), None));
    }
}
