//! The tree of the embedded registry, and the effect of transactions on it. This file knows neither the
//! states of sessions nor watches nor disks.
//!
//! The rules and the order of checks are those of ZooKeeper's server. A creation fails for the missing
//! parent, then for the existing node, then for the ephemeral parent. A deletion fails for the missing node,
//! then for its version, then for its children.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::registry::{CommitError, Error};
use crate::tree::{Node, NodeKind, Operation, OperationResult, Path, SessionId, Stat, Zxid};

/// The values that all steps of a transaction share.
#[derive(Debug, Clone, Copy)]
pub(super) struct Stamp {
    pub(super) zxid: Zxid,
    pub(super) session: SessionId,
    pub(super) now_ms: i64,
}

/// A change of a node.
#[derive(Debug, Clone)]
pub(super) struct Change {
    pub(super) path: Path,
    /// The node as it is now; `None`: it was deleted.
    pub(super) content: Option<(Arc<[u8]>, Stat)>,
    /// The lifetime of the node, also of a deleted one.
    pub(super) lifetime: Lifetime,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lifetime {
    Persistent,
    Container,
    Ephemeral,
}

#[derive(Debug)]
pub(super) struct Tree {
    nodes: BTreeMap<Path, Entry>,
    ephemerals: BTreeMap<SessionId, BTreeSet<Path>>,
}

#[derive(Debug)]
struct Entry {
    data: Arc<[u8]>,
    stat: Stat,
    lifetime: Lifetime,
    children: BTreeSet<String>,
    /// How many children were ever created: the number of the next sequential child.
    children_created: i32,
}

/// The reverse of one step.
enum Undo {
    Create { path: Path },
    Set { path: Path, data: Arc<[u8]>, stat: Stat },
    Delete { path: Path, entry: Entry },
}

impl Tree {
    /// A tree that holds the root only.
    pub(super) fn new() -> Self {
        let stat =
            Stat { created: Zxid(0), modified: Zxid(0), version: 0, ephemeral_owner: None, modified_ms: 0 };
        let root = Entry::new(Arc::from([]), stat, Lifetime::Persistent);
        Self { nodes: BTreeMap::from([(Path::root(), root)]), ephemerals: BTreeMap::new() }
    }

    /// Puts back a stored node. False: its parent is missing.
    pub(super) fn restore(&mut self, node: Node, lifetime: Lifetime) -> bool {
        if let Some(parent) = node.path.parent() {
            let Some(parent) = self.nodes.get_mut(&parent) else { return false };
            parent.children.insert(node.path.name().to_owned());
            parent.children_created = parent.children_created.wrapping_add(1);
            self.nodes.insert(node.path, Entry::new(node.data, node.stat, lifetime));
        } else if let Some(root) = self.nodes.get_mut(&node.path) {
            root.data = node.data;
            root.stat = node.stat;
        }
        true
    }

    /// Removes all containers that have no children.
    pub(super) fn remove_empty_containers(&mut self) -> Vec<Change> {
        let is_empty = |entry: &Entry| entry.lifetime == Lifetime::Container && entry.children.is_empty();
        let empty = self.nodes.iter().filter(|(_, entry)| is_empty(entry)).map(|(path, _)| path.clone());
        let empty: Vec<_> = empty.collect();
        let removed = empty.into_iter().map(|path| {
            self.remove(&path);
            Change { path, content: None, lifetime: Lifetime::Container }
        });
        removed.collect()
    }

    pub(super) fn contains(&self, path: &Path) -> bool {
        self.nodes.contains_key(path)
    }

    pub(super) fn get(&self, path: &Path) -> Option<Node> {
        let (path, entry) = self.nodes.get_key_value(path)?;
        Some(Node { path: path.clone(), data: Arc::clone(&entry.data), stat: entry.stat })
    }

    pub(super) fn children(&self, path: &Path) -> Option<Vec<String>> {
        Some(self.nodes.get(path)?.children.iter().cloned().collect())
    }

