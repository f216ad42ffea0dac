//! The service for those who look: who owns what.

use std::pin::Pin;

use tokio_stream::{Stream, StreamExt, wrappers::WatchStream};
use tonic::{Request, Response, Status};

use crate::job::JobName;
use crate::proto;
use crate::proto::assignment_service_server::AssignmentService;
use crate::runner::hub::Shared;
use crate::runner::observer::observe;

use super::convert::InvalidRequest;
use super::event;
use crate::elasticjob::validate::FieldError;

/// The service.
#[derive(Clone)]
pub struct Assignments {
    shared: Shared,
}

impl Assignments {
    /// The service on the sidecar's session.
    pub fn new(shared: Shared) -> Self {
        Self { shared }
    }
}

#[tonic::async_trait]
impl AssignmentService for Assignments {
    type WatchAssignmentsStream =
        Pin<Box<dyn Stream<Item = Result<proto::WatchAssignmentsResponse, Status>> + Send>>;

    async fn watch_assignments(
        &self,
        request: Request<proto::WatchAssignmentsRequest>,
    ) -> Result<Response<Self::WatchAssignmentsStream>, Status> {
        let job = JobName::parse(&request.into_inner().job_name)
            .map_err(|error| InvalidRequest(vec![FieldError::of_job_name("job_name", &error)]).to_status())?;
        if self.shared.current.borrow().is_none() {
            return Err(Status::unavailable("the sidecar has no session with the registry; try again"));
        }
        let states = WatchStream::new(observe(self.shared.clone(), &job));
        let messages = states.filter_map(move |status| Some(Ok(event::status_to_message(&job, status?))));
        Ok(Response::new(Box::pin(messages)))
    }
}
