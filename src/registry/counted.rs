//! A registry that counts its requests. Tests and benchmarks state budgets in these numbers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::future::BoxFuture;
use tokio::sync::watch;

use super::{CommitError, DataFilter, Error, Registry, Session, SessionKey, SessionState, Watch};
use crate::tree::{Node, NodeKind, OperationResult, Path, Quota, Server, SessionId, Transaction, Zxid};

/// A registry and the number of its requests over all its sessions. Clones share the counts.
#[derive(Clone)]
pub struct Counted {
    registry: Arc<dyn Registry>,
    counts: Arc<Counters>,
}

/// The number of requests, successful or not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Sessions that were opened.
    pub sessions: u64,
    /// `get` and `children`.
    pub reads: u64,
    /// `commit` and `ensure`.
    pub transactions: u64,
    /// The steps of the transactions; one for `ensure`.
    pub operations: u64,
    /// Watches that were added.
    pub watches: u64,
}

#[derive(Default)]
struct Counters {
    sessions: AtomicU64,
    reads: AtomicU64,
    transactions: AtomicU64,
    operations: AtomicU64,
    watches: AtomicU64,
}

struct CountedSession {
    session: Arc<dyn Session>,
    counts: Arc<Counters>,
}

impl Counted {
    /// Counts the requests to a registry from now on.
    pub fn new(registry: impl Registry) -> Self {
        Self { registry: Arc::new(registry), counts: Arc::default() }
    }

    /// The counts until now.
    pub fn counts(&self) -> Counts {
        // Relaxed is enough: no code draws a conclusion from one count about another.
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Counts {
            sessions: read(&self.counts.sessions),
            reads: read(&self.counts.reads),
            transactions: read(&self.counts.transactions),
            operations: read(&self.counts.operations),
            watches: read(&self.counts.watches),
        }
    }
}

impl Counts {
    /// The counts since an earlier reading.
    pub fn since(self, earlier: Self) -> Self {
        Self {
            sessions: self.sessions.saturating_sub(earlier.sessions),
            reads: self.reads.saturating_sub(earlier.reads),
            transactions: self.transactions.saturating_sub(earlier.transactions),
            operations: self.operations.saturating_sub(earlier.operations),
            watches: self.watches.saturating_sub(earlier.watches),
        }
    }

    /// The number of all requests.
    pub fn requests(self) -> u64 {
        self.reads.saturating_add(self.transactions).saturating_add(self.watches)
    }
}

impl Registry for Counted {
    fn open(&self) -> BoxFuture<'_, Result<Arc<dyn Session>, Error>> {
        Box::pin(async move {
            self.counts.sessions.fetch_add(1, Ordering::Relaxed);
            let session = self.registry.open().await?;
            let session: Arc<dyn Session> =
                Arc::new(CountedSession { session, counts: Arc::clone(&self.counts) });
            Ok(session)
        })
    }

    fn reopen<'a>(&'a self, key: &'a SessionKey) -> BoxFuture<'a, Result<Option<Arc<dyn Session>>, Error>> {
        Box::pin(async move {
            let Some(session) = self.registry.reopen(key).await? else { return Ok(None) };
            self.counts.sessions.fetch_add(1, Ordering::Relaxed);
            let session: Arc<dyn Session> =
                Arc::new(CountedSession { session, counts: Arc::clone(&self.counts) });
            Ok(Some(session))
        })
    }

    fn servers(&self) -> BoxFuture<'_, Vec<Server>> {
        self.registry.servers()
    }

    fn describe(&self) -> String {
        self.registry.describe()
    }
}

impl Session for CountedSession {
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
        self.session.quotas(path)
    }

    fn commit(
        &self,
        transaction: Transaction,
    ) -> BoxFuture<'static, Result<Vec<OperationResult>, CommitError>> {
        let steps = u64::try_from(transaction.len()).unwrap_or(u64::MAX);
        self.counts.transactions.fetch_add(1, Ordering::Relaxed);
        self.counts.operations.fetch_add(steps, Ordering::Relaxed);
        self.session.commit(transaction)
    }

    fn ensure(&self, path: &Path, kind: NodeKind, data: &[u8]) -> BoxFuture<'static, Result<bool, Error>> {
        self.counts.transactions.fetch_add(1, Ordering::Relaxed);
        self.counts.operations.fetch_add(1, Ordering::Relaxed);
        self.session.ensure(path, kind, data)
    }

    fn get(&self, path: &Path) -> BoxFuture<'static, Result<Option<Node>, Error>> {
        self.counts.reads.fetch_add(1, Ordering::Relaxed);
        self.session.get(path)
    }

    fn nodes(&self, paths: &[Path]) -> BoxFuture<'static, Result<Vec<Option<Node>>, Error>> {
        self.counts.reads.fetch_add(1, Ordering::Relaxed);
        self.session.nodes(paths)
    }

    fn children(&self, path: &Path) -> BoxFuture<'static, Result<Option<Vec<String>>, Error>> {
        self.counts.reads.fetch_add(1, Ordering::Relaxed);
        self.session.children(path)
    }

    fn subtree(&self, root: &Path) -> BoxFuture<'static, Result<Vec<Node>, Error>> {
        self.counts.reads.fetch_add(1, Ordering::Relaxed);
        self.session.subtree(root)
    }

    fn watch(&self, root: &Path, wants_data: DataFilter) -> BoxFuture<'static, Result<Watch, Error>> {
        self.counts.watches.fetch_add(1, Ordering::Relaxed);
        self.session.watch(root, wants_data)
    }

    fn watch_node(&self, node: &Path) -> BoxFuture<'static, Result<Watch, Error>> {
        self.counts.watches.fetch_add(1, Ordering::Relaxed);
        self.session.watch_node(node)
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::embedded::Embedded;
    use crate::tree::Operation;

    #[tokio::test]
    async fn everything_is_counted_once() {
        let registry = Counted::new(Embedded::in_memory());
        let session = registry.open().await.unwrap();
        let before = registry.counts();
        let root = Path::root();
        let steps = vec![Operation::check(root.clone()), Operation::check(root.child("missing"))];
        assert!(session.commit(steps).await.is_err());
        assert_eq!(session.ensure(&root.child("a"), NodeKind::Persistent, b"").await, Ok(true));
        assert!(session.get(&root).await.is_ok() && session.children(&root).await.is_ok());
        assert!(session.watch(&root, Arc::new(|_| true)).await.is_ok());
        let expected = Counts { sessions: 0, reads: 2, transactions: 2, operations: 3, watches: 1 };
        assert_eq!(registry.counts().since(before), expected);
        assert_eq!(expected.requests(), 5);
    }
}
