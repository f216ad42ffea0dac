//! A latch that sidecars share with Java peers: Curator's `LeaderLatch` (protocol, section 3.2).
//!
//! A contender creates a sequential ephemeral node below the latch. The lowest number holds the latch; each
//! other contender waits for the one just before. Java's contenders wait without a limit, so a contender that
//! stands still stops the whole fleet (hazard H1). Therefore the work runs in a task of its own that cannot
//! be cancelled, the time from joining to leaving is bounded, and the task deletes its node until the node is
//! known to be deleted.
//!
//! A latch excludes other contenders only as long as the session lives. So the holder also guards each
//! transaction.

use std::collections::BTreeSet;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::FutureExt;
use futures::future::{BoxFuture, Either, select};
use tokio::sync::oneshot;
use uuid::Uuid;

use super::{CommitError, Error, Session, SessionState};
use crate::tree::{NodeChange, NodeKind, Operation, OperationResult, Path, SessionId, WatchEvent};

/// The text between the contender's UUID and its number. Curator sorts by the text after its last occurrence.
const MARK: &str = "latch-";

/// The pause before a request is tried again when its outcome is unknown although the session is connected.
/// This is rare: an unknown outcome usually comes with a broken connection, and then the task waits for the
/// session's state.
const PAUSE: Duration = Duration::from_millis(100);

/// Why the work under the latch was not done, or not to its end.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LatchError {
    /// Other contenders were first all the time.
    #[error("the latch {latch} was not free within {limit:?}; {}", describe(head.as_ref()))]
    TimedOut {
        /// The latch.
        latch: Path,
        /// The allowed time from joining to leaving.
        limit: Duration,
        /// The head when the time was over; `None`: there was none, or it could not be read.
        head: Option<Head>,
    },
    /// The contender held the latch, but the work took too long. It was stopped; its requests may take
    /// effect.
    #[error("the work under the latch {latch} took longer than was left of {limit:?}")]
    Overran {
        /// The latch.
        latch: Path,
        /// The allowed time from joining to leaving.
        limit: Duration,
    },
    /// The work panicked.
    #[error("the work under the latch {0} panicked")]
    Panicked(Path),
    /// The registry refused a request, or the session is lost.
    #[error("cannot take the latch {latch}: {error}")]
    Registry {
        /// The latch.
        latch: Path,
        /// Why.
        #[source]
        error: Error,
    },
}

/// The contender at the head of a latch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Head {
    /// The name of the contender's node.
    pub name: String,
    /// The session that owns the node.
    pub session: Option<SessionId>,
}

fn describe(head: Option<&Head>) -> String {
    match head {
        None => "no contender is at its head now".to_owned(),
        Some(Head { name, session: None }) => format!("{name} is at its head"),
        Some(Head { name, session: Some(session) }) => format!("{name} of session {session} is at its head"),
    }
}

/// The means that a contender needs besides the session.
pub trait Host: Send + Sync + 'static {
    /// Sleeps for so long.
    fn sleep(&self, pause: Duration) -> BoxFuture<'static, ()>;

    /// Starts a task that cannot be cancelled.
    fn spawn(&self, task: BoxFuture<'static, ()>);

    /// A contender's unique name.
    fn contender(&self) -> Uuid;
}

/// Takes the latch, does the work, and leaves.
///
/// The work begins when the contender holds the latch. It is stopped when `limit`, counted from joining, is
/// over. All of this happens in a task that starts now; dropping the future does not stop it. When the future
/// ends, the contender's node has been deleted, or the task tries to delete it for as long as the session
/// lives.
pub fn hold<T, F, W, H>(
    host: &H,
    session: Arc<dyn Session>,
    latch: Path,
    limit: Duration,
    work: F,
) -> BoxFuture<'static, Result<T, LatchError>>
where
    T: Send + 'static,
    F: FnOnce() -> W + Send + 'static,
    W: Future<Output = T> + Send + 'static,
    H: Host + Clone,
{
    let (sender, done) = oneshot::channel();
    let name = latch.clone();
    let prefix = format!("_c_{}-", host.contender());
    let nodes = Mutex::default();
    let contender = Contender { host: host.clone(), session, latch, prefix, limit, nodes };
    // The task must outlive its caller. The limit and the session bound it.
    host.spawn(Box::pin(async move {
        let result = contender.try_to_hold(work).await;
        let is_gone = contender.leave_once().await;
        // The receiver is closed when the caller dropped its future.
        let _ = sender.send(result);
        if !is_gone {
            contender.leave().await;
        }
    }));
    Box::pin(async move { done.await.unwrap_or(Err(LatchError::Panicked(name))) })
}

struct Contender<H> {
    host: H,
    session: Arc<dyn Session>,
    latch: Path,
    /// The beginning of our node's name, which no other contender's node has.
    prefix: String,
    limit: Duration,
    nodes: Mutex<OurNodes>,
}

