//! The watches of a session by their roots, so that a commit finds those that cover its nodes among thousands of others.

use std::collections::{BTreeMap, BTreeSet};

use futures::channel::mpsc;
use tokio::sync::oneshot;

use super::watch::Flush;
use crate::tree::Path;

/// The number of watches from which on those that have ended are looked for.
const PRUNE_FROM: usize = 64;

/// Where to ask a watch to send its changes. The channels are unbounded, but each request in flight has at most one message
/// in each, and requests are bounded. A channel without a message is small: there are two for each job, and Tokio's have room for 32
/// messages.
pub(super) struct Flushers {
    by_root: BTreeMap<Path, Vec<mpsc::UnboundedSender<Flush>>>,
    count: usize,
    /// The number of watches at which those that have ended are removed.
    prune_at: usize,
}

impl Default for Flushers {
    fn default() -> Self {
        Self { by_root: BTreeMap::new(), count: 0, prune_at: PRUNE_FROM }
    }
}

impl Flushers {
    /// Adds a watch of this node and all below it.
    pub(super) fn add(&mut self, root: Path, flushes: mpsc::UnboundedSender<Flush>) {
        if self.count >= self.prune_at {
            self.prune();
        }
        self.by_root.entry(root).or_default().push(flushes);
        self.count += 1;
    }

    /// Removes the watches that have ended. Each is looked at a bounded number of times, because the limit doubles.
    fn prune(&mut self) {
        self.by_root.retain(|_, flushers| {
            flushers.retain(|flushes| !flushes.is_closed());
            !flushers.is_empty()
        });
        self.count = self.by_root.values().map(Vec::len).sum();
        self.prune_at = self.count.saturating_mul(2).max(PRUNE_FROM);
    }

    /// Asks the watches that cover any of these nodes. Each answers when it has sent all its changes up to now.
    pub(super) fn flush<'a>(&self, changed: impl Iterator<Item = &'a Path>) -> Vec<oneshot::Receiver<()>> {
        let upwards = |path: &Path| std::iter::successors(Some(path.clone()), Path::parent);
        let roots: BTreeSet<_> = changed.flat_map(upwards).collect();
        let flushers = roots.iter().filter_map(|root| self.by_root.get(root)).flatten();
        let ask = |flushes: &mpsc::UnboundedSender<Flush>| {
            let (flush, flushed) = oneshot::channel();
            // Fails when the watch has ended.
            flushes.unbounded_send(flush).is_ok().then_some(flushed)
        };
        flushers.filter_map(ask).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> Path {
        Path::parse(text).unwrap()
    }

    #[test]
    fn a_change_asks_the_watches_above_it_once_and_no_others() {
        let mut flushers = Flushers::default();
        let mut asked = ["/", "/a", "/a/b", "/a/b", "/ab", "/a/b/c/d"].map(|root| {
            let (sender, receiver) = mpsc::unbounded();
            flushers.add(path(root), sender);
            receiver
        });
        let changed = [path("/a/b/c"), path("/a/b")];
        assert_eq!(flushers.flush(changed.iter()).len(), 4);
        let times = asked.each_mut().map(|watch| std::iter::from_fn(|| watch.try_recv().ok()).count());
        assert_eq!(times, [1, 1, 1, 1, 0, 0]);
    }

    #[test]
    fn watches_that_have_ended_are_forgotten() {
        let mut flushers = Flushers::default();
        let kept: Vec<_> = (0..1_000)
            .filter_map(|number| {
                let (sender, receiver) = mpsc::unbounded();
                flushers.add(path("/a").child(&number.to_string()), sender);
                (number % 100 == 0).then_some(receiver)
            })
            .collect();
        assert!(flushers.count <= PRUNE_FROM + 2 * kept.len(), "{}", flushers.count);
        assert_eq!(flushers.flush([path("/a/100"), path("/a/101")].iter()).len(), 1);
    }
}
