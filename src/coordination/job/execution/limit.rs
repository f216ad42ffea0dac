//! The deadline of each execution, and of the report after a cancellation. Decides nothing.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::coordination::job::contract::event::CancelReason;

/// The limit of one execution.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Limit {
    /// When the execution is cancelled, or if it was, when it has to be reported; monotonic.
    at: Option<Duration>,
    /// Why the execution was cancelled.
    cancelled: Option<CancelReason>,
}

impl Limit {
    /// The time until the limit.
    pub(crate) fn remaining(self, now: Duration) -> Option<Duration> {
        self.at.map(|at| at.saturating_sub(now))
    }

    pub(crate) fn cancelled(self) -> Option<CancelReason> {
        self.cancelled
    }

    /// A cancelled execution has another reason now.
    pub(crate) fn stopped_for(&mut self, reason: CancelReason) {
        self.cancelled = Some(reason);
    }

    /// The limit of a cancelled execution that has to be reported until `at`.
    pub(crate) fn report_by(at: Duration, reason: CancelReason) -> Self {
        Self { at: Some(at), cancelled: Some(reason) }
    }

    /// The limit of an execution that was cancelled in this step; its `cancel_grace` has not begun.
    pub(crate) fn stopping(reason: CancelReason) -> Self {
        Self { at: None, cancelled: Some(reason) }
    }

    /// The cancelled execution has to be reported until `at`.
    pub(crate) fn report_until(&mut self, at: Duration) {
        self.at = Some(at);
    }

    /// The limit of an execution that may go on until `at`.
    pub(crate) fn until(at: Option<Duration>) -> Self {
        Self { at, cancelled: None }
    }
}

/// The limits of all open executions, by time.
#[derive(Debug, Default)]
pub(crate) struct Deadlines {
    due: BTreeSet<(Duration, u64)>,
    /// Executions that were cancelled in this step; their `cancel_grace` begins at its end.
    cancelled_now: BTreeSet<u64>,
}

impl Deadlines {
    /// When the next limit is reached.
    pub(crate) fn next_retry(&self, now: Duration) -> Option<Duration> {
        self.due.first().map(|(at, _)| *at).filter(|at| *at > now)
    }

    pub(crate) fn watch(&mut self, number: u64, limit: Limit) {
        self.due.extend(limit.at.map(|at| (at, number)));
    }

    /// An execution was cancelled; its `cancel_grace` begins at the end of the step.
    pub(crate) fn begins_cancel_grace(&mut self, number: u64) {
        self.cancelled_now.insert(number);
    }

    /// Takes the executions whose `cancel_grace` begins.
    pub(crate) fn take_stopping(&mut self) -> BTreeSet<u64> {
        std::mem::take(&mut self.cancelled_now)
    }

    pub(crate) fn forget(&mut self, number: u64, limit: Limit) {
        if let Some(at) = limit.at {
            self.due.remove(&(at, number));
        }
        self.cancelled_now.remove(&number);
    }

    /// Takes an execution whose limit is reached.
    pub(crate) fn pop(&mut self, now: Duration) -> Option<u64> {
        let (_, number) = self.due.first().copied().filter(|(at, _)| *at <= now)?;
        self.due.pop_first();
        Some(number)
    }
}
