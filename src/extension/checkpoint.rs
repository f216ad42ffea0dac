//! The content of a checkpoint's node: the place at which an execution can continue.

use std::sync::Arc;

use jiff::Timestamp;

use crate::mutants::mutant;

/// The largest checkpoint, in bytes. A checkpoint is a place in a data set, not the data; one transaction has
/// several of them.
pub const CHECKPOINT_BYTES_MAX: usize = 64 * 1024;

/// The place at which an execution can continue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checkpoint {
    /// The instant of the execution, in milliseconds since 1970, as in the ledger.
    pub scheduled_ms: i64,
    /// The application's data.
    pub data: Arc<[u8]>,
}

impl Checkpoint {
    /// Reads a node: the instant in decimal digits, a newline, and the application's data. `None`: the
    /// content has another form.
    pub fn read(node: &[u8]) -> Option<Self> {
        let end = node.iter().position(|byte| *byte == b'\n')?;
        let (instant, data) = node.split_at_checked(end)?;
        let scheduled_ms = std::str::from_utf8(instant).ok()?.parse().ok()?;
        let data = data.get(1..).filter(|data| data.len() <= CHECKPOINT_BYTES_MAX)?;
        Some(Self { scheduled_ms, data: data.into() })
    }

    /// The content of the node.
    pub fn write(&self) -> Vec<u8> {
        let mut node = format!("{}\n", self.scheduled_ms).into_bytes();
        node.extend_from_slice(&self.data);
        node
    }

    /// Whether it belongs to the execution for this instant.
    pub fn is_for(&self, scheduled: Timestamp) -> bool {
        self.scheduled_ms == scheduled.as_millisecond() || mutant!(CheckpointOfAnotherFire)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checkpoint_is_read_as_it_was_written_and_garbage_is_none() {
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
