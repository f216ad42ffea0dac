"""Contenders of several sidecars for one lock, while networks, servers and sidecars fail: who holds when, and which token a
store accepts."""

from __future__ import annotations

import itertools
import os
import random
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest
import sidekeeper
from kazoo.exceptions import NoNodeError
from sidekeeper._proto.v1 import lock_service_pb2 as pb

from faults.ensemble import Ensemble, Server
from faults.fleet import FaultFleet, Slot
from support.lock_queue import FencedCounter, Grant, Held, Journal, watchers
from support.processes import PATIENCE, eventually
from support.znodes import children

#: The session timeout, in seconds.
SESSION = 4.0

#: The session timeout of a holder whose session outlives a restart of all servers, in seconds.
LONG_SESSION = 60.0

#: For how long a fault lasts: longer than the session.
LASTS = SESSION + 2.0

#: How long a contender holds the lock at most, in seconds, if it does not cling to it.
LONGEST = 0.2

#: How many grants `test_s58` waits for, and how many there are from one fault to the next. `make locks` asks for 10,000.
GRANTS = int(os.environ.get("LOCK_GRANTS") or 300)
GRANTS_EACH = max(GRANTS // 30, 100)

#: How long a contender waits before it asks again after an error, in seconds.
ASK_AGAIN = 0.05


class Contender(threading.Thread):
    """Holds the lock again and again, through one sidecar, and stops when it loses it."""

    def __init__(
        self, slot: Slot, path: str, journal: Journal, store: FencedCounter, name: str, longest: float = LONGEST
    ):
        super().__init__(name=name, daemon=True)
        self._endpoint = f"unix://{slot.sidecar.socket}"
        self._path = path
        self._journal = journal
        self._store = store
        self._longest = longest
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
        until = time.monotonic() + self._random.uniform(0.0, self._longest)
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
    eventually("an empty queue", lambda: fleet.look("the queue", lambda: queue(fleet, path)) == ["empty"])


def owner(fleet: FaultFleet, node: str) -> int:
    """The session that owns a node. Zero: there is no such node."""
    found = fleet.tree.client.exists(node)
    return int(found.ephemeralOwner) if found else 0


@contextmanager
def holder_and_waiter(fleet: FaultFleet, slots: list[Slot]) -> Iterator[tuple[Held, Held, str]]:
    """A hold through the first slot's sidecar, one through the second's that waits for it, and the node of the first."""
    path = f"/{fleet.namespace}-locks/bill"
    with Held(slots[0].sidecar, path, who="holder") as holder:
        node = holder.wait("acquired").event.acquired.node_path
        with Held(slots[1].sidecar, path, who="waiter") as waiter:
            wait_behind(fleet, waiter, node)
            yield holder, waiter, node


def wait_behind(fleet: FaultFleet, waiter: Held, node: str) -> None:
    """Waits until a contender waits for the holder with this node: its session watches the node."""

    def decided() -> bool:
        return waiter.token() > 0 or bool(watchers(fleet.ensemble.servers, node) - {owner(fleet, node)})

    fleet.look("the other one waits", decided)
    assert waiter.token() == 0, f"the other one holds beside {node}"


def restart_leader(ensemble: Ensemble) -> None:
    leader = ensemble.leader()
    leader.kill()
    leader.start()


def restart_all(ensemble: Ensemble) -> None:
    ensemble.kill()
    ensemble.start()


@pytest.mark.parametrize("fault", [restart_leader, restart_all])
def test_s20_a_holder_keeps_the_lock_while_servers_restart(
    fleet: FaultFleet, ensemble: Ensemble, fault: Callable[[Ensemble], None]
) -> None:
    slots = [Slot(fleet, number, LONG_SESSION, True, {}) for number in (1, 2)]
    with holder_and_waiter(fleet, slots) as (holder, waiter, node):
        fault(ensemble)
        holder.wait("suspended")
        holder.wait("resumed", 3 * PATIENCE)
        ensemble.wait_serving()
        wait_behind(fleet, waiter, node)
        assert set(holder.kinds()) <= {"started", "acquired", "lease_renewed", "suspended", "resumed"}
        journal = Journal()
        journal.add([holder.release()])
        waiter.wait("acquired")
        journal.add([waiter.release()])
        assert journal.overlaps() == []
        assert journal.out_of_order() == []


def check_lost_in_time(fleet: FaultFleet, server: Server, other: Server, fault: Callable[[], None]) -> None:
    """Has a fault befall a server to which the holder's sidecar is connected; the one that waits is at another server."""
    slots = [Slot(fleet, number, SESSION, True, {}) for number in (1, 2)]
    for slot, reached in zip(slots, (server, other)):
        fleet.part(slot, reached)
    with holder_and_waiter(fleet, slots) as (holder, waiter, node):
        session = owner(fleet, node)
        fault()
        ended = fleet.ensemble.wait_expired({f"{session:#x}"}, 2 * PATIENCE)
        lost = holder.wait("lost")
        assert lost.event.lost.reason == pb.LOCK_LOSS_REASON_LEASE_LOST
        assert lost.wall < ended, f"told {lost.wall - ended:.2f} s after the session had been ended"
        gained = waiter.wait("acquired")
        assert lost.at < gained.at
        assert waiter.token() > holder.token()


@pytest.mark.parametrize("fault", ["cut off", "killed", "stopped"])
def test_s59_a_holder_at_a_follower_hears_of_the_loss_in_time(
    fleet: FaultFleet, ensemble: Ensemble, fault: str
) -> None:
    leader, follower = ensemble.leader(), ensemble.follower()
    inflict = {
        "cut off": lambda: ensemble.cut(follower, leader),
        "killed": follower.kill,
        "stopped": follower.stop,
    }
    check_lost_in_time(fleet, follower, leader, inflict[fault])


@pytest.mark.parametrize("noticed", [True, False], ids=["the followers notice at once", "the followers hear nothing"])
def test_s60_a_holder_at_a_leader_that_is_cut_off_hears_of_the_loss_in_time(
    fleet: FaultFleet, ensemble: Ensemble, noticed: bool
) -> None:
    leader, follower = ensemble.leader(), ensemble.follower()
    check_lost_in_time(fleet, leader, follower, lambda: ensemble.cut_off(leader, noticed))


def queue(fleet: FaultFleet, path: str) -> list[str]:
    """The nodes in a lock's queue; `["empty"]`: there are none."""
    return children(fleet.tree.client, path) or ["empty"]


class Kept:
    """What the sidecars and the servers keep for a lock: open files, watches, nodes."""

    def __init__(self, fleet: FaultFleet, slots: list[Slot]):
        self.files = [len(os.listdir(f"/proc/{slot.sidecar.popen.pid}/fd")) for slot in slots]
        answers = [server.ask("wchp") for server in fleet.ensemble.servers]
        assert all(answers)
        told = "\n".join(answers)
        self.watches = sorted(
            block.splitlines()[0]
            for block in re.findall(r"^/.*(?:\n\t.*)*", told, re.MULTILINE)
            if block.startswith(f"/{fleet.namespace}")
            for _ in block.splitlines()[1:]
        )
        self.nodes = sorted(nodes(fleet, "/", f"/{fleet.namespace}"))

    def within(self, before: Kept) -> bool:
        """Whether it is no more than before."""
        files = all(now <= then for now, then in zip(self.files, before.files))
        return files and self.watches == before.watches and set(self.nodes) <= set(before.nodes)

    def __str__(self) -> str:
        return f"files {self.files}, watches {self.watches}, nodes {self.nodes}"


def nodes(fleet: FaultFleet, path: str, prefix: str) -> list[str]:
    """The nodes at and below those of the root whose path begins with the prefix."""
    with suppress(NoNodeError):
        below = [f"{path.rstrip('/')}/{name}" for name in fleet.tree.client.get_children(path)]
        return [node for one in below if one.startswith(prefix) for node in [one, *nodes(fleet, one, prefix)]]
    return []


def connection_reset(slots: list[Slot], ensemble: Ensemble) -> None:
    slots[1].link.reset()


def session_lost(slots: list[Slot], ensemble: Ensemble) -> None:
    def losses() -> int:
        return slots[0].sidecar.log.read_text(errors="replace").count("session lost")

    before = losses()
    slots[0].link.cut()
    eventually("the session is lost", lambda: losses() > before)
    slots[0].link.heal()


def follower_restarted(slots: list[Slot], ensemble: Ensemble) -> None:
    follower = ensemble.follower()
    follower.kill()
    follower.start()
    ensemble.wait_serving()


def test_s58_nothing_is_kept_of_many_grants(fleet: FaultFleet, ensemble: Ensemble) -> None:
    slots = [Slot(fleet, number, SESSION, True, {}) for number in (1, 2, 3)]
    path = f"/{fleet.namespace}-locks/bill"
    store = FencedCounter()

    def hold_often(grants: int) -> None:
        """Has contenders hold the lock so many times, with a fault now and then."""
        journal = Journal()
        contenders = [
            Contender(slot, path, journal, store, f"{slot.number}-{n}", 0.0) for slot in slots for n in (1, 2)
        ]
        for contender in contenders:
            contender.start()
        faults = itertools.cycle([connection_reset, session_lost, follower_restarted])
        for count in range(GRANTS_EACH, grants + 1, GRANTS_EACH):
            eventually(f"{count} grants", lambda count=count: len(journal.grants) >= count, 6 * PATIENCE)
            next(faults)(slots, ensemble)
        eventually(f"{grants} grants", lambda: len(journal.grants) >= grants, 6 * PATIENCE)
        for contender in contenders:
            contender.over.set()
        for contender in contenders:
            contender.join(PATIENCE)
            assert not contender.is_alive()
        assert journal.overlaps() == []
        assert journal.out_of_order() == []
        assert [contender.refusals for contender in contenders if contender.refusals] == []

    # What a sidecar keeps once and for all, it has after some grants.
    hold_often(20)
    before = fleet.look("what is kept", lambda: Kept(fleet, slots))
    hold_often(GRANTS)
    fleet.look(f"no more is kept than {before}", lambda: Kept(fleet, slots).within(before))
