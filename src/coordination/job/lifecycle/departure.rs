//! How does an instance leave? It drains, or removes its nodes at once if its application has ended (P6, design 5).
//!
//! A drain starts nothing; new fires are recorded as missed. It waits until no execution is open, no misfire flag is
//! being written, the round of a once-listener is over, and its items are handed over, for 5 s at most and only
//! among sidecars (`membership/announcement.rs`). At its deadline it cancels the executions that still run, and two
//! seconds later the instance leaves without their reports: with `failover` its unfinished items are flagged. The
//! drain of a sidecar has a deadline (`drain_timeout`), and so has that of an unresponsive application; an
//! operator's stop has none. An application that is stopping announces it, so that nothing starts that it would not
//! execute; its instance leaves when its stream ends.
//!
//! The application hears of a drain when no start is in flight: after `Draining` it gets no execution.
//!
//! The nodes are removed in one transaction if it fits: running nodes, leadership, instance. Nodes that do not exist
//! any more are left out of the next attempt, so the attempts end.
//!
//! No item goes to another instance while the application may still work on it. An application without a stream goes
//! on for `reattach_grace`, and no message can stop it. So its instance hands over no item that the application may
//! work on, and before it leaves it waits for its executions, and with continuous ownership for all its items. A
//! sidecar that has to end before that abandons its session instead of closing it: the lease of the application ends
//! before the session does.

use std::time::Duration;

use crate::coordination::job::agenda::Agenda;
use crate::coordination::job::contract::commit::Purpose;
use crate::coordination::job::contract::effect::{Effect, EndReason};
use crate::coordination::job::contract::event::{CancelReason, Event};
use crate::coordination::job::execution::checkpoint::Checkpoints;
use crate::coordination::job::execution::{Execution, Executions};
use crate::coordination::job::failover::takeover::{failover_folders, flags, hand_over};
use crate::coordination::job::frame::context::Context;
use crate::coordination::job::frame::outbox::Outbox;
use crate::coordination::job::frame::phase::{Phase, Session, Verdict};
use crate::coordination::job::lifecycle::Lifecycle;
use crate::coordination::job::membership::Membership;
use crate::coordination::job::membership::announcement::withdraw_profile;
use crate::coordination::job::membership::leadership::give_up_leadership;
use crate::coordination::job::once::Once;
use crate::coordination::job::picture::nodes::ItemView;
use crate::coordination::lease::Lease;
use crate::job::Item;
use crate::mutants::mutant;
use crate::tree::{CommitError, Error, Operation, Transaction};

/// How long cancelled executions may take to report before the instance leaves without them.
const DRAIN_CANCEL_GRACE: Duration = Duration::from_secs(2);

/// Leaves without waiting, unless an application without a stream may still execute: its items are not handed on until
/// it has stopped by itself.
pub(crate) fn leave(cx: &mut Context, executions: &Executions, reason: EndReason) {
    if cx.phase.is_leaving() {
        return;
    }
    cx.phase = leaves(cx, executions, reason);
}

/// The phase in which the instance leaves.
fn leaves(cx: &Context, executions: &Executions, reason: EndReason) -> Phase {
    match cx.unattended.filter(|_| may_work(cx, executions)) {
        Some(until) => Phase::Draining { deadline: Some(until), reason, cancelled: true },
        None => Phase::Leaving(reason),
    }
}

/// Whether the application may be working on an item of this instance.
fn may_work(cx: &Context, executions: &Executions) -> bool {
    let owns = |view: &ItemView| view.owner.as_ref().is_some_and(|of| of.instance == cx.identity.instance);
    let owns = || !cx.view.is_loaded() || cx.view.item_views().any(owns);
    executions.running().next().is_some() || (cx.is_continuous() && owns())
}

/// The application has left, or another attachment takes its place. The application of a detached instance has stopped;
/// the former application of an instance that was leaving already may still go on.
pub(crate) fn application_left(cx: &mut Context, executions: &Executions) {
    if cx.phase.is_detached() {
        cx.unattended = None;
    }
    leave(cx, executions, EndReason::Detached);
}

