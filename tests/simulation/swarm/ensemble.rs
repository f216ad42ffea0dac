//! The registry as an ensemble: one leader, behind which servers lag. Each client speaks to one server: its reads and
//! notices are that server's state, its writes go to the leader, and an answer comes when its own server has
//! seen the write. That is all the order that ZooKeeper promises.
//!
//! The leader is the embedded registry; a watch on all of it is the log that the servers follow.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use futures::FutureExt;
use sidekeeper::elasticjob::path::Place;
use sidekeeper::registry::embedded::Embedded;
use sidekeeper::registry::{Registry, Session, Watch};
use sidekeeper::tree::{
    CommitResult, Node, NodeChange, NodeKind, Operation, OperationResult, Path, SessionId, Stat, WatchEvent,
};

use super::Micros;

/// The data of a node.
pub type Content = (Arc<[u8]>, Stat);

/// One change, and whom it concerns.
#[derive(Debug, Clone)]
pub struct Change {
    pub path: Path,
    pub content: Option<Content>,
    /// Below the job's root.
    pub of_job: bool,
    /// Whether decisions read the node's data.
    pub wants_data: bool,
    /// The folder of the nodes that sidecars write for each other.
    pub of_fleet: bool,
}

impl Change {
    /// Whether a client reads the node when it hears of the change.
    pub fn is_read(&self) -> bool {
        self.content.is_some() && (self.of_fleet || (self.of_job && self.wants_data))
    }

    /// As a watch tells it.
    pub fn told(&self) -> NodeChange {
        let path = self.path.clone();
        match &self.content {
            Some(content) => NodeChange::Put { path, content: self.is_read().then(|| content.clone()) },
            None => NodeChange::Removed { path },
        }
    }
}

/// A server that follows the leader.
#[derive(Debug)]
struct Server {
    /// When it has applied each entry of the log; it never goes back.
    applied_at: Vec<Micros>,
    /// How long it takes for an entry, at least and at most.
    lag: (Micros, Micros),
    /// Until when it applies nothing.
    stalled_until: Micros,
    /// Its state after so many entries.
    replica: BTreeMap<Path, Content>,
    replica_at: usize,
}

/// The ensemble.
pub struct Ensemble {
    registry: Embedded,
    clock_ms: Arc<AtomicI64>,
    /// The session of operators and of the checks.
    operator: Arc<dyn Session>,
    log_watch: Watch,
    log: Vec<Vec<Change>>,
    servers: Vec<Server>,
    job: Path,
    fleet: Path,
    /// Without a leader nothing takes effect.
    pub leaderless_until: Micros,
}

impl Ensemble {
    /// So many servers; one is the leader alone.
    pub fn new(job: &Path, fleet: &Path, servers: usize) -> Self {
        let clock_ms = Arc::new(AtomicI64::new(0));
        let clock = Arc::clone(&clock_ms);
        let registry = Embedded::in_memory_with_clock(Arc::new(move || clock.load(Ordering::Relaxed)));
        let operator = registry.open().now_or_never().unwrap().unwrap();
        let all = Arc::new(|_: &Path| true);
        let mut log_watch = operator.watch(&Path::root(), all).now_or_never().unwrap().unwrap();
        let Ok(WatchEvent::Snapshot(_)) = log_watch.try_recv() else {
            panic!("a watch begins with a snapshot")
        };
        let server = || Server {
            applied_at: Vec::new(),
            lag: (0, 0),
            stalled_until: 0,
            replica: BTreeMap::new(),
            replica_at: 0,
        };
        let servers = (0..servers.max(1)).map(|_| server()).collect();
        Self {
            registry,
            clock_ms,
            operator,
            log_watch,
            log: Vec::new(),
            servers,
            job: job.clone(),
            fleet: fleet.clone(),
            leaderless_until: 0,
        }
    }

    pub fn servers(&self) -> usize {
        self.servers.len()
    }

    /// How many entries the log has.
    pub fn len(&self) -> usize {
        self.log.len()
    }

    pub fn entries(&self, from: usize, to: usize) -> &[Vec<Change>] {
        &self.log[from..to]
    }

    /// How long a server takes for each entry.
    pub fn set_lag(&mut self, server: usize, lag: (Micros, Micros)) {
        self.servers[server].lag = lag;
    }

    /// A server applies nothing until then.
    pub fn stall(&mut self, server: usize, until: Micros) {
        self.servers[server].stalled_until = until;
    }

    pub fn set_clock(&self, milliseconds: i64) {
        self.clock_ms.store(milliseconds, Ordering::Relaxed);
    }

    pub fn open(&self) -> Arc<dyn Session> {
        self.registry.open().now_or_never().unwrap().unwrap()
    }

    /// The leader ends a session.
    pub fn expire(&mut self, session: SessionId, now: Micros, dice: impl FnMut(u64) -> u64) {
        self.registry.expire(session);
        self.append(now, dice);
    }

    /// A transaction takes effect.
    pub fn commit(
        &mut self,
        session: &dyn Session,
        transaction: Vec<Operation>,
        now: Micros,
        dice: impl FnMut(u64) -> u64,
    ) -> CommitResult {
        let steps = transaction.clone();
        let result = session.commit(transaction).now_or_never().expect("at once");
        if let Ok(results) = &result {
            while self.log_watch.try_recv().is_ok() {}
            let changes = steps.into_iter().zip(results).filter_map(one_by_one).collect();
            self.log_changes(changes, now, dice);
        }
        result
    }