    /// The node and all below it, parents before children.
    pub(super) fn subtree(&self, root: &Path) -> Vec<Node> {
        let mut found = Vec::new();
        let mut open = vec![root.clone()];
        while let Some(path) = open.pop() {
            if let Some((path, entry)) = self.nodes.get_key_value(&path) {
                open.extend(entry.children.iter().rev().map(|name| path.child(name)));
                found.push(Node { path: path.clone(), data: Arc::clone(&entry.data), stat: entry.stat });
            }
        }
        found
    }

    /// Carries out all steps or none.
    pub(super) fn apply(
        &mut self,
        operations: &[Operation],
        stamp: Stamp,
        changes: &mut Vec<Change>,
    ) -> Result<Vec<OperationResult>, CommitError> {
        let before = changes.len();
        let mut undo = Vec::with_capacity(operations.len());
        let mut results = Vec::with_capacity(operations.len());
        for (index, operation) in operations.iter().enumerate() {
            match self.step(operation, stamp, &mut undo, changes) {
                Ok(result) => results.push(result),
                Err(error) => {
                    changes.truncate(before);
                    while let Some(step) = undo.pop() {
                        self.take_back(step);
                    }
                    return Err(CommitError { index: Some(index), error });
                }
            }
        }
        Ok(results)
    }

    /// Removes all nodes that belong to a session.
    pub(super) fn remove_ephemerals(&mut self, session: SessionId, changes: &mut Vec<Change>) {
        for path in self.ephemerals.remove(&session).unwrap_or_default() {
            self.remove(&path);
            changes.push(Change { path, content: None, lifetime: Lifetime::Ephemeral });
        }
    }

    /// Removes the containers that lost their last child through the given changes, then their parents
    /// likewise.
    ///
    /// This is a step of its own after the transaction, because a ZooKeeper server, too, looks for empty
    /// containers later: a transaction may delete a container's last child and create another one.
    pub(super) fn remove_orphaned_containers(&mut self, changes: &mut Vec<Change>) {
        let mut next = 0;
        while let Some(change) = changes.get(next) {
            next += 1;
            let parent = if change.content.is_none() { change.path.parent() } else { None };
            if let Some(path) = parent
                && self.nodes.get(&path).is_some_and(Entry::is_empty_container)
            {
                self.remove(&path);
                changes.push(Change { path, content: None, lifetime: Lifetime::Container });
            }
        }
    }

    fn step(
        &mut self,
        operation: &Operation,
        stamp: Stamp,
        undo: &mut Vec<Undo>,
        changes: &mut Vec<Change>,
    ) -> Result<OperationResult, Error> {
        match operation {
            Operation::Create { path, data, kind } => self.create(path, data, *kind, stamp, undo, changes),
            Operation::Set { path, data, version } => {
                let entry = self.checked(path, *version)?;
                undo.push(Undo::Set {
                    path: path.clone(),
                    data: std::mem::replace(&mut entry.data, Arc::clone(data)),
                    stat: entry.stat,
                });
                entry.stat.version = entry.stat.version.wrapping_add(1);
                entry.stat.modified = stamp.zxid;
                entry.stat.modified_ms = stamp.now_ms;
                let (stat, lifetime) = (entry.stat, entry.lifetime);
                changes.push(Change {
                    path: path.clone(),
                    content: Some((Arc::clone(data), stat)),
                    lifetime,
                });
                Ok(OperationResult::Set { stat })
            }
            Operation::Delete { path, version } => {
                if path.is_root() {
                    return Err(Error::Refused("the root cannot be deleted".to_owned()));
                }
                if !self.checked(path, *version)?.children.is_empty() {
                    return Err(Error::NotEmpty(path.clone()));
                }
                if let Some(entry) = self.remove(path) {
                    let lifetime = entry.lifetime;
                    undo.push(Undo::Delete { path: path.clone(), entry });
                    changes.push(Change { path: path.clone(), content: None, lifetime });
                }
                Ok(OperationResult::Deleted)
            }
            Operation::Check { path, version } => {
                self.checked(path, *version)?;
                Ok(OperationResult::Checked)
            }
        }
    }

    fn checked(&mut self, path: &Path, version: Option<i32>) -> Result<&mut Entry, Error> {
        match self.nodes.get_mut(path) {
            None => Err(Error::NoNode(path.clone())),
            Some(entry) if version.is_some_and(|version| version != entry.stat.version) => {
                Err(Error::BadVersion(path.clone()))
            }
            Some(entry) => Ok(entry),
        }
    }

