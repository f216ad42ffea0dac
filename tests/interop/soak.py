"""A mixed fleet under random kills: nothing lost, nothing left, nobody stuck. Run by `make soak`.

Two Java instances and two of ours share twenty items that fire every two seconds, with failover on. Every quarter of a
minute one of them is killed as by kill -9, and started again a little later. Afterwards:

- each item has been executed for each fire, or for a later one that makes up for it, unless its owner was dead when it
  fired: ElasticJob makes up for nothing that an instance which was dead, and not yet known to be, would have executed; or
  its owner was a Java instance, and the fire came while the items were divided after a kill or a start. Java loses such
  fires by itself: it reads the items from a cache that is behind, or has items before its scheduler runs. They are
  counted, beside what a fleet of Java instances only loses in the same run (`--java-only`);
- what a dead instance was executing has been executed by another one;
- no item has been executed twice for the same fire on instances of ours;
- every item has an owner that is alive, and no node of an execution or a takeover is left.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "e2e")]

from harness import ZooKeeperServer, eventually  # noqa: E402
from peers import Member, MixedFleet, elasticjob_version, executing  # noqa: E402

ITEMS = 20
INTERVAL = 2.0
KILL_INTERVAL = 15.0
SESSION = 3.0

#: How often it is looked who owns what, in seconds.
LOOK_INTERVAL = 0.1

#: How long after a kill all fires are whole again: the session, a look at it, and a fire that divides anew; and how
#: long takeovers may take, in seconds.
RECOVERY = SESSION + 1.0 + 3 * INTERVAL

JOB = {
    "sharding_total_count": ITEMS,
    "cron": "0/2 * * * * ?",
    "failover": True,
    "concurrency": ITEMS,
}


@dataclass(frozen=True)
class Kill:
    """A member that was killed."""

    at: float
    member: str
    instance: str
    executing: frozenset[int]
    #: When another one took its place.
    replaced: float


class Owners:
    """Who owned what, all the time: until a dead instance is known to be dead, it is given items like any other."""

    def __init__(self, fleet: MixedFleet):
        self._fleet = fleet
        self._seen: list[tuple[float, dict[int, str]]] = []
        self._ended = threading.Event()
        self._watcher = threading.Thread(target=self._watch)
        self._watcher.start()

    def _watch(self) -> None:
        while not self._ended.wait(LOOK_INTERVAL):
            before = time.time()
            self._seen.append((before, self._fleet.tree.owners()))

    def end(self) -> None:
        self._ended.set()
        self._watcher.join()

    def of(self, item: int, fire: float) -> set[str]:
        """The instances that owned an item when it fired, or until shortly after."""
        return {
            owners[item]
            for at, owners in self._seen
            if fire - 2 * LOOK_INTERVAL <= at <= fire + INTERVAL / 2 and item in owners
        }


def run(fleet: MixedFleet, seconds: float, chance: random.Random, kinds: Sequence[str]) -> list[Kill]:
    """Lets the fleet work, and kills and restarts its members; returns the kills."""
    fleet.interval = INTERVAL
    slots = [(kind, number + 1) for number, kind in enumerate(kinds)]
    alive = {slot: start(fleet, slot) for slot in slots}
    fleet.divide(*alive.values(), total=ITEMS)
    end = time.monotonic() + seconds
    kills = []
    while time.monotonic() < end - RECOVERY:
        time.sleep(KILL_INTERVAL * chance.uniform(0.5, 1.0))
        slot = chance.choice(slots)
        victim = alive[slot]
        # So that about half of the kills meet it while it executes.
        time.sleep(INTERVAL - time.time() % INTERVAL + chance.uniform(0.0, 0.5))
        at = time.time()
        victim.die()
        interrupted = frozenset(executing(victim.events("start", "end")))
        print(f"{time.strftime('%H:%M:%S')} killed {victim.name} executing {sorted(interrupted)}", flush=True)
        time.sleep(chance.uniform(0.0, 2 * SESSION))
        kills.append(Kill(at, victim.name, victim.instance, interrupted, replaced=time.time()))
        alive[slot] = start(fleet, slot)
    time.sleep(RECOVERY)
    fleet.divide(*alive.values(), total=ITEMS)
    fleet.wait_fires(2, total=ITEMS)
    return kills


def start(fleet: MixedFleet, slot: tuple[str, int]) -> Member:
    kind, number = slot
    member = fleet.member(kind, number, SESSION, **JOB)
    # Java executes a few items at a time: even half of the fleet has to be done before the next fire.
    member.command("duration 150")
    return member


def is_java(instance: str) -> bool:
    return instance.rpartition("@-@")[2].isdigit()


def judge(fleet: MixedFleet, kills: list[Kill], owners: Owners) -> list[str]:
    """Returns what went wrong."""
    problems = []
    executions = [one for one in fleet.executions() if one.outcome == "end"]
    done = {(one.fire, one.item) for one in executions}
    make_ups = [one for one in executions if one.source == "MISFIRE"]
    first = min(one.fire for one in executions) + 3 * INTERVAL
    last = max(one.fire for one in executions) - 2 * INTERVAL
    fires = [first + number * INTERVAL for number in range(int((last - first) / INTERVAL) + 1)]
    excused = lost_by_java = made_up = 0
    changes = [at for kill in kills for at in (kill.at, kill.replaced)]
    for fire in fires:
        for item in range(ITEMS):
            if (fire, item) in done:
                continue
            # One execution makes up for all fires that were missed until the one that it names.
            makes_up = (one for one in make_ups if one.item == item and one.fire > fire)
            if any(one.started < fire + RECOVERY for one in makes_up):
                made_up += 1
                continue
            had = owners.of(item, fire)
            if any(kill.instance in had and kill.at - INTERVAL <= fire for kill in kills):
                excused += 1
            elif had and all(map(is_java, had)) and any(at <= fire <= at + RECOVERY for at in changes):
                lost_by_java += 1
            else:
                problems.append(f"item {item} was not executed for the fire of {time.ctime(fire)}: {had}")
    for kill in kills:
        for item in kill.executing:
            if not any(one.item == item and kill.at < one.started < kill.at + RECOVERY for one in executions):
                problems.append(f"item {item}, which {kill.member} was executing, was not taken over")
    try:
        fleet.assert_none_twice()
    except AssertionError as error:
        problems.append(f"executed twice: {error}")
    sources = sorted({one.source or "by Java" for one in executions})
    told = {source: sum((one.source or "by Java") == source for one in executions) for source in sources}
    print(f"{len(fires)} fires, {len(executions)} executions {told}, {len(kills)} kills")
    print(f"{made_up} made up for by a later one, {excused} owned by the dead, {lost_by_java} lost by Java")
    return problems


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--java-only", action="store_true", help="four Java instances, for comparison")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    arguments = parser.parse_args()
    version = ".".join(map(str, elasticjob_version()))
    print(f"{arguments.minutes} minutes, seed {arguments.seed}, ElasticJob {version}", flush=True)
    with tempfile.TemporaryDirectory(prefix="sk-zk-") as folder:
        server = ZooKeeperServer(Path(folder))
        client = server.client()
        namespace = f"soak-{uuid.uuid4().hex[:8]}"
        fleet = MixedFleet(Path(tempfile.mkdtemp(prefix="sk-")), server, client, namespace)
        owners = Owners(fleet)
        try:
            kinds = ["java"] * 4 if arguments.java_only else ["java", "java", "ours", "ours"]
            kills = run(fleet, arguments.minutes * 60, random.Random(arguments.seed), kinds)
            fleet.tree.configure(cron="0 0 0 1 1 ? 2099")
            problems = judge(fleet, kills, owners)
            eventually("no leftovers", lambda: not fleet.leftovers())
        except AssertionError as error:
            problems = [str(error), fleet.state()]
        finally:
            owners.end()
        if problems:
            print("\n".join(problems))
            print(f"logs: {fleet.folder}")
            fleet.end()
        else:
            print("nothing lost, nothing left")
            fleet.end()
            fleet.remove_files()
        client.stop()
        server.kill()
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
