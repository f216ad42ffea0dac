//! Reads locks for people, and changes them on request: the queue of a lock, the names of locks, a revocation, the deletion
//! of a contender's node. Decides nothing: whose turn it is says `coordination/lock/queue.rs`.

use std::sync::Arc;

use crate::coordination::lock::queue::holders;
use crate::extension::lock::{Child, LockPaths, REVOKE};
use crate::registry::Session;
use crate::runner::nodes::snapshot;
use crate::tree::{Error, Node, Operation, Path};

use super::registry::Locks;

/// The state of a lock.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LockState {
    /// The nodes of the contenders that hold it.
    pub holders: Vec<Node>,
    /// The nodes of the contenders that wait, in their order.
    pub waiting: Vec<Node>,
    /// The names of other nodes.
    pub foreign: Vec<String>,
}

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
        let nodes = snapshot::read(&*session, lock.lock()).await.map_err(failed)?;
        let children = nodes.into_iter().filter(|node| node.path.parent().as_ref() == Some(lock.lock()));
        let mut state = LockState::default();
        let mut contenders = Vec::new();
        for node in children {
            match Child::read(node.path.name()) {
                Child::Contender { mode, number } => contenders.push((number, mode, node)),
                Child::WithoutNumber(_) | Child::OtherRecipe | Child::Foreign => {
                    state.foreign.push(node.path.name().to_owned());
                }
            }
        }
        contenders.sort_by(|one, other| (one.0, one.1, &one.2.path).cmp(&(other.0, other.1, &other.2.path)));
        let count = holders(contenders.iter().map(|(_, mode, _)| *mode));
        let mut nodes = contenders.into_iter().map(|(_, _, node)| node);
        state.holders = nodes.by_ref().take(count).collect();
        state.waiting = nodes.collect();
        Ok(state)
    }

    /// The names of the locks below the lock root.
    pub async fn names(&self) -> Result<Vec<String>, LockError> {
        let answer = self.session()?.children(self.root()).await;
        let names = answer.map_err(|error| LockError::Registry { lock: self.root().clone(), error })?;
        let mut names = names.unwrap_or_default();
        names.sort_unstable();
        Ok(names)
    }

    /// Asks the first holder for the lock. Returns its node.
    pub async fn request_revocation(&self, lock: &LockPaths) -> Result<Node, LockError> {
        let state = self.look(lock).await?;
        let free = || LockError::Free(format!("nobody holds the lock {}", lock.lock()));
        let holder = state.holders.into_iter().next().ok_or_else(free)?;
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
                tracing::warn!(%node, "an operator has deleted a contender's node");
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
