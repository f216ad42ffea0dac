//! Reads locks for people, and changes them on request: the queue of a lock, the names of locks, a revocation, the deletion
//! of a contender's node. Decides nothing: whose turn it is says `coordination/lock/queue.rs`.

use std::sync::Arc;

use futures::future::join_all;

use crate::coordination::lock::picture::LockState;
use crate::extension::lock::{
    Below, Child, LockPaths, REVOKE, Roots, SEMAPHORE_PERMITS, SEMAPHORE_QUEUE, permit_number,
};
use crate::registry::Session;
use crate::tree::{Error, Node, Operation, Path};

use super::registry::Locks;

/// The most children of a lock's node that are read: more than sidecars permit in a queue.
const CHILDREN_MAX: usize = 2_000;

/// Why a lock cannot be read or changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LockError {
    /// There is no session now.
    #[error("the sidecar has no session with the registry; try again")]
    NoSession,
    /// Nobody holds the lock, or there is no such contender.
    #[error("{0}")]
    Free(String),
    /// The registry's answer.
    #[error("lock {lock}: {error}")]
    Registry {
        /// The lock.
        lock: Path,
        /// Why.
        #[source]
        error: Error,
    },
}

impl Locks {
    fn session(&self) -> Result<Arc<dyn Session>, LockError> {
        self.shared().current.borrow().clone().ok_or(LockError::NoSession)
    }

    /// The state of a lock.
    pub async fn look(&self, lock: &LockPaths) -> Result<LockState, LockError> {
        let session = self.session()?;
        let failed = |error| LockError::Registry { lock: lock.lock().clone(), error };
        let children = async |node: &Path| session.children(node).await.map_err(failed);
        let mut names = children(lock.lock()).await?.unwrap_or_default();
        if names.iter().any(|name| Below::read(name) == Below::Semaphore) {
            for (folder, part) in
                [(SEMAPHORE_QUEUE, lock.semaphore_queue()), (SEMAPHORE_PERMITS, lock.semaphore_permits())]
            {
                let below = children(part.lock()).await?.unwrap_or_default();
                names.extend(below.into_iter().map(|name| format!("{folder}/{name}")));
            }
        }
        // The first contenders come first.
        names.sort_by_cached_key(|name| match Below::read(name) {
            Below::Child(Child::Contender { number, .. } | Child::Delay { number, .. }) => {
                (number, name.clone())
            }
            Below::Permit(child) => (permit_number(child).unwrap_or(u32::MAX), name.clone()),
            Below::Queued(child) => match Child::read(child) {
                Child::Contender { number, .. } => (number, name.clone()),
                Child::Delay { .. } | Child::WithoutNumber(_) | Child::OtherRecipe | Child::Foreign => {
                    (u32::MAX, name.clone())
                }
            },
            Below::Child(_) | Below::Semaphore | Below::Foreign => (u32::MAX, name.clone()),
        });
        names.truncate(CHILDREN_MAX);
        let nodes = join_all(names.iter().map(|name| read(&*session, lock, name))).await;
        let nodes = nodes.into_iter().collect::<Result<Vec<_>, _>>().map_err(failed)?;
        Ok(LockState::of(names.into_iter().zip(nodes)))
    }

    /// The names of the locks below the lock root.
    pub async fn names(&self) -> Result<Vec<String>, LockError> {
        let root = &self.roots().locks;
        let answer = self.session()?.children(root).await;
        let names = answer.map_err(|error| LockError::Registry { lock: root.clone(), error })?;
        Ok(Roots::names(names.unwrap_or_default()))
    }

    /// Asks the first holder for the lock. Returns its node.
    pub async fn request_revocation(&self, lock: &LockPaths) -> Result<Node, LockError> {
        let state = self.look(lock).await?;
        let free = || LockError::Free(format!("nobody holds the lock {}", lock.lock()));
        // The data of a leader is its value, which Java programs read.
        let is_leader = state.leader().0.is_some();
        let holder = state.holders.into_iter().next().filter(|_| !is_leader).ok_or_else(free)?;
        let set = Operation::set(holder.path.clone(), REVOKE);
        match self.session()?.commit(vec![set]).await.map_err(|error| error.error) {
            Ok(_) => Ok(holder),
            Err(Error::NoNode(_)) => Err(free()),
            Err(error) => Err(LockError::Registry { lock: lock.lock().clone(), error }),
        }
    }

    /// Deletes a contender's node.
    pub async fn break_lock(&self, lock: &LockPaths, node: &Path) -> Result<(), LockError> {
        match self.session()?.commit(vec![Operation::delete(node.clone())]).await.map_err(|error| error.error)
        {
            Ok(_) => {
                tracing::warn!(event = "LOCK_BROKEN", %node, "an operator has deleted a contender's node");
                Ok(())
            }
            Err(Error::NoNode(_)) => Err(LockError::Free(format!(
                "the lock {} has no node `{}` any more",
                lock.lock(),
                node.name()
            ))),
            Err(error) => Err(LockError::Registry { lock: lock.lock().clone(), error }),
        }
    }
}

/// Reads the node of a contender or of a delay. `None`: the child is another one, or it has gone.
fn read(
    session: &dyn Session,
    lock: &LockPaths,
    name: &str,
) -> impl Future<Output = Result<Option<Node>, Error>> + use<> {
    let is_contender = matches!(
        Below::read(name),
        Below::Child(Child::Contender { .. } | Child::Delay { .. }) | Below::Queued(_) | Below::Permit(_)
    );
    let answer = lock.below(name).filter(|_| is_contender).map(|path| session.get(&path));
    async move {
        match answer {
            Some(answer) => answer.await,
            None => Ok(None),
        }
    }
}
