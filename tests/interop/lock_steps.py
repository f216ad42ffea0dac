"""One lock, and contenders of several kinds that a test has ask, hold and release step by step."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from time import monotonic_ns
from typing import Any, Protocol

from kazoo.client import KazooClient

from interop.members import GoLockPeer, LockPeer, MixedFleet
from support.lock_queue import CuratorLock, Grant, Held, Journal, watchers
from support.processes import PATIENCE, CommandedProcess, eventually


class Hold(Protocol):
    """What a contender has asked for."""

    def token(self) -> int:
        """The token of the lock. Zero: it is not held yet."""

    def release(self) -> Grant:
        """Gives the lock back; returns the grant."""


class PeerHold:
    """A hold of a contender in a program with Curator or go-zookeeper."""

    def __init__(self, peer: CommandedProcess, who: str, mode: str):
        self._peer, self._who, self._mode = peer, who, mode
        peer.say(f"{who} acquire {mode}")

    def token(self) -> int:
        assert self._peer.events("failed") == []
        mine = [one for one in self._peer.events("acquired") if (one["who"], one["mode"]) == (self._who, self._mode)]
        return int(mine[0]["token"]) if mine else 0

    def release(self) -> Grant:
        token = self.token()
        self._peer.say(f"{self._who} release {self._mode}")
        [one] = self._peer.wait(
            "the lock is given back",
            lambda events: [one for one in events if one["event"] == "failed" or is_grant(one, token)],
        )
        assert one["event"] == "grant", one
        return Grant(one["begin"], one["end"], one["token"], one["mode"], one["who"])


def is_grant(event: dict[str, Any], token: int) -> bool:
    """Whether a peer tells the grant with this token."""
    return bool(event["event"] == "grant" and event["token"] == token)


class KazooHold:
    """A hold of a contender with a session of kazoo's."""

    def __init__(self, client: KazooClient, pool: ThreadPoolExecutor, path: str, who: str):
        self._client, self._path, self._who = client, path, who
        self._lock = CuratorLock(client, path, who)
        self._begin: Future[int] = pool.submit(self._acquire)

    def _acquire(self) -> int:
        assert self._lock.acquire(timeout=4 * PATIENCE)
        return monotonic_ns()

    def token(self) -> int:
        return self._own_token() if self._begin.done() else 0

    def _own_token(self) -> int:
        self._begin.result()
        return int(self._client.exists(f"{self._path}/{self._lock.node}").czxid)

    def release(self) -> Grant:
        token, end = self._own_token(), monotonic_ns()
        self._lock.release()
        return Grant(self._begin.result(), end, token, "MUTEX", self._who)


class Asked:
    """A contender that has asked for the lock. It holds or waits."""

    def __init__(self, steps: LockSteps, hold: Hold, node: str, session: int):
        self._steps, self._hold = steps, hold
        #: The path of its node.
        self.node = node
        self.session = session

    def holds(self) -> bool:
        """Whether it has come to hold the lock."""
        return self._hold.token() > 0

    def wait_held(self) -> int:
        """Waits until it holds the lock; returns its token."""
        return eventually(f"{self.node} holds", self._hold.token)

    def wait_behind(self, other: Asked) -> None:
        """Waits until it waits for another contender: it watches the node of that one, and does not hold."""

        def decided() -> bool:
            return self.holds() or self.session in watchers([self._steps.fleet.server], other.node)

        eventually(f"{self.node} waits behind {other.node}", decided)
        assert not self.holds(), f"{self.node} holds beside {other.node}"

    def release(self) -> None:
        """Has it give the lock back."""
        self._steps.journal.add([self._hold.release()])


class LockSteps:
    """The lock, its contenders, and the journal of the grants that are over."""

    def __init__(self, fleet: MixedFleet):
        self.fleet = fleet
        self.path = f"/{fleet.namespace}-locks/bill"
        self.journal = Journal()
        self._open = ExitStack()
        self._peers: dict[str, CommandedProcess] = {}
        self._sidecars = 0
        # A persistent parent: an object of kazoo fails for ever once the container is gone (L29).
        fleet.tree.client.ensure_path(self.path)

    def __enter__(self) -> LockSteps:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def ask(self, kind: str, who: str, mode: str = "MUTEX") -> Asked:
        """Has a contender ask for the lock, and waits until its node stands in the queue. A name asks once in each mode. It has
        a session of its own; with sidecars each hold has one."""
        client = self.fleet.tree.client
        before = set(client.get_children(self.path))
        hold = self._hold(kind, who, mode)
        [name] = eventually(f"{who} stands in the queue", lambda: set(client.get_children(self.path)) - before)
        node = f"{self.path}/{name}"
        return Asked(self, hold, node, client.exists(node).ephemeralOwner)

    def _hold(self, kind: str, who: str, mode: str) -> Hold:
        if kind == "ours":
            self._sidecars += 1
            return self._open.enter_context(Held(self.fleet.sidecar(self._sidecars), self.path, mode, who))
        if kind == "kazoo":
            pool = self._open.enter_context(ThreadPoolExecutor(1))
            client = KazooClient(self.fleet.server.address)
            client.start(timeout=PATIENCE)
            self._open.callback(client.close)
            self._open.callback(client.stop)
            return KazooHold(client, pool, self.path, who)
        if kind not in self._peers:
            self._peers[kind] = self._start_peer(kind)
        return PeerHold(self._peers[kind], who, mode)

    def _start_peer(self, kind: str) -> CommandedProcess:
        if kind == "curator":
            return LockPeer(self.fleet, self.path, "steps", [])
        assert kind == "go"
        return GoLockPeer(self.fleet, self.path, "steps", 0)

    def check_over(self) -> None:
        """Checks the grants so far, and that nothing is left in the queue."""
        assert self.journal.overlaps() == []
        assert self.journal.out_of_order() == []
        assert self.fleet.tree.client.get_children(self.path) == []
