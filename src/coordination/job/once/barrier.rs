//! Which items are registered at a barrier, which are to be, and which are not any more? (protocol 6.7; H25)
//!
//! A registration is an empty persistent node. It is made once for each item. Only the owner of the item withdraws it,
//! and it is removed with its barrier only by the instance that found the barrier complete under the latch.

use std::collections::BTreeSet;

use crate::coordination::job::agenda::Agenda;
use crate::coordination::job::contract::commit::Purpose;
use crate::coordination::job::contract::effect::Effect;
use crate::coordination::job::contract::plan::{Planned, Source};
use crate::coordination::job::execution::Executions;
use crate::coordination::job::execution::retry::Retries;
use crate::coordination::job::frame::context::Context;
use crate::coordination::job::frame::outbox::Outbox;
use crate::coordination::job::ledger::Ledger;
use crate::coordination::job::once::{Acting, Once, Round};
use crate::elasticjob::path::{Barrier, Folder};
use crate::job::Item;
use crate::tree::{NodeKind, Operation, Transaction};

impl Once {
    /// Registers the items that are missing at the present barrier.
    pub(crate) fn register_items(
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
        let Some(barrier) = round.barrier() else { return };
        let late = now.mono >= round.until || round.acting != Acting::No;
        if late || !cx.is_registered() || !out.may_commit(cx, Purpose::RegisterAtBarrier) {
            return;
        }
        let paths = &cx.identity.paths;
        let folders = [Folder::Guarantee, Folder::Barrier(barrier)].into_iter();
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
            if barrier == Barrier::Completed
                && !has_ended_here(cx, ledger, executions, retries, agenda, round, item)
            {
                continue;
            }
            registering.insert(item);
            if !cx.view.registered(barrier).contains(&item) {
                let step = Operation::create(paths.guarantee_item(barrier, item), NodeKind::Persistent, "");
                size += step.wire_size();
                transaction.push(step);
                news = true;
            }
        }
        if news {
            self.registering = registering;
            out.commit(Purpose::RegisterAtBarrier, transaction);
        } else if let Some(round) = &mut self.round {
            // The nodes exist: the earlier owner of the items has registered them.
            round.registered.extend(registering);
        }
    }

    /// Withdraws this instance's registrations at barriers that it gave up.
    pub(crate) fn withdraw(&mut self, cx: &Context, out: &mut Outbox) {
        if self.withdrawn.is_empty() || out.is_in_flight(Purpose::RegisterAtBarrier) {
            return;
        }
        if !cx.view.is_loaded() {
            return;
        }
        let view = &cx.view;
        self.withdrawn.retain(|(barrier, item)| view.registered(*barrier).contains(item));
        if self.withdrawn.is_empty() || !out.may_commit(cx, Purpose::RegisterAtBarrier) {
            return;
        }
        let transaction = self.withdrawal(cx);
        out.commit(Purpose::RegisterAtBarrier, transaction);
    }

    /// The steps that withdraw registrations that no instance will complete; as many as fit into a request.
    pub(crate) fn withdrawal(&self, cx: &Context) -> Transaction {
        let once = self;
        let mut withdrawn = once.withdrawn.clone();
        if let Some(round) = &once.round
            && let Some(barrier) = round.barrier()
            // Executed items stay registered as completed, unless no other instance is there to see it.
            && (barrier == Barrier::Started || cx.view.instances().len() <= 1)
        {
            withdrawn.extend(round.items.iter().map(|item| (barrier, *item)));
        }
        let mut size = 0;
        let registered =
            withdrawn.into_iter().filter(|(barrier, item)| cx.view.registered(*barrier).contains(item));
        registered
            .map(|(barrier, item)| Operation::delete(cx.identity.paths.guarantee_item(barrier, item)))
            .take_while(|step| {
                let fits = size < cx.transaction_bytes / 2;
                size += step.wire_size();
                fits
            })
            .collect()
    }
}

/// The planned executions that wait for the barrier: all but those of items that were taken over.
pub(crate) fn planned_items(agenda: &Agenda) -> impl Iterator<Item = (Item, Planned)> {
    agenda.plans().filter(|(_, planned)| !planned.is_first_of(Source::Failover))
}

pub(crate) fn skip_planned(cx: &Context, agenda: &mut Agenda, out: &mut Outbox, take_missed: bool) {
    let planned: Vec<_> = planned_items(agenda).collect();
    for (item, Planned { scheduled, .. }) in planned {
        agenda.withdraw(item);
        if take_missed {
            agenda.miss(cx, out, item, scheduled);
        } else {
            out.push(Effect::Skipped { item, scheduled });
        }
    }
}

/// Whether all items are registered at a barrier.
pub(crate) fn is_complete(cx: &Context, barrier: Barrier) -> bool {
    let registered = cx.view.registered(barrier);
    let here =
        |item: Item| registered.contains(&item) || cx.view.item(item).is_some_and(|view| view.disabled);
    !registered.is_empty() && cx.settings.as_ref().is_some_and(|settings| settings.items().all(here))
}

/// Whether this instance has to register an item as completed: it owns the item, and no execution of it is open or
/// planned.
fn has_ended_here(
    cx: &Context,
    ledger: &Ledger,
    executions: &Executions,
    retries: &Retries,
    agenda: &Agenda,
    round: &Round,
    item: Item,
) -> bool {
    // An item of another instance may still have to be executed; the ledger says so.
    let known = !cx.view.is_resharding() && ledger.is_ledger_read(cx);
    let ours = round.executed.contains(&item) || (known && cx.assigned.executable_item(item).is_some());
    let waits = agenda.is_planned(item) || retries.concerns(item);
    ours && !executions.is_busy(cx, agenda, item) && !waits
}

/// Removes a barrier with all its registrations; in one transaction, unless that is too large.
pub(crate) fn removal(cx: &Context, barrier: Barrier) -> Vec<Transaction> {
    let paths = &cx.identity.paths;
    let mut steps: Vec<_> = Vec::new();
    if barrier == Barrier::Started {
        // No item of this round was executed, so these registrations are left of earlier rounds, and would count for
        // this one.
        let stale = cx.view.registered(Barrier::Completed).iter();
        steps.extend(stale.map(|item| Operation::delete(paths.guarantee_item(Barrier::Completed, *item))));
    }
    let registered = cx.view.registered(barrier).iter();
    steps.extend(registered.map(|item| Operation::delete(paths.guarantee_item(barrier, *item))));
    if cx.view.has_folder(Folder::Barrier(barrier)) {
        steps.push(Operation::delete(paths.folder(Folder::Barrier(barrier))));
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
