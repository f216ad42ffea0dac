//! Reads and writes as the registry center sends them (protocol 0.2), one request at a time; what it swallows (0.4).
//!
//! A request that finds no connection is tried again as Curator's retry policy says, and then counts as lost, which is
//! swallowed: `exists` says no, `children` says none, a write looks like a success.

use std::sync::Arc;

use futures::FutureExt;
use sidekeeper::registry::{Error, Session};
use sidekeeper::tree::{Node, NodeKind, Operation, OperationResult, Path, Transaction};

use super::Write;
use super::process::Process;
use super::threads::Wait;

/// Retries after a lost connection, and the pauses between them.
const RETRIES: u64 = 3;
const PAUSE_BASE_MS: u64 = 1_000;
const PAUSE_MAX_MS: u64 = 3_000;
/// How long a client without a connection waits for one before a request fails.
const CONNECT_MS_MAX: u64 = 1_000;

#[derive(Debug, Clone)]
enum Request {
    Get(Path),
    Children(Path),
    Commit(Transaction),
}

#[derive(Debug, Clone)]
enum Reply {
    Node(Option<Node>),
    Children(Option<Vec<String>>),
    Done(Vec<OperationResult>),
}

/// Why a request failed, as far as the callers look at it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// The connection was lost; it may have taken effect.
    Lost,
    NoNode,
    NodeExists,
    NotEmpty,
}

impl Process {
    pub fn path(&self, relative: &str) -> Path {
        if relative.is_empty() { self.job.clone() } else { self.job.child(relative) }
    }

    async fn call(&self, request: Request) -> Result<Reply, Failure> {
        let mut retries = 0;
        loop {
            let reply = self.once(&request).await;
            if !matches!(reply, Err(Failure::Lost)) || retries == RETRIES {
                return reply;
            }
            retries += 1;
            let pause = PAUSE_BASE_MS * self.below(1 << retries).max(1);
            self.sleep(pause.min(PAUSE_MAX_MS) as i64).await;
        }
    }

    async fn once(&self, request: &Request) -> Result<Reply, Failure> {
        let connection = self.connections.get();
        if !self.connected.get() {
            self.sleep(self.below(CONNECT_MS_MAX) as i64).await;
            return Err(Failure::Lost);
        }
        self.pause(Wait::Answer).await;
        if self.loses_answer.get() {
            let _ = self.take_effect(request);
            self.pause(Wait::Turn).await;
            return Err(Failure::Lost);
        }
        if connection != self.connections.get() || !self.connected.get() {
            return Err(Failure::Lost);
        }
        let reply = self.take_effect(request);
        if self.below(4) == 0 {
            // The answer takes longer than what others do.
            self.pause(Wait::Turn).await;
        }
        reply
    }

    fn take_effect(&self, request: &Request) -> Result<Reply, Failure> {
        let session = Arc::clone(&self.session.borrow());
        let reply = match request {
            Request::Get(path) => session.get(path).now_or_never().unwrap().map(Reply::Node),
            Request::Children(path) => session.children(path).now_or_never().unwrap().map(Reply::Children),
            Request::Commit(transaction) => {
                let erased = self.erases(&*session, transaction);
                let committed = session.commit(transaction.clone()).now_or_never().unwrap();
                if let Ok(results) = &committed {
                    self.note(transaction, results);
                    self.erased.borrow_mut().extend(erased.map(|item| (item, self.now())));
                }
                committed.map(Reply::Done).map_err(|error| error.error)
            }
        };
        reply.map_err(|error| match error {
            Error::Suspended | Error::SessionLost | Error::OutcomeUnknown(_) => Failure::Lost,
            Error::NoNode(_) => Failure::NoNode,
            Error::NodeExists(_) => Failure::NodeExists,
            Error::NotEmpty(_) => Failure::NotEmpty,
            Error::BadVersion(_)
            | Error::ParentIsEphemeral(_)
            | Error::NoPermission(_)
            | Error::Unreachable(_)
            | Error::ReadOnly(_)
            | Error::AuthRefused(_)
            | Error::Refused(_) => panic!("{} throws: {error} ({request:?})", self.id),
        })
    }

    /// The item whose running node, which is another's, a transaction deletes or writes.
    fn erases(&self, session: &dyn Session, transaction: &[Operation]) -> Option<u32> {
        let step = transaction.last()?;
        let (Operation::Delete { path, .. } | Operation::Set { path, .. }) = step else { return None };
        let item = path.relative_to(&self.job)?.strip_prefix("sharding/")?.strip_suffix("/running")?;
        let holder = session.get(path).now_or_never()?.ok()??.data;
        if *holder == *self.id.as_bytes() { None } else { item.parse().ok() }
    }

    fn note(&self, transaction: &[Operation], results: &[OperationResult]) {
        let Some(writes) = &self.writes else { return };
        let session = self.session.borrow().id();
        let created = |result: &OperationResult| match result {
            OperationResult::Created { path, .. } => Some(path.clone()),
            OperationResult::Set { .. } | OperationResult::Deleted | OperationResult::Checked => None,
        };
        let steps = transaction.iter().zip(results).map(|(step, result)| {
            let path = created(result).unwrap_or_else(|| step.path().clone());
            (step.clone(), path)
        });
        writes.borrow_mut().push(Write { session, steps: steps.collect() });
    }

