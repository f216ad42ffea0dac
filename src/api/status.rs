//! The one table from errors to gRPC status: each error has a reason (`crate::reason`), and each reason a code. Every
//! message names the field or the job, what was given, and what is allowed. The text that a caller gave is shortened: a status travels in
//! headers, and a client drops the connection on large ones.

use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt as _};

use crate::coordination::job::contract::answer::Refusal;
use crate::coordination::job::contract::effect::EndReason;
use crate::excerpt::Excerpt;
use crate::job::JobName;
use crate::reason::Reason;
use crate::runner::hub::{AttachError, CallError};
use crate::runner::operator::TriggerError;
use crate::runner::participant::StreamEnd;
use crate::tree::Error;

/// Whose reasons those of the details are.
pub(super) const DOMAIN: &str = "sidekeeper";

/// A refusal for this reason, which is in the details.
pub(super) fn refusal(reason: Reason, text: impl Into<String>) -> Status {
    with_metadata(reason, text, [])
}

/// The same with further facts for programs.
pub(super) fn with_metadata<const N: usize>(
    reason: Reason,
    text: impl Into<String>,
    metadata: [(String, String); N],
) -> Status {
    let details = ErrorDetails::with_error_info(reason.as_str(), DOMAIN, metadata);
    Status::with_error_details(code(reason), text, details)
}

/// The status code of each reason.
fn code(reason: Reason) -> Code {
    match reason {
        Reason::StoppedByOperator
        | Reason::JobRemoved
        | Reason::JobClassConflict
        | Reason::ConfigurationConflict
        | Reason::RegistryRefused
        | Reason::NoInstances
        | Reason::ServersDisabled
        | Reason::ItemsDisabled
        | Reason::ExecutionOver
        | Reason::ClientTooOld
        | Reason::SidecarTooOld => Code::FailedPrecondition,
        Reason::JobNotConfigured
        | Reason::JobUnknown
        | Reason::AttachmentUnknown
        | Reason::ExecutionUnknown
        | Reason::CallUnknown
        | Reason::JobNotAttached => Code::NotFound,
        Reason::InstanceNameTaken => Code::AlreadyExists,
        Reason::StreamNotReplaced | Reason::SidecarStopping | Reason::RegistryAway => Code::Unavailable,
        Reason::StreamReplaced | Reason::StreamEnded | Reason::RegistryChanging => Code::Aborted,
        Reason::CancelIgnored | Reason::DrainIncomplete => Code::DeadlineExceeded,
        Reason::SlowApplication | Reason::TooMany | Reason::RegistryFull => Code::ResourceExhausted,
        Reason::RegistryNoPermission | Reason::ExecutionOfAnother => Code::PermissionDenied,
        Reason::OutcomeUnknown => Code::Unknown,
        Reason::ItemUnknown | Reason::GenerationUnknown | Reason::InvalidRequest => Code::InvalidArgument,
        Reason::TokenRefused => Code::Unauthenticated,
    }
}

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

/// A job that was not triggered.
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

/// The end of a stream; `None`: it ends well.
pub fn of_end(job: &JobName, end: Option<&StreamEnd>) -> Option<Status> {
    let end = end?;
    let text = match end {
        StreamEnd::Ended(EndReason::Detached | EndReason::Drained) => return None,
        StreamEnd::Ended(EndReason::Stopped) => format!(
            "an operator stopped this instance of job `{job}` by removing its node; it comes back when the \
             application is started again"
        ),
        StreamEnd::Ended(EndReason::JobRemoved) => {
            format!("job `{job}` was removed from the registry; to have it back, attach with a configuration")
        }
        StreamEnd::Ended(EndReason::NotConfigured) => format!(
            "job `{job}` has no readable configuration, neither in the registry nor in the sidecar's directory; \
             give one in `configuration`"
        ),
        StreamEnd::Ended(EndReason::ClassConflict { given, found }) => format!(
            "configuration.job_class `{}` conflicts with job `{job}`, which runs as `{}`; give that, or leave the \
             field empty",
            Excerpt::of(given),
            Excerpt::of(found)
        ),
        StreamEnd::Ended(EndReason::NameTaken { name, path }) => format!(
            "instance_name `{name}` of job `{job}` is in use by the session that has `{path}`, which has not left; if it \
             was killed, wait until its session times out; otherwise stop one of the two, or give one another name"
        ),
        StreamEnd::Ended(EndReason::Disobedient { item, execution_id, grace }) => format!(
            "execution `{execution_id}` of item {item} of job `{job}` was not reported within {grace:?} after it \
             was told to stop; stop it, and attach again"
        ),
        StreamEnd::SlowApplication(limit) => {
            format!("the application has not read its stream for {limit:?}; it is detached from job `{job}`")
        }
        StreamEnd::Unwritable(obstacle) => format!("job `{job}` cannot be attached to now: {obstacle}"),
        StreamEnd::Replaced => format!(
            "another stream with the same application_id has attached to job `{job}` in this one's place"
        ),
    };
    Some(refusal(end.word()?, text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::ErrorReason;

    #[test]
    fn each_reason_of_the_protos_is_ours_and_has_a_status() {
        let words: Vec<_> = (1..)
            .map_while(|number| ErrorReason::try_from(number).ok())
            .map(|reason| reason.as_str_name().strip_prefix("ERROR_REASON_").unwrap())
            .collect();
        let ours: Vec<_> = Reason::ALL.iter().map(|reason| reason.as_str()).collect();
        assert_eq!(words, ours);
        for reason in Reason::ALL {
            let status = refusal(*reason, "why");
            let details = status.get_error_details();
            let info = details.error_info().unwrap();
            assert_eq!((info.reason.as_str(), info.domain.as_str()), (reason.as_str(), DOMAIN));
            assert_ne!(status.code(), Code::Ok);
        }
    }
}
