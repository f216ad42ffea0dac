//! How executions go on and end: the reports of the application, and the recorded results.

use crate::coordination::job::contract::event::CancelReason;
use crate::coordination::job::contract::plan::Planned;
use crate::job::FencingToken;
use std::sync::Arc;

/// How an execution ended, as the application reports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The application executed the item.
    Success,
    /// The application began the item, and failed.
    Failure(String),
    /// The application did not begin it.
    Rejected(String),
    /// The application stopped it, or did not begin it, because another instance might have owned the item.
    Interrupted(String),
}

/// The result of one execution.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExecutionResult {
    /// The execution.
    pub execution_id: String,
    /// How it ended.
    pub outcome: Outcome,
}

/// The progress of an execution.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProgressReport {
    /// The execution.
    pub execution_id: String,
    /// Whether its deadline begins anew.
    pub extend_deadline: bool,
    /// The place from which another attempt can go on; `None`: nothing new.
    pub checkpoint: Option<Arc<[u8]>>,
}

/// How an execution ended that was recorded.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ended {
    pub(crate) number: u64,
    pub(crate) planned: Planned,
    pub(crate) ending: Ending,
    pub(crate) cancelled: Option<CancelReason>,
    /// The transaction that created its running node; `None`: it had none.
    pub(crate) node: Option<FencingToken>,
}

/// An [`Outcome`] without its words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ending {
    Success,
    Failure,
    Rejection,
    Interruption,
}

impl From<&Outcome> for Ending {
    fn from(outcome: &Outcome) -> Self {
        match outcome {
            Outcome::Success => Self::Success,
            Outcome::Failure(_) => Self::Failure,
            Outcome::Rejected(_) => Self::Rejection,
            Outcome::Interrupted(_) => Self::Interruption,
        }
    }
}
