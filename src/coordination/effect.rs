//! All that a participant can ask for, as a closed list. Effects are values; only the runner performs them.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use crate::elasticjob::path::Gate;
use crate::excerpt::Excerpt;
use crate::job::{FencingToken, Generation, InstanceId, InstanceName, Item, JobConfiguration, Problem};
use crate::reason::Reason;
use crate::tree::{Path, Transaction};

use super::input::{Outcome, Ticket};
use super::waiting::WaitsFor;

/// Names a commit until its result is back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct CommitId(pub u64);

/// Why a commit is made. At most one of each is in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Purpose {
    /// Become an instance: configuration, server, instance.
    Register,
    /// Give up leadership, or remove what a leader that is not online left.
    Abdicate,
    /// Flag that a resharding is due.
    FlagResharding,
    /// Divide the items.
    Shard,
    /// Create running nodes.
    Start,
    /// Delete running nodes.
    Complete,
    /// Write down how far executions are.
    Checkpoint,
    /// Flag fires that met a busy item.
    FlagMisfire,
    /// Say what we can, to the other sidecars.
    Announce,
    /// Write down which items are to change hands.
    PlanHandoff,
    /// Give items to their next owners.
    HandOff,
    /// Make items ours that were our name's before we had it.
    Renew,
    /// Delete names that are waited for no more.
    ForgetNames,
    /// Remind a Java leader of items that belong to nobody.
    Nudge,
    /// Remove a turn of somebody who is not there.
    RepairRelay,
    /// Delete a request to fire for which there is nothing to execute.
    TakeTrigger,
    /// Register items at a gate, or take registrations back.
    Guarantee,
    /// Flag items of crashed instances, or clear away what a failover left.
    FlagFailover,
    /// Have the registry stamp a node with its time.
    CheckClock,
    /// Leave.
    Leave,
}

impl fmt::Display for Purpose {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Register => "register",
            Self::Abdicate => "abdicate",
            Self::FlagResharding => "flag resharding",
            Self::Shard => "shard",
            Self::Start => "start",
            Self::Complete => "complete",
            Self::Checkpoint => "write checkpoints",
            Self::FlagMisfire => "flag misfire",
            Self::Announce => "announce",
            Self::PlanHandoff => "plan handoff",
            Self::HandOff => "hand off",
            Self::Renew => "renew items",
            Self::ForgetNames => "forget names",
            Self::Nudge => "nudge",
            Self::RepairRelay => "repair relay",
            Self::TakeTrigger => "take trigger",
            Self::Guarantee => "register at a gate",
            Self::FlagFailover => "flag failover",
            Self::CheckClock => "check clock",
            Self::Leave => "leave",
        })
    }
}

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

/// The answer to a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// What became of the reported results, in the request's order.
    Recorded(Vec<(String, CompletionStatus)>),
    /// The acknowledgement was taken.
    Acknowledged,
    /// Until when the session may be acted on.
    Lease {
        /// The session.
        status: SessionStatus,
        /// When that is over, on the monotonic clock; `None`: no end is to be expected.
        lease_end: Option<Duration>,
    },
    /// These executions were told to stop, or are not tried again.
    Cancelled(Vec<Cancelled>),
    /// The progress was taken; a checkpoint is recorded.
    Progressed {
        /// Until when the execution may go on; `None`: no limit, or it is to stop.
        deadline: Option<Timestamp>,
        /// Whether it is to stop.
        cancelled: bool,
        /// Whether the checkpoint was not recorded, because a newer one or the result came before.
        superseded: bool,
    },
    /// The listener's outcome was taken.
    ListenerReported {
        /// Whether the call was still waited for.
        in_time: bool,
    },
    /// The call was refused, and changed nothing.
    Refused(Refusal),
}

/// An execution that an operator has cancelled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cancelled {
    /// Its item.
    pub item: Item,
    /// The execution; of one that waits to be tried again, the attempt that failed.
    pub execution_id: String,
    /// Whether it waited to be tried again.
    pub was_waiting: bool,
}

/// Why a call was refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// An execution that this attachment never had, by its index in the request.
    UnknownExecution {
        /// Index in the request.
        index: usize,
        /// What was given.
        execution_id: Excerpt,
    },
    /// An execution that this attachment never had.
    UnknownProgress {
        /// What was given.
        execution_id: Excerpt,
    },
    /// An execution whose result was reported, or whose lease was lost.
    ExecutionOver {
        /// What was given.
        execution_id: Excerpt,
    },
    /// A call of a listener that this attachment never had.
    UnknownCall {
        /// What was given.
        call_id: Excerpt,
    },
    /// An item that the job does not have.
    UnknownItem {
        /// What was given.
        item: Item,
        /// How many items the job has.
        total: u32,
    },
    /// A generation that was never told.
    UnknownGeneration {
        /// What was given.
        given: Generation,
        /// The newest that was told.
        newest: Generation,
    },
}

/// What became of a result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CompletionStatus {
    /// The running node is gone.
    Recorded,
    /// It was recorded before.
    AlreadyRecorded,
    /// The lease was lost during the execution.
    LeaseLost,
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

