//! Unfinished items of crashed instances, and the instances that take them over (protocol 7; H4, H11 to H14, H22, H35;
//! P5).
//!
//! An item has crashed if its running node, or the node of its taker, names an offline instance, or this instance in
//! an earlier session. Such items are flagged, taken over, and executed, in one transaction each; the takeover holds
//! ElasticJob's latch. A disabled item is not taken. A leader of a sidecar flags; the other instances do it if the
//! leader does not. Flags are shared out among the instances, so that not all of them take the same ones.
//!
//! The owner of a flagged item waits up to ten seconds for its failover, and then executes the item itself
//! (`agenda.rs`). A flag beside a running node, or of an item that was completed since (`late_flags`), is not taken.
//!
//! An application that dies is handled at once (`lifecycle/departure.rs`). The transaction that removes its instance
//! also flags its unfinished items. It deletes their running nodes too, unless there are Java peers, which find
//! crashed items by these nodes. The instance that takes an item over never deletes a running node: the instance
//! that flags the item has deleted it before.
//!
//! A late request cannot tell a new node from the one before: both have version 0. So flagging a crash checks the
//! version of `leader/failover/items`, and raises it.
//!
//! Only jobs with `failover` and `monitorExecution` fail over. In other jobs the leader removes the nodes of an
//! earlier failover.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;

use crate::coordination::job::agenda::{Agenda, Awaited};
use crate::coordination::job::contract::commit::Purpose;
use crate::coordination::job::contract::effect::Effect;
use crate::coordination::job::contract::plan::{Planned, Source};
use crate::coordination::job::contract::records::WrittenDown;
use crate::coordination::job::execution::Executions;
use crate::coordination::job::execution::checkpoint::Checkpoints;
use crate::coordination::job::failover::late_flags::LateFlags;
use crate::coordination::job::frame::context::Context;
use crate::coordination::job::frame::limits::HEAD_START;
use crate::coordination::job::frame::outbox::Outbox;
use crate::coordination::job::frame::phase::Phase;
use crate::coordination::job::membership::liveness::Liveness;
use crate::coordination::job::picture::nodes::{ItemView, Taker};
use crate::coordination::job::picture::schedule::latest_before;
use crate::elasticjob::path::{Folder, JobPaths};
use crate::findings::problem::{Problem, ProblemCode};
use crate::job::Item;
use crate::mutants::mutant;
use crate::tree::{NodeKind, Operation, Transaction};

/// The pause after a failed attempt to take items.
const PAUSE: Duration = Duration::from_millis(500);

#[derive(Debug, Default)]
pub(crate) struct Failover {
    failures: u32,
    retry_at: Option<Duration>,
    /// The ledger's instants of crashed executions, for the items that this instance has taken over. `None`: the ledger
    /// has no instant. An item's entry is read before the item is executed: this instance may have taken it over in an
    /// attempt of unknown outcome, or in a session that was lost.
    crashed: BTreeMap<Item, Option<Timestamp>>,
    /// Items that a Java instance left; it keeps no ledger.
    left_by_java: BTreeSet<Item>,
    late_flags: LateFlags,
}

impl Failover {
    /// When the next pause ends.
    pub(crate) fn next_retry(&self, now: Duration) -> Option<Duration> {
        self.retry_at.filter(|at| *at > now)
    }

    /// The problem that items cannot be taken over.
    pub(crate) fn problem(&self, paths: &JobPaths) -> Option<Problem> {
        let message = "items of crashed instances cannot be taken over: another instance holds the latch; look for a \
                       stuck instance at the head of its children";
        (self.failures >= 2).then(|| Problem {
            path: paths.failover_latch(),
            message: message.to_owned(),
            code: ProblemCode::FailoverLatchHeld,
        })
    }

