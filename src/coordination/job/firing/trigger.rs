//! Did an operator trigger this instance? (protocol 6.6; H18)
//!
//! The trigger is a node with this instance's id. The transaction that starts the items deletes it, so a trigger is
//! neither lost nor applied twice. Busy items run when they are free, as after a fire, where Java peers drop the whole
//! trigger.

use crate::coordination::job::agenda::Agenda;
use crate::coordination::job::contract::commit::Purpose;
use crate::coordination::job::contract::plan::{Planned, Source};
use crate::coordination::job::execution::Executions;
use crate::coordination::job::firing::schedule::{Fires, INSTANTS_APART};
use crate::coordination::job::frame::context::Context;
use crate::coordination::job::frame::outbox::Outbox;
use crate::coordination::job::frame::phase::Phase;
use crate::coordination::job::item_lock::ItemLocks;
use crate::coordination::job::ledger::Ledger;
use crate::coordination::job::once::Once;
use crate::job::Item;
use crate::tree::Operation;

/// The trigger, as far as it was applied.
#[derive(Debug, Default)]
pub(crate) struct Trigger {
    /// The items were planned; only the node is still to be deleted.
    planned: bool,
}

impl Trigger {
    /// Plans the executions that a trigger asks for.
    #[expect(clippy::too_many_arguments, reason = "it names each room that it reads")]
    pub(crate) fn apply_trigger(
        &mut self,
        cx: &Context,
        ledger: &Ledger,
        executions: &mut Executions,
        locks: &ItemLocks,
        once: &Once,
        fires: &Fires,
        agenda: &mut Agenda,
        out: &mut Outbox,
    ) {
        if !cx.view.triggers().contains(&cx.identity.instance) {
            self.planned = false;
            return;
        }
        let ready = cx.assigned.attached && cx.is_registered() && cx.phase == Phase::Active;
        let has_items = cx.assigned.executable().next().is_some();
        if !ready || cx.view.is_resharding() || (has_items && !ledger.is_ledger_read(cx)) {
            return;
        }
        if !has_items && is_to_be_resharded(cx) {
            return; // The trigger is meant for the items that the resharding will bring.
        }
        if !std::mem::replace(&mut self.planned, true) {
            let items: Vec<_> = match cx.is_continuous() {
                true => Vec::new(),
                false => cx.assigned.executable().map(|assigned| assigned.item).collect(),
            };
            for item in items {
                let scheduled = fires.present_of(cx, ledger, executions, item);
                let is_busy = executions.is_busy(cx, agenda, item) || locks.concerns_planned(item);
                // An execution for the item's own trigger does not stand for this one, which has a later instant.
                let taken = agenda.planned(item).filter(|planned| planned.item_trigger.is_some());
                let after = taken.and_then(|taken| taken.scheduled.checked_add(INSTANTS_APART).ok());
                let scheduled = after.map_or(scheduled, |after| after.max(scheduled));
                if is_busy || taken.is_some() || once.is_round_open() {
                    executions.suspect(cx, item);
                    agenda.miss(cx, out, item, scheduled);
                } else {
                    let planned = Planned::new(Source::Trigger, scheduled);
                    agenda.plan_if_free(item, planned);
                }
            }
        }
        let taken_along = |planned: &Planned| planned.is_for_instance_trigger();
        let starts =
            agenda.plans().any(|(_, planned)| taken_along(&planned)) || executions.starts(taken_along);
        if !starts && out.may_commit(cx, Purpose::TakeTrigger) {
            // There is nothing to execute: only the trigger is deleted.
            let trigger = cx.identity.paths.trigger(&cx.identity.instance);
            out.commit(Purpose::TakeTrigger, vec![Operation::delete(trigger)]);
        }
    }
}

/// Whether a resharding is to come though it was not flagged: some item never had an owner.
fn is_to_be_resharded(cx: &Context) -> bool {
    let owner = |item: Item| cx.view.item(item).and_then(|view| view.owner.as_ref());
    let items = cx.settings.iter().flat_map(|settings| settings.items());
    cx.is_enabled() && items.map(owner).any(|owner| owner.is_none())
}