/// Ends, without a request to the registry.
pub(crate) fn end(cx: &mut Context, out: &mut Outbox, reason: EndReason) {
    cx.phase = Phase::Ended;
    out.push(Effect::End(reason));
}

impl Lifecycle {
    /// The sidecar or the application is stopping. May be called again: the earliest deadline counts, and cancelled
    /// executions stay cancelled. The deadline does not count for an application without a stream that may still
    /// execute: a sidecar that does not wait for it abandons its session without closing it.
    pub(crate) fn drain(
        &mut self,
        cx: &mut Context,
        executions: &Executions,
        deadline: Option<Duration>,
    ) -> Verdict {
        self.application_stops |= deadline.is_none();
        let reason = match &cx.phase {
            Phase::Joining | Phase::Active if deadline.is_none() => EndReason::Detached,
            Phase::Joining | Phase::Active => EndReason::Drained,
            Phase::Detached { .. } | Phase::Reattaching | Phase::Restored => {
                if self.has_come_back(cx) {
                    return Verdict::Disconnect(EndReason::Drained);
                }
                // No application can reattach any more; but a detached application may still execute.
                leave(cx, executions, EndReason::Drained);
                return Verdict::Continue;
            }
            Phase::Draining { cancelled: true, .. } | Phase::Leaving(_) | Phase::Ended => {
                return Verdict::Continue;
            }
            Phase::Draining { .. } if deadline.is_none() => {
                self.announces_drain = true;
                return Verdict::Continue;
            }
            Phase::Draining { deadline: Some(known), .. } if Some(*known) <= deadline => {
                return Verdict::Continue;
            }
            phase @ Phase::Draining { .. } if phase.is_application_stopping() => EndReason::Drained,
            // An operator's stop keeps its reason: the application must not attach again by itself.
            Phase::Draining { reason, .. } => reason.clone(),
        };
        self.announces_drain = true;
        cx.phase = Phase::Draining { deadline, reason, cancelled: false };
        Verdict::Continue
    }

    /// Carries out the verdict of a decision.
    pub(crate) fn apply_verdict(
        &self,
        cx: &mut Context,
        lease: &Lease,
        executions: &Executions,
        out: &mut Outbox,
        verdict: Verdict,
    ) {
        match verdict {
            Verdict::Continue => {}
            // An application that reads the end of its stream stops, before its items are handed on. One that does not
            // read it, because the stream has just broken, stops when `reattach_grace` is over.
            Verdict::Disconnect(reason) => {
                cx.unattended = self.goes_on_until(cx, lease);
                out.push(Effect::CloseStream(reason.clone()));
                leave(cx, executions, reason);
            }
            Verdict::Leave(reason) => leave(cx, executions, reason),
            Verdict::End(reason) => end(cx, out, reason),
        }
    }

    /// Leaves when no execution is open any more, or the deadline has passed.
    ///
    /// `is_free`: whether the other rooms have nothing to wait for.
    pub(crate) fn end_drain(
        &mut self,
        cx: &mut Context,
        executions: &mut Executions,
        out: &mut Outbox,
        is_free: impl FnOnce(&Context) -> bool,
    ) {
        let now = cx.now;
        let Phase::Draining { deadline, reason, cancelled } = cx.phase.clone() else { return };
        let starts = executions.starting().next().is_some() && !mutant!(DrainAnnouncedEarly);
        if self.announces_drain && !starts {
            self.announces_drain = false;
            if cx.assigned.attached {
                let remaining = deadline.map(|deadline| deadline.saturating_sub(now.mono));
                out.notify(cx, Event::Draining { remaining });
            }
        }
        if cx.phase.is_application_stopping() {
            return;
        }
        let settled = self.removal_settles().is_none();
        let idle = settled
            && (executions.is_idle() || mutant!(DrainedWithoutWaiting))
            && !out.is_in_flight(Purpose::FlagMisfire)
            && is_free(cx);
        match deadline {
            Some(deadline) if now.mono >= deadline && cancelled => {
                cx.unattended = None;
                leave(cx, executions, reason);
            }
            _ if idle => leave(cx, executions, reason),
            Some(deadline) if now.mono >= deadline => {
                executions.cancel_executions(cx, out, CancelReason::DrainTimeout);
                let deadline = Some(now.mono.saturating_add(DRAIN_CANCEL_GRACE));
                cx.phase = Phase::Draining { deadline, reason, cancelled: true };
            }
            Some(_) | None => {}
        }
    }

