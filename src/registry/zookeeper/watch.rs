//! The task behind a watch: it lives as long as the session, from connection to connection.
//!
//! On each connection it adds the watch, reads everything and tells a snapshot; then it tells changes. ZooKeeper's
//! events carry no data, so it takes all that have come, merges them, and reads what is wanted with one request.
//!
//! A server sends a change's event before the answer to the request that made it, and the client hands both on in
//! that order. So when a commit is answered, its events wait here already: [`Flush`] has them told at once.
//!
//! For the same reason, the events of all changes before a read have come when its answer has. So the task reads the nodes
//! again that have changed during a read, until none has: then it tells a state that the server had. A reader may
//! trust the version of one node to prove that it knows the others. Changes that need no read are told as they come: a
//! reader may see the first part of a transaction before the rest.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use futures::FutureExt;
use tokio::sync::{mpsc, oneshot, watch};
use zookeeper_client as zk;

use super::LinkState;
use super::connection::Link;
use super::read;
use crate::registry::{DataFilter, WatchSender};
use crate::tree::{Node, NodeChange, Path};

/// How often at most is read again what changed during the last read. Each read takes about a millisecond, and what
/// changes all the time must be told at some time: then it may be of several moments.
const READS_MAX: usize = 20;

/// Asks a watch to tell all that happened until now; answered when it did.
pub(super) type Flush = oneshot::Sender<()>;

pub(super) struct WatchTask {
    links: watch::Receiver<LinkState>,
    follower: Follower,
}

struct Follower {
    root: Path,
    wants_data: DataFilter,
    sender: WatchSender,
    flushes: mpsc::UnboundedReceiver<Flush>,
    /// To be answered after the next telling. They outlive a connection: the next snapshot answers them.
    held: Vec<Flush>,
}

/// Why a follower stopped.
enum Stopped {
    ReaderGone,
    ConnectionBroken,
}

impl From<zk::Error> for Stopped {
    fn from(error: zk::Error) -> Self {
        tracing::debug!(%error, "a watch is interrupted");
        Self::ConnectionBroken
    }
}

impl WatchTask {
    pub(super) fn new(
        root: Path,
        wants_data: DataFilter,
        sender: WatchSender,
        flushes: mpsc::UnboundedReceiver<Flush>,
        links: watch::Receiver<LinkState>,
    ) -> Self {
        Self { links, follower: Follower { root, wants_data, sender, flushes, held: Vec::new() } }
    }

    /// Ends when the reader is gone or the session is lost.
    pub(super) async fn run(mut self) {
        loop {
            let link = match &*self.links.borrow_and_update() {
                LinkState::Up(link) => Some(Arc::clone(link)),
                LinkState::Down => None,
                LinkState::Lost => return,
            };
            // The connection's end comes first: a broken one has nothing to say.
            tokio::select! {
                biased;
                changed = self.links.changed() => if changed.is_err() { return },
                () = self.follower.serve(link) => return,
            }
        }
    }
}

impl Follower {
    /// Follows the connection if there is one. Ends when the reader is gone; otherwise it has to be dropped.
    async fn serve(&mut self, link: Option<Arc<Link>>) {
        if let Some(link) = link {
            match self.follow(&link).await {
                Stopped::ReaderGone => return,
                Stopped::ConnectionBroken => link.give_up(),
            }
        }
        self.sender.closed().await;
    }

    async fn follow(&mut self, link: &Link) -> Stopped {
        // Not to be had: the connection is being cut.
        let Ok(_watching) = Arc::clone(&link.watching).try_read_owned() else {
            return Stopped::ConnectionBroken;
        };
        match self.follow_until_stopped(&link.client).await {
            Ok(never) => match never {},
            Err(stopped) => stopped,
        }
    }

    async fn follow_until_stopped(
        &mut self,
        client: &zk::Client,
    ) -> Result<std::convert::Infallible, Stopped> {
        let mut watcher = client.watch(self.root.as_str(), zk::AddWatchMode::PersistentRecursive).await?;
        let mut nodes = read::subtree(client, &self.root).await?;
        let mut batch = Batch::default();
        batch.drain(&mut watcher)?;
        for (path, node) in batch.read(client, &mut watcher, &|_| true).await? {
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
            // A reader that is gone wants nothing more; flushes before events, since they take the events along.
            tokio::select! {
                biased;
                () = self.sender.closed() => return Err(Stopped::ReaderGone),
                Some(flush) = self.flushes.recv() => self.held.push(flush),
                event = watcher.changed() => batch.add(event)?,
            }
            while let Ok(flush) = self.flushes.try_recv() {
                self.held.push(flush);
            }
            batch.drain(&mut watcher)?;
            let contents = batch.read(client, &mut watcher, &*self.wants_data).await?;
            self.tell(batch.take(), contents);
            self.answer_flushes();
        }
    }

    fn tell(&self, events: Vec<(Path, Event)>, mut contents: Contents) {
        self.sender.changes(events.into_iter().map(|(path, event)| match (event, contents.remove(&path)) {
            (Event::Put, None) => NodeChange::Put { path, content: None },
            (Event::Put, Some(Some(node))) => NodeChange::Put { path, content: Some((node.data, node.stat)) },
            // It was removed meanwhile.
            (Event::Put, Some(None)) | (Event::Removed, _) => NodeChange::Removed { path },
        }));
    }

    fn answer_flushes(&mut self) {
        for flush in self.held.drain(..) {
            // Nobody waits when its request ran out of time.
            let _ = flush.send(());
        }
    }
}

/// The nodes as they were read; `None`: there is no such node, or we may not read it.
type Contents = BTreeMap<Path, Option<Node>>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Event {
    Put,
    Removed,
}

/// Events that were taken from the client: one a node, its last.
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

    /// Reads the nodes that were created or set and are wanted, until none has changed during the last read, and takes the
    /// events that have come meanwhile.
    async fn read(
        &mut self,
        client: &zk::Client,
        watcher: &mut zk::PersistentWatcher,
        wants: &(dyn Fn(&Path) -> bool + Send + Sync),
    ) -> Result<Contents, Stopped> {
        let mut contents = Contents::new();
        for _ in 0..READS_MAX {
            let unread = std::mem::take(&mut self.unread);
            let is_wanted = |path: &Path| {
                let put = self.last.get(path).is_some_and(|(_, event)| *event == Event::Put);
                put && wants(path)
            };
            let wanted: Vec<_> = unread.into_iter().filter(is_wanted).collect();
            if wanted.is_empty() {
                break;
            }
            let nodes = read::nodes(client, &wanted).await?;
            contents.extend(wanted.into_iter().zip(nodes));
            self.drain(watcher)?;
        }
        Ok(contents)
    }

    /// Fails at news of the connection: whichever it is, this watcher is not to be asked again.
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

    /// The events in the order in which they came, and leaves none.
    fn take(&mut self) -> Vec<(Path, Event)> {
        self.count = 0;
        self.unread.clear();
        let mut events: Vec<_> = std::mem::take(&mut self.last).into_iter().collect();
        events.sort_unstable_by_key(|(_, (place, _))| *place);
        events.into_iter().map(|(path, (_, event))| (path, event)).collect()
    }
}
