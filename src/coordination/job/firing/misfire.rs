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
//!
//! A fleet that cannot follow its schedule would write a flag for each item that is busy at its next fire, which costs
//! as much as an execution. So several items that miss a fire get one *witness* in the ledger. It tells a next owner
//! what a flag would tell, if all instances are sidecars that read it. An item that is still not re-run a while later
//! gets a flag, too.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};

use crate::coordination::job::agenda::Agenda;
use crate::coordination::job::contract::commit::Purpose;
use crate::coordination::job::contract::plan::{Planned, Source};
use crate::coordination::job::execution::Executions;
use crate::coordination::job::firing::item_trigger;
use crate::coordination::job::firing::schedule::Fires;
use crate::coordination::job::frame::context::Context;
use crate::coordination::job::frame::outbox::Outbox;
use crate::coordination::job::frame::phase::Phase;
use crate::coordination::job::ledger::Ledger;
use crate::coordination::job::once::Once;
use crate::coordination::job::ownership::Ownership;
use crate::coordination::job::picture::schedule::latest_before;
use crate::coordination::job::rotation::Rotation;
use crate::extension::ledger_entry::LedgerNode;
use crate::job::{InstanceId, Item};
use crate::mutants::mutant;
use crate::tree::{CommitError, Error, NodeKind, Operation, Transaction};

/// How old a fire of an item that is handed over may be and still be left to its next owner, who executes it if it is
/// fresh: half of [`crate::coordination::job::frame::limits::MISFIRE_THRESHOLD`], so that there is time for the
/// handover.
const LEFT_TO_NEXT: SignedDuration = SignedDuration::from_millis(500);

/// How many items have to miss fires for a witness. One flag costs no more than a witness.
const WITNESS_FROM: usize = 2;

/// How long a witness replaces the flag of an item: longer than an item waits for its turn in a job that cannot follow
/// its schedule.
const WITNESS_SUFFICES: SignedDuration = SignedDuration::from_secs(10);

/// The records of missed fires that are being written.
#[derive(Debug, Default)]
pub(crate) struct Misfires {
    /// The items that the transaction in flight flags, and their entries in the ledger after it.
    flagging: BTreeMap<Item, Option<LedgerNode>>,
    /// The fire whose witness the transaction in flight creates.
    witnessing: Option<Timestamp>,
    /// When the first witness does not suffice any more.
    next_flag: Option<Timestamp>,
    /// The state in which all missed fires were written down: a job that cannot follow its schedule has thousands, and
    /// goes through them only when something has changed.
    written: Option<Seen>,
}

/// All on which it depends how missed fires have to be written down, except for time: a start that changes it is
/// planned together with the missed fire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Seen {
    misses: u64,
    flags: u64,
    membership: u64,
    fleet: u64,
    ledger: Option<u64>,
}

impl Seen {
    fn of(cx: &Context, ledger: &Ledger, agenda: &Agenda) -> Self {
        Self {
            misses: agenda.misses(),
            flags: cx.view.misfired_revision(),
            membership: cx.view.membership_revision(),
            fleet: cx.fleet.revision(),
            ledger: ledger.is_ledger_read(cx).then(|| ledger.reads()),
        }
    }
}

/// The missed fires that no flag tells of.
struct Unwritten {
    /// Items for which a witness suffices, with their first missed fires.
    young: Vec<(Item, Timestamp)>,
    /// The others.
    items: BTreeSet<Item>,
}

impl Unwritten {
    fn of(cx: &Context, ledger: &Ledger, executions: &Executions, agenda: &Agenda) -> Self {
        let reads_witnesses = reads_witnesses(cx);
        // Busy items miss a trigger, too. Its instant is in no entry as one up to which nothing was missed.
        let schedule = cx.settings.as_ref().and_then(|settings| settings.schedule.as_ref());
        let is_fire =
            |at: Timestamp| schedule.is_some_and(|schedule| latest_before(schedule, at) == Some(at));
        let mut fires = BTreeMap::new();
        // A witness tells the next owner of an item only if the item's entry ends before the missed fire, and no start
        // of a later fire changes that.
        let mut suffices = |item: Item, first: Timestamp| {
            let young = reads_witnesses && cx.now.wall.duration_since(first) < WITNESS_SUFFICES;
            let young = young && *fires.entry(first).or_insert_with(|| is_fire(first));
            let entry = young && ledger.is_in_ledger(cx, item);
            let settled = ledger.settled(cx, item, cx.now.wall).filter(|_| entry);
            let mut starts = agenda.planned(item).into_iter().chain(executions.starting_of(item));
            let overtakes = |start: Planned| start.source == Source::Schedule && start.scheduled > first;
            settled.is_some_and(|settled| settled < first) && !starts.any(overtakes)
        };
        let open = agenda.missed().iter().filter(|(_, missed)| !missed.is_flagged());
        let (young, old): (Vec<_>, Vec<_>) = open
            .map(|(item, missed)| (*item, missed.first()))
            .partition(|(item, first)| suffices(*item, *first));
        Self { young, items: old.into_iter().map(|(item, _)| item).collect() }
    }
}