    /// Looks for the nodes of a former process, if the instance is drained before that was done: its application may
    /// still execute their items. An application that leaves by itself executes nothing any more.
    pub(crate) fn hold_before_leaving(
        &mut self,
        cx: &mut Context,
        lease: &Lease,
        membership: &mut Membership,
        executions: &mut Executions,
    ) {
        if !matches!(cx.phase, Phase::Leaving(_)) {
            return;
        }
        let drained = cx.phase == Phase::Leaving(EndReason::Drained);
        if let Some(until) = self.take_up_to_leave(cx, lease, membership, executions).filter(|_| drained) {
            cx.unattended = Some(until);
            cx.phase = leaves(cx, executions, EndReason::Drained);
        }
    }

    /// Takes the next step of leaving. Returns whether this instance's nodes are removed.
    #[expect(clippy::too_many_arguments, reason = "it names each room that it reads")]
    pub(crate) fn depart(
        &mut self,
        cx: &mut Context,
        agenda: &Agenda,
        membership: &Membership,
        executions: &Executions,
        checkpoints: &Checkpoints,
        once: &Once,
        out: &mut Outbox,
    ) -> bool {
        let Phase::Leaving(reason) = cx.phase.clone() else { return false };
        let busy = [Purpose::Register, Purpose::Start, Purpose::Complete, Purpose::Leave]
            .into_iter()
            .any(|purpose| out.is_in_flight(purpose));
        match cx.session {
            // The end of the session has removed all nodes, or there were none.
            Session::None => end(cx, out, reason),
            Session::Connected(_) if cx.name_taken => end(cx, out, reason),
            Session::Suspended(_) => {}
            Session::Connected(_) if busy || !cx.view.is_loaded() => {}
            Session::Connected(_) => {
                let unfinished = self.unfinished_items(cx, executions);
                let (transaction, handing_over) = match self.removed {
                    true => (late_nodes(cx, executions, out), Vec::new()),
                    false => leaving_transaction(
                        cx,
                        membership,
                        executions,
                        checkpoints,
                        once,
                        out,
                        &reason,
                        &unfinished,
                    ),
                };
                if transaction.is_empty() {
                    // Each awaited node appears, or its request ends.
                    return !awaits_nodes(agenda, membership, out) && self.is_surely_gone(cx, out);
                }
                if out.may_commit(cx, Purpose::Leave) {
                    // A late request must not remove the nodes of an instance that has registered under the same name
                    // in the meantime.
                    let transaction = cx.not_resharded().into_iter().chain(transaction).collect();
                    self.handing_over.extend(handing_over);
                    self.commit_departure(cx, out, transaction);
                }
            }
        }
        false
    }

    fn commit_departure(&mut self, cx: &Context, out: &mut Outbox, transaction: Transaction) {
        let instance = cx.identity.paths.instance(&cx.identity.instance);
        self.deletes_instance = transaction
            .iter()
            .any(|step| matches!(step, Operation::Delete { path, .. } if *path == instance));
        out.commit(Purpose::Leave, transaction);
    }

    /// Whether the registry has said that this instance's node does not exist any more. The view may be wrong: a network
    /// can change the bytes of a list. The node would stay as long as the sidecar's session, and own items that no
    /// application executes. So an instance that finds its node removed deletes it even so.
    fn is_surely_gone(&mut self, cx: &Context, out: &mut Outbox) -> bool {
        if !cx.was_registered() || self.is_instance_deleted {
            return true;
        }
        if out.may_commit(cx, Purpose::Leave) {
            let instance = cx.identity.paths.instance(&cx.identity.instance);
            self.commit_departure(cx, out, vec![Operation::delete(instance)]);
        }
        false
    }

