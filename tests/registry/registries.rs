//! The registries under test and the faults of their sessions, and short helpers of many tests.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::future::BoxFuture;
use sidekeeper::registry::embedded::Embedded;
use sidekeeper::registry::latch::{self, LatchError};
use sidekeeper::registry::zookeeper::{Acl, CredentialFiles, Settings, ZooKeeper};
use sidekeeper::registry::{Error, Registry, Session, SessionState, Watch};
use sidekeeper::runner::clock::Clock;
use sidekeeper::tree::{NodeChange, Operation, OperationResult, Path, SessionId, Stat, WatchEvent};
use tokio::time::timeout;

use crate::support::proxy::{Mode, Proxy};
use crate::support::secure_zookeeper::SecureServer;
use crate::support::zookeeper::Server;

/// Far more than any step of a test takes.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// Takes a latch as the runner does.
pub(crate) fn hold<T, F, W>(
    session: Arc<dyn Session>,
    latch: Path,
    limit: Duration,
    work: F,
) -> BoxFuture<'static, Result<T, LatchError>>
where
    T: Send + 'static,
    F: FnOnce() -> W + Send + 'static,
    W: Future<Output = T> + Send + 'static,
{
    latch::hold(&Clock::start(), session, latch, limit, work)
}

#[allow(clippy::large_enum_variant, reason = "there are a few dozen of them")]
pub(crate) enum TestRegistry {
    Embedded(Embedded),
    ZooKeeper { direct: ZooKeeper, through_proxy: ZooKeeper, proxy: Proxy },
}

impl TestRegistry {
    pub(crate) fn embedded() -> Self {
        Self::Embedded(Embedded::in_memory())
    }

    /// A node of its own on the shared server.
    pub(crate) async fn zookeeper(test: &str) -> Self {
        let server = Server::shared();
        let proxy = Proxy::start(server.port()).await;
        let at = |address: &str| settings(&format!("{address}/{test}"));
        let direct = ZooKeeper::new(patient(at(&server.address()))).unwrap();
        let through_proxy = ZooKeeper::new(at(&proxy.address())).unwrap();
        Self::ZooKeeper { direct, through_proxy, proxy }
    }

    /// The same on a server that is reached by TLS.
    pub(crate) async fn zookeeper_by_tls(test: &str) -> Self {
        let server = SecureServer::shared();
        let proxy = Proxy::start(server.port).await;
        let files = CredentialFiles { ca: Some(server.authority.ca()), ..CredentialFiles::default() };
        let at = |address: &str| {
            let settings = settings(&format!("{address}/{test}"));
            Settings { files: files.clone(), ..patient(settings) }
        };
        let direct = ZooKeeper::new(at(&server.address())).unwrap();
        // A server in Java takes longer for TLS.
        let session_timeout = Duration::from_secs(8);
        let through_proxy = ZooKeeper::new(Settings { session_timeout, ..at(&proxy.address()) }).unwrap();
        Self::ZooKeeper { direct, through_proxy, proxy }
    }

    /// A session.
    pub(crate) async fn session(&self) -> Arc<dyn Session> {
        match self {
            Self::Embedded(registry) => registry.open().await.unwrap(),
            Self::ZooKeeper { direct, .. } => open_eventually(direct).await.unwrap(),
        }
    }

    /// A session that can be interrupted and lost. A test has at most one.
    pub(crate) async fn victim(&self) -> Arc<dyn Session> {
        match self {
            Self::Embedded(registry) => registry.open().await.unwrap(),
            Self::ZooKeeper { through_proxy, .. } => open_eventually(through_proxy).await.unwrap(),
        }
    }

    /// The registry, for a sidecar.
    pub(crate) fn shared(&self) -> Arc<dyn Registry> {
        match self {
            Self::Embedded(registry) => Arc::new(registry.clone()),
            Self::ZooKeeper { direct, .. } => Arc::new(direct.clone()),
        }
    }

    /// The registry, for a sidecar whose session is cut off or ended. A test has at most one.
    pub(crate) fn victims(&self) -> Arc<dyn Registry> {
        match self {
            Self::Embedded(registry) => Arc::new(registry.clone()),
            Self::ZooKeeper { through_proxy, .. } => Arc::new(through_proxy.clone()),
        }
    }

    pub(crate) fn is_embedded(&self) -> bool {
        matches!(self, Self::Embedded(_))
    }

    /// Breaks the connection of the victim, which has this session.
    pub(crate) fn cut(&self, session: SessionId) {
        match self {
            Self::Embedded(registry) => registry.suspend(session),
            Self::ZooKeeper { proxy, .. } => {
                proxy.set(Mode::Refuse);
                proxy.reset();
            }
        }
    }

    /// Ends the session of a victim whose connection is broken: ZooKeeper does so itself, after two seconds.
    pub(crate) fn end(&self, session: SessionId) {
        if let Self::Embedded(registry) = self {
            registry.expire(session);
        }
    }

    /// Restores the connection of the victim.
    pub(crate) fn mend(&self, session: SessionId) {
        match self {
            Self::Embedded(registry) => registry.resume(session),
            Self::ZooKeeper { proxy, .. } => proxy.set(Mode::Pass),
        }
    }

