"""From an Execute to its reported result."""

from __future__ import annotations

import asyncio
import functools
import threading
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

import sidekeeper
from sidekeeper._proto.v1 import completion_pb2, execution_pb2
from tests.sidecar import FakeSidecar, serving, soon

SUCCESS = completion_pb2.EXECUTION_OUTCOME_SUCCESS
FAILURE = completion_pb2.EXECUTION_OUTCOME_FAILURE
INTERRUPTED = completion_pb2.EXECUTION_OUTCOME_INTERRUPTED
REJECTED = completion_pb2.EXECUTION_OUTCOME_REJECTED


async def test_the_attachment_names_the_client_and_its_jobs(sidecar: FakeSidecar) -> None:
    app = sidekeeper.Application(sidecar.target)

    @app.job(
        "orderSync",
        sharding_total_count=6,
        cron="0/2 * * * * ?",
        sharding_item_parameters={1: "Shanghai", 0: "Beijing"},
        max_time_diff=timedelta(seconds=3),
        reconcile_interval=timedelta(minutes=1),
        failover=True,
        misfire=False,
        props={"sidekeeper.handoff": "drained"},
    )
    def handler(execution: sidekeeper.Execution) -> None: ...

    app.job("byName")(handler)
    async with serving(app):
        streams = [await sidecar.stream(), await sidecar.stream()]
        by_name = {stream.request.job_name: stream.request for stream in streams}
    request = by_name["orderSync"]
    configuration = request.configuration
    assert configuration.sharding_total_count == 6
    assert configuration.cron == "0/2 * * * * ?"
    assert configuration.sharding_item_parameters == "0=Beijing,1=Shanghai"
    assert configuration.max_time_diff.seconds == 3
    assert configuration.reconcile_interval.seconds == 60
    assert configuration.failover
    assert configuration.HasField("misfire")
    assert not configuration.misfire
    assert not configuration.HasField("monitor_execution")
    assert dict(configuration.props) == {"sidekeeper.handoff": "drained"}
    assert request.client == f"sidekeeper-python/{sidekeeper.__version__}"
    assert not by_name["byName"].HasField("configuration")
    assert request.application_id == by_name["byName"].application_id
    assert len(request.application_id) == 32


async def test_a_function_runs_on_a_thread_and_gets_everything(sidecar: FakeSidecar) -> None:
    app = sidekeeper.Application(sidecar.target)
    seen: list[tuple[sidekeeper.Execution, str]] = []

    @app.job("orderSync", sharding_total_count=6)
    def handler(execution: sidekeeper.Execution) -> None:
        seen.append((execution, threading.current_thread().name))

    async with serving(app):
        stream = await sidecar.stream()
        execution_id = stream.execute(
            3,
            item_parameter="Shenzhen",
            job_parameter="all",
            task_id="orderSync@-@3@-@READY@-@10.0.0.1@-@1",
            source=execution_pb2.EXECUTION_SOURCE_FAILOVER,
            fencing_token=4711,
            lock_token=815,
            traceparent="00-1-2-01",
            tracestate="a=b",
        )
        report = await sidecar.report()
    assert report.attachment_id == stream.attachment_id
    assert [(result.execution_id, result.outcome) for result in report.results] == [(execution_id, SUCCESS)]
    execution, thread = seen[0]
    assert thread == "sidekeeper-orderSync-3"
    assert execution == sidekeeper.Execution(
        job_name="orderSync",
        execution_id=execution_id,
        item=3,
        item_parameter="Shenzhen",
        job_parameter="all",
        sharding_total_count=6,
        task_id="orderSync@-@3@-@READY@-@10.0.0.1@-@1",
        source=sidekeeper.ExecutionSource.FAILOVER,
        scheduled_time=datetime(2023, 11, 14, 22, 13, 20, tzinfo=timezone.utc),
        fire_time=datetime(2023, 11, 14, 22, 13, 20, 12_000, tzinfo=timezone.utc),
        deadline=None,
        fencing_token=4711,
        lock_token=815,
        traceparent="00-1-2-01",
        tracestate="a=b",
    )
    assert execution.cancel_reason is None
    assert not execution.cancelled


