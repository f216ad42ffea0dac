"""Is a register linearizable that a lock of sidecars guards? Histories under random faults, and the checker's judgement.

`make locks-linearizable` makes a hundred histories.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest
from kazoo.exceptions import NoNodeError

from faults.ensemble import Ensemble
from faults.fleet import AWAY, FaultFleet, Slot
from faults.register import Register, Writer, all_write_again, check, lock_path
from support.processes import PATIENCE, eventually
from support.znodes import children

#: The session timeout, in seconds.
SESSION = 2.0

#: How long a fault lasts, in seconds: shorter or longer than the session.
LASTS = (0.5, SESSION + 2.0)

#: A stopped application loses its lock after this time.
SILENT = ["--silent-application-timeout", "2s"]

#: How many histories are made, and the first seed.
HISTORIES = int(os.environ.get("LOCK_HISTORIES") or 8)
SEED_BASE = int(os.environ.get("SEED_BASE") or 0)


class World:
    """Three sidecars with an application each, one lock, one register. One application does not obey."""

    def __init__(self, fleet: FaultFleet, seed: int):
        self.fleet = fleet
        self.seed = seed
        self.dice = random.Random(seed)
        self.register = Register(fleet.folder, seed)
        self.slots = [Slot(fleet, number, SESSION, True, {}, SILENT) for number in (1, 2, 3)]
        #: All applications that there were, and the present ones.
        self.all: list[Writer] = []
        self.writers = [self.writer(slot, obeys=slot.number < 3) for slot in self.slots]

    def writer(self, slot: Slot, obeys: bool) -> Writer:
        writer = Writer(self.fleet, slot, self.register, self.seed, obeys)
        self.all.append(writer)
        return writer

    def queue(self) -> list[str]:
        """The names in the lock's queue, in order. Empty, too, if no server answers."""
        try:
            return sorted(self.fleet.tree.client.get_children(lock_path(self.fleet)), key=lambda name: name[-10:])
        except (NoNodeError, *AWAY):
            return []

    def holder(self) -> Writer | None:
        """The application at the head of the queue, if one is."""
        for name in self.queue()[:1]:
            with suppress(NoNodeError, *AWAY):
                holder = self.fleet.tree.client.get(f"{lock_path(self.fleet)}/{name}")[0].decode()
                return next((writer for writer in self.writers if writer.name == holder), None)
        return None

    def end(self) -> None:
        for writer in self.writers:
            writer.leave()
        self.register.end()


Fault = Callable[[World, Ensemble, Writer], Iterator[None]]


def application_stopped(world: World, ensemble: Ensemble, writer: Writer) -> Iterator[None]:
    writer.freeze()
    yield
    writer.thaw()


def sidecar_stopped(world: World, ensemble: Ensemble, writer: Writer) -> Iterator[None]:
    writer.slot.sidecar.freeze()
    yield
    writer.slot.sidecar.thaw()


def both_stopped(world: World, ensemble: Ensemble, writer: Writer) -> Iterator[None]:
    writer.slot.sidecar.freeze()
    writer.freeze()
    yield
    writer.slot.sidecar.thaw()
    writer.thaw()


def application_killed(world: World, ensemble: Ensemble, writer: Writer) -> Iterator[None]:
    writer.die()
    yield
    world.writers[world.writers.index(writer)] = world.writer(writer.slot, writer.obeys)


def sidecar_killed(world: World, ensemble: Ensemble, writer: Writer) -> Iterator[None]:
    writer.slot.kill_sidecar()
    yield
    writer.slot.start_sidecar()


def cut(world: World, ensemble: Ensemble, writer: Writer) -> Iterator[None]:
    writer.slot.link.cut()
    yield
    writer.slot.link.heal()


def hole(world: World, ensemble: Ensemble, writer: Writer) -> Iterator[None]:
    writer.slot.link.hole(*world.dice.choice([("up", "down"), ("up",), ("down",)]))
    yield
    writer.slot.link.heal(reset=world.dice.random() < 0.5)


def node_deleted(world: World, ensemble: Ensemble, writer: Writer) -> Iterator[None]:
    for name in world.queue()[:1]:
        with suppress(NoNodeError, *AWAY):
            world.fleet.tree.client.delete(f"{lock_path(world.fleet)}/{name}")
    yield


def late_requests(world: World, ensemble: Ensemble, writer: Writer) -> Iterator[None]:
    world.register.late = 0.2
    yield
    world.register.late = 0.0


def lost_answers(world: World, ensemble: Ensemble, writer: Writer) -> Iterator[None]:
    world.register.lost = 0.2
    yield
    world.register.lost = 0.0


