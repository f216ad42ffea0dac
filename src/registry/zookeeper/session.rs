//! A session with ZooKeeper: sends requests, bounds their time and number, and reports their outcomes.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use futures::channel::mpsc;
use futures::future::{BoxFuture, join_all, ready};
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tracing::warn;
use zookeeper_client as zk;

use super::connection::{Connection, Link, LinkState};
use super::convert::{self, from_the_top};
use super::flushers::Flushers;
use super::key;
use super::quota;
use super::settings::Checked;
use super::watch::{self as watching, Follower, TreeFollower};
use super::watch_node::NodeFollower;
use crate::registry::{
    CommitError, DataFilter, Error, Session, SessionKey, SessionState, Watch, watch_channel,
};
use crate::tree::{Node, NodeKind, Operation, OperationResult, Path, Quota, SessionId, Transaction};

/// The most requests in flight, in units of 1 KiB: the client's queue has no bound of its own. 64 MiB are
/// thousands of requests of the usual size, far more than a server answers within the request timeout.
const MAX_IN_FLIGHT: usize = 64 * 1024;

/// The bytes that a server accepts in one request by default (`jute.maxbuffer`). A server breaks the
/// connection for a larger request, with all other requests in flight, so a larger request is never sent.
const MAX_REQUEST: usize = 1_048_575;

/// A node that is to be created may lose a parent between two requests, if the parent is a container. It does
/// not lose parents for ever.
const ENSURE_ATTEMPTS: usize = 5;

pub(super) struct ZooKeeperSession {
    shared: Arc<Shared>,
}

/// The state that the session, its supervisor and its requests share.
pub(super) struct Shared {
    pub(super) checked: Checked,
    pub(super) info: zk::SessionInfo,
    pub(super) timeout: Duration,
    pub(super) state: watch::Sender<SessionState>,
    pub(super) links: watch::Sender<LinkState>,
    /// How to leave the session, once that is requested.
    pub(super) close_mode: watch::Sender<Option<CloseMode>>,
    in_flight: Arc<Semaphore>,
    watches: Mutex<Flushers>,
    /// Where its tasks run, whichever thread makes a request.
    runtime: Handle,
}

/// How this process leaves a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CloseMode {
    /// The session is ended.
    Close,
    /// The session lives on until its timeout is over.
    Abandon,
}

impl Shared {
    pub(super) fn new(checked: Checked, connection: &Connection) -> Self {
        let client = &connection.link.client;
        Self {
            checked,
            info: client.session().clone(),
            timeout: client.session_timeout(),
            state: watch::Sender::new(SessionState::Connected),
            links: watch::Sender::new(LinkState::Up(Arc::clone(&connection.link))),
            close_mode: watch::Sender::new(None),
            in_flight: Arc::new(Semaphore::new(MAX_IN_FLIGHT)),
            watches: Mutex::default(),
            runtime: Handle::current(),
        }
    }

    fn watches(&self) -> MutexGuard<'_, Flushers> {
        self.watches.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn link(&self) -> Result<Arc<Link>, Error> {
        match &*self.links.borrow() {
            LinkState::Up(link) => Ok(Arc::clone(link)),
            LinkState::Down => Err(Error::Suspended),
            LinkState::Lost => Err(Error::SessionLost),
        }
    }

    fn permit(&self, bytes: usize) -> Result<OwnedSemaphorePermit, Error> {
        if bytes > MAX_REQUEST {
            return Err(Error::Refused(format!(
                "the request has about {bytes} bytes, and a server takes at most {MAX_REQUEST}; split it"
            )));
        }
        if let Some(limit) = self.checked.limit.get().filter(|limit| bytes >= *limit) {
            return Err(Error::Refused(format!(
                "the request has about {bytes} bytes, and the servers break the connection for {limit}: raise their \
                 `jute.maxbuffer`"
            )));
        }
        let units = u32::try_from(bytes / 1024 + 1).unwrap_or(u32::MAX);
        Arc::clone(&self.in_flight).try_acquire_many_owned(units).map_err(|_| {
            Error::Refused(format!("more than {MAX_IN_FLIGHT} KiB of requests wait for their answers"))
        })
    }

    /// Updates the limit: was the transaction too large for the servers?
    fn update_limit<T>(&self, bytes: usize, connection: u64, answered: &Result<T, zk::MultiWriteError>) {
        let source = zk::Error::ConnectionLoss;
        if !matches!(answered, Err(zk::MultiWriteError::RequestFailed { source: failed }) if *failed == source)
        {
            self.checked.limit.answered(bytes);
        } else if let Some(limit) = self.checked.limit.broke(bytes, connection) {
            warn!(
                event = "REQUEST_TOO_LARGE",
                bytes = limit,
                "the servers break the connection for requests of this size; transactions are split from now on: raise \
                 `jute.maxbuffer` of the servers"
            );
        }
    }

