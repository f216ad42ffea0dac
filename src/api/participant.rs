//! The service for applications: attach, report, acknowledge.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio_stream::Stream;
use tonic::{Request, Response, Status};

use crate::coordination::job::contract::answer::Answer;
use crate::coordination::job::contract::event::SessionStatus;
use crate::coordination::job::contract::report::{ExecutionResult, Outcome, ProgressReport};
use crate::coordination::job::picture::settings::{Schedule, checks};
use crate::elasticjob::field_error::FieldError;
use crate::extension::checkpoint::CHECKPOINT_BYTES_MAX;
use crate::extension::handoff_policy::is_label;
use crate::extension::profile;
use crate::extension::profile::Profile;
use crate::job::{Generation, InstanceName, JobConfiguration, JobName};
use crate::listen::caller::Caller;
use crate::listen::connections::ConnectionInfo;
use crate::proto;
use crate::proto::participant_service_server::ParticipantService;
use crate::runner::attachments::registry::Attachments;
use crate::runner::attachments::request::Attach;
use crate::runner::job::outlet::Outlet;
use crate::runner::shared::Shared;

use super::convert::{self, InvalidRequest};
use super::{event, names, open_executions, status, version};

/// The most results in one report: one for each item of the largest job.
const RESULTS_MAX: usize = 10_000;
/// The most bytes of a failure's message, which goes into logs.
const FAILURE_MESSAGE_MAX: usize = 16 * 1024;
/// The most bytes of a client's name.
const CLIENT_MAX: usize = 128;

/// The service.
#[derive(Clone)]
pub struct Participants {
    attachments: Attachments,
    files: Arc<BTreeMap<JobName, Arc<JobConfiguration>>>,
}

impl Participants {
    /// The service for the applications of these attachments. `files` has the configurations with which the
    /// sidecar was started.
    pub fn new(attachments: Attachments, files: BTreeMap<JobName, Arc<JobConfiguration>>) -> Self {
        Self { attachments, files: Arc::new(files) }
    }

    fn read_attach(&self, mut request: proto::AttachRequest) -> Result<Attach, InvalidRequest> {
        let mut errors = Vec::new();
        convert::check_application_id(&request.application_id, &mut errors);
        if request.client.len() > CLIENT_MAX {
            errors.push(FieldError::new("client", &request.client, "at most 128 bytes"));
        }
        let profile = read_profile(&request, &mut errors);
        let name = read_name(&request.instance_name, &mut errors);
        let open = open_executions::read(std::mem::take(&mut request.open_executions), &mut errors);
        let checked = match &request.configuration {
            Some(message) => convert::job_from_proto(&request.job_name, message, checks())
                .map(|checked| (Some(Arc::new(checked.configuration)), checked.job_class)),
            None => Ok((None, None)),
        };
        let (configuration, class) = checked.unwrap_or_else(|InvalidRequest(more)| {
            errors.extend(more);
            (None, None)
        });
        let job = JobName::parse(&request.job_name).map_err(|error| {
            if request.configuration.is_none() {
                errors.push(FieldError::of_job_name("job_name", &error));
            }
        });
        let Some(job) = job.ok().filter(|_| errors.is_empty()) else { return Err(InvalidRequest(errors)) };
        if let Some(given) = &configuration {
            self.check_schedule(given).map_err(|error| InvalidRequest(vec![error]))?;
        }
        let configuration = configuration.or_else(|| self.files.get(&job).cloned());
        Ok(Attach {
            job,
            configuration,
            class,
            profile,
            name,
            application_id: request.application_id,
            client: request.client,
            open,
        })
    }
}

impl Participants {
    /// Refuses a schedule that never fires again. In the registry or in a file such a schedule is only a
    /// problem.
    fn check_schedule(&self, given: &JobConfiguration) -> Result<(), FieldError> {
        let now = self.attachments.shared().clock.now().wall;
        let never = Schedule::of(given)
            .is_ok_and(|schedule| schedule.is_some_and(|schedule| schedule.next_after(now).is_none()));
        let cron = given.cron.as_deref().unwrap_or_default();
        let allowed = "an expression that fires again, or none; this one has no instant after now";
        if never { Err(FieldError::new("configuration.cron", cron, allowed)) } else { Ok(()) }
    }
}

/// The instance's profile for the other sidecars.
fn read_profile(request: &proto::AttachRequest, errors: &mut Vec<FieldError>) -> Profile {
    let weight = if request.weight == 0 { profile::WEIGHT_DEFAULT } else { request.weight };
    if weight > profile::WEIGHT_MAX {
        errors.push(FieldError::new("weight", &weight.to_string(), "1 to 1000"));
    }
    if request.labels.len() > profile::LABELS_MAX {
        errors.push(FieldError::new("labels", &request.labels.len().to_string(), "at most 32"));
    }
    for (index, label) in request.labels.iter().enumerate().filter(|(_, label)| !is_label(label)) {
        let field = format!("labels[{index}]");
        errors.push(FieldError::new(&field, label, "1 to 64 characters of [A-Za-z0-9_.:/-]"));
    }
    Profile { weight, labels: request.labels.iter().cloned().collect(), ..Profile::default() }
}

