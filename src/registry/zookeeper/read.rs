//! Reading many nodes with few requests.

use std::collections::BTreeMap;

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

/// The node and all below it, one request a level where sizes allow. The result is not of one moment: it may
/// or may not have changes that happen during the reading.
pub(super) async fn subtree(client: &zk::Client, root: &Path) -> Result<BTreeMap<Path, Node>, zk::Error> {
    let mut found = BTreeMap::new();
    let mut level = vec![root.clone()];
    let mut closed = Closed::default();
    while !level.is_empty() {
        let mut below = Vec::new();
        for batch in batches(&level) {
            let mut reader = client.new_multi_reader();
            for path in batch {
                reader.add_get_data(path.as_str())?;
                reader.add_get_children(path.as_str())?;
            }
            let mut answers = reader.commit().await?.into_iter();
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
pub(super) async fn nodes(client: &zk::Client, paths: &[Path]) -> Result<Vec<Option<Node>>, zk::Error> {
    let mut found = Vec::with_capacity(paths.len());
    let mut closed = Closed::default();
    for batch in batches(paths) {
        let mut reader = client.new_multi_reader();
        for path in batch {
            reader.add_get_data(path.as_str())?;
        }
        let mut answers = reader.commit().await?.into_iter();
        for path in batch {
            found.push(node(path, answers.next(), &mut closed)?);
        }
    }
    closed.warn();
    Ok(found)
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
            tracing::warn!(%path, count = self.count, "nodes may not be read and count as missing; check their access lists");
        }
    }
}

fn batches(mut paths: &[Path]) -> impl Iterator<Item = &[Path]> {
    std::iter::from_fn(move || {
        let mut bytes = 0;
        let fits = |path: &&Path| {
            bytes += 2 * path.as_str().len() + BYTES_A_PATH;
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

    #[test]
    fn batches_keep_to_both_limits_and_leave_nothing_out() {
        let short: Vec<_> = (0..2_500).map(|n| Path::root().child(&n.to_string())).collect();
        let sizes: Vec<_> = batches(&short).map(<[_]>::len).collect();
        assert_eq!(sizes, [1_000, 1_000, 500]);
        let long: Vec<_> =
            (0..3).map(|n| Path::root().child(&format!("{n}{}", "x".repeat(200_000)))).collect();
        assert_eq!(batches(&long).map(<[_]>::len).collect::<Vec<_>>(), [1, 1, 1]);
        assert_eq!(batches(&[]).count(), 0);
    }
}
