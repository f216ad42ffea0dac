//! What a participant's callers can ask its task for, as a closed list. Decides nothing.

use std::collections::BTreeSet;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot, watch};

use crate::coordination::job::contract::answer::Answer;
use crate::coordination::job::contract::reattach::Return;
use crate::coordination::job::contract::report::{ExecutionResult, ProgressReport};
use crate::job::{Generation, Item};

use super::participant::Outlet;

/// Something that a caller wants.
#[derive(Debug)]
pub enum Command {
    /// Record results.
    Report(Vec<ExecutionResult>, oneshot::Sender<Answer>),
    /// Take note of an acknowledgement.
    Acknowledge(Generation, oneshot::Sender<Answer>),
    /// Say until when the session may be acted on.
    AskLease(oneshot::Sender<Answer>),
    /// Take the outcome of a call of the listener; the error is what failed.
    Listener(String, Result<(), String>, oneshot::Sender<Answer>),
    /// Take note of how far an execution is.
    Progress(ProgressReport, oneshot::Sender<Answer>),
    /// Tell executions to stop: those of these items, or all.
    Cancel(Option<BTreeSet<Item>>, oneshot::Sender<Answer>),
    /// Leave in peace.
    Drain {
        /// Until when, monotonic.
        deadline: Duration,
        /// Whether nothing is to be kept for the instance.
        for_good: bool,
    },
    /// The application has another stream. Go on with that, if the job lets it and it asks for the same, or else leave at
    /// once.
    Replace {
        /// Whether it asks for the same.
        same: bool,
        /// What it asks for, and what it says it has open.
        back: Box<Return>,
        /// Takes what the other stream is to read; `None`: it needs a participant of its own.
        outlet: oneshot::Sender<Option<Outlet>>,
    },
    /// Another application wants the instance's name. Leave if there is no application any more.
    Yield {
        /// Takes whether it leaves.
        leaves: oneshot::Sender<bool>,
    },
    /// Leave at once: the application says that its stream does not come back.
    Leave {
        /// Whether nothing is to be kept for the instance.
        for_good: bool,
    },
}

/// The sending ends of a running participant.
#[derive(Debug, Clone)]
pub struct Handle {
    /// Takes commands.
    pub commands: mpsc::Sender<Command>,
    /// Becomes `true` when the participant is over.
    pub over: watch::Receiver<bool>,
}
