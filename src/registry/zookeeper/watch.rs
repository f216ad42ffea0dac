//! The task behind a watch. It lives as long as the session, from connection to connection.
//!
//! On each connection the task adds the watch, reads everything and sends a snapshot; then it sends changes.
//! ZooKeeper's events carry no data. So the task takes all events that have come, merges them, and reads the
//! wanted data with one request, together with other watches that read at the same time.
//!
//! A server sends a change's event before the answer to the request that made the change, and the client
//! passes both on in that order. So when a commit is answered, its events already wait here. [`Flush`] makes
//! the task send them at once.
//!
//! For the same reason, when a read is answered, the events of all earlier changes have come. So the task
//! reads the nodes again that have changed during a read, until none has: then it sends a state that the
//! server had. A reader may trust the version of one node to prove that it knows the others. Changes that
//! need no read are sent as they come: a reader may see the first part of a transaction before the rest.
//! Therefore a transaction that takes an item over deletes the item's flag last.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use futures::channel::mpsc;
use futures::{FutureExt, StreamExt};
use tokio::sync::{oneshot, watch};
use zookeeper_client as zk;

use super::connection::{Link, LinkState};
use super::read::Reads;
use crate::registry::{DataFilter, WatchSender};
use crate::tree::{Node, NodeChange, Path};

/// How often the task reads at most before it sends, when nodes change during each read. A read takes about a
/// millisecond. Nodes that change all the time must be sent at some time; then the state may be of several
/// moments.
const READS_MAX: usize = 20;

/// Asks a watch to send all changes up to now. Answered when the watch has sent them.
pub(super) type Flush = oneshot::Sender<()>;

/// What a watch follows on one connection after another.
pub(super) trait Follower: Send + 'static {
    /// Follows the connection until it breaks, or nobody wants the watch. Begins with a snapshot.
    fn follow(&mut self, link: &Link) -> impl Future<Output = Stopped> + Send;

    /// Ends when the reader has dropped the watch.
    fn closed(&self) -> impl Future<Output = ()> + Send;
}

/// Why a follower stopped.
pub(super) enum Stopped {
    /// No more events are wanted: the reader has gone, or the watched node.
    Finished,
    ConnectionBroken,
}

impl From<zk::Error> for Stopped {
    fn from(error: zk::Error) -> Self {
        tracing::debug!(%error, "a watch is interrupted");
        Self::ConnectionBroken
    }
}

/// Follows one connection after another. Ends when the follower has finished, or the session is lost.
pub(super) async fn run(mut links: watch::Receiver<LinkState>, mut follower: impl Follower) {
    loop {
        let link = match &*links.borrow_and_update() {
            LinkState::Up(link) => Some(Arc::clone(link)),
            LinkState::Down => None,
            LinkState::Lost => return,
        };
        // The connection's end comes first: a broken connection brings no more events.
        tokio::select! {
            biased;
            changed = links.changed() => if changed.is_err() { return },
            () = serve(&mut follower, link) => return,
        }
    }
}

/// Follows the connection if there is one. Ends when the follower has finished; otherwise the caller drops this.
async fn serve(follower: &mut impl Follower, link: Option<Arc<Link>>) {
    if let Some(link) = link {
        // Not available: the connection is being cut.
        let watching = Arc::clone(&link.watching).try_read_owned();
        let stopped = match &watching {
            Ok(_) => follower.follow(&link).await,
            Err(_) => Stopped::ConnectionBroken,
        };
        drop(watching);
        match stopped {
            Stopped::Finished => return,
            Stopped::ConnectionBroken => link.give_up(),
        }
    }
    follower.closed().await;
}

/// Follows a node and all below it.
pub(super) struct TreeFollower {
    root: Path,
    wants_data: DataFilter,
    sender: WatchSender,
    flushes: mpsc::UnboundedReceiver<Flush>,
    /// To be answered after the next changes were sent. They outlive a connection: the next snapshot answers
    /// them.
    held: Vec<Flush>,
}

impl Follower for TreeFollower {
    async fn follow(&mut self, link: &Link) -> Stopped {
        match self.follow_until_stopped(link).await {
            Ok(never) => match never {},
            Err(stopped) => stopped,
        }
    }

    async fn closed(&self) {
        self.sender.closed().await;
    }
}

impl TreeFollower {
    pub(super) fn new(
        root: Path,
        wants_data: DataFilter,
        sender: WatchSender,
        flushes: mpsc::UnboundedReceiver<Flush>,
    ) -> Self {
        Self { root, wants_data, sender, flushes, held: Vec::new() }
    }