/// Our knowledge about our nodes, for deleting them.
#[derive(Debug, Clone, Default)]
struct OurNodes {
    /// The nodes that an answer has named. A network can change the bytes of an answer, so one of them may not exist.
    known: BTreeSet<Path>,
    /// Whether there may be others: a creation is in flight, or its outcome is unknown.
    may_be_more: bool,
}

impl<H: Host> Contender<H> {
    async fn try_to_hold<T, F, W>(&self, work: F) -> Result<T, LatchError>
    where
        F: FnOnce() -> W,
        W: Future<Output = T>,
    {
        let mut is_head = false;
        let attempt = async {
            self.reach_the_head().await?;
            is_head = true;
            Ok(AssertUnwindSafe(work()).catch_unwind().await)
        };
        let attempted = match select(pin!(attempt), self.host.sleep(self.limit)).await {
            Either::Left((attempted, _)) => Some(attempted),
            Either::Right(_) => None,
        };
        match attempted {
            Some(Ok(Ok(result))) => Ok(result),
            Some(Ok(Err(_))) => Err(LatchError::Panicked(self.latch.clone())),
            Some(Err(error)) => Err(LatchError::Registry { latch: self.latch.clone(), error }),
            None if is_head => Err(LatchError::Overran { latch: self.latch.clone(), limit: self.limit }),
            None => {
                let head = self.head().await;
                Err(LatchError::TimedOut { latch: self.latch.clone(), limit: self.limit, head })
            }
        }
    }

    /// Joins, and waits until no contender is first.
    async fn reach_the_head(&self) -> Result<(), Error> {
        loop {
            self.join().await?;
            while let Some(before) = self.predecessor().await? {
                match before {
                    None => return Ok(()),
                    Some(before) => self.until_deleted(&before).await?,
                }
            }
            // Another client has deleted our node, or an answer was wrong; join again.
        }
    }

