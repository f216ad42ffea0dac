"""Contenders hold and release locks, and tell how long it took.

A program of the measurement in ``benches/sidecar/locks.rs``, which has the protocol of the commands::

    contenders.py kazoo ZOOKEEPER
    contenders.py sidekeeper ENDPOINT...
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from time import monotonic_ns
from typing import Any, Protocol

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "clients" / "python"))

import sidekeeper
from kazoo.client import KazooClient
from sidekeeper.channel import open_blocking_channel

#: That of a sidecar, in seconds.
SESSION_TIMEOUT = 30.0


class Contender(Protocol):
    """Holds one lock, again and again."""

    def acquire(self) -> Any:
        """Ends when the lock is held."""

    def release(self) -> Any:
        """Ends when the lock was given back."""


class Kazoo:
    """Two sessions of kazoo, and its lock."""

    def __init__(self, addresses: Sequence[str]) -> None:
        self._sessions = [KazooClient(addresses[0], timeout=SESSION_TIMEOUT) for _ in range(2)]
        for session in self._sessions:
            session.start()

    def contender(self, lock: str, session: int) -> Contender:
        return self._sessions[session].Lock(f"/bench-locks/kazoo-{lock}")


class Sidekeeper:
    """The client of sidecars. Its holds share a connection."""

    def __init__(self, endpoints: Sequence[str]) -> None:
        self._endpoints = endpoints
        self._channel = open_blocking_channel(endpoints[0])
        # The health check's messages are empty, or are not read.
        self._check = self._channel.unary_unary("/grpc.health.v1.Health/Check")

    def contender(self, lock: str, session: int) -> Contender:
        return SidekeeperLock(f"python-{lock}", self._endpoints[session])

    def hop(self) -> None:
        self._check(b"")


class SidekeeperLock:
    """The client's locks, one after another."""

    def __init__(self, name: str, endpoint: str) -> None:
        self._name = name
        self._endpoint = endpoint
        self._held = ExitStack()

    def acquire(self) -> None:
        self._held.enter_context(sidekeeper.lock(self._name, endpoint=self._endpoint))

    def release(self) -> None:
        self._held.close()


def pairs(library: Any, count: int) -> None:
    """Holds and releases a lock that nobody else wants, again and again."""
    contender = library.contender("pairs", 0)
    acquired, released = [], []
    for _ in range(count):
        start = monotonic_ns()
        contender.acquire()
        held = monotonic_ns()
        contender.release()
        released.append(monotonic_ns() - held)
        acquired.append(held - start)
    tell("acquired", acquired)
    tell("released", released)


def queue(library: Any, contenders: int, sessions: int, grants: int) -> None:
    """Has so many contenders hold one lock, each again and again without a pause, until it was granted so often."""
    journal: list[int] = []
    failed: list[Exception] = []

    def contend(contender: Contender) -> None:
        try:
            while len(journal) < grants and not failed:
                contender.acquire()
                journal.append(monotonic_ns())
                contender.release()
        except Exception as error:
            failed.append(error)

    threads = [
        threading.Thread(target=contend, args=[library.contender("queue", number % sessions)])
        for number in range(contenders)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]
    tell("grants", [time for now in journal for time in (now, now)])


def hops(library: Any, count: int) -> None:
    """Makes calls that the sidecar answers by itself."""
    taken = []
    for _ in range(count):
        start = monotonic_ns()
        library.hop()
        taken.append(monotonic_ns() - start)
    tell("hops", taken)


def tell(name: str, times: Iterable[int]) -> None:
    """Prints a name and times in nanoseconds."""
    print(name, *times, flush=True)


def main() -> None:
    """Performs the commands of standard input, one after another."""
    name, *addresses = sys.argv[1:]
    library = {"kazoo": Kazoo, "sidekeeper": Sidekeeper}[name](addresses)
    commands = {"pairs": pairs, "queue": queue, "hops": hops}
    for line in sys.stdin:
        command, *numbers = line.split()
        commands[command](library, *map(int, numbers))


if __name__ == "__main__":
    main()
