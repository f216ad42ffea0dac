"""How results reach the sidecar."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import grpc
import pytest

import sidekeeper
from sidekeeper._proto.v1 import completion_pb2
from tests.sidecar import FakeSidecar, Report, recorded, serving, soon


def application(sidecar: FakeSidecar) -> sidekeeper.Application:
    app = sidekeeper.Application(sidecar.target)

    @app.job("orderSync", sharding_total_count=6)
    async def handler(execution: sidekeeper.Execution) -> None: ...

    return app


async def test_one_report_in_flight_and_the_rest_in_the_next(sidecar: FakeSidecar) -> None:
    gate = asyncio.Event()

    async def hold(request: Report, context: Any) -> None:
        await gate.wait()

    sidecar.answer = hold
    async with serving(application(sidecar)):
        stream = await sidecar.stream()
        first = stream.execute(0)
        report = await sidecar.report()
        assert [result.execution_id for result in report.results] == [first]
        rest = [stream.execute(item) for item in (1, 2, 3)]
        # The acknowledgement of a later assignment is the proof that the executions before it have been begun; each
        # of them ends in the same turn of the loop.
        await sidecar.acknowledgement()
        stream.assign([], generation=2)
        await sidecar.acknowledgement()
        assert sidecar.no_report()
        gate.set()
        report = await sidecar.report()
        assert [result.execution_id for result in report.results] == rest


@pytest.mark.parametrize("code", [grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED])
async def test_a_report_is_repeated_with_the_same_content(sidecar: FakeSidecar, code: grpc.StatusCode) -> None:
    failures = 2

    async def fail(request: Report, context: Any) -> None:
        nonlocal failures
        if failures:
            failures -= 1
            await context.abort(code, "not now")

    sidecar.answer = fail
    async with serving(application(sidecar)):
        stream = await sidecar.stream()
        stream.execute(0)
        reports = [await sidecar.report() for _ in range(3)]
        assert reports[0] == reports[1] == reports[2]
        following = stream.execute(1)
        assert (await sidecar.result()).execution_id == following


async def test_one_refused_result_does_not_take_others_with_it(
    sidecar: FakeSidecar, caplog: pytest.LogCaptureFixture
) -> None:
    gate = asyncio.Event()
    refused = ""

    async def refuse(request: Report, context: Any) -> None:
        await gate.wait()
        if any(result.execution_id == refused for result in request.results):
            await context.abort(grpc.StatusCode.NOT_FOUND, "no such execution")

    sidecar.answer = refuse
    async with serving(application(sidecar)):
        stream = await sidecar.stream()
        stream.execute(0)
        await sidecar.report()  # held, so that the next three travel together
        ids = [stream.execute(item) for item in (1, 2, 3)]
        refused = ids[1]
        await sidecar.acknowledgement()
        stream.assign([], generation=2)
        await sidecar.acknowledgement()
        gate.set()
        together = await sidecar.report()
        assert [result.execution_id for result in together.results] == ids
        alone = [await sidecar.result() for _ in ids]
        assert [result.execution_id for result in alone] == ids
        last = stream.execute(4)
        assert (await sidecar.result()).execution_id == last
    dropped = [record for record in caplog.records if "result dropped: NOT_FOUND" in record.getMessage()]
    assert [record.__dict__["execution_id"] for record in dropped] == [refused]
    assert dropped[0].__dict__["job"] == "orderSync"
    assert dropped[0].__dict__["item"] == 2


async def test_a_lost_lease_is_logged(sidecar: FakeSidecar, caplog: pytest.LogCaptureFixture) -> None:
    async def lost(request: Report, context: Any) -> completion_pb2.ReportCompletionResponse:
        answer = recorded(request)
        answer.records[0].status = completion_pb2.COMPLETION_STATUS_LEASE_LOST
        return answer

    sidecar.answer = lost
    with caplog.at_level(logging.WARNING, "sidekeeper"):
        async with serving(application(sidecar)):
            stream = await sidecar.stream()
            stream.execute(0)
            await sidecar.report()
            stream.execute(1)  # its report follows the answer to the first one
            await sidecar.report()
    assert any("the lease was lost" in record.getMessage() for record in caplog.records)


async def test_an_answer_behind_the_end_of_the_stream_counts(
    sidecar: FakeSidecar, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "sidekeeper")

    async def end_first(request: Report, context: Any) -> None:
        stream.end()
        await stream.closed.wait()
        await asyncio.sleep(0.05)  # the client reads the end first

    sidecar.answer = end_first
    async with serving(application(sidecar)):
        stream = await sidecar.stream()
        stream.execute(0)
        await sidecar.request()  # it attaches again
    messages = [record.getMessage() for record in caplog.records]
    assert "result recorded" in messages
    assert not [message for message in messages if "dropped" in message]


async def test_a_detached_execution_is_not_reported_to_the_next_attachment(sidecar: FakeSidecar) -> None:
    app = sidekeeper.Application(sidecar.target)
    begun: asyncio.Queue[sidekeeper.Execution] = asyncio.Queue()
    gate = asyncio.Event()

    @app.job("orderSync", sharding_total_count=6)
    async def handler(execution: sidekeeper.Execution) -> None:
        begun.put_nowait(execution)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await gate.wait()
            raise

    async with serving(app):
        first = await sidecar.stream()
        first.execute(0)
        execution = await soon(begun.get())
        first.end(grpc.StatusCode.RESOURCE_EXHAUSTED, "too slow")
        second = await sidecar.stream()
        assert second.request.application_id == first.request.application_id
        assert execution.cancel_reason is sidekeeper.CancelReason.DETACHED
        # The old handler of item 0 has not ended: the new one does not begin, but other items do.
        again = second.execute(0)
        second.execute(1)
        assert (await soon(begun.get())).item == 1
        assert begun.empty()
        gate.set()
        assert (await soon(begun.get())).execution_id == again
        assert sidecar.no_report()
        second.cancel(again)
        report = await sidecar.report()
        assert report.attachment_id == second.attachment_id
        assert [result.execution_id for result in report.results] == [again]


async def test_results_travel_together_while_more_are_to_be_expected(
    sidecar: FakeSidecar, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sidekeeper.reporter.GATHERING", 0.5)
    app = sidekeeper.Application(sidecar.target)
    release = asyncio.Event()

    @app.job("orderSync", sharding_total_count=6)
    async def handler(execution: sidekeeper.Execution) -> None:
        if execution.item == 5:
            await release.wait()

    async with serving(app):
        stream = await sidecar.stream()
        stream.execute(5)
        others = [stream.execute(item) for item in (0, 1)]
        report = await sidecar.report()
        assert [result.execution_id for result in report.results] == others
        # The last report waits for no other.
        monkeypatch.setattr("sidekeeper.reporter.GATHERING", 3600)
        release.set()
        assert (await sidecar.result()).outcome == completion_pb2.EXECUTION_OUTCOME_SUCCESS


async def test_many_results_wait_for_no_more(sidecar: FakeSidecar, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sidekeeper.reporter.GATHERING", 3600)
    monkeypatch.setattr("sidekeeper.reporter.GATHERED", 1)
    app = sidekeeper.Application(sidecar.target)
    release = asyncio.Event()

    @app.job("orderSync", sharding_total_count=6)
    async def handler(execution: sidekeeper.Execution) -> None:
        if execution.item == 5:
            await release.wait()

    async with serving(app):
        stream = await sidecar.stream()
        stream.execute(5)
        first = stream.execute(0)
        assert (await sidecar.result()).execution_id == first
        release.set()
        await sidecar.result()
