"""The connection that all locks, campaigns and observations of a process share."""

from __future__ import annotations

import asyncio
import os
import queue
import socket
import subprocess
import sys
import threading
from collections.abc import Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest

import sidekeeper
from sidekeeper import connection
from sidekeeper._proto.v1 import election_service_pb2, lock_service_pb2
from sidekeeper._proto.v1.election_service_pb2_grpc import (
    ElectionServiceServicer,
    add_ElectionServiceServicer_to_server,
)
from sidekeeper._proto.v1.lock_service_pb2_grpc import LockServiceServicer, add_LockServiceServicer_to_server
from sidekeeper.channel import open_blocking_channel
from sidekeeper.fake_call import LEASE, lease_of
from sidekeeper.reason import details_of
from tests.test_lock import eventually

PATIENCE = 20.0


def on_a_loop(work: Coroutine[Any, Any, None]) -> None:
    """Runs it on an event loop of its own, and on a thread of its own.

    `asyncio.run` takes the loop of its thread away, and the loop that pytest-asyncio has made for this thread would
    never be closed.
    """
    with ThreadPoolExecutor(1) as thread:
        thread.submit(asyncio.run, work).result(PATIENCE)


class Hub(LockServiceServicer, ElectionServiceServicer):
    """A sidecar that grants everything at once, and notes on which connection it was asked."""

    def __init__(self) -> None:
        #: The client's address of each call, which is another one for each connection.
        self.peers: list[str] = []
        #: How the next calls of ``Hold`` and ``Observe`` fail, before they are answered.
        self.failures: queue.SimpleQueue[tuple[grpc.StatusCode, str]] = queue.SimpleQueue()
        #: Ends the streams of all holds, as a sidecar does that is killed.
        self.broken = threading.Event()
        self._released: dict[str, threading.Event] = {}
        self._count = 0

    def _called(self, context: Any) -> None:
        self.peers.append(context.peer())

    def _fail(self, context: Any) -> None:
        if not self.failures.empty():
            code, reason = self.failures.get()
            context.set_trailing_metadata((details_of(reason),) if reason else ())
            context.abort(code, "the test wants it")

    def _wait(self, name: str, context: Any) -> None:
        ended = self._released[name]
        context.add_callback(ended.set)
        while not ended.wait(0.01):
            if self.broken.is_set():
                context.abort(grpc.StatusCode.UNAVAILABLE, "the test has broken the stream")

    def _begin(self, context: Any) -> str:
        self._called(context)
        self._fail(context)
        self._count += 1
        name = str(self._count)
        self._released[name] = threading.Event()
        return name

    def Hold(self, request: Any, context: Any) -> Iterator[lock_service_pb2.HoldResponse]:  # noqa: N802
        name = self._begin(context)
        yield lock_service_pb2.HoldResponse(started=lock_service_pb2.HoldStarted(hold_id=name))
        acquired = lock_service_pb2.LockAcquired(fencing_token=1, lease=lease_of(LEASE))
        yield lock_service_pb2.HoldResponse(acquired=acquired)
        self._wait(name, context)

    def Release(self, request: Any, context: Any) -> lock_service_pb2.ReleaseResponse:  # noqa: N802
        self._called(context)
        self._released[request.hold_id].set()
        return lock_service_pb2.ReleaseResponse()

    def Campaign(self, request: Any, context: Any) -> Iterator[election_service_pb2.CampaignResponse]:  # noqa: N802
        name = self._begin(context)
        started = election_service_pb2.CampaignStarted(campaign_id=name)
        yield election_service_pb2.CampaignResponse(started=started)
        leading = election_service_pb2.Leading(term=1, lease=lease_of(LEASE))
        yield election_service_pb2.CampaignResponse(leading=leading)
        self._wait(name, context)

    def Resign(self, request: Any, context: Any) -> election_service_pb2.ResignResponse:  # noqa: N802
        self._called(context)
        self._released[request.campaign_id].set()
        return election_service_pb2.ResignResponse()

    def Observe(self, request: Any, context: Any) -> Iterator[election_service_pb2.ObserveResponse]:  # noqa: N802
        self._called(context)
        self._fail(context)
        return iter([election_service_pb2.ObserveResponse()])


