//! What a sidecar reads from the server that it is connected to, which may lag behind the leader.

use std::collections::{BTreeMap, BTreeSet};

use sidekeeper::coordination::input::Input;
use sidekeeper::coordination::ledger::LedgerNode;
use sidekeeper::coordination::progress::Checkpoint;
use sidekeeper::job::Item;
use sidekeeper::tree::{NodeChange, Path, WatchEvent};

use super::ensemble::subtree;
use super::world::World;

impl World {
    pub(super) fn read_checkpoints(
        &mut self,
        server: usize,
        applied: usize,
        items: &BTreeSet<Item>,
    ) -> BTreeMap<Item, Checkpoint> {
        let replica = self.ensemble.replica(server, applied);
        let read = |item: &Item| {
            let (data, _) = replica.get(&self.paths.checkpoint(*item))?;
            Some((*item, Checkpoint::read(data)?))
        };
        items.iter().filter_map(read).collect()
    }

    pub(super) fn read_ledger(&mut self, server: usize, applied: usize) -> BTreeMap<Item, LedgerNode> {
        let folder = self.paths.ledger();
        let nodes = subtree(self.ensemble.replica(server, applied), &folder);
        let entry = |node: &sidekeeper::tree::Node| {
            let item = node.path.relative_to(&folder)?.parse().ok()?;
            Some((Item(item), LedgerNode::read(node)))
        };
        nodes.iter().filter_map(entry).collect()
    }

    pub(super) fn open_watches(&mut self, m: usize, server: usize, applied: usize) {
        let replica = self.ensemble.replica(server, applied);
        let nodes = subtree(replica, self.paths.root());
        let fleet = subtree(replica, self.paths.fleet().root());
        let Some(sidecar) = &mut self.machines[m].sidecar else { return };
        let client = &mut sidecar.client;
        (client.watching, client.opening, client.seen) = (true, false, applied);
        if let Some(seat) = &mut sidecar.participant {
            // What was not read yet is replaced.
            (seat.nodes, seat.fleet) = (Vec::new(), Vec::new());
            seat.nodes.push(Input::Watch(WatchEvent::Snapshot(nodes)));
            seat.fleet.push(Input::Fleet(WatchEvent::Snapshot(fleet)));
            seat.results.append(&mut sidecar.client.held);
            self.wake(m, 0);
        }
    }
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
