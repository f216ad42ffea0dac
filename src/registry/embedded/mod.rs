//! A registry inside this process: ZooKeeper's tree, sessions and watches without a server.
//!
//! One lock holds everything: a transaction is applied and its changes are put into the watches before
//! another reader sees the tree. This gives all guarantees about order. With a data folder, persistent nodes
//! and the transaction counter survive a restart; ephemeral nodes never do, and cost no write. A change is
//! visible at once. It is acknowledged when it and all changes before it are durable.
//!
//! While the folder cannot be written, all sessions are suspended, as when ZooKeeper cannot be reached: no
//! session sees or changes a tree that the disk does not have. A failed transaction stays in the tree, and
//! its outcome is unknown. It is written first when the disk has room; then the sessions go on with a
//! snapshot.
//!
//! The simulation uses this registry in place of ZooKeeper: [`Embedded::suspend`], [`Embedded::resume`] and
//! [`Embedded::expire`] do to a session what a network does.

mod guard;
mod session;
mod shared;
mod store;
mod tree;

use std::collections::BTreeMap;
use std::path::Path as FilePath;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::future::{BoxFuture, ready};

pub use self::shared::Clock;
pub use self::store::{OpenDatabase, OpenError};

use self::session::EmbeddedSession;
use self::shared::{Inner, State, Suspension};
use self::store::{Opened, Store, ZXID_RANGE};
use self::tree::Tree;
use super::{Error, Registry, Session, SessionKey, SessionState};
use crate::tree::SessionId;

/// The timeout that sessions report. No session of this registry expires by itself.
const SESSION_TIMEOUT: Duration = Duration::MAX;

/// A registry inside this process. Clones share it.
#[derive(Clone)]
pub struct Embedded {
    inner: Arc<Inner>,
    session_timeout: Duration,
}

impl Embedded {
    /// A registry in memory. Its nodes are lost when the last clone and the last session are dropped.
    pub fn in_memory() -> Self {
        Self::in_memory_with_clock(system_clock())
    }

    /// As [`Self::in_memory`], with the caller's clock.
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

    /// A registry that keeps its persistent nodes and its transaction counter in a file in this folder. Makes
    /// the folder if it is missing. Fails if the file is damaged or another process has it open.
    pub fn open(folder: &FilePath) -> Result<Self, OpenError> {
        Self::open_with_clock(folder, system_clock())
    }

    /// As [`Self::open`], with the caller's clock.
    pub fn open_with_clock(folder: &FilePath, clock: Clock) -> Result<Self, OpenError> {
        Self::open_by(folder, clock, Arc::new(store::open_file))
    }

    /// As [`Self::open_with_clock`], with the caller's function to open the file.
    pub fn open_by(folder: &FilePath, clock: Clock, open: OpenDatabase) -> Result<Self, OpenError> {
        let (opened, stored) = Opened::read(folder, open)?;
        let mut tree = Tree::new();
        for (node, lifetime) in stored.nodes {
            let path = node.path.clone();
            if !tree.restore(node, lifetime) {
                return Err(OpenError::orphan(folder, &path));
            }
        }
        // The containers whose last children were ephemeral.
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

    /// The same registry, but sessions opened from here report another [`Session::timeout`]. Still no session
    /// expires by itself: a simulation calls [`Self::expire`].
    pub fn with_session_timeout(mut self, timeout: Duration) -> Self {
        self.session_timeout = timeout;
        self
    }

    /// Ends a session as a server does when it receives nothing from the session: the ephemeral nodes vanish,
    /// and the session is lost.
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

    /// Reconnects a session that was cut off: its watches send a new snapshot.
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

fn system_clock() -> Clock {
    #[expect(
        clippy::disallowed_methods,
        reason = "no other code of this room reads the clock; a caller can pass another"
    )]
    let now = || {
        let since_1970 = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        since_1970.ok().and_then(|age| i64::try_from(age.as_millis()).ok()).unwrap_or_default()
    };
    Arc::new(now)
}
