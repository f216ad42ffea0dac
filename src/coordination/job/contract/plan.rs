//! An execution that is to start: what made it start, and for which instant.

use jiff::Timestamp;

use crate::coordination::job::contract::records::LedgerNode;

/// What made an execution start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// The schedule.
    Schedule,
    /// A missed fire.
    Misfire,
    /// Somebody asked for it.
    Trigger,
    /// Another instance crashed while it executed the item.
    Failover,
}

/// An execution that is to start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::coordination) struct Planned {
    pub(in crate::coordination) source: Source,
    pub(in crate::coordination) scheduled: Timestamp,
    /// Which attempt it is, from 1.
    pub(in crate::coordination) attempt: u32,
}

impl Planned {
    /// A first attempt.
    pub(in crate::coordination) fn new(source: Source, scheduled: Timestamp) -> Self {
        Self { source, scheduled, attempt: 1 }
    }

    /// Whether it was begun before, and failed.
    pub(in crate::coordination) fn is_retry(self) -> bool {
        self.attempt > 1
    }

    /// Whether this is what a source asks for, and no further attempt at it.
    pub(in crate::coordination) fn is_first_of(self, source: Source) -> bool {
        self.source == source && !self.is_retry()
    }

    /// Whether it is for a fire of the schedule that nobody has started before.
    pub(in crate::coordination) fn is_fire(self) -> bool {
        matches!(self.source, Source::Schedule | Source::Misfire)
    }
}

/// An execution whose running node is being created.
#[derive(Debug, Clone, Copy)]
pub(in crate::coordination) struct Starting {
    pub(in crate::coordination) planned: Planned,
    /// The index of the node's creation in the transaction.
    pub(in crate::coordination) index: usize,
    /// What the transaction makes of the item's node in the ledger.
    pub(in crate::coordination) entry: Option<LedgerNode>,
}
