//! The calls that a participant's task takes, as a closed list. Decides nothing.

use std::time::Duration;

use tokio::sync::{mpsc, oneshot, watch};

use crate::coordination::job::contract::answer::Answer;
use crate::coordination::job::contract::input::CancelWish;
use crate::coordination::job::contract::reattach::Return;
use crate::coordination::job::contract::report::{ExecutionResult, ProgressReport};
use crate::job::Generation;

use super::outlet::Outlet;

/// A call.
#[derive(Debug)]
pub enum Command {
    /// Record results.
    Report(Vec<ExecutionResult>, oneshot::Sender<Answer>),
    /// Record an acknowledgement.
    Acknowledge(Generation, oneshot::Sender<Answer>),
    /// Answer until when the session may be acted on.
    AskLease(oneshot::Sender<Answer>),
    /// Record the outcome of a call of the listener, with the id of the call. The error says what failed.
    Listener(String, Result<(), String>, oneshot::Sender<Answer>),
    /// Record the progress of an execution.
    Progress(ProgressReport, oneshot::Sender<Answer>),
    /// Cancel executions.
    Cancel(CancelWish, oneshot::Sender<Answer>),
    /// Start nothing more, and leave when the executions have ended, or at the deadline.
    Drain {
        /// Until when, monotonic. `None`: without a deadline.
        deadline: Option<Duration>,
        /// Whether no items are reserved for the instance.
        for_good: bool,
    },
    /// The application has another stream. Go on with that stream, if its request is the same and the job has a
    /// `reattach_grace`; otherwise leave at once.
    Replace {
        /// Whether the new stream's request is the same.
        same: bool,
        /// The new stream's request, and the executions that the application says are open.
        back: Box<Return>,
        /// Gets the outlet of the new stream; `None`: the new stream needs a participant of its own.
        outlet: oneshot::Sender<Option<Outlet>>,
    },
    /// Another application wants the instance's name. Leave if the instance has no application any more.
    ReleaseName {
        /// Gets whether the instance leaves.
        leaves: oneshot::Sender<bool>,
    },
    /// Leave at once: the application has said that it does not reattach.
    Leave {
        /// Whether no items are reserved for the instance.
        for_good: bool,
    },
}

/// The callers' end of a participant's task.
#[derive(Debug, Clone)]
pub struct Handle {
    /// Takes commands. Boxed, because the channel has places for 32 of them also if it is empty.
    pub(super) commands: mpsc::Sender<Box<Command>>,
    /// Becomes `true` when the task has ended.
    pub over: watch::Receiver<bool>,
}

impl Handle {
    /// Has the task take a command. Waits while too many others wait. `false`: the task has ended.
    pub async fn send(&self, command: Command) -> bool {
        self.commands.send(Box::new(command)).await.is_ok()
    }
}
