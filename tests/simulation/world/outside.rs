//! The world from outside: writes of operators and peers, and reads for the tests.

use std::collections::BTreeSet;
use std::sync::Arc;

use futures::FutureExt;
use sidekeeper::extension::cancel_wish::FleetCancel;
use sidekeeper::extension::item_trigger::ItemTrigger;
use sidekeeper::extension::path::ExtensionPaths;
use sidekeeper::extension::request_record::RequestId;
use sidekeeper::job::{Item, JobName};
use sidekeeper::registry::Registry;
use sidekeeper::tree::{NodeChange, NodeKind, Operation, Path, Transaction, WatchEvent};

use super::World;

impl World {
    /// An operator, or a peer, writes a node of the job.
    pub fn put(&mut self, relative: &str, data: &str) {
        self.set_registry_clock();
        let session = self.registry.open().now_or_never().unwrap().unwrap();
        let path = Path::parse("/ns/job").unwrap().child(relative);
        let created =
            session.ensure(&path, NodeKind::Persistent, data.as_bytes()).now_or_never().unwrap().unwrap();
        if !created {
            session.commit(vec![Operation::set(path, data)]).now_or_never().unwrap().unwrap();
        }
    }

    /// An operator cancels the executions of the whole fleet: those of these items, or all.
    pub fn cancel_fleet(&mut self, request: &str, items: Option<&[u32]>) {
        let items: Option<BTreeSet<_>> = items.map(|items| items.iter().copied().map(Item).collect());
        let session = self.registry.open().now_or_never().unwrap().unwrap();
        let path = Path::parse("/ns-sidekeeper/job/fleet/cancels").unwrap().child(request);
        let content = FleetCancel::write(items.as_ref());
        session.ensure(&path, NodeKind::Persistent, content.as_bytes()).now_or_never().unwrap().unwrap();
    }

    /// An operator triggers items, with this parameter. The node of one item.
    pub fn trigger_items(&mut self, request: &str, items: &[u32], parameter: Option<&str>) -> Path {
        let fleet =
            ExtensionPaths::new(&Path::parse("/ns").unwrap(), &JobName::parse("job").unwrap()).fleet();
        let id = RequestId::parse(request).unwrap();
        let content = ItemTrigger { begun: None, parameter: parameter.map(Into::into) }.write();
        let paths: Vec<_> = items.iter().map(|item| fleet.trigger(&id, Item(*item))).collect();
        let create = |path: &Path| Operation::create(path.clone(), NodeKind::Persistent, &content);
        self.operate(&paths[0], paths.iter().map(create).collect());
        paths[0].clone()
    }

    /// The triggers of items that are there.
    pub fn item_triggers(&self) -> Vec<String> {
        let session = self.registry.open().now_or_never().unwrap().unwrap();
        let path = Path::parse("/ns-sidekeeper/job/fleet/triggers").unwrap();
        session.children(&path).now_or_never().unwrap().unwrap().unwrap_or_default()
    }

    /// An operator's call to a sidecar: a transaction, once the folder of this node exists.
    pub fn operate(&mut self, node: &Path, transaction: Transaction) {
        self.set_registry_clock();
        let session = self.registry.open().now_or_never().unwrap().unwrap();
        let folder = node.parent().unwrap();
        session.ensure(&folder, NodeKind::Persistent, b"").now_or_never().unwrap().unwrap();
        session.commit(transaction).now_or_never().unwrap().unwrap();
    }

    /// A Java instance that has been there for a while, so that its scheduler runs, and does nothing.
    pub fn put_java(&mut self, id: &str) {
        let (ip, _) = id.split_once("@-@").unwrap();
        let long_ago = self.start.as_millisecond() - 10_000;
        self.registry_ms.store(long_ago, std::sync::atomic::Ordering::Relaxed);
        self.put_bytes(&format!("servers/{ip}"), b"ENABLED");
        self.put_bytes(
            &format!("instances/{id}"),
            format!("jobInstanceId: {id}\nserverIp: {ip}\n").as_bytes(),
        );
    }

    /// A client that is no node writes a node of the job, with any data.
    pub fn put_bytes(&mut self, relative: &str, data: &[u8]) {
        let session = self.registry.open().now_or_never().unwrap().unwrap();
        let path = Path::parse("/ns/job").unwrap().child(relative);
        // A node that our own instances delete at the same time may be gone again.
        if let Ok(false) = session.ensure(&path, NodeKind::Persistent, data).now_or_never().unwrap() {
            let _ = session.commit(vec![Operation::set(path, data)]).now_or_never().unwrap();
        }
    }

