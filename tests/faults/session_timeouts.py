"""Measures how short a session timeout is safe. Run by `make session-timeouts`; prints two tables.

**Sessions lost.** For each timeout some sidecars keep their sessions on a machine whose processors are overloaded, on
servers with ZooKeeper's default `tickTime`, `initLimit` and `syncLimit`, in three sets that run at the same time: some
meet nothing but the load, some are suspended for three seconds now and then, and those of a second ensemble meet
changes of its leader. Counted is how often a sidecar lost its session: ZooKeeper had ended it, or the sidecar could not
prove it alive before its lease ended.

**Failovers of a machine that dies.** A sidecar and its application are killed in the same moment while they execute
items. ZooKeeper learns of that by silence only. Measured is the time until others execute the items.
"""

from __future__ import annotations

import argparse
import heapq
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

from faults.ensemble import Ensemble
from faults.failover_time import Times, measure_sidecars, start_sidecars
from faults.fleet import FaultFleet, Slot
from faults.network import Network
from support.measures import percentile
from support.processes import eventually
from support.sidecar import Sidecar

#: The session timeouts, in seconds. The shortest is what a server grants at least: two ticks.
TIMEOUTS = (4, 5, 6, 7, 8, 10, 15, 30)

#: ZooKeeper's defaults.
DEFAULTS = {"tickTime": 2000, "initLimit": 10, "syncLimit": 5, "minSessionTimeout": 4000, "maxSessionTimeout": 40000}

#: How many sidecars of each set and timeout there are.
SIDECARS = {"load": 3, "suspended": 2, "leader": 3}

#: How long a sidecar is suspended, and about how often, in seconds.
SUSPENDED, SUSPENDED_EACH = 3.0, 30.0

#: The time between two changes of the leader, in seconds: more than the longest timeout.
LEADER_EACH = 45.0

#: What happens to the leader, one after the other.
LEADER_FAULTS = ("stopped in order", "killed", "suspended for 6 s")

#: How long a leader is suspended, or away when it was stopped, in seconds.
LEADER_AWAY = 6.0

#: How many fleets of the second table there are at a time.
FLEETS = 4


def lease(timeout: float) -> float:
    """How long after the last proof a sidecar acts on its session, in seconds (docs/lease.md)."""
    return timeout - max(0.5, timeout / 5) - min(1.0, timeout / 4)


class Sessions:
    """The sidecars of one set and timeout."""

    def __init__(self, kind: str, timeout: int, sidecars: list[Sidecar]):
        self.kind, self.timeout, self.sidecars = kind, timeout, sidecars

    def lost(self) -> int:
        return sum(sidecar.log.read_text(errors="replace").count("session lost") for sidecar in self.sidecars)

    def opened(self) -> bool:
        return all("session opened" in sidecar.log.read_text(errors="replace") for sidecar in self.sidecars)


class LeaderFaults:
    """What happens to the leader of an ensemble, and which sessions were lost after each kind of fault."""

    def __init__(self, ensemble: Ensemble, sessions: list[Sessions]):
        self._ensemble, self._sessions = ensemble, sessions
        self._last = {one.timeout: 0 for one in sessions}
        self.inflicted: Counter[str] = Counter()
        self.lost: Counter[tuple[str, int]] = Counter()
        self._kind = ""

    def count(self) -> None:
        """Counts the sessions that were lost since the last fault."""
        for one in self._sessions:
            lost = one.lost()
            self.lost[self._kind, one.timeout] += lost - self._last[one.timeout]
            self._last[one.timeout] = lost

    def go_on(self, over: threading.Event) -> None:
        """Inflicts one fault after the other, until it is over."""
        while not over.wait(LEADER_EACH - LEADER_AWAY):
            self._inflict()
            over.wait(LEADER_AWAY)
            self._ensemble.repair()

    def _inflict(self) -> None:
        """Ends or suspends the leader."""
        self.count()
        self._kind = LEADER_FAULTS[self.inflicted.total() % len(LEADER_FAULTS)]
        self.inflicted[self._kind] += 1
        leader = self._ensemble.leader()
        if self._kind.startswith("suspended"):
            leader.stop()
        elif self._kind == "killed":
            leader.kill()
        else:
            leader.popen.terminate()
            leader.popen.wait()


def default_ensemble(stack: ExitStack, folder: Path) -> Ensemble:
    folder.mkdir()
    ensemble = Ensemble(folder, **DEFAULTS)
    stack.callback(ensemble.kill)
    return ensemble


@contextmanager
def load(processes: int) -> Iterator[None]:
    """So many processes that compute. Each has a session of its own, because some kernels divide the processors between
    sessions first."""
    command = [sys.executable, "-c", "while True: pass"]
    busy = [subprocess.Popen(command, start_new_session=True) for _ in range(processes)]
    try:
        yield
    finally:
        for one in busy:
            one.kill()
            one.wait()


def suspend(sets: list[Sessions], end: float, draw: random.Random) -> Counter[int]:
    """Suspends each sidecar now and then until the end. Returns how often, by timeout."""
    stops: Counter[int] = Counter()
    # What happens next: when, a number that orders what comes at one time, and to which sidecar.
    plan = [
        (time.monotonic() + draw.uniform(0, SUSPENDED_EACH), draw.getrandbits(60), one.timeout, sidecar)
        for one in sets
        for sidecar in one.sidecars
    ]
    heapq.heapify(plan)
    while True:
        due, _, timeout, sidecar = heapq.heappop(plan)
        if due + SUSPENDED > end and not sidecar.frozen:
            if not any(other.frozen for *_, other in plan):
                break
            continue
        time.sleep(max(0.0, due - time.monotonic()))
        if sidecar.frozen:
            sidecar.thaw()
            pause = draw.uniform(0.5, 1.5) * SUSPENDED_EACH
        else:
            sidecar.freeze()
            stops[timeout] += 1
            pause = SUSPENDED
        heapq.heappush(plan, (time.monotonic() + pause, draw.getrandbits(60), timeout, sidecar))
    time.sleep(max(0.0, end - time.monotonic()))
    return stops


