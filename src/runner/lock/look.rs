//! Reads locks for people, and changes them on request: the queue of a lock, the names of locks, a revocation, the deletion
//! of a contender's node. Decides nothing: whose turn it is says `coordination/lock/queue.rs`.

use std::sync::Arc;

use futures::future::join_all;

use crate::coordination::lock::queue::holders;
use crate::extension::lock::{Child, LockPaths, REVOKE};
use crate::registry::Session;
use crate::tree::{Error, Node, Operation, Path};

use super::registry::Locks;

/// The most contenders that are read: more than sidecars permit in a queue.
const CONTENDERS_MAX: usize = 2_000;
/// The most names of other nodes in an answer.
const FOREIGN_MAX: usize = 100;

/// The state of a lock.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LockState {
    /// The nodes of the contenders that hold it.
    pub holders: Vec<Node>,
    /// The nodes of the contenders that wait, in their order.
    pub waiting: Vec<Node>,
    /// The names of other nodes, the first of them.
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
        let names = session.children(lock.lock()).await.map_err(failed)?.unwrap_or_default();
        let mut state = LockState::default();
        let mut contenders = Vec::new();
        for name in names {
            match (Child::read(&name), lock.child(&name)) {
                (Child::Contender { mode, number }, Some(path)) => contenders.push((number, mode, path)),
                _ => state.foreign.push(name),
            }
        }
        contenders.sort_unstable();
        contenders.truncate(CONTENDERS_MAX);
        state.foreign.sort_unstable();
        state.foreign.truncate(FOREIGN_MAX);
        let count = holders(contenders.iter().map(|(_, mode, _)| *mode));
        let nodes = join_all(contenders.iter().map(|(_, _, path)| session.get(path))).await;
        for (place, node) in nodes.into_iter().enumerate() {
            // Contenders that have gone in the meantime are left out.
            let Some(node) = node.map_err(failed)? else { continue };
            if place < count { state.holders.push(node) } else { state.waiting.push(node) }
        }
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
