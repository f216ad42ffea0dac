//! An execution that is to start: what made it start, and for which instant.

use jiff::Timestamp;

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
