//! The service for operators: what is done to a job as a whole.

use tokio::sync::watch;
use tonic::{Request, Response, Status};

use crate::elasticjob::validate::FieldError;
use crate::job::{InstanceId, JobName};
use crate::proto;
use crate::proto::job_service_server::JobService;
use crate::runner::hub::Shared;
use crate::runner::operator;

use super::convert::InvalidRequest;
use super::status;

/// The service.
#[derive(Clone)]
pub struct Jobs {
    shared: Shared,
    draining: watch::Receiver<bool>,
}

impl Jobs {
    /// The service on the sidecar's session, until it is draining.
    pub fn new(shared: Shared, draining: watch::Receiver<bool>) -> Self {
        Self { shared, draining }
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
            return Err(Status::unavailable("the sidecar is stopping; ask another one"));
        }
        let told = operator::trigger(&self.shared, &job).await.map_err(|error| status::of_trigger(&error))?;
        let texts = |ids: std::collections::BTreeSet<InstanceId>| {
            ids.iter().map(|id| id.as_str().to_owned()).collect()
        };
        Ok(Response::new(proto::TriggerJobResponse {
            triggered_instance_ids: texts(told.triggered),
            pending_instance_ids: texts(told.pending),
        }))
    }
}
