//! Lists the triggers of a job for observers: reads its nodes, and the records of requests. Writes nothing, sets no watch that outlives the
//! call, decides nothing ([`crate::coordination::admin::triggers`] does).

use std::time::Duration;

use futures::stream::{StreamExt as _, TryStreamExt as _, iter};

use crate::coordination::admin::triggers::{ItemTrigger, Recorded, Trigger, item_triggers, triggers};
use crate::coordination::job::picture::fleet_view::FleetView;
use crate::coordination::job::picture::job_view::JobView;
use crate::elasticjob::path::JobPaths;
use crate::extension::path::ExtensionPaths;
use crate::extension::request_record::RequestRecord;
use crate::job::JobName;
use crate::runner::admin::Namespace;
use crate::runner::admin::explain_job::ExplainError;
use crate::runner::nodes::snapshot;
use crate::runner::shared::Shared;
use crate::tree::{Error, Path, WatchEvent};

/// How long the registry may take: it waits while the session is suspended.
const LIMIT: Duration = Duration::from_secs(20);
/// How many records a list has at most. An operator triggers a job a few times in ten minutes.
const RECORDS_MAX: usize = 1_000;
/// The records that are read at once. Each costs a request, and they travel together.
const AT_ONCE: usize = 64;

/// The triggers of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedTriggers {
    /// The triggers, ascending by instance.
    pub triggers: Vec<Trigger>,
    /// The triggers of items, ascending by item.
    pub item_triggers: Vec<ItemTrigger>,
    /// How many records are left out.
    pub left_out: usize,
}

/// Lists the triggers of a job on the sidecar's session.
pub async fn list(shared: &Shared, job: &JobName) -> Result<ListedTriggers, ExplainError> {
    let session = shared.current.borrow().clone().ok_or(ExplainError::NoSession)?;
    list_in(Namespace::of(shared, &session), job).await
}

/// The same, on another session.
pub async fn list_in(namespace: Namespace<'_>, job: &JobName) -> Result<ListedTriggers, ExplainError> {
    let Namespace { session, root, clock } = namespace;
    let (paths, own_paths) = (JobPaths::new(root, job), ExtensionPaths::new(root, job));
    // The records are read first: the trigger of each is then in the nodes, unless it was taken up.
    let read = async {
        let (records, left_out) = records(namespace, &own_paths.requests()).await?;
        let of_items = snapshot::read(&**session, &own_paths.fleet().triggers()).await?;
        Ok((records, left_out, of_items, snapshot::read(&**session, paths.root()).await?))
    };
    let read = tokio::select! {
        read = read => read.map_err(|error| ExplainError::Unread { job: job.clone(), error }),
        () = clock.sleep(LIMIT) => Err(ExplainError::Late(job.clone())),
    };
    let (records, left_out, of_items, nodes) = read?;
    if nodes.is_empty() {
        return Err(ExplainError::Unknown(job.clone()));
    }
    let mut view = JobView::new(paths.root().clone());
    view.apply(WatchEvent::Snapshot(nodes.clone()), clock.now());
    let mut fleet = FleetView::new(own_paths.fleet());
    fleet.apply(WatchEvent::Snapshot(of_items));
    let item_triggers = item_triggers(&fleet, &records);
    Ok(ListedTriggers { triggers: triggers(&paths, &view, &nodes, &records), item_triggers, left_out })
}

/// The records of triggers, and how many records are left out.
async fn records(namespace: Namespace<'_>, folder: &Path) -> Result<(Vec<Recorded>, usize), Error> {
    let mut names = namespace.session.children(folder).await?.unwrap_or_default();
    names.sort_unstable();
    let left_out = names.len().saturating_sub(RECORDS_MAX);
    names.truncate(RECORDS_MAX);
    let read = names.into_iter().map(|name| async move {
        let (Some(request), Ok(path)) = (ExtensionPaths::request_of(&name), folder.try_child(&name)) else {
            return Ok(None);
        };
        let node = namespace.session.get(&path).await?;
        Ok(node.and_then(|node| match RequestRecord::read(&node.data) {
            RequestRecord::Trigger(record) => Some(Recorded { request, stat: node.stat, record }),
            RequestRecord::Cancel(_) | RequestRecord::Unknown => None,
        }))
    });
    let records: Vec<_> = iter(read).buffered(AT_ONCE).try_collect().await?;
    Ok((records.into_iter().flatten().collect(), left_out))
}
