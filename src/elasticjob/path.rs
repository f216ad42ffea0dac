//! The paths of a job's nodes, and their meaning (protocol 1). No other place spells a node's name.

use std::net::Ipv4Addr;

use crate::job::{InstanceId, Item, JobName};
use crate::tree::Path;

/// The paths of one job's nodes.
#[derive(Debug, Clone)]
pub struct JobPaths {
    root: Path,
}

impl JobPaths {
    /// The paths of a job under a namespace.
    pub fn new(namespace: &Path, job: &JobName) -> Self {
        Self { root: namespace.child(job.as_str()) }
    }

    /// The job's own node. Its data is the Java class name or type.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The configuration document.
    pub fn config(&self) -> Path {
        self.root.child("config")
    }

    /// A server's status.
    pub fn server(&self, ip: Ipv4Addr) -> Path {
        self.root.child(&format!("servers/{ip}"))
    }

    /// An instance's presence.
    pub fn instance(&self, id: &InstanceId) -> Path {
        self.root.child(&format!("instances/{id}"))
    }

    /// The leader.
    pub fn leader(&self) -> Path {
        self.root.child("leader/election/instance")
    }

    /// The latch under which a leader is elected.
    pub fn election_latch(&self) -> Path {
        self.root.child("leader/election/latch")
    }

    /// The parent of the resharding flags. A leading sidecar sets its (empty) data with each sharding, so
    /// that each sharding has its own version.
    pub fn leader_sharding(&self) -> Path {
        self.root.child("leader/sharding")
    }

    /// The flag that a resharding is due.
    pub fn necessary(&self) -> Path {
        self.root.child("leader/sharding/necessary")
    }

    /// The flag that a resharding is in progress.
    pub fn processing(&self) -> Path {
        self.root.child("leader/sharding/processing")
    }

    /// An item.
    pub fn item(&self, item: Item) -> Path {
        self.root.child(&format!("sharding/{item}"))
    }

    /// The owner of an item.
    pub fn item_instance(&self, item: Item) -> Path {
        self.root.child(&format!("sharding/{item}/instance"))
    }

    /// The instance that executes an item.
    pub fn item_running(&self, item: Item) -> Path {
        self.root.child(&format!("sharding/{item}/running"))
    }

    /// The flag that a fire of an item was missed.
    pub fn item_misfire(&self, item: Item) -> Path {
        self.root.child(&format!("sharding/{item}/misfire"))
    }

    /// The latch under which items of crashed instances are taken over.
    pub fn failover_latch(&self) -> Path {
        self.root.child("leader/failover/latch")
    }

    /// The flag that an item waits for a takeover.
    pub fn failover_item(&self, item: Item) -> Path {
        self.root.child(&format!("leader/failover/items/{item}"))
    }

    /// The instance that has taken an item over; ephemeral.
    pub fn item_failover(&self, item: Item) -> Path {
        self.root.child(&format!("sharding/{item}/failover"))
    }

    /// The instance that has taken an item over; persistent, so that other instances notice its crash.
    pub fn item_failovering(&self, item: Item) -> Path {
        self.root.child(&format!("sharding/{item}/failovering"))
    }

    /// The request to an instance to fire now.
    pub fn trigger(&self, id: &InstanceId) -> Path {
        self.root.child(&format!("trigger/{id}"))
    }

    /// The node through which a peer reads the registry's clock.
    pub fn registry_time(&self) -> Path {
        self.root.child("systemTime/current")
    }

    /// The server whose turn it is in a job with a rotation.
    pub fn next_job_instance_ip(&self) -> Path {
        self.root.child("next-job-instance-ip")
    }

    /// The node with which an instance registers an item at a barrier, before or after the execution.
    pub fn guarantee_item(&self, barrier: Barrier, item: Item) -> Path {
        self.root.child(&format!("guarantee/{}/{item}", barrier.name()))
    }

    /// The latch under which the listener of a barrier is called.
    pub fn guarantee_latch(&self, barrier: Barrier) -> Path {
        self.root.child(&format!("guarantee/{}-latch", barrier.name()))
    }

    /// Another node of an item.
    pub fn item_child(&self, item: Item, name: &str) -> Path {
        self.root.child(&format!("sharding/{item}/{name}"))
    }

    /// A node that only has children.
    pub fn folder(&self, folder: Folder) -> Path {
        match folder {
            Folder::Servers => self.root.child("servers"),
            Folder::Instances => self.root.child("instances"),
            Folder::Leader => self.root.child("leader"),
            Folder::Sharding => self.root.child("sharding"),
            Folder::Failover => self.root.child("leader/failover"),
            Folder::FailoverItems => self.root.child("leader/failover/items"),
            Folder::Trigger => self.root.child("trigger"),
            Folder::RegistryTime => self.root.child("systemTime"),
            Folder::Guarantee => self.root.child("guarantee"),
            Folder::Barrier(barrier) => self.root.child(&format!("guarantee/{}", barrier.name())),
        }
    }
}

