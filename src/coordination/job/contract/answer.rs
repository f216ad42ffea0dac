//! The answers to calls of the application and of operators.

use std::time::Duration;

use jiff::Timestamp;

use crate::coordination::job::contract::event::SessionStatus;
use crate::excerpt::Excerpt;
use crate::job::{Generation, Item};

/// Names a call of the application that waits for an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ticket(pub u64);

/// The answer to a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// What became of the reported results, in the request's order.
    Recorded(Vec<(String, CompletionStatus)>),
    /// The acknowledgement was taken.
    Acknowledged,
    /// Until when the session may be acted on.
    Lease {
        /// The session.
        status: SessionStatus,
        /// When that is over, on the monotonic clock; `None`: no end is to be expected.
        lease_end: Option<Duration>,
    },
    /// These executions were told to stop, or are not tried again.
    Cancelled(Vec<Cancelled>),
    /// The progress was taken; a checkpoint is recorded.
    Progressed {
        /// Until when the execution may go on; `None`: no limit, or it is to stop.
        deadline: Option<Timestamp>,
        /// Whether it is to stop.
        cancelled: bool,
        /// Whether the checkpoint was not recorded, because a newer one or the result came before.
        superseded: bool,
    },
    /// The listener's outcome was taken.
    ListenerReported {
        /// Whether the call was still waited for.
        in_time: bool,
    },
    /// The call was refused, and changed nothing.
    Refused(Refusal),
}

/// An execution that an operator has cancelled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cancelled {
    /// Its item.
    pub item: Item,
    /// The execution; of one that waits to be tried again, the attempt that failed.
    pub execution_id: String,
    /// Whether it waited to be tried again.
    pub was_waiting: bool,
}

/// Why a call was refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// An execution that this attachment never had, by its index in the request.
    UnknownExecution {
        /// Index in the request.
        index: usize,
        /// What was given.
        execution_id: Excerpt,
    },
    /// An execution that this attachment never had.
    UnknownProgress {
        /// What was given.
        execution_id: Excerpt,
    },
    /// An execution whose result was reported, or whose lease was lost.
    ExecutionOver {
        /// What was given.
        execution_id: Excerpt,
    },
    /// A call of a listener that this attachment never had.
    UnknownCall {
        /// What was given.
        call_id: Excerpt,
    },
    /// An item that the job does not have.
    UnknownItem {
        /// What was given.
        item: Item,
        /// How many items the job has.
        total: u32,
    },
    /// A generation that was never told.
    UnknownGeneration {
        /// What was given.
        given: Generation,
        /// The newest that was told.
        newest: Generation,
    },
}

/// The fate of a result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CompletionStatus {
    /// The running node is gone.
    Recorded,
    /// It was recorded before.
    AlreadyRecorded,
    /// The lease was lost during the execution.
    LeaseLost,
}
