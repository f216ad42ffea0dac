//! Which items are registered at a gate, which are to be, and which are not any more? (protocol 6.7; H25)
//!
//! A registration is an empty node that outlives everybody. It is made once for each item, taken back only by the owner
//! of the item, and removed with its gate only by who found the gate complete under the latch.

use std::collections::BTreeSet;

use crate::elasticjob::path::{Folder, Gate};
use crate::job::Item;
use crate::tree::{NodeKind, Operation, Transaction};

use crate::coordination::job::contract::commit::Purpose;
use crate::coordination::job::once::round::{Acting, Round};
use crate::coordination::job::participant::Participant;

impl Participant {
    /// Whether everybody is at a gate.
    pub(in crate::coordination) fn is_complete(&self, gate: Gate) -> bool {
        let registered = self.cx.view.registered(gate);
        let here = |item: Item| {
            registered.contains(&item) || self.cx.view.item(item).is_some_and(|view| view.disabled)
        };
        !registered.is_empty() && self.cx.settings.as_ref().is_some_and(|settings| settings.items().all(here))
    }

    /// Registers what is to be at the present gate and is not.
    pub(in crate::coordination) fn register_items(&mut self) {
        let now = self.cx.now;
        let Some(round) = &self.guarantee.round else { return };
        let Some(gate) = round.gate() else { return };
        let late = now.mono >= round.until || round.acting != Acting::No;
        if late || !self.cx.is_registered() || !self.out.may_commit(&self.cx, Purpose::Guarantee) {
            return;
        }
        let paths = &self.cx.identity.paths;
        let folders = [Folder::Guarantee, Folder::Gate(gate)].into_iter();
        let folders = folders.filter(|folder| !self.cx.view.has_folder(*folder));
        let mut transaction: Transaction =
            folders.map(|folder| Operation::create(paths.folder(folder), NodeKind::Persistent, "")).collect();
        let mut size: usize = transaction.iter().map(Operation::wire_size).sum();
        let mut registering = BTreeSet::new();
        let mut news = false;
        for item in round.items.difference(&round.registered).copied() {
            if size >= self.cx.transaction_bytes {
                break;
            }
            if gate == Gate::Completed && !self.has_ended_here(round, item) {
                continue;
            }
            registering.insert(item);
            if !self.cx.view.registered(gate).contains(&item) {
                let step = Operation::create(paths.guarantee_item(gate, item), NodeKind::Persistent, "");
                size += step.wire_size();
                transaction.push(step);
                news = true;
            }
        }
        if news {
            self.guarantee.registering = registering;
            self.out.commit(Purpose::Guarantee, transaction);
        } else if let Some(round) = &mut self.guarantee.round {
            // They are there: somebody who had the items before us registered them.
            round.registered.extend(registering);
        }
    }

    /// Whether an item is ours to register as completed, and nobody executes it or is about to.
    fn has_ended_here(&self, round: &Round, item: Item) -> bool {
        // What has come to us from somebody else may still have to be executed; the ledger tells.
        let known = !self.cx.view.is_resharding() && self.ledger.is_ledger_read(&self.cx);
        let ours =
            round.executed.contains(&item) || (known && self.cx.assigned.executable_item(item).is_some());
        let waits = self.agenda.is_planned(item) || self.retries.concerns(item);
        ours && !self.executions.is_busy(&self.cx, &self.awaited, item) && !waits
    }

    /// Takes back what was registered at gates that were given up.
    pub(in crate::coordination) fn withdraw(&mut self) {
        if self.guarantee.withdrawn.is_empty() || self.out.is_in_flight(Purpose::Guarantee) {
            return;
        }
        if !self.cx.view.is_loaded() {
            return;
        }
        let view = &self.cx.view;
        self.guarantee.withdrawn.retain(|(gate, item)| view.registered(*gate).contains(item));
        if self.guarantee.withdrawn.is_empty() || !self.out.may_commit(&self.cx, Purpose::Guarantee) {
            return;
        }
        let transaction = self.withdrawal();
        self.out.commit(Purpose::Guarantee, transaction);
    }

    /// The steps that take back what nobody will complete; as many as a request takes.
    pub(in crate::coordination) fn withdrawal(&self) -> Transaction {
        let guarantee = &self.guarantee;
        let mut withdrawn = guarantee.withdrawn.clone();
        if let Some(round) = &guarantee.round
            && let Some(gate) = round.gate()
            // What was executed stays registered as such, unless there is nobody to see it.
            && (gate == Gate::Started || self.cx.view.instances().len() <= 1)
        {
            withdrawn.extend(round.items.iter().map(|item| (gate, *item)));
        }
        let mut size = 0;
        let there =
            withdrawn.into_iter().filter(|(gate, item)| self.cx.view.registered(*gate).contains(item));
        there
            .map(|(gate, item)| Operation::delete(self.cx.identity.paths.guarantee_item(gate, item)))
            .take_while(|step| {
                let fits = size < self.cx.transaction_bytes / 2;
                size += step.wire_size();
                fits
            })
            .collect()
    }

    /// Removes a gate with all that is registered there; in one transaction, unless that is too large.
    pub(in crate::coordination) fn removal(&self, gate: Gate) -> Vec<Transaction> {
        let paths = &self.cx.identity.paths;
        let mut steps: Vec<_> = Vec::new();
        if gate == Gate::Started {
            // Nothing of this round has been executed, so that is left of earlier ones, and would be taken for ours.
            let stale = self.cx.view.registered(Gate::Completed).iter();
            steps.extend(stale.map(|item| Operation::delete(paths.guarantee_item(Gate::Completed, *item))));
        }
        let registered = self.cx.view.registered(gate).iter();
        steps.extend(registered.map(|item| Operation::delete(paths.guarantee_item(gate, *item))));
        if self.cx.view.has_folder(Folder::Gate(gate)) {
            steps.push(Operation::delete(paths.folder(Folder::Gate(gate))));
        }
        let mut transactions = vec![Transaction::new()];
        let mut size = 0;
        for step in steps {
            if size >= self.cx.transaction_bytes {
                transactions.push(Transaction::new());
                size = 0;
            }
            size += step.wire_size();
            if let Some(last) = transactions.last_mut() {
                last.push(step);
            }
        }
        transactions
    }
}
