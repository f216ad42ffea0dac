//! Until when may an execution go on, and what happens then? (`sidekeeper.execution-timeout`, `sidekeeper.cancel-grace`.)
//!
//! An execution whose deadline has passed is told to stop. One that was told to stop, for whatever reason, has a grace in
//! which it has to be reported. An application that lets it pass cannot be trusted to have stopped: its stream is closed,
//! and what it executed is handled as after a crash. A drain has a grace of its own (see [`crate::coordination::job::lifecycle::departure`]).
//!
//! Deadlines are monotonic: a clock that is set moves none.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::job::{Item, Problem};
use crate::mutants::mutant;

use crate::coordination::job::contract::answer::Ticket;
use crate::coordination::job::contract::answer::{Answer, Cancelled, Refusal};
use crate::coordination::job::contract::effect::{Effect, EndReason};
use crate::coordination::job::contract::event::{CancelReason, Event};
use crate::coordination::job::execution::state::State;
use crate::coordination::job::frame::phase::Phase;
use crate::coordination::job::participant::Participant;

/// Until when one execution may go on.
#[derive(Debug, Clone, Copy, Default)]
pub(in crate::coordination) struct Limit {
    /// When it is told to stop, or if it was, when it has to be reported; monotonic.
    at: Option<Duration>,
    /// Why it was told to stop.
    pub(in crate::coordination) cancelled: Option<CancelReason>,
}

impl Limit {
    /// How long it may go on, or has to be reported.
    pub(in crate::coordination) fn remaining(self, now: Duration) -> Option<Duration> {
        self.at.map(|at| at.saturating_sub(now))
    }

    /// It was told to stop, and has to be reported until then.
    pub(in crate::coordination) fn told_to_stop(at: Duration, reason: CancelReason) -> Self {
        Self { at: Some(at), cancelled: Some(reason) }
    }

    /// It may go on until then.
    pub(in crate::coordination) fn until(at: Option<Duration>) -> Self {
        Self { at, cancelled: None }
    }
}

/// The limits of all open executions, by time.
#[derive(Debug, Default)]
pub(in crate::coordination) struct Deadlines {
    due: BTreeSet<(Duration, u64)>,
    /// Executions that were told to stop in this step; their grace begins with its end.
    told: BTreeSet<u64>,
}

impl Deadlines {
    /// When the next limit is reached.
    pub(in crate::coordination) fn next_retry(&self, now: Duration) -> Option<Duration> {
        self.due.first().map(|(at, _)| *at).filter(|at| *at > now)
    }

    /// Watches an execution's limit.
    pub(in crate::coordination) fn watch(&mut self, number: u64, limit: Limit) {
        self.due.extend(limit.at.map(|at| (at, number)));
    }

    /// Watches it no more.
    pub(in crate::coordination) fn forget(&mut self, number: u64, limit: Limit) {
        if let Some(at) = limit.at {
            self.due.remove(&(at, number));
        }
        self.told.remove(&number);
    }

    fn pop(&mut self, now: Duration) -> Option<u64> {
        let (_, number) = self.due.first().copied().filter(|(at, _)| *at <= now)?;
        self.due.pop_first();
        Some(number)
    }
}

impl Participant {
    /// Tells the application to stop an execution.
    pub(in crate::coordination) fn stop_execution(&mut self, item: Item, reason: CancelReason) {
        let executions = &mut self.executions;
        let Some(execution) = executions.open.get_mut(&item) else { return };
        let number = execution.number;
        executions.deadlines.forget(number, execution.limit);
        execution.limit = Limit { at: None, cancelled: Some(reason) };
        executions.deadlines.told.insert(number);
        let execution_id = executions.id(item, number);
        self.out.tell(&self.cx, Event::Cancel { execution_id, item, reason });
    }

