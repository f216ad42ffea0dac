//! A refused call as a gRPC status: each reason ([`Reason`]) has a code, and the status's details have the
//! reason. Shell.

use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt as _};

use crate::reason::Reason;

/// The domain of the reasons in a status's details.
pub(crate) const DOMAIN: &str = "sidekeeper";

/// A refusal for this reason. The status's details have the reason.
pub(crate) fn refusal(reason: Reason, text: impl Into<String>) -> Status {
    with_metadata(reason, text, [])
}

/// The same with further facts for programs.
pub(crate) fn with_metadata<const N: usize>(
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
        | Reason::LockHeldAlready
        | Reason::LockOfOtherKind
        | Reason::LockCounterAtEnd
        | Reason::NotLeader
        | Reason::CandidateInTheWay
        | Reason::LockNotOwned
        | Reason::RunsUnresolved
        | Reason::RecordUnreadable
        | Reason::ClientTooOld
        | Reason::SidecarTooOld
        | Reason::InstancesOnline
        | Reason::ConfigurationNotEditable
        | Reason::NamespaceDiffers
        | Reason::ExecutionsNotMonitored
        | Reason::TriggerNotSupported => Code::FailedPrecondition,
        Reason::JobNotConfigured
        | Reason::JobUnknown
        | Reason::AttachmentUnknown
        | Reason::ExecutionUnknown
        | Reason::CallUnknown
        | Reason::LockFree
        | Reason::HoldUnknown
        | Reason::CandidateUnknown
        | Reason::StandUnknown
        | Reason::JobNotAttached => Code::NotFound,
        Reason::InstanceNameTaken => Code::AlreadyExists,
        Reason::StreamNotReplaced | Reason::SidecarStopping | Reason::RegistryAway => Code::Unavailable,
        Reason::StreamReplaced
        | Reason::StreamEnded
        | Reason::RegistryChanging
        | Reason::LockLost
        | Reason::ConfigurationChanged => Code::Aborted,
        Reason::CancelIgnored | Reason::DrainIncomplete | Reason::LockNotFree => Code::DeadlineExceeded,
        Reason::SlowApplication | Reason::TooMany | Reason::RegistryFull => Code::ResourceExhausted,
        Reason::RegistryNoPermission
        | Reason::ExecutionOfAnother
        | Reason::RoleMissing
        | Reason::NameNotAllowed => Code::PermissionDenied,
        Reason::OutcomeUnknown => Code::Unknown,
        Reason::ItemUnknown | Reason::GenerationUnknown | Reason::InvalidRequest => Code::InvalidArgument,
        Reason::TokenRefused | Reason::PeerRefused => Code::Unauthenticated,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::ErrorReason;

    #[test]
    fn each_reason_of_the_protos_is_a_reason_with_a_status() {
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
