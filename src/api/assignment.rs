//! The service for observers: the owners of a job's items.

use std::pin::Pin;

use tokio_stream::{Stream, StreamExt, wrappers::WatchStream};
use tonic::{Request, Response, Status};

use crate::config::Role;
use crate::job::JobName;
use crate::listen::caller::Caller;
use crate::listen::refusal::refusal;
use crate::proto;
use crate::proto::assignment_service_server::AssignmentService;
use crate::runner::admin::observer::Observers;
use crate::runner::shared::Shared;

use super::convert::InvalidRequest;
use super::{event, names};
use crate::elasticjob::field_error::FieldError;
use crate::reason::Reason;

/// The service.
#[derive(Clone)]
pub struct Assignments {
    shared: Shared,
    observers: Observers,
}

impl Assignments {
    /// The service on the sidecar's session.
    pub fn new(shared: Shared) -> Self {
        Self { shared, observers: Observers::default() }
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
        let caller = Caller::of(request.extensions());
        let sees_parameters = caller.has(Role::Operate);
        let proto::WatchAssignmentsRequest { job_name, wait_for_job } = request.into_inner();
        names::check(&caller, &job_name)?;
        let job = JobName::parse(&job_name)
            .map_err(|error| InvalidRequest(vec![FieldError::of_job_name("job_name", &error)]).to_status())?;
        if self.shared.current.borrow().is_none() {
            let text = "the sidecar has no session with the registry; try again";
            return Err(refusal(Reason::RegistryAway, text));
        }
        let observation = self.observers.observe(&self.shared, &job);
        let observation = observation.map_err(|error| refusal(Reason::TooMany, error.to_string()))?;
        let mut known = wait_for_job;
        let states = WatchStream::new(observation);
        let messages = states.filter_map(move |state| {
            let state = state?;
            known |= state.exists;
            Some(match known {
                true => {
                    let mut message = event::status_to_message(&job, &state);
                    if !sees_parameters {
                        hide_parameters(&mut message);
                    }
                    Ok(message)
                }
                false => Err(unknown(&job)),
            })
        });
        Ok(Response::new(Box::pin(messages)))
    }
}

/// Takes out the parameters of the job, and texts that may quote them.
pub(super) fn hide_parameters(state: &mut proto::WatchAssignmentsResponse) {
    state.parameters_hidden = true;
    if let Some(configuration) = &mut state.configuration {
        configuration.sharding_item_parameters.clear();
        configuration.job_parameter.clear();
    }
    for item in &mut state.items {
        item.item_parameter = None;
        if let Some(last) = &mut item.last_execution {
            last.message.clear();
        }
    }
    for problem in &mut state.problems {
        if problem.path.ends_with("/config") {
            problem.message =
                "the configuration has a problem, whose text only callers with the role `operate` may see"
                    .to_owned();
        }
    }
}

fn unknown(job: &JobName) -> Status {
    let text = format!(
        "the registry has no nodes of job `{job}`; check the name and the sidecar's namespace, or wait for the job \
         (`wait_for_job`, `sidekeeper watch --wait`)"
    );
    refusal(Reason::JobUnknown, text)
}
