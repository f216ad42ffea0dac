//! Until when each execution may go on, or has to be reported. Decides nothing.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::coordination::job::contract::event::CancelReason;

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

    /// It was told to stop just now; its grace has not begun.
    pub(in crate::coordination) fn stopping(reason: CancelReason) -> Self {
        Self { at: None, cancelled: Some(reason) }
    }

    /// It has to be reported until then.
    pub(in crate::coordination) fn report_until(&mut self, at: Duration) {
        self.at = Some(at);
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

    /// An execution was told to stop; its grace begins with the end of the step.
    pub(in crate::coordination) fn begins_grace(&mut self, number: u64) {
        self.told.insert(number);
    }

    /// Takes the executions whose grace begins.
    pub(in crate::coordination) fn take_stopping(&mut self) -> BTreeSet<u64> {
        std::mem::take(&mut self.told)
    }

    /// Watches it no more.
    pub(in crate::coordination) fn forget(&mut self, number: u64, limit: Limit) {
        if let Some(at) = limit.at {
            self.due.remove(&(at, number));
        }
        self.told.remove(&number);
    }

    /// Takes an execution whose limit is reached.
    pub(in crate::coordination) fn pop(&mut self, now: Duration) -> Option<u64> {
        let (_, number) = self.due.first().copied().filter(|(at, _)| *at <= now)?;
        self.due.pop_first();
        Some(number)
    }
}
