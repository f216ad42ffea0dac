"""What ``sidekeeper.testing`` stands on: the calls of the participant service, answered in memory."""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import cast

import grpc
import grpc.aio

from sidekeeper._proto.v1 import (
    assignment_pb2,
    attach_pb2,
    completion_pb2,
    execution_pb2,
    job_pb2,
    lease_pb2,
    listener_pb2,
    progress_pb2,
)
from sidekeeper.events import AssignmentReason, SessionState
from sidekeeper.execution import ExecutionSource
from sidekeeper.version import API_LEVEL, __version__

__all__ = ["FakeStream", "FakeStub", "Outcome", "Result"]

#: For which instant the first execution of a job is; each further one is a second later.
FIRST_INSTANT = datetime(2026, 1, 1, tzinfo=timezone.utc)

#: The new deadline of an execution that reports progress, from then.
EXTENSION = timedelta(minutes=1)


class Outcome(enum.Enum):
    """How an execution ended. The values are those of the protocol."""

    SUCCESS = 1
    FAILURE = 2
    REJECTED = 3
    #: It was stopped or not begun because another instance might have owned it.
    INTERRUPTED = 4


@dataclass(frozen=True)
class Result:
    """A result that the application has reported."""

    #: The job.
    job_name: str
    #: The item.
    item: int
    #: The execution.
    execution_id: str
    #: How it ended.
    outcome: Outcome
    #: Why it failed, was rejected or was interrupted, as it was reported. Empty on success.
    message: str

    @property
    def succeeded(self) -> bool:
        """Whether the handler has returned."""
        return self.outcome is Outcome.SUCCESS


def _error(code: grpc.StatusCode, details: str) -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), details)


class _Changes:
    """Lets coroutines wait until something is true, which is looked at after each change."""

    def __init__(self) -> None:
        self._waiting: set[asyncio.Future[None]] = set()

    def happened(self) -> None:
        for one in self._waiting:
            if not one.done():
                one.set_result(None)
        self._waiting.clear()

    async def wait(self) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(future)
        await future


