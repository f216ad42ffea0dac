//! The reports of the application about executions.

use std::sync::Arc;

/// How an execution ended, as the application says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The item was executed.
    Success,
    /// The item was begun and failed.
    Failure(String),
    /// The application did not begin it.
    Rejected(String),
}

/// The result of one execution.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExecutionResult {
    /// The execution.
    pub execution_id: String,
    /// How it ended.
    pub outcome: Outcome,
}

/// How far an execution is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProgressReport {
    /// The execution.
    pub execution_id: String,
    /// Whether its deadline is to begin anew.
    pub extend_deadline: bool,
    /// From where another attempt can go on; `None`: nothing new.
    pub checkpoint: Option<Arc<[u8]>>,
}