    async fn follow_until_stopped(&mut self, link: &Link) -> Result<std::convert::Infallible, Stopped> {
        let reads = &link.reads;
        let mut watcher =
            link.client.watch(self.root.as_str(), zk::AddWatchMode::PersistentRecursive).await?;
        let mut nodes = reads.subtree(&self.root).await?;
        let mut batch = Batch::default();
        batch.drain(&mut watcher)?;
        for (path, node) in batch.read(reads, &mut watcher, &|_| true).await? {
            match node {
                Some(node) => nodes.insert(path, node),
                None => nodes.remove(&path),
            };
        }
        for (path, event) in batch.take() {
            if event == Event::Removed {
                nodes.remove(&path);
            }
        }
        self.sender.snapshot(nodes.into_values().collect());
        self.answer_flushes();
        loop {
            // No reader, no more work. Flushes come before events, because they take the events along.
            tokio::select! {
                biased;
                () = self.sender.closed() => return Err(Stopped::Finished),
                Some(flush) = self.flushes.next() => self.held.push(flush),
                event = watcher.changed() => batch.add(event)?,
            }
            while let Ok(flush) = self.flushes.try_recv() {
                self.held.push(flush);
            }
            batch.drain(&mut watcher)?;
            let contents = batch.read(reads, &mut watcher, &*self.wants_data).await?;
            self.send(batch.take(), contents);
            self.answer_flushes();
        }
    }

    fn send(&self, events: Vec<(Path, Event)>, mut contents: Contents) {
        self.sender.changes(events.into_iter().map(|(path, event)| match (event, contents.remove(&path)) {
            (Event::Put, None) => NodeChange::Put { path, content: None },
            (Event::Put, Some(Some(node))) => NodeChange::Put { path, content: Some((node.data, node.stat)) },
            // The node was removed in the meantime.
            (Event::Put, Some(None)) | (Event::Removed, _) => NodeChange::Removed { path },
        }));
    }

    fn answer_flushes(&mut self) {
        for flush in self.held.drain(..) {
            // The receiver is closed when the request ran out of time.
            let _ = flush.send(());
        }
    }
}

/// The nodes as they were read. `None`: there is no such node, or it may not be read.
type Contents = BTreeMap<Path, Option<Node>>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Event {
    Put,
    Removed,
}

/// Events from the client: the last one of each node.
#[derive(Default)]
struct Batch {
    last: BTreeMap<Path, (usize, Event)>,
    count: usize,
    /// The nodes that have changed since they were read.
    unread: BTreeSet<Path>,
}

impl Batch {
    /// Takes all events that have come.
    fn drain(&mut self, watcher: &mut zk::PersistentWatcher) -> Result<(), Stopped> {
        while let Some(event) = watcher.changed().now_or_never() {
            self.add(event)?;
        }
        Ok(())
    }

    /// Reads the created and set nodes whose data is wanted, until none has changed during the last read.
    /// Takes the events that have come in the meantime. The events of the last permitted read stay with the
    /// watcher: so each event that is taken here is of a node that was read after it.
    async fn read(
        &mut self,
        reads: &Reads,
        watcher: &mut zk::PersistentWatcher,
        wants: &(dyn Fn(&Path) -> bool + Send + Sync),
    ) -> Result<Contents, Stopped> {
        let mut contents = Contents::new();
        for read in 1..=READS_MAX {
            let unread = std::mem::take(&mut self.unread);
            let is_wanted = |path: &Path| {
                let put = self.last.get(path).is_some_and(|(_, event)| *event == Event::Put);
                put && wants(path)
            };
            let wanted: Vec<_> = unread.into_iter().filter(is_wanted).collect();
            if wanted.is_empty() {
                break;
            }
            let nodes = reads.nodes(&wanted).await?;
            contents.extend(wanted.into_iter().zip(nodes));
            if read < READS_MAX {
                self.drain(watcher)?;
            }
        }
        Ok(contents)
    }

    /// Fails at a change of the connection's state. After any such change this watcher must not be read
    /// again.
    fn add(&mut self, event: zk::WatchedEvent) -> Result<(), Stopped> {
        let kind = match event.event_type {
            zk::EventType::Session => return Err(Stopped::ConnectionBroken),
            zk::EventType::NodeCreated | zk::EventType::NodeDataChanged => Event::Put,
            zk::EventType::NodeDeleted => Event::Removed,
            zk::EventType::NodeChildrenChanged => return Ok(()),
        };
        match Path::parse(&event.path) {
            Ok(path) => {
                self.unread.insert(path.clone());
                self.last.insert(path, (self.count, kind));
                self.count += 1;
            }
            Err(error) => tracing::debug!(%error, "an event of a node that we cannot name"),
        }
        Ok(())
    }

    /// The events in the order in which they came. Leaves none.
    fn take(&mut self) -> Vec<(Path, Event)> {
        self.count = 0;
        self.unread.clear();
        let mut events: Vec<_> = std::mem::take(&mut self.last).into_iter().collect();
        events.sort_unstable_by_key(|(_, (place, _))| *place);
        events.into_iter().map(|(path, (_, event))| (path, event)).collect()
    }
}
