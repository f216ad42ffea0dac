//! Reads sticky locks for people. Decides nothing.

use std::sync::Arc;

use futures::future::join_all;

use crate::coordination::sticky::rules::order;
use crate::coordination::sticky::view::View;
use crate::extension::sticky::{Record, StickyPaths};
use crate::registry::Session;
use crate::tree::{Error, Path, SessionId};

use super::registry::StickyLocks;

/// The state of a sticky lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StickyState {
    /// The record. `None`: nobody has owned the lock yet.
    pub record: Option<Record>,
    /// Whether an instance owns the lock now.
    pub is_owned: bool,
    /// The session of the owner.
    pub session: Option<SessionId>,
    /// The instances that want to own the lock, in the order in which they may try.
    pub waiting: Vec<String>,
}

/// Why a sticky lock cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LookError {
    /// There is no session now.
    #[error("the sidecar has no session with the registry; try again")]
    NoSession,
    /// The record has another form.
    #[error("the record {path} cannot be read: {why}")]
    Unreadable {
        /// The record.
        path: Path,
        /// Why.
        why: String,
    },
    /// The registry's answer.
    #[error("sticky lock {lock}: {error}")]
    Registry {
        /// The lock.
        lock: Path,
        /// Why.
        #[source]
        error: Error,
    },
}

impl StickyLocks {
    fn session(&self) -> Result<Arc<dyn Session>, LookError> {
        self.shared().current.borrow().clone().ok_or(LookError::NoSession)
    }

    /// The state of a lock.
    pub async fn look(&self, lock: &StickyPaths) -> Result<StickyState, LookError> {
        let session = self.session()?;
        let failed = |error| LookError::Registry { lock: lock.root().clone(), error };
        let names = session.children(lock.queue()).await.map_err(failed)?.unwrap_or_default();
        let candidates = names.iter().filter_map(|name| lock.queue().try_child(name).ok());
        let paths = candidates.chain([lock.record(), lock.owner()]);
        // In one flight, the owner last: an owner that is seen has written a record that is seen.
        let nodes = join_all(paths.map(|path| session.get(&path))).await;
        let nodes: Result<Vec<_>, _> = nodes.into_iter().collect();
        let view = View::of(lock, nodes.map_err(failed)?.into_iter().flatten().collect());
        let record = view.record.clone().transpose();
        let record = record.map_err(|why| LookError::Unreadable { path: lock.record(), why })?;
        Ok(StickyState {
            record,
            is_owned: view.owner.is_some(),
            session: view.owner.as_ref().and_then(|owner| owner.session),
            waiting: order(&view).into_iter().map(|one| one.instance.clone()).collect(),
        })
    }

    /// The names of the locks.
    pub async fn names(&self) -> Result<Vec<String>, LookError> {
        let answer = self.session()?.children(self.root()).await;
        let names = answer.map_err(|error| LookError::Registry { lock: self.root().clone(), error })?;
        let mut names = names.unwrap_or_default();
        names.sort_unstable();
        Ok(names)
    }
}
