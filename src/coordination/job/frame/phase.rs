//! The session and the phase of an instance, and the verdicts of decisions that want to change the phase.

use std::time::Duration;

use crate::coordination::job::contract::effect::EndReason;
use crate::tree::SessionId;

/// The session with the registry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Session {
    None,
    /// The registry answers.
    Connected(SessionId),
    /// The registry does not answer; the session may be alive.
    Suspended(SessionId),
}

impl Session {
    /// The session, unless there is none.
    pub(crate) fn id(self) -> Option<SessionId> {
        match self {
            Self::Connected(id) | Self::Suspended(id) => Some(id),
            Self::None => None,
        }
    }
}

/// The phase of the participant's life.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Not registered yet, or nothing was sent to the application yet.
    Joining,
    /// Registered.
    Active,
    /// Registered, and the application has no stream (see [`crate::coordination::job::lifecycle::stream`]).
    Detached {
        /// The end of `reattach_grace`; monotonic.
        until: Duration,
    },
    /// The application has reattached, and nothing was sent on its new stream.
    Reattaching,
    /// A former process of this sidecar had the instance, and its nodes were not looked for yet (see
    /// [`crate::coordination::job::lifecycle::restart`]).
    Restored,
    /// The instance starts nothing more, and leaves when its executions have ended.
    Draining {
        /// When it stops waiting; monotonic. `None`: it waits as long as the executions take.
        deadline: Option<Duration>,
        /// `Detached` without a deadline: the application is stopping, and ends its stream itself.
        reason: EndReason,
        /// Whether the deadline has passed and executions were cancelled.
        cancelled: bool,
    },
    /// The instance removes its nodes.
    Leaving(EndReason),
    Ended,
}

impl Phase {
    /// Whether the application has no stream, or nothing was sent on its stream.
    pub(crate) fn is_detached(&self) -> bool {
        match self {
            Self::Detached { .. } | Self::Reattaching | Self::Restored => true,
            Self::Joining | Self::Active | Self::Draining { .. } | Self::Leaving(_) | Self::Ended => false,
        }
    }

    /// Whether the instance does not leave at once: its application may execute, and the instance may lead.
    pub(crate) fn is_there(&self) -> bool {
        *self != Self::Joining && !self.is_leaving()
    }

    /// Whether the instance leaves without waiting, or has left.
    pub(crate) fn is_leaving(&self) -> bool {
        matches!(self, Self::Leaving(_) | Self::Ended)
    }

    /// Whether the application is stopping. The instance leaves when the application ends its stream.
    pub(crate) fn is_application_stopping(&self) -> bool {
        matches!(self, Self::Draining { deadline: None, reason: EndReason::Detached, .. })
    }

    /// When the phase ends by itself; monotonic.
    pub(crate) fn end(&self) -> Option<Duration> {
        match self {
            Self::Draining { deadline, .. } => *deadline,
            Self::Detached { until } => Some(*until),
            Self::Joining | Self::Active | Self::Reattaching | Self::Restored => None,
            Self::Leaving(_) | Self::Ended => None,
        }
    }
}

/// The wish of a decision about the life of the instance. Only `lifecycle` carries it out.
#[derive(Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum Verdict {
    /// No change.
    Continue,
    /// Close the application's stream, then leave.
    Disconnect(EndReason),
    /// Leave without waiting.
    Leave(EndReason),
    /// End, without a request to the registry.
    End(EndReason),
}