    /// Flags crashed items, takes flagged items over, and plans their executions.
    pub(crate) fn fail_over(
        &mut self,
        cx: &Context,
        liveness: &Liveness,
        executions: &mut Executions,
        agenda: &mut Agenda,
        out: &mut Outbox,
    ) {
        let now = cx.now;
        if cx.phase != Phase::Active || !cx.is_registered() || cx.settings.is_none() {
            return;
        }
        if !cx.fails_over() {
            self.clear_failover(cx, executions, agenda, out);
            return;
        }
        self.record_java(cx);
        record_half_taken(cx, agenda);
        self.late_flags.look(&cx.view, now.mono);
        flag_crashed(cx, liveness, executions, agenda, out);
        self.take_flagged(cx, executions, agenda, out);
        self.plan_taken(cx, executions, agenda, out);
    }

    /// The attempt to take items over has ended; the view shows which items were taken over.
    pub(crate) fn taken(
        &mut self,
        cx: &Context,
        checkpoints: &mut Checkpoints,
        agenda: &mut Agenda,
        read: Result<WrittenDown, String>,
    ) {
        let now = cx.now;
        let taking = agenda.awaited_mut().ended();
        match read {
            Ok(WrittenDown { ledger, checkpoints: written }) => {
                self.failures = 0;
                for item in taking {
                    checkpoints.found(item, written.get(&item));
                    let crashed = ledger.get(&item).and_then(|node| node.entry.crashed());
                    self.crashed.insert(item, crashed);
                }
            }
            Err(_) => {
                self.crashed.retain(|item, _| !taking.contains(item));
                self.failures = self.failures.saturating_add(1);
                self.retry_at = Some(now.mono.saturating_add(PAUSE));
            }
        }
    }

    /// Takes this instance's share of the flagged items over, under the latch that Java peers take as well.
    fn take_flagged(&self, cx: &Context, executions: &mut Executions, agenda: &mut Agenda, out: &mut Outbox) {
        let now = cx.now;
        agenda.awaited_mut().update_flags(cx.view.failover_items(), now.mono);
        let pausing = self.retry_at.is_some_and(|at| now.mono < at);
        let busy = !agenda.awaited().taking().is_empty() || pausing;
        if agenda.awaited().flagged_since().is_empty() || busy || !cx.is_enabled() {
            return;
        }
        if waits_for_sharding(cx, agenda) {
            return;
        }
        clear_surplus_flags(cx, out);
        let (late_flags, share): (Vec<_>, Vec<_>) = share(cx, executions, agenda)
            .into_iter()
            .partition(|item| self.late_flags.may_be_late(&cx.view, *item));
        let is_old = |item: &Item| {
            let since = agenda.awaited().flagged_since().get(item);
            since.is_none_or(|since| now.mono >= since.saturating_add(HEAD_START)) || mutant!(LateFlagAtOnce)
        };
        let late_flags: Vec<_> = late_flags.into_iter().filter(is_old).collect();
        if !late_flags.is_empty() && out.may_commit(cx, Purpose::FlagFailover) {
            let flags = late_flags.into_iter().map(|item| cx.identity.paths.failover_item(item));
            out.commit(Purpose::FlagFailover, flags.map(Operation::delete).collect());
        }
        let mut transaction = Transaction::new();
        let mut taking = BTreeSet::new();
        let mut size = 0;
        for item in share {
            if size >= cx.transaction_bytes {
                break;
            }
            let before = transaction.len();
            take_over_item(cx, &mut transaction, item);
            size += transaction.iter().skip(before).map(Operation::wire_size).sum::<usize>();
            taking.insert(item);
        }
        if !taking.is_empty() {
            transaction.push(count_failover(cx, None));
            agenda.awaited_mut().take(taking.clone());
            out.push(Effect::TakeOver { transaction, items: taking });
        }
    }

    /// Has the records of items read that this instance has taken over, unless they were read.
    fn read_taken(&self, cx: &Context, executions: &Executions, agenda: &mut Agenda, out: &mut Outbox) {
        let now = cx.now;
        let pausing = self.retry_at.is_some_and(|at| now.mono < at);
        if pausing || !agenda.awaited().taking().is_empty() || mutant!(TakenUnread) {
            return;
        }
        let taken = cx.view.taken().iter().copied();
        let unread: BTreeSet<_> = taken
            .filter(|item| {
                cx.has_taken(*item) && !executions.has_open(*item) && !self.crashed.contains_key(item)
            })
            .collect();
        if !unread.is_empty() {
            agenda.awaited_mut().take(unread.clone());
            out.push(Effect::TakeOver { transaction: Transaction::new(), items: unread });
        }
    }

