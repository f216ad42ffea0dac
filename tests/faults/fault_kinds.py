"""What goes wrong when: drawn from a seed before anything starts, so that a seed names a run."""

from __future__ import annotations

import random
from dataclasses import dataclass

#: How much longer than the session a long fault is, and how much of it a short one, as factors.
LONG = (1.5, 2.2)
SHORT = (0.05, 0.35)

#: What can be done to a slot, with how often it is, and how long it lasts in sessions. A kill lasts until the process
#: is started again.
SLOT_KINDS: dict[str, tuple[float, tuple[float, float]]] = {
    "cut short": (3, SHORT),
    "cut long": (2, LONG),
    "hole up short": (2, SHORT),
    "hole up long": (2, LONG),
    "hole down short": (2, SHORT),
    "hole down long": (2, LONG),
    "hole both long": (1, LONG),
    "delay": (2, (0.3, 1.0)),
    "sidecar stopped short": (2, SHORT),
    "sidecar stopped long": (2, LONG),
    "sidecar killed": (3, (0.0, 0.6)),
    "application killed": (4, (0.0, 0.8)),
    "application stopped short": (2, SHORT),
    "application stopped long": (2, LONG),
    "machine stopped long": (1, LONG),
}

#: What can be done to the servers of the ensemble: at most one of them is away at a time. One that is cut off from the
#: others still serves: a slot that reaches no other server is connected to it.
SERVER_KINDS: dict[str, tuple[float, tuple[float, float]]] = {
    "follower killed": (1, (0.1, 0.5)),
    "follower stopped": (1, (0.1, 0.8)),
    "leader killed": (1.5, (0.1, 0.5)),
    "leader stopped": (1, (0.1, 0.8)),
    "ensemble away short": (0.7, SHORT),
    "ensemble away long": (0.4, LONG),
    "follower cut off": (2, (0.4, 2.0)),
    "leader cut off": (1, (0.4, 2.0)),
}

KINDS = {**SLOT_KINDS, **SERVER_KINDS}

#: Of these kinds there is one in so many faults at least.
AT_LEAST = {"follower cut off": 20, "leader cut off": 40}

#: The pause between the begins of two faults, in seconds.
PAUSE = (0.2, 2.2)

#: How many slots may be in trouble at a time.
SLOTS_AT_ONCE = 2


@dataclass(frozen=True)
class Fault:
    """Something that goes wrong, and for how long."""

    kind: str
    #: Which slot, from 0; for a server that is cut off, the one that reaches no other server.
    slot: int
    #: When it begins, in seconds from the start, if nothing has to be waited for.
    begin: float
    #: How long it lasts, in seconds.
    duration: float
    #: A random number for what is left to choose.
    dice: float

    @property
    def on_servers(self) -> bool:
        return self.kind in SERVER_KINDS

    def __str__(self) -> str:
        where = "" if self.on_servers else f" of slot {self.slot + 1}"
        return f"{self.kind}{where} for {self.duration:.2f} s"


def draw(seed: int, count: int, slots: int, session: float) -> list[Fault]:
    """Draws the faults of a run: each kind once at least, if there is room, the rest at random, all in any order."""
    chance = random.Random(seed)
    kinds = list(KINDS)
    chance.shuffle(kinds)
    kinds += [kind for kind, one_in in AT_LEAST.items() for _ in range(count // one_in - 1)]
    weights = [weight for weight, _ in KINDS.values()]
    kinds += chance.choices(list(KINDS), weights, k=max(0, count - len(kinds)))
    kinds = kinds[:count]
    chance.shuffle(kinds)
    faults: list[Fault] = []
    #: Until when each slot, and the servers, are in trouble.
    busy = [0.0] * slots
    servers_busy = 0.0
    clock = 0.0
    for kind in kinds:
        clock += chance.uniform(*PAUSE)
        duration = session * chance.uniform(*KINDS[kind][1])
        slot = chance.randrange(slots)
        if kind in SERVER_KINDS:
            clock = max(clock, servers_busy)
            servers_busy = clock + duration + session * 0.8
        else:
            # Not more than some at a time, and not one that is still in trouble.
            clock = max(clock, sorted(busy)[slots - SLOTS_AT_ONCE])
            slot = min((one for one in range(slots) if busy[one] <= clock), key=lambda one: (one - slot) % slots)
            busy[slot] = clock + duration + 0.5
        faults.append(Fault(kind, slot, clock, duration, chance.random()))
    return faults
