"""A sidecar for tests: the participant service, in this process, under the test's control."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable
from typing import Any, Callable, Optional, TypeVar

import grpc.aio
from google.protobuf.duration_pb2 import Duration

import sidekeeper
from sidekeeper import SessionState
from sidekeeper._proto.v1 import (
    assignment_pb2,
    attach_pb2,
    completion_pb2,
    execution_pb2,
    job_pb2,
    job_service_pb2,
    lease_pb2,
    listener_pb2,
    progress_pb2,
)
from sidekeeper._proto.v1.job_service_pb2_grpc import JobServiceServicer, add_JobServiceServicer_to_server
from sidekeeper._proto.v1.participant_service_pb2_grpc import (
    ParticipantServiceServicer,
    add_ParticipantServiceServicer_to_server,
)

#: How long anything may take before a test has failed, in seconds.
PATIENCE = 20.0

T = TypeVar("T")


async def soon(awaitable: Awaitable[T]) -> T:
    """Waits for something that is bound to happen."""
    return await asyncio.wait_for(awaitable, PATIENCE)


def seconds(number: float) -> Duration:
    """A duration as the protocol has it."""
    duration = Duration()
    duration.FromMilliseconds(int(number * 1000))
    return duration


def field(number: int, content: bytes | str) -> bytes:
    """A field of a message, of fewer than 128 bytes, by the wire format itself."""
    content = content.encode() if isinstance(content, str) else content
    return bytes([number << 3 | 2, len(content)]) + content


def error_details(*infos: tuple[str, str]) -> tuple[tuple[str, bytes], ...]:
    """What a sidecar sends behind a status: a ``google.rpc.Status`` with an ErrorInfo for each domain and reason."""
    other = field(3, field(1, "type.googleapis.com/google.rpc.BadRequest") + field(2, b"\x0a\x00"))
    details = [
        field(3, field(1, "type.googleapis.com/google.rpc.ErrorInfo") + field(2, field(1, reason) + field(2, domain)))
        for domain, reason in infos
    ]
    return (("grpc-status-details-bin", b"\x08\x09" + field(2, "its words") + other + b"".join(details)),)


class Stream:
    """One attachment, from the sidecar's side."""

    def __init__(self, number: int, request: attach_pb2.AttachRequest, grace: float, renewal: float) -> None:
        self.request = request
        self.attachment_id = f"attachment-{number}"
        self.instance_id = f"10.0.0.1@-@{number}"
        self.grace = grace
        self.renewal = renewal
        self.outgoing: asyncio.Queue[attach_pb2.AttachResponse | None] = asyncio.Queue()
        self.status = grpc.StatusCode.OK
        self.details = ""
        self.reason = ""
        #: Set when the client has closed the stream.
        self.closed = asyncio.Event()
        self._executions = 0

    def attach(self, resumed: tuple[str, ...] = (), api_level: int = 2) -> None:
        self.send(
            attached=attach_pb2.Attached(
                attachment_id=self.attachment_id,
                instance_id=self.instance_id,
                job_name=self.request.job_name,
                configuration=self.request.configuration,
                sidecar_version="0.0.0",
                api_level=api_level,
                resumed_execution_ids=resumed,
                grace=seconds(self.grace) if self.grace else None,
                lease_renewal_interval=seconds(self.renewal) if self.renewal else None,
            )
        )

    def send(self, **event: Any) -> None:
        self.outgoing.put_nowait(attach_pb2.AttachResponse(**event))

    def assign(
        self, items: list[int], generation: int = 1, revoked: tuple[int, ...] = (), leader: bool = False
    ) -> None:
        self.send(
            assignment_changed=assignment_pb2.AssignmentChanged(
                assignment=assignment_pb2.Assignment(
                    generation=generation,
                    sharding_total_count=6,
                    items=[
                        assignment_pb2.AssignedItem(item=item, item_parameter=f"p{item}", fencing_token=100 + item)
                        for item in items
                    ],
                ),
                added_items=items,
                revoked_items=revoked,
                leader=leader,
                reason=assignment_pb2.ASSIGNMENT_REASON_RESHARDED,
            )
        )

    def execute(self, item: int, **fields: Any) -> str:
        """Sends an Execute, and returns its execution id."""
        self._executions += 1
        execution_id = f"{self.attachment_id}-{self._executions}"
        message = execution_pb2.Execute(
            execution_id=execution_id,
            item=item,
            sharding_total_count=6,
            source=execution_pb2.EXECUTION_SOURCE_SCHEDULE,
            job_name=self.request.job_name,
        )
        message.scheduled_time.FromSeconds(1_700_000_000)
        message.fire_time.FromMilliseconds(1_700_000_000_012)
        message.MergeFrom(execution_pb2.Execute(**fields))
        self.send(execute=message)
        return execution_id

    def cancel(
        self,
        execution_id: str,
        reason: execution_pb2.CancelReason.ValueType = execution_pb2.CANCEL_REASON_DEADLINE,
    ) -> None:
        self.send(cancel=execution_pb2.Cancel(execution_id=execution_id, reason=reason))

    def end(self, status: grpc.StatusCode = grpc.StatusCode.OK, details: str = "", reason: str = "") -> None:
        """Ends the stream from the sidecar's side."""
        self.status, self.details, self.reason = status, details, reason
        self.outgoing.put_nowait(None)


