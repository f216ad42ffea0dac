"""A sidecar that is stopped cannot say that its session is lost (P2, P4)."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from datetime import timedelta

import grpc
import pytest

import sidekeeper
from sidekeeper import CancelReason, SessionState
from sidekeeper._proto.v1 import attach_pb2, completion_pb2, execution_pb2, lease_pb2
from sidekeeper.lease import Lease, boottime_clock, remaining_lease
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
) -> lease_pb2.SessionChanged:
    """The session's state, and that it may be acted on for so many seconds; and that ``left`` is left by the clock."""
    message = lease_pb2.SessionChanged(state=lease_pb2.SessionState.Value(f"SESSION_STATE_{state.name}"))
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


class Busy:
    """An application that executes two items until they are cancelled; further items succeed."""

    def __init__(self, sidecar: FakeSidecar) -> None:
        self.app = sidekeeper.Application(sidecar.target)
        self.begun = threading.Barrier(3)
        self.app.job("orderSync", sharding_total_count=6, concurrency=2)(self.handler)

    def handler(self, execution: sidekeeper.Execution) -> None:
        if execution.item < 2:
            self.begun.wait(PATIENCE)
            assert execution.cancelled.wait(PATIENCE)
            execution.raise_if_cancelled()

    async def fill(self, stream: Stream) -> set[str]:
        """Has two items executed."""
        ids = {stream.execute(0), stream.execute(1)}
        await asyncio.get_running_loop().run_in_executor(None, self.begun.wait, PATIENCE)
        return ids


async def results_of(sidecar: FakeSidecar, number: int) -> dict[str, tuple[int, str]]:
    """The next results, by execution: outcome and message."""
    results: dict[str, tuple[int, str]] = {}
    while len(results) < number:
        report = await sidecar.report()
        results.update({one.execution_id: (one.outcome, one.failure_message) for one in report.results})
    return results


@pytest.mark.parametrize(
    ("level", "outcome"),
    [(1, completion_pb2.EXECUTION_OUTCOME_FAILURE), (2, completion_pb2.EXECUTION_OUTCOME_INTERRUPTED)],
)
async def test_running_executions_are_interrupted_when_the_sidecar_falls_silent_and_waiting_ones_wait(
    sidecar: FakeSidecar, level: int, outcome: int
) -> None:
    busy = Busy(sidecar)
    async with serving(busy.app):
        stream = await sidecar.request()
        stream.attach(api_level=level)
        stream.assign(list(range(6)))
        tell(stream, 0.5)
        told = time.monotonic()
        ids = await busy.fill(stream)
        waiting = stream.execute(2)  # finds no room
        assert await results_of(sidecar, 2) == dict.fromkeys(ids, (outcome, "cancelled: LEASE_LOST"))
        assert time.monotonic() - told > 0.4
        tell(stream, 30)
        assert (await sidecar.result()) == completion_pb2.ExecutionResult(
            execution_id=waiting, outcome=completion_pb2.EXECUTION_OUTCOME_SUCCESS
        )


async def test_a_waiting_execution_is_not_begun_if_the_session_was_lost_in_the_silence(sidecar: FakeSidecar) -> None:
    busy = Busy(sidecar)
    async with serving(busy.app):
        stream = await sidecar.stream()
        tell(stream, 0.5)
        await busy.fill(stream)
        waiting = stream.execute(2)
        await results_of(sidecar, 2)
        stream.cancel(waiting, execution_pb2.CANCEL_REASON_LEASE_LOST)
        interrupted = (completion_pb2.EXECUTION_OUTCOME_INTERRUPTED, "cancelled before it began: LEASE_LOST")
        assert await results_of(sidecar, 1) == {waiting: interrupted}


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
    connected = asyncio.Event()

    async def session(change: sidekeeper.SessionChange) -> None:
        states.append(change.state)
        if change.state is SessionState.CONNECTED:
            connected.set()

    app.on_session("orderSync")(session)

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
        # The executions do not wait for this callback, nor does the end of the application.
        await soon(connected.wait())
    assert states == [SessionState.SILENT, SessionState.CONNECTED]


