//! All that can happen to a participant, as a closed list.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::coordination::job::contract::answer::Ticket;
use crate::coordination::job::contract::commit::CommitId;
use crate::coordination::job::contract::reattach::Return;
use crate::coordination::job::contract::records::{FoundCheckpoints, LedgerNode, WrittenDown};
use crate::coordination::job::contract::report::{ExecutionResult, ProgressReport};
use crate::elasticjob::path::Gate;
use crate::job::{Generation, Item};
use crate::tree::{CommitResult, SessionId};

/// Something that happened.
#[derive(Debug)]
pub enum Input {
    /// There is a session with the registry.
    SessionOpened(SessionId),
    /// The registry does not answer; the session may be alive.
    SessionSuspended,
    /// The registry answers again, in the same session.
    SessionResumed,
    /// The session is gone.
    SessionLost,
    /// The registry has answered: the session may be acted on until then (monotonic), a safety margin before the
    /// registry can end it. Comes before everything else that has happened.
    Leased {
        /// Until when.
        until: Duration,
    },
    /// The servers break the connection for requests of so many bytes.
    RequestLimit(usize),
    /// The job's nodes were read after the last [`Effect::Refresh`](crate::coordination::job::contract::effect::Effect::Refresh), or for the first time.
    WasRead,
    /// A commit has ended.
    Committed(CommitId, CommitResult),
    /// An attempt to elect has ended; the view tells who leads.
    Elected(Result<(), String>),
    /// An attempt to take items over has ended; the view tells what was taken.
    TookOver(Result<WrittenDown, String>),
    /// The checkpoints were listed, and those that were asked for read.
    Checkpoints(Result<FoundCheckpoints, String>),
    /// The application says how far an execution is.
    Progress(Ticket, ProgressReport),
    /// The ledger was read: each item that has an entry.
    Ledger(Result<BTreeMap<Item, LedgerNode>, String>),
    /// The application reports results.
    Report(Ticket, Vec<ExecutionResult>),
    /// The latch of a gate is held.
    LatchHeld(Gate),
    /// The latch of a gate was left, or not reached; the error says what went wrong.
    LatchLeft(Gate, Result<(), String>),
    /// The application reports how a call of its listener ended: the call, and what failed.
    ListenerReport(Ticket, String, Result<(), String>),
    /// An operator wants executions to stop: those of these items, or of all.
    Cancel(Ticket, Option<BTreeSet<Item>>),
    /// The application has taken note of an assignment.
    Acknowledge(Ticket, Generation),
    /// The application asks until when the session may be acted on.
    AskLease(Ticket),
    /// The application's stream has broken: it is gone, or will be back.
    Detached,
    /// The application has a stream again, before its participant has left.
    Reattached(Box<Return>),
    /// The application is gone for good: it said so, or another participant takes this one's place.
    Left,
    /// Whoever leaves next does not come back under its name: nothing is to be kept for it.
    ForGood,
    /// The sidecar is stopping: leave in peace until the deadline (on the monotonic clock).
    Drain {
        /// When executions that still run are cancelled; monotonic.
        deadline: Duration,
    },
}
