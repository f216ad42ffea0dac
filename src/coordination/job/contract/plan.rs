//! An execution before it begins: its cause and the instant of its fire, and its start in flight.

use std::sync::Arc;

use crate::extension::ledger_entry::LedgerNode;
use crate::tree::Zxid;
use jiff::Timestamp;

/// The cause of an execution.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// The schedule.
    Schedule,
    /// A missed fire.
    Misfire,
    /// An operator's trigger.
    Trigger,
    /// Another instance crashed during its execution of the item.
    Failover,
}

/// An execution that is to start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Planned {
    pub(crate) source: Source,
    pub(crate) scheduled: Timestamp,
    /// The number of the attempt, from 1.
    pub(crate) attempt: u32,
    /// The transaction that created the trigger of its item; `None`: it has another cause.
    pub(crate) item_trigger: Option<Zxid>,
}

impl Planned {
    pub(crate) fn new(source: Source, scheduled: Timestamp) -> Self {
        Self { source, scheduled, attempt: 1, item_trigger: None }
    }

    /// An execution for the trigger of its item.
    pub(crate) fn for_item_trigger(created: Zxid, scheduled: Timestamp) -> Self {
        Self { item_trigger: Some(created), ..Self::new(Source::Trigger, scheduled) }
    }

    /// Whether this is the first attempt of an execution for the trigger of its instance.
    pub(crate) fn is_for_instance_trigger(self) -> bool {
        self.is_first_of(Source::Trigger) && self.item_trigger.is_none()
    }

    /// Whether an earlier attempt failed.
    pub(crate) fn is_retry(self) -> bool {
        self.attempt > 1
    }

    /// Whether this is the first attempt of an execution with this cause.
    pub(crate) fn is_first_of(self, source: Source) -> bool {
        self.source == source && !self.is_retry()
    }

    /// Whether it is for a fire of the schedule that no instance has started before.
    pub(crate) fn is_fire(self) -> bool {
        matches!(self.source, Source::Schedule | Source::Misfire)
    }
}

/// An execution whose running node is being created.
#[derive(Debug, Clone)]
pub(crate) struct Starting {
    pub(crate) planned: Planned,
    /// The index of the node's creation in the transaction.
    pub(crate) index: usize,
    /// The item's entry in the ledger after the transaction.
    pub(crate) entry: Option<LedgerNode>,
    /// The parameter that takes the place of the job's own.
    pub(crate) parameter: Option<Arc<str>>,
}
