//! Until when may an execution go on, and what happens then? (`sidekeeper.execution-timeout`, `sidekeeper.cancel-grace`.)
//!
//! An execution whose deadline has passed is told to stop. One that was told to stop, for whatever reason, has a grace in
//! which it has to be reported. An application that lets it pass cannot be trusted to have stopped: its stream is closed,
//! and what it executed is handled as after a crash. A drain has a grace of its own (see [`crate::coordination::job::lifecycle::departure`]).
//!
//! Deadlines are monotonic: a clock that is set moves none.

use std::collections::BTreeSet;

use crate::coordination::job::contract::answer::{Answer, Cancelled, CompletionStatus, Refusal, Ticket};
use crate::coordination::job::contract::effect::{Effect, EndReason};
use crate::coordination::job::contract::event::{CancelReason, Event};
use crate::coordination::job::execution::checkpoint::Checkpoints;
use crate::coordination::job::execution::limit::Limit;
use crate::coordination::job::execution::retry::Retries;
use crate::coordination::job::execution::state::{Executions, State};
use crate::coordination::job::frame::context::Context;
use crate::coordination::job::frame::outbox::Outbox;
use crate::coordination::job::frame::phase::Phase;
use crate::coordination::job::frame::verdict::Verdict;
use crate::job::{Item, Problem};
use crate::mutants::mutant;

/// Lost executions whose late reports are still told apart from recorded ones.
const LOST_REMEMBERED: usize = 1024;

impl Executions {
    /// Tells the application to stop everything; a report after that is too late.
    pub(in crate::coordination) fn cancel_executions(
        &mut self,
        cx: &Context,
        out: &mut Outbox,
        reason: CancelReason,
    ) {
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
                        self.lost.insert(number);
                        if self.lost.len() > LOST_REMEMBERED {
                            self.lost.pop_first();
                        }
                    }
                    self.stop_execution(cx, out, item, reason);
                }
                State::Reported | State::Lost => {}
            }
        }
    }

    /// Tells the application to stop an execution.
    pub(in crate::coordination) fn stop_execution(
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
        self.deadlines.begins_grace(number);
        let execution_id = self.id(item, number);
        out.tell(cx, Event::Cancel { execution_id, item, reason });
    }

    /// Stops executions for an operator: those of these items, or all.
    pub(in crate::coordination) fn cancel_by_operator(
        &mut self,
        cx: &Context,
        retries: &mut Retries,
        checkpoints: &mut Checkpoints,
        out: &mut Outbox,
        ticket: Ticket,
        items: Option<&BTreeSet<Item>>,
    ) {
        if let Some(settings) = &cx.settings {
            let total = settings.configuration.sharding_total_count;
            // An item beyond a lowered total may still be executed.
            let is_known = |item: &Item| item.0 < total || self.open.contains_key(item);
            if let Some(item) = items.into_iter().flatten().find(|item| !is_known(item)) {
                let refusal = Refusal::UnknownItem { item: *item, total };
                out.push(Effect::Answer(ticket, Answer::Refused(refusal)));
                return;
            }
        }
        let wanted = |item: &Item| items.is_none_or(|items| items.contains(item));
        let open = self.open.iter().filter(|(item, _)| wanted(item));
        let running = open.filter(|(_, open)| open.state == State::Running);
        let running: Vec<_> =
            running.map(|(item, open)| (*item, open.number, open.limit.cancelled)).collect();
        let mut cancelled = Vec::new();
        for (item, number, told) in running {
            match told {
                None => self.stop_execution(cx, out, item, CancelReason::Operator),
                // It was told to stop, and is not to be tried again because of that.
                Some(_) => {
                    if let Some(execution) = self.open.get_mut(&item) {
                        execution.limit.cancelled = Some(CancelReason::Operator);
                    }
                }
            }
            let execution_id = self.id(item, number);
            cancelled.push(Cancelled { item, execution_id, was_waiting: false });
        }
        let waiting: Vec<_> = retries.items_to_retry().filter(wanted).collect();
        cancelled.extend(
            waiting.into_iter().filter_map(|item| retries.cancel_retry(self, checkpoints, out, item)),
        );
        cancelled.sort_by_key(|cancelled| cancelled.item);
        out.push(Effect::Answer(ticket, Answer::Cancelled(cancelled)));
    }

    /// Stops executions that run for too long. An application that does not obey is disconnected.
    pub(in crate::coordination) fn enforce_deadlines(&mut self, cx: &Context, out: &mut Outbox) -> Verdict {
        let now = cx.now;
        self.begin_grace(cx);
        while !matches!(cx.phase, Phase::Leaving(_) | Phase::Ended)
            && let Some(number) = self.deadlines.pop(now.mono)
        {
            let Some(item) = self.by_number.get(&number).copied() else { continue };
            let Some(execution) = self.open.get(&item) else { continue };
            match (&execution.state, execution.limit.cancelled) {
                // Its part is done; the registry's is not.
                (State::Reported, _) => {}
                (State::Running | State::Lost, None) if mutant!(DeadlineIgnored) => {}
                (State::Running | State::Lost, Some(_)) if mutant!(DisobedienceIgnored) => {}
                (State::Running | State::Lost, None) => {
                    self.stop_execution(cx, out, item, CancelReason::Deadline);
                    self.begin_grace(cx);
                }
                (State::Running | State::Lost, Some(reason)) => {
                    return expel(cx, out, item, self.id(item, number), reason);
                }
            }
        }
        Verdict::Continue
    }

    /// Gives those that were told to stop their time.
    fn begin_grace(&mut self, cx: &Context) {
        let now = cx.now;
        let until = now.mono.saturating_add(cx.policy().cancel_grace);
        for number in self.deadlines.take_stopping() {
            let item = self.by_number.get(&number);
            let Some(execution) = item.and_then(|item| self.open.get_mut(item)) else { continue };
            // A drain that has told everybody to stop waits for itself.
            if execution.limit.cancelled != Some(CancelReason::DrainTimeout) {
                execution.limit.report_until(until);
                self.deadlines.watch(number, execution.limit);
            }
        }
    }
}

/// The application does not stop when it is told to.
fn expel(cx: &Context, out: &mut Outbox, item: Item, execution_id: String, reason: CancelReason) -> Verdict {
    let grace = cx.policy().cancel_grace;
    let message = format!(
        "the application has not reported execution {execution_id} of item {item} within {grace:?} after it was \
         told to stop ({reason:?}); its stream is closed, and its items are handled as after a crash"
    );
    out.push(Effect::Warn(Problem { path: cx.identity.paths.item_running(item), message }));
    Verdict::Disconnect(EndReason::Disobedient { item, execution_id, grace })
}
