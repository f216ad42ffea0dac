//! Which executions of a former process of this sidecar go on? (P3, P6.)
//!
//! Running nodes say which items the former process executed, and the application says which executions it has open.
//! Only an execution that both know goes on. Until the application has reported its open executions, each of these
//! items is held: no execution of it can start.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use crate::coordination::job::contract::event::{CancelReason, Execute};
use crate::coordination::job::contract::plan::{Planned, Source};
use crate::coordination::job::contract::reattach::OpenExecution;
use crate::coordination::job::execution::limit::Limit;
use crate::coordination::job::execution::{Executions, item_of};
use crate::coordination::job::frame::context::Context;
use crate::coordination::job::rotation::{Rotation, Turn};
use crate::coordination::time::Now;
use crate::elasticjob::task_id;
use crate::job::Item;

impl Executions {
    /// Holds an item that the former process executed, until the application reports its open executions.
    pub(crate) fn hold(&mut self, item: Item, now: Now) {
        self.open(item, Planned::new(Source::Schedule, now.wall), None);
    }

    pub(crate) fn held(&self) -> Vec<Item> {
        self.open.iter().filter(|(_, open)| open.sent.is_none()).map(|(item, _)| *item).collect()
    }

    /// The application does not execute the held item.
    pub(crate) fn drop_held(&mut self, item: Item) {
        if let Some(held) = self.open.remove(&item) {
            self.by_number.remove(&held.number);
            self.deadlines.forget(held.number, held.limit);
        }
    }

    /// Goes on with an execution that the application reports as open, if its item is held, and its running node is the
    /// same.
    ///
    /// `instants`: the instant of each item's latest start in the ledger.
    pub(crate) fn restore(
        &mut self,
        cx: &Context,
        rotation: &Rotation,
        claimed: OpenExecution,
        instants: &BTreeMap<Item, Timestamp>,
    ) {
        let now = cx.now;
        let Some(item) = item_of(&claimed.execution_id) else { return };
        let Some(settings) = cx.settings.clone() else { return };
        let held = self.open.get(&item).is_some_and(|open| open.sent.is_none());
        let running = cx.view.item(item).and_then(|view| view.running.as_ref());
        let seen = running.map(|running| running.seen);
        let same = running.is_some_and(|running| {
            running.token == Some(claimed.token) && running.owner.as_ref() == Some(&cx.identity.instance)
        });
        let lost = matches!(claimed.cancelled, Some(CancelReason::LeaseLost | CancelReason::ItemLockLost));
        if !held || !same || lost || !is_still_ours(cx, rotation, item) {
            return;
        }
        let inferred = if cx.has_taken(item) { Source::Failover } else { Source::Schedule };
        let source = claimed.source.unwrap_or(inferred);
        let scheduled = claimed.scheduled.or_else(|| instants.get(&item).copied()).unwrap_or(now.wall);
        let planned = Planned { attempt: claimed.attempt, ..Planned::new(source, scheduled) };
        let has_cause = matches!(source, Source::Trigger | Source::Failover);
        let parameter = cx.fleet.begun_parameter(item, scheduled).filter(|_| has_cause);
        let timeout = settings.policy.timeout;
        let deadline =
            claimed.deadline.or_else(|| timeout.and_then(|timeout| now.wall.checked_add(timeout).ok()));
        let execute = Execute {
            execution_id: claimed.execution_id.clone(),
            item,
            parameter: settings.parameter(item).map(str::to_owned),
            configuration: settings.configuration_with(parameter.as_deref()),
            task_id: task_id::build(&cx.identity.job, &[item], &cx.identity.instance).into(),
            source,
            attempt: claimed.attempt,
            checkpoint: None,
            scheduled,
            fired: scheduled,
            deadline,
            token: claimed.token,
            lock_token: None,
            resumed: true,
            restored: true,
        };
        let remaining = deadline.map(|deadline| {
            // A deadline in the past has passed here as well. A deadline that is too far away was set by a wrong clock.
            let left = Duration::try_from(deadline.duration_since(now.wall)).unwrap_or_default();
            timeout.map_or(left, |timeout| left.min(timeout))
        });
        let at = |left: Duration| now.mono.saturating_add(left);
        let limit = match claimed.cancelled {
            Some(reason) => Limit::report_by(at(settings.policy.cancel_grace), reason),
            None => Limit::until(remaining.map(at)),
        };
        let Some(open) = self.open.get_mut(&item) else { return };
        open.planned = planned;
        open.taken_over = planned.is_first_of(Source::Failover);
        open.sent = Some(Arc::new(execute));
        // A running node that comes later, and whose owner is not known, is not this execution's.
        open.running_seen = seen;
        open.node = Some(claimed.token);
        if open.limit.cancelled().is_none() {
            self.deadlines.forget(open.number, open.limit);
            open.limit = limit;
            self.deadlines.watch(open.number, limit);
        }
        let number = open.number;
        self.call(number, claimed.execution_id);
        self.raise_token(item, claimed.token);
    }
}

/// Whether this instance may go on with an item that it owns. After an operator's stop other instances own the item
/// already, and wait for the end of the execution.
fn is_still_ours(cx: &Context, rotation: &Rotation, item: Item) -> bool {
    let owner = cx.view.item(item).and_then(|view| view.owner.as_ref());
    owner.is_some_and(|owner| owner.instance == cx.identity.instance)
        || !cx.is_registered()
        || cx.has_taken(item)
        || matches!(rotation.turn(cx), Turn::Ours(_))
}