/// The instance's name. `None`: the application gave none.
fn read_name(given: &str, errors: &mut Vec<FieldError>) -> Option<InstanceName> {
    if given.is_empty() {
        return None;
    }
    let name = InstanceName::parse(given).ok();
    if name.is_none() {
        errors.push(FieldError::new("instance_name", given, InstanceName::ALLOWED));
    }
    name
}

#[tonic::async_trait]
impl ParticipantService for Participants {
    type AttachStream = Events;

    async fn attach(
        &self,
        request: Request<proto::AttachRequest>,
    ) -> Result<Response<Self::AttachStream>, Status> {
        let connection = request.extensions().get::<ConnectionInfo>().cloned();
        let caller = Caller::of(request.extensions());
        let request = request.into_inner();
        names::check_attach(&caller, &request)?;
        version::check(&request)?; // Before the other fields: those of another version may seem wrong.
        let attach = self.read_attach(request).map_err(|invalid| invalid.to_status())?;
        let job = attach.job.clone();
        let (attachment_id, outlet) =
            self.attachments.attach(attach).await.map_err(|error| status::of_attach(&error))?;
        let shared = Arc::clone(self.attachments.shared());
        Ok(Response::new(Events { attachment_id, job, outlet, shared, connection, ended: false }))
    }

    async fn report_completion(
        &self,
        request: Request<proto::ReportCompletionRequest>,
    ) -> Result<Response<proto::ReportCompletionResponse>, Status> {
        let request = request.into_inner();
        let results = read_results(request.results).map_err(|invalid| invalid.to_status())?;
        let answer = self.attachments.report(&request.attachment_id, results).await;
        let answer = answer.map_err(|error| status::of_call(&error))?;
        let records = if let Answer::Recorded(records) = answer { records } else { Vec::new() };
        let record = |(execution_id, status)| proto::CompletionRecord {
            execution_id,
            status: event::completion_status(status).into(),
        };
        Ok(Response::new(proto::ReportCompletionResponse {
            records: records.into_iter().map(record).collect(),
        }))
    }

    async fn acknowledge_assignment(
        &self,
        request: Request<proto::AcknowledgeAssignmentRequest>,
    ) -> Result<Response<proto::AcknowledgeAssignmentResponse>, Status> {
        let request = request.into_inner();
        let generation = Generation(request.generation);
        let answer = self.attachments.acknowledge(&request.attachment_id, generation).await;
        answer.map_err(|error| status::of_call(&error))?;
        Ok(Response::new(proto::AcknowledgeAssignmentResponse {}))
    }

    async fn drain_attachment(
        &self,
        request: Request<proto::DrainAttachmentRequest>,
    ) -> Result<Response<proto::DrainAttachmentResponse>, Status> {
        let request = request.get_ref();
        let told = self.attachments.drain_attachment(&request.attachment_id, request.for_good).await;
        told.map_err(|error| status::of_call(&error))?;
        Ok(Response::new(proto::DrainAttachmentResponse {}))
    }

    async fn detach(
        &self,
        request: Request<proto::DetachRequest>,
    ) -> Result<Response<proto::DetachResponse>, Status> {
        let request = request.get_ref();
        let left = self.attachments.detach(&request.attachment_id, request.for_good).await;
        left.map_err(|error| status::of_call(&error))?;
        Ok(Response::new(proto::DetachResponse {}))
    }

    async fn report_progress(
        &self,
        request: Request<proto::ReportProgressRequest>,
    ) -> Result<Response<proto::ReportProgressResponse>, Status> {
        let mut request = request.into_inner();
        let attachment_id = std::mem::take(&mut request.attachment_id);
        let report = read_progress(request).map_err(|invalid| invalid.to_status())?;
        let answer = self.attachments.progress(&attachment_id, report).await;
        let answer = answer.map_err(|error| status::of_call(&error))?;
        let Answer::Progressed { deadline, cancelled, superseded } = answer else {
            return Ok(Response::new(proto::ReportProgressResponse::default()));
        };
        let deadline = deadline.map(event::timestamp);
        Ok(Response::new(proto::ReportProgressResponse { deadline, cancelled, superseded }))
    }

    async fn renew_lease(
        &self,
        request: Request<proto::RenewLeaseRequest>,
    ) -> Result<Response<proto::RenewLeaseResponse>, Status> {
        let answer = self.attachments.ask_lease(&request.get_ref().attachment_id).await;
        let answer = answer.map_err(|error| status::of_call(&error))?;
        let (status, lease_end) = if let Answer::Lease { status, lease_end } = answer {
            (status, lease_end)
        } else {
            (SessionStatus::Lost, Some(Duration::ZERO))
        };
        Ok(Response::new(event::lease_answer(status, lease_end, self.attachments.shared().clock.now())))
    }

