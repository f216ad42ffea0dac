"""One lock for contenders of several kinds: a journal of who held it when, and the judge of that journal."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import grpc
from kazoo.client import KazooClient
from kazoo.recipe.lock import Lock
from sidekeeper._proto.v1 import lock_service_pb2 as pb
from sidekeeper._proto.v1 import lock_service_pb2_grpc as stubs

from support.processes import PATIENCE, ROOT, eventually
from support.sidecar import Sidecar
from support.zookeeper import ServerProcess

_example: dict[str, type[Lock]] = {}
exec((ROOT / "examples" / "locks" / "curator_lock.py").read_text(), _example)
#: The kazoo lock of the example, which stands in one queue with Curator's.
CuratorLock = _example["CuratorLock"]

#: How long a holder has the lock, in seconds; and how long a permit, which is longer than a grant takes: otherwise never
#: more than one would hold.
HELD, PERMIT_HELD = 0.001, 0.02


@contextmanager
def connection(sidecar: Sidecar) -> Iterator[stubs.LockServiceStub]:
    """The lock service of a sidecar that serves."""
    # The path of a socket is no authority, and a server refuses it.
    options = [("grpc.default_authority", "localhost")]
    with grpc.insecure_channel(f"unix://{sidecar.socket}", options) as channel:
        grpc.channel_ready_future(channel).result(PATIENCE)
        yield stubs.LockServiceStub(channel)  # type: ignore[no-untyped-call]


def request(path: str, mode: str, who: str) -> pb.HoldRequest:
    """Asks for the lock at a path. A semaphore's mode has its permits, as in SEMAPHORE:3."""
    kind, _, permits = mode.partition(":")
    return pb.HoldRequest(lock=pb.LockId(path=path), mode=f"LOCK_MODE_{kind}", holder=who, permits=int(permits or 0))


@contextmanager
def hold(sidecar: Sidecar, path: str, mode: str = "MUTEX", who: str = "") -> Iterator[Iterator[pb.HoldResponse]]:
    """The events of a hold through a sidecar. The hold ends with the block."""
    with connection(sidecar) as stub:
        stream = stub.Hold(request(path, mode, who), timeout=4 * PATIENCE)
        yield stream
        stream.cancel()


@dataclass(frozen=True)
class Told:
    """An event of a hold, and when it was read."""

    kind: str
    event: pb.HoldResponse
    #: Nanoseconds of CLOCK_MONOTONIC.
    at: int
    #: Seconds since the epoch.
    wall: float


class Held:
    """A hold through a sidecar. A thread reads its events as they come."""

    def __init__(self, sidecar: Sidecar, path: str, mode: str = "MUTEX", who: str = ""):
        self.mode, self.who = mode, who
        self.told: list[Told] = []
        #: How the stream has ended, if that was not with OK.
        self.error: grpc.RpcError | None = None
        self._open = ExitStack()
        self._stub = self._open.enter_context(connection(sidecar))
        self._stream = self._stub.Hold(request(path, mode, who), timeout=8 * PATIENCE)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        try:
            for event in self._stream:
                kind = event.WhichOneof("event") or ""
                self.told.append(Told(kind, event, time.monotonic_ns(), time.time()))
        except grpc.RpcError as error:
            self.error = error

    def __enter__(self) -> Held:
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.cancel()
        self._reader.join()
        self._open.close()

    def kinds(self) -> list[str]:
        """The kinds of the events so far."""
        return [one.kind for one in self.told]

    def first(self, kind: str) -> Told | None:
        """The first event of a kind, if there is one yet."""
        return next((one for one in list(self.told) if one.kind == kind), None)

    def wait(self, kind: str, timeout: float = PATIENCE) -> Told:
        """Waits for the first event of a kind."""
        eventually(f"{kind} of {self.who}", lambda: self.first(kind) or not self._reader.is_alive(), timeout)
        found = self.first(kind)
        assert found, f"the stream of {self.who} has ended before {kind}: {self.kinds()}, {self.error}"
        return found

    def token(self) -> int:
        """The token of the lock. Zero: it was not held yet."""
        acquired = self.first("acquired")
        return acquired.event.acquired.fencing_token if acquired else 0

    def release(self) -> Grant:
        """Gives the lock back; returns the grant."""
        acquired, end = self.wait("acquired"), time.monotonic_ns()
        self._stub.Release(pb.ReleaseRequest(hold_id=self.wait("started").event.started.hold_id))
        return Grant(acquired.at, end, self.token(), self.mode, self.who)


