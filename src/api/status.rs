//! The one table from errors to gRPC status: each error has a reason (`crate::reason`), and each reason a
//! code ([`crate::listen::refusal`]). Every message names the field or the job, the given value and the
//! allowed values. A caller's text is shortened: a status is sent in headers, and a client closes the
//! connection on large ones.

use tonic::Status;

use crate::coordination::admin::backup::file::FileError;
use crate::coordination::job::contract::answer::Refusal;
use crate::coordination::job::contract::effect::EndReason;
use crate::coordination::lock::contract::{End, First, LossReason};
use crate::coordination::lock::queue::Unclear;
use crate::coordination::sticky::contract::{End as StandEnd, Refusal as StandRefusal};
use crate::elasticjob::field_error::FieldError;
use crate::excerpt::Excerpt;
use crate::extension::request_record::RequestId;
use crate::job::JobName;
use crate::listen::refusal::{refusal, with_metadata};
use crate::reason::Reason;
use crate::runner::admin::backup::BackupError;
use crate::runner::admin::cancel_fleet::FleetCancelError;
use crate::runner::admin::change_job::ChangeError;
use crate::runner::admin::explain_job::ExplainError;
use crate::runner::admin::jobs::ListError;
use crate::runner::admin::plan_sharding::PlanError;
use crate::runner::admin::switch::SwitchError;
use crate::runner::admin::trigger_items::ItemTriggerError;
use crate::runner::admin::trigger_job::TriggerError;
use crate::runner::attachments::calls::CallError;
use crate::runner::attachments::request::AttachError;
use crate::runner::cancel::CancelError;
use crate::runner::job::outlet::StreamEnd;
use crate::runner::lock::election::ResignError;
use crate::runner::lock::look::LockError;
use crate::runner::lock::registry::{HoldError, ReleaseError};
use crate::runner::sticky::look::LookError;
use crate::runner::sticky::registry::{CallError as StandCallError, StandError};
use crate::tree::{Error, Path};

use super::convert;

/// The key of a request's id in the metadata of its refusal.
pub(crate) const REQUEST_ID: &str = "request_id";

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
pub fn of_trigger(error: &TriggerError, request: Option<&RequestId>) -> Status {
    let reason = match error {
        TriggerError::NoSession | TriggerError::Unread { .. } => Reason::RegistryAway,
        TriggerError::Unwritable { .. } => Reason::RegistryFull,
        TriggerError::NotConfigured(_) => Reason::JobNotConfigured,
        TriggerError::NobodyOnline(_) => Reason::NoInstances,
        TriggerError::ServersDisabled(_) => Reason::ServersDisabled,
        TriggerError::ItemsDisabled(_) => Reason::ItemsDisabled,
        TriggerError::Changing { .. } => Reason::RegistryChanging,
        TriggerError::OtherRequest { .. } => Reason::InvalidRequest,
        TriggerError::Unwritten { error, .. } => of_registry(error),
    };
    repeatable(reason, error.to_string(), request)
}

/// Items that were not triggered.
pub fn of_item_trigger(error: &ItemTriggerError, request: Option<&RequestId>) -> Status {
    let reason = match error {
        ItemTriggerError::Trigger(error) => return of_trigger(error, request),
        ItemTriggerError::Disabled { .. } => Reason::ItemsDisabled,
        ItemTriggerError::NoItem { .. } => Reason::ItemUnknown,
        ItemTriggerError::Unable { .. } | ItemTriggerError::Listener(_) | ItemTriggerError::Continuous(_) => {
            Reason::TriggerNotSupported
        }
        ItemTriggerError::TooManyWait(_) | ItemTriggerError::TooLarge(_) => Reason::TooMany,
        ItemTriggerError::Late(_) => Reason::RegistryAway,
    };
    repeatable(reason, error.to_string(), request)
}

/// Executions that were not cancelled.
pub fn of_cancel(error: &CancelError, request: Option<&RequestId>) -> Status {
    let reason = match error {
        CancelError::NotAttached(_) => Reason::JobNotAttached,
        CancelError::Refused(refused) => return of_call(refused),
        CancelError::NoSession => Reason::RegistryAway,
        CancelError::Unrecorded { error, .. } => of_registry(error),
        CancelError::TooMany { .. } => Reason::TooMany,
        CancelError::OtherRequest { .. } => Reason::InvalidRequest,
        CancelError::Stopping => Reason::SidecarStopping,
    };
    repeatable(reason, error.to_string(), request)
}

