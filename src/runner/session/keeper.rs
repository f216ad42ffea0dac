//! Keeps one session with the registry for the whole sidecar. The keeper opens it, proves it alive ([`super::lease`]), and
//! opens another one when the session is lost or cannot be proven alive in time. The number of attempts has no limit: after a
//! registry was down for a day, no person must have to restart the sidecar.
//!
//! A sidecar that has to end while an application without a stream may still work abandons its session instead of closing it: the
//! lease of the application ends before the session does, so no other instance gets the items before the application has stopped.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tracing::{info, warn};

use crate::coordination::time::Wakeup;
use crate::metrics::meters::Meters;
use crate::registry::{Error, Registry, Session, SessionState};
use crate::runner::clock::Clock;
use crate::runner::state_file::writer::StateFile;
use crate::runner::waiting::becomes;

use super::current::NoSession;
use super::former::FormerSession;
use super::lease::{self, LeaseKeeper};
use super::proven::ProvenSession;

/// The first pause after a failed attempt.
const PAUSE_MIN: Duration = Duration::from_millis(100);
/// The longest pause between attempts. A registry that is up again is noticed after that time.
const PAUSE_MAX: Duration = Duration::from_millis(300);
/// The pause after the registry has refused our authentication, or we its. Each attempt costs the servers a handshake.
const PAUSE_REFUSED: Duration = Duration::from_secs(30);
/// The least time between two log lines that say that there is no session.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

/// How the sidecar ends its sessions when it stops.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CloseMode {
    /// Closes them, at once: all instances have left.
    Close,
    /// Leaves them to the registry, which ends them at their timeout. An instance has not left: its application may still
    /// execute its items, and the sidecar cannot tell it to stop. The timeout ends later than the lease that the application
    /// knows.
    Abandon,
}

/// Why the keeper has ended a session.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    /// The sidecar is stopping.
    Stopping(CloseMode),
    /// The registry has ended the session.
    Lost,
    /// It could not be proven alive in time, or a participant has given it up. The registry may still have it.
    GivenUp,
}

/// Waits until the sidecar stops. A sender that is dropped without a value has no instance attached any more.
async fn stopping(stop: &mut watch::Receiver<Option<CloseMode>>) -> CloseMode {
    let sent = stop.wait_for(Option::is_some).await;
    sent.ok().and_then(|mode| *mode).unwrap_or(CloseMode::Close)
}

async fn end(session: &dyn Session, mode: CloseMode) {
    match mode {
        CloseMode::Close => session.close().await,
        CloseMode::Abandon => session.abandon().await,
    }
}

/// Keeps a session until the sidecar stops, then ends it and those that were given up. The first session is the one of the
/// former process, if there is one and it is alive.
///
/// `current` gets each session, and `trouble` why the last attempt to open one has failed. `margin` is the safety margin of the
/// lease; `None`: the default. `stop` has the way to end the sessions as soon as the sidecar is to stop.
pub async fn keep(
    registry: Arc<dyn Registry>,
    clock: Clock,
    (current, trouble): (watch::Sender<Option<Arc<dyn Session>>>, watch::Sender<NoSession>),
    (mut lease_keeper, margin): (LeaseKeeper, Option<Duration>),
    (state_file, mut former): (StateFile, Option<FormerSession>),
    meters: Meters,
    mut stop: watch::Receiver<Option<CloseMode>>,
) {
    let mut pause = PAUSE_MIN;
    let mut logged: Option<Duration> = None;
    // The task of each session that was given up has a clone until it has closed the session.
    let (open_still, mut all_closed) = mpsc::channel::<Infallible>(1);
    loop {
        let opened = tokio::select! {
            biased;
            _ = stopping(&mut stop) => break,
            opened = open(&*registry, &clock, &mut former, (&lease_keeper, margin)) => opened,
        };
        match opened {
            Ok(session) => {
                (pause, logged) = (PAUSE_MIN, None);
                trouble.send_replace(NoSession::default());
                // A session of the embedded registry has no timeout.
                let timeout = Some(session.timeout()).filter(|timeout| *timeout < Duration::MAX);
                info!(session = %session.id(), timeout = timeout.map(tracing::field::debug), registry = registry.describe(), "session opened");
                if state_file.is_kept() {
                    state_file.set_session(session.key().await).await;
                }
                let mut state = session.state();
                let published: Arc<dyn Session> = Arc::<ProvenSession>::clone(&session);
                current.send_replace(Some(published));
                let reason = tokio::select! {
                    biased;
                    mode = stopping(&mut stop) => End::Stopping(mode),
                    () = becomes(&mut state, SessionState::Lost) => End::Lost,
                    () = lease_keeper.keep(&session, &clock, margin) => End::GivenUp,
                };
                current.send_replace(None);
                if let End::Stopping(mode) = reason {
                    end(&*session, mode).await;
                    break;
                }
                state_file.set_session(None).await;
                meters.session_lost();
                warn!(event = "SESSION_LOST", session = %session.id(), "session lost");
                if reason == End::GivenUp {
                    // The applications hear of the loss now, and have the margin to stop their executions. Their items
                    // are free only when the session ends.
                    let (clock, stop, open_still) = (clock.clone(), stop.clone(), open_still.clone());
                    let margin = lease::safety_margin(session.timeout(), margin);
                    clock.clone().spawn(async move {
                        close_after(&clock, margin, session, stop).await;
                        drop(open_still);
                    });
                }
            }
            Err(error) => {
                let now = clock.now().mono;
                trouble.send_replace(NoSession {
                    trouble: format!("{}: {error}", registry.describe()),
                    is_read_only: matches!(error, Error::ReadOnly(_)),
                });
                if logged.is_none_or(|logged| now >= logged.saturating_add(LOG_INTERVAL)) {
                    warn!(event = "REGISTRY_UNREACHABLE", %error, "no session with the registry; the sidecar tries to open one until it succeeds");
                    logged = Some(now);
                }
                let until_next = if matches!(error, Error::AuthRefused(_)) { PAUSE_REFUSED } else { pause };
                let wakeup = Wakeup { wall: None, mono: Some(now.saturating_add(until_next)) };
                tokio::select! {
                    biased;
                    _ = stopping(&mut stop) => break,
                    () = clock.sleep_until(wakeup) => {}
                }
                pause = pause.saturating_mul(2).min(PAUSE_MAX);
            }
        }
    }
    // Also a session of the former process that could not be reached: this process restores none of its instances any more.
    state_file.set_session(None).await;
    drop(open_still);
    // Ends when the last clone is dropped.
    let _ = all_closed.recv().await;
}

