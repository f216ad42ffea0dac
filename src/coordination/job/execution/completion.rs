//! Which executions have ended? The application reports results, the participant deletes the running nodes, and then
//! answers (protocol 6.1; P5, P6).
//!
//! The nodes are deleted in batches: one transaction is in flight, and the reports in the meantime make the next one. A
//! report is answered when its nodes are deleted. The room also deletes running nodes of this sidecar and of offline
//! instances that no other instance will delete (H4).

use std::collections::BTreeSet;
use std::time::Duration;

use crate::coordination::job::contract::answer::{Answer, CompletionStatus, Refusal, Ticket};
use crate::coordination::job::contract::commit::Purpose;
use crate::coordination::job::contract::effect::{Effect, Reported};
use crate::coordination::job::contract::event::CancelReason;
use crate::coordination::job::contract::report::{Ended, Ending, ExecutionResult, Outcome};
use crate::coordination::job::execution::checkpoint::Checkpoints;
use crate::coordination::job::execution::{Execution, Executions, Report, State};
use crate::coordination::job::frame::context::Context;
use crate::coordination::job::frame::outbox::Outbox;
use crate::coordination::job::frame::phase::Phase;
use crate::coordination::job::membership::liveness::{Liveness, is_leftover};
use crate::coordination::job::picture::nodes::Taker;
use crate::coordination::job::rotation::pass_on;
use crate::excerpt::Excerpt;
use crate::job::Item;
use crate::mutants::mutant;
use crate::tree::{CommitError, Error, Operation, Transaction};

/// The shortest pause between two readings of the view because of unknown running nodes.
const INVESTIGATION_PAUSE: Duration = Duration::from_secs(10);
/// The same after an execution was interrupted.
const INTERRUPTION_PAUSE: Duration = Duration::from_secs(1);

impl Executions {
    /// Closes an execution, and answers the last reports that waited for it.
    pub(crate) fn settle(&mut self, item: Item, status: CompletionStatus, out: &mut Outbox) {
        let Some(execution) = self.open.remove(&item) else { return };
        self.by_number.remove(&execution.number);
        self.deadlines.forget(execution.number, execution.limit);
        if execution.state == State::Lost {
            out.push(Effect::ExecutionLost { item, sent: execution.sent });
        }
        if let Some(ending) = execution.ending.filter(|_| status == CompletionStatus::Recorded) {
            let (number, planned, node) = (execution.number, execution.planned, execution.node);
            let cancelled = execution.limit.cancelled();
            self.ended.push((item, Ended { number, planned, ending, cancelled, node }));
        }
        for (ticket, place) in execution.waiting {
            let Some(report) = self.reports.get_mut(&ticket) else { continue };
            if let Some((_, record)) = report.records.get_mut(place) {
                *record = status;
            }
            report.missing = report.missing.saturating_sub(1);
            if report.missing == 0
                && let Some(report) = self.reports.remove(&ticket)
            {
                out.push(Effect::Answer(ticket, Answer::Recorded(report.records)));
            }
        }
    }

    /// The application that was to stop lost executions has ended.
    pub(crate) fn settle_lost(&mut self, out: &mut Outbox) {
        let lost = self.open.iter().filter(|(_, open)| open.state == State::Lost);
        for item in lost.map(|(item, _)| *item).collect::<Vec<_>>() {
            self.settle(item, CompletionStatus::LeaseLost, out);
        }
    }