class FakeStream:
    """One attachment of one job."""

    def __init__(self, number: int, request: attach_pb2.AttachRequest, results: list[Result]) -> None:
        self.job_name = request.job_name
        self.attachment_id = f"attachment-{number}"
        self.configuration = request.configuration if request.HasField("configuration") else _unconfigured()
        #: The items of the last assignment, with their parameters.
        self.items: dict[int, str | None] = {}
        #: The executions that have no result yet, and their items.
        self.open: dict[str, int] = {}
        #: The reports of progress by execution.
        self.progress: dict[str, list[progress_pb2.ReportProgressRequest]] = {}
        self._tokens: dict[int, int] = {}
        self._results = results
        self._ended: dict[str, Result] = {}
        self._generation = 0
        self._acknowledged = 0
        self._count = 0
        self._token = 0
        self._events: asyncio.Queue[attach_pb2.AttachResponse | None] = asyncio.Queue()
        self._changes = _Changes()
        self._gone = False
        self.send(
            attach_pb2.AttachResponse(
                attached=attach_pb2.Attached(
                    attachment_id=self.attachment_id,
                    instance_id="127.0.0.1@-@fake",
                    job_name=self.job_name,
                    configuration=self.configuration,
                    sidecar_version=__version__,
                    api_level=API_LEVEL,
                )
            )
        )
        self.assign({}, leader=False, reason=AssignmentReason.ATTACHED)

    # The application's side of a call.

    async def read(self) -> object:
        """Returns the next event."""
        event = await self._events.get()
        if event is None:
            raise _error(grpc.StatusCode.UNAVAILABLE, "the fake sidecar has broken the stream")
        return event

    def cancel(self) -> bool:
        """The application has left."""
        self._gone = True
        self._changes.happened()
        return True

    # The test's side.

    def send(self, event: attach_pb2.AttachResponse) -> None:
        """Tells an event."""
        self._events.put_nowait(event)

    def break_off(self) -> None:
        """Ends the stream."""
        self._gone = True
        self._events.put_nowait(None)

    @property
    def gone(self) -> bool:
        """Whether the stream has ended."""
        return self._gone

    def parameter(self, item: int) -> str | None:
        """An item's parameter by the job's configuration."""
        pairs = (pair.split("=", 1) for pair in self.configuration.sharding_item_parameters.split(",") if pair)
        return {int(number): text for number, text in pairs}.get(item)

    def assign(self, items: Mapping[int, str | None], *, leader: bool, reason: AssignmentReason) -> int:
        """Tells the whole assignment; returns its generation."""
        before, self.items = self.items, dict(items)
        self._generation += 1
        self._tokens = {item: self._tokens.get(item) or self._next_token() for item in items}
        assigned = [
            assignment_pb2.AssignedItem(item=item, item_parameter=items[item], fencing_token=self._tokens[item])
            for item in sorted(items)
        ]
        total = max([self.configuration.sharding_total_count, *(item + 1 for item in items)])
        self.send(
            attach_pb2.AttachResponse(
                assignment_changed=assignment_pb2.AssignmentChanged(
                    assignment=assignment_pb2.Assignment(
                        generation=self._generation, sharding_total_count=total, items=assigned
                    ),
                    added_items=sorted(items.keys() - before.keys()),
                    revoked_items=sorted(before.keys() - items.keys()),
                    leader=leader,
                    reason=cast("assignment_pb2.AssignmentReason.ValueType", reason.value),
                )
            )
        )
        return self._generation

    def send_session(self, state: SessionState) -> None:
        """Tells the session's state."""
        value = cast("lease_pb2.SessionState.ValueType", state.value)
        self.send(attach_pb2.AttachResponse(session_changed=lease_pb2.SessionChanged(state=value)))

    def next_instant(self) -> datetime:
        """For which instant the next execution is."""
        self._count += 1
        return FIRST_INSTANT + timedelta(seconds=self._count - 1)

    def execute(self, item: int, source: ExecutionSource, instant: datetime | None) -> execution_pb2.Execute:
        """Makes the message for an execution."""
        token = self._next_token()
        execution_id = f"{self.attachment_id}-{token}"
        self.open[execution_id] = item
        message = execution_pb2.Execute(
            execution_id=execution_id,
            item=item,
            item_parameter=self.items.get(item),
            job_parameter=self.configuration.job_parameter,
            sharding_total_count=max(self.configuration.sharding_total_count, item + 1),
            task_id=f"{self.job_name}@-@{item}@-@READY@-@127.0.0.1@-@fake",
            source=cast("execution_pb2.ExecutionSource.ValueType", source.value),
            fencing_token=token,
            job_name=self.job_name,
        )
        message.scheduled_time.FromDatetime(instant or self.next_instant())
        message.fire_time.CopyFrom(message.scheduled_time)
        return message

    async def result(self, execution_id: str) -> Result:
        """Waits for an execution's result."""
        while execution_id not in self._ended:
            await self._changes.wait()
        return self._ended[execution_id]

    async def wait_acknowledged(self, generation: int) -> None:
        """Waits until an assignment was acknowledged."""
        while self._acknowledged < generation:
            await self._changes.wait()

    # The calls of the application.

    def reported(self, result: completion_pb2.ExecutionResult) -> completion_pb2.CompletionStatus.ValueType:
        """Takes a result."""
        item = self.open.pop(result.execution_id, None)
        if item is None:
            return completion_pb2.COMPLETION_STATUS_ALREADY_RECORDED
        told = Result(self.job_name, item, result.execution_id, Outcome(int(result.outcome)), result.failure_message)
        self._ended[result.execution_id] = told
        self._results.append(told)
        self._changes.happened()
        return completion_pb2.COMPLETION_STATUS_RECORDED

    def drain(self) -> None:
        """The application stops: no execution follows."""
        self.send(attach_pb2.AttachResponse(draining=attach_pb2.Draining()))

    def acknowledged(self, generation: int) -> None:
        """Takes an acknowledgement."""
        self._acknowledged = max(self._acknowledged, generation)
        self._changes.happened()

    def progressed(self, request: progress_pb2.ReportProgressRequest) -> progress_pb2.ReportProgressResponse:
        """Takes a report of progress."""
        self.progress.setdefault(request.execution_id, []).append(request)
        response = progress_pb2.ReportProgressResponse()
        if request.extend_deadline and "sidekeeper.execution-timeout" in self.configuration.props:
            response.deadline.FromDatetime(datetime.now(timezone.utc) + EXTENSION)
        return response

    def _next_token(self) -> int:
        self._token += 1
        return self._token


