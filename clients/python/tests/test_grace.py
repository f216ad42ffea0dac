"""Streams that break while handlers run, in jobs that have a grace."""

from __future__ import annotations

import asyncio
import threading

import grpc
import pytest

import sidekeeper
from sidekeeper._proto.v1 import attach_pb2, completion_pb2, execution_pb2, lease_pb2
from tests.sidecar import FakeSidecar, Stream, seconds, serving, soon

#: Longer than any test.
HOUR = 3600.0


class Handlers:
    """Handlers that run until the test releases them, and their results."""

    def __init__(self, sidecar: FakeSidecar, grace: float, instance_name: str = "", concurrency: int = 8) -> None:
        self.loop = asyncio.get_running_loop()
        self.started: asyncio.Queue[sidekeeper.Execution] = asyncio.Queue()
        self.cancelled: asyncio.Queue[sidekeeper.Execution] = asyncio.Queue()
        self.assignments: asyncio.Queue[sidekeeper.Assignment] = asyncio.Queue()
        self.release = threading.Event()
        sidecar.grace = grace
        self.app = sidekeeper.Application(sidecar.target)
        job = self.app.job("orderSync", sharding_total_count=6, instance_name=instance_name, concurrency=concurrency)
        job(self.handler)
        self.app.on_assignment("orderSync")(self.assigned)

    def handler(self, execution: sidekeeper.Execution) -> None:
        self.loop.call_soon_threadsafe(self.started.put_nowait, execution)
        while not self.release.wait(0.005):
            if execution.cancelled:
                self.loop.call_soon_threadsafe(self.cancelled.put_nowait, execution)
                execution.raise_if_cancelled()

    async def assigned(self, assignment: sidekeeper.Assignment) -> None:
        self.assignments.put_nowait(assignment)


async def broken(stream: Stream) -> None:
    stream.end(grpc.StatusCode.UNAVAILABLE, "broken")
    await soon(stream.closed.wait())


async def test_a_handler_goes_on_and_its_result_is_reported_to_the_next_stream(sidecar: FakeSidecar) -> None:
    handlers = Handlers(sidecar, HOUR)
    async with serving(handlers.app):
        first = await sidecar.stream()
        execution_id = first.execute(2)
        execution = await soon(handlers.started.get())
        await broken(first)
        second = await sidecar.request()
        assert second.request.application_id == first.request.application_id
        second.attach((execution_id,))
        second.assign([2])
        second.execute(2, execution_id=execution_id, resumed=True)
        # A cancel that follows reaches the handler, so the stream has been read that far.
        assert not execution.cancelled
        handlers.release.set()
        report = await sidecar.report()
    assert report.attachment_id == second.attachment_id
    assert [(one.execution_id, one.outcome) for one in report.results] == [
        (execution_id, completion_pb2.EXECUTION_OUTCOME_SUCCESS)
    ]
    assert handlers.started.empty()
    assert handlers.cancelled.empty()


@pytest.mark.parametrize("for_good", [False, True])
async def test_a_stopping_client_says_whether_its_name_comes_back(sidecar: FakeSidecar, for_good: bool) -> None:
    handlers = Handlers(sidecar, HOUR, instance_name="worker-0")
    async with serving(handlers.app) as task:
        stream = await sidecar.stream()
        await soon(handlers.assignments.get())
        handlers.app.stop(for_good=for_good)
        await soon(task)
    assert stream.request.instance_name == "worker-0"
    assert [(one.attachment_id, one.for_good) for one in sidecar.detached] == [(stream.attachment_id, for_good)]


async def test_a_result_of_the_meantime_is_reported_to_the_next_stream(sidecar: FakeSidecar) -> None:
    handlers = Handlers(sidecar, HOUR)
    answering = asyncio.Event()

    async def never(request: object, context: object) -> None:
        answering.set()
        await asyncio.Event().wait()

    async with serving(handlers.app):
        first = await sidecar.stream()
        reported, running = first.execute(2), first.execute(3)
        for _ in range(2):
            await soon(handlers.started.get())
        sidecar.answer = never
        handlers.release.set()
        await soon(answering.wait())  # the answer to the report is lost with the stream
        await broken(first)
        sidecar.answer = None
        while not sidecar.no_report():
            await sidecar.report()
        second = await sidecar.request()
        second.attach((reported, running))
        second.assign([2, 3])
        for item, execution_id in ((2, reported), (3, running)):
            second.execute(item, execution_id=execution_id, resumed=True)
        results: set[str] = set()
        while len(results) < 2:
            report = await sidecar.report()
            assert report.attachment_id == second.attachment_id
            results |= {result.execution_id for result in report.results}
    assert results == {reported, running}
    assert handlers.started.empty()


