//! The content of a ledger entry: the instants for which an item was started, flagged and interrupted (P5).

use jiff::Timestamp;

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
