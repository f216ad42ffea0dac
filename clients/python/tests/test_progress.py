"""Attempts, deadlines, and how far executions are."""

from __future__ import annotations

import asyncio
from datetime import datetime, timezone

import grpc
import pytest

import sidekeeper
from sidekeeper._proto.v1 import completion_pb2, execution_pb2, progress_pb2
from tests.sidecar import FakeSidecar, serving, soon

SUCCESS = completion_pb2.EXECUTION_OUTCOME_SUCCESS
FAILURE = completion_pb2.EXECUTION_OUTCOME_FAILURE


def taken(deadline: int | None = None, told_to_stop: bool = False) -> progress_pb2.ReportProgressResponse:
    answer = progress_pb2.ReportProgressResponse(cancelled=told_to_stop, superseded=told_to_stop)
    if deadline is not None:
        answer.deadline.FromSeconds(deadline)
    return answer


def application(
    sidecar: FakeSidecar, asynchronous: bool, seen: list[object], **arguments: object
) -> sidekeeper.Application:
    """An application whose handler reports progress once, and notes what comes of it."""
    app = sidekeeper.Application(sidecar.target)
    if asynchronous:

        @app.job("orderSync", sharding_total_count=6)
        async def coroutine(execution: sidekeeper.Execution) -> None:
            try:
                seen.extend([await execution.progress_async(**arguments), execution])  # type: ignore[arg-type]
            except (sidekeeper.ProgressError, ValueError) as error:
                seen.append(error)

    else:

        @app.job("orderSync", sharding_total_count=6)
        def function(execution: sidekeeper.Execution) -> None:
            try:
                seen.extend([execution.progress(**arguments), execution])  # type: ignore[arg-type]
            except (sidekeeper.ProgressError, ValueError) as error:
                seen.append(error)

    return app


async def test_the_handler_gets_attempt_checkpoint_and_deadline(sidecar: FakeSidecar) -> None:
    app = sidekeeper.Application(sidecar.target)
    seen: list[sidekeeper.Execution] = []
    app.job("orderSync", sharding_total_count=6)(seen.append)
    async with serving(app):
        stream = await sidecar.stream()
        execute = execution_pb2.Execute(attempt=3, checkpoint=b"")
        execute.deadline.FromSeconds(1_700_000_060)
        stream.execute(0, attempt=3, checkpoint=b"", deadline=execute.deadline)
        await sidecar.report()
        stream.execute(1)
        await sidecar.report()
    assert (seen[0].attempt, seen[0].checkpoint) == (3, b"")
    assert seen[0].deadline == datetime(2023, 11, 14, 22, 14, 20, tzinfo=timezone.utc)
    assert (seen[1].attempt, seen[1].checkpoint, seen[1].deadline) == (1, None, None)


@pytest.mark.parametrize("asynchronous", [False, True])
async def test_progress_is_reported_and_moves_the_deadline(sidecar: FakeSidecar, asynchronous: bool) -> None:
    seen: list[object] = []
    app = application(sidecar, asynchronous, seen, checkpoint=b"row 7")
    sidecar.progress_answers = [taken(deadline=1_700_000_060)]
    async with serving(app):
        stream = await sidecar.stream()
        execution_id = stream.execute(0)
        report = await sidecar.progress()
        assert (await sidecar.result()).outcome == SUCCESS
    assert (report.attachment_id, report.execution_id) == (stream.attachment_id, execution_id)
    assert (report.checkpoint, report.extend_deadline) == (b"row 7", True)
    progress, execution = seen
    assert isinstance(execution, sidekeeper.Execution)
    deadline = datetime(2023, 11, 14, 22, 14, 20, tzinfo=timezone.utc)
    assert progress == sidekeeper.Progress(deadline=deadline, cancelled=False, superseded=False)
    assert execution.deadline == deadline


@pytest.mark.parametrize("asynchronous", [False, True])
async def test_the_handler_gets_the_sidecars_answer(sidecar: FakeSidecar, asynchronous: bool) -> None:
    seen: list[object] = []
    app = application(sidecar, asynchronous, seen, extend_deadline=False)
    sidecar.progress_answers = [taken(told_to_stop=True)]
    async with serving(app):
        stream = await sidecar.stream()
        stream.execute(0)
        report = await sidecar.progress()
        await sidecar.report()
    assert not report.extend_deadline
    assert not report.HasField("checkpoint")
    assert seen[0] == sidekeeper.Progress(deadline=None, cancelled=True, superseded=True)