async def test_the_next_stream_reports_open_executions(sidecar: FakeSidecar) -> None:
    handlers = Handlers(sidecar, HOUR)
    answering = asyncio.Event()

    async def never(request: object, context: object) -> None:
        answering.set()
        await asyncio.Event().wait()

    async with serving(handlers.app):
        first = await sidecar.stream()
        assert not first.request.open_executions
        deadline = execution_pb2.Execute().deadline
        deadline.FromMilliseconds(4_000_000_000_123)
        source = execution_pb2.EXECUTION_SOURCE_FAILOVER
        running = first.execute(2, fencing_token=77, attempt=3, deadline=deadline, source=source)
        lost, stopped = first.execute(3), first.execute(4)
        for _ in range(3):
            await soon(handlers.started.get())
        sidecar.answer = never
        first.cancel(lost, execution_pb2.CANCEL_REASON_LEASE_LOST)
        first.cancel(stopped, execution_pb2.CANCEL_REASON_OPERATOR)
        for _ in range(2):
            await soon(handlers.cancelled.get())
        await soon(answering.wait())  # what they have come to is lost with the stream
        await broken(first)
        sidecar.answer = None
        second = await sidecar.request()
        told = {one.execution_id: one for one in second.request.open_executions}
        assert set(told) == {running, stopped}
        scheduled = told[stopped].scheduled_time
        assert told[running] == attach_pb2.OpenExecution(
            execution_id=running,
            fencing_token=77,
            scheduled_time=scheduled,
            source=source,
            attempt=3,
            deadline=deadline,
        )
        assert scheduled.ToSeconds() == 1_700_000_000
        assert told[stopped].cancel_reason == execution_pb2.CANCEL_REASON_OPERATOR
        second.attach((running, stopped))
        handlers.release.set()


async def test_what_was_stopped_because_the_lease_is_over_is_not_claimed(sidecar: FakeSidecar) -> None:
    handlers = Handlers(sidecar, HOUR)
    async with serving(handlers.app):
        first = await sidecar.stream()
        message = lease_pb2.SessionChanged(state=lease_pb2.SESSION_STATE_CONNECTED)
        message.remaining_lease.FromMilliseconds(500)
        first.send(session_changed=message)
        first.execute(2)
        await soon(handlers.started.get())
        address = sidecar.target.removeprefix("http://")
        await sidecar.stop()
        await soon(handlers.cancelled.get())
        await sidecar.start(address)
        second = await sidecar.request()
        assert not second.request.open_executions
        second.attach()


async def test_an_execution_of_another_process_is_executed(sidecar: FakeSidecar) -> None:
    handlers = Handlers(sidecar, HOUR)
    handlers.release.set()
    async with serving(handlers.app):
        stream = await sidecar.request()
        stream.attach(("of-another-1",))
        stream.assign([4])
        stream.execute(4, execution_id="of-another-1", resumed=True)
        assert (await soon(handlers.started.get())).execution_id == "of-another-1"
        assert (await sidecar.result()).execution_id == "of-another-1"


async def test_executions_that_the_next_stream_does_not_have_are_cancelled(sidecar: FakeSidecar) -> None:
    handlers = Handlers(sidecar, HOUR)
    async with serving(handlers.app):
        first = await sidecar.stream()
        execution_id = first.execute(2)
        await soon(handlers.started.get())
        await broken(first)
        await sidecar.stream()  # a sidecar that was started again knows of nothing
        cancelled = await soon(handlers.cancelled.get())
        assert cancelled.execution_id == execution_id
        assert cancelled.cancel_reason is sidekeeper.CancelReason.DETACHED
    assert sidecar.no_report()