    /// Plans the executions of the items that were taken over. If another instance executes the item all the same, the
    /// item is given back, and taken over again when that execution has ended (H13).
    fn plan_taken(&self, cx: &Context, executions: &mut Executions, agenda: &mut Agenda, out: &mut Outbox) {
        self.read_taken(cx, executions, agenda, out);
        let ours: Vec<_> = cx
            .view
            .taken()
            .iter()
            .copied()
            .filter(|item| {
                cx.has_taken(*item)
                    && !executions.has_open(*item)
                    && !agenda.awaited().taking().contains(item)
                    && (self.crashed.contains_key(item) || mutant!(TakenUnread))
            })
            .collect();
        let mut given_back = Transaction::new();
        for item in ours {
            let Some(view) = cx.view.item(item) else { continue };
            match &view.running {
                None => {
                    let scheduled = self.scheduled_of_crashed(cx, item);
                    let planned = Planned::new(Source::Failover, scheduled);
                    let before = agenda.plan(item, planned);
                    if let Some(before) = before.filter(|before| before.source != Source::Failover) {
                        agenda.miss(cx, out, item, before.scheduled);
                    }
                }
                Some(running) if running.owner.is_none() => executions.suspect(cx, item),
                Some(_) => {
                    hand_over(cx, executions, &mut given_back, item, false);
                }
            }
        }
        if !given_back.is_empty() && out.may_commit(cx, Purpose::FlagFailover) {
            out.commit(Purpose::FlagFailover, given_back);
        }
    }

    /// The instant of a crashed execution: the ledger's; without one, the latest fire before its running node appeared.
    fn scheduled_of_crashed(&self, cx: &Context, item: Item) -> Timestamp {
        let now = cx.now;
        let believed = !self.left_by_java.contains(&item);
        let crashed = self.crashed.get(&item).copied().flatten().filter(|_| believed);
        let schedule = cx.settings.as_ref().and_then(|settings| settings.schedule.as_ref());
        crashed.unwrap_or_else(|| {
            let ran_at = cx.view.item(item).and_then(|view| view.ran_at).unwrap_or(now.wall);
            schedule.and_then(|schedule| latest_before(schedule, ran_at)).unwrap_or(ran_at)
        })
    }

    /// Records which items were left by Java instances.
    fn record_java(&mut self, cx: &Context) {
        let left = |item: &&Item| {
            let view = cx.view.item(**item);
            let running = view.and_then(|view| view.running.as_ref()?.owner.as_ref());
            let named = running.or_else(|| Some(&view?.owner.as_ref()?.instance));
            named.is_some_and(|id| id.is_java() && !cx.view.instances().contains_key(id))
        };
        let flagged = cx.view.failover_items().iter();
        let left: Vec<_> = flagged.chain(cx.view.running()).filter(left).copied().collect();
        self.left_by_java.extend(left);
        let concerned = |item: &Item| {
            cx.view.failover_items().contains(item)
                || cx.view.item(*item).is_some_and(|view| view.running.is_some() || view.failover.is_some())
        };
        self.left_by_java.retain(concerned);
    }