impl Misfires {
    /// When an item that has no flag needs one.
    pub(crate) fn next_flag(&self) -> Option<Timestamp> {
        self.next_flag
    }

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
        let missed = agenda.missed_without_plan();
        let candidates: BTreeSet<_> = cx.view.misfired().iter().copied().chain(missed).collect();
        for item in candidates {
            let free = !executions.is_busy(cx, agenda, item) && !agenda.is_planned(item);
            if free
                && !self.is_flagging(item)
                && cx.assigned.executable_item(item).is_some()
                && once.may_rerun(cx, item)
                && item_trigger::next(cx, item).is_none()
            {
                let scheduled = newest_missed(cx, ledger, rotation, executions, fires, agenda, item);
                agenda.plan(item, Planned::new(Source::Misfire, scheduled));
            }
        }
    }

    /// Writes down the missed fires of busy items, so that they outlive this instance: by a witness or by flags.
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
        if agenda.missed().is_empty() {
            self.next_flag = None;
            return;
        }
        if passes_on || !cx.is_registered() || !out.may_commit(cx, Purpose::FlagMisfire) {
            return;
        }
        let seen = Seen::of(cx, ledger, agenda);
        let due = self.next_flag.is_some_and(|at| at <= cx.now.wall);
        if self.written == Some(seen) && !due {
            return;
        }
        self.written = None;
        follow_flags(cx, ledger, executions, agenda);
        let Unwritten { young, mut items } = Unwritten::of(cx, ledger, executions, agenda);
        let witnessed = ledger.witnessed(cx.now.wall);
        let newest = young.iter().map(|(_, first)| *first).max();
        let newest = newest.filter(|newest| witnessed < Some(*newest) && young.len() >= WITNESS_FROM);
        let (covered, open): (Vec<_>, Vec<_>) =
            young.into_iter().partition(|(_, first)| newest.is_some() || witnessed >= Some(*first));
        items.extend(open.into_iter().map(|(item, _)| item));
        let first = covered.into_iter().map(|(_, first)| first).min();
        self.next_flag = first.and_then(|first| first.checked_add(WITNESS_SUFFICES).ok());
        // An item that a start takes beyond the witness is flagged before.
        let written = self.flag(cx, ledger, executions, agenda, items, out);
        if let Some(fire) = newest.filter(|_| out.may_commit(cx, Purpose::FlagMisfire)) {
            self.witnessing = Some(fire);
            out.commit(Purpose::FlagMisfire, ledger.witness(cx, fire));
        } else if written {
            self.written = Some(seen);
        }
    }

    /// Flags these items, as far as that is possible now. Returns whether all of them are flagged, or need no flag.
    fn flag(
        &mut self,
        cx: &Context,
        ledger: &Ledger,
        executions: &Executions,
        agenda: &Agenda,
        items: BTreeSet<Item>,
        out: &mut Outbox,
    ) -> bool {
        let paths = &cx.identity.paths;
        let settled = !cx.view.is_resharding() && ledger.is_ledger_read(cx);
        // After another resharding another instance writes the ledger.
        let mut transaction: Transaction = cx.not_resharded().into_iter().collect();
        let mut flagging = BTreeMap::new();
        let mut size = 0;
        let nothing_to_do = items.is_empty();
        for item in items {
            let Some(missed) = agenda.missed().get(&item) else { continue };
            let planned = agenda.planned(item);
            let rerun_for_missed = planned.is_some_and(|planned| planned.is_first_of(Source::Misfire));
            // An execution that is being started writes the ledger itself.
            let ready = settled || ledger.is_in_ledger(cx, item);
            if rerun_for_missed || !ready || executions.is_starting(item) {
                continue;
            }
            // Steps that do not fit go into the next transaction.
            if size >= cx.fire_bytes() {
                break;
            }
            let flag = Operation::create(paths.item_misfire(item), NodeKind::Persistent, "");
            let (step, entry) = ledger.ledger_flag(cx, item, missed.newest()).unzip();
            let steps = std::iter::once(flag).chain(step);
            transaction.extend(steps.inspect(|step| size += step.wire_size()));
            flagging.insert(item, entry);
        }
        if !flagging.is_empty() {
            self.flagging = flagging;
            out.commit(Purpose::FlagMisfire, transaction);
        }
        nothing_to_do
    }

    /// The flags, or the witness, are in the registry.
    pub(crate) fn flagged(&mut self, ledger: &mut Ledger) {
        if let Some(fire) = self.witnessing.take() {
            ledger.witness_created(fire);
        }
        for (item, entry) in std::mem::take(&mut self.flagging) {
            if let Some(entry) = entry {
                ledger.written(item, entry);
            }
        }
    }

    /// The flags, or the witness, were not written; they are written again later.
    pub(crate) fn flag_failed(&mut self, ledger: &mut Ledger, error: &CommitError) {
        self.written = None;
        if let Some(fire) = self.witnessing.take() {
            return ledger.witness_failed(fire, error);
        }
        self.flagging.clear();
        // A resharding has begun, and the entries are what they were; or it is over, and they have other tokens.
        let resharding = error.index == Some(0) && matches!(error.error, Error::BadVersion(_));
        if !resharding {
            ledger.doubt();
        }
    }
}

/// Whether each instance of the job reads witnesses, and a witness is true of all items: in a rotation, and where a
/// once-listener can skip a fire of some items, only a flag says what an item has missed.
fn reads_witnesses(cx: &Context) -> bool {
    let certain = cx.monitors() && !cx.rotates() && cx.once_listener().is_none();
    let mut online = cx.view.instances().keys();
    let reads = |id: &InstanceId| cx.fleet.profile(id).is_some_and(|profile| profile.witnesses);
    let mut named = cx.fleet.names().values();
    certain && online.all(reads) && named.all(|name| name.profile.witnesses)
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
