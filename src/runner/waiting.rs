//! What a participant's task waits for, if there is such a thing now.

use std::sync::Arc;

use tokio::sync::{mpsc, watch};

use crate::registry::{Session, SessionState};

use super::participant::Told;
use super::session::Current;

/// Another session, or none; never, once nobody keeps any: then the sidecar is stopping, and what is left ends with it.
pub(super) async fn replaced(current: &mut Current) {
    if current.changed().await.is_err() {
        std::future::pending().await
    }
}

/// News of the session; never, if there is none.
pub(super) async fn session_changed(session: &mut Option<(Arc<dyn Session>, watch::Receiver<SessionState>)>) {
    if let Some((_, state)) = session
        && state.changed().await.is_ok()
    {
        return;
    }
    // Without a session, or when its state is final, only another session is news.
    std::future::pending().await
}

/// The end of the application's stream; never, if there is none.
pub(super) async fn closed(outbox: Option<mpsc::Sender<Told>>) {
    match outbox {
        Some(outbox) => outbox.closed().await,
        None => std::future::pending().await,
    }
}

/// Room in the stream; never, if there is none.
pub(super) async fn room(outbox: Option<mpsc::Sender<Told>>) -> Option<mpsc::OwnedPermit<Told>> {
    match outbox {
        Some(outbox) => outbox.reserve_owned().await.ok(),
        None => std::future::pending().await,
    }
}
