//! Reading many nodes with few requests: those of one caller, and those of several that read at the same time.
//!
//! A change concerns many watches at once: those of both trees of a job, or of all jobs after a storm. Each watch then reads
//! what it needs, and the reads that meet here travel in one request. A read never waits for another one to come: the
//! callers that are ready to run are let run first, and while [`IN_FLIGHT_MAX`] requests are in flight the next ones gather.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::runtime::Handle;
use tokio::sync::oneshot;
use zookeeper_client as zk;

use super::convert;
use crate::tree::{Node, Path};

/// The most nodes that one request reads. The server answers a request as a whole, and other requests wait in
/// the meantime. A thousand small nodes take it about a millisecond.
const NODES_A_REQUEST: usize = 1_000;

/// The most bytes of paths in one request: half of a server's default limit.
const BYTES_A_REQUEST: usize = 512 * 1024;

/// The bytes of a path in a multi-read besides its own length, twice: once for the data, once for the
/// children.
const BYTES_A_PATH: usize = 2 * (9 + 4 + 1);

/// The requests in flight beyond which reads gather. With two, the server has work while an answer is on its way.
const IN_FLIGHT_MAX: usize = 2;

/// The reads over one connection. Clones share them.
#[derive(Clone)]
pub(super) struct Reads {
    client: zk::Client,
    waiting: Arc<Mutex<Waiting>>,
    /// Where they are sent, whichever thread asks for them.
    runtime: Handle,
}

/// The reads that have not been sent.
#[derive(Default)]
struct Waiting {
    reads: VecDeque<Read>,
    /// The tasks that send reads; each has one request in flight.
    senders: usize,
}

/// The nodes of one caller, few enough for one request.
struct Read {
    paths: Vec<Path>,
    /// Whether the names of the children are read, too.
    children: bool,
    answer: oneshot::Sender<Result<Vec<zk::MultiReadResult>, zk::Error>>,
}

impl Reads {
    pub(super) fn new(client: zk::Client) -> Self {
        Self { client, waiting: Arc::default(), runtime: Handle::current() }
    }

    /// The node and all below it, one request a level where sizes allow. The result is not of one moment: it may
    /// or may not have changes that happen during the reading.
    pub(super) async fn subtree(&self, root: &Path) -> Result<BTreeMap<Path, Node>, zk::Error> {
        let mut found = BTreeMap::new();
        let mut level = vec![root.clone()];
        let mut closed = Closed::default();
        while !level.is_empty() {
            let mut below = Vec::new();
            for batch in batches(&level) {
                let mut answers = self.read(batch, true).await?.into_iter();
                for path in batch {
                    let node = node(path, answers.next(), &mut closed)?;
                    let children = children(path, answers.next())?;
                    if let Some(node) = node {
                        found.insert(path.clone(), node);
                        below.extend(children);
                    }
                }
            }
            level = below;
        }
        closed.warn();
        Ok(found)
    }

    /// The nodes at these paths, in their order. `None`: there is no such node, or it may not be read.
    pub(super) async fn nodes(&self, paths: &[Path]) -> Result<Vec<Option<Node>>, zk::Error> {
        let mut found = Vec::with_capacity(paths.len());
        let mut closed = Closed::default();
        for batch in batches(paths) {
            let mut answers = self.read(batch, false).await?.into_iter();
            for path in batch {
                found.push(node(path, answers.next(), &mut closed)?);
            }
        }
        closed.warn();
        Ok(found)
    }

    /// Reads nodes, perhaps in one request with other callers' nodes. The request is sent after this call.
    async fn read(&self, paths: &[Path], children: bool) -> Result<Vec<zk::MultiReadResult>, zk::Error> {
        // A sender that is ended with its runtime drops the answer.
        self.add(paths, children).await.unwrap_or(Err(zk::Error::ConnectionLoss))
    }

    fn add(
        &self,
        paths: &[Path],
        children: bool,
    ) -> oneshot::Receiver<Result<Vec<zk::MultiReadResult>, zk::Error>> {
        let (answer, answered) = oneshot::channel();
        let mut waiting = self.waiting();
        waiting.reads.push_back(Read { paths: paths.to_vec(), children, answer });
        if waiting.senders < IN_FLIGHT_MAX {
            waiting.senders += 1;
            // It ends when no read waits; each ends with its connection.
            self.runtime.spawn(self.clone().send());
        }
        answered
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends what waits, one request after the other, until nothing does.
    async fn send(self) {
        loop {
            // The tasks that a burst of events has woken add their reads first.
            tokio::task::yield_now().await;
            let batch = {
                let mut waiting = self.waiting();
                let batch = next_batch(&mut waiting.reads);
                if batch.is_empty() {
                    waiting.senders -= 1;
                    return;
                }
                batch
            };
            let answers = self.ask(&batch).await;
            distribute(batch, answers);
        }
    }

    async fn ask(&self, batch: &[Read]) -> Result<Vec<zk::MultiReadResult>, zk::Error> {
        let mut reader = self.client.new_multi_reader();
        for Read { paths, children, .. } in batch {
            for path in paths {
                reader.add_get_data(path.as_str())?;
                if *children {
                    reader.add_get_children(path.as_str())?;
                }
            }
        }
        reader.commit().await
    }
}

/// The first reads that fit into one request. A single one always fits.
fn next_batch(reads: &mut VecDeque<Read>) -> Vec<Read> {
    let (mut nodes, mut bytes) = (0, 0);
    let fits = |read: &&Read| {
        nodes += read.paths.len();
        bytes += read.paths.iter().map(size).sum::<usize>();
        nodes <= NODES_A_REQUEST && bytes <= BYTES_A_REQUEST
    };
    let count = reads.iter().take_while(fits).count().max(1).min(reads.len());
    reads.drain(..count).collect()
}

/// Gives each caller its part of the answers.
fn distribute(batch: Vec<Read>, answers: Result<Vec<zk::MultiReadResult>, zk::Error>) {
    let mut answers = answers.map(Vec::into_iter);
    for Read { paths, children, answer } in batch {
        let count = paths.len() * if children { 2 } else { 1 };
        let part = match &mut answers {
            Ok(answers) => Ok(answers.take(count).collect()),
            Err(error) => Err(error.clone()),
        };
        // A caller that is gone needs no answer.
        let _ = answer.send(part);
    }
}

/// Nodes that exist but may not be read. The program treats them as missing, so a warning has to name them.
#[derive(Default)]
struct Closed {
    first: Option<Path>,
    count: usize,
}

impl Closed {
    fn add(&mut self, path: &Path) {
        self.first.get_or_insert_with(|| path.clone());
        self.count += 1;
    }

