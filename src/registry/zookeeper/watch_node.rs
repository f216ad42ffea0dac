//! The watch of one node, with ZooKeeper's one-shot watches: one request for each state that is sent, and none at the end.
//!
//! A watch of a node and all below it (`watch`) costs four: it is added, everything is read, twice, and it is removed.
//! Before 3.9.0 a server forgets the one kind of watch on a path at which a session adds the other kind (ZOOKEEPER-4466), so
//! nobody should have both on one path.

use std::time::Duration;

use zookeeper_client as zk;

use super::connection::Link;
use super::convert;
use super::watch::{Follower, Stopped};
use crate::registry::WatchSender;
use crate::tree::{Node, Path};

/// After which time a node that may not be read counts as missing: its reader may look for it at once, and find it.
const UNREADABLE_AFTER: Duration = Duration::from_secs(1);

/// Follows one node until it does not exist.
pub(super) struct NodeFollower {
    path: Path,
    sender: WatchSender,
}

impl NodeFollower {
    pub(super) fn new(path: Path, sender: WatchSender) -> Self {
        Self { path, sender }
    }

    async fn follow_until_gone(&self, client: &zk::Client) -> Result<(), zk::Error> {
        let path = self.path.as_str();
        loop {
            match client.get_and_watch_data(path).await {
                Ok((data, stat, watcher)) => {
                    let stat = convert::stat(&stat);
                    self.sender.snapshot(vec![Node { path: self.path.clone(), data: data.into(), stat }]);
                    match watcher.changed().await.event_type {
                        zk::EventType::Session => return Err(zk::Error::ConnectionLoss),
                        zk::EventType::NodeDeleted => break,
                        zk::EventType::NodeCreated
                        | zk::EventType::NodeDataChanged
                        | zk::EventType::NodeChildrenChanged => {}
                    }
                }
                Err(zk::Error::NoNode) => break,
                Err(zk::Error::NoAuth) => {
                    tracing::warn!(
                        event = "REGISTRY_NO_PERMISSION",
                        path,
                        "a node may not be read and counts as missing; check its access list"
                    );
                    tokio::time::sleep(UNREADABLE_AFTER).await;
                    break;
                }
                Err(error) => return Err(error),
            }
        }
        self.sender.snapshot(Vec::new());
        Ok(())
    }
}

impl Follower for NodeFollower {
    async fn follow(&mut self, link: &Link) -> Stopped {
        tokio::select! {
            biased;
            () = self.sender.closed() => Stopped::Finished,
            result = self.follow_until_gone(&link.client) => result.map_or_else(Stopped::from, |()| Stopped::Finished),
        }
    }

    async fn closed(&self) {
        self.sender.closed().await;
    }
}
