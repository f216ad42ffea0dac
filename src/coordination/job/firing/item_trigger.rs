//! Did an operator ask for one execution of an item, perhaps with a parameter of its own?
//!
//! The wish is a node for each item under Sidekeeper's own root, and belongs to no instance: the item's owner takes it up, whichever instance
//! that is by then. So a resharding, a handoff or a crash between the request and the execution loses nothing. The transaction that starts the
//! item marks the node as begun, at the version that was read: no other start has the same trigger, of this instance or of another one.
//!
//! A trigger waits while its item is busy. It comes before the re-run of missed fires, which would never leave the item free in a job that cannot
//! follow its schedule, and after a fire that is due.
//!
//! A begun trigger stays until its execution has ended with all its retries, or its failover has: both are for the same instant, and get the
//! parameter by it. Then the owner deletes the node. The leader deletes a trigger that waits for an item that the job has not any more, or
//! that has waited for a day: nobody expects it then.

use std::sync::Arc;

use jiff::SignedDuration;

use crate::coordination::job::agenda::Agenda;
use crate::coordination::job::contract::commit::Purpose;
use crate::coordination::job::contract::effect::Effect;
use crate::coordination::job::contract::plan::{Planned, Source};
use crate::coordination::job::execution::Executions;
use crate::coordination::job::execution::retry::Retries;
use crate::coordination::job::firing::schedule::{Fires, INSTANTS_APART};
use crate::coordination::job::frame::context::Context;
use crate::coordination::job::frame::outbox::Outbox;
use crate::coordination::job::frame::phase::Phase;
use crate::coordination::job::item_lock::ItemLocks;
use crate::coordination::job::ledger::Ledger;
use crate::coordination::job::picture::fleet_view::ItemTriggerView;
use crate::coordination::job::picture::nodes::stat_time;
use crate::extension::item_trigger::{Begun, ItemTrigger};
use crate::job::Item;
use crate::mutants::mutant;
use crate::tree::{Operation, Transaction};

/// How long a trigger may wait for its item.
const WAITS_MAX: SignedDuration = SignedDuration::from_hours(24);

/// The trigger for which an item of this instance is executed next. `None`: there is none, or the job's items are not executed one by one.
pub(super) fn next(cx: &Context, item: Item) -> Option<&ItemTriggerView> {
    let one_by_one = !cx.is_continuous() && cx.once_listener().is_none();
    cx.assigned.executable_item(item).filter(|_| one_by_one)?;
    cx.fleet.waiting_triggers(item).next()
}

/// Plans the executions for which items wait.
pub(super) fn plan(
    cx: &Context,
    ledger: &Ledger,
    executions: &mut Executions,
    locks: &ItemLocks,
    fires: &Fires,
    agenda: &mut Agenda,
) {
    let ready = cx.assigned.attached && cx.is_registered() && cx.phase == Phase::Active;
    if !cx.fleet.has_item_triggers() || !ready || cx.view.is_resharding() || !ledger.is_ledger_read(cx) {
        return;
    }
    let mut before = None;
    for (item, _) in cx.fleet.item_triggers() {
        if before.replace(item) == Some(item) || agenda.is_planned(item) {
            continue;
        }
        let Some(trigger) = next(cx, item) else { continue };
        if executions.is_busy(cx, agenda, item) || locks.concerns_planned(item) {
            executions.suspect(cx, item);
            continue;
        }
        // No two triggers of an item have the same instant, also if the clock was set back.
        let present = fires.present_of(cx, ledger, executions, item);
        let begun = cx.fleet.latest_begun(item).and_then(|begun| begun.checked_add(INSTANTS_APART).ok());
        let scheduled = begun.map_or(present, |begun| begun.max(present));
        agenda.plan(item, Planned::for_item_trigger(trigger.stat.created, scheduled));
    }
}

/// Whether an execution that is planned for a trigger of its item may begin: no instance has begun one, or a late request of this instance has
/// marked the trigger for it. `true` for each other execution.
pub(super) fn may_begin(cx: &Context, item: Item, planned: Planned) -> bool {
    let Some(created) = planned.item_trigger.filter(|_| !planned.is_retry()) else { return true };
    cx.fleet.item_trigger(item, created).is_some_and(|view| {
        let begun = view.trigger.begun.as_ref();
        begun.is_none_or(|begun| *begun == begun_by(cx, planned))
    })
}

/// Whether an execution that is planned for a trigger of its item goes on waiting for the item. It is no missed fire, and a late request of this
/// instance may have begun it.
pub(super) fn waits(
    cx: &Context,
    executions: &Executions,
    agenda: &Agenda,
    item: Item,
    planned: Planned,
) -> bool {
    let is_first = planned.item_trigger.is_some() && !planned.is_retry();
    let is_wanted = is_first && cx.assigned.executable_item(item).is_some() && may_begin(cx, item, planned);
    is_wanted && executions.is_busy(cx, agenda, item)
}