    /// Records reported results.
    pub(crate) fn report(
        &mut self,
        cx: &Context,
        out: &mut Outbox,
        ticket: Ticket,
        results: &[ExecutionResult],
    ) {
        let numbers: Option<Vec<_>> =
            results.iter().map(|result| self.number(&result.execution_id)).collect();
        let Some(numbers) = numbers else {
            let unknown =
                results.iter().enumerate().find(|(_, result)| self.number(&result.execution_id).is_none());
            if let Some((index, result)) = unknown {
                let execution_id = Excerpt::of(&result.execution_id);
                let refusal = Refusal::UnknownExecution { index, execution_id };
                out.push(Effect::Answer(ticket, Answer::Refused(refusal)));
            }
            return;
        };
        let mut records = Vec::with_capacity(results.len());
        let mut missing = 0;
        let mut lost = Vec::new();
        for (place, (result, number)) in results.iter().zip(numbers).enumerate() {
            let item = self.by_number.get(&number).copied();
            let execution = item.and_then(|item| self.open.get_mut(&item));
            let status = match (item, execution) {
                (Some(item), Some(execution)) if execution.state == State::Lost => {
                    lost.push(item);
                    CompletionStatus::LeaseLost
                }
                (Some(item), Some(execution)) if is_interrupted(cx, execution, &result.outcome) => {
                    out.push(reported(cx, item, execution, &result.outcome));
                    self.remember_lost(number);
                    // The view may not know that the running node left behind is this instance's.
                    self.interrupted.insert(item, false);
                    lost.push(item);
                    CompletionStatus::LeaseLost
                }
                (Some(item), Some(execution)) => {
                    if execution.state == State::Running {
                        execution.state = State::Reported;
                        execution.ending = Some(Ending::from(&result.outcome));
                        self.reported.push(item);
                        out.push(reported(cx, item, execution, &result.outcome));
                    }
                    execution.waiting.push((ticket, place));
                    missing += 1;
                    CompletionStatus::Recorded
                }
                (_, _) if self.lost.contains(&number) => CompletionStatus::LeaseLost,
                (_, _) => CompletionStatus::AlreadyRecorded,
            };
            records.push((result.execution_id.clone(), status));
        }
        for item in lost {
            self.settle(item, CompletionStatus::LeaseLost, out);
        }
        if missing == 0 {
            out.push(Effect::Answer(ticket, Answer::Recorded(records)));
        } else {
            self.reports.insert(ticket, Report { records, missing });
        }
    }

    /// Deletes the running nodes of reported executions, one batch at a time.
    pub(crate) fn complete(
        &mut self,
        cx: &Context,
        liveness: &Liveness,
        checkpoints: &Checkpoints,
        out: &mut Outbox,
    ) {
        let leftovers = self.leftovers(cx, liveness, out);
        if self.reported.is_empty() && leftovers.is_empty() {
            return;
        }
        if !out.may_commit(cx, Purpose::Complete) || matches!(cx.phase, Phase::Leaving(_)) {
            return;
        }
        // A request of a session that this instance has given up may come late. After a resharding, or after the next
        // registration, another running node has the same version.
        let mut transaction: Transaction = cx.not_resharded().filter(|_| cx.monitors()).into_iter().collect();
        let mut size = 0;
        let mut rest = Vec::new();
        let check = transaction.len();
        for item in std::mem::take(&mut self.reported) {
            if size >= cx.fire_bytes() {
                rest.push(item);
                continue;
            }
            let begin = transaction.len();
            self.end_execution(cx, checkpoints, &mut transaction, item);
            size += transaction.iter().skip(begin).map(Operation::wire_size).sum::<usize>();
            if transaction.len() > begin {
                let running = self.has_running_node(cx, item).then_some(begin);
                self.completing.push((item, running));
            } else {
                self.settle(item, CompletionStatus::Recorded, out);
            }
        }
        self.reported = rest;
        for item in leftovers {
            if size >= cx.fire_bytes() {
                // The view shows the rest when this has been done.
                break;
            }
            let operation = Operation::delete(cx.identity.paths.item_running(item));
            size += operation.wire_size();
            transaction.push(operation);
        }
        if transaction.len() > check {
            out.commit(Purpose::Complete, transaction);
        }
        if mutant!(AnsweredBeforeRecorded) {
            self.completed(out);
        }
    }

    /// The steps that record the end of an execution: they delete its running node, and the nodes of its takeover.
    pub(crate) fn end_execution(
        &self,
        cx: &Context,
        checkpoints: &Checkpoints,
        transaction: &mut Transaction,
        item: Item,
    ) {
        let paths = &cx.identity.paths;
        if self.has_running_node(cx, item) {
            transaction.push(Operation::delete(paths.item_running(item)));
        }
        let execution = self.open.get(&item);
        let ended_well = execution.filter(|execution| execution.ending == Some(Ending::Success));
        if ended_well.is_some_and(|execution| checkpoints.is_of(item, execution.planned.scheduled))
            && !mutant!(CheckpointLeft)
        {
            transaction.push(Operation::delete(cx.identity.own_paths.checkpoint(item)));
        }
        if !execution.is_some_and(|execution| execution.taken_over) || mutant!(TakeoverNodesLeft) {
            pass_on(cx, transaction, item);
            return;
        }
        let Some(view) = cx.view.item(item) else { return };
        let mine = |taker: &&Taker| taker.instance == cx.identity.instance;
        if let Some(taker) = view.failovering.as_ref().filter(mine) {
            let (path, version) = (paths.item_failovering(item), Some(taker.version));
            transaction.push(Operation::Delete { path, version });
        }
        if view.failover.as_ref().filter(mine).is_some() {
            transaction.push(Operation::delete(paths.item_failover(item)));
        }
    }

