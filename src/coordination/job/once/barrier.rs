//! Which items are registered at a gate, which are to be, and which are not any more? (protocol 6.7; H25)
//!
//! A registration is an empty node that outlives everybody. It is made once for each item, taken back only by the owner
//! of the item, and removed with its gate only by who found the gate complete under the latch.

use std::collections::BTreeSet;

use crate::coordination::job::agenda::Agenda;
use crate::coordination::job::contract::commit::Purpose;
use crate::coordination::job::contract::effect::Effect;
use crate::coordination::job::contract::plan::{Planned, Source};
use crate::coordination::job::execution::retry::Retries;
use crate::coordination::job::execution::state::Executions;
use crate::coordination::job::frame::context::Context;
use crate::coordination::job::frame::outbox::Outbox;
use crate::coordination::job::ledger::Ledger;
use crate::coordination::job::once::state::{Acting, Guarantee, Round};
use crate::elasticjob::path::{Folder, Gate};
use crate::job::Item;
use crate::tree::{NodeKind, Operation, Transaction};

impl Guarantee {
    /// Registers the items that are missing at the present gate.
    pub(in crate::coordination) fn register_items(
        &mut self,
        cx: &Context,
        ledger: &Ledger,
        executions: &Executions,
        retries: &Retries,
        agenda: &Agenda,
        out: &mut Outbox,
    ) {
        let now = cx.now;
        let Some(round) = &self.round else { return };
        let Some(gate) = round.gate() else { return };
        let late = now.mono >= round.until || round.acting != Acting::No;
        if late || !cx.is_registered() || !out.may_commit(cx, Purpose::Guarantee) {
            return;
        }
        let paths = &cx.identity.paths;
        let folders = [Folder::Guarantee, Folder::Gate(gate)].into_iter();
        let folders = folders.filter(|folder| !cx.view.has_folder(*folder));
        let mut transaction: Transaction =
            folders.map(|folder| Operation::create(paths.folder(folder), NodeKind::Persistent, "")).collect();
        let mut size: usize = transaction.iter().map(Operation::wire_size).sum();
        let mut registering = BTreeSet::new();
        let mut news = false;
        for item in round.items.difference(&round.registered).copied() {
            if size >= cx.transaction_bytes {
                break;
            }
            if gate == Gate::Completed
                && !has_ended_here(cx, ledger, executions, retries, agenda, round, item)
            {
                continue;
            }
            registering.insert(item);
            if !cx.view.registered(gate).contains(&item) {
                let step = Operation::create(paths.guarantee_item(gate, item), NodeKind::Persistent, "");
                size += step.wire_size();
                transaction.push(step);
                news = true;
            }
        }
        if news {
            self.registering = registering;
            out.commit(Purpose::Guarantee, transaction);
        } else if let Some(round) = &mut self.round {
            // They are there: the earlier owner of the items registered them.
            round.registered.extend(registering);
        }
    }

    /// Takes back our registrations at gates that were given up.
    pub(in crate::coordination) fn withdraw(&mut self, cx: &Context, out: &mut Outbox) {
        if self.withdrawn.is_empty() || out.is_in_flight(Purpose::Guarantee) {
            return;
        }
        if !cx.view.is_loaded() {
            return;
        }
        let view = &cx.view;
        self.withdrawn.retain(|(gate, item)| view.registered(*gate).contains(item));
        if self.withdrawn.is_empty() || !out.may_commit(cx, Purpose::Guarantee) {
            return;
        }
        let transaction = self.withdrawal(cx);
        out.commit(Purpose::Guarantee, transaction);
    }

    /// The steps that take back registrations that nobody will complete; as many as a request takes.
    pub(in crate::coordination) fn withdrawal(&self, cx: &Context) -> Transaction {
        let guarantee = self;
        let mut withdrawn = guarantee.withdrawn.clone();
        if let Some(round) = &guarantee.round
            && let Some(gate) = round.gate()
            // Executed items stay registered as such, unless no other instance can see it.
            && (gate == Gate::Started || cx.view.instances().len() <= 1)
        {
            withdrawn.extend(round.items.iter().map(|item| (gate, *item)));
        }
        let mut size = 0;
        let there = withdrawn.into_iter().filter(|(gate, item)| cx.view.registered(*gate).contains(item));
        there
            .map(|(gate, item)| Operation::delete(cx.identity.paths.guarantee_item(gate, item)))
            .take_while(|step| {
                let fits = size < cx.transaction_bytes / 2;
                size += step.wire_size();
                fits
            })
            .collect()
    }
}

/// The planned executions that wait for the gate: all but those of items that were taken over.
pub(in crate::coordination) fn planned_items(agenda: &Agenda) -> impl Iterator<Item = (Item, Planned)> {
    agenda.plans().filter(|(_, planned)| !planned.is_first_of(Source::Failover))
}

/// Drops the planned executions that wait for the gate.
pub(in crate::coordination) fn skip_planned(
    cx: &Context,
    agenda: &mut Agenda,
    out: &mut Outbox,
    make_up: bool,
) {
    let planned: Vec<_> = planned_items(agenda).collect();
    for (item, Planned { scheduled, .. }) in planned {
        agenda.withdraw(item);
        if make_up {
            agenda.miss(cx, out, item, scheduled);
        } else {
            out.push(Effect::Skipped { item, scheduled });
        }
    }
}

/// Whether everybody is at a gate.
pub(in crate::coordination) fn is_complete(cx: &Context, gate: Gate) -> bool {
    let registered = cx.view.registered(gate);
    let here =
        |item: Item| registered.contains(&item) || cx.view.item(item).is_some_and(|view| view.disabled);
    !registered.is_empty() && cx.settings.as_ref().is_some_and(|settings| settings.items().all(here))
}

/// Whether an item is ours to register as completed, and nobody executes it or is about to.
fn has_ended_here(
    cx: &Context,
    ledger: &Ledger,
    executions: &Executions,
    retries: &Retries,
    agenda: &Agenda,
    round: &Round,
    item: Item,
) -> bool {
    // An item that has come from another instance may still have to be executed; the ledger tells.
    let known = !cx.view.is_resharding() && ledger.is_ledger_read(cx);
    let ours = round.executed.contains(&item) || (known && cx.assigned.executable_item(item).is_some());
    let waits = agenda.is_planned(item) || retries.concerns(item);
    ours && !executions.is_busy(cx, agenda, item) && !waits
}

/// Removes a gate with all that is registered there; in one transaction, unless that is too large.
pub(in crate::coordination) fn removal(cx: &Context, gate: Gate) -> Vec<Transaction> {
    let paths = &cx.identity.paths;
    let mut steps: Vec<_> = Vec::new();
    if gate == Gate::Started {
        // Nothing of this round has been executed, so that is left of earlier ones, and would be taken for ours.
        let stale = cx.view.registered(Gate::Completed).iter();
        steps.extend(stale.map(|item| Operation::delete(paths.guarantee_item(Gate::Completed, *item))));
    }
    let registered = cx.view.registered(gate).iter();
    steps.extend(registered.map(|item| Operation::delete(paths.guarantee_item(gate, *item))));
    if cx.view.has_folder(Folder::Gate(gate)) {
        steps.push(Operation::delete(paths.folder(Folder::Gate(gate))));
    }
    let mut transactions = vec![Transaction::new()];
    let mut size = 0;
    for step in steps {
        if size >= cx.transaction_bytes {
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
