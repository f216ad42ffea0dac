"""What can go wrong, as exceptions."""

from __future__ import annotations

__all__ = [
    "AttachError",
    "Cancelled",
    "ElectionError",
    "LockError",
    "ProgressError",
    "Reject",
    "SidekeeperError",
    "TriggerError",
]


class SidekeeperError(Exception):
    """Any error of this library."""


class AttachError(SidekeeperError):
    """The sidecar refused to make this process an instance of a job, and would refuse again.

    Raised by ``Application.run`` and ``Application.serve`` after all running handlers have finished.

    Attributes:
        job_name: The job.
        code: The gRPC status as text: ``INVALID_ARGUMENT`` (a field of the configuration is wrong), ``NOT_FOUND``
            (a job without any configuration), ``FAILED_PRECONDITION`` (the
            configuration or the job class conflicts with the one in use, or the API levels do not match;
            ``details`` then says which of the two to upgrade), ``UNAUTHENTICATED`` (the sidecar has another token) or
            ``UNIMPLEMENTED`` (the process at the endpoint is not a sidecar).
        details: The sidecar's own words.
        reason: Why, for programs: a value of the API's ``ErrorReason`` without its prefix, for example
            ``CONFIGURATION_CONFLICT``. Empty: the sidecar has given none.
    """

    def __init__(self, job_name: str, code: str, details: str, reason: str = "") -> None:
        super().__init__(f"job {job_name!r}: the sidecar refuses the attachment: {code}: {details}")
        self.job_name = job_name
        self.code = code
        self.details = details
        self.reason = reason


class TriggerError(SidekeeperError):
    """A job was not triggered, or the outcome is unknown.

    Attributes:
        job_name: The job.
        code: The gRPC status as text: ``NOT_FOUND`` (the job has no configuration), ``FAILED_PRECONDITION`` (no
            instance is online), ``ABORTED`` or ``UNAVAILABLE`` (no instance was triggered; try again), ``UNKNOWN`` or
            ``DEADLINE_EXCEEDED`` (it may have been triggered), ``INVALID_ARGUMENT`` (the job's name is wrong).
        details: The sidecar's own words, or that there is none.
        reason: As in ``AttachError``: ``NO_INSTANCES`` or ``ITEMS_DISABLED``, for example.
    """

    def __init__(self, job_name: str, code: str, details: str, reason: str = "") -> None:
        super().__init__(f"job {job_name!r} was not triggered: {code}: {details}")
        self.job_name = job_name
        self.code = code
        self.details = details
        self.reason = reason


class ProgressError(SidekeeperError):
    """The progress of an execution was not recorded, or the outcome is unknown.

    Attributes:
        execution_id: The execution.
        code: The gRPC status as text: ``FAILED_PRECONDITION`` (the execution has ended: its lease was lost),
            ``ABORTED`` or ``NOT_FOUND`` (the stream to the sidecar has ended, and the instance with it),
            ``UNAVAILABLE`` or ``DEADLINE_EXCEEDED`` (the registry or the sidecar does not answer; it may be recorded).
        details: The sidecar's own words.
    """

    def __init__(self, execution_id: str, code: str, details: str) -> None:
        super().__init__(f"progress of execution {execution_id!r}: {code}: {details}")
        self.execution_id = execution_id
        self.code = code
        self.details = details


class LockError(SidekeeperError):
    """A lock was not got, or was lost.

    Attributes:
        lock: The lock's name or path.
        code: The gRPC status as text: ``DEADLINE_EXCEEDED`` (not free in time, or the lease is over), ``ABORTED``
            (lost), ``FAILED_PRECONDITION`` (held already by the same application, or in use by another kind of lock),
            ``INVALID_ARGUMENT``, ``UNAVAILABLE`` (no sidecar, or it is stopping) or ``RESOURCE_EXHAUSTED``.
        details: The sidecar's own words.
        reason: As in ``AttachError``: ``LOCK_NOT_FREE`` or ``LOCK_LOST``, for example.
    """

    def __init__(self, lock: str, code: str, details: str, reason: str = "") -> None:
        super().__init__(f"lock {lock!r}: {code}: {details}")
        self.lock = lock
        self.code = code
        self.details = details
        self.reason = reason


class ElectionError(SidekeeperError):
    """A campaign or an observation has failed, a leadership was lost, or a leader has not resigned.

    Attributes:
        election: The election's name or path.
        code: The gRPC status as text: ``ABORTED`` (the leadership is lost), ``DEADLINE_EXCEEDED`` (its lease is over),
            ``FAILED_PRECONDITION`` (a second campaign of the same application, or a successor that cannot lead next),
            ``NOT_FOUND`` (no such successor), ``INVALID_ARGUMENT``, ``PERMISSION_DENIED``, ``UNAVAILABLE`` (no
            sidecar, or it is stopping) or ``RESOURCE_EXHAUSTED``.
        details: The sidecar's own words.
        reason: As in ``AttachError``: ``LOCK_LOST`` or ``CANDIDATE_IN_THE_WAY``, for example.
    """

    def __init__(self, election: str, code: str, details: str, reason: str = "") -> None:
        super().__init__(f"election {election!r}: {code}: {details}")
        self.election = election
        self.code = code
        self.details = details
        self.reason = reason


class Reject(Exception):  # noqa: N818 - it is an answer, not an error
    """Raised by a handler that did not begin its item: the execution is reported as REJECTED with this text."""


class Cancelled(Exception):  # noqa: N818 - like asyncio.CancelledError
    """Raised by ``Execution.raise_if_cancelled``; the execution is reported as a FAILURE that names the reason."""
