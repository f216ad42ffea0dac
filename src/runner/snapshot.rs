//! Reads all nodes below one, at one moment, in a handful of requests however many nodes there are.

use std::sync::Arc;

use crate::registry::Session;
use crate::tree::{Error, Node, Path, WatchEvent};

/// The nodes, parents before children, with their data. Empty: the root does not exist. Waits while the session is
/// suspended.
pub async fn read(session: &dyn Session, root: &Path) -> Result<Vec<Node>, Error> {
    // A watch begins with a snapshot; only that is of interest.
    let mut watch = session.watch(root, Arc::new(|_: &Path| false)).await?;
    match watch.recv().await {
        Some(WatchEvent::Snapshot(nodes)) => Ok(nodes),
        Some(WatchEvent::Changes(_)) | None => Err(Error::SessionLost),
    }
}
