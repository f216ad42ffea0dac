//! Triggers a job for an operator: reads the nodes that the plan needs, commits the plan, and tries again if nodes have
//! changed in between. Bounded in attempts and in time. Decides nothing.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use crate::coordination::admin::trigger_job::{TriggerRefusal, TriggerView, plan_trigger};
use crate::coordination::job::picture::nodes::ServerStatus;
use crate::elasticjob::config_yaml;
use crate::elasticjob::path::{Folder, JobPaths};
use crate::extension::path::ExtensionPaths;
use crate::extension::request_record::{RequestId, RequestRecord};
use crate::job::{InstanceId, Item, JobName};
use crate::registry::Session;
use crate::runner::admin::Namespace;
use crate::runner::requests;
use crate::runner::shared::Shared;
use crate::tree::Error;

/// Attempts in a row that fail because nodes have changed.
const ATTEMPTS_MAX: u32 = 5;
/// The pause after the first such attempt; it doubles. A Java instance that reconnects is offline for two requests.
const PAUSE: Duration = Duration::from_millis(20);

/// The instances that a trigger has reached.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Triggered {
    /// The instances that were triggered now.
    pub triggered: BTreeSet<InstanceId>,
    /// The instances that have not fired yet for an earlier trigger.
    pub pending: BTreeSet<InstanceId>,
}

/// Why a job was not triggered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TriggerError {
    /// There is no session.
    #[error("the sidecar has no session with the registry; try again")]
    NoSession,
    /// The registry cannot write.
    #[error("job `{job}` was not triggered: {obstacle}")]
    Unwritable {
        /// The job.
        job: JobName,
        /// Why, and what to do.
        obstacle: String,
    },
    /// The job has no configuration.
    #[error(
        "job `{0}` has no configuration in the registry: check the name, or attach an application with one"
    )]
    NotConfigured(JobName),
    /// No instance is online.
    #[error("job `{0}` has no instance online that could fire; start one, then trigger it")]
    NobodyOnline(JobName),
    /// The servers of all instances are disabled.
    #[error(
        "the servers of all instances of job `{0}` are disabled, so nobody would fire; enable one, then trigger it"
    )]
    ServersDisabled(JobName),
    /// All items are disabled.
    #[error("all items of job `{0}` are disabled, so nothing would be executed; enable one, then trigger it")]
    ItemsDisabled(JobName),
    /// Instances came and went between reading and writing, again and again.
    #[error(
        "the instances of job `{job}` changed {ATTEMPTS_MAX} times while it was to be triggered, at last: {last}"
    )]
    Changing {
        /// The job.
        job: JobName,
        /// The last failure.
        last: Error,
    },
    /// The job's nodes could not be read.
    #[error("the registry did not tell the state of job `{job}`: {error}; try again")]
    Unread {
        /// The job.
        job: JobName,
        /// How.
        error: Error,
    },
    /// The request's id was given to another request.
    #[error("request_id `{id}` was given to another request about job `{job}`; use a new one")]
    OtherRequest {
        /// The job.
        job: JobName,
        /// The id.
        id: RequestId,
    },
    /// The nodes could not be written. If the outcome is unknown, they may have been.
    #[error("job `{job}`: {error}")]
    Unwritten {
        /// The job.
        job: JobName,
        /// How.
        error: Error,
    },
}

/// Triggers all instances of a job that are online, on the sidecar's session. `request`: the id that the caller has given the request; if it was carried out
/// before, nothing is changed.
pub async fn trigger(
    shared: &Shared,
    job: &JobName,
    request: Option<&RequestId>,
) -> Result<Triggered, TriggerError> {
    let session = shared.current.borrow().clone().ok_or(TriggerError::NoSession)?;
    let namespace = Namespace::of(shared, &session);
    trigger_in(namespace, job, request).await
}

