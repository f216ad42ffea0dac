//! How an instance leaves, and how it comes back. Only this room and the participant change the phase.
//!
//! This file has the state that the room shares: the observed state of the instance's node, and the state that a former
//! process has left.

pub(crate) mod departure;
mod removal;
pub(crate) mod restart;
pub(crate) mod stream;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;

use crate::coordination::job::contract::reattach::{Former, Return};
use crate::job::Item;

/// The state of the instance's life, besides its phase.
#[derive(Debug, Default)]
pub(crate) struct Lifecycle {
    /// Whether the picture has shown this instance since it was registered in this session.
    seen: bool,
    /// When the instance's node was removed; monotonic. `None`: it was not removed, or the reason of the removal is
    /// known.
    removed_at: Option<Duration>,
    /// Whether the application has announced that it is stopping.
    application_stops: bool,
    /// Whether the application is to hear that no execution follows.
    announces_drain: bool,
    /// Whether this instance has removed its nodes to leave.
    removed: bool,
    /// Whether the present transaction of the departure deletes this instance's node.
    deletes_instance: bool,
    /// Whether the registry has said that this instance's node does not exist any more.
    is_instance_deleted: bool,
    /// The items that a transaction of the departure hands over, as long as its outcome is not known. Without the
    /// running node of this instance, one was handed over.
    handing_over: BTreeSet<Item>,
    /// The items that this instance has handed over to leave.
    handed_over: BTreeSet<Item>,
    /// The instance of a former process, until its restart has ended.
    restart: Option<Box<Restart>>,
}

#[derive(Debug)]
struct Restart {
    former: Former,
    /// Whether the instance's nodes were found.
    found: bool,
    /// The application has reattached, and nothing was sent to it yet.
    back: Option<Return>,
    /// The instants of the items' starts in the ledger, for an application that does not report them.
    instants: Instants,
}

/// The ledger's instants for a restored instance.
#[derive(Debug)]
enum Instants {
    /// Not asked for.
    Unasked,
    /// Being read.
    Asked,
    /// Read; empty if the ledger cannot be read.
    Read(BTreeMap<Item, Timestamp>),
}
