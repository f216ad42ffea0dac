//! Why calls are refused and streams end: the one list of reasons for programs. Pure.
//!
//! The API sends them as `ErrorReason` of the protos; the command line and the log print them. A reason is
//! never renamed and never gets a second meaning; later versions may add reasons. Protos, log, commands and
//! clients have the same list. Each reason has one status code (`src/api/status.rs`), so no program has to
//! parse a sentence.

use std::fmt;

/// A reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reason {
    /// An operator stopped the instance: the operator removed its node. The instance registers again when the
    /// application is started again.
    StoppedByOperator,
    /// The job was removed from the registry.
    JobRemoved,
    /// The job has no readable configuration, and none was given.
    JobNotConfigured,
    /// The registry has no nodes of the job.
    JobUnknown,
    /// The job runs under another Java class or type.
    JobClassConflict,
    /// Another application of this sidecar has attached to the job with another configuration.
    ConfigurationConflict,
    /// Another application or another session has the `instance_name`.
    InstanceNameTaken,
    /// The application's earlier stream has not ended yet.
    StreamNotReplaced,
    /// Another stream of the same application has replaced this stream.
    StreamReplaced,
    /// The stream ended before the call was answered.
    StreamEnded,
    /// The application did not report a cancelled execution in time.
    CancelIgnored,
    /// The application did not read its stream.
    SlowApplication,
    /// The sidecar is stopping.
    SidecarStopping,
    /// A limit of the sidecar is reached: streams, watchers, connections.
    TooMany,
    /// The disk of the embedded registry is full.
    RegistryFull,
    /// The registry does not answer, or the sidecar has no session with it.
    RegistryAway,
    /// The registry refuses the data of the request.
    RegistryRefused,
    /// The registry does not permit the sidecar to write the node.
    RegistryNoPermission,
    /// Nodes changed all the time. The caller may repeat the call.
    RegistryChanging,
    /// The registry's answer was lost. The request may have taken effect.
    OutcomeUnknown,
    /// No instance of the job is online.
    NoInstances,
    /// All servers with online instances are disabled.
    ServersDisabled,
    /// All items of the job, or items that the request names, are disabled.
    ItemsDisabled,
    /// The sidecar has no such attachment.
    AttachmentUnknown,
    /// The attachment has no such execution.
    ExecutionUnknown,
    /// The execution belongs to another attachment.
    ExecutionOfAnother,
    /// The execution has ended.
    ExecutionOver,
    /// There is no such call of the once-listener.
    CallUnknown,
    /// The job has no such item.
    ItemUnknown,
    /// The sidecar never sent this generation.
    GenerationUnknown,
    /// A field of the request is invalid; a `google.rpc.BadRequest` names it.
    InvalidRequest,
    /// The call has no token, or a wrong one.
    TokenRefused,
    /// The client library is too old for this sidecar.
    ClientTooOld,
    /// The sidecar is too old for the client library.
    SidecarTooOld,
    /// Instances have not left in time, because the registry does not answer.
    DrainIncomplete,
    /// No application of this sidecar is attached to the job.
    JobNotAttached,
    /// The application holds the lock already, or waits for it.
    LockHeldAlready,
    /// The lock is in use by contenders of another kind.
    LockOfOtherKind,
    /// The lock's counter is at its end, so that nobody can say whose turn it is.
    LockCounterAtEnd,
    /// The lock was not free in time.
    LockNotFree,
    /// The lock was lost.
    LockLost,
    /// Nobody holds the lock, or the contender has gone.
    LockFree,
    /// The sidecar has no such hold.
    HoldUnknown,
    /// The election has no such candidate that waits.
    CandidateUnknown,
    /// The candidate does not lead.
    NotLeader,
    /// A candidate before the successor does not make way.
    CandidateInTheWay,
    /// The sidecar has no such stand.
    StandUnknown,
    /// The instance does not own the sticky lock, or is not inside the run.
    LockNotOwned,
    /// Too many interrupted runs of the sticky lock are unresolved.
    RunsUnresolved,
    /// The record of the sticky lock cannot be read.
    RecordUnreadable,
    /// The sidecar does not serve the user who calls.
    PeerRefused,
    /// The caller lacks the role that the method needs.
    RoleMissing,
    /// The caller may not use the job, the lock or the election of this name.
    NameNotAllowed,
    /// The configuration is not in the state that the request names.
    ConfigurationChanged,
    /// Instances of the job are online.
    InstancesOnline,
    /// The configuration's document cannot be edited.
    ConfigurationNotEditable,
    /// The namespace has nodes that are not as in the backup.
    NamespaceDiffers,
    /// The job does not monitor executions.
    ExecutionsNotMonitored,
    /// The job, or an instance of it, cannot execute single items for a trigger, or with a parameter of the trigger's.
    TriggerNotSupported,
}