/// The same, on another session.
pub async fn trigger_in(
    namespace: Namespace<'_>,
    job: &JobName,
    request: Option<&RequestId>,
) -> Result<Triggered, TriggerError> {
    let Namespace { session, root, clock } = namespace;
    if let Some(obstacle) = session.obstacle() {
        return Err(TriggerError::Unwritable { job: job.clone(), obstacle });
    }
    let unread = |error| TriggerError::Unread { job: job.clone(), error };
    let unwritten = |error| TriggerError::Unwritten { job: job.clone(), error };
    let (paths, own_paths) = (JobPaths::new(root, job), ExtensionPaths::new(root, job));
    let mut result = Triggered::default();
    let mut clear = true;
    let (mut attempt, mut part) = (0, 0);
    loop {
        while let Some(id) = request {
            match requests::read(&**session, &own_paths.request(id, part)).await.map_err(unread)? {
                None => break,
                Some(RequestRecord::Trigger(record)) if record.asked.is_none() => {
                    result.triggered.extend(record.triggered);
                    result.pending = record.pending;
                    if !record.is_partial {
                        tracing::info!(job.name = %job, %id, "triggered before by the same request");
                        return Ok(result);
                    }
                    part = part.saturating_add(1);
                }
                Some(RequestRecord::Trigger(_) | RequestRecord::Cancel(_) | RequestRecord::Unknown) => {
                    return Err(TriggerError::OtherRequest { job: job.clone(), id: id.clone() });
                }
            }
        }
        let view = read(session, &paths).await.map_err(unread)?;
        let record = request.map(|id| own_paths.request(id, part));
        let plan =
            plan_trigger(&paths, &view, &result.triggered, clear, record.as_ref()).map_err(|refusal| {
                match refusal {
                    TriggerRefusal::NotConfigured => TriggerError::NotConfigured(job.clone()),
                    TriggerRefusal::NobodyOnline => TriggerError::NobodyOnline(job.clone()),
                    TriggerRefusal::ServersDisabled => TriggerError::ServersDisabled(job.clone()),
                    TriggerRefusal::ItemsDisabled => TriggerError::ItemsDisabled(job.clone()),
                }
            })?;
        if record.is_some() {
            requests::make_room(&**session, &own_paths).await.map_err(unwritten)?;
        }
        if !plan.transaction.is_empty() {
            match session.commit(plan.transaction).await.map_err(|failure| failure.error) {
                Ok(results) => {
                    attempt = 0;
                    part = part.saturating_add(1);
                    if let Some(id) = request {
                        requests::forget_old(&**session, &own_paths, id, &results).await;
                    }
                }
                Err(last @ (Error::NoNode(_) | Error::NodeExists(_) | Error::NotEmpty(_))) => {
                    if attempt + 1 == ATTEMPTS_MAX {
                        return Err(TriggerError::Changing { job: job.clone(), last });
                    }
                    // Another client has put nodes below a trigger. Sidekeeper does not delete these.
                    clear &= !matches!(last, Error::NotEmpty(_));
                    clock.sleep(PAUSE.saturating_mul(1 << attempt)).await;
                    attempt += 1;
                    continue;
                }
                Err(error) => return Err(unwritten(error)),
            }
        }
        result.triggered.extend(plan.triggered);
        result.pending = plan.pending;
        if !plan.is_partial {
            let (triggered, pending) = (result.triggered.len(), result.pending.len());
            tracing::info!(job.name = %job, triggered, pending, "triggered");
            return Ok(result);
        }
    }
}

/// Reads the nodes in five requests, and one more for each disabled server or item until an enabled one is found. The answers
/// are not of one moment; the transaction checks what matters.
async fn read(session: &Arc<dyn Session>, paths: &JobPaths) -> Result<TriggerView, Error> {
    let config = session.get(&paths.config());
    let instances = session.children(&paths.folder(Folder::Instances));
    let triggers = session.children(&paths.folder(Folder::Trigger));
    let ids = |names: Vec<String>| -> BTreeSet<_> {
        names.iter().map(|name| InstanceId::from_registry(name)).collect()
    };
    let config = config.await?;
    let instances = instances.await?.map(ids).unwrap_or_default();
    let configuration = config.as_ref().and_then(|node| config_yaml::parse(&node.data).ok());
    let total = configuration.map(|parsed| parsed.configuration.sharding_total_count);
    Ok(TriggerView {
        configured: config.is_some(),
        has_enabled_server: has_enabled_server(session, paths, &instances).await?,
        // Instances that can read this configuration may fire, though we cannot.
        has_enabled_item: match total {
            Some(total) => has_enabled_item(session, paths, total).await?,
            None => true,
        },
        instances,
        triggers: triggers.await?.map(ids),
    })
}

async fn has_enabled_server(
    session: &Arc<dyn Session>,
    paths: &JobPaths,
    instances: &BTreeSet<InstanceId>,
) -> Result<bool, Error> {
    let servers: BTreeSet<_> = instances.iter().filter_map(InstanceId::server_ip).collect();
    for server in servers {
        let node = session.get(&paths.server(server)).await?;
        if node.is_some_and(|node| ServerStatus::read(&node.data) == ServerStatus::Enabled) {
            return Ok(true);
        }
    }
    Ok(false)
}

async fn has_enabled_item(session: &Arc<dyn Session>, paths: &JobPaths, total: u32) -> Result<bool, Error> {
    for item in (0..total).map(Item) {
        if session.get(&paths.item_child(item, "disabled")).await?.is_none() {
            return Ok(true);
        }
    }
    Ok(false)
}