    /// Whether the view shows the item's running node as the one of this execution. A late Java survivor deletes it,
    /// and executes the item itself (H11).
    pub(crate) fn has_running_node(&self, cx: &Context, item: Item) -> bool {
        let Some(running) = cx.view.item(item).and_then(|view| view.running.as_ref()) else {
            return false;
        };
        let seen = self.open.get(&item).and_then(|execution| execution.running_seen);
        match &running.owner {
            Some(owner) => *owner == cx.identity.instance,
            None => seen.is_none_or(|seen| seen == running.seen),
        }
    }

    /// The running nodes are deleted: answer the reports.
    pub(crate) fn completed(&mut self, out: &mut Outbox) {
        for (item, _) in std::mem::take(&mut self.completing) {
            self.settle(item, CompletionStatus::Recorded, out);
        }
    }

    /// A node did not exist any more, or the outcome is unknown: read the nodes again, and delete them one by one if
    /// need be.
    pub(crate) fn complete_failed(
        &mut self,
        cx: &Context,
        checkpoints: &mut Checkpoints,
        out: &mut Outbox,
        error: &CommitError,
    ) {
        let completing = std::mem::take(&mut self.completing);
        let absent_node = error.index.filter(|_| matches!(error.error, Error::NoNode(_)));
        if absent_node.is_some() && !completing.iter().any(|(_, running)| *running == absent_node) {
            // The missing node may have been a checkpoint.
            checkpoints.doubt();
        }
        for (item, running) in completing {
            let taken_over = self.open.get(&item).is_some_and(|execution| execution.taken_over);
            if mutant!(CompletionAppliedTwice) {
                self.settle(item, CompletionStatus::Recorded, out);
            }
            if absent_node.is_some() && absent_node == running && !taken_over && !cx.rotates() {
                self.settle(item, CompletionStatus::Recorded, out);
            } else if !mutant!(CompletionDropped) {
                self.reported.push(item);
            }
        }
    }

    /// The items with running nodes that have this instance's id, though it does not execute them: a lost session, a
    /// former process or an unknown outcome has left them. Also after an operator's stop. Where items fail over, they
    /// are flagged instead (see `failover`).
    pub(crate) fn left_running(&self, cx: &Context, out: &Outbox) -> impl Iterator<Item = Item> {
        let ours = cx.was_registered() && !out.is_in_flight(Purpose::Start) && !cx.fails_over();
        let left = cx.view.running_of(&cx.identity.instance);
        left.filter(move |item| ours && !self.has_open(*item))
    }

    /// The running nodes of this instance's items that no other instance will delete: its own from earlier, and those
    /// with the id of an offline instance (H4).
    fn leftovers(&self, cx: &Context, liveness: &Liveness, out: &Outbox) -> Vec<Item> {
        let now = cx.now;
        let ours = self.left_running(cx, out);
        if !cx.is_registered() || out.is_in_flight(Purpose::Start) || cx.fails_over() {
            return ours.collect();
        }
        let mine = |item: &Item| cx.assigned.executable_item(*item).is_some();
        let is_orphan = |item: &Item| {
            let view = cx.view.item(*item);
            mine(item) && view.is_some_and(|view| is_leftover(liveness, view, now))
        };
        let orphans = cx.view.running_known().filter(is_orphan);
        ours.chain(orphans.filter(|item| !self.has_open(*item))).collect()
    }

    /// Records that an unknown running node blocks an item. The view is read again to learn its owner: a node that was
    /// left behind must not block its item for good (H4).
    pub(crate) fn suspect(&mut self, cx: &Context, item: Item) {
        if self.is_unknown(cx, item) {
            self.suspected.insert(item);
        }
    }