@pytest.mark.parametrize("asynchronous", [False, True])
async def test_progress_waits_for_an_unavailable_registry(sidecar: FakeSidecar, asynchronous: bool) -> None:
    seen: list[object] = []
    app = application(sidecar, asynchronous, seen, checkpoint=b"x")
    sidecar.progress_answers = [(grpc.StatusCode.UNAVAILABLE, "away"), taken()]
    async with serving(app):
        stream = await sidecar.stream()
        stream.execute(0)
        first, second = await sidecar.progress(), await sidecar.progress()
        await sidecar.report()
    assert first == second
    assert isinstance(seen[0], sidekeeper.Progress)


@pytest.mark.parametrize("asynchronous", [False, True])
async def test_an_execution_that_is_over_is_an_error(sidecar: FakeSidecar, asynchronous: bool) -> None:
    seen: list[object] = []
    app = application(sidecar, asynchronous, seen)
    sidecar.progress_answers = [(grpc.StatusCode.FAILED_PRECONDITION, "it is over")]
    async with serving(app):
        stream = await sidecar.stream()
        execution_id = stream.execute(0)
        await sidecar.report()
    (error,) = seen
    assert isinstance(error, sidekeeper.ProgressError)
    assert (error.execution_id, error.code, error.details) == (execution_id, "FAILED_PRECONDITION", "it is over")


@pytest.mark.parametrize("asynchronous", [False, True])
async def test_a_checkpoint_that_is_too_large_is_not_sent(sidecar: FakeSidecar, asynchronous: bool) -> None:
    seen: list[object] = []
    app = application(sidecar, asynchronous, seen, checkpoint=bytes(65_537))
    async with serving(app):
        stream = await sidecar.stream()
        stream.execute(0)
        await sidecar.report()
    assert isinstance(seen[0], ValueError)
    assert "65537 bytes, at most 65536" in str(seen[0])


async def test_blocking_the_loop_is_refused(sidecar: FakeSidecar) -> None:
    app = sidekeeper.Application(sidecar.target)

    @app.job("orderSync", sharding_total_count=6)
    async def handler(execution: sidekeeper.Execution) -> None:
        execution.progress()

    async with serving(app):
        stream = await sidecar.stream()
        stream.execute(0)
        result = await sidecar.result()
    assert result.outcome == FAILURE
    assert "progress_async" in result.failure_message


async def test_without_its_stream_an_execution_reports_nothing(sidecar: FakeSidecar) -> None:
    app = sidekeeper.Application(sidecar.target)
    seen: asyncio.Queue[str] = asyncio.Queue()
    loop = asyncio.get_running_loop()

    @app.job("orderSync", sharding_total_count=6)
    def handler(execution: sidekeeper.Execution) -> None:
        execution.cancelled.wait(20)
        try:
            execution.progress(b"late")
        except sidekeeper.ProgressError as error:
            loop.call_soon_threadsafe(seen.put_nowait, error.code)

    async with serving(app):
        stream = await sidecar.stream()
        stream.execute(0)
        stream.end(grpc.StatusCode.DEADLINE_EXCEEDED, "not reported in time")
        assert await soon(seen.get()) == "ABORTED"
        # The application comes back: that end is no reason to stay away.
        await sidecar.stream()


async def test_an_execution_of_no_sidecar_says_so() -> None:
    execution = sidekeeper.Execution(
        job_name="orderSync",
        execution_id="x-1",
        item=0,
        item_parameter=None,
        job_parameter="",
        sharding_total_count=1,
        task_id="",
        source=sidekeeper.ExecutionSource.SCHEDULE,
        scheduled_time=datetime.now(timezone.utc),
        fire_time=datetime.now(timezone.utc),
        deadline=None,
        fencing_token=1,
        traceparent="",
        tracestate="",
    )
    with pytest.raises(sidekeeper.ProgressError, match="did not come from a sidecar"):
        execution.progress()