/// Executions of the whole fleet that were not cancelled.
pub fn of_fleet_cancel(error: &FleetCancelError, request: Option<&RequestId>) -> Status {
    let reason = match error {
        FleetCancelError::NoSession | FleetCancelError::Late(..) => Reason::RegistryAway,
        FleetCancelError::Unwritable { .. } => Reason::RegistryFull,
        FleetCancelError::Unknown(_) => Reason::JobUnknown,
        FleetCancelError::NotConfigured(_) => Reason::JobNotConfigured,
        FleetCancelError::NotMonitored(_) => Reason::ExecutionsNotMonitored,
        FleetCancelError::NoItem { .. } => Reason::ItemUnknown,
        FleetCancelError::OtherRequest { .. } => Reason::InvalidRequest,
        FleetCancelError::Failed { error, .. } => of_registry(error),
    };
    repeatable(reason, error.to_string(), request)
}

/// A refusal of a request with an id. Its metadata has the id, so that the caller knows that this sidecar recognises a repetition.
fn repeatable(reason: Reason, text: String, request: Option<&RequestId>) -> Status {
    match request {
        Some(id) => with_metadata(reason, text, [(REQUEST_ID.to_owned(), id.to_string())]),
        None => refusal(reason, text),
    }
}

/// Items or servers that were not disabled or enabled.
pub fn of_switch(error: &SwitchError) -> Status {
    let reason = match error {
        SwitchError::NoSession | SwitchError::Late(_) => Reason::RegistryAway,
        SwitchError::Unwritable { .. } => Reason::RegistryFull,
        SwitchError::Unknown(_) => Reason::JobUnknown,
        SwitchError::NotConfigured(_) => Reason::JobNotConfigured,
        SwitchError::NoItem { .. } => Reason::ItemUnknown,
        SwitchError::NoServer { .. } => Reason::InvalidRequest,
        SwitchError::Changing { .. } => Reason::RegistryChanging,
        SwitchError::Failed { error, .. } => of_registry(error),
    };
    refusal(reason, error.to_string())
}

/// A job that was not changed or removed.
pub fn of_change(error: &ChangeError) -> Status {
    let reason = match error {
        ChangeError::Invalid(errors) => return convert::in_fields(errors).to_status(),
        ChangeError::Changed { now, .. } => {
            let metadata = [("etag".to_owned(), now.clone())];
            return with_metadata(Reason::ConfigurationChanged, error.to_string(), metadata);
        }
        ChangeError::NoSession | ChangeError::Late(_) => Reason::RegistryAway,
        ChangeError::Unwritable { .. } => Reason::RegistryFull,
        ChangeError::Unknown(_) => Reason::JobUnknown,
        ChangeError::NotConfigured(_) => Reason::JobNotConfigured,
        ChangeError::Form { .. } => Reason::ConfigurationNotEditable,
        ChangeError::Online { .. } => Reason::InstancesOnline,
        ChangeError::StillRunning { .. } => Reason::DrainIncomplete,
        ChangeError::NoInstance { .. } | ChangeError::NoServer { .. } => Reason::InvalidRequest,
        ChangeError::Changing { .. } => Reason::RegistryChanging,
        ChangeError::Failed { error, .. } => of_registry(error),
    };
    refusal(reason, error.to_string())
}

/// A namespace that was not saved or restored.
pub fn of_backup(error: &BackupError) -> Status {
    let reason = match error {
        BackupError::NoSession | BackupError::Late => Reason::RegistryAway,
        BackupError::Unwritable(_) => Reason::RegistryFull,
        BackupError::File(FileError::TooLarge) => Reason::TooMany,
        BackupError::File(error) => {
            let wrong = FieldError::new("chunk", "...", &format!("the bytes of a whole backup; {error}"));
            return convert::InvalidRequest(vec![wrong]).to_status();
        }
        BackupError::Online { .. } => Reason::InstancesOnline,
        BackupError::Differs { .. } => Reason::NamespaceDiffers,
        BackupError::Busy(_) | BackupError::ChangedSinceShown | BackupError::ChangedMeanwhile(_) => {
            Reason::RegistryChanging
        }
        BackupError::Failed(error) => of_registry(error),
    };
    refusal(reason, error.to_string())
}

