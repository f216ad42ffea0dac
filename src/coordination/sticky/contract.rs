//! The inputs and effects of a candidate, as closed lists of plain values.

use std::time::Duration;

use crate::extension::sticky::{Cause, Previous, Unfinished};
use crate::job::FencingToken;
use crate::tree::{Error, Path, SessionId, Transaction, WatchEvent};

/// An event that a candidate takes into account.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Input {
    /// The sidecar has a session, which is connected. A watch of the lock's node begins.
    SessionOpened(SessionId),
    /// The registry does not answer.
    SessionSuspended,
    /// The registry answers again, in the same session.
    SessionResumed,
    /// The session has ended.
    SessionLost,
    /// The session may be relied on until then (monotonic).
    Leased {
        /// Until when.
        until: Duration,
    },
    /// The watch of the lock's node has seen this.
    Seen(WatchEvent),
    /// The outcome of the transaction with this number. The watch has seen its changes before.
    Committed(u64, Result<(), Error>),
    /// The parents of the nodes exist, or cannot be created.
    ParentsCreated(Result<(), Error>),
    /// The application calls, with this number.
    Asked(u64, Call),
    /// The application has not heard the answer to this call.
    Unheard(u64),
    /// The application's stream has ended, or it does not read it.
    Left,
    /// The sidecar stops; a run may go on until the deadline (monotonic).
    Drain {
        /// Until when.
        deadline: Duration,
    },
}

/// A call of the application.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Call {
    /// Begin a run, or say who owns the lock.
    TryRun {
        /// How long to wait for the lock. Zero: not at all.
        wait: Duration,
    },
    /// The run has ended. An empty id: whatever run is open.
    Leave {
        /// The run.
        run_id: String,
    },
    /// A place at which another instance can continue the run.
    Checkpoint {
        /// The application's data.
        data: Vec<u8>,
    },
    /// The interrupted run with this token was made up for.
    Resolve {
        /// The run.
        token: FencingToken,
    },
    /// Give the lock to another instance.
    Resign,
}

/// The answer to a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// The run begins.
    Entered {
        /// The fencing token.
        token: FencingToken,
        /// The run.
        run_id: String,
        /// Until when the run may go on.
        leases: Leases,
    },
    /// No run begins now.
    Busy(Standing),
    /// The call is carried out.
    Done,
    /// The call is refused.
    Refused(Refusal),
}

/// Why a call is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The registry does not answer.
    #[error("the registry does not answer, so that nobody knows who owns the lock; try again")]
    Away,
    /// The instance does not own the lock.
    #[error("the instance does not own the lock (any more)")]
    NotOwner,
    /// There is no such run.
    #[error("the instance is not inside the run `{0}` (any more)")]
    NotInside(String),
    /// Checkpoints come too fast.
    #[error("a checkpoint may be saved once a second; try again later")]
    TooSoon,
    /// Too many calls wait.
    #[error("{0} calls of this stand wait for an answer, which is the most; wait for them")]
    TooMany(usize),
    /// Too many interrupted runs are unresolved.
    #[error("{0} interrupted runs are unresolved, which is the most; resolve them first")]
    Unresolved(usize),
    /// The stand has ended.
    #[error("the stand has ended")]
    Ended,
}

/// A task for the runner.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// Create the parents of the lock's nodes.
    CreateParents,
    /// Commit this transaction, and answer with its number.
    Commit(u64, Transaction),
    /// Send an event to the application.
    Notify(Event),
    /// Answer a call.
    Answer(u64, Answer),
    /// The session cannot be proven alive in time.
    GiveUpSession,
}

/// Until when an owner may act if nothing else is heard; monotonic. `None`: no end is expected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Leases {
    /// Until when the instance surely owns the lock.
    pub owned: Option<Duration>,
    /// Until when a run that has begun may go on: a grace longer.
    pub run: Option<Duration>,
}

/// A state, as the application sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum State {
    /// Nobody has owned the lock yet, or the last owner has resigned.
    Created,
    /// This instance owns it.
    Own,
    /// Another instance owns it.
    Released,
    /// The last owner has vanished.
    Waiting,
}

/// The state of a lock, as a candidate sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Standing {
    /// The state.
    pub state: State,
    /// The owner, or the last one.
    pub owner: Option<String>,
    /// Its token.
    pub token: Option<FencingToken>,
    /// Whether it is inside a run.
    pub is_inside: bool,
    /// When it became the owner, in milliseconds since 1970.
    pub acquired_ms: Option<i64>,
}

/// An event for the application.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// The state has changed.
    State(Standing),
    /// The instance owns the lock.
    Acquired {
        /// The fencing token: greater than that of each earlier owner.
        token: FencingToken,
        /// Why.
        cause: Cause,
        /// Whether the run that the instance is inside goes on.
        is_continued: bool,
        /// The owner before, if it has vanished.
        previous: Option<Previous>,
        /// Interrupted runs that nobody has resolved.
        unfinished: Vec<Unfinished>,
        /// Until when.
        leases: Leases,
    },
    /// The leases end later.
    LeaseRenewed(Leases),
    /// The registry does not answer. Until the leases end, the instance owns the lock, and a run may go on.
    Suspended(Leases),
    /// The registry answers again, and the instance owns the lock.
    Resumed(Leases),
    /// The sidecar stops. A run may go on until the deadline (monotonic).
    Draining {
        /// When the lock is lost.
        deadline: Duration,
    },
    /// The instance does not own the lock any more.
    Lost {
        /// Why.
        reason: LossReason,
        /// The new owner, if it is known.
        owner: Option<String>,
    },
}

/// Why a lock was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum LossReason {
    /// The session could not be proven alive in time.
    Lease,
    /// Another instance owns it.
    Taken,
    /// Somebody has deleted or changed a node.
    Revoked,
    /// The instance has resigned.
    Resigned,
    /// The sidecar stops.
    Draining,
}

/// Why a candidate has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum End {
    /// The application has left.
    Left,
    /// The sidecar stops.
    Draining,
    /// Too many candidates.
    QueueFull {
        /// How many there are.
        candidates: usize,
    },
    /// The record cannot be read.
    Unreadable {
        /// The record.
        path: Path,
        /// Why, for people.
        why: String,
    },
    /// The registry refuses the candidate's nodes.
    Refused(Error),
}
