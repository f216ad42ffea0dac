//! Has somebody asked us to fire now? (protocol 6.6; H18)
//!
//! The request is a node of ours; it is deleted by the transaction that starts the items, so it is neither lost nor
//! obeyed twice. Items that are being executed are made up for when they are free, like at a fire, where Java peers
//! drop the whole request.


use crate::job::Item;
use crate::tree::Operation;

use crate::coordination::job::contract::commit::Purpose;
use crate::coordination::job::contract::plan::Planned;
use crate::coordination::job::contract::plan::Source;
use crate::coordination::job::frame::phase::Phase;
use crate::coordination::job::participant::Participant;

/// The request to fire, as far as it was dealt with.
#[derive(Debug, Default)]
pub(in crate::coordination) struct Trigger {
    /// The items were planned; only the request itself is still to be deleted.
    planned: bool,
}

impl Participant {
    /// Plans what a trigger asks for.
    pub(in crate::coordination) fn obey_trigger(&mut self) {
        if !self.cx.view.triggers().contains(&self.cx.identity.instance) {
            self.trigger.planned = false;
            return;
        }
        let ready = self.cx.assigned.attached && self.cx.is_registered() && self.cx.phase == Phase::Active;
        let has_items = self.cx.assigned.executable().next().is_some();
        if !ready || self.cx.view.is_resharding() || (has_items && !self.ledger.is_ledger_read(&self.cx)) {
            return;
        }
        if !has_items && self.is_to_be_divided() {
            return; // What the division gives us is what was meant.
        }
        if !std::mem::replace(&mut self.trigger.planned, true) {
            let items: Vec<_> = match self.cx.is_continuous() {
                true => Vec::new(),
                false => self.cx.assigned.executable().map(|assigned| assigned.item).collect(),
            };
            for item in items {
                let scheduled = self.fires.present_of(&self.cx, &self.ledger, &self.executions, item);
                if self.executions.is_busy(&self.cx, &self.awaited, item) || self.guarantee.is_round_open() {
                    self.executions.suspect(&self.cx, item);
                    self.agenda.miss(&self.cx, &mut self.out, item, scheduled);
                } else {
                    let planned = Planned::new(Source::Trigger, scheduled);
                    self.agenda.plan_if_free(item, planned);
                }
            }
        }
        let taken_along = |planned: &Planned| planned.is_first_of(Source::Trigger);
        let starts = self.agenda.plans().any(|(_, planned)| taken_along(&planned)) || self.executions.starts(taken_along);
        if !starts && self.out.may_commit(&self.cx, Purpose::TakeTrigger) {
            // There is nothing to execute: the request is fulfilled.
            let trigger = self.cx.identity.paths.trigger(&self.cx.identity.instance);
            self.out.commit(Purpose::TakeTrigger, vec![Operation::delete(trigger)]);
        }
    }

    /// Whether a division is still to come though nobody has flagged it: some item has never been given to anybody.
    fn is_to_be_divided(&self) -> bool {
        let owner = |item: Item| self.cx.view.item(item).and_then(|view| view.owner.as_ref());
        let items = self.cx.settings.iter().flat_map(|settings| settings.items());
        self.cx.is_enabled() && items.map(owner).any(|owner| owner.is_none())
    }
}
