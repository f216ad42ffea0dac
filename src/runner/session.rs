//! One session with the registry for the whole sidecar. Opens it, proves it alive, and opens another one when it is
//! lost or cannot be proven alive any more ([`super::lease`]); there is no limit to the attempts, because a registry that
//! is away for a day must not need a person.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tracing::{info, warn};

use crate::coordination::time::Wakeup;
use crate::registry::{Error, Registry, Session, SessionState};

use super::clock::Clock;
use super::heirs::Former;
use super::lease::{self, Keeper};
use super::memory::Memory;
use super::proven::ProvenSession;

/// The first pause after a failed attempt.
const PAUSE_MIN: Duration = Duration::from_millis(100);
/// The longest pause: how long a registry that came back may go unnoticed.
const PAUSE_MAX: Duration = Duration::from_millis(300);
/// How often it is said that there is still no session.
const SAID_AGAIN: Duration = Duration::from_secs(10);

/// How the sidecar parts from its sessions when it stops.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Farewell {
    /// Everybody has left: they are closed.
    Close,
    /// Somebody has not: what it has in a session may still be executed, by an application that nobody can tell to stop.
    /// The session outlives the lease that was told, so it is left to its timeout.
    Abandon,
}

/// How a session has ended for us.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    /// The sidecar is stopping.
    Stopping(Farewell),
    /// It is lost.
    Lost,
    /// It could not be proven alive in time, or nobody wants it; the registry may still have it.
    GivenUp,
}

/// The present session, if there is one.
pub type Current = watch::Receiver<Option<Arc<dyn Session>>>;

/// Waits until the value is there. A sender that is gone will not change its mind: that ends the wait as well.
pub async fn becomes<T: PartialEq>(receiver: &mut watch::Receiver<T>, value: T) {
    let _ = receiver.wait_for(|now| *now == value).await;
}

/// Waits until the sidecar stops. Who is gone without a word has nobody attached any more.
async fn stopping(stop: &mut watch::Receiver<Option<Farewell>>) -> Farewell {
    let said = stop.wait_for(Option::is_some).await;
    said.ok().and_then(|farewell| *farewell).unwrap_or(Farewell::Close)
}

async fn part(session: &dyn Session, farewell: Farewell) {
    match farewell {
        Farewell::Close => session.close().await,
        Farewell::Abandon => session.abandon().await,
    }
}

/// Keeps a session until the sidecar stops, then parts from it, and from those that were given up; the first is the
/// former process's, if there is one and it lives. `lease`: what proves it alive, and the safety margin.
pub async fn keep(
    registry: Arc<dyn Registry>,
    clock: Clock,
    (current, trouble): (watch::Sender<Option<Arc<dyn Session>>>, watch::Sender<String>),
    (mut keeper, margin): (Keeper, Option<Duration>),
    (memory, mut former): (Memory, Option<Former>),
    mut stop: watch::Receiver<Option<Farewell>>,
) {
    let mut pause = PAUSE_MIN;
    let mut said: Option<Duration> = None;
    // Each session that was given up has a clone until it is closed.
    let (open_still, mut all_closed) = mpsc::channel::<Infallible>(1);
    loop {
        let opened = tokio::select! {
            biased;
            _ = stopping(&mut stop) => break,
            opened = open(&*registry, &clock, &mut former, (&keeper, margin)) => opened,
        };
        match opened {
            Ok(session) => {
                (pause, said) = (PAUSE_MIN, None);
                trouble.send_replace(String::new());
                // One of the embedded registry has none.
                let timeout = Some(session.timeout()).filter(|timeout| *timeout < Duration::MAX);
                info!(session = %session.id(), timeout = timeout.map(tracing::field::debug), registry = registry.describe(), "session opened");
                if memory.is_kept() {
                    memory.session(session.key().await).await;
                }
                let mut state = session.state();
                let published: Arc<dyn Session> = Arc::<ProvenSession>::clone(&session);
                current.send_replace(Some(published));
                let end = tokio::select! {
                    biased;
                    farewell = stopping(&mut stop) => End::Stopping(farewell),
                    () = becomes(&mut state, SessionState::Lost) => End::Lost,
                    () = keeper.keep(&session, &clock, margin) => End::GivenUp,
                };
                current.send_replace(None);
                if let End::Stopping(farewell) = end {
                    part(&*session, farewell).await;
                    break;
                }
                memory.session(None).await;
                warn!(session = %session.id(), "session lost");
                if end == End::GivenUp {
                    // Applications are being told now, and have the margin to stop in. Nobody gets their items before.
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
                trouble.send_replace(format!("{}: {error}", registry.describe()));
                if said.is_none_or(|said| now >= said.saturating_add(SAID_AGAIN)) {
                    warn!(%error, "no session; trying again and again");
                    said = Some(now);
                }
                let wakeup = Wakeup { wall: None, mono: Some(now.saturating_add(pause)) };
                tokio::select! {
                    biased;
                    _ = stopping(&mut stop) => break,
                    () = clock.sleep_until(wakeup) => {}
                }
                pause = pause.saturating_mul(2).min(PAUSE_MAX);
            }
        }
    }
    // Also the former process's that was not reached: nobody remembers what is in it any more.
    memory.session(None).await;
    drop(open_still);
    // Ends when the last clone is dropped.
    let _ = all_closed.recv().await;
}

/// Ends a session that was given up, but not before its applications have stopped; then others wait less for what it
/// held than if it expired.
async fn close_after(
    clock: &Clock,
    margin: Duration,
    session: Arc<dyn Session>,
    mut stop: watch::Receiver<Option<Farewell>>,
) {
    let mut state = session.state();
    let farewell = tokio::select! {
        biased;
        () = becomes(&mut state, SessionState::Lost) => return,
        farewell = stopping(&mut stop) => farewell,
        () = clock.sleep(margin) => Farewell::Close,
    };
    part(&*session, farewell).await;
}

/// Goes on with the former process's session, or opens one; gives it when it is proven alive.
async fn open(
    registry: &dyn Registry,
    clock: &Clock,
    former: &mut Option<Former>,
    (keeper, margin): (&Keeper, Option<Duration>),
) -> Result<Arc<ProvenSession>, Error> {
    if let Some(life) = former.as_ref() {
        let asked = clock.now().mono;
        let session = registry.reopen(life.key()).await?;
        match &session {
            Some(session) => {
                info!(session = %session.id(), "going on with the session of the former process")
            }
            None => info!(session = %life.key().id, "the session of the former process is over"),
        }
        if let Some(session) = session {
            let proven = Arc::new(ProvenSession::new(Arc::clone(&session), clock.clone(), asked));
            if let Err(error) = keeper.begin(&proven, margin).await {
                // It may live all the same: it is left alone, and asked for again.
                session.abandon().await;
                return Err(error);
            }
            match life.clear_latches(&session).await {
                Ok(()) => {
                    *former = None;
                    return Ok(proven);
                }
                Err(error) => {
                    // They would be in everybody's way for as long as the session lives.
                    warn!(%error, "the former process's latches cannot be removed; its session is given up");
                    session.close().await;
                }
            }
        }
        *former = None;
    }
    let asked = clock.now().mono;
    let session = registry.open().await?;
    let session = Arc::new(ProvenSession::new(session, clock.clone(), asked));
    // It is closed if it is not proven alive: it is nobody's yet.
    keeper.begin(&session, margin).await?;
    Ok(session)
}
