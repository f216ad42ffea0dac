//! The paths of Sidekeeper's own nodes of a job, under a root beside the namespace. No other place spells
//! their names.

use std::net::Ipv4Addr;

use jiff::Timestamp;

use crate::extension::request_record::RequestId;
use crate::job::{InstanceId, Item, JobName};
use crate::tree::Path;

/// How the name of a witness begins; the instant of its fire follows, in milliseconds since 1970.
const WITNESS: &str = "witness-";

/// How the names of notes begin.
const NOTE_OF_ITEM: &str = "item-";
const NOTE_OF_SERVER: &str = "server-";

/// The subject of a note.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Noted {
    /// An item.
    Item(Item),
    /// A server of the job.
    Server(Ipv4Addr),
}

/// The paths of Sidekeeper's own nodes of one job.
#[derive(Debug, Clone)]
pub struct ExtensionPaths {
    root: Path,
}

impl ExtensionPaths {
    /// The paths of a job under a namespace.
    pub fn new(namespace: &Path, job: &JobName) -> Self {
        Self { root: Self::all(namespace).child(job.as_str()) }
    }

    /// The folder with our own nodes of the job.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The folder with our own nodes of all jobs.
    pub fn all(namespace: &Path) -> Path {
        namespace.sibling_with_suffix("-sidekeeper")
    }

    /// The parent of the ledger's entries.
    pub fn ledger(&self) -> Path {
        self.root.child("fires")
    }

    /// The ledger's entry of an item.
    pub fn ledger_entry(&self, item: Item) -> Path {
        self.root.child(&format!("fires/{item}"))
    }

    /// The item whose entry in the ledger has this path. `None`: this is another node.
    pub fn ledger_item_of(&self, path: &Path) -> Option<Item> {
        path.relative_to(&self.ledger())?.parse().ok().map(Item)
    }

    /// The witness of a fire.
    pub fn witness(&self, fire: Timestamp) -> Path {
        self.root.child(&format!("fires/{WITNESS}{}", fire.as_millisecond()))
    }

    /// The fire whose witness has this path. `None`: this is another node.
    pub fn witness_of(&self, path: &Path) -> Option<Timestamp> {
        let name = path.relative_to(&self.root)?.strip_prefix("fires/")?.strip_prefix(WITNESS)?;
        Timestamp::from_millisecond(name.parse().ok()?).ok()
    }

    /// The nodes with which the sidecars of the job inform each other.
    pub fn fleet(&self) -> FleetPaths {
        FleetPaths { root: self.root.child("fleet") }
    }

    /// The parent of the records of operators' requests.
    pub fn requests(&self) -> Path {
        self.root.child("requests")
    }

    /// The record of a request, or of a further part of it. Part 0 is the first one.
    pub fn request(&self, id: &RequestId, part: u32) -> Path {
        match part {
            0 => self.root.child(&format!("requests/{id}")),
            part => self.root.child(&format!("requests/{id}.{part}")),
        }
    }

    /// The id in the name of a request's record, or of a further part of it. `None`: this is another node.
    pub fn request_of(name: &str) -> Option<RequestId> {
        let id = name.split_once('.').map_or(name, |(id, _)| id);
        RequestId::parse(id).ok()
    }

    /// The state in which the job was found finished.
    pub fn finished(&self) -> Path {
        self.root.child("finished")
    }

    /// The parent of the checkpoints.
    pub fn checkpoints(&self) -> Path {
        self.root.child("checkpoints")
    }

    /// The checkpoint of an item's execution.
    pub fn checkpoint(&self, item: Item) -> Path {
        self.root.child(&format!("checkpoints/{item}"))
    }
}

