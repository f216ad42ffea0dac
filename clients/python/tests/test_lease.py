"""A sidecar that is stopped cannot say that its session is lost (P2, P4)."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from datetime import timedelta

import pytest

import sidekeeper
from sidekeeper import CancelReason, SessionState
from sidekeeper._proto.v1 import execution_pb2
from sidekeeper._proto.v1 import participant_service_pb2 as service_pb2
from sidekeeper.lease import boottime_clock, remaining_lease
from tests.sidecar import PATIENCE, FakeSidecar, Stream, serving, soon

#: What the clock is that other processes on the machine read, too. None: there is none here.
CLOCK = boottime_clock()

#: On Linux there is one, and a client that does not read it fails these tests.
shared_clock = pytest.mark.skipif(sys.platform != "linux", reason="processes share no such clock on this system")


def lease_of(
    lease: float | None,
    state: SessionState = SessionState.CONNECTED,
    *,
    left: float | None = None,
    clock: str | None = CLOCK,
) -> service_pb2.SessionChanged:
    """The session's state, and that it may be acted on for so many seconds; and that ``left`` is left by the clock."""
    message = service_pb2.SessionChanged(state=service_pb2.SessionState.Value(f"SESSION_STATE_{state.name}"))
    if lease is not None:
        message.remaining_lease.FromMilliseconds(int(lease * 1000))
    if left is not None:
        assert clock is not None
        message.lease_end_boottime_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME) + int(left * 1e9)
        message.boottime_clock = clock
    return message


def tell(stream: Stream, lease: float | None, state: SessionState = SessionState.CONNECTED) -> None:
    """Tells the session's state, and that it may be acted on for so many seconds."""
    stream.send(session_changed=lease_of(lease, state))


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


@shared_clock
@pytest.mark.parametrize("on_loop", [False, True], ids=["threads", "asyncio"])
async def test_a_lease_that_was_over_before_it_was_read_is_over_at_once(sidecar: FakeSidecar, on_loop: bool) -> None:
    app = sidekeeper.Application(sidecar.target)
    events: list[object] = []
    states: list[SessionState] = []
    app.on_session("orderSync")(lambda change: states.append(change.state))

    async def assigned(change: sidekeeper.ItemsChange) -> None:
        await asyncio.sleep(0.05)  # what is executed waits for this
        events.append("assigned")

    app.on_assigned("orderSync")(assigned)
    app.on_lost("orderSync")(lambda change: events.append("lost"))

    def on_thread(execution: sidekeeper.Execution) -> None:
        events.append(execution.item)

    async def on_the_loop(execution: sidekeeper.Execution) -> None:
        events.append(execution.item)

    app.job("orderSync", sharding_total_count=6)(on_the_loop if on_loop else on_thread)
    async with serving(app):
        stream = await sidecar.stream()
        # What waits for an application that was stopped. It begins nothing of that, and does not answer it.
        executions = []
        for item in range(3):
            stream.send(session_changed=lease_of(30, left=-0.001))
            executions.append(stream.execute(item))
        stream.cancel(executions[0], execution_pb2.CANCEL_REASON_LEASE_LOST)
        result = await sidecar.result()
        assert result.execution_id == executions[0]
        assert result.failure_message == "cancelled before it began: LEASE_LOST"
        assert states == [SessionState.SILENT]
        assert events == ["assigned", "lost"]
        # The sidecar lives, and the others are still to be executed.
        stream.send(session_changed=lease_of(30, left=30))
        late: dict[str, str] = {}
        while len(late) < 2:
            late.update({one.execution_id: one.failure_message for one in (await sidecar.report()).results})
        assert late == dict.fromkeys(executions[1:], "")
        assert events[2:] in (["assigned", 1, 2], ["assigned", 2, 1])
    assert states == [SessionState.SILENT, SessionState.CONNECTED]


@shared_clock
async def test_what_waits_for_word_is_rejected_when_the_application_stops(sidecar: FakeSidecar) -> None:
    app = sidekeeper.Application(sidecar.target)
    begun: list[int] = []
    told: asyncio.Queue[object] = asyncio.Queue()

    async def note(change: sidekeeper.SessionChange | sidekeeper.Leadership) -> None:
        told.put_nowait(change.state if isinstance(change, sidekeeper.SessionChange) else change.leader)

    app.on_session("orderSync")(note)
    app.on_leadership("orderSync")(note)
    app.job("orderSync", sharding_total_count=6)(lambda execution: begun.append(execution.item))
    async with serving(app):
        stream = await sidecar.stream()
        stream.send(session_changed=lease_of(30, left=-0.001))
        execution_id = stream.execute(0)
        # Who is told this has read the execution: of one that it has not read it would report nothing.
        stream.send(leadership_changed=service_pb2.LeadershipChanged(leader=True))
        assert [await soon(told.get()), await soon(told.get())] == [SessionState.SILENT, True]
        app.stop()
        result = await sidecar.result()
        assert (result.execution_id, result.outcome) == (execution_id, execution_pb2.EXECUTION_OUTCOME_REJECTED)
    assert begun == []


@shared_clock
async def test_what_is_executed_stops_when_an_old_word_is_read(sidecar: FakeSidecar) -> None:
    app = sidekeeper.Application(sidecar.target)
    begun = threading.Event()

    @app.job("orderSync", sharding_total_count=6)
    def handler(execution: sidekeeper.Execution) -> None:
        begun.set()
        assert execution.cancelled.wait(PATIENCE)
        execution.raise_if_cancelled()

    async with serving(app):
        stream = await sidecar.stream()
        stream.send(session_changed=lease_of(30, left=30))
        stream.execute(0)
        assert await asyncio.get_running_loop().run_in_executor(None, begun.wait, PATIENCE)
        stream.send(session_changed=lease_of(30, left=-0.001))
        assert (await sidecar.result()).failure_message == "cancelled: LEASE_LOST"


@shared_clock
def test_a_lease_is_never_longer_than_either_way_to_count_it() -> None:
    remaining = remaining_lease(lease_of(30, left=5))
    assert remaining is not None
    assert timedelta(seconds=4) < remaining <= timedelta(seconds=5)
    assert remaining_lease(lease_of(5, left=3600)) == timedelta(seconds=5)
    assert remaining_lease(lease_of(30, left=-1)) == timedelta(0)


@shared_clock
def test_a_lease_is_counted_from_when_it_is_read_if_its_end_is_not_known() -> None:
    assert remaining_lease(lease_of(30)) == timedelta(seconds=30)
    assert CLOCK is not None
    boot, _, namespace = CLOCK.partition("/")
    for other in (f"{boot}/time:[1]", f"00000000-0000-0000-0000-000000000000/{namespace}", ""):
        assert remaining_lease(lease_of(30, left=-1, clock=other)) == timedelta(seconds=30)
    assert remaining_lease(lease_of(None, left=-1)) is None


def test_without_a_clock_that_is_shared_a_lease_is_counted_from_when_it_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    message = lease_of(30)
    message.lease_end_boottime_ns = 1
    monkeypatch.setattr("sidekeeper.lease.boottime_clock", lambda: None)
    assert remaining_lease(message) == timedelta(seconds=30)
    monkeypatch.setattr("sidekeeper.lease._BOOTTIME", None)
    assert remaining_lease(message) == timedelta(seconds=30)
