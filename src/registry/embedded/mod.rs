//! A registry inside this process: ZooKeeper's tree, sessions and watches without a server.
//!
//! One lock holds everything: a transaction is applied, and its changes are put into the watches, before anybody
//! else sees the tree. So all guarantees about order hold without further care. With a data folder, persistent
//! nodes and the transaction counter survive a restart; ephemeral nodes never do, and cost no write. A change is
//! visible at once and acknowledged when it is durable.
//!
//! It stands in for ZooKeeper in the simulation, too: [`Embedded::suspend`], [`Embedded::resume`] and
//! [`Embedded::expire`] do to a session what a network does.

mod guard;
mod session;
mod store;
mod tree;

use std::collections::BTreeMap;
use std::path::Path as FilePath;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::future::{BoxFuture, ready};
use tokio::sync::watch;

pub use self::store::OpenError;

use self::session::EmbeddedSession;
use self::store::{Durable, Store, ZXID_RANGE};
use self::tree::{Change, Stamp, Tree};
use super::{CommitError, DataFilter, Error, Registry, Session, SessionKey, SessionState, WatchSender};
use crate::tree::{NodeChange, Operation, OperationResult, Path, SessionId, Zxid};

/// Tells the wall-clock time in milliseconds since 1970, for `Stat::modified_ms`.
pub type Clock = Arc<dyn Fn() -> i64 + Send + Sync>;

/// The timeout that sessions are told they have: nothing in here expires by itself.
const SESSION_TIMEOUT: Duration = Duration::MAX;

/// A registry inside this process. Clones share it.
#[derive(Clone)]
pub struct Embedded {
    inner: Arc<Inner>,
    session_timeout: Duration,
}

struct Inner {
    state: Mutex<State>,
    clock: Clock,
    store: Option<Store>,
}

struct State {
    tree: Tree,
    members: BTreeMap<SessionId, Member>,
    next_zxid: i64,
    /// The first transaction id that is not reserved in the store.
    reserved: i64,
}

/// A session, seen from the tree.
struct Member {
    state: watch::Sender<SessionState>,
    watches: Vec<Watcher>,
}

struct Watcher {
    root: Path,
    wants_data: DataFilter,
    sender: WatchSender,
}

impl Embedded {
    /// A registry that forgets everything when its last clone and session are gone.
    pub fn in_memory() -> Self {
        Self::in_memory_with_clock(system_clock())
    }

    /// As [`Self::in_memory`], with a clock of the caller's.
    pub fn in_memory_with_clock(clock: Clock) -> Self {
        let state = State { tree: Tree::new(), members: BTreeMap::new(), next_zxid: 1, reserved: i64::MAX };
        Self::with(state, clock, None)
    }

    /// A registry that keeps its persistent nodes and its transaction counter in a file in this folder, which is
    /// made if it is missing. Fails if the file is damaged or another process has it open.
    pub fn open(folder: &FilePath) -> Result<Self, OpenError> {
        Self::open_with_clock(folder, system_clock())
    }

    /// As [`Self::open`], with a clock of the caller's.
    pub fn open_with_clock(folder: &FilePath, clock: Clock) -> Result<Self, OpenError> {
        let (store, stored) = Store::open(folder)?;
        let mut tree = Tree::new();
        for (node, lifetime) in stored.nodes {
            let path = node.path.clone();
            if !tree.restore(node, lifetime) {
                return Err(OpenError::orphan(folder, &path));
            }
        }
        // Those whose last children were ephemeral.
        let mut changes = tree.remove_empty_containers();
        tree.remove_orphaned_containers(&mut changes);
        store.write(&changes);
        let state = State {
            tree,
            members: BTreeMap::new(),
            next_zxid: stored.first_zxid,
            reserved: stored.first_zxid.saturating_add(ZXID_RANGE),
        };
        Ok(Self::with(state, clock, Some(store)))
    }

    fn with(state: State, clock: Clock, store: Option<Store>) -> Self {
        let inner = Arc::new(Inner { state: Mutex::new(state), clock, store });
        Self { inner, session_timeout: SESSION_TIMEOUT }
    }

    /// The same registry, whose sessions opened from here tell another [`Session::timeout`]. Nothing expires by
    /// itself all the same: a simulation decides that with [`Self::expire`].
    pub fn with_session_timeout(mut self, timeout: Duration) -> Self {
        self.session_timeout = timeout;
        self
    }

    /// Ends a session as a server does that has not heard from it: its ephemeral nodes vanish, and it is told.
    pub fn expire(&self, session: SessionId) {
        self.inner.end(session);
    }

    /// Cuts a session off: its requests fail with [`Error::Suspended`], its watches stay silent.
    pub fn suspend(&self, session: SessionId) {
        if let Some(member) = self.inner.lock().members.get(&session) {
            member.state.send_replace(SessionState::Suspended);
        }
    }

