"""One execution of one item, as its handler sees it."""

from __future__ import annotations

import enum
import threading
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import cast

from google.protobuf.timestamp_pb2 import Timestamp

from sidekeeper._proto.v1 import attach_pb2, execution_pb2
from sidekeeper.errors import Cancelled, ProgressError
from sidekeeper.progress import DEFAULT_TIMEOUT, MAX_CHECKPOINT_BYTES, Progress, ProgressReporter

__all__ = ["CancelReason", "Cancellation", "Execution", "ExecutionSource"]


class ExecutionSource(enum.Enum):
    """What made an execution start. The values are those of the protocol."""

    UNSPECIFIED = 0
    #: The job's schedule.
    SCHEDULE = 1
    #: A trigger.
    TRIGGER = 2
    #: A misfire re-run: one execution for all missed fires of the item.
    MISFIRE = 3
    #: Another instance crashed while it executed the item.
    FAILOVER = 4

    @classmethod
    def _missing_(cls, value: object) -> ExecutionSource:
        return cls.UNSPECIFIED  # of a newer sidecar


class CancelReason(enum.Enum):
    """Why an execution is to stop. Positive values are those of the protocol."""

    UNSPECIFIED = 0
    #: The session with the registry is lost or about to be, or the sidecar does not say in time that it is not: another
    #: instance may own the item from now on.
    LEASE_LOST = 1
    #: The execution's deadline has passed.
    DEADLINE = 2
    #: The sidecar, or this application, stops and its drain timeout has passed.
    DRAIN_TIMEOUT = 3
    #: An operator asked for it.
    OPERATOR = 4
    #: The lock of its item is lost: another execution may hold it from now on.
    ITEM_LOCK_LOST = 5
    #: The stream to the sidecar has ended: this instance has left, and another one may own the item from now on.
    DETACHED = -1
    #: This application was stopped immediately.
    STOPPED = -2

    @classmethod
    def _missing_(cls, value: object) -> CancelReason:
        return cls.UNSPECIFIED  # of a newer sidecar


class Cancellation:
    """Whether an execution is to stop; usable from any thread.

    It is true in a condition once the execution is to stop, and can be waited for.
    """

    def __init__(self) -> None:
        self._event = threading.Event()
        self._reason: CancelReason | None = None

    @property
    def reason(self) -> CancelReason | None:
        """Why the execution is to stop; None while it is not."""
        return self._reason

    def is_set(self) -> bool:
        """Whether the execution is to stop."""
        return self._event.is_set()

    def __bool__(self) -> bool:
        return self._event.is_set()

    def wait(self, timeout: float | None = None) -> bool:
        """Waits until the execution is to stop, at most ``timeout`` seconds; returns whether it is."""
        return self._event.wait(timeout)

    def __repr__(self) -> str:
        return f"<Cancellation {self._reason.name if self._reason else 'not cancelled'}>"

    def _cancel(self, reason: CancelReason) -> bool:
        """Records the first reason, and returns whether this is it; later ones change nothing."""
        if self._reason is not None:
            return False
        self._reason = reason
        self._event.set()
        return True


