//! Missed fires, and their re-runs, in a job with `misfire` (protocol 6.5; H8 to H10; P5).
//!
//! One execution re-runs all fires that an item has missed until it starts, as in ElasticJob. The application gets the
//! instant of the newest of them, and the ledger then says that all fires up to that instant are settled. So an
//! application may use the instant as its idempotency key, and no later owner re-runs the same fires.
//!
//! An item is busy while an execution of it is open, its running node exists, or a failover of it is awaited;
//! `fire.rs` counts a fire of a busy item as missed. A next owner finds missed fires in the ledger, also without a
//! flag (`catch_up.rs`).
//!
//! A fire that is missed while the item is busy is flagged in the registry, as in ElasticJob, so that it outlives
//! this instance. The next missed fire needs no second flag: it lies after the ledger's latest, where the owner of
//! the item finds it. A sidecar re-runs a missed fire as soon as the item is free, and only that item, where Java
//! peers wait for the next fire and run all items. A fire that finds the flag of an earlier one is re-run together
//! with it; otherwise an item that changes hands all the time would never catch up. A fire that is noticed more than
//! a second late counts as missed.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};

use crate::coordination::job::agenda::Agenda;
use crate::coordination::job::contract::commit::Purpose;
use crate::coordination::job::contract::plan::{Planned, Source};
use crate::coordination::job::execution::Executions;
use crate::coordination::job::firing::schedule::Fires;
use crate::coordination::job::frame::context::Context;
use crate::coordination::job::frame::outbox::Outbox;
use crate::coordination::job::frame::phase::Phase;
use crate::coordination::job::ledger::Ledger;
use crate::coordination::job::once::Once;
use crate::coordination::job::ownership::Ownership;
use crate::coordination::job::rotation::Rotation;
use crate::extension::ledger_entry::LedgerNode;
use crate::job::Item;
use crate::mutants::mutant;
use crate::tree::{NodeKind, Operation, Transaction};

/// How old a fire of an item that is handed over may be and still be left to its next owner, who executes it if it is
/// fresh: half of [`crate::coordination::job::frame::limits::MISFIRE_THRESHOLD`], so that there is time for the
/// handover.
const LEFT_TO_NEXT: SignedDuration = SignedDuration::from_millis(500);

/// The flags of missed fires that are being written.
#[derive(Debug, Default)]
pub(crate) struct Misfires {
    /// The items that the transaction in flight flags, and their entries in the ledger after it.
    flagging: BTreeMap<Item, Option<LedgerNode>>,
}

impl Misfires {
    /// Whether the item's flag is being written, and its ledger entry with it.
    pub(crate) fn is_flagging(&self, item: Item) -> bool {
        self.flagging.contains_key(&item)
    }

    /// Plans misfire re-runs of free items: of flagged ones, whatever instance has flagged them, and of this instance's
    /// items that need no flag because they can start at once.
    #[expect(clippy::too_many_arguments, reason = "it names each room that it reads")]
    pub(crate) fn plan_misfires(
        &self,
        cx: &Context,
        ledger: &Ledger,
        rotation: &Rotation,
        executions: &Executions,
        once: &Once,
        fires: &Fires,
        agenda: &mut Agenda,
    ) {
        if !cx.reruns_missed() || cx.phase != Phase::Active {
            return;
        }
        let missed = agenda.missed().keys();
        let candidates: BTreeSet<_> = cx.view.misfired().iter().chain(missed).copied().collect();
        for item in candidates {
            let free = !executions.is_busy(cx, agenda, item) && !agenda.is_planned(item);
            if free
                && !self.is_flagging(item)
                && cx.assigned.executable_item(item).is_some()
                && once.may_rerun(cx, item)
            {
                let scheduled = newest_missed(cx, ledger, rotation, executions, fires, agenda, item);
                agenda.plan(item, Planned::new(Source::Misfire, scheduled));
            }
        }
    }

    /// Flags the missed fires of busy items, so that they outlive this instance.
    pub(crate) fn flag_misfires(
        &mut self,
        cx: &Context,
        ledger: &Ledger,
        executions: &Executions,
        agenda: &mut Agenda,
        out: &mut Outbox,
    ) {
        // The end of an execution passes the turn of a rotation on; the next server executes a fire after that.
        let passes_on = cx.rotates() && out.is_in_flight(Purpose::Complete);
        if agenda.missed().is_empty()
            || passes_on
            || !cx.is_registered()
            || !out.may_commit(cx, Purpose::FlagMisfire)
        {
            return;
        }
        follow_flags(cx, ledger, executions, agenda);
        let paths = &cx.identity.paths;
        let settled = !cx.view.is_resharding() && ledger.is_ledger_read(cx);
        // After another resharding another instance writes the ledger.
        let mut transaction: Transaction = cx.not_resharded().into_iter().collect();
        let mut flagging = BTreeMap::new();
        let mut size = 0;
        for (item, missed) in agenda.missed() {
            let planned = agenda.planned(*item);
            let rerun_for_missed = planned.is_some_and(|planned| planned.is_first_of(Source::Misfire));
            // An execution that is being started writes the ledger itself.
            let ready = settled || ledger.is_in_ledger(cx, *item);
            if missed.is_flagged() || rerun_for_missed || !ready || executions.is_starting(*item) {
                continue;
            }
            // Steps that do not fit go into the next transaction.
            if size >= cx.fire_bytes() {
                break;
            }
            let flag = Operation::create(paths.item_misfire(*item), NodeKind::Persistent, "");
            let (step, entry) = ledger.ledger_flag(cx, *item, missed.newest()).unzip();
            let steps = std::iter::once(flag).chain(step);
            transaction.extend(steps.inspect(|step| size += step.wire_size()));
            flagging.insert(*item, entry);
        }
        if flagging.is_empty() {
            return;
        }
        self.flagging = flagging;
        out.commit(Purpose::FlagMisfire, transaction);
    }