    /// Removes the nodes of a failover that was switched off (protocol 7.3, H14). Java instances remove a part of them.
    fn clear_failover(
        &mut self,
        cx: &Context,
        executions: &Executions,
        agenda: &mut Agenda,
        out: &mut Outbox,
    ) {
        *self = Self::default();
        *agenda.awaited_mut() = Awaited::default();
        let ours = cx.is_leader() || cx.view.leader().is_some_and(|leader| leader.instance.is_java());
        let nothing = cx.view.failover_items().is_empty() && cx.view.taken().is_empty();
        if nothing || !ours || !out.may_commit(cx, Purpose::FlagFailover) {
            return;
        }
        let paths = &cx.identity.paths;
        let flags = cx.view.failover_items().iter().map(|item| Operation::delete(paths.failover_item(*item)));
        let taken = cx.view.taken().iter().filter(|item| !executions.has_open(**item)).flat_map(|item| {
            let view = cx.view.item(*item);
            let failover = view.and_then(|view| view.failover.as_ref()).map(|_| paths.item_failover(*item));
            let persistent =
                view.and_then(|view| view.failovering.as_ref()).map(|_| paths.item_failovering(*item));
            persistent.into_iter().chain(failover).map(Operation::delete)
        });
        let transaction: Transaction = flags.chain(taken).collect();
        if !transaction.is_empty() {
            out.commit(Purpose::FlagFailover, transaction);
        }
    }
}

/// Since when (monotonic) an item has to be flagged; `None`: it has not crashed, or is flagged.
fn crashed_since(
    cx: &Context,
    liveness: &Liveness,
    executions: &mut Executions,
    agenda: &Agenda,
    item: Item,
) -> Option<Duration> {
    let now = cx.now;
    let me = &cx.identity.instance;
    let view = cx.view.item(item)?;
    let busy = executions.has_open(item) && !mutant!(OwnRunningFailsOver);
    if busy || agenda.awaited().taking().contains(&item) {
        return None;
    }
    let is_me = |taker: &Option<Taker>| taker.as_ref().is_some_and(|taker| taker.instance == *me);
    let taker_offline_since = |taker: &Option<Taker>| liveness.offline_since(&taker.as_ref()?.instance, now);
    let running = view.running.as_ref();
    if let Some(executor) = running.and_then(|running| running.owner.as_ref()) {
        // An earlier session of this instance executed the item; the present one does not.
        return if executor == me { Some(Duration::ZERO) } else { liveness.offline_since(executor, now) };
    }
    let since = if is_me(&view.failovering) && !is_me(&view.failover) {
        Some(Duration::ZERO)
    } else {
        taker_offline_since(&view.failovering).or_else(|| taker_offline_since(&view.failover))
    };
    if since.is_some() && running.is_some() {
        // It has to be known first whether that execution still runs.
        executions.suspect(cx, item);
        return None;
    }
    since
}

/// Flags crashed items, and removes the nodes of their executors in the same transaction.
fn flag_crashed(
    cx: &Context,
    liveness: &Liveness,
    executions: &mut Executions,
    agenda: &Agenda,
    out: &mut Outbox,
) {
    let now = cx.now;
    if out.is_in_flight(Purpose::Start) || !out.may_commit(cx, Purpose::FlagFailover) {
        return;
    }
    let head_start = if cx.is_leader() { Duration::ZERO } else { HEAD_START };
    let candidates: BTreeSet<_> = cx.view.running_known().chain(cx.view.taken().iter().copied()).collect();
    let mut crashed = Vec::new();
    for item in candidates {
        let due = |since: Duration| if since.is_zero() { since } else { since.saturating_add(head_start) };
        if crashed_since(cx, liveness, executions, agenda, item).is_some_and(|since| now.mono >= due(since)) {
            crashed.push(item);
        }
    }
    if crashed.is_empty() {
        return;
    }
    let transaction = flags(cx, crashed);
    out.commit(Purpose::FlagFailover, transaction);
}

/// The steps that flag crashed items and remove the nodes of their executors, as far as they fit into one transaction.
pub(crate) fn flags(cx: &Context, crashed: Vec<Item>) -> Transaction {
    let mut transaction = failover_folders(cx);
    // A late request finds what it expects, also if the item was taken over, executed and started again in the
    // meantime: all these nodes have version 0 again. The version of this node has grown.
    let version = cx.view.failover_version();
    transaction.extend(version.map(|version| count_failover(cx, Some(version))));
    let mut size = 0;
    for item in crashed {
        if size >= cx.transaction_bytes {
            break;
        }
        let before = transaction.len();
        flag(cx, &mut transaction, item);
        size += transaction.iter().skip(before).map(Operation::wire_size).sum::<usize>();
    }
    transaction
}

