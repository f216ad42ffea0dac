//! The content of the nodes with which an operator cancels the executions of a whole fleet.
//!
//! Such a node stays for some minutes. It concerns the executions whose running nodes are older than itself, and no later one: the registry
//! orders both by the transactions that created them.

use std::collections::BTreeSet;

use crate::job::{FencingToken, Item};
use crate::tree::Stat;

/// The line for all items.
const ALL: &str = "all";

/// Which executions are cancelled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FleetCancel {
    /// The items; `None`: all of them.
    pub items: Option<BTreeSet<Item>>,
    /// The transaction that created the node: older executions are cancelled.
    pub created: FencingToken,
}

impl FleetCancel {
    /// Reads the node. Content that this version does not know cancels nothing.
    pub fn read(data: &[u8], stat: Stat) -> Self {
        let text = String::from_utf8_lossy(data);
        let is_all = text.lines().any(|line| line == ALL);
        let named =
            text.lines().filter_map(|line| line.strip_prefix("items ")).flat_map(|line| line.split(' '));
        let items = named.filter_map(|word| word.parse().ok()).map(Item).collect();
        Self { items: (!is_all).then_some(items), created: stat.created.into() }
    }

    /// The node's content.
    pub fn write(items: Option<&BTreeSet<Item>>) -> String {
        match items {
            None => format!("{ALL}\n"),
            Some(items) => {
                let items: Vec<_> = items.iter().map(ToString::to_string).collect();
                format!("items {}\n", items.join(" "))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::Zxid;

    #[test]
    fn cancels_are_read_as_they_were_written_and_nonsense_cancels_nothing() {
        let (created, modified) = (Zxid(7), Zxid(9));
        let stat = Stat { created, modified, version: 1, ephemeral_owner: None, modified_ms: 0 };
        let read = |data: &[u8]| FleetCancel::read(data, stat);
        let items: BTreeSet<_> = [Item(3), Item(12)].into();
        for wanted in [None, Some(&items)] {
            let again = read(FleetCancel::write(wanted).as_bytes());
            assert_eq!((again.items.as_ref(), again.created), (wanted, FencingToken(7)));
        }
        for nonsense in [&b""[..], b"\xff", b"items", b"items -1 x", b"everything\n"] {
            assert_eq!(read(nonsense).items, Some(BTreeSet::new()), "{nonsense:?}");
        }
    }
}