    /// Sends a request now, whether or not the returned future is polled.
    fn request<T, E, F>(
        self: &Arc<Self>,
        bytes: usize,
        work: impl FnOnce(Arc<Self>, Arc<Link>) -> F,
    ) -> BoxFuture<'static, Result<T, E>>
    where
        T: Send + 'static,
        E: From<Error> + Send + 'static,
        F: Future<Output = Result<T, E>> + Send + 'static,
    {
        let (link, permit) = match self.link().and_then(|link| Ok((link, self.permit(bytes)?))) {
            Ok(both) => both,
            Err(error) => return Box::pin(ready(Err(error.into()))),
        };
        let work = work(Arc::clone(self), link);
        let mut work: Pin<Box<dyn Future<Output = Result<T, E>> + Send>> = Box::pin(async move {
            let result = work.await;
            // Only now, even if the caller has dropped its future.
            drop(permit);
            result
        });
        // The client sends at the call, in the order of the calls. So the call is here, not in the task.
        if let Poll::Ready(result) = work.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            return Box::pin(ready(result));
        }
        // It ends with its answer, at the latest with its connection.
        let answer = self.runtime.spawn(work);
        let limit = self.checked.settings.request_timeout;
        let answer = tokio::time::timeout(limit, answer);
        Box::pin(async move {
            match answer.await {
                Ok(Ok(result)) => result,
                Ok(Err(_)) => Err(Error::OutcomeUnknown("the request's task was ended".to_owned()).into()),
                Err(_) => Err(Error::OutcomeUnknown(format!("no answer within {limit:?}")).into()),
            }
        })
    }

    /// Follows nodes until the session is lost, or no reader wants it.
    fn follow(&self, follower: impl Follower) -> Result<(), Error> {
        let links = self.links.subscribe();
        if matches!(*links.borrow(), LinkState::Lost) {
            return Err(Error::SessionLost);
        }
        // It ends with its reader or its session.
        self.runtime.spawn(watching::run(links, follower));
        Ok(())
    }

    /// Waits until the watches that cover any of these nodes have sent all changes up to now.
    async fn flush(&self, changed: impl Iterator<Item = &Path>) {
        let flushed_watches = self.watches().flush(changed);
        // A watch that ended in the meantime has no reader.
        join_all(flushed_watches).await;
    }

    /// Requests that the supervisor leaves the session; the first request counts. The returned future ends
    /// when the session is lost.
    fn request_close(&self, close_mode: CloseMode) -> BoxFuture<'static, ()> {
        self.close_mode.send_if_modified(|requested| {
            let first = requested.is_none();
            requested.get_or_insert(close_mode);
            first
        });
        let mut state = self.state.subscribe();
        Box::pin(async move {
            // The supervisor bounds this. An error would mean that the supervisor has ended, and the session
            // with it.
            let _ = state.wait_for(|state| *state == SessionState::Lost).await;
        })
    }
}

impl ZooKeeperSession {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self { shared }
    }
}

impl Drop for ZooKeeperSession {
    fn drop(&mut self) {
        drop(self.shared.request_close(CloseMode::Close));
    }
}

impl Session for ZooKeeperSession {
    fn id(&self) -> SessionId {
        SessionId(self.shared.info.id().0)
    }

    fn timeout(&self) -> Duration {
        self.shared.timeout
    }

    fn greeted(&self) -> Option<Duration> {
        self.shared.link().ok()?.greeted
    }