    /// Reconnects a session that was cut off: its watches tell everything anew.
    pub fn resume(&self, session: SessionId) {
        let state = &mut *self.inner.lock();
        if let Some(member) = state.members.get(&session)
            && *member.state.borrow() == SessionState::Suspended
        {
            for watcher in &member.watches {
                watcher.sender.snapshot(state.tree.subtree(&watcher.root));
            }
            member.state.send_replace(SessionState::Connected);
        }
    }
}

impl Registry for Embedded {
    fn open(&self) -> BoxFuture<'_, Result<Arc<dyn Session>, Error>> {
        Box::pin(async move {
            let (id, state) = self.inner.join()?;
            let inner = Arc::clone(&self.inner);
            let session: Arc<dyn Session> =
                Arc::new(EmbeddedSession::new(inner, id, state, self.session_timeout));
            Ok(session)
        })
    }

    fn reopen<'a>(&'a self, _: &'a SessionKey) -> BoxFuture<'a, Result<Option<Arc<dyn Session>>, Error>> {
        Box::pin(ready(Ok(None)))
    }

    fn describe(&self) -> String {
        match self.inner.store {
            None => "embedded, in memory".to_owned(),
            Some(_) => "embedded".to_owned(),
        }
    }
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn join(&self) -> Result<(SessionId, watch::Receiver<SessionState>), Error> {
        let state = &mut *self.lock();
        let zxid = self.next_zxid(state).map_err(Error::Unreachable)?;
        // Transaction ids are never given twice, not even after a restart; so neither are session ids.
        let id = SessionId(zxid.0);
        let (sender, receiver) = watch::channel(SessionState::Connected);
        state.members.insert(id, Member { state: sender, watches: Vec::new() });
        Ok((id, receiver))
    }

    fn commit(
        &self,
        session: SessionId,
        operations: &[Operation],
    ) -> Result<(Vec<OperationResult>, Durable), CommitError> {
        let state = &mut *self.lock();
        state.check(session)?;
        self.apply(state, session, operations)
    }

    fn ensure(&self, session: SessionId, last: Operation) -> Result<Option<Durable>, CommitError> {
        let state = &mut *self.lock();
        state.check(session)?;
        if state.tree.contains(last.path()) {
            return Ok(None);
        }
        let mut operations = super::missing_parents(last.path(), |path| !state.tree.contains(path));
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
        let zxid = self.next_zxid(state).map_err(Error::Refused)?;
        let stamp = Stamp { zxid, session, now_ms: (self.clock)() };
        let mut changes = Vec::with_capacity(operations.len());
        let results = state.tree.apply(operations, stamp, &mut changes)?;
        Ok((results, self.publish(state, changes)))
    }

    /// Ends a session, if it has not ended yet.
    fn end(&self, session: SessionId) {
        let state = &mut *self.lock();
        if let Some(member) = state.members.remove(&session) {
            member.state.send_replace(SessionState::Lost);
            let mut changes = Vec::new();
            state.tree.remove_ephemerals(session, &mut changes);
            // Only containers are on the disk among these. An empty one that is found there at the next start is
            // removed then, so nobody has to wait for the write.
            self.publish(state, changes);
        }
    }

    /// Goes on without whoever had the session: nothing expires by itself in here, so it lasts as long as the process.
    fn abandon(&self, session: SessionId) {
        if let Some(member) = self.lock().members.get_mut(&session) {
            member.state.send_replace(SessionState::Lost);
            member.watches.clear();
        }
    }

    /// Tells the watches and the disk.
    fn publish(&self, state: &mut State, mut changes: Vec<Change>) -> Durable {
        state.tree.remove_orphaned_containers(&mut changes);
        for member in state.members.values_mut() {
            if *member.state.borrow() == SessionState::Connected {
                member.watches.retain(|watcher| !watcher.sender.is_closed());
                for watcher in &member.watches {
                    watcher.tell(&changes);
                }
            }
        }
        self.store.as_ref()?.write(&changes)
    }

    fn next_zxid(&self, state: &mut State) -> Result<Zxid, String> {
        if state.next_zxid >= state.reserved
            && let Some(store) = &self.store
        {
            state.next_zxid = store.reserve(state.next_zxid)?;
            state.reserved = state.next_zxid.saturating_add(ZXID_RANGE);
        }
        let zxid = Zxid(state.next_zxid);
        state.next_zxid = state.next_zxid.saturating_add(1);
        Ok(zxid)
    }
}

impl State {
    /// Fails unless the session is alive and connected.
    fn check(&self, session: SessionId) -> Result<(), Error> {
        match self.members.get(&session).map(|member| *member.state.borrow()) {
            Some(SessionState::Connected) => Ok(()),
            Some(SessionState::Suspended) => Err(Error::Suspended),
            Some(SessionState::Lost) | None => Err(Error::SessionLost),
        }
    }
}

impl Watcher {
    fn tell(&self, changes: &[Change]) {
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

fn system_clock() -> Clock {
    #[expect(
        clippy::disallowed_methods,
        reason = "the only reading of the clock here; a caller can bring another"
    )]
    let now = || {
        let since_1970 = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        since_1970.ok().and_then(|age| i64::try_from(age.as_millis()).ok()).unwrap_or_default()
    };
    Arc::new(now)
}