    /// Breaks the connection of the victim, and waits until it is suspended.
    pub(crate) async fn interrupt(&self, victim: &dyn Session) {
        match self {
            Self::Embedded(registry) => registry.suspend(victim.id()),
            Self::ZooKeeper { proxy, .. } => {
                proxy.set(Mode::Refuse);
                proxy.reset();
            }
        }
        reaches(victim, SessionState::Suspended).await;
    }

    /// Restores the connection of the victim, and waits until it is connected.
    pub(crate) async fn reconnect(&self, victim: &dyn Session) {
        match self {
            Self::Embedded(registry) => registry.resume(victim.id()),
            Self::ZooKeeper { proxy, .. } => proxy.set(Mode::Pass),
        }
        reaches(victim, SessionState::Connected).await;
    }

    /// Makes the registry end the session of the victim, and waits until it is lost.
    pub(crate) async fn lose(&self, victim: &dyn Session) {
        match self {
            Self::Embedded(registry) => registry.expire(victim.id()),
            Self::ZooKeeper { proxy, .. } => {
                proxy.set(Mode::Refuse);
                proxy.reset();
            }
        }
        reaches(victim, SessionState::Lost).await;
        if let Self::ZooKeeper { proxy, .. } = self {
            proxy.set(Mode::Pass);
        }
    }
}

/// Opens a session as a sidecar does: again and again while no server answers. A busy server may end a connection before its answer
/// is read.
pub(crate) async fn open_eventually(registry: &ZooKeeper) -> Result<Arc<dyn Session>, Error> {
    let end = Instant::now() + PATIENCE;
    loop {
        match registry.open().await {
            Err(Error::Unreachable(_)) if Instant::now() < end => {}
            other => return other,
        }
    }
}

/// Settings with short timeouts.
pub(crate) fn settings(connect: &str) -> Settings {
    Settings {
        connect: connect.to_owned(),
        session_timeout: Duration::from_secs(2),
        connection_timeout: Duration::from_secs(1),
        request_timeout: Duration::from_secs(5),
        digest: None,
        files: CredentialFiles::default(),
        acl: Acl::Auto,
    }
}

/// The same for a session that the test neither interrupts nor ends: a machine that stalls must not do so either.
pub(crate) fn patient(settings: Settings) -> Settings {
    let (session_timeout, request_timeout) = (2 * PATIENCE, PATIENCE);
    Settings { session_timeout, connection_timeout: Duration::from_secs(5), request_timeout, ..settings }
}

/// Waits until a session is in a state.
pub(crate) async fn reaches(session: &dyn Session, wanted: SessionState) {
    let mut state = session.state();
    let reached = timeout(PATIENCE, state.wait_for(|state| *state == wanted)).await;
    reached.unwrap_or_else(|_| panic!("the session does not become {wanted:?}")).unwrap();
}

pub(crate) fn path(text: &str) -> Path {
    Path::parse(text).unwrap()
}

/// Commits and expects success.
pub(crate) async fn commit(session: &dyn Session, transaction: Vec<Operation>) -> Vec<OperationResult> {
    session.commit(transaction).await.unwrap()
}

/// The path and the stat of a created node.
pub(crate) fn created(result: &OperationResult) -> (Path, Stat) {
    match result {
        OperationResult::Created { path, stat } => (path.clone(), *stat),
        other => panic!("{other:?} is no creation"),
    }
}

pub(crate) async fn exists(session: &dyn Session, node: &str) -> bool {
    session.get(&path(node)).await.unwrap().is_some()
}

/// The next event of a watch, which must come.
pub(crate) async fn next(watch: &mut Watch) -> WatchEvent {
    timeout(PATIENCE, watch.recv()).await.expect("no event comes").expect("the watch has ended")
}

/// The next event, which must be changes.
pub(crate) async fn next_changes(watch: &mut Watch) -> Vec<NodeChange> {
    match next(watch).await {
        WatchEvent::Changes(changes) => changes,
        other => panic!("{other:?} instead of changes"),
    }
}

/// The paths of the next event, which must be a snapshot.
pub(crate) async fn next_snapshot(watch: &mut Watch) -> Vec<String> {
    match next(watch).await {
        WatchEvent::Snapshot(nodes) => nodes.into_iter().map(|node| node.path.to_string()).collect(),
        other => panic!("{other:?} instead of a snapshot"),
    }
}

/// The nodes that a reader of a watch with all data has seen.
#[derive(Default, Debug, PartialEq)]
pub(crate) struct View {
    pub(crate) nodes: BTreeMap<Path, (Arc<[u8]>, Stat)>,
}

impl View {
    pub(crate) fn apply(&mut self, event: WatchEvent) {
        match event {
            WatchEvent::Snapshot(nodes) => {
                let nodes = nodes.into_iter().map(|node| (node.path, (node.data, node.stat)));
                self.nodes = nodes.collect();
            }
            WatchEvent::Changes(changes) => {
                for change in changes {
                    match change {
                        NodeChange::Put { path, content } => {
                            self.nodes.insert(path, content.expect("all data is wanted"));
                        }
                        NodeChange::Removed { path } => {
                            self.nodes.remove(&path);
                        }
                    }
                }
            }
        }
    }

    /// Applies all events that the watch holds now.
    pub(crate) fn catch_up(&mut self, watch: &mut Watch) {
        while let Ok(event) = watch.try_recv() {
            self.apply(event);
        }
    }
}
