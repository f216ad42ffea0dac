//! One connection with one server, made by the client library, and the means to end it.
//!
//! The client would reconnect by itself. But then it loses every watch without an error, waits twice as long
//! after each failure without a cap, and sends late the requests that have waited. So a connection lasts only
//! until the first sign of trouble. Then the client's reactor, which runs as a task of ours, is aborted, and
//! another connection is attached to the same session. There are never two connections: they would take the
//! session from each other for ever.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, RwLock};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use zookeeper_client as zk;

use super::credentials::Presented;
use super::look::{self, NoServer, Server};
use super::nodelay;
use super::read::Reads;
use super::settings::Checked;

/// How long to wait until the watch tasks release a broken connection. They do so at once when they run at
/// all.
const RELEASE_LIMIT: Duration = Duration::from_secs(1);

/// The number of the next connection.
static LAST_NUMBER: AtomicU64 = AtomicU64::new(0);

/// A connection as its users see it.
pub(super) struct Link {
    pub(super) client: zk::Client,
    /// The reads of the watches over this connection.
    pub(super) reads: Reads,
    /// Held for reading by each task that has a watcher of the client. A watcher panics when it is read after
    /// the reactor has ended, so the reactor has to wait for these tasks.
    pub(super) watching: Arc<RwLock<()>>,
    /// When its handshake was sent, or a moment before. `None`: there is no clock.
    pub(super) greeted: Option<Duration>,
    /// Distinguishes connections.
    pub(super) number: u64,
    /// A user found the connection unusable.
    trouble: Notify,
}

/// The connection that a session has now.
#[derive(Clone)]
pub(super) enum LinkState {
    Up(Arc<Link>),
    Down,
    Lost,
}

impl Link {
    fn new(client: zk::Client, greeted: Option<Duration>, number: u64) -> Arc<Self> {
        let reads = Reads::new(client.clone());
        Arc::new(Self { client, reads, watching: Arc::default(), greeted, number, trouble: Notify::new() })
    }

    /// Marks the connection as unusable, whatever state the client reports.
    pub(super) fn give_up(&self) {
        self.trouble.notify_one();
    }
}

/// A connection as its owner sees it.
pub(super) struct Connection {
    pub(super) link: Arc<Link>,
    states: zk::StateWatcher,
    reactor: JoinHandle<()>,
    /// The credentials that the server has seen.
    presented: Arc<Presented>,
}

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub(super) enum OpenError {
    /// The client library's reason.
    #[error("{0}")]
    Client(#[from] zk::Error),
    /// A certificate was refused, or cannot be used. Only a person can help.
    #[error("{0}")]
    Refused(String),
    /// The servers that answer serve read-only.
    #[error("no server with a majority answered; those that answered serve read-only")]
    ReadOnly,
}

impl OpenError {
    /// As an error of the client library.
    pub(super) fn into_client(self) -> zk::Error {
        match self {
            Self::Client(error) => error,
            Self::Refused(reason) => zk::Error::UnexpectedError(reason),
            Self::ReadOnly => zk::Error::UnexpectedError(self.to_string()),
        }
    }
}

/// How a connection ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Broken {
    /// The session may still be alive.
    Disconnected,
    /// The server ended the session.
    SessionEnded,
}

impl Connection {
    /// Finds a serving server. Opens a session there, or attaches to one. Bounded in time by three
    /// times the connection timeout.
    pub(super) async fn open(checked: &Checked, session: Option<zk::SessionInfo>) -> Result<Self, OpenError> {
        let presented = checked.credentials.presented().await.map_err(OpenError::Refused)?;
        let server = look::find(checked, &presented).await.map_err(|nothing| match nothing {
            NoServer::Silent => OpenError::Client(zk::Error::NoHosts),
            NoServer::ReadOnly => OpenError::ReadOnly,
            NoServer::Refused(reason) => OpenError::Refused(reason),
        })?;
        Self::greet(checked, &server, session).await
    }

