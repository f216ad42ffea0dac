//! The records of operators' requests ([`crate::extension::request_record`]): reads them, and deletes those that nobody repeats any more.
//! The request itself writes its record, in the transaction of its deed. Decides nothing else.

use futures::future::join_all;

use crate::extension::path::ExtensionPaths;
use crate::extension::request_record::{REMEMBERED_MS, RequestId, RequestRecord};
use crate::registry::Session;
use crate::tree::{Error, NodeKind, Operation, OperationResult, Path};

/// How many old records a request looks at. It makes one, so their number does not grow.
const LOOKED_AT: usize = 16;

/// Reads a record, or a part of it. `None`: there is none.
pub async fn read(session: &dyn Session, record: &Path) -> Result<Option<RequestRecord>, Error> {
    Ok(session.get(record).await?.map(|node| RequestRecord::read(&node.data)))
}

/// Creates the folder of a job's records.
pub async fn make_room(session: &dyn Session, paths: &ExtensionPaths) -> Result<(), Error> {
    session.ensure(&paths.requests(), NodeKind::Persistent, b"").await.map(drop)
}

/// Deletes records that are older than the time for which they are remembered, after a request that has left one. The registry's time is that of
/// the request's own record among the `results`. Looks at those whose names follow the request's, because ids are random: so each is looked at
/// some day. A later request repeats a step that fails.
pub async fn forget_old(
    session: &dyn Session,
    paths: &ExtensionPaths,
    id: &RequestId,
    results: &[OperationResult],
) {
    let folder = paths.requests();
    let own = results.iter().find_map(|result| match result {
        OperationResult::Created { path, stat } if path.is_within(&folder) => Some(stat.modified_ms),
        OperationResult::Created { .. }
        | OperationResult::Set { .. }
        | OperationResult::Deleted
        | OperationResult::Checked => None,
    });
    if let Some(now_ms) = own {
        forget_older(session, &folder, id, now_ms).await;
    }
}

/// The same for the children of any folder whose names are ids of requests, at this time of the registry.
pub async fn forget_older(session: &dyn Session, folder: &Path, id: &RequestId, now_ms: i64) {
    let Ok(Some(names)) = session.children(folder).await else { return };
    let looked_at = following(names, id).into_iter().filter_map(|name| folder.try_child(&name).ok());
    let nodes = join_all(looked_at.map(|path| session.get(&path))).await;
    let is_old = |modified_ms: i64| modified_ms.saturating_add(REMEMBERED_MS) <= now_ms;
    let old = nodes.into_iter().filter_map(Result::ok).flatten().filter(|node| is_old(node.stat.modified_ms));
    for node in old {
        if let Err(failure) = session.commit(vec![Operation::delete(node.path)]).await {
            tracing::debug!(error = %failure, "an old record of a request was not deleted");
        }
    }
}

/// The names that follow this one, from the first again after the last.
fn following(mut names: Vec<String>, id: &RequestId) -> Vec<String> {
    names.sort_unstable();
    names.dedup();
    let after = names.partition_point(|name| name.as_str() <= id.as_str());
    names.rotate_left(after);
    names.truncate(LOOKED_AT);
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_looks_at_the_records_that_follow_its_own() {
        let names: Vec<_> = (10..60).map(|name| name.to_string()).collect();
        let looked_at = |id: &str| following(names.clone(), &RequestId::parse(id).unwrap());
        assert_eq!(looked_at("12").first().unwrap(), "13");
        let last = looked_at("58");
        assert_eq!(last.iter().take(3).collect::<Vec<_>>(), ["59", "10", "11"]);
        assert_eq!(last.len(), LOOKED_AT);
        assert_eq!(following(vec!["a".to_owned()], &RequestId::parse("a").unwrap()), ["a"]);
    }
}
