//! The one table from errors to gRPC status: each error has a reason (`crate::reason`), and each reason a
//! code ([`crate::listen::refusal`]). Every message names the field or the job, the given value and the
//! allowed values. A caller's text is shortened: a status is sent in headers, and a client closes the
//! connection on large ones.

use tonic::Status;

use crate::coordination::job::contract::answer::Refusal;
use crate::coordination::job::contract::effect::EndReason;
use crate::excerpt::Excerpt;
use crate::job::JobName;
use crate::listen::refusal::refusal;
use crate::reason::Reason;
use crate::runner::admin::trigger_job::TriggerError;
use crate::runner::attachments::calls::CallError;
use crate::runner::attachments::request::AttachError;
use crate::runner::job::outlet::StreamEnd;
use crate::tree::Error;

/// A refused stream.
pub fn of_attach(error: &AttachError) -> Status {
    let reason = match error {
        AttachError::Draining => Reason::SidecarStopping,
        AttachError::PredecessorStays(_) => Reason::StreamNotReplaced,
        AttachError::TooMany => Reason::TooMany,
        AttachError::Unwritable { .. } => Reason::RegistryFull,
        AttachError::Conflict { .. } => Reason::ConfigurationConflict,
        AttachError::NameTaken { .. } => Reason::InstanceNameTaken,
    };
    refusal(reason, error.to_string())
}

/// A refused call.
pub fn of_call(error: &CallError) -> Status {
    let reason = match error {
        CallError::UnknownAttachment(_) => Reason::AttachmentUnknown,
        CallError::Refused(refused) => match refused {
            Refusal::UnknownExecution { .. } | Refusal::UnknownProgress { .. } => Reason::ExecutionUnknown,
            Refusal::UnknownCall { .. } => Reason::CallUnknown,
            Refusal::ExecutionOver { .. } => Reason::ExecutionOver,
            Refusal::UnknownGeneration { .. } => Reason::GenerationUnknown,
            Refusal::UnknownItem { .. } => Reason::ItemUnknown,
        },
        CallError::Foreign { .. } => Reason::ExecutionOfAnother,
        CallError::Ended => Reason::StreamEnded,
        CallError::NotYet => Reason::RegistryAway,
        CallError::Unwritable(_) => Reason::RegistryFull,
    };
    refusal(reason, error.to_string())
}

/// A trigger that failed.
pub fn of_trigger(error: &TriggerError) -> Status {
    let reason = match error {
        TriggerError::NoSession | TriggerError::Unread { .. } => Reason::RegistryAway,
        TriggerError::Unwritable { .. } => Reason::RegistryFull,
        TriggerError::NotConfigured(_) => Reason::JobNotConfigured,
        TriggerError::NobodyOnline(_) => Reason::NoInstances,
        TriggerError::ServersDisabled(_) => Reason::ServersDisabled,
        TriggerError::ItemsDisabled(_) => Reason::ItemsDisabled,
        TriggerError::Changing { .. } => Reason::RegistryChanging,
        TriggerError::Unwritten { error, .. } => match error {
            Error::Suspended | Error::SessionLost | Error::Unreachable(_) => Reason::RegistryAway,
            Error::OutcomeUnknown(_) => Reason::OutcomeUnknown,
            Error::NoPermission(_) => Reason::RegistryNoPermission,
            Error::NoNode(_)
            | Error::NodeExists(_)
            | Error::BadVersion(_)
            | Error::NotEmpty(_)
            | Error::ParentIsEphemeral(_)
            | Error::Refused(_) => Reason::RegistryRefused,
        },
    };
    refusal(reason, error.to_string())
}

/// The end of a stream. `None`: the stream ends without an error.
pub fn of_end(job: &JobName, end: Option<&StreamEnd>) -> Option<Status> {
    let end = end?;
    let text = match end {
        StreamEnd::Ended(EndReason::Detached | EndReason::Drained) => return None,
        StreamEnd::Ended(EndReason::Stopped) => format!(
            "an operator stopped this instance of job `{job}` by removing its node; the instance \
             comes back when the application is started again"
        ),
        StreamEnd::Ended(EndReason::JobRemoved) => {
            format!(
                "job `{job}` was removed from the registry; to create it again, attach with a configuration"
            )
        }
        StreamEnd::Ended(EndReason::NotConfigured) => format!(
            "job `{job}` has no readable configuration, neither in the registry nor in the sidecar's directory; \
             give one in `configuration`"
        ),
        StreamEnd::Ended(EndReason::ClassConflict { given, found }) => format!(
            "configuration.job_class `{}` conflicts with job `{job}`, which runs as `{}`; send that class, or leave \
             the field empty",
            Excerpt::of(given),
            Excerpt::of(found)
        ),
        StreamEnd::Ended(EndReason::NameTaken { name, path }) => format!(
            "instance_name `{name}` of job `{job}` is in use: another session has `{path}`; if its process was killed, \
             wait until that session times out; otherwise stop one of the two instances, or give one of them another name"
        ),
        StreamEnd::Ended(EndReason::Unresponsive { item, execution_id, grace }) => format!(
            "execution `{execution_id}` of item {item} of job `{job}` was not reported within {grace:?} after it \
             was cancelled; stop it, and attach again"
        ),
        StreamEnd::SlowApplication(limit) => {
            format!("the application has not read its stream for {limit:?}; it is detached from job `{job}`")
        }
        StreamEnd::Unwritable(obstacle) => format!("job `{job}` cannot be attached to now: {obstacle}"),
        StreamEnd::Replaced => format!(
            "another stream with the same application_id has attached to job `{job}` and replaces this stream"
        ),
    };
    Some(refusal(end.word()?, text))
}
