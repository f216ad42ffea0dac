//! The node that says that the namespace was restored from a backup, and that fencing tokens may be lower than before. The
//! restore creates it; an operator deletes it.

use serde::{Deserialize, Serialize};

use crate::extension::path::ExtensionPaths;
use crate::tree::{Node, Path, Zxid};

/// The name below our own root. It can be no job's name.
const NAME: &str = "@-@restored";

/// A restore after which tokens may be lower than before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Restored {
    /// The highest transaction id that the backup knows of. Tokens up to it, and somewhat higher, were given out.
    pub highest: Zxid,
    /// The transaction of the restore. The tokens after it are higher.
    pub begins: Zxid,
}

#[derive(Serialize, Deserialize)]
struct Content {
    highest_zxid: i64,
}

impl Restored {
    /// The path of the node.
    pub fn path(namespace: &Path) -> Path {
        ExtensionPaths::all(namespace).child(NAME)
    }

    /// Reads the node. Content that cannot be read counts as the highest id that there is.
    pub fn read(node: &Node) -> Self {
        let content = serde_json::from_slice(&node.data).unwrap_or(Content { highest_zxid: i64::MAX });
        Self { highest: Zxid(content.highest_zxid), begins: node.stat.modified }
    }

    /// The content of the node.
    pub fn write(highest: Zxid) -> String {
        // A number in an object is always JSON.
        serde_json::to_string(&Content { highest_zxid: highest.0 }).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::Stat;

    #[test]
    fn the_node_is_read_as_it_was_written_and_nonsense_counts_as_the_highest_id() {
        let stat = Stat {
            created: Zxid(3),
            modified: Zxid(9),
            version: 4,
            ephemeral_owner: None,
            modified_ms: 1_000,
        };
        let path = Restored::path(&Path::parse("/ns").unwrap());
        assert_eq!(path.as_str(), "/ns-sidekeeper/@-@restored");
        let node = |data: &str| Node { path: path.clone(), data: data.as_bytes().into(), stat };
        let read = Restored::read(&node(&Restored::write(Zxid(77))));
        assert_eq!(read, Restored { highest: Zxid(77), begins: Zxid(9) });
        assert_eq!(Restored::read(&node("x")).highest, Zxid(i64::MAX));
    }
}
