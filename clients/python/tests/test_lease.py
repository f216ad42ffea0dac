"""A sidecar that is stopped cannot say that its session is lost (P2, P4)."""

from __future__ import annotations

import asyncio
import threading
import time

import sidekeeper
from sidekeeper import CancelReason, SessionState
from sidekeeper._proto.v1 import participant_service_pb2 as service_pb2
from tests.sidecar import PATIENCE, FakeSidecar, Stream, serving, soon


def tell(stream: Stream, lease: float | None, state: SessionState = SessionState.CONNECTED) -> None:
    """Tells the session's state, and that it may be acted on for so many seconds."""
    message = service_pb2.SessionChanged(state=service_pb2.SessionState.Value(f"SESSION_STATE_{state.name}"))
    if lease is not None:
        message.remaining_lease.FromMilliseconds(int(lease * 1000))
    stream.send(session_changed=message)


async def test_a_function_is_told_to_stop_when_the_sidecar_falls_silent(sidecar: FakeSidecar) -> None:
    app = sidekeeper.Application(sidecar.target)
    begun = threading.Barrier(3)

    @app.job("orderSync", sharding_total_count=6, concurrency=2)
    def handler(execution: sidekeeper.Execution) -> None:
        begun.wait(PATIENCE)
        assert execution.cancelled.wait(PATIENCE)
        execution.raise_if_cancelled()

    async with serving(app):
        stream = await sidecar.stream()
        tell(stream, 0.5)
        told = time.monotonic()
        ids = {stream.execute(0), stream.execute(1)}
        await asyncio.get_running_loop().run_in_executor(None, begun.wait, PATIENCE)
        waiting = stream.execute(2)  # finds no room, and does not begin any more
        results: dict[str, str] = {}
        while len(results) < 3:
            report = await sidecar.report()
            results.update({result.execution_id: result.failure_message for result in report.results})
        assert time.monotonic() - told > 0.4
    assert set(results) == ids | {waiting}
    assert all("LEASE_LOST" in message for message in results.values()), results


async def test_a_coroutine_is_cancelled_and_all_goes_on_when_the_sidecar_is_back(sidecar: FakeSidecar) -> None:
    app = sidekeeper.Application(sidecar.target)
    begun: asyncio.Queue[int] = asyncio.Queue()
    reasons: asyncio.Queue[CancelReason | None] = asyncio.Queue()
    states: asyncio.Queue[SessionState] = asyncio.Queue()

    async def note(change: sidekeeper.SessionChange) -> None:
        states.put_nowait(change.state)

    app.on_session("orderSync")(note)

    @app.job("orderSync", sharding_total_count=6)
    async def handler(execution: sidekeeper.Execution) -> None:
        begun.put_nowait(execution.item)
        if execution.item == 0:
            try:
                await asyncio.sleep(PATIENCE)
            finally:
                reasons.put_nowait(execution.cancel_reason)

    async with serving(app):
        stream = await sidecar.stream()
        tell(stream, 0.3)
        execution_id = stream.execute(0)
        assert await soon(begun.get()) == 0
        assert await soon(reasons.get()) is CancelReason.LEASE_LOST
        assert (await sidecar.result()).execution_id == execution_id
        assert await soon(states.get()) is SessionState.SILENT
        # The sidecar is back, in the same session or in another one.
        tell(stream, 30)
        assert await soon(states.get()) is SessionState.CONNECTED
        execution_id = stream.execute(1)
        assert await soon(begun.get()) == 1
        assert (await sidecar.result()).execution_id == execution_id
        assert not stream.closed.is_set()


async def test_a_lease_that_is_renewed_or_not_known_ends_nothing(sidecar: FakeSidecar) -> None:
    app = sidekeeper.Application(sidecar.target)
    states: list[SessionState] = []
    app.on_session("orderSync")(lambda change: states.append(change.state))
    go_on = threading.Event()

    @app.job("orderSync", sharding_total_count=6)
    def handler(execution: sidekeeper.Execution) -> None:
        assert go_on.wait(PATIENCE)
        execution.raise_if_cancelled()

    async with serving(app):
        stream = await sidecar.stream()
        execution_id = stream.execute(0)
        for _ in range(5):
            tell(stream, 1.0)
            await asyncio.sleep(0.3)
        tell(stream, 0.3, SessionState.SUSPENDED)
        tell(stream, None)
        await asyncio.sleep(0.6)
        go_on.set()
        result = await sidecar.result()
    assert (result.execution_id, result.failure_message) == (execution_id, "")
    # What only renews the lease is no change.
    assert states == [SessionState.SUSPENDED, SessionState.CONNECTED]
