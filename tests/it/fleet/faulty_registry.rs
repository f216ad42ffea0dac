//! A registry with a fault that occurs when a job is triggered.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use futures::future::BoxFuture;
use sidekeeper::registry::embedded::Embedded;
use sidekeeper::registry::{DataFilter, Registry, Session, SessionKey, SessionState, Watch};
use sidekeeper::tree::{CommitResult, Error, Node, NodeKind, Operation, Path, SessionId, Transaction};
use tokio::sync::watch;

#[derive(Clone)]
pub enum RegistryFault {
    /// The last instance unregisters just before the commit, so many times, and registers again just after.
    InstanceFlickers(Arc<AtomicU32>),
    /// The commit takes effect, and its answer is lost.
    AnswerLost,
    /// No session can be opened.
    Unreachable,
}

/// See the module.
pub struct FaultyRegistry {
    pub registry: Embedded,
    pub fault: RegistryFault,
}

impl Registry for FaultyRegistry {
    fn open(&self) -> BoxFuture<'_, Result<Arc<dyn Session>, Error>> {
        Box::pin(async move {
            if matches!(self.fault, RegistryFault::Unreachable) {
                return Err(Error::Unreachable("unreachable on purpose".to_owned()));
            }
            let (inner, fault) = (self.registry.open().await?, self.fault.clone());
            let session: Arc<dyn Session> = Arc::new(FaultySession { inner, fault });
            Ok(session)
        })
    }

    fn reopen<'a>(&'a self, key: &'a SessionKey) -> BoxFuture<'a, Result<Option<Arc<dyn Session>>, Error>> {
        self.registry.reopen(key)
    }

    fn describe(&self) -> String {
        self.registry.describe()
    }
}

struct FaultySession {
    inner: Arc<dyn Session>,
    fault: RegistryFault,
}

impl Session for FaultySession {
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
        let last_checked = transaction.iter().rev().find(|step| matches!(step, Operation::Check { .. }));
        let (inner, instance) = (Arc::clone(&self.inner), last_checked.map(|step| step.path().clone()));
        let Some(instance) = instance.filter(|path| path.as_str().contains("/instances/")) else {
            return inner.commit(transaction);
        };
        match &self.fault {
            RegistryFault::InstanceFlickers(times) => {
                let less = |left: u32| left.checked_sub(1);
                if times.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_err() {
                    return inner.commit(transaction);
                }
                Box::pin(async move {
                    let node = inner.get(&instance).await.unwrap().unwrap();
                    inner.commit(vec![Operation::delete(instance.clone())]).await.unwrap();
                    let result = inner.commit(transaction).await;
                    inner.ensure(&instance, NodeKind::Persistent, &node.data).await.unwrap();
                    result
                })
            }
            RegistryFault::AnswerLost => Box::pin(async move {
                inner.commit(transaction).await?;
                Err(Error::OutcomeUnknown("the answer was lost".to_owned()).into())
            }),
            RegistryFault::Unreachable => inner.commit(transaction),
        }
    }

    fn ensure(&self, path: &Path, kind: NodeKind, data: &[u8]) -> BoxFuture<'static, Result<bool, Error>> {
        self.inner.ensure(path, kind, data)
    }

    fn get(&self, path: &Path) -> BoxFuture<'static, Result<Option<Node>, Error>> {
        self.inner.get(path)
    }

    fn children(&self, path: &Path) -> BoxFuture<'static, Result<Option<Vec<String>>, Error>> {
        self.inner.children(path)
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