/// The meaning of a path below the folder with our own nodes of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OwnPlace<'a> {
    /// A node that only has children.
    Folder,
    /// The ledger's entry of an item.
    LedgerEntry,
    /// The witness of a fire.
    Witness,
    /// The checkpoint of an item's execution.
    Checkpoint,
    /// The profile of an instance.
    Member(&'a str),
    /// The record of a named instance.
    Name(&'a str),
    /// The plan of the items that change their owner.
    Handoff,
    /// Any other node.
    Other,
}

impl<'a> OwnPlace<'a> {
    /// Reads a path relative to the folder.
    pub fn of(relative: &'a str) -> Self {
        let is_number = |text: &str| text.parse::<u64>().is_ok();
        let mut parts = relative.splitn(4, '/');
        match (parts.next().unwrap_or_default(), parts.next(), parts.next(), parts.next()) {
            ("" | "fires" | "checkpoints" | "fleet", None, ..) => Self::Folder,
            ("fires", Some(item), None, _) if is_number(item) => Self::LedgerEntry,
            ("fires", Some(name), None, _) if name.strip_prefix(WITNESS).is_some_and(is_number) => {
                Self::Witness
            }
            ("checkpoints", Some(item), None, _) if is_number(item) => Self::Checkpoint,
            ("fleet", Some("members" | "names"), None, _) => Self::Folder,
            ("fleet", Some("handoff"), None, _) => Self::Handoff,
            ("fleet", Some("members"), Some(id), None) => Self::Member(id),
            ("fleet", Some("names"), Some(name), None) => Self::Name(name),
            _ => Self::Other,
        }
    }
}

/// The paths of the nodes with which the sidecars of a job inform each other.
#[derive(Debug, Clone)]
pub struct FleetPaths {
    root: Path,
}

impl FleetPaths {
    /// The parent of all these nodes.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The parent of the members.
    pub fn members(&self) -> Path {
        self.root.child("members")
    }

    /// The profile of an instance.
    pub fn member(&self, id: &InstanceId) -> Path {
        self.root.child(&format!("members/{id}"))
    }

    /// The instance whose profile has this path. `None`: this is another node.
    pub fn member_of(&self, path: &Path) -> Option<InstanceId> {
        let name = path.relative_to(&self.root)?.strip_prefix("members/")?;
        (!name.contains('/')).then(|| InstanceId::from_registry(name))
    }

    /// The parent of the names.
    pub fn names(&self) -> Path {
        self.root.child("names")
    }

    /// The record of a named instance.
    pub fn name(&self, name: &str) -> Path {
        self.root.child(&format!("names/{name}"))
    }

    /// The name whose record has this path. `None`: this is another node.
    pub fn name_of<'a>(&self, path: &'a Path) -> Option<&'a str> {
        let name = path.relative_to(&self.root)?.strip_prefix("names/")?;
        (!name.contains('/')).then_some(name)
    }

    /// The parent of the cancels of whole fleets.
    pub fn cancels(&self) -> Path {
        self.root.child("cancels")
    }

    /// The cancel of a request.
    pub fn cancel(&self, id: &RequestId) -> Path {
        self.root.child(&format!("cancels/{id}"))
    }

    /// Whether this is the path of a cancel.
    pub fn is_cancel(&self, path: &Path) -> bool {
        path.relative_to(&self.cancels()).is_some_and(|name| !name.is_empty() && !name.contains('/'))
    }

    /// The parent of the items' triggers.
    pub fn triggers(&self) -> Path {
        self.root.child("triggers")
    }

    /// The trigger of an item by a request.
    pub fn trigger(&self, id: &RequestId, item: Item) -> Path {
        self.root.child(&format!("triggers/{id}.{item}"))
    }

    /// The request and the item whose trigger has this path. `None`: this is another node.
    pub fn trigger_of(&self, path: &Path) -> Option<(RequestId, Item)> {
        let (id, item) = path.relative_to(&self.triggers())?.split_once('.')?;
        Some((RequestId::parse(id).ok()?, Item(item.parse().ok()?)))
    }

    /// The parent of the notes.
    pub fn notes(&self) -> Path {
        self.root.child("notes")
    }

    /// The note about the disabling of an item or a server.
    pub fn note(&self, about: Noted) -> Path {
        match about {
            Noted::Item(item) => self.root.child(&format!("notes/{NOTE_OF_ITEM}{item}")),
            Noted::Server(server) => self.root.child(&format!("notes/{NOTE_OF_SERVER}{server}")),
        }
    }

    /// What the note with this path is about. `None`: this is another node.
    pub fn noted_of(&self, path: &Path) -> Option<Noted> {
        let name = path.relative_to(&self.root)?.strip_prefix("notes/")?;
        match (name.strip_prefix(NOTE_OF_ITEM), name.strip_prefix(NOTE_OF_SERVER)) {
            (Some(item), _) => item.parse().ok().map(|item| Noted::Item(Item(item))),
            (None, Some(server)) => server.parse().ok().map(Noted::Server),
            (None, None) => None,
        }
    }

    /// The plan of the items that change their owner.
    pub fn handoff(&self) -> Path {
        self.root.child("handoff")
    }
}
