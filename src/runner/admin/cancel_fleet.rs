//! Cancels the executions of a job in the whole fleet for an operator: leaves a node that the sidecars of the job see, and reads which executions
//! it concerns. Decides nothing ([`crate::coordination::admin::cancel_fleet`] does).

use std::collections::BTreeSet;
use std::time::Duration;

use crate::coordination::admin::cancel_fleet::{CancelRefusal, Concerned, check, concerned};
use crate::extension::cancel_wish::FleetCancel;
use crate::extension::path::ExtensionPaths;
use crate::extension::request_record::RequestId;
use crate::job::{Item, JobName};
use crate::runner::admin::Namespace;
use crate::runner::requests;
use crate::runner::shared::Shared;
use crate::tree::{Error, NodeKind, Operation, OperationResult};

/// How long the registry may take: it waits while the session is suspended.
const LIMIT: Duration = Duration::from_secs(40);

/// Why executions were not cancelled.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FleetCancelError {
    /// There is no session.
    #[error("the sidecar has no session with the registry; try again")]
    NoSession,
    /// The registry cannot write.
    #[error("no execution of job `{job}` was cancelled: {obstacle}")]
    Unwritable {
        /// The job.
        job: JobName,
        /// Why, and what to do.
        obstacle: String,
    },
    /// The registry does not know the job.
    #[error("the registry has no nodes of job `{0}`; check the name and the namespace")]
    Unknown(JobName),
    /// The job has no configuration that can be read.
    #[error("job `{0}` has no readable configuration, so its items are not known; write one first")]
    NotConfigured(JobName),
    /// The job does not monitor executions.
    #[error(
        "job `{0}` does not monitor executions, so none can be told from a later one; cancel at each sidecar, without `fleet`"
    )]
    NotMonitored(JobName),
    /// The job has no such item.
    #[error("job `{job}` has no item {item}; it has {total} items, from 0")]
    NoItem {
        /// The job.
        job: JobName,
        /// The item.
        item: Item,
        /// How many it has.
        total: u32,
    },
    /// The request's id was given to another request.
    #[error("request_id `{id}` was given to another cancel of job `{job}`; use a new one")]
    OtherRequest {
        /// The job.
        job: JobName,
        /// The id.
        id: RequestId,
    },
    /// The nodes could not be read or written.
    #[error("job `{job}`: {error}; try again with the request_id `{id}`")]
    Failed {
        /// The job.
        job: JobName,
        /// The id of the request.
        id: RequestId,
        /// How.
        error: Error,
    },
    /// The registry did not answer in time.
    #[error(
        "the registry did not answer for job `{0}` within {LIMIT:?}; try again with the request_id `{1}`"
    )]
    Late(JobName, RequestId),
}

/// Cancels the executions of these items, or of all, on the sidecar's session. Returns them. A repetition with the same id concerns no later
/// execution, and returns those that have not ended.
pub async fn cancel(
    shared: &Shared,
    job: &JobName,
    items: Option<&BTreeSet<Item>>,
    id: &RequestId,
) -> Result<Vec<Concerned>, FleetCancelError> {
    let session = shared.current.borrow().clone().ok_or(FleetCancelError::NoSession)?;
    let namespace = Namespace::of(shared, &session);
    cancel_in(namespace, job, items, id).await
}

/// The same, on another session.
pub async fn cancel_in(
    namespace: Namespace<'_>,
    job: &JobName,
    items: Option<&BTreeSet<Item>>,
    id: &RequestId,
) -> Result<Vec<Concerned>, FleetCancelError> {
    tokio::select! {
        cancelled = cancel_at_once(namespace, job, items, id) => cancelled,
        () = namespace.clock.sleep(LIMIT) => Err(FleetCancelError::Late(job.clone(), id.clone())),
    }
}

async fn cancel_at_once(
    namespace: Namespace<'_>,
    job: &JobName,
    items: Option<&BTreeSet<Item>>,
    id: &RequestId,
) -> Result<Vec<Concerned>, FleetCancelError> {
    let Namespace { session, root, .. } = namespace;
    if let Some(obstacle) = session.obstacle() {
        return Err(FleetCancelError::Unwritable { job: job.clone(), obstacle });
    }
    let failed = |error| FleetCancelError::Failed { job: job.clone(), id: id.clone(), error };
    let fleet = ExtensionPaths::new(root, job).fleet();
    let path = fleet.cancel(id);
    let content = FleetCancel::write(items);
    let known = session.get(&path).await.map_err(failed)?;
    let read = async || {
        let picture = namespace.picture(job).await.map_err(failed)?;
        picture.ok_or_else(|| FleetCancelError::Unknown(job.clone()))
    };
    let mut before = None;
    let cancel = match known {
        Some(node) => node,
        None => {
            let picture = read().await?;
            check(before.insert(picture), items).map_err(|refusal| match refusal {
                CancelRefusal::NotConfigured => FleetCancelError::NotConfigured(job.clone()),
                CancelRefusal::NotMonitored => FleetCancelError::NotMonitored(job.clone()),
                CancelRefusal::NoItem(item, total) => {
                    FleetCancelError::NoItem { job: job.clone(), item, total }
                }
            })?;
            session.ensure(&fleet.cancels(), NodeKind::Persistent, b"").await.map_err(failed)?;
            let create = Operation::create(path.clone(), NodeKind::Persistent, &content);
            match session.commit(vec![create]).await.map_err(|failure| failure.error) {
                Ok(results) => {
                    let stat = results.iter().find_map(|result| match result {
                        OperationResult::Created { stat, .. } => Some(*stat),
                        OperationResult::Set { .. } | OperationResult::Deleted | OperationResult::Checked => {
                            None
                        }
                    });
                    if let Some(stat) = stat {
                        requests::forget_older(&**session, &fleet.cancels(), id, stat.modified_ms).await;
                    }
                }
                // The same request at the same time.
                Err(Error::NodeExists(_)) => {}
                Err(error) => return Err(failed(error)),
            }
            let node = session.get(&path).await.map_err(failed)?;
            node.ok_or_else(|| failed(Error::NoNode(path.clone())))?
        }
    };
    if *cancel.data != *content.as_bytes() {
        return Err(FleetCancelError::OtherRequest { job: job.clone(), id: id.clone() });
    }
    let after = read().await?;
    let pictures: Vec<_> = before.iter().chain([&after]).collect();
    let concerned = concerned(&pictures, items, cancel.stat.created.into());
    let count = concerned.len();
    tracing::info!(job.name = %job, %id, count, "executions of the whole fleet cancelled by an operator");
    Ok(concerned)
}
