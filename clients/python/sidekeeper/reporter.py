"""Reports how executions ended: at most one call in flight, and what ends meanwhile travels together in the next.

A call costs many times what a result in it does. Therefore a report also waits a moment for further results if other
executions are open; the last or only one is reported at once.

A report is repeated with the same content until the sidecar answers; the protocol makes that safe. Results that the
sidecar refuses for good are dropped with a log line: they cannot be reported elsewhere.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Callable

import grpc.aio

from sidekeeper._proto.v1 import completion_pb2
from sidekeeper.backoff import Backoff
from sidekeeper.execution import Execution
from sidekeeper.log import fields, logger
from sidekeeper.outcome import Outcome

if TYPE_CHECKING:
    from sidekeeper._proto.v1.participant_service_pb2_grpc import ParticipantServiceAsyncStub

__all__ = ["Reporter"]

#: How long one call may take, in seconds. The sidecar answers when the registry has recorded the results, which
#: takes longer than this only while the registry does not answer; then the report is repeated.
CALL_TIMEOUT = 30.0

#: The most results in one call; the protocol allows 10 000.
MAX_BATCH = 1_000

#: How long a report waits for further results while others are to be expected, in seconds; short beside what a registry
#: takes, and long enough for dozens of results when there are many.
GATHERING = 0.002

#: With so many results a report waits no longer.
GATHERED = 64

#: The most text in one call, in bytes; below the 4 MiB that gRPC servers accept by default.
MAX_BATCH_BYTES = 2 * 1024 * 1024

#: Answers that do not change when the same report is sent again.
REFUSALS = frozenset(
    {
        grpc.StatusCode.FAILED_PRECONDITION,
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.NOT_FOUND,
        grpc.StatusCode.OUT_OF_RANGE,
        grpc.StatusCode.PERMISSION_DENIED,
        grpc.StatusCode.UNAUTHENTICATED,
        grpc.StatusCode.UNIMPLEMENTED,
    }
)


class _Result:
    """A result to be reported."""

    def __init__(self, execution: Execution, outcome: Outcome, api_level: int) -> None:
        self.execution = execution
        self.outcome = outcome
        told = outcome.for_level(api_level)
        self.message = completion_pb2.ExecutionResult(
            execution_id=execution.execution_id, outcome=told.kind, failure_message=told.message
        )


class Reporter:
    """Reports the results of one attachment. ``run`` is to be a task for as long as the attachment lasts."""

    def __init__(
        self,
        stub: ParticipantServiceAsyncStub,
        job_name: str,
        attachment_id: str,
        not_reported: Callable[[Execution, Outcome], None],
        is_open: Callable[[], bool],
        api_level: int,
    ) -> None:
        self._stub = stub
        self._job_name = job_name
        self.attachment_id = attachment_id
        self._not_reported = not_reported
        self._is_open = is_open
        self._api_level = api_level
        self._waiting: deque[_Result] = deque()  # bounded by the attachment's open executions
        self._wake = asyncio.Event()
        self._flushed = asyncio.Event()
        self._flushed.set()

    def add(self, execution: Execution, outcome: Outcome) -> None:
        """Takes a result."""
        self._waiting.append(_Result(execution, outcome, self._api_level))
        self._flushed.clear()
        self._wake.set()

    async def wait_flushed(self) -> None:
        """Waits until all results have been answered."""
        await self._flushed.wait()

    async def run(self) -> None:
        """Reports until it is cancelled; the results that are left go to ``not_reported``."""
        batch: list[_Result] = []
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                while self._waiting:
                    if len(self._waiting) < GATHERED and self._is_open():
                        await asyncio.sleep(GATHERING)
                    batch = self._take()
                    await self._report(batch)
                    batch = []
                self._flushed.set()
        finally:
            for result in [*batch, *self._waiting]:
                self._not_reported(result.execution, result.outcome)

    def _take(self) -> list[_Result]:
        batch: list[_Result] = []
        room = MAX_BATCH_BYTES
        while self._waiting and len(batch) < MAX_BATCH:
            room -= self._waiting[0].message.ByteSize()
            if batch and room < 0:
                break
            batch.append(self._waiting.popleft())
        return batch

    async def _report(self, batch: list[_Result]) -> None:
        """Reports a batch, again and again until it is answered."""
        request = completion_pb2.ReportCompletionRequest(
            attachment_id=self.attachment_id, results=[result.message for result in batch]
        )
        backoff = Backoff()
        while True:
            try:
                response = await self._stub.ReportCompletion(request, timeout=CALL_TIMEOUT)
            except grpc.aio.AioRpcError as error:
                if error.code() in REFUSALS:
                    await self._refused(batch, error)
                    return
                wait = backoff.next()
                logger.warning(
                    "report of %d results: %s: %s; again in %.1f s",
                    len(batch),
                    error.code().name,
                    error.details(),
                    wait,
                    extra=fields(self._job_name),
                )
                await asyncio.sleep(wait)
            else:
                self._recorded(batch, response)
                return

    async def _refused(self, batch: list[_Result], error: grpc.aio.AioRpcError) -> None:
        """A report is refused as a whole for the sake of one result: the others get their own."""
        if len(batch) == 1:
            self._drop(batch[0], f"{error.code().name}: {error.details()}")
            return
        for result in batch:
            await self._report([result])

    def _recorded(self, batch: list[_Result], response: completion_pb2.ReportCompletionResponse) -> None:
        status = {record.execution_id: record.status for record in response.records}
        for result in batch:
            execution = result.execution
            answer = status.get(execution.execution_id, completion_pb2.COMPLETION_STATUS_UNSPECIFIED)
            if answer == completion_pb2.COMPLETION_STATUS_LEASE_LOST:
                logger.warning(
                    "result not recorded: the lease was lost while item %d was executed, and another instance may "
                    "have executed it",
                    execution.item,
                    extra=fields(self._job_name, execution),
                )
            elif answer == completion_pb2.COMPLETION_STATUS_UNSPECIFIED:
                logger.warning(
                    "the sidecar does not say what became of the result", extra=fields(self._job_name, execution)
                )
            else:
                logger.debug("result recorded", extra=fields(self._job_name, execution))

    def _drop(self, result: _Result, why: str) -> None:
        logger.warning("result dropped: %s", why, extra=fields(self._job_name, result.execution))
