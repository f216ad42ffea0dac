"""Tells the sidecar how far an execution is, from any thread and from coroutines."""

from __future__ import annotations

import asyncio
import concurrent.futures
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING

import grpc.aio

from sidekeeper._proto.v1 import progress_pb2
from sidekeeper.backoff import Backoff
from sidekeeper.errors import ProgressError

if TYPE_CHECKING:
    from sidekeeper._proto.v1.participant_service_pb2_grpc import ParticipantServiceAsyncStub

__all__ = ["DEFAULT_TIMEOUT", "MAX_CHECKPOINT_BYTES", "Progress", "ProgressReporter"]

#: The largest checkpoint, in bytes; the sidecar refuses larger ones.
MAX_CHECKPOINT_BYTES = 64 * 1024

#: How long a report of progress may take, in seconds: a checkpoint waits until the registry answers.
DEFAULT_TIMEOUT = 30.0

#: The statuses after which another try may succeed.
_PASSING = frozenset(
    {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.UNKNOWN, grpc.StatusCode.CANCELLED, grpc.StatusCode.ABORTED}
)


@dataclass(frozen=True)
class Progress:
    """The sidecar's answer to a report of progress."""

    #: The deadline now. None: no limit, or the execution was cancelled.
    deadline: datetime | None
    #: Whether the execution was cancelled; its deadline is not extended any more.
    cancelled: bool
    #: Whether the checkpoint was not recorded, because a newer one was reported before it was.
    superseded: bool


class ProgressReporter:
    """Reports the progress of one attachment's executions. Made on its loop, used from anywhere."""

    def __init__(self, stub: ParticipantServiceAsyncStub, attachment_id: str) -> None:
        self._stub = stub
        self._attachment_id = attachment_id
        self._loop = asyncio.get_running_loop()
        self._ended = False

    def move(self, attachment_id: str) -> None:
        """The executions continue with another attachment; retries of calls go there."""
        self._attachment_id = attachment_id

    def end(self) -> None:
        """The attachment has ended: nothing can be reported any more."""
        self._ended = True

    def report(self, execution_id: str, checkpoint: bytes | None, extend_deadline: bool, timeout: float) -> Progress:
        """Reports from a thread, and waits for the answer.

        Raises:
            ProgressError: The sidecar refused it, or did not answer in time.
            RuntimeError: The caller is on the loop, which this would block for good.
        """
        try:
            on_loop = asyncio.get_running_loop() is self._loop
        except RuntimeError:
            on_loop = False  # a thread without a loop
        if on_loop:
            raise RuntimeError("progress() would block the event loop; await progress_async() instead")
        reporting = self.report_async(execution_id, checkpoint, extend_deadline, timeout)
        try:
            waiting = asyncio.run_coroutine_threadsafe(reporting, self._loop)
        except RuntimeError:
            reporting.close()
            raise ProgressError(execution_id, "ABORTED", "the application has stopped") from None
        try:
            # The call is bounded; this is for a loop that has stopped meanwhile.
            return waiting.result(timeout + 5.0)
        except (concurrent.futures.CancelledError, concurrent.futures.TimeoutError):
            raise ProgressError(execution_id, "ABORTED", "the application has stopped") from None

    async def report_async(
        self, execution_id: str, checkpoint: bytes | None, extend_deadline: bool, timeout: float
    ) -> Progress:
        """Reports on the loop; retries a call that may succeed later, until the timeout.

        Raises:
            ProgressError: The sidecar refused it, or did not answer in time.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + timeout
        backoff = Backoff()
        while not self._ended:
            request = progress_pb2.ReportProgressRequest(
                attachment_id=self._attachment_id,
                execution_id=execution_id,
                extend_deadline=extend_deadline,
                checkpoint=checkpoint,
            )
            try:
                answer = await self._stub.ReportProgress(request, timeout=max(until - loop.time(), 0.001))
            except grpc.aio.AioRpcError as error:
                pause = backoff.next()
                if error.code() not in _PASSING or loop.time() + pause >= until:
                    raise ProgressError(execution_id, error.code().name, error.details() or "") from None
                await asyncio.sleep(pause)
            else:
                has_deadline = answer.HasField("deadline")
                return Progress(
                    deadline=answer.deadline.ToDatetime(tzinfo=timezone.utc) if has_deadline else None,
                    cancelled=answer.cancelled,
                    superseded=answer.superseded,
                )
        raise ProgressError(execution_id, "ABORTED", "the stream to the sidecar has ended, and this instance has left")
