//! The registry: a tree of nodes that the members of a fleet share. Shell.
//!
//! Two implementations give the same guarantees and pass the same conformance suite (`tests/registry`):
//! [`zookeeper`] speaks to a ZooKeeper ensemble, [`embedded`] keeps the tree in this process.
//!
//! A [`Registry`] opens [`Session`]s. A lost session has ended for good. Its owner then opens another one,
//! registers its ephemeral nodes again and adds its watches again.
//!
//! This room must not know what a job is.

pub mod counted;
pub mod embedded;
pub mod latch;
pub mod observed;
mod queue;
pub mod zookeeper;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures::future::{BoxFuture, ready, try_join_all};
use tokio::sync::watch;

pub use crate::tree::{CommitError, Error};
use crate::tree::{
    CommitResult, Node, NodeKind, Operation, Path, Quota, Server, SessionId, Transaction, WatchEvent, Zxid,
};

pub use self::queue::{Watch, WatchSender, watch_channel};

/// The state of a session. `Lost` is final.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SessionState {
    /// The registry answers.
    Connected,
    /// The connection is broken. The session may still be alive, and the implementation tries to reconnect
    /// it.
    Suspended,
    /// The session expired or was closed. Its ephemeral nodes are deleted, or will be soon.
    Lost,
}

/// Chooses the paths whose data a watch sends. The registry calls it with the watched root and paths below,
/// at any time and under its lock. So it must be quick and must not send requests to the registry.
pub type DataFilter = Arc<dyn Fn(&Path) -> bool + Send + Sync>;

/// The caller's monotonic clock, which runs on while the machine sleeps.
pub type Monotonic = Arc<dyn Fn() -> Duration + Send + Sync>;

/// The values with which another process can resume a session. They give full access to the session.
#[derive(Clone, PartialEq, Eq)]
pub struct SessionKey {
    /// The session.
    pub id: SessionId,
    /// The password that proves ownership. Never shown.
    pub password: Vec<u8>,
    /// The timeout that the registry granted.
    pub timeout: Duration,
}

impl fmt::Debug for SessionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SessionKey").field("id", &self.id).field("timeout", &self.timeout).finish()
    }
}

/// Opens sessions.
pub trait Registry: Send + Sync + 'static {
    /// Opens a session. Bounded in time by the implementation's connection timeout; fails with
    /// [`Error::Unreachable`].
    fn open(&self) -> BoxFuture<'_, Result<Arc<dyn Session>, Error>>;

    /// Resumes a session that an earlier process has opened and no longer uses: the session's ephemeral nodes
    /// stay. `None`: the session has ended, or such sessions end with their process. Bounded in time as
    /// [`Self::open`]. Fails with [`Error::Unreachable`]; the caller can then try again.
    fn reopen<'a>(&'a self, key: &'a SessionKey) -> BoxFuture<'a, Result<Option<Arc<dyn Session>>, Error>>;

    /// Asks each server of the settings for itself, whether or not there is a session. Bounded in time: some seconds. Empty: the
    /// registry has no servers.
    fn servers(&self) -> BoxFuture<'_, Vec<Server>> {
        Box::pin(ready(Vec::new()))
    }

    /// The registry's place in words, for logs: `zookeeper 127.0.0.1:2181`, `embedded`.
    fn describe(&self) -> String;
}