    /// Opens a session at a server, or attaches to one. Bounded in time by the connection timeout, and with Kerberos
    /// by twice that time.
    ///
    /// An attempt to attach that is dropped before its answer has not ended the session. But the server may
    /// still attach it later, and then it refuses the connection that the session has by that time. So
    /// attempts are not dropped early: `look` chooses a serving server before.
    pub(super) async fn greet(
        checked: &Checked,
        server: &Server,
        session: Option<zk::SessionInfo>,
    ) -> Result<Self, OpenError> {
        let settings = &checked.settings;
        let presented = checked.credentials.presented().await.map_err(OpenError::Refused)?;
        let host = server.host();
        if let Some(service) = presented.kerberos() {
            service.gain_ticket(host, settings.connection_timeout).await.map_err(OpenError::Refused)?;
        }
        let mut connector = presented
            .connector(host)
            .with_session_timeout(settings.session_timeout)
            .with_connection_timeout(settings.connection_timeout)
            .with_fail_eagerly();
        if let Some(session) = session {
            connector = connector.with_session(session);
        }
        let reactor = Reactor::default();
        let greeted = checked.clock.as_ref().map(|clock| clock());
        let by_tls = presented.tls().is_some();
        let address = server.endpoint(by_tls);
        let mut connecting = pin!(async {
            if by_tls { connector.secure_connect(&address).await } else { connector.connect(&address).await }
        });
        let connected = poll_fn(|context| {
            let _scope = spawns_core::enter(&reactor);
            connecting.as_mut().poll(context)
        });
        let client =
            timeout(settings.connection_timeout, connected).await.map_err(|_| zk::Error::Timeout)??;
        let reactor = reactor.task.into_inner().unwrap_or_else(PoisonError::into_inner);
        let Some(reactor) = reactor else {
            return Err(zk::Error::UnexpectedError("the client started no reactor".to_owned()).into());
        };
        nodelay::set(server.address);
        let states = client.state_watcher();
        let link = Link::new(client, greeted, LAST_NUMBER.fetch_add(1, Ordering::Relaxed));
        Ok(Self { link, states, reactor, presented })
    }

    /// The same connection with a root: all its paths are below a node.
    pub(super) fn below(self, chroot: &str) -> Result<Self, zk::Error> {
        let client = self.link.client.clone().chroot(chroot);
        let client = client.map_err(|_| zk::Error::BadArguments(&"the node cannot be a root"))?;
        let link = Link::new(client, self.link.greeted, self.link.number);
        Ok(Self { link, ..self })
    }

    /// Ends at the first sign of trouble. Each change of the client's state is one. The client merges states,
    /// so it may have reconnected by itself, and lost all watches, before the change arrives.
    pub(super) async fn broken(&mut self, checked: &Checked) -> Broken {
        if self.link.client.state() != zk::SessionState::SyncConnected {
            return ended(self.link.client.state());
        }
        tokio::select! {
            state = self.states.changed() => ended(state),
            _ = &mut self.reactor => ended(self.link.client.state()),
            () = self.link.trouble.notified() => Broken::Disconnected,
            () = renewed(checked, &self.presented) => {
                tracing::info!(shown = self.presented.in_words(), "the credentials for ZooKeeper have changed: connecting anew");
                Broken::Disconnected
            }
        }
    }

    /// Cuts the connection without ending the session. When this returns, nothing more is sent, and all
    /// requests in flight have failed. The caller has to keep new users away first.
    pub(super) async fn cut(self) {
        // After the limit a watch task ends in a panic of its own, and its reader sees the end of the watch.
        let _ = timeout(RELEASE_LIMIT, self.link.watching.write()).await;
        self.reactor.abort();
        // A task that is known to have ended must not be awaited again. Otherwise it ends as cancelled,
        // because of the abort, or as finished.
        if !self.reactor.is_finished() {
            let _ = self.reactor.await;
        }
    }

    /// Ends the session: waits until all earlier requests are answered and the server has confirmed, but not
    /// beyond the limit. The caller has to keep new users away first.
    pub(super) async fn close(self, limit: Duration) {
        let Self { link, mut reactor, .. } = self;
        // Dropping the last copy of the client ends the session.
        drop(link);
        if !reactor.is_finished() && timeout(limit, &mut reactor).await.is_err() {
            reactor.abort();
        }
    }
}

/// Ends when the files have other credentials that a server accepts, as far as a handshake tells. Others change nothing: a connection
/// that works is not given up for one that is refused.
async fn renewed(checked: &Checked, shown: &Arc<Presented>) {
    let mut known = Arc::clone(shown);
    loop {
        known = checked.credentials.changed(&known).await;
        match look::find(checked, &known).await {
            Err(NoServer::Refused(reason)) => tracing::warn!(
                event = "REGISTRY_AUTH_FAILED",
                reason,
                "the new credentials for ZooKeeper are refused: the connection goes on with those before"
            ),
            Ok(_) | Err(NoServer::Silent | NoServer::ReadOnly) => return,
        }
    }
}

fn ended(state: zk::SessionState) -> Broken {
    match state {
        zk::SessionState::Expired | zk::SessionState::AuthFailed | zk::SessionState::Closed => {
            Broken::SessionEnded
        }
        zk::SessionState::Disconnected
        | zk::SessionState::SyncConnected
        | zk::SessionState::ConnectedReadOnly => Broken::Disconnected,
    }
}

/// Catches the task that the client starts for its reactor.
#[derive(Default)]
struct Reactor {
    task: Mutex<Option<JoinHandle<()>>>,
}

impl spawns_core::Spawn for Reactor {
    fn spawn(&self, task: spawns_core::Task) {
        #[expect(clippy::disallowed_methods, reason = "owned by the connection, which ends it")]
        let task = tokio::spawn(Box::into_pin(task.future));
        *self.task.lock().unwrap_or_else(PoisonError::into_inner) = Some(task);
    }
}
