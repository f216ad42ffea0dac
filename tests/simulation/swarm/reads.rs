//! What a sidecar reads from the server that it is connected to, which may lag behind the leader.

use std::collections::{BTreeMap, BTreeSet};

use sidekeeper::extension::checkpoint::Checkpoint;
use sidekeeper::extension::ledger_entry::LedgerNodes;
use sidekeeper::job::Item;
use sidekeeper::tree::{NodeChange, Path, WatchEvent};

use super::client::Reply;
use super::ensemble::subtree;
use super::faults::Fault;
use super::world::{Event, World};

impl World {
    pub(super) fn read_checkpoints(
        &mut self,
        server: usize,
        applied: usize,
        items: &BTreeSet<Item>,
    ) -> BTreeMap<Item, Checkpoint> {
        let replica = self.ensemble.replica(server, applied);
        let read = |item: &Item| {
            let (data, _) = replica.get(&self.own_paths.checkpoint(*item))?;
            Some((*item, Checkpoint::read(data)?))
        };
        items.iter().filter_map(read).collect()
    }

    pub(super) fn read_ledger(&mut self, server: usize, applied: usize) -> LedgerNodes {
        let nodes = subtree(self.ensemble.replica(server, applied), &self.own_paths.ledger());
        LedgerNodes::read(&self.own_paths, &nodes)
    }

    /// The server begins to answer a client that reads all nodes, and is done at once or a while later.
    pub(super) fn load_watches(&mut self, m: usize, server: usize, applied: usize) {
        let storm = self.now < self.plan.storm;
        let times = self.plan.rates.slow_snapshot;
        if !storm || times == 0 || !self.reading.once_in(times) {
            return self.open_watches(m, server, applied, applied);
        }
        let until = self.now + 1 + self.reading.below(8 * self.plan.latency);
        let Some(sidecar) = &mut self.machines[m].sidecar else { return };
        sidecar.client.loading = Some((applied, until));
        let epoch = sidecar.client.epoch;
        self.at(until, Event::Deliver(m, epoch));
    }

    /// A client has read all nodes, beginning when the server had applied `from` entries, and ending when it has
    /// applied `to`. It reads changed nodes again, until none has changed, so it shows the server's last state. A
    /// client that reads again only once tells two moments, as a deliberate bug shows.
    pub(super) fn open_watches(&mut self, m: usize, server: usize, from: usize, to: usize) {
        if to > from {
            self.counts.add(Fault::SlowSnapshot);
        }
        let torn = to > from && tells_torn_states();
        let seen = if torn { from + self.reading.below((to - from + 1) as u64) as usize } else { to };
        let mut state = None;
        if seen < to {
            let mut torn = self.ensemble.state_at(seen);
            let touched = self.ensemble.entries(from, seen).iter().flatten();
            let touched: BTreeSet<Path> = touched.map(|change| change.path.clone()).collect();
            let newest = self.ensemble.replica(server, to);
            for path in touched {
                match newest.get(&path) {
                    Some(content) => torn.insert(path, content.clone()),
                    None => torn.remove(&path),
                };
            }
            state = Some(torn);
        }
        let (job, fleet) = (self.paths.root().clone(), self.own_paths.fleet().root().clone());
        let state = state.as_ref().unwrap_or_else(|| self.ensemble.replica(server, to));
        let (nodes, fleet) = (subtree(state, &job), subtree(state, &fleet));
        let now = self.now;
        let Some(sidecar) = &mut self.machines[m].sidecar else { return };
        let client = &mut sidecar.client;
        (client.watching, client.opening, client.seen, client.part) = (true, false, seen, 0);
        if seen < to {
            // A commit is answered when all is told that it has changed.
            for input in client.held.drain(..).rev() {
                client.answers.push_front((now, Reply::Input(input)));
            }
        }
        if let Some(seat) = &mut sidecar.participant {
            // A part that was not read yet is replaced.
            (seat.nodes, seat.fleet) = (Vec::new(), Vec::new());
            seat.nodes.push(WatchEvent::Snapshot(nodes));
            seat.fleet.push(WatchEvent::Snapshot(fleet));
            seat.results.append(&mut sidecar.client.held);
            self.wake(m, 0);
        }
    }
}

/// Whether the client has the deliberate bug that one read shows several moments.
pub(super) fn tells_torn_states() -> bool {
    #[cfg(feature = "mutants")]
    return sidekeeper::mutants::is_chosen(sidekeeper::mutants::Mutant::TornStates);
    #[cfg(not(feature = "mutants"))]
    false
}

/// One change a node, the last, in the order of the last ones.
pub(super) fn merged(changes: Vec<NodeChange>) -> Vec<NodeChange> {
    if changes.len() < 2 {
        return changes;
    }
    let mut last: BTreeMap<&Path, usize> = BTreeMap::new();
    for (index, change) in changes.iter().enumerate() {
        last.insert(change.path(), index);
    }
    if last.len() == changes.len() {
        return changes;
    }
    let mut kept: Vec<_> = last.into_values().collect();
    kept.sort_unstable();
    let mut kept = kept.into_iter().peekable();
    let mut index = 0;
    let mut changes = changes;
    changes.retain(|_| {
        let keep = kept.next_if_eq(&index).is_some();
        index += 1;
        keep
    });
    changes
}
