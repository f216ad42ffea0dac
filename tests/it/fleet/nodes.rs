//! A session of its own on the registry, which reads and changes nodes as an operator, the console or a faulty Java peer
//! does.

use std::collections::BTreeMap;
use std::sync::Arc;

use sidekeeper::registry::embedded::Embedded;
use sidekeeper::registry::{Registry, Session};
use sidekeeper::tree::{Node, NodeChange, NodeKind, Operation, Path, SessionId, Transaction, WatchEvent};

use super::{JOB, bounded};

/// All nodes of the registry, at one moment. Names are relative to the node of [`JOB`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tree {
    root: Path,
    nodes: BTreeMap<Path, Node>,
}

impl Tree {
    /// The names of all nodes of the job, parents before their children; the job's own is `""`.
    pub fn names(&self) -> Vec<String> {
        self.nodes.keys().filter_map(|path| path.relative_to(&self.root)).map(str::to_owned).collect()
    }

    pub fn node(&self, name: &str) -> Option<&Node> {
        self.nodes.get(&self.root.child(name))
    }

    pub fn has(&self, name: &str) -> bool {
        self.node(name).is_some()
    }

    pub fn text(&self, name: &str) -> Option<String> {
        self.node(name).map(|node| String::from_utf8_lossy(&node.data).into_owned())
    }

    /// The names of all nodes of the job; the job's own is empty.
    pub fn all(&self) -> impl Iterator<Item = &str> {
        self.nodes.keys().filter_map(|path| path.relative_to(&self.root))
    }

    pub fn is_ephemeral(&self, name: &str) -> bool {
        self.node(name).is_some_and(|node| node.stat.ephemeral_owner.is_some())
    }

    /// The transaction that created the node: the fencing token, for some nodes.
    pub fn created(&self, name: &str) -> i64 {
        self.node(name).unwrap_or_else(|| panic!("no {name}")).stat.created.0
    }

    /// The text of a node anywhere in the registry.
    pub fn data_of(&self, path: &Path) -> Option<String> {
        self.nodes.get(path).map(|node| String::from_utf8_lossy(&node.data).into_owned())
    }

    /// The transaction that created a node anywhere in the registry.
    pub fn created_of(&self, path: &Path) -> i64 {
        self.nodes.get(path).unwrap_or_else(|| panic!("no {path}")).stat.created.0
    }

    pub fn children(&self, name: &str) -> Vec<&str> {
        let parent = self.root.child(name);
        let below = self.nodes.keys().filter_map(|path| path.relative_to(&parent));
        below.filter(|name| !name.is_empty() && !name.contains('/')).collect()
    }

    /// The checkpoints of the job's executions, by item, without the instant.
    pub fn checkpoints(&self) -> BTreeMap<String, Vec<u8>> {
        let folder = self.root.parent().unwrap().sibling_with_suffix("-sidekeeper");
        let folder = folder.child(&format!("{JOB}/checkpoints"));
        let of = |node: &Node| {
            let item = node.path.relative_to(&folder).filter(|item| !item.is_empty())?;
            let (_, data) = node.data.split_at(node.data.iter().position(|byte| *byte == b'\n')? + 1);
            Some((item.to_owned(), data.to_vec()))
        };
        self.nodes.values().filter_map(of).collect()
    }

    /// The items with running nodes.
    pub fn running(&self) -> Vec<&str> {
        let items = self.children("sharding").into_iter();
        items.filter(|item| self.has(&format!("sharding/{item}/running"))).collect()
    }

    /// The session that registered an instance.
    pub fn session_of(&self, instance: &str) -> SessionId {
        let node = self.node(&format!("instances/{instance}")).unwrap();
        node.stat.ephemeral_owner.unwrap()
    }

    fn apply(&mut self, event: WatchEvent) {
        match event {
            WatchEvent::Snapshot(nodes) => {
                self.nodes = nodes.into_iter().map(|node| (node.path.clone(), node)).collect();
            }
            WatchEvent::Changes(changes) => {
                for change in changes {
                    match change {
                        NodeChange::Put { path, content } => {
                            let (data, stat) = content.unwrap();
                            self.nodes.insert(path.clone(), Node { path, data, stat });
                        }
                        NodeChange::Removed { path } => {
                            self.nodes.remove(&path);
                        }
                    }
                }
            }
        }
    }
}

/// See the module.
pub struct Nodes {
    session: Arc<dyn Session>,
    root: Path,
}

impl Nodes {
    pub async fn open(registry: &Embedded, namespace: &str) -> Self {
        let session = registry.open().await.unwrap();
        Self { session, root: Path::parse(&format!("/{namespace}/{JOB}")).unwrap() }
    }

    /// The path of a node of the job, as problems show it.
    pub fn path(&self, name: &str) -> Path {
        self.root.child(name)
    }

    /// The first state of the registry that `wanted` accepts.
    pub async fn until(&self, what: &str, wanted: impl Fn(&Tree) -> bool) -> Tree {
        let search = async {
            let mut watch = self.session.watch(&Path::root(), Arc::new(|_| true)).await.unwrap();
            let mut tree = Tree { root: self.root.clone(), nodes: BTreeMap::new() };
            loop {
                tree.apply(watch.recv().await.expect("the session is lost"));
                if wanted(&tree) {
                    return tree;
                }
            }
        };
        bounded(what, search).await
    }

    /// All nodes, now.
    pub async fn tree(&self) -> Tree {
        self.until("the registry", |_| true).await
    }

    /// All nodes, once no election or sharding is in progress.
    pub async fn settled_tree(&self) -> Tree {
        let busy = |tree: &Tree| {
            tree.has("leader/sharding/necessary") || !tree.children("leader/election/latch").is_empty()
        };
        self.until("the end of election and sharding", |tree| tree.has("sharding/0/instance") && !busy(tree))
            .await
    }

    /// The names below one of Sidekeeper's own nodes of the job.
    pub async fn children_of_own(&self, name: &str) -> Vec<String> {
        let own = self.root.parent().unwrap().sibling_with_suffix("-sidekeeper");
        self.session.children(&own.child(&format!("{JOB}/{name}"))).await.unwrap().unwrap_or_default()
    }

    pub async fn commit(&self, transaction: Transaction) {
        self.session.commit(transaction).await.unwrap();
    }

    /// Sets a node's data; creates the node, persistent, if it is missing.
    pub async fn put(&self, name: &str, data: impl AsRef<[u8]>) {
        let path = self.path(name);
        if !self.session.ensure(&path, NodeKind::Persistent, data.as_ref()).await.unwrap() {
            self.commit(vec![Operation::set(path, data)]).await;
        }
    }

    /// Creates a node that ends with this session, and that cannot have children.
    pub async fn ephemeral(&self, name: &str) {
        self.commit(vec![Operation::create(self.path(name), NodeKind::Ephemeral, "")]).await;
    }

    pub async fn delete(&self, name: &str) {
        self.commit(vec![Operation::delete(self.path(name))]).await;
    }

    /// Deletes a node unless it has children or does not exist.
    pub async fn try_delete(&self, name: &str) {
        let path = if name.is_empty() { self.root.clone() } else { self.path(name) };
        let _ = self.session.commit(vec![Operation::delete(path)]).await;
    }

    /// Replaces a part of the configuration document.
    pub async fn edit_configuration(&self, from: &str, to: &str) {
        let text = self.tree().await.text("config").unwrap();
        assert!(text.contains(from), "{text}");
        self.put("config", text.replace(from, to)).await;
    }
}
