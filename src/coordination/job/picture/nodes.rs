//! The nodes of a job as values, one type for each kind of node. Decides nothing; [`crate::coordination::job::picture::job_view`] puts them together.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::sync::Arc;

use jiff::Timestamp;

use crate::extension::note::Note;
use crate::job::{FencingToken, InstanceId, JobConfiguration};
use crate::tree::{SessionId, Stat, Zxid};

/// A server's status as an operator set it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServerStatus {
    /// Its instances take part.
    Enabled,
    /// Its instances get no items and do not lead.
    Disabled,
    /// The node has another content; Java reads that as not enabled.
    Unreadable,
}

impl ServerStatus {
    /// Reads the content of a server's node.
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
    /// The transaction that registered it.
    pub created: Zxid,
    /// When it was registered, by the registry's clock; `None`: the time is impossible.
    pub since: Option<Timestamp>,
    /// Whether its node can be read, so that it may be given items.
    pub readable: bool,
}

/// The leader.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaderView {
    /// The instance.
    pub instance: InstanceId,
    /// The version of its node.
    pub version: i32,
    /// The transaction that created its node.
    pub created: Zxid,
}

/// The owner of an item.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ownership {
    /// The instance.
    pub instance: InstanceId,
    /// The token of the ownership: the transaction that created the node.
    pub token: FencingToken,
    /// The version of the node.
    pub version: i32,
    /// When the node was created, by the registry's clock; `None`: the time is impossible.
    pub since: Option<Timestamp>,
}

/// A running node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Running {
    /// The instance that executes the item, if the node's data was read.
    pub owner: Option<InstanceId>,
    /// The transaction that created it, if that is known.
    pub token: Option<FencingToken>,
    /// The version of the node, if that is known.
    pub version: Option<i32>,
    /// The view's revision in which it was seen to be created or set.
    pub seen: u64,
}

/// The instance that has taken an item over from a crashed instance.
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

/// The server whose turn it is in a job whose single item rotates over the servers (protocol 5.5).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NextServer {
    /// The server; `None`: the node holds no address.
    pub ip: Option<Ipv4Addr>,
    /// The transaction that gave it the turn.
    pub token: FencingToken,
    /// When the view has shown that.
    pub since: Timestamp,
    /// The version of the node.
    pub version: i32,
}

/// The known state of an item.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ItemView {
    /// Whether the item's own node exists.
    pub exists: bool,
    /// Since when it has existed, by the registry's clock, as far as is known.
    pub since: Option<Timestamp>,
    /// Its owner.
    pub owner: Option<Ownership>,
    /// Its running node.
    pub running: Option<Running>,
    /// When the view last saw it begin to run.
    pub ran_at: Option<Timestamp>,
    /// Whether a fire was missed.
    pub misfire: bool,
    /// Whether an operator disabled it.
    pub disabled: bool,
    /// The transaction that did, as far as is known.
    pub disabled_in: Option<Zxid>,
    /// The instance that has taken it over, according to the ephemeral node.
    pub failover: Option<Taker>,
    /// The instance that has taken it over, according to the persistent node.
    pub failovering: Option<Taker>,
    /// Other nodes of the item.
    pub others: BTreeSet<String>,
}

/// A note, and its node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NoteView {
    /// Its content.
    pub note: Note,
    /// When it was written, by the registry's clock.
    pub written: Option<Timestamp>,
    /// The transaction that wrote it.
    pub changed: Zxid,
    /// The version of the node.
    pub version: i32,
}

impl NoteView {
    /// Whether it is about the disabling by this transaction.
    pub fn is_about(&self, disabled_in: Zxid) -> bool {
        self.note.disabled_in.unwrap_or(self.changed) == disabled_in
    }
}

/// The configuration as the registry has it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum ConfigView {
    /// It does not exist.
    #[default]
    Absent,
    /// A readable one.
    Valid(Arc<JobConfiguration>),
    /// A configuration that cannot be read; see the problems.
    Unreadable,
}

/// When a node's data was set, by the registry's clock; `None`: the time is impossible.
pub(in crate::coordination) fn stat_time(stat: Stat) -> Option<Timestamp> {
    Timestamp::from_millisecond(stat.modified_ms).ok()
}