/// What the application is told.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// The instance is registered.
    Attached {
        /// The instance.
        instance: InstanceId,
        /// The configuration in force.
        configuration: Arc<JobConfiguration>,
        /// The executions of an earlier stream that are still open; they are told again.
        resumed: Vec<String>,
        /// How long the instance stays without its stream. Zero: it does not.
        grace: Duration,
        /// How often to ask for the lease; `None`: there is none.
        lease_renewal_interval: Option<Duration>,
    },
    /// What it owns.
    AssignmentChanged {
        /// The whole of it.
        assignment: Assignment,
        /// New items.
        added: Vec<Item>,
        /// Items gone.
        revoked: Vec<Item>,
        /// Whether it leads.
        leader: bool,
        /// Why.
        reason: AssignmentReason,
    },
    /// Execute an item.
    Execute(Execute),
    /// Stop an execution.
    Cancel {
        /// The execution.
        execution_id: String,
        /// Its item.
        item: Item,
        /// Why.
        reason: CancelReason,
    },
    /// Whether it leads now.
    LeadershipChanged(bool),
    /// The session with the registry.
    SessionChanged {
        /// Its state.
        status: SessionStatus,
        /// Until when it may be acted on without word from the registry; monotonic. `None`: not known.
        lease_end: Option<Duration>,
    },
    /// The session is as it was, and may be acted on for longer than was told before.
    LeaseRenewed {
        /// Until when, without word from the registry; monotonic.
        lease_end: Duration,
    },
    /// Configuration or problems.
    JobChanged {
        /// The configuration in force.
        configuration: Arc<JobConfiguration>,
        /// What is wrong now.
        problems: Vec<Problem>,
        /// How long the instance stays without its stream. Zero: it does not.
        grace: Duration,
    },
    /// The application is not attached yet.
    Waiting(WaitsFor),
    /// Act once for the whole job, before or after all items are executed, and report.
    CallListener(ListenerCall),
    /// The sidecar is stopping.
    Draining {
        /// Until when executions may go on, from now.
        remaining: Duration,
    },
}

/// A call of the listener that acts once for a fire of the whole job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListenerCall {
    /// Names the call.
    pub call_id: String,
    /// Before or after the executions.
    pub gate: Gate,
    /// For which instant the fire is.
    pub scheduled: Timestamp,
    /// How long the answer is waited for, from now.
    pub remaining: Duration,
}

/// An item that the instance owns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AssignedItem {
    /// The item.
    pub item: Item,
    /// Its parameter.
    pub parameter: Option<String>,
    /// The token.
    pub token: FencingToken,
    /// Whether an operator disabled it.
    pub disabled: bool,
}

/// What the instance owns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Assignment {
    /// Which sharding.
    pub generation: Generation,
    /// Into how many items the job is split.
    pub total: u32,
    /// The items, ascending.
    pub items: Vec<AssignedItem>,
}

/// Why an assignment is what it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AssignmentReason {
    /// First one on this stream.
    Attached,
    /// Divided anew.
    Resharded,
    /// Items are to be, or have become, somebody else's, one by one.
    HandedOff,
    /// The single item walked on to the next server.
    Relayed,
    /// Our server was enabled or disabled.
    ServerStatus,
    /// Items were disabled or enabled, or have other parameters.
    ItemChanged,
    /// The session is lost.
    SessionLost,
    /// The instance is leaving.
    Draining,
}

/// Why an execution is to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CancelReason {
    /// The session is lost.
    LeaseLost,
    /// The execution's deadline has passed.
    Deadline,
    /// An operator asked for it.
    Operator,
    /// The drain timeout has passed.
    DrainTimeout,
}

/// The session, as the application is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SessionStatus {
    /// Alive.
    Connected,
    /// Silent.
    Suspended,
    /// Gone.
    Lost,
}

/// What made an execution start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// The schedule.
    Schedule,
    /// A missed fire.
    Misfire,
    /// Somebody asked for it.
    Trigger,
    /// Another instance crashed while it executed the item.
    Failover,
}

/// Execute an item.
#[derive(Debug, Clone, PartialEq)]
pub struct Execute {
    /// Names the execution.
    pub execution_id: String,
    /// The item.
    pub item: Item,
    /// Its parameter.
    pub parameter: Option<String>,
    /// The configuration in force when it started.
    pub configuration: Arc<JobConfiguration>,
    /// The task in ElasticJob's form.
    pub task_id: Arc<str>,
    /// What made it start.
    pub source: Source,
    /// Which attempt it is; 1 is the first.
    pub attempt: u32,
    /// From where it can go on; `None`: from the beginning.
    pub checkpoint: Option<Arc<[u8]>>,
    /// For which instant.
    pub scheduled: Timestamp,
    /// When it was started.
    pub fired: Timestamp,
    /// When it has to be over; `None`: no limit.
    pub deadline: Option<Timestamp>,
    /// The token.
    pub token: FencingToken,
    /// Whether it was told on an earlier stream already.
    pub resumed: bool,
}
