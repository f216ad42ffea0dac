//! Until when may an execution go on, and what happens then? (`sidekeeper.execution-timeout`,
//! `sidekeeper.cancel-grace`.)
//!
//! An execution whose deadline has passed is cancelled. For every cancelled execution, whatever the reason,
//! `cancel_grace` is the time in which the application has to report it. An application that does not report in time is
//! unresponsive, and cannot be trusted to have stopped: its stream is closed, and its executions are handled as after a
//! crash. A drain has `drain_cancel_grace` (see [`crate::coordination::job::lifecycle::departure`]).
//!
//! The stream is closed before the items are handed over. So the application may read that its instance has left, but
//! never that it still owns an item that another instance executes. If the job has a `reattach_grace`, the hand-over
//! waits for that too, because the stream may have broken before the application has read its end.
//!
//! Deadlines are monotonic: a clock that is set moves none.

use crate::coordination::job::contract::answer::{Answer, Cancelled, CompletionStatus, Refusal, Ticket};
use crate::coordination::job::contract::effect::{Effect, EndReason};
use crate::coordination::job::contract::event::{CancelReason, Event};
use crate::coordination::job::contract::input::CancelWish;
use crate::coordination::job::execution::checkpoint::Checkpoints;
use crate::coordination::job::execution::limit::Limit;
use crate::coordination::job::execution::retry::Retries;
use crate::coordination::job::execution::{Executions, State};
use crate::coordination::job::frame::context::Context;
use crate::coordination::job::frame::outbox::Outbox;
use crate::coordination::job::frame::phase::Verdict;
use crate::findings::problem::{Problem, ProblemCode};
use crate::job::Item;
use crate::mutants::mutant;

/// How many lost executions are remembered. A late report of one is answered with `LeaseLost`, not with
/// `AlreadyRecorded`.
const LOST_REMEMBERED: usize = 1024;

impl Executions {
    /// Cancels all executions, whose reports are too late from now on.
    pub(crate) fn cancel_executions(&mut self, cx: &Context, out: &mut Outbox, reason: CancelReason) {
        let lost = reason == CancelReason::LeaseLost;
        if lost {
            self.forget_starting();
            self.completing.clear();
            for item in std::mem::take(&mut self.reported) {
                self.settle(item, CompletionStatus::LeaseLost, out);
            }
        }
        let open: Vec<_> = self.open.iter().map(|(item, open)| (*item, open.number)).collect();
        for (item, number) in open {
            let Some(execution) = self.open.get_mut(&item) else { continue };
            match execution.state {
                State::Reported if lost => {
                    self.settle(item, CompletionStatus::LeaseLost, out);
                }
                State::Running => {
                    if lost {
                        execution.state = State::Lost;
                        self.remember_lost(number);
                    }
                    self.stop_execution(cx, out, item, reason);
                }
                State::Reported | State::Lost => {}
            }
        }
    }

    pub(super) fn remember_lost(&mut self, number: u64) {
        self.lost.insert(number);
        if self.lost.len() > LOST_REMEMBERED {
            self.lost.pop_first();
        }
    }

    /// The lock of an item is lost: its execution has to stop. A result that was reported before counts.
    pub(crate) fn lose_lock(&mut self, cx: &Context, out: &mut Outbox, item: Item) {
        if self.open.get(&item).is_some_and(|execution| execution.state == State::Running) {
            self.stop_execution(cx, out, item, CancelReason::ItemLockLost);
        }
    }

    /// Cancels an execution.
    pub(crate) fn stop_execution(
        &mut self,
        cx: &Context,
        out: &mut Outbox,
        item: Item,
        reason: CancelReason,
    ) {
        let Some(execution) = self.open.get_mut(&item) else { return };
        let number = execution.number;
        self.deadlines.forget(number, execution.limit);
        execution.limit = Limit::stopping(reason);
        self.deadlines.begins_cancel_grace(number);
        let execution_id = self.id(item, number);
        out.notify(cx, Event::Cancel { execution_id, item, reason });
    }

