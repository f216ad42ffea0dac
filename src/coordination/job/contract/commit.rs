//! The transactions of a participant: their names and their purposes.

use std::fmt;

/// Names a commit until its result is back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct CommitId(pub u64);

/// The purpose of a commit. At most one commit of each purpose is in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Purpose {
    /// Register the instance: configuration, server, instance.
    Register,
    /// Give up leadership, or delete the node of a leader that is offline.
    Abdicate,
    /// Flag that a resharding is due.
    FlagResharding,
    /// Reshard the items.
    Shard,
    /// Create running nodes.
    Start,
    /// Delete running nodes.
    Complete,
    /// Write checkpoints of executions.
    Checkpoint,
    /// Flag fires that met a busy item.
    FlagMisfire,
    /// Publish the profile of this instance for the other sidecars.
    Announce,
    /// Publish which items are to change hands.
    PlanHandoff,
    /// Hand items over to their next owners.
    HandOff,
    /// Renew items that an earlier instance of the same name owned.
    Renew,
    /// Delete names whose reservations have ended.
    ForgetNames,
    /// Remind a Java leader of items that have no owner.
    RemindLeader,
    /// Enable items and servers that were to be disabled until now.
    Enable,
    /// Delete the turn of a server that is offline.
    RepairRotation,
    /// Delete triggers for which there is nothing to execute any more.
    TakeTrigger,
    /// Register items at a barrier, or withdraw registrations.
    RegisterAtBarrier,
    /// Flag items of crashed instances, or delete what a switched-off failover left.
    FlagFailover,
    /// Remove servers that have had no instance for a long time.
    RemoveServers,
    /// Have the registry stamp a node with its time.
    CheckClock,
    /// Remove the nodes of an instance that leaves.
    Leave,
}

/// A room that makes commits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Room {
    Membership,
    Rotation,
    Execution,
    Ownership,
    Once,
    Firing,
    Failover,
    Lifecycle,
}

impl Purpose {
    /// The room that makes such a commit, and gets its result.
    pub(crate) fn room(self) -> Room {
        match self {
            Self::Register | Self::Announce | Self::Renew => Room::Membership,
            Self::Abdicate | Self::CheckClock | Self::RemoveServers => Room::Membership,
            Self::RepairRotation => Room::Rotation,
            Self::Complete | Self::Checkpoint => Room::Execution,
            Self::FlagResharding | Self::Shard | Self::RemindLeader => Room::Ownership,
            Self::PlanHandoff | Self::HandOff | Self::ForgetNames | Self::Enable => Room::Ownership,
            Self::RegisterAtBarrier => Room::Once,
            Self::Start | Self::FlagMisfire | Self::TakeTrigger => Room::Firing,
            Self::FlagFailover => Room::Failover,
            Self::Leave => Room::Lifecycle,
        }
    }
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
            Self::RemindLeader => "remind the leader",
            Self::Enable => "enable",
            Self::RepairRotation => "repair rotation",
            Self::TakeTrigger => "take trigger",
            Self::RegisterAtBarrier => "register at a barrier",
            Self::FlagFailover => "flag failover",
            Self::RemoveServers => "remove servers",
            Self::CheckClock => "check clock",
            Self::Leave => "leave",
        })
    }
}