async def test_a_coroutine_function_runs_on_the_loop(sidecar: FakeSidecar) -> None:
    app = sidekeeper.Application(sidecar.target)
    loops = []

    @app.job("orderSync", sharding_total_count=6)
    async def handler(execution: sidekeeper.Execution) -> None:
        loops.append(asyncio.get_running_loop())

    async with serving(app):
        stream = await sidecar.stream()
        stream.execute(0)
        assert (await sidecar.result()).outcome == SUCCESS
    assert loops == [asyncio.get_running_loop()]


class Callable:
    async def __call__(self, execution: sidekeeper.Execution) -> None:
        raise sidekeeper.Reject("seen")


async def asynchronous(argument: str, execution: sidekeeper.Execution) -> None:
    raise sidekeeper.Reject("seen")


@pytest.mark.parametrize("handler", [Callable(), functools.partial(asynchronous, "x")])
async def test_asynchronous_callables_are_recognised(sidecar: FakeSidecar, handler: Any) -> None:
    app = sidekeeper.Application(sidecar.target)
    app.job("orderSync", sharding_total_count=6)(handler)
    async with serving(app):
        (await sidecar.stream()).execute(0)
        result = await sidecar.result()
    assert (result.outcome, result.failure_message) == (REJECTED, "seen")


async def test_an_asynchronous_function_behind_a_plain_one_is_no_silent_success(sidecar: FakeSidecar) -> None:
    app = sidekeeper.Application(sidecar.target)
    app.job("orderSync", sharding_total_count=6)(lambda execution: asynchronous("x", execution))
    async with serving(app):
        (await sidecar.stream()).execute(0)
        result = await sidecar.result()
    assert result.outcome == FAILURE
    assert "awaitable" in result.failure_message


@pytest.mark.parametrize("on_loop", [False, True])
async def test_an_exception_is_a_failure_with_its_text(sidecar: FakeSidecar, on_loop: bool) -> None:
    app = sidekeeper.Application(sidecar.target)

    def fail(execution: sidekeeper.Execution) -> None:
        raise LookupError(f"no order {execution.item}")

    async def fail_on_loop(execution: sidekeeper.Execution) -> None:
        fail(execution)

    if on_loop:
        app.job("orderSync", sharding_total_count=6)(fail_on_loop)
    else:
        app.job("orderSync", sharding_total_count=6)(fail)
    async with serving(app):
        stream = await sidecar.stream()
        stream.execute(5)
        result = await sidecar.result()
        assert result.outcome == FAILURE
        assert result.failure_message.startswith("LookupError: no order 5\n")
        assert "in fail\n" in result.failure_message
        stream.execute(5)  # the item is free again
        await sidecar.result()


async def test_exit_in_a_thread_is_a_failure(sidecar: FakeSidecar) -> None:
    app = sidekeeper.Application(sidecar.target)

    @app.job("orderSync", sharding_total_count=6)
    def handler(execution: sidekeeper.Execution) -> None:
        raise SystemExit(3)

    async with serving(app):
        (await sidecar.stream()).execute(0)
        result = await sidecar.result()
    assert result.outcome == FAILURE
    assert result.failure_message.startswith("SystemExit: 3\n")


async def test_reject_is_reported_as_such(sidecar: FakeSidecar) -> None:
    app = sidekeeper.Application(sidecar.target)

    @app.job("orderSync", sharding_total_count=6)
    def handler(execution: sidekeeper.Execution) -> None:
        raise sidekeeper.Reject("no disk")

    async with serving(app):
        (await sidecar.stream()).execute(0)
        result = await sidecar.result()
    assert (result.outcome, result.failure_message) == (REJECTED, "no disk")