/// A node of a job that only has children.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Folder {
    /// `servers`
    Servers,
    /// `instances`
    Instances,
    /// `leader`
    Leader,
    /// `sharding`
    Sharding,
    /// `leader/failover`
    Failover,
    /// `leader/failover/items`
    FailoverItems,
    /// `trigger`
    Trigger,
    /// `systemTime`
    RegistryTime,
    /// `guarantee`
    Guarantee,
    /// `guarantee/started` or `guarantee/completed`
    Barrier(Barrier),
}

/// A point that all instances of a job reach together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Barrier {
    /// All items are about to be executed.
    Started,
    /// All items have been executed.
    Completed,
}

impl Barrier {
    fn name(self) -> &'static str {
        match self {
            Self::Started => "started",
            Self::Completed => "completed",
        }
    }

    fn from_name(name: &str) -> Option<Self> {
        [Self::Started, Self::Completed].into_iter().find(|barrier| barrier.name() == name)
    }
}

/// The meaning of a path below a job's root.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place<'a> {
    /// The job's own node.
    Root,
    /// The configuration.
    Config,
    /// A node that only has children.
    Folder(Folder),
    /// A server's status, by the text of its address.
    Server(&'a str),
    /// An instance.
    Instance(&'a str),
    /// The leader.
    Leader,
    /// The parent of the resharding flags.
    LeaderSharding,
    /// The flag that a resharding is due.
    Necessary,
    /// The flag that a resharding is in progress.
    Processing,
    /// An item.
    Item(Item),
    /// The owner of an item.
    ItemInstance(Item),
    /// The instance that executes an item.
    Running(Item),
    /// The flag that a fire of an item was missed.
    Misfire(Item),
    /// An operator's mark that disables an item.
    Disabled(Item),
    /// The instance that has taken an item over; ephemeral.
    Failover(Item),
    /// The instance that has taken an item over; persistent.
    Failovering(Item),
    /// The flag that an item waits for a takeover.
    FailoverItem(Item),
    /// Another node of an item, by its name.
    ItemChild(Item, &'a str),
    /// The request to an instance to fire now.
    Trigger(&'a str),
    /// The node through which a peer reads the registry's clock.
    RegistryTime,
    /// An item that is registered at a barrier.
    Registered(Barrier, Item),
    /// The server whose turn it is in a job with a rotation.
    NextJobInstanceIp,
    /// A child of `sharding` that is not a number.
    NotAnItem(&'a str),
    /// Any other node: latches, and nodes that are not in the protocol.
    Other,
}

impl<'a> Place<'a> {
    /// Reads a path relative to the job's root.
    pub fn of(relative: &'a str) -> Self {
        if relative.is_empty() {
            return Self::Root;
        }
        let mut parts = relative.splitn(4, '/');
        let first = parts.next().unwrap_or_default();
        match (first, parts.next(), parts.next(), parts.next()) {
            ("config", None, ..) => Self::Config,
            ("servers", None, ..) => Self::Folder(Folder::Servers),
            ("servers", Some(ip), None, _) => Self::Server(ip),
            ("instances", None, ..) => Self::Folder(Folder::Instances),
            ("instances", Some(id), None, _) => Self::Instance(id),
            ("leader", None, ..) => Self::Folder(Folder::Leader),
            ("leader", Some("election"), Some("instance"), None) => Self::Leader,
            ("leader", Some("sharding"), None, _) => Self::LeaderSharding,
            ("leader", Some("sharding"), Some("necessary"), None) => Self::Necessary,
            ("leader", Some("sharding"), Some("processing"), None) => Self::Processing,
            ("leader", Some("failover"), None, _) => Self::Folder(Folder::Failover),
            ("leader", Some("failover"), Some("items"), None) => Self::Folder(Folder::FailoverItems),
            ("leader", Some("failover"), Some("items"), Some(item)) => {
                number(item).map_or(Self::Other, Self::FailoverItem)
            }
            ("trigger", None, ..) => Self::Folder(Folder::Trigger),
            ("trigger", Some(id), None, _) => Self::Trigger(id),
            ("systemTime", None, ..) => Self::Folder(Folder::RegistryTime),
            ("systemTime", Some("current"), None, _) => Self::RegistryTime,
            ("guarantee", None, ..) => Self::Folder(Folder::Guarantee),
            ("guarantee", Some(barrier), item, None) => Self::of_barrier(barrier, item),
            ("next-job-instance-ip", None, ..) => Self::NextJobInstanceIp,
            ("sharding", None, ..) => Self::Folder(Folder::Sharding),
            ("sharding", Some(item), child, None) => Self::of_item(item, child),
            _ => Self::Other,
        }
    }

    fn of_item(text: &'a str, child: Option<&'a str>) -> Self {
        let item = match number(text) {
            Some(item) => item,
            None if child.is_none() => return Self::NotAnItem(text),
            None => return Self::Other,
        };
        match child {
            None => Self::Item(item),
            Some("instance") => Self::ItemInstance(item),
            Some("running") => Self::Running(item),
            Some("misfire") => Self::Misfire(item),
            Some("disabled") => Self::Disabled(item),
            Some("failover") => Self::Failover(item),
            Some("failovering") => Self::Failovering(item),
            Some(name) => Self::ItemChild(item, name),
        }
    }

    fn of_barrier(name: &str, item: Option<&str>) -> Self {
        let Some(barrier) = Barrier::from_name(name) else { return Self::Other };
        match item {
            None => Self::Folder(Folder::Barrier(barrier)),
            Some(item) => number(item).map_or(Self::Other, |item| Self::Registered(barrier, item)),
        }
    }

    /// Whether decisions need the node's data, and not only its existence. Nodes that are written at each
    /// fire count as bare flags, so that a fire needs no reads.
    pub fn wants_data(self) -> bool {
        matches!(
            self,
            Self::Root
                | Self::Config
                | Self::Server(_)
                | Self::Instance(_)
                | Self::Leader
                | Self::LeaderSharding
                | Self::Folder(Folder::FailoverItems)
                | Self::ItemInstance(_)
                | Self::Disabled(_)
                | Self::Failover(_)
                | Self::Failovering(_)
                | Self::NextJobInstanceIp
        )
    }
}

/// Whether a path relative to the job's root is that of a latch, or of a node in its queue, which Curator names.
pub fn is_latch(relative: &str) -> bool {
    let is_queue = |folder: &str| {
        matches!(folder, "leader/election/latch" | "leader/failover/latch")
            || folder
                .strip_prefix("guarantee/")
                .and_then(|name| name.strip_suffix("-latch"))
                .is_some_and(|name| Barrier::from_name(name).is_some())
    };
    relative == "leader/election"
        || is_queue(relative)
        || relative.rsplit_once('/').is_some_and(|(folder, _)| is_queue(folder))
}

/// An item's name. Java writes items in their shortest form: `00` or `+1` would be another node with the same
/// number.
fn number(text: &str) -> Option<Item> {
    text.parse().ok().filter(|item: &u32| item.to_string() == text).map(Item)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_recognised() {
        for (text, place) in [
            ("", Place::Root),
            ("config", Place::Config),
            ("servers/10.0.0.1", Place::Server("10.0.0.1")),
            ("instances/a@-@1", Place::Instance("a@-@1")),
            ("instances2/a", Place::Other),
            ("leader/election/instance", Place::Leader),
            ("leader/election/latch/_c_x-latch-0000000000", Place::Other),
            ("leader/sharding", Place::LeaderSharding),
            ("leader/sharding/necessary", Place::Necessary),
            ("sharding/7", Place::Item(Item(7))),
            ("sharding/07", Place::NotAnItem("07")),
            ("sharding/x", Place::NotAnItem("x")),
            ("sharding/x/running", Place::Other),
            ("sharding/7/running", Place::Running(Item(7))),
            ("sharding/7/failover", Place::Failover(Item(7))),
            ("sharding/7/failovering", Place::Failovering(Item(7))),
            ("sharding/7/other", Place::ItemChild(Item(7), "other")),
            ("leader/failover/items/7", Place::FailoverItem(Item(7))),
            ("leader/failover/items/x", Place::Other),
            ("leader/failover/latch/_c_x-latch-0000000000", Place::Other),
            ("trigger/a@-@1", Place::Trigger("a@-@1")),
            ("trigger/a@-@1/deeper", Place::Other),
            ("systemTime", Place::Folder(Folder::RegistryTime)),
            ("systemTime/current", Place::RegistryTime),
            ("systemTime/other", Place::Other),
            ("guarantee", Place::Folder(Folder::Guarantee)),
            ("guarantee/started", Place::Folder(Folder::Barrier(Barrier::Started))),
            ("guarantee/started/7", Place::Registered(Barrier::Started, Item(7))),
            ("guarantee/completed/7", Place::Registered(Barrier::Completed, Item(7))),
            ("guarantee/completed/x", Place::Other),
            ("guarantee/started-latch", Place::Other),
            ("guarantee/started-latch/_c_x-latch-0000000000", Place::Other),
            ("next-job-instance-ip", Place::NextJobInstanceIp),
            ("sharding/7/running/deeper", Place::Other),
        ] {
            assert_eq!(Place::of(text), place, "{text}");
        }
    }
}
