//! Reads the nodes for a plan of what a change would do to the assignment of a job. Sets no watch that outlives the call, writes nothing,
//! decides nothing ([`crate::coordination::admin::plan_sharding`] does).

use jiff::Timestamp;

use crate::coordination::admin::plan_sharding::{self, PlanRefusal, ShardingPlan, WhatIf};
use crate::elasticjob::strategy::StrategyError;
use crate::job::{InstanceId, JobName};
use crate::runner::admin::Namespace;
use crate::runner::admin::explain_job::{self, ExplainError};
use crate::runner::shared::Shared;

/// Why there is no plan.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// The nodes of the job could not be read.
    #[error(transparent)]
    Unread(#[from] ExplainError),
    /// The job has no configuration that can be read.
    #[error("job `{0}` has no readable configuration, so its items are not known; write one first")]
    NotConfigured(JobName),
    /// This instance is not online.
    #[error("job `{job}` has no online instance `{instance}` that could leave")]
    NotOnline {
        /// The job.
        job: JobName,
        /// The instance.
        instance: InstanceId,
    },
    /// This instance is online.
    #[error("instance `{instance}` of job `{job}` is online already, and cannot join")]
    Online {
        /// The job.
        job: JobName,
        /// The instance.
        instance: InstanceId,
    },
    /// The strategy is that of a Java application.
    #[error(
        "a Java instance leads job `{job}`, and only its application has the strategy `{strategy}`; plan with one of ElasticJob's"
    )]
    ForeignStrategy {
        /// The job.
        job: JobName,
        /// The type of the strategy.
        strategy: String,
    },
    /// A Java leader cannot divide the items.
    #[error("a Java instance leads job `{job}`, and its strategy fails: {error}; plan with another one")]
    JavaFails {
        /// The job.
        job: JobName,
        /// How.
        error: StrategyError,
    },
}

/// Plans on the sidecar's session. Returns also when the nodes were read.
pub async fn plan(
    shared: &Shared,
    job: &JobName,
    what_if: &WhatIf,
) -> Result<(ShardingPlan, Timestamp), PlanError> {
    let session = shared.current.borrow().clone().ok_or(ExplainError::NoSession)?;
    plan_in(Namespace::of(shared, &session), job, what_if).await
}

/// The same, on another session.
pub async fn plan_in(
    namespace: Namespace<'_>,
    job: &JobName,
    what_if: &WhatIf,
) -> Result<(ShardingPlan, Timestamp), PlanError> {
    let (paths, own_paths, picture, now) = explain_job::read(namespace, job).await?.into_picture();
    let planned = plan_sharding::plan(&paths, &own_paths, picture, what_if, now);
    let job = job.clone();
    let planned = planned.map_err(|refusal| match refusal {
        PlanRefusal::NotConfigured => PlanError::NotConfigured(job),
        PlanRefusal::NotOnline(instance) => PlanError::NotOnline { job, instance },
        PlanRefusal::Online(instance) => PlanError::Online { job, instance },
        PlanRefusal::ForeignStrategy(strategy) => PlanError::ForeignStrategy { job, strategy },
        PlanRefusal::JavaFails(error) => PlanError::JavaFails { job, error },
    })?;
    Ok((planned, now.wall))
}