Report = completion_pb2.ReportCompletionRequest
Answer = Callable[[Report, Any], Awaitable[Optional[completion_pb2.ReportCompletionResponse]]]


def recorded(request: Report) -> completion_pb2.ReportCompletionResponse:
    """What the sidecar answers when all is well."""
    return completion_pb2.ReportCompletionResponse(
        records=[
            completion_pb2.CompletionRecord(
                execution_id=result.execution_id, status=completion_pb2.COMPLETION_STATUS_RECORDED
            )
            for result in request.results
        ]
    )


class FakeSidecar(ParticipantServiceServicer, JobServiceServicer):
    """The participant and the job service. A test takes its streams and reports from queues."""

    def __init__(self) -> None:
        self._streams: asyncio.Queue[Stream] = asyncio.Queue()
        self._reports: asyncio.Queue[Report] = asyncio.Queue()
        self._acknowledgements: asyncio.Queue[assignment_pb2.AcknowledgeAssignmentRequest] = asyncio.Queue()
        self._listener_reports: asyncio.Queue[listener_pb2.ReportListenerRequest] = asyncio.Queue()
        self._drains: asyncio.Queue[attach_pb2.DrainAttachmentRequest] = asyncio.Queue()
        #: Whether it then says that no execution follows.
        self.announces_drains = True
        #: Whether it knows the call; older sidecars do not.
        self.knows_drains = True
        #: The attachments that have left.
        self.detached: list[attach_pb2.DetachRequest] = []
        self._progress: asyncio.Queue[progress_pb2.ReportProgressRequest] = asyncio.Queue()
        #: How reports of progress are answered, one after the other; then well.
        self.progress_answers: list[progress_pb2.ReportProgressResponse | tuple[grpc.StatusCode, str]] = []
        #: How long instances stay without their streams, in seconds, as the streams from now on are told.
        self.grace = 0.0
        #: How often applications without a shared clock ask for the lease, in seconds, as the streams from now on are
        #: told. Zero: they are told nothing.
        self.renewal = 0.0
        #: How that is answered: for so many seconds in this state, or how it fails.
        self.renewed: tuple[float | None, SessionState] | grpc.StatusCode = grpc.StatusCode.UNIMPLEMENTED
        #: The requests for a lease, and how long the client would wait for each answer, in seconds.
        self.renewals: asyncio.Queue[tuple[lease_pb2.RenewLeaseRequest, float]] = asyncio.Queue()
        self._count = 0
        self._attached: dict[str, Stream] = {}
        #: Decides how a report is answered; None from it: as usual.
        self.answer: Answer | None = None
        #: How a trigger is answered: the instances, or the status and its text.
        self.trigger_answer: job_service_pb2.TriggerJobResponse | tuple[Any, ...] = job_service_pb2.TriggerJobResponse()
        #: The jobs that were triggered.
        self.triggered: list[str] = []
        #: The items and the parameter of the last of them; ``None``: it had no parameter.
        self.triggered_items: tuple[list[int], str | None] = ([], None)
        #: The authorization of the last call of each method.
        self.tokens: dict[str, str | None] = {}
        self.target = ""
        self._server: grpc.aio.Server | None = None

    async def start(self, address: str = "127.0.0.1:0") -> None:
        server = grpc.aio.server(
            options=[("grpc.http2.min_ping_interval_without_data_ms", 100), ("grpc.so_reuseport", 0)]
        )
        add_ParticipantServiceServicer_to_server(self, server)
        add_JobServiceServicer_to_server(self, server)
        port = server.add_insecure_port(address)
        await server.start()
        self._server = server
        self.target = address if address.startswith("unix:") else f"http://127.0.0.1:{port}"

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.stop(None)
            self._server = None

    async def stream(self, items: list[int] | None = None) -> Stream:
        """Waits for the next attachment, and registers it with an assignment."""
        stream = await self.request()
        stream.attach()
        stream.assign(list(range(6)) if items is None else items)
        return stream

    async def request(self) -> Stream:
        """Waits for the next attachment, and leaves it unanswered."""
        return await soon(self._streams.get())

    async def report(self) -> Report:
        return await soon(self._reports.get())

    async def result(self) -> completion_pb2.ExecutionResult:
        """Waits for a report of one result."""
        report = await self.report()
        assert len(report.results) == 1, report
        return report.results[0]

    async def acknowledgement(self) -> assignment_pb2.AcknowledgeAssignmentRequest:
        return await soon(self._acknowledgements.get())

    async def drain(self) -> attach_pb2.DrainAttachmentRequest:
        """Waits until an application announces that it stops."""
        return await soon(self._drains.get())

    async def progress(self) -> progress_pb2.ReportProgressRequest:
        return await soon(self._progress.get())

    async def listener_report(self) -> listener_pb2.ReportListenerRequest:
        return await soon(self._listener_reports.get())

    def no_listener_report(self) -> bool:
        return self._listener_reports.empty()

    def no_report(self) -> bool:
        return self._reports.empty()

    def no_acknowledgement(self) -> bool:
        return self._acknowledgements.empty()

    async def Attach(  # noqa: N802
        self, request: attach_pb2.AttachRequest, context: Any
    ) -> AsyncIterator[attach_pb2.AttachResponse]:
        self._note("Attach", context)
        self._count += 1
        stream = Stream(self._count, request, self.grace, self.renewal)
        self._attached[stream.attachment_id] = stream
        self._streams.put_nowait(stream)
        try:
            while True:
                event = await stream.outgoing.get()
                if event is None:
                    break
                yield event
            if stream.status is not grpc.StatusCode.OK:
                metadata = error_details(("sidekeeper", stream.reason)) if stream.reason else ()
                await context.abort(stream.status, stream.details, metadata)
        finally:
            stream.closed.set()

    async def ReportCompletion(  # noqa: N802
        self, request: Report, context: Any
    ) -> completion_pb2.ReportCompletionResponse:
        self._note("ReportCompletion", context)
        self._reports.put_nowait(request)
        answer = await self.answer(request, context) if self.answer else None
        return answer or recorded(request)

    async def AcknowledgeAssignment(  # noqa: N802
        self, request: assignment_pb2.AcknowledgeAssignmentRequest, context: Any
    ) -> assignment_pb2.AcknowledgeAssignmentResponse:
        self._note("AcknowledgeAssignment", context)
        self._acknowledgements.put_nowait(request)
        return assignment_pb2.AcknowledgeAssignmentResponse()

    async def TriggerJob(  # noqa: N802
        self, request: job_service_pb2.TriggerJobRequest, context: Any
    ) -> job_service_pb2.TriggerJobResponse:
        self._note("TriggerJob", context)
        self.triggered.append(request.job_name)
        parameter = request.parameter if request.HasField("parameter") else None
        self.triggered_items = (list(request.items), parameter)
        if isinstance(self.trigger_answer, tuple):
            await context.abort(*self.trigger_answer)
        assert not isinstance(self.trigger_answer, tuple)
        return self.trigger_answer

    async def DrainAttachment(  # noqa: N802
        self, request: attach_pb2.DrainAttachmentRequest, context: Any
    ) -> attach_pb2.DrainAttachmentResponse:
        if not self.knows_drains:
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, "an older sidecar")
        self._drains.put_nowait(request)
        if self.announces_drains:
            self._attached[request.attachment_id].send(draining=attach_pb2.Draining())
        return attach_pb2.DrainAttachmentResponse()

    async def Detach(  # noqa: N802
        self, request: attach_pb2.DetachRequest, context: Any
    ) -> attach_pb2.DetachResponse:
        self.detached.append(request)
        return attach_pb2.DetachResponse()

    async def RenewLease(  # noqa: N802
        self, request: lease_pb2.RenewLeaseRequest, context: Any
    ) -> lease_pb2.RenewLeaseResponse:
        self.renewals.put_nowait((request, context.time_remaining()))
        if isinstance(self.renewed, grpc.StatusCode):
            await context.abort(self.renewed, "as the test says")
        assert not isinstance(self.renewed, grpc.StatusCode)
        remaining, state = self.renewed
        return lease_pb2.RenewLeaseResponse(
            state=lease_pb2.SessionState.Value(f"SESSION_STATE_{state.name}"),
            remaining_lease=None if remaining is None else seconds(remaining),
        )

    async def asked(self, times: int) -> None:
        """Waits until the lease has been asked for so many times more."""
        for _ in range(times):
            await soon(self.renewals.get())

    async def ReportProgress(  # noqa: N802
        self, request: progress_pb2.ReportProgressRequest, context: Any
    ) -> progress_pb2.ReportProgressResponse:
        self._progress.put_nowait(request)
        answer = self.progress_answers.pop(0) if self.progress_answers else progress_pb2.ReportProgressResponse()
        if isinstance(answer, tuple):
            await context.abort(*answer)
        assert not isinstance(answer, tuple)
        return answer

    def _note(self, method: str, context: Any) -> None:
        metadata = dict(context.invocation_metadata())
        self.tokens[method] = metadata.get("authorization")

    async def CancelExecutions(  # noqa: N802
        self, request: job_service_pb2.CancelExecutionsRequest, context: Any
    ) -> job_service_pb2.CancelExecutionsResponse:
        return job_service_pb2.CancelExecutionsResponse()

    async def ListJobs(  # noqa: N802
        self, request: job_service_pb2.ListJobsRequest, context: Any
    ) -> job_service_pb2.ListJobsResponse:
        return job_service_pb2.ListJobsResponse()

    async def WatchJobs(  # noqa: N802
        self, request: job_service_pb2.WatchJobsRequest, context: Any
    ) -> AsyncIterator[job_service_pb2.WatchJobsResponse]:
        yield job_service_pb2.WatchJobsResponse(synced=job_service_pb2.JobsSynced())

    async def ListServers(  # noqa: N802
        self, request: job_service_pb2.ListServersRequest, context: Any
    ) -> job_service_pb2.ListServersResponse:
        return job_service_pb2.ListServersResponse()

    async def GetJob(  # noqa: N802
        self, request: job_service_pb2.GetJobRequest, context: Any
    ) -> job_service_pb2.GetJobResponse:
        return job_service_pb2.GetJobResponse()

    async def UpdateJob(  # noqa: N802
        self, request: job_service_pb2.UpdateJobRequest, context: Any
    ) -> job_service_pb2.UpdateJobResponse:
        return job_service_pb2.UpdateJobResponse()

    async def RemoveJob(  # noqa: N802
        self, request: job_service_pb2.RemoveJobRequest, context: Any
    ) -> job_service_pb2.RemoveJobResponse:
        return job_service_pb2.RemoveJobResponse()

    async def ListTriggers(  # noqa: N802
        self, request: job_service_pb2.ListTriggersRequest, context: Any
    ) -> job_service_pb2.ListTriggersResponse:
        return job_service_pb2.ListTriggersResponse()

    async def StopInstances(  # noqa: N802
        self, request: job_service_pb2.StopInstancesRequest, context: Any
    ) -> job_service_pb2.StopInstancesResponse:
        return job_service_pb2.StopInstancesResponse()

    async def RemoveServers(  # noqa: N802
        self, request: job_service_pb2.RemoveServersRequest, context: Any
    ) -> job_service_pb2.RemoveServersResponse:
        return job_service_pb2.RemoveServersResponse()

    async def DisableItems(  # noqa: N802
        self, request: job_service_pb2.DisableItemsRequest, context: Any
    ) -> job_service_pb2.DisableItemsResponse:
        return job_service_pb2.DisableItemsResponse()

    async def EnableItems(  # noqa: N802
        self, request: job_service_pb2.EnableItemsRequest, context: Any
    ) -> job_service_pb2.EnableItemsResponse:
        return job_service_pb2.EnableItemsResponse()

    async def DisableServers(  # noqa: N802
        self, request: job_service_pb2.DisableServersRequest, context: Any
    ) -> job_service_pb2.DisableServersResponse:
        return job_service_pb2.DisableServersResponse()

    async def EnableServers(  # noqa: N802
        self, request: job_service_pb2.EnableServersRequest, context: Any
    ) -> job_service_pb2.EnableServersResponse:
        return job_service_pb2.EnableServersResponse()

    async def ReportListener(  # noqa: N802
        self, request: listener_pb2.ReportListenerRequest, context: Any
    ) -> listener_pb2.ReportListenerResponse:
        self._listener_reports.put_nowait(request)
        return listener_pb2.ReportListenerResponse(in_time=True)


@contextlib.asynccontextmanager
async def serving(app: sidekeeper.Application) -> AsyncIterator[asyncio.Task[None]]:
    """Runs an application beside the test, and ends it."""
    task = asyncio.get_running_loop().create_task(app.serve())
    try:
        yield task
    finally:
        app.stop(immediately=True)
        await asyncio.wait({task}, timeout=PATIENCE)
        assert task.done()


__all__ = ["FakeSidecar", "Report", "Stream", "error_details", "job_pb2", "recorded", "seconds", "serving", "soon"]
