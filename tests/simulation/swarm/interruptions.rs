//! Which executions were interrupted, by what the leader of the ensemble has; and whether the instance that takes one
//! over is told its instant and its checkpoint (P5).

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use sidekeeper::coordination::job::contract::event::Execute;
use sidekeeper::coordination::job::contract::plan::Source;
use sidekeeper::elasticjob::path::Place;
use sidekeeper::job::Item;
use sidekeeper::tree::{Operation, Path};

use super::Micros;
use super::faults::Fault;
use super::invariants::Invariant;
use super::world::World;

/// An execution that was interrupted: its running node was deleted while the item was flagged for failover.
#[derive(Debug, Clone)]
struct Interruption {
    item: Item,
    scheduled: Timestamp,
    at: Micros,
}

/// The checkpoints of one item for one instant.
#[derive(Debug, Default)]
struct Checkpoints {
    /// All that applications have sent, in order.
    sent: Vec<Arc<[u8]>>,
    /// The place of the latest one that was answered as recorded.
    recorded: Option<usize>,
}

/// The memory of these checks.
#[derive(Debug, Default)]
pub(super) struct Interruptions {
    /// For which instant an instance has asked for the start of an item, last.
    asked: BTreeMap<(String, Item), Timestamp>,
    /// For which instant the running node of an item stands.
    running: BTreeMap<Item, Timestamp>,
    all: Vec<Interruption>,
    checkpoints: BTreeMap<(Item, i64), Checkpoints>,
    /// Checkpoints that are not answered yet, by the prefix of the execution's id and the ticket.
    unanswered: BTreeMap<(String, u64), ((Item, i64), usize)>,
}

impl World {
    /// A machine asks for a start.
    pub(super) fn note_asked(&mut self, m: usize) {
        let Some(seat) = self.machines[m].sidecar.as_ref().and_then(|sidecar| sidecar.participant.as_ref())
        else {
            return;
        };
        let instance = seat.identity.instance.to_string();
        let asked = seat.core.starting().map(|(item, _, scheduled)| ((instance.clone(), item), scheduled));
        self.checks.interruptions.asked.extend(asked);
    }

    /// The items whose running nodes a transaction deletes if it takes effect now.
    pub(super) fn running_deleted_by(&self, transaction: &[Operation]) -> Vec<Item> {
        let deleted = |step: &Operation| match step {
            Operation::Delete { path, .. } => self.running_item(path),
            Operation::Create { .. } | Operation::Set { .. } | Operation::Check { .. } => None,
        };
        let stands = |item: &Item| self.ensemble.get(&self.paths.item_running(*item)).is_some();
        transaction.iter().filter_map(deleted).filter(stands).collect()
    }

    fn running_item(&self, path: &Path) -> Option<Item> {
        match Place::of(path.relative_to(self.paths.root())?) {
            Place::Running(item) => Some(item),
            _ => None,
        }
    }

    /// A transaction has taken effect that has deleted these running nodes.
    pub(super) fn note_running(&mut self, transaction: &[Operation], deleted: Vec<Item>) {
        for item in deleted {
            let scheduled = self.checks.interruptions.running.remove(&item);
            let flagged = self.ensemble.get(&self.paths.failover_item(item)).is_some();
            if let Some(scheduled) = scheduled.filter(|_| flagged) {
                let at = self.now;
                self.tell(|| format!("item {item} was interrupted for {scheduled}"));
                self.checks.interruptions.all.push(Interruption { item, scheduled, at });
            }
        }
        for step in transaction {
            let Operation::Create { path, data, .. } = step else { continue };
            // A start that only asks whether an item runs writes no name.
            let Some(item) = self.running_item(path).filter(|_| !data.is_empty()) else { continue };
            let by = (String::from_utf8_lossy(data).into_owned(), item);
            let interruptions = &mut self.checks.interruptions;
            match interruptions.asked.get(&by) {
                Some(scheduled) => interruptions.running.insert(item, *scheduled),
                None => interruptions.running.remove(&item),
            };
        }
    }