    fn key(&self) -> BoxFuture<'_, Option<SessionKey>> {
        Box::pin(key::of(&self.shared.checked, &self.shared.info, self.shared.timeout))
    }

    fn state(&self) -> watch::Receiver<SessionState> {
        self.shared.state.subscribe()
    }

    fn request_limit(&self) -> Option<usize> {
        self.shared.checked.limit.get()
    }

    fn quotas(&self, path: &Path) -> BoxFuture<'static, Result<Vec<Quota>, Error>> {
        let path = path.clone();
        self.shared.request(path.as_str().len(), move |shared, link| async move {
            quota::of(&link.client, &shared.checked.chroot, &path).await
        })
    }

    fn commit(
        &self,
        transaction: Transaction,
    ) -> BoxFuture<'static, Result<Vec<OperationResult>, CommitError>> {
        if transaction.is_empty() {
            let nothing = self.shared.link().map(|_| Vec::new()).map_err(CommitError::from);
            return Box::pin(ready(nothing));
        }
        let bytes = transaction.iter().map(Operation::wire_size).sum();
        self.shared.request(bytes, |shared, link| async move {
            let mut writer = link.client.new_multi_writer();
            convert::fill(&mut writer, &transaction, shared.checked.acls())?;
            let answered = writer.commit().await;
            shared.update_limit(bytes, link.number, &answered);
            let answered = answered.map_err(|error| convert::commit_error(error, &transaction))?;
            let results = convert::results(answered, &transaction)?;
            let changed = transaction.iter().zip(&results).filter_map(|(operation, result)| match result {
                OperationResult::Created { path, .. } => Some(path),
                OperationResult::Set { .. } | OperationResult::Deleted => Some(operation.path()),
                OperationResult::Checked => None,
            });
            shared.flush(changed).await;
            Ok(results)
        })
    }

    fn ensure(&self, path: &Path, kind: NodeKind, data: &[u8]) -> BoxFuture<'static, Result<bool, Error>> {
        if path.is_root() {
            // The client does not send this request. The root always exists.
            return Box::pin(ready(self.shared.link().map(|_| false)));
        }
        let (path, data) = (path.clone(), data.to_owned());
        let bytes = path.as_str().len() + data.len();
        self.shared.request(bytes, move |shared, link| async move {
            let acls = shared.checked.acls();
            let options = convert::create_mode(kind).with_acls(acls);
            let mut attempts = 0;
            loop {
                match link.client.create(path.as_str(), &data, &options).await {
                    Ok(_) => break,
                    Err(zk::Error::NodeExists) => return Ok(false),
                    Err(zk::Error::NoNode) if attempts < ENSURE_ATTEMPTS => attempts += 1,
                    Err(error) => return Err(convert::error(error, &path)),
                }
                if let Some(parent) = path.parent() {
                    create_all(&link.client, parent, acls).await?;
                }
            }
            shared.flush(std::iter::once(&path)).await;
            Ok(true)
        })
    }

    fn get(&self, path: &Path) -> BoxFuture<'static, Result<Option<Node>, Error>> {
        let path = path.clone();
        self.shared.request(path.as_str().len(), move |_, link| async move {
            match link.client.get_data(path.as_str()).await {
                Ok((data, stat)) => Ok(Some(Node { path, data: data.into(), stat: convert::stat(&stat) })),
                Err(zk::Error::NoNode) => Ok(None),
                Err(error) => Err(convert::error(error, &path)),
            }
        })
    }

    fn nodes(&self, paths: &[Path]) -> BoxFuture<'static, Result<Vec<Option<Node>>, Error>> {
        let Some(first) = paths.first().cloned() else {
            return Box::pin(ready(self.shared.link().map(|_| Vec::new())));
        };
        let paths = paths.to_vec();
        self.shared.request(first.as_str().len(), move |_, link| async move {
            link.reads.nodes(&paths).await.map_err(|error| convert::error(error, &first))
        })
    }

    fn children(&self, path: &Path) -> BoxFuture<'static, Result<Option<Vec<String>>, Error>> {
        let path = path.clone();
        self.shared.request(path.as_str().len(), move |_, link| async move {
            match link.client.get_children(path.as_str()).await {
                Ok((children, _)) => Ok(Some(children)),
                Err(zk::Error::NoNode) => Ok(None),
                Err(error) => Err(convert::error(error, &path)),
            }
        })
    }

    fn subtree(&self, root: &Path) -> BoxFuture<'static, Result<Vec<Node>, Error>> {
        let root = root.clone();
        self.shared.request(root.as_str().len(), move |_, link| async move {
            let nodes = link.reads.subtree(&root).await.map_err(|error| convert::error(error, &root))?;
            Ok(nodes.into_values().collect())
        })
    }

    fn watch(&self, root: &Path, wants_data: DataFilter) -> BoxFuture<'static, Result<Watch, Error>> {
        let (sender, watch) = watch_channel();
        let (flushes, flushed) = mpsc::unbounded();
        if let Err(error) = self.shared.follow(TreeFollower::new(root.clone(), wants_data, sender, flushed)) {
            return Box::pin(ready(Err(error)));
        }
        self.shared.watches().add(root.clone(), flushes);
        Box::pin(ready(Ok(watch)))
    }

    fn watch_node(&self, node: &Path) -> BoxFuture<'static, Result<Watch, Error>> {
        let (sender, watch) = watch_channel();
        Box::pin(ready(self.shared.follow(NodeFollower::new(node.clone(), sender)).map(|()| watch)))
    }

    fn close(&self) -> BoxFuture<'static, ()> {
        self.shared.request_close(CloseMode::Close)
    }

    fn abandon(&self) -> BoxFuture<'static, ()> {
        self.shared.request_close(CloseMode::Abandon)
    }
}

/// Creates a node and its missing parents, persistent and empty: all requests at once.
pub(super) async fn create_all(client: &zk::Client, path: Path, acls: zk::Acls<'_>) -> Result<(), Error> {
    let nodes = from_the_top(&path);
    let options = zk::CreateMode::Persistent.with_acls(acls);
    let creating: Vec<_> = nodes.iter().map(|node| client.create(node.as_str(), &[], &options)).collect();
    for (node, created) in nodes.iter().zip(join_all(creating).await) {
        match created {
            Ok(_) | Err(zk::Error::NodeExists) => {}
            Err(error) => return Err(convert::error(error, node)),
        }
    }
    Ok(())
}
