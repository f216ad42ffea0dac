//! The rules for the whole world when it has settled, and when a node has left.

use futures::FutureExt;
use sidekeeper::job::Item;
use sidekeeper::registry::Registry;
use sidekeeper::tree::Path;

use super::World;

impl World {
    /// P6: a node that has ended has no running node, is no instance, and does not lead.
    pub(super) fn assert_nothing_left(&self, index: usize) {
        let session = self.registry.open().now_or_never().unwrap().unwrap();
        let me = &self.nodes[index].instance;
        let successor =
            self.nodes.iter().any(|other| other.name != index && other.instance == *me && !other.leaving);
        if successor {
            return;
        }
        let id = me.to_string();
        for item in 0..self.configuration.sharding_total_count.min(6) {
            let path = Path::parse("/ns/job").unwrap().child(&format!("sharding/{item}/running"));
            let running = session.get(&path).now_or_never().unwrap().unwrap();
            let ours = running.is_some_and(|node| String::from_utf8_lossy(&node.data).ends_with(&id));
            // With failover a running node stays as after a crash, and is flagged.
            let flag = Path::parse("/ns/job").unwrap().child(&format!("leader/failover/items/{item}"));
            let flagged = session.get(&flag).now_or_never().unwrap().unwrap().is_some();
            assert!(!ours || flagged, "seed {}: {index} left the running node of {item}", self.seed);
        }
        let left = self.paths().into_iter().any(|path| path.contains("instances/") && path.ends_with(&id));
        assert!(!left, "seed {}: {index} left its instance", self.seed);
        let leads =
            self.get("leader/election/instance").is_some_and(|leader| leader == me.as_str().as_bytes());
        let says = self.read(&format!("/ns-sidekeeper/job/fleet/members/{me}")).is_some();
        assert!(!leads && !says, "seed {}: {index} left that it leads ({leads}), or is a member", self.seed);
    }

    /// Settles, and then P1.
    pub fn settle_owned(&mut self) {
        self.settle();
        self.assert_all_owned();
    }

    /// P1: every item has exactly one owner among the living nodes. A node whose item is being revoked owns it until
    /// the next owner does.
    pub fn assert_all_owned(&self) {
        let mut owned: Vec<_> =
            self.alive().iter().flat_map(|node| self.nodes[*node].items.clone()).collect();
        let mut told = owned.clone();
        told.sort();
        told.dedup();
        assert_eq!(told.len(), owned.len(), "seed {}: P1: an item is owned twice", self.seed);
        let plan = self.read("/ns-sidekeeper/job/fleet/handoff").unwrap_or_default();
        let plan = String::from_utf8(plan).unwrap();
        let items =
            plan.lines().flat_map(|line| line.split(' ').skip(1)).map(|item| Item(item.parse().unwrap()));
        let alive: Vec<_> = self.alive().iter().map(|node| self.nodes[*node].instance.to_string()).collect();
        let is_owned = |item: &Item| {
            let owner =
                self.get(&format!("sharding/{item}/instance")).map(|id| String::from_utf8(id).unwrap());
            owner.is_some_and(|owner| alive.contains(&owner))
        };
        owned.extend(items.filter(|item| !told.contains(item)).filter(is_owned));
        owned.sort();
        let all: Vec<_> = (0..self.configuration.sharding_total_count).map(Item).collect();
        assert_eq!(owned, all, "seed {}: P1\n{}\n{:?}", self.seed, self.describe(), self.paths());
    }

    /// One line for each living node, for looking at a failure.
    pub fn describe(&self) -> String {
        let lines = self.alive().into_iter().map(|index| {
            let node = &self.nodes[index];
            format!(
                "{index}: items {:?}, suspended {}, line {}\n{:#?}",
                node.items,
                node.suspended,
                node.line.len(),
                node.core
            )
        });
        lines.collect()
    }
}
