"""Contenders whose requests to ZooKeeper go wrong, or that are cancelled at any moment: one node at most, and none is left."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import grpc
import pytest
from sidekeeper._proto.v1 import lock_service_pb2 as pb

from interop.transaction_log import changes
from support.fleet import Fleet
from support.lock_queue import connection, hold, request
from support.processes import PATIENCE, eventually
from support.request_proxy import RequestProxy
from support.sidecar import Sidecar
from support.znodes import children

#: How many replies of each kind are lost; `make locks` loses a hundred.
REPLIES = int(os.environ.get("LOCK_REPLIES") or 10)

#: The lease ends early in the life of a silent session: ZooKeeper has the former session still when there is another one.
SHORT = ["--lease-margin", "1s"]
LONG = ["--lease-margin", "3s"]


@dataclass
class Proxied:
    """A sidecar that reaches ZooKeeper through a proxy, and one that does not."""

    fleet: Fleet
    proxy: RequestProxy
    sidecar: Sidecar
    other: Sidecar
    path: str

    def queue(self) -> list[str]:
        """The nodes in the lock's queue."""
        return [f"{self.path}/{name}" for name in children(self.fleet.tree.client, self.path)]

    def lost_sessions(self) -> int:
        """How many sessions the sidecar has lost so far."""
        return self.sidecar.log.read_text(errors="replace").count("session lost")

    def change_session(self, lost_before: int) -> None:
        """Waits until the sidecar has lost its session, and lets it open another one."""
        eventually("the session is lost", lambda: self.lost_sessions() > lost_before)
        self.proxy.welcome()


@contextmanager
def proxied(fleet: Fleet, session_timeout: str, options: list[str]) -> Iterator[Proxied]:
    proxy = RequestProxy(fleet.server.port)
    sidecar = Sidecar(1, fleet.folder, proxy.address, fleet.namespace, session_timeout, options)
    fleet.processes.append(sidecar)
    other = fleet.sidecar(2)
    path = f"/{fleet.namespace}-locks/bill"
    # A contender's first request creates its node.
    fleet.tree.client.ensure_path(path)
    try:
        yield Proxied(fleet, proxy, sidecar, other, path)
    finally:
        sidecar.kill()
        proxy.end()


def acquired(events: Iterator[pb.HoldResponse]) -> pb.LockAcquired:
    return next(event.acquired for event in events if event.WhichOneof("event") == "acquired")


def lose_while_asking(world: Proxied, kind: str, another: bool) -> None:
    """The reply to a request is lost with which a contender takes its place in the queue."""
    lost_before = world.lost_sessions()
    lost = world.proxy.lose_reply(kind, world.path, refuse=another)
    with hold(world.sidecar, world.path) as events:
        lost.wait()
        if another:
            world.change_session(lost_before)
        own = acquired(events).node_path
        assert world.queue() == [own]


def lose_while_waiting(world: Proxied, another: bool) -> None:
    """The reply to a watch is lost while another contender holds the lock."""
    lost_before = world.lost_sessions()
    with hold(world.other, world.path) as theirs:
        holder = acquired(theirs).node_path
        lost = world.proxy.lose_reply("watch", world.path, refuse=another)
        with hold(world.sidecar, world.path) as events:
            lost.wait()
            if another:
                world.change_session(lost_before)
            # A node of the former session goes with it.
            eventually("one node each", lambda: len(world.queue()) == 2)
            assert holder in world.queue()
            theirs.cancel()  # type: ignore[attr-defined]
            own = acquired(events).node_path
            assert world.queue() == [own]


def lose_while_leaving(world: Proxied, another: bool) -> None:
    """The reply to the deletion of the holder's node is lost."""
    lost_before = world.lost_sessions()
    with connection(world.sidecar) as stub:
        stream = stub.Hold(request(world.path, "MUTEX", ""), timeout=4 * PATIENCE)
        hold_id = next(stream).started.hold_id
        acquired(stream)
        lost = world.proxy.lose_reply("delete", world.path, refuse=another)
        answer = stub.Release.future(pb.ReleaseRequest(hold_id=hold_id), timeout=4 * PATIENCE)
        lost.wait()
        if another:
            world.change_session(lost_before)
        error = answer.exception()
        if error is None:
            assert world.queue() == []
        else:
            # The lock was lost before, with its session.
            assert another, error
            assert error.code() is grpc.StatusCode.ABORTED, error


KINDS = {"s23 create": "create", "s24 children": "children", "s25 watch": "watch", "s26 delete": "delete"}


@pytest.mark.parametrize("another", [False, True], ids=["the session goes on", "another session"])
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS.keys())
def test_s23_to_s26_a_lost_reply_leaves_one_node_at_most(fleet: Fleet, kind: str, another: bool) -> None:
    # Only a session that is to end is short: a busy machine would cost it.
    with proxied(fleet, "2s" if another else "6s", SHORT) as world:
        # A session takes a second or two to end.
        for _ in range(max(2, REPLIES // 5) if another else REPLIES):
            if kind == "watch":
                lose_while_waiting(world, another)
            elif kind == "delete":
                lose_while_leaving(world, another)
            else:
                lose_while_asking(world, kind, another)
            eventually("an empty queue", lambda: not world.queue())
        # The lock is as free as it was.
        with hold(world.other, world.path) as events:
            acquired(events)


def test_s27_a_hold_that_is_cancelled_at_any_moment_leaves_nothing(fleet: Fleet) -> None:
    dice = random.Random(27)
    with proxied(fleet, "6s", []) as world, connection(world.sidecar) as stub, connection(world.other) as theirs:
        held_cancelled = 0
        for _ in range(100):
            holder = theirs.Hold(request(world.path, "MUTEX", "other")) if dice.random() < 0.5 else None
            stream = stub.Hold(request(world.path, "MUTEX", ""))
            time.sleep(dice.uniform(0.0, 0.015))
            if dice.random() < 0.5:
                held_cancelled += holder is not None
                for one in (holder, stream):
                    if one is not None:
                        one.cancel()
            else:
                stream.cancel()
                if holder is not None:
                    holder.cancel()
        assert held_cancelled
        eventually("an empty queue", lambda: not world.queue())
        with hold(world.sidecar, world.path) as events:
            acquired(events)


def test_s35_a_node_of_the_former_session_is_not_taken_for_the_own(fleet: Fleet) -> None:
    with proxied(fleet, "6s", LONG) as world:
        client = fleet.tree.client
        lost = world.proxy.lose_reply("create", world.path, refuse=True)
        with hold(world.sidecar, world.path) as events:
            lost.wait()
            # The contender does not know that it has a node.
            [former] = world.queue()
            stat = client.exists(former)
            world.change_session(0)
            gained = acquired(events)
            assert client.exists(former) is None
            own = client.exists(gained.node_path)
            assert own.ephemeralOwner != stat.ephemeralOwner
            assert gained.fencing_token == own.czxid > stat.czxid
            assert world.queue() == [gained.node_path]
    # ZooKeeper had the former node still when the contender came back.
    seen = [(change.path, change.data is None) for change in changes(fleet.server.data, world.path)]
    assert seen[:3] == [(former, False), (gained.node_path, False), (former, True)]
