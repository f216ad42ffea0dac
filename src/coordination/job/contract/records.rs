//! The records of executions under our own root, as they were read: the ledger (P5) and the checkpoints.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;

use crate::coordination::job::contract::plan::{Planned, Source};
use crate::job::Item;
use crate::mutants::mutant;
use crate::tree::Node;

/// What the ledger says about an item.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LedgerEntry {
    /// The latest fire that was started or flagged as missed.
    pub latest: Option<Timestamp>,
    /// For which instant the latest execution was started, whatever made it start.
    pub started: Option<Timestamp>,
    /// For which instant the item was flagged as missed, until that was made up for.
    pub flagged: Option<Timestamp>,
    /// For which instant an execution has crashed, if the item's owner has started another one before its failover had
    /// ended. Until then the instant of the crash is not lost.
    pub interrupted: Option<Timestamp>,
}

impl LedgerEntry {
    /// Reads a node: three instants in milliseconds since 1970, and a fourth if there is one. Anything else counts as none.
    pub fn read(data: &[u8]) -> Self {
        let mut fields = std::str::from_utf8(data).unwrap_or_default().split(' ');
        let mut instant = || Timestamp::from_millisecond(fields.next()?.parse().ok()?).ok();
        Self { latest: instant(), started: instant(), flagged: instant(), interrupted: instant() }
    }

    /// Version 0.1.0 reads the first three fields, and writes no others.
    pub(in crate::coordination) fn write(self) -> String {
        let field = |at: Option<Timestamp>| at.map_or("-".to_owned(), |at| at.as_millisecond().to_string());
        let interrupted = self.interrupted.map_or(String::new(), |at| format!(" {}", at.as_millisecond()));
        format!("{} {} {}{interrupted}", field(self.latest), field(self.started), field(self.flagged))
    }

    /// For which instant the instance that takes the item over executes it.
    pub fn crashed(self) -> Option<Timestamp> {
        self.interrupted.or(self.started)
    }

    /// An instant that was made up for late must not hide a later one.
    fn with_latest(self, scheduled: Timestamp) -> Self {
        Self { latest: Some(self.latest.map_or(scheduled, |latest| latest.max(scheduled))), ..self }
    }

    /// The entry after this execution was started. `waits`: an interrupted one waits for its failover.
    pub(in crate::coordination) fn after_start(self, planned: Planned, waits: bool) -> Self {
        let interrupted = self.crashed().filter(|_| waits);
        let entry = if planned.is_fire() { self.with_latest(planned.scheduled) } else { self };
        let flagged = entry.flagged.filter(|_| !planned.is_first_of(Source::Misfire));
        Self { started: Some(planned.scheduled), flagged, interrupted, ..entry }
    }

    /// The entry after a missed fire was flagged.
    pub(in crate::coordination) fn after_flag(self, scheduled: Timestamp) -> Self {
        Self { flagged: Some(scheduled), ..self.with_latest(scheduled) }
    }
}

/// An item's node, as it was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LedgerNode {
    /// What it says.
    pub says: LedgerEntry,
    /// The version of the node: how often it was set.
    pub version: i32,
}

impl LedgerNode {
    /// Takes a node for an item's.
    pub fn read(node: &Node) -> Self {
        Self { says: LedgerEntry::read(&node.data), version: node.stat.version }
    }
}

/// The largest checkpoint, in bytes: a place in a data set, not the data; a transaction holds some of them.
pub const CHECKPOINT_BYTES_MAX: usize = 64 * 1024;

/// From where an execution can go on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checkpoint {
    /// For which instant the execution was started, in milliseconds since 1970, which is what the ledger keeps.
    pub(in crate::coordination) scheduled_ms: i64,
    /// What the application wrote.
    pub(in crate::coordination) data: Arc<[u8]>,
}

impl Checkpoint {
    /// Reads a node: the instant in decimal digits, a newline, and what the application wrote. `None`: it is not like that.
    pub fn read(node: &[u8]) -> Option<Self> {
        let end = node.iter().position(|byte| *byte == b'\n')?;
        let (instant, data) = node.split_at_checked(end)?;
        let scheduled_ms = std::str::from_utf8(instant).ok()?.parse().ok()?;
        let data = data.get(1..).filter(|data| data.len() <= CHECKPOINT_BYTES_MAX)?;
        Some(Self { scheduled_ms, data: data.into() })
    }

    pub(in crate::coordination) fn write(&self) -> Vec<u8> {
        let mut node = format!("{}\n", self.scheduled_ms).into_bytes();
        node.extend_from_slice(&self.data);
        node
    }

    pub(in crate::coordination) fn is_for(&self, scheduled: Timestamp) -> bool {
        self.scheduled_ms == scheduled.as_millisecond() || mutant!(CheckpointOfAnotherFire)
    }
}

/// What is written down about items that were taken over.
#[derive(Debug, Default)]
pub struct WrittenDown {
    /// For which fires they were started: each item that has an entry.
    pub ledger: BTreeMap<Item, LedgerNode>,
    /// How far they were: each item that has a checkpoint.
    pub checkpoints: BTreeMap<Item, Checkpoint>,
}

/// Which checkpoints there are.
#[derive(Debug, Default)]
pub struct FoundCheckpoints {
    /// The items that have one.
    pub nodes: BTreeSet<Item>,
    /// Those that were asked for.
    pub read: BTreeMap<Item, Checkpoint>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(milliseconds: i64) -> Timestamp {
        Timestamp::from_millisecond(milliseconds).unwrap()
    }

    #[test]
    fn the_instant_of_a_crash_is_kept_until_its_failover_has_ended() {
        let start = |entry: LedgerEntry, source, milliseconds, waits| {
            let after = entry.after_start(Planned::new(source, at(milliseconds)), waits);
            assert_eq!(LedgerEntry::read(after.write().as_bytes()), after);
            after
        };
        let crashed = start(LedgerEntry::default(), Source::Schedule, 1_000, false);
        assert_eq!((crashed.crashed(), crashed.write().as_str()), (Some(at(1_000)), "1000 1000 -"));
        // Nobody has taken the item for so long that its owner goes on.
        let other = start(crashed, Source::Misfire, 3_000, true);
        assert_eq!((other.crashed(), other.write().as_str()), (Some(at(1_000)), "3000 3000 - 1000"));
        let third = start(other, Source::Schedule, 4_000, true);
        assert_eq!(third.crashed(), Some(at(1_000)));
        let failover = start(third, Source::Failover, 1_000, true);
        assert_eq!(failover.crashed(), Some(at(1_000)));
        let next = start(failover, Source::Schedule, 5_000, false);
        assert_eq!((next.crashed(), next.write().as_str()), (Some(at(5_000)), "5000 5000 -"));
    }

    #[test]
    fn what_was_written_is_read_and_garbage_is_none() {
        let checkpoint = Checkpoint { scheduled_ms: -5, data: b"a\nb\0\xff".as_slice().into() };
        assert_eq!(Checkpoint::read(&checkpoint.write()), Some(checkpoint));
        assert_eq!(Checkpoint::read(b"12\n").map(|read| read.data.len()), Some(0));
        for garbage in ["", "\n", "12", "x\ny", "12 \ny", "99999999999999999999\n"] {
            assert_eq!(Checkpoint::read(garbage.as_bytes()), None, "{garbage:?}");
        }
        let large = [b"1\n".as_slice(), &vec![0; CHECKPOINT_BYTES_MAX + 1]].concat();
        assert_eq!(Checkpoint::read(&large), None);
    }
}