    /// Creates our node and the missing containers above it, or finds it.
    ///
    /// What is missing is read before: the registry deletes empty containers, so most elections find none, and a refused
    /// transaction costs more than a read.
    async fn join(&self) -> Result<(), Error> {
        let node = self.latch.child(&format!("{}{MARK}", self.prefix));
        let mut is_sure = true;
        loop {
            let missing = self.patiently(|| self.missing_containers()).await?;
            // The task may be stopped before the outcome is known.
            self.nodes().may_be_more = true;
            let containers = missing.into_iter().map(|path| Operation::create(path, NodeKind::Container, []));
            let step = Operation::create(node.clone(), NodeKind::EphemeralSequential, []);
            // Not with others: the read that looks for our node before we leave must not overtake it.
            let created = self.session.commit(containers.chain([step]).collect()).await;
            match created.map_err(|CommitError { error, .. }| error) {
                Ok(results) => match results.last() {
                    Some(OperationResult::Created { path, .. }) => {
                        let mut nodes = self.nodes();
                        nodes.known.insert(path.clone());
                        nodes.may_be_more = !is_sure;
                        return Ok(());
                    }
                    other => return Err(Error::OutcomeUnknown(format!("a creation resulted in {other:?}"))),
                },
                // Another client has created a container since, or the registry has deleted an empty one.
                Err(Error::NoNode(_) | Error::NodeExists(_)) => {}
                Err(error @ (Error::OutcomeUnknown(_) | Error::Suspended)) => {
                    is_sure = false;
                    self.connected(&error).await?;
                    if self.patiently(|| self.has_joined()).await? {
                        return Ok(());
                    }
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// The latch and those of its parents that are missing, topmost first. Does not look above the first that exists: the folders
    /// above a namespace may be closed to us.
    async fn missing_containers(&self) -> Result<Vec<Path>, Error> {
        let upwards = std::iter::successors(Some(self.latch.clone()), Path::parent);
        let paths: Vec<_> = upwards.take_while(|path| !path.is_root()).collect();
        let mut missing = Vec::new();
        for pair in paths.chunks(2) {
            let nodes = self.session.nodes(pair).await?;
            let found = nodes.iter().position(Option::is_some);
            missing.extend(pair.iter().take(found.unwrap_or(pair.len())).cloned());
            if found.is_some() {
                break;
            }
        }
        missing.reverse();
        Ok(missing)
    }

    /// The contenders' names, the head first.
    async fn contenders(&self) -> Result<Vec<String>, Error> {
        let mut names = self.session.children(&self.latch).await?.unwrap_or_default();
        names.retain(|name| name.contains(MARK));
        names.sort_by(|one, other| number(one).cmp(number(other)));
        Ok(names)
    }

    /// Whether our node exists and belongs to this session.
    async fn has_joined(&self) -> Result<bool, Error> {
        let names = self.contenders().await?;
        let Some(name) = names.into_iter().find(|name| name.starts_with(&self.prefix)) else {
            return Ok(false);
        };
        let node = self.session.get(&self.latch.child(&name)).await?;
        Ok(node.is_some_and(|node| node.stat.ephemeral_owner == Some(self.session.id())))
    }

    /// The contender just before our first node. `Some(None)`: there is none. `None`: our own node is missing.
    async fn predecessor(&self) -> Result<Option<Option<Path>>, Error> {
        let names = self.patiently(|| self.contenders()).await?;
        self.nodes().known.extend(self.ours(&names));
        let is_ours = |name: &String| name.starts_with(&self.prefix);
        let Some(place) = names.iter().position(is_ours) else { return Ok(None) };
        let before = place.checked_sub(1).and_then(|before| names.get(before));
        Ok(Some(before.and_then(|name| self.latch.try_child(name).ok())))
    }

    /// Waits until a node is deleted.
    async fn until_deleted(&self, node: &Path) -> Result<(), Error> {
        let mut watch = self.session.watch_node(node).await?;
        while let Some(event) = watch.recv().await {
            let is_gone = match event {
                WatchEvent::Snapshot(nodes) => nodes.is_empty(),
                WatchEvent::Changes(changes) => changes
                    .iter()
                    .any(|change| matches!(change, NodeChange::Removed { path } if path == node)),
            };
            if is_gone {
                return Ok(());
            }
        }
        // The watch ended: the session is lost, or the next read shows the node's state.
        self.connected(&Error::Suspended).await
    }

    async fn head(&self) -> Option<Head> {
        let name = self.contenders().await.ok()?.into_iter().next()?;
        let node = self.session.get(&self.latch.try_child(&name).ok()?).await.ok()?;
        Some(Head { name, session: node.and_then(|node| node.stat.ephemeral_owner) })
    }

    /// Deletes our nodes until they are known to be deleted, or the session is lost, which deletes them.
    async fn leave(&self) {
        loop {
            // The error is our own, because no request has failed. This ends when the session is lost.
            if self.connected(&Error::Suspended).await.is_err() || self.leave_once().await {
                return;
            }
            tracing::debug!(latch = %self.latch, "the deletion of the latch node is not confirmed; trying again");
        }
    }

    /// Whether our nodes are known to be deleted, after one attempt.
    async fn leave_once(&self) -> bool {
        let OurNodes { mut known, may_be_more } = self.nodes().clone();
        if may_be_more {
            let Ok(names) = self.contenders().await else { return self.is_lost() };
            known.extend(self.ours(&names));
        }
        for node in known {
            match self.session.commit_with_others(vec![Operation::delete(node)]).await {
                Ok(_) | Err(CommitError { error: Error::NoNode(_), .. }) => {}
                Err(_) => return self.is_lost(),
            }
        }
        true
    }

    /// Our nodes among these contenders.
    fn ours(&self, names: &[String]) -> impl Iterator<Item = Path> {
        let ours = names.iter().filter(|name| name.starts_with(&self.prefix));
        ours.filter_map(|name| self.latch.try_child(name).ok())
    }

    fn nodes(&self) -> MutexGuard<'_, OurNodes> {
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_lost(&self) -> bool {
        *self.session.state().borrow() == SessionState::Lost
    }

    /// Repeats a read until it is answered.
    async fn patiently<T, R>(&self, read: impl Fn() -> R) -> Result<T, Error>
    where
        R: Future<Output = Result<T, Error>>,
    {
        loop {
            match read().await {
                Err(error @ (Error::OutcomeUnknown(_) | Error::Suspended)) => self.connected(&error).await?,
                result => return result,
            }
        }
    }

    /// Waits until the session is connected, after an error.
    async fn connected(&self, error: &Error) -> Result<(), Error> {
        tracing::debug!(latch = %self.latch, %error, "a request at a latch is tried again");
        self.host.sleep(PAUSE).await;
        let mut state = self.session.state();
        match state.wait_for(|state| *state != SessionState::Suspended).await {
            Ok(state) if *state == SessionState::Connected => Ok(()),
            Ok(_) | Err(_) => Err(Error::SessionLost),
        }
    }
}

/// Creates a node and its missing parents, as containers. The registry may delete empty containers at any time.
pub(crate) async fn create_containers(session: &dyn Session, node: &Path) -> Result<(), Error> {
    let mut missing = vec![node.clone()];
    while let Some(node) = missing.last() {
        let step = Operation::create(node.clone(), NodeKind::Container, []);
        match session.commit(vec![step]).await.map_err(|CommitError { error, .. }| error) {
            Ok(_) | Err(Error::NodeExists(_)) => {
                missing.pop();
            }
            Err(error @ Error::NoNode(_)) => match node.parent() {
                Some(parent) => missing.push(parent),
                None => return Err(error),
            },
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// The text by which Curator sorts contenders.
fn number(name: &str) -> &str {
    name.rsplit_once(MARK).map_or(name, |(_, number)| number)
}