    /// Whether the item's running node is none of an open execution, and its owner was not read.
    fn is_unknown(&self, cx: &Context, item: Item) -> bool {
        let running = cx.view.item(item).and_then(|view| view.running.as_ref());
        running.is_some_and(|running| running.owner.is_none()) && !self.has_open(item)
    }

    /// Whether an item's running node may be one that this instance deletes: a request of its own that took effect
    /// late, or an offline instance, has left it. Or its owner is not known.
    pub(crate) fn may_be_left(&self, cx: &Context, item: Item) -> bool {
        let running = cx.view.item(item).and_then(|view| view.running.as_ref());
        let owner = running.and_then(|running| running.owner.as_ref());
        self.is_unknown(cx, item) || (owner == Some(&cx.identity.instance) && !cx.fails_over())
    }

    /// Has the view read again if unknown running nodes block items; not more often than once in a pause, except by an
    /// instance that leaves: it removes its own.
    pub(crate) fn investigate(&mut self, cx: &Context, out: &mut Outbox) {
        let now = cx.now.mono;
        self.update_interrupted(cx, out);
        let suspected = std::mem::take(&mut self.suspected);
        let mut unknown: BTreeSet<_> =
            suspected.into_iter().filter(|item| self.is_unknown(cx, *item)).collect();
        if (unknown.is_empty() && self.interrupted.is_empty()) || out.is_reading() {
            self.suspected.append(&mut unknown);
            return;
        }
        if self.pause_ends().is_some_and(|end| now < end) && !cx.phase.is_leaving() {
            if !mutant!(SuspicionForgotten) {
                self.suspected = unknown;
            }
            return;
        }
        self.investigated = Some(now);
        self.interrupted.values_mut().for_each(|is_being_read| *is_being_read = true);
        out.read_again();
    }

    /// Whether the view does not show yet whose running nodes interrupted executions have left. An instance that leaves
    /// waits for that, and then hands them over.
    pub(crate) fn awaits_interrupted(&mut self, cx: &Context, out: &Outbox) -> bool {
        self.update_interrupted(cx, out);
        !self.interrupted.is_empty()
    }

    fn update_interrupted(&mut self, cx: &Context, out: &Outbox) {
        for (item, is_being_read) in std::mem::take(&mut self.interrupted) {
            if !self.is_unknown(cx, item) {
                continue;
            }
            if is_being_read && !out.is_reading() {
                // It has no owner that can be read: a Java instance may have taken its place (H11).
                self.suspected.insert(item);
            } else {
                self.interrupted.insert(item, is_being_read);
            }
        }
    }

    /// When the view may be read again because of unknown running nodes, if there are any.
    pub(crate) fn next_investigation(&self) -> Option<Duration> {
        self.pause_ends().filter(|_| !self.suspected.is_empty() || !self.interrupted.is_empty())
    }

    fn pause_ends(&self) -> Option<Duration> {
        let pause = if self.interrupted.is_empty() { INVESTIGATION_PAUSE } else { INTERRUPTION_PAUSE };
        self.investigated.map(|at| at.saturating_add(pause))
    }
}

/// The application has reported an execution.
fn reported(cx: &Context, item: Item, execution: &Execution, outcome: &Outcome) -> Effect {
    let lasted = execution.begun.map(|begun| cx.now.mono.saturating_sub(begun));
    let (sent, source) = (execution.sent.clone(), execution.planned.source);
    Effect::Reported(Reported { item, sent, outcome: outcome.clone(), source, lasted })
}

/// Whether this result says that the execution stopped because its item's lock was lost, or because the application took
/// its lease for lost in a job that fails over. Its running node stays, as that of a crashed execution: it is flagged for
/// a failover, or removed (see [`Executions::left_running`]).
fn is_interrupted(cx: &Context, execution: &Execution, outcome: &Outcome) -> bool {
    let lock_lost = execution.limit.cancelled() == Some(CancelReason::ItemLockLost)
        && *outcome != Outcome::Success
        && !mutant!(ItemLockLossIsFailure);
    let lease_lost =
        matches!(outcome, Outcome::Interrupted(_)) && cx.fails_over() && !mutant!(InterruptionIsFailure);
    execution.state == State::Running && (lock_lost || lease_lost)
}
