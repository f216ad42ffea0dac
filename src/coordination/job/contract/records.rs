//! The records of executions under Sidekeeper's own root, as read: the ledger (P5) and the checkpoints.

use std::collections::{BTreeMap, BTreeSet};

use crate::extension::checkpoint::Checkpoint;
use crate::extension::ledger_entry::LedgerNode;
use crate::job::Item;

/// The records of items that were taken over.
#[derive(Debug, Default)]
pub struct WrittenDown {
    /// The ledger's entries: each item that has one.
    pub ledger: BTreeMap<Item, LedgerNode>,
    /// The checkpoints: each item that has one.
    pub checkpoints: BTreeMap<Item, Checkpoint>,
}

/// The checkpoints that were found.
#[derive(Debug, Default)]
pub struct FoundCheckpoints {
    /// The items that have a checkpoint.
    pub nodes: BTreeSet<Item>,
    /// The checkpoints that were read.
    pub read: BTreeMap<Item, Checkpoint>,
}
