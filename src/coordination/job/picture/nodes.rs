//! The nodes of a job as values, one type for each kind of node. Decides nothing; [`crate::coordination::job::picture::job_view`] puts them together.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::sync::Arc;

use jiff::Timestamp;

use crate::job::{FencingToken, InstanceId, JobConfiguration};
use crate::tree::{SessionId, Stat, Zxid};

/// A server's status as an operator set it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServerStatus {
    /// Its instances take part.
    Enabled,
    /// Its instances get no items and do not lead.
    Disabled,
    /// The node holds something else; Java reads that as not enabled.
    Unreadable,
}

impl ServerStatus {
    /// What the node of a server says.
    pub fn read(data: &[u8]) -> Self {
        match data {
            b"ENABLED" => Self::Enabled,
            b"DISABLED" => Self::Disabled,
            _ => Self::Unreadable,
        }
    }
}

/// An instance that is online.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InstanceView {
    /// The session that registered it.
    pub session: Option<SessionId>,
    /// The transaction that did.
    pub created: Zxid,
    /// When that was, by the registry's clock; `None`: it has told an impossible time.
    pub since: Option<Timestamp>,
    /// Whether its node can be read, so that it may be given items.
    pub readable: bool,
}

/// Who leads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaderView {
    /// The instance.
    pub instance: InstanceId,
    /// The version of its node.
    pub version: i32,
}

/// Who owns an item.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ownership {
    /// The instance.
    pub instance: InstanceId,
    /// The token that comes with it: the transaction that created the node.
    pub token: FencingToken,
    /// The version of the node.
    pub version: i32,
    /// When that was, by the registry's clock; `None`: it has told an impossible time.
    pub since: Option<Timestamp>,
}

/// A running node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Running {
    /// Whose it is, if its data was read.
    pub owner: Option<InstanceId>,
    /// The transaction that created it, if that is known.
    pub token: Option<FencingToken>,
    /// The version of the node, if that is known.
    pub version: Option<i32>,
    /// The view's revision in which it was seen to be created or set.
    pub seen: u64,
}

/// Who has taken an item over from a crashed instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Taker {
    /// The instance.
    pub instance: InstanceId,
    /// The version of the node.
    pub version: i32,
}

impl Taker {
    pub(in crate::coordination) fn read(data: &[u8], stat: Stat) -> Self {
        let instance = InstanceId::from_registry(&String::from_utf8_lossy(data));
        Self { instance, version: stat.version }
    }
}

/// Whose turn it is in a job whose single item walks over the servers (protocol 5.5).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NextServer {
    /// The server; `None`: the node holds no address.
    pub ip: Option<Ipv4Addr>,
    /// The transaction that gave it the turn.
    pub token: FencingToken,
    /// When that was seen.
    pub since: Timestamp,
    /// The version of the node.
    pub version: i32,
}

/// What is known about an item.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ItemView {
    /// Whether the item's own node exists.
    pub exists: bool,
    /// Since when it has existed, by the registry's clock, as far as is known.
    pub since: Option<Timestamp>,
    /// Who owns it.
    pub owner: Option<Ownership>,
    /// Whether and by whom it is executed.
    pub running: Option<Running>,
    /// When it was last seen to begin to run.
    pub ran_at: Option<Timestamp>,
    /// Whether a fire was missed.
    pub misfire: bool,
    /// Whether an operator disabled it.
    pub disabled: bool,
    /// Who has taken it over, as the ephemeral node says.
    pub failover: Option<Taker>,
    /// Who has taken it over, as the persistent node says.
    pub failovering: Option<Taker>,
    /// Other nodes of the item.
    pub others: BTreeSet<String>,
}

/// The configuration as the registry has it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum ConfigView {
    /// There is none.
    #[default]
    Absent,
    /// A readable one.
    Valid(Arc<JobConfiguration>),
    /// Something that cannot be read; see the problems.
    Unreadable,
}

/// When a node's data was set, by the registry's clock; `None`: it has told an impossible time.
pub(in crate::coordination) fn stat_time(stat: Stat) -> Option<Timestamp> {
    Timestamp::from_millisecond(stat.modified_ms).ok()
}
