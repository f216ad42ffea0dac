//! The inputs of a participant, as a closed list.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::coordination::job::contract::answer::Ticket;
use crate::coordination::job::contract::commit::CommitId;
use crate::coordination::job::contract::reattach::Return;
use crate::coordination::job::contract::records::{FoundCheckpoints, WrittenDown};
use crate::coordination::job::contract::report::{ExecutionResult, ProgressReport};
use crate::elasticjob::path::Barrier;
use crate::extension::ledger_entry::LedgerNodes;
use crate::job::{FencingToken, Generation, Item};
use crate::tree::{CommitResult, SessionId};

/// The executions that an operator cancels, with pending retries. The default: all.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CancelWish {
    /// Only those of these items.
    pub items: Option<BTreeSet<Item>>,
    /// Only those with these ids. A retry has the id of the attempt that failed.
    pub execution_ids: Option<BTreeSet<String>>,
    /// Whether they are only to be named.
    pub only_named: bool,
}

/// An input.
#[derive(Debug)]
pub enum Input {
    /// A session with the registry has begun.
    SessionOpened(SessionId),
    /// The registry does not answer; the session may be alive.
    SessionSuspended,
    /// The registry answers again, in the same session.
    SessionResumed,
    /// The session has ended.
    SessionLost,
    /// The registry has answered: this instance may rely on the session until then (monotonic), a safety margin before
    /// the registry can end it. Comes before every other input of the same step.
    Leased {
        /// The end of the lease.
        until: Duration,
    },
    /// The servers break the connection for requests of this many bytes.
    RequestLimit(usize),
    /// The job's nodes were read after the last
    /// [`Effect::Refresh`](crate::coordination::job::contract::effect::Effect::Refresh), or for the first time.
    WasRead,
    /// A commit has ended.
    Committed(CommitId, CommitResult),
    /// An attempt to be elected has ended; the view shows the leader.
    Elected(Result<(), String>),
    /// An attempt to take items over has ended; the view shows which items were taken over.
    TookOver(Result<WrittenDown, String>),
    /// The checkpoints were listed, and the wanted ones were read.
    Checkpoints(Result<FoundCheckpoints, String>),
    /// The application reports the progress of an execution.
    Progress(Ticket, ProgressReport),
    /// The ledger was read.
    Ledger(Result<LedgerNodes, String>),
    /// The application reports results.
    Report(Ticket, Vec<ExecutionResult>),
    /// This session holds the latch of a barrier.
    LatchHeld(Barrier),
    /// The latch of a barrier was left, or not reached; with the error, if there was one.
    LatchLeft(Barrier, Result<(), String>),
    /// A lock that was asked for with this number has a new state.
    ItemLock(u64, LockNews),
    /// The application reports how a call of its listener ended: the call, and the error if it failed.
    ListenerReport(Ticket, String, Result<(), String>),
    /// An operator cancels executions.
    Cancel(Ticket, CancelWish),
    /// The application acknowledges an assignment.
    Acknowledge(Ticket, Generation),
    /// The application asks until when it may rely on the session.
    AskLease(Ticket),
    /// The application's stream has broken: the application has ended, or will reattach.
    Detached,
    /// The application has reattached with a new stream, before its participant has left.
    Reattached(Box<Return>),
    /// The application has left: it said so, or another participant takes this one's place.
    Left,
    /// The next departure is for good: the instance does not register again under its name, and its items are not
    /// reserved.
    ForGood,
    /// The sidecar or the application is stopping: start nothing more, finish the executions, then leave.
    Drain {
        /// When executions that still run are cancelled; monotonic. `None`: the application is stopping, and ends its
        /// stream itself.
        deadline: Option<Duration>,
    },
}

/// The state of a lock that an item asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LockNews {
    /// Others are first.
    Behind {
        /// The first of them, in its own words; `None`: it is not known.
        holder: Option<String>,
    },
    /// This instance holds the lock, with this token.
    Held(FencingToken),
    /// The lock is lost, or cannot be had: why.
    Lost(String),
}
