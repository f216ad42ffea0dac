//! Proves a session alive with a write now and then, and knows until when that is proven (P4).
//!
//! The writes that prove it are in `proven`: those that were due anyway, or else one without effect. A session is used only
//! when it has been proven alive. The safety margin is the time that applications have to stop: the half tick for which a
//! server may keep to itself whom it has heard from is taken off before.

use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use crate::coordination::time::Wakeup;
use crate::registry::{Error, Session, SessionState};
use crate::tree::SessionId;

use super::clock::Clock;
use super::proven::ProvenSession;

/// Proofs within a session's timeout: a session whose connection breaks has nine tenths of its lease left.
const PROOFS_PER_TIMEOUT: u32 = 10;
/// The longest time between two proofs: an interruption within a long timeout costs no more of the lease than this.
const INTERVAL_MAX: Duration = Duration::from_secs(2);
/// The shortest: what a session of one second takes.
const INTERVAL_MIN: Duration = Duration::from_millis(100);
/// The part of the timeout that is kept as safety margin, as a divisor.
const MARGIN_PART: u32 = 5;
/// The least safety margin: what an application needs to hear of the loss, and to stop.
const MARGIN_MIN: Duration = Duration::from_millis(500);
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
    /// Has a session proven alive for the first time, and tells until when it may be acted on. `margin`: the safety
    /// margin; `None`: the default. Bounded in time by the registry's request timeout.
    pub(super) async fn begin(&self, session: &ProvenSession, margin: Option<Duration>) -> Result<(), Error> {
        if !may_end(session) {
            return Ok(());
        }
        session.prove().await?;
        // The connection may have broken just after the answer.
        let since = session.proven().borrow().since.ok_or(Error::Suspended)?;
        self.tell(session, since, margin);
        Ok(())
    }

    /// Proves a session alive until it cannot be any more, or somebody has given it up.
    pub(super) async fn keep(&mut self, session: &ProvenSession, clock: &Clock, margin: Option<Duration>) {
        let id = session.id();
        if !may_end(session) {
            // There is nothing to prove, and no lease to tell of.
            let _ = self.giving_up.wait_for(|given_up| *given_up == Some(id)).await;
            return;
        }
        let mut proven = session.proven();
        let since = proven.borrow_and_update().since.unwrap_or_default();
        let mut until = self.tell(session, since, margin);
        let mut proving = pin!(prove(session, clock, interval(session.timeout())));
        loop {
            let over = Wakeup { wall: None, mono: Some(until) };
            tokio::select! {
                // First of all: a process that was asleep may have an answer waiting, which proves nothing any more.
                biased;
                () = clock.sleep_until(over), if clock.now().mono < until => {}
                _ = self.giving_up.wait_for(|given_up| *given_up == Some(id)) => return,
                _ = proven.changed() => {}
                never = &mut proving => match never {},
            }
            if clock.now().mono >= until {
                tracing::warn!(session = %id, "the session cannot be proven alive in time; it is given up");
                return;
            }
            let since = proven.borrow_and_update().since.unwrap_or_default();
            until = until.max(self.tell(session, since, margin));
        }
    }

    /// Tells until when a session may be acted on, if that is later than what was told; gives that.
    fn tell(&self, session: &ProvenSession, since: Duration, margin: Option<Duration>) -> Duration {
        let until = since.saturating_add(usable(session.timeout(), margin));
        let proof = Proof { session: session.id(), until };
        self.proofs.send_if_modified(|told| {
            let newer = told.is_none_or(|told| told.session != proof.session || told.until < proof.until);
            if newer {
                *told = Some(proof);
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

/// Asks for a proof whenever no write was sent for an interval that was answered.
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
        // After an interruption little of the lease is left, so the next proof is asked for at once.
        let connected = state.wait_for(|state| *state != SessionState::Suspended).await;
        if !connected.is_ok_and(|state| *state == SessionState::Connected) {
            // Lost: somebody else sees to that.
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
    fn the_margin_is_a_fifth_but_half_a_second_at_least_and_half_at_most() {
        let seconds = Duration::from_secs;
        assert_eq!(usable(seconds(30), None), seconds(24));
        assert_eq!(usable(seconds(2), None), Duration::from_millis(1_500));
        assert_eq!(usable(seconds(1), None), Duration::from_millis(500));
        assert_eq!(usable(seconds(30), Some(seconds(10))), seconds(20));
        assert_eq!(usable(seconds(30), Some(seconds(60))), seconds(15));
    }
}
