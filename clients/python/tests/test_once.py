"""The callbacks that act once for the whole job."""

from __future__ import annotations

import asyncio
import threading
from datetime import datetime, timezone

import sidekeeper
from sidekeeper._proto.v1 import listener_pb2
from tests.sidecar import FakeSidecar, Stream, serving, soon


def ignore(execution: sidekeeper.Execution) -> None: ...


def before_first(stream: Stream, call_id: str) -> None:
    message = listener_pb2.BeforeFirst(call_id=call_id, job_name="orderSync")
    message.scheduled_time.FromSeconds(1_700_000_000)
    message.deadline.FromSeconds(1_700_000_050)
    stream.send(before_first=message)


async def test_a_coroutine_function_is_called_and_its_success_reported(sidecar: FakeSidecar) -> None:
    app = sidekeeper.Application(sidecar.target)
    app.job("orderSync", sharding_total_count=6)(ignore)
    rounds: asyncio.Queue[sidekeeper.Round] = asyncio.Queue()
    may_return = asyncio.Event()

    @app.on_before_first("orderSync")
    async def open_books(one: sidekeeper.Round) -> None:
        rounds.put_nowait(one)
        await may_return.wait()

    async with serving(app):
        stream = await sidecar.stream([0])
        await sidecar.acknowledgement()
        before_first(stream, "call-1")
        # Nothing is reported before the callback has returned, and executions wait for it as well.
        stream.execute(0)
        called_with = await soon(rounds.get())
        assert sidecar.no_listener_report()
        assert sidecar.no_report()
        may_return.set()
        report = await sidecar.listener_report()
        assert (report.attachment_id, report.call_id) == (stream.attachment_id, "call-1")
        assert (report.outcome, report.failure_message) == (listener_pb2.LISTENER_OUTCOME_SUCCESS, "")
        await sidecar.result()
    assert called_with == sidekeeper.Round(
        job_name="orderSync",
        instance_id=stream.instance_id,
        scheduled_time=datetime(2023, 11, 14, 22, 13, 20, tzinfo=timezone.utc),
        deadline=datetime(2023, 11, 14, 22, 14, 10, tzinfo=timezone.utc),
    )


async def test_a_function_runs_on_a_thread_and_its_failure_is_reported(sidecar: FakeSidecar) -> None:
    app = sidekeeper.Application(sidecar.target)
    threads: list[threading.Thread] = []

    def close_books(one: sidekeeper.Round) -> None:
        threads.append(threading.current_thread())
        raise ValueError(f"no books of {one.job_name}: " + "x" * 20_000)

    app.job("orderSync", sharding_total_count=6, on_after_last=close_books)(ignore)
    async with serving(app):
        stream = await sidecar.stream([0])
        stream.send(after_last=listener_pb2.AfterLast(call_id="call-2", job_name="orderSync"))
        report = await sidecar.listener_report()
        assert (report.call_id, report.outcome) == ("call-2", listener_pb2.LISTENER_OUTCOME_FAILURE)
        assert report.failure_message.startswith("ValueError: no books of orderSync: xxx")
        assert len(report.failure_message) == 16 * 1024
        # A failure ends nothing: the next call is answered as well.
        before_first(stream, "call-3")
        assert (await sidecar.listener_report()).call_id == "call-3"
    assert threads != [threading.main_thread()]


async def test_a_call_without_a_callback_has_succeeded(sidecar: FakeSidecar) -> None:
    app = sidekeeper.Application(sidecar.target)
    app.job("orderSync", sharding_total_count=6)(ignore)
    async with serving(app):
        stream = await sidecar.stream([0])
        before_first(stream, "call-1")
        report = await soon(sidecar.listener_report())
        assert report.outcome == listener_pb2.LISTENER_OUTCOME_SUCCESS
