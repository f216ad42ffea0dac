//! Missed fires, and the executions that make up for them (protocol 6.5; H8 to H10; P5).
//!
//! One execution makes up for all fires that an item has missed until it starts, as in ElasticJob. It is told for the
//! newest of them, and the ledger then says that everything up to that instant is settled. So an application may take
//! the instant for its idempotency key, and no later owner makes up for the same fires again.
//!
//! A fire that is missed while the item is busy is flagged in the registry, so that it survives us. The next fire that is missed
//! needs no second flag: it lies after the ledger's latest, where the owner of the item finds it.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};

use crate::coordination::job::agenda::Agenda;
use crate::coordination::job::contract::commit::Purpose;
use crate::coordination::job::contract::plan::{Planned, Source};
use crate::coordination::job::contract::records::LedgerNode;
use crate::coordination::job::execution::state::Executions;
use crate::coordination::job::firing::schedule::Fires;
use crate::coordination::job::frame::context::Context;
use crate::coordination::job::frame::outbox::Outbox;
use crate::coordination::job::frame::phase::Phase;
use crate::coordination::job::ledger::Ledger;
use crate::coordination::job::once::state::Guarantee;
use crate::coordination::job::ownership::handoff_release::Handoff;
use crate::coordination::job::rotation::Relay;
use crate::job::Item;
use crate::mutants::mutant;
use crate::tree::{NodeKind, Operation, Transaction};

/// How old a fire of an item that is to be handed over may be and still be left to its next owner, who executes it if it is
/// fresh: half of [`crate::coordination::job::frame::limits::MISFIRE_THRESHOLD`], so that there is time to hand over.
const LEFT_TO_NEXT: SignedDuration = SignedDuration::from_millis(500);

/// The flags of missed fires that are being written.
#[derive(Debug, Default)]
pub(in crate::coordination) struct Misfires {
    /// What the flagging in flight flags, and what it makes of the items' nodes in the ledger.
    flagging: BTreeMap<Item, Option<LedgerNode>>,
}

impl Misfires {
    /// Whether the item's flag is being written, and with it the ledger.
    pub(in crate::coordination) fn is_flagging(&self, item: Item) -> bool {
        self.flagging.contains_key(&item)
    }

    /// Plans to make up for missed fires of items that are free: flagged ones, by whomever, and those of ours that
    /// need no flag because they can start at once.
    #[expect(clippy::too_many_arguments, reason = "it names each room that it reads")]
    pub(in crate::coordination) fn plan_misfires(
        &self,
        cx: &Context,
        ledger: &Ledger,
        relay: &Relay,
        executions: &Executions,
        guarantee: &Guarantee,
        fires: &Fires,
        agenda: &mut Agenda,
    ) {
        if !cx.makes_up() || cx.phase != Phase::Active {
            return;
        }
        let missed = agenda.missed().keys();
        let candidates: BTreeSet<_> = cx.view.misfired().iter().chain(missed).copied().collect();
        for item in candidates {
            let free = !executions.is_busy(cx, agenda, item) && !agenda.is_planned(item);
            if free
                && !self.is_flagging(item)
                && cx.assigned.executable_item(item).is_some()
                && guarantee.may_make_up(cx, item)
            {
                let scheduled = newest_missed(cx, ledger, relay, executions, fires, agenda, item);
                agenda.plan(item, Planned::new(Source::Misfire, scheduled));
            }
        }
    }

