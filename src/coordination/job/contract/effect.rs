//! All that a participant can ask for, as a closed list. Effects are values; only the runner performs them.

use std::collections::BTreeSet;
use std::time::Duration;

use jiff::Timestamp;

use crate::coordination::job::contract::answer::{Answer, Ticket};
use crate::coordination::job::contract::commit::{CommitId, Purpose};
use crate::coordination::job::contract::event::Event;
use crate::coordination::job::contract::report::Outcome;
use crate::elasticjob::path::Gate;
use crate::job::{InstanceName, Item, Problem};
use crate::reason::Reason;
use crate::tree::{Path, Transaction};

/// Something to be done.
#[derive(Debug, Clone, PartialEq)]
pub enum Effect {
    /// Commit a transaction, and come back with the result.
    Commit {
        /// Names it.
        id: CommitId,
        /// Why.
        purpose: Purpose,
        /// What.
        transaction: Transaction,
    },
    /// Join the election latch, commit this inside it, leave it, and come back.
    Elect(Transaction),
    /// Join the failover latch, commit this inside it, leave it, read what is written down about these items, and come
    /// back.
    TakeOver {
        /// What takes them.
        transaction: Transaction,
        /// Which they are.
        items: BTreeSet<Item>,
    },
    /// Join a gate's latch, and come back when it is held. It is left when that is asked for, or when the limit, which
    /// counts from now, is over, or when the participant has ended.
    HoldLatch {
        /// Whose latch.
        gate: Gate,
        /// How long it takes at most, from joining to leaving.
        limit: Duration,
    },
    /// Commit these in order inside a gate's latch, leave it, and come back.
    LeaveLatch {
        /// Whose latch.
        gate: Gate,
        /// What to do first.
        transactions: Vec<Transaction>,
    },
    /// The session could not be proven alive in time: end it, and open another one.
    GiveUpSession,
    /// Read the job's subtree again, because the view may have missed something, and tell when that has happened.
    Refresh {
        /// Whether nothing is known of the job's nodes until then.
        forget: bool,
    },
    /// Read which fires of the job's items have been started, and come back.
    ReadLedger,
    /// Look which of the job's items have checkpoints, read those of these items, and come back.
    FindCheckpoints(BTreeSet<Item>),
    /// Tell the application.
    Tell(Event),
    /// Answer a call of the application.
    Answer(Ticket, Answer),
    /// What becomes of an execution of this item that has failed; for the log.
    Retry(Item, RetryNews),
    /// A problem was found; say so once.
    Warn(Problem),
    /// The application has reported how it executed an item.
    Reported(Item, Outcome),
    /// A fire was not executed and will not be made up for, because the job does not want misfires.
    Skipped {
        /// The item.
        item: Item,
        /// For which instant.
        scheduled: Timestamp,
    },
    /// Close the application's stream; the participant goes on leaving.
    CloseStream(EndReason),
    /// The participant has ended; close the application's stream.
    End(EndReason),
}

/// What becomes of an execution that has failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RetryNews {
    /// It will be tried again.
    Waits {
        /// Which attempt that will be, of which the first was 1.
        attempt: u32,
        /// How many there are at most.
        of: u32,
        /// When, from now.
        pause: Duration,
    },
    /// It is not tried again, though it should have been.
    Dropped {
        /// Which attempt that would have been.
        attempt: u32,
        /// Why.
        why: &'static str,
    },
    /// All attempts have failed.
    GivenUp {
        /// How many there were.
        attempts: u32,
    },
}

/// Why a participant ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EndReason {
    /// The application's stream had ended.
    Detached,
    /// The sidecar is stopping.
    Drained,
    /// An operator removed the instance's node, which stops it.
    Stopped,
    /// Somebody removed the whole job from the registry.
    JobRemoved,
    /// Nobody has configured the job.
    NotConfigured,
    /// The application did not report an execution that it was told to stop.
    Disobedient {
        /// The execution's item.
        item: Item,
        /// The execution.
        execution_id: String,
        /// For how long it was waited for.
        grace: Duration,
    },
    /// Another session has the name that the instance was given, and has not left for a while.
    NameTaken {
        /// The name.
        name: InstanceName,
        /// The node of who has it.
        path: Path,
    },
    /// The job runs under another class or type.
    ClassConflict {
        /// What this application wants.
        given: String,
        /// What the registry has.
        found: String,
    },
}

impl EndReason {
    /// The word for programs; `None`: it was to end, and nothing is wrong.
    pub fn word(&self) -> Option<Reason> {
        match self {
            Self::Detached | Self::Drained => None,
            Self::Stopped => Some(Reason::StoppedByOperator),
            Self::JobRemoved => Some(Reason::JobRemoved),
            Self::NotConfigured => Some(Reason::JobNotConfigured),
            Self::Disobedient { .. } => Some(Reason::CancelIgnored),
            Self::NameTaken { .. } => Some(Reason::InstanceNameTaken),
            Self::ClassConflict { .. } => Some(Reason::JobClassConflict),
        }
    }
}