/// The steps that create the parents of the flags.
pub(crate) fn failover_folders(cx: &Context) -> Transaction {
    [Folder::Failover, Folder::FailoverItems]
        .into_iter()
        .filter(|folder| !cx.view.has_folder(*folder))
        .map(|folder| Operation::create(cx.identity.paths.folder(folder), NodeKind::Persistent, ""))
        .collect()
}

/// The step that raises the version, so that late requests see that items were flagged or taken over in the meantime.
fn count_failover(cx: &Context, version: Option<i32>) -> Operation {
    Operation::Set { path: cx.identity.paths.folder(Folder::FailoverItems), data: [].into(), version }
}

fn flag(cx: &Context, transaction: &mut Transaction, item: Item) {
    let paths = &cx.identity.paths;
    let Some(view) = cx.view.item(item) else { return };
    if !cx.view.failover_items().contains(&item) && cx.has_item(item) {
        transaction.push(Operation::create(paths.failover_item(item), NodeKind::Persistent, ""));
    }
    let failover = paths.item_failover(item);
    match &view.failover {
        Some(taker) => {
            transaction.push(Operation::Delete { path: failover, version: Some(taker.version) });
        }
        None => {
            // Fails if another instance has taken the item over since this view; then no node changes (H11).
            transaction.push(Operation::create(failover.clone(), NodeKind::Ephemeral, ""));
            transaction.push(Operation::delete(failover));
        }
    }
    if let Some(running) = &view.running {
        let path = paths.item_running(item);
        transaction.push(Operation::Delete { path, version: running.version });
    }
    if let Some(taker) = &view.failovering {
        let (path, version) = (paths.item_failovering(item), Some(taker.version));
        transaction.push(Operation::Delete { path, version });
    }
}

/// Removes the flags of items that the job does not have any more: no instance takes them over.
fn clear_surplus_flags(cx: &Context, out: &mut Outbox) {
    let surplus = cx.view.failover_items().iter().filter(|item| !cx.has_item(**item));
    let flags = surplus.map(|item| cx.identity.paths.failover_item(*item));
    let transaction: Transaction = flags.map(Operation::delete).collect();
    if !transaction.is_empty() && cx.is_leader() && out.may_commit(cx, Purpose::FlagFailover) {
        out.commit(Purpose::FlagFailover, transaction);
    }
}

/// Whether a resharding comes first: items that were taken over would delay it. A resharding that waits for executions
/// does not come first, nor does that of a Java leader, which reshards at its next fire only.
fn waits_for_sharding(cx: &Context, agenda: &Agenda) -> bool {
    let now = cx.now;
    let ours = cx.view.leader().is_some_and(|leader| !leader.instance.is_java());
    let fresh = |since: &Duration| now.mono < since.saturating_add(HEAD_START);
    let waits = !cx.view.running().is_empty();
    cx.view.is_resharding() && ours && !waits && agenda.awaited().flagged_since().values().any(fresh)
}

/// The flagged items that this instance is to take over. Each item belongs to one instance's share, by its number;
/// after a while every instance may take the rest. An item with a running node is not in any share: a request that
/// waits at the latch could not tell that node from a later one, so the instance that flags crashed items deletes it
/// first.
fn share(cx: &Context, executions: &mut Executions, agenda: &Agenda) -> Vec<Item> {
    let now = cx.now;
    let available = cx.view.available();
    let place = available.iter().position(|id| *id == cx.identity.instance);
    let is_ours = |item: &Item| {
        let whose = usize::try_from(item.0).ok().and_then(|number| number.checked_rem(available.len()));
        let since = agenda.awaited().flagged_since().get(item);
        place == whose || since.is_none_or(|since| now.mono >= since.saturating_add(HEAD_START))
    };
    let is_free = |item: &Item| {
        let view = cx.view.item(*item);
        let disabled = view.is_some_and(|view| view.disabled);
        let held = view.is_some_and(|view| view.failover.is_some());
        !disabled && !held && !executions.has_open(*item) && cx.has_item(*item)
    };
    let flagged = cx.view.failover_items().iter().copied();
    let share: Vec<_> = flagged.filter(is_ours).filter(is_free).collect();
    let (running, clear): (Vec<_>, Vec<_>) =
        share.into_iter().partition(|item| cx.view.running().contains(item));
    for item in running {
        // The owner of the running node has to be known before the node may be deleted.
        executions.suspect(cx, item);
    }
    clear
}