    /// Cancels executions for an operator, or only names them.
    pub(crate) fn cancel_by_operator(
        &mut self,
        cx: &Context,
        retries: &mut Retries,
        checkpoints: &mut Checkpoints,
        out: &mut Outbox,
        ticket: Ticket,
        wish: &CancelWish,
    ) {
        let CancelWish { items, execution_ids, only_named } = wish;
        if let Some(settings) = &cx.settings {
            let total = settings.configuration.sharding_total_count;
            // An item beyond a lowered total may still be executed.
            let is_known = |item: &Item| item.0 < total || self.open.contains_key(item);
            if let Some(item) = items.iter().flatten().find(|item| !is_known(item)) {
                let refusal = Refusal::UnknownItem { item: *item, total };
                out.push(Effect::Answer(ticket, Answer::Refused(refusal)));
                return;
            }
        }
        let wanted = |item: Item, id: &str| {
            items.as_ref().is_none_or(|items| items.contains(&item))
                && execution_ids.as_ref().is_none_or(|ids| ids.contains(id))
        };
        let running = self.running().map(|(item, open)| (item, self.id(item, open.number)));
        let running: Vec<_> = running.filter(|(item, id)| wanted(*item, id)).collect();
        let waiting = retries.failed_attempts().map(|(item, failed, _)| (item, self.id(item, failed)));
        let waiting: Vec<_> = waiting.filter(|(item, id)| wanted(*item, id)).collect();
        if !only_named {
            for (item, _) in &running {
                self.cancel_for_operator(cx, out, *item);
            }
            for (item, _) in &waiting {
                retries.cancel_retry(checkpoints, out, *item);
            }
        }
        let named = |was_waiting| move |(item, execution_id)| Cancelled { item, execution_id, was_waiting };
        let mut cancelled: Vec<_> = running.into_iter().map(named(false)).collect();
        cancelled.extend(waiting.into_iter().map(named(true)));
        cancelled.sort_by_key(|cancelled| cancelled.item);
        out.push(Effect::Answer(ticket, Answer::Cancelled(cancelled)));
    }

    /// Cancels the running execution of an item for an operator.
    pub(super) fn cancel_for_operator(&mut self, cx: &Context, out: &mut Outbox, item: Item) {
        let Some(open) = self.open.get_mut(&item) else { return };
        match open.limit.cancelled() {
            None => self.stop_execution(cx, out, item, CancelReason::Operator),
            // The execution was cancelled before; the operator's reason prevents a retry.
            Some(_) => open.limit.stopped_for(CancelReason::Operator),
        }
    }

    /// Cancels executions whose deadline has passed. Disconnects an unresponsive application.
    pub(crate) fn enforce_deadlines(&mut self, cx: &Context, out: &mut Outbox) -> Verdict {
        let now = cx.now;
        self.begin_cancel_grace(cx);
        while !cx.phase.is_leaving()
            && let Some(number) = self.deadlines.pop(now.mono)
        {
            let Some(item) = self.by_number.get(&number).copied() else { continue };
            let Some(execution) = self.open.get(&item) else { continue };
            match (&execution.state, execution.limit.cancelled()) {
                // The application has reported; the registry has not deleted the running node yet.
                (State::Reported, _) => {}
                (State::Running | State::Lost, None) if mutant!(DeadlineIgnored) => {}
                (State::Running | State::Lost, Some(_)) if mutant!(UnresponsiveLeftAlone) => {}
                (State::Running | State::Lost, None) => {
                    self.stop_execution(cx, out, item, CancelReason::Deadline);
                    self.begin_cancel_grace(cx);
                }
                (State::Running | State::Lost, Some(reason)) => {
                    return disconnect_unresponsive(cx, out, item, self.id(item, number), reason);
                }
            }
        }
        Verdict::Continue
    }

    /// Starts `cancel_grace` of the executions that were cancelled in this step.
    fn begin_cancel_grace(&mut self, cx: &Context) {
        let now = cx.now;
        let until = now.mono.saturating_add(cx.policy().cancel_grace);
        for number in self.deadlines.take_stopping() {
            let item = self.by_number.get(&number);
            let Some(execution) = item.and_then(|item| self.open.get_mut(item)) else { continue };
            // A drain that has cancelled all executions has its own wait.
            if execution.limit.cancelled() != Some(CancelReason::DrainTimeout) {
                execution.limit.report_until(until);
                self.deadlines.watch(number, execution.limit);
            }
        }
    }
}

/// The application has not stopped a cancelled execution in time.
fn disconnect_unresponsive(
    cx: &Context,
    out: &mut Outbox,
    item: Item,
    execution_id: String,
    reason: CancelReason,
) -> Verdict {
    let grace = cx.policy().cancel_grace;
    let message = format!(
        "the application has not reported execution {execution_id} of item {item} within {grace:?} after it was \
         cancelled ({reason:?}); its stream is closed, and its items are handled as after a crash"
    );
    out.push(Effect::Warn(Problem {
        path: cx.identity.paths.item_running(item),
        message,
        code: ProblemCode::ItemCancelIgnored,
    }));
    Verdict::Disconnect(EndReason::Unresponsive { item, execution_id, grace })
}
