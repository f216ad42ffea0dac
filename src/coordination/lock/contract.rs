//! The inputs and effects of a contender, as closed lists of plain values.

use std::time::Duration;

use uuid::Uuid;

use crate::coordination::lock::queue::Unclear;
use crate::job::FencingToken;
use crate::tree::{Error, Node, Path, SessionId, Zxid};

/// The queues of a claim. A lock without permits has one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// The queue of the lock, or of the semaphore.
    Queue,
    /// The permits of the semaphore.
    Permits,
    /// The semaphore's own node: do its children tell of another kind of lock?
    Kind,
}

/// An event that a contender takes into account.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Input {
    /// The sidecar has a session, which is connected.
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
    /// The node of this attempt was created, at this path and by this transaction; or not.
    Created(Uuid, Result<(Path, Zxid), Error>),
    /// The parents of the node exist, or cannot be created.
    ParentsCreated(Result<(), Error>),
    /// The node of the contender's lock delay was created, or not.
    DelayCreated(Path, Result<(), Error>),
    /// The children of the lock's node, by the look with this number.
    Listed(u64, Result<Vec<String>, Error>),
    /// The node that an attempt of unknown outcome may have created. `None`: it does not exist.
    Found(Uuid, Path, Result<Option<Node>, Error>),
    /// The first contender's node. `None`: it does not exist, or cannot be read.
    FirstRead(String, Option<Node>),
    /// A watched node does not exist.
    Gone(Path),
    /// The children of the lock's node may have changed.
    QueueChanged,
    /// The data of this contender's node asks for the lock.
    RevocationRequested,
    /// The leader of the election by the last look at its nodes, and the candidate that the leader wants to be the next one.
    /// For candidates only.
    LeaderSeen {
        /// The leader. `None`: there is none.
        leader: Option<Leader>,
        /// The name of the successor's node.
        successor: Option<String>,
    },
    /// The node is deleted, or does not exist; or that is not known.
    Deleted(Path, Result<(), Error>),
    /// The application gives the lock back.
    Release,
    /// The application's stream has ended, or it does not read it.
    Left,
    /// The sidecar stops; holders may go on until the deadline (monotonic).
    Drain {
        /// Until when.
        deadline: Duration,
    },
}

/// A task for the runner.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// Create this node, ephemeral and sequential, and answer with the attempt.
    Create(Uuid, Path),
    /// Create the lock's node and its missing parents, as containers.
    CreateParents,
    /// Create this node of the contender's lock delay, persistent.
    CreateDelay(Path),
    /// List the children of the lock's node, and answer with this number. Sent in order with all other requests.
    List(u64),
    /// Read this node, which an attempt of unknown outcome may have created.
    Find(Uuid, Path),
    /// Read the first contender's node.
    ReadFirst(String),
    /// Watch this node as the contender's own; `None`: none.
    WatchOwn(Option<Path>),
    /// Watch this node as the one that the contender waits for; `None`: none.
    WatchBefore(Option<Path>),
    /// Watch the children of the lock's node, or watch them no more.
    WatchQueue(bool),
    /// Delete this node.
    Delete(Path),
    /// Send an event to the application.
    Notify(Event),
    /// The session cannot be proven alive in time.
    GiveUpSession,
}

/// An event for the application.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// Others are first, or the lock delay of a holder that has vanished is not over.
    Waiting {
        /// How many contenders have lower numbers; some of them may have gone.
        position: usize,
        /// The first of them, or the node of the delay.
        first: First,
    },
    /// The registry has not answered for a while, so that the place is not known.
    NoAnswer,
    /// The lock is held.
    Acquired {
        /// The fencing token: greater than that of each earlier holder.
        token: FencingToken,
        /// The node that proves it.
        path: Path,
        /// The end of the lease, monotonic. `None`: no end is expected.
        lease_end: Option<Duration>,
    },
    /// The lease of the lock ends later.
    LeaseRenewed {
        /// The end of the lease, monotonic.
        lease_end: Duration,
    },
    /// The registry does not answer. The lock is held until the lease ends.
    Suspended {
        /// The end of the lease, monotonic. `None`: no end is expected.
        lease_end: Option<Duration>,
    },
    /// The registry answers again, and the lock is held.
    Resumed {
        /// The end of the lease, monotonic. `None`: no end is expected.
        lease_end: Option<Duration>,
    },
    /// Another candidate leads, or none. For candidates only.
    LeaderChanged(Option<Leader>),
    /// Another program asks the holder to give the lock back. Nothing forces it.
    RevocationRequested,
    /// The sidecar stops. The lock is lost at the deadline (monotonic), if the application has not given it back.
    Draining {
        /// When the lock is lost.
        deadline: Duration,
    },
    /// The lock is not held any more, though the application has not given it back.
    Lost(LossReason),
    /// The lock was given back; another contender may hold it.
    Released,
}

/// The first contender of a queue, as people see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct First {
    /// The name of its node.
    pub name: String,
    /// Its data, as text.
    pub holder: Option<String>,
    /// The session that owns its node.
    pub session: Option<SessionId>,
}

/// The leader of an election.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leader {
    /// The name of its node.
    pub name: String,
    /// Its value, as text.
    pub value: String,
    /// Its term: greater than the term of each earlier leader.
    pub term: FencingToken,
}

/// Why a lock was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum LossReason {
    /// The session could not be proven alive in time, or has ended.
    Lease,
    /// Somebody has deleted the contender's node.
    Revoked,
    /// The application's own limit of the holding time was over.
    HoldLimit,
    /// The sidecar stops.
    Draining,
}

/// Why a contender has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum End {
    /// The application gave the lock back, or left.
    Released,
    /// The lock was lost; the application has heard of it.
    Lost(LossReason),
    /// The lock was not free in time. Its first contender, if it is known.
    TimedOut(Option<First>),
    /// Too many contenders.
    QueueFull {
        /// How many there are.
        contenders: usize,
    },
    /// Nobody can say whose turn it is.
    Unclear(Unclear),
    /// The registry refuses the contender's node.
    Refused(Error),
    /// The sidecar stops.
    Draining,
}