    /// A node is created unless it is there.
    pub fn ensure(
        &mut self,
        session: &dyn Session,
        path: &Path,
        kind: NodeKind,
        now: Micros,
        dice: impl FnMut(u64) -> u64,
    ) -> Result<bool, sidekeeper::tree::Error> {
        let result = session.ensure(path, kind, b"").now_or_never().expect("at once");
        self.append(now, dice);
        result
    }

    /// A client that is no instance writes; it may fail.
    pub fn operate(
        &mut self,
        transaction: Vec<Operation>,
        now: Micros,
        dice: impl FnMut(u64) -> u64,
    ) -> bool {
        let session = Arc::clone(&self.operator);
        self.commit(&*session, transaction, now, dice).is_ok()
    }

    /// A client that is no instance creates a node if it is missing.
    pub fn provide(&mut self, path: &Path, now: Micros, dice: impl FnMut(u64) -> u64) {
        let session = Arc::clone(&self.operator);
        let _ = self.ensure(&*session, path, NodeKind::Persistent, now, dice);
    }

    /// The leader's data at a path.
    pub fn get(&self, path: &Path) -> Option<Node> {
        self.operator.get(path).now_or_never().unwrap().unwrap()
    }

    /// The names below a path, as the leader has them.
    pub fn children(&self, path: &Path) -> Vec<String> {
        self.operator.children(path).now_or_never().unwrap().unwrap().unwrap_or_default()
    }

    /// Takes the changes into the log.
    fn append(&mut self, now: Micros, mut dice: impl FnMut(u64) -> u64) {
        while let Ok(event) = self.log_watch.try_recv() {
            let WatchEvent::Changes(changes) = event else { continue };
            self.log_changes(changes, now, &mut dice);
        }
    }

    /// Takes the changes of one transaction into the log.
    fn log_changes(&mut self, changes: Vec<NodeChange>, now: Micros, mut dice: impl FnMut(u64) -> u64) {
        if changes.is_empty() {
            return;
        }
        let changes = changes.into_iter().map(|change| self.classify(change)).collect();
        self.log.push(changes);
        for server in &mut self.servers {
            let (least, most) = server.lag;
            let lag = if most > least { least + dice(most - least) } else { least };
            let last = server.applied_at.last().copied().unwrap_or(0);
            server.applied_at.push((now + lag).max(last).max(server.stalled_until));
        }
    }

    /// The state after so many entries, independent of the servers.
    pub fn state_at(&self, entries: usize) -> BTreeMap<Path, Content> {
        let mut state = BTreeMap::new();
        for change in self.log.iter().take(entries).flatten() {
            match &change.content {
                Some(content) => state.insert(change.path.clone(), content.clone()),
                None => state.remove(&change.path),
            };
        }
        state
    }

    fn classify(&self, change: NodeChange) -> Change {
        let (path, content) = match change {
            NodeChange::Put { path, content } => (path, content),
            NodeChange::Removed { path } => (path, None),
        };
        let relative = path.relative_to(&self.job);
        let of_job = relative.is_some();
        let wants_data = relative.is_some_and(|relative| Place::of(relative).wants_data());
        let of_fleet = !of_job && path.is_within(&self.fleet);
        Change { path, content, of_job, wants_data, of_fleet }
    }

    /// How many entries a server has applied.
    pub fn applied(&self, server: usize, now: Micros) -> usize {
        let times = &self.servers[server].applied_at;
        // Mostly all of them, or nearly.
        let behind = times.iter().rev().take_while(|at| **at > now).count();
        times.len() - behind
    }

    /// When a server has applied so many entries.
    pub fn when_applied(&self, server: usize, entries: usize) -> Micros {
        entries.checked_sub(1).map_or(0, |last| self.servers[server].applied_at[last])
    }

    /// The state of a server after so many entries, or later if it was asked for later before.
    pub fn replica(&mut self, server: usize, entries: usize) -> &BTreeMap<Path, Content> {
        let server = &mut self.servers[server];
        for changes in self.log.get(server.replica_at..entries).unwrap_or_default() {
            for change in changes {
                match &change.content {
                    Some(content) => server.replica.insert(change.path.clone(), content.clone()),
                    None => server.replica.remove(&change.path),
                };
            }
        }
        server.replica_at = server.replica_at.max(entries);
        &server.replica
    }
}

/// The change of a step. A server reports each step by itself, also one that a later step of the transaction undoes.
fn one_by_one((step, result): (Operation, &OperationResult)) -> Option<NodeChange> {
    match (step, result) {
        (Operation::Create { data, .. }, OperationResult::Created { path, stat }) => {
            Some(NodeChange::Put { path: path.clone(), content: Some((data, *stat)) })
        }
        (Operation::Set { path, data, .. }, OperationResult::Set { stat }) => {
            Some(NodeChange::Put { path, content: Some((data, *stat)) })
        }
        (Operation::Delete { path, .. }, _) => Some(NodeChange::Removed { path }),
        _ => None,
    }
}

/// A node and all below it, parents before children.
pub fn subtree(replica: &BTreeMap<Path, Content>, root: &Path) -> Vec<Node> {
    let from = replica.range(root.clone()..);
    let near = from.take_while(|(path, _)| path.as_str().starts_with(root.as_str()));
    let below = near.filter(|(path, _)| path.is_within(root));
    below
        .map(|(path, (data, stat))| Node { path: path.clone(), data: Arc::clone(data), stat: *stat })
        .collect()
}