async def test_cancel_reaches_a_thread(sidecar: FakeSidecar) -> None:
    app = sidekeeper.Application(sidecar.target)
    begun = asyncio.Event()
    loop = asyncio.get_running_loop()

    @app.job("orderSync", sharding_total_count=6)
    def handler(execution: sidekeeper.Execution) -> None:
        execution.raise_if_cancelled()
        loop.call_soon_threadsafe(begun.set)
        assert execution.cancelled.wait(20)
        assert execution.cancelled
        assert execution.cancel_reason is sidekeeper.CancelReason.LEASE_LOST
        execution.raise_if_cancelled()

    async with serving(app):
        stream = await sidecar.stream()
        execution_id = stream.execute(0)
        await soon(begun.wait())
        stream.cancel("some other execution")
        stream.cancel(execution_id, execution_pb2.CANCEL_REASON_LEASE_LOST)
        result = await sidecar.result()
    assert (result.outcome, result.failure_message) == (INTERRUPTED, "cancelled: LEASE_LOST")


async def test_cancel_reaches_a_coroutine(sidecar: FakeSidecar) -> None:
    app = sidekeeper.Application(sidecar.target)
    begun = asyncio.Event()
    reasons: list[object] = []

    @app.job("orderSync", sharding_total_count=6)
    async def handler(execution: sidekeeper.Execution) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            reasons.append(execution.cancel_reason)
            await asyncio.sleep(0)  # cleaning up may await
            reasons.append("clean")
            raise

    async with serving(app):
        stream = await sidecar.stream()
        execution_id = stream.execute(0)
        await soon(begun.wait())
        stream.cancel(execution_id)
        stream.cancel(execution_id)
        result = await sidecar.result()
    assert (result.outcome, result.failure_message) == (FAILURE, "cancelled: DEADLINE")
    assert reasons == [sidekeeper.CancelReason.DEADLINE, "clean"]


async def test_a_handler_that_finishes_all_the_same_has_succeeded(sidecar: FakeSidecar) -> None:
    app = sidekeeper.Application(sidecar.target)

    @app.job("orderSync", sharding_total_count=6)
    def handler(execution: sidekeeper.Execution) -> None:
        assert execution.cancelled.wait(20)

    async with serving(app):
        stream = await sidecar.stream()
        stream.cancel(stream.execute(0))
        result = await sidecar.result()
    assert result.outcome in (SUCCESS, REJECTED)  # REJECTED if the cancel overtook the beginning


async def test_no_more_than_the_concurrency_and_in_order(sidecar: FakeSidecar) -> None:
    app = sidekeeper.Application(sidecar.target)
    begun: asyncio.Queue[int] = asyncio.Queue()
    gates = [asyncio.Event() for _ in range(6)]
    told = asyncio.Event()

    @app.job("orderSync", sharding_total_count=6, concurrency=2, on_leadership=lambda _: loop_set(told))
    async def handler(execution: sidekeeper.Execution) -> None:
        begun.put_nowait(execution.item)
        await gates[execution.item].wait()

    loop = asyncio.get_running_loop()

    def loop_set(event: asyncio.Event) -> None:
        loop.call_soon_threadsafe(event.set)

    async with serving(app):
        stream = await sidecar.stream()
        ids = [stream.execute(item) for item in (4, 2, 5, 1, 0)]
        stream.send(leadership_changed={"leader": True})  # what follows the executions has been seen
        await soon(told.wait())
        assert [await soon(begun.get()), await soon(begun.get())] == [4, 2]
        assert begun.empty()
        gates[2].set()
        assert (await sidecar.result()).execution_id == ids[1]
        assert await soon(begun.get()) == 5
        assert begun.empty()
        stream.cancel(ids[3])  # one that waits
        result = await sidecar.result()
        assert (result.execution_id, result.outcome) == (ids[3], REJECTED)
        assert result.failure_message == "cancelled before it began: DEADLINE"
        gates[4].set()
        await sidecar.result()
        assert await soon(begun.get()) == 0