class FencedCounter:
    """A store that refuses a write with a lower token than it has seen."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.highest = 0
        self.refused = 0

    def write(self, token: int) -> bool:
        with self._lock:
            if token < self.highest:
                self.refused += 1
                return False
            self.highest = token
            return True


def watchers(servers: Iterable[ServerProcess], path: str) -> set[int]:
    """The sessions that watch a node, as the servers tell."""
    found: set[int] = set()
    for server in servers:
        for block in re.findall(r"^/.*(?:\n\t.*)*", server.ask("wchp"), re.MULTILINE):
            node, *sessions = block.splitlines()
            if node == path:
                found |= {int(session, 16) for session in sessions}
    return found


@dataclass(frozen=True, order=True)
class Grant:
    """A contender had the lock. Times are nanoseconds of CLOCK_MONOTONIC, which all processes of a machine share."""

    begin: int
    end: int
    token: int
    mode: str
    who: str


class Journal:
    """Who held the lock when."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.grants: list[Grant] = []

    def hold(self, who: str, token: int, mode: str = "MUTEX") -> None:
        """Notes that the caller holds the lock, for a moment."""
        begin = time.monotonic_ns()
        time.sleep(PERMIT_HELD if mode.startswith("SEMAPHORE") else HELD)
        self.add([Grant(begin, time.monotonic_ns(), token, mode, who)])

    def add(self, grants: Iterable[Grant]) -> None:
        """Adds what others have noted."""
        with self._lock:
            self.grants += grants

    def overlaps(self) -> list[tuple[Grant, Grant]]:
        """The pairs that held at the same time and must not: all but two readers."""
        found = []
        open_grants: list[Grant] = []
        for grant in sorted(self.grants):
            open_grants = [other for other in open_grants if other.end > grant.begin]
            found += [(other, grant) for other in open_grants if not (other.mode == grant.mode == "READ")]
            open_grants.append(grant)
        return found

    def most_at_once(self) -> int:
        """The most contenders that held at the same time."""
        ends = [(grant.end, -1) for grant in self.grants]
        moments = sorted([(grant.begin, 1) for grant in self.grants] + ends)
        most = count = 0
        for _, change in moments:
            count += change
            most = max(most, count)
        return most

    def readers_together(self) -> bool:
        """Whether two readers held at the same time at least once."""
        readers = sorted(grant for grant in self.grants if grant.mode == "READ")
        return any(one.end > other.begin for one, other in zip(readers, readers[1:]))

    def out_of_order(self) -> list[tuple[Grant, Grant]]:
        """The pairs of grants, other than of two readers, of which the later one has the lower token."""
        ordered = sorted(self.grants)
        return [
            (one, other)
            for one, other in zip(ordered, ordered[1:])
            if other.token < one.token and not (one.mode == other.mode == "READ")
        ]

    def through_sidecar(self, sidecar: Sidecar, path: str, who: str, rounds: int, mode: str = "MUTEX") -> None:
        """Holds the lock so many times, through a sidecar."""
        with connection(sidecar) as stub:
            for _ in range(rounds):
                stream = stub.Hold(request(path, mode, who), timeout=4 * PATIENCE)
                hold_id = next(stream).started.hold_id
                for event in stream:
                    if event.WhichOneof("event") == "acquired":
                        self.hold(who, event.acquired.fencing_token, mode)
                        stub.Release(pb.ReleaseRequest(hold_id=hold_id))

    def through_kazoo(self, address: str, path: str, who: str, rounds: int) -> None:
        """Holds the lock so many times, in a session of kazoo's."""
        client = KazooClient(address)
        client.start(timeout=PATIENCE)
        try:
            for _ in range(rounds):
                lock = CuratorLock(client, path, who)
                assert lock.acquire(timeout=4 * PATIENCE)
                self.hold(who, client.exists(f"{path}/{lock.node}").czxid)
                lock.release()
        finally:
            client.stop()
            client.close()