    /// The flags are in the registry.
    pub(crate) fn flagged(&mut self, ledger: &mut Ledger) {
        for (item, entry) in std::mem::take(&mut self.flagging) {
            if let Some(entry) = entry {
                ledger.written(item, entry);
            }
        }
    }

    /// The flags were not written; they are written again later.
    pub(crate) fn flag_failed(&mut self, ledger: &mut Ledger) {
        self.flagging.clear();
        ledger.doubt();
    }
}

/// Whether an item, free for a fire that comes now, has missed earlier fires: then their re-run is for this fire too.
/// Otherwise each owner of an item that changes hands all the time could execute it for the newest fire, and never for
/// the missed ones.
pub(crate) fn has_unsettled(cx: &Context, once: &Once, agenda: &Agenda, item: Item) -> bool {
    let missed = cx.view.misfired().contains(&item) || agenda.newest_missed(item).is_some();
    missed && cx.reruns_missed() && once.may_rerun(cx, item)
}

/// Records the missed fires of items that this instance owns and cannot execute: items that are busy while a resharding
/// or a handoff is due. Their next owner may register after the fire, and would not know of it.
pub(crate) fn miss_unavailable(
    cx: &Context,
    ledger: &Ledger,
    executions: &Executions,
    ownership: &Ownership,
    fires: &Fires,
    agenda: &mut Agenda,
    out: &mut Outbox,
) {
    let now = cx.now;
    let Some(newest) = fires.latest().filter(|_| cx.reruns_missed() && !cx.rotates()) else {
        return;
    };
    let old = now.wall.duration_since(newest) > LEFT_TO_NEXT;
    let revoked = ownership.revoked_items().filter(|_| old);
    // Without a waiting fire, all fires were dispatched.
    let busy = executions.busy_items().filter(|_| fires.is_due());
    let unavailable: BTreeSet<_> = busy.chain(revoked).collect();
    for item in unavailable {
        let may_start = executions.is_starting(item)
            || (agenda.is_planned(item) && cx.assigned.executable_item(item).is_some());
        let known = agenda.has_missed(item, newest);
        let open = ledger.unsettled_after(cx, item, now.wall).is_some_and(|settled| settled < newest);
        if open && !may_start && !known && ledger.is_in_ledger(cx, item) && !mutant!(UnavailableNotMissed) {
            agenda.miss(cx, out, item, newest);
        }
    }
}

/// The planned execution as a re-run of all missed fires until now, if it re-runs missed fires. Also if its own fire
/// was recorded as missed after it was planned, because another instance was to own the item for a moment.
#[expect(clippy::too_many_arguments, reason = "it names each room that it reads")]
pub(crate) fn rerun_for_missed(
    cx: &Context,
    ledger: &Ledger,
    rotation: &Rotation,
    executions: &Executions,
    fires: &Fires,
    agenda: &mut Agenda,
    item: Item,
    planned: Planned,
) -> Planned {
    let newest = agenda.newest_missed(item);
    let recorded = planned.is_first_of(Source::Schedule) && newest == Some(planned.scheduled);
    if !planned.is_first_of(Source::Misfire) && !recorded {
        return planned;
    }
    let scheduled =
        newest_missed(cx, ledger, rotation, executions, fires, agenda, item).max(planned.scheduled);
    agenda.take_missed(item);
    Planned::new(Source::Misfire, scheduled)
}

/// The newest fire that an item has missed: the newest that has come, unless the ledger says that it was started; then
/// the recorded one. Java peers flag a fire without an instant. If all fires were started, or there is no ledger, it is
/// the present, as for a trigger: an instant that no execution had.
fn newest_missed(
    cx: &Context,
    ledger: &Ledger,
    rotation: &Rotation,
    executions: &Executions,
    fires: &Fires,
    agenda: &Agenda,
    item: Item,
) -> Timestamp {
    let now = cx.now;
    let settled = ledger.unsettled_after(cx, item, now.wall);
    let is_open = |newest: &Timestamp| {
        let open = settled.is_some_and(|settled| settled < *newest) && !mutant!(RerunForFlaggedOnly);
        open && !rotation.came_before_turn(cx, *newest)
    };
    let recorded = agenda.newest_missed(item);
    let recorded = recorded.max(ledger.flagged_for(item));
    let newest = fires.newest().filter(is_open).max(recorded);
    newest.unwrap_or_else(|| fires.present_of(cx, ledger, executions, item))
}

/// Compares the missed fires with the flags. Only the owner of an item keeps its missed fires; a flag that was seen and
/// is deleted means that the fires were re-run.
fn follow_flags(cx: &Context, ledger: &Ledger, executions: &Executions, agenda: &mut Agenda) {
    let (cx, executions, ledger) = (cx, executions, ledger);
    agenda.keep_missed(|item, missed| {
        let is_starting = executions.is_starting(*item) && !mutant!(FlagOfStartingFollowed);
        let over = missed.follow_flag(cx.view.misfired().contains(item), is_starting);
        (cx.assigned.executable_item(*item).is_some() || ledger.is_in_ledger(cx, *item)) && !over
    });
}