impl Reason {
    /// All reasons, in the order of the protos.
    pub const ALL: &[Self] = &[
        Self::StoppedByOperator,
        Self::JobRemoved,
        Self::JobNotConfigured,
        Self::JobUnknown,
        Self::JobClassConflict,
        Self::ConfigurationConflict,
        Self::InstanceNameTaken,
        Self::StreamNotReplaced,
        Self::StreamReplaced,
        Self::StreamEnded,
        Self::CancelIgnored,
        Self::SlowApplication,
        Self::SidecarStopping,
        Self::TooMany,
        Self::RegistryFull,
        Self::RegistryAway,
        Self::RegistryRefused,
        Self::RegistryNoPermission,
        Self::RegistryChanging,
        Self::OutcomeUnknown,
        Self::NoInstances,
        Self::ServersDisabled,
        Self::ItemsDisabled,
        Self::AttachmentUnknown,
        Self::ExecutionUnknown,
        Self::ExecutionOfAnother,
        Self::ExecutionOver,
        Self::CallUnknown,
        Self::ItemUnknown,
        Self::GenerationUnknown,
        Self::InvalidRequest,
        Self::TokenRefused,
        Self::ClientTooOld,
        Self::SidecarTooOld,
        Self::DrainIncomplete,
        Self::JobNotAttached,
        Self::LockHeldAlready,
        Self::LockOfOtherKind,
        Self::LockCounterAtEnd,
        Self::LockNotFree,
        Self::LockLost,
        Self::LockFree,
        Self::HoldUnknown,
        Self::CandidateUnknown,
        Self::NotLeader,
        Self::CandidateInTheWay,
        Self::StandUnknown,
        Self::LockNotOwned,
        Self::RunsUnresolved,
        Self::RecordUnreadable,
        Self::PeerRefused,
        Self::RoleMissing,
        Self::NameNotAllowed,
        Self::ConfigurationChanged,
        Self::InstancesOnline,
        Self::ConfigurationNotEditable,
        Self::NamespaceDiffers,
        Self::ExecutionsNotMonitored,
        Self::TriggerNotSupported,
    ];

    /// The reason's word, in capitals.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::StoppedByOperator => "STOPPED_BY_OPERATOR",
            Self::JobRemoved => "JOB_REMOVED",
            Self::JobNotConfigured => "JOB_NOT_CONFIGURED",
            Self::JobUnknown => "JOB_UNKNOWN",
            Self::JobClassConflict => "JOB_CLASS_CONFLICT",
            Self::ConfigurationConflict => "CONFIGURATION_CONFLICT",
            Self::InstanceNameTaken => "INSTANCE_NAME_TAKEN",
            Self::StreamNotReplaced => "STREAM_NOT_REPLACED",
            Self::StreamReplaced => "STREAM_REPLACED",
            Self::StreamEnded => "STREAM_ENDED",
            Self::CancelIgnored => "CANCEL_IGNORED",
            Self::SlowApplication => "SLOW_APPLICATION",
            Self::SidecarStopping => "SIDECAR_STOPPING",
            Self::TooMany => "TOO_MANY",
            Self::RegistryFull => "REGISTRY_FULL",
            Self::RegistryAway => "REGISTRY_AWAY",
            Self::RegistryRefused => "REGISTRY_REFUSED",
            Self::RegistryNoPermission => "REGISTRY_NO_PERMISSION",
            Self::RegistryChanging => "REGISTRY_CHANGING",
            Self::OutcomeUnknown => "OUTCOME_UNKNOWN",
            Self::NoInstances => "NO_INSTANCES",
            Self::ServersDisabled => "SERVERS_DISABLED",
            Self::ItemsDisabled => "ITEMS_DISABLED",
            Self::AttachmentUnknown => "ATTACHMENT_UNKNOWN",
            Self::ExecutionUnknown => "EXECUTION_UNKNOWN",
            Self::ExecutionOfAnother => "EXECUTION_OF_ANOTHER",
            Self::ExecutionOver => "EXECUTION_OVER",
            Self::CallUnknown => "CALL_UNKNOWN",
            Self::ItemUnknown => "ITEM_UNKNOWN",
            Self::GenerationUnknown => "GENERATION_UNKNOWN",
            Self::InvalidRequest => "INVALID_REQUEST",
            Self::TokenRefused => "TOKEN_REFUSED",
            Self::ClientTooOld => "CLIENT_TOO_OLD",
            Self::SidecarTooOld => "SIDECAR_TOO_OLD",
            Self::DrainIncomplete => "DRAIN_INCOMPLETE",
            Self::JobNotAttached => "JOB_NOT_ATTACHED",
            Self::LockHeldAlready => "LOCK_HELD_ALREADY",
            Self::LockOfOtherKind => "LOCK_OF_OTHER_KIND",
            Self::LockCounterAtEnd => "LOCK_COUNTER_AT_END",
            Self::LockNotFree => "LOCK_NOT_FREE",
            Self::LockLost => "LOCK_LOST",
            Self::LockFree => "LOCK_FREE",
            Self::HoldUnknown => "HOLD_UNKNOWN",
            Self::CandidateUnknown => "CANDIDATE_UNKNOWN",
            Self::NotLeader => "NOT_LEADER",
            Self::CandidateInTheWay => "CANDIDATE_IN_THE_WAY",
            Self::StandUnknown => "STAND_UNKNOWN",
            Self::LockNotOwned => "LOCK_NOT_OWNED",
            Self::RunsUnresolved => "RUNS_UNRESOLVED",
            Self::RecordUnreadable => "RECORD_UNREADABLE",
            Self::PeerRefused => "PEER_REFUSED",
            Self::RoleMissing => "ROLE_MISSING",
            Self::NameNotAllowed => "NAME_NOT_ALLOWED",
            Self::ConfigurationChanged => "CONFIGURATION_CHANGED",
            Self::InstancesOnline => "INSTANCES_ONLINE",
            Self::ConfigurationNotEditable => "CONFIGURATION_NOT_EDITABLE",
            Self::NamespaceDiffers => "NAMESPACE_DIFFERS",
            Self::ExecutionsNotMonitored => "EXECUTIONS_NOT_MONITORED",
            Self::TriggerNotSupported => "TRIGGER_NOT_SUPPORTED",
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