/// Jobs that cannot be listed.
pub fn of_list(error: &ListError) -> Status {
    let reason = match error {
        ListError::NoSession | ListError::Late => Reason::RegistryAway,
        ListError::Unread(error) => of_registry(error),
    };
    refusal(reason, error.to_string())
}

/// A job that cannot be explained.
pub fn of_explain(error: &ExplainError) -> Status {
    let reason = match error {
        ExplainError::NoSession | ExplainError::Late(_) => Reason::RegistryAway,
        ExplainError::Unknown(_) => Reason::JobUnknown,
        ExplainError::NoItem { .. } => Reason::ItemUnknown,
        ExplainError::Unread { error, .. } => of_registry(error),
    };
    refusal(reason, error.to_string())
}

/// A plan that cannot be made.
pub fn of_plan(error: &PlanError) -> Status {
    let reason = match error {
        PlanError::Unread(error) => return of_explain(error),
        PlanError::NotConfigured(_) => Reason::JobNotConfigured,
        PlanError::NotOnline { .. }
        | PlanError::Online { .. }
        | PlanError::ForeignStrategy { .. }
        | PlanError::JavaFails { .. } => Reason::InvalidRequest,
    };
    refusal(reason, error.to_string())
}

/// The reason of a registry's error.
fn of_registry(error: &Error) -> Reason {
    match error {
        Error::Suspended
        | Error::SessionLost
        | Error::Unreachable(_)
        | Error::ReadOnly(_)
        | Error::AuthRefused(_) => Reason::RegistryAway,
        Error::OutcomeUnknown(_) => Reason::OutcomeUnknown,
        Error::NoPermission(_) => Reason::RegistryNoPermission,
        Error::NoNode(_)
        | Error::NodeExists(_)
        | Error::BadVersion(_)
        | Error::NotEmpty(_)
        | Error::ParentIsEphemeral(_)
        | Error::Refused(_) => Reason::RegistryRefused,
    }
}

/// A refused hold.
pub fn of_hold(error: &HoldError) -> Status {
    let reason = match error {
        HoldError::Draining => Reason::SidecarStopping,
        HoldError::HeldAlready { .. } => Reason::LockHeldAlready,
        HoldError::TooMany | HoldError::TooManyObserved(_) => Reason::TooMany,
    };
    refusal(reason, error.to_string())
}

/// The end of a hold. `None`: the stream ends without an error.
pub fn of_hold_end(lock: &Path, end: Option<&End>) -> Option<Status> {
    let end = end?;
    let text = hold_end_in_words(lock, end)?;
    let reason = match end {
        End::Released => return None,
        End::Lost(_) => Reason::LockLost,
        End::TimedOut(_) => Reason::LockNotFree,
        End::QueueFull { .. } => Reason::TooMany,
        End::Unclear(Unclear::OtherKind { .. }) => Reason::LockOfOtherKind,
        End::Unclear(Unclear::CounterAtEnd { .. }) => Reason::LockCounterAtEnd,
        End::Refused(error) => of_registry(error),
        End::Draining => Reason::SidecarStopping,
    };
    Some(refusal(reason, text))
}

/// A hold that cannot be released.
pub fn of_release(error: &ReleaseError) -> Status {
    let reason = match error {
        ReleaseError::EndedBefore { end: Some(End::Lost(_)), .. } => Reason::LockLost,
        ReleaseError::Unknown(_) | ReleaseError::EndedBefore { .. } => Reason::HoldUnknown,
    };
    refusal(reason, error.to_string())
}

/// A campaign that does not end.
pub fn of_resign(error: &ResignError) -> Status {
    let reason = match error {
        ResignError::Release(error) => return of_release(error),
        ResignError::NotLeader(_) => Reason::NotLeader,
        ResignError::NoSuccessor { .. } => Reason::CandidateUnknown,
        ResignError::NoWay { .. } => Reason::CandidateInTheWay,
        ResignError::Registry { error, .. } => of_registry(error),
        ResignError::TooMany(_) => Reason::TooMany,
    };
    refusal(reason, error.to_string())
}

