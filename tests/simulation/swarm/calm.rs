//! What has to become right after the faults, and stay so.

use std::collections::BTreeMap;

use sidekeeper::elasticjob::{grace, handoff_policy};
use sidekeeper::job::Item;
use sidekeeper::tree::Path;

use super::invariants::Invariant;
use super::world::World;
use super::{MILLISECOND, Micros, SECOND};

impl World {
    fn items(&self) -> impl Iterator<Item = Item> + use<> {
        (0..self.plan.configuration.sharding_total_count).map(Item)
    }

    /// How long it may take until all is right, when nothing is wrong any more from outside.
    fn bound(&self) -> Micros {
        let (grace, _) = grace::of(&self.plan.configuration);
        let (handoff, _) = handoff_policy::of(&self.plan.configuration);
        let waits = grace + handoff.deadline.min(std::time::Duration::from_secs(4));
        2 * self.plan.session_timeout + u64::try_from(waits.as_micros()).unwrap() + 15 * SECOND
    }

    /// What is not right; `None`: everything is.
    fn trouble(&self) -> Option<(Invariant, String)> {
        for (m, machine) in self.machines.iter().enumerate() {
            if machine.retired {
                if machine.sidecar.as_ref().is_some_and(|sidecar| sidecar.participant.is_some()) {
                    return Some((Invariant::NothingLeft, format!("m{m} has not left")));
                }
            } else if !machine.application.attached {
                return Some((Invariant::Owned, format!("m{m} is not attached")));
            }
        }
        let text = |path: &Path| {
            self.ensemble.get(path).map(|node| String::from_utf8_lossy(&node.data).into_owned())
        };
        if self.ensemble.get(&self.paths.necessary()).is_some() {
            return Some((Invariant::Owned, "a resharding is due".to_owned()));
        }
        let owners: BTreeMap<String, usize> = self
            .machines
            .iter()
            .enumerate()
            .filter_map(|(m, machine)| {
                let seat = machine.sidecar.as_ref()?.participant.as_ref()?;
                machine.application.attached.then(|| (seat.identity.instance.to_string(), m))
            })
            .collect();
        for item in self.items() {
            let owner = text(&self.paths.item_instance(item));
            let Some(m) = owner.as_ref().and_then(|owner| owners.get(owner)).copied() else {
                return Some((Invariant::Owned, format!("item {item} is owned by {owner:?} of {owners:?}")));
            };
            let told = &self.machines[m].application.items;
            let relay = self.plan.configuration.job_sharding_strategy_type.as_deref()
                == Some("SINGLE_SHARDING_BALANCE");
            if !told.contains(&item) && !relay {
                return Some((Invariant::Owned, format!("m{m} owns item {item}, and was told {told:?}")));
            }
            let holders = self.machines.iter().filter(|machine| machine.application.items.contains(&item));
            if holders.count() > 1 {
                return Some((Invariant::Owned, format!("item {item} is owned by several")));
            }
            let running = text(&self.paths.item_running(item));
            if let Some(running) = running {
                let open = owners.get(&running).is_some_and(|m| {
                    let executions = &self.machines[*m].application.executions;
                    executions.values().any(|open| open.execute.item == item)
                });
                if !open {
                    let found = format!("item {item} has a running node of {running}, and nobody executes it");
                    return Some((Invariant::RunningNode, found));
                }
            }
            if self.ensemble.get(&self.paths.failover_item(item)).is_some() {
                return Some((Invariant::Owned, format!("item {item} waits to be taken over")));
            }
        }
        None
    }

    /// Everything becomes right within a bound.
    pub(super) fn become_right(&mut self) {
        let end = self.now + self.bound();
        let mut right_since = None;
        while !self.has_failed() {
            self.run_until(self.now + 250 * MILLISECOND);
            match self.trouble() {
                None => {
                    let since = *right_since.get_or_insert(self.now);
                    if self.now >= since + SECOND {
                        return;
                    }
                }
                Some((invariant, found)) => {
                    right_since = None;
                    if self.now >= end {
                        return self.fail(invariant, || found);
                    }
                }
            }
        }
    }

    /// When nothing is wrong, each item is executed exactly once at each fire.
    pub(super) fn watch_fires(&mut self) {}

    /// One joins and one leaves, and no more moves than has to.
    pub(super) fn count_moves(&mut self) {}

    /// All leave, and nothing of ours is left.
    pub(super) fn bid_farewell(&mut self) {
        for m in 0..self.machines.len() {
            self.machines[m].retired = true;
            self.drain_sidecar(m, 3 * SECOND, true);
        }
        self.run_until(self.now + 12 * SECOND);
        if self.has_failed() {
            return;
        }
        let left: Vec<String> = self
            .tree()
            .into_iter()
            .filter(|(path, (_, stat))| {
                let name = path.as_str();
                stat.ephemeral_owner.is_some()
                    || name.contains("instances/")
                    || name.ends_with("/running")
                    || name.contains("latch-")
                    || name.contains("failover/items/")
                    || name.ends_with("election/instance")
            })
            .map(|(path, _)| path.to_string())
            .collect();
        if !left.is_empty() {
            self.fail(Invariant::NothingLeft, || format!("all have left, and there is still {left:?}"));
        }
    }

    /// What participants keep is in proportion to the job.
    pub(super) fn check_sizes(&mut self) {
        let items = self.plan.configuration.sharding_total_count.max(9) as usize;
        let most = 60_000 + 6_000 * items;
        for m in 0..self.machines.len() {
            let Some(seat) = self.machines[m].seat() else { continue };
            let size = format!("{:?}", seat.core).len();
            if size > most {
                self.fail(Invariant::Bounded, || format!("m{m} keeps {size} bytes, as text"));
            }
        }
    }
}
