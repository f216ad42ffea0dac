//! All that the application is told.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use crate::coordination::job::contract::plan::Source;
use crate::elasticjob::path::Gate;
use crate::job::{FencingToken, Generation, InstanceId, InstanceName, Item, JobConfiguration, Problem};

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

/// The reason of a wait.
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
