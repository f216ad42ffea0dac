//! A registry inside this process: ZooKeeper's tree, sessions and watches without a server.
//!
//! One lock holds everything: a transaction is applied, and its changes are put into the watches, before anybody
//! else sees the tree. So all guarantees about order hold without further care. With a data folder, persistent
//! nodes and the transaction counter survive a restart; ephemeral nodes never do, and cost no write. A change is
//! visible at once and acknowledged when it is durable, with all that came before it.
//!
//! While the folder cannot be written, all sessions are suspended, as those with a ZooKeeper that is away: nobody sees or
//! changes a tree that the disk does not have. A failed transaction stays, its outcome unknown, and is written first when there is
//! room; then the sessions go on with a snapshot.
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

pub use self::store::{OpenDatabase, OpenError};

use self::session::EmbeddedSession;
use self::store::{Durable, Opened, Outage, Store, ZXID_RANGE};
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
    /// The store's thread has it, too.
    state: Arc<Mutex<State>>,
    clock: Clock,
    store: Option<Store>,
}

struct State {
    tree: Tree,
    members: BTreeMap<SessionId, Member>,
    next_zxid: i64,
    /// The first transaction id that is not reserved in the store.
    reserved: i64,
    /// Why nothing can be written now, and what to do; everybody is suspended then.
    obstacle: Option<Arc<str>>,
}

/// A session, seen from the tree.
struct Member {
    state: watch::Sender<SessionState>,
    /// Whether [`Embedded::suspend`] has cut it off.
    is_cut_off: bool,
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
        let state = State {
            tree: Tree::new(),
            members: BTreeMap::new(),
            next_zxid: 1,
            reserved: i64::MAX,
            obstacle: None,
        };
        Self::with(Arc::new(Mutex::new(state)), clock, None)
    }

    /// A registry that keeps its persistent nodes and its transaction counter in a file in this folder, which is
    /// made if it is missing. Fails if the file is damaged or another process has it open.
    pub fn open(folder: &FilePath) -> Result<Self, OpenError> {
        Self::open_with_clock(folder, system_clock())
    }

    /// As [`Self::open`], with a clock of the caller's.
    pub fn open_with_clock(folder: &FilePath, clock: Clock) -> Result<Self, OpenError> {
        Self::open_by(folder, clock, Arc::new(store::open_file))
    }

    /// As [`Self::open_with_clock`], with a way of the caller's to open the file.
    pub fn open_by(folder: &FilePath, clock: Clock, open: OpenDatabase) -> Result<Self, OpenError> {
        let (opened, stored) = Opened::read(folder, open)?;
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
        let state = State {
            tree,
            members: BTreeMap::new(),
            next_zxid: stored.first_zxid,
            reserved: stored.first_zxid.saturating_add(ZXID_RANGE),
            obstacle: None,
        };
        let state = Arc::new(Mutex::new(state));
        let store = opened.start(Suspension(Arc::clone(&state)))?;
        store.write(&changes);
        Ok(Self::with(state, clock, Some(store)))
    }

    fn with(state: Arc<Mutex<State>>, clock: Clock, store: Option<Store>) -> Self {
        let inner = Arc::new(Inner { state, clock, store });
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
        if let Some(member) = self.inner.lock().members.get_mut(&session) {
            member.is_cut_off = true;
            member.state.send_replace(SessionState::Suspended);
        }
    }

    /// Reconnects a session that was cut off: its watches tell everything anew.
    pub fn resume(&self, session: SessionId) {
        let state = &mut *self.inner.lock();
        if let Some(member) = state.members.get_mut(&session) {
            member.is_cut_off = false;
            if state.obstacle.is_none() {
                member.connect(&state.tree);
            }
        }
    }
}

/// Suspends all sessions while nothing can be written.
struct Suspension(Arc<Mutex<State>>);

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
        lock(&self.state)
    }

    fn join(&self) -> Result<(SessionId, watch::Receiver<SessionState>), Error> {
        let state = &mut *self.lock();
        if let Some(obstacle) = &state.obstacle {
            return Err(Error::Unreachable(obstacle.to_string()));
        }
        let zxid = self.next_zxid(state).map_err(|reason| Error::Unreachable(reason.to_string()))?;
        // Transaction ids are never given twice, not even after a restart; so neither are session ids.
        let id = SessionId(zxid.0);
        let (sender, receiver) = watch::channel(SessionState::Connected);
        state.members.insert(id, Member { state: sender, is_cut_off: false, watches: Vec::new() });
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
        let zxid = self.next_zxid(state).map_err(|_| Error::Suspended)?;
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
    fn check(&self, session: SessionId) -> Result<(), Error> {
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
    /// Has a suspended session go on: its watches tell everything anew.
    fn connect(&self, tree: &Tree) {
        if *self.state.borrow() == SessionState::Suspended {
            self.state.send_replace(SessionState::Connected);
            for watcher in &self.watches {
                watcher.sender.snapshot(tree.subtree(&watcher.root));
            }
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
