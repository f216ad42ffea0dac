//! The queue between a registry and the reader of a watch.
//!
//! The queue never makes the writer wait, never loses a change, and never holds more than one snapshot and
//! one change a node: when the reader is behind, a node's later change replaces its earlier one. So a commit
//! can put its changes here while it holds the tree's lock. And a task that awaits its own commit before it
//! reads its own watch cannot block itself.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use tokio::sync::Notify;
use tokio::sync::mpsc::error::TryRecvError;

use crate::tree::{Node, NodeChange, Path, WatchEvent};

/// A watch: [`WatchEvent`]s, the first one a snapshot. Dropping it removes the watch.
#[derive(Debug)]
pub struct Watch {
    shared: Arc<Shared>,
}

/// The writing end of a [`Watch`]. Dropping it ends the watch once what it holds has been read.
#[derive(Debug)]
pub struct WatchSender {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    queue: Mutex<Queue>,
    /// Notified when the reader has dropped its watch.
    closed: Notify,
}

#[derive(Debug, Default)]
struct Queue {
    /// The reader gets it before `changes`.
    snapshot: Option<Vec<Node>>,
    /// Oldest first; a change that a later one replaced leaves `None`.
    changes: Vec<Option<NodeChange>>,
    /// The index of a node's change in `changes`.
    places: BTreeMap<Path, usize>,
    reader: Option<Waker>,
    reader_is_gone: bool,
    sender_is_gone: bool,
}

/// Makes the two ends of a watch.
pub fn watch_channel() -> (WatchSender, Watch) {
    let shared = Arc::new(Shared::default());
    (WatchSender { shared: Arc::clone(&shared) }, Watch { shared })
}

impl Watch {
    /// The next event. `None`: the session is lost, or the registry has ended the watch. Cancellation loses
    /// nothing.
    pub async fn recv(&mut self) -> Option<WatchEvent> {
        poll_fn(|context| self.poll_recv(context)).await
    }

    /// As [`Self::recv`], for hand-written futures.
    pub fn poll_recv(&mut self, context: &mut Context<'_>) -> Poll<Option<WatchEvent>> {
        let mut queue = self.shared.lock();
        if let Some(event) = queue.take() {
            return Poll::Ready(Some(event));
        }
        if queue.sender_is_gone {
            return Poll::Ready(None);
        }
        queue.reader = Some(context.waker().clone());
        Poll::Pending
    }

    /// The next event, if there is one now.
    pub fn try_recv(&mut self) -> Result<WatchEvent, TryRecvError> {
        let mut queue = self.shared.lock();
        match queue.take() {
            Some(event) => Ok(event),
            None if queue.sender_is_gone => Err(TryRecvError::Disconnected),
            None => Err(TryRecvError::Empty),
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.shared.lock().reader_is_gone = true;
        self.shared.closed.notify_one();
    }
}

impl WatchSender {
    /// Sends a new snapshot. It replaces all events that the reader has not read yet.
    pub fn snapshot(&self, nodes: Vec<Node>) {
        let mut queue = self.shared.lock();
        queue.changes.clear();
        queue.places.clear();
        queue.snapshot = Some(nodes);
        queue.wake();
    }

    /// Sends changes, oldest first.
    pub fn changes(&self, changes: impl IntoIterator<Item = NodeChange>) {
        let mut queue = self.shared.lock();
        for change in changes {
            queue.push(change);
        }
        if !queue.changes.is_empty() {
            queue.wake();
        }
    }

    /// Whether the reader dropped its watch.
    pub fn is_closed(&self) -> bool {
        self.shared.lock().reader_is_gone
    }

    /// Ends when the reader has dropped its watch. For one waiter at a time.
    pub async fn closed(&self) {
        while !self.is_closed() {
            self.shared.closed.notified().await;
        }
    }
}

impl Drop for WatchSender {
    fn drop(&mut self) {
        let mut queue = self.shared.lock();
        queue.sender_is_gone = true;
        queue.wake();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Queue {
    /// The number of replaced changes, beyond one for each node, at which they are removed.
    const SLACK: usize = 64;

    fn push(&mut self, change: NodeChange) {
        if let Some(earlier) = self.places.insert(change.path().clone(), self.changes.len())
            && let Some(place) = self.changes.get_mut(earlier)
        {
            *place = None;
        }
        self.changes.push(Some(change));
        if self.changes.len() > 2 * self.places.len() + Self::SLACK {
            self.sweep();
        }
    }

    fn sweep(&mut self) {
        self.changes.retain(Option::is_some);
        for (index, change) in self.changes.iter().enumerate() {
            if let Some(place) = change.as_ref().and_then(|change| self.places.get_mut(change.path())) {
                *place = index;
            }
        }
    }

    fn take(&mut self) -> Option<WatchEvent> {
        if let Some(nodes) = self.snapshot.take() {
            return Some(WatchEvent::Snapshot(nodes));
        }
        if self.changes.is_empty() {
            return None;
        }
        self.places.clear();
        Some(WatchEvent::Changes(std::mem::take(&mut self.changes).into_iter().flatten().collect()))
    }

    fn wake(&mut self) {
        if let Some(reader) = self.reader.take() {
            reader.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn removed(path: &str) -> NodeChange {
        NodeChange::Removed { path: Path::parse(path).unwrap() }
    }

    fn put(path: &str) -> NodeChange {
        NodeChange::Put { path: Path::parse(path).unwrap(), content: None }
    }

    #[test]
    fn a_slow_reader_finds_one_change_a_node_in_the_order_of_the_last() {
        let (sender, mut watch) = watch_channel();
        for _ in 0..10_000 {
            sender.changes([put("/a"), put("/b")]);
            sender.changes([removed("/a")]);
        }
        assert!(sender.shared.lock().changes.len() <= 2 * 2 + Queue::SLACK);
        sender.changes([put("/c")]);
        let expected = vec![put("/b"), removed("/a"), put("/c")];
        assert_eq!(watch.try_recv(), Ok(WatchEvent::Changes(expected)));
        assert_eq!(watch.try_recv(), Err(TryRecvError::Empty));
    }

    #[test]
    fn a_snapshot_replaces_what_was_not_read_and_comes_before_later_changes() {
        let (sender, mut watch) = watch_channel();
        sender.changes([put("/a")]);
        sender.snapshot(vec![]);
        sender.changes([put("/b")]);
        drop(sender);
        assert_eq!(watch.try_recv(), Ok(WatchEvent::Snapshot(vec![])));
        assert_eq!(watch.try_recv(), Ok(WatchEvent::Changes(vec![put("/b")])));
        assert_eq!(watch.try_recv(), Err(TryRecvError::Disconnected));
    }

    #[tokio::test]
    async fn both_ends_notice_that_the_other_was_dropped() {
        let (sender, watch) = watch_channel();
        drop(watch);
        sender.closed().await;
        let (sender, mut watch) = watch_channel();
        let reader = async { watch.recv().await };
        let writer = async { drop(sender) };
        assert_eq!(futures::future::join(reader, writer).await.0, None);
    }
}
