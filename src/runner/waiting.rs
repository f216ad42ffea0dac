//! What a participant's task waits for, if there is such a thing now.

use std::sync::Arc;

use tokio::sync::{mpsc, watch};

use crate::registry::{Session, SessionState};

use super::participant::Told;

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
