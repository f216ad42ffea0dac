//! A session with the embedded registry. Every request takes effect inside the call; its future waits for the
//! disk.

use std::sync::Arc;
use std::time::Duration;

use futures::future::{BoxFuture, ready};
use tokio::sync::watch;

use super::shared::{Inner, Watcher};
use super::store::Durable;
use crate::registry::{
    CommitError, DataFilter, Error, Session, SessionKey, SessionState, Watch, watch_channel,
};
use crate::tree::{Node, NodeKind, Operation, OperationResult, Path, SessionId, Transaction, Zxid};

pub(super) struct EmbeddedSession {
    inner: Arc<Inner>,
    id: SessionId,
    state: watch::Receiver<SessionState>,
    timeout: Duration,
}

impl EmbeddedSession {
    pub(super) fn new(
        inner: Arc<Inner>,
        id: SessionId,
        state: watch::Receiver<SessionState>,
        timeout: Duration,
    ) -> Self {
        Self { inner, id, state, timeout }
    }

    /// Ends the session, unless it has been abandoned.
    fn end(&self) {
        if *self.state.borrow() != SessionState::Lost {
            self.inner.end(self.id);
        }
    }
}

impl Drop for EmbeddedSession {
    fn drop(&mut self) {
        self.end();
    }
}

impl Session for EmbeddedSession {
    fn id(&self) -> SessionId {
        self.id
    }

    fn timeout(&self) -> Duration {
        self.timeout
    }

    fn greeted(&self) -> Option<Duration> {
        None
    }

    fn key(&self) -> BoxFuture<'_, Option<SessionKey>> {
        Box::pin(ready(None))
    }

    fn state(&self) -> watch::Receiver<SessionState> {
        self.state.clone()
    }

    fn obstacle(&self) -> Option<String> {
        self.inner.lock().obstacle.as_ref().map(ToString::to_string)
    }

    fn commit(
        &self,
        transaction: Transaction,
    ) -> BoxFuture<'static, Result<Vec<OperationResult>, CommitError>> {
        match self.inner.commit(self.id, &transaction) {
            Ok((results, written)) => Box::pin(async move {
                durable(written).await?;
                Ok(results)
            }),
            Err(error) => Box::pin(ready(Err(error))),
        }
    }

    fn ensure(&self, path: &Path, kind: NodeKind, data: &[u8]) -> BoxFuture<'static, Result<bool, Error>> {
        match self.inner.ensure(self.id, Operation::create(path.clone(), kind, data)) {
            Ok(None) => Box::pin(ready(Ok(false))),
            Ok(Some(written)) => Box::pin(async move {
                durable(written).await?;
                Ok(true)
            }),
            Err(CommitError { error, .. }) => Box::pin(ready(Err(error))),
        }
    }

    fn get(&self, path: &Path) -> BoxFuture<'static, Result<Option<Node>, Error>> {
        let state = self.inner.lock();
        let found = state.check(self.id).map(|()| state.tree.get(path));
        Box::pin(ready(found))
    }

    fn children(&self, path: &Path) -> BoxFuture<'static, Result<Option<Vec<String>>, Error>> {
        let state = self.inner.lock();
        let found = state.check(self.id).map(|()| state.tree.children(path));
        Box::pin(ready(found))
    }

    fn subtree(&self, root: &Path) -> BoxFuture<'static, Result<Vec<Node>, Error>> {
        let state = self.inner.lock();
        let found = state.check(self.id).map(|()| state.tree.subtree(root));
        Box::pin(ready(found))
    }

    fn watch(&self, root: &Path, wants_data: DataFilter) -> BoxFuture<'static, Result<Watch, Error>> {
        let state = &mut *self.inner.lock();
        let Some(member) = state.members.get_mut(&self.id) else {
            return Box::pin(ready(Err(Error::SessionLost)));
        };
        let (sender, watch) = watch_channel();
        if *member.state.borrow() == SessionState::Connected {
            sender.snapshot(state.tree.subtree(root));
        }
        member.watches.retain(|watcher| !watcher.sender.is_closed());
        member.watches.push(Watcher { root: root.clone(), wants_data, sender });
        Box::pin(ready(Ok(watch)))
    }

    fn watch_node(&self, node: &Path) -> BoxFuture<'static, Result<Watch, Error>> {
        self.watch(node, Arc::new(|_| true))
    }

    fn can_skip_ids(&self) -> bool {
        true
    }

    fn skip_ids(&self, zxid: Zxid) -> BoxFuture<'static, Result<(), Error>> {
        Box::pin(ready(self.inner.skip_ids(self.id, zxid)))
    }

    fn close(&self) -> BoxFuture<'static, ()> {
        self.end();
        Box::pin(ready(()))
    }

    fn abandon(&self) -> BoxFuture<'static, ()> {
        self.inner.abandon(self.id);
        Box::pin(ready(()))
    }
}

async fn durable(written: Durable) -> Result<(), Error> {
    let Some(written) = written else { return Ok(()) };
    match written.await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(reason)) => Err(Error::OutcomeUnknown(format!(
            "it is not on the disk yet, and is lost if the sidecar ends before it is: {reason}"
        ))),
        Err(_) => Err(Error::OutcomeUnknown("the registry's writer stopped".to_owned())),
    }
}