def leader_killed(world: World, ensemble: Ensemble, writer: Writer) -> Iterator[None]:
    leader = ensemble.leader()
    leader.kill()
    yield
    leader.start()
    ensemble.wait_serving()


def leader_cut_off(world: World, ensemble: Ensemble, writer: Writer) -> Iterator[None]:
    leader = ensemble.leader()
    world.fleet.part(writer.slot, leader)
    ensemble.cut_off(leader, noticed=world.dice.random() < 0.5)
    yield
    ensemble.heal()
    writer.slot.link.all_again()


def follower_cut_off(world: World, ensemble: Ensemble, writer: Writer) -> Iterator[None]:
    follower = ensemble.follower()
    world.fleet.part(writer.slot, follower)
    ensemble.cut(follower, ensemble.leader())
    yield
    ensemble.heal()
    writer.slot.link.all_again()


ON_PROCESSES: list[Fault] = [
    application_stopped,
    sidecar_stopped,
    both_stopped,
    application_killed,
    sidecar_killed,
    cut,
    hole,
    node_deleted,
]
ON_SERVERS: list[Fault] = [leader_cut_off, leader_killed, follower_cut_off]
ON_REGISTER: list[Fault] = [late_requests, lost_answers]


def inflict(world: World, ensemble: Ensemble) -> None:
    """Inflicts what the seed says: one fault on an application or its sidecar, and at the same time perhaps one on another
    application, one on the servers, and one on the way to the register."""
    dice = world.dice
    clinging = world.writers[2]
    clinging.say("cling")
    holder = world.holder() or dice.choice(world.writers)
    first, second = dice.sample(world.writers, 2)
    if dice.random() < 0.7:
        first, second = holder, dice.choice([writer for writer in world.writers if writer is not holder])
    # The seeds take turns with the first fault.
    faults = [(ON_PROCESSES[world.seed % len(ON_PROCESSES)], first)]
    if dice.random() < 0.4:
        faults.append((dice.choice(ON_PROCESSES), second))
    if dice.random() < 0.25:
        faults.append((dice.choice(ON_SERVERS), second))
    if dice.random() < 0.6:
        faults.append((dice.choice(ON_REGISTER), first))
    dice.shuffle(faults)
    with ExitStack() as undo:
        for fault, writer in faults:
            undo.enter_context(contextmanager(fault)(world, ensemble, writer))
            time.sleep(dice.uniform(0.0, 0.3))
        time.sleep(dice.uniform(*LASTS))
    if clinging in world.writers:
        clinging.say("let go")


@pytest.mark.parametrize("seed", range(SEED_BASE, SEED_BASE + HISTORIES))
def test_s57_a_register_that_a_lock_guards_is_linearizable(
    fleet: FaultFleet, ensemble: Ensemble, tmp_path: Path, seed: int
) -> None:
    world = World(fleet, seed)
    all_write_again(world.writers)
    inflict(world, ensemble)
    all_write_again(world.writers)
    world.end()
    folder = Path(os.environ.get("LOCK_HISTORIES_FOLDER") or tmp_path)
    status, told = check(world.all, folder / f"{seed}.jsonl")
    assert status == 0, told
    assert [writer.name for writer in world.all if writer.events("refused without a loss")] == []
    # Nothing is left in the queue. The container may be gone.
    eventually("an empty queue", lambda: not world.queue())


@pytest.mark.parametrize("checks", [True, False], ids=["tokens are checked", "no check of tokens"])
def test_s57_the_checker_refutes_a_lock_without_a_check_of_tokens(
    fleet: FaultFleet, tmp_path: Path, checks: bool
) -> None:
    register = Register(fleet.folder, 0, checks)
    slots = [Slot(fleet, number, SESSION, True, {}) for number in (1, 2)]
    first = Writer(fleet, slots[0], register, 0, steps=True)
    first.wait("a read", lambda events: events)
    second = Writer(fleet, slots[1], register, 0, steps=True)
    # The client's server may be behind the one that has answered the first writer.
    eventually("two contenders", lambda: len(children(fleet.tree.client, lock_path(fleet))) == 2)
    # The holder is stopped after its read, for longer than its lease.
    for process in (first, first.slot.sidecar):
        process.freeze()
    second.wait("the other one reads", lambda events: events, 2 * PATIENCE)
    second.say("write")
    eventually("a write", lambda: second.wrote() == 1)
    for process in (first.slot.sidecar, first):
        process.thaw()
    first.say("write")
    eventually("the late write", lambda: first.events("refused", "wrote"))
    assert len(first.events("refused")) == checks
    for writer in (first, second):
        writer.leave()
    status, told = check([first, second], tmp_path / "history.jsonl")
    register.end()
    assert (status == 0) is checks, told
    assert ("not linearizable" in told) is not checks, told
