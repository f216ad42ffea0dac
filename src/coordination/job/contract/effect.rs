//! The effects of a participant, as a closed list. Effects are values; only the runner performs them.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use crate::coordination::job::contract::answer::{Answer, Ticket};
use crate::coordination::job::contract::commit::{CommitId, Purpose};
use crate::coordination::job::contract::event::{Event, Execute};
use crate::coordination::job::contract::plan::Source;
use crate::coordination::job::contract::report::Outcome;
use crate::elasticjob::path::Barrier;
use crate::findings::problem::Problem;
use crate::job::{InstanceName, Item};
use crate::reason::Reason;
use crate::tree::{Path, Transaction};

/// An effect for the runner.
#[derive(Debug, Clone, PartialEq)]
pub enum Effect {
    /// Commit a transaction, and report the result as
    /// [`Input::Committed`](crate::coordination::job::contract::input::Input::Committed).
    Commit {
        /// The name of the commit.
        id: CommitId,
        /// The purpose of the commit.
        purpose: Purpose,
        /// The transaction.
        transaction: Transaction,
    },
    /// Join the election latch, commit this inside it, leave it, and report the end.
    Elect(Transaction),
    /// Join the failover latch, commit this inside it, leave it, read the ledger and the checkpoints of these items,
    /// and report the end.
    TakeOver {
        /// The transaction that takes the items over.
        transaction: Transaction,
        /// The items.
        items: BTreeSet<Item>,
    },
    /// Join a barrier's latch, and report when it is held. The runner leaves it when [`Effect::LeaveLatch`] asks for
    /// that, when the limit is over, and when the participant has ended.
    HoldLatch {
        /// The barrier.
        barrier: Barrier,
        /// How long the latch may take, from now until it is left.
        limit: Duration,
    },
    /// Commit these in order inside a barrier's latch, leave it, and report the end.
    LeaveLatch {
        /// The barrier.
        barrier: Barrier,
        /// The transactions to commit first.
        transactions: Vec<Transaction>,
    },
    /// The session could not be proven alive in time: end it, and open another one.
    GiveUpSession,
    /// Read the job's subtree again, because the view may have missed a change, and report when that is done.
    Refresh {
        /// Whether no decision may rest on the job's nodes until then.
        forget: bool,
    },
    /// Read which fires of the job's items have been started, and report them.
    ReadLedger,
    /// List the job's checkpoints, read those of these items, and report them.
    FindCheckpoints(BTreeSet<Item>),
    /// Send an event to the application.
    Notify(Event),
    /// Answer a call.
    Answer(Ticket, Answer),
    /// Log what follows the failed execution of this item.
    Retry(Item, RetryNews),
    /// Log a new problem once.
    Warn(Problem),
    /// Ask for a lock, and report its news with the number. The runner gives it back when
    /// [`Effect::GiveBackItemLock`] asks for that, and when the participant has ended.
    AskItemLock {
        /// Distinguishes it from all others of the participant.
        number: u64,
        /// The name of the lock.
        lock: String,
    },
    /// Give the lock with this number back, or end the wait for it.
    GiveBackItemLock(u64),
    /// The execution of this item waits for its lock, or does not any more.
    LockWait(Item, LockWait),
    /// The application has reported how it executed an item.
    Reported(Reported),
    /// The session was lost during an execution of this item, and the application has stopped it: nobody will record how it ended.
    ExecutionLost {
        /// The item.
        item: Item,
        /// The message with which the application began it; `None`: it did not name it after a restart of the sidecar.
        sent: Option<Arc<Execute>>,
    },
    /// A fire was not executed and will not be re-run, because the job does not want misfires.
    Skipped {
        /// The item.
        item: Item,
        /// The instant of the fire.
        scheduled: Timestamp,
    },
    /// Close the application's stream; the participant has not left yet.
    CloseStream(EndReason),
    /// The participant has ended; close the application's stream.
    End(EndReason),
}

/// A reported execution, for logs and metrics.
#[derive(Debug, Clone, PartialEq)]
pub struct Reported {
    /// Its item.
    pub item: Item,
    /// The message with which the application began it; `None`: it did not name it after a restart of the sidecar.
    pub sent: Option<Arc<Execute>>,
    /// How it ended.
    pub outcome: Outcome,
    /// Its cause.
    pub source: Source,
    /// The time since the application got it; `None`: an earlier process of the sidecar gave it to the application.
    pub lasted: Option<Duration>,
}

/// The wait of an execution for the lock of its item.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LockWait {
    /// Others are first.
    Behind {
        /// The lock.
        lock: String,
        /// The first of them, in its own words; `None`: it is not known.
        holder: Option<String>,
    },
    /// The wait is over: the execution has begun, or is not wanted here any more.
    Over,
    /// The limit has passed: the execution does not begin.
    GivenUp {
        /// The lock.
        lock: String,
        /// How long it has waited.
        after: Duration,
    },
}

/// The consequence of a failed execution.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RetryNews {
    /// A retry waits for its time.
    Waits {
        /// The number of the next attempt; the first attempt was 1.
        attempt: u32,
        /// How many attempts there are at most.
        of: u32,
        /// The pause from now until the attempt.
        pause: Duration,
    },
    /// The retry was dropped.
    Dropped {
        /// The number of the attempt that was dropped.
        attempt: u32,
        /// The reason.
        why: &'static str,
    },
    /// All attempts have failed.
    GivenUp {
        /// How many attempts there were.
        attempts: u32,
    },
}

/// The reason for which a participant ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EndReason {
    /// The application's stream had ended.
    Detached,
    /// The sidecar is stopping.
    Drained,
    /// An operator removed the instance's node, which stops it.
    Stopped,
    /// An operator removed the whole job from the registry.
    JobRemoved,
    /// The job has no configuration.
    NotConfigured,
    /// The application did not report an execution that it had to stop.
    Unresponsive {
        /// The execution's item.
        item: Item,
        /// The execution.
        execution_id: String,
        /// How long the participant waited for the report.
        grace: Duration,
    },
    /// Another session has had the name of the instance for too long.
    NameTaken {
        /// The name.
        name: InstanceName,
        /// The node of the instance that has the name.
        path: Path,
    },
    /// The job runs under another class or type.
    ClassConflict {
        /// The class or type that this application wants.
        given: String,
        /// The class or type in the registry.
        found: String,
    },
}

impl EndReason {
    /// The reason for programs; `None`: an expected end, and nothing is wrong.
    pub fn word(&self) -> Option<Reason> {
        match self {
            Self::Detached | Self::Drained => None,
            Self::Stopped => Some(Reason::StoppedByOperator),
            Self::JobRemoved => Some(Reason::JobRemoved),
            Self::NotConfigured => Some(Reason::JobNotConfigured),
            Self::Unresponsive { .. } => Some(Reason::CancelIgnored),
            Self::NameTaken { .. } => Some(Reason::InstanceNameTaken),
            Self::ClassConflict { .. } => Some(Reason::JobClassConflict),
        }
    }
}
