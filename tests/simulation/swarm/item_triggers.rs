//! Triggers of single items: each has a parameter of its own, which tells its executions from all others (I20).

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use sidekeeper::coordination::job::contract::event::Execute;
use sidekeeper::coordination::job::contract::plan::Source;
use sidekeeper::extension::item_trigger::ItemTrigger;
use sidekeeper::extension::request_record::RequestId;
use sidekeeper::extension::{handoff_policy, once_listener};
use sidekeeper::job::{InstanceId, Item};
use sidekeeper::tree::{NodeKind, Operation};

use super::faults::Fault;
use super::invariants::Invariant;
use super::world::World;

/// The triggers so far, by their parameters: the item, and the instants for which it was told to execute.
#[derive(Debug, Default)]
pub(super) struct ItemTriggers {
    all: BTreeMap<String, (Item, BTreeSet<Timestamp>)>,
}

impl World {
    /// An operator triggers an item with a parameter. A job whose items are not executed one by one is refused.
    pub(super) fn trigger_item(&mut self, item: Item) -> bool {
        let job = &self.plan.configuration;
        let (handoff, _) = handoff_policy::of(job);
        if handoff.continuous || job.props.contains_key(once_listener::ENABLED_PROPERTY) {
            return false;
        }
        let parameter = format!("trigger-{}", self.checks.item_triggers.all.len());
        let trigger = ItemTrigger { begun: None, parameter: Some(parameter.as_str().into()) };
        let fleet = self.own_paths.fleet();
        let path = fleet.trigger(&RequestId::parse(&parameter).unwrap(), item);
        let _ = self.operate(vec![Operation::create(fleet.triggers(), NodeKind::Persistent, "")]);
        let done = self.operate(vec![Operation::create(path, NodeKind::Persistent, trigger.write())]);
        if done {
            self.checks.item_triggers.all.insert(parameter, (item, BTreeSet::new()));
        }
        done
    }

    /// All executions with a trigger's parameter are of its item and for one instant: the first attempt, retries, a failover.
    pub(super) fn check_item_trigger(&mut self, m: usize, execute: &Execute) {
        let parameter = &execute.configuration.job_parameter;
        let Some((item, instants)) = self.checks.item_triggers.all.get_mut(parameter) else { return };
        let (item, scheduled) = (*item, execute.scheduled);
        instants.insert(scheduled);
        let once = instants.len() == 1;
        let caused = matches!(execute.source, Source::Trigger | Source::Failover);
        if item != execute.item || !once || !caused {
            let (told, source) = (execute.item, execute.source);
            let instants = instants.clone();
            self.fail(Invariant::Triggered, || {
                format!("m{m} executes item {told} ({source:?}) for {parameter} of item {item}; instants {instants:?}")
            });
        }
    }

    /// A trigger that has not ended. An item without an owner that is online waits for the next resharding, and so does its trigger: an operator has
    /// deleted the node of its owner, or the job's sharding is static.
    pub(super) fn left_trigger(&self) -> Option<String> {
        let fleet = self.own_paths.fleet();
        let total = self.plan.configuration.sharding_total_count;
        let is_owned = |item: Item| {
            let owner = self.ensemble.get(&self.paths.item_child(item, "instance"));
            let owner = owner.map(|node| InstanceId::from_registry(&String::from_utf8_lossy(&node.data)));
            owner.is_some_and(|owner| self.ensemble.get(&self.paths.instance(&owner)).is_some())
        };
        self.checks.item_triggers.all.iter().find_map(|(parameter, (item, _))| {
            if item.0 < total && !is_owned(*item) {
                return None;
            }
            let node = self.ensemble.get(&fleet.trigger(&RequestId::parse(parameter).unwrap(), *item))?;
            Some(format!("{parameter} of item {item} is left: {:?}", ItemTrigger::read(&node.data)))
        })
    }

    /// In the calm each trigger has had its execution, unless that was lost, as without failover, or the item was removed.
    pub(super) fn check_item_triggers(&mut self) {
        if self.has_failed() {
            return;
        }
        let job = &self.plan.configuration;
        let tampered = [Fault::DeletedNode, Fault::Garbage].iter().any(|fault| self.counts.of(*fault) > 0);
        let keeps = job.failover && job.monitor_execution && !job.static_sharding && !self.is_relay();
        let keeps = keeps && !tampered && self.counts.of(Fault::TotalChange) == 0;
        let all = &self.checks.item_triggers.all;
        let lost = all.iter().find(|(_, (_, instants))| keeps && instants.is_empty());
        let lost = lost.map(|(parameter, (item, _))| format!("{parameter} of item {item} was lost"));
        if let Some(wrong) = self.left_trigger().or(lost) {
            self.fail(Invariant::Triggered, || wrong);
        }
    }
}