fn take_over_item(cx: &Context, transaction: &mut Transaction, item: Item) {
    let paths = &cx.identity.paths;
    let me = cx.identity.instance.as_str();
    let unknown = ItemView::default();
    let view = cx.view.item(item).unwrap_or(&unknown);
    // A peer may see the changes one by one. The flag is deleted last, as in Java (protocol 7.2), so that the item
    // shows at every moment that it waits, or that it was taken over.
    let flag = (!mutant!(TakenItemStaysFlagged)).then(|| Operation::delete(paths.failover_item(item)));
    if mutant!(FlagGoesFirst) {
        transaction.extend(flag.clone());
    }
    if !view.exists {
        transaction.push(Operation::create(paths.item(item), NodeKind::Persistent, ""));
    }
    transaction.push(Operation::create(paths.item_failover(item), NodeKind::Ephemeral, me));
    let failovering = paths.item_failovering(item);
    transaction.push(match &view.failovering {
        Some(taker) => {
            Operation::Set { path: failovering, data: me.as_bytes().into(), version: Some(taker.version) }
        }
        None => Operation::create(failovering, NodeKind::Persistent, me),
    });
    // Fails if the item has begun to run since this view; then no node changes.
    let running = paths.item_running(item);
    transaction.push(Operation::create(running.clone(), NodeKind::Ephemeral, ""));
    transaction.push(Operation::delete(running));
    if !mutant!(FlagGoesFirst) {
        transaction.extend(flag);
    }
}

/// Records since when items are half taken.
fn record_half_taken(cx: &Context, agenda: &mut Agenda) {
    let now = cx.now;
    let is_half = |item: &Item| {
        let view = cx.view.item(*item);
        view.is_some_and(|view| view.failovering.is_some() && view.failover.is_none())
    };
    let half: BTreeSet<_> = cx.view.taken().iter().copied().filter(is_half).collect();
    agenda.awaited_mut().update_half_taken(&half, now.mono);
}

/// The steps for an item that this instance leaves unfinished: they flag the item, and delete the nodes that name this
/// instance. If there are Java peers the running node stays, as after a crash: they find crashed items by it.
pub(crate) fn hand_over(
    cx: &Context,
    executions: &Executions,
    transaction: &mut Transaction,
    item: Item,
    executing: bool,
) {
    let paths = &cx.identity.paths;
    if !cx.view.failover_items().contains(&item) && cx.has_item(item) {
        transaction.push(Operation::create(paths.failover_item(item), NodeKind::Persistent, ""));
    }
    let Some(view) = cx.view.item(item) else { return };
    let mine = |taker: &&Taker| taker.instance == cx.identity.instance;
    if view.failovering.as_ref().filter(mine).is_some() && !executing {
        transaction.push(Operation::delete(paths.item_failovering(item)));
    }
    if view.failover.as_ref().filter(mine).is_some() {
        transaction.push(Operation::delete(paths.item_failover(item)));
    }
    let found_by_it = cx.has_item(item) && cx.has_java_peers();
    if executing && !found_by_it && executions.has_running_node(cx, item) {
        transaction.push(Operation::delete(paths.item_running(item)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::JobName;
    use crate::tree::Path;

    #[test]
    fn a_latch_that_was_not_free_twice_is_a_problem() {
        let paths = JobPaths::new(&Path::parse("/ns").unwrap(), &JobName::parse("job").unwrap());
        let problem = |failures| Failover { failures, ..Failover::default() }.problem(&paths);
        assert_eq!(problem(1), None);
        let problem = problem(2).unwrap();
        assert_eq!(problem.code.as_str(), "FAILOVER_LATCH_HELD");
        assert_eq!(problem.path, paths.failover_latch());
    }
}
