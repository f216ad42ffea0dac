"""How an application stops."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import sidekeeper
from sidekeeper._proto.v1 import attach_pb2, completion_pb2, lease_pb2
from tests.sidecar import FakeSidecar, seconds, serving, soon

SUCCESS = completion_pb2.EXECUTION_OUTCOME_SUCCESS
FAILURE = completion_pb2.EXECUTION_OUTCOME_FAILURE
REJECTED = completion_pb2.EXECUTION_OUTCOME_REJECTED

APPLICATION = Path(__file__).with_name("stoppable.py")


@asynccontextmanager
async def process(sidecar: FakeSidecar) -> AsyncIterator[asyncio.subprocess.Process]:
    """Runs stoppable.py against the sidecar."""
    running = await asyncio.create_subprocess_exec(
        sys.executable,
        str(APPLICATION),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env={"SIDEKEEPER_ENDPOINT": sidecar.target, "PYTHONPATH": str(APPLICATION.parent.parent)},
    )
    try:
        yield running
    finally:
        if running.returncode is None:
            running.kill()
        await running.wait()
        running._transport.close()  # type: ignore[attr-defined]  # or 3.9 and 3.10 complain after the loop's end


async def line(running: asyncio.subprocess.Process) -> str:
    assert running.stdout is not None
    return (await soon(running.stdout.readline())).decode().strip()


async def test_after_sigterm_everything_is_executed_that_the_sidecar_has_started(sidecar: FakeSidecar) -> None:
    sidecar.announces_drains = False
    async with process(sidecar) as running:
        stream = await sidecar.stream()
        executions = [stream.execute(0), stream.execute(1)]
        assert await line(running) == "begun 0"
        running.send_signal(signal.SIGTERM)
        assert await line(running) == "SIGTERM: stopping"
        assert (await sidecar.drain()).attachment_id == stream.attachment_id
        executions.append(stream.execute(2))  # it was about to start
        stream.send(draining=attach_pb2.Draining())
        assert running.stdin is not None
        for number, execution_id in enumerate(executions):
            assert number == 0 or await line(running) == f"begun {number}"
            running.stdin.write(b"go on\n")
            result = await sidecar.result()
            assert (result.execution_id, result.outcome) == (execution_id, SUCCESS)
        await soon(stream.closed.wait())
        assert await line(running) == "returned"
        assert await soon(running.wait()) == 0


async def test_with_an_older_sidecar_executions_that_have_not_begun_are_left(sidecar: FakeSidecar) -> None:
    sidecar.knows_drains = False
    async with process(sidecar) as running:
        stream = await sidecar.stream()
        began = stream.execute(0)
        waiting = stream.execute(1)
        assert await line(running) == "begun 0"
        running.send_signal(signal.SIGTERM)
        assert await line(running) == "SIGTERM: stopping"
        _, cancelled = stream.execute(2), stream.execute(3)
        for execution_id in (waiting, cancelled):
            # A sidecar ends the stream of an application that does not answer a Cancel.
            stream.cancel(execution_id)
            result = await sidecar.result()
            text = "cancelled before it began: DEADLINE"
            assert (result.execution_id, result.outcome, result.failure_message) == (execution_id, REJECTED, text)
        assert not stream.closed.is_set()
        assert running.stdin is not None
        running.stdin.write(b"go on\n")
        result = await sidecar.result()
        assert (result.execution_id, result.outcome) == (began, SUCCESS)
        await soon(stream.closed.wait())
        assert await line(running) == "returned"
        assert await soon(running.wait()) == 0
        assert sidecar.no_report(), "an execution that has not begun is left to the next instance"


async def test_what_has_not_begun_at_the_drain_timeout_is_left(sidecar: FakeSidecar) -> None:
    app = sidekeeper.Application(sidecar.target, drain_timeout=0.2)
    begun = asyncio.Event()

    @app.job("orderSync", sharding_total_count=6, concurrency=1)
    async def handler(execution: sidekeeper.Execution) -> None:
        begun.set()
        await asyncio.Event().wait()

    async with serving(app) as running:
        stream = await sidecar.stream()
        began, _ = stream.execute(0), stream.execute(1)
        await soon(begun.wait())
        app.stop()
        result = await sidecar.result()
        told = (result.execution_id, result.outcome, result.failure_message)
        assert told == (began, FAILURE, "cancelled: DRAIN_TIMEOUT")
        await soon(running)
        assert sidecar.no_report()


async def test_a_stop_waits_no_longer_than_the_drain_timeout_for_the_sidecar(sidecar: FakeSidecar) -> None:
    sidecar.announces_drains = False
    app = sidekeeper.Application(sidecar.target, drain_timeout=0.2)
    app.job("orderSync", sharding_total_count=6)(lambda execution: None)
    async with serving(app) as running:
        stream = await sidecar.stream()
        await sidecar.acknowledgement()
        app.stop()
        await soon(running)
        await soon(stream.closed.wait())


async def test_a_stop_waits_for_a_silent_sidecar_no_longer_than_the_lease(sidecar: FakeSidecar) -> None:
    sidecar.announces_drains = False
    app = sidekeeper.Application(sidecar.target, drain_timeout=3600)
    app.job("orderSync", sharding_total_count=6)(lambda execution: None)
    async with serving(app) as running:
        stream = await sidecar.stream()
        await sidecar.acknowledgement()
        app.stop()
        await sidecar.drain()
        connected = lease_pb2.SESSION_STATE_CONNECTED
        stream.send(session_changed=lease_pb2.SessionChanged(state=connected, remaining_lease=seconds(0.2)))
        await soon(running)
        await soon(stream.closed.wait())


async def test_a_second_signal_ends_it_at_once(sidecar: FakeSidecar) -> None:
    async with process(sidecar) as running:
        stream = await sidecar.stream()
        stream.execute(0)
        assert await line(running) == "begun 0"
        running.send_signal(signal.SIGINT)
        assert await line(running) == "SIGINT: stopping"
        running.send_signal(signal.SIGTERM)
        assert await line(running) == "SIGTERM: stopping at once"
        assert await line(running) == "returned"
        assert await soon(running.wait()) == 0
        await soon(stream.closed.wait())
        assert sidecar.no_report()


async def test_after_the_drain_timeout_handlers_are_cancelled(sidecar: FakeSidecar) -> None:
    app = sidekeeper.Application(sidecar.target, drain_timeout=0)
    begun = asyncio.Event()

    @app.job("orderSync", sharding_total_count=6)
    async def handler(execution: sidekeeper.Execution) -> None:
        begun.set()
        await asyncio.Event().wait()

    async with serving(app) as running:
        stream = await sidecar.stream()
        stream.execute(0)
        await soon(begun.wait())
        app.stop()
        result = await sidecar.result()
        assert (result.outcome, result.failure_message) == (FAILURE, "cancelled: DRAIN_TIMEOUT")
        await soon(running)
        await soon(stream.closed.wait())


async def test_stop_waits_for_the_report(sidecar: FakeSidecar) -> None:
    app = sidekeeper.Application(sidecar.target)
    gate, reporting = asyncio.Event(), asyncio.Event()

    async def hold(request: object, context: object) -> None:
        reporting.set()
        await gate.wait()

    sidecar.answer = hold

    @app.job("orderSync", sharding_total_count=6)
    def handler(execution: sidekeeper.Execution) -> None:
        app.stop()  # from its thread

    async with serving(app) as running:
        stream = await sidecar.stream()
        stream.execute(0)
        await soon(reporting.wait())
        assert not stream.closed.is_set()
        gate.set()
        await soon(running)
        assert (await sidecar.result()).outcome == SUCCESS


async def test_stop_at_once_cancels_handlers(sidecar: FakeSidecar) -> None:
    app = sidekeeper.Application(sidecar.target)
    begun, cancelled = asyncio.Event(), asyncio.Event()

    @app.job("orderSync", sharding_total_count=6)
    async def handler(execution: sidekeeper.Execution) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    async with serving(app) as running:
        (await sidecar.stream()).execute(0)
        await soon(begun.wait())
        app.stop(immediately=True)
        await soon(running)
        await soon(cancelled.wait())


async def test_cancelling_serve_ends_everything(sidecar: FakeSidecar) -> None:
    app = sidekeeper.Application(sidecar.target)
    app.job("orderSync", sharding_total_count=6)(lambda execution: None)
    async with serving(app) as running:
        stream = await sidecar.stream()
        running.cancel()
        await asyncio.wait({running})
        assert running.cancelled()
        await soon(stream.closed.wait())


async def test_stop_without_a_sidecar_and_before_the_start(tmp_path: Path) -> None:
    app = sidekeeper.Application(f"unix://{tmp_path}/nobody.sock")
    app.job("orderSync", sharding_total_count=6)(lambda execution: None)
    app.stop()
    await soon(app.serve())
    running = asyncio.get_running_loop().create_task(app.serve())
    await asyncio.sleep(0)
    app.stop()
    await soon(running)
