//! Reads the ledger of started fires: the whole folder at once, in a handful of requests however many items there are.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::coordination::ledger::LedgerEntry;
use crate::job::Item;
use crate::registry::Session;
use crate::tree::{Node, NodeKind, Path, WatchEvent};

/// Reads the folder, and creates it if it does not exist.
pub async fn read(session: Arc<dyn Session>, folder: Path) -> Result<BTreeMap<Item, LedgerEntry>, String> {
    session.ensure(&folder, NodeKind::Persistent, b"").await.map_err(|error| error.to_string())?;
    // A watch begins with a snapshot; only that is of interest.
    let opened = session.watch(&folder, Arc::new(|_: &Path| false)).await;
    let mut watch = opened.map_err(|error| error.to_string())?;
    let Some(WatchEvent::Snapshot(nodes)) = watch.recv().await else {
        return Err("the session was lost".to_owned());
    };
    let entry = |node: &Node| {
        let item = node.path.relative_to(&folder)?.parse().ok()?;
        Some((Item(item), LedgerEntry::read(&node.data)))
    };
    Ok(nodes.iter().filter_map(entry).collect())
}
