"""Locks of sidecars and of Curator in one queue."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from interop.members import LockPeer, MixedFleet
from support.lock_queue import Grant, Journal, hold
from support.processes import PATIENCE

#: How often each contender holds the lock; `make locks` asks for more.
ROUNDS = int(os.environ.get("LOCK_ROUNDS", "20"))


def contend(fleet: MixedFleet, java: list[str], ours: list[str]) -> Journal:
    """Contenders of Curator and of two sidecars, of these modes."""
    path = f"/{fleet.namespace}-locks/bill"
    sidecars = [fleet.sidecar(number) for number in (1, 2)]
    peer = LockPeer(fleet, path, ROUNDS, java)
    journal = Journal()
    with ThreadPoolExecutor(len(ours)) as pool:
        futures = [
            pool.submit(journal.through_sidecar, sidecars[number % 2], path, f"ours-{number}", ROUNDS, mode)
            for number, mode in enumerate(ours)
        ]
        for future in futures:
            future.result(8 * PATIENCE)
    peer.wait("done", lambda events: any(event["event"] == "done" for event in events), 8 * PATIENCE)
    assert peer.events("failed") == []
    journal.add(Grant(one["begin"], one["end"], one["token"], one["mode"], one["who"]) for one in peer.events("grant"))
    assert len(journal.grants) == ROUNDS * (len(java) + len(ours))
    # Nothing is left in the queue. The container may be gone.
    assert not fleet.tree.client.exists(path) or fleet.tree.client.get_children(path) == []
    return journal


def test_s1_one_queue_with_curators_mutex(fleet: MixedFleet) -> None:
    journal = contend(fleet, ["MUTEX"] * 3, ["MUTEX"] * 3)
    assert journal.overlaps() == []
    assert journal.out_of_order() == []


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
