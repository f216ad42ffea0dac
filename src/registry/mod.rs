//! The registry: a tree of nodes that the members of a fleet share. Shell.
//!
//! Two implementations give the same guarantees and pass the same conformance suite (`tests/registry`):
//! [`zookeeper`] speaks to a ZooKeeper ensemble, [`embedded`] keeps the tree in this process.
//!
//! A [`Registry`] opens [`Session`]s. A session ends for good when it is lost; whoever needs the registry after that
//! opens another one, registers its ephemeral nodes again and adds its watches again.
//!
//! This room must not know what a job is.

pub mod counted;
pub mod embedded;
pub mod latch;
mod queue;
pub mod zookeeper;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use tokio::sync::watch;

pub use crate::tree::{CommitError, Error};
use crate::tree::{CommitResult, Node, NodeKind, Operation, Path, SessionId, Transaction};

pub use self::queue::{Watch, WatchSender, watch_channel};

/// The state of a session. `Lost` is final.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SessionState {
    /// The registry answers.
    Connected,
    /// The connection is broken; the session may still be alive, and the implementation tries to return to it.
    Suspended,
    /// The session expired or was closed; its ephemeral nodes are gone or will be soon.
    Lost,
}

/// Chooses the paths whose data a watch is to bring along. Asked with the watched root and paths below it, at any
/// time and under the registry's lock: it must be quick and must not ask the registry.
pub type DataFilter = Arc<dyn Fn(&Path) -> bool + Send + Sync>;

/// A monotonic clock of the caller's, which runs on while the machine sleeps.
pub type Monotonic = Arc<dyn Fn() -> Duration + Send + Sync>;

/// What another process needs to go on with a session. Whoever has it can take the session over.
#[derive(Clone, PartialEq, Eq)]
pub struct SessionKey {
    /// The session.
    pub id: SessionId,
    /// What proves that it is ours. Never shown.
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

    /// Goes on with a session that a process before this one has opened, and serves no more: its ephemeral nodes stay.
    /// `None`: it is over, or of a kind that ends with its process. Bounded in time as [`Self::open`]; fails with
    /// [`Error::Unreachable`], and can then be tried again.
    fn reopen<'a>(&'a self, key: &'a SessionKey) -> BoxFuture<'a, Result<Option<Arc<dyn Session>>, Error>>;

    /// Where the registry is, in words, for logs: `zookeeper 127.0.0.1:2181`, `embedded`.
    fn describe(&self) -> String;
}

/// A session with a registry.
///
/// Guarantees, which the conformance suite tests:
/// - Requests take effect in the order in which the methods are *called*, whether or not their futures are polled.
///   Dropping a future does not take its request back.
/// - Every future ends: after the implementation's request timeout with [`Error::OutcomeUnknown`], while suspended at
///   once with [`Error::Suspended`], after the loss of the session with [`Error::SessionLost`].
/// - When the future of a commit ends well, the changes of that transaction, and all before it, are in the queues of
///   this session's watches already: whoever reads its watch before its results never sees a result without its
///   changes.
/// - A watch misses nothing: what could have been missed is made good by a new snapshot. When its reader is behind,
///   a node's later change takes the place of its earlier one, so a watch never grows past one entry a node, and
///   nobody ever waits for its reader.
/// - A session that goes on after an interruption is connected before its watches tell anything: a reader that sees a snapshot
///   and looks at the state knows to which of the two times it belongs.
/// - A snapshot, and changes of which one brings data, lead to a state that the registry had: so the version of one node
///   proves that the reader knows the others. Changes without any data are told in their order, and may end in the middle
///   of a transaction. (In ZooKeeper a state is put together from several reads; if it changes with each of
///   twenty reads in a row, it is told all the same.)
/// - `Stat::created` and `Stat::modified` grow with every transaction, over the whole tree.
pub trait Session: Send + Sync + 'static {
    /// The session's id.
    fn id(&self) -> SessionId;

    /// The timeout that the registry granted: it ends the session when it has not heard from it for so long.
    fn timeout(&self) -> Duration;

    /// When the handshake was sent by which the present connection has the session, on the clock that the registry was
    /// given ([`Monotonic`]). At that moment or later the servers have heard from the session, and the one that ends
    /// sessions knows it. `None`: there is no connection now, or nothing is known of a handshake.
    fn greeted(&self) -> Option<Duration>;

    /// What a later process of ours needs to go on with it. `None`: it ends with this process, or nobody can say.
    fn key(&self) -> BoxFuture<'_, Option<SessionKey>>;

    /// The session's state, now and later.
    fn state(&self) -> watch::Receiver<SessionState>;

    /// Why the session is suspended, and what to do, if that is known and for a person to mend: the registry's disk is full.
    /// `None`: it is not suspended, or waiting is all that helps.
    fn obstacle(&self) -> Option<String> {
        None
    }

    /// The size of a request, in bytes, for which the servers break the connection. `None`: they have not, again and again.
    fn request_limit(&self) -> Option<usize> {
        None
    }

    /// Carries out a transaction: all or nothing. The results are in the order of the steps.
    fn commit(&self, transaction: Transaction) -> BoxFuture<'static, CommitResult>;

    /// Creates a node and its missing parents (persistent, empty), unless it exists. Tells whether it was created.
    fn ensure(&self, path: &Path, kind: NodeKind, data: &[u8]) -> BoxFuture<'static, Result<bool, Error>>;

    /// Reads a node. `None`: it does not exist.
    fn get(&self, path: &Path) -> BoxFuture<'static, Result<Option<Node>, Error>>;

    /// The names of a node's children, in no particular order. `None`: the node does not exist.
    fn children(&self, path: &Path) -> BoxFuture<'static, Result<Option<Vec<String>>, Error>>;

    /// Watches a node and all below it; the node need not exist. Fails only if the session is lost; while it is
    /// suspended, the first snapshot comes when it is connected again. `wants_data` chooses the paths whose data
    /// comes along with their changes; snapshots bring everything. The watch ends when the session is lost.
    fn watch(&self, root: &Path, wants_data: DataFilter) -> BoxFuture<'static, Result<Watch, Error>>;

    /// Ends the session: its ephemeral nodes are gone when this returns well. Bounded in time.
    fn close(&self) -> BoxFuture<'static, ()>;

    /// Lets go of the session without ending it, as if the process had been killed: for us it is lost, and its
    /// ephemeral nodes stay until its timeout is over. Bounded in time.
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