    /// Stops what an operator wants to be stopped: the executions of these items, or all.
    pub(in crate::coordination) fn cancel_by_operator(
        &mut self,
        ticket: Ticket,
        items: Option<&BTreeSet<Item>>,
    ) {
        if let Some(settings) = &self.cx.settings {
            let total = settings.configuration.sharding_total_count;
            // An item beyond a lowered total may still be executed.
            let is_known = |item: &Item| item.0 < total || self.executions.open.contains_key(item);
            if let Some(item) = items.into_iter().flatten().find(|item| !is_known(item)) {
                let refusal = Refusal::UnknownItem { item: *item, total };
                self.out.push(Effect::Answer(ticket, Answer::Refused(refusal)));
                return;
            }
        }
        let wanted = |item: &Item| items.is_none_or(|items| items.contains(item));
        let open = self.executions.open.iter().filter(|(item, _)| wanted(item));
        let running = open.filter(|(_, open)| open.state == State::Running);
        let running: Vec<_> =
            running.map(|(item, open)| (*item, open.number, open.limit.cancelled)).collect();
        let mut cancelled = Vec::new();
        for (item, number, told) in running {
            match told {
                None => self.stop_execution(item, CancelReason::Operator),
                // It was told to stop, and is not to be tried again because of that.
                Some(_) => {
                    if let Some(execution) = self.executions.open.get_mut(&item) {
                        execution.limit.cancelled = Some(CancelReason::Operator);
                    }
                }
            }
            let execution_id = self.executions.id(item, number);
            cancelled.push(Cancelled { item, execution_id, was_waiting: false });
        }
        let waiting: Vec<_> = self.items_to_retry().filter(wanted).collect();
        cancelled.extend(waiting.into_iter().filter_map(|item| self.cancel_retry(item)));
        cancelled.sort_by_key(|cancelled| cancelled.item);
        self.out.push(Effect::Answer(ticket, Answer::Cancelled(cancelled)));
    }

    /// Stops what has run for too long, and leaves if the application does not obey.
    pub(in crate::coordination) fn enforce_deadlines(&mut self) {
        let now = self.cx.now;
        self.begin_grace();
        while !matches!(self.cx.phase, Phase::Leaving(_) | Phase::Ended)
            && let Some(number) = self.executions.deadlines.pop(now.mono)
        {
            let Some(item) = self.executions.by_number.get(&number).copied() else { continue };
            let Some(execution) = self.executions.open.get(&item) else { continue };
            match (&execution.state, execution.limit.cancelled) {
                // Its part is done; the registry's is not.
                (State::Reported, _) => {}
                (State::Running | State::Lost, None) if mutant!(DeadlineIgnored) => {}
                (State::Running | State::Lost, Some(_)) if mutant!(DisobedienceIgnored) => {}
                (State::Running | State::Lost, None) => {
                    self.stop_execution(item, CancelReason::Deadline);
                    self.begin_grace();
                }
                (State::Running | State::Lost, Some(reason)) => {
                    self.expel(item, self.executions.id(item, number), reason);
                }
            }
        }
    }

    /// Gives those that were told to stop their time.
    fn begin_grace(&mut self) {
        let now = self.cx.now;
        let until = now.mono.saturating_add(self.cx.policy().cancel_grace);
        let executions = &mut self.executions;
        for number in std::mem::take(&mut executions.deadlines.told) {
            let item = executions.by_number.get(&number);
            let Some(execution) = item.and_then(|item| executions.open.get_mut(item)) else { continue };
            // A drain that has told everybody to stop waits for itself.
            if execution.limit.cancelled != Some(CancelReason::DrainTimeout) {
                execution.limit.at = Some(until);
                executions.deadlines.watch(number, execution.limit);
            }
        }
    }

    /// The application does not stop when it is told to.
    fn expel(&mut self, item: Item, execution_id: String, reason: CancelReason) {
        let grace = self.cx.policy().cancel_grace;
        let message = format!(
            "the application has not reported execution {execution_id} of item {item} within {grace:?} after it was \
             told to stop ({reason:?}); its stream is closed, and its items are handled as after a crash"
        );
        self.out.push(Effect::Warn(Problem { path: self.cx.identity.paths.item_running(item), message }));
        self.turn_away(EndReason::Disobedient { item, execution_id, grace });
    }
}
