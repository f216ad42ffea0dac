//! The answers to calls of applications and operators.

use std::time::Duration;

use jiff::Timestamp;

use crate::coordination::job::contract::event::SessionStatus;
use crate::excerpt::Excerpt;
use crate::job::{Generation, Item};

/// Names a call that waits for an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ticket(pub u64);

/// The answer to a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// The fate of each reported result, in the request's order.
    Recorded(Vec<(String, CompletionStatus)>),
    /// The sidecar has recorded the acknowledgement.
    Acknowledged,
    /// Until when the application may rely on the session.
    Lease {
        /// The state of the session.
        status: SessionStatus,
        /// The end of the lease, on the monotonic clock; `None`: the session has no expected end.
        lease_end: Option<Duration>,
    },
    /// The sidecar has cancelled these executions, or does not retry them.
    Cancelled(Vec<Cancelled>),
    /// The sidecar has recorded the progress, and the checkpoint if there was one.
    Progressed {
        /// Until when the execution may go on; `None`: no limit, or the execution is cancelled.
        deadline: Option<Timestamp>,
        /// Whether the execution is cancelled.
        cancelled: bool,
        /// Whether the checkpoint was not recorded, because a newer checkpoint or the result came first.
        superseded: bool,
    },
    /// The sidecar has recorded the listener's outcome.
    ListenerReported {
        /// Whether the outcome came before the call timed out.
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
    /// The execution; if the item waited for a retry, the attempt that failed.
    pub execution_id: String,
    /// Whether the item waited for a retry.
    pub was_waiting: bool,
}

/// Why a call was refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// This attachment never had the execution with this index in the request.
    UnknownExecution {
        /// The index in the request.
        index: usize,
        /// The given id.
        execution_id: Excerpt,
    },
    /// This attachment never had the execution.
    UnknownProgress {
        /// The given id.
        execution_id: Excerpt,
    },
    /// The result of the execution was reported before, or its lease was lost.
    ExecutionOver {
        /// The given id.
        execution_id: Excerpt,
    },
    /// This attachment never had the call of a listener.
    UnknownCall {
        /// The given id.
        call_id: Excerpt,
    },
    /// The job does not have the item.
    UnknownItem {
        /// The given item.
        item: Item,
        /// How many items the job has.
        total: u32,
    },
    /// The application was never notified of this generation.
    UnknownGeneration {
        /// The given generation.
        given: Generation,
        /// The newest generation of which the application was notified.
        newest: Generation,
    },
}

/// The fate of a result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CompletionStatus {
    /// The running node is deleted.
    Recorded,
    /// The result was recorded before.
    AlreadyRecorded,
    /// The lease was lost during the execution.
    LeaseLost,
}