    async fn report_listener(
        &self,
        request: Request<proto::ReportListenerRequest>,
    ) -> Result<Response<proto::ReportListenerResponse>, Status> {
        let request = request.into_inner();
        let outcome = read_listener(&request).map_err(|invalid| invalid.to_status())?;
        let in_time =
            self.attachments.report_listener(&request.attachment_id, request.call_id, outcome).await;
        let in_time = in_time.map_err(|error| status::of_call(&error))?;
        Ok(Response::new(proto::ReportListenerResponse { in_time }))
    }
}

fn read_progress(request: proto::ReportProgressRequest) -> Result<ProgressReport, InvalidRequest> {
    let mut errors = Vec::new();
    if request.execution_id.is_empty() {
        errors.push(FieldError::new("execution_id", "", "the id from Execute"));
    }
    let checkpoint = request.checkpoint;
    if let Some(checkpoint) = checkpoint.as_ref().filter(|data| data.len() > CHECKPOINT_BYTES_MAX) {
        let given = format!("{} bytes", checkpoint.len());
        errors.push(FieldError::new("checkpoint", &given, "at most 65536 bytes"));
    }
    let (execution_id, extend_deadline) = (request.execution_id, request.extend_deadline);
    let report = ProgressReport { execution_id, extend_deadline, checkpoint: checkpoint.map(Into::into) };
    if errors.is_empty() { Ok(report) } else { Err(InvalidRequest(errors)) }
}

fn read_results(results: Vec<proto::ExecutionResult>) -> Result<Vec<ExecutionResult>, InvalidRequest> {
    let mut errors = Vec::new();
    if results.is_empty() || results.len() > RESULTS_MAX {
        let given = format!("{} results", results.len());
        errors.push(FieldError::new("results", &given, "1 to 10000 results"));
    }
    let mut read = Vec::with_capacity(results.len());
    for (index, result) in results.into_iter().enumerate() {
        if result.execution_id.is_empty() {
            let field = format!("results[{index}].execution_id");
            errors.push(FieldError::new(&field, "", "the id from Execute"));
        }
        if result.failure_message.len() > FAILURE_MESSAGE_MAX {
            let field = format!("results[{index}].failure_message");
            let given = format!("{} bytes", result.failure_message.len());
            errors.push(FieldError::new(&field, &given, "at most 16384 bytes"));
        }
        let outcome = match proto::ExecutionOutcome::try_from(result.outcome) {
            Ok(proto::ExecutionOutcome::Success) => Outcome::Success,
            Ok(proto::ExecutionOutcome::Failure) => Outcome::Failure(result.failure_message),
            Ok(proto::ExecutionOutcome::Rejected) => Outcome::Rejected(result.failure_message),
            Ok(proto::ExecutionOutcome::Interrupted) => Outcome::Interrupted(result.failure_message),
            Ok(proto::ExecutionOutcome::Unspecified) | Err(_) => {
                let field = format!("results[{index}].outcome");
                errors.push(FieldError::new(
                    &field,
                    &result.outcome.to_string(),
                    "SUCCESS, FAILURE, REJECTED or INTERRUPTED",
                ));
                continue;
            }
        };
        read.push(ExecutionResult { execution_id: result.execution_id, outcome });
    }
    if errors.is_empty() { Ok(read) } else { Err(InvalidRequest(errors)) }
}

fn read_listener(request: &proto::ReportListenerRequest) -> Result<Result<(), String>, InvalidRequest> {
    let mut errors = Vec::new();
    let message = &request.failure_message;
    if message.len() > FAILURE_MESSAGE_MAX {
        let given = format!("{} bytes", message.len());
        errors.push(FieldError::new("failure_message", &given, "at most 16384 bytes"));
    }
    let outcome = match request.outcome() {
        proto::ListenerOutcome::Success => Some(Ok(())),
        proto::ListenerOutcome::Failure => Some(Err(message.clone())),
        proto::ListenerOutcome::Unspecified => None,
    };
    if outcome.is_none() {
        errors.push(FieldError::new("outcome", &request.outcome.to_string(), "SUCCESS or FAILURE"));
    }
    outcome.filter(|_| errors.is_empty()).ok_or(InvalidRequest(errors))
}

/// An application's stream. Dropping it detaches the application.
pub struct Events {
    attachment_id: String,
    job: JobName,
    outlet: Outlet,
    shared: Arc<Shared>,
    connection: Option<ConnectionInfo>,
    ended: bool,
}

impl Drop for Events {
    fn drop(&mut self) {
        // Set before the outlet is dropped, because the participant reads it at that moment.
        if let Some(connection) = &self.connection {
            let _ = self.outlet.silent_for.set(connection.silent_for());
        }
    }
}

impl Stream for Events {
    type Item = Result<proto::AttachResponse, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.ended {
            return Poll::Ready(None);
        }
        self.outlet.events.poll_recv(context).map(|traced| {
            if let Some(traced) = traced {
                return Some(Ok(event::to_message(*traced, &self.attachment_id, &self.job, &self.shared)));
            }
            self.ended = true;
            status::of_end(&self.job, self.outlet.end.get()).map(Err)
        })
    }
}