    /// The items that other instances are to take over: the application has not reported them, or this instance had
    /// taken them over and not begun them. None, unless the job's items fail over.
    ///
    /// Not those that earlier transactions of the departure have handed over: others may have taken them over since,
    /// and the view does not tell whose a new running node is before its content is read.
    fn unfinished_items(&self, cx: &Context, executions: &Executions) -> Vec<Item> {
        if !cx.fails_over() || !cx.is_registered() || mutant!(UnfinishedForgotten) {
            return Vec::new();
        }
        // This instance still hands on an item that an earlier session of it left, if no other instance has it by now.
        let left = |item: Item| cx.view.running_of(&cx.identity.instance).any(|ours| ours == item);
        // No instance takes an item over that the job does not have any more.
        let is_unfinished = |(item, open): &(Item, &Execution)| {
            (open.is_running() && cx.has_item(*item)) || (open.is_lost() && left(*item))
        };
        let is_gone =
            |item: Item| self.handing_over.contains(&item) && !executions.has_running_node(cx, item);
        let open =
            executions.iter().filter(is_unfinished).map(|(item, _)| item).filter(|item| !is_gone(*item));
        let not_begun = cx.view.taken().iter().copied().filter(|item| cx.has_taken(*item));
        let not_begun = not_begun.filter(|item| executions.get(*item).is_none());
        open.chain(not_begun).filter(|item| !self.handed_over.contains(item)).collect()
    }

    /// A transaction of the departure has succeeded; further ones follow while this instance's node, or late nodes of
    /// it, exist.
    pub(crate) fn removed(&mut self, cx: &Context) {
        self.handed_over.append(&mut self.handing_over);
        self.is_instance_deleted |= self.deletes_instance;
        // While the session is suspended it is not known.
        self.removed |= cx.is_connected() && !cx.has_instance();
    }

    /// The departure failed because a node did not exist any more; the view shows which, and the next attempt leaves it
    /// out.
    pub(crate) fn leave_failed(
        &mut self,
        cx: &Context,
        checkpoints: &mut Checkpoints,
        out: &mut Outbox,
        error: &CommitError,
    ) {
        if !matches!(error.error, Error::OutcomeUnknown(_)) {
            self.handing_over.clear();
        }
        if let Error::NoNode(path) = &error.error {
            self.is_instance_deleted |= *path == cx.identity.paths.instance(&cx.identity.instance);
        }
        if matches!(error.error, Error::NoNode(_) | Error::NodeExists(_) | Error::BadVersion(_)) {
            checkpoints.doubt();
            out.read_again();
        }
    }
}

/// Removes this instance's nodes, its instance node last: as long as that exists, the running nodes of its items are
/// its own. Steps that do not fit into one transaction go into the next. Returns the transaction, and the items among
/// `unfinished` that it hands over.
#[expect(clippy::too_many_arguments, reason = "it names each room that it reads")]
fn leaving_transaction(
    cx: &Context,
    membership: &Membership,
    executions: &Executions,
    checkpoints: &Checkpoints,
    once: &Once,
    out: &Outbox,
    reason: &EndReason,
    unfinished: &[Item],
) -> (Transaction, Vec<Item>) {
    let paths = &cx.identity.paths;
    let mut transaction = Transaction::new();
    let mut size = 0;
    let mut flagging = failover_folders(cx);
    let left = left_behind(cx, executions);
    if !left.is_empty() {
        flagging = flags(cx, left.clone());
        size = flagging.iter().map(Operation::wire_size).sum::<usize>();
        if size >= cx.transaction_bytes {
            return (flagging, Vec::new());
        }
    }
    let mut handing_over = Vec::new();
    // An item of which this instance has taken the failover over, and has left a running node, is in both.
    for item in unfinished.iter().copied().filter(|item| !left.contains(item)) {
        let begin = flagging.len();
        hand_over(cx, executions, &mut flagging, item, executions.get(item).is_some());
        handing_over.push(item);
        size += flagging.iter().skip(begin).map(Operation::wire_size).sum::<usize>();
        if size >= cx.transaction_bytes {
            return (flagging, handing_over);
        }
    }
    if size > 0 {
        transaction = flagging;
    }
    transaction.extend(once.withdrawal(cx));
    for item in ended_items(cx, executions, out) {
        let begin = transaction.len();
        executions.end_execution(cx, checkpoints, &mut transaction, item);
        size += transaction.iter().skip(begin).map(Operation::wire_size).sum::<usize>();
        if size >= cx.transaction_bytes {
            return (transaction, handing_over);
        }
    }
    if cx.view.triggers().contains(&cx.identity.instance) {
        transaction.push(Operation::delete(paths.trigger(&cx.identity.instance)));
    }
    if cx.is_leader() {
        give_up_leadership(cx, &mut transaction);
    }
    transaction.extend(withdraw_profile(cx));
    transaction.extend(membership.give_up_name(cx, reason));
    if cx.has_instance() && !mutant!(InstanceLeft) {
        transaction.push(Operation::delete(paths.instance(&cx.identity.instance)));
    }
    (transaction, handing_over)
}