@shared_clock
async def test_an_execution_that_waits_for_a_lease_is_left_when_the_application_stops(sidecar: FakeSidecar) -> None:
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
        stream.execute(0)
        # A client that gets this has read the execution.
        stream.send(leadership_changed=attach_pb2.LeadershipChanged(leader=True))
        assert [await soon(told.get()), await soon(told.get())] == [SessionState.SILENT, True]
        app.stop()
        await soon(stream.closed.wait())
    assert begun == []
    assert sidecar.no_report()


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


class Watched:
    """An application that reports each notice of the session, and whose handler goes on until the test releases it."""

    def __init__(self, sidecar: FakeSidecar) -> None:
        self.app = sidekeeper.Application(sidecar.target)
        self.told: asyncio.Queue[object] = asyncio.Queue()
        self.begun: asyncio.Queue[int] = asyncio.Queue()
        self.release = asyncio.Event()
        self.app.job("orderSync", sharding_total_count=6)(self.handler)
        self.app.on_session("orderSync")(self.session)
        self.app.on_leadership("orderSync")(self.leadership)

    async def handler(self, execution: sidekeeper.Execution) -> None:
        self.begun.put_nowait(execution.item)
        await self.release.wait()

    async def session(self, change: sidekeeper.SessionChange) -> None:
        self.told.put_nowait(change.state)

    async def leadership(self, change: sidekeeper.Leadership) -> None:
        self.told.put_nowait(change.leader)

    async def next(self) -> object:
        return await soon(self.told.get())


async def test_a_client_without_the_sidecars_clock_asks_for_the_lease_and_uses_the_answer(sidecar: FakeSidecar) -> None:
    watched = Watched(sidecar)
    sidecar.renewal, sidecar.renewed = 0.1, (30.0, SessionState.CONNECTED)
    async with serving(watched.app):
        stream = await sidecar.stream()
        tell(stream, 0.3)
        execution_id = stream.execute(0)
        request, waits = await soon(sidecar.renewals.get())
        assert request.attachment_id == stream.attachment_id
        assert waits < 0.2  # 0.1 s, which gRPC may round up on the way
        await sidecar.asked(4)  # by then what the stream has said would be over
        # Nor does the stream take back what was answered.
        tell(stream, 0.001)
        stream.send(leadership_changed=attach_pb2.LeadershipChanged(leader=True))
        assert await watched.next() is True
        await sidecar.asked(1)
        watched.release.set()
        result = await sidecar.result()
    assert (result.execution_id, result.failure_message) == (execution_id, "")
    assert watched.told.empty()


@pytest.mark.parametrize("silence", [grpc.StatusCode.UNAVAILABLE, (0.0, SessionState.LOST)])
async def test_without_answers_the_lease_ends_and_only_an_answer_gives_it_back(
    sidecar: FakeSidecar, silence: grpc.StatusCode | tuple[float, SessionState]
) -> None:
    watched = Watched(sidecar)
    lost: asyncio.Queue[sidekeeper.ItemsChange] = asyncio.Queue()
    assigned: asyncio.Queue[sidekeeper.ItemsChange] = asyncio.Queue()
    watched.app.on_lost("orderSync")(lost.put)
    watched.app.on_assigned("orderSync")(assigned.put)
    sidecar.renewal, sidecar.renewed = 0.1, (0.5, SessionState.CONNECTED)
    async with serving(watched.app):
        stream = await sidecar.stream([0, 1])
        await soon(assigned.get())
        tell(stream, 30)
        stream.execute(0)
        assert await soon(watched.begun.get()) == 0
        await sidecar.asked(2)  # so the first answer was read
        sidecar.renewed = silence
        assert "LEASE_LOST" in (await sidecar.result()).failure_message
        assert await watched.next() is SessionState.SILENT
        assert [one.item for one in (await soon(lost.get())).items] == [0, 1]
        # The client cannot know how long this has waited.
        tell(stream, 30)
        execution_id = stream.execute(1)
        stream.send(leadership_changed=attach_pb2.LeadershipChanged(leader=True))
        assert await watched.next() is True
        assert watched.begun.empty()
        assert assigned.empty()
        sidecar.renewed = (30.0, SessionState.CONNECTED)
        assert await watched.next() is SessionState.CONNECTED
        assert [one.item for one in (await soon(assigned.get())).items] == [0, 1]
        assert await soon(watched.begun.get()) == 1
        watched.release.set()
        assert (await sidecar.result()).execution_id == execution_id


