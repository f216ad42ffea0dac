"""Locks of sidecars, of Curator, of kazoo and of go-zookeeper in one queue."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from interop.members import GoLockPeer, LockPeer, MixedFleet
from support.lock_queue import Grant, Journal, hold
from support.processes import PATIENCE, eventually

#: How often each contender holds the lock; `make locks` asks for more.
ROUNDS = int(os.environ.get("LOCK_ROUNDS", "20"))


def contend(fleet: MixedFleet, ours: list[str], java: list[str], kazoo: int = 0, go: int = 0) -> Journal:
    """Contenders of two sidecars and of Curator, of these modes, and so many of kazoo and of go-zookeeper."""
    path = f"/{fleet.namespace}-locks/bill"
    if kazoo:
        # A persistent parent: an object of kazoo fails for ever once the container is gone (L29).
        fleet.tree.client.ensure_path(path)
    sidecars = [fleet.sidecar(number) for number in (1, 2)]
    journal = Journal()
    count = len(ours) + len(java) + kazoo + go
    with ThreadPoolExecutor(len(ours) + kazoo) as pool:
        with hold(sidecars[0], path, "MUTEX" if kazoo or go else "WRITE") as events:
            next(event for event in events if event.WhichOneof("event") == "acquired")
            peers = [LockPeer(fleet, path, ROUNDS, java), *([GoLockPeer(fleet, path, ROUNDS, go)] if go else [])]
            futures = [
                pool.submit(journal.through_sidecar, sidecars[number % 2], path, f"ours-{number}", ROUNDS, mode)
                for number, mode in enumerate(ours)
            ]
            futures += [
                pool.submit(journal.through_kazoo, fleet.server.address, path, f"kazoo-{number}", ROUNDS)
                for number in range(kazoo)
            ]
            eventually("all wait", lambda: len(fleet.tree.client.get_children(path)) == count + 1, 2 * PATIENCE)
        for future in futures:
            future.result(8 * PATIENCE)
    for peer in peers:
        peer.wait("done", lambda events: any(event["event"] == "done" for event in events), 8 * PATIENCE)
        assert peer.events("failed") == []
        journal.add(
            Grant(one["begin"], one["end"], one["token"], one["mode"], one["who"]) for one in peer.events("grant")
        )
    assert len(journal.grants) == ROUNDS * count
    # Nothing is left in the queue. The container may be gone.
    assert not fleet.tree.client.exists(path) or fleet.tree.client.get_children(path) == []
    return journal


def test_s1_one_queue_of_sidecars_curator_kazoo_and_go(fleet: MixedFleet) -> None:
    journal = contend(fleet, ["MUTEX"] * 2, ["MUTEX"] * 2, kazoo=2, go=2)
    assert journal.overlaps() == []
    assert journal.out_of_order() == []
    # All waited: each holds once before any holds for the second time.
    assert len({grant.who for grant in sorted(journal.grants)[:8]}) == 8


def test_s6_readers_and_writers_with_curators_read_write_lock(fleet: MixedFleet) -> None:
    modes = ["READ", "WRITE", "READ", "READ", "WRITE", "READ"]
    journal = contend(fleet, modes, modes)
    assert journal.overlaps() == []
    assert journal.out_of_order() == []
    assert journal.readers_together()


@pytest.mark.parametrize("mode", ["MUTEX", "WRITE"])
def test_s22_a_revocation_by_curator_is_an_event(fleet: MixedFleet, mode: str) -> None:
    path = f"/{fleet.namespace}-locks/bill"
    sidecar = fleet.sidecar(1)
    peer = LockPeer(fleet, path, 0, [])
    with hold(sidecar, path, mode) as events:
        acquired = next(event.acquired for event in events if event.WhichOneof("event") == "acquired")
        peer.say(acquired.node_path)
        asked = next(event for event in events if event.WhichOneof("event") not in ("lease_renewed", "waiting"))
        assert asked.WhichOneof("event") == "revocation_requested"
        assert fleet.tree.client.exists(acquired.node_path)