async def test_all_executions_are_cancelled_when_the_reattach_grace_ends(sidecar: FakeSidecar) -> None:
    handlers = Handlers(sidecar, 0.3)
    async with serving(handlers.app):
        first = await sidecar.stream()
        first.execute(2)
        await soon(handlers.started.get())
        assert (await soon(handlers.assignments.get())).items
        await broken(first)
        assert handlers.cancelled.empty()
        await soon(handlers.cancelled.get())
        assert (await soon(handlers.assignments.get())).reason is sidekeeper.AssignmentReason.DETACHED


async def test_a_stream_that_comes_after_the_grace_gets_what_was_interrupted_and_what_has_not_begun(
    sidecar: FakeSidecar,
) -> None:
    handlers = Handlers(sidecar, 0.3, concurrency=1)
    async with serving(handlers.app):
        first = await sidecar.stream()
        running, waiting = first.execute(2), first.execute(3)
        await soon(handlers.started.get())
        await broken(first)
        second = await sidecar.request()
        await soon(handlers.cancelled.get())
        second.attach((running, waiting))
        second.assign([2, 3])
        for item, execution_id in ((2, running), (3, waiting)):
            second.execute(item, execution_id=execution_id, resumed=True)
        result = await sidecar.result()
        assert (result.execution_id, result.outcome) == (running, completion_pb2.EXECUTION_OUTCOME_INTERRUPTED)
        assert (await soon(handlers.started.get())).execution_id == waiting
        handlers.release.set()
        result = await sidecar.result()
        assert (result.execution_id, result.outcome) == (waiting, completion_pb2.EXECUTION_OUTCOME_SUCCESS)


@pytest.mark.parametrize("status", [grpc.StatusCode.OK, grpc.StatusCode.DEADLINE_EXCEEDED])
async def test_a_stream_that_was_ended_leaves_nothing_to_go_on_with(
    sidecar: FakeSidecar, status: grpc.StatusCode
) -> None:
    handlers = Handlers(sidecar, HOUR)
    async with serving(handlers.app):
        first = await sidecar.stream()
        first.execute(2)
        await soon(handlers.started.get())
        first.end(status)
        await soon(handlers.cancelled.get())


@pytest.mark.parametrize("grace", [HOUR, 0.0])
async def test_an_application_that_stops_says_so_if_it_would_be_waited_for(sidecar: FakeSidecar, grace: float) -> None:
    handlers = Handlers(sidecar, grace)
    async with serving(handlers.app) as task:
        first = await sidecar.stream()
        await soon(handlers.assignments.get())
        handlers.app.stop()
        await soon(task)
    assert [one.attachment_id for one in sidecar.detached] == ([first.attachment_id] if grace else [])


async def test_the_grace_is_what_the_sidecar_says_and_not_the_property(sidecar: FakeSidecar) -> None:
    app = sidekeeper.Application(sidecar.target)
    app.job("orderSync", sharding_total_count=6, props={"sidekeeper.grace": "1h"})(lambda execution: None)
    async with serving(app) as task:
        stream = await sidecar.stream()
        assert stream.request.configuration.props["sidekeeper.grace"] == "1h"
        await sidecar.acknowledgement()
        app.stop()
        await soon(task)
    assert sidecar.detached == []


@pytest.mark.parametrize(("before", "after"), [(0.0, HOUR), (HOUR, 0.0)])
async def test_a_grace_that_changes_counts_from_then_on(sidecar: FakeSidecar, before: float, after: float) -> None:
    handlers = Handlers(sidecar, before)
    changes: asyncio.Queue[sidekeeper.JobChange] = asyncio.Queue()

    async def changed(change: sidekeeper.JobChange) -> None:
        changes.put_nowait(change)

    handlers.app.on_job_changed("orderSync")(changed)
    async with serving(handlers.app) as task:
        stream = await sidecar.stream()
        stream.send(job_changed=attach_pb2.JobChanged(grace=seconds(after) if after else None))
        await soon(changes.get())
        handlers.app.stop()
        await soon(task)
    assert [one.attachment_id for one in sidecar.detached] == ([stream.attachment_id] if after else [])