    /// An application sends a checkpoint.
    pub(super) fn note_checkpoint(&mut self, m: usize, ticket: u64, execute: &Execute, data: Arc<[u8]>) {
        let Some(seat) = self.machines[m].sidecar.as_ref().and_then(|sidecar| sidecar.participant.as_ref())
        else {
            return;
        };
        let prefix = seat.identity.execution_prefix.clone();
        let of = (execute.item, execute.scheduled.as_millisecond());
        let checkpoints = self.checks.interruptions.checkpoints.entry(of).or_default();
        checkpoints.sent.push(data);
        let place = checkpoints.sent.len() - 1;
        self.checks.interruptions.unanswered.insert((prefix, ticket), (of, place));
    }

    /// A sidecar has answered a checkpoint.
    pub(super) fn note_progressed(&mut self, m: usize, ticket: u64, superseded: bool) {
        let Some(seat) = self.machines[m].sidecar.as_ref().and_then(|sidecar| sidecar.participant.as_ref())
        else {
            return;
        };
        let key = (seat.identity.execution_prefix.clone(), ticket);
        let interruptions = &mut self.checks.interruptions;
        let Some((of, place)) = interruptions.unanswered.remove(&key).filter(|_| !superseded) else { return };
        if let Some(checkpoints) = interruptions.checkpoints.get_mut(&of) {
            checkpoints.recorded = checkpoints.recorded.max(Some(place));
        }
    }

    /// Whether an operator has changed nodes of executions against the protocol.
    fn is_meddled_with(&self) -> bool {
        [Fault::Garbage, Fault::DeletedNode, Fault::TotalChange]
            .iter()
            .any(|fault| self.counts.of(*fault) > 0)
    }

    /// A FAILOVER is for the instant that was interrupted last, and brings its checkpoint; no execution gets a
    /// checkpoint of another instant.
    pub(super) fn check_instant(&mut self, m: usize, execute: &Execute) {
        let (item, scheduled) = (execute.item, execute.scheduled);
        let monitored = execute.configuration.monitor_execution;
        if !monitored || execute.resumed || self.is_meddled_with() {
            return;
        }
        let interruptions = &self.checks.interruptions;
        let known = interruptions.checkpoints.get(&(item, scheduled.as_millisecond()));
        let sent = known.map_or(&[][..], |checkpoints| &checkpoints.sent);
        let place = execute.checkpoint.as_ref().map(|data| sent.iter().rposition(|sent| sent == data));
        if place == Some(None) {
            return self.fail(Invariant::RightInstant, || {
                format!("m{m} executes item {item} for {scheduled} with a checkpoint of another instant")
            });
        }
        if execute.source != Source::Failover || execute.attempt != 1 {
            return;
        }
        let Some(last) = interruptions.all.iter().rev().find(|one| one.item == item).cloned() else { return };
        if last.scheduled != scheduled {
            return self.fail(Invariant::RightInstant, || {
                format!("m{m} takes item {item} over for {scheduled}, and {} was interrupted", last.scheduled)
            });
        }
        let recorded = known.and_then(|checkpoints| checkpoints.recorded);
        if recorded > place.flatten() {
            self.fail(Invariant::RightInstant, || {
                format!("m{m} takes item {item} over for {scheduled} without its checkpoint")
            });
        }
    }

    /// When everything has become right, each interrupted execution was told again for its own instant.
    pub(super) fn check_interrupted(&mut self) {
        let job = &self.plan.configuration;
        let once = job.props.contains_key(sidekeeper::extension::once_listener::ENABLED_PROPERTY);
        let counts = job.failover && job.monitor_execution && !once && !job.static_sharding;
        let switched = self.counts.of(Fault::ItemSwitch) + self.counts.of(Fault::ServerSwitch) > 0;
        if !counts || self.is_meddled_with() || switched || self.has_failed() {
            return;
        }
        for Interruption { item, scheduled, at } in self.checks.interruptions.all.clone() {
            let starts = self.checks.starts.get(&item).map_or(&[][..], Vec::as_slice);
            let mut redone = starts.iter().filter(|start| start.at >= at && start.source == Source::Failover);
            if !redone.any(|start| start.scheduled == scheduled) {
                return self.fail(Invariant::RightInstant, || {
                    format!("item {item} was interrupted for {scheduled}, and nobody was told to redo that")
                });
            }
        }
    }
}
