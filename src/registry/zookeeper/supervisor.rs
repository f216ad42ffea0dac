//! Keeps a session alive: one task that owns its connection, and replaces it when it breaks.
//!
//! The session is lost when the server says so, or when no server could have heard from us for longer than its
//! timeout: then the ensemble has ended it, even if it cannot tell us.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{sleep, timeout};
use zookeeper_client as zk;

use super::LinkState;
use super::connection::{Broken, Connection};
use super::convert::ANY_VERSION;
use super::session::{Farewell, Shared};
use super::settings::Checked;
use crate::registry::SessionState;

/// The pause after the first failed attempt to connect again; it doubles. A killed server is back in a second.
const FIRST_PAUSE: Duration = Duration::from_millis(20);

/// The longest pause between two attempts: how much longer than the outage ours may last. An attempt that finds nobody who
/// serves costs a server a question at most.
const LONGEST_PAUSE: Duration = Duration::from_millis(150);

/// Sessions spread their longest pauses over so many milliseconds, lest a fleet return to a server all at once.
const SPREAD_MS: u64 = 100;

/// Serves a session until its end.
pub(super) async fn supervise(shared: Arc<Shared>, connection: Connection) {
    let session = shared.info.id();
    let mut current = Some(connection);
    while let Some(mut connection) = current.take() {
        let broken = tokio::select! {
            // Whoever parts wants no other connection first.
            biased;
            farewell = parting(&shared) => Err(farewell),
            broken = connection.broken() => Ok(broken),
        };
        match broken {
            Err(Farewell::Close) => {
                shared.links.send_replace(LinkState::Lost);
                connection.close(shared.checked.settings.request_timeout).await;
            }
            Err(Farewell::Abandon) => {
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

/// Waits until we are to be rid of the session.
async fn parting(shared: &Shared) -> Farewell {
    let mut said = shared.farewell.subscribe();
    // The sender is in `shared`, so this cannot fail.
    let farewell = said.wait_for(Option::is_some).await.ok().and_then(|farewell| *farewell);
    farewell.unwrap_or(Farewell::Close)
}

/// Attaches a new connection to the session. `None`: the session is lost, or nobody wants it any more.
async fn reconnect(shared: &Shared) -> Option<Connection> {
    // From now on: the server last heard from us before. A third more, for its own clock and the road to it.
    let mut over = pin!(sleep(shared.timeout.saturating_mul(4) / 3));
    let mut pause = FIRST_PAUSE;
    loop {
        let mut attempt = pin!(attach(&shared.checked, shared.info.clone()));
        let attempt = tokio::select! {
            biased;
            farewell = parting(shared) => {
                // One that is dropped when it has just succeeded would end the session.
                if farewell == Farewell::Abandon && let Ok(connection) = attempt.await {
                    connection.cut().await;
                }
                return None;
            }
            () = &mut over => return None,
            attempt = &mut attempt => attempt,
        };
        match attempt {
            Ok(connection) => return Some(connection),
            Err(zk::Error::SessionExpired) => return None,
            Err(error @ zk::Error::AuthFailed) => {
                tracing::warn!(%error, "ZooKeeper refuses our digest");
                return None;
            }
            Err(error) => tracing::debug!(%error, ?pause, "cannot connect with ZooKeeper"),
        }
        tokio::select! {
            biased;
            _ = parting(shared) => return None,
            () = &mut over => return None,
            () = sleep(pause) => {}
        }
        pause = (pause * 2).min(longest_pause(shared.info.id()));
    }
}

/// Makes another connection for a session.
pub(super) async fn attach(checked: &Checked, session: zk::SessionInfo) -> Result<Connection, zk::Error> {
    let connection = Connection::open(checked, Some(session)).await?;
    let chroot = &checked.chroot;
    let connection = if chroot.is_root() { connection } else { connection.below(chroot.as_str())? };
    // This server may be behind the last one, and what we read next must not be older than what we saw. It has applied all
    // that was committed before a write that it answers. A `sync` would not do: a leader answers it alone, also when the
    // others follow another one already.
    let written = timeout(checked.settings.request_timeout, write_nothing(&connection.link.client)).await;
    match written.unwrap_or(Err(zk::Error::Timeout)) {
        Ok(()) => Ok(connection),
        Err(error) => {
            connection.cut().await;
            Err(error)
        }
    }
}

/// A write without effect. One that is refused is committed as well, as one that fails.
async fn write_nothing(client: &zk::Client) -> Result<(), zk::Error> {
    let mut writer = client.new_multi_writer();
    writer.add_check_version("/", ANY_VERSION)?;
    match writer.commit().await {
        Ok(_)
        | Err(zk::MultiWriteError::OperationFailed {
            source: zk::Error::NoNode | zk::Error::NoAuth, ..
        }) => Ok(()),
        // That the session is over may be said so, too.
        Err(
            zk::MultiWriteError::OperationFailed { source, .. }
            | zk::MultiWriteError::RequestFailed { source },
        ) => Err(source),
    }
}

fn longest_pause(session: zk::SessionId) -> Duration {
    LONGEST_PAUSE + Duration::from_millis(session.0.unsigned_abs() % SPREAD_MS)
}
