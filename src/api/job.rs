//! The service for operators: operations on a job as a whole.

use std::collections::BTreeSet;

use tokio::sync::watch;
use tonic::{Request, Response, Status};

use crate::coordination::job::contract::answer::Cancelled;
use crate::elasticjob::field_error::FieldError;
use crate::excerpt::Excerpt;
use crate::job::{InstanceId, Item, JobName, SHARDING_TOTAL_COUNT_MAX};
use crate::listen::caller::Caller;
use crate::listen::refusal::refusal;
use crate::proto;
use crate::proto::job_service_server::JobService;
use crate::reason::Reason;
use crate::runner::admin::trigger_job;
use crate::runner::attachments::registry::Attachments;

use super::convert::InvalidRequest;
use super::{audit, names, status};

/// The service.
#[derive(Clone)]
pub struct Jobs {
    attachments: Attachments,
    draining: watch::Receiver<bool>,
}

impl Jobs {
    /// The service for the applications of these attachments, on the sidecar's session, until it drains.
    pub fn new(attachments: Attachments, draining: watch::Receiver<bool>) -> Self {
        Self { attachments, draining }
    }
}

#[tonic::async_trait]
impl JobService for Jobs {
    async fn trigger_job(
        &self,
        request: Request<proto::TriggerJobRequest>,
    ) -> Result<Response<proto::TriggerJobResponse>, Status> {
        let caller = Caller::of(request.extensions());
        let request = request.into_inner();
        let result = self.trigger(&request, &caller).await;
        audit::record(&caller, "TriggerJob", Excerpt::of(&request.job_name), &result);
        result.map(Response::new)
    }

    async fn cancel_executions(
        &self,
        request: Request<proto::CancelExecutionsRequest>,
    ) -> Result<Response<proto::CancelExecutionsResponse>, Status> {
        let caller = Caller::of(request.extensions());
        let request = request.into_inner();
        let result = self.cancel(&request, &caller).await;
        audit::record(&caller, "CancelExecutions", Excerpt::of(&request.job_name), &result);
        result.map(Response::new)
    }
}

impl Jobs {
    async fn trigger(
        &self,
        request: &proto::TriggerJobRequest,
        caller: &Caller,
    ) -> Result<proto::TriggerJobResponse, Status> {
        names::check(caller, &request.job_name)?;
        let job = JobName::parse(&request.job_name)
            .map_err(|error| InvalidRequest(vec![FieldError::of_job_name("job_name", &error)]).to_status())?;
        if *self.draining.borrow() {
            return Err(refusal(Reason::SidecarStopping, "the sidecar is stopping; ask another one"));
        }
        let result = trigger_job::trigger(self.attachments.shared(), &job)
            .await
            .map_err(|error| status::of_trigger(&error))?;
        let texts = |ids: BTreeSet<InstanceId>| ids.iter().map(|id| id.as_str().to_owned()).collect();
        Ok(proto::TriggerJobResponse {
            triggered_instance_ids: texts(result.triggered),
            pending_instance_ids: texts(result.pending),
        })
    }

    async fn cancel(
        &self,
        request: &proto::CancelExecutionsRequest,
        caller: &Caller,
    ) -> Result<proto::CancelExecutionsResponse, Status> {
        names::check(caller, &request.job_name)?;
        let (job, items) = read_cancel(request).map_err(|invalid| invalid.to_status())?;
        let cancelled =
            self.attachments.cancel(&job, items).await.map_err(|error| status::of_call(&error))?;
        let Some(cancelled) = cancelled else {
            return Err(refusal(
                Reason::JobNotAttached,
                format!(
                    "no application is attached to this sidecar for job `{job}`: check the name, or ask another sidecar"
                ),
            ));
        };
        let execution = |instance: &InstanceId, execution: Cancelled| proto::CancelledExecution {
            instance_id: instance.to_string(),
            item: execution.item.0,
            execution_id: execution.execution_id,
            was_waiting: execution.was_waiting,
        };
        let cancelled = cancelled.into_iter().flat_map(|(instance, executions)| {
            executions.into_iter().map(move |one| execution(&instance, one))
        });
        Ok(proto::CancelExecutionsResponse { cancelled: cancelled.collect() })
    }
}

fn read_cancel(
    request: &proto::CancelExecutionsRequest,
) -> Result<(JobName, Option<BTreeSet<Item>>), InvalidRequest> {
    let job = JobName::parse(&request.job_name)
        .map_err(|error| InvalidRequest(vec![FieldError::of_job_name("job_name", &error)]))?;
    let most = usize::try_from(SHARDING_TOTAL_COUNT_MAX).unwrap_or(usize::MAX);
    if request.items.len() > most {
        let given = format!("{} items", request.items.len());
        let allowed = format!("at most {most} items");
        return Err(InvalidRequest(vec![FieldError::new("items", &given, &allowed)]));
    }
    let items: BTreeSet<_> = request.items.iter().copied().map(Item).collect();
    Ok((job, (!items.is_empty()).then_some(items)))
}