def _unconfigured() -> job_pb2.JobConfiguration:
    """The configuration of a job that the application attaches to by its name."""
    return job_pb2.JobConfiguration(sharding_total_count=1)


class FakeStub:
    """The participant service as the client calls it; used on the loop only."""

    def __init__(self) -> None:
        #: All results, in order.
        self.results: list[Result] = []
        self._streams: dict[str, FakeStream] = {}
        self._count = 0
        self._changes = _Changes()

    def stream(self, job_name: str) -> FakeStream:
        """The job's stream now."""
        stream = self._streams.get(job_name)
        if stream is None or stream.gone:
            raise ValueError(f"job {job_name!r} is not attached; attached are {sorted(self._streams)}")
        return stream

    async def wait_attached(self, job_names: Iterable[str]) -> None:
        """Waits until jobs are attached and have acknowledged that they own nothing yet."""
        wanted = list(job_names)
        while any(name not in self._streams or self._streams[name].gone for name in wanted):
            await self._changes.wait()
        for name in wanted:
            await self._streams[name].wait_acknowledged(1)

    def disconnect(self, job_name: str) -> None:
        """Breaks a job's stream."""
        self.stream(job_name).break_off()

    def Attach(self, request: attach_pb2.AttachRequest) -> FakeStream:  # noqa: N802 - the service's names
        """Attaches a job."""
        self._count += 1
        stream = FakeStream(self._count, request, self.results)
        self._streams[request.job_name] = stream
        self._changes.happened()
        return stream

    async def ReportCompletion(  # noqa: N802
        self, request: completion_pb2.ReportCompletionRequest, timeout: float
    ) -> completion_pb2.ReportCompletionResponse:
        """Records results."""
        stream = self._of(request.attachment_id)
        return completion_pb2.ReportCompletionResponse(
            records=[
                completion_pb2.CompletionRecord(execution_id=result.execution_id, status=stream.reported(result))
                for result in request.results
            ]
        )

    async def AcknowledgeAssignment(  # noqa: N802
        self, request: assignment_pb2.AcknowledgeAssignmentRequest, timeout: float
    ) -> assignment_pb2.AcknowledgeAssignmentResponse:
        """Takes an acknowledgement."""
        self._of(request.attachment_id).acknowledged(request.generation)
        return assignment_pb2.AcknowledgeAssignmentResponse()

    async def ReportProgress(  # noqa: N802
        self, request: progress_pb2.ReportProgressRequest, timeout: float
    ) -> progress_pb2.ReportProgressResponse:
        """Takes a report of progress."""
        return self._of(request.attachment_id).progressed(request)

    async def ReportListener(  # noqa: N802
        self, request: listener_pb2.ReportListenerRequest, timeout: float
    ) -> listener_pb2.ReportListenerResponse:
        """Takes the outcome of a call that does not exist."""
        return listener_pb2.ReportListenerResponse(in_time=False)

    async def DrainAttachment(  # noqa: N802
        self, request: attach_pb2.DrainAttachmentRequest, timeout: float
    ) -> attach_pb2.DrainAttachmentResponse:
        """Starts nothing more."""
        self._of(request.attachment_id).drain()
        return attach_pb2.DrainAttachmentResponse()

    async def Detach(  # noqa: N802
        self, request: attach_pb2.DetachRequest, timeout: float
    ) -> attach_pb2.DetachResponse:
        """Lets the application leave."""
        return attach_pb2.DetachResponse()

    def _of(self, attachment_id: str) -> FakeStream:
        for stream in self._streams.values():
            if stream.attachment_id == attachment_id:
                return stream
        raise _error(grpc.StatusCode.NOT_FOUND, f"attachment {attachment_id} has ended")
