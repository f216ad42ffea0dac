"""The events of a stream besides executions: assignments, leadership, the session, the job."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone

from sidekeeper._proto.v1 import assignment_pb2, attach_pb2, lease_pb2, listener_pb2
from sidekeeper.configuration import JobConfiguration, Problem
from sidekeeper.lease import remaining_lease

__all__ = [
    "AssignedItem",
    "Assignment",
    "AssignmentReason",
    "ItemsChange",
    "JobChange",
    "Leadership",
    "Round",
    "SessionChange",
    "SessionState",
]


class AssignmentReason(enum.Enum):
    """Why an assignment has changed. Positive values are those of the protocol."""

    UNSPECIFIED = 0
    #: The first assignment since the application attached; empty if the instance has just joined.
    ATTACHED = 1
    #: The leader has resharded the job.
    RESHARDED = 2
    #: An operator enabled or disabled the instance's server.
    SERVER_STATUS = 3
    #: Items were disabled or enabled, or their parameters changed. Their owners did not.
    ITEM_CHANGED = 4
    #: The session with the registry was lost, and all items with it.
    SESSION_LOST = 5
    #: The instance is leaving.
    DRAINING = 6
    #: The job's single item rotates over the servers: this server's turn has begun or ended.
    RELAYED = 7
    #: All instances are sidecars, and items change owners one by one, or had no owner.
    HANDED_OFF = 8
    #: The stream to the sidecar has ended, or is about to because the application stops: this instance owns no
    #: item until it is attached again.
    DETACHED = -1
    #: The sidecar has not renewed the lease in time: it may be suspended, and other instances may own the items.
    SILENT = -2

    @classmethod
    def _missing_(cls, value: object) -> AssignmentReason:
        return cls.UNSPECIFIED  # of a newer sidecar


@dataclass(frozen=True)
class AssignedItem:
    """An item that this instance owns."""

    #: The item.
    item: int
    #: The item's parameter. None: it has none.
    item_parameter: str | None
    #: Grows with each new owner of the item.
    fencing_token: int
    #: Whether an operator has disabled it: it is owned, but not executed.
    disabled: bool


@dataclass(frozen=True)
class Assignment:
    """The items that this instance owns: always all of them."""

    #: The job's name.
    job_name: str
    #: The instance in the registry: ``{ipv4}@-@{unique}``.
    instance_id: str
    #: Which sharding of the job this is. It grows with each one that concerns this instance, not always by one.
    generation: int
    #: Into how many items the job is split.
    sharding_total_count: int
    #: The items, ascending.
    items: Sequence[AssignedItem]
    #: The items that were not in the last assignment.
    added: Sequence[int]
    #: The items that were in the last assignment and are no more.
    revoked: Sequence[int]
    #: Whether this instance leads the job.
    leader: bool
    #: Why it changed.
    reason: AssignmentReason

    def detached(self) -> Assignment:
        """Returns the assignment after the end of the stream: an empty one."""
        return replace(
            self,
            items=(),
            added=(),
            revoked=tuple(item.item for item in self.items),
            leader=False,
            reason=AssignmentReason.DETACHED,
        )

    @classmethod
    def from_proto(cls, job_name: str, instance_id: str, message: assignment_pb2.AssignmentChanged) -> Assignment:
        """Returns the assignment of a message."""
        items = tuple(
            AssignedItem(
                item=item.item,
                item_parameter=item.item_parameter if item.HasField("item_parameter") else None,
                fencing_token=item.fencing_token,
                disabled=item.disabled,
            )
            for item in message.assignment.items
        )
        return cls(
            job_name=job_name,
            instance_id=instance_id,
            generation=message.assignment.generation,
            sharding_total_count=message.assignment.sharding_total_count,
            items=items,
            added=tuple(message.added_items),
            revoked=tuple(message.revoked_items),
            leader=message.leader,
            reason=AssignmentReason(message.reason),
        )


@dataclass(frozen=True)
class ItemsChange:
    """Some items of a job: those that were assigned, revoked or lost."""

    #: The job's name.
    job_name: str
    #: The instance in the registry: ``{ipv4}@-@{unique}``.
    instance_id: str
    #: Which sharding of the job this is. It grows with each one that concerns this instance, not always by one.
    generation: int
    #: Into how many items the job is split.
    sharding_total_count: int
    #: The items that this is about, ascending, as they are now or were last.
    items: Sequence[AssignedItem]
    #: Why it happened.
    reason: AssignmentReason


@dataclass(frozen=True)
class Leadership:
    """This instance has begun or ceased to lead its job."""

    #: The job's name.
    job_name: str
    #: The instance in the registry.
    instance_id: str
    #: Whether it leads now.
    leader: bool
    #: The term in which it leads, a fencing token: greater than that of each earlier leader. 0: it does not lead.
    term: int = 0


class SessionState(enum.Enum):
    """The state of the sidecar's session with the registry. Positive values are those of the protocol."""

    UNSPECIFIED = 0
    #: The session is alive.
    CONNECTED = 1
    #: The registry does not answer. Running executions continue, and no new one starts.
    SUSPENDED = 2
    #: The session has ended, and the instance has lost its items. The sidecar registers it again as soon as it can.
    LOST = 3
    #: The lease has ended, and the sidecar was silent: it may be suspended. Running executions were cancelled. The
    #: sidecar's next message is in force again.
    SILENT = -1

    @classmethod
    def _missing_(cls, value: object) -> SessionState:
        return cls.UNSPECIFIED  # of a newer sidecar


@dataclass(frozen=True)
class SessionChange:
    """The sidecar's session with the registry has changed."""

    #: The job's name.
    job_name: str
    #: The state now.
    state: SessionState
    #: How long the session is surely alive without word from the registry, from when this was read. None: not known.
    remaining_lease: timedelta | None

    @classmethod
    def from_proto(cls, job_name: str, message: lease_pb2.SessionChanged) -> SessionChange:
        """Returns the change of a message."""
        return cls(job_name=job_name, state=SessionState(message.state), remaining_lease=remaining_lease(message))


@dataclass(frozen=True)
class JobChange:
    """The job's configuration or its problems have changed."""

    #: The job's name.
    job_name: str
    #: The configuration in force. None: the registry has none that can be read.
    configuration: JobConfiguration | None
    #: The job's problems now.
    problems: Sequence[Problem]

    @classmethod
    def from_proto(cls, job_name: str, message: attach_pb2.JobChanged) -> JobChange:
        """Returns the change of a message."""
        return cls(
            job_name=job_name,
            configuration=(
                JobConfiguration.from_proto(message.configuration) if message.HasField("configuration") else None
            ),
            problems=tuple(
                Problem(path=problem.path, message=problem.message, code=problem.code) for problem in message.problems
            ),
        )


@dataclass(frozen=True)
class Round:
    """One fire of the whole job, before its first item is executed or after its last."""

    #: The job's name.
    job_name: str
    #: The instance in the registry that acts for all of them.
    instance_id: str
    #: For which instant of the schedule the fire is; for a trigger, when it was seen.
    scheduled_time: datetime
    #: When the sidecar stops waiting; an answer that comes later counts for nothing.
    deadline: datetime

    @classmethod
    def from_proto(
        cls, job_name: str, instance_id: str, message: listener_pb2.BeforeFirst | listener_pb2.AfterLast
    ) -> Round:
        """Returns the round of a message."""
        return cls(
            job_name=job_name,
            instance_id=instance_id,
            scheduled_time=message.scheduled_time.ToDatetime(tzinfo=timezone.utc),
            deadline=message.deadline.ToDatetime(tzinfo=timezone.utc),
        )