@pytest.mark.parametrize("answer", [grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.NOT_FOUND])
async def test_a_sidecar_that_cannot_answer_is_asked_once(sidecar: FakeSidecar, answer: grpc.StatusCode) -> None:
    watched = Watched(sidecar)
    sidecar.renewal, sidecar.renewed = 0.1, answer
    async with serving(watched.app):
        stream = await sidecar.stream()
        tell(stream, 30)
        stream.execute(0)
        assert await soon(watched.begun.get()) == 0
        await sidecar.asked(1)
        tell(stream, 0.4)  # what the stream says counts
        assert "LEASE_LOST" in (await sidecar.result()).failure_message
        assert await watched.next() is SessionState.SILENT
        tell(stream, 30)
        assert await watched.next() is SessionState.CONNECTED
    assert sidecar.renewals.empty()


@shared_clock
async def test_a_client_with_the_sidecars_clock_does_not_ask(sidecar: FakeSidecar) -> None:
    watched = Watched(sidecar)
    sidecar.renewal, sidecar.renewed = 0.1, (30.0, SessionState.CONNECTED)
    async with serving(watched.app):
        stream = await sidecar.stream()
        stream.send(session_changed=lease_of(0.4, left=0.4))
        stream.execute(0)
        assert "LEASE_LOST" in (await sidecar.result()).failure_message
    assert sidecar.renewals.empty()


async def test_what_an_answer_proves(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [1000.0]
    ends: list[float] = []
    monkeypatch.setattr("sidekeeper.lease.now", lambda: clock[0])
    lease = Lease(lambda: ends.append(clock[0]))
    assert lease.told(timedelta(seconds=60), sure=False)
    # The first answer counts instead of what the stream has said, from when it was asked for.
    assert lease.proven(10.0, 995.0)
    assert lease.left() == 5.0
    # A shorter answer does not take back what a longer one has proven, nor does the stream.
    assert lease.proven(2.0, 1000.0)
    assert lease.told(timedelta(seconds=60), sure=False)
    assert lease.left() == 5.0
    assert lease.proven(8.0, 1000.0)
    assert lease.left() == 8.0
    # An answer that is read late proves nothing any more.
    clock[0] = 1009.0
    assert not lease.proven(8.0, 1000.5)
    assert ends == [1009.0]
    assert not lease.told(timedelta(seconds=60), sure=False)
    assert not lease.proven(0.0, 1009.0)
    assert ends == [1009.0]
    assert lease.proven(8.0, 1008.0)
    assert lease.left() == 7.0
    # Zero: it is over now, and is not told twice.
    assert not lease.proven(0.0, 1009.0)
    assert not lease.proven(0.0, 1009.0)
    assert ends == [1009.0, 1009.0]
    # None: there is no end. The same if the stream says so, and then it begins anew.
    assert lease.proven(None, 1009.0)
    assert lease.left() is None
    assert lease.told(None, sure=True)
    assert not lease.proven(0.0, 1009.0)
    assert lease.told(timedelta(seconds=60), sure=False)
    assert lease.left() == 60.0
    lease.close()
