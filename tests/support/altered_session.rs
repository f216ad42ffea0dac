//! A session that hands its requests on to another one, and changes some of them or of their answers.

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use sidekeeper::registry::{DataFilter, Session, SessionKey, SessionState, Watch};
use sidekeeper::tree::{CommitResult, Error, Node, NodeKind, Path, SessionId, Transaction};
use tokio::sync::watch;

/// What is changed. By default nothing is.
pub trait Alteration: Send + Sync + 'static {
    fn commit(&self, inner: &Arc<dyn Session>, steps: Transaction) -> BoxFuture<'static, CommitResult> {
        inner.commit(steps)
    }

    fn commit_with_others(
        &self,
        inner: &Arc<dyn Session>,
        steps: Transaction,
    ) -> BoxFuture<'static, CommitResult> {
        self.commit(inner, steps)
    }

    fn children(
        &self,
        inner: &Arc<dyn Session>,
        path: &Path,
    ) -> BoxFuture<'static, Result<Option<Vec<String>>, Error>> {
        inner.children(path)
    }
}

/// See the module.
pub struct AlteredSession<A> {
    pub inner: Arc<dyn Session>,
    pub alteration: A,
}

impl<A: Alteration> Session for AlteredSession<A> {
    fn id(&self) -> SessionId {
        self.inner.id()
    }

    fn timeout(&self) -> Duration {
        self.inner.timeout()
    }

    fn greeted(&self) -> Option<Duration> {
        self.inner.greeted()
    }

    fn key(&self) -> BoxFuture<'_, Option<SessionKey>> {
        self.inner.key()
    }

    fn state(&self) -> watch::Receiver<SessionState> {
        self.inner.state()
    }

    fn commit(&self, transaction: Transaction) -> BoxFuture<'static, CommitResult> {
        self.alteration.commit(&self.inner, transaction)
    }

    fn commit_with_others(&self, transaction: Transaction) -> BoxFuture<'static, CommitResult> {
        self.alteration.commit_with_others(&self.inner, transaction)
    }

    fn ensure(&self, path: &Path, kind: NodeKind, data: &[u8]) -> BoxFuture<'static, Result<bool, Error>> {
        self.inner.ensure(path, kind, data)
    }

    fn get(&self, path: &Path) -> BoxFuture<'static, Result<Option<Node>, Error>> {
        self.inner.get(path)
    }

    fn children(&self, path: &Path) -> BoxFuture<'static, Result<Option<Vec<String>>, Error>> {
        self.alteration.children(&self.inner, path)
    }

    fn watch(&self, root: &Path, wants_data: DataFilter) -> BoxFuture<'static, Result<Watch, Error>> {
        self.inner.watch(root, wants_data)
    }

    fn watch_node(&self, node: &Path) -> BoxFuture<'static, Result<Watch, Error>> {
        self.inner.watch_node(node)
    }

    fn close(&self) -> BoxFuture<'static, ()> {
        self.inner.close()
    }

    fn abandon(&self) -> BoxFuture<'static, ()> {
        self.inner.abandon()
    }
}
