//! Reads all nodes below one node as they are at one moment, in a handful of requests for any number of nodes.

use std::sync::Arc;

use crate::registry::Session;
use crate::tree::{Error, Node, Path, WatchEvent};

/// Returns the nodes, parents before children, with their data. Empty: the root does not exist. Waits while the session is
/// suspended.
pub async fn read(session: &dyn Session, root: &Path) -> Result<Vec<Node>, Error> {
    // A watch begins with a snapshot. Its changes are not needed.
    let mut watch = session.watch(root, Arc::new(|_: &Path| false)).await?;
    match watch.recv().await {
        Some(WatchEvent::Snapshot(nodes)) => Ok(nodes),
        Some(WatchEvent::Changes(_)) | None => Err(Error::SessionLost),
    }
}