class Serving:
    """The hub at an address, where it can be started again."""

    def __init__(self) -> None:
        self.hub = Hub()  # type: ignore[abstract]  # the other methods answer UNIMPLEMENTED
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.endpoint = f"127.0.0.1:{free.getsockname()[1]}"
        self.start()

    def start(self) -> None:
        self._pool = ThreadPoolExecutor(64)
        self._server = grpc.server(self._pool)
        add_LockServiceServicer_to_server(self.hub, self._server)
        add_ElectionServiceServicer_to_server(self.hub, self._server)
        assert self._server.add_insecure_port(self.endpoint)
        self._server.start()

    def stop(self) -> None:
        self._server.stop(0).wait(PATIENCE)
        self._pool.shutdown()

    def lock(self, name: str = "bill") -> sidekeeper.Lock:
        return sidekeeper.lock(name, endpoint=self.endpoint)

    def first_leader(self) -> sidekeeper.Leader | None:
        return next(iter(sidekeeper.observe_leader("chief", endpoint=self.endpoint)))


@pytest.fixture
def sidecar() -> Iterator[Serving]:
    serving = Serving()
    yield serving
    serving.stop()


def test_all_threads_share_one_connection(sidecar: Serving) -> None:
    def use(number: int) -> None:
        for _ in range(3):
            with sidecar.lock(f"bill-{number}"):
                assert sidecar.first_leader() is None
            with sidekeeper.leader(f"chief-{number}", endpoint=sidecar.endpoint):
                pass

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(use, range(8)))
    assert len(sidecar.hub.peers) == 8 * 3 * 5
    assert len(set(sidecar.hub.peers)) == 1


def test_each_event_loop_has_its_connection(sidecar: Serving) -> None:
    async def use(number: int) -> None:
        async with sidecar.lock(f"bill-{number}"):
            async for leader in sidekeeper.observe_leader("chief", endpoint=sidecar.endpoint):
                assert leader is None
                break
        async with sidekeeper.leader(f"chief-{number}", endpoint=sidecar.endpoint):
            pass

    async def work() -> None:
        await asyncio.gather(*(use(number) for number in range(8)))
        await use(9)

    on_a_loop(work())
    assert len(sidecar.hub.peers) == 9 * 5
    assert len(set(sidecar.hub.peers)) == 1
    on_a_loop(use(1))
    assert len(set(sidecar.hub.peers)) == 2
    loops = [loop for _, loop in connection._pool._all if loop is not None]
    assert len(loops) == 1, "the connections of loops that have ended are kept"


def test_a_sidecar_that_was_restarted_is_reached_at_once(sidecar: Serving) -> None:
    async def use() -> None:
        async with sidecar.lock():
            pass
        for _ in range(3):
            await asyncio.to_thread(sidecar.stop)
            sidecar.start()
            async with sidecar.lock():
                with sidecar.lock():
                    pass

    with sidecar.lock():
        pass
    on_a_loop(use())
    assert len(set(sidecar.hub.peers)) == 8


def test_a_connection_that_breaks_before_the_answer_is_replaced(sidecar: Serving) -> None:
    async def use() -> None:
        async with sidecar.lock():
            pass
        sidecar.hub.failures.put((grpc.StatusCode.UNAVAILABLE, ""))
        async with sidecar.lock():
            pass
        sidecar.hub.failures.put((grpc.StatusCode.UNAVAILABLE, ""))
        async for leader in sidekeeper.observe_leader("chief", endpoint=sidecar.endpoint):
            assert leader is None
            break

    with sidecar.lock():
        pass
    sidecar.hub.failures.put((grpc.StatusCode.UNAVAILABLE, ""))
    with sidecar.lock():
        pass
    sidecar.hub.failures.put((grpc.StatusCode.UNAVAILABLE, ""))
    assert sidecar.first_leader() is None
    assert len(set(sidecar.hub.peers)) == 3
    on_a_loop(use())
    assert len(set(sidecar.hub.peers)) == 6


@pytest.mark.parametrize(
    ("code", "reason"), [(grpc.StatusCode.UNAVAILABLE, "SIDECAR_STOPPING"), (grpc.StatusCode.FAILED_PRECONDITION, "")]
)
def test_a_refusal_of_the_sidecar_is_not_tried_again(sidecar: Serving, code: grpc.StatusCode, reason: str) -> None:
    with sidecar.lock():
        pass
    before = len(sidecar.hub.peers)
    sidecar.hub.failures.put((code, reason))
    with pytest.raises(sidekeeper.LockError) as refused:
        sidecar.lock().__enter__()
    assert (refused.value.code, refused.value.reason) == (code.name, reason)
    sidecar.hub.failures.put((code, reason))
    with pytest.raises(sidekeeper.ElectionError):
        sidecar.first_leader()
    assert len(sidecar.hub.peers) == before + 2
    assert len(set(sidecar.hub.peers)) == 1


def test_a_connection_on_which_nobody_has_answered_is_not_tried_again(sidecar: Serving) -> None:
    for _ in range(2):
        sidecar.hub.failures.put((grpc.StatusCode.UNAVAILABLE, ""))
        with pytest.raises(sidekeeper.LockError, match="no sidecar answers"):
            sidecar.lock().__enter__()
    assert len(sidecar.hub.peers) == 2