    /// Logs one warning for all of them.
    fn warn(self) {
        if let Some(path) = self.first {
            tracing::warn!(event = "REGISTRY_NO_PERMISSION", %path, count = self.count, "nodes may not be read and count as missing; check their access lists");
        }
    }
}

/// The bytes of a path in a request, at most.
fn size(path: &Path) -> usize {
    2 * path.as_str().len() + BYTES_A_PATH
}

fn batches(mut paths: &[Path]) -> impl Iterator<Item = &[Path]> {
    std::iter::from_fn(move || {
        let mut bytes = 0;
        let fits = |path: &&Path| {
            bytes += size(path);
            bytes <= BYTES_A_REQUEST
        };
        // A single path always fits, whatever its length. The server refuses a path that is too long.
        let count = paths.iter().take(NODES_A_REQUEST).take_while(fits).count().max(1).min(paths.len());
        let (batch, rest) = paths.split_at(count);
        paths = rest;
        (!batch.is_empty()).then_some(batch)
    })
}

fn node(
    path: &Path,
    answer: Option<zk::MultiReadResult>,
    closed: &mut Closed,
) -> Result<Option<Node>, zk::Error> {
    match answer {
        Some(zk::MultiReadResult::Data { data, stat }) => {
            Ok(Some(Node { path: path.clone(), data: data.into(), stat: convert::stat(&stat) }))
        }
        Some(zk::MultiReadResult::Error { err: zk::Error::NoNode }) => Ok(None),
        Some(zk::MultiReadResult::Error { err: zk::Error::NoAuth }) => {
            closed.add(path);
            Ok(None)
        }
        other => Err(unexpected(path, other)),
    }
}

fn children(path: &Path, answer: Option<zk::MultiReadResult>) -> Result<Vec<Path>, zk::Error> {
    match answer {
        Some(zk::MultiReadResult::Children { children }) => {
            Ok(children.iter().filter_map(|name| path.try_child(name).ok()).collect())
        }
        Some(zk::MultiReadResult::Error { err: zk::Error::NoNode | zk::Error::NoAuth }) => Ok(Vec::new()),
        other => Err(unexpected(path, other)),
    }
}

fn unexpected(path: &Path, answer: Option<zk::MultiReadResult>) -> zk::Error {
    match answer {
        Some(zk::MultiReadResult::Error { err }) => err,
        other => zk::Error::UnexpectedError(format!("reading {path} was answered with {other:?}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(count: usize) -> Vec<Path> {
        (0..count).map(|n| Path::root().child(&n.to_string())).collect()
    }

    #[test]
    fn batches_keep_to_both_limits_and_leave_nothing_out() {
        let sizes: Vec<_> = batches(&paths(2_500)).map(<[_]>::len).collect();
        assert_eq!(sizes, [1_000, 1_000, 500]);
        let long: Vec<_> =
            (0..3).map(|n| Path::root().child(&format!("{n}{}", "x".repeat(200_000)))).collect();
        assert_eq!(batches(&long).map(<[_]>::len).collect::<Vec<_>>(), [1, 1, 1]);
        assert_eq!(batches(&[]).count(), 0);
    }

    #[test]
    fn reads_of_several_callers_travel_together_up_to_the_limit_and_each_gets_its_own_part() {
        let (mut reads, mut answered) = (VecDeque::new(), Vec::new());
        for (count, children) in [(400, false), (1, true), (600, false), (1_000, false)] {
            let (answer, receiver) = oneshot::channel();
            reads.push_back(Read { paths: paths(count), children, answer });
            answered.push(receiver);
        }
        let batch = next_batch(&mut reads);
        assert_eq!(batch.iter().map(|read| read.paths.len()).collect::<Vec<_>>(), [400, 1]);
        let missing = || zk::MultiReadResult::Error { err: zk::Error::NoNode };
        let names = || zk::MultiReadResult::Children { children: vec!["a".to_owned()] };
        let answers = (0..401).map(|_| missing()).chain([names()]).collect();
        distribute(batch, Ok(answers));
        let mut part = |caller: usize| answered[caller].try_recv().unwrap().unwrap();
        assert_eq!(part(0).len(), 400);
        assert!(matches!(
            part(1)[..],
            [zk::MultiReadResult::Error { .. }, zk::MultiReadResult::Children { .. }]
        ));
        assert_eq!(next_batch(&mut reads).len(), 1);
        let last = next_batch(&mut reads);
        distribute(last, Err(zk::Error::ConnectionLoss));
        assert!(matches!(answered[3].try_recv(), Ok(Err(zk::Error::ConnectionLoss))));
        assert!(next_batch(&mut reads).is_empty());
    }
}
