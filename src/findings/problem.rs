//! The problems that applications and observers of a job are told while it goes on: each is an entry of the catalogue, with a sentence of the
//! room that met it.

use crate::excerpt::Excerpt;
use crate::tree::Path;

/// An entry of the catalogue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ProblemCode {
    /// The configuration cannot be read.
    JobConfigUnreadable,
    /// The items' parameters cannot be read.
    JobParametersUnreadable,
    /// A setting has no effect, or another one than it says.
    JobSettingWrong,
    /// The application's configuration is not the one in force.
    JobConfigDiffers,
    /// The schedule has fired for the last time.
    JobNeverFiresAgain,
    /// The once-listener, or a barrier of it, has failed.
    OnceListenerFailed,
    /// No leader can be elected.
    LeaderMissing,
    /// A resharding waits for items that are being executed.
    ReshardingWaitsForRunning,
    /// Another instance holds the latch of takeovers.
    FailoverLatchHeld,
    /// A node cannot be read.
    NodeUnreadable,
    /// A sidecar of the job is of an earlier version.
    SidecarOutdated,
    /// An instance has the name already.
    InstanceNameTaken,
    /// Executions take longer than until the next fire.
    ItemRunningLong,
    /// The lock of an item cannot be had.
    ItemWaitsForLock,
    /// The application does not report an execution that was cancelled.
    ItemCancelIgnored,
    /// The former process has begun an execution that nobody continues.
    ItemInterrupted,
    /// This clock and the registry's differ.
    ClockSkew,
    /// There is no session with the registry.
    RegistryUnreachable,
    /// The servers accept small requests only.
    RegistryRequestsSmall,
    /// The state of a job is too large for a message.
    StateTooLarge,
}

impl ProblemCode {
    /// The code: for programs.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::JobConfigUnreadable => "JOB_CONFIG_UNREADABLE",
            Self::JobParametersUnreadable => "JOB_PARAMETERS_UNREADABLE",
            Self::JobSettingWrong => "JOB_SETTING_WRONG",
            Self::JobConfigDiffers => "JOB_CONFIG_DIFFERS",
            Self::JobNeverFiresAgain => "JOB_NEVER_FIRES_AGAIN",
            Self::OnceListenerFailed => "ONCE_LISTENER_FAILED",
            Self::LeaderMissing => "LEADER_MISSING",
            Self::ReshardingWaitsForRunning => "RESHARDING_WAITS_FOR_RUNNING",
            Self::FailoverLatchHeld => "FAILOVER_LATCH_HELD",
            Self::NodeUnreadable => "NODE_UNREADABLE",
            Self::SidecarOutdated => "SIDECAR_OUTDATED",
            Self::InstanceNameTaken => "INSTANCE_NAME_TAKEN",
            Self::ItemRunningLong => "ITEM_RUNNING_LONG",
            Self::ItemWaitsForLock => "ITEM_WAITS_FOR_LOCK",
            Self::ItemCancelIgnored => "ITEM_CANCEL_IGNORED",
            Self::ItemInterrupted => "ITEM_INTERRUPTED",
            Self::ClockSkew => "CLOCK_SKEW",
            Self::RegistryUnreachable => "REGISTRY_UNREACHABLE",
            Self::RegistryRequestsSmall => "REGISTRY_REQUESTS_SMALL",
            Self::StateTooLarge => "STATE_TOO_LARGE",
        }
    }
}

/// A problem that does not stop a job: the node, and what to do about it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Problem {
    /// The node concerned.
    pub path: Path,
    /// The problem and its remedy, in one sentence.
    pub message: String,
    /// The entry of the catalogue.
    pub code: ProblemCode,
}

impl Problem {
    /// Characters of a path in messages and logs.
    const PATH_CHARS_MAX: usize = 400;
    /// Characters of a sentence in messages and logs.
    const MESSAGE_CHARS_MAX: usize = 2_000;

    /// Path and sentence, short enough for messages and logs.
    pub fn excerpt(&self) -> (Excerpt, Excerpt) {
        (
            Excerpt::of_length(self.path.as_str(), Self::PATH_CHARS_MAX),
            Excerpt::of_length(&self.message, Self::MESSAGE_CHARS_MAX),
        )
    }
}