/// A lock that cannot be read or changed.
pub fn of_lock(error: &LockError) -> Status {
    let reason = match error {
        LockError::NoSession => Reason::RegistryAway,
        LockError::Free(_) => Reason::LockFree,
        LockError::Registry { error, .. } => of_registry(error),
    };
    refusal(reason, error.to_string())
}

/// A refused stand.
pub fn of_stand(error: &StandError) -> Status {
    let reason = match error {
        StandError::Draining => Reason::SidecarStopping,
        StandError::StandsAlready { .. } => Reason::LockHeldAlready,
        StandError::TooMany => Reason::TooMany,
    };
    refusal(reason, error.to_string())
}

/// The end of a stand. `None`: the stream ends without an error.
pub fn of_stand_end(lock: &Path, end: Option<&StandEnd>) -> Option<Status> {
    Some(match end? {
        StandEnd::Left => return None,
        StandEnd::Draining => {
            let text = format!("the sidecar is stopping, and its instance leaves the sticky lock {lock}");
            refusal(Reason::SidecarStopping, text)
        }
        StandEnd::QueueFull { candidates } => {
            let text = format!("the sticky lock {lock} has {candidates} candidates, which is the most");
            refusal(Reason::TooMany, text)
        }
        StandEnd::Unreadable { path, why } => {
            let text = format!("the record {path} cannot be read: {why}; nobody can own the sticky lock");
            refusal(Reason::RecordUnreadable, text)
        }
        StandEnd::Refused(error) => {
            let text = format!("the registry refuses a candidate of the sticky lock {lock}: {error}");
            refusal(of_registry(error), text)
        }
    })
}

/// A refused call of a stand.
pub fn of_stand_call(error: &StandCallError) -> Status {
    let reason = match error {
        StandCallError::Unknown(_) => Reason::StandUnknown,
        StandCallError::Refused(refused) => match refused {
            StandRefusal::Away => Reason::RegistryAway,
            StandRefusal::NotOwner | StandRefusal::NotInside(_) => Reason::LockNotOwned,
            StandRefusal::TooSoon | StandRefusal::TooMany(_) => Reason::TooMany,
            StandRefusal::Unresolved(_) => Reason::RunsUnresolved,
            StandRefusal::Ended => Reason::StandUnknown,
        },
    };
    refusal(reason, error.to_string())
}

/// A sticky lock that cannot be read.
pub fn of_sticky_look(error: &LookError) -> Status {
    let reason = match error {
        LookError::NoSession => Reason::RegistryAway,
        LookError::Unreadable { .. } => Reason::RecordUnreadable,
        LookError::Registry { error, .. } => of_registry(error),
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

/// Why a hold has ended, in words. `None`: as the application has asked.
fn hold_end_in_words(lock: &Path, end: &End) -> Option<String> {
    Some(match end {
        End::Released => return None,
        End::Lost(reason) => {
            let why = match reason {
                LossReason::Lease => {
                    "the session with the registry could not be proven alive in time, or has ended"
                }
                LossReason::Revoked => "its node was deleted",
                LossReason::HoldLimit => "hold_timeout was over",
                LossReason::Draining => "the sidecar is stopping",
            };
            format!("the lock {lock} is lost: {why}")
        }
        End::TimedOut(None) => {
            format!("the lock {lock} was not free within wait_timeout, or the registry did not answer")
        }
        End::TimedOut(Some(First { name, holder, session })) => {
            let holder = holder.as_deref().map(|holder| format!(" of `{holder}`")).unwrap_or_default();
            let session = session.map(|session| format!(", session {session}")).unwrap_or_default();
            format!("the lock {lock} was not free within wait_timeout; `{name}`{holder}{session} is first")
        }
        End::QueueFull { contenders } => {
            format!(
                "the lock {lock} has {contenders} contenders, which is the most; try later, or use several locks"
            )
        }
        End::Unclear(Unclear::OtherKind { name }) => format!(
            "the lock {lock} is in use by contenders of another kind (`{name}`), which this one would not exclude; use the \
             same `mode`, or another lock"
        ),
        End::Unclear(Unclear::CounterAtEnd { name }) => format!(
            "the lock {lock} has reached the end of its counter (`{name}`): let its queue run empty, and delete {lock}"
        ),
        End::Refused(error) => format!("the registry refuses a contender of the lock {lock}: {error}"),
        End::Draining => {
            format!("the sidecar is stopping, and does not wait for the lock {lock}; ask another one")
        }
    })
}
