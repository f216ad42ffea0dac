"""Contenders of several sidecars for one lock, while networks, servers and sidecars fail: who holds when, and which token a
store accepts."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import sidekeeper

from faults.ensemble import Ensemble
from faults.fleet import FaultFleet, Slot
from support.lock_queue import Grant, Journal
from support.processes import PATIENCE, eventually

#: The session timeout, in seconds.
SESSION = 4.0

#: For how long a fault lasts: longer than the session.
LASTS = SESSION + 2.0

#: How long a contender waits before it asks again after an error, in seconds.
ASK_AGAIN = 0.05


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


class Contender(threading.Thread):
    """Holds the lock again and again, through one sidecar, and stops when it loses it."""

    def __init__(self, slot: Slot, path: str, journal: Journal, store: FencedCounter, name: str):
        super().__init__(name=name, daemon=True)
        self._endpoint = f"unix://{slot.sidecar.socket}"
        self._path = path
        self._journal = journal
        self._store = store
        self._random = random.Random(name)
        self.over = threading.Event()
        #: While it is set, the contender gives the lock back only when it has lost it.
        self.clings = threading.Event()
        #: Whether it holds the lock now, as it believes.
        self.holds = threading.Event()
        self.losses = 0
        #: Writes that the store has refused while the contender believed that it held the lock.
        self.refusals: list[int] = []

    def run(self) -> None:
        while not self.over.is_set():
            try:
                with sidekeeper.lock(path=self._path, holder=self.name, endpoint=self._endpoint) as lock:
                    self._hold(lock)
            except sidekeeper.LockError as error:
                self.losses += error.reason == "LOCK_LOST"
                time.sleep(ASK_AGAIN)

    def _hold(self, lock: sidekeeper.Lock) -> None:
        until = time.monotonic() + self._random.uniform(0.0, 0.2)
        begin = end = time.monotonic_ns()
        self.holds.set()
        while not lock.lost:
            end = time.monotonic_ns()
            if not self._store.write(lock.fencing_token):
                self.refusals.append(lock.fencing_token)
            if self.over.is_set() or (time.monotonic() > until and not self.clings.is_set()):
                break
            time.sleep(0.01)
        self.holds.clear()
        self._journal.add([Grant(begin, end, lock.fencing_token, "MUTEX", self.name)])


def cut(fleet: FaultFleet, slots: list[Slot], ensemble: Ensemble) -> Iterator[None]:
    slots[0].link.cut()
    yield
    slots[0].link.heal()


def hole(fleet: FaultFleet, slots: list[Slot], ensemble: Ensemble) -> Iterator[None]:
    slots[0].link.hole("up", "down")
    yield
    slots[0].link.heal()


def stopped(fleet: FaultFleet, slots: list[Slot], ensemble: Ensemble) -> Iterator[None]:
    slots[0].sidecar.freeze()
    yield
    slots[0].sidecar.thaw()


def killed(fleet: FaultFleet, slots: list[Slot], ensemble: Ensemble) -> Iterator[None]:
    slots[0].kill_sidecar()
    yield
    slots[0].start_sidecar()


def leader_killed(fleet: FaultFleet, slots: list[Slot], ensemble: Ensemble) -> Iterator[None]:
    leader = ensemble.leader()
    leader.kill()
    yield
    leader.start()
    ensemble.wait_serving()


def leader_cut_off(fleet: FaultFleet, slots: list[Slot], ensemble: Ensemble) -> Iterator[None]:
    leader = ensemble.leader()
    fleet.part(slots[0], leader)
    ensemble.cut_off(leader)
    yield
    ensemble.heal()
    slots[0].link.all_again()


def follower_cut_off(fleet: FaultFleet, slots: list[Slot], ensemble: Ensemble) -> Iterator[None]:
    follower = ensemble.follower()
    fleet.part(slots[0], follower)
    ensemble.cut(follower, ensemble.leader())
    yield
    ensemble.heal()
    slots[0].link.all_again()


FAULTS = {
    "s18 the sidecar's connections are reset": cut,
    "s18 the sidecar's network is silent": hole,
    "s15 the sidecar is stopped": stopped,
    "s14 the sidecar is killed": killed,
    "s20 the leader is killed": leader_killed,
    "s60 the leader is cut off": leader_cut_off,
    "s59 a follower is cut off": follower_cut_off,
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS.keys())
def test_a_lock_has_one_obedient_holder_and_growing_tokens(
    fleet: FaultFleet, ensemble: Ensemble, fault: Callable[[FaultFleet, list[Slot], Ensemble], Iterator[None]]
) -> None:
    slots = [Slot(fleet, number, SESSION, True, {}) for number in (1, 2, 3)]
    path = f"/{fleet.namespace}-locks/bill"
    journal, store = Journal(), FencedCounter()
    contenders = [Contender(slot, path, journal, store, f"{slot.number}-{n}") for slot in slots for n in (1, 2)]

    def all_hold_again() -> None:
        """Waits until each contender has held the lock since now."""
        since = time.monotonic_ns()
        eventually(
            "each contender holds the lock",
            lambda: {one.who for one in list(journal.grants) if one.begin > since} == {one.name for one in contenders},
            3 * PATIENCE,
        )

    for contender in contenders:
        contender.start()
    all_hold_again()
    # The fault meets a holder that does not let go.
    clinging = contenders[:2]
    for contender in clinging:
        contender.clings.set()
    eventually("one of them holds", lambda: any(contender.holds.is_set() for contender in clinging))
    began = time.monotonic_ns()

    def others_hold() -> bool:
        names = {one.name for one in clinging}
        return any(one.begin > began and one.who not in names for one in list(journal.grants))

    with contextmanager(fault)(fleet, slots, ensemble):
        if fault is leader_killed:
            # The session may survive the election of another leader.
            time.sleep(LASTS)
        else:
            eventually("another one holds", others_hold, 3 * PATIENCE)
    for contender in clinging:
        contender.clings.clear()
    all_hold_again()
    assert fault is leader_killed or sum(contender.losses for contender in clinging) > 0
    for contender in contenders:
        contender.over.set()
    for contender in contenders:
        contender.join(PATIENCE)
        assert not contender.is_alive()
    assert journal.overlaps() == []
    assert journal.out_of_order() == []
    assert [contender.refusals for contender in contenders if contender.refusals] == []
    # Nothing is left in the queue. The container may be gone.
    eventually("an empty queue", lambda: fleet.look("the queue", lambda: children(fleet, path)) == ["empty"])


def children(fleet: FaultFleet, path: str) -> list[str]:
    """The children of a node; `["empty"]`: there are none."""
    found = fleet.tree.client.get_children(path) if fleet.tree.client.exists(path) else []
    return found or ["empty"]
