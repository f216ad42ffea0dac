//! Keeps a session alive: one task that owns its connection, and replaces a broken connection.
//!
//! The session is lost when the server reports it, or when no server can have received a message for longer
//! than the session's timeout: then the ensemble has ended the session, even if it cannot report that.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{sleep, timeout};
use zookeeper_client as zk;

use super::connection::{Broken, Connection, LinkState, OpenError};
use super::convert::ANY_VERSION;
use super::session::{CloseMode, Shared};
use super::settings::Checked;
use crate::registry::SessionState;

/// The pause after the first failed attempt to reconnect; it doubles. A killed server is back in a second.
const FIRST_PAUSE: Duration = Duration::from_millis(20);

/// The longest pause between two attempts. The sidecar's outage may be longer than the server's by this
/// pause. An attempt that finds no serving server costs a server one question at most.
const LONGEST_PAUSE: Duration = Duration::from_millis(150);

/// The pause after a server has refused a certificate, or we have refused its. The session outlives a few of these.
const REFUSED_PAUSE: Duration = Duration::from_secs(1);

/// The range over which sessions spread their longest pauses, so that a fleet does not return to a server all
/// at once.
const SPREAD_MS: u64 = 100;

/// Serves a session until its end.
pub(super) async fn supervise(shared: Arc<Shared>, connection: Connection) {
    let session = shared.info.id();
    let mut current = Some(connection);
    while let Some(mut connection) = current.take() {
        let broken = tokio::select! {
            // A session that is left needs no other connection.
            biased;
            close_mode = close_requested(&shared) => Err(close_mode),
            broken = connection.broken(&shared.checked) => Ok(broken),
        };
        match broken {
            Err(CloseMode::Close) => {
                shared.links.send_replace(LinkState::Lost);
                connection.close(shared.checked.settings.request_timeout).await;
            }
            Err(CloseMode::Abandon) => {
                tracing::info!(%session, "the session with ZooKeeper is left to its timeout");
                shared.links.send_replace(LinkState::Lost);
                connection.cut().await;
            }
            Ok(Broken::SessionEnded) => {
                shared.links.send_replace(LinkState::Lost);
                connection.cut().await;
            }
            Ok(Broken::Disconnected) => {
                tracing::info!(%session, "the connection with ZooKeeper is broken");
                shared.links.send_replace(LinkState::Down);
                shared.state.send_replace(SessionState::Suspended);
                connection.cut().await;
                current = reconnect(&shared).await;
                if let Some(connection) = &current {
                    tracing::info!(%session, "connected with ZooKeeper again");
                    shared.links.send_replace(LinkState::Up(Arc::clone(&connection.link)));
                    shared.state.send_replace(SessionState::Connected);
                }
            }
        }
    }
    tracing::info!(%session, "the session with ZooKeeper has ended");
    shared.links.send_replace(LinkState::Lost);
    shared.state.send_replace(SessionState::Lost);
}

/// Waits for a request to leave the session.
async fn close_requested(shared: &Shared) -> CloseMode {
    let mut requested = shared.close_mode.subscribe();
    // The sender is in `shared`, so this cannot fail.
    let close_mode = requested.wait_for(Option::is_some).await.ok().and_then(|mode| *mode);
    close_mode.unwrap_or(CloseMode::Close)
}

/// Attaches a new connection to the session. `None`: the session is lost, or this process leaves it.
async fn reconnect(shared: &Shared) -> Option<Connection> {
    // Counted from now, later than the last message that the server received. A third more, for the server's
    // clock and the network.
    let mut over = pin!(sleep(shared.timeout.saturating_mul(4) / 3));
    let mut pause = FIRST_PAUSE;
    let mut known_refusal = None;
    loop {
        let mut attempt = pin!(attach(&shared.checked, shared.info.clone()));
        let attempt = tokio::select! {
            biased;
            close_mode = close_requested(shared) => {
                // Dropping an attempt that has just succeeded would end the session.
                if close_mode == CloseMode::Abandon && let Ok(connection) = attempt.await {
                    connection.cut().await;
                }
                return None;
            }
            () = &mut over => return None,
            attempt = &mut attempt => attempt,
        };
        match attempt {
            Ok(connection) => return Some(connection),
            Err(OpenError::Client(zk::Error::SessionExpired)) => return None,
            Err(OpenError::Client(zk::Error::AuthFailed)) => {
                tracing::warn!(
                    event = "REGISTRY_AUTH_FAILED",
                    "ZooKeeper refuses our authentication; the session is given up"
                );
                return None;
            }
            Err(OpenError::Client(error)) => {
                tracing::debug!(%error, ?pause, "cannot connect with ZooKeeper");
            }
            Err(error @ OpenError::ReadOnly) => {
                tracing::debug!(%error, ?pause, "cannot connect with ZooKeeper");
            }
            Err(OpenError::Refused(reason)) => {
                if known_refusal.replace(reason.clone()).is_none_or(|known| known != reason) {
                    tracing::warn!(event = "REGISTRY_UNREACHABLE", reason, "cannot connect with ZooKeeper");
                }
                pause = REFUSED_PAUSE;
            }
        }
        tokio::select! {
            biased;
            _ = close_requested(shared) => return None,
            () = &mut over => return None,
            () = sleep(pause) => {}
        }
        pause = (pause.saturating_mul(2)).min(longest_pause(shared.info.id()));
    }
}

/// Makes another connection for a session.
pub(super) async fn attach(checked: &Checked, session: zk::SessionInfo) -> Result<Connection, OpenError> {
    let connection = Connection::open(checked, Some(session)).await?;
    let chroot = &checked.chroot;
    let connection = if chroot.is_root() { connection } else { connection.below(chroot.as_str())? };
    // This server may be behind the last one, and the next reads must not be older than the earlier ones. A
    // server that answers a write has applied all that was committed before it. A `sync` would not do: a
    // leader answers a `sync` alone, even when the other servers already follow another leader.
    let written = timeout(checked.settings.request_timeout, write_nothing(&connection.link.client)).await;
    match written.unwrap_or(Err(zk::Error::Timeout)) {
        Ok(()) => Ok(connection),
        Err(error) => {
            connection.cut().await;
            Err(error.into())
        }
    }
}

/// A write without effect. The servers commit a refused write, too, as a failed one.
async fn write_nothing(client: &zk::Client) -> Result<(), zk::Error> {
    let mut writer = client.new_multi_writer();
    writer.add_check_version("/", ANY_VERSION)?;
    match writer.commit().await {
        Ok(_)
        | Err(zk::MultiWriteError::OperationFailed {
            source: zk::Error::NoNode | zk::Error::NoAuth, ..
        }) => Ok(()),
        // The answer may also be that the session has ended.
        Err(
            zk::MultiWriteError::OperationFailed { source, .. }
            | zk::MultiWriteError::RequestFailed { source },
        ) => Err(source),
    }
}

fn longest_pause(session: zk::SessionId) -> Duration {
    LONGEST_PAUSE + Duration::from_millis(session.0.unsigned_abs() % SPREAD_MS)
}
