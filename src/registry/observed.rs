//! A session whose requests an observer sees. Hands everything on, and decides nothing.

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use tokio::sync::watch;

use super::{CommitError, DataFilter, Error, Session, SessionKey, SessionState, Watch};
use crate::tree::{CommitResult, Node, NodeKind, Path, Quota, SessionId, Transaction, Zxid};

/// A request of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Request {
    /// Nodes are read.
    Read,
    /// Nodes are written, in so many steps.
    Write(usize),
    /// A watch is added.
    Watch,
}

/// An error of a request.
pub trait Failure: Send + 'static {
    /// The registry's reason.
    fn reason(&self) -> &Error;
}

impl Failure for Error {
    fn reason(&self) -> &Error {
        self
    }
}

impl Failure for CommitError {
    fn reason(&self) -> &Error {
        &self.error
    }
}

/// Sees the requests of a session.
pub trait Observer: Send + Sync + 'static {
    /// A request is sent. Returns its answer, unchanged.
    fn observe<T: Send + 'static, E: Failure>(
        &self,
        request: Request,
        answer: BoxFuture<'static, Result<T, E>>,
    ) -> BoxFuture<'static, Result<T, E>>;
}

/// See the module.
pub struct ObservedSession<O> {
    session: Arc<dyn Session>,
    observer: O,
}

impl<O: Observer> ObservedSession<O> {
    /// The session, with an observer.
    pub fn of(session: Arc<dyn Session>, observer: O) -> Arc<dyn Session> {
        Arc::new(Self { session, observer })
    }
}

impl<O: Observer> Session for ObservedSession<O> {
    fn id(&self) -> SessionId {
        self.session.id()
    }

    fn timeout(&self) -> Duration {
        self.session.timeout()
    }

    fn greeted(&self) -> Option<Duration> {
        self.session.greeted()
    }

    fn key(&self) -> BoxFuture<'_, Option<SessionKey>> {
        self.session.key()
    }

    fn state(&self) -> watch::Receiver<SessionState> {
        self.session.state()
    }

    fn obstacle(&self) -> Option<String> {
        self.session.obstacle()
    }

    fn request_limit(&self) -> Option<usize> {
        self.session.request_limit()
    }

    fn quotas(&self, path: &Path) -> BoxFuture<'static, Result<Vec<Quota>, Error>> {
        self.observer.observe(Request::Read, self.session.quotas(path))
    }

    fn commit(&self, transaction: Transaction) -> BoxFuture<'static, CommitResult> {
        let steps = transaction.len();
        self.observer.observe(Request::Write(steps), self.session.commit(transaction))
    }

    fn ensure(&self, path: &Path, kind: NodeKind, data: &[u8]) -> BoxFuture<'static, Result<bool, Error>> {
        self.observer.observe(Request::Write(1), self.session.ensure(path, kind, data))
    }

    fn get(&self, path: &Path) -> BoxFuture<'static, Result<Option<Node>, Error>> {
        self.observer.observe(Request::Read, self.session.get(path))
    }

    fn nodes(&self, paths: &[Path]) -> BoxFuture<'static, Result<Vec<Option<Node>>, Error>> {
        self.observer.observe(Request::Read, self.session.nodes(paths))
    }

    fn children(&self, path: &Path) -> BoxFuture<'static, Result<Option<Vec<String>>, Error>> {
        self.observer.observe(Request::Read, self.session.children(path))
    }

    fn subtree(&self, root: &Path) -> BoxFuture<'static, Result<Vec<Node>, Error>> {
        self.observer.observe(Request::Read, self.session.subtree(root))
    }

    fn watch(&self, root: &Path, wants_data: DataFilter) -> BoxFuture<'static, Result<Watch, Error>> {
        self.observer.observe(Request::Watch, self.session.watch(root, wants_data))
    }

    fn watch_node(&self, node: &Path) -> BoxFuture<'static, Result<Watch, Error>> {
        self.observer.observe(Request::Watch, self.session.watch_node(node))
    }

    fn can_skip_ids(&self) -> bool {
        self.session.can_skip_ids()
    }

    fn skip_ids(&self, zxid: Zxid) -> BoxFuture<'static, Result<(), Error>> {
        self.session.skip_ids(zxid)
    }

    fn close(&self) -> BoxFuture<'static, ()> {
        self.session.close()
    }

    fn abandon(&self) -> BoxFuture<'static, ()> {
        self.session.abandon()
    }
}
