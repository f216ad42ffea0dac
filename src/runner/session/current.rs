//! The session as all tasks of the sidecar see it: the keeper publishes it here. Decides nothing.

use std::sync::Arc;

use tokio::sync::watch;

use crate::registry::{Session, SessionState};

/// The sidecar's session now; `None`: there is none.
pub type Current = watch::Receiver<Option<Arc<dyn Session>>>;

/// Why there is no session.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NoSession {
    /// The error of the last attempt to open one. Empty: the attempt succeeded.
    pub trouble: String,
    /// Whether the servers that answered serve read-only.
    pub is_read_only: bool,
}

/// A session that a task follows, with the news of its state.
pub(crate) type Followed = (Arc<dyn Session>, watch::Receiver<SessionState>);

/// Whether the session that a task follows is the sidecar's session now, or there is none of both.
pub(crate) fn is_followed(followed: Option<&Followed>, current: Option<&Arc<dyn Session>>) -> bool {
    match (followed, current) {
        (Some((ours, _)), Some(theirs)) => Arc::ptr_eq(ours, theirs),
        (None, None) => true,
        (Some(_), None) | (None, Some(_)) => false,
    }
}

/// Waits until the keeper publishes another session, or none. Never ends once the keeper is dropped: then the sidecar is
/// stopping, and the task that waits ends with it.
pub(crate) async fn replaced(current: &mut Current) {
    if current.changed().await.is_err() {
        std::future::pending().await
    }
}

/// Waits until the state of the session changes. Never ends if there is no session, or if its state is final: then only
/// [`replaced`] can end.
pub(crate) async fn session_changed(session: &mut Option<Followed>) {
    if let Some((_, state)) = session
        && state.changed().await.is_ok()
    {
        return;
    }
    std::future::pending().await
}
