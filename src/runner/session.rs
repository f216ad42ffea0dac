//! One session with the registry for the whole sidecar. Opens it, proves it alive, and opens another one when it is
//! lost or cannot be proven alive any more ([`super::lease`]); there is no limit to the attempts, because a registry that is away for a day must not need a person.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tracing::{info, warn};

use crate::coordination::participant::Wakeup;
use crate::registry::{Error, Registry, Session, SessionState};

use super::clock::Clock;
use super::heirs::Former;
use super::lease::Keeper;
use super::memory::Memory;

/// The first pause after a failed attempt.
const PAUSE_MIN: Duration = Duration::from_millis(100);
/// The longest pause: how long a registry that came back may go unnoticed.
const PAUSE_MAX: Duration = Duration::from_secs(2);
/// How long ending a session that was given up may hold up the next one. If it cannot be ended, it expires.
const FAREWELL: Duration = Duration::from_secs(1);

/// The present session, if there is one.
pub type Current = watch::Receiver<Option<Arc<dyn Session>>>;

/// Waits until the value is there. A sender that is gone will not change its mind: that ends the wait as well.
pub async fn becomes<T: PartialEq>(receiver: &mut watch::Receiver<T>, value: T) {
    let _ = receiver.wait_for(|now| *now == value).await;
}

/// Keeps a session until `stop` is true, then closes it; the first is the former process's, if there is one and it
/// lives. `lease`: what proves it alive, and the safety margin.
pub async fn keep(
    registry: Arc<dyn Registry>,
    clock: Clock,
    current: watch::Sender<Option<Arc<dyn Session>>>,
    mut lease: (Keeper, Option<Duration>),
    (memory, mut former): (Memory, Option<Former>),
    mut stop: watch::Receiver<bool>,
) {
    let mut pause = PAUSE_MIN;
    loop {
        let opened = tokio::select! {
            biased;
            () = becomes(&mut stop, true) => return,
            opened = open(&*registry, &mut former) => opened,
        };
        match opened {
            Ok(session) => {
                pause = PAUSE_MIN;
                info!(session = %session.id(), timeout = ?session.timeout(), registry = registry.describe(), "session opened");
                if memory.is_kept() {
                    memory.session(session.key().await).await;
                }
                let mut state = session.state();
                current.send_replace(Some(Arc::clone(&session)));
                let (keeper, margin) = &mut lease;
                let stopping = tokio::select! {
                    biased;
                    () = becomes(&mut stop, true) => true,
                    () = becomes(&mut state, SessionState::Lost) => false,
                    () = keeper.keep(&*session, &clock, *margin) => false,
                };
                current.send_replace(None);
                if stopping {
                    session.close().await;
                    memory.session(None).await;
                    return;
                }
                memory.session(None).await;
                warn!(session = %session.id(), "session lost");
                // The server may still have it: then others wait less for what it held.
                let farewell = Wakeup { wall: None, mono: Some(clock.now().mono.saturating_add(FAREWELL)) };
                tokio::select! {
                    biased; // The session is told to end before anybody looks at the time.
                    () = session.close() => {}
                    () = clock.sleep_until(farewell) => {}
                }
            }
            Err(error) => {
                warn!(%error, "no session; trying again in {pause:?}");
                let wakeup = Wakeup { wall: None, mono: Some(clock.now().mono.saturating_add(pause)) };
                tokio::select! {
                    biased;
                    () = becomes(&mut stop, true) => return,
                    () = clock.sleep_until(wakeup) => {}
                }
                pause = pause.saturating_mul(2).min(PAUSE_MAX);
            }
        }
    }
}

/// Goes on with the former process's session, or opens one.
async fn open(registry: &dyn Registry, former: &mut Option<Former>) -> Result<Arc<dyn Session>, Error> {
    let Some(life) = former.as_ref() else { return registry.open().await };
    let session = registry.reopen(life.key()).await?;
    match &session {
        Some(session) => info!(session = %session.id(), "going on with the session of the former process"),
        None => info!(session = %life.key().id, "the session of the former process is over"),
    }
    if let Some(session) = session {
        match life.clear_latches(&session).await {
            Ok(()) => {
                *former = None;
                return Ok(session);
            }
            Err(error) => {
                // They would be in everybody's way for as long as the session lives.
                warn!(%error, "the former process's latches cannot be removed; its session is given up");
                session.close().await;
            }
        }
    }
    *former = None;
    registry.open().await
}
