"""How long after an application has died its items are executed elsewhere: with sidecars, and with ElasticJob in Java
in the same run. Run by `make failover-time`; prints a table.

Three instances share nine items, with failover on; while all items are being executed, one instance is killed as by
kill -9. Measured is the time until another one has begun to execute the first of its items, and the last of them, by
the clock of the machine on which all of them run. A Java instance that was killed is noticed when its session ends; an
application beside a sidecar when its stream breaks. Both have the same session timeout.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import sidekeeper

from faults.ensemble import now
from faults.fleet import FaultFleet, Slot, own_fleet
from interop.members import Java, MixedFleet, elasticjob_version
from support.job_nodes import JOB
from support.measures import percentile
from support.processes import PATIENCE, eventually, sidekeeper_binary

INSTANCES = 3
ITEMS = 9

#: How long ZooKeeper waits for word from an instance, in seconds. ElasticJob's default is sixty.
SESSION = 6.0

#: What 99 of 100 failovers with sidecars are to take at most, in milliseconds.
GOAL = 250.0


@dataclass
class Times:
    """What was measured, in seconds."""

    #: Until the first item was executed elsewhere.
    first: list[float] = field(default_factory=list)
    #: Until the last of them was.
    last: list[float] = field(default_factory=list)

    def row(self, name: str) -> str:
        cells = [name, str(len(self.first))]
        for times in (self.first, self.last):
            cells += [f"{1000 * value:.0f}" for value in (statistics.median(times), percentile(times, 99), max(times))]
        return "| " + " | ".join(cells) + " |"


def start_sidecars(fleet: FaultFleet, session: float = SESSION) -> list[Slot]:
    """The instances. `session`: their session timeout, in seconds."""
    return fleet.start(INSTANCES, session=session, sharding_total_count=ITEMS, duration=0.0)


def measure_sidecars(
    fleet: FaultFleet,
    slots: list[Slot],
    kills: int,
    kill: Callable[[Slot], None] = Slot.kill_application,
    start: Callable[[Slot], None] = Slot.start_application,
) -> Times:
    """Kills one instance after the other while they execute items, and starts it again."""
    times = Times()
    for number in range(kills):
        victim = slots[number % INSTANCES]
        others = [slot for slot in slots if slot is not victim]
        begun = {slot.number: len(slot.application.events("start")) for slot in others}
        for slot in slots:
            slot.application.command("hold")
        sidekeeper.trigger(JOB, endpoint=f"unix://{others[0].sidecar.socket}")
        lost = set(victim.application.owned())
        fleet.look_executing(slots)
        killed = now()
        kill(victim)
        taken = wait_taken(others, begun, lost, PATIENCE + 2 * victim.session)
        times.first.append(min(taken.values()) - killed)
        times.last.append(max(taken.values()) - killed)
        for slot in others:
            slot.application.command("release")
        start(victim)
        fleet.divide(slots)
        fleet.look("all recorded", lambda: not fleet.running())
    return times


def wait_taken(others: list[Slot], begun: dict[int, int], lost: set[int], timeout: float) -> dict[int, float]:
    """Waits until other applications execute these items; returns since when, by item."""

    def taken() -> dict[int, float]:
        events = [event for slot in others for event in slot.application.events("start")[begun[slot.number] :]]
        return {event["item"]: event["time"] for event in events if event["source"] == "FAILOVER"}

    eventually("taken over", lambda: set(taken()) == lost, timeout)
    return taken()


def measure_java(fleet: MixedFleet, kills: int) -> Times:
    times = Times()
    job = {"sharding_total_count": ITEMS, "failover": True}
    members: list[Java] = [fleet.java(number + 1, SESSION, **job) for number in range(INSTANCES)]
    fleet.divide(*members, total=ITEMS)
    for number in range(kills):
        victim = members[number % INSTANCES]
        first, last = kill_java(fleet, victim, [member for member in members if member is not victim])
        times.first.append(first)
        times.last.append(last)
        members[members.index(victim)] = fleet.java(number % INSTANCES + 1, SESSION, **job)
        fleet.divide(*members, total=ITEMS)
    return times


def kill_java(fleet: MixedFleet, victim: Java, others: list[Java]) -> tuple[float, float]:
    """Kills an instance that executes all of its items; returns after how long the first and the last were taken."""
    lost = set(fleet.items_of(victim))
    victim.command("hold")
    fire = fleet.start_fire()
    fleet.wait_running(victim, lost)
    # A Java instance takes items over when it is idle.
    eventually("the others are done", lambda: len(fleet.executed(fire)) == ITEMS - len(lost))
    killed = time.time()
    victim.die()

    def taken() -> dict[int, float]:
        events = [event for member in others for event in member.events("start")]
        return {one["item"]: one["time"] for one in events if one["item"] in lost and one["time"] > killed}

    eventually("taken over", lambda: set(taken()) == lost, timeout=10 * SESSION)
    return min(taken().values()) - killed, max(taken().values()) - killed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=120, help="of applications beside sidecars")
    parser.add_argument("--java-kills", type=int, default=5, help="of Java instances; each takes a session timeout")
    arguments = parser.parse_args()
    version = ".".join(map(str, elasticjob_version()))
    with own_fleet() as sidecars:
        folder = Path(tempfile.mkdtemp(prefix="sk-"))
        java = MixedFleet(folder, sidecars.ensemble, sidecars.tree.client, f"{sidecars.namespace}-java")
        try:
            ours = measure_sidecars(sidecars, start_sidecars(sidecars), arguments.kills)
            sidecars.end()
            theirs = measure_java(java, arguments.java_kills)
        finally:
            java.end()
            java.remove_files()
            sidecars.remove_files()
    print(
        f"session timeout {SESSION:.0f} s; {INSTANCES} instances, {ITEMS} items; ZooKeeper ensemble of "
        f"{len(sidecars.ensemble.servers)}; {sidekeeper_binary()}"
    )
    print("| | kills | first item, p50 ms | p99 | max | last item, p50 ms | p99 | max |")
    print("|---|---|---|---|---|---|---|---|")
    print(ours.row("application beside a sidecar"))
    print(theirs.row(f"ElasticJob {version} in Java"))
    reached = 1000 * percentile(ours.first, 99) <= GOAL
    print(f"goal: p99 of the first item at most {GOAL:.0f} ms: {'reached' if reached else 'missed'}")
    return 0 if reached else 1


if __name__ == "__main__":
    sys.exit(main())
