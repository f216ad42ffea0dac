//! The service for operators: what is done to a job as a whole.

use std::collections::BTreeSet;

use tokio::sync::watch;
use tonic::{Request, Response, Status};

use crate::coordination::job::contract::answer::Cancelled;
use crate::elasticjob::validate::FieldError;
use crate::job::{InstanceId, Item, JobName, SHARDING_TOTAL_COUNT_MAX};
use crate::proto;
use crate::proto::job_service_server::JobService;
use crate::reason::Reason;
use crate::runner::hub::Hub;
use crate::runner::operator;

use super::convert::InvalidRequest;
use super::status;

/// The service.
#[derive(Clone)]
pub struct Jobs {
    hub: Hub,
    draining: watch::Receiver<bool>,
}

impl Jobs {
    /// The service for the applications of this hub and on its session, until it is draining.
    pub fn new(hub: Hub, draining: watch::Receiver<bool>) -> Self {
        Self { hub, draining }
    }
}

#[tonic::async_trait]
impl JobService for Jobs {
    async fn trigger_job(
        &self,
        request: Request<proto::TriggerJobRequest>,
    ) -> Result<Response<proto::TriggerJobResponse>, Status> {
        let job = JobName::parse(&request.into_inner().job_name)
            .map_err(|error| InvalidRequest(vec![FieldError::of_job_name("job_name", &error)]).to_status())?;
        if *self.draining.borrow() {
            return Err(status::refusal(Reason::SidecarStopping, "the sidecar is stopping; ask another one"));
        }
        let told =
            operator::trigger(self.hub.shared(), &job).await.map_err(|error| status::of_trigger(&error))?;
        let texts = |ids: BTreeSet<InstanceId>| ids.iter().map(|id| id.as_str().to_owned()).collect();
        Ok(Response::new(proto::TriggerJobResponse {
            triggered_instance_ids: texts(told.triggered),
            pending_instance_ids: texts(told.pending),
        }))
    }
    async fn cancel_executions(
        &self,
        request: Request<proto::CancelExecutionsRequest>,
    ) -> Result<Response<proto::CancelExecutionsResponse>, Status> {
        let request = request.into_inner();
        let (job, items) = read_cancel(&request).map_err(|invalid| invalid.to_status())?;
        let cancelled = self.hub.cancel(&job, items).await.map_err(|error| status::of_call(&error))?;
        let Some(cancelled) = cancelled else {
            return Err(status::refusal(
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
        Ok(Response::new(proto::CancelExecutionsResponse { cancelled: cancelled.collect() }))
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