class Counted:
    """A channel that notes its end."""

    def __init__(self, *arguments: Any) -> None:
        self.channel = open_blocking_channel(*arguments)
        self.closed = 0

    def close(self) -> None:
        self.closed += 1
        self.channel.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.channel, name)


@pytest.fixture
def channels(monkeypatch: pytest.MonkeyPatch) -> list[Counted]:
    """All channels that are opened for calls that block."""
    opened: list[Counted] = []

    def open_counted(*arguments: Any) -> Counted:
        opened.append(Counted(*arguments))
        return opened[-1]

    monkeypatch.setattr("sidekeeper.connection.open_blocking_channel", open_counted)
    return opened


def test_a_connection_that_has_failed_serves_its_users_to_their_end(sidecar: Serving, channels: list[Counted]) -> None:
    with sidecar.lock("old"):
        sidecar.hub.failures.put((grpc.StatusCode.UNAVAILABLE, ""))
        with sidecar.lock("new"):
            assert len(channels) == 2
        assert [channel.closed for channel in channels] == [0, 0]
    assert [channel.closed for channel in channels] == [1, 0]
    with pytest.raises(sidekeeper.LockError) as lost:  # noqa: PT012, SIM117
        with sidecar.lock() as lock:
            sidecar.hub.broken.set()
            assert lock.wait_lost(PATIENCE)
    assert lost.value.code == "UNAVAILABLE"
    assert [channel.closed for channel in channels] == [1, 1]
    sidecar.hub.broken.clear()
    with sidecar.lock():
        assert len(channels) == 3


def test_few_connections_without_users_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "IDLE_MAX", 2)
    servers = [Serving() for _ in range(5)]
    for serving in servers:
        with serving.lock():
            pass
    kept = [endpoint for endpoint, loop in connection._pool._all if loop is None]
    assert kept == [serving.endpoint for serving in servers[-2:]]
    for serving in servers:
        serving.stop()


class Passage:
    """Passes one connection on, and notes its end."""

    def __init__(self, to: str) -> None:
        host, port = to.split(":")
        self._to = (host, int(port))
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"127.0.0.1:{self._listening.getsockname()[1]}"
        self.ended = threading.Event()
        threading.Thread(target=self._pass, daemon=True).start()

    def _pass(self) -> None:
        client, _ = self._listening.accept()
        with self._listening, client, socket.create_connection(self._to) as server:
            threading.Thread(target=self._copy, args=(server, client), daemon=True).start()
            self._copy(client, server)
            self.ended.set()

    @staticmethod
    def _copy(source: socket.socket, target: socket.socket) -> None:
        try:
            while data := source.recv(65536):
                target.sendall(data)
        except OSError:
            pass


def test_the_socket_of_a_connection_without_calls_is_closed(sidecar: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "IDLE_MS", 1_000)
    passage = Passage(sidecar.endpoint)
    with sidekeeper.lock("bill", endpoint=passage.endpoint):
        assert not passage.ended.is_set()
    assert passage.ended.wait(PATIENCE)


# gRPC's own handlers of a fork stop a child now and then, so that no test forks.


def test_connections_without_users_are_closed_before_a_fork(sidecar: Serving, channels: list[Counted]) -> None:
    with sidecar.lock():
        pass
    assert [channel.closed for channel in channels] == [0]
    connection._before_fork()
    connection._after_fork_in_parent()
    assert [channel.closed for channel in channels] == [1]
    with sidecar.lock():
        connection._before_fork()
        connection._after_fork_in_parent()
        # Another thread gets the connection as before.
        assert ThreadPoolExecutor(1).submit(sidecar.first_leader).result(PATIENCE) is None
    assert [channel.closed for channel in channels] == [1, 0]


def test_a_child_gets_no_connection_that_its_parent_uses(sidecar: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "_pool", connection._pool)
    monkeypatch.setattr(connection, "_of_parents", [])
    with sidecar.lock():
        connection._before_fork()
        connection._after_fork_in_child()
        with sidecar.lock():
            pass
    assert len(set(sidecar.hub.peers)) == 2


def test_a_process_ends_while_it_keeps_connections(sidecar: Serving) -> None:
    program = """
import asyncio, sidekeeper
async def use():
    async with sidekeeper.lock("bill"):
        pass
with sidekeeper.lock("bill"):
    asyncio.run(use())
"""
    environment = {**os.environ, "SIDEKEEPER_ENDPOINT": sidecar.endpoint}
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-c", program],
        env=environment,
        timeout=PATIENCE,
        check=False,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    eventually(lambda: len(sidecar.hub.peers) == 4)
