//! Each transaction that takes effect is compared with the state of the ensemble's leader at that moment, which no
//! sidecar can see (P1, P2, P5): the checks in a transaction have to prove the basis of its decision.

use jiff::Timestamp;
use sidekeeper::coordination::job::contract::plan::Source;
use sidekeeper::elasticjob::path::Place;
use sidekeeper::extension::ledger_entry::LedgerEntry;
use sidekeeper::job::Item;
use sidekeeper::tree::{Operation, Path};

use super::invariants::Invariant;
use super::world::World;

impl World {
    /// The violation if a transaction takes effect now.
    pub(super) fn wrong_now(&self, transaction: &[Operation]) -> Option<(Invariant, String)> {
        // An owner hands over when its time is up, also while its application still executes.
        let divides = self.divides(transaction);
        let created = |step: &Operation| match step {
            Operation::Create { path, data, .. } => Some((path.clone(), data.clone())),
            Operation::Delete { .. } | Operation::Set { .. } | Operation::Check { .. } => None,
        };
        transaction.iter().filter_map(created).find_map(|(path, data)| {
            match Place::of(path.relative_to(self.paths.root())?) {
                // A question whether an item runs writes no name.
                Place::Running(item) if !data.is_empty() => {
                    Some((Invariant::Assigned, self.started_by_another(item, &data)?))
                }
                Place::ItemInstance(item) if divides => {
                    Some((Invariant::RevokedFirst, self.given_while_executed(item, &data)?))
                }
                _ => None,
            }
        })
    }

    /// Whether a transaction is a division.
    fn divides(&self, transaction: &[Operation]) -> bool {
        let is_set = |step: &Operation| matches!(step, Operation::Set { path, .. } if *path == self.paths.leader_sharding());
        transaction.iter().any(is_set)
    }

    /// An instance starts an item that it does not own and has not taken over. In a rotation others may.
    fn started_by_another(&self, item: Item, by: &[u8]) -> Option<String> {
        let is = |path: Path| self.ensemble.get(&path).is_some_and(|node| *node.data == *by);
        let owner = self.ensemble.get(&self.paths.item_instance(item))?;
        let may = is(self.paths.item_failover(item)) || is(self.paths.item_failovering(item));
        let wrong = *owner.data != *by && !may && !self.is_relay();
        wrong.then(|| format!("item {item} is started by {}, and owned by {}", text(by), text(&owner.data)))
    }

    /// A resharding gives an item to another instance while its owner is online and executes it.
    fn given_while_executed(&self, item: Item, to: &[u8]) -> Option<String> {
        let owner = self.ensemble.get(&self.paths.item_instance(item))?.data;
        let running = self.ensemble.get(&self.paths.item_running(item))?;
        let instance = self.paths.root().child("instances").try_child(&text(&owner)).ok()?;
        let wrong = *running.data == *owner && *owner != *to && self.ensemble.get(&instance).is_some();
        wrong.then(|| format!("item {item} is given to {} while {} executes it", text(to), text(&owner)))
    }

    /// Executions have been started in the registry, whether or not they are ever sent; items have been flagged or
    /// resharded.
    pub(super) fn note_written(&mut self, session: usize, transaction: &[Operation]) {
        let folder = self.own_paths.ledger();
        let seats = self.machines.iter().filter_map(|machine| machine.sidecar.as_ref()?.participant.as_ref());
        let mut here = seats.filter(|seat| seat.session == Some(session));
        let by = here.next().map(|seat| seat.identity.execution_prefix.clone());
        let asks_nobody = self.divides(transaction) && !self.all_hand_over();
        for step in transaction {
            if let Operation::Create { path, .. } = step
                && let Some(Place::ItemInstance(item)) = path.relative_to(self.paths.root()).map(Place::of)
                && asks_nobody
            {
                self.checks.divided.insert(item, self.now);
            }
            if let Operation::Create { path, data, .. } | Operation::Set { path, data, .. } = step
                && let Some(item) = path.relative_to(&folder).and_then(|item| item.parse().ok())
                && let Some(started) = LedgerEntry::read(data).started
            {
                self.checks.begun.insert((Item(item), started), (session, by.clone()));
            }
            if let Operation::Create { path, .. } = step
                && let Some(Place::FailoverItem(item)) = path.relative_to(self.paths.root()).map(Place::of)
            {
                self.checks.flagged.insert(item, self.now);
            }
        }
    }

    /// A start is sent: notes the reruns, which the registry does not show.
    pub(super) fn note_starting(&mut self, m: usize) {
        let seat = self.machines[m].sidecar.as_ref().and_then(|sidecar| sidecar.participant.as_ref());
        let starting = seat.into_iter().flat_map(|seat| seat.core.starting());
        let making_up = starting.filter(|(_, source, _)| *source == Source::Misfire);
        self.checks.making_up.extend(making_up.map(|(item, _, scheduled)| (item, scheduled)));
    }

    /// Whether the start of an item for a fire, or its rerun, may be lost, because its instance has lost its session
    /// or has died.
    pub(super) fn may_have_been_lost(&self, item: Item, fire: Timestamp) -> bool {
        let begun = self.checks.begun.range((item, fire)..).take_while(|((of, _), _)| *of == item);
        let is_for = |key: &(Item, Timestamp)| key.1 == fire || self.checks.making_up.contains(key);
        begun.filter(|(key, _)| is_for(key)).any(|(_, (session, by))| self.is_gone(*session, by.as_deref()))
    }

    /// Whether an item was started in the registry for an instant between these, by an instance that is offline.
    pub(super) fn was_lost_between(&self, item: Item, after: Timestamp, before: Timestamp) -> bool {
        let begun = self.checks.begun.range((item, after)..(item, before));
        begun
            .filter(|((_, at), _)| *at > after)
            .any(|(_, (session, by))| self.is_gone(*session, by.as_deref()))
    }

    /// Whether no instance with this prefix of execution ids has a session any more.
    fn is_gone(&self, session: usize, by: Option<&str>) -> bool {
        let seats = self.machines.iter().filter_map(|machine| machine.sidecar.as_ref()?.participant.as_ref());
        let is_it = |seat: &super::machine::Seat| Some(&*seat.identity.execution_prefix) == by;
        !seats.filter(|seat| seat.session == Some(session)).any(is_it)
    }
}

fn text(data: &[u8]) -> String {
    String::from_utf8_lossy(data).into_owned()
}