def sessions_lost(minutes: float, processes: int, seed: int) -> list[str]:
    """The first table."""
    draw = random.Random(seed)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sk-", ignore_cleanup_errors=True)))
        calm = default_ensemble(stack, folder / "calm")
        changing = default_ensemble(stack, folder / "changing")
        sets: list[Sessions] = []
        number = 0
        for kind, count in SIDECARS.items():
            for timeout in TIMEOUTS:
                sidecars = []
                for _ in range(count):
                    number += 1
                    address = (changing if kind == "leader" else calm).address
                    sidecar = Sidecar(number, folder, address, f"n-{number}", f"{timeout}s", ["--log-format", "text"])
                    stack.callback(sidecar.kill)
                    sidecars.append(sidecar)
                sets.append(Sessions(kind, timeout, sidecars))
        eventually("all sessions", lambda: all(one.opened() for one in sets), 60.0)
        leader = LeaderFaults(changing, [one for one in sets if one.kind == "leader"])
        stack.enter_context(load(processes))
        # The faults of the leader wait for the ensemble, and no sidecar is to be suspended for longer because of that.
        over = threading.Event()
        faults_of_leader = threading.Thread(target=leader.go_on, args=(over,))
        faults_of_leader.start()
        # It starts servers again, so it ends before they do.
        stack.callback(faults_of_leader.join)
        stack.callback(over.set)
        stops = suspend([one for one in sets if one.kind == "suspended"], time.monotonic() + 60 * minutes, draw)
        over.set()
        faults_of_leader.join()
        leader.count()
        lost = {(one.kind, one.timeout): one.lost() for one in sets}
    hours = minutes / 60
    faults = [f"leader {kind}, {SIDECARS['leader'] * leader.inflicted[kind]} each" for kind in LEADER_FAULTS]
    rows = [
        f"Sessions lost, with {processes} processes that compute, {minutes:g} minutes, seed {seed}:\n",
        f"| session timeout, s | lease, s | in {SIDECARS['load'] * hours:g} hours of load | suspended for "
        f"{SUSPENDED:g} s | {' | '.join(faults)} |",
        "|" + "---|" * (4 + len(faults)),
    ]
    for timeout in TIMEOUTS:
        cells = [f"{timeout}", f"{lease(timeout):.1f}", f"{lost['load', timeout]}"]
        cells += [f"{lost['suspended', timeout]} of {stops[timeout]}"]
        cells += [f"{leader.lost[kind, timeout]}" for kind in LEADER_FAULTS]
        rows.append("| " + " | ".join(cells) + " |")
    return rows


def failovers(timeouts: list[float], kills: int) -> list[str]:
    """The second table."""
    rows = [
        "Failovers of a machine that dies, in seconds:\n",
        "| session timeout, s | machines | first item, p50 | p99 | max | last item, p50 | p99 | max |",
        "|---|---|---|---|---|---|---|---|",
    ]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sk-", ignore_cleanup_errors=True)))
        ensemble = default_ensemble(stack, folder / "servers")
        network = Network()
        stack.callback(network.end)
        client = ensemble.client()
        stack.callback(client.close)
        stack.callback(client.stop)
        for timeout in timeouts:
            fleets = []
            with ExitStack() as ends:
                # It waits for measurements, which fail when the fleets have ended.
                pool = ends.enter_context(ThreadPoolExecutor(FLEETS))
                for number in range(FLEETS):
                    own = folder / f"{timeout:g}-{number}"
                    own.mkdir()
                    fleet = FaultFleet(own, ensemble, network, client, f"machines-{timeout:g}-{number}")
                    ends.callback(fleet.store.end)
                    ends.callback(fleet.end)
                    fleets.append((fleet, start_sidecars(fleet, timeout)))

                def measure(started: tuple[FaultFleet, list[Slot]]) -> Times:
                    return measure_sidecars(*started, kills // FLEETS, Slot.die, Slot.start_again)

                of_fleets = list(pool.map(measure, fleets))
            first = [value for times in of_fleets for value in times.first]
            last = [value for times in of_fleets for value in times.last]
            cells = [f"{timeout:g}", str(len(first))]
            for values in (first, last):
                cells += [f"{value:.1f}" for value in (statistics.median(values), percentile(values, 99), max(values))]
            rows.append("| " + " | ".join(cells) + " |")
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60, help="of the first table; 0: not this table")
    parser.add_argument("--load", type=int, default=8, help="processes that compute, in the first table")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--failovers", type=int, default=60, help="for each timeout, in the second table; 0: not it")
    parser.add_argument("--timeouts", type=float, nargs="*", default=[7, 8, 30], help="of the second table, in seconds")
    arguments = parser.parse_args()
    # All processes end with this one.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    if arguments.minutes:
        print("\n".join(sessions_lost(arguments.minutes, arguments.load, arguments.seed)), flush=True)
    if arguments.failovers:
        print("\n" + "\n".join(failovers(arguments.timeouts, arguments.failovers)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
