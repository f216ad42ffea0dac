//! The events for the application.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use crate::coordination::job::contract::plan::Source;
use crate::elasticjob::path::Barrier;
use crate::findings::problem::Problem;
use crate::job::{FencingToken, Generation, InstanceId, InstanceName, Item, JobConfiguration};

/// An event for the application.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// The instance is registered.
    Attached {
        /// This instance.
        instance: InstanceId,
        /// The configuration in force.
        configuration: Arc<JobConfiguration>,
        /// The open executions of an earlier stream; the sidecar sends them again.
        resumed: Vec<String>,
        /// How long the instance stays without its stream. Zero: it leaves at once.
        grace: Duration,
        /// How often the application is to ask for the lease; `None`: there is no lease.
        lease_renewal_interval: Option<Duration>,
    },
    /// The assignment has changed.
    AssignmentChanged {
        /// The whole assignment.
        assignment: Assignment,
        /// The items that are new.
        added: Vec<Item>,
        /// The items that the application must release, or has lost.
        revoked: Vec<Item>,
        /// Whether the instance leads.
        leader: bool,
        /// The reason of the change.
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
        /// The reason.
        reason: CancelReason,
    },
    /// Whether the instance leads now: its term, or `None`.
    LeadershipChanged(Option<FencingToken>),
    /// The state of the session has changed.
    SessionChanged {
        /// The state.
        status: SessionStatus,
        /// Until when the application may rely on the session without a further event; monotonic. `None`: not known.
        lease_end: Option<Duration>,
    },
    /// The session is in the same state, and its lease ends later than the application knows.
    LeaseRenewed {
        /// The end of the lease; monotonic.
        lease_end: Duration,
    },
    /// The configuration or the problems have changed.
    JobChanged {
        /// The configuration in force.
        configuration: Arc<JobConfiguration>,
        /// All present problems.
        problems: Vec<Problem>,
        /// How long the instance stays without its stream. Zero: it leaves at once.
        grace: Duration,
    },
    /// The application is not attached yet.
    Waiting(WaitsFor),
    /// The application is to act once for the whole job, before the first or after the last item, and to report.
    CallListener(ListenerCall),
    /// No further execution comes.
    Draining {
        /// Until when executions may go on, from now. `None`: the application is stopping, and ends its stream itself.
        remaining: Option<Duration>,
    },
}

/// A call of the listener that acts once for a fire of the whole job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListenerCall {
    /// The name of the call.
    pub call_id: String,
    /// Before or after the executions.
    pub barrier: Barrier,
    /// The instant of the fire.
    pub scheduled: Timestamp,
    /// How long the sidecar waits for the answer, from now.
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

/// The items that an instance owns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Assignment {
    /// The generation of the assignment.
    pub generation: Generation,
    /// The job's sharding total count.
    pub total: u32,
    /// The items, ascending.
    pub items: Vec<AssignedItem>,
}

/// The reason of an assignment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AssignmentReason {
    /// The first assignment on this stream.
    Attached,
    /// The leader resharded the items.
    Resharded,
    /// Items change hands one by one.
    HandedOff,
    /// The single item has rotated to the next server.
    Relayed,
    /// An operator enabled or disabled the instance's server.
    ServerStatus,
    /// An operator enabled or disabled items, or their parameters have changed.
    ItemChanged,
    /// The session is lost.
    SessionLost,
    /// The instance is leaving.
    Draining,
}

/// The reason for which an execution is to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CancelReason {
    /// The session is lost.
    LeaseLost,
    /// The execution's deadline has passed.
    Deadline,
    /// An operator cancelled the execution.
    Operator,
    /// The drain timeout has passed.
    DrainTimeout,
    /// The lock of its item is lost.
    ItemLockLost,
}

/// The state of the session, for the application.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SessionStatus {
    /// The registry answers.
    Connected,
    /// The registry does not answer; the session may be alive.
    Suspended,
    /// The session has ended.
    Lost,
}

/// Execute an item.
#[derive(Debug, Clone, PartialEq)]
pub struct Execute {
    /// The id of the execution.
    pub execution_id: String,
    /// The item.
    pub item: Item,
    /// Its parameter.
    pub parameter: Option<String>,
    /// The configuration in force when it started.
    pub configuration: Arc<JobConfiguration>,
    /// The task in ElasticJob's form.
    pub task_id: Arc<str>,
    /// The cause of the execution.
    pub source: Source,
    /// The number of the attempt; 1 is the first.
    pub attempt: u32,
    /// The checkpoint from which the application can go on; `None`: it starts from the beginning.
    pub checkpoint: Option<Arc<[u8]>>,
    /// The instant of the fire.
    pub scheduled: Timestamp,
    /// When the execution was started.
    pub fired: Timestamp,
    /// The execution's deadline; `None`: no limit.
    pub deadline: Option<Timestamp>,
    /// The token.
    pub token: FencingToken,
    /// The token of the lock that it holds for its item; `None`: it holds none.
    pub lock_token: Option<FencingToken>,
    /// Whether the sidecar sent it on an earlier stream before.
    pub resumed: bool,
    /// Whether a former process of the sidecar began it.
    pub restored: bool,
}

/// The reason why an application is not attached yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WaitsFor {
    /// A session with the registry.
    Session,
    /// The registry, which does not answer.
    Registry,
    /// Another session that has the name.
    Name(InstanceName),
    /// The job's nodes, which are being read.
    Nodes,
    /// The registration.
    Registration,
}
