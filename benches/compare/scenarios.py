"""What is measured: each function starts a fleet of one kind, and returns its figures by their names.

Times are taken where the work is done: the start of an execution in the application's handler, ownership and requests in
ZooKeeper. All instances of a fleet share the machine with the server, and with nothing else.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from kazoo.exceptions import NodeExistsError

from compare.instances import CompareFleet, ElasticJob, Kind, Sidecared, Start
from support.measures import percentile, processor_time, resident
from support.processes import eventually, executing
from support.zookeeper import ZooKeeperServer

Figures = dict[str, float]

#: So long that pings are rare, in seconds.
LONG_SESSION = 30.0
#: The session of instances that die, in seconds.
SHORT_SESSION = 4.0
#: How long anything may take, in seconds.
PATIENCE = 60.0
#: After how long an operator helps a fleet of ElasticJob whose items are not divided, in seconds.
LEFT_OUT = 10.0


@dataclass(frozen=True)
class Size:
    """A job and its fleet."""

    items: int
    instances: int
    #: Seconds between two fires.
    period: int
    #: How many fires are measured.
    fires: int


@contextmanager
def fleet_of(
    server: ZooKeeperServer, kind: Kind, items: int, period: int, session: float = LONG_SESSION
) -> Iterator[CompareFleet]:
    """A fleet without instances, in a namespace of its own."""
    client = server.client()
    folder = Path(tempfile.mkdtemp(prefix="sk-"))
    namespace = f"compare-{uuid.uuid4().hex[:8]}"
    job = {"sharding_total_count": items}
    fleet = CompareFleet(folder, server, client, namespace, kind=kind, session=session, job=job, period=period)
    try:
        yield fleet
    except AssertionError:
        for path, (data, _) in sorted(fleet.tree.nodes().items()):
            print(f"{path} = {data!r}", file=sys.stderr)
        print(fleet.logs(), file=sys.stderr)
        raise
    finally:
        fleet.end()
        fleet.remove_files()
        client.stop()
        client.close()


def start_all(fleet: CompareFleet, count: int) -> float:
    """Starts instances at once; returns after how long they own all items evenly, in seconds."""
    began = time.monotonic()
    members = [fleet.launch(number + 1) for number in range(count)]
    for member in members:
        member.wait_registered()
    wait_divided(fleet, members)
    return time.monotonic() - began


def wait_divided(fleet: CompareFleet, members: Sequence[ElasticJob | Sidecared]) -> None:
    """Waits until these instances own the items evenly.

    An ElasticJob leader may overlook an instance that registers during its resharding (docs/elasticjob.md). Then an
    operator asks for another one.
    """
    began = time.monotonic()

    def is_divided() -> bool:
        nonlocal began
        if fleet.is_even(members):
            return True
        if fleet.kind.is_java and time.monotonic() > began + LEFT_OUT:
            began = time.monotonic()
            with suppress(NodeExistsError):
                fleet.tree.create("leader/sharding/necessary")
        return False

    eventually("the items are divided", is_divided, PATIENCE)


def sleep_until(instant: float) -> None:
    time.sleep(max(0.0, instant - time.time()))


def whole_fires(fleet: CompareFleet, first: float, count: int) -> list[Start]:
    """The executions of so many fires, from the first one on. Looks rarely, because looking needs a processor, too."""
    fires = [first + number * fleet.period for number in range(count)]
    sleep_until(fires[-1] + fleet.period / 2)
    wanted = {(item, fire) for item in range(fleet.items) for fire in fires}
    found: list[Start] = []

    def done() -> bool:
        found[:] = [start for start in fleet.starts() if start.fire in fires]
        time.sleep(0.5)
        return {(start.item, start.fire) for start in found} >= wanted

    eventually("all items are executed at each fire", done, PATIENCE)
    return found


def warm_up(fleet: CompareFleet, count: int) -> None:
    """Waits until so many fires were executed as a whole. ElasticJob leaves items out at a fire that comes during another."""

    def done() -> bool:
        time.sleep(0.5)
        executed = Counter(fire for _, fire in {(start.item, start.fire) for start in fleet.starts()})
        return sum(items == fleet.items for items in executed.values()) >= count

    eventually("all items are executed at some fires", done, PATIENCE)


def next_fire(fleet: CompareFleet, ahead: float = 0.0) -> float:
    """The first fire that is at least so many seconds away."""
    return float((time.time() + ahead) // fleet.period + 1) * fleet.period


def steady(server: ZooKeeperServer, kind: Kind, size: Size) -> Figures:
    """A fleet that executes each fire: start delay, requests, processor time and memory."""
    with fleet_of(server, kind, size.items, size.period) as fleet:
        start_all(fleet, size.instances)
        # The first fires are of programs that are not warm.
        warm_up(fleet, 2 if size.period < 5 else 1)
        first = next_fire(fleet, size.period / 4)
        sleep_until(first - size.period / 4)
        packets, used = server.packets_received(), processor_times(fleet)
        starts = whole_fires(fleet, first, size.fires)
        sleep_until(first + (size.fires - 0.25) * size.period)
        sent, after = server.packets_received() - packets, processor_times(fleet)
        memory = {part: statistics.mean(values) for part, values in memories(fleet).items()}
        delays = [1000 * start.delay for start in starts]
        busy = {part: after[part] - used[part] for part in used}
        thousands = size.items * size.fires / 1000
        figures = {
            "p50": percentile(delays, 50),
            "p99": percentile(delays, 99),
            "requests": sent / size.fires,
            "processor": sum(busy.values()) / thousands,
            "memory": sum(memory.values()),
        }
        if "sidecar" in busy:
            figures |= {
                "processor of the sidecar": busy["sidecar"] / thousands,
                "memory of the sidecar": memory["sidecar"],
            }
        return figures


def processor_times(fleet: CompareFleet) -> Counter[str]:
    """The processor time of the instances so far, by the part of an instance."""
    used: Counter[str] = Counter()
    for member in fleet.living():
        for part, pid in member.parts().items():
            used[part] += processor_time(pid)  # type: ignore[assignment]  # seconds
    return used


def memories(fleet: CompareFleet) -> dict[str, list[float]]:
    """The resident memory of each instance, by its part."""
    found: dict[str, list[float]] = {}
    for member in fleet.living():
        for part, pid in member.parts().items():
            found.setdefault(part, []).append(resident(pid))
    return found


def dead_machine(server: ZooKeeperServer, kind: Kind) -> Figures:
    """One of three machines dies while it executes: until the others have begun all of its items."""
    with fleet_of(server, kind, items=9, period=6, session=SHORT_SESSION) as fleet:
        start_all(fleet, 3)
        for member in fleet.members:
            member.command("hold")

        def open_items(member: ElasticJob | Sidecared) -> set[int]:
            return executing(member.events("start", "end"))

        eventually("all are busy", lambda: sum(len(open_items(one)) for one in fleet.members) == fleet.items, PATIENCE)
        dead, others = fleet.members[1], [fleet.members[0], fleet.members[2]]
        # An instance of ElasticJob that is busy takes nothing over.
        for member in others:
            member.command("release")
        time.sleep(1.0)
        interrupted, died = open_items(dead), time.time()
        dead.die()

        def taken() -> bool:
            events = [event for member in others for event in member.events("start") if event["time"] > died]
            return {event["item"] for event in events} >= interrupted

        eventually("the others execute its items", taken, PATIENCE)
        events = [event for member in others for event in member.events("start") if event["time"] > died]
        first_start = {item: min(one["time"] for one in events if one["item"] == item) for item in interrupted}
        return {"taken over": max(first_start.values()) - died}


def join(server: ZooKeeperServer, kind: Kind) -> Figures:
    """A third instance joins two that execute: until it owns its share, from its registration; and how many items moved."""
    with fleet_of(server, kind, items=30, period=2) as fleet:
        start_all(fleet, 2)
        whole_fires(fleet, next_fire(fleet), 1)
        before = fleet.tree.owners()
        third = fleet.launch(3)
        third.wait_registered()
        began = time.monotonic()
        wait_divided(fleet, fleet.members)
        took, after = time.monotonic() - began, fleet.tree.owners()
        return {"took": took, "moved": sum(before[item] != owner for item, owner in after.items())}


def register(server: ZooKeeperServer, kind: Kind) -> None:
    """An instance starts, and registers."""
    with fleet_of(server, kind, items=1, period=2) as fleet:
        fleet.launch(1).wait_registered()


def start_up(server: ZooKeeperServer, kind: Kind) -> Figures:
    """Four instances start at once: until they own all items evenly, from the start of the first process."""
    with fleet_of(server, kind, items=40, period=2) as fleet:
        return {"took": start_all(fleet, 4)}


def rolling_restart(server: ZooKeeperServer, kind: Kind) -> Figures:
    """Three instances are restarted one after the other under a job that fires: what is lost, what comes twice."""
    with fleet_of(server, kind, items=12, period=2) as fleet:
        start_all(fleet, 3)
        first = next_fire(fleet)
        whole_fires(fleet, first, 1)
        for number in range(3):
            fleet.members[number].leave()
            wait_divided(fleet, fleet.living())
            fleet.launch(number + 1).wait_registered()
            wait_divided(fleet, fleet.living())
        last = next_fire(fleet)
        sleep_until(last + 2 * fleet.period)
        fires = [first + number * fleet.period for number in range(int((last - first) // fleet.period))]
        counts = Counter((start.item, start.fire) for start in fleet.starts())
        # A fire that was missed may be made up for by one execution for a later instant.
        executed = sum(counts[item, fire] > 0 for item in range(fleet.items) for fire in fires)
        twice = sum(counts[item, fire] > 1 for item in range(fleet.items) for fire in fires)
        due = fleet.items * len(fires)
        return {"not at its instant": 100 * (due - executed) / due, "twice": float(twice)}


#: The fires that are measured, by their headings.
SIZES = {
    "50 items, 3 instances, every 2 s": Size(items=50, instances=3, period=2, fires=10),
    "200 items, 1 instance, every 4 s": Size(items=200, instances=1, period=4, fires=4),
    "2,000 items, 1 instance, every 20 s": Size(items=2_000, instances=1, period=20, fires=2),
}

#: The events that are measured.
EVENTS: dict[str, Callable[[ZooKeeperServer, Kind], Figures]] = {
    "dead machine": dead_machine,
    "join": join,
    "start-up": start_up,
    "rolling restart": rolling_restart,
}