/// A session with a registry.
///
/// Guarantees, which the conformance suite tests:
/// - Requests take effect in the order in which the methods are *called*, whether or not their futures are
///   polled. Dropping a future does not take its request back.
/// - Every future ends: after the implementation's request timeout with [`Error::OutcomeUnknown`], while
///   suspended at once with [`Error::Suspended`], after the loss of the session with [`Error::SessionLost`].
/// - When the future of a commit succeeds, the changes of its transaction and of all earlier ones are already
///   in the queues of this session's watches. So a task that reads its watch before its results never sees a
///   result without its changes.
/// - A watch misses nothing: after a possible gap it sends a new snapshot. When its reader is behind, a
///   node's later change replaces its earlier one. So a watch never grows past one entry a node, and its
///   reader never makes the writer wait.
/// - A session that reconnects is connected before its watches send an event. So a reader that sees a
///   snapshot and reads the state knows whether the snapshot came before or after the interruption.
/// - A snapshot, and changes of which one has data, lead to a state that the registry had. So the version of
///   one node proves that the reader knows the others. Changes without any data come in their order, and may
///   end in the middle of a transaction. (With ZooKeeper several reads make up a state. If the nodes change
///   during each of twenty reads in a row, the watch sends the state all the same.)
/// - `Stat::created` and `Stat::modified` grow with every transaction, over the whole tree.
pub trait Session: Send + Sync + 'static {
    /// The session's id.
    fn id(&self) -> SessionId;

    /// The timeout that the registry granted. The registry ends the session after this time without a
    /// message.
    fn timeout(&self) -> Duration;

    /// When the handshake was sent by which the present connection has the session, on the registry's clock
    /// ([`Monotonic`]). At that moment or later the servers have received it, and so has the server that ends
    /// sessions. `None`: there is no connection now, or no time of a handshake is known.
    fn greeted(&self) -> Option<Duration>;

    /// The values with which a later process can resume the session. `None`: the session ends with this
    /// process, or they are unknown.
    fn key(&self) -> BoxFuture<'_, Option<SessionKey>>;

    /// The session's present and later states.
    fn state(&self) -> watch::Receiver<SessionState>;

    /// Why the session is suspended, and what to do, if a person has to act: the registry's disk is full.
    /// `None`: the session is not suspended, or only waiting helps.
    fn obstacle(&self) -> Option<String> {
        None
    }

    /// The smallest size of a request, in bytes, for which the servers break the connection. `None`: no such
    /// size is known.
    fn request_limit(&self) -> Option<usize> {
        None
    }

    /// The quotas of a node and of the nodes above it, for servers that enforce them. Empty: there are none.
    fn quotas(&self, _path: &Path) -> BoxFuture<'static, Result<Vec<Quota>, Error>> {
        Box::pin(ready(Ok(Vec::new())))
    }

    /// Carries out a transaction: all or nothing. The results are in the order of the steps.
    fn commit(&self, transaction: Transaction) -> BoxFuture<'static, CommitResult>;

    /// Carries out a transaction, perhaps in one request with others that are committed by this method: all or nothing all the
    /// same, and in the order of the calls.
    fn commit_with_others(&self, transaction: Transaction) -> BoxFuture<'static, CommitResult> {
        self.commit(transaction)
    }

    /// Creates a node and its missing parents (persistent, empty), unless the node exists. True: it was
    /// created.
    fn ensure(&self, path: &Path, kind: NodeKind, data: &[u8]) -> BoxFuture<'static, Result<bool, Error>>;

    /// Reads a node. `None`: it does not exist.
    fn get(&self, path: &Path) -> BoxFuture<'static, Result<Option<Node>, Error>>;

    /// Reads nodes, in few requests if the registry is elsewhere. The results are in the order of the paths. `None`: the node does
    /// not exist, or may not be read. The nodes may be of several moments, all of them after the call.
    fn nodes(&self, paths: &[Path]) -> BoxFuture<'static, Result<Vec<Option<Node>>, Error>> {
        Box::pin(try_join_all(paths.iter().map(|path| self.get(path)).collect::<Vec<_>>()))
    }

    /// The names of a node's children, in no particular order. `None`: the node does not exist.
    fn children(&self, path: &Path) -> BoxFuture<'static, Result<Option<Vec<String>>, Error>>;

    /// Reads a node and all below it, parents before children. Empty: the node does not exist. The nodes may be of several
    /// moments, all of them after the call.
    fn subtree(&self, root: &Path) -> BoxFuture<'static, Result<Vec<Node>, Error>> {
        // A watch begins with a snapshot. Its changes are not needed.
        let watch = self.watch(root, Arc::new(|_: &Path| false));
        Box::pin(async move {
            match watch.await?.recv().await {
                Some(WatchEvent::Snapshot(nodes)) => Ok(nodes),
                Some(WatchEvent::Changes(_)) | None => Err(Error::SessionLost),
            }
        })
    }

    /// Watches a node and all below it; the node need not exist. Fails only if the session is lost. If the
    /// session is suspended, the first snapshot comes when it is connected again. `wants_data` chooses the
    /// paths whose changes bring data; snapshots bring all data. The watch ends when the session is lost.
    fn watch(&self, root: &Path, wants_data: DataFilter) -> BoxFuture<'static, Result<Watch, Error>>;

    /// Watches one node, with fewer requests than [`Self::watch`]. Every event brings the node's data. Its events may come
    /// after the results of commits. After the event that the node does not exist, the watch may end. A node that the caller
    /// may not read counts as missing, a second later.
    fn watch_node(&self, node: &Path) -> BoxFuture<'static, Result<Watch, Error>>;

    /// Whether [`Self::skip_ids`] can do what it says.
    fn can_skip_ids(&self) -> bool {
        false
    }

    /// Gives all later transactions ids from this one on, unless they have higher ones already. Fails if the registry counts by
    /// itself, as ZooKeeper does.
    fn skip_ids(&self, _: Zxid) -> BoxFuture<'static, Result<(), Error>> {
        Box::pin(ready(Err(Error::Refused("it counts its transactions by itself".to_owned()))))
    }

    /// Ends the session. If this succeeds, its ephemeral nodes are deleted. Bounded in time.
    fn close(&self) -> BoxFuture<'static, ()>;

    /// Leaves the session without ending it, as if the process had been killed. For this process the session
    /// is lost; its ephemeral nodes stay until its timeout is over. Bounded in time.
    fn abandon(&self) -> BoxFuture<'static, ()>;
}

/// The steps that create the missing parents of a node, topmost first: persistent and empty.
fn missing_parents(path: &Path, is_missing: impl Fn(&Path) -> bool) -> Transaction {
    let parents = std::iter::successors(path.parent(), Path::parent);
    let mut steps: Transaction = parents
        .take_while(|parent| is_missing(parent))
        .map(|parent| Operation::create(parent, NodeKind::Persistent, []))
        .collect();
    steps.reverse();
    steps
}