@dataclass(frozen=True)
class Execution:
    """One execution of one item: the handler's argument."""

    #: The job's name.
    job_name: str
    #: Names this execution; unique, and never used again.
    execution_id: str
    #: The item, from 0 to ``sharding_total_count - 1``.
    item: int
    #: The item's parameter. None: it has none.
    item_parameter: str | None
    #: The job's parameter. Empty: none.
    job_parameter: str
    #: Into how many items the job is split.
    sharding_total_count: int
    #: The task in ElasticJob's form, as Java peers trace it.
    task_id: str
    #: Why it started.
    source: ExecutionSource
    #: For which instant of the schedule; for a trigger, when it was seen; for a misfire, the newest fire that it makes
    #: up for.
    scheduled_time: datetime
    #: When the sidecar started it.
    fire_time: datetime
    #: When it has to be over; reporting progress extends it. None: no limit.
    deadline: datetime | None
    #: Grows with each execution and each owner of the item. A store that keeps the highest token it saw can refuse a
    #: late writer.
    fencing_token: int
    #: W3C trace context of the sidecar's span. Empty: the sidecar does not trace.
    traceparent: str
    #: W3C trace context of the sidecar's span.
    tracestate: str
    #: Which attempt this is; 1 is the first.
    attempt: int = 1
    #: The last checkpoint of the earlier attempt, or of the crashed instance. None: there is none.
    checkpoint: bytes | None = None
    #: The token of the lock that it holds for its item: greater than that of each earlier holder, also of other jobs
    #: and deployments that share the lock. 0: the job has no ``sidekeeper.item-lock``.
    lock_token: int = 0
    #: Whether to stop: for handlers on threads. Coroutines are cancelled by ``asyncio.CancelledError`` instead.
    cancelled: Cancellation = field(default_factory=Cancellation, compare=False)
    _progress: ProgressReporter | None = field(default=None, compare=False, repr=False)

    @property
    def cancel_reason(self) -> CancelReason | None:
        """Why the execution is to stop; None while it is not."""
        return self.cancelled.reason

    def raise_if_cancelled(self) -> None:
        """Ends the handler if the execution is to stop; it is then reported as a failure.

        Raises:
            Cancelled: The execution is to stop.
        """
        if self.cancelled.reason is not None:
            raise Cancelled(f"cancelled: {self.cancelled.reason.name}")

    def progress(
        self, checkpoint: bytes | None = None, *, extend_deadline: bool = True, timeout: float = DEFAULT_TIMEOUT
    ) -> Progress:
        """Reports progress: the deadline starts anew, and a checkpoint is recorded.

        For handlers on threads; blocks until the registry has the checkpoint. If this execution
        fails or its process crashes, the next execution for the same instant gets the last one as ``checkpoint``.

        Args:
            checkpoint: From where another attempt can continue, in the application's own format; at most 65536 bytes.
                None: only the deadline is extended.
            extend_deadline: Whether the execution may take the job's ``sidekeeper.execution-timeout`` once more.
            timeout: How long this may take, in seconds.

        Raises:
            ProgressError: The execution has ended, or the sidecar or its registry does not answer.
            ValueError: The checkpoint is too large.
        """
        return self._reported(
            self._reporter(checkpoint).report(self.execution_id, checkpoint, extend_deadline, timeout)
        )

    async def progress_async(
        self, checkpoint: bytes | None = None, *, extend_deadline: bool = True, timeout: float = DEFAULT_TIMEOUT
    ) -> Progress:
        """As ``progress``, for handlers on the event loop."""
        reporter = self._reporter(checkpoint)
        return self._reported(await reporter.report_async(self.execution_id, checkpoint, extend_deadline, timeout))

    def _goes_on(self, progress: ProgressReporter, attachment_id: str) -> None:
        """The execution belongs to another attachment from now on."""
        if self._progress is not None:
            self._progress.move(attachment_id)  # for calls that wait
        # For everybody else an execution does not change.
        object.__setattr__(self, "_progress", progress)

    def _reporter(self, checkpoint: bytes | None) -> ProgressReporter:
        if checkpoint is not None and len(checkpoint) > MAX_CHECKPOINT_BYTES:
            raise ValueError(f"checkpoint: {len(checkpoint)} bytes, at most {MAX_CHECKPOINT_BYTES} are allowed")
        if self._progress is None:
            raise ProgressError(self.execution_id, "ABORTED", "this execution did not come from a sidecar")
        return self._progress

    def _reported(self, progress: Progress) -> Progress:
        if progress.deadline is not None:
            # For everybody else an execution does not change.
            object.__setattr__(self, "deadline", progress.deadline)
        return progress

    @classmethod
    def from_proto(cls, message: execution_pb2.Execute, progress: ProgressReporter | None = None) -> Execution:
        """Returns the execution that a message of the sidecar asks for."""
        return cls(
            job_name=message.job_name,
            execution_id=message.execution_id,
            item=message.item,
            item_parameter=message.item_parameter if message.HasField("item_parameter") else None,
            job_parameter=message.job_parameter,
            sharding_total_count=message.sharding_total_count,
            task_id=message.task_id,
            source=ExecutionSource(message.source),
            scheduled_time=_instant(message.scheduled_time),
            fire_time=_instant(message.fire_time),
            deadline=_instant(message.deadline) if message.HasField("deadline") else None,
            fencing_token=message.fencing_token,
            traceparent=message.traceparent,
            tracestate=message.tracestate,
            attempt=message.attempt or 1,  # an older sidecar does not say
            checkpoint=message.checkpoint if message.HasField("checkpoint") else None,
            lock_token=message.lock_token,
            _progress=progress,
        )

    def to_proto(self) -> attach_pb2.OpenExecution:
        """Returns the execution for a restarted sidecar, which resumes it."""
        message = attach_pb2.OpenExecution(
            execution_id=self.execution_id,
            fencing_token=self.fencing_token,
            scheduled_time=_timestamp(self.scheduled_time),
            source=cast("execution_pb2.ExecutionSource.ValueType", self.source.value),
            attempt=self.attempt,
            deadline=None if self.deadline is None else _timestamp(self.deadline),
        )
        if self.cancel_reason is not None and self.cancel_reason.value > 0:
            message.cancel_reason = cast("execution_pb2.CancelReason.ValueType", self.cancel_reason.value)
        return message


def _timestamp(instant: datetime) -> Timestamp:
    timestamp = Timestamp()
    timestamp.FromDatetime(instant)
    return timestamp


def _instant(timestamp: Timestamp) -> datetime:
    return timestamp.ToDatetime(tzinfo=timezone.utc)
