//! Transactions of a participant: what names one, and why it is made.

use std::fmt;

/// Names a commit until its result is back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct CommitId(pub u64);

/// Why a commit is made. At most one of each is in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Purpose {
    /// Become an instance: configuration, server, instance.
    Register,
    /// Give up leadership, or remove what a leader that is not online left.
    Abdicate,
    /// Flag that a resharding is due.
    FlagResharding,
    /// Divide the items.
    Shard,
    /// Create running nodes.
    Start,
    /// Delete running nodes.
    Complete,
    /// Write down how far executions are.
    Checkpoint,
    /// Flag fires that met a busy item.
    FlagMisfire,
    /// Say what we can, to the other sidecars.
    Announce,
    /// Write down which items are to change hands.
    PlanHandoff,
    /// Give items to their next owners.
    HandOff,
    /// Make items ours that were our name's before we had it.
    Renew,
    /// Delete names that are waited for no more.
    ForgetNames,
    /// Remind a Java leader of items that belong to nobody.
    Nudge,
    /// Remove a turn of somebody who is not there.
    RepairRelay,
    /// Delete a request to fire for which there is nothing to execute.
    TakeTrigger,
    /// Register items at a gate, or take registrations back.
    Guarantee,
    /// Flag items of crashed instances, or clear away what a failover left.
    FlagFailover,
    /// Have the registry stamp a node with its time.
    CheckClock,
    /// Leave.
    Leave,
}

impl fmt::Display for Purpose {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Register => "register",
            Self::Abdicate => "abdicate",
            Self::FlagResharding => "flag resharding",
            Self::Shard => "shard",
            Self::Start => "start",
            Self::Complete => "complete",
            Self::Checkpoint => "write checkpoints",
            Self::FlagMisfire => "flag misfire",
            Self::Announce => "announce",
            Self::PlanHandoff => "plan handoff",
            Self::HandOff => "hand off",
            Self::Renew => "renew items",
            Self::ForgetNames => "forget names",
            Self::Nudge => "nudge",
            Self::RepairRelay => "repair relay",
            Self::TakeTrigger => "take trigger",
            Self::Guarantee => "register at a gate",
            Self::FlagFailover => "flag failover",
            Self::CheckClock => "check clock",
            Self::Leave => "leave",
        })
    }
}
