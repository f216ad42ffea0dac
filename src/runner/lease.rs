//! Proves a session alive with a request of our own now and then, and knows until when that is proven (P4).
//!
//! ZooKeeper's own pings would do as well, but the client does not tell when they were answered. Any answer counts:
//! the server that gives it has heard from the session. What counts is when the request was *sent*.
//!
//! A server of an ensemble tells the leader which sessions it has heard from every half tick; one that crashes takes
//! what it has not told with it. This, and the way to the application, is what the safety margin is for.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use crate::coordination::participant::Wakeup;
use crate::registry::{Error, Session, SessionState};
use crate::tree::{Path, SessionId};

use super::clock::Clock;

/// Proofs within a session's timeout: a session whose connection breaks has nine tenths of its lease left.
const PROOFS_PER_TIMEOUT: u32 = 10;
/// The longest time between two proofs: an interruption within a long timeout costs no more of the lease than this.
const INTERVAL_MAX: Duration = Duration::from_secs(2);
/// The shortest: what a session of one second takes.
const INTERVAL_MIN: Duration = Duration::from_millis(100);
/// The part of the timeout that is kept as safety margin, as a divisor.
const MARGIN_PART: u32 = 5;
/// The least safety margin: above half a tick of servers with the usual tick of two seconds.
const MARGIN_MIN: Duration = Duration::from_secs(1);
/// The part of the timeout that the safety margin may take at most, as a divisor: something must be left.
const MARGIN_PART_MAX: u32 = 2;

/// Until when a session may be acted on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Proof {
    /// The session.
    pub session: SessionId,
    /// Until when; monotonic. The safety margin is taken off.
    pub until: Duration,
}

/// What participants know of the session's lease.
#[derive(Debug, Clone)]
pub struct Lease {
    /// The last proof.
    pub proof: watch::Receiver<Option<Proof>>,
    given_up: Arc<watch::Sender<Option<SessionId>>>,
}

impl Lease {
    /// The participants' end, and what proves and obeys.
    pub fn new() -> (Self, Keeper) {
        let (proofs, proof) = watch::channel(None);
        let (given_up, giving_up) = watch::channel(None);
        (Self { proof, given_up: Arc::new(given_up) }, Keeper { proofs, giving_up })
    }

    /// Says that a session could not be proven alive in time: it is ended, also if it is proven alive after all.
    pub fn give_up(&self, session: SessionId) {
        self.given_up.send_replace(Some(session));
    }
}

/// The end of [`Lease`] that keeps the session.
#[derive(Debug)]
pub struct Keeper {
    proofs: watch::Sender<Option<Proof>>,
    giving_up: watch::Receiver<Option<SessionId>>,
}

impl Keeper {
    /// Proves a session alive until it cannot be any more, or somebody has given it up. `margin`: the safety margin;
    /// `None`: the default.
    pub async fn keep(&mut self, session: &dyn Session, clock: &Clock, margin: Option<Duration>) {
        let id = session.id();
        if session.timeout() == Duration::MAX {
            // Nothing ends it by itself: there is nothing to prove, and no lease to tell of.
            let _ = self.giving_up.wait_for(|given_up| *given_up == Some(id)).await;
            return;
        }
        let usable = usable(session.timeout(), margin);
        // It was alive a moment ago: it was opened.
        let mut until = clock.now().mono.saturating_add(usable);
        self.proofs.send_replace(Some(Proof { session: id, until }));
        loop {
            let over = Wakeup { wall: None, mono: Some(until) };
            let proven = tokio::select! {
                // First of all: a process that was asleep may have an answer waiting, which proves nothing any more.
                biased;
                () = clock.sleep_until(over), if clock.now().mono < until => None,
                _ = self.giving_up.wait_for(|given_up| *given_up == Some(id)) => return,
                sent = prove(session, clock, interval(session.timeout())) => Some(sent.saturating_add(usable)),
            };
            if clock.now().mono >= until {
                tracing::warn!(session = %id, "the session cannot be proven alive in time; it is given up");
                return;
            }
            if let Some(proven) = proven {
                until = until.max(proven);
                self.proofs.send_replace(Some(Proof { session: id, until }));
            }
        }
    }
}

/// Waits for the interval, and asks until there is an answer; gives when that request was sent.
async fn prove(session: &dyn Session, clock: &Clock, interval: Duration) -> Duration {
    let mut state = session.state();
    loop {
        let wakeup = Wakeup { wall: None, mono: Some(clock.now().mono.saturating_add(interval)) };
        clock.sleep_until(wakeup).await;
        // Whoever comes back has little of the lease left, and proves himself at once.
        let connected = state.wait_for(|state| *state != SessionState::Suspended).await;
        if !connected.is_ok_and(|state| *state == SessionState::Connected) {
            // Lost: somebody else sees to that.
            return std::future::pending().await;
        }
        let sent = clock.now().mono;
        match session.get(&Path::root()).await {
            Err(Error::OutcomeUnknown(_) | Error::Suspended | Error::SessionLost | Error::Unreachable(_)) => {
            }
            // A refusal is an answer, too.
            Ok(_) | Err(_) => return sent,
        }
    }
}

fn interval(timeout: Duration) -> Duration {
    (timeout / PROOFS_PER_TIMEOUT).clamp(INTERVAL_MIN, INTERVAL_MAX)
}

/// For how long after a proof the session may be acted on.
fn usable(timeout: Duration, margin: Option<Duration>) -> Duration {
    timeout.saturating_sub(safety_margin(timeout, margin))
}

/// What is left of a session when it is given up: the time that applications have to stop. `margin`: as configured;
/// `None`: the default.
pub(super) fn safety_margin(timeout: Duration, margin: Option<Duration>) -> Duration {
    let margin = margin.unwrap_or_else(|| (timeout / MARGIN_PART).max(MARGIN_MIN));
    margin.min(timeout / MARGIN_PART_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_margin_is_a_fifth_but_a_second_at_least_and_half_at_most() {
        let seconds = Duration::from_secs;
        assert_eq!(usable(seconds(30), None), seconds(24));
        assert_eq!(usable(seconds(3), None), seconds(2));
        assert_eq!(usable(seconds(1), None), Duration::from_millis(500));
        assert_eq!(usable(seconds(30), Some(seconds(10))), seconds(20));
        assert_eq!(usable(seconds(30), Some(seconds(60))), seconds(15));
    }
}
