//! Where an instance is in its life, and the session that it is in.

use std::time::Duration;

use crate::coordination::job::contract::effect::EndReason;
use crate::tree::SessionId;

/// The session with the registry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::coordination) enum Session {
    /// There is none.
    None,
    /// It is alive.
    Connected(SessionId),
    /// It may be alive.
    Suspended(SessionId),
}

/// Where the participant is in its life.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::coordination) enum Phase {
    /// Not an instance yet, or told nothing yet.
    Joining,
    /// An instance.
    Active,
    /// An instance whose application has no stream (see [`crate::coordination::job::lifecycle::stream`]).
    Away {
        /// How long that may last; monotonic. `None`: it has one again, and has not been told anything yet.
        until: Option<Duration>,
    },
    /// Starts nothing more, and leaves when nothing runs.
    Draining {
        /// When it stops waiting; monotonic. `None`: it has a reason to wait for as long as it takes.
        deadline: Option<Duration>,
        /// Why.
        reason: EndReason,
        /// Whether the deadline has passed and executions were told to stop.
        cancelled: bool,
    },
    /// Removes its nodes.
    Leaving(EndReason),
    /// Over.
    Ended,
}