/// Ends a session that was given up, as soon as its applications have had the margin to stop. Other sidecars get its items
/// earlier than at the session's timeout.
async fn close_after(
    clock: &Clock,
    margin: Duration,
    session: Arc<dyn Session>,
    mut stop: watch::Receiver<Option<CloseMode>>,
) {
    let mut state = session.state();
    let mode = tokio::select! {
        biased;
        () = becomes(&mut state, SessionState::Lost) => return,
        mode = stopping(&mut stop) => mode,
        () = clock.sleep(margin) => CloseMode::Close,
    };
    end(&*session, mode).await;
}

/// Resumes the session of the former process, or opens a new one. Returns it once it is proven alive.
async fn open(
    registry: &dyn Registry,
    clock: &Clock,
    former: &mut Option<FormerSession>,
    (lease_keeper, margin): (&LeaseKeeper, Option<Duration>),
) -> Result<Arc<ProvenSession>, Error> {
    if let Some(found) = former.as_ref() {
        let asked = clock.now().mono;
        let session = registry.reopen(found.key()).await?;
        match &session {
            Some(session) => {
                info!(session = %session.id(), "resumed the session of the former process")
            }
            None => info!(session = %found.key().id, "the session of the former process is over"),
        }
        if let Some(session) = session {
            let proven = Arc::new(ProvenSession::new(Arc::clone(&session), clock.clone(), asked));
            if let Err(error) = lease_keeper.begin(&proven, margin).await {
                // It may be alive all the same. The next attempt asks for it again.
                session.abandon().await;
                return Err(error);
            }
            match found.clear_queues(&session).await {
                Ok(()) => {
                    *former = None;
                    return Ok(proven);
                }
                Err(error) => {
                    // All contenders would wait behind these nodes for as long as the session lives.
                    warn!(event = "FORMER_SESSION_GIVEN_UP", %error, "the latches and locks of the former process cannot be removed; its session is given up");
                    session.close().await;
                }
            }
        }
        *former = None;
    }
    let asked = clock.now().mono;
    let session = registry.open().await?;
    let session = Arc::new(ProvenSession::new(session, clock.clone(), asked));
    // If the proof fails, dropping the session closes it: no other task has it yet.
    lease_keeper.begin(&session, margin).await?;
    Ok(session)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures::future::{BoxFuture, ready};

    use super::*;
    use crate::registry::SessionKey;
    use crate::runner::session::lease::Lease;

    /// A registry that answers each attempt with the same error.
    struct Refusing {
        error: Error,
        attempts: Arc<AtomicUsize>,
    }

    impl Registry for Refusing {
        fn open(&self) -> BoxFuture<'_, Result<Arc<dyn Session>, Error>> {
            self.attempts.fetch_add(1, Ordering::Relaxed);
            Box::pin(ready(Err(self.error.clone())))
        }

        fn reopen<'a>(&'a self, _: &'a SessionKey) -> BoxFuture<'a, Result<Option<Arc<dyn Session>>, Error>> {
            Box::pin(ready(Err(self.error.clone())))
        }

        fn describe(&self) -> String {
            "refusing".to_owned()
        }
    }

    /// The attempts within two seconds, and the trouble that is shown.
    async fn attempts(error: Error) -> (usize, String) {
        let attempts = Arc::new(AtomicUsize::new(0));
        let registry = Arc::new(Refusing { error, attempts: Arc::clone(&attempts) });
        let clock = Clock::start();
        let (current, _) = watch::channel(None);
        let (trouble, shown) = watch::channel(NoSession::default());
        let (_lease, lease_keeper) = Lease::new();
        let (stop, stopped) = watch::channel(None);
        let keeping = keep(
            registry,
            clock.clone(),
            (current, trouble),
            (lease_keeper, None),
            (StateFile::none(), None),
            Meters::new("jobs", 0),
            stopped,
        );
        let stopping = async {
            clock.sleep(Duration::from_secs(2)).await;
            stop.send_replace(Some(CloseMode::Close));
        };
        tokio::join!(keeping, stopping);
        let shown = shown.borrow().trouble.clone();
        (attempts.load(Ordering::Relaxed), shown)
    }

    #[tokio::test]
    async fn se_10_refused_authentication_is_not_tried_again_at_once() {
        let (tried, shown) = attempts(Error::AuthRefused("the digest of `me`".to_owned())).await;
        assert_eq!(tried, 1);
        assert!(shown.contains("the digest of `me`"), "{shown}");
        let (tried, _) = attempts(Error::Unreachable("silent".to_owned())).await;
        assert!(tried > 3, "{tried}");
    }
}