/// The step that marks the trigger of a planned execution, for the transaction of its start; and the parameter that takes the place of the job's
/// own.
pub(super) fn begin(cx: &Context, item: Item, planned: Planned) -> (Option<Operation>, Option<Arc<str>>) {
    let created = planned.item_trigger.filter(|_| !planned.is_retry());
    let Some(view) = created.and_then(|created| cx.fleet.item_trigger(item, created)) else {
        let goes_on = goes_on(planned) && !mutant!(ItemTriggerParameterForgotten);
        let scheduled = Some(planned.scheduled).filter(|_| goes_on);
        return (None, scheduled.and_then(|scheduled| cx.fleet.begun_parameter(item, scheduled)));
    };
    let parameter = view.trigger.parameter.clone();
    let marked = ItemTrigger { begun: Some(begun_by(cx, planned)), parameter: parameter.clone() };
    let path = cx.identity.own_paths.fleet().trigger(&view.request, item);
    let mark =
        Operation::Set { path, data: marked.write().as_bytes().into(), version: Some(view.stat.version) };
    let marks = view.trigger.begun.is_none() && !mutant!(ItemTriggerUnmarked);
    (Some(mark).filter(|_| marks), parameter)
}

/// Whether an execution is for the instant of an earlier one, which may have begun for a trigger.
fn goes_on(planned: Planned) -> bool {
    match planned.source {
        Source::Failover => true,
        Source::Trigger => planned.is_retry(),
        Source::Schedule | Source::Misfire => false,
    }
}

fn begun_by(cx: &Context, planned: Planned) -> Begun {
    Begun { scheduled: planned.scheduled, instance: cx.identity.instance.clone() }
}

/// Deletes the triggers whose executions have ended, and those that nobody takes up any more.
pub(super) fn end(
    cx: &Context,
    executions: &Executions,
    retries: &Retries,
    agenda: &Agenda,
    out: &mut Outbox,
) {
    if !cx.fleet.has_item_triggers() || !cx.is_registered() || cx.phase != Phase::Active {
        return;
    }
    if cx.view.is_resharding() || !out.may_commit(cx, Purpose::TakeTrigger) {
        return;
    }
    let (mut transaction, mut size) = (Transaction::new(), 0);
    for (item, view) in cx.fleet.item_triggers() {
        let waits = view.trigger.begun.is_none();
        let is_over = match &view.trigger.begun {
            Some(begun) => has_ended(cx, executions, retries, agenda, item, begun),
            None => is_given_up(cx, item, view),
        };
        if !is_over {
            continue;
        }
        if size >= cx.fire_bytes() {
            break;
        }
        let path = cx.identity.own_paths.fleet().trigger(&view.request, item);
        let delete = Operation::Delete { path, version: Some(view.stat.version) };
        size += delete.wire_size();
        transaction.push(delete);
        if let Some(scheduled) = stat_time(view.stat).filter(|_| waits) {
            out.push(Effect::Skipped { item, scheduled });
        }
    }
    if !transaction.is_empty() {
        out.commit(Purpose::TakeTrigger, transaction);
    }
}

/// Whether a trigger that waits is not taken up any more.
fn is_given_up(cx: &Context, item: Item, view: &ItemTriggerView) -> bool {
    let is_old = stat_time(view.stat).is_some_and(|since| cx.now.wall.duration_since(since) > WAITS_MAX);
    cx.is_leader() && (is_old || is_removed(cx, item))
}

/// Whether the execution for a trigger has ended, and neither a retry nor a failover of it comes.
fn has_ended(
    cx: &Context,
    executions: &Executions,
    retries: &Retries,
    agenda: &Agenda,
    item: Item,
    begun: &Begun,
) -> bool {
    let owner = cx.view.item(item).and_then(|view| view.owner.as_ref());
    let is_ours = owner.is_some_and(|owner| owner.instance == cx.identity.instance);
    let is_it = |planned: Planned| {
        let may_be = matches!(planned.source, Source::Trigger | Source::Failover);
        may_be && planned.scheduled == begun.scheduled
    };
    // An item of a job that cannot follow its schedule is never free.
    let ours = executions.get(item).map(|open| open.planned()).or_else(|| executions.starting_of(item));
    let executes = ours.map_or_else(|| cx.view.running().contains(&item), is_it);
    let goes_on = executes
        || cx.waits_for_failover(item)
        || agenda.awaited().comes_first(item, cx.now.mono)
        || retries.concerns(item)
        || agenda.planned(item).is_some_and(is_it);
    (!goes_on || mutant!(ItemTriggerEndedEarly)) && (is_ours || (cx.is_leader() && is_removed(cx, item)))
}

/// Whether the job has the item no more.
fn is_removed(cx: &Context, item: Item) -> bool {
    cx.settings.is_some() && !cx.has_item(item)
}
