//! What has ended? A report of the application, the deletion of the running nodes, the answer to the report (protocol
//! 6.1; P5, P6).
//!
//! The nodes are deleted in batches: one transaction is in flight, and what is reported meanwhile makes the next. A
//! report is answered when its nodes are gone. Running nodes that nobody will delete are deleted here as well (H4).

use std::time::Duration;

use crate::coordination::job::contract::answer::{Answer, CompletionStatus, Refusal, Ticket};
use crate::coordination::job::contract::commit::Purpose;
use crate::coordination::job::contract::effect::Effect;
use crate::coordination::job::contract::report::ExecutionResult;
use crate::coordination::job::execution::checkpoint::Checkpoints;
use crate::coordination::job::execution::ending::{Ended, Ending};
use crate::coordination::job::execution::state::{Executions, Report, State};
use crate::coordination::job::frame::context::Context;
use crate::coordination::job::frame::outbox::Outbox;
use crate::coordination::job::frame::phase::Phase;
use crate::coordination::job::membership::liveness::{Crash, is_leftover};
use crate::coordination::job::picture::nodes::Taker;
use crate::coordination::job::rotation::pass_on;
use crate::excerpt::Excerpt;
use crate::job::Item;
use crate::mutants::mutant;
use crate::tree::{CommitError, Error, Operation, Transaction};

/// How often the view is read again because of running nodes in the way, at most.
const INVESTIGATION_PAUSE: Duration = Duration::from_secs(10);

