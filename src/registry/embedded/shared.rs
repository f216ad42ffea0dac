//! The tree, its sessions and their watches, under one lock: what the registry and its sessions share.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

use super::store::{Durable, Outage, Store, ZXID_RANGE};
use super::tree::{Change, Stamp, Tree};
use crate::registry::{CommitError, DataFilter, Error, SessionState, WatchSender, missing_parents};
use crate::tree::{NodeChange, Operation, OperationResult, Path, SessionId, Zxid};

/// Reads the wall clock, in milliseconds since 1970, for `Stat::modified_ms`.
pub type Clock = Arc<dyn Fn() -> i64 + Send + Sync>;

pub(super) struct Inner {
    /// The store's thread has the state, too.
    pub(super) state: Arc<Mutex<State>>,
    pub(super) clock: Clock,
    pub(super) store: Option<Store>,
}

pub(super) struct State {
    pub(super) tree: Tree,
    pub(super) members: BTreeMap<SessionId, Member>,
    pub(super) next_zxid: i64,
    /// The first transaction id that is not reserved in the store.
    pub(super) reserved: i64,
    /// Why nothing can be written now, and what to do. All sessions are suspended then.
    pub(super) obstacle: Option<Arc<str>>,
}

/// A session as the tree's owner sees it.
pub(super) struct Member {
    pub(super) state: watch::Sender<SessionState>,
    /// Whether `Embedded::suspend` has cut it off.
    pub(super) is_cut_off: bool,
    pub(super) watches: Vec<Watcher>,
}

pub(super) struct Watcher {
    pub(super) root: Path,
    pub(super) wants_data: DataFilter,
    pub(super) sender: WatchSender,
}

/// Suspends all sessions while nothing can be written.
pub(super) struct Suspension(pub(super) Arc<Mutex<State>>);

impl Outage for Suspension {
    fn begins(&self, reason: &Arc<str>) {
        lock(&self.0).suspend_all(reason);
    }

