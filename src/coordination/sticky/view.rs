//! The nodes of a sticky lock as values, fed by one watch of the lock's node.

use std::collections::BTreeMap;
use std::sync::Arc;

use uuid::Uuid;

use crate::extension::sticky::{OwnerNode, Record, StickyPaths, is_of, place};
use crate::tree::{Node, NodeChange, Path, SessionId, Stat, WatchEvent, Zxid};

/// The owner's node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Owner {
    /// Its content. `None`: it has another form.
    pub content: Option<OwnerNode>,
    /// The session that owns it.
    pub session: Option<SessionId>,
}

impl Owner {
    /// Whether it is of this candidate, in whatever session.
    pub fn is_of(&self, stand: Uuid) -> bool {
        self.content.as_ref().is_some_and(|content| content.stand == stand)
    }
}

/// A candidate in the queue.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Candidacy {
    /// Its place.
    pub number: u32,
    /// The name of its node.
    pub name: String,
    /// The name of its instance.
    pub instance: String,
    /// The session that owns its node.
    pub session: Option<SessionId>,
}

/// The version of a record: each write changes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Version {
    /// The transaction that created the node.
    pub created: Zxid,
    /// The node's version.
    pub number: i32,
}

/// The nodes of a lock.
#[derive(Debug, Clone, Default)]
pub struct View {
    nodes: BTreeMap<Path, (Arc<[u8]>, Stat)>,
    /// Whether the parents of all nodes exist.
    pub has_parents: bool,
    /// The record, or why it cannot be read. `None`: there is none.
    pub record: Option<Result<Record, String>>,
    /// The record's version. `None`: there is no record.
    pub version: Option<Version>,
    /// The owner's node.
    pub owner: Option<Owner>,
    /// The candidates, in the order of their numbers.
    pub queue: Vec<Candidacy>,
}

impl View {
    /// A view of these nodes.
    pub fn of(paths: &StickyPaths, nodes: Vec<Node>) -> Self {
        let mut view = Self::default();
        view.take(paths, WatchEvent::Snapshot(nodes));
        view
    }

    /// Takes an event of the watch.
    pub fn take(&mut self, paths: &StickyPaths, event: WatchEvent) {
        match event {
            WatchEvent::Snapshot(nodes) => {
                self.nodes = nodes.into_iter().map(|node| (node.path, (node.data, node.stat))).collect();
            }
            WatchEvent::Changes(changes) => {
                for change in changes {
                    match change {
                        NodeChange::Put { path, content: Some(content) } => {
                            self.nodes.insert(path, content);
                        }
                        // The watch asks for all data.
                        NodeChange::Put { content: None, .. } => {}
                        NodeChange::Removed { path } => {
                            self.nodes.remove(&path);
                        }
                    }
                }
            }
        }
        self.read(paths);
    }

    fn read(&mut self, paths: &StickyPaths) {
        self.has_parents = self.nodes.contains_key(paths.queue());
        let record = self.nodes.get(&paths.record());
        self.version = record.map(|(_, stat)| Version { created: stat.created, number: stat.version });
        self.record = record.map(|(data, stat)| Record::read(data, stat));
        self.owner = self
            .nodes
            .get(&paths.owner())
            .map(|(data, stat)| Owner { content: OwnerNode::read(data), session: stat.ephemeral_owner });
        let candidates = self.nodes.iter().filter(|(path, _)| path.parent().as_ref() == Some(paths.queue()));
        self.queue = candidates
            .filter_map(|(path, (data, stat))| {
                Some(Candidacy {
                    number: place(path.name())?,
                    name: path.name().to_owned(),
                    instance: String::from_utf8_lossy(data).into_owned(),
                    session: stat.ephemeral_owner,
                })
            })
            .collect();
        self.queue.sort_unstable();
    }

    /// The record, if there is one and it can be read.
    pub fn readable(&self) -> Option<&Record> {
        self.record.as_ref()?.as_ref().ok()
    }

    /// The nodes of a candidate in a session, in their order.
    pub fn nodes_of(&self, stand: Uuid, session: SessionId) -> Vec<&Candidacy> {
        let is_its = |one: &&Candidacy| is_of(&one.name, stand) && one.session == Some(session);
        self.queue.iter().filter(is_its).collect()
    }

    /// Whether a candidate owns the lock in this session.
    pub fn is_owned_by(&self, stand: Uuid, session: SessionId) -> bool {
        let owner =
            self.owner.as_ref().is_some_and(|owner| owner.is_of(stand) && owner.session == Some(session));
        owner && self.readable().is_some_and(|record| record.stand == stand && record.owner.is_some())
    }
}
