//! The nodes of the ledger: its entries, with the instants for which an item was started, flagged and interrupted, and
//! the witnesses of fires (P5).
//!
//! A *witness* is a node whose name is the instant of a fire. It says that the job was on at that fire, and that items
//! missed it. So an item whose entry ends before the newest witness has missed that fire.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

use crate::extension::path::ExtensionPaths;
use crate::job::Item;
use crate::tree::Node;

/// The ledger's instants of an item.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LedgerEntry {
    /// The latest fire that was started or flagged as missed.
    pub latest: Option<Timestamp>,
    /// The instant of the latest execution, from any source.
    pub started: Option<Timestamp>,
    /// The instant of the flagged misfire. The start of the misfire re-run clears it.
    pub flagged: Option<Timestamp>,
    /// The instant of a crashed execution whose item was started for another instant before its failover
    /// ended. It keeps the instant for the failover.
    pub interrupted: Option<Timestamp>,
}

impl LedgerEntry {
    /// Reads a node: three instants in milliseconds since 1970, and optionally a fourth. Other content counts
    /// as no instant.
    pub fn read(data: &[u8]) -> Self {
        let mut fields = std::str::from_utf8(data).unwrap_or_default().split(' ');
        let mut instant = || Timestamp::from_millisecond(fields.next()?.parse().ok()?).ok();
        Self { latest: instant(), started: instant(), flagged: instant(), interrupted: instant() }
    }

    /// The content of the node. Version 0.1.0 reads and writes only the first three fields.
    pub fn write(self) -> String {
        let field = |at: Option<Timestamp>| at.map_or("-".to_owned(), |at| at.as_millisecond().to_string());
        let interrupted = self.interrupted.map_or(String::new(), |at| format!(" {}", at.as_millisecond()));
        format!("{} {} {}{interrupted}", field(self.latest), field(self.started), field(self.flagged))
    }

    /// The instant for which a failover executes the item.
    pub fn crashed(self) -> Option<Timestamp> {
        self.interrupted.or(self.started)
    }
}

/// The nodes of the ledger, as they were read.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LedgerNodes {
    /// Each item that has an entry.
    pub entries: BTreeMap<Item, LedgerNode>,
    /// The fires that have a witness.
    pub witnesses: BTreeSet<Timestamp>,
}

impl LedgerNodes {
    /// Reads the nodes of the ledger's folder.
    pub fn read(paths: &ExtensionPaths, nodes: &[Node]) -> Self {
        let folder = paths.ledger();
        let entry = |node: &Node| {
            let item = node.path.relative_to(&folder)?.parse().ok()?;
            Some((Item(item), LedgerNode::read(node)))
        };
        Self {
            entries: nodes.iter().filter_map(entry).collect(),
            witnesses: nodes.iter().filter_map(|node| paths.witness_of(&node.path)).collect(),
        }
    }
}

/// The node of an item's entry, as it was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LedgerNode {
    /// Its content.
    pub entry: LedgerEntry,
    /// Its version: how often it was set.
    pub version: i32,
}

impl LedgerNode {
    /// Reads an item's node.
    pub fn read(node: &Node) -> Self {
        Self { entry: LedgerEntry::read(&node.data), version: node.stat.version }
    }
}