    fn ends(&self, is_idle: &dyn Fn() -> bool) -> bool {
        let state = &mut *lock(&self.0);
        let is_over = is_idle();
        if is_over {
            state.obstacle = None;
            for member in state.members.values_mut().filter(|member| !member.is_cut_off) {
                member.connect(&state.tree);
            }
        }
        is_over
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Inner {
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    pub(super) fn join(&self) -> Result<(SessionId, watch::Receiver<SessionState>), Error> {
        let state = &mut *self.lock();
        if let Some(obstacle) = &state.obstacle {
            return Err(Error::Unreachable(obstacle.to_string()));
        }
        let zxid = self.next_zxid(state).map_err(|reason| Error::Unreachable(reason.to_string()))?;
        // A transaction id is never used twice, not even after a restart. So neither is a session id.
        let id = SessionId(zxid.0);
        let (sender, receiver) = watch::channel(SessionState::Connected);
        state.members.insert(id, Member { state: sender, is_cut_off: false, watches: Vec::new() });
        Ok((id, receiver))
    }

    pub(super) fn commit(
        &self,
        session: SessionId,
        operations: &[Operation],
    ) -> Result<(Vec<OperationResult>, Durable), CommitError> {
        let state = &mut *self.lock();
        state.check(session)?;
        self.apply(state, session, operations)
    }

    pub(super) fn ensure(&self, session: SessionId, last: Operation) -> Result<Option<Durable>, CommitError> {
        let state = &mut *self.lock();
        state.check(session)?;
        if state.tree.contains(last.path()) {
            return Ok(None);
        }
        let mut operations = missing_parents(last.path(), |path| !state.tree.contains(path));
        operations.push(last);
        let (_, durable) = self.apply(state, session, &operations)?;
        Ok(Some(durable))
    }

    fn apply(
        &self,
        state: &mut State,
        session: SessionId,
        operations: &[Operation],
    ) -> Result<(Vec<OperationResult>, Durable), CommitError> {
        let zxid = self.next_zxid(state).map_err(|_| Error::Suspended)?;
        let stamp = Stamp { zxid, session, now_ms: (self.clock)() };
        let mut changes = Vec::with_capacity(operations.len());
        let results = state.tree.apply(operations, stamp, &mut changes)?;
        Ok((results, self.publish(state, changes)))
    }

    /// Ends a session, if it has not ended yet.
    pub(super) fn end(&self, session: SessionId) {
        let state = &mut *self.lock();
        if let Some(member) = state.members.remove(&session) {
            member.state.send_replace(SessionState::Lost);
            let mut changes = Vec::new();
            state.tree.remove_ephemerals(session, &mut changes);
            // Of these changes only containers are on the disk. The next start removes an empty container
            // that it finds there, so the caller need not wait for the write.
            self.publish(state, changes);
        }
    }

    /// Keeps a session without its owner. No session of this registry expires by itself, so it lasts as long
    /// as the process.
    pub(super) fn abandon(&self, session: SessionId) {
        if let Some(member) = self.lock().members.get_mut(&session) {
            member.state.send_replace(SessionState::Lost);
            member.watches.clear();
        }
    }

    /// Sends changes to the watches and to the disk.
    fn publish(&self, state: &mut State, mut changes: Vec<Change>) -> Durable {
        state.tree.remove_orphaned_containers(&mut changes);
        for member in state.members.values_mut() {
            if *member.state.borrow() == SessionState::Connected {
                member.watches.retain(|watcher| !watcher.sender.is_closed());
                for watcher in &member.watches {
                    watcher.notify(&changes);
                }
            }
        }
        self.store.as_ref()?.write(&changes)
    }

    /// Gives later transactions ids from this one on. Waits for the disk.
    pub(super) fn skip_ids(&self, session: SessionId, zxid: Zxid) -> Result<(), Error> {
        let state = &mut *self.lock();
        state.check(session)?;
        if zxid.0 >= state.reserved
            && let Some(store) = &self.store
        {
            let reserved = store.reserve(zxid.0);
            state.next_zxid = reserved.map_err(|reason| {
                state.suspend_all(&reason);
                Error::Suspended
            })?;
            state.reserved = state.next_zxid.saturating_add(ZXID_RANGE);
        }
        state.next_zxid = state.next_zxid.max(zxid.0);
        Ok(())
    }

    fn next_zxid(&self, state: &mut State) -> Result<Zxid, Arc<str>> {
        if state.next_zxid >= state.reserved
            && let Some(store) = &self.store
        {
            let reserved = store.reserve(state.next_zxid);
            state.next_zxid = reserved.inspect_err(|reason| state.suspend_all(reason))?;
            state.reserved = state.next_zxid.saturating_add(ZXID_RANGE);
        }
        let zxid = Zxid(state.next_zxid);
        state.next_zxid = state.next_zxid.saturating_add(1);
        Ok(zxid)
    }
}

impl State {
    /// Fails unless the session is alive and connected.
    pub(super) fn check(&self, session: SessionId) -> Result<(), Error> {
        match self.members.get(&session).map(|member| *member.state.borrow()) {
            Some(SessionState::Connected) => Ok(()),
            Some(SessionState::Suspended) => Err(Error::Suspended),
            Some(SessionState::Lost) | None => Err(Error::SessionLost),
        }
    }

    fn suspend_all(&mut self, reason: &Arc<str>) {
        self.obstacle = Some(Arc::clone(reason));
        for member in self.members.values() {
            if *member.state.borrow() == SessionState::Connected {
                member.state.send_replace(SessionState::Suspended);
            }
        }
    }
}

impl Member {
    /// Connects a suspended session: its watches send a new snapshot.
    pub(super) fn connect(&self, tree: &Tree) {
        if *self.state.borrow() == SessionState::Suspended {
            self.state.send_replace(SessionState::Connected);
            for watcher in &self.watches {
                watcher.sender.snapshot(tree.subtree(&watcher.root));
            }
        }
    }
}

impl Watcher {
    fn notify(&self, changes: &[Change]) {
        let below = changes.iter().filter(|change| change.path.is_within(&self.root));
        self.sender.changes(below.map(|Change { path, content, .. }| {
            let path = path.clone();
            match content {
                None => NodeChange::Removed { path },
                Some(content) => {
                    let content = (self.wants_data)(&path).then(|| content.clone());
                    NodeChange::Put { path, content }
                }
            }
        }));
    }
}