impl Executions {
    /// Closes an execution, and answers the reports that waited for it last.
    pub(in crate::coordination) fn settle(&mut self, item: Item, status: CompletionStatus, out: &mut Outbox) {
        let Some(execution) = self.open.remove(&item) else { return };
        self.by_number.remove(&execution.number);
        self.deadlines.forget(execution.number, execution.limit);
        if let Some(ending) = execution.ending.filter(|_| status == CompletionStatus::Recorded) {
            let (number, planned, cancelled) =
                (execution.number, execution.planned, execution.limit.cancelled);
            self.ended.push((item, Ended { number, planned, ending, cancelled }));
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

    /// Takes a report of results.
    pub(in crate::coordination) fn report(
        &mut self,
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
                (Some(item), Some(execution)) => {
                    if execution.state == State::Running {
                        execution.state = State::Reported;
                        execution.ending = Some(Ending::from(&result.outcome));
                        self.reported.push(item);
                        out.push(Effect::Reported(item, result.outcome.clone()));
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

    /// Deletes the running nodes of what was reported, in one batch while another is in flight.
    pub(in crate::coordination) fn complete(
        &mut self,
        cx: &Context,
        crash: &Crash,
        checkpoints: &Checkpoints,
        out: &mut Outbox,
    ) {
        let leftovers = self.leftovers(cx, crash, out);
        if self.reported.is_empty() && leftovers.is_empty() {
            return;
        }
        if !out.may_commit(cx, Purpose::Complete) || matches!(cx.phase, Phase::Leaving(_)) {
            return;
        }
        // A request of a session that we have given up may come late: after a division, or our next registration, the
        // running node is another one, under the same version.
        let mut transaction: Transaction = cx.undivided().filter(|_| cx.monitors()).into_iter().collect();
        let mut size = 0;
        let mut rest = Vec::new();
        let check = transaction.len();
        for item in std::mem::take(&mut self.reported) {
            if size >= cx.transaction_bytes {
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
            if size >= cx.transaction_bytes {
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

    /// The steps that say that an execution of ours has ended: it runs no more, and if it was taken over it is ours no
    /// more.
    pub(in crate::coordination) fn end_execution(
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
            transaction.push(Operation::delete(paths.checkpoint(item)));
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

    /// Whether an item's running node is the one of our execution, as far as the view tells: a Java survivor that is late
    /// deletes it, and executes the item itself (H11).
    pub(in crate::coordination) fn has_running_node(&self, cx: &Context, item: Item) -> bool {
        let Some(running) = cx.view.item(item).and_then(|view| view.running.as_ref()) else {
            return false;
        };
        let seen = self.open.get(&item).and_then(|execution| execution.running_seen);
        match &running.owner {
            Some(owner) => *owner == cx.identity.instance,
            None => seen.is_none_or(|seen| seen == running.seen),
        }
    }

    /// The running nodes are gone: answer the reports.
    pub(in crate::coordination) fn completed(&mut self, out: &mut Outbox) {
        for (item, _) in std::mem::take(&mut self.completing) {
            self.settle(item, CompletionStatus::Recorded, out);
        }
    }

    /// Some node was gone already, or the outcome is unknown: look again, one by one if need be.
    pub(in crate::coordination) fn complete_failed(
        &mut self,
        cx: &Context,
        checkpoints: &mut Checkpoints,
        out: &mut Outbox,
        error: &CommitError,
    ) {
        let completing = std::mem::take(&mut self.completing);
        let gone = error.index.filter(|_| matches!(error.error, Error::NoNode(_)));
        if gone.is_some() && !completing.iter().any(|(_, running)| *running == gone) {
            // Maybe it was a checkpoint.
            checkpoints.doubt();
        }
        for (item, running) in completing {
            let taken_over = self.open.get(&item).is_some_and(|execution| execution.taken_over);
            if mutant!(CompletionAppliedTwice) {
                self.settle(item, CompletionStatus::Recorded, out);
            }
            if gone.is_some() && gone == running && !taken_over && !cx.is_relay() {
                self.settle(item, CompletionStatus::Recorded, out);
            } else if !mutant!(CompletionDropped) {
                self.reported.push(item);
            }
        }
    }

    /// Running nodes with our id while we execute nothing there: what a lost session, a former process or an unknown outcome
    /// left. Also of who was stopped by an operator. Where items fail over, what was left is flagged instead (see
    /// `failover`).
    pub(in crate::coordination) fn left_running(
        &self,
        cx: &Context,
        out: &Outbox,
    ) -> impl Iterator<Item = Item> {
        let ours = cx.was_registered() && !out.is_in_flight(Purpose::Start) && !cx.fails_over();
        let left = cx.view.running_of(&cx.identity.instance);
        left.filter(move |item| ours && !self.has_open(*item))
    }

    /// Running nodes of our items that nobody will delete: what we have left, or with the id of an instance that is not
    /// online (H4).
    fn leftovers(&self, cx: &Context, crash: &Crash, out: &Outbox) -> Vec<Item> {
        let now = cx.now;
        let ours = self.left_running(cx, out);
        if !cx.is_registered() || out.is_in_flight(Purpose::Start) || cx.fails_over() {
            return ours.collect();
        }
        let mine = |item: &Item| cx.assigned.executable_item(*item).is_some();
        let is_orphan = |item: &Item| {
            let view = cx.view.item(*item);
            mine(item) && view.is_some_and(|view| is_leftover(crash, view, now))
        };
        let orphans = cx.view.running_known().filter(is_orphan);
        ours.chain(orphans.filter(|item| !self.has_open(*item))).collect()
    }

    /// Notes that a running node is in the way. If nobody knows whose it is, the view is read again, which tells: one
    /// that was left behind must not block its item for good (H4).
    pub(in crate::coordination) fn suspect(&mut self, cx: &Context, item: Item) {
        let running = cx.view.item(item).and_then(|view| view.running.as_ref());
        let unknown = running.is_some_and(|running| running.owner.is_none());
        if unknown && !self.has_open(item) {
            self.suspicious = true;
        }
    }

    /// Has the view read again if a running node is in the way that nobody knows.
    pub(in crate::coordination) fn investigate(&mut self, cx: &Context, out: &mut Outbox) {
        let now = cx.now;
        let recent = self.investigated.is_some_and(|at| now.mono < at.saturating_add(INVESTIGATION_PAUSE));
        if std::mem::take(&mut self.suspicious) && !recent {
            self.investigated = Some(now.mono);
            out.read_again();
        }
    }
}
