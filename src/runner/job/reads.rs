//! Reads the nodes that a participant does not follow: the ledger of started fires (the whole folder at once, in a handful of
//! requests for any number of items), and the checkpoints of executions (those that are needed). Decides nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use futures::future::try_join_all;

use crate::coordination::job::contract::records::{FoundCheckpoints, WrittenDown};
use crate::extension::checkpoint::Checkpoint;
use crate::extension::ledger_entry::LedgerNodes;
use crate::extension::path::ExtensionPaths;
use crate::job::Item;
use crate::registry::Session;
use crate::tree::{Error, NodeKind, Operation, Path};

/// Reads the ledger. Creates its folder if that does not exist: then no fire was started before.
pub async fn read(session: Arc<dyn Session>, paths: ExtensionPaths) -> Result<LedgerNodes, String> {
    let folder = paths.ledger();
    let nodes = session.subtree(&folder).await.map_err(|error| error.to_string())?;
    if nodes.is_empty() {
        create(&session, &folder).await.map_err(|error| error.to_string())?;
    }
    Ok(LedgerNodes::read(&paths, &nodes))
}

/// Creates a folder that was found missing, whatever the session knew of it before.
async fn create(session: &Arc<dyn Session>, folder: &Path) -> Result<(), Error> {
    let step = Operation::create(folder.clone(), NodeKind::Persistent, "");
    match session.commit_with_others(vec![step]).await.map_err(|error| error.error) {
        Ok(_) | Err(Error::NodeExists(_)) => Ok(()),
        // Its parents are missing, too.
        Err(Error::NoNode(_)) => session.ensure(folder, NodeKind::Persistent, b"").await.map(|_| ()),
        Err(error) => Err(error),
    }
}

/// Reads the ledger, and the checkpoints of items that were taken over.
pub async fn read_taken(
    session: Arc<dyn Session>,
    paths: ExtensionPaths,
    items: BTreeSet<Item>,
) -> Result<WrittenDown, String> {
    let ledger = read(Arc::clone(&session), paths.clone()).await?.entries;
    let checkpoints = read_checkpoints(&*session, &paths, &items).await.map_err(|error| error.to_string())?;
    Ok(WrittenDown { ledger, checkpoints })
}

/// Finds the items that have checkpoints, and reads the checkpoints of some items. Creates their folder if it does not exist.
pub async fn find_checkpoints(
    session: Arc<dyn Session>,
    paths: ExtensionPaths,
    items: BTreeSet<Item>,
) -> Result<FoundCheckpoints, String> {
    let find = async {
        let folder = paths.checkpoints();
        let names = session.children(&folder).await?;
        if names.is_none() {
            create(&session, &folder).await?;
        }
        let names = names.unwrap_or_default();
        let nodes: BTreeSet<_> = names.iter().filter_map(|name| name.parse().ok()).map(Item).collect();
        let wanted = nodes.intersection(&items).copied().collect();
        Ok(FoundCheckpoints { read: read_checkpoints(&*session, &paths, &wanted).await?, nodes })
    };
    find.await.map_err(|error: Error| error.to_string())
}

async fn read_checkpoints(
    session: &dyn Session,
    paths: &ExtensionPaths,
    items: &BTreeSet<Item>,
) -> Result<BTreeMap<Item, Checkpoint>, Error> {
    let checkpoint = async |item: &Item| {
        let node = session.get(&paths.checkpoint(*item)).await?;
        Ok::<_, Error>(node.and_then(|node| Some((*item, Checkpoint::read(&node.data)?))))
    };
    let found = try_join_all(items.iter().map(checkpoint)).await?;
    Ok(found.into_iter().flatten().collect())
}
