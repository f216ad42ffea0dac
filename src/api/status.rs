//! The one table from errors to gRPC status. Every message names the field or the job, what was given, and what is
//! allowed. What was given is shortened: a status travels in headers, and a client drops the connection on large ones.

use tonic::{Code, Status};

use crate::coordination::effect::{EndReason, Refusal};
use crate::excerpt::Excerpt;
use crate::job::JobName;
use crate::runner::hub::{AttachError, CallError};
use crate::runner::operator::TriggerError;
use crate::runner::participant::StreamEnd;
use crate::tree::Error;

/// A refused stream.
pub fn of_attach(error: &AttachError) -> Status {
    let code = match error {
        AttachError::Draining | AttachError::PredecessorStays(_) => Code::Unavailable,
        AttachError::TooMany | AttachError::Unwritable { .. } => Code::ResourceExhausted,
        AttachError::Conflict { .. } => Code::FailedPrecondition,
        AttachError::NameTaken { .. } => Code::AlreadyExists,
    };
    Status::new(code, error.to_string())
}

/// A refused call.
pub fn of_call(error: &CallError) -> Status {
    let code = match error {
        CallError::UnknownAttachment(_)
        | CallError::Refused(
            Refusal::UnknownExecution { .. } | Refusal::UnknownProgress { .. } | Refusal::UnknownCall { .. },
        ) => Code::NotFound,
        CallError::Refused(Refusal::ExecutionOver { .. }) => Code::FailedPrecondition,
        CallError::Refused(Refusal::UnknownGeneration { .. } | Refusal::UnknownItem { .. }) => {
            Code::InvalidArgument
        }
        CallError::Foreign { .. } => Code::PermissionDenied,
        CallError::Ended => Code::Aborted,
        CallError::NotYet => Code::Unavailable,
        CallError::Unwritable(_) => Code::ResourceExhausted,
    };
    Status::new(code, error.to_string())
}

/// A job that was not triggered.
pub fn of_trigger(error: &TriggerError) -> Status {
    let code = match error {
        TriggerError::NoSession | TriggerError::Unread { .. } => Code::Unavailable,
        TriggerError::Unwritable { .. } => Code::ResourceExhausted,
        TriggerError::NotConfigured(_) => Code::NotFound,
        TriggerError::NobodyOnline(_) | TriggerError::ServersDisabled(_) | TriggerError::ItemsDisabled(_) => {
            Code::FailedPrecondition
        }
        TriggerError::Changing { .. } => Code::Aborted,
        TriggerError::Unwritten { error, .. } => match error {
            Error::Suspended | Error::SessionLost | Error::Unreachable(_) => Code::Unavailable,
            Error::OutcomeUnknown(_) => Code::Unknown,
            Error::NoPermission(_) => Code::PermissionDenied,
            Error::NoNode(_)
            | Error::NodeExists(_)
            | Error::BadVersion(_)
            | Error::NotEmpty(_)
            | Error::ParentIsEphemeral(_)
            | Error::Refused(_) => Code::FailedPrecondition,
        },
    };
    Status::new(code, error.to_string())
}

/// The end of a stream; `None`: it ends well.
pub fn of_end(job: &JobName, end: Option<&StreamEnd>) -> Option<Status> {
    Some(match end? {
        StreamEnd::Ended(EndReason::Detached | EndReason::Drained) => return None,
        StreamEnd::Ended(EndReason::Stopped) => Status::failed_precondition(format!(
            "an operator stopped this instance of job `{job}` by removing its node; it comes back when the \
             application is started again"
        )),
        StreamEnd::Ended(EndReason::JobRemoved) => Status::failed_precondition(format!(
            "job `{job}` was removed from the registry; to have it back, attach with a configuration"
        )),
        StreamEnd::Ended(EndReason::NotConfigured) => Status::not_found(format!(
            "job `{job}` has no readable configuration, neither in the registry nor in the sidecar's directory; \
             give one in `configuration`"
        )),
        StreamEnd::Ended(EndReason::ClassConflict { given, found }) => Status::failed_precondition(format!(
            "configuration.job_class `{}` conflicts with job `{job}`, which runs as `{}`; give that, or leave the \
             field empty",
            Excerpt::of(given),
            Excerpt::of(found)
        )),
        StreamEnd::Ended(EndReason::NameTaken { name, path }) => Status::already_exists(format!(
            "instance_name `{name}` of job `{job}` is in use by the session that has `{path}`, which has not left; if it \
             was killed, wait until its session times out; otherwise stop one of the two, or give one another name"
        )),
        StreamEnd::Ended(EndReason::Disobedient { item, execution_id, grace }) => {
            Status::deadline_exceeded(format!(
                "execution `{execution_id}` of item {item} of job `{job}` was not reported within {grace:?} after it \
                 was told to stop; stop it, and attach again"
            ))
        }
        StreamEnd::SlowApplication(limit) => Status::resource_exhausted(format!(
            "the application has not read its stream for {limit:?}; it is detached from job `{job}`"
        )),
        StreamEnd::Unwritable(obstacle) => {
            Status::resource_exhausted(format!("job `{job}` cannot be attached to now: {obstacle}"))
        }
        StreamEnd::Replaced => Status::aborted(format!(
            "another stream with the same application_id has attached to job `{job}` in this one's place"
        )),
    })
}