    /// Flags missed fires of items that are not free, so that they survive us.
    pub(in crate::coordination) fn flag_misfires(
        &mut self,
        cx: &Context,
        ledger: &Ledger,
        executions: &Executions,
        agenda: &mut Agenda,
        out: &mut Outbox,
    ) {
        // The end of an execution passes the turn of a relay on, and a fire after that is the next owner's.
        let passes_on = cx.is_relay() && out.is_in_flight(Purpose::Complete);
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
        // After another division the ledger is somebody else's.
        let mut transaction: Transaction = cx.undivided().into_iter().collect();
        let mut flagging = BTreeMap::new();
        let mut size = 0;
        for (item, missed) in agenda.missed() {
            let planned = agenda.planned(*item);
            let made_up = planned.is_some_and(|planned| planned.is_first_of(Source::Misfire));
            // An execution that is being started writes the ledger itself.
            let ready = settled || ledger.is_in_ledger(cx, *item);
            if missed.is_flagged() || made_up || !ready || executions.is_starting(*item) {
                continue;
            }
            // Steps that do not fit go into the next transaction.
            if size >= cx.transaction_bytes {
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
    pub(in crate::coordination) fn flagged(&mut self, ledger: &mut Ledger) {
        for (item, entry) in std::mem::take(&mut self.flagging) {
            if let Some(entry) = entry {
                ledger.written(item, entry);
            }
        }
    }

    /// The flags were not written; they will be tried again.
    pub(in crate::coordination) fn flag_failed(&mut self, ledger: &mut Ledger) {
        self.flagging.clear();
        ledger.doubt();
    }
}

/// Whether an item, free for a fire that comes now, is known to have missed earlier ones: then what makes up for those
/// is for this one too. Otherwise an item that changes hands all the time could be executed for the newest fire by each
/// of its owners, and never for what it has missed.
pub(in crate::coordination) fn owes(
    cx: &Context,
    guarantee: &Guarantee,
    agenda: &Agenda,
    item: Item,
) -> bool {
    let missed = cx.view.misfired().contains(&item) || agenda.newest_missed(item).is_some();
    missed && cx.makes_up() && guarantee.may_make_up(cx, item)
}

/// Notes what items miss that are ours and cannot be executed, whatever the rest waits for: those that are busy while the
/// job is to be divided, or to be handed over. Their next owner may come after the fire, and would not know of it.
pub(in crate::coordination) fn miss_unavailable(
    cx: &Context,
    ledger: &Ledger,
    executions: &Executions,
    handoff: &Handoff,
    fires: &Fires,
    agenda: &mut Agenda,
    out: &mut Outbox,
) {
    let now = cx.now;
    let Some(newest) = fires.latest().filter(|_| cx.makes_up() && !cx.is_relay()) else {
        return;
    };
    let old = now.wall.duration_since(newest) > LEFT_TO_NEXT;
    let revoked = handoff.revoked_items().filter(|_| old);
    // Without a fire that waits, all is divided.
    let busy = executions.busy_items().filter(|_| fires.is_due());
    let unavailable: BTreeSet<_> = busy.chain(revoked).collect();
    for item in unavailable {
        let may_start = executions.is_starting(item)
            || (agenda.is_planned(item) && cx.assigned.executable_item(item).is_some());
        let known = agenda.has_missed(item, newest);
        let open = ledger.owed_after(cx, item, now.wall).is_some_and(|settled| settled < newest);
        if open && !may_start && !known && ledger.is_in_ledger(cx, item) && !mutant!(UnavailableNotMissed) {
            agenda.miss(cx, out, item, newest);
        }
    }
}

/// What is about to start, if it makes up for missed fires: for all of them until now. Also a fire that was noted as
/// missed since it was planned, because the item was to be somebody else's for a moment.
#[expect(clippy::too_many_arguments, reason = "it names each room that it reads")]
pub(in crate::coordination) fn made_up(
    cx: &Context,
    ledger: &Ledger,
    relay: &Relay,
    executions: &Executions,
    fires: &Fires,
    agenda: &mut Agenda,
    item: Item,
    planned: Planned,
) -> Planned {
    let newest = agenda.newest_missed(item);
    let noted = planned.is_first_of(Source::Schedule) && newest == Some(planned.scheduled);
    if !planned.is_first_of(Source::Misfire) && !noted {
        return planned;
    }
    let scheduled = newest_missed(cx, ledger, relay, executions, fires, agenda, item).max(planned.scheduled);
    agenda.make_up(item);
    Planned::new(Source::Misfire, scheduled)
}

/// The newest fire that an item has missed: the newest that has come, unless the ledger says that it was started;
/// then what was noted when it was missed. Java peers flag and note nothing; if all that has come was started, or
/// there is no ledger, it is the present, as for a trigger: no instant of an execution that there was.
fn newest_missed(
    cx: &Context,
    ledger: &Ledger,
    relay: &Relay,
    executions: &Executions,
    fires: &Fires,
    agenda: &Agenda,
    item: Item,
) -> Timestamp {
    let now = cx.now;
    let settled = ledger.owed_after(cx, item, now.wall);
    let is_open = |newest: &Timestamp| {
        let open = settled.is_some_and(|settled| settled < *newest) && !mutant!(MadeUpForFlaggedOnly);
        open && !relay.came_before_turn(cx, *newest)
    };
    let noted = agenda.newest_missed(item);
    let noted = noted.max(ledger.flagged_for(item));
    let newest = fires.newest().filter(is_open).max(noted);
    newest.unwrap_or_else(|| fires.present_of(cx, ledger, executions, item))
}

/// Compares what was missed with the flags. What is not ours any more is its owner's concern; what was flagged, and is
/// not any more, has been made up for.
fn follow_flags(cx: &Context, ledger: &Ledger, executions: &Executions, agenda: &mut Agenda) {
    let (cx, executions, ledger) = (cx, executions, ledger);
    agenda.keep_missed(|item, missed| {
        let is_starting = executions.is_starting(*item) && !mutant!(FlagOfStartingFollowed);
        let over = missed.follow_flag(cx.view.misfired().contains(item), is_starting);
        (cx.assigned.executable_item(*item).is_some() || ledger.is_in_ledger(cx, *item)) && !over
    });
}
