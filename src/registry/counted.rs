//! A registry that counts its requests. Tests and benchmarks state budgets in these numbers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures::future::BoxFuture;

use super::observed::{Failure, ObservedSession, Observer, Request};
use super::{Error, Registry, Session, SessionKey};
use crate::tree::Server;

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
    /// Reads of nodes, children, subtrees and quotas.
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

impl Counted {
    /// Counts the requests to a registry from now on.
    pub fn new(registry: impl Registry) -> Self {
        Self { registry: Arc::new(registry), counts: Arc::default() }
    }

    /// The counts until now.
    pub fn counts(&self) -> Counts {
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
            add(&self.counts.sessions, 1);
            let session = self.registry.open().await?;
            Ok(ObservedSession::of(session, Arc::clone(&self.counts)))
        })
    }

    fn reopen<'a>(&'a self, key: &'a SessionKey) -> BoxFuture<'a, Result<Option<Arc<dyn Session>>, Error>> {
        Box::pin(async move {
            let Some(session) = self.registry.reopen(key).await? else { return Ok(None) };
            add(&self.counts.sessions, 1);
            Ok(Some(ObservedSession::of(session, Arc::clone(&self.counts))))
        })
    }

    fn servers(&self) -> BoxFuture<'_, Vec<Server>> {
        self.registry.servers()
    }

    fn describe(&self) -> String {
        self.registry.describe()
    }
}

impl Observer for Arc<Counters> {
    fn observe<T: Send + 'static, E: Failure>(
        &self,
        request: Request,
        answer: BoxFuture<'static, Result<T, E>>,
    ) -> BoxFuture<'static, Result<T, E>> {
        match request {
            Request::Read => add(&self.reads, 1),
            Request::Write(steps) => {
                add(&self.transactions, 1);
                add(&self.operations, u64::try_from(steps).unwrap_or(u64::MAX));
            }
            Request::Watch => add(&self.watches, 1),
        }
        answer
    }
}

/// Relaxed is enough: no code draws a conclusion from one count about another.
fn add(counter: &AtomicU64, count: u64) {
    counter.fetch_add(count, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::embedded::Embedded;
    use crate::tree::{NodeKind, Operation, Path};

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