    /// One request of one or several steps.
    pub async fn commit(&self, transaction: Transaction) -> Result<Vec<OperationResult>, Failure> {
        match self.call(Request::Commit(transaction)).await? {
            Reply::Done(results) => Ok(results),
            Reply::Node(_) | Reply::Children(_) => unreachable!("a commit"),
        }
    }

    pub async fn read(&self, path: &Path) -> Result<Option<Node>, Failure> {
        match self.call(Request::Get(path.clone())).await? {
            Reply::Node(node) => Ok(node),
            Reply::Done(_) | Reply::Children(_) => unreachable!("a read"),
        }
    }

    pub async fn names(&self, path: &Path) -> Result<Option<Vec<String>>, Failure> {
        match self.call(Request::Children(path.clone())).await? {
            Reply::Children(names) => Ok(names),
            Reply::Done(_) | Reply::Node(_) => unreachable!("a list"),
        }
    }

    pub async fn exists(&self, relative: &str) -> bool {
        self.read(&self.path(relative)).await.is_ok_and(|node| node.is_some())
    }

    pub async fn get_direct(&self, relative: &str) -> Option<Arc<[u8]>> {
        Some(self.read(&self.path(relative)).await.ok()??.data)
    }

    /// From the cache, if the path is in it.
    pub async fn get(&self, relative: &str) -> Option<Arc<[u8]>> {
        let known = self.cache.borrow().get(relative);
        if known.is_some() { known } else { self.get_direct(relative).await }
    }

    /// In descending order.
    pub async fn children(&self, relative: &str) -> Vec<String> {
        let mut names = self.names(&self.path(relative)).await.ok().flatten().unwrap_or_default();
        names.sort_by(|left, right| right.encode_utf16().cmp(left.encode_utf16()));
        names
    }

    /// A node, and first its missing parents, one request each.
    pub async fn create(
        &self,
        path: &Path,
        kind: NodeKind,
        parents: NodeKind,
        data: &[u8],
    ) -> Result<Path, Failure> {
        loop {
            let create = Operation::create(path.clone(), kind, data);
            match self.commit(vec![create]).await {
                Ok(results) => {
                    let [OperationResult::Created { path, .. }] = results.as_slice() else {
                        unreachable!("one node")
                    };
                    return Ok(path.clone());
                }
                Err(Failure::NoNode) => {}
                Err(failure) => return Err(failure),
            }
            let ancestors: Vec<_> = std::iter::successors(path.parent(), Path::parent).collect();
            for parent in ancestors.into_iter().rev().filter(|parent| !parent.is_root()) {
                if self.read(&parent).await?.is_some() {
                    continue;
                }
                // Somebody else may have made it; or removed the one above.
                match self.commit(vec![Operation::create(parent, parents, [])]).await {
                    Ok(_) | Err(Failure::NodeExists) => {}
                    Err(Failure::NoNode) => break,
                    Err(failure) => return Err(failure),
                }
            }
        }
    }

    /// A node with everything below it.
    async fn delete(&self, path: &Path) -> Result<(), Failure> {
        // A child that is deleted already is no failure; the node itself that is deleted already is one.
        match self.commit(vec![Operation::delete(path.clone())]).await {
            Err(Failure::NotEmpty) => {}
            other => return other.map(drop),
        }
        let mut open = vec![path.clone()];
        while let Some(next) = open.last().cloned() {
            match self.commit(vec![Operation::delete(next.clone())]).await {
                Err(Failure::NotEmpty) => {
                    let names = self.names(&next).await?.unwrap_or_default();
                    open.extend(names.iter().map(|name| next.child(name)));
                }
                Ok(_) | Err(Failure::NoNode) => drop(open.pop()),
                Err(failure) => return Err(failure),
            }
        }
        Ok(())
    }

    pub async fn update(&self, relative: &str, data: &[u8]) {
        let path = self.path(relative);
        let _ = self.commit(vec![Operation::check(path.clone()), Operation::set(path, data)]).await;
    }

    pub async fn persist(&self, relative: &str, data: &[u8]) {
        if self.exists(relative).await {
            self.update(relative, data).await;
        } else {
            let path = self.path(relative);
            let _ = self.create(&path, NodeKind::Persistent, NodeKind::Persistent, data).await;
        }
    }

    pub async fn persist_ephemeral(&self, relative: &str, data: &[u8]) {
        let path = self.path(relative);
        if self.exists(relative).await && self.delete(&path).await.is_err() {
            return;
        }
        let _ = self.create(&path, NodeKind::Ephemeral, NodeKind::Persistent, data).await;
    }

    pub async fn remove(&self, relative: &str) {
        let _ = self.delete(&self.path(relative)).await;
    }

    pub async fn create_if_needed(&self, relative: &str) {
        if self.exists("").await && !self.exists(relative).await {
            self.persist(relative, b"").await;
        }
    }

    pub async fn remove_if_existed(&self, relative: &str) {
        if self.exists(relative).await {
            self.remove(relative).await;
        }
    }

    /// One request; its error is swallowed (H7).
    pub async fn transaction(&self, steps: Transaction) {
        let mut all = vec![Operation::check(self.namespace.clone())];
        all.extend(steps);
        let _ = self.commit(all).await;
    }
}