/// The items that an earlier session of this instance has left unfinished, and that the present one does not execute:
/// no other instance may notice them. Before this instance is registered again, with or without a known result, the
/// earlier session may still live; and after an operator's stop the other instances take these items over.
fn left_behind(cx: &Context, executions: &Executions) -> Vec<Item> {
    let me = &cx.identity.instance;
    let is_there = || cx.view.instances().contains_key(me) || cx.fleet.member(me).is_some();
    let may_be_another = || is_there() || !cx.fleet.is_loaded() || cx.registered.is_some();
    if !cx.fails_over() || mutant!(UnfinishedForgotten) || (!cx.has_instance() && may_be_another()) {
        return Vec::new();
    }
    let is_ours = |item: &Item| cx.is_registered() && executions.get(*item).is_some();
    cx.view.running_of(me).filter(|item| !is_ours(item)).collect()
}

/// The items whose running nodes this instance removes when it leaves.
fn ended_items(cx: &Context, executions: &Executions, out: &Outbox) -> Vec<Item> {
    let handed_over = cx.fails_over() && !mutant!(UnfinishedForgotten);
    let ends = |(item, open): &(Item, &Execution)| {
        open.is_reported() || (open.is_running() && (!handed_over || !cx.has_item(*item)))
    };
    let open = executions.iter().filter(ends).map(|(item, _)| item);
    open.chain(executions.left_running(cx, out)).collect()
}

/// Whether nodes of this instance may exist that it does not know yet: a request that creates some is in flight, or the
/// nodes are being read. A node of an instance that has left would stay as long as the sidecar's session.
fn awaits_nodes(agenda: &Agenda, membership: &Membership, out: &Outbox) -> bool {
    let commits = [Purpose::Announce, Purpose::PlanHandoff];
    commits.into_iter().any(|purpose| out.is_in_flight(purpose))
        || membership.is_standing()
        || !agenda.awaited().taking().is_empty()
        || out.is_reading()
}

/// Removes nodes that were created after the departure, or that were not known before, and flags the items of an earlier
/// session whose instance has left only now.
fn late_nodes(cx: &Context, executions: &Executions, out: &Outbox) -> Transaction {
    let left = left_behind(cx, executions);
    let mut transaction = if left.is_empty() { Transaction::new() } else { flags(cx, left.clone()) };
    let taken = cx.view.taken().iter().copied().filter(|item| cx.has_taken(*item));
    for item in taken.filter(|item| !left.contains(item)) {
        if transaction.is_empty() {
            transaction = failover_folders(cx);
        }
        hand_over(cx, executions, &mut transaction, item, false);
    }
    if cx.is_leader() {
        give_up_leadership(cx, &mut transaction);
    }
    let running = executions.left_running(cx, out).map(|item| cx.identity.paths.item_running(item));
    transaction.extend(running.map(Operation::delete));
    transaction.extend(withdraw_profile(cx));
    transaction
}
