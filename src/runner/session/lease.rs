//! Proves the session alive with a write now and then, and publishes until when it is proven (P4).
//!
//! The session whose writes prove it is in `proven`: the writes that were due anyway, or else one without effect. A session is
//! used only after its first proof. The safety margin is the time that applications have to stop. It does not contain the
//! half tick after which a server reports the sessions that it has heard from: `proven` subtracts that before.

use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use crate::coordination::time::Wakeup;
use crate::registry::{Error, Session, SessionState};
use crate::runner::clock::Clock;
use crate::tree::SessionId;

use super::proven::ProvenSession;

/// Proofs within a session's timeout: a session whose connection breaks has nine tenths of its lease left.
const PROOFS_PER_TIMEOUT: u32 = 10;
/// The longest time between two proofs: an interruption within a long timeout costs no more of the lease than this.
const INTERVAL_MAX: Duration = Duration::from_secs(2);
/// The shortest time between two proofs: the one of a session with a timeout of one second.
const INTERVAL_MIN: Duration = Duration::from_millis(100);
/// The part of the timeout that is kept as safety margin, as a divisor.
const MARGIN_PART: u32 = 5;
/// The least safety margin: the time that an application needs to hear of the loss and to stop.
const MARGIN_MIN: Duration = Duration::from_millis(500);
/// The part of the timeout that the safety margin may take at most, as a divisor: the rest is the lease.
const MARGIN_PART_MAX: u32 = 2;

/// Until when a session may be acted on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Proof {
    /// The session.
    pub session: SessionId,
    /// Until when; monotonic, without the safety margin.
    pub until: Duration,
}

/// The participants' end of the session's lease: they read the proof, and may give the session up.
#[derive(Debug, Clone)]
pub struct Lease {
    /// The last proof.
    pub proof: watch::Receiver<Option<Proof>>,
    given_up: Arc<watch::Sender<Option<SessionId>>>,
}

impl Lease {
    /// Both ends of a lease: for the participants, and for the session's keeper.
    pub fn new() -> (Self, LeaseKeeper) {
        let (proofs, proof) = watch::channel(None);
        let (given_up, giving_up) = watch::channel(None);
        (Self { proof, given_up: Arc::new(given_up) }, LeaseKeeper { proofs, giving_up })
    }

    /// Gives a session up, because it could not be proven alive in time. The keeper ends it, also if a late proof comes.
    pub fn give_up(&self, session: SessionId) {
        self.given_up.send_replace(Some(session));
    }
}

/// The keeper's end of the session's lease: it proves the session alive, and publishes the proof.
#[derive(Debug)]
pub struct LeaseKeeper {
    proofs: watch::Sender<Option<Proof>>,
    giving_up: watch::Receiver<Option<SessionId>>,
}

impl LeaseKeeper {
    /// Proves a session alive for the first time, and publishes until when it may be acted on. `margin`: the safety
    /// margin; `None`: the default. Bounded in time by the registry's request timeout.
    pub(crate) async fn begin(&self, session: &ProvenSession, margin: Option<Duration>) -> Result<(), Error> {
        if !may_end(session) {
            return Ok(());
        }
        session.prove().await?;
        // The connection may have broken just after the answer.
        let since = session.proven().borrow().since.ok_or(Error::Suspended)?;
        self.publish(session, since, margin);
        Ok(())
    }

    /// Proves a session alive again and again. Ends when no proof came in time, or when a participant has given it up.
    pub(crate) async fn keep(&mut self, session: &ProvenSession, clock: &Clock, margin: Option<Duration>) {
        let id = session.id();
        if !may_end(session) {
            // The registry never ends this session, so there is no proof and no lease.
            let _ = self.giving_up.wait_for(|given_up| *given_up == Some(id)).await;
            return;
        }
        let mut proven = session.proven();
        let since = proven.borrow_and_update().since.unwrap_or_default();
        let mut until = self.publish(session, since, margin);
        let mut proving = pin!(prove(session, clock, interval(session.timeout())));
        loop {
            let over = Wakeup { wall: None, mono: Some(until) };
            tokio::select! {
                // The end of the lease comes first: after a process was asleep, a late answer may wait that proves nothing.
                biased;
                () = clock.sleep_until(over), if clock.now().mono < until => {}
                _ = self.giving_up.wait_for(|given_up| *given_up == Some(id)) => return,
                _ = proven.changed() => {}
                never = &mut proving => match never {},
            }
            if clock.now().mono >= until {
                tracing::warn!(event = "SESSION_NOT_PROVEN", session = %id, "the session could not be proven alive in time; it is given up");
                return;
            }
            let since = proven.borrow_and_update().since.unwrap_or_default();
            until = until.max(self.publish(session, since, margin));
        }
    }

    /// Publishes until when a session may be acted on, unless a later time is published already. Returns that time.
    fn publish(&self, session: &ProvenSession, since: Duration, margin: Option<Duration>) -> Duration {
        let until = since.saturating_add(usable(session.timeout(), margin));
        let proof = Proof { session: session.id(), until };
        self.proofs.send_if_modified(|last| {
            let newer = last.is_none_or(|last| last.session != proof.session || last.until < proof.until);
            if newer {
                *last = Some(proof);
            }
            newer
        });
        until
    }
}

/// Whether the registry ends a session that it does not hear from.
fn may_end(session: &ProvenSession) -> bool {
    session.timeout() != Duration::MAX
}

/// Sends a write without effect whenever no answered write was sent for an interval.
async fn prove(session: &ProvenSession, clock: &Clock, interval: Duration) -> Infallible {
    let mut state = session.state();
    let proven = session.proven();
    let mut asked = None;
    loop {
        let sent = proven.borrow().sent;
        let due = asked.max(sent).map_or(Duration::ZERO, |last| last.saturating_add(interval));
        if clock.now().mono < due {
            clock.sleep_until(Wakeup { wall: None, mono: Some(due) }).await;
            continue;
        }
        // After an interruption little of the lease is left: the next proof is due at once.
        let connected = state.wait_for(|state| *state != SessionState::Suspended).await;
        if !connected.is_ok_and(|state| *state == SessionState::Connected) {
            // The session is lost: its keeper sees that itself.
            return std::future::pending().await;
        }
        asked = Some(clock.now().mono);
        if let Err(error) = session.prove().await {
            tracing::debug!(session = %session.id(), %error, "no proof that the session is alive");
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

/// The time between the end of a session's lease and its timeout, in which applications stop. `margin`: as configured;
/// `None`: the default.
pub(crate) fn safety_margin(timeout: Duration, margin: Option<Duration>) -> Duration {
    let margin = margin.unwrap_or_else(|| (timeout / MARGIN_PART).max(MARGIN_MIN));
    margin.min(timeout / MARGIN_PART_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_margin_is_a_fifth_but_half_a_second_at_least_and_half_at_most() {
        let seconds = Duration::from_secs;
        assert_eq!(usable(seconds(30), None), seconds(24));
        assert_eq!(usable(seconds(2), None), Duration::from_millis(1_500));
        assert_eq!(usable(seconds(1), None), Duration::from_millis(500));
        assert_eq!(usable(seconds(30), Some(seconds(10))), seconds(20));
        assert_eq!(usable(seconds(30), Some(seconds(60))), seconds(15));
    }
}