    fn create(
        &mut self,
        wanted: &Path,
        data: &Arc<[u8]>,
        kind: NodeKind,
        stamp: Stamp,
        undo: &mut Vec<Undo>,
        changes: &mut Vec<Change>,
    ) -> Result<OperationResult, Error> {
        let Some(parent_path) = wanted.parent() else {
            return Err(Error::NodeExists(wanted.clone()));
        };
        let Some(parent) = self.nodes.get(&parent_path) else {
            return Err(Error::NoNode(wanted.clone()));
        };
        let path = match kind {
            NodeKind::Persistent | NodeKind::Container | NodeKind::Ephemeral => wanted.clone(),
            NodeKind::EphemeralSequential => {
                parent_path.child(&format!("{}{:010}", wanted.name(), parent.children_created))
            }
        };
        if parent.children.contains(path.name()) {
            return Err(Error::NodeExists(path));
        }
        if parent.lifetime == Lifetime::Ephemeral {
            return Err(Error::ParentIsEphemeral(path));
        }
        let (lifetime, ephemeral_owner) = match kind {
            NodeKind::Persistent => (Lifetime::Persistent, None),
            NodeKind::Container => (Lifetime::Container, None),
            NodeKind::Ephemeral | NodeKind::EphemeralSequential => (Lifetime::Ephemeral, Some(stamp.session)),
        };
        let stat = Stat {
            created: stamp.zxid,
            modified: stamp.zxid,
            version: 0,
            ephemeral_owner,
            modified_ms: stamp.now_ms,
        };
        if let Some(parent) = self.nodes.get_mut(&parent_path) {
            parent.children_created = parent.children_created.wrapping_add(1);
        }
        self.insert(&parent_path, path.clone(), Entry::new(Arc::clone(data), stat, lifetime));
        undo.push(Undo::Create { path: path.clone() });
        changes.push(Change { path: path.clone(), content: Some((Arc::clone(data), stat)), lifetime });
        Ok(OperationResult::Created { path, stat })
    }

    fn insert(&mut self, parent: &Path, path: Path, entry: Entry) {
        if let Some(parent) = self.nodes.get_mut(parent) {
            parent.children.insert(path.name().to_owned());
        }
        if let Some(owner) = entry.stat.ephemeral_owner {
            self.ephemerals.entry(owner).or_default().insert(path.clone());
        }
        self.nodes.insert(path, entry);
    }

    fn remove(&mut self, path: &Path) -> Option<Entry> {
        let entry = self.nodes.remove(path)?;
        if let Some(parent) = path.parent().and_then(|parent| self.nodes.get_mut(&parent)) {
            parent.children.remove(path.name());
        }
        if let Some(owner) = entry.stat.ephemeral_owner
            && let Some(paths) = self.ephemerals.get_mut(&owner)
        {
            paths.remove(path);
            if paths.is_empty() {
                self.ephemerals.remove(&owner);
            }
        }
        Some(entry)
    }

    fn take_back(&mut self, step: Undo) {
        match step {
            Undo::Create { path } => {
                self.remove(&path);
                if let Some(parent) = path.parent().and_then(|parent| self.nodes.get_mut(&parent)) {
                    parent.children_created = parent.children_created.wrapping_sub(1);
                }
            }
            Undo::Set { path, data, stat } => {
                if let Some(entry) = self.nodes.get_mut(&path) {
                    entry.data = data;
                    entry.stat = stat;
                }
            }
            Undo::Delete { path, entry } => {
                if let Some(parent) = path.parent() {
                    self.insert(&parent, path, entry);
                }
            }
        }
    }
}

impl Entry {
    fn new(data: Arc<[u8]>, stat: Stat, lifetime: Lifetime) -> Self {
        Self { data, stat, lifetime, children: BTreeSet::new(), children_created: 0 }
    }

    /// Whether this is a container that lost its last child. A container that never had a child stays, as in
    /// ZooKeeper.
    fn is_empty_container(&self) -> bool {
        self.lifetime == Lifetime::Container && self.children.is_empty() && self.children_created != 0
    }
}