    /// How often a node of the job was set.
    pub fn version(&self, relative: &str) -> i32 {
        let session = self.registry.open().now_or_never().unwrap().unwrap();
        let path = Path::parse("/ns/job").unwrap().child(relative);
        session.get(&path).now_or_never().unwrap().unwrap().unwrap().stat.version
    }

    /// The transaction that created a node of the job.
    pub fn created(&self, relative: &str) -> i64 {
        let session = self.registry.open().now_or_never().unwrap().unwrap();
        let path = Path::parse("/ns/job").unwrap().child(relative);
        session.get(&path).now_or_never().unwrap().unwrap().unwrap().stat.created.0
    }

    /// The data of a node of the job.
    pub fn get(&self, relative: &str) -> Option<Vec<u8>> {
        self.read(&format!("/ns/job/{relative}"))
    }

    /// The data of any node.
    pub fn read(&self, path: &str) -> Option<Vec<u8>> {
        let session = self.registry.open().now_or_never().unwrap().unwrap();
        let path = Path::parse(path).unwrap();
        session.get(&path).now_or_never().unwrap().unwrap().map(|node| node.data.to_vec())
    }

    /// The names of the nodes in the ledger.
    pub fn ledger(&self) -> Vec<String> {
        let session = self.registry.open().now_or_never().unwrap().unwrap();
        let path = Path::parse("/ns-sidekeeper/job/fires").unwrap();
        session.children(&path).now_or_never().unwrap().unwrap().unwrap_or_default()
    }

    /// The checkpoint of an item, without the instant.
    pub fn checkpoint(&self, item: u32) -> Option<Vec<u8>> {
        let session = self.registry.open().now_or_never().unwrap().unwrap();
        let path = Path::parse("/ns-sidekeeper/job/checkpoints").unwrap().child(&item.to_string());
        let node = session.get(&path).now_or_never().unwrap().unwrap()?;
        let instant = node.data.iter().position(|byte| *byte == b'\n').unwrap();
        Some(node.data[instant + 1..].to_vec())
    }

    /// Somebody deletes all checkpoints, and their folder.
    pub fn remove_checkpoints(&mut self) {
        let session = self.registry.open().now_or_never().unwrap().unwrap();
        let folder = Path::parse("/ns-sidekeeper/job/checkpoints").unwrap();
        let names = session.children(&folder).now_or_never().unwrap().unwrap().unwrap();
        let nodes = names.iter().map(|name| folder.child(name)).chain([folder.clone()]);
        session.commit(nodes.map(Operation::delete).collect()).now_or_never().unwrap().unwrap();
    }

    /// Deletes a node of the job, and its parents as far as they are empty.
    pub fn remove_with_parents(&mut self, relative: &str) {
        let session = self.registry.open().now_or_never().unwrap().unwrap();
        let root = Path::parse("/ns/job").unwrap();
        let mut path = root.child(relative);
        while path != root && path.parent().is_some_and(|parent| parent != root) {
            let _ = session.commit(vec![Operation::delete(path.clone())]).now_or_never().unwrap();
            path = path.parent().unwrap();
        }
        if path != root && relative == path.name() {
            let _ = session.commit(vec![Operation::delete(path)]).now_or_never().unwrap();
        }
    }

    /// An operator, or a peer, deletes a node of the job.
    pub fn remove(&mut self, relative: &str) {
        self.remove_any(&format!("/ns/job/{relative}"));
    }

    /// Somebody deletes any node.
    pub fn remove_any(&mut self, path: &str) {
        let session = self.registry.open().now_or_never().unwrap().unwrap();
        let path = Path::parse(path).unwrap();
        session.commit(vec![Operation::delete(path)]).now_or_never().unwrap().unwrap();
    }

    /// A network changes the bytes of an answer: this node believes that a node of the job does not exist any more.
    pub fn hide(&mut self, node: usize, relative: &str) {
        let removed = NodeChange::Removed { path: Path::parse("/ns/job").unwrap().child(relative) };
        let now = self.time();
        self.nodes[node].picture.apply_nodes(WatchEvent::Changes(vec![removed]), now);
    }

    /// All nodes below a path, for looking at traces.
    pub fn paths(&self) -> Vec<String> {
        let session = self.registry.open().now_or_never().unwrap().unwrap();
        let root = Path::parse("/ns/job").unwrap();
        let mut watch = session.watch(&root, Arc::new(|_: &Path| true)).now_or_never().unwrap().unwrap();
        match watch.try_recv() {
            Ok(WatchEvent::Snapshot(nodes)) => nodes.into_iter().map(|node| node.path.to_string()).collect(),
            other => panic!("no snapshot: {other:?}"),
        }
    }
}
